"""Priorities of prioritised replay, and the importance weights that correct for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log10, nan
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.sampling.sumtree import LEAST, MOST, SumTree

_DIGITS = 280  # masses are between 10**-280 and about 10**280


class Priorities:
    """The windows 0..count-1, drawn in proportion to ``(priority + eps) ** alpha``.

    The proportional variant of Schaul et al. (2016), "Prioritized experience replay", section 3.3. Every window starts
    with priority 1, the largest before there are others, and keeps it until it is updated. 9.1 bytes a window are held.

    Parameters
    ----------
    count : int
        How many windows; at least 1.
    alpha : float
        How far priorities matter: 0 not at all, 1 in proportion.
    beta : float
        How far importance weights correct for them: 0 not at all, 1 in full. May be set at any time.
    eps : float
        Added to every priority, so that a window of priority 0 is still drawn; positive.
    device : torch.device or str, optional
        Where everything is held, drawn and given, as torch tensors; None for NumPy arrays.

    Raises
    ------
    InvalidArgument
    """

    def __init__(self, count: int, *, alpha: float, beta: float, eps: float, device: Any = None) -> None:
        self.count = count
        self.alpha, self.eps = _number("alpha", alpha), _number("eps", eps)
        self.beta = beta
        if self.eps == 0:
            raise InvalidArgument("eps=0: a window of priority 0 would never be drawn again.", hint="eps=1e-6")
        if not self.alpha * log10(self.eps) > -_DIGITS or not self.alpha * log10(1 + self.eps) < _DIGITS:
            raise InvalidArgument(f"alpha={alpha} with eps={eps}: eps ** alpha is out of range.", hint="alpha=0.6")
        self._most = 10.0 ** min(_DIGITS, _DIGITS / max(self.alpha, 1))
        self._tree = SumTree(count, (1 + self.eps) ** self.alpha, device=device)

    @property
    def beta(self) -> float:
        """How far importance weights correct, see the parameter."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = _number("beta", beta)

    def find(self, u: Any) -> Any:
        """Return the windows that draws fall on.

        Parameters
        ----------
        u : float64 array [K]
            Uniform, in [0, 1).

        Returns
        -------
        int64 array [K]
        """
        return self._tree.find(u)

    def probability(self, windows: Any) -> Any:
        """Return P, the chance of one draw to give each of ``windows``, int64 [...]: float64 [...]."""
        return self._tree.masses.take(windows) / self._tree.total

    def weight(self, windows: Any) -> Any:
        """Return the importance weights of ``windows``, int64 [...]: float64 [...], in (0, 1].

        ``(count * P) ** -beta``, divided by the largest that any window has (Schaul et al., section 3.4), not only any
        of the batch: the weight of a window does not depend on what else was drawn.
        """
        return (self._tree.least / self._tree.masses.take(windows)) ** self.beta

    def update(self, windows: Any, priority: Any) -> None:
        """Set priorities, such as absolute TD errors.

        Parameters
        ----------
        windows : int array
            In any shape, on any device; where a window stands there twice its last priority counts.
        priority : array
            One for each of ``windows``, in any shape; without gradient.

        Raises
        ------
        InvalidArgument
            A priority that is negative, infinite or NaN, a window that does not exist, or not one priority for each
            window. Nothing is changed then.
        """
        at = self._convert(self._tree.library.integers, windows, "windows are not integers")
        new = self._convert(self._tree.library.floats, priority, "priorities are not numbers")
        if len(at) != len(new):
            raise InvalidArgument(f"{len(new):,} priorities for {len(at):,} windows: one for each is needed.")
        good = (new >= 0) & (new <= self._most) & (at >= 0) & (at < self.count)
        if not good.all():
            self._complain(int(self._tree.library.numpy(~good).argmax()), at, new)
        self._tree.update(at, (new + self.eps) ** self.alpha)

    def _convert(self, convert: Callable[[Any], Any], values: Any, otherwise: str) -> Any:
        try:
            return convert(values)
        except (TypeError, ValueError):
            kind = getattr(values, "dtype", type(values).__name__)
            raise InvalidArgument(f"{otherwise.capitalize()}: {kind}. No priority was changed.") from None

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
        """Return ``alpha``, ``beta``, ``eps`` and ``masses``, float64 [count], a NumPy array of its own.

        ``masses`` are ``(priority + eps) ** alpha``.
        """
        masses = self._tree.library.numpy(self._tree.masses)
        return {"alpha": self.alpha, "beta": self.beta, "eps": self.eps, "masses": masses}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take on what `state` gave, ``beta`` too.

        Raises
        ------
        WrongState
            It is of another ``count``, ``alpha`` or ``eps``, or not a state. Nothing is changed then.
        """
        missing = {"alpha", "beta", "eps", "masses"} - set(state)
        if missing:
            raise WrongState(f"This state has no {', '.join(sorted(missing))}: it is not one of priorities.")
        for name in ("alpha", "eps"):
            if state[name] != getattr(self, name):
                raise WrongState(f"The priorities of this state have {name}={state[name]}, not {getattr(self, name)}.")
        masses = np.asarray(state["masses"])
        if masses.shape != (self.count,):
            raise WrongState(f"This state has priorities of shape {list(masses.shape)}; {self.count:,} are needed.")
        if masses.dtype != np.float64 or not (masses.min() >= LEAST and masses.max() <= MOST):
            raise WrongState(f"The priorities of this state ({masses.dtype}) are not those that were saved.")
        self.beta = state["beta"]
        self._tree.fill(self._tree.library.floats(masses))


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if not 0 <= number < inf:
        raise InvalidArgument(f"{name}={value!r}: a number of at least 0 is needed.")
    return number
