"""``rlds rm``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.out import confirm


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rm")(rm)


def rm(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID|GLOB...", help="Datasets in your home.", autocompletion=options.complete_here),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: options.DryRun = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove datasets. Archives stay, and so does what was made of them. Says where nothing can make one again.

    Example: rlds rm d4rl/hopper-medium-v2@norm --yes
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import remove

    planned = remove.plan(ids, cache_dir=cache_dir)
    if dry_run:
        return out.result(planned, maintenance.removals(planned))
    if not yes:
        confirm(maintenance.removals(planned))
    with out.progress() as progress:
        done = remove.remove([one.id for one in planned], cache_dir=cache_dir, progress=progress)
    return out.result(done, maintenance.removed(done))
