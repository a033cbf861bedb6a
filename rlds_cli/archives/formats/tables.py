"""One interface to flat files with one row per step: npz, Parquet, Arrow, HDF5, CSV and JSON lines.

A table has columns with names, shapes and dtypes, as an HDF5 file has datasets, and its rows are read forward. Derived
columns are in no file, and are computed from others::

    not:masks           whether a column is 0; masks are 0 at terminated steps
    ends:episode_ends   the number of the episode of a row, from a list of the ends or the lengths of episodes
    missing:action      whether a row has no value: null in the file, or NaN in every component
    first:step_type     whether a step type of dm_env is FIRST (0); last:step_type, whether it is LAST (2)
    done without late   whether ``done`` is set and ``late`` is not
    [x, y, theta]       several columns as one, components side by side
    files:image, folder:frames, video:top.mp4
                        images and videos in files beside the table, see `camera_files`
    age:time:top.mp4    seconds since the frame of a video was shown that a row has by its time stamp
    since:time          the seconds since the first row
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from rlds_cli.archives.formats import camera_files, image_columns, imitation, rllib_episodes, step_batches, tianshou
from rlds_cli.archives.formats.arrow_files import is_arrow, open_arrow
from rlds_cli.archives.formats.arrow_tables import MISSING as MISSING
from rlds_cli.archives.formats.arrow_tables import ArrowFile, is_nan
from rlds_cli.archives.formats.hdf5 import (
    Contents,
    attribute_names,
    attributes,
    contents,
    is_hdf5,
    open_file,
    plain,
    whole,
)
from rlds_cli.archives.formats.hdf5_rows import PlainRows, RowReader
from rlds_cli.archives.formats.image_columns import EncodedColumn
from rlds_cli.archives.formats.npz import NpzFile, is_npz, open_npz
from rlds_cli.archives.formats.parquet import is_parquet, open_parquet
from rlds_cli.archives.formats.step_batches import StepBatches
from rlds_cli.archives.formats.text_numbers import Mixed
from rlds_cli.archives.formats.text_tables import CSV, JSON_LINES, MAX_COLUMNS, is_csv, is_json_lines, open_text
from rlds_cli.archives.formats.zarr_stores import ZarrStore, is_zarr, open_zarr
from rlds_cli.base import text
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files.bundles import state_of
from rlds_cli.errors import ReaderError, RldsError, UnknownLayout, UnsafeArchive

NOT, ENDS, WITHOUT, STACK = "not:", "ends:", " without ", "[]"
FIRST, LAST = "first:", "last:"
STEP_TYPES = {FIRST: (0, "FIRST"), LAST: (2, "LAST")}  # of dm_env.StepType: the number, and the end of its name
MAX_METADATA = 64 << 20
_MOST_KNOWN = 1 << 16  # files whose container is remembered
_FEW_ROWS = 1 << 10  # among which a column of names has one
# Attributes that PyTables writes, and HDF5 itself for scales of dimensions; one of them is always CLASS.
OF_LIBRARIES = {"CLASS", "TITLE", "VERSION", "FILTERS", "FLAVOR", "EXTDIM", "NROWS", "PYTABLES_FORMAT_VERSION"}
OF_LIBRARIES |= {"NAME", "DIMENSION_LIST", "REFERENCE_LIST"}
TABLES = (*CSV, *JSON_LINES, ".npz", ".parquet", ".arrow", ".feather", ".h5", ".hdf5", ".hdf")
EMPTY_ZIP = b"PK\x05\x06"  # an archive of no files, which begins with its end


class TableRows(Protocol):
    """Reader of the rows of several columns, forward."""

    def __enter__(self) -> TableRows: ...

    def __exit__(self, *exc: Any) -> None: ...

    def read(self, start: int, stop: int) -> Mapping[str, Array]:
        """Read rows ``start`` to ``stop`` of every column."""


class Readable(Protocol):
    """A source of rows: a file, or several."""

    def rows(self, keys: Collection[str]) -> TableRows:
        """Read the rows of some columns."""


class TableSource(Protocol):
    """A file of columns."""

    def rows(self, names: Collection[str]) -> TableRows:
        """Read the rows of some columns."""

    def array(self, name: str, *, most: int = ...) -> Array:
        """Read a whole column that is small."""


class Hdf5:
    """An open HDF5 file as a source, and what it holds."""

    def __init__(self, path: Path, file: Any, found: Contents) -> None:
        self.path, self.file, self.found = path, file, found
        self.images: Collection[str] = ()  # columns of texts that are encoded images

    def rows(self, names: Collection[str]) -> TableRows:
        """Return a reader of the rows of some columns."""
        layouts = {n: self.found.datasets[n] for n in sorted(names)}
        if all(of.is_plain for of in layouts.values()):
            return PlainRows(self.path, self.file, layouts)
        return RowReader(self.path, {n: self.file[n] for n in sorted(names)}, as_bytes=self.images)

    def array(self, name: str, *, most: int = MAX_METADATA) -> Array:
        """Read a whole column."""
        return np.asarray(whole(self.file[name]))


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, with the attributes of an HDF5 dataset that readers use.

    ``image`` is the codec and the shape of the images of a camera, whose rows are bytes; those of a video are the
    numbers of its frames.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    filename: str
    image: EncodedColumn | None = None

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all values."""
        return self.size * self.dtype.itemsize

    @property
    def file(self) -> TableColumn:
        """The column itself: its ``filename`` is that of the file, as with HDF5 datasets."""
        return self


