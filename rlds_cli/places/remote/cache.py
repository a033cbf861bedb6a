"""Blocks of the rows of a remote dataset: fetched when they are held, and shared by the processes of a home.

`BlockFiles` is one process's view. A block is fetched once (see `fetching`), by one thread, while others wait for it.
What is announced arrives while the caller does something else; what is held is cached, and stays until the hold is
released.
"""

from __future__ import annotations

import copy
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DownloadFailed, RldsError
from rlds_cli.places.remote.fetching import BlockFetcher, Check, Source, Take, TransferStats
from rlds_cli.places.remote.filling import Filler, Filling
from rlds_cli.places.remote.flights import AHEAD, BEHIND, LONGEST_RUN, NOW, BlockRequest, Pool, runs
from rlds_cli.places.remote.grounds import DirectoryGround
from rlds_cli.places.remote.leases import Descriptor
from rlds_cli.places.remote.presence import (
    MANY,
    BlockFile,
    PinSlot,
    Room,
    name_of_rows,
    now,
)

AT_ONCE = 64  # requests
TIMEOUT = 120.0  # seconds without a block that was waited for
LARGE = 4096  # bytes of a stretch of rows, from which on single blocks are fetched
_LONGEST_POLL = 0.05  # seconds between two looks at what other flights bring
_SWEEP = 0.5  # seconds between two looks at holds that were dropped


