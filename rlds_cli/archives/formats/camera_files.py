"""Cameras of a table whose images or videos are files beside it.

Derived columns of `tables` stand for them, with names relative to the table's directory. ``{stem}`` in a name is the
name of the table's file without its suffix::

    files:KEY           images that a column of texts names
    files:FOLDER/{KEY}  the same, with names relative to a folder
    folder:NAME         the images in a folder, in natural order (frame2.jpg before frame10.jpg)
    video:NAME          the frames of a video, in the order in which they are shown
    age:KEY:NAME        seconds since the frame of a video was shown that a row has by its time stamp, in the column KEY
    age:since:KEY:NAME  the same, with time stamps that count from the first row

Names are taken as people and programs write them: blanks around them do not count, ``\\`` divides folders as ``/``
does, and an absolute name of another machine, or one that begins with the table's own directories, stands for its end
that is beside the table (``/home/me/run/IMG/0.jpg`` for ``IMG/0.jpg``). A name without a suffix stands for the one
image of that name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from rlds_cli.archives.formats import image_columns
from rlds_cli.archives.formats.image_columns import EncodedColumn
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.media import image_header
from rlds_cli.base.media.media_files import image as image
from rlds_cli.base.media.media_files import is_image as is_image
from rlds_cli.base.media.media_files import is_media as is_media
from rlds_cli.base.media.media_files import is_video as is_video
from rlds_cli.base.media.media_files import track as track
from rlds_cli.base.media.mp4 import Track
from rlds_cli.base.text import natural_path
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

FILES, FOLDER, VIDEO = KINDS = ("files:", "folder:", "video:")
AGE, SINCE = "age:", "since:"
STEM = "{stem}"
LATE = 1e-6  # seconds: rounding of time stamps


def is_video_key(key: str) -> bool:
    """Return whether a derived column is one of a video's frames."""
    return key.startswith(VIDEO)


def named(table: str, key: str) -> str:
    """Return the file or folder of a derived column, relative to what the path of the table is relative to."""
    path = PurePosixPath(table)
    return (path.parent / key.partition(":")[2].replace(STEM, path.stem)).as_posix()


def named_by(key: str) -> tuple[str, str]:
    """Return the folder and the column of a derived column of named images, ``files:FOLDER/{COLUMN}``."""
    rest = key.removeprefix(FILES)
    folder, _, column = rest.rpartition("/{")
    return (folder, column[:-1]) if folder and column.endswith("}") else ("", rest)


def age_of(key: str) -> tuple[str, str]:
    """Return the column of time stamps and the video of a derived column of ages, ``age:COLUMN:VIDEO``."""
    rest = key.removeprefix(AGE)
    since = SINCE if rest.startswith(SINCE) else ""
    column, _, video = rest.removeprefix(since).partition(":")
    return since + column, video


def beside(table: Path, name: str) -> Path:
    """Return a file or folder by its name, relative to the directory of a table.

    Raises
    ------
    UnsafeArchive
        The name leads out of that directory.
    """
    directory = _real(table.parent)
    found = _real(directory / name.replace(STEM, table.stem))
    if directory not in found.parents:
        raise UnsafeArchive(
            f"{table.name} names {name[:100]!r}, which is not in its directory.",
            hint="it is not read; put the images into the directory of the table",
        )
    return found


def _real(path: Path) -> Path:
    """Return where a path leads to once links are followed; an import asks a dozen times for each folder.

    It is the same as before if the path, or the link at its end, and what it leads to are the same.
    """
    try:
        own, there = os.lstat(path), os.stat(path)  # noqa: PTH116  (a tenth of the time of `Path.resolve`)
    except OSError:
        return path.resolve()
    return _resolved(path, own.st_dev, own.st_ino, there.st_dev, there.st_ino)


@lru_cache(1 << 12)
def _resolved(path: Path, *_identity: int) -> Path:
    return path.resolve()


