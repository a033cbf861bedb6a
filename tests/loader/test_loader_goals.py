"""Goals against episodes that the test made itself: where they may lie, how often, and how far away."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode, episode_lists
from reference import goals as reference
from test_loader_fields import pixels

import rlds_cli
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import (
    Clip,
    Episode,
    Goals,
    Loader,
    Normalize,
    Offsets,
    Reward,
    Sequential,
    Shuffled,
    Slice,
    ToFloat,
    Transition,
    Uniform,
)
from rlds_cli.loader.order import Order
from rlds_cli.loader.schedule import SampleRun
from rlds_cli.loader.storage import blocks
from rlds_cli.make.importing import import_files

EXACT = {"backend": "numpy", "dtype": None}
WHERE = ("step", "episode")
HORIZONS = st.sampled_from(["geometric", "uniform", "final", "episode", 1, 3])
ONE, TWO = ((0, 1, 0), (1, 0, 0), (0, 0, 1)), ((0.5, 0, 0.5), (0.5, 0.5, 0), (0, 0.4, 0.6))
ONE, TWO = ((0, 1, 0), (1, 0, 0), (0, 0, 1)), ((0.5, 0, 0.5), (0.5, 0.5, 0), (0, 0.4, 0.6))
SHARES = st.sampled_from([*ONE, *TWO, (0.2, 0.5, 0.3)])
DATASETS = settings(max_examples=8)


def goals(name="goal", shares=(0, 1, 0), **options):
    current, future, random = shares
    return Goals(name, current=current, future=future, random=random, **options)


def check_goal(known, goal, k, last, shares, horizon):
    """Whether a goal may be one of the step ``last`` of episode ``k``; return its episode and step."""
    there, at = int(goal[0]), int(goal[1])
    assert at < known[there].num_observed and np.array_equal(goal, known[there].observation[at])
    recorded = [x.num_observed for x in known]
    assert (there, at) in reference.chances(recorded, k, last, shares, horizon, 0.6)
    return there, at


def several(*parts):
    """Some settings for one dataset: writing it takes longer than reading it in many ways."""
    return st.lists(st.tuples(SHARES, HORIZONS, *parts), min_size=4, max_size=6)


@pytest.mark.thorough
@DATASETS
@given(episode_lists(), several(st.sampled_from([Transition(), Transition(3), "steps", "offsets"])))
def test_goals_of_single_steps(known, settings):
    ds = create(known)
    for shares, horizon, window in settings:
        anchors = "steps" if window == "steps" else "transitions"
        if anchors == "transitions" and not sum(e.num_transitions for e in known):
            continue
        window = {"steps": Transition(), "offsets": Offsets({"observation": (-1, 0)})}.get(window, window)
        extra = (*WHERE, goals(shares=shares, horizon=horizon, gamma=0.6))
        for b in Loader(
            ds, 5, window=replace(window, anchors=anchors), fields=[..., *extra], sampler=Sequential(), **EXACT
        ):
            assert b["goal_distance"].dtype == np.int64 and b["goal_distance"].shape == (*b["step"].shape, 1)
            for i, (k, t) in enumerate(zip(b["episode"].tolist(), b["step"].tolist(), strict=True)):
                there, at = check_goal(known, b["goal"][i], k, t, shares, horizon)
                assert b["goal_distance"][i, 0] == reference.distance(k, t, (there, at))


@pytest.mark.thorough
@DATASETS
@given(episode_lists(), several(st.sampled_from(["edge", "zero"]), st.booleans()))
def test_a_window_has_one_goal_drawn_for_its_last_real_step(known, settings):
    ds = create(known)
    for shares, horizon, fill, whole in settings:
        window = Episode(fill=fill) if whole else Slice(4, before=2, after=3, fill=fill)
        extra = (*WHERE, goals(shares=shares, horizon=horizon, gamma=0.6))
        for b in Loader(ds, 3, window=window, fields=[..., *extra], sampler=Sequential(), **EXACT):
            assert b["goal_distance"].shape == (*b["mask"].shape, 1) and b["goal"].shape == (*b["mask"].shape, 3)
            for i, mask in enumerate(b["mask"]):
                k, last = int(b["episode"][i, 0]), int(b["step"][i, mask].max())
                goal = b["goal"][i, mask][0]
                there, at = check_goal(known, goal, k, last, shares, horizon)
                for j, t in enumerate(b["step"][i].tolist()):
                    outside = fill == "zero" and not mask[j]
                    assert np.array_equal(b["goal"][i, j], np.zeros(3) if outside else goal)
                    assert b["goal_distance"][i, j, 0] == reference.distance(k, t, (there, at))


def chi_square(counts, probability):
    """Standardised distance of counts from their expectation: about normal, for enough samples."""
    counts, probability = np.asarray(counts, float), np.asarray(probability, float)
    assert not counts[probability == 0].any()
    counts, expected = counts[probability > 0], counts.sum() * probability[probability > 0]
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * max(freedom, 1))


def drawn(ds, goal, batch=5000, **options):
    """Goals of many draws."""
    loader = Loader(ds, batch, fields=[..., *WHERE, goal], sampler=Uniform(), steps=10, seed=3, **EXACT, **options)
    parts = list(loader)
    return {name: np.concatenate([b[name] for b in parts]) for name in (*WHERE, goal.name, f"{goal.name}_distance")}


@pytest.mark.thorough
@pytest.mark.parametrize("horizon", ["geometric", "uniform", "episode"])
@pytest.mark.parametrize("observed", [True, False])
def test_goals_of_the_future_are_as_likely_as_they_should_be(horizon, observed):
    known = [episode(0, 8, observed=observed, end="truncated", inner=(2, 5))]
    gamma, n = 0.7, known[0].num_observed
    b = drawn(create(known), Goals("goal", horizon=horizon, gamma=gamma), window=Transition(anchors="steps"))
    for t in range(8):
        at = b["goal"][b["step"] == t, 1].astype(int)
        expected = np.zeros(n)
        for g in range(n):
            if horizon == "episode":
                expected[g] = 1 / n
            elif g > t and horizon == "uniform":
                expected[g] = 1 / (n - 1 - t)
            elif g > t:
                expected[g] = (1 - gamma) * gamma ** (g - t - 1) if g < n - 1 else gamma ** (g - t - 1)
        if not expected.any():
            expected[t] = 1
        assert chi_square(np.bincount(at, minlength=n), expected) < 6


@pytest.mark.thorough
def test_kinds_come_with_their_probabilities_and_random_goals_are_uniform_over_recorded_rows():
    known = [
        episode(0, 3),
        episode(1, 9, observed=False, end="truncated"),
        episode(2, 1, observed=False, end="truncated"),
        episode(3, 5, end="truncated"),
        episode(4, 30),
    ]
    view = create(known).select(episodes=[3, 1, 2, 0])
    b = drawn(view, goals(shares=(0.2, 0.5, 0.3), horizon="final"))
    own = np.array([3, 1, 2, 0])[b["episode"]]
    rows = [(k, t) for k in (3, 1, 0) for t in range(known[k].num_observed)]  # episode 2 has no transition
    n = len(rows)
    for k, t in {(3, 0), (1, 2), (0, 1)}:
        here = (own == k) & (b["step"] == t)
        found = list(map(tuple, b["goal"][here, :2].astype(int).tolist()))
        expected = np.full(n, 0.3 / n)
        expected[rows.index((k, t))] += 0.2
        expected[rows.index((k, known[k].num_observed - 1))] += 0.5
        assert chi_square([found.count(row) for row in rows], expected) < 6
        assert set(found) <= set(rows)


@pytest.mark.thorough
def test_goals_cross_episodes_only_at_random():
    known = [episode(k, 4 + k) for k in range(5)]
    ds = create(known)
    for horizon in ("geometric", "uniform", "final", "episode", 2):
        b = drawn(ds, goals(shares=(0.3, 0.7, 0), horizon=horizon), 500)
        assert np.array_equal(b["goal"][:, 0], b["episode"])
    b = drawn(ds, goals(shares=(0, 0, 1)), 500)
    assert set(b["goal"][:, 0]) == set(range(5))
    assert (
        (b["goal_distance"][..., 0] == 0) == ((b["goal"][:, 0] == b["episode"]) & (b["goal"][:, 1] == b["step"]))
    ).all()
    reward = (b["goal_distance"][..., 0] == 0) - 1.0  # OGBench
    assert set(reward) == {-1.0, 0.0}


@pytest.mark.thorough
def test_the_same_episode_selected_twice_counts_as_one():
    view = create([episode(0, 4), episode(1, 4)]).select(episodes=[1, 1])
    b = drawn(view, goals(shares=(0, 0, 1)), 200)
    ahead = b["goal"][:, 1] - b["step"]
    assert np.array_equal(b["goal_distance"][..., 0], np.where(ahead >= 0, ahead, -1))


SEVERAL = (goals("value_goal", (0.2, 0.5, 0.3)), Goals("actor_goal", horizon="uniform"))
NAMES = ("value_goal", "value_goal_distance", "actor_goal", "actor_goal_distance")


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(2), Slice(3, after=2)])
@pytest.mark.parametrize("sampler", [Uniform(), Shuffled()])
def test_a_goal_depends_on_the_number_of_its_sample_and_its_name_alone(window, sampler):
    ds = create([episode(k, 9 + k, inner=(3,)) for k in range(6)])
    options = {"window": window, "sampler": sampler, "seed": 5, **EXACT}

    def everything(size, names, extra, **more):
        made = list(Loader(ds, size, fields=[..., *extra], **options, **more))
        return [np.concatenate([b[name] for b in made]) for name in names]

    whole = everything(12, NAMES, SEVERAL, steps=4)
    for size, steps in ((4, 12), (48, 1)):
        for one, other in zip(everything(size, NAMES, SEVERAL, steps=steps), whole, strict=True):
            assert np.array_equal(one, other)
    for rank in range(3):
        parts = everything(12, NAMES, SEVERAL, steps=4, rank=rank, world_size=3)
        for part, all_of in zip(parts, whole, strict=True):
            assert np.array_equal(part, all_of[rank::3])
    others = (Goals("another"), SEVERAL[1])
    for part, all_of in zip(everything(12, NAMES[2:], others, steps=4), whole[2:], strict=True):
        assert np.array_equal(part, all_of)
    loader = Loader(ds, 12, fields=[..., *SEVERAL], **options)
    loader.seek(2)
    assert np.array_equal(next(iter(loader))["value_goal"], whole[0][24:36])


@pytest.mark.thorough
def test_two_names_draw_independently_and_epochs_differ():
    ds = create([episode(0, 400)])
    extra = (Goals("a", horizon="uniform"), Goals("b", horizon="uniform"))
    loader = Loader(ds, 400, fields=[..., *extra], sampler=Shuffled(), **EXACT)
    first, second = next(iter(loader)), next(iter(loader))
    a, b = first["a_distance"][:, 0], first["b_distance"][:, 0]
    assert abs(np.corrcoef(a / (400 - a), b)[0, 1]) < 0.9
    assert (first["a"] != first["b"]).any() and not np.array_equal(
        np.sort(first["a"][:, 1]), np.sort(second["a"][:, 1])
    )


def nested():
    """Episodes like those of Minari's goal environments: the achieved goal is (episode, step)."""
    for k, n in enumerate((5, 9, 3)):
        at = np.stack([np.full(n + 1, float(k)), np.arange(n + 1.0)], 1)
        observation = {"observation": at * 10, "achieved_goal": at, "desired_goal": np.full((n + 1, 2), -5.0)}
        yield {
            "observation": observation,
            "action": np.zeros((n, 1), np.float32),
            "next": {"reward": np.zeros(n), "terminated": np.zeros(n, bool)},
            "info": {"qpos": at[:n] + 0.5},
        }


