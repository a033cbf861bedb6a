"""Numbers written as text: integers that a float would round, and numbers in a column of texts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds_cli.errors import UnknownLayout

EXACT = 1 << 53  # float64 holds every smaller integer
LARGEST = 1 << 64  # above all integers of 64 bits, unsigned ones among them
LONG_INTEGER = r"^[+-]?[0-9]{16,}(\.0*)?$"
NUMBER = r"^\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_LONG = re.compile(rb"(?<![0-9.eE+])[0-9]{16,}(?:\.0*)?(?=[\s,}\]]|\Z)")


@dataclass(frozen=True, slots=True)
class Mixed:
    """Numbers in a column of texts: how many of how many values, and the first text with its row."""

    numbers: int
    values: int
    row: int
    text: str


@dataclass(slots=True)
class Cells:
    """The cells of one column of CSV, block by block.

    ``rounded`` is the first integer that float64 would round, with its row; ``first`` the first text that is not one.
    """

    rounded: tuple[int, str] | None = None
    first: tuple[int, str] | None = None
    numbers: int = 0
    values: int = 0

    def add(self, column: Any, start: int, numbers: Any, *, none: bool) -> None:
        """Look at the cells of a block, null where there is no value, whose first row is ``start``.

        ``numbers`` are the values of the cells that have one, if all are numbers; else ``none`` says that none is.
        """
        import pyarrow.compute as pc

        self.values += len(column) - column.null_count
        if numbers is not None:
            self.numbers += len(numbers)
            self._find_rounded(column, start, numbers)
            return
        number = pc.if_else(pc.is_valid(column), False, None) if none else pc.match_substring_regex(column, NUMBER)
        self.numbers += pc.sum(number).as_py() or 0
        if self.first is None and (row := pc.index(number, False).as_py()) >= 0:
            self.first = start + row, column[row].as_py()

    def _find_rounded(self, column: Any, start: int, numbers: Any) -> None:
        import pyarrow.compute as pc

        ends = pc.min_max(numbers)
        if self.rounded is not None or max(-(ends["min"].as_py() or 0), ends["max"].as_py() or 0) < EXACT:
            return
        long = pc.match_substring_regex(column, LONG_INTEGER)
        for row in pc.indices_nonzero(long).to_pylist():
            if is_rounded(column[row].as_py()):
                self.rounded = start + row, column[row].as_py()
                return

    def mixed(self) -> Mixed | None:
        """Return the numbers among texts; None if there are none."""
        return Mixed(self.numbers, self.values, *self.first) if self.first is not None and self.numbers else None


def is_rounded(text: str) -> bool:
    """Tell whether float64 holds another number than a written integer; beyond 64 bits every integer counts."""
    whole = int(text.partition(".")[0])
    if "." not in text and not -LARGEST // 2 <= whole < LARGEST:
        return True
    try:
        return int(float(whole)) != whole
    except OverflowError:
        return True


def rounded(path: Path, name: str, row: int, text: str) -> UnknownLayout:
    """Return the error for an integer that would be rounded."""
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UnknownLayout(
        f"{path.name}: {name} holds {shown} in row {row:,}, which would be rounded, since not all values of the column "
        "are whole numbers of 64 bits.",
        hint="write whole numbers of at most 64 bits throughout, or texts; or remove the column",
    )


@dataclass(slots=True)
class LongIntegers:
    """The integers of JSON lines that float64 would round: the first of each column, with its row."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, block: bytes, start: int) -> None:
        """Look at the lines of a block whose first row is ``start``."""
        if _LONG.search(block) is None:
            return
        for row, line in enumerate(line for line in block.split(b"\n") if line.strip()):
            if _LONG.search(line) is not None:
                for name, value in _numbers(line):
                    if type(value) is int and is_rounded(str(value)):  # a bool is an int, too
                        self.found.setdefault(name, (start + row, str(value)))


def _numbers(line: bytes) -> Iterator[tuple[str, Any]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict):
        yield from _walk(row)


def _walk(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{above}{key}/")
        else:
            yield from ((f"{above}{key}", x) for x in _flat(value))


def _flat(value: Any) -> Iterable[Any]:
    return (x for v in value for x in _flat(v)) if isinstance(value, list) else (value,)


def unsigned(blocks: Iterable[bytes], names: Collection[str]) -> set[str]:
    """Return which columns of JSON lines hold nothing but integers from 0 to 2**64 - 1."""
    left = {*names}
    for block in blocks:
        for line in block.split(b"\n"):
            if not left:
                return left
            for name, x in _numbers(line) if line.strip() else ():
                if name in left and x is not None and (type(x) is not int or not 0 <= x < LARGEST):
                    left.discard(name)
    return left
