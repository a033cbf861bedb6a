"""``rlds inspect``: pages on the terminal, and files: ``--html`` reports, ``--plot`` charts, frames and videos."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text
from rlds_cli.base.refs import Ref
from rlds_cli.cli import options, out, remote
from rlds_cli.cli.commands import app
from rlds_cli.cli.helping import Command
from rlds_cli.errors import RldsError

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.look.report.html import PageReport

_STDOUT = "-"


class _WithDefaultReport(Command):
    """Takes ``--html`` without a file, at the end of the line or before another option, as ``--html ""``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        words: list[str] = []
        for word, following in pairwise([*args, "--"]):
            words += [word, ""] if word == "--html" and following != _STDOUT and following.startswith("-") else [word]
        parsed: list[str] = super().parse_args(ctx, words)
        return parsed


@app.command("inspect", cls=_WithDefaultReport)
def inspect(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID|PATH|ADDRESS",
            help="A dataset on this disk or at an address, or files of any kind.",
            autocompletion=options.complete_here,
        ),
    ],
    stats: Annotated[bool, typer.Option("--stats", help="Show statistics of every element of a row.")] = False,
    episode: Annotated[
        int | None, typer.Option("--episode", metavar="N", help="Show one episode; -1 is the last.", show_default=False)
    ] = None,
    source: Annotated[
        bool,
        typer.Option("--source", help="Show how each file, column, key and attribute of the source is used."),
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="[FILE]",
            help="Write a report as one HTML file, by default NAME.html; - is stdout.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="returns|lengths|NAME",
            help="Write a chart as SVG; of an image field frames as PNG, or --episode N (else 0) as MP4.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="File that --plot writes.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html replace a file that is not a report.")] = False,
    reader: options.Reader = None,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the contents of a dataset, an episode or a file. A sample (sample/...) is downloaded first.

    Example: rlds inspect d4rl/hopper-medium-v2 --episode 12
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes

    sample = remote.fetch_sample(ref, home)
    there = remote.opened(ref, home) if sample is None else sample
    found, is_dataset = homes.version_or_file(ref, home=home) if there is None else (Ref(there.path), True)
    path = Path(found.place)
    if (episode is not None or plot is not None) and not is_dataset:
        option = "--plot" if episode is None else "--episode"
        raise typer.BadParameter(f"{option} needs a dataset; {ref} is a file (rlds import makes a dataset of it)")
    if source and not is_dataset:
        hint = f"rlds import {ref} --name local/NAME --dry-run says what would become of it"
        raise typer.BadParameter(f"--source is for datasets; {ref} is a file ({hint})")
    if source and (stats or episode is not None or plot is not None or html is not None):
        raise typer.BadParameter("--source cannot be combined with --stats, --episode, --plot or --html")
    if html is not None and plot is not None:
        raise typer.BadParameter("--html cannot be combined with --plot")
    if html is not None:
        _check_report(path, html, is_dataset=is_dataset, whole=episode is None)
    if not is_dataset:
        return _show_file(path, reader)
    if reader is not None:
        raise typer.BadParameter(f"--reader reads files; {ref} is a dataset")
    from rlds_cli.dataset import open_dataset

    ds = open_dataset(str(found)) if there is None else there
    if source:
        _show_source(ds)
    elif plot is None and html is None:
        _show(ds, ref, episode, stats)
    if plot is not None:
        _write_plot(ds, plot, output, episode=episode)
    if html is not None:
        _write_report(ds, html or f"{ds.id.rpartition('/')[2]}.html", force=force)
    return remote.tell(there)


def _show(dataset: Dataset, ref: str, episode: int | None, elements: bool) -> None:
    """Print the page of a dataset, or of one of its episodes."""
    from rlds_cli import look

    if episode is not None:
        one = look.describe_episode(dataset, episode, elements=elements)
        out.page(look.page(one, ref=ref), one)
    else:
        whole = look.summarise(dataset, elements=elements)
        out.page(look.page(whole, address=dataset.store.address or None, ref=ref), whole)


def _show_source(dataset: Dataset) -> None:
    """Print the page of the source of a dataset."""
    from rlds_cli import look

    found = look.describe_source(dataset)
    out.page(look.page(found), found)


def _show_file(path: Path, reader: str | None) -> None:
    """Print the page of a file."""
    from rlds_cli import look

    with out.progress() as progress:
        found = look.describe_file(path, reader=reader, progress=progress)
    out.page(look.page(found), found)


# -- files: reports, charts and videos


def _check_report(dataset: Path, to: str, *, is_dataset: bool, whole: bool) -> None:
    """Refuse options that a report cannot be written with."""
    if not is_dataset:
        raise typer.BadParameter(f"--html needs a dataset; {dataset} is a file (rlds import makes a dataset of it)")
    if not whole:
        raise typer.BadParameter("--html reports on the whole dataset, without --episode")
    if to == _STDOUT and out.wants_json():
        raise typer.BadParameter("--html - and --json would both write to standard output")
    if to == _STDOUT and sys.stdout.isatty():
        raise typer.BadParameter("--html - writes to a pipe or a file, not to a terminal")


def _write_report(dataset: Dataset, to: str, *, force: bool) -> None:
    """Write the report of a dataset to a file, or to standard output."""
    from rlds_cli.look import write_page

    with out.progress() as progress:
        if to == _STDOUT:
            write_page(dataset, sys.stdout.buffer, progress=progress)
            sys.stdout.buffer.flush()
            return
        written = write_page(dataset, to, force=force, progress=progress)
    out.result(written, _report_line(written))


def _report_line(w: PageReport) -> str:
    some = f", {w.episodes_viewed:,} of them in its viewer" if w.episodes_viewed < w.episodes else ""
    found = ", ".join(text.plural(n, name) for n, name in ((w.errors, "error"), (w.warnings, "warning")))
    return f"{w.path}  {text.size_of(w.bytes)}  {text.plural(w.episodes, 'episode')}{some}; {found}"


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that was written; ``frames`` is set for a video."""

    file: Path
    bytes: int
    frames: int | None = None


def _write_plot(ds: Dataset, what: str, output: str | None, *, episode: int | None) -> None:
    """Write a chart as SVG; of an image field some frames as PNG, or an episode as MP4."""
    from rlds_cli import look

    suffixes = look.plot_suffixes(ds, what)
    if output is None:
        raise typer.BadParameter(f"--plot {what} needs a file: -o {what.replace('/', '-')}{suffixes[0]}")
    file = Path(output).expanduser()
    if file.suffix.lower() not in suffixes:
        drawn = "images, written as PNG or MP4" if ".png" in suffixes else "a chart, written as SVG"
        raise typer.BadParameter(f"{what} is {drawn}: -o {file.with_suffix(suffixes[0])}")
    try:
        frames = look.write_plot(ds, what, file, episode=episode)
    except OSError as e:
        raise _refused(e, file) from e
    _show_output(OutputFile(file, file.stat().st_size, frames))


def _refused(e: OSError, file: Path) -> RldsError:
    if isinstance(e, FileNotFoundError | NotADirectoryError):
        return RldsError(f"{file} cannot be written: there is no directory {file.parent}.")
    from rlds_cli.base.files.disk import disk_error

    return disk_error(e, file)


def _show_output(w: OutputFile) -> None:
    frames = f"  {text.plural(w.frames, 'frame')}" if w.frames is not None else ""
    out.result(w, f"{w.file}{frames}  {out.size(w.bytes)}")
