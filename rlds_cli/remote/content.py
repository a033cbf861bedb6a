"""The files of a pushed dataset as one process sees them: pinned, checked, and fetched when they are needed.

::

    <home>/remote/<name>/index.json      the index that was seen
    <home>/remote/<name>/hashes          the hashes of its blocks
    <home>/remote/<name>/addresses.json  where it was seen
    <home>/remote/<name>/dataset/        small files, whole: manifest and episode table when the dataset is opened
    <home>/remote/<name>/rows/           files of rows, by blocks: see `presence`

The name holds the fingerprint and a hash of what else the index says, so other content lies elsewhere. Objects are
named by their content: what was seen first is read as long as its objects are there, whatever is pushed meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlds_cli.errors import DamagedDataset, DownloadFailed, RldsError
from rlds_cli.files import disk
from rlds_cli.files import safe as safe_files
from rlds_cli.files.hashing import short
from rlds_cli.http.client import RetryPolicy
from rlds_cli.remote.addresses import Address
from rlds_cli.remote.blocks import BLOCK, BlockHashes
from rlds_cli.remote.cache import Stats, Take
from rlds_cli.remote.index import File, Index, Piece
from rlds_cli.remote.objects import POLICY, Chunk, Objects
from rlds_cli.remote.reading import ATTEMPTS, expect_index, wrong_block
from rlds_cli.remote.stores import open_objects
from rlds_cli.settings import Settings
from rlds_cli.store import files as store_files

DATASET, INDEX, HASHES, ADDRESSES = "dataset", "index.json", "hashes", "addresses.json"
MARK = store_files.REMOTE
_EDGES = 32  # object blocks of which a part was used, kept in memory
_RANGE = 8  # blocks of a request
_AT_ONCE = 16  # requests for small files
_MOST_ADDRESSES = 20  # that are kept
_DIGITS = 24


@dataclass(frozen=True, slots=True)
class Pinned:
    """An index and the hashes of its blocks."""

    index: Index
    hashes: bytes

    @property
    def name(self) -> str:
        """Name of the directory."""
        i = self.index
        rest = i.manifest if i.generation is None else hashlib.sha256(i.to_bytes()).hexdigest()
        return f"{i.fingerprint.partition(':')[2][:_DIGITS]}-{rest[:16]}"


class Connection:
    """The store at an address, for one process: a process that was forked opens another one."""

    def __init__(self, address: Address, where: Settings, timeout: float | None) -> None:
        self.address, self._where, self._timeout = address, where, timeout
        self._lock = threading.Lock()
        self._opened: tuple[int, Objects] | None = None
        _connections.add(self)

    def __call__(self) -> Objects:
        """Return the store; raises Offline and MissingPackage."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), open_objects(self.address, self._where, policy=policy(self._timeout))
            return self._opened[1]

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


def policy(timeout: float | None) -> RetryPolicy:
    """Return the limits of retries for the seconds that a user waits."""
    if timeout is None:
        return POLICY
    return replace(
        POLICY,
        idle=min(POLICY.idle, timeout),
        read=min(POLICY.read, timeout),
        connect=min(POLICY.connect, timeout),
        asked=min(POLICY.asked, timeout),
    )


