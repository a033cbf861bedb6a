"""Two workers against one, and what a worker takes of memory."""

from __future__ import annotations

from statistics import median

from preprocess import data
from preprocess.measuring import Times, beyond, taking_turns, work
from preprocess.tables import Group, against, alone


def run(rounds: int) -> Group:
    """Rates of a function that computes, and memory of one that does not."""
    one, two = (beyond(data.FEW, data.MANY, "rlds", fn="compute", jobs=n) for n in (1, 2))
    times = taking_turns({"rlds: one worker": one, "rlds: two workers": two}, rounds)
    rates = [times[n].median for n in times]
    lines = [against("20 ms of Python an episode, 2 workers", rates[1], "ns/step", "one", rates[0], 1.7)]
    used = [median(times[n].cpu) for n in times]
    lines.append(against("CPU time of all processes", used[1], "ns/step", "one", used[0], None))
    imported = work("imports")["mib"]
    for count in (data.MANY, data.MOST):
        for fn, unit in (("normalise", "episode"), ("normalise_batch", "batch")):
            found = work("rlds", count=count, fn=fn, unit=unit, jobs=2, watch=True)
            name = f"RssAnon of a worker, {count // 10**6}M steps, unit {unit}"
            lines.append(alone(name, found["mib"] - imported, "MiB", 200 / 1.048576, "at most"))
            times[name] = Times([found["mib"] - imported])
            if found["torch"]:
                raise RuntimeError("a worker imported torch")
    note = f"Peak memory, sampled every 20 ms, without the imports ({imported:.0f} MiB). No worker imported torch."
    return Group("Workers", tuple(lines), times, "ns/step", note)
