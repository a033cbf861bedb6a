"""Plain copies of datasets at an address: every value is that of the dataset that was copied, or an error."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import create, episode
from object_store import ObjectStore
from test_remote_store import (
    MAKERS,
    assert_same,
    bucket,  # noqa: F401  (a fixture)
    film,
    grown,
    hasty,  # noqa: F401  (a fixture)
    other,  # noqa: F401  (a fixture)
    same,
    videos,
)

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError, WrongHash
from rlds_cli.maintenance.verification import verify


def copied(store: ObjectStore, ds: Dataset, name: str) -> str:
    """Copy the files of a dataset into a bucket."""
    for file in ds.path.rglob("*"):
        if file.is_file():
            store.buckets["lab"][f"{name}/{file.relative_to(ds.path).as_posix()}"] = file.read_bytes()
    return f"s3://lab/{name}"


def copy(ds: Dataset, to: Path) -> str:
    """Copy the files of a dataset into a directory that can be changed; return its address."""
    shutil.copytree(ds.path, to)
    for path in [to, *to.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return f"file://{to}"


@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_plain_copy_is_read_and_checked(kind: str, tmp_path: Path, other: Path) -> None:  # noqa: F811
    wanted = MAKERS[kind](tmp_path)
    address = copy(wanted, tmp_path / "copy")
    for cache in (None, "1MiB", 0):
        got = rlds_cli.open_dataset(address, cache_dir=other, cache=cache)
        assert got.store.remote and got.generation == wanted.generation
        assert_same(got, wanted, between=kind != "grown")


@pytest.mark.parametrize("kind", ["created", "compressed texts", "frames", "grown"])
def test_nothing_is_listed(kind: str, tmp_path: Path, bucket: ObjectStore, other: Path) -> None:  # noqa: F811
    wanted = MAKERS[kind](tmp_path)
    assert_same(rlds_cli.open_dataset(copied(bucket, wanted, "a"), cache_dir=other), wanted, between=kind != "grown")
    with bucket.counting() as requests:
        got = rlds_cli.open_dataset(f"{bucket.url}/lab/a/", cache_dir=other, cache=0)
        assert_same(got, wanted, between=kind != "grown")
    assert {r.method for r in requests} == {"GET"} and not any("list-type" in r.path for r in requests)


def read_all(ds: Dataset) -> dict[str, Any]:
    """Every value that a dataset has, by name."""
    starts, lengths = ds.episodes["start"], ds.episodes["length"]
    rows = np.concatenate([np.arange(s, s + n + 1) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
    found: dict[str, Any] = {name: ds.gather(name, rows) for name in ds.schema}
    found |= {f"episodes/{name}": ds.episodes[name] for name in ds.episodes}
    return found | {"sources": ds.sources, "about": (ds.id, ds.fingerprint, ds.num_rows, dict(ds.schema), len(ds))}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[n], b[n]) if isinstance(b[n], np.ndarray) else a[n] == b[n] for n in b)


SMALL: dict[str, Callable[[Path], Dataset]] = {
    "texts": lambda _: create([episode(k, 5 + k) for k in range(3)]),
    "compressed": lambda _: create([episode(k, 5 + k) for k in range(3)], store="zarr"),
    "frames": lambda _: film([4, 3]),
    "videos": videos,
    "grown": grown,
}
HOWS = ("flipped", "missing", "truncated")


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    at = len(data) // 2
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(data[:at])
    elif data:
        data[at] ^= 4
        file.write_bytes(data)


def check_damage(ds: Dataset, place: Path, hows: Callable[[int], tuple[str, ...]]) -> set[str]:
    """Damage one file of a copy at a time: an error names it, or every value is right; return those with an error."""
    wanted, address, found = read_all(ds), copy(ds, place), set()
    for k, file in enumerate(sorted(p for p in place.rglob("*") if p.is_file())):
        name, kept = file.relative_to(place).as_posix(), file.read_bytes()
        for how in hows(k):
            damage(file, how)
            try:
                assert equal(read_all(rlds_cli.open_dataset(address, cache=0)), wanted), (name, how)
            except RldsError as e:
                assert name in str(e), (name, how, str(e))
                found.add(name)
            file.write_bytes(kept)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SMALL))
def test_any_damage_is_an_error_that_names_the_file(kind: str, tmp_path: Path) -> None:
    check_damage(SMALL[kind](tmp_path), tmp_path / "copy", lambda k: HOWS)


USED = {
    "texts": {"action/c/0/0", "%74ext/c/0", "text/%74ext/bytes/c/0", "digests/action/c/0/0", "episodes/length/c/0"},
    "compressed": {"action/c/0/0", "%74ext/c/0", "action/zarr.json", "text/%74ext/offsets/c/0"},
    "frames": {"observation/bytes/c/0", "observation/offsets/c/0", "digests/observation/c/0/0"},
    "videos": {"action/c/0/0", "video/observation/images/top/bytes/c/0", "video/observation/images/top/packets/c/0/0"},
    "grown": {"episodes.log", "departed.log", "generations.log", "strings.log"},
}


@pytest.mark.parametrize("kind", list(SMALL))
def test_damage_of_what_is_used_is_an_error(kind: str, tmp_path: Path) -> None:
    ds = SMALL[kind](tmp_path)
    wanted, place = read_all(ds), tmp_path / "copy"
    address = copy(ds, place)
    for k, name in enumerate(sorted({"zarr.json", *USED[kind]})):
        kept = (place / name).read_bytes()
        damage(place / name, "truncated" if name == "generations.log" else HOWS[k % 2])
        with pytest.raises(RldsError, match=re.escape(name)):
            assert not equal(read_all(rlds_cli.open_dataset(address, cache=0)), wanted)
        (place / name).write_bytes(kept)
    assert equal(read_all(rlds_cli.open_dataset(address, cache=0)), wanted)


# -- the whole dataset


@pytest.mark.parametrize("kind", ["texts", "compressed", "frames", "grown"])
def test_a_plain_copy_is_downloaded(kind: str, tmp_path: Path, other: Path) -> None:  # noqa: F811
    wanted = SMALL[kind](tmp_path)
    address = copy(wanted, tmp_path / "copy")
    made = rlds_cli.download(address, as_="local/mine", cache_dir=other)
    assert made.path == other / "datasets/local/mine" and not made.store.remote
    assert (made.fingerprint, made.generation) == (wanted.fingerprint, wanted.generation)
    assert_same(made, wanted, between=kind != "grown")
    assert verify("local/mine", cache_dir=other).ok
    assert not [p for p in (other / "remote").iterdir() if p.is_dir()]
    (tmp_path / "copy/zarr.json").unlink()
    assert rlds_cli.open_dataset("local/mine", cache_dir=other).fingerprint == wanted.fingerprint


def test_a_damaged_plain_copy_is_not_published_and_goes_on(tmp_path: Path, other: Path) -> None:  # noqa: F811
    wanted = film([4, 3])
    address = copy(wanted, tmp_path / "copy")
    file = tmp_path / "copy/observation/bytes/c/0"
    kept = file.read_bytes()
    damage(file, "flipped")
    with pytest.raises(WrongHash, match="observation/bytes/c/0"):
        rlds_cli.download(address, as_="local/mine", cache_dir=other)
    assert not (other / "datasets/local/mine").exists()
    file.write_bytes(kept)
    (tmp_path / "copy/action/c/0/0").unlink()  # has arrived before
    assert_same(rlds_cli.download(address, as_="local/mine", cache_dir=other), wanted)
