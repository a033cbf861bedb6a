"""Preprocessing a pushed dataset: the result is that of the dataset on disk, and no block is fetched in vain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import growing_model
import numpy as np
import preprocess_functions as functions
import pytest
from object_store import ObjectStore, Request
from test_remote_store import HASTY, MAKERS, grown, large

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.progress import Event
from rlds_cli.errors import PreprocessError
from rlds_cli.places.remote.blocks import BLOCK
from rlds_cli.share.pushing import push

MIB = 1 << 20
WIDTH = 256  # bytes of an observation: few rows make many blocks


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.content.POLICY", HASTY)
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


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 1 << 10)


def steps_backwards(episode: dict[str, Any]) -> dict[str, Any]:
    """Rewards in reverse: every row of the source counts, and its place."""
    return {**episode, "next": {**episode["next"], "reward": episode["next"]["reward"][::-1].copy()}}


WAYS: dict[str, dict[str, Any]] = {
    "episode": {"fn": steps_backwards},
    "rewards only": {"fn": steps_backwards, "fields": ["next/reward"]},
    "shorter": {"fn": "select_episodes", "args": {"where": "episode != 1"}},
}


FAST = ("created", "frames")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in MAKERS])
def test_the_result_is_that_of_the_dataset_that_was_pushed(kind: str, tmp_path: Path, far: Path) -> None:
    here = MAKERS[kind](tmp_path)
    push(here.id, tmp_path / "store")
    for name, way in WAYS.items():
        for cache in (None, 0) if name == "episode" else (None,):
            there = rlds_cli.open_dataset(tmp_path / "store", home=far, cache=cache)
            assert there.store.address
            how = {"name": "made", "jobs": 0, "force": True, **way}
            one, other = preprocess.run(here, **how), preprocess.run(there, home=far, **how)
            assert one.fingerprint == other.fingerprint, name
            assert one.manifest.fields == other.manifest.fields and dict(one.stats) == dict(other.stats)


# -- what is fetched


def blocks_of(requests: Sequence[Request]) -> Counter[tuple[str, int]]:
    """How often each block of an object was asked for."""
    found: Counter[tuple[str, int]] = Counter()
    for r in requests:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", {k.lower(): v for k, v in r.headers.items()}.get("range", ""))
        if r.method == "GET" and "/objects/" in r.path and asked:
            found.update((r.path, k) for k in range(int(asked[1]) // BLOCK, int(asked[2]) // BLOCK + 1))
    return found


@pytest.mark.slow
def test_each_shard_fetches_its_own_blocks_into_a_home_of_its_own(
    bucket: ObjectStore, far: Path, tmp_path: Path, small_chunks: None
) -> None:
    ds = large(20_000, width=WIDTH)
    push(ds.id, "s3://lab/large", pages=False)
    whole = blocks_of_all(bucket)
    for k in range(1, 5):
        with bucket.counting() as requests:
            source = rlds_cli.open_dataset("s3://lab/large", home=tmp_path / f"node-{k}")
            preprocess.run_shard(source, steps_backwards, "made", shard=(k, 4), jobs=0, home=far)
        asked = blocks_of(requests)
        # a quarter of the rows, and what lies within 1 MiB of its ends and of the three episodes that are tried
        assert whole / 4 <= len(asked) <= whole / 4 + 4 * MIB // BLOCK
    with bucket.counting() as requests:
        source = rlds_cli.open_dataset("s3://lab/large", home=tmp_path / "another")
        made = preprocess.finish(source, steps_backwards, "made", home=far)
    assert len(blocks_of(requests)) <= 3 * MIB // BLOCK  # of the three episodes
    assert made.fingerprint == preprocess.run(ds, steps_backwards, "made", jobs=0).fingerprint


def blocks_of_all(bucket: ObjectStore) -> int:
    return sum(-(-len(v) // BLOCK) for name, v in bucket.buckets["lab"].items() if "/objects/" in name)


@pytest.mark.slow
def test_workers_share_what_they_fetch(bucket: ObjectStore, far: Path, small_chunks: None) -> None:
    ds = large(40_000, width=WIDTH)
    push(ds.id, "s3://lab/large", pages=False)
    with bucket.counting() as requests:
        made = preprocess.run("s3://lab/large", functions.same, jobs=2, home=far)
    asked = blocks_of(requests)
    # blocks of small files begin within those of the objects: two processes may each need one that holds such an edge
    assert len(asked) == blocks_of_all(bucket) and sum(asked.values()) <= 1.25 * len(asked)
    assert made.fingerprint == ds.fingerprint
    with bucket.counting() as requests:
        preprocess.run("s3://lab/large", steps_backwards, jobs=0, home=far)
    assert not blocks_of(requests)


@pytest.mark.slow
def test_a_small_cache_is_enough(bucket: ObjectStore, far: Path, small_chunks: None) -> None:
    ds = large(15_000, width=WIDTH)
    push(ds.id, "s3://lab/large", pages=False)
    for cache in ("4MiB", 0):
        with bucket.counting() as requests:
            source = rlds_cli.open_dataset("s3://lab/large", home=far, cache=cache)
            made = preprocess.run(source, steps_backwards, jobs=0, home=far, force=True)
        assert made.fingerprint == preprocess.run(ds, steps_backwards, jobs=0).fingerprint
        assert sum(blocks_of(requests).values()) <= blocks_of_all(bucket) + MIB // BLOCK
        here = sum(f.stat().st_blocks * 512 for f in (far / "remote").rglob("rows/*") if f.is_file())
        assert here <= 6 * MIB


@pytest.mark.thorough
def test_work_that_fails_in_the_middle_goes_on(bucket: ObjectStore, far: Path, small_chunks: None) -> None:
    ds = large(10_000, width=WIDTH)
    push(ds.id, "s3://lab/large", pages=False)
    fails = [True]

    def inverted_until(episode: dict[str, Any]) -> dict[str, Any]:
        if fails and episode["observation"][0, 0] == stop[0] and (episode["observation"][0] == stop).all():
            raise ValueError("no")
        return {**episode, "observation": 255 - episode["observation"]}

    stop = ds.episode(ds.num_episodes * 3 // 4)["observation"][0]
    with pytest.raises(PreprocessError, match="chunks are kept"):
        preprocess.run("s3://lab/large", inverted_until, "made", jobs=0, home=far)
    fails.clear()
    made = preprocess.run("s3://lab/large", inverted_until, "made", jobs=0, home=far)
    assert np.array_equal(made.column("observation")[:], 255 - ds.column("observation")[:])


@pytest.mark.thorough
def test_a_result_that_is_pushed_beside_its_source_sends_what_differs(bucket: ObjectStore, far: Path) -> None:
    ds = large(10_000, width=WIDTH)
    push(ds.id, "s3://lab/large", pages=False)
    made = preprocess.run("s3://lab/large", steps_backwards, "made", jobs=0, home=far)
    pushed = push(made.path, "s3://lab/made", pages=False)
    assert pushed.sent < made.num_rows * WIDTH / 2
    there = rlds_cli.open_dataset("s3://lab/made", home=far.with_name("third"))
    assert np.array_equal(there.column("observation")[:], ds.column("observation")[:])
    assert there.fingerprint == made.fingerprint


@pytest.mark.thorough
def test_a_growing_dataset_at_an_address_is_preprocessed_by_versions(store: Path, far: Path) -> None:
    ds = grown()
    push(ds.id, store, pages=False)
    preprocess.run(store, steps_backwards, jobs=0, home=far)
    rng = np.random.default_rng(4)
    with rlds_cli.writer(ds.id) as w:
        w.add_episodes([growing_model.draw(rng, 7).item()])
        w.commit()
    push(ds.id, store, pages=False)
    said: list[Event] = []
    made = preprocess.run(store, steps_backwards, jobs=0, home=far, progress=said.append)
    assert any("are taken from the result of version" in e.note for e in said)
    now = preprocess.run(rlds_cli.open_dataset(ds.id), steps_backwards, jobs=0)
    assert made.fingerprint == now.fingerprint


def test_a_failing_function_names_the_address_in_its_command(store: Path, far: Path) -> None:
    push(large(500).id, store, pages=False)
    with pytest.raises(PreprocessError) as e:
        preprocess.run(store, "preprocess_functions:fails", jobs=0, home=far)
    assert f"rlds preprocess {store} --fn" in (e.value.hint or "")
