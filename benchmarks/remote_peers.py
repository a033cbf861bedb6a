"""Other libraries over the same windows, from the same server: run by `remote.py` in their own environment.

    python benchmarks/remote_peers.py NAME URL

Prints the figures of one epoch as JSON. The first run of a library writes its files into the served directory, in
chunks of 8 MiB. Settings are those of its documentation; each is shuffled as well as it can without reading twice.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from object_server import sent
from remote_data import EPISODES, HOME, LENGTH, ROOT, SERVED, WIDTH, WINDOW

import rlds_cli

PYTHON = ROOT.parent / "remote-peers" / "bin" / "python"
FAR = ROOT / "far"
BATCH = 64
LANCE_THREADS = 4  # as many as wait for each other's ranges


def neighbours(batches: list[Any]) -> float:
    """How often windows that follow each other in the data come in one batch, against a uniform shuffle."""
    numbers = np.concatenate(batches)
    which = np.repeat(np.arange(len(batches)), [len(b) for b in batches])
    order = np.argsort(numbers, kind="stable")
    together = float(np.mean(which[order][1:] == which[order][:-1]))
    return together / max(1e-12, (len(batches[0]) - 1) / (len(numbers) - 1))


def samples() -> Iterator[tuple[int, Any]]:
    """The windows, with their numbers."""
    column = rlds_cli.open_dataset("local/windows", home=HOME).column("observation")
    for k in range(EPISODES):
        rows = column[k * (LENGTH + 1) : (k + 1) * (LENGTH + 1) - 1]
        for j, window in enumerate(rows.reshape(-1, WINDOW * WIDTH)):
            yield k * (LENGTH // WINDOW) + j, np.ascontiguousarray(window)


def timed(url: str, batches: Iterator[Any]) -> dict[str, Any]:
    """Take an epoch of batches of window numbers, from the opening of the dataset on."""
    next(batches)
    before, order, start = sent(url), [], time.perf_counter()
    for numbers in batches:
        order.append(np.asarray(numbers).reshape(-1))
        if len(order) == 1:
            first = time.perf_counter() - start
    seconds = time.perf_counter() - start
    return {
        "whole": sum(map(len, order)) / seconds,
        "first": first,
        "sent": sent(url) - before,
        "neighbours": neighbours(order),
        "windows": len(np.unique(np.concatenate(order))),
    }


def plain_http(module: Any) -> None:
    """Let all of obstore's clients speak to a server without TLS."""
    store = module.S3Store

    def made(*args: Any, client_options: Any = None, **rest: Any) -> Any:
        return store(*args, client_options={**(client_options or {}), "allow_http": True}, **rest)

    module.S3Store = made


def litdata(url: str) -> Iterator[Any]:
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
    options = {"endpoint_url": url, "aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
    yield None
    data = ld.StreamingDataset("s3://b/litdata/", shuffle=True, storage_options=options, home=str(FAR / "litdata"))
    for batch in ld.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, shuffle=True):
        yield batch["number"]


def streaming(url: str) -> Iterator[Any]:
    _without_torchvision()
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # of a process that was killed: the next one waits for it for a minute
    name = SERVED / "b" / "streaming"
    if not name.exists():
        columns = {"number": "int", "window": "ndarray:float32"}
        with MDSWriter(out=str(name), columns=columns, size_limit=8 << 20) as out:
            for number, window in samples():
                out.write({"number": number, "window": window})
    os.environ["S3_ENDPOINT_URL"] = url
    yield None
    place = str(FAR / "streaming")
    data = StreamingDataset(remote="s3://b/streaming", local=place, shuffle=True, batch_size=BATCH, predownload=2048)
    for batch in StreamingDataLoader(data, batch_size=BATCH, num_workers=0):
        yield batch["number"]


def _without_torchvision() -> None:
    """Let streaming import without torchvision, which it takes for datasets of images."""
    from importlib.util import find_spec
    from types import ModuleType

    class Unused(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return object

    import transformers  # noqa: F401  (looks for torchvision, too)

    if find_spec("torchvision") is None:
        for part in ("", ".datasets", ".datasets.vision", ".datasets.folder", ".transforms", ".transforms.functional"):
            sys.modules[f"torchvision{part}"] = Unused(f"torchvision{part}")


def lance(url: str) -> Iterator[Any]:
    import lance as la
    import pyarrow as pa

    name = SERVED / "b" / "windows.lance"
    if not name.exists():
        width = WINDOW * WIDTH
        schema = pa.schema([("number", pa.int64()), ("window", pa.list_(pa.float32(), width))])

        def record(part: Sequence[tuple[int, Any]]) -> Any:
            flat = pa.array(np.concatenate([w for _, w in part]))
            numbers = pa.array([n for n, _ in part], pa.int64())
            return pa.record_batch([numbers, pa.FixedSizeListArray.from_arrays(flat, width)], schema=schema)

        parts = (record(part) for part in iter(partial(_some, samples(), 512), ()))
        la.write_dataset(pa.RecordBatchReader.from_batches(schema, parts), str(name))
    options = {"aws_endpoint": url, "allow_http": "true", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    options["aws_region"] = "us-east-1"
    yield None
    data = la.dataset("s3://b/windows.lance", storage_options=options)
    order = np.random.default_rng(0).permutation(data.count_rows())

    def take(part: Any) -> Any:
        table = data.take(part.tolist(), columns=["number", "window"])
        table["window"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return table["number"].to_numpy()

    with ThreadPoolExecutor(LANCE_THREADS) as pool:
        yield from pool.map(take, [order[i : i + BATCH] for i in range(0, len(order), BATCH)])


def datasets(url: str) -> Iterator[Any]:
    import datasets as hf

    name = SERVED / "b" / "parquet"
    if not name.exists():
        import pyarrow as pa
        import pyarrow.parquet as pq

        name.mkdir(parents=True)
        for k, part in enumerate(iter(partial(_some, samples(), 1000), ())):
            columns = {"number": [n for n, _ in part], "window": [w.tobytes() for _, w in part]}
            pq.write_table(pa.table(columns), name / f"{k:06}.parquet", compression="none", row_group_size=100)
    files = [f"{url}/b/parquet/{f.name}" for f in sorted(name.glob("*.parquet"))]
    yield None
    data = hf.load_dataset("parquet", data_files=files, streaming=True, split="train").shuffle(1, buffer_size=2000)
    for batch in data.iter(batch_size=BATCH):
        np.stack([np.frombuffer(w, np.float32) for w in batch["window"]])
        yield batch["number"]


def _some(one: Iterator[tuple[int, Any]], count: int) -> tuple[tuple[int, Any], ...]:
    return tuple(islice(one, count))


# Each prepares what is not timed, yields None, and then the numbers of the windows of its batches. In workers of
# PyTorch's loader, litdata is slower on two cores, and streaming at times reads shards that are not whole.
LIBRARIES: dict[str, Callable[[str], Iterator[Any]]] = {f.__name__: f for f in (litdata, streaming, lance, datasets)}


if __name__ == "__main__":
    name, url = sys.argv[1:3]
    shutil.rmtree(FAR / name, ignore_errors=True)
    print(json.dumps(timed(url, LIBRARIES[name](url))), flush=True)
    shutil.rmtree(FAR / name, ignore_errors=True)
