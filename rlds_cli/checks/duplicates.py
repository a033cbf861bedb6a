"""Check for repeated episodes: they count twice, and may lie on both sides of a split.

Episodes with equal lengths and first steps are hashed as a whole; those with equal hashes are compared row by row.
Frames that are kept encoded are compared by their lengths in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import Finding, finding
from rlds_cli.checks.subject import Skipped, Subject, first_places, plural
from rlds_cli.ted import Array, Field, IntArray
from rlds_cli.text import is_below

_EPISODES = 1 << 14  # episodes whose keys are computed at a time
_AT_ONCE = 1 << 22  # bytes that are hashed or compared at a time
_ROOTS = ("observation", "action", "next/reward")

Words = np.ndarray


def repeats(s: Subject) -> Iterator[Finding]:
    """Find episodes whose observations, actions and rewards all equal those of an earlier episode."""
    columns = [f for f in s.ds.schema.values() if any(is_below(f.name, r) for r in _ROOTS)]
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
        yield finding("duplicate", "warning", text, len(again), None, first_places(again))


def repeated(s: Subject, columns: list[Field]) -> IntArray:
    """For every episode the number of the first one with the same content, -1 for that one itself; int64 [E]."""
    first = np.full(len(s.length), -1, np.int64)
    todo = _sharing(episode_keys(s, columns, shares=(0.0,)))
    keys = _whole_keys(s, columns, todo)
    again, of = _later(keys)
    again, of = todo[again], todo[of]
    same = np.zeros(len(again), bool)
    for pairs, steps in _batches(s, columns, again):
        x, y = (_rows_of(s, columns, which[pairs], steps) for which in (of, again))
        same[pairs] = (same[pairs] | (steps[0] == 0)) & (x == y).all(axis=1)
    first[again[same]] = of[same]
    return first


def episode_keys(s: Subject, columns: list[Field], *, shares: tuple[float, ...] = (0.0, 0.5, 1.0)) -> Words:
    """Hash every episode to uint64 [E]: its length, and its steps at the fractions ``shares`` of it in ``columns``."""
    keys = s.length.astype(np.uint64)
    for a in range(0, len(keys), _EPISODES):
        start, length = s.start[a : a + _EPISODES], s.length[a : a + _EPISODES]
        for share in shares:
            rows = start + np.minimum((length * share).astype(np.int64), length - 1)
            for f in columns:
                keys[a : a + _EPISODES] = _mix(keys[a : a + _EPISODES], _words(s.at(f.name, rows)))
    return keys


def _sharing(keys: Words) -> IntArray:
    """Indices of the keys that occur more than once, in order."""
    group, size = np.unique(keys, return_inverse=True, return_counts=True)[1:]
    return np.flatnonzero(size[group] > 1)


def _later(keys: Words) -> tuple[IntArray, IntArray]:
    """Indices of keys that occurred before, and the index where each occurred first."""
    earliest, group = np.unique(keys, return_index=True, return_inverse=True)[1:]
    of = earliest[group]
    again = np.flatnonzero(of != np.arange(len(keys)))
    return again, of[again]


def _whole_keys(s: Subject, columns: list[Field], episodes: IntArray) -> Words:
    """Hash the whole content of each of ``episodes``."""
    keys = s.length[episodes].astype(np.uint64)
    for chosen, steps in _batches(s, columns, episodes):
        keys[chosen] = _mix(keys[chosen], _words(_rows_of(s, columns, episodes[chosen], steps)))
    return keys


def _batches(s: Subject, columns: list[Field], episodes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Batches of episodes of one length (as indices into ``episodes``) and ranges of their steps, 4 MiB at a time."""
    if not len(episodes):
        return
    width = sum(8 if f.kind == "frames" else f.row_bytes for f in columns)
    order = np.argsort(s.length[episodes], kind="stable")
    lengths, starts = np.unique(s.length[episodes][order], return_index=True)
    for length, group in zip(lengths, np.split(order, starts[1:]), strict=True):
        span = min(int(length), max(1, _AT_ONCE // width))
        at_once = max(1, _AT_ONCE // (span * width))
        for a in range(0, len(group), at_once):
            for step in range(0, int(length), span):
                yield group[a : a + at_once], np.arange(step, min(step + span, int(length)))


def _rows_of(s: Subject, columns: list[Field], episodes: IntArray, steps: IntArray) -> Array:
    """The bytes of some steps of episodes, in all columns; uint8 [n, ...], so that NaN equals itself."""
    rows = (s.start[episodes][:, None] + steps).ravel()
    values = [np.ascontiguousarray(s.at(f.name, rows)).reshape(len(episodes), -1) for f in columns]
    return np.concatenate([v.view(np.uint8) for v in values], axis=1)


def _words(values: Array) -> Words:
    """The bytes of every row as unsigned 64-bit words [n, w]."""
    raw = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
    padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    return padded.view(np.uint64)


def _mix(keys: Words, words: Words) -> Words:
    """Fold words into keys: multiplied by odd numbers of their own, as in multilinear hashing."""
    odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) | np.uint64(1)
    folded = (words ^ (words >> np.uint64(29))) * odd
    total: Words = folded.sum(axis=1, dtype=np.uint64) + keys * np.uint64(0x9E3779B97F4A7C15)
    mixed: Words = total ^ (total >> np.uint64(32))
    return mixed
