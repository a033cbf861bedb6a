"""Servers that misbehave, each asked by every way in: archives, blocks, ranges, documents and pulls.

Each way ends soon with an error or with the right bytes, and takes no more of them than it asked for. `ANSWERS` is the
table of what each way makes of each server.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from urllib.parse import unquote

import pytest
from hostile import BEHAVIOURS, BLOCK, Behaviour, Hostile, Talk
from loader_data import create, episode

from rlds_cli.base import settings
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.http.ranges import Tag
from rlds_cli.base.settings import Settings
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError, WrongHash
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import Address, Pull, RemoteFile
from rlds_cli.places.files import parts
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.opening import open_objects
from rlds_cli.places.sources.transfer import Stream, Units
from rlds_cli.share.pushing import push

CONTENT = random.Random(48).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2
POLICY = RetryPolicy(
    attempts=2, first=0.001, longest=0.002, asked=1.0, connect=5.0, read=5.0, least=1000, idle=10.0, unsized=8 << 20
)
pytestmark = [pytest.mark.usefixtures("small_files"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def sound(talk: Talk, content: bytes) -> tuple[int, int]:
    """The bytes that were asked for, from the first to that behind the last."""
    first, _, last = talk.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
    return int(first), min(len(content), int(last or len(content)) + 1)


def answer(talk: Talk, content: bytes) -> None:
    """What an honest server says."""
    start, stop = sound(talk, content)
    body, said = content[start:stop], f"Content-Range: bytes {start}-{stop - 1}/{len(content)}"
    head = ["206 Partial Content", said] if talk.first is not None else ["200 OK"]
    talk.answer(*head, f"Content-Length: {len(body)}", 'ETag: "1"', "Connection: close", body=body)


def endless(talk: Talk, status: str, *headers: str, body: bytes) -> None:
    talk.answer(status, 'ETag: "1"', "Transfer-Encoding: chunked", *headers)
    if body:
        talk.send(b"%x\r\n" % len(body) + body + b"\r\n")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


def claims(total: str) -> Lie:
    """A range that ends where no file does."""

    def lie(talk: Talk, content: bytes) -> None:
        start, _ = sound(talk, content)
        said = f"Content-Range: bytes {start}-{'9' * 17}/{total}"
        endless(talk, "206 Partial Content", said, body=content[start:])

    return lie


def goes_on(talk: Talk, content: bytes) -> None:
    """The range that was asked for, and no end."""
    start, stop = sound(talk, content)
    said = f"Content-Range: bytes {start}-{stop - 1}/{len(content)}"
    endless(talk, "206 Partial Content", said, body=content[start:stop])


def whole(talk: Talk, content: bytes) -> None:
    """The file from its beginning, and no end, whatever was asked for."""
    endless(talk, "200 OK", body=content)


Lie = Callable[[Talk, bytes], None]
LIES: dict[str, Lie] = {
    "range without end": claims("*"),
    "range of a file without end": claims("1" + "0" * 17),
    "body without end": goes_on,
    "whole without end": whole,
}


def archive(server: Hostile, where: Settings, *, size: int | None = len(CONTENT), sha256: str | None = None) -> bytes:
    """The rest of a file of which half is here."""
    file = RemoteFile("x.h5", (f"{server.url}/x.h5",), size=size, sha256=sha256)
    target = where.home / "archive"
    target.mkdir(parents=True)
    with parts.opened(target / "x.h5", file) as part:
        part.begin(parts.PartOrigin(f"{server.url}/x.h5", Tag(etag='"1"', size=size)))
        part.append(CONTENT[:HALF])
    fetching.fetch(planning.plan([file], target, where), where, policy=POLICY)
    return (target / "x.h5").read_bytes()


def opened(server: Hostile, where: Settings) -> Objects:
    return open_objects(Address.parse(server.url), where, policy=POLICY)


def blocks(server: Hostile, where: Settings) -> bytes:
    got = bytearray()
    with opened(server, where) as objects:
        units = Units(
            *(HALF, len(CONTENT)),
            unit=lambda at: 1 << 16,
            is_right=lambda at, data: bytes(data) == CONTENT[at : at + len(data)],
            take=lambda at, data: got.extend(data),
            size=len(CONTENT),
        )
        objects.bring("x.h5", units)
    return CONTENT[:HALF] + bytes(got)


def ranges(server: Hostile, where: Settings) -> bytes:
    got = bytearray()
    with opened(server, where) as objects:
        objects.bring("x.h5", Stream(HALF, len(CONTENT), got.extend, size=len(CONTENT)))
    return CONTENT[:HALF] + bytes(got)


def document(server: Hostile, where: Settings) -> bytes:
    with opened(server, where) as objects:
        found = objects.read("x.h5", longest=len(CONTENT))
    assert found is not None
    return found.data


WAYS: dict[str, Callable[[Hostile, Settings], bytes]] = {
    "archive": archive,
    "archive of unknown size": lambda server, where: archive(server, where, size=None),
    "blocks": blocks,
    "ranges": ranges,
    "document": document,
}


def server_of(behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    monkeypatch.setitem(BEHAVIOURS, "of this test", behaviour)
    return Hostile("of this test", CONTENT)


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("NO_PROXY", "*")
    return settings.read(tmp_path / "far")


def largest(root: Path) -> int:
    return max((p.stat().st_size for p in root.rglob("*") if p.is_file()), default=0)


def test_an_honest_server_gives_the_file_by_every_way(where: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with server_of(lambda talk: answer(talk, CONTENT), monkeypatch) as server:
        for number, ask in enumerate(WAYS.values()):
            assert ask(server, replace(where, home=where.home / str(number))) == CONTENT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", LIES)
def test_what_is_sent_without_end_is_not_taken(
    lie: str, way: str, where: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_of(lambda talk: LIES[lie](talk, CONTENT), monkeypatch) as server:
        with suppress(RldsError):
            assert WAYS[way](server, where) == CONTENT
        bound = (64 << 20) + (16 << 20) if way == "document" else 40 << 20  # sockets hold some MiB of each attempt
        assert 0 < len(server.requests) <= 4 and server.sent < bound
    assert largest(where.home) <= (POLICY.unsized if way == "archive of unknown size" else len(CONTENT))


def test_wrong_bytes_are_not_given_as_blocks(where: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        server_of(lambda talk: answer(talk, bytes(len(CONTENT))), monkeypatch) as server,
        pytest.raises(WrongHash, match="150,000"),
    ):
        blocks(server, where)
    assert len(server.requests) == 3


def whole_with_its_length(talk: Talk, content: bytes) -> None:
    """The whole file, whatever was asked for."""
    talk.answer("200 OK", f"Content-Length: {len(content)}", 'ETag: "1"', "Connection: close", body=content)


def another_range(talk: Talk, content: bytes) -> None:
    """One byte later than it was asked for; the file where it was asked for as a whole."""
    if talk.first is None:
        return whole_with_its_length(talk, content)
    start, stop = sound(talk, content)
    said, body = f"Content-Range: bytes {start + 1}-{stop - 1}/{len(content)}", content[start + 1 : stop]
    head = (said, f"Content-Length: {len(body)}", 'ETag: "1"', "Connection: close")
    return talk.answer("206 Partial Content", *head, body=body)


def no_range(talk: Talk, content: bytes) -> None:
    """HTTP 416 to every range."""
    if talk.first is None:
        return whole_with_its_length(talk, content)
    return talk.answer("416 Range Not Satisfiable", "Content-Length: 0", "Connection: close")


def answer_with(*headers: str) -> Lie:
    def lie(talk: Talk, content: bytes) -> None:
        start, stop = sound(talk, content)
        body, said = content[start:stop], f"Content-Range: bytes {start}-{stop - 1}/{len(content)}"
        head = ["206 Partial Content", said] if talk.first is not None else ["200 OK"]
        talk.answer(*head, f"Content-Length: {len(body)}", 'ETag: "1"', "Connection: close", *headers, body=body)

    return lie


def half(talk: Talk, content: bytes) -> None:
    """Half of what it announces, each time."""
    start, stop = sound(talk, content)
    said, body = f"Content-Range: bytes {start}-{stop - 1}/{len(content)}", content[start : (start + stop) // 2]
    head = ["206 Partial Content", said] if talk.first is not None else ["200 OK"]
    talk.answer(*head, f"Content-Length: {stop - start}", 'ETag: "1"', "Connection: close", body=body)


def busy(talk: Talk, content: bytes) -> None:
    talk.answer("503 Service Unavailable", "Content-Length: 0", "Connection: close")


SERVERS: dict[str, Lie] = {
    "honest": answer,
    "the whole file": whole_with_its_length,
    "the whole file without end": whole,
    "a range without end": claims("*"),
    "the right range without end": goes_on,
    "another range": another_range,
    "416": no_range,
    "gzip": answer_with("Content-Encoding: gzip"),
    "wrong bytes": lambda talk, content: answer(talk, bytes(len(content))),
    "half": half,
    "503": busy,
}
COLUMNS = ("archive", "blocks", "ranges", "pull")
# right: the bytes arrived. refused: an error says so. wrong: other bytes were taken. The number is that of requests. A
# pull reads the manifest first, by a request of its own. What covers the bytes makes the difference: blocks have a hash
# each, so they are taken and the rest of an answer without end is not; of a file, an end elsewhere is refused. Wrong
# bytes are found by whoever has a hash; those that read a range of a file have none.
ANSWERS: dict[str, tuple[tuple[str, int], ...]] = {
    "honest": (("right", 1), ("right", 1), ("right", 1), ("right", 2)),
    "the whole file": (("right", 1), ("right", 1), ("right", 1), ("right", 2)),
    "the whole file without end": (("refused", 1), ("right", 1), ("right", 1), ("right", 2)),
    "a range without end": (("refused", 1), ("refused", 2), ("refused", 2), ("refused", 2)),
    "the right range without end": (("refused", 1), ("right", 1), ("right", 1), ("right", 2)),
    "another range": (("right", 2), ("right", 2), ("right", 2), ("right", 4)),
    "416": (("right", 2), ("right", 2), ("right", 2), ("right", 4)),
    "gzip": (("refused", 1), ("refused", 1), ("refused", 1), ("refused", 1)),
    "wrong bytes": (("refused", 2), ("refused", 3), ("wrong", 1), ("refused", 3)),
    "half": (("refused", 9), ("refused", 3), ("refused", 9), ("refused", 2)),
    "503": (("refused", 2), ("refused", 2), ("refused", 2), ("refused", 2)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way made of a server: ``right``, ``refused`` or ``wrong``, and the requests that it took."""

    result: str
    requests: int


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    """A dataset and where it was pushed to, in a home of the module."""
    directory = tmp_path_factory.mktemp("pushed")
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(directory / "home"))
        ds = create([episode(k, 40) for k in range(3)])
        push(ds.id, directory / "store", pages=False)
    return ds, directory / "store"


