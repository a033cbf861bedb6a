"""Select episodes and transitions: the episode columns, statistics of a selection, and numbers of episodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base import notebooks, visible
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.figures import number
from rlds_cli.base.text import did_you_mean, plural, screen
from rlds_cli.dataset.coded import Coded, CodedColumns
from rlds_cli.errors import MissingPackage, RldsError, UnknownField
from rlds_cli.store import Stats
from rlds_cli.ted import END_NAMES

if TYPE_CHECKING:
    from rlds_cli.store import Store

_TEXT = ("group", "options")
_SPLIT = "split/"
_MEASURE = "quality_"  # how names of measures begin
_MEASURES = re.compile(rf"\b{_MEASURE}\w+")
_SHOWN = 10  # episodes in a notebook
_INNER = ("start", "id", "row", "has_seed")  # columns that it does not show
_ORDER = ("start", "length", "num_transitions", "num_observed", "total_reward", "end", "num_done", "source", "seed")


# -- columns and statistics


class EpisodeColumns(CodedColumns):
    """Episode columns by name, each [num_episodes]; ``len()`` is the number of episodes.

    ``end`` is text: ``terminated``, ``truncated`` or ``cut``. Named splits are bool columns under their own names,
    and as ``split/NAME`` where a column has that name. Columns of the user's own (``task``, ``success``) are bool,
    int64, float64, or texts as objects; where an episode has no value it is None, and NaN in numbers: float64 then,
    which whole numbers of more than 53 bits do not become: those are objects beside None.

    Measures (``quality_idle_share``) are columns, too, and not listed: they are in the home, see
    docs/reference/measures.md.
    """

    def __init__(self, store: Store, index: IntArray | None, whole: EpisodeColumns | None = None) -> None:
        self._store = store
        self._index = index
        self._whole = whole
        self._coded = dict[str, Coded]()

    def __len__(self) -> int:
        return self._store.manifest.counts.episodes if self._index is None else len(self._index)

    @property
    def index(self) -> IntArray:
        """Numbers of the selected episodes in the whole dataset."""
        return np.arange(len(self)) if self._index is None else self._index

    @property
    def id(self) -> str:
        """Id of the dataset."""
        return self._store.manifest.id

    def take(self, chosen: IntArray) -> EpisodeColumns:
        """Return the columns of some of the episodes, by their numbers among these."""
        return EpisodeColumns(self._store, self.index[chosen], self.whole)

    @property
    def whole(self) -> EpisodeColumns:
        """The columns of all episodes of the dataset."""
        if self._index is None:
            return self
        if self._whole is None:
            self._whole = EpisodeColumns(self._store, None)
        return self._whole

    def coded(self, name: str) -> Coded | None:
        """Return a column of texts by its values, which are looked up once; None for a column of numbers or flags."""
        if self._index is not None:
            whole = self.whole.coded(name)
            return None if whole is None else whole.take(self._index)
        if name not in self._coded:
            ends = name == "end"
            found = Coded(values=np.array(END_NAMES, object), codes=self._store.episodes[name]) if ends else None
            found = found or super().coded(name)
            if found is None:
                return None
            self._coded[name] = found
        return self._coded[name]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(sorted(n.removeprefix(_SPLIT) for n in self._store.episodes if n.startswith(_SPLIT)))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        stored = {n for n in (*self._store.episodes, *self._store.own_columns) if not n.startswith(_SPLIT)}
        first = [n for n in _ORDER if n in stored]
        splits = [_SPLIT + n if n in stored or n in _TEXT else n for n in self.splits]
        return (*first, *sorted(stored.difference(first)), *splits)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __repr__(self) -> str:
        return f"<{len(self):,} episodes: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        """Return the first episodes as a table, for notebooks: without what numbers and finds them in the files."""
        first = self.take(np.arange(min(len(self), _SHOWN)))
        more = f", of which these are the first {_SHOWN}" if len(first) < len(self) else ""
        names = [name for name in first if name not in _INNER]
        values = [first[name] for name in names]
        rows = [(k, *(_shown(x[k]) for x in values)) for k in range(len(first))]
        return notebooks.table(f"{len(self):,} episodes of {self.id}{more}", ["episode", *names], rows)

    def to_pandas(self) -> Any:
        """Return the columns as a DataFrame, with a row for each episode; its index numbers the selected episodes.

        Raises
        ------
        MissingPackage
            pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise MissingPackage("A DataFrame needs pandas.", hint="pip install pandas") from None
        values = {name: self[name] for name in self}
        frame = {name: x if x.ndim == 1 else list(x) for name, x in values.items()}
        return pd.DataFrame(frame, index=pd.RangeIndex(len(self), name="episode"))

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in _TEXT or self._is_measure(name)

    def _is_measure(self, name: object) -> bool:
        """Return whether a name is one of a measure, of which no column is a label."""
        return isinstance(name, str) and name.startswith(_MEASURE) and self._measures.has(name)

    def measures_in(self, where: str) -> dict[str, int | str]:
        """Return the measures that an expression names, and their versions."""
        names = dict.fromkeys(_MEASURES.findall(where))
        found = self._measures if names else None
        return {n: found.version(n) for n in names if n not in self._names and found.has(n)} if found else {}

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that were computed for all episodes of the version; see docs/reference/measures.md."""
        own = self._store.own_columns
        return tuple(name for name in self._measures.names if name not in own)

    @property
    def _measures(self) -> Any:
        """The measures of these episodes, as the home has them now."""
        import rlds_cli

        return rlds_cli.measures.Measures(rlds_cli.Dataset(self._store, self._index))

    def __getitem__(self, name: str) -> Array:
        stored, index = self._store.episodes, self._index
        if name in _TEXT:
            texts = self._store.table.episode_strings(name)
            return np.array(texts if index is None else [texts[k] for k in index.tolist()], object)
        if name in self._store.own_columns:
            own = self._store.own_column(name)
            return (own if index is None else own.take(index)).shown()
        if name not in stored and name not in self.splits:
            if self._is_measure(name):
                return np.asarray(self._measures.column(name))
            raise UnknownField(f'no episode column "{name}" in {self._store.manifest.id}. Columns: {", ".join(self)}')
        column = stored[name if name in stored else _SPLIT + name]
        chosen = column if index is None else column[index]
        return np.array(END_NAMES)[chosen] if name == "end" else chosen


class StoredStats(Mapping[str, Stats]):
    """Statistics over all steps, from the manifest, or computed on first use where it has none."""

    def __init__(self, stats: Mapping[str, Mapping[str, Any]], fields: Iterable[str], id: str) -> None:
        self._stats, self._fields, self._id = stats, tuple(fields), id

    def __len__(self) -> int:
        return len(self._stats)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __repr__(self) -> str:
        lines = [f"{n}: mean {_brief(s.mean)}, std {_brief(s.std)}" for n, s in self.items()]
        return screen(f"Statistics of {self._id}, over the steps of all episodes", lines)

    def __getitem__(self, name: str) -> Stats:
        if name not in self._stats:
            raise _no_stats(name, self, self._fields, self._id)
        return Stats(**self._stats[name])


def _shown(value: Any) -> str:
    """Return a value of an episode for a table of a notebook."""
    return number(float(value)) if isinstance(value, np.floating) else str(value)


def _brief(value: Any) -> str:
    """Return statistics of the elements of a row in a few characters."""
    flat = np.ravel(np.asarray(value, float))
    brief = ", ".join(number(x) for x in flat[:3]) + (", ..." if len(flat) > 3 else "")
    return f"[{brief}]" if np.ndim(value) else brief


def no_field(name: str, fields: Iterable[str], id: str) -> UnknownField:
    """Return the error for an unknown field, which lists the dataset's fields."""
    there = sorted(fields)
    near = did_you_mean(name, there, 0.5) or did_you_mean(name, (n for n in there if n.endswith(f"/{name}")), 0)
    return UnknownField(f'no field "{name}" in {id}.{near}  Fields: {", ".join(there)}')


