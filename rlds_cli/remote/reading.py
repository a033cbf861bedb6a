"""Read the index of a pushed dataset, the hashes of its groups of blocks, and single files of it."""

from __future__ import annotations

import hashlib

from rlds_cli import ids
from rlds_cli.errors import DamagedDataset, DatasetNotFound, WrongFingerprint, WrongHash
from rlds_cli.files.hashing import short
from rlds_cli.remote import index as indexes
from rlds_cli.remote.blocks import GROUP, GroupHashes
from rlds_cli.remote.index import Index
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.objects import Objects
from rlds_cli.sources.source import Document

ATTEMPTS = 3  # to get bytes that have the hash of the index
_LONGEST_FILE = 64 << 20


def read_index(objects: Objects) -> tuple[Index, Document] | None:
    """Return the index at an address and the document that it is in; None if there is none.

    Raises
    ------
    DamagedDataset, NewerFormat
        It is no index of this version.
    DownloadFailed
    """
    attempt = 0
    while True:
        found = objects.read(indexes.NAME, longest=indexes.LONGEST)
        if found is None:
            return None
        try:
            return indexes.parse(found.data, f"{objects.address}/{indexes.NAME}"), found
        except DamagedDataset:  # on the way, or at its place
            attempt += 1
            if attempt == ATTEMPTS:
                raise


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
    for _ in range(ATTEMPTS):
        found = objects.read(index.groups_name, longest=indexes.MOST_HASHES)
        if found is None:
            break
        if hashlib.sha256(found.data).hexdigest() == index.groups.sha256:
            return found.data
    what = "is missing" if found is None else "has other content than its name says"
    raise DamagedDataset(
        f"{objects.address}/{index.groups_name} {what}. Nothing was written.", hint=push_again(objects)
    )


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
    for _ in range(ATTEMPTS):
        data = objects.read_range(index.objects[number].name, start, size)
        groups = [data[at : at + GROUP] for at in range(0, size, GROUP)]
        if all(hashes.is_group(number, start // GROUP + k, group) for k, group in enumerate(groups)):
            return data[offset - start : offset - start + length]
    raise wrong_bytes(objects, index.objects[number].name, start, size)


def wrong_bytes(objects: Objects, name: str, start: int, length: int) -> WrongHash:
    """Return the error for a range of an object that the store sends with other bytes."""
    return WrongHash(
        f"Bytes {start:,}-{start + length - 1:,} of {str(objects.address).rstrip('/')}/{name} do not have the sha256 "
        f"that the index names, in {ATTEMPTS} attempts. They are not used.",
        hint=push_again(objects),
    )


def push_again(objects: Objects) -> str:
    """Return the hint for a store with damaged objects."""
    if objects.address.scheme in ("http", "https"):
        return "whoever pushed it can remove the damaged object there, and push again"
    return f"remove that object, and rlds push ID {objects.address} sends it again"
