"""One piece of work in a process of its own: ``python -m preprocess.working WHAT '{...}'`` prints what it took."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from results import memory

from preprocess import data, functions, tensordicts

Found = dict[str, Any]
BARE_ROWS = 2048  # the fastest of 512 to 65,536: what is computed stays in the cache


def rlds(count: int, fn: str, watch: bool = False, **how: Any) -> Found:
    """``rlds_cli.preprocess.run`` from the call to the published dataset."""
    from rlds_cli import preprocess
    from rlds_cli.base.files.publishing import remove

    source, module = data.steps(count), "tensordicts" if how.get("arrays") == "tensordict" else "functions"
    with _watched(watch) as seen:
        start, began = time.perf_counter(), cpu()
        made = preprocess.run(source, f"preprocess.{module}:{fn}", fn, home=data.HOME, force=True, **how)
        found: Found = {"seconds": time.perf_counter() - start, "cpu": cpu() - began}
    found |= {"steps": made.num_steps, "check": _check(made, count), "own": _own_bytes(made.path)}
    remove(made.path)
    return found | seen


def _check(made: Any, count: int) -> bool:
    """Whether normalised observations are those of NumPy."""
    if "observation" not in made.schema:
        return True
    source, last = data.steps(count), slice(-5000, None)
    rows = {n: source.column(f"observation/{n}")[last] for n in functions.MEAN}
    return bool(np.array_equal(made.column("observation")[last], functions.joined(rows)))


def _own_bytes(directory: Path) -> int:
    """Bytes on disk that no other dataset shares."""
    files = [f.stat() for f in directory.rglob("*") if f.is_file()]
    return sum(s.st_blocks * 512 for s in files if s.st_nlink == 1)


def torchrl(count: int, num_chunks: int | None) -> Found:
    """TorchRL's ``preprocess`` from the call to the written storage, with two processes that have worked before."""
    import torch.multiprocessing as mp
    from tensordict import TensorDict
    from torchrl.data import TensorStorage
    from torchrl.data.datasets.common import BaseDatasetExperienceReplay

    class Replay(BaseDatasetExperienceReplay):
        data_path = data_path_root = data.HOME  # type: ignore[assignment]

        def _is_downloaded(self) -> bool:
            return True

    def prepared(n: int) -> Replay:
        return Replay(storage=TensorStorage(TensorDict.load_memmap(data.torchrl(n))), batch_size=256)

    target, few, many = data.HOME / "torchrl-made", prepared(data.FEW), prepared(count)
    with mp.get_context("spawn").Pool(2) as pool:
        how = {"num_chunks": num_chunks, "pool": pool, "dest": target}
        few.preprocess(tensordicts.normalise_tensordict, **how)
        shutil.rmtree(target)
        start = time.perf_counter()
        made = many.preprocess(tensordicts.normalise_tensordict, **how)
        found = {"seconds": time.perf_counter() - start}
    rows = {n: data.steps(count).column(f"observation/{n}")[:1000] for n in functions.MEAN}
    check = np.allclose(made[:1000]["observation"].numpy(), functions.joined(rows), atol=1e-6)
    shutil.rmtree(target)
    return found | {"check": bool(check)}


def bare(count: int, sync: bool) -> Found:
    """One pass of NumPy: mapped arrays in, ``tofile`` out, the file synced to the disk where ``sync``."""
    ds = data.steps(count)
    p, v = ds.column("observation/position"), ds.column("observation/velocity")
    target = data.HOME / "bare"
    start, began = time.perf_counter(), cpu()
    with target.open("wb") as f:
        for a in range(0, len(p), BARE_ROWS):
            block = {"position": p[a : a + BARE_ROWS], "velocity": v[a : a + BARE_ROWS]}
            functions.joined(block).tofile(f)
        f.flush()
        if sync:
            os.fsync(f.fileno())
    found = {"seconds": time.perf_counter() - start, "cpu": cpu() - began}
    target.unlink()
    return found


def loop(count: int, fn: str) -> Found:
    """A Python loop over rows: a dict of each step, the function, its reward put into an array."""
    ds = data.steps(count)
    columns = {n: ds.column(n) for n in ds.schema}
    p, v, a = (columns[n] for n in ("observation/position", "observation/velocity", "action"))
    r, e, u = (columns[f"next/{n}"] for n in ("reward", "terminated", "truncated"))
    rewards = np.zeros(len(r), np.float32)
    function = getattr(functions, fn)
    start, began = time.perf_counter(), cpu()
    for first, length in zip(ds.episodes["start"].tolist(), ds.episodes["length"].tolist(), strict=True):
        for i in range(first, first + length):
            step = {
                "observation": {"position": p[i], "velocity": v[i]},
                "action": a[i],
                "next": {
                    "observation": {"position": p[i + 1], "velocity": v[i + 1]},
                    "reward": r[i : i + 1],
                    "terminated": e[i : i + 1],
                    "truncated": u[i : i + 1],
                    "done": e[i : i + 1] | u[i : i + 1],
                },
            }
            rewards[i] = function(step)["next"]["reward"][0]
    return {"seconds": time.perf_counter() - start, "cpu": cpu() - began}


def imports() -> Found:
    """Anonymous memory of a process that has imported what a worker imports."""
    import rlds_cli.preprocess.job
    import rlds_cli.store.work  # noqa: F401

    return {"mib": memory("RssAnon")}


def read(count: int) -> Found:
    """A bare read of all arrays of a dataset into one buffer."""
    files = [f for f in data.steps(count).path.rglob("c/**/0") if f.is_file()]
    buffer = bytearray(8 << 20)
    start = time.perf_counter()
    size = 0
    for file in files:
        with file.open("rb", buffering=0) as f:
            while n := f.readinto(buffer):
                size += n
    return {"seconds": time.perf_counter() - start, "bytes": size}


# -- what workers take


@contextmanager
def _watched(watch: bool) -> Iterator[Found]:
    """Look at the processes of this one every 20 ms: the most anonymous memory, and whether one has torch."""
    seen: Found = {"mib": 0.0, "torch": False} if watch else {}
    done = threading.Event()
    thread = threading.Thread(target=_look, args=(seen, done))
    if watch:
        thread.start()
    yield seen
    done.set()
    if watch:
        thread.join()


def _look(seen: Found, done: threading.Event) -> None:
    while not done.wait(0.02):
        try:
            found = {c for t in Path("/proc/self/task").iterdir() for c in (t / "children").read_text().split()}
        except OSError:
            continue  # a thread has just ended
        for pid in found:
            try:
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                seen["torch"] |= "libtorch" in Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue  # it has just ended
            anonymous = next((int(s.split()[1]) / 1024 for s in status if s.startswith("RssAnon")), 0.0)
            seen["mib"] = max(seen["mib"], anonymous)


WORK: dict[str, Callable[..., Found]] = {f.__name__: f for f in (rlds, torchrl, bare, loop, imports, read)}


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](**json.loads(sys.argv[2]))))
