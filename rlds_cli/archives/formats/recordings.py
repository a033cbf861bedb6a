"""Recordings of topics that each have a rate of their own: MCAP files, and JSON lines with a topic and a time.

A message is a mapping of leaves by name (`message_leaves`). What MCAP files hold is decoded where it is CDR of ROS 2
with its message definitions, or Protobuf or JSON (`message_schemas`), each channel by its own encoding. A line of JSON
is a message: ``{"topic": "arm", "time": 0.02, "q": [...], "v": [...]}`` has the leaves q and v.

The time of a message is when it was recorded, which is when a policy could know it (``log_time`` of MCAP).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlds_cli.archives.formats import message_schemas
from rlds_cli.archives.formats.message_leaves import leaves_of
from rlds_cli.archives.formats.text_tables import JSON_LINES
from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, MissingPackage, RldsError, UnsafeArchive

MAGIC = b"\x89MCAP0\r\n"
TOPIC, TIMES = "topic", ("time", "timestamp", "t")  # keys of a line of JSON; times are seconds
MAX_RECORD = 1 << 30  # bytes of one record of an MCAP file
MAX_LINE = 32 << 20
MAX_TOPICS = 1 << 12
# Bytes and lines of the definitions of all messages of an MCAP file: parsing takes 0.1 ms a line.
MAX_DEFINITIONS, MAX_LINES = 16 << 20, 1 << 16
SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, the type of its messages, and why they are not understood; "" if they are."""

    name: str
    type: str
    why_not: str = ""


class Message(NamedTuple):
    """A message: its topic, its time in nanoseconds, and its leaves once they are asked for."""

    topic: str
    time: int
    leaves: Callable[[], dict[str, Any]]


class Recording:
    """An open recording."""

    def __init__(
        self, path: Path, topics: Sequence[Topic], messages: Callable[[Collection[str], int, int], Iterator[Message]]
    ) -> None:
        self.path, self.topics = path, {t.name: t for t in topics}
        self.beside: tuple[tuple[str, str], ...] = ()  # kind and name of records that are no messages
        self._messages = messages

    def messages(self, topics: Collection[str], first: int = 0, last: int = (1 << 63) - 1) -> Iterator[Message]:
        """Yield the messages of some topics with ``first <= time <= last``, in the order of their times."""
        return self._messages(topics, first, last)


def is_mcap(path: Path) -> bool:
    """Return whether a file begins as MCAP files do."""
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC


def is_topic_lines(path: Path) -> bool:
    """Return whether a file is named as JSON lines, and its first line has a topic and a time."""
    if path.suffix.lower() not in JSON_LINES:
        return False
    with path.open("rb") as f:
        try:
            line = json.loads(f.readline(MAX_LINE))
        except (ValueError, RecursionError):
            return False
    return isinstance(line, dict) and isinstance(line.get(TOPIC), str) and any(t in line for t in TIMES)


def is_recording(path: Path) -> bool:
    """Return whether `open_recording` knows a file."""
    return path.is_file() and (is_mcap(path) or is_topic_lines(path))


@contextmanager
def open_recording(path: Path) -> Iterator[Recording]:
    """Open an MCAP file or JSON lines.

    Raises
    ------
    MissingPackage
        ``mcap`` or its decoder is not installed.
    CorruptArchive
        The file is damaged.
    """
    child.note(path)
    if is_mcap(path):
        with path.open("rb") as f:
            yield _mcap(path, f)
    else:
        yield _lines(path)


# -- MCAP


def _mcap(path: Path, file: Any) -> Recording:
    try:
        from mcap.reader import SeekingReader
        from mcap_ros2.decoder import DecoderFactory
    except ImportError as e:
        raise MissingPackage(f"{path.name} is an MCAP file.", hint="pip install 'rlds-cli[ros]'") from e
    reader = SeekingReader(file, validate_crcs=True, record_size_limit=MAX_RECORD)
    with _readable(path):
        summary = reader.get_summary()
    if summary is None or not summary.channels:
        raise CorruptArchive(
            f"{path.name} has no index of its messages: it was not finished.", hint=f"mcap recover {path.name}"
        )
    _check_definitions(path, summary)
    factory = DecoderFactory()
    decoders: dict[int, Callable[[bytes], Any]] = {}
    topics: dict[str, Topic] = {}
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        kind, decoder = schema.name if schema else channel.message_encoding, None
        try:
            decoder = message_schemas.decoder_for(channel.message_encoding, schema)
            decoder = decoder or factory.decoder_for(channel.message_encoding, schema)
            encoding = f"{channel.message_encoding} of {schema.encoding if schema else 'no schema'}"
            why_not = "" if decoder else f"its messages are {encoding}"
        except MissingPackage as e:
            why_not = f"{e.message} {e.hint}"
        except Exception as e:
            why_not = f"its definition cannot be read: {e}"
        if decoder is not None:
            decoders[channel.id] = decoder
        topics[channel.topic] = _of_channel(topics.get(channel.topic), Topic(channel.topic, kind, why_not))

    def messages(names: Collection[str], first: int, last: int) -> Iterator[Message]:
        with _readable(path):
            for _, channel, m in reader.iter_messages(sorted(names), starting_at=first, ending_at=last):
                if channel.id in decoders:
                    where = f"{path.name}: {channel.topic} at {m.log_time / SECOND:.3f} s"
                    yield Message(channel.topic, m.log_time, _decoded(decoders[channel.id], m.data, where))

    found = Recording(path, [*topics.values()], messages)
    records = {"attachment": summary.attachment_indexes, "metadata": summary.metadata_indexes}
    found.beside = tuple((kind, str(record.name)) for kind, of in records.items() for record in of)
    return found


