"""Batches of JAX arrays: the columns of a gather go to the device together, and are cut up there.

Putting every field of every batch on a device by itself takes 150 µs a batch. Here the columns of a gather are laid
side by side, one buffer for each dtype, a row for each batch; one ``device_put`` takes all of them, and a compiled
function cuts one batch out of them (20 µs in all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from rlds_cli import pytrees
from rlds_cli.batch import Batch
from rlds_cli.errors import InvalidArgument, MissingPackage
from rlds_cli.loader.output.arrays import Backend, NumpyArrays
from rlds_cli.ted import Array

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

    def __init__(self, dtype: str | None, device: Any) -> None:
        super().__init__(dtype)
        try:
            import jax
        except ImportError as e:
            raise MissingPackage("jax is not installed.", hint="pip install 'rlds-cli[jax]'") from e
        pytrees.register_jax(Batch)
        self._jax = jax
        self._device = _device(device)
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
        """Return powers of two: what cuts batches out is compiled for each number of them."""
        return 1 << (batches.bit_length() - 1)

    def finish(self, values: Array) -> Array:
        """Return floats in the dtype asked for."""
        if self.dtype != "bfloat16" or values.dtype.kind != "f":
            return super().finish(values)
        return values.astype(self._jax.numpy.bfloat16)

    def parts(self, columns: Mapping[str, Array], size: int) -> dict[str, Sequence[Any]]:
        """Return the batches' parts, see `Arrays`."""
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
        """A column in a dtype that JAX has."""
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
        """Send the columns of ``count`` batches, and cut one batch after the other out of them."""
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
    """What cuts one batch out of buffers, compiled once for all loaders whose batches look alike."""
    import jax

    def cut(buffers: Sequence[Any], batch: Any) -> list[Any]:
        rows = [jax.lax.dynamic_index_in_dim(buffer, batch, keepdims=False) for buffer in buffers]
        return [rows[i][start : start + prod(shape)].reshape(shape) for i, start, shape in layout]

    compiled: Callable[[Sequence[Any], Any], list[Any]] = jax.jit(cut)
    return compiled


def _powers(count: int) -> Iterator[tuple[int, int]]:
    """Powers of two that add up to ``count``, the largest first, each with where it starts."""
    first = 0
    while first < count:
        power = 1 << ((count - first).bit_length() - 1)
        yield first, power
        first += power


def _device(device: Any) -> Any:
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
