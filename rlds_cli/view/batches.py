"""Batches as training gets them: windows, padding and masks, after transforms. A page shows some samples of one.

The loader that is shown is copied: browsing its batches moves the copy alone.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Batch, Dataset
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.ted import Field

_KEPT = 3  # batches
_MASK = "mask"


class GivesBatches(Protocol):
    """What is used of a loader, see `loader.Loader`."""

    @property
    def dataset(self) -> Any:
        """What it draws from."""

    @property
    def step(self) -> int:
        """Number of the next batch."""

    def seek(self, step: int) -> None:
        """Go to a batch."""

    def describe(self) -> str:
        """Describe what is sampled."""

    def __iter__(self) -> Iterator[Batch]:
        """Go through batches."""

    def __len__(self) -> int:
        """Return their number; raises TypeError if they do not end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchField:
    """A field of a batch.

    Attributes
    ----------
    name : str
    values : array
        [B, ...], or [B, L, ...] where it has steps.
    mask : array or None
        bool [B, L]: False where a value lies outside its episode. None for a field without steps.
    low, high : float or None
        The range of its numbers.
    """

    name: str
    values: Array
    mask: Array | None
    low: float | None = None
    high: float | None = None

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a step, or of a sample without steps."""
        return self.values.shape[1 if self.mask is None else 2 :]

    @property
    def image(self) -> Field | None:
        """The field of which a row is an image, of any dtype; None if it is none."""
        f = Field(self.name, "uint8", self.row)
        dtype = self.values.dtype
        return f if f.is_image and (dtype == np.uint8 or (len(f.shape) == 3 and dtype.kind in "fu")) else None

    @property
    def kind(self) -> str:
        """``mask``, ``image``, ``curve``, or ``values`` of samples without steps and of texts."""
        if is_below(self.name, _MASK):
            return "mask"
        if self.image is not None:
            return "image"
        return "curve" if self.mask is not None and self.values.dtype.kind in "biuf" else "values"


class ShownBatches:
    """The batches of a loader by number.

    Parameters
    ----------
    loader : GivesBatches
    """

    def __init__(self, loader: GivesBatches) -> None:
        self.next = loader.step
        self.described = {"loader": repr(loader), "text": loader.describe()}
        self._loader = copy.copy(loader)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, dict[str, BatchField]] = OrderedDict()
        try:
            self.count: int | None = len(self._loader)
        except TypeError:  # it does not end
            self.count = None

    @property
    def datasets(self) -> list[Dataset]:
        """What the loader draws from, unless it is a mixture."""
        return [self._loader.dataset] if isinstance(self._loader.dataset, Dataset) else []

    def columns(self, number: int) -> dict[str, BatchField]:
        """Return the fields of a batch.

        Raises
        ------
        RldsError
            There is no such batch, or a transform fails.
        """
        if number < 0:
            raise InvalidArgument(f"Batch {number:,} cannot be shown: the first one is 0.")
        with self._lock:
            if number not in self._kept:
                self._kept[number] = _columns(self._drawn(number))
            self._kept.move_to_end(number)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[number]

    def _drawn(self, number: int) -> Batch:
        try:
            self._loader.seek(number)
            return next(iter(self._loader)).numpy()
        except StopIteration:
            raise InvalidArgument(f"The loader has no batch {number:,}.") from None
        except RldsError:
            raise
        except Exception as e:  # of a transform of the user
            raise RldsError(f"Batch {number:,} cannot be made: {type(e).__name__}: {e}") from e


def _columns(batch: Batch) -> dict[str, BatchField]:
    masks = {name: np.asarray(batch[name]) for name in batch.names() if is_below(name, _MASK)}
    found = {}
    for name in batch.names():
        values, mask = np.asarray(batch[name]), masks.get(f"{_MASK}/{name}", masks.get(_MASK))
        if name in masks:
            mask = np.ones_like(masks[name], bool)
        if mask is None or values.shape[: mask.ndim] != mask.shape:
            mask = None
        elif mask.ndim == 3:  # pairs of windows
            values, mask = (x.reshape(-1, *x.shape[2:]) for x in (values, mask))
        low, high = _range(values)
        found[name] = BatchField(name=name, values=values, mask=mask, low=low, high=high)
    return found


def _range(values: Array) -> tuple[float | None, float | None]:
    if values.dtype.kind not in "biuf" or not values.size:
        return None, None
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)
