"""The episodes of every sample dataset, written again by `create`, are the same dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlds_cli import create
from rlds_cli.make.importing import import_files

DATA = Path(__file__).parents[1] / "data"
SAMPLES = Path(__file__).parents[2] / "rlds_cli" / "samples"
QUICK = [
    "d4rl/hopper_random_layout-v2.hdf5",
    "d4rl/kitchen_layout-v0.hdf5",
    "dopamine/Breakout/1/replay_logs",
    "lerobot/image_v3",
    "lerobot/state_only_v3",
    "lerobot/video_v3",
    "minari/breakout/random_hdf5-v0",
    "minari/hopper/random_parquet-v0",
    "minari/pointmaze/umaze_arrow-v0",
    "minari/taxi/random_parquet-v0",
    "ogbench/pointmaze-medium-navigate-v0-val.npz",
    "ogbench/visual-cube-single-play-v0.npz",
    "openx/bridge_dataset",
    "robomimic/low_dim_layout.hdf5",
    "roboset/door_paths.h5",
    "vd4rl/main/walker_walk/random/64px",
]
MORE = [
    *(f"minari/{name}" for name in ("breakout/random_arrow-v0", "breakout/random_parquet-v0")),
    *(f"minari/hopper/random_{form}-v0" for form in ("arrow", "hdf5")),
    *(f"minari/pointmaze/umaze_{form}-v0" for form in ("hdf5", "parquet")),
    *(f"minari/taxi/random_{form}-v0" for form in ("arrow", "hdf5")),
    "d3rlpy/pendulum_random_v1.1.0.h5",
    "ogbench/pointmaze-medium-navigate-v0.npz",
    "ogbench/visual-cube-single-play-v0-val.npz",
    "vd4rl/main/walker_walk/random/84px",
]


def check(path: Path) -> None:
    ds = import_files([path], "local/source")
    assert len(ds.manifest.fields)
    again = create("local/again", (ds.episode(k) for k in range(ds.num_episodes)))
    assert again.fingerprint == ds.fingerprint
    assert again.num_transitions == ds.num_transitions


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", QUICK)
def test_the_fingerprint_comes_back(name: str) -> None:
    check(DATA / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_the_fingerprint_comes_back_of_other_forms(name: str) -> None:
    check(DATA / name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cartpole-minari", "mountaincar-robohive.h5", "pendulum-d4rl.hdf5"])
def test_the_fingerprint_of_a_sample_comes_back(name: str) -> None:
    check(SAMPLES / name)


@pytest.mark.parametrize("name", ["lerobot/video_v3", "lerobot/image_v3"])
def test_frames_stay_as_published_unless_they_are_changed_or_asked_for(name: str) -> None:
    ds = import_files([DATA / name], "local/source")
    field = next(f for f in ds.schema.values() if f.kind == "frames")
    some = create("local/some", (ds.episode(k) for k in (2, 0)))
    assert some.schema[field.name] == field
    raw = create("local/raw", (ds.episode(k) for k in (2, 0)), frames="raw")
    assert (raw.schema[field.name].kind, raw.schema[field.name].shape) == ("array", field.shape)
    for k, of in enumerate((2, 0)):
        for made in (some, raw):
            np.testing.assert_array_equal(made.episode(k)[field.name], ds.episode(of)[field.name])
    edited = [ds.episode(0), ds.episode(1)]
    for one in edited:
        one[field.name] = 255 - one[field.name]
        del one[f"next/{field.name}"]
    assert create("local/edited", edited).schema[field.name].kind == "array"
