"""Blocks of steps that are read and given to a function together, and the columns that come back for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess import forms
from rlds_cli.preprocess.reading import SourceReader
from rlds_cli.preprocess.task import Task
from rlds_cli.ted import Array, BoolArray, EncodedFrames, IntArray
from rlds_cli.ted.episodes import Flat

_LONG = 32  # average steps of a piece from which copying slices is faster than indexing rows


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps ``first`` to ``last`` of episode ``k`` of the selection; ``ends`` if they include its last step."""

    k: int
    first: int
    last: int
    ends: bool

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first


@dataclass(frozen=True)
class StepBlock:
    """Pieces of episodes that are read and passed to the function together.

    Each piece is read with the row after it, which holds the next observation of its last step.
    """

    pieces: Sequence[StepRange]
    runs: Sequence[tuple[int, int]]
    observed: BoolArray  # [B]: whether the next observation of the step is recorded
    numbers: IntArray  # [pieces]: numbers of the episodes in the whole dataset

    @property
    def size(self) -> int:
        """Number of steps."""
        return len(self.observed)

    @cached_property
    def steps(self) -> IntArray:
        """Positions of the steps among the rows read."""
        behind = np.cumsum([p.steps + 1 for p in self.pieces]) - 1
        return np.delete(np.arange(self.size + len(self.pieces)), behind)

    @cached_property
    def episodes(self) -> IntArray:
        """Number of each step's episode in the whole dataset [B]."""
        return np.repeat(self.numbers, [p.steps for p in self.pieces])

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The range of steps of each piece, as (first, one past the last)."""
        ends = np.cumsum([p.steps for p in self.pieces]).tolist()
        return list(pairwise([0, *ends]))

    @property
    def is_long(self) -> bool:
        """True if a loop over the pieces is faster than indexing rows."""
        return self.size >= _LONG * len(self.pieces)

    def pick(self, values: Array, ahead: int = 0) -> Array:
        """Copy the rows of the steps [B, ...], shifted by ``ahead``, from the rows read [rows, ...]."""
        if not self.is_long:
            picked: Array = values[self.steps + ahead]
            return picked
        picked = np.empty((self.size, *values.shape[1:]), values.dtype)
        for k, (a, b) in enumerate(self.spans):
            picked[a:b] = values[a + k + ahead : b + k + ahead]
        return picked

    def spread(self, values: Array, rows: Array) -> None:
        """Copy values of the steps [B, ...] to their positions among the rows to write."""
        if not self.is_long:
            rows[self.out[0]] = values
            return
        at = 0
        for p, (a, b) in zip(self.pieces, self.spans, strict=True):
            rows[at : at + b - a] = values[a:b]
            at += b - a + p.ends

    @cached_property
    def ends(self) -> IntArray:
        """Positions of the steps that are the last of their episode."""
        last = np.cumsum([p.steps for p in self.pieces]) - 1
        return last[[p.ends for p in self.pieces]]

    @cached_property
    def out(self) -> tuple[IntArray, IntArray, int]:
        """Positions of the steps and of the final rows among the rows to write, and the number of rows."""
        final = self.ends + 1 + np.arange(len(self.ends))
        total = self.size + len(final)
        return np.delete(np.arange(total), final), final, total

    def at(self, step: int) -> tuple[int, int]:
        """Return the episode (in the whole dataset) and the step in it of step number ``step``."""
        for number, p in zip(self.numbers, self.pieces, strict=True):
            if step < p.steps:
                return int(number), p.first + step
            step -= p.steps
        raise IndexError(step)

    def name(self, step: int) -> str:
        """Return the name of a step in messages."""
        episode, t = self.at(step)
        return f"episode {episode:,}, step {t:,}"

    def __str__(self) -> str:
        if self.size == 1:
            return self.name(0)
        if len(self.pieces) == 1:
            p = self.pieces[0]
            return f"episode {self.numbers[0]:,}, steps {p.first:,} to {p.last - 1:,}"
        return f"{self.size:,} transitions of episodes {self.numbers[0]:,} to {self.numbers[-1]:,}"


class StepName:
    """The name of a step, formatted only when needed."""

    def __init__(self, block: StepBlock, step: int) -> None:
        self._block, self._step = block, step

    @property
    def at(self) -> tuple[int, int]:
        """Number of the episode in the whole dataset, and of the step in it."""
        return self._block.at(self._step)

    def __str__(self) -> str:
        return self._block.name(self._step)


# For each nested dict: its path, its number of keys, and a function that returns its leaves as a tuple.
Groups = list[tuple[tuple[str, ...], int, Callable[[Any], tuple[Any, ...]]]]


class ColumnStack:
    """Stacks rows into columns of ``size`` rows; the first row determines the fields.

    Rows are copied, since a function may return the same buffer each time. A leaf that is the very array in the input
    is not copied: a field that every row returns that way uses the column in ``given`` itself.
    """

    def __init__(self, size: int, given: Any) -> None:
        self._size = size
        arrays = dict(given.leaves()) if isinstance(given, Batch) else {}
        self._given = {n: v for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype != object}
        self._order = {n: k for k, n in enumerate(arrays)}
        self._names: list[str] = []
        self._columns: list[Array | list[str | None]] = []
        self._kept: list[int] = []  # per column: index of the input leaf that it still equals, or -1
        self._groups: Groups | None = None
        self._first: Any = None

    def add(self, i: int, value: Any, where: Any, leaves: Sequence[Any] = ()) -> None:
        """Add the output for step ``i``; ``leaves`` are the arrays of its input, from `forms.iterate_steps`.

        Raises
        ------
        InvalidEpisode
            Its fields, shapes or kinds differ from those of the first step.
        """
        if not self._columns:
            self._start(forms.from_output(value, where), value, where)
        returned = self._pick(value) if self._groups else None
        if returned is None:
            returned = self._named(forms.from_output(value, where), where)
        for j, leaf in enumerate(returned):
            kept = self._kept[j]
            if kept >= 0:
                if leaf is leaves[kept]:
                    continue
                self._part(j, i)
            column = self._columns[j]
            if (
                isinstance(leaf, np.ndarray | np.generic)
                and isinstance(column, np.ndarray)
                and leaf.dtype == column.dtype
                and leaf.shape == column.shape[1:]
            ):
                column[i] = leaf
            else:
                self._put(j, i, leaf, where)

    def _part(self, j: int, rows: int) -> None:
        """Replace a column of the input by a new one, and copy the first ``rows`` rows."""
        given = self._columns[j]
        assert isinstance(given, np.ndarray)
        self._columns[j] = column = np.zeros_like(given)
        column[:rows] = given[:rows]
        self._kept[j] = -1

    def columns(self) -> Flat:
        """Return the columns, after all rows were added."""
        return dict(zip(self._names, self._columns, strict=True))

    def _start(self, flat: Flat, value: Any, where: Any) -> None:
        self._first = where
        self._names = list(flat)
        for first in flat.values():
            assert not isinstance(first, EncodedFrames)
            self._columns.append(
                [] if isinstance(first, list) else np.zeros((self._size, *first.shape), first.dtype.newbyteorder("="))
            )
        groups = _groups(value, ())
        named = ["/".join((*path, k)) for path, _, keys in groups or () for k in keys]
        if groups and sorted(named) == sorted(self._names):
            self._groups = [(path, size, _picker(keys)) for path, size, keys in groups]
            order = {n: j for j, n in enumerate(self._names)}
            self._columns = [self._columns[order[n]] for n in named]
            self._names = named
        self._kept = [self._order[n] if n in self._given else -1 for n in self._names]
        self._columns = [self._given.get(n, c) for n, c in zip(self._names, self._columns, strict=True)]

    def _pick(self, value: Any) -> list[Any] | None:
        """Return the leaves of a dict nested like the first one; None if it is not."""
        leaves: list[Any] = []
        try:
            for path, size, pick in self._groups or ():
                node = value
                for part in path:
                    node = node[part]
                if len(node) != size:
                    return None
                leaves += pick(node)
        except (KeyError, TypeError, IndexError):
            return None
        return leaves

    def _named(self, flat: Flat, where: Any) -> list[Any]:
        if flat.keys() != set(self._names):
            differ = ", ".join(sorted(set(flat) ^ set(self._names)))
            raise InvalidEpisode(f"{where}: the fields differ from those of {self._first}: {differ}.")
        return [flat[n] for n in self._names]

    def _put(self, j: int, i: int, leaf: Any, where: Any) -> None:
        """Store a leaf that is no array of the column's dtype: text, a Python number, a tensor, another dtype."""
        name, column = self._names[j], self._columns[j]
        value = forms.from_output({name: leaf}, where)[name]
        assert not isinstance(value, EncodedFrames)
        if isinstance(value, list) != isinstance(column, list):
            raise InvalidEpisode(f"{where}: {name} is text at some steps only.")
        if isinstance(column, list):
            column.extend(value)
            return
        assert not isinstance(value, list)
        if value.shape != column.shape[1:]:
            raise InvalidEpisode(
                f"{where}: {name} has shape {list(value.shape)}; {list(column.shape[1:])} at {self._first}."
            )
        if value.dtype != column.dtype:
            self._columns[j] = column = column.astype(np.promote_types(column.dtype, value.dtype))
        column[i] = value


