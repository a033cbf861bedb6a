"""Findings of the whole: halves of a dataset that differ, and episodes that another dataset has as well.

Halves are compared by ranks, within each task, so that neither outliers nor the order of the tasks count. A measure
drifts by both of

* Cliff's delta of 0.474, a large difference by Romano et al. (2006): a random episode of one half has the greater value
  in 74 of 100 pairs;
* 6 standard deviations of the rank sum (Mann and Whitney 1947; van Elteren 1960 over tasks), which no accident gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import is_below, plural
from rlds_cli.errors import InvalidArgument
from rlds_cli.look.checks.findings import MOST_PLACES, Finding, FindingPlace
from rlds_cli.look.measures import catalogue, siblings
from rlds_cli.look.measures.catalogue import Group
from rlds_cli.look.measures.comparing import ComparedMeasures
from rlds_cli.look.measures.found import limits
from rlds_cli.look.measures.rules import RULES
from rlds_cli.look.measures.vectors import TOLD
from rlds_cli.store import Store

DRIFT, IN_BOTH, NEAR_IN_BOTH = "drift", "in-both", "near-in-both"
CODES = (DRIFT, IN_BOTH, NEAR_IN_BOTH)
_LARGE, _DEVIATIONS = 0.474, 6.0
_FEWEST = 8  # episodes of a task in each half
_NAMED = 3
_SHARED = ("observation", "action")  # fields below these are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drift:
    """How a number of episodes differs between the halves: Cliff's delta, and the medians."""

    name: str
    delta: float
    first: float
    second: float

    def __str__(self) -> str:
        return f"{self.name} ({self.first:.3g}, then {self.second:.3g})"


def drifts(m: ComparedMeasures, groups: tuple[Group, ...]) -> Iterator[Finding]:
    """Yield the finding that halves of a dataset differ in measures of some groups, which were computed."""
    found = list[_Drift]()
    for name, values in _numbers(m, groups):
        d = _drift(name, values, m.tasks)
        if d is not None:
            found.append(d)
    if not found:
        return
    found.sort(key=lambda d: -abs(d.delta))
    more = f" and {plural(len(found) - _NAMED, 'other')}" if len(found) > _NAMED else ""
    text = f"the second half of the episodes differs from the first in {', '.join(map(str, found[:_NAMED]))}{more}"
    yield Finding(check="measures", code=DRIFT, severity="note", text=text, count=len(found))


def _numbers(m: ComparedMeasures, groups: tuple[Group, ...]) -> Iterator[tuple[str, Array]]:
    """Yield names and values [episodes] of all that may drift."""
    count = m.store.manifest.counts.episodes
    if count < 2 * _FEWEST:
        return
    for name in (x.name for x in catalogue.MEASURES if x.group in groups and not m.lacks(x.name)):
        yield name, m.column(name)
    if "motion" in groups and m.roles.states:
        names = m.elements_of(m.roles.states)[:TOLD]
        middle = np.median(m.signatures.reshape(count, -1, len(names)), axis=1)
        yield from ((f"{name} over the episode", middle[:, k]) for k, name in enumerate(names))
    if "camera" in groups and m.roles.cameras:
        looks = m.looks.reshape(count, len(m.roles.cameras), -1)
        for k, name in enumerate(m.roles.cameras):
            yield from ((f"the picture of {name}, part {i + 1}", looks[:, k, i]) for i in range(looks.shape[2]))


def _drift(name: str, values: Array, tasks: IntArray) -> _Drift | None:
    """Return how values [episodes] differ between the halves; None if they do not by much."""
    later = np.arange(len(values)) >= (len(values) + 1) // 2
    known = np.isfinite(values)
    total = spread = pairs = greater = 0.0
    for task in np.unique(tasks).tolist():
        of_task = known & (tasks == task)
        x, y = values[of_task & ~later], values[of_task & later]
        n, k = len(x), len(y)
        if min(n, k) < _FEWEST:
            continue
        _, place, count = np.unique(np.concatenate([x, y]), return_inverse=True, return_counts=True)
        rank = (np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)]
        above = float(rank[n:].sum()) - k * (k + 1) / 2  # pairs in which the later one is greater; of equal ones half
        ties = float((count.astype(np.float64) ** 3 - count).sum()) / ((n + k) * (n + k - 1))
        total += (above - n * k / 2) / (n + k + 1)
        spread += n * k / 12 * (n + k + 1 - ties) / (n + k + 1) ** 2
        pairs, greater = pairs + n * k, greater + above
    if not pairs or not spread:
        return None
    delta = 2 * greater / pairs - 1
    if abs(delta) < _LARGE or abs(total) < _DEVIATIONS * np.sqrt(spread):
        return None
    first, second = (float(np.median(values[known & half])) for half in (~later, later))
    return _Drift(name=name, delta=delta, first=first, second=second)


