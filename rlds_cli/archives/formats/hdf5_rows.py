"""Read rows of HDF5 datasets forward, block by block; threads inflate deflated chunks.

h5py inflates on one core and holds its lock meanwhile. Here the main thread only fetches the stored bytes; a small pool
inflates and unshuffles them (zlib lets go of the interpreter), for this block and, once it is asked for, the next::

    dataset [N, 17] in chunks of (15625, 1)        band 0        band 1        band 2
                                               |17 chunks    |17 chunks    |17 chunks    |
    read(0, 20000)                              ###########################               inflated, waited for
    meanwhile                                                              -------------  looked ahead

Every chunk is inflated once, although blocks share it. h5py reads datasets with other filters than deflate. Numbers
that no filter has packed are read by HDF5 alone.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np

from rlds_cli.archives.formats import hdf5_limits
from rlds_cli.archives.formats.hdf5 import Layout, reading
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, UnsafeArchive

MAX_THREADS = 4
MIN_CHUNK_BYTES = 2048
AHEAD_BYTES = 32 << 20
TASK_BYTES = 256 << 10
KNOWN_FILTERS = {hdf5_limits.DEFLATE, hdf5_limits.SHUFFLE}
# A band of narrow and high chunks may be a whole dataset. If it is much larger than the file, h5py reads the rows
# and unpacks each chunk again for every block of rows; a small file must not cause that too often.
MAX_BAND, MAX_BAND_RATIO, MAX_REPEATED_RATIO = 256 << 20, 4, 16


class RowReader:
    """Rows of several datasets of one open file.

    Parameters
    ----------
    path : Path
        The file, for messages.
    datasets : mapping of str to h5py.Dataset
        By any name; each with at least one axis. Texts are returned as object arrays of str.
    as_bytes : collection of str
        Names of texts that are returned as bytes.

    Example
    -------
    >>> with RowReader(path, {"observation": f["observations"]}) as rows:  # doctest: +SKIP
    ...     block = rows.read(0, 4096)["observation"]
    """

    def __init__(self, path: Path, datasets: Mapping[str, h5py.Dataset], *, as_bytes: Collection[str] = ()) -> None:
        self._path, self._as_bytes = path, as_bytes
        self._datasets = datasets
        deflated = {name: d for name, d in datasets.items() if _is_deflated(d)}
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) if deflated else None
        self._bands = {name: _Bands(d, self._pool) for name, d in deflated.items()} if self._pool else {}

    def __enter__(self) -> RowReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every dataset, forward only; later reads do not change the views.

        Raises
        ------
        CorruptArchive
            A chunk is missing, or cannot be inflated.
        """
        for name, bands in self._bands.items():
            with reading(self._path, name):
                bands.forget(start)
                bands.request(start, stop)
        self._look_ahead(stop, 2 * stop - start)
        return {name: self._collect(name, start, stop) for name in self._datasets}

    def _look_ahead(self, start: int, stop: int) -> None:
        budget = AHEAD_BYTES
        for name, bands in self._bands.items():
            if bands.band_bytes > budget:
                continue
            budget -= bands.band_bytes
            with reading(self._path, name):
                bands.request(start, min(stop, start + bands.rows))

    def _collect(self, name: str, start: int, stop: int) -> Array:
        d = self._datasets[name]
        with reading(self._path, d.name):
            if name in self._bands:
                return self._bands[name].collect(start, stop)
            text = name not in self._as_bytes and h5py.check_string_dtype(d.dtype)
            rows: Array = (d.asstr() if text else d)[start:stop]
            return rows


