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
from typing import Any

from rlds_cli import home
from rlds_cli.base import ids
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import InvalidId, NoPermission, RldsError
from rlds_cli.home import Home
from rlds_cli.places.sources.addresses import Address
from rlds_cli.store import manifest
from rlds_cli.store.growing.opening import is_growing, open_store, version_id_of

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


def record(place: Home, id: DatasetId, origin: Origin) -> None:
    """Write the record of a version, in the place of an earlier one; a home that may not be written goes without."""
    others = [o for o in _of(place, id) if (o.fingerprint, o.version_id) != (origin.fingerprint, origin.version_id)]
    with suppress(OSError, NoPermission):
        path = _path(place, id)
        safe_files.directory(path.parent, place.root)
        found = {"origins": [asdict(o) for o in (origin, *others[: _MOST - 1])]}
        safe_files.replace_text(path, documents.dumps(found, path.name))


def of(place: Home, id: DatasetId) -> Origin | None:
    """Return the latest record of a dataset, or None."""
    return next(iter(_of(place, id)), None)


def _of(place: Home, id: DatasetId) -> list[Origin]:
    """Return the records of a dataset, the latest first."""
    listed = (documents.load_own(_path(place, id)) or {}).get("origins")
    values = [v for v in listed if isinstance(v, dict)] if isinstance(listed, list) else []
    return [origin for v in values if (origin := _origin(v)) is not None]


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


def of_dataset(path: Path, version_id: str | None = None) -> Origin | None:
    """Return the record of the dataset in a directory of a home, if it is about its content.

    Parameters
    ----------
    version_id : str, optional
        Of the version of a growing dataset that it must be about; by default the newest.
    """
    return next((o for o in _recorded(path) if _is_about(o, path, version_id)), None)


def of_content(path: Path, fingerprint: str) -> Origin | None:
    """Return the record of the dataset in a directory of a home, if it is about this content: that of any version."""
    return next((o for o in _recorded(path) if o.fingerprint == fingerprint), None)


def _recorded(path: Path) -> list[Origin]:
    try:
        return _of(Home(path.parents[2]), ids.from_component(path.parent.name, path.name))
    except (InvalidId, IndexError):
        return []


def _is_about(origin: Origin, path: Path, version_id: str | None = None) -> bool:
    if is_growing(path):
        return (version_id or version_id_of(path)) == origin.version_id
    return manifest.read(path).fingerprint == origin.fingerprint


def forget(place: Home, id: DatasetId) -> None:
    """Remove the records of a dataset, if there are some."""
    with suppress(OSError):
        _path(place, id).unlink(missing_ok=True)


def find(ref: StrPath, where: Settings) -> Path | None:
    """Return a dataset on this disk that came from an address, or was pushed to it, with the content that it pins.

    Of several, it is the one that came or was pushed last. None for a text that is not an address.
    """
    try:
        address = Address.parse(ref)
    except InvalidId:
        return None
    if address.scheme == "file" and home.is_dataset(address.directory):
        return None
    for root in where.homes:
        for id, origin in _all(Home(root)):
            path = Home(root).dataset(id)
            if origin.address != str(address) or not home.is_dataset(path):
                continue
            with suppress(RldsError):
                right = address.tag is None and address.matches(origin.fingerprint) and _is_about(origin, path)
                if right and address.version in (None, open_store(path, check=False).version):
                    return path
    return None


def _all(place: Home) -> Iterator[tuple[DatasetId, Origin]]:
    """Yield all records of a home, the latest first."""
    written = {}
    for path in sorted((place.root / _DIRECTORY).glob("*.json")):
        with suppress(OSError):
            written[path] = path.stat().st_mtime_ns
    for path in sorted(written, key=lambda path: -written[path]):
        family, _, component = path.name.removesuffix(".json").partition("+")
        with suppress(InvalidId):
            id = ids.from_component(family, component)
            yield from ((id, found) for found in _of(place, id))


def _path(place: Home, id: DatasetId) -> Path:
    return place.root / _DIRECTORY / f"{id.family}+{id.component}.json"
