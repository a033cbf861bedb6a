"""Chunks without the episodes that are not wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import compress

import numpy as np

from rlds_cli.portions import Portion
from rlds_cli.ted import Array, BoolArray, Chunk, Column, EncodedFrames, IntArray, VideoFrames


def trimmed(chunks: Iterator[Chunk], portion: Portion) -> Iterator[Chunk]:
    """Only the episodes of the portion: those of its split, and of these the ones of its range.

    Reading stops where the range ends. To know whether an episode is of a split its end must have come, so a split
    keeps the rows of one episode in memory.
    """
    if portion.split is not None:
        chunks = of_split(chunks, portion.split)
    if portion.episodes is not None:
        chunks = of_range(chunks, *portion.episodes)
    return chunks


def of_range(chunks: Iterator[Chunk], start: int, stop: int | None) -> Iterator[Chunk]:
    """Episodes ``start`` up to ``stop``, counted from 0."""
    done = 0
    for chunk in chunks:
        episode: IntArray = done + np.cumsum(chunk.last) - chunk.last
        ended = np.arange(done, done + len(chunk.episodes))
        last = np.inf if stop is None else stop
        yield _cut(chunk, (episode >= start) & (episode < last), (ended >= start) & (ended < last))
        done += len(chunk.episodes)
        if done >= last:
            return


def of_split(chunks: Iterator[Chunk], split: str) -> Iterator[Chunk]:
    """Episodes of a split. What comes of each chunk has the names of all its splits, also where no episode is left."""
    begun: list[Chunk] = []  # rows of an episode whose end has not come
    for chunk in chunks:
        episode: IntArray = np.cumsum(chunk.last) - chunk.last
        wanted = chunk.episodes.splits.get(split, np.zeros(len(chunk.episodes), bool))
        none = np.zeros(len(wanted), bool)
        if len(wanted):
            yield from begun if wanted[0] else ()
            begun = []
        yield _cut(chunk, np.append(wanted, False)[episode], wanted)
        begun.append(replace(_cut(chunk, episode == len(wanted), none), notes=()))


def _cut(chunk: Chunk, rows: BoolArray, episodes: BoolArray) -> Chunk:
    """Some rows and some episodes of a chunk."""
    if rows.all() and episodes.all():
        return chunk
    columns = {name: _taken(column, rows) for name, column in chunk.columns.items()}
    return Chunk(columns, chunk.last[rows], chunk.episodes.take(np.flatnonzero(episodes)), chunk.notes)


def _taken(column: Column, rows: BoolArray) -> Column:
    if isinstance(column, list):
        return list(compress(column, rows))
    if isinstance(column, VideoFrames):
        return VideoFrames(column.files, column.index[rows])
    if isinstance(column, EncodedFrames):
        kept: Array = np.repeat(rows, column.lengths)
        return EncodedFrames(column.data[kept], column.lengths[rows], column.shape, column.codec)
    taken: Array = column[rows]
    return taken
