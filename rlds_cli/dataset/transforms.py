"""Transforms of values and images, for batches in training and single observations in deployment.

Frames are stored as the archive has them, mostly ``uint8`` with channels last. In a batch further axes stand in front::

    [H, W, C]     [B, H, W, C]     [B, L, H, W, C]     an axis of at most 16 at the end: channels
    [H, W]        [B, H, W]        [B, L, H, W]        a longer one is a width; [C, H, W] counts as this, too
"""

from __future__ import annotations

import math
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import bytes_of, is_below, join_name
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.store import Facts
from rlds_cli.ted import REWARD

if TYPE_CHECKING:
    from rlds_cli.dataset.datasets import Dataset


Mode = Literal["std", "range", "quantile"]
Numbers = npt.NDArray[np.float64]

_MOST = 2**63 - 1  # of integers
Layout = Literal["chw", "hwc"]
MOST_CHANNELS = 16  # four frames of four channels; no frame is that narrow
_LEAST_SIDE = 4  # of frames that torch resizes as bytes
_CODES = 1 << 12
_PER_METRE = {"m": 1.0, "mm": 1000.0}


class Elementwise(ABC):
    """A transform that changes every value by itself, so that a loader applies it to many batches at once."""

    @abstractmethod
    def touches(self, name: str) -> bool:
        """Return whether the transform changes the field ``name``."""

    @abstractmethod
    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return the changed values of the field ``key``: an array or tensor [..., *shape] of its kind."""

    def centring(self, name: str) -> tuple[Numbers, Numbers] | None:
        """Return shift and scale of the field ``name`` if `apply` is ``(x - shift) / scale``, else None.

        A loader then subtracts from the values of the archive, before it narrows them to its own dtype.
        """
        return None

    def resizing(self, name: str) -> Resize | None:
        """Return the `Resize` with a cache that `apply` is for the field ``name``, else None.

        A loader then resizes frames when it decodes them, and caches them.
        """
        return None

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
    become ``float32``; floats keep their dtype. The difference is computed in float64 in any case, since times and
    counters are large against the range that they vary in; a loader computes it before it narrows the archive's values.

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
        kept = _kept(x)
        return _cast(_cast(_wide(x) - shift, scale.dtype) / scale, kept)

    def invert(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Undo `apply`; an action of a policy trained on normalised actions becomes one of the environment."""
        x, shift, scale = self._prepare(key, x)
        return _cast(_wide(x) * scale + shift, _kept(x))

    def constants(self, key: str | tuple[str, ...]) -> tuple[Numbers, Numbers]:
        """Shift and scale of the field ``key``, float64 [*shape] each: values become ``(x - shift) / scale``."""
        return self._constants[str(self._base(join_name(key)))]

    def centring(self, name: str) -> tuple[Numbers, Numbers]:
        """Return `constants`."""
        return self.constants(name)

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
        if _is_tensor(x):
            torch = sys.modules["torch"]
            scale = torch.float64 if x.dtype == torch.float64 else torch.float32
            return x, *self._cast_once((base, scale, x.device), partial(torch.as_tensor, device=x.device), scale)
        x = np.asarray(x)
        scale = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
        return x, *self._cast_once((base, scale), np.asarray, scale)

    def _cast_once(self, target: tuple[Any, ...], cast: Callable[..., Any], scale: Any) -> tuple[Any, Any]:
        """Shift in float64 and scale in the dtype of the quotient, on the device of the values."""
        if target not in self._cast:
            constants = self._constants[target[0]]
            self._cast[target] = cast(constants[0]), cast(constants[1], dtype=scale)
        return self._cast[target]

    def __repr__(self) -> str:
        return f"Normalize({', '.join(self._constants)})"


def _wide(x: Any) -> Any:
    return x.double() if _is_tensor(x) else x.astype(np.float64, copy=False)


def _kept(x: Any) -> Any:
    """Return the dtype of normalised values: that of floats, float32 for others."""
    if _is_tensor(x):
        return x.dtype if x.is_floating_point() else sys.modules["torch"].float32
    return x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)


