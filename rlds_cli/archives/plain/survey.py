"""The contents of files: the meaning of flat columns, several files as one table, and groups that are episodes.

An episode goes on in the next file if its id and its steps do. Files are read forward only. Rows out of order are
therefore copied once, in file order, to an array that can be read in any order: in memory if it is small, else in a
temporary file that is mapped.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import text
from rlds_cli.archives import Archive
from rlds_cli.archives.d4rl import ends as layouts
from rlds_cli.archives.d4rl.ends import FlatLayout, differs, is_set
from rlds_cli.archives.fields import is_observation
from rlds_cli.archives.names import Meaning, flags_of, has_essentials, meaning
from rlds_cli.archives.plain.boundaries import (
    SCAN_ROWS,
    Boundaries,
    BoundaryColumns,
    boundary_columns,
    by_rule,
    check_numbers,
    find,
)
from rlds_cli.errors import NoSpace, UnknownLayout
from rlds_cli.formats.arrow_tables import ArrowFile
from rlds_cli.formats.tables import Table, TableColumn, TableRows, open_flat
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Array, BoolArray, Field, IntArray, Note, Text
from rlds_cli.text import natural


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """The meaning of the columns of one file.

    ``by`` are the columns that mark episodes, ``rows`` counts the actions and ``observations`` the observations;
    ``lists`` are columns that may have one value per episode, with their shapes.
    """

    path: Path
    meaning: Meaning
    by: BoundaryColumns
    rows: int
    layout: FlatLayout
    observations: int
    lists: Mapping[str, tuple[int, ...]]

    @property
    def keys(self) -> dict[str, str]:
        """Columns by the fields that are made of them."""
        flags = {FLAGS[0]: self.layout.terminals, FLAGS[1]: self.layout.timeouts}
        following = {f"next/{n}": k for n, k in self.layout.next_columns.items()}
        return {**self.layout.columns, **following, **{n: k for n, k in flags.items() if k}}


def survey(archive: Archive, path: Path) -> FileSurvey:
    """Look at the names, shapes and dtypes of the columns of one file; reads no rows."""
    with open_flat(path, fill=True) as table:
        what = understood(table, archive.fields)
        by = boundary_columns(what, table, strict=not archive.episodes_by)
        if archive.episodes_by:
            by = by_rule(by, archive.episodes_by, table)
        rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
        observed = [key for name, key in what.fields.items() if is_observation(name) and table[key].shape]
        observations = max((table[key].shape[0] for key in observed), default=rows)
        for key in observed:  # for the layout, which wants as many rows of all
            table.columns[key] = replace(table[key], shape=(rows, *table[key].shape[1:]))
        found = layouts.of(table, path.name, flags_of(what)[0])
        lists = {k: table[k].shape for k in (*found.metadata, *what.per_episode.values()) if _is_list(table[k])}
        return FileSurvey(path, what, by, rows, found, observations, lists)


def _is_list(c: TableColumn) -> bool:
    """Tell whether a column could have one number, flag or text per episode."""
    return len(c.shape) in (1, 2) and c.shape[1:] in ((), (1,)) and c.dtype.kind in "biufOS"


def understood(table: Table, chosen: Mapping[str, str]) -> Meaning:
    """Find the meaning of a table's columns; hide those that become no fields.

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
            f'{table.path.name} has no "{missing}" under a known name. It holds {_held(table)}.',
            hint=f"name the column: --map {missing}=KEY",
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


def _held(table: Table) -> str:
    shown = [f"{n} {list(c.shape)}" for n, c in list(table.own.items())[:12]]
    return ", ".join(shown) + (", ..." if len(table.own) > len(shown) else "") if shown else "nothing"


