"""What the small files of an index may take: the index of a stranger can name the same bytes a million times."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlds_cli.base import text
from rlds_cli.base.files import disk
from rlds_cli.errors import DamagedDataset
from rlds_cli.places.remote.blocks import GROUP
from rlds_cli.places.remote.index import Index, IndexedFile, Piece
from rlds_cli.store import is_of_rows

ALWAYS = 64 << 20  # bytes that are allowed whatever is fetched
TIMES = 100  # times the bytes that are fetched for small files; equal columns of episodes share bytes
_ENTRY = 4096  # bytes on the disk of a file or a directory, beside its content


class SmallFiles:
    """Counts the small files of one dataset, and what is fetched for them.

    Parameters
    ----------
    index : Index
    where : str
        The address, for messages.
    """

    def __init__(self, index: Index, where: str) -> None:
        self._index, self._where = index, where
        self._taken = self._fetched = 0
        self._directories: set[str] = set()
        self._groups: set[tuple[int, int]] = set()

    def admit(self, files: Iterable[IndexedFile], root: Path) -> None:
        """Count files that are about to be written below a directory.

        Raises
        ------
        DamagedDataset
            One has holes that holds no digests of rows, or they take far more than what is fetched for them.
        NoSpace
            The disk lacks room for them.
        """
        files = list(files)
        size = 0
        for f in files:
            there = sum(p.length for p in f.pieces)
            if there != f.size and not is_of_rows(f.path):
                raise DamagedDataset(f"The index of {self._where} has no bytes for parts of {f.path}.")
            size += there
        disk.check_space(size, root, kept="Nothing of these files was written.")
        above = {f.path[:k] for f in files for k in range(len(f.path)) if f.path[k] == "/"} - self._directories
        self._directories |= above
        self._taken += size + _ENTRY * (len(files) + len(above))
        for f in files:
            self._fetch(f.pieces)
        if self._taken > ALWAYS + TIMES * self._fetched:
            raise DamagedDataset(
                f"The index of {self._where} makes small files that take {text.size_of(self._taken)} of "
                f"{text.size_of(self._fetched)} there. Nothing of them was written.",
                hint="rlds push ID sends a sound index; do not use this one if you do not trust the address",
            )

    def _fetch(self, pieces: Iterable[Piece]) -> None:
        """Count the groups that hold pieces."""
        for p in pieces:
            for group in range(*groups(p)):
                if (p.object, group) not in self._groups:
                    self._groups.add((p.object, group))
                    self._fetched += min(GROUP, self._index.objects[p.object].size - group * GROUP)


def groups(p: Piece) -> tuple[int, int]:
    """Return the groups [first, stop) of its object that hold a piece."""
    return p.offset // GROUP, (p.offset + p.length - 1) // GROUP + 1
