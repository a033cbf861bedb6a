"""Flat rows of one or several files -> TED rows: episodes by their boundaries, across files where an episode goes on.

Most files have as many rows as steps, and are read as D4RL's are (``rlds_cli.archives.d4rl.rows``). Where files hold
final observations, as a last row without an action or as one observation more per episode than steps, they are read
episode by episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import episodes as whole
from rlds_cli.archives import Archive, Part, Plan, Replan, Seen
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.d4rl import layout as layouts
from rlds_cli.archives.d4rl import max_cuts, with_own_next
from rlds_cli.archives.d4rl.ends import Rule, differs, is_set
from rlds_cli.archives.d4rl.layout import Layout
from rlds_cli.archives.d4rl.rows import Stretch, Throughout, chunks
from rlds_cli.archives.hdf5 import differences, reading
from rlds_cli.archives.names import Meaning, episode_column, flags_of, has_essentials, meaning, scalar
from rlds_cli.archives.plain.boundaries import Found, Judges, check_numbers, decided, find, judges, skipped
from rlds_cli.archives.plain.views import EPISODE, View
from rlds_cli.archives.tables import MISSING, Column, Table, open_flat
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.ted import (
    CUT,
    END_NAMES,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    EpisodeData,
    Field,
    IntArray,
    Note,
    Scalar,
)

FINAL, OWN = "final", "own"
PART_ROWS, PART_BYTES = 1 << 19, 512 << 20
CHECK_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One file: what its columns are, and which say where episodes are.

    ``observations`` counts their rows; ``lists`` are columns that may have one value per episode.
    """

    path: Path
    meaning: Meaning
    by: Judges
    rows: int
    layout: Layout
    observations: int
    lists: Mapping[str, tuple[int, ...]]

    @property
    def keys(self) -> dict[str, str]:
        """Column by field, of all that is kept."""
        flags = {FLAGS[0]: self.layout.terminals, FLAGS[1]: self.layout.timeouts}
        following = {f"next/{n}": k for n, k in self.layout.next_columns.items()}
        return {**self.layout.columns, **following, **{n: k for n, k in flags.items() if k}}


@dataclass(frozen=True, slots=True)
class Joined:
    """All files as one table, with the boundaries in it."""

    view: View
    finals: BoolArray
    rule: str
    late: bool
    notes: tuple[Note, ...]
    episodes: tuple[int, ...] | None  # of each file; None where one goes on in the next file
    ends: IntArray  # how many are terminated, truncated, cut


def plan(archive: Archive) -> Plan:
    """Fields, parts and boundaries. Reads the columns that say where episodes are, and the actions.

    Raises
    ------
    UnknownLayout
        No observations or actions, columns of different lengths, boundaries that contradict each other.
    """
    bad: tuple[Note, ...] = ()
    if archive.skip_bad:
        archive, bad = _without_bad(archive)
    seen = [survey(archive, path) for path in archive.files]
    joined = join(archive, seen)
    first = seen[0]
    longer = _are_longer(archive, seen, joined)
    by_episode = longer or bool(joined.finals.any())
    recorded = all(s.layout.comparable or not s.layout.next_columns for s in seen)
    mode = None if not any(s.layout.next_columns for s in seen) or by_episode else FINAL if recorded else OWN
    per_episode = _per_episode(seen, joined)
    facts: dict[str, Any] = {
        "next_observations": mode,
        "fields": dict(first.meaning.fields),
        "counts": list(joined.view.counts),
        "read": "episodes" if by_episode else "rows",
        "longer": longer,
        "ordered": joined.view.order is not None,
        "late": joined.late,
        "per_episode": per_episode,
    }
    listed = set(per_episode.values())
    notes = [n for s in seen for n in (*s.meaning.notes, *(n for n in s.layout.notes if not _is_about(n, listed)))]
    if any(s.meaning.ignored for s in seen):
        notes.append(Note("root-flags", f"flags at the root are no ends in TED: {', '.join(first.meaning.ignored)}"))
    return Plan(
        "plain",
        archive,
        _schema(archive, seen, mode, joined.late),
        tuple(_parts(joined, first.layout, mode, by_episode=by_episode)),
        archive.episodes_by or joined.rule,
        facts=facts,
        notes=(*dict.fromkeys(notes), *joined.notes, *bad),
        seen=_seen(joined),
    )


