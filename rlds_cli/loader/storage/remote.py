"""Rows of a remote dataset: the blocks of coming runs are announced, and held while they are read.

::

    run k        locate -> touch -> announce   ................   wait -> gather -> release
    run k + 1             locate -> touch -> announce   ................   wait -> gather -> release
                                             '-- the blocks arrive --'

The kernel itself says which blocks a gather reads (`kernel.Touches`). Two things are known only when rows are cached:
where a flag ends the sum of an n-step transition, and where encoded frames lie. The first is announced as if no flag
ended a sum, and asked again when the flags are cached; for the second, the table of frames is read first.

Once all blocks of all columns are cached, they are held together, and nothing is touched any more: reading is as fast
as that of a local dataset.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.loader.kernel import BlockRange, Bound, Plan, Touches, address

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.store.blocks import BackgroundFill, Blocks, BytePlace, Hold, Wanted
    from rlds_cli.store.encoded import Frames
    from rlds_cli.store.videos import Videos

MOST_RUNS_AHEAD = 64  # runs that are announced before they are read; more of runs of few bytes:
BYTES_AHEAD = 256 << 20  # of batches: some groups of blocks that are shuffled together, so that the next is on its way
MISSING_AHEAD = 256  # groups of blocks on their way at which no further run is announced
TRIES = 64  # runs without a missing block, after which it is asked whether everything is here


def blocks_of(dataset: Dataset) -> Blocks | None:
    """Return the blocks of a remote dataset; None for one that lies on this machine."""
    return dataset.store.files.blocks


def stays(dataset: Dataset, names: Iterable[str]) -> bool:
    """Return whether all rows of array fields are on this machine and stay: those of a local dataset do.

    Those of a remote one do once all of their blocks are cached, and no cache is limited.
    """
    blocks = blocks_of(dataset)
    if blocks is None:
        return True
    if not blocks.stay:
        return False
    placed = ((place_of(dataset, name), dataset.store.table.column(name).nbytes) for name in names)
    wanted = (place.wanted(np.zeros(1, np.int64), np.array([size])) for place, size in placed if place is not None)
    return all(blocks.state(file)[found].all() for parts in wanted for file, found in parts)


def mapped(dataset: Dataset, name: str) -> Array:
    """Return the rows of a field of a remote dataset as they are mapped: only blocks that are held have true values."""
    table = dataset.store.table
    content = table.files.mapped(table.column(name), table.lease)
    assert content.flags.c_contiguous and content.flags.aligned, name  # else the kernel would read a copy
    return content


def place_of(dataset: Dataset, name: str) -> BytePlace | None:
    """Return where the rows of a field lie in the files of rows; None for rows without bytes."""
    return dataset.store.files.place(dataset.store.table.column(name))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedArray:
    """An array of a remote dataset: all of it, mapped, and where its bytes lie in files of rows."""

    content: Array
    place: BytePlace

    def range(self, block: int) -> BlockRange:
        """Return its addresses and its blocks."""
        base, nbytes = address(self.content) - self.place.skip, self.content.nbytes + self.place.skip
        if len(self.place.files) == 1 or self.place.first is not None:
            return BlockRange(base, nbytes, -(-nbytes // block))
        chunk = self.place.file_bytes
        return BlockRange(base, nbytes, len(self.place.files) * -(-chunk // block), chunk)

    def wanted(self, found: IntArray, block: int) -> Wanted:
        """Return blocks, numbered as in `range`, by file."""
        if self.place.first is not None:
            return self.place.by_file(found)
        if len(self.place.files) == 1:
            return [(int(self.place.files[0]), found)]
        which, within = np.divmod(found, -(-self.place.file_bytes // block))
        return [(int(self.place.files[k]), within[which == k]) for k in distinct(which).tolist()]


def placed_arrays(dataset: Dataset) -> list[PlacedArray]:
    """Return all arrays of a remote dataset whose rows have a fixed size."""
    placed = ((name, place_of(dataset, name)) for name in dataset.schema)
    return [PlacedArray(mapped(dataset, name), place) for name, place in placed if place is not None]


class EncodedRows:
    """The frames or texts of a field of a remote dataset.

    Attributes
    ----------
    tables : tuple of arrays [rows, ...]
        What is read of each row to find its value.
    media : Frames or Videos, optional
        What decodes frames whose blocks are held.
    place : BytePlace, optional
        Of the encoded frames or videos, if there are any bytes.
    nbytes : int
        Of these.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        self._field, self._store = dataset.schema[name], dataset.store
        self.tables: tuple[Array, ...] = (mapped(dataset, name),)
        self.media: Frames | Videos | None = None
        self.place: BytePlace | None = None
        if self._field.kind == "frames":
            self.media = self._store.media(name).mapped(self._store.table.lease)
            self.place, self.nbytes = self._store.files.place(self.media.column), self.media.column.nbytes

    def wanted(self, rows: IntArray) -> Wanted:
        """Return the blocks of the frames of rows [n], whose tables are cached."""
        assert self.place is not None and self.media is not None
        return self.place.wanted(*self.media.ranges(self.tables[0][rows]))

    def gather(self, rows: IntArray) -> Array:
        """Decode the frames of rows [n], whose tables and frames are held."""
        assert self.media is not None
        return self.media.decoded(self._field, self.tables[0][rows], rows, self._store.check_absent)

    def decode_into(self, out: Sequence[Array], rows: IntArray) -> None:
        """Decode the frames of rows [n] in videos to n arrays, as `gather` does."""
        self._store.videos(self._field.name).decode_into(
            out, self._field, self.tables[0][rows], rows, self._store.check_absent
        )


