"""Building a loader: check the request, count the windows of the dataset, make its draw and its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import closest
from rlds_cli.dataset import Dataset, Elementwise, open_dataset
from rlds_cli.errors import BatchSize, EmptyWindow, InvalidArgument
from rlds_cli.loader.arrays.frameworks import ArrayBackend
from rlds_cli.loader.fields.fields import Chosen, Fields
from rlds_cli.loader.index import EpisodeIndex, PrefixIndex, WindowIndex
from rlds_cli.loader.kernel import NStep
from rlds_cli.loader.mixture.mixture import Mixture, mixture_of
from rlds_cli.loader.read import DatasetSource, SampleLocator
from rlds_cli.loader.samplers import Draw, Sampler
from rlds_cli.loader.samplers.uniform import Uniform, WarmUp
from rlds_cli.loader.schedule import Schedule
from rlds_cli.loader.storage import memory
from rlds_cli.loader.storage.remote import stays
from rlds_cli.loader.transforms import BatchFunction, Transforms
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Transition, Window
from rlds_cli.ted import CUT, FLAGS, REWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of a `Loader` that its source depends on."""

    window: Window
    sampler: Sampler
    fields: Chosen | None
    memory: str | int | None
    resident: bool = False
    live: bool = False

    def in_steps(self, dataset: Dataset) -> Request:
        """Return the request with the window's offsets in steps of ``dataset``."""
        return replace(self, window=self.window.in_steps(dataset)) if isinstance(self.window, Offsets) else self


def pool(
    dataset: Dataset,
    window: Window,
    *,
    in_mixture: bool = False,
    live: bool = False,
    needed: bool = True,
) -> WindowIndex:
    """Count the windows of every episode, and number them.

    Raises
    ------
    EmptyWindow
        No episode has a window, and one is ``needed``.
    """
    table = EpisodeIndex.of(dataset)
    if needed and not len(table):
        raise EmptyWindow(f"There is nothing to draw from: 0 episodes of {dataset.id} are selected.")
    offered = table.steps if window.whole else table.transitions
    counts = window.counts(offered, table.steps)
    usable = counts > 0
    if needed and not usable.any():
        raise window.nowhere(len(table), int(table.steps.max(initial=0)))
    bucket, pad = getattr(window, "bucket", None), getattr(window, "pad", None)
    if not usable.all():  # a selection is a copy
        table, counts = table.where(usable), counts[usable]
    if bucket is not None:
        by_length = np.argsort(table.steps, kind="stable")
        table, counts = table.where(by_length), counts[by_length]
    prefix, starts = PrefixIndex(counts), window.starts
    return WindowIndex(dataset, table, prefix, starts, pad=pad, bucket=bucket, in_mixture=in_mixture, live=live)


def dataset_source(
    dataset: Dataset,
    request: Request,
    transforms: Transforms,
    arrays: ArrayBackend,
    over: Callable[[WindowIndex], Draw] | None = None,
) -> tuple[Draw, DatasetSource]:
    """Make the draw over a dataset, and the source that reads it.

    ``over`` makes the draw, instead of the sampler: from one over another version of the dataset.

    Raises
    ------
    InvalidArgument
        The sampler cannot draw from the dataset.
    """
    request = request.in_steps(dataset)
    windows = pool(dataset, request.window, live=request.live)
    draw = request.sampler.over(windows) if over is None else over(windows)
    made = source(windows, draw, request, transforms, arrays.working)
    if request.resident:
        from rlds_cli.loader.storage.device_memory import reside

        made = reside(made, arrays)
    return draw, made


def schedule(windows: int | None, sampler: Sampler, batch_size: int, steps: int | None) -> Schedule:
    """Make the schedule of an epoch of so many ``windows``; None for an endless one.

    Raises
    ------
    BatchSize
        An epoch has no full batch, and the last batch is dropped.
    """
    made = Schedule(batch_size, windows, windows is not None and sampler.drop_last, steps)
    if windows is not None and made.per_epoch == 0:
        raise BatchSize(
            f"{batch_size} is more than the {windows:,} samples of an epoch, and its last batch is dropped.",
            hint=f"a batch of at most {windows:,}, or {type(sampler).__name__}(drop_last=False)",
        )
    return made


def source(
    pool: WindowIndex, draw: Draw, request: Request, transforms: Transforms, floats: str | None
) -> DatasetSource:
    """Make the source of a dataset's columns; ``floats`` is the dtype in which the loader works with floats.

    Raises
    ------
    UnknownField, NoReward, LoaderError
        The dataset has no such field.
    NeedsMemory
        The dataset is compressed and does not fit the memory allowed when decoded.
    """
    fields = Fields(pool, request.window, request.sampler.gives, request.memory, floats)
    chosen = fields.choose(request.fields)
    transforms.like = fields.like(chosen)
    transforms.check(chosen, pool.dataset, summed=fields.n_step > 1)
    return read(fields, chosen, draw, request, transforms, floats)


