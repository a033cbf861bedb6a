"""Writing all rows of a dataset: part by part, in one process or several, resumed where an earlier run stopped.

::

    <work>/journal.jsonl     finished parts and the hashes of what they wrote
    <work>/dataset/          rows in their place
    <work>/segments/<part>.* rows of a part whose place was not yet known, spliced in at the end

Finished parts of a dataset under construction: one JSON line each, believed only where the rows still hash right.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds_cli import text
from rlds_cli.errors import NoPermission, RldsError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.progress import Event, Progress, Stage
from rlds_cli.store import arrays, files, publishing, rows
from rlds_cli.store.rows import Position, RowWriter, Written
from rlds_cli.store.workers import Executor, Processes, WorkerDied
from rlds_cli.ted import Array, Chunk, EpisodeTable, Field, Note, Part, Repeated

PLACE = "dataset"
FAILED = "failed-episodes"  # the code of notes of episodes that are left out, each one
FAILURES = "errors.jsonl"  # the file in the dataset's directory that lists them
_IN_FLIGHT = 2  # chunks between the reader and the writer


class Job(Protocol):
    """What is to be written. Picklable when more than one process works on it."""

    @property
    def id(self) -> str:
        """The dataset, for progress."""

    @property
    def key(self) -> str:
        """Identifies the work: a journal of another key is not resumed."""

    @property
    def stage(self) -> Stage:
        """What the work is called in progress events."""

    @property
    def schema(self) -> tuple[Field, ...]:
        """The fields."""

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, in order."""

    def read(self, part: Part) -> Iterator[Chunk]:
        """The rows of one part, in order."""

    def name(self, number: int) -> str:
        """How messages call part ``number``."""


@dataclass(frozen=True, slots=True)
class Built:
    """The rows of a dataset, all in their place below ``directory``."""

    directory: Path
    schema: tuple[Field, ...]
    paths: Mapping[str, str]
    end: Position
    episodes: EpisodeTable
    notes: tuple[Note, ...]
    counts: tuple[int, ...] = ()  # episodes of each part


