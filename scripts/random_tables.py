"""Random tables whose rows are episodes or batches of steps, and rollouts and states of libraries, with their traps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
Row = dict[str, Any]


def chance(rng: Rng, p: float) -> bool:
    """Return True with probability ``p``."""
    return bool(rng.random() < p)


def step_batches(rng: Rng, directory: Path) -> dict[str, Any]:
    """Parquet, JSON lines and directories of streams: a column fewer, one step, NaN, texts, ends that lie, no steps."""
    final, kind = chance(rng, 0.5), str(rng.choice(["parquet", "jsonl", "saved"]))
    same = int(rng.integers(2, 6)) if chance(rng, 0.2) else None
    rows = [_episode(rng, k, same, final=final) for k in range(int(rng.integers(1, 7)))]
    if chance(rng, 0.25):
        _spoil(rng, rows[int(rng.integers(0, len(rows)))])
    if chance(rng, 0.2):
        key = str(rng.choice([*rows[0]]))
        rows = [{name: v for name, v in row.items() if name != key} for row in rows]
    if chance(rng, 0.2):
        rows = [{**row, "goal": [1.0, 2.0, 3.0], "task": f"t{k}"} for k, row in enumerate(rows)]
    if chance(rng, 0.2):
        rows = _batches(rng, rows)
    _write(rng, directory, kind, rows)
    options: dict[str, Any] = {"format": "plain"}
    return options | ({"episodes_by": "flags"} if chance(rng, 0.1) else {})


def _episode(rng: Rng, number: int, same: int | None, *, final: bool) -> Row:
    n = same or int(rng.choice([0, 1, 1, 2, 3, int(rng.integers(1, 20))]))
    seen = np.cumsum(rng.normal(size=(n + final, 2)), axis=0)
    row: Row = {"obs": seen.tolist(), "acts": rng.normal(size=(n, 1)).tolist(), "rews": rng.normal(size=n).tolist()}
    if final:
        return {**row, "infos": [json.dumps({"t": t}) for t in range(n)], "terminal": chance(rng, 0.5)}
    return {**row, "dones": [t == n - 1 and chance(rng, 0.7) for t in range(n)], "score": float(number)}


def _spoil(rng: Rng, row: Row) -> None:
    """Make one column of a row wrong."""
    key = str(rng.choice([name for name, v in row.items() if isinstance(v, list)]))
    values: list[Any] = row[key]
    how = str(rng.choice(["short", "long", "none", "empty", "nan", "text", "flag"]))
    if how == "short":
        row[key] = values[:-1]
    elif how == "long":
        row[key] = values + values[-1:]
    elif how == "none":
        row[key] = None
    elif how == "empty":
        row[key] = []
    elif how == "nan" and values and key == "rews":
        values[int(rng.integers(0, len(values)))] = None
    elif how == "text" and key == "obs":
        row[key] = [str(v) for v in values]
    elif how == "flag" and key == "dones" and len(values) > 1:
        values[0] = True


def _batches(rng: Rng, rows: list[Row]) -> list[Row]:
    """Cut the steps of all rows anew, with ids and counts of steps, as RLlib writes them."""
    if any("terminal" in row or not all(isinstance(v, list) for k, v in row.items() if k != "score") for row in rows):
        return rows
    columns = [k for k in rows[0] if k not in ("score", "goal", "task")]
    steps = {k: [v for row in rows for v in row[k]] for k in columns}
    counts = [len(row[columns[0]]) for row in rows]
    steps |= {"eps_id": np.repeat(np.arange(len(rows)), counts).tolist(), "t": [t for n in counts for t in range(n)]}
    total = sum(counts)
    cuts = [0, *sorted({int(rng.integers(1, total)) for _ in range(3)} if total > 1 else ()), total]
    found = [{k: v[a:b] for k, v in steps.items()} for a, b in pairwise(cuts)]
    return [{"type": "SampleBatch", **row} for row in found] if chance(rng, 0.5) else found


def _write(rng: Rng, directory: Path, kind: str, rows: list[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "jsonl":
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    try:
        table = pa.Table.from_pylist(rows)
    except pa.ArrowException:  # texts among numbers
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    if kind == "parquet":
        pq.write_table(table, directory / "rows.parquet", row_group_size=int(rng.integers(1, 4)))
        return
    saved = directory / "saved"
    saved.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    cut = int(rng.integers(0, len(table) + 1))
    for name, part in zip(names, (table.slice(0, cut), table.slice(cut)), strict=True):
        with pa.OSFile(str(saved / name), "wb") as f, pa.ipc.new_stream(f, table.schema) as stream:
            stream.write_table(part)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (saved / "dataset_info.json").write_text('{"license": "mit"}')


def imitation(rng: Rng, directory: Path) -> dict[str, Any]:
    """Rollouts of imitation in npz: a trajectory of one step, indices that lie, an array fewer, pickles."""
    counts = [int(rng.choice([1, 1, 2, int(rng.integers(1, 15))])) for _ in range(int(rng.integers(1, 6)))]
    n, e = sum(counts), len(counts)
    arrays: Row = {
        "obs": rng.normal(size=(n + e, 2)).astype(rng.choice(["f4", "f8"])),
        "acts": rng.integers(0, 3, n) if chance(rng, 0.5) else rng.normal(size=(n, 2)),
        "infos": np.array([{}] * n, object),
        "terminal": rng.random(e) < 0.5,
        "indices": np.cumsum(counts)[:-1],
        "rews": rng.normal(size=n),
    }
    if chance(rng, 0.1):
        arrays["rews"][int(rng.integers(0, n))] = np.nan
    if chance(rng, 0.3):
        key = str(rng.choice([*arrays]))
        arrays[key] = arrays[key][:-1] if chance(rng, 0.5) else None
    if chance(rng, 0.1):
        arrays["indices"] = rng.integers(-1, n + 2, e - 1)
    np.savez_compressed(directory / "final.npz", **{k: v for k, v in arrays.items() if v is not None})
    return {"format": "plain"}
