"""Open a dataset at an address: manifest and episode table are fetched, rows by blocks when they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidArgument, Offline
from rlds_cli.places.remote import finding, presence
from rlds_cli.places.remote.access import Access as Access
from rlds_cli.places.remote.access import AccessOptions as AccessOptions
from rlds_cli.places.remote.access import CacheSize as CacheSize
from rlds_cli.places.remote.access import RemoteAccess as RemoteAccess
from rlds_cli.places.remote.access import parse_size as parse_size
from rlds_cli.places.remote.cache import TransferStats
from rlds_cli.places.remote.content import Connection
from rlds_cli.places.remote.files import PushedFiles
from rlds_cli.places.remote.following import Follower
from rlds_cli.places.remote.published import Published
from rlds_cli.places.sources.addresses import Address
from rlds_cli.store import Store, commits, is_of_rows, manifest, open_store
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.segments import Layout
from rlds_cli.store.table import Table

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
    presence.check_system()
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
    found = _open_version(access)
    if access.is_proved:
        access.prove(found)
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


def _open_version(access: Access, follower: Follower | None = None) -> Store:
    """Open the version that is pinned."""
    files, of, index = PushedFiles(access), access.content, access.pinned.index
    if not index.grows:
        return open_store(files)
    of.need("zarr.json", commits.FILE)
    stored = Layout.of(access.path, manifest.read(of.path)).all
    rows = tuple(f"{a.directory.relative_to(access.path).as_posix()}/c/" for a in stored)
    paths = [f.path for f in index.stored if f.path != logs.DIGESTS]
    of.need(*(p for p in paths if p.endswith("/zarr.json") or not (p.startswith(rows) or is_of_rows(p))))
    store = open_store(files)
    if store.version != index.version:
        raise DamagedDataset(
            f"{access.address}: its index and its log of versions name different versions.",
            hint="rlds push ID sends it again",
        )
    files.elsewhere = _Versions(access, store.version, store.version_id, follower)
    return store


class _Versions:
    """The versions of a growing dataset at an address, of which one is open. It does not hold that one."""

    def __init__(self, access: Access, version: int, version_id: str, follower: Follower | None) -> None:
        self._of = access, version, version_id
        self._follower = follower or Follower(_Look(*self._of))

    def newest_number(self, version: int) -> int:
        """Return the number of the newest version; a later one than ``version`` is looked for in the background."""
        return self._follower.newest(version)

    def newest(self) -> Store | None:
        """Return what is at the address now; None for the version that is open."""
        return _Look(*self._of)(self._follower)

    def at(self, version: int) -> Store | None:
        """Return another version; raises DatasetNotFound, DownloadFailed and Offline."""
        opened = self._follower.opened
        if opened is not None and opened.version == version:
            return opened
        return _Look(*self._of).open(replace(self._of[0].address.unpinned, version=version), self._follower)


class _Look:
    """Opens other versions of a dataset at an address, of which one is known. It does not hold that one."""

    def __init__(self, access: Access, version: int, version_id: str) -> None:
        self._address, self._where, self._options = access.address.unpinned, access.where, access.options
        self._stats, self._index = access.stats, access.pinned.index.sha256
        self._version, self._version_id = version, version_id

    def __call__(self, follower: Follower) -> Store | None:
        """Return the newest version; see `open`."""
        return self.open(self._address, follower)

    def open(self, address: Address, follower: Follower) -> Store | None:
        """Return the version that an address names; None if it is the one that was opened last.

        Raises
        ------
        DamagedDataset
            Another dataset is at the address by now.
        DatasetNotFound, DownloadFailed, Offline
        """
        connection = Connection(address, self._where, self._options.timeout)
        pinned = finding.find(address, self._where, connection, self._stats)
        if pinned.index.sha256 == self._index:
            return None
        access = Access(connection, pinned, self._where, self._options, self._stats, _reopened)
        found = _open_version(access, follower) if pinned.index.grows else None
        if found is None or not self._has_grown_to(found, address):
            raise DamagedDataset(f"{address.unpinned} holds another dataset by now.", hint="open it again")
        connection.wait_longer()
        self._index = pinned.index.sha256
        return found

    def _has_grown_to(self, found: Store, address: Address) -> bool:
        """Return whether a version is a later one of the known dataset; an earlier one may be asked for by number."""
        if found.version < self._version:
            return address.version is not None
        return commits.at(found.path, self._version).version_id == self._version_id
