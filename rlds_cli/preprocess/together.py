"""Episodes that come back as planned: checked and compared many at a time, and put straight into their rows.

What an episode costs besides its function is Python, field by field. Where one comes back with just the fields, dtypes
and rows that the plan says, and what is to be untouched is the very array that was given, nothing else has to be looked
at; whether these arrays were changed in place is seen at the end, of all episodes of the block at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_cli.preprocess import forms
from rlds_cli.preprocess.plan import Plan
from rlds_cli.preprocess.reading import Episode
from rlds_cli.preprocess.task import Task
from rlds_cli.ted import FLAGS, Array, Chunk, Column, EpisodeTable, Note

EMPTY = Note("empty-episodes", "episodes without steps were left out")


def possible(task: Task, plan: Plan) -> bool:
    """Whether episodes of a task can be taken as planned: arrays of NumPy, as many steps as there were, given flags."""
    names = _returned(plan)
    return (
        plan.kept
        and task.arrays == "numpy"
        and not plan.copied
        and plan.untouched.issuperset(FLAGS)
        and all(f.kind == "array" for f in plan.schema if f.name in names)
        and not any(f"next/{n}" in names for n in names)
    )


def _returned(plan: Plan) -> frozenset[str]:
    """What the function gives back."""
    return frozenset(f.name for f in plan.schema) - plan.carried


class Together:
    """A block of episodes: what is given of them, and the rows that are made of them.

    Parameters
    ----------
    episodes : list of Episode
        They follow each other in ``rows``, each with its final row.
    rows : mapping of str to array [rows, ...]
        As the source has them.
    """

    def __init__(self, plan: Plan, episodes: list[Episode], rows: Mapping[str, Array]) -> None:
        self._plan = plan
        self._original = rows
        self._given = {n: v.copy() for n, v in rows.items()}
        names = _returned(plan)
        self._fields = [
            (f.name, np.dtype(f.dtype), f.shape, f.placement == "both", f.name in plan.untouched)
            for f in plan.schema
            if f.name in names
        ]
        total = sum(ep.length + 1 for ep in episodes)
        self._rows: dict[str, Array] = {f.name: np.empty((total, *f.shape), f.dtype) for f in plan.written}
        self._at = self._next = 0  # rows made; the first row of the next episode among those given
        self._kept: list[int] = []
        self._ends: list[int] = []
        self._observed: list[bool] = []
        self.notes: list[Note] = []

    def give(self, ep: Episode) -> dict[str, Array]:
        """What the function is given of the next episode: its rows in copies, which it may write to."""
        at, self._next = self._next, self._next + ep.length + 1
        return {n: self._given[n][at : at + len(v)] for n, v in ep.original.items()}

    def columns(self, value: Any, ep: Episode, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """The fields of an episode that came back as planned; None where that takes a closer look."""
        if not isinstance(value, dict) or not ep.observed or not ep.length:
            return None
        found: dict[str, Any] = {}
        _collect(value, "", found)
        if len(found) != len(self._fields):
            return None
        for name, dtype, shape, both, untouched in self._fields:
            v = found.get(name)
            if type(v) is not np.ndarray or v.dtype != dtype or v.shape != (ep.length + both, *shape):
                return None
            if untouched and v is not given.get(name):
                return None
        return found

    def restore(self, ep: Episode, given: Mapping[str, Array]) -> None:
        """Forget what the function wrote into what it was given: it is of no account, or has been looked at."""
        for name in self._plan.untouched:
            given[name][:] = ep.original[name]

    def put(self, number: int, columns: Mapping[str, Column], length: int, end: int, observed: bool) -> None:
        """Put an episode into its rows; ``number`` is its place in the table of `chunk`."""
        if length == 0:
            self.notes.append(EMPTY)
            return
        at, final = self._at, self._at + length
        for f in self._plan.written:
            column, rows = columns[f.name], self._rows[f.name]
            assert isinstance(column, np.ndarray)
            rows[at : at + len(column)] = column
            if len(column) == length:
                rows[final] = column[-1] if f.placement == "both" else 0
        self._at = final + 1
        self._kept.append(number)
        self._ends.append(end)
        self._observed.append(observed)

    def touched(self) -> frozenset[str]:
        """Fields of those that the plan has as untouched, in which the function wrote."""
        return frozenset(n for n in self._plan.untouched if not forms.same(self._given[n], self._original[n]))

    def chunk(self, table: EpisodeTable) -> Chunk:
        """The rows, with the episodes of the block as the source has them at the head of ``table``."""
        episodes = table.take(np.array(self._kept, np.int64))
        episodes.end = np.array(self._ends, np.uint8)
        episodes.observed = np.array(self._observed, bool)
        episodes.splits = {n: v for n, v in episodes.splits.items() if v.any()}
        last = np.zeros(self._at, bool)
        last[np.cumsum(episodes.length + 1) - 1] = True
        return Chunk({n: v[: self._at] for n, v in self._rows.items()}, last, episodes, tuple(self.notes))


def _collect(node: Mapping[Any, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _collect(value, f"{prefix}{key}/", found)
        else:
            found[f"{prefix}{key}"] = value
