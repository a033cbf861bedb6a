"""The directory in which the parts of a dataset are written: by one process or several, machines, and plans.

Runs can be resumed::

    <work>/journal.jsonl     finished parts and the hashes of what they wrote
    <work>/dataset/          rows in their place
    <work>/segments/<part>.* rows of a part whose place was not yet known, spliced in at the end

A journal has a record of each finished part, which counts only if the rows on disk still have its hashes.

Several processes, on any machines and at any times, may each write a shard of the parts in a shared directory::

    <work>/journals/2-of-4.node7-311-9c.jsonl    parts that one attempt at shard 2 of 4 has finished
    <work>/segments/17.9f3c51ab/                 the rows of part 17, as one attempt wrote them

No two processes ever write the same file, and no harm is done if two attempts write the same part.

Where a later plan writes more fields than an earlier one, finished parts are completed by rows of the source.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli.base import text
from rlds_cli.base.files import arrays, publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import attempt
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.workers import Executor, Processes, run_items
from rlds_cli.store import rows
from rlds_cli.store.build import BuildJob, Built, write_chunks, write_part
from rlds_cli.store.parts import JOURNAL, PLACE, Finished, copy_range, on_disk, record, splice
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter, WrittenRows
from rlds_cli.ted import Chunk, EpisodeTable, Field, Note

_OFTEN, _TIMES = 0.1, 32  # rows are reported after so many seconds, or so many times
_JOURNALS = "journals"
SourceRows = Callable[[int, Sequence[Field]], Iterator[Chunk]]  # of a part, for some fields


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


@dataclass(frozen=True, slots=True)
class Work:
    """Parts of a job that are written below ``path``; `run` writes all of them, `write_shard` those of a shard."""

    job: BuildJob
    path: Path

    def run(self, *, jobs: int = 0, executor: Executor | None = None, progress: Progress) -> Built:
        """Write all parts. A journal says which of them an earlier run has finished.

        The parts are written by ``executor`` if there is one, else by ``jobs`` processes, or by this process if
        ``jobs`` is 0 or 1. The bytes are the same in all three cases.
        """
        job = self.job
        journal = Journal(self.path / JOURNAL, job.key)
        done = on_disk(self.path, job.schema, reversed(journal.resume()), range(len(job.parts)))
        self._forget_unfinished(done)
        tell = _BuildProgress(job, range(len(job.parts)), done, progress)
        left = len(job.parts) - len(done)
        if executor is None and jobs > 1 and left > 1:
            executor = Processes(min(jobs, left))
        if executor is not None and left:
            self._work_apart(journal, done, executor, tell)
        else:
            self._work_here(journal, done, tell)
        built = self.assemble(done)
        done.clear()
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)  # glibc would keep about a third of the memory of the parts' tables
        return built

    def finished(self, numbers: Collection[int]) -> Finished:
        """Return those of the parts ``numbers`` that some attempt at a shard has written in full."""
        return on_disk(self.path, self.job.schema, self._records(), numbers)

    def listed(self) -> set[int]:
        """Return the parts that journals of shards list as finished, without a check of their rows."""
        return {record["part"] for record in self._records()}

    def assemble(self, done: Finished) -> Built:
        """Put the rows of all parts in their place; ``done`` has each part's directory below `path` and its rows."""
        job, place = self.job, self.path / PLACE
        if all(where != PLACE for where, _ in done.values()):
            trees.discard(place)  # of a run that was interrupted in here
        paths = assign_paths(f.name for f in job.schema)
        position = RowPosition()
        for i in range(len(job.parts)):
            where, written = done[i]
            after = position.behind(written)
            if where != PLACE:
                for f in job.schema:
                    splice(self.path / where, place, f, paths[f.name], written, position, after)
            position = after
        in_order = [done[i][1] for i in range(len(job.parts))]
        return Built(
            directory=place,
            schema=job.schema,
            paths=paths,
            end=position,
            episodes=EpisodeTable.concat([w.episodes for w in in_order]),
            notes=tuple(n for w in in_order for n in w.notes),
        )

    def _records(self) -> Iterator[Any]:
        for file in sorted((self.path / _JOURNALS).glob("*")):
            yield from Journal(file, self.job.key).records() or ()

    @staticmethod
    def count_shards(path: Path) -> int:
        """Return the number of shards that the latest attempt counted; 0 without an attempt."""
        latest = sorted((path / _JOURNALS).glob("*"), key=lambda f: f.stat().st_mtime)
        counts = (str(f.name).partition(".")[0].rpartition("-of-")[2] for f in reversed(latest))
        return next((int(n) for n in counts if n.isdigit()), 0)

    def count_journaled(self) -> int:
        """Return the number of parts that `run` has finished, by its journal."""
        try:
            return max(0, (self.path / JOURNAL).read_text().count("\n") - 1)
        except OSError:
            return 0

    def write_shard(
        self,
        shard: Shard,
        *,
        finished: Callable[[Collection[int]], Finished],
        executor: Callable[[int], Executor | None],
        progress: Progress,
        check: Callable[[], None],
    ) -> Finished:
        """Write the missing parts of a shard, and return all its parts.

        Parameters
        ----------
        finished : callable
            Called with the numbers of the shard's parts; returns the finished ones, as `Work.finished` does.
        executor : callable
            Called with the number of parts to write; returns the executor that writes them, or None for this process.
        check : callable
            Called before each part; an error that it raises ends the work.

        Raises
        ------
        RldsError
            A worker died again and again.
        """
        job, own = self.job, shard.parts(len(self.job.parts))
        journal = Journal(self.path / _JOURNALS / f"{shard.number}-of-{shard.count}.{attempt()}.jsonl", job.key)
        journal.resume()
        done = finished(own)
        for number in done.keys() - self.listed():
            journal.add(record(number, *done[number]))
        tell = _BuildProgress(job, own, done, progress, what=f"shard {shard}")
        todo = {i: (job.parts[i], self.path, i) for i in own if i not in done}
        if not todo:
            return done
        check()
        for number, (where, written) in run_items(
            write_part, job, todo, executor(len(todo)), id=job.id, name=job.name, progress=progress
        ):
            journal.add(record(number, where, written))
            done[number] = (where, written)
            tell.rows(written.rows)
            tell.part(written)
            check()
        return done

    def take_over(
        self, earlier: Work, number: int, done: tuple[str, WrittenRows], source: SourceRows
    ) -> tuple[str, WrittenRows]:
        """Complete part ``number``, which an earlier plan has written to a directory of its own; return the same here.

        Parameters
        ----------
        earlier : Work
        number : int
        done : str, WrittenRows
            The directory below the earlier work, and what was written there.
        source : callable
            Yields the rows that a part lacks.
        """
        from rlds_cli.store import sharing

        where, written = done
        to = _segment(number)
        paths = assign_paths(f.name for f in self.job.schema)
        for f in earlier.job.schema:
            for file in rows.files(earlier.path / where, f, paths[f.name]).values():
                directory = file.parent.relative_to(earlier.path / where)
                target = self.path / to / directory
                sharing.share_tree(file.parent, target, within=self.path, sealed=False)
        return to, self._completed(number, to, written, RowPosition(), source)

    def carry_over(self, earlier: BuildJob, source: SourceRows) -> int:
        """Complete the finished parts of an earlier plan, which `run` wrote here, and journal them anew.

        Returns
        -------
        int
            The number of these parts.
        """
        before = Work(earlier, self.path)
        records = Journal(self.path / JOURNAL, earlier.key).records() or []
        done = on_disk(self.path, earlier.schema, reversed(records), range(len(earlier.parts)))
        journal = Journal(self.path / f"next-{JOURNAL}", self.job.key)
        journal.path.unlink(missing_ok=True)  # of an earlier attempt, whose segments may be gone
        journal.resume()
        position: RowPosition | None = RowPosition()  # behind the parts so far; None behind one that is not finished
        kept = 0
        for number in range(len(self.job.parts)):
            if number not in done:
                position = None
                continue
            where, written = done[number]
            if where != PLACE:
                where, written = self.take_over(before, number, done[number], source)
            elif position is not None and written.start.rows == position.rows:
                written = self._completed(number, PLACE, written, position, source)
            elif all(f.kind == "array" for f in earlier.schema):
                where = self._moved(earlier, number, written)
                written = self._completed(number, where, written, RowPosition(), source)
            else:
                position = None
                continue
            journal.add(record(number, where, written))
            position = None if position is None else position.behind(written)
            kept += 1
        journal.path.replace(self.path / JOURNAL)
        return kept

    def _moved(self, earlier: BuildJob, number: int, written: WrittenRows) -> str:
        """Copy a part whose rows lie at their place in the dataset to a directory of its own: others may move it."""
        where = _segment(number)
        paths = assign_paths(f.name for f in self.job.schema)
        for f in earlier.schema:
            source, target = (rows.files(self.path / d, f, paths[f.name])["rows"] for d in (PLACE, where))
            safe_files.make(target.parent.parent)
            target.parent.mkdir(safe_files.DIRECTORY)
            target.touch()
            width = arrays.row_bytes((0, *f.shape), f.dtype)
            copy_range(source, target, 0, written.rows * width, start=written.start.rows * width)
        return where

    def _completed(
        self, number: int, where: str, written: WrittenRows, start: RowPosition, source: SourceRows
    ) -> WrittenRows:
        """Write the rows that a part lacks from ``start`` on, and return all its rows."""
        lacking = [f for f in self.job.schema if f.name not in written.hashes]
        paths = assign_paths(f.name for f in self.job.schema)
        with RowWriter(self.path / where, lacking, paths, start) as writer:
            for chunk in source(number, lacking):
                writer.append(chunk)
            more = writer.written()
        return replace(
            written,
            start=start,
            frame_bytes=written.frame_bytes | more.frame_bytes,
            new_strings=written.new_strings | more.new_strings,
            hashes=written.hashes | more.hashes,
        )

    def _forget_unfinished(self, done: Finished) -> None:
        kept = {where for where, _ in done.values()}
        for segment in (self.path / "segments").glob("*"):
            if f"segments/{segment.name}" not in kept:
                trees.discard(segment)  # a worker that does not know of the end yet may still write there
        if PLACE in kept:
            publishing.unseal(self.path / PLACE)
        else:
            trees.discard(self.path / PLACE)

    def _work_here(self, journal: Journal, done: Finished, tell: _BuildProgress) -> None:
        position = RowPosition()
        for i, part in enumerate(self.job.parts):
            if i in done and done[i][0] == PLACE and done[i][1].start.rows != position.rows:
                del done[i]  # written behind other parts than those that precede it now
            if i not in done:
                written = write_chunks(self.job, part, self.path, PLACE, position, tell.rows)
                journal.add(record(i, PLACE, written))
                done[i] = (PLACE, written)
                tell.part(written)
            position = position.behind(done[i][1])

    def _work_apart(self, journal: Journal, done: Finished, executor: Executor, tell: _BuildProgress) -> None:
        job = self.job
        starts = _known_starts(job) if executor.in_place else None
        todo = {i: (p, self.path, i, starts and starts[i]) for i, p in enumerate(job.parts) if i not in done}
        for i, (where, written) in run_items(
            write_part, job, todo, executor, id=job.id, name=job.name, progress=tell.progress
        ):
            journal.add(record(i, where, written))
            done[i] = (where, written)
            tell.rows(written.rows)
            tell.part(written)


