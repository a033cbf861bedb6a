"""Records of episodes, for the log of a growing dataset, and the counts of a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.store import digests
from rlds_cli.store.columns import has_row_digests
from rlds_cli.store.commits import Commit
from rlds_cli.store.digests import Digests
from rlds_cli.store.growing import logs
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    VideoFrames,
)

Records = npt.NDArray[np.void]


def about(table: EpisodeTable) -> list[dict[str, Any]]:
    """Return the facts about episodes that have no place in the fixed records."""
    found = []
    for k in range(len(table)):
        extra = {name: values[k] for name, values in table.extra.items() if values[k] is not None}
        splits = [name for name, mask in table.splits.items() if mask[k]]
        told = {"group": table.group[k], "options": table.options[k], "splits": splits, "extra": extra}
        found.append({name: value for name, value in told.items() if value})
    return found


def of_chunk(chunk: Chunk, row: int, sources: int, frames: IntArray) -> Records:
    """Return the records of a chunk's episodes, without ids; the first row is ``row``, after so many ``sources``.

    ``frames`` are the bytes of their encoded frames [episodes, fields, 2].
    """
    table = chunk.episodes
    e = np.zeros(len(table), logs.episode(frames.shape[1]))
    e["frames"] = frames
    start = table.start
    e["start"], e["length"], e["num_observed"] = row + start, table.length, table.num_observed
    e["num_transitions"], e["row"], e["end"], e["source"] = table.num_transitions, table.row, table.end, table.source
    e["source"] += sources
    e["has_seed"] = [s is not None for s in table.seed]
    e["seed"] = [s or 0 for s in table.seed]
    columns = chunk.columns
    reward = columns.get(REWARD)
    if isinstance(reward, np.ndarray) and reward.ndim == 1 and len(table):
        e["total_reward"] = np.add.reduceat(reward.astype(np.float64), start)
    if all(name in columns for name in FLAGS) and len(table):
        terminated, truncated = (np.asarray(columns[name]) for name in FLAGS)
        e["num_done"] = np.add.reduceat((terminated | truncated).astype(np.int64), start)
        e["num_terminated"] = np.add.reduceat(terminated.astype(np.int64), start)
    return e


def digests_of(
    f: Field, rows: Column, start: IntArray, length: IntArray, num_observed: IntArray, files: Digests | None = None
) -> tuple[Digests, Digests | None]:
    """Return the digests of the episodes of a field [episodes, 32], and of its rows [rows, 32] if it has them.

    ``files`` are the sha256 of the videos that frames refer to [videos, 32].
    """
    count = digests.counted(f, length, num_observed)
    if isinstance(rows, VideoFrames):
        assert files is not None
        return digests.of_episodes(digests.video_rows(rows.index, files), start, count), None
    if isinstance(rows, list):
        spans = zip(start.tolist(), (start + count).tolist(), strict=True)
        return digests.as_array([digests.of_texts(rows[a:b]) for a, b in spans]), None
    if not has_row_digests(f):
        assert isinstance(rows, np.ndarray)
        return digests.of_episodes(rows, start, count), None
    if isinstance(rows, EncodedFrames):
        of_rows = digests.of_frames(rows.data, rows.spans)
    else:
        assert isinstance(rows, np.ndarray)
        of_rows = digests.of_rows(rows)
    return digests.of_episodes(of_rows, start, count), of_rows


def counted(g: Commit, added: Records, gone: Records) -> Commit:
    """Return a version with the counts of what is kept."""
    changes = {
        "kept": len(added) - len(gone),
        "steps": int(added["length"].sum() - gone["length"].sum()),
        "transitions": int(added["num_transitions"].sum() - gone["num_transitions"].sum()),
    }
    for name, end in (("terminated", TERMINATED), ("truncated", TRUNCATED), ("cut", CUT)):
        changes[name] = int((added["end"] == end).sum()) - int((gone["end"] == end).sum())
    for sign, e in ((1, added), (-1, gone)):
        observed = int((e["num_observed"] > e["length"]).sum())
        inside = int(e["num_terminated"].sum() - (e["end"] == TERMINATED).sum())
        changes["final_observations"] = changes.get("final_observations", 0) + sign * observed
        changes["terminated_inside"] = changes.get("terminated_inside", 0) + sign * inside
    return replace(g, **{name: getattr(g, name) + change for name, change in changes.items()})
