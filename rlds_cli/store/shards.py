"""Parts written by several that share a directory and nothing else: on any machine, at any time, twice if need be.

::

    <work>/journals/2-of-4.node7-311-9c.jsonl    parts that one attempt at shard 2 of 4 has finished
    <work>/segments/17.9f3c51ab/                 the rows of part 17, as one attempt wrote them

No file is ever written by two. What an attempt leaves unfinished is in no journal, and what is in a journal counts
where its hash is right.
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
from rlds_cli.store.build import Job, Journal, write_part
from rlds_cli.store.rows import Written
from rlds_cli.store.workers import Executor, WorkerDied

_JOURNALS = "journals"

Finished = dict[int, tuple[str, Written]]


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def parts(self, total: int) -> range:
        """Which of so many parts are its own; parts that follow each other, as many as the others have, or one more."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)


def attempt() -> str:
    """A name for this attempt, which no other has."""
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{secrets.token_hex(2)}"


def finished(job: Job, work: Path, numbers: Collection[int]) -> Finished:
    """Of the parts ``numbers``, those that some attempt has written whole."""
    paths = files.paths(f.name for f in job.schema)
    found: Finished = {}
    for number, where, written in _entries(job, work):
        if number in numbers and number not in found and rows.rehash(work / where, job.schema, paths, written):
            found[number] = (where, written)
    return found


def said(job: Job, work: Path) -> set[int]:
    """The parts that journals say are finished, unchecked."""
    return {number for number, _, _ in _entries(job, work)}


def count(work: Path) -> int:
    """Of how many shards the latest attempt was one; 0 where there was none."""
    latest = sorted(_files(work), key=lambda f: f.stat().st_mtime)
    counts = (str(f.name).partition(".")[0].rpartition("-of-")[2] for f in reversed(latest))
    return next((int(n) for n in counts if n.isdigit()), 0)


def _entries(job: Job, work: Path) -> Iterator[tuple[int, str, Written]]:
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
    job: Job,
    work: Path,
    shard: Shard,
    *,
    there: Callable[[Collection[int]], Finished],
    executor: Callable[[int], Executor | None],
    progress: Progress,
    check: Callable[[], None],
) -> Finished:
    """Write the parts of a shard that are not there yet; gives back all of them.

    Parameters
    ----------
    there : callable
        Given the numbers of its parts, those that are; see `finished`.
    executor : callable
        Given how many parts there are to write, who works at them; None for this process.
    check : callable
        Called before a part is begun; what it raises ends the work.

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
    tell = _Teller(job, shard, len(own), progress)
    tell.resumed(len(done))
    workers = executor(len(missing)) if missing else None
    for number, (where, written) in _written(job, work, missing, workers, tell, check):
        record.record(number, where, written)
        done[number] = (where, written)
        tell.part(len(done))
    return done


def _written(
    job: Job, work: Path, missing: list[int], executor: Executor | None, tell: _Teller, check: Callable[[], None]
) -> Iterator[tuple[int, tuple[str, Written]]]:
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
            f"{job.id}: the process that worked at {job.name(e.number)} {e.how}, {e.times}. What is finished is kept.",
            hint="run the same command again: it goes on from there; fewer workers (-j) need less memory",
        ) from e


class _Teller:
    """Progress of a shard, in parts."""

    def __init__(self, job: Job, shard: Shard, own: int, progress: Progress) -> None:
        self._job, self._shard, self._own, self._progress = job, shard, own, progress

    def resumed(self, done: int) -> None:
        if done:
            self._say(done, f"resumed: {done} of {self._own} parts of shard {self._shard} were there")

    def part(self, done: int) -> None:
        self._say(done)

    def died(self, number: int, how: str) -> None:
        note = f"the process that worked at {self._job.name(number)} {how}; trying again"
        self._progress(Event(self._job.id, "note", note=note))

    def _say(self, done: int, note: str = "") -> None:
        what = f"shard {self._shard}"
        self._progress(Event(self._job.id, self._job.stage, what, done, self._own, "parts", note))
