from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.errors import DatasetNotFound, InvalidId
from rlds_cli.homes import Home


def put(root: Path, text: str) -> Path:
    """A directory that looks like a published dataset."""
    path = Home(root).dataset(ids.parse(text))
    path.mkdir(parents=True)
    (path / "zarr.json").write_text("{}")
    return path


def test_every_dataset_has_a_directory_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    id = ids.parse("minari/mujoco/hopper-v0@norm")
    assert home.dataset(id) == tmp_path / "datasets/minari/mujoco+hopper-v0@norm"
    assert home.archive(id) == tmp_path / "archives/minari/mujoco+hopper-v0"  # a variant has none of its own
    assert home.partial(id, "abc") == tmp_path / "partial/minari+mujoco+hopper-v0@norm.abc"
    assert home.partial(id, "abc") != home.partial(id, "abd")


def test_datasets_are_those_with_a_document(tmp_path: Path) -> None:
    put(tmp_path, "b/y")
    put(tmp_path, "a/x/z@n")
    (tmp_path / "datasets/a/unfinished").mkdir()
    put(tmp_path, "a/x").rename(tmp_path / "datasets/a/.x.removed")
    (tmp_path / "datasets/a/file").touch()
    assert [str(id) for id, _ in Home(tmp_path).datasets()] == ["a/x/z@n", "b/y"]
    assert list(Home(tmp_path / "nowhere").datasets()) == []


def test_archives_are_listed_by_id(tmp_path: Path) -> None:
    (tmp_path / "archives/minari/a+b").mkdir(parents=True)
    (tmp_path / "archives/minari/.tmp").mkdir()
    assert list(Home(tmp_path).archives()) == [(ids.parse("minari/a/b"), tmp_path / "archives/minari/a+b")]


def test_found_in_own_home_first_then_in_the_shared_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    monkeypatch.setenv("RLDS_HOME", str(own))
    monkeypatch.setenv("RLDS_PATH", str(shared))
    there = put(shared, "d4rl/pen")
    assert homes.locate("d4rl/pen", settings.read()) == there
    here = put(own, "d4rl/pen")
    assert homes.locate("d4rl/pen", settings.read()) == here
    assert homes.locate("d4rl/pen", settings.read(shared)) == there


def test_found_whatever_the_case_of_the_letters(home: Path) -> None:
    path = put(home, "minari/D4RL/pen-v0")
    assert homes.path_of(ids.parse("minari/d4rl/PEN-v0"), settings.read()) == path


def test_a_path_is_a_path(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "elsewhere", "d4rl/pen")
    assert homes.locate(path, settings.read()) == path
    assert homes.locate(str(path), settings.read()) == path
    monkeypatch.chdir(path.parent)
    assert homes.locate("./pen", settings.read()) == Path("pen")
    with pytest.raises(DatasetNotFound, match=r"is not a dataset \(no zarr.json there\)"):
        homes.locate(tmp_path, settings.read())


@pytest.mark.thorough
def test_what_is_not_here_is_named_with_the_homes_and_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_PATH", "/shared/rlds")
    with pytest.raises(DatasetNotFound) as caught:
        homes.locate("sample/pendulum-d4rl", settings.read())
    assert str(home) in caught.value.message
    assert "/shared/rlds" in caught.value.message
    assert caught.value.hint == "rlds download sample/pendulum-d4rl"
    with pytest.raises(DatasetNotFound, match="did you mean sample/pendulum-d4rl"):
        homes.locate("sample/pendlum-d4rl", settings.read())
    with pytest.raises(DatasetNotFound, match="--name norm"):
        homes.locate("d4rl/pen@norm", settings.read())
    with pytest.raises(DatasetNotFound, match="rlds import"):
        homes.locate("local/pen", settings.read())
    with pytest.raises(InvalidId):
        homes.locate("d4rl/../../etc", settings.read())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_holds_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a/x")
    (tmp_path / "datasets/a").chmod(0)
    try:
        assert list(Home(tmp_path).datasets()) == []
    finally:
        (tmp_path / "datasets/a").chmod(0o755)


def test_a_directory_that_was_pushed_to_is_named_where_an_id_was_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rlds_cli.create("local/own", [{"observation": np.zeros((3, 1)), "action": np.zeros(2)}])
    rlds_cli.push("local/own", "store/own")
    with pytest.raises(DatasetNotFound) as caught:
        rlds_cli.Loader("store/own", 2)
    assert caught.value.hint == "./store/own is the directory of that name"
    assert len(next(iter(rlds_cli.Loader("./store/own", 2)))["action"]) == 2
