"""The measures of an episode that rlds computes: names, units, and where their formulas come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import InvalidArgument

Group = Literal["time", "motion", "action", "camera", "labels"]
GROUPS: tuple[Group, ...] = ("time", "motion", "action", "camera", "labels")
ALL = "all"
PREFIX = "quality_"
Needs = Literal[
    "stamps",
    "stamps and a stated rate",
    "ages of topics",
    "states",
    "actions",
    "actions and states",
    "positions and velocities",
    "joint velocities",
    "cameras",
    "two cameras",
    "task texts",
    "tasks and states",
    "success and rewards",
    "rewards",
    "episodes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of an episode.

    Attributes
    ----------
    name : str
        A word of ``where=``.
    group : {"time", "motion", "action", "camera", "labels"}
        Measures of a group are computed together.
    unit : str
        ``share`` is a part of the steps, or of other things that ``text`` names, from 0 to 1.
    text : str
        A sentence on what it is.
    source : str
        Its formula, and where that comes from.
    needs : str
        What it is computed from. Without these fields it has no value: NaN.
    over : {"max", "min", ""}
        Of a measure of each element, field or camera: which of them is the value of the episode. Empty for others.
    version : int
        Another number where the formula is another one, or its sums are added up in another order.
    """

    name: str
    group: Group
    unit: str
    text: str
    source: str
    needs: Needs
    over: Literal["max", "min", ""] = ""
    version: int = 1


