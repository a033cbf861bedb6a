"""`Loader`: the class that training code imports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, NoReturn, overload
from weakref import WeakSet

import rlds_cli  # its names are loaded when they are used, so a method may call what shows a loader
from rlds_cli.base import counterparts
from rlds_cli.base.array_types import Array, ArrayT
from rlds_cli.base.integers import integer
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Batch, Dataset, register
from rlds_cli.errors import BatchSize, EndlessLoop, InvalidArgument
from rlds_cli.loader import build, endless, opening, state
from rlds_cli.loader.arguments import Arguments, Scalars
from rlds_cli.loader.arrays import frameworks
from rlds_cli.loader.arrays.frameworks import Backend
from rlds_cli.loader.build import Transform
from rlds_cli.loader.describe import describe
from rlds_cli.loader.fields.fields import Chosen
from rlds_cli.loader.live import KEY as VERSIONS
from rlds_cli.loader.live import LiveVersions
from rlds_cli.loader.mixture.live import growing as grown
from rlds_cli.loader.mixture.mixture import Mixture, content_of
from rlds_cli.loader.mixture.sources import MixtureSource
from rlds_cli.loader.order import Order
from rlds_cli.loader.peers import Peers
from rlds_cli.loader.read import BatchReader, BatchSource, DatasetSource, LocatedRun, located
from rlds_cli.loader.samplers import Sampler, StatefulDraw
from rlds_cli.loader.samplers.reports import Reduce, Report, exchange
from rlds_cli.loader.samplers.uniform import Uniform, WarmUp
from rlds_cli.loader.schedule import Position, Ranks, SampleRun, runs
from rlds_cli.loader.stats import LoaderStats, Meter
from rlds_cli.loader.storage.page_cache import prefetched
from rlds_cli.loader.waiting import Live
from rlds_cli.loader.windows.windows import Transition, Window

if TYPE_CHECKING:
    from types import FrameType
    from typing import Unpack

    import jax
    import torch

    from rlds_cli.loader.arrays.torch_loader import TorchBatches

Data = StrPath | Dataset | Mixture


class Loader(Generic[ArrayT]):
    """Batches of a dataset, in an order that depends only on the seed.

    1. **Iteration.** Samplers with replacement never end. `Shuffled` and `Sequential` end after one epoch, and the next
       ``iter()`` starts the next epoch, even if the last one was interrupted. ``steps=N`` ends after N batches in
       either case. After `seek` or `load_state_dict`, the next ``iter()`` starts there, once.
    2. **Order.** Sample number i of epoch e is a function of (seed, e, i) alone. Global batch n is samples
       [n * B, (n + 1) * B); rank r of W takes samples r, r + W, ... of it. Ranks, workers, memory, fields and dtypes
       change nothing. All ranks have the same number of batches, none of them empty: if the last batch of an epoch has
       n < W samples, rank r takes sample r mod n (``drop_last=True`` leaves that batch out). The state is the number of
       samples consumed. In a `Mixture` every member has its own order, and every rank the shares of all members.
    3. **Batch size** is that of the global batch. Rank and world size come from the arguments, else from
       ``torch.distributed`` when it is initialised, else 0 of 1; ``repr`` says which.
    4. **Memory.** Fields are contiguous, writable, and in memory of their own; batches that are copied to a device
       together are parts of one allocation there. Rows come from the store's maps or from one packed
       file, shared by all processes of the machine; ``memory`` caps private copies only.

    Parameters
    ----------
    dataset : str, path, Dataset or Mixture
        An id, a directory, a dataset or selection, or a mixture of several.
    batch_size : int
        B: samples of all ranks together.
    window : Transition, Slice, Offsets or Episode
        The shape of a sample: fields are [B, ...], or [B, L, ...].
    sampler : Uniform, Shuffled, Sequential, Weighted or Prioritized
        The choice of samples.
    fields : sequence of str, ``...``, `ReturnToGo` or `Goals`, optional
        Fields of a batch, in order. ``...`` stands for the usual ones, which are the default: observation, action,
        ``next/{observation, reward, done, terminated, truncated}`` and the fields that preprocess functions added or
        changed (not in a mixture). A name stands for everything nested below it, ``"all"`` for every field of the
        dataset. Other names: ``step``, ``episode`` and ``index`` (numbers of ``ds.episode(k)`` and ``ds[i]``),
        ``next/action``, ``previous/action``, ``previous/reward``, ``source``. Objects compute fields:
        ``fields=[..., "step", Goals("goal")]``.
    transform : transform, function of a batch, or a sequence of them
        Applied in order. A function changes its batch in place, or returns one.
    dtype : str or None
        Of floats: ``float16``, ``bfloat16``, ``float32``, ``float64``; None for the archive's. Others keep theirs.
    backend : {"torch", "numpy", "jax"}
    device : torch.device, jax.Device or str, optional
        The device that tensors go to, in one copy for each gather.
    scalars : {"B1", "B"}
        The shape of rewards, flags and other scalars that are floats: [B, 1], or with ``"B"`` [B], and [B, L] in
        windows. The product of [B] and [B, 1] is [B, B]: ``"B"`` is for what models give as [B], such as log
        probabilities, ``"B1"`` for what they give as [B, 1], such as values.
    seed : int
        In [0, 2**64).
    steps : int, optional
        Batches per ``iter()``.
    rank, world_size : int, optional
        See rule 3.
    memory : str, int or None
        The limit for a compressed dataset when it is decoded: ``"8GiB"``, bytes, or None for a quarter of the memory of
        the cgroup or the machine. ``"device"`` copies all array columns to ``device`` once, and gathers batches there.
    live : bool, `Live`, or the log of another run
        Take up new versions of a growing dataset, here or at an address, between batches: sample number i is a function
        of (seed, epoch, i) and of the version that it is drawn from. ``Live(wait=60, min_steps=1000)`` waits for the
        first data; with True, nothing to draw is an error at once. The log of versions is part of `state_dict`; a
        state, or its ``"versions"``, instead of True draws from these versions again, sample for sample.
    warm_up : {"first_part"}, optional
        Of `Uniform`, see there: draw the first samples from a first part of a remote dataset, while the rest arrives.
    prefetch : int, optional
        Gathers that threads read ahead. None for 0 with small rows, 2 with large rows or another device, and one for
        each core (at most eight) where encoded frames are decoded.

    Raises
    ------
    EmptyWindow
        The window fits none of the episodes; or, with `Live`, time is up.
    BatchSize
        Not positive, not a multiple of the world size, or larger than an epoch whose last batch is dropped.
    UnknownField, NoReward
        The dataset does not have a field.
    NeedsMemory
        The dataset is compressed and does not fit ``memory`` when decoded, or does not fit the device.
    InvalidArgument
        Another value is not possible.

    Examples
    --------
    >>> loader = Loader("d4rl/hopper-medium-v2", 256, seed=0, steps=1_000_000)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     s, a, r, s2, terminated = batch.sarsd()
    """

    @overload
    def __init__(
        self: Loader[torch.Tensor],
        dataset: Data,
        batch_size: int = 256,
        *,
        backend: Literal["torch"] = "torch",
        **arguments: Unpack[Arguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Array],
        dataset: Data,
        batch_size: int = 256,
        *,
        backend: Literal["numpy"],
        **arguments: Unpack[Arguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[jax.Array],
        dataset: Data,
        batch_size: int = 256,
        *,
        backend: Literal["jax"],
        **arguments: Unpack[Arguments],
    ) -> None: ...

    @overload
    def __init__(
        self, dataset: Data, batch_size: int = 256, *, backend: Backend, **arguments: Unpack[Arguments]
    ) -> None: ...

    def __init__(
        self,
        dataset: Data,
        batch_size: int = 256,
        *,
        window: Window = Transition(),  # noqa: B008  (frozen)
        sampler: Sampler = Uniform(),  # noqa: B008  (frozen)
        fields: Chosen | None = None,
        transform: Transform | Sequence[Transform] = (),
        dtype: str | None = "float32",
        backend: Backend = "torch",
        device: Any = None,
        scalars: Scalars = "B1",
        seed: int = 0,
        steps: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory: str | int | None = None,
        live: opening.LiveArgument = False,
        warm_up: WarmUp | None = None,
        prefetch: int | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            known = ("batch_size", *(Loader.__init__.__kwdefaults__ or ()))
            counterparts.unexpected("Loader", unknown, known, counterparts.LOADER_ARGUMENTS)
        data = build.opened(dataset)
        sampler = build.warmed(sampler, warm_up)
        self.window, self.sampler = window, sampler
        self.batch_size = integer("batch_size", batch_size, 1, BatchSize)
        self.seed = integer("seed", seed, 0)
        self.steps = None if steps is None else integer("steps", steps, 1)
        self.ranks = Ranks.of(rank, world_size)
        self._size = self.ranks.share(self.batch_size)
        if self.seed >= 1 << 64:
            raise InvalidArgument(f"seed={seed}: seeds are below 2**64.")
        build.check_kinds(self.window, self.sampler)
        if scalars not in ("B", "B1"):
            raise InvalidArgument(f'scalars={scalars!r}: "B1" gives them as [B, 1], "B" as [B].')
        made, transforms = frameworks.make(backend, dtype, device), build.transforms_of(transform)
        resident = memory == "device"
        wanted = opening.Wanted(
            request=build.Request(
                window=window,
                sampler=sampler,
                fields=fields,
                memory=None if resident else memory,
                resident=resident,
                live=live is not False,
            ),
            transforms=transforms,
            arrays=made,
            arrays_of_members=frameworks.make(backend, dtype, None),
            batch_size=self.batch_size,
            seed=self.seed,
        )
        opened = opening.opened(data, wanted, live, self.ranks)
        source = opened.source
        for text in source.warnings:
            warnings.warn(text, UserWarning, stacklevel=2)
        self._reader = BatchReader(source, self.ranks, transforms, made, flat=scalars == "B")
        self._live: LiveVersions | None = None
        self._peers = None if self._stateful is None else Peers(self.ranks, "Prioritized")
        self.prefetch = self._gathers_ahead(prefetch)
        if opened.live is not None:
            self._live = LiveVersions(
                opened.live, self._reader, ahead=self.prefetch, replayed=opened.log, agreement=opened.agreement
            )
        windows = None if sampler.endless or isinstance(source, MixtureSource) else source.locator.pool.prefix.total
        self.schedule = build.schedule(windows, sampler, self.batch_size, self.steps)
        self._position, self._sought = Position(0, 0), False
        self._meter, self._looked_at_loop = Meter(self._datasets), False
        self._given_out: WeakSet[TorchBatches] = WeakSet()
        self._arguments = {
            "fields": fields,
            "transform": transform,
            "dtype": dtype,
            "backend": backend,
            "device": device,
            "scalars": scalars,
            "memory": memory,
            "live": live,
            "prefetch": prefetch,
        }

    # -- data

    @property
    def reader(self) -> BatchReader:
        """The reader of batches: of a live loader, that of the version taken up last."""
        return self._reader if self._live is None else self._live.reader

    @property
    def source(self) -> DatasetSource | MixtureSource:
        """The columns that batches are read from."""
        source = self.reader.source
        assert isinstance(source, DatasetSource | MixtureSource)
        return source

    @property
    def dataset(self) -> Dataset | Mixture:
        """The dataset, or the mixture; of a live loader, the dataset at the version taken up last."""
        source = self.source
        return source.mixture if isinstance(source, MixtureSource) else source.locator.pool.dataset

    @property
    def _datasets(self) -> list[Dataset]:
        dataset = self.dataset
        members = [m.dataset for m in dataset.parts.values()] if isinstance(dataset, Mixture) else [dataset]
        return [d for d in members if isinstance(d, Dataset)]

    @property
    def _stateful(self) -> StatefulDraw | MixtureSource | None:
        """The draw, or the members of a mixture, if it learns from training."""
        source = self.source
        if isinstance(source, MixtureSource):
            return source if source.learners else None
        return source.locator.draw if isinstance(source.locator.draw, StatefulDraw) else None

    @property
    def version(self) -> int | dict[str, int]:
        """Number of the version that the last batch was drawn from.

        Of a mixture, a dict with the numbers of the members that grow.
        """
        dataset = self.dataset
        last = None if self._live is None else self._live.last(self._position)
        if isinstance(dataset, Mixture):
            there = grown(dataset)
            return there if last is None else dict(zip(there, last, strict=True))
        return dataset.version if last is None else last[0]

    def _gathers_ahead(self, prefetch: int | None) -> int:
        usual = self.reader.depth(self._size)
        given = None if prefetch is None else integer("prefetch", prefetch, 0)
        if self._stateful is not None:
            return self._stateful.reserve(given, usual)
        return usual if given is None else given

    # -- iteration

    @property
    def step(self) -> int:
        """Number of batches given so far, and of the next batch."""
        return self.schedule.step(self._position)

    def __iter__(self) -> Iterator[Batch[ArrayT]]:
        """Go through one pass, see rule 1."""
        self.ranks.check()
        register(Batch)
        start = self._start()
        at_once = self.reader.batches_at_once(self._size)
        if self._live is not None:
            self._live.begin(start, self.batch_size, self._size)
        most = (lambda _: at_once) if self._live is None else self._live.most
        pieces = runs(self.schedule, start, self._order, most)
        return self._batches(pieces, self.prefetch, self._samples_watched(start))

    @property
    def _order(self) -> Order:
        return Order(self.seed)

    def _start(self) -> Position:
        """Return the position at which the next pass starts."""
        return self.schedule.settle(self._position if self._sought else self.schedule.fresh(self._position))

    def _samples_watched(self, start: Position) -> int:
        """Return the number of the sample at which a loop from ``start`` is looked at, which may have no end."""
        if self.schedule.per_pass is not None or self._looked_at_loop:
            return sys.maxsize
        source = self.source
        pools = [m.pool for m in source.members] if isinstance(source, MixtureSource) else [source.locator.pool]
        return start.sample + endless.PASSES * sum(pool.prefix.total for pool in pools)

    def _look_at_loop(self, frame: FrameType | None, samples: int) -> None:
        """Warn once, where nothing ends the loop that asks for batches."""
        self._looked_at_loop = True
        if endless.never_ends(frame):
            mixed = isinstance(self.dataset, Mixture)
            epochs = "" if mixed else "sampler=Shuffled() ends a loop after each epoch, "
            warnings.warn(
                f"this `for` loop never ends: {samples:,} samples so far, {endless.PASSES} times the dataset, and"
                f" {'a mixture' if mixed else self.sampler} has no last batch.\n"
                f"  hint: {epochs}steps=100_000 after so many batches",
                EndlessLoop,
                stacklevel=3,
            )

    def share(self, start: Position, worker: int, workers: int) -> Iterator[Batch]:
        """Go through batches worker, worker + workers, ... of the pass that begins at ``start``, in a worker process.

        Raises
        ------
        InvalidArgument
            The sampler learns from training, which continues in another process, or batches go to a device.
        """
        if self._stateful is not None:
            raise InvalidArgument(
                f"{self.sampler} in a DataLoader worker: it would not learn of priorities.", hint="num_workers=0"
            )
        if self._live is not None:
            raise InvalidArgument(
                "A live loader in a DataLoader worker: each worker would take up versions at a time of its own.",
                hint="num_workers=0, or prefetch= threads",
            )
        if self.reader.arrays.ships:
            raise InvalidArgument(
                "A loader with a device in a DataLoader worker: batches come from another process.",
                hint="num_workers=0; or no device=, and batch.to(device) in the loop",
            )
        self.ranks.check()
        # A mixture computes its members' turns for consecutive batches only.
        most = 1 if isinstance(self.source, MixtureSource) else self.reader.batches_at_once(self._size)
        mine = runs(self.schedule, start, self._order, lambda _: most, worker=worker, workers=workers)
        return self._batches(mine, self._arguments["prefetch"] or 0, self._samples_watched(start))

    def _batches(self, pieces: Iterator[SampleRun], prefetch: int, watched: int) -> Iterator[Batch]:
        on_stream, meter = self.reader.arrays.on_stream(), self._meter
        filled: BatchSource | None = None
        for reads in self.source.remote:
            reads.look()  # of which all blocks are cached by now is not announced any more
        meter.begin()

        def read(piece: LocatedRun) -> Iterator[Batch]:
            with on_stream():
                return piece.reader.read(piece.run, piece.located, piece.told, early=prefetch > 0)

        early = self._stateful is None and self._live is None  # no more than `prefetch` runs are older than the data
        read_by: Iterable[tuple[BatchReader, SampleRun]] = zip(repeat(self._reader), pieces)
        if (live := self._live) is not None:
            read_by = ((live.reader_of(run), run) for run in pieces)
        for piece, batches in prefetched(read, located(read_by, early=early), prefetch):
            run, is_first = piece.run, True
            epoch, size, step, sample = run.order.epoch, run.size, run.every * run.size, run.first + run.size
            for batch in batches:
                self._position, self._sought = Position(epoch, sample), False
                sample += step
                meter.note(size)
                if sample > watched:
                    watched = sys.maxsize
                    self._look_at_loop(sys._getframe(1), sample - size)
                yield batch
                if is_first and piece.reader.source is not filled:  # a live loader's is another one with each version
                    filled = piece.reader.source
                    filled.fill()
                is_first = False

    def __len__(self) -> int:
        """Return the number of batches of one ``iter()``: ``steps``, or those of an epoch.

        Raises
        ------
        TypeError
            The sampler draws with replacement and there is no ``steps``.
        """
        length = self.schedule.per_pass
        if length is None:
            mixed = isinstance(self.dataset, Mixture)
            why = "a mixture continues for ever" if mixed else f"{type(self.sampler).__name__} draws with replacement"
            raise TypeError(f"len() of an endless loader ({why}).\n  hint: Loader(..., steps=100_000)")
        return length

    def seek(self, step: int) -> None:
        """Go to batch number ``step``; the next ``iter()`` starts there."""
        self._go(self.schedule.at(integer("step", step, 0), self._position.epoch))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; the next ``iter()`` starts there.

        `Shuffled` and `Sequential` move on to the next epoch by themselves. With ``steps``, an epoch here is one of
        their passes: ``set_epoch(e)`` goes to batch ``e * steps``. Endless samplers draw other samples in each epoch.
        """
        number = integer("epoch", epoch, 0)
        by_steps = self.steps is not None and self.schedule.total is not None
        self._go(self.schedule.at(number * (self.steps or 0), 0) if by_steps else Position(number, 0))

    def _go(self, position: Position) -> None:
        replays = not isinstance(self._arguments["live"], bool | Live)
        if replays and isinstance(self.source, MixtureSource) and position > self._position:
            raise InvalidArgument(
                f"A mixture that replays a log continues from sample {self._position.sample:,} batch by batch: how many"
                " samples each member gave depends on the versions on the way.",
                hint="load_state_dict(state) goes to the position of a state",
            )
        self._move(position)
        if self._stateful is not None:
            self._stateful.forget()

    def _move(self, position: Position) -> None:
        self._position, self._sought = self.schedule.settle(position), True
        for batches in self._given_out:
            batches.move(self._position)

    def update_priorities(
        self, batch: Batch, priority: Any, *, beta: float | None = None, reduce: Reduce | None = None
    ) -> None:
        """Set the priorities of the samples of a batch, with `Prioritized`.

        Samples of members of a mixture that have no priorities are left alone. On several ranks, every rank calls this
        with its own part of the batch and the same ``beta``; ranks exchange their priorities by ``torch.distributed``,
        and all of them count, those of rank 0 first.

        Parameters
        ----------
        batch : Batch or TensorDict
            As the loader gave it, or its ``tensordict()``: its ``window`` names the windows. Where a window occurs
            twice, its last priority counts.
        priority : array or tensor [B] or [B, 1]
            Finite and not negative, such as absolute temporal-difference errors.
        beta : float, optional
            Exponent of importance weights from the next draw on.
        reduce : {"max", "mean"}, optional
            What to make of priorities per step, [B, L] or [B, L, 1]. Steps that ``batch["mask"]`` excludes do not
            count.

        Raises
        ------
        InvalidArgument
            The sampler has no priorities, or these are invalid, on this rank or another; nothing is changed.
        """
        learns = self._stateful
        if learns is None or self._peers is None:
            raise InvalidArgument(f"update_priorities: {self.sampler} has no priorities.", hint="sampler=Prioritized()")
        mixed = isinstance(learns, MixtureSource)
        stays = isinstance(learns, StatefulDraw) and learns.on_device and self._peers.ranks.world == 1
        report = exchange(self._peers, lambda: Report.of(batch, priority, mixed=mixed, reduce=reduce, stays=stays))
        learns.observe(report, beta)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position: numbers and text, the same on every rank; with `Prioritized`, tensors as well.

        ``torch.save`` writes it, and ``torch.load(..., weights_only=True)`` reads it. Batch size, ranks, fields,
        transforms and dtypes are not part of it and may differ when it is loaded.
        """
        position = self.schedule.settle(self._position)
        held = self._held(position)
        return state.save(self._identity(held), position) | held

    def _identity(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return what decides the order of samples; of a live loader at the last version of the log in ``held``."""
        mine = state.identity(
            self.dataset,
            sampler=self.sampler,
            window=self.window,
            seed=self.seed,
            content=self._content_in(held),
        )
        follows = self._live is not None and "weights" in mine
        return mine | {"weights": f"{mine['weights']}, live"} if follows else mine

    @cached_property
    def _content(self) -> str:
        ds = self.dataset
        return ds.content(self.sampler) if isinstance(ds, Mixture) else content_of(ds, self.sampler)

    def _content_in(self, held: Mapping[str, Any]) -> str:
        """Return the content as a state names it that holds ``held``: one of a live loader by the version."""
        if self._live is not None:
            return self._live.version_id(held)
        if VERSIONS in held and not isinstance(self.dataset, Mixture):
            return self.dataset.store.version_id
        return self._content

    def _held(self, position: Position) -> dict[str, Any]:
        """Return all that the samples after ``position`` depend on, besides the order."""
        if isinstance(self.source, MixtureSource):
            held = self.source.state(position)
        else:
            held = self._stateful.state(*position) if isinstance(self._stateful, StatefulDraw) else {}
        return held if self._live is None else held | self._live.state(position)

    def _hold(self, held: Mapping[str, Any], position: Position) -> None:
        if isinstance(self.source, MixtureSource):
            self.source.load(held, position)
        elif isinstance(self._stateful, StatefulDraw):
            self._stateful.load(held, replace(self._order, epoch=position.epoch))
        if self._live is not None:
            self._live.load(held, position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position of a `state_dict`; the next ``iter()`` starts there.

        Raises
        ------
        WrongState
            The state is of other data, of another sampler, window or seed, or of another version of the order.
        """
        state.check_type(state_dict)
        position = state.load(self._identity(state_dict), state_dict)
        self._hold(state_dict, position)
        self._move(position)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle arguments and position only: maps are opened again where the loader is unpickled."""
        made_of = self._arguments | {
            "window": self.window,
            "sampler": self.sampler,
            "seed": self.seed,
            "steps": self.steps,
            "rank": self.ranks.rank,
            "world_size": self.ranks.world,
        }
        where = self._position, self._sought
        return _again, (self.dataset, self.batch_size, made_of, where, self._held(self._position))

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

    # -- description

    @property
    def fields(self) -> tuple[str, ...]:
        """Full names of the fields of a batch, in order."""
        return self.source.names

    def consumed(self) -> dict[str, int]:
        """Return the samples given so far, all ranks together: of every member of a mixture, or of the one dataset.

        Batches read ahead do not count. After `load_state_dict` or `seek`, the number is that of a run up to there.
        Endless samplers and mixtures count from the start of the epoch that `set_epoch` began.
        """
        if isinstance(self.source, MixtureSource):
            return self.source.consumed(self._position)
        return {
            self.source.locator.pool.dataset.id: self._position.epoch * (self.schedule.total or 0)
            + self._position.sample
        }

    def stats(self) -> LoaderStats:
        """Return what this loader has given so far, and how long it waited for blocks of remote datasets.

        Requests and bytes are those of this process for the loader's datasets; what worker processes of a
        ``DataLoader`` do is not counted.
        """
        size = self.ranks.share(self.batch_size)
        return self._meter.stats(sample_bytes=self.source.sample_bytes, share=size / self.batch_size)

    def describe(self) -> str:
        """Describe what is sampled, what is left out and why, and where each field is read from."""
        return describe(self)

    def view(self, *, height: int = 720, port: int = 0) -> rlds_cli.view.Shown:
        """Show batches as training gets them, in a browser or in the frame of a notebook.

        Fields with their ranges, samples with windows, padding and masks, after transforms. The loader stays where it
        is: a copy of it gives the batches, from the next one on.

        Parameters
        ----------
        height : int
            Of the frame, in pixels.
        port : int
            By default any that is free.

        Raises
        ------
        MissingPackage
            The extra ``view`` is not installed.
        RldsError
            The port is taken.
        """
        return rlds_cli.view.show(self, height=height, port=port)

    if not TYPE_CHECKING:  # type checkers find wrong names by themselves

        def __next__(self) -> NoReturn:
            raise TypeError("A loader is iterated: batches = iter(loader) once, and next(batches) for every batch.")

        def __getattr__(self, name: str) -> NoReturn:
            counterparts.missing(self, name, counterparts.LOADER)

    def __repr__(self) -> str:
        steps = "" if self.steps is None else f", steps={self.steps}"
        dataset = self.dataset if isinstance(self.dataset, Mixture) else self.dataset.id
        live = "" if self._live is None else f"; live at version {self.version}"
        return (
            f"Loader({dataset!r}, {self.batch_size}, window={self.window}, sampler={self.sampler}{steps},"
            f" seed={self.seed}; {self.ranks}{live})"
        )


def _again(
    dataset: Dataset | Mixture,
    batch_size: int,
    made_of: Mapping[str, Any],
    where: tuple[Position, bool],
    held: Mapping[str, Any],
) -> Loader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first loader has given them
        loader = Loader(dataset, batch_size, **made_of)
    loader._hold(held, where[0])
    loader._position, loader._sought = where
    return loader