@dataclass(slots=True)
class Table:
    """An open file."""

    path: Path
    source: TableSource
    columns: dict[str, TableColumn]
    left_out: tuple[str, ...] = ()  # columns of values that no field can hold
    packed: tuple[str, ...] = ()  # those that RLlib has pickled
    hidden: set[str] = field(default_factory=set)  # columns that become no fields
    ends: str | None = None  # a list of ends of episodes that no option replaces: rows of several recordings
    remarks: tuple[tuple[str, str], ...] = ()  # codes and texts of notes
    _derivations: dict[str, _Derivation] = field(default_factory=dict)

    def __getitem__(self, key: str) -> TableColumn:
        return self.columns[key]

    def __contains__(self, key: object) -> bool:
        return key in self.columns

    def get(self, key: str) -> TableColumn | None:
        """A column, or None."""
        return self.columns.get(key)

    @property
    def own(self) -> dict[str, TableColumn]:
        """The columns of the file that are not hidden."""
        return {k: c for k, c in self.columns.items() if k not in self._derivations and k not in self.hidden}

    @property
    def stored(self) -> list[str]:
        """The columns of the file."""
        return [k for k in self.columns if k not in self._derivations]

    def made_of(self, key: str) -> tuple[str, ...]:
        """The inputs of a derived column; none for a column of the file."""
        return self._derivations[key].inputs if key in self._derivations else ()

    @property
    def mixed(self) -> Mapping[str, Mixed]:
        """Columns of text that hold numbers, too."""
        return self.source.mixed if isinstance(self.source, ArrowFile) else {}

    def may_miss(self, key: str) -> bool:
        """Return whether rows of a column may have no value, and would read as 0."""
        if not isinstance(self.source, ArrowFile) or key in self._derivations or key not in self.columns:
            return False  # derived columns have a value in every row
        return self.columns[key].dtype.kind in "biu"

    def fill(self, keys: Collection[str]) -> None:
        """Read rows of columns that have no value as 0."""
        if isinstance(self.source, ArrowFile):
            self.source.filled.update(key for key in keys if key in self.source.columns)

    def derive(self, keys: Iterable[str]) -> None:
        """Add the derived columns among ``keys``.

        Raises
        ------
        UnknownLayout
            An input is missing, or its shape does not fit.
        """
        for key in keys:
            if key not in self.columns and (found := _parse_derived(key)) is not None:
                self._add(key, *found)

    def _add(self, key: str, kind: str, inputs: tuple[str, ...]) -> None:
        if kind in (camera_files.FOLDER, camera_files.VIDEO):
            self._add_camera(key, kind, inputs[0])
            return
        self.derive(inputs)
        for name in inputs:
            if name not in self.columns:
                raise UnknownLayout(
                    f'{self.path.name} has no "{name}".{text.did_you_mean(name, self.own)}',
                    hint=f"it holds {', '.join(self.own)}",
                )
        first = self.columns[inputs[0]]
        if kind == camera_files.AGE:
            self._add_age(key, first)
            return
        if kind == camera_files.SINCE:
            self._add_since(key, first)
            return
        if kind == ENDS:
            stops = _stops(self.source.array(inputs[0], most=MAX_METADATA), inputs[0], self.path.name)
            self._derivations[key] = _Derivation((), partial(_episode_of, stops))
            self.columns[key] = TableColumn(
                key, (int(stops[-1]) if len(stops) else 0,), np.dtype(np.int64), self.path.name
            )
            return
        if kind == STACK:
            shape, dtype = _stacked([self.columns[n] for n in inputs], self.path.name)
            self._derivations[key] = _Derivation(inputs, lambda seen, _: _stack([seen[n] for n in inputs], dtype))
            self.columns[key] = TableColumn(key, shape, dtype, self.path.name)
            return
        if kind == camera_files.FILES:
            self._add_named(key, first)
            return
        if kind == MISSING:
            self._derivations[key] = self._missing(inputs[0])
        elif kind == NOT:
            self._derivations[key] = _Derivation(inputs, lambda seen, _: seen[inputs[0]] == 0)
        elif kind in STEP_TYPES:
            self._derivations[key] = _Derivation(inputs, lambda seen, _: _is_step_type(seen[inputs[0]], kind))
        else:
            self._derivations[key] = _Derivation(inputs, lambda seen, _: _without(seen[inputs[0]], seen[inputs[1]]))
        shape = first.shape[:1] if kind == MISSING else first.shape
        self.columns[key] = TableColumn(key, shape, np.dtype(bool), self.path.name)

    def _add_named(self, key: str, names: TableColumn) -> None:
        """Add a column of the images that a column of texts names."""
        path, name = self.path, names.name
        folder, _ = camera_files.named_by(key)
        with self.rows([name]) as rows:
            first = next((str(v) for v in rows.read(0, _FEW_ROWS)[name].reshape(-1) if str(v).strip()), None)
        if first is None:
            raise UnknownLayout(f"{path.name}: {name} names no image in its first rows.", hint="every row needs one")
        image = camera_files.of_image(camera_files.find(path, folder, first))
        self._derivations[key] = _Derivation((name,), lambda seen, _: camera_files.images(path, folder, seen[name]))
        self.columns[key] = replace(names, name=key, shape=names.shape[:1], dtype=image_columns.DTYPE, image=image)

    def _add_camera(self, key: str, kind: str, name: str) -> None:
        """Add a column of the images of a folder, or of the numbers of a video's frames."""
        path = camera_files.beside(self.path, name)
        if kind == camera_files.FOLDER:
            files = camera_files.in_folder(path)
            if not files:
                raise UnknownLayout(f"{path} has no PNG or JPEG images.", hint="folder:NAME names a folder of images")
            count, image, rows = len(files), camera_files.of_image(files[0]), files.read
        else:
            track = camera_files.track(path)
            count, image = len(track.frames), EncodedColumn("mp4", (track.height, track.width, 3))
            rows = partial(_numbers, count)
        self._derivations[key] = _Derivation((), _nothing, rows=rows)
        self.columns[key] = TableColumn(key, (count,), image_columns.DTYPE, self.path.name, image)

    def _add_age(self, key: str, times: TableColumn) -> None:
        """Add a column of the seconds since the frame of a video was shown that a row has by its time stamp."""
        _, name = camera_files.age_of(key)
        shown = camera_files.shown(camera_files.track(camera_files.beside(self.path, name)))

        def age(seen: Mapping[str, Array], _: int) -> Array:
            since = seen[times.name].reshape(-1).astype(np.float64)
            return np.asarray(since - shown[camera_files.last_shown(shown, since)])

        self._derivations[key] = _Derivation((times.name,), age)
        self.columns[key] = TableColumn(key, times.shape[:1], np.dtype(np.float64), self.path.name)

    def _add_since(self, key: str, times: TableColumn) -> None:
        """Add a column of the seconds since the first row."""
        with self.rows([times.name]) as rows:
            first = float(rows.read(0, 1)[times.name].reshape(-1)[0])
        self._derivations[key] = _Derivation((times.name,), lambda seen, _: seen[times.name].astype(np.float64) - first)
        self.columns[key] = replace(times, name=key, dtype=np.dtype(np.float64))

    def _missing(self, name: str) -> _Derivation:
        if name in self._derivations:
            parts = tuple(MISSING + n for n in self._derivations[name].inputs)
            self.derive(parts)
            return _Derivation(parts, lambda seen, _: np.logical_and.reduce([seen[p] for p in parts]))
        if isinstance(self.source, ArrowFile | StepBatches):
            return _Derivation((), lambda seen, _: seen[MISSING + name], native=MISSING + name)
        return _Derivation((name,), lambda seen, _: is_nan(seen[name]))

    def rows(self, keys: Collection[str]) -> TableRows:
        """Read the rows of some columns, derived ones among them."""
        order: dict[str, None] = {}
        for key in keys:
            self._needed(key, order)
        plain_ones = {k for k in order if k not in self._derivations}
        native = {m.native for k in order if (m := self._derivations.get(k)) and m.native}
        made = {k: self._derivations[k] for k in order if k in self._derivations}
        images = {k for k in plain_ones if self.columns[k].image}
        return _DerivedRows(self.source.rows(plain_ones | native), set(keys), made, images)

    def _needed(self, key: str, order: dict[str, None]) -> None:
        """Add a column to ``order``, after its inputs."""
        for name in self._derivations[key].inputs if key in self._derivations else ():
            self._needed(name, order)
        order[key] = None

    def samples(self, key: str, starts: Collection[int], size: int) -> Iterator[Array]:
        """Blocks of ``size`` rows of one column, from each of ``starts``, which ascend."""
        if isinstance(self.source, Hdf5) and key in self.source.file and not self.columns[key].image:
            yield from (self.source.file[key][start : start + size] for start in starts)
            return
        with self.rows([key]) as rows:
            for start in starts:
                yield rows.read(start, start + size)[key]

    def constants(self, keys: Collection[str], used: Collection[str] = ()) -> Iterator[tuple[str, Array | str]]:
        """Read whole columns that are not per row, and the attributes of all objects but those that are ``used``."""
        hdf5 = self.source.file if isinstance(self.source, Hdf5) else None
        for key in keys:
            value = _text_or_array(self.source.array(key)) if hdf5 is None else plain(hdf5[key])
            if value is not None:
                yield key.removeprefix("metadata/"), value
        if isinstance(self.source, ArrowFile):
            yield from ((n, said) for n, said in self.source.described.items() if f"attributes/{n}" not in used)
        if isinstance(self.source, ZarrStore):
            for prefix, said in self.source.contents.described():
                known = {f"{prefix}attributes/{name}": value for name, value in said.items()}
                yield from ((k, v if isinstance(v, str) else json.dumps(v)) for k, v in known.items() if k not in used)
        for prefix, item in self._described():
            left = {f"attributes/{name}" for name in _own_attributes(item)}
            yield from (
                (prefix + key, value) for key, value in attributes(item) if key in left and prefix + key not in used
            )

    def attributes(self) -> list[str]:
        """Return the attributes of all objects of HDF5 and Zarr, as ``GROUP/attributes/NAME``; none are read.

        Texts about a table of Arrow are such, too.
        """
        if isinstance(self.source, ArrowFile):
            return [f"attributes/{name}" for name in self.source.described]
        if isinstance(self.source, ZarrStore):
            return [f"{of}attributes/{name}" for of, said in self.source.contents.described() for name in said]
        return [f"{prefix}attributes/{name}" for prefix, item in self._described() for name in _own_attributes(item)]

    def _described(self) -> Iterator[tuple[str, Any]]:
        """Yield the file and the objects in it that have attributes, after their paths with a slash."""
        if isinstance(self.source, Hdf5):
            yield "", self.source.file
            yield from ((f"{name}/", self.source.file[name]) for name in self.source.found.described)


