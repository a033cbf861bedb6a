"""Rows of an archive as they are stored: parts of it, with frames decoded or resized.

Another process calls `write` and `metadata`, since they read files of strangers (`files.child`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from pathlib import Path

import numpy as np

from rlds_cli import archives
from rlds_cli.archives import Plan, Replan, answers
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import child
from rlds_cli.base.progress import Stage
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.base.workers import Died
from rlds_cli.errors import ArchiveError, CorruptArchive, InvalidEpisode
from rlds_cli.make.convert.decoding import decode_chunks, decoded_field
from rlds_cli.store import Built, Work
from rlds_cli.ted import Chunk, Column, EncodedFrames, Field, Note, Part, VideoFrames

ANSWERS = answers(*Built.types())


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """A planned archive as a job of ``store.work``."""

    id: str
    plan: Plan
    key: str
    frames: str = "encoded"
    portion: Subset = EVERYTHING
    stage: Stage = "convert"

    @property
    def schema(self) -> tuple[Field, ...]:
        """The planned fields, with frames as they are stored."""
        return tuple(decoded_field(f, self.frames) for f in self.plan.schema)

    @property
    def parts(self) -> Sequence[Part]:
        """The planned parts; one for the whole archive if the request selects episodes by number."""
        if self.portion.episodes is not None:
            return (Part(None, {}),)
        return [replace(p, rows=None) for p in self.plan.parts] if self.portion.cuts else self.plan.parts

    def read(self, part: Part) -> Iterator[Chunk]:
        """Read the rows of one part with the family's reader."""
        parts = (part,) if self.portion.episodes is None else self.plan.parts
        try:
            chunks: Iterator[Chunk] = chain.from_iterable(
                archives.reader(self.plan.reader).read(self.plan, p) for p in parts
            )
            chunks = trimmed(chunks, self.portion)
            if self.frames != "encoded":
                chunks = decode_chunks(chunks, self.plan.schema, self.frames, self.plan.archive.root)
            yield from chunks
        except InvalidEpisode as e:
            raise ArchiveError(f"{self.id}: {e.message}", hint=e.hint) from e

    def name(self, number: int) -> str:
        """Return the name of a part for messages."""
        return f"part {number + 1:,} of {len(self.parts):,}"


def write(job: ArchiveJob, work: Path, jobs: int) -> Built | Plan:
    """Write the rows of an archive below ``work``, as `store.work.Work.run`; return a better plan if there is one.

    Raises
    ------
    CorruptArchive
        Besides errors of the reader: worker processes crashed.
    """
    try:
        return Work(job, work).run(jobs=jobs, progress=child.tell)
    except Replan as better:
        return better.plan
    except Died as e:
        raise CorruptArchive(f"{named(job.plan)}: {e.message}", hint=e.hint) from e


def named(plan: Plan) -> str:
    """Return the first file of an archive, and the number of the others."""
    files = plan.archive.files
    return f"{files[0]}{f' and {len(files) - 1:,} more' if len(files) > 1 else ''}"


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Yield the values of an archive that are not per row."""
    return archives.reader(plan.reader).metadata(plan)


def never_written(plan: Plan) -> Sequence[Note]:
    """Return the note about chunks that were never written."""
    return plan.archive.never_written()


def trimmed(chunks: Iterator[Chunk], portion: Subset) -> Iterator[Chunk]:
    """Keep only the episodes of the portion: those of its split, and of these the ones in its range.

    Reading stops at the end of the range. The split of an episode is known at its end, so a split keeps the rows of one
    episode in memory.
    """
    if portion.split is not None:
        chunks = of_split(chunks, portion.split)
    if portion.episodes is not None:
        chunks = of_range(chunks, *portion.episodes)
    return chunks


def of_range(chunks: Iterator[Chunk], start: int, stop: int | None) -> Iterator[Chunk]:
    """Keep episodes ``start`` up to ``stop``, counted from 0."""
    done = 0
    for chunk in chunks:
        episode: IntArray = done + np.cumsum(chunk.last) - chunk.last
        ended = np.arange(done, done + len(chunk.episodes))
        last = np.inf if stop is None else stop
        yield _cut(chunk, (episode >= start) & (episode < last), (ended >= start) & (ended < last))
        done += len(chunk.episodes)
        if done >= last:
            return


def of_split(chunks: Iterator[Chunk], split: str) -> Iterator[Chunk]:
    """Keep the episodes of a split. Every chunk keeps the names of all splits, even without episodes."""
    begun: list[Chunk] = []  # rows of the episode that is not complete
    for chunk in chunks:
        episode: IntArray = np.cumsum(chunk.last) - chunk.last
        wanted = chunk.episodes.splits.get(split, np.zeros(len(chunk.episodes), bool))
        none = np.zeros(len(wanted), bool)
        if len(wanted):
            yield from begun if wanted[0] else ()
            begun = []
        yield _cut(chunk, np.append(wanted, False)[episode], wanted)
        begun.append(replace(_cut(chunk, episode == len(wanted), none), notes=()))


def _cut(chunk: Chunk, rows: BoolArray, episodes: BoolArray) -> Chunk:
    """Select rows and episodes of a chunk."""
    if rows.all() and episodes.all():
        return chunk
    columns = {name: _taken(column, rows) for name, column in chunk.columns.items()}
    return Chunk(columns, chunk.last[rows], chunk.episodes.take(np.flatnonzero(episodes)), chunk.notes)


def _taken(column: Column, rows: BoolArray) -> Column:
    if isinstance(column, list):
        return list(compress(column, rows))
    if isinstance(column, VideoFrames):
        return VideoFrames(column.files, column.index[rows])
    if isinstance(column, EncodedFrames):
        kept: Array = np.repeat(rows, column.lengths)
        return EncodedFrames(column.data[kept], column.lengths[rows], column.shape, column.codec, column.dtype)
    taken: Array = column[rows]
    return taken
