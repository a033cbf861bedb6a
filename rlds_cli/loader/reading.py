"""From sample numbers to batches: many at a time, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.arrays import Arrays
from rlds_cli.loader.columns import Column, RewardSum
from rlds_cli.loader.fields import no_reward
from rlds_cli.loader.guide import Guide
from rlds_cli.loader.order import Order
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.table import Table
from rlds_cli.loader.transforms import Elementwise, Reward
from rlds_cli.loader.windows import Columns, Samples, Slice, SliceSamples, Window
from rlds_cli.ted import REWARD, Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

GATHER_BYTES = 3 << 20  # read at once: enough to share the cost of a call, little enough to stay in a cache
MOST_BATCHES = 56

BatchFunction = Callable[[Batch], Batch | None]


@dataclass(frozen=True, slots=True)
class Draw:
    """Which rows: table, sampler and window together."""

    table: Table
    windows: Guide
    sampler: Sampler
    window: Window
    columns: Columns

    def samples(self, order: Order, positions: range) -> Samples:
        """Where the samples with these numbers lie."""
        episode, number = self.sampler.draw(self.windows, order, positions)
        return self.window.place(self.table, episode, number, self.columns)


@dataclass(slots=True)
class Transforms:
    """What happens to values: element by element to many batches at once, then batch by batch."""

    elementwise: list[Elementwise] = field(default_factory=list)
    functions: list[BatchFunction] = field(default_factory=list)

    @classmethod
    def of(cls, transforms: Sequence[Any]) -> Transforms:
        """In order; those after the first function that is not elementwise work on batches."""
        first = next((i for i, t in enumerate(transforms) if not isinstance(t, Elementwise)), len(transforms))
        return cls(list(transforms[:first]), list(transforms[first:]))

    def check(self, names: Sequence[str], dataset: Dataset, *, summed: bool) -> None:
        """Refuse transforms that have nothing to do, or that come too late for rewards that are summed up.

        Raises
        ------
        NoReward, UnknownField
            None of the fields ``names`` is touched.
        InvalidArgument
            A change of rewards after a function of the batch, with n-step sums.
        """
        late = [t for t in self.functions if isinstance(t, Elementwise)]
        for transform in (*self.elementwise, *late):
            if not any(transform.touches(name) for name in names):
                if isinstance(transform, Reward) and REWARD not in dataset.schema:
                    raise no_reward(dataset)
                raise UnknownField(f"{transform} touches none of the fields of this loader: {', '.join(names)}.")
            if summed and transform in late and transform.touches(REWARD):
                raise InvalidArgument(
                    f"{transform} would change the n-step sum, not each reward.", hint="put it before the functions"
                )

    def column(self, name: str, values: Any) -> Any:
        """Apply those that are elementwise to one column."""
        for transform in self.elementwise:
            if transform.touches(name):
                values = transform.apply(name, values)
        return values

    def batch(self, batch: Batch) -> Batch:
        """Apply the others; one that returns None has worked in place."""
        for function in self.functions:
            result = function(batch)
            batch = batch if result is None else result
        return batch


class Reader:
    """Reads batches.

    Parameters
    ----------
    draw : Draw
    columns : mapping of str to Column
        By field name, in order.
    transforms : Transforms
    arrays : Arrays
    """

    def __init__(self, draw: Draw, columns: Mapping[str, Column], transforms: Transforms, arrays: Arrays) -> None:
        self.draw, self.columns, self.transforms, self.arrays = draw, columns, transforms, arrays
        self._tree = _tree(columns)
        window = draw.window
        self._zero = isinstance(window, Slice) and window.fill == "zero"
        self._length = window.length if isinstance(window, Slice) else 1

    def batches_at_once(self, size: int) -> int:
        """How many batches of ``size`` samples to read in one gather."""
        taken = size * self._length * sum(c.row_bytes for c in self.columns.values())
        return max(1, min(MOST_BATCHES, GATHER_BYTES // max(1, taken)))

    def read(self, order: Order, positions: range, batches: int) -> Iterator[Batch]:
        """Give the samples ``positions``, in ``batches`` batches of one size."""
        samples = self.draw.samples(order, positions)
        size = len(positions) // batches
        parts = {n: self.arrays.split(self._column(n, c, samples), size) for n, c in self.columns.items()}
        made = _assemble(self._tree, parts)
        return map(self.transforms.batch, made) if self.transforms.functions else made

    def _column(self, name: str, column: Column, samples: Samples) -> Any:
        values = self.arrays.convert(column.read(samples))
        if not isinstance(column, RewardSum):
            values = self.transforms.column(name, values)
        values = self.arrays.finish(values)
        if self._zero and column.fills and isinstance(samples, SliceSamples):
            self.arrays.zero(values, _outside(samples))
        return values


def _outside(samples: SliceSamples) -> Array:
    return np.flatnonzero(~samples.mask)


Tree = dict[str, Any]  # leaves are full field names


def _tree(names: Mapping[str, Column]) -> Tree:
    tree: Tree = Batch.nest((name, name) for name in names)
    return tree


def _assemble(tree: Tree, parts: Mapping[str, Sequence[Any]]) -> Iterator[Batch]:
    """One batch after the other; each level of nesting is a zip over those below."""
    below = [_assemble(node, parts) if isinstance(node, dict) else parts[node] for node in tree.values()]
    return map(Batch, map(zip, repeat(tuple(tree)), zip(*below, strict=True)))
