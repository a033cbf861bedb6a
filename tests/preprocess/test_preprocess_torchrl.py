"""Functions written for TorchRL's ``preprocess`` run unchanged; the values are those of the archives."""

from pathlib import Path

import h5py
import minari_archives
import numpy as np
import pytest
import torch
from gymnasium import spaces
from made_once import sample_dataset
from minari.data_collector import EpisodeBuffer
from tensordict import TensorDict

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.make.importing import import_files

SAMPLES = Path(rlds_cli.__file__).parent / "samples"
LENGTHS = [7, 4, 9]
GOALS = ("observation", "achieved_goal", "desired_goal")  # in the order of the example; CatTensors sorts them
SIZES = {"observation": 4, "achieved_goal": 2, "desired_goal": 2}


@pytest.fixture
def maze(tmp_path, monkeypatch):
    """A Minari dataset like D4RL/pointmaze: observations are dicts, infos have qpos and qvel."""
    rng = np.random.default_rng(0)

    def some(t, size):
        return rng.standard_normal((t, size))

    buffers = [
        EpisodeBuffer(
            id=i,
            observations={name: some(t + 1, size) for name, size in SIZES.items()},
            actions=some(t, 2).astype(np.float32),
            rewards=some(t, 1)[:, 0].tolist(),
            terminations=[False] * t,
            truncations=[k == t - 1 for k in range(t)],
            infos={"qpos": some(t + 1, 3), "qvel": some(t + 1, 3)},
        )
        for i, t in enumerate(LENGTHS)
    ]
    box = {name: spaces.Box(-np.inf, np.inf, (size,), np.float64) for name, size in SIZES.items()}
    action = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    data = minari_archives.write(tmp_path, buffers, spaces.Dict(box), action, monkeypatch=monkeypatch)
    return import_files(data.parent, "local/maze"), data / "main_data.hdf5"


def concatenated(file, episode):
    """The observations of an episode of the archive, next to each other: [T+1, 8]."""
    with h5py.File(file) as f:
        return np.concatenate([f[f"episode_{episode}/observations/{name}"][()] for name in sorted(GOALS)], -1)


# The keys that the example selects.
KEYS = (
    "action",
    "episode",
    ("next", "done"),
    ("next", "observation"),
    ("next", "reward"),
    ("next", "terminated"),
    ("next", "truncated"),
    "observation",
)


class Cat:
    """What ``torchrl.envs.CatTensors`` does, in the words of tensordict: the parts go, and are one under a new key."""

    def __init__(self, in_keys, out_key):
        self.in_keys, self.out_key = sorted(in_keys), out_key

    def __call__(self, td):
        whole = torch.cat([td.get(key) for key in self.in_keys], -1)
        return td.exclude(*self.in_keys).set(self.out_key, whole)


def composition(cat):
    """The example's two transforms, one for observations and one for the next ones."""
    now = cat(in_keys=[("observation", name) for name in GOALS], out_key="obs")
    after = cat(in_keys=[("next", "observation", name) for name in GOALS], out_key=("next", "obs"))
    return now, after


def ours():
    transforms = composition(Cat)

    def func(td):
        td = td.select(*KEYS)
        for transform in transforms:
            td = transform(td)
        return td

    return func


def torchrls():
    envs = pytest.importorskip("torchrl.envs", reason="make bench installs TorchRL")
    t = envs.Compose(*composition(envs.CatTensors))

    def func(td):
        td = td.select(*KEYS)
        td = t(td)
        return td  # noqa: RET504  (as the example has it)

    return func


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
@pytest.mark.parametrize("unit", ["episode", "batch", "step"])
@pytest.mark.parametrize("made_by", [ours, torchrls])
def test_the_observation_keys_of_a_minari_dataset_are_concatenated(maze, made_by, unit):
    ds, file = maze
    made = preprocess.run(ds, made_by(), "cat", unit=unit, arrays="tensordict")
    assert set(made.schema) == {"action", "next/reward", "next/terminated", "next/truncated", "obs"}
    assert (made.schema["obs"].dtype, made.schema["obs"].placement) == ("float64", "both")
    for k, t in enumerate(LENGTHS):
        truth = concatenated(file, k)
        start = made.episodes["start"][k]
        np.testing.assert_array_equal(made.gather("obs", np.arange(start, start + t + 1)), truth)
        got = made.episode(k)
        with h5py.File(file) as f:
            np.testing.assert_array_equal(got["action"], f[f"episode_{k}/actions"][()])
            np.testing.assert_array_equal(got["next", "reward"].reshape(-1), f[f"episode_{k}/rewards"][()])
    assert set(made.manifest.shared) == {"action", "next/reward", "next/terminated", "next/truncated"}


