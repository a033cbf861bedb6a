"""The table of episodes, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.repeated import Repeated
from rlds_cli.ted.columns import Scalar
from rlds_cli.ted.fields import TERMINATED
from rlds_cli.ted.subtasks import Subtasks

T = TypeVar("T")
X = TypeVar("X", bound=np.generic)


def _compact(values: Sequence[T], nothing: T, count: int) -> Sequence[T]:
    """Replace a column of the episode table without any values by `Repeated`."""
    return values if any(v != nothing for v in values) else Repeated(nothing, count)


def _joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """Join columns; the result is empty if none of them has values."""
    return [] if all(isinstance(c, Repeated) for c in columns) else [v for c in columns for v in c]


def _all_or_none(columns: Sequence[npt.NDArray[X] | None], count: int) -> npt.NDArray[X] | None:
    """Join a column of ``count`` episodes; None if some episodes have no value."""
    known = [c for c in columns if c is not None]
    return np.concatenate(known) if sum(map(len, known)) == count and known else None


def _taken(values: Sequence[T], index: IntArray) -> Sequence[T]:
    return [] if isinstance(values, Repeated) else [values[i] for i in index.tolist()]


@dataclass(slots=True)
class EpisodeTable:
    """Columns over episodes, in order.

    ``length`` T; ``end`` one of TERMINATED, TRUNCATED, CUT; ``observed`` whether the final observation is recorded;
    ``source`` index of the archive file; ``row`` first row there; ``group`` its group there (``episode_12``);
    ``seed`` unsigned 64-bit or None; ``options`` JSON text or None; ``splits`` one bool array per named split;
    ``extra`` columns of the user's own, one value or None per episode (names and types: `episode_columns`);
    ``id`` uint8 [episodes, 16], or None where ids are yet to be given; ``origin`` which of the episodes that a function
    got it was made of, None where no function made them. The origin is not stored.
    """

    length: IntArray
    end: npt.NDArray[np.uint8]
    observed: BoolArray
    source: npt.NDArray[np.int32]
    row: IntArray
    group: Sequence[str] = ()
    seed: Sequence[int | None] = ()
    options: Sequence[str | None] = ()
    splits: dict[str, BoolArray] = field(default_factory=dict)
    extra: dict[str, list[Scalar]] = field(default_factory=dict)
    id: npt.NDArray[np.uint8] | None = None
    origin: IntArray | None = None

    def __post_init__(self) -> None:
        n = len(self.length)
        self.length = np.asarray(self.length, np.int64)
        self.end = np.asarray(self.end, np.uint8)
        self.observed = np.asarray(self.observed, bool)
        self.source = np.asarray(self.source, np.int32)
        self.row = np.asarray(self.row, np.int64)
        self.group = _compact(self.group, "", n)
        self.seed = _compact(self.seed, None, n)
        self.options = _compact(self.options, None, n)

    def __len__(self) -> int:
        return len(self.length)

    @property
    def num_observed(self) -> IntArray:
        """Observations per episode: T+1, or T if the final one is not recorded."""
        return self.length + self.observed

    @property
    def num_transitions(self) -> IntArray:
        """Steps per episode that a value-based learner may use (T, or T-1; see ``docs/reference/ted.md``)."""
        unknown: BoolArray = ~self.observed & (self.end != TERMINATED)
        return self.length - unknown

    @property
    def start(self) -> IntArray:
        """First row of each episode, with episodes end to end from row 0."""
        start: IntArray = np.cumsum(self.length + 1)
        start -= self.length
        start -= 1
        return start

    def check_subtasks(self) -> None:
        """Check the column ``subtasks``, and spell it as `Subtasks` does; raises InvalidEpisode."""
        for k, value in enumerate(values := self.extra.get(Subtasks.COLUMN, ())):
            if value is not None:
                values[k] = str(Subtasks.of(value, f"episode {k}", int(self.length[k])))  # type: ignore[index]

    @classmethod
    def empty(cls) -> EpisodeTable:
        """Return a table without episodes."""
        z = np.zeros(0, np.int64)
        return cls(z, z.astype(np.uint8), z.astype(bool), z.astype(np.int32), z)

    @classmethod
    def concat(cls, tables: Sequence[EpisodeTable]) -> EpisodeTable:
        """Return the episodes of ``tables`` one after the other; a single table as it is."""
        if len(tables) < 2:
            return tables[0] if tables else cls.empty()
        names = {name: None for t in tables for name in t.splits}
        own = {name: None for t in tables for name in t.extra}
        return cls(
            np.concatenate([t.length for t in tables]),
            np.concatenate([t.end for t in tables]),
            np.concatenate([t.observed for t in tables]),
            np.concatenate([t.source for t in tables]),
            np.concatenate([t.row for t in tables]),
            group=_joined([t.group for t in tables]),
            seed=_joined([t.seed for t in tables]),
            options=_joined([t.options for t in tables]),
            splits={n: np.concatenate([t.splits.get(n, np.zeros(len(t), bool)) for t in tables]) for n in names},
            extra={n: [v for t in tables for v in t.extra.get(n, [None] * len(t))] for n in own},
            id=_all_or_none([t.id for t in tables], sum(map(len, tables))),
            origin=_all_or_none([t.origin for t in tables], sum(map(len, tables))),
        )

    def take(self, index: IntArray) -> EpisodeTable:
        """Return the episodes ``index``, in that order."""
        return EpisodeTable(
            self.length[index],
            self.end[index],
            self.observed[index],
            self.source[index],
            self.row[index],
            group=_taken(self.group, index),
            seed=_taken(self.seed, index),
            options=_taken(self.options, index),
            splits={n: v[index] for n, v in self.splits.items()},
            extra={n: [v[i] for i in index.tolist()] for n, v in self.extra.items()},
            id=None if self.id is None else self.id[index],
            origin=None if self.origin is None else self.origin[index],
        )
