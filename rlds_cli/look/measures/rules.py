"""What makes an episode stand out from its siblings: for each measure the least difference that counts, and why."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from rlds_cli.look.measures import catalogue
from rlds_cli.look.measures.catalogue import Group, Measure

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
    share : bool
        Whether ``least`` is a share of the siblings' median, and siblings that are equal have no spread: nothing stands
        out where more than half of them are.
    stated : bool
        Whether a value of ``least`` counts, whatever the siblings have: they may all be wrong.
    most : float
        The share of the siblings above which those that stand out, each in one element or another, are a second usual
        kind.
    usual_below : float
        Only elements are compared whose siblings' median lies below.
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
    share: bool = False
    stated: bool = False
    most: float = 0.25
    usual_below: float = np.inf

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
        code="time-jitter",
        measure="quality_jitter",
        one="has stamps that jitter",
        several="have stamps that jitter",
        least=0.25,
        why="a quarter of a period: of normal times, 1 step in 20 is then off by half a period, between two steps",
    ),
    Rule(
        code="rate-differs",
        measure="quality_rate_error",
        one="has another rate than the dataset states",
        several="have another rate than the dataset states",
        least=0.05,
        why="a twentieth: after 20 steps, about a chunk of actions, one is missing",
        stated=True,
        most=1.0,
    ),
    Rule(
        code="stale-topic",
        measure="quality_age",
        one="has a topic or camera that did not come for long",
        several="have topics or cameras that did not come for long",
        least=float(np.log(2)),
        why="twice as old, as age-gap has it; logarithms are compared",
        logarithms=True,
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
        code="joined-takes",
        measure="quality_side_jump",
        one="jumps aside, as where another take begins",
        several="jump aside, as where another take begins",
        least=3.0,
        why="three lengths of the steps around it: missing rows lie on the way, and of white noise in two or three "
        "elements 1 step in 45,000 or fewer leads so far",
    ),
    Rule(
        code="dropped-rows",
        measure="quality_unexplained_step",
        one="gets further in a step than its velocities tell",
        several="get further in a step than their velocities tell",
        least=1.0,
        why="a usual step more than the velocities tell: a row is missing",
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
        code="frozen-signal",
        measure="quality_frozen_element",
        one="has elements of the states that stay while others change",
        several="have elements of the states that stay while others change",
        least=5.0,
        why="5 steps, of elements that siblings keep for fewer: what has noise differs in each step",
        usual_below=5.0,
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
        code="not-followed",
        measure="quality_follow_error",
        one="has states that are elsewhere than the actions send them",
        several="have states that are elsewhere than the actions send them",
        least=0.25,
        why="a quarter of the action's usual standard deviation",
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
        code="underexposed-camera",
        measure="quality_brightness",
        one="is dark",
        several="are dark",
        least=float(np.log(2)),
        why="half of the usual brightness, whose logarithm is compared: two stops by the exponent 2.2 of sRGB",
        side="low",
        logarithms=True,
    ),
    Rule(
        code="blurred-camera",
        measure="quality_sharpness",
        one="is blurred",
        several="are blurred",
        least=float(np.log(1.5)),
        why="two thirds of the usual value, whose logarithm is compared: of rooms and of 1/f noise, a Gaussian "
        "blur of 0.5 pixels leaves three quarters, and one of 0.7 pixels a third to a half",
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
        code="unusual-return",
        measure="quality_return",
        one="has an unusual return",
        several="have unusual returns",
        least=0.1,
        why="a tenth of the usual return; if more than 1 in 20 stand out, they are a second usual kind",
        side="both",
        share=True,
        most=0.05,
    ),
    Rule(
        code="unusual-length",
        measure="quality_length",
        one="has an unusual length",
        several="have unusual lengths",
        least=float(np.log(3)),
        why="a third of the usual length, or three times: people take half or twice as long, and a file that ends "
        "after a number of steps cuts its last episode; if more than 1 in 20 stand out, they are a second usual kind",
        side="both",
        logarithms=True,
        most=0.05,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The finding of a measure: its code, the least difference from the siblings' median that counts, and why.

    ``of_logarithms`` says that ``least`` is a difference of these, ``share`` that it is a share of the median, and
    ``stated`` that the value itself is compared, whatever the siblings have.
    """

    code: str
    least: float
    why: str
    side: Side
    of_logarithms: bool
    share: bool
    stated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Measure):
    """A measure, and the findings that come of it."""

    findings: tuple[Limit, ...] = ()


def explained() -> tuple[Explained, ...]:
    """Return all measures with their findings."""
    return tuple(
        Explained(**{f.name: getattr(m, f.name) for f in fields(m)}, findings=tuple(map(_limit, of)))
        for m in catalogue.MEASURES
        for of in ([r for r in RULES if r.measure == m.name],)
    )


def _limit(rule: Rule) -> Limit:
    return Limit(
        code=rule.code,
        least=rule.least,
        why=rule.why,
        side=rule.side,
        of_logarithms=rule.logarithms,
        share=rule.share,
        stated=rule.stated,
    )
