"""Prove the rows of a dataset at an address by the fingerprint that ``ADDRESS#rlds1:...`` pins.

The hashes of an index prove its blocks, but a stranger's index may claim any fingerprint. The digests of episodes prove
it, and they prove rows: before a block is handed out, all episodes with bytes in it are fetched whole and hashed. Of
rows that have digests of their own, these rows are; of a video, the whole file. Bytes of no episode are not proved.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.files import sha256
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DamagedDataset, WrongFingerprint, WrongHash
from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.fetching import Source, Take
from rlds_cli.store import Store
from rlds_cli.store.blocks import BytePlace
from rlds_cli.store.columns import Part
from rlds_cli.store.digests import Digests

_MOST = 64 << 20  # bytes that are in memory until they are proved; longer pieces are read twice
_STEP = 8 << 20
_HINT = "do not use this address for that dataset"


@dataclass(frozen=True)
class _Column:
    """An array in files of rows, and what is hashed of it: bytes [begin, end) of each piece, in order."""

    name: str
    files: tuple[tuple[int, int, int], ...]  # number of a file, and the bytes of the array that it has
    begin: IntArray
    end: IntArray
    digests: Digests
    hashed: Callable[[memoryview, IntArray, IntArray], Digests]
    proved: BoolArray = field(repr=False)


class Proof:
    """The proof of one dataset, for one process.

    Parameters
    ----------
    store : Store
        The dataset, of which no row was read yet. The offsets of its images are.
    blocks : BlockFiles
        Of its files.
    pinned : str
        The fingerprint that its digests and its episode table must have.

    Raises
    ------
    WrongFingerprint
        They are not those of the pinned dataset.
    """

    def __init__(self, store: Store, blocks: BlockFiles, pinned: str) -> None:
        fingerprint = store.fingerprint(store.table.numbers)
        if fingerprint != pinned:
            raise WrongFingerprint(
                f"{store.address} claims to hold {pinned}; the digests of its episodes are those of {fingerprint}.",
                hint=_HINT,
            )
        self._store = store
        self._lock = threading.Lock()
        self._fields: dict[int, str] = {}  # of the files of rows
        self._known: dict[str, dict[int, _Column]] = {}
        self._files: dict[tuple[str, Part], tuple[tuple[int, int, int], ...]] = {}
        images = [name for name, f in store.fields.items() if f.kind == "frames" and not f.is_video]
        for c in store.table.columns():
            if c.part != "rows" or c.field not in images:  # offsets follow from what they point at
                key = c.field, c.part
                self._files[key] = _files(store.files.place(c), blocks)
                self._fields |= dict.fromkeys((file for file, _, _ in self._files[key]), c.field)
        for name in images:  # not while blocks are waited for: offsets lie in blocks
            self._columns(name)
        _proofs.add(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def read(self, file: int, start: int, length: int, take: Take, source: Source) -> None:
        """Give bytes of a file to ``take`` as ``source`` does, but proved.

        Raises
        ------
        WrongHash
            They are not those of the pinned dataset.
        """
        name = self._fields.get(file)
        column = None if name is None else self._columns(name)[file]
        todo = np.zeros(0, np.int64)
        if column is not None:
            base = next(first for number, first, _ in column.files if number == file)
            a, b = base + start, base + start + length
            low, high = np.searchsorted(column.end, a, "right"), np.searchsorted(column.begin, b, "left")
            todo = low + np.flatnonzero(~column.proved[low:high])
        if column is None or not len(todo):
            source(file, start, length, take)
            return
        first, stop = min(a, int(column.begin[todo[0]])), max(b, int(column.end[todo[-1]]))
        if stop - first <= _MOST:
            data = self._bytes(column, first, stop, source)
            self._check(column, todo, column.hashed(data, column.begin[todo] - first, column.end[todo] - first))
            take(data[a - first : b - first])
            return
        for k in todo:
            self._check(column, np.array([k]), self._hashed(column, int(column.begin[k]), int(column.end[k]), source))
        source(file, start, length, take)

    def _check(self, column: _Column, pieces: IntArray, found: Digests) -> None:
        wrong = (found != column.digests[pieces]).any(1)
        if wrong.any():
            raise WrongHash(
                f"{column.name} at {self._store.address} is not that of {self._store.manifest.id} with the pinned "
                f"fingerprint: {int(wrong.sum()):,} of {len(pieces):,} pieces that were read have other content.",
                hint=_HINT,
            )
        column.proved[pieces] = True

    def _hashed(self, column: _Column, begin: int, end: int, source: Source) -> Digests:
        """Return the digest of one long piece."""
        if column.hashed is not _of_bytes:
            data = self._bytes(column, begin, end, source)
            return column.hashed(data, np.array([0]), np.array([end - begin]))
        h = hashlib.sha256()
        for at in range(begin, end, _STEP):
            h.update(self._bytes(column, at, min(at + _STEP, end), source))
        return np.frombuffer(h.digest(), np.uint8).reshape(1, 32)

    def _bytes(self, column: _Column, begin: int, end: int, source: Source) -> memoryview:
        """Return bytes of an array, with zeros between its files."""
        data = memoryview(bytearray(end - begin))
        for file, first, stop in column.files:
            a, b = max(begin, first), min(end, stop)
            at = a - begin
            if a < b:

                def put(part: bytes | memoryview) -> None:
                    nonlocal at
                    data[at : at + len(part)] = part
                    at += len(part)

                source(file, a - first, b - a, put)
        return data

    # -- what is hashed

    def _columns(self, name: str) -> dict[int, _Column]:
        """Return the columns of a field by their files."""
        with self._lock:
            if name not in self._known:
                found = self._of(name)
                self._known[name] = {file: c for c in found for file, _, _ in c.files}
            return self._known[name]

    def _of(self, name: str) -> list[_Column]:
        """Return the columns of a field; none of a field without bytes."""
        store = self._store
        f = store.fields[name]
        chosen = np.argsort(store.episodes["start"], kind="stable")
        start = store.episodes["start"][chosen]
        hashing, rows = store.table.hashing(name), store.table.column(name)
        count = hashing.counted(store.episodes["length"][chosen], store.episodes["num_observed"][chosen])
        known = store.digests(name)[chosen]
        width = rows.width
        if hashing.has_rows:
            every = np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())
            own = np.asarray(store.table.row_digests(name))
            if (hashing.episodes(own, start, count) != known).any():
                raise WrongHash(f"The digests of rows of {name} at {store.address} are not right.", hint=_HINT)
            places = distinct(every)  # one may be the last of an episode and the first of the next
            if f.kind == "frames":
                begin, end = store.frames(name).spans(places)
                other = (np.diff(begin) != 0) | (np.diff(end) != 0) | (begin[1:] == end[1:])
                new = np.append(True, other)[: len(places)]
                of = own[places[new]]
                if (own[places] != of[np.cumsum(new) - 1]).any():
                    raise WrongHash(f"Rows of {name} at {store.address} share an image, not its hash.", hint=_HINT)
                return self._column(name, "frames", (begin[new], end[new]), of, _of_bytes)
            return self._column(name, "rows", (places * width, (places + 1) * width), own[places], _of_bytes)
        spans = start * width, (start + count) * width
        if f.kind == "array":
            return self._column(name, "rows", spans, known, _of_bytes, width)

        def of_rows(data: memoryview, begin: IntArray, end: IntArray) -> Digests:
            values = np.frombuffer(data[begin[0] : end[-1]], "<i4").reshape(-1, *rows.shape)
            if not hashing.fits(values):
                said = "codes of no text" if f.kind == "text" else "numbers of no video"
                raise DamagedDataset(f"{name} at {store.address} has {said}.", hint=_HINT)
            return hashing.episodes(values, (begin - begin[0]) // width, (end - begin) // width)

        found = self._column(name, "rows", spans, known, of_rows, width)
        if not f.is_video:
            return found
        films = store.videos(name).spans
        there = films[:, 1] > films[:, 0]  # of others no row of this version has a frame
        spans_of = films[there, 0], films[there, 1]
        return self._column(name, "films", spans_of, hashing.videos[there], _of_bytes) + found

    def _column(
        self,
        name: str,
        part: Part,
        spans: tuple[IntArray, IntArray],
        of: Digests,
        hashed: Callable[[memoryview, IntArray, IntArray], Digests],
        shared: int = 0,
    ) -> list[_Column]:
        """Return the column whose pieces lie in these bytes; each shares at most ``shared`` with the one before."""
        begin, end = (np.asarray(edges) for edges in spans)
        backwards = (begin > end).any() or (np.diff(begin) < 0).any() or (np.diff(end) < 0).any()
        if backwards or (end[:-1] - begin[1:] > shared).any():
            raise DamagedDataset(f"{name} at {self._store.address} has rows that overlap.", hint=_HINT)
        return [_Column(name, self._files[name, part], begin, end, of, hashed, np.zeros(len(begin), bool))]


def _files(place: BytePlace | None, blocks: BlockFiles) -> tuple[tuple[int, int, int], ...]:
    """Return the numbers of the files of an array, and the bytes of it [first, stop) that each has room for."""
    found = []
    for k, file in enumerate([] if place is None else place.files.tolist()):
        assert place is not None
        first = k * place.file_bytes - place.skip if place.first is None else int(place.first[k]) * place.block
        if file >= 0:
            found.append((file, first, first + blocks.files[file].size))
    return tuple(found)


def _of_bytes(data: memoryview, begin: IntArray, end: IntArray) -> Digests:
    return sha256.of_pieces(data, begin, end - begin)


_proofs: weakref.WeakSet[Proof] = weakref.WeakSet()


def _after_fork() -> None:
    for proof in _proofs:
        proof._after_fork()


os.register_at_fork(after_in_child=_after_fork)
