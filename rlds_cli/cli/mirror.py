"""``rlds mirror``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlds_cli.make.downloads.mirroring import Mirrored, MirroredArchive


@app.command("mirror")
def mirror(
    ids_and_to: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|GLOB... TO",
            help="Ids of datasets, or patterns such as 'd4rl/*'; last a directory, s3://, gs:// or hf:// address.",
            autocompletion=options.complete_id,
        ),
    ],
    dry_run: options.DryRun = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Copy the archives of datasets to a store of your own.

    RLDS_MIRROR=ADDRESS lets rlds download use it. Files that the mirror has with the right hash stay. SHA256SUMS at the
    store lists all of them.

    Example: rlds mirror 'd4rl/*' s3://our-bucket/mirror
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    *ids, to = ids_and_to
    if not ids:
        raise typer.BadParameter("give ids of datasets, and last where to copy their archives")
    from rlds_cli import make

    with out.progress() as progress, resumable():
        found = make.mirror(ids, to, dry_run=dry_run, home=home, progress=progress)
    for archive in found.archives:
        for warning in archive.warnings:
            out.note(f"warning: {warning}")
    out.page(visible.lines(_lines(found)), found)


def _lines(found: Mirrored) -> Iterator[str]:
    for archive in found.archives:
        yield f"{archive.id}  {archive.problem or _said(archive, done=found.done)}"
    files = [f for archive in found.archives for f in archive.files]
    total = f"{text.plural(len(files), 'file')}, {out.size(sum(f.size or 0 for f in files))}"
    if found.done:
        yield f"{total} at {found.to}; RLDS_MIRROR={found.to} uses them"
    else:
        yield f"{total}. Run without --dry-run to copy them to {found.to}"


def _said(archive: MirroredArchive, *, done: bool) -> str:
    there = sum(f.there for f in archive.files)
    parts = [text.plural(len(archive.files), "file")]
    parts += [f"{there:,} there"] if there else []
    if there < len(archive.files):
        parts.append(f"{out.size(archive.to_send)} {'sent' if done else 'to send'}")
        parts += [f"{out.size(archive.to_fetch)} {'fetched' if done else 'to fetch'}"] if archive.to_fetch else []
    unknown = sum(f.size is None for f in archive.files)
    parts += [f"{unknown:,} of unknown size"] if unknown else []
    return ", ".join(parts)
