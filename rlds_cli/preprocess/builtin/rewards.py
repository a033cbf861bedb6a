"""Built-in functions for rewards: scaled, sparse, summed to returns to go, or computed from goals and OGBench's tasks.

``registry/ogbench_tasks.json`` holds the goal positions of OGBench 1.2.2. Elements of ``qpos``, as its
``relabel_utils`` reads them::

    mazes      x y of the robot at 0; of the ball, in soccer, at 15           reached within 0.5 (point: 1.0)
    cubes      x y z of cube k at 14 + 7 k                                    each within 0.04
    scene      one cube at 14; after its 7 elements and two buttons: drawer, window; each within 0.04, and the buttons
    puzzles    button_states alone
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.base.returns import check_returns, sum_from_ends
from rlds_cli.dataset import Batch, Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.builtin import Prepared, builtin
from rlds_cli.preprocess.builtin.fields import dtype_of
from rlds_cli.ted import FLAGS, REWARD

ACHIEVED, DESIRED, FINAL = "observation/achieved_goal", "observation/desired_goal", "final"
Goal = str | Sequence[float]
QPOS, BUTTONS = "info/qpos", "info/button_states"
CUBES_AT, CUBE_WIDTH, NEAR = 14, 7, 0.04
SCENE_BUTTONS = 2


def _floating(reward: Array) -> Array:
    return reward if reward.dtype.kind == "f" else reward.astype(np.float32)


def _number(function: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidArgument(f"{function}: {name}={value!r} is not a finite number.")


def _prepare_scale(dataset: Dataset, *, scale: float, shift: float) -> Prepared:
    _number("scale_reward", "scale", scale)
    _number("scale_reward", "shift", shift)
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare_scale, loader="Loader(ds, transform=Reward(scale, shift))")
def scale_reward(episode: Batch, *, scale: float = 1.0, shift: float = 0.0) -> Any:
    """Multiply rewards by ``scale`` and add ``shift``.

    `rlds_cli.loader.Reward` computes the same values while loading.

    Parameters
    ----------
    episode : Batch
    scale, shift : float
        Training on AntMaze uses ``shift=-1`` (IQL, CQL).

    Returns
    -------
    Batch
        Floats keep their dtype; integers become float32.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    """
    episode[REWARD] = _floating(episode[REWARD]) * float(scale) + float(shift)
    return episode


def _prepare_sparsify(dataset: Dataset, *, how: str, threshold: float) -> Prepared:
    if how not in ("end", "threshold"):
        raise InvalidArgument(f'sparsify_reward: how={how!r} is neither "end" nor "threshold".')
    _number("sparsify_reward", "threshold", threshold)
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare_sparsify)
def sparsify_reward(episode: Batch, *, how: Literal["end", "threshold"] = "end", threshold: float = 0.0) -> Any:
    """Set the last reward to the episode's return, or rewards above a threshold to 1; all others to 0.

    Parameters
    ----------
    episode : Batch
    how : {"end", "threshold"}
        ``end``: delayed rewards, as tested by Decision Transformer (Chen et al. 2021, section 5.7); the return is
        summed in float64. ``threshold``: 1 for rewards above ``threshold``.
    threshold : float

    Returns
    -------
    Batch
        Floats keep their dtype; integers become float32.

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


def _prepare_returns(
    dataset: Dataset, *, gamma: float, scale: float, through_terminals: bool, dtype: str, into: str
) -> Prepared:
    check_returns(gamma, scale)
    if dtype_of(dtype).kind != "f":
        raise InvalidArgument(f"return_to_go: {dtype!r} is not a floating dtype.", hint="float32 or float64")
    if into in dataset.schema or into.startswith("next/"):
        raise InvalidArgument(f"return_to_go: {into!r} is taken or begins with next/.", hint="into=NAME")
    return Prepared(dataset, reads=(dataset.field(REWARD).name,))


