"""The index of a version at an address, ``indexes/<sha256>``: which bytes of which objects its files consist of.

::

    {"rlds_index": 1, "rlds_version": ..., "id": ..., "fingerprint": ..., "version": number,
     "manifest": sha256 of zarr.json,
     "objects": [[sha256, size], ...],                     objects/<sha256> and blocks/<sha256>
                 or [sha256, size, path, at]                 bytes of a file of the dataset, and blocks/<sha256>
     "groups": [sha256, size],                             groups/<sha256>
     "files": [[path, size, [[at, object, offset, length, sha256], ...]], ...]}

A piece says that ``length`` bytes of its file, from ``at`` on, are those of an object (its number in the list) from
``offset`` on. What no piece covers is a hole: rows of no episode. `blocks` describes the hashes.
`versions` has the sha256 of the index, which proves all of these. A stranger may have written the index, so every value
is checked before it is used, and the text must be as `Index.to_bytes` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from rlds_cli import __version__
from rlds_cli.base import ids
from rlds_cli.base.files import json as documents
from rlds_cli.places.remote import values
from rlds_cli.places.remote.blocks import HASH, blocks_of, groups_of
from rlds_cli.store import GrowingDataset

FORMAT = 1
LONGEST = 64 << 20  # bytes of an index
MOST_HASHES = 1 << 30  # bytes of the hashes of groups: those of 32 TiB
_ROWS = re.compile(r"(?!episodes/|digests/|metadata/|sources/|text/).*/c/0(/0)*")  # a file that may have holes
_PART = re.compile(r"(?!\.)[\w\-.+=@,~%]{1,250}", re.ASCII)
_MOST_FILES, _MOST_OBJECTS, _MOST_PIECES = 1 << 20, 1 << 16, 1 << 21
_LARGEST = 1 << 50  # bytes of a file or an object
_LONGEST_PATH, _DEEPEST = 4096, 600
_ALWAYS, _TIMES = 64 << 20, 1000  # bytes that files may take: these, and so many times those of the objects


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file: ``length`` from ``at`` on are those of object number ``object`` from ``offset`` on."""

    at: int
    object: int
    offset: int
    length: int
    sha256: str  # of these bytes


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file of the dataset, and its pieces in order."""

    path: str
    size: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """Bytes that never change: a file named by their sha256, or, after ``rlds index``, a part of a dataset's file.

    Attributes
    ----------
    sha256 : str
    size : int
    path : str
        Of the file below the address, from byte ``at`` on; empty for a file of its own.
    at : int
    """

    sha256: str
    size: int
    path: str = ""
    at: int = 0

    @property
    def name(self) -> str:
        """Name of the file below the address."""
        return self.path or f"objects/{self.sha256}"

    @property
    def file_size(self) -> int | None:
        """Bytes of its file; None if that is a file of the dataset, which may hold more."""
        return None if self.path else self.size

    @property
    def list(self) -> tuple[str, int]:
        """Name below the address, and bytes, of the list of the hashes of its blocks."""
        return f"blocks/{self.sha256}", HASH * blocks_of(self.size)

    @property
    def stored(self) -> dict[str, int]:
        """Names and sizes of the files at the address that belong to it alone."""
        return ({} if self.path else {self.name: self.size}) | dict([self.list])


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file at an address: its name below it, its bytes and its sha256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The content of an index."""

    MANIFEST: ClassVar[str] = "zarr.json"  # the file that says what is in a dataset

    id: str
    fingerprint: str
    version: int
    manifest: str
    objects: tuple[Object, ...]
    groups: Object
    files: tuple[IndexedFile, ...]
    rlds_version: str = field(default=__version__)

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """Read an index; ``where`` it is, for messages.

        Raises
        ------
        DamagedDataset
            It is not an index that this program can have written.
        NewerFormat
            A later version wrote it.
        """
        with values.refused(where, "is not the index of a dataset"):
            content = documents.loads(text, longest=LONGEST)
            if not isinstance(content, dict):
                raise ValueError("not an object")
            values.check_format(content.get("rlds_index"), FORMAT, "rlds_index", where)
            found = cls._of(content)
            if found.to_bytes() != text:
                raise ValueError("it is not as it was written")
            return found

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        id = str(ids.parse(values.text(content.get("id"), "id")))
        objects = tuple(_object(o) for o in values.items(content.get("objects"), _MOST_OBJECTS, "objects"))
        if len({o.sha256 for o in objects}) != len(objects):
            raise ValueError("an object occurs twice")
        sha256, size = values.members(content.get("groups"), 2, "hashes")
        groups = Object(values.sha256(sha256), values.number(size, MOST_HASHES + 1, "a size"))
        if groups.size != HASH * sum(groups_of(o.size) for o in objects):
            raise ValueError(f"{groups.size:,} bytes of hashes do not fit the objects")
        listed = values.items(content.get("files"), _MOST_FILES, "files")
        grows = any(isinstance(f, list) and f[:1] == [GrowingDataset.LOG] for f in listed)
        files = tuple(_file(f, objects, grows=grows) for f in listed)
        if sum(len(f.pieces) for f in files) > _MOST_PIECES:
            raise ValueError("more pieces than any dataset has")
        if sum(p.length for f in files for p in f.pieces) > _ALWAYS + _TIMES * sum(o.size for o in objects):
            raise ValueError(f"its files take more than {_TIMES:,} times the bytes of its objects")
        _check_paths([f.path for f in files])
        return cls(
            id=id,
            fingerprint=values.fingerprint(content.get("fingerprint")),
            version=values.number(content.get("version"), 1 << 60, "a version"),
            manifest=values.sha256(content.get("manifest")),
            objects=objects,
            groups=groups,
            files=files,
            rlds_version=values.text(content.get("rlds_version"), "rlds_version"),
        )

    @staticmethod
    def is_path(path: str) -> bool:
        """Return whether a file of a dataset can have this path: relative, canonical, of plain characters."""
        parts = path.split("/") if len(path) <= _LONGEST_PATH else [""]
        return len(parts) <= _DEEPEST and all(map(_PART.fullmatch, parts))

    @cached_property
    def stored(self) -> tuple[IndexedFile, ...]:
        """The files of the dataset: without tables of videos, which follow from these."""
        return tuple(f for f in self.files if not _is_table(f.path))

    @cached_property
    def grows(self) -> bool:
        """Whether it is a version of a growing dataset, which has a log of its versions."""
        return self.file(GrowingDataset.LOG) is not None

    @cached_property
    def sha256(self) -> str:
        """The sha256 of its text."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def name(self) -> str:
        """Name below the address."""
        return f"indexes/{self.sha256}"

    @property
    def groups_name(self) -> str:
        """Name of the object with the hashes of groups."""
        return f"groups/{self.groups.sha256}"

    @property
    def stored_files(self) -> tuple[StoredFile, ...]:
        """The files at the address that hold the version: the index, the hashes of groups, and the objects."""
        return (
            StoredFile(self.name, len(self.to_bytes()), self.sha256),
            StoredFile(self.groups_name, self.groups.size, self.groups.sha256),
            *(StoredFile(o.name, o.size, o.sha256) for o in self.objects),
        )

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(p.length for f in self.files for p in f.pieces)

    def file(self, path: str) -> IndexedFile | None:
        """Return a file by its path, or None."""
        return next((f for f in self.files if f.path == path), None)

    def to_bytes(self) -> bytes:
        """Return the JSON text."""
        content = {
            "rlds_index": FORMAT,
            "rlds_version": self.rlds_version,
            "id": self.id,
            "fingerprint": self.fingerprint,
            "version": self.version,
            "manifest": self.manifest,
            "groups": [self.groups.sha256, self.groups.size],
            "objects": [[o.sha256, o.size, *((o.path, o.at) if o.path else ())] for o in self.objects],
        }
        lines = []
        for f in self.files:
            pieces = [[p.at, p.object, p.offset, p.length, p.sha256] for p in f.pieces]
            lines.append(json.dumps([f.path, f.size, pieces], separators=(",", ":")))
        return (json.dumps(content, indent=0)[:-2] + ',\n"files": [\n' + ",\n".join(lines) + "\n]\n}\n").encode()


def _file(value: Any, objects: Sequence[Object], *, grows: bool) -> IndexedFile:
    path, size, listed = values.members(value, 3, "a file")
    path, size = _path(path), values.number(size, _LARGEST, "a size")
    holes = grows or _ROWS.fullmatch(path) is not None
    pieces, end = [], 0
    for one in values.items(listed, _MOST_PIECES, "pieces"):
        at, number, offset, length, sha256 = values.members(one, 5, "a piece")
        piece = Piece(
            values.number(at, _LARGEST, "a place"),
            values.number(number, len(objects), "the number of an object"),
            values.number(offset, _LARGEST, "an offset"),
            values.number(length, _LARGEST, "a length"),
            values.sha256(sha256),
        )
        if piece.at < end or (piece.at > end and not holes) or piece.length < 1:
            raise ValueError(f"the pieces of {path} do not follow each other")
        if piece.offset + piece.length > objects[piece.object].size or piece.at + piece.length > size:
            raise ValueError(f"a piece of {path} ends behind its object or file")
        end = piece.at + piece.length
        pieces.append(piece)
    if end != size and not holes:
        raise ValueError(f"the pieces of {path} are not all of it")
    return IndexedFile(path, size, tuple(pieces))


def _check_paths(paths: Sequence[str]) -> None:
    """Refuse files that are one on some file systems, or of which one lies below another."""
    known = {path.lower() for path in paths}
    if len(known) != len(paths):
        raise ValueError("a file occurs twice")
    if Index.MANIFEST not in paths:
        raise ValueError(f"there is no {Index.MANIFEST}")
    above = {path[:k] for path in known for k in range(len(path)) if path[k] == "/"}
    if not known.isdisjoint(above):
        raise ValueError("a file lies below another one")


def _is_table(path: str) -> bool:
    """Return whether a file is the table of a video of a growing dataset, see `rlds_cli.store.videos.table_path`."""
    parts = path.split("/")
    return parts[0] == "video" and parts[-2:-1] == ["tables"] and len(parts[-1]) == 64


def _path(value: Any) -> str:
    if not isinstance(value, str) or not Index.is_path(value):
        raise ValueError(f"{str(value)[:80]!r} is not a path of a file of a dataset")
    return value


def _object(value: Any) -> Object:
    sha256, size, *place = values.items(value, 4, "members of an object")
    found = Object(values.sha256(sha256), values.number(size, _LARGEST + 1, "a size"))
    if place:
        path, at = values.members(place, 2, "a place")
        found = replace(found, path=_path(path), at=values.number(at, _LARGEST, "a place"))
    if found.size < 1:
        raise ValueError("an object is empty")
    return found
