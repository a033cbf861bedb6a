"""Random archives of each declared family, with its traps, for ``compare_readers.py`` and the test of accounts."""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import random_lerobot
import zarr
from random_rllib import rllib
from random_tables import imitation, step_batches

Rng = np.random.Generator
PNG = bytes.fromhex(  # 2x2, grey
    "89504e470d0a1a0a0000000d494844520000000200000002080000000057dd52f80000000e49444154789c6360"
    "646260660100001d000b0db552060000000049454e44ae426082"
)
Options = dict[str, Any]  # of an import


def lengths(rng: Rng, most: int = 8) -> list[int]:
    """Steps of some episodes; one step is frequent."""
    return [int(rng.choice([1, 1, 2, 3, int(rng.integers(1, most + 30))])) for _ in range(int(rng.integers(1, most)))]


def chance(rng: Rng, p: float) -> bool:
    """Return True with probability ``p``."""
    return bool(rng.random() < p)


def values(rng: Rng, rows: int, shape: tuple[int, ...] = (2,), dtype: Any = None) -> Any:
    """Random values [rows, ...] of one of several dtypes."""
    dtype = np.dtype(dtype or rng.choice(["f4", "f8", ">f4", "f2", "i4"]))
    found = rng.normal(size=(rows, *shape)) * 9
    return found.astype(dtype)


def flags(rng: Rng, rows: int, at: Any, dtype: Any = None) -> Any:
    """A flag [rows] or [rows, 1], set in the rows ``at``."""
    found = np.zeros(rows, dtype or rng.choice(["?", "u1", "f4", "i8"]))
    found[np.asarray(at, int)] = 1
    return found.reshape(-1, 1) if chance(rng, 0.2) else found


def hdf5(path: Path, columns: dict[str, Any], *, deflate: bool = False) -> None:
    """Write datasets; ``PATH@NAME`` is an attribute."""
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            where, _, name = key.partition("@")
            if name:
                f.require_group(where or "/").attrs[name] = value
            elif deflate and np.ndim(value) and np.size(value):
                f.create_dataset(key, data=value, chunks=(min(7, len(value)), *np.shape(value)[1:]), compression="gzip")
            else:
                f[key] = value


def d4rl(rng: Rng, directory: Path) -> Options:
    """Flat HDF5: flags, next observations that are or are no rows after, timeouts inside, a part of an episode."""
    options: Options = {"format": "d4rl"}
    width = (int(rng.integers(1, 4)),)
    dtype = rng.choice(["f4", "f8"])
    next_kind = rng.choice(["none", "copy", "jump", "own"])
    extra, action = chance(rng, 0.2), rng.choice(["f4", "f8", "f2", "i4"])
    for number in range(1 + chance(rng, 0.2)):
        runs = lengths(rng)
        n = sum(runs) + int(rng.integers(0, 3))
        ends = np.cumsum(runs) - 1
        seen = values(rng, n, width, dtype)
        terminal = [e for e in ends if chance(rng, 0.5)]
        columns = {"observations": seen, "actions": values(rng, n, dtype=action), "rewards": values(rng, n, (), "f4")}
        columns["terminals"] = flags(rng, n, terminal + ([0] if chance(rng, 0.2) else []))
        if chance(rng, 0.7):
            columns["timeouts"] = flags(rng, n, [e for e in ends if e not in terminal or chance(rng, 0.1)])
        if next_kind != "none":
            after = np.roll(seen, -1, axis=0)
            if next_kind == "own":
                after = values(rng, n, width, dtype)
            elif next_kind == "jump":
                after[ends] = values(rng, len(ends), width, dtype)
            columns["next_observations"] = after
        if chance(rng, 0.1):
            columns["infos/qpos"] = values(rng, n)
        if chance(rng, 0.2):
            columns["metadata/algorithm"] = "SAC"
            columns["metadata/weights"] = values(rng, 3)
        if chance(rng, 0.1):
            seen[rng.integers(0, n)] = np.nan
        if chance(rng, 0.05):
            columns["rewards"] = columns["rewards"][:-1]
        if chance(rng, 0.05):
            columns["terminals"] = columns["terminals"] * 3
        if extra:
            columns["extra"] = values(rng, n, (2, 2), "f4")
        hdf5(directory / f"{number}.hdf5", columns, deflate=chance(rng, 0.3))
    if chance(rng, 0.3):
        options["episodes_by"] = str(rng.choice(["flags", "timeouts", "jumps", "file", "field:rewards", "flag"]))
    if chance(rng, 0.1):
        options["fields"] = {"observation": "observations", "cost": "rewards"}
    return options


