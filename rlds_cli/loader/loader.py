"""The loader: what training code imports.

What a loader's state says, and when it may be loaded.

What a loader says about itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.dataset.batch import LOADER, Batch, missing, register
from rlds_cli.errors import BatchSize, InvalidArgument, WrongState
from rlds_cli.files.hashing import short
from rlds_cli.loader import build, order, planning
from rlds_cli.loader.arrays import frameworks
from rlds_cli.loader.arrays.frameworks import Backend
from rlds_cli.loader.build import Transform
from rlds_cli.loader.fields.columns import Beside, Column, Decoded, RewardSum, Stacked, Stored
from rlds_cli.loader.fields.fields import Extra, Name, Names
from rlds_cli.loader.fields.goals import GoalRows, Returns
from rlds_cli.loader.index import Pool, Table
from rlds_cli.loader.mixture.merging import MixtureSource
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.order import VERSION, Order, whole
from rlds_cli.loader.planning import runs
from rlds_cli.loader.read import DatasetSource, Reader, Run
from rlds_cli.loader.samplers.prioritized import PrioritizedDraw
from rlds_cli.loader.samplers.uniform import Sampler, Uniform
from rlds_cli.loader.schedule import Ranks, Spot
from rlds_cli.loader.storage.page_cache import Told, ahead
from rlds_cli.loader.windows.windows import Anchors, Episode, Transition, Window
from rlds_cli.settings import StrPath

if TYPE_CHECKING:
    from rlds_cli.loader.arrays.torch_loader import TorchBatches


class Loader:
    """Batches of a dataset, in an order that depends on nothing but the seed.

    1. **Iteration.** Samplers with replacement never end; `Shuffled` and `Sequential` end after one epoch, and the
       next ``iter()`` starts the next one, also when the last was broken off; ``steps=N`` ends after N batches in
       either case. After `seek` or `load_state_dict` the next ``iter()`` goes on from there, once.
    2. **Order.** Sample number i of epoch e is a function of (seed, e, i) alone. Global batch n is samples
       [n * B, (n + 1) * B); rank r of W takes r, r + W, ... of it. Ranks, workers, memory, fields and dtypes change
       nothing. Every rank has as many batches, none of them empty: where the last one of an epoch has n < W samples,
       rank r takes sample r mod n (``drop_last=True`` leaves that batch out). The state is the number of samples
       consumed. In a `Mixture` every member has an order of its own.
    3. **Batch size** is of the global batch. Rank and world size come from the arguments, else from
       ``torch.distributed`` when it is initialised, else 0 of 1; ``repr`` says which.
    4. **Memory.** Fields are contiguous, writable and overlap nothing. Batches of one gather are parts of one
       allocation: ``batch.clone()`` before keeping or saving one. Rows come from the store's maps or from one packed
       file, shared by all processes of the machine; ``memory`` caps private copies only.

    Parameters
    ----------
    dataset : str, path, Dataset or Mixture
        An id, a directory, a dataset or selection, or several of these.
    batch_size : int
        B: samples, all ranks together.
    window : Transition, Slice, Offsets or Episode
        What a sample is: fields are [B, ...], or [B, L, ...].
    sampler : Uniform, Shuffled, Sequential, Weighted or Prioritized
        Which samples.
    fields : sequence of str or "all", optional
        Instead of observation, action and ``next/{observation, reward, done, terminated, truncated}``. A name stands
        for everything nested below it, ``"all"`` for every field of the dataset.
    extra : sequence of str, `ReturnToGo` or `Goals`
        Fields beside these: any other of the dataset, or ``step``, ``episode`` and ``index`` (numbers of
        ``ds.episode(k)`` and ``ds[i]``), ``next/action``, ``previous/action``, ``previous/reward``, ``source``, or what
        is computed by an object of its own.
    transform : transform, function of a batch, or a sequence of them
        Applied in order. A function changes its batch in place, or returns one.
    dtype : str or None
        Of floats: ``float16``, ``bfloat16``, ``float32``, ``float64``; None for the archive's. Others keep theirs.
    backend : {"torch", "numpy", "jax"}
    device : torch.device, jax.Device or str, optional
        Where tensors go, one copy for each gather.
    seed : int
        In [0, 2**64).
    steps : int, optional
        Batches per ``iter()``.
    rank, world_size : int, optional
        See rule 3.
    anchors : {"transitions", "steps"}
        ``steps`` draws every step, also those whose next observation is not known, and gives no next observation.
    memory : str, int or None
        How much a compressed dataset may take when it is decoded: ``"8GiB"``, bytes, None for a quarter of what the
        cgroup or the machine has. ``"device"``: all columns that are arrays are copied to ``device`` once, and batches
        are gathered there.
    prefetch : int, optional
        Gathers that threads read ahead; None for none of small rows, two of large ones or for another device, and one
        for each core (eight at most) where encoded frames are decoded.
    views : bool
        Give strided views of the rows read, where that saves a copy.

    Raises
    ------
    EmptyWindow
        The window fits none of the episodes.
    BatchSize
        Not positive, not a multiple of the world size, or larger than an epoch of which the last batch is dropped.
    UnknownField, NoReward
        A field that the dataset does not have.
    NeedsMemory
        The dataset is compressed and does not fit ``memory`` when decoded, or does not fit the device.
    InvalidArgument
        Any other value that cannot be.

    Examples
    --------
    >>> loader = Loader("d4rl/hopper-medium-v2", 256, seed=0, steps=1_000_000)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     s, a, r, s2, terminated = batch.sarsd()
    """

    def __init__(
        self,
        dataset: StrPath | Dataset | Mixture,
        batch_size: int = 256,
        *,
        window: Window = Transition(),  # noqa: B008  (frozen)
        sampler: Sampler = Uniform(),  # noqa: B008  (frozen)
        fields: Names | None = None,
        extra: Sequence[Name | Extra] = (),
        transform: Transform | Sequence[Transform] = (),
        dtype: str | None = "float32",
        backend: Backend = "torch",
        device: Any = None,
        seed: int = 0,
        steps: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        anchors: Anchors = "transitions",
        memory: str | int | None = None,
        prefetch: int | None = None,
        views: bool = False,
    ) -> None:
        self.dataset = build.opened(dataset)
        self.window, self.sampler, self.anchors = window, sampler, anchors
        self.batch_size = whole("batch_size", batch_size, 1, BatchSize)
        self.seed = whole("seed", seed, 0)
        self.steps = None if steps is None else whole("steps", steps, 1)
        self.ranks = Ranks.of(rank, world_size)
        self._size = self.ranks.share(self.batch_size)
        if self.seed >= 1 << 64:
            raise InvalidArgument(f"seed={seed}: seeds are below 2**64.")
        build.check_kinds(self.window, self.sampler, self.anchors)
        made, transforms = frameworks.make(backend, dtype, device), build.transforms_of(transform)
        resident = memory == "device"
        request = build.Request(window, sampler, anchors, fields, extra, None if resident else memory, views, resident)
        plan = planning.Plan(request, self.ranks, self.batch_size, self.seed)
        self._draw: planning.Draw | None = None
        self.source: DatasetSource | MixtureSource
        if isinstance(self.dataset, Mixture):
            self.source = plan.of_mixture(self.dataset, transforms, frameworks.make(backend, dtype, None))
        else:
            self._draw, self.source = plan.of_dataset(self.dataset, transforms, made)
        for text in self.source.warnings:
            warnings.warn(text, UserWarning, stacklevel=2)
        self.reader = Reader(self.source, self.ranks, transforms, made)
        self.prefetch = planning.read_ahead(prefetch, self.reader.depth(self._size), sampler, self._draw)
        self.schedule = planning.schedule(self.source, sampler, self.batch_size, self.steps)
        self._spot, self._sought, self.order_version = Spot(0, 0), False, VERSION
        self._given_out: WeakSet[TorchBatches] = WeakSet()
        self._arguments = {
            "fields": fields,
            "extra": extra,
            "transform": transform,
            "dtype": dtype,
            "backend": backend,
            "device": device,
            "memory": memory,
            "prefetch": prefetch,
            "views": views,
        }

    # -- iteration

    @property
    def step(self) -> int:
        """Batches handed out so far; the next one has this number."""
        return self.schedule.step(self._spot)

    def __iter__(self) -> Iterator[Batch]:
        """Go through one pass: see rule 1."""
        self.ranks.check()
        register(Batch)
        most = self.reader.batches_at_once(self._size)
        return self._batches(runs(self.schedule, self._start(), self._order, most), self.prefetch)

    @property
    def _order(self) -> Order:
        return Order(self.seed, version=self.order_version)

    def _start(self) -> Spot:
        """Where the next pass starts."""
        return self.schedule.settle(self._spot if self._sought else self.schedule.fresh(self._spot))

    def share(self, start: Spot, worker: int, workers: int) -> Iterator[Batch]:
        """Batches worker, worker + workers, ... of the pass that begins at ``start``."""
        self.ranks.check()
        # A mixture works out whose turn it is for batches that follow each other.
        most = 1 if isinstance(self.source, MixtureSource) else self.reader.batches_at_once(self._size)
        mine = runs(self.schedule, start, self._order, most, worker=worker, workers=workers)
        return self._batches(mine, self._arguments["prefetch"] or 0)

    def _batches(self, pieces: Iterator[Run], prefetch: int) -> Iterator[Batch]:
        on_stream = self.reader.arrays.on_stream()

        def read(located: tuple[Run, Any, Told]) -> Iterator[Batch]:
            with on_stream():
                return self.reader.read(*located)

        located = self.reader.located(pieces, early=not isinstance(self._draw, PrioritizedDraw))
        for (run, *_), batches in ahead(read, located, prefetch):
            sample = run.first + run.size
            for batch in batches:
                self._spot, self._sought = Spot(run.order.epoch, sample), False
                sample += run.every * run.size
                yield batch

    def __len__(self) -> int:
        """Batches of one ``iter()``: ``steps``, or those of an epoch.

        Raises
        ------
        TypeError
            The sampler draws with replacement and there is no ``steps``.
        """
        length = self.schedule.per_pass
        if length is None:
            mixed = isinstance(self.dataset, Mixture)
            why = "a mixture goes on for ever" if mixed else f"{type(self.sampler).__name__} draws with replacement"
            raise TypeError(f"len() of an endless loader ({why}).\n  hint: Loader(..., steps=100_000)")
        return length

    def seek(self, step: int) -> None:
        """Go to batch number ``step``; the next ``iter()`` starts there."""
        self._go(self.schedule.at(whole("step", step, 0), self._spot.epoch))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; the next ``iter()`` starts there.

        `Shuffled` and `Sequential` move on to the next epoch by themselves, and with ``steps`` it is their passes that
        count: ``set_epoch(e)`` goes to batch ``e * steps``. An endless sampler draws other samples in another epoch.
        """
        number = whole("epoch", epoch, 0)
        by_steps = self.steps is not None and self.schedule.total is not None
        self._go(self.schedule.at(number * (self.steps or 0), 0) if by_steps else Spot(number, 0))

    def _go(self, spot: Spot) -> None:
        self._move(spot)
        if isinstance(self._draw, PrioritizedDraw):
            self._draw.forget()

    def _move(self, spot: Spot) -> None:
        self._spot, self._sought = self.schedule.settle(spot), True
        for batches in self._given_out:
            batches.move(self._spot, self.order_version)

    def update_priorities(self, batch: Batch, priority: Any, *, beta: float | None = None) -> None:
        """Say how much there is to learn from the samples of a batch, with `Prioritized`.

        Parameters
        ----------
        batch : Batch or TensorDict
            As the loader gave it, or its ``tensordict()``: its ``window`` says where the priorities go. Where a window
            stands in it twice, the last one counts.
        priority : array or tensor [B] or [B, 1]
            Finite and not negative: absolute temporal-difference errors, of a slice their mean or the largest one.
        beta : float, optional
            Of importance weights from the next draw on.

        Raises
        ------
        InvalidArgument
            The sampler has no priorities, or these are none; nothing is changed then.
        """
        if not isinstance(self._draw, PrioritizedDraw):
            raise InvalidArgument(f"update_priorities: {self.sampler} has no priorities.", hint="sampler=Prioritized()")
        self._draw.update(batch, priority, beta)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: plain numbers and text, the same on every rank; with `Prioritized`, tensors as well.

        ``torch.save`` writes it, and ``torch.load(..., weights_only=True)`` reads it. Batch size, ranks, fields,
        transforms and dtypes are not part of it: they may differ when it is loaded.
        """
        spot = self.schedule.settle(self._spot)
        return save(self, spot) | self._held(spot)

    def _held(self, spot: Spot) -> dict[str, Any]:
        """What the samples after ``spot`` depend on, beside the order."""
        if isinstance(self.source, MixtureSource):
            return self.source.state(spot)
        return self._draw.state(*spot) if isinstance(self._draw, PrioritizedDraw) else {}

    def _hold(self, held: Mapping[str, Any], spot: Spot) -> None:
        if isinstance(self.source, MixtureSource):
            self.source.load(held, spot)
        if isinstance(self._draw, PrioritizedDraw):
            self._draw.load(held, replace(self._order, epoch=spot.epoch))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where `state_dict` was; the next ``iter()`` starts there.

        A state that an earlier release saved, with shuffles of its own, is gone on with in that order, this epoch and
        all later ones; `describe` says so.

        Raises
        ------
        WrongState
            It is of other data, another sampler, window or seed, or of a later version of the order.
        """
        spot = load(self, state_dict)
        self._hold(state_dict, spot)
        self.order_version = int(state_dict["order"])
        self._move(spot)

    def __reduce__(self) -> tuple[object, ...]:
        """Only what it was made of and where it is: maps are opened anew where it is unpickled."""
        made_of = self._arguments | {
            "window": self.window,
            "sampler": self.sampler,
            "seed": self.seed,
            "steps": self.steps,
            "rank": self.ranks.rank,
            "world_size": self.ranks.world,
            "anchors": self.anchors,
        }
        where = self._spot, self._sought, self.order_version
        return _again, (self.dataset, self.batch_size, made_of, where, self._held(self._spot))

    # -- workers

    def as_torch(self) -> TorchBatches:
        """Return an ``IterableDataset`` of ready batches, see `TorchBatches`: ``DataLoader(it, batch_size=None)``.

        Raises
        ------
        InvalidArgument
            ``backend="jax"``.
        """
        from rlds_cli.loader.arrays.torch_loader import TorchBatches

        batches = TorchBatches(self, self._start())
        self._given_out.add(batches)
        return batches

    # -- what it is

    @property
    def fields(self) -> tuple[str, ...]:
        """Full names of the fields of a batch, in order."""
        return self.source.names

    def consumed(self) -> dict[str, int]:
        """Samples handed out so far, all ranks together: of every member of a mixture, or of the one dataset.

        Batches in flight do not count; after `load_state_dict` or `seek` it is what a run up to there has had. Endless
        samplers, and mixtures, count from the start of the epoch that `set_epoch` began.
        """
        if isinstance(self.source, MixtureSource):
            return self.source.consumed(self._spot)
        return {self.source.draw.pool.dataset.id: self._spot.epoch * (self.schedule.total or 0) + self._spot.sample}

    def describe(self) -> str:
        """Say what is sampled, what is left out and why, and where each field is read from."""
        return describe(self)

    if not TYPE_CHECKING:  # type checkers find wrong names by themselves

        def __getattr__(self, name: str) -> NoReturn:
            missing(self, name, LOADER)

    def __repr__(self) -> str:
        steps = "" if self.steps is None else f", steps={self.steps}"
        dataset = self.dataset if isinstance(self.dataset, Mixture) else self.dataset.id
        return (
            f"Loader({dataset!r}, {self.batch_size}, window={self.window}, sampler={self.sampler}{steps},"
            f" seed={self.seed}; {self.ranks})"
        )


