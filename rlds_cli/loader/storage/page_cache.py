"""Reading ahead: advice to the kernel about rows of coming gathers, and threads that gather before they are asked.

In files larger than memory, a page fault waits for the disk, one row at a time. Advice (``posix_fadvise(WILLNEED)``)
only starts a read, so the disk works on thousands of rows at once, and they are in memory by the time of the gather.
Advice about rows in memory is wasted: `ReadAhead` gives it until coming rows are resident, and again after a gather
that waited for the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.settings import cores

THREADS = 2  # that give advice: for small rows the kernel's work takes as long as the disk's
SAMPLE = 64  # pages checked to decide whether a gather is resident
CALM = 16  # consecutive resident gathers that end the advice
BLIND = 256  # gathers that end the advice where the system cannot say
WATCHED = 8  # batches of which one gather is watched: to ask the system takes a tenth of the time of a small batch
_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None)
_WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class RandomMap:
    """A file of rows, mapped for reading at random.

    Parameters
    ----------
    file : Path
        Rows from its first byte on.
    row_bytes, rows : int
        Positive.
    sparing : bool
        Read only the pages asked for: for files larger than memory. In smaller files, the neighbours that the kernel
        reads along are soon needed, too.

    Attributes
    ----------
    content : uint8 array [rows * row_bytes]
        Read-only.

    Raises
    ------
    OSError, ValueError
        The file does not exist, or is shorter.
    """

    def __init__(self, file: Path, row_bytes: int, rows: int, *, sparing: bool = True) -> None:
        self.row_bytes = row_bytes
        self._fd = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._fd)
        self._map = mmap.mmap(self._fd, row_bytes * rows, access=mmap.ACCESS_READ)
        if sparing:
            self._map.madvise(mmap.MADV_RANDOM)
        self.content: Array = np.frombuffer(self._map, np.uint8)

    def will_need(self, start: int, length: int) -> None:
        """Start to read a range of the file, without waiting for it."""
        try:
            if hasattr(os, "posix_fadvise"):  # lets other threads run, which madvise does not
                os.posix_fadvise(self._fd, start, length, os.POSIX_FADV_WILLNEED)
            else:
                self._map.madvise(mmap.MADV_WILLNEED, start, min(length, len(self._map) - start))
        except OSError:  # a file system that takes no advice
            pass

    def resident(self, start: int) -> bool | None:
        """Return whether the page at byte ``start`` is in memory; None where this system does not say."""
        try:
            os.preadv(self._fd, [bytearray(1)], start, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (AttributeError, OSError):  # macOS; network file systems
            return self._in_core(start)
        return True

    def _in_core(self, start: int) -> bool | None:
        status = os.fstat(self._fd)
        if os.geteuid() not in (0, status.st_uid):
            return None  # Linux reports the files of other users as in memory
        return _in_core(self.content.ctypes.data + start)


class MappedRows:
    """Rows of files that are mapped by others, for reading at random: those of arrays in segments.

    Parameters
    ----------
    values : array [rows, ...]
        A view of the map; not empty.
    sparing : bool
        See `RandomMap`.
    mine : bool
        Whether this process may know which pages of the files are in memory: Linux tells owners alone.
    """

    def __init__(self, values: Array, *, sparing: bool, mine: bool) -> None:
        self.row_bytes = values.strides[0]
        self._kept, self._at, self._size, self._mine = values, values.ctypes.data, values.nbytes, mine
        if sparing:
            self._advise(0, self._size, mmap.MADV_RANDOM)

    def will_need(self, start: int, length: int) -> None:
        """Start to read a range of the rows, without waiting for it."""
        self._advise(start, min(length, self._size - start), mmap.MADV_WILLNEED)

    def _advise(self, start: int, length: int, advice: int) -> None:
        first = (self._at + start) // _PAGE * _PAGE
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(self._at + start + length - first), advice)

    def resident(self, start: int) -> bool | None:
        """Return whether the page at byte ``start`` is in memory; None where this system does not say."""
        return _in_core(self._at + start) if self._mine else None


def _in_core(address: int) -> bool | None:
    found = ctypes.c_ubyte()
    page = ctypes.c_void_p(address // _PAGE * _PAGE)
    return None if _LIBC.mincore(page, ctypes.c_size_t(1), ctypes.byref(found)) else bool(found.value & 1)


class RandomRows(Protocol):
    """Rows that are read at random: `RandomMap`, `MappedRows`."""

    @property
    def row_bytes(self) -> int:
        """Bytes from row to row."""
        ...

    def will_need(self, start: int, length: int) -> None:
        """Start to read a range, in bytes, without waiting for it."""
        ...

    def resident(self, start: int) -> bool | None:
        """Return whether the page at byte ``start`` is in memory; None where this system does not say."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A coming read: ``length`` rows of a file from each of ``first`` [K] on."""

    file: RandomRows
    first: IntArray
    length: int = 1

    def stretches(self) -> tuple[IntArray, IntArray]:
        """Merge the pages of the rows.

        Returns
        -------
        start, length : int arrays [at most K]
            In bytes, multiples of a page; ascending, with at least a page between neighbours.
        """
        start, size = np.sort(self.first * self.file.row_bytes), self.length * self.file.row_bytes
        if not len(start) or not size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        first = start // _PAGE
        end = (start + size - 1) // _PAGE + 1  # ascending too, since all are of one size
        fresh = np.flatnonzero(np.append(True, first[1:] > end[:-1]))
        last = np.append(fresh[1:], len(first)) - 1
        return first[fresh] * _PAGE, (end[last] - first[fresh]) * _PAGE


Advice = Sequence["Future[None]"]


