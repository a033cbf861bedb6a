"""Read the versions at an address, the index of one, the hashes of its groups of blocks, and single files of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from rlds_cli.base import ids
from rlds_cli.base.files.hashing import short
from rlds_cli.errors import DamagedDataset, DatasetNotFound, RldsError, WrongFingerprint
from rlds_cli.places.remote import index as indexes
from rlds_cli.places.remote import versions
from rlds_cli.places.remote.blocks import GROUP, GroupHashes
from rlds_cli.places.remote.index import Index
from rlds_cli.places.remote.versions import Versions
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Chunk, Document
from rlds_cli.places.sources.transfer import Units

_LONGEST_FILE = 64 << 20


def read_versions(objects: Objects) -> tuple[Versions, Document] | None:
    """Return the versions at an address and the document that names them; None if nothing was pushed there.

    Raises
    ------
    DamagedDataset, NewerFormat
        It is not such a document of this version.
    DownloadFailed
    """
    parsed = list[Versions]()
    where = f"{objects.address}/{versions.NAME}"
    found = objects.read(
        versions.NAME, longest=versions.LONGEST, check=lambda data: parsed.append(versions.parse(data, where))
    )
    return None if found is None else (parsed[-1], found)


def read_index(objects: Objects, sha256: str) -> Index:
    """Return an index by its sha256.

    Raises
    ------
    DamagedDataset
        It is missing, has another sha256, or is not an index.
    NewerFormat, DownloadFailed
    """
    name = f"indexes/{sha256}"
    return indexes.parse(_read_proved(objects, name, sha256, indexes.LONGEST), f"{objects.address}/{name}")


def _read_proved(objects: Objects, name: str, sha256: str, longest: int) -> bytes:
    """Return a file that is named by its content; raises DamagedDataset if it is missing or has other content."""

    def error(what: str) -> DamagedDataset:
        return DamagedDataset(f"{objects.address}/{name} {what}. Nothing was written.", hint=objects.push_again)

    def check(data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise error("has other content than its name says")

    found = objects.read(name, longest=longest, check=check)
    if found is None:
        raise error("is missing")
    return found.data


def index_at(objects: Objects, there: Versions | None = None) -> Index | None:
    """Return the index of the version that an address names, the newest if it names none; None if none was pushed.

    ``there`` are the versions at the address, where they were read already.

    Raises
    ------
    DatasetNotFound
        The address holds other versions.
    WrongFingerprint
        No version has the content that the address pins.
    DamagedDataset, NewerFormat, DownloadFailed
    """
    address = objects.address
    if address.index is not None:
        if objects.size(f"indexes/{address.index}") is None:
            raise DatasetNotFound(
                f"{address} no longer has the version that was pinned: it was removed there. Nothing was written.",
                hint=f"rlds log {address} shows the versions at the address",
            )
        return read_index(objects, address.index)
    if there is None:
        found = read_versions(objects)
        if found is None:
            return None
        there = found[0]
    version = there.find(address)
    if version is None:
        raise not_there(there, address)
    index = read_index(objects, version.index)
    if (index.id, index.version, index.fingerprint) != (there.id, version.number, version.fingerprint):
        raise DamagedDataset(
            f"{address}/{versions.NAME} says other things of version {version.number:,} than its index. "
            "Nothing was written.",
            hint=objects.push_again,
        )
    return index


def expect_index(objects: Objects) -> Index:
    """Return the index of the version that an address names; raises as `index_at`, also if there is none."""
    found = index_at(objects)
    if found is None:
        raise nothing_there(objects)
    return found


def nothing_there(objects: Objects) -> DatasetNotFound:
    """Return the error for an address to which no dataset was pushed."""
    return DatasetNotFound(
        f"{objects.address} has neither {versions.NAME} nor the {indexes.MANIFEST} of a dataset: "
        "no dataset was pushed there.",
        hint=_instead(str(objects.address)),
    )


def not_there(there: Versions, address: Address) -> RldsError:
    """Return the error for a version that is not at an address."""
    newest = there.newest
    if address.pin is not None and not any(address.matches(v.fingerprint) for v in there.versions):
        return WrongFingerprint(
            f"{address} has {short(newest.fingerprint)}, and {address.pin} was asked for. Nothing was written.",
            hint="without #rlds... the present content is taken",
        )
    if address.tag is not None:
        known = f"its tags are {', '.join(there.tags)}" if there.tags else "it has no tags"
        return DatasetNotFound(f"{address} has no tag {address.tag}. Nothing was written.", hint=known)
    return DatasetNotFound(
        f"{address} has version {newest.number:,}; version {address.version or newest.number:,} was asked for. "
        "Nothing was written.",
        hint=f"rlds log {address} shows the versions at the address",
    )


def check_version(address: Address, there: int) -> None:
    """Raise DatasetNotFound if an address names another version than the only one there, or a tag."""
    if address.tag is not None:
        raise DatasetNotFound(f"{address} is a copy of a dataset's files, which has no tags. Nothing was written.")
    if address.version not in (None, there):
        raise DatasetNotFound(
            f"{address} has version {there:,}; version {address.version:,} was asked for. Nothing was written.",
            hint=f"{address.unpinned}#v{there} names the version at the address",
        )


def _instead(address: str) -> str:
    lerobot = ids.lerobot_id(address)
    known = f"rlds download {lerobot} fetches a LeRobot dataset; " if lerobot else ""
    pushes = "" if address.startswith("http") else f"rlds push ID {address} pushes one; "
    remote = "://" in address and not address.startswith("file:")
    files = f"rlds download '{address.rstrip('/')}/*'" if remote else "rlds import PATH"
    return f"{known}{pushes}{files} --as local/NAME takes files of others"


def read_hashes(objects: Objects, index: Index) -> bytes:
    """Return the hashes of the groups of all objects of an index, end to end.

    Raises
    ------
    DamagedDataset
        They are missing, or are not those of the index.
    DownloadFailed
    """
    return _read_proved(objects, index.groups_name, index.groups.sha256, indexes.MOST_HASHES)


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
        There is no such file, or it is not a small one.
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
    o = index.objects[number]
    groups = Units(
        start,
        stop,
        unit=lambda at: GROUP,
        is_right=lambda at, data: hashes.is_group(number, at // GROUP, data),
        take=take,
        base=o.at,
        size=o.file_size,
    )
    objects.bring(o.name, groups)
