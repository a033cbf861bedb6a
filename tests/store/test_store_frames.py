"""Frames decoded many at a time are those that Pillow gives one at a time, broken ones included."""

from __future__ import annotations

import io
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from rlds_cli.errors import FrameError
from rlds_cli.store import decode_frames, frames
from rlds_cli.ted import Field

SHAPES = [(16, 24, 3), (16, 24, 1), (16, 24), (1, 1, 3), (40, 8, 3)]


def encode(pixels: np.ndarray, format: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    Image.fromarray(flat).save(out, format, **options)
    return out.getvalue()


def noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def by_pillow(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data))).reshape(shape)


def decode(files: list[bytes], rows: list[int], shape: tuple[int, ...]) -> np.ndarray:
    offsets = np.concatenate([[0], np.cumsum([len(f) for f in files])]).astype(np.int64)
    field = Field("pixels", "uint8", shape, "both", "frames", "jpeg")
    chosen = np.array(rows, np.int64)
    return decode_frames(
        np.frombuffer(b"".join(files), np.uint8), (offsets[chosen], offsets[chosen + 1]), chosen, field
    )


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at_once", [1, 1000, 1 << 20])
def test_jpegs_are_pillows(shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STRIP_PIXELS", at_once)
    options: list[dict[str, Any]] = [{}, {"quality": 95, "subsampling": 0}, {"progressive": True}, {"comment": b"seen"}]
    files = [encode(noise(i, shape), **options[i % 4]) for i in range(9)]
    rows = [8, 3, 0, 3, 3, 7, 1, 2, 4, 5, 6, 8]
    expected = np.stack([by_pillow(files[i], shape) for i in rows])
    assert np.array_equal(decode(files, rows, shape), expected)


def test_every_row_is_of_its_own_memory() -> None:
    files = [encode(noise(0, (8, 8, 3)))]
    twice = decode(files, [0, 0], (8, 8, 3))
    twice[0] = 0
    assert twice[1].any()


def test_jpegs_pngs_and_rows_without_a_frame_among_each_other() -> None:
    shape = (16, 24, 3)
    files = [encode(noise(0, shape)), encode(noise(1, shape), "PNG"), b"", encode(noise(3, shape)), b""]
    got = decode(files, [4, 3, 2, 1, 0, 1], shape)
    assert not got[[0, 2]].any()
    for place, i in ((1, 3), (3, 1), (4, 0), (5, 1)):
        assert np.array_equal(got[place], by_pillow(files[i], shape))
    assert decode(files, [2, 4, 2], shape).shape == (3, *shape) and decode(files, [], shape).shape == (0, *shape)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def second_start(data: bytes) -> bytes:
    """Broken in the middle, in a way that the decoder gives up."""
    middle = data.index(b"\xff\xda") + 200
    return data[:middle] + b"\xff\xd8" + data[middle:]


def huffman_lost(data: bytes) -> bytes:
    """The header says the right dimensions, and no row can be decoded."""
    return data.replace(b"\xff\xc4", b"\xff\xfe")


def two_headers(data: bytes) -> bytes:
    """Another frame header behind the one that is looked at."""
    wide = encode(noise(0, (16, 512, 3)))
    header = wide[wide.index(b"\xff\xc0") :][:19]
    at = data.index(b"\xff\xda")
    return data[:at] + header + data[at:]


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("damage", [cut, huffman_lost, second_start, two_headers])
def test_a_broken_frame_is_what_it_is_by_itself(damage: Any, place: int) -> None:
    """An error that names it, or what Pillow makes of it; the frames around it are whole either way."""
    shape = (16, 24, 3)
    files = [encode(noise(i, shape)) for i in range(5)]
    files[place] = damage(files[place])
    try:
        alone = by_pillow(files[place], shape)
    except (OSError, SyntaxError):
        with pytest.raises(FrameError, match=f"pixels, row {place}:"):
            decode(files, [0, 1, 2, 3, 4], shape)
    else:
        got = decode(files, [0, 1, 2, 3, 4], shape)
        expected = [alone if i == place else by_pillow(f, shape) for i, f in enumerate(files)]
        assert np.array_equal(got, np.stack(expected))


def mutant(data: bytes, rng: random.Random) -> bytes:
    """A JPEG with a few changes, most of them before the pixels."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(changed) if rng.random() < 0.3 else min(len(changed), 640))
        match rng.randrange(4):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 0xD8, 0xD9, 0xDA, 0xFF))
            case 2:
                del changed[at : at + rng.choice((1, 2, 30))]
            case _:
                changed[at:at] = rng.choice((b"\xff\xe0\0\2", b"\xff\xff", b"\xff\xd9", b"\xff\xdb\0\3\x30"))
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_strips_accept_what_single_decoding_accepts(seed: int) -> None:
    """Damaged headers and pixels: both ways give the same pixels, or both refuse."""
    rng, shape = random.Random(seed), (16, 24, 3)
    field = Field("pixels", "uint8", shape, "both", "frames", "jpeg")
    options: list[dict[str, Any]] = [{}, {"progressive": True}, {"optimize": True, "subsampling": 0}]
    whole = encode(noise(seed, shape), **options[seed % 3])
    accepted = 0
    for _ in range(250):
        damaged = mutant(whole, rng)
        try:
            alone = frames.decode_frame(damaged, field, 0)
        except FrameError:
            with pytest.raises(FrameError):
                decode([whole, damaged], [0, 1], shape)
        else:
            accepted += 1
            assert np.array_equal(decode([whole, damaged], [0, 1], shape)[1], alone)
    assert 10 < accepted < 250


@pytest.mark.parametrize("table", [b"\xff\xdb\0\3\x30", b"\xff\xc0\0\x0b\x08\0\x10\0\x18\1\1\x11\0"])
def test_headers_that_only_pillow_refuses(table: bytes) -> None:
    """A quantisation table cut short, a second frame header of one channel."""
    shape = (16, 24, 3)
    whole = encode(noise(0, shape))
    odd = whole[:2] + table + whole[2:]
    field = Field("pixels", "uint8", shape, "both", "frames", "jpeg")
    try:
        alone = frames.decode_frame(odd, field, 0)
    except FrameError:
        with pytest.raises(FrameError, match="row 1"):
            decode([whole, odd], [0, 1], shape)
    else:
        assert np.array_equal(decode([whole, odd], [0, 1], shape)[1], alone)


@pytest.mark.parametrize("wrong", [(16, 48, 3), (32, 24, 3), (8, 24, 3), (16, 12, 3), (16, 24)])
def test_a_frame_of_another_shape_is_refused(wrong: tuple[int, ...]) -> None:
    shape = (16, 24, 3)
    files = [encode(noise(0, shape)), encode(noise(1, wrong)), encode(noise(2, shape))]
    with pytest.raises(FrameError, match="pixels, row 1"):
        decode(files, [0, 1, 2], shape)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (encode(np.full((16, 24), 300, np.uint16), "PNG"), "more than 8 bits; uint8 expected"),
        (encode(np.zeros((16, 24), np.uint8), "GIF"), r"row 0: \d+ bytes that are neither PNG nor JPEG\.$"),
    ],
    ids=["16 bits", "GIF"],
)
def test_an_image_that_no_frame_may_be(image: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        decode([image], [0], (16, 24, 1))


def test_images_cut_short_are_taken_where_pillow_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    shape = (64, 64, 3)
    files = [encode(noise(i, shape)) for i in range(3)]
    files[1] = cut(files[1])
    got = decode(files, [0, 1, 2], shape)
    assert np.array_equal(got, np.stack([by_pillow(f, shape) for f in files])) and got[1].any()


@pytest.mark.thorough
def test_threads_decode_side_by_side() -> None:
    shape = (32, 32, 3)
    files = [encode(noise(i, shape)) for i in range(40)]
    expected = np.stack([by_pillow(f, shape) for f in files])
    with ThreadPoolExecutor(4) as threads:
        for got in threads.map(lambda _: decode(files, list(range(40)), shape), range(12)):
            assert np.array_equal(got, expected)


@pytest.mark.thorough
def test_frames_come_in_the_order_of_the_rows_asked_for() -> None:
    shape = (16, 24, 3)
    files = [encode(noise(k, shape)) for k in range(5)]
    one_by_one = [by_pillow(f, shape) for f in files]
    for rows in itertools.permutations(range(5)):
        assert np.array_equal(decode(files, list(rows), shape), [one_by_one[k] for k in rows])
