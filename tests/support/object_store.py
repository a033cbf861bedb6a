"""An object store on this machine: the part of S3's protocol that obstore speaks, plain GET for web readers, faults.

Buckets are dictionaries in memory. Requests and the bytes of uploads are counted. A `Fault` is done to the next
requests that it matches:

=========  =======================================================================================
``503``    refused with that status; so are 500 and any other number
``429``    refused, with ``Retry-After``
reset      the connection is cut before the answer
lost       the request is done, and the connection cut before the answer
short      the head of the answer promises everything, and half of the body comes
etag       the answer has the ETag of something else
other      the answer has the right size, and another byte in the middle
long       more bytes come than were asked for
expired    the credentials have expired
gzip       the body is compressed, and says so
slow       the body comes a byte at a time, for ``wait`` seconds; then the connection is cut
moved      redirected to an address that is good for one request
=========  =======================================================================================
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from rlds_cli.base import settings
from rlds_cli.base.settings import Settings

KEY, SECRET = "AKIDRLDSTEST", "canary-secret-of-the-store"
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass
class Fault:
    """Something that goes wrong with the next ``times`` requests of a method whose path matches."""

    kind: str
    method: str = "GET"
    path: str = ""
    times: int = 1
    wait: float = 0.0  # seconds of Retry-After
    skip: int = 0  # matching requests that are served before


@dataclass(frozen=True)
class Request:
    """A request as it came, and the bytes of its body."""

    method: str
    path: str
    headers: dict[str, str]
    size: int


class ObjectStore:
    """The server; a context manager.

    Parameters
    ----------
    latency : float
        Seconds before each answer.
    conditional : bool
        False: the store answers 501 to conditional writes, as some do.
    ranges : bool
        False: the store sends whole objects, whatever range is asked for.
    """

    def __init__(self, *, latency: float = 0.0, conditional: bool = True, ranges: bool = True) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.latency, self.conditional, self.ranges = latency, conditional, ranges
        self.private: set[str] = set()  # buckets that answer signed requests only
        self.hashed: set[str] = set()  # buckets that deny requests whose signature has no hash of the body
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.begun = 0  # uploads
        self.generations: dict[tuple[str, str], int] = {}  # as Google counts them
        self.tickets: set[str] = set()
        self.aborted = 0
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ObjectStore:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Speak HTTPS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def settings(self, home: Path, **env: str) -> Settings:
        """Settings of a user of this store."""
        return settings.read(environ=self.environ(home) | env)

    def environ(self, home: Path) -> dict[str, str]:
        """The environment of a user of this store."""
        key = home.with_name(f"{home.name}-google.json")
        account = {"gcs_base_url": self.url, "disable_oauth": True}  # as obstore talks to other servers than Google's
        key.write_text(json.dumps(account | dict.fromkeys(("client_email", "private_key", "private_key_id"), "")))
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
            "HOME": str(home),
            "RLDS_HOME": str(home),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "RLDS_GCS_ENDPOINT": self.url,
            "NO_PROXY": "*",
        }

    def etag(self, data: bytes) -> str:
        """Return the ETag of an object, with its quotes."""
        return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'

    def joined(self, parts: list[bytes]) -> bytes:
        """Return the object that parts of an upload make."""
        return b"".join(parts)

    @property
    def received(self) -> int:
        """Bytes of all bodies that came."""
        return sum(r.size for r in self.requests if r.method == "PUT")

    @contextmanager
    def counting(self) -> Iterator[list[Request]]:
        """Collect the requests of a block."""
        before, found = len(self.requests), list[Request]()
        yield found
        found += self.requests[before:]

    def fault(self, method: str, path: str) -> Fault | None:
        """Take the fault that is due for a request."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    if fault.skip > 0:
                        fault.skip -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # clients cut connections, and so do faults


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, self.key = unquote(parts.path)[1:].partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.store.lock:
            self.store.requests.append(Request(self.command, self.path, dict(self.headers), len(body)))
        time.sleep(self.store.latency)
        fault = self.store.fault(self.command, self.path)
        self.kind, self.wait = (fault.kind, fault.wait) if fault else ("", 0.0)
        if self.kind == "reset":
            return self._cut()
        if self.kind == "expired":
            return self._answer(400, b"<Error><Code>ExpiredToken</Code></Error>")
        if self.kind == "moved":
            self.store.tickets.add(ticket := os.urandom(8).hex())
            return self._answer(302, b"", {"Location": f"{parts.path}?ticket={ticket}"})
        if "ticket" in self.query:
            with self.store.lock:
                if self.query["ticket"] not in self.store.tickets:
                    return self._answer(403, b"the address has expired")
                self.store.tickets.remove(self.query["ticket"])
        if self.kind.isdecimal():
            wait = {"Retry-After": f"{fault.wait:.0f}"} if fault and fault.wait else {}
            return self._answer(int(self.kind), b"<Error><Code>SlowDown</Code></Error>", wait)
        if bucket not in self.store.buckets:
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if bucket in self.store.private and f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if bucket in self.store.hashed and self.headers.get("x-amz-content-sha256") == UNSIGNED:
            return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        self.bucket, self.objects = bucket, self.store.buckets[bucket]
        getattr(self, f"_{self.command.lower()}")(body)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.rfile = self.wfile = open("/dev/null", "r+b", buffering=0)  # noqa: PTH123, SIM115

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if self.kind == "lost":
            return self._cut()
        if self.kind == "other" and body:
            half = len(body) // 2
            body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        told = headers or {}
        if self.kind == "gzip":
            body = gzip.compress(body)
            told = told | {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
        if self.kind == "long":
            body += b"more"
            told = told | {"Content-Length": str(len(body))}
        if self.kind == "etag":
            told = told | {"ETag": self.store.etag(b"something else")}
        self.send_response(status)
        for name, value in told.items():
            self.send_header(name, value)
        if "Content-Length" not in told:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.kind == "slow":
            return self._drip(body)
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body[: len(body) // 2] if self.kind == "short" else body)
        if self.kind == "short":
            self._cut()
        return None

    def _drip(self, body: bytes) -> None:
        end, at = time.monotonic() + self.wait, 0
        with suppress(OSError):
            while time.monotonic() < end:
                self.wfile.write(body[at : at + 1])
                time.sleep(0.02)
                at += 1
        self._cut()

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0"?>{text}'.encode(), {"Content-Type": "application/xml"})

    def _head(self, body: bytes) -> None:
        self._get(body)

    def _get(self, body: bytes) -> None:
        if not self.key:
            return self._list()
        data = self.objects.get(self.key)
        if data is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        head = {"ETag": self.store.etag(data), "x-goog-generation": str(self._generation()), "Accept-Ranges": "bytes"}
        head["Last-Modified"] = "Sun, 22 Nov 2026 12:00:00 GMT"
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != self.store.etag(data):
            return self._answer(412)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.store.ranges:
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if first > last:
                return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            told = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Content-Length": str(last + 1 - first)}
            return self._answer(206, data[first : last + 1], head | told)
        body = b"" if self.command == "HEAD" and not self.kind else data[:]
        return self._answer(200, body, head | {"Content-Length": str(len(data))})

    def _list(self) -> None:
        prefix, by = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after, most = self.query.get("continuation-token", ""), int(self.query.get("max-keys", 1000))
        found, groups, more = [], dict[str, None](), ""
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                head, cut, _ = key[len(prefix) :].partition(by) if by else (key, "", "")
                if cut:
                    groups[prefix + head + cut] = None
                    continue
                if len(found) == most:
                    more = found[-1]
                    break
                found.append(key)
        entries = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.objects[k])}</Size><ETag>{self.store.etag(self.objects[k])}</ETag>"
            "<LastModified>2026-11-22T12:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for k in found
        )
        entries += "".join(f"<CommonPrefixes><Prefix>{escape(g)}</Prefix></CommonPrefixes>" for g in groups)
        told = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        told += f"<NextContinuationToken>{escape(more)}</NextContinuationToken>" if more else ""
        self._xml(f"<ListBucketResult><KeyCount>{len(found)}</KeyCount>{told}{entries}</ListBucketResult>")

    def _put(self, body: bytes) -> None:
        if "partNumber" in self.query:
            with self.store.lock:
                self.store.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = body
            return self._answer(200, b"", {"ETag": self.store.etag(body)})
        if source := self.headers.get("x-amz-copy-source") or self.headers.get("x-goog-copy-source"):
            bucket, _, key = unquote(source).lstrip("/").partition("/")
            data = self.store.buckets.get(bucket, {}).get(key)
            if data is None:
                return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            self.objects[self.key] = data
            return self._xml(f"<CopyObjectResult><ETag>{self.store.etag(data)}</ETag></CopyObjectResult>")
        with self.store.lock:
            there = self.objects.get(self.key)
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is not None and int(wanted) != (self._generation() if there is not None else 0):
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            absent, same = self.headers.get("If-None-Match"), self.headers.get("If-Match")
            if (absent or same) and not self.store.conditional:
                return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
            if (absent == "*" and there is not None) or (same and (there is None or same != self.store.etag(there))):
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[self.key] = body
            number = self.store.generations[self.bucket, self.key] = self._generation() + 1
        return self._answer(200, b"", {"ETag": self.store.etag(body), "x-goog-generation": str(number)})

    def _generation(self) -> int:
        return self.store.generations.get((self.bucket, self.key), 1)

    def _post(self, body: bytes) -> None:
        if "uploads" in self.query:
            with self.store.lock:
                self.store.begun += 1
                number = f"upload-{self.store.begun}"
                self.store.uploads[number] = {}
            return self._xml(
                f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            )
        if "uploadId" in self.query:
            parts = self.store.uploads.pop(self.query["uploadId"], None)
            if parts is None:
                return self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            self.objects[self.key] = self.store.joined([parts[k] for k in sorted(parts)])
            told = self.store.etag(self.objects[self.key])
            return self._xml(f"<CompleteMultipartUploadResult><ETag>{told}</ETag></CompleteMultipartUploadResult>")
        if "delete" in self.query:
            keys = [key.decode() for key in re.findall(rb"<Key>(.*?)</Key>", body)]
            for key in keys:
                self.objects.pop(key, None)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return self._xml(f"<DeleteResult>{gone}</DeleteResult>")
        return self._answer(400)

    def _delete(self, body: bytes) -> None:
        if "uploadId" in self.query:
            self.store.uploads.pop(self.query["uploadId"], None)
            self.store.aborted += 1
        else:
            self.objects.pop(self.key, None)
        self._answer(204)
