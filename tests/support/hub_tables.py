"""Tables as they lie on the Hub, and as imitation and RLlib write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTHS = (4, 5, 3)


def rows(lengths: Sequence[int] = LENGTHS, *, ids: bool = True) -> pa.Table:
    """Steps of some episodes, of which those with even numbers are terminated."""
    rng = np.random.default_rng(0)
    steps = [(e, t, n) for e, n in enumerate(lengths) for t in range(n)]
    found: dict[str, Any] = {
        "observation": [rng.normal(size=2).tolist() for _ in steps],
        "action": [float(10 * e + t) for e, t, _ in steps],
        "reward": [float(t) for _, t, _ in steps],
        "terminated": [t == n - 1 and e % 2 == 0 for e, t, n in steps],
        "truncated": [t == n - 1 and e % 2 == 1 for e, t, n in steps],
    }
    return pa.table(found | ({"episode": [e for e, _, _ in steps]} if ids else {}))


def stream(path: Path, table: pa.Table, *, batch: int = 2, closed: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_stream(f, table.schema) as writer:
        for part in table.to_batches(max_chunksize=batch):
            writer.write_batch(part)
    if not closed:
        path.write_bytes(path.read_bytes()[:-8])
    return path


def saved(directory: Path, table: pa.Table, cuts: Iterable[int] = (5,), **state: Any) -> Path:
    """A directory as ``save_to_disk`` writes it, whose shards begin at ``cuts``."""
    bounds = [0, *cuts, len(table)]
    names = [f"data-{k:05d}-of-{len(bounds) - 1:05d}.arrow" for k in range(len(bounds) - 1)]
    for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
        stream(directory / name, table.slice(start, stop - start))
    said: Mapping[str, Any] = {"_data_files": [{"filename": n} for n in names], "_fingerprint": "0", "_split": None}
    (directory / "state.json").write_text(json.dumps({**said, **state}))
    (directory / "dataset_info.json").write_text(json.dumps({"license": "mit", "features": {}}))
    return directory


def episode_rows(lengths: Sequence[int] = LENGTHS, *, final: bool = False) -> list[dict[str, Any]]:
    """Rows that are episodes; those with even numbers are terminated. With ``final``, in the form of imitation."""
    rng = np.random.default_rng(1)
    found: list[dict[str, Any]] = []
    for e, n in enumerate(lengths):
        steps = {"actions": rng.normal(size=(n, 1)).tolist(), "rewards": [float(10 * e + t) for t in range(n)]}
        seen = (100.0 * e + np.arange(n + final)[:, None] + [0.0, 0.5]).tolist()
        if final:
            steps = {"acts": steps["actions"], "rews": steps["rewards"], "infos": [f'{{"t": {t}}}' for t in range(n)]}
            found.append({"obs": seen, **steps, "terminal": e % 2 == 0})
        else:
            dones = [t == n - 1 and e % 2 == 0 for t in range(n)]
            found.append({"observations": seen, **steps, "dones": dones})
    return found


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as Parquet in small groups, an Arrow stream or JSON lines, by the suffix of ``path``."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([*rows]), path, row_group_size=2)
    elif path.suffix == ".arrow":
        stream(path, pa.Table.from_pylist([*rows]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_desk(directory: Path) -> None:
    """Write the files of the page about them into ``directory``."""
    saved(directory / "pusher", rows())
    for name in ("train", "test"):
        saved(directory / "reacher" / name, rows())
    write_rows(directory / "gym_replay.parquet", episode_rows())
    saved(directory / "rollouts", pa.Table.from_pylist(episode_rows(final=True)), cuts=(1,))
    rollouts = {"obs": np.zeros((9, 4)), "acts": np.zeros(7), "terminal": np.ones(2, bool), "indices": np.array([3])}
    np.savez(directory / "final.npz", **rollouts)
    (directory / "reacher/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
