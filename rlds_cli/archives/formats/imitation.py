"""Rollouts of imitation in its npz format (``types.save``, before 1.0): all trajectories end to end.

::

    obs        [N+E, ...]    the observations of each trajectory, the final one among them
    acts       [N, ...]      and rews [N], if they were recorded
    indices    [E-1]         the row of ``acts`` that begins each trajectory but the first
    terminal   [E]           whether a trajectory ended by itself
    infos      [N]           pickled dictionaries, which are not read

``terminal`` becomes a flag of the last step of each trajectory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rlds_cli.archives.formats.npz import NpzFile, NpzRows
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import CorruptArchive

OBSERVATIONS, ACTIONS, TERMINAL, INDICES, INFOS = "obs", "acts", "terminal", "indices", "infos"
NEEDED = {OBSERVATIONS, ACTIONS, TERMINAL, INDICES}
ENDS = "episode_ends"  # a list of the ends of episodes, which no file holds


def is_rollouts(names: Collection[str]) -> bool:
    """Tell by its arrays whether an npz holds rollouts of imitation."""
    return NEEDED.issubset(names)


class Rollouts:
    """An open npz of rollouts as a source of columns.

    Raises
    ------
    CorruptArchive
        The arrays contradict each other.
    """

    def __init__(self, npz: NpzFile) -> None:
        self._npz = npz
        members, where = npz.members, npz.path.name
        rows = members[ACTIONS].shape[0] if members[ACTIONS].shape else 0
        self.stops = _stops(npz, rows)
        count = len(self.stops)
        shapes = {TERMINAL: (count,), OBSERVATIONS: (rows + count, *members[OBSERVATIONS].shape[1:])}
        for name, shape in shapes.items():
            if members[name].shape != shape:
                raise CorruptArchive(
                    f"{where}: {name} is {list(members[name].shape)}; {INDICES} and {ACTIONS} tell of {count:,} "
                    f"trajectories with {rows:,} steps, for which it would be {list(shape)}.",
                    hint="load it with imitation, and save it again",
                )
        self._flag = np.zeros(rows, bool)
        self._flag[self.stops - 1] = npz.array(TERMINAL) != 0
        others = {n: (m.shape, m.dtype) for n, m in members.items() if n not in (TERMINAL, INDICES)}
        made: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            TERMINAL: ((rows,), np.dtype(bool)),
            ENDS: ((count,), np.dtype(np.int64)),
        }
        self.columns: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]] = {**others, **made}

    def rows(self, names: Collection[str]) -> RolloutRows:
        """Return a reader of the rows of some columns."""
        stored = [n for n in sorted(names) if n not in (TERMINAL, ENDS)]
        return RolloutRows(self._npz.rows(stored), {n: self.array(n) for n in (TERMINAL, ENDS) if n in names})

    def array(self, name: str, *, most: int = 64 << 20) -> Array:
        """Read a whole column."""
        return {TERMINAL: self._flag, ENDS: self.stops}[name] if name in (TERMINAL, ENDS) else self._npz.array(name)


class RolloutRows:
    """Rows of some columns, read forward; ``made`` are whole columns."""

    def __init__(self, stored: NpzRows, made: Mapping[str, Array]) -> None:
        self._stored, self._made = stored, made

    def __enter__(self) -> RolloutRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stored.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every column, forward."""
        return self._stored.read(start, stop) | {name: values[start:stop] for name, values in self._made.items()}


def _stops(npz: NpzFile, rows: int) -> IntArray:
    """Return the row behind the last step of each trajectory."""
    indices = npz.array(INDICES).reshape(-1)
    begins = indices.astype(np.int64) if indices.dtype.kind in "iu" or not len(indices) else None
    bounds = None if begins is None else np.concatenate([[0], begins, [rows]])
    if bounds is None or (np.diff(bounds) < 1).any():
        raise CorruptArchive(
            f"{npz.path.name}: {INDICES} does not ascend between 0 and the {rows:,} rows of {ACTIONS}: every "
            "trajectory has a step at least.",
            hint="load it with imitation, and save it again",
        )
    return bounds[1:]
