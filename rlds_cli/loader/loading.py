"""The loader: what training code imports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rlds_cli import pytrees
from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import BatchSize, InvalidArgument
from rlds_cli.loader import building, describing, state
from rlds_cli.loader.access.ahead import ahead
from rlds_cli.loader.access.residency import Told
from rlds_cli.loader.content.fields import Extra, Name, Names
from rlds_cli.loader.mixtures.mixing import MixtureSource
from rlds_cli.loader.mixtures.mixture import Mixture
from rlds_cli.loader.output import arrays
from rlds_cli.loader.output.arrays import Backend
from rlds_cli.loader.output.transforms import Elementwise
from rlds_cli.loader.ranks import Ranks
from rlds_cli.loader.reading import BatchFunction, DatasetSource, Reader, Run, Transforms
from rlds_cli.loader.runs import runs
from rlds_cli.loader.sampling.order import Order, Positions
from rlds_cli.loader.sampling.pool import Drawn, Pool
from rlds_cli.loader.sampling.prioritized import PrioritizedDraw
from rlds_cli.loader.sampling.samplers import Sampler, Uniform
from rlds_cli.loader.schedule import Schedule, Spot
from rlds_cli.loader.wholes import whole
from rlds_cli.loader.windowing.windows import Anchors, Transition, Window
from rlds_cli.settings import StrPath

LOOK_AHEAD = 2  # gathers of which the kernel is told early

if TYPE_CHECKING:
    from rlds_cli.loader.output.torch_batches import TorchBatches

Transform = Elementwise | BatchFunction


class Loader:
    """Batches of a dataset, in an order that depends on nothing but the seed.

    1. **Iteration.** Samplers with replacement never end; `Shuffled` and `Sequential` end after one epoch, and the
       next ``iter()`` starts the next one, also when the last was broken off; ``steps=N`` ends after N batches in
       either case. After `seek` or `load_state_dict` the next ``iter()`` goes on from there, once.
    2. **Order.** Sample number i of epoch e is a function of (seed, e, i) alone. Global batch n is samples
       [n * B, (n + 1) * B); rank r of W takes r, r + W, ... of it. Ranks, workers, memory, fields and dtypes change
       nothing. The state is the number of samples consumed. In a `Mixture` every member has an order of its own.
    3. **Batch size** is of the global batch. Rank and world size come from the arguments, else from
       ``torch.distributed`` when it is initialised, else 0 of 1; ``repr`` says which.
    4. **Memory.** Fields are contiguous, writable and overlap nothing. Batches of one gather are parts of one
       allocation: ``batch.clone()`` before keeping or saving one. Rows come from the store's maps, shared by all
       processes of the machine; ``memory`` caps private copies only.

    Parameters
    ----------
    dataset : str, path, Dataset or Mixture
        An id, a directory, a dataset or selection, or several of these.
    batch_size : int
        B: samples, all ranks together.
    window : Transition or Slice
        What a sample is: fields are [B, ...], or [B, L, ...].
    sampler : Uniform, Shuffled or Sequential
        Which samples.
    fields : sequence of str, optional
        Instead of observation, action and ``next/{observation, reward, done, terminated, truncated}``. A name stands
        for everything nested below it.
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
        self.dataset = _opened(dataset)
        self.window, self.sampler, self.anchors = window, sampler, anchors
        self.batch_size = whole("batch_size", batch_size, 1, BatchSize)
        self.seed = whole("seed", seed, 0)
        self.steps = None if steps is None else whole("steps", steps, 1)
        self.ranks = Ranks.of(rank, world_size)
        self._size = self.ranks.share(self.batch_size)
        if self.seed >= 1 << 64:
            raise InvalidArgument(f"seed={seed}: seeds are below 2**64.")
        _check_kinds(self.window, self.sampler, self.anchors)
        made, transforms = arrays.make(backend, dtype, device), _transforms(transform)
        resident = memory == "device"
        most = None if resident else memory
        request = building.Request(self.window, sampler, anchors, fields, extra, most, views, resident)
        self._draw: Callable[[Order, Positions], Drawn] | None = None
        self.source: DatasetSource | MixtureSource
        if isinstance(self.dataset, Mixture):
            if resident:
                raise InvalidArgument('memory="device" is for one dataset, not for a Mixture.', hint="memory=None")
            on_cpu = arrays.make(backend, dtype, None)
            self.source = MixtureSource(
                self.dataset, request, transforms, on_cpu, batch_size=self.batch_size, seed=self.seed
            )
        else:
            request = request.in_steps(self.dataset)
            pool = building.pool(self.dataset, request.window, anchors)
            self._draw = self._drawing(pool)
            self.source = building.source(pool, self._draw, request, transforms, made.working)
            if resident:
                from rlds_cli.loader.access.resident import reside

                self.source = reside(self.source, made)
        self.reader = Reader(self.source, self.ranks, transforms, made)
        self.prefetch = self._read_ahead(prefetch)
        self.schedule = self._plan()
        self._spot, self._sought = Spot(0, 0), False
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

    # -- what is read

    def _drawing(self, pool: Pool) -> Callable[[Order, Positions], Drawn]:
        draw = self.sampler.over(pool)
        if isinstance(draw, PrioritizedDraw) and self.ranks.world > 1:
            raise InvalidArgument(
                f"Prioritized on {self.ranks}: ranks do not know each other's updates.",
                hint="Loader(..., world_size=1) on every rank, with a seed of its own",
            )
        return draw

    def _read_ahead(self, prefetch: int | None) -> int:
        """How many gathers are read ahead."""
        depth = self.reader.depth(self._size) if prefetch is None else whole("prefetch", prefetch, 0)
        if isinstance(self._draw, PrioritizedDraw):
            if prefetch is not None and depth > self._draw.ahead:
                raise InvalidArgument(
                    f"prefetch={depth} with {self.sampler}: batches would be drawn before updates that count.",
                    hint=f"Prioritized(lag={depth}), or prefetch={self._draw.ahead}",
                )
            depth = min(depth, self._draw.ahead)
            self._draw.ahead -= depth
        return depth

    def _plan(self) -> Schedule:
        if self.sampler.endless or isinstance(self.source, MixtureSource):
            return Schedule(self.batch_size, None, steps=self.steps)
        total = self.source.draw.pool.guide.total
        schedule = Schedule(self.batch_size, total, self.sampler.drop_last, self.steps)
        if schedule.per_epoch == 0:
            raise BatchSize(
                f"{self.batch_size} is more than the {total:,} samples of an epoch, and its last batch is dropped.",
                hint=f"a batch of at most {total:,}, or {type(self.sampler).__name__}(drop_last=False)",
            )
        return schedule

    # -- iteration

    @property
    def step(self) -> int:
        """Batches handed out so far; the next one has this number."""
        return self.schedule.step(self._spot)

    def __iter__(self) -> Iterator[Batch]:
        """Go through one pass: see rule 1."""
        self.ranks.check()
        pytrees.register(Batch)
        most = self.reader.batches_at_once(self._size)
        return self._batches(runs(self.schedule, self._start(), self.seed, most), self.prefetch)

    def _start(self) -> Spot:
        """Where the next pass starts."""
        return self.schedule.settle(self._spot if self._sought else self.schedule.fresh(self._spot))

    def share(self, start: Spot, worker: int, workers: int) -> Iterator[Batch]:
        """Batches worker, worker + workers, ... of the pass that begins at ``start``."""
        self.ranks.check()
        # A mixture works out whose turn it is for batches that follow each other.
        most = 1 if isinstance(self.source, MixtureSource) else self.reader.batches_at_once(self._size)
        mine = runs(self.schedule, start, self.seed, most, worker=worker, workers=workers)
        return self._batches(mine, self._arguments["prefetch"] or 0)

    def _batches(self, pieces: Iterator[Run], prefetch: int) -> Iterator[Batch]:
        on_stream = self.reader.arrays.on_stream()

        def read(located: tuple[Run, Any, Told]) -> Iterator[Batch]:
            with on_stream():
                return self.reader.read(*located)

        for (run, *_), batches in ahead(read, self._looked_up(pieces), prefetch):
            sample = run.first + run.size
            for batch in batches:
                self._spot, self._sought = Spot(run.order.epoch, sample), False
                sample += run.every * run.size
                yield batch

    def _looked_up(self, runs: Iterator[Run]) -> Iterator[tuple[Run, Any, Told]]:
        """Where the samples of each run lie; some runs early while data comes from the disk."""
        waiting: deque[tuple[Run, Any, Told]] = deque()
        for run in runs:
            located = self.reader.locate(run)
            waiting.append((run, located, self.reader.expect(located)))
            early = LOOK_AHEAD if self.reader.watch.advising and not isinstance(self._draw, PrioritizedDraw) else 0
            while len(waiting) > early:
                yield waiting.popleft()
        yield from waiting

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
            batches.move(self._spot)

    def update_priorities(self, batch: Batch, priority: Any, *, beta: float | None = None) -> None:
        """Say how much there is to learn from the samples of a batch, with `Prioritized`.

        Parameters
        ----------
        batch : Batch
            As the loader gave it: its ``window`` says where the priorities go. Where a window stands in it twice, the
            last one counts.
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
        """Where the loader is: plain numbers and text, the same on every rank; with `Prioritized`, arrays as well.

        Batch size, ranks, fields, transforms and dtypes are not part of it: they may differ when it is loaded.
        """
        spot = self.schedule.settle(self._spot)
        return state.save(self, spot) | self._held(spot)

    def _held(self, spot: Spot) -> dict[str, Any]:
        """What the samples after ``spot`` depend on, beside the order."""
        if isinstance(self.source, MixtureSource):
            return self.source.state(spot)
        return self._draw.state(*spot) if isinstance(self._draw, PrioritizedDraw) else {}

    def _hold(self, held: Mapping[str, Any], spot: Spot) -> None:
        if isinstance(self.source, MixtureSource):
            self.source.load(held, spot)
        if isinstance(self._draw, PrioritizedDraw):
            self._draw.load(held, Order(self.seed, spot.epoch))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where `state_dict` was; the next ``iter()`` starts there.

        Raises
        ------
        WrongState
            It is of other data, another sampler, window or seed, or of another version of the order.
        """
        spot = state.load(self, state_dict)
        self._hold(state_dict, spot)
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
        return _again, (self.dataset, self.batch_size, made_of, self._spot, self._sought, self._held(self._spot))

    # -- workers

    def as_torch(self) -> TorchBatches:
        """Return an ``IterableDataset`` of ready batches, see `TorchBatches`: ``DataLoader(it, batch_size=None)``.

        Raises
        ------
        InvalidArgument
            ``backend="jax"``.
        """
        from rlds_cli.loader.output.torch_batches import TorchBatches

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
        return describing.describe(self)

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
    spot: Spot,
    sought: bool,
    held: Mapping[str, Any],
) -> Loader:
    loader = Loader(dataset, batch_size, **made_of)
    loader._hold(held, spot)
    loader._spot, loader._sought = spot, sought
    return loader


def _opened(dataset: StrPath | Dataset | Mixture) -> Dataset | Mixture:
    if isinstance(dataset, Mixture):
        return dataset.opened()
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset)


def _check_kinds(window: Window, sampler: Sampler, anchors: Anchors) -> None:
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


def _transforms(transform: Transform | Sequence[Transform]) -> Transforms:
    given = list(transform) if isinstance(transform, Sequence) else [transform]
    for t in given:
        if not callable(t):
            raise InvalidArgument(f"transform={t!r} is neither a transform nor a function of a batch.")
    return Transforms.of(given)
