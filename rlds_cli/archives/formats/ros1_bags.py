"""Bags of ROS 1 (``.bag``, format 2.0): chunks of messages, the index of each, and at the end the connections.

http://wiki.ros.org/Bags/Format/2.0 is the format. A record is a header of fields and data, both with their size before
them. Chunks are read one at a time, of the size that their header states and no more.
"""

from __future__ import annotations

import bz2
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.message_schemas import ROS1
from rlds_cli.archives.formats.topics import (
    MAX_RECORD,
    MAX_TOPICS,
    Channel,
    Message,
    Recording,
    Schema,
    decoders_of,
    readable,
)
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, MissingPackage, UnsafeArchive

MAGIC = b"#ROSBAG V2.0\n"
_MESSAGE, _INDEX, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 4, 5, 6, 7  # kinds of records
_ENTRY = np.dtype([("seconds", "<u4"), ("rest", "<u4"), ("offset", "<u4")])  # of an index
_PLACE = np.dtype([("time", "i8"), ("chunk", "i8"), ("offset", "i8"), ("connection", "i8")])


def is_bag(path: Path) -> bool:
    """Return whether a file begins as bags of ROS 1 do."""
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC


@dataclass(frozen=True, slots=True)
class _Record:
    """A record: the kind, the fields of its header by name, and its data."""

    kind: int
    fields: dict[bytes, bytes]
    data: bytes

    def number(self, name: bytes, size: int = 4) -> int:
        """Return a field that is a whole number."""
        value = self.fields[name]
        if len(value) != size:
            raise ValueError(f"{name.decode()} has {len(value)} bytes")
        return int.from_bytes(value, "little")


def read(path: Path, file: BufferedReader) -> Recording:
    """Read the connections and the index of a bag.

    Raises
    ------
    CorruptArchive
        It is damaged, or has no index.
    """
    with readable(path, hint=f"rosbag reindex {path.name}"):
        channels, places = _index(path, file)
    decoders = decoders_of(path, channels)
    names = {c.id: c.topic for c in channels}

    def messages(topics: Collection[str], first: int, last: int) -> Iterator[Message]:
        wanted = [n for n, topic in names.items() if topic in topics and n in decoders.of]
        at = places[(places["time"] >= first) & (places["time"] <= last) & np.isin(places["connection"], wanted)]
        held, chunk = -1, b""
        for time, begin, offset, connection in at.tolist():
            with readable(path, hint=f"rosbag reindex {path.name}"):
                if begin != held:
                    held, chunk = begin, _chunk(file, begin)
                record, _ = _record(chunk, offset)
                if record.kind != _MESSAGE or record.number(b"conn") != connection:
                    raise ValueError(f"its index leads to no message at {begin:,}, {offset:,}")
            yield decoders.message(path, connection, names[connection], time, record.data)

    return Recording(path, decoders.topics, messages)


def _index(path: Path, file: BufferedReader) -> tuple[Sequence[Channel], Array]:
    """Return the connections, and time, chunk, place in it and connection of each message, in the order of time."""
    file.seek(len(MAGIC))
    head = _next(file)
    at = head.number(b"index_pos", 8)
    if not at:
        raise CorruptArchive(f"{path.name} has no index: it was not finished.", hint=f"rosbag reindex {path.name}")
    file.seek(at)
    channels, chunks = [], []
    while file.peek(1):
        record = _next(file)
        if record.kind == _CONNECTION:
            channels.append(_channel(record))
            if len(channels) > MAX_TOPICS:
                raise UnsafeArchive(f"{path.name} has more than {MAX_TOPICS:,} topics; no more are read.")
        elif record.kind == _CHUNK_INFO:
            chunks.append(record.number(b"chunk_pos", 8))
    if (len(channels), len(chunks)) != (head.number(b"conn_count"), head.number(b"chunk_count")):
        raise ValueError("its index is cut short")
    found = [np.zeros(0, _PLACE)]
    for begin in sorted(set(chunks)):
        file.seek(begin)
        _next(file, data=False)
        found += _entries(file, begin)
    places = np.concatenate(found)
    return channels, places[np.argsort(places["time"], kind="stable")]


