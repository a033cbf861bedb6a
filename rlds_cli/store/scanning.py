"""Hashes and statistics of a field's rows, in one pass over them as they are on disk, by several threads.

Blocks are looked at in any order and put together in theirs: how many threads there are does not change a bit.
"""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import pairwise

import numpy as np

from rlds_cli.store import digests, statistics
from rlds_cli.store.manifest import Stats
from rlds_cli.store.statistics import Accumulator, Moments
from rlds_cli.ted import Array, Field, IntArray

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
        found = _moments(values, a, last_rows, accumulator) if accumulator else []
        return digests.array_block(block), found

    looked_at = threads.map(look, digests.blocks(len(values)))
    sample = _sample(values, last_rows) if accumulator else None
    hashes = []
    for digest, found in looked_at:
        hashes.append(digest)
        for steps, moments in found:
            assert accumulator is not None
            accumulator.merge(steps, moments)
    stats = accumulator.result(sample) if accumulator and sample is not None else None
    return digests.as_array(hashes), stats


def _moments(
    values: Array, start: int, last_rows: IntArray, accumulator: Accumulator
) -> list[tuple[int, list[Moments]]]:
    """Of the block of ``values`` that begins at row ``start``."""
    at_once = statistics.block_steps(int(np.prod(values.shape[1:], dtype=np.int64)))
    stop = min(start + digests.BLOCK_ROWS, len(values))
    edges = [*range(start, stop, at_once), stop]
    places = np.searchsorted(last_rows, edges).tolist()
    ends = (last_rows[i:j] - a for a, i, j in zip(edges, places, places[1:], strict=False))
    return [accumulator.moments(_steps(values[a:b], e)) for (a, b), e in zip(pairwise(edges), ends, strict=True)]


def _steps(rows: Array, ends: IntArray) -> Array:
    """``rows`` less those numbered ``ends``."""
    if len(ends) == 0:
        return rows
    if len(ends) * _LONG > len(rows):
        return np.delete(rows, ends, axis=0)
    edges = [-1, *ends.tolist(), len(rows)]
    return np.concatenate([rows[a + 1 : b] for a, b in pairwise(edges)])


def _sample(values: Array, last_rows: IntArray) -> Array:
    steps = len(values) - len(last_rows)
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    index = np.arange(0, steps, statistics.sample_steps(steps, width))
    # Step k lies in the episode that has more than k steps up to its end, and so many rows further as it has before it.
    ends = last_rows + 1 - np.arange(1, len(last_rows) + 1)
    sample: Array = values[index + np.searchsorted(ends, index, "right")]
    return sample
