"""Files that follow from a dataset: built once, mapped by every process, deleted at any moment.

::

    <home>/packed/<fingerprint>-<hash of the key>.<kind>     content | key as JSON | check, sizes, magic
    <home>/locks/packed-<fingerprint>.lock                   held while one is built

A process that has mapped a file keeps it when the name goes. Where no file can be had, the content is built in memory
of this process, if the caller has some to spare.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlds_cli import file_locks, safe_files, settings, sizes, space
from rlds_cli.errors import NoPermission
from rlds_cli.home import Home
from rlds_cli.store import arrays
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

FORMAT = 1
MOST_BYTES = 8 << 30  # of one file
SHARE_OF_FREE = 10  # a file takes at most a tenth of what is free
PATIENCE = 600.0  # seconds to wait for the process that builds

_MAGIC = b"rldspack"
_END = struct.Struct("<QQ8s")  # bytes of the content, bytes of the key, magic
_PAGE, _PAGES = 4096, 16  # of the content, looked at when a file is opened

Parts = Callable[[], Iterable[Array]]


@dataclass(frozen=True, slots=True)
class Held:
    """Where the content is: mapped from a file, in memory of this process, or nowhere.

    ``array`` is uint8 [nbytes], read-only. ``reason`` says why it is not in a file.
    """

    array: Array | None
    where: Literal["packed file", "private memory"] | None
    reason: str = ""
    path: Path | None = None


def open_or_build(
    dataset: Dataset, key: Mapping[str, Any], nbytes: int, parts: Parts, *, kind: str, budget: int
) -> Held:
    """Map the file of this key, after building it if need be.

    One process builds, others wait for it. The file goes into the home in which the dataset lies, else into the user's
    own. It may take a tenth of what is free on the disk and 8 GiB.

    Parameters
    ----------
    dataset : Dataset
        Its whole store's fingerprint joins the key: a content that depends on the selection needs it in ``key``.
    key : mapping
        All else that the content depends on, as JSON.
    nbytes : int
        Bytes of the content.
    parts : callable
        Gives the content from start to end, in arrays of any size and dtype. What it raises is passed on.
    kind : str
        Ending of the file's name.
    budget : int
        Bytes of private memory that may be taken where no file can be written.
    """
    if nbytes == 0:
        return Held(np.empty(0, np.uint8), "private memory")
    about = json.dumps({"format": FORMAT, "fingerprint": dataset.manifest.fingerprint, **key}, sort_keys=True).encode()
    name = f"{_short(dataset)}-{hashlib.sha256(about).hexdigest()[:16]}.{kind}"
    files = [_File(home.packed(name), nbytes, about) for home in _homes(dataset)]
    for file in files:
        found = file.map()
        if found is not None:
            return Held(found, "packed file", path=file.path)
    reasons = []
    for file in files:
        try:
            return Held(_built(file, parts), "packed file", path=file.path)
        except _Refused as e:
            reasons.append(str(e))
    reason = "; ".join(dict.fromkeys(reasons))
    if nbytes <= budget:
        return Held(_in_memory(nbytes, parts), "private memory", reason)
    return Held(None, None, f"{reason}; {sizes.text(nbytes)} of memory are more than {sizes.text(budget)}")


def _short(dataset: Dataset) -> str:
    return dataset.manifest.fingerprint.partition(":")[2][:12]


def _homes(dataset: Dataset) -> list[Home]:
    """The home that the dataset lies in, and the user's own."""
    own, parents = settings.read().home, dataset.path.absolute().parents
    roots = [parents[2], own] if len(parents) > 2 and parents[1].name == "datasets" else [own]
    return [Home(root) for root in dict.fromkeys(roots)]


