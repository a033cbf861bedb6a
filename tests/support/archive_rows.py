"""Everything that a reader gives for some files, joined, with the promises of every reader checked on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import Archive, Replan, reader
from rlds_cli.ted import EncodedFrames, EpisodeTable, Note


class Rows:
    """The rows of an archive by field, its episodes and notes.

    ``rows["action"]`` is a column of the store; ``rows.of(3, "action")`` are the T steps of episode 3, or its T+1 rows
    where the field is placed ``both``.
    """

    def __init__(self, name: str, *files: Path, root: Path | None = None, **about: Any) -> None:
        module = reader(name)
        self.plan = module.plan(Archive(root or files[0].parent, files, **about))
        try:
            parts = [[*module.read(self.plan, part)] for part in self.plan.parts]
        except Replan as better:
            self.plan = better.plan
            parts = [[*module.read(self.plan, part)] for part in self.plan.parts]
        for part, chunks in zip(self.plan.parts, parts, strict=True):
            assert part.rows in (None, sum(map(len, chunks)))
        self.chunks = [c for of_part in parts for c in of_part]
        self.schema = {f.name: f for f in self.plan.schema}
        self.episodes = EpisodeTable.concat([c.episodes for c in self.chunks])
        self.notes = Note.merged((*self.plan.notes, *(n for c in self.chunks for n in c.notes)))
        for c in self.chunks:
            assert set(c.columns) == set(self.schema)
            assert {len(v) for v in c.columns.values()} == {len(c.last)}
        last = np.concatenate([c.last for c in self.chunks]) if self.chunks else np.zeros(0, bool)
        assert np.flatnonzero(last).tolist() == (np.cumsum(self.episodes.length + 1) - 1).tolist()
        self.metadata = dict(module.metadata(self.plan))

    def __getitem__(self, name: str) -> Any:
        columns = [c.columns[name] for c in self.chunks]
        f = self.schema[name]
        if f.kind == "text":
            return [v for c in columns for v in c]
        if f.kind == "frames":
            return [frame for c in columns for frame in _frames(c)]
        joined = np.concatenate(columns)
        assert joined.dtype == f.dtype and joined.shape[1:] == f.shape
        return joined

    def of(self, episode: int, name: str) -> Any:
        start, length = int(self.episodes.start[episode]), int(self.episodes.length[episode])
        return self[name][start : start + length + (self.schema[name].placement == "both")]

    @property
    def codes(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for n in self.notes:
            found[n.code] += n.count
        return dict(found)


def _frames(column: EncodedFrames) -> list[bytes]:
    stops = np.cumsum(column.lengths)
    return [column.data[a:b].tobytes() for a, b in zip(stops - column.lengths, stops, strict=True)]
