"""An object server on this machine that answers late, in a process of its own: the files of a directory by ranges.

python benchmarks/object_server.py DIRECTORY [MILLISECONDS]     prints its URL; serves until its stdin is closed

``/BUCKET/KEY`` is the file ``DIRECTORY/BUCKET/KEY``, as S3's clients ask for it: GET with ``Range``, HEAD, and lists.
Each answer begins so many milliseconds after its request, however many requests there are at a time. ``/?counts`` says
how many there were, and the bytes of their answers.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.sax.saxutils import escape

_HEAD = re.compile(rb"(?im)^(range|connection): *([^\r\n]*)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_SECOND = "Sun, 22 Nov 2026 12:00:00 GMT"


class Files:
    """The files of a directory, mapped when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self._maps = root, dict[str, memoryview | None]()
        self.requests = self.sent = 0

    def get(self, name: str) -> memoryview | None:
        """Return the content of a file, or None."""
        if self._maps.get(name) is None:
            path = (self.root / name).resolve()
            found: memoryview | None = None
            if path.is_file() and self.root in path.parents:
                with path.open("rb") as f:
                    size = path.stat().st_size
                    found = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
            self._maps[name] = found
        return self._maps[name]

    def listed(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """Return the list of a bucket, as S3 sends it."""
        prefix, by = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found, groups = [], dict[str, None]()
        for path in sorted((self.root / bucket).rglob("*")):
            key = path.relative_to(self.root / bucket).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            head, cut, _ = key[len(prefix) :].partition(by) if by else (key, "", "")
            if cut:
                groups[prefix + head + cut] = None
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size><ETag>&quot;{path.stat().st_size}"
                    "&quot;</ETag><LastModified>2026-11-22T12:00:00.000Z</LastModified></Contents>"
                )
        shown = "".join(found) + "".join(
            f"<CommonPrefixes><Prefix>{escape(g)}</Prefix></CommonPrefixes>" for g in groups
        )
        told = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f'<?xml version="1.0"?><ListBucketResult>{told}{shown}</ListBucketResult>'.encode()


@contextmanager
def served(directory: Path, milliseconds: float) -> Iterator[str]:
    """Serve a directory from a process of its own; give the URL."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(directory), str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def sent(url: str) -> int:
    """Return the bytes of all answers of a server so far."""
    return int(json.loads(urlopen(f"{url}/?counts").read())[1])


class Connection(asyncio.Protocol):
    """One connection: its requests are answered one after the other."""

    def __init__(self, files: Files, latency: float) -> None:
        self._files, self._latency, self._data = files, latency, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=8 << 20)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head, self._data = self._data[:end], self._data[end + 4 :]
            asyncio.get_running_loop().call_later(self._latency, self._answer, head)

    def _answer(self, head: bytes) -> None:
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        headers = {k.lower(): v.decode() for k, v in _HEAD.findall(head)}
        parts = urlsplit(target)
        name, query = unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)
        if "counts" in query:
            body: memoryview | bytes = json.dumps([self._files.requests, self._files.sent]).encode()
            return self._send("200 OK", body, {}, method)
        self._files.requests += 1
        if "list-type" in query:
            return self._send("200 OK", self._files.listed(name, query), {"Content-Type": "application/xml"}, method)
        found = self._files.get(name)
        if found is None:
            return self._send("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>", {}, method)
        told = {"ETag": f'"{len(found)}"', "Last-Modified": _SECOND, "Accept-Ranges": "bytes"}
        asked = _RANGE.match(headers.get(b"range", ""))
        if asked is None or not (asked[1] or asked[2]):
            return self._send("200 OK", found, told, method)
        first = int(asked[1]) if asked[1] else max(0, len(found) - int(asked[2]))
        last = min(int(asked[2]) if asked[1] and asked[2] else len(found) - 1, len(found) - 1)
        if first > last:
            return self._send("416 Range Not Satisfiable", b"", {"Content-Range": f"bytes */{len(found)}"}, method)
        told["Content-Range"] = f"bytes {first}-{last}/{len(found)}"
        return self._send("206 Partial Content", found[first : last + 1], told, method)

    def _send(self, status: str, body: memoryview | bytes, told: dict[str, str], method: str) -> None:
        if self._transport.is_closing():
            return
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in told.items())]
        self._transport.write("\r\n".join([*lines, "", ""]).encode())  # type: ignore[attr-defined]
        if method != "HEAD":
            self._files.sent += len(body)
            self._transport.write(body)  # type: ignore[attr-defined]


async def _serve(root: Path, latency: float) -> None:
    files, loop = Files(root.resolve()), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(files, latency), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0))
