"""Whole datasets in the layouts of other libraries; D4RL's own archives are in test_interop_d4rl."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DATA
from hypothesis import given, settings
from loader_data import Known, create, episode, episode_lists

import rlds_cli
from rlds_cli import Dataset
from rlds_cli.errors import NoReward, UnknownField

PLAIN = settings(max_examples=15)


@pytest.fixture
def by_hand() -> Dataset:
    """Three episodes: terminated; truncated with an unknown final observation; one step, truncated."""

    def one(observation: list[int], length: int, **flags: bool) -> dict[str, object]:
        return {
            "observation": np.array(observation, np.float64)[:, None],
            "action": np.arange(length, dtype=np.int32),
            "info": {"qpos": np.array(observation[:length])},
            "next": {"reward": 10.0 * np.arange(length), **flags},
        }

    episodes = [one([1, 2, 3], 2, terminated=True), one([4, 5, 6], 3, truncated=True), one([7, 8], 1, truncated=True)]
    return rlds_cli.create("local/by-hand", episodes)


@pytest.mark.thorough
def test_d4rl_by_hand(by_hand: Dataset) -> None:
    made = by_hand.to_numpy("d4rl")
    assert sorted(made) == ["actions", "infos/qpos", "observations", "rewards", "terminals", "timeouts"]
    assert made["observations"].tolist() == [[1], [2], [4], [5], [6], [7]] and made["observations"].dtype == np.float64
    assert made["actions"].tolist() == [0, 1, 0, 1, 2, 0] and made["infos/qpos"].tolist() == [1, 2, 4, 5, 6, 7]
    assert made["rewards"].tolist() == [0, 10, 0, 10, 20, 0]
    assert np.flatnonzero(made["terminals"]).tolist() == [1] and made["terminals"].dtype == bool
    assert np.flatnonzero(made["timeouts"]).tolist() == [4, 5] and made["timeouts"].dtype == bool


@pytest.mark.thorough
def test_next_observations_are_there_where_all_are_recorded(by_hand: Dataset) -> None:
    made = by_hand.select(episodes=[0, 2]).to_numpy("d4rl")
    assert made["next_observations"].tolist() == [[2], [3], [8]]
    asked = by_hand.to_numpy("d4rl", ["next/observation"])  # where it is not recorded, the last one again
    assert asked["next_observations"].tolist() == [[2], [3], [5], [6], [6], [8]]


@pytest.mark.thorough
def test_ogbench_by_hand(by_hand: Dataset) -> None:
    made = by_hand.to_numpy("ogbench")
    assert sorted(made) == ["actions", "masks", "next_observations", "observations", "rewards", "terminals"]
    assert made["observations"].tolist() == [[1], [2], [4], [5], [7]]
    assert made["next_observations"].tolist() == [[2], [3], [5], [6], [8]]
    assert made["actions"].tolist() == [0, 1, 0, 1, 0] and made["actions"].dtype == np.int32
    assert made["rewards"].tolist() == [0, 10, 0, 10, 0]
    assert made["terminals"].tolist() == [0, 1, 0, 1, 1] and made["masks"].tolist() == [1, 0, 1, 1, 1]
    assert {made[k].dtype for k in made if k != "actions"} == {np.dtype(np.float32)}


@pytest.mark.thorough
def test_some_fields_under_their_own_names(by_hand: Dataset) -> None:
    assert list(by_hand.to_numpy("d4rl", ["action", ("next", "reward")])) == ["actions", "rewards"]
    assert sorted(by_hand.to_numpy("ogbench", ["observation", "info/qpos"])) == [
        "infos/qpos",
        "observations",
        "terminals",
    ]
    for layout in ("ted", "d4rl", "ogbench"):
        assert by_hand.to_numpy(layout, "action")
        with pytest.raises(UnknownField, match="acton"):
            by_hand.to_numpy(layout, ["acton"])


@pytest.mark.thorough
def test_nested_observations_and_no_rewards() -> None:
    made = {"observation": {"a": np.zeros((3, 2)), "b": np.ones(3, np.uint8)}, "action": {"x": np.zeros((2, 1))}}
    ds = rlds_cli.create("local/nested", [made])
    d4rl, ogbench = ds.to_numpy("d4rl"), ds.to_numpy("ogbench")
    assert {"observations/a", "observations/b", "next_observations/b", "actions/x"} < set(d4rl)
    assert "rewards" not in d4rl and d4rl["timeouts"].tolist() == [False, True]
    assert {"rewards", "masks"}.isdisjoint(ogbench) and ogbench["terminals"].tolist() == [0, 1]
    assert ogbench["next_observations/b"].dtype == np.uint8
    with pytest.raises(NoReward):
        ds.to_numpy("d4rl", ["next/reward"])


@PLAIN
@given(known=episode_lists())
@pytest.mark.slow
def test_steps_and_transitions_of_random_episodes(known: list[Known]) -> None:
    ds = create(known)
    steps, transitions = ds.to_numpy("d4rl"), ds.to_numpy("ogbench")
    np.testing.assert_array_equal(steps["observations"], np.concatenate([e.observation[: e.length] for e in known]))
    np.testing.assert_array_equal(steps["terminals"], np.concatenate([e.terminated for e in known]))
    np.testing.assert_array_equal(steps["timeouts"], np.concatenate([e.truncated for e in known]))
    pairs = [(e, t) for e in known for t in range(e.num_transitions)]
    last = [t == e.num_transitions - 1 for e, t in pairs]
    assert transitions["terminals"].tolist() == last
    assert transitions["masks"].tolist() == [1 - e.terminated[t] for e, t in pairs]
    for key, values in (("observations", [e.observation[t] for e, t in pairs]),
                        ("next_observations", [e.next_observation(t) for e, t in pairs])):  # fmt: skip
        expected = np.array(values, np.float32).reshape(-1, 3)
        np.testing.assert_array_equal(transitions[key].reshape(-1, 3), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pointmaze-medium-navigate-v0", "visual-cube-single-play-v0"])
def test_ogbench_files_come_back(name: str) -> None:
    """OGBench's files hold T+1 rows per trajectory, terminal at the last, whose action leads nowhere."""
    path = DATA / "ogbench" / f"{name}.npz"
    with np.load(path) as file:
        columns = {k: file[k] for k in ("observations", "actions", "terminals")}
    stops = np.flatnonzero(columns["terminals"]) + 1
    pieces = [slice(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
    ds = rlds_cli.create(
        "local/ogbench",
        (
            {
                "observation": columns["observations"][p],
                "action": columns["actions"][p][:-1],
                "next": {"truncated": True},
            }
            for p in pieces
        ),
    )
    made = ds.to_numpy("ogbench")
    rows = [r for p in pieces for r in range(p.start, p.stop - 1)]
    assert made["observations"].dtype == columns["observations"].dtype
    np.testing.assert_array_equal(made["observations"], columns["observations"][rows])
    np.testing.assert_array_equal(made["next_observations"], columns["observations"][np.array(rows) + 1])
    np.testing.assert_array_equal(made["actions"], columns["actions"][rows])
    assert made["terminals"].tolist() == [float(columns["terminals"][r + 1]) for r in rows]


def test_no_episodes_are_no_rows() -> None:
    ds = create([episode(0, 3)]).select(episodes=[])
    for layout in ("ted", "d4rl", "ogbench"):
        assert all(len(v) == 0 for v in ds.to_numpy(layout).values())


@pytest.mark.thorough
def test_a_name_stands_for_the_fields_below_it() -> None:
    parts = {"observation/a": np.arange(4.0), "observation/b": np.arange(8.0).reshape(4, 2)}
    ds = rlds_cli.create("local/parts", [{**parts, "action": np.ones(3), "next/reward": np.ones(3)}])
    assert sorted(ds.to_numpy(fields=["observation", "action"])) == ["action", "observation/a", "observation/b"]
    after = ds.to_numpy(fields=["next/observation"])
    assert {n: v.tolist() for n, v in after.items()} == {
        f"next/{n}": v[1:].reshape(3, -1).tolist() for n, v in parts.items()
    }
    with pytest.raises(UnknownField):
        ds.to_numpy(fields=["obs"])
