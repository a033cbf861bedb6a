"""What a page knows of an episode before it plays it: fields, cameras, times, marks, texts; and the values of a step.

docs/reference/view-interface.md describes the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import Response

from rlds_cli.dataset import Dataset, Rows, Tasks
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.look import quick, rank
from rlds_cli.ted import COMPUTED, CUT, END_NAMES, FLAGS, TASK, TASK_AT, Field, Subtasks
from rlds_cli.view import elements
from rlds_cli.view.cameras import cameras
from rlds_cli.view.elements import names_of
from rlds_cli.view.query import Query, record
from rlds_cli.view.times import MOST_ROWS, row_times

if TYPE_CHECKING:
    from rlds_cli.look.checks.findings import Finding

_MOST_MARKS = 1000  # of one kind
_MOST_STEPS = 64  # whose values are asked for at once
_MOST_CHANGES = 1000  # of a field of texts
_TEXTS = 1 << 20  # characters of all texts of an episode
_LONGEST = 4000  # characters of a text
_SHORTEST = 40  # characters of a text of which all others are long
_LONG_NAME = 200
_EXACT = 1 << 53

Json = dict[str, Any]
Changes = dict[str, list[tuple[int, str | None]]]


def episode(query: Query) -> Response:
    """Answer with what an episode has."""
    ds = query.dataset
    number = query.episode(ds)
    return record(query, describe(query, ds, number))


def describe(query: Query, ds: Dataset, number: int) -> Json:
    """Return the record of an episode."""
    rows = query.once(ds, Rows)
    length = int(rows.length[number])
    index = int(rows.index[number])
    end = int(ds.store.episodes["end"][index])
    fields = sorted(ds.schema.values(), key=rank)
    texts = _texts(rows, [f for f in fields if f.kind == "text"], number)
    marks, bands = _findings(query.once(ds, quick), index, length, len(ds.store.episodes["end"]))
    return {
        "version": ds.version,
        "number": number,
        "id": _id(ds, index),
        "steps": length,
        "rows": length + int(rows.observed[number]),
        "columns": _columns(ds, index),
        "source": _source(ds, index),
        "task": _task(ds, index, texts),
        "end": END_NAMES[end],
        "time": row_times(rows, number),
        "fields": [_field(ds, f, int(rows.count(f)[number]), query.once(ds, names_of)) for f in fields],
        "cameras": cameras(rows, number, query.decoding, decode=query.decode),
        "marks": [*_flags(rows, number, end), *marks],
        "bands": [*_subtasks(ds, index, length, texts), *bands],
        "texts": texts,
    }


def _id(ds: Dataset, index: int) -> str | None:
    found = ds.store.episodes["id"][index].tobytes()
    return found.hex() if any(found) else None


def _columns(ds: Dataset, index: int) -> list[Json]:
    """Return the values of the columns of the episode table."""
    e, table = ds.store.episodes, ds.store.table
    found: Json = {"length": e["length"][index]}
    found |= {name: e[name][index] for name in COMPUTED if name in e}
    found["end"] = END_NAMES[int(e["end"][index])]
    if "seed" in e and e["has_seed"][index]:
        found["seed"] = e["seed"][index]
    if ds.episodes.splits:
        found["splits"] = ", ".join(name for name in ds.episodes.splits if e[f"split/{name}"][index])
    for name in ("group", "options"):
        if text := table.episode_strings(name)[index]:
            found[name] = text
    found |= {name: ds.store.own_column(name).scalar(index) for name in ds.store.own_columns}
    return [{"name": name, "value": _shown(value)} for name, value in found.items()]


def _shown(value: Any) -> Any:
    """Return a scalar as JSON has it: whole numbers that JavaScript has no number for are texts."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _source(ds: Dataset, index: int) -> str:
    """Return the file, the group and the first row in the archive, as far as they are known."""
    e, sources = ds.store.episodes, ds.store.sources
    source = int(e["source"][index])
    file = str(sources[source].get("file") or "") if source < len(sources) else ""
    where = [_cut(part, _LONG_NAME) for part in (file, ds.store.table.episode_strings("group")[index]) if part]
    return ", ".join([*where, f"row {int(e['row'][index]):,}"]) if where else ""


def _task(ds: Dataset, index: int, texts: Changes) -> str | None:
    """Return what the episode is about: its column, or the first text of a field."""
    if Tasks(ds.store).is_column and (told := ds.store.own_column(TASK).scalar(index)) is not None:
        return _cut(str(told))
    for name in (TASK_AT, TASK):
        found = next((text for _, text in texts.get(name, ()) if text), None)
        if found:
            return found
    return None


# -- fields


def _field(ds: Dataset, f: Field, rows: int, names: elements.Names) -> Json:
    listed = elements.elements(f, names) if f.kind == "array" and not f.is_image else []
    kind = _kind(f)
    return {
        "name": f.name,
        "kind": kind,
        "dtype": f.dtype,
        "shape": f.shape,
        "placement": "step" if f.placement != "both" else "both",
        "rows": rows,
        "elements": listed,
        "hidden": elements.hidden(f) if listed else 0,
        "hold": kind in ("curve", "flag") and np.dtype(f.dtype).kind in "biu",
        "unit": None,
        "partner": elements.partner(f, ds, names) if kind == "curve" else None,
    }


def _kind(f: Field) -> str:
    if f.is_image:
        return "camera"
    if f.kind == "text":
        return "text"
    if 0 in f.shape or np.dtype(f.dtype).kind not in "biuf":
        return "other"
    return "flag" if f.dtype == "bool" else "curve"


