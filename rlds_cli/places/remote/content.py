"""The files of a pushed dataset as one process sees them: pinned, checked, and fetched when they are needed.

::

    <home>/remote/<name>/index.json      the index that was seen
    <home>/remote/<name>/hashes          the hashes of its groups of blocks
    <home>/remote/<name>/lists           those of single blocks, as far as they were needed: see `lists`
    <home>/remote/<name>/addresses.json  where it was seen
    <home>/remote/<name>/dataset/        small files, whole: manifest and episode table when the dataset is opened
    <home>/remote/<name>/rows/           files of rows, by blocks: see `presence`

The name holds a hash of the whole index, which names the hashes that prove each block. Fingerprint and manifest alone
are what an address claims: with them in the name, blocks of a stranger's address were used for the genuine one. Objects
are named by their content: what was seen first is read as long as its objects exist, whatever is pushed meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO

from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.hashing import short
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DamagedDataset, DownloadFailed, RldsError, WrongHash
from rlds_cli.places.remote.blocks import BLOCK, GROUP, HASH, hashes_of_blocks
from rlds_cli.places.remote.cache import TIMEOUT
from rlds_cli.places.remote.fetching import Take, TransferStats
from rlds_cli.places.remote.index import Index, IndexedFile
from rlds_cli.places.remote.limits import SmallFiles, groups
from rlds_cli.places.remote.lists import BlockLists
from rlds_cli.places.remote.reading import PushedDataset, group_hashes
from rlds_cli.places.remote.reuse import SharedBlocks
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import POLICY, Objects
from rlds_cli.places.sources.opening import open_objects
from rlds_cli.places.sources.place import Chunk
from rlds_cli.places.sources.transfer import Units

DATASET, INDEX, LISTS = "dataset", "index.json", "lists"
_EDGES = 512  # blocks of objects of which a part was used, kept in memory
_RANGE = 2 << 20  # bytes of a request
_AT_ONCE = 16  # requests for small files
_TOGETHER, _LARGE = 16 << 20, 64 << 20  # bytes of groups that are fetched together; of a file that is read in order
_SIDE_BY_SIDE = 3  # of these: one is written while others arrive
_DIGITS, _PROVED = 24, 32  # of fingerprint and index in a name
_SHARE = 0.9  # of the time-out of a read, after which a request is given up: the error then says why
_NO_LIMIT = 1 << 30
_GONE = (404, 410)  # statuses


@dataclass(frozen=True)
class Pinned:
    """An index and the hashes of its groups of blocks."""

    index: Index
    hashes: bytes | memoryview

    @cached_property
    def name(self) -> str:
        """Name of the directory: no other index has it, so no other blocks are in it."""
        return f"{self.index.fingerprint.partition(':')[2][:_DIGITS]}-{self.index.sha256[:_PROVED]}"


class Connection:
    """The store at an address, for one process: a process that was forked opens another one."""

    def __init__(self, address: Address, where: Settings, timeout: float | None) -> None:
        self.address, self._where, self._timeout = address, where, timeout
        self._lock = threading.Lock()
        self._policy = policy(timeout)
        self._opened: tuple[int, Objects] | None = None
        _connections.add(self)

    def __call__(self) -> Objects:
        """Return the store; raises Offline and MissingPackage."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), open_objects(self.address, self._where, policy=self._policy)
            return self._opened[1]

    def wait_longer(self) -> None:
        """Try again for as long as a read waits: it is known by now that the address has the dataset."""
        idle = _SHARE * (TIMEOUT if self._timeout is None else self._timeout)
        self._policy = replace(self._policy, attempts=_NO_LIMIT, idle=idle)
        with self._lock:
            if self._opened is not None:
                self._opened[1].client.policy = self._policy

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


