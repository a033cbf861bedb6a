"""Journals: which items of interrupted work are finished; and what several processes write down, which nobody replaces.

::

    {"key": "9c0f..."}          identifies the work
    {"part": 0, ...}            a record of each finished item
    {"part": 2, ...
                                the last line is torn if the process was killed
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.base.files import disk, safe
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import flock
from rlds_cli.errors import DamagedDataset


class Journal:
    """A file of JSON lines, which is valid for one ``key``; one process at a time writes it."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    def records(self) -> list[Any] | None:
        """Return the records of finished items; None if the file is missing, damaged, or of another key.

        Another process may be writing the file.

        Raises
        ------
        NoPermission
            The file is a link, or not a regular file.
        """
        try:
            with safe.reading(self.path) as file:
                *lines, _ = file.read().split(b"\n")  # the last one is empty, or torn
            head, *records = map(json.loads, lines)
        except (OSError, ValueError):
            return None
        return records if head == {"key": self.key} else None

    def resume(self) -> list[Any]:
        """Return the records, and cut off a torn last line; replace a file that is not valid by an empty journal."""
        records = self.records()
        if records is None:
            safe_files.make(self.path.parent)
            safe.replace_text(self.path, json.dumps({"key": self.key}) + "\n")
            return []
        with safe.updating(self.path) as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        return records

    def add(self, record: Any) -> None:
        """Append a record, and write it through to the disk; `resume` comes first."""
        with os.fdopen(safe.open_own(self.path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Entries:
    """Records of a journal, and the revision behind them: `SharedJournal.since` reads on from it."""

    records: list[Any]
    revision: int


class SharedJournal:
    """A file of JSON lines for one ``key``, which several processes may append to, and which is never replaced.

    A line that a killed process or a full disk has left unfinished loses only itself. A revision is a place in the
    file: 0 is its begin.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._head = json.dumps({"key": key}).encode() + b"\n"

    def append(self, records: Sequence[Any]) -> int:
        """Append records, all of them or none, write them through to the disk, and return the revision behind them.

        Its directory exists.

        Raises
        ------
        NoPermission
            The file is a link, or not a regular file.
        DamagedDataset
            It is a journal of another key.
        OSError
            The disk is full, or fails; nothing was appended.
        """
        data = b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in records)
        descriptor = safe.open_own(self.path, os.O_RDWR | os.O_CREAT)
        try:
            flock(descriptor, self.path)
            size = os.fstat(descriptor).st_size
            first = os.pread(descriptor, len(self._head), 0)
            if b"\n" not in first and self._head.startswith(first):  # new, or torn when it was
                size, data = 0, self._head + data
            elif first != self._head:
                raise self._foreign()
            elif os.pread(descriptor, 1, size - 1) != b"\n":  # so a torn line stays one of its own
                data = b"\n" + data
            try:
                disk.write_at(descriptor, size, data)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if not size:
            disk.sync_directory(self.path.parent)
        return size + len(data)

    def since(self, revision: int = 0) -> Entries:
        """Return the records behind a revision; all of them behind 0, and none without a file.

        Other processes may be appending. A line that is not JSON is passed over.

        Raises
        ------
        NoPermission
            The file is a link, or not a regular file.
        DamagedDataset
            It is a journal of another key.
        """
        try:
            with safe.reading(self.path) as file:
                head = file.read(len(self._head))
                if head != self._head:
                    if b"\n" in head or not self._head.startswith(head):
                        raise self._foreign()
                    return Entries([], 0)
                file.seek(first := max(revision, len(self._head)))
                data = file.read()
        except FileNotFoundError:
            return Entries([], 0)
        whole = data[: data.rfind(b"\n") + 1]
        return Entries([r for line in whole.split(b"\n") if (r := _record(line)) is not None], first + len(whole))

    def _foreign(self) -> DamagedDataset:
        return DamagedDataset(f"{self.path} is another journal than its name says.", hint="move it out of the way")


def _record(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
