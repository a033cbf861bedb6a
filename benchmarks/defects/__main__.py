"""How many planted faults `rlds check --measure all` finds by their kind, and what it finds in clean copies.

python benchmarks/defects                  seeds that were not used before, which are printed
python benchmarks/defects --seeds 41,42    these
python benchmarks/defects --quick          one family, no peers
python benchmarks/defects --write          and put the tables into docs/reference/planted-faults.md

A fault is found if a finding of its code names its episode. A false finding is an error or a warning that names an
episode without a fault; findings that name more than half of the episodes are about the dataset. The same holds for
the checkers of `peers`, which read the files of LeRobot in the same run.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from counting import EPISODES, LIBRARIES, STRENGTHS, Score, run
from peers import PEERS, Peer
from planting import CODES

import rlds_cli
from rlds_cli.measures import Measures

PAGE = Path(__file__).parents[2] / "docs/reference/planted-faults.md"
START, END = "<!-- figures -->", "<!-- end of figures -->"


def table(seeds: list[int], families: list[str], scores: Mapping[str, Score]) -> None:
    """Print which faults we find in the files of each family."""
    print(f"Seeds {', '.join(map(str, seeds))}: {EPISODES} episodes each, one of each kind, at three strengths.")
    print(f"Found of {len(seeds)} each, {', '.join(STRENGTHS)}:\n")
    print(f"| fault | {' | '.join(families)} |\n|---|{'---|' * len(families)}")
    for code in CODES:
        print(f"| `{code}` | {' | '.join(scores[n].cell(code) for n in families)} |")
    print(f"| all | {' | '.join(share(scores[n].of()) for n in families)} |\n")
    every = [(k, x) for n in families for k in range(3) for x in scores[n].of(strengths=[k])]
    told = ", ".join(f"{STRENGTHS[k]} {share([x for j, x in every if j == k])}" for k in range(3))
    print(f"* recall: {share([x for _, x in every])}; {told}")
    print(f"* false findings, clean copies: {false(scores[n].false_clean for n in families)}", end=" ")
    print(f"in {sum(scores[n].clean for n in families):,} episodes")
    print(f"* false findings, beside planted faults: {false(scores[n].false for n in families)}", end=" ")
    print(f"in {sum(scores[n].episodes for n in families):,} episodes\n")


def beside_peers(
    seeds: list[int], scores: Mapping[str, Score], peers: tuple[Peer, ...], not_run: Mapping[str, str]
) -> None:
    """Print what the peers find in the files of LeRobot, beside ours."""
    ran = [p for p in peers if p.name not in not_run]
    for name, why in not_run.items():
        print(f"* {name}: not run: {why}")
    print(f"The files of LeRobot, found of {len(seeds)} each; a dash where a checker has no code for a kind:")
    columns = ["LeRobot", *(p.name for p in ran)]
    of = {p.name: p.looks_for for p in ran} | {"LeRobot": set(CODES)}
    print(f"\n| fault | rlds | {' | '.join(columns[1:])} |\n|---|{'---|' * len(columns)}")
    for code in CODES:
        print(f"| `{code}` | {' | '.join(scores[n].cell(code) if code in of[n] else '-' for n in columns)} |")
    print(f"| recall, all kinds | {' | '.join(share(scores[n].of()) for n in columns)} |")
    print(f"| recall, its kinds | {' | '.join(share(scores[n].of(sorted(of[n]))) for n in columns)} |")
    print(f"| false, clean copies | {' | '.join(rate(scores[n].false_clean, scores[n].clean) for n in columns)} |")
    print(f"| false, beside faults | {' | '.join(rate(scores[n].false, scores[n].episodes) for n in columns)} |\n")
    for p in ran:
        print(f"* {p.name}: false by its codes: {false([scores[p.name].false_clean, scores[p.name].false])}")


def share(found: list[bool]) -> str:
    """Return a percentage."""
    return f"{100 * sum(found) / len(found):.0f} %" if found else "-"


def rate(counts: Mapping[str, int], episodes: int) -> str:
    """Return findings for each hundred episodes."""
    return f"{100 * sum(counts.values()) / episodes:.1f} %"


def false(counts: Iterable[Mapping[str, int]]) -> str:
    """Return how many there are, by code."""
    total = defaultdict[str, int](int)
    for of_codes in counts:
        for code, n in of_codes.items():
            total[code] += n
    return ", ".join(f"{code} {n}" for code, n in sorted(total.items()) if n) or "none"


def cost() -> None:
    """Print the processor time of all measures of vectors, beside that of passes of NumPy over the same columns.

    A pass computes mean, standard deviation, minimum, maximum and mean absolute change of each element: of each episode
    by itself, or of whole columns, as if all steps were those of one episode. Medians of 9, taken in turns.
    """
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
        ds = rlds_cli.create("local/arm", episodes, home=directory, progress=False)
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
            Measures(ds).compute(["time", "motion", "action"], jobs=0, progress=False)

        measures()  # which learns what actions move
        taken = list[list[float]]()
        for _ in range(9):
            for file in Path(directory).glob("measures/*/*.jsonl"):
                file.unlink()
            taken.append([_seconds(call) for call in (measures, one_pass, whole)])
    ours, each, all_at_once = np.median(taken, axis=0).tolist()
    print(f"\n5,000 episodes of 60 steps, 42 elements and stamps, all measures of vectors: {ours:.2f} s of a processor")
    told = {"of each episode": each, "of whole columns, which tells nothing of episodes": all_at_once}
    for what, seconds in told.items():
        print(f"mean, std, min, max and mean change by NumPy, {what}: {seconds:.2f} s, ratio {ours / seconds:.2f}")


def _seconds(call: Callable[[], None]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default=f"{int(time.time())},{int(time.time()) % 86400}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("RLDS_OFFLINE", "1")
    seeds, families = [int(s) for s in given.seeds.split(",")], list(LIBRARIES)[: 1 if given.quick else None]
    peers = () if given.quick else PEERS
    scores, not_run = run(seeds, families, with_peers=bool(peers))
    text = io.StringIO()
    with redirect_stdout(text):
        table(seeds, families, scores)
        if peers:
            beside_peers(seeds, scores, peers, not_run)
    print(text.getvalue(), flush=True)
    if given.write:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n{text.getvalue().strip()}\n\n{END}{rest.partition(END)[2]}")
    cost()


if __name__ == "__main__":
    main()
