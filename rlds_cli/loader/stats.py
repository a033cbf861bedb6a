"""Figures of a loader: batches, and the time that it waited."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlds_cli.base import text
from rlds_cli.loader.storage.remote import blocks_of, clock_of

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Figures of a loader since it was made: batches, and the time that it waited.

    Attributes
    ----------
    seconds : float
        Since the first ``iter()`` began; 0 before.
    waited : float
        Seconds of these for which the reading of a batch waited for blocks of a remote dataset: the training, unless
        other batches were read ahead (``prefetch``).
    batches, samples : int
        That were given, on this rank.
    used : int
        Bytes of these samples.
    fetched : int
        Bytes of blocks that arrived from the stores.
    filled : int
        Bytes of these that arrived in the background, before a batch asked for them.
    requests : int
        Requests that brought them.
    evicted : int
        Blocks that left the home for others.
    """

    seconds: float
    waited: float
    batches: int
    samples: int
    used: int
    fetched: int
    filled: int
    requests: int
    evicted: int

    def __str__(self) -> str:
        share = self.waited / self.seconds if self.seconds else 0.0
        behind = f", {text.size_of(self.filled)} of it in the background" if self.filled else ""
        return (
            f"{self.batches:,} batches in {self.seconds:.1f} s, {share:.0%} of it waiting; {self.requests:,} requests"
            f" for {text.size_of(self.fetched)}{behind}; batches took {text.size_of(self.used)}"
        )


class Meter:
    """Counts what a loader gives, and what the stores of its datasets send meanwhile."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        found = {id(b): b for d in datasets if (b := blocks_of(d)) is not None}
        self._blocks = [*found.values()]
        self._before = self._now()
        self._begun: float | None = None
        self._batches = self._samples = 0

    def _now(self) -> tuple[float, int, int, int, int]:
        c = [b.stats for b in self._blocks]
        return (
            sum(clock_of(b).seconds for b in self._blocks),
            sum(x.fetched for x in c),
            sum(x.filled for x in c),
            sum(x.requests for x in c),
            sum(x.evicted for x in c),
        )

    def begin(self) -> None:
        """Begin to count seconds."""
        if self._begun is None:
            self._begun = time.monotonic()

    def note(self, samples: int) -> None:
        """Count a batch of so many samples, all ranks together."""
        self._batches += 1
        self._samples += samples

    def stats(self, *, sample_bytes: int, share: float) -> LoaderStats:
        """Return the counts; ``share`` is the part of the samples that this rank gets."""
        waited, *counts = (now - then for now, then in zip(self._now(), self._before, strict=True))
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        samples = round(self._samples * share)
        used = samples * sample_bytes
        return LoaderStats(seconds, waited, self._batches, samples, used, *map(int, counts))
