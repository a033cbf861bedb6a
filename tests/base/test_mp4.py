"""The tables of MP4 files against av, which reads them here on its own."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_archives import FPS, encode

from rlds_cli.base.media import mp4, mp4_cut
from rlds_cli.errors import CorruptArchive, UnknownLayout

CODECS = {
    "h264, with frames out of order": ("libx264", {}, "h264"),
    "h264, as LeRobot writes it": ("libx264", {"g": "2", "bf": "0"}, "h264"),
    "mpeg4": ("mpeg4", {}, "mpeg4"),
    "mpeg4, with frames out of order": ("mpeg4", {"bf": "2"}, "mpeg4"),
    "av1, as LeRobot writes it": ("libsvtav1", {"g": "2", "crf": "30", "preset": "12"}, "av1"),
    "hevc, with groups that refer to those before": (
        *("libx265", {"x265-params": "log-level=none:cutree=0:keyint=6:min-keyint=6:open-gop=1:bframes=3"}, "hevc"),
    ),
}


def pictures(n: int = 21, height: int = 48, width: int = 64) -> np.ndarray:
    base = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return np.stack([np.roll(base, 3 * k, 1) for k in range(n)])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CODECS)
def test_where_frames_lie_and_when_they_are_shown(tmp_path: Path, kind: str) -> None:
    codec, options, name = CODECS[kind]
    path = tmp_path / "a.mp4"
    encode(path, pictures(), codec, options)
    track = mp4.read(path)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        assert track.extradata == stream.codec_context.extradata
        assert (track.height, track.width, track.timescale) == (48, 64, stream.time_base.denominator)
    assert track.codec == name
    assert track.start.tolist() == [p.pos for p in packets]
    assert track.size.tolist() == [p.size for p in packets]
    assert track.time.tolist() == [p.pts for p in packets]
    assert track.key.tolist() == [p.is_keyframe for p in packets]
    np.testing.assert_allclose(track.seconds, np.arange(21) / FPS, atol=1e-9)
    content = path.read_bytes()
    assert [content[a : a + n] for a, n in zip(track.start, track.size, strict=True)] == [bytes(p) for p in packets]


def test_a_file_within_a_file(tmp_path: Path) -> None:
    path, both = tmp_path / "a.mp4", tmp_path / "both"
    encode(path, pictures(), "mpeg4", {})
    content = path.read_bytes()
    both.write_bytes(b"before" + content + b"behind")
    one, other = mp4.read(path), mp4.read(mp4.Extent(((both, 6, len(content)),)))
    np.testing.assert_array_equal(one.start, other.start)
    np.testing.assert_array_equal(one.time, other.time)


def test_what_is_cut_short_or_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    encode(path, pictures(), "mpeg4", {})
    content = path.read_bytes()
    path.write_bytes(content[:-50])
    with pytest.raises(CorruptArchive, match="is cut short"):
        mp4.read(path)
    path.write_bytes(content[: content.index(b"moov") - 4])
    with pytest.raises(CorruptArchive, match="no tables"):
        mp4.read(path)
    path.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(UnknownLayout, match="is not an MP4 file"):
        mp4.read(path)


def test_boxes_in_a_box_have_a_bound(tmp_path: Path) -> None:
    many = struct.pack(">I4s", 8, b"free") * 2_000
    (tmp_path / "a.mp4").write_bytes(struct.pack(">I4s", 8 + len(many), b"moov") + many)
    with pytest.raises(CorruptArchive, match="boxes in a box"):
        mp4.read(tmp_path / "a.mp4")


def test_fragmented_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w", options={"movflags": "frag_keyframe+empty_moov"}) as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for picture in pictures(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with pytest.raises(UnknownLayout, match="fragmented") as refused:
        mp4.read(path)
    assert "-c copy" in str(refused.value.hint)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("mp4") / "a.mp4"
    encode(path, pictures(9), "mpeg4", {"bf": "2"})
    return path.read_bytes()


@settings(max_examples=50)
@given(st.data())
def test_damaged_tables_are_refused_or_lie_within_the_file(content: bytes, tmp_path: Path, data: st.DataObject) -> None:
    tables = content.index(b"moov") - 4
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(tables, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.mp4"
    path.write_bytes(changed)
    try:
        track = mp4.read(path)
    except (CorruptArchive, UnknownLayout):
        return
    assert len(track.start) == len(track.size) == len(track.time) == len(track.key)
    assert (track.start >= 0).all()
    assert ((track.start + track.size) <= len(content)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CODECS)
def test_frames_that_are_cut_out_are_the_same(tmp_path: Path, kind: str) -> None:
    codec, options, _ = CODECS[kind]
    path, part = tmp_path / "a.mp4", tmp_path / "part.mp4"
    encode(path, pictures(), codec, options)
    with av.open(str(path)) as container:
        whole = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    for first, last in ((0, 20), (5, 5), (7, 13), (17, 20)):
        excerpt = mp4_cut.cut(mp4.Extent.whole(path), first, last)
        excerpt.write(part)
        assert part.stat().st_size == excerpt.size
        with av.open(str(part)) as container:
            shown = {round(float(f.pts * f.time_base) * FPS): f for f in container.decode(video=0)}
        for step in range(last - first + 1):
            assert (shown[step].to_ndarray(format="rgb24") == whole[first + step]).all()
        assert np.allclose(mp4.read(part).seconds[: last - first + 1], np.arange(last - first + 1) / FPS)


@given(st.data())
def test_the_bytes_that_packets_take_reach_from_where_decoding_begins(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))

    def drawn(values: st.SearchStrategy[int] | st.SearchStrategy[bool]) -> np.ndarray:
        return np.array(data.draw(st.lists(values, min_size=n, max_size=n)))

    start, size, time, key = (
        drawn(st.integers(0, 99)),
        drawn(st.integers(0, 9)),
        drawn(st.integers(0, 20)),
        drawn(st.booleans()),
    )
    track = mp4.Track("av1", b"", 4, 4, 25, start, size, time, key, np.ones(n, bool))
    packets = np.array(data.draw(st.lists(st.integers(0, n - 1))), np.int64)
    starts, stops = track.ranges(packets)
    for packet, first, stop in zip(packets.tolist(), starts.tolist(), stops.tolist(), strict=True):
        read = range(track.begin(packet), packet + 1)
        assert (first, stop) == (min(start[k] for k in read), max(start[k] + size[k] for k in read))
