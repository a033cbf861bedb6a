"""How cost grows: time of the processor and memory against steps, episodes, fields, ranks and datasets of a home.

    python benchmarks/growth.py [PART...]

steps      1e4 to 1e9 steps in 100 episodes: opening and the first batch, a batch, memory; no values are read: which
           steps a batch has is what depends on their number
episodes   1e2 to 1e7 episodes of ten steps: the same
fields     1 to 256 fields of four numbers: opening and the first batch, a batch
ranks      1 to 64 ranks: the same of one rank
home       1 to 1,000 datasets in a home: `rlds list --local`

Each point is the median of three processes. Files are holes, which read as zeros. The last column says by how much the
cost grew for ten times the work: 1 where it does not depend on it, 10 where it is proportional. Results go to
``bench-results/growth.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from loader import data
from loader.data import HALFCHEETAH
from loader.memory import MIB, memory
from results import Results, run_parts

from rlds_cli.base.files import arrays
from rlds_cli.dataset import Dataset
from rlds_cli.ted import Field

BATCH, BATCHES, POINTS = 256, 200, 3
EPISODES, LENGTH = 100, 10
INDEX: dict[str, Any] = {"fields": ("step",), "backend": "numpy"}


def sparse(name: str, fields: tuple[Field, ...], episodes: int, length: int) -> Dataset:
    """Return a dataset whose rows are holes, made once."""

    def write(field: Field, directory: Path, rows: int) -> None:
        shape = (rows, *field.shape)
        file = arrays.data_file(directory, len(shape))
        file.parent.mkdir(parents=True)
        with file.open("wb") as f:
            f.truncate(rows * arrays.row_bytes(shape, field.dtype))
        arrays.finish(directory, shape, field.dtype)

    return data.written(f"local/{name}", fields, episodes, length, write)


def busy() -> float:
    """Seconds of the processor that this process and its children took."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def loading(ds: Dataset, ranks: int = 1, **options: Any) -> dict[str, float]:
    """Seconds to the first batch, microseconds of a batch, and MiB that belong to this process alone."""
    from rlds_cli.dataset import open_dataset
    from rlds_cli.loader import Loader

    next(iter(Loader(sparse("small", HALFCHEETAH, 10, 10), 8)))  # what the loader imports is not counted
    before, start = memory(), busy()
    opened = open_dataset(ds.id, home=data.HOME)
    made = Loader(opened, BATCH * ranks, rank=ranks - 1, world_size=ranks, **options)
    batches = iter(made)
    next(batches)
    first = busy() - start
    for _ in range(20):
        next(batches)
    grown, start = memory().beyond(before), busy()
    for _ in range(BATCHES):
        next(batches)
    taken = (busy() - start) / BATCHES
    return {"to the first batch, s": first, "a batch, us": taken * 1e6, "memory, MiB": (grown.anonymous or 0) / MIB}


def steps(n: int) -> dict[str, float]:
    return loading(sparse(f"steps-{n}", HALFCHEETAH, EPISODES, n // EPISODES), **INDEX)


def episodes(n: int) -> dict[str, float]:
    return loading(sparse(f"episodes-{n}", HALFCHEETAH, n, LENGTH), **INDEX)


def fields(n: int) -> dict[str, float]:
    more = tuple(Field(f"observation/value{k:03}", "float32", (4,), "both") for k in range(n))
    found = loading(sparse(f"fields-{n}", more + HALFCHEETAH[1:], EPISODES, 100))
    return {name: found[name] for name in ("to the first batch, s", "a batch, us")}


def ranks(n: int) -> dict[str, float]:
    found = loading(sparse("ranks", HALFCHEETAH, EPISODES, 1000), n)
    return {name: found[name] for name in ("to the first batch, s", "a batch, us")}


def home(n: int) -> dict[str, float]:
    """Time `rlds list --local` of a home that holds copies of one dataset under ``n`` names."""
    import rlds_cli

    with tempfile.TemporaryDirectory() as directory:
        for k in range(n):
            one = {"observation": [[0.0], [1.0 + k]], "action": [[0.0]], "next": {"truncated": True}}
            rlds_cli.create(f"local/rig-{k:04}", [one], home=directory)
        command = [sys.executable, "-m", "rlds_cli", "list", "--local", "--home", directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        start = busy()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {"rlds list --local, s": busy() - start}


POINT: Mapping[str, Callable[[int], dict[str, float]]] = {
    "steps": steps,
    "episodes": episodes,
    "fields": fields,
    "ranks": ranks,
    "home": home,
}
SIZES: Mapping[str, tuple[int, ...]] = {
    "steps": tuple(10**k for k in range(4, 10)),
    "episodes": tuple(10**k for k in range(2, 8)),
    "fields": (1, 4, 16, 64, 256),
    "ranks": (1, 4, 16, 64),
    "home": (1, 10, 100, 1000),
}


def measured(part: str, n: int) -> dict[str, float]:
    """The median of some processes."""
    command = [sys.executable, __file__, "--point", part, str(n)]
    found = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(POINTS)]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def grown(part: str, results: Results) -> None:
    """Measure a part, and say by how much each cost grew for ten times the work, from the point before."""
    last: dict[str, tuple[int, float]] = {}
    for n in SIZES[part]:
        for name, value in measured(part, n).items():
            note = ""
            if name in last and last[name][1] > 0 and value > 0:
                before, was = last[name]
                note = f"{(value / was) ** (1 / math.log10(n / before)):.2g} for ten times the work"
            last[name] = (n, value)
            results.add(f"{n:,} {part}: {name.rpartition(', ')[0]}", value, name.rpartition(", ")[2], note)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(POINT))
    parser.add_argument("--point", nargs=2, metavar=("PART", "N"), help="one process, whose figures are JSON")
    given = parser.parse_args()
    if given.point:
        print(json.dumps(POINT[given.point[0]](int(given.point[1]))))
    else:
        run_parts("growth", {part: partial(grown, part) for part in POINT}, given.parts)


if __name__ == "__main__":
    main()
