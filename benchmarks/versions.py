"""Time and bytes of changes without a copy: ``make bench-versions``.

    python benchmarks/versions.py [PART...] [--scale 0.1] [--before CHECKOUT]

cameras     episodes of JPEG images, of which a selection and a trim share the files; also in a growing dataset
table       a million episodes of two steps and eight fields, for what is done by the episode table alone; also in a
            growing dataset
attributes  5,000 HDF5 files of an episode each, without attributes and with eight: the processor's time of the import,
            the files of a selection, and the times of changes
loading     a million rows in one dataset, 95 % of them in a selection, in a merge of ten, and in one that grows; their
            loaders take turns
conversion  D4RL files of a million steps, and of 200,000 episodes of two steps, beside h5py, tofile, fsync, one sha256
            and statistics of each column: the times of the processor are compared, as the median of the rounds
before      with ``--before`` alone, another checkout or a commit: opening, conversion and appends by it and by this
            one, see ``versions_before.py``

Each figure of the first three is the median of three runs in a process that has the dataset open, beside its aim; bytes
are those that the home grows by. Aims hold at scale 1.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import archives
import numpy as np
from checkouts import earlier, here
from PIL import Image

RUNS = 3
TURNS, SECONDS = 15, 0.3  # of loading; of each turn of each loader
LEAST = {"selection": 1.0, "merged": 0.95, "growing": 0.95}  # of the rate of an ordinary dataset
MOST_LABEL = 64  # bytes of an episode and column


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[[Path, float], None]]
    parts = {"cameras": cameras, "table": table, "attributes": attributes}
    parts |= {"loading": loading, "conversion": conversion}
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of episodes and rows")
    parser.add_argument("--before", metavar="CHECKOUT", help="a directory or a commit")
    given = parser.parse_args()
    if given.before:
        from versions_before import compare

        parts["before"] = partial(compare, before=earlier(given.before))
    if unknown := set(given.parts) - set(parts):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    print(f"load average before the run: {os.getloadavg()[0]:.1f}")
    for name in given.parts or parts:
        home = Path(tempfile.mkdtemp(prefix="rlds-versions-"))
        os.environ["RLDS_HOME"] = str(home)
        try:
            parts[name](home, given.scale)
        finally:
            shutil.rmtree(home, ignore_errors=True)


def cameras(home: Path, scale: float) -> None:
    """Print the figures of episodes with JPEG images."""
    import rlds_cli
    from rlds_cli import preprocess

    count = round(5_000 * scale)
    ds = rlds_cli.create("local/cameras", filmed(count))
    whole = used(home)
    print(f"cameras: {count:,} episodes, {ds.num_steps:,} steps, {whole / 2**20:,.0f} MiB")
    views(ds, home, whole)

    before = used(home)
    with rlds_cli.writer("local/recorded", like=ds, durable=False) as writer:
        writer.add_episodes(filmed(count))
    ds = writer.dataset()
    whole = used(home) - before
    print(f"cameras: {count:,} episodes in a growing dataset, {whole / 2**20:,.0f} MiB")
    views(ds, home, whole)
    measure("twice the reward", home, whole, lambda: preprocess.run(ds, _twice, "twice", jobs=0, force=True))


def views(ds: Any, home: Path, whole: int) -> None:
    """Print the figures of a selection and of a trim."""
    keep = np.flatnonzero(np.random.default_rng(1).random(ds.num_episodes) < 0.95)
    select = partial(ds.select(episodes=keep).save, "part", force=True)
    measure("select 95 %", home, whole, select, at_most=1, percent=0.5)
    starts = {k: (5, int(n)) for k, n in enumerate(ds.episodes["length"])}
    measure("trim the starts", home, whole, lambda: ds.trim(starts, "trimmed", force=True), at_most=3, percent=1)


def _twice(episode: Any) -> Any:
    episode["next"]["reward"] = 2 * episode["next"]["reward"]
    return episode


def table(home: Path, scale: float) -> None:
    """Print the figures of many short episodes."""
    import rlds_cli
    from rlds_cli.loader import Loader
    from rlds_cli.make.importing import import_files

    count, rng = round(1_000_000 * scale), np.random.default_rng(0)
    file = archives.d4rl_v2(home / "archive/short.hdf5", 2 * count, episode=2)
    ds = import_files(file, "local/short", progress=False)
    whole = used(home)
    print(f"table: {ds.num_episodes:,} episodes, {len(ds.schema)} fields")
    labelled("local/short", home, whole)
    decided("local/short", home)
    ds = rlds_cli.open_dataset("local/short")
    keep = np.flatnonzero(rng.random(count) < 0.95)
    measure("select 95 %", home, whole, lambda: ds.select(episodes=keep).save("part", force=True))
    starts = dict.fromkeys(range(0, count, 2), (1, 2))
    measure("trim every second episode", home, whole, lambda: ds.trim(starts, "trimmed", force=True))
    import_files(archives.d4rl_v2(home / "archive/other.hdf5", 2000, episode=2), "local/other", progress=False)
    two = ["local/short", "local/other"]
    measure("merge with another", home, whole, lambda: rlds_cli.merge(two, "local/merged", force=True))
    kinds = {
        "label": "local/short",
        "selection": "local/short@part",
        "trim": "local/short@trimmed",
        "merge": "local/merged",
    }
    for kind, id in kinds.items():
        opened = rlds_cli.open_dataset(id)
        index = np.arange(opened.num_episodes)
        seconds(f"fingerprint after a {kind}", lambda o=opened, i=index: o.store.fingerprint(i), at_most=1)
    for what, ref in (("the first version", "local/short#v1"), *(("a " + kind, id) for kind, id in kinds.items())):
        seconds(f"open {what}", lambda r=ref: rlds_cli.open_dataset(r))
        seconds(f"open {what}, first batch", lambda r=ref: next(iter(Loader(r, 256, seed=0))))

    rlds_cli.append("local/grown", file, progress=False)
    print(f"table: {count:,} episodes in a growing dataset")
    labelled("local/grown", home, whole)
    opened = rlds_cli.open_dataset("local/grown")
    seconds("fingerprint after a label", lambda: opened.store.fingerprint(opened.episodes.index), at_most=1)
    seconds("open", lambda: rlds_cli.open_dataset("local/grown"))
    seconds("open, first batch", lambda: next(iter(Loader("local/grown", 256, seed=0))))


def attributes(home: Path, scale: float) -> None:
    """Print the figures of files with attributes, beside the same files without."""
    import h5py

    import rlds_cli
    from rlds_cli.make.importing import import_files

    count, costs, files = round(5_000 * scale), dict[int, float](), dict[int, int]()
    for number in (0, 8):
        directory, id = home / f"archive/a{number}", f"local/a{number}"
        directory.mkdir(parents=True)
        for k in range(count):
            with h5py.File(directory / f"episode_{k}.hdf5", "w") as f:
                f["observations/qpos"] = f["action"] = np.full((20, 7), k, np.float32)
                f.attrs.update({f"x{i}": f"text {k}" for i in range(number)})
        print(f"attributes: {count:,} files with {number}")
        before = processor()
        import_files(directory, id, progress=False)
        costs[number] = processor() - before
        whole = used(home)
        keep = np.flatnonzero(np.random.default_rng(0).random(count) < 0.95)
        select = partial(rlds_cli.open_dataset(id).select(episodes=keep).save, "part", force=True)
        measure("select 95 %", home, whole, select, at_most=1)
        labels = iter(range(RUNS))
        label = lambda ids=id, n=labels: rlds_cli.open_dataset(ids).select(episodes=[0]).label(quality=next(n))  # noqa: E731
        measure("label one episode", home, whole, label, at_most=1)
        measure(
            "drop one", home, whole, lambda ids=id: rlds_cli.open_dataset(ids).select(episodes=[0]).drop(), at_most=1
        )
        files[number] = sum(p.is_file() for p in rlds_cli.open_dataset(f"{id}@part").path.rglob("*"))
    said = reached(files[8], files[0])
    print(f"  files of a selection             {files[8]} with attributes, {files[0]} without{said}")
    ratio = costs[8] / costs[0]
    said = f"{ratio:.2f} times as long{reached(ratio, 1.3)}"
    print(f"  processor's time of the import   {costs[8]:.1f} s, {costs[0]:.1f} s without: {said}")


def processor() -> float:
    """Return the seconds of the processor of this process and of those that it has waited for."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def short(count: int) -> Iterator[dict[str, Any]]:
    """Yield episodes of two steps, with eight fields besides the flags."""
    rng = np.random.default_rng(0)
    values = {f"x{k}": rng.random((4096, 3, 1), np.float32) for k in range(6)}
    flags = {"terminated": np.array([False, True]), "reward": np.ones(2, np.float32)}
    for e in range(count):
        yield {
            "observation": {n: v[e % 4096] for n, v in values.items()},
            "action": np.zeros((2, 1), np.float32),
            "next": flags,
        }


