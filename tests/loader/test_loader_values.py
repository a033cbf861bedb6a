"""Batches against the packaged archives themselves, read with h5py alone: every field, at every sampled step."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli.loader import (
    Episode,
    Loader,
    Offsets,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.loader.storage import blocks

SAMPLES = Path(__file__).parents[2] / "rlds_cli" / "samples"
FLAGS = ("next/reward", "next/terminated", "next/truncated")
OFFSETS = {"observation": (-2, 0, 1), "action": (0, 1, 2, 3), "next/reward": (0, 5), "info": (-1, 0)}
WINDOWS = [
    Transition(),
    Transition(3, 0.9),
    Slice(7, before=2, after=4, stride=3),
    Slice(4),
    Offsets(OFFSETS),
    Episode(150, bucket=4),
]
SAMPLERS = [
    Shuffled(),
    Sequential(),
    Shuffled(block=100, live=3),
    Uniform(),
    Uniform(by="episode"),
    Weighted("length"),
    Prioritized(),
]


@dataclass
class Archive:
    """Episodes as they stand in a file: T rows of what belongs to a step, T+1 of what is known at both its ends."""

    episodes: list[dict[str, np.ndarray]]

    def __post_init__(self):
        self.names = list(self.episodes[0])
        self.values = {name: np.concatenate([e[name] for e in self.episodes]) for name in self.names}
        self.rows = {name: np.array([len(e[name]) for e in self.episodes]) for name in self.names}
        self.length = self.rows["action"]

    def at(self, name, episode, step):
        """Values at steps of episodes, the nearest row where there is none; scalar floats and flags [..., 1]."""
        rows = self.rows[name]
        starts = np.cumsum(rows) - rows
        values = self.values[name][starts[episode] + np.clip(step, 0, rows[episode] - 1)]
        scalar = self.values[name].ndim == 1 and (name in FLAGS or values.dtype.kind == "f")
        return values[..., None] if scalar else values

    def both(self, name):
        return (self.rows[name] > self.length).all()


def pendulum():
    """D4RL: rows end to end, cut at timeouts, with the next observation of every row."""
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        a = {name: f[name][()] for name in ("observations", "next_observations", "actions", "rewards", "terminals")}
        infos = {f"info/{name}": values[()] for name, values in f["infos"].items()}
        timeouts = f["timeouts"][()]
    ends = [*(np.flatnonzero(timeouts | a["terminals"]) + 1).tolist(), len(timeouts)]  # the file stops in an episode
    episodes = []
    for start, end in itertools.pairwise([0, *ends]):
        rows = slice(start, end)
        truncated = timeouts[rows].copy()
        truncated[-1] |= end == len(timeouts)
        episodes.append(
            {
                "observation": np.concatenate([a["observations"][rows], a["next_observations"][end - 1 : end]]),
                "action": a["actions"][rows],
                "next/reward": a["rewards"][rows],
                "next/terminated": a["terminals"][rows],
                "next/truncated": truncated,
                **{name: values[rows] for name, values in infos.items()},
            }
        )
        assert np.array_equal(a["next_observations"][start : end - 1], a["observations"][start + 1 : end])
    return Archive(episodes)


def cartpole():
    """Minari: a group an episode, T+1 observations and infos."""
    episodes = []
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        for k in range(len(f)):
            g = f[f"episode_{k}"]
            episodes.append(
                {
                    "observation": g["observations"][()],
                    "action": g["actions"][()],
                    "next/reward": g["rewards"][()],
                    "next/terminated": g["terminations"][()],
                    "next/truncated": g["truncations"][()],
                    **{f"info/{name}": values[()] for name, values in g["infos"].items()},
                }
            )
    return Archive(episodes)


def mountaincar():
    """RoboHive's recorder: the last row is the final observation, rewards and flags came with arriving at a row."""
    episodes = []
    with h5py.File(SAMPLES / "mountaincar-robohive.h5") as f:
        for k in range(len(f)):
            g = f[f"Trial{k}"]
            infos: dict[str, np.ndarray] = {}
            g["env_infos"].visititems(
                lambda name, x, into=infos: into.update({f"info/{name}": x[()]} if isinstance(x, h5py.Dataset) else {})
            )
            done = g["done"][()][1:]
            truncated = np.zeros(len(done), bool)
            truncated[-1] = not done[-1]
            episodes.append(
                {
                    "observation": g["observations"][()],
                    "action": g["actions"][()][:-1],
                    "time": g["time"][()],
                    "next/reward": g["rewards"][()][1:],
                    "next/terminated": done,
                    "next/truncated": truncated,
                    **infos,
                }
            )
    return Archive(episodes)


READ = {
    "sample/pendulum-d4rl": pendulum,
    "sample/cartpole-minari": cartpole,
    "sample/mountaincar-robohive": mountaincar,
}


@pytest.fixture(scope="module", params=READ)
def sample(request, tmp_path_factory):
    return rlds_cli.download(request.param, home=tmp_path_factory.mktemp("home")), READ[request.param]()


@pytest.fixture(params=["packed rows", "zarr"])
def kept(request, sample, tmp_path, monkeypatch):
    """Small datasets packed as large ones are, or compressed."""
    ds, archive = sample
    if request.param == "zarr":
        return rlds_cli.download(ds.id, storage="zarr", home=tmp_path), archive
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    return ds, archive


