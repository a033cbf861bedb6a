"""Growing datasets: appending, opening, sampling while steps arrive; beside a bare write, and buffers of others.

    python benchmarks/growing.py [PART ...]

Parts: see `PARTS`; all of them unless named. Whatever is compared takes turns, round by round; figures are medians.
Files are made in ``.bench-data/growing``, for which the disk matters. Results go to ``bench-results/growing.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from results import DATA, Results, memory, run_parts

import rlds_cli
from rlds_cli.base import ids
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.homes import Home
from rlds_cli.store import Manifest, make_growing
from rlds_cli.store import commits as log_of_commits
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs, segments
from rlds_cli.ted import FLAGS, REWARD, TRUNCATED, Field

HOME = DATA / "growing"
PEERS = DATA / "peers" / "bin" / "python"  # cpprb, tianshou
LENGTH, OBSERVATION, ACTION = 200, 17, 6
FIELDS = (
    Field("observation", "float32", (OBSERVATION,), "both"),
    Field("action", "float32", (ACTION,)),
    Field(REWARD, "float32", (), "next"),
    *(Field(name, "bool", (), "next") for name in FLAGS),
)
ROUNDS = 7


def episode(seed: int, length: int = LENGTH) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "observation": rng.standard_normal((length + 1, OBSERVATION), np.float32),
        "action": rng.standard_normal((length, ACTION), np.float32),
        "next": {"reward": rng.standard_normal(length, np.float32), "truncated": True},
    }


def laid_out(seed: int) -> list[bytes]:
    """The rows of an episode, one piece for each field."""
    row = np.zeros((1, ACTION), np.float32)
    e = episode(seed)
    rewards = np.append(e["next"]["reward"], np.float32(0))
    flags = np.zeros((2, LENGTH + 1), bool)
    flags[1, -2] = True
    parts = (e["observation"], np.concatenate([e["action"], row]), rewards, *flags)
    return [part.tobytes() for part in parts]


def sparse(id: str, episodes: int, *, length: int = LENGTH, commits: int = 1, numbers: int = 0) -> Dataset:
    """A dataset of so many episodes and versions, written past the library: its rows are holes but for the last.

    ``numbers`` is of the episodes at its end that hold noise.
    """
    path = Home(HOME).dataset(ids.parse(id))
    if path.exists():
        return open_dataset(id, home=HOME)
    work = path.with_name(f"{path.name}.unfinished")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    make_growing(work, id, FIELDS)
    head = Manifest.read(work)
    e = np.zeros(episodes, logs.episode(0))
    e["start"], e["length"] = np.arange(episodes) * (length + 1), length
    e["num_observed"], e["num_transitions"], e["end"], e["num_done"] = length + 1, length, TRUNCATED, 1
    e["row"] = np.arange(episodes)
    (work / logs.EPISODES).write_bytes(e.tobytes())
    rows = episodes * (length + 1)
    first = (episodes - numbers) * (length + 1)
    fields = {stored.name: stored.field for stored in head.fields}
    for c in segments.columns_of(head):
        for k in range(-(-rows // c.segment_rows) if c.part == "rows" else 0):
            file = work / c.file(k)
            file.parent.mkdir(parents=True, exist_ok=True)
            a, b = max(first, k * c.segment_rows), min(rows, (k + 1) * c.segment_rows)
            with file.open("wb") as out:
                out.truncate(c.size)
                if a < b:
                    out.seek((a - k * c.segment_rows) * c.width)
                    out.write(noise(fields[c.field], b - a))
    with (work / logs.DIGESTS).open("wb") as digests:
        digests.truncate(episodes * len(FIELDS) * logs.DIGEST)
    last = Commit(time=time.time())
    with (work / log_of_commits.FILE).open("wb") as log:
        for k in range(commits + 1):
            n = episodes * k // commits
            counts = dict.fromkeys(("kept", "truncated", "final_observations", "episodes"), n)
            steps = dict.fromkeys(("steps", "transitions"), n * length)
            last = replace(last, number=k, rows=n * (length + 1), **counts, **steps)
            log.write(last.packed())
    work.rename(path)
    return open_dataset(id, home=HOME)


def noise(f: Field, rows: int) -> bytes:
    if f.dtype == "bool":
        return bytes(rows)
    return np.random.default_rng(0).standard_normal((rows, *f.shape), np.float32).tobytes()


def fresh(id: str) -> str:
    """An id of which nothing is there."""
    shutil.rmtree(Home(HOME).dataset(ids.parse(id)), ignore_errors=True)
    return id


def turns(ways: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median of each way, once a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return {name: median(values) for name, values in found.items()}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def child(part: str, *arguments: object, python: Path | str = sys.executable) -> subprocess.Popen[str]:
    """A part of this file in a process of its own, which says its figures on lines of JSON."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RL_LOGGING_LEVEL": "WARNING"}
    command = [str(python), "-W", "ignore", __file__, f"--{part}", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the process ended")
    return json.loads(line)


def verdict(reached: bool, aim: str) -> str:
    return f"{aim} wanted: {'reached' if reached else 'short'}"


# -- appending


class Bare:
    """Writes the same bytes to one file."""

    def __init__(self, name: str) -> None:
        HOME.mkdir(parents=True, exist_ok=True)
        self._files = [(HOME / f"{name}-{k}").open("wb", 0) for k in range(len(FIELDS))]

    def each(self, parts: list[list[bytes]], files: int = 1) -> None:
        """A write and an fsync for every episode, to one file or to one a field."""
        for pieces in parts:
            pieces = pieces if files > 1 else [b"".join(pieces)]
            for file, data in zip(self._files[: len(pieces)], pieces, strict=True):
                file.write(data)
                os.fsync(file.fileno())

    def together(self, parts: list[list[bytes]], syncs: int) -> None:
        """So many syncs in all."""
        every = max(1, len(parts) // max(1, syncs))
        for k, pieces in enumerate(parts):
            self._files[0].write(b"".join(pieces))
            if k % every == every - 1:
                os.fsync(self._files[0].fileno())
        os.fsync(self._files[0].fileno())


def appending(results: Results) -> None:
    """Episodes of 200 steps: a commit for each, and the writer's own commits."""
    few, many = 40, 1_500
    given = [episode(k) for k in range(many)]
    parts = [laid_out(k) for k in range(many)]
    bare = Bare("bare")
    with rlds_cli.writer(fresh("local/appended"), fields=FIELDS, home=HOME) as w:
        w.add_episodes(given[:few])
        w.commit()
        syncs = [1]

        def each() -> None:
            for e in given[:few]:
                w.add_episodes([e])
                w.commit()

        def together() -> None:
            before = w.commit()
            w.add_episodes(given)
            syncs[0] = w.commit() - before

        took = turns(
            {
                "bare, each": lambda: timed(lambda: bare.each(parts[:few])) / few,
                "five files, each": lambda: timed(lambda: bare.each(parts[:few], 5)) / few,
                "each": lambda: timed(each) / few,
                "together": lambda: timed(together) / many,
                "bare, together": lambda: timed(lambda: bare.together(parts, syncs[0])) / many,
            }
        )
    size = sum(map(len, parts[0])) / 1000
    results.add("write and fsync of an episode", took["bare, each"] * 1e3, "ms", f"{size:.1f} kB, one file")
    results.add("  in five files, each synced", took["five files, each"] * 1e3, "ms")
    results.add("a commit for each episode", took["each"] * 1e3, "ms")
    ratio = took["each"] / took["bare, each"]
    results.add("  times a write and fsync", ratio, "x", verdict(ratio <= 1.5, "at most 1.5"))
    results.add("  times the five files", took["each"] / took["five files, each"], "x")
    results.add("write of an episode, syncs as below", took["bare, together"] * 1e3, "ms")
    results.add("an episode, by the writer's own commits", took["together"] * 1e3, "ms", f"{syncs[0]} commits")
    results.add("  times a write, as many syncs", took["together"] / took["bare, together"], "x")


def steps(results: Results) -> None:
    """``add`` of one step, and what other buffers take for it."""
    count = 100 * LENGTH
    e = episode(0)
    with rlds_cli.writer(fresh("local/stepped"), fields=FIELDS, home=HOME) as w:

        def ours() -> None:
            for t in range(count):
                k = t % LENGTH
                w.add(
                    e["observation"][k],
                    e["action"][k],
                    e["next"]["reward"][k],
                    False,
                    k == LENGTH - 1,
                    next_observation=e["observation"][k + 1] if k == LENGTH - 1 else None,
                )

        took = turns({"ours": lambda: timed(ours) / count})
    results.add("Writer.add, to disk", took["ours"] * 1e6, "µs/step")
    for name in ("torchrl", "torchrl-extend", "offline-to-online", "cpprb", "tianshou"):
        python = PEERS if name in ("cpprb", "tianshou") else sys.executable
        if not Path(python).exists():
            continue
        with child("peer", name, python=python) as process:
            try:
                results.add(f"{LABELS[name]}", told(process), "µs/step", NOTES[name])
            except RuntimeError:
                results.add(f"{LABELS[name]}", float("nan"), "µs/step", "not run")


LABELS = {
    "torchrl": "torchrl: LazyMemmapStorage, add",
    "torchrl-extend": "torchrl: LazyMemmapStorage, extend by an episode",
    "offline-to-online": "torchrl: OfflineToOnlineReplayBuffer, extend",
    "cpprb": "cpprb: ReplayBuffer, add",
    "tianshou": "tianshou: ReplayBuffer, add",
}
NOTES = {
    "torchrl": "memory-mapped, not synced, lost to a new process",
    "torchrl-extend": "as above",
    "offline-to-online": "in memory",
    "cpprb": "in memory",
    "tianshou": "in memory",
}


def peer(name: str) -> None:
    """Microseconds a step of another buffer."""
    e, count = episode(0), 10 * LENGTH
    arrays = {
        "obs": e["observation"][:-1],
        "next_obs": e["observation"][1:],
        "act": e["action"],
        "rew": e["next"]["reward"],
        "terminated": np.zeros(LENGTH, bool),
        "truncated": np.arange(LENGTH) == LENGTH - 1,
    }
    if name == "cpprb":
        from cpprb import ReplayBuffer

        described = {key: {"shape": v.shape[1:] or 1, "dtype": v.dtype} for key, v in arrays.items()}
        buffer = ReplayBuffer(100_000, described)

        def work() -> None:
            for t in range(count):
                buffer.add(**{key: v[t % LENGTH] for key, v in arrays.items()})

    elif name == "tianshou":
        from tianshou.data import Batch
        from tianshou.data import ReplayBuffer as Buffer

        other = Buffer(100_000)
        arrays["obs_next"] = arrays.pop("next_obs")

        def work() -> None:
            for t in range(count):
                other.add(Batch(**{key: v[t % LENGTH] for key, v in arrays.items()}, info={}))

    else:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, OfflineToOnlineReplayBuffer, ReplayBuffer

        names = {
            "obs": "observation",
            "act": "action",
            "next_obs": ("next", "observation"),
            "rew": ("next", "reward"),
            "terminated": ("next", "terminated"),
            "truncated": ("next", "truncated"),
        }
        td = TensorDict({}, [LENGTH])
        for key, values in arrays.items():
            td[names[key]] = torch.from_numpy(values)
        if name == "mixing":
            offline = ReplayBuffer(storage=LazyTensorStorage(100_000))
            mixed = OfflineToOnlineReplayBuffer(offline, online_capacity=100_000, batch_size=256)
            for _ in range(500):
                offline.extend(td)
                mixed.extend(td)
            print(json.dumps(median(rate(iter(mixed.sample, None)) for _ in range(ROUNDS))), flush=True)
            return
        if name == "offline-to-online":
            offline = ReplayBuffer(storage=LazyTensorStorage(LENGTH))
            offline.extend(td)
            mixed = OfflineToOnlineReplayBuffer(offline, online_capacity=100_000, batch_size=256)
            work = lambda: [mixed.extend(td) for _ in range(count // LENGTH)]  # noqa: E731
        else:
            scratch = HOME / "torchrl"
            shutil.rmtree(scratch, ignore_errors=True)
            storage = LazyMemmapStorage(100_000, scratch_dir=scratch)
            rb = ReplayBuffer(storage=storage)
            if name == "torchrl":
                work = lambda: [rb.add(td[t % LENGTH]) for t in range(count)]  # noqa: E731
            else:
                work = lambda: [rb.extend(td) for _ in range(count // LENGTH)]  # noqa: E731
    work()
    print(json.dumps(median(timed(work) for _ in range(ROUNDS)) / count * 1e6), flush=True)


def sizes(results: Results) -> None:
    """A commit of an episode to datasets of 1e5 and of 1e8 steps."""
    few, given = 60, [episode(k) for k in range(60)]
    writers = {}
    for name, count in (("1e5", 500), ("1e8", 500_000)):
        fresh(f"local/appended-to-{name}")
        sparse(f"local/appended-to-{name}", count)
        writers[name] = rlds_cli.writer(f"local/appended-to-{name}", home=HOME)

    def each(w: Any) -> None:
        for e in given:
            w.add_episodes([e])
            w.commit()

    took = turns({name: lambda w=w: timed(lambda: each(w)) / few for name, w in writers.items()})
    for w in writers.values():
        w.close()
    for name, seconds in took.items():
        results.add(f"a commit of an episode, {name} steps before", seconds * 1e3, "ms")
    ratio = took["1e8"] / took["1e5"]
    results.add("  1e8 / 1e5", ratio, "x", verdict(ratio <= 1.2, "at most 1.2"))


def writer_memory(results: Results) -> None:
    """The memory of a process that records, above its imports and open episodes."""
    with child("recording") as process:
        most = told(process)
    results.add(
        "memory of a writer", most, "MiB", verdict(most <= 50, "at most 50") + "; beyond imports, open episodes"
    )


def recording() -> None:
    e = episode(0, 1000)
    with rlds_cli.writer(fresh("local/warm"), fields=FIELDS, home=HOME) as w:
        w.add_episodes([e])
    before, most = memory("RssAnon"), 0.0
    with rlds_cli.writer(fresh("local/recorded"), fields=FIELDS, home=HOME) as w:
        for t in range(300_000):
            k, last = t % 1000, t % 1000 == 999
            after = e["observation"][1000] if last else None
            w.add(e["observation"][k], e["action"][k], e["next"]["reward"][k], False, last, next_observation=after)
            if k % 100 == 0:
                most = max(most, memory("RssAnon") - before)
        for _ in range(30):  # whole episodes, as fast as they are taken
            w.add_episodes([e] * 100)
            most = max(most, memory("RssAnon") - before)
    print(json.dumps(most - 1000 * 98 / 2**20), flush=True)


# -- readers


def visible(results: Results) -> None:
    """From the end of a commit, or of an episode, until another process has it."""
    fresh("local/seen")
    with child("committing") as process:
        ready = told(process)
        ds = open_dataset("local/seen", home=HOME)
        assert ready and process.stdin is not None
        for what in ("commit", "end"):
            late = []
            for _ in range(60):
                before = ds.version
                process.stdin.write(f"{what}\n")
                process.stdin.flush()
                while ds.version == before:
                    ds = ds.refresh()
                    time.sleep(0.0005)
                late.append(max(0.0, (time.monotonic() - told(process)) * 1e3))
                time.sleep(0.003)
            label = "visible after a commit" if what == "commit" else "visible after the last step, without a commit"
            note = verdict(max(late) <= 100, "at most 100") + f"; worst {max(late):.1f}"
            results.add(label, median(late), "ms", note)
        process.stdin.close()


def committing() -> None:
    with rlds_cli.writer("local/seen", fields=FIELDS, home=HOME) as w:
        w.add_episodes([episode(0)])
        w.commit()
        print(json.dumps(True), flush=True)
        for line in sys.stdin:
            w.add_episodes([episode(1)])
            if line.strip() == "commit":
                w.commit()
            print(json.dumps(time.monotonic()), flush=True)


def opening(results: Results) -> None:
    """Datasets of 100,000 episodes, in 10 and in 100,000 versions."""
    for commits in (10, 100_000):
        fresh(f"local/versions-{commits}")
        sparse(f"local/versions-{commits}", 100_000, length=4, commits=commits)
    ways = {
        str(n): lambda n=n: timed(lambda: len(open_dataset(f"local/versions-{n}", home=HOME))) for n in (10, 100_000)
    }
    took = turns(ways, 15)
    for name, seconds in took.items():
        results.add(f"open, {int(name):,} versions", seconds * 1e3, "ms")
    ratio = took["100000"] / took["10"]
    results.add("  100,000 / 10", ratio, "x", verdict(ratio <= 1.1, "as fast"))


def sampling(results: Results) -> None:
    """Batches while 10,000 steps a second arrive, and of the same dataset while none do."""
    from rlds_cli.loader import Loader, Slice

    fresh("local/arriving")
    with rlds_cli.writer("local/arriving", fields=FIELDS, home=HOME) as w:
        w.add_episodes(episode(k) for k in range(5_000))
    with child("arriving") as process:
        told(process)
        for name, size, options in (("256 transitions", 256, {}), ("32 slices of 64", 32, {"window": Slice(64)})):
            ds = open_dataset("local/arriving", home=HOME)
            frozen = iter(Loader(ds, size, **options))
            live = iter(Loader(ds, size, live=True, **options))
            next(frozen), next(live)
            taken: dict[str, list[float]] = {"frozen": [], "live": []}
            for _ in range(ROUNDS):
                os.kill(process.pid, signal.SIGSTOP)
                taken["frozen"].append(rate(frozen))
                os.kill(process.pid, signal.SIGCONT)
                taken["live"].append(rate(live))
            still, moving = median(taken["frozen"]), median(taken["live"])
            results.add(f"batches of {name}, frozen", still, "1/s")
            results.add("  while 10,000 steps a second arrive", moving, "1/s")
            results.add("  share", moving / still, "x", verdict(moving / still >= 0.8, "at least 0.8"))
        process.terminate()


def rate(batches: Iterator[Any], seconds: float = 0.7) -> float:
    count, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    return count / taken


def arriving() -> None:
    """Fifty episodes of 200 steps a second, step by step."""
    e = episode(0)
    with rlds_cli.writer("local/arriving", home=HOME) as w:
        print(json.dumps(True), flush=True)
        while True:
            start = time.monotonic()
            for k in range(LENGTH):
                last = k == LENGTH - 1
                after = e["observation"][LENGTH] if last else None
                reward = e["next"]["reward"][k]
                w.add(e["observation"][k], e["action"][k], reward, False, last, next_observation=after)
            time.sleep(max(0.0, start + 1 / 50 - time.monotonic()))


def mixing(results: Results) -> None:
    """Batches of which half is from a growing dataset, beside TorchRL's buffer for this."""
    from rlds_cli.loader import Loader, Mixture

    members = {}
    for name in ("offline", "online"):
        with rlds_cli.writer(fresh(f"local/mixed-{name}"), fields=FIELDS, home=HOME) as w:
            w.add_episodes(episode(k) for k in range(500))
        members[name] = w.dataset()
    batches = iter(Loader(Mixture(members, {"offline": 1, "online": 1}), 256, live=True))
    rate(batches)
    with child("peer", "mixing") as process:
        theirs = told(process)
    ours = median(rate(batches) for _ in range(ROUNDS))
    results.add("batches of 256, half of each, live", ours, "1/s", "from disk")
    results.add("torchrl: OfflineToOnlineReplayBuffer, sample", theirs, "1/s", "from memory")
    results.add("  times its rate", ours / theirs, "x")


def slices(results: Results) -> None:
    """Slices of 3.5e8 steps, whose draws all lie in a million rows that hold numbers, and of these alone."""
    from rlds_cli.loader import Loader, Slice

    resident, episodes = 5_000, 1_750_000
    small = sparse("local/slices-1e6", resident, numbers=resident)
    large = sparse("local/slices-3.5e8", episodes, numbers=resident)
    chosen = large.select(episodes=np.resize(np.arange(episodes - resident, episodes), episodes))
    loaders = {name: iter(Loader(ds, 32, window=Slice(64))) for name, ds in (("1e6", small), ("3.5e8", chosen))}
    for batches in loaders.values():
        rate(batches)
    took = turns({name: lambda b=batches: 1 / rate(b) for name, batches in loaders.items()})
    for name, seconds in took.items():
        results.add(f"32 slices of 64, {name} steps", seconds * 1e6, "µs")
    ratio = took["3.5e8"] / took["1e6"]
    results.add("  3.5e8 / 1e6", ratio, "x", verdict(ratio <= 2, "at most 2"))


PARTS = {
    "appending": appending,
    "steps": steps,
    "sizes": sizes,
    "memory": writer_memory,
    "visible": visible,
    "opening": opening,
    "sampling": sampling,
    "mixing": mixing,
    "slices": slices,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2])
    elif sys.argv[1:2] and sys.argv[1].startswith("--"):
        {"recording": recording, "committing": committing, "arriving": arriving}[sys.argv[1].removeprefix("--")]()
    else:
        run_parts("growing", PARTS, sys.argv[1:])
