"""``rlds gc``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.out import confirm


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc")(gc)


def gc(
    archives: Annotated[
        bool,
        typer.Option(
            "--archives", help="Archives, too: those that can be downloaded again, and whose datasets verify."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: options.DryRun = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Free what your home can do without: packed rows and work that was broken off. Datasets stay.

    Example: rlds gc --archives --yes
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import gc

    planned = gc.plan(archives=archives, cache_dir=cache_dir)
    if dry_run:
        return out.result(planned, maintenance.garbage(planned) or "nothing to remove")
    if planned.removed and not yes:
        confirm(maintenance.garbage(planned), f"Remove {out.size(planned.bytes)}?")
    with out.progress() as progress:
        done = gc.collect(planned, progress=progress)
    return out.result(done, maintenance.collected(done))
