"""Read compressed files and tar archives as streams in bounded memory.

The first bytes of a file tell gzip and xz; other files are read as they are. A tar archive is read once, member by
member, and nothing is written to the disk. A member is a header of 512 bytes and its content, padded to a multiple of
that; two blocks of zeros mark the end. Long names have a member of their own before it: ``L`` (GNU) or ``x`` (pax,
POSIX.1-2001).

Python's ``tarfile`` takes a damaged header for the end of the archive, reads a pax header of any size into memory, and
keeps an object for every member that it has seen. Here damage is an error, and memory does not grow.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, NoPermission, UnsafeArchive

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
BLOCK = 1 << 20  # bytes unpacked at a time
PACKED = 1 << 18  # bytes read at a time
AHEAD_FROM = 8 << 20  # bytes of content from which on a thread unpacks ahead
# Highest ratio of unpacked to packed bytes of a whole file. Deflate reaches 1,032, xz about 7,000.
MAX_RATIO = 1000
FREE_BYTES = 64 << 20
XZ_MEMORY = 192 << 20  # `xz -9` needs 65 MiB; a header may ask for 4 GiB
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and 32 KiB of window
TAR_BLOCK = 512
MAX_EXTENSION = 1 << 20  # bytes of a name or a pax header
READ_BYTES = 1 << 20
_REGULAR, _DIRECTORY = (b"0", b"\0", b"7"), b"5"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"K": "a link with a long target",
}
_RECORD = re.compile(rb"(\d{1,10}) ([^=]+)=", re.DOTALL)  # an extension has less than 10**10 bytes
_SIZE = re.compile(r"[0-9]{1,20}")


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of lzma's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class Unpacked:
    """The content of a file, read forward only. Several packed streams in a row are read as one.

    Parameters
    ----------
    path : Path
    ratio : int, optional
        Highest ratio of unpacked to packed bytes of the whole file, checked after the first 64 MiB.
    """

    def __init__(self, path: Path, file: BinaryIO, *, ratio: int = MAX_RATIO) -> None:
        self.path = path
        self._file, self._ratio = file, ratio
        head = file.read(len(XZ))
        file.seek(0)
        self._kind = "gzip" if head.startswith(GZIP) else "xz" if head == XZ else None
        self._unpacker = self._fresh()
        self._block = memoryview(b"")
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[bytes] | None = None
        self._packed = self.given = 0  # bytes read of the file, bytes of content unpacked so far

    def readinto(self, out: memoryview) -> int:
        """Fill ``out`` with the next bytes; fewer only at the end."""
        done = 0
        while done < len(out):
            if not self._block:
                self._block = memoryview(self._next())
                if not self._block:
                    break
            n = min(len(self._block), len(out) - done)
            out[done : done + n] = self._block[:n]
            self._block = self._block[n:]
            done += n
        return done

    def read(self, size: int) -> bytes:
        """Read the next ``size`` bytes, fewer only at the end. Memory grows with the content, not with ``size``."""
        pieces = []
        while size:
            if not self._block:
                self._block = memoryview(self._next())
                if not self._block:
                    break
            pieces.append(bytes(self._block[:size]))
            self._block = self._block[len(pieces[-1]) :]
            size -= len(pieces[-1])
        return b"".join(pieces)

    def skip(self, size: int) -> int:
        """Skip ``size`` bytes, and return the number skipped."""
        left = size
        while left:
            if not self._block:
                self._block = memoryview(self._next())
                if not self._block:
                    break
            n = min(len(self._block), left)
            self._block, left = self._block[n:], left - n
        return size - left

    def finish(self) -> None:
        """Read to the end, where the checksum of the stream is compared.

        Raises
        ------
        CorruptArchive
            The checksum does not match, or the stream is cut short.
        """
        while self.skip(BLOCK):
            pass

    def _fresh(self) -> _Unpacker | None:
        if self._kind == "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
        return _Gzip() if self._kind else None

    def close(self) -> None:
        """Stop the thread; the caller closes the file."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next(self) -> bytes:
        """Return the next block, empty at the end. For long streams a thread unpacks the block after it meanwhile."""
        block = self._ahead.result() if self._ahead else self._made()
        self._ahead = None
        if block and self._unpacker is not None and self.given > AHEAD_FROM:
            self._pool = self._pool or ThreadPoolExecutor(1)
            self._ahead = self._pool.submit(self._made)
        return block

    def _made(self) -> bytes:
        if self._unpacker is None:
            block = self._more()
            self.given += len(block)
            return block
        while True:
            data = b""
            if self._unpacker.eof:
                data = self._unpacker.unused_data or self._more()
                if not data.strip(b"\0"):  # zeros may pad the end
                    return b""
                self._unpacker = self._fresh()
                assert self._unpacker is not None
            elif self._unpacker.needs_input:
                data = self._more()
                if not data:
                    raise self._broken_off()
            block = self._unpack(self._unpacker, data)
            self.given += len(block)
            if self.given > FREE_BYTES and self.given > self._ratio * self._packed:
                raise UnsafeArchive(
                    f"{self.path.name}: {self._packed:,} packed bytes become more than {self.given:,}; "
                    f"more than {self._ratio:,} for each are refused."
                )
            if block:
                return block

    def _unpack(self, unpacker: _Unpacker, data: bytes) -> bytes:
        try:
            return unpacker.decompress(data, BLOCK)
        except (lzma.LZMAError, zlib.error) as e:
            if "Memory" in str(e):
                raise UnsafeArchive(f"{self.path.name} needs more than {XZ_MEMORY >> 20} MiB to unpack.") from e
            raise CorruptArchive(f"{self.path.name} cannot be unpacked: {e}", hint=_again(self.path)) from e

    def _more(self) -> bytes:
        packed = self._file.read(PACKED)
        self._packed += len(packed)
        return packed

    def _broken_off(self) -> CorruptArchive:
        return CorruptArchive(
            f"{self.path.name} is truncated: its {self._kind} stream ends at byte {self._packed:,} of the file, "
            f"after {self.given:,} bytes of content.",
            hint=_again(self.path),
        )


