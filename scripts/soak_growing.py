"""Kill writers, readers and compaction of a dataset that grows at random moments, and look at what is there.

Usage: python scripts/soak_growing.py [--times 50] [--seed 0]

After each kill every episode is whole, or cut by a commit that was asked for; none is there twice; every episode of
which a commit has said that it is there is there, unless its policy let it go; and the next writer goes on. Episode n
has a length and values that follow from n, so that each row can be checked.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.make.convert.writer import writer  # imported now, not in each process
from rlds_cli.store import Keep, encode_frames, layouts
from rlds_cli.store.growing import segments
from rlds_cli.store.growing.retention import Fifo

NAME, WIDTH, TIMES = "local/soak", 16, 50
_BESIDE = 1 << 22  # number of the first episode of another writer
_PICTURES = 30  # different images of an episode, and episodes with different ones
_NUMBER = struct.Struct("<q")


def length(number: int) -> int:
    """Steps of an episode."""
    return 1 + number * 7919 % 150


def observation(number: int, t: int) -> Any:
    """Observation of an episode before step t."""
    return np.full(WIDTH, 1000 * number + t, np.float64)


@cache
def picture(number: int, t: int) -> bytes:
    """Bytes of the image of an episode at step t: one of a few."""
    pixels = np.full((1, 8, 8, 3), [number, t, 0], np.uint8)
    return encode_frames(pixels, "png").data.tobytes()


def picture_of(number: int, t: int) -> bytes:
    """Bytes of the image of an episode at step t."""
    return picture(number % _PICTURES, t % _PICTURES)


def write(home: Path, first: int, keep: Keep | None, seed: int, told: int, *, shared: bool = False) -> None:
    """Record episodes for ever, and tell a pipe the number of each that was committed."""
    chance = random.Random(seed)
    w = writer(NAME, keep=keep, home=home, durable=False, shared=shared)
    for number in range(first, first + (1 << 20)):
        steps = length(number)
        for t in range(steps):
            last = t == steps - 1
            after = observation(number, t + 1)
            more = {"note": f"note {number % 50}", "picture": picture_of(number, t)}
            w.add(observation(number, t), number, float(t), last, next_observation=after, **more)
            if chance.random() < 0.01:
                w.commit()
        if chance.random() < 0.5:
            w.commit()
            os.write(told, _NUMBER.pack(number))


def read(home: Path, seed: int) -> None:
    """Refresh and compare for ever; versions that are held stay as they are."""
    chance = random.Random(seed)
    ds = rlds_cli.open_dataset(NAME, home=home)
    held: list[tuple[Dataset, list[tuple[int, int, str]]]] = []
    while True:
        ds = ds.refresh()
        held.append((ds, numbers(ds)))
        if len(held) > 3:
            del held[chance.randrange(4)]
        old, then = chance.choice(held)
        if numbers(old) != then:
            raise AssertionError(f"version {old.version} has changed")


def numbers(ds: Dataset) -> list[tuple[int, int, str]]:
    """Check every row, and return number, length and end of all episodes."""
    found = []
    if not ds.num_episodes:
        return []
    rows, actions, rewards = (ds.column(n, gaps=True) for n in ("observation", "action", "next/reward"))
    columns = (ds.episodes[n].tolist() for n in ("start", "length", "num_observed", "end"))
    for start, steps, observed, end in zip(*columns, strict=True):
        number, t = int(actions[start]), np.arange(steps + 1)
        assert (rows[start : start + observed] == (1000 * number + t[:observed])[:, None]).all(), f"episode {number}"
        assert (actions[start : start + steps] == number).all() and (rewards[start : start + steps] == t[:-1]).all()
        assert end in ("terminated", "cut") and observed == steps + 1
        assert steps == length(number) if end == "terminated" else steps <= length(number), f"episode {number} is {end}"
        assert ds.gather("note", np.array([start]))[0] == f"note {number % 50}"
        for step in (0, steps // 2, steps - 1):
            assert ds.store.frames("picture").packet(start + step) == picture_of(number, step), (
                f"image of episode {number}"
            )
        found.append((number, steps, end))
    assert len({n for n, _, _ in found}) == len(found), "an episode is there twice"
    return found


def forked(work: Callable[[], None]) -> int:
    """Run a function in a process of its own, and return its id. It exits with 3 if the function fails."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(3)


def ended(child: int) -> None:
    """Kill a process, which must not have ended by itself."""
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        sys.exit("a process failed before it was killed; its error is above")


def writing(home: Path, first: int, keep: Keep | None, seed: int, *, shared: bool) -> tuple[int, int]:
    """Start a writer; return its process, and the pipe to which it tells what is committed."""
    receive, send = os.pipe()
    child = forked(lambda: write(home, first, keep, seed, send, shared=shared))
    os.close(send)
    return child, receive


def last_told(receive: int, before: int) -> int:
    """Return the last number that a writer told before it was killed."""
    with open(receive, "rb") as pipe:
        return max([before, *(n for (n,) in _NUMBER.iter_unpack(pipe.read()))])