def ogbench(rng: Rng, directory: Path) -> Options:
    """Trajectories with one row more than steps; the compact form; masks; a validation file; an open end."""
    compact, masked, infos = chance(rng, 0.3), chance(rng, 0.3), chance(rng, 0.5)
    pixels, val = chance(rng, 0.3), chance(rng, 0.4)
    write = np.savez_compressed if chance(rng, 0.5) else np.savez
    action = rng.choice(["f4", "i4", "f8"])
    for number in range(1 + val):
        runs = [n + int(not chance(rng, 0.1)) for n in lengths(rng)]
        n = sum(runs) + (int(rng.integers(1, 4)) if chance(rng, 0.2) else 0)
        ends = np.cumsum(runs) - 1
        seen = rng.integers(0, 255, (n, 4, 4, 3)).astype("u1") if pixels else values(rng, n, (3,), "f4")
        columns = {"observations": seen, "actions": values(rng, n, () if action == "i4" else (2,), action)}
        columns["terminals"] = flags(rng, n, [*ends, *np.maximum(ends - 1, 0)] if compact else ends)
        if compact:
            columns["valids"] = 1 - flags(rng, n, ends, "f4")
        if masked:
            columns["rewards"] = values(rng, n, (), "f4")
            columns["masks"] = 1 - flags(rng, n, rng.integers(0, n, 3), "f4")
        if infos:
            columns |= {"qpos": values(rng, n, (2,), "f8"), "button_states": rng.integers(0, 2, (n, 2))}
        if chance(rng, 0.1):
            columns["actions"] = columns["actions"][:-1]
        if chance(rng, 0.2):
            columns["note"] = np.array("made")
        if chance(rng, 0.1) and not pixels:
            seen[0] = np.nan
        write(directory / f"point-v0{'-val' if number else ''}.npz", **columns)
    return {"format": "ogbench"} | ({"episodes_by": "file"} if chance(rng, 0.05) else {})


def d3rlpy(rng: Rng, directory: Path) -> Options:
    """Both versions: padded rows, no marks of ends, an episode of padding alone, tuples of observations."""
    make, kinds = (_dump if chance(rng, 0.4) else _flat_d3rlpy), [str(rng.choice(["i4", "f4"])), chance(rng, 0.3)]
    for number in range(1 + chance(rng, 0.3)):
        hdf5(directory / f"{number}.h5", make(rng, *kinds))
    return {"format": "d3rlpy"}


def _flat_d3rlpy(rng: Rng, dtype: str, cost: bool) -> dict[str, Any]:
    terminal, last = [], []
    at = 0
    for steps in lengths(rng):
        over = chance(rng, 0.5)
        at += steps + over
        terminal += [at - 1, *([at - 2] if steps and over else [])] if over else []
        last.append(at - 1)
    n = at + (int(rng.integers(1, 4)) if chance(rng, 0.2) else 0)
    columns = {"observations": values(rng, n, (2,), "f4"), "actions": values(rng, n, (1,), dtype)}
    columns |= {"rewards": values(rng, n, () if chance(rng, 0.5) else (1,), "f4")}
    columns["terminals"] = flags(rng, n, [max(t, 0) for t in terminal], "f4")
    if chance(rng, 0.8):
        columns["episode_terminals"] = flags(rng, n, last, "f4")
    if cost:
        columns["cost"] = values(rng, n, (), dtype)
    return columns | {"discrete_action": chance(rng, 0.5), "version": b"1.0"}


def _dump(rng: Rng, dtype: str, parts: bool) -> dict[str, Any]:
    runs = lengths(rng)
    columns: dict[str, Any] = {"columns": ["observations", "actions", "rewards", "terminated"]}
    columns |= {"num_episodes": len(runs), "version": "2.1" if chance(rng, 0.95) else "2.0"}
    for i, n in enumerate(runs):
        n = 0 if chance(rng, 0.05) else n
        for j in range(2 if parts else 1):
            columns[f"observations_{i}{f'_{j}' if parts else ''}"] = values(rng, n, (2 + j,), dtype)
        columns[f"actions_{i}"] = values(rng, n, (1,), "f4")
        columns[f"rewards_{i}"] = values(rng, n, (1,), "f4")
        columns[f"terminated_{i}"] = chance(rng, 0.5)
    return columns


