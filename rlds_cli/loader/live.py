"""Live loaders: new versions of a growing dataset are taken up between runs of batches.

Before every run the loader asks for the version to draw from. It looks for a new one often enough that data are used
within about 100 ms, and so seldom that looking and taking up costs at most about a twentieth of the time. The first
sample that is drawn from a version goes into a log: sample number i is a function of (seed, epoch, i) and of the
version that the log names for i. Whoever has the log and the versions draws the same samples again.
"""

from __future__ import annotations

import itertools
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, EmptyWindow, InvalidArgument, WrongState
from rlds_cli.loader import build
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.build import Request
from rlds_cli.loader.index import WindowIndex
from rlds_cli.loader.read import BatchReader, BatchSource, DatasetSource
from rlds_cli.loader.samplers import Draw, StatefulDraw
from rlds_cli.loader.schedule import Position, Ranks, SampleRun, distributed
from rlds_cli.loader.state import check_type
from rlds_cli.loader.tensors import host, portable
from rlds_cli.loader.transforms import Transforms

LOOK = 0.01  # seconds between looks for a new version
REST = 19  # times as long as taking one up took, none is taken up after it
FRESH = 0.05  # seconds of batches that are drawn together
KEY = "versions"  # of the log in a state
Versions = tuple[int, ...]  # one number for each growing dataset: of a loader on one dataset, one


class VersionLog:
    """The versions that the samples of an epoch were drawn from.

    Parameters
    ----------
    width : int
        How many datasets grow.
    entries : sequence of (int, ...)
        Number of the first sample, and the versions from there on; ascending.
    """

    def __init__(self, width: int, entries: Any = ()) -> None:
        self._width = width
        self._first, self._numbers = array("q"), array("q")
        self._newest: Versions | None = None
        for first, *numbers in np.asarray(entries, np.int64).reshape(-1, 1 + width).tolist():
            self.note(first, tuple(numbers))

    @classmethod
    def read(cls, given: Any, width: int) -> VersionLog:
        """Read a log that was given: pairs of numbers, an array or tensor of them, or a state of a loader.

        Raises
        ------
        InvalidArgument
            It is none.
        """
        entries = given.get(KEY) if isinstance(given, Mapping) else given
        try:
            found = np.asarray(host(entries))
        except (TypeError, ValueError):
            found = np.zeros(0)
        fits = found.ndim == 2 and found.shape[1] == 1 + width and len(found) and found.dtype.kind in "iu"
        if not fits or found.min() < 0 or (np.diff(found[:, 0]) <= 0).any():
            raise InvalidArgument(
                f"This is not a log of versions, but {_shown(entries)}.",
                hint=f"live=True; or the log of another run, pairs of sample and version: {_EXAMPLE}",
            )
        return cls(width, found)

    def __len__(self) -> int:
        return len(self._first)

    def at(self, sample: int) -> Versions | None:
        """Return the versions that a sample is drawn from; None before the first entry."""
        return self._entry(bisect_right(self._first, sample) - 1)

    def _entry(self, number: int) -> Versions | None:
        at = number * self._width
        return tuple(self._numbers[at : at + self._width]) if number >= 0 else None

    def last(self) -> Versions:
        """Return the versions of the last entry; there must be one."""
        assert self._newest is not None
        return self._newest

    def between(self, sample: int, stop: int) -> Iterator[tuple[int, Versions]]:
        """Yield the entries in force from ``sample`` to ``stop``."""
        first = max(0, bisect_right(self._first, sample) - 1)
        for number in range(first, bisect_left(self._first, stop)):
            found = self._entry(number)
            assert found is not None
            if stop > sample:
                yield self._first[number], found

    def end(self, sample: int) -> int | None:
        """Return the first sample after ``sample`` that is drawn from other versions; None without one."""
        number = bisect_right(self._first, sample)
        return self._first[number] if number < len(self._first) else None

    def note(self, sample: int, numbers: Versions) -> None:
        """Note that samples from ``sample`` on are drawn from other versions than those before, if they are."""
        if numbers != self._newest:
            self._first.append(sample)
            self._numbers.extend(numbers)
            self._newest = numbers

    def cut(self, sample: int) -> None:
        """Forget the entries from ``sample`` on."""
        kept = bisect_left(self._first, sample)
        del self._first[kept:], self._numbers[kept * self._width :]
        self._newest = self._entry(kept - 1)

    def upto(self, sample: int) -> IntArray:
        """Return the entries up to ``sample``, int64 [n, 1 + width]."""
        count = bisect_right(self._first, sample)
        numbers = np.array(self._numbers[: count * self._width], np.int64).reshape(count, self._width)
        return np.concatenate([np.array(self._first[:count], np.int64)[:, None], numbers], 1)


