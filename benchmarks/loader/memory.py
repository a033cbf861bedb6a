"""What a process takes, and what the disk and the kernel do for it."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rlds_cli.loader.bench.worker import evict, faults, mapped_files, memory

__all__ = ["cool", "faults", "memory", "read_ahead", "resident"]

MIB = 1 << 20


def cool(files: Iterable[Path]) -> None:
    """Drop files from the page cache. What some process still maps stays: close first.

    Raises
    ------
    RuntimeError
        More than a twentieth stayed.
    """
    gc.collect()
    for file in files:
        with file.open("rb") as f:
            os.fsync(f.fileno())
        evict(file)
        share = resident(file)
        if share > 0.05:
            raise RuntimeError(f"{share:.0%} of {file.name} stayed in the page cache")


def resident(file: Path) -> float:
    """Share of a file that is in the page cache."""
    if not file.stat().st_size:
        return 0.0
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        pages = np.zeros(-(-len(content) // mmap.PAGESIZE), np.uint8)
        start = ctypes.c_char.from_buffer(content)
        libc.mincore(
            ctypes.c_void_p(ctypes.addressof(start)),
            ctypes.c_size_t(len(content)),
            pages.ctypes.data_as(ctypes.c_void_p),
        )
        del start
    return float((pages & 1).mean())


def below(directory: Path) -> list[Path]:
    """The files of a directory."""
    return [f for f in directory.rglob("*") if f.is_file()]


def open_data(directory: Path) -> set[Path]:
    """What this process maps of a directory."""
    return {f for f in mapped_files() if f.is_relative_to(directory.resolve())}


def read_ahead(directory: Path) -> str:
    """``read_ahead_kb`` of the disk below a directory; a question mark where nobody says."""
    device = directory.stat().st_dev
    name = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in (f"{name}/queue", f"{name}/../queue"):
        try:
            return Path(place, "read_ahead_kb").read_text().strip()
        except OSError:
            continue
    return "?"