def openml(rng: Rng, directory: Path) -> Options:
    """Tables of numbers, categories, missing values and ids, in ARFF and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = int(rng.integers(1, 60))
    columns: dict[str, list[Any]] = {}
    for i in range(int(rng.integers(0, 4))):
        whole = chance(rng, 0.3)
        columns[f"x{i}"] = [
            None if chance(rng, 0.1) and not whole else int(v) if whole else float(v) for v in rng.normal(size=n) * 9
        ]
    for i in range(int(rng.integers(0, 3))):
        columns[f"c{i}"] = [None if chance(rng, 0.1) else str(rng.choice(["b", "a", "c d"])) for _ in range(n)]
    if chance(rng, 0.3):
        columns["id"] = list(range(n))
    label = "class" if chance(rng, 0.6) else "target"
    numeric = chance(rng, 0.4)
    columns[label] = [float(rng.integers(0, 3)) if numeric else str(rng.choice(["yes", "no"])) for _ in range(n)]
    options: Options = {"format": "openml"}
    if chance(rng, 0.3):
        options["fields"] = {"action": str(rng.choice([*columns, "gone"]))}
    if chance(rng, 0.5):
        lines = ["@RELATION t"]
        for name, column in columns.items():
            known = sorted({v for v in column if isinstance(v, str)})
            lines.append(f"@ATTRIBUTE {name} " + ("{" + ",".join(f"'{v}'" for v in known) + "}" if known else "REAL"))
        rows = zip(*columns.values(), strict=True)
        lines += [
            "@DATA",
            *(",".join("?" if v is None else f"'{v}'" if isinstance(v, str) else f"{v}" for v in r) for r in rows),
        ]
        (directory / "t.arff").write_text("\n".join(lines) + "\n")
    else:
        table = pa.table({k: pa.array(v) for k, v in columns.items()})
        pq.write_table(table, directory / "dataset_1.pq", row_group_size=int(rng.integers(5, 40)))
    return options


def vd4rl(rng: Rng, directory: Path) -> Options:
    """Both sizes: shards that cut episodes, missing shards, ragged files, files of one row, terminal frames."""
    options: Options = {"format": "vd4rl", "skip_bad": chance(rng, 0.3)}
    runs = lengths(rng)
    if chance(rng, 0.5):
        wide = rng.choice(["f4", "f8"])
        for i, steps in enumerate(runs):
            n = steps + 1 if not chance(rng, 0.05) else 1
            columns = {"image": rng.integers(0, 255, (n, 4, 4, 3)).astype("u1"), "action": values(rng, n, (2,), wide)}
            columns |= {"reward": values(rng, n, (), "f4"), "discount": np.ones(n, "f4")}
            if chance(rng, 0.8):
                columns["action"][0] = 0
                columns["reward"][0] = 0
            if chance(rng, 0.7):
                columns |= {"is_first": flags(rng, n, [0], "?"), "is_last": flags(rng, n, [n - 1], "?")}
                columns["is_terminal"] = flags(rng, n, [n - 1] if chance(rng, 0.3) else [], "?")
            if chance(rng, 0.05):
                columns["image"] = columns["image"][:-1]
            if i == 0 or chance(rng, 0.95):
                columns["height"] = values(rng, n, (), "f4")
            np.savez_compressed(directory / f"t{i}-u-{n if chance(rng, 0.9) else n + 1}.npz", **columns)
        return options
    n = sum(r + 1 for r in runs)
    ends = np.cumsum([r + 1 for r in runs]) - 1
    kind = np.ones(n, "i8")
    kind[np.concatenate([[0], ends[:-1] + 1])] = 0
    kind[[e for e in ends if chance(rng, 0.9)]] = 2
    columns = {"observation": rng.integers(0, 255, (n, 3, 4, 4)).astype("u1"), "action": values(rng, n, (2,), "f4")}
    columns |= {"reward": values(rng, n, (), "f4").reshape(-1, 1), "step_type": kind}
    if chance(rng, 0.8):
        columns["discount"] = 1 - flags(rng, n, [e for e in ends if chance(rng, 0.2)], "f4")
    cuts = np.unique(rng.integers(0, n, 3))
    shards = [*zip([0, *cuts], [*cuts, n], strict=True)]
    for i, (a, b) in enumerate(shards):
        if b > a and not chance(rng, 0.07):
            hdf5(directory / f"{i}.hdf5", {k: v[a:b] for k, v in columns.items()}, deflate=chance(rng, 0.5))
    if not any(directory.iterdir()):
        hdf5(directory / "0.hdf5", columns)
    return options


def exorl(rng: Rng, directory: Path) -> Options:
    """An npz for each episode in the order of dm_env: first rows with an action, ragged columns, another last row."""
    dtype, physics = rng.choice(["f4", "f8"]), chance(rng, 0.5)
    for k, n in enumerate(lengths(rng)):
        columns = {"observation": values(rng, n + 1, (3,), dtype), "action": values(rng, n + 1, (2,), dtype)}
        columns |= {"reward": values(rng, n + 1, (1,), dtype), "discount": np.ones((n + 1, 1), dtype)}
        columns["discount"][-1] = 0 if chance(rng, 0.3) else 1
        if chance(rng, 0.9):
            columns["action"][0], columns["reward"][0] = 0, 0
        if physics:
            columns["physics"] = values(rng, n + 1, (4,), dtype)
        if chance(rng, 0.05):
            columns["reward"] = columns["reward"][1:]
        np.savez_compressed(directory / f"episode_{k:06d}_{n}.npz", **columns)
    return {"format": "exorl", "skip_bad": chance(rng, 0.2)}


def neorl2(rng: Rng, directory: Path) -> Options:
    """Steps with a list of first rows: open ends, flags where the list has none, next observations that differ."""
    for name in ("train", "val")[: 1 + chance(rng, 0.4)]:
        runs = lengths(rng)
        n, begins = sum(runs), np.cumsum([0, *runs[:-1]])
        columns = {"obs": values(rng, n, (3,), "f4"), "action": values(rng, n, (2,), "f4")}
        columns |= {"reward": values(rng, n, (1,), "f4"), "next_obs": np.roll(columns["obs"], -1, axis=0)}
        columns["next_obs"][np.r_[begins[1:], n] - 1] += 1
        if chance(rng, 0.1):
            columns["next_obs"] += 1
        columns["done"] = flags(rng, n, [b - 1 for b in begins[1:] if chance(rng, 0.5)], "f4")
        if listed := chance(rng, 0.7):
            columns["index"] = begins
        if not listed or chance(rng, 0.5):
            columns["truncated"] = flags(rng, n, [n - 1], "?")
        np.savez_compressed(directory / f"DMSD-{name}.npz", **columns)
    return {"format": "neorl2", "skip_bad": chance(rng, 0.1)}


def robomimic(rng: Rng, directory: Path) -> Options:
    """Demonstrations with and without next observations, masks, models, constants that happen to have T rows."""
    raw, after = chance(rng, 0.25), str(rng.choice(["none", "copy", "own", "own", "copy"]))
    dtype = rng.choice(["f4", "f8"])
    columns: dict[str, Any] = {"data@env_args": json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {}})}
    runs = lengths(rng)
    for k, n in enumerate(runs):
        n, group = 0 if chance(rng, 0.05) else n, f"data/demo_{k}"
        if not raw:
            for key in ("eef", "image"):
                seen = (
                    values(rng, n + 1, (2,), dtype) if key == "eef" else rng.integers(0, 9, (n + 1, 3, 3)).astype("u1")
                )
                columns[f"{group}/obs/{key}"] = seen[:-1]
                if after != "none":
                    copy = after == "copy" or (k < 1 and chance(rng, 0.5))
                    columns[f"{group}/next_obs/{key}"] = seen[1:] if copy else seen[1:] + 1
        if not raw or chance(rng, 0.7):
            columns[f"{group}/actions"] = values(rng, n, (3,), "f8")
        else:
            columns[f"{group}/joint_velocities"] = values(rng, n, (3,), "f8")
            columns[f"{group}/left_dpos"] = np.zeros((n, 0))
        if chance(rng, 0.97):
            columns[f"{group}/states"] = values(rng, n, (4,), "f8")
        columns[f"{group}/rewards"] = values(rng, n, (), "f4")
        columns[f"{group}/dones"] = flags(rng, n, [n - 1] if n and chance(rng, 0.6) else [], "i8").reshape(-1)
        if n > 2 and chance(rng, 0.1):
            columns[f"{group}/dones"][0] = 1
        columns[f"{group}/goal"] = values(rng, 3, (), "f8")
        columns[f"{group}@num_samples"] = n + chance(rng, 0.05)
        columns[f"{group}@model_file"] = f"<mujoco {k % 2}/>"
    if chance(rng, 0.6):
        columns["mask/train"] = np.array([f"demo_{k}" for k in range(len(runs)) if chance(rng, 0.6)] or ["demo_0"], "S")
        columns["mask/valid"] = np.array(["demo_0", "demo_99"] if chance(rng, 0.2) else ["demo_0"], "S")
    hdf5(directory / "demo.hdf5", columns)
    return {"format": "robomimic"} | ({"episodes_by": "flags"} if chance(rng, 0.03) else {})


def maniskill(rng: Rng, directory: Path) -> Options:
    """Groups of trajectories and a JSON of them: no observations, ragged columns, another order, too few."""
    seen, dtype = chance(rng, 0.7), rng.choice(["f4", "f8"])
    columns: dict[str, Any] = {}
    listed = []
    for k, n in enumerate(lengths(rng)):
        columns |= {f"traj_{k}/env_states/cube": values(rng, n + 1, (3,), dtype)}
        columns |= {f"traj_{k}/obs/qpos": values(rng, n + 1, (2,), dtype)} if seen else {}
        columns |= {f"traj_{k}/actions": values(rng, n, (2,), "f4"), f"traj_{k}/rewards": values(rng, n, (), "f4")}
        columns[f"traj_{k}/terminated"] = flags(rng, n, [-1] if chance(rng, 0.5) else [], "?").reshape(-1)
        columns[f"traj_{k}/truncated"] = flags(rng, n, [-1] if chance(rng, 0.5) else [], "?").reshape(-1)
        if chance(rng, 0.03):
            columns[f"traj_{k}/rewards"] = values(rng, n + 1, (), "f4")
        if chance(rng, 0.9):
            listed.append({"episode_id": k, "success": chance(rng, 0.5), "reset_kwargs": {"seed": k, "options": {}}})
    hdf5(directory / "trajectory.h5", columns)
    if chance(rng, 0.7):
        (directory / "trajectory.json").write_text(json.dumps({"env_info": {"env_id": "A"}, "episodes": listed[::-1]}))
    return {"format": "maniskill", "skip_bad": chance(rng, 0.2)}


def roboset(rng: Rng, directory: Path) -> Options:
    """The three conventions of rows, files of several, and RoboSet's own keys."""
    hardware = chance(rng, 0.25)
    said = [str(rng.choice(["trace", "path", "demo", "demo"])) for _ in range(1 + chance(rng, 0.4))]
    for i, convention in enumerate(said):
        columns: dict[str, Any] = {}
        for k, n in enumerate(lengths(rng)):
            trial = f"Trial{k}"
            n += convention == "trace" and not chance(rng, 0.05)
            if hardware:
                columns |= {f"{trial}/data/qp_arm": values(rng, n, (2,), "f4"), f"{trial}/data/time": np.arange(n) / 9}
                columns |= {f"{trial}/data/ctrl_arm": values(rng, n, (2,), "f4"), f"{trial}/config/x": np.arange(3)}
                columns |= {f"{trial}/derived/pose": values(rng, n, (2,), "f4")}
                continue
            seen = values(rng, n + 1, (3,), "f8")
            columns |= {f"{trial}/observations": seen[:-1], f"{trial}/actions": values(rng, n, (2,), "f8")}
            if convention == "trace" and n:
                columns[f"{trial}/actions"][-1] = np.nan
            columns[f"{trial}/rewards"] = values(rng, n, (), "f4")
            columns[f"{trial}/done"] = flags(rng, n, [n - 1] if n and chance(rng, 0.5) else [], "?").reshape(-1)
            columns[f"{trial}/time"] = np.arange(n) / 10
            pose = seen[1:, :1] if convention == "path" else seen[:-1, :1]
            columns |= {f"{trial}/env_infos/obs_dict/door": pose, f"{trial}/env_infos/solved": np.arange(n) == n - 1}
            if chance(rng, 0.95):
                columns[f"{trial}/extra"] = values(rng, n, (), "f8")
        hdf5(directory / f"seed{i}.h5", columns)
    fields = {"fields": {"observation": "env_infos/obs_dict/door"}} if not hardware and chance(rng, 0.1) else {}
    return {"format": "roboset"} | fields


