"""Frames that a user gives as bytes: what `create` and the writer make of them, and rows without a frame."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from frames_data import SHAPE, decoded, film, jpeg
from PIL import Image

from rlds_cli import create, open_dataset, preprocess, writer
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, FrameError, InvalidEpisode, PreprocessError
from rlds_cli.loader import Loader, Sequential, Slice, Transition
from rlds_cli.look import checks
from rlds_cli.ted import EncodedFrames, Field

FIELD = Field("observation", "uint8", SHAPE, "both", "frames", "jpeg")


def encoded(pixels: Any, codec: str = "png", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(np.asarray(pixels))
    (image if mode is None else image.convert(mode)).save(file, codec)
    return file.getvalue()


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


JPEGS = [jpeg(0, t) for t in range(4)]
PNG = encoded(pixels(*SHAPE))


def episode(frames: Any, **more: Any) -> dict[str, Any]:
    return {"observation": frames, "action": np.zeros((3, 1)), "next": {"terminated": True}, **more}


def own(frames: list[bytes]) -> EncodedFrames:
    return EncodedFrames(np.frombuffer(b"".join(frames), np.uint8), np.array([len(f) for f in frames]))


# -- what is stored


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        lambda frames: np.array(frames, object),
        np.array,  # of np.bytes_, without zeros at the end
        lambda frames: [bytearray(f) for f in frames],
        lambda frames: [np.frombuffer(f, np.uint8) for f in frames],  # as OpenCV encodes
        lambda frames: [torch.frombuffer(bytearray(f), dtype=torch.uint8) for f in frames],  # as torchvision does
        own,
    ],
)
def test_bytes_are_frames_and_stay_as_they_are(given: Callable[[list[bytes]], Any]) -> None:
    ds = create("local/cam", [episode(given(JPEGS))])
    assert ds.schema["observation"] == FIELD and ds.episodes["num_observed"].tolist() == [4]
    assert [ds.store.frames("observation").packet(row) for row in range(4)] == JPEGS
    assert np.array_equal(ds.gather("observation", np.arange(4)), [decoded(0, t) for t in range(4)])
    batch = next(iter(Loader(ds, 3, sampler=Sequential())))
    assert np.array_equal(batch["next", "observation"][2], decoded(0, 3))
    assert create("local/again", [ds.episode(0)]).fingerprint == ds.fingerprint


def test_equal_images_of_an_encoder_are_no_vectors() -> None:
    ds = create("local/cam", [episode([np.frombuffer(PNG, np.uint8)] * 4)])
    assert ds.schema["observation"].kind == "frames"


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        (encoded(pixels(6, 8)), (6, 8, 1)),
        (encoded(pixels(6, 8), "jpeg"), (6, 8, 1)),
        (encoded(pixels(6, 8, 4)), (6, 8, 4)),
        (encoded(np.zeros((6, 8, 3), np.uint8), mode="P"), (6, 8, 3)),  # the colours of a palette
    ],
)
def test_channels_are_those_of_the_image(image: bytes, shape: tuple[int, ...]) -> None:
    ds = create("local/cam", [episode([image] * 4)])
    assert ds.schema["observation"].shape == shape
    file = Image.open(io.BytesIO(image))
    wanted = np.asarray(file.convert("RGB") if file.mode == "P" else file).reshape(shape)
    assert np.array_equal(ds.gather("observation", np.array([2]))[0], wanted)


@pytest.mark.thorough
def test_a_bilevel_image_is_black_and_white() -> None:
    ds = create("local/cam", [episode([encoded(np.array([[0, 255]], np.uint8), mode="1")] * 4)])
    assert ds.gather("observation", np.array([0])).tolist() == [[[[0], [255]]]]


@pytest.mark.thorough
def test_frames_of_every_placement() -> None:
    e = episode(
        {"cam": JPEGS[:3], "q": np.zeros((3, 2))}, wrist=JPEGS[:3], next={"terminated": True, "after": JPEGS[:3]}
    )
    ds = create("local/cam", [e])
    found = {n: f.placement for n, f in ds.schema.items() if f.kind == "frames"}
    assert found == {"next/after": "next", "observation/cam": "both", "wrist": "root"}
    assert ds.episodes["num_observed"].tolist() == [3]
    assert ds.store.frames("observation/cam").packet(3) == JPEGS[2]  # not recorded: repeated, and masked
    assert ds.store.frames("wrist").packet(3) == b"" and not ds.gather("wrist", np.array([3])).any()  # a filler
    assert next(iter(Loader(ds, 2, window=Slice(3, after=2), fields="all")))["wrist"].shape == (2, 3, *SHAPE)
    assert not [f for f in checks.check(ds).findings if f.severity == "error"]


def test_next_frames_continue_frames() -> None:
    ds = create("local/cam", [episode(JPEGS[:3], next={"observation": JPEGS[1:], "terminated": True})])
    assert list(ds.schema) == ["action", "next/terminated", "next/truncated", "observation"]
    assert [ds.store.frames("observation").packet(row) for row in range(4)] == JPEGS


@pytest.mark.thorough
def test_arrays_on_request_or_beside_arrays() -> None:
    raw = create("local/raw", [episode(JPEGS), episode([PNG] * 4)], frames="raw")
    assert raw.schema["observation"] == Field("observation", "uint8", SHAPE, "both")
    assert np.array_equal(raw.gather("observation", np.array([1, 5])), [decoded(0, 1), pixels(*SHAPE)])
    after = create("local/after", [episode(np.zeros((4, 6, 8), np.uint8)), episode([encoded(pixels(6, 8))] * 4)])
    assert np.array_equal(after.gather("observation", np.array([5]))[0], pixels(6, 8))


# -- what is refused

CUT = JPEGS[0][: len(JPEGS[0]) // 2]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("encode", ["encoded", "raw"])
@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([b"GIF89a" + bytes(30)] * 4, "at row 0 holds 36 bytes that are neither PNG nor JPEG"),
        (np.array([b"push"] * 4), "at row 0 holds 4 bytes that are neither PNG nor JPEG"),
        ([*JPEGS[:3], b""], "at row 3 has no frame"),
        ([*JPEGS[:3], None], "holds bytes and None"),
        ([*JPEGS[:3], "a"], "holds bytes and str"),
        ([*JPEGS[:2], CUT, JPEGS[3]], f"row 2: {len(CUT)} bytes do not decode"),
        ([*[PNG] * 3, PNG[:-9]], "at row 3 is a damaged PNG"),
        ([*JPEGS[:3], encoded(pixels(8, 6, 3), "jpeg")], r"at row 3 is an image of shape \[8, 6, 3\]; \[16, 12, 3\]"),
        ([*JPEGS[:3], encoded(pixels(16, 12), "jpeg")], r"at row 3 is an image of shape \[16, 12, 1\]"),
        ([encoded(pixels(6, 8, 3), "jpeg", "CMYK")] * 4, "jpeg of 4 channels"),
        (JPEGS[0], "is a single value"),
        (JPEGS[:2], "has 2 rows; expected 3 or 4"),
        (own([*JPEGS[:3], b""]), "at row 3 has no frame"),
        (own([*JPEGS[:3], CUT]), f"row 3: {len(CUT)} bytes do not decode"),
    ],
)
def test_what_is_no_frame_is_refused(frames: Any, message: str, encode: Any) -> None:
    with pytest.raises(InvalidEpisode, match=f"episode 0: observation.*{message}"):
        create("local/cam", [episode(frames)], frames=encode)
    with pytest.raises(DatasetNotFound):
        open_dataset("local/cam")


def test_damage_inside_an_image_is_found_in_every_64th_and_by_check() -> None:
    broken = JPEGS[0][:-60] + bytes(58) + JPEGS[0][-2:]  # its header and its end are right
    broken = broken.replace(b"\xff\xda", b"\xff\xd9")  # no pixels
    frames = [JPEGS[0]] * 130

    def made(row: int) -> Dataset:
        return create(
            "local/cam",
            [{"observation": [*frames[:row], broken, *frames[row + 1 :]], "action": np.zeros((129, 1))}],
            force=True,
        )

    for row in (0, 64, 128):
        with pytest.raises(InvalidEpisode, match=f"row {row}: .* do not decode"):
            made(row)
    assert [f.code for f in checks.check(made(65)).findings if f.severity == "error"] == ["broken-frame"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (JPEGS, [PNG] * 4, "observation at row 0 is png; the others are jpeg"),
        (JPEGS, ["text"] * 4, "observation is text here only"),
        (["text"] * 4, JPEGS, "observation is encoded frames here only"),
        (JPEGS, np.zeros((4, *SHAPE), np.uint8), "observation is numbers here only"),
        (np.zeros((4, 9, 9, 3), np.uint8), JPEGS, r"shape \[16, 12, 3\]; \[9, 9, 3\]"),
    ],
)
def test_episodes_agree_on_a_field(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InvalidEpisode, match=f"episode 1: .*{message}"):
        create("local/cam", [episode(first), episode(second)])


def test_codecs_are_not_mixed_in_an_episode() -> None:
    with pytest.raises(InvalidEpisode, match="observation at row 2 is png; the others are jpeg"):
        create("local/cam", [episode([*JPEGS[:2], PNG, PNG])])


def test_an_image_is_no_episode_column() -> None:
    with pytest.raises(InvalidEpisode, match=r'"thumbnail" holds .* bytes that are not text'):
        create("local/cam", [episode(JPEGS, episode={"thumbnail": JPEGS[0]})])
    assert create("local/cam", [episode(JPEGS, episode={"task": b"push"})]).episodes["task"].tolist() == ["push"]


# -- growing datasets, and results of functions


def test_a_writer_keeps_frames() -> None:
    with writer("local/run") as w:
        w.add_episodes(episode(JPEGS))
        for t in range(3):
            w.add(JPEGS[t], np.zeros(1), terminated=t == 2, next_observation=JPEGS[t + 1])
        with pytest.raises(InvalidEpisode, match="step 0: observation holds 4 bytes that are neither PNG nor JPEG"):
            w.add(b"push", np.zeros(1))
        with pytest.raises(InvalidEpisode, match="step 0: observation has no frame"):
            w.add(b"", np.zeros(1))
        with pytest.raises(InvalidEpisode, match=r"shape \[8, 6, 3\]"):
            w.add(encoded(pixels(8, 6, 3)), np.zeros(1))
        with pytest.raises(InvalidEpisode, match=r"row 1: .* do not decode"):
            w.add_episodes([episode([JPEGS[0], CUT, *JPEGS[:2]])])
    ds = w.dataset()
    assert ds.schema["observation"] == Field("observation", "uint8", SHAPE, "both", "frames", "jpeg")
    assert [ds.store.frames("observation").packet(row) for row in range(8)] == JPEGS[:4] * 2 and ds.num_episodes == 2


def test_environments_side_by_side_give_frames() -> None:
    with writer("local/run", envs=2) as w:
        w.add(JPEGS[:2], np.zeros((2, 1)), terminated=[True, True], next_observation=JPEGS[2:])
    assert [w.dataset().store.frames("observation").packet(row) for row in range(4)] == [JPEGS[t] for t in (0, 2, 1, 3)]


def with_camera(e: Any, rows: int) -> Any:
    return {**e, "cam": [*JPEGS[:rows], *[b""] * (4 - rows)]}


@pytest.mark.thorough
def test_a_function_returns_frames() -> None:
    source = create("local/source", [episode(np.zeros((4, 2)))])
    ds = preprocess.run(source, with_camera, "cam", args={"rows": 4}, jobs=1)
    assert ds.schema["cam"].codec == "jpeg" and ds.store.frames("cam").packet(1) == JPEGS[1]
    with pytest.raises(PreprocessError, match="cam at row 3 has no frame"):
        preprocess.run(source, with_camera, "less", args={"rows": 3}, jobs=1)


# -- rows without a frame


def without_frame(ds: Dataset, row: int) -> Dataset:
    """Take the bytes from one row of a dataset, as if it had been stored so."""
    (file,) = (ds.path / ds.manifest.fields[[f.name for f in ds.manifest.fields].index("observation")].path).glob(
        "offsets/c/0/*"
    )
    file.chmod(0o644)
    offsets = np.fromfile(file, "<i8", 2 * ds.num_rows)
    with file.open("r+b") as f:
        f.seek(16 * row)
        f.write(offsets[2 * row + 1].tobytes())
    return open_dataset(ds.path)


def test_a_step_without_a_frame_is_found_and_not_loaded() -> None:
    ds = without_frame(film([3, 4, 2]), 4 + 2)  # episode 1 has rows 4 to 8
    (found,) = [f for f in checks.check(ds).findings if f.code == "no-frame"]
    assert (found.severity, found.count, str(found.places[0])) == ("error", 1, "episode 1 step 2")
    message = "local/film, episode 1: observation has no frame at step 2"
    with pytest.raises(FrameError, match=message):
        ds.gather("observation", np.arange(ds.num_rows))
    with pytest.raises(FrameError, match=message):
        ds.episode(1)
    loader = Loader(ds, 9, sampler=Sequential(), fields=("observation",))
    with pytest.raises(FrameError, match=message):
        next(iter(loader))
    with pytest.raises(PreprocessError, match=message):  # the function reads the frames
        preprocess.run(ds, "grayscale", jobs=1)
    assert np.array_equal(ds.select(episodes=[0, 2]).episode(1)["observation"][0], decoded(2, 0))


@pytest.mark.thorough
def test_a_final_observation_without_a_frame_is_found() -> None:
    ds = without_frame(film([3, 2]), 3)
    (found,) = [f for f in checks.check(ds).findings if f.code == "no-frame"]
    assert str(found.places[0]) == "episode 0 step 3"
    with pytest.raises(FrameError, match="episode 0: observation has no frame at step 3"):
        next(iter(Loader(ds, 5, sampler=Sequential(), fields=("next/observation",))))
    steps = Loader(ds, 5, sampler=Sequential(), fields=("observation",), window=Transition(anchors="steps"))
    assert len(next(iter(steps))["observation"]) == 5


def test_it_is_found_in_a_compressed_dataset() -> None:
    ds = create("local/cam", [episode(JPEGS, wrist=JPEGS[:3])], storage="zarr")
    assert not [f for f in checks.check(ds).findings if f.code == "no-frame"]
