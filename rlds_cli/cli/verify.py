"""``rlds verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|GLOB]...", help="Datasets that are here.", autocompletion=options.complete_id),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that is here.")] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="FINGERPRINT", help="What it should be.", show_default=False)
    ] = None,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Hash everything again, and compare. Exit 1 where something is bad.

    Example: rlds verify d4rl/hopper-medium-v2 --expect rlds1:7c1f-09ab-55e2
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if bool(ids) == all_:
        raise typer.BadParameter("give IDs, or --all")
    from rlds_cli.cli.pages import keeping
    from rlds_cli.keeping import verification

    with out.progress() as progress:
        found = verification.verify_all(
            ids or (), everything=all_, expect=expect, cache_dir=cache_dir, progress=progress
        )
    out.result(found, keeping.verifications(found))
    if not all(v.ok for v in found):
        raise typer.Exit(1)
