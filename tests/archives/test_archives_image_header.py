"""Headers of images that Pillow wrote, in the middle of other bytes, and cut anywhere."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from rlds_cli.base.media import image_header


def written(mode: str, codec: str, **options: object) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (23, 41, 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, codec, **options)
    return file.getvalue()


CASES = [
    (written("RGB", "png"), ("png", 23, 41, 3, 8)),
    (written("RGBA", "png"), ("png", 23, 41, 4, 8)),
    (written("LA", "png"), ("png", 23, 41, 2, 8)),
    (written("L", "png"), ("png", 23, 41, 1, 8)),
    (written("I;16", "png"), ("png", 23, 41, 1, 16)),
    (written("RGB", "jpeg"), ("jpeg", 23, 41, 3, 8)),
    (written("L", "jpeg"), ("jpeg", 23, 41, 1, 8)),
    (written("RGB", "jpeg", progressive=True), ("jpeg", 23, 41, 3, 8)),
    (written("RGB", "jpeg", comment=b"x" * 300), ("jpeg", 23, 41, 3, 8)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("data", "wanted"), CASES)
def test_what_pillow_wrote(data: bytes, wanted: tuple[object, ...]) -> None:
    assert image_header.read(data) == wanted
    around = b"\xff\xd8\xff" + data + data
    for content in (around, memoryview(around)):
        assert image_header.read(content, 3, 3 + len(data)) == wanted
    assert image_header.read(data) is not None and image_header.read(data).shape == wanted[1:4]  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.parametrize(("data", "wanted"), CASES)
def test_an_image_cut_anywhere_has_its_header_or_none(data: bytes, wanted: tuple[object, ...]) -> None:
    found = [image_header.read(data, 0, stop) for stop in range(min(len(data), 900))]
    assert {x for x in found if x is not None} <= {wanted}
    assert found[0] is None and found[20] is None


def test_what_is_no_image() -> None:
    for data in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\x00\x00" * 9, b"GIF89a" * 9):
        assert image_header.read(data) is None


def test_a_png_of_a_kind_that_is_none() -> None:
    data = bytearray(CASES[0][0])
    data[25] = 5
    assert image_header.read(bytes(data)) is None


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def test_every_flipped_bit_of_a_png_is_seen() -> None:
    data = encoded("png")
    assert not image_header.is_damaged(data) and not image_header.is_damaged(memoryview(data + b"behind"))
    for at in range(8, len(data), 7):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        assert image_header.is_damaged(bytes(flipped)), at
    assert all(image_header.is_damaged(data[:n]) for n in (8, 20, len(data) // 2, len(data) - 1))


def test_what_has_no_checksums_is_not_damaged() -> None:
    assert not any(map(image_header.is_damaged, (b"", b"no image", encoded("jpeg"), encoded("jpeg")[:50])))


def test_headers_of_many_images_are_those_of_each() -> None:
    images = [data for data, _ in CASES for _ in range(2)] + [b"\0\0", b"", CASES[5][0]]
    cut = [data[:n] for data in images for n in range(0, min(len(data), 900), 7)]
    reader = image_header.Reader()
    assert [reader.read(data) for data in (*images, *cut)] == [image_header.read(data) for data in (*images, *cut)]