def gen_dgrl(rng: Rng, directory: Path) -> Options:
    """Tars of npz: levels in names, wrong lengths and returns in names, other dtypes, ragged episodes."""
    stored = str(rng.choice(["f4", "u1", "f8"]))
    odd = chance(rng, 0.15)
    with tarfile.open(directory / "game.tar", "w") as tar:
        for i, n in enumerate(lengths(rng, 5)):
            n = min(n, 6)
            seen = rng.integers(0, 255, (n + 1, 3, 4, 4)).astype(stored)
            if odd and i == 1 and stored != "u1":
                seen[0, 0, 0, 0] = 0.5
            reward = rng.integers(0, 3, (n, 1)).astype("f4")
            columns = {"observations": seen, "actions": rng.integers(0, 15, (n, 1)), "rewards": reward}
            columns["dones"] = flags(rng, n, [n - 1] if chance(rng, 0.6) else [])
            if chance(rng, 0.05):
                columns["actions"] = columns["actions"][:-1]
            content = BytesIO()
            np.savez_compressed(content, **columns)
            level = int(rng.integers(-1, 9))
            said = f"{n + chance(rng, 0.1)}_{level}_{reward.sum() + chance(rng, 0.1):.2f}"
            info = tarfile.TarInfo(f"g/20_{i}_{said}.npz")
            info.size = len(content.getvalue())
            tar.addfile(info, BytesIO(content.getvalue()))
        if chance(rng, 0.2):
            tar.addfile(tarfile.TarInfo("g/readme.txt"))
    return {"format": "gen_dgrl", "skip_bad": chance(rng, 0.2)}


def zarr_replay_buffer(rng: Rng, directory: Path) -> Options:
    """A buffer in a directory or a zip; rows behind its end, arrays that are short, ends that lie, one step."""
    runs = lengths(rng)
    ends, rows = np.cumsum(runs), sum(runs) + int(rng.choice([0, 0, 1, 5]))
    images = rng.integers(0, 255, (rows, 4, 4, 3)).astype("u1")
    columns = {"action": values(rng, rows), "img": images, "state": values(rng, rows, (3,))}
    if chance(rng, 0.3):
        columns["reward"] = values(rng, rows, (), "f4")
    if chance(rng, 0.2):
        columns["state"][0] = 0 if columns["state"].dtype.kind == "i" else np.nan
    if chance(rng, 0.1):
        columns["img"] = images[:-1]
    if chance(rng, 0.1):
        ends[-1] += int(rng.choice([-1, 1, 100]))
    if chance(rng, 0.1):
        del columns[str(rng.choice(["action", "state"]))]
    path, format = directory / f"buffer.zarr{'.zip' if chance(rng, 0.4) else ''}", int(rng.choice([2, 3]))
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else path
    group = zarr.open_group(store, mode="w", zarr_format=format)
    for name, column in {**{f"data/{n}": c for n, c in columns.items()}, "meta/episode_ends": ends}.items():
        chunks = (int(rng.integers(1, 9)), *column.shape[1:])
        group.create_array(name, shape=column.shape, dtype=column.dtype, chunks=chunks)[...] = column
    if path.suffix == ".zip":
        store.close()
    elif chance(rng, 0.1):
        next(p for p in sorted(path.rglob("*")) if p.is_file() and p.name[0].isdigit()).write_bytes(b"damaged")
    return {"format": "zarr_replay_buffer"}


def recordings(rng: Rng, directory: Path) -> Options:
    """Recordings in MCAP or SQLite."""
    if chance(rng, 0.3):
        database(rng, directory / "run.db3")
        return {"format": "recordings"}
    return _of_mcap(rng, directory)


def database(rng: Rng, path: Path) -> None:
    """A bag of ROS 2: lists whose length changes, one message, no definition, messages of no topic, NaN, damage."""
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)")
    base.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)")
    base.execute("CREATE TABLE message_definitions(topic_type TEXT, encoding TEXT, encoded_message_definition TEXT)")
    base.execute("INSERT INTO message_definitions VALUES('lab/msg/List', 'ros2msg', 'float64[] data')")
    for number, topic in enumerate(("/joints", "/cmd", "/odd"), 1):
        kind = "lab/msg/Gone" if topic == "/odd" and chance(rng, 0.3) else "lab/msg/List"
        base.execute("INSERT INTO topics VALUES(?, ?, ?, 'cdr')", (number, topic, kind))
        for k in range(int(rng.choice([0, 1, 9], p=[0.05, 0.15, 0.8]))):
            width = int(rng.integers(1, 3)) if topic == "/odd" else 2
            data = struct.pack(f"<4sI4x{width}d", b"\0\1\0\0", width, *rng.choice([k, 0.5, np.nan], width))
            data = data[:-1] if chance(rng, 0.01) else data
            at = (20 * k + int(rng.integers(0, 9)) - 50 * chance(rng, 0.05) + 100) * 1_000_000
            of = 9 if chance(rng, 0.01) else number
            base.execute("INSERT INTO messages VALUES(NULL, ?, ?, ?)", (of, at, data))
    base.commit()
    base.close()


