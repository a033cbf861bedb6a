"""The contents of files: the meaning of flat columns, several files as one table, and groups that are episodes.

An episode continues in the next file if its id and its steps do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import once
from rlds_cli.archives.d4rl import ends as layouts
from rlds_cli.archives.flat_rows import FlatLayout, differs, frames_of, is_set
from rlds_cli.archives.formats import image_columns, rllib_episodes
from rlds_cli.archives.formats.arrow_tables import ArrowFile
from rlds_cli.archives.formats.camera_files import FILES
from rlds_cli.archives.formats.image_columns import EncodedColumn
from rlds_cli.archives.formats.step_batches import ENDS, StepBatches
from rlds_cli.archives.formats.table_views import TableView
from rlds_cli.archives.formats.tables import FIRST, LAST, MISSING, Table, TableColumn, no_rows, open_flat
from rlds_cli.archives.names import (
    NEXT_OBSERVATION,
    Meaning,
    check_numbers,
    chosen_of,
    flags_of,
    has_essentials,
    is_observation,
    meaning,
)
from rlds_cli.archives.plain import arriving, cameras
from rlds_cli.archives.plain.boundaries import (
    SCAN_ROWS,
    Boundaries,
    BoundaryColumns,
    boundary_columns,
    by_rule,
    find,
)
from rlds_cli.archives.readers import DROP, Archive
from rlds_cli.archives.steps import check_steps
from rlds_cli.archives.tasks import episode_column
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import bundles
from rlds_cli.base.text import is_below, natural
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, EncodedFrames, Field, Note, Text

GROUP_DEPTH = 3
Filled = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]  # of `TableView`


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """The meaning of the columns of one file.

    ``by`` are the columns that mark episodes, ``rows`` counts the actions and ``observations`` the observations;
    ``lists`` are columns that may have one value per episode, with their shapes, and ``once`` values of the whole file.
    ``left`` says that there are attributes which are not among these.
    ``videos`` are the rules by which frames belong to rows, see `cameras.fit`. ``odd`` are observations with another
    number of rows than the others, with it, by field.
    """

    path: Path
    meaning: Meaning
    by: BoundaryColumns
    rows: int
    layout: FlatLayout
    observations: int
    lists: Mapping[str, tuple[int, ...]]
    once: once.Once
    left: bool
    videos: Mapping[str, str]
    odd: Mapping[str, tuple[str, int]]

    @property
    def keys(self) -> dict[str, str]:
        """Columns by the fields that are made of them."""
        return self.layout.named


def survey(archive: Archive, path: Path) -> FileSurvey:
    """Look at the names, shapes and dtypes of the columns of one file; reads no rows."""
    with open_flat(path, fill=True) as table:
        for key in archive.without:
            table.columns.pop(key, None)
        what = understood(table, chosen_of(archive, table.columns), arrive=archive.arrive, rule=archive.episodes_by)
        what = _with_rows(what, table, archive)
        by = boundary_columns(what, table, strict=not archive.episodes_by, arrive=archive.arrive)
        if archive.episodes_by:
            layouts.check_ends(table)
            by = by_rule(by, archive.episodes_by, table)
        rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
        rules = cameras.fit(table, flags_of(what)[0], rows, path.name, final=False)
        observed = {name: key for name, key in what.fields.items() if is_observation(name) and table[key].shape}
        counts = {name: table[key].shape[0] for name, key in observed.items()}
        observations = rows if rows in counts.values() else max(counts.values(), default=rows)
        if not rows and not observations:
            raise no_rows(path.name)
        odd = {name: (key, counts[name]) for name, key in observed.items() if counts[name] != observations}
        what = replace(what, fields={name: key for name, key in what.fields.items() if name not in odd})
        table.hidden.update(key for key, _ in odd.values())
        for key in observed.values():  # for the layout, which wants as many rows of all
            table.columns[key] = replace(table[key], shape=(rows, *table[key].shape[1:]))
        found = layouts.of(table, path.name, flags_of(what)[0])
        lists = {k: table[k].shape for k in (*found.metadata, *what.per_episode.values()) if _is_list(table[k])}
        said = once.of_file(table)
        left = not set(said.keys.values()).issuperset(table.attributes())
        return FileSurvey(
            path=path,
            meaning=what,
            by=by,
            rows=rows,
            layout=found,
            observations=observations,
            lists=lists,
            once=said,
            left=left,
            videos=rules,
            odd=odd,
        )


def _with_rows(what: Meaning, table: Table, archive: Archive) -> Meaning:
    """Leave out parts of the action that have no rows, if the user says so; those of observations are left out later.

    Raises
    ------
    UnknownLayout
        There are some, beside parts with rows.
    """
    acted = {name: key for name, key in what.fields.items() if is_below(name, "action") and table[key].shape}
    empty = {name: key for name, key in acted.items() if not table[key].shape[0]}
    if not empty or len(empty) == len(acted):
        return what
    if archive.missing != DROP:
        raise UnknownLayout(
            f"{table.path.name}: {min(empty.values())} has no rows.",
            hint="--missing drop leaves it out of the dataset",
        )
    for key in empty.values():
        table.columns.pop(key)
    return replace(what, fields={name: key for name, key in what.fields.items() if name not in empty})


def _is_list(c: TableColumn) -> bool:
    """Tell whether a column could have one number, flag or text per episode."""
    return len(c.shape) in (1, 2) and c.shape[1:] in ((), (1,)) and c.dtype.kind in "biufOS"


def understood(table: Table, chosen: Mapping[str, str], *, arrive: bool = False, rule: str | None = None) -> Meaning:
    """Find the meaning of a table's columns; hide those that become no fields.

    Raises
    ------
    UnknownLayout
        It has no observations or no actions, or its rows hold several steps.
    """
    if not table.columns:
        raise no_rows(table.path.name)
    what = meaning(table.columns, chosen, table.path.name)
    if not has_essentials(what):
        if table.packed:
            raise rllib_episodes.packed(table.path.name, table.packed[0])
        if policies := _policies(table):
            raise _of_policies(table, policies)
        missing = "action" if any(map(is_observation, what.fields)) else "observation"
        raise UnknownLayout(
            f'{table.path.name} has no "{missing}" under a known name. It holds {_held(table)}.',
            hint=f"name the column: --map {missing}=KEY",
        )
    if isinstance(table.source, StepBatches):
        what = _of_batches(what, table)
    if arrive:
        what = arriving.with_time_steps(what, table)
    fields, done = flags_of(what)
    table.derive([*what.fields.values(), *fields.values()])
    check_steps(table, {**what.fields, **fields}, rule)
    check_numbers(table, fields)
    table.hidden.update(what.ignored, what.per_episode.values())
    if done is not None and done not in fields.values():
        table.hidden.add(done)
    for key in fields.values():
        if key.startswith(("[", FILES)):
            table.hidden.update(table.made_of(key))
    return what


def _policies(table: Table) -> list[str]:
    """Return the policies whose steps are in a ``MultiAgentBatch`` of RLlib."""
    parts = [name.split("/") for name in table.own if name.startswith("policy_batches/")]
    return sorted({of[1] for of in parts if len(of) > 2}, key=natural)


def _of_policies(table: Table, policies: Sequence[str]) -> UnknownLayout:
    """Return the error for batches of policies, whose hint names the columns of one."""
    names = {"observation": "obs", "action": "actions", "reward": "rewards", "done": "dones", "episode": "eps_id"}
    mapped = " ".join(f"--map {name}=policy_batches/{policies[0]}/{key}" for name, key in names.items())
    return UnknownLayout(
        f"{table.path.name} holds batches of RLlib for the policies {', '.join(policies)}, side by side in each row.",
        hint=f"import those of one: {mapped}",
    )


def _of_batches(what: Meaning, table: Table) -> Meaning:
    """Find what marks the episodes of a table whose rows hold several steps: columns of the steps, or else the rows.

    Raises
    ------
    UnknownLayout
        Rows are parts of episodes, and have the same id.
    """
    steps = {table[key].shape[0] for name, key in what.fields.items() if is_below(name, "action") and key in table}
    marks = (k for k in (what.ids, what.starts, what.lasts) if k is not None and k in table)
    per_step = [k for k in marks if table[k].shape[0] in steps]
    if per_step:
        return replace(what, lists=None)
    if what.ids is not None and what.ids in table and table[what.ids].shape == table[ENDS].shape:
        ids = table.source.array(what.ids).tolist()
        for twice, count in Counter(ids).most_common(1):
            if count > 1:
                raise UnknownLayout(
                    f"{table.path.name}: {count} rows have the {what.ids} {twice}: they are parts of one episode.",
                    hint="join the lists of these rows, or write a row for each step",
                )
    return what


def _held(table: Table) -> str:
    shown = [f"{n} {list(c.shape)}" for n, c in list(table.own.items())[:12]]
    return ", ".join(shown) + (", ..." if len(table.own) > len(shown) else "") if shown else "nothing"


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """All files as one table, with the boundaries of its episodes.

    ``finals`` [E] says whether the last row of an episode holds its final observation, and no step.
    """

    view: TableView
    finals: BoolArray
    rule: str
    late: bool
    notes: tuple[Note, ...]
    episodes: tuple[int, ...] | None  # of each file; None where one goes on in the next file
    ends: IntArray  # how many are terminated, truncated, cut


def join(archive: Archive, seen: Sequence[FileSurvey], filled: Filled | None = None) -> JoinedFiles:
    """Find the boundaries in all files.

    Raises
    ------
    UnknownLayout
        The columns of a file contradict each other.
    """
    derived = tuple(dict.fromkeys(k for s in seen for k in (*s.keys.values(), *s.by.keys)))
    view = TableView(
        tuple(s.path for s in seen),
        tuple(s.rows for s in seen),
        derived,
        np.zeros(0, np.int64),
        fill=True,
        filled=filled or {},
    )

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


def _find_in_all(seen: Sequence[FileSurvey], view: TableView, place: Callable[[int], str]) -> list[Boundaries]:
    """Find the boundaries of each file, or of all rows as one table if a single file contradicts itself."""
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


def _stored(view: TableView) -> int:
    return sum(map(bundles.size_of, view.paths))


def _shifted(place: Callable[[int], str], start: int, row: int) -> str:
    return place(row + start)


def _end_to_end(
    seen: Sequence[FileSurvey], found: Sequence[Boundaries], view: TableView
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


def _edges(s: FileSurvey, found: Boundaries, view: TableView) -> _FileEdges | None:
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
    ended = found.closed or any(is_set(columns, k, s.rows)[-1] for k in flags)
    return _FileEdges((ids[0], steps[0]), (ids[-1], steps[-1]), frozenset(ids), ended, s.by.steps is not None)


def _goes_on(before: _FileEdges | None, after: _FileEdges | None) -> bool:
    """Tell whether the episode at the end of one file continues in the next one."""
    if before is None or after is None or before.ended or before.last[0] != after.first[0]:
        return False
    if before.steps and after.steps:
        return bool(after.first[1] == before.last[1] + 1)
    if len(before.ids) == 1 and len(after.ids) > 1:
        raise UnknownLayout(
            f"Episode {before.last[0]!s} is all of one file and begins the next one; no column of steps says whether "
            "it continues there.",
            hint="--map step=KEY names a column that counts the steps; --episodes-by field:KEY begins an episode with "
            "each file",
        )
    return len(before.ids | after.ids) > 1 and before.ids & after.ids == {after.first[0]}


def are_longer(archive: Archive, seen: Sequence[FileSurvey], joined: JoinedFiles) -> bool:
    """Tell whether observations have one row per episode more than actions.

    Raises
    ------
    UnknownLayout
        Observations have neither as many rows as actions nor one more per episode.
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


