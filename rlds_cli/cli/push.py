"""``rlds push``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable

if TYPE_CHECKING:
    from rlds_cli.sharing.pushing import Pushed


@app.command("push")
def push(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A dataset on this disk.", autocompletion=options.complete_here)
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="hf://datasets/OWNER/NAME, s3://BUCKET/PATH, gs://BUCKET/PATH or a directory."
        ),
    ],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove objects there that only older pushes of this dataset need.")
    ] = False,
    dry_run: options.DryRun = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Push a dataset to a store, from which rlds download ADDRESS fetches it. Only what is missing there is sent.

    Example: rlds push local/arm s3://our-bucket/arm
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.sharing import pushing

    with out.progress() as progress, resumable():
        done = pushing.push(id, to, dry_run=dry_run, prune=prune, cache_dir=cache_dir, progress=progress)
    out.result(done, _told(done))


def _told(done: Pushed) -> str:
    """The address, and the bytes that were sent or would be."""
    would = "would be sent" if done.dry_run else "sent"
    sizes = f"{text.size_of(done.sent)} {would}, {text.size_of(done.skipped)} there already"
    generation = "" if done.generation is None else f", generation {done.generation:,}"
    lines = [
        f"{done.id}{generation}  {'to' if done.dry_run else 'is at'} {done.address}",
        f"{text.plural(done.objects, 'object')}: {sizes}",
    ]
    if done.removed:
        lines.append(f"{text.size_of(done.removed)} of older pushes removed")
    if not done.dry_run:
        lines.append(f"rlds download {done.address}#{done.fingerprint}")
    return visible.lines(lines)
