"""Write Parquet files in which lists of numbers of one length are copied as they are.

pyarrow works out for each number whether a list begins with it, which takes longer than all the rest. Where lists have
one length this is a pattern, which is made once::

    "PAR1" | pages of pyarrow | pages of lists | pages of pyarrow | pages of lists | footer
             `--------- row group 0 ---------'   `--------- row group 1 ---------'

    page of lists    PageHeader | where lists begin, in bits: 0 1 1 0 1 1 ... | a run of 1: none is empty | numbers

pyarrow writes the other columns. The footer is made of two of its own: that of these columns, and that of a file
without rows, which describes all columns. Footers and headers are structures of Thrift (``parquet.thrift`` of the
format), written by its compact protocol.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlds_cli.base.packages import pyarrow

_PAGE = 1 << 20  # bytes of numbers
_TYPES = {"int32": 1, "int64": 2, "float": 4, "double": 5}  # of Parquet, by the names of Arrow
_PLAIN, _RUNS = 0, 3  # encodings
_END = struct.Struct("<I4s")  # bytes of the footer, and the last bytes of a file
_MAGIC = b"PAR1"


class _Kind(IntEnum):
    """A type of Thrift."""

    TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12


_I32, _I64, _BINARY, _LIST, _STRUCT = _Kind.I32, _Kind.I64, _Kind.BINARY, _Kind.LIST, _Kind.STRUCT
Struct = dict[
    int, tuple[int, Any]
]  # types and values, by the numbers of fields; the value of a list is a type and values

_ROWS, _GROUPS = 3, 4  # of FileMetaData
_COLUMNS, _BYTES, _BEGIN, _STORED = 1, 2, 5, 6  # of RowGroup
_META = 3  # of ColumnChunk
_PATH, _SIZE, _PLACES = 3, 7, (9, 10, 11)  # of ColumnMetaData; places of pages, of an index and of a dictionary


class ParquetWriter:
    """Writes a file, a row group at a time; ``options`` are those of ``pyarrow.parquet.ParquetWriter``."""

    def __init__(self, path: Path, schema: Any, **options: Any) -> None:
        pa = pyarrow()
        self._schema, self._options = schema, options
        self._lists = [f.name for f in schema if _is_copied(f)]
        others = pa.schema([f for f in schema if f.name not in self._lists])
        self._out = _Output(path.open("wb"))
        self._writer = pa.parquet.ParquetWriter(pa.PythonFile(self._out, "w"), others, **options)
        self._written: list[dict[str, Struct]] = []  # lists of each row group, by column
        self._is_whole = True

    def write(self, rows: Any) -> None:
        """Write a table as a row group."""
        self._is_whole = False
        self._writer.write_table(rows.drop_columns(self._lists), row_group_size=max(1, rows.num_rows))
        self._written.append({name: self._write_lists(name, rows[name]) for name in self._lists})
        self._is_whole = True

    def close(self) -> None:
        """Write the footer, unless a row group could not be written, and close the file."""
        with self._out.file:
            self._out.end = bytearray()
            if not self._is_whole:
                with suppress(Exception):  # why it could not is known
                    self._writer.close()
                return
            self._writer.close()
            made = _footer(bytes(self._out.end))
            footer = _dumped(_described(self._schema, self._options) | self._rows_of(made))
            self._out.file.write(footer + _END.pack(len(footer), _MAGIC))

    def _write_lists(self, name: str, column: Any) -> Struct:
        """Write a column of lists of one length, and return its ColumnMetaData."""
        begin, pages, count = self._out.place, 0, 0
        for chunk in column.chunks:
            values = chunk.flatten().to_numpy().reshape(len(chunk), -1)
            rows = max(1, _PAGE // (values.itemsize * values.shape[1]))
            for first in range(0, len(values), rows):
                page = values[first : first + rows]
                self._out.add(_head(len(page), page.shape[1], page.nbytes))
                self._out.add(page.data.cast("B"))
                pages += 1
            count += values.size
        size = self._out.place - begin
        return {
            1: (_I32, _TYPES[str(column.type.value_type)]),
            2: (_LIST, (_I32, [_PLAIN, _RUNS])),
            _PATH: (_LIST, (_BINARY, [name.encode(), b"list", b"element"])),
            4: (_I32, 0),  # not compressed
            5: (_I64, count),
            6: (_I64, size),
            _SIZE: (_I64, size),
            9: (_I64, begin),
            13: (_LIST, (_STRUCT, [{1: (_I32, 0), 2: (_I32, _PLAIN), 3: (_I32, pages)}])),  # how its pages are encoded
        }

    def _rows_of(self, made: Struct) -> Struct:
        """Return the fields of a footer that tell of rows: pyarrow's, with the lists among its columns."""
        _, groups = made[_GROUPS][1]
        for group, lists in zip(groups, self._written, strict=True):
            columns: dict[str, list[Struct]] = {}
            for column in group[_COLUMNS][1][1]:
                about = column[_META][1]
                columns.setdefault(about[_PATH][1][1][0].decode(), []).append(column)
                about.update({k: (_I64, self._out.moved(about[k][1])) for k in _PLACES if k in about})
            columns |= {name: [{2: (_I64, 0), _META: (_STRUCT, about)}] for name, about in lists.items()}
            more = sum(about[_SIZE][1] for about in lists.values())
            group[_COLUMNS] = _LIST, (_STRUCT, [c for f in self._schema for c in columns[f.name]])
            group.update({k: (_I64, group[k][1] + more) for k in (_BYTES, _STORED)})
            group[_BEGIN] = _I64, self._out.moved(group[_BEGIN][1])
        return {k: made[k] for k in (_ROWS, _GROUPS)}


