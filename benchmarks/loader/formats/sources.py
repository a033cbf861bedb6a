"""What all libraries read here: small rows, and windows of a camera, made of seeds: values are known without a file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA

import rlds_cli
from loader import data
from rlds_cli.dataset import Dataset

PLACE = (DATA / "formats").resolve()
SERVED = PLACE / "served"  # what the server of the bucket gives
BUCKET = SERVED / "b"
URL = "BENCH_BUCKET_URL"  # the variable with the address of the server

# -- small rows

ROWS = 256  # of a batch
NEAR, FAR = 1000, 100  # episodes of 1,000 steps: on the disk, in the bucket
NEXT = "next/observation"
NAMES = ("observation", "action", "next/reward", NEXT, "next/terminated", "next/truncated")


@cache
def transitions(episodes: int) -> dict[str, np.ndarray]:
    """All transitions by field [N, ...], and their numbers."""
    made = [data.halfcheetah_episode(k) for k in range(episodes)]
    seen, count = np.stack([e["observation"] for e in made]), episodes * data.EPISODE
    truncated = np.zeros(count, bool)
    truncated[data.EPISODE - 1 :: data.EPISODE] = True
    return {
        "number": np.arange(count),
        "observation": seen[:, :-1].reshape(count, -1),
        "action": np.concatenate([e["action"] for e in made]),
        "next/reward": np.concatenate([e["next"]["reward"] for e in made]),
        "next/observation": seen[:, 1:].reshape(count, -1),
        "next/terminated": np.zeros(count, bool),
        "next/truncated": truncated,
    }


def compare(episodes: int, found: Mapping[str, Any]) -> Any:
    """Compare transitions, of which ``number`` is one field, with the source; return their numbers."""
    at = np.asarray(found["number"]).reshape(-1)
    for name, values in found.items():
        right = transitions(episodes)[name][at]
        np.testing.assert_array_equal(np.asarray(values).reshape(right.shape), right, err_msg=name)
    return at


# -- a camera: 96 x 96 x 3 bytes, a state [8] and an action [6], in windows that do not overlap

EPISODES, STEPS, SIDE, STATE, FPS = 40, 240, 96, 8, 25
WINDOW, WINDOWS = 8, 16  # steps of a window, windows of a batch
ALL = EPISODES * STEPS // WINDOW
CAMERA = "observation/camera"
FORMS = ("raw", "jpeg", "video")


def pictures(episode: int) -> np.ndarray:
    """Pictures [T, 96, 96, 3]: waves that move, and a little noise."""
    return _kept("raw", lambda: _waves(episode), episode)


def _waves(episode: int) -> np.ndarray:
    rng = np.random.default_rng(episode)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    t = np.arange(STEPS)[:, None, None, None] / FPS
    waves = np.sin(6 * x[..., None] * rng.random(3) + 4 * y[..., None] * rng.random(3) + t)
    return (127 + 90 * waves + rng.normal(0, 4, (1, SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)


def _kept(form: str, make: Callable[[], np.ndarray], episode: int) -> np.ndarray:
    """An array that is made once: many processes compare with it."""
    file = PLACE / "pictures" / f"{form}-{episode}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.npy")
        np.save(part, make())
        part.replace(file)
    found: np.ndarray = np.load(file, mmap_mode="r")
    return found


def numbers(episode: int) -> dict[str, np.ndarray]:
    """The state and the action of each step, and its number over all episodes."""
    rng = np.random.default_rng(episode + 10_000)
    return {
        "state": rng.standard_normal((STEPS, STATE), np.float32),
        "action": rng.standard_normal((STEPS, data.ACTION), np.float32),
        "number": np.arange(STEPS) + episode * STEPS,
    }


def jpeg(picture: np.ndarray) -> bytes:
    """Encode a picture with the quality that litdata advises."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def decoded(content: bytes) -> np.ndarray:
    """Decode an image with Pillow."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)))


def videos() -> list[Path]:
    """A video of each episode, as LeRobot encodes them: AV1, every second frame a key frame."""
    from video import encode

    os.environ["SVT_LOG"] = "1"  # errors alone
    place = PLACE / "videos"
    place.mkdir(parents=True, exist_ok=True)
    files = [place / f"{k:03}.mp4" for k in range(EPISODES)]
    for k, file in enumerate(files):
        if not file.exists():
            part = file.with_suffix(".part.mp4")
            encode(part, pictures(k), "libsvtav1", {"g": "2", "crf": "30", "preset": "12"}, rate=FPS)
            part.replace(file)
    return files


def cameras(form: str) -> Dataset:
    """The dataset of ours, with raw images, JPEG or videos."""

    def camera(k: int) -> Any:
        if form == "video":
            return rlds_cli.Video(videos()[k])
        return pictures(k) if form == "raw" else [jpeg(picture) for picture in pictures(k)]

    def episode(k: int) -> dict[str, Any]:
        each = numbers(k)
        seen = {"camera": camera(k), "state": each["state"]}
        return {"observation": seen, "action": each["action"], "number": each["number"], "next": {}}

    return data.made(f"local/cameras-{form}", lambda: map(episode, range(EPISODES)))


def expected(form: str, episode: int) -> np.ndarray:
    """The pictures of an episode as a reader gives them: those of a video as PyAV decodes it."""

    def images() -> np.ndarray:
        return np.stack([decoded(jpeg(picture)) for picture in pictures(episode)])

    def video() -> np.ndarray:
        import av

        with av.open(str(videos()[episode])) as container:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])

    if form == "raw":
        return pictures(episode)
    return _kept(form, images if form == "jpeg" else video, episode)


def compare_windows(form: str, found: Mapping[str, Any]) -> Any:
    """Compare windows of the camera and of all of `numbers` [B, 8, ...] with the source; return their numbers.

    Pictures of videos may differ by two levels, since PyAV converts colours otherwise.
    """
    steps = np.asarray(found["number"]).reshape(-1, WINDOW)
    assert (steps == steps[:, :1] + np.arange(WINDOW)).all() and (steps[:, 0] % WINDOW == 0).all(), "not windows"
    for k, (episode, first) in enumerate(zip(*np.divmod(steps[:, 0], STEPS), strict=True)):
        part = slice(first, first + WINDOW)
        for name, values in numbers(int(episode)).items():
            np.testing.assert_array_equal(
                np.asarray(found[name]).reshape(len(steps), *values[:WINDOW].shape)[k], values[part]
            )
        seen = np.asarray(found["camera"][k]).astype(int)
        away = np.abs(seen - expected(form, int(episode))[part]).max()
        assert away <= (2 if form == "video" else 0), f"pictures differ by {away}"
        assert np.abs(seen - pictures(int(episode))[part]).mean() < 8, "other pictures"
    return steps[:, 0] // WINDOW
