"""The built-in functions of frames, against Pillow used by hand; and functions that return encoded frames."""

import io

import av
import numpy as np
import pytest
from made_once import made_once
from PIL import Image

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import InvalidArgument, PreprocessError
from rlds_cli.keep.verification import verify
from rlds_cli.store import encode_frames

LENGTHS = [3, 5, 1, 4]
CAMERA = "observation/camera"


@pytest.fixture
def images():
    rng = np.random.default_rng(5)
    return [
        {
            "camera": rng.integers(0, 256, (t + 1, 12, 10, 3), np.uint8),
            "depth": rng.integers(0, 256, (t + 1, 12, 20), np.uint8),
        }
        for t in LENGTHS
    ]


@pytest.fixture
def ds(images):
    episodes = [
        {
            "observation": {**frames, "state": np.full((t + 1, 2), i, np.float32)},
            "action": np.full((t, 1), i, np.float32),
            "next": {"terminated": True},
        }
        for i, (t, frames) in enumerate(zip(LENGTHS, images, strict=True))
    ]
    return made_once("local/film", lambda: rlds_cli.create("local/film", episodes), __name__)


def rows(ds, name):
    return ds.gather(name, np.arange(ds.num_rows))


@pytest.mark.thorough
def test_frames_are_resized_as_pillow_does(ds, images):
    made = preprocess.run(ds, "resize", args={"size": "6x4", "fields": CAMERA})
    assert (made.schema["observation/camera"].kind, made.schema["observation/camera"].shape) == ("array", (6, 4, 3))
    want = [
        np.stack(
            [np.asarray(Image.fromarray(f[..., c]).resize((4, 6), Image.Resampling.BILINEAR)) for c in range(3)], -1
        )
        for e in images
        for f in e["camera"]
    ]
    assert np.array_equal(rows(made, "observation/camera"), np.stack(want))
    assert set(made.manifest.shared) == set(ds.schema) - {"observation/camera"}


def test_all_image_fields_unless_some_are_named(ds, images):
    made = preprocess.run(ds, preprocess.crop, args={"size": [8, 6]})
    assert np.array_equal(rows(made, "observation/camera"), np.concatenate([e["camera"] for e in images])[:, 2:10, 2:8])
    assert np.array_equal(rows(made, "observation/depth"), np.concatenate([e["depth"] for e in images])[:, 2:10, 7:13])
    box = preprocess.run(ds, "crop", "box", args={"box": [0, 3, 12, 2], "fields": "observation/depth"})
    assert np.array_equal(rows(box, "observation/depth"), np.concatenate([e["depth"] for e in images])[:, :, 3:5])
    assert "observation/camera" in box.manifest.shared


def test_grey_is_the_grey_of_pillow(ds, images):
    made = preprocess.run(ds, "grayscale")
    want = [np.asarray(Image.fromarray(f).convert("L")) for e in images for f in e["camera"]]
    assert np.array_equal(rows(made, "observation/camera"), np.stack(want)[..., None])
    assert "observation/depth" in made.manifest.shared  # is grey


@pytest.mark.sampled(1)
@pytest.mark.parametrize("jobs", [0, 2])
def test_frames_are_encoded_without_loss_and_decoded_again(ds, images, jobs, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 5)
    made = preprocess.run(ds, "encode", f"png{jobs}", args={"codec": "png"}, jobs=jobs)
    for name in ("camera", "depth"):
        f = made.schema[f"observation/{name}"]
        assert (f.kind, f.codec, f.dtype) == ("frames", "png", "uint8")
        assert np.array_equal(rows(made, f.name), np.concatenate([e[name] for e in images]))
    store = made.store
    offsets, data = store.rows("observation/camera"), store.frames("observation/camera").data
    first = Image.open(io.BytesIO(data[slice(*offsets[0])].tobytes()))
    assert first.format == "PNG" and np.array_equal(np.asarray(first), images[0]["camera"][0])
    assert verify(made.id).ok
    raw = preprocess.run(made, "encode", "raw", args={"codec": "raw", "fields": CAMERA}, force=True)
    assert raw.schema["observation/camera"] == ds.schema["observation/camera"]
    assert np.array_equal(raw.column("observation/camera"), ds.column("observation/camera"))
    assert raw.manifest.shared["observation/depth"] == "link" and raw.schema["observation/depth"].codec == "png"


