"""What lies beside episodes and describes them: columns of the episode table, whose values are written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import run_rlds
from lerobot_archives import decoded, encode
from own_files import write

import rlds_cli
from rlds_cli.errors import CorruptArchive, NameTaken, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import append
from rlds_cli.make.importing import import_files, plan_import


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory beside the home."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def episode(path: Path, steps: int = 2, **more: Any) -> Path:
    """An episode whose actions are its number of steps."""
    return write(path, {"obs": np.ones((steps + 1, 2)), "action": np.full((steps, 1), steps), **more})


def say(path: Path, said: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said))


def film(path: Path, count: int) -> np.ndarray:
    """A video, as av decodes it."""
    encode(path, np.stack([np.full((32, 48, 3), 9 * k, "u1") for k in range(count)]), "libx264", {})
    return decoded(path)


def made(*paths: Path, **how: Any) -> rlds_cli.Dataset:
    return import_files(paths, "local/x", progress=False, **how)


def fates(*paths: Path, **how: Any) -> dict[str, str]:
    return {e.name: e.left_out for e in plan_import(paths, "local/x", **how).account if e.left_out}


def test_files_in_the_folder_of_an_episode(data: Path) -> None:
    for k in range(3):
        episode(data / f"ep_{k}/data.npz", k + 1)
        light = {"lamp": 0.5 * k, "on": k > 0, "at": [1, k]}
        say(data / f"ep_{k}/meta.json", {"success": k != 1, "light": light, "note": None if k else "first"})
        say(data / f"ep_{k}/lang.txt", f"pick {k}\n")
        say(data / f"ep_{k}/log.txt", "two\nlines\n")
    ds = made(data)
    assert ds.episodes["length"].tolist() == [1, 2, 3]
    assert ds.episodes["success"].tolist() == [True, False, True] and ds.episodes["success"].dtype == bool
    assert ds.episodes["light_lamp"].tolist() == [0.0, 0.5, 1.0] and ds.episodes["light_on"].tolist() == [False, 1, 1]
    assert ds.episodes["note"].tolist() == ["first", None, None]
    assert ds.episodes["task"].tolist() == ["pick 0", "pick 1", "pick 2"]
    assert ds.select(where="success and light_lamp > 0").episodes["length"].tolist() == [3]
    assert fates(data) == {"ep_*/log.txt": "not a table"}
    assert [np.asarray(ds.store.table.metadata[f"ep_{k}/meta.json/light/at"]).tolist() for k in range(3)] == [
        [1, k] for k in range(3)
    ]


def test_files_called_as_an_episode(data: Path) -> None:
    """Names that only begin alike are others: ep_1 and ep_10."""
    for k in (1, 2, 10):
        episode(data / f"ep_{k}.npz", k)
        say(data / f"ep_{k}.json", {"operator": f"op{k}"})
        say(data / f"metadata-ep_{k}.json", {"seed": 100 + k})
        say(data / f"ep_{k}_instruction.txt", f"do {k}")
        say(data / f"ep_{k}.txt", f"seen {k}")
    say(data / "setup.json", {"rig": "a"})  # of no episode
    ds = made(data)
    assert ds.episodes["length"].tolist() == [1, 2, 10]
    assert ds.episodes["operator"].tolist() == ["op1", "op2", "op10"]
    assert ds.episodes["own_seed"].tolist() == [101, 102, 110]
    assert ds.episodes["task"].tolist() == ["do 1", "do 2", "do 10"]
    assert ds.episodes["text"].tolist() == ["seen 1", "seen 2", "seen 10"]
    assert fates(data) == {"setup.json": "not a table"}
    say(data / "ep_2.json", {"operator": "another"})
    with pytest.raises(NameTaken):  # the files are those of the dataset, too
        made(data)


def test_names_with_dots_are_compared_as_a_whole(data: Path) -> None:
    """As ManiSkill names the same demonstrations for several kinds of observations."""
    for k, kind in enumerate(("rgb", "state")):
        episode(data / f"trajectory.{kind}.npz", k + 1)
        say(data / f"trajectory.{kind}.json", {"kind": kind})
    assert made(data).episodes["kind"].tolist() == ["rgb", "state"]


def test_an_episode_that_nothing_describes_has_no_values(data: Path) -> None:
    for k in range(2):
        episode(data / f"{k}.npz", k + 1)
    say(data / "1.json", {"grade": 7})
    ds = made(data)
    assert [None if v != v else v for v in ds.episodes["grade"].tolist()] == [None, 7]
    assert any("have no values" in n["text"] and n["count"] == 1 for n in ds.manifest.notes)


def test_what_the_data_say_goes_before(data: Path) -> None:
    for k in range(2):
        episode(data / f"{k}.npz", success=np.bool_(k), task=np.array(f"own {k}"))
        say(data / f"{k}.json", {"success": True, "task": "other", "Place": "lab", "place": "room"})
    ds = made(data)
    assert ds.episodes["success"].tolist() == [False, True] and ds.episodes["task"].tolist() == ["own 0", "own 1"]
    assert ds.episodes["Place"].tolist() == ["lab", "lab"]
    again = "the data, or another file beside them, say it"
    assert fates(data) == {"success": again, "task": again, "place": again}


def test_values_of_several_types_are_left_out_and_said(data: Path) -> None:
    for k, (mixed, number, large) in enumerate([(1, 1, 2**60), ("one", 0.5, 2**64)]):
        episode(data / f"{k}.npz")
        say(data / f"{k}.json", {"mixed": mixed, "number": number, "large": large, "": 1})
    ds = made(data)
    assert ds.episodes["number"].tolist() == [1.0, 0.5] and "mixed" not in ds.episodes and "large" not in ds.episodes
    assert fates(data).keys() == {"mixed", "large", ""}


@pytest.mark.parametrize("name", ["config.json", "readings.json", "notes.txt"])
def test_a_file_beside_several_episodes_describes_none(data: Path, name: str) -> None:
    ids = np.repeat([0, 1], 3)
    write(data / "log.npz", {"obs": np.ones((6, 2)), "action": np.ones((6, 1)), "episode": ids})
    say(data / name, {"success": True} if name.endswith("json") else "one line")
    assert fates(data) == {name: "several episodes lie in its folder, and none has its name"}
    assert "success" not in made(data).episodes


def test_demonstrations_of_maniskill(data: Path) -> None:
    """A list of episodes in any order, by their numbers; what resets the environment is TED's own."""
    listed = [
        {
            "episode_id": k,
            "episode_seed": 100 + k,
            "control_mode": "pd_joint_pos",
            "reset_kwargs": {"seed": [7 + k] if k else 7, "options": {"reconfigure": True} if k == 2 else {}},
            "success": k != 1,
        }
        for k in range(11)
    ]
    with h5py.File(data / "trajectory.state.h5", "w") as f:
        for k in range(12):  # of the last one nothing is said
            g = f.create_group(f"traj_{k}")
            g["obs"], g["actions"] = np.ones((k + 2, 3), "f4"), np.ones((k + 1, 2), "f4")
            g["terminated"], g["truncated"] = np.arange(k + 1) == k, np.zeros(k + 1, bool)
    assert plan_import(data, "local/x").reader == "maniskill"
    about = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": "state"}}, "source_type": "rl"}
    say(data / "trajectory.state.json", {**about, "episodes": listed[::-1]})
    ds = made(data)
    assert ds.episodes["length"].tolist() == [*range(1, 13)]
    assert [int(v) for v in ds.episodes["episode_seed"][:11]] == [*range(100, 111)]
    assert ds.episodes["seed"].tolist()[:11] == [*range(7, 18)] and ds.episodes["has_seed"].tolist() == [True] * 11 + [
        False
    ]
    assert [*ds.episodes["options"]][1:4] == ["", '{"reconfigure": true}', ""]
    assert ds.select(where="success and length < 4").episodes["length"].tolist() == [1, 3]
    assert ds.manifest.env["id"] == "PickCube-v1"
    assert json.loads(ds.store.table.metadata.text("trajectory.state.json")) == about
    assert any("have no values" in n["text"] and n["count"] == 1 for n in ds.manifest.notes)


