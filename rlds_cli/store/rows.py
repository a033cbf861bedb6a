"""Append the chunks of one part to the files of all fields, from a given position on."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import is_full
from rlds_cli.errors import NoSpace, RldsError
from rlds_cli.store.columns import stored_row
from rlds_cli.store.frames import laid_out
from rlds_cli.store.manifest import StoredField
from rlds_cli.ted import VIDEO, Chunk, Column, EncodedFrames, EpisodeTable, Field, Note, VideoFrames

NO_TEXT = -1  # the code of a step without text


@dataclass(slots=True)
class RowPosition:
    """The place of the next row: number of rows, bytes of encoded frames, and strings before it.

    The strings of a field in videos are the names of the videos in their source.
    """

    rows: int = 0
    frame_bytes: dict[str, int] = field(default_factory=dict)
    strings: dict[str, list[str]] = field(default_factory=dict)

    def behind(self, w: WrittenRows) -> RowPosition:
        """Return the position behind the rows ``w``, if they are written from here on."""
        return RowPosition(
            self.rows + w.rows,
            {f: self.frame_bytes.get(f, 0) + n for f, n in w.frame_bytes.items()},
            {f: _merged(self.strings.get(f, []), new) for f, new in w.new_strings.items()},
        )


def _merged(known: list[str], new: list[str]) -> list[str]:
    seen = set(known)
    return [*known, *(s for s in new if s not in seen)]


@dataclass(slots=True)
class WrittenRows:
    """The rows that one part has written from ``start`` on. ``hashes`` are checksums of each field's bytes."""

    start: RowPosition
    rows: int
    frame_bytes: dict[str, int]
    new_strings: dict[str, list[str]]
    hashes: dict[str, str]
    episodes: EpisodeTable
    notes: tuple[Note, ...]

    @property
    def end(self) -> RowPosition:
        """Position behind the part."""
        s = self.start
        return RowPosition(
            s.rows + self.rows,
            {f: s.frame_bytes.get(f, 0) + n for f, n in self.frame_bytes.items()},
            {f: s.strings.get(f, []) + new for f, new in self.new_strings.items()},
        )


def files(directory: Path, f: Field | StoredField, path: str) -> dict[str, Path]:
    """Return the data files of a field: ``rows``, or ``bytes`` and ``offsets`` for encoded images."""
    if f.kind == "frames" and f.codec != VIDEO:
        return {n: arrays.data_file(directory / path / n, ndim) for n, ndim in (("bytes", 1), ("offsets", 2))}
    return {"rows": arrays.data_file(directory / path, 1 + len(stored_row(f)[1]))}


class _Sum:
    """A running checksum, which detects rows that never reached the disk.

    It is CRC-32C, which processors have an instruction for: 0.04 ns a byte, where zlib's CRC-32 takes 0.23 and sha256
    0.57. Only where google-crc32c has no compiled code is it zlib's; rows of interrupted work are then written again.
    """

    def __init__(self, data: bytes | memoryview = b"") -> None:
        import google_crc32c  # too slow to import at the start of every command

        self._extend = google_crc32c.extend if google_crc32c.implementation == "c" else _zlib_crc32
        self._value = 0
        self.update(data)

    def update(self, data: bytes | memoryview) -> None:
        view = np.frombuffer(data, np.uint8)
        view.flags.writeable = False  # google-crc32c takes nothing that could be written to
        self._value = self._extend(self._value, view)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _zlib_crc32(value: int, data: Array) -> int:
    return zlib.crc32(data.data, value)


