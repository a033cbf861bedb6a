"""Without a umask, nothing that rlds makes is for everybody to write: homes, datasets, locks, caches, work, pushes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import run_rlds
from loader_data import create, episode
from test_remote_store import film, grown

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.loader import Loader


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_all(top: Path) -> list[str]:
    """What everybody may write, below a directory and itself."""
    every = [top, *top.rglob("*")]
    found = [(p, p.lstat().st_mode) for p in every]
    return [str(p.relative_to(top)) for p, mode in found if mode & stat.S_IWOTH and not stat.S_ISLNK(mode)]


def test_of_the_library(home: Path, tmp_path: Path) -> None:
    create([episode(k, 5 + k) for k in range(3)], storage="zarr", ref="local/packed")
    known = create([episode(k, 5 + k) for k in range(3)])
    film([4, 3])
    grown()
    known.decisions().add([{"id": known.episodes["id"][0].tobytes().hex(), "do": "drop"}])
    known.select(episodes=[0]).label(good=True)
    preprocess.run("local/known", "normalise", "normal")
    rlds_cli.download("sample/pendulum-d4rl", keep_archive=True)
    far = tmp_path / "far"
    for ref in ("local/known", "local/grown"):
        rlds_cli.push(ref, tmp_path / "address" / ref)
        there = rlds_cli.open_dataset(tmp_path / "address" / ref, home=far)
        list(Loader(there, 4, steps=4, backend="numpy"))
        rlds_cli.download(str(tmp_path / "address" / ref), home=far, name="local/pulled", force=True)
    for memory in ("64MiB", 0):
        list(Loader("local/known", 4, steps=4, memory=memory, backend="numpy"))
    for top in (home, far, tmp_path / "address"):
        assert open_to_all(top) == []


def test_of_the_command(tmp_path: Path, home: Path) -> None:
    assert run_rlds("download", "sample/pendulum-d4rl").returncode == 0
    assert run_rlds("export", "sample/pendulum-d4rl", "--to", "d4rl", tmp_path / "out.hdf5").returncode == 0
    assert open_to_all(home) == [] and open_to_all(tmp_path) == []


OUTSIDE = ("archives",)  # rooms that write where they are told to


def test_directories_of_a_home_are_made_by_one_function() -> None:
    package = Path(rlds_cli.__file__).parent
    made = [
        f"{file.relative_to(package)}: {line.strip()}"
        for file in package.rglob("*.py")
        if file.relative_to(package).parts[0] not in OUTSIDE
        for line in file.read_text().splitlines()
        if ".mkdir(" in line or "makedirs(" in line
    ]
    assert [m for m in made if "DIRECTORY" not in m and "0o700" not in m] == []
