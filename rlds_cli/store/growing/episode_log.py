"""The episodes of a growing dataset, as versions of it that are open share them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import DamagedDataset
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.places import LogPlaces

_COLUMNS = (
    *("start", "length", "num_observed", "num_transitions", "row", "num_done", "num_terminated", "total_reward"),
    *("source", "end", "seed", "has_seed", "id", "frames"),
)
_BLOCK = 1 << 12  # records that are read together: the processor's cache holds them
_MISSING, _MOST_MISSING = 32, 1 << 24  # episodes without a value: for each with one, and in any dataset
About = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoggedEpisodes:
    """The episodes of one version, from the first that is kept on: parts of what versions share.

    Attributes
    ----------
    first, stop : int
        Places of the episodes in the logs: [first, stop).
    columns : mapping
        Of the episode table; ``start`` counts rows from the first of the version.
    frames : int array [episodes, fields of encoded frames, 2]
        First byte of the frames of each episode, and the byte behind them.
    """

    first: int
    stop: int
    columns: Mapping[str, Array]
    frames: IntArray
    _told: list[int]
    _abouts: list[About]
    _named: Mapping[tuple[str, str], list[int]]

    def __len__(self) -> int:
        return self.stop - self.first

    def _part(self, places: list[int]) -> slice:
        return slice(bisect_left(places, self.first), bisect_left(places, self.stop))

    def at(self, name: str, places: LogPlaces) -> Array:
        """Return a column of some of the episodes [n, ...]; ``start`` counts rows as in `columns`."""
        return places.pick(self.columns[name], self.first)

    def frames_at(self, places: LogPlaces) -> IntArray:
        """Return `frames` of some of the episodes [n, fields of encoded frames, 2]."""
        return places.pick(self.frames, self.first)

    def told(self, what: str, key: str | None = None) -> list[Any]:
        """Return what else is known of the episodes: ``group``, ``options``, or the value ``key`` of ``extra``."""
        found: list[Any] = [None] * len(self)
        part = self._part(self._told)
        for place, about in zip(self._told[part], self._abouts[part], strict=True):
            value = about.get(what)
            found[place - self.first] = value if key is None else (value or {}).get(key)
        return found

    def about(self, place: LogPlaces) -> About:
        """Return what else is known of one episode."""
        wanted = int(place.logged[0])
        at = bisect_left(self._told, wanted)
        known = at < len(self._told) and self._told[at] == wanted
        return self._abouts[at] if known else {}

    def names(self, kind: str, of: LogPlaces) -> list[str]:
        """Return the names of ``splits``, or of columns of the user's own (``extra``), that some of the episodes have.

        Raises
        ------
        DamagedDataset
            They are so many that a value for each episode would take much more memory than those that there are.
        """
        parts = ((name, self._part(at)) for (what, name), at in list(self._named.items()) if what == kind)
        found = {name: part.stop - part.start for name, part in parts if part.start < part.stop}
        values = sum(found.values())
        if len(found) * len(self) > max(_MOST_MISSING, _MISSING * values):
            what = "columns" if kind == "extra" else "splits"
            raise DamagedDataset(
                f"{logs.ABOUT} names {len(found):,} {what} of {len(self):,} episodes for {values:,} values.",
                hint="one name for the same quantity of all episodes",
            )
        return [name for name in found if any(map(of.has, self._of(kind, name)))]

    def split(self, name: str, of: LogPlaces) -> BoolArray:
        """Return which of some of the episodes are in a split."""
        return of.marked(self._of("splits", name))

    def _of(self, kind: str, name: str) -> list[int]:
        """Return the places of the episodes that have a name."""
        places = self._named[kind, name]
        return places[self._part(places)]


class EpisodeLog:
    """Columns and texts of episodes, as far as they were read.

    They never change, so a later version reads only those after the ones that are known, and sees its part of arrays
    that have room for more.

    Parameters
    ----------
    dataset : Path
    frames : int
        How many fields of encoded frames it has.
    """

    def __init__(self, dataset: Path, frames: int) -> None:
        self._dataset, self._frames = dataset, frames
        self._lock = threading.Lock()
        self._forget(0)

    def _forget(self, first: int) -> None:
        self._first, self._count = first, 0
        self._end = 0, 0  # row, and byte of the log of texts, behind the last episode that was read
        nothing = np.zeros(0, logs.episode(self._frames))
        self._columns: dict[str, Array] = {name: nothing[name].copy() for name in _COLUMNS}
        self._told: list[int] = []  # places of the episodes of which more is known, and what that is
        self._abouts: list[About] = []
        self._named: dict[tuple[str, str], list[int]] = {}  # (splits or extra, name) -> episodes that have it

    def read(self, g: Commit, sources: int) -> LoggedEpisodes:
        """Return the episodes of a version, and read them as far as they are not known.

        Raises
        ------
        DamagedDataset
            A record is missing, or not possible.
        """
        with self._lock:
            if not self._first <= g.first_episode <= self._first + self._count:
                self._forget(g.first_episode)
            first = self._first + self._count
            self._make_room(g.episodes - first, g.first_episode)
            for start in range(first, g.episodes, _BLOCK):
                self._read_block(start, min(start + _BLOCK, g.episodes), g, sources)
            part = slice(g.first_episode - self._first, g.episodes - self._first)
            self._check_within(part, g)
            columns = {name: _read_only(c[part]) for name, c in self._columns.items()}
            more = self._told, self._abouts, self._named
        if g.first_row:
            columns["start"] = columns["start"] - g.first_row
        if not columns["has_seed"].any():
            del columns["seed"], columns["has_seed"]
        return LoggedEpisodes(g.first_episode, g.episodes, columns, columns.pop("frames"), *more)

    def _make_room(self, new: int, first: int) -> None:
        """Let arrays have room for new episodes; longer ones continue without those before ``first``."""
        if new <= 0 or self._count + new <= len(self._columns["start"]):
            return
        known = slice(first - self._first, self._count)
        self._first, self._count = first, known.stop - known.start
        room = self._count + new + max(_BLOCK, (self._count + new) // 2)
        self._columns = {name: _longer(c, known, room) for name, c in self._columns.items()}

    def _check_within(self, part: slice, g: Commit) -> None:
        """Refuse episodes that were read for another version, and lie outside of the rows of this one."""
        start, length = (self._columns[name][part] for name in ("start", "length"))
        if len(start) and not g.first_row <= start[0] <= start[-1] + length[-1] < g.rows:
            raise DamagedDataset(
                f"{self._dataset / logs.EPISODES}: episodes lie outside of rows {g.first_row:,} to {g.rows:,}.",
                hint=logs.HINT,
            )

    def _read_block(self, first: int, stop: int, g: Commit, sources: int) -> None:
        new = logs.read_episodes(self._dataset, first, stop, self._frames)
        row, byte = self._end
        self._end = logs.check_episodes(new, (max(g.first_row, row), byte), g.rows, sources, self._dataset)
        abouts = list(self._read_abouts(new, first))
        for name, column in self._columns.items():
            column[self._count : self._count + len(new)] = new[name]
        self._count += len(new)
        for number, about in abouts:
            self._add(number, about)

    def _add(self, number: int, about: About) -> None:
        self._told.append(number)
        self._abouts.append(about)
        for kind in ("splits", "extra"):
            for name in about.get(kind, ()):
                self._named.setdefault((kind, name), []).append(number)

    def _read_abouts(self, new: npt.NDArray[np.void], first: int) -> Iterator[tuple[int, About]]:
        told = np.flatnonzero(new["about_bytes"])
        if not len(told):
            return
        start, last = int(new["about"][told[0]]), new[told[-1]]
        lines = logs.read_part(self._dataset / logs.ABOUT, start, int(last["about"]) + int(last["about_bytes"]))
        places = zip(told.tolist(), new["about"][told].tolist(), new["about_bytes"][told].tolist(), strict=True)
        for k, at, size in places:
            yield first + k, logs.about_of(lines[at - start : at - start + size], self._dataset)


def _read_only(values: Array) -> Array:
    values.flags.writeable = False
    return values


def _longer(values: Array, known: slice, count: int) -> Array:
    longer = np.empty((count, *values.shape[1:]), values.dtype)
    longer[: known.stop - known.start] = values[known]
    return longer
