"""Bring a dataset from an address into a home: only missing groups are fetched, and each is checked as it arrives.

::

    <home>/partial/<family>+<name>.pull/dataset/     files at their full length, with holes where nothing came yet
    <home>/partial/<family>+<name>.pull/journal      groups that are on the disk: a pull that was killed resumes

Blocks are checked by their hashes, which the index names. The dataset is then verified like one of a stranger: its
content must have the fingerprint of the index. Only then does it get its name.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlds_cli import homes
from rlds_cli.base import ids
from rlds_cli.base.files import disk, publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.http.connections import is_private
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, silent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DamagedDataset, InvalidId, NameTaken, WrongFingerprint
from rlds_cli.homes import Home, exclusive
from rlds_cli.places.remote import completing, plain
from rlds_cli.places.remote.blocks import GROUP, GroupHashes, groups_of
from rlds_cli.places.remote.fetching import TransferStats
from rlds_cli.places.remote.finding import read_there
from rlds_cli.places.remote.index import Index, IndexedFile, Object, Piece
from rlds_cli.places.remote.origins import Origins
from rlds_cli.places.remote.plain import Plain
from rlds_cli.places.remote.reading import PushedDataset
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.opening import open_objects
from rlds_cli.places.sources.place import Chunk
from rlds_cli.places.sources.transfer import Pending, Sink, Wrong
from rlds_cli.store import History, Manifest, StoredDataset

_AT_ONCE = 8  # requests
_RANGE = 8  # groups of blocks in a request
_SYNCED = 64 << 20  # bytes after which groups are synced and noted; a kill loses at most these
_KEPT = "What has arrived is kept; the same command continues."
_PIN = "ADDRESS#rlds1:... says what it must be"


@dataclass(frozen=True, slots=True)
class Found:
    """A dataset at an address: number and bytes of its files there, its id and its directory on this disk."""

    files: int
    size: int
    id: DatasetId
    here: Path | None


class Pull:
    """A dataset at an address, to be brought into the user's own home. It was pushed there, or is a plain copy.

    Parameters
    ----------
    name : str, optional
        Id of the dataset here; by default its own, if that is ``local/...``.
    """

    def __init__(
        self, address: Address, where: Settings, *, name: str | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.address, self.where, self.name, self._policy = address, where, name, policy

    def id(self) -> DatasetId:
        """Return the id that the dataset gets here; raises as `run`, and writes nothing."""
        with open_objects(self.address, self.where, policy=self._policy) as objects:
            return self._id_of(read_there(objects, TransferStats()))

    def look_up(self) -> Found:
        """Read the index at the address; raises as `run`, and writes nothing."""
        with open_objects(self.address, self.where, policy=self._policy) as objects:
            there = read_there(objects, TransferStats())
            if isinstance(there, Plain):
                files, size = plain.measure(objects, there)
            else:
                files, size = len(there.objects), there.size
        id = self._id_of(there)
        here = homes.path_of(id, self.where)
        return Found(files, size, id, here if here is not None and _has(here, there) else None)

    def run(
        self, *, expect: str | None = None, force: bool = False, blocks: bool = False, progress: Progress = silent
    ) -> Path:
        """Return the directory of the dataset here, after fetching what is missing of it.

        Parameters
        ----------
        expect : str, optional
            The fingerprint that it must have.
        force : bool
            Replace a dataset of this id with other content, or damaged files of the same one. A copy of an earlier
            version is replaced without it.
        blocks : bool
            Take over the blocks that were cached when the dataset was read at its address.

        Raises
        ------
        DatasetNotFound
            The address holds no dataset.
        WrongFingerprint
            It has other content than the address pins, or than ``expect``.
        NameTaken
            The id exists with other content, or is being written.
        InvalidId
            The dataset has an id of the registry, and ``name`` is not given.
        DownloadFailed, WrongHash, DamagedDataset, NoSpace
            Nothing is published; the same call continues from what has arrived.
        """
        address, place = self.address, Home(self.where.home)
        with open_objects(address, self.where, policy=self._policy, progress=progress) as objects:
            there = read_there(objects, TransferStats())
            if expect is not None and there.fingerprint and there.fingerprint != expect:
                raise WrongFingerprint(
                    f"{address} has {there.fingerprint}; {expect} was asked for. Nothing was written."
                )
            id = self._id_of(there)
            if not (is_private(str(address)) or address.scheme != "http" or address.pin or expect):
                progress(Event(str(id), "note", note=f"{address} is plain HTTP, where others could alter it: {_PIN}"))
            with exclusive(place, id, progress):
                here = homes.path_of(id, self.where)
                if here is not None and _has(here, there) and not force:
                    _check_wanted(address, StoredDataset(here).fingerprint(), expect)
                    _record(address, there, here)
                    return here
                if here is not None:
                    _check_replaceable(here, place, id, address, there, force)
                target = place.dataset(id)
                with disk.errors(target, kept=_KEPT), StoredDataset(here or target).without_writers():
                    if isinstance(there, Plain):
                        _copy(objects, there, id, place, expect, progress)
                    elif blocks:
                        _complete(objects, there, id, place, progress)
                    else:
                        _fetch_and_publish(objects, there, id, place, here, progress)
                _record(address, there, target)
        progress(Event(str(id), "ready", note=f"downloaded from {address}"))
        return target

    def _id_of(self, index: Index | Plain) -> DatasetId:
        id = ids.parse(self.name or index.id)
        if self.name is None and id.family != ids.LOCAL:
            raise InvalidId(
                f"{self.address} holds {index.id}, and only the registry says what that is. Nothing was written.",
                hint=f"--name local/NAME (name='local/NAME'), such as local/{id.name.rpartition('/')[2]}",
            )
        return id


def _record(address: Address, index: Index | Plain, here: Path) -> None:
    """Note that the dataset in a directory of a home came from an address."""
    Origins(here).record(
        address=str(address.unpinned),
        fingerprint=index.fingerprint or StoredDataset(here).fingerprint(),
        version=index.version if index.grows else None,
        version_id=StoredDataset(here).version_id if index.grows else None,
        index=index.sha256 if isinstance(index, Index) else None,
        pulled=True,
    )


def _has(here: Path, index: Index | Plain) -> bool:
    """Return whether a dataset has the content of an index."""
    try:
        if StoredDataset(here).grows != index.grows:
            return False
        if index.grows and StoredDataset(here).version != index.version:
            return False
        if index.grows and isinstance(index, Plain):
            return index.log is not None and StoredDataset(here).version_id == index.log.newest.version_id
        return StoredDataset(here).fingerprint() == index.fingerprint
    except DamagedDataset:
        return False


def _check_wanted(address: Address, found: str, expect: str | None) -> None:
    """Raise WrongFingerprint if a fingerprint is not the one that the address pins, or that is expected."""
    if not address.matches(found) or found != (expect or found):
        raise WrongFingerprint(
            f"{address} has {found}; {expect or address.pin} was asked for. Nothing was written.",
            hint="a plain copy of a growing dataset has one version, the newest" if address.pin else None,
        )


def _check_replaceable(
    here: Path, place: Home, id: DatasetId, address: Address, index: Index | Plain, force: bool
) -> None:
    """Raise NameTaken unless a dataset may be replaced: an earlier version of the copy, or, without tags, by force."""
    if not here.is_relative_to(place.root):
        raise NameTaken(f"{id} is in {here}, another home, with other content.", hint="another name: --name local/NAME")
    if force:
        with suppress(DamagedDataset):  # its manifest: it is fetched again
            if Manifest.read(here).fingerprint != index.fingerprint:
                History(here).check_replaceable()
        return
    known = Origins(here).latest
    if known is not None and known.pulled and known.address == str(address) and index.grows:
        with suppress(DamagedDataset):
            now = StoredDataset(here)
            if (now.version, now.version_id) == (known.version, known.version_id):
                return
    raise NameTaken(
        f"{id} exists with other content than {address} has.",
        hint=f"another name (--name local/NAME); or --force (force=True) replaces {id}",
    )


def _fetch_and_publish(
    objects: Objects, index: Index, id: DatasetId, place: Home, here: Path | None, tell: Progress
) -> None:
    there = PushedDataset(objects)
    hashes = there.groups(index)
    head = there.file(index, hashes, Index.MANIFEST)
    if hashlib.sha256(head).hexdigest() != index.manifest:
        raise DamagedDataset(f"The index at {objects.address} names another manifest than it has.")
    work = safe_files.work_directory(place.partial(id, "pull"), place.root)
    if not index.grows:  # refuse now what would be refused later
        (work / "head").mkdir(safe_files.DIRECTORY, exist_ok=True)
        safe_files.write_bytes(work / "head" / Index.MANIFEST, head)
        Manifest.read(work / "head")
    _Arriving(objects, index, hashes, work, str(id), tell).run(here)
    _publish(objects, index, head, work, id, place, tell)


def _complete(objects: Objects, index: Index, id: DatasetId, place: Home, tell: Progress) -> None:
    """Fetch what a remote dataset lacks, and publish its files."""
    work = safe_files.work_directory(place.partial(id, "blocks"), place.root)
    dataset = work / "dataset"
    root = completing.bring(objects.address, objects.where, index.fingerprint, dataset, str(id), tell)
    head = (dataset / Index.MANIFEST).read_bytes()
    if hashlib.sha256(head).hexdigest() != index.manifest:
        raise DamagedDataset(f"{objects.address}/{Index.MANIFEST} is not the one that was seen first.")
    _publish(objects, index, head, work, id, place, tell)
    completing.forget(root)  # later, by rlds gc, if a process reads it


def _copy(objects: Objects, there: Plain, id: DatasetId, place: Home, expect: str | None, tell: Progress) -> None:
    """Fetch the files of a plain copy, and publish them."""
    work = safe_files.work_directory(place.partial(id, "copy"), place.root)
    plain.fetch(objects, there, work, str(id), tell)
    _publish(objects, there, there.document, work, id, place, tell, expect)


def _publish(
    objects: Objects,
    index: Index | Plain,
    head: bytes,
    work: Path,
    id: DatasetId,
    place: Home,
    tell: Progress,
    expect: str | None = None,
) -> None:
    """Verify the dataset in a work directory, whose manifest is ``head``, and give it its name."""
    dataset, growing = work / "dataset", index.grows
    safe_files.write_bytes(dataset / Index.MANIFEST, head)
    Manifest.rename(dataset, str(id))  # the id that the dataset has here
    _check(dataset, index, objects, expect, tell)
    safe_files.directory(place.dataset(id).parent, place.root)
    History(place.dataset(id)).replace(dataset, growing=growing)
    trees.discard(work)


def _check(dataset: Path, index: Index | Plain, objects: Objects, expect: str | None, tell: Progress) -> None:
    """Verify everything that arrived.

    Raises
    ------
    DamagedDataset
        It does not agree with itself, or its content does not have the fingerprint of the index.
    WrongFingerprint
        It is a growing dataset without an index, whose fingerprint was not known before, and not what was asked for.
    """
    if StoredDataset(dataset).grows != index.grows:
        raise DamagedDataset(f"{objects.address} says of a dataset whether it grows, and is wrong.")
    report = StoredDataset(dataset).verify(progress=tell)
    problem = next(map(str, report.problems), None)
    if problem is not None and isinstance(index, Plain):
        plain.forget(dataset, index, report.problems)
        raise DamagedDataset(
            f"{objects.address}: {problem}. It was not published; files that are right are kept.", hint=plain.HINT
        )
    if problem is None and not index.fingerprint:
        _check_wanted(objects.address, str(report.fingerprint), expect)
    elif problem is None and report.fingerprint != index.fingerprint:
        problem = f"its content has the fingerprint {report.fingerprint}, not {index.fingerprint}"
    if problem is not None:
        raise DamagedDataset(
            f"{objects.address}: {problem}. It arrived as it lies there, and was not published.",
            hint="rlds verify ID where it was pushed from, and push it again",
        )


class _Arriving:
    """The files of a dataset while they arrive."""

    def __init__(
        self, objects: Objects, index: Index, hashes: GroupHashes, work: Path, id: str, tell: Progress
    ) -> None:
        self._objects, self._index, self._hashes = objects, index, hashes
        self._dataset, self._id, self._tell = work / "dataset", id, tell
        self._lock = threading.Lock()
        self._dirty: set[Path] = set()
        self._written: list[tuple[int, int]] = []  # groups that are not yet synced: numbers of object and group
        self._done = 0
        self._journal = Journal(work / "journal", hashlib.sha256(index.to_bytes()).hexdigest())
        if self._journal.records() is None:
            trees.discard(self._dataset)
        self._arrived = {tuple(group) for groups in self._journal.resume() for group in groups}

    def run(self, here: Path | None) -> None:
        """Make the files, take what the dataset ``here`` has of them, and fetch the rest."""
        self._dataset.mkdir(safe_files.DIRECTORY, exist_ok=True)
        publishing.unseal(self._dataset)  # a pull that was killed while it was published
        needed = self._index.size
        disk.check_space(needed - self._bytes_there(), self._dataset, kept="What has arrived is kept.")
        self._make_files()
        pieces: dict[int, list[tuple[Piece, IndexedFile]]] = {}
        taken = self._taken(here)
        for file in self._index.stored:
            for piece in file.pieces:
                if (file.path, piece.at) not in taken:
                    pieces.setdefault(piece.object, []).append((piece, file))
        for parts in pieces.values():
            parts.sort(key=lambda part: part[0].offset)
        todo = [self._groups(number, parts) for number, parts in pieces.items()]
        self._total = sum(sum(groups.missing) for groups in todo) * GROUP
        with ThreadPoolExecutor(_AT_ONCE, "pull") as pool:
            try:
                self._bring(pool, [groups.spans()[:1] for groups in todo])  # a server without ranges sends all of it
                self._bring(pool, [groups.spans() for groups in todo])
            except BaseException:
                self._objects.client.stop()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                self._sync()

    def _bring(self, pool: ThreadPoolExecutor, spans: Iterable[Sequence[_Span]]) -> None:
        for task in [
            pool.submit(self._objects.bring, span.groups.object.name, span) for some in spans for span in some
        ]:
            task.result()

    def _bytes_there(self) -> int:
        return sum(f.stat().st_blocks * 512 for f in trees.files(self._dataset))

    def _make_files(self) -> None:
        for file in self._index.stored:
            path = self._dataset / file.path
            safe_files.make(path.parent)
            descriptor = safe_files.open_own(path, os.O_RDWR | os.O_CREAT)
            try:
                if os.fstat(descriptor).st_size != file.size:
                    os.ftruncate(descriptor, file.size)
            finally:
                os.close(descriptor)

    def _taken(self, here: Path | None) -> set[tuple[str, int]]:
        """Copy the pieces that a dataset on this disk has; return their files and places."""
        if here is None:
            return set()
        files = [f for f in self._index.stored if (here / f.path).is_file()]
        with ThreadPoolExecutor(_AT_ONCE, "copy") as pool:
            return {found for some in pool.map(lambda f: self._take(here, f), files) for found in some}

    def _take(self, here: Path, file: IndexedFile) -> list[tuple[str, int]]:
        found = []
        with safe_files.reading(here / file.path) as old, safe_files.updating(self._dataset / file.path) as new:
            size = os.fstat(old.fileno()).st_size
            for piece in file.pieces:
                if piece.at + piece.length > size:
                    continue
                digest, at, stop = hashlib.sha256(), piece.at, piece.at + piece.length
                while at < stop and (data := os.pread(old.fileno(), min(GROUP, stop - at), at)):
                    digest.update(data)
                    disk.write_at(new.fileno(), at, data)
                    at += len(data)
                if digest.hexdigest() == piece.sha256:  # else it is fetched, over what was copied
                    found.append((file.path, piece.at))
        return found

    def _groups(self, number: int, pieces: Sequence[tuple[Piece, IndexedFile]]) -> _Groups:
        """Return the groups of an object that hold pieces and are not there."""
        o = self._index.objects[number]
        missing = bytearray(groups_of(o.size))
        for p, _ in pieces:
            first, stop = p.offset // GROUP, groups_of(p.offset + p.length)
            missing[first:stop] = b"\1" * (stop - first)
        for group in range(len(missing)):
            missing[group] &= (number, group) not in self._arrived

        def is_right(group: int, data: Chunk) -> bool:
            return self._hashes.is_group(number, group, data)

        def take(group: int, data: Chunk) -> None:
            self._write(number, group, data, pieces)

        return _Groups(o, missing, is_right, take)

    def _write(self, number: int, group: int, data: Chunk, pieces: Sequence[tuple[Piece, IndexedFile]]) -> None:
        """Write the parts of a group to the files that they belong to."""
        paths, at = set[Path](), group * GROUP
        for p, file in pieces:
            if p.offset + p.length <= at:
                continue
            if p.offset >= at + len(data):
                break
            a, b = max(at, p.offset), min(at + len(data), p.offset + p.length)
            if a < b:
                path = self._dataset / file.path
                with safe_files.updating(path) as open_file:
                    disk.write_at(open_file.fileno(), p.at + a - p.offset, data[a - at : b - at])
                paths.add(path)
        with self._lock:
            self._dirty |= paths
            self._written.append((number, group))
            self._done += len(data)
            self._tell(Event(self._id, "fetch", "", min(self._done, self._total), self._total))
            due = len(self._written) * GROUP >= _SYNCED
        if due:
            self._sync()

    def _sync(self) -> None:
        """Write groups through to the disk, then note them in the journal."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            written, self._written = self._written, []
        for path in dirty:
            publishing.sync_file(path)
        if written:
            self._journal.add(written)


