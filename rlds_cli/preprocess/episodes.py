"""Run functions of whole episodes, which return no, one or several episodes of any length.

Most of the time per episode, besides the function, is Python code that runs for each field. `FastPath` avoids it: if
an episode has the fields, dtypes and numbers of rows that the plan expects, and untouched fields are the very arrays
that were passed in, its rows are copied without further checks. Changes in place are detected at the end, for all
episodes of a block at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import GeneratorType
from typing import Any

import numpy as np

from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.errors import InvalidEpisode, PreprocessError
from rlds_cli.preprocess import calling, forms
from rlds_cli.preprocess.calling import Caller, CallInput
from rlds_cli.preprocess.lazy import EPISODE, LazyArray, StoredColumns, value_of
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, EpisodeResult, Probe, WritePlan, infer
from rlds_cli.preprocess.reading import SourceEpisode, SourceReader
from rlds_cli.preprocess.task import BLOCK_BYTES, BLOCK_ROWS, Task
from rlds_cli.store import split_columns
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TASK,
    TASK_AT,
    TRUNCATED,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeData,
    EpisodeTable,
    Field,
    Flat,
    Note,
    Part,
    Scalar,
    Subtasks,
    VideoFrames,
    check_episode,
    count_steps,
    fit_columns,
    infer_schema,
    is_single,
    lay_out,
    owned,
)

EMPTY = Note("empty-episodes", "episodes without steps were left out")
_ALL = slice(None)


class EpisodeRunner:
    """Runs a function of whole episodes, one at a time."""

    def __init__(self, task: Task, caller: Caller, reader: SourceReader) -> None:
        self._task = task
        self._caller = caller
        self._reader = reader
        self._fields = task.dataset.schema
        self._table = StoredColumns(reader.store)
        self._partial = bool((task.dataset.episodes["num_observed"] == task.dataset.episodes["length"]).any())

    @property
    def by_number(self) -> bool:
        """True if the function has read numbers of episodes, or may have: a TensorDict has them as a field."""
        return self._task.arrays == "tensordict" or self._table.by_number

    # -- one episode

    def results(self, ep: SourceEpisode, apart: frozenset[str]) -> list[EpisodeResult]:
        """Call the function on an episode and check what it returns."""
        given = self._given(ep)
        return self._results(self._call(ep, given), ep, given, apart)

    def _call(self, ep: SourceEpisode, given: Mapping[str, Any]) -> Any:
        calling.seed(self._task, self._reader.seed_of(ep.number))
        data = forms.to_input(given, self._task.arrays, self._table.of_episode(ep.number, ep.length))
        value = self._caller(data, lambda: self._input(ep, given, None))
        if forms.is_bool(value):  # of a filter
            return data if value else None
        return value

    def _results(
        self, value: Any, ep: SourceEpisode, given: Mapping[str, Array], apart: frozenset[str]
    ) -> list[EpisodeResult]:
        with self._caller.refusing(ep.number):
            if isinstance(value, GeneratorType):
                return [self._piece(p, ep, given, apart, i) for i, p in enumerate(value)]
            made = [] if value is None else value if isinstance(value, list | tuple) else [value]
            if len(made) == 1:
                return [self._result(made[0], ep, given, apart, ep.name)]
            return [self._result(p, ep, given, apart, f"{ep.name}, piece {i}") for i, p in enumerate(made)]

    def _piece(
        self, value: Any, ep: SourceEpisode, given: Mapping[str, Array], apart: frozenset[str], i: int
    ) -> EpisodeResult:
        """Copy one result of a generator, which may reuse its arrays for the next one."""
        r = self._result(value, ep, given, apart, f"{ep.name}, piece {i}")
        return replace(r, flat=owned(r.flat))

    def inputs(self, part: Part) -> Iterator[CallInput]:
        """Yield the input of each episode of a part."""
        limit = self._limit(0)
        first, last = part.args["first"], part.args["last"]
        for ep in self._reader.episodes(first, last, self._task.read, limit, self._task.later):
            given = self._given(ep)
            data = forms.to_input(given, self._task.arrays, self._table.of_episode(ep.number, ep.length))
            yield self._input(ep, given, data)

    def _input(self, ep: SourceEpisode, given: Mapping[str, Array], data: Any) -> CallInput:
        where = f"{ep.name} ({text.plural(ep.length, 'step')})"
        return CallInput(data, ep.number, where, lambda: given, ep.number)

    def _limit(self, made: int) -> int:
        """Return the number of rows to read at once, if ``made`` bytes are written for each."""
        width = made + sum(f.row_bytes for f in self._fields.values() if f.name not in self._task.later)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, width)))

    def _given(self, ep: SourceEpisode) -> dict[str, Any]:
        if self._task.arrays != "tensordict":
            return {n: self._lazy(ep, n) if n in self._task.later else ep.original[n].copy() for n in ep.original}
        observed = np.arange(ep.length) < ep.length - (not ep.observed) if self._partial else None
        steps = np.arange(ep.length)
        given = forms.transitions(
            ep.original, self._fields, lambda v, ahead: v[np.minimum(steps + ahead, len(v) - 1)], observed
        )
        return forms.numbered(given, np.full(ep.length, ep.number), self._fields)

    def _lazy(self, ep: SourceEpisode, name: str) -> LazyArray:
        f = self._fields[name]
        rows = ep.length + (f.placement == "both" and ep.observed)
        return forms.lazily((rows, *f.shape), f, partial(ep.original.__getitem__, name), self._task.arrays)

    def _result(
        self, value: Any, ep: SourceEpisode, given: Mapping[str, Any], apart: frozenset[str], where: str
    ) -> EpisodeResult:
        columns: dict[str, Scalar] = {}
        if isinstance(value, Mapping) and self._task.arrays != "tensordict":
            value, columns = split_columns(value, where, self._is_field)
        flat = forms.from_output(value, where, frames=self._task.arrays != "tensordict")
        flat = forms.settled(flat, where, given)
        self._tell(flat, columns, ep, where)
        returned = flat
        if self._task.arrays == "tensordict":
            flat = self._joined(flat, ep, given, apart, where)
        flat = _with_flags(flat, ep, where)
        _check_lengths(flat, ep, where)
        flat, length, end = check_episode(flat, where, apart=apart)
        for name in flat:
            if name in self._fields and self._fields[name].placement == "both" and f"next/{name}" in flat:
                raise InvalidEpisode(
                    f'{where}: "{name}" and "next/{name}" disagree: row t+1 of the first must be row t of the second.',
                    hint="change both alike, or return observations of T+1 rows alone (arrays numpy, unit episode)",
                )
        if ep.end == CUT and end == TRUNCATED:
            end = CUT  # a cut episode is flagged as truncated
        rows = {n: v.rows for n, v in flat.items() if isinstance(v, LazyArray)}
        used = [n for n in ep.original if n in flat and n not in rows]
        # What the function has not used of its input, it cannot return in parts.
        used = [n for n in used if not isinstance(v := given.get(n), LazyArray) or v.is_read]
        rows |= {n: _ALL for n in used if forms.same(flat[n], ep.original[n])}
        if length != ep.length and self._task.arrays != "tensordict":
            views = ((n, _rows_of(returned[n], value_of(given[n]), ep.original[n])) for n in used if n in returned)
            rows |= {n: r for n, r in views if r is not None}
        return EpisodeResult(
            flat=flat,
            length=length,
            end=end,
            observed=self._observed(flat, length, ep),
            rows=rows,
            columns=columns,
        )

    def _tell(self, flat: Flat, columns: dict[str, Scalar], ep: SourceEpisode, where: str) -> None:
        """Let ``task`` be the first of the texts ``task_at``, where one of them was set and there are both.

        Raises
        ------
        InvalidEpisode
            One text was set for an episode whose steps have several.
        """
        at = flat.get(TASK_AT)
        texts = at.tolist() if isinstance(at, np.ndarray) else at
        before = ep.original[TASK_AT].tolist() if TASK_AT in ep.original else None
        if isinstance(texts, list) and texts != before:
            columns.setdefault(TASK, next((str(text) for text in texts if text is not None), None))
        elif TASK in columns and TASK_AT in self._fields:
            if before is None or len(set(before)) > 1:
                raise InvalidEpisode(
                    f"{where}: episode/{TASK} was set, and the steps have texts of their own, {TASK_AT}.",
                    hint=f'set data["{TASK_AT}"] as well, a text for each step',
                )
            flat[TASK_AT] = [columns[TASK]] * ep.length  # type: ignore[assignment]

    def _is_field(self, name: str, value: Any) -> bool:
        """Return whether ``episode/NAME`` in a result is a field, with one row a step, and no column of episodes."""
        if f"{EPISODE}/{name}" in self._fields:
            return True
        rows = isinstance(value, list | tuple | LazyArray) or getattr(value, "ndim", 0) > 0
        return rows and name not in self._table.stored

    def _observed(self, flat: Flat, length: int, ep: SourceEpisode) -> bool:
        """Return whether the result has its final observation."""
        if any(len(v) == length + 1 for v in flat.values()):
            return True
        if any(n in self._fields and self._fields[n].placement == "both" for n in flat):
            return False
        return ep.observed or length != ep.length

    def _joined(
        self, flat: Flat, ep: SourceEpisode, given: Mapping[str, Array], apart: frozenset[str], where: str
    ) -> Flat:
        """Turn transitions into an episode: a field and its next values become T+1 rows."""
        known = flat.get(forms.OBSERVED)
        flat = forms.without_numbers(forms.without_root_flags(flat, self._fields), ep.number, self._fields)
        flat = forms.without_lookups(flat, given, self._fields, where)
        forms.check_pairs(flat, self._fields, where)
        length = count_steps(flat, where)
        observed = ep.observed and length == ep.length if known is None else bool(np.asarray(known)[-1:].all())
        for name in [n for n in flat if f"next/{n}" in flat and n not in apart]:
            root, after = flat[name], flat[f"next/{name}"]
            assert not isinstance(root, EncodedFrames | VideoFrames)
            assert not isinstance(after, EncodedFrames | VideoFrames)
            if len(root) == len(after) == length and forms.agree(root[1:], after[:-1]):
                flat[name] = forms.extended(root, after) if observed and length else root
                del flat[f"next/{name}"]
        return flat

    def probe(self, k: int, assumptions: Assumptions) -> tuple[Probe, SourceEpisode, list[EpisodeResult]]:
        """Call the function on episode ``k`` of the selection, to plan the output."""
        ep = self._reader.episode(k, self._task.read, self._task.later)
        began = time.perf_counter()
        results = self.results(ep, self._task.apart | assumptions.apart)
        seconds = (time.perf_counter() - began) / max(1, ep.length)
        whole = [r for r in results if r.length]
        kept = _kept(ep, results)
        untouched = frozenset(n for n in ep.original if not _touched(n, whole, kept)) - assumptions.touched
        if not whole:
            return Probe(None, untouched, kept, seconds), ep, results
        with self._caller.refusing(ep.number):
            first = whole[0]
            flat = {n: v if n in untouched else forms.resolved(v) for n, v in first.flat.items()}
            placements = {f.name: f.placement for f in infer_schema(first.flat, first.length)}
            if not first.observed:  # then T rows do not tell root from both: keep the placement of the source
                placements |= {n: "both" for n in flat if n in self._fields and self._fields[n].placement == "both"}
            schema = infer(flat, placements, self._fields, untouched)
        return Probe(schema, untouched, kept, seconds), ep, results

    # -- many

    def chunks(self, part: Part, plan: WritePlan) -> Iterator[Chunk]:
        """Yield the rows of a part."""
        first, last = part.args["first"], part.args["last"]
        table = self._reader.table(first, last)
        limit = self._limit(sum(f.row_bytes for f in plan.written))
        if takes_fast_path(self._task, plan):
            for block, rows in self._reader.blocks(first, last, self._task.read, limit):
                yield self._fast_chunk(block, rows, plan, table)
                table = table.take(np.arange(len(block), len(table)))
            return
        pending = _Pending(plan.written)
        for i, ep in enumerate(self._reader.episodes(first, last, self._task.read, limit, self._task.later)):
            try:
                results = self.results(ep, plan.apart)
                self._check(ep, results, plan)
                made = [self._data(ep, r, plan, table, i, j) for j, r in enumerate(results)]
            except PreprocessError as e:
                pending.notes.append(self._caller.left_out(ep.number, plan, e))
                continue
            for data, r in zip(made, results, strict=True):
                pending.add(data, r.observed)
            if pending.rows >= limit:
                yield pending.take()
        if pending.rows or pending.notes:
            yield pending.take()

    def _fast_chunk(
        self, block: list[SourceEpisode], rows: Mapping[str, Array], plan: WritePlan, table: EpisodeTable
    ) -> Chunk:
        """Return the rows of a block of episodes; those that do not match the plan are checked one by one."""
        made = FastPath(plan, block, rows)
        for i, ep in enumerate(block):
            given = made.give(ep)
            try:
                value = self._call(ep, given)
                columns = made.columns(value, ep, given)
                if columns is not None:
                    made.put(i, columns, ep.length, ep.end, ep.observed)
                    continue
                results = self._results(value, ep, given, plan.apart)
                self._check(ep, results, plan)
                data = self._data(ep, results[0], plan, table, i, 0)
            except PreprocessError as e:
                made.notes.append(self._caller.left_out(ep.number, plan, e))
            else:
                made.put(i, data.columns, data.length, data.end, results[0].observed, results[0].columns)
            made.restore(ep, given)
        if touched := made.touched():
            raise AssumptionBroken(Assumptions(touched))
        return made.chunk(table)

    def _check(self, ep: SourceEpisode, results: list[EpisodeResult], plan: WritePlan) -> None:
        """Raise AssumptionBroken if a result contradicts the plan."""
        if plan.kept and not _kept(ep, results):
            raise AssumptionBroken(Assumptions(kept=False))
        whole = [r for r in results if r.length]
        touched = frozenset(n for n in plan.untouched if _touched(n, whole, plan.kept))
        apart = frozenset(
            f.name for f in plan.schema for r in results if f.placement == "both" and f"next/{f.name}" in r.flat
        )
        if touched or apart - plan.apart:
            raise AssumptionBroken(Assumptions(touched, plan.kept, apart))

    def _data(
        self, ep: SourceEpisode, r: EpisodeResult, plan: WritePlan, table: EpisodeTable, i: int, j: int
    ) -> EpisodeData:
        extra = {name: values[i] for name, values in table.extra.items()} | dict(r.columns)
        with self._caller.refusing(ep.number):
            columns = self._columns(ep, r, plan) if r.length else {}
            _check_subtasks(ep, r, extra)
        return EpisodeData(
            columns,
            r.length,
            r.end,
            source=int(table.source[i]),
            row=int(table.row[i]),
            group=table.group[i],
            seed=table.seed[i] if j == 0 else None,
            options=table.options[i] if j == 0 else None,
            splits=tuple(s for s, v in table.splits.items() if v[i]),
            extra=extra,
            id=table.id[i].tobytes() if plan.kept and table.id is not None else None,
            origin=None if table.origin is None else int(table.origin[i]),
        )

    def _columns(self, ep: SourceEpisode, r: EpisodeResult, plan: WritePlan) -> dict[str, Column]:
        copied, shared, encoded = plan.copied, plan.shared, plan.encoded
        returned = [f for f in plan.schema if f.name not in encoded | plan.carried]
        unread = {n for n in shared if isinstance(r.flat.get(n), LazyArray)}
        flat = {n: forms.resolved(v) for n, v in r.flat.items() if n not in encoded | copied | unread}
        columns = fit_columns(flat, [f for f in returned if f.name not in unread], ep.name)
        _check_placements(r, returned, ep.name)
        # Copies, since the function may reuse one buffer, and rows are written some episodes later.
        columns = {
            n: v.copy() if isinstance(v, np.ndarray | list) else v for n, v in columns.items() if n not in shared
        }
        for name in copied:
            columns[name] = self._copied(ep, r, plan.renamed.get(name, name))
        return columns

    def _copied(self, ep: SourceEpisode, r: EpisodeResult, name: str) -> Column:
        """Return a field in its stored form, at the rows that the result consists of."""
        rows = ep.length + (self._fields[name].placement == "both" and ep.observed and r.observed)
        column = self._reader.column(name, [(ep.start, ep.start + rows)])
        if r.length != ep.length and name not in r.rows:
            raise InvalidEpisode(
                f"{ep.name}: {r.length:,} of {ep.length:,} steps came back, but {name} is not in fields=, so "
                "its rows cannot be selected.",
                hint="add it to fields=, or return episodes of the same length",
            )
        return column if r.rows.get(name, _ALL) == _ALL else _sliced(column, r.rows[name])


class _Pending:
    """Collects episodes that are laid out together."""

    def __init__(self, schema: tuple[Field, ...]) -> None:
        self._schema = schema
        self._episodes: list[EpisodeData] = []
        self._observed: list[bool] = []
        self.rows = 0
        self.notes: list[Note] = []

    def add(self, data: EpisodeData, observed: bool) -> None:
        if data.length == 0:
            self.notes.append(EMPTY)
            return
        self._episodes.append(data)
        self._observed.append(observed)
        self.rows += data.length + 1

    def take(self) -> Chunk:
        chunk = lay_out(self._schema, self._episodes)
        chunk.episodes.observed = np.array(self._observed, bool)  # the written fields may not include an observation
        chunk.notes = tuple(self.notes)
        self._episodes, self._observed, self.rows, self.notes = [], [], 0, []
        return chunk


def _kept(ep: SourceEpisode, results: list[EpisodeResult]) -> bool:
    """Return whether the episode came back as one episode of the same length."""
    return len(results) == 1 and results[0].length == ep.length and results[0].observed == ep.observed


def _touched(name: str, results: list[EpisodeResult], kept: bool) -> bool:
    """Return whether a field differs from rows of the source; if lengths are kept, from all its rows."""
    return any(r.rows.get(name) != _ALL if kept else name not in r.rows for r in results)


def _with_flags(flat: Flat, ep: SourceEpisode, where: str) -> Flat:
    """Add the flags of the source that the function did not return."""
    missing = [n for n in FLAGS if n not in flat]
    if not missing or forms.DONE in flat:
        return flat
    if not any(map(is_single, flat.values())) and not _misfits({n: len(v) for n, v in flat.items()}, ep.length):
        return {**flat, **{n: ep.original[n] for n in missing}}
    if len(missing) == len(FLAGS):
        raise InvalidEpisode(
            f"{where}: {count_steps(flat, where):,} steps of {ep.length:,} came back without next/terminated "
            "and next/truncated, which say how the new episode ends.",
            hint="return the flags of its steps too",
        )
    return flat


def _misfits(rows: Mapping[str, int], length: int) -> list[str]:
    """Return the fields whose numbers of rows are not those of an episode of ``length`` steps."""
    return [n for n, r in rows.items() if r != length and (n.startswith("next/") or r != length + 1)]


def _check_lengths(flat: Flat, ep: SourceEpisode, where: str) -> None:
    """Raise InvalidEpisode, naming the field, if the numbers of rows differ."""
    rows = {n: len(v) for n, v in flat.items() if not is_single(v)}
    if not _misfits(rows, count_steps(flat, where)):
        return
    wrong = _misfits(rows, ep.length)
    if len(wrong) < len(rows):
        raise InvalidEpisode(f'returned {rows[wrong[0]]:,} rows for "{wrong[0]}", {where} has {ep.length:,}')
    listed = ", ".join(f"{n} {r:,}" for n, r in rows.items())
    raise InvalidEpisode(f"{where}: the fields returned have different numbers of rows: {listed}.")


def _check_subtasks(ep: SourceEpisode, r: EpisodeResult, columns: Mapping[str, Scalar]) -> None:
    """Refuse intervals of the steps of the source, where the result has others."""
    name = Subtasks.COLUMN
    if r.length != ep.length and name not in r.columns and columns.get(name) is not None:
        raise InvalidEpisode(
            f"{ep.name}: {r.length:,} steps of {ep.length:,} came back, and the column {name} has ranges of these.",
            hint=f'set data["episode/{name}"]: other ranges, or None; rlds select --trim keeps them right by itself',
        )


def _check_placements(r: EpisodeResult, schema: list[Field], where: str) -> None:
    for f in schema:
        rows, wanted = len(r.flat[f.name]), r.length + (f.placement == "both" and r.observed)
        if rows != wanted:
            raise InvalidEpisode(f"{where}: {f.name} has {rows:,} rows; {wanted:,} expected, as in the first episode.")


def _rows_of(value: Any, given: Array, original: Array) -> slice | None:
    """Return the rows that a returned view of an input array covers; None if it is not a view, or was changed."""
    if not isinstance(value, np.ndarray) or value.dtype == object or value.dtype != given.dtype or not len(value):
        return None
    if value.shape[1:] != given.shape[1:] or not np.may_share_memory(value, given) or not given.strides[0]:
        return None
    first, off = divmod(value.ctypes.data - given.ctypes.data, given.strides[0])
    step, odd = divmod(value.strides[0], given.strides[0])
    if off or odd or step < 1 or value.strides[1:] != given.strides[1:]:
        return None
    rows = slice(first, first + step * (len(value) - 1) + 1, step)
    return rows if forms.same(value, original[rows]) else None


def _sliced(column: Column, rows: slice) -> Column:
    if isinstance(column, VideoFrames):
        return replace(column, index=column.index[rows])
    if not isinstance(column, EncodedFrames):
        return column[rows]
    ends = np.cumsum(column.lengths)
    numbers = range(len(column))[rows]
    parts = [column.data[ends[i] - column.lengths[i] : ends[i]] for i in numbers]
    return EncodedFrames(np.concatenate([np.zeros(0, np.uint8), *parts]), column.lengths[rows])


def takes_fast_path(task: Task, plan: WritePlan) -> bool:
    """Return whether `FastPath` applies: NumPy arrays, unchanged lengths and flags, no copied fields."""
    names = _returned(plan)
    return (
        plan.kept
        and task.arrays == "numpy"
        and not plan.copied
        and not task.later
        and plan.untouched.issuperset(FLAGS)
        and all(f.kind == "array" for f in plan.schema if f.name in names)
        and not any(f"next/{n}" in names for n in names)
    )


def _returned(plan: WritePlan) -> frozenset[str]:
    """Return the names of the fields that the function returns."""
    return frozenset(f.name for f in plan.schema) - plan.carried


class FastPath:
    """The inputs and outputs of a block of episodes, of which most match the plan.

    Parameters
    ----------
    block : list of Episode
        Consecutive in ``rows``, each with its final row.
    rows : mapping of str to array [rows, ...]
        The rows of the source.
    """

    def __init__(self, plan: WritePlan, block: list[SourceEpisode], rows: Mapping[str, Array]) -> None:
        self._plan = plan
        self._original = rows
        self._given = {n: v.copy() for n, v in rows.items()}
        names = _returned(plan)
        self._fields = [
            (f.name, np.dtype(f.dtype), f.shape, f.placement == "both", f.name in plan.untouched)
            for f in plan.schema
            if f.name in names
        ]
        total = sum(ep.length + 1 for ep in block)
        self._rows: dict[str, Array] = {f.name: np.empty((total, *f.shape), f.dtype) for f in plan.written}
        self._at = self._next = 0  # rows written; first row of the next episode in the input
        self._kept: list[int] = []
        self._ends: list[int] = []
        self._observed: list[bool] = []
        self._columns: dict[int, Mapping[str, Scalar]] = {}  # that were set, by position among the kept episodes
        self.notes: list[Note] = []

    def give(self, ep: SourceEpisode) -> dict[str, Array]:
        """Return the input of the next episode: copies of its rows, which the function may change."""
        at, self._next = self._next, self._next + ep.length + 1
        return {n: self._given[n][at : at + len(v)] for n, v in ep.original.items()}

    def columns(self, value: Any, ep: SourceEpisode, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the fields of an episode that matches the plan; None if it needs the full checks."""
        if not isinstance(value, dict) or not ep.observed or not ep.length:
            return None
        found: dict[str, Any] = {}
        _collect(value, "", found)
        if len(found) != len(self._fields):
            return None
        for name, dtype, shape, both, untouched in self._fields:
            v = found.get(name)
            if type(v) is not np.ndarray or v.dtype != dtype or v.shape != (ep.length + both, *shape):
                return None
            if untouched and v is not given.get(name):
                return None
        return found

    def restore(self, ep: SourceEpisode, given: Mapping[str, Array]) -> None:
        """Undo changes to the input of an episode that failed, or that the full checks have compared already."""
        for name in self._plan.untouched:
            given[name][:] = ep.original[name]

    def put(
        self,
        number: int,
        columns: Mapping[str, object],
        length: int,
        end: int,
        observed: bool,
        own: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Copy an episode into the output; ``number`` is its position in the table of `chunk`.

        ``own`` are columns of the episode table that the function set.
        """
        if length == 0:
            self.notes.append(EMPTY)
            return
        at, final = self._at, self._at + length
        for f in self._plan.written:
            column, rows = columns[f.name], self._rows[f.name]
            assert isinstance(column, np.ndarray)
            rows[at : at + len(column)] = column
            if len(column) == length:
                rows[final] = column[-1] if f.placement == "both" else 0
        if own:
            self._columns[len(self._kept)] = own
        self._at = final + 1
        self._kept.append(number)
        self._ends.append(end)
        self._observed.append(observed)

    def touched(self) -> frozenset[str]:
        """Return the fields that the plan says are untouched but that the function changed in place."""
        return frozenset(n for n in self._plan.untouched if not forms.same(self._given[n], self._original[n]))

    def chunk(self, table: EpisodeTable) -> Chunk:
        """Return the rows as a chunk; the episodes of the block are the first ones in ``table``."""
        kept = table.take(np.array(self._kept, np.int64))
        kept.end = np.array(self._ends, np.uint8)
        kept.observed = np.array(self._observed, bool)
        kept.splits = {n: v for n, v in kept.splits.items() if v.any()}
        for k, own in self._columns.items():
            for name, value in own.items():
                kept.extra.setdefault(name, [None] * len(kept))[k] = value
        last = np.zeros(self._at, bool)
        last[np.cumsum(kept.length + 1) - 1] = True
        return Chunk({n: v[: self._at] for n, v in self._rows.items()}, last, kept, tuple(self.notes))


def _collect(node: Mapping[Any, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _collect(value, f"{prefix}{key}/", found)
        else:
            found[f"{prefix}{key}"] = value
