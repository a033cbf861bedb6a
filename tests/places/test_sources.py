"""The contract of a source, in every kind of place: a directory, the hub, S3, Google Cloud Storage, a web server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub
from object_store import ObjectStore

from rlds_cli.base import settings
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.http.ranges import RangeRequest
from rlds_cli.errors import DamagedDataset, DownloadFailed, UploadFailed, WrongHash
from rlds_cli.places import Address
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.opening import open_objects
from rlds_cli.places.sources.place import Body, Overtaken
from rlds_cli.places.sources.transfer import Stream, Units

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01, connect=60.0, read=60.0)
CONTENT = os.urandom(300_000)
LARGE = "objects/" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(params=["file", "hf", "s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "store")
        return
    if request.param != "hf":
        pytest.importorskip("obstore")
    with Hub() if request.param == "hf" else ObjectStore() as server:
        for name, value in server.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        if isinstance(server, ObjectStore):
            server.buckets["lab"] = {}
        yield {"hf": "hf://datasets/lab/day", "s3": "s3://lab/day", "gs": "gs://lab/day"}[request.param]


@pytest.fixture
def objects(place: str) -> Iterator[Objects]:
    with open_objects(Address.parse(place), settings.read(), policy=HASTY) as opened:
        yield opened


def filled(objects: Objects) -> None:
    objects.put(LARGE, Body.of(CONTENT))
    objects.put("b/small", Body.of(b"y"))
    objects.replace("a.json", b"1", None, {"README.md": b"z"})


def part(objects: Objects, name: str, start: int, length: int) -> bytes:
    got = bytearray()
    objects.bring(name, Stream(start, start + length, got.extend))
    return bytes(got)


def test_what_is_written_is_read_and_listed(objects: Objects) -> None:
    filled(objects)
    place = objects.place
    found = place.stat(LARGE)
    assert found is not None and (found.name, found.size) == (LARGE, len(CONTENT))
    with place.open(LARGE, RangeRequest(start=70_000, stop=200_001)) as reply:
        assert (reply.start, reply.stop, reply.tag.size) == (70_000, 200_001, len(CONTENT))
        assert b"".join(map(bytes, reply.blocks)) == CONTENT[70_000:200_001]
    for start in (0, 299_000):
        with place.open(LARGE, RangeRequest(start=start)) as reply:
            assert (reply.start, reply.stop) == (start, len(CONTENT))
            assert b"".join(map(bytes, reply.blocks)) == CONTENT[start:]
    assert {m.name: m.size for m in place.list("b/")} == {"b/small": 1}
    listed = {m.name: m.size for m in place.list("")}
    assert {LARGE: len(CONTENT), "b/small": 1, "a.json": 1, "README.md": 1}.items() <= listed.items()
    assert objects.read("README.md").data == b"z"  # type: ignore[union-attr]


def test_what_is_not_there(objects: Objects) -> None:
    filled(objects)
    assert objects.place.stat("b/other") is None
    assert objects.read("b/other") is None
    assert list(objects.place.list("c/")) == []
    with pytest.raises(Permanent), objects.place.open("b/other", RangeRequest(start=0, stop=1)):
        pass
    with pytest.raises(DownloadFailed, match="b/small could not be read"):
        part(objects, "b/small", 1, 5)
    objects.delete("b/other")


def test_a_write_on_a_condition(objects: Objects) -> None:
    assert objects.read("a.json") is None
    objects.replace("a.json", b"1", None)
    with pytest.raises(Overtaken):
        objects.replace("a.json", b"2", None)
    seen = objects.read("a.json")
    assert seen is not None and seen.data == b"1"
    objects.replace("a.json", b"2", seen.tag)
    with pytest.raises(Overtaken):
        objects.replace("a.json", b"3", seen.tag)
    assert objects.read("a.json").data == b"2"  # type: ignore[union-attr]


def test_files_are_removed(objects: Objects) -> None:
    filled(objects)
    objects.delete_all(["b/small", LARGE])
    assert not {"b/small", LARGE} & objects.names().keys()
    assert "a.json" in objects.names()


def test_a_sibling_gives_its_files(objects: Objects, place: str) -> None:
    with open_objects(Address.parse(f"{place}/one"), settings.read(), policy=HASTY) as one:
        filled(one)
    with open_objects(Address.parse(f"{place}/two"), settings.read(), policy=HASTY) as two:
        (sibling,) = [s for s in two.siblings() if s.address.name == "one"]
        assert two.copy(sibling, LARGE)
        two.replace("a.json", b"1", None)
        assert part(two, LARGE, 0, len(CONTENT)) == CONTENT


def test_units_are_checked_and_wrong_ones_refused(objects: Objects) -> None:
    filled(objects)
    unit, got = 1 << 16, dict[int, bytes]()

    def fetch(content: bytes) -> None:
        got.clear()
        units = Units(
            unit,
            len(CONTENT),
            unit=lambda at: unit,
            is_right=lambda at, data: data == content[at : at + unit],
            take=lambda at, data: got.update({at: bytes(data)}),
        )
        objects.bring(LARGE, units)

    fetch(CONTENT)
    assert b"".join(got.values()) == CONTENT[unit:] and list(got) == [unit, 2 * unit, 3 * unit, 4 * unit]
    with pytest.raises(WrongHash, match=f"Bytes {3 * unit:,}-{4 * unit - 1:,} of .*, in 3 attempts"):
        fetch(CONTENT[: 3 * unit] + bytes(unit))
    assert list(got) == [unit, 2 * unit]


@pytest.mark.thorough
def test_a_document_that_is_damaged_is_read_again_and_refused(objects: Objects) -> None:
    filled(objects)
    seen = list[bytes]()

    def check(data: bytes) -> None:
        seen.append(data)
        raise DamagedDataset("not this one")

    with pytest.raises(DamagedDataset, match="not this one"):
        objects.read("a.json", check=check)
    assert seen == [b"1"] * 3


def test_a_web_server_is_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStore() as server:
        monkeypatch.setenv("NO_PROXY", "*")
        server.buckets["lab"] = {"day/x": CONTENT}
        with open_objects(Address.parse(f"{server.url}/lab/day/"), settings.read(tmp_path), policy=HASTY) as objects:
            assert objects.size("x") == len(CONTENT) and objects.size("y") is None
            assert part(objects, "x", 9, 70_000) == CONTENT[9:70_009]
            server.ranges = False
            assert part(objects, "x", 9, 70_000) == CONTENT[9:70_009]
            for write in (lambda: objects.put("y", Body.of(b"")), lambda: objects.delete("x")):
                with pytest.raises(UploadFailed, match="it can only be read"):
                    write()