def _again(
    dataset: Dataset | Mixture,
    batch_size: int,
    made_of: Mapping[str, Any],
    where: tuple[Spot, bool, int],
    held: Mapping[str, Any],
) -> Loader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given when it was made
        loader = Loader(dataset, batch_size, **made_of)
    loader._hold(held, where[0])
    loader._spot, loader._sought, loader.order_version = where
    return loader


_MIXED = ("members", "weights")  # only mixtures have these


def save(loader: Loader, spot: Spot) -> dict[str, Any]:
    """Where ``loader`` is, and what that place is a place in."""
    return {**_kind(loader), "epoch": spot.epoch, "samples": spot.sample}


def _kind(loader: Loader) -> dict[str, Any]:
    dataset = loader.dataset
    mixed = {"members": dataset.about, "weights": dataset.rule} if isinstance(dataset, Mixture) else {}
    return {
        "order": loader.order_version,
        "dataset": loader.dataset.id,
        "fingerprint": loader.dataset.fingerprint,
        "sampler": repr(loader.sampler),
        "window": repr(loader.window),
        "anchors": loader.anchors,
        "seed": loader.seed,
        **mixed,
    }


def load(loader: Loader, state: Mapping[str, Any]) -> Spot:
    """Read the place out of ``state``; its order may be an older one than that of ``loader``.

    Raises
    ------
    WrongState
        It is not a place in the order of ``loader``.
    """
    mine = _kind(loader)
    if not isinstance(state, Mapping):
        raise WrongState(f"this is not the state of a loader, but of type {type(state).__name__}.")
    missing = [key for key in (*mine, "epoch", "samples") if key not in state and key not in _MIXED]
    if missing:
        raise WrongState(f"this is not the state of a loader: no {', '.join(missing)}.")
    keys = dict.fromkeys([*mine, *(key for key in _MIXED if key in state)])
    wrong = [key for key in keys if key not in ("order", "dataset") and state.get(key) != mine.get(key)]
    if state["order"] not in order.VERSIONS:
        wrong.insert(0, "order")
    if wrong:
        raise WrongState(
            f"this state is of {_summary(state)}; this loader is on {_summary(mine)}."
            f" They differ in {', '.join(wrong)}.",
            hint=_hint(wrong, state, mine),
        )
    return Spot(*(_count(name, state[name]) for name in ("epoch", "samples")))


