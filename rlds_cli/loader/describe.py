"""The text of `Loader.describe`: samples, order, reading, fields, and the reasons for what is left out."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlds_cli.base.files.hashing import short
from rlds_cli.loader.index import EpisodeIndex, WindowIndex
from rlds_cli.loader.mixture.sources import MixtureSource
from rlds_cli.loader.read import BatchReader, DatasetSource
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.samplers.uniform import GROWTH, Uniform, first_part
from rlds_cli.loader.schedule import Ranks
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.windows.windows import Episode, Window


class Described(Protocol):
    """The parts of a `Loader` that its description names."""

    window: Window
    sampler: Sampler
    batch_size: int
    seed: int
    steps: int | None
    ranks: Ranks
    prefetch: int

    @property
    def source(self) -> DatasetSource | MixtureSource:
        """The columns that batches are read from."""
        ...

    @property
    def reader(self) -> BatchReader:
        """The reader of batches."""
        ...

    def consumed(self) -> dict[str, int]:
        """Return the samples handed out so far."""
        ...


def describe(loader: Described) -> str:
    """Describe a loader, in lines for people."""
    source = loader.source
    lines = _mixture(loader, source) if isinstance(source, MixtureSource) else _dataset(loader, source)
    return "\n".join(lines)


def _dataset(loader: Described, source: DatasetSource) -> list[str]:
    dataset, total = source.locator.pool.dataset, source.locator.pool.prefix.total
    epoch = "" if loader.sampler.endless else f", {_counted(total, 'sample')} an epoch"
    length = _counted(loader.steps, "batch") if loader.steps else "endless" if loader.sampler.endless else "an epoch"
    return [
        f"{dataset.id} ({short(dataset.fingerprint)}): {_extent(source.locator.pool)}{_live(source.locator.pool)}",
        f"samples   {_drawn(source.locator.pool)}: {loader.window}",
        *(f"left out  {reason}" for reason in _left_out(loader, source)),
        f"order     {loader.sampler}, seed {loader.seed}{epoch}; {length} at a loop",
        *_warm_up(loader.sampler, source.locator.pool),
        _batches(loader),
        *([f"reading   {source.packing}"] if source.packing else []),
        *_remote(loader, source),
        *(f"{name:<31} {_source(loader, source, name)}" for name in source.columns),
    ]


def _mixture(loader: Described, source: MixtureSource) -> list[str]:
    shares, consumed = source.apportioning.shares, loader.consumed()
    lines = [f"mixture of {_counted(len(source.members), 'dataset')}: {source.mixture.rule}"]
    for i, member in enumerate(source.members):
        share = "share changes" if shares is None else f"{shares[i]:.4%} of the samples"
        lines += [
            f"{member.name}: {source.mixture.about(loader.sampler)[member.name]}: {_extent(member.pool)}",
            f"  share     {share}, {consumed[member.name]:,} so far",
            f"  samples   {_drawn(member.pool)}",
            *([f"  order     {own}"] if (own := source.mixture.parts[member.name].sampler) else []),
            *(f"  {line}" for line in _warm_up(own or loader.sampler, member.pool)),
            *(f"  left out  {reason}" for reason in _left_out(loader, member.source)),
            *([f"  reading   {member.source.packing}"] if member.source.packing else []),
            *(f"  {line}" for line in _remote(loader, member.source)),
            *(f"  {name:<29} {_source(loader, member.source, name)}" for name in member.source.columns),
        ]
    length = _counted(loader.steps, "batch") if loader.steps else "endless"
    return [
        *lines,
        f"window    {loader.window}",
        f"order     {loader.sampler}, seed {loader.seed}; {length} at a loop",
        _batches(loader),
        f"fields    {', '.join(source.names)}",
    ]


def _warm_up(sampler: Sampler, pool: WindowIndex) -> list[str]:
    """Say which samples are not drawn from all windows."""
    if not isinstance(sampler, Uniform) or not sampler.warm_up:
        return []
    first, total = first_part(pool), pool.prefix.total
    samples = _counted(-(-(total - first) // GROWTH), "sample")
    if first == total:
        return [f"warm-up   none: the first part is all {_counted(total, 'window')}"]
    return [
        f"warm-up   the first {samples} of an epoch are not drawn from all windows, but from the first {first:,} of the"
        f" dataset, and {GROWTH} more with each sample"
    ]


def _remote(loader: Described, source: DatasetSource) -> list[str]:
    """Say how much of a remote dataset is cached, and whether the rest is fetched in the background."""
    reads = source.compiled.remote
    if reads is None or source.resident:
        return []
    here, count = reads.extent
    if not count:  # all of them are packed
        return []
    if here == count:
        return [f"remote    all {_counted(count, 'block')} of these fields are cached"]
    if not reads.blocks.fills:
        rest = "the rest is fetched as batches read it (fill=False)"
    elif not reads.scattered:
        rest = "the rest is fetched as batches read it: they lie close together"
    elif reads.filling is None:
        rest = "after the first batch, the rest arrives in the background"
    else:
        rest = reads.filling.state
    return [f"remote    {here:,} of {_counted(count, 'block')} of these fields are cached{'; ' if rest else ''}{rest}"]


def _batches(loader: Described) -> str:
    size = loader.reader.batches_at_once(loader.ranks.share(loader.batch_size))
    early = f", {_counted(loader.prefetch, 'run')} read ahead" if loader.prefetch else ""
    together = f"samples of {_counted(size, 'batch')} drawn together{early}"
    return f"batches   {_counted(loader.batch_size, 'sample')}, {loader.ranks}; {together}"


def _extent(pool: WindowIndex) -> str:
    everything = EpisodeIndex.of(pool.dataset)
    return f"{_counted(int(everything.steps.sum()), 'step')}, {_counted(len(everything), 'episode')}"


def _live(pool: WindowIndex) -> str:
    return f", live at version {pool.dataset.version:,}" if pool.live else ""


def _drawn(pool: WindowIndex) -> str:
    held_out = pool.dataset.held_out
    train = f', {held_out:,} of them not of the split train (ds.select(split="train"))' if held_out else ""
    return f"{_counted(pool.prefix.total, 'window')} in {_counted(len(pool.table), 'episode')}{train}"


def _left_out(loader: Described, source: DatasetSource) -> list[str]:
    return [*_steps_left_out(loader, source.locator.pool), *_fields_left_out(source)]


def _fields_left_out(source: DatasetSource) -> list[str]:
    unread = f'{", ".join(source.unread)}: the dataset has no "observation" (fields="all" gives every field)'
    taken = f"{', '.join(source.shadowed)} of the dataset: the window or the sampler gives a column of that name"
    return [*([unread] if source.unread else []), *([taken] if source.shadowed else [])]


def _steps_left_out(loader: Described, pool: WindowIndex) -> list[str]:
    reasons, everything = [], EpisodeIndex.of(pool.dataset)
    unknown = int((everything.steps - everything.transitions).sum())
    if unknown and not loader.window.whole:
        reasons.append(
            f'{_counted(unknown, "step")} whose next observation is not known (Transition(anchors="steps") draws them)'
        )
    without = np.setdiff1d(everything.number, pool.table.number, assume_unique=True)
    if len(without):
        steps = _counted(int(everything.steps[without].sum()), "step")
        reasons.append(f"{_counted(len(without), 'episode')} ({steps}) without a window: episode {without[0]}, ...")
    if isinstance(loader.window, Episode) and loader.window.max_length is not None:
        beyond = np.maximum(everything.steps - loader.window.max_length, 0)
        if beyond.any():
            longer = _counted(int(np.count_nonzero(beyond)), "episode")
            reasons.append(f"{_counted(int(beyond.sum()), 'step')} of {longer} longer than {loader.window.max_length}")
    return reasons


def _source(loader: Described, source: DatasetSource, name: str) -> str:
    column = source.columns[name]
    if not column.stored:
        return column.about
    mapped = "memory map" if source.locator.pool.dataset.encoding == "memmap" else "decoded in memory"
    mapped = mapped if source.compiled.remote is None else "blocks of the remote dataset"
    mapped = "packed rows" if column.rows is not None and column.rows.packed else mapped
    mapped = "on the device" if name in source.held else mapped
    kind = "" if column.rows is None else _kind_of_column(loader, column.rows)
    return mapped + column.about.format(kind=kind)


def _kind_of_column(loader: Described, rows: ColumnRows) -> str:
    wanted = loader.reader.arrays.dtype
    cast = f" to {wanted}" if wanted and rows.dtype.kind == "f" and rows.dtype != wanted else ""
    return f"{rows.dtype}{list(rows.values.shape[1:])}{cast}"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"