@pytest.mark.thorough
def test_goals_are_nested_as_their_field_is():
    ds = rlds_cli.create("local/nested", nested())
    b = next(iter(Loader(ds, 50, fields=[..., *WHERE, Goals("goal", horizon="final")], **EXACT)))
    assert set(b["goal"]) == {"observation", "achieved_goal", "desired_goal"}
    assert np.array_equal(b["goal", "achieved_goal"][:, 0], b["episode"])
    assert np.array_equal(b["goal", "achieved_goal"][:, 1], b["step"] + b["goal_distance"][..., 0])
    one = next(iter(Loader(ds, 50, fields=[..., *WHERE, Goals("goal", of=("observation", "achieved_goal"))], **EXACT)))
    assert np.array_equal(one["goal"][:, 1], one["step"] + one["goal_distance"][..., 0])


@pytest.mark.thorough
def test_goals_of_fields_without_a_final_row_end_at_the_last_step():
    ds = rlds_cli.create("local/nested", nested())
    for extra in (Goals("goal", of="info/qpos", horizon="final"), goals(shares=(0, 0, 1), of="info/qpos")):
        b = next(iter(Loader(ds, 200, fields=[..., *WHERE, extra], **EXACT)))
        at, lengths = b["goal"] - 0.5, np.array([5, 9, 3])
        assert (at[:, 1] < lengths[at[:, 0].astype(int)]).all()
        ahead = np.where(at[:, 0] == b["episode"], at[:, 1] - b["step"], -1)
        assert np.array_equal(b["goal_distance"][..., 0], np.maximum(ahead, -1))


