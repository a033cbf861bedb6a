"""Faults of stores while a dataset at an address is read: the values of the dataset, or an error in time that helps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_store import Store, blocks, opened, read
from conftest import run_rlds
from hub_server import Hub
from object_store import Fault, ObjectStore
from test_remote_store import HASTY, large
from test_remote_training import same

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DownloadFailed, RldsError, WrongHash
from rlds_cli.loader import Loader, Shuffled
from rlds_cli.loader.storage.remote import Arrival
from rlds_cli.places.remote import content

OBJECTS = r"(/|%2F)(objects|blocks)(/|%2F)|/[0-9a-f]{64}($|\?)"
LARGE: dict[str, Any] = {"rows": 3_000, "width": 900}  # three blocks


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.content.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.lists._PATIENCE", 0.1)


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The home of somebody who has no dataset."""
    return tmp_path / "far"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore")
    with ObjectStore() as running:
        running.buckets["lab"] = {}
        for name, value in running.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as running:
        for name, value in running.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield running


def assert_batches(there: Dataset, here: Dataset, **arguments: Any) -> None:
    """Compare the first batches of a loader."""
    arguments = {"backend": "numpy", "steps": 6, "seed": 3, **arguments}
    for one, other in zip(Loader(there, 16, **arguments), Loader(here, 16, **arguments), strict=True):
        same(one, other)


# -- what a store does, and what comes of it

WEB, S3, GS = "web", "s3://lab/a", "gs://lab/a"


def address(kind: str, bucket: ObjectStore) -> str:
    return f"{bucket.url}/lab/a/" if kind == WEB else kind


WRONG = [  # kind of address, fault, error, a part of the hint
    (S3, "403", "access is denied", "AWS_ACCESS_KEY_ID"),
    (S3, "expired", "the credentials have expired", "AWS_ACCESS_KEY_ID"),
    (S3, "404", "there is no such file", "rlds push ID s3://lab/a --verify"),
    (S3, "other", "the sha256 that the index names", "rlds push ID s3://lab/a --verify"),
    (S3, "503", r"HTTP 503|within 1 s", "the connection|larger timeout="),
    (S3, "slow", "within 1 s|the connection failed", "larger timeout=|the connection"),
    (GS, "403", "access is denied", "GOOGLE_APPLICATION_CREDENTIALS"),
    (WEB, "401", "HTTP 401", "netrc"),
    (WEB, "404", "HTTP 404", "whoever pushed it"),
    (WEB, "gzip", "the sha256 that the index names|another range|could not be read", "push|connection"),
    (WEB, "slow", "within 1 s|could not be read", "timeout=|connection"),
]


@pytest.mark.slow  # a busy machine is too late for its time-outs
def test_what_a_store_does_wrong_is_said_in_time(bucket: ObjectStore, far: Path) -> None:
    here = large(**LARGE)
    rlds_cli.push(here.id, S3, pages=False)
    rlds_cli.push(here.id, GS, pages=False)
    for k, (kind, fault, message, hint) in enumerate(WRONG):
        there = rlds_cli.open_dataset(address(kind, bucket), home=far / str(k), timeout=1)
        bucket.faults.append(Fault(fault, path=OBJECTS, times=1 << 30, wait=2.5))
        begun = time.monotonic()
        with pytest.raises((DownloadFailed, WrongHash), match=rf"(?s)Block \d+ of \S+ \(bytes .*({message})") as caught:
            there.column("observation")[:]
        assert time.monotonic() - begun < 60
        assert caught.value.hint and any(part in caught.value.hint for part in hint.split("|")), caught.value.hint
        bucket.faults.clear()
        again = rlds_cli.open_dataset(address(kind, bucket), home=far / str(k))
        assert_batches(again, here)  # nothing wrong was kept


@pytest.mark.thorough
def test_passing_faults_change_no_batch(bucket: ObjectStore, far: Path) -> None:
    here = large(**LARGE)
    rlds_cli.push(here.id, S3, pages=False)
    for kind, fault, times in (
        *((kind, fault, 2) for kind in (S3, WEB) for fault in ("long", "short", "slow")),
        (WEB, "moved", 100),
    ):
        there = rlds_cli.open_dataset(address(kind, bucket), home=far / kind[-1] / fault)
        bucket.faults.append(Fault(fault, path=r"objects/[0-9a-f]{64}$", times=times, wait=0.1))
        assert_batches(there, here)
        assert bucket.faults.pop().times < times


