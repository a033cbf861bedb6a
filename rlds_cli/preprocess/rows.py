"""Rows that come back one at a time, put into columns as they come.

Whether an observation and the next one are still one: what came back for a field and for its ``next/``.

Steps with their neighbours in the episode, for functions of windows, and what those give back.

::

    history=2, future=1, an episode of T = 4 steps        step:   -2 -1  0  1  2  3  4
    window of step 0                                        [ o0 o0 o0 o1 ]            mask 0 0 1 1
    window of step 3                                                 [ o1 o2 o3 o4 ]   mask 1 1 1 0

Outside of the episode the nearest row is repeated: of observations the first or the final one, of what belongs to
steps that of the first or last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess import forms
from rlds_cli.preprocess.forms import Block
from rlds_cli.preprocess.reading import Reader
from rlds_cli.preprocess.task import Task
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, EncodedFrames, Field, IntArray
from rlds_cli.ted.episodes import Flat
from rlds_cli.text import is_below

# Path of a dict, number of its keys, and its leaves from it, as a tuple.
Groups = list[tuple[tuple[str, ...], int, Callable[[Any], tuple[Any, ...]]]]


class Stack:
    """Columns of ``size`` rows, with the fields of the first row.

    A row is copied when it is added: a function may return one buffer again and again. What comes back as the very
    array that was given is not: a field of which every row does is the column in ``given`` itself.
    """

    def __init__(self, size: int, given: Any) -> None:
        self._size = size
        arrays = dict(given.leaves()) if isinstance(given, Batch) else {}
        self._given = {n: v for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype != object}
        self._order = {n: k for k, n in enumerate(arrays)}
        self._names: list[str] = []
        self._columns: list[Array | list[str | None]] = []
        self._kept: list[int] = []  # per column: which of the leaves given it is so far; -1 for none
        self._groups: Groups | None = None
        self._first: Any = None

    def add(self, i: int, value: Any, where: Any, leaves: Sequence[Any] = ()) -> None:
        """Add what came back for step ``i``, of which the arrays ``leaves`` were given, as ``forms.each`` does.

        Raises
        ------
        InvalidEpisode
            It has other fields, shapes or kinds than the first.
        """
        if not self._columns:
            self._start(forms.take_back(value, where), value, where)
        returned = self._pick(value) if self._groups else None
        if returned is None:
            returned = self._named(forms.take_back(value, where), where)
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
        """Give a column memory of its own, in which so many rows are as given."""
        given = self._columns[j]
        assert isinstance(given, np.ndarray)
        self._columns[j] = column = np.zeros_like(given)
        column[:rows] = given[:rows]
        self._kept[j] = -1

    def columns(self) -> Flat:
        """The columns, all rows added."""
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
        """The leaves of a dict that is built like the first; None where it is not."""
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
            raise InvalidEpisode(f"{where}: other fields than {self._first}: {differ}.")
        return [flat[n] for n in self._names]

    def _put(self, j: int, i: int, leaf: Any, where: Any) -> None:
        """What is no array of the column's dtype: text, numbers of Python, tensors, other dtypes."""
        name, column = self._names[j], self._columns[j]
        value = forms.take_back({name: leaf}, where)[name]
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
    """The dicts in ``value`` with the keys of their leaves; None where it is not plainly nested."""
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