class RemoteContent:
    """The files of a dataset that was pushed, checked by the hashes of its blocks.

    Parameters
    ----------
    connection : Connection
    pinned : Pinned
    root : Path
        Directory for its small files.
    stats : TransferStats
        Counts requests and bytes.
    shared : sequence of Path
        Directories of remote datasets, whose blocks are used where they are those of this one.

    Attributes
    ----------
    path : Path
        Directory with the small files that are cached.
    """

    def __init__(
        self, connection: Connection, pinned: Pinned, root: Path, stats: TransferStats, *, shared: Sequence[Path]
    ) -> None:
        self.connection, self.index, self.stats = connection, pinned.index, stats
        self.path = root / DATASET
        self._files = {f.path: f for f in pinned.index.files}
        self._sorted = sorted(self._files)
        self._there: set[str] = set()
        self._lock = threading.Lock()
        self._hashes = group_hashes(pinned.index, pinned.hashes)
        self._lists = BlockLists(
            root / LISTS,
            pinned.index,
            self._hashes,
            connection,
            lambda size: stats.add(requests=1, fetched=size),
        )
        self._small = SmallFiles(pinned.index, str(connection.address))
        self._shared = SharedBlocks(shared, root, pinned.index, INDEX)
        self._edges: OrderedDict[tuple[int, int], Chunk] = OrderedDict()
        _contents.add(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._lists.after_fork()
        self._shared.after_fork()

    @property
    def address(self) -> Address:
        """The address."""
        return self.connection.address

    def file(self, path: str) -> IndexedFile:
        """Return a file of the index; raises DamagedDataset."""
        found = self._files.get(path)
        if found is None:
            raise DamagedDataset(f"{self.address} has no {path}.", hint="rlds verify ID where it was pushed from")
        return found

    def below(self, prefix: str) -> list[IndexedFile]:
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

    def need_one(self, path: str) -> None:
        """Have a small file here, by its blocks alone: others beside it are not read. Raises as `need`."""
        file = self.file(path)
        if path not in self._there and not self._is_here(file):
            self._small.admit([file], self.path)
            self._save(file, partial(self._copy, file))
        self._there.add(path)

    def size(self, prefix: str) -> int:
        """Return the bytes at the address of the files whose paths begin so."""
        return sum(p.length for f in self.below(prefix) for p in f.pieces)

    def _is_here(self, file: IndexedFile) -> bool:
        try:
            return (self.path / file.path).lstat().st_size == file.size
        except OSError:
            return False

    def _bring(self, files: list[IndexedFile]) -> None:
        """Fetch small files and write them, some MiB of them at a time, and a few times that at once."""
        self._small.admit(files, self.path)
        work: list[Callable[[], None]] = []
        some: list[IndexedFile] = []
        wanted: set[tuple[int, int]] = set()
        for f in files:
            if f.size > _LARGE:
                work.append(partial(self._save, f, partial(self._copy, f)))
                continue
            more = {(p.object, g) for p in f.pieces for g in range(*groups(p))}
            if some and len(wanted | more) * GROUP > _TOGETHER:
                work.append(partial(self._bring_some, some, wanted))
                some, wanted = [], set()
            some.append(f)
            wanted |= more
        work.append(partial(self._bring_some, some, wanted))
        _all_of(work, _SIDE_BY_SIDE)

    def _copy(self, file: IndexedFile, out: BinaryIO) -> None:
        self.read(file.path, 0, file.size, out.write)

    def _bring_some(self, files: list[IndexedFile], wanted: set[tuple[int, int]]) -> None:
        """Fetch the groups that hold files, all at once, and write the files."""
        got: dict[tuple[int, int], Chunk] = {}
        with self._lock:
            for number, group in wanted:
                blocks = [self._edges.get((number, b)) for b in self._blocks_in(number, group)]
                if None not in blocks:
                    got[number, group] = b"".join(blocks)  # type: ignore[arg-type]
        runs = _runs(sorted(wanted - got.keys()))

        def fetch(run: tuple[int, int, int]) -> None:
            number, first, count = run

            def take(at: int, data: Chunk) -> None:
                got[number, at // GROUP] = bytes(data)

            self._fetch(number, first * GROUP, min((first + count) * GROUP, self._size(number)), take)

        _all_of([partial(fetch, run) for run in runs], _AT_ONCE)
        for f in files:
            self._save(f, partial(self._write, f, got))
        for number, group in sorted(got)[-_EDGES * BLOCK // GROUP :]:
            self._keep(number, group * GROUP, got[number, group])

    def _blocks_in(self, number: int, group: int) -> range:
        first = group * GROUP
        return range(first // BLOCK, (min(first + GROUP, self._size(number)) - 1) // BLOCK + 1)

    def _size(self, number: int) -> int:
        return self.index.objects[number].size

    def _write(self, file: IndexedFile, got: Mapping[tuple[int, int], Chunk], out: BinaryIO) -> None:
        out.truncate(file.size)
        for p in file.pieces:
            out.seek(p.at)
            for g in range(*groups(p)):
                start = g * GROUP
                out.write(got[p.object, g][max(0, p.offset - start) : p.offset + p.length - start])

    def _save(self, file: IndexedFile, write: Callable[[BinaryIO], object]) -> None:
        """Write a small file in one step."""
        path = self.path / file.path
        try:
            safe_files.directory(path.parent, self.path.parent)
            with safe_files.replacing(path) as out:
                write(out)
        except OSError as e:
            raise disk.disk_error(e, path, kept="What is cached stays.") from e

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
        block, stop = offset // BLOCK, (end - 1) // BLOCK + 1
        while block < stop:
            with self._lock:
                kept = self._edges.get((number, block))
                last = next((b for b in range(block + 1, stop) if (number, b) in self._edges), stop)
            if kept is not None:
                at = block * BLOCK
                take(memoryview(kept)[max(0, offset - at) : end - at])
                block += 1
            else:
                self._run(number, max(offset, block * BLOCK), min(end, last * BLOCK), take)
                block = last

    def _run(self, number: int, offset: int, end: int, take: Take) -> None:
        """Fetch the blocks that hold a range, and give the range to ``take``."""

        def give(at: int, data: Chunk) -> None:
            if at < offset or at + len(data) > end:
                self._keep(number, at, data)
            take(memoryview(data)[max(0, offset - at) : end - at])

        self._fetch(number, offset // BLOCK * BLOCK, min(-(-end // BLOCK) * BLOCK, self._size(number)), give)

    def _keep(self, number: int, start: int, data: Chunk) -> None:
        """Keep blocks of an object in memory."""
        with self._lock:
            for at in range(0, len(data), BLOCK):
                key = number, (start + at) // BLOCK
                self._edges[key] = bytes(data[at : at + BLOCK])
                self._edges.move_to_end(key)
            while len(self._edges) > _EDGES:
                self._edges.popitem(last=False)

    def _fetch(self, number: int, start: int, end: int, take: Callable[[int, Chunk], None]) -> None:
        """Give blocks of an object, from ``start`` to ``end``, to ``take`` with their places, each checked.

        They come in groups as far as these are whole; from other datasets of the home where these have them.
        """
        o, lists = self.index.objects[number], self._lists_for(number, start, end)
        missing = at = start
        while at < end:
            group = at // GROUP
            size = min(BLOCK if group in lists else GROUP, end - at)
            data = self._shared.read(o.sha256, at, size)
            if data is not None and self._is_right(number, at, data, lists.get(group)):
                self._ask(number, missing, at, lists, take)
                take(at, data)
                missing = at + size
            at += size
        self._ask(number, missing, end, lists, take)

    def _ask(
        self, number: int, start: int, end: int, lists: dict[int, bytes], take: Callable[[int, Chunk], None]
    ) -> None:
        """Fetch blocks as `_fetch` gives them from the store; ``lists`` are those of groups that come in parts."""
        if start == end:
            return
        o = self.index.objects[number]

        def arrive(at: int, data: Chunk) -> None:
            self.stats.add(fetched=len(data))
            take(at, data)

        self.stats.add(requests=1)
        try:
            units = Units(
                start,
                end,
                unit=lambda at: GROUP - at % GROUP,  # what is asked for of a group is hashed in one call
                is_right=lambda at, data: self._is_right(number, at, data, lists.get(at // GROUP)),
                take=arrive,
                base=o.at,
                size=o.file_size,
            )
            self.connection().bring(o.name, units)
        except WrongHash:
            self._check_unchanged(None)
            raise
        except DownloadFailed as e:
            self._explain(e)
            raise

    def _lists_for(self, number: int, start: int, end: int) -> dict[int, bytes]:
        """Return the hashes of the blocks of the groups that a range of an object holds in part."""
        first, last = start // GROUP, (end - 1) // GROUP
        parts = {first} if start % GROUP else set()
        parts |= {last} if end < min((last + 1) * GROUP, self._size(number)) else set()
        try:
            return {group: self._lists.of(number, group) for group in parts}
        except DownloadFailed as e:
            self._explain(e)
            raise

    def _is_right(self, number: int, at: int, data: Chunk, blocks: bytes | None) -> bool:
        """Return whether data is a group of an object, or some of the group's blocks, whose hashes are given."""
        group, found = at // GROUP, hashes_of_blocks(data)
        if blocks is not None:
            first = at % GROUP // BLOCK * HASH
            return found == blocks[first : first + len(found)]
        right = self._hashes.is_list(number, group, found)
        if right:
            self._lists.keep(number, group, found)
        return right

    def _explain(self, e: DownloadFailed) -> None:
        """Say what to do about an object that is gone."""
        if getattr(e.__cause__, "status", 0) in _GONE:
            self._check_unchanged(e)
            e.hint = self.connection().push_again

    def _check_unchanged(self, e: RldsError | None) -> None:
        """Raise DownloadFailed if the version is not at the address any more: objects of it may have been removed."""
        now = None
        with suppress(RldsError):
            now = PushedDataset(self.connection()).find_versions()
        if now is not None and not any(v.index == self.index.sha256 for v in now[0].versions):
            then, why = short(self.index.fingerprint), "" if e is None else f" ({e.message.rstrip('.')})"
            raise DownloadFailed(
                f"{self.address} has no version {self.index.version:,} ({then}) any more since it was opened: "
                f"it was removed there{why}.",
                hint="open it again; cached blocks stay readable",
            ) from e

    def is_right(self, path: str, start: int, data: memoryview) -> bool:
        """Return whether data is a block of a file, as far as hashes of single blocks tell: else False."""
        pieces, end = self.file(path).pieces, start + len(data)
        k = bisect_right(pieces, start, key=lambda p: p.at) - 1
        if k < 0 or pieces[k].at + pieces[k].length < end:
            return False
        p = pieces[k]
        offset = p.offset + start - p.at
        o = self.index.objects[p.object]
        if offset % BLOCK or not (len(data) == BLOCK or offset + len(data) == o.size):
            return False
        try:
            return self._is_right(p.object, offset, data, self._lists.of(p.object, offset // GROUP))
        except RldsError:
            return False


def _all_of(work: Sequence[Callable[[], None]], at_once: int) -> None:
    """Do some work, a few pieces at once; raise the first error."""
    if len(work) == 1:
        work[0]()
    elif work:
        with ThreadPoolExecutor(min(at_once, len(work)), "rlds-files") as pool:
            list(pool.map(lambda act: act(), work))


def _runs(groups: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return runs of adjacent groups as (object, first, count)."""
    runs: list[tuple[int, int, int]] = []
    for number, group in groups:
        last = runs[-1] if runs else (-1, 0, 0)
        if last[0] == number and last[1] + last[2] == group and last[2] * GROUP < _RANGE:
            runs[-1] = (number, last[1], last[2] + 1)
        else:
            runs.append((number, group, 1))
    return runs


def _zeros(count: int, take: Take) -> None:
    while count > 0:
        part = min(count, GROUP)
        take(bytes(part))
        count -= part


def temporary_root() -> Path:
    """Return a new directory for the small files of a dataset without a cache; it ends with this process.

    Those that killed processes left are removed.
    """
    shared = Path("/dev/shm")
    top = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    for left in top.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if left.lstat().st_uid == os.getuid() and _is_free(left):
                shutil.rmtree(left, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=top))
    _locks[root] = descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # for as long as a process has it open, forked ones included
    return root


def _is_free(root: Path) -> bool:
    """Return whether no process uses a temporary directory; one that was just made is not locked yet."""
    if time.time() - root.lstat().st_mtime < _NEW:
        return False
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_with(owner: object, root: Path) -> None:
    """Remove a temporary directory with its owner, in the process that made it."""
    weakref.finalize(owner, _remove, root, os.getpid())


def _remove(root: Path, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(root, ignore_errors=True)
        os.close(_locks.pop(root))


_TEMPORARY = "rlds-memory-"
_NEW = 60.0  # seconds
_locks: dict[Path, int] = {}  # descriptors of temporary directories
_contents: weakref.WeakSet[RemoteContent] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for content in _contents:
        content._after_fork()
    for connection in _connections:
        connection._after_fork()


os.register_at_fork(after_in_child=_after_fork)
