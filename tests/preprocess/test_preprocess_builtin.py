"""The built-in functions of numbers, against arrays worked out from those that went in."""

import inspect

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import InvalidArgument, NoReward, PreprocessError, UnknownField
from rlds_cli.loader import Loader, Normalize, ReturnToGo, Reward, Sequential
from rlds_cli.preprocess import builtin

LENGTHS = [5, 8, 3, 9, 1, 6]


def trajectories(lengths=LENGTHS, *, rewards=True, goals=False):
    rng = np.random.default_rng(7)
    for i, t in enumerate(lengths):
        flags = {"terminated": np.arange(t) == (t - 1 if i % 2 == 0 else -1), "truncated": i % 2 == 1}
        flags["terminated"][t // 2 : t // 2 + 1] |= i == 3  # reached on the way
        observation = rng.standard_normal((t + 1, 3)).astype(np.float32)
        place = rng.integers(0, 3, (t + 1, 2)).astype(np.float64)
        goal = {"achieved_goal": place, "desired_goal": np.broadcast_to(place[-1], place.shape), "state": observation}
        yield {
            "observation": goal if goals else observation,
            "action": rng.standard_normal((t, 2)),
            "next": {**({"reward": rng.standard_normal(t).astype(np.float32)} if rewards else {}), **flags},
            "count": np.arange(t, dtype=np.int64) * 100,
        }


@pytest.fixture
def truth():
    return list(trajectories())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/numbers", truth)


def steps(ds, name):
    return [ds.episode(k)[name] for k in range(ds.num_episodes)]


# -- what there is


def test_all_are_listed_with_arguments_and_a_line():
    listed = preprocess.catalogue()
    assert [b.name for b in listed] == list(builtin.MODULES)
    by_name = {b.name: b for b in listed}
    assert [(a.name, a.required, a.default) for a in by_name["normalise"].arguments] == [
        ("fields", False, "observation"), ("mode", False, "std"), ("eps", False, 1e-3),
    ]  # fmt: skip
    assert [a.required for a in by_name["cast"].arguments] == [True, True]
    assert "Normalize" in by_name["normalise"].loader and by_name["crop"].loader == ""
    for b in listed:
        assert b.summary.endswith(".") and len(b.summary) < 130


def test_all_are_importable_and_documented():
    assert set(builtin.MODULES) <= set(preprocess.__all__)
    for name in builtin.MODULES:
        function = getattr(preprocess, name)
        assert function.__name__ == name
        for parameter in inspect.signature(function).parameters:
            assert f"{parameter} :" in function.__doc__ or f"{parameter}, " in function.__doc__, (name, parameter)
    with pytest.raises(AttributeError, match="no attribute 'normalize'"):
        _ = preprocess.normalize


@pytest.mark.thorough
def test_names_references_and_functions_are_one(ds):
    made = preprocess.run(ds, "scale-reward", "scaled", args={"scale": 2})
    for same in ("scale_reward", preprocess.scale_reward, "rlds_cli.preprocess:scale_reward"):
        events = []
        again = preprocess.run(ds, same, "scaled", args={"scale": 2}, progress=events.append)
        assert again.fingerprint == made.fingerprint
        assert ["already exists" in e.note for e in events] == [True]
    assert made.manifest.provenance[-1]["reference"] == "scale_reward"
    assert preprocess.run(ds, "scale-reward").id == "local/numbers@scale_reward"


def test_what_is_not_there_or_cannot_be_asked_for(ds):
    for fn, how, what in (
        ("normalize", {}, "nor a built-in function. Did you mean normalise"),
        ("nothing-like-it", {}, r"nor a built-in function\."),
        ("normalise", {"unit": "batch"}, "works on whole episodes"),
        ("normalise", {"arrays": "torch"}, "works on whole episodes"),
        ("normalise", {"args": {"std": 1}}, "cannot be called with one argument, std="),
        ("cast", {}, "missing a required argument: 'fields'"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds, fn, **how)


# -- the dataset, given to a function that asks for it


@pytest.mark.thorough
def test_a_function_that_asks_for_its_source_is_given_it(ds):
    def centred(episode, source, by=1.0):
        mean = np.asarray(source.stats["action"].mean)
        return {**episode, "action": (episode["action"] - mean) * by}

    made = preprocess.run(ds, centred, args={"by": 2.0})
    actions = np.concatenate(steps(ds, "action"))
    got = np.concatenate(steps(made, "action"))
    assert np.allclose(got, (actions - actions.mean(0)) * 2)
    with pytest.raises(PreprocessError, match="cannot be called"):
        preprocess.run(ds, lambda e, source, other: e, "asks")


@pytest.mark.thorough
def test_a_parameter_of_that_name_with_a_default_is_the_users_own(ds):
    def named(episode, source="mine"):
        assert source == "mine"
        return episode

    assert preprocess.run(ds, named).fingerprint == ds.fingerprint
    assert preprocess.run(ds, lambda e, source: e, "given", args={"source": 3}).fingerprint == ds.fingerprint


# -- scales


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["std", "range", "quantile"])
def test_normalise_gives_what_the_loader_gives(ds, truth, mode):
    made = preprocess.run(ds, "normalise", args={"mode": mode, "fields": "observation,action"})
    loader = Loader(ds, 64, sampler=Sequential(), transform=Normalize(ds, ["observation", "action"], mode=mode),
                    backend="numpy", dtype=None)  # fmt: skip
    plain = Loader(made, 64, sampler=Sequential(), backend="numpy", dtype=None)
    for a, b in zip(loader, plain, strict=True):
        for name in ("observation", "action", "next/observation", "next/reward"):
            assert np.array_equal(a[name], b[name]), name
    if mode == "std":
        x = np.concatenate([e["observation"][:-1] for e in truth]).astype(np.float64)
        want = (truth[1]["observation"] - x.mean(0)) / (x.std(0) + 1e-3)
        assert np.allclose(made.column("observation")[6:15], want, rtol=1e-5, atol=1e-6)
    assert made.schema["action"].dtype == "float64" and set(made.manifest.shared) == {
        "count", "next/reward", "next/terminated", "next/truncated",
    }  # fmt: skip


def test_normalise_of_a_selection_uses_its_own_statistics(ds, truth):
    made = preprocess.run(ds.select(episodes=[0, 2]), "normalise", args={"eps": 0.0})
    x = np.concatenate([truth[k]["observation"][:-1] for k in (0, 2)]).astype(np.float64)
    assert np.allclose(made.column("observation")[:6], (truth[0]["observation"] - x.mean(0)) / x.std(0), rtol=1e-5)


def test_normalise_refuses_what_has_no_statistics(ds):
    for args, kind, what in (
        ({"fields": "rewards"}, UnknownField, 'Did you mean "next/reward"'),
        ({"mode": "mean"}, InvalidArgument, "mode is"),
        ({"eps": -1}, InvalidArgument, "must not be negative"),
        ({"fields": ""}, InvalidArgument, "names no fields"),
    ):
        with pytest.raises(kind, match=what):
            preprocess.run(ds, "normalise", args=args)


# -- dtypes


@pytest.mark.thorough
def test_cast_changes_the_dtype_and_no_value(ds, truth):
    made = preprocess.run(ds, "cast", args={"fields": ["action", "count"], "dtype": "float32"})
    assert (made.schema["action"].dtype, made.schema["count"].dtype) == ("float32", "float32")
    assert np.array_equal(made.episode(3)["action"], truth[3]["action"].astype(np.float32))
    assert "observation" in made.manifest.shared
    whole = preprocess.run(ds, "cast", "int16", args={"fields": "count", "dtype": "int16"})
    assert np.array_equal(whole.episode(3)["count"], np.arange(9, dtype=np.int16) * 100)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fields", "dtype", "what"),
    [
        ("count", "uint8", "count contains 300, which uint8 cannot represent"),
        ("action", "int32", "action contains .*, which int32 cannot represent"),
        ("count", "text", "is not a numeric dtype"),
        ("count", "complex64", "is not a numeric dtype"),
        ("next/terminated", "int8", "is a flag"),
    ],
)
def test_cast_loses_nothing(ds, fields, dtype, what):
    with pytest.raises((InvalidArgument, PreprocessError), match=what):
        preprocess.run(ds, "cast", args={"fields": fields, "dtype": dtype})


