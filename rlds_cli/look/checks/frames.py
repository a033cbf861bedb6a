"""Checks of images and videos: steps without a frame, and frames that do not decode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.settings import cores
from rlds_cli.errors import DamagedDataset, FrameError, MissingPackage
from rlds_cli.look.checks.findings import Finding, finding
from rlds_cli.look.checks.subject import Sightings, Subject, plural
from rlds_cli.ted import Field

_ROWS_AT_ONCE = 1 << 16
_TASK, _DECODED = 512, 16  # rows of a thread, which follow each other in a video; frames that it has in memory


def frames(s: Subject) -> Iterator[Finding]:
    """Find steps, and final observations, without a frame, or with one that does not decode: they cannot be loaded."""
    encoded = [f for f in s.ds.schema.values() if f.kind == "frames"]
    for f in encoded:
        absent = Sightings(s)
        for a in range(0, len(s.rows), _ROWS_AT_ONCE):
            rows = np.arange(a, min(a + _ROWS_AT_ONCE, len(s.rows)))
            missing = rows[s.at(f.name, rows) == 0]
            if f.placement != "both":  # last rows are fillers
                missing = missing[~np.isin(missing, s.rows.final)]
            absent.add(missing)
        if absent.count:
            text = f"{f.name} has no frame at {plural(absent.count, 'step')}: they cannot be loaded"
            yield finding("no-frame", "error", text, absent.count, f.name, absent.seen)
        if math.prod(f.shape):  # images of several sizes are not loaded
            yield from _broken(s, f)


def _broken(s: Subject, f: Field) -> Iterator[Finding]:
    """Decode all frames of a field."""
    broken = Sightings(s)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            for rows in pool.map(lambda first: _undecoded(s, f, first), range(0, len(s.rows), _TASK)):
                broken.add(rows)
    except MissingPackage as e:
        yield finding("not-decoded", "note", f"{f.name} was not decoded: {e.message.rstrip('.')}", 1, f.name)
    if broken.count:
        frames = plural(broken.count, "frame", "does", "do")
        text = f"{frames} not decode in {f.name}: {'it' if broken.count == 1 else 'they'} cannot be loaded"
        yield finding("broken-frame", "error", text, broken.count, f.name, broken.seen)


def _undecoded(s: Subject, f: Field, first: int) -> IntArray:
    """Return the rows from ``first`` on, as many as a thread takes, whose frames do not decode."""
    found = []
    for a in range(first, min(first + _TASK, len(s.rows)), _DECODED):
        rows = np.arange(a, min(a + _DECODED, first + _TASK, len(s.rows)))
        rows = rows[s.at(f.name, rows) > 0]
        if not _decode(s, f, rows):
            found += [row for row in rows.tolist() if not _decode(s, f, np.array([row]))]
    return np.array(found, np.int64)


def _decode(s: Subject, f: Field, rows: IntArray) -> bool:
    """Return whether frames decode."""
    try:
        s.rows.values(f.name, rows)
    except (FrameError, DamagedDataset):
        return False
    return True
