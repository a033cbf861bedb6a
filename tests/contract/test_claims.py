"""A plain directory that claims to be a dataset of the home: nothing that is derived of it is taken for that one's."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import NameTaken
from rlds_cli.loader import Loader, ReturnToGo, Sequential

STEPS = 20


def dataset(home: Path) -> Dataset:
    episode = {
        "observation": np.zeros((STEPS + 1, 2), np.float32),
        "action": np.zeros((STEPS, 1), np.float32),
        "next": {"reward": np.ones(STEPS, np.float32), "terminated": True},
    }
    return rlds_cli.create("local/plain", [episode], home=home)


def stray(ds: Dataset, to: Path) -> Path:
    """A copy whose rewards are 9 instead of 1, with the manifest and the digests as they were."""
    shutil.copytree(ds.path, to)
    changed = 0
    for file in [to, *to.rglob("*")]:
        file.chmod(file.stat().st_mode | 0o200)
        if file.is_file() and "reward" in str(file) and "digests" not in str(file):
            data = file.read_bytes()
            one, nine = np.ones(STEPS, "<f4").tobytes(), np.full(STEPS, 9, "<f4").tobytes()
            changed += one in data
            file.write_bytes(data.replace(one, nine))
    assert changed == 1
    return to


def test_results_of_functions(home, tmp_path):
    ds = dataset(home)
    there = stray(ds, tmp_path / "stray")
    made = preprocess.run(rlds_cli.open_dataset(there), "scale_reward", "tenfold", args={"scale": 10})
    assert made.column("next/reward")[0] == 90
    with pytest.raises(NameTaken, match="place of the source"):
        preprocess.run(ds, "scale_reward", "tenfold", args={"scale": 10})
    made = preprocess.run(ds, "scale_reward", "tenfold", args={"scale": 10}, force=True)
    assert made.column("next/reward")[0] == 10


def test_packed_returns(home, tmp_path):
    ds = dataset(home)
    for where, reward in ((stray(ds, tmp_path / "stray"), 9), (ds, 1)):
        loader = Loader(where, 4, fields=["next/reward", ReturnToGo()], sampler=Sequential(), backend="numpy")
        first = next(iter(loader))
        assert first["next", "reward"].ravel()[0] == reward
        assert first["return_to_go"].ravel()[0] == reward * STEPS


def test_an_earlier_version_in_a_home_is_no_claim(home):
    first = dataset(home)
    made = preprocess.run(first, "scale_reward", "tenfold", args={"scale": 10})
    first.label({"note": ["good"]})
    again = preprocess.run(rlds_cli.open_dataset("local/plain#v1"), "scale_reward", "tenfold", args={"scale": 10})
    assert again.store.version_id == made.store.version_id
