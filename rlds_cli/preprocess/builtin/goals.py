"""Rewards from goals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import FLAGS, REWARD, Array

ACHIEVED, DESIRED, FINAL = "observation/achieved_goal", "observation/desired_goal", "final"
Goal = str | Sequence[float]


def _prepare(
    dataset: Dataset,
    *,
    goal: Goal | None,
    achieved: str | None,
    elements: Sequence[int] | None,
    threshold: float,
    dense: bool,
    terminate: bool,
) -> Prepared:
    names = [_achieved(achieved, dataset.schema)]
    wanted = _goal(goal, dataset.schema)
    if isinstance(wanted, str) and wanted != FINAL:
        names.append(wanted)
    fields = [dataset.field(n) for n in names]
    for f in fields:
        if f.kind != "array" or len(f.shape) != 1 or f.dtype == "bool":
            raise InvalidArgument(f"reward_from_goal: {f.name} is {f.dtype} {list(f.shape)}; vectors are needed.")
    width = _width(fields[0].shape[0], elements, fields[0].name)
    given = len(wanted) if not isinstance(wanted, str) else _width(fields[-1].shape[0], elements, fields[-1].name)
    if given not in (width, fields[0].shape[0]):
        raise InvalidArgument(
            f"reward_from_goal: the goal has {given} elements, {fields[0].name} {width}.",
            hint="elements=[0,1] compares these alone",
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < math.inf:
        raise InvalidArgument(f"reward_from_goal: threshold={threshold!r} is no distance.")
    reads = [*names, *FLAGS, *([REWARD] if REWARD in dataset.schema else [])]
    return Prepared(dataset, reads=tuple(dict.fromkeys(reads)))


def _achieved(name: str | None, there: Any) -> str:
    return name or (ACHIEVED if ACHIEVED in there else "observation")


def _goal(goal: Goal | None, there: Any) -> Goal:
    return goal if goal is not None else DESIRED if DESIRED in there else FINAL


def _width(size: int, elements: Sequence[int] | None, name: str) -> int:
    if elements is None:
        return size
    if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size for i in elements) or not elements:
        raise InvalidArgument(f"reward_from_goal: elements={elements!r}; {name} has elements 0 to {size - 1}.")
    return len(elements)


@builtin(version=1, prepare=_prepare, loader="Loader(ds, extra=Goals(...)), with goals drawn anew for every batch")
def reward_from_goal(
    episode: Batch,
    *,
    goal: Goal | None = None,
    achieved: str | None = None,
    elements: Sequence[int] | None = None,
    threshold: float = 0.05,
    dense: bool = False,
    terminate: bool = False,
) -> Any:
    """Make rewards of the distance to a goal: 0 where a step reaches it, else -1.

    The convention is that of Gymnasium-Robotics: the distance is Euclidean, between the goal and what is achieved by
    the step, so at t+1; ``dense`` rewards are minus the distance. Goals that are drawn anew for every batch are the
    business of `rlds_cli.loader.Goals`.

    Parameters
    ----------
    episode : Batch
    goal : str or sequence of float, optional
        A field; ``final``, for the episode's own last achieved state; or the elements of one goal for all. Unless
        given ``observation/desired_goal``, where the dataset has none ``final``.
    achieved : str, optional
        The field that is compared; unless given ``observation/achieved_goal``, where there is none ``observation``.
    elements : sequence of int, optional
        Of both fields, those that are compared: [0, 1] for a position in a plane.
    threshold : float
        The largest distance that counts as reached, in units of the field.
    dense : bool
    terminate : bool
        Flag the steps that reach the goal as terminated: value functions do not look beyond them. The episode goes on.

    Returns
    -------
    Batch
        With ``next/reward`` float32 [T]. Where the final observation is not recorded, the last step achieves what its
        own observation says.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is not there, or goal and achieved state have different numbers of elements.
    """
    reached = _picked(episode[_achieved(achieved, episode)], elements)
    steps = len(episode[FLAGS[0]])
    after = reached[np.minimum(np.arange(1, steps + 1), len(reached) - 1)]
    distance = np.linalg.norm(after - _wanted(episode, _goal(goal, episode), reached, steps, elements), axis=-1)
    close = distance <= threshold
    episode[REWARD] = (-distance if dense else np.where(close, 0, -1)).astype(np.float32)
    if terminate:
        episode[FLAGS[0]] = episode[FLAGS[0]] | close
    return episode


def _picked(values: Array, elements: Sequence[int] | None) -> npt.NDArray[np.float64]:
    return np.asarray(values if elements is None else values[..., list(elements)], np.float64)


def _wanted(episode: Batch, goal: Goal, reached: Array, steps: int, elements: Sequence[int] | None) -> Array:
    """The goal of every step, [steps, n] or [n]."""
    if goal == FINAL:
        last: Array = reached[-1]
        return last
    if isinstance(goal, str):
        return _picked(episode[goal], elements)[:steps]
    values = np.asarray(goal, np.float64)
    return values if elements is None or len(values) == len(elements) else _picked(values, elements)
