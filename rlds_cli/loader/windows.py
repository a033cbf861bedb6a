"""What one sample is: rows around an anchor step of an episode.

A window says how many of it fit into an episode, and where the rows of each lie. It knows nothing of fields.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from rlds_cli.errors import EmptyWindow, InvalidArgument
from rlds_cli.loader.places import Place, Points, Rows, Spans
from rlds_cli.loader.table import Table
from rlds_cli.ted import FLAGS, Array, BoolArray, IntArray

Columns = Callable[[str], Rows]
Anchors = Literal["transitions", "steps"]


class Samples:
    """Where the K samples of one gather lie.

    Parameters
    ----------
    table : Table
    episode : int array [K]
        Rows of ``table``.
    here : Place
        The steps themselves: where observations and actions are read.
    step : callable
        Gives the step within the episode, in the shape of ``here``; called when somebody asks.
    """

    def __init__(self, table: Table, episode: IntArray, here: Place, step: Callable[[], IntArray]) -> None:
        self.table, self.episode, self.here = table, episode, here
        self._step = step
        self._outcomes: dict[int, Array] = {}

    @cached_property
    def step(self) -> IntArray:
        """Step within the episode, [K] or [K, L]."""
        return self._step()

    @property
    def span(self) -> IntArray | int:
        """How many steps each sample sums up [K]; 1 but for n-step transitions."""
        return 1

    @property
    def last(self) -> Place:
        """The last of the steps summed up: where what came of the action is read. The row after is bootstrapped."""
        return self.here

    def outcome(self, column: Rows) -> Array:
        """What came of the last action: a reward or flag, read once however many columns follow from it."""
        if id(column) not in self._outcomes:
            self._outcomes[id(column)] = self.last.take(column)
        return self._outcomes[id(column)]

    def each(self, values: IntArray) -> IntArray:
        """A column of the table for every sample, [K] or [K, 1]."""
        return values.take(self.episode).reshape(-1, *(1,) * (len(self.here.shape) - 1))


class NStepSamples(Samples):
    """Transitions over several steps."""

    def __init__(self, table: Table, episode: IntArray, step: IntArray, span: IntArray) -> None:
        here = Points(table.start.take(episode) + step)
        super().__init__(table, episode, here, lambda: step)
        self._span = span

    @property
    def span(self) -> IntArray:
        """Steps summed up [K]."""
        return self._span

    @cached_property
    def last(self) -> Points:
        """Their last step."""
        return Points(self.here.rows + self._span - 1)


class SliceSamples(Samples):
    """Runs of steps."""

    here: Spans

    @property
    def mask(self) -> BoolArray:
        """True where a step is real [K, L]."""
        return self.here.mask


class Window(Protocol):
    """What the loader asks of a window."""

    @property
    def whole(self) -> bool:
        """Whether it takes all steps of an episode, also those whose next observation is not known."""
        ...

    def counts(self, steps: IntArray) -> IntArray:
        """How many windows episodes of so many steps have."""
        ...

    def place(self, table: Table, episode: IntArray, number: IntArray, columns: Columns) -> Samples:
        """Where window ``number`` [K] of each ``episode`` [K] lies; ``columns`` gives the flags, all rows."""
        ...

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """What to raise where none of the episodes has a window; the longest offers ``longest`` steps."""
        ...


@dataclass(frozen=True, slots=True)
class Transition:
    """One step and what came of it, or n steps summed up.

    With ``n_step`` > 1, ``next/reward`` is the sum of ``gamma**j * reward`` over the steps t, t+1, ... up to n of
    them, ending early after the first done step and at the end of the episode's transitions; ``next/observation`` and
    every other field under ``next`` are those of the last step summed, and ``next/discount`` is ``gamma**k`` for k
    steps::

        target = next_reward + next_discount * (1 - next_terminated) * value(next_observation)

    Parameters
    ----------
    n_step : int
    gamma : float
        Discount per step, in [0, 1]; used when ``n_step`` > 1.
    """

    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        _check_whole(self, "n_step", 1)
        if not 0 <= self.gamma <= 1:
            raise InvalidArgument(f"Transition(gamma={self.gamma!r}): a discount lies in [0, 1].")
        object.__setattr__(self, "gamma", float(self.gamma))

    @property
    def whole(self) -> bool:
        """False."""
        return False

    def counts(self, steps: IntArray) -> IntArray:
        """One per step."""
        return steps

    def place(self, table: Table, episode: IntArray, number: IntArray, columns: Columns) -> Samples:
        """Return the samples whose first steps are ``number``, see `Window`."""
        if self.n_step > 1:
            return NStepSamples(table, episode, number, self._span(table, episode, number, columns))
        return Samples(table, episode, Points(table.start.take(episode) + number), lambda: number)

    def _span(self, table: Table, episode: IntArray, step: IntArray, columns: Columns) -> IntArray:
        """Steps until n of them, the first done or the last transition, whichever comes first."""
        left = table.transitions.take(episode) - step
        row = table.start.take(episode) + step
        terminated, truncated = (columns(name) for name in FLAGS)
        span: IntArray = np.minimum(left, self.n_step)
        for j in range(self.n_step - 1):
            at = row + np.minimum(j, left - 1)
            done = terminated.take(at) | truncated.take(at)
            span[done & (span > j)] = j + 1
        return span

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        return EmptyWindow(
            f"None of {episodes:,} episodes has a transition: no next observation is known.",
            hint='anchors="steps" draws every step, without next observations',
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """``length`` consecutive steps of one episode, [B, L, ...], with ``batch["mask"]`` [B, L].

    Slices start at steps ``-before, -before + stride, ...`` and end at most ``after`` steps beyond the episode's last;
    where they lie outside the mask is False.

    Parameters
    ----------
    length : int
        L.
    before, after : int
        By how many steps a slice may begin before its episode and end after it, less than ``length``. With
        ``after=length - 1`` every step starts one slice (Decision Transformer); with neither, episodes shorter than
        ``length`` have none.
    stride : int
        From start to start; ``stride=length`` cuts episodes into disjoint pieces.
    fill : {"edge", "zero"}
        What fields hold outside: the values of the nearest step, or zeros (after any transform). ``step``,
        ``episode`` and ``index`` always name the nearest step.
    """

    length: int
    before: int = field(default=0, kw_only=True)
    after: int = field(default=0, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    fill: Literal["edge", "zero"] = field(default="edge", kw_only=True)

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("stride", 1), ("before", 0), ("after", 0)):
            _check_whole(self, name, least)
        for name in ("before", "after"):
            reach = getattr(self, name)
            if reach >= self.length:
                raise InvalidArgument(
                    f"Slice({self.length}, {name}={reach}) could lie outside its episode altogether.",
                    hint=f"{name}={self.length - 1} at most",
                )
        if self.fill not in ("edge", "zero"):
            raise InvalidArgument(f'Slice(fill={self.fill!r}): fill is "edge" or "zero".')

    @property
    def whole(self) -> bool:
        """True."""
        return True

    def counts(self, steps: IntArray) -> IntArray:
        """How many starts there are."""
        room = steps - self.length + self.before + self.after
        counts: IntArray = np.where((room >= 0) & (steps > 0), room // self.stride + 1, 0)
        return counts

    def place(self, table: Table, episode: IntArray, number: IntArray, columns: Columns) -> Samples:
        """Return the slices, see `Window`."""
        first = number * self.stride - self.before
        here = Spans(table.start.take(episode), first, table.steps.take(episode), self.length)
        return SliceSamples(table, episode, here, lambda: here.step)

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        return EmptyWindow(
            f"Slice({self.length}) fits none of {episodes:,} episodes: the longest has {longest:,} steps.",
            hint=f"Slice({self.length}, after={self.length - 1}) pads, or a length <= {longest}",
        )


def _check_whole(window: Window, name: str, least: int) -> None:
    """Make the number ``name`` of a window a plain one: its repr is part of a loader's state."""
    value = getattr(window, name)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise InvalidArgument(f"{type(window).__name__}({name}={value!r}): an integer of at least {least} is needed.")
    object.__setattr__(window, name, number)