class ReadAhead:
    """Gives the kernel advice where it pays.

    Attributes
    ----------
    advising : bool
        True at first, and after a gather with major faults, until `CALM` gathers found their rows in memory.
    """

    def __init__(self) -> None:
        self.advising = True  # a first gather by page faults could read a window of MiB for each row
        self._calm = self._blind = self._unwatched = 0
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def advise(self, planned_reads: Sequence[PlannedRead]) -> Advice:
        """Announce the reads of a coming gather to the kernel, unless they are in memory; return at once.

        Returns
        -------
        Advice
            To be passed to `gather`.
        """
        if not self.advising:
            return ()
        found: list[tuple[RandomRows, IntArray, IntArray]] = []
        sampled: set[bool | None] = set()  # whether pages are in memory; None where unknown
        for coming in planned_reads:
            start, length = coming.stretches()
            found.append((coming.file, start, length))
            sampled.update(map(coming.file.resident, start[:: max(1, len(start) // SAMPLE)].tolist()))
        resident = sampled <= {True}
        self._calm = self._calm + 1 if resident else 0
        self._blind = self._blind + 1 if None in sampled and False not in sampled else 0
        self.advising = self._calm < CALM and self._blind < BLIND
        if resident:
            return ()
        pool = self._threads()
        return [
            pool.submit(_tell, file, start[i::THREADS].tolist(), length[i::THREADS].tolist())
            for file, start, length in found
            for i in range(THREADS)
        ]

    def gather(self, told: Advice = (), batches: int = WATCHED) -> AbstractContextManager[None]:
        """Surround a gather: wait until its advice is given, then note whether the gather waited for the disk.

        Gathers of few batches are watched once in `WATCHED` batches.
        """
        if told and self._process == os.getpid():
            wait(told)
        self._unwatched -= batches
        if self.advising or self._unwatched > 0:
            return _UNWATCHED
        self._unwatched = WATCHED
        return _Gather(self)

    def note_wait(self) -> None:
        """Begin to advise: a gather waited for the disk."""
        if not self.advising:
            self.advising, self._calm, self._blind = True, 0, 0

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            self._pool, self._process = ThreadPoolExecutor(THREADS, "rlds-advice"), os.getpid()
        return self._pool


_UNWATCHED = nullcontext()


@dataclass(slots=True)
class _Gather:
    """A gather in a ``with`` statement: a context manager in half the time of one made of a generator.

    It counts the page faults that waited for the disk: of this thread, or on macOS of the process.
    """

    of: ReadAhead
    before: int = 0

    def __enter__(self) -> None:
        self.before = resource.getrusage(_WHO).ru_majflt

    def __exit__(
        self,
        *_: object,
        # held here: the interpreter's exit closes iterators after it has set the names of modules to None
        usage: Callable[[int], resource.struct_rusage] = resource.getrusage,
        who: int = _WHO,
    ) -> None:
        if usage(who).ru_majflt > self.before:
            self.of.note_wait()


def _tell(file: RandomRows, start: Sequence[int], length: Sequence[int]) -> None:
    for at, size in zip(start, length, strict=True):
        file.will_need(at, size)


LARGE = 16 << 10  # bytes of a sample from which a thread pays: for less, handing over costs more than it saves
DECODERS = 8  # threads that decode frames, at most
HELD = 256 << 20  # limit in bytes of gathers read ahead; one gather is always allowed
THREAD_NAME = "rlds-loader"
A = TypeVar("A")
B = TypeVar("B")


def prefetched(work: Callable[[A], B], items: Iterable[A], prefetch_depth: int) -> Iterator[tuple[A, B]]:
    """Do ``work`` on every item, in order, up to ``depth`` items ahead of the one asked for.

    The iterating thread draws ``items`` early. An error, of an item or of the work on it, is raised in its turn, after
    the results before it. With depth 0 there are no threads. When the iterator is closed, forgotten or interrupted, no
    further work is begun, and its threads end.
    """
    if prefetch_depth == 0:
        for item in items:
            yield item, work(item)
        return
    threads = ThreadPoolExecutor(prefetch_depth, THREAD_NAME)
    waiting: deque[tuple[A, Future[B]]] = deque()
    failure: Exception | None = None
    source = iter(items)
    try:
        while True:
            while failure is None and len(waiting) <= prefetch_depth:
                try:
                    item = next(source)
                except StopIteration:
                    break
                except Exception as e:
                    failure = e
                else:
                    waiting.append((item, threads.submit(work, item)))
            if not waiting:
                break
            item, future = waiting.popleft()
            yield item, future.result()
        if failure is not None:
            raise failure
    finally:
        # A forgotten iterator may be collected in one of its own threads, which cannot wait for itself.
        mine = threading.current_thread().name.startswith(THREAD_NAME)
        threads.shutdown(wait=not mine, cancel_futures=True)


def _decoders() -> int:
    """Return the number of threads that decode frames, if there is memory for what each reads ahead."""
    return min(DECODERS, max(2, cores()))


def merged_bytes() -> int:
    """Return the bytes that a gather may take so that all threads that decode frames still have one."""
    return HELD // _decoders()


def prefetch_depth(*, sample_bytes: int, gather_bytes: int, decodes: bool, ships: bool) -> int:
    """Return the default number of gathers to read ahead.

    Parameters
    ----------
    sample_bytes, gather_bytes : int
        Bytes of one sample, and of all samples of a gather.
    decodes : bool
        True if encoded frames are decoded: then there is a thread for each core.
    ships : bool
        True if batches go to another device: copies into pinned memory overlap the training.
    """
    if decodes:
        wanted = _decoders()
    else:
        wanted = 2 if ships or sample_bytes >= LARGE else 0
    return min(wanted, max(1, HELD // max(1, gather_bytes)))
