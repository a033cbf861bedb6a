"""List the datasets at an address: one that was pushed there, or those in directories below."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from rlds_cli.base.settings import Settings
from rlds_cli.errors import DatasetNotFound, RldsError
from rlds_cli.places.remote.fetching import TransferStats
from rlds_cli.places.remote.finding import read_there
from rlds_cli.places.remote.plain import Plain, measure
from rlds_cli.places.remote.reading import PushedDataset
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.opening import open_objects

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Listed:
    """A dataset at an address, as its index says; ``size`` in bytes, ``tags`` with their versions: ``icra=v3``."""

    address: str
    id: str
    size: int
    fingerprint: str
    version: int
    versions: int = 1
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Datasets at an address, and the bytes and requests that it took to list them."""

    address: str
    datasets: tuple[Listed, ...]
    fetched: int
    requests: int


def datasets_at(address: Address, where: Settings) -> Listing:
    """List the dataset at an address, else those in the directories directly below it.

    Raises
    ------
    DatasetNotFound
        There is none. Web servers and the hub cannot be listed.
    DownloadFailed, Offline
    """
    with open_objects(address, where) as objects:
        own, size = _listed(objects)
    if own is not None:
        return Listing(str(address), (own,), size, 1)
    below = replace(address.unpinned, path=f"{address.path}/_" if address.path else "_")
    with open_objects(below, where) as objects:
        places = list(objects.siblings())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(_tried, places))
    datasets = tuple(listed for listed, _ in found if listed is not None)
    if not datasets:
        raise DatasetNotFound(
            f"No dataset is at {address}, nor in a directory below it that can be listed.",
            hint="web servers cannot be listed: give the address of a dataset"
            if address.scheme in ("http", "https")
            else f"rlds push ID {address} pushes one",
        )
    return Listing(str(address), datasets, size + sum(n for _, n in found), 1 + len(found))


def _tried(objects: Objects) -> tuple[Listed | None, int]:
    with suppress(RldsError):
        return _listed(objects)
    return None, 0


def _listed(objects: Objects) -> tuple[Listed | None, int]:
    stats, known = TransferStats(), PushedDataset(objects).find_versions()
    try:
        there = read_there(objects, stats, known and known[0])
    except DatasetNotFound:
        return None, 0
    size = measure(objects, there)[1] if isinstance(there, Plain) else there.size
    found = Listed(str(objects.address), there.id, size, there.fingerprint, there.version)
    if known is not None:
        numbers = {v.index: v.number for v in known[0].versions}
        tags = tuple(f"{tag}=v{numbers[index]}" for tag, index in known[0].tags.items() if index in numbers)
        found = replace(found, versions=len(known[0].versions), tags=tags)
    return found, stats.fetched
