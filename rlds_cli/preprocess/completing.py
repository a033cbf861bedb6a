"""Keep the parts that an earlier plan has finished: complete them with the fields that it shared with the source.

When an episode contradicts the plan, a later plan writes fields that were to be shared. The finished parts lack only
rows that equal those of the source, so these are copied, and the function does not run again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.journal import Journal
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.reading import SourceReader
from rlds_cli.preprocess.task import BLOCK_BYTES
from rlds_cli.store import arrays, build, publishing, rows
from rlds_cli.store.build import JOURNAL, PLACE
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter, WrittenRows
from rlds_cli.ted import Chunk, EpisodeTable, Field


def can_complete(before: PreprocessJob, now: PreprocessJob) -> bool:
    """Return whether parts of the plan ``before`` can be completed: they lack only fields equal to the source."""
    schema, written = now.task.dataset.schema, {f.name: f for f in before.schema}
    paths, ours = (assign_paths(f.name for f in j.schema) for j in (before, now))
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
    before: PreprocessJob, now: PreprocessJob, number: int, segment: Path, written: WrittenRows, work: Path
) -> tuple[str, WrittenRows]:
    """Complete part ``number``, written to ``segment`` by an earlier plan, and return it as `build.write_part` does."""
    where = f"segments/{number}.{secrets.token_hex(4)}"
    paths = assign_paths(f.name for f in now.schema)
    for f in before.schema:
        for file in rows.files(segment, f, paths[f.name]).values():
            directory = file.parent.relative_to(segment)
            publishing.share_tree(segment / directory, work / where / directory, within=work, sealed=False)
    return where, _completed(now, number, work / where, written, RowPosition())


def carry_over(before: PreprocessJob, now: PreprocessJob, work: Path) -> int:
    """Complete the finished parts of the plan ``before`` in ``work``, and journal them as parts of the plan ``now``.

    Returns
    -------
    int
        The number of these parts.
    """
    done = build.journaled_parts(before, work)
    journal = Journal(work / f"next-{JOURNAL}", now.key)
    journal.path.unlink(missing_ok=True)  # of an earlier attempt, whose segments may be gone
    journal.resume()
    position: RowPosition | None = RowPosition()  # behind the parts so far; None behind one that is not finished
    kept = 0
    for number in range(len(now.parts)):
        where, written = done.get(number, ("", None))
        if written is None:
            position = None
            continue
        if where != PLACE:
            where, written = complete(before, now, number, work / where, written, work)
        elif position is not None and written.start.rows == position.rows:
            written = _completed(now, number, work / PLACE, written, position)
        elif all(f.kind == "array" for f in before.schema):
            where, written = _moved(before, now, number, written, work)
        else:
            position = None
            continue
        journal.add(build.record(number, where, written))
        position = None if position is None else build.advance(position, written)
        kept += 1
    journal.path.replace(work / JOURNAL)
    return kept


def _moved(
    before: PreprocessJob, now: PreprocessJob, number: int, written: WrittenRows, work: Path
) -> tuple[str, WrittenRows]:
    """Complete a part whose rows lie at their place in the dataset in a directory of its own: others may move it."""
    where = f"segments/{number}.{secrets.token_hex(4)}"
    paths = assign_paths(f.name for f in now.schema)
    for f in before.schema:
        source, target = (rows.files(work / d, f, paths[f.name])["rows"] for d in (PLACE, where))
        safe_files.make(target.parent.parent)
        target.parent.mkdir(safe_files.DIRECTORY)
        target.touch()
        width = arrays.row_bytes((0, *f.shape), f.dtype)
        build.copy_range(source, target, 0, written.rows * width, start=written.start.rows * width)
    return where, _completed(now, number, work / where, written, RowPosition())


def _completed(
    job: PreprocessJob, number: int, directory: Path, written: WrittenRows, start: RowPosition
) -> WrittenRows:
    """Write the rows that a part in ``directory`` lacks from ``start`` on, and return all its rows."""
    lacking = [f for f in job.schema if f.name not in written.hashes]
    paths = assign_paths(f.name for f in job.schema)
    with RowWriter(directory, lacking, paths, start) as writer:
        for chunk in _source_rows(job, number, lacking):
            writer.append(chunk)
        more = writer.written()
    return WrittenRows(
        start,
        written.rows,
        written.frame_bytes | more.frame_bytes,
        written.new_strings | more.new_strings,
        written.hashes | more.hashes,
        written.episodes,
        written.notes,
    )


def _source_rows(job: PreprocessJob, number: int, fields: Sequence[Field]) -> Iterator[Chunk]:
    """Yield the rows of the source for a part and some fields, block by block."""
    reader = SourceReader(job.task.dataset)
    first, last = job.parts[number].args["first"], job.parts[number].args["last"]
    row, end = reader.start(first), reader.start(last - 1) + reader.length(last - 1) + 1
    at_once = max(1, BLOCK_BYTES // max(1, sum(f.row_bytes for f in fields)))
    for a in range(row, end, at_once):
        b = min(a + at_once, end)
        columns = {f.name: reader.column(f.name, [(a, b)]) for f in fields}
        yield Chunk(columns, np.zeros(b - a, bool), EpisodeTable.empty())
