"""Pieces of a download that other connections fetch ahead of its beginning.

::

    x.h5.part             the beginning, without a gap
    x.h5.part.67108864    the bytes from this one on, as far as they were fetched

Each file only grows, so that its size says how much of it is there, whenever the process ends.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlds_cli.files import safe as safe_files


class Pieces:
    """The pieces ahead of a part: the first byte of each, and the number of bytes fetched."""

    def __init__(self, part: Path) -> None:
        self._part = part
        self.sizes: dict[int, int] = {}

    def look(self) -> None:
        """Find the pieces that an earlier process has left."""
        sizes = {start: _size(path) for start, path in found(self._part).items()}
        self.sizes = {start: size for start, size in sizes.items() if size is not None}

    def path(self, start: int) -> Path:
        """Return the path of the piece from byte ``start`` on."""
        return self._part.with_name(f"{self._part.name}.{start}")

    def add(self, start: int) -> None:
        """Begin a piece, unless there is one already."""
        if start not in self.sizes:
            self.path(start).unlink(missing_ok=True)  # an unknown piece belongs to another download
            self.sizes[start] = 0

    def remove(self, start: int) -> None:
        """Forget a piece."""
        self.path(start).unlink(missing_ok=True)
        self.sizes.pop(start, None)

    def clear(self) -> None:
        """Forget all pieces."""
        for start in list(self.sizes):
            self.remove(start)

    def first(self) -> int | None:
        """Return the first byte of the first piece."""
        return min(list(self.sizes), default=None)

    def beyond(self, offset: int) -> int:
        """Return the number of bytes in pieces from ``offset`` on."""
        return sum(max(0, start + size - max(start, offset)) for start, size in list(self.sizes.items()))


def found(part: Path) -> dict[int, Path]:
    """Return the pieces ahead of a part by their first byte, in order."""
    name = re.compile(re.escape(part.name) + r"\.(0|[1-9][0-9]{0,17})")
    try:
        entries = list(part.parent.iterdir())
    except OSError:
        return {}
    matches = ((name.fullmatch(e.name), e) for e in entries)
    return dict(sorted((int(m[1]), e) for m, e in matches if m))


def is_piece(name: str) -> bool:
    """Return whether a file of this name is a piece."""
    return re.search(r"\.part\.\d+$", name) is not None


def is_unfinished(name: str) -> bool:
    """Return whether a file of this name belongs to an unfinished download: a part, a piece, or a file beside them."""
    return re.search(r"\.part(\.(json|lock|\d+))?$", name) is not None


def _size(path: Path) -> int | None:
    """Return the size of a piece; None if it is not a file of this user, and thus cannot be continued."""
    return path.lstat().st_size if safe_files.is_own_file(path) else None
