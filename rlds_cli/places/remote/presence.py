"""Presence of the blocks of remote datasets: maps of blocks, pins of processes, and room for blocks in a home.

::

    <home>/remote/room.lock            flock: shared to pin blocks, exclusive to evict some or to take room for them
    <home>/remote/<name>/lease         while a process has it, the directory stays: see `leases`
    <home>/remote/<name>/map           which blocks are cached, and when each was last pinned; mapped by all processes
    <home>/remote/<name>/pins          a slot for each process: how many holds it has on each block
    <home>/remote/<name>/fetching      empty: an OFD lock on byte b while a process fetches block b
    <home>/remote/<name>/rows/<file>   files of rows at their full length, sparse

A process pins blocks first, under the shared lock, and then looks whether they are cached. Whoever evicts has the
exclusive lock: it reads the pins of all live processes, notes that its victims are gone, and only then punches holes.
So a block that is pinned and here stays. A slot belongs to the process that has a lock on it; the system ends that lock
with the process, and thus its pins.

A block is 64 KiB of a file, or 4 KiB of the videos of `remote.published`. The map says of each: ``state``, 1 if it was
fetched and checked; ``taken``, 1 if the disk may hold bytes of it; and of each group of 16, ``used``: the time of the
last use of one of them. The state is set after the bytes are written, so a process that is killed between leaves a
block that is taken and not here: its bytes are checked before it is fetched again. So are all blocks after a restart of
the machine, which may have lost bytes and kept the map.

The map and the slots are written through maps, so the disk has room for all of them before they are used: where it is
full, that would end the process (SIGBUS). Rows are written by ``pwrite``. With ``cache=0`` all of these files are
anonymous memory.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import flock
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DamagedDataset, NoSpace, RldsError
from rlds_cli.places.remote import leases
from rlds_cli.places.remote.blocks import BLOCK as BLOCK
from rlds_cli.places.remote.blocks import GROUP as GROUP
from rlds_cli.places.remote.grounds import DirectoryGround, Ground, MemoryGround, is_locked, lock_bytes, punch
from rlds_cli.places.remote.leases import Descriptor, Lease

MAP, PINS, FETCHING, FILES, ROWS = "map", "pins", "fetching", "files.json", "rows"
MANY = GROUP // BLOCK  # blocks of a group
_MAGIC = b"rldsmap1"
_HEADER = 4096
_BOOT, _SLOTS_USED, _GONE, _TAKEN, _FIGURES = slice(8, 72), 72, 76, 80, 96  # places in the header
_SLOTS = 1024
_MOST_BLOCKS = 1 << 29  # 32 TiB of rows, as much as an index has hashes for
_MAP_BYTES, _FREE = 2.5, 8  # bytes of a map for each block; a map takes at most one part in 8 of the free disk
_COUNT = np.dtype("<u2")
_LONGEST_FILES = 64 << 20
_LOOK = 1.0  # seconds between two looks for datasets of others
_SPARE = 32  # an eviction makes room for a share of 1/32 of the limit more than is needed

Bytes = npt.NDArray[np.uint8]


# -- the map of one dataset


def name_of_rows(ground: Ground, file: int) -> str:
    """Return the name of a file of rows by its number."""
    return f"{ROWS}/{file}" if isinstance(ground, DirectoryGround) else str(file)


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file of rows: its path in the dataset, its size in bytes, and the bytes of a block of it."""

    path: str
    size: int
    block: int = BLOCK

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.size // self.block)


def block_of(files: Sequence[BlockFile]) -> int:
    """Return the bytes of a block of the files of one dataset, which is the same for all of them."""
    return files[0].block if files else BLOCK


