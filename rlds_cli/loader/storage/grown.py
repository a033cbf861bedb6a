"""Packed rows of growing datasets: committed rows never change, so each is packed once, for all versions.

::

    rows        0 ... 65 535 | 65 536 ... 131 071 | 131 072 ... 140 000 |
    packed in   a file       | a file             | memory              | addresses of rows to come

A unit of 65,536 rows, or of a smaller segment, becomes a file when all of its rows are committed. All versions and
processes share it. Its key is the first version that has all of these rows: the record of that version proves what they
are. The rows behind the last whole unit are packed into memory of this process, to which later versions add theirs.
Rows of departed episodes keep their place, and mean nothing once they are freed. The file of a unit of which no row is
kept is removed.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.mapping import Addresses
from rlds_cli.errors import RldsError
from rlds_cli.loader.storage import blocks, memory, packed
from rlds_cli.loader.storage.blocks import RowLayout, stored_block
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.storage.packed import WantedContent
from rlds_cli.loader.storage.page_cache import MappedRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlds_cli.dataset import Dataset
    from rlds_cli.store.growing.table import LoggedTable

_UNIT = 1 << 16  # rows of a file, at most: with their padding a multiple of a huge page
_ROOM = 1 << 24  # rows to come, for which addresses are reserved


def pack(dataset: Dataset, dtypes: Mapping[str, np.dtype[Any]], budget: int) -> tuple[dict[str, ColumnRows], str]:
    """Pack fields of a growing dataset row by row, see `blocks.pack`."""
    layout = RowLayout(stored_block(dataset, name, dtype) for name, dtype in dtypes.items())
    width, rows = layout.row_bytes, dataset.num_rows
    taken = width * (dataset.num_steps + dataset.num_episodes)
    if not taken or taken < blocks.LEAST_BYTES:
        return {}, ""
    if width > blocks.MOST_ROW_BYTES:
        return {}, blocks.too_wide(width)
    grown = GrownRows.of(_table(dataset), layout)
    content, where = grown.take(dataset, layout, budget)
    if content is None:
        return {}, f"no packed rows: {where}"
    sparing = taken > memory.limit()[0] // 2
    file = MappedRows(content.reshape(rows, width), sparing=sparing, mine=safe_files.is_own(dataset.path))
    return layout.columns(content, file), f"packed rows of {width} B, {where}"


class GrownRows:
    """The packed rows of a dataset in one layout, by their numbers since the first row that was ever written.

    Parameters
    ----------
    source : str
        Identifies the dataset: the id of its version 0.
    table : LoggedTable
        A version, behind whose rows addresses are reserved for more.
    row_bytes : int
    """

    def __init__(self, source: str, table: LoggedTable, row_bytes: int) -> None:
        g, unit = table.commit, gcd(_UNIT, table.segment_rows)  # within one segment
        self._source, self._unit, self._row_bytes = source, unit, row_bytes
        self._first, self._stop = g.first_row // unit, -(-(g.rows + _ROOM) // unit)
        self._size = unit * row_bytes  # bytes of a unit
        self._place = Addresses((self._stop - self._first) * self._size)
        self._files: set[int] = set()  # units that are mapped
        self._memory: dict[int, tuple[Array, int]] = {}  # units in memory, and how many of their rows are packed
        self._used: list[tuple[weakref.ref[Any], frozenset[int]]] = []  # contents in use, and the units that they need
        self._lock = threading.Lock()

    @classmethod
    def of(cls, table: LoggedTable, layout: RowLayout) -> GrownRows:
        """Return the packed rows that other versions in this process use, if these have addresses there; else new."""
        path, g = table.files.path, table.commit
        source = f"{table.version_id_of(0)}{table.files.unproved}"
        key = json.dumps([source, str(path), layout.key()])
        with _ALL_LOCK:
            found = _ALL.get(key)
            if found is None or not found._first * found._unit <= g.first_row <= g.rows <= found._stop * found._unit:
                found = _ALL[key] = cls(source, table, layout.row_bytes)
        return found

    def take(self, dataset: Dataset, layout: RowLayout, budget: int) -> tuple[Array | None, str]:
        """Return the content of all rows of a version, uint8 [rows * row_bytes], and where it is.

        None and the reason if there is neither a file nor memory for some of them.
        """
        table = _table(dataset)
        g, units_needed = table.commit, table.units_needed(self._unit)
        by_number = [dataclasses.replace(f, source=partial(_committed, table, f.name)) for f in layout.fields]
        rows = RowLayout(by_number)
        view = self._place.view(self)
        with self._lock:
            reason = self._open(dataset, rows, units_needed)
            inside = [n for n in units_needed if n not in self._files]
            size = len(inside) * self._size
            if size > budget:
                beyond = f"{text.size_of(size)} of memory are more than {text.size_of(budget)}"
                return None, "; ".join(filter(None, (reason, beyond)))
            for n in inside:
                self._add(rows, n, min(self._unit, g.rows - n * self._unit))
            self._used.append((weakref.ref(view), frozenset(units_needed)))
            self._let_go()
            count = len(self._files.intersection(units_needed))
        places = [f"{count} files in {packed.homes(dataset)[0] / 'packed'}"] if count else []
        places += [f"{text.size_of(size)} of private memory{f': {reason}' if reason else ''}"] if inside else []
        content: Array = np.frombuffer(view, np.uint8)
        a, b = ((row - self._first * self._unit) * self._row_bytes for row in (g.first_row, g.rows))
        content = content[a:b]
        content.flags.writeable = False
        return content, " and ".join(places)

    def _open(self, dataset: Dataset, rows: RowLayout, needed: Sequence[int]) -> str:
        """Map the files of whole units, after building those that are missing; return why some cannot be built."""
        whole = _table(dataset).commit.rows // self._unit
        wanted = [n for n in needed if n < whole and n not in self._files]
        if not wanted:
            return ""
        contents = [self._content(dataset, rows, n) for n in wanted]
        held = packed.open_all(dataset, contents, kind="rows", budget=None)
        mapped = {n for n, h in zip(wanted, held, strict=True) if h.array is not None}
        self._files |= mapped
        for n in mapped:
            self._memory.pop(n, None)
        self._remove_old(dataset, frozenset(range(whole)).difference(needed))
        return next((h.reason for h in held if h.array is None), "")

    def _content(self, dataset: Dataset, rows: RowLayout, n: int) -> WantedContent:
        """Return the packed rows of a unit, all of which are committed."""
        table, first, stop = _table(dataset), n * self._unit, (n + 1) * self._unit
        version = table.version_id_since(stop)
        at = (n - self._first) * self._size
        return WantedContent(
            self._source,
            {**rows.key(), "version": version, "unit": n, "count": self._unit},
            self._size,
            lambda: rows.tiles(first, stop),
            (self._place, at),
        )

    def _add(self, rows: RowLayout, n: int, count: int) -> None:
        """Pack the rows of a unit up to ``count`` into memory; packed ones stay as they are."""
        if n not in self._memory:
            made = self._place.memory((n - self._first) * self._size, self._size)
            self._memory[n] = np.frombuffer(made, np.uint8).reshape(self._unit, self._row_bytes), 0
        content, done = self._memory[n]
        if done < count:  # else a later version has packed them
            for tile in rows.tiles(n * self._unit + done, n * self._unit + count):
                content[done : done + len(tile)] = tile
                done += len(tile)
            self._memory[n] = content, done

    def _let_go(self) -> None:
        """Unmap units that no content in use needs."""
        self._used = [(used, units) for used, units in self._used if used() is not None]
        for n in (self._files | self._memory.keys()).difference(*(units for _, units in self._used)):
            self._place.unmap((n - self._first) * self._size, self._size)
            self._files.discard(n)
            self._memory.pop(n, None)

    def _remove_old(self, dataset: Dataset, units: frozenset[int]) -> None:
        """Remove the files of units of which no row is kept; a process that has mapped one keeps it."""
        for home in packed.homes(dataset):
            for file in packed.files(home, [self._source]):
                with suppress(OSError, RldsError, ValueError), safe_files.reading(file) as f:
                    known = packed.read(file, f.fileno())
                    if known is not None and known[0].get("unit") in units:
                        file.unlink()


def _table(dataset: Dataset) -> LoggedTable:
    return cast("LoggedTable", dataset.store.table)


def _committed(table: LoggedTable, name: str, start: int, stop: int) -> Array:
    """Return rows of an array field by their numbers since the first that was ever written.

    They are those of any version that has them, if their segments are needed. Freed rows mean nothing.
    """
    return table.files.entries(table.column(name), start, stop, table.lease)


_ALL: weakref.WeakValueDictionary[str, GrownRows] = weakref.WeakValueDictionary()
_ALL_LOCK = threading.Lock()