_EXAMPLE = 'live=state, or live=state["versions"]'


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 60 else f"{text[:60]}..."


class LiveData(Protocol):
    """The data of a live loader: one dataset, or several of which some grow."""

    @property
    def versions(self) -> Versions:
        """Numbers of the versions that are taken up."""
        ...

    def newest(self) -> Versions:
        """Look for the newest versions: cheap, nothing is opened."""
        ...

    def take_up(self, wanted: Versions) -> BatchSource:
        """Return the source over these versions. Sources before it stay as they are.

        Raises
        ------
        EmptyWindow
            Nothing can be drawn from them; nothing is changed.
        DatasetNotFound
            One of them was freed.
        """
        ...

    @property
    def learns(self) -> bool:
        """True if draws depend on what training reports."""
        ...

    def at(self, wanted: Versions) -> BatchSource:
        """Return the source that reads what was drawn from these versions; nothing is taken up.

        Raises
        ------
        DatasetNotFound
            One of them was freed.
        """
        ...

    def frontier(self, position: Position) -> int:
        """Return the first sample from ``position`` on that is not drawn yet."""
        ...

    def version_id(self, wanted: Versions) -> str:
        """Return the version id of these versions, also where they were freed; see `Table.version_id`.

        Raises
        ------
        DatasetNotFound
            There are no such versions.
        """
        ...


class LiveDataset:
    """One growing dataset, see `LiveData`; at the version ``first`` to begin with, or as it is given.

    Attributes
    ----------
    dataset : Dataset
        The dataset at the version that was taken up last.
    source : DatasetSource
    draw : Draw
    """

    def __init__(
        self,
        dataset: Dataset,
        request: Request,
        transforms: Transforms,
        arrays: ArrayBackend,
        first: Versions | None = None,
    ) -> None:
        check(dataset, request)
        self._request, self._transforms, self._arrays = request, transforms, arrays
        self.dataset = dataset
        self.draw: Draw
        self.draw, self.source = self._made(first or self.versions, None)
        self.dataset = self.source.locator.pool.dataset

    @property
    def versions(self) -> Versions:
        """The number of the version that is taken up, see `LiveData`."""
        return (self.dataset.version,)

    def newest(self) -> Versions:
        """Look for the newest version, see `LiveData`."""
        return (self.dataset.store.newest_version,)

    def take_up(self, wanted: Versions) -> DatasetSource:
        """Return the source over a version, see `LiveData`."""
        draw = self.draw
        self.draw, self.source = self._made(wanted, draw.take_up if isinstance(draw, StatefulDraw) else None)
        self.dataset = self.source.locator.pool.dataset
        return self.source

    def at(self, wanted: Versions) -> DatasetSource:
        """Return the source that reads what was drawn from a version, see `LiveData`."""
        assert isinstance(self.draw, StatefulDraw)
        return self._made(wanted, self.draw.over)[1]

    def _made(self, wanted: Versions, over: Callable[[WindowIndex], Draw] | None) -> tuple[Draw, DatasetSource]:
        same = wanted == self.versions
        dataset = self.dataset if same else Dataset(self.dataset.store.at(*wanted))
        return build.dataset_source(dataset, self._request, self._transforms, self._arrays, over)

    @property
    def learns(self) -> bool:
        """True if the draw learns from training, see `LiveData`."""
        return isinstance(self.draw, StatefulDraw)

    def frontier(self, position: Position) -> int:
        """Return the first sample that is not drawn yet, see `LiveData`."""
        return self.draw.frontier(*position) if isinstance(self.draw, StatefulDraw) else position.sample

    def version_id(self, wanted: Versions) -> str:
        """Return the version id of a version, see `LiveData`."""
        return self.dataset.store.table.version_id_of(*wanted)


