"""``rlds index``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable

if TYPE_CHECKING:
    from rlds_cli.share.indexing import Indexed


@app.command("index")
def index(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory of a dataset.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the index of a dataset with another id.")] = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make the directory of a dataset an address, in place.

    An index is written beside its files; no rows are copied. DIR may be served by a web server, be a mounted bucket, or
    be copied to a bucket afterwards.
    After a change of the dataset, the same command adds its new version; rlds log DIR shows all of them.

    Example: rlds index /mnt/bucket/arm
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import share

    with out.progress() as progress, resumable():
        done = share.index(directory, force=force, home=home, progress=progress)
    out.result(done, visible.lines(_lines(done)))


def _lines(done: Indexed) -> list[str]:
    named = f"  [{', '.join(done.tags)}]" if done.tags else ""
    lines = [
        f"{done.id}#v{done.version}{named}  is at {done.address}",
        f"{text.plural(done.files, 'file')} of rows in place, {text.size_of(done.written)} of small files copied",
    ]
    return lines + [f"v{v.number}  removed: its rows were replaced" for v in done.removed]
