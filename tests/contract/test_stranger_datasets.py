"""What else a stranger's dataset may hold: deep trees, many fields, settings of environments, spaces of any size."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli.base.files.safe import temporary_name
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.errors import ArchiveError, DamagedDataset, InvalidArgument, NoEnvironment
from rlds_cli.keep import reencoding
from rlds_cli.preprocess.builtin.fields import dtype_of
from rlds_cli.store import Manifest, open_store
from rlds_cli.ted import Space

CARTPOLE = "sample/cartpole-minari"


def say(dataset: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a manifest."""
    file = dataset / "zarr.json"
    document = json.loads(file.read_text())
    change(document["attributes"]["rlds"])
    file.chmod(0o644)
    file.write_text(json.dumps(document))
    return dataset


def test_settings_of_an_environment_that_it_does_not_take() -> None:
    ds = sample_dataset("cartpole-minari")
    for settings in ({"id": "x"}, {"nope": 1}, {"max_episode_steps": 3}):
        spec = {"id": "CartPole-v1", "kwargs": settings}
        say(ds.path, lambda m, spec=spec: m.update(env={"spec": spec}))  # type: ignore[misc]
        with pytest.raises(NoEnvironment, match="the settings that sample/cartpole-minari records"):
            rlds_cli.open_dataset(CARTPOLE).make_env()


def test_spaces_that_would_take_the_memory() -> None:
    box = {"type": "Box", "dtype": "float32", "shape": [1 << 13, 1 << 11], "low": 0, "high": 1}
    for space in ({**box, "shape": [1 << 27]}, {"type": "Tuple", "subspaces": [box, box]}):
        with pytest.raises(ArchiveError, match="elements is not built"):
            Space(space).build()


def test_a_range_of_episodes_that_is_none() -> None:
    path = sample_dataset("cartpole-minari").path
    for episodes in ([None, None], [5, 2], [3, 3]):
        say(path, lambda m, e=episodes: m.update(options={"portion": {"episodes": e}}))  # type: ignore[misc]
        with pytest.raises(DamagedDataset, match="options: portion: episodes"):
            Manifest.read(path)
    say(path, lambda m: m.update(options={"portion": {"episodes": [5, None]}}))
    assert Manifest.read(path).options == {"portion": {"episodes": [5, None]}}


def test_a_tree_that_is_too_deep() -> None:
    path = sample_dataset("cartpole-minari").path
    before = size_on_disk(path)
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with pytest.raises(DamagedDataset, match="more than 600 deep"):
        open_store(path)
    assert size_on_disk(path) == before
    subprocess.run(["rm", "-rf", path / "d"], check=True)  # too deep for shutil.rmtree


def test_a_damaged_list_of_digests_is_not_made_right() -> None:
    path = sample_dataset("cartpole-minari").path
    listing = path / "digests" / "zarr.json"
    listing.chmod(0o644)
    listing.write_text(listing.read_text() + " ")
    with pytest.raises(DamagedDataset, match="is not what the manifest says"):
        reencoding.reencode(CARTPOLE, to="zarr")


def test_dtypes_and_names_that_nothing_has() -> None:
    for text in ("(100000,100000)f8", ",,"):  # NumPy evaluates the second one
        with pytest.raises(InvalidArgument, match="not a numeric dtype"):
            dtype_of(text)
    assert temporary_name(os.fsdecode(b"\xff\x1b")).startswith(".\x1b.")
