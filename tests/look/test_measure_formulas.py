"""Formulas of measures and their findings: numbers worked out by hand, and clean episodes beside them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli.look.checks.findings import Finding
from rlds_cli.measures import MEASURES, Measures

Episodes = list[dict[str, object]]


def column(ds: rlds_cli.Dataset, name: str) -> np.ndarray:
    m = Measures(ds)
    group = next(x.group for x in MEASURES if x.name == name)
    m.compute([group, "motion"] if group == "labels" else [group], jobs=0)
    return Measures(ds).column(name)


def found(ds: rlds_cli.Dataset, *groups: str) -> dict[tuple[str, str | None], Finding]:
    """Findings of measures by code and measure."""
    report = rlds_cli.check(ds, measures=groups, jobs=0)
    return {(f.code, f.measure): f for f in report.findings if f.check == "measures"}


def gliding(speed: np.ndarray) -> dict[str, np.ndarray]:
    """An episode of one vector, a position and its velocity, at 10 steps a second."""
    moved = np.concatenate([[0], (speed[1:] + speed[:-1]) / 2 / 10])
    return {"observation": np.stack([np.cumsum(moved), speed], 1), "action": np.zeros((len(speed), 1))}


def test_missing_rows_show_where_velocities_tell_less(tmp_path: Path) -> None:
    """An episode moves by 1 a step, 19 times; in one step by 4, since three rows are missing.

    The root mean square of its steps is sqrt((18 + 16) / 19), and its velocities tell 1 of the 4. What velocities are
    is learned from the first 32 episodes.
    """
    rng = np.random.default_rng(0)
    episodes = [gliding(10 * np.sin(np.arange(20) * w) + 5) for w in rng.uniform(0.2, 0.6, 32)]
    broken = gliding(np.full(20, 10.0))
    broken["observation"][9:, 0] += 3
    ds = rlds_cli.create("local/arm", [*episodes, broken, gliding(np.full(20, 10.0))], home=tmp_path)
    values = column(ds, "quality_unexplained_step")
    assert values[:32].max() < 1e-5
    assert values[32] == pytest.approx(3 / np.sqrt(34 / 19), rel=1e-5)
    assert values[33] < 1e-5
    (derivative,) = Measures(ds).roles.derivatives or ()
    assert (derivative.position, derivative.velocity) == (0, 1)
    assert derivative.seconds == pytest.approx(0.1, rel=1e-6)
    f = found(ds, "motion")["dropped-rows", "quality_unexplained_step"]
    assert (f.episodes, [(r.first, r.stop) for r in f.ranges]) == ((32,), [(9, 10)])


def test_states_without_velocities_have_no_unexplained_step(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(10, 30, 2)), axis=1)
    ds = rlds_cli.create("local/arm", [{"observation": w, "action": w} for w in walks], home=tmp_path)
    with pytest.raises(rlds_cli.errors.RldsError, match="positions and velocities"):
        column(ds, "quality_unexplained_step")


def test_a_step_aside_is_of_another_take_and_one_ahead_of_missing_rows(tmp_path: Path) -> None:
    """Both are as long as 10 steps. The one aside is the whole range of its element, of the other 19 steps are 1 / 19.

    In root mean squares it is 1 / sqrt((1 + 19 / 19^2) / 20).
    """
    way = np.stack([np.arange(21.0), np.zeros(21)], 1)
    aside, ahead = way.copy(), way.copy()
    aside[10:] += [-1, 10]
    ahead[10:] += [9, 0]
    ds = rlds_cli.create(
        "local/arm", [{"observation": x, "action": x} for x in [way] * 10 + [aside, ahead]], home=tmp_path
    )
    values = column(ds, "quality_side_jump")
    assert values[:10].tolist() + values[11:].tolist() == pytest.approx([0] * 11, abs=1e-3)
    assert values[10] == pytest.approx(1 / np.sqrt((1 + 1 / 19) / 20), rel=1e-5)
    named = {at: ([*f.episodes], [(r.first, r.stop) for r in f.ranges]) for at, f in found(ds, "motion").items()}
    assert named["joined-takes", "quality_side_jump"] == ([10], [(10, 11)])
    assert named["dropped-rows", "quality_motion_jump"] == ([10, 11], [(10, 11)] * 2)


def alike(count: int, steps: int = 40, **more: object) -> Episodes:
    """Episodes of an arm that follows sines of its own frequencies, one step later."""
    made = []
    for k in range(count):
        t = np.arange(steps)[:, None] + 3 * k
        action = np.sin(t * [0.21 + 0.003 * k, 0.34])
        made.append({"observation": np.concatenate([action[:1], action[:-1]]), "action": action, **more})
    return made


def test_the_spectral_arc_length_of_two_equal_steps(tmp_path: Path) -> None:
    """One step is an impulse, of a flat spectrum: -1. Two equal ones have V(k) = cos(pi k / 16), of 17 frequencies.

    Three states have two steps, and four times the next power of two, 16, are transformed: V(k) = cos(pi k / 16) for k
    of 0 to 8, the last of which is 0; K is 7.
    """
    one, two = np.array([[0.0], [1.0]]), np.array([[0.0], [1.0], [2.0]])
    v = np.cos(np.pi * np.arange(8) / 16)
    still = np.zeros((3, 1))
    ds = rlds_cli.create("local/arm", [{"observation": x, "action": x} for x in (one, two, still)], home=tmp_path)
    values = column(ds, "quality_arc_length")
    assert values[:2] == pytest.approx([-1, -np.sqrt(1 / 7**2 + np.diff(v) ** 2).sum()], rel=1e-5)
    assert np.isnan(values[2])


def test_a_motion_that_stops_and_starts_is_less_smooth(tmp_path: Path) -> None:
    s = np.linspace(0, 1, 60)[:, None]
    smooth = 10 * s**3 - 15 * s**4 + 6 * s**5  # minimum jerk, whose arc length is about -1.4
    halting = np.concatenate([smooth[::3] + k for k in range(3)])
    ds = rlds_cli.create("local/arm", [{"observation": x, "action": x} for x in (smooth, halting)], home=tmp_path)
    values = column(ds, "quality_arc_length")
    assert values[0] == pytest.approx(-1.4, abs=0.1)
    assert values[1] < values[0] - 0.5


def test_a_follower_that_is_off_its_leader_is_not_followed(tmp_path: Path) -> None:
    """The joint is 0.5 beside where its leader was: that many standard deviations of the actions."""
    episodes = alike(34)
    episodes[33]["observation"] = episodes[33]["observation"] + [0.5, 0]
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    values = column(ds, "quality_follow_error")
    pair = (Measures(ds).roles.pairs or ())[0]
    assert (pair.gain, pair.offset) == pytest.approx((1, 0), abs=1e-6)
    assert values[:33].max() < 1e-5
    assert values[33] == pytest.approx(0.5 / pair.spread, rel=1e-4)
    assert found(ds, "action")["not-followed", "quality_follow_error"].episodes == (33,)
    assert found(ds, "action")["not-followed", "quality_follow_error"].field == "action[0]"


def test_shifted_actions_are_followed_at_their_own_lag(tmp_path: Path) -> None:
    episodes = alike(34)
    episodes[33]["action"] = np.concatenate([episodes[33]["action"][:1].repeat(2, 0), episodes[33]["action"][:-2]])
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    codes = {code for code, _ in found(ds, "action")}
    assert codes == {"action-lag"}


def test_an_arm_that_moves_otherwise_is_not_followed(tmp_path: Path) -> None:
    episodes = alike(34)
    episodes[33]["observation"] = np.random.default_rng(0).normal(size=(40, 2))
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    assert found(ds, "action")["not-followed", "quality_follow_error"].episodes == (33,)


def test_rates_are_compared_with_the_stated_one(tmp_path: Path) -> None:
    """20 steps a second where 20 are stated, 19.9, and 10; stamps in milliseconds; and some that count steps."""
    stamps = [np.arange(40) / 20, np.arange(40) / 19.9, np.arange(40) / 10, np.arange(40) * 50.0, np.arange(40.0)]
    episodes = [{**e, "info": {"timestamp": s}} for e, s in zip(alike(5), stamps, strict=True)]
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path, fps=20)
    assert column(ds, "quality_rate_error") == pytest.approx([0, 0.005, 0.5, 0, np.nan], abs=1e-6, nan_ok=True)
    assert found(ds, "time")["rate-differs", "quality_rate_error"].episodes == (2,)
    unstated = rlds_cli.create("local/other", episodes, home=tmp_path)
    with pytest.raises(rlds_cli.errors.RldsError, match="stated rate"):
        column(unstated, "quality_rate_error")


def test_times_that_jitter_stand_out(tmp_path: Path) -> None:
    """Of gaps that alternate between a half and one and a half, the interquartile range is 1."""
    stamps = [np.arange(40) + np.linspace(0, 0.01 * k, 40) for k in range(12)]
    stamps[7] = np.arange(40) + np.where(np.arange(40) % 2 == 0, 0, 0.5)
    ds = rlds_cli.create(
        "local/arm",
        [{**e, "info": {"timestamp": s / 10}} for e, s in zip(alike(12), stamps, strict=True)],
        home=tmp_path,
    )
    values = column(ds, "quality_jitter")
    assert values[7] == pytest.approx(1 / 1.349 / 1.5, rel=1e-6)  # 20 gaps of 1.5, 19 of 0.5
    assert np.delete(values, 7).max() < 1e-6
    assert found(ds, "time")["time-jitter", "quality_jitter"].episodes == (7,)


def test_topics_that_stopped_stand_out_by_their_age(tmp_path: Path) -> None:
    """A camera of 10 Hz at 40 rows a second: 0 to 0.075 s old; in one episode it misses three frames, 0.3 s."""
    ages = [np.arange(40) % 4 * 0.025 for _ in range(12)]
    ages[4] = np.where((np.arange(40) >= 20) & (np.arange(40) < 32), 0.3, ages[4])
    episodes = [
        {**e, "info": {"age": {"camera": a, "clock": np.full(40, 1e-5 * (1 + k % 3))}}}
        for k, (e, a) in enumerate(zip(alike(12), ages, strict=True))
    ]
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    values = column(ds, "quality_age")
    assert np.delete(values, 4) == pytest.approx(0.075)
    assert values[4] == pytest.approx(0.3)
    f = found(ds, "time")["stale-topic", "quality_age"]
    assert (f.episodes, f.field) == ((4,), "info/age/camera")


def test_returns_and_lengths_outside_the_spread_of_their_task(tmp_path: Path) -> None:
    """Returns of 100 to 119 in one task, of 200 to 219 in the other; one of 200 is in the wrong one, and short."""
    episodes = []
    for k in range(40):
        total = 100 + k // 2 + 100 * (k % 2)
        (e,) = alike(1)
        reward = np.full(40, total / 40)
        episodes.append({**e, "next": {"reward": reward}, "episode": {"task": f"task {k % 2}"}})
    (short,) = alike(1, steps=12)
    episodes[10] = {**short, "next": {"reward": np.full(12, 200 / 12)}, "episode": {"task": "task 0"}}
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    of_labels = found(ds, "labels")
    assert of_labels["unusual-return", "quality_return"].episodes == (10,)
    assert of_labels["unusual-return", "quality_return"].siblings.median == 110.5  # of 105, the 200 is there
    assert of_labels["unusual-length", "quality_length"].episodes == (10,)
    assert column(ds, "quality_length")[10] == 12


@pytest.mark.parametrize("failed", [1, 10])
def test_sparse_returns_and_second_lengths_are_no_outliers(tmp_path: Path, failed: int) -> None:
    """Where most returns are equal they have no spread; where a quarter is short, so are the siblings."""
    episodes = []
    for k in range(40):
        steps = 10 if k < 10 else 40
        (e,) = alike(1, steps=steps)
        reward = np.zeros(steps)
        reward[-1] = k >= failed
        episodes.append({**e, "next": {"reward": reward}})
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    assert {code for code, _ in found(ds, "labels")} & {"unusual-return", "unusual-length"} == set()


def test_success_is_compared_with_last_rewards_that_are_flags(tmp_path: Path) -> None:
    """Shaped rewards, which failures have as well, say nothing; a last reward of 0 among ones does."""
    shaped, sparse = list[dict[str, object]](), list[dict[str, object]]()
    for k, e in enumerate(alike(20)):
        success = {"success": k not in (3, 8)}
        shaped.append({**e, "next": {"reward": np.linspace(0, 1 + 0.01 * k, 40)}, "episode": success})
        reward = np.zeros(40)
        reward[20:] = k != 8
        sparse.append({**e, "next": {"reward": reward}, "episode": success})
    ds = rlds_cli.create("local/shaped", shaped, home=tmp_path)
    assert np.isnan(column(ds, "quality_success_mismatch")).all()
    ds = rlds_cli.create("local/sparse", sparse, home=tmp_path)
    assert np.flatnonzero(column(ds, "quality_success_mismatch")).tolist() == [3]
    assert found(ds, "labels")["success-mismatch", "quality_success_mismatch"].episodes == (3,)


@pytest.mark.parametrize("name", ["next/success", "next/info/is_success", "success"])
def test_flags_of_steps_tell_success_as_a_column_does(tmp_path: Path, name: str) -> None:
    """The flag of the last step counts; flags before it say that the episode was not done yet."""
    of_steps = list[dict[str, object]]()
    for k, e in enumerate(alike(20)):
        flag, reward = np.zeros(40, bool), np.zeros(40)
        flag[-1], reward[-1] = k not in (3, 8), k not in (5, 8)
        fields: dict[str, object] = {"reward": reward}
        at, *path = reversed(name.removeprefix("next/").split("/"))
        nested: dict[str, object] = {at: flag} if not path else {path[0]: {at: flag}}
        of_steps.append({**e, "next": fields | nested} if name.startswith("next/") else {**e, **nested, "next": fields})
    ds = rlds_cli.create("local/steps", of_steps, home=tmp_path)
    assert np.flatnonzero(column(ds, "quality_success_mismatch")).tolist() == [3, 5]
    assert found(ds, "labels")["success-mismatch", "quality_success_mismatch"].episodes == (3, 5)


def test_rewards_that_are_0_throughout_say_nothing_of_success(tmp_path: Path) -> None:
    episodes = [
        {**e, "next": {"reward": np.zeros(40)}, "episode": {"success": k == 3}} for k, e in enumerate(alike(20))
    ]
    ds = rlds_cli.create("local/unpaid", episodes, home=tmp_path)
    assert np.isnan(column(ds, "quality_success_mismatch")).all()


def test_elements_that_keep_their_bits_among_others_stand_out(tmp_path: Path) -> None:
    """One of three elements is the same at 8 steps: 7 times it does not change. Another one rests in each episode."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(20, 40, 3)), axis=1)
    for k, w in enumerate(walks):
        w[5 : 15 + k % 7, 2] = w[5, 2]
    walks[3, 10:18, 0] = walks[3, 10, 0]
    walks[8, :, 1] = 4  # which is a dead joint
    walks[11, 5:35, 2] = walks[11, 5, 2]  # longer than usual, of an element that rests anyway
    ds = rlds_cli.create("local/arm", [{"observation": w, "action": w[:, :1]} for w in walks], home=tmp_path)
    assert Measures(ds).elements("quality_frozen_element") == ["observation[0]", "observation[1]", "observation[2]"]
    of = found(ds, "motion")
    f = of["frozen-signal", "quality_frozen_element"]
    assert (f.episodes, f.field, [(r.first, r.stop) for r in f.ranges]) == ((3,), "observation[0]", [(11, 18)])
    assert of["dead-joint", "quality_dead_joints"].episodes == (8,)
    values = Measures(ds).values("quality_frozen_element")
    assert values[3].tolist() == [7, 0, 12]
    assert values[:, 2].tolist() == [29 if k == 11 else 9 + k % 7 for k in range(20)]


