"""Demonstrations as TED rows: several short ones to a chunk, a long one in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import reading
from rlds_cli.archives.hdf5_rows import nan_count
from rlds_cli.archives.robomimic.demos import DATA
from rlds_cli.archives.roboset.rows import Piece
from rlds_cli.ted import CUT, FLAGS, TERMINATED, Array, BoolArray, Chunk, Column, EpisodeTable, Field, Note

# Rows up to this size are all compared with the next observations; of larger ones (images) one in a piece is.
COMPARED_BYTES = 4096
OWN = "next/observation/"


class Differ(Exception):
    """A next observation is not the observation of the row after."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open file, and how its rows are read.

    ``finals`` maps observation fields to the keys of their next values; ``compare`` them with the rows after.
    """

    file: h5py.File
    number: int
    fields: Sequence[Field]
    finals: Mapping[str, str]
    splits: Mapping[str, set[str]]
    compare: bool

    def dataset(self, piece: Piece, key: str) -> h5py.Dataset:
        """The dataset of one demonstration."""
        return self.file[f"{DATA}/{piece.episode.group}/{key}"]


def chunk(source: Source, todo: Sequence[Piece]) -> Chunk:
    """Read pieces and put them one after the other.

    Raises
    ------
    Differ
        Next observations are no copies of the rows after.
    """
    notes: list[Note] = []
    columns: dict[str, Column] = {f.name: _column(source, f, todo, notes) for f in source.fields if f.name not in FLAGS}
    row = np.concatenate([np.arange(p.start, p.stop) for p in todo])
    length = np.repeat([p.episode.length for p in todo], [p.stop - p.start for p in todo])
    terminated = np.concatenate([_terminated(source, p) for p in todo])
    columns[FLAGS[0]] = terminated
    columns[FLAGS[1]] = (row == length - 1) & ~terminated
    inside = terminated & (row < length - 1)
    if inside.any():
        text = "steps are terminated and their episode goes on"
        notes.append(Note("terminated-inside", text, int(inside.sum()), todo[0].episode.group))
    return Chunk(columns, row == length, _table(source, [p for p in todo if p.whole]), tuple(notes))


def _column(source: Source, f: Field, todo: Sequence[Piece], notes: list[Note]) -> Column:
    text = f.kind == "text"
    size = sum(p.stop - p.start for p in todo)
    out: Array = np.full(size, None) if text else np.zeros((size, *f.shape), f.dtype)
    at = 0
    for p in todo:
        rows, stop = _rows(source, f, p), at + p.stop - p.start
        out[at : at + len(rows)] = rows.reshape(len(rows), *f.shape)
        if missing := nan_count(rows):
            notes.append(Note("nan", f"values are NaN and kept, first in {f.name}", missing, p.episode.group))
        at = stop
    return out.tolist() if text else out


def _rows(source: Source, f: Field, p: Piece) -> Array:
    """The rows of a piece: all of them of an observation, all but the last of what belongs to a step."""
    length = p.episode.length
    key = p.episode.keys[f.name]
    d = source.dataset(p, key)
    with reading(Path(source.file.filename), d.name):
        values = d.asstr() if f.kind == "text" else d
        if f.placement != "both":
            return np.asarray(values[p.start : min(p.stop, length)])
        rows = np.asarray(values[p.start : min(p.stop + 1, length)])
        final = source.dataset(p, source.finals[f.name]) if f.name in source.finals else None
        if final is not None and source.compare:
            _compare(rows, final, f, p)
        if not p.whole:
            return rows[: p.stop - p.start]
        last = np.asarray((values if final is None else final)[length - 1])[None]
        return np.concatenate([rows, last.astype(rows.dtype, copy=False)])


def _compare(rows: Array, after: h5py.Dataset, f: Field, p: Piece) -> None:
    pairs = len(rows) - 1
    if pairs < 1:
        return
    at = slice(0, pairs) if f.row_bytes <= COMPARED_BYTES else slice(pairs // 2, pairs // 2 + 1)
    said = np.asarray(after[p.start + at.start : p.start + at.stop])
    if not np.array_equal(said, rows[1:][at], equal_nan=said.dtype.kind in "fc"):
        raise Differ


def _terminated(source: Source, p: Piece) -> BoolArray:
    out = np.zeros(p.stop - p.start, bool)
    if FLAGS[0] in p.episode.keys:
        d = source.dataset(p, p.episode.keys[FLAGS[0]])
        with reading(Path(source.file.filename), d.name):
            done = np.asarray(d[p.start : min(p.stop, p.episode.length)]).reshape(-1)
        out[: len(done)] = (done != 0) & (done == done)
    return out


def _table(source: Source, whole: Sequence[Piece]) -> EpisodeTable:
    ended = [p.episode for p in whole]
    done = [bool(_terminated(source, Piece(e, e.length - 1, e.length))[0]) for e in ended]
    return EpisodeTable(
        length=np.array([e.length for e in ended], np.int64),
        end=np.where(done, TERMINATED, CUT).astype(np.uint8),
        observed=np.full(len(ended), bool(source.finals)),
        source=np.full(len(ended), source.number, np.int32),
        row=np.zeros(len(ended), np.int64),
        group=[e.group for e in ended],
        splits={s: np.array([e.group in demos for e in ended], bool) for s, demos in source.splits.items()},
    )
