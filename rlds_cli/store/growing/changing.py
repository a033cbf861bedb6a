"""Change a growing dataset in its place, also while others write and read it: labels, drops, facts, restore.

A change is one commit of lines of the log of edits. It applies to the newest version: what was recorded since the
episodes were selected stays as it is.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.base.text import plural
from rlds_cli.errors import InvalidArgument
from rlds_cli.store.commits import Commit
from rlds_cli.store.digests import Digests
from rlds_cli.store.facts import Facts
from rlds_cli.store.growing import edits, logs
from rlds_cli.store.growing.edits import Edits
from rlds_cli.store.growing.places import LogPlaces
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.store.table import Table
from rlds_cli.ted import Scalar

_COVERED = ("length", "end", "num_observed")  # columns that an episode keeps where it is written once more
_NOWHERE = LogPlaces(range(0))


class ChangedByLog(Table):
    """The changes of a version of a growing dataset.

    Attributes
    ----------
    commit : Commit
    encoded : sequence of str
        Names of the fields of encoded frames, sorted.
    """

    commit: Commit
    encoded: Sequence[str]

    @property
    @abstractmethod
    def edits(self) -> Edits:
        """The labels, drops and facts of this version."""

    @property
    @abstractmethod
    def _kept_places(self) -> LogPlaces:
        """Where the episodes are in the logs, in ascending order."""

    @property
    @abstractmethod
    def _stored_places(self) -> LogPlaces:
        """Those and the places of the dropped episodes."""

    @abstractmethod
    def newest(self) -> ChangedByLog:
        """Return the newest version."""

    @abstractmethod
    def _logged(self, name: str, of: LogPlaces) -> Array:
        """Return a column of the episode table, of episodes that are in the logs [n]."""

    @abstractmethod
    def _logged_values(self, name: str, of: LogPlaces) -> list[Scalar]:
        """Return the values of a column of the user's own, of episodes that are in the logs [n]."""

    @abstractmethod
    def _logged_digests(self, of: LogPlaces) -> Digests:
        """Return the digests of all fields, by name, of episodes that are in the logs [n, fields, 32]."""

    @contextmanager
    def changing(self, index: IntArray) -> Iterator[tuple[Table, IntArray | None]]:
        """Hold the lock of commits, and yield the newest version with the numbers of episodes in it.

        There are none if an episode left, or if the dataset was changed: episodes that were recorded are not a change.
        """
        with logs.committing(self.files.path):
            new = self.newest()
            changed = any(line.by for line in new.edits.lines[len(self.edits.lines) :])
            found = None if changed else index
            if found is not None and new.version != self.version:
                there = _find(self.episodes["id"][index], new.episodes["id"])
                found = None if (there < 0).any() else there
            yield new, found

    def commit_change(
        self,
        index: IntArray,
        step: Mapping[str, Any],
        columns: Mapping[str, StoredColumn | None] = {},
        *,
        dropped: IntArray | None = None,
    ) -> bool:
        """Commit a change of episodes of the newest version, of which the caller holds the lock; nothing changes: none.

        Raises
        ------
        InvalidArgument
            So many columns are not labelled.
        NoSpace
            The disk is full. Nothing was changed.
        """
        facts = {name: step["args"][name] for name in step.get("facts", ())}
        if not (dropped is not None or columns or facts):
            return True
        gone = np.zeros(0, np.int64) if dropped is None else distinct(dropped)
        chosen = np.setdiff1d(index, gone)
        if len({*self.edits.names, *columns}) > edits.MOST_COLUMNS:
            raise InvalidArgument(f"{self.manifest.id}: at most {edits.MOST_COLUMNS:,} columns can be labelled.")
        places, hidden, none_set = self._kept_places.take(chosen), self._kept_places.take(gone), [None] * len(chosen)
        values = {n: none_set if c is None else c.take(chosen).scalars() for n, c in columns.items()}
        lines = edits.lines(places, by=step["function"], args=step["args"], columns=values, facts=facts or None)
        self._commit([*lines, *edits.lines(hidden, dropped=True)], hidden, _NOWHERE)
        return True

    def _commit(self, lines: Sequence[Mapping[str, Any]], hidden: LogPlaces, shown: LogPlaces) -> None:
        edits.commit(self.files.path, self.commit, len(self.encoded), lines, hidden=hidden, shown=shown)

    def commit_restored(self, step: Mapping[str, Any]) -> bool:
        """Commit the content of this version; nothing if the newest has it already.

        Raises
        ------
        InvalidArgument
            Episodes of this version left since.
        NoSpace
            The disk is full. Nothing was changed.
        """
        with logs.committing(self.files.path):
            new = self.newest()
            places = self._same_episodes(new)
            hidden, shown = new._kept_places.without(places), places.without(new._kept_places)
            differing = Facts(self.manifest).differing(Facts(new.manifest))
            facts = {name: value for name, (value, _) in differing.items()}
            columns = self._other_values(new, places)
            if len(hidden) or len(shown) or facts or columns:
                lines = edits.lines(places, by=step["function"], args=step["args"], columns=columns, facts=facts)
                lines += [*edits.lines(hidden, dropped=True), *edits.lines(shown, dropped=False)]
                new._commit(lines, hidden, shown)
        return True

    def _same_episodes(self, new: ChangedByLog) -> LogPlaces:
        """Return where the episodes of this version are in the logs of the newest one, as they were."""
        there = new._stored_places
        found = _find(self.episodes["id"], new._logged("id", there))
        one, other = self._kept_places.take(found >= 0), there.take(found[found >= 0])
        same = (self._logged_digests(one) == new._logged_digests(other)).all((1, 2))
        for name in _COVERED:
            same &= self._logged(name, one) == new._logged(name, other)
        gone = len(found) - int(same.sum())
        if gone or (np.diff(found) <= 0).any():
            ref = f"{self.manifest.id}#v{self.version}"
            raise InvalidArgument(
                f"{ref} cannot be restored: {plural(gone or len(found), 'episode')} of it left since, or continued.",
                hint=f"rlds select {ref} --name NAME makes a dataset of them, as long as that version can be opened",
            )
        return other

    def _other_values(self, new: ChangedByLog, places: LogPlaces) -> dict[str, list[Any]]:
        """Return the columns, as this version has them, whose values differ in the newest, at ``places`` there."""
        found = {}
        for name in dict.fromkeys([*self.edits.names, *new.edits.names]):
            before, after = self._logged_values(name, self._kept_places), new._logged_values(name, places)
            if json.dumps(before) != json.dumps(after):
                found[name] = before
        return found


def _find(ids: Digests, among: Digests) -> IntArray:
    """Return which of the ids ``among`` [m, 16] each of ``ids`` [n, 16] is; -1 for none."""
    known = {id.tobytes(): k for k, id in enumerate(among)}
    return np.array([known.get(id.tobytes(), -1) for id in ids], np.int64)
