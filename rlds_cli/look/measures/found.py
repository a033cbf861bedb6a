"""Findings from measures: episodes that differ from their siblings, and the steps at which they do.

Siblings are the episodes with the same task text, if there are at least eight, else all episodes. An episode stands out
if its value lies beyond all of three limits:

* the median of its siblings and 6 robust standard deviations, each 1.4826 times the median absolute deviation: of
  normal values, 1 in 500 million lies there;
* Tukey's far-out fence, the upper quartile and three times the interquartile range (Exploratory Data Analysis, 1977),
  since many measures are not normal;
* the median and what is the least that matters, which a `Rule` says with its reason.

A rule may say more: that a value which is stated counts in place of the siblings' median, or that episodes which are
many are none that stand out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import plural
from rlds_cli.look.checks.findings import MOST_PLACES, Finding, FindingPlace, Siblings, StepRange
from rlds_cli.look.measures import cameras
from rlds_cli.look.measures.blocks import Block
from rlds_cli.look.measures.catalogue import Group
from rlds_cli.look.measures.comparing import ComparedMeasures
from rlds_cli.look.measures.rules import RULES, Rule
from rlds_cli.look.measures.vectors import Vectors

FEWEST = 8  # siblings that tell what is usual
_DEVIATIONS, _NORMAL, _FENCE = 6.0, 1.4826, 3.0
_AT = 1e-12  # a value at a limit lies beyond it
_NAMED = 3  # elements in a text


def findings(m: ComparedMeasures, groups: tuple[Group, ...]) -> Iterator[Finding]:
    """Yield the findings of groups of measures, which were computed.

    Raises
    ------
    RldsError
        A measure was not computed.
    """
    for rule in RULES:
        if rule.group in groups and m.lacks(rule.measure) == "":
            yield from of_rule(m, rule)


def of_rule(m: ComparedMeasures, rule: Rule) -> Iterator[Finding]:
    """Yield the finding of one rule, if there is one: its episodes, each with the element that stands out most."""
    values = np.asarray(m.values(rule.measure), np.float64)
    columns = values[:, None] if values.ndim == 1 else values
    tasks = m.tasks if rule.by_task else np.zeros(len(values), np.int64)
    groups = _groups(tasks)
    usual = [_usual(rule, columns[:, k], groups) for k in range(columns.shape[1])]
    beyond = np.stack([u.beyond for u in usual], 1) if usual else np.zeros((len(values), 0))
    for of_task in groups:
        known = np.isfinite(columns[of_task.among]).any(axis=1).sum()
        if (beyond[of_task.members] > 0).any(axis=1).sum() > rule.most * known:
            beyond[of_task.members] = -1
    numbers = np.flatnonzero((beyond > 0).any(axis=1))
    if not len(numbers):
        return
    element = beyond.argmax(axis=1)
    worst = numbers[int(beyond.max(axis=1)[numbers].argmax())]
    names = m.elements(rule.measure) if values.ndim == 2 else []
    held = list(dict.fromkeys(names[k] for k in element[numbers].tolist())) if names else []
    ranges = tuple(r for n in numbers.tolist() for r in steps(m, rule.measure, n, int(element[n])))
    starts = {r.episode: r.first for r in reversed(ranges)}
    at = usual[int(element[worst])].of(int(worst), rule)
    yield Finding(
        check="measures",
        code=rule.code,
        severity="warning",
        text=_text(rule, columns[numbers, element[numbers]], at, held),
        count=len(numbers),
        field=held[0] if held else None,
        places=tuple(FindingPlace(n, starts.get(n)) for n in numbers[:MOST_PLACES].tolist()),
        num_episodes=len(numbers),
        episodes=tuple(numbers.tolist()),
        measure=rule.measure,
        siblings=at,
        ranges=ranges,
    )


def _text(rule: Rule, found: Array, at: Siblings, held: list[str]) -> str:
    low, high = f"{found.min():.3g}", f"{found.max():.3g}"
    span = low if low == high else f"{low} to {high}"
    where = f" ({', '.join(held[:_NAMED])}{', …' if len(held) > _NAMED else ''})" if held else ""
    does = rule.one if len(found) == 1 else rule.several
    limits = {"high": f"{at.above:.3g} or more", "low": f"{at.below:.3g} or less"}
    limit = limits.get(rule.side, f"{at.below:.3g} or less, and {at.above:.3g} or more,")
    text = f"{plural(len(found), 'episode')} {does}{where}: {rule.measure} is {span}, of siblings {at.median:.3g}"
    return f"{text}; {limit} stands out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """What is usual among the siblings of each episode, and by how much an episode lies beyond it [episodes]."""

    median: Array
    spread: Array
    below: Array
    above: Array
    count: IntArray
    beyond: Array

    def of(self, k: int, rule: Rule) -> Siblings:
        """Return what is usual among the siblings of one episode."""
        numbers = (float(x[k]) for x in (self.median, self.spread, self.below, self.above))
        median, spread, below, above = (round(x, 9) for x in numbers)
        return Siblings(
            episodes=int(self.count[k]), median=median, spread=spread, below=below, above=above, why=rule.why
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Numbers of episodes, and of those that are their siblings."""

    members: IntArray
    among: IntArray