def test_cast_overflows_to_no_infinity():
    big = rlds_cli.create("local/big", [{"observation": np.array([[1.0], [7e4]]), "action": [[0.0]], "next": {}}])
    with pytest.raises(PreprocessError, match=r"contains 70000\.0, which float16 cannot represent"):
        preprocess.run(big, "cast", args={"fields": "observation", "dtype": "float16"})


# -- rewards and returns


@pytest.mark.thorough
@pytest.mark.parametrize(("gamma", "through"), [(1.0, False), (0.9, False), (0.9, True), (0.0, False)])
def test_return_to_go_is_the_sum_from_each_step_on(ds, truth, gamma, through):
    made = preprocess.run(
        ds, "return_to_go", args={"gamma": gamma, "scale": 0.5, "through_terminals": through, "dtype": "float64"}
    )
    for k, e in enumerate(truth):
        reward, terminated = e["next"]["reward"].astype(float), e["next"]["terminated"]
        want = []
        for t in range(len(reward)):
            total = 0.0
            for u in range(t, len(reward)):
                total += gamma ** (u - t) * reward[u]
                if terminated[u] and not through:
                    break
            want.append(total / 2)
        assert np.allclose(made.episode(k)["return_to_go"][:, 0], want, rtol=1e-12, atol=1e-12)
    assert made.schema["return_to_go"].placement == "root"
    assert set(made.manifest.shared) == set(ds.schema)


