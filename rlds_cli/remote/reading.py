"""Read the index of a pushed dataset, the hashes of its groups of blocks, and single files of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from rlds_cli import ids
from rlds_cli.errors import DamagedDataset, DatasetNotFound, WrongFingerprint
from rlds_cli.files.hashing import short
from rlds_cli.remote import index as indexes
from rlds_cli.remote.blocks import GROUP, GroupHashes
from rlds_cli.remote.index import Index
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.objects import Objects
from rlds_cli.sources.source import Chunk, Document

_LONGEST_FILE = 64 << 20


def read_index(objects: Objects) -> tuple[Index, Document] | None:
    """Return the index at an address and the document that it is in; None if there is none.

    Raises
    ------
    DamagedDataset, NewerFormat
        It is no index of this version.
    DownloadFailed
    """
    parsed = list[Index]()
    where = f"{objects.address}/{indexes.NAME}"
    found = objects.read(
        indexes.NAME, longest=indexes.LONGEST, check=lambda data: parsed.append(indexes.parse(data, where))
    )
    return None if found is None else (parsed[-1], found)


def expect_index(objects: Objects) -> tuple[Index, Document]:
    """Return the index at an address; raises as `read_index` and `expected`."""
    return expected(objects, read_index(objects))


def expected(objects: Objects, found: tuple[Index, Document] | None) -> tuple[Index, Document]:
    """Return the index that was found at an address, which must be of the version that the address names.

    Raises
    ------
    DatasetNotFound
        There is none, or it is of another version.
    WrongFingerprint
        It has other content.
    """
    if found is None:
        raise DatasetNotFound(
            f"{objects.address} has neither {indexes.NAME} nor the {indexes.MANIFEST} of a dataset: "
            "no dataset was pushed there.",
            hint=_instead(str(objects.address)),
        )
    check_version(objects.address, found[0].version)
    if not objects.address.matches(found[0].fingerprint):
        raise WrongFingerprint(
            f"{objects.address} has {short(found[0].fingerprint)}, and {objects.address.pin} was asked for. "
            "Nothing was written.",
            hint="without #rlds... the dataset that is there now is taken",
        )
    return found


def check_version(address: Address, number: int | None) -> None:
    """Raise DatasetNotFound if an address names another version than the one there; None is an ordinary dataset's."""
    there = 1 if number is None else number
    if address.version not in (None, there):
        raise DatasetNotFound(
            f"{address} has version {there:,}; version {address.version:,} was asked for. Nothing was written.",
            hint=f"{address.unpinned}#v{there} names the version that is there",
        )


def _instead(address: str) -> str:
    lerobot = ids.lerobot_id(address)
    known = f"rlds download {lerobot} fetches a LeRobot dataset; " if lerobot else ""
    pushes = "" if address.startswith("http") else f"rlds push ID {address} pushes one; "
    return f"{known}{pushes}rlds import PATH --as local/NAME takes files of others"


def read_hashes(objects: Objects, index: Index) -> bytes:
    """Return the hashes of the groups of all objects of an index, end to end.

    Raises
    ------
    DamagedDataset
        They are missing, or are not those of the index.
    DownloadFailed
    """

    def error(what: str) -> DamagedDataset:
        place = f"{objects.address}/{index.groups_name}"
        return DamagedDataset(f"{place} {what}. Nothing was written.", hint=objects.push_again)

    def check(data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != index.groups.sha256:
            raise error("has other content than its name says")

    found = objects.read(index.groups_name, longest=indexes.MOST_HASHES, check=check)
    if found is None:
        raise error("is missing")
    return found.data


def group_hashes(index: Index, hashes: bytes | memoryview) -> GroupHashes:
    """Return the hashes of the groups of an index's objects."""
    return GroupHashes(memoryview(hashes), (o.size for o in index.objects))


def read_groups(objects: Objects, index: Index) -> GroupHashes:
    """Read the hashes of the groups of an index's objects; raises as `read_hashes`."""
    return group_hashes(index, read_hashes(objects, index))


def read_file(objects: Objects, index: Index, hashes: GroupHashes, path: str) -> bytes:
    """Return the content of a small file of the dataset, checked.

    Raises
    ------
    DamagedDataset
        There is no such file, or it is no small one.
    WrongHash, DownloadFailed
    """
    file = index.file(path)
    if file is None or file.size > _LONGEST_FILE:
        raise DamagedDataset(f"{objects.address} has no {path}, or none that can be read at once.")
    content = bytearray(file.size)
    for p in file.pieces:
        content[p.at : p.at + p.length] = read_span(objects, index, hashes, p.object, p.offset, p.length)
    return bytes(content)


def read_span(objects: Objects, index: Index, hashes: GroupHashes, number: int, offset: int, length: int) -> bytes:
    """Return bytes [offset, offset + length) of an object, checked by its groups; raises WrongHash, DownloadFailed."""
    start, size = hashes.span(number, offset, length)
    content = bytearray()
    fetch_groups(objects, index, hashes, number, start, start + size, lambda at, data: content.extend(data))
    return bytes(content[offset - start : offset - start + length])


def fetch_groups(
    objects: Objects,
    index: Index,
    hashes: GroupHashes,
    number: int,
    start: int,
    stop: int,
    take: Callable[[int, Chunk], object],
) -> None:
    """Give whole groups of an object to ``take`` with their places, checked; raises WrongHash, DownloadFailed."""
    objects.fetch_checked(
        index.objects[number].name,
        start,
        stop,
        unit=lambda at: GROUP,
        is_right=lambda at, data: hashes.is_group(number, at // GROUP, data),
        take=take,
    )
