"""Datasets at an address, opened without being downloaded: every value is that of the dataset which was pushed."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import growing_model
import numpy as np
import pytest
from forged_address import forge, index_of, values_of
from frames_data import film
from lerobot_archives import Content, write_v3
from loader_data import create, episode
from made_once import made_once
from object_store import Fault, ObjectStore

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.dataset import Dataset
from rlds_cli.errors import (
    DamagedDataset,
    DatasetNotFound,
    DownloadFailed,
    InvalidArgument,
    Offline,
    RldsError,
    WrongFingerprint,
    WrongHash,
)
from rlds_cli.make.importing import import_files
from rlds_cli.places.remote.access import parse_size
from rlds_cli.places.remote.columns import RemoteColumn
from rlds_cli.places.remote.presence import GROUP
from rlds_cli.share import collecting, packing
from rlds_cli.share.pushing import push

HASTY = RetryPolicy(attempts=4, first=0.001, longest=0.01, asked=5.0, connect=60.0, read=60.0, idle=120.0)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.content.POLICY", HASTY)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The home of somebody who has no dataset."""
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


def large(rows: int = 30_000, *, width: int = 64, seed: int = 0, **more: Any) -> Dataset:
    """A dataset of some blocks; values tell nothing of their place, so that a wrong row is seen."""
    rng = np.random.default_rng(seed)
    at = 0
    episodes: list[dict[str, Any]] = []
    while at < rows:
        length = int(rng.integers(50, 900))
        episodes.append(
            {
                "observation": rng.integers(0, 256, (length + 1, width), np.uint8),
                "action": rng.standard_normal((length, 3), np.float32),
                "next/reward": rng.standard_normal(length),
            }
        )
        at += length
    make = partial(rlds_cli.create, "local/large", episodes, force=True, **more)
    return made_once("local/large", make, __name__, rows, width, seed, more)


