"""84 px: HDF5 files that hold episodes end to end, cut into shards anywhere: ``0.hdf5``, ``1.hdf5``, ..."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import Archive, Part, Plan
from rlds_cli.archives.names import differences, row_field
from rlds_cli.archives.vd4rl import rows
from rlds_cli.archives.vd4rl.rows import DISCOUNT, STATE, Kind
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import datasets, keys_found, open_file
from rlds_cli.formats.hdf5_rows import RowReader
from rlds_cli.ted import REWARD, TERMINATED, TRUNCATED, Array, Chunk, EpisodeData, Field, IntArray, Note, chunks

NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "discount": DISCOUNT}
NEEDED = ("observation", "action", "reward", "step_type")
FIRST, MID, LAST = 0, 1, 2
NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: its rows, their kinds by field, and their step types (first, mid and last)."""

    rows: int = 0
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    step_type: Array = field(default_factory=lambda: np.zeros(0))
    over: Array = field(default_factory=lambda: np.zeros(0, bool))  # whether the environment ended at a row
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class _ShardEpisode:
    """Rows [start, stop) of all shards end to end; ``whole`` says that it begins with a first row."""

    start: int
    stop: int
    end: int
    whole: bool


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's shards in one line; None for other files."""
    with open_file(paths[0]) as f:
        found = datasets(f)
        if not {*NEEDED} <= set(found) or not found["observation"].shape:
            return None
        count = found["observation"].shape[0]
    files = f"{len(paths)} shards, the first with " if len(paths) > 1 else ""
    return f"V-D4RL layout: {files}{count:,} rows"


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and episodes, by the step types of all shards."""
    seen = [_look(path) for path in archive.files]
    usual = next((s.kinds for s in seen if s.wrong is None), {})
    bad = {i: why for i, s in enumerate(seen) if (why := s.wrong or _unlike(s.kinds, usual))}
    notes = rows.leave_out(archive, bad)
    good = [i for i in range(len(seen)) if i not in bad]
    gaps = _gaps(archive, good)
    if gaps:
        text = "numbers are missing among the shards; episodes that ran into the gap are cut there"
        notes.append(Note("missing-shards", text, len(gaps), archive.name_of(gaps[0])))
    breaks = {*gaps, *(i for a, i in pairwise(good) if i != a + 1)}
    offsets = np.concatenate([[0], np.cumsum([0 if i in bad else s.rows for i, s in enumerate(seen)])])
    episodes = list(_episodes([seen[i] for i in good], {int(offsets[i]) for i in breaks}))
    notes += _remarks(episodes)
    fields = rows.schema(usual)
    facts: dict[str, Any] = {"kind": "shards", "rows": "a row holds the action and reward that led to it"}
    facts["shards"] = {archive.name_of(i): s.rows for i, s in enumerate(seen) if i not in bad}
    left = {"left_out": rows.left_out(archive, bad)} if bad else {}
    return Plan(
        reader="vd4rl",
        archive=archive,
        schema=fields,
        parts=tuple(_parts([e for e in episodes if e.stop - e.start > 1], offsets, sum(f.row_bytes for f in fields))),
        episodes_by="flags",
        facts=facts | left,
        notes=tuple(notes),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, and join those that were cut between shards."""
    with ExitStack() as stack:
        readers: dict[int, RowReader] = {}
        for index in sorted({piece[0] for e in part.args["episodes"] for piece in e["pieces"]}):
            path = plan.archive.files[index]
            found = datasets(stack.enter_context(open_file(path, check=False)))
            readers[index] = stack.enter_context(RowReader(path, _columns(found)))
        yield from chunks(plan.schema, (_read(plan.archive, readers, e) for e in part.args["episodes"]))


def _read(archive: Archive, readers: Mapping[int, RowReader], e: Mapping[str, Any]) -> EpisodeData:
    read = [readers[index].read(a, b) for index, a, b in e["pieces"]]
    columns = {name: np.concatenate([r[name] for r in read]) if len(read) > 1 else read[0][name] for name in read[0]}
    end = int(e["end"])
    terminal = np.zeros(len(columns["action"]), bool)
    terminal[-1] = end == TERMINATED
    index, row, _ = e["pieces"][0]
    odd = rows.remarks(columns, terminal, f"{archive.name_of(index)}, row {row}") if e["whole"] else ()
    return rows.episode(columns, end, terminal, index, row, odd)


def _look(path: Path) -> _Shard:
    try:
        with open_file(path) as f:
            return _layout(path, f)
    except (CorruptArchive, UnknownLayout) as e:
        return _Shard(wrong=e.message)


