"""Apply decisions in one transaction: the next version of a dataset, or ``ID@NAME``.

Decisions that were made on an earlier version are compared with the newest by the ids of episodes, see `planning`. If
another process makes a newer version meanwhile, they are compared with that one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.text import plural, size_of
from rlds_cli.base.visible import Lines
from rlds_cli.dataset import editing, retelling, trimming
from rlds_cli.dataset.decisions import account, planning, tables
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.dataset.decisions.journal import DecisionJournal
from rlds_cli.dataset.decisions.planning import DecisionPlan, Settled
from rlds_cli.dataset.editing import Target
from rlds_cli.dataset.fixed import OpenDataset, Selected
from rlds_cli.dataset.trimming import Ranges
from rlds_cli.errors import ClashingDecisions, InvalidArgument, NotNewest
from rlds_cli.store import Change, History, StoredColumn
from rlds_cli.ted import TASK, TASK_AT

_LISTED = 20  # clashes that a message lists
_LONGEST = 8 << 20  # bytes of the account of a change
Given = str | PathLike[str] | Iterable[Decision | Mapping[str, Any]] | DecisionJournal | Any  # a pandas.DataFrame, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Decisions that are applied, the name of the file that they come from, and what wins where they clash."""

    decisions: Sequence[Decision]
    file: str = ""
    take: tuple[str, ...] = ()

    @classmethod
    def of(cls, ds: OpenDataset, given: Given, *, by: str, take: str | Collection[str]) -> Decided:
        """Read decisions, and complete those that do not say who has made them, or which version was looked at.

        Raises
        ------
        InvalidArgument, RldsError
            They cannot be understood, or the dataset is a selection.
        """
        if ds.is_selection:
            raise InvalidArgument(
                f"{ds.id}: decisions are on a dataset, not on a selection of it.",
                hint="open_dataset(ID).apply(...): decisions name their episodes themselves",
            )
        file = ""
        if isinstance(given, DecisionJournal):
            made: Sequence[Decision] = given.pending()
        elif isinstance(given, str | PathLike):
            made, file = tables.read_file(Path(given), ds.store), Path(given).name
        elif hasattr(given, "columns") and hasattr(given, "itertuples"):
            made = tables.of_frame(given, ds.store)
        else:
            made = tables.of_records(given)
        version = ds.store.version
        made = [d if d.by and d.version else replace(d, by=d.by or by, version=d.version or version) for d in made]
        return cls(decisions=made, file=file, take=(take,) if isinstance(take, str) else tuple(take))

    def lacking(self, ds: OpenDataset) -> Decided:
        """Return those that the open version of a dataset does not have yet."""
        there = {d.key for d in account.applied(ds)}
        return replace(self, decisions=[d for d in self.decisions if d.key not in there]) if there else self


def plan(ds: OpenDataset, decided: Decided) -> DecisionPlan:
    """Return what decisions change in the open version; raises as `planning.settle`."""
    new = decided.lacking(ds).decisions
    return planning.settle(ds, new, decided.take).plan(ds, new)


def apply(ds: OpenDataset, decided: Decided, to: Target, newest: Callable[[Path], OpenDataset]) -> Path:
    """Make the next version of a dataset, or ``ID@NAME``, by decisions; see `Dataset.apply`.

    ``newest`` opens the newest version in a directory.
    """
    ds.store.table.check_changeable()
    tried: set[int] = set()
    while True:
        if to.name is None:
            ds = newest(History.of(ds.path).path)
        new = decided.lacking(ds)
        if to.name is not None and not new.decisions:
            raise InvalidArgument(
                f"There are no decisions that {ds.id} does not have yet. Nothing was made.",
                hint=f"rlds view {ds.id}, or a file of decisions; rlds select {ds.id} --name {to.name} copies it",
            )
        settled = planning.settle(ds, new.decisions, decided.take)
        _check(ds, settled, to)
        touched = settled.touched()
        try:
            with editing.source_of(Selected(ds, ds.store, touched), to) as there:
                return _made(there, settled.moved(touched, there.episodes.index), new, to)
        except NotNewest as e:
            if to.name is not None or e.version in tried:
                raise
            tried.add(e.version)


