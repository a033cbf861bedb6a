"""Frames that are decoded once: `Resize` with a cache, against frames that PyAV or Pillow decode and torch resizes."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache as kept
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.base.files import arrays, trees
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, FrameError, InvalidArgument
from rlds_cli.keep import gc
from rlds_cli.loader import Loader, Mixture, Offsets, Resize, Shuffled, Slice, ToFloat, Transition
from rlds_cli.loader.storage.frame_cache import FrameCache, discard_frames
from rlds_cli.store import frames, layouts
from rlds_cli.store.videos import Videos

torch = pytest.importorskip("torch")
av = pytest.importorskip("av")

CAMERA, SIZE, SHAPE = "observation/camera", (12, 16), (48, 64, 3)
STEPS = 40
EACH_STEP: dict[str, Any] = {"window": Transition(anchors="steps"), "fields": [CAMERA, "action"], "backend": "numpy"}


def pictures(k: int, count: int = STEPS) -> np.ndarray:
    coarse = np.random.default_rng(k).integers(0, 255, (6, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return np.stack([np.roll(coarse, 3 * t, 1) for t in range(count)])


@kept
def encoded(k: int, group: int, *options: tuple[str, str]) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": str(group), **dict(options)})
        stream.height, stream.width, stream.pix_fmt = SHAPE[0], SHAPE[1], "yuv420p"
        for picture in pictures(k):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def video(path: Path, k: int, group: int = 8, **options: str) -> Path:
    path.write_bytes(encoded(k, group, *options.items()))
    return path


def jpeg(picture: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG")
    return file.getvalue()


def small(frames: Any) -> np.ndarray:
    """Frames as torch resizes them, without a cache."""
    return np.asarray(Resize(CAMERA, SIZE).apply(CAMERA, torch.from_numpy(np.asarray(frames))))


def shown(path: Path) -> np.ndarray:
    """All frames of a video, decoded by PyAV from the beginning."""
    return decoded(path.read_bytes())


@kept
def decoded(file: bytes) -> np.ndarray:
    with av.open(io.BytesIO(file)) as container:
        frames = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    frames.flags.writeable = False
    return frames


def episode(camera: Any, first: int) -> dict[str, Any]:
    """An episode whose actions count the steps from ``first`` on."""
    steps = np.arange(first, first + STEPS - 1, dtype=np.float32)
    return {"observation": {"camera": camera}, "action": steps[:, None], "next": {"terminated": True}}


class Filmed:
    """Two episodes, and the frames of their steps in order."""

    def __init__(self, id: str, root: Path, kind: str, **options: str) -> None:
        if kind == "video":
            files = [video(root / f"{k}.mp4", k, **options) for k in range(2)]
            cameras: list[Any] = [rlds_cli.Video(file) for file in files]
            all_of = [shown(file) for file in files]
        else:
            from PIL import Image

            cameras = [[jpeg(p) for p in pictures(k)] for k in range(2)]
            all_of = [np.stack([np.asarray(Image.open(io.BytesIO(f))) for f in c]) for c in cameras]
        self.ds = rlds_cli.create(id, [episode(c, k * (STEPS - 1)) for k, c in enumerate(cameras)])
        self.expected = small(np.concatenate([f[:-1] for f in all_of]))  # without final observations


@pytest.fixture(params=["video", "jpeg"])
def filmed(request: pytest.FixtureRequest, tmp_path: Path) -> Filmed:
    return Filmed("local/filmed", tmp_path, request.param)


def check(filmed: Filmed, ds: StrPath | Dataset | None = None, cache: str | int = "1GiB", **how: Any) -> Loader:
    """Read an epoch, whose frames must be those that are expected."""
    loader = Loader(
        filmed.ds if ds is None else ds,
        32,
        sampler=Shuffled(),
        transform=Resize(CAMERA, SIZE, cache=cache),
        **{**EACH_STEP, **how},
    )
    seen = 0
    for batch in loader:
        step = np.asarray(batch["action"])[:, 0].astype(int)
        np.testing.assert_array_equal(batch[CAMERA], filmed.expected[step])
        seen += len(step)
    assert seen
    return loader


def stored(home: Path) -> int:
    return sum(f.stat().st_size for f in (home / "frames").glob("*/rows"))


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever decodes a frame from here on fail."""

    def refuse(rows: Any) -> None:
        assert not len(rows), "a frame was decoded"

    monkeypatch.setattr(Videos, "gather", lambda self, f, index: refuse(index) or np.zeros((0, *f.shape), f.dtype))
    monkeypatch.setattr(frames, "_decode", lambda encoded, *rest: refuse(encoded))


