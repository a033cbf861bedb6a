"""Values of the rows of one field: arrays, images, frames of videos, texts; in memory, or read when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray


@dataclass(slots=True)
class EncodedFrames:
    """Encoded images, one per row: the rows' bytes end to end, and their lengths.

    Length 0 stands for no frame: only the last row of an episode, of a field that is not placed ``both``, has none.

    ``shape``, ``codec`` and ``dtype`` are those of the field, and may be omitted if the field is known.
    """

    data: npt.NDArray[np.uint8]
    lengths: IntArray
    shape: tuple[int, ...] = ()
    codec: str | None = None
    dtype: str = "uint8"

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return self.data.nbytes

    @property
    def spans(self) -> IntArray:
        """First byte of each image, and the byte behind it [n, 2]."""
        ends = np.cumsum(self.lengths)
        return np.stack([ends - self.lengths, ends], 1)


@dataclass(slots=True)
class VideoFrames:
    """Frames of videos, one per row: ``index`` [n, 2] is the number of a video in ``files`` and of the frame in it.

    Frames are counted in the order in which they are shown; (-1, -1) stands for a row without a frame.

    ``shape`` is that of the field, and may be omitted if the field is known. ``made`` are the bytes of those of
    ``files`` that are in no file yet.
    """

    files: tuple[str, ...]
    index: npt.NDArray[np.int32]
    shape: tuple[int, ...] = ()
    made: Mapping[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return self.index.nbytes


Text = list[str | None]
Scalar = bool | int | float | str | None  # of one episode, in a column of the user's own
Column = Array | EncodedFrames | VideoFrames | Text


class LazyColumn:
    """A column of an episode whose rows are read or decoded when they are laid out.

    An episode of such columns may be larger than memory.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        raise NotImplementedError

    def cut(self, start: int, stop: int) -> Any:
        """Read rows [start, stop): an array, of objects for text, or a list of the bytes of encoded images."""
        raise NotImplementedError