def test_trajectories_of_maniskill(data: Path) -> None:
    """States beside observations, and in their place; a group of actions; the flag of the time limit."""
    rng = np.random.default_rng(0)
    for name, observed in (("seen", True), ("raw", False)):
        with h5py.File(data / f"{name}.h5", "w") as f:
            for k, steps in enumerate((2, 1, 3)):
                g = f.create_group(f"traj_{k}")
                g["env_states/actors/cube"] = rng.normal(size=(steps + 1, 13)).astype("f4")
                g["actions/arm"], g["actions/hand"] = rng.normal(size=(steps, 3)), rng.normal(size=(steps, 1))
                last = np.arange(steps) == steps - 1
                g["terminated"], g["truncated"] = last & (k == 0), last & (k == 1)
                g["success"], g["rewards"] = np.arange(steps) == 0, rng.normal(size=steps).astype("f4")
                if observed:
                    g["obs/agent/qpos"] = rng.normal(size=(steps + 1, 9)).astype("f4")
        ds = import_files(data / f"{name}.h5", f"local/{name}", progress=False)
        assert ds.episodes["end"].tolist() == ["terminated", "truncated", "cut"] and ds.num_transitions == 6
        with h5py.File(data / f"{name}.h5") as f:
            for k in range(3):
                g, found = f[f"traj_{k}"], ds.episode(k)
                seen = ("agent", "qpos") if observed else ("actors", "cube")
                wanted = g["obs/agent/qpos" if observed else "env_states/actors/cube"]
                np.testing.assert_array_equal(found[("observation", *seen)], wanted[:-1])
                np.testing.assert_array_equal(found[("next", "observation", *seen)], wanted[1:])
                np.testing.assert_array_equal(found["action", "hand"], g["actions/hand"])
                np.testing.assert_array_equal(np.ravel(found["next", "reward"]), g["rewards"])
                np.testing.assert_array_equal(np.ravel(found["success"]), g["success"])
                if observed:
                    states = found["env_states", "actors", "cube"][: len(wanted) - 1]
                    np.testing.assert_array_equal(states, g["env_states/actors/cube"][:-1])
        assert trace(ds, 2).ok
    with h5py.File(data / "seen.h5", "a") as f:
        del f["traj_1/rewards"]
        f["traj_1/rewards"] = np.zeros(2)
    with pytest.raises(CorruptArchive, match="traj_1: rewards has 2 rows; there are 1 actions"):
        plan_import(data / "seen.h5", "local/y")


