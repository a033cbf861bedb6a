"""A loopback HTTP server: serves files and hub-like listings, and misbehaves on request.

::

    with Server() as server:
        page = server.add("/d4rl/hopper.hdf5", content, drops=[1000])     # the first answer is interrupted
        url = server.url + "/d4rl/hopper.hdf5"
        server.add_repository("owner/name", {"a/b.h5": content})           # HF_ENDPOINT = server.url
        server.add_bucket("name", {"a/b.h5": content})                     # gs:// and s3://: server.environment(...)
        ...
        page.requests                                                      # what was asked, and the bytes sent
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from server_listings import GcsBucket, Repository, S3Bucket, Tree
from server_pages import Listing, Page, Request

from rlds_cli.base import settings
from rlds_cli.base.settings import Settings

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server:
    """Runs from ``with`` to its end on a free port of the loopback interface."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []  # every path with its query, in order
        self._etags = count()
        self._lock = Lock()
        self._http = _Quiet((host, 0), _Handler)
        self._http.owner = self
        self.host = f"{host}:{self._http.server_port}"
        self.url = f"http://{self.host}"
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Speak HTTPS from now on."""
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = f"https://{self.host}"

    def add(self, path: str, content: bytes | str, **behaviour: Any) -> Page:
        """Serve ``content`` at ``path``."""
        page = Page(content if isinstance(content, bytes) else content.encode(), **behaviour)
        self.pages[path] = page
        return page

    def add_repository(
        self,
        repository: str,
        files: Mapping[str, bytes],
        *,
        revision: str = "main",
        lfs: Iterable[str] | None = None,
        page_size: int = 1000,
        recursive: bool = True,
        subpaths: bool = True,
        revisions: bool = True,
        pinned: bool = True,
        commit: str = COMMIT,
        token: str | None = None,
        **behaviour: Any,
    ) -> dict[str, Page]:
        """Stand in for the hub: the tree call, the revision call, and the files; returns the pages of the files.

        ``recursive=False`` and ``subpaths=False`` ignore that parameter; ``revisions=False`` knows no revision call,
        ``pinned=False`` no commit either. ``lfs`` names the files kept in LFS; all unless given.
        """
        listing = Repository(
            self.url, repository, files, set(files if lfs is None else lfs), page_size, recursive, subpaths
        )
        known = [revision, commit] if pinned else [revision]
        for r in known:
            root = f"/api/datasets/{repository}/tree/{quote(r, safe='')}"
            self.pages[root] = Tree(b"", listing=listing, root=root, token=token, commit=commit if pinned else None)
        for r in known if revisions else ():
            answer = {"sha": commit, "siblings": [{"rfilename": f} for f in files]}
            where = f"/api/datasets/{repository}/revision/{quote(r, safe='')}"
            self.add(where, json.dumps(answer), token=token, content_type="application/json")
        pages = {}
        for path, content in files.items():
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            pages[path] = Page(content, **{"etag": etag, "token": token, **behaviour})
            for r in known:
                self.pages[f"/datasets/{repository}/resolve/{quote(r, safe='')}/{path}"] = pages[path]
        return pages

    def add_bucket(
        self,
        bucket: str,
        files: Mapping[str, bytes],
        *,
        page_size: int = 1000,
        composite: Iterable[str] = (),
        packed: Iterable[str] = (),
        closed: bool = False,
        key: str | None = None,
        **behaviour: Any,
    ) -> dict[str, Page]:
        """Stand in for ``gs://<bucket>`` and ``s3://<bucket>``: both listings, and the files; returns their pages.

        ``composite`` names files of whose content no md5 is known, ``packed`` those kept with ``Content-Encoding``;
        ``closed`` answers 403 to everything, ``key`` to what is not signed with that access key of S3.
        """
        known = {"files": files, "composite": frozenset(composite), "packed": frozenset(packed)}
        refusal: dict[str, Any] = {"key": key} | ({"statuses": [(403, {})] * 1000} if closed else {})
        json_root, xml_root = f"/storage/v1/b/{bucket}/o", f"/{bucket}/"
        self.pages[json_root] = GcsBucket(b"", page_size=page_size, **known, **refusal)
        self.pages[xml_root] = S3Bucket(b"", page_size=page_size, **known, **refusal)
        self.pages[xml_root.rstrip("/")] = self.pages[xml_root]  # obstore asks so
        pages = {}
        for path, content in files.items():
            etag = f'"{hashlib.md5(content).hexdigest()}"'
            pages[path] = self.add(f"/{bucket}/{path}", content, **{"etag": etag, **refusal, **behaviour})
        return pages

    def settings(self, root: Path, **environment: str) -> Settings:
        """Settings with this server as the hub and nothing of the user's own below ``root``."""
        return settings.read(root / "home", self.environment(root) | environment)

    def environment(self, root: Path) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "RLDS_HOME": str(root / "home"),
            "HOME": str(root / "user"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "HF_ENDPOINT": self.url,
            "RLDS_GCS_ENDPOINT": self.url,
            "AWS_ENDPOINT_URL": self.url,
            "D4RL_DATASET_DIR": str(root / "d4rl"),
            "MINARI_DATASETS_PATH": str(root / "minari"),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def find(self, path: str) -> tuple[Page | None, str]:
        """The page of a path (without its query), and what of the path lies below it."""
        if path in self.pages:
            return self.pages[path], ""
        if unquote(path) in self.pages:
            return self.pages[unquote(path)], ""
        for root, page in self.pages.items():
            if isinstance(page, Listing) and path.startswith(root + "/"):
                return page, unquote(path[len(root) + 1 :])
        return None, ""

    def next_etag(self) -> str:
        with self._lock:
            return f'"changed-{next(self._etags)}"'


class _Quiet(ThreadingHTTPServer):
    owner: Server
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Quiet

    def log_message(self, *args: object) -> None:
        pass

    def do_CONNECT(self) -> None:
        """A tunnel, as proxies make them for HTTPS; it ends with the client."""
        self.server.owner.asked.append(f"CONNECT {self.path}")
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self._say(200, b"")
            there, back = (self.connection, upstream), (upstream, self.connection)
            threads = [Thread(target=_relay, args=pair, daemon=True) for pair in (there, back)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.close_connection = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        owner = self.server.owner
        owner.asked.append(self.path)
        page, below = owner.find(parts.path)
        if page is None:
            return self._say(404, b"Not Found")
        request = Request(dict(self.headers.items()))
        page.requests.append(request)
        if page.token and self.headers.get("Authorization") != f"Bearer {page.token}":
            request.status = 401
            return self._say(401, b"who are you?")
        signed = self.headers.get("Authorization", "") + "&" + unquote(parts.query)
        if page.key and f"Credential={page.key}/" not in signed:
            request.status = 403
            return self._say(403, b"<Error><Code>AccessDenied</Code></Error>", {"x-amz-bucket-region": "eu-west-1"})
        if page.statuses and (status := page.statuses.pop(0)):
            request.status = status[0]
            return self._say(status[0], b"<html>sorry</html>", status[1])
        if page.redirect:
            request.status = 302
            return self._say(302, b"", {"Location": page.redirect})
        if isinstance(page, Listing):
            return self._listing(page, below, parse_qs(parts.query))
        return self._file(page, request)

    def _listing(self, page: Listing, below: str, query: Mapping[str, list[str]]) -> None:
        answer = page.answer(below, query)
        if answer is None:
            return self._say(404, b"[]")
        return self._say(200, answer[0], {"Content-Type": "application/json"} | answer[1])

    def _file(self, page: Page, request: Request) -> None:
        content, headers = page.content, {"Content-Type": page.content_type, **page.headers}
        etag = self.server.owner.next_etag() if page.new_etag else page.etag
        headers |= {k: v for k, v in (("ETag", etag), ("Last-Modified", page.last_modified)) if v}
        start, end = self._range(page, etag)
        request.status = 200
        if start is not None and start >= len(content):
            request.status = 416
            return self._say(416, b"", headers | {"Content-Range": f"bytes */{len(content)}"})
        if start is not None:
            request.status, request.start = 206, start
            headers["Content-Range"] = page.content_range or f"bytes {start}-{end - 1}/{len(content)}"
            content = content[start:end]
        if page.short and (n := page.short.pop(0)) is not None:
            content = content[:n]
        length = len(content) if page.length is None else page.length
        self.send_response(request.status)
        for name, value in (headers | ({} if page.chunked else {"Content-Length": str(length)})).items():
            self.send_header(name, value)
        if page.chunked:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        page.__dict__.update(page.then)
        page.then = {}
        self._body(page, request, content)
        if page.length is not None:
            self._hang_up()
        return None

    def _range(self, page: Page, etag: str | None) -> tuple[int | None, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if not match or not page.ranges:
            return None, len(page.content)
        if page.if_range and condition and condition not in (etag, page.last_modified):
            return None, len(page.content)
        return int(match[1]), min(len(page.content), int(match[2] or len(page.content)) + bool(match[2]))

    def _body(self, page: Page, request: Request, content: bytes) -> None:
        stop = page.drops.pop(0) if page.drops else None
        end = len(content) if stop is None else min(stop, len(content))
        if page.stall is not None:
            end = min(end, max(0, page.stall - request.start))
        for k in range(0, end, 1 << 14):
            block = content[k : min(k + (1 << 14), end)]
            request.sent += len(block)  # before the client has it, and may be asked about it
            self.wfile.write(block)
            time.sleep(page.pace)
        if page.stall is not None:
            time.sleep(30)
        if stop is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _say(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _relay(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
