"""Small archives of the families whose pages import one: the files that those pages speak of."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RNG = np.random.default_rng(0)

ARFF = """@RELATION adult
@ATTRIBUTE age NUMERIC
@ATTRIBUTE workclass {State, Private}
@ATTRIBUTE occupation {Craft, Sales}
@ATTRIBUTE class {'<=50K', '>50K'}
@DATA
39,State,Sales,'<=50K'
50,?,Craft,'>50K'
38,Private,Sales,'<=50K'
53,Private,Craft,'>50K'
"""


def write_desk(directory: Path) -> None:
    """Write all of them into ``directory``."""
    for name, trajectories in (("", 6), ("-val", 2)):
        _ogbench(directory / f"pointmaze-medium-navigate-v0{name}.npz", trajectories)
    _robomimic(directory / "low_dim_v15.hdf5")
    _d3rlpy(directory / "cartpole_v1.1.0.h5")
    _buffer(directory / "buffer.h5")
    (directory / "adult.arff").write_text(ARFF)
    rows = {"obs": RNG.normal(size=(40, 3)), "action": RNG.normal(size=(40, 1)), "dones": np.arange(40) % 10 == 9}
    np.savez(directory / "rollouts.npz", **rows)
    pq.write_table(pa.table({k: pa.array(v.tolist()) for k, v in rows.items()}), directory / "rollouts.parquet")
    (directory / "press.json").write_text(json.dumps({"fields": {"observation": "state/q", "action": "cmd"}}))


def _ogbench(path: Path, trajectories: int) -> None:
    n = 20 * trajectories
    x = np.cumsum(RNG.normal(size=(n, 2)), axis=0).astype("f4")
    ends = np.arange(n) % 20 == 19
    np.savez_compressed(path, observations=x, actions=np.ones((n, 2), "f4"), terminals=ends, qpos=x, qvel=x)


def _robomimic(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {}})
        for k in range(4):
            group, pos = f.create_group(f"data/demo_{k}"), RNG.normal(size=(31, 3))
            group["obs/robot0_eef_pos"], group["next_obs/robot0_eef_pos"] = pos[:-1], pos[1:]
            group["actions"], group["rewards"] = RNG.uniform(-1, 1, (30, 7)), np.zeros(30)
            group["dones"] = np.arange(30) == 29
        f["mask/train"], f["mask/valid"] = np.array(["demo_0", "demo_1", "demo_3"], "S"), np.array(["demo_2"], "S")


def _d3rlpy(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["observations"], f["actions"] = RNG.normal(size=(40, 4)).astype("f4"), np.ones((40, 1), "i4")
        f["rewards"], ends = np.ones(40, "f4"), (np.arange(40) % 10 == 9).astype("f4")
        f["episode_terminals"], f["terminals"] = ends, np.maximum(ends, np.roll(ends, -1))
        f["discrete_action"], f["version"] = True, b"1.0"


def _buffer(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["columns"], f["num_episodes"] = ["observations", "actions", "rewards", "terminated"], 2
        for i in range(2):
            f[f"observations_{i}"], f[f"actions_{i}"] = RNG.normal(size=(9, 2)).astype("f4"), np.ones((9, 1), "f4")
            f[f"rewards_{i}"], f[f"terminated_{i}"] = np.ones((9, 1), "f4"), bool(i)
        f["version"] = "2.1"
