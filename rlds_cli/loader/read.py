"""From sample numbers to batches: locate the samples of a run, gather one batch after the other, transform, nest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Batch, Elementwise, EpisodeOrigins, Reward
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.fields.cached import cached, is_cached
from rlds_cli.loader.fields.columns import BatchColumn, Decoding
from rlds_cli.loader.fields.fields import no_reward
from rlds_cli.loader.index import Located, WindowIndex
from rlds_cli.loader.kernel import Bound, NStep, Output, Plan, RowPlace, SampleNumbers, Value
from rlds_cli.loader.order import Order
from rlds_cli.loader.samplers import Draw, StatefulDraw
from rlds_cli.loader.schedule import Ranks, SampleRun
from rlds_cli.loader.slabs import Kinds, Slabs, nesting
from rlds_cli.loader.storage.page_cache import Advice, PlannedRead, ReadAhead, merged_bytes, prefetch_depth
from rlds_cli.loader.storage.remote import (
    BYTES_AHEAD,
    MISSING_AHEAD,
    MOST_RUNS_AHEAD,
    Arrival,
    RemoteReads,
    blocks_of,
)
from rlds_cli.loader.windows.windows import Episode, Window
from rlds_cli.ted import REWARD, Field

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

RUN_BYTES = 12 << 20  # of the batches whose samples are drawn together: 3 MiB cost slices of 340 kB 7 % more
LARGE_BATCH, LARGE_RUN = 1 << 20, 3 << 20  # runs of large batches stay short: threads read whole runs ahead
MOST_BATCHES = 56
MOST_MERGED = 8  # batches whose frames of videos are decoded together
CALL_BYTES = 1 << 20  # of the batches of one call of the kernel: other threads run meanwhile, and caches hold them
MOST_TOGETHER = 32
LOOK_AHEAD = 2  # runs announced to the operating system before they are read
Places = tuple[IntArray, ...]
BatchFunction = Callable[[Batch], Batch | None]


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


class CompiledColumns:
    """Columns, and the plan that the kernel follows to write their outputs."""

    def __init__(
        self,
        pool: WindowIndex,
        columns: Mapping[str, BatchColumn],
        changed: Collection[str],
        n_step: NStep | None,
    ) -> None:
        self._names, self._starts = tuple(columns), pool.starts
        self._read = [(c.rows.file, c.outputs[0]) for c in columns.values() if c.rows is not None and c.rows.file]
        self._finished: list[tuple[str, int, BatchColumn]] = []  # columns made of outputs, and their first one
        self._direct: list[tuple[str, int]] = []  # columns that are an output
        self._inside: list[tuple[str, int]] = []  # outputs that say which values are real
        outputs: list[Output] = []
        for name, c in columns.items():
            late = c.mask and (c.finish is not None or name in changed)
            if c.finish is not None:
                self._finished.append((name, len(outputs), c))
                outputs += c.outputs
            else:
                self._direct.append((name, len(outputs)))
                outputs.append(c.outputs[0] if late or not c.mask else replace(c.outputs[0], mask=c.mask, blank=True))
            if late:
                self._inside.append((name, len(outputs)))
                outputs.append(c.inside())
        self._plan, self._summed = Plan(pool.windows, outputs, n_step), n_step.most if n_step else 1
        self._plain = not self._finished and not self._inside
        self._together: list[tuple[int, int, Decoding]] = []  # of each field in videos, the output that is decoded
        firsts: dict[str, tuple[int, BatchColumn]] = {}
        for _, i, c in self._finished:
            if c.decoding is not None:
                firsts.setdefault(c.decoding.key, (i, c))
        for i, c in firsts.values():
            if c.decoding is not None and c.decoding.together and c.as_read:
                self._together.append((i, c.outputs[0].shift, c.decoding))
        self.remote: RemoteReads | None = None
        self._encoded: Plan | None = None  # the rows of encoded frames of a remote dataset
        if blocks_of(pool.dataset) is not None:
            frames = [
                (c.outputs[0], c.decoding.encoded)
                for c in columns.values()
                if c.decoding is not None and c.decoding.encoded is not None and c.decoding.encoded.place is not None
            ]
            if frames:
                self._encoded = Plan(pool.windows, [replace(o, also=()) for o, _ in frames], n_step)
            encoded = [(of, o.shift) for o, of in frames]
            sums = n_step is not None and n_step.terminated is not None
            self.remote = RemoteReads(pool.dataset, self._plan, sums=sums, encoded=encoded)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._names

    @property
    def kinds(self) -> Kinds:
        """Dtype and shape of a step of each output; each is a column if they are final."""
        return self._plan.made

    def is_final(self, floats: str | None) -> bool:
        """Return whether each column is an output, with floats in the dtype ``floats``."""
        kinds = [o.dtype for o in self._plan.outputs if o.dtype.kind == "f"]
        return self._plain and all(floats is None or kind.name == floats for kind in kinds)

    def arrival(self, located: Located) -> Arrival | None:
        """Return the blocks that reading these samples takes, announced; None where all are cached."""
        remote = self.remote
        if remote is None:
            return None

        def announced() -> Arrival | None:
            rows = None if self._encoded is None else self._bound(self._encoded, located)
            return remote.announce(self._bound_to(located), rows, len(located))

        return located.once(remote, announced)

    def writer(self, located: Located) -> Bound:
        """Return the samples, once all blocks that they are read from are cached."""
        return self.samples(located)

    def samples(self, located: Located) -> Bound:
        """Return the samples, once all blocks that they are read from are cached."""
        arrival = None if self.remote is None else self.arrival(located)
        if arrival is not None:
            arrival.wait()
        return self._bound_to(located)

    def _bound_to(self, located: Located) -> Bound:
        bound: Bound = located.once(self, self._bound, self._plan, located)
        return bound

    def read(self, located: Located, first: int, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the columns of samples [n] by name, and which values are real of those that are to be zeroed later."""
        return next(self.read_each(located, first, n, 1))

    def read_each(
        self, located: Located, first: int, n: int, batches: int
    ) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        """Yield what `read` returns of each of some batches [n], one after the other; videos are decoded at once."""
        samples = self.samples(located)
        at_once = batches if self._together else 1
        for start in range(0, batches, at_once):
            made = [samples.read(first + k * n, n) for k in range(start, start + at_once)]
            memos = [dict[str, Any]() for _ in made]
            for i, shift, decoding in self._together:
                decoding.decode_together(memos, [outputs[i] + shift for outputs in made])
            made.reverse()
            memos.reverse()
            while made:  # none is kept: the memory of each is used again when it is gone
                yield self._values(made.pop(), memos.pop())

    def _values(self, made: list[Array], memo: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        if self._plain:
            return dict(zip(self._names, made, strict=True)), {}
        values = {name: made[i] for name, i in self._direct}
        for name, i, c in self._finished:
            assert c.finish is not None
            values[name] = c.finish(memo, *made[i : i + len(c.outputs)])
        return {name: values[name] for name in self._names}, {name: made[i] for name, i in self._inside}

    @property
    def merges(self) -> bool:
        """Whether several batches take less work at once."""
        return bool(self._together)

    @property
    def of_steps(self) -> Plan | None:
        """The plan, if each column is an output that depends on a step alone, of rows on this disk; else None."""
        alone = self._plain and not self._plan.givens and self.remote is None
        return self._plan if alone else None

    @staticmethod
    def _bound(plan: Plan, located: Located) -> Bound:
        given = [located.once(make, make, located) for make in plan.givens]
        return Bound(plan, located.drawn.episode, located.drawn.number, given, located.length)

    def planned_reads(self, located: Located) -> list[PlannedRead]:
        """Return the reads of files that `read` will make, about; none of files that are not all here."""
        if self.remote is not None and not self.remote.whole:
            return []
        seen: dict[tuple[object, ...], PlannedRead] = {}
        for file, o in self._read:
            where = (o.place, o.given, o.offsets, o.amount)
            first, length = located.once(where, self._stretches, located, o)
            seen[id(file), where] = PlannedRead(file, first, length + 1)  # also the row after, which is often read
        return list(seen.values())

    def _stretches(self, located: Located, o: Output) -> tuple[IntArray, int]:
        """Return the first row that an output reads of each sample [K], and how many follow each other."""
        if o.place is RowPlace.GIVEN:
            assert o.given is not None
            return located.once(o.given, o.given, located), 1
        stride, offset = self._starts
        drawn, table = located.drawn, located.table
        step = drawn.number * stride + offset
        if o.place is RowPlace.OFFSETS:
            step, length = step + min(o.offsets), max(o.offsets) - min(o.offsets) + 1
        else:
            length = self._summed if o.place is RowPlace.LAST else max(1, located.length)
            step = step + o.amount
        steps, start = table.steps.take(drawn.episode), table.start.take(drawn.episode)
        return start + np.clip(step, 0, steps - 1), length


@dataclass(slots=True)
class Transforms:
    """The transforms of a loader: elementwise ones for many batches at once, then functions of one batch.

    ``like`` maps columns to the field that they are transformed like, ``fused`` to how many of their elementwise
    transforms were applied when they were read.
    """

    elementwise: list[Elementwise] = field(default_factory=list)
    functions: list[BatchFunction] = field(default_factory=list)
    like: dict[str, str] = field(default_factory=dict)
    fused: dict[str, int] = field(default_factory=dict)

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
            self._check_cache(transform, names)
            if summed and transform in late and transform.touches(REWARD):
                raise InvalidArgument(
                    f"{transform} would change the n-step sum, not each reward.", hint="put it before the functions"
                )

    def _check_cache(self, transform: Elementwise, names: Sequence[str]) -> None:
        """Refuse a transform that caches frames, and comes after others."""
        for name in names:
            field = self._touched(transform, name)
            if field and transform.resizing(field) is not None and self._touching(name)[:1] != [(transform, field)]:
                raise InvalidArgument(
                    f"{transform} caches frames as they are decoded, and comes after others that change {name}.",
                    hint="put it first",
                )

    def column(self, name: str, values: Any) -> Any:
        """Apply the elementwise transforms to one column."""
        for transform, of in self.left(name):
            values = transform.apply(of, values)
        return values

    def left(self, name: str) -> list[tuple[Elementwise, str]]:
        """Return the elementwise transforms that `column` applies to a column, each with the name of its field."""
        return self._touching(name)[self.fused.get(name, 0) :]

    def change(self, names: Iterable[str], summed: Collection[str]) -> bool:
        """Return whether an elementwise transform is left for one of the columns that are not ``summed``."""
        return any(self.left(name) for name in names if name not in summed)

    def _touching(self, name: str) -> list[tuple[Elementwise, str]]:
        touching = [(t, self._touched(t, name)) for t in self.elementwise]
        return [(t, field) for t, field in touching if field]

    def first(self, name: str) -> Elementwise | None:
        """Return the first transform of a column, if it works on what the archive has: centres it, or caches frames."""
        first = self._touching(name)[:1]
        return next((t for t, f in first if t.centring(f) is not None or t.resizing(f) is not None), None)

    def fuse(self, columns: dict[str, BatchColumn], schema: Mapping[str, Field]) -> None:
        """Have the first transform of a column applied as it is read, where that is possible.

        The kernel normalises float32 columns, of the archive's values; frames are resized, and cached, when they are
        decoded.
        """
        for name, c in columns.items():
            resize = next((t.resizing(field) for t, field in self._touching(name)[:1]), None)
            if resize is not None and c.decoding is not None and is_cached(schema[c.decoding.name]):
                columns[name] = cached(c, resize)
                self.fused[name] = 1
                continue
            output = c.outputs[0]
            kinds = output.value in (Value.COPY, Value.NARROW) and output.dtype == np.float32
            constants = next((t.centring(field) for t, field in self._touching(name)[:1]), None)
            if constants is None or not kinds or c.finish or c.summed:
                continue
            if np.broadcast_shapes(*(x.shape for x in constants), output.shape) == output.shape:
                columns[name] = replace(c, outputs=(replace(output, scale=constants),))
                self.fused[name] = 1

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
        with self.read_ahead.gather(told):
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
