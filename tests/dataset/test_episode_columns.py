"""Columns per episode of the user's own, from `create` to everything that reads datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_cli import create, open_dataset
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidEpisode
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.verification import verify
from rlds_cli.look.report import describe_episode, summarise, write_page
from rlds_cli.preprocess import run
from rlds_cli.ted import EpisodeTable

ABOUT: list[dict[str, Any]] = [
    {"task": "press", "success": True, "trial": 3, "speed": 0.5, "operator": "ann"},
    {"task": "lift", "success": False, "trial": np.int32(4), "speed": 2},
    {"task": "press", "trial": 2**63, "speed": None, "operator": ""},
]


def episode(about: dict[str, Any] | None = None, start: float = 0) -> dict[str, Any]:
    given = {"observation": start + np.arange(4.0), "action": np.ones((3, 1)), "next": {"terminated": True}}
    return given if about is None else {**given, "episode": about}


def dataset(ref: str = "local/x") -> Dataset:
    return create(ref, [episode(about, k) for k, about in enumerate(ABOUT)])


def values(ds: Dataset) -> dict[str, list[Any]]:
    return {name: ds.episodes[name].tolist() for name in ("task", "success", "trial", "operator")}


@pytest.mark.thorough
def test_values_and_types_come_back() -> None:
    ds = dataset()
    assert values(ds) == {
        "task": ["press", "lift", "press"],
        "success": [True, False, None],
        "trial": [3, 4, 2**63],
        "operator": ["ann", None, ""],
    }
    np.testing.assert_array_equal(ds.episodes["speed"], [0.5, 2.0, np.nan])
    assert ds.store.episode_table().extra["speed"] == [0.5, 2.0, None]
    assert set(ABOUT[0]) < set(ds.episodes)


def test_spellings_of_the_key_mean_the_same() -> None:
    plain = episode()
    ds = create("local/x", [{**plain, "episode/task": "a"}, {**plain, ("episode", "task"): np.str_("b")}])
    assert ds.episodes["task"].tolist() == ["a", "b"]
    assert "episode" not in {name.split("/")[0] for name in ds.schema}


@pytest.mark.filterwarnings("ignore:where=.*selects all")
def test_they_select_and_go_with_selections() -> None:
    ds = dataset()
    assert ds.select(where="task == 'press'").episodes.index.tolist() == [0, 2]
    assert ds.select(where="success").episodes.index.tolist() == [0]
    assert ds.select(where="not success").episodes.index.tolist() == [1, 2]
    assert ds.select(where="task == 'press' and success").episodes.index.tolist() == [0]
    assert ds.select(where="operator in ('ann', 'bob') or trial > 3").episodes.index.tolist() == [0, 1, 2]
    assert ds.select(where="speed > 0").episodes.index.tolist() == [0, 1]  # what is missing compares as False
    assert ds.select(episodes=[2, 1]).episodes["task"].tolist() == ["press", "lift"]
    assert sorted(t for part in ds.split(0.5, 0.5) for t in part.episodes["task"]) == ["lift", "press", "press"]


@pytest.mark.thorough
def test_derived_and_reencoded_datasets_keep_them() -> None:
    ds = dataset()
    doubled = run(ds, _double, "double")
    assert values(doubled) == values(ds)
    assert values(run(ds.select(episodes=[1, 2]), _double, "some"))["task"] == ["lift", "press"]
    halves = run(ds, _halves, "halves")
    assert halves.episodes["task"].tolist() == ["press", "press", "lift", "lift", "press", "press"]
    before = values(ds)
    reencode("local/x", to="zarr")
    assert values(open_dataset("local/x")) == before
    assert verify("local/x").ok


def _double(ep: dict[str, Any]) -> dict[str, Any]:
    return {**ep, "action": ep["action"] * 2}


def _halves(ep: dict[str, Any]) -> Any:
    for a, b in ((0, 2), (2, 3)):
        flags = {name: ep["next"][name][a:b] for name in ("terminated", "truncated")}
        yield {"observation": ep["observation"][a : b + 1], "action": ep["action"][a:b], "next": flags}


@pytest.mark.thorough
def test_they_count_in_the_fingerprint_and_none_leave_no_trace() -> None:
    plain = create("local/plain", [episode(None, k) for k in range(3)])
    assert dataset().fingerprint != plain.fingerprint
    empty = create("local/empty", [episode({"task": None}, k) for k in range(3)])
    assert empty.fingerprint == plain.fingerprint
    manifest = json.loads((plain.path / "zarr.json").read_text())["attributes"]["rlds"]
    assert "episode_columns" not in manifest
    assert not (plain.path / "episodes" / "missing").exists()


@pytest.mark.parametrize("name", ["task", "success", "trial"])
def test_verify_sees_that_one_was_changed(name: str) -> None:
    ds = dataset()
    document = ds.path / "episodes" / "zarr.json"
    content = json.loads(document.read_text())
    values = content["attributes"]["rlds_columns"][name]
    values[0] = {"task": "another", "success": False, "trial": 5}[name]
    document.chmod(0o644)
    document.write_text(json.dumps(content))
    found = verify("local/x")
    assert {p.where for p in found.problems} == {f"episodes/{name}", "episodes/zarr.json"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"length": 1}, '"length" is an episode column of TED itself'),
        ({"Seed": 1}, '"Seed" is an episode column of TED itself'),
        ({"episode": 1}, '"episode" is an episode column of TED itself'),
        ({"split/train": True}, '"split/train" is an episode column of TED itself'),
        ({"": 1}, "an episode column cannot be called ''"),
        ({"start@camera": 1}, 'an episode column cannot be called "start@camera": names with @ are reserved'),
        ({"x" * 101: 1}, "an episode column cannot be called 'xxx"),
        ({"note": [1, 2]}, 'the episode column "note" is a list; one number, flag or text is needed'),
        ({"note": np.zeros(3)}, 'the episode column "note" is a ndarray; one'),
        ({"note": {"a": 1}}, 'the episode column "note" is a dict; one'),
        ({"note": "a\ud800b"}, r'a text of the episode column "note" is not valid Unicode: .\\ud800b'),
        ({"a\ud800": 1}, "an episode column cannot be called"),
        ({"Task": "a", "task": "b"}, 'episode columns "Task" and "task" differ in case only'),
    ],
)
def test_what_is_no_column_is_refused(about: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEpisode, match=f"episode 1: {message}"):
        create("local/x", [episode(), episode(about)])
    with pytest.raises(DatasetNotFound):
        open_dataset("local/x")


def test_a_column_has_one_type() -> None:
    with pytest.raises(InvalidEpisode, match='episode 2: the episode column "x" is a text here, a whole number before'):
        create("local/x", [episode({"x": 1}), episode(), episode({"x": "1"})])
    with pytest.raises(InvalidEpisode, match="whole numbers of more than 64 bits"):
        create("local/x", [episode({"x": 2**64})])
    with pytest.raises(InvalidEpisode, match="whole numbers of more than 64 bits"):
        create("local/x", [episode({"x": 2**63}), episode({"x": -1})])


@pytest.mark.thorough
def test_inspect_shows_them(tmp_path: Path) -> None:
    ds = dataset()
    found = {c.name: c for c in summarise(ds).episode_columns}
    assert found["task"].counts == {"press": 2, "lift": 1}
    assert found["operator"].missing == 1
    assert found["speed"].distribution is not None
    assert (found["speed"].distribution.min, found["speed"].distribution.max) == (0.5, 2)
    assert describe_episode(ds, 1).columns == {
        "task": "lift", "success": False, "trial": 4, "speed": 2.0, "operator": None,
    }  # fmt: skip
    assert describe_episode(ds.select(episodes=[2]), 0).columns["operator"] == ""
    write_page(ds, tmp_path / "page.html")
    assert '"own/task":["press","lift","press"]' in (tmp_path / "page.html").read_text()


def test_a_table_with_them_is_joined_and_taken() -> None:
    z = np.zeros(2, np.int64)
    one = EpisodeTable(z + 1, z, z, z, z, extra={"task": ["a", None]})
    other = EpisodeTable(z + 1, z, z, z, z, extra={"n": [1, 2]})
    both = EpisodeTable.concat([one, other, EpisodeTable.empty()])
    assert both.extra == {"task": ["a", None, None, None], "n": [None, None, 1, 2]}
    assert both.take(np.array([3, 0])).extra == {"task": [None, "a"], "n": [2, None]}
