"""Edits of a growing dataset: labels, drops and facts, which supersede what was recorded.

They are lines of a log. A version applies those in its part of the log, in order, and the last one wins::

    {"by": "label",                                  the command; missing in the other lines of a commit
     "args": {"where": "take > 3", "quality": "bad"},
     "episodes": [[3, 4], [7, 12]],                  places [first, stop) in the logs, ascending
     "columns": {"quality": "bad",                   one value for all of them, or a list with one for each; null: none
                 "score": [0.5, null, 1, 1, 2, 2]},
     "dropped": true,                                true hides the episodes, false shows them again
     "facts": {"fps": 50.0}}                         of the dataset; null takes one away

An episode that is dropped did not leave: its rows stay until ``rlds compact`` lets it leave.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset, InvalidArgument, InvalidEpisode, NoSpace
from rlds_cli.store import commits
from rlds_cli.store.commits import Commit
from rlds_cli.store.facts import Facts
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.places import LogPlaces
from rlds_cli.store.growing.records import Records, counted
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.ted import Scalar

COMMANDS = ("label", "drop", "apply", "restore")
_ACCOUNTS = ("measured", "decisions")  # arguments that are lists: they say why, and make nothing
MOST_COLUMNS = 256  # that labels set: each takes memory for a value of every episode
_MEMBERS = {"by", "args", "episodes", "columns", "dropped", "facts"}
_AT_ONCE = 1 << 16  # episodes of a line that is written
_SCALARS = {bool, int, float, str, type(None)}
_UNSET: Any = object()  # of an episode of which no label sets a column
Span = tuple[int, int]  # places of episodes in the logs [first, stop)


@dataclass(frozen=True, slots=True)
class Edit:
    """A line of the log, which ends before byte ``end``; see the module."""

    end: int
    by: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    episodes: Sequence[Span] = ()
    columns: Mapping[str, Scalar | Sequence[Scalar]] = field(default_factory=dict)
    dropped: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """The place behind the last of the episodes; 0 without any."""
        return self.episodes[-1][1] if self.episodes else 0

    def within(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the episodes among [first, stop), as places [a, b) there, and the place of the first one's value."""
        at = 0
        for a, b in self.episodes:
            low, high = max(a, first), min(b, stop)
            if low < high:
                yield low - first, high - first, at + low - a
            at += b - a


@dataclass(frozen=True)
class Edits:
    """The edits of one version, in order."""

    lines: Sequence[Edit]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that labels set."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line.columns))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that were set."""
        return {name: value for line in self.lines for name, value in line.facts.items()}

    def dropped(self, of: LogPlaces) -> BoolArray:
        """Return which of the episodes [n] are dropped; those that left, too."""
        first, stop = _window(of)
        found = np.zeros(stop - first, bool)
        for line in self.lines:
            if line.dropped is not None:
                for a, b, _ in line.within(first, stop):
                    found[a:b] = line.dropped
        return of.pick(found, first)

    def labelled(self, name: str, values: list[Any], of: LogPlaces) -> list[Any]:
        """Return the values [n] of a column of episodes, which ascend, with those of the labels in their place."""
        if name not in self.names:
            return values
        first, stop = _window(of)
        if stop - first == len(of):  # no call for each of a million episodes
            return self._set(name, list(values), first)
        return [v if label is _UNSET else label for v, label in zip(values, self._labels(name, of), strict=True)]

    def has_values(self, name: str, of: LogPlaces) -> bool:
        """Return whether the last label of a column surely gives a value to one of the episodes, which ascend."""
        line = next(line for line in reversed(self.lines) if name in line.columns)
        if isinstance(given := line.columns[name], list) or given is None:
            return False
        logged = of.logged
        return any(np.searchsorted(logged, a) < np.searchsorted(logged, b) for a, b in line.episodes)

    def carried(self, old: LogPlaces, new: LogPlaces) -> list[dict[str, Any]]:
        """Return the lines that give episodes ``new`` [n], ascending, the labels of ``old`` [n], which they replace."""
        found = _columns_of(new, {name: self._labels(name, old) for name in self.names})
        return [*found, *lines(new.take(self.dropped(old)), dropped=True)]

    def _labels(self, name: str, of: LogPlaces) -> list[Any]:
        """Return the labels of the episodes [n] in a column; _UNSET where there is none."""
        first, stop = _window(of)
        return of.pick_list(self._set(name, [_UNSET] * (stop - first), first), first)

    def _set(self, name: str, values: list[Any], first: int) -> list[Any]:
        """Put the labels of a column in the place of values of episodes that follow each other, from ``first`` on."""
        for line in self.lines:
            if name in line.columns:
                given = line.columns[name]
                for a, b, at in line.within(first, first + len(values)):
                    values[a:b] = given[at : at + b - a] if isinstance(given, list) else [given] * (b - a)
        return values


