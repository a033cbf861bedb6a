"""Prove an export: read its files as an import does, and hash the rows without writing them.

The rows of the reader's chunks are hashed in the blocks of `store.statistics`, so the fingerprint is that of the
dataset that an import would make. Several processes share the work where the reader says how many rows each part has:
each hashes some blocks, and reads the parts that they lie in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import importing
from rlds_cli.archives import Plan, Replan, reader
from rlds_cli.errors import ExportError
from rlds_cli.exports.content import PIECE, Content, first_references
from rlds_cli.exports.format import Format
from rlds_cli.files.hashing import short
from rlds_cli.progress import Event, Progress
from rlds_cli.store import arrays, statistics
from rlds_cli.store.statistics import BLOCK_ROWS
from rlds_cli.store.workers import Processes, run_items
from rlds_cli.ted import Array, Chunk, Column, EncodedFrames, EpisodeTable, Field, Part, VideoFrames

_ID = "local/export"
_ALONE = 256 << 20  # bytes that one process reads: starting others takes longer
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Read:
    """The content of exported files: digests of the fields by name, and the episodes."""

    fields: Mapping[str, str]
    table: EpisodeTable

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the dataset that an import would make."""
        return statistics.fingerprint(dict(self.fields), statistics.table_digests(self.table))


def prove(made: Format, directory: Path, expected: str, jobs: int, tell: Progress) -> None:
    """Read the files below ``directory``, and compare them with the content.

    Raises
    ------
    ExportError
        They hold something else.
    """
    found = read(made, directory, jobs, tell)
    differ = _differences(made.content, found, expected)
    if differ:
        raise ExportError(
            f"{made.content.id} as {made.name}: importing the files again gives {short(found.fingerprint)}"
            f" instead of {short(expected)}. These differ: {', '.join(differ[:8])}{', ...' * (len(differ) > 8)}.",
            hint=f"rlds verify {made.content.id} checks the dataset; nothing was written to {made.target}",
        )


def _differences(content: Content, found: Read, expected: str) -> list[str]:
    """Name the fields and columns that differ; empty if the content is the same."""
    own = {} if "columns" in content.kinds else content.table.extra
    odd = [f"episode column {n}" for n, values in own.items() if list(values) != list(found.table.extra.get(n, ()))]
    if found.fingerprint == expected:
        return odd
    fields = content.digests()
    odd += [n for n in sorted({*fields, *found.fields}) if fields.get(n) != found.fields.get(n)]
    columns, again = statistics.table_digests(content.table), statistics.table_digests(found.table)
    odd += [f"episodes: {n}" for n in sorted({*columns, *again}) if columns.get(n) != again.get(n)]
    return odd or ["rows that are damaged on this disk"]


def read(made: Format, directory: Path, jobs: int, tell: Progress) -> Read:
    """Read the files as an import does."""
    options = made.import_options()
    plan = importing.plan_import(made.files(directory), _ID, format=made.reader, **options).plan
    while True:
        try:
            return _read(_Work(plan, made.content), jobs, tell)
        except Replan as better:
            plan = better.plan


@dataclass(frozen=True, slots=True)
class _Work:
    """The plan of the reader, and the content that it should give."""

    plan: Plan
    content: Content

    @property
    def starts(self) -> list[int] | None:
        """First rows of the parts, and the number of all rows; None if the reader does not know them."""
        counts = [part.rows for part in self.plan.parts]
        if None in counts:
            return None
        return [0, *np.cumsum([c for c in counts if c is not None], dtype=np.int64).tolist()]


@dataclass(slots=True)
class _Blocks:
    """The result of reading some blocks: their hashes by field, the episodes, and references to videos."""

    hashes: dict[str, list[bytes]]
    tables: list[EpisodeTable] = field(default_factory=list)
    videos: dict[str, list[tuple[tuple[str, ...], Array]]] = field(default_factory=dict)
    rows: int = 0


