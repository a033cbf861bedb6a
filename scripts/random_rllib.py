"""Random files of RLlib, with traps: batches and steps in JSON, columns in Parquet, states of episodes in msgpack."""

from __future__ import annotations

import base64
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
State = dict[str, Any]
PACKED = base64.b64encode(bytes.fromhex("04224d184840ea78")).decode()  # how values begin that RLlib has pickled


def chance(rng: Rng, p: float) -> bool:
    """Return True with probability ``p``."""
    return bool(rng.random() < p)


def rllib(rng: Rng, directory: Path) -> dict[str, Any]:
    """Both stacks: a column fewer, one step or none, parts of episodes, NaN, texts, pickles, counts that lie."""
    if chance(rng, 0.5):
        _new_stack(rng, directory)
    else:
        _old_stack(rng, directory)
    return {"format": "plain"} | ({"episodes_by": "flags"} if chance(rng, 0.1) else {})


def _steps(rng: Rng) -> int:
    return int(rng.choice([0, 1, 1, 2, 3, int(rng.integers(1, 20))], p=[0.05, 0.2, 0.15, 0.2, 0.2, 0.2]))


# -- batches of the old stack


def _old_stack(rng: Rng, directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    discrete, new_obs = chance(rng, 0.5), chance(rng, 0.8)
    batches = [_batch(rng, k, discrete=discrete, new_obs=new_obs) for k in range(int(rng.integers(1, 6)))]
    if chance(rng, 0.3):
        _spoil_batch(rng, batches[int(rng.integers(0, len(batches)))])
    kind = str(rng.choice(["batches", "fragments", "rows", "parquet", "agents"]))
    names = [n for n in batches[0] if n != "type"]
    lists = all(isinstance(b.get(n), list) for b in batches for n in names)
    if kind == "fragments" and lists:
        joined = {n: [v for b in batches for v in b[n]] for n in names}
        total = len(joined["t"])
        cuts = [0, *sorted({int(rng.integers(1, total)) for _ in range(3)} if total > 1 else ()), total]
        batches = [{"type": "SampleBatch", **{n: v[a:b] for n, v in joined.items()}} for a, b in pairwise(cuts)]
    elif kind in ("rows", "parquet") and lists:
        counts = [min(len(b[n]) for n in names) for b in batches]
        batches = [
            {"type": "SampleBatch", **{n: b[n][t] for n in names}}
            for b, count in zip(batches, counts, strict=True)
            for t in range(count)
        ]
    elif kind == "agents":
        policies = ["default_policy"] if chance(rng, 0.7) else ["p0", "p1"]
        batches = [
            {"type": "MultiAgentBatch", "count": len(b["t"]), "policy_batches": dict.fromkeys(policies, b)}
            for b in batches
        ]
    if kind == "parquet" and lists and batches:
        rows = [{n: v for n, v in b.items() if n not in ("type", "infos")} for b in batches]
        try:
            pq.write_table(pa.Table.from_pylist(rows), directory / "output.parquet", row_group_size=5)
            return
        except pa.ArrowException:  # texts among numbers
            pass
    text = "".join(json.dumps(b) + "\n" for b in batches)
    name = str(rng.choice(["output-2024-01-01_00-00-00_worker-0_0.json", "output.jsonl"]))
    (directory / name).write_text(text[:-9] if chance(rng, 0.03) else text)


def _batch(rng: Rng, number: int, *, discrete: bool, new_obs: bool) -> State:
    n = _steps(rng)
    seen = np.round(rng.normal(size=(n + 1, 3)), 3)
    over = chance(rng, 0.7)
    made: State = {
        "type": "SampleBatch",
        "eps_id": [900 + number] * n,
        "t": [*range(n)],
        "obs": seen[:-1].tolist(),
        "actions": [t % 2 for t in range(n)] if discrete else rng.normal(size=(n, 2)).tolist(),
        "rewards": rng.normal(size=n).tolist(),
        "dones": [t == n - 1 and over for t in range(n)],
        "infos": [{}] * n,
    }
    return made | ({"new_obs": seen[1:].tolist()} if new_obs else {})


def _spoil_batch(rng: Rng, b: State) -> None:
    name = str(rng.choice([n for n in b if n not in ("type", "infos")]))
    how = str(rng.choice(["gone", "short", "packed", "text", "nan", "flag", "id", "steps"]))
    if how == "gone":
        del b[name]
    elif how == "short":
        b[name] = b[name][:-1]
    elif how == "packed":
        b[name] = PACKED
    elif how == "text":
        b[name] = [str(v) for v in b[name]]
    elif how == "nan" and b["rewards"]:
        b["rewards"][0] = float("nan")
    elif how == "flag" and len(b["dones"]) > 1:
        b["dones"][0] = True
    elif how == "id":
        b["eps_id"] = [900] * len(b["eps_id"])
    elif how == "steps":
        b["t"] = [*range(5, 5 + len(b["t"]))]


# -- states of the new stack


def _new_stack(rng: Rng, directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    form, listed = str(rng.choice(["array", "dict", "tuple"])), chance(rng, 0.3)
    states: list[State] = []
    for k in range(int(rng.integers(1, 5))):
        states += _states(rng, k, form, listed=listed)
    if chance(rng, 0.3):
        _spoil_state(rng, states[int(rng.integers(0, len(states)))])
    if chance(rng, 0.05):
        states.reverse()
    items = [packed(rng, state) for state in states]
    if chance(rng, 0.05):
        items[-1] = items[-1][: int(rng.integers(0, len(items[-1])))] if chance(rng, 0.5) else items[-1] + b"\xc0"
    if chance(rng, 0.03):
        items[0] = None
    pq.write_table(pa.table({"item": items}), directory / "episodes.parquet", row_group_size=int(rng.integers(1, 4)))


def _states(rng: Rng, number: int, form: str, *, listed: bool) -> list[State]:
    """The states of an episode, which may be in two parts."""
    n, over = _steps(rng), str(rng.choice(["is_terminated", "is_truncated", ""]))
    seen = rng.normal(size=(n + 1, 2)).astype(np.float32)
    actions, rewards = rng.integers(0, 3, n), rng.normal(size=n)
    cut = int(rng.integers(1, n)) if n > 1 and chance(rng, 0.3) else None
    found = []
    for a, b in [(0, n)] if cut is None else [(0, cut), (cut, n)]:
        back = min(a, int(rng.integers(0, 3)))
        first = a - back
        observed: Any = seen[first : b + 1]
        observed = {"x": observed, "y": observed[:, 0]} if form == "dict" else observed
        observed = [observed, observed[:, 0]] if form == "tuple" and not listed else observed
        of = {"observations": observed, "actions": actions[first:b], "rewards": rewards[first:b]}
        found.append(
            {
                "id_": f"{number:x}9f3c2",
                "agent_id": None,
                **{name: _buffer(values, back, listed=listed and form == "array") for name, values in of.items()},
                "infos": _buffer([{}] * (b + 1 - first), back, listed=True),
                "extra_model_outputs": {"logp": _buffer(np.zeros(b - first, np.float32), back, listed=False)},
                "is_terminated": over == "is_terminated" and b == n,
                "is_truncated": over == "is_truncated" and b == n,
                "t_started": a,
                "t": b,
            }
        )
    return found


def _buffer(values: Any, lookback: int, *, listed: bool) -> State:
    values = [*values] if listed else values
    return {"data": values, "lookback": lookback, "finalized": not listed, "space": None}


def _spoil_state(rng: Rng, s: State) -> None:
    name = str(rng.choice(["observations", "actions", "rewards"]))
    how = str(rng.choice(["gone", "short", "pickled", "nan", "steps", "lookback", "text", "ends"]))
    data = s[name]["data"]
    if how == "gone":
        del s[str(rng.choice([name, "t", "is_terminated", "extra_model_outputs"]))]
    elif how == "short" and not isinstance(data, dict):
        s[name]["data"] = data[:-1]
    elif how == "pickled":
        s[name]["data"] = np.array([None, {}], object)
    elif how == "nan" and len(s["rewards"]["data"]):
        s["rewards"]["data"][0] = np.float64("nan")
    elif how == "steps":
        s["t"] = int(rng.choice([-1, s["t"] + 1, 1 << 62]))
    elif how == "lookback":
        s[name]["lookback"] = int(rng.choice([-1, 1, 99]))
    elif how == "text":
        s[name]["data"] = ["a"] * len(s["rewards"]["data"])
    elif how == "ends":
        s["is_terminated"] = s["is_truncated"] = True


# -- msgpack, as msgpack and msgpack-numpy write it


def packed(rng: Rng, value: Any) -> bytes:
    """Write a value in one of the forms that msgpack has for it."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 and chance(rng, 0.7) else struct.pack(">Bq", 0xD3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        text = value.encode()
        short = len(text) < 32 and chance(rng, 0.7)
        return (bytes([0xA0 | len(text)]) if short else struct.pack(">BI", 0xDB, len(text))) + text
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, dict):
        short = len(value) < 16 and chance(rng, 0.7)
        head = bytes([0x80 | len(value)]) if short else struct.pack(">BH", 0xDE, len(value))
        return head + b"".join(packed(rng, x) for item in value.items() for x in item)
    if isinstance(value, list | tuple):
        short = len(value) < 16 and chance(rng, 0.7)
        head = bytes([0x90 | len(value)]) if short else struct.pack(">BH", 0xDC, len(value))
        return head + b"".join(packed(rng, x) for x in value)
    array = np.asarray(value)
    kind = b"O" if array.dtype.hasobject else b""
    said: dict[bytes, Any] = {b"nd": isinstance(value, np.ndarray), b"type": array.dtype.str}
    said |= {b"data": b"pickled" if kind else array.tobytes()}
    return packed(rng, {**said, b"kind": kind, b"shape": array.shape} if isinstance(value, np.ndarray) else said)