@pytest.mark.thorough
def test_infos_next_to_observations(maze):
    """As TorchRL's own test of preprocess has it."""
    envs = pytest.importorskip("torchrl.envs", reason="make bench installs TorchRL")
    keys = [("observation", "observation"), ("info", "qpos"), ("info", "qvel")]
    t = envs.Compose(
        envs.CatTensors(in_keys=keys, out_key="data"),
        envs.CatTensors(in_keys=[("next", *key) for key in keys], out_key=("next", "data")),
    )
    ds, file = maze
    made = preprocess.run(ds, lambda data: t(data), "data", arrays="tensordict")
    assert made.schema["data"].shape == (10,) and made.schema["data"].placement == "both"
    with h5py.File(file) as f:
        e = f["episode_2"]
        truth = np.concatenate([e["infos/qpos"], e["infos/qvel"], e["observations/observation"]], -1)
    start = made.episodes["start"][2]
    np.testing.assert_array_equal(made.gather("data", np.arange(start, start + LENGTHS[2] + 1)), truth)


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", ["episode", "batch", "step"])
def test_the_norm_of_roboset_observations(unit):
    def func(data):
        return data.set("obs_norm", data.get("observation").norm(dim=-1))

    ds = sample_dataset("mountaincar-robohive")
    made = preprocess.run(ds, func, "norm", unit=unit, arrays="tensordict")
    with h5py.File(SAMPLES / "mountaincar-robohive.h5") as f:
        trials = sorted(f, key=lambda name: int(name.removeprefix("Trial")))
        assert made.num_episodes == len(trials)
        for k, trial in enumerate(trials):
            truth = np.linalg.norm(f[trial]["observations"][()], axis=-1)
            got = made.episode(k)["obs_norm"].reshape(-1)
            np.testing.assert_allclose(got, truth[: len(got)], rtol=1e-6)
            assert len(got) == made.episodes["length"][k] >= len(truth) - 1
    assert set(ds.schema) == set(made.manifest.shared)


# -- the number of the episode, which TorchRL's datasets have


@pytest.mark.thorough
def test_numbers_are_of_the_source_and_a_field_only_where_they_are_changed(maze):
    ds, _ = maze
    chosen = ds.select(episodes=[2, 0])
    seen = []

    def look(td):
        assert isinstance(td, TensorDict)
        seen.append(td["episode"].tolist())
        return td

    for unit in ("episode", "batch"):
        assert "episode" not in preprocess.run(chosen, look, unit, unit=unit, arrays="tensordict", jobs=0).schema
    assert [2] * 9 in seen and [0] * 7 in seen and [2] * 9 + [0] * 7 in seen
    for unit in ("episode", "batch", "step"):
        made = preprocess.run(
            chosen, lambda td: td.set("episode", td["episode"] + 10), f"more-{unit}", unit=unit, arrays="tensordict"
        )
        assert made.episode(0)["episode"].tolist() == [12] * 9 and made.schema["episode"].dtype == "int64"
    some = preprocess.run(ds, lambda td: td[td["episode"] > 0], "some", arrays="tensordict")
    assert some.episodes["length"].tolist() == LENGTHS[1:] and "episode" not in some.schema


def test_a_field_of_the_source_of_that_name_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("named.npz", observation=np.zeros((3, 1)), action=np.zeros((3, 1)), episode=np.array([7, 7, 7]))
    ds = rlds_cli.make.importing.import_files("named.npz", "local/named")
    made = preprocess.run(ds, lambda td: td.set("twice", td["episode"] * 2), "twice", arrays="tensordict")
    assert made.episode(0)["twice"].reshape(-1).tolist() == [14, 14, 14]
    assert made.episode(0)["episode"].reshape(-1).tolist() == [7, 7, 7]
