"""Datasets pushed to a directory or a bucket and brought into another home: the same content, and no byte twice."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import growing_model
import numpy as np
import pytest
from conftest import run_rlds
from forged_address import forge, signed, values_of, written
from frames_data import film
from hypothesis import given
from hypothesis import strategies as st
from lerobot_archives import Content, write_v3
from loader_data import create, episode
from made_once import made_once, sample_dataset
from object_store import KEY, SECRET, Fault, ObjectStore
from server import Server

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.progress import Event
from rlds_cli.dataset import Dataset
from rlds_cli.errors import (
    DamagedDataset,
    DatasetNotFound,
    DownloadFailed,
    InvalidArgument,
    InvalidId,
    NameTaken,
    NewerFormat,
    Offline,
    RldsError,
    UploadFailed,
    WrongFingerprint,
    WrongHash,
)
from rlds_cli.keep import pinning
from rlds_cli.keep.removing import remove
from rlds_cli.keep.verification import verify
from rlds_cli.make.importing import import_files
from rlds_cli.places import Body, Index
from rlds_cli.places.remote import pulling
from rlds_cli.places.remote.blocks import GROUP
from rlds_cli.places.sources.place import Chunk
from rlds_cli.share import collecting, packing
from rlds_cli.share.pushing import Pushed

HASTY = RetryPolicy(attempts=4, first=0.001, longest=0.01, asked=5.0, connect=60.0, read=60.0, idle=120.0)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The home of somebody else."""
    return tmp_path / "other"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore")
    with ObjectStore() as running:
        running.buckets["lab"] = {}
        for name, value in running.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield running


def push(ref: str, to: object, **options: Any) -> Pushed:
    """Push without a report, of which other tests are."""
    return rlds_cli.push(ref, str(to), **{"pages": False, **options})


def bring(address: object, other: Path, **options: object) -> Dataset:
    return rlds_cli.download(str(address), home=other, **options)  # type: ignore[arg-type]


