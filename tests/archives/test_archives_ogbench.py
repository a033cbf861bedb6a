"""OGBench: every value of the samples and of small files in the layout, read with NumPy; and each trap."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from archive_rows import Rows
from server import Server

import rlds_cli
from rlds_cli import archives, preprocess, registry
from rlds_cli.archives import flat, flat_rows, ogbench
from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.base.http import client
from rlds_cli.dataset import environments
from rlds_cli.errors import CorruptArchive, InvalidArgument, MissingPackage, UnknownLayout
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

SAMPLES = Path(__file__).parents[1] / "data" / "ogbench"
RNG = np.random.default_rng(0)


def columns(*lengths: int, **others: Any) -> dict[str, np.ndarray]:
    """Trajectories of so many rows, as OGBench's scripts save them."""
    n = sum(lengths)
    ends = np.zeros(n, bool)
    ends[np.cumsum(lengths) - 1] = True
    return {
        "observations": RNG.normal(size=(n, 3)).astype("f4"),
        "actions": RNG.normal(size=(n, 2)).astype("f4"),
        "terminals": ends,
        "qpos": RNG.normal(size=(n, 4)).astype("f4"),
        "qvel": RNG.normal(size=(n, 4)).astype("f4"),
        "button_states": RNG.integers(0, 2, (n, 2)),
    } | others


def save(path: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **content)
    return path


def test_by_hand(tmp_path: Path) -> None:
    x = columns(4, 3)
    rows = Rows("ogbench", save(tmp_path / "a-v0.npz", x))
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows.episodes.observed.all() and (rows.episodes.end == TRUNCATED).all()
    assert rows.episodes.row.tolist() == [0, 4] and not rows.episodes.splits
    np.testing.assert_array_equal(rows["observation"], x["observations"])
    np.testing.assert_array_equal(rows["action"], x["actions"] * [[1], [1], [1], [0], [1], [1], [0]])
    assert rows["next/truncated"].tolist() == [0, 0, 1, 0, 0, 1, 0]
    assert not rows["next/terminated"].any()
    for key in ("qpos", "qvel", "button_states"):
        np.testing.assert_array_equal(rows[f"info/{key}"], x[key])
        assert rows.schema[f"info/{key}"].placement == "both"
    assert "next/reward" not in rows.schema
    assert rows["info/button_states"].dtype == np.int64
    assert rows.codes == {} and rows.metadata == {}


@pytest.mark.thorough
def test_blocks_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a-v0.npz", columns(4, 1, 3, 2, 1, 6))
    whole = Rows("ogbench", path)
    assert whole.episodes.length.tolist() == [3, 2, 1, 5]
    assert whole.codes == {"empty-episodes": 2}
    for size in (2, 3, 5):
        monkeypatch.setattr(flat_rows, "CHUNK_ROWS", size)
        monkeypatch.setattr(flat, "SCAN_ROWS", size)
        pieces = Rows("ogbench", path)
        assert len(pieces.chunks) > 2
        for name in whole.schema:
            np.testing.assert_array_equal(pieces[name], whole[name])
        assert pieces.episodes.row.tolist() == whole.episodes.row.tolist() == [0, 5, 8, 11]


def test_validation_files_are_a_split_and_come_last(tmp_path: Path) -> None:
    train, val = columns(4, 3), columns(5)
    files = [save(tmp_path / "x-v0-val.npz", val), save(tmp_path / "x-v0.npz", train)]
    rows = Rows("ogbench", *files)
    assert rows.episodes.length.tolist() == [3, 2, 4]
    assert rows.episodes.source.tolist() == [1, 1, 0]
    assert rows.episodes.splits["train"].tolist() == [True, True, False]
    assert rows.episodes.splits["val"].tolist() == [False, False, True]
    np.testing.assert_array_equal(rows["observation"], np.concatenate([train["observations"], val["observations"]]))


def test_pixels_and_powderworld(tmp_path: Path) -> None:
    x = columns(
        4,
        3,
        observations=RNG.integers(0, 255, (7, 32, 32, 6), dtype="u1"),
        actions=RNG.integers(0, 9, 7).astype("i4"),
        terminals=np.array([0, 0, 0, 1, 0, 0, 1], "i4"),
    )
    for key in ("qpos", "qvel", "button_states"):
        del x[key]
    path = save(tmp_path / "powderworld-easy-play-v0.npz", x)
    assert ogbench.READER.recognise([path]) == "OGBench layout: 7 rows; actions, observations, terminals"
    rows = Rows("ogbench", path)
    np.testing.assert_array_equal(rows["observation"], x["observations"])
    assert rows["action"].dtype == np.int32
    np.testing.assert_array_equal(rows["action"][[0, 1, 2, 4, 5]], x["actions"][[0, 1, 2, 4, 5]])


