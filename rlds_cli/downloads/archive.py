"""How a registered archive becomes a dataset: listed, fetched, verified, converted, published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rlds_cli import text
from rlds_cli.archives import Archive, choose
from rlds_cli.convert.archive import Conversion, convert
from rlds_cli.downloads import names
from rlds_cli.downloads.fetch import fetching, planning, sidecars
from rlds_cli.downloads.fetch.client import Patience
from rlds_cli.downloads.fetch.file import Fetched
from rlds_cli.downloads.fetch.sidecars import Record
from rlds_cli.downloads.request import Order
from rlds_cli.downloads.sources import hub, sources
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import CorruptArchive, DownloadFailed, Offline
from rlds_cli.files import safe as safe_files
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.progress import Event, Progress, silent
from rlds_cli.registry.records import Entry, File
from rlds_cli.settings import Settings
from rlds_cli.subset import Portion
from rlds_cli.text import natural


@dataclass(frozen=True, slots=True)
class Transfer:
    """What is to be done to have the files of an order, and what of their rows is wanted."""

    plan: planning.Plan
    portion: Portion

    @property
    def counts(self) -> list[int]:
        """How many files are wanted, and of how many."""
        return [len(self.plan.steps), len(self.plan.listed or self.plan.steps)]


def plan_transfer(order: Order, id: DatasetId, entry: Entry, where: Settings, progress: Progress = silent) -> Transfer:
    """What is to be done to have the archive here, or what is wanted of it; asks its source unless all of that is."""
    patience = Patience(told=lambda note: progress(Event(str(id), "note", note=note)))
    destination = Home(where.home).archive(id)
    # Where the files are named ahead no listing is needed.
    asked = not entry.tree or order.source or order.force or order.files
    files = None if asked else _pin(planning.remembered(destination) or (), order.pinned) or None
    read = partial(_read, where, destination, patience)
    wanted, portion = _wanted(order, entry, files, read) if files else ((), order.portion)
    if files is None or not planning.present(wanted, destination):
        files = _pin(_listed(order, entry, where, patience), order.pinned)
        wanted, portion = _wanted(order, entry, files, read)
    some = files if len(wanted) < len(files) else None
    return Transfer(planning.plan(wanted, destination, where, rehash=order.force, listed=some), portion)


def _wanted(
    order: Order, entry: Entry, files: tuple[RemoteFile, ...], read: Callable[[RemoteFile], bytes]
) -> tuple[tuple[RemoteFile, ...], Portion]:
    """The files of an archive that hold what is ordered of it, and what of their rows that is."""
    portion = order.portion
    if not portion:
        return files, portion
    named = [f.path for f in files if portion.wants(f.path)]
    if not any(map(portion.takes, named)):
        some = ", ".join(f.path for f in files[:3])
        raise DownloadFailed(
            f"{entry.id} has no such files: {portion}. Nothing was written.",
            hint=f"it has {text.plural(len(files), 'file')}: {some}{', ...' if len(files) > 3 else ''}",
        )
    by_name = {f.path: f for f in files}
    chosen, rest = choose(entry.format, sorted(named, key=natural), portion, lambda name: read(by_name[name]))
    kept = set(chosen)
    return tuple(f for f in files if f.path in kept), rest


def _read(where: Settings, destination: Path, patience: Patience, file: RemoteFile) -> bytes:
    """A small file of an archive, which is here already, or not yet."""
    here = destination / file.path
    if Record.read(here) is None:
        return sources.read(file, where, patience=patience)
    with safe_files.reading(here) as content:
        return content.read()


def _pin(files: Iterable[RemoteFile], pinned: Sequence[File]) -> tuple[RemoteFile, ...]:
    """Files as a source lists them; those of a lock with its promises, and first from where they came from then."""
    known = {f.path: f for f in pinned}
    return tuple(_as_pinned(f, known[f.path]) if f.path in known else f for f in files)


def _as_pinned(file: RemoteFile, pin: File) -> RemoteFile:
    urls = tuple(dict.fromkeys((*pin.urls, *file.urls)))
    return replace(file, urls=urls, size=pin.size or file.size, sha256=pin.sha256 or file.sha256)


def _listed(order: Order, entry: Entry, where: Settings, patience: Patience) -> tuple[RemoteFile, ...]:
    if order.source and len(entry.files) > 1 and not order.files and sources.names_file(order.source):
        return _only_file(order, entry, where, patience)
    if order.files or entry.files:
        return tuple(_listed_file(order, f, where, patience) for f in order.files or entry.files)
    tree = [*(hub.at(url, order.revision) for url in entry.tree if order.revision), *entry.tree]
    unique = [*dict.fromkeys(tree)]
    files = sources.list_files(unique, where, source=order.source, suffix=entry.suffix, patience=patience)
    wanted = tuple(f for f in files if not entry.only or any(fnmatchcase(f.path, p) for p in entry.only))
    if not wanted:
        raise DownloadFailed(f"{entry.id} has no files called {', '.join(entry.only)}. Nothing was written.")
    return wanted


def _only_file(order: Order, entry: Entry, where: Settings, patience: Patience) -> tuple[RemoteFile, ...]:
    """The one file of several that ``--from`` names, where no other is wanted; it must not stand for the others."""
    name = str(order.source).rpartition("/")[2]
    wanted = [f for f in entry.files if not order.portion or order.portion.wants(f.path)]
    if [f.path for f in wanted] != [name]:
        raise DownloadFailed(
            f"{entry.id} has {text.plural(len(wanted), 'file')}, and {order.source} is one. Nothing was written.",
            hint="--from takes the directory that they are in",
        )
    return (_listed_file(order, wanted[0], where, patience),)


def _listed_file(order: Order, file: File, where: Settings, patience: Patience) -> RemoteFile:
    listed = sources.list_files(
        file.urls, where, source=order.source, size=file.size, sha256=file.sha256, patience=patience
    )
    if len(listed) != 1:
        raise DownloadFailed(f"{file.path}: {len(listed)} files where one was expected.")
    return replace(listed[0], path=file.path)


def make(
    order: Order,
    id: DatasetId,
    entry: Entry,
    where: Settings,
    jobs: int,
    progress: Progress,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Fetch and convert one dataset and publish it, unless ``check`` raises. The caller holds the lock of its id."""
    progress(Event(str(id), "plan"))
    transfer = plan_transfer(order, id, entry, where, progress)
    steps = transfer.plan
    if not steps.finished and where.offline and any(s.action == "fetch" for s in steps.steps):
        raise Offline(
            f"{id} is not in {where.home}, and the network is forbidden (RLDS_OFFLINE or --offline).",
            hint=f"where there is internet:  rlds download {id} --cache-dir {where.home}",
        )
    fetched = fetching.fetch(steps, where, id=str(id), progress=progress)
    place = Home(where.home)
    work = replace(_conversion(order, id, entry, transfer, fetched), check=check)
    try:
        convert(work, place, jobs=jobs, progress=progress)
    except CorruptArchive as exc:
        raise _distrusted(exc, id, fetched) from exc
    if not order.keep_archive and not order.portion:
        planning.forget(steps)
    elif not order.keep_archive:
        _remove(f for f in fetched if f.action == "fetch")  # the others were there before, and are somebody's


