"""Bytes of objects that other datasets of the home have already: earlier versions, sources, results.

Objects are named by their content, so the blocks of an object that two datasets share are the same. What is read here
is not checked: a block may be missing or half written. The caller compares it with its hash, as what a store sends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import RldsError
from rlds_cli.places.remote import leases
from rlds_cli.places.remote.index import Index, Piece
from rlds_cli.places.remote.leases import Descriptor
from rlds_cli.places.remote.presence import ROWS, read_files


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of an object, and the file that has it."""

    piece: Piece
    file: Descriptor


class SharedBlocks:
    """Blocks of the objects of one dataset that other datasets of the home have.

    Parameters
    ----------
    tops : sequence of Path
        Directories of remote datasets, also of other users of a home.
    root : Path
        Directory of the dataset, in one of them or elsewhere.
    index : Index
        Of the dataset.
    name : str
        Of the index in such a directory.
    """

    def __init__(self, tops: Sequence[Path], root: Path, index: Index, name: str) -> None:
        self._tops, self._root, self._name = tops, root, name
        self._objects = {o.sha256 for o in index.objects}
        self._lock = threading.Lock()
        self._parts: dict[str, list[_Part]] | None = None

    def after_fork(self) -> None:
        """Forget the lock of the parent's threads."""
        self._lock = threading.Lock()

    def read(self, sha256: str, start: int, length: int) -> bytes | None:
        """Return bytes of an object as another dataset has them, unchecked; None if none has."""
        with self._lock:
            if self._parts is None:
                self._parts = self._found()
        for part in self._parts.get(sha256, ()):
            p = part.piece
            if p.offset <= start and start + length <= p.offset + p.length:
                with suppress(OSError):  # a file without anything behind this place
                    at = p.at + start - p.offset
                    if os.lseek(part.file.number, at, os.SEEK_DATA) < at + length:
                        return os.pread(part.file.number, length, at)
        return None

    def _found(self) -> dict[str, list[_Part]]:
        found: dict[str, list[_Part]] = {}
        for top in self._tops:
            with suppress(OSError):
                for other in leases.datasets(top):
                    if other != self._root:
                        with suppress(OSError, RldsError, ValueError):
                            self._add(other, found)
        return found

    def _add(self, other: Path, found: dict[str, list[_Part]]) -> None:
        """Add what another dataset has of our objects."""
        with safe_files.reading(other / self._name) as file:
            text = file.read()
        if not any(sha256.encode() in text for sha256 in self._objects):
            return
        index = Index.parse(text, str(other))
        numbers = {f.path: number for number, f in enumerate(read_files(other))}
        for f in index.files:
            shared = [p for p in f.pieces if index.objects[p.object].sha256 in self._objects]
            if shared and f.path in numbers:
                rows = Descriptor(safe_files.open_shared(other / ROWS / str(numbers[f.path]), os.O_RDONLY))
                for p in shared:
                    found.setdefault(index.objects[p.object].sha256, []).append(_Part(p, rows))
