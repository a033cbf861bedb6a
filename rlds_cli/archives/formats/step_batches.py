"""Rows of Arrow tables that hold several steps, as rows of steps: a row is an episode, or a batch of steps.

::

    row   obs              acts       terminal          read as steps   obs     acts   terminal
    0     [o0, o1, o2]     [a0, a1]   True                          0   o0      a0     False
    1     [o0, o1]         [a0]       False                         1   o1      a1     True
                                                                    2   (o2)                      one observation more
                                                                    2   o0      a0     False
                                                                        (o1)

A column of lists that are as long as those of other columns, row by row, has a value for each step; one whose lists are
longer by one has the final observation, too. A flag alone in its row is that of its last step. Another single value
belongs to the row. A row without steps is left out.

Lists of one length in all rows may be vectors as well, and a row a step of several environments. So they are steps only
where a reward or a flag, which is one number, is such a list, and where something shows that its values follow one
another: the observation more, a flag that is set at the end alone, a count, or observations that change less within a
row than from row to row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.arrow_tables import (
    MISSING,
    ArrowFile,
    ArrowRows,
    flatten,
    from_row,
    leaves,
    pyarrow,
    unfit,
)
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import plural
from rlds_cli.errors import UnknownLayout

ENDS = "episode_ends"  # a list of the ends of rows, which no file holds
FLAGS = (
    *("terminal", "terminals", "terminated", "terminateds", "termination", "terminations", "is_terminal"),
    *("truncated", "truncateds", "truncation", "truncations", "timeout", "timeouts", "done", "dones"),
)
SINGLE = (*FLAGS, "reward", "rewards", "rew", "rews")  # of which a step has one number
IDS = ("eps_id", "episode_id", "episode_index", "episode", "unroll_id")
STEPS, LONGER, ROW = "steps", "longer", "row"  # what a column has a value for
_BATCH = {"SampleBatch"}  # what RLlib calls a row that is a batch, in the column ``type``
_SLICE = 1 << 13  # steps that are read together
_COMPARED = 1 << 20  # numbers by which it is told whether observations follow one another
_KEPT = 1 << 10


@dataclass(frozen=True, slots=True)
class Batches:
    """What the rows of a table hold.

    Attributes
    ----------
    steps : int array [rows]
    kinds : mapping of str to str
        What each column has a value for. A flag of the row is among those of the steps.
    flags : tuple of str
        The flags that stand once for a row.
    left_out : mapping of str to str
        All other columns, with the reason.
    """

    steps: IntArray
    kinds: Mapping[str, str]
    flags: tuple[str, ...]
    left_out: Mapping[str, str]

    @property
    def kept(self) -> BoolArray:
        """The rows that have steps."""
        return np.asarray(self.steps > 0)

    @property
    def stops(self) -> IntArray:
        """The step after the last one of each row that has steps."""
        return np.cumsum(self.steps[self.kept])

    def of(self, kind: str) -> list[str]:
        """Return the columns of a kind, without flags of the row."""
        return [name for name, of in self.kinds.items() if of == kind and name not in self.flags]


@lru_cache(1 << 8)  # of thousands of files with the same one
def may_be(schema: Any) -> bool:
    """Tell by its columns whether rows of a table may hold several steps; most tables of steps cannot."""
    lists = {name: _depth(kind) for field in schema for name, kind in leaves(field) if _depth(kind)}
    return len(lists) > 1 and (any(_last(name) in SINGLE for name in lists) or max(lists.values()) > 1)


def _depth(kind: Any) -> int:
    pa = pyarrow()
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth


def _last(name: str) -> str:
    return name.replace(".", "/").rpartition("/")[2].lower()


def look(path: Path, state: tuple[int, int, int], table: ArrowFile) -> Batches | None:
    """Tell whether the rows of a table hold several steps, and which columns are theirs; None if they do not.

    Parameters
    ----------
    path : Path
    state : tuple of int
        Changes with the file: what was seen of it is remembered.
    table : ArrowFile

    Raises
    ------
    UnknownLayout
        They do, and a column lacks some.
    """
    if not table.num_rows or not may_be(table.schema):
        return None
    key = path, state
    if key not in _seen:
        if len(_seen) >= _KEPT:
            _seen.clear()
        _seen[key] = _look(table)
    return _seen[key]


_seen: dict[tuple[Path, tuple[int, int, int]], Batches | None] = {}


def _look(table: ArrowFile) -> Batches | None:
    kinds = {name: kind for field in table.schema for name, kind in leaves(field)}
    lists = [name for name, kind in kinds.items() if _depth(kind)]
    first = next(table.batches([table.tops[n] for n in lists], 0), None)
    if first is None or not _is_worth_it(flatten(first), lists):
        return None
    lengths = _lengths(table, lists)
    if any(_last(name) in SINGLE for name in lists) and not any((of > 0).any() for of in lengths.values()):
        raise UnknownLayout(f"{table.path.name} has no steps: the lists in its rows are empty.", hint="remove the file")
    steps = _steps(lengths)
    stated = _are_batches(table) or any(_last(name) in IDS for name in lists)
    if steps is None or (steps.max() < 2 and not stated and not _is_one_step(kinds, lengths, steps)):
        return None
    found = {n: STEPS if _fits(of, steps) else LONGER if _fits(of, steps, 1) else "" for n, of in lengths.items()}
    if (steps == steps[0]).all() and not stated and not _follow(table, kinds, found, steps):
        return None
    found |= {name: ROW for name in kinds if name not in lists}
    for name in (n for n in lists if not found[n]):
        _check_near(table.path, name, lengths[name], steps)
    flags = tuple(n for n, kind in found.items() if kind == ROW and _last(n) in FLAGS and _is_number(kinds[n]))
    found |= dict.fromkeys(flags, STEPS)
    why = {name: "its lists are not as long as the steps" for name, of in found.items() if not of}
    why |= table.unread
    why |= dict.fromkeys(_without_value(table, kinds, found, flags), "some rows have no value")
    if "type" in found and found["type"] == ROW and _are_batches(table):
        why["type"] = "it says what a row is"
    return Batches(steps, {n: k for n, k in found.items() if n not in why}, flags, why)


def _is_worth_it(columns: Mapping[str, Any], lists: Sequence[str]) -> bool:
    """Tell by its first rows whether a table may hold several steps in a row; of others not all is read."""
    seen = {name: _of_lists(columns[name]) for name in lists}
    single = any(_last(name) in SINGLE for name in seen)
    ragged = [of for of in seen.values() if len(np.unique(of[of >= 0])) > 1]
    return single or len(ragged) > 1 or (len(seen[lists[0]]) == 1 and max(int(of.max()) for of in seen.values()) > 1)


def _of_lists(column: Any) -> IntArray:
    """Return the lengths of lists; -1 for none."""
    pa = pyarrow()
    if pa.types.is_fixed_size_list(column.type):
        found = np.full(len(column), column.type.list_size, np.int64)
    else:
        found = column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    found[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return found


def _lengths(table: ArrowFile, lists: Sequence[str]) -> dict[str, IntArray]:
    """Return the lengths of all lists of the first level, by column."""
    found: dict[str, list[IntArray]] = {name: [] for name in lists}
    for batch in table.batches(list({table.tops[n]: None for n in lists}), 0):
        columns = flatten(batch)
        for name in lists:
            found[name].append(_of_lists(columns[name]))
    return {name: np.concatenate(of) for name, of in found.items()}


def _steps(lengths: Mapping[str, IntArray]) -> IntArray | None:
    """Return the steps of each row: the lengths that most columns have, or exceed by one; None if they do not agree.

    A row without any list has no steps.
    """
    none = np.logical_and.reduce([of <= 0 for of in lengths.values()])
    alike: Counter[bytes] = Counter()
    for name, of in lengths.items():
        alike[np.where(none, 0, of).tobytes()] += 2 + (_last(name) in SINGLE)
    for of in lengths.values():
        if (shorter := np.where(none, 0, of - 1).tobytes()) in alike:
            alike[shorter] += 1
    steps = np.frombuffer(alike.most_common(1)[0][0], np.int64)
    agree = [n for n, of in lengths.items() if _fits(of, steps) or _fits(of, steps, 1)]
    varied = len(np.unique(steps)) > 1
    if len(agree) < 2 or (steps < 0).any() or not steps.any():
        return None
    return steps if varied or any(_last(name) in SINGLE for name in agree) else None


def _is_one_step(kinds: Mapping[str, Any], lengths: Mapping[str, IntArray], steps: IntArray) -> bool:
    """Tell whether rows of one step are episodes: lists of vectors, of which there is one more of the observations."""
    deep = {name: of for name, of in lengths.items() if _depth(kinds[name]) > 1}
    return any(_fits(of, steps) for of in deep.values()) and any(_fits(of, steps, 1) for of in deep.values())


def _fits(of: IntArray, steps: IntArray, more: int = 0) -> bool:
    """Tell whether lists are as long as the steps, or longer by ``more``; see `_fitting`."""
    return bool(_fitting(of, steps, more).all())


def _fitting(of: IntArray, steps: IntArray, more: int) -> BoolArray:
    """Mark the rows in which a list is as long as the steps and ``more``; a row without steps may have none, too."""
    return np.asarray(np.where(steps > 0, of == steps + more, of <= more))


def _check_near(path: Path, name: str, of: IntArray, steps: IntArray) -> None:
    """Refuse a column whose lists are as long as the steps in most rows, and not in all; a vector is none of these."""
    some = steps > 0
    if _last(name) not in SINGLE and len(np.unique(of[some])) == 1 < len(np.unique(steps[some])):
        return
    for more in (0, 1):
        fits = _fitting(of, steps, more)
        if 2 * np.count_nonzero(fits) >= len(steps) or _last(name) in SINGLE:
            row = int(np.argmin(fits))
            has = "no list" if of[row] < 0 else plural(int(of[row]), "value")
            raise UnknownLayout(
                f"{path.name}: {name} has {has} in row {row:,}, which has {plural(int(steps[row]), 'step')} by the "
                "other columns.",
                hint="a row is an episode or a batch of steps: each of its columns has a value for every step; remove "
                "the row, or the column",
            )


def _without_value(
    table: ArrowFile, kinds: Mapping[str, Any], found: Mapping[str, str], flags: Collection[str]
) -> Iterator[str]:
    """Name the numbers of rows that some rows lack; raises UnknownLayout for a flag."""
    for name in [n for n, of in found.items() if (of == ROW or n in flags) and _is_number(kinds[n])]:
        with table.rows([MISSING + name]) as rows:
            missing = rows.read(0, table.num_rows)[MISSING + name]
        if name in flags and missing.any():
            raise UnknownLayout(
                f"{table.path.name}: row {int(np.argmax(missing)):,} has no {name}, which says how its steps end.",
                hint="write a value in every row, or remove the column",
            )
        if missing.any() and table.columns[name][1].kind != "f":
            yield name


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _are_batches(table: ArrowFile) -> bool:
    """Tell whether RLlib says that rows are batches; raises UnknownLayout if they are of several agents."""
    if "type" not in table.columns or table.columns["type"][1].kind not in "OSU":
        return False
    said = {str(v) for v in table.array("type")}
    return said == _BATCH


# -- lists of one length in all rows


def _follow(table: ArrowFile, kinds: Mapping[str, Any], found: Mapping[str, str], steps: IntArray) -> bool:
    """Tell whether the values in lists of one length are steps that follow one another, and not vectors."""
    n = int(steps[0])
    if any(of == LONGER and _depth(kinds[name]) > 1 for name, of in found.items()):
        return True
    ended = counted = False
    for name in (name for name, of in found.items() if of == STEPS):
        kind = kinds[name]
        if _depth(kind) != 1 or not _is_number(kind.value_type):
            continue
        if _last(name) in FLAGS:
            values = _values(table, name, n)
            if (values[:, :-1] != 0).any():
                return False
            ended |= bool((values[:, -1] != 0).any())
        elif pyarrow().types.is_integer(kind.value_type):
            values = _values(table, name, n)
            counted |= bool((np.diff(values, axis=1) == 1).all())
    return ended or counted or len(steps) == 1 or _is_smooth(table, kinds, found, n)


def _values(table: ArrowFile, name: str, n: int, most: int | None = None) -> Array:
    """Return the numbers [rows, n, ...] of a column of lists, or of its first rows."""
    parts: list[Array] = []
    size = 0
    for batch in table.batches([table.tops[name]], 0):
        values, _ = table.values(name, flatten(batch)[name], None)
        parts.append(values.reshape(len(values), n, -1) if values.ndim > 2 else values)
        size += values.size
        if most is not None and size > most:
            break
    return np.concatenate(parts)


def _is_smooth(table: ArrowFile, kinds: Mapping[str, Any], found: Mapping[str, str], n: int) -> bool:
    """Tell whether observations change less from value to value of a row than from row to row."""
    deep = [
        n for n, of in found.items() if of == STEPS and _depth(kinds[n]) == 2 and _last(n) not in ("action", "actions")
    ]
    for name in deep:
        values = _values(table, name, n, _COMPARED)
        if values.dtype.kind in "fiu" and len(values) > 1:
            values = values.astype(np.float64)
            within = np.nanmean(np.abs(np.diff(values, axis=1)))
            between = np.nanmean(np.abs(np.diff(values, axis=0)))
            return bool(within < between)
    return False


# -- rows of steps


class StepBatches:
    """The columns of a table whose rows hold several steps, as a source of rows of steps.

    Attributes
    ----------
    columns : dict of str to (shape, dtype)
        Shape with the rows first: those of steps, those of steps and final observations, or those of the file that have
        steps. ``left_out`` maps other columns to the reason, ``unfit`` those of them that no field can hold to their
        types. ``schema`` has the types of values of all of them.
    """

    def __init__(self, table: ArrowFile, found: Batches) -> None:
        self.path, self._table, self.found = table.path, table, found
        kinds = {name: kind for field in table.schema for name, kind in leaves(field)}
        counts = {
            STEPS: found.steps,
            LONGER: np.where(found.kept, found.steps + 1, 0),
            ROW: found.kept.astype(np.int64),
        }
        self._parts = {
            kind: _part(table, {n: kinds[n] for n in found.of(kind)}, counts[kind], exploded=kind != ROW)
            for kind in (STEPS, LONGER, ROW)
        }
        exploded = {n for n, kind in found.kinds.items() if kind in (STEPS, LONGER) and n not in found.flags}
        self.schema = pyarrow().schema([(n, k.value_type if n in exploded else k) for n, k in kinds.items()])
        self._of = {name: part for part in self._parts.values() for name in part.columns}
        self.columns = {name: part.columns[name] for name, part in self._of.items()}
        self.columns |= {name: ((int(found.stops[-1]),), np.dtype(bool)) for name in found.flags}
        self.columns[ENDS] = ((len(found.stops),), np.dtype(np.int64))
        self.unfit = {name: kind for part in self._parts.values() for name, kind in part.left_out.items()}
        self.left_out = {
            **found.left_out,
            **{n: unfit(k) for f in self.schema for n, k in leaves(f) if n in self.unfit},
        }
        self.num_rows = len(found.stops)
        self._flags: dict[str, Array] = {}

    def rows(self, names: Collection[str]) -> BatchRows:
        """Read the rows of some columns, among them ``missing:NAME``."""
        return BatchRows(self, sorted(names))

    def array(self, name: str, *, most: int = 64 << 20) -> Array:
        """Read a whole column of at most ``most`` bytes."""
        if name == ENDS:
            return self.found.stops
        return self._of[name].array(name, most=most) if name in self._of else self.flag(name)

    def flag(self, name: str) -> Array:
        """Return a flag of the rows as one of the steps: set at the last one, bool [steps]."""
        if name not in self._flags:
            values = self._table.array(name)[self.found.kept]
            out = np.zeros(int(self.found.stops[-1]), bool)
            out[self.found.stops - 1] = values != 0
            self._flags[name] = out
        return self._flags[name]

    def part_of(self, name: str) -> ArrowFile | None:
        """Return the table of a column; None for one that is made here."""
        return self._of.get(name.removeprefix(MISSING))

    @property
    def remarks(self) -> Iterator[tuple[str, str]]:
        """Say how the rows were read: the code and the text of each note."""
        text = f"a row holds the steps of an episode or a batch: {plural(len(self.found.stops), 'row')} of "
        yield "step-batches", f"{text}{plural(int(self.found.stops[-1]), 'step')}"
        if said := ", ".join(f"{name} ({why})" for name, why in self.found.left_out.items()):
            yield "left-out", f"columns were left out: {said}"
        if empty := int(np.count_nonzero(~self.found.kept)):
            yield "empty-episodes", f"{plural(empty, 'row')} without steps {'was' if empty == 1 else 'were'} left out"


class BatchRows:
    """Rows of some columns, read forward."""

    def __init__(self, source: StepBatches, names: Sequence[str]) -> None:
        self._stack = ExitStack()
        parts: dict[int, list[str]] = {}
        tables: dict[int, ArrowFile] = {}
        self._made = [n for n in names if source.part_of(n) is None]
        for name in names:
            if (part := source.part_of(name)) is not None:
                parts.setdefault(id(part), []).append(name)
                tables[id(part)] = part
        self._source = source
        self._readers = [ArrowRows(tables[k], of) for k, of in parts.items()]

    def __enter__(self) -> BatchRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every column, forward."""
        found = {name: values for reader in self._readers for name, values in reader.read(start, stop).items()}
        for name in self._made:
            own = name.removeprefix(MISSING)
            values = self._source.array(own)[start:stop]
            found[name] = np.zeros(len(values), bool) if own != name else values
        return found


