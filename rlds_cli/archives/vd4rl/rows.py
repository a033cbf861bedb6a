"""Rows of V-D4RL, which hold the action that led to them, as TED episodes; and messages about damaged files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rlds_cli.archives import Archive
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Column,
    EpisodeData,
    Field,
    Note,
)

DISCOUNT = "next/discount"
STATE = "state/"
SHOWN = 20  # names of files in a message or a note
RECORDED = 1000  # and in the manifest
PART_BYTES = 128 << 20

Kind = tuple[str, tuple[int, ...]]  # dtype and shape of a row


def schema(kinds: Mapping[str, Kind]) -> tuple[Field, ...]:
    """Make the fields, sorted by name; ``kinds`` are the kinds of the archive's per-row columns, by field."""
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds.items():
        if name.startswith("next/"):
            fields.append(Field(name, dtype, (), "next"))
        else:
            fields.append(Field(name, dtype, shape, "root" if name == "action" else "both"))
    return tuple(sorted(fields, key=lambda f: f.name))


def episode(columns: Mapping[str, Array], end: int, terminal: Array, source: int, row: int) -> EpisodeData:
    """Make an episode of T+1 rows of the archive; ``terminal`` [T+1] marks rows at which the environment ended."""
    length = len(terminal) - 1
    found: dict[str, Column] = {}
    for name, rows in columns.items():
        late = name == "action" or name.startswith("next/")
        found[name] = (rows.reshape(len(rows)) if name.startswith("next/") else rows)[1:] if late else rows
    found[FLAGS[0]] = terminal[1:].astype(bool)
    found[FLAGS[1]] = np.arange(length) == (length - 1 if end != TERMINATED else -1)
    return EpisodeData(found, length, end, source, row)


def ending(*, last: bool, terminal: bool) -> int:
    """Return how an episode ends, by the flags of its last row."""
    return TERMINATED if terminal else TRUNCATED if last else CUT


def remarks(columns: Mapping[str, Array], terminal: Array, where: str) -> Iterator[Note]:
    """Make the notes about one episode."""
    if np.any(columns["action"][0]) or np.any(columns.get(REWARD, np.zeros(1))[0]):
        yield Note(
            "first-action", "first rows have an action or a reward of the step before them; it is left out", 1, where
        )
    if inside := int(np.count_nonzero(terminal[:-1])):
        yield Note("terminated-inside", "steps are terminated inside an episode", inside, where)


def leave_out(archive: Archive, bad: Mapping[int, str]) -> list[Note]:
    """Make a note that names the damaged files, if the user wants them left out.

    Raises
    ------
    CorruptArchive
        The user does not.
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
    """Return the damaged files with their faults, for the manifest."""
    return {archive.name_of(i): why for i, why in [*bad.items()][:RECORDED]}
