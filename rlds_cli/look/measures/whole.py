"""Findings of the whole: halves of a dataset that differ, and episodes that another dataset or split has as well.

Halves are compared by ranks, within each task, so that neither outliers nor the order of the tasks count. A measure
drifts by both of

* Cliff's delta of 0.474, a large difference by Romano et al. (2006): a random episode of one half has the greater value
  in 74 of 100 pairs;
* 6 standard deviations of the rank sum (Mann and Whitney 1947; van Elteren 1960 over tasks), which no accident gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

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
_SPLIT, _TRAIN, _HELD_OUT = "split/", "train", ("val", "valid", "validation", "test", "eval")
_EQUAL, _ALMOST = "equal, by the hashes of their rows", "almost equal, by the states at 8 moments"
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


# -- against another dataset, and between splits


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
    whole = np.arange(len(own))
    found = _equal(own, theirs, whole, np.arange(len(theirs)))
    if len(found.numbers):
        yield _found("against", IN_BOTH, found, f"in {name} as well, {_EQUAL}", "its")
    if motions and m.roles.states and m.roles.states == other.roles.states and len(theirs):
        rest = np.setdiff1d(whole, found.numbers)
        near = _moving_alike(m, m.signatures, other.signatures, rest, np.arange(len(theirs)))
        if len(near.numbers):
            yield _found("against", NEAR_IN_BOTH, near, f"in {name} as well, {_ALMOST}", "its")


def in_two_splits(m: ComparedMeasures, *, motions: bool) -> Iterator[Finding]:
    """Yield the findings that episodes of one split are in another one as well, from which it is kept apart.

    The episodes that are named are those of ``train``, and of other splits those of the larger one.
    """
    fields = _in_both(m.store, m.store)
    pairs = kept_apart(m.store)
    if not pairs or not fields:
        return
    contents = _contents(m.store, fields)
    equal = [_equal(contents, contents, p.numbers, p.others) for p in pairs]
    yield from _of_pairs(IN_BOTH, _EQUAL, pairs, equal)
    if motions and m.roles.states:
        found = list[_Shared]()
        for p, same in zip(pairs, equal, strict=True):
            rest = np.setdiff1d(p.numbers, same.numbers)
            found.append(_moving_alike(m, m.signatures, m.signatures, rest, p.others))
        yield from _of_pairs(NEAR_IN_BOTH, _ALMOST, pairs, found)


def _of_pairs(code: str, how: str, pairs: Sequence[Apart], found: Sequence[_Shared]) -> Iterator[Finding]:
    """Yield one finding of all pairs of splits; its text is of the first of them."""
    some = [(p, f) for p, f in zip(pairs, found, strict=True) if len(f.numbers)]
    if not some:
        return
    numbers, first = np.unique(np.concatenate([f.numbers for _, f in some]), return_index=True)
    of = np.concatenate([f.of for _, f in some])[first]
    names = ", ".join(f"{p.name} and {p.other}" for p, _ in some[:_NAMED]) + (", …" if some[_NAMED:] else "")
    yield _found("splits", code, _Shared(numbers=numbers, of=of), f"in two splits, {names}, {how}", "episode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Two splits that are kept apart: their names, and the numbers of their episodes."""

    name: str
    other: str
    numbers: IntArray
    others: IntArray


def kept_apart(store: Store) -> list[Apart]:
    """Return the pairs of splits of which no episode should be in both: ``train`` and those that are held out of it.

    Two others are if they have no episode in common: subsets of a split are in it on purpose.
    """
    columns = [name for name in store.episodes if name.startswith(_SPLIT)]
    members = {name.removeprefix(_SPLIT): np.flatnonzero(store.episodes[name]) for name in columns}
    by_size = sorted((n for n in members if len(members[n])), key=lambda n: (n != _TRAIN, -len(members[n]), n))
    pairs = [Apart(name=a, other=b, numbers=members[a], others=members[b]) for a, b in combinations(by_size, 2)]
    held_out = [p for p in pairs if p.name == _TRAIN and p.other in _HELD_OUT]
    return [p for p in pairs if p in held_out or not np.isin(p.numbers, p.others).any()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Numbers of episodes [n], ascending, and of those that they are equal to, or move like [n]."""

    numbers: IntArray
    of: IntArray


def _equal(own: Array, theirs: Array, numbers: IntArray, others: IntArray) -> _Shared:
    """Return which episodes ``numbers`` have the content of one of ``others``, by what names contents [episodes]."""
    among, order = own[numbers], np.argsort(theirs[others], kind="stable")
    if not len(others):
        return _Shared(numbers=numbers[:0], of=numbers[:0])
    ranked = others[order]
    at = ranked[np.minimum(np.searchsorted(theirs[ranked], among), len(others) - 1)]
    same = theirs[at] == among
    return _Shared(numbers=numbers[same], of=at[same])


def _moving_alike(m: ComparedMeasures, own: Array, theirs: Array, numbers: IntArray, others: IntArray) -> _Shared:
    """Return which episodes move almost as one of ``others``, by the limit of near-duplicates within the dataset."""
    nothing = _Shared(numbers=numbers[:0], of=numbers[:0])
    if own.ndim != 2 or own.shape[1:] != theirs.shape[1:] or not len(numbers) or not len(others):
        return nothing
    (rule,) = (r for r in RULES if r.code == "near-duplicate")
    usual = m.column("quality_twin_distance")
    usual = usual[np.isfinite(usual) & (usual > 0)]
    of = siblings.nearest(own[numbers], theirs[others])
    known = np.isfinite(own[numbers]).any(axis=1)
    near = np.flatnonzero(known & (of.distance <= np.exp(limits(rule, np.log(usual)).below)))
    return _Shared(numbers=numbers[near], of=others[of.number[near]])


def _found(check: str, code: str, shared: _Shared, where: str, whose: str) -> Finding:
    numbers, first = shared.numbers, int(shared.numbers[0])
    are = "is" if len(numbers) == 1 else "are"
    return Finding(
        check=check,
        code=code,
        severity="warning",
        text=f"{plural(len(numbers), 'episode')} {are} {where}: episode {first:,} is {whose} {shared.of[0]:,}",
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
