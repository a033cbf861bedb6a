"""Some of the episodes. They are chosen by the episode table, and copied as they are stored: frames stay encoded."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, NoReward
from rlds_cli.preprocess.traits import Prepared, builtin


def _prepare_select(dataset: Dataset, *, where: str | None, split: str | None) -> Prepared:
    if where is None and split is None:
        raise InvalidArgument(
            "select_episodes: nothing says which.", hint='where="total_reward > 3000 and length >= 500"'
        )
    chosen = dataset.select(where=where, split=split)
    if chosen.num_episodes == 0:
        raise InvalidArgument(f"select_episodes: none of the {dataset.num_episodes:,} episodes of {dataset.id} is so.")
    return Prepared(chosen, reads=())


@builtin(version=1, prepare=_prepare_select, loader="Loader(ds.select(where=...))")
def select_episodes(episode: Batch, *, where: str | None = None, split: str | None = None) -> Any:
    """Keep the episodes for which an expression of their columns holds, such as ``total_reward > 3000``.

    The expression is that of ``Dataset.select``, which does the same without a copy: a loader takes such a selection.

    Parameters
    ----------
    episode : Batch
    where : str
        Comparisons of episode columns: ``"total_reward > 3000 and length >= 500"``.
    split : str
        A named split of the archive.

    Raises
    ------
    InvalidExpression
        ``where`` is not such a comparison, or names a column that is not there.
    InvalidArgument
        It holds for no episode.
    """
    return episode


def _prepare_top(dataset: Dataset, *, percent: float, by: str, of: str) -> Prepared:
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
        raise InvalidArgument(f"top_episodes: percent={percent!r} is not above 0 and at most 100.")
    if of not in ("episodes", "steps"):
        raise InvalidArgument(f'top_episodes: of={of!r}: it is "episodes" or "steps".')
    if by == "total_reward" and by not in dataset.episodes:
        raise NoReward(f"{dataset.id} has no rewards: its episodes have no returns.", hint="by=COLUMN ranks by another")
    values = np.asarray(dataset.episodes[by])
    if values.dtype.kind not in "biuf":
        raise InvalidArgument(f'top_episodes: by="{by}" is text; episodes are ranked by numbers.')
    best = np.argsort(-values.astype(np.float64), kind="stable")
    count = math.floor(len(best) * percent / 100)
    if of == "steps":
        length = dataset.episodes["length"][best]
        count = int(np.searchsorted(np.cumsum(length), length.sum() * percent / 100, "right"))
    return Prepared(dataset.select(episodes=np.sort(best[: max(1, count)])), reads=())


@builtin(version=1, prepare=_prepare_top, loader="Loader(ds.select(episodes=...))")
def top_episodes(
    episode: Batch,
    *,
    percent: float = 10.0,
    by: str = "total_reward",
    of: Literal["episodes", "steps"] = "episodes",
) -> Any:
    """Keep the best episodes, by their returns: the data of behaviour cloning on the top x %.

    As many of the best as make up at most ``percent`` of all, and at least one; of equal ones the earlier. They stay in
    their order. `Dataset.select` does the same without a copy.

    Parameters
    ----------
    episode : Batch
    percent : float
        In (0, 100].
    by : str
        The episode column that ranks them, the largest first.
    of : {"episodes", "steps"}
        What the share is of. Decision Transformer (Chen et al. 2021) counts steps.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    InvalidArgument
        Another share, or a column that does not rank.
    """
    return episode
