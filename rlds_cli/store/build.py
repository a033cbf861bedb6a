"""Write all rows of a dataset part by part, in one process or several. Runs can be resumed.

`sharing_out` has several machines write the parts of one dataset.

::

    <work>/journal.jsonl     finished parts and the hashes of what they wrote
    <work>/dataset/          rows in their place
    <work>/segments/<part>.* rows of a part whose place was not yet known, spliced in at the end

The journal has a record of each finished part, which counts only if the rows on disk still have its hashes.
"""

from __future__ import annotations

import ctypes
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Protocol

from rlds_cli.base import text
from rlds_cli.base.files import publishing, trees
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.progress import Event, Progress, Stage
from rlds_cli.base.workers import Executor, Processes, run_items
from rlds_cli.errors import RldsError
from rlds_cli.store.parts import FILMS, JOURNAL, PLACE, Finished, on_disk, record, splice
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter, WrittenRows
from rlds_cli.ted import Chunk, EpisodeTable, Field, Note, Part

FAILED = "failed-episodes"  # the code of notes of episodes that are left out, each one
_IN_FLIGHT = 2  # chunks between the reader and the writer


class BuildJob(Protocol):
    """The rows to write. A job is picklable if several processes work on it."""

    @property
    def id(self) -> str:
        """Id of the dataset, for progress events."""

    @property
    def key(self) -> str:
        """Key of the work: a journal with another key is not resumed."""

    @property
    def stage(self) -> Stage:
        """Name of the work in progress events."""

    @property
    def schema(self) -> tuple[Field, ...]:
        """Fields of the dataset."""

    @property
    def parts(self) -> Sequence[Part]:
        """Parts of the dataset, in order."""

    def read(self, part: Part) -> Iterator[Chunk]:
        """Yield the rows of one part, in order."""

    def name(self, number: int) -> str:
        """Return the name of part ``number`` in messages."""


@dataclass(frozen=True, slots=True)
class Built:
    """All rows of a dataset, in their place below ``directory``."""

    directory: Path
    schema: tuple[Field, ...]
    paths: Mapping[str, str]
    end: RowPosition
    episodes: EpisodeTable
    notes: tuple[Note, ...]

    def below(self, work: Path, schema: tuple[Field, ...]) -> Built:
        """Return the same, with places as `write_rows` writes a schema below ``work``, whatever this one says."""
        paths = assign_paths(f.name for f in schema)
        return replace(self, directory=work / PLACE, schema=schema, paths=paths)

    def made_video(self, name: str) -> Path:
        """Return the file of a video that a part has written, and that is in no other file."""
        return self.directory.parent / FILMS / name


def write_rows(
    job: BuildJob,
    work: Path,
    *,
    jobs: int,
    progress: Progress,
    executor: Executor | None = None,
) -> Built:
    """Write all parts of ``job`` below ``work``. A journal there says which parts an earlier run has finished.

    The parts are written by ``executor`` if there is one, else by ``jobs`` processes, or by this process if ``jobs`` is
    0 or 1. The bytes are the same in all three cases.
    """
    journal = Journal(work / JOURNAL, job.key)
    done = on_disk(work, job.schema, reversed(journal.resume()), range(len(job.parts)))
    _forget_unfinished(work, done)
    tell = _BuildProgress(job, done, progress)
    left = len(job.parts) - len(done)
    if executor is None and jobs > 1 and left > 1:
        executor = Processes(min(jobs, left))
    if executor is not None and left:
        _work_apart(job, work, journal, done, executor, tell)
    else:
        _work_here(job, work, journal, done, tell)
    built = assemble(job, work, done)
    done.clear()
    _give_back()
    return built


