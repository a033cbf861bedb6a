"""A dataset repository of the hub as a source: read by plain requests, written by the hub's own calls.

Large files are sent first, each as an object of Git LFS: only the bytes that the repository lacks, several parts at a
time. Nothing of them is visible until one commit names them together with the index, and that commit is made only on
the commit whose index was seen. So two pushes do not mix, and one that is killed repeats at most one object.

`huggingface_hub` 2.4 makes the same calls where HF_HUB_DISABLE_XET is set when it is imported, and sends objects as
fast (256 MiB over the loopback interface in 2.3 and 2.4 s). It is not used: it retries by itself, with waits that
`base.http.client.RetryPolicy` does not know, and its warnings print the signed address to which an object is sent.

The calls are described at https://huggingface.co/docs/hub/api and, for large files, by Git LFS:
https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from rlds_cli.base.files import json as documents
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent, Retryable, following, quoted
from rlds_cli.base.http.ranges import RangeRequest
from rlds_cli.places.sources import hub_listing
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.place import ANY, LONGEST, Body, Document, Meta, Overtaken, Place, Unconditional
from rlds_cli.places.sources.web import WebPlace

T = TypeVar("T")

_LFS = {"Accept": "application/vnd.git-lfs+json", "Content-Type": "application/vnd.git-lfs+json"}
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_MAIN = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BY_CONTENT = re.compile(r"(?:.*/)?(?:objects|groups)/([0-9a-f]{64})")
_SAMPLE = 512  # bytes by which the hub tells text from other content
_INLINE = 16 << 20  # bytes of a file that a commit holds itself
_AT_ONCE = 4  # parts of an object
_MOST_PARTS = 10_000
_LEASE = 600.0  # seconds for which an address of the storage is used: it is signed for an hour
_EXPIRED = (400, 401, 403, 404, 410)  # statuses of an address that holds no more
_OVERTAKEN = (409, 412)  # somebody has committed since
_CHUNK = 1 << 20
_REFUSED = "HF_TOKEN, or hf auth login, gives the token; it must have the rights that this needs"


@dataclass(frozen=True, slots=True)
class _Large:
    """A file of the next commit that is an object of LFS."""

    sha256: str
    size: int


class HubPlace(WebPlace):
    """The files of ``hf://datasets/OWNER/NAME[/PATH][@REVISION]``.

    All reads are of one commit: that which the revision named when the first file was asked for. Written files wait
    for the next write on a condition, which commits them all.
    """

    commits = True

    def __init__(self, address: Address, client: Client) -> None:
        super().__init__(address, client)
        self._revision = address.revision or _MAIN
        self._api = f"{self.where.hub}/api/datasets/{address.root}"
        self._commit: str | None = None
        self._storage: dict[str, tuple[str, float]] = {}  # where the hub said that a large file is, and until when
        self._pending: dict[str, _Large | bytes | None] = {}  # of the next commit; None: removed
        self._lock = threading.Lock()

    # -- reading

    def url(self, name: str) -> str:
        """Return the URL of a file in the commit that is read."""
        at = quote(self._at(), safe="")
        return f"{self.where.hub}/datasets/{self.address.root}/resolve/{at}/{quote(self._path(name))}"

    @contextmanager
    def _ask(self, name: str, request: RangeRequest) -> Iterator[requests.Response]:
        """Ask for a large file at the storage that the hub has led to before: it limits its own answers."""
        with ExitStack() as stack:
            url, until = self._storage.get(name, ("", 0.0))
            response = None
            if time.monotonic() < until:
                try:
                    response = stack.enter_context(self._open(url, request))
                except Permanent as exc:
                    if exc.status not in _EXPIRED:
                        raise
            if response is None:
                response = stack.enter_context(super()._ask(name, request))
                if response.url != self.url(name):
                    self._storage[name] = response.url, time.monotonic() + _LEASE
            yield response

    def _at(self) -> str:
        """Return the commit that is read, else the revision."""
        with self._lock:
            if self._commit is None:
                self._commit = self._newest()
            return self._commit or self._revision

    def _newest(self) -> str | None:
        """Return the commit that the revision names; None if there is no such repository, or it names no commits."""
        try:
            said = self.client.json(f"{self._api}/revision/{quote(self._revision, safe='')}").value
        except Permanent as exc:
            if exc.status == 404:
                return None
            raise
        found = said.get("sha") if isinstance(said, dict) else None
        return found if isinstance(found, str) and _COMMIT.fullmatch(found) else None

    def document(self, name: str, longest: int) -> Document | None:
        """Return a small file; its tag is its sha256."""
        found = super().document(name, longest)
        return None if found is None else Document(found.data, hashlib.sha256(found.data).hexdigest())

    def stat(self, name: str) -> Meta | None:
        """Return the size of a file, also of one that waits for its commit."""
        sent = self._pending.get(self._path(name))
        if sent is not None:
            return Meta(name, sent.size if isinstance(sent, _Large) else len(sent))
        return super().stat(name)

    def list(self, prefix: str) -> Iterator[Meta]:
        """Yield all files below a directory of the commit that is read."""
        top = self._path("")
        for path, said in self._tree(self._path(prefix).rstrip("/"), recursive=True):
            found = hub_listing.meta_of(path[len(top) :], said)
            if said.get("type") == "file" and found.size is not None and path.startswith(top):
                yield found

    def _tree(self, directory: str, *, recursive: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield path and description of what is below a directory; nothing if there is none."""
        place, limit = (self.client, self.where.hub, self.address.root, self._at(), directory), ListingLimits()
        found = False
        try:
            for path, said, _ in hub_listing.entries(*place, limit, recursive=recursive):
                found = True
                yield path, said
        except Permanent as exc:
            if exc.status != 404 or found:
                raise

    def siblings(self) -> Iterator[Place]:
        """Yield the directories beside this one in the repository."""
        above = self.address.path.rpartition("/")[0]
        if not self.address.path:
            return
        with suppress(Permanent):
            for path, said in self._tree(above, recursive=False):
                beside = self.address.sibling(path.rpartition("/")[2]) if said.get("type") != "file" else None
                if beside is not None and beside.path == path != self.address.path:
                    made = self.beside(beside)
                    made._commit = self._commit
                    yield made

    # -- writing

    def write(self, name: str, body: Body, *, if_tag: str | Unconditional | None = ANY) -> int:
        """Send a file that the next commit names; on a condition, make that commit."""
        if not isinstance(if_tag, Unconditional):
            self._replace(name, body, if_tag)
            return body.size
        self._make_repository()
        path = self._path(name)
        with body.open() as content:
            sample = content.read(_SAMPLE)
        large, known = self._modes({path: (sample, body.size)})[path]
        if not large and body.size > _INLINE:
            raise Permanent("the hub wants it in the commit itself, which is too large for that")
        if not large:
            with body.open() as content:
                self._keep(path, content.read(), known)
            return body.size
        sha256 = _sha256(path, body)
        if sha256 == known:
            self._pending.pop(path, None)
            return 0
        sent = self._send_large(sha256, body)
        self._pending[path] = _Large(sha256, body.size)
        return sent

    def _keep(self, path: str, data: bytes, known: str | None) -> None:
        """Keep a small file for the next commit, unless the repository has it."""
        if _git_sha1(data) == known:
            self._pending.pop(path, None)
        else:
            self._pending[path] = data

    def _replace(self, name: str, body: Body, seen: str | None) -> None:
        self._make_repository()
        with body.open() as content:
            data = content.read()
        while True:
            head = self._newest()
            with self._lock:
                self._commit = head
            there = self.document(name, LONGEST)
            if (None if there is None else there.tag) != seen:
                if there is not None and there.data == data:  # by an attempt of which the answer was lost
                    self._pending.clear()
                    return
                raise Overtaken
            self.write(name, body)
            if not self._pending or self._committed(head, f"Write {name}"):
                return
            self.client.check()  # somebody has committed something else: is the document still the one that was seen?

    def delete(self, names: Sequence[str]) -> None:
        """Remove files in one commit. Their content stays in the history of the repository."""
        while names:
            head = self._newest()
            with self._lock:
                self._commit = head
            self._pending = {self._path(name): None for name in names}
            try:
                if self._committed(head, f"Remove {len(names):,} files"):
                    return
            except Permanent as exc:
                self._pending.clear()
                there = [name for name in names if exc.status == 404 and self.stat(name) is not None]
                if exc.status != 404 or len(there) == len(names):
                    raise
                names = there  # the hub takes no commit that removes a file that is gone

    def _make_repository(self) -> None:
        """Create the repository if the hub has none of this name that the token may read."""
        with self._lock:
            if self._commit is None:
                self._commit = self._newest()
            if self._commit is not None:
                return
            owner, _, name = self.address.root.partition("/")
            try:
                asked = {"name": name, "organization": owner, "type": "dataset"}
                self._call(f"{self.where.hub}/api/repos/create", asked)
            except Permanent as exc:
                if exc.status != 409:  # somebody else made it
                    raise
            self._commit = self._newest()
            if self._commit is None:
                raise Permanent(f"the hub has no revision {self._revision} of it", 404)

    def _modes(self, files: Mapping[str, tuple[bytes, int]]) -> dict[str, tuple[bool, str | None]]:
        """Ask which files go to LFS, and for the hash of what the repository has at their place."""
        asked = [
            {"path": path, "sample": base64.b64encode(sample).decode(), "size": size}
            for path, (sample, size) in files.items()
        ]
        said = self._call(f"{self._api}/preupload/{quote(self._revision, safe='')}", {"files": asked})
        listed = said.get("files") if isinstance(said, dict) else None
        found = {
            f["path"]: (f.get("uploadMode") == "lfs", f.get("oid"))
            for f in (listed if isinstance(listed, list) else ())
            if isinstance(f, dict) and isinstance(f.get("path"), str) and f.get("uploadMode") in ("lfs", "regular")
        }
        if not files.keys() <= found.keys():
            raise Permanent("the answer about a file to be sent cannot be read")
        return found

    def _send_large(self, sha256: str, body: Body) -> int:
        """Send an object of LFS unless the repository has it; return the bytes that were sent."""
        actions = self._batch(sha256, body.size)
        upload = actions.get("upload")
        if upload is None:
            return 0
        href, told = _action(upload)
        address = following(self.where.hub, href)
        if "chunk_size" in told:
            self._send_parts(address, told, sha256, body)
        else:
            self._send_part(address, body, 0, body.size)
        if "verify" in actions:
            href, _ = _action(actions["verify"])
            self._call(following(self.where.hub, href), {"oid": sha256, "size": body.size}, headers=_LFS)
        return body.size

    def _batch(self, sha256: str, size: int) -> dict[str, Any]:
        """Ask how to send an object; nothing is to be done if the repository has it."""
        asked = {
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": [{"oid": sha256, "size": size}],
            "hash_algo": "sha256",
            "ref": {"name": self._revision},
        }
        place = f"{self.where.hub}/datasets/{self.address.root}.git/info/lfs/objects/batch"
        said = self._call(place, asked, headers=_LFS)
        listed = said.get("objects") if isinstance(said, dict) else None
        found = listed[0] if isinstance(listed, list) and len(listed) == 1 else None
        if not isinstance(found, dict) or found.get("oid") != sha256:
            raise Permanent("the answer about an object to be sent cannot be read")
        if error := found.get("error"):
            why = error.get("message") if isinstance(error, dict) else None
            raise Permanent(f"the hub does not take it: {quoted(str(why))}")
        actions = found.get("actions") or {}
        if not isinstance(actions, dict):
            raise Permanent("the answer about an object to be sent cannot be read")
        return actions

    def _send_parts(self, address: str, told: Mapping[str, Any], sha256: str, body: Body) -> None:
        """Send an object in parts, several at a time, and then say which they are."""
        places = {int(key): url for key, url in told.items() if key.isdecimal() and len(key) < 6}
        size = int(told["chunk_size"]) if str(told["chunk_size"]).isdecimal() else 0
        numbers = sorted(places)
        if size <= 0 or len(numbers) > _MOST_PARTS or len(numbers) != -(-body.size // size):
            raise Permanent("the parts that the hub asks for are not those of the object")

        def send(k: int) -> str:
            start = k * size
            place = following(self.where.hub, str(places[numbers[k]]))
            tag = self._send_part(place, body, start, min(size, body.size - start)).get("ETag", "")
            if not tag:
                raise Permanent("the storage does not name the part that it was sent")
            return tag

        with ThreadPoolExecutor(_AT_ONCE, "hub-part") as pool:
            try:
                tags = list(pool.map(send, range(len(numbers))))
            except BaseException as exc:
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(exc, Exception):  # Ctrl-C
                    self.client.stop()
                raise
        parts = [{"partNumber": k, "etag": tag} for k, tag in enumerate(tags, 1)]
        self._call(address, {"oid": sha256, "parts": parts}, headers=_LFS)

    def _send_part(self, address: str, body: Body, start: int, size: int) -> Mapping[str, str]:
        """Send a part of an object, again after failures that pass; return the headers of the answer."""
        sent = 0

        def count(more: int) -> None:
            nonlocal sent
            sent += more

        def attempt() -> Mapping[str, str]:
            with body.open() as content:
                content.seek(start)
                return self.client.send("PUT", address, content, size=size, told=count)[1]

        # A part may take longer than a server may be silent; but it is not sent again and again for ever.
        return self._persist(attempt, lambda: min(sent, self.client.policy.attempts * size))

    def _committed(self, head: str | None, summary: str) -> bool:
        """Make a commit of what is pending on a commit; False if somebody else has made one meanwhile."""
        lines = [{"key": "header", "value": {"summary": summary, "description": "", "parentCommit": head}}]
        lines += [_change(path, change) for path, change in self._pending.items()]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"Accept": "application/json", "Content-Type": "application/x-ndjson"}
        try:
            url = f"{self._api}/commit/{quote(self._revision, safe='')}"
            answer, _ = self.client.send("POST", url, content, headers)
        except Permanent as exc:
            if exc.status in _OVERTAKEN:
                return False
            raise
        made = _object(answer).get("commitOid")
        with self._lock:
            self._commit = made if isinstance(made, str) and _COMMIT.fullmatch(made) else None
        self._pending.clear()
        return True

    def copy(self, source: Place, name: str) -> bool:
        """Name a file of another directory of the repository, which has its content already."""
        if not isinstance(source, HubPlace) or source.address.root != self.address.root:
            return False
        path, known = self._path(name), _BY_CONTENT.fullmatch(name)
        with suppress(Permanent, Retryable):
            there = source.stat(name)
            if known and there and there.size is not None and not self._batch(known[1], there.size):
                self._pending[path] = _Large(known[1], there.size)
                return True
        return False

    # -- calls

    def _call(self, url: str, value: Any, *, headers: Mapping[str, str] = _JSON) -> Any:
        """Post JSON, again after failures that pass, and return the answer."""
        content = json.dumps(value).encode()
        return _object(self._persist(lambda: self.client.send("POST", url, content, headers))[0], empty=True)

    def _persist(self, act: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        return self.client.persist(lambda left: act(), reached)

    def _path(self, name: str) -> str:
        return f"{self.address.path}/{name}" if self.address.path else name

    def hint(self, exc: Permanent) -> str | None:
        """Return the hub's own words about a failure."""
        if exc.status in (401, 403):
            return _REFUSED
        said = quoted(exc.headers.get("X-Error-Message", ""))
        return f"the hub says: {said}" if said else None


def _action(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the address and the header of an action of LFS."""
    href = value.get("href") if isinstance(value, dict) else None
    told = value.get("header") if isinstance(value, dict) else None
    if not isinstance(href, str):
        raise Permanent("the answer about an object to be sent cannot be read")
    return href, told if isinstance(told, dict) else {}


def _change(path: str, change: _Large | bytes | None) -> dict[str, Any]:
    """Return the line of a commit for a file."""
    if change is None:
        return {"key": "deletedFile", "value": {"path": path}}
    if isinstance(change, bytes):
        content = base64.b64encode(change).decode()
        return {"key": "file", "value": {"content": content, "path": path, "encoding": "base64"}}
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": change.sha256, "size": change.size}}


def _object(answer: bytes, *, empty: bool = False) -> dict[str, Any]:
    try:
        value = documents.loads(answer) if answer or not empty else {}
    except ValueError:
        value = {} if empty else None
    if not isinstance(value, dict):
        raise Permanent("the answer cannot be read")
    return value


def _sha256(path: str, body: Body) -> str:
    """Return the sha256 of a file; those named by their content say it."""
    if known := _BY_CONTENT.fullmatch(path):
        return known[1]
    found = hashlib.sha256()
    with body.open() as content:
        while chunk := content.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
