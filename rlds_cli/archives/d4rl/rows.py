"""A stretch of a flat file, read block by block and laid out in TED rows.

Every step is one row of the file; every end repeats its row, which then takes the final observation::

    file    o0 o1 o2 o3 o4           ends at 2 and 4
    store   o0 o1 o2 n2 o3 o4 n4     n: the archive's next observation, else the observation once more
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS
from rlds_cli.archives.d4rl.ends import Rule, differs, is_set
from rlds_cli.archives.hdf5_rows import components, nan_count
from rlds_cli.archives.tables import Readable
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    Column,
    EpisodeTable,
    Field,
    IntArray,
    Note,
)

TEXT_BYTES = 64


class NextValuesDiffer(Exception):
    """Next observations differ from the rows after at more than single steps."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows ``start`` to ``stop`` of a file, whole episodes, and how they are read.

    ``keys`` maps the fields to columns of the file, ``finals`` observation fields to the columns that hold the final
    observations. ``cuts``: end episodes where those differ from the row after; more than ``max_cuts`` of them are no
    single steps (None: any number).
    """

    path: Path
    name: str
    source: int
    start: int
    stop: int
    rule: Rule
    fields: tuple[Field, ...]
    keys: Mapping[str, str]
    finals: Mapping[str, str]
    cuts: bool
    max_cuts: int | None

    @property
    def columns(self) -> set[str]:
        """All columns of the file that are read."""
        return {*self.keys.values(), *self.finals.values()} | self.rule.keys

    @property
    def block_rows(self) -> int:
        """Rows of the file in one block: twice as many, with every one an end, still make one chunk."""
        width = sum(TEXT_BYTES if f.kind == "text" else f.row_bytes for f in self.fields) + len(FLAGS)
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // width) // 2)


def chunks(f: Readable, stretch: Stretch) -> Iterator[Chunk]:
    """The rows of a stretch, in order.

    Raises
    ------
    NextValuesDiffer
        There are more than ``max_cuts`` mismatches between next observations and the rows after.
    """
    size, total, cuts, first = stretch.block_rows, stretch.rule.layout.rows, 0, stretch.start
    with f.rows(sorted(stretch.columns)) as reader:
        for start in range(stretch.start, stretch.stop, size):
            stop = min(start + size, stretch.stop)
            block = _Block(stretch, start, stop, reader.read(start, min(stop + 1, total)))
            cuts += block.cut() if stretch.cuts else 0
            if stretch.max_cuts is not None and cuts > stretch.max_cuts:
                raise NextValuesDiffer
            chunk = block.chunk(first)
            if len(chunk.episodes):
                first = int(chunk.episodes.row[-1] + chunk.episodes.length[-1])
            yield chunk


class _Block:
    """Some rows of a stretch, with the row after them where there is one."""

    def __init__(self, stretch: Stretch, start: int, stop: int, seen: Mapping[str, Array]) -> None:
        layout = stretch.rule.layout
        self.stretch, self.start, self.rows, self.seen = stretch, start, stop - start, seen
        self.ends = stretch.rule.ends(seen, self.rows, last=stop == layout.rows)
        self.terminated = is_set(seen, layout.terminals, self.rows)
        self.timeouts = is_set(seen, layout.timeouts, self.rows)
        self.notes: list[Note] = []

    def cut(self) -> int:
        """End episodes where the next observation is not the row after; how many."""
        jumps = np.zeros(self.rows, bool)
        for name, key in self.stretch.finals.items():
            jumps |= self._jumps(self.seen[self.stretch.keys[name]], self.seen[key])
        jumps &= ~self.ends
        self.ends |= jumps
        if self.stretch.max_cuts is not None:
            self._note("unflagged-end", "a next observation is not the row after: the episode is cut there", jumps)
        return int(np.count_nonzero(jumps))

    def _jumps(self, now: Array, after: Array) -> BoolArray:
        pairs = min(self.rows, len(now) - 1)
        a, b = components(after[:pairs]), components(now[1 : pairs + 1])
        out = np.zeros(self.rows, bool)
        # Few differ in all files but those that stop here, so only they are looked at twice, for NaN.
        row, column = np.divmod(np.flatnonzero(a != b), max(a.shape[1], 1))
        out[row[differs(a[row, column], b[row, column])]] = True
        return out

    def chunk(self, first: int) -> Chunk:
        """The block as rows of the store; the open episode starts at row ``first`` of the file."""
        ends = np.flatnonzero(self.ends)
        index = np.repeat(np.arange(self.rows), self.ends + 1)
        last = np.zeros(len(index), bool)
        last[ends + np.arange(len(ends)) + 1] = True
        columns = {f.name: self._column(f, ends, index, last) for f in self.stretch.fields}
        cut = self.ends & ~self.terminated & ~self.timeouts
        for name, flag in zip(FLAGS, (self.terminated, self.ends & self.timeouts | cut), strict=True):
            columns[name] = flag[index] & ~last
        table = self._episodes(first, ends)
        self._report(cut, table)
        return Chunk(columns, last, table, tuple(self.notes))

    def _column(self, f: Field, ends: IntArray, index: IntArray, last: BoolArray) -> Column:
        source = self.seen[self.stretch.keys[f.name]][: self.rows].reshape(self.rows, *f.shape)
        self._count_nan(f, source)
        out = source.take(index, axis=0)
        if f.placement != "both":
            out[last] = None if f.kind == "text" else 0
        elif f.name in self.stretch.finals:
            out[last] = self.seen[self.stretch.finals[f.name]][ends].reshape(len(ends), *f.shape)
        return out.tolist() if f.kind == "text" else out.astype(f.dtype, copy=False)

    def _episodes(self, first: int, ends: IntArray) -> EpisodeTable:
        stops = self.start + ends + 1
        starts = np.concatenate([[first], stops[:-1]])[: len(ends)].astype(np.int64)
        return EpisodeTable(
            length=stops - starts,
            end=np.where(self.terminated[ends], TERMINATED, np.where(self.timeouts[ends], TRUNCATED, CUT)),
            observed=np.full(len(ends), bool(self.stretch.finals)),
            source=np.full(len(ends), self.stretch.source),
            row=starts,
        )

    def _report(self, cut: BoolArray, table: EpisodeTable) -> None:
        self._note("terminated-inside", "steps are terminated and their episode goes on", self.terminated & ~self.ends)
        flagged = self.stretch.rule.kind in ("flags", "timeouts")  # else no end has a flag
        if flagged and self.start + self.rows == self.stretch.rule.layout.rows and cut[-1:].any():
            text = f"the last episode ({table.length[-1]:,} steps) is cut short by the file"
            self.notes.append(Note("open-end", text, 1, self.stretch.name))

    def _count_nan(self, f: Field, source: Array) -> None:
        if count := nan_count(source):
            rows: BoolArray = np.asarray(components(np.isnan(source)).any(axis=1))
            self._note("nan", f"values are NaN and kept, first in {f.name}", rows, count=count)

    def _note(self, code: str, text: str, rows: BoolArray, *, count: int | None = None) -> None:
        where = np.flatnonzero(rows)
        if len(where):
            place = f"row {self.start + where[0]:,} of {self.stretch.name}"
            self.notes.append(Note(code, text, len(where) if count is None else count, place))
