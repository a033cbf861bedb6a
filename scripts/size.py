"""Count the code, and print each figure beside its aim.

Usage: python scripts/size.py [--json] [--packages]

How each figure is counted:

code lines           Lines of ``rlds_cli/*.py`` with a token other than comments and docstrings.
lines, modules       All lines and files ``*.py`` of ``rlds_cli``; the C files are a row of their own.
functions            Functions and methods, nested ones and lambdas left out.
lines of tests       All lines of ``tests/**/*.py``.
options              Options of all commands but ``select label drop log tag`` and those that every command has.
Loader arguments     Parameters of `rlds_cli.loader.Loader` besides the dataset.
two meanings         Names of public classes that are defined in more than one file.
comments             Comment lines, and comments behind code, for each 1,000 code lines.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import house

ROOT = house.ROOT
COMMON = {"--json", "--quiet", "--verbose", "--home", "--help"}
APART = {"select", "label", "drop", "log", "tag"}
_NOTHING = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    tokenize.ENCODING,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """The figures of a file."""

    code: int
    lines: int
    functions: int
    comments: int


def count(source: str) -> Counted:
    """Count a file of Python."""
    tree = ast.parse(source)
    documented = set(_docstring_lines(tree))
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        comments += token.type == tokenize.COMMENT
        if token.type not in _NOTHING:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
    return Counted(len(code - documented), len(source.splitlines()), functions, comments)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first = node.body[0]
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def options() -> int:
    """Count the options of commands."""
    from typer.main import get_command

    from rlds_cli.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = 0
    for name in commands:
        if name in APART:
            continue
        given = [p.opts for p in commands[name].params if p.param_type_name == "option"]
        found += sum(not COMMON & set(opts) for opts in given)
    return found


def table() -> dict[str, tuple[float, float | None]]:
    """Return each figure with its aim, None where there is none."""
    from rlds_cli.loader import Loader

    files = sorted((ROOT / house.NAME).rglob("*.py"))
    counted = [count(f.read_text()) for f in files]
    modules = house.read()
    code = sum(c.code for c in counted)
    public = {n: k for n, k in house.repeated_classes(modules).items() if not n.startswith("_")}
    tests = sum(len(f.read_text().splitlines()) for f in (ROOT / "tests").rglob("*.py"))
    compiled = sum(len(f.read_text().splitlines()) for f in (ROOT / house.NAME).rglob("*.c"))
    arguments = [p for p in inspect.signature(Loader).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return {
        "code lines": (code, 49_000),
        "lines": (sum(c.lines for c in counted), 74_000),
        "lines of C": (compiled, None),
        "modules": (len(files), 300),
        "functions": (sum(c.functions for c in counted), 5_000),
        "lines of tests": (tests, 35_000),
        "options": (options(), 95),
        "Loader arguments": (len(arguments) - 1, 16),
        "names of public classes with two meanings": (len(public), 3),
        "circles of imports": (sum(map(len, house.circles(modules, house.IN_FUNCTION))), 0),
        "upward arrows": (sum(map(len, house.upward(modules).values())), 0),
        "comments per 1,000 code lines": (round(1000 * sum(c.comments for c in counted) / code, 1), 20),
    }


def packages() -> dict[str, tuple[int, int]]:
    """Return code lines and lines by package."""
    code: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for f in (ROOT / house.NAME).rglob("*.py"):
        name, found = f.relative_to(ROOT / house.NAME).parts[0], count(f.read_text())
        code[name] += found.code
        lines[name] += found.lines
    return {name: (code[name], lines[name]) for name, _ in code.most_common()}


def main() -> None:
    """Print the table."""
    found = table()
    if "--json" in sys.argv:
        print(json.dumps({name: value for name, (value, _) in found.items()}, indent=1))
        return
    for name, (value, aim) in found.items():
        least = name.startswith("comments")
        reached = "" if aim is None else "reached" if (value >= aim if least else value <= aim) else "missed"
        said = "" if aim is None else f"{'at least' if least else 'at most'} {aim:,g}: {reached}"
        print(f"{name:44} {value:>10,}   {said}")
    for name, (code, lines) in packages().items() if "--packages" in sys.argv else ():
        print(f"  {name:24} {code:>8,} code lines of {lines:>8,}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
