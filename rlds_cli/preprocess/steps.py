"""Run functions of transitions, of one or many at a time, which return every step.

The final row of an episode comes from the next values of its last step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import InvalidEpisode, PreprocessError
from rlds_cli.preprocess import calling, forms
from rlds_cli.preprocess.calling import Caller, CallInput
from rlds_cli.preprocess.forms import take
from rlds_cli.preprocess.lazy import EPISODE, LazyArray, StoredColumns
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, EpisodeResult, Probe, WritePlan, infer
from rlds_cli.preprocess.reading import (
    FieldRows,
    SourceEpisode,
    SourceReader,
    StepBlock,
    StepName,
    StepRange,
    neighbours,
    runs,
)
from rlds_cli.preprocess.stacking import ColumnStack, call_steps
from rlds_cli.preprocess.task import Task
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Chunk,
    Column,
    Field,
    Flat,
    Part,
    Placement,
    Value,
    fit_columns,
    flag_per_step,
    lay_out,
)

PROBE_STEPS = 256


class StepRunner:
    """Runs a function of transitions: unit batch, step or window."""

    def __init__(self, task: Task, caller: Caller, reader: SourceReader) -> None:
        self._task = task
        self._caller = caller
        self._reader = reader
        self._pairs = PairCheck(task, reader)
        self._fields = task.dataset.schema
        self._stack: ColumnStack | None = None  # of the last block of single steps
        self._table = StoredColumns(reader.store)
        self._partial = bool((task.dataset.episodes["num_observed"] == task.dataset.episodes["length"]).any())

    @property
    def by_number(self) -> bool:
        """True if the function has read numbers of episodes, or may have: a TensorDict has them as a field."""
        return self._task.arrays == "tensordict" or self._table.by_number

    # -- one block

    def run(self, block: StepBlock) -> tuple[Flat, Mapping[str, Array], Array]:
        """Call the function on a block and check the output: fields [B], rows of the source, ends of its episodes."""
        original = self._rows(block)
        given = self._given(block, original)
        done = {forms.DONE: given[forms.DONE].copy()}
        calling.seed(self._task, self._reader.seed_of(int(block.numbers[0]), block.pieces[0].first))
        flat = (self._call_windows if self._task.unit == "window" else self._call)(block, given)
        with self._caller.refusing(int(block.numbers[0])):
            if self._task.arrays == "tensordict":
                flat = forms.without_root_flags(flat, self._fields)
                flat = forms.without_numbers(flat, block.episodes, self._fields)
            self._check_columns(flat, str(block))
            flat = forms.without_lookups(flat, done, self._fields, str(block))
            flat = {**{n: block.pick(original[n]) for n in FLAGS if n not in flat}, **flat}
            _check_rows(flat, block)
            forms.check_pairs(flat, self._fields, str(block))
            ends = self._read_flags(flat, block)
        return flat, original, ends

    def inputs(self, part: Part) -> Iterator[CallInput]:
        """Yield the input of each block of a part; with unit step, all steps of a block together."""
        steps = part.args["steps"]
        for a, b in self._runs(part):
            for pieces in self._pieces(a, b, steps):
                yield self._input_of(self._reader.block(pieces))

    def _input_of(self, block: StepBlock) -> CallInput:
        if self._task.unit == "window":
            given = self._windows(block)
            return self._input(block, forms.windows_to_input(given, self._task.arrays, self._columns_of(block)), given)
        given = self._given(block, self._rows(block))
        return self._input(block, forms.to_input(given, self._task.arrays, self._columns_of(block)), given)

    def _check_columns(self, flat: Flat, where: str) -> None:
        """Refuse columns of the episode table, which have one value an episode."""
        for name in (n for n in flat if n.startswith(f"{EPISODE}/") and n not in self._fields):
            if name.removeprefix(f"{EPISODE}/") in self._table.stored:
                raise InvalidEpisode(
                    f'{where}: "{name}" came back, a column of the episode table.',
                    hint="unit=episode (--unit episode) sets columns of episodes",
                )

    def _rows(self, block: StepBlock) -> FieldRows:
        later = {n: partial(self._reader.rows, n, block.runs) for n in self._task.later}
        return FieldRows(
            self._task.read, {n: self._reader.rows(n, block.runs) for n in self._task.read if n not in later}, later
        )

    def _columns_of(self, block: StepBlock) -> Mapping[str, Any]:
        return self._table.of_steps(block.episodes)

    def _input(self, block: StepBlock, data: Any, given: Mapping[str, Any]) -> CallInput:
        step = block.pieces[0].first if block.size == 1 else None
        return CallInput(
            data, int(block.numbers[0]), str(block), lambda: given, block.runs[0][0], step, len(block.numbers) == 1
        )

    def _given(self, block: StepBlock, original: Mapping[str, Array]) -> dict[str, Any]:
        observed = block.observed if self._partial and self._task.unit != "window" else None

        def lazy(name: str, ahead: int) -> LazyArray | None:
            if name not in self._task.later:
                return None
            f = self._fields[name]
            read = cache(lambda: block.view(original[name], ahead))
            return forms.lazily((block.size, *f.shape), f, read, self._task.arrays)

        given = forms.transitions(original, self._fields, block.pick, observed, lazy)
        if self._task.arrays != "tensordict" or self._task.unit == "window":
            return given
        return forms.numbered(given, block.episodes, self._fields)

    def _call(self, block: StepBlock, given: Mapping[str, Array]) -> Flat:
        batch = forms.to_input(given, self._task.arrays, self._columns_of(block))
        first = int(block.numbers[0])
        if self._task.unit == "batch":
            value = self._caller(batch, lambda: self._input(block, batch, given))
            with self._caller.refusing(first):
                flat = forms.from_output(forms.returned(value, str(block)), str(block))
                return forms.of_transitions(flat, str(block), given)
        return forms.of_transitions(self._call_steps(block, batch, given), str(block), given)

    def _call_steps(self, block: StepBlock, batch: Any, given: Mapping[str, Array]) -> Flat:
        def failure(e: BaseException, i: int) -> PreprocessError:
            episode, t = block.at(i)
            where = CallInput(None, episode, block.name(i), lambda: _row(given, i), step=t)
            return self._caller.failure(e, where)

        columns = [self._table.of_episode(k) for k in block.numbers.tolist()]
        pieces = np.repeat(np.arange(len(columns)), [p.steps for p in block.pieces]).tolist()
        with self._caller.refusing(int(block.numbers[0])):
            self._stack = call_steps(
                batch,
                block.size,
                self._caller.function,
                failure,
                lambda i: StepName(block, i),
                self._stack,
                columns=[columns[k] for k in pieces],
            )
        return self._stack.columns()

    def _windows(self, block: StepBlock) -> dict[str, Any]:
        """Return the windows of a block's steps, by field name."""
        starts, lengths, final = (
            np.array([of(p.k) for p in block.pieces])
            for of in (self._reader.start, self._reader.length, self._reader.observed)
        )
        near = neighbours(block, starts, lengths, final, self._task.span)
        with self._caller.refusing(int(block.numbers[0])):
            return forms.window_fields(
                lambda n: self._reader.rows(n, near.runs),
                self._task.read,
                self._fields,
                near,
                self._task.later,
                self._task.arrays,
            )

    def _call_windows(self, block: StepBlock, before: Mapping[str, Array]) -> Flat:
        given, where = self._windows(block), str(block)
        handed = forms.windows_to_input(given, self._task.arrays, self._columns_of(block))
        value = self._caller(handed, lambda: self._input(block, handed, given))
        with self._caller.refusing(int(block.numbers[0])):
            merged = forms.merge_output(forms.returned(value, where), handed, dict(before), self._fields, where)
            return forms.of_transitions(merged, where, before)

    def _read_flags(self, flat: Flat, block: StepBlock) -> Array:
        """Make flags bool, and return how episodes end; without a flag they are cut. Refuse an early end."""
        for name in FLAGS:
            values = flat[name]
            if isinstance(values, np.ndarray) and values.dtype == bool and values.shape == (block.size,):
                flat[name] = values.copy()
            else:
                flat[name] = flag_per_step(values, block.size, name, str(block))
        terminated, truncated = (np.asarray(flat[n]) for n in FLAGS)
        inside = truncated.copy()
        inside[block.ends] = False
        if inside.any():
            raise InvalidEpisode(
                f"{block.name(int(np.argmax(inside)))}: truncated before the last step of the episode.",
                hint="unit=episode (--unit episode) can split it there",
            )
        ends = np.where(terminated[block.ends], TERMINATED, np.where(truncated[block.ends], TRUNCATED, CUT))
        truncated[block.ends[ends == CUT]] = True
        return ends.astype(np.uint8)

    # -- what is planned

    def probe(self, k: int, assumptions: Assumptions) -> tuple[Probe, StepBlock, Flat, Mapping[str, Array]]:
        """Call the function on the first steps of episode ``k`` of the selection, to plan the output."""
        steps = min(self._reader.length(k), PROBE_STEPS)
        return self.probe_piece(StepRange(k, 0, steps, steps == self._reader.length(k)), assumptions)

    def attempt(self, k: int, step: int | None = None) -> tuple[Probe, SourceEpisode, list[EpisodeResult]]:
        """Call the function on all steps of episode ``k``, or on one, and return them as an episode."""
        ep = self._reader.episode(k, self._task.read, self._task.later)
        if step is None:
            piece = StepRange(k, 0, ep.length, True)
        else:
            piece = StepRange(k, step, step + 1, step + 1 == ep.length)
            ep = _one_step(ep, step, self._fields)
        probe, _, flat, _ = self.probe_piece(piece, Assumptions())
        assert probe.schema is not None
        flat = {n: forms.resolved(v) for n, v in flat.items()}
        columns = {f.name: flat[f.name] for f in probe.schema}
        for f in probe.schema:
            if f.placement == "both" and ep.observed:
                columns[f.name] = forms.extended(flat[f.name], flat[f"next/{f.name}"])
        rows = dict.fromkeys(probe.untouched, slice(None))
        return probe, ep, [EpisodeResult(columns, ep.length, ep.end, ep.observed, rows)]

    def probe_piece(
        self, piece: StepRange, assumptions: Assumptions
    ) -> tuple[Probe, StepBlock, Flat, Mapping[str, Array]]:
        """Call the function on a piece of an episode."""
        block = self._reader.block([piece])
        began = time.perf_counter()
        flat, original, _ = self.run(block)
        seconds = (time.perf_counter() - began) / block.size
        untouched = frozenset(n for n in original if self._pairs.same(n, flat, original, block)) - assumptions.touched
        with self._caller.refusing(int(block.numbers[0])):
            apart = self._task.apart | assumptions.apart | self._pairs.disagreeing(flat, block, untouched, {})
            known = {n: v if n.removeprefix("next/") in untouched else forms.resolved(v) for n, v in flat.items()}
            schema = self._infer(known, apart, untouched)
        return Probe(schema, untouched, True, seconds, apart), block, flat, original

    def _infer(self, flat: Flat, apart: frozenset[str], untouched: frozenset[str]) -> tuple[Field, ...]:
        placements: dict[str, Placement] = {}
        for name in flat:
            pair = name.startswith("next/") and name.removeprefix("next/") in flat
            if pair and name.removeprefix("next/") not in apart:
                continue
            both = f"next/{name}" in flat and name not in apart
            placements[name] = "next" if name.startswith("next/") else "both" if both else "root"
        return infer({n: flat[n] for n in placements}, placements, self._fields, untouched)

    # -- many

    def chunks(self, part: Part, plan: WritePlan) -> Iterator[Chunk]:
        """Yield the rows of a part."""
        steps = part.args["steps"]
        for a, b in self._runs(part):
            if self._task.keep_going:
                yield from self._without_failing(a, b, steps, plan)
            else:
                yield from self._chunks(a, b, steps, plan)

    def _runs(self, part: Part) -> Iterator[tuple[int, int]]:
        """Yield the runs of episodes of a part, as (first, one past the last)."""
        first, last = part.args["first"], part.args["last"]
        firsts = runs(np.array([self._reader.length(k) for k in range(first, last)]), part.args["steps"])
        return pairwise([*(first + f for f in firsts), last])

    def _chunks(self, first: int, last: int, limit: int, plan: WritePlan) -> Iterator[Chunk]:
        tail: dict[str, Any] = {}
        for pieces in self._pieces(first, last, limit):
            block = self._reader.block(pieces)
            flat, original, ends = self.run(block)
            self._check(flat, original, block, plan, tail)
            with self._caller.refusing(int(block.numbers[0])):
                columns = self._columns(flat, block, plan)
            tail = {n: _last(flat[f"next/{n}"]) for n in flat if f"next/{n}" in flat}
            yield self._chunk(columns, ends, block)

    def _without_failing(self, first: int, last: int, limit: int, plan: WritePlan) -> list[Chunk]:
        """Return the rows of episodes; if the function fails, try each alone and leave out those that fail."""
        try:
            return list(self._chunks(first, last, limit, plan))
        except PreprocessError as e:
            if last - first > 1:
                return [c for k in range(first, last) for c in self._without_failing(k, k + 1, limit, plan)]
            nothing = lay_out(plan.written, [])
            nothing.notes = (self._caller.left_out(self._reader.number(first), plan, e),)
            return [nothing]

    def _pieces(self, first: int, last: int, steps: int) -> Iterator[list[StepRange]]:
        """Cut episodes into blocks of ``steps`` steps."""
        block: list[StepRange] = []
        held = 0
        for k in range(first, last):
            t, length = 0, self._reader.length(k)
            while t < length:
                n = min(length - t, steps - held)
                block.append(StepRange(k, t, t + n, t + n == length))
                t, held = t + n, held + n
                if held == steps or self._alone:
                    yield block
                    block, held = [], 0
        if block:
            yield block

    @property
    def _alone(self) -> bool:
        """True if a block has steps of one episode: a step that uses a field reads that of the whole block."""
        return self._task.unit == "step" and bool(self._task.later)

    def _check(
        self, flat: Flat, original: Mapping[str, Array], block: StepBlock, plan: WritePlan, tail: Mapping[str, Any]
    ) -> None:
        """Raise AssumptionBroken if a block contradicts the plan."""
        same = frozenset(n for n in plan.untouched if self._pairs.same(n, flat, original, block))
        with self._caller.refusing(int(block.numbers[0])):
            apart = self._pairs.disagreeing(flat, block, same, tail) - plan.apart
        if same != plan.untouched or apart:
            raise AssumptionBroken(Assumptions(plan.untouched - same, True, apart))

    def _columns(self, flat: Flat, block: StepBlock, plan: WritePlan) -> dict[str, Column]:
        """Return the rows to write: steps at their positions, and final rows."""
        carried = plan.copied | plan.encoded | (frozenset() if plan.linked else plan.untouched)
        left = carried | {n for n in plan.shared if isinstance(flat.get(n), LazyArray)}
        wanted = [f for f in plan.schema if f.name not in left | plan.carried]
        pairs = [replace(f, name=f"next/{f.name}") for f in wanted if f.placement == "both"]
        skipped = left | {f"next/{n}" for n in left if n not in plan.apart}
        returned = {n: forms.resolved(v) for n, v in flat.items() if n not in skipped}
        fitting = fit_columns(returned, [*wanted, *pairs], str(block))
        columns: dict[str, Column] = {}
        for f in plan.written:
            if f.name in carried:
                columns[f.name] = self._reader.column(plan.renamed.get(f.name, f.name), _kept_runs(block))
            else:
                columns[f.name] = _place(f, fitting[f.name], fitting.get(f"next/{f.name}"), block)
        return columns

    def _chunk(self, columns: dict[str, Column], ends: Array, block: StepBlock) -> Chunk:
        last = np.zeros(block.total, bool)
        last[block.final] = True
        first = block.pieces[0].k
        ended = np.array([p.k - first for p in block.pieces if p.ends], np.int64)
        table = self._reader.table(first, block.pieces[-1].k + 1).take(ended)
        table.end = np.where((table.end == CUT) & (ends == TRUNCATED), CUT, ends).astype(np.uint8)
        return Chunk(columns, last, table)