def test_what_many_episodes_do_in_one_element_or_another_is_usual(tmp_path: Path) -> None:
    """Each of four elements of the action is clipped in 2 of 20 episodes: 8 are, and none stands out; of 2 both do."""
    for count in (4, 1):
        actions = np.random.default_rng(0).normal(size=(20, 40, 4))
        for j in range(count):
            for k in (2 * j, 2 * j + 1):
                actions[k, 5:25, j] = 4
        episodes = [{"observation": np.cumsum(a, axis=0), "action": a} for a in actions]
        ds = rlds_cli.create(f"local/arm{count}", episodes, home=tmp_path)
        clipped = [f.episodes for (code, _), f in found(ds, "action").items() if code == "saturated-action"]
        assert clipped == ([] if count == 4 else [(0, 1)])


def test_dark_cameras_stand_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [{**e, "observation": {"q": e["observation"]}} for e in alike(12)]
    for k, e in enumerate(episodes):
        e["observation"]["top"] = rng.integers(80, 120, (40, 16, 16, 3)).astype(np.uint8) // (3 if k == 5 else 1)
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    values = column(ds, "quality_brightness")
    assert np.delete(values, 5) == pytest.approx(99.5, abs=0.5)
    assert values[5] == pytest.approx(99.5 / 3 - 1 / 3, abs=0.5)
    assert found(ds, "camera")["underexposed-camera", "quality_brightness"].episodes == (5,)