class _Output:
    """A file to which pyarrow writes by `write`, and another one beside it by `add`."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.place = 0  # in the file
        self.end: bytearray | None = None  # what pyarrow writes last, which does not go to the file
        self._own = 0  # the place as pyarrow counts
        self._from, self._moves = [0], [0]  # places as pyarrow counts, and how much further they are from there on

    def write(self, data: bytes) -> int:
        """Take what pyarrow writes."""
        if self.end is not None:
            self.end += data
            return len(data)
        if self.place - self._own != self._moves[-1]:
            self._from.append(self._own)
            self._moves.append(self.place - self._own)
        self._own += len(data)
        self.add(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: whoever closes the file writes what is left."""

    def add(self, data: bytes | memoryview) -> None:
        """Write something beside pyarrow."""
        self.file.write(data)
        self.place += len(data)

    def moved(self, place: int) -> int:
        """Return the place in the file of a place as pyarrow counts."""
        return place + self._moves[bisect_right(self._from, place) - 1]


def _is_copied(f: Any) -> bool:
    """Tell whether a column has lists of one length, none of which and none of whose numbers is null."""
    kind = f.type
    is_list = pyarrow().types.is_fixed_size_list(kind) and not f.nullable and not kind.value_field.nullable
    return is_list and kind.list_size > 1 and str(kind.value_type) in _TYPES


@lru_cache(16)
def _head(rows: int, width: int, size: int) -> bytes:
    """Return what comes before the numbers of a page: PageHeader, and the levels of lists and of values."""
    begins = np.ones((rows, width), bool)
    begins[:, 0] = False  # a number goes on with the list of the one before
    bits = np.packbits(begins, bitorder="little").tobytes()
    levels = b"".join(
        len(of).to_bytes(4, "little") + of
        for of in (_number(len(bits) << 1 | 1) + bits, _number(rows * width << 1) + b"\1")
    )
    about: Struct = {1: (_I32, rows * width), 2: (_I32, _PLAIN), 3: (_I32, _RUNS), 4: (_I32, _RUNS)}
    length = len(levels) + size
    return _dumped({1: (_I32, 0), 2: (_I32, length), 3: (_I32, length), 5: (_STRUCT, about)}) + levels


def _described(schema: Any, options: dict[str, Any]) -> Struct:
    """Return the footer that pyarrow gives a file without rows."""
    pa = pyarrow()
    out = pa.BufferOutputStream()
    with pa.parquet.ParquetWriter(out, schema, **options):
        pass
    return _footer(out.getvalue().to_pybytes()[len(_MAGIC) :])


def _footer(data: bytes) -> Struct:
    """Read the footer of which ``data`` consists, and of its length."""
    size, magic = _END.unpack(data[-_END.size :])
    if magic != _MAGIC or size + _END.size != len(data):
        raise ValueError("pyarrow ends a file in another way than with a footer")
    return _Reader(data).struct()


# -- Thrift


class _Reader:
    """Reads a structure."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = kind, self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        match kind:
            case _Kind.TRUE | _Kind.FALSE:
                return None
            case _Kind.BYTE | _Kind.DOUBLE:
                return self._bytes(1 if kind == _Kind.BYTE else 8)
            case _Kind.I16 | _Kind.I32 | _Kind.I64:
                return self._integer()
            case _Kind.BINARY:
                return self._bytes(self._number())
            case _Kind.LIST:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._number()
                return head & 15, [self._value(head & 15) for _ in range(count)]
            case _Kind.STRUCT:
                return self.struct()
        raise ValueError(f"a footer of pyarrow has a value of type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _integer(self) -> int:
        number = self._number()
        return number >> 1 ^ -(number & 1)


def _dumped(fields: Struct) -> bytes:
    """Return the bytes of a structure."""
    out, before = bytearray(), 0
    for number in sorted(fields):
        kind, value = fields[number]
        step = number - before
        out += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _integer(number)
        out += _value(kind, value)
        before = number
    return bytes(out) + b"\0"


def _value(kind: int, value: Any) -> bytes:
    match kind:
        case _Kind.TRUE | _Kind.FALSE:
            return b""
        case _Kind.BYTE | _Kind.DOUBLE:
            return bytes(value)
        case _Kind.I16 | _Kind.I32 | _Kind.I64:
            return _integer(value)
        case _Kind.BINARY:
            return _number(len(value)) + bytes(value)
        case _Kind.LIST:
            of, values = value
            head = bytes([len(values) << 4 | of]) if len(values) < 15 else bytes([240 | of]) + _number(len(values))
            return head + b"".join(_value(of, v) for v in values)
    return _dumped(value)


def _number(value: int) -> bytes:
    """Return a number that is not negative, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _integer(value: int) -> bytes:
    return _number(value << 1 if value >= 0 else (-value << 1) - 1)
