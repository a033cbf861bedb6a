"""Fields in another dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.builtin.naming import Names, stored
from rlds_cli.preprocess.traits import Prepared, builtin
from rlds_cli.ted import FLAGS, Array


def dtype_of(name: Any) -> np.dtype[Any]:
    """The dtype of numbers or flags called ``name``.

    Raises
    ------
    InvalidArgument
        There is none, or it is of something else.
    """
    try:
        dtype: np.dtype[Any] = np.dtype(name).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError, OverflowError, RecursionError, MemoryError):  # NumPy evaluates a text
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InvalidArgument(f"{name!r} is no dtype of numbers.", hint="float16, float32, float64, int32, uint8, bool")
    return dtype


def _prepare(dataset: Dataset, *, fields: Names, dtype: str) -> Prepared:
    dtype_of(dtype)
    names = stored(dataset, fields)
    for name in names:
        f = dataset.schema[name]
        if f.kind != "array" or name in FLAGS:
            what = "a flag" if name in FLAGS else f"kept as {f.codec or 'text'}"
            raise InvalidArgument(f"{name} is {what}: its dtype cannot be changed.")
    return Prepared(dataset, reads=names)


@builtin(version=1, prepare=_prepare, loader="Loader(ds, dtype=...) casts floats")
def cast(episode: Batch, *, fields: Names, dtype: str) -> Any:
    """Change the dtype of fields, where no value is lost: floats may be rounded, but not overflow.

    A loader casts floats by itself (``dtype=``, float32 unless given).

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str
        ``observation`` stands for everything nested below it.
    dtype : str
        ``float16``, ``float32``, ``float64``, ``int32``, ``uint8``, ``bool``, ...

    Raises
    ------
    InvalidArgument
        A value does not fit: a fraction or a number out of range in integers, a float beyond the largest.
    """
    wanted = dtype_of(dtype)
    for name, values in list(episode.leaves()):
        if name in FLAGS:
            continue
        episode[name] = converted(name, values, wanted)
    return episode


def converted(name: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """``values`` in another dtype, none of them lost.

    Raises
    ------
    InvalidArgument
        See `cast`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
        fits = np.isfinite(made) | ~np.isfinite(values) if dtype.kind == "f" else made == values
    if not fits.all():
        wrong = values[~fits].flat[0]
        raise InvalidArgument(f"{name} holds {wrong}, which {dtype} does not.")
    return made
