"""What a stranger lays at an address: an index that claims what it likes, with hashes that fit the bytes there.

`read` returns the files of a dataset that was pushed, `write` publishes files with the claims of any index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli.places import Hasher, Index, Versions
from rlds_cli.places.remote.index import IndexedFile, Object, Piece
from rlds_cli.places.remote.versions import PushedVersion


def index_of(address: Path) -> Index:
    """Return the index of the newest version at an address on this disk."""
    return Index.parse((address / _newest(address).name).read_bytes(), str(address))


def publish_versions(address: Path, index: Index, *, change: str = "", tags: Mapping[str, str]) -> None:
    """Make an index the only version at an address, whatever lies there under its name."""
    version = PushedVersion(index.version, index.sha256, len(index.to_bytes()), index.fingerprint, "", change, 0, 0)
    (address / Versions.NAME).unlink(missing_ok=True)
    (address / Versions.NAME).write_bytes(Versions(index.id, (version,), tags).to_bytes())


def publish(address: Path, index: bytes, *, claims: Index) -> None:
    """Make a text the index of the only version at an address, with id, number and fingerprint of ``claims``."""
    sha256 = hashlib.sha256(index).hexdigest()
    version = PushedVersion(claims.version, sha256, len(index), claims.fingerprint, "", "", 0, 0)
    files = {version.name: index, Versions.NAME: Versions(claims.id, (version,), {}).to_bytes()}
    for name, content in files.items():
        (address / name).parent.mkdir(parents=True, exist_ok=True)
        (address / name).unlink(missing_ok=True)
        (address / name).write_bytes(content)


def read(address: Path) -> dict[str, bytes]:
    """Return the files of a dataset at an address, by path."""
    index = index_of(address)
    stored = [(address / o.name).read_bytes() for o in index.objects]
    found = {}
    for f in index.files:
        content = bytearray(f.size)
        for p in f.pieces:
            content[p.at : p.at + p.length] = stored[p.object][p.offset : p.offset + p.length]
        found[f.path] = bytes(content)
    return found


def written(values: Mapping[str, Any], lines: str) -> bytes:
    """Return a text at an address of any values, as the program writes it: one member has a line for each item."""
    items = values.get(lines)
    if not isinstance(items, list):
        return json.dumps(values).encode()
    head = json.dumps({k: v for k, v in values.items() if k != lines}, indent=0)[:-2]
    body = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
    return f'{head},\n"{lines}": [\n{body}\n]\n}}\n'.encode()


def signed(values: Mapping[str, Any]) -> bytes:
    """Return the list of versions of these values, with its own sha256, so that the values are looked at."""
    text = written({**values, "sha256": "0" * 64}, "versions")
    return text.replace(b"0" * 64, hashlib.sha256(text).hexdigest().encode(), 1)


def values_of(address: Path) -> dict[str, Any]:
    """Return the index of the newest version at an address on this disk as a JSON value."""
    values: dict[str, Any] = json.loads((address / _newest(address).name).read_bytes())
    return values


def _newest(address: Path) -> PushedVersion:
    return Versions.parse((address / Versions.NAME).read_bytes(), str(address)).newest


def forge(address: Path, index: Mapping[str, Any]) -> None:
    """Make a JSON value the index of the only version at an address."""
    claims = index_of(address)
    if str(index.get("fingerprint")).startswith("rlds1:"):
        claims = replace(claims, fingerprint=index["fingerprint"])
    publish(address, written(index, "files"), claims=claims)


def write(address: Path, claims: Index, files: Mapping[str, bytes], more: Sequence[IndexedFile] = ()) -> Index:
    """Publish files as one object; id, fingerprint, version and manifest are those of an index.

    ``more`` are files whose pieces, of object 0, are taken as they are: the object is all files end to end, in order.
    """
    data, listed, at = b"".join(files.values()), [], 0
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        pieces = (Piece(0, 0, at, len(content), sha256),) if content else ()
        listed.append(IndexedFile(path, len(content), pieces))
        at += len(content)
    hasher = Hasher()
    hasher.update(data)
    made = hasher.result()
    sha256, name = made.object.sha256, hashlib.sha256(made.groups).hexdigest()
    index = replace(
        claims,
        objects=(made.object,),
        groups=Object(name, len(made.groups)),
        files=tuple(sorted((*listed, *more), key=lambda f: f.path)),
    )
    for path, content in (
        (f"objects/{sha256}", data),
        (f"blocks/{sha256}", made.blocks),
        (f"groups/{name}", made.groups),
    ):
        (address / path).parent.mkdir(parents=True, exist_ok=True)
        (address / path).unlink(missing_ok=True)
        (address / path).write_bytes(content)
    publish(address, index.to_bytes(), claims=index)
    return index
