"""Copy archives to a store of one's own, in the layout that ``RLDS_MIRROR`` reads: ROOT/HOST/PATH.

::

    ROOT/rail.eecs.berkeley.edu/datasets/.../hopper_medium-v2.hdf5    a file at its place at the source
    ROOT/SHA256SUMS                                                   a line for each file: sha256sum -c checks them

A file in the home is sent from there. Others are fetched into ``partial/``, sent, and removed again, about 1 GiB at a
time, so that a mirror of many archives needs little disk. Every file is hashed before it is sent. The sums are written
after each of these groups: what they name is complete, and is not sent again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from rlds_cli.base import ids, settings, text
from rlds_cli.base.citing import licence_identifier
from rlds_cli.base.files import hashing, names, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import ArchiveError, RldsError, TransferError, UploadFailed
from rlds_cli.homes import Home, exclusive
from rlds_cli.make.downloads.again import RegisteredArchive
from rlds_cli.make.downloads.fetch.planning import FetchStep
from rlds_cli.places import (
    Address,
    Body,
    FileRecord,
    Overtaken,
    RemoteFile,
    as_url,
    open_objects,
)
from rlds_cli.places.sources.objects import Objects

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_GROUP, _FILES = 1 << 30, 64  # bytes and files that are fetched, sent and removed together
_AT_ONCE = 4  # files that are sent
_ATTEMPTS = 20  # to write the sums while others write them, too
_NAMED = 5  # failures in one message
_TAG = "mirror"


@dataclass(frozen=True, slots=True)
class MirroredFile:
    """A file of an archive at the mirror.

    ``name`` is its path below the root. ``sha256`` is None in a plan if nobody has hashed it yet; ``published`` is True
    if the registry or the source promises a hash. ``there`` is True if the mirror had it, and ``here`` if the home has.
    """

    name: str
    size: int | None
    sha256: str | None
    published: bool
    there: bool
    here: bool


@dataclass(frozen=True, slots=True)
class MirroredArchive:
    """An archive at the mirror; ``warnings`` are about its licence, and about files without a published hash.

    ``problem`` says in a plan why its source does not list it.
    """

    id: str
    files: tuple[MirroredFile, ...]
    warnings: tuple[str, ...]
    problem: str | None = None

    @property
    def to_fetch(self) -> int:
        """Bytes that are neither at the mirror nor in the home, as far as sizes are known."""
        return sum(f.size or 0 for f in self.files if not f.there and not f.here)

    @property
    def to_send(self) -> int:
        """Bytes that the mirror lacked, as far as sizes are known."""
        return sum(f.size or 0 for f in self.files if not f.there)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Result of `mirror`; ``done`` is False for a plan."""

    to: str
    archives: tuple[MirroredArchive, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file that the mirror shall have: how it is obtained, its name there, and whether the mirror has it."""

    file: RemoteFile
    name: str
    local: Path | None  # in the home
    there: str | None  # its sha256 at the mirror


@dataclass(slots=True)
class _Target:
    """The mirror: its store, and the sums that it holds."""

    objects: Objects
    sums: dict[str, str] = field(default_factory=dict)
    tag: str | None = None

    def read(self) -> None:
        """Read the sums; invalid names and hashes are left out, so that their files are sent again."""
        found = self.objects.read(SUMS)
        self.tag = None if found is None else found.tag
        lines = "" if found is None else found.data.decode(errors="replace")
        self.sums = {m[2]: m[1] for line in lines.splitlines() if (m := _LINE.fullmatch(line))}

    def add(self, sums: Mapping[str, str]) -> None:
        """Add sums to those of the mirror, which others may extend at the same time."""
        if all(self.sums.get(name) == sum for name, sum in sums.items()):
            return
        for _ in range(_ATTEMPTS):
            merged = {**self.sums, **sums}
            lines = "".join(f"{sum}  {name}\n" for name, sum in sorted(merged.items()))
            try:
                self.objects.replace(SUMS, lines.encode(), self.tag)
            except Overtaken:
                self.read()
                continue
            self.read()
            return
        raise UploadFailed(f"{SUMS} of {self.objects.address} is written by others all the time.")


def mirror(
    refs: str | Sequence[str],
    to: StrPath,
    *,
    dry_run: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Mirrored:
    """Copy the archives of datasets to a store, for ``RLDS_MIRROR``; files that it has with the right hash stay.

    Parameters
    ----------
    refs : str or sequence of str
        Ids of the registry, or patterns such as ``"d4rl/*"``.
    to : str or path
        A directory, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``hf://datasets/OWNER/NAME``.
    dry_run : bool
        Only plan.

    Raises
    ------
    UnknownDataset
        The registry has no such id.
    DownloadFailed, WrongHash, Offline
        Files could not be fetched, after all other archives were copied; the same call resumes. A plan has the reasons.
    UploadFailed
        The store did not take a file; no other is tried.
    """
    where, tell = settings.read(home), shown(progress)
    archives = RegisteredArchive.named([refs] if isinstance(refs, str) else refs)
    with open_objects(Address.parse(to), where, progress=tell) as objects:
        target = _Target(objects)
        target.read()
        found, failed = list[MirroredArchive](), dict[str, RldsError]()
        for archive in archives:
            try:
                found.append((_planned if dry_run else _mirrored)(target, where, tell, archive))
            except (TransferError, ArchiveError) as e:
                if isinstance(e, UploadFailed):
                    raise
                failed[archive.id] = e
                found.append(MirroredArchive(archive.id, (), (), problem=e.message))
                tell(Event(archive.id, "note", note=e.message))
    if failed and not dry_run:
        raise _unfinished(failed, len(archives), str(objects.address))
    return Mirrored(str(objects.address), tuple(found), not dry_run)


def _unfinished(failed: Mapping[str, RldsError], of: int, to: str) -> RldsError:
    """Return the error that says which archives could not be copied."""
    first = next(iter(failed.values()))
    if of == 1:
        return first
    named = [f"{id}: {e.message}" for id, e in failed.items()]
    more = f" And {len(named) - _NAMED:,} more." if len(named) > _NAMED else ""
    return type(first)(
        f"{len(failed):,} of {of:,} archives could not be copied to {to}. {' '.join(named[:_NAMED])}{more}",
        hint="the others are stored; the same command tries again",
    )


def _planned(target: _Target, where: Settings, tell: Progress, archive: RegisteredArchive) -> MirroredArchive:
    wanted = _wanted(target, where, tell, archive, trust=True)
    return _result(archive, wanted, {w.name: w.there for w in wanted if w.there})


def _mirrored(target: _Target, where: Settings, tell: Progress, archive: RegisteredArchive) -> MirroredArchive:
    id, place = ids.parse(archive.id), Home(where.home)
    with exclusive(place, id, tell):
        wanted = _wanted(target, where, tell, archive, trust=False)
        known = {w.name: w.there for w in wanted if w.there}
        target.add(known)  # of files that came by other means
        work = safe_files.work_directory(place.partial(id, _TAG), place.root)
        for group in _groups([w for w in wanted if not w.there]):
            known |= _send(group, work, target, where, tell, archive)
        trees.discard(work)  # after an error it stays, for the next attempt
    tell(Event(archive.id, "ready", note=f"at {target.objects.address}"))
    return _result(archive, wanted, known)


def _result(archive: RegisteredArchive, wanted: Sequence[_Wanted], known: Mapping[str, str]) -> MirroredArchive:
    files = tuple(
        MirroredFile(w.name, w.file.size, known.get(w.name, w.file.sha256), w.file.hashed, bool(w.there), bool(w.local))
        for w in wanted
    )
    return MirroredArchive(archive.id, files, tuple(_warnings(archive, files)))


def _warnings(archive: RegisteredArchive, files: Sequence[MirroredFile]) -> Iterator[str]:
    licence = archive.entry.licence
    if licence_identifier(licence) in (None, "unknown"):
        yield (
            f"the licence of {archive.id} ({licence or 'not stated'}) may not allow to pass the archive on: "
            "ask its authors before others can read the mirror"
        )
    unhashed = sum(not f.published for f in files)
    if unhashed:
        yield (
            f"{text.plural(unhashed, 'file')} of {archive.id} have no published hash: the mirror records the sha256 of "
            "what arrived"
        )


# -- what is wanted, and where it is


def _wanted(
    target: _Target, where: Settings, tell: Progress, archive: RegisteredArchive, *, trust: bool
) -> list[_Wanted]:
    """List the files of an archive; with ``trust``, sums of the mirror hold without reading its files."""
    steps = {s.file.path: s for s in archive.plan(where, tell)}
    places = _places(archive, [s.file for s in steps.values()])
    present = target.objects.names(_common(places.values()))
    return [
        _Wanted(step.file, places[path], _local(step), _there(step.file, places[path], present, target, trust=trust))
        for path, step in steps.items()
    ]


def _places(archive: RegisteredArchive, files: Iterable[RemoteFile]) -> dict[str, str]:
    """Return the name of each file at the mirror: its path at the source, host, bucket or repository first."""
    at = {path: as_url(url) for path, url in archive.urls.items()}
    registered = {path: url.key for path, url in at.items() if url.local_path is None}
    found = {f.path: registered.get(f.path) or f.key for f in files}
    odd = next((path for path, key in found.items() if not key or key.startswith("/")), None)
    if odd is not None:
        raise RldsError(
            f"{archive.id} cannot be mirrored: {odd} is known by a path of this machine only.",
            hint="the archives of sample/ come with rlds; rlds download ID --force asks the source of others",
        )
    names.all_safe(found.values())
    return found


def _common(places: Iterable[str]) -> str:
    """Return the directory that holds all of the names, with a slash behind it."""
    above = [place.split("/")[:-1] for place in places]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*above, strict=False))
    return "".join(f"{parts[0]}/" for parts in same)


def _local(step: FetchStep) -> Path | None:
    """Return the copy of a file on this machine, which need not be the right one."""
    return step.target if step.action in ("reuse", "verify") else step.origin


def _there(file: RemoteFile, name: str, present: Mapping[str, int], target: _Target, *, trust: bool) -> str | None:
    """Return the sha256 of a file that the mirror has; None if it lacks the file, or has another one."""
    size, listed = present.get(name), target.sums.get(name)
    if size is None or file.size not in (None, size):
        return None
    if target.objects.address.scheme == "file" and not (trust and listed):
        return _sum_of(file, target.objects.address.directory / name, listed)
    return listed if file.sha256 in (None, listed) else None


def _sum_of(file: RemoteFile, path: Path, recorded: str | None) -> str | None:
    """Return the sha256 of a local file; None if its hash is not the published one, or else the recorded one."""
    try:
        sha256 = hashing.sha256_of(path)
        kind, value = file.promise or ("sha256", recorded or sha256)
        found = sha256 if kind == "sha256" else hashing.hash_of(kind, path)
    except OSError:
        return None
    return sha256 if found == value else None


# -- sending


def _groups(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    """Yield files in groups of about 1 GiB and at most 64 files."""
    group: list[_Wanted] = []
    for w in wanted:
        group.append(w)
        if len(group) == _FILES or sum(g.file.size or 0 for g in group) >= _GROUP:
            yield group
            group = []
    if group:
        yield group


def _send(
    group: Sequence[_Wanted], work: Path, target: _Target, where: Settings, tell: Progress, archive: RegisteredArchive
) -> dict[str, str]:
    """Send files, fetched before if this machine lacks them; return their sums, which the mirror lists then."""
    ready = {w.name: (w.local, sum) for w in group if w.local and (sum := _sum_of(w.file, w.local, _recorded(w.local)))}
    missing = [w for w in group if w.name not in ready]
    if missing:
        brought = archive.fetch([w.file for w in missing], work, where, tell)
        ready |= {w.name: (b.path, b.record.sha256) for w, b in zip(missing, brought, strict=True)}
    sent: dict[str, str] = {}

    def send(name: str) -> None:
        path, sum = ready[name]
        size = path.stat().st_size
        target.objects.put(name, Body(size, partial(_opened, path)))
        sent[name] = sum
        tell(Event(archive.id, "send", name, size, size))

    try:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rlds-mirror") as pool:
            try:
                for done in [pool.submit(send, w.name) for w in group]:
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        target.add(sent)
    for w in missing:
        path, _ = ready[w.name]
        path.unlink()
        FileRecord.beside(path).unlink(missing_ok=True)
    return sent


def _opened(path: Path) -> BinaryIO:
    return path.open("rb")


def _recorded(path: Path) -> str | None:
    record = FileRecord.read(path)
    return record.sha256 if record else None
