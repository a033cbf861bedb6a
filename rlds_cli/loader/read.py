"""From sample numbers to batches: locate the samples of a run, gather one batch after the other, transform, nest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Batch, EpisodeOrigins
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.compiled import CompiledColumns
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.index import Located, WindowIndex
from rlds_cli.loader.kernel import NStep, SampleNumbers
from rlds_cli.loader.order import Order
from rlds_cli.loader.samplers import Draw, StatefulDraw
from rlds_cli.loader.schedule import Ranks, SampleRun
from rlds_cli.loader.slabs import Kinds, Slabs, nesting
from rlds_cli.loader.storage.page_cache import Advice, PlannedRead, ReadAhead, merged_bytes, prefetch_depth
from rlds_cli.loader.storage.remote import BYTES_AHEAD, MISSING_AHEAD, MOST_RUNS_AHEAD, RemoteReads
from rlds_cli.loader.transforms import Transforms
from rlds_cli.loader.windows.windows import Episode, Window

RUN_BYTES = 12 << 20  # of the batches whose samples are drawn together: 3 MiB cost slices of 340 kB 7 % more
LARGE_BATCH, LARGE_RUN = 1 << 20, 3 << 20  # runs of large batches stay short: threads read whole runs ahead
MOST_BATCHES = 56
MOST_MERGED = 8  # batches whose frames of videos are decoded together
CALL_BYTES = 1 << 20  # of the batches of one call of the kernel: other threads run meanwhile, and caches hold them
MOST_TOGETHER = 32
LOOK_AHEAD = 2  # runs announced to the operating system before they are read
Places = tuple[IntArray, ...]


@dataclass(frozen=True, slots=True)
class SampleLocator:
    """Finds windows for sample numbers."""

    pool: WindowIndex
    draw: Draw
    window: Window

    def locate(self, order: Order, positions: SampleNumbers, batch: range | None = None, longest: int = 0) -> Located:
        """Return the samples with these numbers.

        ``batch`` holds the numbers of all ranks: with a bucket, the longest of their episodes decides L, as
        ``longest`` does if it is positive.
        """
        drawn, table = self.draw(order, positions), self.pool.table
        if self.pool.bucket is not None and batch is not None:
            longest = int(table.steps.take(self.draw(order, batch).episode).max(initial=0))
        return Located(table, drawn, self.window.extent(longest or self.pool.longest))


@dataclass(frozen=True, slots=True)
class Gathered:
    """The columns of one gather.

    Attributes
    ----------
    values : dict of str to array [K, ...]
    blank : dict of str to tuple of int arrays
        Places to be zeroed after the transforms, ``values[places]``: of samples or of steps.
    complete : callable, optional
        Turns ``values`` on the device into all columns there.
    """

    values: dict[str, Array]
    blank: dict[str, Places]
    complete: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None


class BatchWriter(Protocol):
    """Samples that are written into batches."""

    @property
    def lead(self) -> tuple[int, ...]:
        """Axes of an array between that of the samples and those of a step."""
        ...

    def write(self, first: int, n: int, batches: int, places: Any) -> None:
        """Write batches of ``n`` samples from ``first`` on, see `Bound.write`."""
        ...


class BatchColumns(Protocol):
    """Columns that are read as batches have them."""

    @property
    def kinds(self) -> Kinds:
        """Dtype and shape of a step of each column."""
        ...

    def writer(self, located: Any) -> BatchWriter:
        """Return what writes these samples into batches."""
        ...


class BatchSource(Protocol):
    """The origin of a reader's columns: one dataset, or a mixture."""

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the fields, in order."""
        ...

    @property
    def sides(self) -> int:
        """Windows of a sample, see `Sampler`."""
        ...

    @property
    def summed(self) -> frozenset[str]:
        """Fields whose values are transformed already: each before it was summed."""
        ...

    @property
    def scalars(self) -> frozenset[str]:
        """Fields of scalars to which an axis of one element is added."""
        ...

    @property
    def sample_bytes(self) -> int:
        """Approximate bytes of a sample."""
        ...

    @property
    def most(self) -> int | None:
        """Largest number of batches in a gather; None for any."""
        ...

    @property
    def warnings(self) -> list[str]:
        """Warnings for the user."""
        ...

    @property
    def decodes(self) -> bool:
        """True if encoded frames are decoded."""
        ...

    @property
    def resident(self) -> bool:
        """True if columns reside on the device."""
        ...

    def locate(self, run: SampleRun, ranks: Ranks) -> Any:
        """Find the rows of this rank's samples of ``run``, by index maths alone."""
        ...

    def planned_reads(self, located: Any) -> list[PlannedRead]:
        """Return the reads of files that `gather` will make."""
        ...

    def gather(self, located: Any, first: int = 0, count: int | None = None) -> Gathered:
        """Read ``count`` of the located samples from number ``first`` on; None for all. Any thread may call this."""
        ...

    @property
    def apart(self) -> bool:
        """True if batches of a run can be gathered one by one."""
        ...

    @property
    def merges(self) -> bool:
        """True if several batches take less work at once."""
        ...

    def final(self, floats: str | None) -> BatchColumns | None:
        """Return the columns, if batches are what they read, with floats in the dtype ``floats``; else None."""
        ...

    @property
    def remote(self) -> Sequence[RemoteReads]:
        """The reads of remote datasets, of which not all blocks are cached."""
        ...

    def fill(self) -> None:
        """Have what is missing of remote datasets arrive in the background, where samples lie anywhere in them."""
        ...

    def announce(self, located: Any) -> int:
        """Announce the blocks of remote datasets that `gather` will read; return how many are missing.

        They are held as long as ``located`` exists.
        """
        ...


