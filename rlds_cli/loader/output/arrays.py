"""What the values of a batch are: NumPy arrays or torch tensors, their dtype and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from rlds_cli import pytrees
from rlds_cli.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.output import staging
from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    import torch

Backend = Literal["torch", "numpy", "jax"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Arrays(Protocol):
    """From the columns of one gather to those of its batches.

    ``dtype`` is that of floats, ``working`` that in which they are transformed; None leaves them as they are.
    ``ships`` says whether they go to another device.
    """

    backend: Backend
    dtype: str | None
    working: str | None
    ships: bool

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Columns as the backend's own, on its device, floats in the dtype that is worked in; text as it is."""
        ...

    def finish(self, values: Any) -> Any:
        """Floats in the dtype asked for, after transforms."""
        ...

    def zero(self, values: Any, places: tuple[Any, ...]) -> None:
        """Blank ``values[places]``, in place; of text too, ``places`` are int arrays of the backend."""
        ...

    def parts(self, columns: Mapping[str, Any], size: int) -> dict[str, Sequence[Any]]:
        """Of columns [batches * size, ...] one array [size, ...] per batch."""
        ...

    def at_once(self, batches: int) -> int:
        """How many batches to read together, where ``batches`` would be the best."""
        ...

    def on_stream(self) -> staging.OnStream:
        """What makes other threads work on the stream of the one that asks."""
        ...


class NumpyArrays:
    """NumPy arrays.

    Parameters
    ----------
    dtype : str or None
        Of floats; None leaves them as they are.
    """

    backend: Backend = "numpy"
    ships = False

    def __init__(self, dtype: str | None) -> None:
        self.dtype, self.working = dtype, _working(dtype)

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return columns in the dtype that is worked in."""
        return {name: _floats(x, self.working) for name, x in values.items()}

    def finish(self, values: Array) -> Array:
        """Return floats in the dtype asked for."""
        return _floats(values, self.dtype)

    def zero(self, values: Array, places: tuple[IntArray, ...]) -> None:
        """Blank places, see `Arrays`."""
        values[places] = None if values.dtype == object else 0

    def parts(self, columns: Mapping[str, Array], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `Arrays`."""
        return {name: self.split(x, size) for name, x in columns.items()}

    def at_once(self, batches: int) -> int:
        """Return as many."""
        return batches

    def on_stream(self) -> staging.OnStream:
        """Return nothing to do."""
        return nullcontext

    def split(self, values: Array, size: int) -> Sequence[Array]:
        """One column's parts."""
        return [values] if len(values) <= size else list(values.reshape(len(values) // size, size, *values.shape[1:]))


class TorchArrays:
    """Torch tensors on a device.

    Parameters
    ----------
    dtype : str or None
        Of floats; None leaves them as they are.
    device : torch.device, str or None
    """

    backend: Backend = "torch"

    def __init__(self, dtype: str | None, device: Any) -> None:
        import torch

        pytrees.register_torch(Batch)
        self._torch = torch
        self.dtype = dtype
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self.working = _working(dtype)
        self.device = None if device is None else _device(device)
        self.ships = self.device is not None and self.device.type != "cpu"
        self._bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return tensors on the device, see `Arrays`."""
        floats = {name: x if x.dtype == object else _floats(x, self.working) for name, x in values.items()}
        if self.device is None or self.device.type == "cpu":
            made = self._torch.from_numpy
            return {name: x if x.dtype == object else made(x) for name, x in floats.items()}
        moved = staging.ship({name: x for name, x in floats.items() if x.dtype != object}, self.device)
        return {name: moved.get(name, x) for name, x in floats.items()}

    def finish(self, values: Any) -> Any:
        """Return floats in the dtype asked for."""
        if self._dtype is None or values.dtype == self._dtype or isinstance(values, np.ndarray):
            return values
        return values.to(self._dtype) if values.is_floating_point() else values

    def zero(self, values: Any, places: tuple[torch.Tensor, ...]) -> None:
        """Blank places, see `Arrays`."""
        if isinstance(values, np.ndarray):
            values[tuple(x.cpu().numpy() for x in places)] = None
        else:
            bits = self._bits.get(values.element_size())  # unsigned integers cannot be set by index
            values = values if bits is None else values.view(bits)
            values[places] = 0

    def parts(self, columns: Mapping[str, Any], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `Arrays`.

        They are no views to autograd: one that is changed in place does not invalidate what was saved of another.
        """
        return {name: self._split(x, size) for name, x in columns.items()}

    def at_once(self, batches: int) -> int:
        """Return as many."""
        return batches

    def on_stream(self) -> staging.OnStream:
        """Return what makes other threads work on this one's CUDA stream, see `Arrays`."""
        return staging.on_stream(self.device)

    def _split(self, values: Any, size: int) -> Sequence[Any]:
        if len(values) <= size:
            return [values]
        if isinstance(values, np.ndarray):
            return list(values.reshape(len(values) // size, size, *values.shape[1:]))
        parts: Sequence[Any] = self._torch.unsafe_split(values, size)
        return parts


def _working(dtype: str | None) -> str | None:
    """Transforms of half floats are computed in single precision."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _floats(values: Array, dtype: str | None) -> Array:
    return values if dtype is None or values.dtype.kind != "f" else values.astype(dtype, copy=False)


def _device(device: Any) -> torch.device:
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise InvalidArgument(f"device={device!r} is not a device: {str(e).splitlines()[0]}") from e
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument(f"device={device!r}: torch sees no CUDA device.", hint='device=None, or "cpu"')
    return found


def make(backend: Backend, dtype: Any, device: Any) -> Arrays:
    """Choose the kind of arrays.

    Raises
    ------
    InvalidArgument
        No such backend or dtype, or a device for NumPy.
    """
    name = float_name(dtype)
    if backend == "torch":
        return TorchArrays(name, device)
    if backend == "jax":
        from rlds_cli.loader.output.jax_arrays import JaxArrays

        return JaxArrays(name, device)
    if backend != "numpy":
        raise InvalidArgument(f'backend={backend!r}: "torch", "numpy" or "jax".')
    if device is not None:
        raise InvalidArgument(f'device={device!r} is for backend="torch" or "jax"; NumPy arrays are on the CPU.')
    if name == "bfloat16":
        raise InvalidArgument("NumPy has no bfloat16.", hint='backend="torch", or dtype="float32"')
    return NumpyArrays(name)


def float_name(dtype: Any) -> str | None:
    """``float32`` for "float32", ``torch.float32`` and ``np.float32``; None for None.

    Raises
    ------
    InvalidArgument
        Not a floating dtype: other fields keep theirs.
    """
    if dtype is None:
        return None
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    if name not in _FLOATS:
        raise InvalidArgument(
            f"dtype={dtype!r}: floats can be {', '.join(_FLOATS)}, or None for the archive's own.",
            hint="it is for floats alone; integers, flags and images keep theirs",
        )
    return name
