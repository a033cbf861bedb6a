"""Recordings of strangers: bags of ROS 1 and of ROS 2 in SQLite that ask for much, or have a program in them."""

from __future__ import annotations

import bz2
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from archives import brought_in
from scene import Scene, attacks

ATTACKS, attack = attacks()

Fields = Mapping[str, bytes]
DEFINITION = "float64[] data"


# -- bags of ROS 1, as http://wiki.ros.org/Bags/Format/2.0 describes them


def record(op: int, fields: Fields, data: bytes, *, says: int | None = None) -> bytes:
    """A record; ``says`` is the size of its data that it states."""
    pairs = {"op": bytes([op]), **fields}
    head = b"".join(struct.pack("<I", len(k) + 1 + len(v)) + k.encode() + b"=" + v for k, v in pairs.items())
    return struct.pack("<I", len(head)) + head + struct.pack("<I", len(data) if says is None else says) + data


def number(value: int, size: int = 4) -> bytes:
    """A number of a header."""
    return value.to_bytes(size, "little")


def connection(topic: str, at: int, definition: str = DEFINITION) -> bytes:
    """The record of a topic."""
    about = {"type": b"lab/List", "md5sum": b"0" * 32, "message_definition": definition.encode()}
    data = b"".join(struct.pack("<I", len(k) + 1 + len(v)) + k.encode() + b"=" + v for k, v in about.items())
    return record(7, {"conn": number(at), "topic": topic.encode()}, data)


