"""Run the examples in full, check that they learn, and write down what they print.

::

    python scripts/learn.py                run, compare with the least return of each, exit with 1 where one falls short
    python scripts/learn.py --write        and put the curves into docs/examples.md and docs/examples.svg
    python scripts/learn.py iql            only those whose title holds a word
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^(the data|a random policy|step +(\d+)) .*?return +(-?[\d.]+)(?: +score +(-?[\d.]+))?", re.M)


@dataclass(frozen=True)
class Run:
    """One command, and the mean return that its last evaluation must reach; ``beside``: cloning the same data."""

    title: str
    command: str
    least: float
    beside: str | None = None


@dataclass(frozen=True)
class Result:
    """What a run printed: (step, return, score) of every evaluation, and the two references."""

    run: Run
    data: tuple[float, float]
    random: tuple[float, float]
    curve: tuple[tuple[int, float, float], ...]
    seconds: float
    output: str = field(repr=False)


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
)


def run(title: str, command: str, least: float = float("-inf"), beside: str | None = None) -> Result:
    """Run one command, printing as it goes; raises CalledProcessError where it fails."""
    print(f"\n$ {command}", flush=True)
    words = [sys.executable, "-u", *shlex.split(command)[1:]]
    start, lines = time.perf_counter(), []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    output = "".join(lines)
    found = [(what, step, float(value), float(score or "nan")) for what, step, value, score in LINE.findall(output)]
    reference = {what: (value, score) for what, step, value, score in found if not step}
    curve = tuple((int(step), value, score) for _, step, value, score in found if step)
    return Result(
        Run(title, command, least, beside), reference["the data"], reference["a random policy"], curve, seconds, output
    )


def page(results: list[tuple[Result, Result | None]]) -> str:
    """The part of docs/examples.md that holds figures."""
    parts = []
    for result, cloned in results:
        rows = [("the data", *result.data), ("a random policy", *result.random)]
        if cloned:
            rows.append(("behaviour cloning of the same episodes", *cloned.curve[-1][1:]))
        rows += [(f"step {step:,}", value, score) for step, value, score in result.curve]
        table = "\n".join(f"| {name} | {value:.1f} | {score:.1f} |" for name, value, score in rows)
        parts.append(
            f"### {result.run.title}\n\n```console\n$ {result.run.command}\n```\n\n"
            f"| | return | score |\n|---|---|---|\n{table}\n\n{result.seconds:.0f} seconds."
        )
    return "\n\n".join(parts)


def picture(results: list[tuple[Result, Result | None]]) -> str:
    """All curves as one SVG: score over steps, with the references as lines across."""
    width, height, gap = 300, 170, 50
    panels = "".join(
        f'<g transform="translate({gap + (k % 2) * (width + gap)} {40 + (k // 2) * (height + 70)})">'
        f"{_panel(result, cloned, width, height)}</g>"
        for k, (result, cloned) in enumerate(results)
    )
    across, down = 2 * (width + gap) + 30, (len(results) + 1) // 2 * (height + 70) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" width="{across}" height="{down}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{panels}</svg>\n'
    )


def _panel(result: Result, cloned: Result | None, width: int, height: int) -> str:
    last, low, high = result.curve[-1][0], -10.0, 110.0
    low = min(low, *(score for _, _, score in result.curve))

    def x(step: float) -> float:
        return round(width * step / last, 1)

    def y(score: float) -> float:
        return round(height * (high - score) / (high - low), 1)

    lines = [("the data", result.data[1], "#777", width, "end"), ("random", result.random[1], "#777", width, "end")]
    if cloned:
        lines.append(("cloning", cloned.curve[-1][2], "#b8651b", 4, "start"))
    ticks = "".join(
        f'<text x="-6" y="{y(t) + 4}" text-anchor="end" fill="#777">{t}</text>' for t in (0, 25, 50, 75, 100)
    )
    across = "".join(
        f'<line x1="0" x2="{width}" y1="{y(s)}" y2="{y(s)}" stroke="{c}" stroke-dasharray="4 3"/>'
        f'<text x="{at}" y="{y(s) - 3}" text-anchor="{anchor}" fill="{c}">{name} {s:.0f}</text>'
        for name, s, c, at, anchor in lines
    )
    points = " ".join(f"{x(step)},{y(score)}" for step, _, score in result.curve)
    dots = "".join(f'<circle cx="{x(s)}" cy="{y(v)}" r="2.5" fill="#1f6fb2"/>' for s, _, v in result.curve)
    return (
        f'<text y="-12" font-size="13" font-weight="bold">{result.run.title}</text>'
        f'<path d="M0 0V{height}H{width}" fill="none" stroke="#777"/>{ticks}{across}'
        f'<polyline points="{points}" fill="none" stroke="#1f6fb2" stroke-width="2"/>{dots}'
        f'<text x="{width}" y="{height + 15}" text-anchor="end" fill="#777">{last:,} steps</text>'
    )


def insert(text: str, figures: str) -> str:
    """The page with other figures; everything around them stays."""
    start, end = "<!-- figures -->", "<!-- end of figures -->"
    return f"{text.partition(start)[0]}{start}\n{figures}\n\n{end}{text.partition(end)[2]}"


def write(results: list[tuple[Result, Result | None]]) -> None:
    """Put figures and picture into docs/."""
    docs = ROOT / "docs"
    text = (docs / "examples.md").read_text(encoding="utf-8")
    (docs / "examples.md").write_text(insert(text, page(results)), encoding="utf-8")
    (docs / "examples.svg").write_text(picture(results), encoding="utf-8")


def main() -> int:
    """Run, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only these")
    parser.add_argument("--write", action="store_true", help="put the curves into docs/")
    args = parser.parse_args()
    if args.write and args.words:
        parser.error("--write is for all of them")
    chosen = [r for r in RUNS if not args.words or any(w.lower() in r.title.lower() for w in args.words)]
    results, short = [], []
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"RLDS_HOME": home, "RLDS_OFFLINE": "1"}
        for r in chosen:
            cloned = run("behaviour cloning", r.beside) if r.beside else None
            results.append((run(r.title, r.command, r.least, r.beside), cloned))
    print()
    for result, _ in results:
        reached = result.curve[-1][1]
        word = "reaches" if reached >= result.run.least else "FALLS SHORT"
        print(f"{result.run.title:22}{word} {reached:8.1f} (at least {result.run.least:.0f}) in {result.seconds:.0f} s")
        short += [result] if reached < result.run.least else []
    if args.write:
        write(results)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
