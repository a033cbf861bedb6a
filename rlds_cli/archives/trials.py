"""HDF5 files with one group per trial: the common base of the readers of RoboHive, RoboSet and robomimic.

A family says which groups are trials and what their datasets mean. A `Trial` describes one group, `parts` divides the
trials of a file, and `TrialReader` reads them as TED rows. The flags need no dataset: ``next/terminated`` is False
without one, and a trial that ends without it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Part
from rlds_cli.archives.layouter import EpisodePiece, pieces
from rlds_cli.formats.hdf5 import reading
from rlds_cli.formats.hdf5_rows import nan_count
from rlds_cli.ted import CUT, FLAGS, TERMINATED, Array, BoolArray, Chunk, Column, EpisodeTable, Field, Note

PART_ROWS = 1 << 17
PART_BYTES = 256 << 20
TEXT_BYTES = 64  # of a row, as a guess
_TERMINATED = Field(FLAGS[0], "bool", (), "next")


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of ``rows`` rows.

    Attributes
    ----------
    columns : mapping of str to str
        The key of each field, below the trial's group.
    next_keys : mapping of str to str
        The key of the next values of each observation field; empty if the file holds none.
    fields : mapping of str to Field
    constants : tuple of str
        The keys that are not per row.
    """

    group: str
    rows: int
    columns: Mapping[str, str]
    next_keys: Mapping[str, str]
    fields: Mapping[str, Field]
    constants: tuple[str, ...]

    @property
    def has_all_next(self) -> bool:
        """True if every observation has next values."""
        observations = {name for name, f in self.fields.items() if f.placement == "both"}
        return bool(self.next_keys) and set(self.next_keys) == observations

    def without(self, keys: set[str]) -> Trial:
        """Move the datasets ``keys`` from the fields to the constants."""
        columns = {name: key for name, key in self.columns.items() if key not in keys}
        fields = {name: self.fields[name] for name in self.fields if name in columns}
        more = tuple(key for key in self.columns.values() if key in keys)
        return replace(self, columns=columns, fields=fields, constants=(*self.constants, *more))


def constant_in_some(trials: Sequence[Trial], is_known: Callable[[str], bool]) -> set[str]:
    """Find the keys of no known meaning that are not per row, although some trials happen to have as many rows."""
    per_row = {key for t in trials for key in t.columns.values()}
    return {key for t in trials for key in t.constants if key in per_row and not is_known(key)}


