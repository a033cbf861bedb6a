"""A dataset as users see it: the four episodes of ``docs/reference/ted.md``, worked out by hand, and random ones."""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli import Dataset, create, open_dataset
from rlds_cli.errors import (
    DamagedDataset,
    DatasetNotFound,
    InvalidExpression,
    NewerFormat,
    NoReward,
    RldsError,
    UnknownField,
)


def episode(observation: list[float], *, terminated: bool = False, truncated: bool = False) -> dict[str, Any]:
    steps = 3 if len(observation) == 4 else 2
    last = np.arange(steps) == steps - 1
    return {
        "observation": np.array(observation, np.float32),
        "action": np.arange(1, steps + 1),
        "next": {
            "reward": np.ones(steps, np.float32),
            "terminated": last & terminated,
            "truncated": last & truncated,
        },
    }


@pytest.fixture
def four() -> Dataset:
    """Terminated with its final observation; truncated, cut and terminated without."""
    return create(
        "local/four",
        [
            episode([10, 11, 12, 13], terminated=True),
            episode([20, 21], truncated=True),
            episode([30, 31]),
            episode([40, 41], terminated=True),
        ],
    )


@pytest.fixture
def walks() -> tuple[Dataset, list[dict[str, np.ndarray]]]:
    """Thirty random episodes with their final observations."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(30):
        t = int(rng.integers(1, 20))
        made.append({"o": rng.normal(size=(t + 1, 2, 3)), "a": rng.integers(0, 5, t), "r": rng.normal(size=t)})
        made[-1]["end"] = np.array(k % 2 == 0)
    dicts = [
        {
            "observation": m["o"],
            "action": m["a"],
            "next": {"reward": m["r"], "terminated": bool(m["end"]), "truncated": not m["end"]},
        }
        for m in made
    ]
    return create("local/walks", dicts), made


@pytest.mark.thorough
def test_rows_as_documented(four: Dataset) -> None:
    assert four.column("observation").tolist() == [10, 11, 12, 13, 20, 21, 21, 30, 31, 31, 40, 41, 41]
    assert four.column("action").tolist() == [1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert four.column("next/reward").tolist() == [1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert np.flatnonzero(four.column("next/terminated")).tolist() == [2, 11]
    assert np.flatnonzero(four.column(("next", "truncated"))).tolist() == [5, 8]


@pytest.mark.thorough
def test_the_episode_table_as_documented(four: Dataset) -> None:
    e = four.episodes
    assert e["start"].tolist() == [0, 4, 7, 10]
    assert e["length"].tolist() == [3, 2, 2, 2]
    assert e["num_observed"].tolist() == [4, 2, 2, 2]
    assert e["num_transitions"].tolist() == [3, 1, 1, 2]
    assert e["end"].tolist() == ["terminated", "truncated", "cut", "terminated"]
    assert e["total_reward"].tolist() == [3, 2, 2, 2]
    assert e["num_done"].tolist() == [1, 1, 1, 1]
    with pytest.raises(UnknownField, match="no episode column"):
        e["nope"]


@pytest.mark.thorough
def test_counts(four: Dataset) -> None:
    assert (four.num_rows, four.num_episodes, four.num_steps, four.num_transitions, len(four)) == (13, 4, 9, 7, 7)
    assert repr(four) == "<Dataset local/four: 9 steps, 4 episodes, memmap>"


@pytest.mark.thorough
def test_transitions_leave_out_steps_without_a_next_observation(four: Dataset) -> None:
    batch = four[:]
    assert batch["observation"][:, 0].tolist() == [10, 11, 12, 20, 30, 40, 41]
    assert batch["next", "observation"][:, 0].tolist() == [11, 12, 13, 21, 31, 41, 41]
    assert batch["next", "terminated"].shape == (7, 1)
    assert np.flatnonzero(batch["next", "terminated"]).tolist() == [2, 6]
    assert not batch["next", "truncated"].any()
    assert np.flatnonzero(batch["next", "done"]).tolist() == [2, 3, 4, 6]  # the last there is of each episode
    assert batch["episode"].tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert batch.left_out == 2 and four[4:].left_out == 1 and four[:3].left_out == 0 and four[[0, 3]].left_out == 0
    assert repr(batch).endswith("; 2 steps left out)")


def test_indexing_as_a_list_does(four: Dataset) -> None:
    whole = [10, 11, 12, 20, 30, 40, 41]
    assert four[0]["observation"] == 10
    assert four[0]["next", "reward"].shape == (1,)
    assert four[-1]["observation"] == 41
    assert four[np.int64(3)]["observation"] == 20
    assert four[::-2]["observation"][:, 0].tolist() == whole[::-2]
    assert four[2:100]["observation"][:, 0].tolist() == whole[2:]
    assert four[np.array([6, 0, -1, 0])]["observation"][:, 0].tolist() == [41, 10, 41, 10]
    assert four[[1, 2]]["observation"][:, 0].tolist() == [11, 12]
    assert four[np.array([True] + [False] * 6)]["observation"].tolist() == [[10]]
    assert len(four[[]]["observation"]) == 0
    for bad in (7, -8, [7], [0, -8]):
        with pytest.raises(IndexError):
            four[bad]


def test_a_mask_of_another_length_is_an_error(four: Dataset) -> None:
    for length in (6, 8):
        with pytest.raises(IndexError):
            four[np.ones(length, bool)]


def test_indices_that_are_no_integers_are_an_error(four: Dataset) -> None:
    for bad in (1.5, [0.5, 1.5], "1", np.array([[0, 1]])):
        with pytest.raises((IndexError, TypeError, ValueError, UnknownField)):
            four[bad]  # type: ignore[index]


@pytest.mark.thorough
def test_one_episode(four: Dataset) -> None:
    batch = four.episode(0)
    assert batch["observation"][:, 0].tolist() == [10, 11, 12]
    assert batch["next", "observation"][:, 0].tolist() == [11, 12, 13]
    assert ("next", "observed") not in batch
    cut = four.episode(-2)
    assert cut["next", "observed"].tolist() == [[True], [False]]
    assert cut["next", "observation"][:, 0].tolist() == [31, 31]
    with pytest.raises(IndexError):
        four.episode(4)


@pytest.mark.thorough
def test_every_value_comes_back(walks: tuple[Dataset, list[dict[str, np.ndarray]]]) -> None:
    ds, made = walks
    for k, m in enumerate(made):
        batch = ds.episode(k)
        assert np.array_equal(batch["observation"], m["o"][:-1])
        assert np.array_equal(batch["next", "observation"], m["o"][1:])
        assert np.array_equal(batch["action"], m["a"])
        assert np.array_equal(batch["next", "reward"][:, 0], m["r"])
    assert np.array_equal(ds[:]["next", "observation"], np.concatenate([m["o"][1:] for m in made]))
    assert np.allclose(ds.episodes["total_reward"], [m["r"].sum() for m in made])


@pytest.mark.thorough
def test_statistics_are_over_steps_only(walks: tuple[Dataset, list[dict[str, np.ndarray]]]) -> None:
    ds, made = walks
    for view, chosen in ((ds, made), (ds.select(episodes=[3, 1, 8]), [made[3], made[1], made[8]])):
        steps = np.concatenate([m["o"][:-1] for m in chosen])
        stats = view.stats["observation"]
        assert stats.count == len(steps)
        assert np.allclose(stats.mean, steps.mean(0))
        assert np.allclose(stats.std, steps.std(0))
        assert np.array_equal(stats.max, steps.max(0))


@pytest.mark.thorough
def test_selections_are_datasets(four: Dataset) -> None:
    view = four.select(episodes=[3, 0])
    assert (view.num_episodes, view.num_steps, len(view)) == (2, 5, 5)
    assert view[:]["observation"][:, 0].tolist() == [40, 41, 10, 11, 12]
    assert view.episode(0)["observation"][:, 0].tolist() == [40, 41]
    assert view.episodes["start"].tolist() == [10, 0]
    assert view.column("observation", gaps=True).shape == (13,)
    assert view.fingerprint != four.fingerprint
    assert view.fingerprint != four.select(episodes=[0, 3]).fingerprint
    assert "2 of 4 episodes" in repr(view)
    assert view.select(where="length == 3")[:]["observation"][:, 0].tolist() == [10, 11, 12]
    assert four.select(episodes=slice(None, None, 3)).episodes["start"].tolist() == [0, 10]
    assert four.select(episodes=np.array([False, True, True, False])).episodes["start"].tolist() == [4, 7]
    with pytest.warns(UserWarning, match="selects none of the 4 episodes"):
        assert len(four.select(where="length > 100")) == 0
    with pytest.warns(UserWarning, match="selects all of the 2 episodes") as told:
        assert view.select(where="length < 100").num_episodes == 2
    assert [w.filename for w in told] == [__file__]
    assert four.select(where="end == 'cut'").episodes["start"].tolist() == [7]
    assert four.select(where="episode in (0, 3)").episodes["start"].tolist() == [0, 10]
    assert four.select(episodes=[3, 1], where="episode == 3").episodes["start"].tolist() == [10]  # of `four`
    assert view.select(where="episode == 1").episodes["start"].tolist() == [0]
    assert four.held_out == 0
    with pytest.raises(InvalidExpression):
        four.select(where="import os")
    with pytest.raises(IndexError):
        four.select(episodes=[4])


@pytest.mark.thorough
def test_no_such_split(four: Dataset) -> None:
    with pytest.raises(RldsError, match='no split "train"'):
        four.select(split="train")


@pytest.mark.thorough
def test_splitting_at_random(walks: tuple[Dataset, list[dict[str, np.ndarray]]]) -> None:
    ds, _ = walks
    a, b = ds.split(0.9, 0.1, seed=3)
    assert (a.num_episodes, b.num_episodes) == (27, 3)
    starts = np.concatenate([a.episodes["start"], b.episodes["start"]])
    assert sorted(starts) == ds.episodes["start"].tolist()
    again = ds.split(0.9, 0.1, seed=3)[1]
    assert np.array_equal(again.episodes["start"], b.episodes["start"])
    assert not np.array_equal(ds.split(0.9, 0.1, seed=4)[1].episodes["start"], b.episodes["start"])
    assert [v.num_episodes for v in ds.split(0.5, 0.2)] == [15, 6]
    assert [v.num_episodes for v in ds.split(*[1 / 3] * 3)] == [10, 10, 10]
    for shares in ((), (1.1,), (-0.1, 0.5), (0.6, 0.6)):
        with pytest.raises(ValueError, match="shares"):
            ds.split(*shares)


@pytest.mark.thorough
def test_one_share_gives_two_parts(walks: tuple[Dataset, list[dict[str, np.ndarray]]]) -> None:
    ds, _ = walks
    train, held_out = ds.split(0.9, seed=3)
    assert (train.num_episodes, held_out.num_episodes) == (27, 3)
    assert sorted([*train.episodes.index, *held_out.episodes.index]) == list(range(30))
    assert [part.num_episodes for part in ds.split(1.0)] == [30, 0]


@pytest.mark.thorough
def test_splitting_by_a_column(walks: tuple[Dataset, list[dict[str, np.ndarray]]]) -> None:
    ds, episodes = walks
    lengths = [len(e["a"]) for e in episodes]
    parts = ds.split(by="length")
    assert list(parts) == sorted(set(lengths))
    for length, part in parts.items():
        assert part.episodes.index.tolist() == [k for k, n in enumerate(lengths) if n == length]
    with pytest.raises(UnknownField, match='no episode column "lenght"'):
        ds.split(by="lenght")


def test_shares_of_whole_groups() -> None:
    scenes = ["lab", "kitchen", None, "lab", "hall", "kitchen", None, "lab", "hall", "lab"]
    made = [{"observation": np.zeros(3), **({} if s is None else {"episode": {"scene": s}})} for s in scenes]
    ds = rlds_cli.create("local/scenes", made)
    assert list(ds.split(by="scene")) == ["hall", "kitchen", "lab", None]
    assert ds.split(by="scene")[None].episodes.index.tolist() == [2, 6]
    seen = set()
    for seed in range(20):
        a, b, c = ds.split(0.4, 0.4, 0.2, seed=seed, by="scene")
        values = [set(part.episodes["scene"]) for part in (a, b, c)]
        assert all(values) and sum(map(len, values)) == 4 and set.union(*values) == {"lab", "kitchen", "hall", None}
        assert sum(part.num_episodes for part in (a, b, c)) == 10
        seen.add(a.num_episodes)
    assert seen == {2, 4}  # a share of 4: one scene of 4, two of 2, or one of 2 before that of 4
    train, held_out = ds.select(where="scene == 'lab' or scene == 'hall'").split(0.9, by="scene")
    assert {train.num_episodes, held_out.num_episodes} == {4, 2}  # each part has a scene


@pytest.mark.thorough
def test_columns_may_not_be_written(four: Dataset) -> None:
    with pytest.raises(ValueError, match="read-only"):
        four.column("observation")[0] = 1
    batch = four[:]
    batch["observation"][:] = 0
    assert four.column("observation")[0] == 10


@pytest.mark.thorough
def test_fields_that_are_not_there(four: Dataset) -> None:
    with pytest.raises(UnknownField, match=r'Did you mean "next/reward"\?'):
        four.column("rewards")
    with pytest.raises(UnknownField, match=r'Did you mean "next/reward"\?'):
        four.column("reward")
    with pytest.raises(KeyError):
        four.column("zzz")


@pytest.mark.thorough
def test_without_rewards() -> None:
    ds = create("local/goals", [{"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}])
    assert "total_reward" not in ds.episodes
    assert ("next", "reward") not in ds[:]
    with pytest.raises(NoReward, match="has no reward"):
        ds.column("next/reward")


def test_text_and_nested_fields() -> None:
    episodes = [
        {
            "observation": {"pos": np.arange(4.0), "cam": {"1": np.ones((4, 2))}},
            "action": np.zeros(3),
            "info": {"say": ["a", None, "b"]},
        },
        {
            "observation": {"pos": np.arange(2.0), "cam": {"1": np.zeros((2, 2))}},
            "action": np.zeros(1),
            "info": {"say": ["a"]},
        },
    ]
    ds = create("local/nested", episodes)
    assert ds.gather("info/say", np.array([0, 1, 2, 3, 4])).tolist() == ["a", None, "b", None, "a"]
    assert ds[:]["observation", "pos"][:, 0].tolist() == [0, 1, 2, 0]
    assert ds[:]["next", "observation", "cam", "1"].shape == (4, 2)
    assert ds.episode(0)["info", "say"].tolist() == ["a", None, "b"]
    with pytest.raises(UnknownField, match="gather"):
        ds.column("info/say")


def test_len_iter_and_friends(four: Dataset) -> None:
    with pytest.raises(TypeError, match=r"Loader\(ds\)"):
        iter(four)
    with pytest.raises(TypeError, match="Loader"):
        list(four)


def test_to_numpy(four: Dataset) -> None:
    whole = four.to_numpy()
    assert whole["observation"][:, 0].tolist() == [10, 11, 12, 20, 30, 40, 41]
    assert whole["next/observation"][:, 0].tolist() == [11, 12, 13, 21, 31, 41, 41]
    assert whole["next/done"].shape == (7, 1)
    some = four.to_numpy(fields=["next/observation", "action", "next/done"])
    assert list(some) == ["next/observation", "action", "next/done"]
    assert some["action"].tolist() == [1, 2, 3, 1, 1, 1, 2]
    with pytest.raises(UnknownField):
        four.to_numpy(fields=["nope"])
    with pytest.raises(ValueError, match="layout"):
        four.to_numpy("rows")  # type: ignore[arg-type]


@pytest.mark.thorough
def test_scores_need_references(four: Dataset) -> None:
    with pytest.raises(RldsError, match="No reference scores"):
        four.normalized_score(1.0)


@pytest.mark.thorough
def test_scores() -> None:
    ds = sample_dataset("cartpole-minari")
    # The registry's reference scores: 22 is 0, 500 is 1.
    assert np.allclose(ds.normalized_score([22, 500, 261]), [0, 1, 0.5])
    assert ds.normalized_score(500) == 1


@pytest.mark.thorough
def test_spaces_that_nobody_described(four: Dataset) -> None:
    assert four.observation_space.shape == ()
    assert four.observation_space.dtype == np.float32
    assert four.action_space.dtype == np.int64


def test_no_space_of_what_is_not_there() -> None:
    ds = create("local/watch", [{"observation": np.zeros((3, 2)), "next": {"terminated": True}}])
    assert ds.observation_space.shape == (2,)
    with pytest.raises(UnknownField, match="has no action"):
        ds.action_space  # noqa: B018


@pytest.mark.thorough
def test_a_dataset_goes_to_other_processes(four: Dataset) -> None:
    view = four.select(episodes=[2, 1])
    again = pickle.loads(pickle.dumps(view))
    assert again.fingerprint == view.fingerprint
    assert np.array_equal(again[:]["observation"], view[:]["observation"])
    assert len(pickle.dumps(view)) < 2000


@pytest.mark.thorough
def test_opening_by_id_path_and_case(four: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_dataset("local/four").path == four.path
    assert open_dataset("local/FOUR").id == "local/four"
    assert open_dataset(four.path).fingerprint == four.fingerprint
    monkeypatch.chdir(four.path.parent)
    assert open_dataset("./four").fingerprint == four.fingerprint
    with pytest.raises(DatasetNotFound):
        open_dataset("local/five")


@pytest.mark.thorough
def test_opening_writes_nothing(four: Dataset) -> None:
    def everything() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in four.path.parents[2].rglob("*"))

    before = everything()
    ds = open_dataset("local/four")
    ds[:]
    assert ds.stats["observation"].count == 9
    assert everything() == before
    assert all(not p.stat().st_mode & 0o222 for p in four.path.rglob("*") if p.is_file())


@pytest.mark.thorough
def test_damage_is_found_when_opening(four: Dataset) -> None:
    file = four.path / "observation/c/0"
    file.chmod(0o644)
    os.truncate(file, 10)
    with pytest.raises(DamagedDataset, match=r"has 10 bytes"):
        open_dataset("local/four")
    file.unlink()
    with pytest.raises(DamagedDataset, match="is missing"):
        open_dataset("local/four")


@pytest.mark.thorough
def test_a_later_format_is_refused(four: Dataset) -> None:
    file = four.path / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"]["rlds"]["format"] = 99
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    file.write_text(json.dumps(document))
    with pytest.raises(NewerFormat, match="format 99"):
        open_dataset("local/four")


@pytest.mark.thorough
def test_both_encodings_read_alike(tmp_path: Path) -> None:
    dicts = [episode([1, 2, 3, 4], terminated=True), episode([5, 6])]
    a = create("local/a", dicts)
    b = create("local/b", dicts, storage="zarr")
    assert a.fingerprint == b.fingerprint
    assert (a.encoding, b.encoding) == ("memmap", "zarr")
    for name in a.schema:
        assert np.array_equal(a.column(name), b.column(name))
    assert not b.column("action").flags.writeable
    assert b[1]["observation"] == 2


@pytest.mark.thorough
def test_a_dataset_that_was_replaced_is_not_mixed_with_the_new_one(tmp_path: Path) -> None:
    def episodes(value: float) -> list[dict[str, object]]:
        return [{"observation": np.full((3, 2), value), "action": np.full((2, 1), value)}]

    old = rlds_cli.create("local/a", episodes(1.0))
    np.testing.assert_array_equal(old.column("action")[:2], [[1.0], [1.0]])
    new = rlds_cli.create("local/a", episodes(2.0), force=True)
    np.testing.assert_array_equal(old.column("action")[:2], [[1.0], [1.0]])  # mapped before: still the old one
    with pytest.raises(DatasetNotFound, match="replaced"):
        old.column("observation")
    np.testing.assert_array_equal(new.column("observation"), np.full((3, 2), 2.0))


@pytest.mark.thorough
def test_selecting_no_episodes() -> None:
    ds = rlds_cli.create("local/a", [{"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}])
    assert len(ds.select(episodes=[])) == 0


def test_statistics_of_a_field_that_is_not_there(four: Dataset) -> None:
    for stats in (four.stats, four.select(episodes=[0]).stats):
        with pytest.raises(UnknownField, match='Did you mean "observation"'):
            stats["observations"]
        assert stats.get("observations") is None
        assert "observations" not in stats
    assert pickle.loads(pickle.dumps(four.stats)) == four.stats


@pytest.mark.parametrize("selected", [False, True])
def test_a_name_gives_the_field_of_all_transitions(selected: bool) -> None:
    nested = {"arm": np.arange(6).reshape(3, 2), "camera": np.zeros((3, 8, 8, 3), np.uint8)}
    e = {"observation": nested, "action": np.array([5.0, 6.0]), "note": ["a", "b"], "info": {"x": np.zeros(2)}}
    ds = create("local/names", [{**e, "next": {"terminated": True}, "episode": {"take": k}} for k in range(3)])
    count = 2 if selected else 3
    if selected:
        ds = ds.select(episodes=[0, 2])
    assert ds["action"].tolist() == [[5.0], [6.0]] * count
    assert ds["observation/arm"].tolist() == [[0, 1], [2, 3]] * count
    assert (
        ds["next/observation", "arm"].tolist() == ds["next"]["observation"]["arm"].tolist() == [[2, 3], [4, 5]] * count
    )
    assert ds["next/terminated"].tolist() == ds["next/done"].tolist() == [[False], [True]] * count
    assert ds["observation", "camera"].shape == (2 * count, 8, 8, 3)
    assert sorted(ds["observation"]) == ["arm", "camera"]
    for name in ("note", "info/x", "take", "length"):
        with pytest.raises(IndexError) as told:
            ds[name]
        (call,) = re.findall(r"ds\.\S*\[\".*\"\]", str(told.value))
        assert len(eval(call, {"ds": ds, "k": 1})) > 0, name
    with pytest.raises(UnknownField, match='Did you mean "action"'):
        ds["acton"]


def test_what_other_libraries_call_it_is_answered_with_the_code() -> None:
    ds = create("local/names", [{"observation": np.zeros((3, 2)), "action": np.zeros(2)}])
    batch = ds[:]
    for code, hint in {
        "ds.rewards": 'ds["next/reward"]',
        "ds.get_episode(0)": "ds.episode(k)",
        "ds.train_test_split": "ds.split(0.9, 0.1, seed=0)",
        "ds.extend([])": "rlds_cli.append",
        "batch.obs": 'batch["observation"]',
        "rlds_cli.load_dataset": "rlds_cli.load(ID)",
        "rlds_cli.from_hdf5": "rlds_cli.import_files(",
        "rlds_cli.interop.minari.list_local_datasets()": "rlds_cli.find(local=True)",
        "rlds_cli.interop.d4rl.get_dataset": "qlearning_dataset(NAME)",
        "rlds_cli.interop.d3rlpy.get_d4rl": "get_dataset(",
    }.items():
        with pytest.raises(AttributeError) as told:
            eval(code, {"ds": ds, "batch": batch, "rlds_cli": rlds_cli})
        assert hint in str(told.value)
    with pytest.raises(UnknownField) as unknown:
        batch["next_obs"]
    assert 'batch["next", "observation"]' in unknown.value.hint
    assert batch._ipython_key_completions_() == batch.names()


def test_what_a_console_shows_is_one_screen() -> None:
    ds = create("local/names", [{"observation": np.array([[0.0, 2.0], [2.0, 4.0], [9.0, 9.0]]), "action": np.zeros(2)}])
    shown = [rlds_cli.find(), rlds_cli.inspect(ds), rlds_cli.check(ds), ds.stats, ds.schema, ds.episodes, ds]
    assert all(len(repr(x)) < 80 * 24 and " at 0x" not in repr(x) for x in shown)
    assert "observation: mean [1.00, 3.00], std [1.00, 1.00]" in repr(ds.stats)


def test_a_quantile_of_a_selection_is_that_of_the_dataset(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.arange(1, 21))
    episodes = [{"observation": np.zeros((n + 1, 2)), "action": np.zeros((n, 1))} for n in lengths]
    ds = rlds_cli.create("local/lengths", episodes, home=tmp_path)
    limit = np.quantile(lengths, 0.75)

    few = ds.select(episodes=slice(0, 10)).select(where="length > quantile(length, 0.75)")

    assert few.episodes["length"].tolist() == lengths[:10][lengths[:10] > limit].tolist()
