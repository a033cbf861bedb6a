"""Several flat files as one table: an episode goes on in the next file where its id and its steps do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.archives import Archive
from rlds_cli.archives.d4rl.ends import is_set
from rlds_cli.archives.plain.boundaries import SCAN_ROWS, Boundaries, find
from rlds_cli.archives.plain.survey import FileSurvey
from rlds_cli.archives.plain.views import View
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import CUT, Array, BoolArray, IntArray, Note


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """All files as one table, with the boundaries of its episodes.

    ``finals`` [E] says whether the last row of an episode holds its final observation, and no step.
    """

    view: View
    finals: BoolArray
    rule: str
    late: bool
    notes: tuple[Note, ...]
    episodes: tuple[int, ...] | None  # of each file; None where one goes on in the next file
    ends: IntArray  # how many are terminated, truncated, cut


def join(archive: Archive, seen: Sequence[FileSurvey]) -> JoinedFiles:
    """Find the boundaries in all files.

    Raises
    ------
    UnknownLayout
        The columns of a file contradict each other.
    """
    derived = tuple(dict.fromkeys(k for s in seen for k in (*s.keys.values(), *s.by.keys)))
    view = View(tuple(s.path for s in seen), tuple(s.rows for s in seen), derived, np.zeros(0, np.int64), fill=True)

    def place(row: int) -> str:
        file, at = view.place(row)
        return f"row {at:,} of {archive.name_of(file)}"

    if len(seen) == 1:
        found = [find(view, seen[0].by, seen[0].rows, _stored(view), place)]
    else:
        found = _find_in_all(seen, view, place)
    if len(found) == 1:
        stops, finals, order = found[0].stops, found[0].finals, found[0].order
    else:
        stops, finals, order = _end_to_end(seen, found, view)
    notes = [Note("rows", text) for text in dict.fromkeys(t for f in found for t in f.notes)]
    counts = tuple(len(f.stops) for f in found)
    alone = len(found) == len(seen) and sum(counts) == len(stops)
    late = any(f.late for f in found)
    ends = np.sum([f.ends for f in found], axis=0)
    ends[CUT] -= sum(counts) - len(stops)  # those that go on
    view = replace(view, stops=stops, order=order)
    return JoinedFiles(view, finals, found[0].rule, late, tuple(notes), counts if alone else None, ends)


def _find_in_all(seen: Sequence[FileSurvey], view: View, place: Callable[[int], str]) -> list[Boundaries]:
    """Find the boundaries of each file; of all rows as one table where single files contradict themselves."""
    starts = np.cumsum([0, *view.counts]).tolist()
    found = []
    try:
        for i, s in enumerate(seen):
            one = replace(view, paths=view.paths[i : i + 1], counts=view.counts[i : i + 1])
            found.append(find(one, s.by, s.rows, _stored(one), partial(_shifted, place, starts[i])))
    except UnknownLayout:
        if seen[0].by.steps is None or seen[0].by.explicit:
            raise
        try:
            return [find(view, seen[0].by, starts[-1], _stored(view), place)]
        except UnknownLayout:
            pass
        raise
    return found


def _stored(view: View) -> int:
    return sum(path.stat().st_size for path in view.paths)


def _shifted(place: Callable[[int], str], start: int, row: int) -> str:
    return place(row + start)


def _end_to_end(
    seen: Sequence[FileSurvey], found: Sequence[Boundaries], view: View
) -> tuple[IntArray, BoolArray, IntArray | None]:
    starts = np.cumsum([0, *view.counts])
    edges = [_edges(s, f, replace(view, paths=(s.path,), counts=(s.rows,))) for s, f in zip(seen, found, strict=True)]
    stops, finals = [], []
    for i, f in enumerate(found):
        goes_on = i + 1 < len(found) and _goes_on(edges[i], edges[i + 1])
        stops.append(f.stops[: len(f.stops) - goes_on] + starts[i])
        finals.append(f.finals[: len(f.finals) - goes_on])
    order = None
    if any(f.order is not None for f in found):
        orders = [np.arange(s.rows) if f.order is None else f.order for s, f in zip(seen, found, strict=True)]
        order = np.concatenate([o + start for o, start in zip(orders, starts, strict=False)])
    return np.concatenate(stops), np.concatenate(finals), order


@dataclass(frozen=True, slots=True)
class _FileEdges:
    """Ids and steps of the first and the last row of a file; whether its last episode ends by itself."""

    first: tuple[Any, Any]
    last: tuple[Any, Any]
    ids: frozenset[Any]
    ended: bool
    steps: bool


def _edges(s: FileSurvey, found: Boundaries, view: View) -> _FileEdges | None:
    if s.by.ids is None or s.by.explicit or not s.rows:
        return None
    flags = [k for k in (s.by.terminated, s.by.truncated, s.by.done) if k]
    keys = [s.by.ids, *([s.by.steps] if s.by.steps else []), *flags]
    seen: dict[str, list[Array]] = {k: [] for k in keys}
    with replace(view, order=found.order).rows(keys) as rows:
        for start in range(0, s.rows, SCAN_ROWS):
            for k, v in rows.read(start, min(start + SCAN_ROWS, s.rows)).items():
                seen[k].append(v.reshape(-1))
    columns = {k: np.concatenate(v) for k, v in seen.items()}
    ids, steps = columns[s.by.ids].tolist(), columns[s.by.steps].tolist() if s.by.steps else [None] * s.rows
    ended = bool(found.finals[-1:].any()) or any(is_set(columns, k, s.rows)[-1] for k in flags)
    return _FileEdges((ids[0], steps[0]), (ids[-1], steps[-1]), frozenset(ids), ended, s.by.steps is not None)


def _goes_on(before: _FileEdges | None, after: _FileEdges | None) -> bool:
    """Whether the episode at the end of one file goes on in the next one."""
    if before is None or after is None or before.ended or before.last[0] != after.first[0]:
        return False
    if before.steps and after.steps:
        return bool(after.first[1] == before.last[1] + 1)
    if len(before.ids) == 1 and len(after.ids) > 1:
        raise UnknownLayout(
            f"Episode {before.last[0]!s} is all of one file and begins the next one; no column of steps says whether "
            "it goes on there.",
            hint="--map step=KEY names a column that counts the steps; --episodes-by field:KEY begins an episode with "
            "each file",
        )
    return len(before.ids | after.ids) > 1 and before.ids & after.ids == {after.first[0]}