def _own_attributes(item: Any) -> list[str]:
    """Return the names of the attributes of a group or dataset, without those that libraries write for themselves."""
    names = attribute_names(item)
    return [name for name in names if name not in OF_LIBRARIES] if "CLASS" in names else names


def _text_or_array(value: Array) -> Array | str:
    return "\n".join(map(str, np.ravel(value))) if value.dtype.kind in "SUO" else value


@dataclass(frozen=True, slots=True)
class _Derivation:
    """The computation of a derived column: ``inputs``, and a function of their values and the first row.

    ``rows`` reads rows [start, stop) instead, of which there may be more than of other columns.
    """

    inputs: tuple[str, ...]
    make: Callable[[Mapping[str, Array], int], Array]
    native: str | None = None  # the column that the source computes itself
    rows: Callable[[int, int], Array] | None = None


@dataclass(slots=True)
class _DerivedRows:
    inner: TableRows
    keys: set[str]
    made: Mapping[str, _Derivation]
    images: Collection[str]

    def __enter__(self) -> _DerivedRows:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.inner.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        read = self.inner.read(start, stop)
        seen = {k: image_columns.images(v) if k in self.images else texts(v) for k, v in read.items()}
        for key, made in self.made.items():
            if made.rows is not None:
                continue
            counts = [len(seen[k]) for k in made.inputs or seen if k in seen]  # columns may be of different lengths
            rows = counts[0] if counts else stop - start
            seen[key] = np.asarray(made.make(seen, start))[:rows]
        seen |= {k: made.rows(start, stop) for k, made in self.made.items() if made.rows is not None}
        return {k: seen[k] for k in self.keys}


