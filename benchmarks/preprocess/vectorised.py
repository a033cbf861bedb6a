"""Normalise and concatenate, vectorised: 20 million steps with two workers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median

from preprocess import data
from preprocess.measuring import Times, Took, alone, beyond, taking_turns, work
from preprocess.tables import Group, against

UNIT = "ns/step"
CHUNKS = (8, 32, 128, 512)
BARE, SYNCED = "NumPy: tofile", "NumPy: tofile, fsync"


def run(rounds: int) -> Group:
    """Ours, TorchRL's, and a bare pass."""
    few, many, most = data.FEW, data.MANY, data.MOST
    ways = {
        "rlds: episodes": beyond(few, most, "rlds", fn="normalise", jobs=2),
        "rlds: batches": beyond(few, most, "rlds", fn="normalise_batch", unit="batch", jobs=2),
        "rlds: batches, 1e6 steps": beyond(few, many, "rlds", fn="normalise_batch", unit="batch", jobs=2),
        BARE: _bare(sync=False),
        SYNCED: _bare(sync=True),
    }
    note = "Result synced to the disk, as ours always is; without that, `tofile` returns while the system still writes."
    if find_spec("torchrl"):
        td = {"fn": "normalise_tensordict", "unit": "batch", "arrays": "tensordict", "jobs": 2}
        ways["rlds: TensorDicts, 1e6 steps"] = beyond(few, many, "rlds", **td)
        best = _best_chunks()
        ways["torchrl: default"] = beyond(few, many, "torchrl", num_chunks=None)
        ways[f"torchrl: num_chunks={best}"] = beyond(few, many, "torchrl", num_chunks=best)
        note += f" TorchRL's best of num_chunks {', '.join(map(str, CHUNKS))} is {best}, at a million steps."
    times = taking_turns(ways, rounds)
    return Group("A vectorised function, 2 workers", tuple(_lines(times)), times, UNIT, note)


def _lines(times: dict[str, Times]) -> list:
    lines = []
    for work_, ours in (("episodes, 20M steps", "rlds: episodes"), ("batches, 20M steps", "rlds: batches")):
        t = times[ours].median
        lines += [against(work_, t, UNIT, SYNCED, times[SYNCED].median, 0.6)]
        lines += [against("", t, UNIT, BARE, times[BARE].median, None)]
        used = [median(times[n].cpu) for n in (ours, SYNCED)]
        lines += [against("CPU time of all processes", used[0], UNIT, SYNCED, used[1], None)]
    peers = [n for n in times if n.startswith("torchrl")]
    for work_, ours in (("episodes", "rlds: episodes"), ("TensorDicts, 1M steps", "rlds: TensorDicts, 1e6 steps")):
        for peer, aim in zip(peers, (20, 3), strict=False):
            lines.append(against(work_, times[ours].median, UNIT, peer, times[peer].median, aim))
            work_ = ""
    return lines


def _bare(*, sync: bool) -> Callable[[], Took]:
    return alone("bare", data.MOST, sync=sync)


def _best_chunks() -> int:
    seconds = {n: work("torchrl", count=data.MANY, num_chunks=n)["seconds"] for n in CHUNKS}
    return min(seconds, key=seconds.__getitem__)