class RowWriter:
    """Appends chunks to the files of a dataset; a context manager that closes them.

    Parameters
    ----------
    directory : Path
        The dataset under construction, or a segment.
    paths : mapping
        Field name to path below ``directory``.
    start : RowPosition
        Place of the first row. Rows before it belong to other parts and are not touched.
    films : Path, optional
        The directory for videos that are in no file yet.
    """

    def __init__(
        self,
        directory: Path,
        schema: Sequence[Field],
        paths: Mapping[str, str],
        start: RowPosition,
        films: Path | None = None,
    ) -> None:
        self._films = films
        self._schema = schema
        self._start = start
        self._rows = 0
        self._frame_bytes = {f.name: 0 for f in schema if f.kind == "frames" and f.codec != VIDEO}
        texts = [f.name for f in schema if f.kind == "text" or f.codec == VIDEO]
        self._codes = {n: {s: i for i, s in enumerate(start.strings.get(n, []))} for n in texts}
        self._new = {n: list[str]() for n in texts}
        self._hashes = {f.name: _Sum() for f in schema}
        self._spans = {n: _Sum() for n in self._frame_bytes}
        self._episodes: list[EpisodeTable] = []
        self._notes: list[Note] = []
        self._fds: dict[tuple[str, str], int] = {}
        for f in schema:
            for part, file in files(directory, f, paths[f.name]).items():
                safe_files.make(file.parent)
                self._fds[f.name, part] = safe_files.open_own(file, os.O_RDWR | os.O_CREAT)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def append(self, chunk: Chunk) -> None:
        """Append the rows of ``chunk``."""
        try:
            for f in self._schema:
                self._append(f, chunk.columns[f.name], len(chunk), chunk.last)
        except OSError as e:
            if is_full(e):
                raise NoSpace(
                    f"The disk is full after {self._start.rows + self._rows:,} rows; finished parts are kept.",
                    hint="free some space and run the same command again: it resumes there",
                ) from e
            raise
        self._rows += len(chunk)
        self._episodes.append(chunk.episodes)
        self._notes.extend(chunk.notes)

    def _append(self, f: Field, column: Column, rows: int, last: BoolArray) -> None:
        if len(column) != rows:
            raise RldsError(f"{f.name}: a chunk has {len(column)} rows, the others {rows}.")
        row = self._start.rows + self._rows
        if isinstance(column, EncodedFrames):
            self._append_frames(f, column, row, last)
            return
        if isinstance(column, VideoFrames):
            values = self._encode_videos(f.name, column)
        else:
            values = self._encode_text(f.name, column) if isinstance(column, list) else column
        dtype, shape = stored_row(f)
        if values.dtype != dtype or values.shape[1:] != shape:
            raise RldsError(f"{f.name}: {values.dtype} {values.shape[1:]} instead of {dtype} {shape}.")
        values = arrays.little_endian(values)
        arrays.write_at(self._fds[f.name, "rows"], row * arrays.row_bytes(values.shape, dtype), values)
        self._hashes[f.name].update(arrays.raw(values))

    def _append_frames(self, f: Field, column: EncodedFrames, row: int, last: BoolArray) -> None:
        base, before = self._start.frame_bytes.get(f.name, 0), self._frame_bytes[f.name]
        data, spans = laid_out(column, before, np.append(True, last[:-1])[: len(column)])
        arrays.write_at(self._fds[f.name, "bytes"], base + before, data)
        arrays.write_at(self._fds[f.name, "offsets"], row * 16, arrays.little_endian(base + spans))
        self._spans[f.name].update(arrays.raw(spans))
        self._hashes[f.name].update(arrays.raw(data))
        self._frame_bytes[f.name] += len(data)

    def _encode_videos(self, name: str, column: VideoFrames) -> Array:
        """Return the index with new numbers of videos, counted in the order in which rows refer to them."""
        for film, data in column.made.items():
            assert self._films is not None
            self._films.mkdir(safe_files.DIRECTORY, exist_ok=True)
            with safe_files.replacing(self._films / film) as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        used, first = np.unique(column.index[:, 0], return_index=True)
        ordered = [int(n) for n in used[np.argsort(first)] if n >= 0]
        number = np.full(len(column.files) + 1, -1, np.int32)
        number[ordered] = self._encode_text(name, [column.files[n] for n in ordered])
        return np.stack([number[column.index[:, 0]], column.index[:, 1]], 1)

    def _encode_text(self, name: str, values: list[str | None]) -> Array:
        codes, new, out = self._codes[name], self._new[name], np.empty(len(values), np.int32)
        for i, value in enumerate(values):
            if value is None:
                out[i] = NO_TEXT
                continue
            code = codes.get(value)
            if code is None:
                code = codes[value] = len(codes)
                new.append(value)
            out[i] = code
        return out

    def written(self) -> WrittenRows:
        """Return a summary of the rows written; call this once, at the end."""
        return WrittenRows(
            start=self._start,
            rows=self._rows,
            frame_bytes=self._frame_bytes,
            new_strings=self._new,
            hashes={
                n: (self._spans[n].hexdigest() if n in self._spans else "") + h.hexdigest()
                for n, h in self._hashes.items()
            },
            episodes=EpisodeTable.concat(self._episodes),
            notes=tuple(self._notes),
        )


def rehash(directory: Path, schema: Sequence[Field], paths: Mapping[str, str], w: WrittenRows) -> bool:
    """Return whether the rows on disk still have the hashes of ``w``."""
    try:
        return all(_rehash(directory, f, paths[f.name], w) == w.hashes[f.name] for f in schema)
    except OSError:
        return False


def _rehash(directory: Path, f: Field, path: str, w: WrittenRows) -> str:
    """Return the hash of a field's rows; encoded frames are hashed by places and bytes."""
    parts = files(directory, f, path)
    h, places = _Sum(), ""
    if "offsets" in parts:
        base = w.start.frame_bytes.get(f.name, 0)
        with parts["offsets"].open("rb") as file:
            file.seek(w.start.rows * 16)
            spans: IntArray = np.frombuffer(file.read(w.rows * 16), "<i8")
        places = _Sum(arrays.raw(spans - base)).hexdigest()
        _update(h, parts["bytes"], base, w.frame_bytes[f.name])
    else:
        dtype, shape = stored_row(f)
        width = arrays.row_bytes((0, *shape), dtype)
        _update(h, parts["rows"], w.start.rows * width, w.rows * width)
    return places + h.hexdigest()


def _update(h: _Sum, file: Path, start: int, size: int) -> None:
    with file.open("rb") as f:
        f.seek(start)
        while size > 0:
            block = f.read(min(size, 1 << 20))
            if not block:
                return
            h.update(block)
            size -= len(block)