def columns_per_episode(seen: Sequence[FileSurvey], joined: JoinedFiles) -> dict[str, str]:
    """Find the columns of the episode table: columns that the user named, and lists with one value per episode.

    Raises
    ------
    UnknownLayout
        A column that the user named has neither one value per row nor one per episode.
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


def check_final_rows(archive: Archive, first: FileSurvey, joined: JoinedFiles) -> list[Note]:
    """Refuse a reward that would be lost with the final row of an episode; note all other values that are.

    Raises
    ------
    UnknownLayout
        The last row of an episode has a reward and no action, and the user does not say what it belongs to.
    """
    if not joined.finals.any():
        return []
    marks = {mark.removeprefix(FIRST).removeprefix(LAST) for mark in first.by.keys}
    width = {f.name: f.row_bytes for f in first.layout.fields}
    steps = {n: k for n, k in first.keys.items() if not (is_observation(n) or is_below(n, NEXT_OBSERVATION))}
    wide = [k for n, k in steps.items() if width.get(n, 0) > arriving.WIDE]
    known = {n: k for n, k in steps.items() if k not in wide and k not in joined.view.filled}
    narrow = {n: k for n, k in known.items() if n in FLAGS or k not in marks}
    view = replace(joined.view, derived=(*joined.view.derived, *(MISSING + k for k in narrow.values())))
    begins = np.concatenate([[0], view.stops[:-1]]).astype(np.int64)
    rows = arriving.read_final_rows(view, begins[joined.finals], view.stops[joined.finals] - 1, narrow.values())

    def place(row: int) -> str:
        file, at = view.place(row)
        return f"row {at:,} of {archive.name_of(file)}"

    return arriving.judge(rows, narrow, archive.rewards, place, unread=wide)


# -- groups that are episodes


def groups_of(table: Table, chosen: Mapping[str, str]) -> tuple[str, dict[str, dict[str, str]]] | None:
    """Find the groups that are episodes: their pattern, and the columns of each, local name -> name in the file.

    A pattern of the user's (``data/*/act``) comes first. Without one, episodes are the groups with a digit in their
    names that hold observations and actions, and all groups beside them that hold both or are named alike. None if
    there are no such groups.

    Raises
    ------
    UnknownLayout
        The groups are parts of the same steps: columns beside them have a row for each of their rows.
    """
    columns = list(table.columns)
    patterns = [k.strip("/") for k in chosen.values() if is_pattern(k)]
    if patterns:
        above = patterns[0].partition("*")[0].strip("/")
        return _pattern(above), _below(columns, above)
    if isinstance(table.source, ArrowFile | StepBatches) or any(
        k.strip("/[").partition(",")[0] in columns for k in chosen.values()
    ):
        return None
    for depth in range(GROUP_DEPTH):
        parents = dict.fromkeys("/".join(p[:depth]) for c in columns if len(p := c.split("/")) > depth + 1)
        found = {p: known for p in sorted(parents, key=natural) if (known := _episodes_below(columns, p, chosen))}
        if found:
            groups = {g: names for known in found.values() for g, names in known.items()}
            _check_apart(table, groups)
            return ", ".join(map(_pattern, found)), groups
    return None


def _episodes_below(columns: Sequence[str], parent: str, chosen: Mapping[str, str]) -> dict[str, dict[str, str]]:
    groups = _below(columns, parent)
    episodes = {g for g, names in groups.items() if _is_episode(frozenset(names), chosen)}
    numbered = {_stem(g) for g in episodes if any(map(str.isdigit, g.removeprefix(parent)))}
    return {g: names for g, names in groups.items() if numbered and (g in episodes or _stem(g) in numbered)}


def _stem(group: str) -> str:
    """Return the name of a group, whatever its number."""
    return re.sub(r"\d+", "0", group)


def _check_apart(table: Table, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse groups of agents or robots, beside which each of their rows has a reward or flag."""
    inside = {name for names in groups.values() for name in names.values()}
    beside = {k: c for k, c in table.columns.items() if k not in inside}
    told = [k for n, k in meaning(beside, {}, table.path.name).fields.items() if n in (REWARD, "next/done", *FLAGS)]
    lengths = {table[k].shape[:1] for names in groups.values() for k in names.values() if table[k].shape}
    for key in told:
        if table[key].shape[:1] and lengths == {table[key].shape[:1]}:
            first = next(iter(groups))
            raise UnknownLayout(
                f"{table.path.name}: {key} has a row for each row of {first} and of every group like it, so they are "
                "parts of the same steps, and no episodes.",
                hint="--map 'observation=[GROUP/KEY, GROUP/KEY]' and --map action=... name their columns",
            )


