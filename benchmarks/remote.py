"""Training from an object store that answers late: beside bare requests, beside the disk, and beside other libraries.

    python benchmarks/remote.py [PART ...]

Parts: see `PARTS`; all of them unless named. `object_server.py` serves all data from ``.bench-data/remote`` on the
loopback interface, each answer 30 ms late; every figure is of a process of its own, with an empty home where it says
"cold". Peers read the same bytes from the same server, from ``.bench-data/peers`` where they are installed there; those
that are not are left out. Results go to ``bench-results/remote.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from results import DATA, Results, memory, run_parts

import rlds_cli
from rlds_cli.errors import DatasetNotFound

ROOT = (DATA / "remote").resolve()
SERVED, FAR = ROOT / "served", ROOT / "far"  # what the server gives; homes of those who read it
PEERS = (DATA / "peers").resolve()
LATENCY, AT_ONCE = 30, 64  # milliseconds, requests
LENGTH, WIDTH, WINDOW = 240, 384, 16  # windows of 16 rows of 1.5 KiB
EPISODES = int(os.environ.get("BENCH_EPISODES", "700"))
WINDOWS = EPISODES * LENGTH // WINDOW
KIB, MIB = 1 << 10, 1 << 20
BATCH = 64


# -- data


def windows() -> Path:
    """10,500 windows of 24 KiB, 250 MiB: pushed, and the directory of the original."""
    return pushed("windows", lambda k, rng: rng.standard_normal((LENGTH + 1, WIDTH), np.float32), EPISODES)


def images() -> Path:
    """Images of 64 x 64, 12 KiB each, 300 MiB."""
    return pushed("images", lambda k, rng: rng.integers(0, 256, (LENGTH + 1, 64, 64, 3), np.uint8), 100)


def to_jpeg(episode: dict[str, Any]) -> dict[str, Any]:
    """Encode the images of an episode, blurred so that they are as large as those of cameras."""
    x = episode["observation"].astype(np.float32)
    for axis in (1, 2):
        x = (x + np.roll(x, 1, axis) + np.roll(x, 2, axis) + np.roll(x, 3, axis)) / 4
    return {"observation": rlds_cli.preprocess.encode_frames(x.astype(np.uint8), "jpeg")}


def frames() -> Path:
    """The same images as JPEG."""
    images()
    home, to = ROOT / "home", SERVED / "b" / "frames"
    found = rlds_cli.preprocess.run("local/images", to_jpeg, "jpeg", cache_dir=home)
    if not (to / "rlds.json").exists():
        rlds_cli.push(found.id, to, cache_dir=home)
        shutil.rmtree(home / "origins", ignore_errors=True)
    return found.path


def small() -> Path:
    """Eight million steps of 100 bytes, 800 MiB."""
    return pushed("small", lambda k, rng: rng.standard_normal((4 * LENGTH + 1, 17), np.float32), 8000, 4 * LENGTH)


def pushed(name: str, observations: Callable[[int, Any], Any], episodes: int, length: int = LENGTH) -> Path:
    home, to = ROOT / "home", SERVED / "b" / name
    try:
        found = rlds_cli.open_dataset(f"local/{name}", cache_dir=home)
    except DatasetNotFound:
        rng = np.random.default_rng(0)
        found = rlds_cli.create(
            f"local/{name}",
            (
                {
                    "observation": observations(k, rng),
                    "action": rng.standard_normal((length, 6), np.float32),
                    "next": {"reward": rng.standard_normal(length, np.float32), "truncated": True},
                }
                for k in range(episodes)
            ),
            cache_dir=home,
        )
    if not (to / "rlds.json").exists():
        rlds_cli.push(f"local/{name}", to, cache_dir=home)
        shutil.rmtree(home / "origins", ignore_errors=True)  # the address shall not lead back to this home
    return found.path


@contextmanager
def server(latency: float = LATENCY) -> Iterator[str]:
    """Serve everything below `SERVED`; give the URL."""
    SERVED.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("object_server.py")), str(SERVED), str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def sent(url: str) -> int:
    return int(json.loads(urlopen(f"{url}/?counts").read())[1])


def measured(url: str, what: str, *arguments: Any, home: str = "", **environment: str) -> dict[str, Any]:
    """Run one of `WORK` in a process of its own, in an empty home unless one is named."""
    place = FAR / (home or "empty")
    if not home:
        shutil.rmtree(place, ignore_errors=True)
    where = {
        "RLDS_HOME": str(place),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # for peers
        "PYTHONPATH": os.pathsep.join([*(p for p in sys.path if p), str(PEERS)]),
    }
    command = [sys.executable, __file__, "--work", what, json.dumps([url, *arguments])]
    environ = os.environ | where | environment
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- work, in processes of their own


def epoch(url: str, ref: str, sampler: str, options: dict[str, Any], most: int, cache: str | None) -> dict[str, Any]:
    """An epoch, or ``most`` batches of it; the first batch by itself, from the opening of the dataset on."""
    from rlds_cli import bench
    from rlds_cli.loader import Loader

    before, rss = sent(url), memory("RssAnon")
    start = time.perf_counter()
    dataset = rlds_cli.open_dataset(ref, cache=cache) if cache else rlds_cli.open_dataset(ref)
    window = bench.parse_window(options.get("window", "Transition"))
    extra, size = options.get("extra", ()), options.get("batch", BATCH)
    loader = Loader(
        dataset,
        size,
        window=window,
        sampler=bench.parse_sampler(sampler),
        fields=options.get("fields"),
        extra=extra,
        backend="numpy",
        seed=1,
    )
    batches = iter(loader)
    first = next(batches)
    took, came = time.perf_counter() - start, sent(url) - before
    count, order = 1, [np.asarray(first["index"]).reshape(size, -1)[:, 0]] if extra else []
    begun, given = time.perf_counter(), 0
    later = (batch for _ in range(1, options.get("passes", 1)) for batch in loader)
    for batch in chain(batches, later):
        count += 1
        given += sum(x.nbytes for _, x in batch.leaves())
        if extra:
            order.append(np.asarray(batch["index"]).reshape(len(batch["index"]), -1)[:, 0])
        if count == most:
            break
    seconds = time.perf_counter() - begun
    stats = loader.stats()
    return {
        "first": took,
        "first bytes": came,
        "samples": (count - 1) * size / seconds,
        "whole": count * size / (time.perf_counter() - start),
        "given": given / seconds,
        "all given": given + sum(x.nbytes for _, x in first.leaves()),
        "sent": sent(url) - before,
        "waiting": stats.waited / max(1e-9, stats.seconds),
        "rss": memory("RssAnon") - rss,
        "neighbours": neighbours(order) if extra else 0.0,
    }


def neighbours(batches: list[Any]) -> float:
    """How often windows that follow each other in the data come in one batch, against a uniform shuffle."""
    numbers = np.concatenate(batches)
    which = np.repeat(np.arange(len(batches)), [len(b) for b in batches])
    order = np.argsort(numbers, kind="stable")
    together = float(np.mean(which[order][1:] == which[order][:-1]))
    return together / max(1e-12, (len(batches[0]) - 1) / (len(numbers) - 1))


def bare(url: str, name: str, size: int, count: int) -> dict[str, Any]:
    """Bare obstore: ranges of ``size`` bytes of the pushed objects, 64 at a time."""
    import obstore
    from obstore.store import S3Store

    store = S3Store("b", endpoint=url, virtual_hosted_style_request=False, client_options={"allow_http": True})
    objects = [(p.name, p.stat().st_size) for p in sorted((SERVED / "b" / name / "objects").iterdir())]
    ranges = [(f"{name}/objects/{o}", at) for o, n in objects for at in range(0, n - size + 1, size)]
    np.random.default_rng(0).shuffle(ranges)
    ranges = (ranges * (1 + count // max(1, len(ranges))))[:count] if count else ranges

    def fetch(one: tuple[str, int]) -> int:
        return len(obstore.get_range(store, one[0], start=int(one[1]), length=size))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, ranges[:AT_ONCE]))  # connections
        start = time.perf_counter()
        total = sum(pool.map(fetch, ranges))
        seconds = time.perf_counter() - start
    return {"samples": len(ranges) / seconds, "given": total / seconds}


# -- peers: an epoch of windows of 24 KiB, as shuffled as they can


def samples() -> Iterator[tuple[int, Any]]:
    """The windows, with their numbers."""
    column = rlds_cli.open_dataset("local/windows", cache_dir=ROOT / "home").column("observation")
    for k in range(EPISODES):
        rows = column[k * (LENGTH + 1) : (k + 1) * (LENGTH + 1) - 1]
        for j, window in enumerate(rows.reshape(-1, WINDOW * WIDTH)):
            yield k * (LENGTH // WINDOW) + j, np.ascontiguousarray(window)


def timed(url: str, batches: Iterator[Any], start: float) -> dict[str, Any]:
    """Take an epoch of batches of window numbers."""
    before, order = sent(url), []
    for numbers in batches:
        order.append(np.asarray(numbers).reshape(-1))
        if len(order) == 1:
            first = time.perf_counter() - start
    seconds = time.perf_counter() - start
    count = sum(map(len, order))
    return {
        "whole": count / seconds,
        "first": first,
        "sent": sent(url) - before,
        "neighbours": neighbours(order),
        "count": count,
    }


def plain_http(module: Any) -> None:
    """Let all of obstore's clients speak to a server without TLS."""
    store = module.S3Store

    def made(*args: Any, client_options: Any = None, **rest: Any) -> Any:
        return store(*args, client_options={**(client_options or {}), "allow_http": True}, **rest)

    module.S3Store = made


