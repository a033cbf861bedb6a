"""The loaders of peers over their files: iterators over one epoch, and what is in their batches."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from results import DATA

from loader.cases import Case
from loader.formats import sources
from loader.formats.sources import PLACE, URL, WINDOW, WINDOWS

Epoch = Callable[[], Iterator[Any]]
Check = Callable[[Any], Any]  # of a batch: compares it, and returns the numbers of its samples

THREADS = 2  # of those that decode in threads; and workers
TOGETHER = 256  # items that litdata shuffles together, its default
AHEAD = 2  # batches of a worker that PyTorch's DataLoader fetches ahead
CACHE = PLACE / "cache" / str(os.getpid())  # of what comes from the bucket
CHECKED = 3  # batches of a case that is timed on the disk


def near(epoch: Epoch, check: Check, each: int, unit: str, workers: int = 0) -> Case:
    """A case of batches from the disk, in the page cache.

    With workers each round has new ones, and begins when as many batches are taken as they had fetched ahead.
    """
    first = _endless(epoch)
    for _ in range(CHECKED):
        check(next(first))
    if not workers:
        return Case(first.__next__, each=each, unit=unit, seconds=1.0)
    first.close()  # its workers end

    def before() -> Callable[[], object]:
        batches = _endless(epoch)
        for _ in range((AHEAD + 1) * workers):
            next(batches)
        return batches.__next__

    return Case(each=each, unit=unit, before=before, seconds=2.0)


def far(epoch: Epoch, check: Check, count: int, unit: str) -> Case:
    """A case of a whole epoch from the bucket, from the opening on, with nothing in a cache."""

    def before() -> Callable[[], object]:
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        return lambda: [None for _ in epoch()]

    before()
    came = np.concatenate([check(batch) for batch in epoch()])
    assert len(np.unique(came)) == len(came) == count, f"{len(np.unique(came)):,} of {count:,} samples came"
    return Case(each=count, unit=unit, before=before, seconds=1e-9)


def _endless(epoch: Epoch) -> Generator[Any]:
    while True:
        yield from epoch()


def url() -> str:
    """The address of the bucket's server."""
    return os.environ[URL]


# -- ours


def rlds(ref: Any, size: int, **options: Any) -> Iterator[Any]:
    """An epoch of ours, each sample once; what comes from an address has a home of its own."""
    import rlds_cli
    from rlds_cli.loader import Loader, Shuffled

    ds = rlds_cli.open_dataset(ref, home=CACHE) if isinstance(ref, str) else ref
    return iter(Loader(ds, size, **({"sampler": Shuffled()} | options)))


def rlds_windows() -> dict[str, Any]:
    """Options of windows that do not overlap."""
    from rlds_cli.loader import Slice

    window = Slice(WINDOW, stride=WINDOW, anchors="steps")
    return {"window": window, "fields": (sources.CAMERA, "observation/state", "action", "number")}


def of_rlds(batch: Any) -> dict[str, Any]:
    """Rows of a batch of ours."""
    return {"number": batch["index"]} | {name: batch[tuple(name.split("/"))] for name in sources.NAMES}


def windows_of_rlds(batch: Any) -> dict[str, Any]:
    """Windows of a batch of ours."""
    seen = batch["observation"]
    return {"camera": seen["camera"], "state": seen["state"], "action": batch["action"], "number": batch["number"]}


# -- litdata


def litdata(place: Path, size: int, workers: int, remote: bool = False) -> Iterator[Any]:
    """Chunks of 64 MB and shuffled, by its own DataLoader.

    Items are deserialised by as many as are shuffled together, and one by one in workers, which share them out: else
    most of what is deserialised is thrown away.
    """
    import litdata as ld

    _pillow_for_torchvision()
    options: dict[str, Any] = {"batch_decode": 0 if workers else TOGETHER, "item_shuffle_window": TOGETHER}
    if remote:
        import obstore.store
        from remote_peers import plain_http

        plain_http(obstore.store)
        where = {
            "endpoint_url": url(),
            "aws_access_key_id": "x",
            "aws_secret_access_key": "y",
            "region_name": "us-east-1",
        }
        options |= {"storage_options": where, "cache_dir": str(CACHE / "litdata")}
    source = f"s3://b/{place.name}/" if remote else str(place)
    data = ld.StreamingDataset(source, shuffle=True, **options)
    return iter(ld.StreamingDataLoader(data, batch_size=size, num_workers=workers, shuffle=True))


