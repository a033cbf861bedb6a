"""Write TFRecord files with tf.train.Examples, a piece at a time; `archives.formats.tfrecord` says what is in them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import google_crc32c
import numpy as np

from rlds_cli.archives.formats.tfrecord import masked
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import InvalidArgument

MOST = (1 << 31) - 1  # bytes of a protocol buffer
_BLOCK = 1 << 16  # varints that are encoded at once
_BYTES = 2  # the wire type of everything that has a length
_KINDS = {"bytes": 1, "float": 2, "int64": 3}


@dataclass(frozen=True, slots=True)
class ListOfValues:
    """One list of an Example.

    ``pieces`` returns its bytes as protocol buffers have them, without tag and length: packed numbers, or byte strings
    each with its own tag; ``size`` counts them.
    """

    kind: Literal["bytes", "float", "int64"]
    size: int
    pieces: Callable[[], Iterable[bytes | memoryview]]


def floats(size: int, pieces: Callable[[], Iterable[Array]]) -> ListOfValues:
    """Return a list of ``size`` float32 that come in pieces."""

    def packed() -> Iterator[memoryview]:
        for values in pieces():
            yield np.ascontiguousarray(values, "<f4").reshape(-1).data.cast("B")

    return ListOfValues("float", 4 * size, packed)


def integers(values: Array) -> ListOfValues:
    """Return a list of integers or flags."""
    packed = varints(values)
    return ListOfValues("int64", len(packed), lambda: [packed])


def byte_strings(sizes: IntArray, pieces: Callable[[], Iterable[bytes | memoryview]]) -> ListOfValues:
    """Return a list of byte strings: their sizes, and their bytes end to end, in pieces of whole strings or not."""
    heads = [message_head(1, n) for n in sizes.tolist()]
    total = int(sizes.sum()) + sum(map(len, heads))
    return ListOfValues("bytes", total, lambda: _headed(heads, sizes.tolist(), pieces()))


def rows_of_bytes(rows: int, width: int, pieces: Callable[[], Iterable[Array]]) -> ListOfValues:
    """Return a list of byte strings of one width: the rows of uint8 arrays [n, width]."""
    head = np.frombuffer(message_head(1, width), np.uint8)

    def headed() -> Iterator[memoryview]:
        for values in pieces():
            out = np.empty((len(values), len(head) + width), np.uint8)
            out[:, : len(head)] = head
            out[:, len(head) :] = values
            yield out.reshape(-1).data

    return ListOfValues("bytes", rows * (len(head) + width), headed)


def _headed(heads: list[bytes], sizes: list[int], pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    left = iter(zip(heads, sizes, strict=True))
    missing = 0
    for piece in pieces:
        view = memoryview(piece)
        while True:
            while not missing:
                following = next(left, None)
                if following is None:
                    return
                yield following[0]
                missing = following[1]
            if not len(view):
                break
            yield view[:missing]
            view, missing = view[missing:], missing - min(missing, len(view))
    yield from (head for head, size in left if not size)


def varint(value: int) -> bytes:
    """Return a number as protocol buffers have it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varints(values: Array) -> bytes:
    """Return numbers end to end; negative ones take ten bytes."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return b"".join(_encoded(flat[a : a + _BLOCK]) for a in range(0, len(flat), _BLOCK))


def _encoded(values: Array) -> bytes:
    numbers = values.astype(np.uint64) if values.dtype.kind in "bu" else values.astype(np.int64).view(np.uint64)
    if not len(numbers) or int(numbers.max()) < 0x80:
        return numbers.astype(np.uint8).tobytes()
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    digits = ((numbers[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    count = 10 - (digits[:, ::-1] != 0).argmax(1)
    count[numbers == 0] = 1
    place = np.arange(10)
    digits |= ((place < count[:, None] - 1) * 0x80).astype(np.uint8)
    kept: Array = digits[place < count[:, None]]
    return kept.tobytes()


def message_head(number: int, size: int) -> bytes:
    """Return tag and length of a field of ``size`` bytes."""
    return varint(number << 3 | _BYTES) + varint(size)


def write_example(file: TFRecordWriter, lists: Mapping[str, ListOfValues], where: str) -> None:
    """Write an Example as one record.

    Raises
    ------
    InvalidArgument
        It takes more bytes than a protocol buffer may.
    """
    heads, total = [], 0
    for name, values in lists.items():
        packed = values.kind != "bytes"
        inner = message_head(1, values.size) if packed else b""
        whole = len(inner) + values.size
        feature = message_head(_KINDS[values.kind], whole)
        key = message_head(1, len(name.encode())) + name.encode()
        value = message_head(2, len(feature) + whole)
        entry = len(key) + len(value) + len(feature) + whole
        head = message_head(1, entry) + key + value + feature + inner
        heads.append(head)
        total += len(head) + values.size
    front = message_head(1, total)
    if len(front) + total > MOST:
        raise InvalidArgument(
            f"{where} takes {len(front) + total:,} bytes; a record of TFRecord files has at most {MOST:,}.",
            hint="rlds preprocess can cut episodes into shorter ones",
        )
    file.begin(len(front) + total)
    file.add(front)
    for head, values in zip(heads, lists.values(), strict=True):
        file.add(head)
        for piece in values.pieces():
            file.add(piece)
    file.end()


class TFRecordWriter:
    """A TFRecord file. A record is begun with its size, added to in pieces, and ended."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._crc = self._left = 0
        self.bytes = 0

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def begin(self, size: int) -> None:
        """Begin a record of ``size`` bytes."""
        length = struct.pack("<Q", size)
        self._file.write(length + struct.pack("<I", masked(google_crc32c.value(length))))
        self._crc, self._left = 0, size
        self.bytes += size

    def add(self, piece: bytes | memoryview) -> None:
        """Add bytes to the record."""
        self._file.write(piece)
        content = piece if isinstance(piece, bytes) else np.frombuffer(piece, np.uint8)
        self._crc = google_crc32c.extend(self._crc, content)
        self._left -= len(piece)

    def end(self) -> None:
        """End the record."""
        if self._left:
            raise ValueError(f"{self._left:,} bytes of a record are missing")
        self._file.write(struct.pack("<I", masked(self._crc)))
