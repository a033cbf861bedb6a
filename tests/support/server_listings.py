"""Listings as their hosts give them: the hub's tree call, a bucket's JSON (GCS) and XML (S3)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import google_crc32c
from server_pages import Listing


@dataclass
class Repository:
    server_url: str
    repository: str
    files: Mapping[str, bytes]
    lfs: set[str]
    page_size: int
    recursive: bool
    subpaths: bool

    def entries(self, below: str, recursive: bool) -> list[dict[str, Any]] | None:
        """The answer to a tree call; None where there is no such directory."""
        prefix = f"{below}/" if below and self.subpaths else ""
        inside = [f for f in self.files if f.startswith(prefix)]
        if not inside:
            return None
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(inside):
            parts = path[len(prefix) :].split("/")
            for k in range(1, len(parts)):
                folder = prefix + "/".join(parts[:k])
                found.setdefault(folder, {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
                if not (recursive and self.recursive):
                    break
            else:
                found[path] = self._file(path)
        return list(found.values())

    def _file(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "oid": blob, "size": len(content), "path": path}
        if path in self.lfs:
            oid = hashlib.sha256(content).hexdigest()
            entry |= {"oid": "f" * 40, "lfs": {"oid": oid, "size": len(content), "pointerSize": 130}}
        return entry


@dataclass
class Tree(Listing):
    """The tree call of a repository at one revision."""

    listing: Repository | None = None
    root: str = ""
    commit: str | None = None

    def answer(self, below: str, query: Mapping[str, list[str]]) -> tuple[bytes, dict[str, str]] | None:
        assert self.listing
        entries = self.listing.entries(below, query.get("recursive") == ["true"])
        if entries is None:
            return None
        start, size = int(query.get("cursor", ["0"])[0]), self.listing.page_size
        headers = {"X-Repo-Commit": self.commit} if self.commit else {}
        if start + size < len(entries):
            path = f"{self.root}/{quote(below)}" if below else self.root
            url = f"{self.listing.server_url}{path}?recursive={query.get('recursive', [''])[0]}&cursor={start + size}"
            headers["Link"] = f'<{url}>; rel="next"'
        return json.dumps(entries[start : start + size]).encode(), headers


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content).digest()


@dataclass
class Bucket(Listing):
    """What the two listings of a bucket have in common: files by name, sorted, in pages.

    ``composite`` are files that came in several pieces: no md5 of them is known.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    page_size: int = 1000
    composite: frozenset[str] = frozenset()
    packed: frozenset[str] = frozenset()

    def chosen(self, query: Mapping[str, list[str]], cursor: str) -> tuple[list[str], str | None]:
        """The names of one page, and where the next one begins."""
        prefix = query.get("prefix", [""])[0]
        found = sorted(n for n in self.files if n.startswith(prefix))
        start = int(query.get(cursor, ["0"])[0])
        end = start + self.page_size
        return found[start:end], str(end) if end < len(found) else None


@dataclass
class GcsBucket(Bucket):
    """``GET /storage/v1/b/<bucket>/o``"""

    def answer(self, below: str, query: Mapping[str, list[str]]) -> tuple[bytes, dict[str, str]] | None:
        if below:
            return None
        chosen, following = self.chosen(query, "pageToken")
        answer = {"kind": "storage#objects"} | ({"items": [self._item(n) for n in chosen]} if chosen else {})
        return json.dumps(answer | ({"nextPageToken": following} if following else {})).encode(), {}

    def _item(self, name: str) -> dict[str, str]:
        content = self.files[name]
        crc32c = google_crc32c.value(content).to_bytes(4, "big")
        item = {"name": name, "size": str(len(content)), "generation": "1700000000000001"}
        item["crc32c"] = base64.b64encode(crc32c).decode()
        if name in self.packed:
            item["contentEncoding"] = "gzip"
        return item if name in self.composite else item | {"md5Hash": base64.b64encode(_md5(content)).decode()}


@dataclass
class S3Bucket(Bucket):
    """``GET /<bucket>/?list-type=2``"""

    def answer(self, below: str, query: Mapping[str, list[str]]) -> tuple[bytes, dict[str, str]] | None:
        if below or query.get("list-type") != ["2"]:
            return None
        chosen, following = self.chosen(query, "continuation-token")
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        contents = "".join(map(self._contents, chosen))
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(bool(following)).lower()}</IsTruncated>{contents}{more}</ListBucketResult>"
        )
        return body.encode(), {"Content-Type": "application/xml"}

    def _contents(self, name: str) -> str:
        content = self.files[name]
        etag = hashlib.md5(_md5(content)).hexdigest() + "-1" if name in self.composite else _md5(content).hex()
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag>"
            f"<Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
