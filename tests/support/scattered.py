"""Datasets whose episodes are stored in any order, with rows of no episode between them, and anything in fillers."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import rlds_cli
from rlds_cli.base.files import arrays
from rlds_cli.dataset import Dataset
from rlds_cli.store import Store, compression, open_store, sealing
from rlds_cli.store.columns import has_row_digests
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.ted import VIDEO, Field

LENGTHS = (5, 1, 3, 40, 2, 7, 1, 64, 4)
GARBAGE = {"b": True, "i": 1_000_003, "u": 77, "f": np.nan}


@cache
def camera(episode: int, step: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng((episode, step)).integers(0, 256, (8, 10, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


def episodes(*, plain: bool = False) -> list[dict[str, Any]]:
    """One episode of every kind: with and without its final observation, with all ends, with terminals inside.

    Plain ones have a single observation, and neither images nor texts.
    """
    return [_episode(k, length, plain) for k, length in enumerate(LENGTHS)]


def _episode(k: int, steps: int, plain: bool) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    rows, end = steps + (k % 3 != 0), np.arange(steps) == steps - 1
    terminated, truncated = end & (k % 2 == 0), end & (k % 4 == 1)
    terminated[: steps // 8] |= k == 3
    e: dict[str, Any] = {
        "observation": {"state": rng.normal(size=(rows, 3)).astype(np.float32), "t": np.arange(rows)},
        "action": rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        "info": {"qpos": rng.normal(size=(steps, 2))},
        "next": {"reward": rng.normal(size=steps), "terminated": terminated, "truncated": truncated},
        "episode": {"task": f"task {k % 2}", "score": k / 2},
    }
    if plain:
        return {**e, "observation": e["observation"]["state"]}
    e["observation"]["camera"] = [camera(k, t) for t in range(rows)]
    e["info"]["wrist"] = [camera(100 + k, t) for t in range(steps)]
    return {**e, "instruction": [f"{k} {t // 3}" for t in range(steps)]}


def scatter(ds: Dataset, path: Path, *, seed: int = 0, repeats: bool = False) -> Dataset:
    """Copy a dataset to ``path``, its episodes in the order of the table but stored at other rows.

    Rows of no episode, last rows of root and next fields, and final observations that are not recorded are garbage. An
    episode without a recorded final observation may share its last row with the first step of another. With
    ``repeats``, final observations that are not recorded repeat the last one, as `rlds_cli.ted` lays them out.
    """
    shutil.copytree(ds.path, path)
    for file in (path, *path.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
    store, e = ds.store, ds.store.episodes
    rng = np.random.default_rng(seed)
    start, at = np.zeros(len(e["start"]), np.int64), 2
    for k in rng.permutation(len(start)).tolist():
        start[k] = at
        unknown = e["num_observed"][k] == e["length"][k]
        at += int(e["length"][k]) + (0 if unknown and k % 2 and not repeats else 1 + int(rng.integers(0, 3)))
    total = at + 3
    for f in store.fields.values():
        known = (e["length"] + 1 if repeats else e["num_observed"]) if f.placement == "both" else e["length"]
        runs = [(int(a), int(a + n), int(b)) for a, n, b in zip(e["start"], known, start, strict=True)]
        directory = path / store.table.path_of(f.name)
        write = _frames if f.kind == "frames" and f.codec != VIDEO else _array
        write(store, f, directory, runs, total)
        if has_row_digests(f):
            of_rows, values = store.table.row_digests(f.name), np.zeros((total, 32), np.uint8)
            for a, b, to in runs:
                values[to : to + b - a] = of_rows[a:b]
            _replace(path / ROW_DIGESTS / store.table.path_of(f.name), values)
        if ds.encoding == "zarr":
            compression.compress(directory, f)
    _replace(path / "episodes" / "start", start)
    counts = replace(ds.manifest.counts, rows=total)
    sealing.seal(path, replace(ds.manifest, counts=counts))
    return Dataset(open_store(path))


def _array(store: Store, f: Field, directory: Path, runs: list[tuple[int, int, int]], total: int) -> None:
    rows = store.rows(f.name)
    values = np.full((total, *rows.shape[1:]), GARBAGE[rows.dtype.kind], rows.dtype)
    for a, b, to in runs:
        values[to : to + b - a] = rows[a:b]
    _replace(directory, values)


def _frames(store: Store, f: Field, directory: Path, runs: list[tuple[int, int, int]], total: int) -> None:
    data = [b"no image"] * total
    for a, b, to in runs:
        data[to : to + b - a] = [store.frames(f.name).packet(row) for row in range(a, b)]
    shutil.rmtree(directory)
    arrays.write(directory / "bytes", np.frombuffer(b"".join(data), np.uint8))
    ends = np.cumsum([len(x) for x in data])
    arrays.write(directory / "offsets", np.stack([ends - [len(x) for x in data], ends], 1))
    arrays.write_group(directory)


def _replace(directory: Path, values: np.ndarray) -> None:
    shutil.rmtree(directory)
    arrays.write(directory, values)


def pair(make: Callable[[], Dataset], tmp_path: Path, **options: Any) -> tuple[Dataset, Dataset]:
    """Return a dataset, and the same with scattered rows."""
    ds = make()
    return ds, scatter(ds, tmp_path / ds.id.partition("/")[2], **options)


def dataset(ref: str = "local/rows", **options: Any) -> Dataset:
    """Write a dataset of `episodes`."""
    storage = options.pop("storage", "memmap")
    return rlds_cli.create(ref, episodes(**options), storage=storage, force=True)
