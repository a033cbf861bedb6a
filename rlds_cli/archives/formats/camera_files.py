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
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import overload

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
    directory = _real(os.path.dirname(table))  # noqa: PTH120  (asked for each folder of images, again and again)
    own = name.replace(STEM, table.stem) if STEM in name else name
    found = _real(os.path.join(directory, own))  # noqa: PTH118
    if not os.fspath(found).startswith(os.path.join(directory, "")) or found == directory:  # noqa: PTH118
        raise UnsafeArchive(
            f"{table.name} names {name[:100]!r}, which is not in its directory.",
            hint="it is not read; put the images into the directory of the table",
        )
    return found


def _real(path: str) -> Path:
    """Return where a path leads to once links are followed; an import asks a dozen times for each folder.

    It is the same as before if the path, or the link at its end, and what it leads to are the same.
    """
    try:
        own, there = os.lstat(path), os.stat(path)  # noqa: PTH116  (a tenth of the time of `Path.resolve`)
    except OSError:
        return Path(path).resolve()
    return _resolved(path, own.st_dev, own.st_ino, there.st_dev, there.st_ino)


@lru_cache(1 << 12)
def _resolved(path: str, *_identity: int) -> Path:
    return Path(path).resolve()


class ImageFolder(Sequence[Path]):
    """The images in a folder, in natural order: its path, and their names. Paths are made where they are asked for."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, names
        self._above = os.path.join(folder, "")  # noqa: PTH118

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Path: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Path]: ...

    def __getitem__(self, at: int | slice) -> Path | Sequence[Path]:
        return ImageFolder(self.folder, self.names[at]) if isinstance(at, slice) else self.folder / self.names[at]

    @property
    def texts(self) -> Sequence[str]:
        """The paths as texts."""
        return [self._above + name for name in self.names]

    def read(self, start: int, stop: int) -> Array:
        """Read the images of rows [start, stop), as an object array of bytes."""
        return np.array([image(self._above + name) for name in self.names[start:stop]], object)


def texts_of(files: Sequence[Path]) -> Sequence[str]:
    """Return paths as texts."""
    return files.texts if isinstance(files, ImageFolder) else [*map(os.fspath, files)]


class Uses:
    """The fields that images and videos are used as, by the path of each, whatever links lead there.

    Images of a folder are known by the folder: there may be thousands, all of the same fields.
    """

    def __init__(self) -> None:
        self._folders: dict[str, list[tuple[frozenset[str], str]]] = defaultdict(list)
        self._files: dict[str, list[str]] = defaultdict(list)
        self._real: dict[str, str] = {}  # directories, and where they are

    def add(self, field: str, files: Sequence[Path]) -> None:
        """Note that a field is made of files."""
        if isinstance(files, ImageFolder):
            self._folders[os.fspath(files.folder)].append((frozenset(files.names), field))
            return
        for file in files:
            self._files[os.fspath(file)].append(field)

    @property
    def folders(self) -> set[str]:
        """The folders of all of them."""
        return {*self._folders, *map(os.path.dirname, self._files)}

    def of(self, file: Path) -> tuple[str, ...]:
        """Return the fields that a file is used as."""
        directory, _, name = os.fspath(file).rpartition("/")
        if (real := self._real.get(directory)) is None:
            real = self._real[directory] = os.path.realpath(directory or "/")
        found = self._at(real, name)
        return found or (self._at(*os.path.split(os.path.realpath(file))) if file.is_symlink() else ())

    def at(self, path: str) -> tuple[str, ...]:
        """Return the fields that the file of a path is used as, on which there are no links."""
        directory, _, name = path.rpartition("/")
        return self._at(directory, name)

    def _at(self, directory: str, name: str) -> tuple[str, ...]:
        of_folder = tuple([field for names, field in self._folders.get(directory, ()) if name in names])
        return (*of_folder, *self._files.get(f"{directory}/{name}", ())) if self._files else of_folder


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


def in_folder(folder: Path) -> ImageFolder:
    """Return the images in a folder, in natural order.

    Raises
    ------
    UnsafeArchive
        One is a link to a file elsewhere.
    """
    try:
        return _in_folder(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ImageFolder(folder, ())


@lru_cache(1 << 12)
def _in_folder(folder: Path, _changed: int) -> ImageFolder:
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if is_image(entry.name) and entry.is_file()]
    for entry in found:
        if entry.is_symlink() and folder.resolve() not in Path(entry.path).resolve().parents:
            raise UnsafeArchive(
                f"{entry.path} is a link to a file elsewhere.", hint="it is not read; copy the images into the folder"
            )
    return ImageFolder(folder, sorted([entry.name for entry in found], key=natural_path))


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
