"""Transforms of values, for batches in training and single observations in deployment."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.ted import REWARD, join_name
from rlds_cli.text import is_below

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

Mode = Literal["std", "range", "quantile"]
Numbers = npt.NDArray[np.float64]

_MOST = 2**63 - 1  # of integers
_FLAT = 1e-6  # of the middle: a range narrower than this is a constant with rounding errors


class Elementwise(ABC):
    """A transform that changes every value by itself, so that a loader applies it to many batches at once."""

    @abstractmethod
    def touches(self, name: str) -> bool:
        """Return whether the transform changes the field ``name``."""

    @abstractmethod
    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the changed values of the field ``key``: an array or tensor [..., *shape] of its kind."""

    def __call__(self, batch: Batch) -> Batch:
        """Change the fields of a batch, in place."""
        for name, x in list(batch.leaves()):
            if self.touches(name):
                batch[name] = self.apply(name, x)
        return batch


def stands_for(field: str, name: str) -> bool:
    """Return whether ``name`` is ``field`` or nested below it, now or under ``next``."""
    return any(is_below(n, field) for n in (name, name.removeprefix("next/")))


class Normalize(Elementwise):
    """Bring fields to a common scale by the statistics of a dataset, ``next`` fields like those at the root.

    ======== ===================================================== =====================
    mode     value                                                 of the steps
    ======== ===================================================== =====================
    std      ``(x - mean) / (std + eps)``                          mean 0, std about 1
    range    from [min, max] to [-1, 1]                            within [-1, 1]
    quantile from [1 %, 99 %] to [-1, 1], not clipped              98 % within [-1, 1]
    ======== ===================================================== =====================

    Elements that never vary over the steps are only centred, whatever ``eps``: a flag that is set in final observations
    alone, which no statistics count, would become 1 / eps. Elements that are never finite stay as they are. Integers
    become ``float32``; floats keep their dtype.

    Parameters
    ----------
    dataset : Dataset
        The source of the statistics; those of a selection are over its own episodes.
    fields : sequence of str
        ``observation`` stands for everything nested below it, too.
    mode : {"std", "range", "quantile"}
    eps : float
        Added to the standard deviation (mode ``std``).

    Raises
    ------
    UnknownField
        There are no statistics of a field: it does not exist, or holds text or frames.

    Examples
    --------
    >>> norm = Normalize(ds)  # doctest: +SKIP
    >>> loader = Loader(ds, 256, transform=norm)  # doctest: +SKIP
    >>> action = actor(norm.apply("observation", observation))  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Dataset,
        fields: Sequence[str | tuple[str, ...]] = ("observation",),
        *,
        mode: Mode = "std",
        eps: float = 1e-3,
    ) -> None:
        if mode not in ("std", "range", "quantile"):
            raise InvalidArgument(f'Normalize(mode={mode!r}): mode is "std", "range" or "quantile".')
        if not eps >= 0:
            raise InvalidArgument(f"Normalize(eps={eps!r}): eps must not be negative.")
        names = [join_name(f) for f in ([fields] if isinstance(fields, str) else fields)]
        self._constants: dict[str, tuple[Numbers, Numbers]] = {}
        for name in (n for f in names for n in _with_statistics(dataset, f)):
            self._constants[name] = _constants(dataset.stats[name], mode, eps)
        self._cast: dict[tuple[object, ...], tuple[Any, Any]] = {}

    def touches(self, name: str) -> bool:
        """Return whether the transform normalises the field ``name``."""
        return self._base(name) is not None

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Normalise values of the field ``key``.

        Parameters
        ----------
        key : str or tuple
            ``"observation"``, ``"next/observation"``, ``("observation", "achieved_goal")``, ...
        x : array, tensor or list [..., *shape]

        Raises
        ------
        UnknownField
            The field is not among those normalised.
        """
        x, shift, scale = self._prepare(key, x)
        return (x - shift) / scale

    def invert(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Undo `apply`; an action of a policy trained on normalised actions becomes one of the environment."""
        x, shift, scale = self._prepare(key, x)
        return x * scale + shift

    def constants(self, key: str | tuple[str, ...]) -> tuple[Numbers, Numbers]:
        """Shift and scale of the field ``key``, float64 [*shape] each: values become ``(x - shift) / scale``."""
        return self._constants[str(self._base(join_name(key)))]

    def state_dict(self) -> dict[str, Any]:
        """Shift and scale per field, as lists: all that `from_state_dict` needs, and JSON takes it."""
        return {
            name: {"shift": shift.tolist(), "scale": scale.tolist()} for name, (shift, scale) in self._constants.items()
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Normalize:
        """Rebuild from `state_dict`, without the dataset: where a policy is deployed."""
        norm = cls.__new__(cls)
        norm._constants = {
            name: (np.asarray(s["shift"], np.float64), np.asarray(s["scale"], np.float64)) for name, s in state.items()
        }
        norm._cast = {}
        return norm

    def __reduce__(self) -> tuple[object, ...]:
        # without the constants on a device: workers may have no such device, or must not touch it
        return type(self).from_state_dict, (self.state_dict(),)

    def _base(self, name: str) -> str | None:
        """Return the field whose statistics apply to ``name``."""
        return next((n for n in (name, name.removeprefix("next/")) if n in self._constants), None)

    def _prepare(self, key: str | tuple[str, ...], x: Any) -> tuple[Any, Any, Any]:
        base = self._base(join_name(key))
        if base is None:
            raise UnknownField(f'"{join_name(key)}" is not normalised here; only {", ".join(self._constants)}.')
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            x = x if x.is_floating_point() else x.float()
            return x, *self._cast_once(
                (base, x.dtype, x.device), partial(torch.as_tensor, dtype=x.dtype, device=x.device)
            )
        x = np.asarray(x)
        x = x if x.dtype.kind == "f" else x.astype(np.float32)
        return x, *self._cast_once((base, x.dtype), partial(np.asarray, dtype=x.dtype))

    def _cast_once(self, target: tuple[Any, ...], cast: Callable[[Numbers], Any]) -> tuple[Any, Any]:
        """Shift and scale in the dtype and on the device of the values."""
        if target not in self._cast:
            shift, scale = self._constants[target[0]]
            self._cast[target] = cast(shift), cast(scale)
        return self._cast[target]

    def __repr__(self) -> str:
        return f"Normalize({', '.join(self._constants)})"


def _with_statistics(dataset: Dataset, name: str) -> list[str]:
    """Return ``name``, or the fields below it; ``next/x`` has the statistics of ``x``."""
    for n in (name, name.removeprefix("next/")):
        found = [s for s in dataset.stats if is_below(s, n)]
        if found:
            return found
    dataset.field(name)
    raise UnknownField(f'no statistics of "{name}" in {dataset.id}.  There are of: {", ".join(dataset.stats)}')


def _constants(stats: Any, mode: Mode, eps: float) -> tuple[Numbers, Numbers]:
    """Shift and scale of ``(x - shift) / scale``."""
    low, high = (stats.q01, stats.q99) if mode == "quantile" else (stats.min, stats.max)
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if mode == "std":
        shift, scale = np.asarray(stats.mean, np.float64), np.asarray(stats.std, np.float64) + eps
    else:
        shift, scale = low / 2 + high / 2, high / 2 - low / 2
    scale = np.where(high - low <= _FLAT * np.abs(shift), 1.0, scale)
    usable = np.isfinite(shift) & np.isfinite(scale)
    return np.where(usable, shift, 0.0), np.where(usable, scale, 1.0)


@dataclass(frozen=True, slots=True)
class Reward(Elementwise):
    """Rewards times ``scale`` plus ``shift``; with n-step transitions each reward, before they are summed up."""

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        # a NumPy float64, as a division of returns gives one, would turn float32 rewards into float64
        object.__setattr__(self, "scale", float(self.scale))
        object.__setattr__(self, "shift", float(self.shift))

    def touches(self, name: str) -> bool:
        """Return whether ``name`` is the reward."""
        return name == REWARD

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return ``x * scale + shift``."""
        return x * self.scale + self.shift


@dataclass(frozen=True, slots=True)
class Clip(Elementwise):
    """Values of a field, and of its ``next`` twin, kept within [-limit, limit]; integers stay integers.

    Parameters
    ----------
    field : str
        ``observation`` stands for everything nested below it, too.
    limit : float
    """

    field: str
    limit: float

    def __post_init__(self) -> None:
        if not self.limit >= 0:
            raise InvalidArgument(f"Clip({self.field!r}, {self.limit!r}): the limit must not be negative.")
        object.__setattr__(self, "field", join_name(self.field))
        object.__setattr__(self, "limit", float(self.limit))

    def touches(self, name: str) -> bool:
        """Return whether ``name`` is the field or nested below it, now or under ``next``."""
        return stands_for(self.field, name)

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the values within the limit, in their dtype; flags as they are."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if x.is_floating_point():
                return x.clip(-self.limit, self.limit)
            if x.dtype == torch.bool:
                return x
            # torch takes -1 for 255 where it clips uint8, and clips no wider unsigned integers
            least, most = self._whole_limits(torch.iinfo(x.dtype))
            return x.long().clip(least, most).to(x.dtype)
        kind = np.dtype(x.dtype)
        if kind.kind not in "iub":
            return x.clip(-self.limit, self.limit)
        return x if kind.kind == "b" else x.clip(*self._whole_limits(np.iinfo(kind)))

    def _whole_limits(self, dtype: Any) -> tuple[int, int]:
        """Of integers, as far as their dtype holds them."""
        limit = math.floor(min(self.limit, _MOST))
        return max(-limit, int(dtype.min)), min(limit, int(dtype.max))