def test_halves_that_differ_are_a_note(tmp_path: Path) -> None:
    """All later episodes have a higher return: Cliff's delta is 1. 30 of each half are enough, 20 are not.

    U is n^2 / 2 off, and its standard deviation is sqrt(n^2 / 12 * (2 n + 1)) if none are equal: 5.4 and 6.7 of them.
    """
    rng = np.random.default_rng(0)
    for count, drifts in ((20, False), (30, True)):
        actions = [np.cumsum(rng.normal(size=(40, 2)), axis=0) for _ in range(2 * count)]
        episodes = [
            {"observation": a, "action": a, "next": {"reward": np.full(40, 1.0 + k / 100 + (k >= count))}}
            for k, a in enumerate(actions)
        ]
        ds = rlds_cli.create(f"local/of{count}", episodes, home=tmp_path)
        of_labels = found(ds, "labels")
        assert (("drift", None) in of_labels) is drifts
    f = of_labels["drift", None]
    assert (f.severity, f.episodes, f.count) == ("note", (), 1)
    assert "quality_return (45.8, then 97.8)" in f.text  # 40 times 1.145 and 2.445
    assert ("drift", None) not in found(ds, "motion")


def test_tasks_one_after_the_other_are_no_drift(tmp_path: Path) -> None:
    """What differs between tasks does not count, only what differs between the halves of one."""
    rng = np.random.default_rng(0)
    episodes = []
    for k in range(80):
        a = np.cumsum(rng.normal(size=(40, 2)), axis=0)
        reward = np.full(40, rng.uniform(1, 2) + (k >= 40))
        episodes.append(
            {"observation": a, "action": a, "next": {"reward": reward}, "episode": {"task": f"task {k // 40}"}}
        )
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    assert ("drift", None) not in found(ds, "labels", "motion")


