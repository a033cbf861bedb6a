"""Recordings of topics that each have a rate of their own: MCAP files, bags, and JSON lines with a topic and a time.

A message is a mapping of leaves by name (`message_leaves`). What a file holds is decoded by the definitions that it
has: CDR of ROS 2, ROS 1, Protobuf or JSON (`message_schemas`), each channel by its own encoding. A line of JSON
is a message: ``{"topic": "arm", "time": 0.02, "q": [...], "v": [...]}`` has the leaves q and v.

The time of a message is when it was recorded, which is when a policy could know it (``log_time`` of MCAP).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rlds_cli.archives.formats import rerun_files, ros1_bags, ros2_databases
from rlds_cli.archives.formats.message_leaves import leaves_of
from rlds_cli.archives.formats.rerun_files import is_rerun
from rlds_cli.archives.formats.ros1_bags import is_bag
from rlds_cli.archives.formats.ros2_databases import is_database
from rlds_cli.archives.formats.text_tables import JSON_LINES
from rlds_cli.archives.formats.topics import (
    MAX_RECORD,
    MAX_TOPICS,
    SECOND,
    Channel,
    Message,
    Recording,
    Schema,
    Topic,
    decoders_of,
    joined,
    readable,
)
from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, MissingPackage

MAGIC = b"\x89MCAP0\r\n"
TOPIC, TIMES = "topic", ("time", "timestamp", "t")  # keys of a line of JSON; times are seconds
MAX_LINE = 32 << 20
_MAX_METADATA = 1 << 16  # lines of metadata.yaml that are read


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
    return path.is_file() and (
        is_mcap(path) or is_bag(path) or is_database(path) or is_rerun(path) or is_topic_lines(path)
    )


@contextmanager
def open_recording(paths: Path | Sequence[Path]) -> Iterator[Recording]:
    """Open an MCAP file, a bag, an export to Rerun, or JSON lines; several files are those of one bag.

    Raises
    ------
    MissingPackage
        ``mcap`` or its decoder is not installed.
    CorruptArchive
        A file is damaged.
    """
    with ExitStack() as stack:
        parts = []
        for path in [paths] if isinstance(paths, Path) else paths:
            child.note(path)
            parts.append(_open(path, stack))
        yield joined(parts)


def _open(path: Path, stack: ExitStack) -> Recording:
    if is_mcap(path):
        return _mcap(path, stack.enter_context(path.open("rb")))
    if is_bag(path):
        return ros1_bags.read(path, stack.enter_context(path.open("rb")))
    if is_database(path):
        return ros2_databases.read(path, stack)
    if is_rerun(path):
        return rerun_files.read(path)
    return _lines(path)


def files_of_bag(metadata: Path) -> list[str]:
    """Return the names of the files of a bag in their order, which rosbag2 writes to ``metadata.yaml`` beside them.

    Only the list of files is read, line by line: ``relative_file_paths`` and a line with a name for each.
    """
    names: list[str] = []
    within = False
    with metadata.open(errors="replace") as f:
        for line in islice(f, _MAX_METADATA):
            said = line.strip()
            if within and said.startswith("- "):
                names.append(said[2:].strip().strip("\"'"))
            else:
                within = said == "relative_file_paths:"
    return names


# -- MCAP


def _mcap(path: Path, file: Any) -> Recording:
    try:
        from mcap.reader import SeekingReader
    except ImportError as e:
        raise MissingPackage(f"{path.name} is an MCAP file.", hint="pip install 'rlds-cli[ros]'") from e
    reader = SeekingReader(file, validate_crcs=True, record_size_limit=MAX_RECORD)
    with readable(path, hint=f"mcap recover {path.name}"):
        summary = reader.get_summary()
    if summary is None or not summary.channels:
        raise CorruptArchive(
            f"{path.name} has no index of its messages: it was not finished.", hint=f"mcap recover {path.name}"
        )
    schemas = {
        n: Schema(id=n, name=of.name, encoding=of.encoding, data=bytes(of.data)) for n, of in summary.schemas.items()
    }
    channels = [
        Channel(id=n, topic=c.topic, encoding=c.message_encoding, schema=schemas.get(c.schema_id))
        for n, c in summary.channels.items()
    ]
    decoders = decoders_of(path, channels)

    def messages(names: Collection[str], first: int, last: int) -> Iterator[Message]:
        with readable(path, hint=f"mcap recover {path.name}"):
            for _, channel, m in reader.iter_messages(sorted(names), starting_at=first, ending_at=last):
                if channel.id in decoders.of:
                    yield decoders.message(path, channel.id, channel.topic, m.log_time, m.data)

    found = Recording(path, decoders.topics, messages)
    records = {"attachment": summary.attachment_indexes, "metadata": summary.metadata_indexes}
    found.beside = tuple((kind, str(record.name)) for kind, of in records.items() for record in of)
    if 0 < len(summary.metadata_indexes) <= MAX_TOPICS:
        with readable(path, hint=f"mcap recover {path.name}"):
            found.metadata = {str(m.name): dict(m.metadata) for m in reader.iter_metadata()}
    return found


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