def litdata(url: str) -> dict[str, Any]:
    import litdata as ld
    import obstore.store

    name = SERVED / "b" / "litdata"
    if not name.exists():
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(name), chunk_bytes="8MB")
        for i, (number, window) in enumerate(samples()):
            writer.add_item(i, {"number": number, "window": window})
        writer.done()
        writer.merge()
    plain_http(obstore.store)
    start = time.perf_counter()
    options = {"endpoint_url": url, "aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
    data = ld.StreamingDataset("s3://b/litdata/", shuffle=True, storage_options=options, cache_dir=str(FAR / "litdata"))
    loader = ld.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, shuffle=True)
    return timed(url, (b["number"] for b in loader), start)


def streaming(url: str) -> dict[str, Any]:
    from types import ModuleType

    class Unused(ModuleType):
        """A module of torchvision: it is imported for datasets of images, which are not used here."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return object

    import transformers  # noqa: F401  (looks for torchvision, too)

    if find_spec("torchvision") is None:
        for part in ("", ".datasets", ".datasets.vision", ".datasets.folder", ".transforms", ".transforms.functional"):
            sys.modules[f"torchvision{part}"] = Unused(f"torchvision{part}")
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    name = SERVED / "b" / "streaming"
    if not name.exists():
        columns = {"number": "int", "window": "ndarray:float32"}
        with MDSWriter(out=str(name), columns=columns, size_limit=8 << 20) as out:
            for number, window in samples():
                out.write({"number": number, "window": window})
    os.environ["S3_ENDPOINT_URL"] = url
    start = time.perf_counter()
    place = FAR / "streaming"
    data = StreamingDataset(
        remote="s3://b/streaming",
        local=str(place),
        shuffle=True,
        batch_size=BATCH,
        shuffle_algo="py1e",
        predownload=2048,
    )
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=0)
    return timed(url, (b["number"] for b in loader), start)


def lance(url: str) -> dict[str, Any]:
    import lance as la
    import pyarrow as pa

    name = SERVED / "b" / "windows.lance"
    if not name.exists():
        width = WINDOW * WIDTH
        schema = pa.schema([("number", pa.int64()), ("window", pa.list_(pa.float32(), width))])

        def tables() -> Iterator[Any]:
            part: list[tuple[int, Any]] = []
            for one in samples():
                part.append(one)
                if len(part) == 512:
                    yield batch(part)
                    part = []
            if part:
                yield batch(part)

        def batch(part: list[tuple[int, Any]]) -> Any:
            flat = pa.array(np.concatenate([w for _, w in part]))
            numbers = pa.array([n for n, _ in part], pa.int64())
            return pa.record_batch([numbers, pa.FixedSizeListArray.from_arrays(flat, width)], schema=schema)

        la.write_dataset(pa.RecordBatchReader.from_batches(schema, tables()), str(name))
    start = time.perf_counter()
    options = {"aws_endpoint": url, "allow_http": "true", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    options["aws_region"] = "us-east-1"
    data = la.dataset("s3://b/windows.lance", storage_options=options)
    order = np.random.default_rng(0).permutation(data.count_rows())
    parts = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    with ThreadPoolExecutor(4) as pool:  # as many as wait for each other's ranges

        def take(part: Any) -> Any:
            table = data.take(part.tolist(), columns=["number", "window"])
            table["window"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            return table["number"].to_numpy()

        return timed(url, iter(pool.map(take, parts)), start)


def datasets(url: str) -> dict[str, Any]:
    import datasets as hf

    name = SERVED / "b" / "parquet"
    if not name.exists():
        import pyarrow as pa
        import pyarrow.parquet as pq

        name.mkdir(parents=True)
        found = list(samples())
        for k in range(0, len(found), 1000):
            part = found[k : k + 1000]
            columns = {"number": [n for n, _ in part], "window": [w.tobytes() for _, w in part]}
            pq.write_table(pa.table(columns), name / f"{k:06}.parquet", compression="none", row_group_size=100)
    files = [f"{url}/b/parquet/{f.name}" for f in sorted(name.glob("*.parquet"))]
    start = time.perf_counter()
    data = hf.load_dataset("parquet", data_files=files, streaming=True, split="train").shuffle(1, buffer_size=2000)

    def batches() -> Iterator[Any]:
        for batch in data.iter(batch_size=BATCH):
            np.stack([np.frombuffer(w, np.float32) for w in batch["window"]])
            yield batch["number"]

    return timed(url, batches(), start)


WORK: dict[str, Callable[..., dict[str, Any]]] = {
    f.__name__: f for f in (epoch, bare, litdata, streaming, lance, datasets)
}


# -- parts

_WINDOWS = {"window": f"Slice({WINDOW}, stride={WINDOW})", "extra": ["index"]}


def part_windows(out: Results, url: str) -> None:
    """Windows of 24 KiB, shuffled as a whole, against bare requests for as many ranges and for the same blocks."""
    path = windows()
    one = measured(url, "bare", "windows", 24 * KIB, WINDOWS)
    blocks = measured(url, "bare", "windows", MIB, 0)
    options = {**_WINDOWS, "fields": ["observation"]}
    cold = measured(url, "epoch", "s3://b/windows", "Shuffled", options, 0, None)
    local = measured(url, "epoch", str(path), "Shuffled", options, 0, None)
    out.add("bare obstore, ranges of 24 KiB", one["samples"], "/s", f"{one['given'] / MIB:.0f} MiB/s")
    out.add("bare obstore, ranges of 1 MiB", blocks["samples"], "/s", f"{blocks['given'] / MIB:.0f} MiB/s")
    out.add("windows of 24 KiB, cold, a whole epoch", cold["whole"], "/s", f"{cold['waiting']:.0%} waiting")
    out.add("  against bare ranges of 24 KiB", cold["whole"] / one["samples"], "x", "wanted: 0.8")
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


def part_peers(out: Results, url: str) -> None:
    """An epoch of windows of 24 KiB by other libraries, and how well they shuffle."""
    windows()
    ours = measured(url, "epoch", "s3://b/windows", "Shuffled", _WINDOWS, 0, None)
    note = f"first batch {ours['first']:.2f} s, neighbours {ours['neighbours']:.1f} times"
    out.add("rlds, Shuffled", ours["whole"], "/s", note)
    sys.path.append(str(PEERS))
    for name in ("litdata", "streaming", "lance", "datasets"):
        if find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        try:
            measured(url, name)  # which writes the files, the first time
        except RuntimeError as e:
            print(f"{name}: does not run here: {str(e).splitlines()[-1]}")
            continue
        shutil.rmtree(FAR / name, ignore_errors=True)
        found = measured(url, name)
        note = f"first batch {found['first']:.2f} s, neighbours {found['neighbours']:.1f} times"
        out.add(name, found["whole"], "/s", note)
        out.add(f"  rlds against {name}", ours["whole"] / found["whole"], "x")
        shutil.rmtree(FAR / name, ignore_errors=True)


PARTS = {"windows": part_windows, "images": part_images, "small": part_small, "peers": part_peers}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(WORK[sys.argv[2]](*json.loads(sys.argv[3]))))
    else:
        with server() as url:
            run_parts("remote", {name: partial(part, url=url) for name, part in PARTS.items()}, sys.argv[1:])
