"""Change one operator or constant of a source file at a time, run tests, and name the changes that no test notices.

    python scripts/mutate.py rlds_cli/loader/schedule.py --tests tests/contract/test_loader_reference.py tests/loader

Mutants are sampled: `--sample 40 --seed 0` by default. The tests run on a copy of the checkout, which is compiled anew
for a mutant of a C file. The exit status is 0, whatever survives: a mutant may be equivalent to its original.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_QUICK = "not slow and not thorough"

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
C_TOKENS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " + ": " - ",
    " - ": " + ", " && ": " || ", " || ": " && ", "++": "--",
}  # fmt: skip
C_TOKEN = re.compile(r" (?:[<>]=?|[=!]=|[+-]|&&|\|\|) |\+\+|(?<![\w.])[0-9]\b")


@dataclass(frozen=True)
class Mutant:
    """A source file with one change."""

    path: str
    line: int
    change: str
    source: str


def of_python(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a Python file."""
    tree = ast.parse(source)
    ends = [0]
    for line in source.encode().splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for node in _nodes(tree):
        for other in _changes(node):
            start = ends[node.lineno - 1] + node.col_offset
            stop = ends[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            raw = source.encode()
            new = ast.unparse(other)
            text = f"({new})" if isinstance(node, ast.expr) else new
            yield Mutant(
                path, node.lineno, f"{ast.unparse(node)} -> {new}", (raw[:start] + text.encode() + raw[stop:]).decode()
            )


def _nodes(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield what may be changed: no messages of errors, annotations, decorators or f-strings."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _nodes(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare(left, [op], comparators) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], comparators)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS and not _is_text(left) and not _is_union(node):
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_union(node: ast.BinOp) -> bool:
    """Return whether this is `X | None` of types."""
    return isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Constant) and node.right.value is None


def of_c(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a C file."""
    start = 0
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        if not re.match(r"\s*(#|//|/\*|\*)", line):
            for token in C_TOKEN.finditer(line.partition("//")[0]):
                new = C_TOKENS.get(token[0]) or str(int(token[0]) + 1)
                at = start + token.start()
                changed = source[:at] + new + source[at + len(token[0]) :]
                yield Mutant(path, number, f"{line.strip()}: {token[0].strip()} -> {new.strip()}", changed)
        start += len(line)


def mutants(path: str) -> list[Mutant]:
    """Return all mutants of a file of the checkout."""
    source = (ROOT / path).read_text()
    return list(of_c(path, source) if path.endswith(".c") else of_python(path, source))


@dataclass
class Copy:
    """A copy of the checkout that tests run on."""

    root: Path

    @classmethod
    def of(cls, root: Path) -> Copy:
        """Copy what git tracks, and the compiled kernels."""
        names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
        for name in [*names, *(str(f.relative_to(ROOT)) for f in (ROOT / "rlds_cli").rglob("*.so"))]:
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        return cls(root)

    def passes(self, tests: list[str], seconds: float) -> bool:
        """Return whether the tests pass in time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _QUICK, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def survives(self, mutant: Mutant, tests: list[str], seconds: float) -> bool:
        """Return whether the tests pass with the mutant in place of its file."""
        file = self.root / mutant.path
        original = file.read_text()
        file.write_text(mutant.source)
        try:
            return self._compiles(mutant) and self.passes(tests, seconds)
        finally:
            file.write_text(original)

    def _compiles(self, mutant: Mutant) -> bool:
        if not mutant.path.endswith(".c"):
            return True
        return subprocess.run([sys.executable, "hatch_build.py"], cwd=self.root, capture_output=True).returncode == 0


def main() -> None:
    """Sample mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--tests", nargs="+", required=True, metavar="TEST")
    parser.add_argument("--sample", type=int, default=40, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    everything = [m for path in chosen.files for m in mutants(path)]
    sample = random.Random(chosen.seed).sample(everything, min(chosen.sample, len(everything)))
    with tempfile.TemporaryDirectory() as name:
        copy = Copy.of(Path(name))
        start = time.monotonic()
        if not copy.passes(chosen.tests, 3600):
            sys.exit("the tests fail without a mutant")
        limit = 30 + 5 * (time.monotonic() - start)
        survivors = []
        for mutant in sample:
            if copy.survives(mutant, chosen.tests, limit):
                survivors.append(mutant)
                print(f"survives  {mutant.path}:{mutant.line}  {mutant.change}", flush=True)
    print(f"{len(sample) - len(survivors)} of {len(sample)} mutants are killed ({len(everything)} in all)")


if __name__ == "__main__":
    main()
