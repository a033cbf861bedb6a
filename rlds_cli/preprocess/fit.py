"""The first pass of a function that has one: ``fit`` over every chunk, ``merge`` over chunks in their order.

::

    chunk 0    state = None;  state = fit(batch, state) for every batch     s0
    chunk 1    the same                                                     s1      merge(merge(s0, s1), s2) ...
    chunk 2    the same                                                     s2

Chunks do not depend on the number of workers, nor does the order in which they are merged, so the state does not
either. The states of finished chunks are kept in ``state.jsonl`` until the result is published.
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
_CHUNKS, _LEAST_ROWS = 32, 1 << 10  # of the first pass, and rows of one, where that are fewer

Fitted = Iterator[tuple[int, str]]  # numbers of chunks, and their states


def with_state(task: Task, work: Path, pool: WorkerPool) -> Task:
    """The task with what the first pass of its function finds out; as it is where there is none.

    Parameters
    ----------
    work : Path
        A directory that keeps the states of finished chunks; with those there, the pass goes on where it was.
    staff : Staff
        Who may work at it.

    Raises
    ------
    PreprocessError
        ``fit`` or ``merge`` raised, or returned what is no state.
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
    """The task with a state to try it with, and what that is of: all, where it was found out before, else one chunk."""
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
    """The chunks of the first pass. Their states are part of the result, so they follow from the dataset alone."""
    seen = _as_fit_sees_it(task)
    rows = int((seen.dataset.episodes["length"] + 1).sum())
    return job.parts(seen, kept=True, rows=max(_LEAST_ROWS, rows // _CHUNKS))


@dataclass(frozen=True, slots=True)
class _Journal:
    """States of chunks, one JSON line each; ``_ALL`` is the number of that of all chunks."""

    path: Path
    key: str

    def read(self) -> dict[int, str]:
        if not safe_files.is_own_file(self.path):  # `trial` reads it where nobody has worked yet
            return {}
        text = self.path.read_text()
        found: dict[int, str] = {}
        for line in text[: text.rfind("\n") + 1].splitlines():  # what a kill cut short is not there
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
    """States of chunks as they are done: the first here, the others by as many processes as pay."""
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
        what = f"the process that worked at chunk {number + 1:,} of {chunks:,} in the first pass {how}; trying again"
        pool.progress(Event(str(task.id), "note", note=what))

    try:
        yield from executor.work_through(fit_chunk, {i: (task, part) for i, part in todo.items()}, died)
    except WorkerDied as e:
        raise RldsError(
            f"{task.id}: the process that worked at chunk {e.number + 1:,} of {chunks:,} in the first pass {e.how}, "
            f"{e.times}.",
            hint="run the same command again: it goes on from there; fewer workers (-j) need less memory",
        ) from e


def fit_chunk(task: Task, part: Part) -> str:
    """The state of one chunk."""
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
    """What ``fit`` is given: what its own decorator says, else what the function is; of steps, many."""
    fit, _ = functions.first_pass(task.function.load()) or (None, None)
    unit, span = functions.marked(fit)
    if unit is None:
        return replace(task, unit="batch") if task.unit == "step" else task
    return replace(task, unit=unit, span=span)


class _Merge:
    """One state of those of chunks 0, 1, 2, ..., as they come, in their order."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._next = 0
        self.state: str | None = None

    def take(self, held: dict[int, str]) -> None:
        """Take from ``held`` what is next."""
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
            f"{task.function.reference}.merge returned None.", hint="merge(a, b) returns one state of two"
        )
    return fit_state.to_json(merged, f"{task.function.reference}.merge")