class Clock:
    """Measures for how long at least one thread that reads batches waited for blocks."""

    def __init__(self) -> None:
        self._lock, self._threads = Lock(), 0
        self._since = self._total = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._total + (time.monotonic() - self._since if self._threads else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block of code."""
        self._step(1)
        try:
            yield
        finally:
            self._step(-1)

    def _step(self, by: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._total += now - self._since if self._threads else 0.0
            self._since, self._threads = now, self._threads + by


_clocks: WeakKeyDictionary[Blocks, Clock] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_clocks.clear)  # the threads that waited are those of the parent


def clock_of(blocks: Blocks) -> Clock:
    """Return the clock of the readers of a dataset's blocks in this process."""
    return _clocks.setdefault(blocks, Clock())


class Arrival:
    """The blocks that a gather reads, on their way or here; they stay until this object is forgotten.

    Parameters
    ----------
    blocks : Blocks
    stages : iterator of Wanted
        Each stage is asked for when the blocks of those before are cached.
    scattered : collection of int
        Files, see `Blocks.announce`.

    Attributes
    ----------
    missing : int
        Groups of which blocks were not here when they were announced.
    complete : bool
        All stages are announced.
    """

    def __init__(self, blocks: Blocks, stages: Iterator[Wanted], scattered: Collection[int] = ()) -> None:
        self.missing, self.complete = 0, False
        self._blocks, self._stages, self._scattered = blocks, stages, scattered
        self._holds: list[Hold] = []
        self._lock = Lock()
        self._error: Exception | None = None
        self._announce()
        while not self.complete and self._holds[-1].is_here:
            self._announce()

    def _announce(self) -> None:
        wanted = next(self._stages, None)
        if wanted is None:
            self.complete = True
            return
        self.missing += _missing(self._blocks, wanted)
        self._holds.append(self._blocks.announce(wanted, self._scattered))

    def wait(self) -> None:
        """Wait until all blocks are cached.

        Raises
        ------
        DownloadFailed
            One of them cannot be had.
        """
        if self.complete and self._error is None and self._holds[-1].is_here:
            return
        with clock_of(self._blocks).running():
            self.complete_stages()

    def complete_stages(self) -> None:
        """Wait as `wait` does, on behalf of a batch that is read later."""
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                while True:
                    self._holds[-1].wait()
                    if self.complete:
                        break
                    self._announce()
            except Exception as e:
                self._error = e
                raise


def _missing(blocks: Blocks, wanted: Wanted) -> int:
    """Return the number of groups of which blocks are wanted and not here: that of requests, about."""
    total, many = 0, blocks.group // blocks.block
    for file, found in wanted:
        lacking = found[blocks.state(file)[found] == 0]
        total += 1 + int(np.count_nonzero(np.diff(lacking // many))) if len(lacking) else 0
    return total


class _Waiting:
    """Daemon threads that wait for arrivals of several stages, so that their later stages are announced early."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[weakref.ref[Arrival]] = SimpleQueue()
        self._process = self._threads = 0

    def put(self, arrival: Arrival) -> None:
        """Wait for an arrival, as long as somebody else has it."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._queue, self._process, self._threads = SimpleQueue(), os.getpid(), 0
        if self._threads < _WAITING:
            self._threads += 1
            threading.Thread(target=self._work, args=(self._queue,), daemon=True, name="rlds-arrivals").start()
        self._queue.put(weakref.ref(arrival))

    @staticmethod
    def _work(queue: SimpleQueue[weakref.ref[Arrival]]) -> None:
        while True:
            arrival = queue.get()()
            if arrival is not None:
                with suppress(Exception):  # it is raised where the batch is read
                    arrival.complete_stages()
            del arrival


_WAITING = 8  # threads
_waiting = _Waiting()


class RemoteReads:
    """The blocks that a plan reads.

    Parameters
    ----------
    dataset : Dataset
        A remote one.
    plan : Plan
    sums : bool
        Flags end sums.
    encoded : sequence of (EncodedRows, int)
        Frames that are ranges of bytes, and how many rows after those of the plan ``rows`` they are.

    Attributes
    ----------
    scattered : bool
        Samples that follow each other are far from each other, also later.
    """

    def __init__(
        self, dataset: Dataset, plan: Plan, *, sums: bool, encoded: Sequence[tuple[EncodedRows, int]] = ()
    ) -> None:
        blocks = blocks_of(dataset)
        assert blocks is not None
        self.blocks, self._sums, self._encoded, block = blocks, sums, encoded, blocks.block
        self._arrays = placed_arrays(dataset)
        self._touches = Touches(plan, [a.range(block) for a in self._arrays], block)
        read = [(a.place, a.content.nbytes) for a in (self._arrays[i] for i in self._touches.files)]
        read += [(e.place, e.nbytes) for e, _ in encoded if e.place is not None]
        parts = [part for place, size in read for part in place.wanted(np.zeros(1, np.int64), np.array([size]))]
        self._read: list[tuple[int, int, int]] = [(file, int(found[0]), int(found[-1]) + 1) for file, found in parts]
        self.scattered = False
        self._whole: Hold | None = None
        self._process, self._tries = os.getpid(), 0
        self.filling: BackgroundFill | None = None

    @property
    def whole(self) -> bool:
        """True while all blocks of all columns are cached, and held."""
        return self._whole is not None and self._process == os.getpid()

    def look(self) -> bool:
        """Hold all columns if every block of them is cached; return whether it is."""
        if not self.whole:
            self._process, self._tries, self._whole = os.getpid(), TRIES, None
            if all(np.count_nonzero(self.blocks.state(file)[a:b]) == b - a for file, a, b in self._read):
                hold = self.blocks.announce([(file, np.arange(a, b)) for file, a, b in self._read])
                self._whole = hold if hold.is_here else None  # some may have left a moment ago
        return self.whole

    def fill(self) -> None:
        """Have what is missing of the columns arrive in the background, if samples lie anywhere in them.

        It ends when this object is forgotten.
        """
        wanted = self.blocks.fills and self.scattered and not self.whole
        self.filling = self.blocks.fill(self._read) if wanted else None

    @property
    def extent(self) -> tuple[int, int]:
        """Number of the columns' cached blocks, and of all."""
        here = sum(int(np.count_nonzero(self.blocks.state(file)[a:b])) for file, a, b in self._read)
        return here, sum(b - a for _, a, b in self._read)

    def announce(self, bound: Bound, rows: Bound | None, n: int) -> Arrival | None:
        """Announce the blocks that reading samples [0, n) takes; None where all of them are held already.

        ``rows`` are the same samples, for the plan ``rows``.
        """
        if self.whole:
            return None
        arrival = Arrival(self.blocks, self._stages(bound, rows, n), self._apart)
        self._tries = TRIES if arrival.missing else self._tries - 1
        if self._tries <= 0 and self.look():
            return None
        if rows is not None and not arrival.complete:
            _waiting.put(arrival)
        return arrival

    @property
    def _apart(self) -> Collection[int]:
        """The files of which single blocks are fetched: those that are read in no order, unless all arrives anyway."""
        if not self.scattered or (self.filling is not None and self.filling.goes_on):
            return ()
        return {file for file, _, _ in self._read}

    def _stages(self, bound: Bound, rows: Bound | None, n: int) -> Iterator[Wanted]:
        """Yield the blocks that are read, in stages: each is known when the blocks of those before are cached."""
        yield self._wanted(bound, n, before=self._sums)
        if self._sums:
            yield self._wanted(bound, n, before=False)
        if rows is not None:
            found = zip(self._encoded, rows.read(0, n), strict=True)
            yield [part for (encoded, shift), numbers in found for part in encoded.wanted(distinct(numbers + shift))]

    @contextmanager
    def held(self, array: Array, rows: IntArray) -> Iterator[None]:
        """Hold the blocks of ``rows`` [n] of a column, while they are read."""
        if not rows.size or not array.nbytes:
            yield
            return
        placed = next(a for a in self._arrays if address(a.content) == address(array))
        width = array.nbytes // len(array)
        hold = self.blocks.announce(placed.place.wanted(rows * width, (rows + 1) * width))
        try:
            with clock_of(self.blocks).running():
                hold.wait()
            yield
        finally:
            hold.release()

    def _wanted(self, bound: Bound, n: int, *, before: bool) -> Wanted:
        block = self.blocks.block
        found = self._touches.blocks(bound, 0, n, before=before)
        return [part for i, blocks in found for part in self._arrays[i].wanted(blocks, block)]