def test_episodes_of_another_dataset_are_named(tmp_path: Path) -> None:
    """Episodes 3 and 8 are in the validation set as they are, and 5 with noise of a thousandth."""
    rng = np.random.default_rng(0)
    train, held_out = (
        [{"observation": w, "action": w} for w in np.cumsum(rng.normal(size=(n, 40, 2)), axis=1)] for n in (12, 6)
    )
    near = {"observation": train[5]["observation"] + 1e-3, "action": train[5]["action"]}
    a = rlds_cli.create("local/train", train, home=tmp_path)
    b = rlds_cli.create("local/validation", [*held_out, train[8], near, train[3]], home=tmp_path)
    report = rlds_cli.check(a, against=b, jobs=0)
    of = {f.code: f for f in report.findings if f.check == "against"}
    assert (of["in-both"].episodes, of["near-in-both"].episodes) == ((3, 8), (5,))
    assert "episode 3 is its 8" in of["in-both"].text
    assert report.episodes_of("in-both").where == "episode in [3, 8]"
    quick = rlds_cli.check(a, against="local/validation", quick=True, home=tmp_path)
    assert [f.code for f in quick.findings if f.check == "against"] == ["in-both"]
    apart = rlds_cli.create("local/apart", held_out, home=tmp_path)
    assert "against" in rlds_cli.check(a, against=apart, jobs=0).ok
    with pytest.raises(rlds_cli.errors.InvalidArgument, match="itself"):
        rlds_cli.check(a, against=a)
    episode = {"observation": {"x": np.zeros((5, 1))}, "action": np.zeros(5)}
    other = rlds_cli.create("local/other", [episode], home=tmp_path)
    with pytest.raises(rlds_cli.errors.InvalidArgument, match="in common"):
        rlds_cli.check(a, against=other)