def _distrusted(exc: CorruptArchive, id: DatasetId, fetched: Iterable[Fetched]) -> CorruptArchive:
    """Forget that a file is right which nobody has promised to be, and which cannot be read: it is fetched again."""
    bad = [f for f in fetched if f.action != "link" and not f.file.hashed and f.path.name in exc.message]
    for f in bad:
        sidecars.path_of(f.path).unlink(missing_ok=True)
    if not bad:
        return exc
    return CorruptArchive(
        exc.message,
        hint=f"rlds download {id} fetches it again: no hash of it is published, and its source may have been at fault",
    )


def _remove(fetched: Iterable[Fetched]) -> None:
    for f in fetched:
        f.path.unlink(missing_ok=True)
        sidecars.path_of(f.path).unlink(missing_ok=True)


def _conversion(
    order: Order, id: DatasetId, entry: Entry, transfer: Transfer, fetched: Sequence[Fetched]
) -> Conversion:
    came = sorted(fetched, key=lambda f: natural(f.file.path))
    env = {"id": entry.env_id, "eval_id": entry.eval_env_id, "max_episode_steps": entry.max_episode_steps}
    scores = {"ref_min_score": entry.ref_min_score, "ref_max_score": entry.ref_max_score}
    return Conversion(
        id=id,
        reader=entry.format,
        archive=Archive(
            transfer.plan.destination,
            tuple(f.path for f in came),
            entry.episodes_by,
            skip_bad=order.skip_bad,
            last_step=entry.last_step,
            partial=transfer.plan.listed is not None,
        ),
        encoding=order.store,
        frames=order.frames,
        sources=tuple(_source(f) for f in came),
        facts={k: v for k, v in scores.items() if v is not None},
        env={k: v for k, v in env.items() if v is not None},
        options={"episodes_by": entry.episodes_by, "frames": order.frames}
        | ({"skip_bad": True} if order.skip_bad else {})
        | ({"last_step": entry.last_step} if entry.last_step else {})
        | ({"portion": order.portion.facts | {"files": transfer.counts}} if order.portion else {}),
        portion=transfer.portion,
    )


def _source(f: Fetched) -> dict[str, Any]:
    r = f.record
    return {"file": f.file.path, "size": r.size, "sha256": r.sha256, "url": names.shown(r.url), "revision": r.revision}