def _nothing(_seen: Mapping[str, Array], _start: int) -> Array:
    return np.zeros(0)


def _numbers(count: int, start: int, stop: int) -> Array:
    return np.arange(min(start, count), min(stop, count))


def _parse_derived(key: str) -> tuple[str, tuple[str, ...]] | None:
    """The kind and the inputs of a derived column; None for a column of the file."""
    if key.startswith("[") and key.endswith("]"):
        return STACK, tuple(part.strip() for part in key[1:-1].split(","))
    if WITHOUT in key and not key.startswith(MISSING):
        a, _, b = key.partition(WITHOUT)
        return WITHOUT, (a, b)
    kind = key.partition(":")[0] + ":"
    if kind == camera_files.AGE and key.count(":") > 1:
        return kind, (camera_files.age_of(key)[0],)
    if kind == camera_files.FILES:
        return kind, (camera_files.named_by(key)[1],)
    known = kind in (NOT, ENDS, MISSING, FIRST, LAST, camera_files.SINCE, *camera_files.KINDS)
    return (kind, (key.removeprefix(kind),)) if known else None


def made_of(key: str, there: Collection[str]) -> tuple[str, ...]:
    """Return the columns of a file, ``there``, that a column is made of; cameras beside the file are none."""
    found = None if key in there else _parse_derived(key)
    if found is None:
        return (key,)
    kind, inputs = found
    if kind in (camera_files.FOLDER, camera_files.VIDEO):
        return ()
    return tuple(dict.fromkeys(part for name in inputs for part in made_of(name, there)))


