"""Random numbers and permutations as functions of (seed, epoch, position): nothing to step, nothing to store.

Draw p of a stream is ``Philox(key=(seed, epoch, stream), counter=p // 4)[p % 4]`` (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). A shuffle is a Feistel permutation of Z_a x Z_b with a * b >= n (Black and Rogaway 2002,
"Ciphers with arbitrary finite domains"): a and b about sqrt(n), so that hardly a value falls outside [0, n) and is
encrypted again, whatever n.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from rlds_cli.ted import IntArray

VERSION = 1  # of the order: a change of any sequence below counts it up, and older states are refused

WINDOW, EPISODE, SHUFFLE = 0, 1, 2  # streams: draws for different purposes never share numbers

_ROUNDS = 4
_STREAM_BITS = 8

Words = npt.NDArray[np.uint64]
HalfWords = npt.NDArray[np.uint32]


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

    def uniform(self, stream: int, positions: range, scale: float = 1.0) -> npt.NDArray[np.float64]:
        """Draws in [0, 1) times ``scale`` [len(positions)]: number p of the stream for every p."""
        raw = self._raw(stream, positions.start, positions[-1] + 1 - positions.start if positions else 0)
        draws = (raw[:: positions.step] >> np.uint64(11)).astype(np.float64)
        draws *= scale * 2.0**-53
        return draws

    def below(self, stream: int, positions: range, n: int) -> IntArray:
        """Integers in [0, n) [len(positions)]; off from uniform by n / 2**53 at most."""
        return self.uniform(stream, positions, n).astype(np.int64)

    def shuffled(self, positions: range, n: int) -> IntArray:
        """Where a permutation of [0, n) takes ``positions``, which lie in [0, n)."""
        keys = self._raw(SHUFFLE, 0, _ROUNDS).astype(np.uint32)
        return permute(np.arange(positions.start, positions.stop, positions.step, dtype=np.uint64), n, keys)

    def _raw(self, stream: int, start: int, count: int) -> Words:
        block, skip = divmod(start, 4)
        key = np.array([self.seed, self.epoch << _STREAM_BITS | stream], np.uint64)
        philox = np.random.Philox(key=key, counter=np.array([block, 0, 0, 0], np.uint64))
        words: Words = np.atleast_1d(philox.random_raw(skip + count))[skip:]
        return words


def permute(x: Words, n: int, keys: HalfWords) -> IntArray:
    """Apply the keyed permutation of [0, n) to ``x``, element by element.

    Parameters
    ----------
    x : uint64 array
        Values in [0, n).
    n : int
        Up to 2**62.
    keys : uint32 array
        One per round.
    """
    a = isqrt(n - 1) + 1 if n > 1 else 1
    b = -(-n // a)
    y = _feistel(x, a, b, keys)
    outside = np.flatnonzero(y >= n)
    while outside.size:
        again = _feistel(y[outside], a, b, keys)
        y[outside] = again
        outside = outside[again >= n]
    return y.astype(np.int64)


def _feistel(x: Words, a: int, b: int, keys: HalfWords) -> Words:
    quotient = x // np.uint64(b)
    left = quotient.astype(np.uint32)
    right = (x - quotient * np.uint64(b)).astype(np.uint32)
    for round, key in enumerate(keys):
        if round % 2:
            right = _add(right, _mix(left ^ key), b)
        else:
            left = _add(left, _mix(right ^ key), a)
    return left.astype(np.uint64) * np.uint64(b) + right


def _mix(x: HalfWords) -> HalfWords:
    """Scatter 32 bits over 32 bits."""
    x *= np.uint32(0x9E3779B1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x85EBCA77)
    x ^= x >> np.uint32(13)
    return x


def _add(x: HalfWords, f: HalfWords, modulus: int) -> HalfWords:
    """Return (x + f) mod ``modulus``; x is below it. Division by a scalar is vectorised, the remainder is not."""
    m = np.uint32(modulus)
    x = x + (f - f // m * m)
    x -= m * (x >= m)
    return x