def read(
    fields: Fields,
    chosen: Sequence[str],
    draw: Draw,
    request: Request,
    transforms: Transforms,
    floats: str | None,
    later: Sequence[Elementwise] = (),
) -> DatasetSource:
    """Make the source of the columns ``chosen``, see `source`; others apply the transforms ``later`` to them."""
    pool, dataset, window = fields.pool, fields.dataset, request.window
    memory.check_decoded(dataset, fields.stored(chosen), request.memory)
    both = Transforms([*transforms.elementwise, *later], like=transforms.like)
    per_step, packing = _per_step(both, floats), ""
    fields.centre(name for name in chosen if transforms.first(name) is not None)
    is_packable = dataset.encoding == "memmap" and not (dataset.store.table.segment_rows and dataset.store.address)
    packs = isinstance(window, Transition) and is_packable and not request.resident
    if packs and stays(dataset, fields.packable(chosen)):
        packing = fields.pack(chosen)
    columns = {name: fields.column(name, per_step) for name in chosen}
    transforms.fuse(columns, dataset.schema)
    both.fused = transforms.fused
    changed = {name for name in chosen if both.left(name) or transforms.functions}
    n_step = _ends(fields, window.n_step) if window.n_step > 1 else None
    made = DatasetSource(SampleLocator(pool, draw, window), columns, changed, n_step, request.sampler.sides)
    if made.compiled.remote is not None:
        made.compiled.remote.scattered = request.sampler.scattered
    made.packing = packing
    made.unread, made.shadowed = fields.unread(request.fields, chosen), fields.shadowed
    made.decodes = any(dataset.schema[name].kind == "frames" for name in fields.stored(chosen))
    return made


def _ends(fields: Fields, n_step: int) -> NStep:
    """Return the end of n-step sums; flags are read only where an episode has one before its last step."""
    e = fields.dataset.episodes
    if "num_done" in e and (np.asarray(e["num_done"]) <= (np.asarray(e["end"]) != CUT)).all():
        return NStep(n_step)
    return NStep(n_step, *(fields.rows(name).values for name in FLAGS))


def _per_step(transforms: Transforms, floats: str | None) -> Callable[[Array], Array] | None:
    """Return the transform of rewards before they are summed, in the dtype in which other windows transform them."""
    if not any(t.touches(REWARD) for t in transforms.elementwise):
        return None

    exact = transforms.first(REWARD) is not None

    def transformed(reward: Array) -> Array:
        cast = floats is not None and reward.dtype.kind == "f" and not exact
        return np.asarray(transforms.column(REWARD, reward.astype(floats, copy=False) if cast else reward))

    return transformed


Transform = Elementwise | BatchFunction
_OF_IMAGES = ("torchvision", "kornia", "albumentations")
_FUNCTION = 'def f(batch): batch["observation"] = t(batch["observation"]), and transform=f'


def opened(dataset: StrPath | Dataset | Mixture) -> Dataset | Mixture:
    """Return the dataset, or the mixture, opened."""
    if isinstance(dataset, Mixture):
        return dataset.opened()
    if isinstance(dataset, list | tuple | dict):
        members = dataset.values() if isinstance(dataset, dict) else dataset
        raise InvalidArgument("Loader takes one dataset, or a Mixture.", hint=f"Loader({mixture_of(members)})")
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset)


def check_kinds(window: Window, sampler: Sampler) -> None:
    """Refuse an argument that is not a window or a sampler.

    Raises
    ------
    InvalidArgument
    """
    if isinstance(window, type) or not hasattr(window, "extent"):
        length = isinstance(window, int | np.integer) and not isinstance(window, bool)
        hint = f"window=Slice({window})" if length else _call("window", window, _WINDOWS)
        raise InvalidArgument(f"window={_shown(window)} is not a window.", hint=hint)
    if isinstance(sampler, type) or not hasattr(sampler, "over"):
        raise InvalidArgument(f"sampler={_shown(sampler)} is not a sampler.", hint=_call("sampler", sampler, _SAMPLERS))


_WINDOWS = {"transition": "Transition()", "slice": "Slice(20)", "episode": "Episode()", "offsets": "Offsets({...})"}
_SAMPLERS = {
    "uniform": "Uniform()",
    "random": "Uniform()",
    "shuffled": "Shuffled()",
    "sequential": "Sequential()",
    "weighted": 'Weighted("COLUMN")',
    "prioritized": "Prioritized()",
}


def _shown(given: object) -> str:
    return given.__name__ if isinstance(given, type) else repr(given)


def _call(argument: str, given: object, calls: Mapping[str, str]) -> str:
    """Return the argument to write instead of a class or of its name, or all that there are."""
    name = closest(_shown(given).strip("'").lower(), calls)
    return f"{argument}={calls[name]}" if name else f"{argument}= one of {', '.join(calls.values())}"


def warmed(sampler: Sampler, warm_up: WarmUp | None) -> Sampler:
    """Return the sampler with a warm-up.

    Raises
    ------
    InvalidArgument
        It has none.
    """
    if warm_up is None:
        return sampler
    if not isinstance(sampler, Uniform):
        raise InvalidArgument(
            f"warm_up={warm_up!r} with {sampler}: its samples cannot come from a first part.",
            hint="sampler=Uniform(); Shuffled(block=...) reads a remote dataset part by part",
        )
    return replace(sampler, warm_up=warm_up)


def transforms_of(transform: Transform | Sequence[Transform]) -> Transforms:
    """Return the transforms, in order.

    Raises
    ------
    InvalidArgument
        A transform cannot be called, or is not for batches.
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
    """Return the module that defines a function, or the class of an object."""
    own = getattr(transform, "__module__", None)
    return own if isinstance(own, str) else type(transform).__module__


def _name(transform: object) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))
