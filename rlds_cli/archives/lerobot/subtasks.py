"""Sub-tasks of LeRobot datasets, as intervals of the steps of their episodes.

::

    meta/episodes    subtask_names [reach, lift], subtask_start_frames [0, 4], subtask_end_frames [4, 7]
                     -> steps 0 to 4 reach, 5 to 7 lift
    rows             subtask_index 0 0 1 1, with the texts in meta/subtasks.parquet

The lists are those of LeRobot's annotation for SARM, which also writes them as ``dense_`` and ``sparse_``. An interval
has its last frame, and a frame of two intervals belongs to the first one (``sarm_utils.find_stage_and_tau``). Where
there are both, the dense ones are the column ``subtasks``, and the sparse ones ``sparse_subtasks``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlds_cli.archives.lerobot.names import SUBTASK, SUBTASK_LISTS, SUBTASKS
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import Subtasks

INDEX, LIST = SUBTASK, SUBTASKS
_KINDS = ("dense_", "", "sparse_")
NAMES = frozenset(kind + part for kind in _KINDS for part in SUBTASK_LISTS)
_TIMES = ("subtask_start_times", "subtask_end_times")
TIMES = frozenset(kind + name for kind in _KINDS for name in _TIMES)  # which the frames follow from


def lists_of(there: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns of ``meta/episodes`` that hold sub-tasks, by the name of the episode column."""
    every = [tuple(kind + part for part in SUBTASK_LISTS) for kind in _KINDS]
    found = [keys for keys in every if set(keys) <= set(there)]
    dense = bool(found) and found[0][0].startswith(_KINDS[0])
    named = {Subtasks.COLUMN: found[0]} if found else {}
    if dense and len(found) > 1:
        named[f"sparse_{Subtasks.COLUMN}"] = found[-1]
    return named


def told(row: Mapping[str, Any], length: int) -> dict[str, str | None]:
    """Return the episode columns of an episode of ``length`` steps, from its row in ``meta/episodes``.

    Raises
    ------
    ValueError
        The lists do not fit each other.
    InvalidEpisode
        A text or a number of a frame is something else.
    """
    return {name: _intervals([row[key] for key in keys], length) for name, keys in lists_of(row.keys()).items()}


def _intervals(lists: list[Any], length: int) -> str | None:
    if any(v is None for v in lists):
        return None
    if len({len(v) for v in lists}) > 1:
        raise ValueError(f"lists of sub-tasks of {', '.join(str(len(v)) for v in lists)} values")
    found, before = [], 0
    for text, start, end in zip(*lists, strict=True):
        first, stop = max(start, before), min(end + 1, length)
        if first < stop:
            found.append((first, stop, text))
            before = stop
    return str(Subtasks.of(found, "an episode", length)) if found else None


class Counted:
    """The sub-tasks of the rows of episodes that are read block by block, by their numbers.

    Parameters
    ----------
    texts : mapping of int to str or None
        Those of ``meta/subtasks.parquet``.
    """

    def __init__(self, texts: Mapping[int, str | None]) -> None:
        self._texts = {number: text or None for number, text in texts.items()}
        self._read: dict[int, list[str | None]] = {}

    def add(self, episode: int, numbers: Sequence[int | None], where: str) -> None:
        """Take the numbers of further rows of an episode; a negative one, and that of an empty text, is none.

        Raises
        ------
        CorruptArchive
            There is no such sub-task.
        """
        unknown = next((n for n in numbers if n is not None and n >= 0 and n not in self._texts), None)
        if unknown is not None:
            raise CorruptArchive(f"{where}: there is no sub-task {unknown} in {LIST}.", hint="fetch meta/ again")
        self._read.setdefault(episode, []).extend(None if n is None else self._texts.get(n) for n in numbers)

    def of_episode(self, episode: int) -> str | None:
        """Return the intervals of an episode whose rows are all read."""
        found = Subtasks.of_steps(self._read.pop(episode))
        return str(found) if len(found) else None
