"""Chunks that are compressed by Zstandard (RFC 8878): whether bytes are one, without decoding them."""

from __future__ import annotations

from collections.abc import Callable

_MAGIC, _FRAME_HEADER = b"\x28\xb5\x2f\xfd", 18
_RLE, _RESERVED, _CHECKSUM = 1, 3, 0x04  # kinds of blocks, and a flag of a frame's descriptor
_FEW_BLOCKS, _SMALLEST_BLOCK = 64, 1024  # a frame has no more blocks than these, plus one for so many bytes


def longest_chunk(size: int) -> int:
    """Return the greatest number of bytes that a chunk of ``size`` decoded bytes takes."""
    return 2 * size + 1024


def is_chunk(read: Callable[[int, int], bytes], length: int, size: int) -> bool:
    """Return whether ``length`` bytes are one Zstandard frame that decodes to ``size`` bytes, without decoding it.

    The decoder takes memory for what all frames of its input state, so nothing may follow the first one.

    Parameters
    ----------
    read : callable
        ``read(at, count)`` returns some of the bytes.
    """
    if length > longest_chunk(size):
        return False
    header = read(0, min(length, _FRAME_HEADER))
    stated, at = _frame_header(header)
    if stated != size:
        return False
    for _ in range(_FEW_BLOCKS + size // _SMALLEST_BLOCK):  # RFC 8878, 3.1.1.2
        word = int.from_bytes(read(at, 3).ljust(3, b"\xff"), "little")
        last, kind = word & 1, word >> 1 & 3
        at += 3 + (1 if kind == _RLE else word >> 3)
        if kind == _RESERVED or at > length:
            return False
        if last:
            return at + (4 if header[4] & _CHECKSUM else 0) == length
    return False


def _frame_header(header: bytes) -> tuple[int | None, int]:
    """Return the decoded size that a Zstandard frame states (RFC 8878, 3.1.1.1), None if none, and its first block."""
    if len(header) < 6 or header[:4] != _MAGIC:
        return None, 0
    descriptor = header[4]
    single = bool(descriptor & 0x20)
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    stated = int.from_bytes(header[at : at + width], "little")
    found = stated + (256 if width == 2 else 0) if width and len(header) >= at + width else None
    return found, at + width
