"""Files of TFDS directories, and checksums of TFRecord files."""

from __future__ import annotations

FEATURES, INFO = "features.json", "dataset_info.json"
_MASK_DELTA = 0xA282EAD8


def masked(crc: int) -> int:
    """Return a crc32c as TFRecord files store it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
