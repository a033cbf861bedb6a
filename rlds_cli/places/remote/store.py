"""Open a dataset at an address: manifest and episode table are fetched, rows by blocks when they are read."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import DamagedDataset, DatasetNotFound, DownloadFailed, InvalidArgument, Offline, WrongHash
from rlds_cli.places.remote import finding, grounds
from rlds_cli.places.remote.access import Access, AccessOptions, CacheSize, parse_size
from rlds_cli.places.remote.content import Connection
from rlds_cli.places.remote.fetching import TransferStats
from rlds_cli.places.remote.files import PushedFiles
from rlds_cli.places.remote.proving import Proof
from rlds_cli.places.remote.published import Published
from rlds_cli.places.sources.addresses import Address
from rlds_cli.store import GrowingDataset, Store, open_store
from rlds_cli.store.table import Table

EVERY = 2.0  # seconds between two questions to an address
_PASSING = (DownloadFailed, Offline, WrongHash, DatasetNotFound)  # the next question may be answered
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def open_remote(
    ref: StrPath | Address,
    where: Settings,
    *,
    cache: CacheSize = None,
    timeout: float | None = None,
    fill: bool = True,
    prepare: Callable[[Address], Published] | None = None,
) -> Store:
    """Open the dataset at an address.

    Parameters
    ----------
    ref : str, path or Address
        See `Address.parse`. A fingerprint alone is proved; see `proving`.
    cache : int or str, optional
        Bytes (``"200GiB"``) that blocks in the home may take; without it, as many as the disk has. 0 keeps them in
        memory, and little more of them than is in use.
    timeout : float, optional
        Seconds to wait for a block.
    fill : bool
        Loaders that draw from anywhere have the rest of their fields fetched in the background.
    prepare : callable, optional
        Prepares a LeRobot dataset of the hub, which is opened where nothing was pushed; raises DatasetNotFound.

    Raises
    ------
    DatasetNotFound
        The address holds no dataset, or another version.
    WrongFingerprint
        It has other content than the address pins.
    WrongHash
        So it turns out when rows are read.
    DamagedDataset, NewerFormat, DownloadFailed, WrongHash, Offline, MissingPackage, NoSpace
    """
    grounds.check_system()
    address = ref if isinstance(ref, Address) else Address.parse(ref)
    parse_size(cache)
    if timeout is not None and not timeout > 0:
        raise InvalidArgument(f"timeout={timeout!r} is not a number of seconds.")
    options = AccessOptions(cache, timeout, fill)
    try:
        return _open_pushed(address, where, options)
    except (DatasetNotFound, Offline) as nothing:
        prepared = None if prepare is None else _prepared(address, where, prepare)
        if prepared is None:
            raise nothing from None
        return prepared.open(where, options)


def _open_pushed(address: Address, where: Settings, options: AccessOptions) -> Store:
    stats = TransferStats()
    connection = Connection(address, where, options.timeout)
    pinned = finding.find(address, where, connection, stats)
    access = Access(connection, pinned, where, options, stats, _reopened)
    files = PushedFiles(access)
    found = _open_version(files)
    if access.is_proved:
        files.blocks.prove(Proof(found, files.blocks, pinned.index.fingerprint).read)
    connection.wait_longer()
    return found


def _prepared(address: Address, where: Settings, prepare: Callable[[Address], Published]) -> Published | None:
    """Return a LeRobot dataset of the hub, prepared if it is not yet; None if there is none."""
    if address.scheme != "hf":
        return None
    here = Published.latest(address, where) if where.offline or _COMMIT.fullmatch(address.revision or "") else None
    if here is not None or where.offline:
        return here
    try:
        return prepare(address)
    except DatasetNotFound as e:
        if e.hint:
            raise
        return None


def _reopened(ref: Address, home: Path, how: AccessOptions, version_id: str) -> Table:
    from rlds_cli.base import settings

    store = open_remote(ref, settings.read(home), cache=how.cache, timeout=how.timeout, fill=how.fill)
    store.table.check_same(version_id, "pickled")
    return store.table


def _open_version(files: PushedFiles, first: Elsewhere | None = None) -> Store:
    """Open the version that is pinned."""
    access, of, index = files.access, files.access.content, files.access.pinned.index
    if not index.grows:
        return open_store(files)
    of.need("zarr.json", GrowingDataset.LOG)
    of.need(*GrowingDataset(of.path).needed_to_open(f.path for f in index.stored))
    store = open_store(files)
    if store.version != index.version:
        raise DamagedDataset(
            f"{access.address}: its index and its log of versions name different versions.",
            hint="rlds push ID sends it again",
        )
    files.elsewhere = Elsewhere(access, store.version, store.version_id, first)
    return store


class Elsewhere:
    """The versions of a growing dataset at an address, of which one is open. It does not hold that one.

    The newest is looked for at most every few seconds, in a thread, so that nobody waits for it. Versions that were
    found at one another share what was found last: it is kept by the object of the first.
    """

    def __init__(self, access: Access, version: int, version_id: str, first: Elsewhere | None) -> None:
        self._address, self._where, self._options = access.address.unpinned, access.where, access.options
        self._stats, self._index = access.stats, access.pinned.index.sha256
        self._version, self._version_id, self._first = version, version_id, first
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + EVERY
        self._problem: BaseException | None = None
        self._opened: Store | None = None  # the newest that was found

    def newest_number(self, version: int) -> int:
        """Return the number of the newest version that is open here, at least ``version``; look for a later one.

        Raises
        ------
        DamagedDataset
            The last look found that another dataset is at the address.
        """
        if self._first is not None:
            return self._first.newest_number(version)
        if self._problem is not None:
            raise self._problem
        if time.monotonic() >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = time.monotonic() + EVERY
            self._thread = threading.Thread(target=self._look, name="rlds-follow", daemon=True)
            self._thread.start()
        return version if self._opened is None else max(version, self._opened.version)

    def newest(self) -> Store | None:
        """Return what is at the address now; None for the version that is open."""
        return self._open(self._address, self._index)

    def at(self, version: int) -> Store | None:
        """Return another version; raises DatasetNotFound, DownloadFailed and Offline."""
        opened = (self._first or self)._opened
        if opened is not None and opened.version == version:
            return opened
        return self._open(replace(self._address, version=version), self._index)

    def _look(self) -> None:
        try:
            last = self._index if self._opened is None else self._opened.files.elsewhere._index
            self._opened = self._open(self._address, last) or self._opened
        except _PASSING:
            return
        except BaseException as e:  # is raised where it can be handled
            self._problem = e

    def _open(self, address: Address, known: str) -> Store | None:
        """Return the version that an address names; None if ``known`` is the sha256 of its index.

        Raises
        ------
        DamagedDataset
            Another dataset is at the address by now.
        DatasetNotFound, DownloadFailed, Offline
        """
        connection = Connection(address, self._where, self._options.timeout)
        pinned = finding.find(address, self._where, connection, self._stats)
        if pinned.index.sha256 == known:
            return None
        access = Access(connection, pinned, self._where, self._options, self._stats, _reopened)
        found = _open_version(PushedFiles(access), self._first or self) if pinned.index.grows else None
        if found is None or not self._has_grown_to(found, address):
            raise DamagedDataset(f"{address.unpinned} holds another dataset by now.", hint="open it again")
        connection.wait_longer()
        return found

    def _has_grown_to(self, found: Store, address: Address) -> bool:
        """Return whether a version is a later one of the known dataset; an earlier one may be asked for by number."""
        if found.version < self._version:
            return address.version is not None
        return found.table.version_id_of(self._version) == self._version_id
