"""What a check looks at: a dataset read block by block, where its steps are, and what the registry says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from rlds_cli import ids, registry, text
from rlds_cli.checks.findings import MOST_PLACES, Place
from rlds_cli.dataset import Dataset, environments
from rlds_cli.errors import RldsError
from rlds_cli.registry.records import Entry, short
from rlds_cli.store import arrays
from rlds_cli.store.ranges import read_range
from rlds_cli.ted import VIDEO, Array, BoolArray, Field, IntArray

TILE_BYTES = 1 << 20  # stays in the cache of a core while a check looks at it
_DECODED_BYTES = 1 << 24  # what a compressed dataset decodes at a time

Test = Callable[[Array], BoolArray]


class Skipped(Exception):
    """A check that cannot look at this dataset; the message says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How many rows a test held for, and the first of them."""

    count: int
    places: tuple[Place, ...]


@dataclass
class Subject:
    """A dataset under examination; ``thorough`` allows reading its rows, else manifest and episode table must do."""

    ds: Dataset
    thorough: bool = True
    explained: set[str] = field(default_factory=set)  # codes of known defects that findings have named

    # -- what is known about it

    @cached_property
    def entry(self) -> Entry | None:
        """What the registry has; None for a user's own data."""
        try:
            return registry.get(str(ids.parse(self.ds.id).base))
        except RldsError:
            return None

    @property
    def is_original(self) -> bool:
        """Whether it is a whole archive, not something made of one or a sample of it."""
        return not self.ds.manifest.provenance and ids.parse(self.ds.id).variant is None

    @cached_property
    def max_episode_steps(self) -> int | None:
        """The environment's time limit, where somebody says it."""
        return environments.time_limit(self.ds.manifest.env) or (self.entry.max_episode_steps if self.entry else None)

    def known(self, code: str) -> tuple[str, ...]:
        """References of the source's known defects that a finding of this code shows."""
        shown = [d for d in (self.entry.defects if self.entry else ()) if code in d.shows_as]
        self.explained |= {d.code for d in shown}
        return tuple(dict.fromkeys(short(ref) for d in shown for ref in d.refs))

    def fields(self, *roots: str, kinds: str = "biuf") -> list[Field]:
        """Numeric fields at and below the names ``roots``, of NumPy's kinds ``kinds``; all, when none is given."""
        return [
            f
            for f in self.ds.schema.values()
            if f.kind == "array"
            and np.dtype(f.dtype).kind in kinds
            and (not roots or any(f.name == r or f.name.startswith(f"{r}/") for r in roots))
        ]

    # -- its rows

    @cached_property
    def start(self) -> IntArray:
        """First row of every episode."""
        return np.asarray(self.ds.episodes["start"])

    @cached_property
    def length(self) -> IntArray:
        """Steps of every episode."""
        return np.asarray(self.ds.episodes["length"])

    @property
    def end(self) -> Array:
        """How every episode ends: TERMINATED, TRUNCATED or CUT. Names of ends take forty times as much memory."""
        return self.ds.store.episodes["end"]

    @property
    def last(self) -> IntArray:
        """Rows of the last steps."""
        return np.asarray(self.start + self.length - 1)

    def blocks(self, name: str, *, more: int = 0) -> Iterator[tuple[int, Array]]:
        """The rows of an array field, about 1 MiB at a time: (first row, values).

        Each block but those at the end has ``more`` rows of the next one.
        """
        f, rows = self.ds.schema[name], self.ds.num_rows
        tile = max(1, TILE_BYTES // max(1, f.row_bytes))
        at_once = tile if self.ds.encoding == "memmap" else max(tile, _DECODED_BYTES // max(1, f.row_bytes))
        for a in range(0, rows, at_once):
            values = self.between(name, a, min(a + at_once + more, rows))
            for b in range(0, min(at_once, rows - a), tile):
                end = min(b + tile, at_once)  # the rows behind `at_once` are of the next block
                yield a + b, values[b : end + more]

    def between(self, name: str, start: int, stop: int) -> Array:
        """The values of an array field, or the codes of a text field, at rows ``start`` to ``stop``."""
        if self.ds.encoding == "memmap":
            return self.ds.store.rows(name)[start:stop]
        return read_range(self.ds.store.directory(name), start, stop)

    def at(self, name: str, rows: IntArray) -> Array:
        """The values of an array field, or the codes of a text field, at ``rows`` [n], in any order.

        Of frames kept encoded: their lengths in bytes [n].
        """
        directory = self.ds.store.directory(name)
        if self.ds.schema[name].codec == VIDEO:
            return self.ds.store.frame_sizes(name, rows)
        if self.ds.schema[name].kind == "frames":
            offsets = directory / "offsets"
            if self.ds.encoding == "memmap":
                column = arrays.read(offsets)
                return np.asarray(column[rows + 1] - column[rows])
            return np.asarray(self._decoded(offsets, rows + 1, 8) - self._decoded(offsets, rows, 8))
        if self.ds.encoding == "memmap":
            return self.ds.store.rows(name)[rows]
        return self._decoded(directory, rows, self.ds.schema[name].row_bytes)

    def _decoded(self, path: Path, rows: IntArray, row_bytes: int) -> Array:
        """Rows of a compressed array, decoding the blocks that hold some of them, one at a time."""
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

    def steps_where(self, name: str, test: Test, *, last: bool = True) -> Seen:
        """Steps at which ``test`` (rows [n, ...] -> bool [n]) holds; ``last=False``: but for last steps."""
        final = self.start + self.length  # the row of the final observation is no step
        left_out = [final] if last else [final, final - 1]
        count, places = 0, list[Place]()
        for a, values in self.blocks(name):
            found = test(values)
            if not found.any():
                continue
            found = found.copy()
            for rows in left_out:
                first, end = np.searchsorted(rows, (a, a + len(values)))
                found[rows[first:end] - a] = False
            at = np.flatnonzero(found)
            count += len(at)
            places += self.places(a + at[: MOST_PLACES - len(places)])
        return Seen(count, tuple(places))

    def places(self, rows: IntArray) -> list[Place]:
        """Episode and step of rows."""
        episode = np.searchsorted(self.start, rows, "right") - 1
        return [Place(int(e), int(r - self.start[e])) for e, r in zip(episode, rows, strict=True)]


def first_places(episodes: IntArray) -> tuple[Place, ...]:
    """The first of these episodes, as a whole."""
    return tuple(Place(int(e)) for e in episodes[:MOST_PLACES])


def plural(n: int, noun: str, verb: str = "", verbs: str = "") -> str:
    """``1 step is``, ``3 steps are``."""
    return text.plural(n, noun) + (f" {verb if n == 1 else verbs}" if verb else "")
