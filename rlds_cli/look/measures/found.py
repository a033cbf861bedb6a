"""Findings from measures: episodes that differ from their siblings, and the steps at which they do.

Siblings are the episodes with the same task text, if there are at least eight, else all episodes. An episode stands out
if its value lies beyond all of three limits:

* the median of its siblings and 6 robust standard deviations, each 1.4826 times the median absolute deviation: of
  normal values, 1 in 500 million lies there;
* Tukey's far-out fence, the upper quartile and three times the interquartile range (Exploratory Data Analysis, 1977),
  since many measures are not normal;
* the median and what is the least that matters, which a `Rule` says with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import plural
from rlds_cli.look.checks.findings import MOST_PLACES, Finding, FindingPlace, Siblings, StepRange
from rlds_cli.look.measures import cameras, catalogue
from rlds_cli.look.measures.blocks import Block
from rlds_cli.look.measures.catalogue import Group
from rlds_cli.look.measures.measuring import StoredMeasures
from rlds_cli.look.measures.vectors import Vectors

FEWEST = 8  # siblings that tell what is usual
_DEVIATIONS, _NORMAL, _FENCE = 6.0, 1.4826, 3.0
_AT = 1e-12  # a value at a limit lies beyond it
_NAMED = 3  # elements in a text
Side = Literal["high", "low", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes an episode stand out.

    Attributes
    ----------
    code : str
    measure : str
    one, several : str
        What such an episode does, and several of them do.
    least : float
        The difference from the siblings' median that is the least that matters.
    why : str
        Where ``least`` comes from.
    side : {"high", "low", "both"}
    below : float
        Of the side ``low``, the value that is still usual.
    by_task : bool
        Whether episodes are compared with those of the same task.
    logarithms : bool
        Whether logarithms of the values are compared, and ``least`` is a difference of these.
    """

    code: str
    measure: str
    one: str
    several: str
    least: float
    why: str
    side: Side = "high"
    below: float = np.inf
    by_task: bool = True
    logarithms: bool = False

    @property
    def group(self) -> Group:
        """The group of its measure."""
        return catalogue.measure(self.measure).group


RULES: tuple[Rule, ...] = (
    Rule(
        code="time-jump",
        measure="quality_time_gap",
        one="has a jump in its stamps",
        several="have jumps in their stamps",
        least=1.5,
        why="one and a half periods, as step-gap has it",
    ),
    Rule(
        code="time-jump",
        measure="quality_time_back",
        one="has stamps that go back",
        several="have stamps that go back",
        least=1.0,
        why="a clock does not go back",
    ),
    Rule(
        code="dropped-rows",
        measure="quality_motion_jump",
        one="moves on as if rows were missing",
        several="move on as if rows were missing",
        least=2.0,
        why="a step as long as three of those around it: two rows are missing",
    ),
    Rule(
        code="idle",
        measure="quality_idle_share",
        one="rests",
        several="rest",
        least=0.1,
        why="a tenth of the episode",
    ),
    Rule(
        code="frozen-signal",
        measure="quality_frozen_signal",
        one="has states that stay while the rest moves",
        several="have states that stay while the rest moves",
        least=5.0,
        why="5 steps: sensors that are slower than the robot repeat one or two",
    ),
    Rule(
        code="dead-joint",
        measure="quality_dead_joints",
        one="has elements of the states that never change",
        several="have elements of the states that never change",
        least=1.0,
        why="one element",
    ),
    Rule(
        code="encoder-wrap",
        measure="quality_wraps",
        one="has states that jump by a whole turn",
        several="have states that jump by a whole turn",
        least=1.0,
        why="one step",
    ),
    Rule(
        code="saturated-action",
        measure="quality_saturation",
        one="has an action that stays at a limit",
        several="have actions that stay at a limit",
        least=0.1,
        why="a tenth of the episode",
    ),
    Rule(
        code="inverted-action",
        measure="quality_action_sign",
        one="has an action of the other sign",
        several="have actions of the other sign",
        least=0.5,
        why="from a clear correlation of 0.5 to none",
        side="low",
        below=0.0,
    ),
    Rule(
        code="action-lag",
        measure="quality_action_lag",
        one="has actions that are shifted against the states",
        several="have actions that are shifted against the states",
        least=0.5,
        why="half a step: nearer to another step than to the usual one",
        side="both",
    ),
    Rule(
        code="frozen-camera",
        measure="quality_frozen_run",
        one="has a camera that stands still",
        several="have cameras that stand still",
        least=5.0,
        why="5 frames: cameras that are slower than the robot repeat one or two",
    ),
    Rule(
        code="black-camera",
        measure="quality_black_share",
        one="has black frames",
        several="have black frames",
        least=0.1,
        why="a tenth of the frames",
    ),
    Rule(
        code="overexposed-camera",
        measure="quality_overexposed_share",
        one="is overexposed",
        several="are overexposed",
        least=0.25,
        why="a quarter of the picture",
    ),
    Rule(
        code="blurred-camera",
        measure="quality_sharpness",
        one="is blurred",
        several="are blurred",
        least=float(np.log(8)),
        why="an eighth of the usual variance of the Laplacian, whose logarithm is compared",
        side="low",
        logarithms=True,
    ),
    Rule(
        code="lone-task",
        measure="quality_task_siblings",
        one="has another task text than the episodes that move like it",
        several="have other task texts than the episodes that move like them",
        least=0.5,
        why="half of the nearest episodes",
        side="low",
        by_task=False,
    ),
    Rule(
        code="swapped-camera",
        measure="quality_camera_swap",
        one="has two cameras in each other's place",
        several="have two cameras in each other's place",
        least=1.5,
        why="the frames fit the look of the other camera more than half as well again as their own",
        by_task=False,
    ),
    Rule(
        code="empty-task",
        measure="quality_task_empty",
        one="has no task text",
        several="have no task text",
        least=1.0,
        why="a text or none",
        by_task=False,
    ),
    Rule(
        code="success-mismatch",
        measure="quality_success_mismatch",
        one="has a success that its rewards contradict",
        several="have a success that their rewards contradict",
        least=1.0,
        why="a reward or none",
    ),
    Rule(
        code="near-duplicate",
        measure="quality_twin_distance",
        one="moves almost as another one does",
        several="move almost as others do",
        least=float(np.log(20)),
        why="a twentieth of the usual distance to the nearest episode, whose logarithm is compared",
        side="low",
        logarithms=True,
    ),
)
CODES = tuple(dict.fromkeys(r.code for r in RULES))


