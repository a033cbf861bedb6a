"""Batches against the archives themselves, read with h5py and the real minari library."""

import h5py
import minari
import numpy as np
import pytest
from conftest import DATA, write_d4rl

from rlds_cli.loader import Loader, Shuffled, Slice, Transition
from rlds_cli.make.importing import import_files

WHERE = ("episode", "step")
OPTIONS = {"backend": "numpy", "dtype": None, "sampler": Shuffled(), "fields": [..., *WHERE]}


def check_d4rl(ds, columns):
    """Row r of an episode that starts at row s of the file is its step r - s."""
    seen = []
    for b in Loader(ds, 64, **OPTIONS):
        row = ds.episodes["row"][b["episode"]] + b["step"]
        np.testing.assert_array_equal(b["observation"], columns["observations"][row])
        np.testing.assert_array_equal(b["action"], columns["actions"][row])
        np.testing.assert_array_equal(b["next", "reward"][:, 0], columns["rewards"].ravel()[row])
        np.testing.assert_array_equal(b["next", "terminated"][:, 0], columns["terminals"].ravel()[row].astype(bool))
        last = b["step"] == ds.episodes["length"][b["episode"]] - 1
        if "next_observations" in columns:
            np.testing.assert_array_equal(b["next", "observation"], columns["next_observations"][row])
        else:
            np.testing.assert_array_equal(b["next", "observation"][~last], columns["observations"][row[~last] + 1])
            assert b["next", "terminated"][last].all() and not b["next", "observed"][last].any()
        seen += row.tolist()
    return sorted(seen)


@pytest.mark.thorough
def test_d4rl_with_next_observations(tmp_path):
    columns = write_d4rl(tmp_path / "a-v2.hdf5", [40, 7, 1, 120, 33])
    ds = import_files(tmp_path / "a-v2.hdf5", "local/a")
    assert check_d4rl(ds, columns) == list(range(201))


@pytest.mark.thorough
def test_d4rl_without_next_observations_leaves_out_what_is_not_known(tmp_path):
    lengths = [40, 7, 1, 120, 33]
    columns = write_d4rl(tmp_path / "a-v0.hdf5", lengths, next_observations=False)
    ds = import_files(tmp_path / "a-v0.hdf5", "local/a")
    timed_out = np.cumsum(lengths)[1::2] - 1
    assert check_d4rl(ds, columns) == sorted(set(range(201)) - set(timed_out.tolist()))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hopper_random_layout-v2", "kitchen_layout-v0"])
def test_d4rl_samples(name):
    path = DATA / "d4rl" / f"{name}.hdf5"
    with h5py.File(path) as f:
        columns = {k: f[k][:] for k in f if isinstance(f[k], h5py.Dataset)}
    ds = import_files(path, f"local/{name}")
    assert len(check_d4rl(ds, columns)) == ds.num_transitions == len(ds)


def leaves(values, name):
    if isinstance(values, dict):
        return [leaf for k, v in values.items() for leaf in leaves(v, f"{name}/{k}")]
    return [(name, np.asarray(values))]


@pytest.mark.thorough
@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", [Transition(), Slice(4, before=1, after=2)])
@pytest.mark.parametrize("name", ["taxi/random", "hopper/random", "breakout/random", "pointmaze/umaze"])
def test_minari_samples(name, window):
    path = DATA / "minari" / f"{name}_hdf5-v0"
    ds = import_files(path, "local/m")
    episodes = list(minari.MinariDataset(path / "data").iterate_episodes())
    for _, b in zip(range(20), Loader(ds, 8, window=window, **OPTIONS), strict=False):
        episode, step = b["episode"].reshape(8, -1), b["step"].reshape(8, -1)
        flat = {n: x.reshape(*episode.shape, *x.shape[b["step"].ndim :]) for n, x in b.leaves()}
        for i, j in np.ndindex(*episode.shape):
            e, t = episodes[episode[i, j]], step[i, j]
            for key, values in leaves(e.observations, "observation"):
                np.testing.assert_array_equal(flat[key][i, j], values[t])
                np.testing.assert_array_equal(flat[f"next/{key}"][i, j], values[t + 1])
            for key, values in leaves(e.actions, "action"):
                np.testing.assert_array_equal(flat[key][i, j], values[t])
            assert flat["next/reward"][i, j, 0] == e.rewards[t]
            assert flat["next/terminated"][i, j, 0] == e.terminations[t]


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Slice(4, before=1, after=2)])
def test_roboset_sample(window):
    """Rewards and flags came of the action of their row; trials sort as numbers; the last next observation is none."""
    path = DATA / "roboset/door_paths.h5"
    keys = ("observations", "actions", "rewards", "done")
    with h5py.File(path) as f:
        trials = [{key: f[name][key][()] for key in keys} for name in sorted(f, key=lambda name: int(name[5:]))]
    ds = import_files(path, "local/door")
    assert ds.episodes["length"].tolist() == [len(trial["actions"]) for trial in trials]
    seen = set()
    for b in Loader(ds, 16, window=window, **OPTIONS):
        shape = b["step"].shape
        for at in np.ndindex(*shape):
            trial, t = trials[b["episode"][at]], b["step"][at]
            assert np.array_equal(b["observation"][at], trial["observations"][t])
            assert np.array_equal(b["action"][at], trial["actions"][t])
            assert b["next/reward"][at][0] == trial["rewards"][t] and b["next/terminated"][at][0] == trial["done"][t]
            after = trial["observations"][min(t + 1, len(trial["actions"]) - 1)]
            assert np.array_equal(b["next/observation"][at], after)
            if "next/observed" in b:
                assert b["next/observed"][at][0] == (t + 1 < len(trial["actions"]))
            seen.add((b["episode"][at], t))
    last = {(k, len(trial["actions"]) - 1) for k, trial in enumerate(trials) if not trial["done"][-1]}
    every = {(k, t) for k, trial in enumerate(trials) for t in range(len(trial["actions"]))}
    assert seen == (every - last if isinstance(window, Transition) else every)
