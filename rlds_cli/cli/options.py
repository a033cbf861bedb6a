"""Options that mean the same in every command.

What a command says when it is interrupted: what is kept, and how to go on.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli import text
from rlds_cli.cli import out

if TYPE_CHECKING:
    from rlds_cli.downloads.download import Deliveries


def complete_id(incomplete: str) -> list[str]:
    """Ids for the shell's completion: those that are here first."""
    from rlds_cli import registry

    present = complete_here(incomplete)
    known = [e.id for e in registry.find() if e.status == "open"]
    return [i for i in dict.fromkeys((*present, *known)) if i.lower().startswith(incomplete.lower())]


def complete_here(incomplete: str) -> list[str]:
    """Ids of datasets that are here, for commands that work on nothing else."""
    from rlds_cli import registry, settings

    present = sorted({str(id) for found in registry.here(settings.read()).values() for id, _ in found})
    return [i for i in present if i.lower().startswith(incomplete.lower())]


class Encoding(StrEnum):
    """How arrays are stored."""

    memmap = "memmap"
    zarr = "zarr"


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
CacheDir = Annotated[
    Path | None, typer.Option("--cache-dir", help="Use this home instead of RLDS_HOME.", show_default=False)
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=0, help="Worker processes; 0 works in this one.", show_default=False),
]
Store = Annotated[Encoding, typer.Option("--store", help="Mapped files, or compressed.")]
Frames = Annotated[
    str, typer.Option("--frames", metavar="encoded|raw|HxW", help="Keep images as published, or decode them.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, and name them.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again, and replace what is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")]
_INTERRUPTED = 130


@contextmanager
def told(planned: Deliveries) -> Iterator[None]:
    """Turn Ctrl-C into a line about what was planned, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        out.note(f"stopped. {_kept(planned)} Go on with:  {_command()}")
        raise typer.Exit(_INTERRUPTED) from None


@contextmanager
def going_on() -> Iterator[None]:
    """Turn Ctrl-C into the command that goes on, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        out.note(f"stopped. Go on with:  {_command()}")
        raise typer.Exit(_INTERRUPTED) from None


def _command() -> str:
    return shlex.join(["rlds", *sys.argv[1:]])


def _kept(planned: Deliveries) -> str:
    from rlds_cli import ids
    from rlds_cli.downloads import pending
    from rlds_cli.home import Home, is_dataset

    place = Home(planned.home)
    wanted = [ids.parse(d.id) for d in planned.datasets if d.here is None]
    ready = [id for id in wanted if is_dataset(place.dataset(id))]
    kept = [text.plural(len(ready), "dataset")] if ready else []
    for id in wanted:
        size = 0 if id in ready else pending.left(id, place)
        kept += [f"{text.size_of(size)} of {id}"] if size else []
    return f"Kept: {', '.join(kept)}." if kept else "Nothing had come yet."