class DatasetSource:
    """The columns of one dataset.

    Parameters
    ----------
    locator : SampleLocator
    columns : mapping of str to BatchColumn
        By field name, in order.
    changed : collection of str
        Columns that are transformed after the kernel has written them: what is to be zero is zeroed then.
    n_step : NStep, optional
        The end of sums of rewards.
    sides : int
        Windows of a sample.

    Attributes
    ----------
    packing : str
        The place of the packed rows or the reason why there are none, for `Loader.describe`.
    decodes : bool
        True if encoded frames are among the columns.
    held : set of str
        Columns that reside on the device.
    unread : list of str
        Fields left out of batches because the dataset has no ``observation``.
    shadowed : list of str
        Fields left out of batches because the window or the sampler gives a column of the same name.
    """

    apart = True

    def __init__(
        self,
        locator: SampleLocator,
        columns: Mapping[str, BatchColumn],
        changed: Collection[str] = (),
        n_step: NStep | None = None,
        sides: int = 1,
    ) -> None:
        self.locator, self.columns, self.changed, self.n_step = locator, columns, changed, n_step
        self.sides = sides
        self.packing = ""
        self.decodes = False
        self.held: frozenset[str] = frozenset()
        self.unread: Sequence[str] = ()
        self.shadowed: Sequence[str] = ()
        self.names = tuple(columns)
        self.summed = frozenset(name for name, c in columns.items() if c.summed)
        self.scalars = frozenset(name for name, c in columns.items() if c.axis)
        reach = max(1, locator.window.extent(locator.pool.longest))
        self.sample_bytes = sides * reach * sum(c.row_bytes for c in columns.values())
        self.compiled = CompiledColumns(locator.pool, columns, changed, n_step)

    @property
    def resident(self) -> bool:
        """True if columns reside on the device."""
        return bool(self.held)

    @property
    def warnings(self) -> list[str]:
        """A warning about the fields left out of a dataset without ``observation``."""
        if not self.unread:
            return []
        given, left_out = ", ".join(self.names), ", ".join(self.unread)
        id = self.locator.pool.dataset.id
        return [f'{id} has no "observation": a batch holds {given}, not {left_out}. Name fields=, or fields="all".']

    @property
    def most(self) -> int | None:
        """1 where every batch has its own length, or depends on what was learned from the batch before."""
        return None if self.locator.pool.bucket is None and not isinstance(self.locator.draw, StatefulDraw) else 1

    def locate(self, run: SampleRun, ranks: Ranks) -> Located:
        """Find the windows of this rank's samples, see `BatchSource`."""
        return self.locator.locate(run.order, run.of(ranks), range(run.first, run.first + run.size))

    def planned_reads(self, located: Located) -> list[PlannedRead]:
        """Return the reads of the store's files and of packed rows, see `BatchSource`."""
        return self.compiled.planned_reads(located)

    @property
    def remote(self) -> Sequence[RemoteReads]:
        """The reads of a remote dataset, see `BatchSource`."""
        reads = self.compiled.remote
        return () if reads is None or reads.whole else (reads,)

    def fill(self) -> None:
        """Have what is missing arrive in the background, see `BatchSource`."""
        for reads in () if self.resident else self.remote:
            reads.fill()

    def announce(self, located: Located) -> int:
        """Announce the blocks that are read, see `BatchSource`."""
        arrival = self.compiled.arrival(located)
        return 0 if arrival is None else arrival.missing

    def final(self, floats: str | None) -> CompiledColumns | None:
        """Return the columns, see `BatchSource`; None of those on a device, which are row numbers here."""
        return self.compiled if not self.resident and self.compiled.is_final(floats) else None

    def gather(self, located: Located, first: int = 0, count: int | None = None) -> Gathered:
        """Read the columns, see `BatchSource`."""
        values, inside = self.compiled.read(located, first, len(located) if count is None else count)
        return Gathered(values, {name: np.nonzero(~real) for name, real in inside.items()})

    def gather_each(self, located: Located, size: int, batches: int) -> Iterator[Gathered]:
        """Yield what `gather` returns of each of some batches, of ``size`` samples."""
        for values, inside in self.compiled.read_each(located, 0, size, batches):
            yield Gathered(values, {name: np.nonzero(~real) for name, real in inside.items()})

    @property
    def merges(self) -> bool:
        """True if frames of videos are decoded, see `BatchSource`."""
        return self.compiled.merges


