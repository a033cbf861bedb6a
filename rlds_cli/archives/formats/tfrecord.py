"""Read TFRecord files, plain or gzip, and the tf.Examples in them.

A record is framed by its length and two checksums::

    u64 length | u32 masked crc32c of the length | length bytes | u32 masked crc32c of them        little-endian

The checksum is crc32c, rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``), so that a
checksum of data that holds checksums is a good one. A record holds an Example as a protocol buffer: lists of floats,
integers or byte strings, by name::

    Example  { Features features = 1 }          Feature { one of  BytesList = 1, FloatList = 2, Int64List = 3 }
    Features { map<string, Feature> = 1 }       each List { repeated value = 1 }; numbers packed or one by one

A list keeps the positions of its bytes in the record, and copies nothing before its values are read. Packed floats are
a view of the record, varints are decoded block by block with NumPy, and byte strings are found by their positions.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from rlds_cli.archives.formats.compressed import Unpacked
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, NoPermission, UnsafeArchive

MAX_RECORD = 1 << 30  # bytes; protocol buffers end at 2 GiB, and an episode must fit in memory
MAX_PACKED_RECORD = 256 << 20  # of a record that is unpacked into memory
READ = 1 << 20

Content = bytes | memoryview

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_GZIP = b"\x1f\x8b"
_MASK_DELTA = 0xA282EAD8
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and 32 KiB of window

Kind = Literal["bytes", "float", "int64", "empty"]

MAX_FEATURES = 1 << 16
MAX_VALUES = 1 << 24  # byte strings of one list
MAX_PIECES = 1 << 16  # of a list of numbers, which writers pack into one
BLOCK = 1 << 20  # bytes of varints decoded at a time
MAX_VARINT = 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_FLOAT_TAG, _INT_TAG, _BYTES_TAG = 1 << 3 | _FIXED32, 1 << 3 | _VARINT, 1 << 3 | _BYTES


@dataclass(frozen=True, slots=True)
class TFRecord:
    """One record: its number in the file, the byte where its frame begins (in the unpacked stream), its content.

    ``data`` of a plain file is a read-only view of the mapped file: reading records of 2 MB into memory of their own
    takes four times as long, most of it for the kernel to clear pages.
    """

    number: int
    offset: int
    data: Content


class _Source(Protocol):
    def read(self, size: int) -> Content:
        """Read exactly ``size`` bytes, fewer at the end of the file only."""


def masked(crc: int) -> int:
    """Return a crc32c as the files store it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def is_tfrecord(path: Path) -> bool:
    """Return whether a file begins with the frame of a record whose length agrees with its checksum."""
    try:
        with path.open("rb") as file:
            head = file.read(READ >> 4)
        if head.startswith(_GZIP):
            head = zlib.decompressobj(_GZIP_WINDOW).decompress(head, _HEAD.size)
    except (OSError, zlib.error):
        return False
    return len(head) >= _HEAD.size and masked(google_crc32c.value(head[:8])) == _HEAD.unpack_from(head)[1]


def records(path: Path, *, limit: int = MAX_RECORD) -> Iterator[TFRecord]:
    """Yield the records of a file, checked, one at a time; the first bytes tell gzip.

    Parameters
    ----------
    path : Path
    limit : int
        Most bytes of one record.

    Raises
    ------
    CorruptArchive
        A checksum does not match, or the file ends inside a record; with the record's number and position.
    UnsafeArchive
        A record claims more than ``limit`` bytes, or gzip unpacks to more than a thousand times its size.
    NoPermission
        The file may not be read.
    """
    child.note(path)
    with _reading(path), path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if packed:
            with closing(Unpacked(path, file)) as content:
                yield from _records(path, content, None, min(limit, MAX_PACKED_RECORD))
        elif size:
            yield from _records(path, _Mapped(file, size), size, limit)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except (OSError, zlib.error) as e:
        raise CorruptArchive(f"{path.name} cannot be read: {e}", hint=_again(path)) from e