def test_return_to_go_is_the_loaders_column(ds):
    made = preprocess.run(ds, "return-to-go", args={"gamma": 0.95, "scale": 1e-3, "into": "rtg"})
    here = Loader(made, 64, sampler=Sequential(), fields=[..., "rtg"], backend="numpy")
    there = Loader(ds, 64, sampler=Sequential(), fields=[..., ReturnToGo(0.95, 1e-3)], backend="numpy")
    for a, b in zip(here, there, strict=True):
        assert np.array_equal(a["rtg"], b["return_to_go"])


@pytest.mark.thorough
def test_rewards_are_scaled_and_shifted_as_the_loader_does(ds, truth):
    made = preprocess.run(ds, "scale_reward", args={"scale": 0.1, "shift": -1})
    loader = Loader(ds, 64, sampler=Sequential(), transform=Reward(0.1, -1), backend="numpy", dtype=None)
    plain = Loader(made, 64, sampler=Sequential(), backend="numpy", dtype=None)
    for a, b in zip(loader, plain, strict=True):
        assert np.array_equal(a["next/reward"], b["next/reward"]) and b["next/reward"].dtype == np.float32
    want = [float((e["next"]["reward"] * np.float32(0.1) - 1).sum()) for e in truth]
    assert np.allclose(made.episodes["total_reward"], want, rtol=1e-5)
    assert set(made.manifest.shared) == set(ds.schema) - {"next/reward"}


def test_sparse_rewards_come_at_the_end_or_above_a_threshold(ds, truth):
    end = preprocess.run(ds, "sparsify_reward", "end")
    above = preprocess.run(ds, "sparsify_reward", "above", args={"how": "threshold", "threshold": 0.5})
    for k, e in enumerate(truth):
        reward = e["next"]["reward"]
        assert np.array_equal(above.episode(k)["next/reward"][:, 0], (reward > 0.5).astype(np.float32))
        want = np.zeros(len(reward), np.float32)
        want[-1] = reward.sum(dtype=np.float64)
        assert np.array_equal(end.episode(k)["next/reward"][:, 0], want)
    for args, what in (
        ({"how": "never"}, 'neither "end" nor "threshold"'),
        ({"threshold": float("nan")}, "not a finite number"),
    ):
        with pytest.raises(InvalidArgument, match=what):
            preprocess.run(ds, "sparsify_reward", args=args)