def test_the_compact_form_with_rewards_of_a_task(tmp_path: Path) -> None:
    """terminals stand on the last two rows, valids are 0 on the last; masks are 0 where the goal is reached."""
    x = columns(4, 3, terminals=np.array([0, 0, 1, 1, 0, 1, 1], "f4"), valids=np.array([1, 1, 1, 0, 1, 1, 0], "f4"))
    x |= {"rewards": np.array([-1, 0, -1, 9, -1, -1, 9], "f4"), "masks": np.array([1, 0, 1, 1, 1, 1, 0], "f4")}
    rows = Rows("ogbench", save(tmp_path / "a.npz", x))
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows["next/reward"].tolist() == [-1, 0, -1, 0, -1, -1, 0]
    assert rows["next/terminated"].tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 1, 0, 0, 1, 0]


def test_an_open_end_is_cut(tmp_path: Path) -> None:
    x = columns(4, 3)
    x["terminals"][-1] = False
    rows = Rows("ogbench", save(tmp_path / "a-v0.npz", x))
    assert rows.episodes.end.tolist() == [TRUNCATED, CUT]
    assert rows.codes == {"open-end": 1}
    assert rows["next/truncated"].tolist() == [0, 0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("rows_of_a_chunk", [2, 4, 100])
def test_a_trajectory_that_reaches_its_goal_at_the_end_terminates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of_a_chunk: int
) -> None:
    monkeypatch.setattr(flat_rows, "CHUNK_ROWS", rows_of_a_chunk)
    x = columns(4, 1, 3, 5, masks=np.array([1, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1], "f4"))
    rows = Rows("ogbench", save(tmp_path / "a-v0.npz", x))
    assert rows.episodes.length.tolist() == [3, 2, 4]
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED, TRUNCATED]
    assert rows["next/terminated"].tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_an_open_end_of_one_row_cuts_nothing(tmp_path: Path) -> None:
    x = columns(4, 3, 1, nothing=np.zeros((8, 0), "f4"))
    x["terminals"][-1] = False
    rows = Rows("ogbench", save(tmp_path / "a-v0.npz", x))
    assert rows.episodes.end.tolist() == [TRUNCATED, TRUNCATED]
    assert rows.codes == {"empty-episodes": 1}
    assert rows["nothing"].shape == (7, 0)


def test_what_is_not_per_row_and_what_is_not_known(tmp_path: Path) -> None:
    x = columns(4, gains=np.arange(5.0), effort=np.arange(4), note=np.array("seed 3"))
    x["observations"][2, 1] = np.nan
    rows = Rows("ogbench", save(tmp_path / "a-v0.npz", x))
    assert rows["effort"].tolist() == [0, 1, 2, 3]
    assert rows.metadata["note"] == "seed 3" and np.array_equal(rows.metadata["gains"], np.arange(5.0))
    assert rows.codes == {"nan": 1}
    assert rows.notes[0].where == "row 2 of a-v0.npz"


def test_what_is_refused(tmp_path: Path) -> None:
    short = columns(4, actions=np.zeros((3, 2)))
    with pytest.raises(CorruptArchive, match=r"different numbers of rows: 4 and \{'actions': \[3, 2\]\}"):
        Rows("ogbench", save(tmp_path / "a-v0.npz", short))
    with pytest.raises(UnknownLayout, match="has no terminals"):
        Rows("ogbench", save(tmp_path / "b-v0.npz", {"observations": np.zeros(3), "actions": np.zeros(3)}))
    with pytest.raises(UnknownLayout, match='episodes_by="file"'):
        Rows("ogbench", tmp_path / "a-v0.npz", episodes_by="file")
    one, other = save(tmp_path / "c-v0.npz", columns(3)), save(tmp_path / "d-v0.npz", columns(3, qpos=np.zeros((3, 9))))
    with pytest.raises(UnknownLayout, match=r"info/qpos is float64 \[9\] and float32 \[4\]"):
        Rows("ogbench", one, other)


def test_other_npz_files_are_not_claimed(tmp_path: Path) -> None:
    x = {k: v for k, v in columns(4).items() if k in ogbench.NEEDED}
    assert ogbench.READER.recognise([save(tmp_path / "mine.npz", x)]) is None
    assert ogbench.READER.recognise([save(tmp_path / "x-v0.npz", x)]) is not None
    flat = x | {"next_observations": x["observations"]}
    assert ogbench.READER.recognise([save(tmp_path / "y-v0.npz", flat)]) is None


