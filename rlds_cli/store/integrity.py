"""Hash a dataset's directory again and compare it with its manifest; check that its parts agree.

The rows of each field are compared with their digests episode by episode, the episode table with the manifest and with
the flags and rewards of the rows, and all other files with the list of their digests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files.arrays import Segment
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.threads import each
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.store import (
    compression,
    digests,
    episode_table,
    files,
    layouts,
    lookups,
    metadata,
    references,
    sealing,
    statistics,
    videos,
)
from rlds_cli.store.columns import VIDEOS, has_row_digests, stored_row
from rlds_cli.store.compression import read_range
from rlds_cli.store.local import LocalFiles
from rlds_cli.store.manifest import Manifest, Stats, StoredField
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.store.sealing import Problem
from rlds_cli.store.table import FixedTable
from rlds_cli.ted import COMPUTED, CUT, FLAGS, TERMINATED, TRUNCATED, VIDEO, Computed, EpisodeTable

_THREADS = 8
_TRUNCATIONS = replace(COMPUTED["num_terminated"], fields=(FLAGS[1],), of_steps=lambda truncated: truncated)
_MISSING_ROWS = 1 << 24  # more rows than fit: a truncated file is reported, a larger claim refused
_FEW_BYTES = 4 << 20  # of rows: they are hashed before threads have started
_PIECE = 1 << 20
_DECODED = 64 << 20
_UNREADABLE = b"\0" * 32
# What zarr-python and its codecs raise over damaged files.
_FAILURES = (DamagedDataset, OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError, AttributeError)
_STRIDE = 1 << 20
_ROUNDING = 1e-9
Read = Callable[[int, int], Array]


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a dataset; ``ok`` if there are no ``problems``.

    ``fingerprint`` is that of the content on disk, None if a part cannot be read. ``arrays`` is the number of fields,
    ``bytes`` their size. ``remarks`` are about the archive or the source dataset. ``packed`` are damaged files that
    loaders packed from the dataset.
    """

    id: str
    path: Path
    ok: bool
    fingerprint: str | None
    arrays: int
    bytes: int
    problems: tuple[Problem, ...]
    remarks: tuple[str, ...]
    hint: str | None = None
    packed: tuple[Path, ...] = ()
    version: int = 1


def verify_directory(path: Path, *, jobs: int | None = None, progress: Progress | bool | None = None) -> Verification:
    """Check a directory by itself, without its archive or source dataset."""
    try:
        m = Manifest.read(path)
        for source in references.sources(path):
            files.check_tree(source.place(m.id, path))
        _check_rows(path, m)
    except RldsError as e:
        return Verification(path.name, path, False, None, 0, 0, (Problem("manifest", e.message),), ())
    threads = jobs or min(_THREADS, os.cpu_count() or 1)
    places, problems = _places(path, m)
    checked = [] if places is None else _check_fields(path, m, places, threads, shown(progress))
    problems += [p for c in checked for p in c.problems]
    columns, wrong = _check_episodes(path, {c.name for c in checked if not c.problems}, threads)
    problems += [p for p in wrong if p not in problems]
    problems += [*_check_others(path, m), *sealing.check(path, m, threads)]
    known = {c.name: c.digest for c in checked if c.digest is not None}
    fingerprint = None
    if columns is not None and len(known) == len(m.fields):
        fingerprint = digests.ContentDigests(known, columns).fingerprint
        if fingerprint != m.fingerprint and not problems:
            problems.append(Problem("episodes", f"the fingerprint is {fingerprint}; the manifest says {m.fingerprint}"))
    what = (m.id, path, not problems, fingerprint, len(checked), sum(c.bytes for c in checked), tuple(problems), ())
    return Verification(*what, version=m.version)


def _places(path: Path, m: Manifest) -> tuple[Mapping[str, Array] | None, list[Problem]]:
    """Read where the episodes lie; None if the episode table is damaged, without which no row is known to count."""
    try:
        columns = episode_table.read_columns(path / "episodes", m)
        episode_table.check_places(columns, m)
    except (RldsError, OSError, ValueError, KeyError, TypeError) as e:
        return None, [Problem("episodes", e.message if isinstance(e, RldsError) else f"{type(e).__name__}: {e}")]
    return columns, []


