"""The windows that a sampler draws from, and what it drew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.loader.sampling.guide import Guide
from rlds_cli.loader.sampling.order import Order, Positions
from rlds_cli.loader.sampling.table import Table
from rlds_cli.ted import IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

# columns that say how a sample was drawn, and which it is
PROBABILITY, WEIGHT, WINDOW, INDEX = "probability", "weight", "window", "index"

FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Pool:
    """All windows of a dataset.

    Attributes
    ----------
    dataset : Dataset
    table : Table
        The episodes that have a window.
    guide : Guide
        Windows are numbered 0..guide.total-1 through these episodes.
    anchor : callable
        From window numbers within their episodes [K] to their anchor steps [K].
    bucket : int or None
        The episodes are sorted by length, and so many at a time belong together.
    """

    dataset: Dataset
    table: Table
    guide: Guide
    anchor: Callable[[IntArray], IntArray]
    bucket: int | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """The windows that were drawn for some samples.

    Attributes
    ----------
    order : Order
    positions : range or int array [K]
        Numbers of the samples.
    episode : int array [K]
        Rows of the table.
    number : int array [K]
        Which of the windows of its episode.
    probability : callable
        Gives the chance with which a draw gives this window, float64 [K].
    weight : float array [K] or None
        Importance weights, of prioritised draws.
    longest : int
        Steps of the longest episode in the batch, of all ranks, where that matters: with a ``bucket``, and in mixtures.
    """

    order: Order
    positions: Positions
    episode: IntArray
    number: IntArray
    probability: Callable[[], FloatArray]
    weight: FloatArray | None = None
    longest: int = 0
