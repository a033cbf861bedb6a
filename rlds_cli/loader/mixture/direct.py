"""Members that write their samples into the same batches, where no column has to be changed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.loader.index import PROBABILITY, SOURCE, FloatArray
from rlds_cli.loader.kernel import BatchMemory, Bound
from rlds_cli.loader.mixture.merging import MixtureLocation
from rlds_cli.loader.read import CompiledColumns

Kind = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DirectColumns:
    """The columns of a mixture, as its members' plans write them.

    Attributes
    ----------
    names : tuple of str
        Of all columns, `SOURCE` among them.
    kinds : sequence of (dtype, shape)
        Of a step of each column.
    members : sequence of CompiledColumns
    orders : sequence of int array
        For each member, the number of the column that each output of its plan is.
    memory : BatchMemory
    """

    names: tuple[str, ...]
    kinds: Sequence[Kind]
    members: Sequence[CompiledColumns]
    orders: Sequence[IntArray]
    memory: BatchMemory

    @classmethod
    def of(cls, names: tuple[str, ...], members: Iterable[CompiledColumns]) -> DirectColumns | None:
        """Return the columns ``names``; None if members do not write the same ones, with the same dtypes and shapes."""
        members, written = list(members), [name for name in names if name != SOURCE]
        if any(sorted(m.names) != sorted(written) for m in members):
            return None
        kinds = dict(zip(members[0].names, members[0].kinds, strict=True))
        if any(dict(zip(m.names, m.kinds, strict=True)) != kinds for m in members):
            return None
        kinds[SOURCE] = np.dtype(np.int64), ()
        orders = [np.array([names.index(name) for name in m.names], np.int64) for m in members]
        ordered = [kinds[name] for name in names]
        return cls(names, ordered, members, orders, BatchMemory(ordered))

    def reader(self, located: MixtureLocation) -> Callable[..., list[list[Any]]]:
        """Return the function (first, n, batches, wrap) that reads batches, see `Bound.read_batches`."""
        parts = [(i, slots, self.members[i].samples(samples)) for i, slots, samples in located.parts]
        member = np.empty(located.count, np.int64)
        for i, slots, _ in parts:
            member[slots] = i
        length = located.parts[0][2].length
        chance = located.chance() if PROBABILITY in self.names else None
        return _Reader(self, parts, member, (length,) if length else (), chance).read_batches


@dataclass(frozen=True, slots=True)
class _Reader:
    columns: DirectColumns
    parts: Sequence[tuple[int, IntArray, Bound]]
    member: IntArray
    steps: tuple[int, ...]
    chance: FloatArray | None

    def read_batches(
        self, first: int, n: int, batches: int, wrap: Callable[[Array], Any] | None = None
    ) -> list[list[Any]]:
        stop, lead = first + n * batches, (n, *self.steps)
        memory, at = self.columns.memory.take(lead, batches)
        given = list(map(wrap or np.ndarray.view, memory))
        places = np.frombuffer(at, np.int64).reshape(batches, -1)
        for i, slots, bound in self.parts:
            a, b = np.searchsorted(slots, (first, stop)).tolist()
            if a < b:
                bound.scatter(a, slots[a:b] - first, n, places.take(self.columns.orders[i], axis=1))
        names, fields = self.columns.names, len(self.columns.names)
        for k in range(batches):
            batch = memory[k * fields : (k + 1) * fields]
            here = slice(first + k * n, first + (k + 1) * n)
            batch[names.index(SOURCE)][...] = self.member[here, None] if self.steps else self.member[here]
            if self.chance is not None:
                values = batch[names.index(PROBABILITY)]
                values *= self.chance[here].reshape(-1, *(1,) * (values.ndim - 1))
        return [given[i : i + fields] for i in range(0, len(given), fields)]
