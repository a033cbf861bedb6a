"""What a measuring process and its parent tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from rlds_cli.dataset import Dataset
from rlds_cli.loader import Sampler, Window

IMPORTED, RUN, MEMORY, END = "imported", "run", "memory", "end"

Round = tuple[int, float]  # batches, seconds


@dataclass(frozen=True, slots=True)
class Job:
    """What to load.

    ``limit`` is the descriptor of a file that is read row by row as the limit; ``cold`` drops the files of the dataset
    from the page cache before every round.
    """

    dataset: Dataset
    window: Window
    sampler: Sampler
    batch_size: int
    seed: int
    seconds: float
    cold: bool
    limit: int


@dataclass(frozen=True, slots=True)
class Ran:
    """Rounds of the loader and of the limit, bytes of a batch, page faults while loading."""

    rounds: tuple[Round, ...]
    limit: tuple[Round, ...]
    batch_bytes: int
    major_faults: int
    minor_faults: int
