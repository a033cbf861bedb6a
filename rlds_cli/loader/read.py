"""From sample numbers to batches: locate the samples of a gather, read them column by column, transform, split."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlds_cli.dataset.batch import Batch
from rlds_cli.dataset.provenance import EpisodeOrigins
from rlds_cli.dataset.transforms import Elementwise, Reward
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.fields.columns import BatchColumn, MappedColumn, NeighbourColumn, RewardSumColumn
from rlds_cli.loader.fields.fields import no_reward
from rlds_cli.loader.index import WindowIndex
from rlds_cli.loader.order import Order, SampleNumbers
from rlds_cli.loader.samplers import Draw, StatefulDraw
from rlds_cli.loader.schedule import Ranks, SampleRun
from rlds_cli.loader.storage.blocks import PackedReader
from rlds_cli.loader.storage.page_cache import Advice, PlannedRead, ReadAhead, prefetch_depth
from rlds_cli.loader.windows.samples import Samples
from rlds_cli.loader.windows.windows import Episode, Spanning, Window
from rlds_cli.ted import REWARD, Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

GATHER_BYTES = 3 << 20  # read at once: enough to share the cost of a call, little enough to stay in a cache
MOST_BATCHES = 56
LOOK_AHEAD = 2  # gathers announced to the kernel before they are read
Places = tuple[IntArray, ...]
BatchFunction = Callable[[Batch], Batch | None]


@dataclass(frozen=True, slots=True)
class SampleLocator:
    """Finds the rows of samples: windows of the dataset, draw and window together."""

    pool: WindowIndex
    draw: Draw
    window: Window
    reach: Spanning | None

    def samples(self, order: Order, positions: SampleNumbers, batch: range) -> Samples:
        """Return the samples with these numbers; ``batch`` holds the numbers of all ranks."""
        drawn = self.draw(order, positions)
        if self.pool.bucket is not None:
            steps = self.pool.table.steps
            drawn = replace(drawn, longest=int(steps.take(self.draw(order, batch).episode).max(initial=0)))
        return self.window.place(self.pool.table, drawn, self.reach)


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


class BatchSource(Protocol):
    """The origin of a reader's columns: one dataset, or a mixture."""

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the fields, in order."""
        ...

    @property
    def summed(self) -> frozenset[str]:
        """Fields whose values are transformed already: each before it was summed."""
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

    def gather(self, located: Any) -> Gathered:
        """Read the located samples. Any thread may call this."""
        ...


class DatasetSource:
    """The columns of one dataset.

    Parameters
    ----------
    locator : SampleLocator
    columns : mapping of str to BatchColumn
        By field name, in order.

    Attributes
    ----------
    packed : PackedReader or None
        Reads some of the columns faster.
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

    def __init__(self, locator: SampleLocator, columns: Mapping[str, BatchColumn]) -> None:
        self.locator, self.columns = locator, columns
        self.packed: PackedReader | None = None
        self.packing = ""
        self.decodes = False
        self.held: frozenset[str] = frozenset()
        self.unread: Sequence[str] = ()
        self.shadowed: Sequence[str] = ()
        self.names = tuple(columns)
        self._mapped = {n: c for n, c in columns.items() if isinstance(c, MappedColumn)}
        self._blanked = {n: c for n, c in columns.items() if locator.window.zeroed or isinstance(c, NeighbourColumn)}
        self.summed = frozenset(name for name, c in columns.items() if isinstance(c, RewardSumColumn))
        reach = locator.window.reach(int(locator.pool.table.steps.max()))
        self.sample_bytes = reach * sum(c.row_bytes for c in columns.values())

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

    def locate(self, run: SampleRun, ranks: Ranks) -> Samples:
        """Find the rows of this rank's samples, see `BatchSource`."""
        return self.locator.samples(run.order, run.of(ranks), range(run.first, run.first + run.size))

    def planned_reads(self, located: Samples) -> list[PlannedRead]:
        """Return the reads of the store's files and of packed rows, see `BatchSource`."""
        found = [] if self.packed is None else self.packed.planned_reads(located)
        seen: dict[tuple[int, int], PlannedRead] = {}
        for name, column in self._mapped.items():
            file = None if column.column is None else column.column.file
            if file is not None and (self.packed is None or name not in self.packed):
                place = column.place(located)
                first, length = place.stretches
                wider = length + 1  # also the row after, which most columns read as well
                seen[id(column.column), id(place)] = PlannedRead(file, first, wider)
        return [*found, *seen.values()]

    def gather(self, located: Samples) -> Gathered:
        """Read the columns, see `BatchSource`."""
        known = self.packed.read(located) if self.packed is not None else {}
        values = {name: known[name] if name in known else c.read(located) for name, c in self.columns.items()}
        return Gathered(values, self._blank(located))

    def _blank(self, samples: Samples) -> dict[str, Places]:
        masks = {name: column.mask(samples) for name, column in self._blanked.items()}
        outside = {id(mask): np.nonzero(~mask) for mask in masks.values() if mask is not None}
        return {name: outside[id(mask)] for name, mask in masks.items() if mask is not None}