def write_rows(job: Job, work: Path, *, jobs: int, progress: Progress, executor: Executor | None = None) -> Built:
    """Write all parts of ``job`` below ``work``; with the journal there, go on where an earlier run stopped.

    ``executor`` works at it, else ``jobs`` processes; with 0 or 1 this one does. Who it is does not change a byte.
    """
    paths = files.paths(f.name for f in job.schema)
    journal = Journal(work, job.key)
    done = journal.load(work, job.schema, paths)
    _forget_unfinished(work, done)
    tell = _Teller(job, done, progress)
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
    """Return what the tables of the parts took to the system; glibc would keep it, a third of a large table."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _forget_unfinished(work: Path, done: Mapping[int, tuple[str, Written]]) -> None:
    kept = {where for where, _ in done.values()}
    for segment in (work / "segments").glob("*"):
        if f"segments/{segment.name}" not in kept:
            trees.discard(segment)  # a worker that has not heard of the end may still be at it
    if PLACE in kept:
        publishing.unseal(work / PLACE)
    else:
        trees.discard(work / PLACE)


class _Teller:
    """Progress in rows where all parts say how many they have, else in parts."""

    def __init__(self, job: Job, done: Mapping[int, tuple[str, Written]], progress: Progress) -> None:
        self._job, self._progress = job, progress
        known = [p.rows for p in job.parts]
        self._by_rows = None not in known
        self._total = sum(r for r in known if r is not None) if self._by_rows else len(known)
        self._done = sum(w.rows for _, w in done.values()) if self._by_rows else len(done)
        self._failed = sum(n.code == FAILED for _, w in done.values() for n in w.notes)
        if done:
            self._say(0, f"resumed: {len(done)} of {len(known)} parts were there")

    def rows(self, n: int) -> None:
        if self._by_rows:
            self._say(n)

    def part(self, written: Written) -> None:
        if not self._by_rows:
            self._say(1)
        before, self._failed = self._failed, self._failed + sum(n.code == FAILED for n in written.notes)
        if self._failed.bit_length() > before.bit_length():  # at 1, 2, 4, 8, ... of them
            left_out = text.plural(self._failed, "episode")
            self._progress(Event(self._job.id, "note", note=f"{left_out} left out so far: the function failed"))

    def died(self, number: int, how: str) -> None:
        note = f"the process that worked at {self._job.name(number)} {how}; trying again"
        self._progress(Event(self._job.id, "note", note=note))

    def _say(self, n: int, note: str = "") -> None:
        self._done += n
        unit = "rows" if self._by_rows else "parts"
        self._progress(Event(self._job.id, self._job.stage, "", self._done, self._total, unit, note))


def _work_here(job: Job, work: Path, journal: Journal, done: dict[int, tuple[str, Written]], tell: _Teller) -> None:
    position = Position()
    for i, part in enumerate(job.parts):
        if i in done and done[i][0] == PLACE and done[i][1].start.rows != position.rows:
            del done[i]  # written when the parts before it were other
        if i not in done:
            written = _run(job, part, work / PLACE, position, tell)
            journal.record(i, PLACE, written)
            done[i] = (PLACE, written)
            tell.part(written)
        position = _advance(position, done[i][1])


def _work_apart(
    job: Job, work: Path, journal: Journal, done: dict[int, tuple[str, Written]], executor: Executor, tell: _Teller
) -> None:
    starts = _known_starts(job) if executor.in_place else None
    missing = [i for i in range(len(job.parts)) if i not in done]
    todo = {i: (job, job.parts[i], work, i, starts and starts[i]) for i in missing}
    try:
        for i, (where, written) in executor.work_through(write_part, todo, tell.died):
            journal.record(i, where, written)
            done[i] = (where, written)
            tell.rows(written.rows)
            tell.part(written)
    except WorkerDied as e:
        raise RldsError(
            f"{job.id}: the process that worked at {job.name(e.number)} {e.how}, {e.times}. "
            f"{len(done)} of {len(job.parts)} parts are kept.",
            hint="run the same command again: it goes on from there; fewer workers (-j) need less memory",
        ) from e


def _known_starts(job: Job) -> list[int] | None:
    """First rows of the parts, where their sizes are known ahead and nothing of variable size is stored."""
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


def write_part(job: Job, part: Part, work: Path, number: int, start: int | None = None) -> tuple[str, Written]:
    """Write part ``number``; where it was written below ``work``, and what.

    With ``start`` its rows are put in their place, which is that row. Else they go to a directory of their own,
    whoever else may be at the same part: a process thought dead, or the same shard on another machine.
    """
    if start is not None:
        return PLACE, _run(job, part, work / PLACE, Position(start))
    where = f"segments/{number}.{secrets.token_hex(4)}"
    return where, _run(job, part, work / where, Position())


def _run(job: Job, part: Part, directory: Path, start: Position, tell: _Teller | None = None) -> Written:
    """Read one part and write its rows; reading goes on while a thread hashes and writes.

    Not so in one of several processes, which would only take turns: there it would be a tenth of their time.
    """
    paths = files.paths(f.name for f in job.schema)
    with RowWriter(directory, job.schema, paths, start) as writer, _beside() as thread:
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
    """A thread for what can be done beside; None in a process that works for another one."""
    return nullcontext() if parent_process() else ThreadPoolExecutor(1)


def _advance(position: Position, w: Written) -> Position:
    return Position(
        position.rows + w.rows,
        {f: position.frame_bytes.get(f, 0) + n for f, n in w.frame_bytes.items()},
        {f: _merged(position.strings.get(f, []), new) for f, new in w.new_strings.items()},
    )


def _merged(known: list[str], new: list[str]) -> list[str]:
    seen = set(known)
    return [*known, *(s for s in new if s not in seen)]


def assemble(job: Job, work: Path, done: Mapping[int, tuple[str, Written]]) -> Built:
    """All rows in their place, of parts that are ``done``: where each was written below ``work``, and what."""
    paths = files.paths(f.name for f in job.schema)
    position = Position()
    for i in range(len(job.parts)):
        where, written = done[i]
        after = _advance(position, written)
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
        tuple(len(w.episodes) for w in in_order),
    )


def _splice(segment: Path, place: Path, f: Field, path: str, w: Written, before: Position, after: Position) -> None:
    """Copy the rows of a segment to where they belong; text codes and frame offsets are those of the whole."""
    source, target = rows.files(segment, f, path), rows.files(place, f, path)
    for file in target.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    if "offsets" in source:
        base = before.frame_bytes.get(f.name, 0)
        copy_range(source["bytes"], target["bytes"], base, w.frame_bytes[f.name])
        offsets = np.fromfile(source["offsets"], "<i8", w.rows + 1) + base
        _write(target["offsets"], before.rows * 8, offsets)
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


def copy_range(source: Path, target: Path, offset: int, size: int) -> None:
    """Copy the first ``size`` bytes of ``source`` into ``target`` at ``offset``, in the kernel where it can."""
    with source.open("rb") as a, safe_files.updating(target) as b:
        at = 0
        while at < size:
            n = _copy_some(a.fileno(), b.fileno(), size - at, at, offset + at)
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


class Journal:
    """The file ``journal.jsonl`` of a directory; ``key`` says what is being made, and other work is forgotten."""

    def __init__(self, directory: Path, key: str, name: str = "journal.jsonl") -> None:
        self._path = directory / name
        self._key = key

    def begin(self, **about: Any) -> None:
        """Start it anew; ``about`` stands in its first line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.replace_text(self._path, json.dumps({"key": self._key, **about}) + "\n")

    def record(self, part: int, where: str, written: Written) -> None:
        """Add a finished part; ``where`` is its directory relative to the journal's."""
        line = json.dumps({"part": part, "where": where, **_to_json(written)}) + "\n"
        with os.fdopen(safe_files.open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as f:
            f.write(line.encode())

    def load(
        self, directory: Path, schema: Sequence[Field], paths: Mapping[str, str]
    ) -> dict[int, tuple[str, Written]]:
        """The parts that are whole on disk. A journal of other work is started anew."""
        lines = self._lines()
        if not lines or lines[0].get("key") != self._key:
            self.begin()
            return {}
        found: dict[int, tuple[str, Written]] = {}
        for line in lines[1:]:
            written = _from_json(line)
            if rows.rehash(directory / line["where"], schema, paths, written):
                found[line["part"]] = (line["where"], written)
        return found

    def _lines(self) -> list[dict[str, Any]]:
        try:
            with safe_files.updating(self._path) as f:
                data = f.read()
                # A line that a kill cut short is not there; whatever follows would be glued to it.
                whole = data[: data.rfind(b"\n") + 1]
                f.truncate(len(whole))
        except FileNotFoundError:
            return []
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            return []


def read(path: Path) -> tuple[dict[str, Any], list[tuple[int, str, Written]]]:
    """A journal that another process may be writing: its first line, and the parts that it says are finished."""
    try:
        with safe_files.reading(path) as f:
            text = f.read().decode()
        head, *lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return head, [(line["part"], line["where"], _from_json(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, NoPermission):
        return {}, []  # it is just beginning, or gone


def _to_json(w: Written) -> dict[str, Any]:
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
        },
    }  # fmt: skip


def _given(values: Sequence[Any]) -> list[Any]:
    """A column of the episode table; empty where it has no values."""
    return [] if isinstance(values, Repeated) else list(values)


def _from_json(d: Mapping[str, Any]) -> Written:
    e = dict(d["episodes"])
    e["splits"] = {k: np.array(v, bool) for k, v in e["splits"].items()}
    # The strings before this part are those of the parts before it; only the position matters for hashing.
    start = Position(d["start"]["rows"], d["start"]["frame_bytes"], {})
    notes = tuple(Note(**n) for n in d["notes"])
    return Written(start, d["rows"], d["frame_bytes"], d["new_strings"], d["hashes"], EpisodeTable(**e), notes)
