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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds_cli.base.files import safe as safe_files
from rlds_cli.dataset import retelling
from rlds_cli.dataset.batch import Batch
from rlds_cli.dataset.lazy import LazyArray, LazyBatch, StoredColumns, in_episode
from rlds_cli.dataset.rows import Rows
from rlds_cli.dataset.selection import EpisodeColumns
from rlds_cli.errors import InvalidArgument
from rlds_cli.store import arrays, compression, digests
from rlds_cli.store.digests import Digests
from rlds_cli.store.opening import Store
from rlds_cli.store.views import Change, Column
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, VIDEO, Array, BoolArray, Field, IntArray, split_name

_TERMINATED, _TRUNCATED = FLAGS
_ROWS_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 16 << 20
_BLOCK = 65_536  # rows of a sparse file that are written at once


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of steps: of episode ``number`` of a store, those from ``first`` up to, but without, ``stop`` [n] each."""

    number: IntArray
    first: IntArray
    stop: IntArray

    def __len__(self) -> int:
        return len(self.number)


class _Dataset(Protocol):
    """The part of a `Dataset` that is read here. It keeps this module below the one that defines datasets."""

    @property
    def id(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def episodes(self) -> EpisodeColumns: ...
    @property
    def schema(self) -> Mapping[str, Field]: ...


def of_values(given: Any, length: int, where: str) -> list[tuple[int, int]]:
    """Return the ranges of one episode that a user gave.

    Parameters
    ----------
    given
        A bool for each step [T], a pair (first, stop), a slice, a list of such, or None for none of the steps.
    length : int
        The steps T.
    where : str
        The episode, for messages.

    Raises
    ------
    InvalidArgument
        It is something else, or leads out of the episode, or ranges overlap or are not in order.
    """
    if given is None:
        return []
    if isinstance(given, slice):
        given = given.indices(length)[:2] if given.step in (None, 1) else given
    try:
        values = np.asarray(given) if not isinstance(given, slice) else np.zeros(())
    except ValueError:  # pairs beside other things
        values = np.zeros(())
    if values.dtype == bool and values.shape in ((length,), (length, 1)):
        edges = np.flatnonzero(np.diff(values.reshape(-1).astype(np.int8), prepend=0, append=0))
        return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if values.size == 0 and values.ndim == 1:
        return []
    if values.dtype.kind not in "iu" or values.shape[-1:] != (2,) or values.ndim > 2:
        raise InvalidArgument(
            f"{where}: {given!r:.80} is not a range of its {length:,} steps.",
            hint="a bool for each step, (first, stop), or a list of such pairs",
        )
    pairs = [(int(a), int(b)) for a, b in values.reshape(-1, 2).tolist()]
    before = 0
    for a, b in pairs:
        if not before <= a <= b <= length:
            said = "overlaps the one before it" if 0 <= a < before else f"is not a range of its {length:,} steps"
            raise InvalidArgument(f"{where}: ({a}, {b}) {said}.", hint="0 <= first <= stop <= T, in order")
        before = b
    return [(a, b) for a, b in pairs if a < b]


def whole(index: IntArray) -> Change:
    """Return the change that selects whole episodes."""
    return Change(index, {"source_episode": index, "source_step": np.zeros(len(index), np.int64)})


def change(store: Store, ranges: Ranges) -> Change:
    """Return the change that makes episodes of ranges."""
    e, options = store.episodes, store.episode_strings("options")
    of, length = ranges.number, ranges.stop - ranges.first
    at_start, at_end = ranges.first == 0, ranges.stop == e["length"][of]
    if (at_start & at_end).all():
        return whole(of)
    start = e["start"][of] + ranges.first
    cut = ~at_end
    observed = np.where(at_end, e["num_observed"][of] > e["length"][of], True)
    end = np.where(at_end, e["end"][of], CUT).astype(np.uint8)
    if _TERMINATED in store.fields:
        last = np.asarray(store.rows(_TERMINATED)[start + length - 1])
        end[last] = TERMINATED
        cut &= ~last
    columns: dict[str, Column] = {
        "start": start,
        "length": length,
        "num_observed": length + observed,
        "num_transitions": length - (~observed & (end != TERMINATED)),
        "end": end,
        "row": e["row"][of] + ranges.first,
        "id": _ids(e["id"][of], ranges, at_start & at_end),
        "source_episode": of,
        "source_step": ranges.first,
    }
    for name in {"seed", "has_seed"} & e.keys():
        columns[name] = np.where(at_start, e[name][of], 0).astype(e[name].dtype)
    if any(options):
        columns["options"] = [
            options[k] if first else "" for k, first in zip(of.tolist(), at_start.tolist(), strict=True)
        ]
    changed = np.flatnonzero(~(at_start & at_end))
    truncated = start[cut] + length[cut] - 1
    part = _Places(store, columns, changed)
    rows = Rows(part)
    for name, values in _sums(rows, truncated).items():
        if name in e:
            column = np.array(e[name][of])
            column[changed] = values
            columns[name] = column
    new = {name: _digests(rows, f, store.digests(name)[of], changed, truncated) for name, f in store.fields.items()}
    flags = {} if _TRUNCATED not in store.fields else {_TRUNCATED: _writer(store, start, length, truncated)}
    return retelling.of_ranges(store, Change(of, columns, digests=new, rows=flags), changed)


@dataclass(frozen=True, slots=True)
class _Places:
    """Some of the episodes of a table that is not written yet, as a dataset for `Rows`."""

    store: Store
    columns: Mapping[str, Any]
    index: IntArray

    @property
    def episodes(self) -> _Places:
        return self

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self.columns[name])[self.index]


def _ids(of: Array, ranges: Ranges, whole: BoolArray) -> Digests:
    """Return the ids of ranges: a part of an episode gets the hash of the episode's id, of its first step and stop.

    One that exists already, of the same part that was made before and merged with the episode, is hashed again.
    """
    found = np.array(of)
    taken = {row.tobytes() for row in found[whole]}
    for k in np.flatnonzero(~whole).tolist():
        id, place = of[k].tobytes(), np.array([ranges.first[k], ranges.stop[k]], "<i8").tobytes()
        while (id := hashlib.sha256(id + place).digest()[:16]) in taken:
            pass
        taken.add(id)
        found[k] = np.frombuffer(id, np.uint8)
    return found


def _groups(rows: Rows, width: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of episodes (first, end) whose rows are read at once: a few megabytes, or one episode."""
    at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, width)))
    first = 0
    while first < len(rows.start):
        end = int(np.searchsorted(rows.start, rows.start[first] + at_once, "right"))
        yield first, (end := max(first + 1, end - (end < len(rows.start))))
        first = end


