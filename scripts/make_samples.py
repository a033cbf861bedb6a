"""Write the sample archives: three small ones from real Gymnasium environments, each in a layout of its own.

::

    pendulum-d4rl.hdf5              D4RL v2: flat columns, next_observations, infos, an open last trajectory
    cartpole-minari/data/           Minari, by the real library: one group per episode, T+1 observations, seeds, options
    mountaincar-robohive.h5         RoboHive trace: Trial<k>, the last row of a trial holds no action (NaN)

Usage: python scripts/make_samples.py [DIRECTORY]        default: rlds_cli/samples
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np

SAMPLES = Path(__file__).parents[1] / "rlds_cli" / "samples"

PENDULUM_STEPS = 5_100  # 25 episodes of 200 steps and an open tail of 100
CARTPOLE_EPISODES = 12
MOUNTAINCAR_TRIALS = 12
MOUNTAINCAR_HORIZON = 200


def swing_up(state: np.ndarray) -> float:
    """Torque for Pendulum-v1 at (angle, angular velocity): pump energy, then hold with PD near the top."""
    angle, speed = (state[0] + np.pi) % (2 * np.pi) - np.pi, state[1]
    if abs(angle) < 0.35 and abs(speed) < 2.5:
        return float(-(12.0 * angle + 3.0 * speed))
    missing = 5.0 - (speed**2 / 6 + 5.0 * np.cos(angle))  # m = l = 1, g = 10: the energy at rest on top is 5
    return float(2.0 * missing * (np.sign(speed) or 1.0))


def write_pendulum(path: Path) -> None:
    """D4RL v2 as its collection scripts write it: N rows, gzip, cut at exactly N, the end of time a timeout."""
    env, rng = gym.make("Pendulum-v1"), np.random.default_rng(0)
    noise = 0.3
    rows: list[dict[str, Any]] = []
    observation, _ = env.reset(seed=0)
    for episode in range(1, PENDULUM_STEPS):
        truncated = False
        while not truncated and len(rows) < PENDULUM_STEPS:
            state = env.unwrapped.state.copy()
            mean = np.arctanh(np.clip(swing_up(state) / 2, -0.99, 0.99))
            before_tanh = mean + noise * rng.standard_normal()
            action = np.array([2 * np.tanh(before_tanh)], np.float32)
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append(
                {
                    "observations": observation,
                    "actions": action,
                    "next_observations": after,
                    "rewards": np.float32(reward),
                    "terminals": np.bool_(terminated),
                    "timeouts": np.bool_(truncated),
                    "infos/qpos": state[:1],
                    "infos/qvel": state[1:],
                    "infos/action_log_probs": np.float32(_log_prob(before_tanh, mean, noise)),
                }
            )
            observation = after
        if len(rows) == PENDULUM_STEPS:
            break
        observation, _ = env.reset(seed=episode)
    with h5py.File(path, "w") as f:
        for key in rows[0]:
            f.create_dataset(key, data=np.stack([row[key] for row in rows]), compression="gzip", compression_opts=9)
        f["metadata/algorithm"] = np.bytes_("scripted: energy swing-up, PD at the top")
        f["metadata/iteration"] = np.int32(0)
        f["metadata/policy/pd_gains"] = np.array([12.0, 3.0], np.float32)
        f["metadata/policy/energy_gain"] = np.float32(2.0)
        f["metadata/policy/noise_std"] = np.float32(noise)
        f["metadata/policy/output_distribution"] = np.bytes_("tanh_gaussian")


def _log_prob(x: float, mean: float, std: float) -> float:
    """Log density of the action 2 tanh(x) where x is Gaussian."""
    gaussian = -0.5 * ((x - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    return float(gaussian - np.log(2 * (1 - np.tanh(x) ** 2)))


def balance(observation: np.ndarray) -> int:
    """Push for CartPole-v1: the pole first, the cart back to the centre second."""
    x, speed, angle, turn = observation
    return int(angle + 0.45 * turn + 0.025 * x + 0.06 * speed > 0)


def write_cartpole(directory: Path) -> None:
    """The dataset ``cartpole/medium-v0`` of the installed minari, moved to ``directory``."""
    with tempfile.TemporaryDirectory() as root:
        kept, os.environ["MINARI_DATASETS_PATH"] = os.environ.get("MINARI_DATASETS_PATH"), root
        try:
            _create_minari("cartpole/medium-v0")
        finally:
            os.environ.pop("MINARI_DATASETS_PATH")
            if kept is not None:
                os.environ["MINARI_DATASETS_PATH"] = kept
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(Path(root) / "cartpole" / "medium-v0", directory)


def _create_minari(id: str) -> None:
    import minari

    env = gym.make("CartPole-v1")
    minari.create_dataset_from_buffers(
        dataset_id=id,
        buffer=list(_cartpole_episodes(env)),
        env=env,
        eval_env=env,
        algorithm_name="scripted: linear balance with random pushes",
        author="The rlds developers",
        author_email="rlds@example.org",
        code_permalink="scripts/make_samples.py",
        description="CartPole balanced by a linear rule; every episode has its own share of random pushes.",
        ref_min_score=22.0,  # a random policy's mean over 1,000 episodes, rounded
        ref_max_score=500.0,
        num_episodes_average_score=1_000,
        data_format="hdf5",
    )


def _cartpole_episodes(env: gym.Env[Any, Any]) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(1)
    for k in range(CARTPOLE_EPISODES):
        seed, options = 2**63 + k, {"low": -0.05 - 0.01 * (k % 3), "high": 0.05 + 0.01 * (k % 3)}  # Minari's are uint64
        observation, _ = env.reset(seed=seed, options=options)
        e: dict[str, list[Any]] = {"observations": [observation], "actions": [], "rewards": []}
        e |= {"terminations": [], "truncations": [], "upright": [_upright(observation)]}
        random_pushes, ended = 0.065 * k, False
        while not ended:
            action = int(rng.integers(2)) if rng.random() < random_pushes else balance(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            step = (observation, action, float(reward), terminated, truncated, _upright(observation))
            for column, value in zip(e.values(), step, strict=True):
                column.append(value)
        infos = {"upright": e.pop("upright")}
        yield EpisodeBuffer(id=k, seed=seed, options=options, infos=infos, **e)


def _upright(observation: np.ndarray) -> np.bool_:
    return np.bool_(abs(observation[2]) < np.deg2rad(3))


def pump(observation: np.ndarray) -> float:
    """Force for MountainCarContinuous-v0: along the speed."""
    return float(0.9 if observation[1] >= 0 else -0.9)


def write_mountaincar(path: Path) -> None:
    """RoboHive's trace: (o, a) with the reward, done and infos on arrival at o; the last row has no action (NaN)."""
    env, rng = gym.make("MountainCarContinuous-v0", max_episode_steps=MOUNTAINCAR_HORIZON), np.random.default_rng(2)
    with h5py.File(path, "w", libver=("v110", "v110")) as f:  # small headers: 200 columns of 100 rows
        for trial in range(MOUNTAINCAR_TRIALS):
            noise = 0.2 if trial % 5 != 4 else 3.0  # every fifth trial does not arrive
            rows = list(_trial(env, rng, seed=trial, noise=noise))
            for key in rows[0]:
                column = np.stack([np.asarray(row[key]) for row in rows])
                f.create_dataset(f"Trial{trial}/{key}", data=column, compression="gzip", compression_opts=9)


