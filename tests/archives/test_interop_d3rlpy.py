"""Datasets as replay buffers of d3rlpy: worked out by hand, and where d3rlpy is installed against its own dataset.

Without d3rlpy the first part runs with stand-ins for the three classes of which buffers are made.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import write_d4rl

import rlds_cli
from rlds_cli.errors import InvalidArgument, MissingPackage, NoReward, RldsError, UnknownField
from rlds_cli.interop import d3rlpy
from rlds_cli.make.importing import import_files


@dataclass
class Episode:
    observations: Any
    actions: Any
    rewards: Any
    terminated: bool

    @property
    def transition_count(self) -> int:
        return len(self.actions) if self.terminated else len(self.actions) - 1


@dataclass
class Signature:
    dtype: Any
    shape: Any


class ReplayBuffer:
    def __init__(self, buffer: Any, **given: Any) -> None:
        self.buffer, self.episodes, self.transition_count = buffer, buffer.episodes, buffer.transition_count
        self.dataset_info = SimpleNamespace(**given)


class ActionSpace(Enum):
    CONTINUOUS = 1
    DISCRETE = 2


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """d3rlpy, or what of it is needed to hold episodes."""
    if find_spec("d3rlpy") is not None:
        return pytest.importorskip("d3rlpy")
    parts = SimpleNamespace(Episode=Episode, Signature=Signature, ReplayBuffer=ReplayBuffer)
    found = SimpleNamespace(dataset=parts, ActionSpace=ActionSpace)
    monkeypatch.setitem(sys.modules, "d3rlpy", found)  # type: ignore[arg-type]
    return found


@pytest.fixture
def real() -> Iterator[Any]:
    found = pytest.importorskip("d3rlpy")
    state = np.random.get_state()
    yield found
    np.random.set_state(state)


def episode(first: int, steps: int, *, ends: tuple[int, ...] = (), final: bool = True, cut: bool = False) -> Any:
    """An episode whose observations count from ``first``; it terminates after the steps ``ends``."""
    at = np.arange(steps)
    return {
        "observation": np.arange(first, first + steps + final, dtype=np.float32)[:, None],
        "action": (first + at)[:, None] / 100,
        "next": {
            "reward": 1.0 + at,
            "terminated": np.isin(at, ends),
            "truncated": (at == steps - 1) & (steps - 1 not in ends) & (not cut),
        },
    }


def made(*episodes: Any, **options: Any) -> rlds_cli.Dataset:
    return rlds_cli.create("local/made", episodes, force=True, **options)


def rows_of(e: Any) -> tuple[list[float], bool]:
    return e.observations[:, 0].tolist(), e.terminated


# -- by hand


def test_episodes_end_as_the_table_says(peer: Any) -> None:
    ds = made(
        episode(0, 3, ends=(2,)),  # terminated: 3 transitions
        episode(10, 3),  # truncated: 2, though the final observation is known
        episode(20, 2, cut=True, final=False),
        episode(30, 1),  # no transition at all: left out
        episode(40, 1, ends=(0,)),
    )
    buffer = d3rlpy.MDPDataset(ds)
    expected = [([0, 1, 2], True), ([10, 11, 12], False), ([20, 21], False), ([40], True)]
    assert [rows_of(e) for e in buffer.episodes] == expected
    assert buffer.transition_count == len(buffer.buffer) == 3 + 2 + 1 + 1
    numbers = [(e.observations[i, 0], i) for e, i in (buffer.buffer[n] for n in range(7))]
    assert numbers == [(0, 0), (1, 1), (2, 2), (10, 0), (11, 1), (20, 0), (40, 0)]
    assert [i for _, i in buffer.buffer] == [0, 1, 2, 0, 1, 0, 0] and buffer.buffer[-1][0] is buffer.episodes[-1]
    assert buffer.episodes[1].rewards.tolist() == [[1], [2], [3]]
    assert buffer.episodes[1].actions[:, 0].tolist() == [0.1, 0.11, 0.12]


@pytest.mark.thorough
def test_an_episode_that_goes_on_after_a_terminal_is_divided(peer: Any) -> None:
    buffer = d3rlpy.MDPDataset(made(episode(0, 6, ends=(1, 2)), episode(10, 3, ends=(0, 2))))
    expected = [([0, 1], True), ([2], True), ([3, 4, 5], False), ([10], True), ([11, 12], True)]
    assert [rows_of(e) for e in buffer.episodes] == expected
    assert buffer.transition_count == 2 + 1 + 2 + 1 + 2


@pytest.mark.thorough
def test_episodes_are_views_of_the_files(peer: Any) -> None:
    ds = made(episode(0, 3), episode(10, 4, ends=(3,)))
    for e in d3rlpy.MDPDataset(ds).episodes:
        for values, name in ((e.observations, "observation"), (e.actions, "action"), (e.rewards, "next/reward")):
            assert type(values) is np.ndarray and np.shares_memory(values, ds.column(name))
    selected = d3rlpy.MDPDataset(ds.select(where="length == 4"))
    assert [rows_of(e)[0] for e in selected.episodes] == [[10, 11, 12, 13]]


@pytest.mark.thorough
def test_observations_of_several_fields_are_tuples(peer: Any) -> None:
    both = [e | {"observation": {"goal": e["observation"] + 100, "state": e["observation"]}} for e in [episode(0, 3)]]
    ds = made(*both)
    goal, state = d3rlpy.MDPDataset(ds).episodes[0].observations
    assert goal[:, 0].tolist() == [100, 101, 102] and state[:, 0].tolist() == [0, 1, 2]
    state, goal = d3rlpy.MDPDataset(ds, observations=["observation/state", "observation/goal"]).episodes[0].observations
    assert goal[:, 0].tolist() == [100, 101, 102] and state[:, 0].tolist() == [0, 1, 2]
    alone = d3rlpy.MDPDataset(ds, observations=["observation/state"])
    assert rows_of(alone.episodes[0]) == ([0, 1, 2], False)


def test_kinds_and_sizes_of_actions(peer: Any) -> None:
    info = d3rlpy.MDPDataset(rlds_cli.download("sample/cartpole-minari")).dataset_info
    assert (info.action_space, info.action_size) == (peer.ActionSpace.DISCRETE, 2)
    assert (info.action_signature.shape, info.action_signature.dtype) == ([(1,)], [np.int64])
    info = d3rlpy.MDPDataset(rlds_cli.download("sample/pendulum-d4rl")).dataset_info
    assert (info.action_space, info.action_size) == (peer.ActionSpace.CONTINUOUS, 1)
    assert (info.observation_signature.shape, info.reward_signature.shape) == ([(3,)], [(1,)])
    one = episode(0, 3)
    for actions, kind, size in (
        (np.array([0, 4, 1]), peer.ActionSpace.DISCRETE, 5),  # no space is recorded: integers
        (np.array([0.0, 4.0, 1.0]), peer.ActionSpace.CONTINUOUS, 1),
        (np.array([[0, 1], [4, 2], [1, 1]]), peer.ActionSpace.CONTINUOUS, 2),
    ):
        info = d3rlpy.MDPDataset(made(one | {"action": actions})).dataset_info
        assert (info.action_space, info.action_size) == (kind, size)
    ds = made(one | {"action": np.array([0, 2, 1])}, action_space={"type": "Discrete", "n": 9})
    assert d3rlpy.MDPDataset(ds).dataset_info.action_size == 9
    assert d3rlpy.MDPDataset(ds, action_size=12).dataset_info.action_size == 12


def test_what_d3rlpy_cannot_express_is_refused(peer: Any, tmp_path: Any) -> None:
    one = episode(0, 3)
    other: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (one | {"action": np.zeros((3, 2, 2))}, {}, r"action of local/made has shape \[2, 2\]"),
        (one | {"action": {"a": np.zeros(3), "b": np.zeros(3)}}, {}, "d3rlpy has one action"),
        (one | {"action": np.array([-1, 0, 1])}, {}, "start at -1"),
        (one | {"action": np.array([3, 4, 5])}, {"action_space": {"type": "Discrete", "n": 3, "start": 3}}, "at 3"),
        (
            one | {"action": np.zeros((3, 2), np.int64)},
            {"action_space": {"type": "MultiDiscrete", "nvec": [2, 2]}},
            "Mul",
        ),
        (one | {"next": {"reward": np.zeros((3, 2))}}, {}, r"next/reward of local/made has shape \[2\]"),
        (one | {"observation": ["a", "b", "c", "d"]}, {}, "observation of local/made is stored as text"),
    )
    for given, options, text in other:
        with pytest.raises(InvalidArgument, match=text):
            d3rlpy.MDPDataset(made(given, **options))
    with pytest.raises(NoReward):
        d3rlpy.MDPDataset(made({k: one[k] for k in ("observation", "action")}))
    columns = write_d4rl(tmp_path / "own.hdf5", [5, 4])
    with h5py.File(tmp_path / "own.hdf5", "a") as f:
        f["next_observations"][...] = columns["next_observations"] + 1
    with pytest.raises(UnknownField, match="local/own stores next/observation"):
        d3rlpy.MDPDataset(import_files(tmp_path / "own.hdf5", "local/own", episodes_by="flags"))
    with pytest.raises(RldsError, match="local/made is read-only") as e:
        d3rlpy.MDPDataset(made(one)).buffer.append(None, 0)
    assert e.value.hint is not None and "MixedReplayBuffer" in e.value.hint


def test_without_d3rlpy_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "d3rlpy", None)
    with pytest.raises(MissingPackage, match="pip install d3rlpy"):
        d3rlpy.MDPDataset(made(episode(0, 3)))


# -- with d3rlpy itself


def check_same_batch(ours: Any, theirs: Any) -> None:
    for name in ("observations", "actions", "rewards", "next_observations", "next_actions", "terminals", "intervals"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name, strict=True)


def theirs_of(real: Any, columns: Any, **options: Any) -> Any:
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return real.dataset.MDPDataset(**{name: columns[name] for name in names}, **options)


@pytest.mark.filterwarnings("ignore")
def test_batches_are_those_of_its_own_dataset(real: Any, tmp_path: Any) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", [30, 7, 1, 20, 1, 9], next_observations=False)
    ds = import_files(tmp_path / "a.hdf5", "local/a")
    picker = real.dataset.MultiStepTransitionPicker(n_steps=3, gamma=0.9)
    for options in ({}, {"transition_picker": picker}):
        ours, theirs = d3rlpy.MDPDataset(ds, **options), theirs_of(real, columns, **options)
        assert ours.transition_count == theirs.transition_count and ours.size() == theirs.size()
        assert ours.dataset_info.action_size == theirs.dataset_info.action_size == 2
        batches = []
        for buffer in (ours, theirs):
            np.random.seed(0)
            batches.append((buffer.sample_transition_batch(200), buffer.sample_trajectory_batch(50, 8)))
        check_same_batch(batches[0][0], batches[1][0])
        for name in ("observations", "actions", "rewards", "returns_to_go", "terminals", "timesteps", "masks"):
            np.testing.assert_array_equal(*(getattr(b[1], name) for b in batches), err_msg=name, strict=True)


@pytest.mark.filterwarnings("ignore")
def test_flags_inside_of_episodes_are_as_in_its_own_dataset(real: Any) -> None:
    ds = made(episode(0, 6, ends=(1, 2)), episode(10, 3, ends=(0, 2)), episode(20, 4))
    theirs = theirs_of(real, ds.to_numpy("d4rl"))
    ours = d3rlpy.MDPDataset(ds)
    assert [rows_of(e) for e in ours.episodes] == [rows_of(e) for e in theirs.episodes]


@pytest.mark.filterwarnings("ignore")
def test_it_trains_dumps_and_mixes(real: Any) -> None:
    dataset, env = d3rlpy.get_dataset("sample/pendulum-d4rl")
    assert env.spec is not None and env.spec.id == "Pendulum-v1"
    scaler = real.preprocessing.StandardObservationScaler()
    algo = real.algos.TD3PlusBCConfig(batch_size=16, observation_scaler=scaler).create(device="cpu:0")
    quiet = real.logging.NoopAdapterFactory()
    algo.fit(dataset, n_steps=2, n_steps_per_epoch=2, show_progress=False, logger_adapter=quiet)
    file = io.BytesIO()
    dataset.dump(file)
    again = real.dataset.ReplayBuffer.load(file, real.dataset.InfiniteBuffer())
    assert again.transition_count == dataset.transition_count
    online = real.dataset.create_fifo_replay_buffer(100, env=env)
    online.append(np.zeros(3), np.zeros(1), 0.0)
    online.append(np.zeros(3), np.zeros(1), 0.0)
    online.clip_episode(True)
    mixed = real.dataset.MixedReplayBuffer(online, dataset, secondary_mix_ratio=0.5)
    assert len(mixed.sample_transition_batch(8)) == 8