def labelled(id: str, home: Path, whole: int) -> None:
    """Print the figures of labels of all episodes, other ones in each run."""
    import rlds_cli

    count, rng = rlds_cli.open_dataset(id).num_episodes, np.random.default_rng(0)
    values = iter([rng.integers(0, 5, count).tolist() for _ in range(RUNS)])
    write = lambda: rlds_cli.open_dataset(id).label(quality=next(values))  # noqa: E731
    measure("label one column", home, whole, write, at_most=2, each=count)


def decided(id: str, home: Path) -> None:
    """Print the time in which a file of decisions on every tenth episode is applied: labels, and one drop in ten."""
    import rlds_cli

    ids = [x.tobytes().hex() for x in rlds_cli.open_dataset(id).episodes["id"][::10]]
    version = rlds_cli.open_dataset(id).version
    files = []
    for run in range(RUNS):
        lines = [f"{x},{'drop' if k % 10 == run else ''},{k % 5},ann,{version}" for k, x in enumerate(ids)]
        files.append(home / f"decisions{run}.csv")
        files[-1].write_text("\n".join(["id,do,grade,by,version", *lines]) + "\n")
    each = iter(files)
    apply = lambda: rlds_cli.open_dataset(f"{id}#v{version}").apply(next(each), name="decided", force=True)  # noqa: E731
    seconds(f"apply {len(ids):,} decisions", apply, at_most=5)


