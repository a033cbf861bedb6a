"""A hub on this machine: repositories of datasets with commits, large files at a storage of their own, and faults.

It answers the calls by which clients of the hub create repositories, send files and commit, list and read. Large files
are at another port, to which no client may send its token. Faults are those of `object_store.Fault`, by method and
path: ``503``, ``429``, ``reset``, ``lost`` (done, and no answer), ``short``, ``other``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from object_store import Fault, Request

TOKEN = "hf_canaryTokenOfTheHub"
MANY = 3  # entries of a page of a listing


@dataclass
class Repository:
    """A repository: its commits by hash, newest last, each with its files; a large file is a tuple of hash and size."""

    private: bool = False
    commits: dict[str, dict[str, bytes | tuple[str, int]]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes | tuple[str, int]]:
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes | tuple[str, int]], message: str) -> str:
        self.messages.append(message)
        name = hashlib.sha1(f"{len(self.commits)} {message} {sorted(files)}".encode()).hexdigest()
        self.commits[name] = files
        return name


class Hub:
    """The two servers; a context manager.

    Parameters
    ----------
    large : int
        Bytes from which on a file is large.
    part : int, optional
        Bytes of a part; objects that are larger are sent in parts.
    """

    def __init__(self, *, large: int = 1000, part: int | None = None) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[tuple[str, str], bytes] = {}  # by repository and hash
        self.parts: dict[str, dict[int, bytes]] = {}
        self.large, self.part = large, part
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.stored: list[Request] = []  # of the storage
        self.lock = threading.RLock()
        self._servers = [_Server(("127.0.0.1", 0), type("_", (kind,), {"hub": self})) for kind in (_Hub, _Storage)]
        self.url, self.storage = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def __enter__(self) -> Hub:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def environ(self, home: Path) -> dict[str, str]:
        return {"HOME": str(home), "RLDS_HOME": str(home), "HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "NO_PROXY": "*"}

    @property
    def received(self) -> int:
        """Bytes that the storage was sent."""
        return sum(r.size for r in self.stored if r.method == "PUT")

    def content(self, repository: str) -> dict[str, bytes]:
        """The files of the newest commit."""
        files = self.repositories[repository].files
        return {path: self.read(repository, file) for path, file in files.items()}

    def read(self, repository: str, file: bytes | tuple[str, int]) -> bytes:
        return file if isinstance(file, bytes) else self.objects[repository, file[0]]

    def fault(self, method: str, path: str) -> Fault | None:
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
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        self.place = parts.path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        request = Request(self.command, self.path, dict(self.headers), len(body))
        with self.hub.lock:
            (self.hub.stored if isinstance(self, _Storage) else self.hub.requests).append(request)
        fault = self.hub.fault(self.command, self.path)
        self.kind = fault.kind if fault else ""
        if self.kind == "reset":
            return self._cut()
        if self.kind.isdecimal():
            wait = {"Retry-After": f"{fault.wait:.0f}"} if fault and fault.wait else {}
            return self._answer(int(self.kind), b"{}", wait)
        if fault and fault.wait:
            time.sleep(fault.wait)
        self._act(body)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = _serve

    def _act(self, body: bytes) -> None:
        raise NotImplementedError

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
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body[: len(body) // 2] if self.kind == "short" else body)
        if self.kind == "short":
            self._cut()
        return None

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}))

    def _content(self, data: bytes, headers: dict[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, data, headers)
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if first > last:
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return self._answer(
            206, data[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        )


class _Storage(_Handler):
    """Where large files are: ``/REPOSITORY/HASH?part=K``. The address is all that is needed to read and write."""

    def _act(self, body: bytes) -> None:
        repository, _, oid = unquote(self.place)[1:].rpartition("/")
        if self.command in ("GET", "HEAD"):
            return self._content(self.hub.objects[repository, oid], {"ETag": f'"{oid}"'})
        with self.hub.lock:
            if "part" in self.query:
                self.hub.parts.setdefault(oid, {})[int(self.query["part"])] = body
            elif hashlib.sha256(body).hexdigest() == oid:
                self.hub.objects[repository, oid] = body
            else:
                return self._answer(400, b"other bytes")
        return self._answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})


class _Hub(_Handler):
    @property
    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _act(self, body: bytes) -> None:
        if self.place == "/api/whoami-v2":
            return self._json({"name": "lab", "type": "user"}) if self._known else self._refuse()
        if self.place == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.place == "/api/repos/create":
            return self._create(json.loads(body))
        found = re.fullmatch(r"/api/datasets/([\w.-]+/[\w.-]+)(?:/(\w+)(?:/([^/]+)(?:/(.+))?)?)?", self.place)
        if found:
            return self._api(found[1], found[2] or "", unquote(found[3] or "main"), unquote(found[4] or ""), body)
        found = re.fullmatch(r"/datasets/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", self.place)
        if found:
            return self._batch(found[1], json.loads(body))
        found = re.fullmatch(r"/lfs/(complete|verify)/([\w.-]+/[\w.-]+)", self.place)
        if found:
            return self._lfs(found[1], found[2], json.loads(body))
        found = re.fullmatch(r"/datasets/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.place)
        if found:
            return self._resolve(found[1], unquote(found[2]), unquote(found[3]))
        return self._json({"error": "no such page"}, 404)

    def _refuse(self) -> None:
        words = "Invalid username or password."
        return self._json({"error": words}, 401, {"X-Error-Message": words})

    def _repository(self, name: str, *, write: bool = False) -> Repository | None:
        """The repository, if the request may do this; else it is answered."""
        found = self.hub.repositories.get(name)
        if (found is None or found.private or write) and not self._known:
            self._refuse()
            return None
        if found is None:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        return found

    def _create(self, asked: dict[str, Any]) -> None:
        if not self._known:
            return self._refuse()
        name = f"{asked['organization']}/{asked['name']}"
        with self.hub.lock:
            if asked["organization"] != "lab":
                return self._json({"error": "You don't have the rights"}, 403)
            if name in self.hub.repositories:
                return self._json({"error": "You already created this dataset repo"}, 409)
            made = self.hub.repositories[name] = Repository(private=bool(asked.get("private")))
            made.commit({".gitattributes": b"* text=auto\n"}, "initial commit")
        return self._json({"url": f"{self.hub.url}/datasets/{name}", "name": name})

    def _api(self, name: str, call: str, revision: str, path: str, body: bytes) -> None:
        repository = self._repository(name, write=call in ("preupload", "commit"))
        if repository is None:
            return None
        if revision != "main" and revision not in repository.commits:
            return self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        commit = repository.head if revision == "main" else revision
        if call in ("", "revision"):
            siblings = [{"rfilename": path} for path in repository.commits[commit]]
            return self._json({"id": name, "sha": commit, "private": repository.private, "siblings": siblings})
        if call == "tree":
            return self._tree(repository, name, commit, path)
        if call == "preupload":
            return self._preupload(repository, json.loads(body))
        if call == "commit":
            return self._commit(repository, name, body)
        return self._json({"error": "no such call"}, 404)

    def _tree(self, repository: Repository, name: str, commit: str, path: str) -> None:
        entries: dict[str, dict[str, Any]] = {}
        below = f"{path}/" if path else ""
        for found, file in sorted(repository.commits[commit].items()):
            if not found.startswith(below):
                continue
            parts = found[len(below) :].split("/")
            for k in range(1, len(parts)):
                directory = below + "/".join(parts[:k])
                if k == 1 or self.query.get("recursive") == "true":
                    entries[directory] = {"type": "directory", "path": directory, "size": 0, "oid": "0" * 40}
            if len(parts) > 1 and self.query.get("recursive") != "true":
                continue
            if isinstance(file, bytes):
                entries[found] = {"type": "file", "path": found, "size": len(file), "oid": git_sha1(file)}
            else:
                oid, size = file
                entries[found] = {"type": "file", "path": found, "size": size, "oid": "1" * 40,
                                  "lfs": {"oid": oid, "size": size, "pointerSize": 130}}  # fmt: skip
        if path and not entries:
            return self._json({"error": "no such entry"}, 404, {"X-Error-Code": "EntryNotFound"})
        at = int(self.query.get("cursor", 0))
        listed = list(entries.values())
        following = f"{self.hub.url}{self.place}?recursive={self.query.get('recursive', 'false')}&cursor={at + MANY}"
        link = {"Link": f'<{following}>; rel="next"'} if at + MANY < len(listed) else {}
        return self._json(listed[at : at + MANY], headers=link | {"X-Repo-Commit": commit})

    def _preupload(self, repository: Repository, asked: dict[str, Any]) -> None:
        answers = []
        for f in asked["files"]:
            base64.b64decode(f["sample"], validate=True)
            there = repository.files.get(f["path"])
            oid = None if there is None else git_sha1(there) if isinstance(there, bytes) else there[0]
            mode = "lfs" if f["size"] >= self.hub.large else "regular"
            answers.append({"path": f["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return self._json({"files": answers})

    def _batch(self, name: str, asked: dict[str, Any]) -> None:
        if self._repository(name, write=True) is None:
            return None
        answers = []
        for f in asked["objects"]:
            oid, size = f["oid"], f["size"]
            place = f"{self.hub.storage}/{quote(name)}/{oid}?signature=canary-of-the-storage"
            actions: dict[str, Any] = {"verify": {"href": f"{self.hub.url}/lfs/verify/{name}"}}
            if self.hub.part and size > self.hub.part:
                count = -(-size // self.hub.part)
                header = {f"{k:05d}": f"{place}&part={k}" for k in range(1, count + 1)}
                href = f"{self.hub.url}/lfs/complete/{name}"
                actions["upload"] = {"href": href, "header": header | {"chunk_size": str(self.hub.part)}}
            else:
                actions["upload"] = {"href": place}
            answers.append(
                {"oid": oid, "size": size} | ({} if (name, oid) in self.hub.objects else {"actions": actions})
            )
        return self._json({"transfer": "basic", "objects": answers})

    def _lfs(self, call: str, name: str, asked: dict[str, Any]) -> None:
        oid = asked["oid"]
        if call == "verify":
            there = self.hub.objects.get((name, oid))
            right = there is not None and len(there) == asked["size"]
            return self._json({}, 200 if right else 404) if self._known else self._refuse()
        parts = self.hub.parts.pop(oid, {})
        for part in asked["parts"]:
            if part["etag"] != f'"{hashlib.md5(parts[part["partNumber"]]).hexdigest()}"':
                return self._json({"error": "another part"}, 400)
        content = b"".join(parts[k] for k in sorted(parts))
        if hashlib.sha256(content).hexdigest() != oid:
            return self._json({"error": "other bytes"}, 400)
        self.hub.objects[name, oid] = content
        return self._json({})

    def _commit(self, repository: Repository, name: str, body: bytes) -> None:
        header, *changes = (json.loads(line) for line in body.splitlines())
        with self.hub.lock:
            parent = header["value"].get("parentCommit")
            if parent is not None and parent != repository.head:
                return self._json({"error": "A commit has happened since. Please refresh and try again."}, 412)
            files = dict(repository.files)
            for change in changes:
                value = change["value"]
                if change["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif change["key"] == "lfsFile":
                    if (name, value["oid"]) not in self.hub.objects:
                        return self._json({"error": f"LFS pointer to a missing object {value['oid']}"}, 400)
                    files[value["path"]] = (value["oid"], value["size"])
                elif change["key"] == "deletedFile" and files.pop(value["path"], None) is None:
                    return self._json({"error": "A file with this name doesn't exist"}, 404)
            made = repository.commit(files, header["value"]["summary"])
        return self._json(
            {"success": True, "commitOid": made, "commitUrl": f"{self.hub.url}/datasets/{name}/commit/{made}"}
        )

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return None
        commit = repository.head if revision == "main" else revision
        file = repository.commits.get(commit, {}).get(path)
        told = {"X-Repo-Commit": commit}
        if file is None:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        if isinstance(file, bytes):
            return self._content(file, told | {"ETag": f'"{git_sha1(file)}"'})
        oid, size = file
        place = f"{self.hub.storage}/{quote(name)}/{oid}?signature=canary-of-the-storage"
        told |= {"Location": place, "X-Linked-Size": str(size), "X-Linked-ETag": f'"{oid}"'}
        return self._answer(302, b"", told)


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