def _layout(path: Path, f: h5py.File) -> _Shard:
    found = datasets(f)
    missing = [key for key in NEEDED if key not in found]
    if missing:
        return _Shard(wrong=f"has no {' and no '.join(missing)}; it holds {keys_found(found)}")
    counts = {key: d.shape[0] if d.shape else None for key, d in found.items()}
    if len(set(counts.values())) > 1:
        return _Shard(wrong=f"is ragged: {', '.join(f'{key} has {n} rows' for key, n in counts.items())}")
    kinds = {name: _kind(name, d) for name, d in _columns(found).items()}
    step_type = np.asarray(found["step_type"]).reshape(-1)
    if not np.isin(step_type, (FIRST, MID, LAST)).all():
        return _Shard(wrong="has step types other than 0 (first), 1 (mid) and 2 (last)")
    over = np.zeros(len(step_type), bool)
    if "discount" in found:
        over = np.asarray(found["discount"]).reshape(-1) == 0
    return _Shard(len(step_type), kinds, step_type, over)


def _columns(found: Mapping[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    return {NAMES.get(key) or STATE + key: d for key, d in found.items() if key != "step_type"}


def _kind(name: str, d: h5py.Dataset) -> Kind:
    f = row_field(name, d, scalar=name.startswith("next/"))
    return f.dtype, f.shape


def _unlike(kinds: Mapping[str, Kind], usual: Mapping[str, Kind]) -> str | None:
    if kinds == usual:
        return None
    a, b = ([Field(n, *k) for n, k in x.items()] for x in (kinds, usual))
    return f"has other columns than the first: {'; '.join(differences(a, b))}"


def _gaps(archive: Archive, good: Sequence[int]) -> list[int]:
    """Find the shards that do not follow the one before by number, if all have numbers."""
    found = [NUMBER.search(archive.files[i].stem) for i in good]
    numbers = [int(m[1]) for m in found if m]
    if len(numbers) < len(good):
        return []
    return [i for i, (a, b) in zip(good[1:], pairwise(numbers), strict=True) if b != a + 1]


def _episodes(shards: Sequence[_Shard], breaks: set[int]) -> Iterator[_ShardEpisode]:
    """Find the episodes in the rows of all shards, end to end; none runs across a break."""
    if not shards:
        return
    kind = np.concatenate([s.step_type for s in shards])
    over = np.concatenate([s.over for s in shards])
    begins = kind == FIRST
    begins[1:] |= kind[:-1] == LAST
    begins[[0, *breaks] if len(kind) else []] = True
    starts: IntArray = np.append(np.flatnonzero(begins), len(kind))
    for a, b in pairwise(starts.tolist()):
        ends = kind[b - 1] == LAST
        yield _ShardEpisode(a, b, rows.ending(last=ends, terminal=bool(ends and over[b - 1])), bool(kind[a] == FIRST))


def _remarks(episodes: Sequence[_ShardEpisode]) -> Iterator[Note]:
    alone = [e for e in episodes if e.stop - e.start < 2]
    if alone:
        yield Note("empty-episodes", "episodes of one row have no step, and are left out", len(alone))
    odd = [e for e in episodes if not e.whole]
    if odd:
        text = "episodes begin in the middle: their first rows are in no shard"
        yield Note("fragments", text, len(odd), f"row {odd[0].start:,}")
    if sum(e.end not in (TERMINATED, TRUNCATED) for e in episodes):
        cut = [e for e in episodes if e.end not in (TERMINATED, TRUNCATED)]
        yield Note("cut", "episodes have no last row, and are cut", len(cut), f"row {cut[0].start:,}")


def _parts(episodes: Sequence[_ShardEpisode], offsets: IntArray, width: int) -> Iterator[Part]:
    todo: list[_ShardEpisode] = []
    for k, e in enumerate(episodes):
        todo.append(e)
        count = todo[-1].stop - todo[0].start
        if k == len(episodes) - 1 or count * width >= rows.PART_BYTES:
            described = [{"pieces": _pieces(x, offsets), "end": x.end, "whole": x.whole} for x in todo]
            yield Part(sum(x.stop - x.start for x in todo), {"episodes": described})
            todo = []


def _pieces(e: _ShardEpisode, offsets: IntArray) -> list[list[int]]:
    """Divide the rows of an episode by file: the file, the first row in it, the row after the last."""
    first = int(np.searchsorted(offsets, e.start, side="right")) - 1
    found, at = [], e.start
    while at < e.stop:
        stop = min(e.stop, int(offsets[first + 1]))
        if stop > at:
            found.append([first, at - int(offsets[first]), stop - int(offsets[first])])
        at, first = stop, first + 1
    return found
