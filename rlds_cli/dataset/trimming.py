"""Ranges of the steps of episodes, as episodes of their own over the same rows.

::

    step            0    1    2    3    4    5    6        T = 6, the final observation o6 is recorded
    ranges               [1, 3)    [3, 6)                  two episodes; no step belongs to both
    first episode        o1   o2   o3                      cut at o3, which is its final observation
    second episode                 o3   o4   o5   o6       ends as the whole episode does

An episode ends with *terminated* if its last step does. If a range stops before the end of its episode, it is *cut*:
its last step gets ``next/truncated``, and the observation behind it is recorded. Seed and options of a reset belong to
the episode that has the first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays, sha256
from rlds_cli.dataset import retelling
from rlds_cli.dataset.rows import Rows
from rlds_cli.store import Change, NewRows, Patched, Store, StoredColumn
from rlds_cli.store.digests import Digests
from rlds_cli.ted import COMPUTED, CUT, FLAGS, TERMINATED, Field, Scalar, Subtasks

_TERMINATED, _TRUNCATED = FLAGS
_ROWS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 4 << 20
_BLOCK = 65_536  # ids that are made at once
_NONE: Mapping[str, StoredColumn | None] = {}


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of steps: of episode ``number`` of a store, those from ``first`` up to, but without, ``stop`` [n] each."""

    number: IntArray
    first: IntArray
    stop: IntArray

    @classmethod
    def of(cls, table: IntArray) -> Ranges:
        """Return the ranges of a table of these three columns [n, 3]."""
        return cls(*(np.ascontiguousarray(table[:, i]) for i in range(3)))

    def __len__(self) -> int:
        return len(self.number)


WHOLE: Mapping[str, Patched] = {  # columns of whole episodes
    "source_episode": Patched.everywhere("numbers"),
    "source_step": Patched.everywhere("zeros"),
}


def change(store: Store, ranges: Ranges, labels: Mapping[str, StoredColumn | None] = _NONE) -> Change:
    """Return the change that makes episodes of ranges. ``labels`` are new columns of the episodes of the store."""
    e, lengths = store.episodes, store.episodes["length"]
    parts = np.flatnonzero((ranges.first != 0) | (ranges.stop != lengths[ranges.number]))
    own = {name: None if c is None else c.take(ranges.number) for name, c in labels.items()}
    if not len(parts):
        return Change(ranges.number, WHOLE, own=own)
    of, first, stop = (x[parts] for x in (ranges.number, ranges.first, ranges.stop))
    start, length = e["start"][of] + first, stop - first
    at_start, at_end = first == 0, stop == lengths[of]
    cut = ~at_end
    observed = np.where(at_end, e["num_observed"][of] > lengths[of], True)
    end = np.where(at_end, e["end"][of], CUT).astype(np.uint8)
    if _TERMINATED in store.fields:
        last = np.asarray(store.rows(_TERMINATED)[start + length - 1])
        end[last] = TERMINATED
        cut &= ~last
    columns: dict[str, Array | list[str]] = {
        "start": start,
        "length": length,
        "num_observed": length + observed,
        "num_transitions": length - (~observed & (end != TERMINATED)),
        "end": end,
        "row": e["row"][of] + first,
    }
    for name in {"seed", "has_seed"} & set(e):
        columns[name] = np.where(at_start, e[name][of], 0).astype(e[name].dtype)
    if any(options := store.table.episode_strings("options")):
        columns["options"] = [
            options[k] if first else "" for k, first in zip(of.tolist(), at_start.tolist(), strict=True)
        ]
    columns["id"] = _ids(e["id"], ranges, parts)
    truncated = start[cut] + length[cut] - 1
    rows = Rows(_Places(store, columns, parts))
    columns |= {name: values for name, values in _computed(rows, cut).items() if name in e}
    patched = {name: Patched(parts, values) for name, values in columns.items()}
    patched |= {"source_episode": Patched(parts, of, "numbers"), "source_step": Patched(parts, first, "zeros")}
    new = {name: Patched(parts, partial(_digests, rows, f, cut)) for name, f in store.fields.items()}
    flags = partial(_write_flags, store=store, ranges=ranges, truncated=truncated)
    rewritten = {_TRUNCATED: flags} if _TRUNCATED in store.fields else {}
    store.table.let_go()
    own |= _subtasks(store, ranges, parts, own)
    made = Change(ranges.number, patched, own=own, digests=new, rows=rewritten)
    return retelling.of_ranges(store, made, parts)


