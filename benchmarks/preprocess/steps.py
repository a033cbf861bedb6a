"""A function in Python for every step, with two workers: one that is soon done, and one that is not."""

from __future__ import annotations

from statistics import median

from preprocess import data
from preprocess.measuring import alone, beyond, taking_turns
from preprocess.tables import Group, against

UNIT = "ns/step"
LOOP = "half of a Python loop"
FUNCTIONS = {"penalise": "one NumPy expression", "relabel": "ten NumPy calls"}


def run(rounds: int) -> Group:
    """Ours, and a loop."""
    ways = {}
    for fn in FUNCTIONS:
        ways[f"rlds: {fn}"] = beyond(data.FEW, data.MANY, "rlds", fn=fn, unit="step", jobs=2)
        ways[f"Python: {fn}"] = alone("loop", data.FEW, fn=fn)
    times = taking_turns(ways, rounds)
    lines = []
    for fn, what in FUNCTIONS.items():
        ours, loop = times[f"rlds: {fn}"], times[f"Python: {fn}"]
        lines.append(against(what, ours.median, UNIT, LOOP, loop.median / 2, 1.2, "at most"))
        used = [median(t.cpu) for t in (ours, loop)]
        lines.append(against("CPU time of all processes", used[0], UNIT, "a Python loop", used[1], None, "at most"))
    note = "The loop makes a dict of each row, calls the function, and keeps the reward; that time is halved."
    return Group("A function of single steps, 2 workers", tuple(lines), times, UNIT, note)