def tree(path: Path) -> dict[str, bytes]:
    return {f.relative_to(path).as_posix(): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def large(rows: int = 30_000, *, ref: str = "local/large", seed: int = 0) -> Dataset:
    """A dataset of some MiB, so that it has more than one block."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (rows + 1, 64), np.uint8)
    item = {"observation": values, "action": np.arange(rows, dtype=np.int64), "next/reward": np.arange(rows) / 7}
    return made_once(ref, lambda: rlds_cli.create(ref, [item], force=True), rows, seed)


# -- every kind of dataset


def created() -> Dataset:
    return create([episode(k, 5 + k, observed=k != 1) for k in range(4)])


def compressed() -> Dataset:
    return create([episode(k, 9) for k in range(3)], storage="zarr")


def derived() -> Dataset:
    return preprocess.run(created(), "normalise", "norm", jobs=1)


def videos(tmp_path: Path) -> Dataset:
    return import_files(write_v3(tmp_path / "a", Content(lengths=(6, 5), video=("top",))), "local/film")


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["created", "compressed", "derived", "frames", "videos", "imported"])
def test_a_dataset_arrives_as_it_was(kind: str, tmp_path: Path, store: Path, other: Path) -> None:
    makers: dict[str, Callable[[], Dataset]] = {
        "created": created,
        "compressed": compressed,
        "derived": derived,
        "frames": lambda: film([4, 3]),
        "videos": lambda: videos(tmp_path),
        "imported": lambda: sample_dataset("pendulum-d4rl"),
    }
    ds = makers[kind]()
    done = push(ds.id, store / kind)
    assert (done.id, done.fingerprint, done.skipped) == (ds.id, ds.fingerprint, 0)
    assert done.sent == sum(len(data) for data in tree(ds.path).values())
    came = bring(store / kind, other, name="local/mine")
    assert came.path == other / "datasets/local/mine" and came.id == "local/mine"
    assert came.fingerprint == ds.fingerprint
    before, after = tree(ds.path), tree(came.path)
    assert {n: d for n, d in before.items() if n != "zarr.json"} == {n: d for n, d in after.items() if n != "zarr.json"}
    assert verify("local/mine", home=other).ok
    assert not any(os.access(f, os.W_OK) for f in came.path.rglob("*") if f.is_file()) or os.geteuid() == 0
    assert not any((other / "partial").iterdir())


@pytest.mark.thorough
def test_values_arrive_as_they_were_written(store: Path, other: Path) -> None:
    known = [episode(k, 5 + k) for k in range(4)]
    push(create(known).id, store)
    came = bring(store, other)
    assert came.id == "local/known"
    for k, e in enumerate(known):
        assert np.array_equal(came.episode(k)["action"], e.action)
        assert np.array_equal(came.episode(k)["next", "reward"][:, 0], e.reward)


@pytest.mark.thorough
def test_a_dataset_that_grows(store: Path, other: Path) -> None:
    rng = np.random.default_rng(1)
    episodes = [growing_model.draw(rng, n) for n in (5, 3, 8, 2)]
    with rlds_cli.writer("local/grow") as w:
        w.add_episodes([e.item() for e in episodes[:2]])
        w.commit()
        push("local/grow", store)
        w.add_episodes([e.item() for e in episodes[2:]])
        w.commit()
        came = bring(store, other)
        growing_model.check(came, episodes[:2])
        assert push("local/grow", store).version == came.version + 1
    old = came  # a reader keeps its version
    came = bring(store, other)
    growing_model.check(came, episodes)
    growing_model.check(old, episodes[:2])
    assert verify("local/grow", home=other).ok
    more = growing_model.draw(rng, 4)
    with rlds_cli.writer("local/grow", home=other) as w:
        w.add_episodes([more.item()])
    growing_model.check(rlds_cli.open_dataset("local/grow", home=other), [*episodes, more])
    with pytest.raises(NameTaken, match="other content"):
        bring(store, other)
    growing_model.check(bring(store, other, force=True), episodes)


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [rlds_cli.Fifo(steps=600), rlds_cli.Reservoir(episodes=20, seed=0)])
def test_what_has_left_is_not_sent(keep: object, store: Path, other: Path) -> None:
    rng = np.random.default_rng(2)
    with rlds_cli.writer("local/grow", keep=keep) as w:  # type: ignore[arg-type]
        for _ in range(6):
            w.add_episodes([growing_model.draw(rng, 20).item() for _ in range(20)])
            w.commit()
            push("local/grow", store)
    ds = rlds_cli.open_dataset("local/grow")
    came = bring(store, other)
    assert came.fingerprint == ds.fingerprint and verify("local/grow", home=other).ok
    assert np.array_equal(came.episodes["total_reward"], ds.episodes["total_reward"])


def test_a_compacted_dataset(store: Path, other: Path) -> None:
    rng = np.random.default_rng(3)
    with rlds_cli.writer("local/grow", keep=rlds_cli.Reservoir(episodes=5, seed=0)) as w:
        w.add_episodes([growing_model.draw(rng, 20).item() for _ in range(30)])
    push("local/grow", store)
    bring(store, other)
    assert run_rlds("compact", "local/grow").returncode == 0
    push("local/grow", store)
    assert bring(store, other).fingerprint == rlds_cli.open_dataset("local/grow").fingerprint
    assert verify("local/grow", home=other).ok


# -- bytes that the other side has


@pytest.mark.thorough
def test_nothing_is_sent_twice(bucket: ObjectStore) -> None:
    ds = large()
    first = push(ds.id, "s3://lab/large", pages=None)
    pages = sum(len(bucket.buckets["lab"][f"large/{name}"]) for name in ("README.md", "croissant.json", "report.html"))
    assert first.sent == sum(len(d) for d in tree(ds.path).values()) <= bucket.received <= 1.01 * first.sent + pages
    with bucket.counting() as asked:
        again = push(ds.id, "s3://lab/large", pages=None)
    assert (again.sent, again.skipped) == (0, first.sent)
    assert sum(r.size for r in asked) < 10_000


@pytest.mark.thorough
def test_a_derived_dataset_sends_its_own_columns(bucket: ObjectStore, other: Path) -> None:
    ds = large()
    push(ds.id, "s3://lab/large")
    made = preprocess.run(ds, "scale_reward", "scaled", jobs=1, args={"scale": 2})
    before = tree(ds.path)
    lacking = sum(len(data) for name, data in tree(made.path).items() if before.get(name) != data)
    with bucket.counting() as asked:
        done = push(made.id, "s3://lab/large-scaled", pages=None)
    sent = sum(r.size for r in asked if r.method == "PUT" and "x-amz-copy-source" not in {k.lower() for k in r.headers})
    assert done.sent <= lacking <= sent <= 1.05 * lacking + 1000
    bucket.buckets["lab"] = {k: v for k, v in bucket.buckets["lab"].items() if k.startswith("large-scaled/")}
    assert bring("s3://lab/large-scaled", other, name="local/got").fingerprint == made.fingerprint


def test_a_changed_dataset_sends_the_blocks_that_changed(bucket: ObjectStore, other: Path) -> None:
    """More rows behind the same ones, and some that are other ones: as after a merge, or a function."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (40_000, 100), np.uint8)
    for rows, changed in ((30_001, None), (40_000, None), (40_000, 15_000)):
        if changed:
            values[changed] += 1
        item = {"observation": values[:rows], "action": np.zeros(rows - 1, bool)}
        ds = rlds_cli.create("local/more", [item], force=True)
        with bucket.counting() as asked:
            push(ds.id, "s3://lab/more")
        sent = sum(r.size for r in asked if r.method == "PUT")
        expected = {30_001: 3_030_000, 40_000: 1_000_000}[rows] if not changed else 0
        assert expected <= sent <= expected + 3 * GROUP
        assert bring("s3://lab/more", other, force=True).fingerprint == ds.fingerprint
    assert verify(ds.id, home=other).ok


@pytest.mark.thorough
def test_a_directory_beside_it_is_linked(store: Path, other: Path) -> None:
    push(large().id, store / "a")
    done = push(large().id, store / "b")
    assert done.sent < 20_000
    shared = {f.name for f in (store / "a/objects").iterdir()} & {f.name for f in (store / "b/objects").iterdir()}
    assert all((store / "b/objects" / name).stat().st_nlink == 2 for name in shared) and shared
    for f in (store / "a").rglob("*"):
        if f.is_file():
            f.unlink()
    assert bring(store / "b", other).num_steps == 30_000


@pytest.mark.thorough
def test_a_new_version_sends_what_is_new(bucket: ObjectStore, other: Path) -> None:
    rng = np.random.default_rng(4)
    steps = 4000

    def item() -> dict[str, object]:
        return {"observation": rng.standard_normal((steps + 1, 32)), "action": rng.standard_normal((steps, 4))}

    of_steps = (steps + 1) * (32 + 4) * 8
    with rlds_cli.writer("local/grow") as w:
        for k in range(4):
            w.add_episodes([item() for _ in range(1 + 3 * (k == 0))])
            w.commit()
            with bucket.counting() as asked:
                push("local/grow", "s3://lab/grow", pages=None if k else False)
            sent = sum(r.size for r in asked if r.method == "PUT")
            rows = of_steps * (1 + 3 * (k == 0))
            assert rows <= sent <= 1.05 * rows
            with bucket.counting() as asked:
                came = bring("s3://lab/grow", other)
            assert came.fingerprint == rlds_cli.open_dataset("local/grow").fingerprint
            fetched = [r for r in asked if r.method == "GET" and "/objects/" in r.path and "?" not in r.path]
            ranges = [r.headers["range"][6:].split("-") for r in fetched]
            assert sum(int(b) - int(a) + 1 for a, b in ranges) <= 1.05 * rows + 2 * GROUP


def test_many_pushes_do_not_make_many_objects(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_OBJECTS", 8)
    with rlds_cli.writer("local/grow") as w:
        for k in range(20):
            w.add_episodes([{"observation": np.full((9, 2), k), "action": np.zeros((8, 1))}])
            w.commit()
            assert push("local/grow", store).objects <= 8


def test_objects_have_about_the_same_size(store: Path, monkeypatch: pytest.MonkeyPatch, other: Path) -> None:
    monkeypatch.setattr(packing, "LEAST", 10_000)
    done = push(large().id, store)
    assert 60 <= done.objects <= 100
    assert bring(store, other).fingerprint == done.fingerprint


@pytest.mark.thorough
def test_few_zeros_lie_between_large_files(store: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9_400, 1000), np.uint8)
    item = {"observation": {"a": values, "b": values[::-1].copy()}, "action": np.zeros(9_399)}
    ds = rlds_cli.create("local/wide", [item])
    size = sum(len(data) for data in tree(ds.path).values())
    assert size <= push(ds.id, store).sent <= 1.03 * size


def test_a_collection_leaves_what_the_versions_that_stay_need(store: Path, other: Path) -> None:
    for seed in range(3):
        large(2000, seed=seed)
        done = push("local/large", store)
    (store / "objects/.killed.part").write_bytes(b"half")

    def stored() -> dict[str, int]:
        return {str(f.relative_to(store)): f.stat().st_size for f in store.rglob("*/*") if f.is_file()}

    before = stored()
    removed = collecting.collect(store)
    index = values_of(store)
    left = {f"{kind}/{sha256}" for sha256, _ in index["objects"] for kind in ("objects", "blocks")}
    left |= {f"groups/{index['groups'][0]}", f"indexes/{done.index}"}
    assert stored().keys() == left
    assert removed.bytes == sum(size for name, size in before.items() if name not in left) - len(b"half") > 0
    assert len(removed.removed) == 2
    assert bring(store, other).fingerprint == done.fingerprint


def test_a_dry_run_writes_nothing(store: Path) -> None:
    ds = large(2000)
    planned = push(ds.id, store, dry_run=True)
    assert planned.dry_run and planned.sent == sum(len(d) for d in tree(ds.path).values())
    assert not store.exists()
    assert push(ds.id, store).sent == planned.sent
    assert push(ds.id, store, dry_run=True).sent == 0


# -- a web server


@pytest.mark.slow
def test_a_web_server_gives_what_a_directory_has(bucket: ObjectStore, other: Path, tmp_path: Path) -> None:
    ds = large()
    push(ds.id, "s3://lab/large")
    address = f"{bucket.url}/lab/large/"
    bucket.ranges = False
    with bucket.counting() as asked:
        assert bring(address, other).fingerprint == ds.fingerprint
    assert len([r for r in asked if "/objects/" in r.path]) <= 4  # the manifest, a look at ranges, and the object
    bucket.ranges = True
    assert bring(address, tmp_path / "third").fingerprint == ds.fingerprint
    with pytest.raises(UploadFailed, match="can only be read"):
        push(large(seed=1).id, address)


@pytest.mark.thorough
def test_a_bucket_of_google(bucket: ObjectStore, other: Path) -> None:
    for seed in range(2):
        ds = large(seed=seed)
        push(ds.id, "gs://lab/a/large")
    assert bring("gs://lab/a/large", other).fingerprint == ds.fingerprint
    with bucket.counting() as asked:
        push(ds.id, "gs://lab/a/beside")
    assert sum(r.size for r in asked) < 20_000
    assert collecting.collect("gs://lab/a/large").bytes > 0
    assert bring("gs://lab/a/beside", other, name="local/b").fingerprint == ds.fingerprint


def test_a_public_bucket_needs_no_credentials(
    bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = large(300)
    push(ds.id, "s3://lab/x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with bucket.counting() as asked:
        assert bring("s3://lab/x", other).fingerprint == ds.fingerprint
    assert all("Authorization" not in r.headers for r in asked)


def test_a_download_repairs_damage_with_force(store: Path, other: Path) -> None:
    ds = large()
    push(ds.id, store)
    came = bring(store, other)
    (file,) = (came.path / "observation/c").rglob("*/0")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    report = verify(ds.id, home=other)
    assert not report.ok and report.hint == f"rlds download {store} --name {ds.id} --force fetches what differs"
    bring(store, other, force=True)
    assert verify(ds.id, home=other).ok


def test_interrupted_downloads_are_resumed_together(
    bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LEAST", 500_000)
    ds = large()
    push(ds.id, "s3://lab/x")
    bucket.faults = [Fault("503", "GET", "/objects/", times=1000, skip=3)]
    with pytest.raises(DownloadFailed):
        bring("s3://lab/x", other, name="local/mine")
    bucket.faults = []
    assert run_rlds("download", "--resume-all", "--home", other).returncode == 0
    assert rlds_cli.open_dataset("local/mine", home=other).fingerprint == ds.fingerprint


def test_a_dataset_that_is_replaced_while_it_is_pushed(
    bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, planned = large(), packing.plan

    def between(*given: object, **how: object) -> object:
        found = planned(*given, **how)  # type: ignore[arg-type]
        large(seed=1)
        return found

    monkeypatch.setattr(packing, "plan", between)
    with pytest.raises(DamagedDataset, match="replaced while it was pushed"):
        push(ds.id, "s3://lab/x")
    assert not any(name.endswith("rlds.json") for name in bucket.buckets["lab"])


# -- what goes wrong

FAULTS = ["500", "503", "429", "reset", "lost", "short", "etag", "other"]


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_store_that_fails_now_and_then(kind: str, bucket: ObjectStore, other: Path) -> None:
    ds = large()
    bucket.faults = [Fault(kind, method, times=2, wait=1.0) for method in ("GET", "HEAD", "PUT", "POST")]
    if kind == "other":  # what a list of objects says is not checked
        bucket.faults = [Fault(kind, "PUT", times=2)]
    push(ds.id, "s3://lab/large")
    bucket.faults = [Fault(kind, "GET", path, times=2, wait=1.0) for path in (r"rlds\.json", "/blocks/", "/objects/")]
    assert bring("s3://lab/large", other).fingerprint == ds.fingerprint
    assert verify(ds.id, home=other).ok


@pytest.mark.thorough
def test_a_transfer_says_what_it_waits_for(bucket: ObjectStore, other: Path) -> None:
    ds, said = large(2000), list[Event]()
    push(ds.id, "s3://lab/large")
    bucket.faults = [Fault("503", "GET", "/objects/", wait=2.0)]
    rlds_cli.download(f"{bucket.url}/lab/large/", home=other, progress=said.append)
    notes = [(e.id, e.note) for e in said if "trying again" in e.note]
    assert notes == [(f"{bucket.url}/lab/large/", "HTTP 503 Service Unavailable: trying again in 2 s")]


@pytest.mark.slow  # how fast depends on the machine
@pytest.mark.parametrize("latency", [0.03])
def test_a_store_that_is_far_away(latency: float, bucket: ObjectStore, other: Path) -> None:
    ds = large()
    push(ds.id, "s3://lab/large")
    bucket.latency = latency
    with bucket.counting() as asked:
        began = time.monotonic()
        assert bring("s3://lab/large", other).fingerprint == ds.fingerprint
    assert time.monotonic() - began < 0.8 * latency * len(asked) + 3


@pytest.mark.parametrize("kind", ["503", "reset"])
def test_a_store_that_stays_away(kind: str, bucket: ObjectStore, other: Path) -> None:
    ds = large(2000)
    bucket.faults = [Fault(kind, "PUT", "/objects/", times=1000)]
    with pytest.raises(UploadFailed, match="could not be written") as e:
        push(ds.id, "s3://lab/large")
    assert SECRET not in str(e.value)
    assert "large/rlds.json" not in bucket.buckets["lab"]
    bucket.faults = []
    push(ds.id, "s3://lab/large")
    bucket.faults = [Fault(kind, "GET", "/objects/", times=1000)]
    with pytest.raises(DownloadFailed, match="could not be read"):
        bring("s3://lab/large", other)
    with pytest.raises(DatasetNotFound):
        rlds_cli.open_dataset(ds.id, home=other)


def test_an_object_with_another_byte_never_opens(store: Path, other: Path) -> None:
    ds = large(60_000)
    push(ds.id, store)
    (name,) = (store / "objects").iterdir()
    data = bytearray(name.read_bytes())
    data[3 * GROUP + 7] ^= 1
    name.chmod(0o644)
    name.write_bytes(data)
    with pytest.raises(WrongHash, match=r"Bytes 3,145,728-4,194,303 of .* do not have the sha256") as e:
        bring(store, other)
    assert "rlds push ID" in str(e.value.hint)
    with pytest.raises(DatasetNotFound):
        rlds_cli.open_dataset(ds.id, home=other)
    assert push(ds.id, store).sent == 0
    assert push(ds.id, store, verify=True).sent == len(data)  # as the hint says
    assert bring(store, other).fingerprint == ds.fingerprint


@pytest.mark.thorough
@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("damage", ["missing", "short", "another byte", "list"])
def test_a_push_mends_what_is_damaged(kind: str, damage: str, store: Path, bucket: ObjectStore, other: Path) -> None:
    """What was lost is sent again byte for byte, so that earlier versions and locks have it, too."""
    first = large()
    address = "s3://lab/a" if kind == "bucket" else str(store)
    push(first.id, address)
    first.label(quality="good")
    stored = Files(bucket if kind == "bucket" else store)
    name = max((n for n in stored.names() if n.startswith("objects/")), key=lambda n: len(stored.read(n)))
    name = name.replace("objects", "blocks") if damage == "list" else name
    whole = stored.read(name)
    push(first.id, address)
    if damage == "missing":
        stored.remove(name)
    else:
        middle = len(whole) // 2
        stored.write(name, whole[:-1] if damage == "short" else whole[:middle] + b"\x7f" + whole[middle + 1 :])
    plan = push(f"{first.id}#v1", address, verify=True, dry_run=True)
    assert plan.mended == plan.sent > 0
    later = push(first.id, address, verify=True)
    assert later.damaged == (1,), "the small files of the first version are in that object, too"
    for number in (1, 2):
        done = push(f"{first.id}#v{number}", address, verify=True)
    assert stored.read(name) == whole
    assert (done.sent, done.mended, done.damaged) == (0, 0, ())
    assert bring(f"{address if kind == 'bucket' else store.as_uri()}#v1", other).fingerprint == first.fingerprint


@pytest.mark.parametrize("part", ["objects", "groups"])
def test_a_store_without_a_file(part: str, store: Path, other: Path) -> None:
    push(large(2000).id, store)
    next((store / part).iterdir()).unlink()
    with pytest.raises((DownloadFailed, DamagedDataset)):
        bring(store, other)
    push("local/large", store)
    assert bring(store, other).num_steps == 2000


def test_an_index_with_the_fingerprint_of_something_else(store: Path, other: Path) -> None:
    """The hashes of blocks are right; the content is not what the index, and a pin, promise."""
    push(large(2000).id, store)
    index = values_of(store) | {"fingerprint": "rlds1:" + "a" * 64}
    forge(store, index)
    with pytest.raises(DamagedDataset, match="fingerprint"):
        bring(f"{store}#{index['fingerprint']}", other)
    assert not (other / "datasets/local/large").exists()


@pytest.mark.thorough
def test_the_content_can_be_pinned(store: Path, other: Path) -> None:
    ds = large(2000)
    push(ds.id, store)
    short = f"rlds1:{ds.fingerprint[6:10]}-{ds.fingerprint[10:14]}-{ds.fingerprint[14:18]}"
    assert bring(f"{store}#{short}", other).fingerprint == ds.fingerprint
    with pytest.raises(WrongFingerprint, match="was asked for"):
        bring(f"{store}#rlds1:0000-0000-0000", other, name="local/new")
    push(large(2000, seed=1).id, store)
    assert bring(f"{store}#{ds.fingerprint}", other, name="local/new").fingerprint == ds.fingerprint


MUTATIONS: dict[str, Callable[[dict], object]] = {
    "no format": lambda d: d.pop("rlds_index"),
    "format of another type": lambda d: d.update(rlds_index=True),
    "id": lambda d: d.update(id="../x"),
    "fingerprint": lambda d: d.update(fingerprint="rlds2:" + "0" * 64),
    "version": lambda d: d.update(version=3),
    "no version": lambda d: d.update(version=None),
    "path upwards": lambda d: d["files"][0].__setitem__(0, "../x"),
    "absolute path": lambda d: d["files"][0].__setitem__(0, "/etc/x"),
    "hidden path": lambda d: d["files"][0].__setitem__(0, ".x/y"),
    "two in one": lambda d: d["files"].append(d["files"][0]),
    "case": lambda d: d["files"].append([d["files"][0][0].upper(), *d["files"][0][1:]]),
    "below a file": lambda d: d["files"].append([d["files"][0][0] + "/x", 0, []]),
    "no manifest": lambda d: d.update(files=[f for f in d["files"] if f[0] != "zarr.json"]),
    "hole": lambda d: d["files"][0].__setitem__(1, d["files"][0][1] + 1),
    "negative": lambda d: d["files"][0].__setitem__(1, -1),
    "float": lambda d: d["files"][0].__setitem__(1, 1e3),
    "huge": lambda d: d["files"][0].__setitem__(1, 1 << 60),
    "object": lambda d: d["files"][0][2][0].__setitem__(1, 9),
    "offset": lambda d: d["files"][0][2][0].__setitem__(2, 1 << 40),
    "overlap": lambda d: d["files"][0][2].append(d["files"][0][2][0]),
    "twice": lambda d: d["objects"].append(d["objects"][0]),
    "empty object": lambda d: d["objects"][0].__setitem__(1, 0),
    "name": lambda d: d["objects"][0].__setitem__(0, "../../secret"),
    "groups": lambda d: d["groups"].__setitem__(1, 64),
    "no groups": lambda d: d.pop("groups"),
    "object of another length": lambda d: d["objects"][0].pop(),
    "manifest": lambda d: d.update(manifest=None),
    "another manifest": lambda d: d.update(manifest="0" * 64),
    "list": lambda d: d.update(files={}),
    "piece": lambda d: d["files"][0][2].__setitem__(0, [0, 0]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("what", MUTATIONS)
def test_the_index_of_a_stranger(what: str, store: Path, other: Path) -> None:
    push(large(200).id, store)
    index = values_of(store)
    MUTATIONS[what](index)
    forge(store, index)
    with pytest.raises(DamagedDataset):
        bring(store, other)
    assert not (other / "datasets").exists() or not any((other / "datasets").rglob("zarr.json"))
    push("local/large", store)
    assert bring(store, other).num_steps == 200


VERSIONS: dict[str, Callable[[dict], object]] = {
    "no format": lambda d: d.pop("rlds_dataset"),
    "format of another type": lambda d: d.update(rlds_dataset=True),
    "id": lambda d: d.update(id="../x"),
    "no versions": lambda d: d.update(versions=[]),
    "versions of another type": lambda d: d.update(versions={}),
    "twice": lambda d: d["versions"].append(d["versions"][0]),
    "a version of another length": lambda d: d["versions"][0].pop(),
    "number": lambda d: d["versions"][0].__setitem__(0, -1),
    "index": lambda d: d["versions"][0].__setitem__(1, "../../secret"),
    "size": lambda d: d["versions"][0].__setitem__(2, 1 << 60),
    "fingerprint": lambda d: d["versions"][0].__setitem__(3, "rlds2:" + "0" * 64),
    "time": lambda d: d["versions"][0].__setitem__(4, "\x1b[2J"),
    "change": lambda d: d["versions"][0].__setitem__(5, None),
    "a tag of nothing": lambda d: d.update(tags={"icra": "0" * 64}),
    "a tag that is not one": lambda d: d.update(tags={"v3": d["versions"][0][1]}),
    "tags of another type": lambda d: d.update(tags=[]),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("what", VERSIONS)
def test_the_versions_of_a_stranger(what: str, store: Path, other: Path) -> None:
    push(large(200).id, store)
    found = json.loads((store / "rlds.json").read_text())
    VERSIONS[what](found)
    (store / "rlds.json").write_bytes(signed(found))
    for act in (lambda: bring(store, other), lambda: push("local/large", store)):
        with pytest.raises(DamagedDataset, match=r"Nothing was (written|sent)"):
            act()
    assert run_rlds("log", store).returncode == 1


def test_an_index_of_another_dataset_than_the_versions_say(store: Path, other: Path) -> None:
    push(large(200).id, store)
    index = values_of(store)
    forge(store, index | {"id": "local/another"})
    with pytest.raises(DamagedDataset, match="than its index"):
        bring(store, other)


@given(st.data())
def test_an_index_that_was_changed_anywhere(data: st.DataObject) -> None:
    """Whatever a stranger writes is read as an index, or refused as none."""
    sha = ["a" * 64, "b" * 64]
    pieces = [[0, 0, 0, 5, sha[0]], [5, 1, 3, 4, sha[1]]]
    index: dict[str, Any] = {
        "rlds_index": 1,
        "rlds_version": "0",
        "id": "local/x",
        "fingerprint": f"rlds1:{sha[0]}",
        "version": 1,
        "manifest": sha[0],
        "groups": [sha[0], 64],
        "objects": [[sha[0], 9], [sha[1], 7]],
        "files": [["zarr.json", 9, pieces], ["a/b", 0, []]],
    }
    Index.parse(written(index, "files"), "it")
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(index)
    odd = st.sampled_from(
        [None, True, -1, 0, 1, 3, 1 << 70, 1.5, "", "a", "..", "/x", [], {}, [[]], sha[1], float("nan")]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(odd)
    with suppress(DamagedDataset, NewerFormat):
        found = Index.parse(written(index, "files"), "it")
        assert Index.parse(found.to_bytes(), "it").files == found.files


def test_versions_with_another_byte(store: Path, other: Path) -> None:
    """Each byte counts, also that of an id."""
    push(large(200).id, store)
    text = (store / "rlds.json").read_text()
    (store / "rlds.json").write_text(text.replace("local/large", "local/larfe"))
    with pytest.raises(DamagedDataset, match="not as it was written"):
        bring(store, other)


def test_an_index_with_another_byte(store: Path, other: Path) -> None:
    push(large(200).id, store)
    file = next((store / "indexes").iterdir())
    text = file.read_text()
    file.write_text(text.replace("local/large", "local/larfe"))
    with pytest.raises(DamagedDataset, match="other content"):
        bring(store, other)
    push("local/large", store)
    assert bring(store, other).num_steps == 200


@pytest.mark.thorough
def test_versions_without_their_own_sha256(store: Path, other: Path) -> None:
    push(large(200).id, store)
    index = json.loads((store / "rlds.json").read_text())
    del index["sha256"]
    (store / "rlds.json").write_text(json.dumps(index))
    with pytest.raises(DamagedDataset, match="is not a sha256"):
        bring(store, other)


def test_an_index_of_a_later_version(store: Path, other: Path) -> None:
    push(large(200).id, store)
    index = json.loads((store / "rlds.json").read_text())
    (store / "rlds.json").write_bytes(signed(index | {"rlds_dataset": 2}))
    for act in (lambda: bring(store, other), lambda: push("local/large", store)):
        with pytest.raises(NewerFormat, match="format 2"):
            act()


# -- two at a time


def test_two_pushes_do_not_mix(bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = large(2000), create([episode(k, 5) for k in range(3)])
    push(first.id, "s3://lab/one")
    sending = packing.plan

    def between(*given: object, **how: object) -> object:
        planned = sending(*given, **how)  # type: ignore[arg-type]
        monkeypatch.setattr(packing, "plan", sending)
        push(second.id, "s3://lab/one", force=True)  # somebody else is faster
        return planned

    monkeypatch.setattr(packing, "plan", between)
    third = large(2000, seed=3)
    with pytest.raises(UploadFailed, match="Somebody else pushed") as e:
        push(third.id, "s3://lab/one")
    assert "same command again" in str(e.value.hint)
    assert bring("s3://lab/one", other).fingerprint == second.fingerprint
    push(third.id, "s3://lab/one", force=True)
    assert bring("s3://lab/one", other, name="local/third").fingerprint == third.fingerprint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["directory", "bucket", "google", "unconditional"])
def test_the_index_is_of_one_push(place: str, bucket: ObjectStore, store: Path, other: Path) -> None:
    bucket.conditional = place != "unconditional"
    address = {"directory": str(store), "google": "gs://lab/one"}.get(place, "s3://lab/one")
    sets = [large(500, ref=f"local/n{k}", seed=k) for k in range(4)]
    failed: list[Exception] = []

    def send(ds: Dataset) -> None:
        try:
            push(ds.id, address, force=True)
        except UploadFailed as e:
            failed.append(e)

    threads = [threading.Thread(target=send, args=(ds,)) for ds in sets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    came = bring(address, other)
    assert came.fingerprint in {ds.fingerprint for ds in sets}
    assert len(failed) < 4 and all("Somebody else" in str(e) for e in failed)


def test_a_store_that_cannot_compare_says_so(bucket: ObjectStore) -> None:
    bucket.conditional = False
    notes: list[str] = []
    push(large(500).id, "s3://lab/one", progress=lambda event: notes.append(event.note))
    assert any("cannot compare" in note for note in notes)


# -- kills


def killed(act: Callable[[], object], when: Callable[[], bool]) -> None:
    """Do something that does not end in a process of its own, and kill it as soon as ``when`` says so."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    while not when():
        assert not os.waitpid(child, os.WNOHANG)[0], "it ended by itself"
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_push_that_is_killed_goes_on(store: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds, pieces = large(20_000), Body.pieces
    monkeypatch.setattr(packing, "LEAST", 200_000)

    written: list[Body] = []

    def four(body: Body) -> Iterator[Chunk]:  # and no more: then it waits to be killed
        written.append(body)
        while len(written) > 4:
            time.sleep(1)
        return pieces(body)

    def there() -> set[str]:
        return {f.name for f in store.glob("objects/*") if f.name[0] != "."}

    monkeypatch.setattr(Body, "pieces", four)
    for _ in range(3):
        before = there()
        killed(lambda: push(ds.id, store), lambda before=before: len(there() - before) >= 2)
        assert not (store / "rlds.json").exists() and before < there()
    before = there()
    monkeypatch.setattr(Body, "pieces", pieces)
    done = push(ds.id, store)
    assert done.sent == sum((store / "objects" / name).stat().st_size for name in there() - before)
    assert bring(store, other).fingerprint == ds.fingerprint


def test_a_download_that_is_killed_goes_on(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = large(40_000)
    monkeypatch.setattr(packing, "LEAST", 200_000)
    monkeypatch.setattr(pulling, "_SYNCED", 1)
    push(ds.id, tmp_path / "store")
    with ObjectStore(latency=0.02) as server:
        server.buckets["x"] = tree(tmp_path / "store")
        address = f"{server.url}/x/"

        def asked() -> list[tuple[str, str]]:
            return [(r.path, r.headers["Range"]) for r in server.requests if "Range" in r.headers]

        for _ in range(2):
            before = len(asked())
            server.faults = [Fault("slow", path="objects/", skip=6, times=1000, wait=60)]
            # A connection asks again when what it got is stored: with six more, most of the six are.
            killed(lambda: bring(address, other), lambda before=before: len(asked()) >= before + 6 + 6)
            server.faults = []
            assert not (other / "datasets/local/large").exists()
        before = len(asked())
        came = bring(address, other)
        last = len(asked()) - before
        bring(address, tmp_path / "third")
        whole = len(asked()) - before - last
    assert came.fingerprint == ds.fingerprint and verify(ds.id, home=other).ok
    assert last <= whole - 3  # each of the two stored some
    assert not any((other / "partial").iterdir())


# -- names, ids, addresses


def test_an_id_of_the_registry_is_not_taken_from_an_address(store: Path, other: Path) -> None:
    push(sample_dataset("pendulum-d4rl").id, store)
    with pytest.raises(InvalidId, match="only the registry says") as e:
        bring(store, other)
    assert "--name local/NAME" in str(e.value.hint)
    with pytest.raises(InvalidId, match="such ids are the registry's"):
        bring(store, other, name="sample/pendulum-d4rl")
    assert bring(store, other, name="local/p@v2").id == "local/p@v2"


def test_another_dataset_is_not_replaced(store: Path, other: Path) -> None:
    push(large(300).id, store)
    mine = rlds_cli.create("local/large", [{"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}], home=other)
    with pytest.raises(NameTaken, match="other content"):
        bring(store, other)
    assert rlds_cli.open_dataset("local/large", home=other).fingerprint == mine.fingerprint
    assert bring(store, other, force=True).num_steps == 300


def test_arguments(store: Path, other: Path) -> None:
    push(large(300).id, store)
    for options in ({"storage": "zarr"}, {"episodes": "0:3"}, {"source": "/x"}, {"frames": "raw"}):
        with pytest.raises(InvalidArgument, match="does not apply"):
            bring(store, other, **options)
    with pytest.raises(InvalidArgument, match="has its own id"):
        rlds_cli.download("sample/pendulum-d4rl", name="local/x")
    with pytest.raises(DatasetNotFound, match=r"neither rlds\.json nor"):
        bring(store / "nothing", other)
    with pytest.raises(InvalidId, match="is not an address"):
        push("local/large", "ftp://host/x")
    with pytest.raises(Offline):
        bring("s3://lab/x", other, offline=True)


def test_open_dataset_by_address(store: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = large(300)
    push(ds.id, store)
    assert rlds_cli.open_dataset(str(store)).path == ds.path
    assert rlds_cli.open_dataset(str(store), home=other).store.address
    bring(store, other, name="local/mine")
    assert rlds_cli.open_dataset(str(store), home=other).id == "local/mine"
    assert rlds_cli.open_dataset(f"{store}#{ds.fingerprint}", home=other).id == "local/mine"
    with pytest.raises(WrongFingerprint):
        rlds_cli.open_dataset(f"{store}#rlds1:0000-0000-0000", home=other)
    monkeypatch.setenv("RLDS_HOME", str(other))
    remove(["local/mine"])
    assert rlds_cli.open_dataset(str(store)).store.address


# -- lock files


@pytest.mark.thorough
def test_an_address_means_what_was_pushed_there_last(store: Path) -> None:
    large(100, ref="local/a")
    push("local/a", store)
    large(100, ref="local/b", seed=1)
    push("local/b", store, force=True)
    assert rlds_cli.open_dataset(str(store)).id == "local/b"
    push("local/a", store, force=True)
    assert rlds_cli.open_dataset(str(store)).id == "local/a"


@pytest.mark.thorough
def test_the_command_that_fetches_it_can_be_pasted(store: Path) -> None:
    place = store / "our lab"
    ds = large(100, ref="local/a")
    told = run_rlds("push", ds.id, place).stdout.decode()
    assert f"rlds download '{place}'#{ds.fingerprint}" in told


def test_a_selection_is_not_pushed_as_the_whole(store: Path) -> None:
    ds = large(100)
    with pytest.raises(InvalidArgument, match="a selection is not a version"):
        rlds_cli.push(ds.select(episodes=[0]), store)
    assert not store.exists()


def test_an_open_dataset_is_pushed_as_it_is_open(store: Path, other: Path) -> None:
    first = large(100, ref="local/a")
    second = first.label({"success": np.ones(first.num_episodes, bool)})
    assert rlds_cli.push(first, store).fingerprint == first.fingerprint == rlds_cli.open_dataset(str(store)).fingerprint
    assert rlds_cli.push(second, store).fingerprint == second.fingerprint != first.fingerprint
    assert rlds_cli.open_dataset(str(store)).fingerprint == second.fingerprint
    with pytest.raises(InvalidArgument, match="at an address"):
        rlds_cli.push(rlds_cli.open_dataset(str(store), home=other), store.with_name("copy"))


@pytest.mark.thorough
def test_a_lock_names_the_address(store: Path, other: Path, tmp_path: Path) -> None:
    ds = large(300)
    made = preprocess.run(ds, "scale_reward", "scaled", jobs=1, args={"scale": 2})
    with rlds_cli.writer("local/grow") as w:
        w.add_episodes([growing_model.draw(np.random.default_rng(0), 5).item()])
    for id in (ds.id, made.id, "local/grow"):
        push(id, store / id.replace("/", "-"))
    file = tmp_path / "rlds.lock"
    file.write_text(pinning.lock([ds.id, made.id, "local/grow"]))
    assert [d["address"] for d in json.loads(file.read_text())["datasets"]] == [
        str(store / name) for name in ("local-large", "local-large@scaled", "local-grow")
    ]
    done = pinning.sync(file, home=other)
    assert [(d.id, d.how) for d in done] == [(i, "downloaded") for i in (ds.id, made.id, "local/grow")]
    assert [d.fingerprint for d in done] == [rlds_cli.open_dataset(d.id).fingerprint for d in done]
    assert [d.how for d in pinning.sync(file, home=other)] == ["here"] * 3
    push(large(300, seed=5).id, store / "local-large")
    (store / "local-large/rlds.json").unlink()  # the lock pins the index itself
    assert [d.how for d in pinning.sync(file, home=tmp_path / "third")] == ["downloaded"] * 3


@pytest.mark.thorough
def test_a_lock_takes_an_archive_where_the_store_is_gone(store: Path, other: Path, tmp_path: Path) -> None:
    sample_dataset("pendulum-d4rl")
    file = tmp_path / "rlds.lock"
    push("sample/pendulum-d4rl", store)
    file.write_text(pinning.lock(["sample/pendulum-d4rl"]))
    assert "address" not in json.loads(file.read_text())["datasets"][0]  # the registry says what it is
    assert pinning.sync(file, home=other)[0].how == "downloaded"


@pytest.mark.parametrize("address", ["s3://u:p@lab/x", "https://u:p@host/x/", "https://host/x/?token=1", "x", "", 3])
def test_addresses_that_no_lock_has(address: object, tmp_path: Path) -> None:
    entry = {
        "id": "local/x",
        "fingerprint": "rlds1:" + "a" * 64,
        "fields": {},
        "files": [],
        "options": {},
        "made_by": [],
    }
    file = tmp_path / "rlds.lock"
    file.write_text(json.dumps({"rlds_lock": 1, "datasets": [entry | {"address": address}]}))
    with pytest.raises(RldsError, match=r"datasets\[0\]\.address"):
        pinning.read(file)


# -- credentials


def test_no_credential_is_written_or_sent_elsewhere(
    bucket: ObjectStore,
    other: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    bucket.private.add("lab")
    ds = large(300)
    assert run_rlds("push", ds.id, "s3://lab/x", "--verbose").returncode == 0
    assert bring("s3://lab/x", other).fingerprint == ds.fingerprint
    (tmp_path / "rlds.lock").write_text(pinning.lock([ds.id]))
    bucket.faults = [Fault("503", m, times=100) for m in ("GET", "PUT", "HEAD")]
    said = [str(capfd.readouterr()), caplog.text]
    for act in (lambda: push(ds.id, "s3://lab/y"), lambda: bring("s3://lab/x", other, name="local/y")):
        with pytest.raises(RldsError) as e:
            act()
        said.append(repr(e.value) + str(e.value.__cause__) + str(e.value.__context__))
    files = [f for top in (tmp_path, other) for f in top.rglob("*") if f.is_file()]
    said += [data.decode("latin-1") for data in bucket.buckets["lab"].values()]
    said += [f.read_bytes().decode("latin-1") for f in files]
    assert all(SECRET not in text and KEY not in text for text in said)
    assert all(SECRET not in str(r.headers) for r in bucket.requests)
    bucket.faults = []
    with bucket.counting() as asked:
        bring(f"{bucket.url}/lab/x/", other, name="local/z") if not bucket.private else None
        with pytest.raises(DownloadFailed, match="403"):
            bring(f"{bucket.url}/lab/x/", other, name="local/z")
    assert asked and all("Authorization" not in r.headers for r in asked)


@pytest.mark.thorough
def test_the_user_of_a_web_address_is_not_kept(bucket: ObjectStore, other: Path) -> None:
    push(large(300).id, "s3://lab/x")
    address = bucket.url.replace("://", "://me:canary-password@") + "/lab/x/?token=canary-token"
    with bucket.counting() as asked:
        bring(address, other)
    assert all("token=canary-token" in r.path for r in asked)
    written = b"".join(f.read_bytes() for f in other.rglob("*") if f.is_file())
    assert b"canary" not in written
    assert rlds_cli.open_dataset(f"{bucket.url}/lab/x/", home=other).num_steps == 300


# -- the command


@pytest.mark.thorough
def test_the_command(store: Path, other: Path) -> None:
    large(300)
    said = run_rlds("push", "local/large", store, "--dry-run")
    assert said.returncode == 0 and b"would be sent" in said.stdout and not store.exists()
    said = run_rlds("push", "local/large", store, "--json")
    assert json.loads(said.stdout)["objects"] == 1
    assert b"0 B sent" in run_rlds("push", "local/large", store, "-q").stdout
    said = run_rlds("download", store, "--name", "local/mine", "--home", other)
    assert said.returncode == 0 and b"local/mine" in said.stdout
    assert b"exists: " in run_rlds("download", store, "--name", "local/mine", "--home", other, "--dry-run").stdout
    assert run_rlds("download", store, store, "--name", "local/mine").returncode == 1


@pytest.mark.thorough
def test_an_index_can_be_read_by_anybody(store: Path) -> None:
    """The format, from its description: files are pieces of objects, and blocks have hashes."""
    ds = large(2000)
    push(ds.id, store)
    _, sha256, size, *_ = json.loads((store / "rlds.json").read_text())["versions"][-1]
    text = (store / "indexes" / sha256).read_bytes()
    assert (hashlib.sha256(text).hexdigest(), len(text)) == (sha256, size)
    index = json.loads(text)
    objects = [(store / "objects" / name).read_bytes() for name, _ in index["objects"]]
    assert [[hashlib.sha256(o).hexdigest(), len(o)] for o in objects] == index["objects"]
    hashes = b""
    for (name, _), o in zip(index["objects"], objects, strict=True):
        blocks = [hashlib.sha256(o[a : a + 65_536]).digest() for a in range(0, len(o), 65_536)]
        assert (store / "blocks" / name).read_bytes() == b"".join(blocks)
        hashes += b"".join(hashlib.sha256(b"".join(blocks[a : a + 16])).digest() for a in range(0, len(blocks), 16))
    assert (store / "groups" / index["groups"][0]).read_bytes() == hashes
    files = {}
    for path, size, pieces in index["files"]:
        content = bytearray(size)
        for at, number, offset, length, sha256 in pieces:
            content[at : at + length] = objects[number][offset : offset + length]
            assert hashlib.sha256(content[at : at + length]).hexdigest() == sha256
        files[path] = bytes(content)
    assert files == tree(ds.path)
    assert hashlib.sha256(files["zarr.json"]).hexdigest() == index["manifest"]


def test_a_lock_sends_requests_to_allowed_hosts_only(store: Path, other: Path, tmp_path: Path) -> None:
    ds = large(300)
    push("local/large", store)
    with Server() as server:
        for name, data in tree(store).items():
            server.add(f"/{name}", data)
        entry = {
            "id": "local/large",
            "fingerprint": ds.fingerprint,
            "fields": {},
            "files": [],
            "options": {},
            "made_by": [],
        }
        lock = tmp_path / "rlds.lock"
        lock.write_text(json.dumps({"rlds_lock": 1, "datasets": [entry | {"address": f"{server.url}/"}]}))
        host = server.host
        assert pinning.hosts(lock, home=other) == (host,)
        for allowed in ((), ("example.org",), ("127.0.0",)):
            with pytest.raises(RldsError, match=f"would send requests to {host}") as caught:
                pinning.sync(lock, allow_address=allowed, home=other)
            assert f"--allow-address {host}" in str(caught.value.hint)
        said = run_rlds("sync", lock, "--home", other)
        assert said.returncode == 1 and b"--allow-address" in said.stderr
        assert not server.asked
        done = run_rlds("sync", lock, "--home", other, "--allow-address", host.partition(":")[0])
        assert done.returncode == 0, done.stderr
        assert pinning.sync(lock, home=other)[0].how == "here"  # nothing is asked for
    assert rlds_cli.open_dataset("local/large", home=other).fingerprint == ds.fingerprint


# -- other datasets at the same address


@pytest.mark.thorough
def test_another_dataset_at_an_address_is_replaced_on_demand_only(store: Path, other: Path) -> None:
    first = large(400)
    large(500, ref="local/second", seed=1)
    push("local/large", store)
    for dry_run in (True, False):
        with pytest.raises(NameTaken, match=r"holds local/large .*not local/second") as caught:
            push("local/second", store, dry_run=dry_run)
        assert "--force" in str(caught.value.hint)
    said = run_rlds("push", "local/second", str(store))
    assert said.returncode == 1 and "holds local/large" in said.stderr.decode()
    assert bring(f"{store}#{first.fingerprint}", other).fingerprint == first.fingerprint
    assert run_rlds("push", "local/second", str(store), "--force").returncode == 0
    assert bring(store, other).id == "local/second"


@pytest.mark.thorough
def test_new_content_of_a_dataset_is_another_version(store: Path, other: Path) -> None:
    """A dataset that was made anew has version 1 again. The earlier one is found by its fingerprint."""
    first = large(400)
    push("local/large", store)
    made = large(400, seed=1)
    push("local/large", store)
    assert bring(store, other).fingerprint == bring(f"{store}#v1", other).fingerprint == made.fingerprint
    assert bring(f"{store}#{first.fingerprint}", other, name="local/first").fingerprint == first.fingerprint


def test_another_dataset_in_a_bucket_is_refused(bucket: ObjectStore) -> None:
    large(400)
    large(500, ref="local/second", seed=1)
    push("local/large", "s3://lab/a")
    before = dict(bucket.buckets["lab"])
    with pytest.raises(NameTaken, match="local/large"):
        push("local/second", "s3://lab/a")
    assert bucket.buckets["lab"] == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("id", ["local/large", "sample/pendulum-d4rl", "sample/pendulum-d4rl@half"])
def test_the_command_that_a_push_prints_works(id: str, store: Path, other: Path) -> None:
    if id == "local/large":
        large(400)
    else:
        sample_dataset("pendulum-d4rl")
    if id.endswith("@half"):
        preprocess.run("sample/pendulum-d4rl", "scale_reward", "half", args={"scale": 0.5})
    said = run_rlds("push", id, str(store))
    command = next(line for line in said.stdout.decode().splitlines() if line.startswith("rlds download "))
    done = run_rlds(*shlex.split(command)[1:], "--home", str(other))
    assert done.returncode == 0, done.stderr
    came = next(word for word in (*shlex.split(command)[::-1], "local/large") if word.startswith("local/"))
    assert rlds_cli.open_dataset(came, home=other).fingerprint == rlds_cli.open_dataset(id).fingerprint


# -- objects beside an address


def beside(kind: str, store: Path, bucket: ObjectStore) -> tuple[str, str]:
    return (f"{store}/a", f"{store}/b") if kind == "directory" else ("s3://lab/a", "s3://lab/b")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("damage", ["object", "hashes", "index"])
def test_a_wrong_object_beside_an_address_is_not_taken_over(
    kind: str, damage: str, store: Path, bucket: ObjectStore, other: Path
) -> None:
    source = large()
    first, second = beside(kind, store, bucket)
    push("local/large", first)
    made = preprocess.run("local/large", "scale_reward", "made", args={"scale": 2})
    stored = Files(Path(first) if kind == "directory" else bucket)
    name = next(n for n in stored.names() if f"/{'blocks' if damage == 'hashes' else 'objects'}/" in f"/{n}")
    if damage == "index":  # says that other bytes of the object are those of a file
        there = json.loads(stored.read("rlds.json"))
        index = json.loads(stored.read(f"indexes/{there['versions'][0][1]}"))
        pieces = next(f[2] for f in index["files"] if f[0].startswith("observation/c/"))
        pieces[0][2] += 1 << 16
        text = written(index, "files")
        there["versions"][0][1] = hashlib.sha256(text).hexdigest()
        stored.write(f"indexes/{there['versions'][0][1]}", text)
        stored.write("rlds.json", signed(there))
    else:
        data = bytearray(stored.read(name))
        data[len(data) // 2] ^= 255
        stored.write(name, bytes(data))
    done = push("local/large@made", second)
    assert done.sent >= source.num_steps * 64 or damage == "hashes"
    assert bring(second, other).fingerprint == made.fingerprint


class Files:
    """The files below one address, to be damaged."""

    def __init__(self, place: Path | ObjectStore) -> None:
        self._place = place

    def names(self) -> list[str]:
        if isinstance(self._place, Path):
            return sorted(tree(self._place))
        return sorted(k.removeprefix("a/") for k in self._place.buckets["lab"] if k.startswith("a/"))

    def read(self, name: str) -> bytes:
        return (self._place / name).read_bytes() if isinstance(self._place, Path) else self._stored()[f"a/{name}"]

    def write(self, name: str, data: bytes) -> None:
        if isinstance(self._place, Path):
            (self._place / name).unlink(missing_ok=True)
            (self._place / name).write_bytes(data)
        else:
            self._stored()[f"a/{name}"] = data

    def remove(self, name: str) -> None:
        if isinstance(self._place, Path):
            (self._place / name).unlink()
        else:
            del self._stored()[f"a/{name}"]

    def _stored(self) -> dict[str, bytes]:
        assert isinstance(self._place, ObjectStore)
        return self._place.buckets["lab"]
