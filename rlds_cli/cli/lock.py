"""``rlds lock``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("lock")
def lock(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID|GLOB...", help="Datasets on this disk.", autocompletion=options.complete_here),
    ],
    allow_unreproducible: Annotated[
        bool,
        typer.Option(
            "--allow-unreproducible", help="Also lock datasets that other machines cannot make, and mark them."
        ),
    ] = False,
    home: options.Home = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print a lock file of datasets: all that makes them again.

    It holds content, files, functions, episodes and labels. rlds sync makes the same datasets of it.

    Example: rlds lock d4rl/hopper-medium-v2@norm > rlds.lock
    """
    out.configure(quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    text = keep.lock(ids, allow_unreproducible=allow_unreproducible, home=home)
    sys.stdout.write(text)
    out.note(f"locked: {', '.join(d['id'] for d in json.loads(text)['datasets'])}")