@dataclass(slots=True)
class Transforms:
    """The transforms of a loader: elementwise ones for many batches at once, then functions of one batch.

    ``like`` maps columns to the field that they are transformed like.
    """

    elementwise: list[Elementwise] = field(default_factory=list)
    functions: list[BatchFunction] = field(default_factory=list)
    like: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, transforms: Sequence[Any]) -> Transforms:
        """Split transforms, in order, at the first that is not elementwise: the rest work on batches."""
        first = next((i for i, t in enumerate(transforms) if not isinstance(t, Elementwise)), len(transforms))
        return cls(list(transforms[:first]), list(transforms[first:]))

    def check(self, names: Sequence[str], dataset: Dataset, *, summed: bool) -> None:
        """Refuse transforms that change no field, or that come too late for rewards that are summed.

        Raises
        ------
        NoReward, UnknownField
            A transform changes none of the fields ``names``.
        InvalidArgument
            Rewards change after a function of the batch, with n-step sums.
        """
        late = [t for t in self.functions if isinstance(t, Elementwise)]
        for transform in (*self.elementwise, *late):
            if not any(self._touched(transform, name) for name in names):
                if isinstance(transform, Reward) and REWARD not in dataset.schema:
                    raise no_reward(dataset)
                raise UnknownField(f"{transform} touches none of the fields of this loader: {', '.join(names)}.")
            if summed and transform in late and transform.touches(REWARD):
                raise InvalidArgument(
                    f"{transform} would change the n-step sum, not each reward.", hint="put it before the functions"
                )

    def column(self, name: str, values: Any) -> Any:
        """Apply the elementwise transforms to one column."""
        for transform in self.elementwise:
            field = self._touched(transform, name)
            if field:
                values = transform.apply(field, values)
        return values

    def batch(self, batch: Batch) -> Batch:
        """Apply the functions of a batch; one that returns None has changed it in place."""
        for function in self.functions:
            if isinstance(function, Elementwise):
                self._each(function, batch)
            else:
                result = function(batch)
                batch = batch if result is None else result
        return batch

    def _each(self, transform: Elementwise, batch: Batch) -> None:
        for name, x in list(batch.leaves()):
            field = self._touched(transform, name)
            if field:
                batch[name] = transform.apply(field, x)

    def _touched(self, transform: Elementwise, name: str) -> str:
        """Return the name under which ``transform`` changes a column: its own, or that of its field; else empty."""
        names = (name, self.like.get(name, name))
        return next((n for n in names if transform.touches(n)), "")


