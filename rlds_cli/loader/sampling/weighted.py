"""Draws by weights that the user gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.sampling.cumulative import Cumulative, check_weights
from rlds_cli.loader.sampling.order import EPISODE, WINDOW, Order, Positions
from rlds_cli.loader.sampling.pool import PROBABILITY, Drawn, FloatArray, Pool
from rlds_cli.loader.sampling.samplers import Draw, Endless, within
from rlds_cli.ted import Array, IntArray

_CHUNK = 1 << 20  # windows whose anchors are looked up at a time


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
        Not negative; an array by transitions gives weight 0 to steps that are none.

    Examples
    --------
    >>> Weighted(np.exp(ds.episodes["total_reward"] / 1000))  # doctest: +SKIP
    """

    weight: str | FloatArray

    def __post_init__(self) -> None:
        if isinstance(self.weight, str):
            return
        given = np.array(self.weight)
        given.flags.writeable = False  # what it is drawn by, and what the state is of
        if given.ndim != 1 or given.dtype.kind not in "fiub":
            raise InvalidArgument(
                f"Weighted: weights of shape {list(given.shape)}, {given.dtype}: numbers [n] are needed.",
                hint="one per episode, transition or step, or the name of an episode column",
            )
        object.__setattr__(self, "weight", given)

    @property
    def gives(self) -> tuple[str, ...]:
        """``probability``."""
        return (PROBABILITY,)

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``, see `Sampler`."""
        if isinstance(self.weight, str):
            hint = f'an array of weights made of it: Weighted(np.exp(ds.episodes["{self.weight}"] / scale))'
            return _by_episode(pool, _column(pool, self.weight), f'episode column "{self.weight}"', hint)
        weight, dataset = self.weight, pool.dataset
        if len(weight) == dataset.num_episodes:
            return _by_episode(pool, weight, "weights by episode")
        if len(weight) not in (len(dataset), dataset.num_steps):
            raise InvalidArgument(
                f"Weighted: {len(weight):,} weights; {dataset.id} has {dataset.num_episodes:,} episodes,"
                f" {len(dataset):,} transitions and {dataset.num_steps:,} steps.",
                hint="one weight for each of one of these",
            )
        return _by_step(pool, weight, transitions=len(weight) == len(dataset))

    def __repr__(self) -> str:
        if isinstance(self.weight, str):
            return f"Weighted({self.weight!r})"
        content = hashlib.sha256(np.ascontiguousarray(self.weight).tobytes()).hexdigest()[:12]
        return f"Weighted({self.weight.dtype}[{len(self.weight)}], sha256 {content})"


def _column(pool: Pool, name: str) -> Array:
    columns = pool.dataset.episodes
    if name not in columns or columns[name].dtype.kind not in "fiub":
        numeric = [c for c in columns if columns[c].dtype.kind in "fiub"]
        close = get_close_matches(name, numeric, 1)
        did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
        raise UnknownField(
            f'Weighted: no episode column of numbers "{name}".{did_you_mean} There are {", ".join(numeric)}.'
        )
    return columns[name]


def _by_episode(pool: Pool, weight: Array, what: str, hint: str | None = None) -> Draw:
    counts = pool.guide.counts
    usable = _checked(weight, what, hint).take(pool.table.number)
    if not usable.any():
        raise InvalidArgument(
            f"Weighted, {what}: the {len(usable):,} episodes that have a window all weigh zero: nothing can be drawn."
        )
    cumulative = Cumulative(usable)

    def draw(order: Order, positions: Positions) -> Drawn:
        episode = cumulative.find(order.uniform(EPISODE, positions))
        of_windows = counts.take(episode)

        def probability() -> FloatArray:
            return cumulative.probability(episode) / of_windows

        return Drawn(order, positions, episode, within(order, positions, of_windows), probability)

    return draw


def _by_step(pool: Pool, weight: Array, *, transitions: bool) -> Draw:
    everything = pool.dataset.episodes["num_transitions" if transitions else "length"].astype(np.int64)
    first = (np.cumsum(everything) - everything).take(pool.table.number)
    limit = everything.take(pool.table.number)
    what = f"weights by {'transition' if transitions else 'step'}"
    weight, of_windows = _checked(weight, what), np.zeros(pool.guide.total)
    for start in range(0, pool.guide.total, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, pool.guide.total))
        episode, number = pool.guide.find(numbers)
        step = pool.anchor(number)
        known = step < limit.take(episode)
        of_windows[numbers[known]] = weight.take((first.take(episode) + step)[known])
    if not of_windows.any():
        raise InvalidArgument(
            f"Weighted, {what}: no window has its anchor at a step that weighs anything: nothing can be drawn."
        )
    cumulative = Cumulative(of_windows)

    def draw(order: Order, positions: Positions) -> Drawn:
        numbers: IntArray = cumulative.find(order.uniform(WINDOW, positions))
        return Drawn(order, positions, *pool.guide.find(numbers), partial(cumulative.probability, numbers))

    return draw


def _checked(weight: Any, what: str, hint: str | None = None) -> FloatArray:
    """All weights that were given, also those of episodes without a window: places in messages are the user's."""
    try:
        return check_weights(weight)
    except InvalidArgument as e:
        raise InvalidArgument(f"Weighted, {what}: {e.message}", hint=hint or e.hint) from None
