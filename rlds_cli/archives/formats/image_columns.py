"""Columns of tables whose rows are encoded images, PNG or JPEG, in the forms in which files hold them.

==================  ==============================================================  =============================
padded rows         uint8 [N, size], zeros behind each image (ALOHA's cameras)      HDF5, npz
bytes of any length sequences of uint8; opaque values; binary columns               HDF5; Parquet and Arrow
texts of bytes      fixed length, zeros behind each image                           HDF5, npz (dtype ``S``)
structs             ``{bytes, path}``, as the ``datasets`` library writes images    Parquet and Arrow
==================  ==============================================================  =============================

A column is one of images if its first row begins as a PNG or JPEG does. Neither ends with a zero, so the zeros behind
an image are padding.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

DTYPE = np.dtype("V")  # of a column of images: no number, flag or text
DAMAGED = "fetch or write the file again; --skip-bad leaves it out"
_DECODED = 64  # of so many rows of a file one image is decoded, the first among them
LEAST = 32  # bytes of a padded row or text: the header of an image takes more


class EncodedColumn(NamedTuple):
    """Codec, shape and dtype of the images of a column: ``uint8``, or ``uint16`` for PNG of depth."""

    codec: str | None
    shape: tuple[int, ...]
    dtype: str = "uint8"


def may_hold(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether a column of that dtype and shape [N, ...] could be one of images."""
    if not shape or not shape[0]:
        return False
    if dtype == np.uint8:
        return len(shape) == 2 and shape[1] >= LEAST
    if len(shape) != 1:
        return False
    binary = dtype.kind == "V" and dtype.names is None
    return binary or (dtype.kind == "S" and dtype.itemsize >= LEAST) or h5py.check_vlen_dtype(dtype) == np.uint8


def image(value: Any) -> bytes | None:
    """Return the image in a row of a column, without padding; None if the row has none."""
    if value is None:
        return None
    data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    return data.rstrip(b"\0") or None


def images(rows: Array) -> Array:
    """Return the images of rows as an object array of bytes [N], None where a row has none."""
    return np.array([image(row) for row in rows], object)


def kind(rows: Sequence[Any] | Array) -> EncodedColumn | None:
    """Return what the image in the first of some rows is; None if it is none that is read."""
    data = image(rows[0]) if len(rows) else None
    found = image_header.read(data) if data else None
    dtype = found and found.bits >= 8 and found.dtype
    return EncodedColumn(found.codec, found.shape, dtype) if found is not None and dtype else None


def check(rows: Sequence[bytes | None], expected: EncodedColumn, where: str, first: int) -> None:
    """Compare the headers of images with what is expected, and decode every 64th image.

    Parameters
    ----------
    rows : sequence of bytes or None
        None where a row has no image.
    expected : EncodedColumn
    where : str
        The column and its file, for messages.
    first : int
        The number of the first row, for messages.

    Raises
    ------
    CorruptArchive
        Bytes that are not an image, or an image that is damaged; see `damage`.
    UnknownLayout
        A row without an image, or an image of another size, channels or codec.
    UnsafeArchive
        An image that is too large to be decoded.
    """
    codec, shape, dtype = expected
    headers = image_header.Reader()
    for row, data in enumerate(rows, first):
        if data is None:
            raise UnknownLayout(f"{where}: row {row:,} has no image.", hint="every row of a camera needs one")
        found = headers.read(data)
        if found is None:
            raise CorruptArchive(f"{where}: row {row:,} holds {len(data):,} bytes that are neither PNG nor JPEG.")
        if (found.codec, found.shape) != (codec, shape):
            raise UnknownLayout(
                f"{where}: row {row:,} holds a {found.codec} of {list(found.shape)}; the first row holds a {codec} of "
                f"{list(shape)}.",
                hint="a camera has images of one size; resize the others, or import them under another name",
            )
        if found.bits < 8 or found.dtype != dtype:
            bits = 8 * np.dtype(dtype).itemsize
            raise UnknownLayout(f"{where}: row {row:,} holds an image of {found.bits} bits a channel; {bits} expected.")
        if found.height * found.width > MAX_PIXELS:
            raise UnsafeArchive(f"{where}: row {row:,} holds an image of {found.height}x{found.width}.")
        if wrong := damage(data):
            raise CorruptArchive(f"{where}: row {row:,} holds {wrong}.", hint=DAMAGED)
        if row % _DECODED == 0 and (wrong := _undecoded(data)):
            raise CorruptArchive(f"{where}: row {row:,} holds an image that cannot be decoded: {wrong}.", hint=DAMAGED)


def damage(data: bytes | memoryview) -> str | None:
    """Return what is wrong with an image: checksums of a PNG, or a JPEG that ends early; None if nothing is.

    A JPEG has no checksums. One that does not end with its marker is decoded: other bytes may be behind its end.
    """
    if image_header.is_damaged(data):
        return "a PNG image that is damaged"
    if image_header.has_end(data):
        return None
    header = image_header.read(data)
    if header is None or header.height * header.width > MAX_PIXELS:
        return None  # its reader refuses it by its header
    wrong = _undecoded(bytes(data))
    return f"a JPEG image that is cut short: {wrong}" if wrong else None


def _undecoded(data: bytes) -> str | None:
    """Return why an image cannot be decoded; None if it can."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            opened.draft("L", (1, 1))  # of a JPEG all is read, and pixels are made of an eighth of each side
            opened.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        return str(e)
    return None
