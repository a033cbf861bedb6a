"""The columns of a table with the interface of HDF5 datasets, for readers of either."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rlds_cli.archives.formats.tables import Table, TableColumn, TableRows, open_flat, texts
from rlds_cli.errors import UnknownLayout


class TableDataset:
    """One column: its shape and dtype, and its rows by number or slice, which are read forward."""

    def __init__(self, table: Table, column: TableColumn, stack: ExitStack) -> None:
        self._table, self._stack = table, stack
        self._rows: TableRows | None = None
        self._at = 0  # the row that was read from last
        self.name, self.shape, self.dtype, self.filename = column.name, column.shape, column.dtype, str(table.path)

    @property
    def file(self) -> TableDataset:
        """The column itself: its ``filename`` is that of the file, as with HDF5 datasets."""
        return self

    def asstr(self, errors: str = "replace") -> TableDataset:
        """Return the column itself, whose texts are str."""
        return self

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, at: Any) -> Any:
        """Read the whole column by ``()``, one row, or a slice of rows."""
        if at == ():
            return texts(self._table.source.array(self.name))[()]
        if not isinstance(at, slice):
            first = range(len(self))[int(at)]
            return self[first : first + 1][0]
        start, stop, _ = at.indices(len(self))
        if self._rows is None or start < self._at:
            self._rows = self._stack.enter_context(self._table.rows([self.name]))
        self._at = start
        return self._rows.read(start, max(start, stop))[self.name]


@contextmanager
def open_datasets(path: Path, keys: Collection[str] = ()) -> Iterator[dict[str, TableDataset]]:
    """Open a table, and return its columns by name; raises as `open_flat`.

    Derived columns among ``keys`` stand for what they are made of, if that exists.
    """
    with ExitStack() as stack, open_flat(path) as table:
        for key in keys:
            with suppress(UnknownLayout):
                table.derive([key])
        parts = {part for key in keys for part in table.made_of(key)} - {*keys}
        yield {name: TableDataset(table, c, stack) for name, c in table.columns.items() if name not in parts}
