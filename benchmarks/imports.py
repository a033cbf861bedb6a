"""Imports of archives, beside the least that a library can do with them: part of ``make bench-convert``.

    python benchmarks/imports.py [PART...] [--before CHECKOUT]

csv, parquet   a table of a million rows and twelve columns, beside pyarrow and ``tofile`` of each column
d4rl           a million steps as published, in gzip, beside h5py, ``tofile`` and sha256 of each column
plain-d4rl     the same uncompressed
npz            5,000 files of an episode each, beside ``np.load`` of each member
hdf5-files     1,000 files of an episode of 20 steps each, beside h5py of each dataset
jpeg           18,000 images in folders of cameras beside tables, beside reads of them and a file of each camera
inspect        ``rlds inspect FILE`` as a command, beside the same without the process that reads files of strangers
families       a sample of each family, read in the importing process

``--before``: another checkout, or a commit, which does the same in turn. Each import is that of a user, made in a
process of its own which has imported a tiny archive of the kind twice: what the second one takes is start-up, and is
subtracted, of the peer as well. Seconds are of the processor, of all processes together, or on the wall; ratios are
medians of the rounds. What is made lies below ``.bench-data/imports``. Results go to ``bench-results/imports.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import records
from archives import d4rl_v2
from checkouts import ROOT, earlier, here, imported, measured, started
from results import DATA, Results, run_parts

HOME = (DATA / "imports").resolve()
OUT = HOME / "out"
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
ROWS, LENGTH, TINY = 1_000_000, 1000, 100  # of a table; of an episode; of what is imported to start up
FILES, STEPS = 5_000, 100  # npz files, and steps of each
HDF5_FILES, HDF5_STEPS = 1_000, 20
IMAGES, CAMERAS, FRAMES = 18_000, ("left", "right", "wrist"), 30  # images, and frames of each camera of an episode
SAMPLES = ROOT / "tests/data"


# -- archives


def table(path: Path, rows: int) -> None:
    """Write a table of twelve columns as CSV or Parquet."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    numbers = ("obs_0", "obs_1", "obs_2", "obs_3", "obs_4", "obs_5", "obs_6", "action_0", "action_1", "reward")
    columns = {name: rng.standard_normal(rows, np.float32) for name in numbers}
    columns |= {"terminated": np.arange(1, rows + 1) % LENGTH == 0, "episode": np.arange(rows) // LENGTH}
    write: Any = pa.csv.write_csv if path.suffix == ".csv" else pa.parquet.write_table
    write(pa.table(columns), path)


def d4rl(path: Path, rows: int) -> None:
    """Write a D4RL file with episodes of a thousand steps, or one shorter episode."""
    d4rl_v2(path, rows, episode=min(rows, LENGTH))


def uncompressed(path: Path, rows: int) -> None:
    """Write the datasets of `d4rl` as they are."""
    import h5py

    with h5py.File(made("steps.hdf5", d4rl, rows)) as source, h5py.File(path, "w") as out:
        source.visititems(lambda k, v: out.update({k: v[()]}) if isinstance(v, h5py.Dataset) else None)


def npz(path: Path, files: int) -> None:
    """Write files of an episode each."""
    path.mkdir()
    rng = np.random.default_rng(0)
    for k in range(files):
        np.savez(
            path / f"episode_{k:05d}.npz",
            observation=rng.standard_normal((STEPS + 1, 17), np.float32),
            action=rng.standard_normal((STEPS, 6), np.float32),
            reward=rng.standard_normal(STEPS, np.float32),
            terminated=np.arange(1, STEPS + 1) == STEPS,
        )


def hdf5_files(path: Path, files: int) -> None:
    """Write files of a short episode each."""
    import h5py

    path.mkdir()
    rng = np.random.default_rng(0)
    for k in range(files):
        with h5py.File(path / f"episode_{k:05d}.hdf5", "w") as file:
            file["observations"] = rng.standard_normal((HDF5_STEPS + 1, 17), np.float32)
            file["actions"] = rng.standard_normal((HDF5_STEPS, 6), np.float32)
            file["rewards"] = rng.standard_normal(HDF5_STEPS, np.float32)
            file["terminals"] = np.arange(1, HDF5_STEPS + 1) == HDF5_STEPS


def jpeg(path: Path, images: int) -> None:
    """Write a table for each episode, and beside it a folder of images for each camera."""
    rng = np.random.default_rng(0)
    pictures = records.pictures(rng, "jpeg", 240, 320, 3)
    header = ",".join([*(f"q{j}" for j in range(7)), *(f"action_{j}" for j in range(7))])
    for k in range(max(1, images // (len(CAMERAS) * FRAMES))):
        for camera in CAMERAS:
            folder = path / f"ep_{k}" / camera
            folder.mkdir(parents=True)
            for t, i in enumerate(rng.integers(0, len(pictures), FRAMES)):
                (folder / f"{t:04d}.jpg").write_bytes(pictures[i])
        table = path / f"ep_{k}" / "log.csv"
        np.savetxt(table, rng.standard_normal((FRAMES, 14)), "%.6f", delimiter=",", header=header, comments="")


def made(name: str, make: Callable[[Path, int], None], size: int) -> Path:
    """Return an archive of a size, which is written where it is not there."""
    path = HOME / "archives" / str(size) / name
    if not path.exists():
        unfinished = path.with_name(f"part-{name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(unfinished, size)
        unfinished.rename(path)
    return path


# -- what is timed, in processes of their own


def rlds(archive: Path) -> None:
    imported(archive, "local/x", home=OUT / "home", force=True)


def written(name: str, values: np.ndarray[Any, Any], hashed: bool = False) -> None:
    with (OUT / name.replace("/", "_")).open("wb") as file:
        values.tofile(file)
    if hashed:
        hashlib.sha256(values).digest()


def pyarrow(archive: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    read: Any = pyarrow.csv.read_csv if archive.suffix == ".csv" else pyarrow.parquet.read_table
    read_in = read(archive)
    for name in read_in.column_names:
        written(name, read_in[name].to_numpy())


def h5py(archive: Path) -> None:
    import h5py

    with h5py.File(archive) as file:
        names: list[str] = []
        file.visititems(lambda k, v: names.append(k) if isinstance(v, h5py.Dataset) and "metadata" not in k else None)
        for name in names:
            written(name, file[name][:], hashed=True)


def load(archive: Path) -> None:
    for path in sorted(archive.iterdir()):
        with np.load(path) as file:
            for name in file.files:
                file[name]


def h5py_each(archive: Path) -> None:
    import h5py

    for path in sorted(archive.iterdir()):
        with h5py.File(path) as file:
            for name in file:
                file[name][()]


def read_bytes(archive: Path) -> None:
    for table in sorted(archive.rglob("*.csv")):
        written("log", np.loadtxt(table, delimiter=",", skiprows=1))
    with ExitStack() as stack:
        files = {camera: stack.enter_context((OUT / camera).open("wb")) for camera in CAMERAS}
        for image in sorted(archive.rglob("*.jpg")):
            files[image.parent.name].write(image.read_bytes())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())


def clock() -> tuple[float, float]:
    """Return seconds of the processor, of this process and those that have ended, and on the wall."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used), time.perf_counter()


def taken(work: Callable[[Path], None], archive: Path) -> list[float]:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    before = clock()
    work(archive)
    return [b - a for a, b in zip(before, clock(), strict=True)]


def beyond_start(way: str, tiny: str, archive: str) -> dict[str, float]:
    """Seconds that an archive takes, less those that a tiny one takes."""
    work = WAYS[way]
    work_of_tiny = [taken(work, Path(tiny)) for _ in range(2)][1]
    os.sync()
    cpu, wall = (a - b for a, b in zip(taken(work, Path(archive)), work_of_tiny, strict=True))
    return {"cpu": cpu, "wall": wall}


def samples() -> None:
    """Print the seconds that the import of each sample takes which is named at stdin."""
    with here():
        for name in map(str.strip, sys.stdin):
            print(json.dumps(taken(rlds, SAMPLES / name)), flush=True)


def inspected(archive: str, apart: bool) -> dict[str, float]:
    """Seconds of ``rlds inspect``, in a new interpreter."""
    code = "from rlds_cli.cli import main\n"
    code += "main()" if apart else "from rlds_cli.base.files import child\nwith child.here(): main()"
    before = clock()
    subprocess.run([sys.executable, "-c", code, "inspect", archive], check=True, stdout=subprocess.DEVNULL)
    cpu, wall = (b - a for a, b in zip(before, clock(), strict=True))
    return {"cpu": cpu, "wall": wall}


WAYS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (rlds, pyarrow, h5py, h5py_each, load, read_bytes)}
WORK: dict[str, Callable[..., Any]] = {f.__name__: f for f in (beyond_start, inspected)}


# -- parts


def work(name: str, *arguments: object, checkout: Path = ROOT) -> Any:
    return measured(__file__, "--work", name, json.dumps(arguments, default=str), checkout=checkout)


@dataclass(frozen=True)
class Case:
    """An archive of ``size``, who else reads it, and at most how many times as long an import takes."""

    name: str
    size: int
    make: Callable[[Path, int], None]
    peer: str
    most: float


def beside(out: Results, before: Path | None, *, case: Case) -> None:
    """Import an archive in turns with a peer, and with the checkout before."""
    name, peer = case.name, case.peer
    tiny, archive = made(name, case.make, TINY), made(name, case.make, case.size)
    ways = {"peer": (peer, ROOT), **({"before": ("rlds", before)} if before else {}), "now": ("rlds", ROOT)}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (what, checkout) in ways.items():
            found[way].append(work("beyond_start", what, tiny, archive, checkout=checkout))
    for kind, clock_name in (("cpu", "CPU"), ("wall", "wall")):
        seconds = {way: median(f[kind] for f in runs) for way, runs in found.items()}
        for way in list(ways)[1:]:
            ratio = median(a[kind] / b[kind] for a, b in zip(found[way], found["peer"], strict=True))
            note = f"{seconds[way]:.2f} and {seconds['peer']:.2f} s"
            aim = f"; at most {case.most:g} wanted" if kind == "cpu" and way == "now" else ""
            label = f"{name}, {way + ', ' if before else ''}{clock_name}: times {peer}"
            out.add(label, ratio, "x", note + aim)


def part_inspect(out: Results, before: Path | None) -> None:
    """The command, beside itself in one process, and beside the checkout before."""
    archive = SAMPLES / "d4rl/kitchen_layout-v0.hdf5"
    ways = {"in one process": (False, ROOT), **({"before": (True, before)} if before else {}), "now": (True, ROOT)}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(2 * ROUNDS + 1):
        for way, (apart, checkout) in ways.items():
            found[way].append(work("inspected", archive, apart, checkout=checkout))
    for kind, clock_name in (("wall", "wall"), ("cpu", "CPU")):
        for way, runs in found.items():
            out.add(f"inspect FILE, {way}, {clock_name}", median(f[kind] for f in runs), "s")
        for other in list(ways)[:-1]:
            more = median(a[kind] - b[kind] for a, b in zip(found["now"], found[other], strict=True))
            aim = "at most 0.15 wanted" if kind == "wall" and other == list(ways)[-2] else ""
            out.add(f"  more than {other}, {clock_name}", more, "s", aim)


LIBRARIES = (
    "atari_dqn: dopamine/Breakout/1/replay_logs",
    "d3rlpy: d3rlpy/pendulum_random_v1.1.0.h5",
    "d4rl: d4rl/hopper_random_layout-v2.hdf5",
    "lerobot, images: lerobot/image_v3",
    "lerobot, video: lerobot/video_v3",
    "minari, Arrow: minari/hopper/random_arrow-v0",
    "minari, HDF5: minari/hopper/random_hdf5-v0",
    "ogbench: ogbench/visual-cube-single-play-v0-val.npz",
    "openx: openx/bridge_dataset/1.0.0",
    "robomimic: robomimic/low_dim_layout.hdf5",
    "roboset: roboset/door_paths.h5",
    "vd4rl, npz: vd4rl/main/walker_walk/random/64px",
    "vd4rl, HDF5: vd4rl/main/walker_walk/random/84px",
)


def part_families(out: Results, before: Path | None) -> None:
    """The sample of each family."""
    named = dict(f.split(": ") for f in LIBRARIES)
    ways = {**({"before": before} if before else {}), "now": ROOT}
    found: dict[tuple[str, str], list[list[float]]] = {}
    with ExitStack() as stack:
        running = {way: stack.enter_context(started(__file__, "--samples", checkout=c)) for way, c in ways.items()}
        for k in range(ROUNDS + 3):
            for family, sample in named.items():
                for way in [*ways][:: 1 if k % 2 else -1]:
                    found.setdefault((way, family), []).append(running[way](sample))
    for family in named:
        now = found["now", family][1:]  # the first ones imported modules
        cpu, wall = (median(times) for times in zip(*now, strict=True))
        out.add(f"{family}: sample, CPU", cpu, "s", f"{wall:.3f} s on the wall")
        if before:
            ratio = median(a / b for (a, _), (b, _) in zip(now, found["before", family][1:], strict=True))
            out.add("  times before", ratio, "x", "at most 1.05 wanted")


CASES = {
    "csv": Case("table.csv", ROWS, table, "pyarrow", 5),
    "parquet": Case("table.parquet", ROWS, table, "pyarrow", 8),
    "d4rl": Case("steps.hdf5", ROWS, d4rl, "h5py", 1.5),
    "plain-d4rl": Case("uncompressed.hdf5", ROWS, uncompressed, "h5py", 1.5),
    "npz": Case("episodes", FILES, npz, "load", 4),
    "hdf5-files": Case("hdf5-files", HDF5_FILES, hdf5_files, "h5py_each", 4),
    "jpeg": Case("cameras", IMAGES, jpeg, "read_bytes", 2.5),
}
PARTS = {
    **{name: partial(beside, case=case) for name, case in CASES.items()},
    "inspect": part_inspect,
    "families": part_families,
}


def main(given: Sequence[str]) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--before", metavar="CHECKOUT", help="a directory or a commit")
    args = parser.parse_args(given)
    before = earlier(args.before) if args.before else None
    run_parts("imports", {name: partial(part, before=before) for name, part in PARTS.items()}, args.parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--samples"]:
        samples()
    elif sys.argv[1:2] == ["--work"]:
        print(json.dumps(WORK[sys.argv[2]](*json.loads(sys.argv[3]))))
    else:
        main(sys.argv[1:])
