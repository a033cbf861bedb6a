"""Plain copies of datasets at an address: every value is that of the dataset that was copied, or an error."""

# ruff: noqa: F811  (fixtures of another module)

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import growing_model
import numpy as np
import pytest
from conftest import run_rlds
from loader_data import create, episode
from object_store import ObjectStore, Request
from test_remote_store import (
    MAKERS,
    assert_same,
    bucket,  # noqa: F401  (a fixture)
    film,
    flat,
    grown,
    hasty,  # noqa: F401  (a fixture)
    large,
    other,  # noqa: F401  (a fixture)
    same,
    videos,
)

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError, WrongHash
from rlds_cli.maintenance.verification import verify
from rlds_cli.remote import plain_growing, plain_units, units
from rlds_cli.remote.presence import BLOCK
from rlds_cli.store import statistics


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
def test_a_plain_copy_is_read_and_checked(kind: str, tmp_path: Path, other: Path) -> None:
    wanted = MAKERS[kind](tmp_path)
    address = copy(wanted, tmp_path / "copy")
    for cache in (None, "1MiB", 0):
        got = rlds_cli.open_dataset(address, cache_dir=other, cache=cache)
        assert got.store.remote and got.generation == wanted.generation
        assert_same(got, wanted, between=kind != "grown")


@pytest.mark.parametrize("kind", ["created", "compressed texts", "frames", "grown"])
def test_nothing_is_listed(kind: str, tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
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


UNCOVERED = {"about.log", "sources.log"}  # of a dataset that grows, as far as they are not in digests of episodes


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SMALL))
def test_any_damage_is_an_error_that_names_the_file(kind: str, tmp_path: Path) -> None:
    """One file at a time: an error names it, or every value is right."""
    ds, place = SMALL[kind](tmp_path), tmp_path / "copy"
    wanted, address = read_all(ds), copy(ds, place)
    for file in sorted(p for p in place.rglob("*") if p.is_file() and p.name not in UNCOVERED):
        name, kept = file.relative_to(place).as_posix(), file.read_bytes()
        for how in HOWS:
            damage(file, how)
            try:
                assert equal(read_all(rlds_cli.open_dataset(address, cache=0)), wanted), (name, how)
            except RldsError as e:
                assert name in str(e), (name, how, str(e))
            file.write_bytes(kept)


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
def test_a_plain_copy_is_downloaded(kind: str, tmp_path: Path, other: Path) -> None:
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


def test_a_damaged_plain_copy_is_not_published_and_goes_on(tmp_path: Path, other: Path) -> None:
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


# -- units


