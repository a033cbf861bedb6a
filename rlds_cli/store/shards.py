"""Let several processes, on any machines and at any times, write the parts of one dataset in a shared directory.

::

    <work>/journals/2-of-4.node7-311-9c.jsonl    parts that one attempt at shard 2 of 4 has finished
    <work>/segments/17.9f3c51ab/                 the rows of part 17, as one attempt wrote them

No two processes ever write the same file, and no harm is done if two attempts write the same part. A part counts once a
journal lists it and its rows have the hashes that are written there.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.errors import RldsError
from rlds_cli.progress import Event, Progress
from rlds_cli.store import build, files, rows
from rlds_cli.store.build import BuildJob, Journal, write_part
from rlds_cli.store.rows import WrittenRows
from rlds_cli.store.workers import Executor, WorkerDied

_JOURNALS = "journals"

Finished = dict[int, tuple[str, WrittenRows]]


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def parts(self, total: int) -> range:
        """Return the shard's parts of ``total``: consecutive ones, as many as other shards have or one more or less."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)


def attempt() -> str:
    """Return a unique name for this attempt."""
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{secrets.token_hex(2)}"


def finished(job: BuildJob, work: Path, numbers: Collection[int]) -> Finished:
    """Return those of the parts ``numbers`` that some attempt has written in full."""
    paths = files.paths(f.name for f in job.schema)
    found: Finished = {}
    for number, where, written in _entries(job, work):
        if number in numbers and number not in found and rows.rehash(work / where, job.schema, paths, written):
            found[number] = (where, written)
    return found


def said(job: BuildJob, work: Path) -> set[int]:
    """Return the parts that journals list as finished, without a check of their rows."""
    return {number for number, _, _ in _entries(job, work)}


def count(work: Path) -> int:
    """Return the number of shards that the latest attempt counted; 0 without an attempt."""
    latest = sorted(_files(work), key=lambda f: f.stat().st_mtime)
    counts = (str(f.name).partition(".")[0].rpartition("-of-")[2] for f in reversed(latest))
    return next((int(n) for n in counts if n.isdigit()), 0)


def _entries(job: BuildJob, work: Path) -> Iterator[tuple[int, str, WrittenRows]]:
    for file in _files(work):
        head, lines = build.read(file)
        if head.get("key") == job.key:
            yield from lines


def _files(work: Path) -> list[Path]:
    try:
        return sorted((work / _JOURNALS).iterdir())
    except FileNotFoundError:
        return []


def write(
    job: BuildJob,
    work: Path,
    shard: Shard,
    *,
    there: Callable[[Collection[int]], Finished],
    executor: Callable[[int], Executor | None],
    progress: Progress,
    check: Callable[[], None],
) -> Finished:
    """Write the missing parts of a shard, and return all its parts.

    Parameters
    ----------
    there : callable
        Called with the numbers of the shard's parts; returns the finished ones, see `finished`.
    executor : callable
        Called with the number of parts to write; returns the executor that writes them, or None for this process.
    check : callable
        Called before each part; an error that it raises ends the work.

    Raises
    ------
    RldsError
        A worker died again and again.
    """
    own = shard.parts(len(job.parts))
    record = Journal(work / _JOURNALS, job.key, f"{shard.number}-of-{shard.count}.{attempt()}.jsonl")
    record.begin()
    done = there(own)
    known = said(job, work)
    for number in done.keys() - known:
        record.record(number, *done[number])
    missing = [i for i in own if i not in done]
    tell = _ShardProgress(job, shard, len(own), progress)
    tell.resumed(len(done))
    workers = executor(len(missing)) if missing else None
    for number, (where, written) in _written(job, work, missing, workers, tell, check):
        record.record(number, where, written)
        done[number] = (where, written)
        tell.part(len(done))
    return done


def _written(
    job: BuildJob,
    work: Path,
    missing: list[int],
    executor: Executor | None,
    tell: _ShardProgress,
    check: Callable[[], None],
) -> Iterator[tuple[int, tuple[str, WrittenRows]]]:
    if executor is None:
        for number in missing:
            check()
            yield number, write_part(job, job.parts[number], work, number)
        return
    todo = {i: (job, job.parts[i], work, i) for i in missing}
    try:
        for number, result in executor.work_through(write_part, todo, tell.died):
            yield number, result
            check()
    except WorkerDied as e:
        raise RldsError(
            f"{job.id}: the process that worked on {job.name(e.number)} {e.how}, {e.times}. Finished parts are kept.",
            hint="run the same command again: it resumes there; fewer workers (-j) need less memory",
        ) from e


class _ShardProgress:
    """Reports the progress of a shard, in parts."""

    def __init__(self, job: BuildJob, shard: Shard, own: int, progress: Progress) -> None:
        self._job, self._shard, self._own, self._progress = job, shard, own, progress

    def resumed(self, done: int) -> None:
        if done:
            self._say(done, f"resumed: {done} of {self._own} parts of shard {self._shard} were there")

    def part(self, done: int) -> None:
        self._say(done)

    def died(self, number: int, how: str) -> None:
        note = f"the process that worked on {self._job.name(number)} {how}; trying again"
        self._progress(Event(self._job.id, "note", note=note))

    def _say(self, done: int, note: str = "") -> None:
        what = f"shard {self._shard}"
        self._progress(Event(self._job.id, self._job.stage, what, done, self._own, "parts", note))
