"""Episode columns of texts as numbers of their different values: many episodes have few texts, such as tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, IntArray

_SAMPLE = 1 << 12  # episodes that tell whether most texts differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A column by its different values.

    Attributes
    ----------
    values : array of objects [m]
        The different values; or, where most of many episodes have one of their own, those of all episodes.
    codes : array [n], optional
        The place of the value of each episode. None where ``values`` has one for each.
    """

    values: Array
    codes: Array | None = None

    @classmethod
    def of(cls, column: Array) -> Coded:
        """Return a column of texts or other objects [n] by its values."""
        listed = column.tolist()
        some = listed[:: max(1, len(listed) // _SAMPLE)]
        if len(listed) > _SAMPLE and len(set(some)) > len(some) // 2:
            return cls(values=column.astype(object))
        places = dict.fromkeys(listed)
        values = list(places)
        places.update(zip(values, range(len(values)), strict=True))
        codes = np.fromiter(map(places.__getitem__, listed), np.int32, len(listed))
        return cls(values=np.array(values, object), codes=codes)

    def take(self, index: IntArray) -> Coded:
        """Return the column of some episodes."""
        if self.codes is None:
            return Coded(values=self.values[index])
        return Coded(values=self.values, codes=self.codes[index])

    @property
    def spread(self) -> Array:
        """The value of each episode [n]."""
        return self.values if self.codes is None else self.values[self.codes]


class CodedColumns(Mapping[str, Array]):
    """Episode columns that remember which values those of texts have."""

    def coded(self, name: str) -> Coded | None:
        """Return a column of texts by its values; None for a column of numbers or flags."""
        column = self[name]
        return None if column.dtype.kind in "biuf" else Coded.of(column)
