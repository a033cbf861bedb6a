"""Records of episodes, for the log of a dataset that grows, and the counts of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.growing import content, logs
from rlds_cli.store.generations import Generation
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Chunk, EpisodeTable, Field

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


def of_chunk(schema: Sequence[Field], chunk: Chunk, row: int, sources: int) -> Records:
    """Return the records of a chunk's episodes, whose first row is ``row``, after so many ``sources``."""
    table = chunk.episodes
    e = np.zeros(len(table), logs.EPISODE)
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
    for k in range(len(table)):
        a, b = int(start[k]), int(start[k] + table.length[k] + 1)
        splits = sorted(name for name, mask in table.splits.items() if mask[k])
        numbers = (int(e[name][k]) for name in ("length", "end", "num_observed"))
        head = [*numbers, table.seed[k], table.options[k], splits]
        rows = {f.name: columns[f.name][a:b] for f in schema}  # type: ignore[index]
        e["digest"][k] = content.episode_digest(head, rows)
    return e


def counted(g: Generation, added: Records, gone: Records) -> Generation:
    """Return a generation with the counts of what is kept."""
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
