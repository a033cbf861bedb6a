"""Members that write their samples into the same batches, where no column has to be changed afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.loader.compiled import CompiledColumns
from rlds_cli.loader.index import PROBABILITY, SOURCE, FloatArray
from rlds_cli.loader.kernel import Bound
from rlds_cli.loader.mixture.merging import MixtureLocation
from rlds_cli.loader.slabs import Kinds, array_at


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
    """

    names: tuple[str, ...]
    kinds: Kinds
    members: Sequence[CompiledColumns]
    orders: Sequence[IntArray]

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
        return cls(names, [kinds[name] for name in names], members, orders)

    def writer(self, located: MixtureLocation) -> _Writer:
        """Return what writes these samples into batches."""
        parts = [(i, slots, self.members[i].samples(samples)) for i, slots, samples in located.parts]
        member = np.empty(located.count, np.int64)
        for i, slots, _ in parts:
            member[slots] = i
        chance = located.chance() if PROBABILITY in self.names else None
        return _Writer(self, parts, member, parts[0][2].lead, chance)


@dataclass(frozen=True, slots=True)
class _Writer:
    columns: DirectColumns
    parts: Sequence[tuple[int, IntArray, Bound]]
    member: IntArray
    lead: tuple[int, ...]
    chance: FloatArray | None

    def write(self, first: int, n: int, batches: int, places: Any) -> None:
        """Write batches, see `Bound.write`."""
        stop = first + n * batches
        addresses = np.frombuffer(places, np.int64).reshape(batches, -1)
        for i, slots, bound in self.parts:
            a, b = np.searchsorted(slots, (first, stop)).tolist()
            if a < b:
                bound.scatter(a, slots[a:b] - first, n, addresses.take(self.columns.orders[i], axis=1))
        for k, batch in enumerate(addresses.tolist()):
            here = slice(first + k * n, first + (k + 1) * n)
            self._array(batch, SOURCE, n)[...] = self.member[here, None] if self.lead else self.member[here]
            if self.chance is not None:
                values = self._array(batch, PROBABILITY, n)
                values *= self.chance[here].reshape(-1, *(1,) * (values.ndim - 1))

    def _array(self, batch: Sequence[int], name: str, n: int) -> Array:
        number = self.columns.names.index(name)
        dtype, shape = self.columns.kinds[number]
        return array_at(batch[number], (n, *self.lead, *shape), dtype)
