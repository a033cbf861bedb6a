"""``rlds inspect ID --html FILE``: the report, and one line on it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from rlds_cli import sizes
from rlds_cli.cli import out
from rlds_cli.report.page import PageReport, write_page

_STDOUT = "-"


def write(dataset: Path, to: str, *, is_dataset: bool, whole: bool, force: bool) -> None:
    """Write the report of a dataset to a file, or to standard output."""
    if not is_dataset:
        raise typer.BadParameter(f"--html needs a dataset; {dataset} is a file (rlds import makes one of it)")
    if not whole:
        raise typer.BadParameter("--html is about the whole dataset, without --episode")
    if to == _STDOUT and out.wants_json():
        raise typer.BadParameter("--html - and --json would both write to standard output")
    if to == _STDOUT and sys.stdout.isatty():
        raise typer.BadParameter("--html - writes to a pipe or a file, not to a terminal")
    with out.progress() as progress:
        if to == _STDOUT:
            write_page(dataset, sys.stdout.buffer, progress=progress)
            sys.stdout.buffer.flush()
            return
        written = write_page(dataset, to, force=force, progress=progress)
    out.result(written, _line(written))


def _line(w: PageReport) -> str:
    some = f", {w.episodes_viewed:,} of them in its viewer" if w.episodes_viewed < w.episodes else ""
    found = ", ".join(sizes.plural(n, name) for n, name in ((w.errors, "error"), (w.warnings, "warning")))
    return f"{w.path}  {sizes.text(w.bytes)}  {sizes.plural(w.episodes, 'episode')}{some}; {found}"
