"""``rlds verify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|GLOB]...", help="Datasets that are here.", autocompletion=options.complete_here),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that is here.")] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="FINGERPRINT", help="What it should be.", show_default=False)
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Fetch again what is bad of the archive, convert again what is bad of it.")
    ] = False,
    trace: Annotated[
        int | None, typer.Option("--trace", metavar="N", help="Look N steps up in the archive.", show_default=False)
    ] = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="Where the archive is now.", show_default=False)
    ] = None,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Hash everything again, and compare. Exit 1 where something is bad.

    \b
    Examples:
      rlds verify d4rl/hopper-medium-v2 --expect rlds1:7c1f-09ab-55e2
      rlds verify d4rl/hopper-medium-v2 --trace 100
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if bool(ids) == all_:
        raise typer.BadParameter("give IDs, or --all")
    if trace is not None:
        _trace(ids or (), trace, archive, cache_dir)
        return
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import verification

    if fix:
        _fix(ids or (), expect, cache_dir)
        return
    with out.progress() as progress:
        found = verification.verify_all(
            ids or (), everything=all_, expect=expect, cache_dir=cache_dir, progress=progress
        )
    out.result(found, maintenance.verifications(found))
    if not all(v.ok for v in found):
        raise typer.Exit(1)


def _fix(ids: Sequence[str], expect: str | None, cache_dir: Path | None) -> None:
    """Mend what is bad, and look again."""
    if expect is not None:
        raise typer.BadParameter("--fix makes it what it was; --expect compares, without --fix")
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import repair

    with out.progress() as progress:
        done = repair.repair_all(ids, everything=not ids, cache_dir=cache_dir, progress=progress)
    out.result(done, maintenance.repairs(done))
    if not all(r.now.ok for r in done):
        raise typer.Exit(1)


def _trace(ids: Sequence[str], steps: int, archive: str | None, cache_dir: Path | None) -> None:
    """Compare single values with the archive instead of hashes."""
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.home import locate
    from rlds_cli.maintenance import verification

    paths = locate.datasets(ids, everything=not ids, cache_dir=cache_dir)
    found = [verification.trace(path, steps, archive=archive) for path in paths]
    out.result(found, maintenance.traces(found))
    if not all(t.ok for t in found):
        raise typer.Exit(1)
