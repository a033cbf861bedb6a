"""Cameras of a table whose images or videos are files beside it.

Derived columns of `tables` stand for them, with names relative to the table's directory. ``{stem}`` in a name is the
name of the table's file without its suffix::

    files:KEY       images that a column of texts names
    folder:NAME     the images in a folder, in natural order (frame2.jpg before frame10.jpg)
    video:NAME      the frames of a video, in the order in which they are shown
    age:KEY:NAME    seconds since the frame of a video was shown that a row has by its time stamp, in the column KEY
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np

from rlds_cli.array_types import Array, IntArray
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.formats import image_columns, video_files
from rlds_cli.formats.image_columns import EncodedColumn
from rlds_cli.formats.mp4 import Track
from rlds_cli.text import natural

FILES, FOLDER, VIDEO = KINDS = ("files:", "folder:", "video:")
AGE = "age:"
STEM = "{stem}"
IMAGES, VIDEOS = (".jpg", ".jpeg", ".png"), (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
MAX_IMAGE = 64 << 20  # bytes of a file
LATE = 1e-6  # seconds: rounding of time stamps


def is_image(name: str | Path) -> bool:
    """Return whether a file has the name of a PNG or JPEG image."""
    return os.fspath(name).lower().endswith(IMAGES)


def is_video(path: Path) -> bool:
    """Return whether a file has the name of a video."""
    return path.suffix.lower() in VIDEOS


def is_media(path: Path) -> bool:
    """Return whether a file has the name of an image or a video."""
    return is_image(path) or is_video(path)


def is_video_key(key: str) -> bool:
    """Return whether a derived column is one of a video's frames."""
    return key.startswith(VIDEO)


def named(table: str, key: str) -> str:
    """Return the file or folder of a derived column, relative to what the path of the table is relative to."""
    path = PurePosixPath(table)
    return (path.parent / key.partition(":")[2].replace(STEM, path.stem)).as_posix()


def beside(table: Path, name: str) -> Path:
    """Return a file or folder by its name, relative to the directory of a table.

    Raises
    ------
    UnsafeArchive
        The name leads out of that directory.
    """
    directory = table.parent.resolve()
    found = (directory / name.replace(STEM, table.stem)).resolve()
    if directory not in found.parents:
        raise UnsafeArchive(
            f"{table.name} names {name[:100]!r}, which is not in its directory.",
            hint="it is not read; put the images into the directory of the table",
        )
    return found


def image(path: Path) -> bytes:
    """Read the bytes of an image.

    Raises
    ------
    CorruptArchive
        There is no such file.
    UnsafeArchive
        It is too large for an image.
    """
    try:
        with path.open("rb") as f:
            data = f.read(MAX_IMAGE + 1)
    except OSError as e:
        raise CorruptArchive(f"{path} cannot be read: {e.strerror}.", hint="fetch or write it again") from e
    if len(data) > MAX_IMAGE:
        raise UnsafeArchive(f"{path} has more than {MAX_IMAGE:,} bytes: it is not an image of a camera.")
    return data


def images(table: Path, names: Array) -> Array:
    """Read the images that texts [N] name, as an object array of bytes [N]; None where a row names none."""
    return np.array([image(beside(table, str(name))) if name else None for name in names.reshape(-1)], object)


def in_folder(folder: Path) -> tuple[Path, ...]:
    """Return the images in a folder, in natural order.

    Raises
    ------
    UnsafeArchive
        One is a link to a file elsewhere.
    """
    try:
        return _in_folder(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ()


@lru_cache(1 << 12)
def _in_folder(folder: Path, _changed: int) -> tuple[Path, ...]:
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if is_image(entry.name) and entry.is_file()]
    for entry in found:
        if entry.is_symlink() and folder.resolve() not in Path(entry.path).resolve().parents:
            raise UnsafeArchive(
                f"{entry.path} is a link to a file elsewhere.", hint="it is not read; copy the images into the folder"
            )
    return tuple(folder / name for name in sorted((entry.name for entry in found), key=natural))


def rows(files: tuple[Path, ...], start: int, stop: int) -> Array:
    """Read the images of rows [start, stop) of a folder, as an object array of bytes."""
    return np.array([image(path) for path in files[start:stop]], object)


def of_image(path: Path) -> EncodedColumn:
    """Return the codec and the shape of an image.

    Raises
    ------
    UnknownLayout
        It is neither a PNG nor a JPEG of 8 bits.
    """
    found = image_columns.kind([image(path)])
    if found is None:
        raise UnknownLayout(f"{path} is neither a PNG nor a JPEG image of 8 bits.", hint="write it as one of these")
    return found


def shown(track: Track) -> Array:
    """Return when each frame of a video is shown [frames], in seconds since the first one."""
    return np.asarray(track.seconds - track.seconds[0])


def last_shown(times: Array, since: Array) -> IntArray:
    """Return the number of the last frame that was shown by each of the times ``since`` the first [n].

    ``times`` [frames] is when each frame is shown, see `shown`.
    """
    return np.asarray(np.searchsorted(times, since + LATE, "right") - 1)


@lru_cache(1 << 10)
def _track(path: Path, _state: tuple[int, int]) -> Track:
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
