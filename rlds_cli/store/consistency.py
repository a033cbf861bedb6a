"""Whether an episode table agrees with itself, with the manifest and with the flags and rewards of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from rlds_cli.errors import RldsError
from rlds_cli.store import scanning
from rlds_cli.store.checking import Problem
from rlds_cli.store.manifest import Stats
from rlds_cli.store.opening import Store
from rlds_cli.store.ranges import read_range
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Array, EpisodeTable

_STRIDE = 1 << 20
_ROUNDING = 1e-9

Read = Callable[[int, int], Array]


def check_table(store: Store, table: EpisodeTable) -> list[Problem]:
    """Everything wrong with the episode table. ``table`` is the store's, as ``store.table()`` reads it."""
    try:
        shape = [Problem(f"episodes/{name}", what) for name, what in _shape(store, table)]
        return shape or [Problem(f"episodes/{name}", what) for name, what in _content(store, table)]
    except (RldsError, OSError, ValueError, KeyError, IndexError) as e:
        return [Problem("episodes", e.message if isinstance(e, RldsError) else str(e))]


def _shape(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    """What is wrong with the table itself."""
    counts, e = store.manifest.counts, store.episodes
    lengths = {name: len(column) for name, column in e.items() if len(column) != len(table)}
    if lengths or len(table) != counts.episodes:
        yield "length", f"columns of other lengths than {counts.episodes:,} episodes: {lengths or len(table)}"
        return
    if len(table) and table.length.min() < 1:
        yield "length", f"episode {int(table.length.argmin())} has {int(table.length.min())} steps"
    if int((table.length + 1).sum()) != counts.rows:
        yield "length", f"{int((table.length + 1).sum()):,} rows; the manifest says {counts.rows:,}"
    elif not np.array_equal(e["start"], table.start):
        yield "start", f"episode {_first(e['start'] != table.start)} does not start where the one before ends"
    if not np.isin(table.end, (TERMINATED, TRUNCATED, CUT)).all():
        yield "end", f"episode {_first(table.end > CUT)} has end {int(table.end.max())}, which is none"
    if not np.isin(e["num_observed"] - table.length, (0, 1)).all():
        yield "num_observed", "is neither the length nor one more"
    if not np.array_equal(e["num_transitions"], table.num_transitions):
        yield "num_transitions", f"episode {_first(e['num_transitions'] != table.num_transitions)} does not add up"
    sources = max(1, int(store.manifest.archive.get("files", 1)))
    if len(table) and not 0 <= table.source.min() <= table.source.max() < sources:
        yield "source", f"names files beyond the {sources}"


def _content(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    """Where the rows or the manifest say otherwise than the table."""
    yield from _counts(store, table)
    yield from _own_columns(store)
    e = store.episodes
    if all(name in store.fields for name in FLAGS):
        terminated, truncated = (_reader(store, name) for name in FLAGS)
        yield from _flags(table, _sums(truncated, table), *_last(store, table))
        done = _sums(lambda a, b: terminated(a, b) | truncated(a, b), table)
        yield from _sum_of("num_done", e.get("num_done"), done)
        yield from _sum_of("num_terminated", e.get("num_terminated"), _sums(terminated, table))
    if "total_reward" in e:
        yield from _sum_of("total_reward", e["total_reward"], _sums(_reader(store, REWARD), table))


def check_statistics(store: Store, table: EpisodeTable, name: str) -> list[Problem]:
    """Whether the statistics of a field in the manifest are those of its rows."""
    f, stored = store.fields[name], store.manifest.stats.get(name)
    if f.kind != "array" or np.dtype(f.dtype).kind not in "biuf":
        return [] if stored is None else [Problem(f"statistics of {name}", "are of what is no number")]
    if stored is None:
        return [Problem(f"statistics of {name}", "are missing")]
    found = scanning.recount(_reader(store, name), store.manifest.counts.rows, f, table.start + table.length)
    scale = _scale(found)
    wrong = [
        key
        for key, value in asdict(found).items()
        if not _near(stored.get(key), value, 0 if key in ("count", "nonfinite", "histogram") else scale)
    ]
    return [Problem(f"statistics of {name}", f"{', '.join(wrong)} are not those of its rows")] if wrong else []


def _near(stored: Any, found: Any, scale: float) -> bool:
    """Whether they are equal, but for what another processor rounds otherwise."""
    try:
        a, b = np.asarray(stored, np.float64), np.asarray(found, np.float64)
    except (TypeError, ValueError):
        return False
    rounding = _ROUNDING if scale else 0
    return a.shape == b.shape and bool(np.isclose(a, b, rtol=rounding, atol=rounding * scale, equal_nan=True).all())


def _scale(stats: Stats) -> float:
    """The largest finite value."""
    limits = np.abs(np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max)]))
    return float(limits[np.isfinite(limits)].max(initial=0))