def grown(path: Path | None = None) -> Dataset:
    """A growing dataset, with episodes that left between others."""
    rng = np.random.default_rng(3)
    with rlds_cli.writer("local/grown", fields=growing_model.FIELDS, keep=rlds_cli.Reservoir(episodes=5)) as w:
        for _ in range(9):
            w.add_episodes([growing_model.draw(rng, int(rng.integers(3, 12))).item()])
            w.commit()
    return rlds_cli.open_dataset("local/grown")


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def flat(batch: Any, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in list(batch):
        value = batch[key]
        found |= flat(value, f"{above}{key}/") if hasattr(value, "keys") else {f"{above}{key}": value}
    return found


def assert_same(got: Dataset, wanted: Dataset, *, between: bool = True) -> None:
    """Compare everything that a dataset gives; ``between`` episodes, too, where rows of those that left may lie."""
    rows, rng = wanted.num_rows, np.random.default_rng(1)
    assert (got.fingerprint, len(got), got.num_rows) == (wanted.fingerprint, len(wanted), rows)
    assert dict(got.schema) == dict(wanted.schema) and got.sources == wanted.sources
    for name in wanted.episodes:
        assert same(got.episodes[name], wanted.episodes[name]), name
    starts, lengths = wanted.episodes["start"], wanted.episodes["length"]
    inside = np.concatenate([np.arange(s, s + n) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
    drawn = rng.choice(inside, min(len(inside), 40))
    for name, f in wanted.schema.items():
        if f.kind == "array":
            x, y = got.column(name, gaps=True), wanted.column(name, gaps=True)
            assert y.shape == x.shape and y.dtype == x.dtype
            for index in (
                inside,
                drawn,
                drawn.reshape(2, -1) if len(drawn) % 2 == 0 else drawn,
                slice(int(drawn.min()), int(drawn.max()) if between else int(drawn.min()) + 1),
                int(drawn[0]),
            ):
                assert same(x[index], y[index]), (name, index)
        assert same(got.gather(name, drawn), wanted.gather(name, drawn))
    for k in range(0, wanted.num_episodes, max(1, wanted.num_episodes // 5)):
        mine, theirs = flat(got.episode(k)), flat(wanted.episode(k))
        assert mine.keys() == theirs.keys()
        assert all(same(mine[n], theirs[n]) for n in theirs)
    assert flat(got[3:9]).keys() == flat(wanted[3:9]).keys()
    assert all(same(v, flat(wanted[3:9])[n]) for n, v in flat(got[3:9]).items())
    for layout in ("ted", "d4rl") if "action" in wanted.schema and "next/reward" in wanted.schema else ():
        try:
            arrays = wanted.to_numpy(layout=layout)
        except RldsError:
            continue
        mine = got.to_numpy(layout=layout)
        assert all(same(mine[n], arrays[n]) for n in arrays)
    half = got.select(episodes=range(0, got.num_episodes, 2)), wanted.select(episodes=range(0, wanted.num_episodes, 2))
    for name in got.stats:
        assert same(half[0].stats[name].mean, half[1].stats[name].mean), name
        assert same(got.stats[name].std, wanted.stats[name].std), name


# -- every kind of dataset


def derived() -> Dataset:
    return preprocess.run(create([episode(k, 5 + k) for k in range(4)]), "normalise", "norm", jobs=1)


def videos(tmp_path: Path) -> Dataset:
    return import_files(write_v3(tmp_path / "a", Content(lengths=(6, 5), video=("top",))), "local/film")


MAKERS: dict[str, Callable[[Path], Dataset]] = {
    "created": lambda _: create([episode(k, 5 + k, observed=k != 1) for k in range(4)]),
    "large": lambda _: large(),
    "compressed": lambda _: large(storage="zarr"),
    "compressed texts": lambda _: create([episode(k, 9) for k in range(3)], storage="zarr"),
    "derived": lambda _: derived(),
    "frames": lambda _: film([4, 3, 9]),
    "videos": videos,
    "imported": lambda _: rlds_cli.download("sample/pendulum-d4rl"),
    "grown": grown,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        *((kind, None) for kind in MAKERS),
        *((kind, c) for kind in ("large", "compressed", "grown") for c in (0, "2MiB")),
    ],
)
def test_everything_is_read_as_it_was_pushed(
    kind: str, cache: int | str | None, tmp_path: Path, store: Path, other: Path
) -> None:
    wanted = MAKERS[kind](tmp_path)
    push(wanted.id, store)
    got = rlds_cli.open_dataset(store, home=other, cache=cache)
    assert got.store.address and got.id == wanted.id and got.version == wanted.version
    assert_same(got, wanted)
    assert_same(pickle.loads(pickle.dumps(got)), pickle.loads(pickle.dumps(wanted)))
    assert (other / "remote").exists() == (cache != 0)
    assert not (other / "datasets").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["large", "grown"])
def test_everything_is_read_from_a_bucket_and_over_http(
    kind: str, tmp_path: Path, bucket: ObjectStore, other: Path
) -> None:
    wanted = MAKERS[kind](tmp_path)
    push(wanted.id, "s3://lab/a")
    assert_same(rlds_cli.open_dataset("s3://lab/a", home=other), wanted)
    assert_same(rlds_cli.open_dataset(f"{bucket.url}/lab/a/", home=other, cache=0), wanted)


# -- what is fetched


def test_opening_fetches_the_manifest_and_the_episode_table(store: Path, other: Path) -> None:
    ds = large(200_000)
    push(ds.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    assert got.num_steps == ds.num_steps and list(got.episodes["length"]) == list(ds.episodes["length"])
    assert got.stats["action"].mean == ds.stats["action"].mean
    assert got.store.files.stats.fetched <= len(index_of(store).to_bytes()) + 2 * GROUP < ds.num_rows * 64
    before = got.store.files.stats.fetched
    assert (got.column("observation")[100_000:100_010] == ds.column("observation")[100_000:100_010]).all()
    assert got.store.files.stats.fetched - before == GROUP  # large files lie at groups of their object
    assert (got.column("observation")[100_020:100_030] == ds.column("observation")[100_020:100_030]).all()
    assert got.store.files.stats.fetched - before == GROUP


@pytest.mark.thorough
def test_what_is_here_is_not_fetched_again(store: Path, other: Path) -> None:
    ds = large()
    push(ds.id, store)
    rlds_cli.open_dataset(store, home=other).column("observation")[:]
    again = rlds_cli.open_dataset(store, home=other)
    assert same(again.column("observation")[:], ds.column("observation")[:])
    assert again.store.files.stats.fetched <= len(index_of(store).to_bytes())


def test_a_column_is_an_array_for_everything_else(store: Path, other: Path) -> None:
    ds = large(3_000)
    push(ds.id, store)
    x, y = rlds_cli.open_dataset(store, home=other).column("action"), ds.column("action")
    assert isinstance(x, RemoteColumn)
    assert same(x + 1, y + 1) and same(1 - x, 1 - y) and same(np.tanh(x), np.tanh(y)) and same(x > 0, y > 0)
    assert same(np.concatenate([x, x]), np.concatenate([y, y])) and same(np.mean(x, 0), np.mean(y, 0))
    assert x.mean() == y.mean() and x.tolist() == y.tolist() and x.nbytes == y.nbytes and x.size == y.size
    assert same(x[..., 1], y[..., 1]) and same(x[2:9, ::2], y[2:9, ::2]) and same(x[None], y[None])
    assert same(x[y[:, 0] > 0], y[y[:, 0] > 0]) and same(x[[]], y[[]]) and same(x[-1], y[-1])
    assert same(x[[1, -2], [0, 2]], y[[1, -2], [0, 2]]) and same(x[50:10:-1], y[50:10:-1]) and same(x[::-3], y[::-3])
    assert [row.tolist() for row in x][:5] == y[:5].tolist()
    for wrong in (len(y), -len(y) - 1, [0, len(y)]):
        with pytest.raises(IndexError):
            x[wrong]


# -- addresses, pins, and what is here


def test_a_pin_holds_and_another_content_is_refused(store: Path, other: Path) -> None:
    ds = large(500)
    push(ds.id, store)
    assert rlds_cli.open_dataset(f"{store}#{ds.fingerprint}", home=other).fingerprint == ds.fingerprint
    with pytest.raises(WrongFingerprint, match="was asked for"):
        rlds_cli.open_dataset(f"{store}#rlds1:{'0' * 64}", home=other)
    with pytest.raises(DatasetNotFound):
        rlds_cli.open_dataset(store / "nothing", home=other)


def test_a_dataset_that_is_in_a_home_is_opened_there(store: Path, other: Path) -> None:
    ds = large(500)
    push(ds.id, store)
    assert rlds_cli.open_dataset(str(store)).path == ds.path
    came = rlds_cli.download(str(store), home=other)
    assert rlds_cli.open_dataset(str(store), home=other).path == came.path


def test_a_newer_push_does_not_mix_with_what_was_opened(store: Path, other: Path) -> None:
    old = large(30_000, seed=1)
    values = old.column("observation")[:].copy()
    push(old.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    assert (got.column("observation")[:10] == values[:10]).all()
    new = large(30_000, seed=2)
    push(new.id, store)
    assert (got.column("observation")[:] == values).all()  # its objects are still there
    assert same(rlds_cli.open_dataset(store, home=other).column("observation")[:], new.column("observation")[:])


@pytest.mark.thorough
def test_a_newer_push_that_removed_the_objects_is_an_error(store: Path, other: Path) -> None:
    old = large(60_000, seed=1)
    first = old.column("observation")[:10].copy()
    push(old.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    assert (got.column("observation")[:10] == first).all()
    push(large(60_000, seed=2).id, store)
    collecting.collect(store)
    assert (got.column("observation")[:10] == first).all()
    with pytest.raises(DownloadFailed, match=r"Block \d+ of observation/c/0/0 .* any more since it was opened"):
        got.column("observation")[:]


def test_without_the_network_what_is_here_is_read(
    bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = large()
    push(ds.id, "s3://lab/a")
    seen = rlds_cli.open_dataset("s3://lab/a", home=other)
    block = seen.column("observation")[:100]
    seen.gather("action", np.arange(3))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    with bucket.counting() as requests:
        got = rlds_cli.open_dataset("s3://lab/a", home=other)
        assert same(got.column("observation")[:100], block)
        with pytest.raises(Offline, match=r"Block \d+ of observation/c/0/0"):
            got.column("observation")[:]
        with pytest.raises(Offline, match="nothing of it is cached"):
            rlds_cli.open_dataset("s3://lab/other", home=other)
    assert requests == []


def test_a_whole_pin_of_what_is_here_asks_nothing(bucket: ObjectStore, other: Path) -> None:
    ds = large(500)
    push(ds.id, "s3://lab/a")
    rlds_cli.open_dataset(f"s3://lab/a#{ds.fingerprint}", home=other).column("observation")[:]
    with bucket.counting() as requests:
        got = rlds_cli.open_dataset(f"s3://lab/a#{ds.fingerprint}", home=other)
        assert same(got.column("observation")[:], ds.column("observation")[:])
    assert requests == []


@pytest.mark.thorough
def test_what_another_dataset_of_the_home_has_is_not_fetched_again(store: Path, other: Path) -> None:
    rng = np.random.default_rng(4)
    seen = rng.standard_normal((2001, 1024), np.float32)
    action = rng.standard_normal((2000, 2), np.float32)
    for k in range(3):
        made = {"observation": seen, "action": action, "next": {"reward": np.full(2000, k)}}
        push(rlds_cli.create("local/arm", [made], force=True).id, store)
        got = rlds_cli.open_dataset(store, home=other)
        assert same(got.column("observation")[:], seen) and same(
            got.column("next/reward")[:2000], made["next"]["reward"]
        )
        fetched = got.store.files.stats.fetched  # type: ignore[attr-defined]
        assert fetched > seen.nbytes if k == 0 else fetched < seen.nbytes / 2
        if k == 1:  # what others have is checked, too
            for rows in (other / "remote").glob("*/rows/*"):
                with rows.open("r+b") as file:
                    file.write(bytes(range(1, 100)))
    assert fetched > GROUP


def test_a_version_is_refreshed_from_its_address(store: Path, other: Path) -> None:
    rng = np.random.default_rng(5)
    episodes = [growing_model.draw(rng, 6) for _ in range(4)]
    with rlds_cli.writer("local/live", fields=growing_model.FIELDS) as w:
        w.add_episodes([e.item() for e in episodes[:2]])
        w.commit()
        push("local/live", store)
        got = rlds_cli.open_dataset(store, home=other)
        assert got.refresh() is got
        w.add_episodes([e.item() for e in episodes[2:]])
        w.commit()
        push("local/live", store)
    growing_model.check(got, episodes[:2])
    newer = got.refresh()
    growing_model.check(newer, episodes)
    growing_model.check(got, episodes[:2])
    with pytest.raises(DatasetNotFound, match="version 9 was asked for"):
        rlds_cli.open_dataset(f"{store}#v9", home=other)


@pytest.mark.parametrize(
    ("text", "size"),
    [("200GiB", 200 << 30), ("1.5 GB", 1_500_000_000), ("64k", 64 << 10), (0, 0), (123, 123), (None, None), ("7", 7)],
)
def test_sizes(text: Any, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["much", "-1", "1 PB x", -5, True, "nan", ""])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a size"):
        parse_size(text)


# -- faults


def reading(bucket: ObjectStore, other: Path, *faults: Fault, **more: Any) -> Dataset:
    """Open a dataset in the bucket, and let faults begin."""
    got = rlds_cli.open_dataset("s3://lab/a", home=other, **more)
    bucket.faults += faults
    return got


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["503", "500", "429", "reset", "short", "etag", "other"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_fault_that_passes_is_not_seen(kind: str, scheme: str, bucket: ObjectStore, other: Path) -> None:
    ds = large()
    push(ds.id, "s3://lab/a")
    address = "s3://lab/a" if scheme == "s3" else f"{bucket.url}/lab/a/"
    got = rlds_cli.open_dataset(address, home=other)
    bucket.faults.append(Fault(kind, path="/objects/", times=2))
    assert same(got.column("observation")[:], ds.column("observation")[:])
    assert bucket.faults[0].times == 0


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "error"), [("503", DownloadFailed), ("reset", DownloadFailed), ("other", WrongHash)])
def test_a_fault_that_stays_names_the_block_and_ends(
    kind: str, error: type[Exception], bucket: ObjectStore, other: Path
) -> None:
    ds = large()
    push(ds.id, "s3://lab/a")
    got = reading(bucket, other, Fault(kind, path="/objects/", times=10_000), timeout=3.0)
    begun = time.monotonic()
    with pytest.raises(error, match=r"Block \d+ of observation/c/0/0 \(bytes [\d,]+-[\d,]+\) of s3://lab/a"):
        got.column("observation")[:]
    assert time.monotonic() - begun < 60
    bucket.faults.clear()  # the store comes back
    assert same(got.column("observation")[:], ds.column("observation")[:])


def test_a_store_that_hangs_ends_with_the_time_out(bucket: ObjectStore, other: Path) -> None:
    push(large().id, "s3://lab/a")
    got = reading(bucket, other, timeout=0.5)
    bucket.latency = 60.0
    with pytest.raises(DownloadFailed, match=r"did not arrive within 0\.5 s|the connection failed"):
        got.column("observation")[:]
    bucket.latency = 0.0


def test_credentials_that_are_refused(bucket: ObjectStore, other: Path) -> None:
    push(large().id, "s3://lab/a")
    got = reading(bucket, other, Fault("403", path="/objects/", times=10_000))
    with pytest.raises(DownloadFailed, match="access is denied") as e:
        got.column("observation")[:]
    assert "AWS_ACCESS_KEY_ID" in (e.value.hint or "") and "canary" not in str(e.value)


def test_an_index_that_lies_is_refused(store: Path, other: Path) -> None:
    push(large(500).id, store)
    forge(store, values_of(store) | {"fingerprint": "rlds1:" + "0" * 64})
    with pytest.raises(DamagedDataset, match="name different content"):
        rlds_cli.open_dataset(store, home=other)


def test_a_forked_process_reads_from_a_bucket(bucket: ObjectStore, other: Path) -> None:
    """The threads of obstore do not survive a fork: the child asks on its own."""
    ds = large()
    push(ds.id, "s3://lab/a")
    for cache in (None, 0):
        got = rlds_cli.open_dataset("s3://lab/a", home=other, cache=cache)
        wanted = ds.column("observation")[:]
        got.column("observation")[:10]
        child = os.fork()
        if not child:
            threading.Timer(20, os._exit, (2,)).start()
            os._exit(0 if same(got.column("observation")[:], wanted) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert same(got.column("observation")[:], wanted)


def test_threads_read_at_once(store: Path, other: Path) -> None:
    ds = large()
    push(ds.id, store)
    got = rlds_cli.open_dataset(store, home=other, cache="2MiB")
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.integers(0, ds.num_rows, 50)
            if not same(got.column("observation")[rows], ds.column("observation")[rows]):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_large_files_begin_at_groups_of_their_object(store: Path) -> None:
    push(large(200_000).id, store)
    index = values_of(store)
    pieces = {path: found for path, _, found in index["files"]}["observation/c/0/0"]
    assert all((offset - at) % GROUP == 0 for at, _, offset, _, _ in pieces)
    assert packing._LARGE > GROUP


# -- the home


def test_what_needs_files_of_rows_says_where_they_are(store: Path, other: Path) -> None:
    """Nothing reads holes: files of rows are not in the directory of a remote dataset."""
    push(large(500).id, store)
    got = rlds_cli.open_dataset(store, home=other)
    with pytest.raises(DamagedDataset, match=r"is at .* and this needs it on this disk") as e:
        rlds_cli.open_dataset(got.path)
    assert f"rlds download {store}" in (e.value.hint or "")


def test_small_files_are_fetched_again_after_a_restart(
    store: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = large(500)
    push(ds.id, store)
    first = rlds_cli.open_dataset(store, home=other)
    lost = first.path / "episodes/length/c/0"
    size = lost.stat().st_size
    del first
    lost.write_bytes(bytes(size))  # the disk kept the name, and lost the content
    monkeypatch.setattr("rlds_cli.base.files.disk.boot_id", lambda: b"another")
    assert_same(rlds_cli.open_dataset(store, home=other), ds)


def test_a_home_that_cannot_be_written(store: Path, tmp_path: Path) -> None:
    ds = large(500)
    push(ds.id, store)
    (tmp_path / "file").write_text("")
    with pytest.raises(RldsError) as e:
        rlds_cli.open_dataset(store, home=tmp_path / "file/home")
    assert "cache=0" in (e.value.hint or "")
    assert rlds_cli.open_dataset(store, home=tmp_path / "file/home", cache=0).fingerprint == ds.fingerprint
