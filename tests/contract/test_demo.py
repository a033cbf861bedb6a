"""The demonstration and the examples run, and what they show is so."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "rlds_cli" / "samples"
EXAMPLES = ROOT / "examples"
PENDULUM, CARTPOLE, MOUNTAINCAR = "sample/pendulum-d4rl", "sample/cartpole-minari", "sample/mountaincar-robohive"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    return tmp_path


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", output)]


@pytest.mark.slow
def test_the_demo(here: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    output = run("sh", "examples/demo.sh")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 80  # 30 to 45 on a small machine
    script = (EXAMPLES / "demo.sh").read_text()
    commands = re.findall(r'^run "(.*)"$', script, re.M)
    assert len(commands) >= 6
    positions = [output.index(f"\n$ {c}\n") for c in commands]
    assert positions == sorted(positions)
    continuous, discrete = (losses(part) for part in output.split("behaviour_cloning.py")[1:])
    assert continuous[-1] < 0.75 * continuous[0]
    assert discrete[-1] < discrete[0] < 0.7  # a coin's cross entropy is 0.693
    assert re.findall(r"^step +500 .* return +500\.0 ", output, re.M)  # CartPole ends after 500 steps
    for shown in (PENDULUM, f"{PENDULUM}@normalise", CARTPOLE, MOUNTAINCAR):
        assert shown in output
    again = run("sh", "examples/demo.sh")  # everything is there: nothing is made twice
    assert losses(again) == losses(output)


@pytest.mark.slow
@pytest.mark.parametrize("id", [PENDULUM, CARTPOLE, MOUNTAINCAR])
def test_behaviour_cloning_of_any_dataset(here: Path, id: str) -> None:
    found = losses(run(sys.executable, "examples/behaviour_cloning.py", id, "--steps", "400"))
    assert len(found) == 8 and found[-1] < 0.95 * found[0]


@pytest.mark.slow
def test_behaviour_cloning_of_nested_observations_and_shifted_choices(here: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(8):
        x, goal = rng.normal(size=(65, 2)), rng.normal(size=(65, 1))
        action = 5 + (x[:-1, 0] > goal[:-1, 0]) + (x[:-1, 1] > 0)  # three choices: 5, 6, 7
        episodes.append({"observation": {"x": x, "goal": goal}, "action": action})
    rlds_cli.create("local/nested", episodes)
    output = run(sys.executable, "examples/behaviour_cloning.py", "local/nested", "--steps", "240")
    assert "3 inputs, 3 choices" in output
    assert losses(output)[-1] < 0.5 * losses(output)[0]


@pytest.mark.thorough
def test_normalise(here: Path) -> None:
    rlds_cli.download(PENDULUM)
    ds = preprocess.run(PENDULUM, "examples/normalise.py:normalise")
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        raw = f["observations"][()]
        action = f["actions"][()]
    mean, std = raw.astype(np.float64).mean(0), raw.astype(np.float64).std(0)
    assert ds.id == f"{PENDULUM}@normalise"
    start = int(ds.episodes["start"][3])
    expected = ((raw[600:800] - mean) / (std + 1e-3)).astype(np.float32)
    np.testing.assert_allclose(ds.column("observation")[start : start + 200], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ds.column("observation_raw")[start : start + 200], raw[600:800])
    np.testing.assert_array_equal(ds.column("action")[start : start + 200], action[600:800])
    assert ds.schema["observation"].placement == ds.schema["observation_raw"].placement == "both"
    np.testing.assert_allclose(ds.stats["observation"].std, std / (std + 1e-3), rtol=1e-4)


@pytest.mark.thorough
def test_filter_episodes(here: Path) -> None:
    rlds_cli.download(CARTPOLE)
    ds = preprocess.run(CARTPOLE, "examples/filter_episodes.py:good_episodes", args={"at_least": 400.0})
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        kept = [f[f"episode_{k}/observations"][()] for k in range(12) if f[f"episode_{k}/rewards"][()].sum() >= 400]
    assert 0 < len(kept) < 12 and ds.num_episodes == len(kept)
    for k, observation in enumerate(kept):
        start, length = int(ds.episodes["start"][k]), int(ds.episodes["length"][k])
        np.testing.assert_array_equal(ds.column("observation")[start : start + length + 1], observation)


def test_filter_episodes_from_the_command_line(here: Path) -> None:
    rlds_cli.download(PENDULUM)
    how = ("--fn", "examples/filter_episodes.py:good_episodes", "--arg", "at_least=-130", "--name", "good")
    run("rlds", "preprocess", PENDULUM, *how)
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        returns = [f["rewards"][a : a + 200].sum(dtype=np.float64) for a in range(0, 5100, 200)]
    ds = rlds_cli.open_dataset(f"{PENDULUM}@good")
    np.testing.assert_allclose(ds.episodes["total_reward"], [x for x in returns if x >= -130], rtol=1e-6)


@pytest.mark.slow
def test_obs_norm(here: Path) -> None:
    output = run(sys.executable, "examples/obs_norm.py", PENDULUM)
    ds = rlds_cli.open_dataset(f"{PENDULUM}@obs_norm")
    assert ds.id in output
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        expected = np.linalg.norm(f["observations"][200:400], axis=-1)
    start = int(ds.episodes["start"][1])
    np.testing.assert_allclose(ds.column("obs_norm")[start : start + 200].ravel(), expected, rtol=1e-6)
