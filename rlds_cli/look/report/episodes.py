"""The table of the episodes of a dataset, a page at a time: filtered, sorted, and how its columns are distributed."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.bins import in_bins
from rlds_cli.base.text import did_you_mean
from rlds_cli.dataset import matching
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.look.report.ordering import Keys, text_ranks
from rlds_cli.ted import COMPUTED, Subtasks

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

Kind = Literal["number", "flag", "text", "id"]

NUMBER = "episode"  # sorts by the number of the episode, unless a column has this name
MOST_ROWS = 1000
_BINS = 32
_MOST_VALUES = 12  # frequent texts of a column that are counted
_MOST_BYTES = 96 << 20  # of what is remembered
_USUAL = ("length", "total_reward", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column: ``usual`` ones are shown unless others are asked for; ``id`` are the bytes that name an episode."""

    name: str
    kind: Kind
    usual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """An episode: its ``number``, k of ``ds.episode(k)``, and its ``values`` as ``ds.episodes`` has them."""

    number: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePage:
    """Result of ``rlds episodes``.

    Attributes
    ----------
    id, version
        Of the dataset.
    of, matching : int
        The number of its episodes, and of those that fulfil ``where``.
    where, sort, descending, first
        What was asked for; ``first`` is the place of the first row among those that match.
    columns : tuple of TableColumn
    cameras : tuple of str
        Names of the fields of images.
    episodes : tuple of TableRow
        This page of them.
    shell, select, python : str or None
        Lines that do the same: show these episodes in this order, make a dataset of them, and select them in Python.
    """

    id: str
    version: int
    of: int
    matching: int
    where: str | None
    sort: str | None
    descending: bool
    first: int
    columns: tuple[TableColumn, ...]
    cameras: tuple[str, ...]
    episodes: tuple[TableRow, ...]
    shell: str | None
    select: str | None
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCount:
    """A flag or a text, the number of all episodes that have it, and of those that match."""

    value: bool | str
    episodes: int
    matching: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpread:
    """How the values of a column are distributed, over all episodes and over those that match.

    ``counts`` and ``matched`` are those of equal bins over [low, high], of numbers. Whole numbers of a small range have
    a bin each, of which they are the middle: ``whole``. ``values`` are the most frequent texts, or the flags, of
    ``distinct`` different ones. ``missing`` episodes have no value, or one that is infinite.
    """

    name: str
    kind: Kind
    missing: int
    low: float | None = None
    high: float | None = None
    whole: bool = False
    counts: tuple[int, ...] = ()
    matched: tuple[int, ...] = ()
    values: tuple[ValueCount, ...] = ()
    distinct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpreads:
    """The columns of a table as `ColumnSpread` has them."""

    id: str
    version: int
    of: int
    matching: int
    columns: tuple[ColumnSpread, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bins:
    """Numbers of a column in bins; those that have none are in the last one."""

    low: float
    high: float
    whole: bool
    count: int
    codes: Array

    def counted(self, chosen: IntArray | None) -> list[int]:
        codes = self.codes if chosen is None else self.codes[chosen]
        return [int(n) for n in np.bincount(codes, minlength=self.count + 1)]


class EpisodeTable:
    """The episodes of a dataset or a selection. What was asked for is remembered, within bounds of memory.

    Parameters
    ----------
    ds : Dataset
    """

    def __init__(self, ds: Dataset) -> None:
        self.dataset = ds
        self._known, self._lock = OrderedDict[tuple[object, ...], Any](), threading.RLock()
        self.columns = tuple(_column(ds, name) for name in (*ds.episodes, *ds.episodes.measures))
        self.cameras = tuple(f.name for f in ds.schema.values() if f.is_image)

    def page(
        self,
        *,
        where: str | None = None,
        sort: str | None = None,
        descending: bool = False,
        first: int = 0,
        count: int = 100,
        ref: str | None = None,
        home: str | None = None,
    ) -> EpisodePage:
        """Return some rows.

        Parameters
        ----------
        where : str, optional
            An expression of episode columns, as `Dataset.select` takes it.
        sort : str, optional
            A column; without it, or by ``episode``, episodes are in the order of their numbers.
        descending : bool
            From the greatest to the least value. Episodes without a value come last in any case.
        first, count : int
            The place of the first row, and the number of rows, at most 1,000.
        ref : str, optional
            What a user types for the dataset, in the lines that do the same; None for a selection.
        home : str, optional
            The home, if it is not the usual one.

        Raises
        ------
        InvalidExpression, UnknownField, InvalidArgument
        """
        if first < 0 or not 0 <= count <= MOST_ROWS:
            raise InvalidArgument(f"Rows {first:,} and {count:,} on cannot be shown.", hint=f"at most {MOST_ROWS:,}")
        where = where or None
        numbers = self.numbers(where=where, sort=sort, descending=descending)
        shown = numbers[first : first + count]
        some = self.dataset.episodes.take(shown)
        ordered = (["--sort", sort] if sort else []) + (["--descending"] if descending else [])
        values = {c.name: _plain(some[c.name]) for c in self.columns}
        rows = (
            TableRow(number=n, values={name: of[k] for name, of in values.items()})
            for k, n in enumerate(shown.tolist())
        )
        return EpisodePage(
            id=self.dataset.id,
            version=self.dataset.version,
            of=self.dataset.num_episodes,
            matching=len(numbers),
            where=where,
            sort=sort,
            descending=descending,
            first=first,
            columns=self.columns,
            cameras=self.cameras,
            episodes=tuple(rows),
            **_lines(ref, home, where=where, ordered=ordered)
            | ({"select": None} if self.dataset.store.address else {}),  # what lies there stays as it is
        )

    def spreads(self, where: str | None = None, names: Sequence[str] | None = None) -> TableSpreads:
        """Return how columns are distributed: those that ``names`` has, by default the usual ones.

        Raises
        ------
        InvalidExpression, UnknownField
        """
        chosen = self._matching(where) if where else None
        kinds = {c.name: c.kind for c in self.columns}
        for name in names or ():
            self._check(name)
        asked = [c.name for c in self.columns if c.usual] if names is None else names
        return TableSpreads(
            id=self.dataset.id,
            version=self.dataset.version,
            of=self.dataset.num_episodes,
            matching=self.dataset.num_episodes if chosen is None else len(chosen),
            columns=tuple(self._spread(name, kinds[name], chosen) for name in asked if kinds[name] != "id"),
        )

    # -- episodes in order

    def numbers(self, *, where: str | None = None, sort: str | None = None, descending: bool = False) -> IntArray:
        """Return the numbers of the episodes that match, in order; parameters and errors are those of `page`."""
        if sort is None or (sort == NUMBER and NUMBER not in self.dataset.episodes):
            found = self._matching(where)
            return found[::-1] if descending else found
        self._check(sort)

        def ordered() -> IntArray:
            order: IntArray = self._remembered(("order", sort, descending), lambda: self._order(sort, descending))
            if where is None:
                return order
            mask = np.zeros(len(order), bool)
            mask[self._matching(where)] = True
            return np.asarray(order[mask[order]])

        rows: IntArray = self._remembered(("rows", where, sort, descending), ordered)
        return rows

    def _matching(self, where: str | None) -> IntArray:
        def found() -> IntArray:
            if where is None:
                return np.arange(self.dataset.num_episodes, dtype=np.int32)
            return matching(self.dataset.episodes, None, where)[0].astype(np.int32)

        numbers: IntArray = self._remembered(("where", where), found)
        return numbers

    def _order(self, sort: str, descending: bool) -> IntArray:
        keys = self._keys(sort)
        return keys.order(descending=descending).astype(np.int32)

    def _keys(self, name: str) -> Keys:
        coded = self.dataset.episodes.coded(name)
        if coded is None:
            values = self.dataset.episodes[name]
            return Keys(values=values if values.ndim == 1 else text_ranks([row.hex() for row in map(bytes, values)]))
        missing = np.array([v is None for v in coded.values], bool)
        listed = coded.values.tolist()
        if all(isinstance(v, str) for v in listed if v is not None):
            ranks = self._remembered(("ranks", name), lambda: text_ranks([v or "" for v in listed]))
        else:  # flags, or whole numbers of more than 53 bits
            places = {v: k for k, v in enumerate(sorted({v for v in listed if v is not None}))}
            ranks = np.array([places.get(v, 0) for v in listed], np.int64)
        if coded.codes is None:
            return Keys(values=ranks, missing=missing)
        return Keys(values=ranks[coded.codes], missing=missing[coded.codes])

    # -- distributions

    def _spread(self, name: str, kind: Kind, chosen: IntArray | None) -> ColumnSpread:
        if kind in ("text", "flag"):
            return self._counted(name, kind, chosen)
        bins = self._remembered(("bins", name), lambda: _bins(self.dataset.episodes[name]))
        if bins is None:
            return ColumnSpread(name=name, kind=kind, missing=self.dataset.num_episodes)
        counts = self._remembered(("counts", name), lambda: bins.counted(None))
        matched = counts if chosen is None else bins.counted(chosen)
        return ColumnSpread(
            name=name,
            kind=kind,
            missing=counts[bins.count],
            low=bins.low,
            high=bins.high,
            whole=bins.whole,
            counts=tuple(counts[: bins.count]),
            matched=tuple(matched[: bins.count]),
        )

    def _counted(self, name: str, kind: Kind, chosen: IntArray | None) -> ColumnSpread:
        """Count texts and flags."""
        coded = self.dataset.episodes.coded(name)
        listed = [False, True] if coded is None else coded.values.tolist()
        codes = self.dataset.episodes[name].astype(np.intp) if coded is None else coded.codes
        if codes is None and len(listed) > _MOST_VALUES:  # almost every episode has a text of its own
            different = self._remembered(("different", name), lambda: len(set(listed) - {None}))
            missing = self._remembered(("missing", name), lambda: listed.count(None))
            return ColumnSpread(name=name, kind=kind, missing=missing, distinct=different)
        codes = np.arange(len(listed)) if codes is None else codes
        counts = self._remembered(("counts", name), lambda: np.bincount(codes, minlength=len(listed)).tolist())
        matched = counts if chosen is None else np.bincount(codes[chosen], minlength=len(listed)).tolist()
        found = [
            ValueCount(value=v, episodes=a, matching=b)
            for v, a, b in zip(listed, counts, matched, strict=True)
            if v is not None and a
        ]
        missing = sum(n for v, n in zip(listed, counts, strict=True) if v is None)
        often = sorted(found, key=lambda c: (-c.episodes, c.value))[:_MOST_VALUES]
        return ColumnSpread(name=name, kind=kind, missing=missing, values=tuple(often), distinct=len(found))

    # -- the rest

    def _check(self, name: str) -> None:
        names = [c.name for c in self.columns]
        if name not in names:
            raise UnknownField(
                f'{self.dataset.id} has no episode column "{name}".{did_you_mean(name, names)}',
                hint=f"columns: {', '.join([NUMBER, *names])}",
            )

    def _remembered(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Return what was made for a key, or make it; what was not asked for longest is let go."""
        with self._lock:
            found = self._known[key] if key in self._known else make()
            self._known[key] = found
            self._known.move_to_end(key)
            while len(self._known) > 1 and sum(map(_bytes, self._known.values())) > _MOST_BYTES:
                self._known.popitem(last=False)
            return found


def _lines(ref: str | None, home: str | None, *, where: str | None, ordered: Sequence[str]) -> dict[str, Any]:
    """Return lines of shell and Python that do the same."""
    selecting = f".select(where={where!r})" if where else ""
    if ref is None:
        return {"shell": None, "select": None, "python": f"ds{selecting}"}
    words, there = ["--where", where] if where else [], ["--home", home] if home else []
    return {
        "shell": shlex.join(["rlds", "episodes", ref, *words, *ordered, *there]),
        "select": f"{shlex.join(['rlds', 'select', ref, *words, *there])} --name NAME" if where else None,
        "python": f"rlds_cli.open_dataset({ref!r}{f', home={home!r}' if home else ''}){selecting}",
    }


def _column(ds: Dataset, name: str) -> TableColumn:
    e = ds.episodes
    own = name in ds.store.own_columns and name != Subtasks.COLUMN  # whose texts are JSON
    usual = name in _USUAL or name in e.splits or name.startswith("split/") or own
    if name in ds.store.own_columns:
        kind: Kind = {"str": "text", "bool": "flag"}.get(ds.store.own_column(name).dtype, "number")  # type: ignore[assignment]
    elif name == "end":
        kind = "text"
    elif name in COMPUTED or name in ("start", "length"):
        kind = "number"
    else:
        values = e[name]
        kind = "id" if values.ndim > 1 else "flag" if values.dtype == bool else "number"
    return TableColumn(name=name, kind=kind, usual=usual)


def _plain(values: Array) -> list[Any]:
    """Return values of Python; the bytes of an id as hexadecimal digits."""
    return [bytes(v).hex() for v in values] if values.ndim > 1 else values.tolist()


def _bins(values: Array) -> _Bins | None:
    """Divide numbers into bins; None if there are none."""
    x = values.astype(np.float64)
    known = np.isfinite(x)
    if not known.any():
        return None
    some = x if known.all() else x[known]
    low, high = float(some.min()), float(some.max())
    whole = bool(high - low < 2 * _BINS and (some == np.floor(some)).all())
    count = int(high - low) + 1 if whole else _BINS
    if whole:
        low, high = low - 0.5, high + 0.5
    elif high == low:
        count = 1
    codes = np.full(len(x), count, np.uint8)
    placed = in_bins(some, low, high - low, count) if high > low else np.zeros(len(some))
    codes[known] = np.clip(placed, 0, count - 1).astype(np.uint8)
    return _Bins(low=low, high=high, whole=whole, count=count, codes=codes)


def _bytes(value: object) -> int:
    if isinstance(value, _Bins):
        return value.codes.nbytes
    return value.nbytes if isinstance(value, np.ndarray) else 8 * len(value) if isinstance(value, list) else 0
