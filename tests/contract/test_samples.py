"""The sample archives are what their layouts promise, and what scripts/make_samples.py writes."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "rlds_cli" / "samples"
HDF5 = ("pendulum-d4rl.hdf5", "cartpole-minari/data/main_data.hdf5", "mountaincar-robohive.h5")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_samples", ROOT / "scripts" / "make_samples.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrays(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("samples")
    load_script().write_all(directory)
    return directory


@pytest.mark.parametrize("name", HDF5)
def test_the_script_writes_the_committed_arrays(name: str, regenerated: Path) -> None:
    committed, fresh = arrays(SAMPLES / name), arrays(regenerated / name)
    assert sorted(committed) == sorted(fresh)
    for key, value in committed.items():
        assert (np.shape(value), np.asarray(value).dtype) == (np.shape(fresh[key]), np.asarray(fresh[key]).dtype), key
        if np.asarray(value).dtype.kind == "f":  # the last bits of sin and cos differ between processors
            np.testing.assert_allclose(value, fresh[key], rtol=1e-4, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(value, fresh[key], err_msg=key)


def test_they_are_small_and_nothing_else_lies_there(regenerated: Path) -> None:
    there = {p.relative_to(SAMPLES).as_posix(): p.stat().st_size for p in SAMPLES.rglob("*") if p.is_file()}
    assert set(there) == {*HDF5, "cartpole-minari/data/metadata.json"}
    assert max(there.values()) < 400_000


def test_pendulum_is_d4rl_v2_with_an_open_tail() -> None:
    a = arrays(SAMPLES / "pendulum-d4rl.hdf5")
    assert a["observations"].shape == (5100, 3) and a["actions"].shape == (5100, 1)
    assert np.flatnonzero(a["timeouts"]).tolist() == list(range(199, 5100, 200))  # 100 rows follow the last one
    assert not a["terminals"].any()
    inside = ~a["timeouts"][:-1]
    np.testing.assert_array_equal(a["next_observations"][:-1][inside], a["observations"][1:][inside])
    np.testing.assert_allclose(a["observations"][:, 0], np.cos(a["infos/qpos"][:, 0]), atol=1e-6)
    np.testing.assert_allclose(a["observations"][:, 2], a["infos/qvel"][:, 0], atol=1e-6)
    angle = (a["infos/qpos"][:, 0] + np.pi) % (2 * np.pi) - np.pi
    reward = -(angle**2 + 0.1 * a["infos/qvel"][:, 0] ** 2 + 0.001 * a["actions"][:, 0] ** 2)
    np.testing.assert_allclose(a["rewards"], reward, atol=1e-4)  # Pendulum-v1's own formula


@pytest.mark.thorough
def test_pendulum_log_probs_integrate_to_one() -> None:
    log_prob = load_script()._log_prob
    action = np.linspace(-2, 2, 20_001)[1:-1]
    density = np.exp([log_prob(float(np.arctanh(a / 2)), 0.4, 0.3) for a in action])
    assert np.trapezoid(density, action) == pytest.approx(1.0, abs=1e-4)


def test_cartpole_replays_from_its_seeds_and_options() -> None:
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        assert len(f) == 12
        env = gym.make("CartPole-v1")
        for episode in (f["episode_0"], f["episode_10"]):
            options = {key: float(episode.attrs[f"options/{key}"]) for key in ("low", "high")}
            observation, _ = env.reset(seed=int(episode.attrs["seed"]), options=options)
            replayed = [observation] + [env.step(int(a))[0] for a in episode["actions"]]
            np.testing.assert_allclose(episode["observations"][()], replayed, atol=1e-5)
        assert int(f["episode_0"].attrs["seed"]) >= 2**63


@pytest.mark.thorough
def test_cartpole_opens_in_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    shutil.copytree(SAMPLES / "cartpole-minari", tmp_path / "cartpole" / "medium-v0")
    dataset = minari.load_dataset("cartpole/medium-v0")
    ends = [(len(e.actions), bool(e.terminations[-1]), bool(e.truncations[-1])) for e in dataset.iterate_episodes()]
    assert dataset.total_steps == sum(length for length, _, _ in ends)
    assert all(terminated != truncated for _, terminated, truncated in ends)
    assert {terminated for _, terminated, _ in ends} == {True, False}
    assert all(truncated == (length == 500) for length, _, truncated in ends)


@pytest.mark.thorough
def test_mountaincar_is_a_robohive_trace() -> None:
    with h5py.File(SAMPLES / "mountaincar-robohive.h5") as f:
        assert sorted(f) != [f"Trial{k}" for k in range(12)]  # Trial10 sorts before Trial2
        assert set(f) == {f"Trial{k}" for k in range(12)}
        for k in range(12):
            trial = f[f"Trial{k}"]
            action, observation, reward = (trial[key][()] for key in ("actions", "observations", "rewards"))
            assert np.isnan(action[-1]).all() and not np.isnan(action[:-1]).any()
            done = trial["done"][()]
            assert done[-1] == (k % 5 != 4) and not done[:-1].any()
            assert done[-1] == (observation[-1, 0] >= 0.45)  # the environment's goal
            np.testing.assert_allclose(reward[1:], 100.0 * done[1:] - 0.1 * action[:-1, 0] ** 2, atol=1e-6)
            np.testing.assert_array_equal(trial["env_infos/obs_dict/position"][()], observation[:, :1])
