"""The order in which the rows of a log were written, and its episodes.

The buffer is a ring of C rows. It is dumped when C - 1 rows of a round are there, so the last slot of a dump still
holds what the round before has put there::

    checkpoint 0      0  1  2  ...  C-2  |  C-1: never written
    checkpoint 1      C-1: the row after C-2 of checkpoint 0  |  0  1  2  ...  C-2
    checkpoint 2      C-1: the row after C-2 of checkpoint 1  |  0  1  2  ...  position - 1  |  stale
                                                              the last dump, where ``add_count`` is the position

Where episodes begin, ``stack - 1`` rows of zeros come first, for stacks of frames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rlds_cli.archives import Part
from rlds_cli.archives.atari_dqn.logs import Checkpoint, open_column, rows
from rlds_cli.ted import CUT, TERMINATED, Array, BoolArray, IntArray, Note

STACK = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a checkpoint."""

    checkpoint: Checkpoint
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """Checkpoints without a gap between them; ``opening`` where the log itself begins with the first."""

    pieces: tuple[Piece, ...]
    opening: bool
    padding: int
    notes: tuple[Note, ...] = ()


def runs(checkpoints: Sequence[Checkpoint]) -> Iterator[Run]:
    """The rows of all checkpoints in the order of their writing; a run ends where a checkpoint is missing."""
    todo: list[Checkpoint] = []
    for c in checkpoints:
        if todo and (c.where, c.number) != (todo[-1].where, todo[-1].number + 1):
            yield _run(todo)
            todo = []
        todo.append(c)
    if todo:
        yield _run(todo)


def _run(checkpoints: Sequence[Checkpoint]) -> Run:
    first, last = checkpoints[0], checkpoints[0].capacity - 1
    opening = first.number == 0 or first.add_count == last
    notes: list[Note] = []
    pieces: list[Piece] = []
    before: Checkpoint | None = None
    for c in checkpoints:
        if before and _is_repeated(before, c):
            notes.append(Note("repeated-checkpoint", "checkpoints hold the rows of the one before", 1, c.label))
            continue
        if not (c is first and opening):
            pieces.append(Piece(c, last, last + 1))
        position = _position(c)
        if position < last:
            text = "rows at the end of the log are older than the rest of it, and left out"
            notes.append(Note("stale-rows", text, last - position, c.label))
        pieces.append(Piece(c, 0, min(position, last)))
        before = c
    return Run(tuple(p for p in pieces if len(p)), opening, _padding(first), tuple(notes))


def _position(c: Checkpoint) -> int:
    """Where the next row would have gone."""
    if c.add_count is not None:
        return c.add_count % c.capacity
    if c.invalid:
        # From `horizon` rows before the position to `stack - 1` behind it; the horizon is 1 in all published logs.
        return (c.invalid[0] + 1) % c.capacity
    return c.capacity - 1


def _padding(c: Checkpoint) -> int:
    """Rows of zeros before an episode: one less than the frames of a stack."""
    position = _position(c)
    return len(c.invalid) - c.invalid.index(position) - 1 if position in c.invalid else STACK - 1


def _is_repeated(before: Checkpoint, c: Checkpoint) -> bool:
    """Whether a dump at the end of training came when nothing had been added since the one before."""
    if c.add_count != c.capacity - 1:
        return False
    return all(np.array_equal(before.column(s), c.column(s)) for s in ("terminal", "action", "reward"))


