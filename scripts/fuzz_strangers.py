"""What strangers hand over besides archives, for ``fuzz.py``: manifests, locks, listings, headers, records of parts."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / "tests" / name) for name in ("support", "contract"))

import hostile_listings
import manifest_mutants
from server import Server

from rlds_cli.base import settings
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.keep import pinning
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

CONTENT = bytes(range(256)) * 8
HEADERS = (
    f'HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\nETag: "a"\r\nConnection: close\r\n\r\n'.encode() + CONTENT,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n800\r\n" + CONTENT + b"\r\n0\r\n\r\n",
)
SHORT = RetryPolicy(
    attempts=2, first=0.001, longest=0.002, asked=0.1, connect=1.0, read=1.0, least=100, idle=1.0, unsized=1 << 20
)
_STEP = {
    "id": "local/x@scale_reward",
    "from": "local/x",
    "reference": "scale_reward",
    "function": "scale_reward",
    "files": [],
    "source": "rlds1:" + "3" * 64,
    "code": "9" * 64,
    "args": {"scale": 2},
    "unit": "episode",
    "arrays": "numpy",
}
_FILE = {"file": "x.hdf5", "size": 280578, "sha256": "1" * 64, "url": "https://host/x.hdf5", "revision": None}
_LOCKED = {"id": _STEP["from"], "fingerprint": _STEP["source"], "fields": {"action": "f" * 64}, "options": {}}
LOCK = {
    "rlds_lock": 1,
    "datasets": [
        {**_LOCKED, "files": [_FILE], "made_by": []},
        {**_LOCKED, "id": _STEP["id"], "files": [], "made_by": [_STEP]},
    ],
}
Targets = dict[str, tuple[tuple[bytes, ...], Callable[[bytes], object]]]


@cache
def _root() -> Path:
    """A directory for what the targets need, which goes when the program ends."""
    root = Path(tempfile.mkdtemp(prefix="rlds-fuzz-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def _dataset() -> Path:
    made = manifest_mutants.sample(_root() / "made")
    return manifest_mutants.copied(made, _root() / "dataset")


def _documents(name: str) -> Callable[[bytes], object]:
    """Commands on a dataset with other bytes in the place of one of its documents."""

    def run(content: bytes) -> None:
        file = _dataset() / name
        original = file.read_bytes()
        try:
            file.write_bytes(content)
            for look in manifest_mutants.looks(_dataset()).values():
                look()
        finally:
            file.write_bytes(original)

    return run


def _read_lock(content: bytes) -> None:
    file = _root() / "rlds.lock"
    file.write_bytes(content)
    pinning.read(file)
    pinning.functions(file, home=_root() / "locks")


@cache
def _server() -> Server:
    return Server().__enter__()


def _listing(kind: str) -> Callable[[bytes], object]:
    def run(content: bytes) -> None:
        hostile_listings.listed(_server(), _server().settings(_root()), kind, content)

    return run


_answer = [b""]


@cache
def _liar() -> str:
    """The address of a server that sends the bytes in ``_answer``, whatever it is asked, and closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(1)
                connection.recv(1 << 16)
                connection.sendall(_answer[0])

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/x.h5"


def _answered(content: bytes) -> None:
    """Fetch a file from a server that answers so."""
    _answer[0], directory = content, _root() / "fetched"
    where = settings.read(_root() / "home")
    for size in (None, len(CONTENT)):
        shutil.rmtree(directory, ignore_errors=True)
        plan = planning.plan([RemoteFile("x.h5", (_liar(),), size=size)], directory, where)
        fetching.fetch(plan, where, policy=SHORT)


def _state(name: str) -> Callable[[bytes], object]:
    """Go on with a part that has this beside it; the server is sound."""

    def run(content: bytes) -> None:
        directory = _root() / "parts"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        (directory / "x.h5.part").write_bytes(CONTENT[:100])
        (directory / name).write_bytes(content)
        _server().add("/x.h5", CONTENT, etag='"a"')
        where = _server().settings(_root())
        files = [RemoteFile("x.h5", (f"{_server().url}/x.h5",), size=len(CONTENT))]
        fetching.fetch(planning.plan(files, directory, where), where, policy=SHORT)
        assert (directory / "x.h5").read_bytes() in (CONTENT, CONTENT[:100])

    return run


def targets() -> Targets:
    """The targets by name: valid inputs, and what is done with others."""
    part = json.dumps({"url": "http://127.0.0.1/x.h5", "etag": '"a"', "size": len(CONTENT)}).encode()
    documents = {
        "manifest": "zarr.json",
        "array": "observation/state/zarr.json",
        "episodes": "episodes/start/zarr.json",
    }
    return {
        **{name: (((_dataset() / path).read_bytes(),), _documents(path)) for name, path in documents.items()},
        "lock": ((json.dumps(LOCK).encode(),), _read_lock),
        **{f"listing_{k}": ((v.page,), _listing(k)) for k, v in hostile_listings.LISTINGS.items()},
        "headers": (HEADERS, _answered),
        "part": ((part,), _state("x.h5.part.json")),
        "record": ((part,), _state("x.h5.json")),
    }