def masked(path: Path, walks: np.ndarray, actions: np.ndarray, **masks: list[int]) -> rlds_cli.Dataset:
    """A dataset of robomimic's, whose masks are splits: names of demonstrations, in any number of masks."""
    with h5py.File(path, "w") as f:
        f.create_group("data").attrs["env_args"] = '{"env_name": "Arm", "type": 1, "env_kwargs": {}}'
        for k, (w, a) in enumerate(zip(walks, actions, strict=True)):
            g = f.create_group(f"data/demo_{k}")
            g.attrs["num_samples"] = len(a)
            g["obs/q"], g["actions"], g["rewards"], g["dones"] = w, a, np.zeros(len(a)), np.arange(len(a)) == 39
        for name, of in masks.items():
            f[f"mask/{name}"] = np.array([f"demo_{k}".encode() for k in of])
    return rlds_cli.import_files(path, f"local/{path.stem}", home=path.parent / "home")


def test_episodes_of_one_split_in_another_are_named(tmp_path: Path) -> None:
    """Of 12 episodes to train on, 3 is in `valid` as it is, 5 with noise of a thousandth, and 7 is in both splits.

    A part of `train` is no split of its own, and the equal episodes 1 and 2 are in one split.
    """
    rng = np.random.default_rng(0)
    walks, actions = np.cumsum(rng.normal(size=(16, 40, 2)), axis=1), rng.normal(size=(16, 40, 1))
    for of, again, noise in ((1, 2, 0), (3, 13, 0), (5, 14, 1e-3)):
        walks[again], actions[again] = walks[of] + noise, actions[of]
    train = [*range(12)]
    ds = masked(tmp_path / "arm.hdf5", walks, actions, train=train, tenth=[0], valid=[7, 12, 13, 14, 15])
    report = rlds_cli.check(ds, measures=["labels"], jobs=0)
    of_splits = {f.code: f for f in report.findings if f.check == "splits"}
    assert {code: f.episodes for code, f in of_splits.items()} == {"in-both": (3, 7), "near-in-both": (5,)}
    assert of_splits["in-both"].text.endswith("episode 3 is episode 13")
    assert "train and valid" in of_splits["in-both"].text
    assert [f.code for f in rlds_cli.check(ds).findings if f.check == "splits"] == ["in-both"]
    apart = masked(tmp_path / "apart.hdf5", walks[:13], actions[:13], train=train, tenth=[0], valid=[12])
    assert "splits" in rlds_cli.check(apart).ok