class PlainRows:
    """Rows of datasets of one open file that are all plain (`hdf5.Layout`), as `RowReader` reads them.

    HDF5 copies them by itself: what h5py prepares for each dataset takes five times as long as reading a short one.
    """

    def __init__(self, path: Path, file: h5py.File, layouts: Mapping[str, Layout]) -> None:
        self._path, self._layouts = path, layouts
        self._datasets = {name: h5py.h5d.open(file.id, name.encode()) for name in layouts}

    def __enter__(self) -> PlainRows:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every dataset, or as many as there are.

        Raises
        ------
        CorruptArchive
            They cannot be read, or the file was changed.
        """
        return {name: self._rows(name, start, stop) for name in self._layouts}

    def _rows(self, name: str, start: int, stop: int) -> Array:
        layout, d = self._layouts[name], self._datasets[name]
        length, *row = layout.shape
        stop = min(stop, length)
        rows: Array = np.empty((max(stop - start, 0), *row), layout.dtype)
        if not rows.size:
            return rows
        chosen = h5py.h5s.ALL
        with reading(self._path, f"/{name}"):
            if len(rows) < length:
                chosen = d.get_space()
                chosen.select_hyperslab((start, *(0 for _ in row)), rows.shape)
            d.read(h5py.h5s.create_simple(rows.shape), chosen, rows)
        return rows


def components(values: Array) -> Array:
    """Rows of any shape as rows of their components, [N, prod(shape)]; a view where that can be."""
    return values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))


def nan_count(values: Array) -> int:
    """Return the number of NaN values."""
    if values.dtype.kind not in "fc":
        return 0
    # One NaN makes the sum NaN (so do opposite infinities): a third of the cost of asking every value.
    with np.errstate(all="ignore"):
        clean = not np.isnan(values.sum(dtype=np.result_type(values.dtype, np.float32)))
    return 0 if clean else int(np.isnan(values).sum())


class _Bands:
    """One deflated dataset: bands of rows, one chunk high, each inflated by the pool when it is first asked for."""

    def __init__(self, d: h5py.Dataset, pool: ThreadPoolExecutor) -> None:
        self.dataset = d
        self.rows = int(d.chunks[0])
        self.band_bytes = self.rows * int(np.prod(d.shape[1:], dtype=np.int64)) * d.dtype.itemsize
        self._pool = pool
        self._filters = hdf5_limits.filters(d.id)
        self._chunks = tuple(map(int, d.chunks))
        self._fill = d.fillvalue
        self._chunk_bytes = int(np.prod(d.chunks, dtype=np.int64)) * d.dtype.itemsize
        self._bands: dict[int, tuple[Array, list[Future[None]]]] = {}

    def forget(self, before: int) -> None:
        """Let go of the bands that end before row ``before``."""
        for k in [k for k in self._bands if (k + 1) * self.rows <= before]:
            del self._bands[k]

    def request(self, start: int, stop: int) -> None:
        """Have the pool inflate the bands of rows ``start`` to ``stop``."""
        stop = min(stop, self.dataset.shape[0])
        for k in range(start // self.rows, -(-stop // self.rows)):
            if k not in self._bands:
                self._bands[k] = self._load(k)

    def collect(self, start: int, stop: int) -> Array:
        """Wait for rows ``start`` to ``stop``."""
        try:
            parts = [self._rows(k, start, stop) for k in range(start // self.rows, -(-stop // self.rows))]
        except CorruptArchive as e:
            name = Path(self.dataset.file.filename).name
            raise CorruptArchive(f"{name}: {self.dataset.name} cannot be read: {e.message}.") from e
        except (zlib.error, ValueError):
            # A damaged chunk, or one stored in a way that is not known here: h5py decides, and says why.
            return np.asarray(self.dataset[start:stop])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, *self.dataset.shape[1:]), self.dataset.dtype)

    def _rows(self, k: int, start: int, stop: int) -> Array:
        band, pending = self._bands[k]
        while pending:
            pending.pop().result()
        at = k * self.rows
        return band[max(start - at, 0) : stop - at]

    def _load(self, k: int) -> tuple[Array, list[Future[None]]]:
        d, at = self.dataset, k * self.rows
        band: Array = np.empty((min(self.rows, d.shape[0] - at), *d.shape[1:]), d.dtype)
        pieces, size, pending = [], 0, []
        for corner in product(*(range(0, n, c) for n, c in zip(d.shape[1:], self._chunks[1:], strict=True))):
            pieces.append((band[self._within(corner)], *self._stored(at, corner)))
            size += self._chunk_bytes
            if size >= TASK_BYTES:
                pending.append(self._pool.submit(self._inflate, pieces))
                pieces, size = [], 0
        return band, [*pending, self._pool.submit(self._inflate, pieces)] if pieces else pending

    def _within(self, corner: tuple[int, ...]) -> tuple[slice, ...]:
        return (slice(None), *(slice(c, c + n) for c, n in zip(corner, self._chunks[1:], strict=True)))

    def _stored(self, at: int, corner: tuple[int, ...]) -> tuple[int, bytes | None]:
        """The filters that a chunk went without, as a mask, and its stored bytes; None if it was never written."""
        where = (at, *corner)
        try:
            mask, stored = self.dataset.id.read_direct_chunk(where)
        except (OSError, RuntimeError, MemoryError):  # h5py takes "no size" for a size
            if self.dataset.id.get_chunk_info_by_coord(where).byte_offset is None:
                return 0, None
            raise
        return mask, stored

    def _inflate(self, pieces: list[tuple[Array, int, bytes | None]]) -> None:
        for target, mask, stored in pieces:
            if stored is None:
                target[...] = self._fill
            else:
                active = [code for i, code in enumerate(self._filters) if not mask >> i & 1]
                _inflate_into(target, stored, active, self._chunk_bytes, self._chunks)


def _inflate_into(target: Array, stored: bytes, filters: list[int], size: int, chunk: tuple[int, ...]) -> None:
    data = stored
    for code in reversed(filters):
        if code == hdf5_limits.DEFLATE:
            data = hdf5_limits.inflated(data, size)
        else:
            data = hdf5_limits.unshuffled(data, target.dtype.itemsize)
    if len(data) != size:
        raise ValueError(f"a chunk has {len(data)} bytes, not {size}")
    values = np.frombuffer(data, np.uint8 if target.dtype == bool else target.dtype).reshape(chunk)
    trimmed = values[tuple(slice(n) for n in target.shape)]
    if target.dtype == bool:
        np.not_equal(trimmed, 0, out=target)
    else:
        target[...] = trimmed


def _is_deflated(d: h5py.Dataset) -> bool:
    if not d.chunks or d.dtype.kind not in "biuf" or 0 in d.shape:
        return False
    filters = set(hdf5_limits.filters(d.id))
    if hdf5_limits.DEFLATE not in filters or filters - KNOWN_FILTERS:
        return False
    if int(np.prod(d.chunks, dtype=np.int64)) * d.dtype.itemsize < MIN_CHUNK_BYTES:
        return False
    band, stored = d.chunks[0] * math.prod(d.shape[1:]) * d.dtype.itemsize, d.id.get_storage_size()
    if band > MAX_BAND and band > MAX_REPEATED_RATIO * stored:
        raise UnsafeArchive(
            f"{Path(d.file.filename).name}: {d.name} has chunks of {list(d.chunks)}: a row cannot be read without "
            f"unpacking {band:,} bytes.",
            hint="h5repack -l CHUNK=... writes it with chunks of few rows",
        )
    if band > MAX_BAND and band > MAX_BAND_RATIO * stored:
        return False
    # The stored values must be laid out as NumPy's: no odd precisions or offsets.
    return bool(d.id.get_type() == h5py.h5t.py_create(d.dtype, logical=True))