# -- marks and bands


def _flags(rows: Rows, number: int, end: int) -> list[Json]:
    start, length = int(rows.start[number]), int(rows.length[number])
    marks = list[Json]()
    for name in FLAGS:
        kind, found = name.partition("/")[2], list[Json]()
        for a in range(0, length if name in rows.store.fields else 0, MOST_ROWS):
            values = rows.between(name, start + a, start + min(a + MOST_ROWS, length))
            steps = a + np.flatnonzero(values.reshape(len(values), -1).any(1))[: _MOST_MARKS - len(found)]
            found += [{"step": step, "kind": kind, "text": kind} for step in steps.tolist()]
        marks += found
    for mark in marks:  # the flag of an episode that was cut says that it is truncated
        if end == CUT and mark["kind"] == "truncated" and mark["step"] == length - 1:
            mark["text"] = END_NAMES[CUT]
    return marks


def _findings(found: Iterable[Finding], index: int, length: int, of: int) -> tuple[list[Json], list[Json]]:
    """Return the findings at steps as marks, and those of the whole episode as bands.

    A note that concerns all episodes, of which there are ``of``, is one of the dataset.
    """
    marks, bands = list[Json](), list[Json]()
    for f in found:
        if f.severity == "note" and 1 < of <= f.num_episodes:
            continue
        said = {"kind": "finding", "text": _cut(f"{f.code}: {f.text}"), "severity": f.severity}
        here = [p for p in f.places if p.episode == index]
        marks += [{"step": p.step, **said} for p in here if p.step is not None]
        if (here and all(p.step is None for p in here)) or (not here and index in f.named):
            bands.append({"first": 0, "stop": length, **said})
    return marks, bands


def _subtasks(ds: Dataset, index: int, length: int, texts: Changes) -> list[Json]:
    """Return the ranges of steps with sub-tasks: of the column of episodes, or of a field of texts of this name."""
    if Tasks(ds.store).has_subtasks:
        try:
            found = Tasks(ds.store).subtasks(np.array([index]))
        except RldsError:  # a finding of `rlds check`, and no reason to show nothing
            return []
        start = int(ds.store.episodes["start"][index])
        ranges = list(zip((found.first - start).tolist(), (found.stop - start).tolist(), found.texts, strict=True))
    else:
        name = next((n for n in texts if n.rpartition("/")[2] == Subtasks.FIELD), "")
        changes = texts.get(name, [])
        stops = [*(step for step, _ in changes[1:]), length][: len(changes)]
        ranges = [(first, stop, text) for (first, text), stop in zip(changes, stops, strict=True) if text]
    return [{"first": a, "stop": b, "kind": "subtask", "text": _cut(text)} for a, b, text in ranges]


# -- texts


def _texts(rows: Rows, fields: list[Field], number: int) -> Changes:
    """Return where the texts of fields change: (step, text from there on)."""
    found, left = Changes(), _TEXTS
    for f in fields:
        start, count = int(rows.start[number]), min(int(rows.count(f)[number]), MOST_ROWS)
        codes = rows.between(f.name, start, start + count)
        at = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)[: min(count, _MOST_CHANGES)]
        changes = found[f.name] = list[tuple[int, str | None]]()
        for step, text in zip(at.tolist(), rows.store.texts(f.name, codes[at]), strict=True):
            shown = None if text is None else _cut(str(text), max(_SHORTEST, min(_LONGEST, left)))
            left -= len(shown or "")
            changes.append((step, shown))
    return found


# -- a step


def step(query: Query) -> Response:
    """Answer with the value of every field but images at a step; null where a field has none.

    With ``count`` it is a list of those of so many steps, fewer where the episode ends.
    """
    ds = query.dataset
    number, at = query.episode(ds), query.integer("step")
    rows = query.once(ds, Rows)
    count = int(rows.length[number] + rows.observed[number])
    if not 0 <= at < count:
        raise InvalidArgument(f"Episode {number:,} has no row {at:,}: it has {count:,}.")
    asked = query.integer("count", None)
    if asked is not None and not 1 <= asked <= _MOST_STEPS:
        raise InvalidArgument(f"The parameter count is {asked:,}, not from 1 to {_MOST_STEPS}.")
    stop = min(count, at + (asked or 1))
    fields = [f for f in sorted(ds.schema.values(), key=rank) if not f.is_image]
    columns = {f.name: _values(rows, f, number, range(at, stop)) for f in fields}
    values = [{name: column[k] for name, column in columns.items()} for k in range(stop - at)]
    shown = values[0] if asked is None else values
    return record(query, {"version": ds.version, "number": number, "step": at, "values": shown})


def _values(rows: Rows, f: Field, number: int, steps: range) -> list[Any]:
    """Return a text, a number, or the list of the elements that `episode` names, of each step; None without a value."""
    there = np.arange(steps.start, max(steps.start, min(steps.stop, int(rows.count(f)[number]))))
    values: Iterable[Any] = rows.values(f.name, int(rows.start[number]) + there) if len(there) else []
    missing = [None] * (len(steps) - len(there))
    if f.kind == "text":
        return [None if v is None else _cut(str(v)) for v in values] + missing
    listed = [[_number(v) for v in np.ravel(value)[: elements.MOST].tolist()] for value in values]
    return [found if f.shape else found[0] for found in listed] + missing


def _number(value: Any) -> Any:
    """Return a value of an array as JSON has it; numbers that it has not are texts."""
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return _shown(value)
