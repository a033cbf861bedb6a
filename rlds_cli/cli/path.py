"""``rlds path``."""

from __future__ import annotations

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("path")
def path(
    id: options.Here,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print the directory of a dataset. It is a Zarr v3 group that other programs can open.

    Example: python -c "import zarr, sys; print(zarr.open(sys.argv[1]).tree())" $(rlds path d4rl/hopper-medium-v2)
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.home import locate

    found = locate.dataset(id, cache_dir=cache_dir)
    out.result({"id": str(locate.id_of(found)), "path": found}, str(found))
