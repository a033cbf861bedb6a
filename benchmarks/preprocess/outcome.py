"""What a derived dataset takes on disk, and how soon a job that has nothing to do is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from preprocess import data
from preprocess.measuring import Took, command, taking_turns, work
from preprocess.tables import Group, against, alone

FUNCTIONS = Path(__file__).with_name("functions.py")


def run(rounds: int) -> Group:
    """One field more; and the same command again."""
    own = work("rlds", count=data.MANY, fn="add_norm", jobs=2)["own"] / 2**20
    field = (data.MANY + data.MANY // data.EPISODE) * 4 / 2**20
    times = taking_turns({f"again, {n // 10**6}M steps": _again(n) for n in (data.MANY, data.MOST)}, rounds)
    lines = [against("one additional field [T] float32, 1M steps", own, "MiB", "its rows", field, 1.05, "at most")]
    lines += [alone(name, t.best, "s", 0.5, "at most") for name, t in times.items()]
    lines += [alone(f"{name}, CPU time", min(t.cpu), "s", 0.5, "at most") for name, t in times.items()]
    note = "The dataset also has an episode table and a manifest. Commands include start-up: the best of the rounds."
    return Group("Results", tuple(lines), times, "s", note)


def _again(count: int) -> Callable[[], Took]:
    source = data.steps(count)
    job = ["-m", "rlds_cli", "preprocess", source.id, "--fn", f"{FUNCTIONS}:add_norm"]
    job += ["--name", "again", "-j", "2", "-q", "--home", str(data.HOME)]
    command(*job, "--force")()
    return command(*job)