def _picker(keys: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return (lambda node: (node[keys[0]],)) if keys else (lambda _: ())


def _groups(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], int, tuple[str, ...]]] | None:
    """Return the nested dicts with the keys of their leaves; None for other mappings and for keys with a slash."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and "/" not in k for k in value):
        return None
    inner = [k for k, v in value.items() if isinstance(v, Mapping)]
    groups = [(path, len(value), tuple(k for k in value if k not in inner))]
    for k in inner:
        below = _groups(value[k], (*path, k))
        if below is None:
            return None
        groups += below
    return groups


class PairCheck:
    """Checks whether fields of a block changed, and whether next values still equal the values one step later."""

    def __init__(self, task: Task, reader: SourceReader) -> None:
        self._task = task
        self._reader = reader
        self._fields = task.dataset.schema

    def same(self, name: str, flat: Flat, original: Mapping[str, Array], block: StepBlock) -> bool:
        """Return whether a field and its next values are unchanged."""
        if name not in flat or not forms.same(flat[name], block.pick(original[name])):
            return False
        both = self._fields[name].placement == "both"
        return not both or forms.same(flat[f"next/{name}"], block.pick(original[name], 1))

    def disagreeing(
        self, flat: Flat, block: StepBlock, untouched: frozenset[str], before: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the fields whose next value differs from the value one step later.

        Parameters
        ----------
        untouched : frozenset of str
            Fields that need no check.
        before : mapping
            Next values of the step before the block, in the same episode.

        Raises
        ------
        InvalidEpisode
            The source stores such a field once, and the unit is not window.
        """
        inner = np.ones(block.size, bool)
        inner[np.cumsum([p.steps for p in block.pieces]) - 1] = False
        at = np.flatnonzero(inner)
        found = []
        for name in (n for n in flat if f"next/{n}" in flat and n not in untouched and n not in self._task.apart):
            root, after = flat[name], flat[f"next/{name}"]
            fits = _agree(root, after, at, block)
            if name in before and block.pieces[0].first:
                fits = fits and forms.agree(take(root, np.array([0])), before[name])
            if not fits:
                self._refuse(name, flat, block, at)
                found.append(name)
        return frozenset(found)

    def _refuse(self, name: str, flat: Flat, block: StepBlock, at: IntArray) -> None:
        if name not in self._fields or self._fields[name].placement != "both" or self._task.unit == "window":
            return
        original = self._reader.rows(name, block.runs)
        changed = {
            n: not forms.same(flat[n], original[block.steps + step]) for n, step in ((name, 0), (f"next/{name}", 1))
        }
        what = (
            f'"{name}" and "next/{name}" were changed, but not alike'
            if all(changed.values())
            else f'"{name}" was changed and "next/{name}" was not'
            if changed[name]
            else f'"next/{name}" was changed and "{name}" was not'
        )
        step = next(
            (int(i) for i in at if not forms.agree(take(flat[name], [i + 1]), take(flat[f"next/{name}"], [i]))), 0
        )
        raise InvalidEpisode(
            f"{what}: they are no longer the same observation after {block.name(step)}.",
            hint="change both, or use unit=episode (--unit episode), which passes every observation once",
        )


def _agree(root: Any, after: Any, at: IntArray, block: StepBlock) -> bool:
    """Return whether the next values at the steps ``at`` equal the values one step later in the piece."""
    if block.is_long and not isinstance(root, list) and not isinstance(after, list):
        return all(forms.agree(root[a + 1 : b], after[a : b - 1]) for a, b in block.spans)
    return forms.agree(take(root, at + 1), take(after, at))


def take(values: Any, index: Any) -> Any:
    """Index the rows of a column, which may be a list of text."""
    return [values[i] for i in index] if isinstance(values, list) else values[index]
