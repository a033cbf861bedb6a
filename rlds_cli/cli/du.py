"""``rlds du``."""

from __future__ import annotations

from contextlib import suppress

import typer

from rlds_cli.cli import options, out
from rlds_cli.errors import RldsError


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
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.home import usage
    from rlds_cli.maintenance import gc

    found = usage.usage(cache_dir=cache_dir)
    out.result(found, maintenance.usage(found))
    if not json:
        with suppress(RldsError):  # of a home that may only be read nothing can be removed
            hint = maintenance.freeable(found, gc.plan(cache_dir=cache_dir))
            if hint:
                out.note(hint)
