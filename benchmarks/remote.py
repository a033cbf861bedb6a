"""Training from an object store that answers late: beside bare requests, beside the disk, and beside other libraries.

    python benchmarks/remote.py [PART ...]

Parts: see `PARTS`; all of them unless named. `object_server.py` serves all data from ``.bench-data/remote`` on the
loopback interface, each answer 30 ms late; every figure is of a process of its own, with an empty home where it says
"cold". Peers read the same bytes from the same server, in the environment ``.bench-data/remote-peers``; those that are
not there are left out. ``BENCH_EPISODES`` is the number of episodes of the windows of 24 KiB, 15 windows each. Results
go to ``bench-results/remote.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from object_server import sent
from remote_data import KIB, MIB, SERVED, WINDOW, WINDOWS, billion, frames, images, small, windows
from remote_peers import BATCH, FAR, LIBRARIES, PYTHON, neighbours
from results import Results, memory, run_parts

import rlds_cli

LATENCY, AT_ONCE = 30, 64  # milliseconds, requests
PROCESSES = 16


@contextmanager
def server(latency: float = LATENCY) -> Iterator[str]:
    """Serve everything below `SERVED`; give the URL."""
    SERVED.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("object_server.py")), str(SERVED), str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def measured(url: str, what: str, *arguments: Any, home: str = "") -> dict[str, Any]:
    """Run one of `WORK` in a process of its own, in an empty home unless one is named."""
    if not home:
        shutil.rmtree(FAR / "empty", ignore_errors=True)
    return _answer(_started(url, [sys.executable, __file__, "--work", what, json.dumps([url, *arguments])], home))


def measured_at_once(url: str, count: int, what: str, *arguments: Any, home: str) -> list[dict[str, Any]]:
    """Run ``count`` processes of one of `WORK`, that begin when the last has imported what it needs."""
    each = [[url, *arguments, k] for k in range(count)]
    made = [_started(url, [sys.executable, __file__, "--work", what, json.dumps(a)], home) for a in each]
    for process in made:
        assert process.stdout is not None and process.stdout.readline().strip() == READY
    for process in made:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [_answer(process) for process in made]


READY = "ready"


def _started(url: str, command: list[str], home: str) -> subprocess.Popen[str]:
    where = {
        "RLDS_HOME": str(FAR / (home or "empty")),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # for peers
        "PYTHONPATH": str(Path(rlds_cli.__file__).parents[1]),
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | where)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a process prints last, as JSON."""
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, process.args))} ended with {process.returncode}: {err[-2000:]}")  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


# -- work, in processes of their own


def _loader(ref: str, sampler: str, options: Mapping[str, Any], cache: str | None = None, seed: int = 1) -> Any:
    """Open a dataset and make its loader. ``options``: window, batch, fields, extra and fill."""
    from rlds_cli import bench
    from rlds_cli.loader import Loader

    return Loader(
        rlds_cli.open_dataset(ref, cache=cache),
        options.get("batch", BATCH),
        window=bench.parse_window(options.get("window", "Transition")),
        sampler=bench.parse_sampler(sampler),
        fields=options.get("fields"),
        extra=options.get("extra", ()),
        fill=options.get("fill", True),
        backend="numpy",
        seed=seed,
    )


def _imported() -> None:
    """Import what figures are not about."""
    from rlds_cli import bench, loader  # noqa: F401


def epoch(url: str, ref: str, sampler: str, options: dict[str, Any], most: int, cache: str | None) -> dict[str, Any]:
    """An epoch, or ``most`` batches of it; the first batch by itself, from the opening of the dataset on."""
    _imported()
    before, rss = sent(url), memory("RssAnon")
    start = time.perf_counter()
    loader = _loader(ref, sampler, options, cache)
    extra, size = options.get("extra", ()), loader.batch_size
    batches = iter(loader)
    first = next(batches)
    took, came = time.perf_counter() - start, sent(url) - before
    count, order = 1, [_numbers(first)] if extra else []
    begun, given = time.perf_counter(), 0
    later = (batch for _ in range(1, options.get("passes", 1)) for batch in loader)
    for batch in chain(batches, later):
        count += 1
        given += sum(x.nbytes for _, x in batch.leaves())
        if extra:
            order.append(_numbers(batch))
        if count == most:
            break
    seconds = time.perf_counter() - begun
    stats = loader.stats()
    return {
        "first": took,
        "first bytes": came,
        "samples": (count - 1) * size / seconds,
        "whole": count * size / (time.perf_counter() - start),
        "seconds": time.perf_counter() - start,
        "given": given / seconds,
        "sent": sent(url) - before,
        "waiting": stats.waited / max(1e-9, stats.seconds),
        "rss": memory("RssAnon") - rss,
        "neighbours": neighbours(order) if extra else 0.0,
    }