def findings(m: StoredMeasures, groups: tuple[Group, ...]) -> Iterator[Finding]:
    """Yield the findings of groups of measures, which were computed.

    Raises
    ------
    RldsError
        A measure was not computed.
    """
    for rule in RULES:
        if rule.group in groups and m.lacks(rule.measure) == "":
            yield from of_rule(m, rule)


def of_rule(m: StoredMeasures, rule: Rule) -> Iterator[Finding]:
    """Yield the finding of one rule, if there is one: its episodes, each with the element that stands out most."""
    values = np.asarray(m.values(rule.measure), np.float64)
    columns = values[:, None] if values.ndim == 1 else values
    tasks = m.tasks if rule.by_task else np.zeros(len(values), np.int64)
    usual = [_usual(rule, columns[:, k], tasks) for k in range(columns.shape[1])]
    beyond = np.stack([u.beyond for u in usual], 1) if usual else np.zeros((len(values), 0))
    numbers = np.flatnonzero((beyond > 0).any(axis=1))
    if not len(numbers):
        return
    element = beyond.argmax(axis=1)
    worst = numbers[int(beyond.max(axis=1)[numbers].argmax())]
    names = m.elements(rule.measure) if values.ndim == 2 else []
    held = list(dict.fromkeys(names[k] for k in element[numbers].tolist())) if names else []
    ranges = tuple(r for n in numbers.tolist() for r in steps(m, rule.code, n, int(element[n])))
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


def _usual(rule: Rule, values: Array, tasks: IntArray) -> _Usual:
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(values) if rule.logarithms else values  # what is 0 has no logarithm, and is of another finding
    found = np.full((5, len(x)), np.nan)
    count = np.zeros(len(x), np.int64)
    known = np.isfinite(x)
    own = [i for t in np.unique(tasks[tasks >= 0]).tolist() if known[i := np.flatnonzero(tasks == t)].sum() >= FEWEST]
    rest = np.setdiff1d(np.arange(len(x)), np.concatenate(own)) if own else np.arange(len(x))
    for members, among in (*((i, i) for i in own), (rest, np.arange(len(x)))):
        usual = x[among][known[among]]
        if len(usual) < FEWEST or not len(members):
            continue
        low, middle, high = np.quantile(usual, [0.25, 0.5, 0.75])
        deviation = _NORMAL * float(np.median(np.abs(usual - middle)))
        least = max(_DEVIATIONS * deviation, rule.least)
        above = max(middle + least, high + _FENCE * (high - low))
        below = min(middle - least, low - _FENCE * (high - low))
        with np.errstate(invalid="ignore"):
            up, down = x[members] - above, below - x[members]
            down = np.where(values[members] <= rule.below, down, -np.inf)
        below = min(below, rule.below) if rule.side == "low" else below
        beyond = {"high": up, "low": down}.get(rule.side, np.fmax(up, down))
        beyond = np.where(known[members], beyond, -1)
        found[:, members] = [*np.broadcast_arrays(middle, deviation, below, above, beyond + _AT)]
        count[members] = len(usual)
    median, spread, below_, above_, beyond = found
    if rule.logarithms:
        median, below_, above_ = np.exp(median), np.exp(below_), np.exp(above_)
    return _Usual(
        median=median, spread=spread, below=below_, above=above_, count=count, beyond=np.nan_to_num(beyond, nan=-1)
    )


# -- the steps of an episode


def steps(m: StoredMeasures, code: str, episode: int, element: int = 0) -> tuple[StepRange, ...]:
    """Return the ranges of steps at which an episode shows what ``code`` says; none where all of it does."""
    if code == "frozen-camera":
        same = cameras.frozen(m.rows, m.roles, episode, m.roles.cameras[element])
        return _long_enough(Block(m.rows, episode, episode + 1), same, episode, 5)
    show = _SHOWN.get(code)
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
    at = int(np.argmax(v.jumps[:, element]))
    return (StepRange(episode, at, at + 1),)


def _gap(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    gaps = v.gaps
    if gaps is None or len(gaps) < 2:
        return ()
    at = int(np.nanargmax(np.abs(gaps - np.nanmedian(gaps))))
    return (StepRange(episode, at, at + 1),)


def _saturated(v: Vectors, episode: int, element: int) -> tuple[StepRange, ...]:
    return _long_enough(v.block, v.saturated[:, element], episode, 2)


_SHOWN: Mapping[str, Callable[[Vectors, int, int], tuple[StepRange, ...]]] = {
    "idle": _idle,
    "dropped-rows": _jump,
    "time-jump": _gap,
    "saturated-action": _saturated,
}
