"""A directory of this machine as a source: any web server can serve it, and a shared disk needs none."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from rlds_cli.base.files import disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import file_lock
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.http.ranges import RangeRequest, Reply, Tag
from rlds_cli.errors import NoPermission, RldsError
from rlds_cli.places.sources.place import ANY, LONGEST, Body, Chunk, Document, Meta, Overtaken, Place, Unconditional

_PIECE = 1 << 20
_LOCK = ".rlds.lock"


class DirectoryPlace(Place):
    """The files below a directory. Written ones are complete when they have their name, and read-only but the index."""

    def document(self, name: str, longest: int) -> Document | None:
        """Return a small file; its tag is its sha256."""
        try:
            with safe_files.reading(self._path(name)) as file:
                data = documents.read(file, longest=longest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as e:
            raise Permanent(str(e)) from e
        except (OSError, NoPermission) as e:
            raise _failed(e) from e
        return Document(data, hashlib.sha256(data).hexdigest())

    def stat(self, name: str) -> Meta | None:
        """Return the size of a file."""
        try:
            return Meta(name, self._path(name).stat().st_size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise _failed(e) from e

    @contextmanager
    def open(self, name: str, request: RangeRequest) -> Iterator[Reply]:
        """Read a range of a file."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(safe_files.reading(self._path(name)))
                size = os.fstat(file.fileno()).st_size
            except (OSError, NoPermission) as e:
                raise _failed(e) from e
            start, end = request.start, size if request.stop is None else min(request.stop, size)
            yield Reply(tag=Tag(size=size), start=start, stop=end, blocks=_pieces(file, start, end))

    def list(self, prefix: str) -> Iterator[Meta]:
        """Yield all files below a directory but hidden ones."""
        top = self.address.directory
        for directory, _, files in os.walk(top / prefix):
            for name in files:
                if not name.startswith("."):
                    file = Path(directory, name)
                    with suppress(FileNotFoundError):
                        yield Meta(file.relative_to(top).as_posix(), file.stat().st_size)

    def siblings(self) -> Iterator[Place]:
        """Yield the directories beside this one."""
        above = self.address.directory.parent
        with suppress(OSError):
            for entry in sorted(os.scandir(above), key=attrgetter("name")):
                if entry.name.startswith(".") or entry.name == self.address.name or not entry.is_dir():
                    continue
                beside = self.address.sibling(entry.name)
                if beside is not None:
                    yield self.beside(beside)

    def write(self, name: str, body: Body, *, if_tag: str | Unconditional | None = ANY) -> int:
        """Write a file in one step; a document with a condition under the lock of the directory."""
        try:
            if isinstance(if_tag, Unconditional):
                self._write_new(self._path(name), body)
            else:
                self._replace(name, body, if_tag)
        except (OSError, NoPermission) as e:
            raise _failed(e) from e
        return body.size

    def _write_new(self, path: Path, body: Body) -> None:
        safe_files.directory(path.parent, self.address.directory)
        temporary, descriptor = _temporary(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(body.pieces())
                file.flush()
                os.fsync(descriptor)
                with suppress(OSError):  # a mounted bucket has no modes
                    os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o444)
                temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        disk.sync_directory(path.parent)

    def _replace(self, name: str, body: Body, seen: str | None) -> None:
        top = self.address.directory
        safe_files.directory(top, top)
        with file_lock(top / _LOCK):
            there = self.document(name, LONGEST)
            if (None if there is None else there.tag) != seen:
                raise Overtaken
            with safe_files.replacing(self._path(name)) as file, body.open() as content:
                shutil.copyfileobj(content, file, _PIECE)
                file.flush()
                os.fsync(file.fileno())
            disk.sync_directory(top)

    def copy(self, source: Place, name: str) -> bool:
        """Share a file of a directory beside this one: by hard link, else by reflink, else by copy."""
        if not isinstance(source, DirectoryPlace):
            return False
        path = self._path(name)
        try:
            safe_files.directory(path.parent, self.address.directory)
            disk.share(source._path(name), path, sealed=True)
        except (OSError, RldsError):
            return False
        return True

    def tidy(self) -> None:
        """Remove hidden files in which nobody writes any more."""
        for file in self.address.directory.glob("*/.*.part"):
            with suppress(OSError, NoPermission):
                descriptor = safe_files.open_own(file, os.O_WRONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file.unlink()
                finally:
                    os.close(descriptor)

    def delete(self, names: Sequence[str]) -> None:
        """Remove files."""
        try:
            for name in names:
                self._path(name).unlink(missing_ok=True)
        except OSError as e:
            raise _failed(e) from e

    def _path(self, name: str) -> Path:
        return self.address.directory / name


def _pieces(file: BinaryIO, start: int, stop: int) -> Iterator[Chunk]:
    try:
        file.seek(start)
        while start < stop and (chunk := file.read(min(_PIECE, stop - start))):
            yield chunk
            start += len(chunk)
    except OSError as e:
        raise _failed(e) from e


def _temporary(path: Path) -> tuple[Path, int]:
    """Open the hidden file in which ``path`` is written; one that a killed push left is written over."""
    for name in (f".{path.name}.part", safe_files.temporary_name(path.name)):
        temporary = path.with_name(name)
        descriptor = safe_files.open_own(temporary, os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            continue
        os.ftruncate(descriptor, 0)
        return temporary, descriptor
    temporary = path.with_name(safe_files.temporary_name(path.name))
    return temporary, safe_files.open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _failed(e: OSError | NoPermission) -> Permanent:
    if isinstance(e, NoPermission):
        return Permanent(e.message.rstrip("."))
    return Permanent(e.strerror or type(e).__name__, 404 if isinstance(e, FileNotFoundError) else 0)