def _records(path: Path, source: _Source, size: int | None, limit: int) -> Iterator[TFRecord]:
    number = offset = 0
    while head := source.read(_HEAD.size):
        where = f"{path.name}: record {number:,} at byte {offset:,}"
        if len(head) < _HEAD.size:
            raise _cut(path, where, f"the file has {len(head)} of the {_HEAD.size} bytes of its frame")
        length, crc = _HEAD.unpack(head)
        if _checksum(head[:8]) != crc:
            raise CorruptArchive(f"{where}: the checksum of its length is wrong.", hint=_again(path))
        if length > limit:
            raise UnsafeArchive(f"{where}: claims {length:,} bytes; at most {limit:,} are read.")
        there = None if size is None else size - offset - _HEAD.size - _TAIL.size
        if there is not None and length > there:
            raise _cut(path, where, f"the file has {max(there, 0):,} of its {length:,} bytes")
        data = source.read(length)
        tail = source.read(_TAIL.size)
        if len(data) < length or len(tail) < _TAIL.size:
            raise _cut(path, where, f"the file has {len(data):,} of its {length:,} bytes")
        if _checksum(data) != _TAIL.unpack(tail)[0]:
            raise CorruptArchive(f"{where}: the checksum of its {length:,} bytes is wrong.", hint=_again(path))
        yield TFRecord(number, offset, data)
        number, offset = number + 1, offset + _HEAD.size + length + _TAIL.size


def _checksum(data: Content) -> int:
    return masked(google_crc32c.value(np.frombuffer(data, np.uint8)))


def _cut(path: Path, where: str, what: str) -> CorruptArchive:
    return CorruptArchive(f"{where}: the file ends inside it: {what}.", hint=_again(path))


def _again(path: Path) -> str:
    return f"delete {path} and fetch it again"


class _Mapped:
    """A plain file, mapped: views of it, which stay valid as long as they are kept."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        self._view, self._at = memoryview(mapped), 0

    def read(self, size: int) -> memoryview:
        """Read ``size`` bytes, fewer at the end only."""
        self._at += size
        return self._view[self._at - size : self._at]


# -- examples


class _DamagedExample(Exception):
    """Bytes that are not a protocol buffer; the message says where."""


@dataclass(frozen=True, slots=True)
class ExampleFeature:
    """One list of a tf.Example: its kind, and the positions of its bytes in the record ``data``.

    ``label`` names it in errors.
    """

    name: str
    label: str
    kind: Kind
    data: Content
    spans: tuple[tuple[int, int], ...]

    def floats(self) -> npt.NDArray[np.float32]:
        """Return the values as float32; packed ones are a view of the record."""
        return self._joined([_floats(self.data, a, b, self.label) for a, b in self.spans], np.dtype("<f4"))

    def integers(self, dtype: npt.DTypeLike = np.int64) -> Array:
        """Return the values as ``dtype``.

        Raises
        ------
        CorruptArchive
            The values are not varints, or do not fit the dtype.
        """
        wanted = np.dtype(dtype)
        return self._joined([_integers(self.data, a, b, wanted, self.label) for a, b in self.spans], wanted)

    def places(self) -> tuple[IntArray, IntArray]:
        """Return the starts and stops of the byte strings in ``data``."""
        found = array("q")
        try:
            for a, b in self.spans:
                _strings(self.data, a, b, found)
        except _DamagedExample as e:
            raise _corrupt(self.label, e) from None
        places = np.array(found, np.int64).reshape(-1, 2)
        return places[:, 0], places[:, 1]

    def strings(self) -> list[bytes]:
        """Return copies of the byte strings."""
        starts, stops = self.places()
        return [bytes(self.data[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]

    def _joined(self, pieces: list[Array], dtype: np.dtype[Any]) -> Array:
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype)


def parse(data: Content, *, where: str = "a record") -> Mapping[str, ExampleFeature]:
    """Parse the features of one tf.Example, by name.

    Parameters
    ----------
    data : bytes or memoryview
        Bytes of the record. Features keep a reference to it.
    where : str
        Name of the record in errors.

    Raises
    ------
    CorruptArchive
        The record is not a tf.Example.
    """
    found: dict[str, ExampleFeature] = {}
    try:
        for number, a, b in _messages(data, 0, len(data)):
            if number == 1:
                for entry, start, stop in _messages(data, a, b):
                    if entry == 1:
                        feature = _entry(data, start, stop, where)
                        found[feature.name] = feature
                        if len(found) > MAX_FEATURES:
                            raise _DamagedExample(f"more than {MAX_FEATURES:,} features")
    except (_DamagedExample, UnicodeDecodeError) as e:
        raise _corrupt(where, e) from None
    return found


def _corrupt(where: str, why: Exception) -> CorruptArchive:
    return CorruptArchive(f"{where} is not a tf.Example: {why}.")


def _entry(data: Content, start: int, stop: int, where: str) -> ExampleFeature:
    name = ""
    kind: Kind = "empty"
    spans: list[tuple[int, int]] = []
    for number, a, b in _messages(data, start, stop):
        if number == 1:
            name = bytes(data[a:b]).decode()
        elif number == 2:  # repeated fields are one message, in which the last kind counts
            for which, c, d in _messages(data, a, b):
                if which not in _KINDS:
                    continue
                if _KINDS[which] != kind:
                    kind, spans = _KINDS[which], []
                spans.append((c, d))
                if len(spans) > MAX_PIECES:
                    raise _DamagedExample(f"a list in more than {MAX_PIECES:,} pieces")
    return ExampleFeature(name, f"{where}: {name}", kind, data, tuple(spans))


def _messages(data: Content, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of the length-delimited fields of a message; others are skipped."""
    while at < stop:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _DamagedExample(f"field number 0 at byte {at:,}")
        if wire == _BYTES:
            if at < stop and data[at] < 0x80:
                size, at = data[at], at + 1
            else:
                size, at = _varint(data, at, stop)
            if size > stop - at:
                raise _DamagedExample(f"field {number} at byte {at:,} claims {size:,} bytes, {stop - at:,} are left")
            yield number, at, at + size
            at += size
        elif wire == _VARINT:
            _, at = _varint(data, at, stop)
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise _DamagedExample(f"wire type {wire} at byte {at:,}")
    if at > stop:
        raise _DamagedExample(f"a field runs over its end at byte {stop:,}")