class Content(ABC):
    """The files of a dataset at an address.

    Parameters
    ----------
    connection : Connection
    index : Index
    root : Path
        Directory for its small files.
    stats : Stats
        Counts requests and bytes.

    Attributes
    ----------
    path : Path
        Directory with the small files that are here.
    """

    def __init__(self, connection: Connection, index: Index, root: Path, stats: Stats) -> None:
        self.connection, self.index, self.stats = connection, index, stats
        self.path = root / DATASET
        self._files = {f.path: f for f in index.files}
        self._sorted = sorted(self._files)
        self._there: set[str] = set()
        self._lock = threading.Lock()
        _contents.add(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def address(self) -> Address:
        """The address."""
        return self.connection.address

    def file(self, path: str) -> File:
        """Return a file of the index; raises DamagedDataset."""
        found = self._files.get(path)
        if found is None:
            raise DamagedDataset(f"{self.address} has no {path}.", hint="rlds verify ID where it was pushed from")
        return found

    def below(self, prefix: str) -> list[File]:
        """Return the files of which ``prefix`` is the path or the beginning; it ends in ``/`` or names a file."""
        first = bisect_right(self._sorted, prefix) - (prefix in self._files)
        found = []
        for path in self._sorted[first:]:
            if not path.startswith(prefix):
                break
            found.append(self._files[path])
        return found

    # -- small files

    def need(self, *prefixes: str) -> None:
        """Have small files here whose paths begin so.

        Raises
        ------
        DownloadFailed, WrongHash, Offline, NoSpace
        """
        wanted = [f for prefix in prefixes for f in self.below(prefix) if f.path not in self._there]
        missing = [f for f in wanted if not self._is_here(f)]
        if missing:
            self._bring(missing)
        self._there.update(f.path for f in wanted)

    def size(self, prefix: str) -> int:
        """Return the bytes at the address of the files whose paths begin so."""
        return sum(p.length for f in self.below(prefix) for p in f.pieces)

    @abstractmethod
    def _is_here(self, file: File) -> bool: ...

    @abstractmethod
    def _bring(self, files: list[File]) -> None: ...

    @abstractmethod
    def read(self, path: str, start: int, length: int, take: Take) -> None:
        """Give bytes [start, start + length) of a file to ``take``, checked, in order; zeros where it has a hole.

        Raises
        ------
        DownloadFailed, WrongHash, Offline
        """

    @abstractmethod
    def is_right(self, path: str, start: int, data: memoryview) -> bool:
        """Return whether data is a part of a file, as far as the hashes of whole blocks tell: else False."""


class RemoteContent(Content):
    """The files of a dataset that was pushed, checked by the hashes of its blocks."""

    def __init__(self, connection: Connection, pinned: Pinned, root: Path, stats: Stats) -> None:
        super().__init__(connection, pinned.index, root, stats)
        self._hashes = BlockHashes(pinned.hashes, [o.size for o in pinned.index.objects])
        self._edges: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def _is_here(self, file: File) -> bool:
        try:
            return (self.path / file.path).lstat().st_size == file.size
        except OSError:
            return False

    def _bring(self, files: list[File]) -> None:
        blocks = {(p.object, b) for f in files for p in f.pieces for b in range(*_blocks(p))}
        with self._lock:
            got = {key: self._edges[key] for key in blocks if key in self._edges}
        runs = _runs(sorted(blocks - got.keys()))

        def fetch(run: tuple[int, int, int]) -> None:
            number, first, count = run
            at = first

            def take(data: Chunk) -> None:
                nonlocal at
                got[number, at] = bytes(data)
                at += 1

            self._fetch_blocks(number, first, count, take)

        if len(runs) == 1:
            fetch(runs[0])
        elif runs:
            with ThreadPoolExecutor(min(_AT_ONCE, len(runs)), "rlds-files") as pool:
                list(pool.map(fetch, runs))
        for f in files:
            self._write(f, got)
        for key in sorted(got)[-_EDGES:]:
            self._keep(key, got[key])

    def _write(self, file: File, got: dict[tuple[int, int], bytes]) -> None:
        content = bytearray(file.size)
        for p in file.pieces:
            at = p.at
            for b in range(*_blocks(p)):
                start = b * BLOCK
                part = got[p.object, b][max(0, p.offset - start) : p.offset + p.length - start]
                content[at : at + len(part)] = part
                at += len(part)
        path = self.path / file.path
        try:
            safe_files.directory(path.parent, self.path.parent)
            with safe_files.replacing(path) as out:
                out.write(content)
        except OSError as e:
            raise disk.disk_error(e, path, kept="What is here stays.") from e

    # -- blocks

    def read(self, path: str, start: int, length: int, take: Take) -> None:
        """Give bytes [start, start + length) of a file to ``take``, checked, in order; zeros where it has a hole.

        Raises
        ------
        DownloadFailed, WrongHash, Offline
        """
        at, end = start, start + length
        pieces = self.file(path).pieces
        k = max(0, bisect_right(pieces, at, key=lambda p: p.at) - 1)
        for p in pieces[k:]:
            if p.at >= end:
                break
            a, b = max(at, p.at), min(end, p.at + p.length)
            if a < b:
                _zeros(a - at, take)
                self._span(p.object, p.offset + a - p.at, b - a, take)
                at = b
        _zeros(end - at, take)

    def _span(self, number: int, offset: int, length: int, take: Take) -> None:
        """Give bytes of an object to ``take``; blocks of which a part is used are kept for a while."""
        end = offset + length
        first, last = offset // BLOCK, (end - 1) // BLOCK

        def give(block: int, data: Chunk) -> None:
            start = block * BLOCK
            if start < offset or start + len(data) > end:
                self._keep((number, block), bytes(data))
            take(memoryview(data)[max(0, offset - start) : end - start])

        block = first
        while block <= last:
            with self._lock:
                kept = self._edges.get((number, block))
            if kept is not None:
                give(block, kept)
                block += 1
                continue
            with self._lock:
                stop = next((b for b in range(block + 1, last + 1) if (number, b) in self._edges), last + 1)
            at = block

            def each(data: Chunk) -> None:
                nonlocal at
                give(at, data)
                at += 1

            self._fetch_blocks(number, block, stop - block, each)
            block = stop

    def _keep(self, key: tuple[int, int], data: bytes) -> None:
        with self._lock:
            self._edges[key] = data
            self._edges.move_to_end(key)
            while len(self._edges) > _EDGES:
                self._edges.popitem(last=False)

    def _fetch_blocks(self, number: int, first: int, count: int, take: Callable[[Chunk], None]) -> None:
        """Give whole blocks of an object to ``take``, each checked."""
        objects, o = self.connection(), self.index.objects[number]
        at, end = first * BLOCK, min((first + count) * BLOCK, o.size)
        buffer, wrong = bytearray(), 0

        def arrive(chunk: Chunk) -> None:
            nonlocal at
            self.stats.add(fetched=len(chunk))
            buffer.extend(chunk)
            while len(buffer) >= (size := min(BLOCK, end - at)) and size:
                block = bytes(memoryview(buffer)[:size])
                if not self._hashes.is_right(number, at // BLOCK, block):
                    raise _WrongBlock
                take(block)
                at += size
                del buffer[:size]

        while at < end:
            before = at
            buffer.clear()
            self.stats.add(requests=1)
            try:
                objects.fetch(o.name, at, end - at, arrive)
            except _WrongBlock:
                wrong = wrong + 1 if at == before else 1
                if wrong == ATTEMPTS:
                    self._check_unchanged(None)
                    raise wrong_block(objects, self.index, number, at // BLOCK) from None
            except DownloadFailed as e:
                self._check_unchanged(e)
                raise

    def _check_unchanged(self, e: RldsError | None) -> None:
        """Raise DownloadFailed if the address holds other content by now: objects of ours may have been removed."""
        now = None
        with suppress(RldsError):
            now, _ = expect_index(self.connection())
        if now is not None and now.fingerprint != self.index.fingerprint:
            then, why = short(self.index.fingerprint), "" if e is None else f" ({e.message.rstrip('.')})"
            raise _Changed(
                f"{self.address} has other content since it was opened: {then} then, {short(now.fingerprint)} now. "
                f"What it had is no longer there{why}.",
                hint="open it again; blocks that are here already stay readable",
            ) from e

    def is_right(self, path: str, start: int, data: memoryview) -> bool:
        """Return whether data is a part of a file, as far as the hashes of whole blocks tell: else False."""
        pieces, end = self.file(path).pieces, start + len(data)
        k = bisect_right(pieces, start, key=lambda p: p.at) - 1
        if k < 0 or pieces[k].at + pieces[k].length < end:
            return False
        p = pieces[k]
        offset = p.offset + start - p.at
        size = self.index.objects[p.object].size
        whole = offset % BLOCK == 0 and (len(data) == BLOCK or offset + len(data) == size) and len(data) <= BLOCK
        return whole and self._hashes.is_right(p.object, offset // BLOCK, data)


class _Changed(DownloadFailed):
    """The address has other content."""


class _WrongBlock(Exception):
    """A block does not have its hash."""


def _blocks(p: Piece) -> tuple[int, int]:
    """Return the blocks [first, stop) of its object that hold a piece."""
    return p.offset // BLOCK, (p.offset + p.length - 1) // BLOCK + 1


def _runs(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return runs of adjacent blocks as (object, first, count)."""
    runs: list[tuple[int, int, int]] = []
    for number, block in blocks:
        if runs and runs[-1][0] == number and runs[-1][1] + runs[-1][2] == block and runs[-1][2] < _RANGE:
            runs[-1] = (number, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((number, block, 1))
    return runs


def _zeros(count: int, take: Take) -> None:
    while count > 0:
        part = min(count, BLOCK)
        take(bytes(part))
        count -= part


def temporary_root() -> Path:
    """Return a new directory for the small files of a dataset without a cache; it ends with this process."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="rlds-", dir=shared if os.access(shared, os.W_OK) else None))


def remove_with(owner: object, root: Path) -> None:
    """Remove a temporary directory with its owner, in the process that made it."""
    weakref.finalize(owner, _remove, root, os.getpid())


def _remove(root: Path, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(root, ignore_errors=True)


_contents: weakref.WeakSet[Content] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for content in _contents:
        content._after_fork()
    for connection in _connections:
        connection._after_fork()


os.register_at_fork(after_in_child=_after_fork)