def _check_rows(path: Path, m: Manifest) -> None:
    """Refuse a number of rows far beyond the size of the files."""
    room = max((rows_there(path, f) for f in m.fields), default=0)
    if m.counts.rows > room + _MISSING_ROWS:
        raise DamagedDataset(f"{m.counts.rows:,} rows are in the manifest; the files hold {room:,}.")


def _check_fields(
    path: Path, m: Manifest, places: Mapping[str, Array], threads: int, progress: Progress
) -> list[Checked]:
    rows = m.counts.rows
    sizes = {f.name: logical_size(path, f, rows) for f in m.fields}
    tell = _HashProgress(m.id, sum(sizes.values()), progress)
    if sum(sizes.values()) < _FEW_BYTES:
        checked = [check_field(path, m, f, places, tell) for f in m.fields]
    else:
        with ThreadPoolExecutor(threads) as pool:
            # Largest first, so that the threads end at about the same time.
            order = sorted(m.fields, key=lambda f: -sizes[f.name])
            checked = list(pool.map(lambda f: check_field(path, m, f, places, tell), order))
    return sorted(checked, key=lambda c: c.name)


class _HashProgress:
    """Reports the bytes that all threads have hashed."""

    def __init__(self, id: str, total: int, progress: Progress) -> None:
        self._id, self._total, self._progress = id, total, progress
        self._done = 0
        self._lock = Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done = min(self._total, self._done + size)
            self._progress(Event(self._id, "verify", "", self._done, self._total))


def _check_episodes(path: Path, sound: set[str], threads: int) -> tuple[dict[str, str] | None, list[Problem]]:
    """Check the episode table, and the statistics of ``sound`` fields; returns its digests and the problems."""
    try:
        store = Store(FixedTable(LocalFiles(path, moves=True), check=False))
        table = store.episode_table()
        problems = check_table(store, table)
        if not problems:
            found: dict[str, list[Problem]] = {name: [] for name in sorted(sound)}
            each(lambda name: found[name].extend(check_statistics(store, table, name)), list(found), threads)
            problems = [p for some in found.values() for p in some]
        return digests.of_table(table), problems
    except (RldsError, OSError, ValueError, KeyError, IndexError, TypeError) as e:
        return None, [Problem("episodes", e.message if isinstance(e, RldsError) else f"{type(e).__name__}: {e}")]


def _check_others(path: Path, m: Manifest) -> Iterator[Problem]:
    """Yield problems of all other parts: metadata, sources, string tables, the documents of groups."""
    fields, is_segmented = {path / f.path for f in m.fields}, cache(layouts.is_segmented)
    there = lookups.files(path, damaged={})  # lookups are compared with their digests as they would be written
    for document in sorted(n for n, file in there.items() if n.endswith("/zarr.json") and isinstance(file, Path)):
        array = (path / document).parent
        if not fields.isdisjoint((array, *array.parents)) or is_segmented(array.parent):
            continue
        try:
            if layouts.find(array) is None:
                layouts.check_group(array)
        except RldsError as e:
            yield Problem(array.relative_to(path).as_posix(), e.message)
    if m.archive and not (path / "sources").exists():
        yield Problem("sources", "is missing")
    yield from _check_metadata(path, m)


def _check_metadata(path: Path, m: Manifest) -> Iterator[Problem]:
    """Yield problems of the data that are not per row: each name of the manifest has a value."""
    try:
        values = metadata.read(path)
        missing = sorted(set(m.metadata) - values.index.keys())
        for name in values.index:
            values[name]
    except RldsError as e:
        yield Problem(metadata.DIRECTORY, e.message)
        return
    if missing:
        yield Problem(metadata.DIRECTORY, f"is missing {missing[0]!r}" if values.index else "is missing")