def with_real_places(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield each path with where it is once the links on the way to its directory are followed."""
    links: dict[str, Path | None] = {}
    for path in paths:
        directory = os.path.dirname(path)  # noqa: PTH120  (of thousands)
        if directory not in links:
            real = path.parent.resolve()
            links[directory] = None if real == path.parent else real
        real_one = links[directory]
        yield path, path if real_one is None else real_one / path.name


def find(table: Path, folder: str, text: str) -> Path:
    """Return the image that a text in a row of a table names, relative to a folder below it; it may be missing.

    Raises
    ------
    UnsafeArchive
        The name leads out of the table's directory.
    """
    ends = _ends(table, text)
    for end in ends[is_absolute(text) :]:
        path = beside(table, f"{folder}/{end}" if folder else end)
        if path.is_file():
            return path
        if (found := _with_suffix(path)) is not None:
            return found
    return beside(table, ends[0] if is_absolute(text) or not folder else f"{folder}/{ends[0]}")


def is_absolute(text: str) -> bool:
    """Return whether a name is an absolute one, of this machine or another."""
    name = text.strip().removeprefix("file://")
    return name.startswith("/") or PureWindowsPath(name).is_absolute()


def plain(table: Path, text: str) -> str:
    """Return a name without blanks around it, with ``/`` between its folders."""
    name = text.strip().removeprefix("file://")
    is_windows = "\\" in name and not (table.parent / name).is_file()
    return PureWindowsPath(name).as_posix() if is_windows else PurePosixPath(name).as_posix()


def _ends(table: Path, text: str) -> list[str]:
    """Return the names that a text may stand for, relative to the table's directory: the longest first."""
    name = plain(table, text)
    parts = [part for part in PurePosixPath(name).parts if part != "/" and not part.endswith(":")]
    if is_absolute(text) and ".." not in parts:
        return [name, *("/".join(parts[k:]) for k in range(len(parts)))]
    own = table.parent.resolve().parts
    above = [k for k in range(1, min(len(parts), len(own) + 1)) if tuple(parts[:k]) == own[-k:]]
    return [name, *("/".join(parts[k:]) for k in above)]


def _with_suffix(path: Path) -> Path | None:
    """Return the one image in a folder that is called ``path`` but for its suffix."""
    if is_image(path):
        return None
    try:
        return _stems(path.parent, path.parent.stat().st_mtime_ns).get(path.name)
    except OSError:
        return None


@lru_cache(1 << 8)
def _stems(folder: Path, _changed: int) -> dict[str, Path]:
    files = in_folder(folder)
    stems = Counter(path.stem for path in files)
    return {path.stem: path for path in files if stems[path.stem] == 1}


def images(table: Path, folder: str, names: Array) -> Array:
    """Read the images that texts [N] name, see `find`, as an object array of bytes [N]; None where a row names none."""
    rows = map(str, names.reshape(-1))
    return np.array([image(find(table, folder, row)) if row.strip() else None for row in rows], object)


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
    paths = {path.name: path for path in folder.iterdir()}  # made in a quarter of the time of ``folder / name``
    return tuple(paths[name] for name in sorted((entry.name for entry in found), key=natural_path) if name in paths)


def rows(files: tuple[Path, ...], start: int, stop: int) -> Array:
    """Read the images of rows [start, stop) of a folder, as an object array of bytes."""
    return np.array([image(path) for path in files[start:stop]], object)


def of_image(path: Path) -> EncodedColumn:
    """Return the codec and the shape of an image.

    Raises
    ------
    UnknownLayout
        It is neither a PNG nor a JPEG of 8 bits, nor a grey PNG of 16.
    """
    try:
        state = disk.state(path)
    except OSError as e:
        raise CorruptArchive(f"{path} cannot be read: {e.strerror}.", hint="fetch or write it again") from e
    return _of_image(path, state)


@lru_cache(1 << 12)
def _of_image(path: Path, _state: disk.State) -> EncodedColumn:
    data = image(path)
    found, header = image_columns.kind([data]), image_header.read(data)
    if found is None and header is not None:
        raise UnknownLayout(
            f"{path} is an image of {header.channels} channels of {header.bits} bits; those of 8 bits, and grey PNG of "
            "16 bits, are read.",
            hint="rlds_cli.create takes arrays of any dtype",
        )
    if found is None:
        raise UnknownLayout(f"{path} is neither a PNG nor a JPEG image.", hint="write it as one of these")
    return found


def shown(track: Track) -> Array:
    """Return when each frame of a video is shown [frames], in seconds since the first one."""
    return np.asarray(track.seconds - track.seconds[0])


def last_shown(times: Array, since: Array) -> IntArray:
    """Return the number of the last frame that was shown by each of the times ``since`` the first [n].

    ``times`` [frames] is when each frame is shown, see `shown`.
    """
    return np.asarray(np.searchsorted(times, since + LATE, "right") - 1)
