"""Preprocessing a pushed dataset: the result is that of the dataset on disk, and no block is fetched in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_store import ObjectStore, Request
from test_remote_store import HASTY, MAKERS, large

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.progress import Event
from rlds_cli.remote.presence import BLOCK
from rlds_cli.sharing.pushing import push


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.remote.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.remote.content.POLICY", HASTY)
    monkeypatch.setenv("NO_PROXY", "*")


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


def steps_backwards(episode: dict[str, Any]) -> dict[str, Any]:
    """Rewards in reverse: every row of the source counts, and its place."""
    return {**episode, "next": {**episode["next"], "reward": episode["next"]["reward"][::-1].copy()}}


WAYS: dict[str, dict[str, Any]] = {
    "episode": {"fn": steps_backwards},
    "rewards only": {"fn": steps_backwards, "fields": ["next/reward"]},
    "shorter": {"fn": "select_episodes", "args": {"where": "length > 5"}},
}


@pytest.mark.parametrize("kind", list(MAKERS))
def test_the_result_is_that_of_the_dataset_that_was_pushed(kind: str, tmp_path: Path, far: Path) -> None:
    here = MAKERS[kind](tmp_path)
    push(here.id, tmp_path / "store")
    for name, way in WAYS.items():
        for cache in (None, 0) if name == "episode" else (None,):
            there = rlds_cli.open_dataset(tmp_path / "store", cache_dir=far, cache=cache)
            assert there.store.remote
            how = {"name": "made", "jobs": 0, "force": True, **way}
            one, other = preprocess.run(here, **how), preprocess.run(there, cache_dir=far, **how)
            assert one.fingerprint == other.fingerprint, name
            assert one.manifest.fields == other.manifest.fields and one.manifest.stats == other.manifest.stats


# -- pushed while it is made


@pytest.fixture
def small_objects(monkeypatch: pytest.MonkeyPatch) -> int:
    """Objects of 1 MiB, and chunks of 4,096 rows."""
    monkeypatch.setattr("rlds_cli.sharing.packing.LEAST", BLOCK)
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 1 << 12)
    return BLOCK


def inverted(episode: dict[str, Any]) -> dict[str, Any]:
    return {**episode, "observation": 255 - episode["observation"]}


def uploads(requests: list[Request]) -> list[Request]:
    return [r for r in requests if r.method == "PUT" and "/objects/" in r.path and "x-amz-copy-source" not in r.headers]


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_result_is_pushed_while_it_is_made(jobs: int, bucket: ObjectStore, far: Path, small_objects: int) -> None:
    ds = large(80_000)
    began: list[int] = []

    def seen(event: Event) -> None:
        if event.stage == "ready":
            began.append(len(bucket.requests))
        if "were sent to" in event.note:
            early.extend(uploads(bucket.requests))

    early: list[Request] = []
    made = preprocess.run(ds, inverted, jobs=jobs, push="s3://lab/made", progress=seen)
    sent = uploads(bucket.requests)
    rows = made.num_rows * 64
    assert len(early) == rows // small_objects + (4 * (rows % small_objects) >= 3 * small_objects)
    assert sum(r.size for r in sent) < 1.1 * sum(f.stat().st_size for f in made.path.rglob("*") if f.is_file())
    assert len({r.path for r in sent}) == len(sent)
    there = rlds_cli.open_dataset("s3://lab/made", cache_dir=far)
    assert there.fingerprint == made.fingerprint
    assert np.array_equal(there.column("observation")[:], made.column("observation")[:])
    again = push(made.id, "s3://lab/made")
    assert again.sent == 0
