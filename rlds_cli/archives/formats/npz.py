"""Open npz files as untrusted input: members are streamed row by row, and nothing is unpickled.

An npz is a zip of ``<name>.npy``; each is a header, which says dtype and shape, and the values in C order::

    \\x93NUMPY 1 0 <length> {'descr': '<f4', 'fortran_order': False, 'shape': (1000, 3), }\\n  <rows>

``np.load`` inflates a whole member into memory, however large the header says it is. Here the header is checked against
the zip's own sizes before anything is allocated, and rows are inflated a block at a time, several members in parallel.
"""

from __future__ import annotations

import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import child, disk
from rlds_cli.errors import ArchiveError, CorruptArchive, NoPermission, UnknownLayout, UnsafeArchive

MAGIC = b"PK\x03\x04"
# Members of pickled objects that a layout can do without, with other members of the layout: of imitation's rollouts.
SPARE: Mapping[str, frozenset[str]] = {"infos": frozenset(("obs", "acts", "terminal", "indices"))}
NPY_MAGIC = b"\x93NUMPY"
MAX_MEMBERS = 1 << 16
MAX_HEADER = 1 << 16
MAX_VALUES = 1 << 48  # also of arrays without values, whose rows would be counted for ever
FREE_BYTES = 64 << 20
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
READ_BYTES = 1 << 20
MOST_KNOWN, FEW_MEMBERS = 1 << 13, 1 << 6  # files whose members are remembered, and their members
SHORT_HEADER = 1 << 10  # bytes of a header that is parsed once for all files
MAX_THREADS, THREADED_BYTES = 4, 1 << 20
_known: dict[tuple[Path, disk.State], Mapping[str, ZipMember]] = {}  # an import opens every file several times


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One array of an npz: ``name`` without ``.npy``, ``offset`` where its values begin in the member."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    fortran: bool = False

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all values."""
        return self.size * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def is_npz(path: Path) -> bool:
    """Return whether a file is a zip whose first member is an array."""
    try:
        return _is_npz(path, disk.state(path))
    except OSError:
        return False


@lru_cache(MOST_KNOWN)
def _is_npz(path: Path, state: disk.State) -> bool:
    with path.open("rb") as f:
        head = f.read(30)
        if len(head) < 30 or not head.startswith(MAGIC):
            return False
        return f.read(int.from_bytes(head[26:28], "little")).endswith(b".npy")


@contextmanager
def open_npz(path: Path, content: IO[bytes] | None = None) -> Iterator[NpzFile]:
    """Open a file for reading, and refuse content that no trustworthy npz has.

    Parameters
    ----------
    path : Path
        The file; with ``content`` only its name, for messages.
    content : binary file, optional
        A file object to read instead, such as a member of another archive; it must be seekable.

    Raises
    ------
    CorruptArchive
        Not a zip (an HTML page is named as such), truncated, or a header that does not fit its member.
    UnsafeArchive
        Names that climb out of a directory or stand twice, object arrays (pickles), encrypted members.
    UnknownLayout
        Values of a kind that no field can hold.
    NoPermission
        The file may not be read.
    """
    child.note(path)
    with ExitStack() as stack:

        def opened() -> zipfile.ZipFile:
            return stack.enter_context(_zip(path, content))

        if content is not None:
            yield NpzFile(path, opened)
            return
        try:
            key = path, disk.state(path)
        except OSError:
            opened()  # raises the error that says why
            raise
        npz = NpzFile(path, opened, _known.get(key))
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        if len(npz.members) <= FEW_MEMBERS:
            _known[key] = npz.members
        yield npz


def _zip(path: Path, content: IO[bytes] | None) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(content or path)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, OverflowError) as e:
        why = str(e) if content else _why(path, e)
        raise CorruptArchive(f"{path.name} cannot be opened as npz: {why}.", hint=hint(path)) from e


class NpzFile:
    """The members of an open npz, and their rows.

    Parameters
    ----------
    path : Path
        The file, for messages.
    opened : callable
        Opens it; called once a member is read.
    known : mapping, optional
        Its members, if they were read before.

    Example
    -------
    >>> with open_npz(path) as npz, npz.rows(["observations"]) as rows:  # doctest: +SKIP
    ...     block = rows.read(0, 4096)["observations"]
    """

    def __init__(
        self, path: Path, opened: Callable[[], zipfile.ZipFile], known: Mapping[str, ZipMember] | None = None
    ) -> None:
        self.path = path
        self._opened = opened
        self.members: Mapping[str, ZipMember] = self._members() if known is None else known

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return self._opened()

    def array(self, name: str, *, most: int = FREE_BYTES) -> Array:
        """Read a whole member that is small, such as flags or metadata.

        Raises
        ------
        CorruptArchive
            It is damaged.
        UnknownLayout
            It has more than ``most`` bytes.
        """
        member = self.members[name]
        if member.nbytes > most:
            raise UnknownLayout(f"{self.path.name}: {name} has {member.nbytes:,} bytes; at most {most:,} are expected.")
        with self.open_member(member) as f, reading(self.path, name):
            values = values_of(f, member, member.shape)
            finish(f)
            return values

    def rows(self, names: Collection[str]) -> NpzRows:
        """Return a reader of the rows of several members."""
        return NpzRows(self, [self.members[name] for name in names])

    def open_member(self, member: ZipMember) -> IO[bytes]:
        """Open a member at its first value; it is inflated as it is read."""
        with reading(self.path, member.name):
            f = self._archive.open(f"{member.name}.npy")
            skip(f, member.offset)
            return f

    @property
    def pickled(self) -> tuple[str, ...]:
        """The members that hold pickled objects, of layouts that can do without them; they are never read."""
        return tuple(name for name in _checked(self.path, self._archive) if name not in self.members)

    def _members(self) -> Mapping[str, ZipMember]:
        found = _checked(self.path, self._archive)
        members: dict[str, ZipMember] = {}
        for name, info in found.items():
            try:
                members[name] = self._member(name, info)
            except UnsafeArchive:
                if name not in SPARE or not SPARE[name].issubset(found):
                    raise
        return members

    def _member(self, name: str, info: zipfile.ZipInfo) -> ZipMember:
        with reading(self.path, name), self._archive.open(info) as f:
            member = parse_header(name, f, self.path.name)
        if member.offset + member.nbytes != info.file_size:
            raise CorruptArchive(
                f"{self.path.name}: {name} says {list(member.shape)} {member.dtype} ({member.nbytes:,} bytes), and has "
                f"{max(info.file_size - member.offset, 0):,} bytes.",
                hint=hint(self.path),
            )
        return member


def parse_header(name: str, f: IO[bytes], file: str) -> ZipMember:
    """Read the header of one ``.npy`` from where it begins.

    Parameters
    ----------
    name : str
        Name of the member, for messages, as is ``file``.
    f : binary file
        Left behind the header.

    Raises
    ------
    CorruptArchive
        No such header.
    UnsafeArchive
        Objects, which only unpickling could read.
    UnknownLayout
        Records, or a version of the format that only records need.
    """
    head = f.read(8)
    if len(head) < 8 or not head.startswith(NPY_MAGIC):
        raise CorruptArchive(f"{file}: {name} is not an array in NumPy's format.")
    version = (head[6], head[7])
    if version not in ((1, 0), (2, 0)):
        raise UnknownLayout(
            f"{file}: {name} is in version {head[6]}.{head[7]} of NumPy's format; 1.0 and 2.0 are read."
        )
    width = 2 if version == (1, 0) else 4
    size = f.read(width)
    length = int.from_bytes(size, "little")
    if len(size) < width or length > MAX_HEADER:
        raise CorruptArchive(f"{file}: {name} has a header of {length:,} bytes.")
    shape, fortran, dtype = _parsed(head + size + f.read(length), version, f"{file}: {name}")
    if dtype.hasobject:
        raise UnsafeArchive(
            f"{file}: {name} holds Python objects, pickled: they are never read, since reading them can run any code.",
            hint="it is not read; if you trust it, load it yourself and pass the episodes to rlds_cli.create",
        )
    if dtype.names or dtype.subdtype or dtype.kind not in "biufcSU":
        raise UnknownLayout(f"{file}: {name} holds {dtype} values, which a field cannot hold.")
    if any(isinstance(n, bool) or n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) >= MAX_VALUES:
        raise CorruptArchive(f"{file}: {name} says its shape is {shape}.")
    transposed = bool(fortran) and len(shape) > 1
    return ZipMember(name, shape, dtype, len(head) + width + length, transposed)


def _parsed(header: bytes, version: tuple[int, int], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        return (_read_header if len(header) <= SHORT_HEADER else _read_header.__wrapped__)(header, version)
    except (
        *(ValueError, TypeError, SyntaxError, KeyError, OverflowError),
        *(RecursionError, MemoryError, tokenize.TokenError),  # of Python's own parser, which NumPy asks
    ) as e:
        raise CorruptArchive(f"{what} has a header that cannot be understood: {e}") from e


@lru_cache(1 << 10)
def _read_header(header: bytes, version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    f = BytesIO(header)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2
        np.lib.format.read_magic(f)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(f, max_header_size=MAX_HEADER)


def _checked(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of a zip by name, without other members."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise _refused(f"{path.name} holds {len(infos):,} members.")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        _check_name(path, name)
        if info.flag_bits & 0x1:
            raise _refused(f"{path.name}: {name} is encrypted.")
        if not name.endswith(".npy"):
            continue
        if info.compress_type not in METHODS:
            raise UnknownLayout(f"{path.name}: {name} is compressed by method {info.compress_type}, not by deflate.")
        if found.setdefault(name.removesuffix(".npy"), info) is not info:
            raise _refused(f"{path.name}: {name} stands twice.")
    return found


def _check_name(path: Path, name: str) -> None:
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or name.startswith("/") or {"", ".", ".."} & set(parts):
        raise _refused(f"{path.name}: {name!r} is not a valid field name.")


def _refused(what: str) -> UnsafeArchive:
    return UnsafeArchive(
        what, hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create"
    )


def _why(path: Path, error: Exception) -> str:
    if not path.exists():
        return "there is no such file"
    if path.is_dir():
        return "it is a directory"
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is an HTML page (a server's error or log-in page saved under the archive's name)"
    if head.startswith(MAGIC.lower()):
        return f"it is truncated or damaged ({size:,} bytes; {error})"
    return "it is empty" if size == 0 else f"it is not an npz file ({size:,} bytes)"


class NpzRows:
    """Rows of several members of one npz, in order; the block read last may be asked for again in part."""

    def __init__(self, npz: NpzFile, members: Collection[ZipMember]) -> None:
        self._npz = npz
        self._streams = {m.name: _Stream(npz, m) for m in members}
        self._row_bytes = sum(m.row_bytes for m in members)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> NpzRows:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for stream in self._streams.values():
            stream.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Rows ``start`` to ``stop`` of every member; what lies before is skipped, never read again.

        Raises
        ------
        CorruptArchive
            A member is damaged, or ends early.
        ValueError
            ``start`` lies before the block read last.
        """
        if len(self._streams) < 2 or self._row_bytes * (stop - start) < THREADED_BYTES:
            return {name: stream.read(start, stop) for name, stream in self._streams.items()}
        # zlib lets go of the interpreter, so members are inflated side by side.
        self._pool = self._pool or ThreadPoolExecutor(min(len(self._streams), MAX_THREADS, os.cpu_count() or 1))
        blocks = self._pool.map(lambda stream: stream.read(start, stop), self._streams.values())
        return dict(zip(self._streams, blocks, strict=True))