MEASURES: tuple[Measure, ...] = (
    Measure(
        name="quality_rate",
        group="time",
        unit="1/s",
        text="Steps a second: one divided by the median time from stamp to stamp.",
        source="1 / median dt",
        needs="stamps",
    ),
    Measure(
        name="quality_jitter",
        group="time",
        unit="share",
        text="Spread of the times from stamp to stamp, as a share of their median.",
        source="interquartile range / 1.349, the standard deviation of normal values",
        needs="stamps",
    ),
    Measure(
        name="quality_time_gap",
        group="time",
        unit="steps",
        text="The time from stamp to stamp that differs most from the median, in medians.",
        source="max |dt - median dt| / median dt",
        needs="stamps",
    ),
    Measure(
        name="quality_time_back",
        group="time",
        unit="steps",
        text="Stamps that are not later than the one before.",
        source="count of dt <= 0",
        needs="stamps",
    ),
    Measure(
        name="quality_rate_error",
        group="time",
        unit="share",
        text="By which share the rate differs from the one that the dataset states.",
        source="|rate / stated rate - 1|, with the unit of the stamps (1, 1e-3, 1e-6 s) that comes nearest",
        needs="stamps and a stated rate",
    ),
    Measure(
        name="quality_age",
        group="time",
        unit="s",
        text="The greatest age of a topic or camera with a rate of its own; what is younger than 1 ms counts as that.",
        source="max of info/age/NAME",
        needs="ages of topics",
        over="max",
    ),
    Measure(
        name="quality_not_finite",
        group="motion",
        unit="values",
        text="Values of states and actions that are NaN or infinite.",
        source="IEEE 754",
        needs="actions and states",
    ),
    Measure(
        name="quality_idle_share",
        group="motion",
        unit="share",
        text="Steps at which neither the states nor the actions move.",
        source="runs of at least 7 steps, as in openpi's rule, slower than a tenth of the episode's root mean square",
        needs="actions and states",
    ),
    Measure(
        name="quality_idle_run",
        group="motion",
        unit="steps",
        text="The longest run of idle steps.",
        source="as quality_idle_share",
        needs="actions and states",
    ),
    Measure(
        name="quality_idle_start",
        group="motion",
        unit="steps",
        text="Idle steps at the start of the episode.",
        source="as quality_idle_share",
        needs="actions and states",
    ),
    Measure(
        name="quality_frozen_signal",
        group="motion",
        unit="steps",
        text="The longest run of steps at which a field of states keeps all its bits while the rest moves.",
        source="equality",
        needs="actions and states",
        over="max",
    ),
    Measure(
        name="quality_frozen_element",
        group="motion",
        unit="steps",
        text="The longest run of steps at which an element of the states keeps all its bits while others change.",
        source="equality; elements that never change in the episode are left out",
        needs="actions and states",
        over="max",
    ),
    Measure(
        name="quality_dead_joints",
        group="motion",
        unit="elements",
        text="Elements of the states that never change.",
        source="equality",
        needs="states",
    ),
    Measure(
        name="quality_wraps",
        group="motion",
        unit="steps",
        text="Steps at which an element of the states jumps by a whole turn.",
        source="2 pi, 360 or 4096, within 5 %, and four times the steps around it",
        needs="states",
    ),
    Measure(
        name="quality_motion_jump",
        group="motion",
        unit="times",
        text="The longest step of a field of states, in lengths of the steps around it.",
        source="|dx_t| / max(|dx_t-1|, |dx_t+1|, root mean square of |dx|)",
        needs="states",
        over="max",
        version=2,
    ),
    Measure(
        name="quality_side_jump",
        group="motion",
        unit="times",
        text="How far a step of a field of states leads aside from the steps around it, in their lengths; 0 without a "
        "step twice as long.",
        source="|dx_t - (dx_t u) u| / max(|dx_t-1|, |dx_t+1|, root mean square of |dx|), u = dx_t-1 + dx_t+1 as a "
        "unit vector",
        needs="states",
        over="max",
    ),
    Measure(
        name="quality_unexplained_step",
        group="motion",
        unit="usual steps",
        text="The longest way of the positions in a step beyond what their velocities tell.",
        source="|dx_t - dt (v_t + v_t-1) / 2| / root mean square of |dx|; which state is whose velocity, and dt, by "
        "least squares over the first 32 episodes, where it explains 90 % of the variance of dx",
        needs="positions and velocities",
        version=2,
    ),
    Measure(
        name="quality_jerk",
        group="motion",
        unit="1/step^2",
        text="How much the motion jerks: its third difference in units of its first.",
        source="root mean squares; Hogan and Sternad 2009, without durations",
        needs="states",
        version=2,
    ),
    Measure(
        name="quality_arc_length",
        group="motion",
        unit="1",
        text="How smooth the motion is: -1 for a single impulse, and the less the more it starts and stops.",
        source="spectral arc length of the speed (SPARC), with the amplitudes of at least 0.05 and without the end at "
        "10 Hz; Balasubramanian et al. 2012 and 2015",
        needs="states",
        version=2,
    ),
    Measure(
        name="quality_path_efficiency",
        group="motion",
        unit="share",
        text="The straight way from the first to the last state, as a share of the way that was gone.",
        source="|x_T - x_0| / sum |dx|",
        needs="states",
        version=2,
    ),
    Measure(
        name="quality_openpi_idle_share",
        group="motion",
        unit="share",
        text="Steps that openpi's filter for DROID leaves out.",
        source="openpi, examples/droid/compute_droid_nonidle_ranges.py: runs of at least 7 frames whose commanded "
        "joint velocities change by less than 1e-3, kept ranges of at least 16, the last 10 frames of each left out",
        needs="joint velocities",
    ),
    Measure(
        name="quality_saturation",
        group="action",
        unit="share",
        text="Moving steps with an action at the least or greatest value of its episode.",
        source="equality; elements without a value between the two are left out",
        needs="actions",
        over="max",
    ),
    Measure(
        name="quality_action_noise",
        group="action",
        unit="times",
        text="How rough the actions are: their second difference in units of the first.",
        source="root mean squares; 1.73 for white noise",
        needs="actions",
        version=2,
    ),
    Measure(
        name="quality_action_sign",
        group="action",
        unit="correlation",
        text="Correlation of an action with the state that it moves: -1 if its usual sign is inverted.",
        source="Pearson's r at the usual lag",
        needs="actions and states",
        over="min",
        version=2,
    ),
    Measure(
        name="quality_action_lag",
        group="action",
        unit="steps",
        text="Steps by which the states follow the actions.",
        source="peak of the mean cross-correlation of their differences, and a parabola (Jacovitti and Scarano 1993)",
        needs="actions and states",
        version=2,
    ),
    Measure(
        name="quality_tracking",
        group="action",
        unit="correlation",
        text="How well the states follow the actions: the height of that peak.",
        source="Pearson's r",
        needs="actions and states",
        version=2,
    ),
    Measure(
        name="quality_follow_error",
        group="action",
        unit="spreads",
        text="How far the states are from where the actions send them, as a follower from its leader.",
        source="root mean square of x_t+lag - (gain a_t + offset), in standard deviations of gain a_t; gain and offset "
        "by least squares over the first 32 episodes, where r is at least 0.9",
        needs="actions and states",
        over="max",
        version=2,
    ),
    Measure(
        name="quality_frozen_run",
        group="camera",
        unit="steps",
        text="The longest run of steps at which a camera gives the same frame while the states move.",
        source="mean difference below 0.1 of 255",
        needs="cameras",
        over="max",
    ),
    Measure(
        name="quality_frozen_share",
        group="camera",
        unit="share",
        text="Steps in such runs.",
        source="as quality_frozen_run",
        needs="cameras",
        over="max",
    ),
    Measure(
        name="quality_black_share",
        group="camera",
        unit="share",
        text="Frames that are black.",
        source="99 of 100 pixels at most 16 of 255, black in ITU-R BT.601",
        needs="cameras",
        over="max",
    ),
    Measure(
        name="quality_overexposed_share",
        group="camera",
        unit="share",
        text="Pixels that are white.",
        source="at least 250 of 255",
        needs="cameras",
        over="max",
    ),
    Measure(
        name="quality_sharpness",
        group="camera",
        unit="1",
        text="How sharp the frames are: their mean squared spatial frequency, which contrast and light do not change.",
        source="median of the variance of the Laplacian (Pech-Pacheco et al. 2000) / mean square of the gradient",
        needs="cameras",
        over="min",
        version=2,
    ),
    Measure(
        name="quality_brightness",
        group="camera",
        unit="of 255",
        text="How bright the frames are on average.",
        source="mean of all channels",
        needs="cameras",
        over="min",
    ),
    Measure(
        name="quality_broken_frames",
        group="camera",
        unit="frames",
        text="Frames that are missing or do not decode.",
        source="count",
        needs="cameras",
        over="max",
    ),
    Measure(
        name="quality_camera_swap",
        group="camera",
        unit="times",
        text="How much better the frames of two cameras fit the usual look of each other than their own.",
        source="distances of the mean brightness of 4 x 4 parts of the picture to its median over the dataset",
        needs="two cameras",
    ),
    Measure(
        name="quality_task_empty",
        group="labels",
        unit="flag",
        text="1 if the episode has no task text, else 0.",
        source="the column task",
        needs="task texts",
    ),
    Measure(
        name="quality_success_mismatch",
        group="labels",
        unit="flag",
        text="1 if success is true and the last reward says that it is not, or the other way round, else 0.",
        source="the column success, or the last flag of a field success; and last rewards, which say so if they have "
        "two values in the dataset, or one that is not 0",
        version=3,
        needs="success and rewards",
    ),
    Measure(
        name="quality_return",
        group="labels",
        unit="reward",
        text="The return.",
        source="the column total_reward: the sum of the rewards",
        needs="rewards",
    ),
    Measure(
        name="quality_length",
        group="labels",
        unit="steps",
        text="The length.",
        source="the column length",
        needs="episodes",
    ),
    Measure(
        name="quality_task_siblings",
        group="labels",
        unit="share",
        text="Episodes with the same task text among the 5 whose motion is nearest.",
        source="states at 8 moments, each element in units of its spread over the dataset",
        needs="tasks and states",
    ),
    Measure(
        name="quality_twin_distance",
        group="labels",
        unit="spreads",
        text="Distance of the motion to that of the nearest other episode.",
        source="as quality_task_siblings, root mean square over moments and elements",
        needs="states",
    ),
)
_BY_NAME = {m.name: m for m in MEASURES}


def of_group(group: Group) -> tuple[Measure, ...]:
    """Return the measures of a group."""
    return tuple(m for m in MEASURES if m.group == group)


def measure(name: str) -> Measure:
    """Return a measure by its name.

    Raises
    ------
    InvalidArgument
        There is none of this name.
    """
    if name not in _BY_NAME:
        near = did_you_mean(name, _BY_NAME)
        raise InvalidArgument(f'No measure is called "{name}".{near}', hint="rlds check --list explains all measures")
    return _BY_NAME[name]


def groups(names: Iterable[str]) -> tuple[Group, ...]:
    """Return groups by their names, in their order; ``all`` is every one of them.

    Raises
    ------
    InvalidArgument
        A name is none of a group.
    """
    given = list(names)
    for name in given:
        if name not in (*GROUPS, ALL):
            near = did_you_mean(name, (*GROUPS, ALL))
            raise InvalidArgument(
                f'No group of measures is called "{name}".{near}', hint=f"groups: {', '.join(GROUPS)}, all"
            )
    return tuple(g for g in GROUPS if g in given or ALL in given)
