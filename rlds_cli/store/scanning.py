"""Hashes and statistics of a field's rows, in one pass over them as they are on disk, by several threads.

Blocks are looked at in any order and put together in theirs: how many threads there are does not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from itertools import pairwise

import numpy as np

from rlds_cli.store import digests, statistics
from rlds_cli.store.manifest import Stats
from rlds_cli.store.statistics import Accumulator, Moments
from rlds_cli.ted import Array, Field, IntArray

Read = Callable[[int, int], Array]  # rows from one to another

_PIECE = 64 << 20  # bytes that are read at once
_LONG = 32  # steps of an episode, on average, from which copying episode by episode is faster than picking rows


def scan(values: Array, f: Field, last_rows: IntArray, threads: Executor) -> tuple[digests.Blocks, Stats | None]:
    """Hash the blocks and gather the statistics.

    Parameters
    ----------
    values : array [rows, ...]
    last_rows : array [episodes]
        Rows that are no steps, ascending; statistics leave them out.

    Returns
    -------
    blocks : array [blocks, 32]
    stats : Stats or None
        None for what is no number.
    """
    accumulator = Accumulator(f.shape) if values.dtype.kind in "biuf" else None

    def look(a: int) -> tuple[bytes, list[tuple[int, list[Moments]]]]:
        block = values[a : a + digests.BLOCK_ROWS]
        found = _moments(block, a, last_rows, accumulator) if accumulator else []
        return digests.array_block(block), found

    looked_at = threads.map(look, digests.blocks(len(values)))
    sample = values[_sampled(len(values), last_rows, _width(f.shape))] if accumulator else None
    hashes = []
    for digest, found in looked_at:
        hashes.append(digest)
        for steps, moments in found:
            assert accumulator is not None
            accumulator.merge(steps, moments)
    stats = accumulator.result(sample) if accumulator and sample is not None else None
    return digests.as_array(hashes), stats


def recount(read: Read, rows: int, f: Field, last_rows: IntArray) -> Stats:
    """The statistics of a numeric field whose rows ``read`` gives, as `scan` finds them, in bounded memory."""
    accumulator, width = Accumulator(f.shape), _width(f.shape)
    sampled, sample = _sampled(rows, last_rows, width), []
    at_once = statistics.block_steps(width)
    step = at_once * max(1, _PIECE // max(1, at_once * width * np.dtype(f.dtype).itemsize))
    for block in digests.blocks(rows):
        stop = min(rows, block + digests.BLOCK_ROWS)
        for a in range(block, stop, step):
            piece = read(a, min(stop, a + step))
            for found in _moments(piece, a, last_rows, accumulator):
                accumulator.merge(*found)
            i, j = np.searchsorted(sampled, (a, a + len(piece)))
            sample.append(piece[sampled[i:j] - a])
    return accumulator.result(np.concatenate([np.zeros((0, *f.shape), f.dtype), *sample]))


def _width(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _moments(
    block: Array, start: int, last_rows: IntArray, accumulator: Accumulator
) -> list[tuple[int, list[Moments]]]:
    """Of a ``block`` of rows that begins at row ``start``."""
    at_once = statistics.block_steps(_width(block.shape[1:]))
    edges = [*range(0, len(block), at_once), len(block)]
    places = np.searchsorted(last_rows, [start + e for e in edges]).tolist()
    ends = (last_rows[i:j] - start - a for a, i, j in zip(edges, places, places[1:], strict=False))
    return [accumulator.moments(_steps(block[a:b], e)) for (a, b), e in zip(pairwise(edges), ends, strict=True)]


def _steps(rows: Array, ends: IntArray) -> Array:
    """``rows`` less those numbered ``ends``."""
    if len(ends) == 0:
        return rows
    if len(ends) * _LONG > len(rows):
        return np.delete(rows, ends, axis=0)
    edges = [-1, *ends.tolist(), len(rows)]
    return np.concatenate([rows[a + 1 : b] for a, b in pairwise(edges)])


def _sampled(rows: int, last_rows: IntArray, width: int) -> IntArray:
    """The rows of the steps that quantiles are of."""
    steps = rows - len(last_rows)
    index = np.arange(0, steps, statistics.sample_steps(steps, width))
    # Step k lies in the episode that has more than k steps up to its end, and so many rows further as it has before it.
    ends = np.arange(len(last_rows))
    np.subtract(last_rows, ends, out=ends)
    found: IntArray = index + np.searchsorted(ends, index, "right")
    return found