def check(dataset: Dataset, request: Request) -> None:
    """Refuse what cannot be live.

    Raises
    ------
    InvalidArgument
    """
    sampler = type(request.sampler).__name__
    if dataset.store.why_fixed:
        raise InvalidArgument(
            f"live=True on {dataset.id}: {dataset.store.why_fixed}.",
            hint="live=False; rlds_cli.writer(...) makes growing datasets; others are opened again",
        )
    if dataset.is_selection:
        raise InvalidArgument(
            f"live=True on a selection of {dataset.id}: later episodes are in no selection.",
            hint="the whole dataset; or live=False",
        )
    if not request.sampler.endless:
        raise InvalidArgument(
            f"live=True with {sampler}: its epochs have a fixed number of samples.", hint="Uniform(), or live=False"
        )
    given = getattr(request.sampler, "weight", None), getattr(request.sampler, "priority", None)
    if any(isinstance(x, np.ndarray) for x in given):
        raise InvalidArgument(
            f"live=True with an array in {sampler}: it has no numbers for episodes to come.",
            hint=f'the name of an episode column: {sampler}("total_reward")',
        )


class LiveVersions:
    """The versions of one loader: takes them up, notes them, and keeps the readers of runs to come.

    Parameters
    ----------
    data : LiveData
    reader : BatchReader
        The reader of the versions that ``data`` are at.
    ahead : int
        Runs that are read ahead.
    replayed : VersionLog, optional
        The log of another run, which decides instead of the time.
    agreement : Agreement, optional
        That of several ranks.

    Attributes
    ----------
    log : VersionLog
    reader : BatchReader
        Of the versions that are taken up.
    """

    def __init__(
        self,
        data: LiveData,
        reader: BatchReader,
        *,
        ahead: int,
        replayed: VersionLog | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        self._data, self.reader, self._replayed, self._agreement = data, reader, replayed, agreement
        self._width = len(data.versions)
        self.log = VersionLog(self._width)
        self._readers: deque[tuple[int, BatchReader]] = deque()  # first sample, ascending
        self._epoch, self._pace = 0, _Pace(FRESH / (1 + ahead))
        self._useless: Versions = ()  # versions without a window
        self._batch_size = self._mine = self._most = 1

    # -- runs

    def begin(self, position: Position, batch_size: int, mine: int) -> None:
        """Go to ``position``: samples that are not drawn yet are of the versions to come.

        Batches are of ``batch_size`` samples, of which ``mine`` are this rank's.
        """
        self._batch_size, self._mine, self._most = batch_size, mine, self.reader.batches_at_once(mine)
        if position.epoch != self._epoch:
            self.log.cut(0)
            self._readers.clear()
        self._epoch, frontier = position.epoch, self._data.frontier(position)
        self.log.cut(frontier)
        while self._readers and self._readers[-1][0] >= frontier:
            self._readers.pop()
        self._pace.begin()
        if self._agreement is not None:
            self._agreement.begin()

    def most(self, position: Position) -> int:
        """Take up what is due before a run at ``position``; return how many batches it may have."""
        drawn, most = self._data.frontier(position), self._most
        if self._replayed is not None:
            most = min(most, self._until(drawn, position))
            self._take_up(self._replayed.at(drawn) or self._data.versions)
        elif self._agreement is not None and not self._agreement.leads:
            wanted, most = self._agreement.follow()
            self._take_up(wanted)
        else:
            if most > 1:
                most = self._pace.most(position.sample // self._batch_size, most)
            if self._pace.due:
                self._pace.took(self._look)
            if self._agreement is not None:
                self._agreement.decide(self._data.versions, most, self.reader)
        self.log.note(drawn, self._data.versions)
        if not self._readers or self._readers[-1][1] is not self.reader:
            self._readers.append((drawn, self.reader))
        return most

    def _look(self) -> bool:
        """Take up the newest versions; return whether there were any."""
        newest = self._data.newest()
        if newest in (self._data.versions, self._useless):
            return False
        try:
            self._take_up(newest)
        except EmptyWindow:  # go on with the older ones, until there is something to draw again
            self._useless = newest
        except DatasetNotFound:  # freed between the look and now: there is a newer one
            pass
        return True

    def _take_up(self, wanted: Versions) -> None:
        if wanted != self._data.versions:
            self.reader = self.reader.over(self._data.take_up(wanted))
            self._most = self.reader.batches_at_once(self._mine)

    def _until(self, sample: int, position: Position) -> int:
        """Return how many batches lie before the next entry of the log that is replayed."""
        assert self._replayed is not None
        end = self._replayed.end(sample)
        if end is None:
            return 1 << 30
        batches, beyond = divmod(end - position.sample, self._batch_size)
        if beyond:
            raise WrongState(
                f"The log takes up version {', '.join(map(str, self._replayed.at(end) or ()))} at sample {end:,},"
                f" within a batch of {self._batch_size:,}.",
                hint="the batch size of the run that the log is of",
            )
        return batches

    def reader_of(self, run: SampleRun) -> BatchReader:
        """Return the reader of the version that a run is drawn from; later runs are not of older ones."""
        while len(self._readers) > 1 and self._readers[1][0] <= run.first:
            self._readers.popleft()
        return self._readers[0][1]

    # -- state

    def state(self, position: Position) -> dict[str, Any]:
        """Return the log of all that was drawn when the samples before ``position`` were given out."""
        found = self.log.upto(max(0, self._data.frontier(position) - 1))
        if position.epoch != self._epoch or not len(found):
            found = np.array([[position.sample, *self._data.versions]])
        return {KEY: portable(found)}

    def load(self, state: Mapping[str, Any], position: Position) -> None:
        """Take over the log of a `state`.

        Samples from ``position`` on are drawn from the newest version, or from that of the log that is replayed;
        what was drawn ahead is read from its own. A draw that learns, which must be loaded before, continues from the
        version that it was at, or from the newest one if that was freed.

        Raises
        ------
        WrongState
            It is not a state of a live loader, or versions that are needed were freed.
        """
        self.log, self._epoch = _log_of(state, self._width), position.epoch
        self._readers.clear()
        if not self._data.learns:
            return
        try:
            for sample, wanted in self.log.between(position.sample, self._data.frontier(position)):
                self._readers.append((sample, self.reader.over(self._data.at(wanted))))
            self.reader = self.reader.over(self._taken_up(self.log.last()))
        except DatasetNotFound as e:
            raise WrongState(
                f"batches of this state were drawn ahead: {e.message}", hint="Prioritized(lag=0)"
            ) from None

    def _taken_up(self, wanted: Versions) -> BatchSource:
        try:
            return self._data.take_up(wanted)
        except DatasetNotFound:
            if self._replayed is not None or self._agreement is not None:
                raise
            return self._data.take_up(self._data.newest())

    def last(self, position: Position) -> Versions:
        """Return the versions of the last sample before ``position``."""
        found = self.log.at(max(0, position.sample - 1)) if position.epoch == self._epoch else None
        return found or self._data.versions

    def version_id(self, state: Mapping[str, Any]) -> str:
        """Return the version that a state should have: of the last versions of its log.

        Raises
        ------
        WrongState
            It is not a state of a live loader, or of versions that are not there.
        """
        log = _log_of(state, self._width)
        try:
            return self._data.version_id(log.last())
        except DatasetNotFound as e:
            raise WrongState(f"this state is of another dataset: {e.message}", hint="the same dataset") from None


def _log_of(state: Mapping[str, Any], width: int) -> VersionLog:
    check_type(state)
    if KEY not in state:
        raise WrongState("this state is not of a live loader: it has no log of versions.", hint="live=False")
    try:
        return VersionLog.read(state, width)
    except InvalidArgument as e:
        raise WrongState(e.message) from None


class Agreement:
    """Ranks that draw from the same versions: one decides about every run, and the others do as it did.

    Decisions go through the key-value store by which ``torch.distributed`` found the ranks. That is not a collective:
    nothing waits for a device, and the order of the training's own collectives does not matter. The rank that decides
    keeps the versions of its last runs open until all others have come to them.
    """

    def __init__(self, number: int) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        self._store = PrefixStore(f"rlds/live/{number}", _get_default_store())
        self._rank, self._others = dist.get_rank(), range(1, dist.get_world_size())
        self._pass = self._run = 0
        self._kept: deque[tuple[int, Any]] = deque()  # run and reader

    @classmethod
    def of(cls, ranks: Ranks, replayed: VersionLog | None) -> Agreement | None:
        """Return the agreement of several ranks; None for one, and where a log decides.

        Raises
        ------
        InvalidArgument
            The ranks cannot talk to each other.
        """
        if ranks.world == 1 or replayed is not None:
            return None
        if distributed() is None:
            raise InvalidArgument(
                f"live=True on {ranks}: ranks must draw from the same versions, and cannot agree on them.",
                hint="torch.distributed.init_process_group(...) first; or live= the log of another run",
            )
        return cls(next(_AGREEMENTS))

    @property
    def leads(self) -> bool:
        """True on the rank that decides."""
        return self._rank == 0

    def lead(self, versions: Versions) -> None:
        """Tell the others which versions all ranks begin with; none of them if this rank gave up."""
        self._store.set("first", " ".join(map(str, versions)))

    def first(self, wait: float) -> Versions:
        """Return the versions that the rank that decides begins with, for which it may wait so many seconds.

        Raises
        ------
        EmptyWindow
            That rank has given up.
        """
        self._store.wait(["first"], timedelta(seconds=min(wait, _LONGEST) + _PATIENCE))
        if found := tuple(map(int, self._store.get("first").split())):
            return found
        raise EmptyWindow("Rank 0 has nothing to draw from; its own error says why.")

    def begin(self) -> None:
        """Start a pass, as all ranks do."""
        self._pass, self._run = self._pass + 1, 0
        self._kept.clear()

    def decide(self, versions: Versions, most: int, reader: Any) -> None:
        """Tell the others from which versions to draw the next run, and how many batches it has at most."""
        self._store.set(f"{self._pass}/{self._run}", " ".join(map(str, (most, *versions))))
        self._kept.append((self._run, reader))
        self._run += 1
        block = self._run // _TOGETHER - 2
        if block >= 0 and self._run % _TOGETHER == 0:
            read = [f"{self._pass}/read/{block}/{rank}" for rank in self._others]
            self._store.wait(read)
            runs = range(block * _TOGETHER, (block + 1) * _TOGETHER)
            for key in (*read, *(f"{self._pass}/{run}" for run in runs)):
                self._store.delete_key(key)
            while self._kept[0][0] < runs.stop:
                self._kept.popleft()

    def follow(self) -> tuple[Versions, int]:
        """Wait for the decision about the next run, and return it: versions, and how many batches at most."""
        most, *versions = map(int, self._store.get(f"{self._pass}/{self._run}").split())
        self._run += 1
        if self._run % _TOGETHER == 0:
            self._store.set(f"{self._pass}/read/{self._run // _TOGETHER - 1}/{self._rank}", "")
        return tuple(versions), most


_PATIENCE, _LONGEST = 300.0, 1e9  # seconds that ranks may be apart when they make a loader; and a time without end
_TOGETHER = 64  # runs between two words of the others that they have come so far
_AGREEMENTS = itertools.count()  # live loaders are made in the same order on all ranks


class _Pace:
    """The times at which a loader looks for new versions, and the length of its runs."""

    def __init__(self, fresh: float) -> None:
        self._fresh, self._next = fresh, 0.0
        self.begin()

    def begin(self) -> None:
        """Start a pass."""
        self._batch, self._time = -1, 0.0

    @property
    def due(self) -> bool:
        """True if it is time to look."""
        return time.monotonic() >= self._next

    def took(self, look: Callable[[], bool]) -> None:
        """Look, and rest for as long as it deserves."""
        start = time.monotonic()
        found = look()
        end = time.monotonic()
        self._next = end + max(LOOK, REST * (end - start) if found else 0.0)

    def most(self, batch: int, most: int) -> int:
        """Return how many batches from number ``batch`` on are asked for soon enough, going by those before."""
        now = time.monotonic()
        passed, each = batch - self._batch, now - self._time
        soon = most if self._batch < 0 or passed <= 0 else int(self._fresh * passed / max(each, 1e-9))
        self._batch, self._time = batch, now
        return max(1, min(most, soon))
