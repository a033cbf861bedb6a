from __future__ import annotations

import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rlds_cli import create
from rlds_cli.base.progress import silent
from rlds_cli.errors import DamagedDataset, FrameError
from rlds_cli.store import Built, Description, Store, Work, decode_frame, finish, frames, open_store
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, RowWriter
from rlds_cli.ted import TERMINATED, EncodedFrames, EpisodeData, Field, lay_out

PIXELS = Field("observation", "uint8", (16, 24, 3), "both", "frames", "png")
FLAGS = (Field("next/terminated", "bool", (), "next"), Field("next/truncated", "bool", (), "next"))


def image(seed: int, *, format: str = "PNG", size: tuple[int, ...] = (16, 24, 3)) -> tuple[np.ndarray, bytes]:
    pixels = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format)
    return pixels, buffer.getvalue()


def dataset(directory: Path, frames: list[bytes], encoding: str = "memmap") -> Store:
    """One episode whose observations are ``frames``."""
    t = len(frames) - 1
    schema = (PIXELS, *FLAGS)
    columns = {
        "observation": EncodedFrames(np.frombuffer(b"".join(frames), np.uint8), np.array([len(f) for f in frames])),
        "next/terminated": np.arange(t) == t - 1,
        "next/truncated": np.zeros(t, bool),
    }
    chunk = lay_out(
        schema, [EpisodeData(columns, t, TERMINATED, group="g", seed=2**64 - 1, options='{"a": 1}', splits=("train",))]
    )
    where = assign_paths(f.name for f in schema)
    with RowWriter(directory, schema, where, RowPosition()) as writer:
        writer.append(chunk)
        written = writer.written()
    sources = ({"file": "a.h5", "size": 3, "sha256": "ab"},)
    finish(
        Built(directory, schema, where, written.end, written.episodes, ()),
        Description("local/x", encoding, sources=sources),
    )
    return open_store(directory)


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["memmap", "zarr"])
def test_frames_are_pillows(tmp_path: Path, encoding: str) -> None:
    pixels, data = zip(*(image(k) for k in range(4)), strict=True)
    store = dataset(tmp_path / "x", list(data), encoding)
    assert np.array_equal(store.gather("observation", np.arange(4)), np.stack(pixels))
    assert np.array_equal(store.gather("observation", np.array([2, 0, 2])), np.stack([pixels[2], pixels[0], pixels[2]]))
    assert store.gather("observation", np.zeros(0, np.int64)).shape == (0, 16, 24, 3)


@pytest.mark.thorough
def test_jpegs_decode_as_pillow_does(tmp_path: Path) -> None:
    _, data = image(0, format="JPEG")
    store = dataset(tmp_path / "x", [data] * 2)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(store.gather("observation", np.array([1]))[0], expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"nonsense", "8 bytes that are neither PNG nor JPEG"),
        (image(0)[1][:100], "do not decode"),
        (image(0, size=(24, 16, 3))[1], "an image of 24x16; 16x24 expected"),
        (image(0, size=(16, 24))[1], r"decodes to \[16, 24\]"),
        (image(0, format="GIF")[1], "neither PNG nor JPEG"),  # only what archives hold is opened at all
    ],
)
def test_frames_that_are_none(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=f"observation, row 7.*{message}"):
        decode_frame(data, PIXELS, 7)


def test_dimensions_are_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PIXELS", 100)
    with pytest.raises(FrameError):
        decode_frame(image(0)[1], PIXELS, 0)


@pytest.mark.thorough
def test_the_table_comes_back(tmp_path: Path) -> None:
    table = dataset(tmp_path / "x", [image(0)[1]] * 3).episode_table()
    assert (table.length.tolist(), table.observed.tolist(), table.end.tolist()) == ([2], [True], [TERMINATED])
    assert (table.group, table.seed, table.options) == (["g"], [2**64 - 1], ['{"a": 1}'])
    assert table.splits["train"].tolist() == [True]


@pytest.mark.thorough
def test_sources_and_pickling(tmp_path: Path) -> None:
    store = dataset(tmp_path / "x", [image(0)[1]] * 3)
    assert store.sources == ({"file": "a.h5", "size": 3, "sha256": "ab"},)
    assert pickle.loads(pickle.dumps(store)).path == store.path


@pytest.mark.parametrize("array", ["observation/bytes", "observation/offsets", "next/terminated"])
def test_short_and_missing_files_are_found_when_opening(tmp_path: Path, array: str) -> None:
    store = dataset(tmp_path / "x", [image(0)[1]] * 3)
    file = store.path / array / ("c/0/0" if array.endswith("offsets") else "c/0")
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DamagedDataset, match="bytes"):
        open_store(store.path)
    open_store(store.path, check=False)
    file.unlink()
    with pytest.raises(DamagedDataset, match="is missing"):
        open_store(store.path)


@pytest.mark.thorough
def test_a_missing_shard_is_found_when_opening(tmp_path: Path) -> None:
    store = dataset(tmp_path / "x", [image(0)[1]] * 3, "zarr")
    shutil.rmtree(store.path / "next/truncated/c")
    with pytest.raises(DamagedDataset, match="is missing"):
        open_store(store.path)


def test_an_episode_table_that_is_none() -> None:
    ds = create("local/x", [{"observation": np.zeros(3), "action": np.zeros(2)}])
    shutil.rmtree(ds.path / "episodes/start")
    with pytest.raises(DamagedDataset, match="is not the episode table"):
        _ = open_store(ds.path).episodes


@pytest.mark.thorough
def test_steps_alone_may_fill_a_block_but_for_one_row() -> None:
    for rows in (65_536, 65_537, 65_538):  # the last block holds no row, one final row, and a step and a final row
        t = rows - 1
        o = np.arange(rows, dtype=np.float32)
        ds = create("local/x", [{"observation": o, "action": np.ones((t, 2))}], force=True)
        assert ds.stats["observation"].count == t
        assert ds.stats["observation"].max == t - 1
        assert ds.column("observation")[-1] == t


def test_nothing_is_left_of_an_iterable_without_rows(tmp_path: Path) -> None:
    class Empty:
        id, key, stage, schema, parts = "local/x", "k", "convert", FLAGS, ()

    built = Work(Empty(), tmp_path / "w").run(progress=silent)  # type: ignore[arg-type]
    m = finish(built, Description("local/x"))
    assert (m.counts.rows, m.counts.episodes) == (0, 0)
    store = open_store(built.directory)
    assert store.rows("next/terminated").shape == (0,)
    assert len(store.episode_table()) == 0