def _numbers(batch: Any) -> Any:
    """Return the number of the first transition of each window of a batch [B]."""
    numbers = np.asarray(batch["index"])
    return numbers.reshape(len(numbers), -1)[:, 0]


def first_batch(url: str, ref: str, sampler: str, options: dict[str, Any], group: int) -> dict[str, Any]:
    """The time and the bytes to the first batch, beside the bytes of what it needs.

    ``group`` is the number of windows that the order mixes first; 0 if it is the batch itself.
    """
    _imported()
    before, rss = sent(url), memory("RssAnon")
    start = time.perf_counter()
    loader = _loader(ref, sampler, options)
    opened = time.perf_counter() - start
    batch = next(iter(loader))
    took, came = time.perf_counter() - start, sent(url) - before
    dataset, rss = rlds_cli.open_dataset(ref), memory("RssAnon") - rss
    starts = np.cumsum(dataset.episodes["num_transitions"])
    first = _numbers(batch)
    first = np.arange(group) if group else first + np.searchsorted(starts, first, "right")
    steps = first[:, None] + np.arange(WINDOW if "window" in options else 1)
    block, needed = dataset.store.blocks.block, 0
    for f in dataset.schema.values():
        width = np.dtype(f.dtype).itemsize * int(np.prod(f.shape))
        needed += len(np.unique(steps * width // block)) * block
    table = dataset.store.size_of("episodes")
    return {"opened": opened, "first": took, "sent": came, "table": table, "needed": needed, "rss": rss}


def together(url: str, ref: str, options: dict[str, Any], number: int) -> dict[str, Any]:
    """A shuffled epoch, with the number of the process as its seed; begins with a line at stdin."""
    _imported()
    print(READY, flush=True)
    sys.stdin.readline()
    rss, start, count = memory("RssAnon"), time.time(), 0
    loader = _loader(ref, "Shuffled", options, seed=number)
    for batch in loader:
        count += len(next(iter(batch.values())))
    return {"start": start, "end": time.time(), "samples": count, "rss": memory("RssAnon") - rss}


def bare(url: str, name: str, size: int, count: int, hashed: bool = False) -> dict[str, Any]:
    """Bare obstore: ranges of ``size`` bytes of the pushed objects, 64 at a time; ``hashed`` by sha256."""
    import obstore
    from obstore.store import S3Store

    store = S3Store("b", endpoint=url, virtual_hosted_style_request=False, client_options={"allow_http": True})
    objects = [(p.name, p.stat().st_size) for p in sorted((SERVED / "b" / name / "objects").iterdir())]
    ranges = [(f"{name}/objects/{o}", at) for o, n in objects for at in range(0, n - size + 1, size)]
    np.random.default_rng(0).shuffle(ranges)
    ranges = (ranges * (1 + count // max(1, len(ranges))))[:count] if count else ranges

    def fetch(one: tuple[str, int]) -> int:
        found = obstore.get_range(store, one[0], start=int(one[1]), length=size)
        if hashed:
            hashlib.sha256(found).digest()
        return len(found)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, ranges[:AT_ONCE]))  # connections
        start = time.perf_counter()
        total = sum(pool.map(fetch, ranges))
        seconds = time.perf_counter() - start
    return {"samples": len(ranges) / seconds, "given": total / seconds}


WORK: dict[str, Callable[..., dict[str, Any]]] = {f.__name__: f for f in (epoch, first_batch, together, bare)}


# -- parts

_WINDOWS = {"window": f"Slice({WINDOW}, stride={WINDOW})", "extra": ["index"]}


def part_windows(out: Results, url: str) -> None:
    """Windows of 24 KiB, shuffled as a whole, against bare requests for as many ranges and for the same blocks."""
    path = windows()
    one = measured(url, "bare", "windows", 24 * KIB, WINDOWS)
    blocks = measured(url, "bare", "windows", MIB, 0)
    options = {**_WINDOWS, "fields": ["observation"]}
    cold = measured(url, "epoch", "s3://b/windows", "Shuffled", options, 0, None)
    apart = measured(url, "epoch", "s3://b/windows", "Shuffled", {**options, "fill": False}, 9, None)
    local = measured(url, "epoch", str(path), "Shuffled", options, 0, None)
    out.add("bare obstore, ranges of 24 KiB", one["samples"], "/s", f"{one['given'] / MIB:.0f} MiB/s")
    out.add("bare obstore, ranges of 1 MiB", blocks["samples"], "/s", f"{blocks['given'] / MIB:.0f} MiB/s")
    out.add("windows of 24 KiB, cold, a whole epoch", cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
    out.add("  against bare ranges of 24 KiB", cold["whole"] / one["samples"], "x", "wanted: 0.8")
    out.add("the first 9 batches of these windows, without filling", apart["samples"], "/s", "the first apart")
    out.add("  against bare ranges of 24 KiB", apart["samples"] / one["samples"], "x", "wanted: 0.8")
    out.add("  bytes sent, for each window", apart["sent"] / (9 * BATCH) / KIB, "KiB")
    out.add("  bytes a second against bare ranges of 1 MiB", cold["whole"] * 24 * KIB / blocks["given"], "x")
    out.add("  against the disk", cold["whole"] / local["whole"], "x")
    out.add("  anonymous memory beyond batches", cold["rss"], "MiB", "wanted: 300")


def part_images(out: Results, url: str) -> None:
    """Images of 64 x 64, blocks shuffled, as they are and as JPEG: cold, warm, and local."""
    for name, path in (("images", images()), ("frames", frames())):
        sampler, options = "Shuffled(block=500, live=8)", {"passes": 5 if name == "images" else 1}
        cold = measured(url, "epoch", f"s3://b/{name}", sampler, {}, 0, None, home="images")
        warm = measured(url, "epoch", f"s3://b/{name}", sampler, options, 0, None, home="images")
        local = measured(url, "epoch", str(path), sampler, options, 0, None)
        shutil.rmtree(FAR / "images", ignore_errors=True)
        out.add(f"{name} 64x64, cold, a whole epoch", cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
        limit = measured(url, "bare", name, MIB, 0, True)["given"]
        out.add("  bytes a second against bare ranges of 1 MiB, hashed", cold["sent"] / cold["seconds"] / limit, "x")
        out.add(f"{name} 64x64, from the disk", local["samples"], "/s", f"{local['given'] / MIB:.0f} MiB/s")
        out.add("  cold against the disk", cold["whole"] / local["samples"], "x", "wanted: 0.75")
        out.add("  warm against the disk", warm["samples"] / local["samples"], "x", "wanted: 0.9")


def part_small(out: Results, url: str) -> None:
    """Small rows: the first batch, a block shuffle with a small cache, an epoch from a warm cache."""
    path, options = small(), {"batch": 256}
    first = measured(url, "epoch", "s3://b/small", "Sequential", options, 2, None)
    out.add("first batch, in order", first["first"], "s", f"{first['first bytes'] / MIB:.1f} MiB")
    shuffled = "Shuffled(block=1000000, live=2)"
    cold = measured(url, "epoch", "s3://b/small", shuffled, options, 0, "400MiB")
    stored = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    out.add("first batch, blocks shuffled", cold["first"], "s", f"{cold['first bytes'] / MIB:.1f} MiB")
    out.add("an epoch of blocks shuffled, cache of 400 MiB", cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
    out.add("  bytes read, times the dataset", cold["sent"] / stored, "x", "wanted: 1.1")
    out.add("  anonymous memory beyond batches", cold["rss"], "MiB", "wanted: 300")
    filled = measured(url, "epoch", "s3://b/small", "Sequential", options, 0, None, home="small")
    warm = measured(url, "epoch", "s3://b/small", "Shuffled", options, 20000, None, home="small")
    local = measured(url, "epoch", str(path), "Shuffled", options, 20000, None)
    out.add("an epoch in order, cold", filled["whole"], "/s", f"{filled['waiting']:.0%} waiting")
    out.add("shuffled from a warm home", warm["samples"], "/s")
    out.add("  against the disk", warm["samples"] / local["samples"], "x", "wanted: 0.9")
    shutil.rmtree(FAR / "small", ignore_errors=True)


def part_billion(out: Results, url: str) -> None:
    """The first batch of 1e9 steps, from the opening on, in an empty home."""
    billion()
    ref = "s3://b/billion"
    shuffled = "Shuffled(block=1000000, live=2)"
    windowed = {"window": f"Slice({WINDOW})"}
    for name, sampler, options, group in (
        ("in order", "Sequential", {}, 0),
        ("blocks shuffled", shuffled, {}, 2_000_000),
        (f"in order, windows of {WINDOW}", "Sequential", windowed, 0),
        ("uniform, from a first part", "Uniform(warm_up='first_part')", {}, 0),
        ("uniform", "Uniform", {}, 0),
        (f"uniform, windows of {WINDOW}", "Uniform", windowed, 0),
    ):
        found = measured(url, "first_batch", ref, sampler, {"batch": 256, "extra": ["index"], **options}, group)
        wanted = found["table"] + found["needed"]
        out.add(f"1e9 steps, {name}: first batch of 256", found["first"], "s", "wanted: 1")
        out.add("  the loader is ready", found["opened"], "s")
        note = f"{found['table'] / MIB:.1f} MiB of episode table, {found['needed'] / MIB:.0f} MiB of blocks; wanted: 2"
        out.add("  bytes sent, times those needed", found["sent"] / wanted, "x", note)
        out.add("  anonymous memory", found["rss"], "MiB", "wanted: 300")


def part_processes(out: Results, url: str) -> None:
    """Sixteen processes with one home, each of which reads a shuffled epoch of the windows."""
    path, options = windows(), {"window": f"Slice({WINDOW}, stride={WINDOW})", "fields": ["observation"]}
    shutil.rmtree(FAR / "shared", ignore_errors=True)
    before = sent(url)
    found = measured_at_once(url, PROCESSES, "together", "s3://b/windows", options, home="shared")
    came, seconds = sent(url) - before, max(f["end"] for f in found) - min(f["start"] for f in found)
    column = sum(f.stat().st_size for f in (path / "observation").rglob("*") if f.is_file())
    total = sum(f["samples"] for f in found)
    out.add(
        f"{PROCESSES} processes with one home, cold, each a whole epoch", total / seconds, "/s", "windows of 24 KiB"
    )
    note = f"{came / MIB:.0f} MiB"
    out.add("  bytes sent, times the column", came / column, "x", note)
    out.add("  anonymous memory of the largest", max(f["rss"] for f in found), "MiB", "wanted: 300")
    shutil.rmtree(FAR / "shared", ignore_errors=True)


def part_peers(out: Results, url: str) -> None:
    """An epoch of windows of 24 KiB by other libraries, and how well they shuffle."""
    windows()
    ours = {}
    for sampler in ("Shuffled", "Shuffled(block=340, live=4)"):  # 340 windows are 8 MiB, as the peers' chunks
        found = ours[sampler] = measured(url, "epoch", "s3://b/windows", sampler, _WINDOWS, 0, None)
        out.add(f"rlds, {sampler}", found["whole"], "/s", _shuffle(found))
    for name in LIBRARIES:
        try:
            found = _of_peer(url, name)
        except (RuntimeError, FileNotFoundError) as e:
            print(f"{name}: does not run here: {str(e).splitlines()[-1]}")
            continue
        equal = [f["whole"] for f in ours.values() if f["neighbours"] <= 1.1 * max(1.0, found["neighbours"])]
        out.add(name, found["whole"], "/s", _shuffle(found))
        out.add(f"  rlds, shuffled as well or better, against {name}", max(equal) / found["whole"], "x")


def _of_peer(url: str, name: str) -> dict[str, Any]:
    """Return the figures of an epoch of a peer; its files are there, or are written first."""
    script = str(Path(__file__).with_name("remote_peers.py"))
    found = _answer(_started(url, [str(PYTHON), script, name, url], "peers"))
    if found["windows"] != WINDOWS:
        raise RuntimeError(f"{name} gave {found['windows']:,} of {WINDOWS:,} windows")
    return found


def _shuffle(found: Mapping[str, Any]) -> str:
    return f"first batch {found['first']:.2f} s, neighbours {found['neighbours']:.1f} times"


PARTS = {
    "windows": part_windows,
    "images": part_images,
    "small": part_small,
    "billion": part_billion,
    "processes": part_processes,
    "peers": part_peers,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(WORK[sys.argv[2]](*json.loads(sys.argv[3]))))
    else:
        with server() as url:
            run_parts("remote", {name: partial(part, url=url) for name, part in PARTS.items()}, sys.argv[1:])
