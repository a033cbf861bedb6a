"""When the rows of an episode were recorded, and how many come in a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Rows
from rlds_cli.store import Facts
from rlds_cli.ted import Field

MOST_ROWS = 1 << 20  # of an episode that are told of one by one
_NAMES = ("timestamp", "timestamps", "time", "times", "seconds")  # last parts of the names of fields with times
_AGES = "info/age"  # seconds since something came: no times of rows
_UNITS = (1.0, 1e3, 1e6, 1e9)  # of a second
_SINCE_1970 = 1e9  # seconds until 2001, from which on whole numbers are taken for them
_EVEN = 0.05  # of a step, by which times of evenly spaced rows differ
_FACTOR = 1.5  # between the median step and that of the rate
_SLOWEST, _FASTEST = 1e-4, 1e6  # rows a second


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTimes:
    """When rows were recorded.

    Attributes
    ----------
    rate : float or None
        Rows a second.
    at : list of float or None
        Seconds from the first row, of each; None if they are evenly spaced, or not known.
    by : str or None
        The field with the times, or ``fps``.
    """

    rate: float | None = None
    at: list[float] | None = None
    by: str | None = None


def row_times(rows: Rows, number: int) -> RowTimes:
    """Return the times of an episode: of a field of times, else of the rate of the dataset."""
    fps = Facts(rows.store.manifest).values["fps"]
    count = int(rows.length[number] + rows.observed[number])
    start = int(rows.start[number])
    for f in _candidates(rows):
        known = min(int(rows.count(f)[number]), MOST_ROWS)
        seconds = _seconds(rows.between(f.name, start, start + known).reshape(-1), fps)
        if seconds is not None:
            found = _spaced(seconds, min(count, MOST_ROWS), fps, f.name)
            return found if count <= MOST_ROWS else replace(found, at=None)
    return RowTimes(rate=fps, by="fps" if fps else None)


def _candidates(rows: Rows) -> Iterator[Field]:
    """Yield the scalar fields whose names are those of times, the likeliest first."""
    found = []
    for f in rows.store.fields.values():
        last = f.name.rpartition("/")[2].lower()
        if f.kind == "array" and last in _NAMES and not is_below(f.name, _AGES):
            dtype = np.dtype(f.dtype)
            if f.row_bytes == dtype.itemsize >= 4 and dtype.kind in "iuf":
                found.append((f.name.count("/"), _NAMES.index(last), f.name, f))
    yield from (f for *_, f in sorted(found))


def _seconds(values: Array, fps: float | None) -> Array | None:
    """Return times in seconds from the first one on; None if they do not rise, or their unit is not known."""
    if len(values) < 2:
        return None
    first = values[0]
    since = (values - first).astype(np.float64)  # whole nanoseconds since 1970 have more than 53 bits
    steps = np.diff(since)
    if not np.isfinite(since).all() or (steps <= 0).any():
        return None
    step = float(np.median(steps))
    unit = _unit(float(first), step, fps, whole=values.dtype.kind != "f")
    if unit is None or not _SLOWEST <= unit / step <= _FASTEST:
        return None
    seconds: Array = since / unit
    return seconds


def _unit(first: float, step: float, fps: float | None, *, whole: bool) -> float | None:
    """Return what a second counts in times whose first and whose usual step these are."""
    for unit in _UNITS if fps else ():
        if 1 / _FACTOR <= step * float(fps or 0) / unit <= _FACTOR:
            return unit
    for unit in _UNITS:
        if _SINCE_1970 <= first / unit < 10 * _SINCE_1970:
            return unit
    return None if whole else 1.0


def _spaced(seconds: Array, count: int, fps: float | None, name: str) -> RowTimes:
    """Return times of ``count`` rows, of which the last may have none of its own."""
    usual = float(np.median(np.diff(seconds)))
    if len(seconds) < count:
        seconds = np.append(seconds, seconds[-1] + usual * np.arange(1, count - len(seconds) + 1))
    numbers = np.arange(len(seconds))
    for rate in (fps, (len(seconds) - 1) / float(seconds[-1])):
        if rate and np.abs(seconds * rate - numbers).max() <= _EVEN:
            return RowTimes(rate=float(rate), by=name)
    return RowTimes(rate=1 / usual, at=np.round(seconds, 6).tolist(), by=name)
