"""Options that mean the same in every command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
