"""What lies on a disk and outlives a process: manifests, Zarr documents, lock files, journals of interrupted work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tfds_files
from conftest import run_rlds
from loader_data import create, varied

import rlds_cli
from golden import DATA, digest
from rlds_cli import archives, preprocess
from rlds_cli.make.importing import import_files

FUNCTIONS = """\
def half(episode):
    episode["action"] = episode["action"] / 2
    return episode


def fails_late(episode):
    if episode["info"]["number"][0] == 8:
        raise ValueError("no")
    return half(episode)
"""
# What differs from run to run, or with the version of a library that compresses.
_VARYING = ("created", "rlds_version", "written", "time")


class Stopped(Exception):
    """As if the process were killed."""


def collect(directory: Path) -> dict[str, Any]:
    """All documents, without times and versions."""
    (directory / "prep.py").write_text(FUNCTIONS)
    home = directory / "home"
    known = varied()[:6]
    plain = create(known)
    packed = create(known, storage="zarr", ref="local/packed")
    images = import_files(DATA / "lerobot/image_v3", "local/images", jobs=0)
    sample = rlds_cli.download("sample/cartpole-minari", jobs=0)
    derived = preprocess.run(sample, "prep.py:half", jobs=0)
    return {
        "manifest of create, memmap": _manifest(plain),
        "manifest of create, zarr": _manifest(packed),
        "manifest of LeRobot images": _manifest(images, sealed=False),  # its sources hold paths
        "manifest of a sample": _manifest(sample),
        "manifest of a derived dataset": _manifest(derived),
        "files of create, memmap": _files(plain.path, sizes=True),
        "files of create, zarr": _files(packed.path),
        "files of LeRobot images": _files(images.path, sizes=True),
        "Zarr documents, memmap": _documents(plain.path),
        "Zarr documents, zarr": _documents(packed.path),
        "Zarr document of an array": json.loads((packed.path / "observation/zarr.json").read_text()),
        "files of a home": sorted(_name(p, home) for p in home.rglob("*") if p.is_file() and "datasets" not in p.parts),
        "notes on an archive": _documents(home / "archives", "*.json"),
        "rlds.lock": _lock(str(derived.id), "sample/cartpole-minari"),
        "interrupted import": _interrupted_import(directory),
        "shard of a preprocess job": _shard(directory),
        "interrupted preprocess": _interrupted_preprocess(directory),
        "readers": list(archives.READERS),
    }


def _manifest(ds: rlds_cli.Dataset, *, sealed: bool = True) -> Any:
    attributes = json.loads((ds.path / "zarr.json").read_text())["attributes"]
    return {
        "attributes": list(attributes),
        **normalised(attributes["rlds"], sealed=sealed and ds.encoding != "zarr"),
    }


def normalised(value: Any, *, sealed: bool = True) -> Any:
    """Without times and versions; statistics to six digits, long text and lists as a digest.

    Without ``sealed`` the digest of all files is left out, too: compressed bytes and paths are not the same everywhere.
    """
    if isinstance(value, Mapping):
        varying = _VARYING if sealed else (*_VARYING, "files")
        return {k: "" if k in varying else normalised(v, sealed=sealed) for k, v in value.items()}
    if isinstance(value, list):
        plain = [normalised(v, sealed=sealed) for v in value]
        return f"{len(plain)} values {digest(plain)}" if len(plain) > 30 else plain
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str) and value.startswith("file:"):
        return f"file: {value.rpartition('/')[2]}"  # of a checkout that lies anywhere
    if isinstance(value, str) and len(value) > 200:
        return f"text {digest(value)}"
    return value


def _files(directory: Path, *, sizes: bool = False) -> dict[str, Any]:
    """Sizes of files, but of Zarr's documents, which hold the manifest, and of sources, which hold paths."""
    found = {p.relative_to(directory).as_posix(): p for p in sorted(directory.rglob("*")) if p.is_file()}
    pinned = {n for n, p in found.items() if sizes and p.suffix != ".json" and not n.startswith("sources/")}
    return {n: p.stat().st_size if n in pinned else "" for n, p in found.items()}