def _count(name: str, value: Any) -> int:
    try:
        return whole(name, value, 0, WrongState)
    except WrongState as e:
        raise WrongState(f"this is not the state of a loader: {e.message}") from None


def _summary(kind: Mapping[str, Any]) -> str:
    return (
        f"{kind['dataset']} ({short(str(kind['fingerprint']))}) with {kind['sampler']}, {kind['window']},"
        f" anchors={kind['anchors']!r}, seed {kind['seed']}"
    )


def _hint(wrong: list[str], state: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    if "order" in wrong:
        known = " and ".join(map(str, order.VERSIONS))
        return f"it was saved by a release of rlds with order {state['order']}; this one knows {known}"
    if all("members" in kind for kind in (state, mine)) and wrong[0] in ("fingerprint", *_MIXED):
        theirs = {**state["members"], "weights": state.get("weights")}
        ours = {**mine["members"], "weights": mine["weights"]}
        return f"it was saved with {', '.join(f'{k}: {v}' for k, v in theirs.items() if ours.get(k) != v)}"
    if "fingerprint" in wrong:
        return "the same dataset, and the same selection of it"
    return "Loader(..., " + ", ".join(f"{key}={_argument(key, state[key])}" for key in wrong) + ")"


def _argument(key: str, value: Any) -> str:
    """As it is typed; windows and samplers are kept as that."""
    return repr(value) if key == "anchors" else str(value)


def describe(loader: Loader) -> str:
    """Lines for people: samples, what is left out, order, reading, fields."""
    source = loader.source
    lines = _mixture(loader, source) if isinstance(source, MixtureSource) else _dataset(loader, source)
    return "\n".join(lines)


def _dataset(loader: Loader, source: DatasetSource) -> list[str]:
    dataset, total = source.draw.pool.dataset, source.draw.pool.guide.total
    epoch = "" if loader.sampler.endless else f", {_counted(total, 'sample')} an epoch"
    length = _counted(loader.steps, "batch") if loader.steps else "endless" if loader.sampler.endless else "an epoch"
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
    lines = [f"mixture of {_counted(len(source.members), 'dataset')}: {source.mixture.rule}"]
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
    length = _counted(loader.steps, "batch") if loader.steps else "endless"
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
    early = f", {_counted(loader.prefetch, 'gather')} read ahead" if loader.prefetch else ""
    together = f"{_counted(size, 'batch')} at a gather{early}"
    return f"batches   {_counted(loader.batch_size, 'sample')}, {loader.ranks}; {together}"


def _extent(pool: Pool) -> str:
    everything = Table.of(pool.dataset)
    return f"{_counted(int(everything.steps.sum()), 'step')}, {_counted(len(everything), 'episode')}"


def _drawn(pool: Pool) -> str:
    held_out = pool.dataset.held_out
    train = f', {held_out:,} of them not of the split train (ds.select(split="train"))' if held_out else ""
    return f"{_counted(pool.guide.total, 'window')} in {_counted(len(pool.table), 'episode')}{train}"


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
        reasons.append(f'{_counted(unknown, "step")} whose next observation is not known (anchors="steps" draws them)')
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


def _source(loader: Loader, source: DatasetSource, name: str) -> str:
    column: Column = source.columns[name]
    packed = source.packed
    mapped = "memory map" if source.draw.pool.dataset.encoding == "memmap" else "decoded in memory"
    mapped = "packed rows" if packed is not None and name in packed else mapped
    mapped = "on the device" if name in source.held else mapped
    match column:
        case Stored():
            return f"{mapped}{_after(column)}, {_kind_of_column(loader, column.column.values)}"
        case Decoded():
            return f"decoded at each gather{_after(column)}"
        case Stacked():
            return f"{len(column.offsets)} rows of it at each step"
        case RewardSum():
            return f"{mapped}, summed up, {_kind_of_column(loader, column.column.values)}"
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


def _kind_of_column(loader: Loader, values: np.ndarray) -> str:
    wanted = loader.reader.arrays.dtype
    cast = f" to {wanted}" if wanted and values.dtype.kind == "f" and values.dtype != wanted else ""
    return f"{values.dtype}{list(values.shape[1:])}{cast}"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"