@builtin(version=1, prepare=_prepare_returns, loader="Loader(ds, fields=[..., ReturnToGo()])")
def return_to_go(
    episode: Batch,
    *,
    gamma: float = 1.0,
    scale: float = 1.0,
    through_terminals: bool = False,
    dtype: str = "float32",
    into: str = "return_to_go",
) -> Any:
    """Add the sum of the rewards from each step to the end of its episode.

    ``scale * (r[t] + gamma * r[t+1] + ...)``, summed in float64 from the end; the last term is that of the first
    terminated step, or of the episode's last. `rlds_cli.loader.ReturnToGo` computes the same column while
    loading.

    Parameters
    ----------
    episode : Batch
    gamma : float
        Discount per step, in [0, 1].
    scale : float
        Decision Transformer (Chen et al. 2021) uses 1e-3 on MuJoCo.
    through_terminals : bool
        Continue the sum past terminated steps inside an episode.
    dtype : str
        Dtype of the new field: ``float32`` or ``float64``.
    into : str
        Name of the new field.

    Returns
    -------
    Batch
        With the new field [T], placed at the root.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    InvalidArgument
        The discount is outside [0, 1], or the name is taken.
    """
    reward = episode[REWARD]
    sums = np.zeros((len(reward) + 1, *reward.shape[1:]))
    sums[:-1] = reward
    stop = np.zeros(len(reward), bool) if through_terminals else episode[FLAGS[0]].copy()
    stop[-1:] = True
    sum_from_ends(sums, stop, float(gamma))
    episode[into] = (sums[:-1] * scale).astype(dtype)
    return episode