def _entries(file: BufferedReader, chunk: int) -> Iterator[Array]:
    """Yield the index of each connection behind a chunk, where the file stands."""
    while (record := _next(file, only=_INDEX)) is not None:
        entries = np.frombuffer(record.data, _ENTRY)
        found = np.zeros(len(entries), _PLACE)
        found["time"] = entries["seconds"].astype(np.int64) * 1_000_000_000 + entries["rest"]
        found["chunk"], found["offset"] = chunk, entries["offset"]
        found["connection"] = record.number(b"conn")
        yield found


def _channel(record: _Record) -> Channel:
    about = _fields(record.data)
    number = record.number(b"conn")
    kind, definition = about[b"type"].decode(), about[b"message_definition"]
    schema = Schema(id=number, name=kind, encoding=f"{ROS1}msg", data=definition)
    return Channel(id=number, topic=record.fields[b"topic"].decode(), encoding=ROS1, schema=schema)


def _chunk(file: BufferedReader, begin: int) -> bytes:
    """Return the records of a chunk."""
    file.seek(begin)
    record = _next(file)
    if record.kind != _CHUNK:
        raise ValueError(f"no chunk begins at {begin:,}")
    size, how = record.number(b"size"), record.fields[b"compression"]
    if size > MAX_RECORD:
        raise ValueError(f"a chunk of {size:,} bytes")
    found: bytes = record.data
    if how == b"bz2":
        found = bz2.BZ2Decompressor().decompress(found, size + 1)
    elif how == b"lz4":
        found = _lz4(found, size)
    elif how != b"none":
        raise ValueError(f"chunks are compressed by {how.decode(errors='replace')}")
    if len(found) != size:
        raise ValueError(f"a chunk does not have the {size:,} bytes that it states")
    return found


def _lz4(data: bytes, size: int) -> bytes:
    try:
        from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]
    except ImportError as e:
        raise MissingPackage("Its chunks are compressed by lz4.", hint="pip install 'rlds-cli[ros]'") from e
    return bytes(LZ4FrameDecompressor().decompress(data, size + 1))


def _next(file: Any, *, data: bool = True, only: int | None = None) -> Any:
    """Read a record; without ``data`` skip what it holds. None if it is of another kind than ``only``."""
    fields = _fields(_sized(file))
    kind = fields[b"op"][0]
    if only is not None and kind != only:
        return None
    if data:
        return _Record(kind, fields, _sized(file))
    (size,) = struct.unpack("<I", file.read(4))
    file.seek(size, 1)
    return _Record(kind, fields, b"")


def _sized(file: BufferedReader) -> bytes:
    (size,) = struct.unpack("<I", file.read(4))
    found = file.read(size) if size <= MAX_RECORD else b""
    if len(found) != size:
        raise ValueError(f"a record of {size:,} bytes is cut short")
    return found


def _record(data: bytes, at: int) -> tuple[_Record, int]:
    """Return the record at a place of a chunk, and where it ends."""
    parts = []
    for _ in range(2):
        (size,) = struct.unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            raise ValueError(f"a record of {size:,} bytes is cut short")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    fields = _fields(parts[0])
    return _Record(fields[b"op"][0], fields, parts[1]), at


def _fields(header: bytes) -> dict[bytes, bytes]:
    found, at = {}, 0
    while at < len(header):
        (size,) = struct.unpack_from("<I", header, at)
        name, mark, value = header[at + 4 : at + 4 + size].partition(b"=")
        if not mark or at + 4 + size > len(header):
            raise ValueError("a field of a record cannot be read")
        found[name] = value
        at += 4 + size
    return found