def _varint(data: Content, at: int, stop: int) -> tuple[int, int]:
    """The number that starts at ``at``, and where the next thing starts."""
    value = shift = 0
    while at < stop and shift < 7 * MAX_VARINT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise _DamagedExample(f"a number that does not end at byte {at:,}")


def _strings(data: Content, at: int, stop: int, found: array[int]) -> None:
    """Start and stop of each value of a BytesList, appended to ``found``."""
    if _same_size(data, at, stop, found):
        return
    append = found.append
    while at < stop:
        # Values up to 16 KiB, without a call: frames come by the thousand.
        if data[at] == _BYTES_TAG and at + 2 < stop and (data[at + 1] < 0x80 or data[at + 2] < 0x80):
            size = data[at + 1]
            at += 2
            if size >= 0x80:
                size = size & 0x7F | data[at] << 7
                at += 1
            if size > stop - at:
                raise _DamagedExample(f"a value at byte {at:,} claims {size:,} bytes, {stop - at:,} are left")
            append(at)
            at += size
            append(at)
        elif (inner := next(_messages(data, at, stop), None)) is not None:
            number, start, at = inner
            if number == 1:
                append(start)
                append(at)
        else:
            return
        if len(found) > 2 * MAX_VALUES:
            raise _DamagedExample(f"more than {MAX_VALUES:,} byte strings in one list")


def _same_size(data: Content, at: int, stop: int, found: array[int]) -> bool:
    """Find the values of a BytesList quickly if all have one size below 128, as repeated texts do; else do nothing."""
    if stop - at < 2 or data[at] != _BYTES_TAG or data[at + 1] >= 0x80:
        return False
    size = 2 + data[at + 1]
    if (stop - at) % size or (stop - at) // size > MAX_VALUES:
        return False
    values = np.frombuffer(data, np.uint8, stop - at, at).reshape(-1, size)
    if (values[:, 0] != _BYTES_TAG).any() or (values[:, 1] != size - 2).any():
        return False
    starts = np.arange(at + 2, stop + 2, size)
    found.frombytes(np.stack([starts, starts + size - 2], axis=1).tobytes())
    return True


def _floats(data: Content, at: int, stop: int, name: str) -> Array:
    """The values of a FloatList."""
    size = stop - at
    if size and size % 5 == 0 and data[at] == _FLOAT_TAG:  # one by one, each behind its tag
        loose = np.frombuffer(data, np.uint8, size, at).reshape(-1, 5)
        if (loose[:, 0] == _FLOAT_TAG).all():
            return np.ascontiguousarray(loose[:, 1:]).view("<f4").reshape(-1)
    pieces = [_packed_floats(data, a, b, name) for a, b in _packed(data, at, stop, _FIXED32, name)]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, "<f4"), *pieces])


