"""Read the rows of a source block by block: memory-mapped or decoded, never a whole column at once.

A block consists of whole episodes, or of pieces of episodes (`StepBlock`) whose steps go to a function together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Dataset, Rows
from rlds_cli.store import Store, open_store
from rlds_cli.ted import VIDEO, Column, EpisodeTable, VideoFrames

RowRun = tuple[int, int]  # rows of the selection, end to end: first, and one past the last

_LONG = 32  # average steps of a piece from which copying slices is faster than indexing rows


class FieldRows(Mapping[str, Array]):
    """Rows by field name, in the order of ``names``; those of the fields in ``later`` are read at their first use."""

    def __init__(
        self, names: Iterable[str], now: Mapping[str, Array], later: Mapping[str, Callable[[], Array]] | None = None
    ) -> None:
        self._names, self._now, self._later = tuple(names), dict(now), later or {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._now and name in self._later:
            self._now[name] = self._later[name]()
        return self._now[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def cut(self, rows: Mapping[str, slice]) -> FieldRows:
        """Return some rows of each field, which are read later if these are."""
        return FieldRows(self, {}, {n: partial(lambda n: self[n][rows[n]], n) for n in self})


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """One episode of the source.

    ``original[name]`` has T+1 rows for fields placed ``both`` (T where the final observation is not recorded), else T;
    frames decoded, text as an object array. Read-only; some fields are read when they are used.
    """

    number: int
    start: int
    length: int
    observed: bool
    end: int
    original: FieldRows

    @property
    def name(self) -> str:
        """The name of the episode in messages."""
        return f"episode {self.number:,}"


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps ``first`` to ``last`` of episode ``k`` of the selection; ``ends`` if they include its last step."""

    k: int
    first: int
    last: int
    ends: bool

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first


