"""Write all rows of a dataset part by part: in one process or several, or by several machines. Runs can be resumed.

::

    <work>/journal.jsonl     finished parts and the hashes of what they wrote
    <work>/dataset/          rows in their place
    <work>/segments/<part>.* rows of a part whose place was not yet known, spliced in at the end

The journal has a record of each finished part, which counts only if the rows on disk still have its hashes.

Several processes, on any machines and at any times, may each write a shard of the parts in a shared directory:

::

    <work>/journals/2-of-4.node7-311-9c.jsonl    parts that one attempt at shard 2 of 4 has finished
    <work>/segments/17.9f3c51ab/                 the rows of part 17, as one attempt wrote them

No two processes ever write the same file, and no harm is done if two attempts write the same part.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds_cli.base import text
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.progress import Event, Progress, Stage
from rlds_cli.errors import RldsError
from rlds_cli.store import arrays, publishing, rows
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter, WrittenRows
from rlds_cli.store.workers import Executor, Processes, run_items
from rlds_cli.ted import Array, Chunk, EpisodeTable, Field, Note, Part, Repeated

PLACE = "dataset"
FILMS = "films"  # beside it: videos that are in no other file
FAILED = "failed-episodes"  # the code of notes of episodes that are left out, each one
_IN_FLIGHT = 2  # chunks between the reader and the writer
JOURNAL = "journal.jsonl"
_SHARD_JOURNALS = "journals"
Finished = dict[int, tuple[str, WrittenRows]]


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
    done = _on_disk(job, work, reversed(journal.resume()), range(len(job.parts)))
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


def journaled_parts(job: BuildJob, work: Path) -> Finished:
    """Return the parts that `write_rows` has finished in ``work``."""
    return _on_disk(job, work, reversed(Journal(work / JOURNAL, job.key).records() or []), range(len(job.parts)))


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
        position = advance(position, done[i][1])


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


def advance(position: RowPosition, w: WrittenRows) -> RowPosition:
    """Return the position behind the rows ``w``, if they are written from ``position`` on."""
    return RowPosition(
        position.rows + w.rows,
        {f: position.frame_bytes.get(f, 0) + n for f, n in w.frame_bytes.items()},
        {f: _merged(position.strings.get(f, []), new) for f, new in w.new_strings.items()},
    )


def _merged(known: list[str], new: list[str]) -> list[str]:
    seen = set(known)
    return [*known, *(s for s in new if s not in seen)]


def assemble(job: BuildJob, work: Path, done: Mapping[int, tuple[str, WrittenRows]]) -> Built:
    """Put the rows of all parts in their place; ``done`` has each part's directory below ``work`` and its rows."""
    paths = assign_paths(f.name for f in job.schema)
    position = RowPosition()
    for i in range(len(job.parts)):
        where, written = done[i]
        after = advance(position, written)
        if where != PLACE:
            for f in job.schema:
                _splice(work / where, work / PLACE, f, paths[f.name], written, position, after)
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


def _splice(
    segment: Path, place: Path, f: Field, path: str, w: WrittenRows, before: RowPosition, after: RowPosition
) -> None:
    """Copy the rows of a segment to their place, with text codes and frame offsets of the whole dataset."""
    source, target = rows.files(segment, f, path), rows.files(place, f, path)
    for file in target.values():
        safe_files.make(file.parent)
        file.touch()
    if "offsets" in source:
        base = before.frame_bytes.get(f.name, 0)
        copy_range(source["bytes"], target["bytes"], base, w.frame_bytes[f.name])
        offsets = np.fromfile(source["offsets"], "<i8", 2 * w.rows) + base
        _write(target["offsets"], before.rows * 16, offsets)
    elif f.name in w.new_strings:
        width = int(np.prod(rows.stored_row(f)[1], dtype=np.int64))
        codes = np.fromfile(source["rows"], "<i4", w.rows * width).reshape(w.rows, width)
        index = {s: i for i, s in enumerate(after.strings[f.name])}
        mapped = np.array([*(index[s] for s in w.new_strings[f.name]), rows.NO_TEXT], "<i4")
        codes[:, 0] = mapped[codes[:, 0]]
        _write(target["rows"], before.rows * width * 4, codes)
    else:
        width = arrays.row_bytes((0, *f.shape), f.dtype)
        copy_range(source["rows"], target["rows"], before.rows * width, w.rows * width)


def _write(file: Path, offset: int, values: Array) -> None:
    with safe_files.updating(file) as out:
        arrays.write_at(out.fileno(), offset, values)


def copy_range(source: Path, target: Path, offset: int, size: int, *, start: int = 0) -> None:
    """Copy ``size`` bytes of ``source``, from ``start`` on, into ``target`` at ``offset``, in the kernel if it can."""
    with source.open("rb") as a, safe_files.updating(target) as b:
        at = 0
        while at < size:
            n = _copy_some(a.fileno(), b.fileno(), size - at, start + at, offset + at)
            if n == 0:
                raise RldsError(f"{source} ended after {at:,} of {size:,} bytes.")
            at += n


def _copy_some(source: int, target: int, size: int, at: int, to: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, size, at, to)
        except OSError:
            pass  # another file system, or one that cannot
    data = os.pread(source, min(size, 1 << 20), at)
    return os.pwrite(target, data, to)


# -- the journal


def record(part: int, where: str, written: WrittenRows) -> dict[str, Any]:
    """Return the record of a finished part; ``where`` is its directory below the job's."""
    return {"part": part, "where": where, **_to_json(written)}


def _on_disk(job: BuildJob, work: Path, records: Iterable[Any], numbers: Collection[int]) -> Finished:
    """Return the recorded parts among ``numbers`` whose rows below ``work`` still have their hashes."""
    paths = assign_paths(f.name for f in job.schema)
    whole: Finished = {}
    for record in records:
        number, where = record["part"], record["where"]
        if number in whole or number not in numbers:
            continue
        written = _from_json(record)
        if rows.rehash(work / where, job.schema, paths, written):
            whole[number] = (where, written)
    return whole


def _to_json(w: WrittenRows) -> dict[str, Any]:
    e = w.episodes
    return {
        "start": asdict(w.start) | {"strings": {k: len(v) for k, v in w.start.strings.items()}},
        "rows": w.rows,
        "frame_bytes": w.frame_bytes,
        "new_strings": w.new_strings,
        "hashes": w.hashes,
        "notes": [asdict(n) for n in w.notes],
        "episodes": {
            **{name: getattr(e, name).tolist() for name in ("length", "end", "observed", "source", "row")},
            **{name: _given(getattr(e, name)) for name in ("group", "seed", "options")},
            "splits": {k: v.tolist() for k, v in e.splits.items()},
            "extra": e.extra,
            "id": None if e.id is None else e.id.tobytes().hex(),
            "origin": None if e.origin is None else e.origin.tolist(),
        },
    }  # fmt: skip


def _given(values: Sequence[Any]) -> list[Any]:
    """Return a column of the episode table as a list, empty if it has no values."""
    return [] if isinstance(values, Repeated) else list(values)


def _from_json(d: Mapping[str, Any]) -> WrittenRows:
    e = dict(d["episodes"])
    e["splits"] = {k: np.array(v, bool) for k, v in e["splits"].items()}
    e["id"] = e["id"] and np.frombuffer(bytes.fromhex(e["id"]), np.uint8).reshape(-1, 16)
    e["origin"] = None if e.get("origin") is None else np.array(e["origin"], np.int64)
    # Hashing needs the position alone: the strings before this part come from the parts before it.
    start = RowPosition(d["start"]["rows"], d["start"]["frame_bytes"], {})
    notes = tuple(Note(**n) for n in d["notes"])
    return WrittenRows(start, d["rows"], d["frame_bytes"], d["new_strings"], d["hashes"], EpisodeTable(**e), notes)


# -- shards: parts of one dataset that different machines write


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


def name_attempt() -> str:
    """Return a unique name for this attempt."""
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{secrets.token_hex(2)}"


def finished_parts(job: BuildJob, work: Path, numbers: Collection[int]) -> Finished:
    """Return those of the parts ``numbers`` that some attempt has written in full."""
    return _on_disk(job, work, _shard_records(job, work), numbers)


def listed_parts(job: BuildJob, work: Path) -> set[int]:
    """Return the parts that journals list as finished, without a check of their rows."""
    return {record["part"] for record in _shard_records(job, work)}


def count_shards(work: Path) -> int:
    """Return the number of shards that the latest attempt counted; 0 without an attempt."""
    latest = sorted((work / _SHARD_JOURNALS).glob("*"), key=lambda f: f.stat().st_mtime)
    counts = (str(f.name).partition(".")[0].rpartition("-of-")[2] for f in reversed(latest))
    return next((int(n) for n in counts if n.isdigit()), 0)


def _shard_records(job: BuildJob, work: Path) -> Iterator[Any]:
    for file in sorted((work / _SHARD_JOURNALS).glob("*")):
        yield from Journal(file, job.key).records() or ()


def write_shard(
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
        Called with the numbers of the shard's parts; returns the finished ones, see `finished_parts`.
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
    journal = Journal(work / _SHARD_JOURNALS / f"{shard.number}-of-{shard.count}.{name_attempt()}.jsonl", job.key)
    journal.resume()
    done = there(own)
    for number in done.keys() - listed_parts(job, work):
        journal.add(record(number, *done[number]))

    def tell(note: str = "") -> None:
        progress(Event(job.id, job.stage, f"shard {shard}", len(done), len(own), "parts", note))

    if done:
        tell(f"resumed: {len(done)} of {len(own)} parts of shard {shard} were finished")
    todo = {i: (job.parts[i], work, i) for i in own if i not in done}
    if not todo:
        return done
    check()
    for number, (where, written) in run_items(
        write_part, job, todo, executor(len(todo)), id=job.id, name=job.name, progress=progress
    ):
        journal.add(record(number, where, written))
        done[number] = (where, written)
        tell()
        check()
    return done
