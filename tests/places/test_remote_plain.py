"""Plain copies of datasets at an address: they are downloaded and proved, and not read where they are."""

# ruff: noqa: F811  (fixtures of another module)

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import growing_model
import numpy as np
import pytest
from conftest import run_rlds
from loader_data import create, episode
from object_store import Fault, ObjectStore
from test_remote_store import (
    MAKERS,
    assert_same,
    bucket,  # noqa: F401  (a fixture)
    film,
    grown,
    hasty,  # noqa: F401  (a fixture)
    large,
    other,  # noqa: F401  (a fixture)
    videos,
)

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, DatasetNotFound, RldsError, WrongFingerprint
from rlds_cli.keep import gc
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader


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


SMALL: dict[str, Callable[[Path], Dataset]] = {
    "texts": lambda _: create([episode(k, 5 + k) for k in range(3)]),
    "compressed": lambda _: create([episode(k, 5 + k) for k in range(3)], storage="zarr"),
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
    else:
        data[::7] = bytes(byte ^ 4 for byte in data[::7])
        file.write_bytes(data)


# -- the whole dataset


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_plain_copy_is_downloaded(kind: str, tmp_path: Path, other: Path) -> None:
    wanted = MAKERS[kind](tmp_path)
    address = copy(wanted, tmp_path / "copy")
    made = rlds_cli.download(address, name="local/mine", home=other)
    assert made.path == other / "datasets/local/mine" and not made.store.address
    assert (made.fingerprint, made.version) == (wanted.fingerprint, wanted.version)
    assert_same(made, wanted, between=kind != "grown")
    assert verify("local/mine", home=other).ok
    assert not list((other / "partial").iterdir())
    shutil.rmtree(tmp_path / "copy")
    assert rlds_cli.open_dataset("local/mine", home=other).fingerprint == wanted.fingerprint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["compressed", "grown"])
