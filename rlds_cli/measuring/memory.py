"""What the kernel says about the memory of this process. Linux; elsewhere the figures are None."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

_STATUS, _SMAPS, _MAPS = Path("/proc/self/status"), Path("/proc/self/smaps"), Path("/proc/self/maps")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of this process.

    ``anonymous`` (RssAnon) belongs to it alone; ``mapped`` (RssFile) are pages of files, which processes share;
    ``proportional`` (Pss) counts each page divided by the number of processes that have it.
    """

    anonymous: int | None
    mapped: int | None
    proportional: int | None

    def beyond(self, before: Memory) -> Memory:
        """What there is more than ``before``."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Memory(*(None if a is None or b is None else max(0, a - b) for a, b in pairs))


def memory(libraries: Collection[Path] = ()) -> Memory:
    """Read the figures of now; of the files of ``libraries`` nothing is counted as proportional."""
    status = dict(_sizes(_lines(_STATUS)))
    return Memory(status.get("RssAnon"), status.get("RssFile"), _proportional(libraries))


def _proportional(libraries: Collection[Path]) -> int | None:
    """Pss: every mapping has a line such as ``7f1c-7f1d r--p 0 fe:01 812  /a/file``, then ``Pss: 4 kB`` and others."""
    lines = _lines(_SMAPS)
    total, counted = 0, True
    for line in lines:
        parts = line.split(maxsplit=5)
        if not parts[0].endswith(":"):
            counted = len(parts) < 6 or Path(parts[5]) not in libraries
        elif parts[0] == "Pss:" and counted:
            total += int(parts[1]) * 1024
    return total if lines else None


def _sizes(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Lines such as ``RssAnon:   812 kB``, in bytes."""
    for parts in map(str.split, lines):
        if len(parts) == 3 and parts[2] == "kB":
            yield parts[0].rstrip(":"), int(parts[1]) * 1024


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def faults() -> tuple[int, int]:
    """Page faults of this process so far: major ones, which waited for the disk, and minor ones."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt, used.ru_minflt


def mapped_files() -> set[Path]:
    """The files that this process has mapped."""
    names = (parts[5] for parts in (line.split(maxsplit=5) for line in _lines(_MAPS)) if len(parts) == 6)
    return {Path(name) for name in names if name.startswith("/") and not name.endswith(" (deleted)")}


def evict(file: Path) -> None:
    """Drop a file from the page cache: what of it is clean and mapped by no process.

    Does nothing where the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