def _read(work: _Work, jobs: int, tell: Progress) -> Read:
    rows, content = work.content.num_rows, work.content
    size = sum(content.row_bytes(name) for name in content.fields) * rows
    starts = work.starts
    workers = min(jobs, -(-rows // BLOCK_ROWS))

    def told(done: int) -> None:
        tell(Event(content.id, "check", "imported again", done, rows, "rows"))

    if starts is None or starts[-1] != rows or workers <= 1 or size <= _ALONE:
        found = _read_parts(work, 0, None, told)
    else:
        found = _in_processes(work, workers, told, tell)
    table = EpisodeTable.concat(found.tables)
    fields = {f.name: _digest(work.plan, f, found) for f in work.plan.schema}
    return Read(fields, table)


def _in_processes(work: _Work, workers: int, told: Any, tell: Progress) -> _Blocks:
    """Divide the blocks evenly, and join what the processes return."""
    count = -(-work.content.num_rows // BLOCK_ROWS)
    edges = [count * i // (4 * workers) for i in range(4 * workers + 1)]
    ranges = [(a * BLOCK_ROWS, b * BLOCK_ROWS) for a, b in pairwise(edges) if a < b]
    blocks: dict[int, _Blocks] = {}
    for i, read in run_items(
        _read_range,
        work,
        dict(enumerate(ranges)),
        Processes(workers),
        id=work.content.id,
        name=lambda i: "exported rows {:,} to {:,}".format(*ranges[i]),
        progress=tell,
    ):
        blocks[i] = read
        told(sum(b.rows for b in blocks.values()))
    joined = _Blocks({f.name: [] for f in work.plan.schema})
    for i in sorted(blocks):
        joined.tables += blocks[i].tables
        for name, hashes in blocks[i].hashes.items():
            joined.hashes[name] += hashes
        for name, videos in blocks[i].videos.items():
            joined.videos.setdefault(name, []).extend(videos)
    return joined


def _read_range(work: _Work, start: int, stop: int) -> _Blocks:
    return _read_parts(work, start, stop, lambda done: None)


def _read_parts(work: _Work, start: int, stop: int | None, told: Any) -> _Blocks:
    """Read rows ``start`` to ``stop``, in whole blocks; up to the end without ``stop``."""
    hashes = {f.name: _hash_of(f, work.content, start) for f in work.plan.schema}
    found = _Blocks({})
    with ThreadPoolExecutor(_THREADS) as pool:
        pending: list[Future[None]] = []
        for at, chunk in _chunks(work, start, stop, found):
            first, end = max(start - at, 0), len(chunk) if stop is None else min(len(chunk), stop - at)
            for future in pending:
                future.result()
            pending = [pool.submit(h.add, chunk.columns[name], first, end) for name, h in hashes.items() if first < end]
            found.rows += max(0, end - first)
            told(at + len(chunk))
        for future in pending:
            future.result()
    found.hashes = {name: h.finish() for name, h in hashes.items()}
    found.videos = {name: h.seen for name, h in hashes.items() if isinstance(h, _Videos)}
    return found


def _chunks(work: _Work, start: int, stop: int | None, found: _Blocks) -> Iterator[tuple[int, Chunk]]:
    """Yield the chunks of the parts that rows lie in, with their first rows; keep the episodes of parts."""
    starts, module = work.starts, reader(work.plan.reader)
    at = 0
    for k, part in enumerate(work.plan.parts):
        if starts is not None:
            at = starts[k]
            if at + _rows(part) <= start or (stop is not None and at >= stop):
                continue
        mine = start <= at
        for chunk in module.read(work.plan, part):
            if mine:
                found.tables.append(chunk.episodes)
            yield at, chunk
            at += len(chunk)


def _rows(part: Part) -> int:
    assert part.rows is not None
    return part.rows


# -- hashes of fields


class _Rows:
    """The hashes of the blocks of a field of numbers."""

    def __init__(self, f: Field) -> None:
        self.field = f
        self._hashes: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._block, self._rows = hashlib.sha256(), 0

    def add(self, column: Column, start: int, stop: int) -> None:
        """Hash rows ``start`` to ``stop`` of a column."""
        while start < stop:
            end = min(stop, start + BLOCK_ROWS - self._rows)
            self._update(column, start, end)
            self._rows += end - start
            start = end
            if self._rows == BLOCK_ROWS:
                self._end()

    def _update(self, column: Column, start: int, stop: int) -> None:
        f = self.field
        if not isinstance(column, np.ndarray) or column.dtype != np.dtype(f.dtype) or column.shape[1:] != f.shape:
            raise ExportError(
                f"{f.name} is read as {getattr(column, 'dtype', type(column).__name__)}, not as {f.dtype}."
            )
        self._block.update(arrays.raw(arrays.little_endian(column[start:stop])))

    def _end(self) -> None:
        self._hashes.append(self._digest())
        self._begin()

    def _digest(self) -> bytes:
        return self._block.digest()

    def finish(self) -> list[bytes]:
        """Return the hashes of all blocks; the last may be shorter."""
        if self._rows:
            self._end()
        return self._hashes


class _Texts(_Rows):
    """The hashes of the blocks of a field of texts."""

    def _begin(self) -> None:
        self._texts: list[str | None] = []
        self._rows = 0

    def _update(self, column: Column, start: int, stop: int) -> None:
        assert isinstance(column, list)
        self._texts += column[start:stop]

    def _digest(self) -> bytes:
        return statistics.text_block(self._texts)


class _Frames(_Rows):
    """The hashes of the blocks of encoded images.

    A block's hash begins with the sizes of all of its images. They are those of the content, and are compared: images
    of a block may be larger than memory.
    """

    def __init__(self, f: Field, content: Content, start: int) -> None:
        self._content, self._at = content, start
        super().__init__(f)

    def _begin(self) -> None:
        super()._begin()
        self._sizes: Array | None = None
        self._odd = False

    def _update(self, column: Column, start: int, stop: int) -> None:
        assert isinstance(column, EncodedFrames)
        if self._sizes is None:
            end = min(self._at + BLOCK_ROWS, self._content.num_rows)
            self._sizes = self._content.frame_sizes(self.field.name, self._at, end)
            self._block.update(np.ascontiguousarray(self._sizes, "<i8").tobytes())
        expected = self._sizes[self._rows : self._rows + stop - start]
        self._odd |= not np.array_equal(column.lengths[start:stop], expected)
        first = int(column.lengths[:start].sum())
        data = column.data[first : first + int(column.lengths[start:stop].sum())]
        for a in range(0, len(data), PIECE):
            self._block.update(arrays.raw(data[a : a + PIECE]))

    def _end(self) -> None:
        self._at += self._rows
        super()._end()

    def _digest(self) -> bytes:
        return bytes(32) if self._odd else super()._digest()


class _Videos(_Rows):
    """The references of rows to videos, which are numbered when all are known."""

    def __init__(self, f: Field) -> None:
        super().__init__(f)
        self.seen: list[tuple[tuple[str, ...], Array]] = []

    def add(self, column: Column, start: int, stop: int) -> None:
        """Keep rows ``start`` to ``stop`` of a column."""
        assert isinstance(column, VideoFrames)
        self.seen.append((column.files, column.index[start:stop].copy()))


def _hash_of(f: Field, content: Content, start: int) -> _Rows:
    if f.codec == "mp4":
        return _Videos(f)
    if f.kind == "frames" and f.name in content.fields and content.fields[f.name].kind == "frames":
        return _Frames(f, content, start)
    return _Texts(f) if f.kind == "text" else _Rows(f)


def _digest(plan: Plan, f: Field, found: _Blocks) -> str:
    hashes = found.hashes[f.name]
    if f.name in found.videos:
        hashes = [*_video_blocks(plan, found.videos[f.name])]
    return statistics.field_digest(f.name, f.dtype, f.shape, f.placement, f.kind, statistics.as_array(hashes))


def _video_blocks(plan: Plan, seen: Sequence[tuple[tuple[str, ...], Array]]) -> Iterator[bytes]:
    """Yield the hashes of rows (video, frame), and of the videos in the order in which rows refer to them."""
    number: dict[str, int] = {}
    index = []
    for files, rows in seen:
        here = np.full(len(files) + 1, -1, np.int32)  # the last stands for no video
        for n in first_references(rows[:, 0]):
            here[n] = number.setdefault(files[n], len(number))
        index.append(np.stack([here[rows[:, 0]], rows[:, 1]], 1).astype(np.int32))
    yield from statistics.array_blocks(np.concatenate([np.zeros((0, 2), np.int32), *index]))
    for name in number:
        with (plan.archive.root / name).open("rb") as file:
            yield hashlib.file_digest(file, "sha256").digest()
