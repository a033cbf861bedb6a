"""Targets of make: each that is named does something, and what it starts is there."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NAMED = re.findall(r'^\t@echo "make ([\w-]+)', MAKEFILE, re.M)
SCRIPT = re.compile(r"\.venv/bin/python ((?:scripts|benchmarks)\b\S*)")


def shown(target: str) -> str:
    """The commands of a target, as on a machine where nothing is made yet; none is run."""
    done = subprocess.run(["make", "-nB", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def started(target: str) -> list[Path]:
    """The scripts of ours that a target starts."""
    return [ROOT / name for name in SCRIPT.findall(shown(target).replace("\\\n", " "))]


def sources(script: Path) -> tuple[Path, Path]:
    """The file that runs, and the directory that it imports from."""
    return (script / "__main__.py", script) if script.is_dir() else (script, script.parent)


def test_help_names_every_target() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[0].split()
    assert len(NAMED) > 15 and {*NAMED, "help", "clean"} == {*phony}


@pytest.mark.parametrize("target", NAMED)
def test_a_target_does_something(target: str) -> None:
    commands = shown(target)
    assert commands.strip() and "Nothing to be done" not in commands, f"{target} has no recipe"
    for script in started(target):
        file, beside = sources(script)
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        modules = {n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module and not n.level}
        modules |= {alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names}
        places = [beside, *(ROOT / name for name in ("tests/support", "tests/contract", "scripts", "benchmarks"))]
        for top in {name.partition(".")[0] for name in modules}:
            own = any(Path(place, name).exists() for place in places for name in (top, f"{top}.py"))
            assert own or importlib.util.find_spec(top), f"{file} imports {top}, which is not here"


def test_the_examples_start() -> None:
    (script,) = started("learn")
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--write" in done.stdout, done.stderr
    runs = re.findall(r"python (examples/\w+\.py)", script.read_text(encoding="utf-8"))
    assert len({*runs}) == 10 and all((ROOT / name).is_file() for name in runs)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["learn", "soak", "fuzz", "attack", "test-export"])
def test_what_takes_long_starts(target: str) -> None:
    for script in started(target):
        done = subprocess.run(
            [sys.executable, str(script), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0 and "usage:" in done.stdout, f"{script}\n{done.stderr}"