def _own_columns(store: Store) -> Iterator[tuple[str, str]]:
    """Columns of the user's own that are not as they were written."""
    for name, about in store.manifest.episode_columns.items():
        column = store.own_column(name)
        if not len(column.values) == len(column.missing) == store.manifest.counts.episodes:
            yield name, f"has {len(column.values):,} values; {store.manifest.counts.episodes:,} expected"
        elif column.digest(name) != about["digest"]:
            yield name, "is not what it was when it was written"


def _counts(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    counts = store.manifest.counts
    found = {
        "steps": int(table.length.sum()),
        "transitions": int(table.num_transitions.sum()),
        "terminated": int((table.end == TERMINATED).sum()),
        "truncated": int((table.end == TRUNCATED).sum()),
        "cut": int((table.end == CUT).sum()),
        "final_observations": int(table.observed.sum()),
    }
    for name, value in found.items():
        if getattr(counts, name) != value:
            yield "counts", f"{value:,} {name}; the manifest says {getattr(counts, name):,}"


def _reader(store: Store, name: str) -> Read:
    directory = store.directory(name)
    return lambda a, b: read_range(directory, a, b)


def _last(store: Store, table: EpisodeTable) -> tuple[Array, Array]:
    """The flags of the last step of every episode."""
    steps = table.start + table.length - 1
    terminated, truncated = (np.asarray(store.rows(name)[steps], bool) for name in FLAGS)
    return terminated, truncated


def _flags(
    table: EpisodeTable, truncated: Array, last_terminated: Array, last_truncated: Array
) -> Iterator[tuple[str, str]]:
    ends = last_terminated != (table.end == TERMINATED)
    ends |= ~last_terminated & ~last_truncated
    if ends.any():
        yield "end", f"episode {_first(ends)} is not flagged as it ends"
    inside = truncated != last_truncated
    if inside.any():
        yield "end", f"episode {_first(inside)} is truncated before its last step"


def _sums(read: Read, table: EpisodeTable) -> Array:
    """Sums of a column over each episode, in float64; several episodes a read."""
    total = np.zeros(len(table))
    start, stop = table.start, table.start + table.length
    first = 0
    while first < len(table):
        end = max(first + 1, int(np.searchsorted(stop, start[first] + _STRIDE, "right")))
        for e, a, b in _reads(start, stop, first, end):
            values = np.asarray(read(a, b), np.float64)
            total[e] += np.add.reduceat(values, start[e] - a) if isinstance(e, slice) else values.sum()
        first = end
    return total


def _reads(start: Array, stop: Array, first: int, end: int) -> Iterator[tuple[Any, int, int]]:
    """Ranges of rows to read for episodes first to end: all in one, or a long one piece by piece."""
    a, b = int(start[first]), int(stop[end - 1])
    if end - first > 1:
        yield slice(first, end), a, b
        return
    for at in range(a, b, _STRIDE):
        yield first, at, min(b, at + _STRIDE)


def _sum_of(name: str, stored: Array | None, found: Array) -> Iterator[tuple[str, str]]:
    if stored is None:
        return
    # The same numbers added in another order: near, not equal, and less near where they cancel.
    finite = np.abs(found[np.isfinite(found)])
    wrong = ~np.isclose(stored, found, rtol=1e-6, atol=1e-6 * max(1.0, finite.max(initial=0)), equal_nan=True)
    if wrong.any():
        k = _first(wrong)
        yield name, f"episode {k} has {stored[k]}; its rows add up to {found[k]}"


def _first(where: Array) -> int:
    return int(np.argmax(where))
