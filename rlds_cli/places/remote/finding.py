"""Find the content of an address: what it holds now, or what is cached of it."""

from __future__ import annotations

import hashlib
import mmap
import os
from contextlib import suppress
from pathlib import Path

from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DamagedDataset, DatasetNotFound, Offline, RldsError
from rlds_cli.homes import Home
from rlds_cli.places.remote import leases
from rlds_cli.places.remote.content import DATASET, INDEX, Connection, Pinned
from rlds_cli.places.remote.fetching import TransferStats
from rlds_cli.places.remote.index import Index
from rlds_cli.places.remote.leases import Lease
from rlds_cli.places.remote.plain import Plain, read_plain
from rlds_cli.places.remote.reading import PushedDataset
from rlds_cli.places.remote.versions import Versions
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.store import note_address

HASHES, ADDRESSES, BOOT = "hashes", "addresses.json", "boot"
PROVED = "-proved"  # in the name of a directory: its blocks were proved by a fingerprint
_MOST_ADDRESSES = 20  # that are kept


def find(address: Address, where: Settings, connection: Connection, stats: TransferStats) -> Pinned:
    """Return the content of an address: cached pinned content without a request, else what the address holds now.

    Raises
    ------
    DatasetNotFound
        Nothing was pushed there; a plain copy of a dataset can be downloaded only.
    WrongFingerprint, DamagedDataset, NewerFormat, DownloadFailed
    Offline
        The network may not be used, and nothing of it is cached.
    """
    whole = address.index is not None or (address.pin is not None and len(address.pin.partition(":")[2]) == 64)
    offline = where.offline and address.scheme != "file"
    if (whole or offline) and address.tag is None:
        for root in seen(where, address):
            if address.index is None and not safe_files.is_own(root):
                continue  # another user's index may claim any fingerprint
            with suppress(OSError, RldsError):
                found = load(root)
                right = address.matches(found.index.fingerprint) and address.version in (None, found.index.version)
                if right and address.index in (None, found.index.sha256):
                    return found
    if offline:
        raise Offline(
            f"{address} is on the network, which is off (RLDS_OFFLINE or --offline), and nothing of it is cached.",
            hint="open it once with the network",
        )
    objects = connection()
    index = read_there(objects, stats)
    if isinstance(index, Plain):
        mounted = address if address.scheme == "file" else "DIR, where it is mounted"
        pushes = "" if address.scheme in ("http", "https") else f"; rlds push ID {address}, where it was copied from"
        raise DatasetNotFound(
            f"{address} is a copy of a dataset's files without an index: it can be downloaded, not read in place.",
            hint=f"rlds download {address} --name local/NAME; rlds index {mounted}{pushes}",
        )
    for root in homes(where):
        with suppress(OSError, RldsError):
            known = load(root / Pinned(index, b"").name)
            if known.index == index:
                return known
    hashes = PushedDataset(objects).hashes(index)
    stats.add(requests=1, fetched=len(hashes))
    return Pinned(index, hashes)


def read_there(objects: Objects, stats: TransferStats, versions: Versions | None = None) -> Index | Plain:
    """Return the index at an address, or the plain copy of a dataset that it holds instead; raises as `find`.

    ``versions`` are those at the address, where they were read already.
    """
    index = PushedDataset(objects).find_index(versions)
    if index is None:
        plain = read_plain(objects)
        if plain is None:
            raise PushedDataset(objects).nothing()
        stats.add(requests=1, fetched=len(plain.content))
        return plain
    stats.add(requests=2, fetched=len(index.to_bytes()))
    return index


def homes(where: Settings) -> list[Path]:
    """Return the directories of remote datasets in all homes, the user's own first."""
    return [top for root in where.homes for top in Home(root).remotes()]


def seen(where: Settings, address: Address | None = None) -> list[Path]:
    """Return the directories of remote datasets on this disk; only those that were seen at an address, if given."""
    found = []
    for top in homes(where):
        with suppress(OSError):
            there = [root for root in sorted(leases.datasets(top)) if (root / INDEX).exists()]
            found += [root for root in there if address is None or str(address) in addresses_of(root)]
    return sorted(found, key=lambda root: -_seen_at(root))


def _seen_at(root: Path) -> float:
    """Return when a remote dataset was seen last; 0 for one that is gone meanwhile."""
    try:
        return (root / ADDRESSES).stat().st_mtime
    except OSError:
        return 0.0


def addresses_of(root: Path) -> list[str]:
    """Return the addresses at which a remote dataset was seen, the latest last."""
    said = documents.load_own(root / ADDRESSES) or {}
    found = said.get("addresses")
    return [a for a in found if isinstance(a, str)] if isinstance(found, list) else []


def load(root: Path) -> Pinned:
    """Read the index and the hashes of a remote dataset on this disk; raises OSError, DamagedDataset."""
    with safe_files.reading(root / INDEX) as file:
        index = Index.parse(file.read(), str(root / INDEX))
    with safe_files.reading(root / HASHES) as file:
        size = os.fstat(file.fileno()).st_size
        mapped = size and safe_files.is_own(root / HASHES)  # another user may change the file later
        hashes = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if mapped else file.read())
    if hashlib.sha256(hashes).hexdigest() != index.groups.sha256:
        raise DamagedDataset(f"{root / HASHES} is not what the index says.")
    found = Pinned(index, hashes)
    if found.name != root.name.removesuffix(PROVED):
        raise DamagedDataset(f"{root / INDEX} is another index than {root.name} was made for.")
    return found


def save(lease: Lease, pinned: Pinned, address: Address) -> None:
    """Write the index, the hashes and the address of a remote dataset into its directory.

    It is done under the exclusive lock of the room. Raises OSError, DamagedDataset.
    """
    root, known = lease.directory, False
    with suppress(OSError, RldsError):
        known = load(root).index == pinned.index
    if not known:
        for name, data in ((HASHES, pinned.hashes), (INDEX, pinned.index.to_bytes())):
            with safe_files.replacing(root / name) as file:
                file.write(data)
    started = disk.boot_id()
    if not (root / BOOT).exists() or (root / BOOT).read_bytes() != started:
        lease.check_only()
        trees.discard(root / DATASET)  # what was written last may be lost since
        safe_files.directory(root / DATASET, root)
        with safe_files.replacing(root / BOOT) as file:
            file.write(started)
    before = addresses_of(root)
    if before[-1:] != [str(address)]:
        others = [a for a in before if a != str(address)][-_MOST_ADDRESSES:]
        documents.save_own(root / ADDRESSES, {"addresses": [*others, str(address)]})
    safe_files.directory(root / DATASET, root)
    note_address(root / DATASET, str(address))
