"""``rlds path``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("path")(path)


def path(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A dataset that is here.", autocompletion=options.complete_here)
    ],
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Where a dataset lies: a Zarr v3 group, for any other program.

    Example: python -c "import zarr, sys; print(zarr.open(sys.argv[1]).tree())" $(rlds path d4rl/hopper-medium-v2)
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.home import locate

    found = locate.dataset(id, cache_dir=cache_dir)
    out.result({"id": str(locate.id_of(found)), "path": found}, str(found))