@dataclass(frozen=True)
class StepBlock:
    """Pieces of episodes that are read and passed to the function together.

    Each piece is read with the row after it, which holds the next observation of its last step.
    """

    pieces: Sequence[StepRange]
    runs: Sequence[tuple[int, int]]
    observed: BoolArray  # [B]: whether the next observation of the step is recorded
    numbers: IntArray  # [pieces]: numbers of the episodes in the whole dataset

    @property
    def size(self) -> int:
        """Number of steps."""
        return len(self.observed)

    @cached_property
    def steps(self) -> IntArray:
        """Positions of the steps among the rows read."""
        behind = np.cumsum([p.steps + 1 for p in self.pieces]) - 1
        return np.delete(np.arange(self.size + len(self.pieces)), behind)

    @cached_property
    def episodes(self) -> IntArray:
        """Number of each step's episode in the whole dataset [B]."""
        return np.repeat(self.numbers, [p.steps for p in self.pieces])

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The range of steps of each piece, as (first, one past the last)."""
        ends = np.cumsum([p.steps for p in self.pieces]).tolist()
        return list(pairwise([0, *ends]))

    @property
    def is_long(self) -> bool:
        """True if a loop over the pieces is faster than indexing rows."""
        return self.size >= _LONG * len(self.pieces)

    def pick(self, values: Array, ahead: int = 0) -> Array:
        """Copy the rows of the steps [B, ...], shifted by ``ahead``, from the rows read [rows, ...]."""
        if len(self.pieces) == 1:
            return self.view(values, ahead).copy()
        if not self.is_long:
            picked: Array = values[self.steps + ahead]
            return picked
        picked = np.empty((self.size, *values.shape[1:]), values.dtype)
        for k, (a, b) in enumerate(self.spans):
            picked[a:b] = values[a + k + ahead : b + k + ahead]
        return picked

    def view(self, values: Array, ahead: int = 0) -> Array:
        """Return the rows of the steps as `pick` does, without a copy if they lie together."""
        return values[ahead : ahead + self.size] if len(self.pieces) == 1 else self.pick(values, ahead)

    def spread(self, values: Array, rows: Array) -> None:
        """Copy values of the steps [B, ...] to their positions among the rows to write."""
        if not self.is_long:
            rows[np.delete(np.arange(self.total), self.final)] = values
            return
        at = 0
        for p, (a, b) in zip(self.pieces, self.spans, strict=True):
            rows[at : at + b - a] = values[a:b]
            at += b - a + p.ends

    @cached_property
    def ends(self) -> IntArray:
        """Positions of the steps that are the last of their episode."""
        last = np.cumsum([p.steps for p in self.pieces]) - 1
        return last[[p.ends for p in self.pieces]]

    @cached_property
    def final(self) -> IntArray:
        """Positions of the final rows among the rows to write."""
        return self.ends + 1 + np.arange(len(self.ends))

    @property
    def total(self) -> int:
        """Number of rows to write: the steps, and a final row for each episode that ends here."""
        return self.size + len(self.ends)

    def at(self, step: int) -> tuple[int, int]:
        """Return the episode (in the whole dataset) and the step in it of step number ``step``."""
        for number, p in zip(self.numbers, self.pieces, strict=True):
            if step < p.steps:
                return int(number), p.first + step
            step -= p.steps
        raise IndexError(step)

    def name(self, step: int) -> str:
        """Return the name of a step in messages."""
        episode, t = self.at(step)
        return f"episode {episode:,}, step {t:,}"

    def __str__(self) -> str:
        if self.size == 1:
            return self.name(0)
        if len(self.pieces) == 1:
            p = self.pieces[0]
            return f"episode {self.numbers[0]:,}, steps {p.first:,} to {p.last - 1:,}"
        return f"{self.size:,} transitions of episodes {self.numbers[0]:,} to {self.numbers[-1]:,}"


class StepName:
    """The name of a step, formatted only when needed."""

    def __init__(self, block: StepBlock, step: int) -> None:
        self._block, self._step = block, step

    def __str__(self) -> str:
        return self._block.name(self._step)


@dataclass(frozen=True)
class Neighbours:
    """The positions of the L rows of each of B windows among the rows to read.

    ``runs`` are the rows to read. ``steps``, ``observed`` and ``after`` [B, L] index them for fields of steps, for
    observations and for next observations; ``mask`` and ``next_mask`` [B, L] are True inside the episode.
    """

    runs: tuple[tuple[int, int], ...]
    steps: IntArray
    observed: IntArray
    after: IntArray
    mask: BoolArray
    next_mask: BoolArray


def neighbours(
    block: StepBlock, starts: IntArray, lengths: IntArray, final: BoolArray, span: tuple[int, int]
) -> Neighbours:
    """Find the windows of all steps of a block.

    Parameters
    ----------
    starts, lengths, final : array [pieces]
        First row and number of steps of each piece's episode, and whether its final observation is recorded.
    span : tuple of int
        Steps of a window before and after its own step.
    """
    history, future = span
    first = np.array([p.first for p in block.pieces])
    last = np.array([p.last for p in block.pieces])
    low, high = np.maximum(first - history, 0), np.minimum(last + future, lengths)  # rows that are needed
    sizes = high - low + 1
    offset = np.cumsum(sizes) - sizes - low
    piece = np.repeat(np.arange(len(first)), last - first)
    t = np.arange(block.size) - np.repeat(np.cumsum(last - first) - last, last - first)
    at = t[:, None] + np.arange(-history, future + 1)
    steps, top, base = (x[piece][:, None] for x in (lengths - 1, lengths - ~final, offset))
    return Neighbours(
        tuple(zip((starts + low).tolist(), (starts + high + 1).tolist(), strict=True)),
        base + np.clip(at, 0, steps),
        base + np.clip(at, 0, top),
        base + np.clip(at + 1, 0, top),
        (at >= 0) & (at <= steps),
        (at >= -1) & (at < top),
    )


def runs(lengths: IntArray, steps: int) -> list[int]:
    """Return the first episode of each run: consecutive episodes of at most ``steps`` steps, or one episode.

    A run depends only on the episodes from its first one on. If parts begin with runs, the input of a call does not
    depend on the number of runs in a part.
    """
    ends = np.cumsum(lengths)
    firsts, at, before = [], 0, 0
    while at < len(ends):
        firsts.append(at)
        at = max(at + 1, int(np.searchsorted(ends, before + steps, "right")))
        before = int(ends[at - 1])
    return firsts


@lru_cache(maxsize=1)
def _opened(path: Path, version_id: str) -> Store:
    """Return a version as the parts of a job share it in a process: what one has read is read once."""
    store = open_store(path)
    store.table.check_same(version_id, "opened")
    return store


class SourceReader:
    """Reads the selected episodes of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._index = dataset.episodes.index
        store = dataset.store
        alone = store.address or store.table.segment_rows  # one that outlives a job would hold the version
        self.store = store if alone else _opened(store.path, store.version_id)
        self._rows = Rows(Dataset(self.store, self._index))
        self._ends = self._rows.end

    def table(self, first: int, last: int) -> EpisodeTable:
        """Return the table of episodes ``first`` to ``last`` of the selection, each of which is its own origin."""
        return replace(self.store.table.episode_table(self._index[first:last]), origin=np.arange(first, last))

    def number(self, k: int) -> int:
        """Return the number of episode ``k`` of the selection in the whole dataset, at its version."""
        return int(self._index[k])

    def start(self, k: int) -> int:
        """Return the first row of episode ``k`` of the selection, whose rows lie end to end."""
        return int(self._rows.start[k])

    def length(self, k: int) -> int:
        """Return the number of steps of episode ``k`` of the selection."""
        return int(self._rows.length[k])

    def observed(self, k: int) -> bool:
        """Return whether the final observation of episode ``k`` is recorded."""
        return bool(self._rows.observed[k])

    def seed_of(self, number: int, step: int | None = None) -> int | str:
        """Return the seed of a call that begins with an episode of the dataset, or with a step of it."""
        if name := self.store.table.name_of(number):
            return f"{name} {step or 0}"
        return number if step is None else int(self._first_rows[number]) + step

    @cached_property
    def _first_rows(self) -> IntArray:
        """First row of each episode of the whole dataset, as if its episodes lay end to end."""
        rows = self.store.episodes["length"] + 1
        return np.asarray(np.cumsum(rows) - rows)

    def episode(self, k: int, names: Sequence[str], later: Collection[str] = ()) -> SourceEpisode:
        """Read episode ``k`` of the selection; the fields in ``later`` when they are used."""
        return next(self.episodes(k, k + 1, names, 1, later))

    def episodes(
        self, first: int, last: int, names: Sequence[str], rows: int, later: Collection[str] = ()
    ) -> Iterator[SourceEpisode]:
        """Yield episodes ``first`` to ``last``, read about ``rows`` rows at a time; fields in ``later`` when used."""
        for episodes, _ in self.blocks(first, last, names, rows, later):
            episodes.reverse()
            while episodes:
                yield episodes.pop()  # with what was read later

    def blocks(
        self, first: int, last: int, names: Sequence[str], rows: int, later: Collection[str] = ()
    ) -> Iterator[tuple[list[SourceEpisode], dict[str, Array]]]:
        """Yield blocks of episodes that are read together, each with the rows that they are views of.

        The fields in ``later`` are not read together, but of an episode alone, when they are used.
        """
        a = b = first
        while a < last:
            runs: list[RowRun] = []
            held = 0
            while b < last and (not runs or held + self.length(b) < rows):
                start, stop = self.start(b), self.start(b) + self.length(b) + 1
                runs.append((start, stop))
                held += stop - start
                b += 1
            block = {n: self.rows(n, runs) for n in names if n not in later}
            at, episodes = 0, []
            for k, (start, stop) in zip(range(a, b), runs, strict=True):
                episodes.append(self._episode(k, names, {n: v[at : at + stop - start] for n, v in block.items()}))
                at += stop - start
            yield episodes, block
            a = b

    def block(self, pieces: Sequence[StepRange]) -> StepBlock:
        """Describe pieces of episodes that are read together, each with the row after it."""
        runs = []
        observed = []
        for p in pieces:
            start = self.start(p.k)
            runs.append((start + p.first, start + p.last + 1))
            known = np.ones(p.steps, bool)
            known[-1] = not p.ends or self.observed(p.k)
            observed.append(known)
        return StepBlock(pieces, runs, np.concatenate(observed), np.array([self.number(p.k) for p in pieces]))

    def _episode(self, k: int, names: Sequence[str], rows: Mapping[str, Array]) -> SourceEpisode:
        start, length, observed = self.start(k), self.length(k), self.observed(k)
        counts = {n: length + (observed and self.store.fields[n].placement == "both") for n in names}
        later = {n: partial(self.rows, n, [(start, start + counts[n])]) for n in names if n not in rows}
        original = FieldRows(names, {n: v[: counts[n]] for n, v in rows.items()}, later)
        return SourceEpisode(
            number=self.number(k),
            start=start,
            length=length,
            observed=observed,
            end=int(self._ends[k]),
            original=original,
        )

    def rows(self, name: str, runs: Iterable[RowRun]) -> Array:
        """Read the rows of ``runs`` as values, read-only: frames decoded, text as strings or None."""
        joined = _joined(runs)
        if self.store.fields[name].kind != "array":
            return self._rows.values(name, _numbers(joined))
        blocks = [self._rows.between(name, a, b) for a, b in joined]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def column(self, name: str, runs: Iterable[RowRun]) -> Column:
        """Read the rows of ``runs`` in the form that the store writes: frames encoded, text as a list."""
        f = self.store.fields[name]
        if f.codec == VIDEO:
            index = self._rows.at(name, _numbers(runs))
            return VideoFrames(tuple(map(str, range(len(self.store.videos(name))))), index)
        if f.kind == "frames":
            return self._rows.encoded(name, _numbers(runs))
        values = self.rows(name, runs)
        return values.tolist() if f.kind == "text" else values


def _numbers(runs: Iterable[RowRun]) -> IntArray:
    return np.concatenate([np.arange(a, b) for a, b in runs])


def _joined(runs: Iterable[RowRun]) -> list[RowRun]:
    """Join consecutive runs."""
    joined: list[RowRun] = []
    for a, b in runs:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined
