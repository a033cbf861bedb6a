"""Priorities on a device: draws and updates there, which the host does not wait for."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import torch

from rlds_cli.loader.arrays.frameworks import ship
from rlds_cli.loader.kernel import Floats
from rlds_cli.loader.samplers.priorities import Priorities
from rlds_cli.ted import Array

WIDTH = 1024  # masses of a node: two levels for a million of them, each of which costs nine launches
_TOGETHER = 1 << 13  # draws, and nodes, that are added up at once: 64 MiB
_BELOW_ONE = 1 - 2.0**-53


class DevicePriorities(Priorities):
    """The priorities of windows 0..count-1 on a device, see `Priorities`; windows and draws are tensors there.

    `WIDTH` masses make a node, as many nodes a node of the level above. A row of a level is a node: a zero, then its
    masses, so that running sums begin with zero. A window takes 16 bytes.

    An update that is not possible changes nothing, and raises its error at once on the CPU. A GPU is not waited for:
    the error is raised by the next call that finds the update done.

    Parameters
    ----------
    source : Priorities
        The priorities to begin with; these are not changed.
    device : torch.device
    """

    def __init__(self, source: Priorities, device: torch.device) -> None:
        self.alpha, self.eps, self.beta = source.alpha, source.eps, source.beta
        self._most, self._changes, self._device = source._most, False, device
        self._count = source.count
        self._updates = 0  # priorities given so far
        self._latest = torch.zeros(self._count, dtype=torch.int64, device=device)  # the last update of each window
        self._unsure: deque[tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]] = deque()  # updates not looked at yet
        self.fill(source.masses)

    def fill(self, masses: Floats) -> None:
        """Set all masses [count]."""
        self._levels = [_nodes(self.sent(masses))]
        while len(self._levels[-1]) > 1:
            self._levels.append(_nodes(self._levels[-1].sum(1)))
        self._least = _least(self._levels[0])

    def sent(self, values: Array) -> torch.Tensor:
        """Return an array as a tensor on the device."""
        return ship({"": values}, self._device)[""]

    @property
    def count(self) -> int:
        """Number of windows."""
        return self._count

    @property
    def masses(self) -> Floats:
        """A copy of ``(priority + eps) ** alpha`` [count], on the host."""
        found: Floats = self._levels[0][:, 1:].reshape(-1)[: self._count].cpu().numpy().copy()
        self._look()
        return found

    def find(self, u: Floats) -> torch.Tensor:
        """Return the windows, int64 [K], that uniform draws [K] fall on, see `Priorities.find`."""
        self._look()
        top = self._levels[-1].expand(2, -1).cumsum(1)[0]  # of two rows: that of one is added up in any order on a GPU
        at = torch.minimum(self.sent(u) * top[-1], top[-1] * _BELOW_ONE)  # never on the padding
        node = torch.searchsorted(top, at, right=True).sub_(1)
        at = at - top[node]
        if len(self._levels) == 1:
            return node
        parts = zip(torch.split(node, _TOGETHER), torch.split(at, _TOGETHER), strict=True)
        return torch.cat([self._below(*part) for part in parts])

    def _below(self, node: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the windows at ``at`` [K] of the masses below nodes [K] of the level under the top."""
        for level in reversed(self._levels[:-1]):
            sums = level.index_select(0, node).cumsum(1)
            at = torch.minimum(at, sums[:, -1] * _BELOW_ONE)
            child = torch.searchsorted(sums, at.unsqueeze(1), right=True).sub_(1)
            at = at - sums.gather(1, child).squeeze(1)
            node = torch.add(child.squeeze(1), node, alpha=WIDTH)
        return node

    def weigh(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return chance and importance weight of windows [K], float64 [K], see `Priorities.weigh`."""
        mass = self._levels[0].view(-1)[_place(windows)]
        return mass / self._levels[-1].sum(), (self._least.min() / mass) ** self.beta

    def update(self, windows: Any, priority: Any) -> None:
        """Set priorities, see `Priorities.update`; arrays, or tensors of any device."""
        self._look()
        at, new = self._taken(windows, torch.int64), self._taken(priority, torch.float64)
        good = (new >= 0) & (new <= self._most) & (at >= 0) & (at < self._count)
        fine = good.all()
        self._set(at.clamp(0, self._count - 1), new, fine)
        told = fine.to("cpu", non_blocking=True)
        on_gpu = self._device.type == "cuda"
        done = torch.cuda.current_stream(self._device).record_event() if on_gpu else None
        self._unsure.append((done, told, at, new))
        self._look()

    def _taken(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return (values if isinstance(values, torch.Tensor) else self.sent(values)).to(self._device, dtype)

    def _set(self, at: torch.Tensor, new: torch.Tensor, fine: torch.Tensor) -> None:
        """Set priorities of windows [K] if all of them are ``fine``; the last one of a window counts."""
        order = torch.arange(self._updates, self._updates + len(at), device=self._device)
        self._latest.scatter_reduce_(0, at, order, "amax")
        last = new[self._latest[at].sub_(self._updates)]  # the same for all places of a window
        self._updates += len(at)
        masses, place = self._levels[0].view(-1), _place(at)
        masses[place] = torch.where(fine, (last + self.eps) ** self.alpha, masses[place])
        nodes = self._nodes_of(self._levels[0], at)
        for some in torch.split(nodes, _TOGETHER):
            self._least[some] = _least(self._levels[0].index_select(0, some))
        for level, above in pairwise(self._levels):
            nodes = self._nodes_of(level, at)
            for some in torch.split(nodes, _TOGETHER):
                above.view(-1)[_place(some)] = level.index_select(0, some).sum(1)
            at = nodes

    def _nodes_of(self, level: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the nodes of a level above numbers [K]; all nodes, each once, where there are fewer of them."""
        return at // WIDTH if len(at) < len(level) else torch.arange(len(level), device=self._device)

    def _look(self) -> None:
        """Raise the error of an update that was refused, once it is known."""
        while self._unsure and (self._unsure[0][0] is None or self._unsure[0][0].query()):
            _, fine, at, new = self._unsure.popleft()
            if not fine:
                self.check(at.cpu().numpy(), new.cpu().numpy())


def _nodes(values: torch.Tensor) -> torch.Tensor:
    """Return values [n] as rows of nodes [nodes, 1 + WIDTH], padded with zeros."""
    nodes = -(-len(values) // WIDTH)
    rows = values.new_zeros(nodes, 1 + WIDTH)
    padded = torch.nn.functional.pad(values, (0, nodes * WIDTH - len(values)))
    rows[:, 1:] = padded.view(nodes, WIDTH)
    return rows


def _place(number: torch.Tensor) -> torch.Tensor:
    """Return the places of numbers [K] in the rows of a level, end to end."""
    return number + number // WIDTH + 1


def _least(nodes: torch.Tensor) -> torch.Tensor:
    """Return the smallest mass of each node; zeros are padding."""
    return torch.where(nodes > 0, nodes, torch.inf).amin(1)
