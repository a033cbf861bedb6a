"""Lists of a tf.Example as columns: one row per step, in the dtype and shape that features.json says."""

from __future__ import annotations

import io
import math
import zlib
from dataclasses import dataclass

import numpy as np

from rlds_cli.archives import image_header
from rlds_cli.archives.example import Feature
from rlds_cli.archives.openx.features import Leaf
from rlds_cli.archives.pieces import Encoded, Slices
from rlds_cli.archives.tfrecord import FREE_OUTPUT, MAX_RATIO
from rlds_cli.errors import CorruptArchive, UnsafeArchive
from rlds_cli.store.frames import MAX_PIXELS
from rlds_cli.ted import Array, Text

ColumnOf = Array | Text | Slices | Encoded


class OtherImages(Exception):
    """Images of ``key`` that are not of the planned size: they vary."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def array(leaf: Leaf, feature: Feature, where: str) -> Array:
    """All rows of a numeric leaf, [T, *shape].

    Raises
    ------
    CorruptArchive
        The values are of another kind, do not fit the dtype, or are not a whole number of rows.
    """
    name, width = f"{where}: {leaf.key}", math.prod(leaf.shape)
    dtype = np.dtype(leaf.dtype)
    if leaf.encoding != "none":
        return _encoded_array(leaf, feature, name)
    if feature.kind == "empty":
        values: Array = np.zeros(0, dtype)
    elif feature.kind == "float" and dtype.kind == "f":
        values = feature.floats().astype(dtype, copy=False)
    elif feature.kind == "int64" and dtype.kind in "biu":
        values = feature.integers(dtype)
    else:
        raise CorruptArchive(f"{name} is a list of {feature.kind}; {leaf.dtype} expected.")
    if len(values) % width:
        raise CorruptArchive(f"{name} has {len(values):,} values; rows of shape {list(leaf.shape)} expected.")
    return values.reshape(-1, *leaf.shape)


def _encoded_array(leaf: Leaf, feature: Feature, name: str) -> Array:
    """Rows that are the bytes of a tensor, perhaps deflated."""
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    size = math.prod(leaf.shape) * dtype.itemsize
    rows = _byte_strings(feature, name)
    if len(rows) * size > FREE_OUTPUT + MAX_RATIO * sum(map(len, rows)):
        raise UnsafeArchive(f"{name}: claims {len(rows) * size:,} bytes, and holds {sum(map(len, rows)):,}.")
    try:
        if leaf.encoding == "zlib":
            rows = [_inflated(row, size) for row in rows]
    except zlib.error as e:
        raise CorruptArchive(f"{name} does not inflate: {e}") from e
    wrong = next((len(row) for row in rows if len(row) != size), None)
    if wrong is not None:
        raise CorruptArchive(f"{name}: a row of {wrong:,} bytes; {leaf.dtype} {list(leaf.shape)} takes {size:,}.")
    values: Array = np.frombuffer(b"".join(rows), dtype).astype(leaf.dtype, copy=False)
    return values.reshape(len(rows), *leaf.shape)


def _inflated(row: bytes, size: int) -> bytes:
    """The content of a zlib stream, which is checked to its end; one byte more where it goes on."""
    inner = zlib.decompressobj()
    found = inner.decompress(row, size + 1)
    if len(found) <= size and not inner.eof:
        raise zlib.error("it breaks off")
    return found


def text(leaf: Leaf, feature: Feature, where: str) -> tuple[Text, int]:
    """All rows of a text leaf, and how many of them are no UTF-8 (kept with marks in the place of bytes)."""
    rows = _byte_strings(feature, f"{where}: {leaf.key}")
    known: dict[bytes, str] = {}
    wrong = 0
    for row in rows:
        if row not in known:
            known[row] = row.decode("utf-8", "replace")
        wrong += "�" in known[row] and "�".encode() not in row
    return [known[row] for row in rows], wrong


def images(leaf: Leaf, feature: Feature, where: str, *, shape: tuple[int, ...]) -> Encoded | PackedImages:
    """All rows of an image leaf, encoded, or to be decoded when their rows come.

    Parameters
    ----------
    shape : tuple of int
        ``(H, W, C)`` as planned; ``(0, 0, C)`` where sizes vary.

    Raises
    ------
    OtherImages
        One is of another size than planned.
    CorruptArchive, UnsafeArchive
        One has no header of JPEG or PNG, or a size that cannot be.
    """
    name = f"{where}: {leaf.key}"
    if feature.kind not in ("bytes", "empty"):
        raise CorruptArchive(f"{name} is a list of {feature.kind}; images expected.")
    found = Encoded(feature.data, *feature.places())
    for row, (a, b) in enumerate(zip(found.starts.tolist(), found.stops.tolist(), strict=True)):
        if a == b and not leaf.packed_image:
            continue  # a row without an image
        header = image_header.read(feature.data, a, b)
        if header is None:
            raise CorruptArchive(f"{name}, row {row}: {b - a:,} bytes that are neither PNG nor JPEG.")
        if header.height * header.width > MAX_PIXELS or not header.height * header.width:
            raise UnsafeArchive(f"{name}, row {row}: an image of {header.height}x{header.width} is not decoded.")
        if leaf.packed_image:
            _check_packed(leaf, header, f"{name}, row {row}")
        elif shape[0] and header.shape != shape:
            raise OtherImages(leaf.key)
    return PackedImages(found, leaf, name) if leaf.packed_image else found


def _check_packed(leaf: Leaf, header: image_header.Header, name: str) -> None:
    wanted = (*leaf.shape[:2], *((1, 16) if leaf.dtype == "uint16" else (4, 8)))
    if header.codec != "png" or (header.height, header.width, header.channels, header.bits) != wanted:
        raise CorruptArchive(f"{name}: {header} does not hold {leaf.dtype} {list(leaf.shape)}.")


@dataclass(slots=True)
class PackedImages(Slices):
    """Depth images: PNG of 16 bits, or of the four bytes of a float32 as RGBA, as TFDS writes them."""

    encoded: Encoded
    leaf: Leaf
    name: str

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return len(self) * math.prod(self.leaf.shape) * np.dtype(self.leaf.dtype).itemsize

    def head(self, count: int) -> PackedImages:
        """The first rows."""
        e = self.encoded
        return PackedImages(Encoded(e.data, e.starts[:count], e.stops[:count]), self.leaf, self.name)

    def cut(self, start: int, stop: int) -> Array:
        """Rows [start, stop), decoded with Pillow."""
        rows = [self._decoded(view) for view in self.encoded.views(slice(start, stop))]
        return np.stack(rows) if rows else np.zeros((0, *self.leaf.shape), self.leaf.dtype)

    def _decoded(self, data: memoryview) -> Array:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                if (image.height, image.width) != self.leaf.shape[:2]:  # a second header may say so
                    raise ValueError(f"it is {image.height}x{image.width} after all")
                values = np.ascontiguousarray(np.asarray(image))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
            raise CorruptArchive(f"{self.name}: {len(data):,} bytes do not decode as PNG: {e}") from e
        if self.leaf.dtype == "float32":
            values = values.view("<f4")
        return values.reshape(self.leaf.shape).astype(self.leaf.dtype, copy=False)


def _byte_strings(feature: Feature, name: str) -> list[bytes]:
    if feature.kind not in ("bytes", "empty"):
        raise CorruptArchive(f"{name} is a list of {feature.kind}; byte strings expected.")
    return feature.strings()
