"""Built-in functions that select episodes, or reward them by one of OGBench's tasks.

Selected episodes are copied in their stored form, so frames stay encoded. ``registry/ogbench_tasks.json`` holds the
goal positions of OGBench 1.2.2. Elements of ``qpos``, as its ``relabel_utils`` reads them::

    mazes      x y of the robot at 0; of the ball, in soccer, at 15           reached within 0.5 (point: 1.0)
    cubes      x y z of cube k at 14 + 7 k                                    each within 0.04
    scene      one cube at 14; after its 7 elements and two buttons: drawer, window; each within 0.04, and the buttons
    puzzles    button_states alone
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from rlds_cli import registry
from rlds_cli.dataset import Dataset
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, NoReward
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray


def _prepare_select(dataset: Dataset, *, where: str | None, split: str | None) -> Prepared:
    if where is None and split is None:
        raise InvalidArgument(
            "select_episodes needs where or split.", hint='where="total_reward > 3000 and length >= 500"'
        )
    chosen = dataset.select(where=where, split=split)
    if chosen.num_episodes == 0:
        raise InvalidArgument(
            f"select_episodes: none of the {dataset.num_episodes:,} episodes of {dataset.id} matches."
        )
    return Prepared(chosen, reads=())


@builtin(version=1, prepare=_prepare_select, loader="Loader(ds.select(where=...))")
def select_episodes(episode: Batch, *, where: str | None = None, split: str | None = None) -> Any:
    """Keep the episodes that match an expression of their columns, such as ``total_reward > 3000``.

    The expressions are those of ``Dataset.select``, which selects without a copy and whose result a loader accepts.

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
        ``where`` is not a valid expression, or names an unknown column.
    InvalidArgument
        No episode matches.
    """
    return episode


def _prepare_top(dataset: Dataset, *, percent: float, by: str, of: str) -> Prepared:
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
        raise InvalidArgument(f"top_episodes: percent={percent!r} is not in (0, 100].")
    if of not in ("episodes", "steps"):
        raise InvalidArgument(f'top_episodes: of={of!r} is neither "episodes" nor "steps".')
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
    """Keep the episodes with the highest returns, as for behaviour cloning on the top x %.

    Keeps at most ``percent`` of all, but at least one episode; the earlier of equal ones. Their order stays.
    `Dataset.select` selects without a copy.

    Parameters
    ----------
    episode : Batch
    percent : float
        In (0, 100].
    by : str
        The episode column to rank by, largest first.
    of : {"episodes", "steps"}
        The total that ``percent`` refers to. Decision Transformer (Chen et al. 2021) counts steps.

    Raises
    ------
    NoReward
        The dataset has no rewards.
    InvalidArgument
        ``percent`` is out of range, or the column is not numeric.
    """
    return episode


QPOS, BUTTONS = "info/qpos", "info/button_states"
CUBES_AT, CUBE_WIDTH, NEAR = 14, 7, 0.04
SCENE_BUTTONS = 2


@cache
def _tasks() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((registry.directory() / "ogbench_tasks.json").read_text(encoding="utf-8"))
    return found


def _prepare(dataset: Dataset, *, task: int | None, env: str | None) -> Prepared:
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


@builtin(version=1, prepare=_prepare)
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