class _Stream:
    """One member, inflated forward; keeps the block that it gave last."""

    def __init__(self, npz: NpzFile, member: ZipMember) -> None:
        self._npz, self._member = npz, member
        self._file = None if member.fortran else npz.open_member(member)
        self._block = npz.array(member.name, most=member.nbytes) if member.fortran else self._none()
        self._start = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, start: int, stop: int) -> Array:
        stop = min(stop, self._member.shape[0])
        start = min(start, stop)
        if self._file is None:
            return self._block[start:stop]
        if start < self._start:
            raise ValueError(f"{self._member.name}: row {start} lies before row {self._start}, where reading is.")
        have = self._start + len(self._block)
        kept = self._block[min(start - self._start, len(self._block)) :]
        with reading(self._npz.path, self._member.name):
            if start > have:
                skip(self._file, (start - have) * self._member.row_bytes)
                have = start
            if stop > have:
                new = values_of(self._file, self._member, (stop - have, *self._member.shape[1:]))
                kept = np.concatenate([kept, new]) if len(kept) else new
                if stop == self._member.shape[0]:
                    finish(self._file)
        self._block, self._start = kept, start
        return kept[: stop - start]

    def _none(self) -> Array:
        return np.empty((0, *self._member.shape[1:]), self._member.dtype)


