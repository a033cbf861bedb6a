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

from rlds_cli.archives import CHUNK_ROWS, Part
from rlds_cli.formats.hdf5 import reading
from rlds_cli.formats.hdf5_rows import nan_count
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    Array,
    BoolArray,
    Chunk,
    EpisodeData,
    EpisodePiece,
    Field,
    LazyColumn,
    Note,
    chunks,
)

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
        notes: list[Note] = []  # of the rows that are read for a chunk
        trials = (self._episode(TrialSteps(g, int(n)), notes) for g, n in zip(groups, lengths, strict=True))
        for chunk in chunks(self.schema, trials, rows=CHUNK_ROWS):
            chunk.notes = (*notes, *chunk.notes)
            notes.clear()
            yield chunk

    def dataset(self, group: str, key: str) -> h5py.Dataset:
        """Open the dataset ``key`` of a trial."""
        return self.file[f"{self.parent}{group}/{key}"]

    def reading(self, trial: TrialSteps, field: str) -> AbstractContextManager[None]:
        """Name the dataset of a field in errors about it."""
        return reading(Path(self.file.filename), f"/{self.parent}{trial.group}/{self.keys[field]}")

    def _episode(self, trial: TrialSteps, notes: list[Note]) -> EpisodeData:
        terminated = self._terminated(trial)
        last = np.arange(trial.length) == trial.length - 1
        columns: dict[str, Array | LazyColumn] = {FLAGS[0]: terminated, FLAGS[1]: last & ~terminated}
        for f in self.schema:
            if f.name not in FLAGS:
                columns[f.name] = TrialColumn(self, f, trial, notes)
        inside = int(terminated[:-1].sum())
        text = "steps are terminated inside an episode"
        return EpisodeData(
            columns,
            trial.length,
            TERMINATED if terminated[-1] else CUT,
            source=self.number,
            group=trial.group,
            splits=tuple(s for s, groups in self.splits.items() if trial.group in groups),
            observed=self.observed,
            notes=(Note("terminated-inside", text, inside, trial.group),) if inside else (),
        )

    def _terminated(self, trial: TrialSteps) -> BoolArray:
        if FLAGS[0] not in self.keys:
            return np.zeros(trial.length, bool)
        with self.reading(trial, FLAGS[0]):
            done = self.rows(_TERMINATED, EpisodePiece(trial, 0, trial.length)).reshape(-1)
        return np.asarray((done != 0) & (done == done))


@dataclass(frozen=True, slots=True)
class TrialColumn(LazyColumn):
    """A column of a trial; ``notes`` receives a note if values are NaN."""

    reader: TrialReader
    field: Field
    trial: TrialSteps
    notes: list[Note]

    def __len__(self) -> int:
        return self.trial.length + (self.reader.observed and self.field.placement == "both")

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        return len(self) * (TEXT_BYTES if self.field.kind == "text" else self.field.row_bytes)

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        with self.reader.reading(self.trial, self.field.name):
            rows = self.reader.rows(self.field, EpisodePiece(self.trial, start, stop))
        if missing := nan_count(rows):
            text = f"values are NaN and kept, first in {self.field.name}"
            self.notes.append(Note("nan", text, missing, self.trial.group))
        return rows.reshape(len(rows), *self.field.shape)
