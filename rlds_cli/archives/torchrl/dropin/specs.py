"""TorchRL's specs of a dataset, from its spaces and fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, NonTensor, Unbounded

from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset
from rlds_cli.ted import REWARD, Field, Space

Json = Mapping[str, Any]


def observation_spec(dataset: Dataset, fields: Mapping[str, str]) -> Composite:
    """Return the spec of all fields that are observed at t and at t+1, of those among ``fields``, by their keys."""
    seen = {key: f for key, f in _known(dataset, fields).items() if f.placement == "both"}
    return _composite(dataset, seen, 0)


def action_spec(dataset: Dataset, fields: Mapping[str, str]) -> Any:
    """Return the spec of actions: a Composite where they have several parts, None where there are none."""
    return _below(dataset, "action", fields)


def reward_spec(dataset: Dataset, fields: Mapping[str, str]) -> Any:
    """Return the spec of rewards, unbounded: a Composite where there are several, None where there are none."""
    return _below(dataset, REWARD, fields)


def _known(dataset: Dataset, fields: Mapping[str, str]) -> dict[str, Field]:
    there = {name: key for key, name in fields.items()}
    return {there[f.name]: f for f in dataset.schema.values() if f.name in there}


def done_spec() -> Composite:
    """Return the spec of the flags ``done``, ``terminated`` and ``truncated``."""
    return Composite({flag: Categorical(2, (1,), dtype=torch.bool) for flag in ("done", "terminated", "truncated")})


def specs(observation: Composite, action: Any, reward: Any) -> Composite:
    """Return all of them as ``env.specs`` has them."""
    full = {"full_observation_spec": observation, "full_done_spec": done_spec()}
    if reward is not None:
        full["full_reward_spec"] = Composite(reward=reward)
    inputs = {} if action is None else {"full_action_spec": Composite(action=action)}
    return Composite(output_spec=Composite(full), input_spec=Composite(inputs))


def _below(dataset: Dataset, root: str, fields: Mapping[str, str]) -> Any:
    found = {key: f for key, f in _known(dataset, fields).items() if is_below(f.name, root)}
    if not found:
        return None
    first = next(iter(found.values()))
    return _leaf(dataset, first) if first.name == root else _composite(dataset, found, root.count("/") + 1)


def _composite(dataset: Dataset, fields: Mapping[str, Field], depth: int) -> Composite:
    tree: dict[str, Any] = {}
    for key, f in fields.items():
        *path, leaf = key.split("/")[depth:]
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = _leaf(dataset, f)
    return _of(tree)


def _of(tree: Mapping[str, Any]) -> Composite:
    return Composite({key: _of(x) if isinstance(x, dict) else x for key, x in tree.items()})


def _leaf(dataset: Dataset, f: Field) -> Any:
    """Return the spec of one value of a field as batches hold it: its shape and dtype, its space's bounds."""
    if f.kind == "text":
        return NonTensor(shape=())
    dtype = torch.from_numpy(np.empty(0, f.dtype)).dtype
    shape = (1,) if f.name == REWARD and f.shape == () else f.shape
    root, *path = f.name.split("/")
    space = Space(dataset.manifest.spaces.get(root)).at(path)
    if space.form is not None and space.row_shape == f.shape and (make := _MADE.get(str(space.type))):
        return make(space.form, shape, dtype)
    return Categorical(2, shape, dtype=dtype) if dtype == torch.bool else Unbounded(shape, dtype=dtype)


def _box(space: Json, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    low, high = (np.broadcast_to(np.array(space[bound], object).astype(float), shape) for bound in ("low", "high"))
    if np.isneginf(low).all() and np.isposinf(high).all():
        return Unbounded(shape, dtype=dtype)
    if not dtype.is_floating_point:
        whole = Space(space).build()  # bounds of 64 bits are no floats
        low, high = whole.low, whole.high
    return Bounded(
        torch.as_tensor(low.copy(), dtype=dtype), torch.as_tensor(high.copy(), dtype=dtype), shape, dtype=dtype
    )


def _discrete(space: Json, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    start = space.get("start", 0)
    if start == 0:
        return Categorical(space["n"], shape, dtype=dtype)
    return Bounded(start, start + space["n"] - 1, shape, dtype=dtype)


def _multi_discrete(space: Json, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    most, start = np.array(space["nvec"]), np.array(space.get("start") or 0)
    if not start.any() and most.ndim == 1:
        return MultiCategorical(most.tolist(), shape, dtype=dtype)
    low, high = np.broadcast_to(start, shape), start + most - 1
    return Bounded(torch.as_tensor(low.copy()), torch.as_tensor(high), shape, dtype=dtype)


def _multi_binary(space: Json, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return Binary(shape=shape, dtype=dtype)


_MADE: Mapping[str, Callable[[Json, tuple[int, ...], torch.dtype], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
}
