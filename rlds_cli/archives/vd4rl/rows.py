"""Columns of rows that hold what led to them, as one TED episode; and what is wrong with files, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rlds_cli.archives import CHUNK_BYTES, Archive
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Chunk,
    Column,
    EpisodeData,
    Field,
    Note,
    lay_out,
)

DISCOUNT = "next/discount"
STATE = "state/"
SHOWN = 20  # names of files in a message or a note
RECORDED = 1000  # and in the manifest
PART_BYTES = 128 << 20

Kind = tuple[str, tuple[int, ...]]  # dtype and shape of a row


def schema(kinds: Mapping[str, Kind]) -> tuple[Field, ...]:
    """The fields, sorted by name; ``kinds`` are those of the archive's own per-row columns, by field name."""
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds.items():
        if name.startswith("next/"):
            fields.append(Field(name, dtype, (), "next"))
        else:
            fields.append(Field(name, dtype, shape, "root" if name == "action" else "both"))
    return tuple(sorted(fields, key=lambda f: f.name))


def episode(columns: Mapping[str, Array], end: int, terminal: Array, source: int, row: int) -> EpisodeData:
    """One episode of T+1 rows of the archive; ``terminal`` [T+1] says which rows the environment ended at."""
    length = len(terminal) - 1
    found: dict[str, Column] = {}
    for name, rows in columns.items():
        late = name == "action" or name.startswith("next/")
        found[name] = (rows.reshape(len(rows)) if name.startswith("next/") else rows)[1:] if late else rows
    found[FLAGS[0]] = terminal[1:].astype(bool)
    found[FLAGS[1]] = np.arange(length) == (length - 1 if end != TERMINATED else -1)
    return EpisodeData(found, length, end, source, row)


def ending(*, last: bool, terminal: bool) -> int:
    """How an episode ends by the flags of its last row."""
    return TERMINATED if terminal else TRUNCATED if last else CUT


def remarks(columns: Mapping[str, Array], terminal: Array, where: str) -> Iterator[Note]:
    """What is odd about one episode."""
    if np.any(columns["action"][0]) or np.any(columns.get(REWARD, np.zeros(1))[0]):
        yield Note("first-action", "first rows have an action or a reward that led to them; it is left out", 1, where)
    if inside := int(np.count_nonzero(terminal[:-1])):
        yield Note("terminated-inside", "steps are terminated and their episode goes on", inside, where)


def chunks(fields: Sequence[Field], episodes: Iterable[tuple[EpisodeData, tuple[Note, ...]]]) -> Iterator[Chunk]:
    """As many whole episodes to a chunk as fit."""
    width = sum(f.row_bytes for f in fields)
    todo: list[EpisodeData] = []
    notes: list[Note] = []
    for e, odd in episodes:
        if todo and (e.length + 1 + sum(t.length + 1 for t in todo)) * width > CHUNK_BYTES:
            yield _chunk(fields, todo, notes)
            todo, notes = [], []
        todo.append(e)
        notes += odd
    if todo:
        yield _chunk(fields, todo, notes)


def _chunk(fields: Sequence[Field], todo: Sequence[EpisodeData], notes: Sequence[Note]) -> Chunk:
    chunk = lay_out(fields, todo)
    chunk.notes = tuple(notes)
    return chunk


def leave_out(archive: Archive, bad: Mapping[int, str]) -> list[Note]:
    """A note that names the files left out, when that was asked for.

    Raises
    ------
    CorruptArchive
        It was not.
    """
    if not bad:
        return []
    named = "; ".join(f"{archive.name_of(i)}: {why}" for i, why in [*bad.items()][:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    if not archive.skip_bad or len(bad) == len(archive.files):
        hint = "--skip-bad leaves them out" if len(bad) < len(archive.files) else "fetch or write them again"
        raise CorruptArchive(f"{len(bad)} of {len(archive.files)} files cannot be read. {named}{more}.", hint=hint)
    first = archive.name_of(next(iter(bad)))
    return [Note("bad-files", f"files were left out. {named}{more}", len(bad), first)]


def left_out(archive: Archive, bad: Mapping[int, str]) -> dict[str, str]:
    """The same for the manifest: file -> what is wrong with it."""
    return {archive.name_of(i): why for i, why in [*bad.items()][:RECORDED]}
