"""Answers of servers that list files: valid ones, and what becomes of them when somebody changes them.

``LISTINGS`` has an entry for each kind: what is asked for, and the pages of a server by their paths. ``altered`` yields
variants of a JSON document, one value changed in each, always the same and in the same order; bytes can be changed by
any fuzzer. ``listed`` hands one answer to the reader of a kind, through a real server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server import COMMIT, Server

from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.make.downloads import listing
from rlds_cli.places import RemoteFile

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01, asked=0.0, connect=2.0, read=2.0)
OID = "0123456789abcdef" * 4

TREE = [
    {"type": "directory", "path": "d", "oid": OID[:40], "size": 0},
    {"type": "file", "path": "d/a.h5", "oid": OID[:40], "size": 5, "lfs": {"oid": OID, "size": 5, "pointerSize": 130}},
    {"type": "file", "path": "d/b.json", "oid": OID[:40], "size": 7},
]
REVISION = {"sha": COMMIT, "siblings": [{"rfilename": "d/a.h5"}]}
GCS = {
    "items": [
        {"name": "d/", "size": "0"},
        {"name": "d/a.h5", "size": "5", "md5Hash": "CY9rzUYh03PK3k6DJie09g==", "crc32c": "AAAAAA==", "generation": "1"},
    ]
}
S3 = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<Contents><Key>d/a.h5</Key><Size>5</Size><ETag>&quot;098f6bcd4621d373cade4e832627b4f6&quot;</ETag></Contents>"
    "</ListBucketResult>"
)
INDEX = (
    '<html><!-- <a href="no.h5"> --><a href="?C=N">Name</a><a href="/d/">d</a><a class=x href=\'a.h5\'>a.h5</a></html>'
)

ODD: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 2**70, 1e308, "", "abc", "../x.h5", "/etc/x.h5", "a\\b", "CON", "x\x1b[2J\u202e.h5"),
    *("/" * 5000, "a" * 5000, "9" * 5000, "-5", "\ud800", [], ["x"], {}, {"oid": 5}, {"name": None}),
)


@dataclass(frozen=True)
class Listing:
    """What is asked for, the path that answers with the valid ``page``, and other paths that the reader asks."""

    url: str
    path: str
    page: bytes
    others: tuple[tuple[str, bytes], ...] = ()


LISTINGS = {
    "tree": Listing("hf://datasets/o/r/d", "/api/datasets/o/r/tree/main", json.dumps(TREE).encode()),
    "revision": Listing(
        "hf://datasets/o/r/d",
        "/api/datasets/o/r/revision/main",
        json.dumps(REVISION).encode(),
        ((f"/api/datasets/o/r/tree/{COMMIT}", json.dumps(TREE).encode()),),
    ),
    "gs": Listing("gs://data/d", "/storage/v1/b/data/o", json.dumps(GCS).encode()),
    "s3": Listing("s3://data/d", "/data/", S3.encode()),
    "index": Listing("{server}/d/", "/d/", INDEX.encode()),
}


def serve(server: Server, listing: Listing, content: bytes) -> str:
    """Answer with ``content``; what to ask for."""
    for path, page in (*listing.others, (listing.path, content)):
        server.add(path, page, content_type="application/json")
    return listing.url.format(server=server.url)


def listed(server: Server, where: Settings, kind: str, content: bytes) -> tuple[RemoteFile, ...]:
    """What a reader makes of an answer; only errors of rlds may come out."""
    files = listing.list_files([serve(server, LISTINGS[kind], content)], where, policy=HASTY)
    for file in files:
        assert file.size is None or 0 <= file.size < 1 << 64
        assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts and file.path.isprintable()
        assert len(file.path) <= 1024
    return files


def altered(value: Any) -> Iterator[Any]:
    """A document with one of its values replaced by each odd one in turn, or left out."""
    yield from ODD
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        rest = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
        others = [(k, v) for k, v in rest if k != key]
        yield _like(value, others)
        for variant in altered(value[key]):
            yield _like(value, [(k, variant if k == key else v) for k, v in rest])


def _like(value: Any, items: list[tuple[Any, Any]]) -> Any:
    return dict(items) if isinstance(value, dict) else [v for _, v in items]