@pytest.mark.parametrize("name", ["pointmaze-medium-navigate-v0", "visual-cube-single-play-v0"])
def test_samples(name: str) -> None:
    files = (SAMPLES / f"{name}.npz", SAMPLES / f"{name}-val.npz")
    found = archives.recognise(files)
    assert found is not None and found[0] == "ogbench"
    rows = Rows("ogbench", *files)
    k = 0
    for file in files:
        with np.load(file) as z:
            stops = np.flatnonzero(z["terminals"]) + 1
            for a, b in zip([0, *stops[:-1]], stops, strict=True):
                np.testing.assert_array_equal(rows.of(k, "observation"), z["observations"][a:b], strict=True)
                np.testing.assert_array_equal(rows.of(k, "action"), z["actions"][a : b - 1], strict=True)
                np.testing.assert_array_equal(rows.of(k, "info/qpos"), z["qpos"][a:b], strict=True)
                assert rows.of(k, "next/truncated").tolist() == [False] * int(b - a - 2) + [True]
                k += 1
    assert k == len(rows.episodes) == 11
    assert rows.episodes.splits["val"].tolist() == [False] * 10 + [True]


def test_from_the_host_and_when_it_is_down_from_its_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = "ogbench/pointmaze-medium-navigate-v0"
    content = {}
    for file, x in (("", columns(4, 3)), ("-val", columns(5))):
        name = f"pointmaze-medium-navigate-v0{file}.npz"
        content[name] = save(tmp_path / name, x).read_bytes()
    entry = registry.get(id)
    with Server() as server:
        for file in entry.files:
            assert urlsplit(file.urls[0]).netloc == "rail.eecs.berkeley.edu"
            server.add(urlsplit(file.urls[0]).path, content[file.path])
        ds = rlds_cli.download(id, source=f"{server.url}/datasets/ogbench")
    assert ds.episodes["length"].tolist() == [3, 2, 4]
    assert ds.select(split="val").num_steps == 4 and ds.select(split="train").num_steps == 5
    assert ds.manifest.env["id"] == "pointmaze-medium-v0"
    with Server() as server:
        server.add_repository("zhouzypaul/ogbench_datasets", content)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing but the loopback answers
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(client, "RetryPolicy", partial(client.RetryPolicy, attempts=2, first=0.001))
        again = rlds_cli.download(id, force=True, home=tmp_path / "other")
    assert again.fingerprint == ds.fingerprint


@pytest.mark.slow
def test_the_shards_of_a_large_set_come_from_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = "ogbench/puzzle-4x5-play-100m-v0"
    name = id.removeprefix("ogbench/")
    shards = {f"{name}-{k:03}{val}.npz": columns(4 + k, 3) for k in range(3) for val in ("", "-val")}
    content = {f: save(tmp_path / f, x).read_bytes() for f, x in shards.items()}
    with Server() as server:
        links = "".join(f'<a href="{f}">{f}</a>' for f in ("../", "README.txt", *content))
        server.add(f"/datasets/ogbench/{name}/", f"<html>{links}</html>", content_type="text/html")
        for f, data in content.items():
            server.add(f"/datasets/ogbench/{name}/{f}", data)
        listed = rlds_cli.download(id, source=f"{server.url}/datasets/ogbench/{name}/")
    with Server() as server:
        server.add_repository("zhouzypaul/ogbench_datasets", {f"{name}/{f}": data for f, data in content.items()})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(client, "RetryPolicy", partial(client.RetryPolicy, attempts=2, first=0.001))
        ds = rlds_cli.download(id, home=tmp_path / "other")
    assert ds.episodes["length"].tolist() == [3, 2, 4, 2, 5, 2] * 2
    assert ds.select(split="val").num_episodes == 6
    assert listed.fingerprint == ds.fingerprint


def test_its_environments_are_ogbenchs_and_not_those_of_d4rl_of_like_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogbench", None)  # as where it is not installed
    packages = json.loads((registry_directory() / "environments.json").read_text())["packages"]
    ours = next(p["env_ids"] for p in packages if p["module"] == "ogbench")

    def known(id: str) -> bool:
        return any(fnmatchcase(id, pattern) for pattern in ours)

    assert {e.env_id for e in lookup.entries("ogbench") if not known(str(e.env_id))} == set()
    assert {e.env_id for e in lookup.entries("d4rl") if known(str(e.env_id))} == set()
    with pytest.raises(MissingPackage, match="registered by the package ogbench"):
        environments._known("antmaze-medium-v0", ())