class BlockFiles:
    """The files of rows of one remote dataset, in this process.

    Parameters
    ----------
    room : Room
        The home's room for blocks.
    name : str
        Of the dataset in the room.
    files : sequence of BlockFile
    source : callable
        See `fetching.Source`. Up to ``at_once`` threads call it.
    whole : collection of int
        Files of which ``source`` gives groups of blocks only: of these a group is fetched for each of its blocks.
    exact : bool
        Fetch no block that nobody asked for.
    check : callable, optional
        See `fetching.Check`. Without it, bytes that a killed process or a restart left are fetched again.
    at_once : int
        Requests at a time.
    timeout : float
        Seconds that a caller waits while no block of its hold arrives.
    where : str
        The address, for messages.
    counts : bool
        Count requests and bytes that arrive; False if the source does.

    Attributes
    ----------
    block, group : int
        Bytes of a block, and of a group of blocks; the last ones of a file may be shorter.
    large : int
        Bytes of a stretch of rows, from which on only its own blocks are worth fetching.
    stats : TransferStats
    map : BlockMap
    fills : bool
        Whether loaders may have blocks arrive in the background.
    """

    large = LARGE
    fills = True

    def __init__(
        self,
        room: Room,
        name: str,
        files: Sequence[BlockFile],
        source: Source,
        *,
        whole: Collection[int] = (),
        exact: bool = False,
        check: Check | None = None,
        at_once: int = AT_ONCE,
        timeout: float = TIMEOUT,
        where: str = "the store",
        stats: TransferStats | None = None,
        counts: bool = True,
    ) -> None:
        self.room, self.map = room, room.open_map(name, files)
        self.files, self.where, self.timeout = self.map.files, where, timeout
        self.block, self.group = self.map.block, MANY * self.map.block
        self.stats = stats or TransferStats()
        self._numbers = {f.path: number for number, f in enumerate(self.files)}
        self.at_once, self._whole, self._exact = at_once, frozenset(whole), exact
        self._fetcher = BlockFetcher(
            room, self.map, source, check=check, timeout=timeout, where=where, stats=self.stats, counts=counts
        )
        self._buffers: dict[int, mmap.mmap] = {}
        self._open: dict[int, Descriptor] = {}
        self._begin()
        _opened.add(self)

    def prove(self, read: Callable[[int, int, int, Take, Source], None]) -> None:
        """Have what arrives from now on given by ``read``, which is handed the source that gave it until now."""
        source = self._fetcher.source

        def proved(file: int, start: int, length: int, take: Take) -> None:
            read(file, start, length, take, source)

        self._fetcher.source = proved

    def _begin(self) -> None:
        """Set up what belongs to this process alone."""
        self._lock = threading.Lock()
        self._slot: PinSlot | None = None
        self._flights: dict[int, list[BlockRequest]] = {}  # by the number of a group
        self._pool: Pool | None = None
        self._filler: Filler | None = None
        self._dropped: deque[IntArray] = deque()  # of holds that nobody released

    def _after_fork(self) -> None:
        """Let go of the parent's pins and locks, without ending them."""
        self.room.after_fork()
        self._fetcher.begin()
        self._begin()

    # -- what there is

    def number(self, path: Path | str) -> int:
        """Return the number of a file of rows by its path in the dataset; raises KeyError."""
        return self._numbers[path.as_posix() if isinstance(path, Path) else path]

    def state(self, file: int) -> Array:
        """Return the shared map's part of a file, uint8 [blocks]: nonzero for cached blocks."""
        first = int(self.map.first[file])
        part: Array = self.map.state[first : first + self.files[file].blocks]
        return part

    def mapped(self, file: int) -> Array:
        """Return the bytes of a file, uint8 [size], mapped read-only; blocks that are not held hold anything."""
        size = self.files[file].size
        if not size:
            return np.zeros(0, np.uint8)
        if file not in self._buffers:
            descriptor = self.map.open_rows(file)
            try:
                self._buffers[file] = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        return np.frombuffer(self._buffers[file], np.uint8)

    def read(self, file: int, start: int, length: int) -> bytes:
        """Return bytes [start, start + length) of a file, fetched if need be; raises as `hold`."""
        if not length:
            return b""
        with self.hold([(file, np.arange(start // self.block, (start + length - 1) // self.block + 1))]):
            return self.mapped(file)[start : start + length].tobytes()

    def path_of(self, file: int) -> Path:
        """Return a path under which this process can open a file of rows."""
        ground = self.map.ground
        if isinstance(ground, DirectoryGround):
            return ground.root / name_of_rows(ground, file)
        if file not in self._open:
            self._open.setdefault(file, Descriptor(self.map.open_rows(file)))  # one of two threads: its path stays
        return Path(f"/proc/self/fd/{self._open[file].number}")

    @property
    def stay(self) -> bool:
        """True if cached blocks are never evicted: they are on the disk, without a limit."""
        return self.room.root is not None and self.room.limit is None

    @property
    def here(self) -> int:
        """Number of cached blocks, of all files."""
        return int(np.count_nonzero(self.map.state))

    @property
    def missing(self) -> int:
        """Number of blocks that are not here, of all files."""
        return sum(f.blocks for f in self.files) - self.here

    # -- holds

    def hold(self, wanted: Sequence[tuple[int, IntArray]], scattered: Collection[int] = ()) -> BlockHold:
        """Return a hold on blocks, all of which are cached then.

        Parameters
        ----------
        wanted : sequence of (int, int array)
            Numbers of files, and of blocks in them.
        scattered : collection of int
            Files that are read in no order: little is fetched around what is wanted, see `_around`.

        Raises
        ------
        DownloadFailed
            A block did not arrive; the message names it.
        NoSpace
            The disk of the home is full.
        """
        hold = self._hold(wanted, scattered, NOW)
        try:
            hold.wait()
        except BaseException:
            hold.release()
            raise
        return hold

    def announce(self, wanted: Sequence[tuple[int, IntArray]], scattered: Collection[int] = ()) -> BlockHold:
        """Return a hold on blocks that begin to arrive; `BlockHold.wait` waits for them. Arguments as of `hold`."""
        return self._hold(wanted, scattered, AHEAD)

    def _hold(self, wanted: Sequence[tuple[int, IntArray]], scattered: Collection[int], urgency: int) -> BlockHold:
        return self._held(self._blocks(wanted), lambda missing: self._around(missing, scattered), urgency)

    def _held(self, blocks: IntArray, around: Callable[[IntArray], IntArray], urgency: int) -> BlockHold:
        self._pin(blocks)
        hold = BlockHold(self, blocks, (), announced=urgency != NOW)
        try:
            missing = blocks[self.map.state[blocks] == 0]
            if len(missing):
                hold.flights = self._send(missing, around(missing), urgency)
        except BaseException:
            hold.release()
            raise
        return hold

    def _blocks(self, wanted: Sequence[tuple[int, IntArray]]) -> IntArray:
        """Return the numbers of blocks over all files, distinct and ascending."""
        first = self.map.first
        parts = [np.asarray(numbers, np.int64) + first[file] for file, numbers in wanted]
        for (file, _), part in zip(wanted, parts, strict=True):
            if len(part) and not first[file] <= part.min() <= part.max() < first[file] + self.files[file].blocks:
                raise IndexError(f"{self.files[file].path} has {self.files[file].blocks:,} blocks")
        every = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return every if (every[1:] > every[:-1]).all() else distinct(every)

    def _around(self, missing: IntArray, scattered: Collection[int]) -> IntArray:
        """Return the blocks to fetch for some that are missing.

        Of files that are read in order, a whole group: its other blocks will be wanted, and it costs no request more.
        For files that are read in no order, the blocks themselves, until half of a group is cached or requested.
        """
        if self._exact:
            return missing
        state = self.map.state
        groups, wanted = _counted(missing // MANY)
        all_of = np.ones(len(groups), bool)
        if scattered:
            files = np.searchsorted(self.map.first, groups * MANY, "right") - 1
            apart = np.isin(files, list(set(scattered) - self._whole))
            here = state.reshape(-1, MANY)[groups].sum(1, dtype=np.int64)
            all_of = ~apart | (here + wanted >= MANY // 2)
        around: IntArray = (groups[all_of, None] * MANY + np.arange(MANY)).reshape(-1)
        around = around[(state[around] == 0) & self.map.exists(around)]
        if all_of.all():
            return around
        single = missing[~all_of[np.searchsorted(groups, missing // MANY)]]
        return np.sort(np.concatenate([around, single]))

    def _pin(self, blocks: IntArray) -> None:
        if self._slot is None:
            self._take_slot()
        with self._lock, self.room.locked(shared=True):
            assert self._slot is not None
            self._slot.counts[blocks] += 1
        self.map.used[blocks // MANY] = now()
        self._unpin_dropped()

    def _unpin_dropped(self) -> None:
        """Unpin the blocks of holds that nobody released, and let those leave that are too many."""
        if not self._dropped:
            return
        with self._lock:
            while self._slot is not None and self._dropped:
                self._slot.counts[self._dropped.pop()] -= 1
        self._shrink()

    def _shrink(self) -> None:
        """Let blocks leave that were in use, if there are too many."""
        if self.room.excess() > 0:
            self.stats.add(evicted=self.room.shrink())

    def _unpin(self, blocks: IntArray) -> None:
        with self._lock:
            if self._slot is not None:
                self._slot.counts[blocks] -= 1

    def _take_slot(self) -> None:
        with self.room.locked():
            if self._slot is None:
                self._slot = self.map.take_slot()
                threading.Thread(target=_sweep, args=(weakref.ref(self),), name="rlds-cache", daemon=True).start()

    # -- filling

    def fill(self, ranges: Sequence[tuple[int, int, int]]) -> Filling:
        """Have blocks [start, stop) of files fetched in the background while the result exists."""
        with self._lock:
            self._filler = self._filler or Filler(self)
        first = self.map.first
        return self._filler.want([(int(first[file]) + a, int(first[file]) + b) for file, a, b in ranges])

    def bring(self, first: int, blocks: int) -> BlockHold:
        """Return a hold on a run of blocks that begin to arrive once all that is announced does."""
        return self._held(np.arange(first, first + blocks), lambda missing: self._around(missing, ()), BEHIND)

    # -- fetching

    def _send(self, missing: IntArray, around: IntArray, urgency: int) -> tuple[BlockRequest, ...]:
        """Have blocks fetched, as far as they are not; return the flights that bring the missing ones."""
        with self._lock:
            groups = _counted(around // MANY)[0].tolist() if self._flights else ()
            flying = {id(flight): flight for group in groups for flight in self._flights.get(group, ())}
            if flying:
                left = np.ones(len(around), bool)
                for flight in flying.values():
                    a, b = around.searchsorted((flight.first, flight.stop))
                    left[a:b] = False
                around = around[left]
            if self._pool is None and len(around):
                self._pool = Pool(self.at_once)
                weakref.finalize(self, self._pool.close).atexit = False
            many = len(around) if urgency == BEHIND else min(LONGEST_RUN, len(around) // self.at_once)
            longest = max(1, -(-many // MANY)) * MANY  # a group, unless there are many
            flights = [BlockRequest(first, blocks, urgency) for first, blocks in runs(around, self.map.first, longest)]
            for flight in flights:
                for group in flight.groups:
                    self._flights.setdefault(group, []).append(flight)
        try:
            if flights:
                self._pin(around)
        except BaseException as e:
            for flight in flights:
                self._arrived(flight, e)
            raise
        overtaking = [f for f in flying.values() if f.urgency > urgency]  # the first of two in the queue flies
        for flight in (*overtaking, *flights):
            assert self._pool is not None
            flight.urgency = urgency
            self._pool.put(urgency, weakref.WeakMethod(self._fly), flight)
        return tuple(f for f in (*flying.values(), *flights) if f.brings(missing))

    def _fly(self, flight: BlockRequest) -> None:
        """Bring the blocks of a flight; in a thread of the pool."""
        with self._lock:
            if flight.begun:
                return
            flight.begun = True
        error: BaseException | None = None
        try:
            missing = flight.first + np.flatnonzero(self.map.state[flight.first : flight.stop] == 0)
            self._fetcher.bring(flight.first, flight.stop)
            if flight.urgency == BEHIND and len(missing):
                shorter = self.block - self.map.place(int(missing[-1]))[2]
                self.stats.add(filled=len(missing) * self.block - shorter)
        except BaseException as e:
            error = e
        try:
            self._unpin(np.arange(flight.first, flight.stop))
        finally:
            self._arrived(flight, error)

    def _arrived(self, flight: BlockRequest, error: BaseException | None) -> None:
        flight.error = error
        with self._lock:
            self._land(flight)
        flight.done.set()

    def _forget(self, flights: Sequence[BlockRequest]) -> None:
        """Let the next hold ask again for what flights do not bring, in other threads."""
        with self._lock:
            for flight in flights:
                if self._land(flight) and self._pool is not None:
                    self._pool.grow()

    def _land(self, flight: BlockRequest) -> bool:
        """Remove a flight from those that are under way; return whether it was one."""
        found = False
        for group in flight.groups:
            others = [f for f in self._flights.get(group, ()) if f is not flight]
            found |= len(others) < len(self._flights.get(group, ()))
            if others:
                self._flights[group] = others
            else:
                self._flights.pop(group, None)
        return found


class BlockHold:
    """A hold on blocks: they stay until it is released. A context manager.

    Parameters
    ----------
    of : BlockFiles
    blocks : int array
        Numbers over all files, which are pinned.
    flights : sequence
        What brings those that were missing.
    announced : bool
        Time may pass before anybody waits: what failed in it is tried again.
    """

    def __init__(self, of: BlockFiles, blocks: IntArray, flights: Sequence[BlockRequest], *, announced: bool) -> None:
        self._of, self.blocks, self.flights, self._announced = of, blocks, flights, announced
        self._process, self._begun = os.getpid(), time.monotonic()
        self._released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if not self._released and self._process == os.getpid():
            self._of._dropped.append(self.blocks)  # without locks: it may happen anywhere

    @property
    def is_here(self) -> bool:
        """Return whether all blocks are cached."""
        return not self.flights or bool(self._of.map.state[self.blocks].all())

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all blocks are cached; as long as some arrive within ``timeout`` seconds, by default the files'.

        Raises
        ------
        DownloadFailed
            A block did not arrive; the message names it.
        """
        if not self.flights or self._of.map.state[self.blocks].all():
            self.flights = ()
            return
        begun = time.monotonic()
        patience = _Patience(self._of, self.blocks, self._of.timeout if timeout is None else timeout)
        earlier = [f for f in self.flights if f.made < self._begun or (self._announced and f.done.is_set())]
        try:
            for again in (True, False):
                error = self._flown(patience, earlier)
                missing = self.blocks[self._of.map.state[self.blocks] == 0]
                if not len(missing):
                    break
                if error is not None or not again:
                    raise self._error(error, int(missing[0]))
                self.flights = self._of._send(missing, missing, NOW)
        except _Late:
            self._of._forget(self.flights)
            raise
        finally:
            waited = time.monotonic() - begun
            self._of.stats.add(waited=waited)
            self._of._fetcher.note(waited=waited)
        self.flights = ()

    def _flown(self, patience: _Patience, earlier: Sequence[BlockRequest]) -> BaseException | None:
        """Wait for the flights until one fails; return its error. What ``earlier`` ones met may be over by now."""
        for flight in self.flights:
            patience.wait_for(flight)
            here = self._of.map.state[flight.first : flight.stop].all()
            if flight.error is not None and not here and flight not in earlier:
                return flight.error
        return None

    def _error(self, error: BaseException | None, block: int) -> BaseException:
        if error is None:
            return DownloadFailed(f"{self._of._fetcher.describe(block)} did not arrive.")
        if isinstance(error, RldsError):
            again = copy.copy(error)
            again.__cause__ = error.__cause__
            return again
        return error

    def release(self) -> None:
        """End the hold; the blocks may leave when room is needed."""
        if self._released or self._process != os.getpid():
            return
        self._released = True
        self._of._unpin(self.blocks)
        self._of._shrink()


def _sweep(of: weakref.ref[BlockFiles]) -> None:
    """Unpin what a process that reads nothing at the moment has dropped: other processes need the room."""
    while (files := of()) is not None:
        with suppress(OSError):  # the home is gone, or its disk is full
            files._unpin_dropped()
        del files
        time.sleep(_SWEEP)


def _counted(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct ones of some ascending numbers, and how often each occurs."""
    first = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    return numbers[first], np.diff(first, append=len(numbers))


class _Late(DownloadFailed):
    """No block has arrived in time."""


class _Patience:
    """Waits for flights, as long as some block of a hold arrives within ``timeout`` seconds."""

    def __init__(self, of: BlockFiles, blocks: IntArray, timeout: float) -> None:
        self._of, self._blocks, self._timeout = of, blocks, timeout
        self._here = -1
        self._since = time.monotonic()

    def wait_for(self, flight: BlockRequest) -> None:
        """Wait until a flight has ended, or has brought what is wanted of it; raises DownloadFailed."""
        mine = self._blocks[(self._blocks >= flight.first) & (self._blocks < flight.stop)]
        pause = 0.25 if len(mine) == flight.blocks else _LONGEST_POLL  # others of its blocks may come later
        while not flight.done.wait(min(pause, self._timeout)):
            if self._of.map.state[mine].all():
                return
            state = self._of.map.state[self._blocks]
            here = int(np.count_nonzero(state))
            if here != self._here:
                self._here, self._since = here, time.monotonic()
            elif time.monotonic() - self._since >= self._timeout:
                missing = self._blocks[state == 0]
                raise _Late(
                    f"{self._of._fetcher.describe(int(missing[0]) if len(missing) else flight.first)} "
                    f"did not arrive within {self._timeout:g} s.",
                    hint="a larger timeout=, if the store is slow",
                )


_opened: weakref.WeakSet[BlockFiles] = weakref.WeakSet()


def _after_fork() -> None:
    for files in list(_opened):
        files._after_fork()


os.register_at_fork(after_in_child=_after_fork)
