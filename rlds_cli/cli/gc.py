"""``rlds gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli import visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.maintenance.gc import Collection, Garbage


_NOTES = {
    "partial": "interrupted work",
    "archive": "archive, can be downloaded again",
    "remote": "blocks of a dataset at an address, fetched again when needed",
    "versions": "rows of episodes that left",
}


@app.command("gc")
def gc(
    archives: Annotated[
        bool,
        typer.Option("--archives", help="Also remove archives that can be downloaded again and whose datasets verify."),
    ] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Also remove what is here of datasets at an address that no process reads.")
    ] = False,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Free disk space: remove packed rows and interrupted work. Datasets stay.

    In datasets that grow, rows of episodes that left are freed, unless a process reads a version that has them.

    Example: rlds gc --archives --yes
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.maintenance import gc

    planned = gc.plan(archives=archives, remote=remote, cache_dir=cache_dir)
    if dry_run:
        return out.result(planned, _planned(planned) or "nothing to remove")
    if planned.removed and not yes:
        out.confirm(_planned(planned), f"Remove {out.size(planned.bytes)}?")
    with out.progress() as progress:
        done = gc.collect(planned, progress=progress)
    return out.result(done, _collected(done))


def _planned(c: Collection) -> str:
    """Files that would be removed, and files that would stay."""
    return visible.lines(f"  {name}  {out.size(size)}  {note}" for name, size, note in _lines(c))


def _collected(c: Collection) -> str:
    """Files that were removed, files that stayed, and the space freed."""
    lines = [f"{name}  {out.size(size)}  {note}" for name, size, note in _lines(c)]
    return visible.lines([*lines, f"{out.size(c.bytes)} freed" if c.removed else "nothing to remove"])


def _lines(c: Collection) -> list[tuple[str, int, str]]:
    """Name, bytes and note of everything that goes (packed rows as one line) or stays."""
    packed = [g.bytes for g in c.removed if g.kind == "packed"]
    lines = [(f"packed rows ({len(packed):,})", sum(packed), "built again when needed")] if packed else []
    lines += [(_name(g, c), g.bytes, _NOTES[g.kind]) for g in c.removed if g.kind != "packed"]
    return lines + [(_name(g, c), g.bytes, f"stays: {g.why}") for g in c.kept]


def _name(g: Garbage, c: Collection) -> str:
    return g.id if g.id and g.kind in ("archive", "versions") else str(g.path.relative_to(c.home))