def _part(table: ArrowFile, kinds: Mapping[str, Any], counts: IntArray, *, exploded: bool) -> ArrowFile:
    """Return some columns as a table of its own; with ``exploded``, of the elements of their lists."""
    pa = pyarrow()
    schema = pa.schema([(n, kind.value_type if exploded else kind) for n, kind in kinds.items()])
    stops = np.cumsum(counts)
    total = int(stops[-1]) if kinds else 0

    def batches(names: Sequence[str] | None, start: int) -> Iterator[Any]:
        wanted = [n for n in kinds if names is None or n in names]
        row = int(np.searchsorted(stops, start, "right"))
        skipped = start - int(stops[row - 1]) if row else start
        of_rows = table.batches([*dict.fromkeys(table.tops[n] for n in wanted)], row)
        yield from from_row(_sliced(_exploded(of_rows, wanted, counts, row, exploded=exploded)), skipped)

    return ArrowFile(table.path, schema, total, batches)


def _exploded(
    batches: Iterator[Any], names: Sequence[str], counts: IntArray, row: int, *, exploded: bool
) -> Iterator[Any]:
    """Yield batches of the elements of lists, or of values, in rows from ``row`` on that have steps."""
    pa = pyarrow()
    for batch in batches:
        columns = flatten(batch)
        kept = counts[row : row + len(batch)] > 0
        row += len(batch)
        some = [columns[n] if kept.all() else columns[n].filter(pa.array(kept)) for n in names]
        if names and kept.any():
            yield pa.record_batch([c.flatten() if exploded else c for c in some], names=list(names))


def _sliced(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from (batch.slice(at, _SLICE) for at in range(0, len(batch), _SLICE))
