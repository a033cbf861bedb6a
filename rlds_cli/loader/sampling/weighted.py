"""Draws by weights that the user gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.sampling import numbers
from rlds_cli.loader.sampling.cumulative import Cumulative, check_weights
from rlds_cli.loader.sampling.numbers import Numbers
from rlds_cli.loader.sampling.order import EPISODE, WINDOW, Order, Positions
from rlds_cli.loader.sampling.pool import PROBABILITY, Drawn, FloatArray, Pool
from rlds_cli.loader.sampling.samplers import Draw, Endless, within
from rlds_cli.ted import IntArray


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
        object.__setattr__(self, "weight", numbers.frozen(self.weight, "Weighted", "weights"))

    @property
    def gives(self) -> tuple[str, ...]:
        """``probability``."""
        return (PROBABILITY,)

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``, see `Sampler`."""
        given = numbers.of(pool, self.weight, "Weighted", "weights")
        hint = None
        if isinstance(self.weight, str):
            hint = f'an array of weights made of it: Weighted(np.exp(ds.episodes["{self.weight}"] / scale))'
        checked = replace(given, values=_checked(given.values, given.what, hint))
        return _by_episode(pool, checked) if given.unit == "episode" else _by_step(pool, checked)

    def __repr__(self) -> str:
        return f"Weighted({numbers.shown(self.weight)})"


def _by_episode(pool: Pool, weight: Numbers) -> Draw:
    counts = pool.guide.counts
    usable = weight.values.take(pool.table.number)
    if not usable.any():
        raise InvalidArgument(
            f"Weighted, {weight.what}: the {len(usable):,} episodes that have a window all weigh zero: nothing can be"
            " drawn."
        )
    cumulative = Cumulative(usable)

    def draw(order: Order, positions: Positions) -> Drawn:
        episode = cumulative.find(order.uniform(EPISODE, positions))
        of_windows = counts.take(episode)

        def probability() -> FloatArray:
            return cumulative.probability(episode) / of_windows

        return Drawn(order, positions, episode, within(order, positions, of_windows), probability)

    return draw


def _by_step(pool: Pool, weight: Numbers) -> Draw:
    of_windows = weight.of_windows(pool, without=0.0)
    if not of_windows.any():
        raise InvalidArgument(
            f"Weighted, {weight.what}: no window has its anchor at a step that weighs anything: nothing can be drawn."
        )
    cumulative = Cumulative(of_windows)

    def draw(order: Order, positions: Positions) -> Drawn:
        windows: IntArray = cumulative.find(order.uniform(WINDOW, positions))
        return Drawn(order, positions, *pool.guide.find(windows), partial(cumulative.probability, windows))

    return draw


def _checked(weight: Any, what: str, hint: str | None = None) -> FloatArray:
    """All weights that were given, also those of episodes without a window: places in messages are the user's."""
    try:
        return check_weights(weight)
    except InvalidArgument as e:
        raise InvalidArgument(f"Weighted, {what}: {e.message}", hint=hint or e.hint) from None
