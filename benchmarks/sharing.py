"""Export and push: beside a plain copy of the same bytes, and beside uploads by other libraries.

    python benchmarks/sharing.py [PART ...]

Parts: see `PARTS`; all of them unless named. Whatever is compared takes turns, round by round, each time in a process
of its own, which is measured whole, with what it imports; figures are medians. All of it writes to
``.bench-data/sharing``, for which the disk matters; whoever writes also syncs. Results go to
``bench-results/sharing.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from results import DATA, Results, run_parts

if TYPE_CHECKING:  # a process that is measured imports what it uses
    from rlds_cli.dataset import Dataset

HOME = DATA / "sharing" / "home"
OUT = DATA / "sharing" / "out"
ID = "local/steps"
PATH = HOME / "datasets" / ID
FOLDER = DATA / "sharing" / "folder"  # a copy, in which huggingface_hub keeps notes
EPISODES, LENGTH, OBSERVATION, ACTION = 4000, 1000, 17, 6
RECORDINGS = ("mcap", "rerun")  # a message of each step: four million take minutes
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
MIB = 1 << 20
PEERS = DATA / "peers" / "bin" / "python"  # boto3, huggingface_hub
PEER = {"s3": "boto3, the same files in parts", "hub": "huggingface_hub, upload_folder"}
GET = "boto3, the same objects, not hashed"


def steps() -> Dataset:
    """Four million steps like those of D4RL's locomotion, 390 MiB."""
    import rlds_cli
    from rlds_cli.dataset import open_dataset
    from rlds_cli.errors import DatasetNotFound

    try:
        return open_dataset(ID, home=HOME)
    except DatasetNotFound:
        return rlds_cli.create(ID, made(), home=HOME)


def made() -> Iterator[dict[str, Any]]:
    import numpy as np

    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        yield {
            "observation": rng.standard_normal((LENGTH + 1, OBSERVATION), np.float32),
            "action": rng.standard_normal((LENGTH, ACTION), np.float32),
            "next": {"reward": rng.standard_normal(LENGTH, np.float32), "truncated": True},
        }


def size_of(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def copy(source: Path, target: Path) -> None:
    """Copy a tree and sync it, as ``cp -r`` and ``sync`` do."""
    shutil.copytree(source, target)
    for file in target.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def measured(*arguments: str, python: str = sys.executable, env: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run a piece of work in a process of its own; return its seconds, those of processor time, and MiB."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(env or {})}
    start = time.perf_counter()
    process = subprocess.Popen([python, __file__, *arguments], stdout=subprocess.DEVNULL, env=environ)
    _, status, used = os.wait4(process.pid, 0)
    seconds, process.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}")
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024}


def work(kind: str, *arguments: str) -> None:
    """Do one piece of work."""
    todo = {"copy": copying, "export": exporting, "push": pushing, "pull": pulling, "s3": to_s3, "hub": to_hub}
    (todo | {"get": from_s3})[kind](*arguments)


def copying() -> None:
    copy(PATH, OUT / "copy")


def exporting(to: str, verify: str) -> None:
    import rlds_cli
    from rlds_cli.dataset import open_dataset

    rlds_cli.export(open_dataset(ID, home=HOME), to, OUT / to, lossy=True, verify=verify == "verify")


def pushing(to: str) -> None:
    import rlds_cli

    rlds_cli.push(ID, to, pages=False, home=HOME)


def pulling(address: str) -> None:
    import rlds_cli

    rlds_cli.download(address, name="local/copy", home=OUT / "home")


def to_s3(bucket: str) -> None:
    """Send the files of the dataset one after the other, in parts, as the command line of AWS does."""
    import boto3

    client = boto3.client("s3")
    for file in sorted(f for f in PATH.rglob("*") if f.is_file()):
        client.upload_file(str(file), bucket, f"plain/{file.relative_to(PATH)}")


def from_s3(bucket: str) -> None:
    """Fetch all objects of a bucket, each in parts that arrive side by side."""
    import boto3

    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for number, found in enumerate(page["Contents"]):
            client.download_file(bucket, found["Key"], str(OUT / f"{number}-{found['Key'].replace('/', '+')}"))


def to_hub(repository: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repository, repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id=repository, repo_type="dataset", folder_path=str(FOLDER))


@contextmanager
def serving(kind: str) -> Iterator[dict[str, str]]:
    """Serve a store on this machine, in a process of its own; yields the variables that name it."""
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())
        finally:
            server.stdin.close()


