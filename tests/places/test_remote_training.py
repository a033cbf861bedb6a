"""Training from a pushed dataset: batches are those of the dataset on disk, whatever the store does."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_store import Fault, ObjectStore
from test_remote_store import HASTY, MAKERS, large

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DownloadFailed
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Member,
    Mixture,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    bench,
)
from rlds_cli.share.pushing import push


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.content.POLICY", HASTY)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def same(one: Any, other: Any) -> None:
    for (name, x), (other_name, y) in zip(one.leaves(), other.leaves(), strict=True):
        assert name == other_name and x.dtype == y.dtype and x.shape == y.shape
        assert x.tolist() == y.tolist() if x.dtype == object else x.tobytes() == y.tobytes(), name


def check(here: Dataset, there: Any, batches: int = 12, **arguments: Any) -> None:
    arguments = {"backend": "numpy", "seed": 7, "steps": batches, **arguments}
    for one, other in zip(Loader(here, 16, **arguments), Loader(there, 16, **arguments), strict=True):
        same(one, other)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "transitions": {"fields": "all"},
    "n-step": {"window": Transition(n_step=4), "fields": [..., "step", ReturnToGo(gamma=0.9)]},
    "slices": {"window": Slice(6, before=2, after=2), "sampler": Shuffled(block=7, live=2)},
    "goals": {"fields": [..., Goals("goal", future=0.5, random=0.5)], "sampler": Shuffled()},
    "episodes": {"window": Episode(), "sampler": Sequential()},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind not in ("derived", "imported")])
def test_batches_are_those_of_the_dataset_that_was_pushed(kind: str, tmp_path: Path, far: Path) -> None:
    here = MAKERS[kind](tmp_path)
    push(here.id, tmp_path / "store")
    for name, arguments in ARGUMENTS.items():
        if kind == "grown" and name in ("n-step", "goals"):
            arguments = {k: v for k, v in arguments.items() if k != "fields"}
        if kind == "large" and name == "episodes":
            arguments = {**arguments, "window": Episode(max_length=100)}
        cache = {"n-step": 0, "slices": "2MiB"}.get(name)
        there = rlds_cli.open_dataset(tmp_path / "store", home=far, cache=cache)
        check(here, there, **arguments)


def test_an_address_is_a_dataset_of_a_loader_and_of_a_mixture(
    tmp_path: Path, far: Path, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = large()
    push(here.id, "s3://lab/a")
    mine = {"RLDS_HOME": str(far), "RLDS_PATH": ""}
    batches = [b.copy() for b in Loader(here, 32, backend="numpy", steps=9)]
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    loader = Loader("s3://lab/a", 32, backend="numpy", steps=9)
    for one, other in zip(batches, loader, strict=True):
        same(one, other)
    assert loader.stats().requests > 0 and "blocks of the remote dataset" in loader.describe()
    there = rlds_cli.open_dataset("s3://lab/a")
    mixed = [Mixture({"a": x, "b": Member(here, transform=lambda batch: batch)}) for x in (here, there)]
    for one, other in zip(*(Loader(m, 32, backend="numpy", steps=9) for m in mixed), strict=True):
        same(one, other)


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers(context: str, tmp_path: Path, far: Path) -> None:
    torch = pytest.importorskip("torch")
    here = large()
    push(here.id, tmp_path / "store")
    there = rlds_cli.open_dataset(tmp_path / "store", home=far)
    near = [b.copy().numpy() for b in Loader(here, 16, seed=5, steps=8)]
    loader = Loader(there, 16, seed=5, steps=8)
    workers = torch.utils.data.DataLoader(
        loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context=context
    )
    for one, other in zip(near, workers, strict=True):
        same(one, other.numpy())


@pytest.mark.thorough
def test_ranks(tmp_path: Path, far: Path) -> None:
    here = large()
    push(here.id, tmp_path / "store")
    there = rlds_cli.open_dataset(tmp_path / "store", home=far)
    for rank in range(4):
        check(here, there, rank=rank, world_size=4, window=Slice(5))


@pytest.mark.thorough
def test_users_of_a_home_read_what_another_one_opened(tmp_path: Path, far: Path, bucket: ObjectStore) -> None:
    if os.geteuid():
        pytest.skip("a file is given to another user")
    here = large()
    push(here.id, "s3://lab/a")
    loader = Loader(rlds_cli.open_dataset("s3://lab/a", home=far), 64, sampler=Shuffled())
    read = sum(len(batch["observation"]) for batch in loader)
    assert read == len(here) and loader.stats().fetched > 1 << 20
    for path in (far, *far.rglob("*")):
        os.chown(path, 1, -1, follow_symlinks=False)
    for options in ({"cache": 0}, {}):
        there = rlds_cli.open_dataset("s3://lab/a", home=far, **options)
        check(here, there, window=Slice(5))
        again = Loader(there, 64, sampler=Shuffled())
        assert sum(len(batch["observation"]) for batch in again) == read and again.stats().fetched < 1 << 16


# -- how much is read


@pytest.mark.slow
def test_a_block_shuffle_reads_each_block_about_once(tmp_path: Path, far: Path, bucket: ObjectStore) -> None:
    here = large(120_000, width=250)  # 29 blocks of observations
    push(here.id, "s3://lab/a")
    there = rlds_cli.open_dataset("s3://lab/a", home=far, cache="16MiB")
    loader = Loader(there, 64, backend="numpy", sampler=Shuffled(block=12_000, live=2), fields=["observation"])
    rows = sum(len(batch["observation"]) for batch in loader)
    stats = loader.stats()
    assert rows == len(here) and stats.evicted > 0
    assert stats.fetched <= 1.1 * rows * 250 + (1 << 20)


@pytest.mark.thorough
def test_the_first_batch_reads_few_blocks(tmp_path: Path, far: Path, bucket: ObjectStore) -> None:
    here = large(120_000, width=250)
    push(here.id, "s3://lab/a")
    there = rlds_cli.open_dataset("s3://lab/a", home=far)
    loader = Loader(there, 1, backend="numpy", window=Slice(8), fields=["observation"], steps=1)
    next(iter(loader))
    assert loader.stats().fetched <= 2 << 20 and loader.stats().requests <= 2


@pytest.mark.thorough
def test_what_is_all_here_is_read_as_a_local_dataset(tmp_path: Path, far: Path) -> None:
    here = large()
    push(here.id, tmp_path / "store")
    there = rlds_cli.open_dataset(tmp_path / "store", home=far)
    loader = Loader(there, 64, backend="numpy", sampler=Sequential())
    for _ in loader:
        pass
    assert loader.source.remote
    before = loader.stats()
    for one, other in zip(loader, Loader(here, 64, backend="numpy", sampler=Sequential()), strict=True):
        same(one, other)
    assert not loader.source.remote and loader.stats().requests == before.requests


@pytest.mark.slow
def test_bench_of_an_address(tmp_path: Path, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here = large()
    push(here.id, "s3://lab/a")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "far"))
    found = bench.measure("s3://lab/a", window="Slice(4)", batch_size=8, seconds=0.3)
    assert found.requests > 0 and found.fetched > 0 and found.used > 0
    assert 0 < found.waiting <= 1 and found.first_batch > 0


# -- faults


@pytest.mark.thorough
@pytest.mark.usefixtures("hasty")
def test_faults_of_the_store_change_no_batch(tmp_path: Path, far: Path, bucket: ObjectStore) -> None:
    here = large()
    push(here.id, "s3://lab/a")
    for kind in ("503", "429", "reset", "short", "other", "etag"):
        bucket.faults.append(Fault(kind, path="objects", times=2, skip=1))
        there = rlds_cli.open_dataset("s3://lab/a", home=far / kind)
        check(here, there, batches=6, sampler=Shuffled())


@pytest.mark.usefixtures("hasty")
def test_a_store_that_vanishes_and_comes_back(tmp_path: Path, far: Path, bucket: ObjectStore) -> None:
    here = large()
    push(here.id, "s3://lab/a")
    there = rlds_cli.open_dataset("s3://lab/a", home=far, timeout=2.0)
    loader = Loader(there, 16, backend="numpy", steps=4)
    objects, bucket.buckets["lab"] = bucket.buckets["lab"], {}
    begun = time.monotonic()
    with pytest.raises(DownloadFailed, match=r"[Bb]lock [\d,]+ of .*next/|[Bb]lock [\d,]+ of "):
        next(iter(loader))
    assert time.monotonic() - begun < 60
    bucket.buckets["lab"] = objects
    loader.seek(0)
    for one, other in zip(loader, Loader(here, 16, backend="numpy", steps=4), strict=True):
        same(one, other)


_TRAINING = """
import hashlib, json, sys
from pathlib import Path
import rlds_cli
from rlds_cli.loader import Loader, Shuffled, Slice

