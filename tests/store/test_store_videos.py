"""Frames in videos, through everything that reads, keeps or changes a dataset; av decodes what is expected."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_archives import Content, decoded, encode, write_v3
from PIL import Image
from test_mp4 import CODECS, pictures

import rlds_cli
from rlds_cli.base.files import arrays, child
from rlds_cli.base.media import mp4
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, FrameError, MissingPackage
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Transition
from rlds_cli.make.importing import import_files
from rlds_cli.store import Video, decode_video, layouts
from rlds_cli.ted import Field

TOP = "observation/images/top"
CONTENT = Content(lengths=(6, 5, 9, 2), video=("top",), per_file=3, per_video=2)
FIELD = Field(TOP, "uint8", (48, 64, 3), "both", "frames", "mp4")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v3(tmp_path_factory.mktemp("videos") / "a", CONTENT)


@pytest.fixture(scope="module")
def imported(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the dataset."""
    home = tmp_path_factory.mktemp("imported")
    with child.here():
        import_files(archive, "local/film", home=home)
    return home


@pytest.fixture
def ds(imported: Path, home: Path) -> Dataset:
    shutil.copytree(imported, home)
    return rlds_cli.open_dataset("local/film")


def seen(archive: Path) -> np.ndarray:
    """All frames, in order of the steps."""
    return np.concatenate([decoded(f) for f in sorted(archive.rglob("*.mp4"))])


def rows(ds: Dataset) -> np.ndarray:
    """The row of every step."""
    e = ds.episodes
    return np.concatenate([np.arange(s, s + n) for s, n in zip(e["start"], e["length"], strict=True)])