def _check(ds: OpenDataset, settled: Settled, to: Target) -> None:
    if settled.clashes:
        more = len(settled.clashes) - _LISTED
        listed = [f"  {c}" for c in settled.clashes[:_LISTED]]
        head = f"{plural(len(settled.clashes), 'decision')} on {ds.id} cannot hold. Nothing was changed."
        raise ClashingDecisions(
            Lines("\n".join([head, *listed, *([f"  and {more:,} more"] if more > 0 else [])])),
            hint="--take mine (take=): what is decided; --take theirs: what the dataset has; --take NAME: an annotator",
            clashes=settled.clashes,
        )
    if settled.ranges and to.name is None:
        raise InvalidArgument(
            f"Steps of {plural(len(settled.ranges), 'episode')} of {ds.id} go. What stays of them are other episodes, "
            "with ids of their own, which another dataset has. Nothing was changed.",
            hint="--name NAME (name=) makes ID@NAME",
        )


def _made(ds: OpenDataset, settled: Settled, decided: Decided, to: Target) -> Path:
    """Make what was settled of a version, or of the files that ``ID@NAME`` is made of."""
    args: dict[str, Any] = {editing.FROM_FILE: decided.file} if decided.file else {}
    args[account.DECISIONS] = account.told(decided.decisions)
    if (size := len(json.dumps(args))) > _LONGEST:
        raise InvalidArgument(
            f"Who decided what would take {size_of(size)} of the description of {ds.id}. Nothing was changed.",
            hint=f"several files of at most {len(decided.decisions) * _LONGEST // size:,} decisions",
        )
    count, columns = len(ds.store.episodes["start"]), _columns(ds, settled, to)
    dropped = np.array(settled.dropped, np.int64)
    if settled.ranges:
        ranges = _ranges(settled, ds.store.episodes["length"])
        change = _relabelled(trimming.change(ds.store, ranges, columns), settled, ranges.number)
    elif len(dropped):
        stays = np.ones(count, bool)
        stays[dropped] = False
        index = np.flatnonzero(stays)
        own = {name: None if c is None else c.take(index) for name, c in columns.items()}
        change = Change(index, editing.origins(ds.store), own=own)
    else:
        change = Change(own=columns)
    change = retelling.relabelled(ds.store, change)
    step = {**editing.step_of(ds, account.APPLY, args), "columns": sorted(columns), "changed": sorted(change.rows)}
    return editing.apply_change(ds, change, step, to, columns=columns, dropped=dropped if len(dropped) else None)


def _columns(ds: OpenDataset, settled: Settled, to: Target) -> dict[str, StoredColumn | None]:
    """Return the columns that change, of all episodes of a version."""
    names = list(settled.values)
    editing.check_no_fields(ds, names)
    StoredColumn.check_names([*ds.store.own_columns, *(n for n in names if n not in ds.store.own_columns)], ds.id)
    found = {}
    for name, values in settled.values.items():
        some = Selected(ds, ds.store, np.array(list(values), np.int64))
        if name == TASK and TASK_AT in ds.store.fields:
            editing.check_one_task(some, to)
        found[name] = editing.new_column(some, name, list(values.values()))
    return found


def _ranges(settled: Settled, lengths: IntArray) -> Ranges:
    """Return the ranges of steps that stay: those of the episodes that are trimmed, and whole ones."""
    each = np.ones(len(lengths), np.int64)
    each[settled.dropped] = 0
    for k, parts in settled.ranges.items():
        each[k] = len(parts)
    number, begin = np.repeat(np.arange(len(lengths)), each), np.cumsum(each) - each
    first, stop = np.zeros(len(number), np.int64), lengths[number].astype(np.int64)
    for k, parts in settled.ranges.items():
        here = slice(begin[k], begin[k] + len(parts))
        first[here], stop[here] = zip(*parts, strict=True)
    return Ranges(number, first, stop)


def _relabelled(change: Change, settled: Settled, number: IntArray) -> Change:
    """Return a change in which parts of episodes have the new task where one was decided, not that of their steps."""
    given, column = settled.values.get(TASK, {}), change.own.get(TASK)
    if not given or column is None:
        return change
    values = [given.get(n, v) for n, v in zip(number.tolist(), column.scalars(), strict=True)]
    return replace(change, own={**change.own, TASK: StoredColumn.of(values, TASK)})
