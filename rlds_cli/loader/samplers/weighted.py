"""`Weighted`: draws by the user's weights, one number per episode, transition or step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from math import frexp
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import EmptyWindow, InvalidArgument, LoaderError, UnknownField
from rlds_cli.loader import kernel
from rlds_cli.loader.index import PROBABILITY, FloatArray, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import EPISODE, WINDOW, Order
from rlds_cli.loader.samplers import Draw, Endless
from rlds_cli.loader.samplers.uniform import within


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Weighted(Endless):
    """Draws with replacement by weights; never ends. Batches have ``probability``: the chance of each sample.

    * By episode: an episode is drawn in proportion to its weight, and then every window in it is equally likely.
    * By step: a window is drawn in proportion to the weight of its anchor: the step of a transition, the first step
      of a slice that is inside its episode, step 0 of a whole episode.

    Parameters
    ----------
    weight : str or array
        The name of an episode column (``"total_reward"``); or an array with one number per episode
        ``[ds.num_episodes]``, per transition ``[len(ds)]`` or per step ``[ds.num_steps]``, in the order of the dataset.
        Not negative; an array by transitions gives weight 0 to steps that are not transitions.

    Examples
    --------
    >>> Weighted(np.exp(ds.episodes["total_reward"] / 1000))  # doctest: +SKIP
    """

    weight: str | FloatArray

    gives = (PROBABILITY,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The episode column of weights, if it is one."""
        return (self.weight,) if isinstance(self.weight, str) else ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", frozen(self.weight, "Weighted", "weights"))

    def over(self, pool: WindowIndex) -> Draw:
        """Return the draw over ``pool``, see `Sampler`."""
        if pool.in_mixture and not isinstance(self.weight, str):
            raise InvalidArgument(
                f"{self} over a Mixture: an array is of the episodes of one dataset.", hint="an episode column by name"
            )
        given = of(pool, self.weight, "Weighted", "weights")
        if pool.live and not np.any(given.values):
            what = f"Weighted, {given.what}: all {len(given.values):,} weights are zero: nothing can be drawn."
            raise _weightless(pool, what)
        hint = None
        if isinstance(self.weight, str):
            hint = f'an array of weights made of it: Weighted(np.exp(ds.episodes["{self.weight}"] / scale))'
        checked = replace(given, values=_checked(given.values, given.what, hint))
        return _by_episode(pool, checked) if given.unit == "episode" else _by_step(pool, checked)

    def __repr__(self) -> str:
        return f"Weighted({shown(self.weight)})"


def _by_episode(pool: WindowIndex, weight: DatasetWeights) -> Draw:
    counts = pool.prefix.counts
    usable = weight.values.take(pool.table.number)
    if not usable.any():
        raise _weightless(
            pool,
            f"Weighted, {weight.what}: the {len(usable):,} episodes that have a window all weigh zero: nothing can be"
            " drawn.",
        )
    cumulative = Cumulative(usable)

    def draw(order: Order, positions: SampleNumbers) -> SampledWindows:
        episode = cumulative.find(order.uniform(EPISODE, positions))
        of_windows = counts.take(episode)

        def probability() -> FloatArray:
            return cumulative.probability(episode) / of_windows

        return SampledWindows(order, positions, episode, within(order, positions, of_windows), probability)

    return draw


def _by_step(pool: WindowIndex, weight: DatasetWeights) -> Draw:
    of_windows = weight.of_windows(pool, without=0.0)
    if not of_windows.any():
        raise _weightless(
            pool,
            f"Weighted, {weight.what}: no window has its anchor at a step that weighs anything: nothing can be drawn.",
        )
    cumulative = Cumulative(of_windows)

    def draw(order: Order, positions: SampleNumbers) -> SampledWindows:
        windows: IntArray = cumulative.find(order.uniform(WINDOW, positions))
        return SampledWindows(order, positions, *pool.prefix.find(windows), partial(cumulative.probability, windows))

    return draw


def _weightless(pool: WindowIndex, why: str) -> LoaderError:
    """Return the error of weights that are all zero: of a growing dataset, later episodes may weigh something."""
    return EmptyWindow(why) if pool.live else InvalidArgument(why)