def _cast(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if _is_tensor(x) else x.astype(dtype, copy=False)


def _with_statistics(dataset: Dataset, name: str) -> list[str]:
    """Return ``name``, or the fields below it; ``next/x`` has the statistics of ``x``."""
    for n in (name, name.removeprefix("next/")):
        found = [s for s in dataset.stats if is_below(s, n)]
        if found:
            return found
    dataset.field(name)
    raise UnknownField(f'no statistics of "{name}" in {dataset.id}.  There are of: {", ".join(dataset.stats)}')


def _constants(stats: Any, mode: Mode, eps: float) -> tuple[Numbers, Numbers]:
    """Shift and scale of ``(x - shift) / scale``; elements of one value get the scale 1."""
    low, high = (stats.q01, stats.q99) if mode == "quantile" else (stats.min, stats.max)
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if mode == "std":
        shift, scale = np.asarray(stats.mean, np.float64), np.asarray(stats.std, np.float64) + eps
    else:
        shift, scale = low / 2 + high / 2, high / 2 - low / 2
    scale = np.where((low == high) | (scale == 0), 1.0, scale)
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


# -- images


@dataclass(frozen=True, slots=True)
class Resize(Elementwise):
    """Frames of another height and width, bilinear and antialiased; the channels stay where they are.

    Tensors are resized by torch where they are, arrays by Pillow; both use the same filter, and ``uint8`` values differ
    by at most 1. Before `ToFloat` it works on a quarter of the bytes.

    Parameters
    ----------
    field : str
        ``observation`` stands for everything nested below it, too.
    size : (int, int)
        Height and width, in pixels.
    cache : str or int, optional
        Bytes, as in ``"20GiB"``: a loader resizes frames as it decodes them, by torch, and keeps them in the home, so
        that each is decoded once, in all epochs, runs and processes. The frames of all datasets of a home share the
        limit; ``rlds gc`` removes them. It comes before all that changes the field.

    Raises
    ------
    InvalidArgument
        ``size`` is not a height and width, or ``cache`` not a size; in `apply`, the values are not frames.

    Examples
    --------
    >>> Resize("observation/camera", (64, 64)).apply("observation/camera", np.zeros((8, 84, 84, 3), np.uint8)).shape
    (8, 64, 64, 3)
    """

    field: str
    size: tuple[int, int]
    cache: str | int | None = None

    def __post_init__(self) -> None:
        try:
            height, width = map(operator.index, self.size)
        except (TypeError, ValueError):
            height = width = 0
        if height < 1 or width < 1:
            raise InvalidArgument(f"Resize({self.field!r}, {self.size!r}): size is (height, width), in pixels.")
        object.__setattr__(self, "field", join_name(self.field))
        object.__setattr__(self, "size", (height, width))
        if self.cache is not None:
            limit = bytes_of(self.cache) if isinstance(self.cache, str) else self.cache
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
                raise InvalidArgument(f"cache={self.cache!r} is not a size.", hint='cache="20GiB"')
            object.__setattr__(self, "cache", limit)

    def touches(self, name: str) -> bool:
        """Return whether ``name`` is the field or nested below it, now or under ``next``."""
        return stands_for(self.field, name)

    def resizing(self, name: str) -> Resize | None:
        """Return itself if it has a cache, see `Elementwise`."""
        return None if self.cache is None else self

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Resize frames of the field ``key``.

        Parameters
        ----------
        key : str or tuple
        x : array or tensor [..., H, W, C] or [..., H, W]
            uint8 or floating; a single [H, W] only as uint8.

        Returns
        -------
        array or tensor [..., height, width, C] or [..., height, width]
            Of the dtype of ``x``, contiguous; ``x`` itself where it has this size.
        """
        tensor = _is_tensor(x)
        x = x if tensor else np.asarray(x)
        if not _is_frames(x, floats=True):
            raise _no_frames(self, key, x, "uint8 or floating [..., H, W, C] or [..., H, W]")
        channels = _has_channels(x)
        if tuple(x.shape[-3:-1] if channels else x.shape[-2:]) == self.size:
            return x
        if not channels and self.size[1] <= MOST_CHANNELS:
            raise InvalidArgument(
                f"{self}: frames without channels, so narrow, would be taken for frames with {self.size[1]} channels.",
                hint=f"a width over {MOST_CHANNELS}, or an axis for the channel: [..., H, W, 1]",
            )
        return (_resize_tensor if tensor else _resize_array)(x, self.size, channels)


@dataclass(frozen=True, slots=True)
class ToFloat(Elementwise):
    """Frames as networks take them: ``float32`` in [0, 1], channels first.

    Parameters
    ----------
    field : str
        ``observation`` stands for everything nested below it, too.
    layout : {"chw", "hwc"}
        Channels first, or last as they are stored. Frames without channels, or with channels first already, keep their
        axes: a window of such frames is a stack, [B, L, H, W].

    Raises
    ------
    InvalidArgument
        Another layout; in `apply`, the values are not frames.

    Examples
    --------
    >>> frames = ToFloat("observation/camera").apply("observation/camera", np.full((8, 84, 84, 3), 255, np.uint8))
    >>> frames.shape, frames.dtype, frames.max()
    ((8, 3, 84, 84), dtype('float32'), np.float32(1.0))
    """

    field: str
    layout: Layout = "chw"

    def __post_init__(self) -> None:
        if self.layout not in ("chw", "hwc"):
            raise InvalidArgument(f'ToFloat({self.field!r}, layout={self.layout!r}): layout is "chw" or "hwc".')
        object.__setattr__(self, "field", join_name(self.field))

    def touches(self, name: str) -> bool:
        """Return whether ``name`` is the field or nested below it, now or under ``next``."""
        return stands_for(self.field, name)

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Return ``x / 255``.

        Parameters
        ----------
        key : str or tuple
        x : uint8 array or tensor [..., H, W, C] or [..., H, W]

        Returns
        -------
        float32 array or tensor [..., C, H, W], or of the shape of ``x``
            Contiguous, in memory of its own.
        """
        tensor = _is_tensor(x)
        x = x if tensor else np.asarray(x)
        if not _is_frames(x, floats=False):
            raise _no_frames(self, key, x, "uint8 [..., H, W, C] or [..., H, W]")
        moved = self.layout == "chw" and _has_channels(x)
        if tensor:
            torch = sys.modules["torch"]
            x = x.movedim(-1, -3) if moved else x
            return x.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        x = np.moveaxis(x, -1, -3) if moved else x
        return np.divide(x, np.float32(255), dtype=np.float32, order="C")


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _has_channels(x: Any) -> bool:
    return bool(x.ndim >= 3 and x.shape[-1] <= MOST_CHANNELS)


def _is_frames(x: Any, *, floats: bool) -> bool:
    """Return whether values can be frames; floats [N, D] are vectors."""
    if str(x.dtype).removeprefix("torch.") != "uint8":
        floating = x.dtype.is_floating_point if _is_tensor(x) else x.dtype.kind == "f"
        if not (floats and floating and x.ndim >= 3):
            return False
    sides = x.shape[-3:] if _has_channels(x) else x.shape[-2:]
    return len(sides) >= 2 and min(sides) > 0 and (x.ndim >= 3 or sides[-1] > MOST_CHANNELS)


def _no_frames(transform: Elementwise, key: str | tuple[str, ...], x: Any, wanted: str) -> InvalidArgument:
    dtype = str(x.dtype).removeprefix("torch.")
    return InvalidArgument(
        f"{transform}: {join_name(key)} is {dtype} {list(x.shape)}; frames are {wanted}.",
        hint="name the image field itself, as in observation/camera",
    )


def _resize_tensor(x: Any, size: tuple[int, int], channels: bool) -> Any:
    import torch
    from torch.nn.functional import interpolate

    frames = x.reshape(-1, *x.shape[-3:]).movedim(-1, 1) if channels else x.reshape(-1, 1, *x.shape[-2:])
    whole = x.dtype == torch.uint8
    # torch resizes bytes as they are, 5 to 50 times as fast, but only on the CPU, and reads beyond tiny ones
    tiny = min(*frames.shape[-2:], *size) < _LEAST_SIDE
    direct = x.dtype in (torch.float32, torch.float64) or (whole and x.device.type == "cpu" and not tiny)
    given = frames if direct else frames.float()
    if size[1] == 1:  # torch 2.13 makes all floats of a single column the first: lie it down
        lying = interpolate(given.transpose(-1, -2), size[::-1], mode="bilinear", antialias=True)
        out = lying.transpose(-1, -2)
    else:
        out = interpolate(given, size, mode="bilinear", antialias=True)
    out = out.round().clamp(0, 255) if whole and not direct else out
    out = out.to(x.dtype)
    lead = x.shape[: -3 if channels else -2]
    out = out.movedim(1, -1).reshape(*lead, *size, x.shape[-1]) if channels else out.reshape(*lead, *size)
    return out.contiguous()


def _resize_array(x: Array, size: tuple[int, int], channels: bool) -> Array:
    from PIL import Image

    height, width = size
    planes = np.moveaxis(x, -1, -3) if channels else x
    given = planes.reshape(-1, *planes.shape[-2:]).astype(np.uint8 if x.dtype == np.uint8 else np.float32, copy=False)
    made = np.empty((len(given), height, width), given.dtype)
    for i, plane in enumerate(given):
        made[i] = Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR)
    out = made.reshape(*planes.shape[:-2], height, width)
    return np.ascontiguousarray(np.moveaxis(out, -3, -1) if channels else out).astype(x.dtype, copy=False)


