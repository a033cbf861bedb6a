"""What a loader says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.hashing import short
from rlds_cli.loader.columns import Column, Decoded, RewardSum, Stacked, Stored
from rlds_cli.loader.returns import Returns
from rlds_cli.loader.table import Table
from rlds_cli.loader.windows import Episode

if TYPE_CHECKING:
    from rlds_cli.loader.loading import Loader


def describe(loader: Loader) -> str:
    """Lines for people: samples, what is left out, order, reading, fields."""
    everything = Table.of(loader.dataset)
    size = loader.reader.batches_at_once(loader.ranks.share(loader.batch_size))
    epoch = "" if loader.sampler.endless else f", {_count(loader.pool.guide.total, 'sample')} an epoch"
    length = _count(loader.steps, "batch") if loader.steps else "endless" if loader.sampler.endless else "an epoch"
    steps, episodes = _count(int(everything.steps.sum()), "step"), _count(len(everything), "episode")
    drawn, within = _count(loader.pool.guide.total, "window"), _count(len(loader.pool.table), "episode")
    lines = [
        f"{loader.dataset.id} ({short(loader.dataset.fingerprint)}): {steps}, {episodes}",
        f"samples   {drawn} in {within}: {loader.window}",
        *(f"left out  {reason}" for reason in _left_out(loader, everything)),
        f"order     {loader.sampler}, seed {loader.seed}{epoch}; {length} at a loop",
        f"batches   {_count(loader.batch_size, 'sample')}, {loader.ranks}; {_count(size, 'batch')} at a gather",
        *([f"reading   {loader.source.packing}"] if loader.source.packing else []),
        *(f"{name:<31} {_source(loader, name, c)}" for name, c in loader.source.columns.items()),
    ]
    return "\n".join(lines)


def _left_out(loader: Loader, everything: Table) -> list[str]:
    reasons = []
    unknown = int((everything.steps - everything.transitions).sum())
    if unknown and not loader.window.whole and loader.anchors == "transitions":
        reasons.append(f'{_count(unknown, "step")} whose next observation is not known (anchors="steps" draws them)')
    without = np.setdiff1d(everything.number, loader.pool.table.number, assume_unique=True)
    if len(without):
        steps = _count(int(everything.steps[without].sum()), "step")
        reasons.append(f"{_count(len(without), 'episode')} ({steps}) without a window: episode {without[0]}, ...")
    if isinstance(loader.window, Episode) and loader.window.max_length is not None:
        beyond = np.maximum(everything.steps - loader.window.max_length, 0)
        if beyond.any():
            longer = _count(int(np.count_nonzero(beyond)), "episode")
            reasons.append(f"{_count(int(beyond.sum()), 'step')} of {longer} longer than {loader.window.max_length}")
    return reasons


def _source(loader: Loader, name: str, column: Column) -> str:
    packed = loader.source.packed
    mapped = "memory map" if loader.dataset.encoding == "memmap" else "decoded in memory"
    mapped = "packed rows" if packed is not None and name in packed else mapped
    match column:
        case Stored():
            return f"{mapped}{_after(column)}, {_kind(loader, column.column.values)}"
        case Decoded():
            return f"decoded at each gather{_after(column)}"
        case Stacked():
            return f"{len(column.offsets)} rows of it at each step"
        case RewardSum():
            return f"{mapped}, summed up, {_kind(loader, column.column.values)}"
        case Returns():
            return column.where
        case _:
            return "computed"


def _after(column: Stored | Decoded) -> str:
    return ", row after" if column.shift else ""


def _kind(loader: Loader, values: np.ndarray) -> str:
    wanted = loader.reader.arrays.dtype
    cast = f" to {wanted}" if wanted and values.dtype.kind == "f" and values.dtype != wanted else ""
    return f"{values.dtype}{list(values.shape[1:])}{cast}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"
