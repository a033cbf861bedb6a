"""Filling: blocks that no batch waits for arrive in the background, as long as somebody wants them.

One process at a time fills a dataset of a home: it has a lock that ends with it, and others look now and then whether
it is their turn. Requests are long and few: what batches announce goes before them, and most connections stay free.
The beginnings of all files arrive first. Nothing leaves for them: filling begins only if everything fits.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np

from rlds_cli.base.files import disk
from rlds_cli.base.text import size_of
from rlds_cli.errors import RldsError
from rlds_cli.places.remote.flights import LONGEST_RUN, runs
from rlds_cli.places.remote.grounds import lock_bytes
from rlds_cli.places.remote.leases import Descriptor
from rlds_cli.places.remote.presence import FETCHING, BlockMap, Room

_PART = 4  # filling takes at most a quarter of the requests at a time
_RUN = LONGEST_RUN  # blocks of a request
_LOOK = 0.1  # seconds between two looks whether blocks are still wanted
_ELSEWHERE = 2.0  # seconds between two looks whether another process still fills
_PAUSES = (1.0, 4.0, 16.0, 64.0)  # seconds after failures without a block between them; one more ends the filling
_SPARE = 10  # a tenth of the free disk stays free
UNDER_WAY = "the rest arrives in the background"
_ELSEWHERE_SAID = "another loader fetches the rest in the background"


Ranges = list[tuple[int, int]]


class PendingBlocks(Protocol):
    """Blocks on their way."""

    done: threading.Event  # they are cached, or cannot be had
    error: BaseException | None  # the reason


class HeldBlocks(Protocol):
    """Blocks that stay until they are released."""

    @property
    def flights(self) -> Sequence[PendingBlocks]:
        """What brings those that were missing."""
        ...

    def release(self) -> None:
        """Let the blocks go."""
        ...


class Files(Protocol):
    """Files of rows that can be filled: `places.remote.cache.BlockFiles`. Blocks are counted over all files."""

    map: BlockMap
    room: Room
    at_once: int  # requests

    def bring(self, first: int, blocks: int) -> HeldBlocks:
        """Begin to fetch a run of blocks, after all that is announced."""
        ...


class Filling:
    """The wish that blocks arrive in the background; it ends when this object is forgotten.

    Attributes
    ----------
    ranges : list of (int, int)
        Blocks [start, stop), each of one file.
    """

    def __init__(self, filler: Filler, ranges: Ranges) -> None:
        self.ranges, self._filler = ranges, filler

    @property
    def state(self) -> str:
        """How the filling stands, in words; empty once all blocks are cached."""
        return self._filler.state

    @property
    def goes_on(self) -> bool:
        """True while the rest arrives, in this process or another one."""
        return self._filler.state in (UNDER_WAY, _ELSEWHERE_SAID)


class Filler:
    """Fetches the blocks of one dataset that somebody wants, in a thread of this process.

    Parameters
    ----------
    files : Files
        It may go at any time.

    Attributes
    ----------
    state : str
        How the filling stands, in words; empty once all blocks are cached.
    """

    def __init__(self, files: Files) -> None:
        self.state = ""
        self._files = weakref.ref(files)
        self._lock, self._awake = threading.Lock(), threading.Event()
        self._wishes: weakref.WeakSet[Filling] = weakref.WeakSet()
        self._asked = 0  # how often somebody did
        self._thread: threading.Thread | None = None
        self._begun: list[HeldBlocks] = []
        self._turn: Iterator[tuple[int, int]] = iter(())  # runs that are not begun
        self._failures = 0
        self._only: Descriptor | None = None  # has the lock of the process that fills
        _fillers.add(self)

    def want(self, ranges: Ranges) -> Filling:
        """Have blocks fetched while the result exists."""
        wish = Filling(self, ranges)
        with self._lock:
            self._wishes.add(wish)
            self._asked += 1
            if self._thread is None:
                self.state, self._failures = UNDER_WAY, 0
                self._thread = threading.Thread(target=self._work, daemon=True, name="rlds-filling")
                self._thread.start()
        self._awake.set()
        return wish

    def end(self) -> None:
        """Begin no more requests."""
        with self._lock:
            self._wishes.clear()
        self._awake.set()

    def forked(self) -> None:
        """Leave the lock to the parent."""
        self._only = None

    # -- its thread

    def _work(self) -> None:
        while (pause := self._step()) is not None:
            until = time.monotonic() + pause
            while self._wishes and (left := until - time.monotonic()) > 0 and not self._awake.wait(min(_LOOK, left)):
                pass
            self._awake.clear()

    def _step(self) -> float | None:
        """Do what is to be done now; return after how many seconds to look again, None if the thread ends."""
        files = self._files()
        with self._lock:
            asked, wishes = self._asked, list(self._wishes)
        if files is None or not wishes:
            return self._leave(asked, "")
        failure = self._landed()
        try:
            ranges = {r for wish in wishes for r in wish.ranges}
            if all(files.map.state[a:b].all() for a, b in ranges):
                return self._leave(asked, "")
            if failure is None and len(self._begun) < _most(files):
                if why := _no_room(files, ranges):
                    return self._leave(asked, f"the rest is not fetched in the background: {why}")
                if not self._is_mine(files):
                    self.state = _ELSEWHERE_SAID
                    return _ELSEWHERE
                self.state = UNDER_WAY
                self._begin(files, ranges)
        except (RldsError, OSError) as e:
            failure = e
        if failure is not None:
            return self._after(failure, asked)
        if self._begun:
            self._begun[0].flights[0].done.wait(_LOOK)
        return 0.0

    def _landed(self) -> BaseException | None:
        """Let go of the runs that are cached; return an error of those that cannot be had."""
        failure = None
        for hold in [h for h in self._begun if all(f.done.is_set() for f in h.flights)]:
            error = next((f.error for f in hold.flights if f.error is not None), None)
            failure = error or failure
            self._failures = 0 if error is None else self._failures
            self._begun.remove(hold)
            hold.release()
        return failure

    def _is_mine(self, files: Files) -> bool:
        """Return whether this process is the one that fills, from now on or still."""
        if self._only is None:
            mine = Descriptor(files.map.ground.open(FETCHING))
            self._only = mine if lock_bytes(mine.number, files.map.blocks, 1) else None
        return self._only is not None

    def _begin(self, files: Files, ranges: Iterable[tuple[int, int]]) -> None:
        """Begin as many runs as may be under way."""
        again = not self._begun
        while len(self._begun) < _most(files):
            run = next(self._turn, None)
            if run is not None:
                self._add(files.bring(*run))
            elif again:  # also for those that could not be had, or have left
                self._turn, again = _in_turn(files, ranges), False
            else:
                return

    def _add(self, hold: HeldBlocks) -> None:
        if hold.flights:
            self._begun.append(hold)
        else:  # the blocks came meanwhile
            hold.release()

    def _after(self, failure: BaseException, asked: int) -> float | None:
        self._failures += 1
        if self._failures > len(_PAUSES):
            return self._leave(asked, f"fetching the rest in the background has ended: {failure}")
        self.state = f"fetching the rest in the background pauses: {failure}"
        return _PAUSES[self._failures - 1]

    def _leave(self, asked: int, state: str) -> float | None:
        """End the thread, unless somebody has asked meanwhile."""
        for hold in self._begun:
            hold.release()
        self._begun, self._turn = [], iter(())
        self._only = None
        with self._lock:
            if self._asked != asked:
                return 0.0
            self.state, self._thread = state, None
        return None


def _most(files: Files) -> int:
    """Return how many requests may be under way."""
    return max(1, files.at_once // _PART)


def _in_turn(files: Files, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield runs (first, blocks) of the blocks that are missing, the beginnings of all ranges first."""
    parts = [(at, min(at + _RUN, b), (at - a) / (b - a)) for a, b in sorted(ranges) for at in range(a, b, _RUN)]
    for first, stop, _ in sorted(parts, key=itemgetter(2)):
        missing = first + np.flatnonzero(files.map.state[first:stop] == 0)
        yield from runs(missing, files.map.first, _RUN)


def _no_room(files: Files, ranges: Iterable[tuple[int, int]]) -> str:
    """Return why there is no room for blocks unless others leave; empty if there is."""
    room, taken = files.room, files.map.taken
    new = sum(b - a - int(np.count_nonzero(taken[a:b])) for a, b in ranges) * files.map.block
    if room.root is None:
        return "cache=0 keeps no blocks"
    left, free = room.left(), disk.free(room.root)
    if left is not None and new > left:
        return f"it takes {size_of(new)}, and cache= has room for {size_of(max(0, left))} more"
    if new > free - free // _SPARE:
        return f"it takes {size_of(new)}, and the disk has {size_of(free)} free"
    return ""


_fillers: weakref.WeakSet[Filler] = weakref.WeakSet()


def _end_all() -> None:
    for filler in list(_fillers):
        filler.end()


def _after_fork() -> None:
    for filler in list(_fillers):
        filler.forked()
    _fillers.clear()  # their threads are those of the parent


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