def _groups(tasks: IntArray) -> list[_Group]:
    """Return the episodes of each task that has enough of them, and the others, whose siblings are all."""
    every = np.arange(len(tasks))
    of_tasks = [np.flatnonzero(tasks == t) for t in np.unique(tasks[tasks >= 0]).tolist()]
    own = [i for i in of_tasks if len(i) >= FEWEST]
    rest = np.setdiff1d(every, np.concatenate(own)) if own else every
    return [*(_Group(members=i, among=i) for i in own), _Group(members=rest, among=every)]


def _usual(rule: Rule, values: Array, groups: Sequence[_Group]) -> _Usual:
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(values) if rule.logarithms else values  # what is 0 has no logarithm, and is of another finding
    found = np.full((5, len(x)), np.nan)
    count = np.zeros(len(x), np.int64)
    known = np.isfinite(x)
    for group in groups:
        members, among = group.members, group.among
        usual = x[among][known[among]]
        if len(usual) < FEWEST and not rule.stated:
            usual = x[known]  # few of the task have a value
        if (len(usual) < FEWEST and not rule.stated) or not len(members):
            continue
        of = limits(rule, usual)
        if of.median >= rule.usual_below:
            continue
        up, down = x[members] - of.above, of.below - x[members]
        down = np.where(values[members] <= rule.below, down, -np.inf)
        beyond = {"high": up, "low": down}.get(rule.side, np.fmax(up, down))
        beyond = np.where(known[members], beyond, -1) + _AT
        below = min(of.below, rule.below) if rule.side == "low" else of.below
        found[:, members] = [*np.broadcast_arrays(of.median, of.spread, below, of.above, beyond)]
        count[members] = len(usual)
    median, spread, below_, above_, beyond = found
    if rule.logarithms:
        median, below_, above_ = np.exp(median), np.exp(below_), np.exp(above_)
    return _Usual(
        median=median, spread=spread, below=below_, above=above_, count=count, beyond=np.nan_to_num(beyond, nan=-1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The median of some values, their robust standard deviation, and where a value stands out."""

    median: float
    spread: float
    below: float
    above: float


def limits(rule: Rule, usual: Array) -> Limits:
    """Return the limits among the values of siblings [n]."""
    if not len(usual):
        return Limits(median=np.nan, spread=np.nan, below=np.nan, above=np.nan)
    low, middle, high = np.quantile(usual, [0.25, 0.5, 0.75]).tolist()
    deviation = _NORMAL * float(np.median(np.abs(usual - middle)))
    if rule.stated:
        return Limits(median=middle, spread=deviation, below=-rule.least, above=rule.least)
    least = rule.least * abs(middle) if rule.share else rule.least
    if rule.share and not deviation:
        least = np.inf
    least, fence = max(_DEVIATIONS * deviation, least), _FENCE * (high - low)
    above, below = max(middle + least, high + fence), min(middle - least, low - fence)
    return Limits(median=middle, spread=deviation, below=below, above=above)


# -- the steps of an episode


def steps(m: ComparedMeasures, measure: str, episode: int, element: int = 0) -> tuple[StepRange, ...]:
    """Return the ranges of steps at which a measure stands out in an episode; none where all of it does."""
    if measure == "quality_frozen_run":
        same = cameras.frozen(m.rows, m.roles, episode, m.roles.cameras[element])
        return _long_enough(Block(m.rows, episode, episode + 1), same, episode, 5)
    show = _SHOWN.get(measure)
    if show is None:
        return ()
    with np.errstate(all="ignore"):  # infinities among the values
        return show(Vectors(Block(m.rows, episode, episode + 1), m.roles), episode, element)


def _long_enough(block: Block, flags: BoolArray, episode: int, least: int = 1) -> tuple[StepRange, ...]:
    runs = block.runs(flags)
    pairs = zip(runs.first.tolist(), runs.stop.tolist(), strict=True)
    return tuple(StepRange(episode, a, b) for a, b in pairs if b - a >= least)


def _idle(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    pairs = zip(v.idle.first.tolist(), v.idle.stop.tolist(), strict=True)
    return tuple(StepRange(episode, a, b) for a, b in pairs)


def _jump(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    at = int(np.argmax(v.jumps[element]))
    return (StepRange(episode, at, at + 1),)


def _aside(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    at = int(np.argmax(v.jumps_aside[element]))
    return (StepRange(episode, at, at + 1),)


def _unexplained(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    at = 0 if v.unexplained is None else int(np.argmax(v.unexplained))
    return (StepRange(episode, at, at + 1),)


def _gap(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    gaps = v.gaps
    if gaps is None or len(gaps) < 2:
        return ()
    at = int(np.nanargmax(np.abs(gaps - np.nanmedian(gaps))))
    return (StepRange(episode, at, at + 1),)


def _back(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    return () if v.gaps is None else _long_enough(v.block, v.gaps <= 0, episode)


def _frozen(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    return _long_enough(v.block, v.frozen_elements[element], episode, 5)


def _saturated(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    return _long_enough(v.block, v.saturated[element], episode, 2)


_SHOWN: Mapping[str, Callable[[Vectors, int, int], tuple[StepRange, ...]]] = {
    "quality_idle_share": _idle,
    "quality_motion_jump": _jump,
    "quality_side_jump": _aside,
    "quality_unexplained_step": _unexplained,
    "quality_time_gap": _gap,
    "quality_time_back": _back,
    "quality_saturation": _saturated,
    "quality_frozen_element": _frozen,
}