def message(at: int, k: int, data: bytes | None = None) -> bytes:
    """The record of a message of two numbers."""
    time = struct.pack("<II", 1 + k // 50, k % 50 * 20_000_000)
    return record(2, {"conn": number(at), "time": time}, data or struct.pack("<Idd", 2, k, 0.5))


def bag(
    path: Path,
    chunks: Sequence[tuple[Fields, bytes]],
    *,
    topics: Sequence[bytes] = (),
    indexes: Sequence[bytes] | None = None,
    starts: Sequence[int] | None = None,
) -> Path:
    """Write a bag; each chunk is a header and the data, and has an index of its own."""
    topics = topics or [connection("/joints", 0), connection("/cmd", 1)]
    body, begins = b"", []
    first = len(b"#ROSBAG V2.0\n") + 4096
    for n, (fields, data) in enumerate(chunks):
        begins.append(first + len(body))
        body += record(5, fields, data) + (indexes[n] if indexes else b"")
    infos = b"".join(
        record(6, {"ver": number(1), "chunk_pos": number(at, 8), "count": number(0)}, b"")
        for at in (starts if starts is not None else begins)
    )
    count = len(begins) if starts is None else len(starts)
    head = {"index_pos": number(first + len(body), 8), "conn_count": number(len(topics)), "chunk_count": number(count)}
    start = record(3, head, b"")
    padding = 4096 - len(start)
    start = record(3, head, b" " * padding)
    path.write_bytes(b"#ROSBAG V2.0\n" + start + body + b"".join(topics) + infos)
    return path


def index(at: int, places: Sequence[tuple[int, int]]) -> bytes:
    """The index of a topic in a chunk: step and place of each message."""
    entries = b"".join(struct.pack("<III", 1 + k // 50, k % 50 * 20_000_000, place) for k, place in places)
    return record(4, {"ver": number(1), "conn": number(at), "count": number(len(places))}, entries)


def steps(count: int) -> tuple[bytes, bytes]:
    """The messages of two topics, and the index of both."""
    data, places = b"", ([], [])  # type: tuple[bytes, tuple[list[tuple[int, int]], list[tuple[int, int]]]]
    for k in range(count):
        for at in (0, 1):
            places[at].append((k, len(data)))
            data += message(at, k)
    return data, index(0, places[0]) + index(1, places[1])


def plain(data: bytes) -> Fields:
    """The header of a chunk as it is."""
    return {"compression": b"none", "size": number(len(data))}


@attack(quick=True)
def a_bag_is_data(scene: Scene) -> None:
    """A sound bag of ROS 1 comes in: what follows is refused for what it does."""
    data, places = steps(50)
    if not brought_in(scene, bag(scene.work / "sound.bag", [(plain(data), data)], indexes=[places])):
        scene.fault("a sound bag was refused")


@attack()
def chunks_of_bags_that_inflate(scene: Scene) -> None:
    """Chunks of bz2 that become 6 GiB: stated as such, as few bytes, and as the largest number."""
    packed = bz2.BZ2Compressor(9)
    bomb = b"".join(packed.compress(bytes(64 << 20)) for _ in range(96)) + packed.flush()
    _, places = steps(50)
    for size in (6 << 30 & 0xFFFFFFFF, 5_000, (1 << 32) - 1, 1 << 30):
        fields = {"compression": b"bz2", "size": number(size)}
        brought_in(scene, bag(scene.work / "bomb.bag", [(fields, bomb)], indexes=[places]))


@attack()
def sizes_of_bags_that_lie(scene: Scene) -> None:
    """Records that state gigabytes, places outside of the file, and chunks that begin in each other."""
    data, places = steps(50)
    sound = bag(scene.work / "sound.bag", [(plain(data), data)], indexes=[places]).read_bytes()
    for at in (4109 + 4, len(sound) - 60, 13):
        for value in (0xFFFFFFFF, 0x7FFFFFFF, 0x3FFFFFFF):
            (scene.work / "sizes.bag").write_bytes(sound[:at] + struct.pack("<I", value) + sound[at + 4 :])
            brought_in(scene, scene.work / "sizes.bag")
    for starts in ([1 << 62], [0], [4109] * 100_000, [4109 + k for k in range(3)]):
        brought_in(scene, bag(scene.work / "starts.bag", [(plain(data), data)], indexes=[places], starts=starts))
    far = index(0, [(k, 0xFFFFFFF0) for k in range(50)]) + index(1, [(k, 7) for k in range(50)])
    brought_in(scene, bag(scene.work / "far.bag", [(plain(data), data)], indexes=[far]))


@attack()
def an_index_that_repeats_itself(scene: Scene) -> None:
    """Five million entries that lead to the same few messages, at times that go on."""
    data, _ = steps(2)
    size = len(message(0, 0))
    many = b"".join(struct.pack("<III", k, 0, 0) for k in range(5_000_000))
    head = {"ver": number(1), "count": number(5_000_000)}
    places = record(4, {**head, "conn": number(0)}, many) + index(1, [(0, size), (1, 3 * size)])
    brought_in(scene, bag(scene.work / "again.bag", [(plain(data), data)], indexes=[places]))


@attack()
def definitions_without_an_end(scene: Scene) -> None:
    """Types that hold themselves, lists of 4 billion values, and definitions of megabytes."""
    data, places = steps(50)
    nested = "lab/Inner x\n" + "".join(
        f"{'=' * 80}\nMSG: lab/{name}\nlab/{of}[] x\n" for name, of in (("Inner", "Other"), ("Other", "Inner"))
    )
    for definition in (nested, "float64[4294967295] data", "float64 x\n" * 200_000, "string " + "x" * (40 << 20)):
        topics = [connection("/joints", 0, definition), connection("/cmd", 1)]
        brought_in(scene, bag(scene.work / "types.bag", [(plain(data), data)], indexes=[places], topics=topics))
    for claimed in (0xFFFFFFFF, 1 << 28):
        bad = struct.pack("<Idd", claimed, 0, 0.5)
        wrong = b"".join(message(at, k, bad) for k in range(50) for at in (0, 1))
        listed = index(0, [(k, 2 * k * len(message(0, 0))) for k in range(50)])
        listed += index(1, [(k, (2 * k + 1) * len(message(0, 0))) for k in range(50)])
        brought_in(scene, bag(scene.work / "claims.bag", [(plain(wrong), wrong)], indexes=[listed]))


@attack()
def topics_without_number(scene: Scene) -> None:
    """100,000 topics, and topics named to reach the terminal or other directories."""
    data, places = steps(50)
    many = [connection(f"/t{k}", k) for k in range(100_000)]
    brought_in(scene, bag(scene.work / "many.bag", [(plain(data), data)], indexes=[places], topics=many))
    for name in ("/\x1b[2J\x07", "/../../etc", "/" + "a/" * 3000, "\u202e/cmd"):
        topics = [connection(name, 0), connection("/cmd", 1)]
        brought_in(scene, bag(scene.work / "names.bag", [(plain(data), data)], indexes=[places], topics=topics))


# -- bags of ROS 2 in SQLite


TOPICS = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)"
MESSAGES = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)"
DEFINITIONS = "CREATE TABLE message_definitions(topic_type TEXT, encoding TEXT, encoded_message_definition TEXT)"
ENDLESS = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT"


def database(path: Path, *statements: str, tables: Sequence[str] = (TOPICS, MESSAGES, DEFINITIONS)) -> Path:
    """Write a bag of two topics with 50 messages each, then run some statements in it."""
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    for table in tables:
        base.execute(table)
    if DEFINITIONS in tables:
        base.execute("INSERT INTO message_definitions VALUES('lab/msg/List', 'ros2msg', ?)", (DEFINITION,))
    if TOPICS in tables:
        base.execute(
            "INSERT INTO topics VALUES(1, '/joints', 'lab/msg/List', 'cdr'), (2, '/cmd', 'lab/msg/List', 'cdr')"
        )
    for k in range(100 if MESSAGES in tables else 0):
        data = struct.pack("<4sI4xdd", b"\0\1\0\0", 2, k, 0.5)
        base.execute("INSERT INTO messages VALUES(NULL, ?, ?, ?)", (1 + k % 2, k // 2 * 20_000_000, data))
    base.commit()
    for statement in statements:
        base.executescript(statement)
    base.commit()
    base.close()
    return path


@attack(quick=True)
def a_database_is_data(scene: Scene) -> None:
    """A sound bag of ROS 2 comes in."""
    if not brought_in(scene, database(scene.work / "sound.db3")):
        scene.fault("a sound bag was refused")


@attack()
def views_in_the_place_of_tables(scene: Scene) -> None:
    """Views that never end, or that call functions, where tables are expected."""
    topics = (
        f"CREATE VIEW topics AS {ENDLESS} k AS id, '/t' || k AS name, 'x' AS type, 'cdr' AS serialization_format FROM n"
    )
    messages = (
        f"CREATE VIEW messages AS {ENDLESS} k AS id, 1 AS topic_id, k AS timestamp, zeroblob(1000) AS data FROM n"
    )
    for tables in ((topics, MESSAGES, DEFINITIONS), (TOPICS, messages, DEFINITIONS)):
        if brought_in(scene, database(scene.work / "views.db3", tables=tables)):
            scene.fault("a bag whose tables are views was imported")
    extension = "CREATE VIEW messages AS SELECT load_extension('./evil') AS timestamp, 1 AS topic_id, x'00' AS data"
    brought_in(scene, database(scene.work / "views.db3", tables=(TOPICS, extension, DEFINITIONS)))


@attack()
def tables_that_compute(scene: Scene) -> None:
    """Generated columns, tables of modules, and a schema that was written over."""
    generated = (
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, seed INTEGER, "
        "data BLOB AS (zeroblob(900000000 + seed)))"
    )
    filled = "INSERT INTO messages(topic_id, timestamp, seed) VALUES(1, 0, 1), (2, 0, 1), (1, 1, 1), (2, 1, 1)"
    brought_in(scene, database(scene.work / "computed.db3", filled, tables=(TOPICS, generated, DEFINITIONS)))
    module = "CREATE VIRTUAL TABLE messages USING fts5(topic_id, timestamp, data)"
    brought_in(scene, database(scene.work / "module.db3", tables=(TOPICS, module, DEFINITIONS)))
    for said in ("CREATE TABLE messages AS SELECT 1", "CREATE VIEW messages AS SELECT 1", "x" * 100_000, "\x1b[2J"):
        written = f"PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = '{said}' WHERE name = 'messages';"
        brought_in(scene, database(scene.work / "schema.db3", written))


@attack()
def rows_that_are_too_much(scene: Scene) -> None:
    """Messages of half a gigabyte, millions of them, of other types, and texts of the definitions as long."""
    large = "UPDATE messages SET data = zeroblob(500000000) WHERE id < 3"
    millions = (
        f"INSERT INTO messages {ENDLESS} k + 100, 1 + k % 2, k * 20000000, x'0001000000000000' FROM n LIMIT 3000000"
    )
    typed = "UPDATE messages SET data = 'text', timestamp = 'soon' WHERE id = 7"
    negative = "UPDATE messages SET timestamp = -9223372036854775808 WHERE id = 7"
    late = "UPDATE messages SET timestamp = 9223372036854775807 WHERE id = 99"
    text = "UPDATE message_definitions SET encoded_message_definition = hex(zeroblob(60000000))"
    zstd = "UPDATE messages SET data = x'28b52ffd' || zeroblob(100)"
    names = "UPDATE topics SET name = '/' || char(27) || '[2J'"
    for statement in (large, millions, typed, negative, late, text, zstd, names):
        brought_in(scene, database(scene.work / "rows.db3", statement))


@attack()
def pages_that_lead_in_circles(scene: Scene) -> None:
    """Pages of the tree of a table that are each other's children, and a file that is cut."""
    sound = database(
        scene.work / "sound.db3", f"INSERT INTO messages {ENDLESS} k + 100, 1, k, zeroblob(900) FROM n LIMIT 900"
    )
    data = bytearray(sound.read_bytes())
    for page in range(1, len(data) // 4096):
        if data[page * 4096] == 5:  # an inner page of a table
            count = struct.unpack_from(">H", data, page * 4096 + 3)[0]
            for k in range(count):
                cell = struct.unpack_from(">H", data, page * 4096 + 12 + 2 * k)[0]
                struct.pack_into(">I", data, page * 4096 + cell, page + 1)
            struct.pack_into(">I", data, page * 4096 + 8, page + 1)
    for name, content in (("circle.db3", bytes(data)), ("cut.db3", bytes(data[:9000]))):
        (scene.work / name).write_bytes(content)
        if brought_in(scene, scene.work / name):
            scene.fault(f"{name} was imported")
