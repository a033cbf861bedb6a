"""Masses of windows, in proportion to which they are drawn, and the importance weights that correct for it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log10, nan
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.index import FloatArray
from rlds_cli.loader.kernel import Floats, PrefixTable, SampleNumbers, SumTree, TreeDraws
from rlds_cli.loader.order import WINDOW, Order

LEAST, MOST = 1e-290, 1e290  # masses between them have sums that are neither infinite nor short of bits
_DIGITS = 280  # masses are between 10**-280 and about 10**280


class Priorities:
    """Draws the windows 0..count-1 in proportion to ``(priority + eps) ** alpha``.

    The proportional variant of Schaul et al. (2016), "Prioritized experience replay", section 3.3. Every window starts
    with priority 1 and keeps it until it is updated. A window takes 10.3 bytes.

    Parameters
    ----------
    count : int
        How many windows.
    alpha : float
        How far priorities matter: 0 is not at all, 1 in proportion.
    beta : float
        How far importance weights correct for them: 0 is not at all, 1 in full. May be set at any time.
    eps : float
        Added to every priority, so that a window of priority 0 is still drawn; positive.
    room : int, optional
        How many windows there is room for at first, where windows come and leave.

    Attributes
    ----------
    highest : float
        The highest priority so far, where windows come and leave.

    Raises
    ------
    InvalidArgument
    """

    def __init__(self, count: int, *, alpha: float, beta: float, eps: float, room: int | None = None) -> None:
        self.highest, self._changes = 1.0, room is not None
        self.alpha, self.eps = _number("alpha", alpha), _number("eps", eps)
        self.beta = beta
        if self.eps == 0:
            raise InvalidArgument("eps=0: a window of priority 0 would never be drawn again.", hint="eps=1e-6")
        if not self.alpha * log10(self.eps) > -_DIGITS or not self.alpha * log10(1 + self.eps) < _DIGITS:
            raise InvalidArgument(f"alpha={alpha} with eps={eps}: eps ** alpha is out of range.", hint="alpha=0.6")
        self._most = 10.0 ** min(_DIGITS, _DIGITS / max(self.alpha, 1))
        self._tree = SumTree(count, (1 + self.eps) ** self.alpha, room)

    def sent(self, values: Array) -> Any:
        """Return an array where the masses are, as `find` returns one."""
        return values

    @property
    def count(self) -> int:
        """Number of windows, those that left included."""
        return self._tree.count

    @property
    def masses(self) -> Floats:
        """A copy of ``(priority + eps) ** alpha`` [count]."""
        return self._tree.masses.copy()

    def come(self, count: int, priority: FloatArray | None = None) -> None:
        """Add windows at the end, with priorities [count]; with the highest so far without them."""
        total = self._tree.count + count
        if total > self._tree.capacity:
            self._rebuild(self._tree.masses, 2 * total)
        given: Floats = np.full(count, self.highest) if priority is None else priority.astype(np.float64)
        self._tree.extend((given + self.eps) ** self.alpha)

    def leave(self, first: int, stop: int) -> None:
        """Note that windows [first, stop) left: they are never drawn."""
        self._tree.set(first, stop, 0.0)

    def keep(self, windows: IntArray) -> None:
        """Forget all windows but ``windows``, ascending, which are numbered anew."""
        self._rebuild(self._tree.masses[windows], max(2 * len(windows), 1))

    def _rebuild(self, masses: Floats, room: int) -> None:
        tree = SumTree(len(masses), 0.0, room)
        tree.fill(masses)
        self._tree = tree

    @property
    def beta(self) -> float:
        """The exponent of importance weights, see the parameter."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = _number("beta", beta)

    def find(self, u: Floats) -> Any:
        """Return the windows that uniform draws fall on.

        Parameters
        ----------
        u : float64 array [K]
            Uniform, in [0, 1).

        Returns
        -------
        int64 array [K]
        """
        return self._tree.find(u)

    def draw(self, order: Order, positions: SampleNumbers, prefix: PrefixTable, into: TreeDraws) -> None:
        """Draw windows for samples: see `find` and `weigh`; and find each in ``prefix``."""
        self._tree.draw(order.stream(WINDOW), positions, prefix, self._beta, into)

    def weigh(self, windows: Any) -> tuple[Any, Any]:
        """Return P, the chance of one draw to give each of ``windows`` [K], and their importance weights in (0, 1].

        These are ``(count * P) ** -beta``, divided by the largest of all windows (Schaul et al., section 3.4) and not
        of the batch: a window's weight does not depend on the other windows drawn.
        """
        return self._tree.weigh(windows, self.beta)

    def update(self, windows: Any, priority: Any) -> None:
        """Set priorities, such as absolute TD errors.

        Parameters
        ----------
        windows : int64 array [K]
            Where a window occurs twice, its last priority counts.
        priority : float64 array [K]

        Raises
        ------
        InvalidArgument
            A priority is negative, infinite or NaN, or a window does not exist. Nothing is changed.
        """
        bad = self._tree.update(windows, priority, eps=self.eps, alpha=self.alpha, most=self._most)
        if bad is not None:
            self._complain(bad, windows, priority)
        if self._changes:  # it is what windows that come have
            self.highest = max(self.highest, float(priority.max(initial=0.0)))

    def check(self, windows: IntArray, priority: FloatArray) -> None:
        """Refuse what `update` would refuse."""
        good = (windows >= 0) & (windows < self.count) & (priority >= 0) & (priority <= self._most)
        if not good.all():
            self._complain(int(good.argmin()), windows, priority)

    def _complain(self, place: int, windows: Any, priority: Any) -> None:
        where, window, value = f"at place {place:,} of {len(windows):,}", int(windows[place]), float(priority[place])
        if not 0 <= window < self.count:
            raise InvalidArgument(f"window {window:,} {where}: there are {self.count:,}. No priority was changed.")
        raise InvalidArgument(
            f"priority {value} {where} (window {window:,}): priorities are finite and not negative, at most"
            f" {self._most:.0e}. None was changed.",
            hint="the absolute value of an error" if value < 0 else None,
        )

    def state(self) -> dict[str, Any]:
        """Return ``alpha``, ``beta``, ``eps``, and `masses`."""
        found = {"alpha": self.alpha, "beta": self.beta, "eps": self.eps, "masses": self.masses}
        return found | ({"highest": self.highest, "room": self._tree.capacity} if self._changes else {})

    def load(self, state: Mapping[str, Any], count: int | None = None) -> None:
        """Restore a `state`, with its ``beta``; where windows come and leave, it is of ``count`` windows.

        Raises
        ------
        WrongState
            The state has another ``count``, ``alpha`` or ``eps``, or is not one. Nothing is changed.
        """
        missing = {"alpha", "beta", "eps", "masses", *(("highest", "room") if self._changes else ())} - set(state)
        if missing:
            raise WrongState(f"This state has no {', '.join(sorted(missing))}: it is not one of priorities.")
        for name in ("alpha", "eps"):
            if state[name] != getattr(self, name):
                raise WrongState(f"The priorities of this state have {name}={state[name]}, not {getattr(self, name)}.")
        masses = np.asarray(state["masses"])
        count = self.count if count is None else count
        if masses.shape != (count,):
            raise WrongState(f"This state has priorities of shape {list(masses.shape)}; {count:,} are needed.")
        if masses.dtype != np.float64 or not self._possible(masses).all():
            raise WrongState(f"The priorities of this state ({masses.dtype}) are not those that were saved.")
        self.beta = state["beta"]
        if self._changes:
            self.highest = float(state["highest"])
            self._rebuild(masses, max(int(state["room"]), count))
        else:
            self.fill(masses)

    def fill(self, masses: Floats) -> None:
        """Set all masses [count]."""
        self._tree.fill(masses)

    def _possible(self, masses: Floats) -> BoolArray:
        """Return which masses a window can have; that of one that left is zero."""
        possible: BoolArray = (masses >= LEAST) & (masses <= MOST)
        return possible | (masses == 0) if self._changes else possible


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if not 0 <= number < inf:
        raise InvalidArgument(f"{name}={value!r}: a number of at least 0 is needed.")
    return number
