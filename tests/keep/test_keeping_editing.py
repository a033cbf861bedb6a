"""Lock files of selections, trims, labels and drops: the same datasets in another home, from the lock alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, NameTaken, RldsError, WrongFingerprint
from rlds_cli.keep import pinning

SAMPLE = "sample/pendulum-d4rl"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


@pytest.fixture
def sample() -> Dataset:
    return sample_dataset(SAMPLE.removeprefix("sample/"))


def locked(tmp_path: Path, *refs: str) -> Path:
    file = tmp_path / "rlds.lock"
    file.write_text(pinning.lock(refs))
    return file


def entry(file: Path, id: str) -> dict[str, Any]:
    return next(d for d in json.loads(file.read_text())["datasets"] if d["id"] == id)


def is_again(ds: Dataset, elsewhere: Path) -> Dataset:
    """Compare a dataset with the one of the same id in the other home, and return that."""
    made = rlds_cli.open_dataset(ds.id, home=elsewhere)
    assert made.path.is_relative_to(elsewhere)
    assert made.fingerprint == ds.fingerprint and made.version == ds.version
    assert sorted(made.episodes) == sorted(ds.episodes)
    for name in ds.episodes:
        if name not in ("start", "source"):
            np.testing.assert_array_equal(made.episodes[name], ds.episodes[name], name)
    for name in ds.schema:
        for k in range(ds.num_episodes):
            np.testing.assert_array_equal(made.episode(k)[name], ds.episode(k)[name], name)
    return made


@pytest.mark.thorough
def test_a_selection_is_made_again(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    ds = sample.select(episodes=[5, 6, 7, 2, 0]).save("some")
    file = locked(tmp_path, ds.id)
    assert entry(file, ds.id)["edits"]["episodes"] == [[5, 8], [2, 3], [0, 1]]
    assert [(d.id, d.how) for d in pinning.sync(file, home=elsewhere)] == [(SAMPLE, "downloaded"), (ds.id, "made")]
    made = is_again(ds, elsewhere)
    for k, number in enumerate([5, 6, 7, 2, 0]):  # against the archive
        np.testing.assert_array_equal(made.episode(k)["observation"], sample.episode(number)["observation"])
    assert {d.how for d in pinning.sync(file, home=elsewhere)} == {"here"}
    assert pinning.lock([ds.id], home=elsewhere) == file.read_text()


def test_a_trim_cuts_its_subtasks_again(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    told = sample.select(episodes=[1, 2]).label(subtasks=[[(0, 5, "up"), (5, 20, "down")], None], name="told")
    ds = told.trim({1: (3, 10), 2: None}, "short")
    file = locked(tmp_path, ds.id)
    pinning.sync(file, home=elsewhere)
    assert is_again(ds, elsewhere).episode(1)["subtask"].tolist() == ["up"] * 2 + ["down"] * 5


@pytest.mark.thorough
def test_a_trim_is_made_again_of_its_ranges(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    ds = sample.select(episodes=slice(1, 5)).trim({0: [(3, 10), (10, 20)], 2: None}, "short")
    file = locked(tmp_path, ds.id)
    assert entry(file, ds.id)["edits"]["episodes"] == [[1, 3, 10], [1, 10, 20], [2, 3], [4, 5]]
    pinning.sync(file, home=elsewhere)
    made = is_again(ds, elsewhere)
    np.testing.assert_array_equal(made.episode(1)["action"], sample.episode(1)["action"][10:20])
    assert made.episode(0)["next", "truncated"].reshape(-1).tolist() == [False] * 6 + [True]


@pytest.mark.thorough
def test_all_changes_of_a_view_are_one(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    ds = sample.trim({k: (k, 50 + k) for k in range(6)}, "v")
    ds = ds.select(episodes=[1, 4]).label(quality="bad", mark=-0.0)
    ds = ds.select(episodes=[0]).label(mark=0.0, good=True)
    ds = ds.select(episodes=[1, 2]).drop()
    ds = ds.label(good=None, score=np.arange(ds.num_episodes), facts={"fps": 12.5, "license": "MIT"})
    file = locked(tmp_path, ds.id)
    edits = entry(file, ds.id)["edits"]
    assert edits["columns"]["good"] is None
    assert edits["columns"]["quality"]["counts"] == [2, 1, ds.num_episodes - 3]
    assert entry(file, ds.id)["version"] == 5
    pinning.sync(file, home=elsewhere)
    made = is_again(ds, elsewhere)
    assert made.manifest.env["fps"] == 12.5 and made.manifest.facts["licence"] == "MIT"
    assert [v.number for v in made.versions] == [5]
    assert pinning.lock([ds.id], home=elsewhere) == file.read_text()


@pytest.mark.thorough
def test_a_view_of_a_view_and_results_of_both(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    a = sample.select(episodes=slice(2, 9)).save("a").label(kind="x")
    b = a.select(episodes=[4, 1]).save("b")
    c = a.select(episodes=[4, 1]).drop(name="c")
    d = c.label(kind="y", name="d")
    n = preprocess.run(b, "scale_reward", "n", args={"scale": 2})
    v = n.select(episodes=[1]).save("v")
    file = locked(tmp_path, d.id, v.id)
    pinning.sync(file, home=elsewhere)
    for ds in (a, b, c, d, n, v):
        is_again(ds, elsewhere)


def test_a_result_of_a_selection_without_a_name_is_refused(sample: Dataset) -> None:
    made = preprocess.run(sample.select(episodes=[1, 2]), "scale_reward", "n", args={"scale": 2})
    with pytest.raises(
        RldsError, match=r"made of a selection of the episodes of .* \(ds\.select\(\.\.\.\)\.save\(NAME\)"
    ):
        pinning.lock([made.id])


def test_versions_of_a_result_are_made_again_over_it(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    first = preprocess.run(sample, "scale_reward", "n", args={"scale": 2})
    second = first.select(episodes=[3]).label(quality="bad")
    third = second.select(where="quality == 'bad'").drop()
    file = locked(tmp_path, first.id)
    assert entry(file, third.id)["edits"]["from"] is None
    assert [d.how for d in pinning.sync(file, home=elsewhere)] == ["downloaded", "made"]
    made = is_again(third, elsewhere)
    assert [v.number for v in made.versions] == [1, 3]
    np.testing.assert_array_equal(made.episode(3)["next", "reward"], 2 * sample.episode(4)["next", "reward"])


def test_sources_are_locked_at_the_version_that_was_used(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    n = preprocess.run(sample, "scale_reward", "n", args={"scale": 2}).label(quality=1)
    view = n.select(episodes=[1, 2]).save("v")
    made = preprocess.run(n, "scale_reward", "m", args={"scale": 3})
    n.label(quality=2)
    file = locked(tmp_path, view.id, made.id)
    assert entry(file, n.id)["version"] == 2 and entry(file, n.id)["fingerprint"] == n.fingerprint
    pinning.sync(file, home=elsewhere)
    is_again(n, elsewhere)
    is_again(view, elsewhere)
    is_again(made, elsewhere)
    assert {d.how for d in pinning.sync(file)} == {"here"}  # n, too: at an earlier version
    with pytest.raises(RldsError, match=r"one version of sample/.*@n\. It would need two: v3, .* made of v2"):
        pinning.lock([n.id, view.id])
    with pytest.raises(RldsError, match=r"It would need two: v2, and v3 was named"):
        pinning.lock([view.id, n.id])


@pytest.mark.thorough
def test_a_version_that_is_named_is_locked(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    view = sample.select(episodes=[4, 1]).save("v").label(quality="bad")
    view.select(episodes=[0]).drop()
    pinning.sync(locked(tmp_path, f"{view.id}#v2"), home=elsewhere)
    is_again(view, elsewhere)


def test_views_of_a_source_whose_content_is_gone(sample: Dataset) -> None:
    n = preprocess.run(sample, "scale_reward", "n", args={"scale": 2})
    view = n.select(episodes=[1, 2]).save("v")
    preprocess.run(sample, "scale_reward", "n", args={"scale": 3}, force=True)
    with pytest.raises(DatasetNotFound, match="@v was made of sample/pendulum-d4rl@n with the fingerprint rlds1:"):
        pinning.lock([view.id])


def test_a_dataset_is_not_made_of_itself(sample: Dataset) -> None:
    view = sample.select(episodes=[1, 2]).save("v")
    with pytest.raises(NameTaken, match="cannot be made of itself"):
        view.select(episodes=[0]).save("v", force=True)


@pytest.mark.thorough
def test_facts_alone_are_synced(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    n = preprocess.run(sample, "scale_reward", "n", args={"scale": 2})
    pinning.sync(locked(tmp_path, n.id), home=elsewhere)
    n = n.label(facts={"fps": 20})
    pinning.sync(locked(tmp_path, n.id), home=elsewhere)
    assert is_again(n, elsewhere).manifest.env["fps"] == 20


@pytest.mark.thorough
def test_other_content_is_replaced_by_force_alone(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    view = sample.select(episodes=[1, 2]).save("v")
    file = locked(tmp_path, view.id)
    pinning.sync(file, home=elsewhere)
    ds = rlds_cli.open_dataset(SAMPLE, home=elsewhere)
    other = ds.select(episodes=[3]).save("v", force=True, home=elsewhere)
    with pytest.raises(WrongFingerprint):
        pinning.sync(file, home=elsewhere)
    assert rlds_cli.open_dataset(view.id, home=elsewhere).fingerprint == other.fingerprint
    pinning.sync(file, home=elsewhere, force=True)
    is_again(view, elsewhere)


@pytest.mark.thorough
def test_a_changed_local_dataset_is_synced_where_its_base_is(tmp_path: Path, elsewhere: Path) -> None:
    episode = {"observation": np.zeros((5, 2)), "action": np.zeros((4, 1)), "next": {"truncated": True}}
    ds = rlds_cli.create("local/arm", [episode] * 3)
    rlds_cli.create("local/arm", [episode] * 3, home=elsewhere)
    ds = ds.select(episodes=[1]).label(task="fold")
    view = ds.select(where="task == 'fold'").save("fold")
    with pytest.raises(RldsError, match="created from values in Python"):
        pinning.lock([view.id])
    file = tmp_path / "rlds.lock"
    file.write_text(pinning.lock([view.id], allow_unreproducible=True))
    pinning.sync(file, home=elsewhere)
    is_again(ds, elsewhere)
    is_again(view, elsewhere)
    with pytest.raises(DatasetNotFound, match="cannot be made again"):
        pinning.sync(file, home=tmp_path / "third")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("episodes",), [[0, 26], [26, 27]], r"episodes\[1\] is \[26, 27\], and sample/.* has 26 episodes"),
        (("episodes",), [[0, 1 << 50]], r"episodes\[0\] is .*, and sample/.* has 26 episodes"),
        (("episodes",), [[3, 190, 201]], r"episodes\[0\] is \[3, 190, 201\], and episode 3 of .* has 200 steps"),
        (
            ("columns", "a"),
            {"dtype": "bool", "values": [True], "counts": [9]},
            r"whose sum is 2, the number of episodes",
        ),
        (("columns", "A"), {"dtype": "bool", "values": [True], "counts": [2]}, r"differ in case only"),
        (("episodes",), None, r"would be rlds1"),
    ],
)
def test_edits_that_do_not_fit_publish_nothing(
    tmp_path: Path, elsewhere: Path, sample: Dataset, place: tuple[str, ...], value: Any, message: str
) -> None:
    view = sample.select(episodes=[1, 2]).label(name="v", a=True).select(episodes=[1, 2]).save("w")
    content = json.loads(locked(tmp_path, view.id).read_text())
    edits = content["datasets"][-1]["edits"]
    for name in place[:-1]:
        edits = edits[name]
    edits[place[-1]] = value
    file = tmp_path / "other.lock"
    file.write_text(json.dumps(content))
    with pytest.raises(RldsError, match=message):
        pinning.sync(file, home=elsewhere)
    assert not list(elsewhere.rglob("*@w*/zarr.json"))


def test_a_dataset_of_the_registry_is_not_changed_in_its_place(
    tmp_path: Path, elsewhere: Path, sample: Dataset
) -> None:
    content = json.loads(locked(tmp_path, SAMPLE).read_text())
    edits = {"from": None, "base": sample.fingerprint, "episodes": [[0, 3]], "columns": {}, "facts": {}}
    content["datasets"][0] |= {"edits": edits, "version": 2}
    file = tmp_path / "other.lock"
    file.write_text(json.dumps(content))
    with pytest.raises(RldsError, match="in its place"):
        pinning.sync(file, home=elsewhere)
    assert not elsewhere.exists()


def test_a_dataset_of_an_address_that_was_labelled(tmp_path: Path, elsewhere: Path) -> None:
    episode = {"observation": np.zeros((5, 2)), "action": np.zeros((4, 1)), "next": {"truncated": True}}
    ds = rlds_cli.create("local/arm", [episode] * 3)
    rlds_cli.push(ds.id, tmp_path / "shared", pages=False)
    ds = ds.select(episodes=[1]).label(quality="bad", facts={"fps": 10})
    view = ds.select(where="quality == 'bad'").save("bad")
    file = locked(tmp_path, view.id)
    pinning.sync(file, home=elsewhere)
    assert is_again(ds, elsewhere).manifest.env["fps"] == 10
    is_again(view, elsewhere)


def test_changes_since_a_push_are_locked_over_the_pushed_version(tmp_path: Path, elsewhere: Path) -> None:
    episodes = [{"observation": np.full((5, 2), k), "action": np.zeros((4, 1)), "next": {"truncated": True}}
                for k in range(4)]  # fmt: skip
    first = rlds_cli.create("local/arm", episodes).select(episodes=[0]).drop()
    pushed = first.select(episodes=[1]).label(quality="good")
    rlds_cli.push("local/arm", str(tmp_path / "there"), pages=False)
    ds = pushed.select(episodes=[2]).label(quality="bad", facts={"fps": 20})
    ds = ds.select(episodes=[0]).drop()
    file = locked(tmp_path, ds.id)
    found = entry(file, ds.id)
    assert (found["version"], found["address"]) == (5, str(tmp_path / "there"))
    assert (found["edits"]["base"], found["edits"]["episodes"]) == (pushed.fingerprint, [[1, 3]])
    assert found["edits"]["columns"]["quality"]["values"] == ["good", "bad"]
    assert [d.how for d in pinning.sync(file, home=elsewhere)] == ["made"]
    made = is_again(ds, elsewhere)
    assert [v.number for v in made.versions] == [3, 5] and made.manifest.env["fps"] == 20
    assert pinning.lock([ds.id], home=elsewhere) == file.read_text()


@pytest.mark.thorough
def test_a_restored_version_is_locked_as_data(tmp_path: Path, elsewhere: Path, sample: Dataset) -> None:
    first = sample.select(episodes=[1, 2, 3]).save("v")
    first.label(quality="bad", facts={"fps": 20}).select(episodes=[0]).drop()
    ds = rlds_cli.open_dataset(f"{first.id}#v1").restore()
    file = locked(tmp_path, ds.id)
    assert (entry(file, ds.id)["edits"]["columns"], entry(file, ds.id)["version"]) == ({"quality": None}, 4)
    pinning.sync(file, home=elsewhere)
    assert is_again(ds, elsewhere).fingerprint == first.fingerprint