def test_nothing_is_listed(kind: str, tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
    wanted = SMALL[kind](tmp_path)
    copied(bucket, wanted, "a")
    with bucket.counting() as requests:
        made = rlds_cli.download(f"{bucket.url}/lab/a/", name="local/mine", home=other)
    assert_same(made, wanted, between=kind != "grown")
    assert {r.method for r in requests} == {"GET"} and not any("list-type" in r.path for r in requests)


def test_a_growing_dataset_that_was_downloaded_grows_on(tmp_path: Path, other: Path) -> None:
    address = copy(SMALL["grown"](tmp_path), tmp_path / "copy")
    made = rlds_cli.download(address, name="local/mine", home=other)
    more = growing_model.draw(np.random.default_rng(8), 6)
    with rlds_cli.writer("local/mine", home=other) as w:
        w.add_episodes([more.item()])
        w.commit()
    assert rlds_cli.open_dataset("local/mine", home=other).version == made.version + 1
    assert verify("local/mine", home=other).ok


def test_the_pinned_content_is_downloaded(tmp_path: Path, other: Path) -> None:
    ds = SMALL["texts"](tmp_path)
    address = copy(ds, tmp_path / "copy")
    with pytest.raises(WrongFingerprint):
        rlds_cli.download(f"{address}#rlds1:{'0' * 64}", name="local/mine", home=other)
    pinned = rlds_cli.download(f"{address}#{ds.fingerprint}", name="local/mine", home=other)
    assert pinned.fingerprint == ds.fingerprint


# -- damage


def test_a_damaged_file_is_refused_and_named(tmp_path: Path, other: Path) -> None:
    """Files that are right are kept: the copy is mended, and fetched again in part."""
    ds, place = SMALL["frames"](tmp_path), tmp_path / "copy"
    address, file = copy(ds, place), place / "observation/bytes/c/0"
    kept = file.read_bytes()
    damage(file, "flipped")
    with pytest.raises(DamagedDataset, match="observation"):
        rlds_cli.download(address, name="local/mine", home=other)
    assert not (other / "datasets/local/mine").exists()
    file.write_bytes(kept)
    (place / "action/c/0/0").write_bytes(bytes((place / "action/c/0/0").stat().st_size))  # has arrived before
    assert_same(rlds_cli.download(address, name="local/mine", home=other), ds)


NAMES = {
    "texts": {"action/c/0/0": "action", "text/%74ext/bytes/c/0": "", "episodes/length/c/0": "", "action/zarr.json": ""},
    "compressed": {"action/c/0/0": "", "%74ext/c/0": "", "digests/zarr.json": "", "zarr.json": ""},
    "frames": {"observation/bytes/c/0": "observation", "observation/offsets/c/0/0": "observation"},
    "videos": {"video/observation/images/top/bytes/c/0": "observation/images/top"},
    "grown": {"action/c/0": "episode", "episodes.log": "", "commits.log": "", "strings.log": ""},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", list(SMALL))
def test_damage_of_any_kind_is_refused(kind: str, tmp_path: Path, other: Path) -> None:
    """The error names the file, or the field or the episode of which its rows are."""
    ds, place = SMALL[kind](tmp_path), tmp_path / "copy"
    address = copy(ds, place)
    for name, rows in NAMES[kind].items():
        kept = (place / name).read_bytes()
        for how in HOWS if name != "commits.log" else HOWS[:2]:  # half of that is an earlier version
            damage(place / name, how)
            named = f"{re.escape(name)}|{rows}" if rows else re.escape(name)
            named = f"{named}|neither rlds.json nor the zarr.json"
            with pytest.raises(RldsError) as caught:
                rlds_cli.download(address, name="local/mine", home=other)
            assert re.search(named, caught.value.message), (name, how, caught.value.message)
            assert not (other / "datasets/local/mine").exists()
            shutil.rmtree(other / "partial", ignore_errors=True)  # what has arrived would be used
            (place / name).write_bytes(kept)
    assert rlds_cli.download(address, name="local/mine", home=other).fingerprint == ds.fingerprint


# -- interruption


@pytest.mark.thorough
def test_an_interrupted_download_goes_on(bucket: ObjectStore, other: Path) -> None:
    ds = large()
    copied(bucket, ds, "a")
    address, path = f"{bucket.url}/lab/a/", "/lab/a/observation/c/0/0"
    size = len(bucket.buckets["lab"]["a/observation/c/0/0"])
    bucket.faults += [Fault("short", path=path, skip=1), Fault("503", path=path, times=20)]  # its size is asked first
    with pytest.raises(RldsError, match="observation/c/0/0"):
        rlds_cli.download(address, name="local/mine", home=other)
    assert "copy" in {item.path.suffix[1:] for item in gc.find_garbage(home=other).removed}
    bucket.faults.clear()
    with bucket.counting() as requests:
        made = rlds_cli.download(address, name="local/mine", home=other)
    assert_same(made, ds)
    ranges = [r.headers.get("Range", r.headers.get("range", "")) for r in requests if path in r.path]
    assert len(ranges) == 2 and 0 < int(ranges[1].removeprefix("bytes=").partition("-")[0]) < size


def test_a_copy_that_was_replaced_is_fetched_from_its_beginning(tmp_path: Path, other: Path) -> None:
    old, place = create([episode(k, 5) for k in range(3)], ref="local/old"), tmp_path / "copy"
    address = copy(old, place)
    damage(place / "action/c/0/0", "flipped")
    with pytest.raises(DamagedDataset, match="action"):
        rlds_cli.download(address, name="local/mine", home=other)
    shutil.rmtree(place)
    new = create([episode(k + 9, 5) for k in range(3)], ref="local/new")
    copy(new, place)
    assert_same(rlds_cli.download(address, name="local/mine", home=other), new)


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
    growing_model.check(rlds_cli.download(new, name="local/new", home=other), episodes)
    growing_model.check(rlds_cli.download(old, name="local/old", home=other), episodes[:2])
    newest = rlds_cli.open_dataset("local/live").fingerprint
    for _ in range(2):  # the second time it is there
        pinned = rlds_cli.download(f"{new}#{newest}", name="local/pinned", home=other)
        growing_model.check(pinned, episodes)
        with pytest.raises(WrongFingerprint, match=ds.fingerprint):  # an earlier version
            rlds_cli.download(f"{new}#{ds.fingerprint}", name="local/pinned", home=other)
    # The log of versions came last, and the others before the commit.
    shutil.copytree(tmp_path / "old", tmp_path / "late")
    shutil.copy(tmp_path / "new/commits.log", tmp_path / "late")
    late = f"file://{tmp_path / 'late'}"
    with pytest.raises(DamagedDataset, match=r"about.log|episodes.log"):
        rlds_cli.download(late, name="local/late", home=other)
    # Its rows came before the commit, and its logs after it.
    shutil.copytree(tmp_path / "new", tmp_path / "mixed")
    for file in (tmp_path / "old/action").rglob("*"):
        if file.is_file():
            shutil.copy(file, tmp_path / "mixed/action" / file.relative_to(tmp_path / "old/action"))
    with pytest.raises(DamagedDataset, match="episode 2"):
        rlds_cli.download(f"file://{tmp_path / 'mixed'}", name="local/mixed", home=other)


# -- reading it where it is


@pytest.mark.parametrize("kind", ["texts", "grown"])
def test_a_plain_copy_is_not_read_where_it_is(kind: str, tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
    ds = SMALL[kind](tmp_path)
    address = copied(bucket, ds, "a")
    with pytest.raises(DatasetNotFound, match="can be downloaded") as caught:
        rlds_cli.open_dataset(address, home=other)
    assert f"rlds download {address} --name local/NAME" in str(caught.value.hint)
    assert f"rlds push ID {address}" in str(caught.value.hint)
    assert "rlds index DIR" in str(caught.value.hint)
    place = copy(ds, tmp_path / "copy")
    with pytest.raises(DatasetNotFound) as caught:
        Loader(rlds_cli.open_dataset(place, home=other), batch_size=4)
    assert f"rlds index {tmp_path / 'copy'}" in str(caught.value.hint)


def test_commands_on_a_plain_copy(tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
    ds = SMALL["texts"](tmp_path)
    address, home = copied(bucket, ds, "copies/a"), ("--home", other)
    shown = run_rlds("inspect", address, *home)
    assert shown.returncode and f"rlds download {address} --name local/NAME".encode() in shown.stderr
    assert ds.id.encode() in run_rlds("list", "s3://lab/copies", *home).stdout
    files = [p.stat().st_size for p in ds.path.rglob("*") if p.is_file()]
    shown = run_rlds("download", address, "--name", "local/mine", "--dry-run", "--json", *home)
    (planned,) = json.loads(shown.stdout)["datasets"]
    assert (planned["files"], planned["to_fetch"]) == (len(files), sum(files))
    made = rlds_cli.download(address, name="local/mine", home=other)
    shown = run_rlds("inspect", address, *home)
    assert f"local/mine in {made.path} is shown".encode() in shown.stderr and b"nothing was fetched" in shown.stderr
