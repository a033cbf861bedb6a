"""Find phrases that a reader must read twice in pages, docstrings, help and messages.

    python scripts/prose.py                 print the place of each phrase; exit 1 if there are any
    python scripts/prose.py docs/guides/loader.md  only in these files

Code blocks, inline code and quotations (``>``) are not read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*.md", "tests/contract/golden/*.md")
MODULES = ("rlds_cli/**/*.py",)

# What is found, and what to write instead.
PHRASES = {
    r"(?<!not )\b(?:is|are|was|were|be|been|being) (?:here|there)\b(?! (?:is|are|was|were|a|an|no|to|at)\b)": (
        "is on this disk, is downloaded, already exists, is stored"
    ),
    r"\b(?:goes|go|going|gone|went) on\b": "continues, resumes",
    r"(?:\A|(?<=[.;!?] )|(?<=\n\n))Of (?:a|an|the|each|every|several|one|these|those|its|all)\b": (
        "the subject first: `Growing datasets: ...`, `A dataset at an address ...`"
    ),
    r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer|more\b|other way|later|earlier|larger|smaller)[a-z]": (
        "is not a ..., has no ..."
    ),
    r"\b(?:that|which) (?:is|are) none\b": "invalid, not one",
    r"\b(?:cannot|can|could not) say\b": "cannot represent, does not record",
    r"\bwhat (?:came|comes|becomes|became) of\b": "the result of",
    r"\b(?:leaves?|left) for others\b": "is evicted",
}


def main() -> None:
    """Print the phrases that are found."""
    given = [Path(a).resolve() for a in sys.argv[1:]]
    files = given or sorted({f for pattern in (*PAGES, *MODULES) for f in ROOT.glob(pattern)})
    found = [problem for file in files for problem in check(file)]
    print("\n".join(found) if found else f"{len(files)} files read")
    sys.exit(bool(found))


def check(file: Path) -> Iterator[str]:
    """Yield a line for each phrase in a file."""
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for line, text in sorted(_page(file) if file.suffix == ".md" else _strings(file)):
        for phrase, instead in PHRASES.items():
            for match in re.finditer(phrase, text, re.MULTILINE):
                at = line + text.count("\n", 0, match.start())
                yield f'{name}:{at}: "{" ".join(match[0].split())}": {instead}'


def _page(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the text of a page, with its lines but without its code."""
    text = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m[0].count("\n"), file.read_text(), flags=re.S | re.M)
    text = re.sub(r"^>.*$", "", text, flags=re.M)
    yield 1, re.sub(r"`[^`]*`", lambda m: "x" + "\n" * m[0].count("\n"), text)


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and other strings of several words in a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"``.*?``|`[^`\n]*`", "x", node.value)


if __name__ == "__main__":
    main()
