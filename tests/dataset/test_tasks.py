"""What is said of episodes, ``task``, and ``task_at`` where it changes: read, corrected, joined, exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import lerobot_archives
import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run_rlds
from made_once import made_once

import rlds_cli
from rlds_cli import create, merge, open_dataset
from rlds_cli.archives import plan_export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, InvalidEpisode, LossyExport, PreprocessError
from rlds_cli.loader import Episode, Loader, Member, Mixture, Offsets, Sequential, Slice, Transition
from rlds_cli.make.convert.appending import append
from rlds_cli.make.importing import import_files, plan_import

NUMPY: dict[str, Any] = {"backend": "numpy"}


def episode(k: int, steps: int, **more: Any) -> dict[str, Any]:
    return {
        "observation": np.full((steps + 1, 2), k, np.float32),
        "action": np.zeros((steps, 1)),
        "next": {"reward": np.zeros(steps), "terminated": True},
        **more,
    }


def one(name: str = "local/one") -> Dataset:
    """Episodes with a text each; the last one has none."""
    texts = [{"task": "pick"}, {"task": "place"}, {}]
    return made_once(
        name, lambda: create(name, [episode(k, 3, episode=text) for k, text in enumerate(texts)]), __name__, "one"
    )


def several(name: str = "local/several") -> Dataset:
    """The first episode has two texts, one after the other."""
    episodes = [episode(5, 3, task=["open", "shut", "shut"]), episode(6, 2, task=["push", "push"])]
    return made_once(name, lambda: create(name, episodes), __name__, "several")


def tasks(ds: Dataset) -> list[list[str | None]]:
    return [ds.episode(k)["task"].tolist() for k in range(ds.num_episodes)]


# -- readers


def test_tasks_of_lerobot_are_a_column_and_a_field_where_an_episode_has_several(tmp_path: Path) -> None:
    c = lerobot_archives.Content(lengths=(4, 3))
    ds = import_files(lerobot_archives.write_v3(tmp_path / "a", c), "local/a")
    assert ds.episodes["task"].tolist() == ["push the block", "pull"] and "task" not in ds.schema
    assert "task_at" not in ds.schema and tasks(ds) == [["push the block"] * 4, ["pull"] * 3]
    root = lerobot_archives.write_v3(tmp_path / "b", c)
    (file,) = (root / "data").rglob("*.parquet")
    table = pq.read_table(file)
    at = table.column_names.index("task_index")
    pq.write_table(table.set_column(at, "task_index", [[0, 0, 1, 1, 1, 1, 1]]), file)
    ds = import_files(root, "local/b")
    assert ds.episodes["task"].tolist() == ["push the block", "pull"]
    assert tasks(ds) == [["push the block"] * 2 + ["pull"] * 2, ["pull"] * 3]
    assert ds.gather("task_at", np.arange(2)).tolist() == ["push the block"] * 2
    (note,) = [n for n in ds.manifest.notes if n["code"] == "several-tasks"]
    assert note["count"] == 1


def test_instructions_of_robomimic_libero_and_robocasa(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "libero.hdf5", "w") as f:
        data = f.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": ["open the ", "drawer"]})
        for k in range(2):
            for key, width in (("actions", 7), ("obs/ee_pos", 3)):
                f[f"data/demo_{k}/{key}"] = np.zeros((2, width))
        data["demo_1"].attrs["ep_meta"] = json.dumps({"lang": "close it", "layout_id": 3})
    ds = import_files(tmp_path / "libero.hdf5", "local/libero", reader="robomimic")
    assert ds.episodes["task"].tolist() == ["open the drawer", "close it"]
    next(iter(Loader(ds, 2, fields=["task"], **NUMPY)))


def test_a_text_for_each_row_of_a_table_is_said_of_its_episode(tmp_path: Path) -> None:
    rows = "obs,action,done,instruction\n1,0,0,lift\n2,0,1,lift\n3,0,1,drop\n"
    (tmp_path / "a.csv").write_text(rows)
    ds = import_files(tmp_path / "a.csv", "local/a")
    assert ds.episodes["task"].tolist() == ["lift", "drop"] and "instruction" not in ds.schema
    ds = import_files(tmp_path / "a.csv", "local/b", fields={"said": "instruction"})
    assert "task" not in ds.episodes and ds.schema["said"].kind == "text"
    assert not plan_import([tmp_path / "a.csv"], "local/c").plan.several_tasks


# -- reading


@pytest.mark.parametrize("make", [one, several])
def test_every_window_gives_what_is_to_be_done_at_the_step(home: Path, make: Any) -> None:
    ds = make()
    truth = {int(ds.episode(k)["observation"][0, 0]): texts for k, texts in enumerate(tasks(ds))}
    windows = [Transition(), Transition(n_step=2), Slice(2), Slice(3, fill="zero"), Episode(fill="zero")]
    for window in windows:
        for batch in Loader(
            ds, 2, window=window, sampler=Sequential(), fields=["observation", "task", "step"], **NUMPY
        ):
            steps, texts = np.atleast_1d(batch["step"]), batch["task"]
            inside = batch["mask"] if "mask" in batch else np.ones(steps.shape, bool)
            episodes = batch["observation"][..., 0].astype(int)
            for k, t, text, real in zip(episodes.ravel(), steps.ravel(), texts.ravel(), inside.ravel(), strict=True):
                assert text == (truth[k][t] if real else None)
    window = Offsets({"task": (-1, 0, 1)}, fill="zero")
    for batch in Loader(ds, 2, window=window, sampler=Sequential(), fields=["observation", "task", "step"], **NUMPY):
        for k, t, texts in zip(batch["observation"][:, 0].astype(int), batch["step"], batch["task"], strict=True):
            around = [truth[k][t + x] if 0 <= t + x < len(truth[k]) else None for x in (-1, 0, 1)]
            assert texts.tolist() == around
        assert batch["mask", "task"].shape == (len(batch["task"]), 3)


def test_a_mixture_joins_both_kinds(home: Path) -> None:
    mixture = Mixture({"a": Member(one()), "b": Member(several())})
    seen = set()
    for batch in Loader(mixture, 8, fields=["observation", "task"], steps=20, **NUMPY):
        seen |= set(zip(batch["observation"][:, 0].astype(int).tolist(), batch["task"].tolist(), strict=True))
    assert seen == {(0, "pick"), (1, "place"), (2, None), (5, "open"), (5, "shut"), (6, "push")}


def test_functions_see_it_and_set_it_by_the_column(home: Path) -> None:
    def longer(e: Any) -> Any:
        e["count"] = np.array([len(text) for text in e["task"]])
        return e

    assert several().map(longer, name="n").episode(0)["count"].tolist() == [4, 4, 4]
    assert one().select(episodes=[0]).map(longer, name="n").episode(0)["count"].tolist() == [4, 4, 4]

    def loud(e: Any) -> Any:
        e["episode/task"] = e["episode/task"].upper()
        return e

    ds = open_dataset("local/several")
    with pytest.raises(PreprocessError, match="the steps have texts of their own"):
        ds.map(loud, name="loud")
    assert tasks(ds.select(episodes=[1]).map(loud, name="loud")) == [["PUSH", "PUSH"]]

    def retold(e: Any) -> Any:
        e["task_at"] = ["a"] * (len(e["action"]) - 1) + ["b"]
        return e

    made = ds.map(retold, name="retold")
    assert made.episodes["task"].tolist() == ["a", "a"] and tasks(made) == [["a", "a", "b"], ["a", "b"]]


# -- creating


def test_texts_of_steps_become_a_column_and_a_field_only_where_they_change(home: Path) -> None:
    ds = several()
    assert ds.episodes["task"].tolist() == ["open", "push"] and "task_at" in ds.schema and "task" not in ds.schema
    same = create("local/same", [episode(0, 2, task=["a", "a"]), episode(1, 3, task=["b"] * 3)])
    assert same.episodes["task"].tolist() == ["a", "b"] and "task_at" not in same.schema
    for there in (ds, same):
        again = create("local/again", (there.episode(k) for k in range(2)), force=True)
        assert again.fingerprint == there.fingerprint
    with rlds_cli.writer("local/log") as w:
        for text in ("a", "b"):
            w.add(np.zeros(2), np.zeros(1), terminated=text == "b", next_observation=np.zeros(2), task=text)
        w.add(np.zeros(2), np.zeros(1), terminated=True, next_observation=np.zeros(2), episode={"task": "c"})
    assert tasks(w.dataset()) == [["a", "b"], ["c"]] and w.dataset().episodes["task"].tolist() == ["a", "c"]


# -- changes


def test_a_label_corrects_what_training_and_exports_take(home: Path, tmp_path: Path) -> None:
    ds = several().select(episodes=[1]).label(task="pull")
    assert ds.episodes["task"].tolist() == ["open", "pull"] and tasks(ds) == [["open", "shut", "shut"], ["pull"] * 2]
    assert ds.select(where="task == 'pull'").num_episodes == 1
    texts = [t for b in Loader(ds, 5, sampler=Sequential(), fields=["task"], **NUMPY) for t in b["task"]]
    assert texts == ["open", "shut", "shut", "pull", "pull"]
    rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True)
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet")["__index_level_0__"].to_pylist() == [
        "open",
        "shut",
        "pull",
    ]
    assert run_rlds("verify", ds.id).returncode == 0
    assert tasks(open_dataset("local/several#v1")) == [["open", "shut", "shut"], ["push", "push"]]
    assert tasks(one().label(task="new")) == [["new"] * 3] * 3


def test_labels_that_would_say_two_things_are_refused(home: Path) -> None:
    ds = several()
    with pytest.raises(InvalidArgument, match=r"task_at has several tasks.* the number 0") as failed:
        ds.label(task="x")
    assert 'episode["task_at"]' in str(failed.value.hint)
    for name in ("action", "next", "task_at"):
        with pytest.raises(InvalidArgument, match=f"{name} is a field of the steps"):
            ds.label({name: 1})
    assert open_dataset("local/several").version == 1


def test_a_part_of_an_episode_has_the_text_of_its_first_step(home: Path) -> None:
    ds = several().trim({0: [(0, 1), (1, 3)]}, "parts")
    assert ds.episodes["task"].tolist() == ["open", "shut", "push"]
    assert tasks(ds) == [["open"], ["shut", "shut"], ["push", "push"]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_merge_fills_the_texts_of_steps(home: Path, order: Sequence[int]) -> None:
    members = [one(), several()]
    ds = merge([members[k] for k in order], "local/all")
    found = dict(zip(ds.episodes["task"].tolist(), tasks(ds), strict=True))
    both = {"pick": ["pick"] * 3, "place": ["place"] * 3, None: [None] * 3}
    assert found == both | {"open": ["open", "shut", "shut"], "push": ["push"] * 2}
    assert run_rlds("verify", ds.id).returncode == 0
    assert rlds_cli.create("local/copy", map(ds.episode, range(5))).fingerprint == ds.fingerprint


@pytest.mark.slow
def test_an_append_fills_them_either_way(home: Path, tmp_path: Path) -> None:
    for name, texts in (("same", ["a", "a"]), ("other", ["b", "c"])):
        lines = [f"{k},0,{int(k == 1)},{text}" for k, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["obs,action,done,task", *lines]) + "\n")
    for first, then in (("same", "other"), ("other", "same")):
        import_files(tmp_path / f"{first}.csv", "local/x", force=True)
        append("local/x", tmp_path / f"{then}.csv")
        found = tasks(open_dataset("local/x"))
        assert found == [["a", "a"], ["b", "c"]][:: 1 if first == "same" else -1]
    append("local/log", tmp_path / "other.csv")
    append("local/log", tmp_path / "same.csv")
    assert tasks(open_dataset("local/log")) == [["b", "c"], ["a", "a"]]
    assert run_rlds("verify", "local/log", "local/x").returncode == 0
    append("local/plain", tmp_path / "same.csv")
    with pytest.raises(InvalidEpisode, match=r"several tasks.* grows"):
        append("local/plain", tmp_path / "other.csv")


# -- exports


@pytest.mark.parametrize(
    ("make", "to"),
    [
        *((several, to) for to in ("lerobot", "lerobot2.1", "tfds", "robomimic")),
        (one, "robomimic"),
        *(pytest.param(one, to, marks=pytest.mark.thorough) for to in ("lerobot", "lerobot2.1", "tfds")),
    ],
)
def test_instructions_come_back(home: Path, tmp_path: Path, make: Any, to: str) -> None:
    ds = make().select(episodes=[0, 1])
    rlds_cli.export(ds, to, tmp_path / "out", lossy=True)
    again = import_files(tmp_path / "out", "local/again")
    assert tasks(again) == tasks(ds) and again.episodes["task"].tolist() == ds.episodes["task"].tolist()
    assert ("task_at" in again.schema) == ("task_at" in ds.schema)


def test_an_export_takes_the_only_text_says_so_and_asks_where_there_are_several(home: Path, tmp_path: Path) -> None:
    ds = create("local/a", [episode(0, 2, episode={"instruction": "lift"})])
    planned = plan_export(ds, "lerobot", tmp_path / "out")
    assert "the instruction of each episode is its column instruction" in planned.notes
    rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True)
    listed = pq.read_table(tmp_path / "out/meta/tasks.parquet")["__index_level_0__"].to_pylist()
    assert listed == ["lift"]
    again = import_files(tmp_path / "out", "local/again")
    assert again.episodes["instruction"].tolist() == ["lift"] and "task" not in again.episodes
    two = create("local/b", [episode(0, 2, episode={"instruction": "lift", "operator": "ann"})])
    with pytest.raises(InvalidArgument, match=r"several texts.*instruction, operator") as failed:
        plan_export(two, "lerobot", tmp_path / "out")
    assert "--task instruction" in str(failed.value.hint)
    done = run_rlds("export", two.id, tmp_path / "two", "--to", "lerobot", "--task", "instruction", "--lossy")
    assert b"column instruction" in done.stdout
    assert pq.read_table(tmp_path / "two/meta/tasks.parquet")["__index_level_0__"].to_pylist() == ["lift"]
    nothing = create("local/c", [episode(0, 2)])
    assert "no text says" in plan_export(nothing, "lerobot", tmp_path / "c").notes[0]
    with pytest.raises(InvalidArgument, match="no place for instructions"):
        plan_export(two, "minari", tmp_path / "c", task="instruction")


def test_texts_that_an_export_has_no_place_for_are_lost_only_if_that_is_accepted(home: Path, tmp_path: Path) -> None:
    ds = create("local/a", [episode(0, 2, episode={"task": "lift"}), episode(1, 2)])
    with pytest.raises(LossyExport, match="1 episode has no task: it will be empty"):
        rlds_cli.export(ds, "tfds", tmp_path / "out")
    with pytest.raises(LossyExport, match="episode columns: task"):
        rlds_cli.export(ds, "minari", tmp_path / "out")
    odd = create("local/b", [episode(0, 2, task=["a", "b"], episode={"task": "both"})])
    assert odd.episodes["task"].tolist() == ["both"]
    with pytest.raises(LossyExport, match="task of 1 episode, which is not the first text of task_at"):
        rlds_cli.export(odd, "tfds", tmp_path / "out")


def test_a_trace_compares_the_texts_of_steps(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("obs,action,done,task\n1,0,0,lift\n2,0,0,drop\n3,0,1,drop\n")
    ds = import_files(tmp_path / "a.csv", "local/a")
    done = run_rlds("verify", ds.id, "--trace", "3", "--json")
    assert done.returncode == 0 and b"task_at" in done.stdout