@contextmanager
def open_unpacked(path: Path, *, ratio: int = MAX_RATIO) -> Iterator[Unpacked]:
    """Open a compressed file.

    Raises
    ------
    CorruptArchive
        The file cannot be unpacked, or is cut short.
    UnsafeArchive
        The content has more than ``ratio`` times the file's size, or needs more memory than `xz -9`.
    NoPermission
        The file may not be read.
    """
    child.note(path)
    try:
        with path.open("rb") as file, closing(Unpacked(path, file, ratio=ratio)) as stream:
            yield stream
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e


def _again(path: Path) -> str:
    return f"delete {path} and fetch it again"


@dataclass(slots=True)
class ArchiveMember:
    """A regular file in an archive. Its content is read once, forward; ``number`` counts members from 0."""

    name: str
    size: int
    number: int
    stream: Unpacked
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.size

    def read(self, size: int = READ_BYTES) -> bytes:
        """Read the next bytes, at most ``size``; empty at the end.

        Raises
        ------
        CorruptArchive
            The archive ends inside the member.
        """
        wanted = min(size, self.left)
        data = self.stream.read(wanted)
        self.left -= len(data)
        if len(data) < wanted:
            raise _cut(self.stream, self.name)
        return data


@dataclass(slots=True)
class _Header:
    name: str
    size: int
    kind: bytes


def is_tar(stream: Unpacked) -> bool:
    """Return whether a stream begins with the header of a member."""
    block = stream.read(TAR_BLOCK)
    return len(block) == TAR_BLOCK and any(block) and _checksum(block)


def members(stream: Unpacked) -> Iterator[ArchiveMember]:
    """Yield the regular files of an archive, in order; unread content is skipped.

    Raises
    ------
    CorruptArchive
        A damaged header, or the archive ends without its end mark.
    UnsafeArchive
        Names that are absolute or climb out of their directory, links, devices, sizes that the archive cannot hold.
    """
    number = 0
    extended: dict[str, str] = {}
    while True:
        block = stream.read(TAR_BLOCK)
        if len(block) < TAR_BLOCK:
            raise _cut(stream, None)
        if not any(block):
            _drain(stream)
            return
        header = _parsed(stream, block, extended)
        if header.kind in (b"x", b"g", b"L"):
            content = _extension(stream, header)
            found = (
                {"path": content.rstrip(b"\0").decode(errors="replace")}
                if header.kind == b"L"
                else _pax(stream, content)
            )
            if any(key.startswith("GNU.sparse") for key in found):
                raise _refused(stream, header.name, "is a sparse file")
            extended |= found if header.kind != b"g" else {}
            continue
        extended = {}
        if header.kind not in (*_REGULAR, _DIRECTORY):
            raise _refused(stream, header.name, f"is {_REFUSED.get(header.kind, 'of no known kind')}")
        name = _safe(stream, header.name)
        if header.kind == _DIRECTORY or header.name.endswith("/"):
            _pass_over(stream, header, header.size)
            continue
        member = ArchiveMember(name, header.size, number, stream)
        yield member
        number += 1
        _pass_over(stream, header, member.left)


