"""Conversion of a D4RL v2 file of a million steps: against plain h5py and NumPy, and against TorchRL.

    python benchmarks/conversion.py

The baseline reads every per-step dataset whole with h5py, writes it with ``tofile`` and fsync, and computes one sha256
and min, max, mean and std of each: what a conversion cannot do without. Runs alternate; the best of each counts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import archives
import h5py
import numpy as np
from results import DATA, Results, memory

from rlds_cli.archives import Archive, reader
from rlds_cli.base import ids
from rlds_cli.base.progress import silent
from rlds_cli.homes import Home
from rlds_cli.make.convert.archive import Conversion, convert

ROUNDS = 3


def baseline(file: Path, out: Path) -> None:
    out.mkdir(parents=True)
    names: list[str] = []
    with h5py.File(file) as f:
        f.visititems(lambda k, v: names.append(k) if isinstance(v, h5py.Dataset) and "metadata" not in k else None)
        for name in names:
            values = f[name][:]
            with (out / name.replace("/", "_")).open("wb") as target:
                values.tofile(target)
                target.flush()
                os.fsync(target.fileno())
            hashlib.sha256(values).hexdigest()
            values.min(0), values.max(0), values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)


def ours(file: Path, out: Path) -> None:
    what = Conversion(ids.parse("local/bench"), "d4rl", Archive(file.parent, (file,)))
    convert(what, Home(out), jobs=0, progress=silent)


def torchrl(file: Path, out: Path) -> None:
    from torchrl.data.datasets import d4rl

    d4rl.D4RL_DATASETS["bench-v2"] = f"file://{file.absolute()}"
    d4rl.D4RLExperienceReplay("bench-v2", batch_size=256, direct_download=True, root=out, download=True)


def size(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def timed(work: Callable[[Path, Path], None], file: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    work(file, out)
    return time.perf_counter() - start


def main() -> None:
    results = Results("conversion")
    file = archives.d4rl_v2(DATA / "d4rl_1m.hdf5")
    reader("d4rl")  # imports are start-up
    ways: dict[str, Callable[[Path, Path], None]] = {
        "h5py, tofile, fsync, sha256, statistics": baseline,
        "rlds": ours,
    }
    if find_spec("torchrl"):
        ways["TorchRL D4RLExperienceReplay"] = torchrl
    else:
        print("TorchRL is not installed: pip install -e '.[bench]'")
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for i, (name, way) in enumerate(ways.items()):
            best[name] = min(best[name], timed(way, file, DATA / f"out{i}"))
    seconds = list(best.values())
    for name, s in best.items():
        results.add(name, s, "s", f"{1 / s:.2f} M steps/s")
    results.add("rate / baseline's rate", seconds[0] / seconds[1], "x", "at least 0.6 wanted")
    ours_size = size(DATA / "out1" / "datasets")
    results.add("size of the dataset", ours_size / 2**20, "MiB")
    if len(ways) > 2:
        results.add("rate / TorchRL's rate", seconds[2] / seconds[1], "x")
        results.add("size / TorchRL's memmap directory", ours_size / size(DATA / "out2"), "x", "at most 0.6 wanted")
    results.add("anonymous memory at the end", memory("RssAnon"), "MiB", "of this whole process")
    results.write()
    for i in range(len(ways)):
        shutil.rmtree(DATA / f"out{i}", ignore_errors=True)


if __name__ == "__main__":
    main()
