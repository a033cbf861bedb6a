"""Wrap the prose of the documentation at 120 characters; tables, code, headings and generated text stay as they are.

Usage: python scripts/wrap_docs.py [--check]        --check: exit 1 when a page has longer lines
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 120

_GENERATED = "docs/reference/commands"  # the beginning of their names
_FIGURES = re.compile(r"<!-- figures.*?<!-- end of figures -->", re.S)
_KEPT = re.compile(r"\||#|<!--|\s*$")  # lines that are no prose: tables, headings, comments, blank ones
_ITEM = re.compile(r"\s*(?:[*-]|\d+\.) +")
_WORD = re.compile(r"(?:`[^`]*`|[^\s`])+")  # code spans are not broken
_MARKUP = re.compile(r"(?:[*+#>|-]|\d+\.|:---)")  # means something else at the beginning of a line


def pages() -> list[Path]:
    """Return the pages written by hand."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(p for p in found if not p.relative_to(ROOT).as_posix().startswith(_GENERATED))


def wrapped(text: str) -> str:
    """Return the text of a page with every paragraph refilled that has a line that is too long."""
    kept = [(m.start(), m.end()) for m in _FIGURES.finditer(text)]
    parts, at = [], 0
    for start, end in [*kept, (len(text), len(text))]:
        parts += [_wrapped("".join(lines), code) for code, lines in _fences(text[at:start])]
        parts.append(text[start:end])
        at = end
    return "".join(parts)


def _fences(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield runs of lines: fenced code (True), or anything else."""
    inside = False
    marked = []
    for line in text.splitlines(keepends=True):
        fence = line.lstrip().startswith("```")
        marked.append((inside or fence, line))
        inside ^= fence
    for code, lines in groupby(marked, key=lambda m: m[0]):
        yield code, [line for _, line in lines]


def _wrapped(text: str, code: bool) -> str:
    if code:
        return text
    made: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(keepends=True), "\n"]:
        ends = _KEPT.match(line) or _ITEM.match(line)
        if ends and paragraph:
            made += _filled(paragraph)
            paragraph = []
        if _KEPT.match(line):
            made.append(line)
        else:
            paragraph.append(line)
    return "".join(made[:-1])


def _filled(lines: list[str]) -> list[str]:
    """A paragraph or an item of a list."""
    if all(len(line.rstrip("\n")) <= WIDTH for line in lines):
        return lines
    text = "".join(lines)
    item = _ITEM.match(text)
    indent = re.match(" *", text)
    assert indent is not None
    first = item[0] if item else indent[0]
    rest = " " * len(first)
    made, line = [], first
    for word in _WORD.findall(" ".join(text[len(first) :].split())):
        if line.strip() and line not in (first, rest) and len(line) + 1 + len(word) > WIDTH and not _MARKUP.match(word):
            made.append(line + "\n")
            line = rest
        line += word if line in (first, rest) else f" {word}"
    return [*made, line + "\n"]


def main(check: bool) -> int:
    """Wrap all pages, or say which have longer lines."""
    changed = []
    for page in pages():
        text = page.read_text()
        new = wrapped(text)
        if new != text:
            changed.append(page.relative_to(ROOT).as_posix())
            if not check:
                page.write_text(new)
    print(*changed, sep="\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