def _stacked(columns: Sequence[TableColumn], file: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    for c in columns:
        if len(c.shape) not in (1, 2) or c.dtype.kind not in "biuf" or c.shape[0] != columns[0].shape[0]:
            raise UnknownLayout(
                f"{file}: {c.name} is {c.dtype} {list(c.shape)}; columns of numbers of one length are needed."
            )
    width = sum(c.shape[1] if len(c.shape) > 1 else 1 for c in columns)
    return (columns[0].shape[0], width), np.result_type(*(c.dtype for c in columns))


def _stack(values: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    return np.concatenate([v.reshape(len(v), -1) for v in values], axis=1, dtype=dtype)


def _without(a: Array, b: Array) -> Array:
    def is_set(v: Array) -> Array:
        return np.asarray((v != 0) & (v == v))

    return is_set(a) & ~is_set(b).reshape(a.shape)


def _is_step_type(values: Array, kind: str) -> Array:
    number, name = STEP_TYPES[kind]
    if values.dtype.kind != "O":
        return np.asarray(values == number)
    known = [text.decode() if isinstance(text, bytes) else str(text) for text in values.reshape(-1)]
    return np.array([text.upper().endswith(name) for text in known], bool).reshape(values.shape)


def _episode_of(stops: IntArray, seen: Mapping[str, Array], start: int) -> Array:
    rows = len(next(iter(seen.values()))) if seen else int(stops[-1]) - start
    return np.searchsorted(stops, np.arange(start, min(start + rows, int(stops[-1]))), side="right")


@contextmanager
def open_flat(path: Path, *, check: bool = True, fill: bool = False) -> Iterator[Table]:
    """Open Zarr, HDF5, npz, Parquet or Arrow by content, CSV or JSON lines by name.

    Raises as ``hdf5.open_file``, ``npz.open_npz``, ``open_parquet``, ``open_arrow`` and ``open_text`` do; ``fill`` as
    of ``ArrowFile``.
    """
    kind = container_of(path)
    if kind == "npz":
        with open_npz(path) as npz:
            yield npz_table(path, npz)
    elif kind == "zarr":
        with open_zarr(path) as store:
            yield zarr_table(path, store)
    elif kind not in (None, "hdf5"):
        with {"parquet": open_parquet, "arrow": open_arrow}.get(kind, open_text)(path, fill=fill) as f:
            yield _arrow_table(path, f)
    else:
        with open_file(path, check=check) as h5:
            yield hdf5_table(path, h5)


def _arrow_table(path: Path, f: ArrowFile) -> Table:
    """An open file of record batches as a table, of steps where its rows hold several."""
    f = rllib_episodes.decoded(f)
    batches = step_batches.look(path, state_of(path), f)
    source: ArrowFile | StepBatches = f if batches is None else StepBatches(f, batches)
    columns = {n: TableColumn(n, s, d, path.name) for n, (s, d) in source.columns.items()}
    made = _table(path, source, columns, tuple(f"{n} ({kind})" for n, kind in source.unfit.items()))
    if isinstance(source, StepBatches):
        made.hidden.add(step_batches.ENDS)
        made.remarks = tuple(source.remarks)
    return made


def npz_table(path: Path, npz: NpzFile) -> Table:
    """An open npz as a table."""
    if imitation.is_rollouts(npz.members):
        rollouts = imitation.Rollouts(npz)
        found = {n: TableColumn(n, s, d, path.name) for n, (s, d) in rollouts.columns.items()}
        made = _table(path, rollouts, found)
        made.hidden.add(imitation.ENDS)
        if npz.pickled:
            made.remarks = (("left-out", f"pickled objects are never read: {', '.join(npz.pickled)} was left out"),)
        return made
    members = npz.members.values()
    return _table(path, npz, {m.name: TableColumn(m.name, m.shape, m.dtype, path.name) for m in members})


def zarr_table(path: Path, store: ZarrStore) -> Table:
    """An open Zarr store as a table."""
    arrays = store.contents.arrays.values()
    columns = {a.name: TableColumn(a.name, a.shape, a.dtype, path.name) for a in arrays if not a.why}
    left_out = tuple(f"{a.name} ({a.why})" for a in arrays if a.why)
    return _table(path, store, columns, left_out)


def hdf5_table(path: Path, f: h5py.File) -> Table:
    """An open HDF5 file as a table."""
    found = contents(path, f)
    if tianshou.is_buffer(f, found):
        return _ring_table(path, f)
    layouts = sorted(found.datasets.items(), key=lambda item: item[0])
    columns = {name: TableColumn(name, of.shape, of.dtype, path.name) for name, of in layouts}
    return _table(path, Hdf5(path, f, found), columns)


def _ring_table(path: Path, f: h5py.File) -> Table:
    """A replay buffer of tianshou as a table of its filled rows, in the order of time."""
    found = tianshou.read(path, f)
    stored, left_out = tianshou.columns(f, found)
    source = tianshou.RingSource(path, stored, found)
    columns = {n: TableColumn(n, (found.rows, *d.shape[1:]), d.dtype, path.name) for n, d in stored.items()}
    ends = TableColumn(tianshou.ENDS, source.ends.shape, source.ends.dtype, path.name)
    return Table(
        path,
        source,
        {**columns, ends.name: ends},
        left_out,
        hidden={ends.name},
        ends=ends.name,
        remarks=tuple(tianshou.remarks(found)),
    )


def _table(
    path: Path, source: TableSource, columns: Mapping[str, TableColumn], left_out: tuple[str, ...] = ()
) -> Table:
    """Make a table, whose columns of encoded images are known by their first rows."""
    if len(columns) > MAX_COLUMNS:
        raise UnsafeArchive(f"{path.name} has {len(columns):,} columns; at most {MAX_COLUMNS:,} are read.")
    found = {n: _with_image(source, c) for n, c in columns.items()}
    if isinstance(source, Hdf5):
        source.images = {n for n, c in found.items() if c.image}
        return Table(path, source, found)
    binary = [n for n, c in found.items() if c.dtype.kind == "V" and not c.image]
    others = [(n, c, _dtype(c.dtype)) for n, c in found.items() if n not in binary]
    known = {n: c if dtype is c.dtype else replace(c, dtype=dtype) for n, c, dtype in others}
    packed = [n for n in binary if rllib_episodes.is_packed(_first(source, n))]
    said = (f"{n} ({'packed by RLlib' if n in packed else 'binary'})" for n in binary)
    return Table(path, source, known, (*left_out, *said), packed=tuple(packed))


def _first(source: TableSource, name: str) -> Any:
    with source.rows([name]) as rows:
        values = rows.read(0, 1)[name].reshape(-1)
    return values[0] if len(values) else None


def _with_image(source: TableSource, c: TableColumn) -> TableColumn:
    if not image_columns.may_hold(c.dtype, c.shape):
        return c
    if isinstance(source, Hdf5):
        first = source.file[c.name][:1]
    else:
        with source.rows([c.name]) as rows:
            first = rows.read(0, 1)[c.name]
    kind = image_columns.kind(first)
    if kind is None and isinstance(source, ArrowFile) and source.read_paths(c.name):
        return replace(c, dtype=np.dtype(object))
    return c if kind is None else replace(c, shape=c.shape[:1], dtype=image_columns.DTYPE, image=kind)


CONTAINERS: Mapping[str, Callable[[Path], bool]] = {
    "zarr": is_zarr,
    "npz": is_npz,
    "hdf5": is_hdf5,
    "parquet": is_parquet,
    "arrow": is_arrow,
    "csv": is_csv,
    "jsonl": is_json_lines,
}
IN_WORDS: Mapping[str, str] = {
    "zarr": "Zarr",
    "npz": "npz",
    "hdf5": "HDF5",
    "parquet": "Parquet",
    "arrow": "Arrow",
    "csv": "CSV",
    "jsonl": "JSON lines",
}


def container_of(path: Path) -> str | None:
    """Return which of ``CONTAINERS`` a file is; None for others. A file that has not changed is not opened again."""
    try:
        return _look(path) if path.is_dir() else _container(path, disk.state(path))
    except OSError:
        return None  # it is not there


def _look(path: Path) -> str | None:
    return next((name for name, known in CONTAINERS.items() if known(path)), None)


@lru_cache(_MOST_KNOWN)
def _container(path: Path, state: disk.State) -> str | None:
    return _look(path)


def is_flat(path: Path, container: str | None = None) -> bool:
    """Return whether ``open_flat`` knows the format of a file, or whether it is the one that is named.

    Raises
    ------
    ReaderError
        There is no format of that name.
    """
    if container not in (None, *CONTAINERS):
        raise ReaderError(f'There is no container "{container}".', hint=f"one of {', '.join(CONTAINERS)}")
    return container_of(path) is not None if container is None else CONTAINERS[container](path)


def is_empty(path: Path) -> bool:
    """Return whether a file has the name or the content of a table and no rows; False for a file that is damaged."""
    try:
        start, size = _head(path), path.stat().st_size
    except OSError:
        return False
    if path.suffix.lower() not in TABLES:
        return False
    if not start.strip() and size == len(start):
        return True
    if path.suffix.lower() in CSV:  # a header of one name, or a last line without its end, are a header, too
        return size == len(start) and len(start.split()) > 0 and len(start.strip().splitlines()) == 1
    if path.suffix.lower() == ".npz" and start.startswith(EMPTY_ZIP):
        return True
    try:
        with open_flat(path) as table:
            return not any(not c.shape or c.shape[0] for c in table.columns.values())
    except (RldsError, OSError, ValueError):
        return False


def _head(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(1 << 16)


def no_rows(name: str) -> UnknownLayout:
    """Return the error for a file without rows."""
    return UnknownLayout(f"{name} has no rows.", hint="--skip-bad leaves it out of several; or remove the file")


def _dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Texts as HDF5 has them."""
    return np.dtype(h5py.string_dtype()) if dtype.kind in "SUO" else dtype


def texts(values: Array) -> Array:
    """Return texts as str, and other values as they are."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace").astype(object)
    return values.astype(object) if values.dtype.kind == "U" else values


def _stops(values: Array, key: str, name: str) -> IntArray:
    """Return the rows behind the ends of episodes, int64 [E], from a list of ends or of lengths."""
    flat = values.reshape(-1)
    if flat.dtype.kind not in "iu" or (len(flat) and int(flat.min()) < 0):
        raise UnknownLayout(f"{name}: {key} is {values.dtype} {list(values.shape)}; a list of row numbers is expected.")
    stops = flat.astype(np.int64)
    return stops if (np.diff(stops) > 0).all() and "len" not in key.lower() else np.cumsum(stops)
