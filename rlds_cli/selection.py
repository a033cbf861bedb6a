"""The episode table of a dataset or of some of its episodes, and statistics over those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import NoReturn

import numpy as np

from rlds_cli.errors import UnknownField
from rlds_cli.store import statistics
from rlds_cli.store.manifest import Stats
from rlds_cli.store.opening import Store
from rlds_cli.ted import END_NAMES, Array, IntArray

_TEXT = ("group", "options")
_SPLIT = "split/"
_ORDER = ("start", "length", "num_transitions", "num_observed", "total_reward", "end", "num_done", "source", "seed")


class Episodes(Mapping[str, Array]):
    """Episode columns by name, each [num_episodes]; ``len()`` is the number of episodes.

    ``end`` is text: ``terminated``, ``truncated`` or ``cut``. Named splits are bool columns under their own names,
    and as ``split/NAME`` where a column has that name. Columns of the user's own (``task``, ``success``) are bool,
    int64, float64, or texts as objects; where an episode has no value it is None, and NaN in numbers (float64 then).
    """

    def __init__(self, store: Store, index: IntArray | None) -> None:
        self._store = store
        self._index = index

    def __len__(self) -> int:
        return self._store.manifest.counts.episodes if self._index is None else len(self._index)

    @property
    def index(self) -> IntArray:
        """The numbers of these episodes in the whole dataset."""
        return np.arange(len(self)) if self._index is None else self._index

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The named splits."""
        return tuple(sorted(n.removeprefix(_SPLIT) for n in self._store.episodes if n.startswith(_SPLIT)))

    def __iter__(self) -> Iterator[str]:
        stored = {n: None for n in (*self._store.episodes, *self._store.own_columns) if not n.startswith(_SPLIT)}
        yield from sorted(stored, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))
        yield from (_SPLIT + n if n in stored or n in _TEXT else n for n in self.splits)

    def __repr__(self) -> str:
        return f"<{len(self):,} episodes: {', '.join(self)}>"

    def __contains__(self, name: object) -> bool:
        return name in set(self) or name in _TEXT

    def __getitem__(self, name: str) -> Array:
        stored = self._store.episodes
        if name in _TEXT:
            column: Array = np.array(self._store.episode_strings(name), object)
        elif name in self._store.own_columns:
            column = self._store.own_column(name).shown()
        elif name in stored:
            column = np.array(END_NAMES)[stored["end"]] if name == "end" else stored[name]
        elif name in self.splits:
            column = stored[_SPLIT + name]
        else:
            raise UnknownField(f'no episode column "{name}" in {self._store.manifest.id}.  Columns: {", ".join(self)}')
        return column if self._index is None else column[self._index]


class StoredStats(dict[str, Stats]):
    """Statistics over all steps, as they were computed when the dataset was made."""

    def __init__(self, stats: Mapping[str, Stats], fields: Iterable[str], id: str) -> None:
        super().__init__(stats)
        self._fields, self._id = tuple(fields), id

    def __missing__(self, name: str) -> NoReturn:
        raise _no_stats(name, self, self._fields, self._id)


class SelectedStats(Mapping[str, Stats]):
    """Statistics over the steps of selected episodes, computed per field when asked for."""

    def __init__(self, store: Store, episodes: Episodes) -> None:
        self._store, self._episodes = store, episodes
        self._known: dict[str, Stats] = {}

    def __len__(self) -> int:
        return len(self._store.manifest.stats)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.manifest.stats)

    def __getitem__(self, name: str) -> Stats:
        if name not in self._known:
            if name not in self._store.manifest.stats:
                raise _no_stats(name, self, self._store.fields, self._store.manifest.id)
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Stats:
        values = self._store.rows(name)
        start, length = self._episodes["start"], self._episodes["length"]
        ends = np.cumsum(length)
        steps = int(ends[-1]) if len(ends) else 0
        accumulator = statistics.Accumulator(values.shape[1:])
        width = int(np.prod(values.shape[1:], dtype=np.int64))
        at_once = statistics.block_steps(width)
        for a in range(0, steps, at_once):
            accumulator.add(values[_rows(np.arange(a, min(a + at_once, steps)), start, length, ends)])
        sample = np.arange(0, steps, statistics.sample_steps(steps, width))
        return accumulator.result(values[_rows(sample, start, length, ends)])


def no_field(name: str, fields: Iterable[str], id: str) -> UnknownField:
    """The error over a field that a dataset does not have; it names those that are there."""
    there = sorted(fields)
    close = get_close_matches(name, there, 1, 0.5) or [n for n in there if n.endswith(f"/{name}")][:1]
    did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
    return UnknownField(f'no field "{name}" in {id}.{did_you_mean}  Fields: {", ".join(there)}')


def _no_stats(name: str, there: Iterable[str], fields: Iterable[str], id: str) -> UnknownField:
    if name in fields:
        return UnknownField(f"{name} of {id} has no statistics: only numbers have.")
    return no_field(str(name), there, id)


def _rows(steps: IntArray, start: IntArray, length: IntArray, ends: IntArray) -> IntArray:
    episode = np.searchsorted(ends, steps, "right")
    rows: IntArray = start[episode] + steps - (ends - length)[episode]
    return rows