def _checked(weight: Any, what: str, hint: str | None = None) -> FloatArray:
    """Check all weights given, also of episodes without a window: messages name the user's places."""
    try:
        return check_weights(weight)
    except InvalidArgument as e:
        raise InvalidArgument(f"Weighted, {what}: {e.message}", hint=hint or e.hint) from None


Weights = npt.NDArray[np.float64]
_BLOCK = 1 << 14  # slices of the range at a time: their part of the sums stays in the cache


class Cumulative:
    """Draws 0..n-1 with probability weight / sum of weights, in constant time.

    The inverse of the distribution function (Chen and Asmussen's guide table, 1974): a table holds the first item of
    each of n to 2n equal slices of the range; a look-up and a few steps find almost every item, a binary search the
    rest. A draw needs less than one step on average, whatever the weights.

    An item takes 12 to 16 bytes. An item of weight zero is never drawn, nor is one whose
    weight vanishes in the rounding of the sum (about 1e-16 of it).

    Parameters
    ----------
    weights : array [n]
        Any numbers, not negative and not all zero; not kept.

    Raises
    ------
    InvalidArgument
        The weights have not one axis, are empty or all zero, or one is negative, infinite or NaN.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        given = check_weights(weights)
        self._sums: Weights = np.zeros(len(given) + 1)
        self._ends = self._sums[1:]
        # scaling by a power of two loses no bit, and no sum overflows or becomes subnormal
        self._exponent = frexp(float(given.max()))[1]
        np.ldexp(given, -self._exponent, out=self._ends)
        np.cumsum(self._ends, out=self._ends)
        self._total = float(self._ends[-1])
        self._table = _table(self._ends, 1 << (len(given) - 1).bit_length())

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def total(self) -> float:
        """The sum of the weights; infinite where a float cannot hold it, which changes no draw."""
        with np.errstate(over="ignore"):
            return float(np.ldexp(self._total, self._exponent))

    def find(self, u: Weights) -> IntArray:
        """Return the item that each of ``u`` falls on.

        Parameters
        ----------
        u : float64 array [K]
            Uniform, in [0, 1).

        Returns
        -------
        int64 array [K]
        """
        # Below the total, so that the last item that weighs anything ends above it: u <= 1 - 2**-53, and that times a
        # number is rounded to less than the number. A slice's own product is not above it either, as slices are 2**k.
        return kernel.fall(self._ends, self._table, u)

    def probability(self, numbers: IntArray) -> Weights:
        """Return the chance of one draw to give each of ``numbers``.

        It is computed from the running sums, as draws are: off from weight / sum by about 1e-16 times the root of n.

        Parameters
        ----------
        numbers : int array [...]
            In [0, n).

        Returns
        -------
        float64 array [...]
        """
        probability: Weights = (self._ends.take(numbers) - self._sums.take(numbers)) / self._total
        return probability


def check_weights(weights: Any) -> Weights:
    """Return ``weights`` as float64 [n], see `Cumulative`.

    Raises
    ------
    InvalidArgument
    """
    try:
        given = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"weights of type {type(weights).__name__} are not numbers.") from None
    if given.ndim != 1:
        raise InvalidArgument(f"weights of shape {list(given.shape)}: one number an item is needed, [n].")
    if not len(given):
        raise InvalidArgument("There are no weights: nothing can be drawn.")
    least, most = given.min(), given.max()
    if not (least >= 0 and most < np.inf):  # also when NaN
        place = int(np.flatnonzero(~((given >= 0) & (given < np.inf)))[0])
        raise InvalidArgument(
            f"weight {given[place]} at place {place:,} of {len(given):,}: weights are finite and not negative.",
            hint="0 for what is never to be drawn",
        )
    if most == 0:
        raise InvalidArgument(f"All {len(given):,} weights are zero: nothing can be drawn.")
    return given


def _table(ends: Weights, slices: int) -> npt.NDArray[np.int32]:
    """Return the first item of each slice of the range."""
    total, n = ends[-1], len(ends)
    table: npt.NDArray[np.int32] = np.empty(slices, np.int32)
    first = 0
    for start in range(0, slices, _BLOCK):
        stop = min(start + _BLOCK, slices)
        edges = np.arange(start, stop + 1) / slices * total
        last = int(np.searchsorted(ends, edges[-1], "right")) if stop < slices else n - 1
        table[start:stop] = np.searchsorted(ends[first : last + 1], edges[:-1], "right") + first
        first = last
    return table


Unit = Literal["episode", "transition", "step"]
_CHUNK = 1 << 20  # windows whose anchors are looked up at a time


@dataclass(frozen=True, slots=True)
class DatasetWeights:
    """One number for each episode, transition or step of a dataset.

    Attributes
    ----------
    values : array [n]
    unit : {"episode", "transition", "step"}
    what : str
        A name for messages: ``weights by step``.
    """

    values: Array
    unit: Unit
    what: str

    def of_windows(self, pool: WindowIndex, without: float) -> FloatArray:
        """Return the number of every window of ``pool``: that of its episode, or of its anchor.

        With numbers by transition, windows whose anchor is not a transition get ``without``.
        """
        numbers = np.full(pool.prefix.total, without)
        everything = pool.dataset.episodes["num_transitions" if self.unit == "transition" else "length"]
        everything = everything.astype(np.int64)
        first = (np.cumsum(everything) - everything).take(pool.table.number)
        limit = everything.take(pool.table.number)
        for start in range(0, pool.prefix.total, _CHUNK):
            windows = np.arange(start, min(start + _CHUNK, pool.prefix.total))
            episode, number = pool.prefix.find(windows)
            if self.unit == "episode":
                numbers[windows] = self.values.take(pool.table.number.take(episode))
                continue
            step = pool.anchor(number)
            known = step < limit.take(episode)
            numbers[windows[known]] = self.values.take((first.take(episode) + step)[known])
        return numbers


def frozen(given: Any, sampler: str, noun: str) -> str | FloatArray:
    """Return the name of a column unchanged, and an array as a read-only copy.

    Raises
    ------
    InvalidArgument
        ``given`` is neither a name nor numbers [n].
    """
    if isinstance(given, str):
        return given
    numbers = np.array(given)
    numbers.flags.writeable = False
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise InvalidArgument(
            f"{sampler}: {noun} of shape {list(numbers.shape)}, {numbers.dtype}: numbers [n] are needed.",
            hint="one per episode, transition or step, or the name of an episode column",
        )
    return numbers


def shown(given: str | FloatArray) -> str:
    """Describe weights or priorities for ``repr`` and loader states; an array by the hash of its content."""
    if isinstance(given, str):
        return repr(given)
    content = hashlib.sha256(np.ascontiguousarray(given).tobytes()).hexdigest()[:12]
    return f"{given.dtype}[{len(given)}], sha256 {content}"


def of(pool: WindowIndex, given: str | FloatArray, sampler: str, noun: str) -> DatasetWeights:
    """Assign ``given`` to the episodes, transitions or steps of the dataset of ``pool``.

    Raises
    ------
    UnknownField
        No episode column of numbers has that name.
    InvalidArgument
        The array has another length.
    """
    if isinstance(given, str):
        return DatasetWeights(_column(pool, given, sampler), "episode", f'episode column "{given}"')
    dataset = pool.dataset
    lengths: dict[Unit, int] = {
        "episode": dataset.num_episodes,
        "transition": len(dataset),
        "step": dataset.num_steps,
    }
    for unit, length in lengths.items():
        if len(given) == length:
            return DatasetWeights(given, unit, f"{noun} by {unit}")
    raise InvalidArgument(
        f"{sampler}: {len(given):,} {noun}; {dataset.id} has {dataset.num_episodes:,} episodes,"
        f" {len(dataset):,} transitions and {dataset.num_steps:,} steps.",
        hint="give one number per episode, per transition or per step",
    )


def _column(pool: WindowIndex, name: str, sampler: str) -> Array:
    columns = pool.dataset.episodes
    if name not in columns or columns[name].dtype.kind not in "fiub":
        numeric = [c for c in columns if columns[c].dtype.kind in "fiub"]
        raise UnknownField(
            f'{sampler}: no episode column of numbers "{name}".{did_you_mean(name, numeric)}'
            f" There are {', '.join(numeric)}."
        )
    return columns[name]
