"""LeRobot datasets as the hub has them: rows on this machine, videos read by ranges where they are published.

::

    <home>/remote/<name>/published.json    the address, with its commit, and where the dataset is
    <home>/remote/<name>/datasets/         the dataset as a download would make it; of its videos, the tables alone
    <home>/remote/<name>/rows/             bytes of videos, by blocks of 4 KiB: see `presence`

`rlds_cli.published.prepare` makes them. The commit does not change, so bytes that arrived stay right. No hash of a
part of a video is published: only a whole download proves its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.files.hashing import short
from rlds_cli.base.files.locks import file_lock
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DamagedDataset, DatasetNotFound, WrongFingerprint
from rlds_cli.homes import Home
from rlds_cli.places.remote import grounds, leases
from rlds_cli.places.remote.access import MEMORY, AccessOptions, parse_size
from rlds_cli.places.remote.cache import TIMEOUT, BlockFiles
from rlds_cli.places.remote.content import Connection
from rlds_cli.places.remote.fetching import Source, Take, TransferStats
from rlds_cli.places.remote.files import FetchedFiles
from rlds_cli.places.remote.leases import Lease, RemoteDirectory
from rlds_cli.places.remote.presence import BlockFile, Room
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.transfer import Stream
from rlds_cli.store import Files, Store, open_store, read_sources
from rlds_cli.store.blocks import BytePlace
from rlds_cli.store.columns import Column
from rlds_cli.store.table import Reopened, Table

RECORD = "published.json"
_BLOCK = 1 << 12  # about what a group of pictures of a small video takes


@dataclass(frozen=True, slots=True)
class Published:
    """A prepared dataset: the address with its commit, and the directory of the dataset.

    ``lease`` keeps it; None where nothing can be written, and so nothing is removed.
    """

    address: Address
    dataset: Path
    lease: Lease | None = field(repr=False, compare=False)

    @classmethod
    def prepared(cls, address: Address, where: Settings, make: Callable[[Home, Path], Path]) -> Self:
        """Return the prepared dataset of an address with its commit, which one process makes if it is not here.

        ``make`` is given the home that the dataset gets, and a directory for what it fetches, which is kept until the
        dataset is made. It returns the directory of the dataset.
        """
        root = _place_of(address, where)
        with leases.lease(root), file_lock(RemoteDirectory(root).lock):
            found = cls._load(root, address)
            if found is None:
                archive = root / "archive"
                _save(root, address, None)
                _save(root, address, make(Home(root), archive))
                trees.discard(archive)
                found = cls._load(root, address)
                assert found is not None
        return found

    @classmethod
    def latest(cls, address: Address, where: Settings) -> Self | None:
        """Return what was prepared last of an address, of any commit that it does not rule out; None if nothing was."""
        found = list[tuple[float, Self]]()
        for record in Home(where.home).remote.glob(f"published-*/{RECORD}"):
            with suppress(OSError):
                said = str((documents.load_own(record) or {}).get("address"))
                if said.rpartition("@")[0] == str(replace(address.unpinned, revision=None)):
                    here = cls._load(record.parent, replace(address, revision=said.rpartition("@")[2]))
                    if here is not None and address.revision in (None, here.address.revision):
                        found.append((record.stat().st_mtime, here))
        return max(found, key=lambda x: x[0])[1] if found else None

    @classmethod
    def _load(cls, root: Path, address: Address) -> Self | None:
        """Return what was prepared in a directory of this user, or None."""
        if not safe_files.is_own(root):
            return None
        lease = None
        with suppress(OSError):
            lease = leases.lease(root)
        said = documents.load_own(root / RECORD) or {}
        dataset = said.get("dataset")
        if said.get("address") != str(address.unpinned) or not isinstance(dataset, str):
            return None
        found = root / dataset
        return cls(address, found, lease) if found.is_relative_to(root) and (found / "zarr.json").exists() else None

    def open(self, where: Settings, options: AccessOptions) -> Store:
        """Open the dataset.

        Raises
        ------
        DatasetNotFound
            The address names a version: only pushed datasets have some.
        WrongFingerprint
            It has other content than the address pins.
        DamagedDataset, NoSpace
        """
        grounds.check_system()
        address = self.address
        if address.version is not None or address.tag is not None:
            raise DatasetNotFound(
                f"{address} holds a LeRobot dataset, which has no versions.", hint=f"{address.unpinned}"
            )
        store = open_store(PublishedFiles(PublishedAccess(self, where, options)))
        if not address.matches(store.manifest.fingerprint):
            raise WrongFingerprint(
                f"{address} has {short(store.manifest.fingerprint)}, and {address.pin} was asked for."
            )
        return store


def _place_of(address: Address, where: Settings) -> Path:
    """Return the directory of a published dataset in the home, for an address with its commit."""
    return Home(where.home).remote / f"published-{hashlib.sha256(str(address.unpinned).encode()).hexdigest()[:32]}"


def _save(root: Path, address: Address, dataset: Path | None) -> None:
    """Note the dataset of an address; None while it is being made."""
    path = None if dataset is None else dataset.relative_to(root).as_posix()
    documents.save_own(root / RECORD, {"address": str(address.unpinned), "dataset": path})


class PublishedAccess:
    """How the videos of a published dataset are fetched.

    Attributes
    ----------
    name : str
        Of the directory in the home.
    stats : TransferStats
    row_blocks : BlockFiles
        The bytes of videos.
    """

    def __init__(self, found: Published, where: Settings, options: AccessOptions) -> None:
        self.found, self.where, self.options, self.stats = found, where, options, TransferStats()
        self.connection = Connection(found.address, where, options.timeout)
        self.connection.wait_longer()
        root, limit = _place_of(found.address, where), parse_size(options.cache)
        self.name = root.name
        self.room = Room(None, MEMORY) if limit == 0 else Room(root.parent, limit)
        self.row_blocks: BlockFiles

    @property
    def address(self) -> Address:
        """The address, with its commit."""
        return self.found.address

    def blocks(self, films: Sequence[tuple[BlockFile, _Films]]) -> BlockFiles:
        """Return the bytes of the videos of each field by blocks."""
        timeout = TIMEOUT if self.options.timeout is None else self.options.timeout
        self.row_blocks = BlockFiles(
            *(self.room, self.name, [file for file, _ in films], _source(self.connection, [of for _, of in films])),
            exact=True,
            timeout=timeout,
            where=str(self.address),
            stats=self.stats,
        )
        self.row_blocks.fills = False  # they are read where they are, and may be more than the disk holds
        return self.row_blocks

    def reopened(self, version_id: str) -> Reopened:
        """Return how to open the same dataset in another process, without a request."""
        return _reopened, (self.address, self.where.home, self.options, version_id)


def _reopened(address: Address, home: Path, options: AccessOptions, version_id: str) -> Table:
    from rlds_cli.base import settings

    where = settings.read(home)
    found = Published._load(_place_of(address, where), address)
    if found is None:
        raise DatasetNotFound(f"What was prepared of {address} is not in {home} any more.", hint="open it again")
    table = found.open(where, options).table
    table.check_same(version_id, "pickled")
    return table


@dataclass(frozen=True, slots=True)
class _Films:
    """The videos of one field, end to end: first byte of each [videos + 1], and their files at the address."""

    edges: Array
    names: tuple[str, ...]


def _source(connection: Connection, films: Sequence[_Films]) -> Source:
    def read(file: int, start: int, length: int, take: Take) -> None:
        of, at, end = films[file], start, start + length
        while at < end:
            k = int(np.searchsorted(of.edges, at, "right")) - 1
            first, behind = of.edges[k : k + 2].tolist()
            stop = min(end, behind)
            connection().bring(of.names[k], Stream(at - first, stop - first, take, size=behind - first))
            at = stop

    return read


class PublishedFiles(FetchedFiles):
    """The files of a LeRobot dataset whose rows are on this machine, and whose videos are read where they are."""

    def __init__(self, access: PublishedAccess) -> None:
        super().__init__(access.found.dataset, access)
        self._access = access

    def admit(self, columns: Iterable[Column], *, check: bool) -> None:
        """Refuse rows of other sizes than the version says; set up the blocks of videos."""
        known = list(columns)
        self._check_sizes(known)
        self.blocks = self._access.blocks([self._films(c) for c in known if c.part == "films"])

    def _films(self, c: Column) -> tuple[BlockFile, _Films]:
        spans, hashes = self._table_of_films(c, "spans"), self._table_of_films(c, "sha256")
        files = {s["sha256"]: str(s["file"]) for s in read_sources(self.path / "sources")}
        try:
            names = tuple(files[bytes(h).hex()] for h in hashes)
        except KeyError as e:
            raise DamagedDataset(f"{self.path}: a video of {c.field} is of no file.", hint="rlds gc --remote") from e
        file = BlockFile(c.file(0).as_posix(), int(spans[-1, 1]) if len(spans) else 0, _BLOCK)
        return file, _Films(np.append(spans[:, 0], file.size), names)

    def mapped(self, c: Column, keep: object = None) -> Array:
        """Return a column as it is mapped; of videos, bytes that are not held are anything."""
        if c.part == "films":
            return self.blocks.mapped(self.blocks.number(c.file(0)))
        return Files.array(self, c, keep)

    def place(self, c: Column) -> BytePlace | None:
        """Return where the bytes of videos lie in `blocks`; None for everything else, which is on this disk."""
        return super().place(c) if c.part == "films" else None
