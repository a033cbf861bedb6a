"""What a browser is told of a video: the type of its container, and its codec in the words of RFC 6381.

==========  =====================================================  ==========================
H.264       ``avc1.PPCCLL``: bytes 1 to 3 of ``avcC``              ISO/IEC 14496-15, E.2
HEVC        ``hvc1.PROFILE.COMPATIBLE.TIERLEVEL.CONSTRAINTS``      ISO/IEC 14496-15, E.3
AV1         ``av01.P.LLT.DD``: bytes 1 and 2 of ``av1C``           AV1 in ISO media files, 5
VP9         ``vp09.PP.LL.DD``                                      VP codecs in ISO media files
MPEG-4      ``mp4v.20.P``                                          RFC 6381, 3.3
==========  =====================================================  ==========================
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media import mp4
from rlds_cli.base.media.mp4 import Track
from rlds_cli.errors import RldsError

MP4, WEBM, MATROSKA, AVI = "video/mp4", "video/webm", "video/x-matroska", "video/x-msvideo"
_PLAYED = {MP4: ("h264", "hevc", "av1", "vp9", "mpeg4"), WEBM: ("vp8", "vp9", "av1")}
_DOCTYPE_WEBM = b"\x42\x82\x84webm"
_HEAD = 256
_MOST_UNITS = 64  # of a packet, before the first of a picture
# Pixels of a frame up to which a level of VP9 reaches, beside ten times its number (VP9 bitstream, annex A).
_VP9_LEVELS = ((36_864, 10), (73_728, 11), (122_880, 20), (245_760, 21), (552_960, 30), (983_040, 31))
_VP9_LARGE = ((2_228_224, 41), (8_912_896, 51), (35_651_584, 61))


def container_of(data: Array) -> str:
    """Return the media type of a video file by its first bytes; ``data`` are the bytes of the file."""
    head = np.asarray(data[:_HEAD]).tobytes()
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return WEBM if _DOCTYPE_WEBM in head else MATROSKA
    return AVI if head[:4] == b"RIFF" else MP4


def mime_of(data: Array, track: Track) -> str | None:
    """Return the type that `canPlayType` of a browser takes; None for what none plays, turns, or does not seek in."""
    container = container_of(data)
    if track.codec not in _PLAYED.get(container, ()) or _has_open_groups(data, track) or is_turned(data):
        return None
    codec = _codec(data, track)
    return f'{container}; codecs="{codec}"' if codec else None


def is_turned(data: Array) -> bool:
    """Return whether players turn or mirror the pictures; training gets them as they are decoded."""

    def read(at: int, size: int) -> bytes:
        return np.asarray(data[at : at + size]).tobytes()

    if container_of(data) != MP4:
        return False
    try:
        return mp4.is_turned(read, len(data), Path("video"))
    except (RldsError, struct.error):
        return False


def _codec(data: Array, track: Track) -> str | None:
    extra = track.extradata
    if track.codec == "h264" and len(extra) > 3 and extra[0] == 1:
        return f"avc1.{extra[1:4].hex()}"
    if track.codec == "hevc" and len(extra) > 12 and extra[0] == 1:
        return _hevc(extra)
    if track.codec == "av1" and len(extra) > 2:
        profile, level, tier = extra[1] >> 5, extra[1] & 31, "H" if extra[2] & 0x80 else "M"
        bits = (12 if extra[2] & 0x20 else 10) if extra[2] & 0x40 else 8
        return f"av01.{profile}.{level:02}{tier}.{bits:02}"
    if track.codec == "vp9":
        return _vp9(data, track)
    if track.codec == "mpeg4":
        start = extra.find(b"\x00\x00\x01\xb0")  # visual_object_sequence: its profile and level follow
        return f"mp4v.20.{extra[start + 4] if start >= 0 and start + 4 < len(extra) else 1}"
    return "vp8" if track.codec == "vp8" else None


def _has_open_groups(data: Array, track: Track) -> bool:
    """Return whether pictures of H.264 refer to some before a key frame: Chromium shows nothing after a seek to it.

    Such a key frame is no IDR picture, of which the units have type 5 (ITU-T H.264, 7.4.1); the second one shows it.
    """
    width = track.length_prefix
    if not width or len(track.keys) < 2:
        return False
    at = int(track.start[track.keys[1]])
    stop = at + int(track.size[track.keys[1]])
    for _ in range(_MOST_UNITS):
        if at + width >= stop:
            break
        *length, head = np.asarray(data[at : at + width + 1]).tolist()
        if 1 <= head & 31 <= 5:  # of a picture
            return bool(head & 31 != 5)
        at += width + int.from_bytes(bytes(length))
    return False


def _hevc(extra: bytes) -> str:
    """Return the words for ``hvcC``: the bits of compatibility are written from the last to the first."""
    space, tier, profile = "ABC"[(extra[1] >> 6) - 1] if extra[1] >> 6 else "", "LH"[extra[1] >> 5 & 1], extra[1] & 31
    compatible = int(f"{int.from_bytes(extra[2:6]):032b}"[::-1], 2)
    constraints = "".join(f".{byte:X}" for byte in extra[6:12].rstrip(b"\0"))
    return f"hvc1.{space}{profile}.{compatible:X}.{tier}{extra[12]}{constraints}"


def _vp9(data: Array, track: Track) -> str:
    """Return the words for VP9, whose profile the first frame states (VP9 bitstream, 6.2)."""
    first = int(track.start[0]) if len(track.start) else 0
    head = int(np.asarray(data[first : first + 1])[0]) if len(track.start) else 0
    profile = (head >> 5 & 1) | (head >> 4 & 1) << 1
    pixels = track.height * track.width
    level = next((level for most, level in (*_VP9_LEVELS, *_VP9_LARGE) if pixels <= most), 62)
    return f"vp09.{profile:02}.{level}.{10 if profile > 1 else 8:02}"
