"""Lists of the hashes of blocks: fetched in ranges when blocks come without the rest of their group, and kept.

They lie in one sparse file, end to end in the order of the objects. Nothing notes which of them are cached: the
list of a group is, if the hash of the group proves it, which takes a microsecond.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlds_cli.base.files import safe as safe_files
from rlds_cli.places.remote.blocks import GroupHashes
from rlds_cli.places.remote.index import Index
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Chunk
from rlds_cli.places.sources.transfer import Units

_PATIENCE = 2.0  # seconds to wait for a request of another thread
_RANGE = 1 << 16  # bytes of lists that are fetched together: those of 128 MiB


class BlockLists:
    """The hashes of the blocks of one dataset.

    Parameters
    ----------
    path : Path
        The file that keeps them.
    index : Index
    groups : GroupHashes
        By which they are proved.
    store : callable
        Returns the store.
    told : callable
        Is given the bytes of each request.
    """

    def __init__(
        self, path: Path, index: Index, groups: GroupHashes, store: Callable[[], Objects], told: Callable[[int], None]
    ) -> None:
        self._path, self._index, self._groups, self._store, self._told = path, index, groups, store, told
        self._first = [0]
        for o in index.objects:
            self._first.append(self._first[-1] + o.list[1])
        self._descriptor = -1
        self.after_fork()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def after_fork(self) -> None:
        """Forget the locks of the parent's threads."""
        self._lock = threading.Lock()
        self._busy: dict[tuple[int, int], threading.Lock] = {}

    def of(self, number: int, group: int) -> bytes:
        """Return the hashes of the blocks of a group, fetched if need be.

        Raises
        ------
        WrongHash
            The store has others.
        DownloadFailed, Offline
        """
        found = self._here(number, group)
        if found is not None:
            return found
        first = self._groups.list_of(number, group)[0] // _RANGE * _RANGE
        with self._lock:
            busy = self._busy.setdefault((number, first), threading.Lock())
        mine = busy.acquire(timeout=_PATIENCE)  # the other groups of this range wait for it, unless it takes long
        try:
            return self._here(number, group) or self._fetched(number, group, first)
        finally:
            if mine:
                busy.release()

    def keep(self, number: int, group: int, blocks: bytes) -> None:
        """Keep the hashes of a group that is cached whole."""
        if self._here(number, group) is None:
            self._write(number, self._groups.list_of(number, group)[0], blocks)

    def _here(self, number: int, group: int) -> bytes | None:
        start, length = self._groups.list_of(number, group)
        found = os.pread(self._file(), length, self._first[number] + start)
        return found if self._groups.is_list(number, group, found) else None

    def _fetched(self, number: int, group: int, first: int) -> bytes:
        start, length = self._groups.list_of(number, group)
        name, size = self._index.objects[number].list
        many = min(_RANGE, size - first)
        found = b""

        def mine(data: Chunk) -> bytes:
            return bytes(data[start - first : start - first + length])

        def take(at: int, data: Chunk) -> None:
            nonlocal found
            found = mine(data)
            self._told(len(data))
            self._write(number, first, data)

        hashes = Units(
            first,
            first + many,
            unit=lambda at: many,
            is_right=lambda at, data: self._groups.is_list(number, group, mine(data)),
            take=take,
            size=size,
        )
        self._store().bring(name, hashes)
        return found

    def _write(self, number: int, at: int, data: Chunk) -> None:
        with suppress(OSError):  # what is not kept is fetched again
            os.pwrite(self._file(), data, self._first[number] + at)

    def _file(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = safe_files.open_own(self._path, os.O_RDWR | os.O_CREAT)
            return self._descriptor