class BlockMap:
    """The map of the blocks of one dataset; blocks are counted over all its files, in order, by whole groups.

    A file begins with a group: block ``b`` is in group ``b // MANY``, and numbers behind the last block of a file mean
    nothing. Opening it is done under the exclusive lock of the room, see `Room.open_map`. ``make`` it if it does not
    exist; else a file of another size is a ValueError.
    """

    def __init__(self, ground: Ground, files: Sequence[BlockFile], *, make: bool = True) -> None:
        self.ground, self.files = ground, tuple(files)
        self.block = block_of(self.files)
        counts = [MANY * -(-f.blocks // MANY) for f in self.files]
        self.first: IntArray = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._starts: list[int] = self.first.tolist()  # the same, for one block
        self.blocks = self._starts[-1]
        self._stop = self.first[:-1] + np.array([f.blocks for f in self.files], np.int64)
        page = mmap.PAGESIZE
        parts = [_HEADER, -(-self.blocks // page) * page, -(-self.blocks // page) * page, 8 * self.blocks // MANY]
        descriptor = ground.open(MAP)
        try:
            if make:
                ground.allocate(descriptor, 0, sum(parts))  # it gets its size by that
                if os.fstat(descriptor).st_size < sum(parts):  # of memory
                    os.truncate(descriptor, sum(parts))
            self._map = mmap.mmap(descriptor, sum(parts))
        except BaseException:
            os.close(descriptor)
            raise
        self._file = Descriptor(descriptor)  # its flock, shared, says that a process has begun with the map
        self.state: Bytes = np.frombuffer(self._map, np.uint8, self.blocks, parts[0])
        self.taken: Bytes = np.frombuffer(self._map, np.uint8, self.blocks, sum(parts[:2]))
        self.used: npt.NDArray[np.float64] = np.frombuffer(self._map, "<f8", self.blocks // MANY, sum(parts[:3]))
        self._taken = np.frombuffer(self._map, "<i8", 1, _TAKEN)
        self._figures = np.frombuffer(self._map, "<f8", 2, _FIGURES)  # bytes that arrived, seconds of waiting
        self.stride = max(1, -(-self.blocks * _COUNT.itemsize // page)) * page

    # -- its header

    def begin(self) -> None:
        """Prepare a map that is opened: a new one, or one from before a restart of the machine.

        Raises
        ------
        DamagedDataset
            The file is something else, or a process of another machine uses it.
        """
        this = disk.boot_id().ljust(64)
        if self._map[:8] == bytes(8):
            self._map[_BOOT] = this
            self._map[:8] = _MAGIC
        if self._map[:8] != _MAGIC:
            raise DamagedDataset(
                f"{self.ground}/{MAP} is not a map of blocks that this version of rlds reads.",
                hint="rlds gc --remote removes it, with the blocks that were fetched",
            )
        if self._map[_BOOT] != this:
            try:
                fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise leases.used_elsewhere(self.ground) from None
            self.state[:] = 0
            self.count()
            self._map[_BOOT] = this
        fcntl.flock(self._file.number, fcntl.LOCK_SH)

    @property
    def gone(self) -> bool:
        """True once the files of rows have become those of an ordinary dataset, of which no block leaves."""
        return bool(self._map[_GONE])

    def leave(self) -> None:
        """Note that the files of rows belong to an ordinary dataset now."""
        self._map[_GONE] = 1

    @property
    def total(self) -> int:
        """Blocks whose bytes the disk may hold; more after a kill, until they are counted again."""
        return int(self._taken[0])

    @property
    def bytes(self) -> int:
        """Bytes of these blocks, the last one of a file counted as a whole one."""
        return self.total * self.block

    @property
    def figures(self) -> tuple[float, float]:
        """Bytes that arrived, and seconds for which readers waited; of all processes, since there is this map."""
        return float(self._figures[0]), float(self._figures[1])

    def note(self, *, arrived: int = 0, waited: float = 0.0) -> None:
        """Add to `figures`. Processes that add at the same moment may lose an addition: bars show them."""
        self._figures += (arrived, waited)

    def take(self, blocks: IntArray) -> None:
        """Note that the disk may hold bytes of blocks; under the exclusive lock of the room."""
        self._taken[0] += np.count_nonzero(self.taken[blocks] == 0)
        self.taken[blocks] = 1

    def count(self) -> None:
        """Count the blocks that are taken; under the exclusive lock of the room."""
        self._taken[0] = np.count_nonzero(self.taken)

    @property
    def _slots(self) -> int:
        return int.from_bytes(self._map[_SLOTS_USED : _SLOTS_USED + 4], "little")

    # -- places

    def place(self, block: int) -> tuple[int, int, int]:
        """Return file, first byte in it and length of a block."""
        file = bisect_right(self._starts, block) - 1
        start = (block - self._starts[file]) * self.block
        return file, start, min(self.block, self.files[file].size - start)

    def exists(self, blocks: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of some numbers [n] are those of blocks."""
        found: npt.NDArray[np.bool_] = blocks < self._stop[np.searchsorted(self.first, blocks, "right") - 1]
        return found

    def open_rows(self, file: int) -> int:
        """Return a new descriptor of a file of rows."""
        if self.gone and isinstance(self.ground, DirectoryGround):  # it has two names, and is only read
            return safe_files.open_shared(self.ground.root / name_of_rows(self.ground, file), os.O_RDONLY)
        return self.ground.open(name_of_rows(self.ground, file))

    # -- pins

    def live_pins(self) -> Bytes:
        """Return the blocks [blocks] that a live process has pinned; under the exclusive lock of the room."""
        pinned = np.zeros(self.blocks, bool)
        descriptor = self.ground.open(PINS)
        try:
            for slot in range(self._slots):
                if is_locked(descriptor, slot, 1):
                    counts = os.pread(descriptor, self.blocks * _COUNT.itemsize, slot * self.stride)
                    pinned |= np.frombuffer(counts, _COUNT) > 0
        finally:
            os.close(descriptor)
        return pinned.view(np.uint8)

    def take_slot(self) -> PinSlot:
        """Return a slot for this process; under the exclusive lock of the room."""
        descriptor = self.ground.open(PINS, _SLOTS * self.stride)
        for slot in range(_SLOTS):
            if lock_bytes(descriptor, slot, 1):
                try:
                    self.ground.allocate(descriptor, slot * self.stride, self.stride)
                except OSError as e:
                    os.close(descriptor)
                    raise _no_room(e, self.ground, PINS) from e
                if slot >= self._slots:
                    self._map[_SLOTS_USED : _SLOTS_USED + 4] = (slot + 1).to_bytes(4, "little")
                return PinSlot(self, descriptor, slot)
        os.close(descriptor)
        raise RldsError(f"{_SLOTS:,} processes read the dataset in {self.ground}; no more can.")


class PinSlot:
    """The pins of this process."""

    def __init__(self, of: BlockMap, descriptor: int, slot: int) -> None:
        self._file = Descriptor(descriptor)  # has the lock, unless a parent has
        mapped = of.ground.open(PINS)  # a map keeps its descriptor, and its locks, beyond its close
        try:
            self._map = mmap.mmap(mapped, of.stride, offset=slot * of.stride)
            self.counts: npt.NDArray[np.uint16] = np.frombuffer(self._map, _COUNT, of.blocks)
            if self.counts.any():
                self.counts[:] = 0  # what an earlier process left; a hole would have to be given room again
        finally:
            os.close(mapped)


# -- the room of a home


class Room:
    """The room that the blocks of all remote datasets of a home share: at most ``limit`` bytes; None for no limit.

    Parameters
    ----------
    root : Path or None
        ``<home>/remote``; None for one dataset in memory.
    limit : int, optional
    """

    def __init__(self, root: Path | None, limit: int | None) -> None:
        self.root, self.limit = root, limit
        self._memory: dict[str, MemoryGround] = {}
        self._mutex = threading.RLock()
        self._own: weakref.WeakSet[BlockMap] = weakref.WeakSet()
        self._others: dict[str, tuple[tuple[int, int], BlockMap]] = {}
        self._looked = -math.inf
        self._lock: Descriptor | None = None
        self._lock_path = Path(leases.LOCK) if root is None else root / leases.LOCK
        self._process = 0
        if root is not None:
            safe_files.directory(root, root.parent)

    def _ground(self, name: str) -> Ground:
        """Return the place of a dataset's files, made if it is not there, and leased; under the exclusive lock."""
        if self.root is None:
            return self._memory.setdefault(name, MemoryGround())
        leased = DirectoryGround(self.root / name, Lease(self.root / name))
        safe_files.directory(leased.root / ROWS, self.root)
        return leased

    def open_map(self, name: str, files: Sequence[BlockFile]) -> BlockMap:
        """Open the map of the dataset of a name in this room, with its files of rows at their full length."""
        with self.locked():
            ground = self._ground(name)
            _check_size(ground, files)
            if isinstance(ground, DirectoryGround):
                _note_files(ground, files)
            try:
                opened = BlockMap(ground, files)
                opened.begin()
                if not opened.gone:
                    for number, f in enumerate(files):
                        os.close(ground.open(name_of_rows(ground, number), f.size))
                os.close(ground.open(FETCHING))
            except OSError as e:
                raise _no_room(e, ground, MAP) from e
            self._own.add(opened)
            return opened

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock of the room."""
        with self._mutex:
            descriptor = self._descriptor()
            flock(descriptor, self._lock_path, shared=shared)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _descriptor(self) -> int:
        if self._lock is None or self._process != os.getpid():  # the lock of a parent is not ours
            if self.root is None:
                opened = self._memory.setdefault(leases.LOCK, MemoryGround()).open(leases.LOCK)
            else:
                opened = safe_files.open_shared(self._lock_path, os.O_RDWR | os.O_CREAT)
            self._lock, self._process = Descriptor(opened), os.getpid()
        return self._lock.number

    def after_fork(self) -> None:
        """Forget the lock of the parent, in a process that was forked."""
        self._mutex = threading.RLock()

    def reserve(self, of: BlockMap, blocks: IntArray) -> int:
        """Take room for blocks that are pinned and will be written; return how many others had to leave for them.

        If all others are pinned, the limit is exceeded: what is in use stays.
        """
        with self.locked():
            new = int(np.count_nonzero(of.taken[blocks] == 0))
            left = self._shrink(new * of.block) if new else 0
            of.take(blocks)
            return left

    def shrink(self, least: int = 0) -> int:
        """Let blocks leave until the limit is kept, or ``least`` bytes have left; return how many blocks did."""
        with self.locked():
            return self._shrink(0, least)

    def _shrink(self, more: int, least: int = 0) -> int:
        if self.limit is None and not least:
            return 0
        maps = self._maps()
        taken = sum(m.bytes for m in maps)
        excess = least
        if self.limit is not None and taken + more > self.limit:
            excess = max(least, taken + more + self.limit // _SPARE - self.limit)
        return _evict(self._maps(now=True), excess) if excess > 0 else 0

    def left(self) -> int | None:
        """Return the bytes that blocks can still take before others must leave; None without a limit."""
        if self.limit is None:
            return None
        with self.locked():
            return self.limit - sum(m.bytes for m in self._maps())

    def excess(self) -> int:
        """Return the bytes over the limit that the blocks of this process's own datasets take."""
        if self.limit is None:
            return 0
        return sum(m.bytes for m in list(self._own)) - self.limit

    def _maps(self, *, now: bool = False) -> list[BlockMap]:
        """Return the maps of all datasets in the room, as they were a moment ago; unreadable ones are left alone."""
        if self.root is None:
            return list(self._own)
        own = {str(m.ground): m for m in self._own}
        if now or time.monotonic() - self._looked > _LOOK:
            self._look(own)
        others = (m for path, (_, m) in self._others.items() if path not in own)
        return [m for m in (*own.values(), *others) if not m.gone]

    def _look(self, own: Container[str]) -> None:
        """Find the datasets that other processes have in this room."""
        assert self.root is not None
        self._looked, seen = time.monotonic(), set[str]()
        for directory in map(str, leases.datasets(self.root)):
            if directory in own:
                continue
            with suppress(OSError, RldsError, ValueError):
                with safe_files.reading(Path(directory, MAP)) as file:
                    status = os.fstat(file.fileno())
                    if file.read(len(_MAGIC)) != _MAGIC:
                        continue
                inode = (status.st_ino, status.st_dev)
                if directory not in self._others or self._others[directory][0] != inode:
                    self._others[directory] = (
                        inode,
                        BlockMap(DirectoryGround(Path(directory)), read_files(directory), make=False),
                    )
                seen.add(directory)
        for gone in self._others.keys() - seen:
            del self._others[gone]


def _check_size(ground: Ground, files: Sequence[BlockFile]) -> None:
    """Refuse files with more blocks than any dataset has: a stranger may have invented their sizes."""
    blocks = sum(MANY * -(-f.blocks // MANY) for f in files)
    if blocks > _MOST_BLOCKS:
        most = _MOST_BLOCKS * block_of(files)
        raise DamagedDataset(
            f"The rows take {sum(f.size for f in files):,} bytes; {most:,} at most are read at an "
            "address. Nothing was fetched of them."
        )
    size = int(_MAP_BYTES * blocks)
    if (
        isinstance(ground, DirectoryGround)
        and not (ground.root / MAP).exists()
        and size * _FREE > (have := disk.free(ground.root))
    ):
        raise NoSpace(
            f"The map of the blocks of {ground} takes {size:,} bytes, more than one in {_FREE} of the {have:,} free "
            "there. Nothing was fetched.",
            hint="free some space (rlds du, rlds gc); or cache=0, which writes nothing",
        )


def _no_room(e: OSError, ground: Ground, name: str) -> RldsError:
    """Return the error for a file of a remote dataset that cannot be made."""
    error = disk.disk_error(e, Path(str(ground), name), kept="Cached blocks stay.")
    error.hint = f"{error.hint}; cache=0 writes nothing" if error.hint else "cache=0 writes nothing"
    return error


def _evict(maps: Sequence[BlockMap], size: int) -> int:
    """Let the least recently used blocks leave that nobody has pinned, ``size`` bytes; return how many did."""
    times, places, owners = [], [], []
    maps = [of for of in maps if of.total]
    for number, of in enumerate(maps):
        free = np.flatnonzero((of.taken > 0) & (of.live_pins() == 0))
        times.append(np.where(of.state[free] > 0, of.used[free // MANY], 0.0))
        places.append(free)
        owners.append(np.full(len(free), number))
    when, where, whose = (np.concatenate(parts) if parts else np.zeros(0) for parts in (times, places, owners))
    order = np.argsort(when, kind="stable")
    sizes = np.cumsum(np.array([of.block for of in maps], np.int64)[whose[order].astype(np.int64)])
    chosen = order[: np.searchsorted(sizes, size) + 1]
    for number, of in enumerate(maps):
        victims = np.sort(where[chosen[whose[chosen] == number]]).astype(np.int64)
        of.state[victims] = 0
        _punch(of, victims)
        of.taken[victims] = 0
        of.count()
    return len(chosen)


def _punch(of: BlockMap, blocks: IntArray) -> None:
    """Give the disk back that blocks take."""
    for file in distinct(np.searchsorted(of.first, blocks, "right") - 1).tolist():
        numbers = blocks[(blocks >= of.first[file]) & (blocks < of.first[file + 1])] - of.first[file]
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
        descriptor = of.open_rows(file)
        try:
            for run in runs:
                try:
                    punch(descriptor, int(run[0]) * of.block, len(run) * of.block)
                except OSError as e:
                    raise RldsError(
                        f"Blocks cannot leave {of.ground}: {e.strerror}.",
                        hint="RLDS_HOME on a disk whose files can have holes, or open the dataset without cache=",
                    ) from e
        finally:
            os.close(descriptor)


# -- the list of the files of rows


def read_files(directory: str | Path) -> list[BlockFile]:
    """Read the list of the files of rows of a dataset; raises OSError and ValueError."""
    with safe_files.reading(Path(directory, FILES)) as file:
        found: Any = documents.loads(documents.read(file, longest=_LONGEST_FILES), longest=_LONGEST_FILES)
    try:
        block = int(found.get("block", BLOCK))
        return [BlockFile(str(path), int(size), block) for path, size in found["files"]]
    except (TypeError, KeyError) as e:
        raise ValueError("no list of files") from e


def _note_files(ground: DirectoryGround, files: Sequence[BlockFile]) -> None:
    path = ground.root / FILES
    wanted = list(files)
    try:
        if read_files(ground.root) == wanted:
            return
    except (OSError, ValueError):
        pass
    else:
        raise DamagedDataset(f"{path} lists other files of rows.", hint="rlds gc removes remote datasets")
    said: dict[str, Any] = {"files": [[f.path, f.size] for f in wanted]}
    block = block_of(wanted)
    safe_files.replace_text(path, json.dumps(said if block == BLOCK else said | {"block": block}))


def now() -> float:
    """Return the time that uses of blocks are compared by."""
    return time.time()