@pytest.mark.thorough
def test_small_jpegs_of_large_frames(ds, images):
    made = preprocess.run(ds, "resize", args={"size": "6x5", "fields": CAMERA, "codec": "jpeg", "quality": 90})
    file = io.BytesIO()
    small = [
        np.asarray(Image.fromarray(images[0]["camera"][0][..., c]).resize((5, 6), Image.Resampling.BILINEAR))
        for c in range(3)
    ]
    Image.fromarray(np.stack(small, -1)).save(file, "jpeg", quality=90)
    end = made.store.rows("observation/camera")[0, 1]
    assert made.store.frames("observation/camera").data[:end].tobytes() == file.getvalue()
    assert rows(made, "observation/camera").shape == (sum(LENGTHS) + 4, 6, 5, 3)


def test_what_stays_encoded_as_it_is_is_shared(ds):
    encoded = preprocess.run(ds, "encode", "png", args={"codec": "png"})
    again = preprocess.run(encoded, "encode", "again", args={"codec": "png", "fields": CAMERA})
    assert rlds_cli.open_dataset(again.id).fingerprint == encoded.fingerprint  # PNG of the same library
    assert "observation/depth" in again.manifest.shared and "observation/camera" not in again.manifest.shared
    few = preprocess.run(encoded, "select_episodes", "few", args={"where": "length > 3"})
    assert few.schema == encoded.schema
    assert np.array_equal(rows(few, "observation/camera")[:6], rows(ds, "observation/camera")[4:10])


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("fn", "args", "what"),
    [
        ("resize", {"size": "6"}, "size='6' is not height and width"),
        ("resize", {"size": [6, 0]}, "is not height and width"),
        ("resize", {"size": "6x6", "fields": "observation/state"}, "observation/state is not an image field"),
        ("resize", {"size": "6x6", "fields": CAMERA, "codec": "webp"}, "no codec 'webp'"),
        ("resize", {"size": "6x6", "fields": CAMERA, "codec": "jpeg", "quality": 0}, "quality=0"),
        ("resize", {"size": "6x6", "fields": "observation/depth"}, "would be taken for frames with 6 channels"),
        ("crop", {"size": "13x4"}, "exceed the 12x10 pixels of observation/camera"),
        ("crop", {"box": [5, 5, 8, 5]}, "exceed the 12x10 pixels"),
        ("crop", {}, "either size"),
        ("crop", {"box": "5,5"}, "is not a list, each a whole number"),
        ("encode", {"codec": "gif"}, "no codec 'gif'"),
        ("encode", {"codec": "png", "fields": "action"}, "action is not an image field"),
    ],
)
def test_what_frames_cannot_become(ds, fn, args, what):
    with pytest.raises(InvalidArgument, match=what):
        preprocess.run(ds, fn, args=args)


def test_datasets_without_images(ds):
    plain = preprocess.run(ds, "select_fields", "plain", args={"fields": "action,observation/state"})
    with pytest.raises(InvalidArgument, match="has no image fields"):
        preprocess.run(plain, "grayscale")
    two = rlds_cli.create("local/two", [{"observation": np.zeros((2, 4, 20, 2), np.uint8), "action": np.zeros((1, 1))}])
    with pytest.raises(InvalidArgument, match="observation has 2 channels"):
        preprocess.run(two, "grayscale")
    with pytest.raises(InvalidArgument, match=r"uint8 \[1, 4, 20, 2\] cannot be encoded as jpeg"):
        preprocess.run(two, "encode", args={"codec": "jpeg"})
    assert preprocess.run(two, "encode", args={"codec": "png"}).schema["observation"].codec == "png"


# -- functions of one's own that return encoded frames


def test_a_function_may_return_encoded_frames(ds, images):
    def half(e):
        n = len(e["action"]) // 2
        camera = e["observation"]["camera"][: n + 1]
        return {
            "observation": {"camera": encode_frames(camera, "png"), "state": e["observation"]["state"][: n + 1]},
            "action": e["action"][:n],
            "next": {k: v[:n] for k, v in e["next"].items()},
        }

    made = preprocess.run(ds, half)
    assert made.episodes["length"].tolist() == [1, 2, 2]
    want = np.concatenate([images[0]["camera"][:2], images[1]["camera"][:3], images[3]["camera"][:3]])
    assert np.array_equal(rows(made, "observation/camera"), want)
    report = preprocess.attempt(ds, half, "half")
    change = next(f for f in report.fields if f.name == "observation/camera")
    assert (change.what, change.after.dtype, change.after.shape) == ("changed", "png frames", (2, 12, 10, 3))
    files = [io.BytesIO() for _ in range(2)]
    for file, frame in zip(files, images[0]["camera"], strict=False):
        Image.fromarray(frame).save(file, "png")
    mean = np.mean([len(f.getvalue()) for f in files])  # of the episode's rows; 1/3 of the 13 steps and 4 final rows
    assert change.bytes == int((13 / 3 + 4) * mean)