def _window(of: LogPlaces) -> Span:
    """Return the places between which episodes lie."""
    logged = of.logged
    return (int(logged.min()), int(logged.max()) + 1) if len(logged) else (0, 0)


def _columns_of(places: LogPlaces, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    found = []
    for name, values in columns.items():
        labelled = np.array([v is not _UNSET for v in values], bool)
        found += lines(places.take(labelled), columns={name: [v for v in values if v is not _UNSET]})
    return found


# -- reading


class EditLog:
    """The lines of the log, as versions that are open share them: a later version reads only those that are new."""

    def __init__(self, dataset: Path, head: Manifest) -> None:
        self._dataset, self._head = dataset, head
        self._lines: list[Edit] = []
        self._names: set[str] = set()
        self._end = 0
        self._lock = threading.Lock()

    def read(self, g: Commit) -> Edits:
        """Return the edits of a version.

        Raises
        ------
        DamagedDataset
            A line is missing or wrong.
        """
        with self._lock:
            if self._end < g.edits:
                new = read(self._dataset, self._end, g.edits, self._head)
                self._names.update(*(line.columns for line in new))
                check_columns(self._names, self._dataset)
                self._lines += new
                self._end = g.edits
            lines = self._lines[: bisect_right(self._lines, g.edits, key=lambda line: line.end)]
        if any(line.stop > g.episodes for line in lines):
            raise DamagedDataset(f"{self._dataset / logs.EDITS} names an episode that is not there.", hint=logs.HINT)
        return Edits(lines)


def check_columns(names: Iterable[str], dataset: Path) -> None:
    """Refuse labels of more columns than are read."""
    if (count := len(set(names))) > MOST_COLUMNS:
        raise DamagedDataset(
            f"{dataset / logs.EDITS} sets {count:,} columns; at most {MOST_COLUMNS:,} are read.", hint=logs.HINT
        )


def read(dataset: Path, first: int, stop: int, head: Manifest) -> list[Edit]:
    """Read the lines in bytes [first, stop) of the log of a dataset with a manifest.

    Raises
    ------
    DamagedDataset
        One is wrong.
    """
    found, at = [], first
    for line in logs.read_part(dataset / logs.EDITS, first, stop).splitlines(keepends=True):
        at += len(line)
        try:
            found.append(_edit(documents.loads(line), at, head))
        except (ValueError, InvalidEpisode, InvalidArgument) as e:
            raise DamagedDataset(f"{dataset / logs.EDITS} cannot be read: {e}.", hint=logs.HINT) from e
    return found


def _edit(line: Any, end: int, head: Manifest) -> Edit:
    """Check a line of the log; raises ValueError, InvalidEpisode or InvalidArgument."""
    if not isinstance(line, dict) or line.keys() - _MEMBERS:
        raise ValueError("a line that is not an edit")
    edit = Edit(end, **line)
    args, columns, given = edit.args, edit.columns, edit.facts
    if edit.by not in ("", *COMMANDS) or not isinstance(edit.dropped, bool | None):
        raise ValueError("an edit of an unknown kind")
    if not all(isinstance(m, dict) for m in (args, columns, given)) or not all(map(_is_argument, args.items())):
        raise ValueError("invalid arguments, columns or facts")
    if edit.by == "restore" and "version" not in args:
        raise ValueError("a version that was restored, without its number")
    count = _check_spans(edit.episodes)
    StoredColumn.check_names(columns, "a label")
    for name, values in columns.items():
        if not (_is_column(values, count) if isinstance(values, list) else _is_scalar(values)):
            raise ValueError(f"values of {name} that are not one for each episode")
    if set(given) - set(Facts.NAMES):
        raise ValueError("an unknown fact")
    Facts(head).replaced(given)
    return replace(edit, episodes=[(a, b) for a, b in edit.episodes])


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _is_argument(argument: tuple[str, Any]) -> bool:
    name, value = argument
    return isinstance(value, list) if name in _ACCOUNTS else _is_scalar(value)


def _is_column(values: list[Any], count: int) -> bool:
    return len(values) == count and set(map(type, values)) <= _SCALARS


def _check_spans(spans: Any) -> int:
    """Check numbers of episodes, and return how many there are."""
    if not isinstance(spans, list | tuple):
        raise ValueError("numbers of episodes that are not a list")
    if not all(isinstance(span, list) and len(span) == 2 for span in spans):
        raise ValueError("invalid numbers of episodes")
    flat = [0, *chain.from_iterable(spans)]
    if {type(n) for n in flat} != {int} or not all(0 <= n < 1 << 60 for n in flat):
        raise ValueError("invalid numbers of episodes")
    steps = np.diff(np.array(flat, np.int64))
    if (steps < 0).any() or not steps[1::2].all():
        raise ValueError("numbers of episodes that are not in order")
    return int(steps[1::2].sum())


# -- writing


def lines(
    of: LogPlaces,
    *,
    by: str = "",
    args: Mapping[str, Any] | None = None,
    columns: Mapping[str, Sequence[Scalar]] | None = None,
    dropped: bool | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the lines of an edit.

    Parameters
    ----------
    of : LogPlaces [n]
        The episodes, ascending.
    by, args
        The command, which the log of versions shows.
    columns : mapping of str to sequence [n]
        Values by column.
    dropped : bool, optional
        True hides the episodes, False shows them again.
    facts : mapping
        Facts of the dataset.
    """
    head = {"by": by, "args": dict(args or {}), "facts": dict(facts or {})}
    found: list[dict[str, Any]] = [{n: v for n, v in head.items() if v}] if by else []
    if not columns and dropped is None:
        return found
    logged = of.logged
    for at in range(0, len(logged), _AT_ONCE):
        part = logged[at : at + _AT_ONCE]
        line: dict[str, Any] = {"episodes": _spans(part)}
        if columns:
            line["columns"] = {n: _alike(values[at : at + len(part)]) for n, values in columns.items()}
        if dropped is not None:
            line["dropped"] = dropped
        found.append(line)
    return found


def _spans(logged: IntArray) -> list[list[int]]:
    breaks = np.flatnonzero(np.diff(logged) != 1)
    first, last = logged[np.append(0, breaks + 1)], logged[np.append(breaks, len(logged) - 1)]
    spans: list[list[int]] = np.stack([first, last + 1], 1).tolist()
    return spans


def _alike(values: Sequence[Scalar]) -> Any:
    """Return the value that all are, or the list of them."""
    if values.count(values[0]) < len(values):
        return list(values)
    kinds = {(type(v), repr(v) if isinstance(v, float) else v) for v in values}  # True is equal to 1, and 0.0 to -0.0
    return values[0] if len(kinds) == 1 else list(values)


def encoded(found: Sequence[Mapping[str, Any]]) -> bytes:
    """Return lines as they are written."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in found)


def commit(
    dataset: Path, g: Commit, frames: int, found: Sequence[Mapping[str, Any]], *, hidden: LogPlaces, shown: LogPlaces
) -> Commit:
    """Append lines to the log, and return the version that has them. The caller holds the lock of commits.

    Parameters
    ----------
    dataset : Path
    g : Commit
        The newest version.
    frames : int
        How many fields of encoded frames the dataset has.
    found : sequence of mapping
        The lines.
    hidden, shown : LogPlaces
        Episodes, ascending: those that were kept and are dropped now, and those that were dropped and are kept again.

    Raises
    ------
    NoSpace
        The disk is full. The dataset is as it was.
    """
    data = encoded(found)
    new = replace(
        g,
        number=g.number + 1,
        edits=g.edits + len(data),
        dropped=g.dropped + len(hidden) - len(shown),
        time=time.time(),
        logs=logs.chained(g, [data]),
    )
    new = counted(new, *(_records(dataset, of, frames) for of in (shown, hidden)))
    try:
        for file, at, part in (
            (logs.EDITS, g.edits, data),
            (commits.FILE, new.number * commits.BYTES, new.packed()),
        ):
            with safe_files.updating(dataset / file) as log:
                disk.write_at(log.fileno(), at, part)
                logs.sync(log.fileno())
    except OSError as e:
        if disk.is_full(e):
            raise NoSpace(f"The disk of {dataset} is full; nothing was changed.", hint="free some space") from e
        raise disk.disk_error(e, dataset, kept="Nothing was changed.") from e
    return new


def _records(dataset: Path, of: LogPlaces, frames: int) -> Records:
    first, stop = _window(of)
    found: Records = of.pick(logs.read_episodes(dataset, first, stop, frames), first)
    return found