def test_quantiles_of_a_report_and_of_expressions_are_one_number(tmp_path: Path) -> None:
    """Of an odd number of episodes, the median is the value of one of them."""
    walks = np.cumsum(np.random.default_rng(0).normal(size=(9, 40, 2)), axis=1)
    ds = rlds_cli.create("local/arm", [{"observation": w, "action": w} for w in walks], home=tmp_path)
    report = rlds_cli.check(ds, measures=["motion"], jobs=0)
    (jerk,) = [m for m in report.measures if m.name == "quality_jerk"]
    (middle,) = ds.select(where="quality_jerk == quantile(quality_jerk, 0.5)").episodes.index
    assert jerk.median == column(ds, "quality_jerk")[middle] == np.sort(column(ds, "quality_jerk"))[4]


def test_findings_of_the_whole_leave_nothing_out(tmp_path: Path) -> None:
    ds = rlds_cli.create("local/arm", [*alike(3)], home=tmp_path)
    for code in ("drift", "in-both"):
        with pytest.raises(rlds_cli.errors.InvalidArgument, match="whole"):
            Measures(ds).dropping([code])


def textured(rng: np.random.Generator, contrast: float) -> np.ndarray:
    """Frames of a ground of 1/f noise, as pictures of rooms have it, with a contrast of their own."""
    across, down = np.fft.fftfreq(48)[None], np.fft.fftfreq(48)[:, None]
    amplitude = 1 / np.maximum(1 / 48, np.hypot(across, down))
    phase = np.exp(2j * np.pi * rng.random((48, 48)))
    ground = np.real(np.fft.ifft2(amplitude * phase))
    frames = 120 + contrast * ground / ground.std() + rng.normal(0, 1, (12, 48, 48))
    return np.clip(frames, 0, 255).astype(np.uint8)[..., None].repeat(3, axis=3)


