"""``rlds download``.

``rlds download --resume-all``: one after the other, whatever becomes of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.cli import options, out, render
from rlds_cli.errors import ArchiveError, TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlds_cli.dataset import Dataset
    from rlds_cli.downloads.request import DownloadRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("download")(download)


def download(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|GLOB]...", help="Datasets, as in 'd4rl/hopper-*-v2'.", autocompletion=options.complete_id
        ),
    ] = None,
    resume_all: Annotated[bool, typer.Option("--resume-all", help="Go on with all that was interrupted.")] = False,
    source: Annotated[
        str | None, typer.Option("--from", metavar="DIR|URL", help="A local copy or a mirror.", show_default=False)
    ] = None,
    store: options.Store = options.Encoding.memmap,
    frames: options.Frames = "encoded",
    jobs: options.Jobs = None,
    no_keep_archive: Annotated[bool, typer.Option("--no-keep-archive", help="Remove the archive afterwards.")] = False,
    skip_bad: options.SkipBad = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Only these files of the archive.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Without these files.", show_default=False)
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Only the episodes of a split.", show_default=False)
    ] = None,
    episodes: Annotated[
        str | None, typer.Option("--episodes", metavar="A:B", help="Only some episodes: 0:100.", show_default=False)
    ] = None,
    dry_run: options.DryRun = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    force: options.Force = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fetch, verify and convert datasets. What is here already is left alone.

    A part of an archive, by --include, --exclude, --split or --episodes, stands as ID@VARIANT.

    Example: rlds download d4rl/hopper-medium-v2 'minari/D4RL/door/*'
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if bool(ids) == resume_all:
        raise typer.BadParameter("give IDs, or --resume-all")
    from rlds_cli.cli import options, render
    from rlds_cli.downloads import download, pending
    from rlds_cli.downloads.request import DownloadRequest
    from rlds_cli.subset import Portion

    portion = Portion.of(include=include or (), exclude=exclude or (), split=split, episodes=episodes)
    if resume_all:
        orders = [*pending.unfinished(cache_dir=cache_dir, offline=offline)]
        return resume(orders, jobs=jobs or 0, dry_run=dry_run)
    orders = [
        DownloadRequest(
            ref, source, store.value, frames, force, not no_keep_archive, offline, cache_dir, skip_bad, portion
        )
        for ref in download.expand(ids or ())
    ]
    with out.progress() as progress:
        planned = download.plan(orders, guess=dry_run, progress=progress)
        if dry_run:
            return out.page(render.deliveries(planned), planned)
        out.note(render.deliveries(planned))
        todo = [o for o, d in zip(orders, planned.datasets, strict=True) if d.here is None]
        with options.told(planned):
            made = [download.deliver(o, jobs=jobs or 0, progress=progress) for o in todo]
    return render.delivered(planned, made)


def resume(orders: Sequence[DownloadRequest], *, jobs: int, dry_run: bool) -> None:
    """Go on with each of ``orders``; exit 1 where one failed, after all of them."""
    from rlds_cli.downloads import download

    if not orders:
        out.result([], "nothing to go on with")
        return
    if dry_run:
        planned = download.plan(orders, guess=True)
        out.page(render.deliveries(planned), planned)
        return
    made: list[Dataset] = []
    with out.progress() as progress:
        for order in orders:
            try:
                planned = download.plan([order], progress=progress)
                out.note(render.deliveries(planned))
                with options.told(planned):
                    made.append(download.deliver(order, jobs=jobs, progress=progress))
            except (TransferError, ArchiveError) as e:  # of this one; a full disk is everybody's
                out.error(e)
    render.made(made)
    if len(made) < len(orders):
        raise typer.Exit(1)
