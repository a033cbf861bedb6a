"""A function in Python for every step, with two workers."""

from __future__ import annotations

from preprocess import data
from preprocess.measuring import beyond, taking_turns, work
from preprocess.tables import Group, against

UNIT = "ns/step"


def run(rounds: int) -> Group:
    """Ours, and a loop."""
    times = taking_turns(
        {
            "rlds: steps": beyond(data.FEW, data.MANY, "rlds", fn="penalise", unit="step", jobs=2),
            "Python: loop": lambda: work("loop", count=data.FEW)["seconds"] / data.FEW * 1e9,
        },
        rounds,
    )
    ours, half = times["rlds: steps"].median, times["Python: loop"].median / 2
    lines = (against("steps, 2 workers", ours, UNIT, "half of a Python loop", half, 1.2, "at most"),)
    note = "The loop makes a dict of each row, calls the function, and keeps the reward; that time is halved."
    return Group("A function of single steps, 2 workers", lines, times, UNIT, note)