def _give_back() -> None:
    """Return the memory of the parts' tables to the system. glibc would keep about a third of a large table."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _forget_unfinished(work: Path, done: Mapping[int, tuple[str, WrittenRows]]) -> None:
    kept = {where for where, _ in done.values()}
    for segment in (work / "segments").glob("*"):
        if f"segments/{segment.name}" not in kept:
            trees.discard(segment)  # a worker that does not know of the end yet may still write there
    if PLACE in kept:
        publishing.unseal(work / PLACE)
    else:
        trees.discard(work / PLACE)


class _BuildProgress:
    """Reports progress in rows if the size of every part is known ahead, else in parts."""

    def __init__(self, job: BuildJob, done: Mapping[int, tuple[str, WrittenRows]], progress: Progress) -> None:
        self._job, self.progress = job, progress
        known = [p.rows for p in job.parts]
        self._by_rows = None not in known
        self._total = sum(r for r in known if r is not None) if self._by_rows else len(known)
        self._done = sum(w.rows for _, w in done.values()) if self._by_rows else len(done)
        self._failed = sum(n.code == FAILED for _, w in done.values() for n in w.notes)
        if done:
            self._say(0, f"resumed: {len(done)} of {len(known)} parts were finished")

    def rows(self, n: int) -> None:
        if self._by_rows:
            self._say(n)

    def part(self, written: WrittenRows) -> None:
        if not self._by_rows:
            self._say(1)
        before, self._failed = self._failed, self._failed + sum(n.code == FAILED for n in written.notes)
        if self._failed.bit_length() > before.bit_length():  # at 1, 2, 4, 8, ... of them
            left_out = text.plural(self._failed, "episode")
            self.progress(Event(self._job.id, "note", note=f"{left_out} left out so far: the function failed"))

    def _say(self, n: int, note: str = "") -> None:
        self._done += n
        unit = "rows" if self._by_rows else "parts"
        self.progress(Event(self._job.id, self._job.stage, "", self._done, self._total, unit, note))


def _work_here(job: BuildJob, work: Path, journal: Journal, done: Finished, tell: _BuildProgress) -> None:
    position = RowPosition()
    for i, part in enumerate(job.parts):
        if i in done and done[i][0] == PLACE and done[i][1].start.rows != position.rows:
            del done[i]  # written behind other parts than those that precede it now
        if i not in done:
            written = _run(job, part, work, PLACE, position, tell)
            journal.add(record(i, PLACE, written))
            done[i] = (PLACE, written)
            tell.part(written)
        position = position.behind(done[i][1])


def _work_apart(
    job: BuildJob,
    work: Path,
    journal: Journal,
    done: Finished,
    executor: Executor,
    tell: _BuildProgress,
) -> None:
    starts = _known_starts(job) if executor.in_place else None
    todo = {i: (p, work, i, starts and starts[i]) for i, p in enumerate(job.parts) if i not in done}
    for i, (where, written) in run_items(
        write_part, job, todo, executor, id=job.id, name=job.name, progress=tell.progress
    ):
        journal.add(record(i, where, written))
        done[i] = (where, written)
        tell.rows(written.rows)
        tell.part(written)


def _known_starts(job: BuildJob) -> list[int] | None:
    """Return the first row of each part; None if a size is not known ahead or rows have no fixed size."""
    counts = [p.rows for p in job.parts]
    if any(f.kind != "array" for f in job.schema):
        return None
    total, starts = 0, []
    for n in counts:
        if n is None:
            return None
        starts.append(total)
        total += n
    return starts


def write_part(job: BuildJob, part: Part, work: Path, number: int, start: int | None = None) -> tuple[str, WrittenRows]:
    """Write part ``number``, and return its directory below ``work`` and the rows written.

    With ``start`` the rows go to their place, from that row on. Otherwise they go to a directory of their own, since
    others may write the same part: a process that was thought dead, or the same shard on another machine.
    """
    if start is not None:
        return PLACE, _run(job, part, work, PLACE, RowPosition(start))
    where = f"segments/{number}.{secrets.token_hex(4)}"
    return where, _run(job, part, work, where, RowPosition())


def _run(
    job: BuildJob, part: Part, work: Path, where: str, start: RowPosition, tell: _BuildProgress | None = None
) -> WrittenRows:
    """Read one part and write its rows; a thread hashes and writes while reading continues.

    One of several worker processes does without the thread: taking turns would cost it a tenth of its time.
    """
    paths = assign_paths(f.name for f in job.schema)
    with RowWriter(work / where, job.schema, paths, start, work / FILMS) as writer, _beside() as thread:
        pending: deque[Future[None]] = deque()
        for chunk in job.read(part):
            if thread is None:
                writer.append(chunk)
            else:
                pending.append(thread.submit(writer.append, chunk))
            if len(pending) > _IN_FLIGHT:
                pending.popleft().result()
            if tell is not None:
                tell.rows(len(chunk))
        for future in pending:
            future.result()
        written = writer.written()
    if part.rows is not None and written.rows != part.rows:
        raise RldsError(f"{job.id}: a part gave {written.rows:,} rows; {part.rows:,} were planned.")
    return written


def _beside() -> AbstractContextManager[ThreadPoolExecutor | None]:
    """Return a thread that writes while this one reads; None in a worker process."""
    return nullcontext() if parent_process() else ThreadPoolExecutor(1)


def assemble(job: BuildJob, work: Path, done: Mapping[int, tuple[str, WrittenRows]]) -> Built:
    """Put the rows of all parts in their place; ``done`` has each part's directory below ``work`` and its rows."""
    if all(where != PLACE for where, _ in done.values()):
        trees.discard(work / PLACE)  # of a run that was interrupted in here
    paths = assign_paths(f.name for f in job.schema)
    position = RowPosition()
    for i in range(len(job.parts)):
        where, written = done[i]
        after = position.behind(written)
        if where != PLACE:
            for f in job.schema:
                splice(work / where, work / PLACE, f, paths[f.name], written, position, after)
        position = after
    in_order = [done[i][1] for i in range(len(job.parts))]
    return Built(
        work / PLACE,
        job.schema,
        paths,
        position,
        EpisodeTable.concat([w.episodes for w in in_order]),
        tuple(n for w in in_order for n in w.notes),
    )
