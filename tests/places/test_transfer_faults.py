"""Every fault at every place, with one source and with a mirror; docs/reference/faults.md has the outcomes."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server import Server
from test_transfer_fetching import Place

from rlds_cli import errors
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.errors import TransferError
from rlds_cli.places import RemoteFile

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"
SHORT = RetryPolicy(attempts=4, first=0.001, longest=0.002, connect=2.0, read=1.0, least=1)
PATIENCE = {"stall": replace(SHORT, attempts=2, read=0.1)}
RIGHT = random.Random(1).randbytes(40_000)
OTHER = random.Random(2).randbytes(40_000)
SHA256 = hashlib.sha256(RIGHT).hexdigest()
HTML = b"<!doctype html><title>Log in to the network</title>"
PLACES = {"first": 1, "middle": len(RIGHT) // 2, "last": len(RIGHT) - 1}


FAULTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "drop": lambda at: {"drops": [at]},
    "stall": lambda at: {"stall": at},
    "500": lambda at: {"drops": [at], "statuses": [None, *[(500, {})] * 9]},
    "429": lambda at: {"drops": [at], "statuses": [None, (429, {}), (429, {})]},
    "truncated": lambda at: {"content": RIGHT[:at]},
    "wrong length": lambda at: {"length": at},
    "changed ETag": lambda at: {
        "content": OTHER, "etag": '"v0"', "drops": [at], "then": {"content": RIGHT, "etag": '"v1"'}
    },
    "no range support": lambda at: {"drops": [at], "ranges": False},
    "HTML page": lambda at: {
        "drops": [at], "then": {"content": HTML, "content_type": "text/html", "ranges": False, "etag": None}
    },
    "wrong hash": lambda at: {"content": flipped(at)},
}  # fmt: skip


def flipped(at: int) -> bytes:
    k = {PLACES["first"]: 0, PLACES["last"]: len(RIGHT) - 1}.get(at, at)
    return RIGHT[:k] + bytes([RIGHT[k] ^ 1]) + RIGHT[k + 1 :]


def table() -> dict[str, tuple[str, str]]:
    """Fault -> what the page says of one source, and of a mirror."""
    text = PAGE.read_text().split("<!-- faults:")[1].split("\n\n")[1]
    lines = re.findall(r"^\| (.*) \|$", text, re.M)[2:]
    return {cells[0]: (cells[2], cells[3]) for cells in (line.split(" | ") for line in lines)}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NO_PROXY", "*")
    return Place(tmp_path, server.settings(tmp_path))


def test_the_page_speaks_of_all_faults() -> None:
    assert list(table()) == list(FAULTS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mirrored", [False, True], ids=["one", "mirror"])
@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_finishes_right_or_fails_clearly(server: Server, place: Place, fault: str, at: str, mirrored: bool) -> None:
    server.add("/d/x.h5", **{"content": RIGHT, **FAULTS[fault](PLACES[at])})
    server.add("/m/x.h5", RIGHT, etag='"mirror"')
    urls = (f"{server.url}/d/x.h5", f"{server.url}/m/x.h5")[: 1 + mirrored]
    file, target = RemoteFile("x.h5", urls, sha256=SHA256), place.directory / "x.h5"
    outcome = table()[fault][mirrored]
    if outcome == "finishes":
        place.fetch(file, policy=PATIENCE.get(fault, SHORT))
    else:
        with pytest.raises(TransferError) as caught:
            place.fetch(file, policy=PATIENCE.get(fault, SHORT))
        assert type(caught.value) is getattr(errors, outcome)
        assert urls[0] in caught.value.message and caught.value.hint
        assert not target.exists() and not place.names() & {"x.h5.json", ".listing.json"}
        kept = PLACES[at] if outcome == "DownloadFailed" and at != "first" else 0  # 512 bytes tell a web page
        assert sum(p.stat().st_size for p in place.directory.glob("x.h5.part")) == kept
        server.add("/d/x.h5", RIGHT)  # it is well again
        place.fetch(file, policy=PATIENCE.get(fault, SHORT))
    assert target.read_bytes() == RIGHT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("truncated", "wrong length", "wrong hash")])
def test_the_same_where_no_hash_is_published(server: Server, place: Place, fault: str, at: str) -> None:
    server.add("/d/x.h5", **{"content": RIGHT, **FAULTS[fault](PLACES[at])})
    server.add("/m/x.h5", RIGHT, etag='"mirror"')
    file = RemoteFile("x.h5", (f"{server.url}/d/x.h5", f"{server.url}/m/x.h5"))
    place.fetch(file, policy=PATIENCE.get(fault, SHORT))
    assert (place.directory / "x.h5").read_bytes() == RIGHT


@pytest.mark.thorough
@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("fault", ["truncated", "wrong length"])
def test_a_published_size_tells_what_is_too_short(server: Server, place: Place, fault: str, at: str) -> None:
    server.add("/d/x.h5", **{"content": RIGHT, **FAULTS[fault](PLACES[at])})
    server.add("/m/x.h5", RIGHT, etag='"mirror"')
    file = RemoteFile("x.h5", (f"{server.url}/d/x.h5", f"{server.url}/m/x.h5"), size=len(RIGHT))
    place.fetch(file, policy=PATIENCE.get(fault, SHORT))
    assert (place.directory / "x.h5").read_bytes() == RIGHT
    with pytest.raises(TransferError, match="40,000 B expected"):
        place.fetch(replace(file, path="y.h5", urls=file.urls[:1]), policy=PATIENCE.get(fault, SHORT))
