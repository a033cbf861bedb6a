"""Images that a user gives as bytes: checked, and kept encoded or decoded, before they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS, ImageHeader
from rlds_cli.errors import FrameError, InvalidEpisode
from rlds_cli.store.frames import CHANNELS, decode_frames
from rlds_cli.ted import EncodedFrames, Field

Images = EncodedFrames | Sequence[bytes]


_AT_ONCE = 1 << 22  # pixels that are decoded at a time
_EVERY = 64  # row, from the first on, whose image is decoded when it is stored


class CheckedFrames(EncodedFrames):
    """Images that were checked; `of` does not do so again."""

    @classmethod
    def of(cls, images: Images, like: Field | None, name: str, where: str, row: int = 0) -> CheckedFrames:
        """Return images as they are, after a look at the header of each; every 64th is decoded, and any cut short.

        Parameters
        ----------
        images : EncodedFrames or sequence of bytes
            PNG or JPEG, one for each row.
        like : Field or None
            The field that they belong to; without one, the first image defines codec and shape ``(H, W, C)``.
        name, where : str
            The field and the episode, for errors.
        row : int
            Of the first image.

        Raises
        ------
        InvalidEpisode
            An image is missing, is neither PNG nor JPEG, does not decode to 8 bits, or 16 of depth, or has another
            codec, shape or depth of bits.
        """
        if isinstance(images, cls):
            return images
        files, first = _files(images), None if like is None else like.codec
        told = like.shape if like is not None else (images.shape or None) if isinstance(images, EncodedFrames) else None
        f = _checked(files, told, name, where, dtype=None if like is None else like.dtype)
        for k, file in enumerate(files):
            codec = _header(file).codec
            if codec != (first := first or codec):
                raise InvalidEpisode(
                    f"{_at(where, name, k, files)} is {codec}; the others are {first}.",
                    hint='encode all frames alike; or create(..., frames="raw"), which stores arrays',
                )
        chosen = [k for k, file in enumerate(files) if (row + k) % _EVERY == 0 or not image_header.has_end(file)]
        for _ in _decoded(files, f, where, chosen):
            pass
        lengths = np.array([len(file) for file in files], np.int64)
        return cls(np.frombuffer(b"".join(files), np.uint8), lengths, f.shape, first, f.dtype)

    @classmethod
    def joined(cls, images: Sequence[CheckedFrames]) -> CheckedFrames:
        """Return images of one codec and shape, one after the other; there is at least one."""
        data, lengths = (np.concatenate(parts) for parts in zip(*((i.data, i.lengths) for i in images), strict=True))
        return cls(data, lengths, images[0].shape, images[0].codec, images[0].dtype)


def decoded_frames(images: Images, shape: tuple[int, ...] | None, name: str, where: str) -> Array:
    """Decode images to [n, *shape], uint8 or of depth uint16; without a shape, that of the first, ``(H, W, C)``.

    Raises
    ------
    InvalidEpisode
        As `CheckedFrames.of`, but codecs may be mixed.
    """
    files = _files(images)
    blocks = list(_decoded(files, _checked(files, shape, name, where), where))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _files(images: Images) -> list[bytes]:
    """Return the bytes of each image."""
    if not isinstance(images, EncodedFrames):
        return list(images)
    stops = np.cumsum(images.lengths).tolist()
    return [images.data[b - n : b].tobytes() for b, n in zip(stops, images.lengths.tolist(), strict=True)]


def _header(image: bytes) -> ImageHeader:
    found = image_header.read(image)
    assert found is not None
    return found


def _checked(
    files: Sequence[bytes], shape: tuple[int, ...] | None, name: str, where: str, *, dtype: str | None = None
) -> Field:
    """Return the field that the images make, after a look at their headers."""
    for row, file in enumerate(files):
        at = _at(where, name, row, files)
        header = _supported(file, at)
        shape = header.shape if shape is None else shape
        dtype = dtype or header.dtype
        grey = header.channels == 1 and shape == header.shape[:2]
        if header.shape != shape and not grey:
            raise InvalidEpisode(
                f"{at} is an image of shape {list(header.shape)}; {list(shape)} is that of the others.",
                hint="make all frames of a field one size, with the same channels",
            )
        if header.dtype != dtype:
            raise InvalidEpisode(
                f"{at} is an image of {header.bits} bits; the others are {dtype}.",
                hint="make all frames of a field of one depth of bits",
            )
    return Field(
        name, dtype or "uint8", shape or (0, 0, 3), "both", "frames", _header(files[0]).codec if files else None
    )


def _at(where: str, name: str, row: int, files: Sequence[bytes]) -> str:
    return f"{where}: {name}" + (f" at row {row:,}" if len(files) > 1 else "")


def _supported(file: bytes, at: str) -> ImageHeader:
    """Return the header of an image that a field of frames can hold."""
    if not file:
        raise InvalidEpisode(
            f"{at} has no frame: its bytes are empty.", hint="leave the step or the episode out, or end it before"
        )
    header = image_header.read(file)
    if header is None:
        raise InvalidEpisode(
            f"{at} holds {len(file):,} bytes that are neither PNG nor JPEG.",
            hint="texts are str: value.decode(); numbers are arrays: np.frombuffer(value, np.uint8)",
        )
    if not 0 < header.height * header.width <= MAX_PIXELS:
        raise InvalidEpisode(f"{at} is an image of {header.height}x{header.width}, which is not decoded.")
    if header.dtype is None or header.channels not in CHANNELS[header.codec]:
        raise InvalidEpisode(
            f"{at} is a {header.codec} of {header.channels} channels of {header.bits} bits; 8 bits are needed,"
            f" and {', '.join(map(str, CHANNELS[header.codec]))} channels; or 16, and one, of a PNG of depth.",
            hint="decode it, and give the array",
        )
    if image_header.is_damaged(file):
        raise InvalidEpisode(f"{at} is a damaged PNG: it is cut short, or a checksum is wrong.")
    return header


def _decoded(files: Sequence[bytes], f: Field, where: str, chosen: Sequence[int] | None = None) -> Iterator[Array]:
    """Decode images, all or those ``chosen`` by their rows, block by block; there is one block of none."""
    rows = np.arange(len(files)) if chosen is None else np.array(chosen, np.int64)
    files = files if chosen is None else [files[k] for k in chosen]
    at_once = max(1, _AT_ONCE // max(1, f.shape[0] * f.shape[1]))
    data, offsets = np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)], dtype=np.int64)
    for a in range(0, max(1, len(files)), at_once):
        try:
            b = min(a + at_once, len(files))
            yield decode_frames(data, (offsets[a:b], offsets[a + 1 : b + 1]), rows[a:b], f)
        except FrameError as e:
            raise InvalidEpisode(f"{where}: {e.message}") from e