def _seen(joined: Joined) -> Seen:
    lengths = np.diff(joined.view.stops, prepend=0) - joined.finals
    return Seen(tuple(lengths[lengths > 0].tolist()), dict(zip(END_NAMES, joined.ends.tolist(), strict=True)))


def _without_bad(archive: Archive) -> tuple[Archive, tuple[Note, ...]]:
    """The archive without the files that cannot be read to their end, and notes that name them."""
    good, notes = [], []
    for index, path in enumerate(archive.files):
        try:
            s = survey(archive, path)
            view = View((path,), (s.rows,), tuple(s.keys.values()), np.zeros(0, np.int64), fill=True)
            with view.rows(sorted(set(s.keys.values()))) as rows:
                for start in range(0, s.rows, CHECK_ROWS):
                    rows.read(start, min(start + CHECK_ROWS, s.rows))
            good.append(path)
        except ArchiveError as e:
            notes.append(skipped(archive.name_of(index), e))
    if not good:
        raise CorruptArchive(f"None of {len(archive.files):,} files can be read: {notes[0].where}")
    return replace(archive, files=tuple(good)), tuple(notes)


def survey(archive: Archive, path: Path) -> Surveyed:
    """Look at the columns of one file; reads none."""
    with open_flat(path, fill=True) as table:
        what = understood(table, archive.fields)
        by = judges(what, table, strict=not archive.episodes_by)
        if archive.episodes_by:
            by = decided(by, archive.episodes_by, table)
        rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
        observed = [key for name, key in what.fields.items() if is_observation(name) and table[key].shape]
        observations = max((table[key].shape[0] for key in observed), default=rows)
        for key in observed:  # for the layout, which wants as many rows of all
            table.columns[key] = replace(table[key], shape=(rows, *table[key].shape[1:]))
        found = layouts.of(table, path.name, flags_of(what)[0])
        lists = {k: table[k].shape for k in (*found.metadata, *what.per_episode.values()) if _is_list(table[k])}
        return Surveyed(path, what, by, rows, found, observations, lists)


def _is_list(c: Column) -> bool:
    """Whether a column could have one number, flag or text per episode."""
    return len(c.shape) in (1, 2) and c.shape[1:] in ((), (1,)) and c.dtype.kind in "biufOS"


def understood(table: Table, chosen: Mapping[str, str]) -> Meaning:
    """Find the meaning of a table's columns; hide those that say nothing.

    Raises
    ------
    UnknownLayout
        It has no observations or no actions.
    """
    if not table.columns:
        raise UnknownLayout(f"{table.path.name} has no rows.", hint="--skip-bad leaves it out; or remove the file")
    what = meaning(table.columns, chosen, table.path.name)
    if not has_essentials(what):
        missing = "action" if any(map(is_observation, what.fields)) else "observation"
        raise UnknownLayout(
            f'{table.path.name} has no "{missing}" by any name that is known. It holds {_held(table)}.',
            hint=f"say which column it is: --map {missing}=KEY",
        )
    fields, done = flags_of(what)
    table.derive([*what.fields.values(), *fields.values()])
    check_numbers(table, fields)
    table.hidden.update(what.ignored, what.per_episode.values())
    if done is not None and done not in fields.values():
        table.hidden.add(done)
    for key in fields.values():
        if key.startswith("["):
            table.hidden.update(table.made_of(key))
    return what


def is_observation(name: str) -> bool:
    """Whether a field belongs to the observation."""
    return name.partition("/")[0] == "observation"