def _trial(env: gym.Env[Any, Any], rng: np.random.Generator, *, seed: int, noise: float) -> Iterator[dict[str, Any]]:
    observation, _ = env.reset(seed=seed)
    reward, arrived, over, t = 0.0, False, False, 0
    while not over:
        action = np.clip(np.array([pump(observation) + noise * rng.standard_normal()]), -1, 1)
        yield _trace_row(t, observation, action, reward, arrived)
        observation, reward, arrived, truncated, _ = env.step(action)
        over, t = arrived or truncated, t + 1
    yield _trace_row(t, observation, np.full(1, np.nan), reward, arrived)


def _trace_row(t: int, observation: np.ndarray, action: np.ndarray, reward: float, arrived: bool) -> dict[str, Any]:
    x, time = observation.astype(np.float64), t / 30  # the environment's own 30 frames a second
    return {
        "time": time,
        "observations": x,
        "actions": action,
        "rewards": float(reward),
        "done": bool(arrived),
        "env_infos/time": time,
        "env_infos/rwd_dense": float(reward),
        "env_infos/rwd_sparse": float(arrived),
        "env_infos/solved": bool(arrived),
        "env_infos/done": bool(arrived),
        "env_infos/obs_dict/position": x[:1],
        "env_infos/obs_dict/velocity": x[1:],
        "env_infos/rwd_dict/effort": float(reward) - 100.0 * arrived,
        "env_infos/rwd_dict/goal": 100.0 * arrived,
        "env_infos/state/qpos": x[:1],
        "env_infos/state/qvel": x[1:],
    }


def write_all(directory: Path) -> list[Path]:
    """Write the three archives; the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    write_pendulum(directory / "pendulum-d4rl.hdf5")
    write_cartpole(directory / "cartpole-minari")
    write_mountaincar(directory / "mountaincar-robohive.h5")
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.suffix in (".hdf5", ".h5", ".json"))


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    for file in write_all(where):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{file.stat().st_size:8,} B  {digest}  {file.relative_to(where)}")
