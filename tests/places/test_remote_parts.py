"""Ranges below 1 MiB: single blocks of 64 KiB are fetched, checked by the lists of their groups, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from object_store import Fault, ObjectStore
from test_remote_store import bucket, flat, hasty, large, other, same, store  # noqa: F401  (fixtures)

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DownloadFailed, WrongHash
from rlds_cli.loader import Loader, Sequential, Shuffled, Slice
from rlds_cli.places.remote.blocks import BLOCK, GROUP
from rlds_cli.share.pushing import push

ROW = 1536  # bytes: 16 of them are a window of 24 KiB


def wide(rows: int = 6000) -> Dataset:
    """Some 9 groups of observations."""
    return large(rows, width=ROW)


def window(ds: Dataset, row: int) -> np.ndarray:
    return ds.column("observation")[row : row + 16]


# -- what is fetched


@pytest.mark.thorough
def test_a_window_costs_little_more_than_itself(bucket: ObjectStore, other: Path) -> None:  # noqa: F811
    ds = wide()
    push(ds.id, "s3://lab/a")
    got = rlds_cli.open_dataset("s3://lab/a", home=other)
    lists = 32 * (ds.num_rows * ROW // BLOCK + 200)
    for number, row in enumerate(np.random.default_rng(0).permutation(ds.num_rows - 16)[:8].tolist()):
        before, asked = got.store.files.stats.fetched, got.store.files.stats.requests
        assert same(window(got, row), window(ds, row))
        assert got.store.files.stats.fetched - before <= 2 * BLOCK + (lists if number == 0 else 0)
        assert got.store.files.stats.requests - asked <= (1 if number else 2)


@pytest.mark.thorough
def test_a_group_of_which_half_is_wanted_comes_whole(bucket: ObjectStore, other: Path) -> None:  # noqa: F811
    ds = wide()
    push(ds.id, "s3://lab/a")
    got = rlds_cli.open_dataset("s3://lab/a", home=other)
    with bucket.counting() as asked:
        assert same(got.column("observation")[:5000], ds.column("observation")[:5000])
    rows = [r for r in asked if "/objects/" in r.path]
    assert len(rows) <= 5000 * ROW // GROUP + 2


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampler", [Shuffled(), Sequential(), Shuffled(block=200, live=2)])
@pytest.mark.parametrize("cache", [None, "6MiB"])
def test_batches_of_windows(sampler: object, cache: str | None, store: Path, other: Path) -> None:  # noqa: F811
    ds = wide()
    push(ds.id, store)
    got = rlds_cli.open_dataset(store, home=other, cache=cache)
    arguments = {"window": Slice(16, stride=16), "sampler": sampler, "backend": "numpy", "seed": 3, "steps": 40}
    for one, two in zip(Loader(ds, 8, **arguments), Loader(got, 8, **arguments), strict=True):  # type: ignore[arg-type]
        assert all(x.tobytes() == y.tobytes() for (_, x), (_, y) in zip(one.leaves(), two.leaves(), strict=True))


def test_a_loader_reads_scattered_windows_by_blocks_and_others_by_groups(
    store: Path,  # noqa: F811
    other: Path,  # noqa: F811
) -> None:
    ds = wide()
    push(ds.id, store)
    fetched = {}
    for number, sampler in enumerate((Shuffled(), Sequential(), Shuffled(block=20, live=1))):
        got = rlds_cli.open_dataset(store, home=other / str(number))
        window = Slice(16, stride=16)
        loader = Loader(got, 1, window=window, sampler=sampler, fields=["observation"], steps=1, backend="numpy")
        before = loader.stats()
        next(iter(loader))
        after = loader.stats()
        fetched[number] = (after.fetched - before.fetched, after.requests - before.requests)
    lists = 32 * (ds.num_rows * ROW // BLOCK + 200)
    assert fetched[0][0] <= 2 * BLOCK + lists
    assert GROUP <= fetched[1][0] <= 2 * GROUP and fetched[1][1] <= 2
    assert GROUP <= fetched[2][0] <= 2 * GROUP


# -- what is wrong


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["other", "short", "503", "reset"])
@pytest.mark.parametrize("path", ["/objects/", "/blocks/"])
def test_a_fault_of_a_block_or_a_list_that_passes_is_not_seen(
    kind: str,
    path: str,
    bucket: ObjectStore,  # noqa: F811
    other: Path,  # noqa: F811
) -> None:
    ds = wide(3000)
    push(ds.id, "s3://lab/a")
    got = rlds_cli.open_dataset("s3://lab/a", home=other)
    bucket.faults.append(Fault(kind, path=path, times=2))
    assert same(window(got, 777), window(ds, 777))
    assert bucket.faults[0].times < 2  # another byte may be that of another group


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["objects", "blocks"])
def test_wrong_bytes_of_a_block_or_a_list_are_refused(path: str, store: Path, other: Path) -> None:  # noqa: F811
    ds = wide()
    push(ds.id, store)
    (file,) = (store / path).iterdir()
    right = file.read_bytes()
    wrong = bytearray(right)
    if path == "objects":
        wrong[GROUP + 5 * BLOCK + 9] ^= 1  # the observations come first
    else:
        wrong[32 * 21 + 3] ^= 1  # of the same block
    file.chmod(0o644)
    file.write_bytes(wrong)
    got = rlds_cli.open_dataset(store, home=other)
    row = (GROUP + 5 * BLOCK) // ROW + 2
    with pytest.raises(WrongHash, match=rf"Block 21 of observation/c/0/0 .* Bytes [\d,]+-[\d,]+ of .*/{path}/"):
        window(got, row)
    assert same(window(got, 100), window(ds, 100))  # of another group
    file.write_bytes(right)
    assert same(window(got, row), window(ds, row))


@pytest.mark.thorough
def test_a_list_that_is_lost_or_cut_short(store: Path, other: Path) -> None:  # noqa: F811
    ds = wide(3000)
    push(ds.id, store)
    (file,) = (store / "blocks").iterdir()
    right = file.read_bytes()
    got = rlds_cli.open_dataset(store, home=other)
    file.chmod(0o644)
    file.write_bytes(right[:40])
    with pytest.raises(DownloadFailed, match=r"Block \d+ of observation/c/0/0 .*blocks/"):
        window(got, 1500)
    file.unlink()
    with pytest.raises(DownloadFailed, match=r"Block \d+ of observation/c/0/0 .*blocks/"):
        window(got, 1500)
    assert rlds_cli.download(str(store), name="local/whole", home=other).fingerprint == ds.fingerprint
    push(ds.id, store)  # sends it again
    assert same(window(got, 1500), window(ds, 1500))


@pytest.mark.thorough
def test_lists_are_kept_and_a_damaged_file_of_them_is_fetched_again(
    bucket: ObjectStore,  # noqa: F811
    other: Path,  # noqa: F811
) -> None:
    ds = wide()
    push(ds.id, "s3://lab/a")
    for damaged in (None, False, True):
        got = rlds_cli.open_dataset("s3://lab/a", home=other)
        if damaged:
            (file,) = (other / "remote").glob("*/lists")
            file.write_bytes(b"\7" * file.stat().st_size)
        with bucket.counting() as asked:
            row = {None: 100, False: 2500, True: 5000}[damaged]
            assert same(window(got, row), window(ds, row))
        assert len([r for r in asked if "/blocks/" in r.path]) == (damaged is not False)
