"""Changes of what episodes are about: the column ``task`` stays the first of the texts of the steps, ``task_at``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset.rows import Rows
from rlds_cli.dataset.tasks import StepTasks, Tasks
from rlds_cli.store import Change, FieldHash, NewRows, Patched, Store, StoredColumn
from rlds_cli.store.digests import Digests
from rlds_cli.ted import TASK, TASK_AT, Scalar


@dataclass(frozen=True, slots=True)
class Places:
    """Some of the episodes that a change makes of a dataset, as a dataset for `Rows`."""

    store: Store
    change: Change
    index: IntArray

    @property
    def episodes(self) -> Places:
        """The episodes themselves."""
        return self

    def __getitem__(self, name: str) -> Array:
        of = self.index if self.change.index is None else self.change.index[self.index]
        found, new = np.asarray(self.store.episodes[name])[of], self.change.columns.get(name)
        if new is None:
            return found
        return new.over(found, self.index) if isinstance(new, Patched) else np.asarray(new)[self.index]


def of_ranges(store: Store, change: Change, changed: IntArray) -> Change:
    """Return a change of a dataset in which ``changed`` episodes, parts of others, have the first of their texts."""
    if TASK_AT not in store.fields or not Tasks(store).is_column or change.index is None:
        return change
    values = store.own_column(TASK).take(change.index).scalars()
    for k, text in zip(changed.tolist(), StepTasks.of(Rows(Places(store, change, changed))).first, strict=True):
        values[k] = text
    return replace(change, own={**change.own, TASK: StoredColumn.of(values, TASK)})


def relabelled(store: Store, change: Change) -> Change:
    """Return a change of the column ``task`` in which the steps have the new texts, too.

    Episodes of several texts keep those of their steps.
    """
    column = change.own.get(TASK)
    if TASK_AT not in store.fields or TASK not in change.own:
        return change
    index = np.arange(len(store.episodes["start"])) if change.index is None else change.index
    texts: list[Scalar] = [None] * len(index) if column is None else column.scalars()
    before = store.own_column(TASK).take(index).scalars() if TASK in store.own_columns else [None] * len(index)
    other = np.flatnonzero([a != b for a, b in zip(before, texts, strict=True)])
    other = other[~StepTasks.of(Rows(Places(store, change, other))).several]
    known: list[Any] = [*store.strings(TASK_AT)[:-1].tolist(), *(texts[k] for k in other.tolist())]
    number = {text: k for k, text in enumerate(dict.fromkeys(text for text in known if text is not None))}
    codes = np.array(store.rows(TASK_AT))
    places = Places(store, change, other)
    start, length = places["start"], places["length"]
    for k, a, n in zip(other.tolist(), start.tolist(), length.tolist(), strict=True):
        codes[a : a + n] = number.get(texts[k], -1)
    hashing = FieldHash(store.fields[TASK_AT], texts=[*number, None])
    new = Patched(other, hashing.episodes(codes, start, length))
    of_episodes: Patched | Digests = new
    if isinstance(of_parts := change.digests.get(TASK_AT), Patched):  # parts of episodes have others than the source
        everything = np.arange(len(index))
        of_episodes = new.over(of_parts.over(store.digests(TASK_AT)[index], everything), everything)
    written = {TASK_AT: partial(NewRows.write_texts, codes=codes, texts=list(number))}
    return replace(change, rows={**change.rows, **written}, digests={**change.digests, TASK_AT: of_episodes})
