"""Headers of images that Pillow wrote, in the middle of other bytes, and cut anywhere."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from rlds_cli.formats import image_header


def test_what_is_no_image() -> None:
    for data in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\x00\x00" * 9, b"GIF89a" * 9):
        assert image_header.read(data) is None


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def test_what_has_no_checksums_is_not_damaged() -> None:
    assert not any(map(image_header.is_damaged, (b"", b"no image", encoded("jpeg"), encoded("jpeg")[:50])))
