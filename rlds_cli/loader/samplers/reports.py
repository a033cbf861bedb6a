"""Priorities that training reports of a batch, and their exchange among ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.index import SOURCE, WINDOW, FloatArray
from rlds_cli.loader.peers import Peers
from rlds_cli.loader.tensors import host

Reduce = Literal["max", "mean"]


@dataclass(slots=True, eq=False)
class Report:
    """New priorities of the windows of a batch, in the order in which they count: the last one of a window stays.

    Attributes
    ----------
    windows : int array [n]
        Numbers of the windows.
    priority : float array [n]
        Both may be tensors on a device.
    source : int array [n] or None
        Numbers of the members of a mixture that the windows are of.
    """

    windows: IntArray
    priority: FloatArray
    source: IntArray | None = None

    @classmethod
    def of(
        cls, batch: Batch, priority: Any, *, mixed: bool = False, reduce: Reduce | None = None, stays: bool = False
    ) -> Report:
        """Read the windows of ``batch``, of a mixture if ``mixed``, and one priority for each.

        With ``stays``, tensors [B] or [B, 1] stay on their device.

        Raises
        ------
        InvalidArgument
            The batch does not name its windows, or ``priority`` is not one number per sample, or per step of a sample
            with ``reduce``.
        """
        if stays and reduce is None and hasattr(priority, "detach") and not priority.is_complex():
            numbers, given = _first(_values(batch, WINDOW)), priority.detach().reshape(-1)
            if hasattr(numbers, "detach") and priority.shape[:1] == given.shape == numbers.shape:
                return cls(numbers, given)
        windows, values = _column(batch, WINDOW), host(priority)
        if reduce not in (None, "max", "mean"):
            raise InvalidArgument(f'update_priorities(reduce={reduce!r}): reduce is "max", "mean" or None.')
        if values.dtype.kind not in "fiub":
            raise InvalidArgument(f"update_priorities: priorities of type {values.dtype} are not numbers.")
        several = values.shape[:1] == windows.shape and values.size > len(windows)
        if several and reduce is not None:
            values = _reduced(values.astype(np.float64), batch, reduce)
        elif values.shape[:1] != windows.shape or values.size != len(windows):
            raise InvalidArgument(
                f"update_priorities: priorities {list(values.shape)} for a batch of {len(windows)} samples.",
                hint='reduce="max" or reduce="mean" makes one of those of a sample\'s steps, without masked ones'
                if several
                else "one number a sample, [B] or [B, 1]",
            )
        priorities = values.reshape(-1).astype(np.float64, copy=False)
        return cls(windows, priorities, _column(batch, SOURCE) if mixed else None)

    def of_member(self, member: int) -> Report:
        """Return the part of the report that is of one member of a mixture."""
        assert self.source is not None
        mine = self.source == member
        return Report(self.windows[mine], self.priority[mine])


def _column(batch: Batch, name: str) -> IntArray:
    """Return the first number of every sample [B]."""
    numbers = host(_values(batch, name))
    return np.asarray(_first(numbers).astype(np.int64, copy=False))


def _values(batch: Batch, name: str) -> Any:
    # a TensorDict raises without the None
    values = dict.get(batch, name) if type(batch) is Batch else batch.get(name, None)
    if values is None:
        fields = ", ".join(Batch(batch.items()).names())
        raise InvalidArgument(
            f"update_priorities: the batch has no {name!r}. Fields: {fields}.",
            hint="pass the batch as the loader gave it, or its tensordict()",
        )
    return values


def _first(numbers: Any) -> Any:
    return numbers if numbers.ndim == 1 else numbers.reshape(len(numbers), -1)[:, 0]


def _reduced(values: Array, batch: Batch, reduce: Reduce) -> Array:
    """Return one priority per sample [B] of [B, L, ...]; a negative one where a step that counts has one."""
    values = values.reshape(*values.shape[:2], -1)
    real = _mask(batch, values.shape[:2])
    real = np.broadcast_to(np.True_ if real is None else real[..., None], values.shape)
    filled = np.where(real, values, 0.0)
    reduced = filled.max((1, 2)) if reduce == "max" else filled.sum((1, 2)) / np.maximum(real.sum((1, 2)), 1)
    least: Array = np.where(real, values, np.inf).min((1, 2))
    return np.where(least < 0, least, reduced)


def _mask(batch: Any, shape: tuple[int, ...]) -> BoolArray | None:
    """Return the mask of the steps of samples, [B, L]; None where there is none of this shape.

    Raises
    ------
    InvalidArgument
        Several fields have such masks, and these differ.
    """
    found = batch.get("mask", None)
    if hasattr(found, "keys") and "step" in found.keys():  # noqa: SIM118  (of a mixture; a TensorDict iterates its rows)
        found = found.get("step")
    fitting = [x for x in map(host, _leaves(found)) if x.shape == shape and x.dtype == bool]
    if any(not np.array_equal(x, fitting[0]) for x in fitting):
        raise InvalidArgument(
            "update_priorities: the fields of this batch have different masks.",
            hint='reduce the errors yourself, with the mask of their field: batch["mask", "action"]',
        )
    return fitting[0] if fitting else None


def _leaves(node: Any) -> Iterator[Any]:
    if hasattr(node, "keys"):
        for below in node.values():
            yield from _leaves(below)
    elif node is not None:
        yield node


def exchange(peers: Peers, make: Callable[[], Report]) -> Report:
    """Return the reports of all ranks, one after the other in the order of the ranks; every rank gets the same.

    An error of one rank is raised on all of them, so that none waits for it.

    Parameters
    ----------
    peers : Peers
    make : callable
        Returns the report of this rank.

    Raises
    ------
    InvalidArgument
        The report of a rank cannot be made.
    """
    if peers.ranks.world == 1:
        return make()
    failed: Exception | None = None
    try:
        mine = make()
    except Exception as e:
        failed, mine = e, Report(np.zeros(0, np.int64), np.zeros(0))
    counts = [int(n) for n in np.concatenate(peers.gather(np.array([-1 if failed else len(mine.windows)])))]
    if failed is not None:
        raise failed
    if min(counts) < 0:
        bad = counts.index(-1)
        raise InvalidArgument(f"update_priorities: rank {bad} could not report its priorities. None was changed.")
    padded = np.zeros((3, max(counts)), np.int64)
    padded[0, : len(mine.windows)] = mine.windows
    padded[1, : len(mine.windows)] = mine.priority.view(np.int64)  # bit for bit
    padded[2, : len(mine.windows)] = 0 if mine.source is None else mine.source
    parts = [part[:, :n] for part, n in zip(peers.gather(padded), counts, strict=True)]
    windows, priority, source = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return Report(windows, priority.view(np.float64), None if mine.source is None else source)
