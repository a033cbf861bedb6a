"""The dataset under examination: its rows block by block, the places of its steps, and its entry in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli import ids, registry, text
from rlds_cli.checks.findings import MOST_PLACES, Place, Seen
from rlds_cli.dataset import environments
from rlds_cli.errors import RldsError
from rlds_cli.registry import Entry, short
from rlds_cli.store.compression import read_range
from rlds_cli.ted import VIDEO, Array, BoolArray, Field, IntArray
from rlds_cli.text import is_below

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

TILE_BYTES = 1 << 20  # fits the cache of a core
_DECODED_BYTES = 1 << 24  # bytes of a compressed dataset that are decoded at a time

Test = Callable[[Array], BoolArray]


class Skipped(Exception):
    """Raised by a check that does not apply to this dataset; the message is the reason."""


@dataclass
class Subject:
    """A dataset under examination.

    A check that is not ``thorough`` reads the manifest and the episode table only, no rows.
    """

    ds: Dataset
    thorough: bool = True
    explained: set[str] = field(default_factory=set)  # codes of known defects that findings have named

    # -- facts about the dataset

    @cached_property
    def entry(self) -> Entry | None:
        """The entry in the registry; None for a user's own data."""
        try:
            return registry.known(str(ids.parse(self.ds.id).base))
        except RldsError:
            return None

    @property
    def is_original(self) -> bool:
        """True for a dataset converted from a whole archive, neither derived nor a part of it."""
        return not self.ds.manifest.provenance and ids.parse(self.ds.id).variant is None

    @cached_property
    def max_episode_steps(self) -> int | None:
        """The environment's time limit, from the manifest or the registry; None where neither has it."""
        return environments.time_limit(self.ds.manifest.env) or (self.entry.max_episode_steps if self.entry else None)

    def known(self, code: str) -> tuple[str, ...]:
        """References of the known defects that show as findings of this code; the defects count as explained."""
        shown = [d for d in (self.entry.defects if self.entry else ()) if code in d.shows_as]
        self.explained |= {d.code for d in shown}
        return tuple(dict.fromkeys(short(ref) for d in shown for ref in d.refs))

    def fields(self, *roots: str, kinds: str = "biuf") -> list[Field]:
        """Numeric fields of NumPy's ``kinds`` at and below the names ``roots``, or everywhere when none is given."""
        return [
            f
            for f in self.ds.schema.values()
            if f.kind == "array"
            and np.dtype(f.dtype).kind in kinds
            and (not roots or any(is_below(f.name, r) for r in roots))
        ]

    # -- rows

    @cached_property
    def start(self) -> IntArray:
        """First row of every episode."""
        return np.asarray(self.ds.episodes["start"])

    @cached_property
    def length(self) -> IntArray:
        """Steps of every episode."""
        return np.asarray(self.ds.episodes["length"])

    def observed(self, f: Field) -> IntArray:
        """Number of rows of every episode that hold a recorded value of a field."""
        return np.asarray(self.ds.episodes["num_observed"]) if f.placement == "both" else self.length

    @property
    def end(self) -> Array:
        """End of every episode as a code, TERMINATED, TRUNCATED or CUT: names take forty times as much memory."""
        return self.ds.store.episodes["end"]

    @property
    def last(self) -> IntArray:
        """Rows of the last steps."""
        return np.asarray(self.start + self.length - 1)

    def blocks(self, name: str, *, more: int = 0) -> Iterator[tuple[int, Array]]:
        """Iterate over the rows of an array field, about 1 MiB at a time: (first row, values).

        Each block also has the first ``more`` rows of the next one, as far as there are any.
        """
        f, rows = self.ds.schema[name], self.ds.num_rows
        tile = max(1, TILE_BYTES // max(1, f.row_bytes))
        at_once = tile if self.ds.store.slices else max(tile, _DECODED_BYTES // max(1, f.row_bytes))
        for a in range(0, rows, at_once):
            values = self.between(name, a, min(a + at_once + more, rows))
            for b in range(0, min(at_once, rows - a), tile):
                end = min(b + tile, at_once)  # the rows behind `at_once` are of the next block
                yield a + b, values[b : end + more]

    def between(self, name: str, start: int, stop: int) -> Array:
        """The values of an array field, or the codes of a text field, at rows ``start`` to ``stop``."""
        return self.ds.store.between(name, start, stop)

    def at(self, name: str, rows: IntArray) -> Array:
        """The values of an array field, or the codes of a text field, at ``rows`` [n], in any order.

        For frames kept encoded, their lengths in bytes [n].
        """
        if self.ds.schema[name].codec == VIDEO or (self.ds.schema[name].kind == "frames" and self.ds.store.slices):
            return self.ds.store.frame_sizes(name, rows)
        if self.ds.store.slices:
            return self.ds.store.rows(name)[rows]
        directory = self.ds.store.directory(name)
        if self.ds.schema[name].kind == "frames":
            offsets = directory / "offsets"
            return np.asarray(self._decoded(offsets, rows + 1, 8) - self._decoded(offsets, rows, 8))
        return self._decoded(directory, rows, self.ds.schema[name].row_bytes)

    def _decoded(self, path: Path, rows: IntArray, row_bytes: int) -> Array:
        """Read rows of a compressed array, decoding one block at a time."""
        if not len(rows):
            return read_range(path, 0, 0)
        at_once = max(1, _DECODED_BYTES // max(1, row_bytes))
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        parts = []
        for block in np.unique(ordered // at_once):
            a = int(block) * at_once
            first, end = np.searchsorted(ordered, (a, a + at_once))
            wanted = ordered[first:end]
            parts.append(read_range(path, a, int(wanted[-1]) + 1)[wanted - a])
        out: Array = np.empty((len(rows), *parts[0].shape[1:]), parts[0].dtype)
        out[order] = np.concatenate(parts)
        return out

    def steps_where(self, name: str, test: Test, *, last: bool = True) -> Sightings:
        """Find steps for which ``test`` (rows [n, ...] -> bool [n]) holds; ``last=False`` leaves out last steps."""
        final = self.start + self.length  # the row of the final observation is no step
        left_out = [final] if last else [final, final - 1]
        seen = Sightings(self)
        for a, values in self.blocks(name):
            found = test(values)
            if not found.any():
                continue
            found = found.copy()
            for rows in left_out:
                first, end = np.searchsorted(rows, (a, a + len(values)))
                found[rows[first:end] - a] = False
            seen.add(a + np.flatnonzero(found))
        return seen

    def episodes_at(self, rows: IntArray) -> IntArray:
        """Number of the episode of each row."""
        return np.asarray(np.searchsorted(self.start, rows, "right") - 1)

    def place(self, row: int) -> Place:
        """Episode and step of a row."""
        episode = int(self.episodes_at(np.array([row]))[0])
        return Place(episode, row - int(self.start[episode]))


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
        self._episodes[self._subject.episodes_at(rows)] = True

    @property
    def seen(self) -> Seen:
        """All episodes, and at most eight places."""
        return Seen(tuple(np.flatnonzero(self._episodes).tolist()), tuple(map(self._subject.place, self._first)))


def at_steps(episodes: IntArray, steps: IntArray) -> Seen:
    """Return episodes in each of which one step is concerned."""
    places = zip(episodes[:MOST_PLACES].tolist(), steps[:MOST_PLACES].tolist(), strict=True)
    return Seen(tuple(episodes.tolist()), tuple(Place(e, t) for e, t in places))


def whole(episodes: IntArray) -> Seen:
    """Return episodes that are concerned as a whole."""
    return Seen(tuple(episodes.tolist()), tuple(Place(e) for e in episodes[:MOST_PLACES].tolist()))


def plural(n: int, noun: str, verb: str = "", verbs: str = "") -> str:
    """``1 step is``, ``3 steps are``."""
    return text.plural(n, noun) + (f" {verb if n == 1 else verbs}" if verb else "")