def _held(table: Table) -> str:
    shown = [f"{n} {list(c.shape)}" for n, c in list(table.own.items())[:12]]
    return ", ".join(shown) + (", ..." if len(table.own) > len(shown) else "") if shown else "nothing"


# -- boundaries over all files


def join(archive: Archive, seen: Sequence[Surveyed]) -> Joined:
    """The boundaries in all files; an episode goes on in the next file where its id and its steps do."""
    derived = tuple(dict.fromkeys(k for s in seen for k in (*s.keys.values(), *s.by.keys)))
    view = View(tuple(s.path for s in seen), tuple(s.rows for s in seen), derived, np.zeros(0, np.int64), fill=True)

    def place(row: int) -> str:
        file, at = view.place(row)
        return f"row {at:,} of {archive.name_of(file)}"

    if len(seen) == 1:
        found = [find(view, seen[0].by, seen[0].rows, place)]
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
    return Joined(view, finals, found[0].rule, late, tuple(notes), counts if alone else None, ends)


def _find_in_all(seen: Sequence[Surveyed], view: View, place: Callable[[int], str]) -> list[Found]:
    """The boundaries of each file; of all rows together where they make sense only so."""
    starts = np.cumsum([0, *view.counts]).tolist()
    found = []
    try:
        for i, s in enumerate(seen):
            one = replace(view, paths=view.paths[i : i + 1], counts=view.counts[i : i + 1])
            found.append(find(one, s.by, s.rows, partial(_shifted, place, starts[i])))
    except UnknownLayout:
        if seen[0].by.steps is None or seen[0].by.explicit:
            raise
        try:
            return [find(view, seen[0].by, starts[-1], place)]
        except UnknownLayout:
            pass
        raise
    return found


def _shifted(place: Callable[[int], str], start: int, row: int) -> str:
    return place(row + start)