class Joined:
    """An object made of the parts of an upload, which are not copied; its slices are bytes."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, wanted: slice) -> bytes:
        (start, stop, _), at, found = wanted.indices(len(self)), 0, []
        for part in self._parts:
            found.append(memoryview(part)[max(0, start - at) : max(0, stop - at)])
            at += len(part)
        return b"".join(found)


def serve(kind: str) -> None:
    sys.path.extend(str(Path(__file__).parents[1] / "tests" / name) for name in ("support", "contract"))
    if kind == "s3":
        from object_store import ObjectStore

        class Store(ObjectStore):
            """One that takes no time of the processor for hashes and copies: a client is measured, not the store."""

            def etag(self, data: Any) -> str:
                return f'"{id(data)}"'

            def joined(self, parts: list[bytes]) -> Any:
                return Joined(parts)

        server: Any = Store()
        server.buckets["bench"] = {}
    else:
        from hub_server import Hub

        server = Hub(large=1 << 20)
    with server:
        told = server.environ(OUT)
        told = {k: v for k, v in told.items() if k not in ("HOME", "RLDS_HOME")}
        print(json.dumps(told | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}), flush=True)
        sys.stdin.read()


def exports(results: Results) -> None:
    """Each format but those of recordings, with and without the proof, beside a copy of the dataset."""
    from rlds_cli.archives import FORMATS

    size = size_of(steps().path)
    ways = {"copy": ("--copy",)}
    for to in (f for f in FORMATS if f not in RECORDINGS):
        ways |= {to: ("--export", to, "plain"), f"{to}, proved": ("--export", to, "verify")}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, arguments in ways.items():
            found[name].append(measured(*arguments))
    copied = median(f["seconds"] for f in found["copy"])
    results.add("a plain copy, synced", size / copied / MIB, "MiB/s", f"{size / MIB:.0f} MiB")
    for name in list(ways)[1:]:
        seconds = median(f["seconds"] for f in found[name])
        note = f"{copied / seconds:.2f} of the copy; {max(f['mib'] for f in found[name]):.0f} MiB the largest process"
        results.add(f"export, {name}", size / seconds / MIB, "MiB/s", note)


def pushes(results: Results) -> None:
    """To a directory, a bucket and the hub, each time to an empty store; and back from directory and bucket."""
    size = size_of(steps().path)
    found: dict[str, list[dict[str, float]]] = {}

    def take(name: str, *arguments: str, **more: Any) -> None:
        found.setdefault(name, []).append(measured(*arguments, **more))

    store = (DATA / "sharing" / "store").resolve()
    for _ in range(ROUNDS):
        shutil.rmtree(store, ignore_errors=True)
        take("a plain copy, synced", "--copy")
        take("push to a directory", "--push", str(store))
        take("download from a directory", "--pull", str(store))
        for kind, address in (("s3", "s3://bench/steps"), ("hub", "hf://datasets/lab/steps")):
            with serving(kind) as env:
                take(f"push to {address.partition(':')[0]}://", "--push", address, env=env)
                if kind == "s3":
                    take("download from s3://", "--pull", address, env=env)
                    take(GET, "--get", "bench", python=str(PEERS), env=env)
            with serving(kind) as env:
                to = "bench" if kind == "s3" else "lab/plain"
                shutil.rmtree(FOLDER, ignore_errors=True)
                shutil.copytree(PATH, FOLDER)
                take(PEER[kind], f"--{kind}", to, python=str(PEERS), env=env)
    seconds, cpu = ({name: median(f[of] for f in runs) for name, runs in found.items()} for of in ("seconds", "cpu"))
    beside = {"push to s3://": PEER["s3"], "push to hf://": PEER["hub"], "download from s3://": GET}
    for name, took in seconds.items():
        other = beside.get(name, "a plain copy, synced")
        note = "" if other == name else f"{seconds[other] / took:.2f} of {other}, CPU {cpu[other] / cpu[name]:.2f}"
        most = max(f["mib"] for f in found[name])
        results.add(name, size / took / MIB, "MiB/s", f"{note}; {most:.0f} MiB".removeprefix("; "))


PARTS: dict[str, Callable[[Results], None]] = {"exports": exports, "pushes": pushes}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] and sys.argv[1].startswith("--"):
        work(sys.argv[1].removeprefix("--"), *sys.argv[2:])
    else:
        run_parts("sharing", PARTS, sys.argv[1:])
