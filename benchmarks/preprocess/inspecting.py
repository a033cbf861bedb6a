"""``rlds inspect``: the page, statistics of every element, and the report."""

from __future__ import annotations

from collections.abc import Callable

from loader import data as large
from results import DATA

from preprocess import data
from preprocess.measuring import Took, command, taking_turns, work
from preprocess.tables import Group, against, alone

SIZES = ("1M", "20M")


def run(rounds: int) -> Group:
    """Seconds beyond the start of the interpreter."""
    billion = large.billion()
    homes = {SIZES[i]: (data.steps(n).id, data.HOME) for i, n in enumerate((data.MANY, data.MOST))}
    ways: dict[str, Callable[[], float | Took]] = {"python": command("-c", "")}
    for size, (id, home) in {**homes, "1e9": (billion.id, large.HOME)}.items():
        ways[f"inspect, {size} steps"] = _inspect(id, home)
        ways[f"inspect --stats, {size} steps"] = _inspect(id, home, "--stats")
        if size != "1e9":
            ways[f"inspect --html, {size} steps"] = _inspect(id, home, "--html", str(DATA / "report.html"), "--force")
    for size, n in zip(SIZES, (data.MANY, data.MOST), strict=True):
        ways[f"bare read, {size} steps"] = lambda n=n: work("read", count=n)["seconds"]  # type: ignore[misc]
    times = taking_turns(ways, rounds)
    best = {name: t.best for name, t in times.items()}
    taken = {name: t - best["python"] for name, t in best.items()}
    lines = [alone(f"inspect, {n} steps", taken[f"inspect, {n} steps"], "s", 0.5, "at most") for n in (*homes, "1e9")]
    for n in (*homes, "1e9"):
        used = min(times[f"inspect, {n} steps"].cpu) - min(times["python"].cpu)
        lines.append(alone(f"inspect, {n} steps, CPU time", used, "s", 0.5, "at most"))
    for what in ("--stats", "--html"):
        ours, read = (
            [t[f"{w}, {n} steps"] for n in homes] for t, w in ((taken, f"inspect {what}"), (best, "bare read"))
        )
        for n, a, b in zip(homes, ours, read, strict=True):
            lines.append(against(f"inspect {what}, {n} steps", a, "s", "bare read", b, 0.5))
        more = f"{SIZES[1]} minus {SIZES[0]}"
        lines.append(against(f"inspect {what}, {more}", ours[1] - ours[0], "s", "bare read", read[1] - read[0], 0.5))
    note = (
        "The best of the rounds, without the start of Python, with the files in the page cache. The bare read is "
        "`readinto` of all arrays. Every command spends half a second on imports and drawing, whatever the size."
    )
    return Group("Inspect", tuple(lines), times, "s", note)


def _inspect(id: str, home: object, *options: str) -> Callable[[], Took]:
    return command("-m", "rlds_cli", "inspect", id, "-q", "--home", str(home), *options)
