"""Zarr stores of others: replay buffers and any arrays, in both formats, in directories and zips, and hostile ones."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from archive_rows import Rows
from PIL import Image
from zarr.core.dtype import VariableLengthBytes

import rlds_cli
from rlds_cli import make
from rlds_cli.cli import import_ as command
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace

ENDS = np.array([5, 12, 16])
ROWS = 16


def arrays(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "img": rng.integers(0, 255, (rows, 6, 8, 3)).astype(np.uint8),
        "state": rng.normal(size=(rows, 5)).astype(np.float32),
        "action": rng.normal(size=(rows, 2)),
    }


def write(
    path: Path,
    data: Mapping[str, np.ndarray],
    ends: np.ndarray = ENDS,
    *,
    format: int = 2,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a replay buffer by zarr itself."""
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else path
    group = zarr.open_group(store, mode="w", zarr_format=format)
    for name, values in {**{f"data/{n}": v for n, v in data.items()}, "meta/episode_ends": ends}.items():
        chunks = (min(4, max(1, len(values))), *values.shape[1:])
        more = options if name.startswith("data/") else {}
        group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks, **more)[...] = values
    for key, value in (attributes or {}).items():
        group["data/action"].attrs[key] = value
    if path.suffix == ".zip":
        store.close()
    return path


def episodes(ends: np.ndarray = ENDS) -> list[slice]:
    return [slice(a, b) for a, b in zip([0, *ends.tolist()], ends.tolist(), strict=False)]


def check_values(ds: rlds_cli.Dataset, data: Mapping[str, np.ndarray], ends: np.ndarray = ENDS) -> None:
    assert ds.num_episodes == len(ends)
    for k, rows in enumerate(episodes(ends)):
        e = ds.episode(k)
        for name, values in data.items():
            seen = e["action"] if name == "action" else e["observation"][name]
            np.testing.assert_array_equal(seen, values[rows])


# -- replay buffers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", [2, 3])
@pytest.mark.parametrize("name", ["buffer.zarr", "buffer.zarr.zip"])
def test_a_replay_buffer_is_read_value_by_value(tmp_path: Path, format: int, name: str) -> None:
    data = arrays()
    ds = rlds_cli.import_files(write(tmp_path / name, data, format=format), "local/x")
    check_values(ds, data)
    assert ds.manifest.reader == "zarr_replay_buffer"
    assert set(ds.episodes["end"]) == {"cut"}  # nothing says how they end
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok
    batch = next(iter(rlds_cli.Loader("local/x", 8, dtype=None)))
    assert {tuple(a) for a in batch["action"].tolist()} <= {tuple(a) for a in data["action"].tolist()}


def test_rows_behind_the_last_end_are_left_out_and_counted(tmp_path: Path) -> None:
    data = arrays(rows=20)
    ds = rlds_cli.import_files(write(tmp_path / "b.zarr", data), "local/x")
    check_values(ds, data)
    (note,) = [n for n in ds.manifest.notes if n["code"] == "rows-behind"]
    assert note["count"] == 4
    assert "data/img (4)" in note["text"]


def test_the_last_observation_is_not_that_of_the_next_episode(tmp_path: Path) -> None:
    data = arrays()
    ds = rlds_cli.import_files(write(tmp_path / "b.zarr", data), "local/x")
    assert not ds.episodes["num_observed"].sum() > ROWS  # no episode has an observation behind its last step
    batch = next(iter(rlds_cli.Loader(ds, 256, dtype=None, seed=0)))
    ended = [tuple(data["action"][stop - 1]) for stop in ENDS]
    assert not {tuple(a) for a in batch["action"].tolist()} & set(ended)  # these steps lead to nothing that is known


@pytest.mark.parametrize("ends", [[5, 5, 16], [5, 4, 16], [0, 16], [-1, 16]])
def test_ends_that_do_not_ascend_are_refused(tmp_path: Path, ends: list[int]) -> None:
    path = write(tmp_path / "b.zarr", arrays(), np.array(ends))
    with pytest.raises(CorruptArchive, match="does not ascend"):
        rlds_cli.import_files(path, "local/x")


