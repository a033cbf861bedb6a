"""Run our checks and those of the peers on planted episodes, and count what is found."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from generator import Episode, write_d4rl, write_files, write_robomimic
from lerobot_files import write_lerobot
from peers import PEERS, NotRun, found_by, in_our_words
from planting import CODES, JOIN, planted, twins

import rlds_cli

EPISODES, STRENGTHS = 72, ("weak", "clear", "strong")
# Faults that files of a family cannot hold: they have no stamps, no texts, no flags of success, no cameras.
_NO_TEXTS = {"time-jump", "lone-task", "empty-task", "success-mismatch"}
_NO_CAMERAS = {"frozen-camera", "black-camera", "overexposed-camera", "blurred-camera"}
LIBRARIES: dict[str, tuple[Callable[[Path, list[Episode]], Path], set[str]]] = {
    "own HDF5 files": (lambda d, made: write_files(d / "files", made), set()),
    "robomimic": (lambda d, made: write_robomimic(d / "demo.hdf5", made), _NO_TEXTS),
    "D4RL": (lambda d, made: write_d4rl(d / "arm-v2.hdf5", made), _NO_TEXTS | _NO_CAMERAS),
    "LeRobot": (lambda d, made: write_lerobot(d / "arm", made), set()),
}
_KINDS = {"joined-takes": JOIN}  # findings that are called otherwise than the fault
Found = Mapping[str, set[int]]  # episodes by code


@dataclass(slots=True)
class Score:
    """Which faults were found, by code and strength; and false findings by code, with the episodes looked at."""

    hits: dict[tuple[str, int], list[bool]] = field(default_factory=lambda: defaultdict(list))
    false: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    false_clean: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    episodes: int = 0
    clean: int = 0

    def add(self, made: list[Episode], places: Mapping[str, int], strength: int, found: Found, by_code: Found) -> None:
        """Count one dataset: ``found`` by our codes, ``by_code`` all that was found."""
        for code, place in places.items():
            self.hits[code, strength].append(place in found.get(code, ()))
        faulty = set(places.values()) | twins(made, dict(places))
        for code, named in by_code.items():
            (self.false_clean if strength < 0 else self.false)[code] += len(named - faulty)
        if strength < 0:
            self.clean += len(made)
        else:
            self.episodes += len(made)

    def with_(self, other: Score) -> Score:
        """Return the sum of two."""
        for mine, theirs in ((self.false, other.false), (self.false_clean, other.false_clean)):
            for code, n in theirs.items():
                mine[code] += n
        for at, found in other.hits.items():
            self.hits[at] += found
        self.episodes, self.clean = self.episodes + other.episodes, self.clean + other.clean
        return self

    def of(self, codes: Iterable[str] = CODES, strengths: Iterable[int] = range(3)) -> list[bool]:
        """Return whether each fault of some codes was found."""
        return [x for c in codes for k in strengths for x in self.hits.get((c, k), ())]

    def cell(self, code: str) -> str:
        """Return how many were found at each strength; a dash where files cannot hold the fault."""
        return " ".join(str(sum(self.hits[code, k])) for k in range(3)) if self.of([code]) else "-"


def ours(files: Path, home: Path, episodes: int) -> Found:
    """Return the episodes that our findings name, by code."""
    ds = rlds_cli.import_files(files, "local/arm", home=home, progress=False)
    assert ds.num_episodes == episodes, f"{files}: {ds.num_episodes} episodes"
    found = defaultdict[str, set[int]](set)
    for f in rlds_cli.check(ds, measures=["all"], progress=False).findings:
        if f.severity != "note" and f.num_episodes <= episodes // 2:
            found[_KINDS.get(f.code, f.code)] |= set(f.episodes)
    return found


def run(seeds: list[int], families: list[str], *, with_peers: bool) -> tuple[dict[str, Score], dict[str, str]]:
    """Return the scores of our families and of the peers, and why one was not run; seeds in processes of their own."""
    scores, not_run = dict[str, Score](), dict[str, str]()
    with ProcessPoolExecutor(min(len(seeds), os.cpu_count() or 1), get_context("spawn")) as pool:
        for of_seed, why in pool.map(run_seed, seeds, repeat(families), repeat(with_peers)):
            not_run |= why
            for name, score in of_seed.items():
                scores[name] = scores[name].with_(score) if name in scores else score
    return scores, not_run


def run_seed(seed: int, families: list[str], with_peers: bool) -> tuple[dict[str, Score], dict[str, str]]:
    """Do what `run` does, for one seed."""
    peers = PEERS if with_peers else ()
    scores = {name: Score() for name in (*families, *(p.name for p in peers))}
    not_run = dict[str, str]()
    for strength in (-1, 0, 1, 2):
        made, places = planted(seed, strength, EPISODES)
        for family in families:
            write, cannot = LIBRARIES[family]
            held = {code: k for code, k in places.items() if code not in cannot}
            with tempfile.TemporaryDirectory() as directory:
                files = write(Path(directory), made)
                found = ours(files, Path(directory) / "home", len(made))
                scores[family].add(made, held, strength, found, found)
                for p in peers if family == "LeRobot" else ():
                    if p.name not in not_run:
                        try:
                            theirs = found_by(p, files, len(made))
                            scores[p.name].add(made, held, strength, in_our_words(p, theirs), theirs)
                        except NotRun as e:
                            not_run[p.name] = e.why
            print(f"seed {seed}, strength {strength}, {family}: done", file=sys.stderr, flush=True)
    return scores, not_run
