"""Functions see the columns of the episode table, and set columns of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_once import made_once
from test_growing_compacting import episode as recorded

import rlds_cli
from rlds_cli import create, open_dataset, preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidEpisode, PreprocessError, UnknownField
from rlds_cli.keep.verification import verify

LENGTHS = [3, 5, 2, 4, 6]
ABOUT: list[dict[str, Any]] = [
    {"task": "lift" if k % 2 else "press", "success": k > 1, "speed": 0.5 * k} | ({"trial": k} if k != 3 else {})
    for k in range(len(LENGTHS))
]


@pytest.fixture
def ds() -> Dataset:
    episodes = [
        {
            "observation": np.full((t + 1, 2), k, np.float32),
            "action": np.full((t, 1), k, np.float32),
            "next": {"reward": np.arange(t, dtype=np.float32), "terminated": True},
            "episode": about,
        }
        for k, (t, about) in enumerate(zip(LENGTHS, ABOUT, strict=True))
    ]
    return made_once("local/x", lambda: create("local/x", episodes), __name__)


def own(ds: Dataset) -> dict[str, list[Any]]:
    return {name: ds.store.own_column(name).scalars() for name in ds.store.own_columns}


def test_an_episode_knows_its_columns_and_they_are_among_no_items(ds):
    seen = []

    def look(episode):
        about = episode["episode"]
        assert episode["episode/task"] == episode["episode", "task"] == about["task"] == episode.get("episode/task")
        assert set(episode) == {"observation", "action", "next"}
        assert {"task", "success", "speed", "trial", "length", "end", "total_reward", "number"} <= set(about)
        assert "none" not in about
        seen.append([about[n] for n in ("number", "task", "success", "speed", "trial", "length", "end", "seed")])
        return episode

    preprocess.run(ds, look, jobs=0)
    want = [
        [k, a["task"], a["success"], a["speed"], a.get("trial"), LENGTHS[k], "terminated", None]
        for k, a in enumerate(ABOUT)
    ]
    assert seen[-len(want) :] == want
    assert all(type(v) in (int, str, bool, float, type(None)) for row in seen for v in row)


@pytest.mark.parametrize("kind", ["ordinary", "selection", "growing"])
def test_a_function_knows_the_id_of_its_episode(ds, kind):
    if kind == "growing":
        with rlds_cli.writer("local/growing") as w:
            w.add_episodes([ds.episode(k) for k in range(ds.num_episodes)])
        ds = rlds_cli.open_dataset("local/growing")
    source = ds.select(episodes=[2, 0]) if kind == "selection" else ds

    def named(episode):
        assert dict(episode["episode"])["id"] == episode["episode"]["id"]
        episode["episode/was"] = episode["episode/id"]
        return episode

    result = preprocess.run(source, named, jobs=0)
    assert result.episodes["was"].tolist() == [bytes(id).hex() for id in source.episodes["id"]]


def test_a_column_that_does_not_exist_is_named_with_those_that_do(ds):
    with pytest.raises(PreprocessError, match=r'no episode column "tsk" in local/x. Did you mean "task"\?') as failed:
        preprocess.run(ds, lambda e: e["episode/tsk"] and e, "made", jobs=0)
    assert isinstance(failed.value.__cause__, UnknownField)


def by_name(episode):
    episode["episode/good"] = episode["episode/length"] > 3
    episode["episode/task"] = episode["episode/task"] + "!"
    return episode


def by_group(episode):
    episode["episode"]["good"] = episode["episode"]["length"] > 3
    episode["episode"]["task"] += "!"
    assert episode["episode"]["speed"] == episode["episode/speed"]
    return {**episode}


def as_create_takes_them(episode):
    about = episode["episode"]
    return {**episode, "episode": {"good": np.bool_(about["length"] > 3), "task": about["task"] + "!"}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [by_name, by_group, as_create_takes_them])
@pytest.mark.parametrize("jobs", [0, 2])
def test_columns_that_a_function_sets_are_columns_of_the_result(ds, form, jobs):
    made = preprocess.run(ds, form, jobs=jobs)
    assert own(made) == own(ds) | {"good": [t > 3 for t in LENGTHS], "task": [f"{a['task']}!" for a in ABOUT]}
    assert made.manifest.episode_columns["good"]["dtype"] == "bool"
    assert verify(made.id).ok
    assert set(made.manifest.shared) == set(ds.schema)
    assert made.select(where="good and task == 'lift!'").num_episodes == 2


@pytest.mark.thorough
def test_values_of_every_kind_and_none(ds):
    def kinds(episode):
        k = episode["episode/number"]
        about = {"flag": k == 1, "count": np.int32(k), "part": k / 2, "word": f"w{k}"}
        return {**episode, "episode": {n: None if k == 4 else v for n, v in about.items()} | {"trial": None}}

    made = preprocess.run(ds, kinds, jobs=0)
    dtypes = {n: d["dtype"] for n, d in made.manifest.episode_columns.items()}
    want = {"flag": "bool", "count": "int64", "part": "float64", "word": "str"}
    assert {n: dtypes[n] for n in want} == want
    assert own(made)["count"] == [0, 1, 2, 3, None]
    assert own(made)["word"] == ["w0", "w1", "w2", "w3", None]
    assert own(made)["trial"] == [None] * 5


@pytest.mark.thorough
def test_some_episodes_set_a_column_and_pieces_have_columns_of_their_own(ds):
    def late(episode):
        if episode["episode/number"] == 3:
            episode["episode/odd"] = True
        return episode

    assert own(preprocess.run(ds, late, jobs=0))["odd"] == [None, None, None, True, None]

    def halves(episode):
        n = len(episode["action"]) // 2
        for part, (a, b) in enumerate([(0, n), (n, len(episode["action"]))]):
            flags = {name: episode["next"][name][a:b] for name in ("terminated", "truncated")}
            yield {
                "observation": episode["observation"][a : b + 1],
                "action": episode["action"][a:b],
                "next": flags,
                "episode": {"part": part},
            }

    made = preprocess.run(ds, halves, jobs=0)
    assert own(made)["part"] == [0, 1] * 5
    assert own(made)["task"] == [a["task"] for a in ABOUT for _ in range(2)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("length", 3, '"length" is an episode column of TED itself'),
        ("task", np.zeros(3), 'the episode column "task" is a ndarray'),
        ("notes", {"a": [1]}, 'the episode column "notes" is a dict'),
    ],
)
def test_what_is_no_column_is_refused(ds, name, value, message):
    def sets(episode):
        return {**episode, "episode": {name: value}}

    with pytest.raises(PreprocessError, match=f"episode 0: {message}"):
        preprocess.run(ds, sets, jobs=0)


@pytest.mark.thorough
def test_a_column_of_two_types_is_refused_and_nothing_is_published(ds):
    def mixed(episode):
        episode["episode/mixed"] = "x" if episode["episode/number"] else 1
        return episode

    with pytest.raises(InvalidEpisode, match='the episode column "mixed" is a text here, a whole number before'):
        preprocess.run(ds, mixed, jobs=0)


@pytest.mark.parametrize("unit", ["batch", "step", "window"])
def test_functions_of_transitions_see_columns_and_set_none(ds, unit):
    def scaled(data):
        speed, reward = data["episode/speed"], data["next"]["reward"]
        assert data["episode"]["task"] is not None
        if unit == "window":
            return {"next": {"reward": reward[:, 0] * speed}}
        data["next"]["reward"] = reward * np.float32(speed)
        return data

    made = preprocess.run(ds, scaled, unit=unit, jobs=0)
    for k, t in enumerate(LENGTHS):
        assert np.allclose(made.episode(k)["next/reward"].ravel(), np.arange(t) * 0.5 * k)

    def sets(data):
        return {**data, "episode/task": data["next"]["reward"]} if unit != "window" else {"episode/task": data["mask"]}

    with pytest.raises(PreprocessError, match='"episode/task" came back, a column of the episode table'):
        preprocess.run(ds, sets, unit=unit, jobs=0)


@pytest.mark.thorough
def test_shards_give_the_same_columns(ds):
    whole = preprocess.run(ds, by_name, jobs=0)
    for number in (2, 1):
        preprocess.run_shard(ds, "test_preprocess_columns:by_name", "sharded", shard=(number, 2))
    sharded = preprocess.finish(ds, "test_preprocess_columns:by_name", "sharded")
    assert own(sharded) == own(whole)


def test_a_trial_names_the_columns_that_change(ds):
    report = preprocess.attempt(ds, by_name, episode=1)
    found = {c.name: c for c in report.fields if c.name.startswith("episode/")}
    assert {n: c.what for n, c in found.items()} == {"episode/good": "new", "episode/task": "changed"}
    assert found["episode/good"].after.dtype == "bool"
    assert found["episode/task"].before.dtype == "text"


CALLS: list[int] = []


def counted(episode):
    CALLS.append(1)
    episode["episode/total"] = float(episode["next"]["reward"].sum())
    return episode


def test_a_growing_dataset_takes_columns_over_from_the_earlier_result():
    def add(first, last, **about):
        with rlds_cli.writer("local/run") as w:
            w.add_episodes({**recorded(k), "episode": about} for k in range(first, last))

    add(0, 6, task="a")
    preprocess.run("local/run", counted, "made", jobs=0)
    add(6, 8, task="b")
    CALLS.clear()
    made = preprocess.run("local/run", counted, "made", jobs=0)
    assert len(CALLS) <= 5  # two new episodes, and three that are looked at
    source = open_dataset("local/run")
    assert own(made)["task"] == ["a"] * 6 + ["b"] * 2
    assert own(made)["total"] == source.episodes["total_reward"].tolist()


def test_arrays_below_episode_are_fields(ds):
    def counts(episode):
        return {**episode, "episode": {"place": np.arange(len(episode["action"])), "kind": "new"}}

    made = preprocess.run(ds, counts, jobs=0)
    assert made.schema["episode/place"].placement == "root"
    assert own(made)["kind"] == ["new"] * 5

    def reads(episode):
        assert episode["episode/place"][-1] == episode["episode/length"] - 1
        episode["episode/kind"] = "newer"
        return episode

    again = preprocess.run(made, reads, "again", jobs=0)
    assert own(again)["kind"] == ["newer"] * 5
    assert "episode/place" in again.manifest.shared


@pytest.mark.thorough
def test_a_dataset_with_fields_called_episode_keeps_them():
    ds = create(
        "local/n", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1)), "next": {"terminated": True}}]
    )

    def numbered(episode):
        episode["episode"] = np.arange(2)
        return episode

    made = preprocess.run(ds, numbered, jobs=0)
    assert made.schema["episode"].dtype == "int64"
    again = preprocess.run(made, lambda e: {**e, "action": e["episode"][:, None] * 1.0}, "again", jobs=0)
    assert np.array_equal(again.episode(0)["episode"], [0, 1])
