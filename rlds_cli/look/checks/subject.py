"""The dataset under examination: its rows block by block, the places of its steps, and its entry in the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli import homes
from rlds_cli.base import text
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.citing import short
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Rows
from rlds_cli.look.checks.findings import MOST_PLACES, FindingPlace, Seen
from rlds_cli.ted import Field

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.registry import Entry

Test = Callable[[Array], BoolArray]


class Skipped(Exception):
    """Raised by a check that does not apply to this dataset; the message is the reason."""


@dataclass
class Subject:
    """A dataset under examination.

    A check that is not ``thorough`` reads the manifest and the episode table only, no rows; with ``computed``
    statistics of those that the version has not recorded.
    """

    ds: Dataset
    thorough: bool = True
    computed: bool = False
    explained: set[str] = field(default_factory=set)  # codes of known defects that findings have named

    # -- facts about the dataset

    @cached_property
    def entry(self) -> Entry | None:
        """The entry in the registry; None for a user's own data."""
        return homes.entry_of(self.ds.id)

    @cached_property
    def max_episode_steps(self) -> int | None:
        """The environment's time limit, from the manifest or the registry; None where neither has it."""
        return time_limit(self.ds.manifest.env) or (self.entry.max_episode_steps if self.entry else None)

    def known(self, code: str) -> tuple[str, ...]:
        """References of the known defects that show as findings of this code; the defects count as explained."""
        refs: dict[str, None] = {}
        for d in self.entry.defects if self.entry else ():
            if code in d.shows_as:
                self.explained.add(d.code)
                refs |= dict.fromkeys(map(short, d.refs))
        return tuple(refs)

    def fields(self, *roots: str, kinds: str = "biuf") -> list[Field]:
        """Numeric fields of NumPy's ``kinds`` at and below the names ``roots``, or everywhere when none is given."""
        return [
            f
            for f in self.ds.schema.values()
            if f.kind == "array"
            and np.dtype(f.dtype).kind in kinds
            and (not roots or any(is_below(f.name, r) for r in roots))
        ]

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """Statistics of the fields; where no rows are read only those that the version has recorded."""
        store = self.ds.store
        recorded = store.manifest is store.table.manifest  # else it computes those that the version lacks
        return self.ds.stats if self.thorough or self.computed or recorded else {}

    # -- rows

    @cached_property
    def rows(self) -> Rows:
        """The rows of all episodes, end to end."""
        return Rows(self.ds)

    @property
    def start(self) -> IntArray:
        """First row of every episode."""
        return self.rows.start

    @property
    def length(self) -> IntArray:
        """Steps of every episode."""
        return self.rows.length

    @property
    def last(self) -> IntArray:
        """Rows of the last steps."""
        return self.rows.final - 1

    def at(self, name: str, rows: IntArray) -> Array:
        """The values of an array field, or the codes of a text field, at ``rows`` [n], in any order.

        For frames kept encoded, their lengths in bytes [n].
        """
        return self.rows.sizes(name, rows) if self.ds.schema[name].kind == "frames" else self.rows.at(name, rows)

    def steps_where(self, name: str, test: Test, *, last: bool = True) -> Sightings:
        """Find steps for which ``test`` (rows [n, ...] -> bool [n]) holds; ``last=False`` leaves out last steps."""
        seen = Sightings(self)
        for a, values in self.rows.blocks(name):
            found = test(values)
            if not found.any():
                continue
            found = found.copy()
            stop = a + len(values)
            found[self.rows.last_rows(a, stop) - a] = False  # the row of the final observation is not a step
            if not last:
                found[self.rows.last_rows(a + 1, stop + 1) - 1 - a] = False
            seen.add(a + np.flatnonzero(found))
        return seen

    def place(self, row: int) -> FindingPlace:
        """Episode and step of a row."""
        episode = int(self.rows.episodes_at(np.array([row]))[0])
        return FindingPlace(episode, row - int(self.start[episode]))


class Sightings:
    """Rows that a check finds: their number, all their episodes, and the places of the first of them."""

    def __init__(self, s: Subject) -> None:
        self._subject = s
        self._episodes = np.zeros(len(s.start), bool)
        self._first: list[int] = []
        self.count = 0

    def add(self, rows: IntArray) -> None:
        """Add rows [n], which ascend and lie behind all that were added."""
        self.count += len(rows)
        self._first += rows[: MOST_PLACES - len(self._first)].tolist()
        self._episodes[self._subject.rows.episodes_at(rows)] = True

    @property
    def seen(self) -> Seen:
        """All episodes, and at most eight places."""
        return Seen(tuple(np.flatnonzero(self._episodes).tolist()), tuple(map(self._subject.place, self._first)))


def at_steps(episodes: IntArray, steps: IntArray) -> Seen:
    """Return episodes in each of which one step is concerned."""
    places = map(FindingPlace, episodes[:MOST_PLACES].tolist(), steps[:MOST_PLACES].tolist())
    return Seen(tuple(episodes.tolist()), tuple(places))


def whole(episodes: IntArray) -> Seen:
    """Return episodes that are concerned as a whole."""
    return Seen(tuple(episodes.tolist()), tuple(map(FindingPlace, episodes[:MOST_PLACES].tolist())))


def plural(n: int, noun: str, verb: str = "", verbs: str = "") -> str:
    """``1 step is``, ``3 steps are``."""
    return text.plural(n, noun) + (f" {verb if n == 1 else verbs}" if verb else "")


def time_limit(env: Mapping[str, Any]) -> int | None:
    """Return the time limit that a manifest records for its environment; None without a valid one."""
    spec = env.get("spec")
    stated = (spec.get("max_episode_steps") if isinstance(spec, dict) else None) or env.get("max_episode_steps")
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None
