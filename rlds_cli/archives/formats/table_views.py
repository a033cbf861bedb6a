"""Several tables as one: their rows one after the other, or in any other order."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats.tables import Table, TableRows, open_flat
from rlds_cli.base import text
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import NoSpace

MEMORY_BYTES = 256 << 20  # of sorted rows; more are in a temporary file
COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class TableView:
    """The rows of several files: one file after the other, or in ``order``.

    Parameters
    ----------
    paths, counts : tuple
        The files, and how many rows of each are read.
    derived : tuple of str
        Derived columns, which are added to every file.
    stops : int array [E]
        The row after the last one of each episode, in the order of reading.
    order : int array or None
        Rows, counted through all files, in the order of reading; None reads them as they stand.
    fill : bool
        Read rows without a value as 0.
    filled : mapping of str to (shape, dtype)
        Columns that some files or rows do not have, with the shape of a row: they read as NaN, 0, False or None there.
    """

    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    derived: tuple[str, ...]
    stops: IntArray
    order: IntArray | None = None
    fill: bool = False
    filled: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]] = field(default_factory=dict)

    def rows(self, keys: Collection[str]) -> TableRows:
        """Read the rows of some columns, forward."""
        joined = _FileRows(self, list(keys))
        return joined if self.order is None else _OrderedRows(joined, self.order)

    def place(self, row: int) -> tuple[int, int]:
        """Find the file, and the row in it, of a row in the order of reading."""
        file, at = self.places(np.array([row]))
        return int(file[0]), int(at[0])

    def places(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Find the files, and the rows in them, of rows in the order of reading."""
        at = rows if self.order is None else self.order[rows]
        starts = _starts(self.counts)
        file = np.searchsorted(starts, at, "right") - 1
        return file, at - starts[file]


@lru_cache(4)
def _starts(counts: tuple[int, ...]) -> IntArray:
    """Return the first row of each file, and the row after all of them; every block asks for it."""
    return np.cumsum([0, *counts])


class _FileRows:
    """Rows of one file after the other; a file is open while its rows are read."""

    def __init__(self, view: TableView, keys: Sequence[str]) -> None:
        self._view, self._keys = view, keys
        self._starts = _starts(view.counts).tolist()
        self._at, self._stack = -1, ExitStack()
        self._rows: TableRows | None = None
        self._absent: set[str] = set()  # columns that the open file does not have

    def __enter__(self) -> _FileRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        first = max(bisect_right(self._starts, start) - 1, 0)
        pieces: list[Mapping[str, Array]] = []
        for file in range(first, len(self._view.paths)):
            a, b = max(start, self._starts[file]), min(stop, self._starts[file + 1])
            if a < b or (not pieces and file == len(self._view.paths) - 1):
                pieces.append(self._read(file, a - self._starts[file], max(a, b) - self._starts[file]))
            if stop <= self._starts[file + 1]:
                break
        if len(pieces) == 1:
            return dict(pieces[0])
        return {k: np.concatenate([p[k] for p in pieces]) for k in self._keys}

    def _read(self, file: int, start: int, stop: int) -> Mapping[str, Array]:
        if file != self._at:
            self._stack.close()
            table = self._stack.enter_context(open_flat(self._view.paths[file], check=False, fill=self._view.fill))
            table.derive(key for key in self._view.derived if key in self._keys)
            table.fill(self._view.filled)
            self._absent = {k for k in self._view.filled if k not in table or not table[k].shape[0]}
            there = [k for k in self._keys if k not in self._absent]
            self._rows, self._at = self._stack.enter_context(table.rows(there)), file
        assert self._rows is not None
        found = dict(self._rows.read(start, stop))
        count = max(min(stop, self._view.counts[file]) - start, 0)
        return found | {k: nothing(*self._view.filled[k], count) for k in self._keys if k in self._absent}

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    @property
    def width(self) -> int:
        """Bytes of a row, by the first file; texts count as pointers."""
        with open_flat(self._view.paths[0], check=False, fill=self._view.fill) as table:
            table.derive(self._view.derived)
            return sum(_row_bytes(table, k) for k in self._keys)


def nothing(shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> Array:
    """Return rows without a value: NaN, 0, False or None."""
    return np.full((rows, *shape), {"f": np.nan, "c": np.nan, "O": None}.get(dtype.kind, 0), dtype)


def _row_bytes(table: Table, key: str) -> int:
    if key not in table:
        return 0
    c = table[key]
    return int(np.prod(c.shape[1:], dtype=np.int64)) * c.dtype.itemsize


class _OrderedRows:
    """Rows of all files in another order.

    Files are read forward only, so the rows are copied once, in file order, to an array that can be read in any order:
    in memory if it is small, else in a temporary file that is mapped.
    """

    def __init__(self, joined: _FileRows, order: IntArray) -> None:
        self._joined, self._order = joined, order
        self._stack = ExitStack()
        self._columns: dict[str, Array] = {}

    def __enter__(self) -> _OrderedRows:
        try:
            self._copy()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self._columns = {}
        self._stack.close()

    def _copy(self) -> None:
        n, width = self._joined.num_rows, self._joined.width
        in_memory = n * width <= MEMORY_BYTES
        if not in_memory and shutil.disk_usage(tempfile.gettempdir()).free < n * width:
            raise NoSpace(
                f"Sorting the rows by time needs {text.size_of(n * width)} in {tempfile.gettempdir()}, which has less.",
                hint="set TMPDIR to a directory with more space, or sort the rows yourself",
            )
        size = max(1, COPY_BYTES // max(width, 1))
        with self._joined as rows:
            for start in range(0, n, size):
                stop = min(start + size, n)
                for key, values in rows.read(start, stop).items():
                    if key not in self._columns:
                        self._columns[key] = self._empty((n, *values.shape[1:]), values.dtype, in_memory)
                    self._columns[key][start:stop] = values

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], in_memory: bool) -> Array:
        if in_memory or dtype.kind == "O" or 0 in shape:
            return np.empty(shape, dtype)
        file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (closed by the stack)
        file.truncate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return np.memmap(file, dtype, "r+", shape=shape)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        chosen = self._order[start:stop]
        return {k: np.asarray(v[chosen]) for k, v in self._columns.items()}