def soak_writers(home: Path, times: int, keep: Keep | None, chance: random.Random, *, shared: bool = False) -> str:
    """Kill writers; check what the next one finds. ``shared``: beside one that is killed at the end."""
    next_one, told, count = 0, -1, 0
    beside = writing(home, _BESIDE, keep, chance.randrange(1 << 30), shared=True) if shared else None
    for k in range(times):
        child, receive = writing(home, next_one, keep, chance.randrange(1 << 30), shared=shared)
        if k == times - 1:  # one commits something, however slow the machine is
            told = max(told, *_NUMBER.unpack(os.read(receive, _NUMBER.size)))
        time.sleep(chance.uniform(0.01, 0.2))
        ended(child)
        told = last_told(receive, told)
        if not (home / "datasets" / NAME).exists():
            assert told == -1
            continue
        ds = rlds_cli.open_dataset(NAME, home=home)
        found = numbers(ds)
        mine = [e for e in found if e[0] < _BESIDE]
        check_kept(mine, told, keep)
        next_one, count = max([told, *(n for n, _, _ in mine)]) + 1, len(found)
    if beside is not None:
        ended(beside[0])
        there = {n for n, _, _ in numbers(rlds_cli.open_dataset(NAME, home=home))}
        missing = set(range(_BESIDE, last_told(beside[1], _BESIDE - 1) + 1)) - there
        assert not missing and _BESIDE in there, f"committed by the other writer, and not there: {missing}"
    assert count, "nothing was committed before any kill"
    return f"{count:,} episodes, all of the {told + 1:,} that were committed by commit() and that are kept"


def check_kept(found: list[tuple[int, int, str]], told: int, keep: Keep | None) -> None:
    """Every episode up to ``told`` is there that the policy keeps."""
    there = {n for n, _, _ in found}
    if keep is None:
        missing = set(range(told + 1)) - there
    else:
        assert isinstance(keep, Fifo) and keep.steps is not None
        newest, steps, n = set[int](), 0, max(there, default=-1)
        while (
            n >= 0 and steps + length(n) <= keep.steps - 2 * 150
        ):  # an open one, and those that were cut, count as well
            newest, steps, n = newest | {n}, steps + length(n), n - 1
        missing = {n for n in newest if n <= told} - there
    assert not missing, f"committed, and not there: {sorted(missing)[:5]}"


def soak_readers(home: Path, times: int, chance: random.Random) -> str:
    """Kill readers beside a writer that lets episodes go; their holds end with them."""
    receive, send = os.pipe()
    writer = forked(lambda: write(home, 0, Fifo(steps=6000), chance.randrange(1 << 30), send))
    os.read(receive, 8)
    for _ in range(times):
        child = forked(lambda: read(home, chance.randrange(1 << 30)))
        time.sleep(chance.uniform(0.02, 0.15))
        ended(child)
    ended(writer)
    os.close(send)
    os.close(receive)
    found = numbers(rlds_cli.open_dataset(NAME, home=home))
    with rlds_cli.writer(NAME, home=home, durable=False) as w:  # it frees what the last reader held
        more = {"note": "note 2", "picture": picture_of(1 << 21, 0)}
        w.add(observation(1 << 21, 0), 1 << 21, 0.0, True, next_observation=observation(1 << 21, 1), **more)
    there = len(list((home / "datasets" / NAME / "observation" / "c").iterdir()))
    assert there <= 4, f"{there} segments of 4,096 rows hold what is kept, of 6,000 steps"
    return f"{len(found):,} episodes"


def soak_compaction(home: Path, times: int, chance: random.Random) -> str:
    """Kill compaction; contents and fingerprint stay."""
    from rlds_cli.keep.compacting import compact

    moved = 0
    for k in range(times):
        with rlds_cli.writer(NAME, home=home, keep=rlds_cli.Top(episodes=40), durable=False) as w:
            for number in range(100 * k, 100 * k + 100):
                steps = length(number)
                rows = np.stack([observation(number, t) for t in range(steps + 1)])
                w.add_episodes(
                    {
                        "observation": rows,
                        "action": np.full(steps, number),
                        "note": [f"note {number % 50}"] * steps,
                        "picture": [picture_of(number, t) for t in range(steps)],
                        "next": {"reward": np.arange(steps, dtype=np.float64), "terminated": True},
                    }
                )
        before = rlds_cli.open_dataset(NAME, home=home)
        wanted = numbers(before)
        child = forked(lambda: compact(NAME, home=home) and time.sleep(60))
        time.sleep(chance.uniform(0.0, 0.06))
        ended(child)
        after = rlds_cli.open_dataset(NAME, home=home)
        moved += after.version != before.version
        assert after.fingerprint == before.fingerprint and numbers(after) == wanted and numbers(before) == wanted
    return f"{moved} were done before the kill"


def soaks() -> dict[str, Callable[[Path, int, random.Random], str]]:
    """All that is killed, by name."""
    return {
        "writers": lambda home, times, chance: soak_writers(home, times, None, chance),
        "writers that keep the newest": lambda home, times, chance: soak_writers(home, times, Fifo(steps=3000), chance),
        "one of two writers": lambda home, times, chance: soak_writers(home, times, None, chance, shared=True),
        "readers": soak_readers,
        "compaction": soak_compaction,
    }


def main(times: int = TIMES, seed: int = 0) -> None:
    """Soak all, in segments of 4,096 rows and 64 KiB of images, of which each run writes several."""
    segments.rows_of_segment = lambda *given: layouts.PAGE_ROWS
    segments.bytes_of_segment = lambda *given: 1 << 16
    for number, t in product(range(_PICTURES), range(_PICTURES)):  # and import Pillow: not in each process
        picture(number, t)
    for name, soak in soaks().items():
        with tempfile.TemporaryDirectory() as home:
            start = time.perf_counter()
            said = soak(Path(home), times, random.Random(seed))
            print(f"growing, {name}: killed {times} times in {time.perf_counter() - start:.1f} s; {said}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    main(given.times, given.seed)