def _packed_floats(data: Content, at: int, stop: int, name: str) -> Array:
    if (stop - at) % 4:
        raise _corrupt(name, _DamagedExample(f"{stop - at:,} bytes of floats"))
    return np.frombuffer(data, "<f4", (stop - at) // 4, at)


def _integers(data: Content, at: int, stop: int, dtype: np.dtype[Any], name: str) -> Array:
    """The values of an Int64List."""
    if stop > at and data[at] == _INT_TAG:  # one by one, each behind its tag
        values: Array = np.zeros(1, np.int64)
        with suppress(CorruptArchive):
            values = _varints(data, at, stop, np.dtype("int64"), name)
        if len(values) % 2 == 0 and (values[::2] == _INT_TAG).all():
            return _cast(values[1::2], dtype, name)
    pieces = [_varints(data, a, b, dtype, name) for a, b in _packed(data, at, stop, _VARINT, name)]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, dtype), *pieces])


def _packed(data: Content, at: int, stop: int, wire: int, name: str) -> list[tuple[int, int]]:
    """As ``_numbers``, quick where all values are packed into one piece."""
    if stop - at > 2 and data[at] == _BYTES_TAG:
        with suppress(_DamagedExample):
            size, start = _varint(data, at + 1, stop)
            if start + size == stop:
                return [(start, stop)]
    return _numbers(data, at, stop, wire, name)


def _numbers(data: Content, at: int, stop: int, wire: int, name: str) -> list[tuple[int, int]]:
    """Yield the positions of the values of field 1: packed ones, and single ones of ``wire`` as if they were packed."""
    found: list[tuple[int, int]] = []
    try:
        while at < stop:
            tag, start = _varint(data, at, stop)
            if len(found) > MAX_PIECES:
                raise _DamagedExample(f"a list in more than {MAX_PIECES:,} pieces")
            if tag == 1 << 3 | wire:
                at = start + 4 if wire == _FIXED32 else _varint(data, start, stop)[1]
                found.append((start, at))
                continue
            inner = next(_messages(data, at, stop), None)
            if inner is None:
                break
            number, a, at = inner
            if number == 1:
                found.append((a, at))
    except _DamagedExample as e:
        raise _corrupt(name, e) from None
    if at > stop:
        raise _corrupt(name, _DamagedExample(f"a number runs over its end at byte {stop:,}"))
    return found


def _varints(data: Content, at: int, stop: int, dtype: np.dtype[Any], name: str) -> Array:
    """Packed varints as ``dtype``, decoded in blocks: eight bytes for each would be a multiple of the record."""
    raw = np.frombuffer(data, np.uint8, stop - at, at)
    if len(raw) and raw[-1] >= 0x80:
        raise _corrupt(name, _DamagedExample(f"a number that does not end at byte {stop:,}"))
    out: Array = np.empty(int(np.count_nonzero(raw < 0x80)), dtype)
    done = start = 0
    while start < len(raw):
        end = min(start + BLOCK, len(raw))
        while raw[end - 1] >= 0x80 and end - start > BLOCK - MAX_VARINT - 1:
            end -= 1
        values = _cast(_block(raw[start:end], name), dtype, name)
        out[done : done + len(values)] = values
        done, start = done + len(values), end
    return out


def _block(raw: npt.NDArray[np.uint8], name: str) -> IntArray:
    """The varints that ``raw`` holds, all of them whole."""
    last = raw < 0x80
    if last.all():
        return raw.astype(np.int64)
    ends = np.flatnonzero(last)
    lengths = ends.copy()
    lengths[0] += 1
    lengths[1:] -= ends[:-1]
    longest = int(lengths.max())
    if longest > MAX_VARINT or not last[-1]:
        raise _corrupt(name, _DamagedExample(f"a number of {longest} bytes"))
    # From the last byte, which is the most significant, to the first; small numbers fit into half the width. Where a
    # number has no such byte, it is moved by 0 and gets 0: a branch would be guessed wrong every other time.
    low, width = raw & 0x7F, np.uint32 if longest <= 4 else np.uint64
    values: Array = low.take(ends).astype(width)
    for k in range(1, longest):
        has = (lengths > k).view(np.uint8)
        values <<= (has * np.uint8(7)).astype(width)
        values |= low.take(ends - k, mode="clip") * has
    signed: IntArray = values.astype(np.uint64).view(np.int64)
    return signed


def _cast(values: IntArray, dtype: np.dtype[Any], name: str) -> Array:
    if dtype == np.int64:
        return values
    if dtype.kind == "b":
        low, high = 0, 1
    elif dtype == np.uint64:
        return values.view(np.uint64)
    else:
        info = np.iinfo(dtype.type)
        low, high = int(info.min), int(info.max)
    if len(values) and (values.min() < low or values.max() > high):
        raise CorruptArchive(f"{name} holds {values.min():,} to {values.max():,}, which are not {dtype}.")
    return values.astype(dtype)
