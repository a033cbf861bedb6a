"""Cameras of episodes in memory: images as bytes or files, and videos, which are stored as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media import media_files
from rlds_cli.base.media.mp4 import Extent
from rlds_cli.base.settings import StrPath, expanded
from rlds_cli.errors import ArchiveError, InvalidEpisode
from rlds_cli.store import Video as Decoded
from rlds_cli.store import decode_video
from rlds_cli.ted import VIDEO, Field, VideoFrames


class Frames(list[bytes]):
    """The images of a camera, one for each row of a field: PNG or JPEG of one size, stored as they are.

    Parameters
    ----------
    images : iterable of bytes or path
        The bytes of each image, or its file.

    Raises
    ------
    InvalidEpisode
        There are no images, one is neither bytes nor a path, or a file cannot be read.

    Examples
    --------
    >>> import rlds_cli
    >>> from pathlib import Path
    >>> rlds_cli.Frames(sorted(Path("run_0/wrist").glob("*.jpg")))  # doctest: +SKIP
    """

    def __init__(self, images: Iterable[bytes | StrPath]) -> None:
        super().__init__(_image(image, row) for row, image in enumerate(images))
        if not self:
            raise InvalidEpisode("Frames([]): a camera has at least one image.")


def _image(image: bytes | StrPath, row: int) -> bytes:
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if not isinstance(image, str | os.PathLike):
        raise InvalidEpisode(
            f"Frames: image {row:,} has type {type(image).__name__}; bytes of a PNG or JPEG, or its path, are needed.",
            hint="arrays uint8 [T, H, W, C] need no Frames: they are the value of the field",
        )
    try:
        return media_files.image(expanded(image))
    except ArchiveError as e:
        raise InvalidEpisode(e.message, hint=e.hint) from e


class Video(VideoFrames):
    """The frames of a video file, one for each row of a field, in the order in which they are shown.

    The file is stored as it is, once, and decoded by the loader. It must stay as it is until the episode is written:
    until `create` returns, or `Writer.commit`.

    Parameters
    ----------
    path : path
        MP4, Matroska, WebM or AVI, with H.264, HEVC, AV1, VP8, VP9, MPEG-4, Motion JPEG or FFV1.
    start, stop : int, optional
        Take frames ``start`` to ``stop - 1``; by default all.

    Raises
    ------
    InvalidEpisode
        There is no such file, it is damaged, in another container or of another codec, or has fewer frames.

    Examples
    --------
    >>> import rlds_cli
    >>> episode = {"observation": {"wrist": rlds_cli.Video("run_0.mp4")}, "action": actions}  # doctest: +SKIP
    """

    def __init__(self, path: StrPath, start: int = 0, stop: int | None = None) -> None:
        self.path = expanded(path).absolute()
        try:
            self.track = media_files.track(self.path)
        except ArchiveError as e:
            raise InvalidEpisode(e.message, hint=e.hint) from e
        self._state = _state(self.path)
        count = len(self.track.frames)
        stop = count if stop is None else stop
        if not 0 <= start < stop <= count:
            raise InvalidEpisode(f"{self.path} has {count:,} frames; {start:,} to {stop:,} were asked for.")
        index = np.stack([np.zeros(stop - start), np.arange(start, stop)], 1).astype(np.int32)
        super().__init__((f"{self.path} {self._state}",), index, (self.track.height, self.track.width, 3))

    def extent(self) -> Extent:
        """Return the bytes of the file; raises InvalidEpisode if it has changed since."""
        if _state(self.path) != self._state:
            raise InvalidEpisode(
                f"{self.path} was changed or removed after it was given, before its episode was written.",
                hint="write each video to a file of its own, and keep it until the episode is written",
            )
        return Extent.whole(self.path)

    def decoded(self, name: str) -> Array:
        """Decode the frames to uint8 [rows, H, W, 3]; raises as `store.decode_video`."""
        video = Decoded(self.files[0], np.memmap(self.path, np.uint8, "r"), self.track)
        field = Field(name, "uint8", self.shape, "root", "frames", VIDEO)
        return decode_video(self.index, lambda _: video, field, self.files[0])


def _state(path: Path) -> tuple[int, ...]:
    try:
        now = path.stat()
    except OSError:
        return ()
    return now.st_ino, now.st_size, now.st_mtime_ns
