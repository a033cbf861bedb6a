"""The episode table and the digests of a dataset that is made of another one, of which it keeps most values.

An array is shared where the dataset has the episodes of its source under the same numbers. Where it has some of them,
or other values of some, rows are looked up in the source's, see `lookups`: that takes 4 bytes for an episode and an
index, of which there is one for all arrays of an ordinary dataset. What the source looks up is looked up where it does.
The source that was made of a growing dataset, to be removed, has the values that are in logs: they are looked up there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.store import layouts, lookups, paths, sealing, sharing
from rlds_cli.store.lookups import EpisodeRecords, Kind, Lookup, Part, Records
from rlds_cli.store.opening import Store

FEWEST = 1024  # episodes of a dataset that looks values up: those of fewer take no more than their files would
Column = Array | list[str]
_NONE = np.zeros(0, np.int64)
_RECORDS = "records"  # in the place of a source's index: numbers of records


@dataclass(frozen=True, slots=True)
class Patched:
    """A column in which some episodes have ``values``, and the others what the source says.

    Attributes
    ----------
    at : int array [n]
        Numbers of these episodes in the result, ascending.
    values : array [n, ...] or list, or callable
        A function returns them when they are written.
    others : Kind
        What the others have: what is stored for the source's episode, its number, or 0.
    """

    at: IntArray
    values: Column | Callable[[], Column]
    others: Kind = "stored"

    @classmethod
    def everywhere(cls, others: Kind) -> Patched:
        """Return the column of which all episodes have what ``others`` says."""
        return cls(_NONE, _NONE, others)

    def column(self) -> Column:
        """Return the values."""
        return self.values() if callable(self.values) else self.values

    def over(self, others: Array, index: IntArray) -> Array:
        """Return the values of the episodes ``index`` [n] of the result, of which the others have ``others`` [n]."""
        found = np.array(others)
        if len(self.at):
            k = np.minimum(np.searchsorted(self.at, index), len(self.at) - 1)
            has = self.at[k] == index
            found[has] = np.asarray(self.column())[k[has]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Numbers of rows: its name in the result, and the numbers of the parts that it leads to."""

    name: str
    kept: tuple[int, ...]


