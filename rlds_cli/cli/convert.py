"""``rlds convert``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("convert")(convert)


def convert(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A dataset that is here.", autocompletion=options.complete_here)
    ],
    to: Annotated[options.Encoding, typer.Option("--to", help="Mapped files, or compressed.")],
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Store a dataset mapped, for training, or compressed. The content stays the same.

    Example: rlds convert d4rl/hopper-medium-v2 --to zarr
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.cli.pages import maintenance
    from rlds_cli.maintenance import reencode

    with out.progress() as progress:
        done = reencode.convert(id, to=to.value, cache_dir=cache_dir, progress=progress)
    out.result(done, maintenance.reencoded(done))
