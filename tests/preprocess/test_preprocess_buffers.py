"""Functions and generators that fill the same arrays again and again: every piece is stored as it was when it came."""

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess

LENGTHS = [3, 5, 2]


@pytest.fixture
def ds():
    return rlds_cli.create(
        "local/ds", ({"observation": np.zeros((n + 1, 2)), "action": np.zeros((n, 1))} for n in LENGTHS)
    )


def with_reward(episode):
    n = len(episode["action"])
    return {**episode, "next": {**episode["next"], "reward": np.zeros(n, np.float32)}}


def repeated(episode):
    episode = with_reward(episode)
    for k in range(3):
        episode["next"]["reward"][:] = k
        episode["observation"][:] = 10 * k
        yield episode


@pytest.mark.thorough
def test_the_pieces_of_a_generator_that_reuses_its_arrays(ds):
    made = preprocess.run(ds, repeated, jobs=0)
    for k in range(3 * len(LENGTHS)):
        episode = made.episode(k)
        assert set(episode["next"]["reward"].ravel().tolist()) == {k % 3}
        assert set(episode["observation"].ravel().tolist()) == {10 * (k % 3)}


def shifted_views(episode):
    """Windows of two steps, in one buffer."""
    n = len(episode["action"])
    buffer = np.zeros((3, 2))
    for t in range(n - 1):
        buffer[:] = t
        yield {
            "observation": buffer,
            "action": episode["action"][t : t + 2],
            "next": {k: v[t : t + 2] for k, v in episode["next"].items() if k != "truncated"}
            | {"truncated": np.array([False, True])},
        }


def test_windows_in_one_buffer(ds):
    made = preprocess.run(ds, shifted_views, jobs=0)
    assert [made.episode(k)["observation"][0, 0] for k in range(made.num_episodes)] == [0, 1, 0, 1, 2, 3, 0]


def test_a_generator_that_fails_at_a_later_piece_is_named(ds):
    def fails(episode):
        yield episode
        raise KeyError("no second")

    with pytest.raises(rlds_cli.errors.PreprocessError, match=r"KeyError: 'no second'.* on episode 0"):
        preprocess.run(ds, fails, jobs=0)


_BUFFERS: dict = {}


def buffered(name, values):
    """``values`` in the memory that was given back last time, where it fits."""
    buffer = _BUFFERS.setdefault((name, values.shape), np.empty_like(values))
    buffer[...] = values
    return buffer


@pytest.mark.parametrize("unit", ["episode", "batch", "step", "window"])
def test_a_function_that_returns_one_buffer_at_every_call(unit, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.BLOCK_ROWS", 4)
    source = rlds_cli.create(
        "local/numbered",
        (
            {"observation": np.arange(10.0 * e, 10.0 * e + n + 1)[:, None], "action": np.zeros((n, 1))}
            for e, n in enumerate(LENGTHS * 3)
        ),
    )

    def twice(data):
        if unit == "window":
            return {"double": buffered("double", 2 * data["observation"][:, 0])}
        data["double"] = buffered("double", 2 * data["observation"])
        if unit != "episode":
            data["next"]["double"] = buffered("next", 2 * data["next"]["observation"])
        return data

    made = preprocess.run(source, twice, "twice", unit=unit, jobs=0)
    double, observation = made.column("double"), made.column("observation")
    if unit == "window":  # no next value: the final rows repeat the step before
        starts, lengths = made.episodes["start"], made.episodes["length"]
        steps = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
        double, observation = double[steps], observation[steps]
    assert np.array_equal(double, 2 * observation)


@pytest.mark.thorough
def test_create_takes_each_episode_as_it_comes():
    def episodes():
        episode = {"observation": np.zeros((4, 2)), "action": np.zeros((3, 1)), "next": {"reward": np.zeros(3)}}
        for k in range(5):
            episode["observation"][:] = k
            episode["next"]["reward"][:] = 100 * k
            yield episode

    made = rlds_cli.create("local/made", episodes())
    assert [made.episode(k)["observation"][0, 0] for k in range(5)] == [0, 1, 2, 3, 4]
    assert [made.episode(k)["next"]["reward"][2].item() for k in range(5)] == [0, 100, 200, 300, 400]
