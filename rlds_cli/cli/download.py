"""``rlds download``, and ``--resume-all``, which continues interrupted downloads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlds_cli.base import text, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app, resumable
from rlds_cli.errors import ArchiveError, TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlds_cli.dataset import Dataset
    from rlds_cli.make.downloads.download import Deliveries, Delivery
    from rlds_cli.make.downloads.request import DownloadRequest


_SHOWN = 5  # hashes of files
_SMALL = 16 << 20  # bytes


@app.command("download")
def download(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|GLOB|ADDRESS|URL]...",
            help="Ids, patterns such as 'd4rl/hopper-*-v2', addresses of pushed datasets, or the URLs of an archive.",
            autocompletion=options.complete_id,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="local/NAME", help="Id for a dataset at an address, or at URLs.", show_default=False
        ),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option("--sha256", metavar="HASH", help="Hash that the archive at a URL must have.", show_default=False),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option("--reader", help="Read the archive at a URL with this reader.", show_default=False),
    ] = None,
    map: options.Map = None,
    episodes_by: options.EpisodesBy = None,
    last_step: options.LastStep = None,
    rewards: options.Rewards = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="Reuse the cached blocks of an ADDRESS.")] = False,
    resume_all: Annotated[bool, typer.Option("--resume-all", help="Continue all interrupted downloads.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR|URL", help="Take the files from a copy or a mirror.", show_default=False),
    ] = None,
    storage: options.Storage = options.Encoding.memmap,
    frames: options.Frames = "encoded",
    jobs: options.Jobs = None,
    no_keep_archive: Annotated[
        bool, typer.Option("--no-keep-archive", help="Remove the archive after the conversion.")
    ] = False,
    skip_bad: options.SkipBad = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Take only these files of the archive.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GLOB", help="Leave out these files of the archive.", show_default=False),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="Take only the episodes of this split.", show_default=False),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option("--episodes", metavar="A:B", help="Take only these episodes, such as 0:100.", show_default=False),
    ] = None,
    dry_run: options.DryRun = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not use the network.")] = False,
    force: options.Force = False,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Download, verify and convert datasets. Existing datasets are not downloaded again.

    With --include, --exclude, --split or --episodes, the part of the archive becomes the dataset ID@VARIANT.

    ADDRESS is a directory, hf://datasets/OWNER/NAME, s3://BUCKET/PATH, gs://BUCKET/PATH or https://HOST/PATH/.
    URL is an archive such as https://HOST/run.hdf5, read as rlds import reads it; several, or a pattern, are one.

    Example: rlds download d4rl/hopper-medium-v2 'minari/D4RL/door/*'
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    if bool(ids) == resume_all:
        raise typer.BadParameter("give either IDs or --resume-all")
    if name is not None and not ids:
        raise typer.BadParameter("--name goes with an address or URLs")
    from rlds_cli.base.subset import Subset
    from rlds_cli.make import DownloadRequest, expand_refs, reading_options

    reading = reading_options(reader, **_mapping(map, episodes_by, rewards), last_step=last_step)
    portion = Subset.of(include=include or (), exclude=exclude or (), split=split, episodes=episodes)
    if resume_all:
        orders = [*DownloadRequest.unfinished(home=home, offline=offline)]
        return _resume(orders, jobs=jobs or 0, dry_run=dry_run)
    refs = [(ids[0], *ids[1:])] if name is not None and ids else [(ref,) for ref in expand_refs(ids or ())]
    orders = [
        DownloadRequest(
            ref,
            source,
            storage.value,
            frames,
            force,
            not no_keep_archive,
            offline,
            home=home,
            skip_bad=skip_bad,
            portion=portion,
            name=name,
            blocks=blocks,
            sha256=sha256,
            reading=reading,
            also=tuple(also),
        )
        for ref, *also in refs
    ]
    return _download(orders, jobs=jobs or 0, dry_run=dry_run)


def _mapping(given: list[str] | None, episodes_by: str | None, rewards: str | None) -> dict[str, Any]:
    """Return the mapping of options and files for an archive at a URL; most downloads have none."""
    if not given:
        return {"fields": None, "episodes_by": episodes_by, "rewards": rewards}
    from rlds_cli.cli.import_ import mapping

    return mapping(given, episodes_by, rewards)


def _download(orders: Sequence[DownloadRequest], *, jobs: int, dry_run: bool) -> None:
    """Run all of ``orders``, or print the plan; the first failure ends it."""
    from rlds_cli import make

    with out.progress() as progress:
        planned = make.plan_download(orders, guess=dry_run, progress=progress)
        if dry_run:
            return out.page(_plan(planned), planned)
        if not (sys.stderr.isatty() and _small(planned)):
            out.note(_plan(planned))
        todo = [(o, d) for o, d in zip(orders, planned.datasets, strict=True) if d.here is None]
        with resumable(lambda: _kept(planned)):
            made = [make.deliver(o, planned=d, jobs=jobs, progress=progress) for o, d in todo]
    _tell_hashes(made)
    return _show(made, _existing(planned) if out.wants_json() else [])


def _resume(orders: Sequence[DownloadRequest], *, jobs: int, dry_run: bool) -> None:
    """Continue each of ``orders``, also after one has failed; exit 1 if any failed."""
    from rlds_cli import make

    if not orders:
        out.result([], "no interrupted downloads")
        return
    if dry_run:
        planned = make.plan_download(orders, guess=True)
        out.page(_plan(planned), planned)
        return
    made: list[Dataset] = []
    failed: list[dict[str, Any]] = []
    with out.progress() as progress:
        for order in orders:
            try:
                planned = make.plan_download([order], progress=progress)
                out.note(_plan(planned))
                with resumable(lambda planned=planned: _kept(planned)):  # type: ignore[misc]
                    made.append(make.deliver(order, planned=planned.datasets[0], jobs=jobs, progress=progress))
            except (TransferError, ArchiveError) as e:  # concerns this download only; a full disk concerns all
                out.failure(e)
                failed.append({"id": order.ref, **out.error_facts(e)})
    _show(made, failed=failed)
    if failed:
        raise typer.Exit(1)


def _plan(p: Deliveries) -> str:
    """Existing datasets, and the sizes and files of those to download."""
    todo = [d for d in p.datasets if d.here is None]
    here = [d for d in p.datasets if d.here is not None]
    lines = [f"{d.id}  exists: {d.here}" + (f"  ({d.note})" if d.note else "") for d in here]
    if todo:
        files = sum(d.files for d in todo)
        unknown = sum(d.unknown for d in todo)
        to_fetch = out.size(p.to_fetch) + (f" and {unknown} of unknown size" if unknown else "") + " to fetch"
        estimates = [d.cache for d in todo if d.cache is not None]
        cache = f"cache about {out.size(sum(estimates))}" if len(estimates) == len(todo) else "cache of unknown size"
        unlisted = sum(d.actions is None for d in todo)
        more = f" and those of {text.plural(unlisted, 'listing')}" if unlisted else ""
        counts = f"{text.plural(len(todo), 'dataset')}, {text.plural(files, 'file')}{more}"
        room = "free" if p.needed <= p.free else "free: not enough space"
        lines.append(f"{counts}, {to_fetch}; {cache}; {out.size(p.free)} {room}")
        lines += [f"  {d.id}  {_actions(d)}" for d in todo]
    return visible.lines(lines)


def _small(p: Deliveries) -> bool:
    """Whether one dataset is to be made of so little that its own line says it all."""
    return [d.here for d in p.datasets] == [None] and p.needed <= min(p.free, _SMALL)


def _actions(d: Delivery) -> str:
    return d.note if d.actions is None else ", ".join(f"{n} to {a}" for a, n in d.actions.items())


def _kept(p: Deliveries) -> str:
    """Datasets and bytes of an interrupted download that are kept."""
    ready, unfinished = p.kept()
    kept = [text.plural(len(ready), "dataset")] if ready else []
    kept += [f"{text.size_of(size)} of {id}" for id, size in unfinished.items()]
    return f"Kept: {', '.join(kept)}." if kept else "Nothing was downloaded yet."


def _tell_hashes(made: Sequence[Dataset]) -> None:
    """Print the hash of each archive that nobody published one for: it is recorded, and rlds lock pins it."""
    for ds in made:
        entry = ds.manifest.options.get("entry")
        holders = [entry, *entry.get("files", ())] if isinstance(entry, dict) else []
        if all("sha256" in h for h in holders if "urls" in h):
            continue
        for source in ds.store.sources[:_SHOWN]:
            out.note(f"{source['file']}: sha256 {source['sha256']} recorded, which rlds lock {ds.id} pins")
        if (more := len(ds.store.sources) - _SHOWN) > 0:
            out.note(f"the sha256 of {text.plural(more, 'more file')} recorded")


def _existing(p: Deliveries) -> list[Dataset]:
    from rlds_cli.dataset import open_dataset

    return [open_dataset(d.here) for d in p.datasets if d.here]


def _show(made: Sequence[Dataset], existing: Sequence[Dataset] = (), failed: Sequence[dict[str, Any]] = ()) -> None:
    """Print the datasets that were made; with ``--json`` also those that existed before, and those that failed."""
    if out.wants_json():
        before = [{**out.dataset_facts(ds), "made": False} for ds in existing]
        return out.result([*before, *({**out.dataset_facts(ds), "made": True} for ds in made), *failed])
    for ds in made:
        out.new_dataset(ds)
    return None