def test_a_slight_blur_stands_out_and_contrast_does_not(tmp_path: Path) -> None:
    """Contrasts differ by a factor of two, and one camera is blurred by a kernel of 1, 2, 1."""
    rng = np.random.default_rng(0)
    episodes = [{**e, "observation": {"q": e["observation"]}} for e in alike(16, steps=12)]
    for k, e in enumerate(episodes):
        frames = textured(rng, 20 + 20 * rng.random())
        if k == 6:
            for axis in (1, 2):
                wide = frames.astype(np.float64)
                frames = ((np.roll(wide, 1, axis) + 2 * wide + np.roll(wide, -1, axis)) / 4).astype(np.uint8)
        e["observation"]["top"] = frames
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    blurred = {f.episodes for (code, _), f in found(ds, "camera").items() if code == "blurred-camera"}
    assert blurred == {(6,)}


def test_sharpness_of_a_checkerboard(tmp_path: Path) -> None:
    """Of pixels that alternate between 0 and 2, the Laplacian is 8 or -8: a variance of 64; slopes are 2 on both axes.

    64 / (4 + 4) is 8, for any contrast; of vertical stripes, 16 / (4 + 0), 4. One colour has no sharpness.
    """
    board, stripes = (np.indices((16, 16)).sum(axis=0) % 2, np.indices((16, 16))[1] % 2)
    episodes = []
    for picture, contrast in ((board, 2), (board, 200), (stripes, 2), (board, 0)):
        frames = np.broadcast_to((picture * contrast).astype(np.uint8)[None, :, :, None], (3, 16, 16, 3))
        episodes.append({"observation": {"top": np.ascontiguousarray(frames)}, "action": np.zeros((3, 1))})
    ds = rlds_cli.create("local/arm", episodes, home=tmp_path)
    assert column(ds, "quality_sharpness") == pytest.approx([8, 8, 4, np.nan], nan_ok=True)