def documented(name):
    """A function that the documentation shows, and what stands beside it."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "fields.md").read_text()
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if f"def {name}(" in code)
    namespace = {"Goals": Goals}
    exec(code, namespace)
    return namespace


@pytest.mark.thorough
def test_hindsight_relabelling_is_a_function_of_the_batch():
    torch = pytest.importorskip("torch")
    shown = documented("relabel")
    ds = rlds_cli.create("local/nested", nested())
    relabelled, kept = slice(0, 48), slice(48, 60)
    for batch in Loader(ds, 60, fields=[..., shown["her"]], transform=shown["relabel"], steps=3):
        desired, after = batch["observation", "desired_goal"], batch["next", "observation", "desired_goal"]
        assert torch.equal(desired[relabelled], batch["goal"][relabelled]) and torch.equal(desired, after)
        assert (desired[kept] == -5).all()  # that of the archive
        reached = (batch["goal_distance"][..., 0] - 1).clip(-1) == 0  # the next observation is the goal
        assert torch.equal(batch["next", "reward"][relabelled, 0] == 1, reached[relabelled])
        assert not batch["next", "reward"][kept].any() and reached.any() and not reached.all()


@pytest.mark.thorough
def test_hiql_subgoals_are_clipped_at_the_goal():
    ds = create([episode(k, 20) for k in range(3)])
    extra = (*WHERE, goals("goal", (0, 0.6, 0.4), horizon="uniform"), Goals("subgoal", horizon=5))
    b = next(iter(Loader(ds, 500, fields=[..., *extra], **EXACT)))
    assert np.array_equal(b["subgoal"][:, 1], np.minimum(b["step"] + 5, 20))
    near = (b["goal_distance"][..., 0] >= 0) & (b["goal_distance"][..., 0] < b["subgoal_distance"][..., 0])
    target = np.where(near[:, None], b["goal"], b["subgoal"])
    ahead = b["goal_distance"][..., 0] >= 0
    expected = np.where(ahead, np.minimum(b["step"] + 5, b["goal"][:, 1]), np.minimum(b["step"] + 5, 20))
    assert np.array_equal(target[:, 1], expected)


@pytest.mark.thorough
def test_transforms_of_the_observation_are_for_its_goals_too():
    known = [episode(k, 9) for k in range(4)]
    ds = create(known)
    norm = Normalize(ds, eps=1e-3)
    extra = (*WHERE, Goals("goal", horizon="final"))
    plain = next(iter(Loader(ds, 50, fields=[..., *extra], **EXACT)))
    steps = np.concatenate([e.observation[:9] for e in known])
    mean, std = steps.mean(0), steps.std(0) + 1e-3
    for transform in ([norm], [lambda b: None, norm]):
        b = next(iter(Loader(ds, 50, fields=[..., *extra], transform=transform, **EXACT)))
        assert np.allclose(b["goal"], (plain["goal"] - mean) / std) and np.array_equal(b["step"], plain["step"])
        assert np.array_equal(b["goal_distance"][..., 0], plain["goal_distance"][..., 0])
    b = next(iter(Loader(ds, 50, fields=["action", *extra], transform=Clip("goal", 2), **EXACT)))
    assert np.array_equal(b["goal"], plain["goal"].clip(-2, 2))
    b = next(iter(Loader(ds, 50, fields=["action", *extra], transform=Clip("observation", 2), **EXACT)))
    assert np.array_equal(b["goal"], plain["goal"].clip(-2, 2))
    with pytest.raises(UnknownField, match="touches none"):
        Loader(ds, 50, fields=["action", *extra], transform=Clip("action2", 2))
    with pytest.raises(UnknownField, match="touches none"):
        Loader(ds, 50, fields=["action", *extra], transform=Reward(2))


def test_frames_are_goals(tmp_path):
    frames = pixels(tmp_path, 3)
    ds = import_files(tmp_path / "pixels-v0", "local/pixels")
    assert ds.schema["observation"].kind == "frames"
    for window in (Transition(), Slice(2)):
        b = next(iter(Loader(ds, 20, window=window, fields=[..., *WHERE, Goals("goal", horizon="final")], **EXACT)))
        for place in np.ndindex(b["step"].shape):
            assert np.array_equal(b["goal"][place], frames[b["episode"][place]][-1])
    scaled = next(iter(Loader(ds, 20, fields=[..., Goals("goal")], transform=ToFloat("observation"), **EXACT)))
    assert scaled["goal"].shape == (20, 3, 8, 10) and scaled["goal"].max() <= 1.0


@pytest.mark.thorough
def test_goals_are_told_apart_in_what_is_asked_for_early_and_described():
    ds = create([episode(k, 30) for k in range(4)])
    loader = Loader(ds, 8, fields=[..., Goals("a"), Goals("b", horizon="final"), "previous/action", "index"], **EXACT)
    located = loader.source.locate(SampleRun(Order(0), 0, 8, 1), loader.ranks)
    asked = [coming.first.tolist() for coming in loader.source.planned_reads(located)]
    b = next(iter(loader))
    starts = ds.episodes["start"]
    for name in ("a", "b"):
        rows = starts[b[name][:, 0].astype(int)] + b[name][:, 1].astype(int)
        assert rows.tolist() in asked
    described = loader.describe()
    assert "rows of observation, at goals" in described and "step before" in described


def test_goals_are_read_from_packed_rows_in_the_dtype_of_the_batch(monkeypatch):
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    known = [episode(k, 30) for k in range(3)]
    loader = Loader(create(known), 16, fields=[..., *WHERE, Goals("goal")], backend="numpy", steps=4)
    (rows,) = {loader.source.columns[name].rows for name in ("goal", "observation")}
    assert rows is not None and rows.packed
    for b in loader:
        assert b["goal"].dtype == np.float32
        for goal, k, step, distance in zip(b["goal"], b["episode"], b["step"], b["goal_distance"][:, 0], strict=True):
            expected = np.asarray(known[int(k)].observation[int(step) + int(distance)])
            assert np.array_equal(goal, expected.astype(np.float32))


@pytest.mark.thorough
def test_goals_are_contiguous_and_overlap_nothing():
    ds = create([episode(0, 30)])
    for window in (Transition(), Slice(4)):
        batch = next(iter(Loader(ds, 8, window=window, fields=[..., Goals("goal"), Goals("other")], **EXACT)))
        leaves = [x for _, x in batch.leaves()]
        assert all(x.flags.c_contiguous and x.flags.writeable for x in leaves)
        assert not any(np.shares_memory(x, y) for i, x in enumerate(leaves) for y in leaves[:i])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Goals("g", current=0.2), "these sum to 1.2"),
        (lambda: Goals("g", future=0.5, random=0.3), "these sum to 0.8"),
        (lambda: Goals("g", current=-0.5, future=1.5), "not negative"),
        (lambda: Goals("g", future=math.nan), "these sum to nan"),
        (lambda: Goals("g", horizon="soon"), '"geometric", "uniform", "final", "episode" or a number'),
        (lambda: Goals("g", horizon=0), "at least 1"),
        (lambda: Goals("g", horizon=2.5), "at least 1"),
        (lambda: Goals("g", gamma=1.0), "between 0 and 1"),
        (lambda: Goals("g", gamma=0.0), "between 0 and 1"),
        (lambda: Goals(""), "name"),
    ],
)
def test_what_cannot_be_is_refused_at_once(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()


@pytest.mark.parametrize(
    ("extra", "error", "says"),
    [
        ([Goals("goal", of="observations")], UnknownField, 'Did you mean "observation"'),
        ([Goals("goal", of="next/reward")], InvalidArgument, "not a state"),
        ([Goals("observation")], InvalidArgument, "a field already"),
        ([Goals("goal"), Goals("goal", horizon=3)], InvalidArgument, "a field already"),
    ],
)
def test_what_the_dataset_does_not_allow_is_refused(extra, error, says):
    with pytest.raises(error, match=says):
        Loader(create([episode(0, 4)]), 2, fields=[..., *extra])
