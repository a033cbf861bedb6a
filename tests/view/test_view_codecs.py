"""What a browser is told of videos: worked out from RFC 6381 and the documents of the codecs."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_frames import film

from rlds_cli.base.media import video_files
from rlds_cli.view.codecs import container_of, mime_of

GROUPS = {"g": "10", "bf": "2", "preset": "veryfast", "level": "11"}  # several groups of pictures


def mime(path: Path) -> str | None:
    return mime_of(np.fromfile(path, np.uint8), video_files.read(path))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("a.mp4", {"codec": "h264", "profile": "baseline", "level": "30"}, 'video/mp4; codecs="avc1.42c01e"'),
        ("a.mp4", {"codec": "h264", "pixels": "yuv444p", "level": "31"}, 'video/mp4; codecs="avc1.f4001f"'),
        ("a.mp4", {"codec": "h264", "pixels": "yuv420p10le", "level": "31"}, 'video/mp4; codecs="avc1.6e001f"'),
        ("a.mp4", {"codec": "hevc"}, 'video/mp4; codecs="hvc1.1.6.L30.90"'),
        ("a.mp4", {"codec": "hevc", "pixels": "yuv420p10le"}, 'video/mp4; codecs="hvc1.2.4.L30.90"'),
        ("a.mp4", {"codec": "av1"}, 'video/mp4; codecs="av01.0.00M.08"'),
        ("a.mp4", {"codec": "av1", "pixels": "yuv420p10le"}, 'video/mp4; codecs="av01.0.00M.10"'),
        ("a.mp4", {"codec": "vp9"}, 'video/mp4; codecs="vp09.00.10.08"'),
        ("a.webm", {"codec": "vp9"}, 'video/webm; codecs="vp09.00.10.08"'),
        ("a.mp4", {"codec": "mpeg4"}, 'video/mp4; codecs="mp4v.20.1"'),
        ("a.mp4", {"codec": "h264", "x264-params": "open-gop=1", **GROUPS}, None),
        ("a.mp4", {"codec": "h264", "x264-params": "open-gop=0", **GROUPS}, 'video/mp4; codecs="avc1.64000b"'),
        ("a.mkv", {"codec": "h264"}, None),
        ("a.avi", {"codec": "mpeg4"}, None),
    ],
)
def test_the_type_of_a_video(tmp_path: Path, name: str, options: dict[str, Any], expected: str | None) -> None:
    assert mime(film(tmp_path / name, range(30), **options)) == expected


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("a.mkv", "h264", "video/x-matroska"), ("a.avi", "mpeg4", "video/x-msvideo"), ("a.webm", "vp9", "video/webm"),
        ("a.mp4", "h264", "video/mp4"),
    ],
)  # fmt: skip
def test_the_container_of_a_video(tmp_path: Path, name: str, codec: str, container: str) -> None:
    data = np.fromfile(film(tmp_path / name, range(3), codec=codec), np.uint8)
    assert container_of(data) == container


@pytest.mark.parametrize("box", [b"mvhd", b"tkhd"])
@pytest.mark.parametrize("matrix", [(0, 1, -1, 0), (-1, 0, 0, -1), (-1, 0, 0, 1)])  # a quarter, a half, mirrored
def test_a_video_that_players_turn_has_no_type(tmp_path: Path, box: bytes, matrix: tuple[int, ...]) -> None:
    path = film(tmp_path / "a.mp4", range(3))
    data = path.read_bytes()
    assert mime(path) is not None
    a, b, c, d = (value * 0x10000 for value in matrix)
    upright = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    at = data.index(upright, data.index(box))
    path.write_bytes(data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000) + data[at + 36 :])
    assert mime(path) is None


def test_tables_that_say_nothing_give_no_type(tmp_path: Path) -> None:
    from dataclasses import replace

    path = film(tmp_path / "a.mp4", range(3))
    data, track = np.fromfile(path, np.uint8), video_files.read(path)
    assert mime_of(data, replace(track, extradata=b"")) is None
    assert mime_of(data[:0], replace(track, codec="vp9", start=track.start[:0])) is not None
