"""Steps that are read and given to a function together, and where they lie among rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from rlds_cli.ted import Array, BoolArray, IntArray

_LONG = 32  # steps of a piece, on average, from which copying piece by piece is faster than row by row


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps ``first`` to ``last`` of episode ``k`` of the selection; ``ends`` when the episode does."""

    k: int
    first: int
    last: int
    ends: bool

    @property
    def steps(self) -> int:
        """How many."""
        return self.last - self.first


@dataclass(frozen=True)
class Block:
    """Pieces that are read and given to the function together.

    Every piece is read with the row behind it: its last step's next observation.
    """

    pieces: Sequence[Piece]
    runs: Sequence[tuple[int, int]]
    observed: BoolArray  # [B]: the next observation of the step is recorded
    numbers: IntArray  # [pieces]: of the episodes in the whole dataset

    @property
    def size(self) -> int:
        """Steps."""
        return len(self.observed)

    @cached_property
    def steps(self) -> IntArray:
        """Places of the steps among the rows read."""
        behind = np.cumsum([p.steps + 1 for p in self.pieces]) - 1
        return np.delete(np.arange(self.size + len(self.pieces)), behind)

    @cached_property
    def episodes(self) -> IntArray:
        """Numbers of the steps' episodes in the whole dataset [B]."""
        return np.repeat(self.numbers, [p.steps for p in self.pieces])

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Of every piece its first step and one past its last, among the steps."""
        ends = np.cumsum([p.steps for p in self.pieces]).tolist()
        return list(pairwise([0, *ends]))

    @property
    def is_long(self) -> bool:
        """Whether the pieces are worth a loop in Python."""
        return self.size >= _LONG * len(self.pieces)

    def pick(self, values: Array, ahead: int = 0) -> Array:
        """Of rows that were read [rows, ...], a copy of those of the steps [B, ...], or of the ones ``ahead``."""
        if not self.is_long:
            picked: Array = values[self.steps + ahead]
            return picked
        picked = np.empty((self.size, *values.shape[1:]), values.dtype)
        for k, (a, b) in enumerate(self.spans):
            picked[a:b] = values[a + k + ahead : b + k + ahead]
        return picked

    def spread(self, values: Array, rows: Array) -> None:
        """Put values of the steps [B, ...] in their places among the rows to write."""
        if not self.is_long:
            rows[self.out[0]] = values
            return
        at = 0
        for p, (a, b) in zip(self.pieces, self.spans, strict=True):
            rows[at : at + b - a] = values[a:b]
            at += b - a + p.ends

    @cached_property
    def ends(self) -> IntArray:
        """Numbers of the steps after which an episode ends."""
        last = np.cumsum([p.steps for p in self.pieces]) - 1
        return last[[p.ends for p in self.pieces]]

    @cached_property
    def out(self) -> tuple[IntArray, IntArray, int]:
        """Places of the steps and of the final rows among the rows to write, and the number of those."""
        final = self.ends + 1 + np.arange(len(self.ends))
        total = self.size + len(final)
        return np.delete(np.arange(total), final), final, total

    def cut(self, first: int, last: int) -> Block:
        """Its steps number ``first`` to ``last``."""
        pieces, runs, numbers = [], [], []
        at = 0
        for p, (start, _), number in zip(self.pieces, self.runs, self.numbers, strict=True):
            a, b = max(first - at, 0), min(last - at, p.steps)
            if a < b:
                pieces.append(Piece(p.k, p.first + a, p.first + b, p.ends and b == p.steps))
                runs.append((start + a, start + b + 1))
                numbers.append(number)
            at += p.steps
        return Block(pieces, runs, self.observed[first:last], np.array(numbers))

    def at(self, step: int) -> tuple[int, int]:
        """Episode (in the whole dataset) and step of step number ``step``."""
        for number, p in zip(self.numbers, self.pieces, strict=True):
            if step < p.steps:
                return int(number), p.first + step
            step -= p.steps
        raise IndexError(step)

    def name(self, step: int) -> str:
        """How messages call a step."""
        episode, t = self.at(step)
        return f"episode {episode:,}, step {t:,}"

    def __str__(self) -> str:
        if self.size == 1:
            return self.name(0)
        if len(self.pieces) == 1:
            p = self.pieces[0]
            return f"episode {self.numbers[0]:,}, steps {p.first:,} to {p.last - 1:,}"
        return f"{self.size:,} transitions of episodes {self.numbers[0]:,} to {self.numbers[-1]:,}"


class StepName:
    """The name of a step, made when it is asked for."""

    def __init__(self, block: Block, step: int) -> None:
        self._block, self._step = block, step

    @property
    def at(self) -> tuple[int, int]:
        """Episode (in the whole dataset) and step."""
        return self._block.at(self._step)

    def __str__(self) -> str:
        return self._block.name(self._step)
