"""Bags of ROS 2 in SQLite (``.db3``), as rosbag2 writes them: a table of topics and one of messages in CDR.

::

    topics               id, name, type, serialization_format
    messages             topic_id, timestamp (nanoseconds), data; each message may be compressed by zstd
    message_definitions  topic_type, encoding, encoded_message_definition      since Iron; earlier bags lack it

Definitions of messages that come with ROS 2 itself are those of the package rosbags where the bag has none. The file is
opened for reading, and only tables are: no view, function or extension of a stranger's database runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.topics import (
    MAX_DEFINITIONS,
    MAX_RECORD,
    MAX_TOPICS,
    Channel,
    Message,
    Recording,
    Schema,
    Topic,
    decoders_of,
    readable,
)
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive

MAGIC = b"SQLite format 3\0"
SUFFIX = ".db3"
_ZSTD = b"\x28\xb5\x2f\xfd"
_NEEDED = ("topics", "messages")
_DEFINITIONS = "message_definitions"
_NO_DEFINITION = "the bag has no definition of its messages"
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)


def is_database(path: Path) -> bool:
    """Return whether a file is a database with the name of a bag."""
    if path.suffix.lower() != SUFFIX:
        return False
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC


def read(path: Path, stack: ExitStack) -> Recording:
    """Read the topics of a bag, and the times of its messages.

    Raises
    ------
    CorruptArchive
        It is damaged, or has other tables.
    """
    with readable(path, hint="ros2 bag reindex of its directory"):
        base = stack.enter_context(closing(_opened(path)))
        channels = _channels(path, base)
        order = _order(base, [c.id for c in channels])
    decoders = decoders_of(path, channels)
    names = {c.id: c.topic for c in channels}
    topics = [t if t.why_not != "its messages are cdr of " else _undefined(t) for t in decoders.topics]

    def messages(wanted: Collection[str], first: int, last: int) -> Iterator[Message]:
        numbers = [n for n, topic in names.items() if topic in wanted and n in decoders.of]
        inside = (order["time"] >= first) & (order["time"] <= last) & np.isin(order["topic"], numbers)
        for time, row, topic in order[inside].tolist():
            with readable(path, hint="ros2 bag reindex of its directory"):
                (data,) = base.execute("SELECT data FROM messages WHERE rowid = ?", (row,)).fetchone()
                data = _plain(data)
            yield decoders.message(path, topic, names[topic], time, data)

    return Recording(path, topics, messages)


def _undefined(t: Topic) -> Topic:
    """Say why a type is not known, and what to do."""
    hint = "" if _known_types() else "; pip install 'rlds-cli[bags]' for those that come with ROS 2"
    return Topic(t.name, t.type, f"{_NO_DEFINITION}{hint}")


def _opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    base.execute("PRAGMA trusted_schema = OFF")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD)
    base.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
    tables = _tables(base)
    lacking = [name for name in _NEEDED if name not in tables]
    if lacking:
        raise CorruptArchive(f"{path.name} lacks a table of bags of ROS 2: {lacking[0]}.")
    return base


def _tables(base: sqlite3.Connection) -> set[str]:
    """Return the names of plain tables; those that a module of SQLite makes up are none."""
    found = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for name, sql in found if str(sql).upper().lstrip().startswith("CREATE TABLE")}


def _channels(path: Path, base: sqlite3.Connection) -> list[Channel]:
    defined: dict[str, tuple[str, bytes]] = {}
    if _DEFINITIONS in _tables(base):
        size = 0
        for kind, encoding, text in base.execute(
            f"SELECT topic_type, encoding, encoded_message_definition FROM {_DEFINITIONS}"
        ):
            size += len(text)
            if size > MAX_DEFINITIONS:
                raise CorruptArchive(f"{path.name}: the definitions of its messages have more than {size:,} bytes.")
            if text:
                defined[str(kind)] = str(encoding), str(text).encode()
    known, found = _known_types(), list[Channel]()
    for number, name, kind, serialization in base.execute(
        "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
    ):
        encoding, text = defined.get(kind) or ("ros2msg", known(kind)) if known or kind in defined else ("", b"")
        schema = Schema(id=number, name=str(kind), encoding=encoding if text else "", data=text)
        found.append(Channel(id=int(number), topic=str(name), encoding=str(serialization), schema=schema))
        if len(found) > MAX_TOPICS:
            break  # which `decoders_of` refuses
    return found


@cache
def _known_types() -> Any:
    """Return a function that says the definition of a type of ROS 2 itself; None without the package rosbags."""
    try:
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        return None
    store = get_typestore(Stores.LATEST)

    def definition(kind: str) -> bytes:
        try:
            return str(store.generate_msgdef(kind, ros_version=2)[0]).encode()
        except Exception:  # of a type that it does not know
            return b""

    return definition


def _order(base: sqlite3.Connection, topics: Sequence[int]) -> Array:
    """Return time, row and topic of all messages, in the order of their times; raises ValueError for odd ones."""
    kind = np.dtype([("time", "i8"), ("row", "i8"), ("topic", "i8")])
    rows = base.execute("SELECT timestamp, rowid, topic_id FROM messages")
    found = np.fromiter(rows, kind)
    if (found["time"] < 0).any() or not np.isin(found["topic"], topics).all():
        raise ValueError("messages have times before 1970, or topics that the table of topics lacks")
    return found[np.argsort(found["time"], kind="stable")]


def _plain(data: Any) -> bytes:
    """Return the bytes of a message, which rosbag2 may have compressed. CDR begins with a zero."""
    found = bytes(data)
    if found.startswith(_ZSTD):
        import zstandard

        found = zstandard.ZstdDecompressor().decompress(found, max_output_size=MAX_RECORD)
    return found
