"""What a stranger lays at an address: nothing of it gets into other datasets, and it takes no more than it sends."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import forged_address as forged
import google_crc32c
import growing_model
import numpy as np
import pytest
from loader_data import create, episode
from numcodecs import Zstd

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, NameTaken, NoSpace
from rlds_cli.loader import Loader
from rlds_cli.places.remote.index import IndexedFile, Piece


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The home of somebody who has no dataset."""
    return tmp_path / "far"


def rewards(ds: Dataset) -> list[float]:
    return np.asarray(ds.column("next/reward")[:]).reshape(-1).tolist()


def pushed(at: Path, **how: str) -> Dataset:
    ds = create([episode(k, 6) for k in range(3)], **how)
    rlds_cli.push(ds.id, at, pages=False)
    return ds


def forge_rewards(genuine: Path, at: Path) -> None:
    """Publish the genuine dataset with other rewards, under the genuine id, fingerprint and manifest."""
    files = forged.read(genuine)
    name = next(path for path in files if path.startswith("next/reward/c/"))
    kind = np.dtype(rlds_cli.open_dataset("local/known").schema["next/reward"].dtype)
    files[name] = np.full(len(files[name]) // kind.itemsize, 999, kind).tobytes()
    forged.write(at, forged.index_of(genuine), files)


def test_blocks_of_a_forged_address_are_not_used_for_the_genuine_one(tmp_path: Path, far: Path) -> None:
    genuine, other = tmp_path / "genuine", tmp_path / "forged"
    here = pushed(genuine)
    forge_rewards(genuine, other)
    assert 999.0 in rewards(rlds_cli.open_dataset(other, home=far))
    for ref in (str(genuine), f"{genuine}#{here.fingerprint}"):
        assert rewards(rlds_cli.open_dataset(ref, home=far)) == rewards(here)
    again = rlds_cli.open_dataset(other, home=far)
    assert 999.0 in rewards(again)  # and the other way round: what each address says


def test_rows_packed_from_a_forged_address_are_not_used_for_the_genuine_one(
    tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, other = tmp_path / "genuine", tmp_path / "forged"
    here = pushed(genuine)
    monkeypatch.setattr("rlds_cli.loader.storage.blocks.LEAST_BYTES", 1)
    forge_rewards(genuine, other)

    def batches(at: Path, *, whole: bool) -> tuple[bool, set[float]]:
        """Return whether rows were packed, and all rewards."""
        ds = rlds_cli.open_dataset(at, home=far)
        if whole:
            blocks = ds.store.files.blocks
            blocks.hold([(n, np.arange(f.blocks)) for n, f in enumerate(blocks.files) if f.blocks]).release()
        loader = Loader(rlds_cli.open_dataset(at, home=far), 16, backend="numpy", steps=40)
        found = {x for batch in loader for x in batch["next", "reward"].reshape(-1).tolist()}
        return "packed rows" in loader.describe(), found

    assert batches(other, whole=True) == (True, {999.0})
    wanted = set(np.float32(rewards(here)).tolist())
    packed, found = batches(genuine, whole=True)
    assert packed and found <= wanted
    rlds_cli.download(genuine, home=far)
    loader = Loader(rlds_cli.open_dataset("local/known", home=far), 16, backend="numpy", steps=40)
    assert {x for batch in loader for x in batch["next", "reward"].reshape(-1).tolist()} <= wanted


def test_a_result_made_at_a_forged_address_is_not_taken_for_that_of_the_genuine_dataset(
    tmp_path: Path, far: Path
) -> None:
    genuine, other = tmp_path / "genuine", tmp_path / "forged"
    here = pushed(genuine)
    forge_rewards(genuine, other)
    scale = {"fn": "scale_reward", "args": {"scale": 2}, "home": far}
    made = preprocess.run(rlds_cli.open_dataset(other, home=far), **scale)
    assert 1998.0 in rewards(made)
    with pytest.raises(NameTaken, match="place of the source"):
        preprocess.run(rlds_cli.open_dataset(genuine, home=far), **scale)
    again = preprocess.run(rlds_cli.open_dataset(genuine, home=far), **scale, force=True)
    assert rewards(again) == [2 * x for x in rewards(here)]


# -- chunks


def bomb(size: int) -> bytes:
    """Return Zstandard frames of a few bytes that decode to ``size`` bytes of zeros."""
    return bytes(Zstd(19).encode(bytes(size)))


@pytest.mark.parametrize("kind", ["one frame", "a second frame"])
def test_a_chunk_that_states_another_size_is_refused_before_it_is_decoded(
    kind: str, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, other = tmp_path / "genuine", tmp_path / "forged"
    pushed(genuine, storage="zarr")
    files = forged.read(genuine)
    name = next(path for path in files if path.startswith("next/reward/c/"))
    frames = {"one frame": bomb(64 << 20), "a second frame": files[name][: -16 - 4] + bomb(64 << 20)}[kind]
    place = np.array([0, len(frames)], "<u8").tobytes()
    files[name] = frames + place + google_crc32c.value(place).to_bytes(4, "little")
    forged.write(other, forged.index_of(genuine), files)
    decoded = list[int]()

    class Counted(Zstd):
        def decode(self, data: bytes) -> bytes:
            decoded.append(len(data))
            return bytes(super().decode(data))

    monkeypatch.setattr("numcodecs.Zstd", Counted)
    ds = rlds_cli.open_dataset(other, home=far)
    with pytest.raises(DamagedDataset, match=r"Chunk 0 of next/reward.* does not decode"):
        ds.column("next/reward")[:]
    assert len(frames) not in decoded


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["one frame", "a second frame"])
def test_a_local_chunk_that_states_another_size_is_refused(kind: str) -> None:
    ds = create([episode(k, 6) for k in range(3)], storage="zarr")
    file = next((ds.path / "next/reward/c").iterdir())
    old = file.read_bytes()
    frames = {"one frame": bomb(64 << 20), "a second frame": old[: -16 - 4] + bomb(64 << 20)}[kind]
    place = np.array([0, len(frames)], "<u8").tobytes()
    file.chmod(0o644)
    file.write_bytes(frames + place + google_crc32c.value(place).to_bytes(4, "little"))
    with pytest.raises(DamagedDataset, match="holds a chunk that does not decode"):
        rlds_cli.open_dataset(ds.path).column("next/reward")[:]


# -- what an index makes rlds write


def maps(home: Path) -> int:
    """Return the bytes of the largest map or table of pins of a home, with holes."""
    return max(file.stat().st_size for file in home.glob("remote/*/*") if file.is_file())


def altered(store: Path, at: Path, more: Sequence[IndexedFile]) -> None:
    """Copy an address, and have its index name more files."""
    shutil.copytree(store, at)
    index = forged.index_of(at)
    forged.publish(at, replace(index, files=(*index.files, *more)).to_bytes(), claims=index)


def growing(store: Path) -> Dataset:
    with rlds_cli.writer("local/grows") as w:
        w.add_episodes([growing_model.draw(np.random.default_rng(k), 6).item() for k in range(3)])
    rlds_cli.push("local/grows", store, pages=False)
    return rlds_cli.open_dataset("local/grows")


def test_segments_that_no_episode_needs_get_no_blocks(tmp_path: Path, far: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "forged"
    here = growing(store)
    segment = next(f for f in forged.index_of(store).files if f.path.startswith("observation/state/c/0"))
    name = segment.path.replace("/c/0", "/c/9999")
    altered(store, other, [IndexedFile(name, 1 << 49, ()), IndexedFile("next/reward/c/7777", 1 << 45, ())])
    there = rlds_cli.open_dataset(other, home=far)
    np.testing.assert_array_equal(there.column("observation/state")[:], here.column("observation/state")[:])
    assert {f.path: f.size for f in there.store.files.blocks.files}[segment.path] == segment.size
    assert name not in {f.path for f in there.store.files.blocks.files}
    assert maps(far) < 64 << 20


def test_shards_that_no_row_needs_get_no_blocks(tmp_path: Path, far: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "forged"
    here = pushed(store, storage="zarr")
    files = forged.index_of(store).files
    shard = next(f for f in files if f.path.startswith("next/reward/c/"))
    altered(store, other, [IndexedFile("next/reward/c/9999", shard.size, shard.pieces)])
    there = rlds_cli.open_dataset(other, home=far)
    assert rewards(there) == rewards(here)
    assert "next/reward/c/9999" not in {f.path for f in there.store.files.access.row_blocks.files}


@pytest.mark.parametrize("kind", ["ordinary", "growing"])
def test_small_files_take_no_more_than_a_multiple_of_what_is_fetched(kind: str, tmp_path: Path, far: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "forged"
    growing(store) if kind == "growing" else pushed(store)
    size = forged.index_of(store).objects[0].size
    count = (64 << 20) // size // 8 + 60  # 8 files of this many times the object: 64 MiB, and 480 times the object
    pieces = tuple(Piece(k * size, 0, 0, size, "0" * 64) for k in range(count))
    many = [IndexedFile(f"episodes/x{k}", size * count, pieces) for k in range(8)]
    altered(store, other, many)
    with pytest.raises(DamagedDataset, match="small files"):
        rlds_cli.open_dataset(other, home=far)
    assert sum(f.stat().st_size for f in far.rglob("dataset/**/*") if f.is_file()) < 64 << 20


def test_small_files_have_no_holes(tmp_path: Path, far: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "forged"
    growing(store)
    altered(store, other, [IndexedFile("episodes.extra", 1 << 49, ())])
    with pytest.raises(DamagedDataset, match=r"no bytes for parts of episodes\.extra"):
        rlds_cli.open_dataset(other, home=far)


def test_an_index_whose_files_are_a_thousand_times_its_objects_is_refused(tmp_path: Path, far: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "forged"
    pushed(store)
    size = forged.index_of(store).objects[0].size
    pieces = tuple(Piece(k * size, 0, 0, size, "0" * 64) for k in range(8_000))
    altered(store, other, [IndexedFile("x", 8_000 * size, pieces)])
    for use in (rlds_cli.open_dataset, rlds_cli.download):
        with pytest.raises(DamagedDataset, match="times the bytes of its objects"):
            use(str(other), home=far)  # type: ignore[operator]


# -- a full disk


def allocated(file: Path) -> bool:
    status = file.stat()
    return status.st_blocks * 512 >= status.st_size


def test_what_is_written_through_maps_has_its_room_on_the_disk(tmp_path: Path, far: Path) -> None:
    store = tmp_path / "store"
    pushed(store)
    ds = rlds_cli.open_dataset(store, home=far)
    ds.column("observation")[:]
    (root,) = far.glob("remote/*/map")
    assert allocated(root)
    with root.with_name("pins").open("rb") as pins:
        assert os.lseek(pins.fileno(), 0, os.SEEK_HOLE) >= ds.store.files.blocks.map.stride  # the slot of this process


@pytest.mark.parametrize("file", ["map", "pins"])
def test_a_full_disk_is_an_error_before_anything_is_mapped(
    file: str, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    pushed(store)
    if file == "pins":
        ds = rlds_cli.open_dataset(store, home=far)

    def full(descriptor: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpace, match=rf"/{file} could not be written") as caught:
        (rlds_cli.open_dataset(store, home=far) if file == "map" else ds).column("observation")[:]
    assert "cache=0" in str(caught.value.hint)
    assert len(rlds_cli.open_dataset(store, home=far, cache=0).column("observation")[:])
