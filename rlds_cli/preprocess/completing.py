"""Say which parts of an earlier plan are kept, and what completes them: fields that it shared with the source.

When an episode contradicts the plan, a later plan writes fields that were to be shared. The finished parts lack only
rows that equal those of the source, so `store.work.Work` copies these, and the function does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.reading import SourceReader
from rlds_cli.preprocess.task import BLOCK_BYTES
from rlds_cli.store import assign_paths
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


def source_rows(job: PreprocessJob) -> Callable[[int, Sequence[Field]], Iterator[Chunk]]:
    """Return a function that yields the rows of the source for a part and some fields, block by block."""

    def read(number: int, fields: Sequence[Field]) -> Iterator[Chunk]:
        reader = SourceReader(job.task.dataset)
        first, last = job.parts[number].args["first"], job.parts[number].args["last"]
        row, end = reader.start(first), reader.start(last - 1) + reader.length(last - 1) + 1
        at_once = max(1, BLOCK_BYTES // max(1, sum(f.row_bytes for f in fields)))
        for a in range(row, end, at_once):
            b = min(a + at_once, end)
            columns = {f.name: reader.column(f.name, [(a, b)]) for f in fields}
            yield Chunk(columns, np.zeros(b - a, bool), EpisodeTable.empty())

    return read
