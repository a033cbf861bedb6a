"""Curves of the fields of an episode: for each column of the drawing the lowest and the highest value.

An episode may have millions of steps. Its rows are read a block at a time, and each block is reduced while it is in the
cache of a core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from starlette.responses import Response

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Dataset, Rows
from rlds_cli.errors import InvalidArgument
from rlds_cli.ted import Field
from rlds_cli.view import elements
from rlds_cli.view.query import Query

_BLOCK = 1 << 20  # bytes of rows that are reduced at a time
_MOST_FIELDS, _MOST_COLUMNS = 64, 8192
_MOST_VALUES = 1 << 23  # of an answer


def curves(query: Query) -> Response:
    """Answer with float32 [elements, columns, 2]; ``X-Columns`` has the number of columns."""
    ds = query.dataset
    rows, number = query.once(ds, Rows), query.episode(ds)
    count = int(rows.length[number] + rows.observed[number])
    first = min(max(0, query.integer("first", 0)), count)
    stop = max(first, min(query.integer("stop", count), count))
    width = query.integer("width", 1000)
    if not 1 <= width <= _MOST_COLUMNS:
        raise InvalidArgument(f"The parameter width is {width:,}, not from 1 to {_MOST_COLUMNS:,}.")
    fields = _fields(ds, query.fields)
    columns = min(width, stop - first)
    sizes = [min(int(np.prod(f.shape, dtype=np.int64)), elements.MOST) for f in fields]
    if sum(sizes) * columns * 2 > _MOST_VALUES:
        raise InvalidArgument(f"{sum(sizes):,} elements in {columns:,} columns are too many.", hint="fewer fields")
    out = np.full((sum(sizes), columns, 2), np.nan, "<f4")
    for f, size, at in zip(fields, sizes, np.cumsum([0, *sizes]), strict=False):
        known = min(stop, int(rows.count(f)[number]))
        extremes(rows, f, int(rows.start[number]) + first, max(0, known - first), stop - first, out[at : at + size])
    headers = {"x-columns": str(columns), "cache-control": "no-store"}
    return Response(out.tobytes(), headers=headers, media_type="application/octet-stream")


def _fields(ds: Dataset, names: Sequence[str]) -> list[Field]:
    if len(names) > _MOST_FIELDS:
        raise InvalidArgument(f"{len(names):,} fields are asked for; at most {_MOST_FIELDS} are drawn at once.")
    found = [ds.field(name) for name in names]
    for f in found:
        if f.kind != "array" or np.dtype(f.dtype).kind not in "biuf":
            raise InvalidArgument(f"{f.name} holds no numbers.")
    return found


def extremes(rows: Rows, f: Field, start: int, known: int, steps: int, out: Array) -> None:
    """Write the lowest and the highest values of rows into ``out`` [elements, columns, 2].

    Parameters
    ----------
    start : int
        The first row.
    known : int
        Rows from there on that hold values.
    steps : int
        Rows that the columns stand for; those behind the known ones leave NaN.
    """
    size, columns = out.shape[:2]
    if not size or not columns:
        return
    edges = np.arange(columns + 1) * steps // columns
    low, high = np.full((columns, size), np.nan, "<f4"), np.full((columns, size), np.nan, "<f4")
    at_once = max(1, _BLOCK // max(1, f.row_bytes))
    if not rows.store.slices:
        at_once = max(at_once, 1 << 16)
    for a in range(0, known, at_once):
        b = min(a + at_once, known)
        values = rows.between(f.name, start + a, start + b).reshape(b - a, -1)[:, :size]
        _reduce(values, edges, a, low, high)
    out[..., 0], out[..., 1] = low.T, high.T


def _reduce(values: Array, edges: IntArray, first: int, low: Array, high: Array) -> None:
    """Lower ``low`` and raise ``high`` [columns, elements] by the values of rows from ``first`` on."""
    begin = int(np.searchsorted(edges, first, "right")) - 1
    stop = int(np.searchsorted(edges, first + len(values)))
    at = np.maximum(edges[begin:stop] - first, 0)
    is_float = values.dtype.kind == "f"
    lowest, highest = (np.fmin, np.fmax) if is_float else (np.minimum, np.maximum)
    with np.errstate(over="ignore", invalid="ignore"):
        low[begin:stop] = np.fmin(low[begin:stop], lowest.reduceat(values, at, 0).astype(np.float32))
        high[begin:stop] = np.fmax(high[begin:stop], highest.reduceat(values, at, 0).astype(np.float32))
