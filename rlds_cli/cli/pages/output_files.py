"""Files that ``rlds inspect`` writes: ``--html`` reports, ``--plot`` charts, and ``--video`` frames."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from rlds_cli import text
from rlds_cli.cli import out
from rlds_cli.dataset import open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.files import safe as safe_files
from rlds_cli.files.disk import disk_error
from rlds_cli.report import images, svg
from rlds_cli.report.columns import is_image
from rlds_cli.report.html import PageReport, write_page

_STDOUT = "-"


def write_report(dataset: Path, to: str, *, is_dataset: bool, whole: bool, force: bool) -> None:
    """Write the report of a dataset to a file, or to standard output."""
    if not is_dataset:
        raise typer.BadParameter(f"--html needs a dataset; {dataset} is a file (rlds import makes a dataset of it)")
    if not whole:
        raise typer.BadParameter("--html reports on the whole dataset, without --episode")
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
    found = ", ".join(text.plural(n, name) for n, name in ((w.errors, "error"), (w.warnings, "warning")))
    return f"{w.path}  {text.size_of(w.bytes)}  {text.plural(w.episodes, 'episode')}{some}; {found}"


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that was written; ``frames`` is set for a video."""

    file: Path
    bytes: int
    frames: int | None = None


def write_plot(dataset: Path, what: str, output: str | None, *, episode: int | None) -> None:
    """Write a plot as SVG, or frames of an image field as PNG."""
    ds = open_dataset(dataset)
    picture = what in ds.schema and is_image(ds.schema[what])
    suffix = ".png" if picture else ".svg"
    if output is None:
        raise typer.BadParameter(f"--plot {what} needs a file: -o {what.replace('/', '-')}{suffix}")
    file = Path(output).expanduser()
    if file.suffix.lower() != suffix:
        drawn = "a contact sheet, written as PNG" if picture else "a chart, written as SVG"
        raise typer.BadParameter(f"{what} is {drawn}: -o {file.with_suffix(suffix)}")
    try:
        if picture:
            sheet = io.BytesIO()
            images.contact_sheet(ds, what, episode=episode).save(sheet, "PNG")
            written = sheet.getvalue()
        else:
            written = svg.plot(ds, what, episode=episode).encode()
        safe_files.followed(file).write_bytes(written)
    except OSError as e:
        raise _refused(e, file) from e
    _show(OutputFile(file, file.stat().st_size))


def write_video(dataset: Path, output: str, *, episode: int | None, field: str | None) -> None:
    """Write the frames of an episode, the first when none is named, as a video."""
    ds, file = open_dataset(dataset), Path(output).expanduser()
    if file.suffix.lower() != ".mp4":
        raise typer.BadParameter(f"videos are written as MP4: --video {file.with_suffix('.mp4')}")
    try:
        frames = images.write_video(ds, file, episode or 0, field=field)
    except OSError as e:
        raise _refused(e, file) from e
    _show(OutputFile(file, file.stat().st_size, frames))


def _refused(e: OSError, file: Path) -> RldsError:
    if isinstance(e, FileNotFoundError | NotADirectoryError):
        return RldsError(f"{file} cannot be written: there is no directory {file.parent}.")
    return disk_error(e, file)


def _show(w: OutputFile) -> None:
    frames = f"  {text.plural(w.frames, 'frame')}" if w.frames is not None else ""
    out.result(w, f"{w.file}{frames}  {out.size(w.bytes)}")
