"""End changes of a dataset at chosen moments, and look what is left: the version before or the one after, and no other.

A child process makes the change and kills itself before its n-th operation on a file. It is forked from this program,
which has no threads while it forks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from versions_model import Episode, build, check, draw, fingerprint

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.keep import verification
from rlds_cli.store import History

OPERATIONS = frozenset(["os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "open"])
CHANGES: dict[str, tuple[Callable[[Dataset], Any], Callable[[list[Episode]], list[Episode]]]] = {
    "label": (
        lambda ds: ds.select(episodes=[1]).label(quality="bad"),
        lambda es: [e.labelled(quality="bad") if k == 1 else e for k, e in enumerate(es)],
    ),
    "drop": (lambda ds: ds.select(episodes=[0]).drop(), lambda es: es[1:]),
    "select": (lambda ds: ds.select(episodes=[2, 0]).save("s", force=True), lambda es: [es[2], es[0]]),
    "trim": (
        lambda ds: ds.trim({0: [(0, 1), (1, 2)]}, "s", force=True),
        lambda es: [es[0].part(0, 1), es[0].part(1, 2), *es[1:]],
    ),
}

IN_PLACE = ("label", "drop")


def run(change: Callable[[], Any], at: int, below: str) -> int:
    """Make a change in a child that ends before operation ``at`` on a file of a directory.

    Return how many there were; 0 if it was ended. One that takes a minute is ended as well.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0
        signal.alarm(60)

        def counted(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event != "open" or bool(args[2] & (os.O_WRONLY | os.O_RDWR))
            if event in OPERATIONS and writes and str(args[0]).startswith(below):
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(counted)
        try:
            change()
            os.write(writer, str(count).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100)
    os.close(reader)
    os.waitpid(child, 0)
    return int(said or 0)


def at_every_moment(name: str, every: int) -> int:
    """End a change before every n-th operation, each time of a new dataset; return how often it was ended."""
    rng = np.random.default_rng(0)
    episodes = [draw(rng, 3) for _ in range(3)]
    make, made = CHANGES[name]
    kills, at = 0, 1
    while not _ended_and_looked_at(f"local/{name}{at}", name in IN_PLACE, at, episodes, make, made):
        kills, at = kills + 1, at + every
    return kills


def _ended_and_looked_at(
    id: str, in_place: bool, at: int, episodes: list[Episode], make: Callable[[Dataset], Any], made: Callable[..., Any]
) -> bool:
    """Make a change of a new dataset, which ends at an operation; return whether it came to its own end."""
    ds = build(id, episodes)
    before, target = [episodes], id
    if not in_place:  # a dataset with versions is replaced
        ds.select(episodes=[1]).save("s").label(quality="old")
        before, target = [[episodes[1]], [episodes[1].labelled(quality="old")]], f"{id}@s"
    whole = run(lambda: make(ds), at, os.environ["RLDS_HOME"]) > 0
    after = [*before, made(episodes)] if in_place else [made(episodes)]
    found = rlds_cli.open_dataset(target)
    happened = found.fingerprint == fingerprint(after[-1])
    assert happened or not whole
    _look(found, after if happened else before)
    check(rlds_cli.open_dataset(id), after[-1] if happened and in_place else episodes)
    known = [*(after if happened else before)]
    found = found.label(mood="fine")
    _look(found, [*known, [e.labelled(mood="fine") for e in known[-1]]])
    return whole


def _look(ds: Dataset, known: list[list[Episode]]) -> None:
    """Each version is whole."""
    assert [v.number for v in ds.versions] == list(range(1, len(known) + 1))
    for number, episodes in enumerate(known, 1):
        there = rlds_cli.open_dataset(History(ds.path).at(number))
        check(there, episodes)
        assert not verification.verify(there.path).problems


if __name__ == "__main__":
    for change in CHANGES:
        print(change, "ended", at_every_moment(change, int(sys.argv[1])), "times")
