"""Arrays of NumPy, torch or JAX: dtype, device, and the copy to the device.

The columns of a gather go to a device together. For torch they are laid out one after the other in pinned memory and
copied once. For JAX, where putting every field of every batch on the device by itself takes 150 µs a batch, they are
laid side by side, one buffer for each dtype and a row for each batch; one ``device_put`` takes all of them, and a
compiled function cuts out one batch (20 µs in all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Batch, register
from rlds_cli.errors import InvalidArgument, MissingPackage

if TYPE_CHECKING:
    import torch

Backend = Literal["torch", "numpy", "jax"]
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class ArrayBackend(Protocol):
    """Turn the columns of one gather into those of its batches.

    ``dtype`` is the dtype of floats, ``working`` the dtype in which they are transformed; None leaves them as they are.
    ``ships`` says whether batches go to a device other than the CPU, ``together`` whether several of them are converted
    at once because that is cheaper.
    """

    backend: Backend
    dtype: str | None
    working: str | None
    ships: bool
    together: bool

    @property
    def wrap(self) -> Callable[[Array], Any] | None:
        """The function that makes an array on the CPU one of the backend; None where it is one."""
        ...

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return columns as the backend's own arrays on its device, floats in the working dtype, text as it is."""
        ...

    def finish(self, values: Any) -> Any:
        """Cast floats to the dtype asked for, after transforms."""
        ...

    def zero(self, values: Any, places: tuple[Any, ...]) -> None:
        """Zero ``values[places]`` in place, text becomes None; ``places`` are int arrays of the backend."""
        ...

    def parts(self, columns: Mapping[str, Any], size: int) -> dict[str, Sequence[Any]]:
        """Split columns [batches * size, ...] into one array [size, ...] per batch, on the CPU in memory of its own."""
        ...

    def at_once(self, batches: int) -> int:
        """Return the number of batches to read together, where ``batches`` would be best."""
        ...

    def on_stream(self) -> OnStream:
        """Return a context in which other threads work on the calling thread's stream."""
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
    together = False
    wrap: Callable[[Array], Any] | None = None

    def __init__(self, dtype: str | None) -> None:
        self.dtype, self.working = dtype, _working(dtype)

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return columns in the working dtype."""
        return {name: _floats(x, self.working) for name, x in values.items()}

    def finish(self, values: Array) -> Array:
        """Return floats in the dtype asked for."""
        return _floats(values, self.dtype)

    def zero(self, values: Array, places: tuple[IntArray, ...]) -> None:
        """Zero the places, see `ArrayBackend`."""
        values[places] = None if values.dtype == object else 0

    def parts(self, columns: Mapping[str, Array], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `ArrayBackend`."""
        return {name: self.split(x, size) for name, x in columns.items()}

    def at_once(self, batches: int) -> int:
        """Return ``batches``."""
        return batches

    def on_stream(self) -> OnStream:
        """Return a context that does nothing."""
        return nullcontext

    def split(self, values: Array, size: int) -> Sequence[Array]:
        """Split one column."""
        if len(values) <= size:
            return [values]
        return [part.copy() for part in values.reshape(len(values) // size, size, *values.shape[1:])]


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

        register(Batch, "torch")
        self._torch = torch
        self.dtype = dtype
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self.working = _working(dtype)
        self.device = None if device is None else _torch_device(device)
        self.ships = self.together = self.device is not None and self.device.type != "cpu"
        self.wrap: Callable[[Array], Any] | None = torch.from_numpy

    def convert(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return tensors on the device, see `ArrayBackend`."""
        if self.device is None or not self.ships:
            return {name: self._tensor(x) for name, x in values.items()}
        floats = {name: x if x.dtype == object else _floats(x, self.working) for name, x in values.items()}
        moved = ship({name: x for name, x in floats.items() if x.dtype != object}, self.device)
        return {name: moved.get(name, x) for name, x in floats.items()}

    def _tensor(self, x: Array) -> Any:
        kind = x.dtype.kind
        return x if kind == "O" else self._torch.from_numpy(_floats(x, self.working) if kind == "f" else x)

    def finish(self, values: Any) -> Any:
        """Return floats in the dtype asked for."""
        if self._dtype is None or values.dtype == self._dtype or isinstance(values, np.ndarray):
            return values
        return values.to(self._dtype) if values.is_floating_point() else values

    def zero(self, values: Any, places: tuple[torch.Tensor, ...]) -> None:
        """Zero the places, see `ArrayBackend`."""
        if isinstance(values, np.ndarray):
            values[tuple(x.cpu().numpy() for x in places)] = None
        else:
            settable(values)[places] = 0

    def parts(self, columns: Mapping[str, Any], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `ArrayBackend`.

        Autograd does not take them for views: changing one in place does not invalidate what it saved of the others.
        """
        return {name: self._split(x, size) for name, x in columns.items()}

    def at_once(self, batches: int) -> int:
        """Return ``batches``."""
        return batches

    def on_stream(self) -> OnStream:
        """Return a context of this thread's CUDA stream, see `ArrayBackend`."""
        return on_stream(self.device)

    def _split(self, values: Any, size: int) -> Sequence[Any]:
        if len(values) <= size:
            return [values]
        if isinstance(values, np.ndarray):
            return list(values.reshape(len(values) // size, size, *values.shape[1:]))
        parts: Sequence[Any] = self._torch.unsafe_split(values, size)
        return parts if self.ships else [part.clone() for part in parts]


def _working(dtype: str | None) -> str | None:
    """Return the dtype of transforms: single precision for half floats."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _floats(values: Array, dtype: str | None) -> Array:
    return values if dtype is None or values.dtype.kind != "f" else values.astype(dtype, copy=False)


def _torch_device(device: Any) -> torch.device:
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise InvalidArgument(f"device={device!r} is not a device: {str(e).splitlines()[0]}") from e
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument(f"device={device!r}: torch sees no CUDA device.", hint='device=None, or "cpu"')
    return found


def make(backend: Backend, dtype: Any, device: Any) -> ArrayBackend:
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


_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
# Of a column: which buffer, where a batch's values start in its row, and their shape.
Layout = tuple[tuple[int, int, tuple[int, ...]], ...]


class JaxArrays(NumpyArrays):
    """JAX arrays on a device; transforms are computed by NumPy before.

    As everywhere in JAX, 64-bit numbers become 32-bit ones unless ``jax_enable_x64`` is set. Text stays a NumPy array
    of objects.

    Parameters
    ----------
    dtype : str or None
        Of floats; None leaves them as they are.
    device : jax.Device, str or None
        ``"gpu"`` or ``"gpu:1"``; None for JAX's own default.

    Raises
    ------
    MissingPackage
        JAX is not installed.
    InvalidArgument
        No such device, or ``float64`` without ``jax_enable_x64``.
    """

    backend: Backend = "jax"
    together = True

    def __init__(self, dtype: str | None, device: Any) -> None:
        super().__init__(dtype)
        try:
            import jax
        except ImportError as e:
            raise MissingPackage("jax is not installed.", hint="pip install 'rlds-cli[jax]'") from e
        register(Batch, "jax")
        self._jax = jax
        self._device = _jax_device(device)
        self.ships = (self._device or jax.devices()[0]).platform != "cpu"
        if dtype == "float64" and not self._wide:
            raise InvalidArgument(
                'dtype="float64": JAX is set to 32 bits.',
                hint='jax.config.update("jax_enable_x64", True) first, or dtype="float32"',
            )

    @property
    def _wide(self) -> bool:
        return bool(self._jax.config.jax_enable_x64)

    def at_once(self, batches: int) -> int:
        """Return a power of two: the function that cuts out batches is compiled for each number of them."""
        return 1 << (batches.bit_length() - 1)

    def finish(self, values: Array) -> Array:
        """Return floats in the dtype asked for."""
        if self.dtype != "bfloat16" or values.dtype.kind != "f":
            return super().finish(values)
        return values.astype(self._jax.numpy.bfloat16)

    def parts(self, columns: Mapping[str, Array], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `ArrayBackend`."""
        text = {name: x for name, x in columns.items() if x.dtype == object}
        numbers = {name: self._fit(name, x) for name, x in columns.items() if name not in text}
        made: dict[str, list[Any]] = {name: [] for name in numbers}
        for first, count in _powers(len(next(iter(columns.values()))) // size or 1):
            part = {name: x[first * size : (first + count) * size] for name, x in numbers.items()}
            for batch in self._cut(part, count) if part else ():
                for pieces, value in zip(made.values(), batch, strict=True):
                    pieces.append(value)
        return {name: made[name] if name in made else self.split(text[name], size) for name in columns}

    def _fit(self, name: str, x: Array) -> Array:
        """Cast a column to a dtype that JAX has."""
        narrow = None if self._wide else _NARROW.get(x.dtype.name)
        if narrow is None:
            return x
        if x.dtype.kind in "iu" and x.size:
            limits = np.iinfo(narrow)
            if x.min() < limits.min or x.max() > limits.max:
                raise InvalidArgument(
                    f"{name}: values up to {x.max():,} do not fit {narrow}, and JAX is set to 32 bits.",
                    hint='jax.config.update("jax_enable_x64", True)',
                )
        return x.astype(narrow)

    def _cut(self, columns: Mapping[str, Array], count: int) -> Iterator[list[Any]]:
        """Put the columns of ``count`` batches on the device, and cut out one batch after the other."""
        sides: dict[np.dtype[Any], list[Array]] = {}
        ends: dict[np.dtype[Any], int] = {}
        layout = []
        for x in columns.values():
            shape = (len(x) // count, *x.shape[1:])
            start = ends.get(x.dtype, 0)
            sides.setdefault(x.dtype, []).append(x.reshape(count, prod(shape)))
            layout.append((list(sides).index(x.dtype), start, shape))
            ends[x.dtype] = start + prod(shape)
        buffers = [np.concatenate(side, axis=1) for side in sides.values()]
        moved = self._jax.device_put(buffers, self._device)
        cut = _cutter(tuple(layout))
        return (cut(moved, np.int32(i)) for i in range(count))


@lru_cache(maxsize=256)
def _cutter(layout: Layout) -> Callable[[Sequence[Any], Any], list[Any]]:
    """Return the function that cuts a batch out of buffers, compiled once for all loaders with such batches."""
    import jax

    def cut(buffers: Sequence[Any], batch: Any) -> list[Any]:
        rows = [jax.lax.dynamic_index_in_dim(buffer, batch, keepdims=False) for buffer in buffers]
        return [rows[i][start : start + prod(shape)].reshape(shape) for i, start, shape in layout]

    compiled: Callable[[Sequence[Any], Any], list[Any]] = jax.jit(cut)
    return compiled


def _powers(count: int) -> Iterator[tuple[int, int]]:
    """Split ``count`` into powers of two, the largest first: the start and the size of each."""
    first = 0
    while first < count:
        power = 1 << ((count - first).bit_length() - 1)
        yield first, power
        first += power


def _jax_device(device: Any) -> Any:
    import jax

    if device is None or isinstance(device, jax.Device):
        return device
    if not isinstance(device, str):
        raise InvalidArgument(
            f'device={device!r} is neither a jax.Device nor text such as "gpu:0".',
            hint="jax.device_put(batch, ...) in the loop, for shardings",
        )
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as e:
        there = ", ".join(str(d) for d in jax.devices())
        raise InvalidArgument(f"device={device!r}: JAX sees no such device. There are: {there}.") from e


OnStream = Callable[[], AbstractContextManager[object]]
_ALIGNED = 16  # bytes: every dtype can be viewed from here


def ship(values: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy arrays to ``device`` in one transfer, and return views of the result.

    Parameters
    ----------
    values : mapping of str to array
        Numbers and flags of any dtype and shape.
    device : torch.device
        Memory is pinned for CUDA, so that the copy continues while the script does.
    """
    import torch

    starts, end = {}, 0
    for name, x in values.items():
        starts[name] = end
        end += -(-x.nbytes // _ALIGNED) * _ALIGNED
    host = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for name, x in values.items():
        flat[starts[name] : starts[name] + x.nbytes].view(x.dtype).reshape(x.shape)[...] = x
    moved = host.to(device, non_blocking=True)
    return {
        name: moved[starts[name] : starts[name] + x.nbytes].view(tensor_dtype(x.dtype)).view(x.shape)
        for name, x in values.items()
    }


def on_stream(device: torch.device | None) -> OnStream:
    """Return a context in which another thread works on the CUDA stream of this one.

    Every thread has its own current stream, and streams do not wait for each other. Freed memory returns to the stream
    that it was taken from. So the stream of the training loop is the right one for copies and for memory.
    """
    if device is None or device.type != "cuda":
        return nullcontext
    import torch

    return partial(torch.cuda.stream, torch.cuda.current_stream(device))


def send(values: Array, device: torch.device) -> torch.Tensor:
    """Copy one array to ``device``, see `ship`."""
    return ship({"": values}, device)[""]


def settable(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that can be set to zero: some unsigned integers cannot."""
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(values.element_size())
    return values if bits is None else values.view(bits)


def tensor_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the dtype of torch that is a dtype of NumPy."""
    import torch

    return torch.from_numpy(np.empty(0, dtype)).dtype