def test_a_server_that_sends_whole_files_is_read(bucket: ObjectStore, far: Path) -> None:
    here = large(rows=900)
    rlds_cli.push(here.id, S3, pages=False)
    bucket.ranges = False
    assert_batches(rlds_cli.open_dataset(address(WEB, bucket), home=far), here)


@pytest.mark.thorough
def test_a_store_that_is_away_for_many_attempts_is_waited_for(bucket: ObjectStore, far: Path) -> None:
    here = large(**LARGE)
    rlds_cli.push(here.id, S3, pages=False)
    there = rlds_cli.open_dataset(address(WEB, bucket), home=far, timeout=60)
    bucket.faults.append(Fault("503", path=OBJECTS, times=20 * HASTY.attempts))
    assert_batches(there, here, sampler=Shuffled())
    assert bucket.faults[0].times == 0


def test_a_bucket_that_is_not_there_is_said(bucket: ObjectStore, far: Path) -> None:
    with pytest.raises(DownloadFailed, match="there is no bucket labb") as caught:
        rlds_cli.open_dataset("s3://labb/a", home=far)
    assert caught.value.hint is not None and "AWS_ENDPOINT_URL" in caught.value.hint


# -- the hub


def test_a_dataset_on_the_hub_is_read_at_any_revision(hub: Hub, far: Path) -> None:
    first = large(rows=900)
    rlds_cli.push(first.id, "hf://datasets/lab/arm", pages=False)
    then = hub.repositories["lab/arm"].head
    assert_batches(rlds_cli.open_dataset("hf://datasets/lab/arm", home=far), first)
    batch = next(iter(Loader(first, 16, backend="numpy"))).copy()
    now = large(rows=900, seed=1)
    rlds_cli.push(now.id, "hf://datasets/lab/arm", pages=False)
    assert_batches(rlds_cli.open_dataset("hf://datasets/lab/arm@main", home=far, cache=0), now)
    before = rlds_cli.open_dataset(f"hf://datasets/lab/arm@{then}", home=far, cache=0)
    same(next(iter(Loader(before, 16, backend="numpy"))), batch)


@pytest.mark.thorough
def test_faults_of_the_hub_change_no_batch(hub: Hub, far: Path) -> None:
    here = large(**LARGE)
    rlds_cli.push(here.id, "hf://datasets/lab/arm", pages=False)
    for fault in ("503", "429", "reset", "short", "other"):
        there = rlds_cli.open_dataset("hf://datasets/lab/arm", home=far / fault)
        hub.faults.append(Fault(fault, path=OBJECTS, times=2))
        assert_batches(there, here)
        assert hub.faults.pop().times == 0


@pytest.mark.parametrize("token", [None, "hf_expired"])
def test_a_token_that_is_missing_or_not_accepted(
    token: str | None, hub: Hub, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlds_cli.push(large(rows=900).id, "hf://datasets/lab/arm", pages=False)
    hub.repositories["lab/arm"].private = True
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DownloadFailed, match="HTTP 401") as caught:
        rlds_cli.open_dataset("hf://datasets/lab/arm", home=far)
    assert caught.value.hint is not None and "HF_TOKEN" in caught.value.hint


# -- waiting, and what is left


