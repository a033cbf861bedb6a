"""A dataset that grows, as if the episodes that are kept lay end to end: for whoever reads all rows in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from rlds_cli.growing.store import GrowingStore
from rlds_cli.store.digests import Digests
from rlds_cli.store.episode_table import StoredColumn
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import Array, EpisodeTable, IntArray, Scalar


class EndToEndStore(GrowingStore):
    """The episodes of a generation that are kept, with their rows counted from 0 and nothing between them.

    Parameters
    ----------
    store : GrowingStore
        With gaps, which episodes that left have between others.
    """

    kept = None

    def __init__(self, store: GrowingStore) -> None:
        assert store.kept is not None
        self._of, self._numbers = store, store.kept
        self.path, self.generation, self.head, self.fields = store.path, store.generation, store.head, store.fields
        self._stored = store._stored
        self._own_columns: dict[str, StoredColumn] = {}
        self._stats, self._fingerprint = {}, None
        length = store.episodes["length"][self._numbers]
        self._starts: IntArray = np.cumsum(length + 1) - (length + 1)
        self._total = int((length + 1).sum())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return EndToEndStore, (self._of,)

    @property
    def manifest(self) -> Manifest:  # type: ignore[override]
        """The manifest at this generation, with the number of rows of the episodes that are kept."""
        m = self._of.manifest
        return replace(m, counts=replace(m.counts, rows=self._total))

    @property
    def version(self) -> str:  # type: ignore[override]
        """That of the generation, marked: rows are counted otherwise than there."""
        return f"{self._of.version}+joined"

    def newest(self) -> GrowingStore:
        """Return the newest generation, which may have gaps."""
        return self._of.newest()

    @cached_property
    def episodes(self) -> dict[str, Array]:
        """Columns of the episode table."""
        found = {name: values[self._numbers] for name, values in self._of.episodes.items()}
        return found | {"start": self._starts}

    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table."""
        texts = self._of.episode_strings(column)
        return [texts[k] for k in self._numbers.tolist()]

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        return self._of.own_columns

    def _values(self, name: str) -> list[Scalar]:
        values = self._of._values(name)
        return [values[k] for k in self._numbers.tolist()]

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """Files of the archives that episodes come from."""
        return self._of.sources

    def whole_table(self) -> EpisodeTable:
        """Return the episode table."""
        return self._of.table()

    def rows(self, name: str) -> Array:
        """Return the rows of a field, which are copied when they are read."""
        return JoinedRows(self._of.rows(name), self._starts, self._of.episodes["start"][self._numbers], self._total)  # type: ignore[return-value]

    def strings(self, name: str) -> Array:
        """Return the strings of a text field."""
        return self._of.strings(name)

    def digest_of(self, k: int) -> bytes:
        """Return the hash of episode ``k``, see `GrowingStore.digest_of`."""
        return self._of.digest_of(int(self._numbers[k]))

    def _digests(self) -> Digests:
        return self._of._digests()[self._numbers]

    def _fingerprint_of(self, index: IntArray) -> str:
        return self._of._fingerprint_of(self._numbers[index])


class JoinedRows:
    """Rows of an array, of which runs lie apart, read as if they lay end to end: by slices, numbers and arrays of them.

    Parameters
    ----------
    rows : array [stored, ...]
    starts, places : int array [runs]
        First row of each run: as it is counted here, and where it is stored.
    total : int
        Number of rows of all runs.
    """

    def __init__(self, rows: Array, starts: IntArray, places: IntArray, total: int) -> None:
        self._rows, self._starts, self._shift, self._total = rows, starts, places - starts, total
        self.dtype, self.ndim, self.shape = rows.dtype, rows.ndim, (total, *rows.shape[1:])

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self._total))
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            numbers = np.flatnonzero(numbers)
        if numbers.size and not -self._total <= numbers.min() <= numbers.max() < self._total:
            raise IndexError(f"row {int(numbers.max())} of {self._total:,} rows")
        numbers = np.where(numbers < 0, numbers + self._total, numbers)
        run = np.searchsorted(self._starts, numbers, "right") - 1
        found: Array = self._rows[numbers + self._shift[run]] if self._total else self._rows[:0]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def end_to_end(store: GrowingStore) -> GrowingStore:
    """Return the store itself where its episodes lie end to end, else a view of it without the gaps."""
    return store if store.kept is None else EndToEndStore(store)
