"""Windows: a sample is some rows around an anchor step of an episode.

A window counts how often it fits into an episode, and finds the rows of each place. It knows nothing of fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.integers import set_integer
from rlds_cli.errors import EmptyWindow, InvalidArgument

Anchors = Literal["transitions", "steps"]
Fill = Literal["edge", "zero"]
Pad = Literal["left", "right"]


class Window(Protocol):
    """The protocol between the loader and a window."""

    @property
    def whole(self) -> bool:
        """True if it takes all steps of an episode, also steps whose next observation is not known."""
        ...

    @property
    def gives_next(self) -> bool:
        """True if the next observation of every sample is known, or marked as unknown."""
        ...

    @property
    def masked(self) -> bool:
        """True if it has several steps, which can lie outside the episode: ``batch["mask"]`` [B, L]."""
        ...

    @property
    def zeroed(self) -> bool:
        """True if places outside the episode are filled with zeros."""
        ...

    @property
    def n_step(self) -> int:
        """Largest number of steps summed; 1 except for n-step transitions."""
        ...

    def counts(self, offered: IntArray, steps: IntArray | None = None) -> IntArray:
        """Return the windows of episodes that offer so many steps [episodes]; ``steps`` are all of their steps."""
        ...

    @property
    def starts(self) -> tuple[int, int]:
        """Stride and offset: window ``number`` of an episode starts at step ``number * stride + offset``."""
        ...

    def extent(self, longest: int) -> int:
        """Return L of a batch whose longest episode has ``longest`` steps; 0 for single steps, without an axis."""
        ...

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error where no episode has a window; the longest has ``longest`` steps."""
        ...


class Unmasked:
    """A window of single rows, none of which lies outside its episode."""

    __slots__ = ()

    anchors: Anchors

    @property
    def whole(self) -> bool:
        """True if every step is drawn, see `Window`."""
        return self.anchors == "steps"

    @property
    def gives_next(self) -> bool:
        """False if steps are drawn whose next observation is not known, see `Window`."""
        return not self.whole

    @property
    def starts(self) -> tuple[int, int]:
        """Stride and offset, see `Window`: windows are numbered by their steps."""
        return 1, 0

    masked = False

    def extent(self, longest: int) -> int:
        """Return 0."""
        return 0


class MultiStep:
    """A window of several steps, from step 0 on."""

    __slots__ = ()

    whole = True
    masked = True
    n_step = 1
    anchors: Anchors

    @property
    def gives_next(self) -> bool:
        """False if the next observation is left out, see `Window`."""
        return self.anchors != "steps"

    @property
    def starts(self) -> tuple[int, int]:
        """Stride and offset, see `Window`: every window starts at step 0."""
        return 0, 0