def _of_mcap(rng: Rng, directory: Path) -> Options:
    """MCAP of JSON: topics that a file lacks, times that go back, one message, empty cameras, NaN, texts, null."""
    for number in range(1 + chance(rng, 0.4)):
        topics: dict[str, list[Any]] = {}
        for topic in ("/joints", "/cmd", "/cam", "/note", "/odd"):
            count = int(rng.choice([0, 1, 2, 9], p=[0.05, 0.1, 0.15, 0.7]))
            if topic not in ("/joints", "/cmd") and chance(rng, 0.5):
                continue
            width = int(rng.integers(1, 3))
            for k in range(count):
                joints = {"q": rng.normal(size=width).tolist(), "n": k if chance(rng, 0.9) else k + 0.5}
                if chance(rng, 0.05):
                    joints |= {"q": [float("nan")] * width}
                image = base64.b64encode(PNG if chance(rng, 0.95) else b"").decode()
                odd = [{"a": k}, {"a": None}, {"a": "x"}, {"a": [{"b": k}, {"b": k + 1}]}, {"a": {"c": [[k]]}}]
                message = {"/joints": joints, "/cmd": {"v": k * 1.5}, "/cam": {"data": image}, "/note": {"data": "go"}}
                topics.setdefault(topic, []).append(message.get(topic, odd[int(rng.integers(0, 5))]))
        mcap(rng, directory / f"run_{number}.mcap", topics)
    hz = {"hz": float(rng.choice([10, 33.3]))} if chance(rng, 0.5) else {}
    return {"format": "recordings", "nearest": chance(rng, 0.2), **hz}


def mcap(rng: Rng, path: Path, topics: dict[str, list[Any]]) -> None:
    """Write messages of JSON 20 ms apart, with a schema; sometimes the clock goes back."""
    from mcap.writer import Writer

    schema = json.dumps({"properties": {"data": {"type": "string", "contentEncoding": "base64"}}}).encode()
    with path.open("wb") as f:
        writer = Writer(f)
        writer.start()
        image = writer.register_schema("lab.Image", "jsonschema", schema)
        for topic, messages in topics.items():
            channel = writer.register_channel(topic, "json", image if topic == "/cam" else 0)
            for k, message in enumerate(messages):
                at = (20 * k + int(rng.integers(0, 9)) - 50 * chance(rng, 0.05) + 100) * 1_000_000
                writer.add_message(channel, log_time=at, data=json.dumps(message).encode(), publish_time=at)
        writer.finish()


def plain(rng: Rng, directory: Path) -> Options:
    """Tables of users: each mark of episodes alone and against another, final rows, files and groups per episode."""
    return _episodes(rng, directory) if chance(rng, 0.4) else _table(rng, directory)


def _table(rng: Rng, directory: Path) -> Options:
    kind = str(rng.choice(["npz", "h5", "parquet", "csv", "jsonl"]))
    options: Options = {}
    final = chance(rng, 0.25)  # rows of final observations, without an action
    longer = not final and kind in ("npz", "h5") and chance(rng, 0.2)
    marks = {str(m) for m in rng.choice(["id", "step", "start", "last", "done", "terminated", "truncated"], 3)}
    shuffle = chance(rng, 0.15)
    arrive = chance(rng, 0.15)
    first = 0
    cost, dtype = chance(rng, 0.3), "f8" if kind in ("csv", "jsonl") else rng.choice(["f4", "f8"])
    for number in range(1 + chance(rng, 0.3)):
        runs = [n + final for n in lengths(rng, 6)]
        n, ends = sum(runs), np.cumsum(runs) - 1
        begins = np.concatenate([[0], ends[:-1] + 1])
        step = np.concatenate([np.arange(r) for r in runs])
        ids = np.repeat(np.arange(len(runs)), runs) + first
        first += len(runs) - chance(rng, 0.2)
        columns: dict[str, Any] = {"obs": values(rng, n + len(runs) * longer, (2,), dtype)}
        columns |= {"action": values(rng, n, (2,), "f8"), "reward": values(rng, n, (), "f8")}
        if final:
            columns["action"][ends] = np.nan
            if chance(rng, 0.8):
                columns["reward"][ends] = np.nan if chance(rng, 0.5) else 0
        over = np.array([e for e in ends if chance(rng, 0.5)], int)
        at = over - (final and chance(rng, 0.5))
        rest = np.setdiff1d(ends, over)
        marked = {"id": ids, "step": step, "start": flags(rng, n, begins, "?"), "last": flags(rng, n, ends, "?")}
        marked |= {"done": flags(rng, n, ends if chance(rng, 0.7) else over, "?")}
        marked |= {"terminated": flags(rng, n, at, "?"), "truncated": flags(rng, n, rest, "?")}
        names = {"id": "episode", "step": "step", "start": "is_first", "last": "is_last"}
        columns |= {names.get(m, m): marked[m].reshape(-1) for m in sorted(marks)}
        if chance(rng, 0.1):
            columns["done"] = flags(rng, n, rng.integers(0, n, 2), "?").reshape(-1)
        if chance(rng, 0.2):
            columns["next_obs"] = np.roll(columns["obs"][:n], -1, axis=0) + (0 if chance(rng, 0.7) else 1)
        if cost:
            columns["cost"] = values(rng, n, (), "f8")
        if chance(rng, 0.2) and kind in ("npz", "h5"):
            columns["success"] = np.arange(len(runs)) % 2 == 0
        if shuffle and not longer:
            order = rng.permutation(n)
            columns = {k: v[order] if len(v) == n else v for k, v in columns.items()}
        _write(rng, directory, f"{number}", kind, columns)
    if arrive:
        options["rewards"] = "arrive"
    if chance(rng, 0.25):
        rules = [
            "flags",
            "timeouts",
            "jumps",
            "file",
            "field:episode",
            "steps:step",
            "starts:is_first",
            "lasts:is_last",
        ]
        options["episodes_by"] = str(rng.choice(rules))
    if chance(rng, 0.1) and kind != "csv":
        options["fields"] = {"observation": "action", "action": "obs"}
    if chance(rng, 0.1) and cost:
        options["fields"] = {"episode/task": "cost"}
    return options | {"format": "plain", "skip_bad": chance(rng, 0.1)}


