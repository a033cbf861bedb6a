"""``rlds rm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.removing import Removal


@app.command("rm")
def rm(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID|GLOB...", help="Datasets in your home.", autocompletion=options.complete_here),
    ],
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove datasets; archives and derived datasets stay. A dataset that cannot be made again is marked.

    All versions and tags of a dataset are removed with it, and named.

    Example: rlds rm d4rl/hopper-medium-v2@norm --yes
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    planned = keep.plan_removal(ids, home=home)
    if dry_run:
        return out.result(planned, _removals(planned))
    if not yes:
        out.confirm(_removals(planned))
    with out.progress() as progress:
        done = keep.remove([one.id for one in planned], home=home, progress=progress)
    return out.result(done, _removed(done))


def _removals(planned: Sequence[Removal]) -> str:
    """Datasets that would be removed, with their sizes."""
    return visible.lines(f"  {r.id}  {out.size(r.bytes)}{_about(r)}" for r in planned)


def _removed(done: Sequence[Removal]) -> str:
    """Datasets that were removed, and the space freed."""
    lines = [f"removed {r.id}: {out.size(r.bytes)} freed{_about(r)}" for r in done]
    if len(done) > 1:
        lines.append(f"{out.size(sum(r.bytes for r in done))} freed")
    return visible.lines(lines)


def _about(r: Removal) -> str:
    return f"{_kept(r)}{_versions(r)}{_lost(r)}{_referring(r)}"


def _kept(r: Removal) -> str:
    return f"; its archive ({out.size(r.archive)}) stays" if r.archive else ""


def _versions(r: Removal) -> str:
    """What goes with the newest version."""
    earlier = [f"{r.versions:,} earlier {'version' if r.versions == 1 else 'versions'}"] if r.versions else []
    named = [f"its tags {r.tags}"] if r.tags else []
    return f"; with {' and '.join([*earlier, *named])}" if earlier or named else ""


def _lost(r: Removal) -> str:
    return f"; cannot be made again: {r.lost}" if r.lost else ""


def _referring(r: Removal) -> str:
    return f"; rows of {', '.join(map(str, r.referring))} are stored there, and would be lost" if r.referring else ""