def test_other_readers_take_the_files_beside_theirs(data: Path) -> None:
    """As RoboCasa writes its demonstrations."""
    with h5py.File(data / "demo.hdf5", "w") as f:
        for k in range(2):
            g = f.create_group(f"data/demo_{k}")
            meta = {
                "lang": f"open drawer {k}",
                "layout_id": k,
                "style_id": 3,
                "cam_configs": {"a": [1]},
                "fixtures": {},
            }
            g.attrs.update(ep_meta=json.dumps(meta), num_samples=2)
            g["actions"], g["states"], g["obs/eef"] = np.ones((2, 7)), np.ones((2, 5)), np.ones((2, 3))
    say(data / "config.json", {"algo": "bc"})
    planned = plan_import(data, "local/x")
    assert planned.reader == "robomimic" and fates(data).keys() == {"config.json"}
    ds = made(data)
    assert ds.episodes["task"].tolist() == ["open drawer 0", "open drawer 1"]
    assert ds.episodes["ep_meta_layout_id"].tolist() == [0, 1] and ds.episodes["ep_meta_style_id"].tolist() == [3, 3]


def test_raw_folders_of_droid(data: Path) -> None:
    """A folder for each episode, with the videos of its cameras and what was recorded of it."""
    films = []
    for k, rows in enumerate((3, 5)):
        folder = data / f"AUTOLab/success/2023-07-0{k + 1}/Fri_Jul__{k}_09:42:23_2023"
        folder.mkdir(parents=True)
        with h5py.File(folder / "trajectory.h5", "w") as f:
            f["observation/robot_state/joint_positions"] = np.full((rows, 7), k, "f8")
            f["observation/controller_info/success"] = np.zeros(rows, bool)
            f["action/joint_velocity"], f["action/gripper_position"] = np.ones((rows, 7)), np.arange(rows * 1.0)
        said = {"lab": "AUTOLab", "scene_id": 7000 + k, "success": True, "ext1_cam_extrinsics": [0.5 * k, 1, 2]}
        say(folder / f"metadata_AUTOLab+5d05c5aa+2023-07-0{k + 1}-09h-42m-23s.json", said)
        films.append(film(folder / "recordings/MP4/20521388.mp4", rows))
        (folder / "recordings/SVO").mkdir()
        (folder / "recordings/SVO/20521388.svo").write_bytes(b"SVO")
    ds = made(data)
    assert ds.episodes["length"].tolist() == [3, 5]
    assert ds.episodes["scene_id"].tolist() == [7000, 7001] and ds.episodes["success"].tolist() == [True, True]
    assert fates(data) == {"*-*-*/Fri_Jul__*_*:*:*_*/recordings/SVO/*.svo": "not a table"}
    name = "2023-07-02/Fri_Jul__1_09:42:23_2023/metadata_AUTOLab+5d05c5aa+2023-07-02-09h-42m-23s.json"
    found = np.asarray(ds.store.table.metadata[f"{name}/ext1_cam_extrinsics"])
    np.testing.assert_array_equal(found, [0.5, 1, 2])
    for k, frames in enumerate(films):
        camera = ds.episode(k)["observation", "recordings", "MP4", "20521388"]
        np.testing.assert_array_equal(camera[: len(frames)], frames[: len(camera)])


