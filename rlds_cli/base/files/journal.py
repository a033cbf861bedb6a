"""Journals: which items of interrupted work are finished.

::

    {"key": "9c0f..."}          identifies the work
    {"part": 0, ...}            a record of each finished item
    {"part": 2, ...
                                the last line is torn if the process was killed
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlds_cli.base.files import safe
from rlds_cli.base.files import safe as safe_files


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