def _episodes(rng: Rng, directory: Path) -> Options:
    grouped = chance(rng, 0.5)
    kind = "h5" if grouped else str(rng.choice(["npz", "h5", "parquet", "jsonl"]))
    longer = chance(rng, 0.6) and kind in ("npz", "h5")
    arrive = longer and chance(rng, 0.3)
    found: dict[str, Any] = {}
    for k, n in enumerate(lengths(rng, 6)):
        columns: dict[str, Any] = {"obs": values(rng, n + longer, (2,), "f8"), "action": values(rng, n, (1,), "f8")}
        columns["reward"] = values(rng, n + arrive, (), "f8")
        if not longer and chance(rng, 0.2):
            columns["action"][-1] = np.nan
        if chance(rng, 0.5):
            columns["terminated"] = flags(rng, n + arrive, [-1] if chance(rng, 0.6) else [], "?").reshape(-1)
        elif kind in ("npz", "h5"):
            columns["terminated"] = chance(rng, 0.5)
        if chance(rng, 0.1) and n > 2:
            columns["truncated"] = flags(rng, n, [0], "?").reshape(-1)
        if chance(rng, 0.2):
            columns["step"] = np.arange(n)
        if kind in ("npz", "h5"):
            columns["seed"] = k
            if chance(rng, 0.1):
                columns["goal"] = values(rng, 3, (2,))
        if grouped:
            found |= {f"demo_{k}/{key}": v for key, v in columns.items()}
            found[f"demo_{k}@task"] = "lift"
        else:
            _write(rng, directory, f"e{k}", kind, columns)
            _describe(rng, directory, k)
    if grouped:
        hdf5(directory / "all.h5", found)
    options: Options = {"format": "plain", "skip_bad": chance(rng, 0.1)}
    return options | ({"rewards": "arrive"} if arrive else {}) | ({"episodes_by": "file"} if chance(rng, 0.2) else {})


def _describe(rng: Rng, directory: Path, k: int) -> None:
    """Write what describes an episode beside it, or not: values of several types, lists, and names that are taken."""
    seen: list[Any] = [True, k, 0.5 * k, f"v{k}", None, [k, k], {"at": k}]
    if chance(rng, 0.5):
        said = {"grade": k, "any": seen[int(rng.integers(0, len(seen)))], "scene": {"seed": k, "light": 0.5}, "seed": k}
        (directory / f"e{k}.json").write_text(json.dumps(said))
    if chance(rng, 0.2):
        (directory / f"e{k}_lang.txt").write_text(f"lift {k}" if chance(rng, 0.8) else "two\nlines")


def _write(rng: Rng, directory: Path, name: str, kind: str, columns: dict[str, Any]) -> None:
    if kind == "npz":
        np.savez_compressed(directory / f"{name}.npz", **columns)
    elif kind == "h5":
        hdf5(directory / f"{name}.h5", columns, deflate=chance(rng, 0.3))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = {
            k: [None if v != v else v for v in x.tolist()] if x.ndim == 1 else x.tolist() for k, x in columns.items()
        }
        if kind == "csv":
            rows = {f"{k}_{i}" if np.ndim(x) > 1 else k: np.asarray(x)[:, i].tolist() if np.ndim(x) > 1 else rows[k]
                    for k, x in columns.items() for i in range(np.shape(x)[1] if np.ndim(x) > 1 else 1)}  # fmt: skip
        count = max(map(len, rows.values()))
        rows = {k: v + [None] * (count - len(v)) for k, v in rows.items()}
        if kind == "parquet":
            pq.write_table(pa.table(rows), directory / f"{name}.parquet", row_group_size=11)
        elif kind == "jsonl":
            lines = (json.dumps({k: v[i] for k, v in rows.items()}) for i in range(count))
            (directory / f"{name}.jsonl").write_text("\n".join(lines).replace("NaN", "null") + "\n")
        else:
            said = [["" if v is None or v != v else str(v) for v in column] for column in rows.values()]
            lines = (",".join(row) for row in zip(*said, strict=True))
            (directory / f"{name}.csv").write_text("\n".join([",".join(rows), *lines]) + "\n")


def lerobot(rng: Rng, directory: Path) -> Options:
    """All versions: annotations, depth, odd columns, tasks and files that are missing, episodes of one step."""
    random_lerobot.write(rng, directory, lengths(rng, 6))
    return {"format": "lerobot", "skip_bad": chance(rng, 0.2)}


LIBRARIES: dict[str, Callable[[Rng, Path], Options]] = {
    f.__name__: f
    for f in (
        openml,
        d3rlpy,
        ogbench,
        d4rl,
        robomimic,
        maniskill,
        roboset,
        gen_dgrl,
        vd4rl,
        exorl,
        neorl2,
        zarr_replay_buffer,
        recordings,
        plain,
        step_batches,
        imitation,
        rllib,
        lerobot,
    )
}


# -- strangers: what an archive holds beside what its layout knows


