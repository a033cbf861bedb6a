"""Frames and text, read through the dataset; what several columns of a gather need is decoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.loader.windowing.places import Place
from rlds_cli.loader.windowing.samples import Samples
from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Decoding:
    """A field kept as frames or text."""

    dataset: Dataset
    name: str

    def __call__(self, place: Place) -> Array:
        """Values of the rows of ``place`` [...] -> [..., *shape], in memory of their own."""
        return self._gather(place.rows)

    def among(self, samples: Samples, rows: IntArray) -> Array:
        """Values of ``rows`` [...]; frames that the first column of these samples had are taken from there.

        They are in memory of their own, and must not be changed before all columns of the gather are read.
        """
        if self.dataset.schema[self.name].kind != "frames":
            return self._gather(rows)
        first = samples.once(("decoded", self.name), lambda: _First(rows, self._gather(rows)))
        return first.values if first.rows is rows else first.shared(self, rows)

    def _gather(self, rows: IntArray) -> Array:
        values = self.dataset.gather(self.name, rows.reshape(-1))
        return values.reshape(*rows.shape, *values.shape[1:])


class _First:
    """What a column has decoded: ``rows`` [...] and their values [..., *shape]."""

    def __init__(self, rows: IntArray, values: Array) -> None:
        self.rows, self.values = rows, values
        self._distinct, self._place = np.unique(rows, return_index=True)

    def shared(self, decoding: Decoding, rows: IntArray) -> Array:
        """Values of other ``rows``."""
        shape = self.values.shape[self.rows.ndim :]
        at = np.searchsorted(self._distinct, rows)
        found = self._distinct.take(at, mode="clip") == rows
        if not found.any():
            return decoding._gather(rows)
        values = np.empty((*rows.shape, *shape), self.values.dtype)
        values[found] = self.values.reshape(-1, *shape)[self._place[at[found]]]
        if not found.all():
            values[~found] = decoding._gather(rows[~found])
        return values
