"""Sub-tasks: intervals of the steps of episodes, each with a text, and the field ``subtask`` that is looked up in them.

The texts of steps are worked out by hand; observations are numbers of their step, which says the row of a sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli import Dataset, Loader
from rlds_cli.errors import InvalidEpisode, RldsError
from rlds_cli.loader import Offsets, Sequential, Slice

R, G, L = "reach", "grasp", "lift"
STEPS = {0: [R, R, None, G, G, G, None], 1: [None] * 4, 2: [None, L, L]}
GIVEN: dict[int, Any] = {0: [(3, 6, G), (0, 2, R)], 1: None, 2: '[[1, 3, "lift"]]'}
ID = "local/subtasks"


def episode(k: int, told: Any = None) -> dict[str, Any]:
    length = len(STEPS[k])
    at = 100.0 * k + np.arange(length + 1)
    about = {} if told is None else {"episode": {"subtasks": told}}
    return {"observation": at[:, None], "action": np.zeros((length, 1)), "next/reward": np.ones(length)} | about


@pytest.fixture
def ds() -> Dataset:
    return rlds_cli.create(ID, [episode(k, GIVEN[k]) for k in STEPS])


def subtasks(ds: Dataset) -> list[list[str | None]]:
    return [ds.episode(k)["subtask"].tolist() for k in range(ds.num_episodes)]


def test_a_step_has_the_text_of_its_interval(ds: Dataset) -> None:
    assert subtasks(ds) == list(STEPS.values())
    assert json.loads(ds.episodes["subtasks"][0]) == [[0, 2, R], [3, 6, G]]
    start = ds.episodes["start"]
    rows = [int(start[2]) + 1, int(start[0]), int(start[1]), int(start[0]) + 7]
    assert ds.gather("subtask", rows).tolist() == [L, R, None, None]
    assert ds.select(episodes=[2, 0]).episode(0)["subtask"].tolist() == STEPS[2]


def test_batches_have_the_texts_of_their_steps(ds: Dataset) -> None:
    flat = {100.0 * k + t: text for k, texts in STEPS.items() for t, text in enumerate(texts)}
    for batch in Loader(ds, 5, sampler=Sequential(), fields=["observation", "subtask"], steps=3):
        assert batch["subtask"].tolist() == [flat[x] for x in batch["observation"][:, 0].tolist()]
    windows = next(iter(Loader(ds, 14, window=Slice(4, after=3), sampler=Sequential(), fields=["subtask", "mask"])))
    assert windows["subtask"][4].tolist() == [G, G, None, None]
    assert windows["subtask"][5].tolist() == [G, None, None, None]
    assert windows["subtask"][13].tolist() == [L] * 4, "the last step is repeated, as in every field"
    around = Loader(ds, 14, window=Offsets({"subtask": (-1, 0, 2)}), sampler=Sequential(), fields=["subtask"])
    assert next(iter(around))["subtask"][1].tolist() == [R, R, G]
    some = Loader(ds.select(episodes=[2]), 3, sampler=Sequential(), fields=[..., "subtask"])
    assert next(iter(some))["subtask"].tolist() == STEPS[2]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([(0, 8, R)], "steps 0 to 8, which are not a range of the 7"),
        ([(2, 2, R)], "steps 2 to 2"),
        ([(-1, 2, R)], "steps -1 to 2"),
        ([(0, 3, R), (2, 4, G)], '"reach", from step 0 to 3, and "grasp", from 2, overlap'),
        ([(0, 3)], "three values"),
        ([(0.5, 3, R)], "0.5 is not the number"),
        ([(True, 3, R)], "True is not the number"),
        ([(0, 3, " ")], "' ' is not a text"),
        ([{"first": 0, "end": 3, "text": R}], "first, end, text, not first, stop, text"),
        ("reach the cube", "is not a list of intervals"),
        (7, "is not a list of intervals"),
    ],
)
def test_what_is_no_list_of_intervals_is_refused(told: Any, message: str) -> None:
    with pytest.raises(InvalidEpisode, match=message):
        rlds_cli.create(ID, [episode(0, told)])
    ds = rlds_cli.create(ID, [episode(0)])
    with pytest.raises(InvalidEpisode, match=message):
        ds.label(subtasks=[told])
    assert "subtasks" not in rlds_cli.open_dataset(ID).episodes


def test_intervals_are_changed_as_labels_are(ds: Dataset, tmp_path: Path) -> None:
    made = ds.select(episodes=[1]).label(subtasks=[[{"first": 0, "stop": 4, "text": "wait"}]])
    assert subtasks(made) == [STEPS[0], ["wait"] * 4, STEPS[2]]
    assert (made.version, made.episodes["start"].tolist()) == (2, ds.episodes["start"].tolist())
    assert "subtask" not in made.label(subtasks=None).episode(0)
    back = rlds_cli.open_dataset(f"{ID}#v2").restore()
    assert subtasks(back)[1] == ["wait"] * 4

    file = tmp_path / "segments.csv"
    file.write_text("episode,first,stop,subtask\n2,0,1,look\n0,0,7,all\n2,1,3,lift\n")
    assert run_rlds("label", f"{ID}#v{back.version}", "--from", str(file)).returncode == 0
    assert subtasks(rlds_cli.open_dataset(ID)) == [["all"] * 7, ["wait"] * 4, ["look", L, L]]
    file.write_text("episode,first,stop,subtask\n2,0,2,look\n2,1,3,lift\n")
    newest = f"{ID}#v{back.version + 1}"
    refused = run_rlds("label", newest, "--from", str(file))
    assert refused.returncode == 1 and b"overlap" in refused.stderr
    file.write_text("episode,first,stop,subtask,quality\n2,0,2,look,good\n")
    assert b"quality" in run_rlds("label", newest, "--from", str(file)).stderr


def test_a_trim_and_a_split_cut_intervals(ds: Dataset) -> None:
    made = ds.trim({0: (1, 5), 1: None, 2: (0, 1)}, "short")
    assert subtasks(made) == [STEPS[0][1:5], STEPS[2][:1]]
    assert json.loads(made.episodes["subtasks"][0]) == [[0, 1, R], [2, 4, G]] and made.episodes["subtasks"][1] is None
    parts = ds.trim({0: [(0, 4), (4, 7)]}, "parts")
    assert subtasks(parts)[:2] == [STEPS[0][:4], STEPS[0][4:]]
    assert subtasks(rlds_cli.open_dataset(ID)) == list(STEPS.values())


def test_a_dataset_that_grows_takes_them() -> None:
    with rlds_cli.writer(ID, durable=False) as w:
        w.add_episodes([episode(k, GIVEN[k]) for k in STEPS])
        with pytest.raises(InvalidEpisode, match="not a range of the 3"):
            w.add_episodes([episode(2, [(0, 4, L)])])
    ds = rlds_cli.open_dataset(ID)
    assert subtasks(ds) == list(STEPS.values())
    assert subtasks(ds.select(episodes=[0]).label(subtasks=[[(0, 7, "all")]]))[0] == ["all"] * 7
    assert subtasks(ds.trim({0: (2, 5)}, "short"))[0] == STEPS[0][2:5]


def test_they_go_with_their_episodes(ds: Dataset, tmp_path: Path) -> None:
    rlds_cli.push(ID, str(tmp_path / "pushed"), pages=False)
    there = rlds_cli.open_dataset(str(tmp_path / "pushed"))
    assert subtasks(there) == list(STEPS.values())
    other = rlds_cli.create("local/other", [{**episode(0), "next/reward": np.zeros(7)}])
    merged = rlds_cli.merge([other.id, ID], "local/both")
    assert subtasks(merged) == [[None] * 7, *STEPS.values()]


def half(ep: Any) -> Any:
    """The first steps of an episode."""
    names = ("observation", "action", "next/reward", "next/terminated", "next/truncated")
    return {n: ep[n][: 3 + (n == "observation")] for n in names}


def first_of(ep: Any) -> Any:
    ep["episode/first"] = ep["subtask"][0]
    return ep


def test_functions_read_them_and_say_what_becomes_of_them(ds: Dataset) -> None:
    assert ds.map(first_of, name="first").episodes["first"].tolist() == [R, None, None]
    with pytest.raises(RldsError, match="3 steps of 7 came back, and the column subtasks has ranges"):
        ds.map(half, name="half")


def test_pages_count_the_episodes_that_have_a_text(ds: Dataset, tmp_path: Path) -> None:
    (column,) = rlds_cli.inspect(ID).episode_columns
    assert (dict(column.counts), column.missing) == ({R: 1, G: 1, L: 1}, 1)
    page = tmp_path / "page.html"
    assert run_rlds("inspect", ID, "--html", str(page)).returncode == 0
    assert "0-1 reach, 3-5 grasp" in page.read_text()
