"""Parts that were written as an earlier plan had it, completed to what the present one asks for.

A later episode shows that not all of them stay, or that a field does change: then fields that were to be shared with
the source must be written after all. In parts that are finished they are the source's rows, and are copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.reading import Reader
from rlds_cli.preprocess.task import BLOCK_BYTES, Task
from rlds_cli.store import names, rows, sharing
from rlds_cli.store.rows import Position, RowWriter, Written
from rlds_cli.ted import Chunk, EpisodeTable, Field


def fits(before: PreprocessJob, now: PreprocessJob) -> bool:
    """Whether parts of the plan ``before`` can be completed: what they lack are fields as the source has them."""
    schema, written = now.task.dataset.schema, {f.name: f for f in before.schema}
    paths, ours = (names.paths(f.name for f in j.schema) for j in (before, now))
    return (
        before.plan.linked
        and [p.args for p in before.parts] == [p.args for p in now.parts]
        and written.keys() <= ours.keys()
        and before.plan.apart == now.plan.apart
        and {f.name for f in before.plan.schema} == {f.name for f in now.plan.schema}
        and all(
            written[f.name] == f and paths[f.name] == ours[f.name]
            if f.name in written
            else f.name in before.plan.same and schema[f.name] == f
            for f in now.schema
        )
    )


def complete(
    before: PreprocessJob, now: PreprocessJob, number: int, segment: Path, written: Written, work: Path
) -> tuple[str, Written]:
    """Part ``number``, of which ``segment`` holds the fields of the plan before; as `build.write_part` would say it."""
    where = f"segments/{number}.{secrets.token_hex(4)}"
    paths = names.paths(f.name for f in now.schema)
    for f in before.schema:
        for file in rows.files(segment, f, paths[f.name]).values():
            directory = file.parent.relative_to(segment)
            sharing.share_tree(segment / directory, work / where / directory, within=work, sealed=False)
    lacking = [f for f in now.schema if f.name not in written.hashes]
    with RowWriter(work / where, lacking, paths, Position()) as writer:
        for chunk in _rows(now.task, lacking, number, now):
            writer.append(chunk)
        more = writer.written()
    return where, Written(
        Position(),
        written.rows,
        written.frame_bytes | more.frame_bytes,
        written.new_strings | more.new_strings,
        written.hashes | more.hashes,
        written.episodes,
        written.notes,
    )


def _rows(task: Task, fields: list[Field], number: int, job: PreprocessJob) -> Iterator[Chunk]:
    """The source's rows of a part, of these fields, block by block."""
    reader = Reader(task.dataset)
    first, last = job.parts[number].args["first"], job.parts[number].args["last"]
    row, end = reader.start(first), reader.start(last - 1) + reader.length(last - 1) + 1
    at_once = max(1, BLOCK_BYTES // max(1, sum(f.row_bytes for f in fields)))
    for a in range(row, end, at_once):
        b = min(a + at_once, end)
        columns = {f.name: reader.column(f.name, [(a, b)]) for f in fields}
        yield Chunk(columns, np.zeros(b - a, bool), EpisodeTable.empty())