@pytest.mark.parametrize("kind", ["texts", "compressed", "frames", "videos", "grown"])
def test_units_smaller_than_a_block(kind: str, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK_ROWS", 4)  # of a digest
    monkeypatch.setattr(plain_growing, "_UNIT", 1)
    wanted = SMALL[kind](tmp_path)
    address = copy(wanted, tmp_path / "copy")
    got = rlds_cli.open_dataset(address, cache_dir=other)
    assert equal(read_all(got), read_all(wanted))
    assert equal(read_all(rlds_cli.open_dataset(address, cache=0)), read_all(wanted))


def observations(requests: list[Request]) -> list[str]:
    """The ranges of the file of observations that were asked for."""
    return [r.headers.get("Range", r.headers.get("range", "")) for r in requests if "/a/observation/c/0/0" in r.path]


def test_a_unit_is_fetched_once_by_all(bucket: ObjectStore, other: Path) -> None:
    ds = large()
    wanted, size = ds.column("observation")[:], ds.num_rows * 64
    address = copied(bucket, ds, "a")
    both = [rlds_cli.open_dataset(address, cache_dir=other) for _ in range(2)]  # with locks like those of two processes
    with bucket.counting() as requests, ThreadPoolExecutor(2) as pool:
        assert all(same(column, wanted) for column in pool.map(lambda got: got.column("observation")[:], both))
    assert observations(requests) == [f"bytes=0-{size - 1}"] and size > BLOCK
    with bucket.counting() as requests:
        assert same(rlds_cli.open_dataset(address, cache_dir=other).column("observation")[:], wanted)
    assert observations(requests) == []


@pytest.mark.parametrize("cache", ["1MiB", 0])
def test_a_unit_larger_than_the_cache(
    cache: int | str,
    bucket: ObjectStore,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It passes through once; its parts are fetched by themselves then."""
    monkeypatch.setattr("rlds_cli.remote.store.MEMORY", BLOCK)
    ds = large()
    got = rlds_cli.open_dataset(copied(bucket, ds, "a"), cache_dir=other, cache=cache)
    with bucket.counting() as requests:
        for at in (0, ds.num_rows - 10, 5):
            assert same(got.column("observation")[at : at + 5], ds.column("observation")[at : at + 5])
    size = ds.num_rows * 64
    first, *rest = observations(requests)
    assert first == f"bytes=0-{size - 1}" and rest and first not in rest


def test_a_part_that_changes_later_is_an_error(bucket: ObjectStore, other: Path) -> None:
    ds = large()
    address = copied(bucket, ds, "a")
    got = rlds_cli.open_dataset(address, cache_dir=other, cache="1MiB")
    assert same(got.column("observation")[:5], ds.column("observation")[:5])
    data = bytearray(bucket.buckets["lab"]["a/observation/c/0/0"])
    data[64 * ds.num_rows - 100] ^= 1
    bucket.buckets["lab"]["a/observation/c/0/0"] = bytes(data)
    with pytest.raises(WrongHash, match=r"Block \d+ of observation/c/0/0 .* is not what the manifest says"):
        got.column("observation")[-5:]
    assert same(got.column("action")[:], ds.column("action")[:])


@pytest.mark.slow  # a busy machine is too late for its time-out
def test_a_unit_may_take_longer_than_the_time_out(
    bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as bytes of it arrive."""
    ds = large()
    begun = rlds_cli.open_dataset(copied(bucket, ds, "a"), cache_dir=other, timeout=0.6)
    take = units._Passing.take

    def slowly(*args: Any) -> None:
        time.sleep(0.15)
        take(*args)

    monkeypatch.setattr(units._Passing, "take", slowly)
    of = plain_units.stream
    small = 1 << 17

    def in_pieces(content: Any, path: str, start: int, stop: int, pass_on: Any) -> None:
        of(content, path, start, stop, lambda data: [pass_on(data[k : k + small]) for k in range(0, len(data), small)])

    monkeypatch.setattr(plain_units, "stream", in_pieces)
    assert same(begun.column("observation")[:], ds.column("observation")[:])


# -- copies that were made while the dataset grew


def test_a_copy_made_while_it_grew(tmp_path: Path, other: Path) -> None:
    rng = np.random.default_rng(5)
    episodes = [growing_model.draw(rng, 6) for _ in range(4)]
    with rlds_cli.writer("local/live", fields=growing_model.FIELDS) as w:
        w.add_episodes([e.item() for e in episodes[:2]])
        w.commit()
        ds = rlds_cli.open_dataset("local/live")
        old = copy(ds, tmp_path / "old")
        w.add_episodes([e.item() for e in episodes[2:]])
        w.commit()
    new = copy(rlds_cli.open_dataset("local/live"), tmp_path / "new")
    growing_model.check(rlds_cli.open_dataset(new, cache_dir=other), episodes)
    growing_model.check(rlds_cli.open_dataset(old, cache_dir=other), episodes[:2])
    growing_model.check(rlds_cli.open_dataset(f"{new}#{ds.fingerprint}", cache_dir=other), episodes[:2])
    # The log of generations came first, and the others before the commit.
    shutil.copytree(tmp_path / "old", tmp_path / "late")
    shutil.copy(tmp_path / "new/generations.log", tmp_path / "late")
    assert rlds_cli.open_dataset(f"file://{tmp_path / 'late'}", cache_dir=other).fingerprint == ds.fingerprint
    # Its rows came before the commit, and its logs after it.
    shutil.copytree(tmp_path / "new", tmp_path / "mixed")
    for file in (tmp_path / "old/action").rglob("*"):
        if file.is_file():
            shutil.copy(file, tmp_path / "mixed/action" / file.relative_to(tmp_path / "old/action"))
    mixed = rlds_cli.open_dataset(f"file://{tmp_path / 'mixed'}", cache=0)
    with pytest.raises(WrongHash, match="action/c/0"):
        mixed.column("action")[:]


# -- what is here


@pytest.mark.parametrize("kind", ["texts", "grown"])
def test_without_the_network_what_is_here_is_read(
    kind: str, tmp_path: Path, bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = SMALL[kind](tmp_path)
    address = copied(bucket, ds, "a")
    read_all(rlds_cli.open_dataset(address, cache_dir=other))
    with bucket.counting() as requests:
        assert rlds_cli.open_dataset(f"{address}#{ds.fingerprint}", cache_dir=other).fingerprint == ds.fingerprint
        monkeypatch.setenv("RLDS_OFFLINE", "1")
        assert equal(read_all(rlds_cli.open_dataset(address, cache_dir=other)), read_all(ds))
    assert requests == []


def test_commands_on_a_plain_copy(tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
    ds = SMALL["texts"](tmp_path)
    address, home = copied(bucket, ds, "copies/a"), ("--cache-dir", other)
    shown = run_rlds("inspect", address, *home)
    assert shown.returncode == 0 and b"a plain copy: 65,536 rows of a field" in shown.stderr
    assert b"fetched" in run_rlds("check", "--quick", address, *home).stderr
    assert ds.id.encode() in run_rlds("list", "s3://lab/copies", *home).stdout
    assert run_rlds("diff", address, ds.path, *home).returncode == 0
    made = rlds_cli.download(address, as_="local/mine", cache_dir=other)
    shown = run_rlds("inspect", address, "--json", *home)
    assert f"local/mine in {made.path} is shown".encode() in shown.stderr and b"nothing was fetched" in shown.stderr
    assert json.loads(shown.stdout)["path"] == str(made.path)


def test_a_loader_says_what_it_fetches(tmp_path: Path, other: Path) -> None:
    ds = SMALL["texts"](tmp_path)
    far = rlds_cli.open_dataset(copy(ds, tmp_path / "copy"), cache_dir=other)
    mine, theirs = (rlds_cli.loader.Loader(d, batch_size=4, seed=1) for d in (far, ds))
    assert "fetching  a plain copy: 65,536 rows of a field" in mine.describe() and "fetching" not in theirs.describe()
    for some, others in islice(zip(mine, theirs, strict=True), 3):
        one, two = flat(some), flat(others)
        assert one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)


def test_a_plain_copy_is_preprocessed(tmp_path: Path, other: Path) -> None:
    ds = SMALL["compressed"](tmp_path)
    far = rlds_cli.open_dataset(copy(ds, tmp_path / "copy"), cache_dir=other)
    mine = preprocess.run(far, "normalise", "norm", jobs=1, cache_dir=other)
    assert mine.fingerprint == preprocess.run(ds, "normalise", "norm", jobs=1).fingerprint