# -- the rows of a field


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a field's check; ``digest`` is that of the rows on disk, None if some of them cannot be read."""

    name: str
    digest: str | None
    bytes: int
    problems: tuple[Problem, ...]


def _nothing(size: int) -> None:
    pass


def logical_size(dataset: Path, f: StoredField, rows: int) -> int:
    """Estimate the number of bytes that ``check_field`` hashes."""
    if f.kind == "array":
        return rows * arrays.row_bytes((0, *f.shape), f.dtype)
    if f.kind == "text":
        return rows * 4
    try:
        files = dataset / VIDEOS if f.codec == VIDEO else dataset
        return layouts.open_document(files / f.path / "bytes")[0][0] + rows * 8
    except DamagedDataset:
        return 0


def rows_there(dataset: Path, f: StoredField) -> int:
    """Estimate the number of rows that a field's files hold; 0 if they cannot be inspected."""
    dtype, shape = stored_row(f)
    array = dataset / f.path
    if f.kind == "frames" and f.codec != VIDEO:
        array, dtype, shape = array / "offsets", np.dtype("int64"), (2,)
    width = arrays.row_bytes((0, *shape), dtype)
    try:
        found = layouts.layout(array)
        if found.compressed:
            return min(found.shape[0], found.shard * sum(1 for _ in (references.place(array) / "c").iterdir()))
        return max((s.start + s.file.stat().st_size // width for s in found.segments if s.size), default=0)
    except (DamagedDataset, OSError):
        return 0


def check_field(
    dataset: Path, m: Manifest, f: StoredField, episodes: Mapping[str, Array], told: Callable[[int], None] = _nothing
) -> Checked:
    """Hash all episodes of a field and compare them with the stored digests.

    Parameters
    ----------
    episodes : mapping
        The columns ``start``, ``length`` and ``num_observed`` of the episode table.
    told : callable
        Called with the number of bytes that were hashed since the last call.
    """
    problems = _structure(dataset, f, m.counts.rows, episodes)
    hashed, unreadable, size = _hash_episodes(dataset, f, episodes, told)
    if unreadable and not problems:
        first, why = next(iter(unreadable.items()))
        problems.append(Problem(f.name, why, episodes=(first, first + 1)))
    found = digests.as_array(hashed)
    digest = digests.of_field(f, found)
    problems += _differences(dataset, f, episodes, found, digest, set(unreadable))
    return Checked(f.name, None if unreadable else digest, size, tuple(problems))


class _HashedRows:
    """Reads the rows of a field in the form that its episodes are hashed in: bytes, or the digests of large rows.

    Attributes
    ----------
    width : int
        The approximate bytes that a row takes to read.
    bytes : int
        Bytes that were read.
    """

    def __init__(self, dataset: Path, f: StoredField) -> None:
        self._path, self._f, self.bytes = dataset / f.path, f, 0
        self._layouts: dict[Path, layouts.ArrayLayout] = {}
        self.width, self._texts, self._files = 4, list[str | None](), np.zeros((0, 32), np.uint8)
        self._of_images = 0  # bytes
        if f.codec == VIDEO:
            self.width, self._files = 8, self._hash_files(dataset / VIDEOS / f.path)
        elif f.kind == "frames":
            rows = max(1, layouts.open_document(self._path / "offsets")[0][0])
            self._of_images = layouts.open_document(self._path / "bytes")[0][0]
            self.width = 16 + self._of_images // rows
        elif f.kind == "text":
            self._texts = [*layouts.read_strings(dataset / "text" / f.path), None]
        else:
            self.width = arrays.row_bytes((0, *f.shape), f.dtype)

    def episodes(self, a: int, b: int, start: IntArray, count: IntArray) -> digests.Digests:
        """Return the digests of episodes that lie in rows a to b."""
        if self._f.kind == "text":
            codes = self._codes(a, b)
            return digests.of_text_episodes(codes, self._texts, start - a, count)
        return digests.of_episodes(self._rows(a, b), start - a, count)

    def episode(self, a: int, b: int) -> bytes:
        """Return the digest of one episode of rows a to b, which may be larger than memory."""
        if self._f.kind == "text":
            return digests.of_texts([self._texts[c] for c in self._codes(a, b).tolist()])
        h, step = hashlib.sha256(), max(1, _PIECE // max(1, self.width))
        for at in range(a, b, step):
            h.update(arrays.raw(self._rows(at, min(at + step, b))))
        return h.digest()

    def _rows(self, a: int, b: int) -> Array:
        f = self._f
        if f.kind == "frames" and f.codec != VIDEO:
            spans = np.array(read_range(self._path / "offsets", a, b))
            there = spans[spans[:, 0] != spans[:, 1]]
            if _misplaced(there).any():
                raise DamagedDataset("has decreasing offsets")
            first, stop = (int(there[0, 0]), int(there[-1, 1])) if len(there) else (0, 0)
            if first < 0 or stop > self._of_images:
                raise DamagedDataset(f"has offsets beyond the {self._of_images:,} bytes of its images")
            data = self._read(self._path / "bytes", first, stop, 1)
            return digests.of_frames(data, np.where(spans[:, :1] == spans[:, 1:], 0, spans - first))
        dtype, shape = stored_row(f)
        width = arrays.row_bytes((0, *shape), dtype)
        rows = self._read(self._path, a, b, width).view(dtype).reshape(b - a, *shape)
        if f.codec == VIDEO:
            if len(rows) and not -1 <= rows[:, 0].min() <= rows[:, 0].max() < len(self._files):
                raise DamagedDataset(f"refers to videos beyond the {len(self._files):,}")
            return digests.video_rows(rows, self._files)
        return digests.of_rows(rows) if has_row_digests(f) else rows

    def _codes(self, a: int, b: int) -> Array:
        codes = self._read(self._path, a, b, 4).view(np.int32)
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(self._texts) - 1:
            raise DamagedDataset(f"has codes beyond the {max(0, len(self._texts) - 1):,} texts")
        return codes

    def _hash_files(self, directory: Path) -> digests.Digests:
        found = []
        for a, b in layouts.read(directory / "spans").tolist():
            h = hashlib.sha256()
            for piece in self._pieces(directory / "bytes", a, b, 1):
                h.update(piece)
            self.bytes += b - a
            found.append(h.digest())
        return digests.as_array(found)

    def _read(self, array: Path, a: int, b: int, width: int) -> Array:
        data = np.empty((b - a) * width, np.uint8)
        at = 0
        for piece in self._pieces(array, a, b, width):
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        self.bytes += at
        return data

    def _pieces(self, array: Path, a: int, b: int, width: int) -> Iterator[memoryview | bytes]:
        """Read the bytes of rows a to b. Plain files are not mapped: a failing disk is an error then, not a signal."""
        if width == 0 or a == b:
            return
        if array not in self._layouts:  # a selection has as many places to read from as episodes
            self._layouts[array] = layouts.layout(array)
        layout = self._layouts[array]
        if layout.compressed:
            step = max(1, _DECODED // width)
            for start in range(a, b, step):
                yield arrays.raw(arrays.little_endian(read_range(array, start, min(start + step, b))))
            return
        at = a
        for s in layout.segments:
            first, stop = max(at, s.start), min(b, s.start + s.rows)
            if first < stop:
                yield bytes((first - at) * width)  # rows of no segment
                yield from _read(s.file, (first - s.start) * width, (stop - first) * width)
                at = stop
        yield bytes((b - at) * width)


def _hash_episodes(
    dataset: Path, f: StoredField, episodes: Mapping[str, Array], told: Callable[[int], None]
) -> tuple[list[bytes], dict[int, str], int]:
    """Return the digests of all episodes, the reasons why some (by number) cannot be read, and the bytes read."""
    start, count = episodes["start"], digests.counted(f, episodes["length"], episodes["num_observed"])
    hashed, unreadable = [_UNREADABLE] * len(start), dict[int, str]()
    try:
        rows = _HashedRows(dataset, f)
    except _FAILURES as e:
        return hashed, dict.fromkeys(range(len(start)), _why(e)), 0
    done = 0
    for first, stop in _groups(start, count, max(1, _PIECE // max(1, rows.width)), gaps=f.kind != "frames"):
        a, b = int(start[first]), int(start[stop - 1] + count[stop - 1])
        try:
            if stop - first == 1:
                hashed[first] = rows.episode(a, b)
            else:
                found = rows.episodes(a, b, start[first:stop], count[first:stop])
                hashed[first:stop] = [d.tobytes() for d in found]
        except _FAILURES:
            for k in range(first, stop):
                try:
                    hashed[k] = rows.episode(int(start[k]), int(start[k] + count[k]))
                except _FAILURES as e:
                    unreadable[k] = _why(e)
        told(rows.bytes - done)
        done = rows.bytes
    return hashed, unreadable, rows.bytes


def _groups(start: IntArray, count: IntArray, most: int, *, gaps: bool) -> Iterator[tuple[int, int]]:
    """Divide episodes into runs that follow each other on the rows, of at most ``most`` rows; longer ones are alone.

    With ``gaps``, up to three times as many rows of no episode as the one before has may lie between two of them.
    """
    stops = start + count
    apart = start[1:] - stops[:-1]
    near = np.concatenate([[False], (apart >= 0) & (apart <= (3 * count[:-1] if gaps else 1))]).tolist()
    first, edges = 0, list(zip(start.tolist(), stops.tolist(), strict=True))
    for k, (_, b) in enumerate(edges):
        if k > first and (not near[k] or b - edges[first][0] > most):
            yield first, k
            first = k
    if edges:
        yield first, len(edges)


def _structure(dataset: Path, f: StoredField, rows: int, episodes: Mapping[str, Array]) -> list[Problem]:
    """Find damage in the files of a field that shows without reading rows."""
    path = dataset / f.path
    try:
        if f.codec == VIDEO:
            return [*_array(path, f.name, (rows, 2), "int32"), *_videos(dataset / VIDEOS / f.path, f.name)]
        if f.kind == "frames":
            size = layouts.open_document(path / "bytes")[0]
            return [
                *_array(path / "offsets", f"{f.name} offsets", (rows, 2), "int64"),
                *_array(path / "bytes", f"{f.name} bytes", size, "uint8"),
                *_offsets(path, f, size[0], episodes),
            ]
        if f.kind == "text":
            return _array(path, f.name, (rows,), "int32")
        return _array(path, f.name, (rows, *f.shape), f.dtype)
    except _FAILURES as e:
        return [Problem(f.name, _why(e))]


def _videos(path: Path, name: str) -> list[Problem]:
    size = layouts.open_document(path / "bytes")[0]
    problems = _array(path / "bytes", f"{name} videos", size, "uint8")
    videos.check_spans(path / "spans", layouts.read(path / "spans"), size[0])
    if videos.tables_digest(path) != videos.stored_digest(path):
        problems.append(Problem(f"{name} videos", "differ (the tables that say where frames lie)"))
    return problems


def _why(error: Exception) -> str:
    return error.message if isinstance(error, RldsError) else f"cannot be read: {error}"


def _array(directory: Path, name: str, shape: tuple[int, ...], dtype: str) -> list[Problem]:
    found = layouts.open_document(directory)
    if found != (shape, np.dtype(dtype)):
        what = f"zarr.json says {found[1]} {list(found[0])}; the manifest says {dtype} {list(shape)}"
        return [Problem(name, what)]
    try:
        layout = layouts.layout(directory)
    except DamagedDataset:
        return [Problem(name, "zarr.json does not describe the file")]
    if layout.compressed:
        compression.check_shards(directory)
        return []
    problems = []
    for k, s in enumerate(layout.segments):
        if s.size:
            layouts.check_size(s.file, s.size)
            problems += _tail(s, f"{name}, segment {k}" if layout.segmented else name)
    return problems


def _tail(s: Segment, name: str) -> list[Problem]:
    """Check the padding and the index behind the rows, which other Zarr readers need; a chunk has none."""
    if s.chunk:
        return []
    expected = arrays.tail(s.shape, s.dtype)
    start = arrays.row_bytes(s.shape, s.dtype) * s.rows
    with s.file.open("rb") as f:
        f.seek(start)
        found = f.read()
    if found == expected:
        return []
    return [Problem(name, "differ (behind the rows: padding or index)", bytes=(start, start + len(expected)))]


def _misplaced(spans: IntArray) -> BoolArray:
    """Return which frames [n] end before they begin, or begin before the one before ends, unless they are that one."""
    wrong = spans[:, 0] > spans[:, 1]
    wrong[1:] |= (spans[1:, 0] < spans[:-1, 1]) & (spans[1:] != spans[:-1]).any(1)
    return np.asarray(wrong)


def _offsets(path: Path, f: StoredField, size: int, episodes: Mapping[str, Array]) -> list[Problem]:
    """Check that the frames of episodes lie in order within the bytes; other rows may hold anything."""
    offsets = read_range(path / "offsets", 0, layouts.open_document(path / "offsets")[0][0])
    wrong = np.flatnonzero(_misplaced(offsets) | (offsets[:, 0] < 0) | (offsets[:, 1] > size))
    order = np.argsort(episodes["start"], kind="stable")
    start = episodes["start"][order]
    if not len(start):
        return []
    count = digests.counted(f, episodes["length"][order], episodes["num_observed"][order])
    of = np.searchsorted(start, wrong, "right") - 1
    if not ((of >= 0) & (wrong < start[of] + count[of])).any():
        return []
    return [Problem(f"{f.name} offsets", f"do not increase within the {size:,} bytes of frames")]


def _read(file: Path, start: int, size: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as f:
        f.seek(start)
        while size:
            piece = f.read(min(size, _PIECE))
            if not piece:
                raise DamagedDataset(f"{file} ends {size:,} bytes before it should")
            size -= len(piece)
            yield piece


def _differences(
    dataset: Path,
    f: StoredField,
    episodes: Mapping[str, Array],
    found: digests.Digests,
    digest: str,
    unreadable: set[int],
) -> list[Problem]:
    """Find the episodes that have changed, without those known to be unreadable."""
    try:
        stored: Any = lookups.read(dataset / "digests" / f.path)
        intact = digests.of_field(f, stored) == f.digest
    except _FAILURES as e:
        stored, intact = None, False
        if digest == f.digest:
            return [Problem(f"digests of {f.name}", _why(e))]
    if digest == f.digest and not intact:
        return [Problem(f"digests of {f.name}", "are not those of the manifest; the rows are right")]
    if not intact or stored.shape != found.shape:
        return [Problem(f.name, "differs from its digest in the manifest; its episodes' digests are damaged too")]
    bad = np.array([k for k in np.flatnonzero((stored != found).any(1)) if k not in unreadable], np.int64)
    problems = [Problem(f.name, "differ" + "s" * (a == b), episodes=(a, b + 1)) for a, b in _runs(bad)]
    return problems + _row_digests(dataset, f, episodes, stored)


def _row_digests(
    dataset: Path, f: StoredField, episodes: Mapping[str, Array], stored: digests.Digests
) -> list[Problem]:
    """Compare the digests of large rows with those of their episodes."""
    if not has_row_digests(f):
        return []
    where, count = f"{ROW_DIGESTS}/{f.name}", digests.counted(f, episodes["length"], episodes["num_observed"])
    try:
        rows = layouts.read(dataset / ROW_DIGESTS / f.path)
        bad = np.flatnonzero((digests.of_episodes(rows, episodes["start"], count) != stored).any(1))
    except _FAILURES as e:
        return [Problem(where, _why(e))]
    return [Problem(where, "are not the digests of its rows", episodes=(a, b + 1)) for a, b in _runs(bad)]


def _runs(numbers: Sequence[int] | IntArray) -> Iterator[tuple[int, int]]:
    """Group consecutive numbers as (first, last)."""
    if len(numbers):
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            yield int(run[0]), int(run[-1])


# -- the episode table and the statistics


def check_table(store: Store, table: EpisodeTable) -> list[Problem]:
    """Find the errors of an episode table whose places are right; ``table`` is the one that ``store.table()`` reads."""
    try:
        shape = [Problem(f"episodes/{name}", what) for name, what in _shape(store, table)]
        return shape or [Problem(f"episodes/{name}", what) for name, what in _content(store, table)]
    except (RldsError, OSError, ValueError, KeyError, IndexError) as e:
        return [Problem("episodes", e.message if isinstance(e, RldsError) else str(e))]


def _shape(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    """Find contradictions within the table."""
    counts, e = store.manifest.counts, store.episodes
    lengths = {name: len(column) for name, column in e.items() if len(column) != len(table)}
    if lengths or len(table) != counts.episodes:
        yield "length", f"columns of other lengths than {counts.episodes:,} episodes: {lengths or len(table)}"
        return
    if len(table) and table.length.min() < 1:
        yield "length", f"episode {int(table.length.argmin())} has {int(table.length.min())} steps"
    if not np.isin(table.end, (TERMINATED, TRUNCATED, CUT)).all():
        yield "end", f"episode {_first(table.end > CUT)} has the unknown end {int(table.end.max())}"
    if not np.isin(e["num_observed"] - table.length, (0, 1)).all():
        yield "num_observed", "is neither the length nor one more"
    if not np.array_equal(e["num_transitions"], table.num_transitions):
        yield "num_transitions", f"episode {_first(e['num_transitions'] != table.num_transitions)} does not add up"
    sources = max(1, int(store.manifest.archive.get("files", 1)))
    if len(table) and not 0 <= table.source.min() <= table.source.max() < sources:
        yield "source", f"names files beyond the {sources}"


def _content(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    """Find contradictions between the table and the rows or the manifest."""
    yield from _counts(store, table)
    yield from _own_columns(store)
    e = store.episodes
    if all(name in store.fields for name in FLAGS):
        yield from _flags(table, _reduced(_TRUNCATIONS, [_reader(store, FLAGS[1])], e), *_last(store))
    for name, c in COMPUTED.items():
        if c.fits(store.fields):
            yield from _differs(name, e.get(name), _reduced(c, [_reader(store, of) for of in c.fields], e))


def check_statistics(store: Store, table: EpisodeTable, name: str) -> list[Problem]:
    """Return whether the statistics of a field in the manifest are those of its rows."""
    if isinstance(store.manifest.stats, statistics.LazyStats):
        return []
    f, stored = store.fields[name], store.manifest.stats.get(name)
    if f.kind != "array" or np.dtype(f.dtype).kind not in "biuf":
        return [] if stored is None else [Problem(f"statistics of {name}", "are of values that are not numbers")]
    if stored is None:
        return [Problem(f"statistics of {name}", "are missing")]
    found = statistics.recount(_reader(store, name), store.manifest.counts.rows, f, table.start + table.length)
    scale = _scale(found)
    wrong = [
        key
        for key, value in asdict(found).items()
        if not _near(stored.get(key), value, 0 if key in ("count", "nonfinite", "histogram") else scale)
    ]
    return [Problem(f"statistics of {name}", f"{', '.join(wrong)} are not those of its rows")] if wrong else []


def _near(stored: Any, found: Any, scale: float) -> bool:
    """Return whether two values are equal, up to differences of rounding between processors."""
    try:
        a, b = np.asarray(stored, np.float64), np.asarray(found, np.float64)
    except (TypeError, ValueError):
        return False
    rounding = _ROUNDING if scale else 0
    return a.shape == b.shape and bool(np.isclose(a, b, rtol=rounding, atol=rounding * scale, equal_nan=True).all())


def _scale(stats: Stats) -> float:
    """Return the largest finite value."""
    limits = np.abs(np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max)]))
    return float(limits[np.isfinite(limits)].max(initial=0))


def _own_columns(store: Store) -> Iterator[tuple[str, str]]:
    """Find the user's columns that have changed since they were written."""
    for name, about in store.manifest.episode_columns.items():
        column = store.own_column(name)
        if not len(column.values) == len(column.missing) == store.manifest.counts.episodes:
            yield name, f"has {len(column.values):,} values; {store.manifest.counts.episodes:,} expected"
        elif digests.of_column(name, column.values, column.missing) != about["digest"]:
            yield name, "is not what it was when it was written"


def _counts(store: Store, table: EpisodeTable) -> Iterator[tuple[str, str]]:
    counts = store.manifest.counts
    found = {
        "steps": int(table.length.sum()),
        "transitions": int(table.num_transitions.sum()),
        "terminated": int((table.end == TERMINATED).sum()),
        "truncated": int((table.end == TRUNCATED).sum()),
        "cut": int((table.end == CUT).sum()),
        "final_observations": int(table.observed.sum()),
    }
    for name, value in found.items():
        if getattr(counts, name) != value:
            yield "counts", f"{value:,} {name}; the manifest says {getattr(counts, name):,}"


def _reader(store: Store, name: str) -> Read:
    directory = store.files.documents(Path(store.table.path_of(name)))
    return lambda a, b: read_range(directory, a, b)


def _last(store: Store) -> tuple[Array, Array]:
    """Return the flags of the last step of each episode."""
    steps = store.episodes["start"] + store.episodes["length"] - 1
    terminated, truncated = (np.asarray(store.rows(name)[steps], bool) for name in FLAGS)
    return terminated, truncated


def _flags(
    table: EpisodeTable, truncated: Array, last_terminated: Array, last_truncated: Array
) -> Iterator[tuple[str, str]]:
    ends = last_terminated != (table.end == TERMINATED)
    ends |= ~last_terminated & ~last_truncated
    if ends.any():
        yield "end", f"episode {_first(ends)} has flags that contradict its end"
    inside = truncated != last_truncated
    if inside.any():
        yield "end", f"episode {_first(inside)} is truncated before its last step"


def _reduced(c: Computed, reads: Sequence[Read], episodes: Mapping[str, Array]) -> Array:
    """Compute a column of the episode table from the rows of fields, reading several episodes at a time."""
    order = np.argsort(episodes["start"], kind="stable")
    start = episodes["start"][order]
    stop, found = start + episodes["length"][order], np.full(len(order), c.nothing, c.dtype)
    first = 0
    while first < len(order):
        end = max(first + 1, int(np.searchsorted(stop, start[first] + _STRIDE, "right")))
        for e, a, b in _reads(start, stop, first, end):
            columns = [np.asarray(read(a, b)) for read in reads]
            if isinstance(e, slice):
                edges = np.stack([start[e], stop[e]], 1).reshape(-1)[:-1] - a  # of episodes, and of what is between
                found[e] = c.of_episodes(columns, edges)[::2]
            else:
                found[e] = c.reduce(found[e], c.of_episodes(columns, np.zeros(1, np.int64))[0])
        first = end
    computed = np.empty_like(found)
    computed[order] = found
    return computed


def _reads(start: Array, stop: Array, first: int, end: int) -> Iterator[tuple[Any, int, int]]:
    """Yield the ranges of rows to read for episodes first to end: all at once, or a long episode in pieces."""
    a, b = int(start[first]), int(stop[end - 1])
    if end - first > 1:
        yield slice(first, end), a, b
        return
    for at in range(a, b, _STRIDE):
        yield first, at, min(b, at + _STRIDE)


def _differs(name: str, stored: Array | None, found: Array) -> Iterator[tuple[str, str]]:
    if stored is None:
        yield name, "is missing"
        return
    # The same numbers are added in another order here, so sums differ by rounding, more so where terms cancel.
    finite = np.abs(found[np.isfinite(found)])
    wrong = ~np.isclose(stored, found, rtol=1e-6, atol=1e-6 * max(1.0, finite.max(initial=0)), equal_nan=True)
    if wrong.any():
        k = _first(wrong)
        yield name, f"episode {k} has {stored[k]}; its rows give {found[k]}"


def _first(where: Array) -> int:
    return int(np.argmax(where))
