"""The log of a growing dataset's versions: one record of fixed size for each commit. Needs no NumPy.

A growing dataset is a directory of rows that are never changed, of logs that only get longer, and of this file. Its
last valid record says how much of the rows and logs counts; what lies behind is of a commit that was not finished, and
is written over by the next one. So a reader sees the dataset as it was after one commit, whatever a writer does.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.store import files, paths

FILE = paths.COMMITS
_LAYOUT = struct.Struct("<8s21qd32s4xI")  # mark, whole numbers, time, sha256, CRC-32 of what is before it
_MARK = b"rldscom1"
BYTES = _LAYOUT.size
_MOST_ROWS = 1 << 48


@dataclass(frozen=True, slots=True)
class Commit:
    """A growing dataset after one commit. ``number`` is 0 for the empty dataset that a writer begins with.

    Attributes
    ----------
    rows, episodes : int
        Rows and records of episodes that were ever written.
    departed : int
        Entries of the log of episodes that left.
    about, sources, strings, edits : int
        Bytes of the logs of texts about episodes, of archive files, of strings, and of edits.
    videos : int
        Records of videos.
    first_row, first_episode : int
        Of the first episode that is kept or dropped.
    dropped : int
        Episodes that are hidden by an edit, and did not leave.
    kept, steps, transitions, terminated, truncated, cut, final_observations, terminated_inside : int
        Numbers of what is kept.
    moved : int
        The number of times that kept episodes were rewritten end to end.
    logs : bytes
        The sha256 of ``logs`` of the version before and of what this commit added to each log, see
        `growing.logs.chained`: so a record proves the logs up to it. Zeros in version 0.
    """

    number: int = 0
    rows: int = 0
    episodes: int = 0
    departed: int = 0
    about: int = 0
    sources: int = 0
    strings: int = 0
    videos: int = 0
    edits: int = 0
    first_row: int = 0
    first_episode: int = 0
    dropped: int = 0
    kept: int = 0
    steps: int = 0
    transitions: int = 0
    terminated: int = 0
    truncated: int = 0
    cut: int = 0
    final_observations: int = 0
    terminated_inside: int = 0
    moved: int = 0
    time: float = 0.0
    logs: bytes = bytes(32)

    @property
    def version_id(self) -> str:
        """The sha256 of the record, 64 hexadecimal digits: one content in one layout."""
        return hashlib.sha256(self.packed()).hexdigest()

    def packed(self) -> bytes:
        """Return the record."""
        head = _LAYOUT.pack(_MARK, *astuple(self), 0)[:-4]
        return head + struct.pack("<I", zlib.crc32(head))


def unpacked(record: bytes) -> Commit | None:
    """Return the commit of a record; None if the record is not whole."""
    if len(record) != BYTES or zlib.crc32(record[:-4]) != int.from_bytes(record[-4:], "little"):
        return None
    mark, *values, _ = _LAYOUT.unpack(record)
    g = Commit(*values)
    return g if mark == _MARK and _is_possible(g) else None


def _is_possible(g: Commit) -> bool:
    """Return whether the numbers agree: an episode has two rows at least, and leaves once."""
    numbers = [getattr(g, f.name) for f in fields(g) if f.name not in ("time", "logs")]
    if min(numbers) < 0 or max(numbers) >= 1 << 60 or g.rows >= _MOST_ROWS:
        return False
    counted = g.kept == g.episodes - g.departed - g.dropped and g.kept == g.terminated + g.truncated + g.cut
    in_order = g.first_episode <= g.departed and g.first_row <= g.rows and g.first_episode <= g.episodes
    held = 2 * g.episodes <= g.rows and g.steps + g.kept <= g.rows - g.first_row
    return counted and in_order and held and g.transitions <= g.steps and g.final_observations <= g.kept


def last(dataset: Path) -> Commit:
    """Return the newest version.

    Raises
    ------
    DamagedDataset
        There is no whole record.
    """
    with _opened(dataset) as log:
        count = os.fstat(log.fileno()).st_size // BYTES
        for number in range(count - 1, max(-1, count - 3), -1):  # the last one may be of a commit that was killed
            found = _read(log.fileno(), number)
            if found is not None and found.number == number:
                return found
    raise DamagedDataset(f"{dataset / FILE} has no whole record among its last.", hint="rlds verify ID")


def at(dataset: Path, number: int) -> Commit:
    """Return version ``number``.

    Raises
    ------
    DatasetNotFound
        There is no such version.
    DamagedDataset
        Its record is damaged.
    """
    newest = last(dataset)
    if not 0 <= number <= newest.number:
        raise DatasetNotFound(f"{dataset} has no version {number:,}; the newest is {newest.number:,}.")
    with _opened(dataset) as log:
        return _whole(dataset, log.fileno(), number)


def first_with(dataset: Path, rows: int, newest: int) -> Commit:
    """Return the first version that has so many ``rows``, which version ``newest`` has.

    Raises
    ------
    DamagedDataset
        A record is damaged.
    """
    with _opened(dataset) as log:
        at = partial(_whole, dataset, log.fileno())
        return at(bisect_left(range(newest), rows, key=lambda number: at(number).rows))


def all_until(dataset: Path, number: int) -> list[Commit]:
    """Return versions 0 to ``number``.

    Raises
    ------
    DamagedDataset
        A record is missing or damaged.
    """
    with _opened(dataset) as log:
        data = os.pread(log.fileno(), (number + 1) * BYTES, 0)
    found = []
    for k in range(number + 1):
        g = unpacked(data[k * BYTES : (k + 1) * BYTES])
        if g is None or g.number != k:
            raise DamagedDataset(f"{dataset / FILE}: record {k:,} is damaged.", hint="rlds verify ID")
        found.append(g)
    return found


def _opened(dataset: Path) -> Any:
    try:
        return files.open_regular(dataset / FILE)
    except OSError as e:
        raise DamagedDataset(f"{dataset / FILE} cannot be read: {e.strerror}.", hint="rlds verify ID") from e


def _whole(dataset: Path, descriptor: int, number: int) -> Commit:
    found = _read(descriptor, number)
    if found is None or found.number != number:
        raise DamagedDataset(f"{dataset / FILE}: record {number:,} is damaged.", hint="rlds verify ID")
    return found


def _read(descriptor: int, number: int) -> Commit | None:
    return unpacked(os.pread(descriptor, BYTES, number * BYTES))


def counts_of(g: Commit) -> Mapping[str, int]:
    """Return the counts for a manifest."""
    return {
        "rows": g.rows - g.first_row,
        "episodes": g.kept,
        "steps": g.steps,
        "transitions": g.transitions,
        "terminated": g.terminated,
        "truncated": g.truncated,
        "cut": g.cut,
        "final_observations": g.final_observations,
        "terminated_inside": g.terminated_inside,
    }
