"""Run the first pass of a function: ``fit`` over each chunk, then ``merge`` over the chunks in order.

::

    chunk 0    state = None;  state = fit(batch, state) for every batch     s0
    chunk 1    the same                                                     s1      merge(merge(s0, s1), s2) ...
    chunk 2    the same                                                     s2

Neither the chunks nor the order of merging depend on the number of workers, so the state does not either. The states of
finished chunks are kept in ``state.jsonl`` until the result is published.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from rlds_cli.errors import PreprocessError, RldsError
from rlds_cli.files import safe as safe_files
from rlds_cli.preprocess import calling, fit_state, functions, job
from rlds_cli.preprocess.calling import Caller, accepted_arguments, undisturbed
from rlds_cli.preprocess.pool import WorkerPool
from rlds_cli.preprocess.task import Task
from rlds_cli.progress import Event
from rlds_cli.store.workers import WorkerDied
from rlds_cli.ted import Part

JOURNAL = "state.jsonl"
_ALL = -1
_CHUNKS, _LEAST_ROWS = 32, 1 << 10  # chunks of a first pass, and the fewest rows of one

Fitted = Iterator[tuple[int, str]]  # numbers of chunks, and their states


def with_state(task: Task, work: Path, pool: WorkerPool) -> Task:
    """Run the first pass of a task, and return the task with the state; unchanged if there is no first pass.

    Parameters
    ----------
    work : Path
        A directory that keeps the states of finished chunks; an interrupted pass continues from them.
    staff : Staff
        The workers of the task.

    Raises
    ------
    PreprocessError
        ``fit`` or ``merge`` raised, or returned something that is not a state.
    """
    if task.state is not None or not task.fits:
        return task
    journal = _Journal(work / JOURNAL, task.key)
    known = journal.read()
    state = known.pop(_ALL, None)
    if state is None:
        state = _pass(task, known, journal, pool)
        journal.write(_ALL, state)
    return replace(task, state=state)


def with_trial_state(task: Task, episode: int, work: Path) -> tuple[Task, str]:
    """Return the task with a state to try it with, and the data it is from: all if known already, else one chunk."""
    if not task.fits:
        return task, ""
    state = _Journal(work / JOURNAL, task.key).read().get(_ALL)
    if state is not None:
        return replace(task, state=state), "all"
    chunks = chunks_of(task)
    number = next(i for i, part in enumerate(chunks) if part.args["first"] <= episode < part.args["last"])
    with undisturbed(task):
        state = _merged(task, [fit_chunk(task, chunks[number])])
    return replace(task, state=state), f"chunk {number + 1:,} of {len(chunks):,}"


def chunks_of(task: Task) -> tuple[Part, ...]:
    """Return the chunks of the first pass. They depend on the dataset alone, since the state depends on them."""
    seen = _as_fit_sees_it(task)
    rows = int((seen.dataset.episodes["length"] + 1).sum())
    return job.parts(seen, kept=True, rows=max(_LEAST_ROWS, rows // _CHUNKS))


@dataclass(frozen=True, slots=True)
class _Journal:
    """States of chunks, one JSON line each; the merged state has the number ``_ALL``."""

    path: Path
    key: str

    def read(self) -> dict[int, str]:
        if not safe_files.is_own_file(self.path):  # `trial` reads it before any run
            return {}
        text = self.path.read_text()
        found: dict[int, str] = {}
        for line in text[: text.rfind("\n") + 1].splitlines():  # without a last line that a kill cut short
            entry = json.loads(line)
            if entry["key"] == self.key and fit_state.digest(entry["state"]) == entry["sha256"]:
                found[entry["chunk"]] = entry["state"]
        return found

    def write(self, chunk: int, state: str) -> None:
        line = json.dumps({"key": self.key, "chunk": chunk, "sha256": fit_state.digest(state), "state": state}) + "\n"
        descriptor = safe_files.open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "a+b") as f:
            f.seek(0, os.SEEK_END)
            if f.tell():
                f.seek(-1, os.SEEK_END)
                line = line if f.read(1) == b"\n" else f"\n{line}"
            f.write(line.encode())


def _pass(task: Task, known: dict[int, str], journal: _Journal, pool: WorkerPool) -> str:
    chunks = chunks_of(task)
    rows = [int(p.rows or 0) for p in chunks]
    done = sum(rows[i] for i in known)
    todo = {i: chunks[i] for i in range(len(chunks)) if i not in known}
    held = dict(known)
    merge = _Merge(task)
    merge.take(held)
    for number, state in _fit(task, todo, len(chunks), pool):
        journal.write(number, state)
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
    if executor is None:
        for number, part in todo.items():
            yield number, fit_chunk(task, part)
        return

    def died(number: int, how: str) -> None:
        what = f"the worker of chunk {number + 1:,} of {chunks:,} in the first pass {how}; trying again"
        pool.progress(Event(str(task.id), "note", note=what))

    try:
        yield from executor.work_through(fit_chunk, {i: (task, part) for i, part in todo.items()}, died)
    except WorkerDied as e:
        raise RldsError(
            f"{task.id}: the worker of chunk {e.number + 1:,} of {chunks:,} in the first pass {e.how}, {e.times}.",
            hint="run the same command again to continue; fewer workers (-j) need less memory",
        ) from e


def fit_chunk(task: Task, part: Part) -> str:
    """Return the state of one chunk."""
    with redirect_stdout(sys.stderr) if parent_process() else nullcontext():
        runner = job.runner_of(_as_fit_sees_it(task))
        caller = Caller(task)
        state: Any = None
        with undisturbed(task):
            for given in runner.inputs(part):
                calling.seed(task, given.seed)
                state = caller.fit(state, given)
        return fit_state.to_json(state, f"{task.function.reference}.fit")


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
    a, b = (fit_state.from_json(text, writeable=True) for text in texts)
    with undisturbed(task):
        calling.seed(task, 0)
        try:
            merged = merge(a, b, **accepted_arguments(merge, task.args))
        except (Exception, SystemExit) as e:
            what = f"{task.function.reference}.merge raised {type(e).__name__}: {e}{calling.raised_at(e)}"
            states = f"{fit_state.brief(a)} and {fit_state.brief(b)}"
            raise PreprocessError(f"{what} on {states}. Nothing was published.") from e
    if merged is None:
        raise PreprocessError(
            f"{task.function.reference}.merge returned None.", hint="merge(a, b) returns the state of both chunks"
        )
    return fit_state.to_json(merged, f"{task.function.reference}.merge")
