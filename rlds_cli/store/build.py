"""Write parts of a dataset, and describe what was written; `work` says which parts, and puts their rows in place."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Protocol

from rlds_cli.base.progress import Stage
from rlds_cli.errors import RldsError
from rlds_cli.store.parts import FILMS, PLACE
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter, WrittenRows
from rlds_cli.ted import Chunk, EpisodeTable, Field, Note, Part

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
        """Return the same, with places as `Work.run` writes a schema below ``work``, whatever this one says."""
        paths = assign_paths(f.name for f in schema)
        return replace(self, directory=work / PLACE, schema=schema, paths=paths)

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """Return the types that one consists of, for a process that hands it on."""
        return cls, RowPosition, EpisodeTable

    def made_video(self, name: str) -> Path:
        """Return the file of a video that a part has written, and that is in no other file."""
        return self.directory.parent / FILMS / name


def write_part(job: BuildJob, part: Part, work: Path, number: int, start: int | None = None) -> tuple[str, WrittenRows]:
    """Write part ``number``, and return its directory below ``work`` and the rows written.

    With ``start`` the rows go to their place, from that row on. Otherwise they go to a directory of their own, since
    others may write the same part: a process that was thought dead, or the same shard on another machine.
    """
    if start is not None:
        return PLACE, write_chunks(job, part, work, PLACE, RowPosition(start))
    where = f"segments/{number}.{secrets.token_hex(4)}"
    return where, write_chunks(job, part, work, where, RowPosition())


def write_chunks(
    job: BuildJob, part: Part, work: Path, where: str, start: RowPosition, tell: Callable[[int], None] | None = None
) -> WrittenRows:
    """Read one part and write its rows; a thread hashes and writes while reading continues.

    ``tell`` is called with the rows of each chunk.

    One of several worker processes does without the thread: taking turns would cost it a tenth of its time.
    """
    paths = assign_paths(f.name for f in job.schema)
    beside: AbstractContextManager[ThreadPoolExecutor | None] = (
        nullcontext() if parent_process() else ThreadPoolExecutor(1)
    )
    with RowWriter(work / where, job.schema, paths, start, work / FILMS) as writer, beside as thread:
        pending: deque[Future[None]] = deque()
        for chunk in job.read(part):
            if thread is None:
                writer.append(chunk)
            else:
                pending.append(thread.submit(writer.append, chunk))
            if len(pending) > _IN_FLIGHT:
                pending.popleft().result()
            if tell is not None:
                tell(len(chunk))
        for future in pending:
            future.result()
        written = writer.written()
    if part.rows is not None and written.rows != part.rows:
        raise RldsError(f"{job.id}: a part gave {written.rows:,} rows; {part.rows:,} were planned.")
    return written
