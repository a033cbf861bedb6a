"""What a loader says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.hashing import short
from rlds_cli.loader.content.columns import Beside, Column, Decoded, RewardSum, Stacked, Stored
from rlds_cli.loader.content.goals import GoalRows
from rlds_cli.loader.content.returns import Returns
from rlds_cli.loader.mixtures.mixing import MixtureSource
from rlds_cli.loader.reading import DatasetSource
from rlds_cli.loader.sampling.order import VERSION
from rlds_cli.loader.sampling.pool import Pool
from rlds_cli.loader.sampling.table import Table
from rlds_cli.loader.windowing.windows import Episode

if TYPE_CHECKING:
    from rlds_cli.loader.loading import Loader


def describe(loader: Loader) -> str:
    """Lines for people: samples, what is left out, order, reading, fields."""
    source = loader.source
    lines = _mixture(loader, source) if isinstance(source, MixtureSource) else _dataset(loader, source)
    return "\n".join(lines)


def _dataset(loader: Loader, source: DatasetSource) -> list[str]:
    dataset, total = source.draw.pool.dataset, source.draw.pool.guide.total
    epoch = "" if loader.sampler.endless else f", {_count(total, 'sample')} an epoch"
    length = _count(loader.steps, "batch") if loader.steps else "endless" if loader.sampler.endless else "an epoch"
    return [
        f"{dataset.id} ({short(dataset.fingerprint)}): {_extent(source.draw.pool)}",
        f"samples   {_drawn(source.draw.pool)}: {loader.window}",
        *(f"left out  {reason}" for reason in _left_out(loader, source)),
        f"order     {loader.sampler}, seed {loader.seed}{_older(loader)}{epoch}; {length} at a loop",
        _batches(loader),
        *([f"reading   {source.packing}"] if source.packing else []),
        *(f"{name:<31} {_source(loader, source, name)}" for name in source.columns),
    ]


def _mixture(loader: Loader, source: MixtureSource) -> list[str]:
    shares, consumed = source.apportioning.shares, loader.consumed()
    lines = [f"mixture of {_count(len(source.members), 'dataset')}: {source.mixture.rule}"]
    for i, member in enumerate(source.members):
        share = "share changes" if shares is None else f"{shares[i]:.4%} of the samples"
        lines += [
            f"{member.name}: {source.mixture.about[member.name]}: {_extent(member.pool)}",
            f"  share     {share}, {consumed[member.name]:,} so far",
            f"  samples   {_drawn(member.pool)}",
            *(f"  left out  {reason}" for reason in _left_out(loader, member.source)),
            *([f"  reading   {member.source.packing}"] if member.source.packing else []),
            *(f"  {name:<29} {_source(loader, member.source, name)}" for name in member.source.columns),
        ]
    length = _count(loader.steps, "batch") if loader.steps else "endless"
    return [
        *lines,
        f"window    {loader.window}",
        f"order     {loader.sampler}, seed {loader.seed}{_older(loader)}; {length} at a loop",
        _batches(loader),
        f"fields    {', '.join(source.names)}",
    ]


def _older(loader: Loader) -> str:
    """Of a state that an earlier release saved."""
    version = loader.order_version
    return "" if version == VERSION else f", version {version} of the order (that of the state loaded)"


def _batches(loader: Loader) -> str:
    size = loader.reader.batches_at_once(loader.ranks.share(loader.batch_size))
    early = f", {_count(loader.prefetch, 'gather')} read ahead" if loader.prefetch else ""
    together = f"{_count(size, 'batch')} at a gather{early}"
    return f"batches   {_count(loader.batch_size, 'sample')}, {loader.ranks}; {together}"


def _extent(pool: Pool) -> str:
    everything = Table.of(pool.dataset)
    return f"{_count(int(everything.steps.sum()), 'step')}, {_count(len(everything), 'episode')}"


def _drawn(pool: Pool) -> str:
    held_out = pool.dataset.held_out
    train = f', {held_out:,} of them not of the split train (ds.select(split="train"))' if held_out else ""
    return f"{_count(pool.guide.total, 'window')} in {_count(len(pool.table), 'episode')}{train}"


def _left_out(loader: Loader, source: DatasetSource) -> list[str]:
    return [*_steps_left_out(loader, source.draw.pool), *_fields_left_out(source)]


def _fields_left_out(source: DatasetSource) -> list[str]:
    unread = f'{", ".join(source.unread)}: the dataset has no "observation" (fields="all" gives every field)'
    taken = f"{', '.join(source.shadowed)} of the dataset: the window or the sampler gives a column of that name"
    return [*([unread] if source.unread else []), *([taken] if source.shadowed else [])]


def _steps_left_out(loader: Loader, pool: Pool) -> list[str]:
    reasons, everything = [], Table.of(pool.dataset)
    unknown = int((everything.steps - everything.transitions).sum())
    if unknown and not loader.window.whole and loader.anchors == "transitions":
        reasons.append(f'{_count(unknown, "step")} whose next observation is not known (anchors="steps" draws them)')
    without = np.setdiff1d(everything.number, pool.table.number, assume_unique=True)
    if len(without):
        steps = _count(int(everything.steps[without].sum()), "step")
        reasons.append(f"{_count(len(without), 'episode')} ({steps}) without a window: episode {without[0]}, ...")
    if isinstance(loader.window, Episode) and loader.window.max_length is not None:
        beyond = np.maximum(everything.steps - loader.window.max_length, 0)
        if beyond.any():
            longer = _count(int(np.count_nonzero(beyond)), "episode")
            reasons.append(f"{_count(int(beyond.sum()), 'step')} of {longer} longer than {loader.window.max_length}")
    return reasons


def _source(loader: Loader, source: DatasetSource, name: str) -> str:
    column: Column = source.columns[name]
    packed = source.packed
    mapped = "memory map" if source.draw.pool.dataset.encoding == "memmap" else "decoded in memory"
    mapped = "packed rows" if packed is not None and name in packed else mapped
    mapped = "on the device" if name in source.held else mapped
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
        case GoalRows():
            return f"rows of {column.like}, at goals"
        case Beside():
            return f"{mapped}, step {'after' if column.distance > 0 else 'before'}"
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