def n_steps(archive, episode, step, n, gamma):
    """Sums of rewards and how many, one transition at a time."""
    sums, spans = [], []
    for k, t in zip(episode.tolist(), step.tolist(), strict=True):
        e = archive.episodes[k]
        total, span = 0.0, 0
        while span < n and t + span < len(e["action"]):
            total += gamma**span * float(e["next/reward"][t + span])
            span += 1
            if e["next/terminated"][t + span - 1] or e["next/truncated"][t + span - 1]:
                break
        sums.append(total)
        spans.append(span)
    return np.array(sums), np.array(spans)


def check_n_steps(b, archive, window):
    """What came of the last step summed up; everything else is that of the first."""
    sums, spans = n_steps(archive, b["episode"], b["step"], window.n_step, window.gamma)
    np.testing.assert_allclose(b["next/reward"][:, 0], sums, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(b["next/discount"][:, 0], window.gamma**spans, rtol=1e-6)
    for name in archive.names:
        if name != "next/reward":
            late = spans - 1 if name in FLAGS else 0
            np.testing.assert_array_equal(b[name], archive.at(name, b["episode"], b["step"] + late), err_msg=name)
        if archive.both(name):
            after = archive.at(name, b["episode"], b["step"] + spans)
            np.testing.assert_array_equal(b[f"next/{name}"], after, err_msg=name)


def check_values(b, archive, window):
    given = {name: OFFSETS["info"] if name.startswith("info/") else OFFSETS.get(name) for name in archive.names}
    for name in archive.names:
        episode, step = b["episode"], b["step"]
        if isinstance(window, Offsets) and given[name] is not None:
            episode, step = episode[:, None], step[:, None] + np.array(given[name])
        np.testing.assert_array_equal(b[name], archive.at(name, episode, step), err_msg=name)
        assert b[name].dtype == archive.values[name].dtype, name
        if archive.both(name):
            np.testing.assert_array_equal(b[f"next/{name}"], archive.at(name, episode, step + 1), err_msg=name)
    if not isinstance(window, Offsets):
        done = archive.at("next/terminated", b["episode"], b["step"])
        done = done | archive.at("next/truncated", b["episode"], b["step"])
        np.testing.assert_array_equal(b["next/done"], done)


@pytest.mark.thorough
@pytest.mark.sampled(18)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: repr(s).split(", eps")[0])
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_batches_hold_the_archives_own_values(sample, window, sampler):
    check(*sample, window, sampler)


@pytest.mark.thorough
@pytest.mark.sampled(6)
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_packed_and_compressed_ones_do_too(kept, window):
    check(*kept, window, Shuffled())


def check(ds, archive, window, sampler):
    assert set(ds.schema) == set(archive.names)
    assert ds.episodes["length"].tolist() == archive.length.tolist()
    everything = [*archive.names, *(f"next/{name}" for name in archive.names if archive.both(name))]
    loader = Loader(
        ds,
        64,
        window=window,
        sampler=sampler,
        fields=[..., "episode", "step", *everything],
        backend="numpy",
        dtype=None,
    )
    assert set(everything) <= set(loader.fields)
    summed = isinstance(window, Transition) and window.n_step > 1
    seen = []
    for b in itertools.islice(loader, 12 if sampler.endless else None):
        (check_n_steps if summed else check_values)(b, archive, window)
        assert "next/observed" not in b  # all of them have final observations
        seen += zip(b["episode"].ravel().tolist(), b["step"].ravel().tolist(), strict=True)
    if not sampler.endless and not isinstance(window, Episode) and window != Slice(4):
        assert set(seen) == {(k, t) for k, length in enumerate(archive.length) for t in range(length)}


@pytest.mark.thorough
def test_returns_to_go_are_sums_of_the_archives_rewards(sample):
    ds, archive = sample
    options = {"backend": "numpy", "dtype": None, "sampler": Shuffled()}
    extra = ("episode", "step", ReturnToGo(0.99, 0.1))
    for b in Loader(ds, 256, window=Slice(8, after=7), fields=[..., *extra], **options):
        for k, t, value in zip(b["episode"][:, 0], b["step"][:, 0], b["return_to_go"][:, 0, 0], strict=True):
            e = archive.episodes[k]
            expected = 0.0
            for reward, over in reversed([*zip(e["next/reward"][t:], e["next/terminated"][t:], strict=True)]):
                expected = float(reward) + (0.0 if over else 0.99 * expected)
            assert value == pytest.approx(0.1 * expected, rel=1e-9, abs=1e-12)


@pytest.mark.thorough
def test_casts_are_numpys_own(sample):
    ds, archive = sample
    for dtype in ("float32", "float64", "float16"):
        b = next(
            iter(Loader(ds, 200, sampler=Shuffled(), dtype=dtype, fields=[..., "episode", "step"], backend="numpy"))
        )
        for name in ("observation", "next/reward"):
            values = archive.at(name, b["episode"], b["step"])
            via = values.astype(np.float32) if dtype == "float16" else values
            np.testing.assert_array_equal(b[name], via.astype(dtype))
            assert b[name].dtype == dtype
