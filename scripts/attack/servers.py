"""Servers that lie: about sizes, ranges, redirects, headers, listings, and that go on for ever."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from homes import ANTMAZE, ANTMAZE_FILE, content
from scene import SECRET, Scene, attacks
from server import Server

ATTACKS, attack = attacks()

Answer = Callable[[socket.socket, str, int], None]  # the connection, the request, its number from 0
MIB = 1 << 20


class Liar:
    """A loopback server that answers every request as it likes."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.requests = answer, 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                block = connection.recv(1 << 16)
                if not block:
                    return
                request += block
            number, self.requests = self.requests, self.requests + 1
            self.answer(connection, request.decode("latin-1"), number)


def say(connection: socket.socket, status: str, *headers: str, body: bytes = b"") -> None:
    """Answer, and send a body of whatever length."""
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""])
    connection.sendall(head.encode("latin-1") + body)


def flood(connection: socket.socket, most: int = 6 << 30, block: bytes = bytes(MIB)) -> None:
    """Send without an end, as long as somebody listens."""
    for _ in range(most // len(block)):
        connection.sendall(block)


def span(request: str) -> int | None:
    """Where the range that is asked for starts; None for a whole file."""
    found = re.search(r"(?i)range: bytes=(\d+)-", request)
    return int(found[1]) if found else None


@contextmanager
def mirrored(scene: Scene) -> Iterator[str]:
    """A sound mirror, which is asked after the liar."""
    with Server() as server:
        for path in ("", "/datasets/offline_rl/ant_maze_v2", "/rail.eecs.berkeley.edu/datasets/offline_rl/ant_maze_v2"):
            server.add(f"{path}/{ANTMAZE_FILE}", content(scene))
        yield server.url


def attempt(scene: Scene, answer: Answer, *, stored: int = 64 * MIB, requests: int = 60, mirror: bool = True) -> None:
    """Download from a liar alone, and with a sound mirror behind it, which must do."""
    scene.clear()
    scene.environment.pop("RLDS_MIRROR", None)
    with Liar(answer) as liar:
        scene.refused(scene.run("download", ANTMAZE, "--from", liar.url, "--verbose"))
        kept = sum(p.stat().st_size for p in scene.home.rglob("*") if p.is_file() and not p.is_symlink())
        if kept > stored:
            scene.fault(f"{kept >> 20} MiB were stored")
        if liar.requests > requests:
            scene.fault(f"{liar.requests} requests were made")
        if not mirror:
            return
    with Liar(answer) as liar, mirrored(scene) as sound:
        scene.clear()
        scene.environment["RLDS_MIRROR"] = f"{liar.url} {sound}"
        result = scene.run("download", ANTMAZE, "--verbose")
        if result.code:
            scene.fault(f"the sound mirror was not used: {result.err[-300:]!r}")
        if liar.requests > requests:
            scene.fault(f"{liar.requests} requests were made before the mirror was asked")


@attack(quick=True)
def more_than_promised(scene: Scene) -> None:
    """A file of 3 MiB that goes on, chunk after chunk."""

    def answer(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "200 OK", "Content-Length: 3145728", "Accept-Ranges: bytes")
        flood(connection)

    attempt(scene, answer, mirror=False)


@attack()
def chunks_without_an_end(scene: Scene) -> None:
    """No length at all, and no end."""

    def answer(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "200 OK", "Transfer-Encoding: chunked")
        flood(connection, 1200 << 20, b"100000\r\n" + bytes(MIB) + b"\r\n")
        connection.shutdown(socket.SHUT_RDWR)

    # No size is known: the free disk is the bound. The flood is larger than the memory that a command may hold.
    attempt(scene, answer, stored=2 << 30, mirror=False)


@attack()
def wrong_ranges(scene: Scene) -> None:
    """Drops every answer, and answers requests for the rest with other ranges."""
    good = content(scene)

    def answer(connection: socket.socket, request: str, number: int) -> None:
        start = span(request)
        if start is None:
            say(connection, "200 OK", f"Content-Length: {len(good)}", 'ETag: "a"', body=good[:5000])
        else:
            wrong = f"bytes {start + 7}-{len(good) - 1}/{len(good)}"
            say(connection, "206 Partial Content", f"Content-Range: {wrong}", 'ETag: "a"', body=good[start : start + 9])

    attempt(scene, answer)


@attack()
def cut_short_and_called_whole(scene: Scene) -> None:
    """Says 3 MiB, sends one, and calls that the whole file when the rest is asked for."""

    def answer(connection: socket.socket, request: str, number: int) -> None:
        if span(request) is None:
            say(connection, "200 OK", f"Content-Length: {3 * MIB}", "Accept-Ranges: bytes", body=bytes(MIB))
        else:
            say(connection, "416 Range Not Satisfiable", f"Content-Range: bytes */{MIB}", "Content-Length: 0")

    attempt(scene, answer)
    found = list((scene.home / "archives" / ANTMAZE).glob("*.hdf5"))
    if any(f.stat().st_size == MIB for f in found):
        scene.fault("a file that was cut short was accepted")


@attack()
def redirects(scene: Scene) -> None:
    """Bodies of redirects without an end, circles, and addresses that are none."""
    bomb = zlib.compressobj(9, wbits=31)
    packed = b"".join(bomb.compress(bytes(MIB)) for _ in range(2000)) + bomb.flush()

    def endless(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "302 Found", f"Location: /{number}")
        flood(connection)

    def gzipped(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "302 Found", f"Location: /{number}", "Content-Encoding: gzip", body=packed)

    attempt(scene, endless, mirror=False, requests=400)
    attempt(scene, gzipped, mirror=False, requests=400)
    for location in (
        "http://[::1",
        "file:///etc/passwd",
        f"file://{scene.key}",
        "//",
        "http://\x7f:99999/",
        "gopher://x/",
    ):

        def odd(connection: socket.socket, request: str, number: int, to: str = location) -> None:
            say(connection, "302 Found", f"Location: {to}", "Content-Length: 0")

        attempt(scene, odd, mirror=location == "http://[::1", requests=100)  # ten hops at each of eight places


@attack()
def packed_bodies(scene: Scene) -> None:
    """Content-Encoding, of bytes that unpack to a thousandfold."""
    packed = gzip.compress(bytes(400 * MIB), 9)

    def answer(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "200 OK", f"Content-Length: {len(packed)}", "Content-Encoding: gzip", body=packed)

    attempt(scene, answer, mirror=False)


@attack()
def headers_that_drip(scene: Scene) -> None:
    """One byte of the headers a second."""

    def answer(connection: socket.socket, request: str, number: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(1000):
            connection.sendall(b"x")
            time.sleep(0.5)

    attempt(scene, answer, mirror=True)


@attack()
def continue_without_an_end(scene: Scene) -> None:
    """``100 Continue`` for ever, and headers without an end."""

    def going_on(connection: socket.socket, request: str, number: int) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    def headers(connection: socket.socket, request: str, number: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X: y\r\n" * 1000)

    def hints(connection: socket.socket, request: str, number: int) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000)

    attempt(scene, going_on)
    attempt(scene, hints, mirror=False)
    attempt(scene, headers, mirror=False)


@attack()
def headers_that_end_early(scene: Scene) -> None:
    """A line that is no header hides the length behind it, and the file is cut short."""
    good = content(scene)

    def answer(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "200 OK", "no header", f"Content-Length: {len(good)}", body=good[: len(good) // 2])

    attempt(scene, answer)


@attack()
def trailers_that_drip(scene: Scene) -> None:
    """A whole file, and after it trailers without an end."""
    good = content(scene)

    def answer(connection: socket.socket, request: str, number: int) -> None:
        say(connection, "200 OK", "Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n" % (len(good), good))
        while True:
            connection.sendall(b"X-Trailer: 1\r\n")
            time.sleep(0.5)

    with Liar(answer) as liar, mirrored(scene) as sound:
        scene.environment["RLDS_MIRROR"] = f"{liar.url} {sound}"
        if (result := scene.run("download", ANTMAZE)).code:
            scene.fault(f"the sound mirror was not used: {result.err[-300:]!r}")


@attack()
def headers_of_absurd_values(scene: Scene) -> None:
    """Numbers of thousands of digits, dates of another age, words of a terminal."""
    good = content(scene)
    for k, (status, *headers) in enumerate(
        (
            ("200 OK", f"Content-Length: {'9' * 5000}"),
            ("200 OK", "Content-Length: -5"),
            ("200 OK", f"Content-Length: {len(good)}", f"Content-Length: {len(good) + 1}"),
            ("206 Partial Content", f"Content-Range: bytes 0-{'9' * 5000}/{'9' * 5001}"),
            ("503 Busy", "Retry-After: 1e400", "Content-Length: 0"),
            ("503 Busy", f"Retry-After: {'9' * 400}", "Content-Length: 0"),
            ("429 Busy", "Retry-After: Fri, 31 Dec 99999 23:59:59 GMT", "Content-Length: 0"),
            ("404 \x1b]0;owned\x07\x1b[2Jgone", "Content-Length: 0"),
            ("999999999999999999999 x", "Content-Length: 0"),
            ("abc def", "Content-Length: 0"),
            ("200 OK", "Transfer-Encoding: chunked, chunked, gzip", "Content-Length: 10"),
            ("200 OK", "Last-Modified: \x9b31m", "ETag: \x1b[2J", "Content-Length: 100"),
        )
    ):

        def answer(
            connection: socket.socket, request: str, number: int, s: str = status, h: tuple[str, ...] = tuple(headers)
        ) -> None:
            say(connection, s, *h)

        attempt(scene, answer, mirror=k in (0, 3, 4))


@attack()
def listings(scene: Scene) -> None:
    """Listings without an end, in circles, and of other types."""
    paths: tuple[Callable[[int], str], ...] = (
        lambda n: json.dumps(
            [{"type": "file", "path": f"data/f{n}_{k}.h5", "size": 1, "oid": "0" * 40} for k in range(50)]
        ),
        lambda n: json.dumps([{"type": "file", "path": "/" * 200_000, "size": 1, "oid": "0" * 40}]),
        lambda n: json.dumps([{"type": "file", "path": "a.h5", "size": 2**70, "oid": 7, "lfs": "abc"}]),
        lambda n: json.dumps([{"type": "file", "path": "../../victim/notes.txt", "size": 1, "oid": "0" * 40}]),
        lambda n: json.dumps(
            [{"type": "file", "path": "a\x1b[2J.h5", "size": "1e400", "oid": None, "lfs": {"oid": []}}]
        ),
        lambda n: "[" * 100_000,
        lambda n: "[{}" + ", {}" * 3_000_000 + "]",
        lambda n: '{"a": 1}',
    )
    for page in paths:

        def answer(connection: socket.socket, request: str, number: int, page: Callable[[int], str] = page) -> None:
            body = page(number).encode()
            path = request.split()[1].split("?")[0]
            following = f'Link: <http://{_host(request)}{path}?cursor={number}>; rel="next"'
            head = (following, "Content-Type: application/json", "X-Repo-Commit: " + "0" * 40)
            say(connection, "200 OK", f"Content-Length: {len(body)}", *head, body=body)

        with Liar(answer) as liar:
            scene.environment["HF_ENDPOINT"] = liar.url
            scene.refused(scene.run("download", "minari/D4RL/door/human-v2", "--verbose"))
            if liar.requests > 20_000:
                scene.fault(f"{liar.requests} requests for a listing")


def _host(request: str) -> str:
    found = re.search(r"(?i)host: (\S+)", request)
    return found[1] if found else ""


@attack()
def listings_of_buckets(scene: Scene) -> None:
    """The same of GCS, S3 and pages of links."""
    bodies: tuple[tuple[str, Callable[[int], str]], ...] = (
        ("gs", lambda n: json.dumps({"items": [{"name": f"f{n}", "size": "1"}], "nextPageToken": f"{n}"})),
        ("gs", lambda n: json.dumps({"items": [{"name": "x", "size": "abc", "md5Hash": 7}]})),
        ("gs", lambda n: json.dumps({"items": 7})),
        ("s3", lambda n: f'<?xml version="1.0" encoding="foo"?><ListBucketResult>{n}</ListBucketResult>'),
        ("s3", lambda n: _s3(n, "<Size>1</Size>")),
        ("s3", lambda n: _s3(n, "<Size>abc</Size>")),
        ("s3", lambda n: _lol() + "<ListBucketResult>&i;</ListBucketResult>"),
        ("http", lambda n: "<html><![foo[<a href='x.h5'>"),
        ("http", lambda n: "".join(f"<a href='f{n}_{k}/'>x</a>" for k in range(1000))),
        ("http", lambda n: "<a href='../../x'>x</a><a href='http://[::1'>x</a><a href='a%00b'>x</a>" * 100_000),
    )
    for scheme, page in bodies:

        def answer(connection: socket.socket, request: str, number: int, page: Callable[[int], str] = page) -> None:
            body = page(number).encode()
            kind = "text/html" if "href" in page(0) else "application/json"
            say(connection, "200 OK", f"Content-Length: {len(body)}", f"Content-Type: {kind}", body=body)

        with Liar(answer) as liar:
            scene.environment |= {"RLDS_GCS_ENDPOINT": liar.url, "AWS_ENDPOINT_URL": liar.url}
            source = f"{liar.url}/d/" if scheme == "http" else f"{scheme}://bucket/d"
            scene.refused(scene.run("download", "minari/D4RL/door/human-v2", "--from", source, "--verbose"))


def _s3(number: int, size: str) -> str:
    entry = f"<Contents><Key>d/f{number}.h5</Key><ETag>x</ETag>{size}</Contents>"
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{number}</NextContinuationToken>"
    return f"<ListBucketResult>{entry}{more}</ListBucketResult>"


def _lol() -> str:
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 20}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    return f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">{entities}]>'


@attack()
def credentials_elsewhere(scene: Scene) -> None:
    """A redirect to another host gets nothing of ``.netrc``, nor the token of the hub."""
    seen: list[str] = []

    def other(connection: socket.socket, request: str, number: int) -> None:
        seen.append(request)
        say(connection, "404 Not Found", "Content-Length: 0")

    with Liar(other) as elsewhere:
        port = elsewhere.url.rpartition(":")[2]

        def answer(connection: socket.socket, request: str, number: int) -> None:
            say(connection, "302 Found", f"Location: http://localhost:{port}/x", "Content-Length: 0")

        (scene.root / "user").mkdir(exist_ok=True)
        netrc = scene.root / "user" / ".netrc"
        netrc.write_text(f"machine localhost login me password {SECRET}\ndefault login me password {SECRET}\n")
        netrc.chmod(0o600)
        scene.environment |= {"HF_TOKEN": SECRET}
        with Liar(answer) as liar:
            scene.run("download", ANTMAZE, "--from", liar.url)
            scene.environment["HF_ENDPOINT"] = liar.url
            scene.run("download", "minari/D4RL/door/human-v2")
    if any("authorization:" in request.lower() for request in seen):
        scene.fault("credentials went to another host over plain HTTP")


@attack()
def state_of_a_part(scene: Scene) -> None:
    """What stands beside a part is of other types."""
    archive = scene.home / "archives" / ANTMAZE
    archive.mkdir(parents=True)
    documents = (
        '{"url": 1, "etag": 5, "size": "x"}',
        '{"url": null, "etag": [], "size": -1, "last_modified": {}}',
        "[]",
        "[" * 100_000,
        '{"size": ' + "9" * 5000 + "}",
        "\x00",
    )
    with Server() as server:
        server.add(f"/{ANTMAZE_FILE}", content(scene))
        for document in documents:
            for name in (f"{ANTMAZE_FILE}.part.json", f"{ANTMAZE_FILE}.json", ".listing.json"):
                (archive / f"{ANTMAZE_FILE}.part").write_bytes(b"x" * 1000)
                (archive / name).write_text(document)
                result = scene.run("download", ANTMAZE, "--from", server.url)
                if result.code:
                    scene.fault(f"{name} {document[:30]!r} keeps a sound source from being used: {result.err[-200:]!r}")
                scene.run("rm", ANTMAZE, "--yes")
                for file in archive.glob("*"):
                    file.unlink()
                (archive / ".listing.json").unlink(missing_ok=True)