class BatchReader:
    """Reads batches of a source.

    Parameters
    ----------
    source : BatchSource
    ranks : Ranks
    transforms : Transforms
    arrays : ArrayBackend
    flat : bool
        Whether batches have scalars without the axis of one element, [B].
    """

    def __init__(
        self,
        source: BatchSource,
        ranks: Ranks,
        transforms: Transforms,
        arrays: ArrayBackend,
        read_ahead: ReadAhead | None = None,
        *,
        flat: bool = False,
    ) -> None:
        self.source, self.ranks, self.transforms, self.arrays, self._flat = source, ranks, transforms, arrays, flat
        self._flattened = source.scalars if flat else frozenset[str]()
        self.read_ahead = ReadAhead() if read_ahead is None else read_ahead
        tree = Batch.nest((name, i) for i, name in enumerate(source.names))
        self._nest = nesting(tree, len(source.names))
        left = transforms.change(source.names, source.summed)
        final = not arrays.together and not left and arrays.dtype == arrays.working
        self._compiled = source.final(arrays.working) if final else None
        self._slabs = None if self._compiled is None else Slabs(self._shaped(self._compiled.kinds), tree, arrays.wrap)
        window = source.locator.window if isinstance(source, DatasetSource) and source.sides == 1 else None
        self._whole = isinstance(window, Episode)
        self._apart = self._compiled is not None or (source.apart and not arrays.together)
        keep_freed()

    def over(self, source: BatchSource) -> BatchReader:
        """Return the reader of another source of the same fields, which takes over the advice of this one."""
        return BatchReader(source, self.ranks, self.transforms, self.arrays, self.read_ahead, flat=self._flat)

    def _shaped(self, kinds: Kinds) -> Kinds:
        """Return the kinds of the columns as batches have them, in the same memory."""
        names = self.source.names
        return [(d, x[:-1] if n in self._flattened else x) for n, (d, x) in zip(names, kinds, strict=True)]

    def batches_at_once(self, size: int) -> int:
        """Return the number of batches of ``size`` samples in a run: their samples are drawn together."""
        batch = max(1, size * self.source.sample_bytes)
        if self.source.merges and self._apart:
            pays = max(1, min(MOST_MERGED, merged_bytes() // batch))
        else:
            pays = max(1, min(MOST_BATCHES, (LARGE_RUN if batch > LARGE_BATCH else RUN_BYTES) // batch))
        return self.arrays.at_once(pays if self.source.most is None else min(pays, self.source.most))

    def depth(self, size: int) -> int:
        """Return the default number of gathers, of batches of ``size`` samples, to read ahead."""
        one = self.source.sample_bytes
        gathered = one * size * self.batches_at_once(size)
        ships = self.arrays.ships and not self.source.resident
        return prefetch_depth(sample_bytes=one, gather_bytes=gathered, decodes=self.source.decodes, ships=ships)

    def locate(self, run: SampleRun) -> LocatedRun:
        """Find the rows of a run's samples, by index maths alone, and announce them to the kernel and the stores."""
        found = self.source.locate(run, self.ranks)
        told = self.read_ahead.advise(self.source.planned_reads(found)) if self.read_ahead.advising else ()
        return LocatedRun(self, run, found, told, self.source.announce(found) if self.source.remote else 0)

    def read(self, run: SampleRun, located: Any, told: Advice = (), *, early: bool = False) -> Iterator[Batch]:
        """Read the batches of a run one after the other; all at once if ``early``.

        Functions of a batch are called as each batch is asked for.
        """
        size = len(self.ranks.part(range(run.size))) * self.source.sides
        made = self._one_by_one(run, located, told, size) if self._apart else self._together(located, told, size)
        made = iter(list(made)) if early else made
        made = map(self._sided, made) if self.source.sides > 1 else made
        made = map(self.transforms.batch, made) if self.transforms.functions else made
        absent, flat = located.absent, self._flattened
        if absent or flat:
            made = (batch.told(absent=absent, flat=flat) if isinstance(batch, Batch) else batch for batch in made)
        return self._known(made, located, size) if self._whole else made

    def _sided(self, batch: Batch) -> Batch:
        """Give the windows of a sample an axis of their own."""
        sides = self.source.sides
        return batch.map(lambda x: x.reshape(len(x) // sides, sides, *x.shape[1:]))

    def _one_by_one(self, run: SampleRun, located: Any, told: Advice, size: int) -> Iterator[Batch]:
        with self.read_ahead.gather(told, run.batches):
            if self._compiled is not None and self._slabs is not None:
                writer = self._compiled.writer(located)
                lead = size, *writer.lead
                together = max(1, min(MOST_TOGETHER, CALL_BYTES // max(1, size * self.source.sample_bytes)))
                for k in range(0, run.batches, together):
                    batches, places = self._slabs.take(lead, min(together, run.batches - k))
                    writer.write(k * size, size, len(batches), places)
                    batches.reverse()
                    while batches:  # none is kept: the memory of each is used again when it is gone
                        yield batches.pop()
            else:
                assert isinstance(self.source, DatasetSource)  # mixtures are gathered together
                for gathered in self.source.gather_each(located, size, run.batches):
                    values = self._finished(gathered)
                    del gathered
                    yield self._nest([values.pop(name) for name in self.source.names])

    def _together(self, located: Any, told: Advice, size: int) -> Iterator[Batch]:
        with self.read_ahead.gather(told):
            gathered = self.source.gather(located)
        parts = self.arrays.parts(self._finished(gathered), size)
        for values in zip(*(parts[name] for name in self.source.names), strict=True):
            yield self._nest(values)

    def _finished(self, gathered: Gathered) -> dict[str, Any]:
        values, blank = self._converted(gathered)
        return {name: self._finish(name, x, blank) for name, x in values.items()}

    def _known(self, batches: Iterator[Batch], located: Located, size: int) -> Iterator[Batch]:
        """Attach their episodes to batches of whole episodes."""
        assert isinstance(self.source, DatasetSource)
        episodes = self.source.locator.pool.dataset
        numbers = episodes.episodes.index.take(located.table.number.take(located.drawn.episode))
        for i, batch in enumerate(batches):
            yield batch.told(origins=EpisodeOrigins(episodes.store, numbers[i * size : (i + 1) * size]))

    def _converted(self, gathered: Gathered) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert columns, and the places to zero, to the backend's arrays: they go to the device together."""
        places = {f"\0{id(x)}": x for found in gathered.blank.values() for x in found}
        converted = self.arrays.convert({**gathered.values, **places})
        blank = {name: tuple(converted[f"\0{id(x)}"] for x in found) for name, found in gathered.blank.items()}
        for key in places:
            del converted[key]
        return (gathered.complete(converted) if gathered.complete else converted), blank

    def _finish(self, name: str, values: Any, blank: Mapping[str, Any]) -> Any:
        if name not in self.source.summed:
            values = self.transforms.column(name, values)
        values = self.arrays.finish(values)
        if name in blank:
            self.arrays.zero(values, blank[name])
        return values.reshape(values.shape[:-1]) if name in self._flattened else values


@dataclass(slots=True, eq=False)
class LocatedRun:
    """A run whose samples are located, its reader, and how many blocks of remote datasets it waits for."""

    reader: BatchReader
    run: SampleRun
    located: Any
    told: Advice
    missing: int = 0


def located(runs: Iterable[tuple[BatchReader, SampleRun]], *, early: bool) -> Iterator[LocatedRun]:
    """Locate the samples of each run; with ``early``, some runs ahead while data come from the disk or from afar."""
    waiting: deque[LocatedRun] = deque()
    given = missing = 0
    for reader, run in runs:
        newest = reader.locate(run)
        waiting.append(newest)
        missing += newest.missing
        while len(waiting) > (_ahead(newest, missing, given) if early else 0):
            missing -= waiting[0].missing
            yield waiting.popleft()
            given += 1
    while waiting:
        yield waiting.popleft()


def _ahead(newest: LocatedRun, missing: int, given: int) -> int:
    """Return how many runs to locate ahead: of remote datasets more and more, while few of their blocks are missing."""
    reader, run = newest.reader, newest.run
    near = LOOK_AHEAD if reader.read_ahead.advising else 0
    if not reader.source.remote or missing >= MISSING_AHEAD:
        return near
    size = max(1, run.batches * run.size * reader.source.sample_bytes)
    return min(max(MOST_RUNS_AHEAD, BYTES_AHEAD // size), near + 2 * given)


_MOST = (32 << 20) - (64 << 10)  # pieces above 32 MiB do not raise glibc's threshold


def keep_freed() -> None:
    """Make the C library keep freed memory, instead of returning it to the kernel and asking for it at every gather.

    glibc maps pieces larger than a threshold, and returns the top of its heap when twice that much is free. The
    threshold is 128 KiB at first, and rises to the size of any mapped piece that is freed (mallopt(3)). With gathers of
    some MiB it is then a matter of luck whether each starts with hundreds of page faults: 54 or 14 µs a batch. Freeing
    one large untouched piece settles it, for 10 µs. In other C libraries this does nothing.
    """
    np.empty(_MOST, np.uint8)
