"""Flat files of columns, one row a step, behind one face: npz, Parquet and HDF5.

A table hands out what the reader of flat files asks of an HDF5 file: its columns by name, their shapes and dtypes, and
rows read forward. Two columns may be asked for that are in no file::

    not:masks         whether a column is 0: some files mark the steps to bootstrap from, and not those that terminate
    ends:episode_ends the number of the episode that a row belongs to, of a list of where episodes end (or how long
                      they are)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import attributes, datasets, is_hdf5, open_file, plain, walk
from rlds_cli.archives.hdf5_rows import RowReader
from rlds_cli.archives.npz import is_npz, open_npz
from rlds_cli.archives.parquet import is_parquet, open_parquet
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Array, IntArray

NOT, ENDS = "not:", "ends:"
MAX_METADATA = 64 << 20


class Rows(Protocol):
    """Reads the rows of several columns, forward."""

    def __enter__(self) -> Rows: ...

    def __exit__(self, *exc: Any) -> None: ...

    def read(self, start: int, stop: int) -> Mapping[str, Array]:
        """Rows ``start`` to ``stop`` of every column."""


class Source(Protocol):
    """A file of columns."""

    def rows(self, names: Collection[str]) -> Rows:
        """A reader of the rows of some columns."""

    def array(self, name: str, *, most: int = ...) -> Array:
        """A whole column, for what is small."""


class Hdf5:
    """An open HDF5 file as a source."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file

    def rows(self, names: Collection[str]) -> Rows:
        """A reader of the rows of some columns."""
        return RowReader(self.path, {n: self.file[n] for n in sorted(names)})

    def array(self, name: str, *, most: int = MAX_METADATA) -> Array:
        """A whole column."""
        return np.asarray(self.file[name][()])


@dataclass(frozen=True, slots=True)
class Column:
    """What a dataset of an HDF5 file is to the reader of flat files."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    filename: str

    @property
    def size(self) -> int:
        """How many values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def file(self) -> Column:
        """Where it is, for messages."""
        return self


@dataclass(slots=True)
class Table:
    """An open file."""

    path: Path
    source: Source
    columns: dict[str, Column]
    left_out: tuple[str, ...] = ()  # columns of values that no field can hold
    _ends: dict[str, IntArray] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Column:
        return self.columns[key]

    def __contains__(self, key: object) -> bool:
        return key in self.columns

    def get(self, key: str) -> Column | None:
        """A column, or None."""
        return self.columns.get(key)

    def derive(self, keys: Collection[str]) -> None:
        """Add the columns among ``keys`` that are made of others.

        Raises
        ------
        UnknownLayout
            The other is not there, or does not fit.
        """
        for key in keys:
            kind, _, base = key.partition(":")
            if key in self.columns or f"{kind}:" not in (NOT, ENDS):
                continue
            if base not in self.columns:
                raise UnknownLayout(f'{self.path.name} has no "{base}".', hint=f"it holds {', '.join(self.columns)}")
            if kind == "not":
                self.columns[key] = Column(key, self.columns[base].shape, np.dtype(bool), self.path.name)
            else:
                self._ends[key] = _stops(self.source.array(base, most=MAX_METADATA), base, self.path.name)
                rows = int(self._ends[key][-1]) if len(self._ends[key]) else 0
                self.columns[key] = Column(key, (rows,), np.dtype(np.int64), self.path.name)

    def rows(self, keys: Collection[str]) -> Rows:
        """A reader of the rows of some columns, derived ones among them."""
        made = {k: k.removeprefix(NOT) for k in keys if k.startswith(NOT)}
        plain_ones = {k for k in keys if k not in made and k not in self._ends}
        ends = {k: self._ends[k] for k in keys if k in self._ends}
        return _Derived(self.source.rows(plain_ones | set(made.values())), plain_ones, made, ends)

    def samples(self, key: str, starts: Collection[int], size: int) -> Iterator[Array]:
        """Blocks of ``size`` rows of one column, from each of ``starts``, which ascend."""
        if isinstance(self.source, Hdf5) and key in self.source.file:
            yield from (self.source.file[key][start : start + size] for start in starts)
            return
        with self.rows([key]) as rows:
            for start in starts:
                yield rows.read(start, start + size)[key]

    def constants(self, keys: Collection[str]) -> Iterator[tuple[str, Array | str]]:
        """What is not per row: whole columns, and attributes."""
        hdf5 = self.source.file if isinstance(self.source, Hdf5) else None
        for key in keys:
            value = _text_or_array(self.source.array(key)) if hdf5 is None else plain(hdf5[key])
            if value is not None:
                yield key.removeprefix("metadata/"), value
        if hdf5 is not None:
            yield from attributes(hdf5)
            for name, item in walk(hdf5):
                yield from ((f"{name}/{key}", value) for key, value in attributes(item))


def _text_or_array(value: Array) -> Array | str:
    return "\n".join(map(str, np.ravel(value))) if value.dtype.kind in "SUO" else value


@dataclass(slots=True)
class _Derived:
    inner: Rows
    plain: set[str]
    negated: Mapping[str, str]
    ends: Mapping[str, IntArray]

    def __enter__(self) -> _Derived:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.inner.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        seen = self.inner.read(start, stop)
        out = {k: _texts(seen[k]) for k in self.plain}
        out |= {k: np.asarray(seen[base] == 0) for k, base in self.negated.items()}
        for k, stops in self.ends.items():
            out[k] = np.searchsorted(stops, np.arange(start, min(stop, int(stops[-1]))), side="right")
        return out


@contextmanager
def open_flat(path: Path, *, check: bool = True) -> Iterator[Table]:
    """Open HDF5, npz or Parquet, by content; raises as ``hdf5.open_file``, ``npz.open_npz`` and ``open_parquet`` do."""
    if is_npz(path):
        with open_npz(path) as npz:
            members = npz.members.values()
            yield Table(path, npz, {m.name: Column(m.name, m.shape, _dtype(m.dtype), path.name) for m in members})
    elif is_parquet(path):
        with open_parquet(path) as f:
            columns = {n: Column(n, s, _dtype(d), path.name) for n, (s, d) in f.columns.items()}
            yield Table(path, f, columns, tuple(f"{n} ({kind})" for n, kind in f.left_out.items()))
    else:
        with open_file(path, check=check) as h5:
            yield hdf5_table(path, h5)


def hdf5_table(path: Path, f: h5py.File) -> Table:
    """An open HDF5 file as a table."""
    return Table(path, Hdf5(path, f), {n: Column(n, d.shape or (), d.dtype, path.name) for n, d in datasets(f).items()})


def is_flat(path: Path) -> bool:
    """Whether ``open_flat`` knows the format of a file."""
    return is_npz(path) or is_parquet(path) or is_hdf5(path)


def _dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Texts as HDF5 has them."""
    return np.dtype(h5py.string_dtype()) if dtype.kind in "SUO" else dtype


def _texts(values: Array) -> Array:
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace").astype(object)
    return values.astype(object) if values.dtype.kind == "U" else values


def _stops(values: Array, key: str, name: str) -> IntArray:
    """Where episodes end, after their last rows, of a list of ends or of lengths. int64 [E]."""
    flat = values.reshape(-1)
    if flat.dtype.kind not in "iu" or (len(flat) and int(flat.min()) < 0):
        raise UnknownLayout(f"{name}: {key} is {values.dtype} {list(values.shape)}; a list of row numbers is expected.")
    stops = flat.astype(np.int64)
    return stops if (np.diff(stops) > 0).all() and "len" not in key.lower() else np.cumsum(stops)