@pytest.mark.parametrize("lacking", ["img", "action"])
def test_an_array_that_ends_before_the_last_episode_is_refused(tmp_path: Path, lacking: str) -> None:
    data = arrays()
    data[lacking] = data[lacking][:-1]
    with pytest.raises(CorruptArchive, match=f"data/{lacking} has 15 rows"):
        rlds_cli.import_files(write(tmp_path / "b.zarr", data), "local/x")


def test_rewards_and_flags_are_those_fields(tmp_path: Path) -> None:
    data = arrays()
    reward, done = np.arange(ROWS, dtype=np.float32), np.isin(np.arange(ROWS), [4])
    path = write(tmp_path / "b.zarr", {**data, "reward": reward, "terminated": done})
    ds = rlds_cli.import_files(path, "local/x")
    np.testing.assert_array_equal(ds.episode(1)["next"]["reward"].reshape(-1), reward[5:12])
    assert ds.episodes["end"].tolist() == ["terminated", "cut", "cut"]


def test_a_directory_of_buffers_is_one_dataset(tmp_path: Path) -> None:
    first, second = arrays(seed=1), arrays(seed=2)
    write(tmp_path / "all/a.zarr", first)
    write(tmp_path / "all/b.zarr", second, format=3)
    ds = rlds_cli.import_files(tmp_path / "all", "local/x")
    assert ds.num_episodes == 6
    np.testing.assert_array_equal(ds.episode(4)["action"], second["action"][5:12])
    assert [s["file"] for s in ds.sources] == ["a.zarr", "b.zarr"]


def test_a_buffer_that_changed_is_another_archive(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    rlds_cli.import_files(path, "local/x")
    assert rlds_cli.import_files(path, "local/x").num_episodes == 3  # the same
    write(path, arrays(seed=5))
    with pytest.raises(rlds_cli.errors.NameTaken):
        rlds_cli.import_files(path, "local/x")


def test_attributes_and_other_arrays_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays(), attributes={"unit": "rad", "range": [0, 1]})
    zarr.open_group(path, mode="a")["meta"].create_array("seed", shape=(3,), dtype="i8")[...] = [7, 8, 9]
    found = Rows("zarr_replay_buffer", path).metadata
    assert found["data/action/attributes/unit"] == "rad"
    assert json.loads(str(found["data/action/attributes/range"])) == [0, 1]
    assert np.asarray(found["meta/seed"]).tolist() == [7, 8, 9]
    ds = rlds_cli.import_files(path, "local/x")
    assert {e["name"] for e in ds.manifest.account if not e.get("left_out")} >= {"data/action@unit", "meta/seed"}


def test_chunks_that_are_not_there_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    (path / "data/state/1.0").unlink()
    ds = rlds_cli.import_files(path, "local/x")
    (note,) = [n for n in ds.manifest.notes if n["code"] == "never-written"]
    assert "data/state (1 of 4 chunks)" in note["text"]
    assert not ds.episode(1)["observation"]["state"][0:3].any()


# -- images


def jpeg(k: int, codec: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 12, 3), 10 * k, np.uint8)).save(out, codec)
    return out.getvalue()


def with_images(path: Path, images: list[bytes], codec: str) -> Path:
    """Write a buffer whose frames are chunks by a codec of imagecodecs."""
    data = {k: v for k, v in arrays().items() if k != "img"}
    write(path, data)
    made = path / "data/img"
    made.mkdir()
    document = {
        "zarr_format": 2, "shape": [ROWS, 8, 12, 3], "chunks": [1, 8, 12, 3], "dtype": "|u1", "fill_value": 0,
        "order": "C", "filters": None, "compressor": {"id": codec, "level": 90},
    }  # fmt: skip
    (made / ".zarray").write_text(json.dumps(document))
    for k, image in enumerate(images):
        (made / f"{k}.0.0.0").write_bytes(image)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("codec", "format"), [("imagecodecs_jpeg", "JPEG"), ("imagecodecs_png", "PNG")])
@pytest.mark.parametrize("zipped", [False, True])
def test_images_that_are_chunks_stay_as_they_are(tmp_path: Path, codec: str, format: str, zipped: bool) -> None:
    images = [jpeg(k, format) for k in range(ROWS)]
    path = with_images(tmp_path / "b.zarr", images, codec)
    if zipped:
        path = Path(shutil.make_archive(str(path), "zip", path))
    ds = rlds_cli.import_files(path, "local/x")
    assert ds.schema["observation/img"].codec == format.lower()
    assert list(Rows("zarr_replay_buffer", path)["observation/img"])[6:13] == images[5:12]
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok


@pytest.mark.parametrize("frames", ["encoded", "jpeg"])
def test_jpeg_xl_images_are_decoded(tmp_path: Path, frames: str) -> None:
    """As imagecodecs does by itself: chunks with the options of UMI's script 07, in its document."""
    imagecodecs = pytest.importorskip("imagecodecs")
    y, x = np.mgrid[:48, :64]
    images = [
        np.stack([3 * x + 5 * k, 4 * y + k, 0 * x + 9 * k], -1).clip(0, 255).astype(np.uint8) for k in range(ROWS)
    ]
    chunks = [imagecodecs.jpegxl_encode(image, level=99, numthreads=1) for image in images]
    path = with_images(tmp_path / "b.zarr", chunks, "imagecodecs_jpegxl")
    document = json.loads((path / "data/img/.zarray").read_text())
    said = dict.fromkeys(("effort", "distance", "decodingspeed", "photometric", "planar", "usecontainer", "index"))
    said |= {"id": "imagecodecs_jpegxl", "level": 99, "lossless": False, "keeporientation": None, "numthreads": 1}
    document |= {"shape": [ROWS, 48, 64, 3], "chunks": [1, 48, 64, 3], "compressor": said}
    (path / "data/img/.zarray").write_text(json.dumps(document))
    ds = rlds_cli.import_files(path, "local/x", frames=frames)
    shown = [np.asarray(ds.episode(k)["observation", "img"])[:n] for k, n in enumerate(np.diff(ENDS, prepend=0))]
    wanted = np.stack([imagecodecs.jpegxl_decode(chunk) for chunk in chunks])
    if frames == "encoded":
        np.testing.assert_array_equal(np.concatenate(shown), wanted)
    else:
        assert ds.schema["observation/img"].codec == "jpeg"
        np.testing.assert_allclose(np.concatenate(shown).astype(int), wanted, atol=16)
    assert trace(ds, 8).ok


def test_images_of_any_length_stay_as_they_are(tmp_path: Path) -> None:
    images = [jpeg(k) for k in range(ROWS)]
    data = {k: v for k, v in arrays().items() if k != "img"}
    path = write(tmp_path / "b.zarr", data)
    values = np.array([*images, None], object)[:-1]
    group = zarr.open_group(path, mode="a")
    group.create_array("data/img", shape=(ROWS,), dtype=VariableLengthBytes(), chunks=(3,))[...] = values
    assert list(Rows("zarr_replay_buffer", path)["observation/img"])[:5] == images[:5]
    rlds_cli.import_files(path, "local/x")
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok


# -- any other store


def test_any_other_store_is_read_by_a_mapping(tmp_path: Path) -> None:
    data = arrays()
    group = zarr.open_group(tmp_path / "mine.zarr", mode="w", zarr_format=3)
    for name, values in {"robot/q": data["state"], "cmd": data["action"], "trial": np.repeat([3, 4], 8)}.items():
        group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(5, *values.shape[1:]))[...] = values
    with pytest.raises(UnknownLayout, match="observation"):
        rlds_cli.import_files(tmp_path / "mine.zarr", "local/x")
    fields = {"observation": "robot/q", "action": "cmd", "episode": "trial"}
    ds = rlds_cli.import_files(tmp_path / "mine.zarr", "local/x", fields=fields)
    assert ds.num_episodes == 2
    np.testing.assert_array_equal(ds.episode(1)["action"], data["action"][8:])
    np.testing.assert_array_equal(ds.episode(0)["observation"][:8], data["state"][:8])


def test_groups_of_a_store_are_episodes_with_their_attributes(tmp_path: Path) -> None:
    rng, made = np.random.default_rng(0), []
    group = zarr.open_group(tmp_path / "mine.zarr", mode="w", zarr_format=3)
    group.attrs["robot"] = "arm"
    for k in range(11):  # episode_10 is behind episode_9
        n = int(rng.integers(1, 6))
        made.append({"observation": rng.normal(size=(n + 1, 3)), "action": rng.normal(size=(n, 2))})
        for name, values in made[-1].items():
            array = group.create_array(f"episode_{k}/{name}", shape=values.shape, dtype=values.dtype)
            array[...] = values
        group[f"episode_{k}"].attrs.update({"success": k % 2 == 0, "seed": k})
    ds = rlds_cli.import_files(tmp_path / "mine.zarr", "local/x")
    for k, e in enumerate(made):
        np.testing.assert_array_equal(ds.episode(k)["action"], e["action"])
        np.testing.assert_array_equal(ds.episode(k)["next"]["observation"], e["observation"][1:])
    assert ds.episodes["success"].tolist() == [k % 2 == 0 for k in range(11)]
    assert list(ds.episodes["robot"]) == ["arm"] * 11
    assert rlds_cli.verify("local/x").ok and trace(ds, 8).ok


