"""Make an index: objects are hashed while they are read, and the files of a dataset get pieces of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from rlds_cli.base.files import sha256
from rlds_cli.places.remote.blocks import BLOCK, HASH, LIST
from rlds_cli.places.remote.index import Index, IndexedFile, Object, Piece


@dataclass(frozen=True, slots=True)
class HashedObject:
    """An object, and the hashes of its blocks end to end."""

    object: Object
    blocks: bytes

    @property
    def groups(self) -> bytes:
        """The hashes of its groups, end to end."""
        of_group = range(0, len(self.blocks), LIST)
        return b"".join(hashlib.sha256(self.blocks[at : at + LIST]).digest() for at in of_group)


class Hasher:
    """Hashes an object while it is read in order: all of it, and its blocks."""

    def __init__(self) -> None:
        self._hashes = sha256.Blocks(BLOCK)
        self._blocks = bytearray()
        self._begun = bytearray()  # the block that is not whole yet

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        rest = memoryview(data)
        if self._begun:
            missing = BLOCK - len(self._begun)
            self._begun += rest[:missing]
            if len(rest) < missing:
                return
            self._blocks += self._hashes.add(self._begun)
            self._begun, rest = bytearray(), rest[missing:]
        whole = len(rest) // BLOCK * BLOCK
        self._blocks += self._hashes.add(rest[:whole])
        self._begun += rest[whole:]

    def result(self, path: str = "", at: int = 0) -> HashedObject:
        """Return the object: a file of its own, or a part of the file ``path`` of the dataset from byte ``at`` on."""
        size = len(self._blocks) // HASH * BLOCK + len(self._begun)
        last = hashlib.sha256(self._begun).digest() if self._begun else b""
        return HashedObject(Object(self._hashes.end(self._begun).hex(), size, path, at), bytes(self._blocks) + last)


class IndexBuilder:
    """An index in the making: objects are numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}  # by sha256
        self._numbers: dict[str, int] = {}
        self._groups = list[bytes]()
        self._pieces = defaultdict[str, list[Piece]](list)

    def add(self, o: Object, groups: bytes) -> bool:
        """Add an object and the hashes of its groups; return False if one with its content was added before."""
        if o.sha256 in self._objects:
            return False
        self._numbers[o.sha256] = len(self._objects)
        self._objects[o.sha256] = o
        self._groups.append(groups)
        return True

    def lay(self, path: str, at: int, length: int, sha256: str, *, of: Object, offset: int) -> None:
        """Say that bytes of a file, from ``at`` on, are those of an object that was added, from ``offset`` on."""
        self._pieces[path].append(Piece(at, self._numbers[of.sha256], offset, length, sha256))

    def finish(
        self, files: Mapping[str, int], *, id: str, fingerprint: str, version: int, manifest: str
    ) -> tuple[Index, bytes]:
        """Return the index of files, whose sizes are given, and the hashes of the groups of all its objects."""
        hashes, listed = b"".join(self._groups), []
        for path, size in sorted(files.items()):
            pieces = sorted(self._pieces[path], key=attrgetter("at"))
            listed.append(IndexedFile(path, size, tuple(pieces)))
        index = Index(
            id=id,
            fingerprint=fingerprint,
            version=version,
            manifest=manifest,
            objects=tuple(self._objects.values()),
            groups=Object(hashlib.sha256(hashes).hexdigest(), len(hashes)),
            files=tuple(listed),
        )
        return index, hashes