def _documents(directory: Path, pattern: str = "zarr.json") -> dict[str, Any]:
    found = {}
    for path in sorted(directory.rglob(pattern)):
        content = json.loads(path.read_text())
        content.pop("attributes", None)
        name = path.relative_to(directory).as_posix()
        found[name] = digest(content if pattern == "zarr.json" else shape(content))
    found.pop("zarr.json", None)  # with the manifest
    found.pop("digests/zarr.json", None)
    return found


def _lock(*ids: str) -> Any:
    done = run_rlds("lock", *ids)
    assert done.returncode == 0, done.stderr.decode()
    return normalised(json.loads(done.stdout))


def shape(value: Any) -> Any:
    """Keys and types of a document, of lists those of the first element."""
    if isinstance(value, Mapping):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def _interrupted_import(directory: Path) -> Any:
    """Two shards of three are there when the third is stopped."""
    feature = {"observation": tfds_files.tensor("float32", 2), "action": tfds_files.tensor("float32", 1)}
    records = [
        tfds_files.example(
            {
                "steps/observation": np.arange(2.0 * n),
                "steps/action": np.arange(float(n)),
                "steps/is_first": [1] + [0] * (n - 1),
                "steps/is_last": [0] * (n - 1) + [1],
                "steps/is_terminal": [0] * n,
            }
        )
        for n in (3, 4, 5)
    ]
    steps = {**feature, **tfds_files.FLAGS}
    root = tfds_files.write_dataset(directory / "toy/1.0.0", steps, {"train": [[r] for r in records]})

    def stop(event: Any) -> None:
        if event.stage == "convert" and event.beside.startswith("1 of "):  # parts
            raise Stopped

    try:
        import_files(root, "local/toy", jobs=0, progress=stop)
    except Stopped:
        return _unfinished(directory / "home/partial", "local+toy")
    raise AssertionError("the import was not stopped")


def _long() -> rlds_cli.Dataset:
    """Ten episodes of 9,000 steps: more than a chunk of a job holds."""
    steps = np.ones((9_000, 1), np.float32)
    episodes = ({"observation": steps, "action": steps, "info": {"number": np.full(9_000, k)}} for k in range(10))
    return rlds_cli.create("local/long", episodes, force=True)


def _interrupted_preprocess(directory: Path) -> Any:
    try:
        preprocess.run(_long(), "prep.py:fails_late", "late", jobs=0)
    except rlds_cli.errors.PreprocessError:
        return _unfinished(directory / "home/partial", "local+long@late")
    raise AssertionError("the function did not fail")


def _shard(directory: Path) -> Any:
    preprocess.run_shard(_long(), "prep.py:half", "shard", shard=(1, 2), jobs=0)
    return _unfinished(directory / "home/partial", "local+long@shard")


def _name(path: Path, below: Path) -> str:
    """A path without what names a key, a process or an attempt."""
    name = re.sub(r"\b[0-9a-f]{16,}\b", "KEY", path.relative_to(below).as_posix())
    name = re.sub(r"(?<=/\d\.)[0-9a-f]{8}(?=/)", "ATTEMPT", name)
    return re.sub(r"(?<=[./-])[\w-]+-\d+-[0-9a-f]+(?=\.)", "ATTEMPT", name)


def _unfinished(partial: Path, start: str) -> dict[str, Any]:
    """Files of unfinished work; of those in JSON, their first lines' keys and types."""
    found: dict[str, Any] = {}
    for path in sorted(p for d in partial.glob(f"{start}*") for p in d.rglob("*") if p.is_file()):
        name = _name(path, partial)
        lines = path.read_text().splitlines() if path.suffix in (".json", ".jsonl") else []
        found[name] = [shape(json.loads(line)) for line in lines[:2]]
    return found
