"""Opening, conversion and appends, beside an earlier checkout: ``benchmarks/versions.py before --before COMMIT``.

Each checkout has a home and a process of its own; they take turns, and medians count. Opening is on the wall, in a
process that has opened the dataset before; conversion and appends are in seconds of the processor.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import archives
from checkouts import ROOT, here, imported, started
from versions import moving, reached, short

ROUNDS = 5
REFS = {  # of datasets of many short episodes: as this checkout has them, and as an earlier one has the same content
    "the first version": ("local/short#v1", "local/short"),
    "a labelled version": ("local/short", "local/short"),
    "a selection": ("local/short@part", "local/short"),
    "a growing dataset": ("local/grown", "local/grown"),
}
SIZES = {"D4RL, episodes of 1,000 steps": (1_000_000, 1000, 1.05), "D4RL, episodes of 2 steps": (400_000, 2, 1.5)}


def compare(home: Path, scale: float, before: Path) -> None:
    """Print the figures of this checkout and of the one before, and their ratios beside the aims."""
    with ExitStack() as stack:
        ask: dict[str, Callable[[str], Any]] = {}
        for way, checkout in (("before", before), ("now", ROOT)):
            env = {"RLDS_HOME": str(home / way)}
            ask[way] = stack.enter_context(started(__file__, str(home), checkout=checkout, env=env))

        def turns(named: dict[str, list[Any]], rounds: int = ROUNDS) -> dict[str, list[Any]]:
            taken: dict[str, list[Any]] = {way: [] for way in named}
            for k in range(rounds + 1):
                for way in [*named][:: 1 if k % 2 else -1]:
                    taken[way].append(ask[way](json.dumps(named[way])))
            return {way: values[1:] for way, values in taken.items()}

        count = round(1_000_000 * scale)
        print(f"{count:,} episodes, before and now")
        file = archives.d4rl_v2(home / "archive/short.hdf5", 2 * count, episode=2)
        for way in ask:
            ask[way](json.dumps(["make", str(file), count, way == "now"]))
        for what, (ref, earlier) in REFS.items():
            found = turns({"before": ["opening", earlier], "now": ["opening", ref]})
            for k, name in enumerate(("open", "first batch after it")):
                shown(f"{name}, {what}", {way: [v[k] for v in values] for way, values in found.items()}, 1.05)
        for what, (steps, episode, most) in SIZES.items():
            file = archives.d4rl_v2(home / f"archive{episode}/file.hdf5", round(steps * scale), episode=episode)
            shown(f"convert {what}", turns({way: ["converting", str(file)] for way in ask}, 3), most)
            shown(f"append {what}", turns({way: ["appending", str(file)] for way in ask}, 3), most)
        for what, one, episodes in (("200 steps", False, 2_000), ("2 steps", True, 50_000)):
            call = ["recording", one, round(episodes * scale)]
            shown(f"record {call[2]:,} episodes of {what}", turns(dict.fromkeys(ask, call), 3), 1.05)


def shown(what: str, taken: dict[str, list[float]], most: float) -> None:
    """Print the medians, and the median of the ratios."""
    before, now = (statistics.median(taken[way]) for way in ("before", "now"))
    ratio = statistics.median(a / b for a, b in zip(taken["now"], taken["before"], strict=True))
    print(f"  {what:42} {before:8.3f} s  {now:8.3f} s  {ratio:6.2f} times{reached(ratio, most)}", flush=True)


# -- what is timed, in a process of each checkout


def make(home: Path, file: str, count: int, has_versions: bool) -> None:
    """Make the datasets that are opened."""
    import rlds_cli

    ds = imported(file, "local/short")
    rlds_cli.append("local/grown", file, progress=False)
    if has_versions:
        ds.select(episodes=range(0, count, 2)).save("part")
        ds.label(quality=[k % 5 for k in range(count)])


def opening(home: Path, ref: str) -> list[float]:
    """Return the seconds that opening takes, and then the first batch."""
    import rlds_cli
    from rlds_cli.loader import Loader

    times = [time.perf_counter()]
    ds = rlds_cli.open_dataset(ref)
    times.append(time.perf_counter())
    next(iter(Loader(ds, 256, seed=0)))
    times.append(time.perf_counter())
    return [b - a for a, b in pairwise(times)]


def converting(home: Path, file: str) -> float:
    """Return the seconds of the processor of a conversion."""
    from conversion import ours

    shutil.rmtree(home / "out", ignore_errors=True)
    start = time.process_time()
    with here():
        ours(Path(file), home / "out")
    return time.process_time() - start


def appending(home: Path, file: str) -> float:
    """Return the seconds of the processor of an append to a growing dataset."""
    import rlds_cli

    shutil.rmtree(home / "appended", ignore_errors=True)
    start = time.process_time()
    with here():
        rlds_cli.append("local/appended", file, home=home / "appended", progress=False)
    return time.process_time() - start


def recording(home: Path, is_short: bool, count: int) -> float:
    """Return the seconds of the processor that it takes to record episodes that are in memory."""
    import rlds_cli

    episodes = [*(short(count) if is_short else moving(0, count))]
    shutil.rmtree(home / "appended", ignore_errors=True)
    start = time.process_time()
    with rlds_cli.writer("local/appended", durable=False, home=home / "appended") as writer:
        writer.add_episodes(episodes)
    return time.process_time() - start


if __name__ == "__main__":
    work: dict[str, Callable[..., Any]] = {f.__name__: f for f in (make, opening, converting, appending, recording)}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(work[name](Path(sys.argv[1]), *arguments)), flush=True)
