"""The logs of a growing dataset: episodes, digests, departures, texts, edits; and the locks of writers and readers.

Every log only gets longer. A version says how much of each counts.

Locks are of the operating system, and end with the process that holds them, however it ends:

=============  =====================  =========================================================================
file           kind                   guarantees
=============  =====================  =========================================================================
``writers``    flock                  one writer, or several that all share; a second one is refused at once
``commit``     flock, exclusive       commits come one after the other, and see all those before
``readers``    OFD lock on byte g     what version g has is not freed while a process here holds it, or a tag names it
=============  =====================  =========================================================================

On one machine all of it holds, on any local file system. On NFS it depends on the mount: with locks that the server
keeps (NFSv4, without ``local_lock`` and ``nolock``), writers of several machines exclude each other, and holds are
seen. Rows that another machine writes may be read from an old page of the cache there, so open a dataset on another
machine after its writers were closed, or write and read on one machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import flock
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.store import files
from rlds_cli.store.commits import Commit
from rlds_cli.store.digests import Digests
from rlds_cli.store.history import History
from rlds_cli.store.manifest import StoredField
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.ted import TERMINATED, Field

EPISODES, DIGESTS, DEPARTED, ABOUT, SOURCES, STRINGS, VIDEOS, EDITS = ALL = tuple(
    f"{name}.log" for name in ("episodes", "digests", "departed", "about", "sources", "strings", "videos", "edits")
)
LOOKED_UP = (EPISODES, DIGESTS)  # which selections give second names
_RECORD: list[Any] = [
    *((name, "<i8") for name in ("start", "length", "num_observed", "num_transitions", "row")),
    *(("seed", "<u8"), ("total_reward", "<f8"), ("num_done", "<i8"), ("num_terminated", "<i8")),
    *(("about", "<i8"), ("about_bytes", "<i4"), ("source", "<i4")),
    *(("end", "u1"), ("has_seed", "?"), ("protected", "?"), ("open", "?"), ("born", "<u4")),
    ("id", "u1", (16,)),
]  # 112 bytes
VIDEO_RECORD = np.dtype([("field", "<i8"), ("span", "<i8", (2,)), ("sha256", "u1", (32,))])
_MOST_BYTES = 1 << 60  # of encoded frames of a field
_TOGETHER = 1 << 12  # versions whose parts of the logs are read at once
DIGEST = 32  # bytes of the digest of an episode of one field
FREED = "freed"
HINT = "rlds verify ID shows all damage"


def encoded(fields: Iterable[Field | StoredField]) -> list[str]:
    """Return the names of the fields of encoded frames, sorted."""
    return sorted(f.name for f in fields if f.kind == "frames")


@cache
def episode(frames: int) -> np.dtype[np.void]:
    """Return the type of a record of an episode, in a dataset with so many fields of encoded ``frames``.

    For each of them, in the order of `encoded`, the record has the first byte of the episode's frames, and the byte
    behind them: ``frames`` [fields, 2]. Those of videos overlap where episodes share one, see `growing.films`.
    """
    return np.dtype([*_RECORD, ("frames", "<i8", (frames, 2))])


def read_episodes(dataset: Path, first: int, stop: int, frames: int) -> npt.NDArray[np.void]:
    """Read the records of episodes [first, stop) of a dataset with so many fields of encoded ``frames``."""
    record = episode(frames)
    return np.frombuffer(read_part(dataset / EPISODES, first * record.itemsize, stop * record.itemsize), record)


def read_digests(dataset: Path, first: int, stop: int, fields: int) -> Digests:
    """Read the digests of episodes [first, stop) [episodes, fields, 32], whose fields are sorted by name."""
    width = fields * DIGEST
    return np.frombuffer(read_part(dataset / DIGESTS, first * width, stop * width), np.uint8).reshape(
        -1, fields, DIGEST
    )


def sizes(g: Commit, fields: Sequence[Field | StoredField]) -> dict[str, int]:
    """Return the bytes of each log that belong to a version of a dataset with these fields."""
    return {
        EPISODES: g.episodes * episode(len(encoded(fields))).itemsize,
        DIGESTS: g.episodes * len(fields) * DIGEST,
        DEPARTED: g.departed * 8,
        ABOUT: g.about,
        SOURCES: g.sources,
        STRINGS: g.strings,
        VIDEOS: g.videos * VIDEO_RECORD.itemsize,
        EDITS: g.edits,
    }


def made(g: Commit) -> dict[str, bytes]:
    """Return the small files of a version besides its logs: they change in place, and a copy gets its own."""
    return {FREED: 2 * g.departed.to_bytes(8, "little"), READERS: b"", WRITERS: b"", COMMIT: b""}


def chained(before: Commit, added: Iterable[bytes | memoryview]) -> bytes:
    """Return `Commit.logs` of a commit that adds these bytes to the logs, in the order of `ALL`."""
    h = hashlib.sha256(before.logs)
    for data in added:
        h.update(data)
    return h.digest()


def broken(dataset: Path, records: Sequence[Commit], fields: Sequence[Field | StoredField]) -> int | None:
    """Return the first version whose part of the logs is not what was written; None if all are.

    Parameters
    ----------
    records : sequence of Commit
        All, from version 0 on.
    """
    for first in range(0, len(records) - 1, _TOGETHER):
        part = records[first : first + _TOGETHER + 1]
        ends = [sizes(g, fields) for g in part]
        found = {name: memoryview(read_part(dataset / name, ends[0][name], ends[-1][name])) for name in ALL}
        for before, g, a, b in zip(part, part[1:], ends, ends[1:], strict=False):
            added = (found[name][a[name] - ends[0][name] : b[name] - ends[0][name]] for name in ALL)
            if chained(before, added) != g.logs:
                return g.number
    return None


def read_departed(dataset: Path, count: int, first: int = 0, *, episodes: int = 1 << 62) -> IntArray:
    """Read the numbers of episodes that left, in the order in which they did.

    Raises
    ------
    DamagedDataset
        The log is shorter, or names an episode that is not among the first so many ``episodes``.
    """
    found = np.frombuffer(read_part(dataset / DEPARTED, first * 8, count * 8), "<i8")
    if len(found) and not 0 <= found.min() <= found.max() < episodes:
        raise DamagedDataset(f"{dataset / DEPARTED} names an episode that is not there.", hint=HINT)
    return found


def read_part(file: Path, first: int, stop: int) -> bytes:
    """Read bytes [first, stop) of a log.

    Raises
    ------
    DamagedDataset
        It is shorter.
    """
    if first >= stop:
        return b""
    if first < 0:
        raise DamagedDataset(f"{file} has nothing at {first:,}.", hint=HINT)
    try:
        with files.open_regular(file) as log:
            _check_whole(log.fileno(), file, first, stop)
            parts: list[bytes] = []
            while first < stop:
                parts.append(os.pread(log.fileno(), stop - first, first))
                if not parts[-1]:
                    raise DamagedDataset(f"{file} ends early.", hint=HINT)
                first += len(parts[-1])
            return parts[0] if len(parts) == 1 else b"".join(parts)
    except OSError as e:
        raise DamagedDataset(f"{file} cannot be read: {e.strerror}.", hint=HINT) from e


def check_there(dataset: Path, episodes: int, frames: int) -> None:
    """Raise DamagedDataset unless the log has records of so many episodes: memory is then taken for them."""
    if episodes:
        with files.open_regular(dataset / EPISODES) as log:
            _check_whole(log.fileno(), dataset / EPISODES, 0, episodes * episode(frames).itemsize)


def _check_whole(descriptor: int, file: Path, first: int, stop: int) -> None:
    size = os.fstat(descriptor).st_size
    if size < stop:
        raise DamagedDataset(f"{file} has {size:,} bytes; {stop:,} expected.", hint=HINT)
    if os.lseek(descriptor, first, os.SEEK_HOLE) < stop:  # what was written has none; a stranger's would cost nothing
        raise DamagedDataset(f"{file} has holes.", hint=HINT)


def read_lines(file: Path, first: int, stop: int) -> list[Any]:
    """Read the JSON lines in bytes [first, stop) of a log; raises DamagedDataset."""
    try:
        return [documents.loads(line) for line in read_part(file, first, stop).split(b"\n") if line]
    except ValueError as e:
        raise DamagedDataset(f"{file} cannot be read: {e}.", hint=HINT) from e


def read_strings(dataset: Path, first: int, stop: int) -> list[tuple[str, str]]:
    """Read field and text of the strings in bytes [first, stop) of their log; raises DamagedDataset."""
    found = read_lines(dataset / STRINGS, first, stop)
    for line in found:
        if not isinstance(line, list) or len(line) != 2 or not all(isinstance(part, str) for part in line):
            raise DamagedDataset(f"{dataset / STRINGS}: {str(line)[:80]} is not a text of a field.", hint=HINT)
    return [(name, text) for name, text in found]


def read_videos(dataset: Path, first: int, stop: int, fields: int) -> npt.NDArray[np.void]:
    """Read the records [first, stop) of videos, in a dataset with so many ``fields`` of encoded frames.

    A record has the number of the field among these, the bytes of the video [first, stop) among all that its field ever
    had, and the sha256 of the video.

    Raises
    ------
    DamagedDataset
        The log is shorter, or a record is not possible.
    """
    width = VIDEO_RECORD.itemsize
    found = np.frombuffer(read_part(dataset / VIDEOS, first * width, stop * width), VIDEO_RECORD)
    field, (begin, end) = found["field"], found["span"].T
    wrong = (field < 0) | (field >= fields) | (begin < 0) | (end < begin) | (end > _MOST_BYTES)
    if wrong.any():
        number = first + int(np.argmax(wrong))
        raise DamagedDataset(f"{dataset / VIDEOS}: record {number:,} is not possible.", hint=HINT)
    return found


_MEMBERS = {"group", "options", "splits", "extra"}


def about_of(line: bytes, dataset: Path) -> Mapping[str, Any]:
    """Read what is known of an episode: ``group``, ``options``, ``splits``, ``extra``; raises DamagedDataset."""
    try:
        found = documents.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("extra", {}), dict) or found.keys() - _MEMBERS:
            raise ValueError("no description of an episode")
        splits, extra = found.get("splits", []), found.get("extra", {})
        texts = [found.get("group", ""), found.get("options", ""), *(splits if isinstance(splits, list) else [None])]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a group, options or splits that are not texts")
        StoredColumn.check_names(extra, "the episode")
        if not all(isinstance(v, bool | int | float | str) for v in extra.values()):
            raise ValueError("an episode column without a single value")
    except (ValueError, InvalidEpisode) as e:
        raise DamagedDataset(f"{dataset / ABOUT} cannot be read: {e}.", hint=HINT) from e
    return found


def check_episodes(
    e: npt.NDArray[np.void], first: tuple[int, int], rows: int, sources: int, where: Path
) -> tuple[int, int]:
    """Refuse records of episodes that cannot be: outside of the rows, or with numbers that do not fit each other.

    Episodes share neither rows nor bytes of `ABOUT`: else a short log would have much to say.

    Parameters
    ----------
    e : records [episodes]
    first : (int, int)
        The row, and the byte of `ABOUT`, before which they have nothing.
    rows, sources : int
        Rows and archive files that there are.
    where : Path
        Of the dataset, for errors.

    Returns
    -------
    (int, int)
        ``first`` of the records that follow.

    Raises
    ------
    DamagedDataset
        Names the first such episode.
    """
    start, length, end = e["start"], e["length"], e["end"]
    observed, transitions = e["num_observed"] - length, length - e["num_transitions"]
    about, told = e["about"], e["about_bytes"]
    wrong = (start < first[0]) | (length < 1) | (length > rows) | (start + length + 1 > rows)
    wrong |= (observed >> 1 != 0) | (transitions >> 1 != 0) | (end < TERMINATED) | (end > TERMINATED + 2)
    wrong |= start > rows  # sums of larger numbers would overflow
    wrong[1:] |= start[1:] < start[:-1] + length[:-1] + 1
    wrong |= (about < first[1]) | (told < 0) | (about > 1 << 62)
    wrong[1:] |= about[1:] < about[:-1] + told[:-1]
    edges = e["frames"]  # neither first nor last bytes fall from episode to episode; videos may be shared
    unordered = (edges < 0) | (edges > _MOST_BYTES) | (edges[..., :1] > edges[..., 1:])
    unordered[1:] |= edges[1:] < edges[:-1]
    wrong |= unordered.any((1, 2))
    wrong |= (e["source"] < 0) | (e["source"] >= max(1, sources))
    if wrong.any():
        raise DamagedDataset(f"{where / EPISODES}: episode {int(np.argmax(wrong)):,} is not possible.", hint=HINT)
    return (int(start[-1] + length[-1] + 1), int(about[-1] + told[-1])) if len(e) else first


def freed(dataset: Path) -> tuple[int, int]:
    """Return two numbers of departures, in their order: rows of the first so many may be gone, and are gone.

    A writer raises the first number before it asks which versions are held, and lowers it to what may go; a reader
    holds a version first, and then compares it with the first number. So one of the two sees the other.
    """
    return int.from_bytes((found := _freed(dataset))[:8], "little"), int.from_bytes(found[8:], "little")


def _freed(dataset: Path) -> bytes:
    try:
        with files.open_regular(dataset / FREED) as file:
            found = os.pread(file.fileno(), 17, 0)
    except OSError as e:
        raise DamagedDataset(f"{dataset / FREED} cannot be read: {e.strerror}.", hint=HINT) from e
    if len(found) != 16:
        raise DamagedDataset(f"{dataset / FREED} has another size than 16 bytes.", hint=HINT)
    return found


def say_freed(dataset: Path, may_be: int, are: int) -> None:
    """Write the numbers of `freed`."""
    append(dataset / FREED, 0, may_be.to_bytes(8, "little") + are.to_bytes(8, "little"))


# -- locks

_FLOCK = struct.Struct("hhqqi4x")
_SET, _GET = getattr(fcntl, "F_OFD_SETLK", None), getattr(fcntl, "F_OFD_GETLK", None)
READERS, WRITERS, COMMIT = "readers", "writers", "commit"
_MOST = 1 << 62


def _wanted(kind: int, first: int, count: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, first, count, 0)


class VersionLease:
    """A reader's hold on a version: what it reads is not freed. Ends with the object, or the process.

    It is a lock on one byte of an empty file, which needs no right to write. Without such locks (macOS), nothing is
    freed by itself.
    """

    def __init__(self, dataset: Path, version: int) -> None:
        with files.open_regular(dataset / READERS) as file:
            descriptor = os.dup(file.fileno())
        self._end = weakref.finalize(self, os.close, descriptor)
        self._end.atexit = False
        if _SET is not None:
            with suppress(OSError):  # a file system without locks: `rlds gc` there asks first
                fcntl.fcntl(descriptor, _SET, _wanted(fcntl.F_RDLCK, version, 1))

    def release(self) -> None:
        """End the hold."""
        self._end()


def oldest_held(dataset: Path, newest: int) -> int:
    """Return the oldest version up to ``newest`` that a reader holds or that has a tag; ``newest`` without one."""
    if _GET is None:
        return 0
    with safe_files.updating(dataset / READERS) as file:
        found = min([newest, *History(dataset).tags.values()])
        while found > 0:
            answer = fcntl.fcntl(file.fileno(), _GET, _wanted(fcntl.F_WRLCK, 0, found))
            kind, _, first, _, _ = _FLOCK.unpack(answer[: _FLOCK.size])
            if kind == fcntl.F_UNLCK:
                break
            found = first
        return found


@contextmanager
def committing(dataset: Path) -> Iterator[None]:
    """Hold the lock of commits."""
    descriptor = safe_files.open_own(dataset / COMMIT, os.O_RDWR | os.O_CREAT)
    try:
        flock(descriptor, dataset / COMMIT)
        yield
    finally:
        os.close(descriptor)


def lock_writers(dataset: Path, *, shared: bool) -> int | None:
    """Return the descriptor of the lock of writers; None if a writer that does not share is at work, or others are."""
    descriptor = safe_files.open_own(dataset / WRITERS, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def append(file: Path, at: int, data: bytes) -> None:
    """Write bytes at a place of a log; what is behind is of a commit that was not finished."""
    if data:
        with safe_files.updating(file) as log:
            disk.write_at(log.fileno(), at, data)


def sync(descriptor: int) -> None:
    """Wait until the content of a file is on the disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync
