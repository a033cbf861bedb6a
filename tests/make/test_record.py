"""`Record`: what is played is what is recorded, compared with a log that the test keeps itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlds_cli
from rlds_cli import Record
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, InvalidEpisode, RldsError

MODES = list(AutoresetMode)


class Count(gymnasium.Env[Any, Any]):
    """Observations count the steps of all episodes; an episode ends after ``lengths`` steps, by turns in both ways."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 3, 1), np.uint8),
            "pair": spaces.Tuple([spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(1 << 20)]),
            "word": spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz0123456789"),
        }
    )
    action_space = spaces.MultiDiscrete([5, 7])

    def __init__(self, lengths: tuple[int, ...] = (3, 1, 4), start: int = 0) -> None:
        self.lengths, self.start = lengths, start
        self.episode, self.t, self.now = -1, 0, start
        self.log: list[dict[str, Any]] = []

    def seen(self) -> dict[str, Any]:
        n = self.now
        return {
            "image": np.full((3, 3, 1), n % 256, np.uint8),
            "pair": (np.full(2, n, np.float32), np.int64(n)),
            "word": f"w{n}",
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t, self.now = self.episode + 1, 0, self.now + 1
        self.log.append({"seed": seed, "options": options, "observations": [self.now], "actions": [], "end": "cut"})
        return self.seen(), {"height": 0.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.now = self.t + 1, self.now + 1
        log = self.log[-1]
        log["observations"].append(self.now)
        log["actions"].append([int(a) for a in action])
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        if over:
            log["end"] = ("terminated", "truncated")[self.episode % 2]
        ends = log["end"] == "terminated", log["end"] == "truncated"
        return self.seen(), self.now / 2, *ends, {"height": self.now / 4, "note": f"n{self.now}", "object": self}


def recorded(ds: Dataset) -> list[dict[str, Any]]:
    """Episodes in the form of the log of `Count`."""
    found = []
    e = ds.episodes
    seeds = e["seed"].tolist() if "seed" in e else [None] * len(e["length"])
    has = e["has_seed"].tolist() if "seed" in e else [False] * len(seeds)
    for k in range(ds.num_episodes):
        batch = ds.episode(k)
        start, n = int(e["start"][k]), int(e["num_observed"][k])
        rows = np.arange(start, start + n)
        seen = ds.column("observation/pair/1", gaps=True)[rows].tolist()
        assert ds.column("observation/pair/0", gaps=True)[rows].tolist() == [[n, n] for n in seen]
        assert ds.column("observation/image", gaps=True)[rows, 2, 1, 0].tolist() == [n % 256 for n in seen]
        assert ds.gather("observation/word", rows).tolist() == [f"w{n}" for n in seen]
        assert batch["next/reward"].ravel().tolist() == [n / 2 for n in seen[1:]]
        options = ds.store.table.episode_strings("options")[k]
        found.append(
            {
                "seed": seeds[k] if has[k] else None,
                "options": eval(options) if options else None,
                "observations": seen,
                "actions": batch["action"].tolist(),
                "end": str(e["end"][k]),
            }
        )
    return found


def test_an_environment_is_recorded_as_it_is_played() -> None:
    env = Record(Count(), "local/run")
    assert isinstance(env, gymnasium.Wrapper)
    with pytest.raises(RldsError, match="has not begun"):
        env.step([0, 0])
    assert rlds_cli.open_dataset("local/run").num_episodes == 0, "it is there from the start"
    for n in range(5):
        env.reset(seed=n if n % 2 else None, options={"level": n} if n > 2 else None)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    with pytest.raises(RldsError, match="The episode is over"):
        env.step([0, 0])
    env.reset()
    env.step(np.array([1, 2], np.uint8))
    env.reset()  # in the middle: what was played is cut
    env.step((3, 4))
    env.writer.commit()
    assert recorded(env.writer.dataset()) == env.unwrapped.log
    env.close()
    ds = rlds_cli.open_dataset("local/run")
    assert recorded(ds) == env.unwrapped.log
    assert ds.observation_space == Count.observation_space and ds.action_space == Count.action_space
    assert ds.schema["observation/image"].dtype == "uint8" and "seed" in ds.episodes


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_vectors_in_all_modes_of_resetting(mode: AutoresetMode) -> None:
    envs = [Count((3, 1, 4), 0), Count((2,), 1000), Count((5, 9), 2000)]
    venv = Record(SyncVectorEnv([lambda e=e: e for e in envs], autoreset_mode=mode), "local/run")
    assert isinstance(venv, gymnasium.vector.VectorWrapper)
    venv.reset(seed=[7, None, 9], options={"level": 1})
    for t in range(20):
        _, _, terminated, truncated, _ = venv.step(venv.action_space.sample())
        over = terminated | truncated
        if mode == AutoresetMode.DISABLED and over.any():
            venv.reset(options={"reset_mask": over})
        elif mode == AutoresetMode.DISABLED and t == 11:  # in the middle of an episode
            venv.reset(seed=40, options={"reset_mask": np.array([False, False, True])})
    venv.close()
    found = recorded(rlds_cli.open_dataset("local/run"))
    wanted = [e for env in envs for e in env.log if e["actions"]]
    key = lambda e: e["observations"]  # noqa: E731
    for e in wanted:
        e["options"] = {"level": 1} if e["seed"] in (7, 9) or (e is envs[1].log[0]) else None
    assert sorted(found, key=key) == sorted(wanted, key=key)
    assert {e["end"] for e in found} == {"terminated", "truncated", "cut"}


@pytest.mark.parametrize("mode", MODES)
def test_infos_of_steps_also_of_those_that_end(mode: AutoresetMode) -> None:
    envs = [Count((3, 1)), Count((2,), 1000)]
    venv = Record(
        SyncVectorEnv([lambda e=e: e for e in envs], autoreset_mode=mode), "local/run", infos=("height", "note")
    )
    venv.reset()
    for _ in range(9):
        _, _, terminated, truncated, _ = venv.step(venv.action_space.sample())
        if mode == AutoresetMode.DISABLED and (terminated | truncated).any():
            venv.reset(options={"reset_mask": terminated | truncated})
    venv.close()
    ds = rlds_cli.open_dataset("local/run")
    for k in range(ds.num_episodes):
        batch = ds.episode(k)
        after = batch["next/observation/pair/1"].ravel().tolist()
        assert batch["info/height"].ravel().tolist() == [n / 4 for n in after]
        assert batch["info/note"].tolist() == [f"n{n}" for n in after]


def test_infos_of_one_environment() -> None:
    with Record(Count(), "local/all", infos=True) as env:
        env.reset()
        env.step([0, 0])
    ds = rlds_cli.open_dataset("local/all")
    assert sorted(n for n in ds.schema if n.startswith("info")) == ["info/height", "info/note"]
    env = Record(Count(), "local/none", infos=("nothing",))
    env.reset()
    env.step([0, 0])
    env.close()
    assert not any(n.startswith("info") for n in rlds_cli.open_dataset("local/none").schema)


class Doubles(gymnasium.Env[Any, Any]):
    """An environment of float64, as MuJoCo's are."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.full(2, 0.1), {}

    def step(self, action: Any) -> Any:
        return np.full(2, 0.2), np.float64(0.3), False, False, {}


def test_a_dataset_of_float32_goes_on_with_an_environment_of_float64() -> None:
    flat = {"observation": np.zeros((2, 2), np.float32), "action": np.zeros((1, 1), np.float32)}
    ds = rlds_cli.create("local/made", [{**flat, "next": {"reward": np.zeros(1, np.float32), "terminated": True}}])
    for _ in range(2):  # the second time it is there
        with Record(Doubles(), "local/run", like=ds) as env:
            env.reset()
            env.step(np.array([0.5]))  # float64
    found = rlds_cli.open_dataset("local/run")
    assert found.column("observation").dtype == np.float32 and found.num_steps == 2
    assert found.column("next/reward")[0] == np.float32(0.3)
    with Record(Doubles(), "local/own") as env:
        env.reset()
        env.step(np.array([0.5]))
    assert rlds_cli.open_dataset("local/own").column("observation")[0, 0] == 0.1


def test_what_cannot_be_recorded_is_said_at_once() -> None:
    class Odd(Doubles):
        observation_space = spaces.Sequence(spaces.Discrete(3))

    with pytest.raises(InvalidArgument, match="observation_space: A space of type Sequence"):
        Record(Odd(), "local/odd")
    env = Record(Count(), "local/run")
    env.reset()
    with pytest.raises(InvalidEpisode, match="action is float64, with values that int64 does not hold"):
        env.step(np.array([0.5, 1]))
    with pytest.raises(InvalidArgument, match="seed=18446744073709551616"):
        env.reset(seed=1 << 64)
    env.close()


def test_the_settings_of_the_environment_are_recorded() -> None:
    with Record(gymnasium.make("Pendulum-v1", g=3.5), "local/run") as env:
        env.reset(seed=1)
        env.step(env.action_space.sample())
    assert rlds_cli.open_dataset("local/run").make_env().unwrapped.g == 3.5


def test_importing_rlds_does_not_import_gymnasium() -> None:
    code = "import sys, rlds_cli, rlds_cli.interop, rlds_cli.make.convert.writer; assert 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
