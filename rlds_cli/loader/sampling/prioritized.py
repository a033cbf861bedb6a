"""Draws by priorities that training gives back."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.sampling import numbers
from rlds_cli.loader.sampling.order import WINDOW, Order, Positions
from rlds_cli.loader.sampling.pool import INDEX, PROBABILITY, WEIGHT, Drawn, FloatArray, Pool
from rlds_cli.loader.sampling.pool import WINDOW as WINDOW_COLUMN
from rlds_cli.loader.sampling.priorities import Priorities
from rlds_cli.loader.sampling.samplers import Endless
from rlds_cli.loader.wholes import make_whole
from rlds_cli.ted import IntArray

_UNIFORMS = 32  # batches


@dataclass(frozen=True, slots=True)
class Prioritized(Endless):
    """Draws with replacement in proportion to ``(priority + eps) ** alpha``; never ends.

    The proportional variant of Schaul et al. 2016, "Prioritized experience replay". Every window has priority 1, or the
    one that ``priority`` gives it, until ``loader.update_priorities(batch, priority)`` says otherwise. Batches have
    ``probability``; ``weight`` [B, 1] (or [B, L, 1]), the importance weights ``(n * probability) ** -beta`` divided by
    the largest that any window has; ``window``, by which updates find their place; and ``index``, i of ``ds[i]``.

    A batch is drawn when it is asked for, by the priorities of that moment. With ``lag``, it is drawn by those of
    ``lag`` batches before, so that it can be read ahead (``prefetch`` up to ``lag``).

    Parameters
    ----------
    alpha : float
        How far priorities matter: 0 not at all.
    beta : float
        How far importance weights make up for it: 1 in full. ``update_priorities(..., beta=)`` changes it.
    eps : float
    lag : int
        Batches drawn before an update counts.
    priority : str or array, optional
        Initial priorities, not negative: the name of an episode column, or an array with one number per episode
        ``[ds.num_episodes]``, per transition ``[len(ds)]`` or per step ``[ds.num_steps]``. A window has that of its
        episode, or of its anchor: the step of a transition, the first step of a slice that is inside its episode. An
        update replaces it. A state holds the priorities of its moment, and needs a loader with the same initial ones.

    Examples
    --------
    >>> Prioritized(priority=np.abs(td_error))  # of every transition, by an earlier critic  # doctest: +SKIP
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 1e-6
    lag: int = 0
    priority: str | FloatArray | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or not np.isfinite(value) or value < 0:
                raise InvalidArgument(f"Prioritized({name}={value!r}): a number of at least 0 is needed.")
            object.__setattr__(self, name, float(value))
        make_whole(self, "lag", 0)
        if self.priority is not None:
            object.__setattr__(self, "priority", numbers.frozen(self.priority, "Prioritized", "priorities"))

    @property
    def gives(self) -> tuple[str, ...]:
        """``probability``, ``weight``, ``window`` and ``index``."""
        return PROBABILITY, WEIGHT, WINDOW_COLUMN, INDEX

    def over(self, pool: Pool) -> PrioritizedDraw:
        """Return what draws from ``pool``, see `Sampler`."""
        return PrioritizedDraw(self, pool)

    def __repr__(self) -> str:
        priority = "" if self.priority is None else f", priority={numbers.shown(self.priority)}"
        return f"Prioritized(alpha={self.alpha}, beta={self.beta}, eps={self.eps}, lag={self.lag}{priority})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prioritized) and repr(self) == repr(other)  # which holds a hash of the priorities

    def __hash__(self) -> int:
        return hash(repr(self))


