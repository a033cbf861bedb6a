"""Random numbers and permutations as functions of (seed, epoch, sample number), with no state to step or store.

Draw p of a stream is ``Philox(key=(seed, epoch, stream), counter=p // 4)[p % 4]`` (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). A shuffle of few numbers sorts them by such draws: all orders are equally likely. A
shuffle of many is a Feistel permutation of Z_a x Z_b with a * b >= n (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"): a and b about sqrt(n), so that hardly a value falls outside [0, n) and is encrypted again, whatever n.

Six rounds leave 1 + 1 / sqrt(n) times as many neighbours x, x + 1 neighbours as a uniform shuffle does, four rounds
twice as many, whatever n: every two rounds divide the excess by sqrt(n), since two inputs that differ in one half must
collide in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.loader import kernel
from rlds_cli.loader.kernel import SampleNumbers

VERSION = 1  # in the states of loaders: a change of any sequence below takes a higher number
WINDOW, EPISODE, SHUFFLE, COLUMN = 0, 1, 2, 3  # streams: draws for different purposes never share numbers
_ROUNDS = 6
_SORTED = 1 << 12  # up to this size a shuffle sorts: about as fast as the permutation
_STREAM_BITS = 8


@dataclass(frozen=True, slots=True)
class Order:
    """The source of randomness of one epoch.

    Parameters
    ----------
    seed : int
        In [0, 2**64).
    epoch : int
        In [0, 2**56).
    """

    seed: int
    epoch: int = 0

    def uniform(
        self, stream: int, positions: SampleNumbers, scale: float = 1.0, salt: int = 0
    ) -> npt.NDArray[np.float64]:
        """Return draws in [0, 1) times ``scale`` [len(positions)]: number p of the stream for every p.

        Streams with different ``salt``, in [0, 2**64), are independent.
        """
        return kernel.uniform(self.seed, self._key(stream), salt, positions, scale)

    def stream(self, stream: int) -> tuple[int, int, int]:
        """Return seed, key and salt of a stream, from which `kernel.SumTree.draw` draws."""
        return self.seed, self._key(stream), 0

    def below(self, stream: int, positions: SampleNumbers, n: int) -> IntArray:
        """Return integers in [0, n) [len(positions)]; off from uniform by n / 2**53 at most."""
        return kernel.below(self.seed, self._key(stream), 0, positions, n)

    def shuffled(self, positions: SampleNumbers, n: int, salt: int = 0) -> IntArray:
        """Apply a random permutation of [0, n) to ``positions``; another for every ``salt``."""
        if n <= _SORTED:
            return _sorted(self, n, salt).take(_numbers(positions))
        a = isqrt(n - 1) + 1 if n > 1 else 1
        keys = kernel.words(self.seed, self._key(SHUFFLE), salt, 0, _ROUNDS).astype(np.uint32)
        return kernel.permute(positions, n, (a, -(-n // a)), keys)

    def shuffled_in_blocks(self, positions: SampleNumbers, n: int, block: int, live: int) -> IntArray:
        """Apply a random permutation that keeps neighbours close.

        [0, n) is cut into blocks of ``block`` numbers. Blocks are put in random order, then the contents of ``live``
        consecutive blocks are mixed. A smaller last block has a random place among the others.
        """
        whole = n // block
        odd = int(self.below(EPISODE, range(1), whole + 1)[0]) if n % block else whole
        slots, places = _Slots(n, block, odd), _numbers(positions).copy()
        group = slots.locate(places)[0] // live
        for g in distinct(group).tolist():
            start, stop = slots.start(g * live), slots.start((g + 1) * live)
            here = group == g
            places[here] = start + self.shuffled(places[here] - start, stop - start, 1 + g)
        slot, within = slots.locate(places)
        full = (slot - (slot > odd)).clip(0, max(whole - 1, 0))
        blocks: IntArray = np.where(slot == odd, whole, self.shuffled(full, whole) if whole else 0)
        return blocks * block + within

    def _key(self, stream: int) -> int:
        return self.epoch << _STREAM_BITS | stream


@lru_cache(maxsize=16)
def _sorted(order: Order, n: int, salt: int) -> IntArray:
    """Sort [0, n) by draws whose lowest bits hold the number itself, so that no index is needed."""
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    keys = kernel.words(order.seed, order._key(SHUFFLE), salt, 0, n) & ~low | np.arange(n, dtype=np.uint64)
    keys.sort()
    return (keys & low).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Places [0, n) in slots of ``block`` places each; slot ``odd`` holds the remaining n % block places."""

    n: int
    block: int
    odd: int

    def locate(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return the slot of every place, and the place within the slot."""
        lacking = -self.n % self.block
        after_odd = places >= (self.odd + 1) * self.block - lacking
        slot, within = np.divmod(places + lacking * after_odd, self.block)
        return slot, within

    def start(self, slot: int) -> int:
        """Return the first place of a slot; n after the last."""
        return min(slot * self.block - (-self.n % self.block) * (slot > self.odd), self.n)


def _numbers(positions: SampleNumbers) -> IntArray:
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return positions
