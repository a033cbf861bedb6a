"""robomimic and raw robosuite files: every value of the sample and of small files, read with h5py; and each trap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h5py
import numpy as np
import pytest
from archive_rows import Rows
from server import Server

import rlds_cli
from rlds_cli import archives, registry
from rlds_cli.archives import Archive, Replan
from rlds_cli.archives.formats import tables
from rlds_cli.archives.robomimic import read as robomimic
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.make.importing import import_files
from rlds_cli.ted import CUT, TERMINATED

SAMPLE = Path(__file__).parents[1] / "data" / "robomimic" / "low_dim_layout.hdf5"
ENV_ARGS = {"env_name": "Lift", "env_type": 1, "env_kwargs": {"robots": ["Panda"]}}


def demo(seed: int, steps: int = 4, *, done: tuple[int, ...] = (-1,), images: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pos = rng.normal(size=(steps + 1, 3))
    dones = np.zeros(steps, "i8")
    if steps:
        dones[list(done)] = 1
    columns = {
        "actions": rng.normal(size=(steps, 7)),
        "actions_abs": rng.normal(size=(steps, 7)),
        "rewards": rng.random(steps),
        "dones": dones,
        "states": rng.normal(size=(steps, 9)),
        "obs/robot0_eef_pos": pos[:-1],
        "obs/nothing": np.zeros((steps, 0)),
        "next_obs/robot0_eef_pos": pos[1:],
        "next_obs/nothing": np.zeros((steps, 0)),
    }
    if images:
        frames = rng.integers(0, 255, (steps + 1, 84, 84, 3), dtype="u1")
        columns |= {"obs/agentview_image": frames[:-1], "next_obs/agentview_image": frames[1:]}
    return columns


def write(path: Path, demos: Mapping[str, Mapping[str, Any]], masks: Mapping[str, list[str]] | None = None) -> Path:
    with h5py.File(path, "w") as f:
        f.create_group("data").attrs.update({"env_args": json.dumps(ENV_ARGS), "total": 0})
        for name, columns in demos.items():
            for key, value in columns.items():
                f[f"data/{name}/{key}"] = value
            f[f"data/{name}"].attrs["num_samples"] = len(columns["actions"])
            f[f"data/{name}"].attrs["model_file"] = "<mujoco/>" if name != "demo_2" else "<mujoco two/>"
        for key, members in (masks or {}).items():
            f[f"mask/{key}"] = np.array(members, "S")
    return path


@pytest.mark.thorough
def test_by_hand(tmp_path: Path) -> None:
    demos = {"demo_0": demo(0), "demo_10": demo(10, 3, done=()), "demo_2": demo(2, 5, done=(1, 4), images=False)}
    masks = {"train": ["demo_0", "demo_2"], "valid": ["demo_10"], "50_percent": ["demo_0"]}
    rows = Rows("robomimic", write(tmp_path / "a.hdf5", demos, masks))
    order = [demos["demo_0"], demos["demo_2"], demos["demo_10"]]
    assert rows.episodes.group == ["demo_0", "demo_2", "demo_10"]
    assert rows.episodes.length.tolist() == [4, 5, 3]
    assert rows.episodes.end.tolist() == [TERMINATED, TERMINATED, CUT]
    assert rows.episodes.observed.all()
    assert {k: v.tolist() for k, v in rows.episodes.splits.items()} == {
        "train": [True, True, False],
        "valid": [False, False, True],
        "50_percent": [True, False, False],
    }
    for k, columns in enumerate(order):
        observations = np.concatenate([columns["obs/robot0_eef_pos"], columns["next_obs/robot0_eef_pos"][-1:]])
        np.testing.assert_array_equal(rows.of(k, "observation/robot0_eef_pos"), observations, strict=True)
        for field, key in (("action", "actions"), ("actions_abs", "actions_abs"), ("next/reward", "rewards")):
            np.testing.assert_array_equal(rows.of(k, field), columns[key], strict=True)
        np.testing.assert_array_equal(rows.of(k, "state"), columns["states"], strict=True)
        np.testing.assert_array_equal(rows.of(k, "next/terminated"), columns["dones"].astype(bool))
    assert rows["observation/nothing"].shape == (15, 0)
    assert rows.of(2, "next/truncated").tolist() == [0, 0, 1]
    assert rows.codes == {"terminated-inside": 1}
    assert rows.plan.env == {"id": "Lift", "args": ENV_ARGS}


@pytest.mark.thorough
def test_constants_of_as_many_values_as_one_demonstration_has_steps(tmp_path: Path) -> None:
    gains = np.arange(4.0)
    demos = {f"demo_{k}": demo(k, steps) | {"gains": gains} for k, steps in enumerate((3, 4, 5))}
    rows = Rows("robomimic", write(tmp_path / "a.hdf5", demos))
    assert rows.episodes.length.tolist() == [3, 4, 5] and "gains" not in rows.schema
    assert [np.array_equal(rows.metadata[f"demo_{k}/gains"], gains) for k in range(3)] == [True] * 3


@pytest.mark.thorough
def test_masks_may_have_any_name(tmp_path: Path) -> None:
    """A slash, letters beyond ASCII, or the name of a column of the episode table."""
    masks = {"length": ["demo_2"], "train/50 %": ["demo_0", "demo_2"], "früh": ["demo_0"], "group": ["demo_1"]}
    path = write(tmp_path / "a.hdf5", {f"demo_{k}": demo(k, 3 + k) for k in range(3)}, masks)
    ds = import_files(path, "local/masks", home=tmp_path)
    assert ds.episodes["length"].tolist() == [3, 4, 5]
    assert ds.episodes["group"].tolist() == ["demo_0", "demo_1", "demo_2"]
    for name, members in masks.items():
        chosen = ds.select(split=name)
        assert chosen.episodes["group"].tolist() == members
        assert chosen.stats["action"].count == int(chosen.episodes["length"].sum())
    assert [*ds.episodes][-4:] == ["früh", "split/group", "split/length", "train/50 %"]


@pytest.mark.thorough
def test_models_stand_once_in_the_metadata(tmp_path: Path) -> None:
    rows = Rows("robomimic", write(tmp_path / "a.hdf5", {f"demo_{k}": demo(k) for k in (1, 2, 3)}))
    assert rows.metadata["models/0"] == "<mujoco/>" and rows.metadata["models/1"] == "<mujoco two/>"
    assert rows.metadata["model"].tolist() == [0, 1, 0]
    assert json.loads(str(rows.metadata["data/attributes/env_args"])) == ENV_ARGS


@pytest.mark.parametrize("budget", [2, 3, 7])
def test_long_demonstrations_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    path = write(tmp_path / "a.hdf5", {f"demo_{k}": demo(k, 1 + 5 * k, images=True) for k in range(3)})
    whole = Rows("robomimic", path)
    monkeypatch.setattr("rlds_cli.archives.grouped.CHUNK_ROWS", budget)
    parts = Rows("robomimic", path)
    assert max(map(len, parts.chunks)) <= budget
    for name in whole.schema:
        np.testing.assert_array_equal(parts[name], whole[name], strict=True)
    assert whole["observation/agentview_image"].dtype == np.uint8
    assert parts.episodes.end.tolist() == whole.episodes.end.tolist()


def test_files_without_next_observations(tmp_path: Path) -> None:
    bare = {k: v for k, v in demo(0).items() if not k.startswith("next_obs/")}
    rows = Rows("robomimic", write(tmp_path / "a.hdf5", {"demo_0": bare}))
    assert not rows.episodes.observed.any()
    np.testing.assert_array_equal(rows["observation/robot0_eef_pos"], bare["obs/robot0_eef_pos"][[0, 1, 2, 3, 3]])


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["next_obs/robot0_eef_pos", "next_obs/agentview_image"])
def test_next_observations_of_their_own(tmp_path: Path, key: str) -> None:
    demos = {f"demo_{k}": demo(k, images=True) for k in range(2)}
    demos["demo_1"][key] = demos["demo_1"][key] + demos["demo_1"][key].dtype.type(1)
    path = write(tmp_path / "a.hdf5", demos)
    plan = robomimic.READER.plan(Archive(tmp_path, (path,)))
    with pytest.raises(Replan) as better:
        [*robomimic.READER.read(plan, plan.parts[0])]
    (chunk,) = robomimic.READER.read(better.value.plan, plan.parts[0])
    field = f"next/observation/{key.removeprefix('next_obs/')}"
    np.testing.assert_array_equal(chunk.columns[field][5:9], demos["demo_1"][key])  # type: ignore[index]
    last = chunk.columns[field.removeprefix("next/")][9]  # type: ignore[index]
    np.testing.assert_array_equal(last, demos["demo_1"][key][-1])
    assert [n.code for n in better.value.plan.notes] == ["next-observation"]


def test_a_constant_of_as_many_rows_as_there_are_steps_is_no_field(tmp_path: Path) -> None:
    demos = {f"demo_{k}": demo(k, 4 + k) | {"gains": np.arange(4.0)} for k in range(2)}
    demos["demo_1"]["next_obs/robot0_eef_pos"] = demos["demo_1"]["next_obs/robot0_eef_pos"] + 1
    path = write(tmp_path / "a.hdf5", demos)
    plan = robomimic.READER.plan(Archive(tmp_path, (path,)))
    with pytest.raises(Replan) as better:
        [*robomimic.READER.read(plan, plan.parts[0])]
    assert "gains" not in {f.name for f in (*plan.schema, *better.value.plan.schema)}
    constants = dict(robomimic.READER.metadata(better.value.plan))
    assert constants["demo_0/gains"].tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]


def test_next_observations_of_some_keys_only(tmp_path: Path) -> None:
    some = demo(0)
    del some["next_obs/nothing"]
    rows = Rows("robomimic", write(tmp_path / "a.hdf5", {"demo_0": some}))
    assert not rows.episodes.observed.any()
    np.testing.assert_array_equal(rows.of(0, "next/observation/robot0_eef_pos"), some["next_obs/robot0_eef_pos"])


def test_raw_files_of_robosuite(tmp_path: Path) -> None:
    """Version 1.0: states and actions. Version 0.3: what the operator asked for, some of it of no width."""
    one = {
        "states": np.random.default_rng(0).normal(size=(3, 5)),
        "actions": np.ones((3, 7)),
        "joint_torques": np.eye(3),
    }
    with h5py.File(tmp_path / "a.hdf5", "w") as f:
        for key, value in one.items():
            f[f"data/demo_1/{key}"] = value
        f["data"].attrs.update({"env": "SawyerLift", "repository_version": "1.0.0"})
    rows = Rows("robomimic", tmp_path / "a.hdf5")
    np.testing.assert_array_equal(rows["observation"], one["states"][[0, 1, 2, 2]])
    np.testing.assert_array_equal(rows.of(0, "joint_torques"), one["joint_torques"])
    assert rows.codes == {"states-only": 1} and rows.plan.env == {"id": "SawyerLift"}
    assert "next/reward" not in rows.schema and rows.episodes.end.tolist() == [CUT]
    assert rows.metadata["data/attributes/repository_version"] == "1.0.0"

    with h5py.File(tmp_path / "b.hdf5", "w") as f:
        for key, width in (("states", 5), ("joint_velocities", 7), ("gripper_actuations", 1), ("left_dpos", 0)):
            f[f"data/demo_1/{key}"] = np.ones((3, width))
        f["data/demo_1"].attrs["model_file"] = "model_1.xml"
    rows = Rows("robomimic", tmp_path / "b.hdf5")
    assert {n for n in rows.schema if n.startswith("action/")} == {
        "action/joint_velocities",
        "action/gripper_actuations",
        "action/left_dpos",
    }
    assert rows["action/left_dpos"].shape == (4, 0)
    assert rows.metadata["models/0"] == "model_1.xml"
    assert archives.recognise([tmp_path / "b.hdf5"]) == ("robomimic", "robosuite's raw layout: 1 demonstrations")


def test_what_is_odd_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", {"demo_0": demo(0), "demo_1": demo(1, 0)}, {"train": ["demo_0", "demo_7"]})
    with h5py.File(path, "a") as f:
        f["data/demo_0"].attrs["num_samples"] = 9
    rows = Rows("robomimic", path)
    assert rows.codes == {"empty-episodes": 1, "unknown-demos": 1, "num-samples": 1}
    assert rows.episodes.group == ["demo_0"]


def test_what_is_refused(tmp_path: Path) -> None:
    other = {**demo(1), "obs/robot0_eef_pos": np.zeros((4, 9)), "next_obs/robot0_eef_pos": np.zeros((4, 9))}
    path = write(tmp_path / "a.hdf5", {"demo_0": demo(0), "demo_1": other})
    with pytest.raises(UnknownLayout, match=r"demo_1 does not hold .*eef_pos is float64 \[9\] and float64 \[3\]"):
        Rows("robomimic", path)
    path = write(tmp_path / "b.hdf5", {"demo_0": {**demo(0), "rewards": np.zeros(3)}})
    with pytest.raises(CorruptArchive, match="demo_0 has 4 steps, and columns of other lengths: rewards 3"):
        Rows("robomimic", path)
    path = write(tmp_path / "c.hdf5", {"demo_0": {**demo(0), "next_obs/robot0_eef_pos": np.zeros((4, 9))}})
    with pytest.raises(CorruptArchive, match=r"next_obs/robot0_eef_pos has rows of \(9,\)"):
        Rows("robomimic", path)
    with h5py.File(tmp_path / "d.hdf5", "w") as f:
        f["data/demo_0/states"] = np.zeros((3, 2))
    with pytest.raises(UnknownLayout, match="has no actions"):
        Rows("robomimic", tmp_path / "d.hdf5")
    path = write(tmp_path / "e.hdf5", {"demo_0": demo(0)})
    with h5py.File(path, "a") as f:
        f["mask/train"] = np.arange(3)
    with pytest.raises(CorruptArchive, match="mask/train holds int64 values"):
        Rows("robomimic", path)


@pytest.mark.thorough
def test_the_sample() -> None:
    found = archives.recognise([SAMPLE])
    assert found == ("robomimic", "robomimic layout: 6 demonstrations")
    rows = Rows("robomimic", SAMPLE)
    with h5py.File(SAMPLE) as f:
        assert sorted(f["data"]) == rows.episodes.group
        for k, name in enumerate(rows.episodes.group):
            group = f["data"][name]
            for key in group["obs"]:
                truth = np.concatenate([group["obs"][key][:], group["next_obs"][key][-1:]])
                np.testing.assert_array_equal(rows.of(k, f"observation/{key}"), truth, strict=True)
            for field, key in (("action", "actions"), ("next/reward", "rewards"), ("state", "states")):
                np.testing.assert_array_equal(rows.of(k, field), group[key][:], strict=True)
            np.testing.assert_array_equal(rows.of(k, "next/terminated"), group["dones"][:] != 0)
        for split, members in rows.episodes.splits.items():
            truth = [n.encode() in set(f["mask"][split]) for n in rows.episodes.group]
            assert members.tolist() == truth


@pytest.mark.thorough
def test_from_the_hub_and_from_stanford(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demos = {f"demo_{k}": demo(k) for k in range(3)}
    content = write(tmp_path / "a.hdf5", demos, {"train": ["demo_0", "demo_2"], "20_percent": ["demo_2"]}).read_bytes()
    with Server() as server:
        server.add_repository("robomimic/robomimic_datasets", {"v1.5/lift/ph/low_dim_v15.hdf5": content})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        ds = rlds_cli.download("robomimic/lift/ph/low_dim/v1.5")
    assert ds.num_episodes == 3 and ds.num_steps == 12
    assert ds.select(split="train").num_steps == 8 and ds.select(split="20_percent").num_steps == 4
    url = registry.get("robomimic/lift/ph/low_dim/v141").files[0].urls[0]
    with Server() as server:
        server.add(urlsplit(url).path, content)
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
        older = rlds_cli.download("robomimic/lift/ph/low_dim/v141")
    assert older.fingerprint == ds.fingerprint


def test_files_of_several_environments_record_what_they_have_in_common(tmp_path: Path) -> None:
    for k, robot in enumerate(("Panda", "Sawyer")):
        with h5py.File(write(tmp_path / f"{k}.hdf5", {"demo_0": demo(k)}), "a") as f:
            f["data"].attrs["env_args"] = json.dumps({**ENV_ARGS, "env_kwargs": {"robots": [robot]}})
    files = (tmp_path / "0.hdf5", tmp_path / "1.hdf5")
    plan = archives.reader("robomimic").plan(Archive(tmp_path, files))
    assert plan.env == {"id": "Lift"}
    assert any("args" in note.text for note in plan.notes)
    assert archives.reader("robomimic").plan(Archive(tmp_path, files[:1])).env["args"]["env_kwargs"]["robots"] == [
        "Panda"
    ]


def test_attributes_of_demonstrations_are_columns_of_the_episode_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as f:
        for k, n in enumerate((4, 6, 3)):  # as Isaac Lab records them
            g = f.create_group(f"data/demo_{k}")
            g.attrs.update(num_samples=n, seed=7 + k, success=k != 1, scale=np.ones(2))
            g["actions"], g["obs/eef_pos"] = np.full((n, 7), k, "f4"), np.ones((n, 3), "f4")
            g["states/robot"] = np.ones((n, 9), "f4")
    ds = import_files(tmp_path / "a.hdf5", "local/x")
    assert ds.episodes["seed" if "seed" in ds.episodes else "own_seed"].tolist() == [7, 8, 9]
    assert ds.select(where="success").episodes["length"].tolist() == [4, 3]
    assert "num_samples" not in ds.episodes and "scale" not in ds.episodes


def test_files_of_more_datasets_than_a_table_has_columns_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a thousand demonstrations are."""
    monkeypatch.setattr(tables, "MAX_COLUMNS", 4)
    file = write(tmp_path / "a.hdf5", {f"demo_{k}": demo(k + 2) for k in range(3)})
    assert (archives.recognise([file]) or ("",))[0] == "robomimic"
