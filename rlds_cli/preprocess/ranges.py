"""Ranges of steps of episodes, by a function of each episode or as they are given; for `Dataset.trim`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.text import split_name
from rlds_cli.dataset import Batch, Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.lazy import LazyArray, LazyBatch, StoredColumns, in_episode
from rlds_cli.ted import Field


def ranges_of(ds: Dataset, given: Callable[[Batch], Any] | Mapping[int, Any]) -> IntArray:
    """Return the ranges that a user gave of the selected episodes, see `Dataset.trim`: episode, first, stop [n, 3]."""
    lengths = ds.episodes["length"]
    if callable(given):
        given = {k: given(_episode(ds, k)) for k in range(len(lengths))}
    else:
        _check_numbers(given, len(lengths), ds.id)
    numbers = np.fromiter(given, np.int64, len(given))
    stays = np.ones(len(lengths), bool)
    stays[numbers] = False
    pairs = _of_pairs(given.values(), lengths[numbers])
    if pairs is None:
        each = [of_values(v, int(lengths[k]), f"{ds.id}, episode {k:,}") for k, v in sorted(given.items())]
        counts = np.array([len(ranges) for ranges in each], np.int64)
        pairs = np.array([pair for ranges in each for pair in ranges], np.int64).reshape(-1, 2)
        numbers = np.repeat(np.sort(numbers), counts)
    whole = np.flatnonzero(stays)
    of = np.concatenate([whole, numbers])
    order = np.argsort(of, kind="stable")
    first = np.concatenate([np.zeros_like(whole), pairs[:, 0]])[order]
    stop = np.concatenate([lengths[whole], pairs[:, 1]])[order]
    return np.stack([ds.episodes.index[of[order]], first, stop], 1)


def _of_pairs(given: Collection[Any], lengths: IntArray) -> IntArray | None:
    """Return pairs (first, stop) of numbers as an array [n, 2]; None unless each is a range of its episode."""
    if set(map(type, given)) != {tuple} or set(map(len, given)) != {2}:
        return None
    if set(map(type, chain.from_iterable(given))) != {int}:
        return None
    try:
        found = np.fromiter(chain.from_iterable(given), np.int64, 2 * len(given)).reshape(-1, 2)
    except OverflowError:
        return None
    fits = (found[:, 0] >= 0) & (found[:, 0] < found[:, 1]) & (found[:, 1] <= lengths)
    return found if fits.all() else None


def _check_numbers(given: Any, count: int, id: str) -> None:
    """Refuse anything but a mapping whose keys are numbers of ``count`` episodes."""
    hint = "a function of an episode; or {3: (0, 50), 7: [(0, 10), (20, 30)]}: ranges of steps by number of the episode"
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"{id} is trimmed by a function or by a mapping, not by a {type(given).__name__}.", hint=hint
        )
    if set(map(type, given)) == {int} and min(given) >= 0 and max(given) < count:
        return
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < count:
            raise InvalidArgument(f"There is no episode {k!r} among the {count:,} of {id}.", hint=hint)


def _episode(ds: Dataset, k: int) -> Batch:
    """Return an episode whose fields are read when they are used, with its columns."""
    start, length, observed = (int(ds.episodes[c][k]) for c in ("start", "length", "num_observed"))
    steps = start + np.arange(length)
    after = np.minimum(steps + 1, start + observed - 1)

    def lazily(f: Field, rows: IntArray) -> LazyArray:
        empty = f.of_batch(np.empty((0, *f.shape)))
        dtype = np.dtype(object if f.kind == "text" else f.dtype)
        return LazyArray((length, *empty.shape[1:]), dtype, lambda: f.of_batch(ds.store.gather(f.name, rows)))

    fields = {name: lazily(f, steps) for name, f in ds.schema.items()}
    for name, f in ds.schema.items():
        if f.placement == "both" and f"next/{name}" not in fields:
            fields[f"next/{name}"] = lazily(f, after)
    episode = LazyBatch()
    for name, values in fields.items():
        *path, leaf = split_name(name)
        node: dict[Any, Any] = episode
        for part in path:
            node = dict.setdefault(node, part, LazyBatch())
        dict.__setitem__(node, leaf, values)
    return in_episode(episode, StoredColumns(ds.store).of_episode(int(ds.episodes.index[k]), length))


def of_values(given: Any, length: int, where: str) -> list[tuple[int, int]]:
    """Return the ranges of one episode that a user gave.

    Parameters
    ----------
    given
        A bool for each step [T], a pair (first, stop), a slice, a list of such, or None for none of the steps.
    length : int
        The steps T.
    where : str
        The episode, for messages.

    Raises
    ------
    InvalidArgument
        It is something else, or leads out of the episode, or ranges overlap or are not in order.
    """
    if given is None:
        return []
    if isinstance(given, slice):
        given = given.indices(length)[:2] if given.step in (None, 1) else given
    try:
        values = np.asarray(given) if not isinstance(given, slice) else np.zeros(())
    except ValueError:  # pairs beside other things
        values = np.zeros(())
    if values.dtype == bool and values.shape in ((length,), (length, 1)):
        edges = np.flatnonzero(np.diff(values.reshape(-1).astype(np.int8), prepend=0, append=0))
        return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if values.size == 0 and values.ndim == 1:
        return []
    if values.dtype.kind not in "iu" or values.shape[-1:] != (2,) or values.ndim > 2:
        raise InvalidArgument(
            f"{where}: {given!r:.80} is not a range of its {length:,} steps.",
            hint="a bool for each step, (first, stop), or a list of such pairs",
        )
    pairs = [(int(a), int(b)) for a, b in values.reshape(-1, 2).tolist()]
    before = 0
    for a, b in pairs:
        if not before <= a <= b <= length:
            said = "overlaps the one before it" if 0 <= a < before else f"is not a range of its {length:,} steps"
            raise InvalidArgument(f"{where}: ({a}, {b}) {said}.", hint="0 <= first <= stop <= T, in order")
        before = b
    return [(a, b) for a, b in pairs if a < b]
