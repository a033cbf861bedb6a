"""How many planted faults `rlds check --measure all` finds by their kind, and what it finds in clean copies.

python benchmarks/defects                  seeds that were not used before, which are printed
python benchmarks/defects --seeds 41,42    these
python benchmarks/defects --quick          one seed, one family

A fault is found if a finding of its code names its episode. A false finding is an error or a warning that names an
episode without a fault; findings that name more than half of the episodes are about the dataset.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from generator import FAULTS, TWINS, Episode, planted, write_d4rl, write_files, write_robomimic

import rlds_cli
from rlds_cli.measures import Measures

EPISODES, STRENGTHS = 72, ("weak", "clear", "strong")
CODES = (*FAULTS, *TWINS)
# Faults that files of a family cannot hold: they have no stamps, no texts, no flags of success, no cameras.
_NO_TEXTS = {"time-jump", "lone-task", "empty-task", "success-mismatch"}
_NO_CAMERAS = {"frozen-camera", "black-camera", "overexposed-camera", "blurred-camera"}
_ONE_FIELD = {"frozen-signal"}  # states are one vector, of which a part may stand still
FAMILIES: dict[str, tuple[Callable[[Path, list[Episode]], Path], set[str]]] = {
    "own HDF5 files": (lambda d, made: write_files(d / "files", made), set()),
    "robomimic": (lambda d, made: write_robomimic(d / "demo.hdf5", made), _NO_TEXTS),
    "D4RL": (lambda d, made: write_d4rl(d / "arm-v2.hdf5", made), _NO_TEXTS | _NO_CAMERAS | _ONE_FIELD),
}


def found_in(directory: Path, family: str, made: list[Episode]) -> dict[str, set[int]]:
    """Return the episodes that findings name, by code."""
    write, _ = FAMILIES[family]
    ds = rlds_cli.import_files(write(directory, made), "local/arm", cache_dir=directory / "home", progress=False)
    assert ds.num_episodes == len(made), f"{family}: {ds.num_episodes} episodes"
    found = defaultdict[str, set[int]](set)
    for f in rlds_cli.check(ds, measures=["all"], progress=False).findings:
        if f.severity != "note" and f.num_episodes <= len(made) // 2:
            found[f.code] |= set(f.episodes)
    return found


def table(seeds: list[int], families: list[str]) -> None:
    """Print the tables."""
    hits = defaultdict[tuple[str, int], list[bool]](list)
    of_families, false, episodes = defaultdict[str, list[bool]](list), defaultdict[str, int](int), 0
    clean, of_clean = defaultdict[str, int](int), 0
    for family in families:
        for seed in seeds:
            for strength in (-1, 0, 1, 2):
                made, places = planted(seed, strength, EPISODES)
                with tempfile.TemporaryDirectory() as directory:
                    found = found_in(Path(directory), family, made)
                for code in set(places) - FAMILIES[family][1]:
                    hits[code, strength].append(places[code] in found[code])
                    of_families[family].append(hits[code, strength][-1])
                faulty = set(places.values()) | _twins(made, places)
                for code, named in found.items():
                    (clean if strength < 0 else false)[code] += len(named - faulty)
                episodes += EPISODES if strength >= 0 else 0
                of_clean += EPISODES if strength < 0 else 0
    print(f"seeds {', '.join(map(str, seeds))}; {EPISODES} episodes each, one of each kind; {', '.join(families)}\n")
    print(f"| fault | {' | '.join(STRENGTHS)} |\n|---|--:|--:|--:|")
    for code in CODES:
        cells = [hits[code, k] for k in range(3)]
        print(f"| `{code}` | " + " | ".join(f"{sum(c)} of {len(c)}" if c else "-" for c in cells) + " |")
    every = [x for found_or_not in hits.values() for x in found_or_not]
    print(f"| all | {' | '.join(_share([x for c in CODES for x in hits[c, k]]) for k in range(3))} |\n")
    print(f"recall: {_share(every)}; " + "; ".join(f"{n} {_share(x)}" for n, x in of_families.items()))
    for name, of, count in (("clean copies", clean, of_clean), ("beside planted faults", false, episodes)):
        told = ", ".join(f"{code} {n}" for code, n in sorted(of.items()) if n) or "none"
        print(f"false findings, {name}: {100 * sum(of.values()) / count:.2f} % of {count:,} episodes: {told}")


def _twins(made: list[Episode], places: dict[str, int]) -> set[int]:
    """Return the episodes that others were copied of, which findings may name in their place."""
    copies = [made[places[code]].action for code in TWINS if code in places]
    return {k for k, e in enumerate(made) if any(e.action is c for c in copies)}


def _share(found: list[bool]) -> str:
    return f"{100 * sum(found) / len(found):.0f} %" if found else "-"


def cost() -> None:
    """Print what measures of vectors cost, beside a pass of NumPy over the same columns, episode by episode."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(0, 0.02, (5000, 60, 14)), axis=1).astype(np.float32)
    episodes = (
        {
            "observation": {"q": w, "v": np.gradient(w, axis=0)},
            "action": w + 0.01,
            "info": {"timestamp": np.arange(60) / 30},
        }
        for w in walks
    )
    with tempfile.TemporaryDirectory() as directory:
        ds = rlds_cli.create("local/arm", episodes, cache_dir=directory, progress=False)
        columns = [np.asarray(ds.column(n)) for n in ("observation/q", "observation/v", "action", "info/timestamp")]
        starts, ends = ds.episodes["start"], ds.episodes["start"] + ds.episodes["length"]

        def one_pass() -> None:
            for c in columns:
                for a, b in zip(starts.tolist(), ends.tolist(), strict=True):
                    x = c[a:b]
                    _ = x.mean(0), x.std(0), x.min(0), x.max(0), np.abs(np.diff(x, axis=0)).mean(0)

        def whole() -> None:
            for c in columns:
                _ = c.mean(0), c.std(0), c.min(0), c.max(0), np.abs(np.diff(c, axis=0)).mean(0)

        def measures() -> None:
            for file in Path(directory).glob("measures/*/*.jsonl"):
                file.unlink()
            Measures(ds).compute(["time", "motion", "action"], jobs=0, progress=False)

        measures()  # which learns what actions move
        ours, each, all_at_once = (min(_seconds(call) for _ in range(5)) for call in (measures, one_pass, whole))
    print(f"\n5,000 episodes of 60 steps, all measures of vectors: {ours:.2f} s")
    told = {"episode by episode": each, "of whole columns, which knows no episodes": all_at_once}
    for what, seconds in told.items():
        print(f"mean, std, min, max and changes by NumPy, {what}: {seconds:.2f} s, ratio {ours / seconds:.1f}")


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default=f"{int(time.time())}")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("RLDS_OFFLINE", "1")
    table([int(s) for s in given.seeds.split(",")], list(FAMILIES)[: 1 if given.quick else None])
    cost()


if __name__ == "__main__":
    main()