class _Groups:
    """The groups of an object that have not arrived: 1 in ``missing``, which all threads share."""

    def __init__(
        self,
        o: Object,
        missing: bytearray,
        is_right: Callable[[int, Chunk], bool],
        take: Callable[[int, Chunk], object],
    ) -> None:
        self.object, self.missing, self.is_right, self.take = o, missing, is_right, take

    def spans(self) -> list[_Span]:
        """Return them in runs, each of which is one request."""
        found, group = list[_Span](), self.missing.find(1)
        while group >= 0:
            end = self.missing.find(0, group, group + _RANGE)
            stop = min(group + _RANGE, len(self.missing)) if end < 0 else end
            found.append(_Span(self, group, stop))
            group = self.missing.find(1, stop)
        return found


class _Span(Sink):
    """Adjacent groups of an object, and of an answer that holds more, the others that are missing."""

    def __init__(self, groups: _Groups, first: int, stop: int) -> None:
        self.groups, self._first, self._stop = groups, first, stop
        self.size = groups.object.file_size
        self._pending = Pending()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def missing(self) -> tuple[int, int] | None:
        o, first = self.groups.object, self.groups.missing.find(1, self._first, self._stop)
        return None if first < 0 else (o.at + first * GROUP, o.at + min(self._stop * GROUP, o.size))

    def wants(self, at: int) -> bool:
        return self.groups.missing.find(1, max(0, at - self.groups.object.at) // GROUP) >= 0

    def put(self, at: int, data: memoryview) -> None:
        o = self.groups.object
        at, data = max(0, at - o.at), data[max(0, o.at - at) :]
        while data and at < o.size:
            group = at // GROUP
            start, size = group * GROUP, min(GROUP, o.size - group * GROUP)
            some, data = data[: start + size - at], data[start + size - at :]
            whole = self._pending.add(start, at, some, size)
            at += len(some)
            if whole is None or not self.groups.missing[group]:
                continue
            if not self.groups.is_right(group, whole):
                raise Wrong(o.at + start, size)
            self.groups.take(group, whole)
            self.groups.missing[group] = 0
            self._taken += size