def _pillow_for_torchvision() -> None:
    """Let litdata decode with Pillow where torchvision, whose wheel does not fit every torch, is not there."""
    from importlib.util import find_spec

    if "torchvision" in sys.modules or find_spec("torchvision") is not None:
        return
    import torch

    def decode(content: Any, mode: Any = None) -> Any:
        return torch.from_numpy(sources.decoded(content.numpy().tobytes()).copy()).permute(2, 0, 1)

    made = ModuleType("torchvision.io")
    made.decode_jpeg = made.decode_image = decode  # type: ignore[attr-defined]
    made.ImageReadMode = type("ImageReadMode", (), {"RGB": None})  # type: ignore[attr-defined]
    sys.modules["torchvision"], sys.modules["torchvision.io"] = ModuleType("torchvision"), made


def windows_of_litdata(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Windows: of JPEG images, there is a list of the pictures at each of its steps."""
    import torch

    camera = batch["camera"]
    if isinstance(camera, list):
        camera = torch.stack(camera, 1).permute(0, 1, 3, 4, 2)
    return {**batch, "camera": camera}


# -- Lance


def lance(place: Path, remote: bool = False) -> Any:
    """Open a dataset."""
    import lance as la

    if not remote:
        return la.dataset(str(place))
    options = {"aws_endpoint": url(), "allow_http": "true", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    return la.dataset(f"s3://b/{place.name}", storage_options=options | {"aws_region": "us-east-1"})


def lance_taken(place: Path, groups: Callable[[Any], Any], remote: bool = False) -> Iterator[Any]:
    """Rows by their numbers, drawn here, as tensors; from the bucket some batches at a time."""
    opened = lance(place, remote)
    taken = groups(np.random.default_rng(0))
    if not remote:
        return (tensors(opened.take(rows)) for rows in taken)
    return _pooled(lambda rows: tensors(opened.take(rows)), taken, 4)


def _pooled(work: Callable[[Any], Any], items: Any, threads: int) -> Iterator[Any]:
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, items)


def lance_loader(place: Path, size: int, remote: bool = False) -> Iterator[Any]:
    """Its dataset for PyTorch: batches of rows that follow each other, in a shuffled order."""
    from lance.sampler import ShardedBatchSampler
    from lance.torch.data import LanceDataset

    sampler = ShardedBatchSampler(0, 1, randomize=True)
    return iter(LanceDataset(lance(place, remote), size, sampler=sampler, batch_readahead=8))


def tensors(table: Any) -> dict[str, Any]:
    """The columns of a table of Arrow; images stay bytes."""
    import pyarrow as pa
    import torch

    def column(chunks: Any) -> Any:
        values = chunks.combine_chunks()
        if pa.types.is_binary(values.type):
            return values
        if pa.types.is_fixed_size_list(values.type):
            return torch.from_numpy(values.flatten().to_numpy()).reshape(len(values), -1)
        return torch.from_numpy(values.to_numpy(zero_copy_only=False))

    return {name: column(table[name]) for name in table.column_names}


_DECODING = ThreadPoolExecutor(THREADS)


def with_pictures(columns: dict[str, Any]) -> dict[str, Any]:
    """Windows of rows; JPEG images are decoded by Pillow in two threads."""
    import torch

    made = {name: values for name, values in columns.items() if name != "camera"}
    camera = columns["camera"]
    if not isinstance(camera, torch.Tensor):
        content = [camera[k].as_py() for k in range(len(camera))]
        camera = torch.from_numpy(np.stack(list(_DECODING.map(sources.decoded, content, chunksize=1))))
    made["camera"] = camera
    shape = {"camera": (sources.SIDE, sources.SIDE, 3), "number": ()}
    return {name: x.reshape(-1, WINDOW, *shape.get(name, x.shape[1:])) for name, x in made.items()}


# -- TensorDict and TorchRL


def tensordict(place: Path, groups: Callable[[Any], Any]) -> Iterator[Any]:
    """A memory-mapped TensorDict, indexed by tensors of row numbers."""
    import torch
    from tensordict import TensorDict

    td = TensorDict.load_memmap(place)
    return (td[torch.from_numpy(rows)] for rows in groups(np.random.default_rng(0)))


def of_tensordict(batch: Any) -> dict[str, Any]:
    """Rows, or windows."""
    return {"/".join(name) if isinstance(name, tuple) else name: x for name, x in batch.items(True, True)}


# -- groups of rows


def shuffled_rows(count: int, size: int) -> Callable[[Any], Any]:
    """Batches of a permutation of rows."""

    def groups(rng: Any) -> Any:
        order = rng.permutation(count)
        return [order[k : k + size] for k in range(0, count - count % size, size)]

    return groups


def shuffled_windows(flat: bool) -> Callable[[Any], Any]:
    """Batches of windows in a shuffled order: the numbers of their rows [B, 8], or flat."""

    def groups(rng: Any) -> Any:
        firsts = rng.permutation(sources.ALL) * WINDOW
        made = [firsts[k : k + WINDOWS, None] + np.arange(WINDOW) for k in range(0, sources.ALL, WINDOWS)]
        return [rows.reshape(-1) for rows in made] if flat else made

    return groups


# -- torchcodec


def torchcodec(remote: bool = False) -> Iterator[Any]:
    """Frames by `get_frames_at`, two decoders at a time; from the bucket, whole videos are fetched first."""
    import torch
    from video import Torchcodec

    found: list[Any] = list(sources.videos())
    if remote:
        import requests

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda file: requests.get(f"{url()}/b/videos/{file.name}").content, found))
    peer = Torchcodec(found, sources.STEPS)
    each = [sources.numbers(k) for k in range(sources.EPISODES)]
    columns = {name: torch.from_numpy(np.concatenate([e[name] for e in each])) for name in each[0]}
    for rows in shuffled_windows(flat=False)(np.random.default_rng(0)):
        camera = peer.batch(rows.reshape(-1))
        at = torch.from_numpy(rows)
        yield {"camera": camera.reshape(*rows.shape, *camera.shape[1:])} | {n: x[at] for n, x in columns.items()}


# -- LeRobot


def lerobot(place: Path, steps: Mapping[str, int], size: int, starts: Any, workers: int) -> Iterator[Any]:
    """Its dataset with ``delta_timestamps`` of so many steps, decoded by torchcodec, through PyTorch's DataLoader."""
    import torch

    _modules_of_lerobot()
    from lerobot.datasets import video_utils
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

    video_utils._default_decoder_cache.clear()  # workers shall not inherit decoders of this process
    fps = LeRobotDatasetMetadata("local/peers", root=place).fps
    deltas = {name: [k / fps for k in range(count)] for name, count in steps.items()}
    data = LeRobotDataset("local/peers", root=place, delta_timestamps=deltas, video_backend="torchcodec")
    chosen = torch.utils.data.SubsetRandomSampler(starts)
    return iter(torch.utils.data.DataLoader(data, size, sampler=chosen, num_workers=workers, drop_last=True))


@cache
def _modules_of_lerobot() -> None:
    """Let it find torchcodec, which is in the environment of other peers, and import without torchvision."""
    sys.path.append(str(next((DATA / "peers" / "lib").glob("python*")) / "site-packages"))
    sys.path.append(str(Path(__file__).parents[3] / "scripts"))
    from check_exports import without_torchvision

    without_torchvision()
