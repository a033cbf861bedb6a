from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from rlds_cli import Dataset, create, open_dataset
from rlds_cli.base.files import disk
from rlds_cli.errors import DamagedDataset, DatasetNotFound, NoSpace
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.verification import verify


def make(**more: Any) -> Dataset:
    rng = np.random.default_rng(0)
    episodes = [
        {
            "observation": rng.normal(size=(301, 3)),
            "action": np.zeros((300, 0)),
            "next": {"reward": rng.normal(size=300), "terminated": k == 1},
            "info": {"word": ["a", None, "b"] * 100},
        }
        for k in range(3)
    ]
    return create("local/x", episodes, **more)


def everything(ds: Dataset) -> dict[str, Any]:
    rows = np.arange(ds.num_rows)
    return {name: ds.gather(name, rows).tolist() for name in ds.schema}


@pytest.mark.thorough
def test_there_and_back(home: Path) -> None:
    plain = make()
    before = everything(plain)
    files = {p.relative_to(plain.path): p.read_bytes() for p in plain.path.rglob("*") if p.is_file()}
    packed = reencode("local/x", to="zarr")
    assert (packed.changed, packed.encoding, packed.fingerprint, packed.path) == (
        True,
        "zarr",
        plain.fingerprint,
        plain.path,
    )
    ds = open_dataset("local/x")
    assert (ds.encoding, ds.fingerprint) == ("zarr", plain.fingerprint)
    assert everything(ds) == before
    assert verify("local/x").ok
    assert np.asarray(zarr.open_group(str(ds.path), mode="r")["observation"][:2]).tolist() == before["observation"][:2]
    reencode("local/x", to="memmap")
    again = {p.relative_to(plain.path): p.read_bytes() for p in plain.path.rglob("*") if p.is_file()}
    assert again == files
    assert not list((home / "partial").iterdir())


def test_what_is_so_already_is_left_alone() -> None:
    ds = make()
    before = (ds.path / "zarr.json").stat().st_ino
    done = reencode("local/x", to="memmap")
    assert (done.changed, done.bytes_before) == (False, done.bytes_after)
    assert (ds.path / "zarr.json").stat().st_ino == before


@pytest.mark.thorough
def test_compression_saves_space() -> None:
    create("local/zeros", [{"observation": np.zeros((200_001, 3)), "action": np.zeros((200_000, 1))}])
    done = reencode("local/zeros", to="zarr")
    assert done.bytes_after < done.bytes_before / 10


@pytest.mark.thorough
def test_who_has_it_open_reads_on() -> None:
    ds = make()
    column = ds.column("observation")
    expected = column.tolist()
    reencode("local/x", to="zarr")
    assert column.tolist() == expected
    assert open_dataset("local/x").column("observation").tolist() == expected


def test_a_shared_home_stays_as_it_is(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = make(home=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: not str(p).startswith(str(tmp_path / "shared")) and real(p, mode))
    done = reencode("local/x", to="zarr")
    assert done.path == home / "datasets/local/x"
    assert open_dataset("local/x").encoding == "zarr"
    assert open_dataset(shared.path).encoding == "memmap"


def test_damage_is_not_carried_over() -> None:
    ds = make()
    file = ds.path / "observation/c/0/0"
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(b"\xff\xff")
    with pytest.raises(DamagedDataset, match=r"observation: episode 0 differs. The dataset stays") as caught:
        reencode("local/x", to="zarr")
    assert caught.value.hint == "rlds verify local/x"
    assert open_dataset("local/x").encoding == "memmap"
    assert not list(ds.path.parents[2].glob("partial/*"))


def test_damaged_shards_are_named() -> None:
    ds = make(storage="zarr")
    shard = next(p for p in (ds.path / "observation/c").rglob("*") if p.is_file())
    shard.chmod(0o644)
    data = shard.read_bytes()
    shard.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(DamagedDataset, match="observation"):
        reencode("local/x", to="memmap")
    assert open_dataset("local/x").encoding == "zarr"


def test_a_disk_without_room_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = make(storage="zarr")
    monkeypatch.setattr(disk, "free", lambda path: 1000)
    with pytest.raises(NoSpace, match="are needed"):
        reencode("local/x", to="memmap")
    assert open_dataset(ds.path).encoding == "zarr"


def test_two_at_once(home: Path) -> None:
    make()
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: reencode("local/x", to="zarr"), range(2)))
    assert sorted(d.changed for d in done) == [False, True]
    assert open_dataset("local/x").encoding == "zarr"
    assert verify("local/x").ok


@pytest.mark.thorough
def test_not_here() -> None:
    with pytest.raises(DatasetNotFound):
        reencode("local/none", to="zarr")