# -- the tasks of the singletask ids


def task_data(tmp_path: Path, name: str, **columns_: Any) -> rlds_cli.Dataset:
    n = len(next(iter(columns_.values())))
    x = columns(n) | columns_
    return import_files(save(tmp_path / f"{name}-v0.npz", x), f"local/{name}")


def test_the_reward_of_a_maze_is_that_of_the_state_before(tmp_path: Path) -> None:
    """Task 1 of the medium maze ends at (20, 20); an ant reaches it within 0.5, a point within 1."""
    where = np.zeros((5, 15), "f4")
    where[:, :2] = [[0, 0], [20, 20.4], [20, 20.6], [20, 20], [20, 20]]
    ds = task_data(tmp_path, "antmaze-medium-navigate", qpos=where)
    ant = preprocess.run(ds, "ogbench_task", "ant", jobs=1, args={"env": "antmaze-medium-v0"})
    assert ant.to_numpy("ogbench")["rewards"].tolist() == [-1, 0, -1, 0]
    assert ant.to_numpy("ogbench")["masks"].tolist() == [1, 0, 1, 0]
    assert ant.episodes["end"].tolist() == ["terminated"]
    point = preprocess.run(ds, "ogbench_task", "point", jobs=1, args={"env": "pointmaze-medium-v0"})
    assert point.column("next/reward")[:4].tolist() == [-1, 0, 0, 0]
    other = preprocess.run(ds, "ogbench_task", "other", jobs=1, args={"env": "antmaze-medium-v0", "task": 5})  # (0, 0)
    assert other.column("next/reward")[:4].tolist() == [0, -1, -1, -1]


def test_the_reward_of_cubes_counts_those_out_of_place(tmp_path: Path) -> None:
    """Task 2 of two cubes: at (0.35, 0.1, 0.02) and (0.5, 0.1, 0.02), each within 0.04."""
    qpos = np.zeros((4, 28), "f4")
    qpos[1:, 14:17] = [0.35, 0.1, 0.02]
    qpos[2:, 21:24] = [0.5, 0.13, 0.02]
    made = preprocess.run(
        task_data(tmp_path, "cubes", qpos=qpos), "ogbench_task", jobs=1, args={"env": "visual-cube-double-v0"}
    )
    assert made.column("next/reward")[:3].tolist() == [-2, -1, 0]
    assert made.column("next/terminated")[:3].tolist() == [False, False, True]


def test_the_reward_of_a_scene_and_of_a_puzzle(tmp_path: Path) -> None:
    """Task 1 of the scene: the cube stays, both buttons 1, drawer -0.16, window 0.2."""
    qpos, buttons = np.zeros((3, 25), "f4"), np.array([[1, 1], [1, 0], [1, 1]])
    qpos[:, 14:17], qpos[0, 23:25] = [0.35, 0.05, 0.02], [-0.16, 0.2]
    ds = task_data(tmp_path, "scene", qpos=qpos, button_states=buttons)
    made = preprocess.run(ds, "ogbench_task", jobs=1, args={"env": "scene-v0", "task": 1})
    assert made.column("next/reward")[:2].tolist() == [0, -3]
    lights = np.ones((3, 9), int)
    lights[1, :4] = 0
    ds = task_data(tmp_path, "puzzle", button_states=lights)
    made = preprocess.run(ds, "ogbench_task", jobs=1, args={"env": "puzzle-3x3-v0"})  # task 4: all of them on
    assert made.column("next/reward")[:2].tolist() == [0, -4]


def test_tasks_that_are_not_there(tmp_path: Path) -> None:
    ds = task_data(tmp_path, "mine", qpos=np.zeros((3, 4)))
    with pytest.raises(InvalidArgument, match='no tasks are known for the environment ""'):
        preprocess.run(ds, "ogbench_task")
    with pytest.raises(InvalidArgument, match="task=6; there are 1 to 5"):
        preprocess.run(ds, "ogbench_task", jobs=1, args={"env": "cube-single-v0", "task": 6})


def test_every_environment_of_the_registry_has_its_tasks() -> None:
    tasks = json.loads((registry_directory() / "ogbench_tasks.json").read_text())
    of_entries = {str(e.env_id).removeprefix("visual-").removesuffix("-v0") for e in lookup.entries("ogbench")}
    assert {e for e in of_entries if not e.startswith("powderworld")} <= set(tasks)
    assert all(len(t["tasks"]) == 5 and 1 <= t["default"] <= 5 for t in tasks.values())
