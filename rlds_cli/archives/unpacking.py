"""Compressed files read as streams in bounded memory: gzip and xz, told by their first bytes; others as they are."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from rlds_cli.errors import CorruptArchive, NoPermission, UnsafeArchive

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
BLOCK = 1 << 20  # bytes unpacked at a time
PACKED = 1 << 18  # bytes read at a time
AHEAD_FROM = 8 << 20  # bytes of content from which on a thread unpacks ahead
# What a packed byte may become on the whole: deflate ends at 1,032, xz at about 7,000.
MAX_RATIO = 1000
FREE_BYTES = 64 << 20
XZ_MEMORY = 192 << 20  # `xz -9` needs 65 MiB; a header may ask for 4 GiB

_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and 32 KiB of window


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
    """The content of a file, forward only; several packed streams one after the other are one.

    Parameters
    ----------
    path : Path
    ratio : int, optional
        Bytes that a packed byte may become, on the whole and after the first 64 MiB.
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
        """The next ``size`` bytes, fewer only at the end; memory grows with what is there, not with what is asked."""
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
        """Pass over ``size`` bytes; how many there were."""
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
        """Pass over what is left: the checksum of a stream stands at its end.

        Raises
        ------
        CorruptArchive
            It does not agree, or the stream breaks off.
        """
        while self.skip(BLOCK):
            pass

    def _fresh(self) -> _Unpacker | None:
        if self._kind == "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
        return _Gzip() if self._kind else None

    def close(self) -> None:
        """Let go of the thread; the file is the caller's."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next(self) -> bytes:
        """The next block, empty at the end; of streams that are not small a thread makes the one after it meanwhile."""
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
            f"{self.path.name} is truncated: its {self._kind} stream breaks off at byte {self._packed:,} of the file, "
            f"after {self.given:,} bytes of content.",
            hint=_again(self.path),
        )


@contextmanager
def open_unpacked(path: Path, *, ratio: int = MAX_RATIO) -> Iterator[Unpacked]:
    """Open a file of either kind.

    Raises
    ------
    CorruptArchive
        It cannot be unpacked, or breaks off.
    UnsafeArchive
        It becomes more than ``ratio`` times its size, or needs more memory than `xz -9` would.
    NoPermission
        The file may not be read.
    """
    try:
        with path.open("rb") as file, closing(Unpacked(path, file, ratio=ratio)) as stream:
            yield stream
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e


def _again(path: Path) -> str:
    return f"delete {path} and fetch it again"
