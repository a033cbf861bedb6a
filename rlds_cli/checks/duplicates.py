"""Episodes that are there twice: they count double, and stand on both sides of a split.

A key of every episode is made of its length and of three of its rows; episodes that share one are then compared row by
row. Frames that are kept encoded are compared by their lengths in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Skipped, Subject, first_places, plural
from rlds_cli.ted import Array, Field, IntArray

NAME = "duplicates"

_EPISODES = 1 << 14  # keys are made for so many at a time
_COMPARED_BYTES = 1 << 23
_SPAN = 4096  # rows of an episode that are compared at a time
_ROOTS = ("observation", "action", "next/reward")

Words = np.ndarray


def find(s: Subject) -> Iterator[Finding]:
    """Episodes whose observations, actions and rewards are all those of an earlier one."""
    columns = [f for f in s.ds.schema.values() if any(f.name == r or f.name.startswith(f"{r}/") for r in _ROOTS)]
    columns = [f for f in columns if f.kind != "text" and 0 not in f.shape]
    if not any(f.name.split("/")[0] in ("observation", "action") for f in columns):
        raise Skipped("neither observations nor actions can be compared")
    if not s.thorough or len(s.length) < 2:
        return
    first = repeated(s, columns)
    again = np.flatnonzero(first >= 0)
    if len(again):
        text = f"{plural(len(again), 'episode', 'repeats an earlier one', 'repeat earlier ones')}, e.g."
        text += f" episode {again[0]:,} is episode {first[again[0]]:,} again"
        yield Finding(NAME, "duplicate", "warning", text, len(again), None, first_places(again))


def repeated(s: Subject, columns: list[Field]) -> IntArray:
    """For every episode the first one with the same content, -1 where it is the first; int64 [E]."""
    keys = episode_keys(s, columns)
    first = np.full(len(keys), -1, np.int64)
    todo = np.arange(len(keys))
    while len(todo):
        earliest, group, size = np.unique(keys[todo], return_index=True, return_inverse=True, return_counts=True)[1:]
        candidate = todo[earliest[group]]
        pairs = (size[group] > 1) & (candidate != todo)
        again, of = todo[pairs], candidate[pairs]
        same = _equal(s, columns, of, again)
        first[again[same]] = of[same]
        todo = again[~same]  # one key, other content: compared among themselves
    return first


def episode_keys(s: Subject, columns: list[Field]) -> Words:
    """A key of every episode, uint64 [E]: of its length, and of its first, middle and last step in ``columns``."""
    keys = s.length.astype(np.uint64)
    for a in range(0, len(keys), _EPISODES):
        start, length = s.start[a : a + _EPISODES], s.length[a : a + _EPISODES]
        for rows in (start, start + length // 2, start + length - 1):
            for f in columns:
                keys[a : a + _EPISODES] = _mix(keys[a : a + _EPISODES], _words(s.at(f.name, rows)))
    return keys


def _words(values: Array) -> Words:
    """The bytes of every row as unsigned 64-bit words [n, w]."""
    raw = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
    padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    return padded.view(np.uint64)


def _mix(keys: Words, words: Words) -> Words:
    """Fold words into keys: multiplied by odd numbers of their own, as in multilinear hashing."""
    odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    folded = (words ^ (words >> np.uint64(29))) * odd
    total: Words = folded.sum(axis=1, dtype=np.uint64) + keys * np.uint64(0x9E3779B97F4A7C15)
    mixed: Words = total ^ (total >> np.uint64(32))
    return mixed


def _equal(s: Subject, columns: list[Field], of: IntArray, again: IntArray) -> Array:
    """Whether pairs of episodes of one length are equal, row by row; bool [n]."""
    same = np.ones(len(again), bool)
    if not len(again):
        return same
    width = max(8 if f.kind == "frames" else f.row_bytes for f in columns)
    order = np.argsort(s.length[again], kind="stable")
    lengths, starts = np.unique(s.length[again][order], return_index=True)
    for length, group in zip(lengths, np.split(order, starts[1:]), strict=True):
        span = min(int(length), _SPAN, max(1, _COMPARED_BYTES // width))
        at_once = max(1, _COMPARED_BYTES // (span * width))
        for a in range(0, len(group), at_once):
            pairs = group[a : a + at_once]
            same[pairs] = _same_rows(s, columns, s.start[of[pairs]], s.start[again[pairs]], int(length), span)
    return same


def _same_rows(s: Subject, columns: list[Field], one: IntArray, other: IntArray, length: int, span: int) -> Array:
    same = np.ones(len(one), bool)
    for a in range(0, length, span):
        steps = np.arange(a, min(a + span, length))
        for f in columns:
            x, y = (_bytes(s.at(f.name, (start[:, None] + steps).ravel())) for start in (one, other))
            same &= (x == y).reshape(len(one), -1).all(axis=1)
        if not same.any():
            break
    return same


def _bytes(values: Array) -> Array:
    """So that NaN equals itself."""
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
