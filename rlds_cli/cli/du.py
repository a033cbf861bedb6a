"""``rlds du``."""

from __future__ import annotations

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("du")(du)


def du(
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """What takes how much of the disk; shared files count once.

    Example: rlds du --cache-dir /shared/rlds
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import keeping
    from rlds_cli.keeping import usage

    found = usage.usage(cache_dir=cache_dir)
    out.result(found, keeping.usage(found))