class PairCheck:
    """Checks whether fields of a block changed, and whether next values still equal the values one step later."""

    def __init__(self, task: Task, reader: SourceReader) -> None:
        self._task = task
        self._reader = reader
        self._fields = task.dataset.schema

    def same(self, name: str, flat: Flat, original: Mapping[str, Array], block: StepBlock) -> bool:
        """Return whether a field and its next values are unchanged."""
        if name not in flat:
            return False
        if isinstance(flat[name], LazyArray):  # and so are its next values
            return True
        both = self._fields[name].placement == "both"
        return forms.same(flat[name], block.view(original[name])) and (
            not both or forms.same(flat[f"next/{name}"], block.view(original[name], 1))
        )

    def disagreeing(
        self, flat: Flat, block: StepBlock, untouched: frozenset[str], before: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the fields whose next value differs from the value one step later.

        Parameters
        ----------
        untouched : frozenset of str
            Fields that need no check.
        before : mapping
            Next values of the step before the block, in the same episode.

        Raises
        ------
        InvalidEpisode
            The source stores such a field once, and the unit is not window.
        """
        names = [n for n in flat if f"next/{n}" in flat and n not in untouched and n not in self._task.apart]
        if not names:
            return frozenset()
        inner = np.ones(block.size, bool)
        inner[np.cumsum([p.steps for p in block.pieces]) - 1] = False
        at = np.flatnonzero(inner)
        found = []
        for name in names:
            root, after = forms.resolved(flat[name]), forms.resolved(flat[f"next/{name}"])
            fits = _agree(root, after, at, block)
            if name in before and block.pieces[0].first:
                fits = fits and forms.agree(take(root, np.array([0])), forms.resolved(before[name]))
            if not fits:
                self._refuse(name, flat, block, at)
                found.append(name)
        return frozenset(found)

    def _refuse(self, name: str, flat: Flat, block: StepBlock, at: IntArray) -> None:
        if name not in self._fields or self._fields[name].placement != "both" or self._task.unit == "window":
            return
        original = self._reader.rows(name, block.runs)
        changed = {
            n: not forms.same(flat[n], original[block.steps + step]) for n, step in ((name, 0), (f"next/{name}", 1))
        }
        what = (
            f'"{name}" and "next/{name}" were changed, but not alike'
            if all(changed.values())
            else f'"{name}" was changed and "next/{name}" was not'
            if changed[name]
            else f'"next/{name}" was changed and "{name}" was not'
        )
        step = next(
            (int(i) for i in at if not forms.agree(take(flat[name], [i + 1]), take(flat[f"next/{name}"], [i]))), 0
        )
        raise InvalidEpisode(
            f"{what}: they are no longer the same observation after {block.name(step)}.",
            hint="change both, or use unit=episode (--unit episode), which passes every observation once",
        )


def _agree(root: Any, after: Any, at: IntArray, block: StepBlock) -> bool:
    """Return whether the next values at the steps ``at`` equal the values one step later in the piece."""
    if block.is_long and not isinstance(root, list) and not isinstance(after, list):
        return all(forms.agree(root[a + 1 : b], after[a : b - 1]) for a, b in block.spans)
    return forms.agree(take(root, at + 1), take(after, at))


def _last(values: Any) -> Any:
    """Return the last row of a column in memory of its own; of a LazyArray unread."""
    return values[-1:] if isinstance(values, LazyArray) else take(values, [len(values) - 1])


def _one_step(ep: SourceEpisode, step: int, fields: Mapping[str, Field]) -> SourceEpisode:
    """Return an episode that consists of one step of another."""
    rows = {n: step + 1 + (fields[n].placement == "both") for n in ep.original}
    original = ep.original.cut({n: slice(step, stop) for n, stop in rows.items()})
    return replace(ep, start=ep.start + step, length=1, observed=ep.observed or step + 1 < ep.length, original=original)


def _row(given: Mapping[str, Array], i: int) -> dict[str, Array]:
    return {n: np.asarray(v[i]) for n, v in given.items()}


def _check_rows(flat: Flat, block: StepBlock) -> None:
    for name, values in flat.items():
        if _rows(values) != block.size:
            rows = "a single value" if _rows(values) < 0 else f"{len(values):,} rows"
            raise InvalidEpisode(
                f'returned {rows} for "{name}" instead of {block.size:,} ({block})',
                hint="units batch and step must keep the number of steps; unit episode need not (--unit episode)",
            )


def _rows(values: Value) -> int:
    return len(values) if not isinstance(values, np.ndarray) or values.ndim else -1


def _kept_runs(block: StepBlock) -> list[tuple[int, int]]:
    """Return the rows of the source that are kept: the steps of each piece, and the final row of each episode."""
    return [(a, b if p.ends else b - 1) for (a, b), p in zip(block.runs, block.pieces, strict=True)]


def _place(f: Field, root: Any, after: Any, block: StepBlock) -> Column:
    """Place values of steps in rows. A final row holds the last next value, or repeats the row before if unrecorded."""
    final, total = block.final, block.total
    rows: Array = np.full(total, None, object) if f.kind == "text" else np.zeros((total, *f.shape), f.dtype)
    block.spread(_column(root), rows)
    if f.placement == "both":
        known = block.observed[block.ends]
        rows[final[known]] = _column(after)[block.ends[known]]
        rows[final[~known]] = _column(root)[block.ends[~known]]
    return rows.tolist() if f.kind == "text" else rows


def _column(values: Any) -> Array:
    return np.array(values, object) if isinstance(values, list) else values