def test_texts_are_texts(tmp_path: Path) -> None:
    data = arrays()
    group = zarr.open_group(tmp_path / "mine.zarr", mode="w", zarr_format=2)
    group.create_array("obs", shape=data["state"].shape, dtype="f4", chunks=(5, 5))[...] = data["state"]
    group.create_array("action", shape=data["action"].shape, dtype="f8", chunks=(5, 2))[...] = data["action"]
    said = np.array([f"step {k}" for k in range(ROWS)], object)
    group.create_array("note", shape=(ROWS,), dtype="string", chunks=(5,))[...] = said
    ds = rlds_cli.import_files(tmp_path / "mine.zarr", "local/x")
    assert list(ds.episode(0)["note"]) == said.tolist()


CODECS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "blosc": lambda: {"compressors": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE)},
    "zlib": lambda: {"compressors": numcodecs.Zlib(1)},
    "gzip": lambda: {"compressors": numcodecs.GZip(1)},
    "zstd": lambda: {"compressors": numcodecs.Zstd(1)},
    "lz4": lambda: {"compressors": numcodecs.LZ4()},
    "bz2": lambda: {"compressors": numcodecs.BZ2(1)},
    "lzma": lambda: {"compressors": numcodecs.LZMA(preset=0)},
    "shuffle": lambda: {"compressors": numcodecs.Zlib(1), "filters": numcodecs.Shuffle(4)},
    "delta": lambda: {"compressors": None, "filters": numcodecs.Delta("f4")},
    "crc32": lambda: {"compressors": None, "filters": numcodecs.CRC32()},
    "none": lambda: {"compressors": None},
}


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_of_the_list_is_read(tmp_path: Path, codec: str) -> None:
    pose = np.arange(5.0 * ROWS, dtype=np.float32).reshape(ROWS, 5)  # whose differences are exact
    data = {"pose": pose, "action": 3 * pose}
    rows = Rows("zarr_replay_buffer", write(tmp_path / "b.zarr", data, **CODECS[codec]()))
    np.testing.assert_array_equal(rows.of(1, "observation/pose")[:7], pose[5:12])
    np.testing.assert_array_equal(rows.of(2, "action"), data["action"][12:])


def test_shards_of_format_3_are_read(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=3)
    data = arrays()
    for name, values in data.items():
        sides = values.shape[1:]
        made = group.create_array(f"data/{name}", shape=values.shape, dtype=values.dtype, chunks=(2, *sides),
                                  shards=(8, *sides))  # fmt: skip
        made[...] = values
    group.create_array("meta/episode_ends", shape=ENDS.shape, dtype=ENDS.dtype)[...] = ENDS
    check_values(rlds_cli.import_files(tmp_path / "b.zarr", "local/x"), data)


# -- hostile stores


class Trap:
    """Its pickle makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def changed(path: Path, change: Callable[[dict[str, Any]], None], name: str = "data/state") -> Path:
    file = next(f for f in (path / name / ".zarray", path / name / "zarr.json") if f.exists())
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return path


def test_a_codec_that_runs_code_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    values = np.empty(ROWS, object)
    values[:] = [Trap(tmp_path / "ran")] * ROWS
    trap = path / "data/trap"
    trap.mkdir()
    document = {
        "zarr_format": 2, "shape": [ROWS], "chunks": [ROWS], "dtype": "|O", "fill_value": None, "order": "C",
        "filters": [{"id": "pickle", "protocol": 5}], "compressor": None,
    }  # fmt: skip
    (trap / ".zarray").write_text(json.dumps(document))
    (trap / "0").write_bytes(numcodecs.Pickle().encode(values))
    with pytest.raises(UnsafeArchive, match="pickle"):
        rlds_cli.import_files(path, "local/x")
    assert not (tmp_path / "ran").exists()


def test_a_document_that_changed_meanwhile_is_checked_again(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    assert len(Rows("zarr_replay_buffer", path).episodes) == 3
    changed(path, lambda d: d.update(compressor={"id": "pickle"}))  # nothing at the root of the store changes
    with pytest.raises(UnsafeArchive, match="pickle"):
        Rows("zarr_replay_buffer", path)


@pytest.mark.parametrize("format", [2, 3])
@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "categorize", "no_such_codec"])
def test_codecs_beyond_the_list_are_refused(tmp_path: Path, format: int, codec: str) -> None:
    def change(d: dict[str, Any]) -> None:
        if format == 2:
            d["compressor"] = {"id": codec}
        else:
            d["codecs"].append({"name": f"numcodecs.{codec}", "configuration": {}})

    path = changed(write(tmp_path / "b.zarr", arrays(), format=format), change)
    with pytest.raises(UnsafeArchive, match=codec):
        rlds_cli.import_files(path, "local/x")


def test_codecs_within_a_shard_are_looked_at(tmp_path: Path) -> None:
    def change(d: dict[str, Any]) -> None:
        inside = {"chunk_shape": [1, 5], "codecs": [{"name": "numcodecs.pickle"}], "index_codecs": d["codecs"]}
        d["codecs"] = [{"name": "sharding_indexed", "configuration": inside}]

    path = changed(write(tmp_path / "b.zarr", arrays(), format=3), change)
    with pytest.raises(UnsafeArchive, match="pickle"):
        rlds_cli.import_files(path, "local/x")


HOSTILE: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "a shape beyond all": lambda d: d.update(shape=[1 << 60, 5]),
    "a negative shape": lambda d: d.update(shape=[-4, 5]),
    "a chunk beyond memory": lambda d: d.update(chunks=[1 << 40, 5]),
    "chunks of nothing": lambda d: d.update(chunks=[0, 5]),
    "chunks of other dimensions": lambda d: d.update(chunks=[4]),
    "a shape of texts": lambda d: d.update(shape=["a", 5]),
    "a dtype of nothing": lambda d: d.update(dtype="<q9"),
    "no dtype": lambda d: d.pop("dtype"),
    "a compressor that is a text": lambda d: d.update(compressor="zlib"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_documents_that_lie_are_refused(tmp_path: Path, case: str) -> None:
    path = changed(write(tmp_path / "b.zarr", arrays()), HOSTILE[case])
    with pytest.raises(ArchiveError, match=r"b\.zarr"):
        rlds_cli.import_files(path, "local/x")


@pytest.mark.parametrize("damage", [b"", b"no chunk at all", bytes(100)])
def test_damaged_chunks_are_refused(tmp_path: Path, damage: bytes) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    (path / "data/action/2.0").write_bytes(damage)
    with pytest.raises(ArchiveError, match="data/action"):
        rlds_cli.import_files(path, "local/x")


def test_no_link_is_followed(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", arrays())
    (tmp_path / "secret").write_bytes((path / "data/action/0.0").read_bytes())
    (path / "data/action/0.0").unlink()
    (path / "data/action/0.0").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsafeArchive, match="is a link"):
        rlds_cli.import_files(path, "local/x")


def test_members_of_a_zip_that_inflate_beyond_a_chunk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlds_cli.archives.formats.zarr_stores._MOST_CHUNK", 1 << 16)
    path = write(tmp_path / "b.zarr", arrays())
    zipped = tmp_path / "b.zarr.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as f:
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            f.write(file, file.relative_to(path).as_posix())
        with f.open("data/state/9.0", "w", force_zip64=True) as member:
            member.write(bytes(1 << 17))
    with pytest.raises(UnsafeArchive, match="a chunk has fewer"):
        rlds_cli.import_files(zipped, "local/x")


def test_a_dry_run_says_how_large_the_arrays_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LARGE", 1 << 10)
    data = {"img": np.zeros((ROWS, 32, 32, 3), np.uint8), "action": np.zeros((ROWS, 1))}
    lines = command.plan_lines(make.plan_import(write(tmp_path / "buffer.zarr", data), "local/x"))
    assert "19 rows, 57.2 KiB of arrays" in lines  # of 3,072 + 8 + 2 bytes
    assert any("--storage zarr" in line for line in lines)