def _no_stats(name: str, there: Iterable[str], fields: Iterable[str], id: str) -> UnknownField:
    if name in fields:
        return UnknownField(f"{name} of {id} has no statistics: only fields of numbers have them.")
    return no_field(str(name), there, id)


# -- selections


def matching(
    columns: EpisodeColumns,
    split: str | None,
    where: str | None,
    episodes: npt.NDArray[Any] | Sequence[int] | slice | None = None,
) -> tuple[IntArray, str]:
    """Return the numbers of the episodes that fulfil all conditions of `Dataset.select`, and a warning or "".

    The warning says that ``where`` selects none or all of the episodes that the other conditions leave.
    """
    found = np.arange(len(columns))
    if episodes is not None:
        found = found[episodes if isinstance(episodes, slice) else chosen(episodes)]
    if split is not None:
        if split not in columns.splits:
            there = ", ".join(columns.splits) or "none"
            raise RldsError(f'{columns.id} has no split "{split}".', hint=f"its splits: {there}")
        found = found[columns[f"split/{split}"][found]]
    if where is None:
        return found, ""
    from rlds_cli.dataset.expressions import episodes_where

    some = columns if episodes is None and split is None else columns.take(found)
    mask = episodes_where(where, some, found, columns.whole)
    return found[mask], _none_or_all(columns.id, where, mask)


def _none_or_all(id: str, where: str, mask: BoolArray) -> str:
    if not len(mask) or (mask.any() and not mask.all()):
        return ""
    few = "all" if mask.all() else "none"
    return visible.message(f'where="{where}" selects {few} of the {plural(len(mask), "episode")} of {id}')


# -- numbers of episodes


def runs(index: IntArray) -> list[list[int]]:
    """Return numbers, sorted, as runs [first, stop)."""
    each = np.split(np.sort(index), np.flatnonzero(np.diff(np.sort(index)) != 1) + 1)
    return [[int(run[0]), int(run[-1]) + 1] for run in each if len(run)]


def name_in(index: object) -> str | None:
    """Return the name that stands in the place of numbers: ``ds["observation"]``, ``ds["observation", "x"]``."""
    parts = index if isinstance(index, tuple | list) else (index,)
    return "/".join(map(str, parts)) if parts and all(isinstance(p, str) for p in parts) else None


def numbers(given: npt.NDArray[Any], count: int, id: str) -> IntArray:
    """Return transition numbers, given as an array of numbers or as one bool for each of ``count`` transitions."""
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
        raise IndexError(f"transitions are chosen by integers or bools [n], not by {given.dtype} {list(given.shape)}")
    if given.dtype != bool:
        return given.astype(np.int64)
    if len(given) != count:
        raise IndexError(f"{len(given):,} bools for the {count:,} transitions of {id}")
    return np.flatnonzero(given)


def chosen(given: npt.NDArray[Any] | Sequence[int]) -> npt.NDArray[Any]:
    """Return numbers or flags as an index; an empty list becomes an empty index."""
    index = np.asarray(given)
    return index if index.size else index.astype(np.int64)
