"""Names for the types of NumPy arrays that annotations use, and of what a batch holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

if TYPE_CHECKING:
    import typing_extensions

    ArrayT = typing_extensions.TypeVar("ArrayT", default=Any)
else:
    ArrayT = TypeVar("ArrayT")  # the values of a batch: arrays of NumPy or JAX, or tensors