# -- the user's pattern


def test_a_pattern_says_which_files_describe_which(data: Path) -> None:
    for k in (3, 20):
        episode(data / f"runs/run{k}.npz", k)
        say(data / f"labels/{k:04d}.json", {"grade": k})
        say(data / f"words/run{k}/en.txt", f"word {k}")
    done = run_rlds("import", data, "--name", "local/y", "--episode-info", "labels/*.json", "--dry-run")
    assert done.returncode == 0 and b"columns per episode: grade\n" in done.stdout
    ds = made(data, episode_info="labels/*.json")
    assert ds.episodes["grade"].tolist() == [3, 20] and ds.manifest.options["episode_info"] == "labels/*.json"
    assert made(data, episode_info="labels/*.json").fingerprint == ds.fingerprint
    with pytest.raises(NameTaken):
        made(data)
    by_folder = import_files(data, "local/z", episode_info="words/*/en.txt", progress=False)
    assert by_folder.episodes["en"].tolist() == ["word 3", "word 20"]
    for bad in ("labels/*.jsn", "../labels/*.json", "/labels/*.json", ""):
        with pytest.raises(UnknownLayout, match="episode_info"):
            plan_import(data, "local/w", episode_info=bad or "/")
    say(data / "labels/0004.json", {"grade": 4})
    with pytest.raises(UnknownLayout, match="0004"):
        plan_import(data, "local/w", episode_info="labels/*.json")
    with pytest.raises(UnknownLayout, match="fits no file"):  # beside what was named
        plan_import(data / "runs", "local/w", episode_info="labels/*.json")


def test_a_pattern_holds_for_appends(data: Path) -> None:
    for day, count in (("a", 2), ("bb", 1)):
        for k in range(count):
            episode(data / day / f"{k}.npz", 2 * k + len(day))
            say(data / day / f"labels/{k}.json", {"grade": f"{day}{k}"})
    made(data / "a", episode_info="labels/*.json")
    done = append("local/x", data / "bb", progress=False)
    assert done.episodes == 1
    assert rlds_cli.open_dataset("local/x").episodes["grade"].tolist() == ["a0", "a1", "bb0"]


@pytest.mark.parametrize("listed", [True, False])
def test_one_file_describes_all_episodes(data: Path, listed: bool) -> None:
    for k in range(3):
        episode(data / f"run{k}.npz", k + 1)
    said = {f"run{k}": {"grade": k} for k in (2, 0, 1)}
    say(data / "all.json", [{"name": n, **v} for n, v in said.items()] if listed else said)
    ds = made(data, episode_info="all.json")
    assert ds.episodes["grade"].tolist() == [0, 1, 2]


def test_sub_tasks_of_agibot_world(data: Path) -> None:
    """One list for the episodes of a task, by the names of their folders; parts without rows are left out."""
    for k, rows in ((648642, 6), (648649, 4)):
        (data / f"proprio_stats/327/{k}").mkdir(parents=True)
        with h5py.File(data / f"proprio_stats/327/{k}/proprio_stats.h5", "w") as f:
            f["state/joint/position"], f["action/joint/position"] = np.ones((rows, 14)), np.ones((rows, 14))
            f["state/robot/position"], f["action/robot/velocity"] = np.zeros((0, 3)), np.zeros((0, 2))
    steps = [{"start_frame": 0, "end_frame": 3, "action_text": "pick", "skill": "Pick"}]
    more = [*steps, {"start_frame": 3, "end_frame": 6, "action_text": "place", "skill": "Place"}]
    listed = [
        {"episode_id": 648649, "task_name": "pack", "label_info": {"action_config": steps}},
        {"episode_id": 648642, "task_name": "pack", "label_info": {"action_config": more}},
    ]
    say(data / "task_info/task_327.json", listed)
    how = {"episode_info": "task_info/task_327.json", "missing": "drop"}
    with pytest.raises(UnknownLayout, match="action/robot/velocity has no rows"):
        made(data)
    ds = made(data, **how)
    assert [ds.episode(k)["subtask"].tolist() for k in range(2)] == [
        ["pick"] * 3 + ["place"] * 3,
        ["pick"] * 3 + [None],
    ]
    assert ds.episodes["task_name"].tolist() == ["pack"] * 2
    assert not {"observation/robot/position", "action/robot/velocity"} & {*ds.schema}

    more[1]["start_frame"] = 2
    say(data / "task_info/task_327.json", listed)
    with pytest.raises(CorruptArchive, match=r'task_327\.json, 648642: .*"pick".* and "place".* overlap'):
        made(data, **how)
