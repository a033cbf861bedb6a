"""Own data with one episode per file or per HDF5 group, under any names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from archive_rows import Rows
from own_files import write

import rlds_cli
from rlds_cli import archives
from rlds_cli.cli import main
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.look.report.files import describe_file
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

LENGTHS = [3, 5, 1, 4, 2, 6, 3, 2, 4, 1, 5, 2]  # more than ten, so that the order of texts is not that of numbers


def episodes(final: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.normal(size=(t + final, 3)).astype("f4"),
            "actions": rng.normal(size=(t, 2)),
            "rewards": rng.random(t),
            "dones": np.arange(t) == t - 1,
        }
        for t in LENGTHS
    ]


def check(rows: Rows, made: list[dict[str, np.ndarray]], *, final: bool = True, end: int = TERMINATED) -> None:
    assert rows.episodes.length.tolist() == LENGTHS
    assert rows.episodes.observed.tolist() == [final] * len(LENGTHS)
    assert rows.episodes.end.tolist() == [end] * len(LENGTHS)
    for k, e in enumerate(made):
        observation = "observation" if "observation" in rows.schema else "observation/joint_pos"
        np.testing.assert_array_equal(rows.of(k, observation)[: len(e["obs"])], e["obs"], strict=True)
        np.testing.assert_array_equal(rows.of(k, "action"), e["actions"], strict=True)
        np.testing.assert_array_equal(rows.of(k, "next/reward"), e["rewards"], strict=True)


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_a_file_per_episode_with_its_final_observation(tmp_path: Path, suffix: str) -> None:
    made = episodes()
    for k, e in enumerate(made):
        once = {"success": np.bool_(k % 2), "operator": np.array("ann")} if suffix == ".npz" else {}
        write(tmp_path / f"ep{k}{suffix}", {**e, **once})
    planned = plan_import(tmp_path, "local/x")
    assert planned.recognised.startswith(f"one episode per file: 12 {'npz' if suffix == '.npz' else 'HDF5'}")
    assert planned.episodes is not None and planned.episodes["ends"] == {"terminated": 12, "truncated": 0, "cut": 0}
    assert (planned.episodes["shortest"], planned.episodes["median"], planned.episodes["longest"]) == (1, 3, 6)
    rows = Rows("plain", *planned.files)
    check(rows, made)
    assert [rows.plan.archive.name_of(i) for i in rows.episodes.source] == [f"ep{k}{suffix}" for k in range(12)]
    if suffix == ".npz":
        assert rows.episodes.extra == {"success": [k % 2 == 1 for k in range(12)], "operator": ["ann"] * 12}


@pytest.mark.thorough
@pytest.mark.sampled(5)
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".npz", ".h5"])
@pytest.mark.parametrize("final", [0, 1])
def test_a_file_of_rows_per_episode(tmp_path: Path, suffix: str, final: int) -> None:
    """As many rows as observations; the row of a final observation has no action, reward or flag."""
    made = episodes(final)
    for k, e in enumerate(made):
        padded = {n: np.concatenate([v.astype(float), np.full((final, *v.shape[1:]), np.nan)]) for n, v in e.items()}
        write(tmp_path / f"ep{k}{suffix}", {**padded, "obs": e["obs"].astype(float)})
    rows = Rows("plain", *plan_import(tmp_path, "local/x").files)
    for e in made:
        e["obs"] = e["obs"].astype(float)
    check(rows, made, final=bool(final))


def test_flags_that_stand_once_are_those_of_the_last_step(tmp_path: Path) -> None:
    for k, e in enumerate(episodes(final=0)):
        del e["dones"]
        write(tmp_path / f"ep{k}.npz", {**e, "terminated": np.bool_(k % 3 == 0), "truncated": np.bool_(k % 3 == 1)})
    rows = Rows("plain", *plan_import(tmp_path, "local/x").files)
    assert rows.episodes.end.tolist() == [[TERMINATED, TRUNCATED, CUT][k % 3] for k in range(12)]
    assert not rows.episodes.observed.any()


def test_trajectories_of_amago(tmp_path: Path) -> None:
    """``_OBS_KEY_*`` and ``time_idxs`` have T+1 rows; ``rews``, ``dones`` [T, 1] and ``actions`` have T."""
    rng = np.random.default_rng(0)
    made = []
    for k, t in enumerate(LENGTHS):
        e: dict[str, Any] = {
            "_OBS_KEY_observation": rng.random((t + 1, 4)),
            "_OBS_KEY_goal": rng.random((t + 1, 2)),
            "rl2s": rng.random((t + 1, 4)).astype("f4"),
            "time_idxs": np.arange(t + 1)[:, None],
            "rews": rng.random((t, 1)).astype("f4"),
            "dones": (np.arange(t) == t - 1)[:, None] & (k % 2 == 0),
            "actions": rng.random((t, 2)).astype("f4"),
        }
        np.savez(tmp_path / f"env_{k}_123.npz", **e)
        made.append(e)
    ds = import_files(tmp_path, "local/amago")
    assert ds.episodes["length"].tolist() == LENGTHS
    assert ds.episodes["end"].tolist() == ["terminated", "cut"] * 6
    assert {n: f.placement for n, f in ds.schema.items() if not n.startswith("next/")} == {
        "observation/observation": "both",
        "observation/goal": "both",
        "rl2s": "both",
        "time_idxs": "both",
        "action": "root",
    }
    for k, e in enumerate(made):
        episode = ds.episode(k)
        np.testing.assert_array_equal(episode["observation", "goal"], e["_OBS_KEY_goal"][:-1])
        np.testing.assert_array_equal(episode["next", "observation", "goal"], e["_OBS_KEY_goal"][1:])
        np.testing.assert_array_equal(episode["next", "reward"], e["rews"])


def grouped(path: Path, made: list[dict[str, np.ndarray]], prefix: str = "data/demo_") -> Path:
    with h5py.File(path, "w") as f:
        f.attrs["robot"] = "arm"
        for k, e in enumerate(made):
            g = f.create_group(f"{prefix}{k}")
            for name, key in {
                "observations/joint_pos": "obs",
                "act": "actions",
                "rew": "rewards",
                "dones": "dones",
            }.items():
                g[name] = e[key]
            g.attrs["task"] = "push" if k % 2 else "pull"
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["data/demo_", "traj_", "a/b/"])
def test_a_group_per_episode(tmp_path: Path, prefix: str) -> None:
    made = episodes()
    path = grouped(tmp_path / "a.h5", made, prefix)
    assert (archives.recognise([path]) or ("", ""))[1].startswith("one episode per group: HDF5, 12 groups")
    rows = Rows("plain", path)
    check(rows, made)
    assert rows.episodes.group == [f"{prefix}{k}" for k in range(12)]
    assert rows.episodes.extra == {"robot": ["arm"] * 12, "task": ["pull", "push"] * 6}


@pytest.mark.thorough
def test_patterns_name_what_names_do_not_tell(tmp_path: Path) -> None:
    made = episodes()
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for k, e in enumerate(made):
            g = f.create_group(f"log/{'abcdefghijkl'[k]}")
            g["q"], g["cmd"], g["r"], g["finished"] = e["obs"], e["actions"], e["rewards"], e["dones"]
    fields = {"observation": "log/*/q", "action": "log/*/cmd", "reward": "log/*/r", "terminated": "log/*/finished"}
    check(Rows("plain", tmp_path / "a.h5", fields=fields), made)
    with pytest.raises(UnknownLayout, match='has no "speed"'):
        Rows("plain", tmp_path / "a.h5", fields={**fields, "observation": "log/*/speed"})


@pytest.mark.thorough
@pytest.mark.parametrize("names", [("observations/joint_pos", "act", "rew"), ("q", "cmd", "r")])
def test_the_line_of_the_hint_gives_all_episodes(
    tmp_path: Path, names: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = episodes()
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for k, e in enumerate(made):
            for name, key in zip(names, ("obs", "actions", "rewards"), strict=True):
                f[f"data/demo_{k}/{name}"] = e[key]
    command = str(describe_file(tmp_path / "a.h5").suggestion).replace(" --dry-run", "")
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as e:
        main()
    assert not e.value.code
    ds = rlds_cli.open_dataset("local/a")
    assert ds.num_episodes == 12 and ds.num_steps == sum(LENGTHS)
    np.testing.assert_array_equal(ds.episode(11)["action"], made[11]["actions"])


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    made = episodes()
    made[4]["rewards"] = np.ones(9)
    with pytest.raises(UnknownLayout, match=r"data/demo_4 of a\.h5: rew has 9 rows; there are 2 actions"):
        Rows("plain", grouped(tmp_path / "a.h5", made))
    made = episodes()
    made[7]["obs"] = np.zeros((3, 5), "f4")
    with pytest.raises(UnknownLayout, match=r"demo_7 of b\.h5 and data/demo_0 of b\.h5 do not hold the same fields"):
        Rows("plain", grouped(tmp_path / "b.h5", made))
    made = episodes()
    made[5]["dones"][2] = True
    with pytest.raises(UnknownLayout, match=r"data/demo_5 of c\.h5: row 2 is dones, but it is not the last row"):
        Rows("plain", grouped(tmp_path / "c.h5", made))
    with pytest.raises(UnknownLayout, match="--episodes-by flags does not apply"):
        Rows("plain", grouped(tmp_path / "d.h5", episodes()), episodes_by="flags")


def test_groups_of_many_episodes_are_not_taken_for_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for split in ("part1", "part2"):
            f[f"{split}/obs"], f[f"{split}/action"] = np.zeros((6, 2)), np.zeros(6)
            f[f"{split}/episode_id"] = [0, 0, 0, 1, 1, 1]
    with pytest.raises(UnknownLayout, match=r"episode_id changes at row 3, so it holds more than one episode"):
        Rows("plain", tmp_path / "a.h5")


def write_groups(path: Path, made: list[dict[str, np.ndarray]]) -> Path:
    return write(path, {f"data/demo_{k}/{name}": v for k, e in enumerate(made) for name, v in e.items()})


def test_no_group_is_left_out_without_a_word(tmp_path: Path) -> None:
    made = [{**e, "episode_id": np.int64(k)} for k, e in enumerate(episodes())]
    places = ["train/ep0", "train/ep1", "train/best", "test/ep0", "test/ep1"]
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for place, e in zip(places, made, strict=False):
            for name, values in e.items():
                f[f"{place}/{name}"] = values
        f["mask/train"] = [b"ep0"]
    rows = Rows("plain", tmp_path / "a.h5")
    order = [3, 4, 2, 0, 1]  # test before train, best before ep0
    assert rows.episodes.length.tolist() == [LENGTHS[k] for k in order]
    for k, source in enumerate(order):
        np.testing.assert_array_equal(rows.of(k, "observation"), made[source]["obs"], strict=True)
    assert rows.metadata.keys() == {"mask/train"}
    with h5py.File(tmp_path / "a.h5", "a") as f:
        del f["train/ep1/actions"]
    with pytest.raises(UnknownLayout, match=r'train/ep1 of a.h5 has no column with a known name for "action"'):
        Rows("plain", tmp_path / "a.h5")


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".jsonl"])
def test_agents_that_act_together_are_no_episodes(tmp_path: Path, suffix: str) -> None:
    of = {f"agent_{a}": {"obs": np.zeros((6, 2)) + a, "action": np.zeros((6, 1)) + a} for a in range(2)}
    flags = {"reward": np.zeros(6), "done": np.arange(6) % 3 == 2}
    if suffix == ".jsonl":
        lines = [{k: {n: v[i].tolist() for n, v in c.items()} for k, c in of.items()} for i in range(6)]
        rows = [{**line, "reward": 0.0, "done": i % 3 == 2} for i, line in enumerate(lines)]
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    else:
        path = write(tmp_path / f"a{suffix}", {f"{a}/{n}": v for a, c in of.items() for n, v in c.items()} | flags)
    with pytest.raises(UnknownLayout):
        Rows("plain", path)
    said = {"observation": "[agent_0/obs, agent_1/obs]", "action": "[agent_0/action, agent_1/action]"}
    rows = Rows("plain", path, fields=said)
    assert rows.episodes.length.tolist() == [3, 3]
    assert rows.of(1, "action").tolist() == [[0.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda e: {"terminated": e["dones"], "truncated": ~e["dones"] & False, "dones": ~e["dones"]},
            "dones is not what",
        ),
        (lambda e: {"is_last": np.arange(len(e["dones"])) == 0}, "is_last is set at row 0"),
        (lambda e: {"step": 5 * np.arange(len(e["dones"]))}, "step does not increase by one at row 1"),
    ],
)
def test_columns_of_an_episode_agree_or_an_option_decides(tmp_path: Path, change: Any, message: str) -> None:
    made = [{**e, **change(e)} for e in episodes()]
    with pytest.raises(UnknownLayout, match=f"{message}.*") as e:
        Rows("plain", write_groups(tmp_path / "a.h5", made))
    assert e.value.hint is not None
    rows = Rows("plain", tmp_path / "a.h5", episodes_by="file")
    assert rows.episodes.length.tolist() == LENGTHS


def test_a_field_of_several_columns_keeps_its_final_row(tmp_path: Path) -> None:
    made = episodes()
    path = write_groups(
        tmp_path / "a.h5", [{"x/a": e["obs"][:, :1], "x/b": e["obs"][:, 1:], "do": e["actions"]} for e in made]
    )
    rows = Rows("plain", path, fields={"observation": "data/*/x/*", "action": "data/*/do"})
    assert rows.episodes.observed.all()
    for k, e in enumerate(made):
        np.testing.assert_array_equal(rows.of(k, "observation"), e["obs"], strict=True)


def test_damaged_episodes_of_ones_own_are_left_out_on_request(tmp_path: Path) -> None:
    made = episodes()
    for k, e in enumerate(made):
        write(tmp_path / f"ep{k}.npz", e)
    bad = tmp_path / "ep3.npz"
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(ArchiveError, match=r"ep3\.npz"):
        import_files(tmp_path, "local/bad")
    files = sorted(tmp_path.glob("*.npz"), key=lambda p: int(p.stem[2:]))
    rows = Rows("plain", *files, skip_bad=True)
    assert rows.episodes.length.tolist() == [t for k, t in enumerate(LENGTHS) if k != 3]
    assert rows.codes["skipped-file"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["files", "groups"])
def test_traces_lead_back_to_the_episodes(tmp_path: Path, kind: str) -> None:
    made = episodes()
    for k, e in enumerate(made):
        write(tmp_path / f"d/ep{k}.npz", e)
    ds = import_files(tmp_path / "d" if kind == "files" else grouped(tmp_path / "a.h5", made), "local/x")
    found = trace(ds, 40)
    assert found.ok and found.values > 150


# -- values that a file holds once


@pytest.mark.parametrize("layout", ["D4RL", "rows", "a file per episode", "groups"])
def test_attributes_of_files_and_groups_are_columns_of_the_episode_table(tmp_path: Path, layout: str) -> None:
    ends = [False, True, False, True]
    names = ("observations", "actions", "rewards", "terminals") if layout == "D4RL" else ("obs", "act", "rew", "done")
    values = (np.arange(8.0).reshape(4, 2), np.ones((4, 1)), np.arange(4.0), ends)
    for k in range(2):
        with h5py.File(tmp_path / f"run{k}.h5", "w") as f:
            parts = [("", slice(0, 4))]
            if layout == "a file per episode":
                parts = [("", slice(2, 4))]
            elif layout == "groups":
                parts = [(f"demo_{i}/", slice(2 * i, 2 * i + 2)) for i in range(2)]
            for prefix, rows in parts:
                for name, column in zip(names, values, strict=True):
                    f[prefix + name] = column[rows]
            if layout == "groups":
                f["demo_1"].attrs["operator"] = "eve"  # comes before the file's
            f.attrs.update({"task": "push", "success": bool(k), "operator": "ann", "score": 0.5 + k})
            f.attrs["limits"] = np.zeros(3)
            if k:
                f.attrs["shift"] = 2
    ds = import_files(tmp_path, "local/x")
    episodes = ds.num_episodes
    assert episodes == (2 if layout == "a file per episode" else 4)
    half = [0] * (episodes // 2) + [1] * (episodes // 2)
    assert ds.episodes["task"].tolist() == ["push"] * episodes
    assert ds.episodes["success"].tolist() == [bool(k) for k in half]
    assert ds.episodes["score"].tolist() == [0.5 + k for k in half]
    assert ds.episodes["operator"].tolist() == (["ann", "eve"] * 2 if layout == "groups" else ["ann"] * episodes)
    assert ds.select(where="success and task == 'push'").num_episodes == episodes // 2
    assert ds.select(where="shift == 2").num_episodes == episodes // 2
    assert "limits" not in ds.episodes


def test_scalars_of_npz_files_are_columns_of_the_episode_table(tmp_path: Path) -> None:
    for k in range(2):
        rows = {"obs": np.arange(4.0), "action": np.ones(4), "done": [False, True, False, True], "take@lab": k}
        np.savez(tmp_path / f"run{k}.npz", task=["push", "pull"][k], operator=np.array("ann"), seed_no=k, **rows)
    ds = import_files(tmp_path, "local/x")
    assert ds.episodes["task"].tolist() == ["push", "push", "pull", "pull"]
    assert ds.episodes["operator"].tolist() == ["ann"] * 4 and ds.episodes["seed_no"].tolist() == [0, 0, 1, 1]
    assert ds.episodes["take_lab"].tolist() == [0, 0, 1, 1]  # names with @ are reserved


def test_a_key_that_is_not_there_is_named_with_its_neighbours(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", obs=np.zeros(3), action=np.zeros(3), done=[0, 0, 1])
    np.savez(tmp_path / "b.npz", obs=np.zeros(3), actions=np.zeros(3), done=[0, 0, 1])
    for fields in ({"action": "actoin"}, {"action": "[actoin]"}, {"terminated": "not:actoin"}, {"episode": "actoin"}):
        with pytest.raises(UnknownLayout, match=r'a\.npz has no "actoin"\. Did you mean "action"') as e:
            plan_import(tmp_path / "a.npz", "local/x", fields=fields)
        assert "obs" in str(e.value.hint)
    for fields in ({"step": "actoin"}, {"starts": "actoin"}, {"episode/task": "actoin"}):
        with pytest.raises(UnknownLayout, match=r'a\.npz has no "actoin"'):
            plan_import(tmp_path / "a.npz", "local/x", fields=fields)
    with pytest.raises(UnknownLayout, match=r'b\.npz has no "action"\. Did you mean "actions"'):
        plan_import([tmp_path / "a.npz", tmp_path / "b.npz"], "local/x", fields={"action": "action"})


def test_names_in_the_layout_of_a_family_are_mapped_by_the_reader_of_own_files(tmp_path: Path) -> None:
    """Groups called data/demo_N with obs and actions are robomimic's, whoever wrote them."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for k in range(2):
            demo = f.create_group(f"data/demo_{k}")
            demo["obs/q"], demo["obs/speed"] = np.full((3, 2), k), np.full((3, 1), -k)
            demo["actions"], demo["rewards"] = np.ones((3, 1)), np.zeros(3)
    said = {"observation/arm": "data/*/obs/q"}
    with pytest.raises(UnknownLayout, match="robomimic's names are fixed") as caught:
        plan_import(tmp_path / "a.h5", "local/a", fields=said)
    assert caught.value.hint == "--reader plain takes any names"
    made = import_files(tmp_path / "a.h5", "local/a", fields=said, reader="plain")
    assert made.episode(1)["observation/arm"].tolist() == [[1, 1]] * 3
    assert made.episode(1)["observation/speed"].tolist() == [[-1]] * 3