@dataclass(frozen=True, slots=True)
class Transition(Unmasked):
    """One step and its outcome, or n steps summed.

    With ``n_step`` > 1, ``next/reward`` is the sum of ``gamma**j * reward`` over the steps t, t+1, ... up to n of
    them, ending early after the first done step and at the end of the episode's transitions; ``next/observation`` and
    every other field under ``next`` are those of the last step summed, and ``next/discount`` is ``gamma**k`` for k
    steps. Rewards of any dtype are summed in float64, each after its transforms, and the sum is cast last::

        target = next_reward + next_discount * (1 - next_terminated) * value(next_observation)

    Parameters
    ----------
    n_step : int
    gamma : float
        Discount per step, in [0, 1]; used when ``n_step`` > 1.
    anchors : {"transitions", "steps"}
        ``"steps"`` draws every step, also steps whose next observation is not known, and gives no next observation.
    """

    n_step: int = 1
    gamma: float = 0.99
    anchors: Anchors = field(default="transitions", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        set_integer(self, "n_step", 1)
        check_anchors(self)
        if self.anchors == "steps" and self.n_step > 1:
            raise InvalidArgument(
                f'Transition({self.n_step}) sums up to a next observation, which anchors="steps" does without.',
                hint='anchors="transitions"',
            )
        if not 0 <= self.gamma <= 1:
            raise InvalidArgument(f"Transition(gamma={self.gamma!r}): a discount lies in [0, 1].")
        object.__setattr__(self, "gamma", float(self.gamma))

    zeroed = False

    def counts(self, offered: IntArray, steps: IntArray | None = None) -> IntArray:
        """Return the number of steps: one window each."""
        return offered

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        return EmptyWindow(
            f"None of {episodes:,} episodes has a transition: no next observation is known.",
            hint='Transition(anchors="steps") draws every step, without next observations',
        )


@dataclass(frozen=True, slots=True)
class Slice(MultiStep):
    """``length`` consecutive steps of one episode, [B, L, ...], with ``batch["mask"]`` [B, L].

    Slices start at steps ``-before, -before + stride, ...`` and end at most ``after`` steps beyond the episode's last;
    where they lie outside the mask is False.

    Parameters
    ----------
    length : int
        L.
    before, after : int
        Steps by which a slice may begin before its episode and end after it, less than ``length``. With
        ``after=length - 1`` every step starts one slice (Decision Transformer); with neither, episodes shorter than
        ``length`` have none.
    stride : int
        Steps from start to start; ``stride=length`` cuts episodes into disjoint pieces.
    fill : {"edge", "zero"}
        The values outside: those of the nearest step, or zeros (after any transform). ``step``,
        ``episode`` and ``index`` always name the nearest step.
    pad : {"left", "right"}, optional
        The side on which places outside are: by default before the episode's first step on the left, and after its last
        one on the right. ``Slice(20, after=19, pad="left")`` has the steps from t on at its end (Decision Transformer's
        own code), ``Slice(20, before=19, pad="right")`` those up to t at its beginning. The same steps are drawn.
    anchors : {"transitions", "steps"}
        ``"steps"`` gives no next observation.
    """

    length: int
    before: int = field(default=0, kw_only=True)
    after: int = field(default=0, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    fill: Fill = field(default="edge", kw_only=True)
    pad: Pad | None = field(default=None, kw_only=True)
    anchors: Anchors = field(default="transitions", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        check_anchors(self)
        for name, least in (("length", 1), ("stride", 1), ("before", 0), ("after", 0)):
            set_integer(self, name, least)
        for name in ("before", "after"):
            reach = getattr(self, name)
            if reach >= self.length:
                raise InvalidArgument(
                    f"Slice({self.length}, {name}={reach}) could lie outside its episode altogether.",
                    hint=f"{name}={self.length - 1} at most",
                )
        check_fill(self)
        self._check_pad()

    def _check_pad(self) -> None:
        if self.pad not in (None, "left", "right"):
            raise InvalidArgument(f'Slice(pad={self.pad!r}): pad is "left", "right" or None.')
        if self.pad and not (self.before or self.after):
            raise InvalidArgument(
                f"Slice({self.length}, pad={self.pad!r}) has nothing to pad: its slices lie inside their episodes.",
                hint=f"Slice({self.length}, after={self.length - 1}, pad={self.pad!r})",
            )

    def __repr__(self) -> str:
        pad = f", pad={self.pad!r}" if self.pad else ""
        reach = f"before={self.before!r}, after={self.after!r}, stride={self.stride!r}"
        return f"Slice(length={self.length!r}, {reach}, fill={self.fill!r}{pad})"

    @property
    def zeroed(self) -> bool:
        """True if ``fill`` is zero."""
        return self.fill == "zero"

    def extent(self, longest: int) -> int:
        """Return ``length``."""
        return self.length

    def counts(self, offered: IntArray, steps: IntArray | None = None) -> IntArray:
        """Return the number of starts."""
        room = offered - self.length + self.before + self.after
        counts: IntArray = np.where((room >= 0) & (offered > 0), room // self.stride + 1, 0)
        return counts

    @property
    def starts(self) -> tuple[int, int]:
        """Stride and offset, see `Window`."""
        return self.stride, -self.before

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        return EmptyWindow(
            f"Slice({self.length}) fits none of {episodes:,} episodes: the longest has {longest:,} steps.",
            hint=f"Slice({self.length}, after={self.length - 1}) pads, or a length <= {longest}",
        )


def check_anchors(window: Any) -> None:
    """Refuse ``anchors`` other than "transitions" and "steps"."""
    if window.anchors not in ("transitions", "steps"):
        raise InvalidArgument(
            f'{type(window).__name__}(anchors={window.anchors!r}): anchors is "transitions" or "steps".'
        )


def check_fill(window: Any) -> None:
    """Refuse a ``fill`` other than "edge" and "zero"."""
    if window.fill not in ("edge", "zero"):
        raise InvalidArgument(f'{type(window).__name__}(fill={window.fill!r}): fill is "edge" or "zero".')


@dataclass(frozen=True, slots=True)
class Episode(MultiStep):
    """Whole episodes [B, L, ...], with ``batch["mask"]`` [B, L]; L is the length of the longest one of the dataset.

    Parameters
    ----------
    max_length : int, optional
        The largest L; of longer episodes only the first ``max_length`` steps are taken, and `Loader.describe` counts
        these episodes. ``Slice(max_length, after=...)`` takes other parts.
    bucket : int, optional
        Put episodes of similar length together, so that little is padded: they are sorted by length, and so many
        neighbours at a time are drawn one after the other. L is then that of the longest episode of each batch, of all
        ranks together. A multiple of the batch size is best. `Sequential` then goes from the shortest to the longest,
        and ``Shuffled(block=...)`` has the bucket for a block.
    fill : {"edge", "zero"}
        The values beyond the end, see `Slice`.
    anchors : {"transitions", "steps"}
        ``"steps"`` gives no next observation.
    """

    max_length: int | None = None
    bucket: int | None = field(default=None, kw_only=True)
    fill: Fill = field(default="edge", kw_only=True)
    anchors: Anchors = field(default="transitions", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        check_anchors(self)
        for name in ("max_length", "bucket"):
            if getattr(self, name) is not None:
                set_integer(self, name, 1)
        check_fill(self)

    @property
    def zeroed(self) -> bool:
        """True if ``fill`` is zero."""
        return self.fill == "zero"

    def extent(self, longest: int) -> int:
        """Return ``max_length``, or the length of the longest episode."""
        return longest if self.max_length is None else min(longest, self.max_length)

    def counts(self, offered: IntArray, steps: IntArray | None = None) -> IntArray:
        """Return one window per episode."""
        return (offered > 0).astype(np.int64)

    def nowhere(self, episodes: int, longest: int) -> EmptyWindow:
        """Return the error, see `Window`."""
        return EmptyWindow(f"None of {episodes:,} episodes has a step.")
