"""Files of images and videos: which are, by their names, and what they hold."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.errors import CorruptArchive, UnsafeArchive

if TYPE_CHECKING:
    from rlds_cli.base.media.mp4 import Track

IMAGES, VIDEOS = (".jpg", ".jpeg", ".png"), (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
MAX_IMAGE = 64 << 20  # bytes of a file


def is_image(name: str | Path) -> bool:
    """Return whether a file has the name of a PNG or JPEG image."""
    return os.fspath(name).lower().endswith(IMAGES)


def is_video(path: str | Path) -> bool:
    """Return whether a file has the name of a video."""
    return os.fspath(path).lower().endswith(VIDEOS)


def is_media(path: str | Path) -> bool:
    """Return whether a file has the name of an image or a video."""
    return os.fspath(path).lower().endswith(IMAGES + VIDEOS)


def image(path: Path | str) -> bytes:
    """Read the bytes of an image.

    Raises
    ------
    CorruptArchive
        There is no such file.
    UnsafeArchive
        It is too large for an image.
    """
    try:
        file = os.open(path, os.O_RDONLY)  # thousands of small ones: a third less than `Path.open` takes
        try:
            data = os.read(file, min(os.fstat(file).st_size, MAX_IMAGE) + 1)  # a buffer of that size is made
        finally:
            os.close(file)
    except OSError as e:
        raise CorruptArchive(f"{path} cannot be read: {e.strerror}.", hint="fetch or write it again") from e
    if len(data) > MAX_IMAGE:
        raise UnsafeArchive(f"{path} has more than {MAX_IMAGE:,} bytes: it is not an image of a camera.")
    return data


@lru_cache(1 << 10)
def _track(path: Path, _state: tuple[int, int]) -> Track:
    from rlds_cli.base.media import video_files

    return video_files.read(path)


def track(path: Path) -> Track:
    """Return the video track of a file.

    Raises
    ------
    CorruptArchive
        There is no such file, or it is damaged.
    UnknownLayout, MissingPackage
        As `video_files.read`.
    """
    try:
        stat = path.stat()
    except OSError as e:
        raise CorruptArchive(f"{path} cannot be read: {e.strerror}.", hint="fetch or write it again") from e
    return _track(path, (stat.st_size, stat.st_mtime_ns))
