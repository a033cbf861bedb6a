"""Files of RLlib: batches and steps in JSON, and episodes of the new API stack, which are states in msgpack."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTHS = (4, 6, 3)


def packed(value: Any) -> bytes:
    """Write a value as msgpack does, with arrays in the form of msgpack-numpy."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, dict):
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(packed(x) for item in value.items() for x in item)
    if isinstance(value, list | tuple):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))
    return packed(of_array(np.asarray(value), scalar=not isinstance(value, np.ndarray)))


def of_array(values: np.ndarray, *, scalar: bool) -> dict[bytes, Any]:
    """The dictionary that stands for an array, or for a number of NumPy."""
    kind = b"O" if values.dtype.hasobject else b""
    data = b"pickled" if kind else values.tobytes()
    said: dict[bytes, Any] = {b"nd": not scalar, b"type": values.dtype.str, b"data": data}
    return said if scalar else {**said, b"kind": kind, b"shape": values.shape}


def buffer(values: Any, lookback: int = 0) -> dict[str, Any]:
    return {"data": values, "lookback": lookback, "finalized": not isinstance(values, list), "space": None}


def episode(
    number: int, steps: int, *, start: int = 0, lookback: int = 0, ended: str = "is_terminated"
) -> dict[str, Any]:
    """The state of an episode, or of a part of it from the step ``start`` on."""
    t = np.arange(start - lookback, start + steps + 1)
    seen = np.stack([100.0 * number + t, t * 0.5], axis=1).astype(np.float32)
    return {
        "id_": f"{number:x}9f3c2",
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(seen, lookback),
        "actions": buffer(t[:-1] % 2, lookback),
        "rewards": buffer(t[:-1] / 4 + number, lookback),
        "infos": buffer([{}] * len(t), lookback),
        "extra_model_outputs": {"action_logp": buffer(np.full(len(t) - 1, -0.75, np.float32), lookback)},
        "is_terminated": ended == "is_terminated",
        "is_truncated": ended == "is_truncated",
        "t_started": start,
        "t": start + steps,
        "_observation_space": None,
        "_action_space": None,
    }


def write_states(path: Path, states: list[Any]) -> Path:
    """Write states as the new API stack does: one in each row of ``item``."""
    pq.write_table(pa.table({"item": [packed(s) for s in states]}), path, row_group_size=2)
    return path


def batch(number: int, steps: int) -> dict[str, Any]:
    """The steps of an episode as a batch of the old API stack."""
    seen = np.round(np.random.default_rng(number).normal(size=(steps + 1, 4)), 3)
    return {
        "type": "SampleBatch",
        "eps_id": [900 + number] * steps,
        "t": [*range(steps)],
        "agent_index": [0] * steps,
        "obs": seen[:-1].tolist(),
        "new_obs": seen[1:].tolist(),
        "actions": [t % 2 for t in range(steps)],
        "action_prob": [0.5] * steps,
        "rewards": [float(10 * number + t) for t in range(steps)],
        "dones": [t == steps - 1 for t in range(steps)],
        "infos": [{}] * steps,
    }


def write_desk(directory: Path) -> None:
    """Write the files of the page about them into ``directory``."""
    import json

    lines = (json.dumps(batch(k, n)) for k, n in enumerate(LENGTHS))
    (directory / "output-2024-01-01_worker-0_0.json").write_text("\n".join(lines) + "\n")
    write_states(directory / "episodes.parquet", [episode(k, n) for k, n in enumerate(LENGTHS)])
