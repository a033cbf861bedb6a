"""What is in a recording: the columns of its topics, found by a look at every message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from rlds_cli.archives.formats.message_leaves import NotKept, codec_of
from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.archives.formats.topics import Message, Recording
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import UnknownLayout, UnsafeArchive
from rlds_cli.ted import (
    Kind,
    Note,
)

HEAVY = 1 << 14  # bytes of a value that is an image
_SHOWN = 12  # topics that a message lists
_VARIES, _LACKING = "its values have different shapes or kinds", "not every message of the topic has it"
_NO_IMAGE = "its images are not of 8 bits, or have no readable header"
_ODD = (_VARIES, _LACKING, _NO_IMAGE)  # what a note says, too


@dataclass(frozen=True, slots=True)
class TopicColumn:
    """A leaf of the messages of a topic: its values are arrays of one shape and dtype, texts, or encoded images."""

    topic: str
    leaf: str
    dtype: str
    shape: tuple[int, ...]
    kind: Kind = "array"
    codec: str | None = None

    @property
    def key(self) -> str:
        """The name of the column: ``/joints/position``."""
        return f"{self.topic}/{self.leaf}" if self.leaf else self.topic

    @property
    def heavy(self) -> bool:
        """True for images, of which only those that steps refer to are read."""
        values = int(np.prod(self.shape, dtype=np.int64))
        return self.kind == "frames" or (self.kind == "array" and values * np.dtype(self.dtype).itemsize > HEAVY)


@dataclass(slots=True)
class Survey:
    """The columns of a recording by key, the times of each topic, and why some values are left out.

    ``wanted`` are the topics that were looked at, ``unread`` those and columns that are left out, with the reasons.
    """

    columns: dict[str, TopicColumn]
    times: dict[str, IntArray]
    notes: list[Note]
    wanted: Sequence[str]
    unread: dict[str, str]


def survey(recording: Recording, topics: Sequence[str] = ()) -> Survey:
    """Look at every message of the topics that some patterns name, all without any; images are not decoded."""
    name = recording.path.name
    wanted = [t for t in recording.topics if not topics or any(fnmatchcase(t, p) for p in topics)]
    for pattern in topics:
        if not any(fnmatchcase(t, pattern) for t in recording.topics):
            near = did_you_mean(pattern, list(recording.topics))
            raise UnknownLayout(f"{name} has no topic {pattern}.{near}", hint=f"it has {listed(recording)}")
    odd = [recording.topics[t] for t in wanted if recording.topics[t].why_not]
    notes = [Note("not-understood", f"{t.name} ({t.type}) is left out: {t.why_not}") for t in odd]
    unread = {t.name: t.why_not for t in odd}
    times: dict[str, list[int]] = {t: [] for t in wanted}
    columns: dict[str, dict[str, TopicColumn | NotKept]] = {}
    for m in recording.messages([t for t in wanted if not recording.topics[t].why_not]):
        times[m.topic].append(m.time)
        known = columns.get(m.topic)
        if known is None:
            columns[m.topic] = {leaf: _column(m.topic, leaf, value) for leaf, value in m.leaves().items()}
        elif not known or any(isinstance(c, TopicColumn) and not c.heavy for c in known.values()):
            _widen(known, m)  # images are looked at when they are read
    found: dict[str, TopicColumn] = {}
    for topic, leaves in columns.items():
        for leaf, c in leaves.items():
            key = f"{topic}/{leaf}" if leaf else topic
            if isinstance(c, NotKept):
                unread[key] = c.why
                if c.why in _ODD:
                    notes.append(Note("varies", f"{key} is left out: {c.why}"))
            elif 0 not in c.shape:
                found[key] = c
                if len(found) > MAX_COLUMNS:
                    raise UnsafeArchive(
                        f"{name} has more than {MAX_COLUMNS:,} columns; no more are read.",
                        hint="--topics names those that are wanted",
                    )
            else:
                unread[key] = "it holds no values"
    unread |= {t: "it has no messages" for t in wanted if not times[t] and t not in unread}
    return Survey(found, {t: np.array(n, np.int64) for t, n in times.items() if n}, notes, wanted, unread)


def _column(topic: str, leaf: str, value: Any) -> TopicColumn | NotKept:
    if isinstance(value, NotKept):
        return value
    if isinstance(value, str):
        return TopicColumn(topic, leaf, "str", (), "text")
    if isinstance(value, bytes):
        found = codec_of(value)
        return NotKept(_NO_IMAGE) if found is None else TopicColumn(topic, leaf, "uint8", found[1], "frames", found[0])
    return TopicColumn(topic, leaf, value.dtype.name, value.shape)


def _widen(known: dict[str, TopicColumn | NotKept], m: Message) -> None:
    """Compare the leaves of a message with the columns so far: whole numbers among others become floats."""
    leaves = m.leaves()
    for leaf, c in known.items():
        if isinstance(c, NotKept) or c.heavy:
            continue
        now = _column(m.topic, leaf, leaves.get(leaf, NotKept(_LACKING)))
        if isinstance(now, NotKept):
            known[leaf] = NotKept(_LACKING)
        elif (now.shape, now.kind) != (c.shape, c.kind):
            known[leaf] = NotKept(_VARIES)
        elif now.dtype != c.dtype:
            known[leaf] = TopicColumn(c.topic, leaf, np.result_type(now.dtype, c.dtype).name, c.shape)
    for leaf in leaves.keys() - known.keys():
        known[leaf] = leaves[leaf] if isinstance(leaves[leaf], NotKept) else NotKept(_LACKING)


def listed(recording: Recording) -> str:
    """List the topics of a recording, each with its type; of many the first."""
    names = [f"{t.name} ({t.type})" for t in recording.topics.values()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
