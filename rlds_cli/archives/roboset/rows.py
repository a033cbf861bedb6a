"""Trials as TED rows: several short ones to a chunk, a long one in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import reading
from rlds_cli.archives.hdf5_rows import nan_count
from rlds_cli.archives.roboset.conventions import TRACE
from rlds_cli.ted import CUT, FLAGS, TERMINATED, Array, BoolArray, Chunk, Column, EpisodeTable, Field, Note


@dataclass(frozen=True, slots=True)
class Episode:
    """One trial to be read: T = ``length`` steps; ``keys`` maps the fields of the schema to keys of its group."""

    group: str
    length: int
    convention: str
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start`` to ``stop`` of the T+1 that an episode takes in the store."""

    episode: Episode
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether the episode ends here."""
        return self.stop == self.episode.length + 1


def pieces(episodes: Sequence[Episode], budget: int) -> Iterator[list[Piece]]:
    """The pieces that make a chunk of at most ``budget`` rows each."""
    chunk: list[Piece] = []
    room = budget
    for e in episodes:
        start = 0
        if e.length + 1 > room and chunk:
            yield chunk
            chunk, room = [], budget
        while e.length + 1 - start > room:
            yield [Piece(e, start, start + room)]
            start += room
        chunk.append(Piece(e, start, e.length + 1))
        room -= e.length + 1 - start
    if chunk:
        yield chunk


def chunk(f: h5py.File, source: int, fields: Sequence[Field], todo: Sequence[Piece]) -> Chunk:
    """Read pieces and put them one after the other."""
    notes: list[Note] = []
    columns: dict[str, Column] = {x.name: _column(f, x, todo, notes) for x in fields if x.name not in FLAGS}
    row = np.concatenate([np.arange(p.start, p.stop) for p in todo])
    length = np.repeat([p.episode.length for p in todo], [p.stop - p.start for p in todo])
    terminated = np.concatenate([_terminated(f, p) for p in todo])
    columns[FLAGS[0]] = terminated
    columns[FLAGS[1]] = (row == length - 1) & ~terminated
    inside = terminated & (row < length - 1)
    if inside.any():
        text = "steps are terminated and their episode goes on"
        notes.append(Note("terminated-inside", text, int(inside.sum()), todo[0].episode.group))
    return Chunk(columns, row == length, _table(f, source, [p.episode for p in todo if p.whole]), tuple(notes))


def _column(f: h5py.File, field: Field, todo: Sequence[Piece], notes: list[Note]) -> Column:
    text = field.kind == "text"
    out: Array = np.full(sum(p.stop - p.start for p in todo), None) if text else _zeros(field, todo)
    at = 0
    for p in todo:
        d = f[f"{p.episode.group}/{p.episode.keys[field.name]}"]
        with reading(Path(f.filename), d.name):
            values = d.asstr() if text else d
            rows, stop = _rows(values, field, p), at + p.stop - p.start
            out[at : at + len(rows)] = rows.reshape(len(rows), *field.shape)
            if len(rows) < p.stop - p.start and field.placement == "both":
                out[stop - 1] = out[stop - 2] if len(rows) else _rows(values, field, replace(p, start=p.start - 1))[0]
        if missing := nan_count(rows):
            notes.append(Note("nan", f"values are NaN and kept, first in {field.name}", missing, p.episode.group))
        at = stop
    return out.tolist() if text else out


def _zeros(field: Field, todo: Sequence[Piece]) -> Array:
    return np.zeros((sum(p.stop - p.start for p in todo), *field.shape), field.dtype)


def _rows(d: h5py.Dataset, field: Field, p: Piece) -> Array:
    """What the archive has of a piece: all of it, or all but the last row."""
    trace = p.episode.convention == TRACE
    shift = int(trace and field.placement == "next")
    there = p.episode.length + int(trace and field.placement == "both")
    return np.asarray(d[p.start + shift : min(p.stop, there) + shift])


def _terminated(f: h5py.File, p: Piece) -> BoolArray:
    out = np.zeros(p.stop - p.start, bool)
    if FLAGS[0] in p.episode.keys:
        d = f[f"{p.episode.group}/{p.episode.keys[FLAGS[0]]}"]
        with reading(Path(f.filename), d.name):
            done = _rows(d, Field(FLAGS[0], "bool", (), "next"), p).reshape(-1)
        out[: len(done)] = (done != 0) & (done == done)
    return out


def _table(f: h5py.File, source: int, ended: Sequence[Episode]) -> EpisodeTable:
    done = [_terminated(f, Piece(e, e.length - 1, e.length))[0] for e in ended]
    return EpisodeTable(
        length=np.array([e.length for e in ended], np.int64),
        end=np.where(done, TERMINATED, CUT).astype(np.uint8),
        observed=np.array([e.convention == TRACE for e in ended], bool),
        source=np.full(len(ended), source, np.int32),
        row=np.zeros(len(ended), np.int64),
        group=[e.group for e in ended],
    )