def ask(way: str, lie: Lie, where: Settings, pushed: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    if way == "pull":
        return ask_by_pull(lie, where, pushed, monkeypatch)
    ways = {**WAYS, "archive": lambda server, where: archive(server, where, sha256=SHA256)}
    with server_of(lambda talk: lie(talk, CONTENT), monkeypatch) as server:
        try:
            result = "right" if ways[way](server, where) == CONTENT else "wrong"
        except RldsError:
            result = "refused"
        return Outcome(result, len(server.requests))


def ask_by_pull(lie: Lie, where: Settings, pushed: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Download a dataset of which the server misbehaves with the largest object alone."""
    ds, store = pushed
    files = {p.relative_to(store).as_posix(): p for p in store.rglob("*") if p.is_file()}
    objects = {name: file for name, file in files.items() if name.startswith("objects/")}
    largest = max(objects, key=lambda name: objects[name].stat().st_size)
    lied = list[int]()

    def serve(talk: Talk) -> None:
        name = unquote(talk.path.lstrip("/"))
        if name not in files:
            return talk.answer("404 Not Found", "Content-Length: 0", "Connection: close")
        content = files[name].read_bytes()
        if name != largest:
            return answer(talk, content)
        lied.append(talk.number)
        return lie(talk, content)

    with server_of(serve, monkeypatch) as server:
        try:
            path = Pull(Address.parse(server.url), where, name="local/known", policy=POLICY).run()
            rows = [p.relative_to(ds.path) for p in ds.path.rglob("c/*") if p.is_file()]
            result = "right" if all((path / p).read_bytes() == (ds.path / p).read_bytes() for p in rows) else "wrong"
        except RldsError:
            result = "refused"
    return Outcome(result, len(lied))


@pytest.mark.parametrize("way", COLUMNS)
@pytest.mark.parametrize("server", SERVERS)
def test_every_way_makes_the_same_of_a_server(
    server: str, way: str, where: Settings, pushed: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = ask(way, SERVERS[server], where, pushed, monkeypatch)
    assert outcome == Outcome(*ANSWERS[server][COLUMNS.index(way)])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("indexed", [True, False], ids=["pushed", "copied"])
@pytest.mark.parametrize("lie", LIES)
def test_a_pull_takes_no_more_than_its_files_have(
    lie: str, indexed: bool, pushed: tuple[Dataset, Path], where: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small files come as they are; of the rows, a range of more than a byte is answered by the lie."""
    ds, store = pushed
    top = store if indexed else ds.path
    files = {p.relative_to(top).as_posix(): p.read_bytes() for p in top.rglob("*") if p.is_file()}

    lied = list[str]()

    def serve(talk: Talk) -> None:
        content = files.get(unquote(talk.path.lstrip("/")))
        if content is None:
            return talk.answer("404 Not Found", "Content-Length: 0", "Connection: close")
        start, stop = sound(talk, content)
        lies = stop - start > 2 and ("objects/" in talk.path or "/c/" in talk.path)
        if not lies:
            return answer(talk, content)
        lied.append(talk.path)
        return LIES[lie](talk, content)

    expected = {p.relative_to(ds.path): p.stat().st_size for p in ds.path.rglob("*") if p.is_file()}
    with server_of(serve, monkeypatch) as server:
        with suppress(RldsError):
            path = Pull(Address.parse(server.url), where, name="local/known", policy=POLICY).run()
            assert {p.relative_to(path): p.stat().st_size for p in path.rglob("*") if p.is_file()} == expected
        assert lied and server.sent < 200 << 20  # several files at a time, of each what sockets hold
    assert largest(where.home) <= max([*expected.values(), *map(len, files.values())])
