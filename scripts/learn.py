"""Run the examples in full, check that they learn, and write down what they print.

::

    python scripts/learn.py                run, compare with the least return of each, exit with 1 where one falls short
    python scripts/learn.py --write        and put the curves into docs/reference/learning-curves.md
    python scripts/learn.py iql            only those whose title holds a word; with --write the other curves stay
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(
    r"^(the data|a random policy|step +(\d+)) .*?"
    r"(?:return +(-?[\d.]+)(?: +score +(-?[\d.]+))?|success +(-?[\d.]+) %)",
    re.M,
)
ROW = re.compile(r"^\| ([^|]+) \| (-?[\d.]+) \|(?: (-?[\d.]+) \|)?$", re.M)
START, END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Run:
    """One command, and the mean return or the success in percent that its last evaluation must reach.

    ``beside`` is a command to compare with, ``rival`` what the page calls it. A run without ``least`` judges itself, by
    its exit code, and prints a table.
    """

    title: str
    command: str
    least: float | None
    beside: str | None = None
    rival: str = "behaviour cloning of the same episodes"


@dataclass(frozen=True)
class Result:
    """What a run printed: (step, return, score) of every evaluation, and the references that it has.

    Where a run prints successes, in percent, they stand for both.
    """

    run: Run
    references: dict[str, tuple[float, float]]
    curve: tuple[tuple[int, float, float], ...]
    seconds: float  # of one core
    success: bool
    table: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Panel:
    """One curve of the picture: (step, score) and the scores of what stands beside it, by name."""

    title: str
    curve: tuple[tuple[int, float], ...]
    references: dict[str, float]


BC = "python examples/behaviour_cloning.py"
POOR_SWINGS, POOR_BALANCE = '--where "total_reward < -200"', '--where "total_reward < 200"'
RUNS = (
    Run("behaviour cloning", BC, -250),
    Run(
        "TD3+BC",
        f"python examples/td3_bc.py {POOR_SWINGS}",
        -220,
        f"{BC} sample/pendulum-d4rl {POOR_SWINGS}",
    ),
    Run("IQL", f"python examples/iql.py {POOR_BALANCE}", 350, f"{BC} sample/cartpole-minari {POOR_BALANCE}"),
    Run("Decision Transformer", "python examples/decision_transformer.py", 430),
    Run(
        "Diffusion Policy",
        "python examples/action_chunks.py",
        70,
        "python examples/action_chunks.py --single",
        "cloning of single actions",
    ),
    Run("ACT", "python examples/act.py", 70),
    Run(
        "GCIVL",
        "python examples/gcivl.py",
        80,
        "python examples/gcivl.py --clone",
        "goal-conditioned behaviour cloning",
    ),
    Run("RLPD", "python examples/rlpd.py", -230),
    Run(
        "DAgger",
        "python examples/dagger.py",
        -250,
        "python examples/dagger.py --clone",
        "cloning of the demonstration alone",
    ),
    Run("faulty demonstrations", "python examples/clean_demonstrations.py", None),
)


def run(what: Run) -> Result:
    """Run one command, printing as it goes; raises CalledProcessError where it fails."""
    print(f"\n$ {what.command}", flush=True)
    words = [sys.executable, "-u", *shlex.split(what.command)[1:]]
    start, lines = sum(os.times()[2:4]), []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds = sum(os.times()[2:4]) - start  # of processes that have ended: whatever else the machine does
    table = "".join(line for line in lines if line.startswith("|")).rstrip()
    if what.least is None and table:
        return Result(what, {}, (), seconds, success=False, table=table, failed=process.returncode != 0)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, what.command)
    found = LINE.findall("".join(lines))
    values = [(name, step, float(r or done), float(score or done or "nan")) for name, step, r, score, done in found]
    references = {name: (value, score) for name, step, value, score in values if not step}
    curve = tuple((int(step), value, score) for _, step, value, score in values if step)
    return Result(what, references, curve, seconds, bool(found[-1][-1]))


def section(result: Result, rival: Result | None) -> str:
    """What docs/reference/learning-curves.md says of a run."""
    if result.table:
        return f"### {result.run.title}\n\n```console\n$ {result.run.command}\n```\n\n{result.table}\n\n{_cost(result)}"
    rows = [(name, *reference) for name, reference in result.references.items()]
    if rival:
        rows.append((result.run.rival, *rival.curve[-1][1:]))
    rows += [(f"step {step:,}", value, score) for step, value, score in result.curve]
    if result.success:
        head = "| | success, % |\n|---|---|"
        table = "\n".join(f"| {name} | {value:.1f} |" for name, value, _ in rows)
    else:
        head = "| | return | score |\n|---|---|---|"
        table = "\n".join(f"| {name} | {value:.1f} | {score:.1f} |" for name, value, score in rows)
    also = f"$ {result.run.beside}\n" if rival and result.success else ""
    return (
        f"### {result.run.title}\n\n```console\n$ {result.run.command}\n{also}```\n\n{head}\n{table}\n\n{_cost(result)}"
    )


def _cost(result: Result) -> str:
    return f"{result.seconds:.0f} seconds of one core."


def sections(text: str) -> dict[str, str]:
    """What the page says of each run, by title."""
    figures = text.partition(START)[2].partition(END)[0]
    parts = [f"### {part.strip()}" for part in re.split(r"^### ", figures, flags=re.M)[1:]]
    return {part.partition("\n")[0].removeprefix("### "): part for part in parts}


def panel(title: str, text: str) -> Panel:
    """The curve of a section of the page."""
    rows = [(name, float(score or value)) for name, value, score in ROW.findall(text)]
    curve = tuple((int(name[5:].replace(",", "")), score) for name, score in rows if name.startswith("step "))
    return Panel(title, curve, {name: score for name, score in rows if not name.startswith("step ")})


def panels(said: dict[str, str]) -> list[Panel]:
    """The curves of all sections that have one."""
    with_curve = {r.title for r in RUNS if r.least is not None}
    return [panel(title, part) for title, part in said.items() if title in with_curve]


def picture(curves: list[Panel]) -> str:
    """All curves as one SVG: score, or success, over steps, with the references as lines across."""
    width, height, gap = 300, 170, 50
    panels = "".join(
        f'<g transform="translate({gap + (k % 2) * (width + gap)} {40 + (k // 2) * (height + 70)})">'
        f"{_drawn(curve, width, height)}</g>"
        for k, curve in enumerate(curves)
    )
    across, down = 2 * (width + gap) + 30, (len(curves) + 1) // 2 * (height + 70) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" width="{across}" height="{down}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{panels}</svg>\n'
    )


def _drawn(panel: Panel, width: int, height: int) -> str:
    last, low, high = panel.curve[-1][0], -10.0, 110.0
    low = min(low, *(score for _, score in panel.curve))

    def x(step: float) -> float:
        return round(width * step / last, 1)

    def y(score: float) -> float:
        return round(height * (high - score) / (high - low), 1)

    lines = []
    for name, score in panel.references.items():
        known = name in ("the data", "a random policy")
        label = name.removeprefix("a ").removesuffix(" policy").removesuffix(" of the same episodes")
        lines.append((label, score, "#777", width, "end") if known else (label, score, "#b8651b", 4, "start"))
    ticks = "".join(
        f'<text x="-6" y="{y(t) + 4}" text-anchor="end" fill="#777">{t}</text>' for t in (0, 25, 50, 75, 100)
    )
    across = "".join(
        f'<line x1="0" x2="{width}" y1="{y(s)}" y2="{y(s)}" stroke="{c}" stroke-dasharray="4 3"/>'
        f'<text x="{at}" y="{y(s) - 3:.1f}" text-anchor="{anchor}" fill="{c}">{name} {s:.0f}</text>'
        for name, s, c, at, anchor in lines
    )
    points = " ".join(f"{x(step)},{y(score)}" for step, score in panel.curve)
    dots = "".join(f'<circle cx="{x(s)}" cy="{y(v)}" r="2.5" fill="#1f6fb2"/>' for s, v in panel.curve)
    return (
        f'<text y="-12" font-size="13" font-weight="bold">{panel.title}</text>'
        f'<path d="M0 0V{height}H{width}" fill="none" stroke="#777"/>{ticks}{across}'
        f'<polyline points="{points}" fill="none" stroke="#1f6fb2" stroke-width="2"/>{dots}'
        f'<text x="{width}" y="{height + 15}" text-anchor="end" fill="#777">{last:,} steps</text>'
    )


def insert(text: str, figures: str) -> str:
    """The page with other figures; everything around them stays."""
    return f"{text.partition(START)[0]}{START}\n{figures}\n\n{END}{text.partition(END)[2]}"


def write(results: list[tuple[Result, Result | None]]) -> None:
    """Put what these runs printed into docs/, and draw the picture anew; sections of other runs stay."""
    docs = ROOT / "docs"
    text = (docs / "reference" / "learning-curves.md").read_text(encoding="utf-8")
    said = sections(text) | {result.run.title: section(result, rival) for result, rival in results}
    said = {r.title: said[r.title] for r in RUNS if r.title in said}
    (docs / "reference" / "learning-curves.md").write_text(insert(text, "\n\n".join(said.values())), encoding="utf-8")
    (docs / "pictures" / "examples.svg").write_text(picture(panels(said)), encoding="utf-8")


def main() -> int:
    """Run, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only these")
    parser.add_argument("--write", action="store_true", help="put the curves into docs/")
    args = parser.parse_args()
    chosen = [r for r in RUNS if not args.words or any(w.lower() in r.title.lower() for w in args.words)]
    results, short = [], []
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"RLDS_HOME": home, "RLDS_OFFLINE": "1"}
        for r in chosen:
            rival = run(Run(r.rival, r.beside, r.least)) if r.beside else None
            results.append((run(r), rival))
    print()
    for result, _ in results:
        if result.run.least is None:
            told = "FALLS SHORT" if result.failed else "passes"
            print(f"{result.run.title:22}{told} in {result.seconds:.0f} s")
            short += [result] if result.failed else []
            continue
        reached = result.curve[-1][1]
        word = "reaches" if reached >= result.run.least else "FALLS SHORT"
        print(f"{result.run.title:22}{word} {reached:8.1f} (at least {result.run.least:.0f}) in {result.seconds:.0f} s")
        short += [result] if reached < result.run.least else []
    if args.write:
        write(results)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