def loading(home: Path, scale: float) -> None:
    """Print the rates of loaders of a selection, a merge and a growing dataset, beside an ordinary one."""
    import rlds_cli
    from rlds_cli.loader import Loader, Slice, Transition

    members, each = [f"local/member{k}" for k in range(10)], round(1e6 * scale) // 10 // (STEPS + 1)
    for k, name in enumerate(members):
        rlds_cli.create(name, moving(k, each))
    whole = used(home)
    print(f"merge: members of {10 * each:,} episodes, {whole / 2**20:,.0f} MiB")
    measure("merge two", home, whole, lambda: rlds_cli.merge(members[:2], "local/two", force=True), at_most=1)
    rlds_cli.merge(members, "local/merged")
    ds = rlds_cli.create("local/ordinary", (e for k in range(10) for e in moving(k, each)))
    with rlds_cli.writer("local/growing", like=ds) as writer:
        for k in range(10):
            writer.add_episodes(moving(k, each))
    keep = np.flatnonzero(np.random.default_rng(1).random(ds.num_episodes) < 0.95)
    ds.select(episodes=keep).save("selection")
    kinds, ids = ("ordinary", *LEAST), {"selection": "local/ordinary@selection"}
    print(f"loading: {ds.num_rows:,} rows of 17 + 6 float32")
    for what, window, size in (("256 transitions", Transition(), 256), ("32 slices of 64", Slice(64), 32)):
        batches = {kind: iter(Loader(ids.get(kind, f"local/{kind}"), size, window=window, seed=0)) for kind in kinds}
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(TURNS + 1):
            for kind in kinds:
                rates[kind].append(rate(batches[kind]))
        for kind in kinds:
            ratio = statistics.median(a / b for a, b in zip(rates[kind][1:], rates["ordinary"][1:], strict=True))
            reached = "reached" if ratio >= LEAST.get(kind, 0) else "missed"
            aim = f"   at least {LEAST[kind]}: {reached}" if kind in LEAST else ""
            taken = 1e6 / statistics.median(rates[kind][1:])
            print(f"  {f'{what}, {kind}':32} {taken:8.1f} us  {ratio:6.3f} of the ordinary rate{aim}")


