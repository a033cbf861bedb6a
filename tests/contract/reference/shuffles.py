"""Shuffles, one number at a time, as the documentation of the order describes them."""

from __future__ import annotations

import numpy as np

SHUFFLE = 2  # the stream of Philox that shuffles draw from
ROUNDS = 6
SORTED = 4096


def philox(seed: int, epoch: int, stream: int, position: int, salt: int = 0) -> int:
    """Draw number ``position`` of a stream, 64 bits: a word of the block that it lies in."""
    key = np.array([seed, epoch << 8 | stream], np.uint64)
    counter = np.array([position // 4, salt, 0, 0], np.uint64)
    return int(np.random.Philox(key=key, counter=counter).random_raw(4)[position % 4])


def shuffled(seed: int, epoch: int, n: int, salt: int = 0) -> list[int]:
    """Where [0, n) goes."""
    if n <= SORTED:
        bits = (n - 1).bit_length()
        draws = [philox(seed, epoch, SHUFFLE, i, salt) >> bits for i in range(n)]
        return sorted(range(n), key=lambda i: (draws[i], i))
    keys = [philox(seed, epoch, SHUFFLE, i, salt) % 2**32 for i in range(ROUNDS)]
    return [feistel(x, n, keys) for x in range(n)]


def feistel(x: int, n: int, keys: list[int]) -> int:
    """One value, in whole numbers: rounds add a scattering of one half to the other, by turns."""
    a = 1
    while a * a < n:
        a += 1
    b = -(-n // a)
    while True:
        left, right = divmod(x, b)
        for i, key in enumerate(keys):
            f = ((left if i % 2 else right) ^ key) * 0x9E3779B1 % 2**32
            f ^= f >> 15
            f = f * 0x85EBCA77 % 2**32
            f ^= f >> 13
            left, right = (left, (right + f) % b) if i % 2 else ((left + f) % a, right)
        x = left * b + right
        if x < n:
            return x