@dataclass(frozen=True, slots=True)
class _Places:
    """Episodes of a table that is not written yet, as a dataset for `Rows`; ``index`` are their numbers in it."""

    store: Store
    columns: Mapping[str, Any]
    index: IntArray

    @property
    def episodes(self) -> _Places:
        return self

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self.columns[name])


def _ids(of: Array, ranges: Ranges, parts: IntArray) -> Digests:
    """Return the ids of ``parts`` of episodes: each is the hash of the episode's id, and of its first step and stop.

    One that exists already, of the same part that was made before and merged with the episode, is hashed again.
    """
    stays = np.ones(len(ranges), bool)
    stays[parts] = False
    taken = np.ascontiguousarray(of[ranges.number[stays]])
    places = np.stack([ranges.first[parts], ranges.stop[parts]], 1).astype("<i8").view(np.uint8)
    found = np.empty((len(parts), 16), np.uint8)
    for a in range(0, len(parts), _BLOCK):
        some = slice(a, a + _BLOCK)
        named = np.concatenate([of[ranges.number[parts[some]]], places[some]], 1)
        begin = np.arange(len(named)) * named.shape[1]
        found[some] = sha256.of_pieces(arrays.raw(named), begin, np.full_like(begin, named.shape[1]))[:, :16]
    heads = np.sort(np.concatenate([taken[:, :8], found[:, :8]]).view("<u8").reshape(-1))
    if (heads[1:] == heads[:-1]).any():
        known = {row.tobytes() for row in taken}
        for k, place in enumerate(places):
            while (id := found[k].tobytes()) in known:
                found[k] = np.frombuffer(hashlib.sha256(id + place.tobytes()).digest()[:16], np.uint8)
            known.add(id)
    return found


def _subtasks(
    store: Store, ranges: Ranges, parts: IntArray, own: Mapping[str, StoredColumn | None]
) -> dict[str, StoredColumn | None]:
    """Return the column of the sub-tasks, those of ``parts`` of episodes cut to them; nothing without such a column.

    ``own`` are new columns of the ranges.
    """
    name = Subtasks.COLUMN
    if name not in own and name not in store.own_columns:
        return {}
    column = own[name] if name in own else store.own_column(name).take(ranges.number)
    values: list[Scalar] = [None] * len(ranges) if column is None else column.scalars()
    for k in parts.tolist():
        if values[k] is not None:
            whole = Subtasks.of(values[k], f"{store.manifest.id}, episode {ranges.number[k]}")
            part = whole.part(int(ranges.first[k]), int(ranges.stop[k]))
            values[k] = str(part) if len(part) else None
    return {name: None if all(v is None for v in values) else StoredColumn.of(values, name)}