# -- against another dataset


def shared(m: ComparedMeasures, other: ComparedMeasures, *, motions: bool) -> Iterator[Finding]:
    """Yield the findings that episodes are in another dataset as well: equal ones, and ones that move as they do.

    With ``motions``, those of both, which were computed, are compared, if their states are the same fields.

    Raises
    ------
    InvalidArgument
        The datasets have no field in common, or are one version of one dataset.
    """
    name = other.store.address or other.store.manifest.id
    if m.store.path == other.store.path and m.store.version_id == other.store.version_id:
        raise InvalidArgument(f"{name} is compared with itself.", hint="--against another dataset, or another version")
    fields = _in_both(m.store, other.store)
    if not fields:
        raise InvalidArgument(
            f"{m.store.manifest.id} and {name} have no observation or action of one name, type and shape in common.",
            hint=f"rlds diff {m.store.manifest.id} {name}",
        )
    own, theirs = (_contents(s, fields) for s in (m.store, other.store))
    order = np.argsort(theirs, kind="stable")
    at = order[np.minimum(np.searchsorted(theirs[order], own), len(theirs) - 1)] if len(theirs) else np.zeros(len(own))
    equal = np.flatnonzero(np.isin(own, theirs))
    if len(equal):
        yield _found(IN_BOTH, "equal, by the hashes of their rows", equal, at.astype(np.int64), name)
    if motions and m.roles.states and m.roles.states == other.roles.states and len(theirs):
        yield from _moving_alike(m, other, np.setdiff1d(np.arange(len(own)), equal), name)


def _moving_alike(m: ComparedMeasures, other: ComparedMeasures, rest: IntArray, name: str) -> Iterator[Finding]:
    """Yield the finding that episodes move almost as others do, by the limit of near-duplicates within the dataset."""
    a, b = m.signatures, other.signatures
    if a.ndim != 2 or a.shape[1:] != b.shape[1:] or not len(rest):
        return
    of = siblings.nearest(a, b)
    usual = m.column("quality_twin_distance")
    (rule,) = (r for r in RULES if r.code == "near-duplicate")
    usual = usual[np.isfinite(usual) & (usual > 0)]
    known = np.isfinite(a).any(axis=1)
    near = rest[(known & (of.distance <= np.exp(limits(rule, np.log(usual)).below)))[rest]]
    if len(near):
        yield _found(NEAR_IN_BOTH, "almost equal, by the states at 8 moments", near, of.number, name)


def _found(code: str, how: str, numbers: IntArray, at: IntArray, name: str) -> Finding:
    first = int(numbers[0])
    are = "is" if len(numbers) == 1 else "are"
    text = f"{plural(len(numbers), 'episode')} {are} in {name} as well, {how}: episode {first:,} is its {at[first]:,}"
    return Finding(
        check="against",
        code=code,
        severity="warning",
        text=text,
        count=len(numbers),
        places=tuple(FindingPlace(k) for k in numbers[:MOST_PLACES].tolist()),
        num_episodes=len(numbers),
        episodes=tuple(numbers.tolist()),
    )


def _in_both(a: Store, b: Store) -> list[str]:
    """Return the names of observations and actions that both datasets have in one type and shape."""
    return sorted(
        f.name
        for f in a.fields.values()
        if any(is_below(f.name, root) for root in _SHARED)
        and (other := b.fields.get(f.name)) is not None
        and (other.dtype, other.shape, other.kind) == (f.dtype, f.shape, f.kind)
    )


def _contents(store: Store, fields: list[str]) -> Array:
    """Return what names the content of some fields in each episode, as bytes [episodes]."""
    parts = [np.ascontiguousarray(store.digests(name)[store.table.numbers]) for name in fields]
    whole = np.ascontiguousarray(np.concatenate(parts, axis=1))
    return whole.view(f"S{whole.shape[1] * whole.itemsize}").reshape(-1)
