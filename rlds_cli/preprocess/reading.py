"""Read the rows of a source block by block: memory-mapped or decoded, never a whole column at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import compression
from rlds_cli.store.compression import Compressed
from rlds_cli.store.frames import check_frames, decode_frame
from rlds_cli.store.opening import Store
from rlds_cli.ted import VIDEO, Array, Column, EncodedFrames, EpisodeTable, Field, IntArray, VideoFrames

RowRun = tuple[int, int]  # rows of the store: first, and one past the last


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """One episode of the source.

    ``original[name]`` has T+1 rows for fields placed ``both`` (T where the final observation is not recorded), else T;
    frames decoded, text as an object array. Read-only.
    """

    number: int
    start: int
    length: int
    observed: bool
    end: int
    original: dict[str, Array]

    @property
    def name(self) -> str:
        """The name of the episode in messages."""
        return f"episode {self.number:,}"


@lru_cache(maxsize=1)
def _opened(path: Path, fingerprint: str) -> tuple[Store, EpisodeTable]:
    """Open the store of a dataset; cached, since a worker reads many parts of the same one."""
    store = Store(path)
    if store.manifest.fingerprint != fingerprint:
        raise DamagedDataset(f"{path} was replaced while it was read.", hint="run the same command again")
    return store, store.table()


class SourceReader:
    """Reads the selected episodes of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self.store, self._table = _opened(dataset.path, dataset.manifest.fingerprint)
        self._index = dataset.episodes.index
        self._arrays: dict[Path, Array | Compressed] = {}

    def table(self, first: int, last: int) -> EpisodeTable:
        """Return the table of episodes ``first`` to ``last`` of the selection."""
        return self._table.take(self._index[first:last])

    def number(self, k: int) -> int:
        """Return the number in the whole dataset of episode ``k`` of the selection."""
        return int(self._index[k])

    def start(self, k: int) -> int:
        """Return the first row in the store of episode ``k`` of the selection."""
        return int(self.store.episodes["start"][self._index[k]])

    def length(self, k: int) -> int:
        """Return the number of steps of episode ``k`` of the selection."""
        return int(self._table.length[self._index[k]])

    def observed(self, k: int) -> bool:
        """Return whether the final observation of episode ``k`` is recorded."""
        return bool(self._table.observed[self._index[k]])

    def episode(self, k: int, names: Sequence[str]) -> SourceEpisode:
        """Read episode ``k`` of the selection."""
        return next(self.episodes(k, k + 1, names, 1))

    def episodes(self, first: int, last: int, names: Sequence[str], rows: int) -> Iterator[SourceEpisode]:
        """Yield episodes ``first`` to ``last``, read about ``rows`` rows at a time."""
        for episodes, _ in self.blocks(first, last, names, rows):
            yield from episodes

    def blocks(
        self, first: int, last: int, names: Sequence[str], rows: int
    ) -> Iterator[tuple[list[SourceEpisode], dict[str, Array]]]:
        """Yield blocks of episodes that are read together, each with the rows that they are views of."""
        for a, b in self._blocks(first, last, rows):
            runs = [(self.start(k), self.start(k) + self.length(k) + 1) for k in range(a, b)]
            block = {n: self.rows(n, runs) for n in names}
            at, episodes = 0, []
            for k, (start, stop) in zip(range(a, b), runs, strict=True):
                episodes.append(self._episode(k, {n: v[at : at + stop - start] for n, v in block.items()}))
                at += stop - start
            yield episodes, block

    def _episode(self, k: int, rows: dict[str, Array]) -> SourceEpisode:
        length, observed = self.length(k), self.observed(k)
        both = length + observed
        fields = self.store.fields
        original = {n: v[: both if fields[n].placement == "both" else length] for n, v in rows.items()}
        return SourceEpisode(
            self.number(k), self.start(k), length, observed, int(self._table.end[self._index[k]]), original
        )

    def _blocks(self, first: int, last: int, rows: int) -> Iterator[RowRun]:
        a = first
        while a < last:
            b, held = a, 0
            while b < last and (b == a or held + self.length(b) < rows):
                held += self.length(b) + 1
                b += 1
            yield a, b
            a = b

    def rows(self, name: str, runs: Iterable[RowRun]) -> Array:
        """Read the rows of ``runs`` as values, read-only: frames decoded, text as strings or None."""
        f = self.store.fields[name]
        joined = _joined(runs)
        if f.codec == VIDEO:
            return self.store.videos(name).gather(f, self._stored(self.store.directory(name), joined))
        if f.kind == "frames":
            return self._decoded(f, joined)
        values = self._stored(self.store.directory(name), joined)
        return self.store.texts(name, values) if f.kind == "text" else values

    def column(self, name: str, runs: Iterable[RowRun]) -> Column:
        """Read the rows of ``runs`` in the form that the store writes: frames encoded, text as a list."""
        f = self.store.fields[name]
        if f.codec == VIDEO:
            index = self._stored(self.store.directory(name), _joined(runs))
            return VideoFrames(tuple(map(str, range(len(self.store.videos(name))))), index)
        if f.kind == "frames":
            return self._encoded(f, _joined(runs))
        values = self.rows(name, runs)
        return values.tolist() if f.kind == "text" else values

    def _opened(self, directory: Path) -> Array | Compressed:
        if directory not in self._arrays:
            self._arrays[directory] = compression.open_rows(directory)
        return self._arrays[directory]

    def _stored(self, directory: Path, runs: Sequence[RowRun]) -> Array:
        opened = self._opened(directory)
        blocks = [np.asarray(opened[a:b]) for a, b in runs]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _encoded(self, f: Field, runs: Sequence[RowRun]) -> EncodedFrames:
        directory = self.store.directory(f.name)
        data, lengths = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)]
        for a, b in runs:
            offsets: IntArray = self._stored(directory / "offsets", [(a, b + 1)])
            check_frames(offsets[:-1], offsets[1:], len(self._opened(directory / "bytes")), f.name)
            data.append(self._stored(directory / "bytes", [(int(offsets[0]), int(offsets[-1]))]))
            lengths.append(np.diff(offsets))
        return EncodedFrames(np.concatenate(data), np.concatenate(lengths))

    def _decoded(self, f: Field, runs: Sequence[RowRun]) -> Array:
        frames = self._encoded(f, runs)
        ends = np.cumsum(frames.lengths)
        numbers = (row for a, b in runs for row in range(a, b))
        out = np.zeros((len(frames), *f.shape), np.uint8)
        for i, (row, (a, b)) in enumerate(zip(numbers, pairwise([0, *ends.tolist()]), strict=True)):
            if b > a:
                out[i] = decode_frame(frames.data[a:b].tobytes(), f, row)
        return out


def _joined(runs: Iterable[RowRun]) -> list[RowRun]:
    """Join consecutive runs."""
    joined: list[RowRun] = []
    for a, b in runs:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined
