"""A task as a job of ``store.work``: its chunks, and the first pass over them.

A worker receives one chunk at a time, and finished chunks are recorded; the result does not depend on them. Their size
follows from the measured cost of a step: small enough to keep all workers busy and to lose little when work stops.
Later runs of the same work keep the size that the first one chose.

In a first pass, ``fit`` runs over each chunk, then ``merge`` over the chunks in order::

    chunk 0    state = None;  state = fit(batch, state) for every batch     s0
    chunk 1    the same                                                     s1      merge(merge(s0, s1), s2) ...
    chunk 2    the same                                                     s2

Neither its chunks nor the order of merging depend on the number of workers, so the state does not either. The states of
finished chunks are kept in ``state.jsonl`` until the result is published. A state consists of numbers, texts, arrays,
lists and dicts, and is stored as JSON without any loss.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.progress import Event, Stage
from rlds_cli.base.workers import run_items
from rlds_cli.errors import DamagedDataset, PreprocessError
from rlds_cli.preprocess import calling, functions
from rlds_cli.preprocess.calling import Caller, accepted_arguments, undisturbed
from rlds_cli.preprocess.episodes import EpisodeRunner
from rlds_cli.preprocess.plan import Assumptions, WritePlan, make_plan
from rlds_cli.preprocess.reading import SourceReader, runs
from rlds_cli.preprocess.reuse import BY_NUMBER, Reuse
from rlds_cli.preprocess.steps import StepRunner
from rlds_cli.preprocess.task import BLOCK_BYTES, BLOCK_ROWS, PART_ROWS, STEP_ROWS, Task
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.ted import Chunk, Field, Part, lay_out

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

FILE = "chunks.json"
JOURNAL = "state.jsonl"  # of the first pass: states of chunks by number
_COUNT = 64  # chunks to aim for, within the bounds below
_LEAST, _MOST = 0.2, 2.0  # seconds per chunk: little overhead, and little lost when work stops
_FITS, _FIT_ROWS = 32, 1 << 10  # chunks of a first pass, and the fewest rows of one
_ALL = -1  # number of the merged state
_ARRAY = "__array__"  # key of an array in an encoded state
_INLINE = 4096  # characters of a state that the manifest repeats

Fitted = Iterator[tuple[int, str]]  # numbers of chunks, and their states


@dataclass(frozen=True)
class PreprocessJob:
    """A planned task in chunks, as `store.build.BuildJob`; picklable if the function is."""

    task: Task
    plan: WritePlan
    parts: Sequence[Part]
    stage: Stage = "preprocess"
    reuse: Reuse | None = None  # results of an earlier run that are taken over

    @property
    def id(self) -> str:
        """The id of the result."""
        return str(self.task.id)

    @property
    def key(self) -> str:
        """Hash of the task, its plan and its chunks, which identifies the work."""
        plan = [sorted(self.plan.shared), self.plan.kept, [asdict(f) for f in self.plan.schema], self.task.state]
        firsts = [p.args["first"] for p in self.parts]
        return hashlib.sha256(json.dumps([self.task.key, plan, firsts]).encode()).hexdigest()

    @property
    def schema(self) -> tuple[Field, ...]:
        """The fields that are written."""
        return self.plan.written

    def read(self, part: Part) -> Iterator[Chunk]:
        """Yield the rows of one part; raise AssumptionBroken if the plan does not hold."""
        # A worker's standard output belongs to the program: redirect what the function prints.
        with redirect_stdout(sys.stderr) if parent_process() else nullcontext():
            runner = runner_of(self.task, self._reader)
            first, last = part.args["first"], part.args["last"]
            stretches = [(first, last, False)] if self.reuse is None else self.reuse.stretches(first, last)
            with undisturbed(self.task):
                for first, last, there in stretches:
                    if there and self.reuse is not None:
                        yield from self.reuse.chunks(first, last, self.plan, self._reader.table(first, last))
                    else:
                        stretch = Part(None, {**part.args, "first": first, "last": last})
                        yield from runner.chunks(stretch, self.plan)
                if runner.by_number or (self.reuse is not None and self.reuse.by_number):
                    nothing = lay_out(self.plan.written, [])
                    yield replace(nothing, notes=(BY_NUMBER,))

    @cached_property
    def _reader(self) -> SourceReader:
        return SourceReader(self.task.dataset)

    def name(self, number: int) -> str:
        """Return the name of a part in messages: the chunk and its episodes."""
        first, last = (self.parts[number].args[n] for n in ("first", "last"))
        return f"chunk {number + 1:,} of {len(self.parts):,} (episodes {first:,} to {last - 1:,})"

    def __reduce__(self) -> tuple[type[PreprocessJob], tuple[Any, ...]]:
        """Leave out the parts: a worker receives one at a time."""
        return PreprocessJob, (self.task, self.plan, (), self.stage, self.reuse)


def runner_of(task: Task, reader: SourceReader | None = None) -> EpisodeRunner | StepRunner:
    """Return the runner for the unit of a task."""
    caller = Caller(task, None if task.state is None else decode_state(task.state))
    reader = SourceReader(task.dataset) if reader is None else reader
    return EpisodeRunner(task, caller, reader) if task.unit == "episode" else StepRunner(task, caller, reader)


def planned(task: Task, assumptions: Assumptions) -> tuple[WritePlan, float]:
    """Plan the output of a task from a few episodes, and measure the seconds per step; see `plan.make_plan`."""
    runner = runner_of(task)
    with undisturbed(task):
        return make_plan(task, runner, assumptions)


def parts(task: Task, *, kept: bool, made: int = 0, rows: int = PART_ROWS) -> tuple[Part, ...]:
    """Divide a task into chunks of whole episodes: about ``rows`` rows each, at most ``PART_ROWS``, or one episode.

    Parameters
    ----------
    kept : bool
        All episodes keep their lengths, so the number of rows to write is known.
    made : int
        Bytes written per step. With the bytes read, they determine how many steps one call of a function of
        transitions receives, or how many are read at once for unit step: whole episodes, or a part of one that is
        longer. A chunk holds whole calls.
    """
    lengths = task.dataset.episodes["length"]
    width = made + sum(f.row_bytes for f in task.dataset.schema.values())
    limit = min(STEP_ROWS if task.unit == "step" else BLOCK_ROWS, BLOCK_BYTES // max(1, width))
    steps = min(max(1, limit // (1 + sum(task.span))), PART_ROWS)
    grains = np.arange(len(lengths)) if task.unit == "episode" else np.array(runs(lengths, steps))
    behind = np.append(grains[1:], len(lengths))
    ends = np.append(0, np.cumsum(lengths + 1))
    chunk = ends[behind] // min(rows, PART_ROWS)
    firsts = [*grains[np.flatnonzero(np.diff(chunk, prepend=-1))].tolist(), len(lengths)]
    return tuple(
        Part(int(ends[b] - ends[a]) if kept else None, {"first": a, "last": b, "steps": steps})
        for a, b in pairwise(firsts)
    )


def divided(task: Task, plan: WritePlan, rows: int) -> PreprocessJob:
    """Divide a planned task into chunks of about ``rows`` rows."""
    made = sum(f.row_bytes for f in plan.schema)
    return PreprocessJob(task, plan, parts(task, kept=plan.kept, made=made, rows=rows))


def rows_of_chunk(seconds: float, steps: int) -> int:
    """Return the rows of a chunk, given ``seconds`` per step and the number of ``steps``."""
    aim = min(max(seconds * steps / _COUNT, _LEAST), _MOST)
    return max(1, min(PART_ROWS, int(aim / max(seconds, 1e-9))))


def decided(work: Path, seconds: float, steps: int) -> int:
    """Return the rows per chunk that an earlier run recorded in ``work``; else choose and record them."""
    file = work / FILE
    if (rows := _read(file)) is not None:
        return rows
    rows = rows_of_chunk(seconds, steps)
    new = work / safe_files.temporary_name(FILE)
    safe_files.write_bytes(new, json.dumps({"rows": rows}).encode())
    try:
        os.link(new, file, follow_symlinks=False)  # the first of several shards decides
    except FileExistsError:
        new.unlink()
        return _read(file) or rows
    except OSError:  # a file system without links
        new.replace(file)
        return _read(file) or rows
    new.unlink()
    return rows


def _read(file: Path) -> int | None:
    try:
        rows = json.loads(file.read_text())["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, int) and rows > 0 else None


# -- the first pass


def with_state(task: Task, work: Path, pool: WorkerPool) -> Task:
    """Run the first pass of a task, and return the task with the state; unchanged if there is no first pass.

    Parameters
    ----------
    work : Path
        A directory that keeps the states of finished chunks; an interrupted pass continues from them.
    pool : WorkerPool
        The workers of the task.

    Raises
    ------
    PreprocessError
        ``fit`` or ``merge`` raised, or returned something that is not a state.
    """
    if task.state is not None or not task.fits:
        return task
    journal = Journal(work / JOURNAL, task.key)
    known = {record["chunk"]: record["state"] for record in journal.resume()}
    state = known.pop(_ALL, None)
    if state is None:
        state = _pass(task, known, journal, pool)
        journal.add({"chunk": _ALL, "state": state})
    return replace(task, state=state)


def with_trial_state(task: Task, episode: int, work: Path) -> tuple[Task, str]:
    """Return the task with a state to try it with, and the data it is from: all if known already, else one chunk."""
    if not task.fits:
        return task, ""
    for record in Journal(work / JOURNAL, task.key).records() or ():
        if record["chunk"] == _ALL:
            return replace(task, state=record["state"]), "all"
    chunks = chunks_of(task)
    number = next(i for i, part in enumerate(chunks) if part.args["first"] <= episode < part.args["last"])
    with undisturbed(task):
        state = _merged(task, [fit_chunk(task, chunks[number])])
    return replace(task, state=state), f"chunk {number + 1:,} of {len(chunks):,}"


def chunks_of(task: Task) -> tuple[Part, ...]:
    """Return the chunks of the first pass. They depend on the dataset alone, since the state depends on them."""
    seen = _as_fit_sees_it(task)
    rows = int((seen.dataset.episodes["length"] + 1).sum())
    return parts(seen, kept=True, rows=max(_FIT_ROWS, rows // _FITS))


def _pass(task: Task, known: dict[int, str], journal: Journal, pool: WorkerPool) -> str:
    chunks = chunks_of(task)
    rows = [int(p.rows or 0) for p in chunks]
    done = sum(rows[i] for i in known)
    todo = {i: chunks[i] for i in range(len(chunks)) if i not in known}
    held = dict(known)
    merge = _Merge(task)
    merge.take(held)
    for number, state in _fit(task, todo, len(chunks), pool):
        journal.add({"chunk": number, "state": state})
        held[number] = state
        merge.take(held)
        done += rows[number]
        pool.progress(Event(str(task.id), "preprocess", "first pass", done, sum(rows), "rows"))
    assert merge.state is not None
    return merge.state


def _fit(task: Task, todo: dict[int, Part], chunks: int, pool: WorkerPool) -> Fitted:
    """Yield the states of chunks as they finish: the first from this process, which times it, then from workers."""
    first = next(iter(todo), None)
    if first is None:
        return
    began = time.perf_counter()
    yield first, fit_chunk(task, todo.pop(first))
    executor = pool.executor((time.perf_counter() - began) * len(todo), len(todo)) if todo else None
    yield from run_items(
        fit_chunk,
        task,
        {number: (part,) for number, part in todo.items()},
        executor,
        id=str(task.id),
        name=lambda number: f"chunk {number + 1:,} of {chunks:,} in the first pass",
        progress=pool.progress,
    )


def fit_chunk(task: Task, part: Part) -> str:
    """Return the state of one chunk."""
    with redirect_stdout(sys.stderr) if parent_process() else nullcontext():
        runner = runner_of(_as_fit_sees_it(task))
        caller = Caller(task)
        state: Any = None
        with undisturbed(task):
            for given in runner.inputs(part):
                calling.seed(task, given.seed)
                state = caller.fit(state, given)
        return encode_state(state, f"{task.function.reference}.fit")


def _as_fit_sees_it(task: Task) -> Task:
    """Return the task with the unit of ``fit``: of its own decorator, else of the function, with batch for step."""
    fit, _ = functions.first_pass(task.function.load()) or (None, None)
    unit, span = functions.marked(fit)
    if unit is None:
        return replace(task, unit="batch") if task.unit == "step" else task
    return replace(task, unit=unit, span=span)


class _Merge:
    """Merges the states of chunks 0, 1, 2, ... in order, whatever the order in which they finish."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._next = 0
        self.state: str | None = None

    def take(self, held: dict[int, str]) -> None:
        """Merge the states in ``held`` whose turn it is, and remove them."""
        while self._next in held:
            text = held.pop(self._next)
            self._next += 1
            self.state = text if self.state is None else _merged(self._task, [self.state, text])