def add_stranger(rng: Rng, directory: Path) -> str:
    """Add a file, a column, a dataset, a group, an attribute or a camera to an archive; return what it is.

    Its name contains ``stranger``. Files whose form allows nothing else get a file beside them.
    """
    path = files[int(rng.integers(0, len(files)))] if (files := _changeable(directory)) else None
    if path is None or chance(rng, 0.2):
        return _beside(rng, directory)
    return {
        ".npz": _array,
        ".zarr": _zarr_array,
        ".csv": _csv_column,
        ".jsonl": _json_key,
        ".parquet": _parquet_column,
        ".mcap": _mcap_record,
    }.get(path.suffix, _hdf5_object)(rng, path)


def _changeable(directory: Path) -> list[Path]:
    known = (".npz", ".csv", ".jsonl", ".parquet", ".h5", ".hdf5", ".zarr", ".mcap")
    return sorted(p for p in directory.rglob("*") if p.suffix in known)


def _beside(rng: Rng, directory: Path) -> str:
    kind = str(rng.choice(["text", "json", "hidden", "image", "video"]))
    names = {"text": "stranger.txt", "json": "stranger.json", "hidden": ".stranger", "video": "stranger.mp4"}
    path = directory / names.get(kind, "stranger/0.png")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes({"json": b'{"success": true}', "image": PNG, "video": b"no video"}.get(kind, b"operator: A"))
    return kind


def _hdf5_object(rng: Rng, path: Path) -> str:
    kind = str(rng.choice(["attribute", "attribute of a dataset", "scalar", "array", "rows", "group"]))
    with h5py.File(path, "a") as f:
        inside: list[str] = []
        f.visititems(lambda name, item: inside.append(name) if isinstance(item, h5py.Dataset) else None)
        if kind.startswith("attribute"):
            owner = f[str(rng.choice(inside))] if kind != "attribute" and inside else f
            owner.attrs["stranger"] = str(rng.choice(["rad", "deg"])) if chance(rng, 0.5) else np.arange(3)
        elif kind == "group":
            f.create_group("stranger")
        else:
            rows = max((len(f[n]) for n in inside if f[n].shape), default=1)
            f["stranger"] = {"scalar": 5.0, "array": np.zeros((rows + 7, 2))}.get(kind, np.zeros((rows, 2)))
    return kind


def _array(rng: Rng, path: Path) -> str:
    with np.load(path, allow_pickle=True) as found:  # it was written here
        columns = dict(found)
    rows = max((len(v) for v in columns.values() if v.ndim), default=1)
    kind = str(rng.choice(["scalar", "array", "rows"]))
    columns["stranger"] = {"scalar": np.array("pick"), "array": np.zeros((rows + 7, 2))}.get(kind, np.zeros(rows))
    np.savez(path, **columns)
    return kind


def _zarr_array(rng: Rng, path: Path) -> str:
    group, kind = zarr.open_group(path, mode="a"), str(rng.choice(["attribute", "array", "rows"]))
    if kind == "attribute":
        group["data"].attrs["stranger"] = "rad"
        return kind
    name = "meta/stranger" if kind == "array" else "data/stranger"
    group.create_array(name, shape=(1000,), dtype="f4")[...] = 1
    return kind


def _csv_column(rng: Rng, path: Path) -> str:
    lines = path.read_text().splitlines()
    values = ["stranger", *(str(k) for k in range(len(lines) - 1))]
    path.write_text("".join(f"{line},{value}\n" for line, value in zip(lines, values, strict=True)))
    return "column"


def _json_key(rng: Rng, path: Path) -> str:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kind = str(rng.choice(["number", "nested", "null"]))
    lines[-1]["stranger"] = {"number": 1.5, "nested": {"a": [1, 2]}}.get(kind)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return kind


def _parquet_column(rng: Rng, path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    if chance(rng, 0.3):
        pq.write_table(table.replace_schema_metadata({"stranger": "x"}), path)
        return "key"
    kind = pa.map_(pa.string(), pa.int64()) if chance(rng, 0.3) else pa.float64()
    pq.write_table(table.append_column("stranger", pa.nulls(len(table), kind)), path)
    return str(kind)


def _mcap_record(rng: Rng, path: Path) -> str:
    """Add a topic, a value of messages, or metadata; the messages that were there stay as they are."""
    from mcap.reader import make_reader
    from mcap.writer import Writer

    kind = str(rng.choice(["topic", "value", "metadata"]))
    with path.open("rb") as f:
        found = [(c.topic, c.schema_id, m.log_time, m.data) for _, c, m in make_reader(f).iter_messages()]
        f.seek(0)
        summary = make_reader(f).get_summary()
    with path.open("wb") as f:
        writer = Writer(f)
        writer.start()
        schemas = {i: writer.register_schema(s.name, s.encoding, s.data) for i, s in summary.schemas.items()}
        channels = {
            c.topic: writer.register_channel(c.topic, "json", schemas.get(c.schema_id, 0))
            for c in summary.channels.values()
        }
        for topic, _, at, data in found:
            more = {"stranger": [1, 2]} if kind == "value" and topic == "/joints" else {}
            data = json.dumps(json.loads(data) | more).encode()
            writer.add_message(channels[topic], log_time=at, data=data, publish_time=at)
        if kind == "metadata" or (kind == "value" and not any(topic == "/joints" for topic, *_ in found)):
            writer.add_metadata("stranger", {"a": "b"})
        elif kind == "topic":
            channel = writer.register_channel("/stranger", "json", 0)
            for at in (1, 10**9):
                writer.add_message(channel, log_time=at, data=b'{"x": 1}', publish_time=at)
        writer.finish()
    return kind