def _end_to_end(
    seen: Sequence[Surveyed], found: Sequence[Found], view: View
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
class _Edges:
    """Ids and steps of the first and the last row of a file; whether its last episode ends by itself."""

    first: tuple[Any, Any]
    last: tuple[Any, Any]
    ids: frozenset[Any]
    ended: bool
    steps: bool


def _edges(s: Surveyed, found: Found, view: View) -> _Edges | None:
    if s.by.ids is None or s.by.explicit or not s.rows:
        return None
    flags = [k for k in (s.by.terminated, s.by.truncated, s.by.done) if k]
    keys = [s.by.ids, *([s.by.steps] if s.by.steps else []), *flags]
    seen: dict[str, list[Array]] = {k: [] for k in keys}
    with replace(view, order=found.order).rows(keys) as rows:
        for start in range(0, s.rows, 1 << 18):
            for k, v in rows.read(start, min(start + (1 << 18), s.rows)).items():
                seen[k].append(v.reshape(-1))
    columns = {k: np.concatenate(v) for k, v in seen.items()}
    ids, steps = columns[s.by.ids].tolist(), columns[s.by.steps].tolist() if s.by.steps else [None] * s.rows
    ended = bool(found.finals[-1:].any()) or any(is_set(columns, k, s.rows)[-1] for k in flags)
    return _Edges((ids[0], steps[0]), (ids[-1], steps[-1]), frozenset(ids), ended, s.by.steps is not None)


def _goes_on(before: _Edges | None, after: _Edges | None) -> bool:
    """Whether the episode at the end of one file goes on in the next one."""
    if before is None or after is None or before.ended or before.last[0] != after.first[0]:
        return False
    if before.steps and after.steps:
        return bool(after.first[1] == before.last[1] + 1)
    if len(before.ids) == 1 and len(after.ids) > 1:
        raise UnknownLayout(
            f"episode {before.last[0]!s} is all of one file and begins the next one; no column of steps says whether "
            "it goes on there.",
            hint="--map step=KEY names a column that counts the steps; --episodes-by field:KEY begins an episode with "
            "each file",
        )
    return len(before.ids | after.ids) > 1 and before.ids & after.ids == {after.first[0]}


def _are_longer(archive: Archive, seen: Sequence[Surveyed], joined: Joined) -> bool:
    """Whether observations have a row more per episode than actions.

    Raises
    ------
    UnknownLayout
        They have another number of rows than either.
    """
    if all(s.observations == s.rows for s in seen):
        return False
    starts = np.cumsum([0, *joined.view.counts])
    for i, (s, (a, b)) in enumerate(zip(seen, pairwise(starts.tolist()), strict=True)):
        episodes = int(np.searchsorted(joined.view.stops, b, "right") - np.searchsorted(joined.view.stops, a, "right"))
        if s.observations != s.rows + episodes or joined.view.order is not None or joined.finals.any():
            raise UnknownLayout(
                f"{archive.name_of(i)}: columns have different numbers of rows: {s.observations:,} observations and "
                f"{s.rows:,} actions in {episodes:,} episodes ({joined.rule}).",
                hint="observations have as many rows as actions, or one more for each episode",
            )
    return True


def _per_episode(seen: Sequence[Surveyed], joined: Joined) -> dict[str, str]:
    """Columns of the episode table: those that the user named, and lists with one value per episode in every file.

    Raises
    ------
    UnknownLayout
        A column that the user named has as many values as neither rows nor episodes.
    """
    found = {}
    for name, key in seen[0].meaning.per_episode.items():
        for i, s in enumerate(seen):
            rows = s.lists.get(key, (0,))[0]
            if rows != s.rows and (joined.episodes is None or rows != joined.episodes[i]):
                raise UnknownLayout(
                    f"{s.path.name}: {key} has {rows:,} values; there are {s.rows:,} rows and "
                    f"{len(joined.view.stops):,} episodes."
                )
        found[name] = key
    if joined.episodes is None:
        return found
    for key in seen[0].lists:
        counts = [s.lists.get(key, (0,))[0] for s in seen]
        named = {s.meaning.lists for s in seen} | set(found.values())
        if tuple(counts) == joined.episodes and counts != [s.rows for s in seen] and key not in named:
            found[episode_column(key)] = key
    return found


def _is_about(note: Note, keys: set[str]) -> bool:
    return note.code == "not-per-row" and note.where.partition(" ")[0] in keys


# -- what is made of them


def _schema(archive: Archive, seen: Sequence[Surveyed], mode: str | None, late: bool) -> tuple[Field, ...]:
    schemas = []
    for s in seen:
        fields = [*s.layout.fields, *layouts.flag_fields(), *(s.layout.own_next if mode == OWN else ())]
        if late and s.layout.timeouts_field:
            fields.append(s.layout.timeouts_field)
        schemas.append(tuple(sorted(fields, key=lambda f: f.name)))
    for index, schema in enumerate(schemas):
        keys, others = seen[0].keys, seen[index].keys
        if schema == schemas[0] and keys != others:
            name = next(n for n in keys if keys[n] != others[n])
            raise UnknownLayout(
                f"{name} is called {others[name]} in {archive.name_of(index)}, {keys[name]} in {archive.name_of(0)}.",
                hint="import them one by one, under names of their own",
            )
        if schema != schemas[0]:
            raise UnknownLayout(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schema, schemas[0])),
                hint="import them one by one, under names of their own",
            )
    return schemas[0]


