"""Read what was pushed to an address: its versions, the index of one, the hashes of its groups, and single files."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from rlds_cli.base import ids
from rlds_cli.base.files.hashing import short
from rlds_cli.errors import DamagedDataset, DatasetNotFound, RldsError, WrongFingerprint
from rlds_cli.places.remote import index as indexes
from rlds_cli.places.remote import versions
from rlds_cli.places.remote.blocks import GROUP, GroupHashes
from rlds_cli.places.remote.index import Index, Piece
from rlds_cli.places.remote.versions import Versions
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Document
from rlds_cli.places.sources.transfer import Units

_LONGEST_FILE = 64 << 20


class PushedDataset:
    """What was pushed to an address. Each method reads it anew, and checks what it reads.

    Attributes
    ----------
    objects : Objects
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def find_versions(self) -> tuple[Versions, Document] | None:
        """Return the versions and the document that names them; None if nothing was pushed there.

        Raises
        ------
        DamagedDataset, NewerFormat
            It is not such a document of this version.
        DownloadFailed
        """
        parsed = list[Versions]()
        where = f"{self.objects.address}/{Versions.NAME}"
        found = self.objects.read(
            Versions.NAME, longest=versions.LONGEST, check=lambda data: parsed.append(Versions.parse(data, where))
        )
        return None if found is None else (parsed[-1], found)

    def versions(self) -> tuple[Versions, Document]:
        """Return the versions and the document that names them; raises as `find_versions`, also if there are none."""
        found = self.find_versions()
        if found is None:
            raise self.nothing()
        return found

    def versions_until_named(self) -> Versions:
        """Return the versions until the one that the address names.

        Raises
        ------
        DatasetNotFound
            No dataset was pushed there, or no such version.
        DamagedDataset, NewerFormat, DownloadFailed
        """
        there = self.versions()[0]
        last = there.find(self.objects.address)
        if last is None:
            raise _not_there(there, self.objects.address)
        return replace(there, versions=there.versions[: there.versions.index(last) + 1])

    def index(self, sha256: str) -> Index:
        """Return an index by its sha256.

        Raises
        ------
        DamagedDataset
            It is missing, has another sha256, or is not an index.
        NewerFormat, DownloadFailed
        """
        name = f"indexes/{sha256}"
        return Index.parse(self._proved(name, sha256, indexes.LONGEST), f"{self.objects.address}/{name}")

    def find_index(self, there: Versions | None = None) -> Index | None:
        """Return the index of the version that the address names, the newest if it names none; None if none was pushed.

        ``there`` are the versions at the address, where they were read already.

        Raises
        ------
        DatasetNotFound
            The address holds other versions.
        WrongFingerprint
            No version has the content that the address pins.
        DamagedDataset, NewerFormat, DownloadFailed
        """
        objects, address = self.objects, self.objects.address
        if address.index is not None:
            if objects.size(f"indexes/{address.index}") is None:
                raise DatasetNotFound(
                    f"{address} no longer has the version that was pinned: it was removed there. Nothing was written.",
                    hint=f"rlds log {address} shows the versions at the address",
                )
            return self.index(address.index)
        if there is None:
            found = self.find_versions()
            if found is None:
                return None
            there = found[0]
        version = there.find(address)
        if version is None:
            raise _not_there(there, address)
        index = self.index(version.index)
        if (index.id, index.version, index.fingerprint) != (there.id, version.number, version.fingerprint):
            raise DamagedDataset(
                f"{address}/{Versions.NAME} says other things of version {version.number:,} than its index. "
                "Nothing was written.",
                hint=objects.push_again,
            )
        return index

    def named_index(self) -> Index:
        """Return the index of the version that the address names; raises as `find_index`, also if there is none."""
        found = self.find_index()
        if found is None:
            raise self.nothing()
        return found

    def nothing(self) -> DatasetNotFound:
        """Return the error for an address to which no dataset was pushed."""
        address = self.objects.address
        return DatasetNotFound(
            f"{address} has neither {Versions.NAME} nor the {Index.MANIFEST} of a dataset: "
            "no dataset was pushed there.",
            hint=_instead(str(address)),
        )

    def hashes(self, index: Index) -> bytes:
        """Return the hashes of the groups of all objects of an index, end to end.

        Raises
        ------
        DamagedDataset
            They are missing, or are not those of the index.
        DownloadFailed
        """
        return self._proved(index.groups_name, index.groups.sha256, indexes.MOST_HASHES)

    def groups(self, index: Index) -> GroupHashes:
        """Return the hashes of the groups of an index's objects; raises as `hashes`."""
        return group_hashes(index, self.hashes(index))

    def file(self, index: Index, hashes: GroupHashes, path: str) -> bytes:
        """Return the content of a small file of the dataset, checked by the hashes of groups.

        Raises
        ------
        DamagedDataset
            There is no such file, or it is not a small one.
        WrongHash, DownloadFailed
        """
        file = index.file(path)
        if file is None or file.size > _LONGEST_FILE:
            raise DamagedDataset(f"{self.objects.address} has no {path}, or none that can be read at once.")
        content = bytearray(file.size)
        for p in file.pieces:
            content[p.at : p.at + p.length] = self._piece(index, hashes, p)
        return bytes(content)

    def _piece(self, index: Index, hashes: GroupHashes, p: Piece) -> bytes:
        """Return the bytes of a piece, whose groups are read whole."""
        o, content = index.objects[p.object], bytearray()
        start, size = hashes.span(p.object, p.offset, p.length)
        groups = Units(
            start,
            start + size,
            unit=lambda at: GROUP,
            is_right=lambda at, data: hashes.is_group(p.object, at // GROUP, data),
            take=lambda at, data: content.extend(data),
            base=o.at,
            size=o.file_size,
        )
        self.objects.bring(o.name, groups)
        return bytes(content[p.offset - start : p.offset - start + p.length])

    def _proved(self, name: str, sha256: str, longest: int) -> bytes:
        """Return a file that is named by its content; raises DamagedDataset if it is missing or has other content."""
        objects = self.objects

        def error(what: str) -> DamagedDataset:
            return DamagedDataset(f"{objects.address}/{name} {what}. Nothing was written.", hint=objects.push_again)

        def check(data: bytes) -> None:
            if hashlib.sha256(data).hexdigest() != sha256:
                raise error("has other content than its name says")

        found = objects.read(name, longest=longest, check=check)
        if found is None:
            raise error("is missing")
        return found.data


def _not_there(there: Versions, address: Address) -> RldsError:
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
    return f"{known}{pushes}{files} --name local/NAME takes files of others"


def group_hashes(index: Index, hashes: bytes | memoryview) -> GroupHashes:
    """Return the hashes of the groups of an index's objects."""
    return GroupHashes(memoryview(hashes), (o.size for o in index.objects))
