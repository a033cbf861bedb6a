"""What a recording is, whatever holds it: topics, their messages in the order of time, and how these are decoded.

A container lists its `Channel` records, each a topic with the encoding of its messages and their schema, and yields
bytes; `decoders_of` finds a function for each channel, or why there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlds_cli.archives.formats import message_schemas
from rlds_cli.archives.formats.message_leaves import leaves_of
from rlds_cli.errors import CorruptArchive, MissingPackage, RldsError, UnsafeArchive

MAX_RECORD = 1 << 30  # bytes of one record
MAX_TOPICS = 1 << 12
# Bytes and lines of the definitions of all messages of a file: parsing takes 0.1 ms a line.
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


@contextmanager
def readable(path: Path, *, hint: str) -> Iterator[None]:
    """Turn the errors of damaged files, which have many types, into one that names the file.

    Errors of the system have a number, which those of decoders that raise OSError lack.
    """
    try:
        yield
    except (RldsError, MemoryError):
        raise
    except Exception as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise
        what = f"{e} is missing" if isinstance(e, KeyError) else str(e)
        raise CorruptArchive(f"{path.name} is damaged: {what}.", hint=hint) from e


class Recording:
    """An open recording."""

    def __init__(
        self, path: Path, topics: Sequence[Topic], messages: Callable[[Collection[str], int, int], Iterator[Message]]
    ) -> None:
        self.path, self.topics = path, {t.name: t for t in topics}
        self.beside: tuple[tuple[str, str], ...] = ()  # kind and name of records that are no messages
        self.metadata: dict[str, dict[str, str]] = {}  # of MCAP: the records of this kind by name
        self._messages = messages

    def messages(self, topics: Collection[str], first: int = 0, last: int = (1 << 63) - 1) -> Iterator[Message]:
        """Yield the messages of some topics with ``first <= time <= last``, in the order of their times."""
        return self._messages(topics, first, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The definition of messages: ``encoding`` is as in MCAP, `ros2msg`, `ros1msg`, `protobuf` or `jsonschema`."""

    id: int
    name: str
    encoding: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A topic as one publisher sends it: ``encoding`` is that of its messages, `cdr`, `ros1`, `protobuf` or `json`."""

    id: int
    topic: str
    encoding: str
    schema: Schema | None


@dataclass(frozen=True, slots=True)
class Decoders:
    """Functions that decode messages, by the number of the channel, and the topics of all channels."""

    of: dict[int, Callable[[bytes], Any]]
    topics: tuple[Topic, ...]

    def message(self, path: Path, channel: int, topic: str, time: int, data: bytes) -> Message:
        """Return a message, which is decoded once its leaves are asked for."""
        return Message(topic, time, _decoded(self.of[channel], data, f"{path.name}: {topic} at {time / SECOND:.3f} s"))


def decoders_of(path: Path, channels: Sequence[Channel]) -> Decoders:
    """Find how the messages of each channel are decoded.

    Raises
    ------
    UnsafeArchive
        There are more topics, or longer definitions, than anybody writes.
    MissingPackage
        ``mcap_ros2`` is not installed.
    """
    try:
        from mcap_ros2.decoder import DecoderFactory
    except ImportError as e:
        raise MissingPackage(f"{path.name} is a recording of ROS.", hint="pip install 'rlds-cli[ros]'") from e

    _check_definitions(path, channels)
    factory = DecoderFactory()
    decoders: dict[int, Callable[[bytes], Any]] = {}
    topics: dict[str, Topic] = {}
    for channel in channels:
        schema = channel.schema
        kind, decoder = schema.name if schema else channel.encoding, None
        try:
            decoder = message_schemas.decoder_for(channel.encoding, schema)
            decoder = decoder or factory.decoder_for(channel.encoding, schema)
            encoding = f"{channel.encoding} of {schema.encoding if schema else 'no schema'}"
            why_not = "" if decoder else f"its messages are {encoding}"
        except MissingPackage as e:
            why_not = f"{e.message} {e.hint}"
        except Exception as e:
            why_not = f"its definition cannot be read: {e}"
        if decoder is not None:
            decoders[channel.id] = decoder
        topics[channel.topic] = _of_channel(topics.get(channel.topic), Topic(channel.topic, kind, why_not))
    return Decoders(decoders, tuple(topics.values()))


def _of_channel(known: Topic | None, now: Topic) -> Topic:
    """Return a topic with one channel more: each publisher has its own."""
    if known is None:
        return now
    kind = known.type if known.type == now.type else f"{known.type} and {now.type}"
    return Topic(now.name, kind, known.why_not or now.why_not)


def _check_definitions(path: Path, channels: Sequence[Channel]) -> None:
    """Refuse more topics, or longer definitions of their messages, than anybody writes: Python parses them."""
    schemas = {c.schema.id: c.schema for c in channels if c.schema is not None}.values()
    if len(channels) > MAX_TOPICS:
        raise UnsafeArchive(f"{path.name} has {len(channels):,} topics; at most {MAX_TOPICS:,} are read.")
    if (size := sum(len(s.data) for s in schemas)) > MAX_DEFINITIONS:
        raise UnsafeArchive(
            f"{path.name}: the definitions of its messages have {size:,} bytes; at most {MAX_DEFINITIONS:,} are read."
        )
    texts = (s.data for s in schemas if s.encoding != message_schemas.PROTOBUF)
    lines = (line.strip() for text in texts for line in text.splitlines())
    if (count := sum(bool(line) and not line.startswith(b"#") for line in lines)) > MAX_LINES:
        raise UnsafeArchive(
            f"{path.name}: the definitions of its messages have {count:,} lines; at most {MAX_LINES:,} are read."
        )


def joined(parts: Sequence[Recording]) -> Recording:
    """Return the recording that several files of one bag hold together."""
    if len(parts) == 1:
        return parts[0]
    topics: dict[str, Topic] = {}
    for part in parts:
        for t in part.topics.values():
            topics[t.name] = _of_channel(topics.get(t.name), t)

    def messages(names: Collection[str], first: int, last: int) -> Iterator[Message]:
        return heapq.merge(*(p.messages(names, first, last) for p in parts), key=lambda m: m.time)

    found = Recording(parts[0].path, [*topics.values()], messages)
    found.beside = tuple(record for p in parts for record in p.beside)
    return found


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
