from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_cli import Dataset, create, open_dataset
from rlds_cli.errors import DamagedDataset, NoSpace
from rlds_cli.files import disk
from rlds_cli.maintenance.reencode import convert
from rlds_cli.maintenance.verification import verify


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


def test_damage_is_not_carried_over() -> None:
    ds = make()
    file = ds.path / "observation/c/0/0"
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(b"\xff\xff")
    with pytest.raises(DamagedDataset, match=r"observation: episode 0 differs. The dataset stays") as caught:
        convert("local/x", to="zarr")
    assert caught.value.hint == "rlds verify local/x"
    assert open_dataset("local/x").encoding == "memmap"
    assert not list(ds.path.parents[2].glob("partial/*"))


def test_damaged_shards_are_named() -> None:
    ds = make(store="zarr")
    shard = next(p for p in (ds.path / "observation/c").rglob("*") if p.is_file())
    shard.chmod(0o644)
    data = shard.read_bytes()
    shard.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(DamagedDataset, match="observation"):
        convert("local/x", to="memmap")
    assert open_dataset("local/x").encoding == "zarr"


def test_a_disk_without_room_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = make(store="zarr")
    monkeypatch.setattr(disk, "free", lambda path: 1000)
    with pytest.raises(NoSpace, match="are needed"):
        convert("local/x", to="memmap")
    assert open_dataset(ds.path).encoding == "zarr"


def test_two_at_once(home: Path) -> None:
    make()
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: convert("local/x", to="zarr"), range(2)))
    assert sorted(d.changed for d in done) == [False, True]
    assert open_dataset("local/x").encoding == "zarr"
    assert verify("local/x").ok
