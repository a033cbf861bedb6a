"""Datasets as replay buffers of d3rlpy 2, whose episodes are views of the mapped files: there is no second copy.

>>> from rlds_cli.interop import d3rlpy
>>> dataset = d3rlpy.MDPDataset("d4rl/hopper-medium-v2")  # doctest: +SKIP

d3rlpy is imported when a buffer is made. ``docs/families/d3rlpy.md`` says which steps d3rlpy draws.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rlds_cli.archives.following import require_rows_that_follow
from rlds_cli.base import counterparts
from rlds_cli.base.array_types import Array
from rlds_cli.base.integers import within
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument, MissingPackage, RldsError
from rlds_cli.make import download
from rlds_cli.ted import FLAGS, REWARD, Field

if TYPE_CHECKING:
    import gymnasium

TERMINATED = FLAGS[0]

# Functions of d3rlpy for which rlds has one, or a dataset.
_ELSEWHERE = {
    "get_d4rl": 'get_dataset("d4rl/hopper-medium-v2")',
    "get_minari": 'get_dataset("minari/mujoco/hopper/expert-v0")',
    "get_atari": 'MDPDataset("atari_dqn/Pong/1"), converted from the logs',
    "get_atari_transitions": 'MDPDataset("atari_dqn/Pong/1"), converted from the logs',
    "get_cartpole": 'get_dataset("d3rlpy/cartpole-replay")',
    "get_pendulum": 'MDPDataset("sample/pendulum-d4rl")',
    "get_dataset_from_env": "get_dataset(ID)",
    "ReplayBuffer": "MDPDataset(ID) is one",
    "InfiniteBuffer": "MDPDataset(ID), whose buffer reads the mapped files",
    "FIFOBuffer": 'rlds_cli.writer("local/NAME", keep=rlds_cli.Fifo(...)) for a dataset that grows',
    "create_fifo_replay_buffer": 'rlds_cli.writer("local/NAME", keep=rlds_cli.Fifo(...)) for a dataset that grows',
    "create_infinite_replay_buffer": 'rlds_cli.writer("local/NAME") for a dataset that grows',
    "Episode": "rlds_cli.create takes episodes as dicts",
}


def MDPDataset(
    data: StrPath | Dataset,
    *,
    observations: Sequence[str] | None = None,
    transition_picker: Any = None,
    trajectory_slicer: Any = None,
    action_space: Any = None,
    action_size: int | None = None,
) -> Any:
    """Return a ``d3rlpy.dataset.ReplayBuffer`` over the files of a dataset, as ``d3rlpy.dataset.MDPDataset`` makes one.

    An episode of T steps has T observations, as everywhere in d3rlpy. If it terminates it has T transitions, else T-1:
    d3rlpy has no place for a final observation, and never draws the last step of an episode that was truncated or cut.
    Where an episode continues after a step that terminates, it is divided there, as d3rlpy's own datasets are. Parts
    without a transition are left out.

    Parameters
    ----------
    data : str, path or Dataset
        An id, downloaded if it is not here; a directory; a dataset, or a selection of its episodes.
    observations : sequence of str, optional
        Names of the fields of an observation. Several make a tuple observation, in this order. By default all fields
        ``observation`` and ``observation/...``, in the order of ``ds.schema``.
    transition_picker, trajectory_slicer
        Of d3rlpy, for n-step returns, stacked frames and the like.
    action_space : d3rlpy.constants.ActionSpace, optional
        By default discrete for a Discrete space, or for single integers if no space is recorded; else continuous.
    action_size : int, optional
        Number of discrete actions, or of elements of a continuous action. By default that of the space, or else the
        greatest action plus one.

    Raises
    ------
    MissingPackage
        d3rlpy is not installed.
    InvalidArgument
        d3rlpy cannot express the fields: actions of several fields or axes, rewards that are vectors, discrete actions
        that do not count from 0, encoded frames, texts.
    NoReward, UnknownField
        The dataset has no reward, no action or no observation, or stores next observations of its own.
    """
    peer = _import()
    ds = _open(data)
    require_rows_that_follow(ds, "d3rlpy's")
    names = observations or [n for n in ds.schema if is_below(n, "observation")] or ["observation"]
    columns = tuple(_flat(ds, ds.field(name)) for name in names)
    actions, rewards = _flat(ds, _single(ds, "action")), _flat(ds, ds.field(REWARD))
    for name, column in (("action", actions), (REWARD, rewards)):
        if column.ndim != 2 or (name == REWARD and column.shape[1] != 1):
            shape = list(column.shape[1:])
            raise InvalidArgument(
                f"{name} of {ds.id} has shape {shape}, which d3rlpy cannot express.", hint=_PREPROCESS
            )
    if action_space is None:
        action_space = peer.ActionSpace.DISCRETE if _is_discrete(ds, actions) else peer.ActionSpace.CONTINUOUS
    if action_size is None:
        discrete = action_space is peer.ActionSpace.DISCRETE
        action_size = _count_actions(ds, actions) if discrete else int(actions.shape[1])
    episodes = [
        peer.dataset.Episode(
            observations=columns[0][a:b] if len(columns) == 1 else [c[a:b] for c in columns],
            actions=actions[a:b],
            rewards=rewards[a:b],
            terminated=terminated,
        )
        for a, b, terminated in _pieces(ds)
        if b - a > (not terminated)
    ]
    signature = peer.dataset.Signature
    return peer.dataset.ReplayBuffer(
        Buffer(episodes, ds.id),
        transition_picker=transition_picker,
        trajectory_slicer=trajectory_slicer,
        observation_signature=signature([c.dtype for c in columns], [c.shape[1:] for c in columns]),
        action_signature=signature([actions.dtype], [actions.shape[1:]]),
        reward_signature=signature([rewards.dtype], [rewards.shape[1:]]),
        action_space=action_space,
        action_size=action_size,
    )


def get_dataset(
    data: StrPath | Dataset, transition_picker: Any = None, trajectory_slicer: Any = None, **kwargs: Any
) -> tuple[Any, gymnasium.Env[Any, Any]]:
    """Return the buffer and the environment, as ``d3rlpy.datasets.get_dataset`` does.

    Parameters
    ----------
    data, transition_picker, trajectory_slicer
        As of `MDPDataset`.
    **kwargs
        For `Dataset.make_env`: ``render_mode``, ``max_episode_steps``.
    """
    ds = _open(data)
    buffer = MDPDataset(ds, transition_picker=transition_picker, trajectory_slicer=trajectory_slicer)
    return buffer, ds.make_env(**kwargs)


class Buffer(Sequence[tuple[Any, int]]):
    """A ``d3rlpy.dataset.BufferProtocol`` that finds transitions by counting, and holds none. It is read-only.

    Attributes
    ----------
    episodes : sequence of d3rlpy.dataset.EpisodeBase
    """

    def __init__(self, episodes: Sequence[Any], id: str) -> None:
        self.episodes = episodes
        self._id = id
        self._ends: list[int] = np.cumsum([e.transition_count for e in episodes], dtype=np.int64).tolist()

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self.transition_count

    def __getitem__(self, index: int) -> tuple[Any, int]:  # type: ignore[override]  # d3rlpy takes no slices
        """Return the episode of a transition, and the number of its step."""
        number = within(index, self.transition_count, f"transitions of {self._id}")
        k = bisect_right(self._ends, number)
        return self.episodes[k], number - (self._ends[k - 1] if k else 0)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return ((episode, i) for episode in self.episodes for i in range(episode.transition_count))

    def append(self, episode: Any, index: int) -> NoReturn:
        """Refuse new transitions: the dataset is read-only."""
        raise RldsError(
            f"{self._id} is read-only: nothing is added to its buffer.",
            hint="d3rlpy.dataset.MixedReplayBuffer(d3rlpy.dataset.create_fifo_replay_buffer(...), dataset, 0.5)",
        )


_PREPROCESS = 'a preprocess function can make one of it: rlds_cli.preprocess.run(ds, function, "name")'


def _import() -> Any:
    try:
        return import_module("d3rlpy")
    except ImportError as e:
        raise MissingPackage(
            f"A replay buffer of d3rlpy needs d3rlpy, which cannot be imported: {e}.", hint="pip install d3rlpy"
        ) from e


def _open(data: StrPath | Dataset) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, os.PathLike) or data.startswith((".", "~", os.sep)):
        return open_dataset(data)
    return download(data)


def _single(ds: Dataset, name: str) -> Field:
    below = [n for n in ds.schema if n.startswith(f"{name}/")]
    if below:
        raise InvalidArgument(f"d3rlpy has one {name}; {ds.id} has {', '.join(below)}.", hint=_PREPROCESS)
    return ds.field(name)


def _flat(ds: Dataset, f: Field) -> Array:
    """Return the rows of a field, [rows, ...], with an axis for single numbers; a view of the mapped file."""
    if f.kind != "array":
        raise InvalidArgument(
            f"{f.name} of {ds.id} is stored as {f.codec or 'text'}, which would be decoded again for every transition.",
            hint="rlds preprocess ID --fn encode --arg codec=raw"
            if f.kind == "frames"
            else "leave it out: observations=",
        )
    column = np.asarray(ds.store.rows(f.name))
    return column if f.shape else column[:, None]


def _is_discrete(ds: Dataset, actions: Array) -> bool:
    """Tell whether the recorded space is Discrete; without a space, whether actions are single integers."""
    space = ds.manifest.spaces.get("action")
    if space is not None and space.get("type") not in ("Box", "Discrete"):
        raise InvalidArgument(
            f"Actions of {ds.id} are of a {space.get('type')} space; d3rlpy has Discrete and Box.", hint=_PREPROCESS
        )
    return space["type"] == "Discrete" if space else actions.dtype.kind in "iu" and actions.shape[1] == 1


def _count_actions(ds: Dataset, actions: Array) -> int:
    space = ds.manifest.spaces.get("action") or {}
    start, count = space.get("start", 0), space.get("n")
    if count is None:
        values = ds.to_numpy("d4rl", ["action"])["actions"]
        start, count = (min(0, int(values.min())), int(values.max()) + 1) if len(values) else (0, 1)
    if start:
        raise InvalidArgument(f"Actions of {ds.id} start at {start}; those of d3rlpy count from 0.", hint=_PREPROCESS)
    return int(count)


def _pieces(ds: Dataset) -> Iterator[tuple[int, int, bool]]:
    """Yield first row, row behind the last and the terminal flag of d3rlpy's episodes, in order."""
    e = ds.episodes
    terminated = np.flatnonzero(ds.store.rows(TERMINATED))
    starts, stops = e["start"], e["start"] + e["length"]
    inside = zip(np.searchsorted(terminated, starts).tolist(), np.searchsorted(terminated, stops).tolist(), strict=True)
    for start, stop, (i, j) in zip(starts.tolist(), stops.tolist(), inside, strict=True):
        for row in terminated[i:j].tolist():
            yield start, row + 1, True
            start = row + 1
        if start < stop:
            yield start, stop, False


if not TYPE_CHECKING:  # type checkers find wrong names by themselves

    def __getattr__(name: str) -> NoReturn:
        raise counterparts.no_attribute("rlds_cli.interop.d3rlpy", name, _ELSEWHERE)
