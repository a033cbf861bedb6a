"""``rlds path``."""

from __future__ import annotations

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("path")
def path(
    id: options.Here,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print the directory of a dataset. It is a Zarr v3 group that other programs can open.

    ID#vN has one of its own, unless the dataset grows.

    Example: python -c "import zarr, sys; print(zarr.open(sys.argv[1]).tree())" $(rlds path d4rl/hopper-medium-v2)
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import homes
    from rlds_cli.base import refs

    found, named = homes.dataset(refs.parse(id).place, home=home), refs.parse(id)
    if named.selector is not None:
        from rlds_cli.store import StoredDataset  # slow to import

        found = StoredDataset(found).directory_of(named)
    out.result({"id": str(homes.id_of(found)), "path": found}, str(found))
