"""The members of an npz with the interface of HDF5 datasets, for readers of either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.array_types import Array
from rlds_cli.formats.npz import NpzFile, NpzRows, ZipMember, open_npz


class NpzDataset:
    """One member: its shape and dtype, and its rows by number or slice, which are inflated forward."""

    def __init__(self, npz: NpzFile, member: ZipMember, stack: ExitStack) -> None:
        self._npz, self._stack = npz, stack
        self._rows: NpzRows | None = None
        self._at = 0  # the row that was read from last
        self.name, self.shape, self.filename = member.name, member.shape, str(npz.path)
        self._is_text = member.dtype.kind in "SU"
        self.dtype = h5py.string_dtype() if self._is_text else member.dtype

    @property
    def file(self) -> NpzDataset:
        """The member itself: its ``filename`` is that of the file, as with HDF5 datasets."""
        return self

    def asstr(self, errors: str = "replace") -> NpzDataset:
        """Return the member itself, whose texts are str."""
        return self

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, at: Any) -> Any:
        """Read the whole member by ``()``, one row, or a slice of rows."""
        if at == ():
            return self._texts(self._npz.array(self.name))[()]
        if not isinstance(at, slice):
            return self[int(at) : int(at) + 1][0]
        start, stop, _ = at.indices(self.shape[0])
        if self._rows is None or start < self._at:
            self._rows = self._stack.enter_context(self._npz.rows([self.name]))
        self._at = start
        return self._texts(self._rows.read(start, max(start, stop))[self.name])

    def _texts(self, values: Array) -> Array:
        if not self._is_text:
            return values
        decoded = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
        return decoded.astype(object)


@contextmanager
def open_datasets(path: Path) -> Iterator[dict[str, NpzDataset]]:
    """Open an npz, and return its members by name; raises as `open_npz`."""
    with ExitStack() as stack, open_npz(path) as npz:
        yield {name: NpzDataset(npz, member, stack) for name, member in npz.members.items()}
