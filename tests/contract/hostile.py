"""Servers that lie, one behaviour a name, on raw sockets of the loopback interface.

::

    for name in BEHAVIOURS:
        with Hostile(name, content) as server:
            ...                              # fetch server.url; it must end, soon, with nothing wrong on the disk
            server.requests, server.sent     # what was asked, and the bytes that were sent

An endless behaviour ends when its client goes away, or with the server. Every behaviour pretends to serve ``content``.
"""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat

BLOCK = bytes(1 << 16)
BOMB = gzip.compress(bytes(1 << 24))  # 16 KiB for 16 MiB, of which an answer may hold any number


class Talk:
    """One request, and what is said to it."""

    def __init__(self, server: Hostile, connection: socket.socket, head: bytes, number: int) -> None:
        self.server, self.connection, self.number = server, connection, number  # requests before this one
        self.content, self.size = server.content, len(server.content)
        lines = head.decode("latin-1").split("\r\n")
        self.path = lines[0].split(" ")[1] if lines[0].count(" ") > 1 else ""
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}

    @property
    def first(self) -> int | None:
        """The first byte that was asked for, where a range was."""
        asked = self.headers.get("range", "")
        return int(asked.removeprefix("bytes=").partition("-")[0]) if asked else None

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)
        self.server.sent += len(data)

    def answer(self, status: str, *headers: str, body: bytes = b"") -> None:
        """An answer whose headers are all given, and the beginning of its body."""
        self.send("".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, "")).encode("latin-1") + body)

    def plain(self, *headers: str) -> None:
        """The file as it is, with more headers."""
        self.answer("200 OK", f"Content-Length: {self.size}", *headers, body=self.content)

    def all(self, blocks: Iterator[bytes]) -> None:
        for block in blocks:
            self.send(block)

    def drip(self, text: bytes, every: float = 0.02) -> None:
        """Single bytes, with pauses, from the beginning again and again."""
        while True:
            for k in range(len(text)):
                self.send(text[k : k + 1])
                if self.server.stopped.wait(every):
                    return


Behaviour = Callable[[Talk], None]
BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__.replace("_", "-")] = function
    return function


def simple(name: str, status: str, *headers: str, body: bytes = b"") -> None:
    """A behaviour of one answer, always the same."""
    BEHAVIOURS[name] = lambda talk: talk.answer(status, *headers, body=body)


# -- more bytes than there should be


