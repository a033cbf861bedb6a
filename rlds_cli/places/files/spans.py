"""Which bytes of a partial file have arrived, while several connections add to it at different places.

::

    x.h5.part.spans    a head, then two counts for each piece of the file: bytes that are written from its beginning on,
                       and those of them that are synced

The counts are written after the bytes, one at a time, so they are right whenever a process is killed. After a crash of
the system only bytes that were synced are believed: the head names the boot that the other counts belong to. The file
is on the disk before the first byte behind a gap is written.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Self

from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.names import SPANS
from rlds_cli.errors import NoPermission

_HEAD = struct.Struct("<16s36s4xQQ")  # mark, boot, bytes of a piece, bytes of the file
_COUNT = struct.Struct("<Q")
_MARK = b"rlds spans 1"
_MOST = 1 << 20  # pieces
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def spans_path(part: Path) -> Path:
    """Return the path of the spans of a part."""
    return part.with_suffix(SPANS)


class Spans:
    """The counts of one file; ``keep`` opens it for writing.

    Attributes
    ----------
    piece, size : int
        Bytes of a piece and of the file.
    """

    def __init__(self, path: Path, piece: int, size: int) -> None:
        self.piece, self.size = piece, size
        self._path, self._descriptor = path, -1
        self._counts = [0] * -(-size // piece)
        self._synced = list(self._counts)

    @classmethod
    def create(cls, path: Path, piece: int, size: int, front: int) -> Self:
        """Begin with the first ``front`` bytes of a file."""
        made = cls(path, piece, size)
        made._limit([front - k * piece for k in range(len(made._counts))])
        with safe_files.replacing(path) as file:
            file.write(made._bytes())
            file.flush()
            os.fsync(file.fileno())
        disk.sync_directory(path.parent)
        made.keep()
        return made

    @classmethod
    def read(cls, path: Path, there: int) -> Self | None:
        """Read the counts of a part that has ``there`` bytes on the disk.

        None if it has no such file: then it is a beginning. Nothing counts if the file cannot be read.
        """
        try:
            with safe_files.reading(path) as file:
                data = file.read(_HEAD.size + 2 * _COUNT.size * _MOST + 1)
        except FileNotFoundError:
            return None
        except (OSError, NoPermission):
            data = b""
        mark, boot, piece, size = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", b"", 0, 0)
        number = -(-size // piece) if piece else 0
        if mark.rstrip(b"\0") != _MARK or not number or len(data) != _HEAD.size + 2 * _COUNT.size * number:
            return cls(path, 1, 0)
        made, counts = cls(path, piece, size), [count for (count,) in _COUNT.iter_unpack(data[_HEAD.size :])]
        made._synced = counts[1::2]
        is_same_boot = boot.rstrip(b"\0") == _boot() != b""
        written = counts[0::2] if is_same_boot else made._synced
        made._limit([min(n, there - k * piece) for k, n in enumerate(written)])
        return made

    def _limit(self, counts: list[int]) -> None:
        """Set the counts, none of them beyond its piece."""
        self._counts = [max(0, min(n, self._end(k))) for k, n in enumerate(counts)]

    def _end(self, number: int) -> int:
        """Return the bytes of a piece."""
        return min(self.piece, self.size - number * self.piece)

    def _place(self, number: int, *, synced: bool = False) -> int:
        return _HEAD.size + _COUNT.size * (2 * number + synced)

    @property
    def front(self) -> int:
        """Bytes of the beginning, without a gap."""
        number = next((k for k, n in enumerate(self._counts) if n < self._end(k)), len(self._counts))
        return self.size if number == len(self._counts) else number * self.piece + self._counts[number]

    @property
    def ahead(self) -> dict[int, int]:
        """Pieces behind the beginning that have bytes: first byte of each, and their number."""
        first = self.front // self.piece + 1
        return {k * self.piece: n for k, n in enumerate(self._counts) if k >= first and n}

    @property
    def total(self) -> int:
        """All bytes that have arrived."""
        return sum(self._counts)

    def keep(self) -> None:
        """Open the file, and write what was read as what holds for this boot."""
        self._descriptor = safe_files.open_own(self._path, os.O_RDWR)
        os.pwrite(self._descriptor, self._bytes(), 0)

    def _bytes(self) -> bytes:
        pairs = zip(self._counts, self._synced, strict=True)
        counts = b"".join(_COUNT.pack(n) for pair in pairs for n in pair)
        return _HEAD.pack(_MARK, _boot(), self.piece, self.size) + counts

    def note(self, start: int, stop: int) -> None:
        """Note that bytes [start, stop) are written; each piece fills from its beginning on."""
        for number in range(start // self.piece, -(-stop // self.piece)):
            self._counts[number] = min(stop - number * self.piece, self._end(number))
            os.pwrite(self._descriptor, _COUNT.pack(self._counts[number]), self._place(number))

    def counts(self) -> list[int]:
        """Return the counts as they are now."""
        return list(self._counts)

    def note_synced(self, counts: list[int]) -> None:
        """Note that the bytes of some earlier `counts` are synced."""
        for number, count in enumerate(counts):
            os.pwrite(self._descriptor, _COUNT.pack(count), self._place(number, synced=True))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _boot() -> bytes:
    """Return what names this run of the system; nothing where that is not known."""
    with suppress(OSError):
        return _BOOT.read_bytes().strip()[:36]
    return b""
