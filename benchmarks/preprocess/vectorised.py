"""Normalise and concatenate, vectorised: 20 million steps with two workers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median

from loader.report import Line

from preprocess import data
from preprocess.measuring import Times, Took, alone, beyond, taking_turns, work
from preprocess.tables import Group, against

UNIT = "ns/step"
CHUNKS = (8, 64, 512)
BARE, SYNCED = "NumPy: tofile", "NumPy: tofile, fsync"


def run(rounds: int) -> Group:
    """Ours, TorchRL's, and a bare pass."""
    few, most = data.FEW, data.MOST
    ways = {
        "rlds: episodes": beyond(few, most, "rlds", fn="normalise", jobs=2),
        "rlds: batches": beyond(few, most, "rlds", fn="normalise_batch", unit="batch", jobs=2),
        BARE: _bare(sync=False),
        SYNCED: _bare(sync=True),
    }
    note = (
        "With `fsync` the result is on disk, as rlds' always is. Without it `tofile` returns while the system still"
        " writes."
    )
    if find_spec("torchrl"):
        td = {"fn": "normalise_tensordict", "unit": "batch", "arrays": "tensordict", "jobs": 2}
        ways["rlds: TensorDicts"] = beyond(few, most, "rlds", **td)
        best = _best_chunks()
        ways["torchrl: default"] = _torchrl(None)
        ways[f"torchrl: num_chunks={best}"] = _torchrl(best)
        note += (
            f" TorchRL: a million steps, with processes that have started; its best num_chunks of {CHUNKS} is {best}."
        )
    times = taking_turns(ways, rounds)
    return Group("A vectorised function, 2 workers", tuple(_lines(times)), times, UNIT, note)


def _lines(times: dict[str, Times]) -> list[Line]:
    lines = []
    for ours in (n for n in times if n.startswith("rlds")):
        work = f"{ours.removeprefix('rlds: ')}, 20M steps"
        peers: list[tuple[str, float | None]] = [(SYNCED, 0.6), (BARE, None)]
        peers += zip((n for n in times if n.startswith("torchrl")), (20, 3), strict=False)
        for peer, aim in peers:
            lines.append(against(work, times[ours].median, UNIT, peer, times[peer].median, aim))
            work = ""
        for peer, _ in peers:
            if times[peer].cpu and peer != BARE:
                used = [median(times[n].cpu) for n in (ours, peer)]
                lines.append(against("CPU time of all processes", used[0], UNIT, peer, used[1], None))
    return lines


def _bare(*, sync: bool) -> Callable[[], Took]:
    return alone("bare", data.MOST, sync=sync)


def _torchrl(num_chunks: int | None) -> Callable[[], float]:
    return lambda: work("torchrl", count=data.MANY, num_chunks=num_chunks)["seconds"] / data.MANY * 1e9


def _best_chunks() -> int:
    seconds = {n: work("torchrl", count=data.MANY, num_chunks=n)["seconds"] for n in CHUNKS}
    return min(seconds, key=seconds.__getitem__)
