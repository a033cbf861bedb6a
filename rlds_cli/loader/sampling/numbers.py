"""The user's weights and priorities: one number per episode, transition or step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np

from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader.sampling.pool import FloatArray, Pool
from rlds_cli.ted import Array

Unit = Literal["episode", "transition", "step"]

_CHUNK = 1 << 20  # windows whose anchors are looked up at a time


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number for each episode, transition or step of a dataset.

    Attributes
    ----------
    values : array [n]
    unit : {"episode", "transition", "step"}
    what : str
        For messages: ``weights by step``.
    """

    values: Array
    unit: Unit
    what: str

    def of_windows(self, pool: Pool, without: float) -> FloatArray:
        """The number of every window of ``pool``: of its episode, or of its anchor.

        ``without`` is the number of windows whose anchor is no transition, where there is one for each transition.
        """
        numbers = np.full(pool.guide.total, without)
        everything = pool.dataset.episodes["num_transitions" if self.unit == "transition" else "length"]
        everything = everything.astype(np.int64)
        first = (np.cumsum(everything) - everything).take(pool.table.number)
        limit = everything.take(pool.table.number)
        for start in range(0, pool.guide.total, _CHUNK):
            windows = np.arange(start, min(start + _CHUNK, pool.guide.total))
            episode, number = pool.guide.find(windows)
            if self.unit == "episode":
                numbers[windows] = self.values.take(pool.table.number.take(episode))
                continue
            step = pool.anchor(number)
            known = step < limit.take(episode)
            numbers[windows[known]] = self.values.take((first.take(episode) + step)[known])
        return numbers


def frozen(given: Any, sampler: str, noun: str) -> str | FloatArray:
    """Return the name of a column unchanged, and an array as a read-only copy.

    Raises
    ------
    InvalidArgument
        It is neither a name nor numbers [n].
    """
    if isinstance(given, str):
        return given
    numbers = np.array(given)
    numbers.flags.writeable = False
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise InvalidArgument(
            f"{sampler}: {noun} of shape {list(numbers.shape)}, {numbers.dtype}: numbers [n] are needed.",
            hint="one per episode, transition or step, or the name of an episode column",
        )
    return numbers


def shown(given: str | FloatArray) -> str:
    """Describe weights or priorities for ``repr`` and loader states; an array by the hash of its content."""
    if isinstance(given, str):
        return repr(given)
    content = hashlib.sha256(np.ascontiguousarray(given).tobytes()).hexdigest()[:12]
    return f"{given.dtype}[{len(given)}], sha256 {content}"


def of(pool: Pool, given: str | FloatArray, sampler: str, noun: str) -> Numbers:
    """Assign ``given`` to the episodes, transitions or steps of the dataset of ``pool``.

    Raises
    ------
    UnknownField
        No episode column of numbers has that name.
    InvalidArgument
        An array of another length.
    """
    if isinstance(given, str):
        return Numbers(_column(pool, given, sampler), "episode", f'episode column "{given}"')
    dataset = pool.dataset
    lengths: dict[Unit, int] = {
        "episode": dataset.num_episodes,
        "transition": len(dataset),
        "step": dataset.num_steps,
    }
    for unit, length in lengths.items():
        if len(given) == length:
            return Numbers(given, unit, f"{noun} by {unit}")
    raise InvalidArgument(
        f"{sampler}: {len(given):,} {noun}; {dataset.id} has {dataset.num_episodes:,} episodes,"
        f" {len(dataset):,} transitions and {dataset.num_steps:,} steps.",
        hint="give one number per episode, per transition or per step",
    )


def _column(pool: Pool, name: str, sampler: str) -> Array:
    columns = pool.dataset.episodes
    if name not in columns or columns[name].dtype.kind not in "fiub":
        numeric = [c for c in columns if columns[c].dtype.kind in "fiub"]
        close = get_close_matches(name, numeric, 1)
        did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
        raise UnknownField(
            f'{sampler}: no episode column of numbers "{name}".{did_you_mean} There are {", ".join(numeric)}.'
        )
    return columns[name]
