"""``rlds convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import visible
from rlds_cli.base.files.hashing import short
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.keep.reencoding import Reencoded


@app.command("convert")
def convert(
    id: options.Here,
    to: Annotated[options.Encoding, typer.Option("--to", help="memmap: memory-mapped files; zarr: compressed.")],
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Change the storage of a dataset: memory-mapped or compressed. The content stays the same.

    Example: rlds convert d4rl/hopper-medium-v2 --to zarr
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import keep

    with out.progress() as progress:
        done = keep.reencode(id, to=to.value, home=home, progress=progress)
    out.result(done, _reencoded(done))


def _reencoded(r: Reencoded) -> str:
    """The sizes before and after."""
    if not r.changed:
        return f"{r.id} is {r.encoding} already: {r.path}"
    sizes = f"{out.size(r.bytes_before)} before, {out.size(r.bytes_after)} now"
    return visible.lines([f"{r.id}  {short(r.fingerprint)}  {r.encoding}: {sizes}, the same content", str(r.path)])
