"""Places of windows among the masses of a tree, for growing datasets.

Windows get places in the order in which their episodes came, and keep them: later versions add places at the end. An
episode that left keeps its places, with mass zero, until more than half of all places are empty.

The name of a window, by which training reports priorities, is the same in every version: `WindowIndex.name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.index import WINDOW_NAMES, NumberIndex, PrefixIndex, WindowIndex
from rlds_cli.loader.tensors import host, portable

_LEAST = 4096  # empty places below which it is not worth while to close the gaps


class Places:
    """The places of the windows of a version, and of some that left.

    Attributes
    ----------
    episodes : int64 array [episodes]
        Names of the first windows of episodes, ascending.
    first : int64 array [episodes + 1]
        The first place of each, and the number of places.
    there : bool array [episodes]
        False for episodes that left.
    version : int
        That of the windows.
    last : int
        The largest name of the first window of an episode that had places.
    """

    def __init__(self) -> None:
        self.episodes: IntArray = np.zeros(0, np.int64)
        self.first: IntArray = np.zeros(1, np.int64)
        self.there: BoolArray = np.zeros(0, bool)
        self.version, self.last = 0, -1

    @property
    def total(self) -> int:
        """Number of places."""
        return int(self.first[-1])

    def names(self, places: IntArray) -> IntArray:
        """Return the names of the windows at places [K]."""
        episode, number = self._windows.find(places)
        names: IntArray = self.episodes.take(episode) + number
        return names

    def find(self, names: IntArray) -> tuple[IntArray, BoolArray | None]:
        """Return the places of windows by their names [K], and which of them have one: others left. None for all.

        Raises
        ------
        InvalidArgument
            An episode has no such window, or was not recorded yet.
        """
        within = names % WINDOW_NAMES
        episode = self._index.find(names // WINDOW_NAMES)
        first = self.first.take(episode)
        wrong = within >= self.first.take(episode + 1) - first
        gone = episode < 0
        some_gone = gone.any()
        if some_gone:
            wrong = np.where(gone, (names < WINDOW_NAMES) | (names - within > self.last), wrong)
        if wrong.any():
            place = int(wrong.argmax())
            raise InvalidArgument(
                f"update_priorities: window {int(names[place]):,} at place {place:,} of {len(names):,} is none of this"
                " dataset. No priority was changed.",
                hint="pass the batch as the loader gave it",
            )
        everything = self._all_there and not some_gone
        return first + within, None if everything else self.there.take(episode) & ~gone

    def has_returned(self, pool: WindowIndex) -> bool:
        """Return whether an episode of ``pool`` had left before: it was dropped, and restored."""
        known = pool.names[: np.searchsorted(pool.names, self.last, "right")]
        return not np.isin(known, self.episodes[self.there], assume_unique=True).all()

    def leave(self, pool: WindowIndex) -> list[tuple[int, int]]:
        """Note which episodes have left ``pool``; return their places [first, stop), joined where they touch.

        Raises
        ------
        WrongState
            The pool is of an earlier version.
        """
        version = pool.dataset.version
        if version < self.version:
            raise WrongState(
                f"Priorities of version {self.version:,} of {pool.dataset.id} do not go back to version {version:,}.",
                hint="a new Loader, or load_state_dict",
            )
        self.version = version
        names = pool.names
        if len(names) >= len(self.episodes) and (names[: len(self.episodes)] == self.episodes).all():
            return []
        at = np.searchsorted(names, self.episodes)
        gone = np.flatnonzero(self.there & (np.append(names, -1).take(at) != self.episodes))
        self.there[gone] = False
        if not len(gone):
            return []
        starts = np.flatnonzero(np.append(True, np.diff(gone) > 1))
        stops = np.append(starts[1:], len(gone)) - 1
        return list(zip(self.first[gone[starts]].tolist(), self.first[gone[stops] + 1].tolist(), strict=True))

    def come(self, pool: WindowIndex) -> IntArray:
        """Add places for the episodes of ``pool`` that are new; return their rows of its table, in this order."""
        names = pool.names
        new = np.arange(np.searchsorted(names, self.last, "right"), len(names))
        rows = pool.rows_ascending(new)
        stops = self.first[-1] + np.cumsum(pool.prefix.counts.take(rows))
        self.episodes = np.concatenate([self.episodes, names[new]])
        self.first = np.concatenate([self.first, stops])
        self.there = np.concatenate([self.there, np.ones(len(new), bool)])
        self.last = max(self.last, int(names.max(initial=-1)))
        self._forget()
        return rows

    @cached_property
    def _all_there(self) -> bool:
        return bool(self.there.all())

    @cached_property
    def _index(self) -> NumberIndex:
        return NumberIndex(self.episodes // WINDOW_NAMES)

    @cached_property
    def _windows(self) -> PrefixIndex:
        return PrefixIndex(np.diff(self.first))

    def _forget(self) -> None:
        for name in ("_index", "_windows", "_all_there"):
            self.__dict__.pop(name, None)

    def close_gaps(self) -> IntArray | None:
        """Forget episodes that left, if they take more than half of the places; return the places that stay."""
        counts = np.diff(self.first)
        kept = int(counts[self.there].sum())
        if self.total - kept <= max(_LEAST, kept):
            return None
        stay = np.flatnonzero(np.repeat(self.there, counts))
        self.episodes = self.episodes[self.there]
        self.first = np.concatenate([[0], np.cumsum(counts[self.there])])
        self.there = np.ones(len(self.episodes), bool)
        return stay

    def state(self) -> dict[str, Any]:
        """Return arrays from which `load` restores the places."""
        counts = np.where(self.there, 1, -1) * np.diff(self.first)
        found = {"episodes": portable(self.episodes), "windows": portable(counts)}
        return {"version": self.version, "last": self.last, **found}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`.

        Raises
        ------
        WrongState
            It is none. Nothing is changed.
        """
        if not {"version", "last", "episodes", "windows"} <= set(state):
            raise WrongState("The priorities of this state are not those of a live loader.", hint="live=False")
        episodes, counts = (np.asarray(host(state[name]), np.int64) for name in ("episodes", "windows"))
        if episodes.ndim != 1 or episodes.shape != counts.shape or (np.diff(episodes) <= 0).any() or not counts.all():
            raise WrongState("The priorities of this state are not those that were saved.")
        self.episodes, self.there = episodes, counts > 0
        self.version, self.last = int(state["version"]), int(state["last"])
        self.first = np.concatenate([[0], np.cumsum(np.abs(counts))])

    def take(self, other: Places) -> None:
        """Become equal to ``other``."""
        self.episodes, self.first, self.there = other.episodes, other.first, other.there
        self.version, self.last = other.version, other.last
        self._forget()
