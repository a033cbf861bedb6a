"""Read the headers of PNG and JPEG images, and compare the checksums of PNG, without decoding."""

from __future__ import annotations

import struct
import zlib
from typing import Literal, NamedTuple, get_args

Codec = Literal["jpeg", "png"]
CODECS: tuple[Codec, ...] = get_args(Codec)
MAX_PIXELS = 1 << 26  # of one frame; images that claim more are not decoded

_END = 64  # bytes at the end of a JPEG, among which its last marker is
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by colour type; a palette counts as RGB
_SOF = struct.Struct(">BHHB")  # bits, height, width and channels
_NOT_SIZES = {0xC4, 0xC8, 0xCC}  # markers in the range of frame headers with another meaning: DHT, JPG, DAC
_BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


class ImageHeader(NamedTuple):
    """Codec, height, width, channels, and bits of one channel."""

    codec: Codec
    height: int
    width: int
    channels: int
    bits: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(H, W, C)``."""
        return self.height, self.width, self.channels

    @property
    def dtype(self) -> str | None:
        """``uint8``, or ``uint16`` for grey PNG of 16 bits, which depth cameras write; None for other images."""
        deep = (self.codec, self.channels, self.bits) == ("png", 1, 16)
        return "uint16" if deep else "uint8" if self.bits <= 8 else None


class Reader:
    """Reads the headers of images one after the other: those of one camera begin alike, and are compared as bytes."""

    def __init__(self) -> None:
        self._begin = b"\0"  # as no image does
        self._header: ImageHeader | None = None  # of the last JPEG, up to the end of what its header was read of

    def read(self, data: bytes) -> ImageHeader | None:
        """Read the header of an image, as `read`."""
        if data.startswith(self._begin):
            return self._header
        if data[:3] != _JPEG:
            return read(data)
        found, end = _jpeg(data, 2, len(data))
        if found is not None:
            self._begin, self._header = data[:end], found
        return found


def read(data: bytes | memoryview, start: int = 0, stop: int | None = None) -> ImageHeader | None:
    """Read the header of the image in ``data[start:stop]``; None without a readable header.

    PNG: the IHDR chunk comes first (PNG specification, 5.6). JPEG: the first SOF marker (ITU-T T.81, B.2.2).
    """
    stop = len(data) if stop is None else stop
    if data[start : min(start + 8, stop)] == _PNG:
        if stop - start < 26 or data[start + 12 : start + 16] != b"IHDR":
            return None
        width, height = _number(data, start + 16, 4), _number(data, start + 20, 4)
        bits, kind = data[start + 24], data[start + 25]
        return ImageHeader("png", height, width, _PNG_CHANNELS[kind], bits) if kind in _PNG_CHANNELS else None
    return _jpeg(data, start + 2, stop)[0] if data[start : min(start + 3, stop)] == _JPEG else None


def is_damaged(data: bytes | memoryview) -> bool:
    """Return whether a PNG is cut short, or has a chunk with a wrong CRC (PNG specification, 5.3).

    Decoders ignore the checksums of pixels, and JPEG has none.
    """
    if data[:8] != _PNG:
        return False
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + _number(data, at, 4)
        if end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != _number(data, end, 4):
            return True
        if data[at + 4 : at + 8] == b"IEND":
            return False
        at = end + 4
    return True


def has_end(data: bytes | memoryview) -> bool:
    """Return whether a JPEG ends with its marker EOI (ITU-T T.81, B.1.1.3), or zeros behind that; or is none."""
    return data[:2] != b"\xff\xd8" or b"\xff\xd9" in bytes(data[-_END:])


def _jpeg(data: bytes | memoryview, at: int, stop: int) -> tuple[ImageHeader | None, int]:
    """Return the header of a JPEG, and where the bytes end that say it: no later one matters."""
    while at + 9 < stop and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
        elif marker in _BARE:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NOT_SIZES:
            bits, height, width, channels = _SOF.unpack_from(data, at + 4)
            return ImageHeader("jpeg", height, width, channels, bits), at + 10
        else:
            at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
    return None, at


def _number(data: bytes | memoryview, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")