def _sums(rows: Rows, truncated: IntArray) -> dict[str, Array]:
    """Return total_reward, num_done and num_terminated of episodes, where the fields exist."""
    store, found = rows.store, dict[str, Array]()
    f = store.fields.get(REWARD)
    if f is not None and f.kind == "array" and not f.shape and np.dtype(f.dtype).kind in "fiub":
        found["total_reward"] = np.zeros(len(rows.start))
    if all(name in store.fields for name in FLAGS):
        found |= {n: np.zeros(len(rows.start), np.int64) for n in ("num_done", "num_terminated")}
    for a, b in _groups(rows, 8):
        first, stop, start = int(rows.start[a]), int(rows.final[b - 1]) + 1, rows.start[a:b] - rows.start[a]
        if "total_reward" in found:
            with np.errstate(over="ignore", invalid="ignore"):  # infinities of both signs are data
                found["total_reward"][a:b] = np.add.reduceat(
                    np.asarray(rows.between(REWARD, first, stop), np.float64), start
                )
        if "num_done" in found:
            done = rows.between(_TERMINATED, first, stop)
            found["num_terminated"][a:b] = np.add.reduceat(done, start, dtype=np.int64)
            done = done | _cut(rows, first, stop, truncated)
            found["num_done"][a:b] = np.add.reduceat(done, start, dtype=np.int64)
    return found


def _cut(rows: Rows, first: int, stop: int, truncated: IntArray) -> BoolArray:
    """Return ``next/truncated`` of rows ``first`` to ``stop`` [n], with True where ranges are cut."""
    values: BoolArray = np.array(rows.between(_TRUNCATED, first, stop))
    values |= np.isin(rows.stored(np.arange(first, stop)), truncated)
    values[rows.last_rows(first, stop) - first] = False
    return values


def _digests(rows: Rows, f: Field, before: Digests, changed: IntArray, truncated: IntArray) -> Digests:
    """Return the digests of all episodes of a field: ``before`` [episodes, 32], with those of ``changed`` anew."""
    store, found = rows.store, np.array(before)
    count = rows.count(f)
    of_rows = store.row_digests(f.name) if digests.has_row_digests(f) else None
    of_videos = store.video_digests(f.name) if f.codec == VIDEO else None
    texts = store.strings(f.name).tolist() if f.kind == "text" else []
    width = 32 if of_rows is not None else arrays.row_bytes((0, *f.shape), f.dtype) if f.kind == "array" else 8
    for a, b in _groups(rows, width):
        first, stop, start = int(rows.start[a]), int(rows.final[b - 1]) + 1, rows.start[a:b] - rows.start[a]
        if of_rows is not None:
            values: Array = np.asarray(of_rows[rows.stored(np.arange(first, stop))])
        elif f.name == _TRUNCATED:
            values = _cut(rows, first, stop, truncated)
        else:
            values = rows.between(f.name, first, stop)
        if of_videos is not None:
            values = digests.video_rows(values, of_videos)
        if f.kind == "text":
            found[changed[a:b]] = digests.of_text_episodes(values, texts, start, count[a:b])
        else:
            found[changed[a:b]] = digests.of_episodes(values, start, count[a:b])
    return found


