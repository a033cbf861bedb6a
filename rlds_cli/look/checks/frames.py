"""Checks of images and videos: steps without a frame, videos with too few, and frames that do not decode."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.settings import cores
from rlds_cli.errors import DamagedDataset, FrameError, MissingPackage
from rlds_cli.look.checks.ages import AGES
from rlds_cli.look.checks.findings import Finding, finding
from rlds_cli.look.checks.subject import Sightings, Subject, plural
from rlds_cli.ted import VIDEO, Field

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
        if f.codec == VIDEO:
            yield from _lacking(s, f)
        if math.prod(f.shape):  # images of several sizes are not loaded
            yield from _broken(s, f)


def _lacking(s: Subject, f: Field) -> Iterator[Finding]:
    """Find steps that show the frame of the step before, since their video has fewer frames than rows.

    A camera that repeats frames in most episodes, or whose age is a field, is slower than the steps: it lacks nothing.
    """
    if f"{AGES}/{f.name.rpartition('/')[2]}" in s.ds.schema:
        return
    repeated = Sightings(s)
    for first, index in s.rows.blocks(f.name, more=1):
        rows = first + 1 + np.flatnonzero((index[1:] == index[:-1]).all(axis=1) & (index[1:, 0] >= 0))
        repeated.add(rows[~np.isin(rows, s.rows.final) & ~np.isin(rows, s.rows.start)])
    if 0 < 2 * len(repeated.seen.episodes) <= len(s.length):
        lacking = plural(repeated.count, "frame")
        text = f"{lacking} {'is' if repeated.count == 1 else 'are'} missing in the videos of {f.name}: "
        text += f"{plural(repeated.count, 'step', 'has', 'have')} that of the step before"
        yield finding("missing-frames", "warning", text, repeated.count, f.name, repeated.seen)


def _broken(s: Subject, f: Field) -> Iterator[Finding]:
    """Decode all frames of a field."""
    from concurrent.futures import ThreadPoolExecutor

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
