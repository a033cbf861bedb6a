"""What a function does to an episode: its fields before and after, and what that takes on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.episodes import Value
from rlds_cli.preprocess.plan import Plan
from rlds_cli.preprocess.reading import Episode
from rlds_cli.preprocess.whole import Result
from rlds_cli.ted import EncodedFrames, Field


@dataclass(frozen=True, slots=True)
class Values:
    """One field of one episode. ``mean std min max`` are over all elements; None where not numeric."""

    dtype: str
    shape: tuple[int, ...]
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a field. ``bytes`` is what it would add on disk for the whole dataset; 0 where it is shared."""

    name: str
    what: Literal["changed", "new", "removed", "untouched", "not read"]
    before: Values | None
    after: Values | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """A function tried on one episode, or on one ``step`` of it.

    ``returned`` are the lengths of the episodes that it made of it (none when it is dropped); ``seconds`` is what the
    call took, ``total_seconds`` and ``total_bytes`` estimate the whole dataset with ``jobs`` workers; ``linked`` says
    whether untouched fields would be shared with the source. ``fitted`` says on what the first pass was run, where the
    function has one: all, or the chunk of the episode.
    """

    source: str
    id: str
    function: str
    unit: str
    episode: int
    length: int
    returned: tuple[int, ...]
    seconds: float
    fields: tuple[Change, ...]
    jobs: int
    total_seconds: float
    total_bytes: int
    linked: bool
    fitted: str = ""
    step: int | None = None


def changes(dataset: Dataset, before: Episode, results: Sequence[Result], made: Plan | None) -> tuple[Change, ...]:
    """What became of every field of an episode, and what the whole ``dataset`` would take when made as planned."""
    if not results:
        return ()
    schema, after = dataset.schema, results[0].flat
    steps = sum(r.length for r in results) / max(1, before.length)
    rows = dataset.num_steps * steps + dataset.num_episodes * len(results)
    new = {f.name: f for f in made.schema} if made else {}
    shared = made.shared if made else frozenset()
    changes = []
    for name in sorted({*schema, *after}):
        f = new.get(name)
        a, b = before.original.get(name), after.get(name)
        size = int(rows * _row_bytes(f, b)) if f is not None and name not in shared else 0
        if name in schema and name not in before.original:
            changes.append(Change(name, "not read", None, None, size))
        elif a is None:
            changes.append(Change(name, "new", None, _values(b), size))
        elif b is None:
            changes.append(Change(name, "removed", _values(a), None, 0))
        else:
            same = len(results) == 1 and results[0].rows.get(name) == slice(None)
            changes.append(Change(name, "untouched" if same else "changed", _values(a), _values(b), size))
    return tuple(changes)


def _row_bytes(f: Field, values: Value | None) -> float:
    """Bytes of a row on disk; of encoded frames, as those of the episode."""
    if isinstance(values, EncodedFrames):
        return len(values.data) / max(1, len(values))
    return f.row_bytes


def _values(values: Value | None) -> Values | None:
    if values is None:
        return None
    if isinstance(values, EncodedFrames):
        return Values(f"{values.codec} frames", (len(values), *values.shape))
    if isinstance(values, list) or values.dtype == object:
        return Values("text", (len(values),))
    if values.size == 0 or values.dtype.kind not in "fiub":
        return Values(values.dtype.name, values.shape)
    x = values.astype(np.float64)
    finite = x[np.isfinite(x)]
    moments = [float(m(finite)) for m in (np.mean, np.std, np.min, np.max)] if finite.size else [None] * 4
    return Values(values.dtype.name, values.shape, *moments)