def is_pattern(key: str) -> bool:
    """Tell whether a key of the user's names a group per episode: a component before the last has ``*``."""
    return "*" in key.strip("/").split("/")[:-1]


def _pattern(parent: str) -> str:
    return f"{parent}/*" if parent else "*"


def _below(columns: Sequence[str], parent: str) -> dict[str, dict[str, str]]:
    prefix = f"{parent}/" if parent else ""
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        if name.startswith(prefix):
            group, slash, local = name[len(prefix) :].partition("/")
            if slash:
                found.setdefault(prefix + group, {})[local] = name
    return dict(sorted(found.items(), key=lambda item: natural(item[0])))


def _is_episode(names: frozenset[str], chosen: Mapping[str, str]) -> bool:
    found = meaning(dict.fromkeys(names, _NAME_ONLY), {k: v for k, v in chosen.items() if v in names}, "")
    return has_essentials(found)


@dataclass(frozen=True, slots=True)
class _NameOnly:
    shape: tuple[int, ...] = ()


_NAME_ONLY = _NameOnly()


def is_one_episode(table: Table, chosen: Mapping[str, str], files: int) -> bool:
    """Tell whether a whole file is one episode.

    It is one if observations have one row more than actions, if a flag is a scalar, or if each of several files has
    scalars beside its columns. It is not one if a flag is set inside, or if there is a column of ids.
    """
    what = meaning(table.columns, chosen, table.path.name)
    if not has_essentials(what) or what.lists is not None:
        return False
    fields, _ = flags_of(what)
    table.derive(list(fields.values()))
    shapes = {name: table[key].shape for name, key in fields.items()}
    rows = max((s[0] for n, s in shapes.items() if n.partition("/")[0] == "action" and s), default=0)
    seen, filmed = {name: s[0] for name, s in shapes.items() if is_observation(name) and s}, cameras.of(fields)
    observed = {s for name, s in seen.items() if name not in filmed} or {*seen.values()}
    if what.ids is not None and (ids := table.get(what.ids)) is not None and ids.shape[:1] == (rows,):
        return False
    once = any(name in FLAGS and shape == () for name, shape in shapes.items())
    if once or (observed == {rows + 1} and not _inside(table, fields, rows)):
        return True
    scalars = any(c.shape == () and c.dtype.kind in "biufO" for c in table.own.values())
    return files > 1 and scalars and observed == {rows} and not _inside(table, fields, rows)