def _writer(store: Store, start: IntArray, length: IntArray, truncated: IntArray) -> Callable[[Path], None]:
    """Return the function that writes ``next/truncated``: the flags of the episodes, and True in rows ``truncated``."""
    rows = store.manifest.counts.rows

    def write(dataset: Path) -> None:
        directory = dataset / store.path_of(_TRUNCATED)
        file = arrays.data_file(directory, 1)
        safe_files.make(file.parent)
        flagged = np.sort(np.concatenate([truncated, *_flagged(store, start, length)]))
        with file.open("wb") as sparse:
            sparse.truncate(rows)
            for at in np.split(flagged, np.flatnonzero(np.diff(flagged // _BLOCK)) + 1) if len(flagged) else ():
                block = np.zeros(int(at[-1] - at[0]) + 1, np.uint8)
                block[at - at[0]] = 1
                arrays.write_at(sparse.fileno(), int(at[0]), block)
        arrays.finish(directory, (rows,), "bool")
        if store.manifest.encoding == "zarr":
            compression.compress(directory, store.fields[_TRUNCATED])

    return write


def _flagged(store: Store, start: IntArray, length: IntArray) -> Iterator[IntArray]:
    """Yield the rows of steps of these episodes whose flag is set."""
    ascending = np.argsort(start, kind="stable")
    start, length = start[ascending], length[ascending]
    column = store.rows(_TRUNCATED)
    for a in range(0, len(column), _ROWS_AT_ONCE):
        at = a + np.flatnonzero(column[a : a + _ROWS_AT_ONCE])
        episode = np.maximum(np.searchsorted(start, at, "right") - 1, 0)
        yield at[(at >= start[episode]) & (at < start[episode] + length[episode])] if len(start) else at[:0]


def collect(ds: _Dataset, given: Callable[[Batch], Any] | Mapping[int, Any]) -> Ranges:
    """Return the ranges of the selected episodes that a user gave; see `Dataset.trim`."""
    found: list[tuple[int, int, int]] = []
    index, lengths = ds.episodes.index.tolist(), ds.episodes["length"].tolist()
    if not callable(given):
        _check_numbers(given, len(index), ds.id)
    for k, (number, length) in enumerate(zip(index, lengths, strict=True)):
        value = given(_episode(ds, k)) if callable(given) else given.get(k, (0, length))
        found += [(number, a, b) for a, b in of_values(value, length, f"{ds.id}, episode {k:,}")]
    columns = np.array(found, np.int64).reshape(-1, 3)
    return Ranges(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _check_numbers(given: Any, count: int, id: str) -> None:
    """Refuse anything but a mapping whose keys are numbers of ``count`` episodes."""
    hint = "a function of an episode; or {3: (0, 50), 7: [(0, 10), (20, 30)]}: ranges of steps by number of the episode"
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"{id} is trimmed by a function or by a mapping, not by a {type(given).__name__}.", hint=hint
        )
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < count:
            raise InvalidArgument(f"There is no episode {k!r} among the {count:,} of {id}.", hint=hint)


def _episode(ds: _Dataset, k: int) -> Batch:
    """Return an episode whose fields are read when they are used, with its columns."""
    start, length, observed = (int(ds.episodes[c][k]) for c in ("start", "length", "num_observed"))
    steps = start + np.arange(length)
    after = np.minimum(steps + 1, start + observed - 1)

    def lazily(f: Field, rows: IntArray) -> LazyArray:
        empty = f.of_batch(np.empty((0, *f.shape)))
        dtype = np.dtype(object if f.kind == "text" else f.dtype)
        return LazyArray((length, *empty.shape[1:]), dtype, lambda: f.of_batch(ds.store.gather(f.name, rows)))

    fields = {name: lazily(f, steps) for name, f in ds.schema.items()}
    for name, f in ds.schema.items():
        if f.placement == "both" and f"next/{name}" not in fields:
            fields[f"next/{name}"] = lazily(f, after)
    episode = LazyBatch()
    for name, values in fields.items():
        *path, leaf = split_name(name)
        node: dict[Any, Any] = episode
        for part in path:
            node = dict.setdefault(node, part, LazyBatch())
        dict.__setitem__(node, leaf, values)
    return in_episode(episode, StoredColumns(ds.store).of_episode(int(ds.episodes.index[k]), length))