def _parts(joined: Joined, found: Layout, mode: str | None, *, by_episode: bool) -> Iterator[Part]:
    """Whole episodes, parts of about one size; one part where rows are out of order."""
    stops = joined.view.stops
    if not len(stops):
        return
    total, width = int(stops[-1]), max(1, sum(f.row_bytes for f in found.fields))
    number = 1 if joined.view.order is not None else -(-total // max(1, min(PART_ROWS, PART_BYTES // width)))
    marks = np.linspace(0, total, number + 1)[1:].astype(np.int64)
    bounds = np.unique(np.searchsorted(stops, marks)) + 1
    for a, b in pairwise([0, *np.minimum(bounds, len(stops)).tolist()]):
        start = int(stops[a - 1]) if a else 0
        steps = np.diff(stops[a:b], prepend=start) - (joined.finals[a:b])
        rows = None if mode == FINAL else int((steps[steps > 0] + 1).sum())
        yield Part(
            rows,
            {
                "first": a,
                "start": start,
                "stop": int(stops[b - 1]),
                "stops": stops[a:b].tolist(),
                "finals": np.flatnonzero(joined.finals[a:b]).tolist(),
                "episodes": int((steps > 0).sum()),
            },
        )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in chunks of bounded size.

    Raises
    ------
    Replan
        Next observations differ from the rows after throughout.
    CorruptArchive
        A file is damaged.
    """
    first = survey(plan.archive, plan.archive.files[0])
    view = _view(plan, part, first)
    extra = _extra(plan, part, view)
    if plan.facts["read"] == "episodes":
        yield from whole.chunks(_episodes(plan, part, first, view, extra), plan.schema)
        return
    stops = np.array(part.args["stops"])
    try:
        for chunk in chunks(view, _stretch(plan, part, first)):
            of = np.searchsorted(stops, chunk.episodes.row, "right").tolist()
            chunk.episodes.extra = {name: [values[k] for k in of] for name, values in extra.items()}
            for i, row in enumerate(chunk.episodes.row.tolist()):
                chunk.episodes.source[i], chunk.episodes.row[i] = view.place(row)
            yield chunk
    except Throughout:
        raise Replan(with_own_next(plan, first.layout)) from None


def _extra(plan: Plan, part: Part, view: View) -> dict[str, list[Scalar]]:
    """Columns of the episode table for the episodes of a part."""
    found: dict[str, list[Scalar]] = {}
    first, count = int(part.args["first"]), len(part.args["stops"])
    for name, key in plan.facts["per_episode"].items():
        lists = []
        for path, rows in zip(plan.archive.files, plan.facts["counts"], strict=True):
            with open_flat(path, check=False, fill=True) as table:
                lists.append(None if table[key].shape[0] == rows else table.source.array(key))
        if any(values is None for values in lists):
            found[name] = _constant(part, view, name, key)
        else:
            values = np.concatenate([v.reshape(-1) for v in lists if v is not None])[first : first + count]
            found[name] = [scalar(v) for v in values]
    return found


def _constant(part: Part, view: View, name: str, key: str) -> list[Scalar]:
    """The value of a column that has one in all rows of an episode."""
    found: list[Scalar] = []
    start = int(part.args["start"])
    with view.rows([key]) as rows:
        for stop in part.args["stops"]:
            values = rows.read(start, stop)[key].reshape(-1)
            if differs(values[:-1], values[1:]).any():
                at = start + int(np.argmax(differs(values[:-1], values[1:]))) + 1
                raise UnknownLayout(
                    f"{key} changes within an episode, at row {at:,}; a column of the episode table has one value.",
                    hint=f"leave out --map episode/{name}={key}: it is kept as a field of the steps",
                )
            found.append(scalar(values[0]))
            start = stop
    return found


def _view(plan: Plan, part: Part, first: Surveyed) -> View:
    if plan.facts["ordered"]:
        return join(plan.archive, [first, *(survey(plan.archive, p) for p in plan.archive.files[1:])]).view
    derived = tuple(dict.fromkeys((*first.keys.values(), *first.by.keys)))
    stops = np.array(part.args["stops"], np.int64)
    fill = plan.facts["read"] == "episodes"
    return View(plan.archive.files, tuple(plan.facts["counts"]), derived, stops, fill=fill)


def _stretch(plan: Plan, part: Part, first: Surveyed) -> Stretch:
    found = replace(first.layout, rows=sum(plan.facts["counts"]))
    keys = dict(first.keys)
    if plan.facts["late"] and found.timeouts_field and found.timeouts:
        keys[found.timeouts_field.name] = found.timeouts
    fields = tuple(f for f in plan.schema if f.name not in FLAGS)
    cuts = plan.facts["next_observations"] == FINAL and found.recorded
    stops = part.args["stops"]
    kind = "flags" if plan.episodes_by == "flags" else "field"
    return Stretch(
        path=first.path,
        name=plan.archive.name_of(0),
        source=0,
        start=int(part.args["start"]),
        stop=int(stops[-1]),
        rule=Rule(kind, found, EPISODE),
        fields=fields,
        keys={f.name: keys[f.name] for f in fields},
        finals=found.next_columns if found.recorded else {},
        cuts=cuts,
        max_cuts=max_cuts(int(stops[-1]) - int(part.args["start"]) - len(stops)) if cuts else None,
    )


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Columns that are not one value a row, and attributes; below the file's name where there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        kept = set(plan.facts["per_episode"].values())
        found = [k for k in survey(plan.archive, path).layout.metadata if k not in kept]
        with open_flat(path, check=False, fill=True) as table, reading(path, "its metadata"):
            yield from ((prefix + name, value) for name, value in table.constants(found))


# -- episode by episode


def _episodes(
    plan: Plan, part: Part, first: Surveyed, view: View, extra: Mapping[str, Sequence[Scalar]]
) -> Iterator[EpisodeData]:
    """The episodes of a part, with their final observations where the files hold them."""
    keys = first.keys
    observed = {n: k for n, k in keys.items() if is_observation(n)}
    stepwise = {n: k for n, k in keys.items() if n not in observed}
    longer = plan.facts["longer"]
    finals = set(part.args["finals"])
    missing = _missing_keys(plan, stepwise)
    view = replace(view, derived=(*view.derived, *missing))
    seen_at = view if not longer else replace(view, counts=_observation_counts(plan))
    wanted = {*stepwise.values(), *missing}
    with seen_at.rows(sorted(set(observed.values()))) as observations, view.rows(sorted(wanted)) as steps:
        start = int(part.args["start"])
        for k, stop in enumerate(part.args["stops"]):
            length = stop - start - (k in finals)
            shift = int(part.args["first"]) + k if longer else 0
            o = observations.read(start + shift, stop + shift + longer)
            s = steps.read(start, stop)
            if length:
                e = _episode(plan, first, view, (start, length), {n: o[c] for n, c in observed.items()}, s)
                e.extra = {name: values[k] for name, values in extra.items()}
                yield e
            start = stop


def _observation_counts(plan: Plan) -> tuple[int, ...]:
    return tuple(survey(plan.archive, path).observations for path in plan.archive.files)


def _missing_keys(plan: Plan, stepwise: Mapping[str, str]) -> set[str]:
    """Which rows of a column have no value, for the columns of files that may lack some."""
    with open_flat(plan.archive.files[0], check=False, fill=True) as table:
        return {MISSING + key for key in stepwise.values() if table.may_miss(key)}


def _episode(
    plan: Plan,
    first: Surveyed,
    view: View,
    rows: tuple[int, int],
    observations: Mapping[str, Array],
    steps: Mapping[str, Array],
) -> EpisodeData:
    start, length = rows
    file, at = view.place(start)
    place = f"the episode at row {at:,} of {plan.archive.name_of(file)}"
    schema = {f.name: f for f in plan.schema}
    for key, values in steps.items():
        if key.startswith(MISSING) and values[:length].any():
            row = int(np.argmax(values))
            raise UnknownLayout(f"{place} has no {key.removeprefix(MISSING)} at step {row:,}.")
    columns: dict[str, Any] = {}
    for name, key in first.keys.items():
        if name in FLAGS or name not in schema:
            continue
        f = schema[name]
        values = observations[name] if name in observations else steps[key][:length]
        shaped = values.reshape(len(values), *f.shape)
        columns[name] = shaped.tolist() if f.kind == "text" else shaped.astype(f.dtype, copy=False)
    _join_next(columns, first, steps, length, place)
    terminated, truncated = (_flag(steps, k, length) for k in (first.layout.terminals, first.layout.timeouts))
    late = first.layout.timeouts_field
    if plan.facts["late"] and late and first.layout.timeouts:
        columns[late.name] = steps[first.layout.timeouts][:length].reshape(length, *late.shape).astype(late.dtype)
    end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] else CUT
    columns[FLAGS[0]], columns[FLAGS[1]] = (
        terminated,
        np.arange(length) == (length - 1 if truncated[-1] or end == CUT else -1),
    )
    return EpisodeData(columns, length, end, source=file, row=at)


def _flag(steps: Mapping[str, Array], key: str | None, length: int) -> BoolArray:
    """A flag of the steps; one that stands in the row of the final observation is that of the last step."""
    if key is None:
        return np.zeros(length, bool)
    whole_column = is_set(steps, key, len(steps[key]))
    flag = whole_column[:length].copy()
    flag[-1] |= bool(whole_column[length:].any())
    return flag


def _join_next(columns: dict[str, Any], first: Surveyed, steps: Mapping[str, Array], length: int, place: str) -> None:
    """Take final observations from the column of next observations, where the rows hold none; they must agree."""
    for name, key in first.layout.next_columns.items():
        now, after = columns[name], steps[key][:length]
        if isinstance(now, list) or now.shape[1:] != after.shape[1:]:
            continue
        known = min(len(now) - 1, length)
        if differs(after[:known], now[1 : known + 1]).any():
            raise UnknownLayout(
                f"{place}: {key} is not {name} of the row after.",
                hint="leave it out: --map next/observation=KEY names another",
            )
        if len(now) == length:
            columns[name] = np.concatenate([now, after[-1:].astype(now.dtype)])


# -- single values


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step, and in the row after; nothing where an episode goes on in another file."""
    archive = Archive(spot.root, (spot.file,), fields=spot.fields)
    found = survey(archive, spot.file)
    with open_flat(spot.file, check=False, fill=True) as table:
        table.derive([*found.keys.values(), *found.by.keys])
        row, after = _rows_of(table, found, spot)
        if row is None:
            return
        keys = {n: k for n, k in found.keys.items() if not (spot.facts["longer"] and is_observation(n))}
        seen = _read_rows(table, set(keys.values()), row, after)
    for name, key in keys.items():
        yield Cell(name, f"{key}[{row}]", bool(seen[key][0]) if name == FLAGS[0] else seen[key][0])
        if is_observation(name) and f"next/{name}" not in keys and len(seen[key]) > 1:
            yield Cell(f"next/{name}", f"{key}[{after}]", seen[key][1])


def _rows_of(table: Table, found: Surveyed, spot: Spot) -> tuple[int | None, int | None]:
    """The rows of a step and of what is known after it, where they are in this file."""
    row, last = spot.first + spot.step, spot.first + spot.length
    if not spot.facts["ordered"] or found.by.ids is None or found.by.steps is None:
        has_after = not spot.is_last or (spot.facts["read"] == "episodes" and last < found.rows)
        return (row, row + 1 if has_after and row + 1 < found.rows else None) if row < found.rows else (None, None)
    with table.rows([found.by.ids, found.by.steps]) as rows:
        seen = rows.read(0, found.rows)
    ids, steps = seen[found.by.ids].reshape(-1), seen[found.by.steps].reshape(-1)
    at = [np.flatnonzero((ids == ids[spot.first]) & (steps == steps[spot.first] + spot.step + k)) for k in (0, 1)]
    return tuple(int(a[0]) if len(a) else None for a in at)  # type: ignore[return-value]


def _read_rows(table: Table, keys: set[str], row: int, after: int | None) -> dict[str, Array]:
    """One row of some columns, or two of them."""
    wanted = [row] if after is None else [row, after]
    pieces = []
    for at in wanted:
        with table.rows(keys) as rows:
            pieces.append(rows.read(at, at + 1))
    return {k: np.concatenate([p[k] for p in pieces]) for k in keys}