def _merged(task: Task, texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    _, merge = functions.first_pass(task.function.load()) or (None, None)
    assert merge is not None
    a, b = (decode_state(text, writeable=True) for text in texts)
    with undisturbed(task):
        calling.seed(task, 0)
        try:
            merged = merge(a, b, **accepted_arguments(merge, task.args))
        except (Exception, SystemExit) as e:
            what = f"{task.function.reference}.merge raised {type(e).__name__}: {e}{calling.raised_at(e)}"
            states = f"{brief_state(a)} and {brief_state(b)}"
            raise PreprocessError(f"{what} on {states}. Nothing was published.") from e
    if merged is None:
        raise PreprocessError(
            f"{task.function.reference}.merge returned None.", hint="merge(a, b) returns the state of both chunks"
        )
    return encode_state(merged, f"{task.function.reference}.merge")


# -- the state of the first pass


def encode_state(state: Any, where: str) -> str:
    """Encode a state. Tuples become lists; tensors and NumPy numbers become arrays; arrays keep their dtype.

    Raises
    ------
    PreprocessError
        It holds something else; ``where`` names the function that returned it.
    """
    return json.dumps(_encode(state, where, ""), sort_keys=True)


def decode_state(text: str, *, writeable: bool = False) -> Any:
    """Decode a state. Its arrays are read-only by default, since all calls share them."""
    return _decode(json.loads(text), writeable)


def state_hash(text: str) -> str:
    """Return the sha256 of an encoded state."""
    return hashlib.sha256(text.encode()).hexdigest()


def state_entry(text: str, name: str) -> dict[str, Any]:
    """Return the manifest entry of a state stored as metadata ``name``; a short state is included by value."""
    said: dict[str, Any] = {"metadata": name, "sha256": state_hash(text)}
    return {**said, "value": json.loads(text)} if len(text) <= _INLINE else said


def state(ds: Dataset, function: str | None = None) -> Any:
    """Return the state of the first pass of a function that made ``ds``.

    Parameters
    ----------
    ds : Dataset
        A preprocessed dataset, or one made from it.
    function : str, optional
        Name of the function; by default the last one with a first pass.

    Returns
    -------
    Any
        The final state that ``fit`` and ``merge`` returned; its arrays are read-only.

    Raises
    ------
    PreprocessError
        No function of that name with a first pass made the dataset.

    Examples
    --------
    >>> preprocess.state(ds)["mean"]  # doctest: +SKIP
    """
    for step in reversed(ds.manifest.provenance):
        if "state" in step and function in (None, step.get("function")):
            name = step["state"]["metadata"]
            try:
                return decode_state(ds.store.table.metadata.text(name))
            except (ValueError, TypeError, KeyError, RecursionError) as e:
                raise DamagedDataset(
                    f"{name} of {ds.id} is not a valid state: {e}.", hint=f"rlds verify {ds.id}"
                ) from e
    which = f"called {function} " if function else ""
    raise PreprocessError(f"{ds.id} was not made by a function {which}with a first pass (fit, merge).")


def _encode(value: Any, where: str, at: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise PreprocessError(f"{where}: the state{at} has the key {key!r}; keys must be str.")
        return {key: _encode(item, where, f"{at}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, where, f"{at}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf" and value.dtype != np.longdouble:
        return {_ARRAY: value.dtype.name, "shape": list(value.shape), "values": np.ravel(value).tolist()}
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise PreprocessError(
        f"{where}: the state{at} is {kind}.",
        hint="a state consists of numbers, text, arrays of numbers, lists, dicts and None",
    )


def _decode(value: Any, writeable: bool) -> Any:
    if isinstance(value, list):
        return [_decode(item, writeable) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY not in value:
        return {key: _decode(item, writeable) for key, item in value.items()}
    array = np.array(value["values"], value[_ARRAY]).reshape(value["shape"])
    array.flags.writeable = writeable
    return array if array.ndim else array[()]


def brief_state(value: Any) -> str:
    """Summarise a state in one line: shapes of arrays, four digits of numbers."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {brief_state(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{len(value)}]"
    return f"{value:.4g}" if isinstance(value, float | np.floating) and math.isfinite(value) else str(value)