def _prepare_goals(
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
            raise InvalidArgument(f"reward_from_goal: {f.name} is {f.dtype} {list(f.shape)}, not a vector.")
    width = _width(fields[0].shape[0], elements, fields[0].name)
    given = len(wanted) if not isinstance(wanted, str) else _width(fields[-1].shape[0], elements, fields[-1].name)
    if given not in (width, fields[0].shape[0]):
        raise InvalidArgument(
            f"reward_from_goal: the goal has {given} elements, {fields[0].name} {width}.",
            hint="elements=[0,1] compares only these",
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < math.inf:
        raise InvalidArgument(f"reward_from_goal: threshold={threshold!r} is not a distance.")
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


@builtin(
    version=1,
    prepare=_prepare_goals,
    loader="Loader(ds, fields=[..., Goals(...)]), with goals drawn anew for every batch",
)
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
    """Compute rewards from the distance to a goal: 0 if a step reaches it, else -1.

    As in Gymnasium-Robotics, the distance is Euclidean, between the goal and the state achieved by the step, at t+1;
    ``dense`` rewards are minus the distance. For goals drawn for each batch, see `rlds_cli.loader.Goals`.

    Parameters
    ----------
    episode : Batch
    goal : str or sequence of float, optional
        A field; ``final``, the last achieved state of the episode; or the elements of one goal for all episodes. By
        default ``observation/desired_goal``, or ``final`` if the dataset has no such field.
    achieved : str, optional
        The field to compare; by default ``observation/achieved_goal``, or ``observation`` if there is none.
    elements : sequence of int, optional
        The elements of both fields to compare: [0, 1] for a position in a plane.
    threshold : float
        The largest distance that counts as reached, in units of the field.
    dense : bool
    terminate : bool
        Flag the steps that reach the goal as terminated, so that nothing is bootstrapped from them. The episode
        continues.

    Returns
    -------
    Batch
        With ``next/reward`` float32 [T]. If the final observation is not recorded, the last step counts by its own
        observation.

    Raises
    ------
    UnknownField, InvalidArgument
        A field is missing, or goal and achieved state differ in their number of elements.
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
    """Return the goal of each step, [steps, n] or [n]."""
    if goal == FINAL:
        last: Array = reached[-1]
        return last
    if isinstance(goal, str):
        return _picked(episode[goal], elements)[:steps]
    values = np.asarray(goal, np.float64)
    return values if elements is None or len(values) == len(elements) else _picked(values, elements)


@cache
def _tasks() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((registry_directory() / "ogbench_tasks.json").read_text(encoding="utf-8"))
    return found


def _prepare_task(dataset: Dataset, *, task: int | None, env: str | None) -> Prepared:
    known = _known(dataset, env)
    _task(known, task)
    needed = [n for n in (QPOS, BUTTONS) if n in _needs(known["kind"])]
    reads = [dataset.field(n).name for n in needed]
    return Prepared(dataset, reads=(*reads, *FLAGS, *([REWARD] if REWARD in dataset.schema else [])))


def _needs(kind: str) -> tuple[str, ...]:
    return {"buttons": (BUTTONS,), "scene": (QPOS, BUTTONS)}.get(kind, (QPOS,))


def _known(dataset: Dataset, env: str | None) -> Mapping[str, Any]:
    name = env or str(dataset.manifest.env.get("id", ""))
    key = re.sub(r"-v\d+$", "", name).removeprefix("visual-")
    if key not in _tasks():
        raise InvalidArgument(
            f'ogbench_task: no tasks are known for the environment "{name}".',
            hint=f"env=pointmaze-medium-v0, say; those with tasks: {', '.join(_tasks())}",
        )
    found: Mapping[str, Any] = _tasks()[key]
    return found


def _task(known: Mapping[str, Any], task: int | None) -> Any:
    number = known["default"] if task is None else task
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(known["tasks"]):
        raise InvalidArgument(f"ogbench_task: task={task!r}; there are 1 to {len(known['tasks'])}.")
    return known["tasks"][number - 1]


@builtin(version=1, prepare=_prepare_task)
def ogbench_task(episode: Batch, source: Dataset, *, task: int | None = None, env: str | None = None) -> Any:
    """Compute rewards and flags of one of OGBench's tasks, as in its ``singletask`` datasets.

    As OGBench does since 1.2.0, the reward of step t is that of the state *before* the action. In a maze it
    is 0 at the goal, else -1; in cubes, scenes and puzzles minus the number of parts that are not in place. Steps with
    everything in place are flagged as terminated, so that nothing is bootstrapped from them (OGBench's ``masks``); the
    episode continues.

    Parameters
    ----------
    episode : Batch
    source : Dataset
        Passed by rlds; its manifest names the environment.
    task : int, optional
        1 to 5; by default OGBench's default for the environment.
    env : str, optional
        The environment, if the dataset does not name it: ``cube-single-v0``.

    Returns
    -------
    Batch
        With ``next/reward`` float32 [T].

    Raises
    ------
    UnknownField, InvalidArgument
        ``info/qpos`` or ``info/button_states`` is missing, the environment has no tasks, or the number is unknown.
    """
    known = _known(source, env)
    steps = len(episode[FLAGS[0]])
    parts = _in_place(known, _task(known, task), {n: episode[n][:steps] for n in _needs(known["kind"])})
    episode[REWARD] = (parts.sum(axis=-1) - parts.shape[-1]).astype(np.float32)
    episode[FLAGS[0]] = episode[FLAGS[0]] | parts.all(axis=-1)
    return episode


def _in_place(known: Mapping[str, Any], goal: Any, state: Mapping[str, Array]) -> BoolArray:
    """Return which parts of the goal are reached in each row, bool [T, parts]."""
    kind = known["kind"]
    if kind == "position":
        at = known["at"]
        distance = np.linalg.norm(state[QPOS][:, at : at + 2] - np.array(goal), axis=-1)
        return np.asarray(distance <= known["tolerance"])[:, None]
    if kind == "buttons":
        return np.asarray(state[BUTTONS] == np.array(goal))
    if kind == "cubes":
        return _cubes(state[QPOS], np.array(goal))
    cubes = np.array(goal["cubes"])
    drawer = CUBES_AT + len(cubes) * CUBE_WIDTH + SCENE_BUTTONS
    moved = np.abs(state[QPOS][:, drawer : drawer + 2] - np.array([goal["drawer"], goal["window"]])) <= NEAR
    return np.concatenate([_cubes(state[QPOS], cubes), state[BUTTONS] == np.array(goal["buttons"]), moved], axis=-1)


def _cubes(qpos: Array, goals: Array) -> BoolArray:
    starts = CUBES_AT + CUBE_WIDTH * np.arange(len(goals))
    places = qpos[:, starts[:, None] + np.arange(3)]
    return np.asarray(np.linalg.norm(goals - places, axis=-1) <= NEAR)
