"""``rlds sync``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sync")(sync)


def sync(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What rlds lock wrote.")] = Path("rlds.lock"),
    jobs: options.Jobs = None,
    force: options.Force = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Have the datasets of a lock file here, with equal fingerprints; exit 1 where they differ, saying in what.

    Example: rlds sync rlds.lock
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import keeping
    from rlds_cli.keeping import pinning

    with out.progress() as progress:
        done = pinning.sync(file, jobs=jobs or 0, force=force, cache_dir=cache_dir, progress=progress)
    out.result(done, keeping.synced(done))
