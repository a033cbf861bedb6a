"""``rlds lock``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lock")(lock)


def lock(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID|GLOB...", help="Datasets that are here.", autocompletion=options.complete_here),
    ],
    allow_unreproducible: Annotated[
        bool, typer.Option("--allow-unreproducible", help="Lock also what no other machine can make again, marked so.")
    ] = False,
    cache_dir: options.CacheDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a lock file to standard output: content, files, hashes and functions. rlds sync makes the same elsewhere.

    Example: rlds lock d4rl/hopper-medium-v2@norm > rlds.lock
    """
    out.configure(quiet=quiet, verbose=verbose)
    from rlds_cli.maintenance import pinning

    text = pinning.lock(ids, allow_unreproducible=allow_unreproducible, cache_dir=cache_dir)
    sys.stdout.write(text)
    out.note(f"locked: {', '.join(d['id'] for d in json.loads(text)['datasets'])}")