# -- values


def test_each_frame_is_decoded_once_and_all_are_right(
    filmed: Filmed, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(filmed, prefetch=2)
    kept = stored(home)
    assert (2 * STEPS - 2) * 12 * 16 * 3 <= kept <= 2 * STEPS * 12 * 16 * 3
    no_decoding(monkeypatch)
    assert "cached in" in check(filmed, seed=1).describe()
    check(filmed, rlds_cli.open_dataset("local/filmed"), backend="torch", prefetch=0)
    assert stored(home) == kept


@pytest.mark.parametrize(
    "options", [{}, {"group": 2}, {"group": 300, "bf": "0"}, {"x264-params": "open-gop=1:bframes=5"}]
)
@pytest.mark.thorough
def test_groups_of_pictures_of_any_kind(options: dict[str, Any], tmp_path: Path) -> None:
    check(Filmed("local/filmed", tmp_path, "video", **options))


def test_windows_and_next_observations_share_the_frames(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    resize = Resize("observation", SIZE, cache="1GiB")
    slices = Loader(filmed.ds, 4, window=Slice(6, after=5, fill="zero"), steps=6, transform=resize, backend="numpy")
    for batch in slices:
        step, real = batch["action"][..., 0].astype(int), batch["mask"]
        np.testing.assert_array_equal(batch[CAMERA][real], filmed.expected[step[real]])
        assert not batch[CAMERA][~real].any()
    check(filmed)
    final = [filmed.ds.episode(k)["next", "observation", "camera"][-1] for k in range(2)]
    pairs = next(iter(Loader(filmed.ds, 64, fields=["action", f"next/{CAMERA}"], transform=resize, backend="numpy")))
    after = np.concatenate([filmed.expected, small(final)])
    places = pairs["action"][:, 0].astype(int) + 1
    places = np.where(places == STEPS - 1, 2 * STEPS - 2, np.where(places == 2 * STEPS - 2, 2 * STEPS - 1, places))
    np.testing.assert_array_equal(pairs["next", "observation", "camera"], after[places])
    no_decoding(monkeypatch)
    stacks = Loader(filmed.ds, 8, window=Offsets({CAMERA: (-1, 0)}), transform=resize, steps=3, backend="numpy")
    assert next(iter(stacks))[CAMERA].shape == (8, 2, *SIZE, 3)


def test_later_transforms_follow(filmed: Filmed) -> None:
    transform = [Resize(CAMERA, SIZE, cache="1GiB"), ToFloat(CAMERA)]
    loader = Loader(filmed.ds, 16, sampler=Shuffled(), transform=transform, steps=2, **EACH_STEP)
    for batch in loader:
        expected = filmed.expected[batch["action"][:, 0].astype(int)].transpose(0, 3, 1, 2) / np.float32(255)
        np.testing.assert_array_equal(batch[CAMERA], expected)


def test_versions_and_copies_of_a_dataset_use_the_same_frames(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    check(filmed)
    no_decoding(monkeypatch)
    check(filmed, filmed.ds.trim({0: (3, 20)}, "early"))
    check(filmed, filmed.ds.label({"success": [True, False]}))
    check(filmed, filmed.ds.select(episodes=[1]))


def test_a_frame_that_does_not_decode_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filmed, gather = Filmed("local/filmed", tmp_path, "video"), Videos.gather

    def broken(self: Videos, f: Any, index: np.ndarray) -> np.ndarray:
        if (index == (0, 20)).all(1).any():
            raise FrameError("frame 20 does not decode")
        return gather(self, f, index)

    monkeypatch.setattr(Videos, "gather", broken)
    check(filmed, filmed.ds.trim({0: (0, 18), 1: (0, 30)}, "early"))  # of the group of pictures of frame 20, a part
    with pytest.raises(FrameError, match="frame 20"):
        check(filmed)


@pytest.mark.thorough
def test_a_growing_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [video(tmp_path / f"{k}.mp4", k) for k in range(2)]
    filmed = Filmed("local/other", tmp_path, "video")
    with rlds_cli.writer("local/run", durable=False) as w:
        for k, file in enumerate(files):
            w.add_episodes([episode(rlds_cli.Video(file), k * (STEPS - 1))])
            w.commit()
            check(filmed, w.dataset())
        no_decoding(monkeypatch)
        check(filmed, w.dataset())


@pytest.mark.thorough
def test_a_mixture(tmp_path: Path) -> None:
    filmed, other = Filmed("local/a", tmp_path, "video"), Filmed("local/b", tmp_path, "jpeg")
    resize = Resize(CAMERA, SIZE, cache="1GiB")
    loader = Loader(
        Mixture({"a": filmed.ds, "b": other.ds}), 32, transform=resize, steps=8, seed=0, **EACH_STEP, prefetch=0
    )
    for batch in loader:
        step, source = batch["action"][:, 0].astype(int), batch["source"]
        expected = np.where((source == 0)[:, None, None, None], filmed.expected[step], other.expected[step])
        np.testing.assert_array_equal(batch[CAMERA], expected)
    assert len(list((filmed.ds.path.parents[2] / "frames").iterdir())) == 2


# -- room


def test_a_cache_that_is_too_small_keeps_what_fits(filmed: Filmed, home: Path) -> None:
    limit = 30 * 12 * 16 * 3
    for seed in range(2):
        check(filmed, cache=limit, seed=seed)
    assert 0 < stored(home) <= limit


def test_frames_that_nobody_uses_leave_for_new_ones(tmp_path: Path, home: Path) -> None:
    limit = 2 * STEPS * 12 * 16 * 3
    first, second = (Filmed(f"local/{k}", tmp_path, "jpeg") for k in range(2))
    used = check(first, cache=limit)
    check(second, cache=limit)
    assert len(list((home / "frames").glob("*/rows"))) == 2 and stored(home) <= limit
    del used
    check(second, cache=limit)
    assert stored(home) == (2 * STEPS - 2) * 12 * 16 * 3
    check(second, cache=limit, prefetch=0)


def test_gc_removes_frames_that_nobody_uses(filmed: Filmed, home: Path) -> None:
    loader = check(filmed)
    collected = gc.collect(gc.find_garbage())
    assert [g.why for g in collected.kept] == ["a process uses them"]
    check(filmed)
    del loader
    assert [g.kind for g in gc.collect(gc.find_garbage()).removed] == ["frames"]
    assert not list((home / "frames").iterdir())
    check(filmed)


def test_a_home_that_takes_no_frames(filmed: Filmed, home: Path) -> None:
    (home / "frames").write_text("")
    assert "not cached: " in check(filmed).describe()


# -- processes that are killed, and machines that restart


def read_on(told: int) -> None:
    """Read epochs batch by batch, and write a byte after each batch."""
    how: dict[str, Any] = {**EACH_STEP, "sampler": Shuffled(), "prefetch": 0, "seed": 1}
    loader = Loader("local/filmed", 1, transform=Resize(CAMERA, SIZE, cache="1GiB"), **how)
    for _ in range(20):
        for _ in loader:
            os.write(told, b".")


def test_processes_share_the_frames_and_may_be_killed(tmp_path: Path, home: Path) -> None:
    filmed = Filmed("local/filmed", tmp_path, "video")
    said, told = os.pipe()
    reader = os.fork()
    if reader == 0:
        try:
            read_on(told)
        finally:
            os._exit(0)
    os.close(told)
    assert os.read(said, 1) == b"."
    check(filmed)
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    os.close(said)
    check(filmed)
    assert stored(home) <= 2 * STEPS * 12 * 16 * 3  # no frame is there twice


def test_a_record_that_was_not_finished_is_none(filmed: Filmed, home: Path) -> None:
    check(filmed)
    (index,) = (home / "frames").glob("*/index")
    whole = index.read_bytes()
    for torn in (whole[:-7], whole[:-32] + bytes(32)):
        index.write_bytes(torn)
        check(filmed)


@pytest.mark.parametrize("size", [1 << 41, (1 << 41) + 7])
def test_an_index_that_is_a_hole_of_two_tebibytes(size: int, filmed: Filmed, home: Path) -> None:
    check(filmed)
    (index,) = (home / "frames").glob("*/index")
    os.truncate(index, size)
    check(filmed)


def test_frames_are_compared(filmed: Filmed, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(filmed)
    (rows,) = (home / "frames").glob("*/rows")
    damaged = bytearray(rows.read_bytes())
    for at in (0, 5 * 12 * 16 * 3 + 7):
        damaged[at] ^= 255
    rows.write_bytes(damaged)
    check(filmed)
    no_decoding(monkeypatch)
    check(filmed)


def test_frames_whose_bytes_were_lost_are_decoded_again(filmed: Filmed, home: Path) -> None:
    loader = check(filmed)  # stays open, as the loader of another process
    (rows,) = (home / "frames").glob("*/rows")
    os.truncate(rows, rows.stat().st_size // 2)
    for _ in range(2):  # what is added comes after a hole, which reads as zeros
        check(filmed)
        for batch in loader:
            np.testing.assert_array_equal(batch[CAMERA], filmed.expected[batch["action"][:, 0].astype(int)])


# -- datasets that claim the digests of another one


def copied(ds: Dataset, to: Path) -> Path:
    """A copy of a dataset as a plain directory, which may be changed."""
    shutil.copytree(ds.path, to)
    for file in [to, *to.rglob("*")]:
        file.chmod(file.stat().st_mode | 0o200)
    return to


def brightness(ds: StrPath | Dataset) -> float:
    loader = Loader(ds, 32, sampler=Shuffled(), transform=Resize(CAMERA, SIZE, cache="1GiB"), **EACH_STEP)
    return float(np.mean([batch[CAMERA].mean() for batch in loader]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache", ["first", "second"])
def test_pixels_of_a_stranger_are_not_kept_for_another(filmed: Filmed, tmp_path: Path, cache: str) -> None:
    """A plain directory has the id and the digests of a dataset of the home, and black pictures."""
    codec = filmed.ds.schema[CAMERA].codec
    black = np.zeros(SHAPE, np.uint8)
    camera: Any = [jpeg(black)] * STEPS
    if codec == "mp4":
        with av.open(str(tmp_path / "black.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.height, stream.width, stream.pix_fmt = SHAPE[0], SHAPE[1], "yuv420p"
            for _ in range(STEPS):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(black, format="rgb24")))
            container.mux(stream.encode())
        camera = rlds_cli.Video(tmp_path / "black.mp4")
    other = rlds_cli.create("local/black", [episode(camera, k * (STEPS - 1)) for k in range(2)])
    stray = copied(other, tmp_path / "stray")
    claims = Path("video", CAMERA, "sha256") if codec == "mp4" else Path("rows", CAMERA)
    shutil.rmtree(stray / claims)
    shutil.copytree(filmed.ds.path / claims, stray / claims)
    (stray / "zarr.json").write_text((stray / "zarr.json").read_text().replace("local/black", "local/filmed"))
    if cache == "second":
        check(filmed)
    assert rlds_cli.open_dataset(stray).id == "local/filmed"
    brightness(stray)
    check(filmed)
    if cache == "first":
        assert brightness(copied(other, tmp_path / "again")) < 20


def test_tables_of_a_stranger_name_other_frames(tmp_path: Path) -> None:
    """The videos are those of the dataset, but a table beside them says that their colours have the full range."""
    filmed = Filmed("local/filmed", tmp_path, "video")
    stray = copied(filmed.ds, tmp_path / "stray")
    tracks = stray / "video" / CAMERA / "tracks"
    said = [{**json.loads(text), "matrix": 1, "full_range": True} for text in layouts.read_strings(tracks)]
    shutil.rmtree(tracks)
    arrays.write_strings(tracks, [json.dumps(text) for text in said])
    assert abs(brightness(stray) - filmed.expected.mean()) > 1
    check(filmed)


def test_frames_at_an_address_are_kept_apart(filmed: Filmed, tmp_path: Path) -> None:
    shelf, other = str(tmp_path / "shelf"), tmp_path / "other"
    rlds_cli.push(filmed.ds, shelf, pages=False)
    for _ in range(2):
        check(filmed, rlds_cli.open_dataset(shelf, home=other))
    assert len(list((other / "frames").iterdir())) == 1
    check(filmed, rlds_cli.download(shelf, home=other))
    assert len(list((other / "frames").iterdir())) == 2


# -- what is refused


def test_what_changes_the_field_comes_after(filmed: Filmed) -> None:
    resize = Resize(CAMERA, SIZE, cache=1 << 30)
    for before in (ToFloat(CAMERA), lambda batch: batch, Resize(CAMERA, (24, 32))):
        with pytest.raises(InvalidArgument, match="comes after others"):
            Loader(filmed.ds, 8, transform=[before, resize], **EACH_STEP)
    for cache in ("20 apples", 0, True, 1.5):
        with pytest.raises(InvalidArgument, match="is not a size"):
            Resize(CAMERA, SIZE, cache=cache)  # type: ignore[arg-type]


def test_a_step_without_a_frame_is_named(filmed: Filmed) -> None:
    ds = filmed.ds
    if ds.schema[CAMERA].codec != "mp4":
        pytest.skip("each image is decoded when it is written")
    rows = ds.path / CAMERA
    (file,) = (f for f in rows.rglob("*") if f.is_file() and f.name != "zarr.json")
    file.chmod(0o644)
    index = np.fromfile(file, "<i4").reshape(-1, 2)
    for number, frame, kind in ((-1, -1, FrameError), (0, 999, DamagedDataset), (7, 0, DamagedDataset)):
        changed = index.copy()
        changed[3] = number, frame
        changed.tofile(file)
        with pytest.raises(kind):
            check(filmed, rlds_cli.open_dataset("local/filmed"))
    shutil.rmtree(ds.path.parents[2] / "frames")


def test_threads_that_add_and_look_up_lose_no_frame(home: Path) -> None:
    threads, each = 6, 60
    switch = sys.getswitchinterval()
    cache = FrameCache(home, {}, (2, 3), 1 << 20)
    names = np.random.default_rng(0).integers(0, 1 << 63, (threads * each, 2), np.uint64)
    frames = names[:, :1].view(np.uint8).reshape(-1, 8)[:, :6].reshape(-1, 2, 3)

    def add(first: int) -> None:
        for k in range(first, first + each, 2):
            cache.add(names[k : k + 2], frames[k : k + 2])
            cache.find(names)

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(add, range(0, threads * each, each)))
    finally:
        sys.setswitchinterval(switch)
    for reader in (cache, FrameCache(home, {}, (2, 3), 1 << 20)):
        places, into = reader.find(names), np.zeros((2, 3), np.uint8)
        assert sorted(places.tolist()) == list(range(threads * each))
        for k, place in enumerate(places.tolist()):
            assert reader.read(place, into)
            np.testing.assert_array_equal(into, frames[k])


def test_frames_that_are_removed_while_another_process_joins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is the first file of a directory to leave; who joins then must not lose what it adds."""

    def joined() -> FrameCache:
        return FrameCache(home, {"field": "x"}, (2, 2, 3), 1 << 20)

    names, frames_of = np.arange(4, dtype="<u8").reshape(2, 2), np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    first = joined()
    first.add(names[:1], frames_of[:1])
    directory = first.directory
    del first
    later = list[FrameCache]()
    remove = trees.remove

    def slowly(leaving: Path) -> None:
        if not later:
            (leaving / "lock").unlink()
            later.append(joined())
            later[0].add(names[:1], frames_of[:1])
        remove(leaving)

    monkeypatch.setattr(trees, "remove", slowly)
    assert discard_frames(directory)
    later[0].add(names[1:], frames_of[1:])
    other, read = joined(), np.zeros((2, 2, 3), np.uint8)
    for name, frame in zip(names, frames_of, strict=True):
        (place,) = other.find(name[None])
        assert other.read(place, read) and (read == frame).all()
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]