def values_of(f: IO[bytes], member: ZipMember, shape: tuple[int, ...]) -> Array:
    """The next values, in the machine's byte order."""
    out = np.empty(shape[::-1] if member.fortran else shape, member.dtype)
    view, at = out.reshape(-1).view(np.uint8).data if out.nbytes else memoryview(b""), 0
    while at < out.nbytes:
        data = f.read(min(READ_BYTES, out.nbytes - at))
        if not data:
            raise EOFError("the data end early")
        view[at : at + len(data)] = data
        at += len(data)
    values = out.T if member.fortran else out
    return values.astype(member.dtype.newbyteorder("="), copy=False)


def skip(f: IO[bytes], size: int) -> None:
    """Skip ``size`` bytes."""
    while size:
        data = f.read(min(READ_BYTES, size))
        if not data:
            raise EOFError("the data end early")
        size -= len(data)


def finish(f: IO[bytes]) -> None:
    """Read one byte more than there is, which makes zipfile compare the checksum of a member."""
    if f.read(1):
        raise EOFError("there are more data than its header says")


@contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Turn the errors of zip files and of zlib, while reading ``name``, into CorruptArchive."""
    try:
        yield
    except ArchiveError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, struct.error),
        *(ValueError, OverflowError),  # of offsets before the beginning
    ) as e:
        raise CorruptArchive(f"{path.name}: {name} cannot be read: {e}", hint=hint(path)) from e


def hint(path: Path) -> str:
    """Return a hint for a damaged file, or for a file that is not npz."""
    if not _is_zip(path) and path.is_file():
        return f"rlds inspect {path} shows what it is; if it was an npz before, fetch or write it again"
    return f"fetch or write {path} again; its content cannot be used"


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as f:
            return f.read(2) == b"PK"
    except OSError:
        return False
