"""What is to be done at a step, in words.

``task`` is the field ``task_at`` of a dataset that has it, else the column ``task``. The column is the first text of an
episode. Whatever changes one of them keeps it so. ``subtask`` is looked up in the intervals of the column ``subtasks``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.dataset.rows import Rows
from rlds_cli.store import Store
from rlds_cli.ted import TASK, TASK_AT, Subtasks


@dataclass(frozen=True, slots=True)
class StepTasks:
    """What ``task_at`` says of episodes: the ``first`` text of each, and whether it is one of ``several`` [episodes].

    Steps without a text count as another one.
    """

    first: list[str | None]
    several: BoolArray

    @classmethod
    def of(cls, rows: Rows) -> StepTasks:
        """Read the field ``task_at`` of a dataset or a selection that has it."""
        codes = rows.at(TASK_AT, rows.start)
        several = np.zeros(len(codes), bool)
        for a, values in rows.blocks(TASK_AT):
            of = rows.episodes_at(np.arange(a, a + len(values)))
            other = values != codes[of]
            other[rows.last_rows(a, a + len(values)) - a] = False
            several[of[other]] = True
        for k in np.flatnonzero((codes < 0) & several).tolist():
            of_episode = rows.between(TASK_AT, int(rows.start[k]), int(rows.final[k]))
            codes[k] = of_episode[of_episode >= 0][0]
        return cls(rows.store.texts(TASK_AT, codes).tolist(), several)


@dataclass(frozen=True, slots=True)
class Tasks:
    """What the steps of a dataset are about, in words: texts of these ``NAMES``."""

    NAMES: ClassVar = (TASK, Subtasks.FIELD)

    store: Store

    @property
    def is_column(self) -> bool:
        """Whether the episodes have a column of texts that says what they are about."""
        return self._is_text(TASK)

    @property
    def has_subtasks(self) -> bool:
        """Whether ``subtask`` is looked up in intervals, and not a field of its own."""
        return Subtasks.FIELD not in self.store.fields and self._is_text(Subtasks.COLUMN)

    @property
    def told(self) -> tuple[str, ...]:
        """``task`` and ``subtask``, as far as they are known and not fields of their own."""
        has_task = TASK not in self.store.fields and (TASK_AT in self.store.fields or self.is_column)
        return (*((TASK,) if has_task else ()), *((Subtasks.FIELD,) if self.has_subtasks else ()))

    def gather(self, rows: IntArray, name: str = TASK) -> Array:
        """Return the texts ``name`` at rows, if they are `told`, as objects; None at rows without one [n]."""
        if name == TASK and TASK_AT in self.store.fields:
            return self.store.gather(TASK_AT, rows)
        rows = np.asarray(rows, np.int64)
        at = self._episodes_at(rows)
        if name == Subtasks.FIELD:
            found = self.subtasks(distinct(at[at >= 0])).at(rows)
            found[at < 0] = None
            return found
        texts = np.array([*self.store.own_column(TASK).scalars(), None], object)
        of_episodes: Array = texts[at]
        return of_episodes

    def subtasks(self, episodes: IntArray) -> Subtasks:
        """Return the sub-tasks of episodes of the store, as intervals of its rows."""
        column, start = self.store.own_column(Subtasks.COLUMN), self.store.episodes["start"]
        named = [(k, value) for k in episodes.tolist() if (value := column.scalar(k)) is not None]
        found = [(int(start[k]), Subtasks.of(value, f"{self.store.manifest.id}, episode {k}")) for k, value in named]
        return Subtasks.of_rows(found)

    def _is_text(self, name: str) -> bool:
        return name in self.store.own_columns and self.store.own_column(name).dtype == "str"

    def _episodes_at(self, rows: IntArray) -> IntArray:
        """Return the episodes whose steps are at rows [n], -1 where none is."""
        start, length = self.store.episodes["start"], self.store.episodes["length"]
        order = np.argsort(start, kind="stable")
        at = order[np.maximum(np.searchsorted(start[order], rows, "right") - 1, 0)] if len(order) else rows[:0]
        found: IntArray = np.where((rows >= start[at]) & (rows < start[at] + length[at]), at, -1)
        return found
