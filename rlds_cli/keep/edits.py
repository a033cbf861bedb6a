"""Selections, trims, labels and drops in lock files: their outcome as data, so that no expression or function runs.

::

    "edits": {
        "from": "sample/x",                       the dataset of the lock that was changed; null: the one that the rest
                                                  of this entry describes, under the same id
        "base": "rlds1:...",                      its fingerprint
        "episodes": [[0, 95], [97, 3, 60]],       in order: whole episodes [first, stop), or of one episode the steps
                                                  [episode, first, stop); null for all episodes
        "columns": {"quality": {                  the values now of all columns that were set; null for one taken away
            "dtype": "str",                       bool, int64, uint64, float64 or str
            "values": ["bad", null],              of consecutive episodes that have the same, null for none
            "counts": [2, 94]}},                  how many episodes
        "facts": {"fps": 50.0, "license": ...},   those that were set, null for one taken away
        "measured": [{...}],                      accounts of the measures by which episodes and steps were chosen, and
        "decisions": [{...}]}                     of who decided what, if any were: they say why, and make nothing

All steps that made a dataset of its source, or of an earlier version of itself, are one change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base import ids
from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, Outcome, ProvenanceStep, remake
from rlds_cli.errors import DatasetNotFound, InvalidEpisode, RldsError
from rlds_cli.keep.lock_values import LockValue
from rlds_cli.store import Facts, Manifest, Store, StoredColumn, open_store

_ACCOUNTS = ("measured", "decisions")
_MEMBERS = ("from", "base", "episodes", "columns", "facts", *_ACCOUNTS)
_MOST = 1 << 53  # episodes and steps: far above those of any dataset, and sums stay below 64 bits
_TEXT = "str"  # the type of a column of texts
_LONGEST_TEXT = 1 << 16  # characters of a value; labels are words, tasks are sentences
_WHOLE = "whole episodes [first, stop), or steps [episode, first, stop)"
_IS: Mapping[str, Callable[[Any], bool]] = {
    "bool": lambda v: isinstance(v, bool),
    "int64": lambda v: type(v) is int and -(1 << 63) <= v < 1 << 63,
    "uint64": lambda v: type(v) is int and 0 <= v < 1 << 64,
    "float64": lambda v: isinstance(v, float),
    _TEXT: lambda v: isinstance(v, str) and len(v) <= _LONGEST_TEXT and _can_be_stored(v),
}


def _can_be_stored(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


# -- writing


def steps_of(m: Manifest) -> tuple[Mapping[str, Any], ...]:
    """Return the last steps of a provenance that are changes of this kind and made this dataset, oldest first."""
    count = 0
    for step in reversed(m.provenance):
        if not ProvenanceStep(step).is_edit or step["id"] != m.id:
            break
        count += 1
    return m.provenance[len(m.provenance) - count :]


def described(
    store: Store, steps: Sequence[Mapping[str, Any]], source: Store | None, episodes: list[list[int]] | None
) -> dict[str, Any]:
    """Return the edits of a dataset for a lock file.

    Parameters
    ----------
    steps : sequence of mappings
        Those of `steps_of`, or the last ones of them; at least one.
    source : Store, optional
        The dataset that it was made of; None if that was an earlier version of the same.
    episodes : list, optional
        Its episodes, as ranges of those that the first step changed: see `of_source` and `of_version`.

    Raises
    ------
    RldsError
        A lock file cannot hold a value of a column.
    """
    m = store.manifest
    columns = sorted({name for step in steps for name in step.get("columns", ())})
    facts = sorted({name for step in steps for name in step.get("facts", ())})
    now = Facts(m).values
    accounts = {n: [account for step in steps for account in step["args"].get(n, ())] for n in _ACCOUNTS}
    return {
        "from": None if source is None else source.manifest.id,
        "base": steps[0]["source"],
        "episodes": episodes,
        "columns": {name: _runs(store, name) if name in store.own_columns else None for name in columns},
        "facts": {name: now[name] for name in facts},
        **{name: account for name, account in accounts.items() if account},
    }


def of_source(store: Store, source: Store | None) -> list[list[int]] | None:
    """Return the episodes of a dataset as ranges of its source's, or of its first version's; None for all of them."""
    e = store.episodes
    if "source_episode" not in e:
        return None
    of, first, stop = e["source_episode"], e["source_step"], e["source_step"] + e["length"]
    if source is None:
        return _entries(of, first, stop, np.ones(len(of), bool))
    length = source.episodes["length"]
    whole = (first == 0) & (stop == length[of])
    return _entries(of, first, stop, whole)


def of_version(store: Store, earlier: Store) -> list[list[int]] | None:
    """Return the episodes of a version of a dataset as ranges of those of an earlier one; None for all of them.

    Raises
    ------
    DatasetNotFound
        The earlier version lacks an episode.
    """
    numbers = {id.tobytes(): k for k, id in enumerate(earlier.episodes["id"])}
    try:
        of = np.array([numbers[id.tobytes()] for id in store.episodes["id"]], np.int64)
    except KeyError:
        m, before = store.manifest, earlier.manifest.version
        raise DatasetNotFound(f"{m.id}#v{before} lacks an episode of {m.id}#v{m.version}.") from None
    if np.array_equal(of, np.arange(len(numbers))):
        return None
    return _entries(of, np.zeros(len(of), np.int64), store.episodes["length"], np.ones(len(of), bool))


def _entries(of: IntArray, first: IntArray, stop: IntArray, whole: BoolArray) -> list[list[int]]:
    joined = whole[1:] & whole[:-1] & (of[1:] == of[:-1] + 1)
    starts = np.flatnonzero(np.concatenate([[True], ~joined])[: len(of)])
    counts = np.diff(np.append(starts, len(of)))
    entries = zip(*(c.tolist() for c in (whole[starts], of[starts], first[starts], stop[starts], counts)), strict=True)
    return [[k, k + n] if is_whole else [k, a, b] for is_whole, k, a, b, n in entries]


def _runs(store: Store, name: str) -> dict[str, Any]:
    """Return a column as runs of episodes with the same value."""
    column = store.own_column(name)
    values = column.comparable()
    same = (values[1:] == values[:-1]) & (column.missing[1:] == column.missing[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same])[: len(values)])
    shown = [column.scalar(k) for k in starts.tolist()]
    wrong = next((v for v in shown if v is not None and not _IS[column.dtype](v)), None)
    if wrong is not None:
        raise RldsError(
            f"The episode column {name} of {store.manifest.id} has a text of {len(str(wrong)):,} characters.",
            hint=f"a lock file holds at most {_LONGEST_TEXT:,}",
        )
    return {"dtype": column.dtype, "values": shown, "counts": np.diff(np.append(starts, len(values))).tolist()}


# -- checking


def check(value: LockValue) -> Mapping[str, Any]:
    """Check the edits of a lock file by themselves; `make` checks whether they fit the dataset.

    Raises
    ------
    InvalidLock
        A value is missing or wrong, or two ranges have a step in common.
    """
    value.only(_MEMBERS)
    if source := value.optional("from"):
        source.text()
    value.member("base").fingerprint()
    episodes = value.optional("episodes")
    count = None if episodes is None else _check_entries(episodes)
    columns = value.member("columns")
    try:
        StoredColumn.check_names(columns.mapping(), columns.place)
    except InvalidEpisode as e:
        raise columns.wrong(f"names of episode columns: {e.message}") from None
    for _, column in columns.members():
        if column.value is not None:
            _check_runs(column, count)
    for name in _ACCOUNTS:
        for account in given.items() if (given := value.optional(name)) else ():
            account.mapping()
    facts = value.member("facts")
    facts.only(Facts.NAMES)
    if (fps := facts.optional("fps")) and not _is_rate(fps.value):
        raise fps.wrong("a number of frames a second")
    for name, value_of in facts.members():
        if name != "fps" and value_of.value is not None and not _IS[_TEXT](value_of.value):
            raise value_of.wrong("a text")
    return value.mapping()


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _check_entries(value: LockValue) -> int:
    """Check ranges of episodes and of steps, and return how many episodes they make."""
    entries = value.listed()
    for k, entry in enumerate(entries):
        numbers = isinstance(entry, list) and len(entry) in (2, 3)
        if not (numbers and all(type(n) is int and 0 <= n < _MOST for n in entry) and entry[-2] < entry[-1]):
            raise value.item(k).wrong(_WHOLE)
    episode, count, step, stop = _table(entries).T
    end, behind = episode + np.where(stop < 0, count, 0), np.maximum(stop, 0)  # the place behind: (episode, step)
    order = np.lexsort((step, episode))
    before, after = order[:-1], order[1:]
    shared = (episode[after] < end[before]) | ((episode[after] == end[before]) & (step[after] < behind[before]))
    for k in np.flatnonzero(shared)[:1].tolist():
        one, other = value.item(int(after[k])), value.item(int(before[k]))
        raise one.wrong(f"apart from {other.place}: a step is in both")
    return int(count.sum())


def _table(entries: Sequence[Sequence[int]]) -> IntArray:
    """Return ranges as [n, 4]: the first episode, the number of episodes, and steps first and stop; -1 for all."""
    rows = [(e[0], e[1] - e[0], 0, -1) if len(e) == 2 else (e[0], 1, e[1], e[2]) for e in entries]
    return np.array(rows, np.int64).reshape(-1, 4)


def _check_runs(column: LockValue, episodes: int | None) -> None:
    column.only(("dtype", "values", "counts"))
    dtype = column.member("dtype").one_of(tuple(_IS))
    values, counts = column.member("values"), column.member("counts")
    for k, v in enumerate(values.listed()):
        if v is not None and not _IS[dtype](v):
            raise values.item(k).wrong(f"a value of the type {dtype}")
    for k, n in enumerate(counts.listed()):
        if type(n) is not int or not 0 < n < _MOST:
            raise counts.item(k).wrong("a number of episodes")
    if len(values.value) != len(counts.value):
        raise counts.wrong(f"one of {len(values.value):,} numbers, as there are values")
    if episodes is not None and sum(counts.value) != episodes:
        raise counts.wrong(f"one of numbers whose sum is {episodes:,}, the number of episodes")


# -- making


def make(
    id: str,
    version: int,
    edits: Mapping[str, Any],
    source: Path,
    *,
    verify: Callable[[Path], None],
    home: StrPath | None,
) -> Path:
    """Make a dataset by the edits of a lock file, and return its directory.

    Parameters
    ----------
    edits : mapping
        Those of a lock file, as `check` has accepted them.
    source : Path
        The directory of the dataset that they change.
    verify : callable
        Called with the directory of the result before it is published; it raises what is wrong with it.

    Raises
    ------
    RldsError
        The edits do not fit the source: nothing is published.
    """
    wrong = f"The lock does not fit {id}"
    ds = Dataset(open_store(source))
    how: dict[str, Any] = {"verify": verify, "home": home}
    return remake(ds, ids.parse(id), version, lambda store: _outcome(store, edits, wrong), **how)


def _outcome(store: Store, edits: Mapping[str, Any], wrong: str) -> Outcome:
    known = [n for n in store.own_columns if n not in edits["columns"]]
    try:
        StoredColumn.check_names([*known, *edits["columns"]], store.manifest.id)
    except InvalidEpisode as e:
        raise RldsError(f"{wrong}: {e.message}") from e
    ranges = None if edits["episodes"] is None else _ranges(store, edits["episodes"], wrong)
    count = store.manifest.counts.episodes if ranges is None else len(ranges)
    own = {name: None if c is None else _column(c, name, count, wrong) for name, c in edits["columns"].items()}
    return Outcome(ranges=ranges, columns=own, facts=edits["facts"], accounts={n: edits.get(n, ()) for n in _ACCOUNTS})


def _ranges(store: Store, entries: Sequence[Sequence[int]], wrong: str) -> IntArray:
    """Return the ranges of steps of a store, which are within its episodes: episode, first, stop [n, 3]."""
    lengths, id = store.episodes["length"], store.manifest.id
    episode, count, first, stop = _table(entries).T
    for k in np.flatnonzero(episode + count > len(lengths))[:1]:
        raise RldsError(f"{wrong}: episodes[{k}] is {entries[k]}, and {id} has {len(lengths):,} episodes.")
    for k in np.flatnonzero(stop > lengths[episode])[:1]:
        has = f"episode {episode[k]:,} of {id} has {lengths[episode[k]]:,} steps"
        raise RldsError(f"{wrong}: episodes[{k}] is {entries[k]}, and {has}.")
    of = np.repeat(episode - np.cumsum(count) + count, count) + np.arange(count.sum())
    first, stop = np.repeat(first, count), np.repeat(stop, count)
    return np.stack([of, first, np.where(stop < 0, lengths[of], stop)], 1)


def _column(runs: Mapping[str, Any], name: str, episodes: int, wrong: str) -> StoredColumn:
    """Return a column of all episodes."""
    values, counts = runs["values"], np.array(runs["counts"], np.int64)
    if counts.sum() != episodes:
        raise RldsError(f"{wrong}: the column {name} has values of {counts.sum():,} episodes, not of {episodes:,}.")
    missing = np.repeat(np.array([v is None for v in values], bool), counts)
    if runs["dtype"] == _TEXT:
        texts = np.repeat(np.array(values, object), counts)
        return StoredColumn(_TEXT, [None if t is None else str(t) for t in texts.tolist()], missing)
    filler = np.nan if runs["dtype"] == "float64" else 0
    filled = np.array([filler if v is None else v for v in values], runs["dtype"])
    return StoredColumn(runs["dtype"], np.repeat(filled, counts), missing)
