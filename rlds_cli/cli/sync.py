"""``rlds sync``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sync")(sync)


def sync(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What rlds lock wrote.")] = Path("rlds.lock"),
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-code",
            metavar="MOD:FUNC|FILE.py:FUNC|all",
            help="Run this function of yours, which the lock names, where its source is what the lock says.",
        ),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option("--depends-on", metavar="FILE", help="Functions may read this file outside of this directory."),
    ] = None,
    jobs: options.Jobs = None,
    force: options.Force = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Have the datasets of a lock file here, with equal fingerprints; exit 1 where they differ, saying in what.

    Built-in functions run by themselves, one of yours only where --allow-code names it; on a terminal you are asked.

    Example: rlds sync rlds.lock
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import pinning

    allowed = _asked(file, allow_code or [], cache_dir) if sys.stdin.isatty() else allow_code or []
    how = {"allow_code": allowed, "depends_on": depends_on or (), "cache_dir": cache_dir}
    with out.progress() as progress:
        done = pinning.sync(file, jobs=jobs or 0, force=force, progress=progress, **how)  # type: ignore[arg-type]
    out.result(done, maintenance.synced(done))


def _asked(file: Path, allowed: Sequence[str], cache_dir: Path | None) -> list[str]:
    """The functions that are allowed, and those that the user allows now."""
    from rlds_cli.maintenance import pinning
    from rlds_cli.maintenance.lock_file import EVERYTHING

    if EVERYTHING in allowed:
        return [*allowed]
    wanted = [w for w in pinning.functions(file, cache_dir=cache_dir) if w.reference not in allowed]
    for one in wanted:
        typer.echo(f"{file} would run {one}", err=True)
    references = dict.fromkeys(w.reference for w in wanted)
    return [*allowed, *(r for r in references if typer.confirm(f"Run {r}?", err=True))]
