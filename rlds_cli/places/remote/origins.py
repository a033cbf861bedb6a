"""Record the addresses that versions of a dataset came from, or were pushed to, in a small file of its home.

::

    <home>/origins/<family>+<name>.json     {"origins": [{"address", "fingerprint", "version", "version_id", "index",
                                            "pulled"}, ...]}, the latest first

A record holds for the content that it names, and says nothing of another dataset that has taken the name since. The
content of an ordinary dataset is known by its fingerprint, which its encoding does not change; that of a growing one by
the version id of a version (`Table.version_id`), since its fingerprint takes time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rlds_cli import homes
from rlds_cli.base import ids
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import InvalidId, NoPermission, RldsError
from rlds_cli.homes import Home
from rlds_cli.places.sources.addresses import Address
from rlds_cli.store import Manifest, StoredDataset, open_store

_DIRECTORY = "origins"
_MOST = 1000  # records of a dataset
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Origin:
    """An address, and the content that a dataset had when it came from there or was pushed."""

    address: str
    fingerprint: str
    version: int | None  # of a growing dataset
    version_id: str | None  # of that version
    index: str | None  # sha256 of the index there; None for a plain copy
    pulled: bool


class Origins:
    """The records of the dataset in a directory of a home; of another directory there are none.

    Attributes
    ----------
    directory : Path
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: Path | None = None
        with suppress(InvalidId, IndexError):
            place, id = Home(directory.parents[2]), ids.from_component(directory.parent.name, directory.name)
            if place.dataset(id) == directory:
                self._file = place.root / _DIRECTORY / f"{id.family}+{id.component}.json"

    @classmethod
    def find(cls, ref: StrPath, where: Settings) -> Path | None:
        """Return a dataset on this disk that came from an address, or was pushed to it, with the content that it pins.

        Of several, it is the one that came or was pushed last. None for a text that is not an address.
        """
        try:
            address = Address.parse(ref)
        except InvalidId:
            return None
        if address.scheme == "file" and homes.is_dataset(address.directory):
            return None
        for root in where.homes:
            for of in cls._in(Home(root)):
                for origin in of._read():
                    if origin.address != str(address) or not homes.is_dataset(of.directory):
                        continue
                    with suppress(RldsError):
                        right = address.tag is None and address.matches(origin.fingerprint) and of._is_about(origin)
                        if right and address.version in (None, open_store(of.directory, check=False).version):
                            return of.directory
        return None

    @classmethod
    def _in(cls, place: Home) -> Iterator[Self]:
        """Yield the records of all datasets of a home, the latest first."""
        written = {}
        for path in sorted((place.root / _DIRECTORY).glob("*.json")):
            with suppress(OSError):
                written[path] = path.stat().st_mtime_ns
        for path in sorted(written, key=lambda path: -written[path]):
            family, _, component = path.name.removesuffix(".json").partition("+")
            with suppress(InvalidId):
                yield cls(place.dataset(ids.from_component(family, component)))

    @property
    def latest(self) -> Origin | None:
        """The latest record, or None."""
        return next(iter(self._read()), None)

    def of_version(self, version_id: str | None = None) -> Origin | None:
        """Return the record about the content that the dataset has now.

        Parameters
        ----------
        version_id : str, optional
            Of the version of a growing dataset that it must be about; by default the newest.
        """
        return next((o for o in self._read() if self._is_about(o, version_id)), None)

    def of_content(self, fingerprint: str) -> Origin | None:
        """Return the record about a content of the dataset: that of any version."""
        return next((o for o in self._read() if o.fingerprint == fingerprint), None)

    def record(
        self,
        *,
        address: str,
        fingerprint: str,
        version: int | None,
        version_id: str | None,
        index: str | None,
        pulled: bool,
    ) -> None:
        """Write the record of a version, in the place of an earlier one; see `Origin`.

        A home that may not be written goes without.
        """
        if self._file is None:
            return
        made = Origin(address, fingerprint, version, version_id, index, pulled)
        others = [o for o in self._read() if (o.fingerprint, o.version_id) != (fingerprint, version_id)]
        with suppress(OSError, NoPermission):
            safe_files.directory(self._file.parent, self._file.parents[1])
            found = {"origins": [asdict(o) for o in (made, *others[: _MOST - 1])]}
            safe_files.replace_text(self._file, documents.dumps(found, self._file.name))

    def forget(self) -> None:
        """Remove the records, if there are some."""
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _read(self) -> list[Origin]:
        """Return the records, the latest first."""
        listed = None if self._file is None else (documents.load_own(self._file) or {}).get("origins")
        if not isinstance(listed, list):
            return []
        return [origin for v in listed if isinstance(v, dict) and (origin := _origin(v)) is not None]

    def _is_about(self, origin: Origin, version_id: str | None = None) -> bool:
        if StoredDataset(self.directory).grows:
            return (version_id or StoredDataset(self.directory).version_id) == origin.version_id
        return Manifest.read(self.directory).fingerprint == origin.fingerprint


def _origin(values: Mapping[str, Any]) -> Origin | None:
    address, fingerprint = values.get("address"), values.get("fingerprint")
    version, version_id, index = values.get("version"), values.get("version_id"), values.get("index")
    pulled = values.get("pulled")
    if not isinstance(address, str) or not isinstance(fingerprint, str) or not isinstance(pulled, bool):
        return None
    if not isinstance(version_id, str | None) or (version is not None and type(version) is not int):
        return None
    if index is not None and not (isinstance(index, str) and _SHA.fullmatch(index)):
        return None
    try:
        Address.parse(address)
    except InvalidId:
        return None
    return Origin(address, fingerprint, version, version_id, index, pulled)
