"""Large files over several connections: what is asked, what is kept, and that the bytes are the same."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from server import Page, Server
from test_transfer_fetching import HASTY, MIB, Place, wanted

from rlds_cli.base.files.names import is_unfinished
from rlds_cli.base.http.client import Client, Parallelism
from rlds_cli.base.http.ranges import Tag
from rlds_cli.errors import DownloadFailed
from rlds_cli.make.downloads.fetch import planning
from rlds_cli.places import FileDownload
from rlds_cli.places.files import spans
from rlds_cli.places.files.parts import PartOrigin, opened
from rlds_cli.places.files.spans import Spans, spans_path

CONTENT = random.Random(7).randbytes(3 * MIB + 17)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PIECE = 1 << 18
WIDE = Parallelism(after=0.02, worth=0.1, smallest=PIECE)
PATIENT = replace(HASTY, read=60.0)  # where requests are counted: a busy machine is no stalled connection
RANGES = {"Accept-Ranges": "bytes"}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NO_PROXY", "*")
    return Place(tmp_path, server.settings(tmp_path))


def slow(server: Server, **more: object) -> Page:
    """About 3 MB/s a connection."""
    return server.add("/d/x.h5", CONTENT, **{"pace": 0.005, "headers": RANGES, **more})


def first_bytes(page: Page) -> list[int]:
    return [r.start for r in page.requests if r.status in (200, 206)]


@pytest.mark.thorough
def test_a_large_file_comes_over_several_connections(server: Server, place: Place) -> None:
    page = slow(server)
    (came,) = place.fetch(wanted(server, sha256=SHA256), width=WIDE)
    assert came.path.read_bytes() == CONTENT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}
    starts = first_bytes(page)
    assert starts[0] == 0 and {s % PIECE for s in starts} == {0} and len(set(starts)) == len(starts) > 6
    done = [e.done for e in place.events if e.stage == "fetch"]
    assert done == sorted(done) and done[-1] == len(CONTENT)
    assert page.sent < 1.2 * len(CONTENT)  # what was on its way to the first connection when the second one began
    assert all(r.headers.get("If-Range") == '"v1"' for r in page.requests[1:])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "behaviour",
    [{"headers": {}}, {"ranges": False, "headers": {}}, {"etag": None}, {"chunked": True}],
)
def test_one_connection_where_ranges_are_not_safe(server: Server, place: Place, behaviour: dict[str, object]) -> None:
    page = slow(server, **{"pace": 0.001, **behaviour})
    place.fetch(wanted(server), width=WIDE, policy=PATIENT)
    assert len(page.requests) == 1
    assert (place.directory / "x.h5").read_bytes() == CONTENT


@pytest.mark.thorough
def test_one_connection_where_a_server_only_says_that_it_has_ranges(server: Server, place: Place) -> None:
    page = slow(server, ranges=False)
    place.fetch(wanted(server, sha256=SHA256), width=WIDE, policy=PATIENT)
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert [r.status for r in page.requests[:2]] == [200, 200]
    assert page.requests[0].sent == len(CONTENT)  # the first connection was not disturbed
    assert len(page.requests) <= 1 + 4  # each further one asks once


@pytest.mark.thorough
def test_fast_and_small_files_come_over_one_connection(server: Server, place: Place) -> None:
    page = slow(server, pace=0.0)
    place.fetch(wanted(server), width=replace(WIDE, after=600.0), policy=PATIENT)
    assert len(page.requests) == 1
    page = slow(server)
    (place.directory / "x.h5").unlink()
    place.fetch(wanted(server), width=replace(WIDE, smallest=2 * MIB), policy=PATIENT)
    assert len(page.requests) == 1


@pytest.mark.thorough
def test_dropped_ranges_are_gone_on_from(server: Server, place: Place) -> None:
    page = slow(server, drops=[None, 1000, 70_000, None, 5000, 0, None, 9, *[None] * 99])
    place.fetch(wanted(server, sha256=SHA256), width=WIDE)
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert page.sent < 1.3 * len(CONTENT)


@pytest.mark.thorough
def test_a_server_that_wants_fewer_connections_gets_fewer(server: Server, place: Place) -> None:
    page = slow(server, statuses=[None, *[(429, {"Retry-After": "90"})] * 3])
    begun = time.monotonic()
    place.fetch(wanted(server, sha256=SHA256), width=WIDE)
    assert time.monotonic() - begun < 60
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert [r.status for r in page.requests].count(429) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_changes_between_ranges_starts_over(server: Server, place: Place, honest: bool) -> None:
    new = random.Random(8).randbytes(len(CONTENT))
    page = slow(server, if_range=honest, drops=[PIECE // 2])

    def change(event: object) -> None:
        page.content, page.etag = new, '"v2"'
        page.pace = 0.0

    planned = planning.plan([wanted(server)], place.directory, place.where)
    from rlds_cli.make.downloads.fetch import fetching

    fetching.fetch(planned, place.where, progress=change, policy=HASTY, width=WIDE)
    assert (place.directory / "x.h5").read_bytes() == new
    assert place.record("x.h5")["etag"] == '"v2"'


def leave(place: Place, server: Server, kept: dict[int, bytes]) -> None:
    """Leave bytes of an earlier download at their places."""
    place.directory.mkdir(parents=True)
    with opened(place.directory / "x.h5", wanted(server)) as part:
        part.begin(PartOrigin(f"{server.url}/d/x.h5", Tag(etag='"v1"', size=len(CONTENT))))
        part.append(kept.pop(0))
        part.divide(PIECE, len(CONTENT))
        for start, data in kept.items():
            part.ahead[start] = 0
            part.add(start, data)


def test_what_was_kept_ahead_is_not_asked_for_again(server: Server, place: Place) -> None:
    """An earlier process left the beginning, one whole piece, and half of another."""
    page = slow(server, pace=0.0)
    kept = {3 * PIECE: PIECE, 5 * PIECE: PIECE // 2}
    leave(place, server, {0: CONTENT[: PIECE + 100], **{a: CONTENT[a : a + n] for a, n in kept.items()}})
    step = planning.plan([wanted(server, size=len(CONTENT))], place.directory, place.where).steps[0]
    there = PIECE + 100 + PIECE + PIECE // 2
    assert (step.offset, step.to_fetch) == (there, len(CONTENT) - there)
    place.fetch(wanted(server, sha256=SHA256), width=WIDE)
    missing = [(PIECE + 100, 3 * PIECE), (4 * PIECE, 5 * PIECE), (5 * PIECE + PIECE // 2, len(CONTENT))]
    spans = [(r.start, r.start + r.sent) for r in page.requests if r.sent]
    # Where one connection takes over the rest of another's piece, some of it was on its way already.
    assert sum(b - a for a, b in spans) == pytest.approx(len(CONTENT) - there, rel=0.1)
    assert all(any(first <= a and b <= last for first, last in missing) for a, b in spans)
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


def test_after_a_crash_of_the_system_only_synced_bytes_are_taken_to_be_there(
    server: Server, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = slow(server, pace=0.0)
    leave(place, server, {0: CONTENT[:PIECE], 2 * PIECE: bytes(PIECE)})  # noted, and lost by the crash
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(spans, "_BOOT", tmp_path / "boot")
    assert FileDownload.kept(place.directory / "x.h5") == 0
    place.fetch(wanted(server))
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert [(r.status, r.start) for r in page.requests] == [(200, 0)]


@pytest.mark.parametrize("count", [0, 5, PIECE - 1, PIECE, 1 << 62])
@pytest.mark.parametrize("cut", [0, 10, 80, None])
def test_counts_of_spans_that_are_damaged_give_no_holes(
    server: Server, place: Place, count: int, cut: int | None
) -> None:
    """Counts that are too high claim bytes that a hash finds; a file that cannot be read claims none."""
    slow(server, pace=0.0)
    leave(place, server, {0: CONTENT[:PIECE], 2 * PIECE: CONTENT[2 * PIECE : 2 * PIECE + 5]})
    file = place.directory / "x.h5.part.spans"
    data = bytearray(file.read_bytes())
    data[-8 * 22 : -8 * 21] = count.to_bytes(8, "little")  # of the third piece of thirteen
    file.write_bytes(data if cut is None else data[:cut])
    place.fetch(wanted(server, sha256=SHA256 if cut is None and count > 5 else None))
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert place.names() == {"x.h5", "x.h5.json", ".listing.json"}


@pytest.mark.thorough
def test_a_spoilt_piece_is_thrown_away_once(server: Server, place: Place) -> None:
    page = slow(server, pace=0.0)
    leave(place, server, {0: CONTENT[:PIECE], 2 * PIECE: bytes(PIECE)})
    place.fetch(wanted(server, sha256=SHA256))
    assert (place.directory / "x.h5").read_bytes() == CONTENT
    assert page.requests[-1].start == 0 and page.requests[-1].sent == len(CONTENT)


CHILD = """
import sys
from pathlib import Path
from rlds_cli.base import settings
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.base.http.client import Parallelism
from rlds_cli.places import RemoteFile
where = settings.read()
files = [RemoteFile("x.h5", (sys.argv[1],), sha256=sys.argv[3])]
width = Parallelism(after=0.02, worth=0.1, smallest=1 << 18)
fetching.fetch(planning.plan(files, Path(sys.argv[2]), where), where, width=width)
"""


def test_killed_at_any_moment_nothing_is_asked_for_twice(server: Server, place: Place) -> None:
    page = slow(server, pace=0.03)
    part = place.directory / "x.h5.part"
    arguments = [sys.executable, "-c", CHILD, f"{server.url}/d/x.h5", str(place.directory), SHA256]
    for round in (1, 2):
        with subprocess.Popen(arguments, env=os.environ | server.environment(place.root)) as child:
            deadline = time.monotonic() + 60
            while (
                time.monotonic() < deadline
                and child.poll() is None
                and FileDownload.kept(part.with_suffix("")) < round * MIB
            ):
                time.sleep(0.005)
            child.kill()
        assert not (place.directory / "x.h5").exists()
    content, noted = part.read_bytes(), Spans.read(spans_path(part), part.stat().st_size)
    kept = {0: len(content)} if noted is None else {0: noted.front, **noted.ahead}
    assert all(content[a : a + n] == CONTENT[a : a + n] for a, n in kept.items())
    page.pace, asked = 0.0, -1
    while asked != len(page.requests):  # the server may still be answering a request of the killed process
        asked = len(page.requests)
        time.sleep(0.3)
    left = planning.plan([wanted(server, size=len(CONTENT))], place.directory, place.where).to_fetch
    place.fetch(wanted(server, sha256=SHA256))
    assert sum(r.sent for r in page.requests[asked:]) == left < len(CONTENT)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_an_error_of_the_first_connection_ends_the_others_and_keeps_what_they_brought(
    server: Server, place: Place
) -> None:
    page = slow(server, drops=[PIECE // 2])
    planned = planning.plan([wanted(server, sha256=SHA256)], place.directory, place.where)

    def refuse(event: object) -> None:
        if len(page.requests) > 3:
            page.statuses = [(403, {})] * 50

    from rlds_cli.make.downloads.fetch import fetching

    begun = time.monotonic()
    with pytest.raises(DownloadFailed, match=r"HTTP 403.*are kept in x\.h5\.part"):
        fetching.fetch(planned, place.where, progress=refuse, policy=HASTY, width=WIDE)
    assert time.monotonic() - begun < 60
    page.statuses = []
    place.fetch(wanted(server, sha256=SHA256), width=WIDE)
    assert (place.directory / "x.h5").read_bytes() == CONTENT


def test_connections_are_counted_over_all_files(server: Server, place: Place) -> None:
    with Client(place.where, width=Parallelism(connections=2)) as client, client.occupied(), client.occupied():
        with client.occupied():  # files are not kept waiting
            assert not client.spare.acquire(blocking=False)
        assert not client.spare.acquire(blocking=False)


def test_pieces_are_of_a_size_for_the_file() -> None:
    assert [Parallelism().piece(size) >> 20 for size in (1 << 30, 1 << 32, 1 << 34, 1 << 40)] == [16, 32, 128, 128]


def test_names_of_what_is_unfinished() -> None:
    assert all(map(is_unfinished, ("x.h5.part", "x.h5.part.spans", "x.h5.part.json", "x.h5.part.lock")))
    assert not any(map(is_unfinished, ("x.part.h5", "x.h5.part1", "x.part.00.zst", "x.h5.part.16777216", "part")))
