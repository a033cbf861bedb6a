"""Whole trajectories of a dataset as TensorDicts, padded with zeros: what ``split_trajs=True`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rlds_cli.archives.torchrl.dropin.transitions import Transitions, Tree, as_leaf, as_list
from rlds_cli.base.array_types import IntArray

MASK, TRAJ_IDS = "mask", "traj_ids"


class Trajectories:
    """The episodes of a dataset, each padded to the length L of the longest, as ``split_trajectories`` pads them.

    ``mask`` [E, L] is True where a transition is, and ``traj_ids`` [E, L] the number of the trajectory there. All
    values are zero where ``mask`` is False.

    Parameters
    ----------
    transitions : Transitions
    """

    def __init__(self, transitions: Transitions) -> None:
        self.transitions, self.dataset = transitions, transitions.dataset
        self.tree = Tree([*(n for n in transitions.names if n not in (MASK, TRAJ_IDS)), MASK, TRAJ_IDS])
        self.names, self.fields = self.tree.names, transitions.fields
        self.longest = int(transitions.counts.max())

    def __len__(self) -> int:
        return len(self.transitions.counts)

    @property
    def size(self) -> torch.Size:
        """Batch size of all of it: [E, L]."""
        return torch.Size((len(self), self.longest))

    def row_of(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one value of a field."""
        if name in (MASK, TRAJ_IDS):
            return (), np.dtype(bool if name == MASK else np.int64)
        return self.transitions.row_of(name)

    def read(self, numbers: IntArray, names: tuple[str, ...] | None = None) -> list[Any]:
        """Return the values of trajectories ``numbers`` [n]: a tensor [n, L, ...] for each name.

        Raises
        ------
        IndexError
            There is no such trajectory.
        """
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"trajectories {int(numbers.min())} to {int(numbers.max())} of {len(self)}")
        names = self.names if names is None else names
        step = np.arange(self.longest)
        mask = step < self.transitions.counts[numbers][:, None]
        flat = (self.transitions.first[numbers][:, None] + step)[mask]
        stored = tuple(n for n in names if n not in (MASK, TRAJ_IDS))
        read = dict(zip(stored, self.transitions.read(flat, stored) if stored else (), strict=True))
        made = {n: _padded(values, mask) for n, values in read.items()}
        made[MASK], made[TRAJ_IDS] = torch.from_numpy(mask), torch.from_numpy(np.where(mask, numbers[:, None], 0))
        return [made[n] for n in names]

    def tensordict(self, numbers: IntArray, more: Mapping[str, Any] | None = None) -> TensorDict:
        """Return trajectories ``numbers`` [n] as a TensorDict with batch size [n, L]; ``more`` is added to it."""
        return self.tree.tensordict(self.read(numbers), torch.Size((len(numbers), self.longest)), more)

    def column(self, name: str) -> Any:
        """Return a field of all trajectories [E, L, ...], in new memory."""
        (values,) = self.read(np.arange(len(self)), (name,))
        return values

    def __reduce__(self) -> tuple[object, ...]:
        return Trajectories, (self.transitions,)


def _padded(values: Any, mask: Any) -> Any:
    if not isinstance(values, torch.Tensor):
        text = np.full(mask.shape, None, object)
        text[mask] = np.array([*as_list(values), None], object)[:-1]
        return as_leaf(text)
    out = torch.zeros((*mask.shape, *values.shape[1:]), dtype=values.dtype)
    out[torch.from_numpy(mask)] = values
    return out