def _of_channel(known: Topic | None, now: Topic) -> Topic:
    """Return a topic with one channel more: each publisher has its own."""
    if known is None:
        return now
    kind = known.type if known.type == now.type else f"{known.type} and {now.type}"
    return Topic(now.name, kind, known.why_not or now.why_not)


def _check_definitions(path: Path, summary: Any) -> None:
    """Refuse more topics, or longer definitions of their messages, than anybody writes: Python parses them."""
    if len(summary.channels) > MAX_TOPICS:
        raise UnsafeArchive(f"{path.name} has {len(summary.channels):,} topics; at most {MAX_TOPICS:,} are read.")
    if (size := sum(len(s.data) for s in summary.schemas.values())) > MAX_DEFINITIONS:
        raise UnsafeArchive(
            f"{path.name}: the definitions of its messages have {size:,} bytes; at most {MAX_DEFINITIONS:,} are read."
        )
    texts = (bytes(s.data) for s in summary.schemas.values() if s.encoding != message_schemas.PROTOBUF)
    lines = (line.strip() for text in texts for line in text.splitlines())
    if (count := sum(bool(line) and not line.startswith(b"#") for line in lines)) > MAX_LINES:
        raise UnsafeArchive(
            f"{path.name}: the definitions of its messages have {count:,} lines; at most {MAX_LINES:,} are read."
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of damaged files, which have many types, into one that names the file."""
    try:
        yield
    except (RldsError, MemoryError, OSError):
        raise
    except Exception as e:
        raise CorruptArchive(f"{path.name} is damaged: {e}.", hint=f"mcap recover {path.name}") from e


def _decoded(decode: Callable[[bytes], Any], data: bytes, where: str) -> Callable[[], dict[str, Any]]:
    def leaves() -> dict[str, Any]:
        try:
            value = decode(_Whole(data))
        except Exception as e:  # of a message that does not follow its definition
            raise CorruptArchive(f"{where} cannot be decoded ({type(e).__name__}: {e}).") from e
        return leaves_of(value, where)

    return leaves


class _Whole(bytes):
    """The bytes of a message. A text or an array of bytes that states more of them than there are is refused.

    The decoder takes both as slices: one that reaches beyond the end is short without a word.
    """

    def __getitem__(self, key: Any) -> Any:
        taken = super().__getitem__(key)
        if not isinstance(key, slice):
            return taken
        if key.stop is not None and key.stop > len(self):
            raise ValueError(f"it states {key.stop - key.start:,} bytes where {len(taken):,} are left")
        return _Taken(taken, super().__getitem__(slice(key.stop, (key.stop or 0) + 1)) == b"\0")


class _Taken(bytes):
    """A slice of a message; a text is followed by a zero, or its length is wrong."""

    closed: bool

    def __new__(cls, data: bytes, closed: bool) -> _Taken:
        taken = super().__new__(cls, data)
        taken.closed = closed
        return taken

    def decode(self, *how: Any) -> str:
        if not self.closed:
            raise ValueError(f"a text of {len(self):,} bytes does not end there")
        return super().decode(*how)


# -- JSON lines


def _lines(path: Path) -> Recording:
    """Open JSON lines; their topics are known once all lines were looked at."""
    topics: dict[str, Topic] = {}
    order: list[tuple[int, int]] = []  # time and place of each line
    with path.open("rb") as f:
        at = 0
        for number, line in enumerate(iter(lambda: f.readline(MAX_LINE), b""), 1):
            if line.strip():
                topic, time, _ = _read_line(path, number, line)
                topics.setdefault(topic, Topic(topic, "JSON"))
                order.append((time, at))
            at += len(line)
    order.sort(key=lambda entry: entry[0])

    def messages(names: Collection[str], first: int, last: int) -> Iterator[Message]:
        with path.open("rb") as f:
            for time, at in order:
                if first <= time <= last:
                    f.seek(at)
                    topic, _, value = _read_line(path, 0, f.readline(MAX_LINE))
                    if topic in names:
                        where = f"{path.name}: {topic} at {time / SECOND:.3f} s"
                        yield Message(topic, time, lambda value=value, where=where: leaves_of(value, where))  # type: ignore[misc]

    return Recording(path, [*topics.values()], messages)


def _read_line(path: Path, number: int, line: bytes) -> tuple[str, int, dict[str, Any]]:
    try:
        value = json.loads(line)
        topic = value.pop(TOPIC)
        time = next(value.pop(t) for t in TIMES if t in value)
        if not isinstance(topic, str) or isinstance(time, bool) or not 0 <= float(time) < 1 << 33:
            raise ValueError(f"topic {topic!r:.40}, time {time!r:.40}")
    except (ValueError, KeyError, StopIteration, TypeError, AttributeError, RecursionError) as e:
        raise CorruptArchive(
            f"{path.name}: line {number:,} is not a message of a topic ({type(e).__name__}: {e}).",
            hint='as in {"topic": "arm", "time": 0.02, "q": [0.1, 0.2]}',
        ) from e
    return topic, round(float(time) * SECOND), value
