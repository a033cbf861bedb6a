"""Cameras of episodes that a program has: images in files and videos; PyAV and Pillow decode what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lerobot_archives import encode
from PIL import Image

from rlds_cli import Frames, Video, create, loader, open_dataset, verify, writer
from rlds_cli.errors import InvalidEpisode

LENGTHS = (5, 8, 3)


def pixels(path: Path) -> np.ndarray:
    with av.open(str(path)) as video:
        return np.stack([f.to_ndarray(format="rgb24") for f in video.decode(video=0)])


@pytest.fixture
def episodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Episodes of a robot with a camera that films and one that takes pictures, T+1 of each."""
    made, rng = [], np.random.default_rng(0)
    for k, steps in enumerate(LENGTHS):
        encode(tmp_path / f"top{k}.mp4", rng.integers(0, 256, (steps + 1, 32, 48, 3), np.uint8), "h264", {"g": "2"})
        for t in range(steps + 1):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / f"wrist{k}_{t}.png")
        seen = {
            "top": Video(tmp_path / f"top{k}.mp4"),
            "wrist": Frames(tmp_path / f"wrist{k}_{t}.png" for t in range(steps + 1)),
        }
        made.append({"observation": seen, "action": np.zeros((steps, 2)), "next": {"terminated": True}})
    return made


def is_as_given(ds: Any, directory: Path) -> bool:
    for k, steps in enumerate(LENGTHS):
        e = ds.episode(k)
        film = pixels(directory / f"top{k}.mp4")
        pictures = np.stack([np.asarray(Image.open(directory / f"wrist{k}_{t}.png")) for t in range(steps + 1)])
        for name, wanted in (("top", film), ("wrist", pictures)):
            if not np.array_equal(e[f"observation/{name}"], wanted[:-1]):
                return False
            if not np.array_equal(e[f"next/observation/{name}"], wanted[1:]):
                return False
    return True


def test_videos_and_images_in_files_are_stored_as_they_are(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    ds = create("local/rig", episodes)
    assert ds.schema["observation/top"].codec == "mp4" and ds.schema["observation/wrist"].codec == "png"
    assert is_as_given(ds, tmp_path) and verify("local/rig").ok
    for k in range(len(LENGTHS)):
        assert ds.store.videos("observation/top").published(k).tobytes() == (tmp_path / f"top{k}.mp4").read_bytes()
    batch = next(iter(loader.Loader(ds, batch_size=3, sampler=loader.Sequential())))
    assert np.array_equal(batch["observation/top"], pixels(tmp_path / "top0.mp4")[:3])


def test_the_writer_takes_them_as_well(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    with writer("local/log") as w:
        assert w.add_episodes(episodes[:2]) == 2
        w.commit()
        w.add_episodes(episodes[2])
    ds = open_dataset("local/log")
    assert ds.schema["observation/top"].codec == "mp4" and is_as_given(ds, tmp_path) and verify("local/log").ok


def test_raw_frames_are_decoded(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    ds = create("local/raw", episodes, frames="raw")
    assert {ds.schema[f"observation/{n}"].kind for n in ("top", "wrist")} == {"array"} and is_as_given(ds, tmp_path)


def test_part_of_a_video(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    film = tmp_path / "top1.mp4"
    parts = [
        {"observation": Video(film, 0, 4), "action": np.zeros((3, 1)), "next": {"terminated": True}},
        {"observation": Video(film, 4), "action": np.zeros((5, 1))},
    ]
    ds = create("local/parts", parts)
    assert np.array_equal(ds.episode(0)["observation"], pixels(film)[:3])
    assert np.array_equal(ds.episode(1)["observation"], pixels(film)[4:])
    assert ds.episodes["end"].tolist() == ["terminated", "cut"]


def test_files_that_are_no_cameras_are_named(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    film, image = tmp_path / "top0.mp4", tmp_path / "wrist0_0.png"
    (tmp_path / "cut.mp4").write_bytes(film.read_bytes()[:200])
    for wrong, fact in (
        (lambda: Video(tmp_path / "none.mp4"), "none.mp4"),
        (lambda: Video(image), "MP4"),
        (lambda: Video(tmp_path / "cut.mp4"), "cut.mp4"),
        (lambda: Video(film, 2, 99), "6 frames"),
        (lambda: Frames([]), "at least one"),
        (lambda: Frames([image, 3]), "image 1 has type int"),  # type: ignore[list-item]
        (lambda: Frames([tmp_path / "none.png"]), "none.png"),
    ):
        with pytest.raises(InvalidEpisode, match=fact):
            wrong()


def test_videos_that_do_not_fit_are_refused(tmp_path: Path, episodes: list[dict[str, Any]]) -> None:
    film, steps = tmp_path / "top0.mp4", {"action": np.zeros((7, 1))}
    with pytest.raises(InvalidEpisode, match="observation has 6 rows; expected 7 or 8"):
        create("local/rows", [{"observation": Video(film), **steps}])
    encode(tmp_path / "small.mp4", np.zeros((8, 16, 16, 3), np.uint8), "h264", {})
    with pytest.raises(InvalidEpisode, match=r"\[16, 16, 3\]"):
        first = {"observation": Video(film), "action": np.zeros((5, 1))}
        create("local/sizes", [first, {"observation": Video(tmp_path / "small.mp4"), **steps}])
    video = Video(film)
    encode(film, np.zeros((6, 32, 48, 3), np.uint8), "h264", {})
    with pytest.raises(InvalidEpisode, match="was changed"):
        create("local/changed", [{"observation": video, "action": np.zeros((5, 1))}])