@behaviour
def beyond_chunked(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


@behaviour
def beyond_closing(talk: Talk) -> None:
    talk.answer("200 OK", "Connection: close")
    talk.all(repeat(BLOCK))


@behaviour
def beyond_by_one(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked")
    more = talk.content + b"x"
    talk.send(b"%x\r\n" % len(more) + more + b"\r\n0\r\n\r\n")


@behaviour
def beyond_the_range(talk: Talk) -> None:
    if talk.first is None:
        return talk.answer("200 OK", f"Content-Length: {talk.size}", 'ETag: "1"', body=talk.content[: talk.size // 2])
    said = f"Content-Range: bytes {talk.first}-{talk.size - 1}/{talk.size}"
    talk.answer("206 Partial Content", said, 'ETag: "1"', "Transfer-Encoding: chunked")
    return talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


@behaviour
def beyond_a_range_without_a_total(talk: Talk) -> None:
    if talk.first is None:
        half = talk.size // 2
        talk.answer("200 OK", "Transfer-Encoding: chunked", 'ETag: "1"')
        return talk.send(b"%x\r\n" % talk.size + talk.content[:half])
    said = f"Content-Range: bytes {talk.first}-{'9' * 18}/*"
    talk.answer("206 Partial Content", said, 'ETag: "1"', "Transfer-Encoding: chunked")
    return talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


@behaviour
def packed_body(talk: Talk) -> None:
    talk.answer("200 OK", "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}", body=BOMB)


@behaviour
def length_without_end(talk: Talk) -> None:
    talk.answer("200 OK", f"Content-Length: {10**17}", 'ETag: "1"')
    talk.all(repeat(BLOCK))


# -- further connections that lie, while the first one is honest and slow


def beside(name: str, ranged: Behaviour) -> None:
    """A behaviour of the answers to ranges; the file as a whole comes as it should, a little at a time."""

    def answered(talk: Talk) -> None:
        if talk.first is not None:
            ranged(talk)
            return
        talk.answer("200 OK", f"Content-Length: {talk.size}", 'ETag: "1"', "Accept-Ranges: bytes")
        for k in range(0, talk.size, 1 << 13):
            talk.send(talk.content[k : k + (1 << 13)])
            talk.server.stopped.wait(0.01)

    BEHAVIOURS[f"beside-{name}"] = answered


def _longer(talk: Talk) -> None:
    said = f"Content-Range: bytes {talk.first}-{talk.size - 1}/{talk.size}"
    talk.answer("206 Partial Content", said, 'ETag: "1"', "Transfer-Encoding: chunked")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


def _right(talk: Talk, *headers: str) -> None:
    """The headers of the range that was asked for."""
    last = talk.headers["range"].rpartition("-")[2] or str(talk.size - 1)
    said = f"Content-Range: bytes {talk.first}-{last}/{talk.size}"
    talk.answer("206 Partial Content", said, 'ETag: "1"', *headers)


def _endless(talk: Talk) -> None:
    """The right bytes of the range, and no end after them."""
    _right(talk, "Transfer-Encoding: chunked")
    rest = talk.content[talk.first : int(talk.headers["range"].rpartition("-")[2] or talk.size - 1) + 1]
    talk.send(b"%x\r\n" % len(rest) + rest + b"\r\n")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


def _packed(talk: Talk) -> None:
    _right(talk, "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    talk.all(repeat(b"%x\r\n" % len(BOMB) + BOMB + b"\r\n"))


def _dripped(talk: Talk) -> None:
    _right(talk, "Transfer-Encoding: chunked")
    talk.drip(b"0")


beside("longer", _longer)
beside("endless", _endless)
beside("packed", _packed)
beside("dripped", _dripped)
beside("silent", lambda talk: talk.drip(b"H", every=3600.0))
beside("long", lambda talk: talk.answer("206 Partial Content", f"Content-Range: bytes 0-{'9' * 5000}/*"))
beside("refusing", lambda talk: talk.answer("429 Slow Down", "Retry-After: 9999", "Content-Length: 0"))


# -- no end of requests


@behaviour
def wrong_ranges(talk: Talk) -> None:
    if talk.first is None:
        return talk.answer("200 OK", f"Content-Length: {talk.size}", 'ETag: "1"', body=talk.content[: talk.size // 2])
    said = f"Content-Range: bytes 0-{talk.size - 1}/{talk.size}"
    return talk.answer("206 Partial Content", said, f"Content-Length: {talk.size}", 'ETag: "1"', body=talk.content)


@behaviour
def one_byte_a_connection(talk: Talk) -> None:
    """After the beginning, which tells that it is no web page."""
    first = talk.first or 0
    status, said = ("206 Partial Content", f"Content-Range: bytes {first}-{talk.size - 1}/{talk.size}")
    headers = (f"Content-Length: {talk.size - first}", 'ETag: "1"', *([said] if talk.first is not None else []))
    talk.answer(
        status if talk.first is not None else "200 OK",
        *headers,
        body=talk.content[first : first + (1 if first else 600)],
    )


@behaviour
def another_etag_each_time(talk: Talk) -> None:
    said = f'ETag: "{talk.number}"'
    talk.answer("200 OK", f"Content-Length: {talk.size}", said, body=talk.content[: talk.size // 2])


@behaviour
def always_busy(talk: Talk) -> None:
    talk.answer("503 Service Unavailable", "Retry-After: 0", "Content-Length: 0")


# -- redirects and errors


@behaviour
def redirect_with_endless_body(talk: Talk) -> None:
    talk.answer("302 Found", f"Location: {talk.server.url}/again", "Transfer-Encoding: chunked")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


@behaviour
def redirect_with_packed_body(talk: Talk) -> None:
    length = len(BOMB) * 100
    headers = (f"Location: {talk.server.url}/again", "Content-Encoding: gzip", f"Content-Length: {length}")
    talk.answer("302 Found", *headers)
    talk.all(BOMB for _ in range(100))


@behaviour
def redirect_to_itself(talk: Talk) -> None:
    talk.answer("302 Found", "Location: /x.h5", "Content-Length: 0", "Connection: close")


@behaviour
def redirect_with_dripped_body(talk: Talk) -> None:
    talk.answer("302 Found", "Location: /x.h5", "Content-Length: 16000")
    talk.drip(b" ")


@behaviour
def error_with_endless_body(talk: Talk) -> None:
    talk.answer("404 Not Found", "Transfer-Encoding: chunked")
    talk.all(repeat(b"10000\r\n" + BLOCK + b"\r\n"))


LOCATIONS = {
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/x.h5",
    "bracket": "http://[::1",
    "port": "http://127.0.0.1:99999/x.h5",
    "no-port": "http://127.0.0.1:abc/x.h5",
    "long-label": f"http://{'a' * 64}.invalid/x.h5",
    "empty-label": "http://a..invalid/x.h5",
    "idna": "http://xn--\xe4\xf6\xfc-.invalid/x.h5",
    "nothing": "http:///x.h5",
    "empty": "",
    "zero": "http://127.0.0.1:0/x.h5",
    "data": "data:text/plain,x",
    "script": "javascript:alert(1)",
}
for _name, _location in LOCATIONS.items():
    simple(f"redirect-to-{_name}", "302 Found", f"Location: {_location}", "Content-Length: 0", "Connection: close")


# -- files that are cut short


def cut(talk: Talk, *headers: str) -> None:
    """The first answer: the whole length, and half of the file."""
    talk.answer("200 OK", f"Content-Length: {talk.size}", *headers, body=talk.content[: talk.size // 2])


@behaviour
def cut_and_416(talk: Talk) -> None:
    if talk.first is None:
        return cut(talk, 'ETag: "1"')
    said = f"Content-Range: bytes */{talk.size // 2}"
    return talk.answer("416 Range Not Satisfiable", said, "Content-Length: 0")


@behaviour
def cut_and_416_and_200(talk: Talk) -> None:
    if talk.first is None and talk.number:
        body = talk.content[: talk.size // 2]
        return talk.answer("200 OK", f"Content-Length: {len(body)}", body=body)
    return cut_and_416(talk)


@behaviour
def cut_and_another_total(talk: Talk) -> None:
    if talk.first is None:
        return cut(talk, 'ETag: "1"')
    end = talk.first + 100
    said = f"Content-Range: bytes {talk.first}-{end - 1}/{end}"
    return talk.answer("206 Partial Content", said, 'ETag: "1"', "Content-Length: 100", body=bytes(100))


@behaviour
def cut_and_no_total(talk: Talk) -> None:
    if talk.first is None:
        return cut(talk, 'ETag: "1"')
    said = f"Content-Range: bytes {talk.first}-{talk.first + 99}/*"
    return talk.answer("206 Partial Content", said, 'ETag: "2"', "Content-Length: 100", body=bytes(100))


@behaviour
def cut_and_shorter(talk: Talk) -> None:
    if not talk.number:
        return cut(talk)
    body = talk.content[: talk.size // 2]
    return talk.answer("200 OK", f"Content-Length: {len(body)}", body=body)


@behaviour
def cut_and_no_length(talk: Talk) -> None:
    if not talk.number:
        return cut(talk)
    return talk.send(b"HTTP/1.0 200 OK\r\n\r\n" + talk.content[: talk.size // 2])


@behaviour
def cut_and_chunked(talk: Talk) -> None:
    if not talk.number:
        return cut(talk)
    body = talk.content[: talk.size // 2]
    return talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")


@behaviour
def cut_in_a_chunk(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"%x\r\n" % talk.size + talk.content[: talk.size // 2])


@behaviour
def cut_behind_a_broken_header(talk: Talk) -> None:
    """Headers after a line that is none are not read, so that the length is lost."""
    length = f"Content-Length: {talk.size}"
    talk.answer("200 OK", "no header", length, "Connection: close", body=talk.content[: talk.size // 2])


@behaviour
def cut_in_the_headers(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n")


# -- no end of waiting


@behaviour
def silent(talk: Talk) -> None:
    talk.server.stopped.wait()


@behaviour
def dripped_status(talk: Talk) -> None:
    talk.drip(b"HTTP/1.1 ")


@behaviour
def dripped_headers(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n")
    talk.drip(b"X-More: yes\r\n")


@behaviour
def endless_continue(talk: Talk) -> None:
    talk.all(repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000))


@behaviour
def endless_hints(talk: Talk) -> None:
    talk.all(repeat(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000))


@behaviour
def hints_before_the_answer(talk: Talk) -> None:
    """Not a lie: any number of answers may announce the one that counts."""
    for status in ("102 Processing", "103 Early Hints", "100 Continue", "103 Early Hints"):
        talk.answer(status, "Link: </style.css>; rel=preload", "Transfer-Encoding: chunked")
    talk.plain()


@behaviour
def dripped_body(talk: Talk) -> None:
    talk.answer("200 OK", f"Content-Length: {talk.size}")
    talk.drip(b"x")


@behaviour
def dripped_chunk_size(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked")
    talk.drip(b"0")


@behaviour
def dripped_chunk_extension(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"5;")
    talk.drip(b"x")


@behaviour
def endless_trailers(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n")
    talk.all(repeat(b"X-More: yes\r\n" * 1000))


@behaviour
def dripped_trailers(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n")
    talk.drip(b"X-More: yes\r\n")


# -- headers that cannot be read


LENGTHS = {
    "long": "9" * 5000, "large": "9" * 18 + "9", "negative": "-5", "signed": "+5", "arabic": "\xd9\xa5",
    "spaced": "1 0", "hexadecimal": "0x10", "float": "1e400",
}  # fmt: skip
for _name, _said in LENGTHS.items():
    simple(f"length-{_name}", "200 OK", f"Content-Length: {_said}", body=BLOCK)
simple("length-twice", "200 OK", "Content-Length: 5", "Content-Length: 6", body=BLOCK)

RANGES = {
    "long": f"bytes {'9' * 5000}-{'9' * 5000}/{'9' * 5000}", "negative": "bytes -5--1/5", "reversed": "bytes 9-5/10",
    "unknown": "bytes */*", "other-unit": "lines 0-5/6", "beyond": "bytes 0-9/5",
}  # fmt: skip


def _ranged(said: str) -> Behaviour:
    def answered(talk: Talk) -> None:
        if talk.number == 0:
            return cut(talk, 'ETag: "1"')
        return talk.answer(
            "206 Partial Content", f"Content-Range: {said}", 'ETag: "1"', "Content-Length: 5", body=b"12345"
        )

    return answered


BEHAVIOURS.update({f"range-{name}": _ranged(said) for name, said in RANGES.items()})
simple("unsatisfied-long", "416 Range Not Satisfiable", f"Content-Range: bytes */{'9' * 5000}", "Content-Length: 0")

WAITS = {
    "digits": "9" * 400, "float": "1e400", "negative": "-1", "arabic": "\xd9\xa5",
    "year": "Fri, 01 Jan 99999 00:00:00 GMT",
    "zone": "Fri, 31 Dec 9999 23:59:59 -9999", "zones": f"Fri, 01 Jan 2100 00:00:00 +{'9' * 400}", "text": "()<>@,;:",
}  # fmt: skip
for _name, _said in WAITS.items():
    simple(f"wait-{_name}", "503 Service Unavailable", f"Retry-After: {_said}", "Content-Length: 0")


@behaviour
def not_http(talk: Talk) -> None:
    talk.send(b"SSH-2.0-OpenSSH_9.6\r\n")


@behaviour
def status_of_letters(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 abc OK\r\n\r\n")


@behaviour
def status_beyond(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 99999 OK\r\n\r\n")


@behaviour
def long_line(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (1 << 20) + b"\r\n\r\n")


@behaviour
def many_headers(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n" + b"X-Many: yes\r\n" * 100_000 + b"\r\n")


@behaviour
def escapes_in_the_reason(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 404 \x1b]0;owned\x07\x1b[2J" + b"x" * 5000 + b"\r\nContent-Length: 0\r\n\r\n")


@behaviour
def header_folded_into_the_etag(talk: Talk) -> None:
    cut(talk, 'ETag: "1"\r\n X-Injected: yes', "Last-Modified: \xff\xfe")


@behaviour
def chunk_size_negative(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"-5\r\nhello\r\n" * 1000)


@behaviour
def chunk_size_of_letters(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"xyz\r\nhello\r\n0\r\n\r\n")


@behaviour
def chunk_size_long(talk: Talk) -> None:
    talk.answer("200 OK", "Transfer-Encoding: chunked", body=b"f" * 60_000 + b"\r\nhello")


@behaviour
def reset(talk: Talk) -> None:
    talk.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


class Hostile:
    """A server of one behaviour; runs from ``with`` to its end on a free port of the loopback interface."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.requests: list[str] = []  # the heads of all requests
        self.sent = 0  # bytes
        self.stopped = threading.Event()
        self._behaviour = BEHAVIOURS[name]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if head := _head(connection):
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(head.decode("latin-1"))
                self._behaviour(Talk(self, connection, head, number))
        with self._lock:
            self._open.discard(connection)


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and (data := connection.recv(1 << 16)):
        head += data
    return head