class _Refused(Exception):
    """No file can be written, and why."""


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except NoPermission as e:  # a link, or something else that is not ours
        raise _Refused(e.message.rstrip(".")) from e
    except OSError as e:
        code = e.errno
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise _Refused(f"the disk of {path.parent} is full") from e
        if code in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _Refused(f"{path.parent} may not be written") from e
        raise _Refused(f"{path.parent}: {e.strerror or e}") from e


@dataclass(frozen=True, slots=True)
class _File:
    """One file: ``nbytes`` of content, and a tail that says what it is."""

    path: Path
    nbytes: int
    about: bytes

    def map(self) -> Array | None:
        """The content [nbytes], mapped; None where there is no file, or one that is not what its name says."""
        try:
            with safe_files.reading(self.path) as f:
                tail = os.pread(f.fileno(), len(self.about) + 64, self.nbytes)
                if tail != self._tail(f.fileno()):
                    return None
                buffer = mmap.mmap(f.fileno(), self.nbytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError, NoPermission):
            return None
        return np.frombuffer(buffer, np.uint8)

    def _tail(self, fd: int) -> bytes:
        """The key, and a hash of some pages from start to end: enough to tell a file of holes."""
        digest = hashlib.sha256()
        for at in np.linspace(0, max(0, self.nbytes - _PAGE), _PAGES).astype(np.int64).tolist():
            digest.update(os.pread(fd, min(_PAGE, self.nbytes - at), at))
        return self.about + digest.digest() + _END.pack(self.nbytes, len(self.about), _MAGIC)

    def write(self, parts: Parts) -> None:
        """Write it beside, whole and synced, and give it its name; the caller holds the lock.

        Raises
        ------
        _Refused
            The disk does not take it; nothing is left there.
        """
        with _refusals(self.path):
            self._sweep()
            beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self._fill(fd, parts)
            with _refusals(self.path):
                os.pwrite(fd, self._tail(fd), self.nbytes)
                os.fsync(fd)
                os.fchmod(fd, os.fstat(fd).st_mode & 0o444)
                beside.replace(self.path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _fill(self, fd: int, parts: Parts) -> None:
        at = 0
        for part in parts():
            with _refusals(self.path):
                arrays.write_at(fd, at, part)
            at += part.nbytes
        assert at == self.nbytes, f"{at:,} bytes of {self.nbytes:,}"

    def _sweep(self) -> None:
        """Remove what processes that were killed have left: nobody else writes while the lock is held."""
        for left in self.path.parent.glob(f".{self.path.name}.*.part"):
            left.unlink(missing_ok=True)


def _built(file: _File, parts: Parts) -> Array:
    """Build under the lock, unless another process was faster."""
    home = Home(file.path.parents[1])
    with _refusals(file.path):
        most = min(MOST_BYTES, space.free(home.root) // SHARE_OF_FREE)
    if file.nbytes > most:
        raise _Refused(
            f"{sizes.text(file.nbytes)} are too large for a file in {home.root} (at most {sizes.text(most)})"
        )
    with _lock(home.packed_lock(file.path.name)):
        found = file.map()
        if found is None:
            with _refusals(file.path):
                safe_files.directory(file.path.parent, home.root)
            file.write(parts)
            found = file.map()
    if found is None:
        raise _Refused(f"{file.path} was removed or altered while it was written")
    return found


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with _refusals(path):
        safe_files.directory(path.parent, path.parents[1])
        lock = file_locks.FileLock(path)
        try:
            lock.acquire(timeout=PATIENCE)
        except file_locks.Held:
            raise _Refused(f"another process has held {path} for {PATIENCE:.0f} s") from None
    try:
        yield
    finally:
        lock.release()


def _in_memory(nbytes: int, parts: Parts) -> Array:
    content, at = np.empty(nbytes, np.uint8), 0
    for part in parts():
        raw = np.frombuffer(arrays.raw(part), np.uint8)
        content[at : at + len(raw)] = raw
        at += len(raw)
    assert at == nbytes, f"{at:,} bytes of {nbytes:,}"
    content.flags.writeable = False
    return content
