"""Priorities on a device: draws and updates there, which the host does not wait for."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import torch

from rlds_cli.base.array_types import Array
from rlds_cli.loader.arrays.frameworks import send
from rlds_cli.loader.kernel import Floats
from rlds_cli.loader.samplers.priorities import Priorities

WIDTH = 1024  # masses of a node: two levels for a million of them
_TOGETHER = 1 << 13  # draws, and nodes, that are added up at once: 64 MiB
_BELOW_ONE = 1 - 2.0**-52


class DevicePriorities(Priorities):
    """The priorities of windows 0..count-1 on a device, see `Priorities`; windows and draws are tensors there.

    `WIDTH` masses make a node, as many nodes a node of the level above. A row of a level is a node, the last one padded
    with zeros, and the highest level is one row. Every operation is a launch on a GPU, of which there are as few as can
    be. A window takes 16 bytes.

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
        return send(values, self._device)

    @property
    def count(self) -> int:
        """Number of windows."""
        return self._count

    @property
    def masses(self) -> Floats:
        """A copy of ``(priority + eps) ** alpha`` [count], on the host."""
        found: Floats = self._levels[0].view(-1)[: self._count].cpu().numpy().copy()
        self._look()
        return found

    def find(self, u: Floats) -> torch.Tensor:
        """Return the windows, int64 [K], that uniform draws [K] fall on, see `Priorities.find`."""
        self._look()
        top = self._levels[-1]
        ends = top.expand(2, -1).cumsum(1)[0]  # of two rows: a GPU adds up a single one in any order
        at = self.sent(u * _BELOW_ONE) * ends[-1]  # below the sum, also when rounded: never on the padding
        node = torch.searchsorted(ends, at, right=True)
        if len(self._levels) == 1:
            return node
        at = at - (ends[node] - top[0][node])
        if len(node) <= _TOGETHER:
            return self._below(node, at)
        parts = zip(torch.split(node, _TOGETHER), torch.split(at, _TOGETHER), strict=True)
        return torch.cat([self._below(*part) for part in parts])

    def _below(self, node: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the windows at ``at`` [K] of the masses below nodes [K] of the level under the top."""
        for number, level in reversed([*enumerate(self._levels[:-1])]):
            masses = level.index_select(0, node)
            ends = masses.cumsum(1)
            at = torch.minimum(at, ends[:, -1] * _BELOW_ONE).unsqueeze(1)
            child = torch.searchsorted(ends, at, right=True)
            node = torch.add(child.view(-1), node, alpha=WIDTH)
            if number:
                at = (at - (ends.gather(1, child) - masses.gather(1, child))).view(-1)
        return node

    def weigh(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return chance and importance weight of windows [K], float64 [K], see `Priorities.weigh`."""
        mass = self._levels[0].view(-1)[windows]
        return mass / self._levels[-1].sum(), (self._least.min() / mass) ** self.beta

    def update(self, windows: Any, priority: Any) -> None:
        """Set priorities, see `Priorities.update`; arrays, or tensors of any device."""
        self._look()
        at, new = self._taken(windows, torch.int64), self._taken(priority, torch.float64)
        possible = at.clamp(0, self._count - 1)
        fine = ((new.clamp(0, self._most) == new) & (possible == at)).all()  # NaN equals nothing
        self._set(possible, new, fine)
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
        masses = self._levels[0].view(-1)
        masses[at] = torch.where(fine, (last + self.eps) ** self.alpha, masses[at])
        for number, (level, above) in enumerate(pairwise(self._levels)):
            at = at // WIDTH if len(at) < len(level) else torch.arange(len(level), device=self._device)
            for some in torch.split(at, _TOGETHER):
                nodes = level.index_select(0, some)
                above.view(-1)[some] = nodes.sum(1)
                if number == 0:
                    self._least[some] = _least(nodes)
        if len(self._levels) == 1:
            self._least = _least(self._levels[0])

    def _look(self) -> None:
        """Raise the error of an update that was refused, once it is known."""
        while self._unsure and (self._unsure[0][0] is None or self._unsure[0][0].query()):
            _, fine, at, new = self._unsure.popleft()
            if not fine:
                self.check(at.cpu().numpy(), new.cpu().numpy())


def _nodes(values: torch.Tensor) -> torch.Tensor:
    """Return values [n] as rows of nodes [nodes, WIDTH], padded with zeros."""
    nodes = -(-len(values) // WIDTH)
    return torch.nn.functional.pad(values, (0, nodes * WIDTH - len(values))).view(nodes, WIDTH)


def _least(nodes: torch.Tensor) -> torch.Tensor:
    """Return the smallest mass of each node; zeros are padding."""
    return torch.where(nodes > 0, nodes, torch.inf).amin(1)
