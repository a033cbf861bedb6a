"""Record batches of Arrow files, measured before their buffers are unpacked.

A file is a stream of messages between two marks, and a list of where they stand at its end. The list is not used: it
may name any place. The buffers of a batch may be compressed; each then begins with the number of bytes that it becomes,
which pyarrow takes on trust (Arrow columnar format, ``RecordBatch`` and ``BodyCompression``). Metadata are flatbuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds_cli.archives.arrow_rows import pyarrow
from rlds_cli.errors import CorruptArchive, UnsafeArchive

MAX_RATIO = 1000
FREE_BYTES = 64 << 20
MAX_BATCH = 512 << 20
_MARK = b"ARROW1\0\0"
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3  # fields of Message, and of RecordBatch
_BUFFER = struct.Struct("<qq")


def schema(path: Path) -> Any:
    """The columns of a file."""
    pa = pyarrow()
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        return reader.schema


def count(path: Path) -> int:
    """The number of rows of a file."""
    return sum(_number(message.metadata, _batch(message.metadata), _LENGTH) for message in _messages(path))


def batches(path: Path) -> Iterator[Any]:
    """The record batches of a file, in order, checked in full.

    Raises
    ------
    UnsafeArchive
        Compressed buffers claim more than the file can hold.
    CorruptArchive
        A message is damaged, or is a dictionary, which the archives that are read do not have.
    """
    pa = pyarrow()
    columns = schema(path)
    claimed = 0
    for message in _messages(path):
        size = _unpacked(message)
        claimed += size
        if size > MAX_BATCH or claimed > FREE_BYTES + MAX_RATIO * path.stat().st_size:
            raise UnsafeArchive(f"{path.name} claims {claimed:,} bytes, and has {path.stat().st_size:,}.")
        batch = pa.ipc.read_record_batch(message, columns)
        batch.validate(full=True)
        yield batch


def _messages(path: Path) -> Iterator[Any]:
    """The messages of a file that hold record batches."""
    pa = pyarrow()
    with pa.memory_map(str(path)) as source:
        if source.read(len(_MARK)) != _MARK:
            raise CorruptArchive(f"{path.name} is no Arrow file.", hint=f"delete {path} and fetch it again")
        reader = pa.ipc.MessageReader.open_stream(source)
        while True:
            try:
                message = reader.read_next_message()
            except StopIteration:
                return
            if message.type == "record batch":
                yield message
            elif message.type != "schema":
                raise CorruptArchive(f"{path.name} holds a message that is a {message.type}.")


def _unpacked(message: Any) -> int:
    """Bytes that the compressed buffers of a batch become."""
    data, body = message.metadata, message.body
    table = _batch(data)
    if not _field(data, table, _COMPRESSION):
        return 0
    at = _field(data, table, _BUFFERS)
    start = at + _read("<I", data, at)
    total = 0
    for k in range(_read("<I", data, start)):
        offset, length = _BUFFER.unpack_from(data, start + 4 + k * _BUFFER.size)
        if length >= 8 and 0 <= offset <= len(body) - 8:
            total += max(0, _read("<q", body, offset))
    return total


def _batch(data: Any) -> int:
    """Where the table ``RecordBatch`` of a message begins."""
    at = _field(data, _read("<I", data, 0), _HEADER)
    return at + _read("<I", data, at)


def _number(data: Any, table: int, field: int) -> int:
    at = _field(data, table, field)
    return _read("<q", data, at) if at else 0


def _field(data: Any, table: int, number: int) -> int:
    """Where a field of a table stands; 0 where it has its default."""
    described = table - _read("<i", data, table)
    if 4 + 2 * number + 2 > _read("<H", data, described):
        return 0
    offset = _read("<H", data, described + 4 + 2 * number)
    return table + offset if offset else 0


def _read(form: str, data: Any, at: int) -> int:
    try:
        if at < 0:
            raise ValueError(f"a place before the beginning: {at}")
        return int(struct.unpack_from(form, data, at)[0])
    except (struct.error, ValueError) as e:
        raise CorruptArchive(f"the metadata of an Arrow message are damaged: {e}") from e
