"""What a loader says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.loader.columns import Column, Decoded, RewardSum, Stored
from rlds_cli.loader.table import Table

if TYPE_CHECKING:
    from rlds_cli.loader.loading import Loader


def describe(loader: Loader) -> str:
    """Lines for people: samples, what is left out, order, reading, fields."""
    everything = Table.of(loader.dataset)
    size = loader.reader.batches_at_once(loader.ranks.share(loader.batch_size))
    epoch = "endless" if loader.sampler.endless else f"{loader.windows.total:,} samples an epoch"
    lines = [
        f"{loader.dataset.id} ({loader.dataset.fingerprint[:13]}..): {int(everything.steps.sum()):,} steps,"
        f" {len(everything):,} episodes",
        f"samples   {loader.windows.total:,} windows in {len(loader.table):,} episodes: {loader.window}",
        *(f"left out  {reason}" for reason in _left_out(loader, everything)),
        f"order     {loader.sampler}, seed {loader.seed}, {epoch}",
        f"batches   {loader.batch_size:,} samples, {loader.ranks}; {size} at a gather",
        *(f"{name:<32}{_source(loader, name, c)}" for name, c in loader.reader.columns.items()),
    ]
    return "\n".join(lines)


def _left_out(loader: Loader, everything: Table) -> list[str]:
    reasons = []
    unknown = int((everything.steps - everything.transitions).sum())
    if unknown and not loader.window.whole and loader.anchors == "transitions":
        reasons.append(f'{unknown:,} last steps whose next observation is not known (anchors="steps" draws them)')
    without = np.setdiff1d(everything.number, loader.table.number, assume_unique=True)
    if len(without):
        steps = int(everything.steps[without].sum())
        reasons.append(f"{len(without):,} episodes ({steps:,} steps) without a window, e.g. episode {without[0]}")
    return reasons


def _source(loader: Loader, name: str, column: Column) -> str:
    mapped = "memory map" if loader.dataset.encoding == "memmap" else "decoded in memory"
    match column:
        case Stored():
            return f"{mapped}, {column.column.values.dtype}{list(column.column.values.shape[1:])}{_row(column)}"
        case Decoded():
            return f"decoded at a gather{_row(column)}"
        case RewardSum():
            return f"{mapped}, summed up"
        case _:
            return "computed"


def _row(column: Stored | Decoded) -> str:
    return ", row after" if column.shift else ""
