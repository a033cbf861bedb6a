"""How far the values of two datasets with the same rows are apart, field by field, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rlds_cli.checks.findings import Place
from rlds_cli.checks.subject import TILE_BYTES, Subject
from rlds_cli.ted import Array, Field

_NUMBERS = "biuf"

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two values are close where ``|a - b| <= atol + rtol * |b|``, as in ``numpy.isclose``; NaN is close to NaN."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether only equal values are close."""
        return self.rtol == self.atol == 0


@dataclass(frozen=True, slots=True)
class Deviation:
    """Values of one field that differ.

    ``greatest`` is the greatest absolute difference, infinite where a value is finite or a number in one of them only,
    and ``at`` the first place that has it. ``beyond`` values, of ``values`` compared, are not close.
    """

    greatest: float
    at: Place | None
    beyond: int
    values: int


def deviation(a: Subject, b: Subject, name: str, ranges: Iterable[Range], tolerance: Tolerance) -> Deviation | None:
    """Compare the rows in ``ranges`` of a field; None where it holds no numbers, or rows of other shapes.

    A flag is close to its equal only.
    """
    fields = a.ds.schema[name], b.ds.schema[name]
    if not all(_is_numeric(f) for f in fields) or fields[0].shape != fields[1].shape:
        return None
    if any(f.dtype == "bool" for f in fields):
        tolerance = Tolerance()
    greatest, row, beyond, values = 0.0, -1, 0, 0
    for start, one, other in _tiles(a, b, name, ranges):
        apart = _apart(one, other)
        values += apart.size
        with np.errstate(invalid="ignore"):
            room = tolerance.atol + tolerance.rtol * np.abs(other)
        beyond += int((apart > np.where(np.isfinite(room), room, 0)).sum())
        most = float(apart.max(initial=0))
        if most > greatest:
            greatest, row = most, start + int(np.argmax(apart.max(axis=1)))
    return Deviation(greatest, a.places(np.array([row]))[0] if row >= 0 else None, beyond, values)


def _is_numeric(f: Field) -> bool:
    return f.kind == "array" and np.dtype(f.dtype).kind in _NUMBERS


def _tiles(a: Subject, b: Subject, name: str, ranges: Iterable[Range]) -> Iterator[tuple[int, Array, Array]]:
    """First row, and the values [n, width] of both in float64, about 1 MiB at a time."""
    width = int(np.prod(a.ds.schema[name].shape, dtype=np.int64))
    rows = max(1, TILE_BYTES // max(1, 8 * width))
    for start, stop in ranges:
        for at in range(start, stop, rows):
            end = min(at + rows, stop)
            one, other = (x.between(name, at, end).reshape(end - at, width) for x in (a, b))
            yield at, one.astype(np.float64), other.astype(np.float64)


def _apart(a: Array, b: Array) -> Array:
    """Absolute differences; 0 where both are the same infinity or NaN, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)))
