"""Time and bytes of changes without a copy: ``make bench-versions``.

Cameras: episodes of JPEG images, of which a selection, a trim and a merge share the files. Table: a million episodes of
two steps and eight fields, for what is done by the episode table alone. Each figure is the median of three runs in a
process that has the dataset open; bytes are those that the home grows by.

Recorded: the same episodes in a dataset that grows.

Loading: a million rows in one dataset, in a merge of ten, and in one that grows. Their loaders take turns; the ratio is
the median over the turns.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RUNS = 3
TURNS, SECONDS = 15, 0.3  # of loading; of each turn of each loader
LEAST = 0.95  # of the rate of an ordinary dataset


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5_000, help="of the dataset with cameras")
    parser.add_argument("--table", type=int, default=1_000_000, help="episodes of the other one")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the datasets that are loaded")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rlds-versions-"))
    os.environ["RLDS_HOME"] = str(home)
    try:
        cameras(home, given.episodes)
        recorded(home, given.episodes)
        table(home, given.table)
        loading(given.rows)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def cameras(home: Path, count: int) -> None:
    """Print the figures of episodes with JPEG images."""
    import rlds_cli

    ds = rlds_cli.create("local/cameras", filmed(count))
    whole = used(home)
    print(f"cameras: {count:,} episodes, {ds.num_steps:,} steps, {whole / 2**20:,.0f} MiB")
    keep = np.flatnonzero(np.random.default_rng(1).random(count) < 0.95)
    measure("select 95 %", home, whole, lambda: ds.select(episodes=keep).save("part", force=True))
    starts = {k: (5, int(n)) for k, n in enumerate(ds.episodes["length"])}
    measure("trim the starts", home, whole, lambda: ds.trim(starts, "trimmed", force=True))


def recorded(home: Path, count: int) -> None:
    """Print the figures of a dataset that grows."""
    import rlds_cli
    from rlds_cli import preprocess

    before = used(home)
    with rlds_cli.writer("local/recorded", like=rlds_cli.open_dataset("local/cameras"), durable=False) as writer:
        writer.add_episodes(filmed(count))
    ds = writer.dataset()
    whole = used(home) - before
    print(f"recorded: {count:,} episodes in a dataset that grows, {whole / 2**20:,.0f} MiB")
    keep = np.flatnonzero(np.random.default_rng(1).random(count) < 0.95)
    measure("select 95 %", home, whole, lambda: ds.select(episodes=keep).save("part", force=True))
    starts = {k: (5, int(n)) for k, n in enumerate(ds.episodes["length"])}
    measure("trim the starts", home, whole, lambda: ds.trim(starts, "trimmed", force=True))
    quality = np.random.default_rng(2).integers(0, 5, count).tolist()
    measure("label one column", home, whole, lambda: rlds_cli.open_dataset("local/recorded").label(quality=quality))
    measure("twice the reward", home, whole, lambda: preprocess.run(ds, _twice, "twice", jobs=0, force=True))


def _twice(episode: Any) -> Any:
    episode["next"]["reward"] = 2 * episode["next"]["reward"]
    return episode


def table(home: Path, count: int) -> None:
    """Print the figures of many short episodes."""
    import rlds_cli
    from rlds_cli.loader import Loader

    rng = np.random.default_rng(0)
    values = {f"x{k}": rng.random((4096, 3, 1), np.float32) for k in range(6)}

    def short() -> Iterator[dict[str, Any]]:
        flags = {"terminated": np.array([False, True]), "reward": np.ones(2, np.float32)}
        for e in range(count):
            yield {
                "observation": {n: v[e % 4096] for n, v in values.items()},
                "action": np.zeros((2, 1), np.float32),
                "next": flags,
            }

    ds = rlds_cli.create("local/short", short())
    whole = used(home)
    print(f"table: {ds.num_episodes:,} episodes, {len(ds.schema)} fields")
    some = ds.select(episodes=np.flatnonzero(rng.random(count) < 0.95))
    seconds("fingerprint of 95 %", lambda: some.store.fingerprint(some.episodes.index))
    quality = rng.integers(0, 5, count).tolist()
    measure("label one column", home, whole, lambda: rlds_cli.open_dataset("local/short").label(quality=quality))
    measure("select 95 %", home, whole, lambda: some.save("part", force=True))
    seconds("open, first batch", lambda: next(iter(Loader("local/short", 256, seed=0))))
    seconds("open the selection, first batch", lambda: next(iter(Loader("local/short@part", 256, seed=0))))


def loading(rows: int) -> None:
    """Print the rates of loaders of a merge and of a growing dataset, beside an ordinary one of equal content."""
    import rlds_cli
    from rlds_cli.loader import Loader, Slice, Transition

    members, each = [f"local/member{k}" for k in range(10)], rows // 10 // (STEPS + 1)
    for k, name in enumerate(members):
        rlds_cli.create(name, moving(k, each))
    rlds_cli.merge(members, "local/merged")
    ds = rlds_cli.create("local/ordinary", (e for k in range(10) for e in moving(k, each)))
    with rlds_cli.writer("local/growing", like=ds) as writer:
        for k in range(10):
            writer.add_episodes(moving(k, each))
    kinds = ("ordinary", "merged", "growing")
    print(f"loading: {ds.num_rows:,} rows of 17 + 6 float32")
    for what, window, size in (("256 transitions", Transition(), 256), ("32 slices of 64", Slice(64), 32)):
        batches = {kind: iter(Loader(f"local/{kind}", size, window=window, seed=0)) for kind in kinds}
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(TURNS + 1):
            for kind in kinds:
                rates[kind].append(rate(batches[kind]))
        for kind in kinds:
            ratio = statistics.median(a / b for a, b in zip(rates[kind][1:], rates["ordinary"][1:], strict=True))
            aim = "" if kind == "ordinary" else f"   at least {LEAST}: {'reached' if ratio >= LEAST else 'missed'}"
            taken = 1e6 / statistics.median(rates[kind][1:])
            print(f"  {f'{what}, {kind}':32} {taken:8.1f} us  {ratio:6.3f} of the ordinary rate{aim}")


def rate(batches: Iterator[Any]) -> float:
    """Return how many batches come in a second."""
    count, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < SECONDS:
        for _ in range(50):
            next(batches)
        count += 50
    return count / taken


STEPS = 200  # of an episode without images


def moving(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield episodes without images."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            "observation": rng.random((STEPS + 1, 17), np.float32),
            "action": rng.random((STEPS, 6), np.float32),
            "next": {"reward": rng.random(STEPS, np.float32), "terminated": True},
        }


def filmed(count: int) -> Iterator[dict[str, Any]]:
    """Yield episodes of 30 to 50 steps with an image of 96 x 96 each."""
    rng = np.random.default_rng(0)
    images = [jpeg(rng.integers(0, 255, (96, 96, 3), np.uint8)) for _ in range(64)]
    for _ in range(count):
        steps = int(rng.integers(30, 50))
        frames = [images[k] for k in rng.integers(0, 64, steps + 1)]
        yield {
            "observation": {"state": rng.random((steps + 1, 7), np.float32), "camera": frames},
            "action": rng.random((steps, 7), np.float32),
            "next": {"reward": np.zeros(steps, np.float32), "terminated": True},
        }


def jpeg(image: np.ndarray[Any, Any]) -> bytes:
    """Encode an image."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=80)
    return out.getvalue()


def used(home: Path) -> int:
    """Return the bytes on disk below a home; a file with several names counts once."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512 for s in (p.lstat() for p in home.rglob("*")) if s.st_nlink}
    return sum(files.values())


def measure(what: str, home: Path, whole: int, call: Callable[[], object]) -> None:
    """Print the time of a call, and the bytes that the home grew by."""
    times, before = [], used(home)
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    grown = (used(home) - before) // (RUNS if "label" in what else 1)  # a label leaves the earlier versions
    print(f"  {what:32} {statistics.median(times):8.2f} s  {grown:>12,} bytes  {100 * grown / whole:6.2f} %")


def seconds(what: str, call: Callable[[], object]) -> None:
    """Print the time of a call."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(f"  {what:32} {statistics.median(times):8.2f} s")


if __name__ == "__main__":
    main()