class PrioritizedDraw:
    """Draws batch after batch, some of them before they are asked for.

    Parameters
    ----------
    sampler : Prioritized
    pool : Pool

    Attributes
    ----------
    ahead : int
        Batches drawn before they are asked for: ``lag``, less those that are asked for early to be read ahead.
    """

    def __init__(self, sampler: Prioritized, pool: Pool) -> None:
        self.ahead = sampler.lag
        self.priorities = Priorities(pool.guide.total, alpha=sampler.alpha, beta=sampler.beta, eps=sampler.eps)
        if sampler.priority is not None:
            self.priorities.update(np.arange(pool.guide.total), _initial(pool, sampler.priority))
        self._guide, self._lag = pool.guide, sampler.lag
        self._uniforms: tuple[Order | None, int, FloatArray] = (None, 0, np.empty(0))
        self._drawn: deque[Drawn] = deque(maxlen=2 * sampler.lag + 1)  # some handed out, some not yet asked for

    def __call__(self, order: Order, positions: Positions) -> Drawn:
        """Return the batch with these sample numbers, and draw those that come ``ahead`` after it."""
        assert isinstance(positions, range)
        wanted = self._batch(order, positions)
        for _ in range(self.ahead):
            positions = range(positions.stop, positions.stop + len(positions))
            self._batch(order, positions)
        return wanted

    def _batch(self, order: Order, positions: range) -> Drawn:
        found = next((d for d in self._drawn if (d.order.epoch, d.positions) == (order.epoch, positions)), None)
        if found is None:
            found = self._made(order, positions, self.priorities.find(self._uniform(order, positions)))
            self._drawn.append(found)
        return found

    def _uniform(self, order: Order, positions: range) -> FloatArray:
        """Uniform draws, which depend on no priority, for many batches at once: 54 µs are 2 µs a batch then."""
        key, first, draws = self._uniforms
        at = positions.start - first
        if key != order or at < 0 or at + len(positions) > len(draws):
            draws = order.uniform(WINDOW, range(positions.start, positions.start + _UNIFORMS * len(positions)))
            self._uniforms, at = (order, positions.start, draws), 0
        return draws[at : at + len(positions)]

    def _made(self, order: Order, positions: range, windows: IntArray) -> Drawn:
        probability = self.priorities.probability(windows)
        weight = self.priorities.weight(windows)
        return Drawn(order, positions, *self._guide.find(windows), partial(np.asarray, probability), weight)

    def update(self, batch: Batch, priority: Any, beta: float | None = None) -> None:
        """Set the priorities of the windows of ``batch``; the last counts where one stands there twice.

        ``beta`` is for importance weights from the next draw on.

        Raises
        ------
        InvalidArgument
            ``priority`` is not one number a sample, or one is negative or not finite: nothing is changed.
        """
        windows = batch.get(WINDOW_COLUMN, None)  # a TensorDict raises without the None
        if windows is None:
            fields = ", ".join(Batch(batch.items()).names())
            raise InvalidArgument(
                f"update_priorities: the batch has no {WINDOW_COLUMN!r}. Fields: {fields}.",
                hint="pass the batch as the loader gave it, or its tensordict()",
            )
        places = _host(windows)
        places = places.reshape(len(places), -1)[:, 0].astype(np.int64, copy=False)
        values = _host(priority)
        if values.dtype.kind not in "fiub":
            raise InvalidArgument(f"update_priorities: priorities of type {values.dtype} are not numbers.")
        if values.shape[:1] != places.shape or values.size != len(places):
            raise InvalidArgument(
                f"update_priorities: priorities {list(values.shape)} for a batch of {len(places)} samples.",
                hint="one number a sample, [B] or [B, 1]: of a slice its mean or largest one",
            )
        self.priorities.update(places, values.reshape(-1).astype(np.float64))
        if beta is not None:
            self.priorities.beta = beta

    def forget(self) -> None:
        """Draw anew what has been drawn ahead: the loader goes elsewhere."""
        self._drawn.clear()

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Priorities, and what has been drawn and not handed out; arrays as tensors, which ``torch.load`` takes."""
        pending = [d for d in self._drawn if d.order.epoch == epoch and d.positions[0] >= sample]
        drawn = [
            {
                "first": d.positions[0],
                "windows": _portable(self._guide.starts.take(d.episode) + d.number),
                "probability": _portable(d.probability()),
                "weight": _portable(d.weight),
            }
            for d in sorted(pending, key=lambda d: d.positions[0])
        ]
        held = self.priorities.state()
        return {"priorities": {**held, "masses": _portable(held["masses"])}, "drawn": drawn}

    def load(self, state: Mapping[str, Any], order: Order) -> None:
        """Go back to `state`.

        Raises
        ------
        WrongState
            It is not of as many windows, or of other settings; nothing is changed then.
        """
        if "priorities" not in state or "drawn" not in state:
            raise WrongState("this state has no priorities.", hint="that of a loader with Prioritized")
        drawn = [self._loaded(d, order) for d in state["drawn"]]
        self.priorities.load({name: _host(x) if name == "masses" else x for name, x in state["priorities"].items()})
        self.forget()
        self._drawn.extend(drawn)

    def _loaded(self, drawn: Mapping[str, Any], order: Order) -> Drawn:
        windows = np.asarray(_host(drawn["windows"]), np.int64)
        positions = range(int(drawn["first"]), int(drawn["first"]) + len(windows))
        probability = partial(np.asarray, np.asarray(_host(drawn["probability"]), np.float64))
        weight: FloatArray = np.asarray(_host(drawn["weight"]), np.float64)
        return Drawn(order, positions, *self._guide.find(windows), probability, weight)


def _initial(pool: Pool, priority: str | FloatArray) -> FloatArray:
    """The priority of every window; 1 where its anchor is no transition, and the array is of transitions."""
    given = numbers.of(pool, priority, "Prioritized", "priorities")
    good = (given.values >= 0) & (given.values < np.inf)
    if not good.all():
        place = int(good.argmin())
        raise InvalidArgument(
            f"Prioritized, {given.what}: priority {given.values[place]} at place {place:,} of {len(good):,}:"
            " priorities are finite and not negative.",
            hint="the absolute values of errors",
        )
    return given.of_windows(pool, without=1.0)


def _portable(x: FloatArray | IntArray | None) -> Any:
    """A tensor, which ``torch.load(weights_only=True)`` takes; an array where nothing has imported torch."""
    return sys.modules["torch"].tensor(x) if "torch" in sys.modules else x


def _host(x: Any) -> Any:
    """Tensors of any device as NumPy arrays."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach().cpu()
    return (x.double() if x.is_floating_point() else x).numpy()  # NumPy has no bfloat16
