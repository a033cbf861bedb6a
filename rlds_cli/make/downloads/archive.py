"""Turn a registered archive into a dataset: list, fetch, verify, convert and publish it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rlds_cli.archives import Archive, ReaderName, check_name, choose, plan_files
from rlds_cli.base import text, visible
from rlds_cli.base.files import bundles, child
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, silent
from rlds_cli.base.settings import Settings
from rlds_cli.base.subset import Subset
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, DownloadFailed, Offline, ReaderError
from rlds_cli.homes import Home
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.make.downloads.fetch.fetching import Fetched
from rlds_cli.make.downloads.request import DownloadRequest, without_secrets
from rlds_cli.places import FileRecord, RemoteFile, as_url
from rlds_cli.registry import Entry, File

if TYPE_CHECKING:
    from rlds_cli.make.convert.archive import Conversion


@dataclass(frozen=True, slots=True)
class Transfer:
    """The plan to fetch the files of a request, and the part of their rows to convert."""

    plan: planning.FetchPlan
    portion: Subset

    @property
    def counts(self) -> list[int]:
        """Number of files to fetch, and number of files that the archive has."""
        return [len(self.plan.steps), len(self.plan.listed or self.plan.steps)]


def plan_transfer(
    request: DownloadRequest, id: DatasetId, entry: Entry, where: Settings, progress: Progress = silent
) -> Transfer:
    """Plan the download of an archive, or of the part requested. Asks the source only for files that are missing."""
    if entry.format:
        check_name(entry.format)
    policy = RetryPolicy(told=lambda note: progress(Event(str(id), "note", note=note)))
    destination = Home(where.home).archive(id)
    # An entry that names its files needs no listing.
    asked = not entry.tree or request.source or request.force or request.files
    files = None if asked else _pin(planning.remembered(destination) or (), request.pinned) or None
    read = partial(_read, where, destination, policy)
    wanted, portion = _wanted(request, entry, files, read) if files else ((), request.portion)
    if files is None or not planning.present(wanted, destination):
        files = _pin(_listed(request, entry, where, policy), request.pinned)
        wanted, portion = _wanted(request, entry, files, read)
    if entry.line is not None:  # its name is a user's: what is here under it counts only if it came from there
        wanted = tuple(replace(f, placed=True) for f in wanted)
    some = files if len(wanted) < len(files) else None
    return Transfer(planning.plan(wanted, destination, where, rehash=request.force, listed=some), portion)


def _wanted(
    request: DownloadRequest, entry: Entry, files: tuple[RemoteFile, ...], read: Callable[[RemoteFile], bytes]
) -> tuple[tuple[RemoteFile, ...], Subset]:
    """Select the files that hold the part requested, and the part of their rows that belongs to it."""
    portion = request.portion
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
    chosen: Sequence[str] = named
    rest = portion
    if entry.format:  # else the files decide, when they are here
        chosen, rest = choose(entry.format, sorted(named, key=natural), portion, lambda name: read(by_name[name]))
    kept = set(chosen)
    return tuple(f for f in files if f.path in kept), rest


def _read(where: Settings, destination: Path, policy: RetryPolicy, file: RemoteFile) -> bytes:
    """Read a small file of the archive: the downloaded copy if there is one, else from its source."""
    here = destination / file.path
    if FileRecord.read(here) is None:
        return listing.read(file, where, policy=policy)
    with safe_files.reading(here) as content:
        return content.read()


def _pin(files: Iterable[RemoteFile], pinned: Sequence[File]) -> tuple[RemoteFile, ...]:
    """Give files that a lock pins the size and hash of the lock, and its address as the first one."""
    pins, found = {f.path: f for f in pinned}, []
    for file in files:
        if pin := pins.get(file.path):
            urls = tuple(dict.fromkeys((*pin.urls, *file.urls)))
            file = replace(file, urls=urls, size=pin.size or file.size, sha256=pin.sha256 or file.sha256)
        found.append(file)
    return tuple(found)


def _listed(request: DownloadRequest, entry: Entry, where: Settings, policy: RetryPolicy) -> tuple[RemoteFile, ...]:
    if request.listed:
        return request.listed
    named = request.files or entry.files
    if request.source and len(named) > 1 and not request.files and listing.names_file(request.source):
        named = (_only_file(request, entry),)
    if named:  # each at its own addresses
        known = []
        for f in named:
            found = listing.list_files(
                f.urls, where, source=request.source, size=f.size, sha256=f.sha256, policy=policy
            )
            if len(found) != 1:
                raise DownloadFailed(f"{f.path}: {len(found)} files where one was expected.")
            known.append(replace(found[0], path=f.path))
        return tuple(known)
    tree = [*(as_url(url).at_revision(request.revision) for url in entry.tree if request.revision), *entry.tree]
    unique = [*dict.fromkeys(tree)]
    files = listing.list_files(unique, where, source=request.source, suffix=entry.suffix, policy=policy)
    wanted = tuple(f for f in files if not entry.only or any(fnmatchcase(f.path, p) for p in entry.only))
    if not wanted:
        raise DownloadFailed(f"{entry.id} has no files called {', '.join(entry.only)}. Nothing was written.")
    return wanted


def _only_file(request: DownloadRequest, entry: Entry) -> File:
    """Return the single file that ``--from`` names, if the request needs no other file."""
    name = str(request.source).rpartition("/")[2]
    wanted = [f for f in entry.files if not request.portion or request.portion.wants(f.path)]
    if [f.path for f in wanted] != [name]:
        raise DownloadFailed(
            f"{entry.id} has {text.plural(len(wanted), 'file')}, and {request.source} is one. Nothing was written.",
            hint="--from takes the directory that they are in",
        )
    return wanted[0]


def make(
    request: DownloadRequest,
    id: DatasetId,
    entry: Entry,
    where: Settings,
    jobs: int,
    progress: Progress,
    check: Callable[[Path], None] | None = None,
    *,
    transfer: Transfer | None = None,
) -> None:
    """Fetch, convert and publish one dataset, unless ``check`` raises. The caller holds the lock of its id.

    ``transfer`` is an earlier plan for the request. It is used unless a file that it counts on is gone.
    """
    from rlds_cli.make.convert.archive import convert  # not needed for a plan

    progress(Event(str(id), "plan"))
    if transfer is None or not transfer.plan.holds:
        transfer = plan_transfer(request, id, entry, where, progress)
    steps = transfer.plan
    if not steps.finished and where.offline and any(s.action == "fetch" for s in steps.steps):
        raise Offline(
            f"{id} is not in {where.home}, and network access is off (RLDS_OFFLINE or --offline).",
            hint=f"on a machine with network access:  rlds download {id} --home {where.home}",
        )
    before = _replaced(steps) if request.force else {}
    fetched = fetching.fetch(steps, where, id=str(id), progress=progress)
    for f in fetched:
        if (old := before.get(f.file.path)) is not None and old != f.record.sha256:
            progress(
                Event(str(id), "note", note=f"{f.file.path} has changed: its sha256 is {f.record.sha256}, was {old}")
            )
    place = Home(where.home)
    with child.reading("rlds_cli.make.convert.reading", id=str(id), progress=progress):
        try:
            work = replace(_conversion(request, id, entry, transfer, fetched), check=check)
            convert(work, place, jobs=jobs, progress=progress)
        except CorruptArchive as exc:
            raise _distrusted(exc, id, fetched) from exc
    if not request.keep_archive and not request.portion:
        planning.forget(steps)
    elif not request.keep_archive:
        _remove(f for f in fetched if f.action == "fetch")  # files that were there before belong to somebody else


def _replaced(steps: planning.FetchPlan) -> dict[str, str]:
    """Let files without a published hash be fetched again if they must; return the hashes of those on this disk."""
    found: dict[str, str] = {}
    for step in steps.steps:
        if not step.file.placed:
            continue
        if (record := FileRecord.read(step.target)) is not None:
            found[step.file.path] = record.sha256
        if not step.file.hashed:
            FileRecord.beside(step.target).unlink(missing_ok=True)
    return found


def _distrusted(exc: CorruptArchive, id: DatasetId, fetched: Iterable[Fetched]) -> CorruptArchive:
    """Drop the records of unreadable files that have no published hash, so that the next run fetches them again."""
    bad = [f for f in fetched if f.action != "link" and not f.file.hashed and _name(f) in exc.message]
    for f in bad:
        FileRecord.beside(f.path).unlink(missing_ok=True)
    if not bad:
        return exc
    return CorruptArchive(
        exc.message,
        hint=f"rlds download {id} downloads it again; it has no published hash, and its source may have sent damage",
    )


def _name(f: Fetched) -> str:
    """Return the name by which an error calls a file: of a part of a store, that of the store."""
    store = next((part for part in PurePath(f.file.path).parts[:-1] if part.lower().endswith(".zarr")), None)
    return store or f.path.name


def _remove(fetched: Iterable[Fetched]) -> None:
    for f in fetched:
        f.path.unlink(missing_ok=True)
        FileRecord.beside(f.path).unlink(missing_ok=True)


def _conversion(
    request: DownloadRequest, id: DatasetId, entry: Entry, transfer: Transfer, fetched: Sequence[Fetched]
) -> Conversion:
    from rlds_cli.make.convert.archive import Conversion, check_plan

    came = sorted(fetched, key=lambda f: natural(f.file.path))
    files = _gathered(came, transfer.plan.destination)
    archive = Archive(
        transfer.plan.destination,
        tuple(dict.fromkeys(files.values())),
        entry.episodes_by,
        dict(entry.fields or {}),
        skip_bad=request.skip_bad,
        last_step=entry.last_step,
        partial=transfer.plan.listed is not None,
        rewards=entry.rewards,
    )
    format = entry.format
    if ReaderName(format).is_file:  # in the line of a manifest: a file of code is only run if the user names it
        raise ReaderError(f"{id}: {format} is not the name of a reader.")
    if not format or request.skip_bad:
        found = plan_files(archive, format or None)
        check_plan(found.plan, archive.files, format or None)
        format, archive = found.reader, found.plan.archive
        kept = set(archive.files)
        came = [f for f in came if files[f.path] in kept]
    env = {"id": entry.env_id, "eval_id": entry.eval_env_id, "max_episode_steps": entry.max_episode_steps}
    scores = {"ref_min_score": entry.ref_min_score, "ref_max_score": entry.ref_max_score}
    return Conversion(
        id=id,
        reader=format,
        archive=archive,
        encoding=request.storage,
        frames=request.frames,
        sources=_sources(came, files, transfer.plan.destination),
        facts={k: v for k, v in scores.items() if v is not None},
        env={k: v for k, v in env.items() if v is not None},
        options={"episodes_by": entry.episodes_by, "frames": request.frames}
        | ({"skip_bad": True} if request.skip_bad else {})
        | ({"last_step": entry.last_step} if entry.last_step else {})
        | ({"rewards": entry.rewards} if entry.rewards else {})
        | ({"entry": {**without_secrets(entry.line), "format": format}} if entry.line else {})
        | ({"portion": request.portion.facts | {"files": transfer.counts}} if request.portion else {}),
        portion=transfer.portion,
    )


def _gathered(came: Sequence[Fetched], destination: Path) -> dict[Path, Path]:
    """Return the file of the archive that each downloaded file is, or is a part of: a Zarr store is one."""
    found = bundles.gathered({f.path: None for f in came}, destination)
    found = {} if destination in found else found
    return {f.path: next((d for d in (f.path, *f.path.parents) if d in found), f.path) for f in came}


def _sources(came: Sequence[Fetched], files: Mapping[Path, Path], destination: Path) -> tuple[dict[str, Any], ...]:
    """Describe the files of an archive; one of parts is described as a whole."""
    found: dict[Path, dict[str, Any]] = {}
    for f in came:
        file = files[f.path]
        if file == f.path:
            found[file] = source_of(f)
        elif file not in found:
            inside = len(f.path.relative_to(file).parts)
            found[file] = source_of(f) | {
                "file": file.relative_to(destination).as_posix(),
                "size": bundles.size_of(file),
                "sha256": bundles.sha256_of(file),
                "url": "/".join(visible.shown(f.record.url).partition("?")[0].split("/")[:-inside]),
            }
    return tuple(found.values())


def source_of(f: Fetched) -> dict[str, Any]:
    """Describe a downloaded file for the sources of a dataset."""
    r = f.record
    return {
        "file": f.file.path,
        "size": r.size,
        "sha256": r.sha256,
        "url": visible.shown(r.url),
        "revision": r.revision,
    }
