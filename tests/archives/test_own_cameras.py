"""Cameras of a lab's own files: encoded images in every layout, kept as they are, with pixels equal to Pillow's."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from lerobot_archives import decoded
from PIL import Image

from rlds_cli import open_dataset, verify
from rlds_cli.base.progress import Event
from rlds_cli.base.threads import priorities_kept
from rlds_cli.errors import ArchiveError, CorruptArchive, NameTaken, UnknownLayout, UnsafeArchive
from rlds_cli.keep.repair import repair
from rlds_cli.loader import Loader
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

LENGTHS = [4, 6]
CAMERA = "observation/cam"


def image(seed: int, codec: str = "jpeg", size: tuple[int, int] = (24, 32)) -> bytes:
    """An encoded image that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, codec)
    return file.getvalue()


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def padded(images: list[bytes]) -> Any:
    rows = np.zeros((len(images), max(map(len, images)) + 7), np.uint8)
    for row, data in zip(rows, images, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return rows


def vlen(group: h5py.Group, name: str, images: list[bytes]) -> None:
    made = group.create_dataset(name, (len(images),), h5py.vlen_dtype(np.uint8))
    for row, data in enumerate(images):
        made[row] = np.frombuffer(data, np.uint8)


def columns(images: list[bytes]) -> dict[str, Any]:
    """The other columns of a table of two episodes."""
    n = len(images)
    return {
        "obs/q": np.arange(n, dtype=np.float32),
        "action": np.ones((n, 2), np.float32),
        "episode_id": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
    }


def hdf5_file(path: Path, images: list[bytes], put: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path / "rows.h5", "w") as f:
        for name, values in columns(images).items():
            f[name] = values
        put(f)
    return path / "rows.h5"


def hdf5_padded(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=padded(images), compression="gzip"))


def hdf5_vlen(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: vlen(f, "obs/cam", images))


def hdf5_texts(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=np.array(images)))


def hdf5_opaque(path: Path, images: list[bytes]) -> Path:
    rows = np.array(images).view(f"V{max(map(len, images))}")
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=rows))


def npz_padded(path: Path, images: list[bytes]) -> Path:
    np.savez(path / "rows.npz", **{"obs/cam": padded(images)}, **columns(images))
    return path / "rows.npz"


def npz_texts(path: Path, images: list[bytes]) -> Path:
    np.savez_compressed(path / "rows.npz", **{"obs/cam": np.array(images)}, **columns(images))
    return path / "rows.npz"


def table(images: list[bytes], cells: Any) -> pa.Table:
    others = {k: pa.array(v.tolist()) for k, v in columns(images).items()}
    return pa.table({"obs/cam": cells, **others})


def parquet_binary(path: Path, images: list[bytes]) -> Path:
    pyarrow.parquet.write_table(table(images, pa.array(images, pa.binary())), path / "rows.parquet")
    return path / "rows.parquet"


def parquet_struct(path: Path, images: list[bytes]) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": data, "path": None} for data in images], kind)
    pyarrow.parquet.write_table(table(images, cells), path / "rows.parquet", row_group_size=3)
    return path / "rows.parquet"


def arrow_binary(path: Path, images: list[bytes]) -> Path:
    cells = pa.array(images, pa.large_binary())
    pyarrow.feather.write_feather(table(images, cells), path / "rows.feather", compression="uncompressed")
    return path / "rows.feather"


def hdf5_groups(path: Path, images: list[bytes]) -> Path:
    with h5py.File(path / "demos.h5", "w") as f:
        start = 0
        for k, length in enumerate(LENGTHS):
            own = images[start : start + length]
            f[f"demo_{k}/obs/q"], f[f"demo_{k}/action"] = np.arange(length, dtype=np.float32), np.ones((length, 2))
            vlen(f[f"demo_{k}/obs"], "cam", own)
            start += length
    return path / "demos.h5"


def aloha(path: Path, images: list[bytes]) -> Path:
    """A file for each episode, with padded rows and their lengths, as ALOHA's recorder writes them."""
    start = 0
    for k, length in enumerate(LENGTHS):
        own = images[start : start + length]
        with h5py.File(path / f"episode_{k}.hdf5", "w") as f:
            f["observations/qpos"], f["action"] = np.zeros((length, 14)), np.ones((length, 14))
            f["observations/images/cam"] = padded(own)
            f["compress_len"] = np.array([[len(i) for i in own]], np.float64)
        start += length
    return path


