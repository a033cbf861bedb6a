"""Fetching over HTTP from a server that misbehaves; every figure is worked out from what the server was told to do."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server import Page, Server

from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.progress import Event
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, NoPermission, NoSpace, Offline, WrongHash
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile
from rlds_cli.places.files.parts import PartFile

HASTY = RetryPolicy(attempts=4, first=0.001, longest=0.01, asked=5.0, connect=60.0, read=60.0, least=1)
MIB = 1 << 20


def random_bytes(size: int, seed: int = 0) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


CONTENT = random_bytes(3 * MIB + 17)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


class Place:
    """A destination, and fetching into it."""

    def __init__(self, root: Path, where: Settings) -> None:
        self.root = root
        self.where = where
        self.directory = root / "archive"
        self.events: list[Event] = []

    def fetch(self, *files: RemoteFile, policy: RetryPolicy = HASTY, **more: Any) -> tuple[fetching.Fetched, ...]:
        planned = planning.plan(files, self.directory, self.where)
        return fetching.fetch(planned, self.where, progress=self.events.append, policy=policy, **more)

    def notes(self, stage: str) -> list[str]:
        return [e.note for e in self.events if e.stage == stage]

    def names(self) -> set[str]:
        return {p.name for p in self.directory.rglob("*") if p.is_file()}

    def record(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / f"{name}.json").read_text()))


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NO_PROXY", "*")
    return Place(tmp_path, server.settings(tmp_path))


def wanted(server: Server, path: str = "/d/x.h5", **more: Any) -> RemoteFile:
    return RemoteFile(path.rpartition("/")[2], (server.url + path,), **more)


def spans(page: Page) -> list[tuple[int, int, int]]:
    """(status, first byte, bytes sent) of each request."""
    return [(r.status, r.start, r.sent) for r in page.requests]


def test_a_file_arrives_whole_with_its_record(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT, last_modified="Sat, 01 Nov 2025 00:00:00 GMT")
    (came,) = place.fetch(wanted(server, sha256=SHA256), id="d4rl/x")
    assert came.path.read_bytes() == CONTENT
    assert came.action == "fetch"
    record = place.record("x.h5")
    assert record["url"] == f"{server.url}/d/x.h5"
    assert (record["size"], record["sha256"], record["etag"]) == (len(CONTENT), SHA256, '"v1"')
    assert record["fetched_at"].endswith("Z")
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}
    assert {e.id for e in place.events} == {"d4rl/x"}
    fetched = [e for e in place.events if e.stage == "fetch"]
    assert [e.done for e in fetched] == sorted({e.done for e in fetched})
    assert (fetched[-1].done, fetched[-1].total, fetched[-1].unit) == (len(CONTENT), len(CONTENT), "B")
    assert place.notes("verify")[-1] == "sha256 ok"


def test_the_request_asks_for_the_bytes_as_they_are(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    place.fetch(wanted(server))
    assert page.requests[0].headers["Accept-Encoding"] == "identity"
    assert page.requests[0].headers["User-Agent"].startswith("rlds/")
    assert "Range" not in page.requests[0].headers


def test_without_a_promise_the_hash_is_recorded(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT)
    place.fetch(wanted(server))
    assert place.record("x.h5")["sha256"] == SHA256
    assert "recorded" in place.notes("verify")[-1]


def test_an_empty_file_is_a_file(server: Server, place: Place) -> None:
    server.add("/d/x.h5", b"")
    (came,) = place.fetch(wanted(server))
    assert came.path.read_bytes() == b""
    assert came.record.sha256 == hashlib.sha256(b"").hexdigest()


def test_what_is_here_and_recorded_is_not_asked_for_again(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    place.fetch(wanted(server))
    (again,) = place.fetch(wanted(server))
    assert again.action == "reuse"
    assert len(page.requests) == 1


@pytest.mark.thorough
def test_dropped_connections_are_gone_on_from_without_asking_twice(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, drops=[MIB, 1, MIB + 5, None])
    place.fetch(wanted(server, sha256=SHA256))
    assert spans(page) == [
        (200, 0, MIB),
        (206, MIB, 1),
        (206, MIB + 1, MIB + 5),
        (206, 2 * MIB + 6, MIB + 11),
    ]
    assert page.sent == len(CONTENT)
    assert [r.headers.get("If-Range") for r in page.requests] == [None, '"v1"', '"v1"', '"v1"']
    assert any(n.startswith("resumed at 1.0 MiB") for n in place.notes("fetch"))


def test_a_body_that_ends_early_is_gone_on_from(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, chunked=True, drops=[MIB])
    place.fetch(wanted(server, size=len(CONTENT)))
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert page.requests[1].start == MIB


def test_a_length_that_is_a_lie_is_not_believed(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, length=len(CONTENT) + 100)
    with pytest.raises(DownloadFailed, match=f"offers {len(CONTENT) + 100:,} B; {len(CONTENT):,} B expected"):
        place.fetch(wanted(server, size=len(CONTENT)))
    assert len(page.requests) == 1


@pytest.mark.thorough
def test_a_length_beyond_the_end_is_not_taken_back(server: Server, place: Place) -> None:
    """Nothing is promised; the server says 100 bytes more than there are, and then that the range is past the end."""
    page = server.add("/d/x.h5", CONTENT, length=len(CONTENT) + 100)
    with pytest.raises(DownloadFailed, match="the connection closed early"):
        place.fetch(wanted(server))
    assert [r.status for r in page.requests][:3] == [200, 416, 200] and len(page.requests) < 8
    assert not (place.directory / "x.h5").exists()


def test_a_short_length_is_gone_on_from_when_the_size_is_known(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT, short=[MIB, None])
    with pytest.raises(DownloadFailed, match="1,048,576 B; 3,145,745 B expected"):
        place.fetch(wanted(server, size=len(CONTENT)))


def test_a_server_without_ranges_starts_over(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, ranges=False, drops=[MIB, None])
    place.fetch(wanted(server, sha256=SHA256))
    assert spans(page) == [(200, 0, MIB), (200, 0, len(CONTENT))]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_changes_meanwhile_starts_over(server: Server, place: Place, honest: bool) -> None:
    """``honest`` answers If-Range with 200; the other answers 206 with another ETag."""
    new = random_bytes(len(CONTENT), seed=1)
    page = server.add("/d/x.h5", new, etag='"v2"', if_range=honest)
    leave_part(place, server, CONTENT[:MIB])
    place.fetch(wanted(server))
    assert [r.status for r in page.requests] == ([200] if honest else [206, 200])
    assert (place.directory / "x.h5").read_bytes() == new
    assert place.record("x.h5")["etag"] == '"v2"'


def test_an_etag_that_changes_each_time_ends_in_an_error(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, new_etag=True, drops=[MIB] * 20)
    with pytest.raises(DownloadFailed):
        place.fetch(wanted(server))
    assert len(page.requests) < 10


@pytest.mark.thorough
@pytest.mark.parametrize(
    "said", ["bytes 5-99/3145745", "bytes 1048577-3145744/3145745", "nonsense", "bytes 1048576-9/7"]
)
def test_a_wrong_range_is_not_appended(server: Server, place: Place, said: str) -> None:
    page = server.add("/d/x.h5", CONTENT, drops=[MIB, None], content_range=said)
    place.fetch(wanted(server))
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert [r.status for r in page.requests] == [200, 206, 200]


def leave_part(place: Place, server: Server, content: bytes, **origin: Any) -> None:
    """What a killed process leaves."""
    place.directory.mkdir(parents=True, exist_ok=True)
    (place.directory / "x.h5.part").write_bytes(content)
    known = {"url": f"{server.url}/d/x.h5", "etag": '"v1"', "last_modified": None, "size": len(CONTENT)} | origin
    (place.directory / "x.h5.part.json").write_text(json.dumps(known))


def test_a_part_of_an_earlier_process_is_gone_on_from(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, CONTENT[:MIB])
    plan = planning.plan([wanted(server, size=len(CONTENT))], place.directory, place.where)
    assert (plan.steps[0].action, plan.steps[0].offset, plan.to_fetch) == ("fetch", MIB, len(CONTENT) - MIB)
    place.fetch(wanted(server, sha256=SHA256))
    assert spans(page) == [(206, MIB, len(CONTENT) - MIB)]
    assert place.notes("fetch")[-1] == "resumed at 1.0 MiB"
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


def test_a_part_that_is_complete_needs_no_request(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, CONTENT)
    place.fetch(wanted(server))
    assert page.requests == []
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_a_part_of_unknown_size_that_is_complete_ends_with_416(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, CONTENT, size=None)
    place.fetch(wanted(server))
    assert [r.status for r in page.requests] == [416]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, CONTENT + b"more", size=None)
    place.fetch(wanted(server))
    assert [r.status for r in page.requests] == [416, 200]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_a_part_without_its_origin_starts_over(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, CONTENT[:MIB])
    (place.directory / "x.h5.part.json").write_text("{ not json")
    place.fetch(wanted(server))
    assert spans(page) == [(200, 0, len(CONTENT))]


@pytest.mark.thorough
def test_a_part_without_a_validator_starts_over_unless_the_hash_is_known(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, etag=None)
    leave_part(place, server, CONTENT[:MIB], etag=None)
    place.fetch(wanted(server))
    assert spans(page) == [(200, 0, len(CONTENT))]
    page = server.add("/d/y.h5", CONTENT, etag=None)
    leave_part(place, server, CONTENT[:MIB], etag=None)
    for suffix in ("part", "part.json"):
        (place.directory / f"x.h5.{suffix}").rename(place.directory / f"y.h5.{suffix}")
    place.fetch(wanted(server, "/d/y.h5", sha256=SHA256))
    assert spans(page) == [(206, MIB, len(CONTENT) - MIB)]


@pytest.mark.thorough
@pytest.mark.parametrize(("etag", "sent"), [('W/"v1"', None), (None, "Sat, 01 Nov 2025 00:00:00 GMT")])
def test_weak_etags_are_not_sent_and_dates_are(
    server: Server, place: Place, etag: str | None, sent: str | None
) -> None:
    page = server.add("/d/x.h5", CONTENT, etag=etag, last_modified=sent, drops=[MIB])
    place.fetch(wanted(server))
    assert page.requests[1].headers.get("If-Range") == sent
    assert page.requests[1].start == MIB


@pytest.mark.thorough
def test_an_altered_part_is_thrown_away_once(server: Server, place: Place) -> None:
    """The rest fits by its ETag, the whole does not by its hash: the part was at fault, the source is not."""
    page = server.add("/d/x.h5", CONTENT)
    leave_part(place, server, b"\0" * MIB)
    place.fetch(wanted(server, sha256=SHA256))
    assert spans(page) == [(206, MIB, len(CONTENT) - MIB), (200, 0, len(CONTENT))]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.thorough
def test_another_mirror_goes_on_where_the_first_broke_off(server: Server, place: Place) -> None:
    first = server.add("/d/x.h5", CONTENT, drops=[MIB], statuses=[None, *[(503, {})] * 9])
    second = server.add("/mirror/x.h5", CONTENT, etag='"other"')
    file = wanted(server, sha256=SHA256)
    place.fetch(replace(file, urls=(*file.urls, server.url + "/mirror/x.h5")))
    assert first.sent == MIB
    assert spans(second) == [(206, MIB, len(CONTENT) - MIB)]
    assert place.record("x.h5")["url"] == server.url + "/mirror/x.h5"


@pytest.mark.thorough
def test_without_a_hash_another_mirror_starts_from_the_beginning(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT[:MIB] + b"other", drops=[MIB], statuses=[None, *[(503, {})] * 9])
    second = server.add("/mirror/x.h5", CONTENT, etag='"other"')
    file = wanted(server)
    place.fetch(replace(file, urls=(*file.urls, server.url + "/mirror/x.h5")))
    assert spans(second) == [(200, 0, len(CONTENT))]


@pytest.mark.thorough
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_failures_that_may_pass_are_tried_again(server: Server, place: Place, status: int) -> None:
    page = server.add("/d/x.h5", CONTENT, statuses=[(status, {}), (status, {})])
    place.fetch(wanted(server))
    assert [r.status for r in page.requests] == [status, status, 200]


@pytest.mark.thorough
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_failures_that_stay_are_not_tried_again(server: Server, place: Place, status: int) -> None:
    page = server.add("/d/x.h5", CONTENT, statuses=[(status, {})])
    other = server.add("/mirror/x.h5", CONTENT)
    file = wanted(server)
    place.fetch(replace(file, urls=(*file.urls, server.url + "/mirror/x.h5")))
    assert [r.status for r in page.requests] == [status]
    assert len(other.requests) == 1


def test_retry_after_is_waited_for(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT, statuses=[(429, {"Retry-After": "1"})])
    start = time.monotonic()
    place.fetch(wanted(server))
    assert time.monotonic() - start >= 1.0


def test_retry_after_may_be_a_date_and_may_be_too_much(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, statuses=[(503, {"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"})])
    with pytest.raises(DownloadFailed, match="asks to wait"):
        place.fetch(wanted(server))
    assert len(page.requests) == 1
    page.statuses = [(503, {"Retry-After": "Fri, 01 Jan 2010 00:00:00 GMT"}), (503, {"Retry-After": "soon"})]
    place.fetch(wanted(server))
    assert [r.status for r in page.requests] == [503, 503, 503, 200]


def test_a_long_wait_is_announced(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT, statuses=[(429, {"Retry-After": "2"})])
    place.fetch(wanted(server, sha256=SHA256))
    assert place.notes("note") == ["HTTP 429 Too Many Requests: trying again in 2 s"]


def test_a_server_that_always_fails_is_given_up(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, statuses=[(500, {})] * 50)
    with pytest.raises(DownloadFailed, match=r"HTTP 500 Internal Server Error \(4 times\)") as caught:
        place.fetch(wanted(server))
    assert len(page.requests) == 4
    assert "Nothing was kept" in caught.value.message
    assert caught.value.hint
    assert place.names() == set()


def test_all_sources_are_named_when_none_gives_the_file(server: Server, place: Place) -> None:
    server.add("/a/x.h5", CONTENT, statuses=[(404, {})])
    server.add("/b/x.h5", CONTENT, statuses=[(403, {})])
    with pytest.raises(DownloadFailed) as caught:
        place.fetch(RemoteFile("x.h5", (server.url + "/a/x.h5", server.url + "/b/x.h5")))
    assert f"{server.url}/a/x.h5: HTTP 404 Not Found" in caught.value.message
    assert f"{server.url}/b/x.h5: HTTP 403 Forbidden" in caught.value.message


def test_a_server_that_is_not_there(place: Place, server: Server) -> None:
    with Server() as gone:
        url = gone.url + "/x.h5"
    with pytest.raises(DownloadFailed, match="Connection refused"):
        place.fetch(RemoteFile("x.h5", (url,)))


def test_a_server_that_says_nothing_is_left(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, stall=1000)
    with pytest.raises(DownloadFailed, match=r"timed out \(2 times\).*1000 B are kept in x\.h5\.part"):
        place.fetch(wanted(server), policy=replace(HASTY, attempts=2, read=0.2))
    assert (place.directory / "x.h5.part").read_bytes() == CONTENT[:1000]
    assert [r.sent for r in page.requests] == [1000, 0, 0]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<!DOCTYPE html><html><title>Log in</title>", "text/html; charset=utf-8"),
        (b"\n  <HTML><body>moved", "application/octet-stream"),
        (b"sorry, moved", "text/html"),
    ],
)
def test_a_web_page_is_not_an_archive(server: Server, place: Place, body: bytes, kind: str) -> None:
    server.add("/d/x.h5", body, content_type=kind)
    with pytest.raises(DownloadFailed, match="web page instead of the file") as caught:
        place.fetch(wanted(server))
    assert ("Log in" in caught.value.message) == (b"Log in" in body)
    assert place.names() == set()


def test_a_web_page_is_left_for_the_next_source(server: Server, place: Place) -> None:
    server.add("/a/x.h5", b"<!doctype html>")
    server.add("/b/x.h5", CONTENT, content_type="text/html")  # bytes that no page holds
    (came,) = place.fetch(RemoteFile("x.h5", (server.url + "/a/x.h5", server.url + "/b/x.h5")))
    assert came.path.read_bytes() == CONTENT


def test_a_page_that_was_wanted_is_a_file(server: Server, place: Place) -> None:
    server.add("/d/README.html", b"<!doctype html>", content_type="text/html")
    (came,) = place.fetch(wanted(server, "/d/README.html"))
    assert came.path.read_bytes() == b"<!doctype html>"


def test_packed_bytes_are_refused_where_plain_ones_were_asked_for(server: Server, place: Place) -> None:
    packed = gzip.compress(CONTENT)
    server.add("/d/x.h5", packed, headers={"Content-Encoding": "gzip"})
    with pytest.raises(DownloadFailed, match="answered gzip"):
        place.fetch(wanted(server))
    server.add("/d/x.npy.gz", packed, headers={"Content-Encoding": "gzip"})
    (came,) = place.fetch(wanted(server, "/d/x.npy.gz"))
    assert came.path.read_bytes() == packed


def test_proxies_of_the_environment_are_used(server: Server, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("http_proxy", server.url)
    page = server.add("/datasets/x.h5", CONTENT)
    place.fetch(RemoteFile("x.h5", ("http://archive.invalid/datasets/x.h5",)))
    assert server.asked == ["http://archive.invalid/datasets/x.h5"]
    assert page.requests[0].headers["Host"] == "archive.invalid"


def test_a_wrong_hash_names_everything_and_leaves_nothing(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT)
    with pytest.raises(WrongHash) as caught:
        place.fetch(wanted(server, sha256="ab" * 32))
    for part in ("x.h5", server.url, SHA256, "ab" * 32, "removed"):
        assert part in caught.value.message
    assert place.names() == set()


@pytest.mark.thorough
def test_a_wrong_hash_is_left_for_the_next_source(server: Server, place: Place) -> None:
    bad = server.add("/a/x.h5", random_bytes(len(CONTENT), seed=2))
    server.add("/b/x.h5", CONTENT)
    (came,) = place.fetch(RemoteFile("x.h5", (server.url + "/a/x.h5", server.url + "/b/x.h5"), sha256=SHA256))
    assert came.path.read_bytes() == CONTENT
    assert len(bad.requests) == 1


def test_another_size_than_promised_is_not_even_fetched(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    with pytest.raises(DownloadFailed, match="5 B expected"):
        place.fetch(wanted(server, size=5))
    assert page.sent < len(CONTENT) or len(page.requests) == 1


def test_the_hash_of_git_is_checked_where_there_is_no_other(server: Server, place: Place) -> None:
    content = b"hello\n"
    server.add("/d/x.json", content)
    git = "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object of "hello\n"
    place.fetch(wanted(server, "/d/x.json", git_sha1=git))
    assert place.record("x.json")["git_sha1"] == git
    server.add("/d/y.json", b"hellO\n")
    with pytest.raises(WrongHash, match=git):
        place.fetch(wanted(server, "/d/y.json", git_sha1=git))


def test_offline_nothing_is_asked(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    place.where = replace(place.where, offline=True)
    with pytest.raises(Offline, match=r"x\.h5 \(3\.0 MiB\) must be fetched"):
        place.fetch(wanted(server, size=len(CONTENT)))
    assert page.requests == []


def test_what_cannot_fit_is_refused_before_the_first_byte(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)
    with pytest.raises(NoSpace, match=r"9\.1 TiB are needed.*are free"):
        place.fetch(wanted(server, size=10**13))
    assert page.requests == []


def test_what_the_server_says_cannot_fit_is_refused(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT, length=10**15)
    with pytest.raises(NoSpace):
        place.fetch(wanted(server))


def test_a_full_disk_is_an_error_that_says_what_is_kept(server: Server, place: Place) -> None:
    place.directory.mkdir()
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    descriptor = os.open("/dev/full", os.O_RDWR)
    part = PartFile(place.directory / "x.h5", descriptor, wanted(server))
    try:
        with pytest.raises(NoSpace, match=r"The disk is full.* 0 B of x.h5 are kept"):
            part.append(CONTENT)
    finally:
        part.close()
        os.close(descriptor)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT)
    place.directory.mkdir()
    place.directory.chmod(0o500)
    try:
        with pytest.raises(NoPermission):
            place.fetch(wanted(server))
    finally:
        place.directory.chmod(0o700)


def test_a_file_where_a_directory_should_be(server: Server, place: Place) -> None:
    server.add("/d/x.h5", CONTENT)
    place.directory.write_text("in the way")
    with pytest.raises(Exception, match="could not be written"):
        place.fetch(wanted(server))


def test_many_files_at_a_time(server: Server, place: Place) -> None:
    contents = {f"/many/{k}/part-0.arrow": random_bytes(1000 + k, seed=k) for k in range(60)}
    pages = [server.add(path, content) for path, content in contents.items()]
    files = [RemoteFile(path[6:], (server.url + path,), size=len(c)) for path, c in contents.items()]
    came = place.fetch(*files, jobs=4)
    assert [c.file for c in came] == files
    assert [c.path.read_bytes() for c in came] == list(contents.values())
    assert all(len(p.requests) == 1 for p in pages)
    total = sum(map(len, contents.values()))
    summed = {(e.stage, e.what) for e in place.events if e.stage != "note"}
    assert summed == {("fetch", "60 files"), ("verify", "60 files")}
    assert [n.split(",")[0] for n in place.notes("note")] == ["comes over plain HTTP"]
    done = [e.done for e in place.events if e.stage == "fetch"]
    assert done == sorted(done)
    assert (done[-1], done.count(total), place.events[-2].total) == (total, 1, total)
    assert (place.events[-1].unit, place.events[-1].done) == ("files", 60)
    assert place.events[-1].note == "60 sha256 recorded, none is published"


def test_many_files_of_unknown_sizes_are_counted(server: Server, place: Place) -> None:
    files = []
    for k in range(20):
        server.add(f"/many/{k}", b"x" * k)
        files.append(RemoteFile(str(k), (f"{server.url}/many/{k}",)))
    place.fetch(*files)
    fetched = [(e.done, e.total, e.unit) for e in place.events if e.stage == "fetch"]
    assert fetched[-1] == (20, 20, "files")
    assert all(done < 20 for done, _, _ in fetched[:-1])


def test_one_failure_stops_the_others_soon_and_they_can_be_gone_on_with(server: Server, place: Place) -> None:
    slow = server.add("/d/slow.h5", CONTENT, pace=0.6)  # two minutes for all of it
    server.add("/d/x.h5", CONTENT, statuses=[(503, {"Retry-After": "1"}), (404, {})])
    start = time.monotonic()
    with pytest.raises(DownloadFailed, match="404"):
        place.fetch(wanted(server, "/d/slow.h5"), wanted(server))
    assert 1.0 <= time.monotonic() - start < 60
    kept = (place.directory / "slow.h5.part").stat().st_size
    slow.pace = 0.0
    place.fetch(wanted(server, "/d/slow.h5", sha256=SHA256))
    assert slow.requests[-1].start == kept > 0


def test_a_stalled_file_does_not_hold_up_an_error(server: Server, place: Place) -> None:
    server.add("/d/stalled.h5", CONTENT, stall=5000)
    server.add("/d/x.h5", CONTENT, statuses=[(404, {})])
    start = time.monotonic()
    with pytest.raises(DownloadFailed, match="404"):
        place.fetch(wanted(server, "/d/stalled.h5"), wanted(server), policy=replace(HASTY, read=120.0))
    assert time.monotonic() - start < 60


def test_two_threads_that_fetch_the_same_file_do_not_disturb_each_other(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, pace=0.001)
    with ThreadPoolExecutor(4) as pool:
        came = [f.result()[0] for f in [pool.submit(place.fetch, wanted(server, sha256=SHA256)) for _ in range(4)]]
    assert page.sent == len(CONTENT)
    assert sorted(c.action for c in came) == ["fetch", "reuse", "reuse", "reuse"]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_ctrl_c_leaves_what_came(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT)

    def interrupt(event: Event) -> None:
        if event.done > 0:
            raise KeyboardInterrupt

    planned = planning.plan([wanted(server, sha256=SHA256)], place.directory, place.where)
    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(planned, place.where, progress=interrupt, policy=HASTY)
    kept = (place.directory / "x.h5.part").stat().st_size
    assert kept > 0
    place.fetch(wanted(server, sha256=SHA256))
    assert page.requests[-1].start == kept or kept == len(CONTENT)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


CHILD = """
import sys
from pathlib import Path
from rlds_cli.base import settings
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.make.downloads import listing
where = settings.read()
files = listing.list_files([sys.argv[1]], where, sha256=sys.argv[3])
fetching.fetch(planning.plan(files, Path(sys.argv[2]), where), where)
"""


def start_child(server: Server, place: Place) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", CHILD, f"{server.url}/d/x.h5", str(place.directory), SHA256]
    return subprocess.Popen(arguments, env=os.environ | server.environment(place.root))


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_is_gone_on_from_and_nothing_is_asked_twice(
    server: Server, place: Place, how: signal.Signals
) -> None:
    page = server.add("/d/x.h5", CONTENT)
    part = place.directory / "x.h5.part"
    for round in (1, 2):
        page.stall = round * 512 * 1024
        with start_child(server, place) as child:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and child.poll() is None:
                if part.exists() and part.stat().st_size >= round * 512 * 1024:
                    break
                time.sleep(0.005)
            child.send_signal(how)
        assert child.returncode != 0
        assert not (place.directory / "x.h5").exists()
        kept = part.stat().st_size
        assert kept == round * 512 * 1024
        assert part.read_bytes() == CONTENT[:kept]
    page.stall = None
    with start_child(server, place) as child:
        assert child.wait(60) == 0
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}
    assert [r.status for r in page.requests] == [200, 206, 206]
    assert page.requests[2].start == kept
    asked = [end.start - begin.start for begin, end in zip(page.requests, page.requests[1:], strict=False)]
    received_twice = page.sent - len(CONTENT)
    assert sum(asked) + page.requests[2].sent == len(CONTENT)  # every byte was asked for once
    assert received_twice <= 2 * MIB  # what was on its way when the process died


MANY = """
import sys
from pathlib import Path
from rlds_cli.base import settings
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile
from rlds_cli.base.http.client import RetryPolicy
where = settings.read()
files = [RemoteFile(f"{k}.h5", (f"{sys.argv[1]}/d/{k}.h5",)) for k in range(3)]
policy = RetryPolicy(read=600.0)
fetching.fetch(planning.plan(files, Path(sys.argv[2]), where), where, policy=policy)
"""


@pytest.mark.slow
def test_ctrl_c_stops_several_stalled_files_at_once(server: Server, place: Place) -> None:
    pages = [server.add(f"/d/{k}.h5", CONTENT, stall=100_000) for k in range(3)]
    parts = [place.directory / f"{k}.h5.part" for k in range(3)]
    arguments = [sys.executable, "-c", MANY, server.url, str(place.directory)]
    with subprocess.Popen(
        arguments, env=os.environ | server.environment(place.root), stderr=subprocess.PIPE, text=True
    ) as child:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all(p.exists() and p.stat().st_size == 100_000 for p in parts):
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)  # not the ten minutes that a read may take
    assert child.returncode != 0
    assert "KeyboardInterrupt" in said
    for page in pages:
        page.stall = None
    place.fetch(*(wanted(server, f"/d/{k}.h5", sha256=SHA256) for k in range(3)))
    assert [p.requests[-1].start for p in pages] == [100_000] * 3


def test_two_processes_that_fetch_the_same_file(server: Server, place: Place) -> None:
    page = server.add("/d/x.h5", CONTENT, pace=0.002)
    with start_child(server, place) as one, start_child(server, place) as two:
        assert (one.wait(60), two.wait(60)) == (0, 0)
    assert page.sent == len(CONTENT)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.thorough
def test_progress_is_told_from_one_thread_at_a_time_per_file(server: Server, place: Place) -> None:
    seen: dict[str, set[int]] = {}

    def note(event: Event) -> None:
        seen.setdefault(event.what, set()).add(threading.get_ident())

    for k in range(6):
        server.add(f"/d/{k}.h5", CONTENT)
    files = [wanted(server, f"/d/{k}.h5") for k in range(6)]
    fetching.fetch(planning.plan(files, place.directory, place.where), place.where, progress=note, policy=HASTY)
    assert set(seen) == {f"{k}.h5" for k in range(6)}
    assert all(len(threads) == 1 for threads in seen.values())


# -- another process


def test_a_file_that_another_process_fetches_is_waited_for(server: Server, place: Place) -> None:
    from rlds_cli.base.files.locks import file_lock

    server.add("/d/x.h5", CONTENT)
    place.directory.mkdir()
    lock = file_lock(place.directory / "x.h5.part.lock")
    lock.acquire()
    threading.Timer(1.5, lock.release).start()
    place.fetch(wanted(server, sha256=SHA256))
    assert place.notes("note") == [f"locked by another process: waiting for {place.directory / 'x.h5.part.lock'}"]
