"""Training from an object store that answers late: beside bare requests, beside the disk, and beside other libraries.

    python benchmarks/remote.py [PART ...] [--before CHECKOUT]

Parts: see `PARTS`; all of them unless named. `AIMS` says what is wanted of a figure. ``--before``: another checkout, or
a commit, which does the same beside it with data of its own, but for ``billion``, ``processes`` and ``peers``.

`object_server.py` serves all data from ``.bench-data/remote`` on the loopback interface, each answer 30 ms late; every
figure is of a process of its own, with an empty home where it says "cold". Peers read the same bytes from the same
server, in the environment ``.bench-data/remote-peers``; those that are not there are left out. ``BENCH_EPISODES`` is
the number of episodes of the windows of 24 KiB, 15 windows each. Results go to ``bench-results/remote.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import download
import remote_data
from checkouts import ROOT as CHECKOUT
from checkouts import earlier
from object_server import sent, served
from remote_data import KIB, MIB, SERVED, WINDOW, WINDOWS
from remote_peers import BATCH, FAR, LIBRARIES, PYTHON, neighbours
from results import Results, memory, run_parts

import rlds_cli

LATENCY, AT_ONCE = 30, 64  # milliseconds, requests
PROCESSES = 16
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))

LEAST, MOST = "at least", "at most"
AIMS = {
    "windows, cold, a whole epoch: times bare ranges of 24 KiB": (LEAST, 1.12),
    "windows, cold, first 9 batches, without filling: times bare ranges of 24 KiB": (LEAST, 0.8),
    "windows: anonymous memory beyond batches": (MOST, 300),
    "images, cold: bytes a second, times bare ranges of 1 MiB, hashed": (LEAST, 0.75),
    "images, cold: bytes a second of CPU time, times bare ranges of 1 MiB, hashed": (LEAST, 0.6),
    "images, warm: times the disk": (LEAST, 1),
    "frames, warm: times the disk": (LEAST, 1),
    "small, warm: times the disk": (LEAST, 1),
    "small, cache of 400 MiB: bytes read, times the dataset": (MOST, 1.1),
    "small: anonymous memory beyond batches": (MOST, 300),
    "1e9 steps, in order: first batch of 256": (MOST, 1),
    "1e9 steps, blocks shuffled: first batch of 256": (MOST, 1),
    "1e9 steps, uniform: first batch of 256": (MOST, 3),
    "1 GB, download into memory: times requests and sha256": (LEAST, 0.85),
    "1 GB, push to a directory: times as long as before": (MOST, 1.05),
    "1 GB, download from a directory: times as long as before": (MOST, 1.05),
    "16 processes: anonymous memory of the largest": (MOST, 300),
}


@dataclass(frozen=True)
class Side:
    """A checkout, and the bucket of its data."""

    name: str = ""
    checkout: Path = CHECKOUT
    bucket: str = "b"

    def __call__(self, what: str) -> str:
        """Name a figure."""
        return f"{what}, {self.name}" if self.name else what

    def made(self, url: str, name: str) -> str:
        """Make a dataset of `remote_data`, and push it; return its directory."""
        return str(measured(url, "prepare", name, side=self)["path"])

    def ref(self, name: str) -> str:
        """Return the address of a dataset."""
        return f"s3://{self.bucket}/{name}"


NOW = Side()


def add(out: Results, what: str, value: float, unit: str, note: str = "") -> None:
    """Keep a figure, beside what is wanted of it."""
    if what in AIMS:
        kind, limit = AIMS[what]
        reached = value >= limit if kind == LEAST else value <= limit
        note = f"{kind} {limit:g}: {'reached' if reached else 'missed'}{'; ' if note else ''}{note}"
    out.add(what, value, unit, note)


def measured(url: str, what: str, *arguments: Any, home: str = "", side: Side = NOW) -> dict[str, Any]:
    """Run one of `WORK` in a process of its own, in an empty home unless one is named."""
    if not home:
        shutil.rmtree(FAR / "empty", ignore_errors=True)
    return _answer(_started(url, [sys.executable, __file__, "--work", what, json.dumps([url, *arguments])], home, side))


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


def _started(url: str, command: list[str], home: str, side: Side = NOW) -> subprocess.Popen[str]:
    where = {
        "RLDS_HOME": str(FAR / (home or "empty")),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # for peers
        "PYTHONPATH": str(side.checkout),
        "BENCH_BUCKET": side.bucket,
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
    """Open a dataset and make its loader. ``options``: window, batch, fields and fill."""
    from rlds_cli.loader import Loader, bench

    fields = options.get("fields")
    return Loader(
        rlds_cli.open_dataset(ref, cache=cache, fill=options.get("fill", True)),
        options.get("batch", BATCH),
        window=bench.parse_window(options.get("window", "Transition")),
        sampler=bench.parse_sampler(sampler),
        fields=fields and [... if name == "..." else name for name in fields],
        backend="numpy",
        seed=seed,
    )


def _imported() -> None:
    """Import what figures are not about: faces import a module when one of its names is first used."""
    for name in ("loader.loader", "loader.opening", "loader.bench", "places.remote.store", "store.growing.opening"):
        importlib.import_module(f"rlds_cli.{name}")
    importlib.import_module("obstore.store")


def epoch(url: str, ref: str, sampler: str, options: dict[str, Any], most: int, cache: str | None) -> dict[str, Any]:
    """An epoch, or ``most`` batches of it; the first batch by itself, from the opening of the dataset on."""
    _imported()
    before, rss = sent(url), memory("RssAnon")
    start, busy = time.perf_counter(), time.process_time()
    loader = _loader(ref, sampler, options, cache)
    numbered, size = "index" in loader.fields, loader.batch_size
    batches = iter(loader)
    first = next(batches)
    took, came = time.perf_counter() - start, sent(url) - before
    count, order = 1, [_numbers(first)] if numbered else []
    begun, given = time.perf_counter(), 0
    later = (batch for _ in range(1, options.get("passes", 1)) for batch in loader)
    for batch in chain(batches, later):
        count += 1
        given += sum(x.nbytes for _, x in batch.leaves())
        if numbered:
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
        "cpu": time.process_time() - busy,
        "given": given / seconds,
        "sent": sent(url) - before,
        "waiting": stats.waited / max(1e-9, stats.seconds),
        "rss": memory("RssAnon") - rss,
        "neighbours": neighbours(order) if numbered else 0.0,
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
    block, needed = dataset.store.files.blocks.block, 0
    for f in dataset.schema.values():
        width = np.dtype(f.dtype).itemsize * int(np.prod(f.shape))
        needed += len(np.unique(steps * width // block)) * block
    table = dataset.store.files.size_of("episodes")
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

    store = S3Store(
        remote_data.BUCKET, endpoint=url, virtual_hosted_style_request=False, client_options={"allow_http": True}
    )
    objects = [(p.name, p.stat().st_size) for p in sorted((SERVED / remote_data.BUCKET / name / "objects").iterdir())]
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
        start, busy = time.perf_counter(), time.process_time()
        total = sum(pool.map(fetch, ranges))
        seconds = time.perf_counter() - start
    cpu = time.process_time() - busy
    return {"samples": len(ranges) / seconds, "given": total / seconds, "cpu": cpu / total}


def prepare(url: str, name: str) -> dict[str, Any]:
    """Make a dataset and push it, where it is not there."""
    return {"path": str(getattr(remote_data, name)() or "")}


def fetched(url: str, address: str, sha256: str, below: str) -> dict[str, Any]:
    """The download of a file of 1 GB, by the engine of all downloads."""
    return {"seconds": download.ours(address, sha256, Path(below))}


def pushed(url: str, to: str) -> dict[str, Any]:
    """The push of 1 GB to a directory."""
    start = time.perf_counter()
    rlds_cli.push("local/gigabyte", to, pages=False, home=remote_data.HOME)
    return {"seconds": time.perf_counter() - start}


def pulled(url: str, address: str) -> dict[str, Any]:
    """The download of 1 GB from a directory, into an empty home."""
    shutil.rmtree(remote_data.HOME / "origins", ignore_errors=True)  # it would lead back to the home that pushed
    start = time.perf_counter()
    rlds_cli.download(address, name="local/copy")
    return {"seconds": time.perf_counter() - start}


WORK: dict[str, Callable[..., dict[str, Any]]] = {
    f.__name__: f for f in (epoch, first_batch, together, bare, prepare, fetched, pushed, pulled)
}


# -- parts

_WINDOWS = {"window": f"Slice({WINDOW}, stride={WINDOW})"}


def part_windows(out: Results, url: str, sides: Sequence[Side]) -> None:
    """Windows of 24 KiB, shuffled as a whole, against bare requests for as many ranges and for the same blocks."""
    options = {**_WINDOWS, "fields": ["observation", "index"]}
    paths = {side: side.made(url, "windows") for side in sides}
    runs: dict[tuple[Side, str], list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for side, path in paths.items():
            ref = side.ref("windows")
            for name, work in {
                "one": ("bare", "windows", 24 * KIB, WINDOWS),
                "blocks": ("bare", "windows", MIB, 0),
                "cold": ("epoch", ref, "Shuffled", options, 0, None),
                "apart": ("epoch", ref, "Shuffled", options, 9, None),
                "alone": ("epoch", ref, "Shuffled", {**options, "fill": False}, 9, None),
                "local": ("epoch", path, "Shuffled", options, 0, None),
            }.items():
                runs.setdefault((side, name), []).append(measured(url, *work, side=side))
    for side in sides:
        of = {
            name: {key: median(f[key] for f in found) for key in found[0]}
            for (whose, name), found in runs.items()
            if whose == side
        }
        one, blocks, cold = of["one"]["samples"], of["blocks"], of["cold"]
        add(out, side("bare obstore, ranges of 24 KiB"), one, "/s", f"{of['one']['given'] / MIB:.0f} MiB/s")
        add(out, side("bare obstore, ranges of 1 MiB"), blocks["samples"], "/s", f"{blocks['given'] / MIB:.0f} MiB/s")
        add(out, side("windows, cold, a whole epoch"), cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
        add(out, side("windows, cold, a whole epoch: times bare ranges of 24 KiB"), cold["whole"] / one, "x")
        for name, what in (("apart", "first 9 batches"), ("alone", "first 9 batches, without filling")):
            note = f"the first apart; {of[name]['sent'] / (9 * BATCH) / KIB:.0f} KiB sent for each window"
            apart = of[name]["samples"]
            add(out, side(f"windows, cold, {what}: times bare ranges of 24 KiB"), apart / one, "x", note)
        ratio = cold["whole"] * 24 * KIB / blocks["given"]
        add(out, side("windows, cold: bytes a second, times bare ranges of 1 MiB"), ratio, "x")
        add(out, side("windows, cold: times the disk"), cold["whole"] / of["local"]["whole"], "x")
        add(out, side("windows: anonymous memory beyond batches"), cold["rss"], "MiB")


def part_images(out: Results, url: str, sides: Sequence[Side]) -> None:
    """Images of 64 x 64, blocks shuffled, as they are and as JPEG: cold, warm, and local."""
    for name, side in ((name, side) for name in ("images", "frames") for side in sides):
        path, ref = side.made(url, name), side.ref(name)
        sampler, options = "Shuffled(block=500, live=8)", {"passes": 5 if name == "images" else 1}
        cold = measured(url, "epoch", ref, sampler, {}, 0, None, home="images", side=side)
        bare = measured(url, "bare", name, MIB, 0, True, side=side)
        limit = bare["given"]
        warm = measured(url, "epoch", ref, sampler, options, 0, None, home="images", side=side)
        local = measured(url, "epoch", path, sampler, options, 0, None, side=side)
        shutil.rmtree(FAR / "images", ignore_errors=True)
        add(out, side(f"{name}, cold, a whole epoch"), cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
        ratio = cold["sent"] / cold["seconds"] / limit
        add(out, side(f"{name}, cold: bytes a second, times bare ranges of 1 MiB, hashed"), ratio, "x")
        ratio = bare["cpu"] / (cold["cpu"] / cold["sent"])  # the server shares the cores of this machine
        add(out, side(f"{name}, cold: bytes a second of CPU time, times bare ranges of 1 MiB, hashed"), ratio, "x")
        add(out, side(f"{name}, from the disk"), local["samples"], "/s", f"{local['given'] / MIB:.0f} MiB/s")
        add(out, side(f"{name}, cold: times the disk"), cold["whole"] / local["samples"], "x")
        add(out, side(f"{name}, warm: times the disk"), warm["samples"] / local["samples"], "x")


def part_small(out: Results, url: str, sides: Sequence[Side]) -> None:
    """Small rows: the first batch, a block shuffle with a small cache, an epoch from a warm cache."""
    options, shuffled = {"batch": 256}, "Shuffled(block=1000000, live=2)"
    for side in sides:
        path, ref = side.made(url, "small"), side.ref("small")
        first = measured(url, "epoch", ref, "Sequential", options, 2, None, side=side)
        add(out, side("small, first batch, in order"), first["first"], "s", f"{first['first bytes'] / MIB:.1f} MiB")
        cold = measured(url, "epoch", ref, shuffled, options, 0, "400MiB", side=side)
        stored = sum(f.stat().st_size for f in Path(path).rglob("*") if f.is_file())
        note = f"{cold['first bytes'] / MIB:.1f} MiB"
        add(out, side("small, first batch, blocks shuffled"), cold["first"], "s", note)
        note = f"{cold['waiting']:.0%} waiting"
        add(out, side("small, an epoch of blocks shuffled, cache of 400 MiB"), cold["whole"], "/s", note)
        add(out, side("small, cache of 400 MiB: bytes read, times the dataset"), cold["sent"] / stored, "x")
        add(out, side("small: anonymous memory beyond batches"), cold["rss"], "MiB")
        filled = measured(url, "epoch", ref, "Sequential", options, 0, None, home="small", side=side)
        warm = measured(url, "epoch", ref, "Shuffled", options, 20000, None, home="small", side=side)
        local = measured(url, "epoch", path, "Shuffled", options, 20000, None, side=side)
        note = f"{filled['waiting']:.0%} waiting"
        add(out, side("small, an epoch in order, cold"), filled["whole"], "/s", note)
        add(out, side("small, shuffled from a warm home"), warm["samples"], "/s")
        add(out, side("small, warm: times the disk"), warm["samples"] / local["samples"], "x")
        shutil.rmtree(FAR / "small", ignore_errors=True)


def part_billion(out: Results, url: str, sides: Sequence[Side]) -> None:
    """The first batch of 1e9 steps, from the opening on, in an empty home: the median of the rounds.

    An earlier checkout takes no part: the dataset is written past its stores.
    """
    sides = [NOW]
    shuffled = "Shuffled(block=1000000, live=2)"
    windowed = {"window": f"Slice({WINDOW})"}
    for side in sides:
        side.made(url, "billion")
    for name, sampler, options, group in (
        ("in order", "Sequential", {}, 0),
        ("blocks shuffled", shuffled, {}, 2_000_000),
        (f"in order, windows of {WINDOW}", "Sequential", windowed, 0),
        ("uniform, from a first part", "Uniform(warm_up='first_part')", {}, 0),
        ("uniform", "Uniform", {}, 0),
        (f"uniform, windows of {WINDOW}", "Uniform", windowed, 0),
    ):
        how = {"batch": 256, "fields": ["...", "index"], **options}
        runs: dict[Side, list[dict[str, Any]]] = {}
        for _ in range(ROUNDS):
            for side in sides:
                found = measured(url, "first_batch", side.ref("billion"), sampler, how, group, side=side)
                runs.setdefault(side, []).append(found)
        for side in sides:
            told = {key: median(f[key] for f in runs[side]) for key in runs[side][0]}
            what = f"1e9 steps, {name}"
            note = f"ready after {told['opened']:.2f} s; {told['rss']:.0f} MiB of anonymous memory"
            add(out, side(f"{what}: first batch of 256"), told["first"], "s", note)
            note = f"{told['table'] / MIB:.1f} MiB of episode table, {told['needed'] / MIB:.0f} MiB of blocks"
            wanted = told["table"] + told["needed"]
            add(out, side(f"{what}: bytes sent, times those needed"), told["sent"] / wanted, "x", note)


def part_gigabyte(out: Results, url: str, sides: Sequence[Side]) -> None:
    """1 GB from a web server beside requests, and to a directory and back beside a copy: rounds take turns."""
    file, store = remote_data.ROOT / "gigabyte.bin", remote_data.ROOT / "store"
    sha256 = download.noise(file, download.SIZE)
    taken: dict[str, list[float]] = {}
    below = download.MEMORY if download.MEMORY.is_dir() else remote_data.ROOT
    with download.served(file) as address:
        for _ in range(2 * ROUNDS + 1):
            taken.setdefault("hashed", []).append(download.with_requests(address, sha256))
            taken.setdefault("plain", []).append(download.with_requests(address, None))
            for side in sides:
                found = measured(url, "fetched", address, sha256, str(below), side=side)["seconds"]
                taken.setdefault(side("download"), []).append(found)
    file.unlink()
    add(out, "1 GB, requests without a hash, nothing written", median(taken["plain"]), "s")
    for side in sides:
        add(out, side("1 GB, download into memory"), median(taken[side("download")]), "s")
        for name, peer in (("without a hash", "plain"), ("and sha256", "hashed")):
            ratio = median(a / b for a, b in zip(taken[peer], taken[side("download")], strict=True))
            add(out, side(f"1 GB, download into memory: times requests {name}"), ratio, "x")

    for side in sides:
        side.made(url, "gigabyte")
    for _ in range(ROUNDS):
        for side in sides:
            shutil.rmtree(store, ignore_errors=True)
            shutil.rmtree(FAR / "empty", ignore_errors=True)
            os.sync()
            for what, work in (("push to", "pushed"), ("download from", "pulled")):
                found = measured(url, work, str(store), side=side)["seconds"]
                taken.setdefault(side(what), []).append(found)
    shutil.rmtree(store, ignore_errors=True)
    shutil.rmtree(FAR / "empty", ignore_errors=True)
    for what in ("push to", "download from"):
        for side in sides:
            add(out, side(f"1 GB, {what} a directory"), median(taken[side(what)]), "s")
        if len(sides) > 1:
            ratio = median(a / b for a, b in zip(taken[what], taken[sides[0](what)], strict=True))
            add(out, f"1 GB, {what} a directory: times as long as before", ratio, "x")


def part_processes(out: Results, url: str, sides: Sequence[Side]) -> None:
    """Sixteen processes with one home, each of which reads a shuffled epoch of the windows."""
    path, options = (
        Path(NOW.made(url, "windows")),
        {"window": f"Slice({WINDOW}, stride={WINDOW})", "fields": ["observation"]},
    )
    shutil.rmtree(FAR / "shared", ignore_errors=True)
    before = sent(url)
    found = measured_at_once(url, PROCESSES, "together", "s3://b/windows", options, home="shared")
    came, seconds = sent(url) - before, max(f["end"] for f in found) - min(f["start"] for f in found)
    column = sum(f.stat().st_size for f in (path / "observation").rglob("*") if f.is_file())
    total = sum(f["samples"] for f in found)
    what = f"{PROCESSES} processes"
    add(out, f"{what} with one home, cold, each a whole epoch", total / seconds, "/s", "windows of 24 KiB")
    add(out, f"{what}: bytes sent, times the column", came / column, "x", f"{came / MIB:.0f} MiB")
    add(out, f"{what}: anonymous memory of the largest", max(f["rss"] for f in found), "MiB")
    shutil.rmtree(FAR / "shared", ignore_errors=True)


def part_peers(out: Results, url: str, sides: Sequence[Side]) -> None:
    """An epoch of windows of 24 KiB by other libraries, and how well they shuffle."""
    NOW.made(url, "windows")
    ours = {}
    for sampler in ("Shuffled", "Shuffled(block=340, live=4)"):  # 340 windows are 8 MiB, as the peers' chunks
        found = ours[sampler] = measured(
            url, "epoch", "s3://b/windows", sampler, {**_WINDOWS, "fields": ["...", "index"]}, 0, None
        )
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
    "gigabyte": part_gigabyte,
    "processes": part_processes,
    "peers": part_peers,
}


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--before", metavar="CHECKOUT", help="a directory or a commit")
    given = parser.parse_args()
    sides = [Side("before", earlier(given.before), "before"), NOW] if given.before else [NOW]
    shutil.rmtree(FAR, ignore_errors=True)  # homes that an interrupted run left are not cold
    with served(SERVED, LATENCY) as url:
        run_parts("remote", {name: partial(p, url=url, sides=sides) for name, p in PARTS.items()}, given.parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(WORK[sys.argv[2]](*json.loads(sys.argv[3]))))
    else:
        main()
