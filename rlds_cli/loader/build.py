"""From a dataset and what is asked of it to what a loader draws from and reads.

What a loader is asked for, checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import EmptyWindow, InvalidArgument
from rlds_cli.loader.arrays.transforms import Elementwise
from rlds_cli.loader.fields.columns import Column, RewardSum, Stored
from rlds_cli.loader.fields.fields import Extra, Fields, Name, Names
from rlds_cli.loader.index import Guide, Pool, Table
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.read import BatchFunction, DatasetSource, Draw, Transforms
from rlds_cli.loader.samplers.uniform import Draw as Drawing
from rlds_cli.loader.samplers.uniform import Sampler
from rlds_cli.loader.storage import blocks, memory
from rlds_cli.loader.windows import nstep
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Anchors, Transition, Window
from rlds_cli.settings import StrPath
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
        options = blocks.Options(floats, budget, request.views)
        made.packed, made.packing = blocks.pack(dataset, columns, fields.read, options)
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


Transform = Elementwise | BatchFunction
_OF_IMAGES = ("torchvision", "kornia", "albumentations")
_FUNCTION = 'def f(batch): batch["observation"] = t(batch["observation"]), and transform=f'


def opened(dataset: StrPath | Dataset | Mixture) -> Dataset | Mixture:
    """The dataset, or the mixture with its members open."""
    if isinstance(dataset, Mixture):
        return dataset.opened()
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset)


def check_kinds(window: Window, sampler: Sampler, anchors: Anchors) -> None:
    """Refuse what is no window, no sampler or no kind of anchor.

    Raises
    ------
    InvalidArgument
    """
    if isinstance(window, type) or not hasattr(window, "place"):
        raise InvalidArgument(f"window={window!r} is not a window.", hint="Transition() or Slice(length)")
    if isinstance(sampler, type) or not hasattr(sampler, "over"):
        raise InvalidArgument(f"sampler={sampler!r} is not a sampler.", hint="Uniform(), Shuffled() or Sequential()")
    if anchors not in ("transitions", "steps"):
        raise InvalidArgument(f'anchors={anchors!r}: "transitions" or "steps".')
    if anchors == "steps" and isinstance(window, Transition) and window.n_step > 1:
        raise InvalidArgument(
            f'{window} sums up to a next observation, which anchors="steps" does without.', hint='anchors="transitions"'
        )


def transforms_of(transform: Transform | Sequence[Transform]) -> Transforms:
    """The transforms, in order.

    Raises
    ------
    InvalidArgument
        One cannot be called.
    """
    asked: Any = transform
    given = list(asked) if isinstance(asked, Sequence) and not isinstance(asked, str) else [asked]
    for t in given:
        if isinstance(t, type):
            raise InvalidArgument(f"transform={_name(t)} is a class.", hint=f"transform={_name(t)}(...)")
        if not callable(t):
            raise InvalidArgument(f"transform={t!r} is neither a transform nor a function of a batch.", hint=_FUNCTION)
        if hasattr(t, "in_keys") and hasattr(t, "out_keys"):
            raise InvalidArgument(
                f"transform={_name(t)} is for TensorDicts, and a loader gives batches.",
                hint="td = transform(batch.tensordict()) for each batch",
            )
        package, _, module = _home(t).partition(".")
        if package in _OF_IMAGES:
            raise InvalidArgument(f"transform={_name(t)} is for images, and a loader gives batches.", hint=_FUNCTION)
        if package == "rlds_cli" and module.startswith("preprocess."):
            raise InvalidArgument(
                f"transform={_name(t)} is for whole episodes.", hint=f'rlds_cli.preprocess.run(ds, "{_name(t)}")'
            )
    return Transforms.of(given)


def _home(transform: object) -> str:
    """The module that a function, or the class of an object, is from."""
    own = getattr(transform, "__module__", None)
    return own if isinstance(own, str) else type(transform).__module__


def _name(transform: object) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))
