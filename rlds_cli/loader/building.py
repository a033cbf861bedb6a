"""From a dataset and what is asked of it to what a loader draws from and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.errors import EmptyWindow
from rlds_cli.loader.access import memory, packing
from rlds_cli.loader.content.columns import Column, RewardSum, Stored
from rlds_cli.loader.content.fields import Extra, Fields, Name, Names
from rlds_cli.loader.reading import DatasetSource, Draw, Transforms
from rlds_cli.loader.sampling.guide import Guide
from rlds_cli.loader.sampling.pool import Pool
from rlds_cli.loader.sampling.samplers import Draw as Drawing
from rlds_cli.loader.sampling.samplers import Sampler
from rlds_cli.loader.sampling.table import Table
from rlds_cli.loader.windowing import nstep
from rlds_cli.loader.windowing.offsets import Offsets
from rlds_cli.loader.windowing.windows import Anchors, Transition, Window
from rlds_cli.ted import FLAGS, REWARD, Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Request:
    """What a loader is asked for; see `Loader`."""

    window: Window
    sampler: Sampler
    anchors: Anchors
    fields: Names | None
    extra: Sequence[Name | Extra]
    memory: str | int | None
    views: bool
    resident: bool = False

    def in_steps(self, dataset: Dataset) -> Request:
        """The same with offsets of the window in steps of ``dataset``."""
        return replace(self, window=self.window.in_steps(dataset)) if isinstance(self.window, Offsets) else self


def pool(dataset: Dataset, window: Window, anchors: Anchors) -> Pool:
    """The episodes that have a window, and how many.

    Raises
    ------
    EmptyWindow
        None has.
    """
    table = Table.of(dataset)
    if not len(table):
        raise EmptyWindow(f"There is nothing to draw from: 0 episodes of {dataset.id} are selected.")
    every_step = window.whole or anchors == "steps"
    offered = table.steps if every_step else table.transitions
    counts = window.counts(offered, table.steps)
    usable = counts > 0
    if not usable.any():
        raise window.nowhere(len(table), int(table.steps.max(initial=0)))
    bucket = getattr(window, "bucket", None)
    table, counts = table.where(usable), counts[usable]
    if bucket is not None:
        by_length = np.argsort(table.steps, kind="stable")
        table, counts = table.where(by_length), counts[by_length]
    return Pool(dataset, table, Guide(counts), window.anchor, bucket)


def source(pool: Pool, draw: Drawing, request: Request, transforms: Transforms, floats: str | None) -> DatasetSource:
    """What reads the columns of a dataset; ``floats`` is the dtype in which the loader works with them.

    Raises
    ------
    UnknownField, NoReward, LoaderError
        A field that there is not.
    NeedsMemory
        The dataset is compressed and does not fit the memory allowed when decoded.
    """
    fields = Fields(pool, request.window, request.sampler, request.anchors, request.memory, floats)
    chosen = fields.choose(request.fields, request.extra)
    transforms.like = fields.like(chosen)
    transforms.check(chosen, pool.dataset, summed=fields.n_step > 1)
    return read(fields, chosen, draw, request, transforms, floats)


def read(
    fields: Fields, chosen: Sequence[str], draw: Drawing, request: Request, transforms: Transforms, floats: str | None
) -> DatasetSource:
    """What reads the columns ``chosen``, see `source`."""
    pool, dataset, window = fields.pool, fields.dataset, request.window
    memory.check_decoded(dataset, fields.stored(chosen), request.memory)
    per_step = _per_step(transforms, floats)
    columns = {name: fields.column(name, per_step) for name in chosen}
    budget = memory.budget(request.memory)[0]
    reach = _reach(fields, columns, budget) if window.n_step > 1 else None
    made = DatasetSource(Draw(pool, draw, window, reach), columns)
    if reach is not None and reach.kept:
        made.packing = f"sums over {reach.n_step} steps, {reach.kept}"
    made.unread, made.shadowed = fields.unread(request.fields, chosen), fields.shadowed
    made.decodes = any(dataset.schema[name].kind == "frames" for name in fields.stored(chosen))
    packs = isinstance(window, Transition) and window.n_step == 1 and dataset.encoding == "memmap"
    if packs and not request.resident:
        options = packing.Options(floats, budget, request.views)
        made.packed, made.packing = packing.pack(dataset, columns, fields.read, options)
    return made


def _per_step(transforms: Transforms, floats: str | None) -> Callable[[Array], Array] | None:
    """What is done to rewards before they are summed up, in the dtype in which any other window transforms them."""
    if not any(t.touches(REWARD) for t in transforms.elementwise):
        return None

    def transformed(reward: Array) -> Array:
        cast = floats is not None and reward.dtype.kind == "f"
        return np.asarray(transforms.column(REWARD, reward.astype(floats, copy=False) if cast else reward))

    return transformed


def _reach(fields: Fields, columns: dict[str, Column], budget: int) -> nstep.Reach:
    """How far transitions over several steps go; their reward column is exchanged where its sums are kept."""
    dataset, terminated, truncated = fields.dataset, *(fields.rows(name) for name in FLAGS)
    reach = nstep.keep_reach(dataset, nstep.Reach(fields.n_step, terminated, truncated), budget)
    summed = columns.get(REWARD)
    if isinstance(summed, RewardSum) and summed.transform is None:
        sums = nstep.keep_sums(dataset, reach, summed.column, summed.gamma, summed.dtype, budget)
        if sums is not None:
            columns[REWARD] = Stored(sums)
    return reach
