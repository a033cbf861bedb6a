"""The files of a dataset as they are pushed: all of an ordinary one; one version of a dataset that grows.

A dataset that grows may have a writer at work. Its snapshot holds a version like any reader: of logs the bytes that
belong to it, of segments the rows of episodes that are kept or dropped. What changes in place is made anew: the numbers
of freed departures, and the ``zarr.json`` of fields.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rlds_cli.dataset import history
from rlds_cli.errors import DamagedDataset
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.growing import logs
from rlds_cli.growing.segments import SegmentedArray
from rlds_cli.growing.store import GrowingStore, open_store
from rlds_cli.refs import Ref
from rlds_cli.remote.index import MANIFEST, is_path
from rlds_cli.store import arrays, commits, manifest, references, tags, versions
from rlds_cli.store import files as store_files
from rlds_cli.store.opening import Store
from rlds_cli.ted import IntArray

_GAP = 1 << 20  # bytes of rows that nobody needs, from which on they are left out


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a snapshot.

    Attributes
    ----------
    path : str
        Below the dataset.
    size : int
        Of the file, with holes.
    extents : sequence of (int, int)
        First byte, and the one behind the last, of the parts that belong to the snapshot.
    file : Path, optional
        On the disk; None if ``data`` is the content.
    identity : optional
        Of the file on the disk, if it never changes.
    growing : bool
        Rows or records are still added behind the last extent.
    """

    path: str
    size: int
    extents: tuple[tuple[int, int], ...]
    file: Path | None = None
    data: bytes = b""
    identity: tuple[int, int, int] | None = None
    growing: bool = False

    def open(self) -> BinaryIO:
        """Open the content.

        Raises
        ------
        DamagedDataset
            Another file has taken its place.
        """
        if self.file is None:
            return io.BytesIO(self.data)
        try:
            opened = safe_files.reading(self.file)
        except OSError as e:
            raise DamagedDataset(
                f"{self.file} cannot be read: {e.strerror}. The push did not end.", hint="the same command goes on"
            ) from e
        if self.identity is not None and _identity(os.fstat(opened.fileno())) != self.identity:
            opened.close()
            raise DamagedDataset(
                f"{self.file} was replaced while it was pushed. The push did not end.", hint="the same command again"
            )
        return opened


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a dataset at one moment, and what they are."""

    id: str
    fingerprint: str
    version: int
    manifest: str  # sha256
    files: tuple[LocalFile, ...]
    store: Store = field(repr=False)  # holds a version
    dropped: int = 0  # episodes of a growing dataset that are hidden, and in the files all the same
    created: str = ""
    change: str = ""
    episodes: int = 0
    steps: int = 0
    newest: bool = True  # no later version is here
    tags: Mapping[str, int] = field(default_factory=dict)  # of the dataset, with numbers of versions

    @property
    def grows(self) -> bool:
        """Whether it is a version of a growing dataset."""
        return self.store.grows

    @property
    def size(self) -> int:
        """Bytes of all extents."""
        return sum(b - a for f in self.files for a, b in f.extents)


def take(ref: Ref) -> Snapshot:
    """Return the snapshot of a version of the dataset in a directory.

    Raises
    ------
    DamagedDataset
        It is damaged, or holds files that no dataset has.
    """
    path = Path(ref.place)
    store = open_store(path, ref)
    path = store.path  # of an earlier version, if the reference names one
    files = tuple(_growing(store) if isinstance(store, GrowingStore) else _ordinary(store))
    dropped = store.commit.dropped if isinstance(store, GrowingStore) else 0
    sha256 = hashlib.sha256(store_files.content(path / MANIFEST, manifest.LONGEST)).hexdigest()
    dataset = versions.newest_of(path)
    made = {v.number: v for v in history.versions_of(dataset)}
    of = made.get(store.version)
    found = Snapshot(
        store.manifest.id,
        store.fingerprint(),
        store.version,
        sha256,
        files,
        store,
        dropped,
        created=of.created if of else store.manifest.created,
        change=of.change if of else "",
        episodes=of.episodes if of else store.manifest.counts.episodes,
        steps=of.steps if of else store.manifest.counts.steps,
        newest=ref.selector is None or store.version >= max(made),
        tags=tags.read(dataset),
    )
    if not store.grows and sha256 != store.version_id:
        raise DamagedDataset(f"{path} was replaced while it was read.", hint="the same command again")
    strange = next((f.path for f in files if not is_path(f.path)), None)
    if strange is not None:
        raise DamagedDataset(f"{path / strange} is no file of a dataset. Nothing was sent.", hint="move it elsewhere")
    return found


def _ordinary(store: Store) -> Iterator[LocalFile]:
    path = store.path
    store_files.check_tree(path)
    segments = (s for place in store.places() if arrays.is_segmented(place) for s in arrays.layout(place).segments)
    rows = {s.file: arrays.row_bytes(s.shape, s.dtype) * s.rows for s in segments if s.chunk}  # of longer files
    for name, file in sorted(references.files(path).items()):
        if "/." in f"/{name}" or name == tags.FILE:  # of a file system or a desktop; of this directory
            continue
        status = file.lstat()
        size = rows.get(file, status.st_size)
        extents = ((0, size),) if size else ()
        yield LocalFile(name, status.st_size, extents, file, identity=_identity(status))


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


# -- a dataset that grows


def _growing(store: GrowingStore) -> Iterator[LocalFile]:
    path, g = store.path, store.commit
    found = [array for name in store.fields for array in store.layout.of_field(name)]
    fields = {array.directory for array in found}
    for file in sorted(trees.files(path)):
        if file.name == "zarr.json" and file.parent not in fields:
            yield _made(file.relative_to(path).as_posix(), store_files.content(file, manifest.LONGEST))
    width = max(array.width for array in store.layout.by_row)
    for array in found:
        described, end = array.directory / "zarr.json", store.end_of(array)
        yield _made(described.relative_to(path).as_posix(), json.dumps(array.document(end)).encode())
        runs = _runs(store.spans_of(array), 1 if array in store.layout.bytes.values() else width)
        yield from _segments(array, path, runs, end)
    ends = {**logs.sizes(g, store.head.fields), commits.FILE: (g.number + 1) * commits.BYTES}
    for log, stop in ends.items():
        yield LocalFile(log, stop, ((0, stop),) if stop else (), path / log, growing=True)
    yield _made(logs.FREED, 2 * g.departed.to_bytes(8, "little"))
    for lock in (logs.READERS, logs.WRITERS, logs.COMMIT):
        yield _made(lock, b"")


def _made(path: str, data: bytes) -> LocalFile:
    return LocalFile(path, len(data), ((0, len(data)),) if data else (), data=data)


def _runs(spans: IntArray, width: int) -> list[tuple[int, int]]:
    """Join the rows [first, stop) of episodes [episodes, 2], of ``width`` bytes, where little lies between them."""
    start, stop = spans[spans[:, 1] > spans[:, 0]].T
    if not len(start):
        return []
    apart = np.flatnonzero(start[1:] - stop[:-1] > _GAP // max(1, width)) + 1
    firsts, lasts = np.concatenate([[0], apart]), np.concatenate([apart, [len(start)]]) - 1
    return list(zip(start[firsts].tolist(), stop[lasts].tolist(), strict=True))


def _segments(array: SegmentedArray, path: Path, runs: list[tuple[int, int]], rows: int) -> Iterator[LocalFile]:
    width, segment_rows = array.width, array.segment_rows
    parts: dict[int, list[tuple[int, int]]] = {}
    for first, stop in runs if width else ():
        for number in range(first // segment_rows, (stop - 1) // segment_rows + 1):
            base = number * segment_rows
            within = max(first, base) - base, min(stop, base + segment_rows) - base
            parts.setdefault(number, []).append((within[0] * width, within[1] * width))
    for number, extents in parts.items():
        file = array.file(number)
        name = file.relative_to(path).as_posix()
        yield LocalFile(name, array.size, tuple(extents), file, growing=(number + 1) * segment_rows > rows)
