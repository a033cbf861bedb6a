"""Episodes -> chunks of store rows: as many short ones as fit, or a slice of a long one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlds_cli.archives.minari.description import Described
from rlds_cli.errors import CorruptArchive
from rlds_cli.formats import image_header
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    IntArray,
    Note,
    Text,
)


class EpisodeRows(Protocol):
    """One episode, read from its first row to its last.

    ``select`` names the next rows of the store; the three others read the first ``count`` of them, which for a field of
    steps is one less than asked for at the episode's end.
    """

    def select(self, start: int, stop: int) -> None:
        """Go to rows [start, stop); ``start`` is where the last selection stopped."""

    def array(self, name: str, out: Array) -> None:
        """Fill ``out`` with the first ``len(out)`` rows selected."""

    def frames(self, name: str, count: int) -> EncodedFrames:
        """Encoded images of the first ``count`` rows selected."""

    def text(self, name: str, count: int) -> Text:
        """Strings of the first ``count`` rows selected."""

    def describe(self) -> Described:
        """Seed, options as JSON, and what was odd about them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of episode number ``episode`` of a part, which has ``length`` steps."""

    episode: int
    length: int
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """Whether it holds the episode's last row."""
        return self.stop == self.length + 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode comes from: index of its file, name of its group."""

    source: int
    group: str


def pieces(lengths: Sequence[int], budget: int) -> Iterator[list[Piece]]:
    """Share episodes out to chunks of at most ``budget`` rows, and 2: a last row comes with the step before it."""
    budget = max(budget, 2)
    chunk: list[Piece] = []
    size = 0
    for k, length in enumerate(lengths):
        rows = length + 1
        if chunk and size + rows > budget:
            yield chunk
            chunk, size = [], 0
        if rows > budget:
            parts = -(-rows // budget)
            bounds = [rows * i // parts for i in range(parts + 1)]
            yield from ([Piece(k, length, a, b)] for a, b in pairwise(bounds))
        else:
            chunk.append(Piece(k, length, 0, rows))
            size += rows
    if chunk:
        yield chunk


def read(
    schema: Sequence[Field],
    available: set[str],
    chunks: Iterator[list[Piece]],
    open_episode: Callable[[int], EpisodeRows],
    origins: Sequence[Origin],
) -> Iterator[Chunk]:
    """Read the pieces of each chunk. Fields outside ``available`` are flags that the archive lacks."""
    opened: tuple[int, EpisodeRows] | None = None
    for chunk in chunks:
        builder = _Builder(schema, available, sum(p.stop - p.start for p in chunk))
        for p in chunk:
            if opened is None or opened[0] != p.episode:
                opened = (p.episode, open_episode(p.episode))
            builder.add(p, opened[1])
        yield builder.finish(chunk, origins)


class _Builder:
    """One chunk in the making."""

    def __init__(self, schema: Sequence[Field], available: set[str], rows: int) -> None:
        self._schema = [f for f in schema if f.name in available]
        self._arrays = {f.name: np.zeros((rows, *f.shape), f.dtype) for f in schema if f.kind == "array"}
        self._frames: dict[str, list[EncodedFrames]] = {f.name: [] for f in schema if f.kind == "frames"}
        self._text: dict[str, Text] = {f.name: [] for f in schema if f.kind == "text"}
        self._last = np.zeros(rows, bool)
        self._described: list[Described] = []
        self._at = 0

    def add(self, p: Piece, episode: EpisodeRows) -> None:
        """Read a piece into the next rows."""
        episode.select(p.start, p.stop)
        rows, steps = p.stop - p.start, min(p.stop, p.length) - p.start
        for f in self._schema:
            count = rows if f.placement == "both" else steps
            if f.kind == "array":
                episode.array(f.name, self._arrays[f.name][self._at : self._at + count])
            elif f.kind == "frames":
                frames = episode.frames(f.name, count)
                _check_images(frames, f.name, p.start)
                self._frames[f.name] += [frames, _no_frames(rows - count)]
            else:
                self._text[f.name] += [*episode.text(f.name, count), *([None] * (rows - count))]
        self._at += rows
        if p.ends:
            self._last[self._at - 1] = True
            self._described.append(episode.describe())

    def finish(self, chunk: Sequence[Piece], origins: Sequence[Origin]) -> Chunk:
        """The chunk, its ends flagged."""
        ended = [p for p in chunk if p.ends]
        terminated, truncated = (self._arrays[name] for name in FLAGS)
        steps = np.flatnonzero(self._last) - 1
        notes = _notes(terminated, truncated, steps, chunk, origins)
        end = _ends(terminated, truncated, steps)
        table = EpisodeTable(
            np.array([p.length for p in ended], np.int64),
            end,
            np.ones(len(ended), bool),
            np.array([origins[p.episode].source for p in ended], np.int32),
            np.zeros(len(ended), np.int64),
            group=[origins[p.episode].group for p in ended],
            seed=[seed for seed, _, _ in self._described],
            options=[options for _, options, _ in self._described],
        )
        columns: dict[str, Column] = {**self._arrays, **self._text}
        columns |= {name: _join(frames) for name, frames in self._frames.items()}
        return Chunk(columns, self._last, table, (*notes, *(n for _, _, more in self._described for n in more)))


def _check_images(frames: EncodedFrames, name: str, start: int) -> None:
    """Refuse images that disagree with their own checksums; ``start`` is the row of the first."""
    view, at = frames.data.data, 0
    for row, size in enumerate(frames.lengths.tolist(), start):
        if image_header.is_damaged(view[at : at + size]):
            raise CorruptArchive(f"{name}, row {row:,} of an episode: a PNG image is damaged.", hint="fetch it again")
        at += size


def _no_frames(rows: int) -> EncodedFrames:
    return EncodedFrames(np.zeros(0, np.uint8), np.zeros(rows, np.int64))


def _join(frames: Sequence[EncodedFrames]) -> EncodedFrames:
    return EncodedFrames(np.concatenate([f.data for f in frames]), np.concatenate([f.lengths for f in frames]))


def _ends(terminated: BoolArray, truncated: BoolArray, steps: IntArray) -> npt.NDArray[np.uint8]:
    """End kinds of the episodes whose last steps are ``steps``; a last step without a flag becomes truncated."""
    cut = ~(terminated[steps] | truncated[steps])
    truncated[steps] |= cut
    return np.where(terminated[steps], TERMINATED, np.where(cut, CUT, TRUNCATED)).astype(np.uint8)


def _notes(
    terminated: BoolArray, truncated: BoolArray, steps: IntArray, chunk: Sequence[Piece], origins: Sequence[Origin]
) -> list[Note]:
    """Flags inside episodes, and last steps without one, with the first episode where it is so."""
    last = np.zeros(len(terminated), bool)
    last[steps] = True
    seen = {
        ("terminated-inside", "steps are terminated and their episode goes on"): terminated & ~last,
        ("truncated-inside", "steps are truncated and their episode goes on"): truncated & ~last,
        ("open-end", "episodes end with no flag; their last step is marked truncated"): last
        & ~(terminated | truncated),
    }
    stops = np.cumsum([p.stop - p.start for p in chunk])
    groups = [origins[p.episode].group for p in chunk]
    return [
        Note(code, text, int(rows.sum()), groups[int(np.searchsorted(stops, np.argmax(rows), "right"))])
        for (code, text), rows in seen.items()
        if rows.any()
    ]