LAYOUTS = [
    *(hdf5_padded, hdf5_vlen, hdf5_texts, hdf5_opaque, npz_padded, npz_texts),
    *(parquet_binary, parquet_struct, arrow_binary, hdf5_groups, aloha),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("write", "codec"),
    [
        *((write, "jpeg") for write in LAYOUTS),
        (hdf5_padded, "png"),
        *(pytest.param(write, "png", marks=pytest.mark.thorough) for write in LAYOUTS[1:]),
    ],
)
def test_images_are_kept_as_they_are(tmp_path: Path, write: Callable[[Path, list[bytes]], Path], codec: str) -> None:
    images = [image(seed, codec) for seed in range(sum(LENGTHS))]
    ds = import_files(write(tmp_path, images), "local/filmed", progress=False)
    name = next(n for n in ds.schema if n.endswith("cam"))
    f = ds.schema[name]
    assert (f.kind, f.codec, f.shape) == ("frames", codec, (24, 32, 3))
    assert ds.episodes["length"].tolist() == LENGTHS
    start = 0
    for k, length in enumerate(LENGTHS):
        seen = ds.episode(k)[tuple(name.split("/"))][:length]
        assert (seen == np.stack([pixels(i) for i in images[start : start + length]])).all()
        start += length
    batch = next(iter(Loader(ds, 4, fields=[name], seed=0)))
    assert tuple(batch[tuple(name.split("/"))].shape) == (4, 24, 32, 3)
    found = trace(ds, 10)
    assert found.ok and name in found.fields


# -- files beside a table


def rows_of(length: int) -> dict[str, Any]:
    return {"obs/q": np.arange(length, dtype=np.float32), "action": np.ones((length, 2), np.float32)}


def csv_file(path: Path, length: int, **more: list[Any]) -> None:
    """A log as a spreadsheet has it: two columns of observations, one of actions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ["observation.x", "observation.y", "action_0", "action_1", *more]
    lines = [[t, 2 * t, 1, 1, *(values[t] for values in more.values())] for t in range(length)]
    path.write_text("\n".join(",".join(map(str, line)) for line in [names, *lines]) + "\n")


def image_files(folder: Path, images: list[bytes], suffix: str = ".jpg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, data in enumerate(images):
        (folder / f"{k}{suffix}").write_bytes(data)


def split(images: list[bytes]) -> list[list[bytes]]:
    ends = np.cumsum(LENGTHS).tolist()
    return [images[end - length : end] for length, end in zip(LENGTHS, ends, strict=True)]


def a_folder_each(path: Path, images: list[bytes]) -> Path:
    for k, own in enumerate(split(images)):
        csv_file(path / f"ep_{k}/log.csv", len(own))
        image_files(path / f"ep_{k}/cam", own)
    return path


def called_after_tables(path: Path, images: list[bytes]) -> Path:
    for k, own in enumerate(split(images)):
        np.savez(path / f"ep_{k}.npz", **rows_of(len(own)))
        image_files(path / f"ep_{k}/cam", own)
    return path


def a_folder_each_below_cameras(path: Path, images: list[bytes]) -> Path:
    for k, own in enumerate(split(images)):
        np.savez(path / f"ep_{k}.npz", **rows_of(len(own)))
        image_files(path / f"images/cam/ep_{k}", own)
    return path


def named_in_a_column(path: Path, images: list[bytes]) -> Path:
    image_files(path / "img", images)
    names = [f"img/{k}.jpg" for k in range(len(images))]
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS).tolist()
    csv_file(path / "log.csv", len(images), **{"observation.cam": names, "episode": episode})
    return path


def one_folder_for_all_rows(path: Path, images: list[bytes]) -> Path:
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS).tolist()
    csv_file(path / "log.csv", len(images), episode=episode)
    image_files(path / "frames/cam", images)
    return path


BESIDE = [a_folder_each, called_after_tables, a_folder_each_below_cameras, named_in_a_column, one_folder_for_all_rows]


@pytest.mark.parametrize("write", BESIDE)
def test_image_files_beside_a_table(tmp_path: Path, write: Callable[[Path, list[bytes]], Path]) -> None:
    images = [image(seed) for seed in range(sum(LENGTHS))]
    ds = import_files(write(tmp_path, images), "local/filmed", progress=False)
    assert ds.episodes["length"].tolist() == LENGTHS
    for k, own in enumerate(split(images)):
        seen = ds.episode(k)["observation", "cam"][: len(own)]
        assert (seen == np.stack([pixels(i) for i in own])).all()
    found = trace(ds, 10)
    assert found.ok and CAMERA in found.fields
    assert ds.manifest.facts["cameras"][CAMERA]["rows_by"] == "count"


def test_folders_are_in_natural_order(tmp_path: Path) -> None:
    images = [image(seed) for seed in range(12)]
    csv_file(tmp_path / "log.csv", 12)
    image_files(tmp_path / "cam", images)
    ds = import_files(tmp_path, "local/filmed", episodes_by="file", progress=False)
    assert (ds.episode(0)["observation", "cam"][10] == pixels(images[10])).all()


def test_the_final_image_is_the_final_observation(tmp_path: Path) -> None:
    for k, length in enumerate(LENGTHS):
        (tmp_path / f"ep_{k}").mkdir()
        np.savez(tmp_path / f"ep_{k}/log.npz", action=np.ones((length, 2)), rewards=np.zeros(length))
        image_files(tmp_path / f"ep_{k}/cam", [image(100 * k + t) for t in range(length + 1)])
    ds = import_files(tmp_path, "local/filmed", progress=False)
    after = ds.episode(1)["next", "observation", "cam"]
    assert (after[-1] == pixels(image(100 + LENGTHS[1]))).all()


# -- videos beside a table


def film(path: Path, count: int, fps: int = 10, codec: str = "libx264", **options: str) -> Any:
    """A video of that many frames; return them as av decodes them."""
    codes = np.random.default_rng(count).integers(0, 255, (count, 32, 48, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    of_file = {k: options.pop(k) for k in ("movflags",) if k in options}
    with av.open(str(path), "w", options=of_file) as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        with priorities_kept():
            container.start_encoding()
        for k, frame in enumerate(codes):
            made = av.VideoFrame.from_ndarray(frame, format="rgb24")
            made.pts, made.time_base = k, Fraction(1, fps)
            container.mux(stream.encode(made))
        container.mux(stream.encode())
    return decoded(path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["ep_{k}_cam.mp4", "ep_{k}/cam.mp4", "cam/ep_{k}.mp4", "videos/cam/ep_{k}.mp4"])
def test_a_video_for_each_episode(tmp_path: Path, name: str) -> None:
    films = []
    for k, length in enumerate(LENGTHS):
        np.savez(tmp_path / f"ep_{k}.npz", **rows_of(length))
        films.append(film(tmp_path / name.format(k=k), length))
    ds = import_files(tmp_path, "local/filmed", progress=False)
    assert ds.schema[CAMERA].codec == "mp4"
    for k, frames in enumerate(films):
        assert (ds.episode(k)["observation", "cam"][: len(frames)] == frames).all()
    assert trace(ds, 10).ok and verify(ds.id).ok


CONTAINERS = [
    ("mkv", "libx264", {"g": "4"}),
    ("avi", "mjpeg", {}),
    ("avi", "libx264", {"g": "4", "bf": "0"}),
    ("mp4", "libx264", {"g": "4", "movflags": "frag_keyframe+empty_moov"}),
    pytest.param("mp4", "mjpeg", {}, marks=pytest.mark.thorough),
    pytest.param("avi", "mpeg4", {"g": "4"}, marks=pytest.mark.thorough),
    pytest.param("mkv", "libx265", {"g": "4", "x265-params": "log-level=none:cutree=0"}, marks=pytest.mark.thorough),
    pytest.param("mkv", "libsvtav1", {"g": "4"}, marks=pytest.mark.thorough),
    pytest.param("mkv", "ffv1", {}, marks=pytest.mark.thorough),
    pytest.param("webm", "libvpx", {"g": "4", "auto-alt-ref": "1", "lag-in-frames": "9"}, marks=pytest.mark.thorough),
    pytest.param("webm", "libvpx-vp9", {"g": "4"}, marks=pytest.mark.thorough),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("suffix", "codec", "options"), CONTAINERS)
def test_a_video_in_another_container(tmp_path: Path, suffix: str, codec: str, options: dict[str, str]) -> None:
    films = []
    for k, length in enumerate(LENGTHS):
        np.savez(tmp_path / f"ep_{k}.npz", **rows_of(length))
        films.append(film(tmp_path / f"ep_{k}_cam.{suffix}", length, codec=codec, **options))
    ds = import_files(tmp_path, "local/filmed", progress=False)
    for k, frames in enumerate(films):
        assert len(frames) == LENGTHS[k]
        assert (ds.episode(k)["observation", "cam"][: len(frames)] == frames).all()
        backwards = np.arange(len(frames))[::-1] + ds.episodes["start"][k]
        assert (ds.gather(CAMERA, backwards) == frames[::-1]).all()
        published = ds.store.videos(CAMERA).published(k).tobytes()
        assert published == (tmp_path / f"ep_{k}_cam.{suffix}").read_bytes()
    assert trace(ds, 10).ok and verify(ds.id).ok


def test_a_video_of_another_rate_is_aligned_by_time_stamps(tmp_path: Path) -> None:
    times = [0.0, 0.04, 0.09, 0.11, 0.2, 0.31]  # the video has a frame every 0.1 s
    csv_file(tmp_path / "log.csv", len(times), timestamp=[1000 + t for t in times])
    frames = film(tmp_path / "cam.mp4", 4)
    ds = import_files(tmp_path, "local/filmed", episodes_by="file", progress=False)
    assert (ds.episode(0)["observation", "cam"][:6] == frames[[0, 0, 0, 1, 2, 3]]).all()
    assert ds.manifest.facts["cameras"][CAMERA]["rows_by"] == "timestamp"
    ages = ds.episode(0)["info", "age", "cam"]
    np.testing.assert_allclose(ages.reshape(-1), [0, 0.04, 0.09, 0.01, 0, 0.01][: len(ages)], atol=2e-6)


def test_one_video_for_all_rows(tmp_path: Path) -> None:
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS).tolist()
    csv_file(tmp_path / "log.csv", sum(LENGTHS), episode=episode)
    frames = film(tmp_path / "cam.mp4", sum(LENGTHS))
    ds = import_files(tmp_path, "local/filmed", progress=False)
    assert (ds.episode(1)["observation", "cam"][: LENGTHS[1]] == frames[LENGTHS[0] :]).all()


# -- what is refused


def test_an_image_of_another_size_is_refused_by_row(tmp_path: Path) -> None:
    images = [image(0), image(1), image(2, size=(12, 16))]
    np.savez(tmp_path / "rows.npz", **{"obs/cam": padded(images)}, **rows_of(3))
    with pytest.raises(UnknownLayout, match="row 2 holds a jpeg of"):
        import_files(tmp_path / "rows.npz", "local/filmed", progress=False)


def test_a_damaged_image_is_refused_by_row(tmp_path: Path) -> None:
    images = [image(0), image(1), b"\x01" * 100]
    np.savez(tmp_path / "rows.npz", **{"obs/cam": padded(images)}, **rows_of(3))
    with pytest.raises(CorruptArchive, match="row 2 holds 100 bytes"):
        import_files(tmp_path / "rows.npz", "local/filmed", progress=False)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", [hdf5_padded, npz_texts, parquet_struct, hdf5_groups])
def test_a_jpeg_that_is_cut_short_is_refused_by_row(tmp_path: Path, write: Callable[[Path, list[bytes]], Path]) -> None:
    images = [image(k) for k in range(sum(LENGTHS))]
    images[2] = cut(images[2])
    with pytest.raises(CorruptArchive, match=r"row 2 holds a JPEG image that is cut short"):
        import_files(write(tmp_path, images), "local/filmed", progress=False)


def test_an_episode_with_a_cut_jpeg_is_left_out(tmp_path: Path) -> None:
    images = [image(k) for k in range(sum(LENGTHS))]
    images[LENGTHS[0] + 3] = cut(images[LENGTHS[0] + 3])
    aloha(tmp_path, images)
    with pytest.raises(CorruptArchive, match=r"episode_1.hdf5: observations/images/cam: row 3"):
        import_files(tmp_path, "local/filmed", progress=False)
    ds = import_files(tmp_path, "local/filmed", progress=False, skip_bad=True)
    assert ds.num_episodes == 1 and [s["file"] for s in ds.sources] == ["episode_0.hdf5"]


def test_a_jpeg_with_other_bytes_behind_its_end_is_kept(tmp_path: Path) -> None:
    images = [image(k) for k in range(sum(LENGTHS))]
    images[2] += b"recorded by a camera" * 9
    ds = import_files(hdf5_padded(tmp_path, images), "local/filmed", progress=False)
    assert np.array_equal(ds.episode(0)["observation/cam"][2], pixels(images[2]))


def test_names_that_leave_the_directory_are_refused(tmp_path: Path) -> None:
    image_files(tmp_path, [image(0)])
    image_files(tmp_path / "logs", [image(1)])
    csv_file(tmp_path / "logs/log.csv", 2, **{"observation.cam": ["../0.jpg", "../0.jpg"], "episode": [0, 0]})
    with pytest.raises(UnsafeArchive, match="not in its directory"):
        import_files(tmp_path / "logs", "local/filmed", progress=False)


def test_the_video_of_a_table_that_is_left_out_is_left_out(tmp_path: Path) -> None:
    for k, length in enumerate(LENGTHS):
        np.savez(tmp_path / f"ep_{k}.npz", **rows_of(length))
        film(tmp_path / f"ep_{k}_cam.mp4", length if k else 2)
    plan = plan_import(tmp_path, "local/filmed", skip_bad=True)
    left_out = {e.name: e.left_out for e in plan.account if e.left_out}
    assert left_out.keys() == {"ep_0.npz", "ep_0_cam.mp4"} and "its table" in left_out["ep_0_cam.mp4"]


def test_a_video_without_a_frame_for_each_row_needs_time_stamps(tmp_path: Path) -> None:
    for k, length in enumerate(LENGTHS):
        np.savez(tmp_path / f"ep_{k}.npz", **rows_of(length))
        film(tmp_path / f"ep_{k}_cam.mp4", length if k == 0 else 2)
    with pytest.raises(UnknownLayout, match="has 2 frames") as e:
        import_files(tmp_path, "local/filmed", progress=False)
    assert "time stamps" in str(e.value.hint)


def test_images_that_no_table_owns_are_noted(tmp_path: Path) -> None:
    csv_file(tmp_path / "log.csv", 4, episode=[0, 0, 1, 1])
    image_files(tmp_path / "thumbnails", [image(0)])
    planned = plan_import(tmp_path, "local/x")
    assert any("0.jpg" in note for note in planned.notes)


@pytest.mark.parametrize("name", ["cam.mkv", "cam.avi", "cam.mp4"])
def test_a_damaged_video_is_refused(tmp_path: Path, name: str) -> None:
    csv_file(tmp_path / "log.csv", 4, timestamp=[0.0, 0.1, 0.2, 0.3])
    film(tmp_path / name, 4, codec="mpeg4")
    head = (tmp_path / name).read_bytes()[:40]
    for content in (b"", head, head + bytes(100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArchiveError, match=name):
            import_files(tmp_path, "local/filmed", episodes_by="file", progress=False)


def test_an_avi_whose_frames_are_not_in_their_order_names_the_command(tmp_path: Path) -> None:
    csv_file(tmp_path / "log.csv", 12, timestamp=(np.arange(12) / 10).tolist())
    film(tmp_path / "cam.avi", 12, codec="libx264", bf="2")
    with pytest.raises(UnknownLayout, match="not in their order") as e:
        import_files(tmp_path, "local/filmed", episodes_by="file", progress=False)
    assert "ffmpeg" in str(e.value.hint)


def test_a_table_that_is_named_alone_has_no_cameras(tmp_path: Path) -> None:
    csv_file(tmp_path / "log.csv", 4, timestamp=[0.0, 0.1, 0.2, 0.3])
    film(tmp_path / "other.mp4", 9)
    (tmp_path / "holiday.mkv").write_bytes(b"\x1a\x45\xdf\xa3" + bytes(100))
    ds = import_files(tmp_path / "log.csv", "local/plain", progress=False)
    assert not any(f.kind == "frames" for f in ds.schema.values())


def test_a_folder_whose_name_holds_that_of_a_table(tmp_path: Path) -> None:
    for k, length in enumerate(LENGTHS):
        np.savez(tmp_path / f"{k}.npz", **rows_of(length))
        image_files(tmp_path / f"cam0/{k}", [image(100 * k + t) for t in range(length)])
    ds = import_files(tmp_path, "local/filmed", progress=False)
    assert (ds.episode(1)["observation", "cam0"][2] == pixels(image(102))).all()


# -- files beside a table are sources


@pytest.mark.sampled(1)
@pytest.mark.parametrize("write", [a_folder_each, named_in_a_column])
def test_other_images_are_another_import(tmp_path: Path, write: Callable[[Path, list[bytes]], Path]) -> None:
    images = [image(seed) for seed in range(sum(LENGTHS))]
    first = import_files(write(tmp_path / "lab", images), "local/filmed", progress=False)
    tables = [s["file"] for s in first.sources if str(s["file"]).endswith(".csv")]
    assert [s["file"] for s in first.sources][: len(tables)] == tables
    assert len(first.sources) == len(tables) + len(images)
    assert import_files(tmp_path / "lab", "local/filmed", progress=False).path == first.path
    write(tmp_path / "lab", [image(100), *images[1:]])
    with pytest.raises(NameTaken):
        import_files(tmp_path / "lab", "local/filmed", progress=False)
    again = import_files(tmp_path / "lab", "local/filmed", force=True, progress=False)
    assert (again.episode(0)["observation", "cam"][0] == pixels(image(100))).all()
    assert trace(again, 10).ok and verify(again.id).ok


def test_another_video_is_another_import(tmp_path: Path) -> None:
    csv_file(tmp_path / "lab/log.csv", 5)
    film(tmp_path / "lab/cam.mp4", 5)
    first = import_files(tmp_path / "lab", "local/filmed", progress=False)
    assert [s["file"] for s in first.sources] == ["log.csv", "cam.mp4"]
    assert trace(first, 10).ok
    film(tmp_path / "lab/cam.mp4", 5, gop_size="1", crf="40")
    with pytest.raises(NameTaken):
        import_files(tmp_path / "lab", "local/filmed", progress=False)


def test_a_video_that_a_field_names_is_a_source_though_the_table_alone_is_named(tmp_path: Path) -> None:
    csv_file(tmp_path / "lab/log.csv", 5)
    film(tmp_path / "lab/cam.mp4", 5)
    table, fields = tmp_path / "lab/log.csv", {CAMERA: "video:cam.mp4"}
    ds = import_files(table, "local/filmed", fields=fields, progress=False)
    assert [s["file"] for s in ds.sources] == ["log.csv", "cam.mp4"]
    assert [e["used_as"] for e in ds.manifest.account if e["name"] == "cam.mp4"] == [[CAMERA]]


def write_another(folder: Path) -> None:
    (folder / "3.jpg").write_bytes(image(100))


def add_another(folder: Path) -> None:
    (folder / "3b.jpg").write_bytes(image(100))


@pytest.mark.parametrize("change", [write_another, add_another])
def test_images_that_change_meanwhile_are_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    csv_file(tmp_path / "lab/log.csv", 5)
    image_files(tmp_path / "lab/cam", [image(k) for k in range(5)])

    def tell(event: Event) -> None:
        if event.stage == "convert":
            change(tmp_path / "lab/cam")

    with pytest.raises(ArchiveError, match=r"cam.* changed while the archive was read"):
        import_files(tmp_path / "lab", "local/filmed", progress=tell)


def test_an_import_with_images_is_repaired_with_them(tmp_path: Path) -> None:
    images = [image(k) for k in range(5)]
    csv_file(tmp_path / "lab/log.csv", 5)
    image_files(tmp_path / "lab/cam", images)
    ds = import_files(tmp_path / "lab", "local/filmed", progress=False)
    before = ds.fingerprint
    damaged = next(p for p in ds.path.rglob("*") if p.is_file() and p.stat().st_size and "action" in p.as_posix())
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert repair(ds.id).now.ok
    assert open_dataset(ds.id).fingerprint == before


def test_the_images_of_a_table_that_is_left_out_are_left_out_with_it(tmp_path: Path) -> None:
    for k, length in enumerate([4, 6, 5]):
        np.savez(tmp_path / f"ep_{k}.npz", **rows_of(length))
        image_files(tmp_path / f"ep_{k}/cam", [image(10 * k + t) for t in range(length - 2 * (k == 2))])
    planned = plan_import(tmp_path, "local/filmed", skip_bad=True)
    fates = [(e.count, e.left_out or e.used_as[0]) for e in planned.account if e.name.endswith(".jpg")]
    assert sorted(fates) == [(3, "its table is left out"), (10, CAMERA)]
    assert len(planned.beside) == 10
    (tmp_path / "ep_2.npz").write_bytes(b"PK no table")
    planned = plan_import(tmp_path, "local/filmed", skip_bad=True)
    assert sorted((e.count, e.left_out) for e in planned.account if e.name.endswith(".jpg")) == [
        (3, "its table is left out"),
        (10, ""),
    ]
