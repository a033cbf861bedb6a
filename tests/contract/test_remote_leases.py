"""Directories of remote datasets that leave while others open, read or remove them."""

from __future__ import annotations

import gc as python_gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from block_store import Store, blocks, opened, read
from hub_server import Hub
from test_remote_proofs import compare
from test_remote_published import PLACE, files, hub, imported, same_batches, whole  # noqa: F401
from test_remote_store import MAKERS, large

import rlds_cli
from rlds_cli.base.files import disk, trees
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep import gc
from rlds_cli.loader import Shuffled
from rlds_cli.places import Published
from rlds_cli.places.remote.content import RemoteContent
from rlds_cli.places.remote.presence import Room


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The home of somebody who has no dataset."""
    return tmp_path / "far"


def collect(home: Path | None = None) -> tuple[gc.Garbage, ...]:
    """Have all blocks leave that may; return what left."""
    return gc.collect(gc.find_garbage(remote=True, home=home)).removed


def forget(home: Path | None = None) -> tuple[gc.Garbage, ...]:
    """`collect`, also of datasets that this process reads no more."""
    python_gc.collect()
    return collect(home)


def before_each(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, act: Callable[[], object]) -> list[int]:
    """Do something before each call of a function; return a list of the calls."""
    real, calls = getattr(of, name), list[int]()

    def called(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        act()
        return real(*given, **named)

    monkeypatch.setattr(of, name, called)
    return calls


@pytest.mark.sampled(2)
@pytest.mark.parametrize("proved", [False, True])
@pytest.mark.parametrize("kind", ["large", "compressed", "grown"])
def test_a_dataset_that_is_being_opened_stays(
    kind: str, proved: bool, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = MAKERS[kind](tmp_path)
    rlds_cli.push(wanted.id, tmp_path / "store", pages=False)
    ref = f"{tmp_path / 'store'}#{wanted.fingerprint}" if proved else str(tmp_path / "store")
    rlds_cli.open_dataset(ref, home=far).column("action", gaps=True)[:1]
    python_gc.collect()
    with monkeypatch.context() as others:
        calls = [
            before_each(others, of, name, lambda: collect(far))
            for of, name in ((RemoteContent, "need"), (Room, "open_map"))
        ]
        compare(rlds_cli.open_dataset(ref, home=far), wanted)
    assert all(calls)
    directories = 2 if kind == "compressed" else 1
    assert len(forget(far)) == directories, "nobody reads it any more"


@pytest.mark.slow
def test_a_dataset_of_the_hub_stays_from_its_preparation_on(
    hub: Hub,  # noqa: F811
    whole: Dataset,  # noqa: F811
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rlds_cli.make.downloads import published as preparing

    before_each(monkeypatch, preparing, "_fetch_tables", collect)
    before_each(monkeypatch, Published, "open", collect)
    for cache in (None, 0):
        ds = rlds_cli.open_dataset(PLACE, cache=cache)
        assert collect() == (), "it is being read"
        assert same_batches(ds, whole, sampler=Shuffled())
        del ds
        assert len(forget()) == 1 and not list((home / "remote").glob("published-*"))


def test_what_was_prepared_stays_for_those_who_found_it(
    hub: Hub,  # noqa: F811
    whole: Dataset,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rlds_cli.open_dataset(PLACE)
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    before_each(monkeypatch, Published, "open", collect)
    assert rlds_cli.open_dataset(PLACE).fingerprint == whole.fingerprint


def test_after_a_restart_small_files_stay_while_another_machine_reads_them(
    tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = large(500)
    rlds_cli.push(here.id, tmp_path / "store", pages=False)
    there = rlds_cli.open_dataset(tmp_path / "store", home=far)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(disk, "boot_id", lambda: b"another machine")
        with pytest.raises(DamagedDataset, match="a process of another machine") as caught:
            rlds_cli.open_dataset(tmp_path / "store", home=far)
        assert caught.value.hint and "cache=0" in caught.value.hint
        compare(there, here)
        assert len(list((far / "remote").glob("*/dataset/zarr.json"))) == 1
        del there, caught
        compare(rlds_cli.open_dataset(tmp_path / "store", home=far), here)


def test_blocks_that_are_being_removed_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    one = opened(remote, Store(), name="one")
    assert read(one, 0, 1)
    del one
    seen = list[int | None]()

    def look() -> None:
        other = opened(remote, Store(), 1 << 30, name="two")
        seen.append(other.room.left())

    before_each(monkeypatch, trees, "remove", look)
    assert len(collect(tmp_path)) == 1
    assert seen == [1 << 30]


def test_two_that_remove_one_directory_both_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    held = opened(remote, Store())
    with held.hold([(0, blocks(1))]):
        assert collect(tmp_path) == (), "it is being read"
    del held
    depth = 0

    def again() -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            assert collect(tmp_path) == (), "it is being removed"
            (lease,) = remote.glob(".*/lease")
            lease.unlink()  # the other one has come so far
            assert len(collect(tmp_path)) == 1

    before_each(monkeypatch, trees, "remove", again)
    assert len(collect(tmp_path)) == 1
    assert [p.name for p in remote.iterdir()] == ["room.lock"]