# -- decoding


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CODECS)
def test_any_frame_in_any_order(tmp_path: Path, kind: str) -> None:
    codec, options, _ = CODECS[kind]
    path = tmp_path / "a.mp4"
    encode(path, pictures(), codec, options)
    expected = decoded(path)
    video = Video(str(path), np.fromfile(path, np.uint8), mp4.read(path))
    rng = np.random.default_rng(0)
    orders = [np.arange(21), np.arange(21)[::-1], rng.permutation(21), rng.integers(0, 21, 50)]
    for order in [*orders, *([k] for k in (20, 0, 13, 13, 7, 8))]:
        index = np.stack([np.zeros(len(order), int), order], 1)
        np.testing.assert_array_equal(decode_video(index, lambda _: video, FIELD, "test"), expected[order])
    index = np.array([[-1, -1], [0, 3]])
    found = decode_video(index, lambda _: video, FIELD, "test")
    assert not found[0].any()
    np.testing.assert_array_equal(found[1], expected[3])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "30"}),
        ("libx264", {"g": "12", "x264-params": "open-gop=1:b-pyramid=normal:bframes=5"}),
        pytest.param("libx264", {"g": "90", "bf": "0"}, marks=pytest.mark.thorough),
        pytest.param("libsvtav1", {"g": "16", "preset": "12"}, marks=pytest.mark.thorough),
        pytest.param("libx265", {"g": "30", "x265-params": "log-level=none:cutree=0"}, marks=pytest.mark.thorough),
    ],
)
def test_frames_of_long_groups_of_pictures(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    """Calls that go on from each other, jump, and repeat give the frames that the whole file decodes to."""
    path = tmp_path / "a.mp4"
    encode(path, pictures(90), codec, options)
    expected = decoded(path)
    video = Video(str(path), np.fromfile(path, np.uint8), mp4.read(path))
    rng = np.random.default_rng(0)
    in_order = [np.arange(k, k + 6) for k in range(0, 90, 6)]
    single = [rng.integers(0, 90, 1) for _ in range(20)]
    windows = [k + np.arange(4) for k in rng.integers(0, 86, 20)]
    several = [rng.integers(0, 90, n) for n in rng.integers(2, 9, 20)]
    for order in [*in_order, *single, *windows, *in_order[:4], *several, *single, *in_order[7:]]:
        index = np.stack([np.zeros(len(order), int), order], 1)
        np.testing.assert_array_equal(decode_video(index, lambda _: video, FIELD, "test"), expected[order])


def test_decoders_do_not_read_behind_a_packet(tmp_path: Path) -> None:
    """What lies in memory behind a packet must not enter: MPEG-4's decoder looks at it."""
    for turn in range(7):
        path = tmp_path / f"{turn}.mp4"
        encode(path, np.roll(pictures(), turn, 2), "mpeg4", {})
        expected, order = decoded(path), np.arange(21)
        video = Video(str(path), np.fromfile(path, np.uint8), mp4.read(path))
        index = np.stack([np.zeros(21, int), order], 1)
        for place in range(4):
            np.testing.assert_array_equal(decode_video(index, lambda _: video, FIELD, place), expected)  # noqa: B023


def test_colours_that_only_the_file_names(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = 1, 1  # BT.709
        for picture in pictures(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    video = Video(str(path), np.fromfile(path, np.uint8), mp4.read(path))
    found = decode_video(np.array([[0, 0], [0, 2]]), lambda _: video, FIELD, "test")
    np.testing.assert_array_equal(found, decoded(path)[[0, 2]])


def test_a_video_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    encode(path, pictures(3, 32, 64), "mpeg4", {})
    video = Video(str(path), np.fromfile(path, np.uint8), mp4.read(path))
    with pytest.raises(FrameError, match="a video of 32x64; 48x64 expected"):
        decode_video(np.array([[0, 0]]), lambda _: video, FIELD, "test")
    with pytest.raises(DamagedDataset, match="frame 3 of a video of 3"):
        decode_video(np.array([[0, 3]]), lambda _: video, FIELD, "test")


def test_damaged_packets(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    encode(path, pictures(), *CODECS["av1, as LeRobot writes it"][:2])
    expected, data, track = decoded(path), np.fromfile(path, np.uint8), mp4.read(path)
    start, size = int(track.start[4]), int(track.size[4])
    data[start : start + size] = 255
    video = Video(str(path), data, track)
    with pytest.raises(FrameError, match="does not decode as av1"):
        decode_video(np.array([[0, 4]]), lambda _: video, FIELD, "test")
    found = decode_video(np.array([[0, 3], [0, 8]]), lambda _: video, FIELD, "test")
    np.testing.assert_array_equal(found, expected[[3, 8]])


def test_videos_that_are_let_go_of_are_opened_again(
    archive: Path, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlds_cli.store.videos._MOST_HELD", 12)
    order = np.random.default_rng(0).permutation(22)
    for _ in range(3):
        np.testing.assert_array_equal(ds.gather(TOP, rows(ds)[order]), seen(archive)[order])
    assert len(ds.store.videos(TOP)._opened) < 3


def test_without_av_all_but_frames_is_read(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlds_cli.store import decoding

    monkeypatch.setattr(decoding, "_here", type(decoding._here)())
    monkeypatch.setitem(sys.modules, "av", None)
    ds = import_files(archive, "local/film")
    assert ds.column("observation/state").shape == (26, 4)
    batch = next(
        iter(Loader(ds, batch_size=4, fields=["observation/state", "action"], window=Transition(anchors="steps")))
    )
    assert batch["action"].shape == (4, 2)
    assert verify("local/film").ok
    with pytest.raises(MissingPackage) as missing:
        ds.gather(TOP, np.array([0]))
    assert missing.value.hint == "pip install 'rlds-cli[video]'"


# -- reading


def test_rows_and_episodes(archive: Path, ds: Dataset) -> None:
    expected = seen(archive)
    np.testing.assert_array_equal(ds.gather(TOP, rows(ds)), expected)
    np.testing.assert_array_equal(ds.episode(2)["observation", "images", "top"], expected[11:20])
    np.testing.assert_array_equal(ds.episode(0)["next", "observation", "images", "top"][:-1], expected[1:6])
    index = ds.store.rows(TOP)
    assert index[:7].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 5]]
    assert index[13].tolist() == [1, 0]
    sizes = ds.store.videos(TOP).sizes(index[[0, 6, 5]]).tolist()
    assert sizes[1] == sizes[2] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loader_gives_the_frames_of_its_rows(archive: Path, ds: Dataset, prefetch: int) -> None:
    expected, state = seen(archive), np.concatenate([ds.episode(k)["observation", "state"] for k in range(4)])
    number = {s.tobytes(): k for k, s in enumerate(state)}
    loader = Loader(ds, batch_size=5, seed=1, steps=6, prefetch=prefetch)
    for batch in loader:
        here = [number[s.tobytes()] for s in batch["observation", "state"].numpy()]
        np.testing.assert_array_equal(batch["observation", "images", "top"], expected[here])
        np.testing.assert_array_equal(batch["next", "observation", "images", "top"], expected[np.add(here, 1)])


@pytest.mark.thorough
def test_windows(archive: Path, ds: Dataset) -> None:
    expected, state = seen(archive), np.concatenate([ds.episode(k)["observation", "state"] for k in range(4)])
    number = {s.tobytes(): k for k, s in enumerate(state)}
    for batch in Loader(ds, batch_size=3, window=rlds_cli.loader.Slice(4, anchors="steps"), seed=0, steps=4):
        first = [number[s.tobytes()] for s in batch["observation", "state"][:, 0].numpy()]
        wanted = expected[np.add.outer(first, np.arange(4))]
        np.testing.assert_array_equal(batch["observation", "images", "top"], wanted)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_that_are_decoded_together_have_memory_of_their_own(archive: Path, ds: Dataset, prefetch: int) -> None:
    """Memory of batches that are gone is used again, that of others is not; a state in between gives the same."""
    expected, state = seen(archive), np.concatenate([ds.episode(k)["observation", "state"] for k in range(4)])
    number = {s.tobytes(): k for k, s in enumerate(state)}
    fields = ["observation/state", TOP, f"next/{TOP}", "action"]
    how: dict[str, Any] = {"batch_size": 5, "seed": 1, "steps": 20, "prefetch": prefetch, "fields": fields}
    loader = Loader(ds, **how)
    assert loader.reader.batches_at_once(5) > 4
    kept, then = [], {}
    for k, batch in enumerate(loader):
        if k % 3:
            kept.append(batch)
        if k == 9:
            then = loader.state_dict()
        del batch
    for batch in kept:
        here = [number[s.tobytes()] for s in batch["observation", "state"].numpy()]
        np.testing.assert_array_equal(batch[TOP], expected[here])
        np.testing.assert_array_equal(batch["next", TOP], expected[np.add(here, 1)])
    places = {batch[TOP].data_ptr() // 4096 for batch in kept}
    assert len(places) == len(kept) == 13
    again = Loader(ds, **how)
    again.load_state_dict(then)
    later = next(iter(again))  # number 10, which was kept
    np.testing.assert_array_equal(later["action"], kept[6]["action"])
    np.testing.assert_array_equal(later[TOP], kept[6][TOP])


def test_frames_that_several_batches_need_are_decoded_once(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlds_cli.store import decoding

    path = tmp_path / "a.mp4"
    encode(path, pictures(60), "libx264", {"g": "30"})
    camera = {"camera": rlds_cli.Video(path)}
    ds = rlds_cli.create("local/one", [{"observation": camera, "action": np.arange(60), "next": {}}])
    asked = []
    decode_one = decoding.decode_one
    monkeypatch.setattr(decoding, "decode_one", lambda *given: asked.append(given[1]) or decode_one(*given))
    window = rlds_cli.loader.Slice(8)
    loader = Loader(ds, 4, window=window, steps=15, seed=0, prefetch=0, fields=["observation/camera", "action"])
    frames = decoded(path)
    for batch in loader:
        np.testing.assert_array_equal(batch["observation/camera"], frames[batch["action"].long().numpy()])
    assert len(asked) <= 4 * 60  # runs of 1, 2, 4 and 8 batches; one by one they would be 15 times 20 to 30


def test_forked_processes_go_on_decoding(archive: Path, ds: Dataset) -> None:
    expected, every = seen(archive), rows(ds)
    assert (ds.gather(TOP, every) == expected).all()  # this process has decoders when it is forked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if (ds.gather(TOP, every[::-1]) == expected[::-1]).all() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 60
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if found == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found == (child, 0)


@pytest.mark.thorough
def test_threads_decode_side_by_side(archive: Path, ds: Dataset) -> None:
    expected, every = seen(archive), rows(ds)

    def right(seed: int) -> bool:
        drawn = np.random.default_rng(seed).integers(0, 22, 30)
        return bool((ds.gather(TOP, every[drawn]) == expected[drawn]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(40)))


# -- keeping


@pytest.mark.thorough
def test_videos_are_stored_once_and_as_published(archive: Path, ds: Dataset) -> None:
    files = sorted(archive.rglob("*.mp4"))
    stored = layouts.read(ds.path / "video" / TOP / "bytes")
    assert stored.tobytes() == b"".join(f.read_bytes() for f in files)
    hashes = [hashlib.sha256(f.read_bytes()).digest() for f in files]
    assert [d.tobytes() for d in layouts.read(ds.path / "video" / TOP / "sha256")] == hashes
    first = ds.store.rows(TOP)[: ds.episodes["num_observed" if ds.schema[TOP].placement == "both" else "length"][0]]
    frames = b"".join(hashes[video] + struct.pack("<i", frame) for video, frame in first.tolist())
    assert layouts.read(ds.path / "digests" / TOP)[0].tobytes() == hashlib.sha256(frames).digest()


def test_workers_do_not_change_a_byte(archive: Path, ds: Dataset) -> None:
    other = import_files(archive, "local/parallel", jobs=2)
    assert other.fingerprint == ds.fingerprint
    np.testing.assert_array_equal(other.store.rows(TOP), ds.store.rows(TOP))


@pytest.mark.thorough
def test_the_other_encoding_and_back(archive: Path, ds: Dataset) -> None:
    done = reencode("local/film", to="zarr")
    packed = rlds_cli.open_dataset("local/film")
    assert done.fingerprint == packed.fingerprint == ds.fingerprint
    np.testing.assert_array_equal(packed.gather(TOP, rows(packed)), seen(archive))
    assert verify("local/film").ok
    assert reencode("local/film", to="memmap").fingerprint == ds.fingerprint
    assert verify("local/film").ok


@pytest.fixture
def damaged(ds: Dataset) -> Iterator[Path]:
    copy = ds.path.with_name("damaged")
    shutil.copytree(ds.path, copy)
    yield copy
    shutil.rmtree(copy, ignore_errors=True)


def problems(path: Path) -> list[str]:
    return [str(p) for p in verify(path).problems]


def flip(file: Path, at: int) -> None:
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.thorough
def test_damage_is_named(damaged: Path, archive: Path) -> None:
    size = sorted(archive.rglob("*.mp4"))[0].stat().st_size
    flip(arrays.data_file(damaged / "video" / TOP / "bytes", 1), size + 100)
    assert problems(damaged) == [f"{TOP}: episodes 2-3 differ"]


def test_damaged_tables_are_named(damaged: Path) -> None:
    flip(arrays.data_file(damaged / "video" / TOP / "packets", 2), 8)
    assert any("tables that say where frames lie" in p for p in problems(damaged))


@pytest.mark.thorough
def test_a_missing_file_of_videos(damaged: Path) -> None:
    arrays.data_file(damaged / "video" / TOP / "bytes", 1).unlink()
    with pytest.raises(DamagedDataset, match="is missing"):
        rlds_cli.open_dataset(damaged)


# -- decoding at conversion


def test_frames_raw(archive: Path, ds: Dataset) -> None:
    raw = import_files(archive, "local/raw", frames="raw")
    np.testing.assert_array_equal(raw.column(TOP)[rows(raw)], seen(archive))
    np.testing.assert_array_equal(raw.column(TOP)[6], seen(archive)[5])
    assert raw.fingerprint != ds.fingerprint
    assert not (raw.path / "video").exists()


def test_frames_resized(archive: Path) -> None:
    small = import_files(archive, "local/small", frames="12x16")
    expected = [np.asarray(Image.fromarray(x).resize((16, 12), Image.Resampling.BOX)) for x in seen(archive)]
    np.testing.assert_array_equal(small.column(TOP)[rows(small)], expected)


# -- preprocess


def shift(episode: Any) -> Any:
    episode["action"] = episode["action"] + 1
    return episode


def long_ones(episode: Any) -> Any:
    return shift(episode) if len(episode["action"]) > 5 else None


def invert(episode: Any) -> Any:
    episode["observation"]["images"]["top"] = 255 - episode["observation"]["images"]["top"]
    return episode


@pytest.mark.thorough
def test_videos_that_stay_are_shared(archive: Path, ds: Dataset) -> None:
    made = rlds_cli.preprocess.run(ds, shift, name="shift")
    assert made.schema[TOP].codec == "mp4"
    np.testing.assert_array_equal(made.gather(TOP, rows(made)), seen(archive))
    one, other = (arrays.data_file(d.path / "video" / TOP / "bytes", 1).stat().st_ino for d in (ds, made))
    assert one == other
    assert verify(made.path).ok


def test_videos_of_the_episodes_that_stay(archive: Path, ds: Dataset) -> None:
    made = rlds_cli.preprocess.run(ds, long_ones, name="long")
    assert made.episodes["length"].tolist() == [6, 9]
    expected = seen(archive)
    np.testing.assert_array_equal(made.gather(TOP, rows(made)), np.concatenate([expected[:6], expected[11:20]]))
    assert made.schema[TOP].codec == "mp4"
    assert verify(made.path).ok


def test_versions_keep_videos_and_their_digests(archive: Path, ds: Dataset) -> None:
    expected = np.split(seen(archive), np.cumsum(CONTENT.lengths)[:-1])
    chosen = ds.select(episodes=[3, 0]).save("chosen")
    trimmed = ds.trim({0: [(0, 2), (2, 6)], 1: None, 2: (3, 5)}, "trimmed")
    labelled = trimmed.select(episodes=[1, 2]).label(quality="good").select(episodes=[0]).drop()
    parts = [expected[0][2:], expected[2][3:5], expected[3]]
    for made, frames in ((chosen, [expected[3], expected[0]]), (trimmed, [expected[0][:2], *parts]), (labelled, parts)):
        np.testing.assert_array_equal(made.gather(TOP, rows(made)), np.concatenate(frames))
        copy = rlds_cli.merge([made], "local/copy", force=True)
        assert {f.name: f.digest for f in copy.manifest.fields} == {f.name: f.digest for f in made.manifest.fields}
        assert verify(made.path).ok


@pytest.mark.thorough
def test_frames_that_a_function_changes_become_arrays(archive: Path, ds: Dataset) -> None:
    made = rlds_cli.preprocess.run(ds, invert, name="invert")
    np.testing.assert_array_equal(made.column(TOP)[rows(made)], 255 - seen(archive))


# -- pictures


def test_contact_sheet_and_film(archive: Path, ds: Dataset, tmp_path: Path) -> None:
    from rlds_cli.look.report.plots import contact_sheet, write_video

    sheet = contact_sheet(ds, episode=0)
    assert sheet.size[0] > 160
    assert write_video(ds, tmp_path / "film.mp4", 2) == 9
    assert len(decoded(tmp_path / "film.mp4")) == 9
