"""The rows of one part, written twice: where they are not the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.preprocess.reading import Reader
from rlds_cli.store import arrays, names, rows
from rlds_cli.store.rows import Written
from rlds_cli.ted import Array, Column, EncodedFrames, EpisodeTable, Field

_BYTES = 16 << 20  # that are compared at a time
_VIDEO = "mp4"  # the codec of frames that are kept in videos
_ENDS = ("terminated", "truncated", "cut")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not the same.

    Parameters
    ----------
    name : str
    row : int
        The first row of the part that differs.
    rows : int
        How many do.
    values : str
        The first value that differs, as it was and as it is.
    """

    name: str
    row: int
    rows: int
    values: str


@dataclass(frozen=True, slots=True)
class Again:
    """A part that was written once more: in ``directory``, and what ``written`` says of it."""

    directory: Path
    schema: Sequence[Field]
    written: Written


def of_episodes(before: EpisodeTable, after: EpisodeTable) -> tuple[EpisodeTable, int, str] | None:
    """The first episode of the part that is not as it was, and how it was and is; None where all agree.

    Returns
    -------
    tuple of EpisodeTable, int, str
        The table that it is in, ``before`` or ``after``, and its number there.
    """
    then, now = places(before), places(after)
    for i, (old, new) in enumerate(zip_longest(then, now)):
        if old != new:
            gone = new is None or new in then  # else it is one that was not there
            of = old if gone else new
            return before if gone else after, i, f"{_times(then.count(of))}, now {_times(now.count(of))}"
        was, is_ = ((int(t.length[i]), bool(t.observed[i]), int(t.end[i])) for t in (before, after))
        if was != is_:
            return after, i, f"was {_shape(*was)}, is {_shape(*is_)}"
    return None


def places(table: EpisodeTable) -> list[tuple[int, int, str]]:
    """Where in the archive episodes come from."""
    return list(zip(table.source.tolist(), table.row.tolist(), table.group, strict=True))


def _times(count: int) -> str:
    return "did not come back" if count == 0 else "came back" if count == 1 else f"came back as {count} episodes"


def _shape(length: int, observed: bool, end: int) -> str:
    return f"{length:,} steps{'' if observed else ' without a final observation'} ({_ENDS[end]})"


def of_rows(made: Reader, first: int, again: Again) -> list[Difference]:
    """The fields that differ, the one that does so first before the others.

    Parameters
    ----------
    made : Reader
        The dataset.
    first : int
        The row of it that is the part's first.
    """
    paths = names.paths(f.name for f in again.schema)
    # Videos are the source's, whatever the function does.
    fields = (f for f in again.schema if f.codec != _VIDEO)
    found = (_of_field(made, first, again, f, paths[f.name]) for f in fields)
    return sorted((d for d in found if d is not None), key=lambda d: d.row)


def _of_field(made: Reader, first: int, again: Again, f: Field, path: str) -> Difference | None:
    row, count, values = -1, 0, ""
    for a, new in _columns(again, f, path):
        old = made.column(f.name, [(first + a, first + a + len(new))])
        differ = np.flatnonzero(_differ(old, new))
        if row < 0 and len(differ):
            row, values = a + int(differ[0]), _values(old, new, int(differ[0]))
        count += len(differ)
    return Difference(f.name, row, count, values) if count else None


def _columns(again: Again, f: Field, path: str) -> Iterator[tuple[int, Column]]:
    """The rows of a field, block by block, each with the number of its first."""
    total = again.written.rows
    at_once = max(1, _BYTES // max(1, f.row_bytes))
    files = rows.files(again.directory, f, path)
    strings = np.array([*again.written.new_strings.get(f.name, ()), None], object)
    for a in range(0, total, at_once):
        n = min(at_once, total - a)
        if f.kind == "frames":
            yield a, _frames(files, a, n)
        elif f.kind == "text":
            yield a, strings[np.fromfile(files["rows"], "<i4", n, offset=a * 4)].tolist()
        else:
            width = arrays.row_bytes((0, *f.shape), f.dtype)
            dtype = np.dtype(f.dtype).newbyteorder("<")
            values = np.fromfile(files["rows"], dtype, n * (width // dtype.itemsize), offset=a * width)
            yield a, values.reshape(n, *f.shape)


def _frames(files: dict[str, Path], a: int, n: int) -> EncodedFrames:
    offsets = np.fromfile(files["offsets"], "<i8", n + 1, offset=a * 8)
    data = np.fromfile(files["bytes"], np.uint8, int(offsets[-1] - offsets[0]), offset=int(offsets[0]))
    return EncodedFrames(data, np.diff(offsets))


def _differ(old: Any, new: Any) -> Array:
    """Which rows of two columns are not the same, bit for bit."""
    if isinstance(new, EncodedFrames):
        return np.array([a != b for a, b in zip(_pieces(old), _pieces(new), strict=True)])
    if isinstance(new, list):
        return np.array([a != b for a, b in zip(old, new, strict=True)])
    n = len(new)
    a, b = (np.ascontiguousarray(x).reshape(n, -1).view(np.uint8) for x in (old, new))
    return np.asarray((a != b).any(1))


def _pieces(column: Any) -> Iterator[bytes]:
    ends = np.cumsum(column.lengths)
    for length, end in zip(column.lengths, ends, strict=True):
        yield column.data[end - length : end].tobytes()


def _values(old: Any, new: Any, i: int) -> str:
    """The first element of row ``i`` that differs, in words."""
    if isinstance(new, EncodedFrames):
        return "is another image"
    a, b = old[i], new[i]
    if isinstance(new, list):
        return f"was {a!r}, is {b!r}"
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in (a, b))
    width = x.dtype.itemsize
    at = int(np.argmax((x.view(np.uint8) != y.view(np.uint8)).reshape(-1, width).any(1)))
    index = np.unravel_index(at, np.shape(b)) if np.ndim(b) else ()
    element = f"[{', '.join(str(int(k)) for k in index)}] " if index else ""
    return f"{element}was {x[at]!s}, is {y[at]!s}"
