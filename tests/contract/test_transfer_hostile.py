"""Servers that lie: whatever one does, it is left soon, nothing of it stays, and the next source is asked."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from hostile import BEHAVIOURS, Hostile, Talk
from server import Server
from test_transfer_fetching import Place

from rlds_cli.base.http import connections
from rlds_cli.base.http.client import Client, Parallelism, RetryPolicy
from rlds_cli.base.http.connections import Budget, Permanent, Stopped
from rlds_cli.base.progress import Event
from rlds_cli.errors import DownloadFailed, NoSpace
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import FileRecord, RemoteFile
from rlds_cli.places.files import arriving

CONTENT = random.Random(11).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(
    attempts=3, first=0.001, longest=0.002, asked=2.0, connect=0.2, read=0.3, least=1000, idle=1.0, unsized=1 << 20
)
PATIENT = replace(QUICK, connect=60.0, read=60.0, idle=120.0)
pytestmark = pytest.mark.usefixtures("small_files")
PROMISES: dict[str, dict[str, Any]] = {"size": {"size": len(CONTENT)}, "hash": {"sha256": SHA256}, "nothing": {}}


@pytest.fixture
def sound() -> Iterator[Server]:
    with Server() as running:
        running.add("/x.h5", CONTENT)
        yield running


@pytest.fixture
def place(tmp_path: Path, sound: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NO_PROXY", "*")
    return Place(tmp_path, sound.settings(tmp_path))


def check(name: str, promised: str, server: Hostile, place: Place, path: str) -> None:
    """The file is the sound one, and the hostile server was not asked for ever."""
    assert 0 < len(server.requests) <= 40, name
    if promised == "nothing" and name == "beyond-by-one":  # a file of one byte more is as good as any
        return
    assert (place.directory / path).read_bytes() == CONTENT, name


@pytest.mark.slow
@pytest.mark.parametrize("promised", PROMISES)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_next_source_is_asked(name: str, promised: str, sound: Server, place: Place) -> None:
    with Hostile(name, CONTENT) as server:
        file = RemoteFile("x.h5", (f"{server.url}/x.h5", f"{sound.url}/x.h5"), **PROMISES[promised])
        place.fetch(file, policy=QUICK)
        check(name, promised, server, place, "x.h5")
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


@pytest.mark.slow
def test_the_next_source_is_asked_whatever_the_first_one_does(sound: Server, place: Place) -> None:
    """All behaviours at a time, which is as fast as the slowest ones."""
    files, servers = [], {}
    with ExitStack() as running:
        for name in BEHAVIOURS:
            servers[name] = running.enter_context(Hostile(name, CONTENT))
            urls = (f"{servers[name].url}/x.h5", f"{sound.url}/x.h5")
            files.append(RemoteFile(f"{name}.h5", urls))
        place.fetch(*files, policy=replace(QUICK, attempts=2, connect=1.0, read=1.0, idle=2.0), jobs=24)
        for name, server in servers.items():
            check(name, "nothing", server, place, f"{name}.h5")
    kept = {f"{name}.h5{suffix}" for name in BEHAVIOURS for suffix in ("", ".json")}
    assert place.names() == kept | {".listing.json"}


def fails(place: Place, server: Hostile, scheme: str = "http", **more: Any) -> DownloadFailed:
    """The error where there is no other source."""
    file = RemoteFile("x.h5", (server.url.replace("http", scheme, 1) + "/x.h5",), **more)
    with pytest.raises(DownloadFailed) as caught:
        place.fetch(file, policy=QUICK)
    assert not (place.directory / "x.h5").exists()
    return caught.value


BEYOND = [name for name in BEHAVIOURS if name.startswith("beyond-")]


WITHOUT_END = (
    "length-without-end",
    "redirect-with-endless-body",
    "redirect-with-packed-body",
    "error-with-endless-body",
)


@pytest.mark.parametrize("name", [*BEYOND, *WITHOUT_END])
def test_no_more_bytes_are_taken_than_were_promised(name: str, place: Place) -> None:
    with Hostile(name, CONTENT) as server:
        fails(place, server, size=len(CONTENT))
        assert server.sent < 64 << 20  # what the buffers of sockets hold, a few times
    assert place.names() == set()


def test_where_no_size_is_known_there_is_a_bound(place: Place) -> None:
    with Hostile("beyond-chunked", CONTENT) as server:
        said = fails(place, server).message
    assert "announces no size, and sends more than 1.0 MiB" in said
    assert place.names() == set()


def test_without_a_size_no_more_than_half_of_the_disk_is_taken(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=140 << 20))
    monkeypatch.setattr(arriving, "_WATCH", 1 << 20)
    with Hostile("beyond-chunked", CONTENT) as server:
        file = RemoteFile("x.h5", (f"{server.url}/x.h5",))
        with pytest.raises(DownloadFailed, match=r"announces no size, and sends more than 70\.0 MiB"):
            place.fetch(file, policy=replace(QUICK, unsized=1 << 40))
    assert "its size is not known: at most 70.0 MiB are downloaded" in place.notes("note")


def test_a_length_for_which_there_is_no_room_is_left_for_the_next_source(sound: Server, place: Place) -> None:
    with Hostile("length-without-end", CONTENT) as server:
        urls = (f"{server.url}/x.h5", f"{sound.url}/x.h5")
        place.fetch(RemoteFile("x.h5", urls), policy=QUICK)
        assert len(server.requests) == 1
        with pytest.raises(NoSpace, match="are needed"):
            place.fetch(RemoteFile("y.h5", urls[:1]), policy=QUICK)


def test_after_a_wrong_range_no_range_is_asked_for(place: Place) -> None:
    """The beginning, a range that is another, then the whole, twice: three attempts brought nothing new."""
    with Hostile("wrong-ranges", CONTENT) as server:
        said = fails(place, server).message
    asked = [("\r\nRange: bytes=100000-" in head) for head in server.requests]
    assert asked == [False, True, False, False]
    assert "the connection closed early" in said


def test_a_byte_a_connection_ends_where_less_than_the_least_comes(place: Place) -> None:
    with Hostile("one-byte-a-connection", CONTENT) as server:
        fails(place, server)
    assert len(server.requests) == 3


def test_requests_are_bounded_also_where_each_brings_something_new(place: Place) -> None:
    with Hostile("one-byte-a-connection", CONTENT) as server:
        file = RemoteFile("x.h5", (f"{server.url}/x.h5",))
        with pytest.raises(DownloadFailed, match="given up after 25 requests"):
            place.fetch(file, policy=replace(QUICK, least=1, requests=25))
    assert len(server.requests) == 25


@pytest.mark.parametrize("name", [name for name in BEHAVIOURS if name.startswith("beside-")])
def test_further_connections_that_lie_spoil_nothing(name: str, sound: Server, place: Place) -> None:
    wide = Parallelism(after=0.02, worth=0.01, smallest=1 << 14)
    with Hostile(name, CONTENT) as server:
        urls = (f"{server.url}/x.h5", f"{sound.url}/x.h5")
        place.fetch(RemoteFile("x.h5", urls), policy=QUICK, width=wide)
        assert 1 < len(server.requests) <= 40
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


def test_the_budget_grows_with_what_is_kept_and_only_once() -> None:
    kept = iter([0, 3 << 20, 0, 3 << 20, 0, 0, 0])
    budget = Budget(2, lambda: next(kept))
    assert [budget.spend() for _ in range(7)] == [True] * 5 + [False] * 2


def test_the_sources_of_a_file_are_bounded(place: Place) -> None:
    with Hostile("redirect-to-empty", CONTENT) as server:
        file = RemoteFile("x.h5", tuple(f"{server.url}/{k}" for k in range(30)))
        with pytest.raises(DownloadFailed, match="14 further sources: not tried"):
            place.fetch(file, policy=replace(QUICK, sources=16, attempts=1))


def test_a_server_that_was_waited_for_in_vain_is_not_asked_at_another_address(sound: Server, place: Place) -> None:
    with Hostile("silent", CONTENT) as server:
        for k in range(2):
            urls = (*(f"{server.url}/{j}/x.h5" for j in range(8)), f"{sound.url}/x.h5")
            place.fetch(*(RemoteFile(f"{k}{j}.h5", urls) for j in range(3)), policy=QUICK, jobs=1)
            assert 0 < len(server.requests) <= 3 * (k + 1)


@pytest.mark.parametrize(
    "name",
    ["cut-and-416", "cut-and-416-and-200", "cut-and-shorter", "cut-and-no-length", "cut-behind-a-broken-header"],
)
def test_a_file_that_was_cut_short_is_no_file(name: str, place: Place) -> None:
    with Hostile(name, CONTENT) as server:
        fails(place, server)


def test_a_body_that_nothing_frames_is_said(place: Place) -> None:
    BEHAVIOURS["unframed"] = lambda talk: talk.send(b"HTTP/1.0 200 OK\r\n\r\n" + talk.content)
    with Hostile("unframed", CONTENT) as server:
        del BEHAVIOURS["unframed"]
        place.fetch(RemoteFile("x.h5", (f"{server.url}/x.h5",)), policy=QUICK)
    assert any(n.startswith("comes without a length, a size or a hash") for n in place.notes("note"))
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_a_handshake_that_never_ends(place: Place) -> None:
    with Hostile("silent", CONTENT) as server:
        assert "timed out" in fails(place, server, "https").message


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("redirect-to-bracket", "leads to an address that cannot be read"),
        ("redirect-to-file", "leads to an address that is not HTTP"),
        ("redirect-to-itself", "redirects without end"),
        ("length-long", "has a length that is not a number"),
        ("packed-body", "answered gzip"),
        ("wait-digits", "asks to wait for ever"),
        ("dripped-headers", "timed out before the end of its headers"),
        ("dripped-body", "stalled"),
    ],
)
def test_the_message_says_why(name: str, why: str, place: Place) -> None:
    with Hostile(name, CONTENT) as server:
        assert why in fails(place, server).message


def test_what_a_server_says_is_bounded_and_obeyed_by_no_terminal(place: Place) -> None:
    with Hostile("escapes-in-the-reason", CONTENT) as server:
        error = fails(place, server)
    assert error.message.isprintable() and len(error.message) < 600 and "HTTP 404" in error.message


def test_the_cause_is_kept(place: Place) -> None:
    with Hostile("chunk-size-of-letters", CONTENT) as server:
        assert fails(place, server).__cause__ is not None


def test_each_long_wait_is_told(place: Place) -> None:
    with Hostile("dripped-headers", CONTENT) as server:
        fails(place, server)
    assert place.notes("note").count("timed out before the end of its headers: trying again") >= 1


def test_answers_that_announce_another_one_are_skipped(place: Place) -> None:
    with Hostile("hints-before-the-answer", CONTENT) as server:
        place.fetch(RemoteFile("x.h5", (f"{server.url}/x.h5",)), policy=QUICK)
        assert len(server.requests) == 1
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.slow  # the largest of this process, whatever ran in it before
def test_memory_stays_where_it_is(place: Place) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("redirect-with-endless-body", "redirect-with-packed-body", "error-with-endless-body", "packed-body"):
        with Hostile(name, CONTENT) as server:
            fails(place, server)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.parametrize("name", ["silent", "dripped-headers", "dripped-body", "endless-continue"])
def test_a_client_that_is_stopped_stops_at_once(name: str, place: Place) -> None:
    with Hostile(name, CONTENT) as server, Client(place.where, policy=PATIENT) as client:
        found: list[BaseException] = []

        def ask() -> None:
            try:
                client.document(f"{server.url}/x.h5")
            except BaseException as exc:
                found.append(exc)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.requests:
            time.sleep(0.005)
        client.stop()
        thread.join(60)
        assert not thread.is_alive() and isinstance(found[0], Stopped)


CHILD = """
import sys
from pathlib import Path
from rlds_cli.base import settings
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile
from rlds_cli.base.http.client import RetryPolicy
where = settings.read()
files = [RemoteFile(f"{k}.h5", (url,)) for k, url in enumerate(sys.argv[2:])]
policy = RetryPolicy(connect=600.0, read=600.0)
fetching.fetch(planning.plan(files, Path(sys.argv[1]), where), where, policy=policy)
"""


@pytest.mark.parametrize("files", [1, 3])
def test_one_ctrl_c_is_enough(files: int, place: Place, sound: Server) -> None:
    with ExitStack() as running:
        servers = [running.enter_context(Hostile("dripped-headers", CONTENT)) for _ in range(files)]
        arguments = [sys.executable, "-c", CHILD, str(place.directory), *(f"{s.url}/x.h5" for s in servers)]
        environment = os.environ | sound.environment(place.root)
        with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) as child:
            while not all(s.requests for s in servers) and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)  # the deadline of headers is twenty minutes
    assert "KeyboardInterrupt" in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["silent", "dripped-headers", "dripped-body", "endless-trailers", "always-busy"])
def test_a_document_takes_no_longer_than_that_in_silence(name: str, place: Place) -> None:
    begun = time.monotonic()
    with Hostile(name, CONTENT) as server, Client(place.where, policy=QUICK) as client, pytest.raises(Permanent):
        client.document(f"{server.url}/x.h5")
    assert time.monotonic() - begun < 60  # 1 s, and a busy machine


def test_long_waits_of_a_listing_are_told(place: Place) -> None:
    told: list[str] = []
    policy = replace(QUICK, connect=60.0, told=told.append)  # a busy machine takes its time to accept
    with Hostile("silent", CONTENT) as server, Client(place.where, policy=policy) as client, pytest.raises(Permanent):
        client.document(f"{server.url}/x.h5")
    assert told[0] == "timed out: trying again" and told[-1] == "timed out: given up"


@pytest.mark.parametrize("name", ["redirect-with-endless-body", "beyond-chunked", "packed-body", "redirect-to-bracket"])
def test_a_listing_is_refused_by_the_same_rules(name: str, place: Place) -> None:
    with Hostile(name, CONTENT) as server, Client(place.where, policy=QUICK) as client, pytest.raises(Permanent):
        client.json(f"{server.url}/api")


WRONG = [5, 1.5, True, ["x"], {"a": 1}, "\r\nX: y", "\u20ac", "x" * 5000]


@pytest.mark.parametrize("key", ["etag", "last_modified", "size", "url"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_part_whose_state_is_of_other_types_begins_anew(key: str, value: object, sound: Server, place: Place) -> None:
    if (key, value) == ("size", 5) or (key == "url" and isinstance(value, str)):
        pytest.skip("may be true")
    page = sound.pages["/x.h5"]
    place.directory.mkdir()
    (place.directory / "x.h5.part").write_bytes(CONTENT[:1000])
    state = {"url": f"{sound.url}/x.h5", "etag": '"v1"', "last_modified": None, "size": len(CONTENT), key: value}
    (place.directory / "x.h5.part.json").write_text(json.dumps(state))
    place.fetch(RemoteFile("x.h5", (f"{sound.url}/x.h5",)))
    assert [(r.status, r.start) for r in page.requests] == [(200, 0)]
    assert (place.directory / "x.h5").read_bytes() == CONTENT


RECORDS = ["url", "revision", "size", "etag", "sha256", "git_sha1", "fetched_at", "mtime_ns", "md5"]


@pytest.mark.parametrize("key", RECORDS)
def test_a_record_of_other_types_is_none(key: str, sound: Server, place: Place) -> None:
    (came,) = place.fetch(RemoteFile("x.h5", (f"{sound.url}/x.h5",)))
    known = place.record("x.h5")
    for value in ({"a": 1}, ["x"], -1 if key in ("size", "mtime_ns") else 5, True, 10**30):
        came.path.with_name("x.h5.json").write_text(json.dumps(known | {key: value}))
        assert FileRecord.read(came.path) is None
        assert planning.plan([came.file], place.directory, place.where).steps[0].action == "fetch"


LISTED = {"path": "x.h5", "urls": ["http://h/x.h5"], "size": 5, "sha256": None}


@pytest.mark.parametrize(
    "listed",
    ["x", 5, None, [5], ["x"], [{}], *([LISTED | {k: v}] for k in LISTED for v in (5.5, {"a": 1}, True, -1, []))],
    ids=repr,
)
def test_a_remembered_listing_of_other_types_is_none(listed: object, place: Place) -> None:
    place.directory.mkdir()
    (place.directory / ".listing.json").write_text(json.dumps({"files": listed}))
    assert planning.remembered(place.directory) is None
    (place.directory / ".listing.json").write_text(json.dumps({"files": [LISTED]}))
    assert planning.remembered(place.directory) == (RemoteFile("x.h5", ("http://h/x.h5",), size=5),)


@pytest.mark.parametrize(
    ("location", "leads"),
    [
        ("/b", "http://h.org/b"),
        ("b?x=1#y", "http://h.org/d/b?x=1"),
        ("https://other.org/b", "https://other.org/b"),
        ("http://me:secret@other.org/b", "http://other.org/b"),
        ("/\xc3\xa4 b", "http://h.org/%C3%A4%20b"),
    ],
)
def test_where_a_redirect_leads(location: str, leads: str) -> None:
    assert connections.following("http://h.org/d/a", location) == leads


ENTRIES = "machine 127.0.0.1 login me password hunter2\n"


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(ENTRIES)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("entries")
def test_netrc_goes_to_the_server_that_was_asked_and_to_none_that_it_leads_to(sound: Server, place: Place) -> None:
    with Server() as other:
        first = other.add("/d/x.h5", b"", redirect=f"{sound.url}/x.h5")
        place.fetch(RemoteFile("x.h5", (f"{other.url}/d/x.h5",)))
    assert first.requests[0].headers["Authorization"].startswith("Basic ")
    assert "Authorization" not in sound.pages["/x.h5"].requests[0].headers


@pytest.mark.parametrize(
    ("asked", "here", "sent"),
    [
        ("https://127.0.0.1/x", "https://127.0.0.1/x", "Basic "),
        ("http://127.0.0.1/x", "http://127.0.0.1/x", "Basic "),  # this machine
        ("https://me:pass@h.org/x", "https://me:pass@h.org/x", "Basic "),
        ("http://me:pass@h.org/x", "http://me:pass@h.org/x", None),
        ("https://me:pass@h.org/x", "https://other.org/x", None),
        ("https://me:pass@h.org/x", "http://h.org/x", None),
        ("https://h.org/x", "https://127.0.0.1/x", None),
        ("https://hub.org/x", "https://hub.org/y", "Bearer "),
        ("https://hub.org:443/x", "https://hub.org/y", "Bearer "),
        ("https://hub.org:444/x", "https://hub.org:444/x", None),
        ("http://hub.org/x", "http://hub.org/x", None),
        ("https://h.org/x", "https://hub.org/x", None),
    ],
)
@pytest.mark.usefixtures("entries")
def test_who_sees_credentials(asked: str, here: str, sent: str | None, place: Place) -> None:
    where = replace(place.where, hub="https://hub.org", hub_token="secret")
    request = requests.Request("GET", here, auth=connections.ServerCredentials(asked, here, where)).prepare()
    found = request.headers.get("Authorization")
    assert found is None if sent is None else found.startswith(sent)


def test_a_hub_over_plain_http_gets_no_token(place: Place) -> None:
    where = replace(place.where, hub="http://hub.org", hub_token="secret")
    credentials = connections.ServerCredentials("http://hub.org/x", "http://hub.org/x", where)
    request = requests.Request("GET", "http://hub.org/x", auth=credentials).prepare()
    assert "Authorization" not in request.headers


def test_small_redirects_keep_their_connection(sound: Server, place: Place) -> None:
    """Else each file of the hub would cost another handshake."""
    BEHAVIOURS["kept"] = lambda talk: (_redirect(talk), _redirect(talk))[0]
    with Hostile("kept", CONTENT) as server, Client(place.where, policy=QUICK) as client:
        del BEHAVIOURS["kept"]
        for _ in range(2):
            with client.open(f"{server.url}/x.h5") as response:
                assert client.whole(response) == b"here"
    assert len(server.requests) == 1  # of connections that were made: both were asked over one


def _redirect(talk: Talk) -> None:
    """302 with a short body, then the file, then the next request of the same connection."""
    talk.answer("302 Found", "Location: /y", "Content-Length: 5", body=b"moved")
    talk.connection.recv(1 << 16)
    talk.answer("200 OK", "Content-Length: 4", body=b"here")
    talk.connection.recv(1 << 16)


def test_a_source_that_cannot_even_be_asked_is_left_for_the_next(sound: Server, place: Place) -> None:
    bad = ["http://127.0.0.1:99999/x", "http://a..invalid/x", f"http://{'a' * 64}.invalid/x", "ftp://h/x", "gs://A B/x"]
    place.fetch(RemoteFile("x.h5", (*bad, f"{sound.url}/x.h5")), policy=QUICK)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.parametrize("error", [ValueError("mine"), BrokenPipeError("mine")])
def test_an_error_of_who_is_told_of_progress_is_theirs(error: Exception, sound: Server, place: Place) -> None:
    def object_(event: Event) -> None:
        if event.done:
            raise error

    file = RemoteFile("x.h5", (f"{sound.url}/x.h5", f"{sound.url}/y.h5"))
    with pytest.raises(type(error), match="mine"):
        fetching.fetch(planning.plan([file], place.directory, place.where), place.where, progress=object_)


@pytest.mark.parametrize("headers", [{"Transfer-Encoding": "gzip"}, {"Transfer-Encoding": "gzip, chunked"}])
def test_transfer_encodings_that_nobody_asked_for(headers: dict[str, str], sound: Server, place: Place) -> None:
    with Server() as server:
        server.add("/x.h5", b"x" * 100, headers=headers)
        place.fetch(RemoteFile("x.h5", (f"{server.url}/x.h5", f"{sound.url}/x.h5")), policy=QUICK)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (gzip.compress(b'{"sha": "abc"}', mtime=0), None),
        (zlib.compress(b'{"sha": "abc"}'), None),
        (b'{"sha": "abc"}', "is not packed as gzip"),
        (zlib.compress(bytes((64 << 20) + 1), 1), "unpacks to more than 64.0 MiB"),
    ],
    ids=["gzip", "deflate", "none", "bomb"],
)
def test_documents_that_a_server_packs_unasked(
    body: bytes, said: str | None, sound: Server, place: Place, tmp_path: Path
) -> None:
    sound.add("/list", body, headers={"Content-Encoding": "gzip"})
    with Client(sound.settings(tmp_path), policy=QUICK) as client:
        if said is None:
            assert client.json(f"{sound.url}/list").value == {"sha": "abc"}
        else:
            with pytest.raises(Permanent, match=said):
                client.json(f"{sound.url}/list")