class Tables:
    """Writes arrays with a row for each episode into the directory of a result.

    Parameters
    ----------
    source : Store
    directory : Path
    index : int array [episodes], optional
        Numbers of the source's episodes; all of them without it.
    parts : int array [n]
        Numbers in the result of episodes that are parts of the source's: these have their values in a part of a lookup,
        also where they are those of the source, so that one index does for all arrays.
    looks_up : bool
        Share arrays of the source. Otherwise all values are written.
    records : EpisodeRecords, optional
        Logs that hold what the source has: the arrays that are the same there are looked up in them. Others are
        written unless ``looks_up`` is set.
    listed : mapping of str to str
        Digests of all files of the source, by name, see `Manifest.listed`.

    Attributes
    ----------
    known : dict
        Digests of files that the source recorded, by name.
    """

    def __init__(
        self,
        source: Store,
        directory: Path,
        index: IntArray | None,
        *,
        parts: IntArray,
        looks_up: bool,
        records: EpisodeRecords | None,
        listed: Mapping[str, str],
    ) -> None:
        self._source, self._directory, self._index, self._parts = source, directory, index, parts
        count = source.manifest.counts.episodes if index is None else len(index)
        self._records = records if count >= FEWEST else None
        self._shares = looks_up and count >= FEWEST
        self._looks_up = self._shares or self._records is not None
        self._of_records = ""  # where the records are numbered as the source's episodes are, else as `places` says
        self._listed = listed
        self._indices: dict[tuple[str, tuple[int, ...], int], _Index] = {}
        self._read: dict[str, IntArray] = {}
        if records is not None and (records.places != np.arange(len(records.places))).any():
            self._of_records, self._read[_RECORDS] = _RECORDS, records.places
        self.known: dict[str, str] = {}

    @property
    def keeps_files(self) -> bool:
        """Whether files of the source are shared, rather than that values are written."""
        return self._records is None and (self._index is None or self._shares)

    def share_file(self, path: str) -> None:
        """Share a file of the source."""
        sharing.share_file(self._source.path / path, self._directory / path)
        self.known |= {path: self._listed[path]} if path in self._listed else {}

    def write(self, path: str, value: Column | Patched | None = None) -> None:
        """Write the array at ``path``: ``value``, or what the source has for its episodes."""
        self._source.files.guarded(partial(self._write, path, value))

    def _write(self, path: str, value: Column | Patched | None) -> None:
        trees.discard(self._directory / path)
        if isinstance(value, Patched) and value.others == "stored" and not len(value.at):
            value = None
        if value is not None and not isinstance(value, Patched):
            write_column(self._directory / path, value)
            return
        computed = value is not None and value.others != "stored"
        if self._records is not None:
            patched, there = value or self._of_source(path), None if computed else self._recorded(path, self._records)
            if computed or there is not None:
                self._look_up(path, patched, there)
            else:
                write_column(self._directory / path, values(self._source, path, patched, self._index))
            return
        there = None if computed else Lookup.of(self._source.path / path)
        if value is None and self._index is None and (there is None or not self._looks_up):
            sharing.share_tree(self._source.path / path, self._directory / path, within=self._directory)
            self.known |= sealing.below(self._listed, path, path)
            return
        patched = value or self._of_source(path)
        if not self._looks_up or (there is not None and len(there.parts) == lookups.MOST_PARTS and len(patched.at)):
            write_column(self._directory / path, values(self._source, path, patched, self._index))
        else:
            self._look_up(path, patched, there)

    def _recorded(self, path: str, records: EpisodeRecords) -> Lookup | None:
        """Return an array of the source as a lookup in a log; None if no log has the same values."""
        if path not in records.columns:
            return None
        log, at = records.columns[path]
        (_, *row), dtype = layouts.open_document(self._source.path / path)
        if at + arrays.row_bytes((1, *row), dtype) > log.width:
            return None
        part, first = Part("records", log.rows, at, log.width, log.name), 0
        found = Lookup(array=path, index=self._of_records, dtype=dtype, row=tuple(row), parts=(part,))
        rows = Records.mapped(log.file, part, found).rows
        for stored in lookups.pieces(self._source.path / path):
            there = rows[records.places[first : first + len(stored)]]
            if arrays.raw(there) != arrays.raw(stored):
                return None
            first += len(stored)
        return found

    def _of_source(self, path: str) -> Patched:
        """Return an array of the source, with the episodes that are parts of its own apart."""
        if self._index is None or not len(self._parts) or not self._looks_up:
            return Patched.everywhere("stored")
        of = self._index[self._parts]
        return Patched(self._parts, lambda: values(self._source, path, Patched.everywhere("stored"), of))

    def _look_up(self, path: str, patched: Patched, there: Lookup | None) -> None:
        """Write a lookup in the arrays of the source, or in those that it looks up itself: ``there`` if it does."""
        count, stored = self._source.manifest.counts.episodes, patched.others == "stored"
        parts = (Part(patched.others, count),) if there is None else there.parts
        places = [path] if there is None else [f"{path}/{k}" for k in range(len(parts))]
        index = self._index_to("" if there is None else there.index, tuple(p.rows for p in parts), patched.at)
        parts = (*parts, *([Part("stored", len(patched.at))] if len(patched.at) else ()))
        dtype, row = (np.dtype(np.int64), ()) if there is None and not stored else self._kind(path, there)
        kept = tuple(parts[k] for k in index.kept)
        Lookup(array=path, index=index.name, dtype=dtype, row=row, parts=kept).write(self._directory)
        for to, k in enumerate(index.kept):
            target = self._directory / path / str(to)
            if k == len(places):
                write_column(target, patched.column())
            elif parts[k].kind == "stored":
                self._share(places[k], target)
            elif parts[k].kind == "records" and not lookups.index_in(self._directory, parts[k].log).exists():
                self._share_log(path, parts[k])

    def _kind(self, path: str, there: Lookup | None) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Return dtype and shape of a row of an array of the source; no dtype of texts."""
        if there is not None:
            return there.dtype, there.row
        if lookups.is_strings(self._source.path / path):
            return None, ()
        shape, dtype = layouts.open_document(self._source.path / path)
        return dtype, shape[1:]

    def _share_log(self, array: str, part: Part) -> None:
        """Share the log of a part of an array, which the source looks up or has from there."""
        target = lookups.index_in(self._directory, part.log)
        if self._records is None:
            self._share(f"{paths.LOOKUPS}/{part.log}", target)
            return
        log, _ = self._records.columns[array]
        sharing.link_file(log.file, arrays.data_file(target, 2))
        document = arrays.chunk_document((log.rows, log.width), np.uint8, max(1, log.rows))
        safe_files.write_bytes(target / "zarr.json", json.dumps(document).encode())

    def _share(self, path: str, target: Path) -> None:
        identity = self._source.files.identity
        if identity is None:
            sharing.share_tree(self._source.path / path, target, within=self._directory)
        else:
            sharing.link_or_refer(self._source.path, identity, path, target)

    def _index_to(self, of_source: str, rows: tuple[int, ...], at: IntArray) -> _Index:
        """Write numbers of rows: those of the source in ``rows`` of its parts, and behind them those that are patched.

        ``of_source`` is the source's index; empty if its episodes are the rows.
        """
        key = (of_source, rows, id(at) if len(at) else 0)
        if key in self._indices:
            return self._indices[key]
        name = str(len(self._indices))
        target = lookups.index_in(self._directory, name)
        if of_source not in ("", _RECORDS) and self._index is None and not len(at):
            there = lookups.index_in(self._source.path, of_source)
            sharing.share_tree(there, target, within=self._directory)
            found = _Index(name=name, kept=tuple(range(len(rows))))
        else:
            numbers = self._numbers(of_source)
            if len(at):
                numbers = numbers.copy()
                rows = (*rows, len(at))
                numbers[at] = lookups.starts(rows)[-1] + np.arange(len(at))
            kept, numbers = _without_unused(numbers, rows)
            small = int(numbers.max(initial=0)) <= np.iinfo(np.int32).max
            arrays.write(target, numbers.astype(np.int32 if small else np.int64))
            found = _Index(name=name, kept=kept)
        self._indices[key] = found
        return found

    def _numbers(self, of_source: str) -> IntArray:
        count = self._source.manifest.counts.episodes
        if not of_source:
            return np.arange(count) if self._index is None else self._index
        if of_source not in self._read:
            self._read[of_source] = lookups.read(lookups.index_in(self._source.path, of_source)).astype(np.int64)
        return self._read[of_source] if self._index is None else self._read[of_source][self._index]


def _without_unused(numbers: IntArray, rows: tuple[int, ...]) -> tuple[tuple[int, ...], IntArray]:
    """Return the parts of so many rows that are used, and the numbers of rows without the others."""
    if len(rows) == 1:
        return (0,), numbers
    begins = np.array(lookups.starts(rows))
    part = np.searchsorted(begins, numbers, "right") - 1
    kept = tuple(np.flatnonzero(np.bincount(part, minlength=len(rows))).tolist())
    moved = begins.copy()
    moved[list(kept)] = lookups.starts([rows[k] for k in kept])
    return kept, numbers + (moved - begins)[part] if len(kept) < len(rows) else numbers


def values(source: Store, path: str, patched: Patched, index: IntArray | None) -> Column:
    """Return a column of the episodes ``index`` of a source, or of all, with other values of some."""
    if patched.others != "stored":
        numbers = np.arange(source.manifest.counts.episodes) if index is None else index
        found: Column = numbers.copy() if patched.others == "numbers" else np.zeros(len(numbers), np.int64)
    elif lookups.is_strings(source.path / path):
        texts = lookups.read_strings(source.path / path)
        found = texts if index is None else [texts[k] for k in index.tolist()]
    else:
        stored = lookups.read(source.path / path)
        found = np.array(stored if index is None else stored[index])
    if isinstance(found, list):
        for k, text in zip(patched.at.tolist(), patched.column(), strict=True):
            found[k] = str(text)
    elif len(patched.at):
        found[patched.at] = patched.column()
    return found


def write_column(directory: Path, column: Column) -> None:
    """Write an array, or texts, into a directory that does not exist."""
    arrays.write_strings(directory, column) if isinstance(column, list) else arrays.write(directory, column)


def column_names(table: Path, apart: Collection[Path]) -> list[str]:
    """Return the paths of the columns below an episode table, but for directories ``apart``."""
    found, left = list[str](), [table]
    while left:
        for path in sorted(p for p in left.pop().iterdir() if p.is_dir() and p not in apart):
            if lookups.is_array(path) or lookups.is_strings(path):
                found.append(path.relative_to(table).as_posix())
            else:
                left.append(path)
    return found


class WrittenTable(Mapping[str, Column]):
    """The columns of an episode table by their paths: arrays, and texts as lists. Each is read when it is used."""

    def __init__(self, table: Path, names: Collection[str]) -> None:
        self._table, self._names = table, tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        path = self._table / name
        return lookups.read_strings(path) if lookups.is_strings(path) else lookups.read(path)