def parts(file: int, lengths: Mapping[str, int], width: int, name: str) -> Iterator[Part]:
    """Divide the trials of a file, in their order, into parts of about the same size.

    Parameters
    ----------
    file : int
        The index of the file.
    lengths : mapping
        The steps of each trial; trials without steps are left out.
    width : int
        Bytes of a row.
    name : str
        The name of the list of groups in ``Part.args``.
    """
    limit = max(1, min(PART_ROWS, PART_BYTES // max(width, 1)))
    todo = {group: length for group, length in lengths.items() if length > 0}
    last = next(reversed(todo), None)
    groups: list[str] = []
    rows = 0
    for group, length in todo.items():
        groups.append(group)
        rows += length + 1
        if rows >= limit or group == last:
            yield Part(rows, {"file": file, name: groups, "lengths": [todo[g] for g in groups]})
            groups, rows = [], 0


@dataclass(frozen=True, slots=True)
class TrialSteps:
    """A trial to be read: its group, and its steps T."""

    group: str
    length: int


TrialPiece = EpisodePiece[TrialSteps]


@dataclass(frozen=True, slots=True)
class TrialReader:
    """Reads the trials of an open file.

    Attributes
    ----------
    file : h5py.File
    number : int
        The index of the file.
    parent : str
        The group that holds the groups of trials, with a slash at its end; empty for the root.
    schema : sequence of Field
    keys : mapping of str to str
        The key of each field, below the trial's group.
    observed : bool
        True if the file holds final observations.
    splits : mapping of str to set of str
        The groups in each split.
    """

    file: h5py.File
    number: int
    parent: str
    schema: Sequence[Field]
    keys: Mapping[str, str]
    observed: bool
    splits: Mapping[str, set[str]]

    def rows(self, f: Field, piece: TrialPiece) -> Array:
        """Read the rows of a piece that the file holds: all of them, or all but the last."""
        raise NotImplementedError

    def chunks(self, groups: Sequence[str], lengths: Sequence[int]) -> Iterator[Chunk]:
        """Read trials in chunks of bounded size: several short ones together, a long one in pieces."""
        width = sum(TEXT_BYTES if f.kind == "text" else f.row_bytes for f in self.schema)
        todo = [TrialSteps(group, int(length)) for group, length in zip(groups, lengths, strict=True)]
        for some in pieces(todo, min(CHUNK_ROWS, CHUNK_BYTES // max(width, 1))):
            yield self._chunk(some)

    def dataset(self, group: str, key: str) -> h5py.Dataset:
        """Open the dataset ``key`` of a trial."""
        return self.file[f"{self.parent}{group}/{key}"]

    def _chunk(self, todo: Sequence[TrialPiece]) -> Chunk:
        notes: list[Note] = []
        columns = {f.name: self._column(f, todo, notes) for f in self.schema if f.name not in FLAGS}
        row = np.concatenate([np.arange(p.start, p.stop) for p in todo])
        length = np.repeat([p.episode.length for p in todo], [len(p) for p in todo])
        terminated = np.concatenate([self._terminated(p) for p in todo])
        columns[FLAGS[0]] = terminated
        columns[FLAGS[1]] = (row == length - 1) & ~terminated
        inside = terminated & (row < length - 1)
        if inside.any():
            text = "steps are terminated inside an episode"
            notes.append(Note("terminated-inside", text, int(inside.sum()), todo[0].episode.group))
        return Chunk(columns, row == length, self._table([p.episode for p in todo if p.ends]), tuple(notes))

    def _column(self, f: Field, todo: Sequence[TrialPiece], notes: list[Note]) -> Column:
        text = f.kind == "text"
        size = sum(len(p) for p in todo)
        out: Array = np.full(size, None) if text else np.zeros((size, *f.shape), f.dtype)
        at = 0
        for p in todo:
            with self._reading(p, f.name):
                rows = self.rows(f, p)
            out[at : at + len(rows)] = rows.reshape(len(rows), *f.shape)
            if len(rows) < len(p) and f.placement == "both":  # pieces that end an episode have two rows at least
                out[at + len(rows)] = out[at + len(rows) - 1]
            if missing := nan_count(rows):
                notes.append(Note("nan", f"values are NaN and kept, first in {f.name}", missing, p.episode.group))
            at += len(p)
        return out.tolist() if text else out

    def _terminated(self, p: TrialPiece) -> BoolArray:
        out = np.zeros(len(p), bool)
        if FLAGS[0] in self.keys:
            with self._reading(p, FLAGS[0]):
                done = self.rows(_TERMINATED, p).reshape(-1)
            out[: len(done)] = (done != 0) & (done == done)
        return out

    def _reading(self, p: TrialPiece, field: str) -> AbstractContextManager[None]:
        return reading(Path(self.file.filename), f"/{self.parent}{p.episode.group}/{self.keys[field]}")

    def _table(self, ended: Sequence[TrialSteps]) -> EpisodeTable:
        done = [bool(self._terminated(EpisodePiece(t, t.length - 1, t.length))[0]) for t in ended]
        return EpisodeTable(
            length=np.array([t.length for t in ended], np.int64),
            end=np.where(done, TERMINATED, CUT).astype(np.uint8),
            observed=np.full(len(ended), self.observed),
            source=np.full(len(ended), self.number, np.int32),
            row=np.zeros(len(ended), np.int64),
            group=[t.group for t in ended],
            splits={s: np.array([t.group in groups for t in ended], bool) for s, groups in self.splits.items()},
        )