class _BuildProgress:
    """Reports progress in rows. Their total is known from the start, or with the last part."""

    def __init__(
        self, job: BuildJob, own: Sequence[int], done: Finished, progress: Progress, *, what: str = ""
    ) -> None:
        self._job, self.progress, self._what = job, progress, what
        known = [job.parts[i].rows for i in own]
        self._total = None if None in known else sum(r for r in known if r is not None)
        self._parts, self._finished, self._said_at = len(own), len(done), -_OFTEN
        self._done = self._said_rows = sum(w.rows for _, w in done.values())
        self._failed = sum(n.code == Note.FAILED for _, w in done.values() for n in w.notes)
        if done:
            of = f" of {what}" if what else ""
            self._say(f"resumed: {len(done)} of {len(own)} parts{of} were finished")

    def rows(self, n: int) -> None:
        """Report more rows, but not of each of many small pieces: telling another process of them takes time."""
        self._done += n
        now, total = time.monotonic(), self._total or 0
        few = (self._done - self._said_rows) * _TIMES < total
        if self._done < total and few and now - self._said_at < _OFTEN:
            return
        self._said_at, self._said_rows = now, self._done
        self._say()

    def part(self, written: WrittenRows) -> None:
        self._finished += 1
        if self._total is None:  # it may be known now
            self._say()
        before, self._failed = self._failed, self._failed + sum(n.code == Note.FAILED for n in written.notes)
        if self._failed.bit_length() > before.bit_length():  # at 1, 2, 4, 8, ... of them
            left_out = text.plural(self._failed, "episode")
            self.progress(Event(self._job.id, "note", note=f"{left_out} left out so far: the function failed"))

    def _say(self, note: str = "") -> None:
        total, beside = self._total, ""
        if total is None and self._finished == self._parts:
            total = self._done
        elif total is None and self._parts > 1:
            beside = f"{self._finished:,} of {text.plural(self._parts, 'part')}"
        self.progress(
            Event(self._job.id, self._job.stage, self._what, self._done, total, "rows", note, "" if note else beside)
        )


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


def _segment(number: int) -> str:
    """Return the name of a directory for a part that no other attempt has."""
    return f"segments/{number}.{secrets.token_hex(4)}"