address, home, log, steps = sys.argv[1:]
log = Path(log)
lines = log.read_text().splitlines() if log.exists() else []
dataset = rlds_cli.open_dataset(address, home=home, cache="4MiB")
loader = Loader(dataset, 8, backend="numpy", window=Slice(4), sampler=Shuffled())
if lines:
    loader.load_state_dict(json.loads(lines[-1])[1])
with log.open("a") as out:
    while loader.step < int(steps):
        for batch in loader:
            digest = hashlib.sha256(b"".join(x.tobytes() for _, x in batch.leaves())).hexdigest()
            out.write(json.dumps([digest, loader.state_dict()]) + "\\n")
            out.flush()
            if loader.step == int(steps):
                break
"""


@pytest.mark.slow
def test_batches_after_ten_kills_are_those_of_one_run_on_disk(tmp_path: Path, far: Path) -> None:
    here, steps = large(), 1000
    push(here.id, tmp_path / "store")
    log, rng = tmp_path / "log", random.Random(1)
    command = [sys.executable, "-c", _TRAINING, str(tmp_path / "store"), str(far), str(log), str(steps)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for kill in range(11):
        with subprocess.Popen(command, env=environ) as process:
            if kill < 10:
                before = log.stat().st_size if log.exists() else 0
                until = time.monotonic() + 60
                while time.monotonic() < until and (not log.exists() or log.stat().st_size == before):
                    time.sleep(0.002)
                time.sleep(rng.random() * 0.02)
                process.send_signal(signal.SIGKILL)
        whole = log.read_bytes()
        log.write_bytes(whole[: whole.rfind(b"\n") + 1])
    found = [json.loads(line)[0] for line in log.read_text().splitlines()]
    loader = Loader(here, 8, backend="numpy", window=Slice(4), sampler=Shuffled())
    wanted: list[str] = []
    while len(wanted) < steps:
        leaves = ([np.asarray(x).tobytes() for _, x in batch.leaves()] for batch in loader)
        wanted += [hashlib.sha256(b"".join(x)).hexdigest() for x in leaves]
    assert found == wanted[:steps]