def _inside(table: Table, fields: Mapping[str, str], rows: int) -> bool:
    """Tell whether a flag is set before the last row."""
    flags = [k for k in (fields.get(f) for f in FLAGS) if k is not None and table[k].shape[:1] == (rows,)]
    if not flags:
        return False
    with table.rows(flags) as reader:
        seen = reader.read(0, rows)
    return any(is_set(seen, k, rows)[:-1].any() for k in flags)


def shaped(values: Array, f: Field, where: str, first: int = 0) -> Array | Text | EncodedFrames:
    """Convert values [rows, ...] from row ``first`` on to the dtype and the shape of a field; texts to a list.

    Raises
    ------
    CorruptArchive, UnknownLayout, UnsafeArchive
        Images that are damaged, or of another kind than the field's; ``where`` names their column.
    """
    if f.kind == "frames":
        images = values.tolist()
        image_columns.check(images, EncodedColumn(f.codec, f.shape, f.dtype), where, first)
        return frames_of(images)
    found = values.reshape(len(values), *f.shape)
    return found.tolist() if f.kind == "text" else found.astype(f.dtype, copy=False)


def ended(terminated: BoolArray, truncated: BoolArray) -> tuple[BoolArray, int]:
    """Make the stored flag ``truncated`` [T], set at the last step alone, and return how the episode ends.

    An episode that no flag ends is a cut, which is stored as truncated.
    """
    end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] else CUT
    stored = np.zeros(len(terminated), bool)
    stored[-1] = truncated[-1] or end == CUT
    return stored, end


def with_final(now: Array, after: Array, length: int, message: str, hint: str | None = None) -> Array:
    """Complete observations [T or T+1, ...] with the final one, from next observations [T, ...].

    Raises
    ------
    UnknownLayout
        A next observation is not the observation of the row after; with ``message`` and ``hint``.
    """
    known = min(len(now) - 1, len(after))
    if differs(after[:known], now[1 : known + 1]).any():
        raise UnknownLayout(message, hint=hint)
    return np.concatenate([now, after[-1:].astype(now.dtype)]) if len(now) == length else now
