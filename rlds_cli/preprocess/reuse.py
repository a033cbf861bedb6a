"""Take over results of an earlier run: of episodes that a growing dataset had already.

The result of a function of whole episodes depends on the episode alone and its columns, which a digest identifies:
that of the episode, its id and place in the archive, and the user's columns. Numbers of episodes and of their first
rows, which other versions have others of, belong to it where the function has read them. The
result of a function of steps, batches or windows depends on the call, which begins with the episodes before it: so a
beginning that both versions have in common is taken over, up to the last call that is the same.

A result has, in its metadata, the digest of the source's episode that each of its episodes was made of. Which number an
episode has in the source says nothing: a function may leave out episodes, or make several of one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.dataset import Dataset, Rows
from rlds_cli.preprocess import builtin
from rlds_cli.preprocess.plan import WritePlan
from rlds_cli.preprocess.reading import runs
from rlds_cli.preprocess.task import Task
from rlds_cli.store import Manifest, Store, StoredDataset, open_store
from rlds_cli.ted import Chunk, Column, EpisodeTable, Note

# In the metadata of a result, one of them: digests of the episodes that its episodes were made of.
DIGESTS, WITH_NUMBERS = "source_episodes", "numbered_source_episodes"
BY_NUMBER = Note("by-number", "the function has read numbers of episodes")  # of a part of a job
_CHUNK_BYTES = 4 << 20
Digests = npt.NDArray[np.uint8]  # [episodes, 32]


def digests_of(task: Task, *, numbers: bool) -> Digests:
    """Return the digests of the episodes of a task, whose dataset grows; with their ``numbers`` or without."""
    store = task.dataset.store
    own = {name: store.own_column(name).scalars() for name in sorted(store.own_columns)}
    e, groups = store.episodes, store.table.episode_strings("group")

    def digest(k: int) -> bytes:
        columns = {name: values[k] for name, values in own.items() if values[k] is not None}
        place = [groups[k], int(e["source"][k]), int(e["row"][k]), *((k, int(e["start"][k])) if numbers else ())]
        rows = bytes.fromhex(store.table.name_of(k)) + e["id"][k].tobytes()
        return hashlib.sha256(rows + json.dumps([place, columns]).encode()).digest()

    found = b"".join(map(digest, task.dataset.episodes.index.tolist()))
    return np.frombuffer(found, np.uint8).reshape(-1, 32)


@dataclass(frozen=True)
class Reuse:
    """Results that are taken over: for each episode the number of its result in the dataset ``path``, or -1.

    ``by_number`` is True if the function has read numbers of episodes.
    """

    path: Path
    version: int
    index: IntArray
    by_number: bool

    @property
    def count(self) -> int:
        """Number of episodes whose results are taken over."""
        return int((self.index >= 0).sum())

    @cached_property
    def _store(self) -> Store:
        return open_store(self.path)

    @cached_property
    def _table(self) -> EpisodeTable:
        return self._store.table.episode_table()

    @cached_property
    def _rows(self) -> Rows:
        return Rows(Dataset(self._store))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "version": self.version, "index": self.index, "by_number": self.by_number}

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Divide episodes into stretches to compute, and stretches whose results lie end to end (True)."""
        index = self.index[first:last]
        there = index >= 0
        breaks = np.flatnonzero((there[1:] != there[:-1]) | (there[1:] & (np.diff(index) != 1))) + 1
        for a, b in pairwise([0, *breaks.tolist(), last - first]):
            if b > a:
                yield first + a, first + b, bool(there[a])

    def chunks(self, first: int, last: int, plan: WritePlan, table: EpisodeTable) -> Iterator[Chunk]:
        """Yield the rows of a stretch; ``table`` has its episodes as they are in the source."""
        rows, old = self._rows, self.index[first:last]
        start, stop = int(rows.start[old[0]]), int(rows.final[old[-1]]) + 1
        table.end, table.observed = self._table.end[old], self._table.observed[old]
        table.extra = {name: [v[k] for k in old.tolist()] for name, v in self._table.extra.items()}
        table.splits = {name: mask for name, mask in table.splits.items() if mask.any()}
        at_once = max(2, _CHUNK_BYTES // max(1, sum(f.row_bytes for f in plan.written)))
        for a in range(start, stop, at_once):
            b = min(a + at_once, stop)
            final = rows.last_rows(a, b)
            marks: BoolArray = np.zeros(b - a, bool)
            marks[final - a] = True
            columns = {f.name: self._column(f.name, a, b) for f in plan.written}
            yield Chunk(columns, marks, table.take(rows.episodes_at(final) - old[0]))

    def _column(self, name: str, a: int, b: int) -> Column:
        values = self._rows.between(name, a, b)
        return self._store.texts(name, values).tolist() if self._store.fields[name].kind == "text" else values


def find(task: Task, plan: WritePlan, steps: int, target: Path) -> tuple[Reuse | None, str]:
    """Return what can be taken over from the dataset in ``target``, and why nothing can: no reason without a dataset.

    Parameters
    ----------
    steps : int
        Steps of a call, which a function of steps, batches or windows gets.
    """
    if not target.exists():
        return None, ""
    m = Manifest.read(target)
    if not task.continues(m.provenance[-1] if m.provenance else {}):
        return None, ""
    why = _hindrance(task, plan)
    if not why and any(n.get("code") == Note.FAILED for n in m.notes):
        why = "episodes failed before"
    if not why and {f.name: f.field for f in m.fields} != {f.name: f for f in plan.schema}:
        why = "its fields are others now"
    name = next((n for n in (DIGESTS, WITH_NUMBERS) if n in m.metadata), "")
    if not why and not name:
        why = "the earlier result does not say of which episodes it was made"
    if not why and not StoredDataset(target).verify(progress=False).ok:
        why = "the earlier result is damaged"
    if why:
        return None, why
    by_number, earlier = name == WITH_NUMBERS, open_store(target)
    old, new = np.asarray(earlier.table.metadata[name]), digests_of(task, numbers=by_number)
    e, results = task.dataset.episodes, earlier.episodes
    index = _matched(old, new) if task.unit == "episode" else _common(old, new, e["length"], steps)
    for name in ("length", "num_observed"):  # else it is no result that the plan allows
        index[index >= 0] = np.where(results[name][index[index >= 0]] == e[name][index >= 0], index[index >= 0], -1)
    found = Reuse(target, int(m.provenance[-1]["version"]), index, by_number)
    return (found, "") if found.count else (None, "it has no episodes in common with the earlier result")


def _hindrance(task: Task, plan: WritePlan) -> str:
    """Say why results of this function are not those of single episodes; empty if they are."""
    call = task.function.load()
    if task.fits:
        return "its first pass sees all episodes"
    if builtin.complete(call, task.dataset, task.args).keys() - task.args.keys():
        return "it receives the whole dataset"
    if not plan.kept:
        return "it changes the lengths of episodes"
    if any(f.kind == "frames" for f in plan.written):
        return "it returns encoded frames"
    return ""


def _matched(old: Digests, new: Digests) -> IntArray:
    """Return for each new episode the number of the one result of an equal one, or -1."""
    keys = [d.tobytes() for d in old]
    results = Counter(keys)
    known = {key: k for k, key in enumerate(keys) if results[key] == 1}
    return np.array([known.get(d.tobytes(), -1) for d in new], np.int64)


def _common(old: Digests, new: Digests, lengths: IntArray, steps: int) -> IntArray:
    """Return the numbers of the results of a common beginning, up to the last call that is the same; -1 behind it."""
    both = min(len(old), len(new))
    differ = np.flatnonzero((old[:both] != new[:both]).any(axis=1))
    common = int(differ[0]) if len(differ) else both
    same = max(f for f in (*runs(lengths, steps), len(lengths)) if f <= common)
    index: IntArray = np.arange(len(new))
    index[same:] = -1
    return index
