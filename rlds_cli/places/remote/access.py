"""How the blocks of a dataset at an address are fetched: connection and room."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import Settings
from rlds_cli.errors import InvalidArgument
from rlds_cli.homes import Home
from rlds_cli.places.remote import content, decoding, finding
from rlds_cli.places.remote.cache import TIMEOUT, BlockFiles
from rlds_cli.places.remote.content import Connection, Pinned, RemoteContent
from rlds_cli.places.remote.decoding import Encoded
from rlds_cli.places.remote.fetching import Take, TransferStats
from rlds_cli.places.remote.leases import Lease
from rlds_cli.places.remote.presence import BlockFile, Room
from rlds_cli.places.sources.addresses import Address
from rlds_cli.store import note_address
from rlds_cli.store.table import Reopened, Table

MEMORY = 64 << 20  # bytes of blocks that are not held and stay all the same, without a cache
_HINT = "rlds verify ID where it was pushed from"
CacheSize = int | str | None


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """How a dataset at an address is read, see `open_remote`."""

    cache: CacheSize = None
    timeout: float | None = None
    fill: bool = True


class Access:
    """Base of a store of either kind: the content, and its blocks, in the home or in memory.

    Attributes
    ----------
    root : Path or None
        Its directory in the home.
    name : str
        Of that directory. What was proved has one of its own.
    row_blocks : BlockFiles
        The files of rows as they lie at the address.
    is_proved : bool
        The address pins a fingerprint alone, which proves what is read.
    """

    def __init__(
        self,
        connection: Connection,
        pinned: Pinned,
        where: Settings,
        options: AccessOptions,
        stats: TransferStats,
        reopen: Callable[..., Table],
    ) -> None:
        self._reopen = reopen
        self.where, self.pinned, self.options, self.stats = where, pinned, options, stats
        self.connection, limit = connection, parse_size(options.cache)
        self.root: Path | None = None
        self.is_proved = connection.address.pin is not None and connection.address.index is None
        self.name = f"{pinned.name}{finding.PROVED}" if self.is_proved else pinned.name
        if limit == 0:
            self.room = Room(None, MEMORY)
            root = content.temporary_root()
            content.remove_with(self, root)
            safe_files.directory(root / content.DATASET, root)
            note_address(root / content.DATASET, str(connection.address))
        else:
            own = Home(where.home).remote
            self.root = root = own / self.name
            try:
                self.room = Room(own, limit)
                with self.room.locked():
                    self._lease = Lease(root)
                    finding.save(self._lease, pinned, connection.address)
            except OSError as e:
                error = disk.disk_error(e, root)
                error.hint = f"{error.hint}; cache=0 writes nothing" if error.hint else "cache=0 writes nothing"
                raise error from e
        self.content = RemoteContent(connection, pinned, root, stats, shared=finding.homes(where))
        self.path = self.content.path
        self.row_blocks: BlockFiles

    @property
    def address(self) -> Address:
        """The address."""
        return self.connection.address

    def blocks(self, paths: Sequence[str]) -> BlockFiles:
        """Return the files of rows by blocks."""
        of = self.content
        files = [BlockFile(path, of.file(path).size) for path in paths]

        def source(file: int, start: int, length: int, take: Take) -> None:
            of.read(files[file].path, start, length, take)

        self.row_blocks = BlockFiles(
            self.room,
            self.name,
            files,
            source,
            check=None if self.is_proved else lambda file, start, data: of.is_right(files[file].path, start, data),
            timeout=self._seconds,
            where=str(self.address),
            stats=self.stats,
            counts=False,
        )
        self.row_blocks.fills = self.options.fill
        return self.row_blocks

    def decoded(self, encoded: Mapping[str, Encoded], paths: Sequence[str], films: Sequence[str]) -> BlockFiles:
        """Return the rows of compressed arrays by blocks; ``paths`` are of files of rows, ``films`` those of videos."""
        of, name = self.content, f"{self.name}-rows"
        raw = self.blocks(paths)
        raw.stats = TransferStats()  # what waits for it counts
        sizes = {path: of.file(path).size for path in films}
        made = decoding.open_decoded(self.room, name, encoded, sizes, raw, timeout=raw.timeout, stats=self.stats)
        made.fills = self.options.fill
        return made

    @property
    def _seconds(self) -> float:
        """Seconds that a read waits while no block arrives."""
        return TIMEOUT if self.options.timeout is None else self.options.timeout

    def reopened(self, version_id: str) -> Reopened:
        """Return how to open the same version in another process."""
        index = self.pinned.index
        same = replace(self.address.unpinned, pin=index.fingerprint, index=None if self.is_proved else index.sha256)
        return self._reopen, (same, self.where.home, self.options, version_id)


def parse_size(cache: CacheSize) -> int | None:
    """Return the bytes of a size such as ``"200GiB"``, ``"1.5 GB"`` or a number of bytes; None for None.

    Raises
    ------
    InvalidArgument
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    units |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "k": 1 << 10, "m": 1 << 20}
    units |= {"g": 1 << 30, "t": 1 << 40}
    if cache is None or (isinstance(cache, int) and not isinstance(cache, bool) and cache >= 0):
        return cache
    if isinstance(cache, str):
        text = cache.strip().replace("_", "").replace(",", "").lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        try:
            size = float(number) * units[text[len(number) :].strip()]
            if math.isfinite(size) and size >= 0:
                return int(size)
        except (ValueError, KeyError):
            pass
    raise InvalidArgument(f"cache={cache!r} is not a size.", hint='"200GiB", a number of bytes, or 0 for no cache')


class RemoteAccess(Protocol):
    """How the blocks of a remote store are fetched: `Access`, or that of `remote.published`."""

    @property
    def address(self) -> Address:
        """The address."""
        ...

    name: str
    stats: TransferStats
    row_blocks: BlockFiles

    def reopened(self, version_id: str) -> Reopened:
        """Return how to open the same content in another process."""
        ...
