"""`Pairs`: two windows a sample, of different episodes of one task, for learning from preferences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.index import FloatArray, PrefixIndex, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import EPISODE, Order
from rlds_cli.loader.samplers import Draw, Endless
from rlds_cli.loader.samplers.uniform import within
from rlds_cli.loader.samplers.weighted import Cumulative


@dataclass(frozen=True, slots=True)
class Pairs(Endless):
    """Pairs of windows, with replacement; never ends. Fields are [B, 2, ...], of slices [B, 2, L, ...].

    The windows of a pair are of one task: their episodes have the same value in the column ``by``. They are of two
    episodes; only of a task with a single episode they are two different windows of it. A task comes as often as it
    has windows, and in a task all pairs, (a, b) and (b, a) alike, are equally likely. Tasks without a pair, and
    episodes without a value in the column, are left out. ``batch_size`` counts pairs.

    Parameters
    ----------
    by : str, optional
        Name of an episode column; None for one task, the whole dataset.

    Raises
    ------
    UnknownField
        From the loader: there is no such episode column.
    InvalidArgument
        From the loader: no task has a pair; the dataset is a mixture, or the window has a bucket.

    Notes
    -----
    Preference-based learning compares two segments of equal length (Christiano et al. 2017, arXiv:1706.03741).
    Preference Transformer and IPL hold them as two arrays [B, L, ...]: ``batch["observation"][:, 0]`` and ``[:, 1]``.

    Examples
    --------
    >>> loader = Loader(ds, 64, window=Slice(25), sampler=Pairs(by="task"))  # doctest: +SKIP
    >>> returns = next(iter(loader))["next", "reward"].sum((2, 3))  # [64, 2]  # doctest: +SKIP
    """

    by: str | None = None

    sides = 2

    @property
    def columns(self) -> tuple[str, ...]:
        """The episode column of tasks, if there is one."""
        return () if self.by is None else (self.by,)

    def over(self, pool: WindowIndex) -> Draw:
        """Return the draw over ``pool``, see `Sampler`."""
        if pool.bucket is not None:
            raise InvalidArgument(f"{self} with a bucket: episodes of similar length are not tasks.", hint="Episode()")
        tasks = _tasks(pool, self.by)
        draw = PairDraw(tasks, pool.prefix.counts)
        if not draw.total:
            raise InvalidArgument(f"{self}: of {pool.dataset.id}, no task has two windows.", hint="a shorter window")
        return draw


def _tasks(pool: WindowIndex, by: str | None) -> IntArray:
    """Return the number of each episode's task [rows of the table]; -1 where it has none."""
    if by is None:
        return np.zeros(len(pool.table), np.int64)
    columns = pool.dataset.episodes
    if by not in columns:
        raise UnknownField(
            f'Pairs: no episode column "{by}".{did_you_mean(by, list(columns))} There are {", ".join(columns)}.'
        )
    values: Array = columns[by].take(pool.table.number)
    known: dict[object, int] = {None: -1}
    given = [None if v != v else v for v in values.tolist()]  # NaN stands for no value
    return np.array([known.setdefault(v, len(known) - 1) for v in given], np.int64)


class PairDraw:
    """Draws pairs of windows, two for each sample number.

    Parameters
    ----------
    task : int array [episodes]
        -1 for none.
    counts : int array [episodes]
        Windows of each episode.

    Attributes
    ----------
    total : int
        Windows of the tasks that have a pair.
    """

    def __init__(self, task: IntArray, counts: IntArray) -> None:
        self._counts = counts
        self._order = np.argsort(task, kind="stable")  # episodes, task by task
        self._sorted = PrefixIndex(counts[self._order])
        self._start = np.empty(len(counts), np.int64)  # number of each episode's first window in that order
        self._start[self._order] = self._sorted.starts
        tasks = task.max(initial=-1) + 2  # the first one is that of episodes without a task
        of, episodes = task + 1, np.bincount(task + 1, minlength=tasks)
        windows, squares = (np.bincount(of, x, tasks) for x in (counts, counts.astype(np.float64) ** 2))
        self._single = (episodes == 1).take(of)
        self._first = (np.cumsum(windows) - windows).astype(np.int64).take(of)  # of the task
        others = np.where(self._single, counts - 1, windows.take(of) - counts)  # windows that a window can go with
        self._others = np.where(task < 0, 0, others).astype(np.int64)
        pairs = np.where(episodes == 1, squares - windows, windows**2 - squares)
        drawn = (pairs > 0) & (np.arange(tasks) > 0)
        self.total = int(windows[drawn].sum())
        chance = np.divide(windows, pairs * max(self.total, 1), out=np.zeros(tasks), where=drawn)
        self._chance = chance.take(of)  # of each pair of the episode's task
        self._episodes = Cumulative(self._chance * counts * self._others) if self.total else None

    def __call__(self, order: Order, positions: SampleNumbers) -> SampledWindows:
        """Draw the pairs of these sample numbers: samples of windows with twice as many numbers."""
        assert self._episodes is not None
        first = 2 * np.asarray(positions, np.int64)
        episode: IntArray = self._episodes.find(order.uniform(EPISODE, first))
        number = within(order, first, self._counts.take(episode))
        other_episode, other = self._other(order, first + 1, episode, number)
        both = np.stack([episode, other_episode], 1).reshape(-1), np.stack([number, other], 1).reshape(-1)

        def probability() -> FloatArray:
            chance: FloatArray = self._chance.take(both[0])
            return chance

        return SampledWindows(order, np.stack([first, first + 1], 1).reshape(-1), *both, probability)

    def _other(
        self, order: Order, positions: IntArray, episode: IntArray, number: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Draw a window to go with each: of its task, but of another episode, or of a lone episode another window."""
        single = self._single.take(episode)
        drawn = self._first.take(episode) + within(order, positions, self._others.take(episode))
        left_out = self._start.take(episode) + np.where(single, number, 0)
        drawn += np.where(drawn >= left_out, np.where(single, 1, self._counts.take(episode)), 0)
        at, found = self._sorted.find(drawn)
        return self._order.take(at), found
