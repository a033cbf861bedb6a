"""Change a dataset that grows in its place, also while others write and read it: labels, drops, facts, restore.

A change is one commit of lines of the log of edits. It applies to the newest version: what was recorded since the
episodes were selected stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidArgument
from rlds_cli.growing import edits, logs
from rlds_cli.growing.store import GrowingStore
from rlds_cli.store.digests import Digests
from rlds_cli.store.episode_table import StoredColumn
from rlds_cli.store.facts import FACTS, facts_of
from rlds_cli.ted import IntArray
from rlds_cli.text import plural

_COVERED = ("length", "end", "num_observed")  # columns that an episode keeps where it is written once more


@contextmanager
def newest(store: GrowingStore) -> Iterator[GrowingStore]:
    """Hold the lock of commits, and open the newest version."""
    with logs.committing(store.path):
        yield store.newest()


def follow(old: GrowingStore, new: GrowingStore, index: IntArray) -> IntArray | None:
    """Return where episodes ``index`` [n] of a version are in a newer one.

    None if one of them left, or if the dataset was changed in between: episodes that were recorded are no change.
    """
    if any(line.by for line in new.edits.lines[len(old.edits.lines) :]):
        return None
    if old.version == new.version:
        return index
    places = _places(new, _all(new) if new.kept is None else new.kept)
    found = [places.get(id.tobytes(), -1) for id in old.episodes["id"][index]]
    return None if -1 in found else np.array(found, np.int64)


def commit(
    store: GrowingStore,
    index: IntArray,
    step: Mapping[str, Any],
    *,
    columns: Mapping[str, StoredColumn | None] | None = None,
    dropped: bool | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Commit a change of episodes ``index`` of the newest version, of which the caller holds the lock.

    Parameters
    ----------
    step : mapping
        Of the provenance: its ``function`` and ``args`` are in the log of versions.
    columns : mapping
        Columns that are set, of all episodes; None takes all values away.
    dropped : bool, optional
        True hides the episodes.
    facts : mapping
        Those that are set; None takes one away.

    Raises
    ------
    InvalidArgument
        So many columns are not labelled.
    NoSpace
        The disk is full. Nothing was changed.
    """
    chosen = index if (np.diff(index) > 0).all() else np.unique(index)
    if len({*store.edits.names, *(columns or {})}) > edits.MOST_COLUMNS:
        raise InvalidArgument(f"{store.manifest.id}: at most {edits.MOST_COLUMNS:,} columns can be labelled.")
    numbers, none = chosen + store.first_episode, np.zeros(0, np.int64)
    none_set = [None] * len(chosen)
    values = {n: none_set if c is None else c.take(chosen).scalars() for n, c in (columns or {}).items()}
    found = edits.lines(numbers, by=step["function"], args=step["args"], columns=values, dropped=dropped, facts=facts)
    _commit(store, found, numbers if dropped else none, none)


def _commit(store: GrowingStore, found: Sequence[Mapping[str, Any]], hidden: IntArray, shown: IntArray) -> None:
    frames = len(store.layout.bytes)
    edits.commit(store.path, store.commit, frames, found, hidden=hidden, shown=shown)


def restore(old: GrowingStore, new: GrowingStore, step: Mapping[str, Any]) -> None:
    """Commit the content of an earlier version ``old``; nothing if the newest, ``new``, has it already.

    Raises
    ------
    InvalidArgument
        Episodes of the earlier version left since.
    NoSpace
        The disk is full. Nothing was changed.
    """
    places = _same_episodes(old, new)
    kept = np.zeros(len(new.episodes["start"]), bool)
    kept[slice(None) if new.kept is None else new.kept] = True
    wanted = np.zeros(len(kept), bool)
    wanted[places] = True
    hidden, shown = (np.flatnonzero(x) + new.first_episode for x in (kept & ~wanted, wanted & ~kept))
    before, after = facts_of(new.manifest), facts_of(old.manifest)
    facts = {name: after[name] for name in FACTS if after[name] != before[name]}
    columns = _other_values(old, new, places)
    if not (len(hidden) or len(shown) or facts or columns):
        return
    found = edits.lines(
        places + new.first_episode, by=step["function"], args=step["args"], columns=columns, facts=facts
    )
    found += [*edits.lines(hidden, dropped=True), *edits.lines(shown, dropped=False)]
    _commit(new, found, hidden, shown)


def _same_episodes(old: GrowingStore, new: GrowingStore) -> IntArray:
    """Return where the kept episodes of an earlier version are in the newest one, as they were."""
    kept = _all(old) if old.kept is None else old.kept
    places = _places(new, _all(new) if new.stored is None else new.stored)
    found = np.array([places.get(id.tobytes(), -1) for id in old.episodes["id"][kept]], np.int64)
    there = np.flatnonzero(found >= 0)
    one, other = kept[there], found[there]
    same = np.ones(len(there), bool)
    for name in _COVERED:
        same &= old.episodes[name][one] == new.episodes[name][other]
    same &= (_digests(old)[one] == _digests(new)[other]).all((1, 2))
    gone = len(kept) - int(same.sum())
    if gone or (np.diff(found) <= 0).any():
        m = old.manifest
        ref = f"{m.id}#v{old.version}"
        raise InvalidArgument(
            f"{ref} cannot be restored: {plural(gone or len(found), 'episode')} of it left since, or went on.",
            hint=f"rlds select {ref} --name NAME makes a dataset of them, as long as that version can be opened",
        )
    return found


def _other_values(old: GrowingStore, new: GrowingStore, places: IntArray) -> dict[str, list[Any]]:
    """Return the columns, as an earlier version has them, whose values differ in the newest."""
    kept, found = (_all(old) if old.kept is None else old.kept), {}
    for name in dict.fromkeys([*old.edits.names, *new.edits.names]):
        before, after = old.all_values(name), new.all_values(name)
        values = [before[k] for k in kept.tolist()]
        if json.dumps(values) != json.dumps([after[k] for k in places.tolist()]):
            found[name] = values
    return found


def _digests(store: GrowingStore) -> Digests:
    return logs.read_digests(store.path, store.first_episode, store.commit.episodes, len(store.fields))


def _all(store: GrowingStore) -> IntArray:
    return np.arange(len(store.episodes["start"]))


def _places(store: GrowingStore, index: IntArray) -> dict[bytes, int]:
    """Return the number of each of the episodes ``index``, by id."""
    return {id.tobytes(): k for id, k in zip(store.episodes["id"][index], index.tolist(), strict=True)}