def _groups(rows: Rows, width: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of episodes (first, end) whose rows are read at once: a few megabytes, or one episode."""
    at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, width)))
    first = 0
    while first < len(rows.start):
        end = int(np.searchsorted(rows.start, rows.start[first] + at_once, "right"))
        yield first, (end := max(first + 1, end - (end < len(rows.start))))
        first = end


class _Read(NamedTuple):
    """The first rows of some episodes, end to end, and the number of the first row of each of them."""

    values: Array
    start: IntArray


def _read(rows: Rows, name: str, a: int, b: int, count: IntArray) -> _Read:
    """Read the first ``count[e]`` rows of episodes a to b, as they are stored."""
    size = count[a:b]
    start = np.cumsum(size) - size
    within = np.arange(int(size.sum())) - np.repeat(start, size)
    if not rows.store.slices:
        return _Read(rows.at(name, np.repeat(rows.start[a:b], size) + within), start)
    places = np.repeat(rows.stored(rows.start[a:b]), size) + within
    first = int(places.min())
    return _Read(rows.window(name, first, int(places.max()) + 1)[places - first], start)


def _computed(rows: Rows, cut: BoolArray) -> dict[str, Array]:
    """Return the columns of `ted.COMPUTED`, where the fields exist."""
    wanted = {name: c for name, c in COMPUTED.items() if c.fits(rows.store.fields)}
    found = {name: np.zeros(len(rows.start), c.dtype) for name, c in wanted.items()}
    needed = dict.fromkeys(of for c in wanted.values() for of in c.fields)
    for a, b in _groups(rows, 8):
        start = np.cumsum(rows.length[a:b]) - rows.length[a:b]
        read = {of: _read(rows, of, a, b, rows.length).values for of in needed if of != _TRUNCATED}
        if _TRUNCATED in needed:
            read[_TRUNCATED] = _truncated(rows, a, b, cut)
        for name, c in wanted.items():
            found[name][a:b] = c.of_episodes([read[of] for of in c.fields], start)
    return found


def _truncated(rows: Rows, a: int, b: int, cut: BoolArray) -> BoolArray:
    """Return ``next/truncated`` of the steps of episodes a to b, end to end: True in the last one of those cut."""
    values, start = _read(rows, _TRUNCATED, a, b, rows.length)
    values[(start + rows.length[a:b] - 1)[cut[a:b]]] = True
    return values


def _digests(rows: Rows, f: Field, cut: BoolArray) -> Digests:
    """Return the digests of the episodes of a field [episodes, 32]."""
    store, found, count = rows.store, np.empty((len(rows.start), 32), np.uint8), rows.count(f)
    hashing = store.table.hashing(f.name)
    of_rows = store.table.row_digests(f.name) if hashing.has_rows else None
    width = 32 if of_rows is not None else arrays.row_bytes((0, *f.shape), f.dtype) if f.kind == "array" else 8
    for a, b in _groups(rows, width):
        places, some = rows.stored(rows.start[a:b]), count[a:b]
        if of_rows is not None:
            found[a:b] = hashing.episodes(of_rows, places, some)
        elif f.kind == "array" and f.name != _TRUNCATED and store.slices:
            first = int(places.min())
            values = rows.window(f.name, first, int((places + some).max()))
            found[a:b] = hashing.episodes(values, places - first, some)
        elif f.name == _TRUNCATED:
            found[a:b] = hashing.episodes(_truncated(rows, a, b, cut), np.cumsum(some) - some, some)
        else:
            values, start = _read(rows, f.name, a, b, count)
            found[a:b] = hashing.episodes(values, start, some)
    rows.let_go()
    return found


def _write_flags(new: NewRows, store: Store, ranges: Ranges, truncated: IntArray) -> None:
    """Write ``next/truncated``: the flags of the ranges, and True in rows ``truncated``."""
    start = store.episodes["start"][ranges.number] + ranges.first
    flagged = np.sort(np.concatenate([truncated, *_flagged(store, start, ranges.stop - ranges.first)]))
    new.write_flags(store.manifest.counts.rows, flagged)


def _flagged(store: Store, start: IntArray, length: IntArray) -> Iterator[IntArray]:
    """Yield the rows of steps of these episodes whose flag is set."""
    ascending = np.argsort(start, kind="stable")
    start, length = start[ascending], length[ascending]
    column = store.rows(_TRUNCATED)
    for a in range(0, len(column), _ROWS_AT_ONCE):
        at = a + np.flatnonzero(column[a : a + _ROWS_AT_ONCE])
        episode = np.maximum(np.searchsorted(start, at, "right") - 1, 0)
        yield at[(at >= start[episode]) & (at < start[episode] + length[episode])] if len(start) else at[:0]