@pytest.mark.thorough
def test_whole_rewards_become_floats():
    ds = rlds_cli.create("local/whole", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1)),
                                          "next": {"reward": np.array([1, 2]), "terminated": True}}])  # fmt: skip
    for fn, want in (("scale_reward", [1, 2]), ("sparsify_reward", [0, 3])):
        made = preprocess.run(ds, fn)
        assert made.schema["next/reward"].dtype == "float32"
        assert made.episode(0)["next/reward"].ravel().tolist() == want


def test_functions_of_rewards_need_some():
    ds = rlds_cli.create("local/none", trajectories(rewards=False))
    for fn in ("scale_reward", "sparsify_reward", "return_to_go", "top_episodes"):
        with pytest.raises(NoReward, match="has no reward"):
            preprocess.run(ds, fn)
    for bad, what in (
        ({"gamma": 2}, "discount"),
        ({"into": "action"}, "taken"),
        ({"dtype": "int8"}, "is not a floating dtype"),
    ):
        with pytest.raises(InvalidArgument, match=what):
            preprocess.run(rlds_cli.create("local/some", trajectories(), force=True), "return_to_go", args=bad)


# -- goals


def test_rewards_from_the_goals_of_the_dataset():
    truth = list(trajectories(rewards=False, goals=True))
    ds = rlds_cli.create("local/goals", truth)
    sparse = preprocess.run(ds, "rlds_cli.preprocess:reward_from_goal", "sparse", args={"terminate": True})
    dense = preprocess.run(ds, "reward-from-goal", "dense", args={"dense": True, "goal": [1.0], "elements": [1]})
    reached = 0
    for k, e in enumerate(truth):
        place, flags = e["observation"]["achieved_goal"], e["next"]["terminated"]
        distance = [np.hypot(*(place[t + 1] - place[-1])) for t in range(len(place) - 1)]
        assert sparse.episode(k)["next/reward"].ravel().tolist() == [0.0 if d <= 0.05 else -1.0 for d in distance]
        close = np.array(distance) <= 0.05
        reached += int(close.sum())
        assert sparse.episode(k)["next/terminated"].ravel().tolist() == (flags | close).tolist()
        assert dense.episode(k)["next/reward"].ravel().tolist() == (-np.abs(place[1:, 1] - 1)).tolist()
    assert reached > ds.num_episodes  # some on the way
    assert sparse.schema["next/reward"].dtype == "float32" and sparse.episodes["end"][0] == "terminated"
    assert "next/terminated" in dense.manifest.shared and "observation/state" in dense.manifest.shared


def test_rewards_from_observations_where_there_are_no_goals(ds, truth):
    final = preprocess.run(ds, "reward_from_goal", "final", args={"threshold": 0, "dense": True})
    for k, e in enumerate(truth):
        x = e["observation"].astype(np.float64)
        want = -np.sqrt(((x[1:] - x[-1]) ** 2).sum(-1))
        assert np.allclose(final.episode(k)["next/reward"].ravel(), want, rtol=1e-6, atol=1e-7)


def test_a_last_step_without_a_final_observation_achieves_its_own():
    e = {"observation": np.array([[0.0], [3.0]]), "action": np.zeros((2, 1)), "next": {"truncated": True}}
    ds = rlds_cli.create("local/open", [e])
    made = preprocess.run(ds, "reward_from_goal", args={"goal": [3.5], "dense": True})
    assert made.episode(0)["next/reward"].ravel().tolist() == [-0.5, -0.5]
    assert made.episodes["num_observed"].tolist() == [2]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"goal": [1.0]}, "the goal has 1 elements, observation 3"),
        ({"goal": "next/reward"}, r"next/reward is float32 \[\], not a vector"),
        ({"achieved": "position"}, 'no field "position"'),
        ({"elements": [3]}, "observation has elements 0 to 2"),
        ({"elements": []}, "observation has elements 0 to 2"),
        ({"threshold": -1}, "not a distance"),
    ],
)
def test_goals_that_do_not_fit(ds, args, what):
    with pytest.raises((InvalidArgument, UnknownField), match=what):
        preprocess.run(ds, "reward_from_goal", args=args)
