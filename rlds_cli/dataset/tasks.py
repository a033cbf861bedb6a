"""What is to be done at a step, in words: the field ``task_at`` of a dataset that has it, else the column ``task``.

The column is the first text of an episode. Whatever changes one of them keeps it so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset.rows import Rows
from rlds_cli.store import Store
from rlds_cli.ted import TASK, TASK_AT


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
    """What the steps of a dataset are about, in words."""

    store: Store

    @property
    def is_column(self) -> bool:
        """Whether the episodes have a column of texts that says what they are about."""
        return TASK in self.store.own_columns and self.store.own_column(TASK).dtype == "str"

    @property
    def are_known(self) -> bool:
        """Whether ``task`` names what is to be done at the steps, and no field of its own."""
        return TASK not in self.store.fields and (TASK_AT in self.store.fields or self.is_column)

    def gather(self, rows: IntArray) -> Array:
        """Return the texts at rows, if they are known, as objects; None at rows without a step [n]."""
        store = self.store
        if TASK_AT in store.fields:
            return store.gather(TASK_AT, rows)
        rows = np.asarray(rows, np.int64)
        start, length = store.episodes["start"], store.episodes["length"]
        order = np.argsort(start, kind="stable")
        at = order[np.maximum(np.searchsorted(start[order], rows, "right") - 1, 0)] if len(order) else rows[:0]
        texts = np.array([*store.own_column(TASK).scalars(), None], object)
        found: Array = texts[np.where((rows >= start[at]) & (rows < start[at] + length[at]), at, -1)]
        return found