def _parsed(stream: Unpacked, block: bytes, extended: dict[str, str]) -> _Header:
    if not _checksum(block):
        raise CorruptArchive(
            f"{stream.path.name}: the header of a member is damaged, at byte {stream.given:,} or before.",
            hint=f"delete {stream.path} and fetch it again",
        )
    name = block[:100].split(b"\0")[0].decode(errors="replace")
    prefix = block[345:500].split(b"\0")[0].decode(errors="replace")
    if prefix and block[257:263] == b"ustar\0":
        name = f"{prefix}/{name}"
    size = int(extended["size"]) if _SIZE.fullmatch(extended.get("size", "")) else _number(block[124:136])
    header = _Header(extended.get("path", name), size, block[156:157])
    stored = stream.path.stat().st_size
    if size < 0 or size > MAX_RATIO * stored + FREE_BYTES:
        raise _refused(stream, header.name, f"claims {size:,} bytes in a file of {stored:,}")
    return header


def _checksum(block: bytes) -> bool:
    """Sum all bytes of a header, with spaces for the checksum itself; some old writers summed signed bytes."""
    said = _number(block[148:156])
    plain = block[:148] + b" " * 8 + block[156:]
    return said in (sum(plain), sum(b - 256 if b > 127 else b for b in plain))


def _number(digits: bytes) -> int:
    """Parse octal digits, or a big-endian number after a byte of 0x80; -1 for anything else."""
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits[1:], "big") if digits[0] == 0x80 else -1
    text = digits.strip(b" \0")
    try:
        return int(text or b"0", 8)
    except ValueError:
        return -1


def _extension(stream: Unpacked, header: _Header) -> bytes:
    if header.size > MAX_EXTENSION:
        raise _refused(stream, header.name, f"has a header of {header.size:,} bytes")
    content = stream.read(header.size)
    if len(content) < header.size:
        raise _cut(stream, header.name)
    _pass_over(stream, header, 0)
    return content


def _pax(stream: Unpacked, content: bytes) -> dict[str, str]:
    """Parse pax records ``<length> <key>=<value>\\n``, one after the other; zeros may pad the end.

    Raises
    ------
    CorruptArchive
        A length is not a number, or goes beyond the extension.
    """
    found, at = {}, 0
    while content[at:].strip(b"\0"):
        m = _RECORD.match(content, at)
        stop = at + int(m[1]) if m else 0
        if m is None or not m.end() < stop <= len(content):
            raise CorruptArchive(
                f"{stream.path.name}: the pax header of a member is damaged, at byte {stream.given:,} or before.",
                hint=f"delete {stream.path} and fetch it again",
            )
        found[m[2].decode(errors="replace")] = content[m.end() : stop - 1].decode(errors="replace")
        at = stop
    return found


def _pass_over(stream: Unpacked, header: _Header, left: int) -> None:
    """Skip the rest of the content and its padding, up to the next header."""
    wanted = left + -header.size % TAR_BLOCK
    if stream.skip(wanted) < wanted:
        raise _cut(stream, header.name)


def _drain(stream: Unpacked) -> None:
    """Read to the end, so that the checksum of the packed stream is compared."""
    while stream.skip(READ_BYTES):
        pass


def _safe(stream: Unpacked, name: str) -> str:
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if name.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:", name):
        raise _refused(stream, name, "is an absolute path")
    if ".." in parts:
        raise _refused(stream, name, "leaves its directory")
    if not name.isprintable() or "\\" in name:
        raise _refused(stream, name, "holds a backslash or a control character")
    return "/".join(parts)


def _refused(stream: Unpacked, name: str, what: str) -> UnsafeArchive:
    return UnsafeArchive(
        f"{stream.path.name}: the member {name[:200]!r} {what}. Nothing of it was written.",
        hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create",
    )


def _cut(stream: Unpacked, name: str | None) -> CorruptArchive:
    where = f"inside {name}" if name else "without the mark of its end"
    return CorruptArchive(
        f"{stream.path.name} is truncated: it ends {where}, after {stream.given:,} bytes of content.",
        hint=f"delete {stream.path} and fetch it again",
    )
