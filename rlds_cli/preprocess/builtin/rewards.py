"""Rewards on another scale, or of fewer steps."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import REWARD, Array


def _floating(reward: Array) -> Array:
    return reward if reward.dtype.kind == "f" else reward.astype(np.float32)


def _number(function: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidArgument(f"{function}: {name}={value!r} is no finite number.")


def _prepare_scale(dataset: Dataset, *, scale: float, shift: float) -> Prepared:
    _number("scale_reward", "scale", scale)
    _number("scale_reward", "shift", shift)
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare_scale, loader="Loader(ds, transform=Reward(scale, shift))")
def scale_reward(episode: Batch, *, scale: float = 1.0, shift: float = 0.0) -> Any:
    """Multiply rewards by ``scale``, and add ``shift``.

    The values are those of `rlds_cli.loader.Reward`, which does it while it loads.

    Parameters
    ----------
    episode : Batch
    scale, shift : float
        AntMaze, for one, is trained on with ``shift=-1`` (IQL, CQL).

    Returns
    -------
    Batch
        Floats keep their dtype, integers become float32.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    """
    episode[REWARD] = _floating(episode[REWARD]) * float(scale) + float(shift)
    return episode


def _prepare_sparsify(dataset: Dataset, *, how: str, threshold: float) -> Prepared:
    if how not in ("end", "threshold"):
        raise InvalidArgument(f'sparsify_reward: how={how!r}: it is "end" or "threshold".')
    _number("sparsify_reward", "threshold", threshold)
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare_sparsify)
def sparsify_reward(episode: Batch, *, how: Literal["end", "threshold"] = "end", threshold: float = 0.0) -> Any:
    """Pay an episode's whole return at its last step, or 1 where the reward exceeds a threshold; else 0.

    Parameters
    ----------
    episode : Batch
    how : {"end", "threshold"}
        ``end``: delayed rewards, as Decision Transformer (Chen et al. 2021, section 5.7) tests them; the return is
        summed in float64. ``threshold``: 1 at steps that paid more than ``threshold``.
    threshold : float

    Returns
    -------
    Batch
        Floats keep their dtype, integers become float32.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    """
    reward = _floating(episode[REWARD])
    if how == "threshold":
        episode[REWARD] = (episode[REWARD] > threshold).astype(reward.dtype)
        return episode
    sparse = np.zeros_like(reward)
    if len(reward):
        sparse[-1] = reward.sum(axis=0, dtype=np.float64)
    episode[REWARD] = sparse
    return episode