def parts(run: Run) -> tuple[list[Part], list[Note]]:
    """A part for the episodes that begin in each checkpoint, and what is odd about them.

    ``args``: ``pieces``, of which each has ``files`` (the numbers of a checkpoint's files), its ``label``, ``rows``
    [start, stop), and whether to ``finish`` the files, for the sake of their checksums: one part does that for each;
    ``episodes`` as [first row in the pieces, length, end].
    """
    terminal = np.concatenate([_piece(p, "terminal") != 0 for p in run.pieces])
    blank = np.concatenate([_blank(p) for p in run.pieces])
    found, notes = _episodes(run, terminal, blank)
    offsets: IntArray = np.cumsum([0, *map(len, run.pieces)])
    made: list[Part] = []
    # A checkpoint is two pieces: its last slot, which ends the round before, and the rest.
    owners = np.searchsorted(offsets, [e[0] for e in found], side="right") - 1
    numbers = [run.pieces[i].checkpoint.number for i in owners]
    seen = 0
    for number in dict.fromkeys(numbers):
        mine = [e for e, n in zip(found, numbers, strict=True) if n == number]
        own = next(a for a, p in zip(offsets.tolist(), run.pieces, strict=False) if p.checkpoint.number == number)
        others = {*numbers} - {number}
        made.append(_part(run, offsets, max(own, seen), mine, others))
        seen = mine[-1][0] + mine[-1][1]
    return made, [*run.notes, *notes]


def _part(
    run: Run, offsets: IntArray, start: int, episodes: Sequence[tuple[int, int, int]], others: Collection[int]
) -> Part:
    stop = episodes[-1][0] + episodes[-1][1]
    pieces = []
    for piece, (a, b) in zip(run.pieces, pairwise(offsets.tolist()), strict=True):
        first, end = max(a, start), min(b, stop)
        if first < end:
            c = piece.checkpoint
            where = [piece.start + first - a, piece.start + end - a]
            finish = c.number not in others
            pieces.append({"files": dict(c.files), "label": c.label, "rows": where, "finish": finish})
    moved = [[a - start, length, end] for a, length, end in episodes]
    return Part(sum(e[1] + 1 for e in episodes), {"pieces": pieces, "episodes": moved})


def _piece(p: Piece, store: str) -> Array:
    return p.checkpoint.column(store)[p.start : p.stop]


def _blank(p: Piece) -> BoolArray:
    """Rows whose action, reward and terminal are 0, as in padding."""
    action = _piece(p, "action").reshape(len(p), -1)
    other: BoolArray = action.any(axis=1) | (_piece(p, "reward") != 0) | (_piece(p, "terminal") != 0)
    return ~other


def _episodes(run: Run, terminal: BoolArray, blank: BoolArray) -> tuple[list[tuple[int, int, int]], list[Note]]:
    """(first row, length, end) of all episodes of a run."""
    ends = np.flatnonzero(terminal)
    starts = [0, *(ends + 1).tolist()]
    stops = [*(ends + 1).tolist(), len(terminal)]
    found, bare = [], 0
    for k, (a, b) in enumerate(zip(starts, stops, strict=True)):
        if k == 0 and not run.opening:
            padding = _leading(run, blank)
        else:
            padding = run.padding if blank[a : min(a + run.padding, b)].all() else 0
            bare += padding < run.padding
        if b - a > padding:
            found.append((a + padding, b - a - padding, TERMINATED if k < len(ends) else CUT))
    notes = []
    if bare:
        text = "episodes do not begin with rows of zeros, as Dopamine writes them; all their rows are kept"
        notes.append(Note("no-padding", text, bare))
    if found and not run.opening:
        text = "logs begin in the middle of an episode, whose first steps are in a checkpoint that is not there"
        notes.append(Note("fragments", text, 1, run.pieces[0].checkpoint.label))
    return found, notes


def _leading(run: Run, blank: BoolArray) -> int:
    """How many rows of padding a run begins with that begins in the middle of a log: its frames tell."""
    count = int(np.argmin(np.append(blank[: run.padding], False)))
    at = 0
    for piece in run.pieces:
        for row in range(piece.start, piece.stop):
            if at == count:
                return at
            with open_column(piece.checkpoint.paths["observation"]) as (f, member):
                f.skip(row * member.row_bytes)
                if rows(f, member, 1).any():
                    return at
            at += 1
    return at