class BatchReader:
    """Reads batches of a source.

    Parameters
    ----------
    source : BatchSource
    ranks : Ranks
    transforms : Transforms
    arrays : ArrayBackend
    """

    def __init__(self, source: BatchSource, ranks: Ranks, transforms: Transforms, arrays: ArrayBackend) -> None:
        self.source, self.ranks, self.transforms, self.arrays = source, ranks, transforms, arrays
        self._tree = _tree(source.names)
        self.read_ahead = ReadAhead()
        keep_freed()

    def batches_at_once(self, size: int) -> int:
        """Return the number of batches of ``size`` samples to read in one gather."""
        pays = max(1, min(MOST_BATCHES, GATHER_BYTES // max(1, size * self.source.sample_bytes)))
        return self.arrays.at_once(pays if self.source.most is None else min(pays, self.source.most))

    def depth(self, size: int) -> int:
        """Return the default number of gathers, of batches of ``size`` samples, to read ahead."""
        one = self.source.sample_bytes
        gathered = one * size * self.batches_at_once(size)
        ships = self.arrays.ships and not self.source.resident
        return prefetch_depth(sample_bytes=one, gather_bytes=gathered, decodes=self.source.decodes, ships=ships)

    def located(self, runs: Iterable[SampleRun], *, early: bool) -> Iterator[tuple[SampleRun, Any, Advice]]:
        """Locate the samples of each run; with ``early``, some runs ahead while data come from the disk."""
        waiting: deque[tuple[SampleRun, Any, Advice]] = deque()
        for run in runs:
            located = self.locate(run)
            waiting.append((run, located, self.advise(located)))
            while len(waiting) > (LOOK_AHEAD if early and self.read_ahead.advising else 0):
                yield waiting.popleft()
        yield from waiting

    def locate(self, run: SampleRun) -> Any:
        """Find the rows of a run's samples, by index maths alone."""
        return self.source.locate(run, self.ranks)

    def advise(self, located: Any) -> Advice:
        """Announce coming reads to the kernel, where that pays; pass the result to `read`."""
        return self.read_ahead.advise(self.source.planned_reads(located)) if self.read_ahead.advising else ()

    def read(self, run: SampleRun, located: Any, told: Advice = ()) -> Iterator[Batch]:
        """Read the batches of a run; functions of a batch are called as each batch is asked for."""
        with self.read_ahead.gather(told):
            gathered = self.source.gather(located)
        size = len(self.ranks.part(range(run.size)))
        values, blank = self._converted(gathered)
        finished = {name: self._finish(name, x, blank) for name, x in values.items()}
        made = _assemble(self._tree, self.arrays.parts(finished, size))
        made = map(self.transforms.batch, made) if self.transforms.functions else made
        whole = isinstance(self.source, DatasetSource) and isinstance(self.source.locator.window, Episode)
        return self._known(made, located, size) if whole else made

    def _known(self, batches: Iterator[Batch], located: Samples, size: int) -> Iterator[Batch]:
        """Attach their episodes to batches of whole episodes."""
        assert isinstance(self.source, DatasetSource)
        episodes = self.source.locator.pool.dataset
        numbers = episodes.episodes.index.take(located.table.number.take(located.episode))
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
        return values


Tree = dict[str, Any]  # leaves are full field names


def _tree(names: Iterable[str]) -> Tree:
    tree: Tree = Batch.nest((name, name) for name in names)
    return tree


def _assemble(tree: Tree, parts: Mapping[str, Sequence[Any]]) -> Iterator[Batch]:
    """Yield one batch after the other; each level of nesting is a zip over the levels below."""
    below = [_assemble(node, parts) if isinstance(node, dict) else parts[node] for node in tree.values()]
    return map(Batch, map(zip, repeat(tuple(tree)), zip(*below, strict=True)))


_MOST = (32 << 20) - (64 << 10)  # pieces above 32 MiB do not raise glibc's threshold


def keep_freed() -> None:
    """Make the C library keep freed memory, instead of returning it to the kernel and asking for it at every gather.

    glibc maps pieces larger than a threshold, and returns the top of its heap when twice that much is free. The
    threshold is 128 KiB at first, and rises to the size of any mapped piece that is freed (mallopt(3)). With gathers of
    some MiB it is then a matter of luck whether each starts with hundreds of page faults: 54 or 14 µs a batch. Freeing
    one large untouched piece settles it, for 10 µs. In other C libraries this does nothing.
    """
    np.empty(_MOST, np.uint8)