def test_encoded_frames_where_none_can_be(ds):
    def sometimes(e):
        frames = e["observation"]["camera"]
        if e["action"][0] == 1:
            return e
        return {**e, "observation": {**e["observation"], "camera": encode_frames(frames, "png")}}

    def other_size(e):
        frames = e["observation"]["camera"][:, : 12 - int(e["action"][0, 0] == 1)]
        return {**e, "observation": {**e["observation"], "camera": encode_frames(frames, "png")}}

    def reward(e):
        return {**e, "next": {**e["next"], "reward": encode_frames(e["observation"]["camera"][1:], "png")}}

    def batch(b):
        return {**b, "film": encode_frames(b["observation"]["camera"], "png")}

    for fn, how, what in (
        (sometimes, {}, "observation/camera is numbers here only"),
        (other_size, {}, r"observation/camera is png \[11, 10, 3\]; the first episode's is png \[12, 10, 3\]"),
        (reward, {}, "next/reward is frames"),
        (batch, {"unit": "batch"}, "film came back as encoded frames"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds, fn, "made", **how)


@pytest.mark.thorough
def test_frames_with_channels_first_keep_them_there(home):
    """As V-D4RL's shards and Procgen have them: [C, H, W]."""
    x = np.random.default_rng(0).integers(0, 256, (6, 3, 24, 20), np.uint8)
    truth = [{"observation": x, "action": np.zeros((5, 1)), "next": {"truncated": True}}]
    ds = rlds_cli.create("local/first", truth)
    last = x.transpose(0, 2, 3, 1)
    grey = np.stack([np.asarray(Image.fromarray(f).convert("L")) for f in last])
    assert np.array_equal(rows(preprocess.run(ds, "grayscale"), "observation"), grey[:, None])
    assert np.array_equal(rows(preprocess.run(ds, "crop", args={"size": "20x18"}), "observation"), x[:, :, 2:22, 1:19])
    planes = [
        [np.asarray(Image.fromarray(p).resize((10, 12), Image.Resampling.BILINEAR)) for p in frame] for frame in x
    ]
    assert np.array_equal(rows(preprocess.run(ds, "resize", args={"size": "12x10"}), "observation"), np.array(planes))
    encoded = preprocess.run(ds, "encode", args={"codec": "png"})
    assert encoded.schema["observation"].shape == (24, 20, 3) and np.array_equal(rows(encoded, "observation"), last)
    with pytest.raises(InvalidArgument, match="exceed the 24x20"):
        preprocess.run(ds, "crop", "x", args={"box": [10, 0, 20, 20]})


# -- videos


def moving(seed: int, count: int, every: int = 1) -> np.ndarray:
    """Smooth pictures that move [count, 32, 48, 3]; each stays for ``every`` rows."""
    rng = np.random.default_rng(seed)
    picture = np.kron(rng.integers(0, 255, (4, 6, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    return np.stack([np.roll(picture, 4 * (t // every), 1) for t in range(count)])


@pytest.fixture
def drives():
    def episode(k: int, steps: int):
        observation = {"top": moving(k, steps + 1, every=3), "grey": moving(k + 9, steps + 1)[..., :1]}
        state = np.full((steps + 1, 2), k, np.float32)
        return {
            "observation": {**observation, "state": state},
            "action": np.arange(float(steps)),
            "next": {"terminated": True},
        }

    return [episode(k, steps) for k, steps in enumerate([13, 5, 20])]


def decoded_by_av(file: bytes, grey: bool) -> np.ndarray:
    with av.open(io.BytesIO(file)) as container:
        frames = [f.to_ndarray(format="gray" if grey else "rgb24") for f in container.decode(video=0)]
    return np.stack(frames)[..., None] if grey else np.stack(frames)


@pytest.mark.parametrize(
    ("codec", "gop", "jobs"),
    [
        ("h264", 2, 0),
        pytest.param("h264", 30, 2, marks=pytest.mark.thorough),
        pytest.param("av1", 2, 2, marks=pytest.mark.thorough),
    ],
)
def test_frames_become_a_video_of_each_episode(drives, codec, gop, jobs):
    ds = rlds_cli.create("local/drives", drives)
    args = {"codec": codec, "gop": gop, "crf": 10}
    made = preprocess.run(ds, "encode", "film", args=args, jobs=jobs)
    assert verify(made.id).ok
    for name, grey in (("top", False), ("grey", True)):
        f = made.schema[f"observation/{name}"]
        assert (f.codec, f.shape) == ("mp4", ds.schema[f.name].shape)
        videos, start = made.store.videos(f.name), 0
        assert len(videos) == len(drives)
        for k, e in enumerate(drives):
            want = e["observation"][name]
            places = start + np.arange(len(want))
            frames = decoded_by_av(videos.published(k).tobytes(), grey)
            assert len(frames) == (len(want) if grey else -(-len(want) // 3)), "equal frames are encoded once"
            assert np.array_equal(made.gather(f.name, places), frames if grey else frames.repeat(3, 0)[: len(want)])
            assert np.abs(made.gather(f.name, places).astype(int) - want).mean() < 6
            assert [*np.diff(videos.video(k).track.keys)] == [gop] * (len(videos.video(k).track.keys) - 1)
            start += len(want)
    assert np.array_equal(made.column("observation/state"), ds.column("observation/state"))
    assert "observation/state" in made.manifest.shared
    again = preprocess.run(made, "select_episodes", "few", args={"where": "length > 5"})
    assert np.array_equal(rows(again, "observation/top")[:14], rows(made, "observation/top")[:14])


def test_small_frames_as_a_video(drives):
    made = preprocess.run(
        rlds_cli.create("local/drives", drives[1:2]), "resize", args={"size": "16x24", "codec": "h264"}
    )
    assert made.schema["observation/top"].codec == "mp4" and made.schema["observation/top"].shape == (16, 24, 3)
    assert preprocess.attempt(made, "encode", args={"codec": "h264"}).fields


def test_videos_that_cannot_be_made():
    small = {"observation": np.zeros((3, 8, 8, 3), np.uint8), "action": np.zeros(2), "next": {"terminated": True}}
    ds = rlds_cli.create("local/small", [small])
    for args, what in (
        ({"codec": "h264", "crf": 52}, "crf=52"),
        ({"codec": "h264", "gop": 0}, "gop=0"),
        ({"codec": "av1", "fps": -1}, "fps=-1"),
        ({"codec": "vp9"}, "no codec 'vp9'"),
    ):
        with pytest.raises(InvalidArgument, match=what):
            preprocess.run(ds, "encode", args=args)


def test_odd_frames_make_no_video(ds):
    small = preprocess.run(ds, "crop", "odd", args={"size": "11x10", "fields": CAMERA})
    with pytest.raises(InvalidArgument, match="even sides"):
        preprocess.run(small, "encode", args={"codec": "h264", "fields": CAMERA})


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_videos_of_shards_and_trims(drives, storage, tmp_path):
    ds = rlds_cli.create("local/drives", drives, storage=storage).trim({0: (2, 9)}, "short")
    whole = preprocess.run(ds, "encode", "film", args={"codec": "h264"}, jobs=0)
    for number in (1, 2):
        preprocess.run_shard(ds, "encode", "apart", args={"codec": "h264"}, shard=(number, 2), jobs=0)
    apart = preprocess.finish(ds, "encode", "apart", args={"codec": "h264"})
    assert apart.fingerprint == whole.fingerprint and verify(apart.id).ok
    want = drives[0]["observation"]["top"][2:10]
    assert (
        np.abs(
            whole.episode(0)["observation/top"].astype(int) - want[: len(whole.episode(0)["observation/top"])]
        ).mean()
        < 8
    )
    rlds_cli.push(apart, str(tmp_path / "shelf"), pages=False)
    far = rlds_cli.open_dataset(str(tmp_path / "shelf"), home=tmp_path / "other")
    assert np.array_equal(rows(far, "observation/top"), rows(apart, "observation/top"))