_UNKNOWN = "the unit of images of 16 bits is a fact: rlds label ID --set depth_unit=mm"


class Metres(Elementwise):
    """Depth as ``float32`` metres, by the archive's own parameters; ``next`` fields like those at the root.

    ===================================== ===========================================================================
    the archive has                       metres of a value x
    ===================================== ===========================================================================
    codes of 12 bits, logarithmic         ``exp(x / 4095 * (log(max + shift) - log(min + shift)) + log(min + shift))
                                          - shift``
    codes of 12 bits, linear              ``x / 4095 * (max - min) + min``
    millimetres; metres                   ``x / 1000``; ``x``
    ===================================== ===========================================================================

    The formula is that of lerobot (``dequantize_depth``), with the parameters that ``meta/info.json`` records for the
    field: ``ds.manifest.facts["depth"]`` shows them. Other images of 16 bits have the ``depth_unit`` of the dataset.
    Codes give metres within [min, max]. A camera that saw nothing mostly recorded 0, which is ``min`` in codes, and 0 m
    in millimetres.

    Parameters
    ----------
    dataset : Dataset
        Its manifest holds the parameters of the depth fields.
    fields : str or sequence of str, optional
        Depth fields, or names above them such as ``observation``; all unless given.

    Raises
    ------
    UnknownField
        There is no depth field of that name.

    Examples
    --------
    >>> loader = Loader(ds, 64, transform=Metres(ds))  # doctest: +SKIP
    """

    def __init__(self, dataset: Dataset, fields: str | Sequence[str] | None = None) -> None:
        known: Mapping[str, Mapping[str, Any]] = {
            name: said for name, said in Facts(dataset.manifest).depth.items() if name in dataset.schema
        }
        asked = [join_name(f) for f in ([fields] if isinstance(fields, str) else fields or ())]
        lost = [f for f in asked if not any(stands_for(f, name) for name in known)]
        if lost or not known:
            what = f'"{lost[0]}" is not a depth field' if lost else "there is no depth field"
            raise UnknownField(f"{what} of {dataset.id}.", hint=", ".join(known) or _UNKNOWN)
        chosen = {n: d for n, d in known.items() if not asked or any(stands_for(f, n) for f in asked)}
        self._tables = {name: _table(said) for name, said in chosen.items()}

    def touches(self, name: str) -> bool:
        """Return whether the transform changes the field ``name``."""
        return name.removeprefix("next/") in self._tables

    def apply(self, key: str | tuple[str, ...], x: Any) -> Any:
        """Metres of values of the field ``key``.

        Parameters
        ----------
        key : str or tuple
        x : array or tensor [..., H, W, 1]

        Returns
        -------
        float32 array or tensor of the shape of ``x``
        """
        table = self._tables.get(join_name(key).removeprefix("next/"))
        if table is None:
            raise UnknownField(f'"{join_name(key)}" is not a depth field here; {", ".join(self._tables)}.')
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if isinstance(table, float):
                return x.to(torch.float32) / table
            return torch.as_tensor(table, device=x.device)[x.to(torch.int32).clamp(max=_CODES - 1)]
        x = np.asarray(x)
        return x.astype(np.float32) / np.float32(table) if isinstance(table, float) else table.take(x, mode="clip")

    def __repr__(self) -> str:
        return f"Metres({', '.join(self._tables)})"


def _table(said: Mapping[str, Any]) -> Array | float:
    """Return the metres of every code, or the number of units in a metre."""
    if "unit" in said:
        return _PER_METRE[said["unit"]]
    low, high, shift = (float(said[name]) for name in ("depth_min", "depth_max", "shift"))
    share = np.arange(_CODES) / (_CODES - 1)
    if said["use_log"]:
        bottom, top = math.log(low + shift), math.log(high + shift)
        metres = np.exp(share * (top - bottom) + bottom) - shift
    else:
        metres = share * (high - low) + low
    return metres.clip(low, high).astype(np.float32)