EPISODE_NUMBER = "#episode"  # the number of the episode that a row belongs to
MEMORY_BYTES = 256 << 20
COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class View:
    """The rows of several files: one file after the other, or in ``order``.

    Parameters
    ----------
    paths, counts : tuple
        The files, and how many rows of each are read.
    derived : tuple of str
        Derived columns, which are added to every file.
    stops : int array [E]
        The row after the last one of each episode, in the order of reading.
    order : int array or None
        Rows, counted through all files, in the order of reading; None reads them as they stand.
    fill : bool
        Read rows without a value as 0.
    """

    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    derived: tuple[str, ...]
    stops: IntArray
    order: IntArray | None = None
    fill: bool = False

    def rows(self, keys: Collection[str]) -> TableRows:
        """Read the rows of some columns, forward; ``EPISODE_NUMBER`` may be one of them."""
        joined = _FileRows(self, [k for k in keys if k != EPISODE_NUMBER])
        inner: TableRows = joined if self.order is None else _OrderedRows(joined, self.order)
        return _NumberedRows(inner, self.stops, sum(self.counts)) if EPISODE_NUMBER in keys else inner

    def place(self, row: int) -> tuple[int, int]:
        """Find the file, and the row in it, of a row in the order of reading."""
        file, at = self.places(np.array([row]))
        return int(file[0]), int(at[0])

    def places(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Find the files, and the rows in them, of rows in the order of reading."""
        at = rows if self.order is None else self.order[rows]
        starts = np.cumsum([0, *self.counts])
        file = np.searchsorted(starts, at, "right") - 1
        return file, at - starts[file]


class _FileRows:
    """Rows of one file after the other; a file is open while its rows are read."""

    def __init__(self, view: View, keys: Sequence[str]) -> None:
        self._view, self._keys = view, keys
        self._starts = np.cumsum([0, *view.counts]).tolist()
        self._at, self._stack = -1, ExitStack()
        self._rows: TableRows | None = None

    def __enter__(self) -> _FileRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        first = max(int(np.searchsorted(self._starts, start, "right")) - 1, 0)
        pieces: list[Mapping[str, Array]] = []
        for file in range(first, len(self._view.paths)):
            a, b = max(start, self._starts[file]), min(stop, self._starts[file + 1])
            if a < b or (not pieces and file == len(self._view.paths) - 1):
                pieces.append(self._read(file, a - self._starts[file], max(a, b) - self._starts[file]))
            if stop <= self._starts[file + 1]:
                break
        if len(pieces) == 1:
            return dict(pieces[0])
        return {k: np.concatenate([p[k] for p in pieces]) for k in self._keys}

    def _read(self, file: int, start: int, stop: int) -> Mapping[str, Array]:
        if file != self._at:
            self._stack.close()
            table = self._stack.enter_context(open_flat(self._view.paths[file], check=False, fill=self._view.fill))
            table.derive(self._view.derived)
            self._rows, self._at = self._stack.enter_context(table.rows(self._keys)), file
        assert self._rows is not None
        return self._rows.read(start, stop)

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    @property
    def width(self) -> int:
        """Bytes of a row, by the first file; texts count as pointers."""
        with open_flat(self._view.paths[0], check=False, fill=self._view.fill) as table:
            table.derive(self._view.derived)
            return sum(_row_bytes(table, k) for k in self._keys)


def _row_bytes(table: Table, key: str) -> int:
    c = table[key]
    return int(np.prod(c.shape[1:], dtype=np.int64)) * c.dtype.itemsize


class _OrderedRows:
    """Rows of all files in another order."""

    def __init__(self, joined: _FileRows, order: IntArray) -> None:
        self._joined, self._order = joined, order
        self._stack = ExitStack()
        self._columns: dict[str, Array] = {}

    def __enter__(self) -> _OrderedRows:
        try:
            self._copy()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self._columns = {}
        self._stack.close()

    def _copy(self) -> None:
        n, width = self._joined.num_rows, self._joined.width
        in_memory = n * width <= MEMORY_BYTES
        if not in_memory and shutil.disk_usage(tempfile.gettempdir()).free < n * width:
            raise NoSpace(
                f"Sorting the rows by time needs {text.size_of(n * width)} in {tempfile.gettempdir()}, which has less.",
                hint="set TMPDIR to a directory with more space, or sort the rows yourself",
            )
        size = max(1, COPY_BYTES // max(width, 1))
        with self._joined as rows:
            for start in range(0, n, size):
                stop = min(start + size, n)
                for key, values in rows.read(start, stop).items():
                    if key not in self._columns:
                        self._columns[key] = self._empty((n, *values.shape[1:]), values.dtype, in_memory)
                    self._columns[key][start:stop] = values

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], in_memory: bool) -> Array:
        if in_memory or dtype.kind == "O" or 0 in shape:
            return np.empty(shape, dtype)
        file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (closed by the stack)
        file.truncate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return np.memmap(file, dtype, "r+", shape=shape)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        chosen = self._order[start:stop]
        return {k: np.asarray(v[chosen]) for k, v in self._columns.items()}


class _NumberedRows:
    """Rows with the number of the episode that each belongs to."""

    def __init__(self, inner: TableRows, stops: IntArray, rows: int) -> None:
        self._inner, self._stops, self._rows = inner, stops, rows

    def __enter__(self) -> _NumberedRows:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._inner.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        numbers = np.searchsorted(self._stops, np.arange(start, min(stop, self._rows)), side="right")
        return {**self._inner.read(start, stop), EPISODE_NUMBER: numbers}


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
    """Tell whether the episode at the end of one file goes on in the next one."""
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


# -- groups that are episodes

GROUP_DEPTH = 3


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
    if isinstance(table.source, ArrowFile) or any(k.strip("/[").partition(",")[0] in columns for k in chosen.values()):
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
    observed = {s[0] for n, s in shapes.items() if is_observation(n) and s}
    if what.ids is not None and table[what.ids].shape[:1] == (rows,):
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


def shaped(values: Array, f: Field) -> Array | Text:
    """Convert values [rows, ...] to the dtype and the shape of a field; texts to a list."""
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