def test_what_an_earlier_request_met_is_asked_again(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()

    def refuse(file: int, start: int) -> None:
        go.wait(60)
        store.before = lambda file, start: None
        raise DownloadFailed("HTTP 503")

    store.before = refuse
    files = opened(tmp_path / "remote", store)
    announced = files.announce([(0, blocks(1))])
    threading.Timer(0.05, go.set).start()
    assert read(files, 0, 1)  # joins the request that fails
    announced.wait()
    assert len(store.asked) == 2


def test_one_failure_ends_the_wait_for_many_blocks(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()

    def refuse(file: int, start: int) -> None:
        if len(store.asked) > 1:
            go.wait(120)
        raise DownloadFailed("HTTP 503")

    store.before = refuse
    files = opened(tmp_path / "remote", store, at_once=1)
    begun = time.monotonic()
    with pytest.raises(DownloadFailed, match=r"Block \d+ of .*HTTP 503"):
        files.hold([(0, blocks(0, 2, 4, 6))])
    assert time.monotonic() - begun < 60
    go.set()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_the_garbage_collector_needs_no_lock_of_the_blocks(tmp_path: Path) -> None:
    """It may run anywhere, also in code that has the lock: an exception and its frames hold arrivals in a cycle."""
    files = opened(tmp_path / "remote", Store())

    def collect() -> None:
        cycle: list[Any] = [Arrival(files, iter([[(0, blocks(0))]]))]
        cycle.append(cycle)
        del cycle
        with files._lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_what_a_killed_process_left_in_memory_is_removed(
    tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlds_cli.push(large(rows=100).id, tmp_path / "store", pages=False)
    code = f"""
import os, rlds_cli
ds = rlds_cli.open_dataset({str(tmp_path / "store")!r}, home={str(far)!r}, cache=0)
print(ds.path.parent, flush=True)
os.kill(os.getpid(), 9)
"""
    environ = os.environ | {"PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.is_dir()
    used = rlds_cli.open_dataset(tmp_path / "store", home=far, cache=0)
    assert left.is_dir()  # it is new, and might be in use
    monkeypatch.setattr(content, "_NEW", -1.0)
    rlds_cli.open_dataset(tmp_path / "store", home=far, cache=0)
    assert not left.exists() and used.path.is_dir()


# -- addresses as people type them


@pytest.mark.thorough
@pytest.mark.parametrize(
    "form",
    [
        "{top}/My Räume/arm 1",
        "{top}/My Räume/arm 1/",
        "{top}/My Räume/arm 1/rlds.json",
        "file://{top}/My%20R%C3%A4ume/arm%201",
        "./My Räume/arm 1",
        "../{name}/My Räume/arm 1",
        "~/My Räume/arm 1",
    ],
)
def test_forms_of_a_directory(form: str, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = rlds_cli.create("local/arm", [{"observation": np.arange(12.0).reshape(4, 3), "action": np.arange(3)}])
    rlds_cli.push(here.id, tmp_path / "My Räume/arm 1", pages=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    there = rlds_cli.open_dataset(form.format(top=tmp_path, name=tmp_path.name), home=far)
    assert there.store.address and there.column("action")[:].tolist() == here.column("action")[:].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("s4://lab/a", "is not an address", "s3://BUCKET/PATH"),
        ("s3://", "is not an address", "s3://BUCKET/PATH"),
        ("s3://Lab/a", "is not an address", "lower-case"),
        ("gs://my bucket/a", "is not an address", "lower-case"),
        ("hf://lab/arm", "is not an address", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/arm", "is not an address", "hf://datasets/OWNER/NAME"),
        ("https://", "is not an address", "https://HOST/PATH/"),
        ("https://lab.example/a/#rlds1:7c1f", "does not name a version", "12 digits"),
        ("s3://lab/a#rlds1:" + 14 * "-", "does not name a version", "12 digits"),
        ("hf://datasets/lab/arm#rlds1:7C1F-09AB-55E2", "does not name a version", "12 digits"),
        ("./store#rlds3:7c1f09ab55e2", "does not name a version", "12 digits"),
        (Path("s3://lab/a"), "is not on this disk", "s3://lab/a"),
    ],
)
def test_what_is_no_address_is_refused(given: str | Path, message: str, hint: str, far: Path) -> None:
    with pytest.raises(RldsError, match=message) as caught:
        rlds_cli.open_dataset(given, home=far)
    assert caught.value.hint is not None and hint in caught.value.hint
    done = run_rlds("inspect", given, "--home", far)
    assert done.returncode == 1 and b"Traceback" not in done.stderr and hint.encode() in done.stderr


# -- many datasets and loaders


@pytest.mark.slow
def test_batches_after_kills_are_those_of_the_disk() -> None:
    pytest.importorskip("obstore")
    script = Path(__file__).parents[2] / "scripts" / "soak_remote.py"
    sizes = ["--steps", "60", "--kills", "3", "--sample", "4", "--datasets", "flat,grown,compressed-known,tiny"]
    environ = os.environ | {"PYTHONPATH": str(script.parents[1])}
    done = subprocess.run(
        [sys.executable, script, *sizes], env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("60 batches are the same") == 4, done.stdout
