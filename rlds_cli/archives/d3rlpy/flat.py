"""d3rlpy's first format: flat columns, and a last row that is padding where an episode terminated.

::

    row                 0    1    2    3    4    5    6         an episode that terminated, and one that timed out
    observations        o0   o1   o2   o3   o0   o1   o2        o3 is the final observation
    actions, rewards    a0   a1   a2   ??   a0   a1   a2        row 3 is padding; row 6 is a step like any other
    terminals           0    0    1    1    0    0    0         on the last two rows
    episode_terminals   0    0    0    1    0    0    1

Where an episode timed out nothing is padded: the reward of its last row is that of its own observation and action, and
the observation after it is not recorded. Older files have no ``episode_terminals``: episodes end at ``terminals``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import datasets, free_name, row_field
from rlds_cli.archives.hdf5_rows import RowReader
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    EpisodeData,
    Field,
    IntArray,
    flags,
    lay_out,
)

NEEDED = ("observations", "actions", "rewards", "terminals")
ENDS = "episode_terminals"
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD}


@dataclass(frozen=True, slots=True)
class Layout:
    """One file: ``columns`` maps fields to keys, ``constants`` are the keys that are not per row."""

    rows: int
    fields: tuple[Field, ...]
    columns: Mapping[str, str]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes of a file: first rows, steps T, ends, and whether one more row holds the final observation."""

    start: IntArray
    length: IntArray
    end: IntArray
    observed: BoolArray

    def __len__(self) -> int:
        return len(self.length)


def is_flat(f: h5py.File) -> bool:
    """Whether a file is of the first format: nobody else's flat files have these marks."""
    return set(NEEDED) <= set(f) and (ENDS in f or {"discrete_action", "version"} <= set(f))


def layout(f: h5py.File, name: str) -> Layout:
    """What the datasets of the file called ``name`` are.

    Raises
    ------
    CorruptArchive
        Columns of different lengths.
    """
    found = datasets(f)
    core = [k for k in (*NEEDED, ENDS) if k in found]
    lengths = {k: found[k].shape[0] if found[k].shape else 0 for k in core}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{k} {n}" for k, n in lengths.items())
        raise CorruptArchive(f"{name}: columns have different numbers of rows: {listed}.")
    rows = lengths["actions"]
    columns = {field: key for key, field in NAMES.items()}
    others = [k for k, d in found.items() if k not in core and d.shape and d.shape[0] == rows]
    columns |= {free_name(k, {*columns, *FLAGS}): k for k in others}
    fields = [row_field(n, found[k], scalar=n == REWARD) for n, k in columns.items()]
    fields += [Field(flag, "bool", (), "next") for flag in FLAGS]
    constants = tuple(k for k in found if k not in core and k not in others)
    return Layout(rows, tuple(sorted(fields, key=lambda x: x.name)), columns, constants)


def episodes(f: h5py.File, path: Path, rows: int) -> Episodes:
    """Where the episodes of a file are; reads the flags.

    ``length`` is 0 for an episode that is nothing but padding.
    """
    keys = [k for k in ("terminals", ENDS) if k in f]
    with RowReader(path, {k: f[k] for k in keys}) as reader:
        seen = {k: v.reshape(-1) != 0 for k, v in reader.read(0, rows).items()}
    terminal = seen["terminals"]
    # Without marks of its own an episode ends at the last of the flagged rows.
    marks = seen[ENDS] if ENDS in seen else terminal & ~np.append(terminal[1:], False)
    last = np.flatnonzero(marks)
    flagged = np.ones(len(last), bool)
    if rows and (not len(last) or last[-1] != rows - 1):
        last, flagged = np.append(last, rows - 1), np.append(flagged, False)
    start = np.concatenate([[0], last[:-1] + 1]).astype(np.int64)[: len(last)]
    padded: BoolArray = terminal[last] & terminal[np.maximum(last - 1, 0)] & (last > start)
    end = np.where(terminal[last], TERMINATED, np.where(flagged, TRUNCATED, CUT))
    return Episodes(start, last + 1 - start - padded, end, padded)


def read(
    f: h5py.File, path: Path, fields: Sequence[Field], source: int, span: tuple[int, int], budget: int
) -> Iterator[Chunk]:
    """Episodes ``span[0]`` to ``span[1]``, about ``budget`` rows to a chunk.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file.
    """
    columns = layout(f, path.name).columns
    found = episodes(f, path, layout(f, path.name).rows)
    with RowReader(path, {k: f[k] for k in columns.values()}) as reader:
        for first, stop in _groups(found, *span, budget):
            at = int(found.start[first])
            seen = reader.read(at, int(found.start[stop - 1] + found.length[stop - 1] + found.observed[stop - 1]))
            todo = [i for i in range(first, stop) if found.length[i]]
            if todo:
                yield lay_out(fields, [_episode(found, i, seen, columns, fields, source, at) for i in todo])


def _groups(found: Episodes, first: int, stop: int, budget: int) -> Iterator[tuple[int, int]]:
    start, rows = first, 0
    for i in range(first, stop):
        rows += int(found.length[i]) + 1
        if rows >= budget or i == stop - 1:
            yield start, i + 1
            start, rows = i + 1, 0


def _episode(
    found: Episodes,
    i: int,
    seen: Mapping[str, Array],
    columns: Mapping[str, str],
    fields: Sequence[Field],
    source: int,
    at: int,
) -> EpisodeData:
    a, length = int(found.start[i]) - at, int(found.length[i])
    kept = {f.name: length + (int(found.observed[i]) if f.placement == "both" else 0) for f in fields}
    shapes = {f.name: f.shape for f in fields}
    values = {n: seen[k][a : a + kept[n]].reshape(kept[n], *shapes[n]) for n, k in columns.items()}
    end = int(found.end[i])
    return EpisodeData(values | flags(length, end), length, end, source=source, row=int(found.start[i]))