def rate(batches: Iterator[Any]) -> float:
    """Return how many batches come in a second."""
    count, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < SECONDS:
        for _ in range(50):
            next(batches)
        count += 50
    return count / taken


STEPS = 200  # of an episode without images


def moving(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield episodes without images."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            "observation": rng.random((STEPS + 1, 17), np.float32),
            "action": rng.random((STEPS, 6), np.float32),
            "next": {"reward": rng.random(STEPS, np.float32), "terminated": True},
        }


def filmed(count: int) -> Iterator[dict[str, Any]]:
    """Yield episodes of 30 to 50 steps with an image of 96 x 96 each."""
    rng = np.random.default_rng(0)
    images = [jpeg(rng.integers(0, 255, (96, 96, 3), np.uint8)) for _ in range(64)]
    for _ in range(count):
        steps = int(rng.integers(30, 50))
        frames = [images[k] for k in rng.integers(0, 64, steps + 1)]
        yield {
            "observation": {"state": rng.random((steps + 1, 7), np.float32), "camera": frames},
            "action": rng.random((steps, 7), np.float32),
            "next": {"reward": np.zeros(steps, np.float32), "terminated": True},
        }


def jpeg(image: np.ndarray[Any, Any]) -> bytes:
    """Encode an image."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=80)
    return out.getvalue()


def used(home: Path) -> int:
    """Return the bytes on disk below a home; a file with several names counts once."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512 for s in (p.lstat() for p in home.rglob("*")) if s.st_nlink}
    return sum(files.values())


def conversion(home: Path, scale: float) -> None:
    """Print the processor's time of conversions, beside that of what none can do without."""
    from conversion import baseline, ours

    # At most: 1.05 and 1.5 times what a conversion took that hashed 65,536 rows at a time.
    sizes = {"D4RL, episodes of 1,000 steps": (1_000_000, 1000, 0.8), "D4RL, episodes of 2 steps": (400_000, 2, 1.7)}
    print("conversion: seconds of the processor")
    for what, (steps, episode, most) in sizes.items():
        file = archives.d4rl_v2(home / f"archive{episode}" / "file.hdf5", round(steps * scale), episode=episode)
        taken: dict[Any, list[float]] = {baseline: [], ours: []}
        for _ in range(RUNS):
            for way, times in taken.items():
                shutil.rmtree(home / "out", ignore_errors=True)
                os.sync()
                start = time.process_time()
                with here():
                    way(file, home / "out")
                times.append(time.process_time() - start)
        ratio = statistics.median(a / b for a, b in zip(taken[ours], taken[baseline], strict=True))
        each = f"{statistics.median(taken[ours]):8.2f} s  {statistics.median(taken[baseline]):8.2f} s plain"
        print(f"  {what:32} {each}  {ratio:6.2f} times{reached(ratio, most)}")


def measure(
    what: str,
    home: Path,
    whole: int,
    call: Callable[[], object],
    *,
    at_most: float | None = None,
    percent: float | None = None,
    each: int | None = None,
) -> None:
    """Print the time of a call, and the bytes that the home grew by: beside ``whole``, or for ``each`` episode."""
    before = used(home)
    taken = median(call)
    grown = (used(home) - before) // (RUNS if "label" in what else 1)  # a label leaves the earlier versions
    share = 100 * grown / whole
    size = f"{share:6.2f} %{reached(share, percent)}"
    if each is not None:
        size = f"{grown / each:6.1f} an episode{reached(grown / each, MOST_LABEL)}"
    print(f"  {what:32} {taken:8.2f} s{reached(taken, at_most)}  {grown:>12,} bytes  {size}", flush=True)


def seconds(what: str, call: Callable[[], object], *, at_most: float | None = None) -> None:
    """Print the time of a call."""
    taken = median(call)
    print(f"  {what:32} {taken:8.2f} s{reached(taken, at_most)}", flush=True)


def median(call: Callable[[], object]) -> float:
    """Return the median of the seconds that a call takes."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def reached(value: float, most: float | None) -> str:
    """Say whether a figure is at most what is aimed at."""
    return "" if most is None else f" (at most {most:g}: {'reached' if value <= most else 'missed'})"


if __name__ == "__main__":
    main()
