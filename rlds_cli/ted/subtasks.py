"""What is done in ranges of the steps of an episode, in words: intervals, kept once, as a column of episodes.

::

    step        0    1    2    3    4    5    6        T = 7
    subtasks    [0, 2) reach    [3, 6) grasp           [[0, 2, "reach"], [3, 6, "grasp"]]
    subtask     reach reach None grasp grasp grasp None
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import InvalidEpisode

_HINT = 'as in [[0, 20, "reach"], [20, 41, "grasp"]]: first step, step behind the last one, text'
_EXACT = 1 << 53


class _Interval(NamedTuple):
    """Steps [first, stop), and what is done there."""

    first: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class Subtasks:
    """Intervals of the steps of one episode, each with a text; none overlaps another.

    Attributes
    ----------
    first, stop : int64 arrays [n]
        Steps [first, stop) of each, in ascending order.
    texts : tuple of str
        What is done there.
    """

    COLUMN: ClassVar = "subtasks"  # of the episode table: `str` of this
    FIELD: ClassVar = "subtask"  # of an episode or a batch: `at` of it

    first: IntArray
    stop: IntArray
    texts: tuple[str, ...]

    @classmethod
    def of(cls, value: Any, where: str, length: int | None = None) -> Subtasks:
        """Read intervals in any order.

        Parameters
        ----------
        value : str or sequence
            ``(first, stop, text)`` of each, or mappings with these members; or JSON of such a list.
        where : str
            What has them, for messages.
        length : int, optional
            The steps of the episode.

        Raises
        ------
        InvalidEpisode
            It is something else, an interval has no step, or does not lie in the episode, or two overlap.
        """
        try:
            listed = json.loads(value) if isinstance(value, str | bytes) else value
            found = sorted(map(_interval, listed))
        except (ValueError, TypeError, RecursionError) as e:
            shown = value if isinstance(value, str) else repr(value)
            raise InvalidEpisode(
                f'{where}: {shown[:80]!r} in the episode column "{cls.COLUMN}" is not a list of intervals: {e}.',
                hint=_HINT,
            ) from e
        for first, stop, text in found:
            if not 0 <= first < stop <= (_EXACT if length is None else length):
                within = "" if length is None else f" of the {length:,} there"
                raise InvalidEpisode(
                    f'{where}: the {cls.FIELD} "{text}" has steps {first} to {stop}, which are not a range{within}.',
                    hint=_HINT,
                )
        for (first, stop, text), (after, _, other) in pairwise(found):
            if after < stop:
                raise InvalidEpisode(
                    f'{where}: the {cls.FIELD}s "{text}", from step {first} to {stop}, and "{other}", from {after}, '
                    "overlap.",
                    hint="one of them ends where the other begins",
                )
        return cls._of([v.first for v in found], [v.stop for v in found], [v.text for v in found])

    @classmethod
    def of_steps(cls, texts: Sequence[str | None]) -> Subtasks:
        """Return the intervals of texts of steps [T], None at a step without one."""
        codes = {text: k for k, text in enumerate(dict.fromkeys(texts))}
        number = np.array([codes[text] for text in texts], np.int64)
        first = np.flatnonzero(np.diff(number, prepend=-1))
        stop = np.append(first[1:], len(number))[: len(first)]
        told = [k for k, step in enumerate(first.tolist()) if texts[step] is not None]
        return cls._of(first[told], stop[told], [str(texts[step]) for step in first[told].tolist()])

    @classmethod
    def of_rows(cls, episodes: Iterable[tuple[int, Subtasks]]) -> Subtasks:
        """Return the intervals of episodes as intervals of rows: each comes with its first row."""
        found = sorted(episodes, key=lambda e: e[0])
        first = [start + each.first for start, each in found]
        stop = [start + each.stop for start, each in found]
        texts = [text for _, each in found for text in each.texts]
        return cls._of(np.concatenate([*first, []]), np.concatenate([*stop, []]), texts)

    @classmethod
    def _of(cls, first: Any, stop: Any, texts: Sequence[str]) -> Subtasks:
        return cls(first=np.asarray(first, np.int64), stop=np.asarray(stop, np.int64), texts=tuple(texts))

    def __str__(self) -> str:
        listed = [list(v) for v in zip(self.first.tolist(), self.stop.tolist(), self.texts, strict=True)]
        return json.dumps(listed, ensure_ascii=False)

    @property
    def shown(self) -> str:
        """The texts for people, each behind its first and its last step: ``0-1 reach, 3-5 grasp``."""
        steps = zip(self.first.tolist(), (self.stop - 1).tolist(), self.texts, strict=True)
        return ", ".join(f"{first}-{last} {text}" for first, last, text in steps)

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, steps: IntArray) -> Array:
        """Return the texts at steps [n], as objects; None at steps in no interval."""
        steps = np.asarray(steps, np.int64)
        number = np.searchsorted(self.first, steps, "right") - 1
        inside = number >= 0
        inside[inside] = steps[inside] < self.stop[number[inside]]
        texts = np.empty(len(self) + 1, object)
        texts[: len(self)] = self.texts
        found: Array = texts[np.where(inside, number, len(self))]
        return found

    def part(self, first: int, stop: int) -> Subtasks:
        """Return what lies in steps [first, stop), which become an episode of their own."""
        here = (self.stop > first) & (self.first < stop)
        texts = [text for text, is_here in zip(self.texts, here.tolist(), strict=True) if is_here]
        starts, ends = np.maximum(self.first[here], first), np.minimum(self.stop[here], stop)
        return self._of(starts - first, ends - first, texts)


def _interval(value: Any) -> _Interval:
    """Return one interval; raises ValueError or TypeError."""
    names = _Interval._fields
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise ValueError(f"an interval has {', '.join(map(str, value))}, not {', '.join(names)}")
        value = [value[name] for name in names]
    if isinstance(value, str) or len(value) != len(names):
        raise ValueError("an interval has three values")
    first, stop, text = value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{text!r} is not a text")
    return _Interval(_step(first), _step(stop), text)


def _step(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{value!r} is not the number of a step")
    return int(value)