class Pairs:
    """Compares what a function made of a block with the source, and the steps of it with each other."""

    def __init__(self, task: Task, reader: Reader) -> None:
        self._task = task
        self._reader = reader
        self._fields = task.dataset.schema

    def same(self, name: str, flat: Flat, original: Mapping[str, Array], block: Block) -> bool:
        """Whether a field of the source came back as it was, next included."""
        if name not in flat or not forms.same(flat[name], block.pick(original[name])):
            return False
        both = self._fields[name].placement == "both"
        return not both or forms.same(flat[f"next/{name}"], block.pick(original[name], 1))

    def disagreeing(
        self, flat: Flat, block: Block, untouched: frozenset[str], before: Mapping[str, Any]
    ) -> frozenset[str]:
        """Fields whose next value is not the value one step on. Those that the source keeps once must stay so.

        Parameters
        ----------
        untouched : frozenset of str
            What need not be looked at.
        before : mapping
            The next values of the step before the block, in the same episode.

        Raises
        ------
        InvalidEpisode
            One that the source keeps once does not, and the unit is not window.
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

    def _refuse(self, name: str, flat: Flat, block: Block, at: IntArray) -> None:
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
            f"{what}: after {block.name(step)} they are no longer the same observation.",
            hint="edit both, or use unit=episode (--unit episode), which gives every observation once",
        )


def _agree(root: Any, after: Any, at: IntArray, block: Block) -> bool:
    """Whether the next values at the steps ``at``, which go on in their piece, are the values one step on."""
    if block.is_long and not isinstance(root, list) and not isinstance(after, list):
        return all(forms.agree(root[a + 1 : b], after[a : b - 1]) for a, b in block.spans)
    return forms.agree(take(root, at + 1), take(after, at))


def take(values: Any, index: Any) -> Any:
    """Rows of a column, of text too."""
    return [values[i] for i in index] if isinstance(values, list) else values[index]


MASK, NEXT_MASK = "mask", "next/mask"
_COLUMNS = (REWARD, *FLAGS)  # [B, L, 1] in windows


@dataclass(frozen=True)
class Neighbours:
    """Where the L rows of each of B windows lie among rows read.

    ``runs`` are the rows to read; ``steps observed after`` [B, L] are places among them of what belongs to steps, of
    observations, and of next observations; ``mask next_mask`` [B, L] say which are inside of the episode.
    """

    runs: tuple[tuple[int, int], ...]
    steps: IntArray
    observed: IntArray
    after: IntArray
    mask: BoolArray
    next_mask: BoolArray


def neighbours(
    block: Block, starts: IntArray, lengths: IntArray, final: BoolArray, span: tuple[int, int]
) -> Neighbours:
    """The windows of all steps of a block.

    Parameters
    ----------
    starts, lengths, final : array [pieces]
        Of the pieces' episodes: first row in the store, steps, and whether the final observation is recorded.
    span : tuple of int
        How many steps a window has before and after its own.
    """
    history, future = span
    first = np.array([p.first for p in block.pieces])
    last = np.array([p.last for p in block.pieces])
    low, high = np.maximum(first - history, 0), np.minimum(last + future, lengths)  # rows that are needed
    sizes = high - low + 1
    offset = np.cumsum(sizes) - sizes - low
    piece = np.repeat(np.arange(len(first)), last - first)
    t = np.arange(block.size) - np.repeat(np.cumsum(last - first) - last, last - first)
    at = t[:, None] + np.arange(-history, future + 1)
    steps, top, base = (x[piece][:, None] for x in (lengths - 1, lengths - ~final, offset))
    return Neighbours(
        tuple(zip((starts + low).tolist(), (starts + high + 1).tolist(), strict=True)),
        base + np.clip(at, 0, steps),
        base + np.clip(at, 0, top),
        base + np.clip(at + 1, 0, top),
        (at >= 0) & (at <= steps),
        (at >= -1) & (at < top),
    )


def given(
    rows: Callable[[str], Array], names: Iterable[str], fields: Mapping[str, Field], n: Neighbours
) -> dict[str, Array]:
    """The windows of the fields: [B, L, ...], rewards and flags [B, L, 1]; ``mask`` and ``next/mask`` [B, L].

    Raises
    ------
    InvalidEpisode
        A field has the name of a mask.
    """
    windows: dict[str, Array] = {}
    for name in names:
        if name in (MASK, NEXT_MASK):
            raise InvalidEpisode(
                f'the source has a field "{name}", which is what windows call their mask.', hint="leave it out: fields="
            )
        values = rows(name)
        if fields[name].placement == "both":
            windows[name] = values[n.observed]
            windows[f"next/{name}"] = values[n.after]
        else:
            one = values[n.steps]
            windows[name] = one[..., None] if name in _COLUMNS and one.ndim == 2 else one
    windows[forms.DONE] = windows[FLAGS[0]] | windows[FLAGS[1]]
    return {**windows, MASK: n.mask, NEXT_MASK: n.next_mask}


def hand(windows: Mapping[str, Array], arrays: str) -> Any:
    """As the function wants them. NumPy arrays are read-only: what is written into a window would be lost."""
    if arrays == "numpy":
        for values in windows.values():
            values.flags.writeable = False
    return forms.hand(windows, arrays)


def laid_over(value: Any, handed: Any, before: Flat, fields: Mapping[str, Field], where: str) -> Flat:
    """What a function of windows returned, over the fields as they were.

    Parameters
    ----------
    value : mapping
        Fields that it adds or changes, one row per step [B, ...], and None for those that it removes; the others stay.
    handed : mapping
        What it was given.
    before : dict
        The transitions as the source has them.

    Raises
    ------
    InvalidEpisode
        It is no mapping; it is all that was given; a window was edited in place; or an observation was returned
        without the next one.
    """
    if not _is_nested(value):
        raise InvalidEpisode(f"{where}: a {type(value).__name__} was returned; a dict of fields is needed.")
    known = dict(_leaves(handed, ()))
    new, removed = {}, set[str]()
    for name, leaf in _leaves(value, ()):
        if name in (MASK, NEXT_MASK) and leaf is known[name]:
            raise InvalidEpisode(
                f"{where}: windows came back whole, with their mask.",
                hint="return only the fields that are added or changed, one row per step; the others stay",
            )
        if leaf is None:
            removed |= {name, f"next/{name}"} if name in fields and fields[name].placement == "both" else {name}
        else:
            new[name] = leaf
    _check_edits(known, where)
    _check_observations(new, fields, where)
    kept = {n: v for n, v in before.items() if not any(is_below(n, r) for r in removed)}
    if forms.DONE not in new:
        kept.pop(forms.DONE, None)
    return forms.take_back({**kept, **new}, where)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "items"))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not _is_nested(value):
        yield "/".join(path), value
        return
    for key, below in value.items():
        yield from _leaves(below, (*path, *(key if isinstance(key, tuple) else (str(key),))))


def _check_edits(handed: Mapping[str, Any], where: str) -> None:
    for name, value in handed.items():
        if getattr(value, "_version", 0):
            raise InvalidEpisode(
                f"{where}: the windows of {name} were edited in place.",
                hint="return the new values, one row per step, under the field's name",
            )


def _check_observations(new: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    for name, f in fields.items():
        if f.placement == "both" and name in new and f"next/{name}" not in new:
            raise InvalidEpisode(
                f'{where}: "{name}" came back changed and "next/{name}" did not.',
                hint='return both: windows have "next/..." too, made alike of them the two stay one observation',
            )
