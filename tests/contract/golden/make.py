"""Write the golden files anew: what today's code makes becomes what tests/contract/test_golden.py expects.

    python tests/contract/golden/make.py                 print what would change, and write nothing
    python tests/contract/golden/make.py --write         write tests/contract/golden/expected
    python tests/contract/golden/make.py samples ...     these sections alone

A change of a golden file is a change of behaviour: the commit that has one says why. The datasets in
tests/contract/golden/stores are not written again, since they prove that datasets of earlier versions still open.
"""

from __future__ import annotations

import sys
import tempfile
from difflib import unified_diff
from importlib import import_module
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / name) for name in ("", "support", "contract"))

from golden import EXPECTED, SECTIONS, sandbox, text


def made(section: str) -> str:
    """The content of a section's file."""
    with tempfile.TemporaryDirectory() as directory, sandbox(Path(directory)):
        return text(import_module(f"golden.{section}").collect(Path(directory)))


def main(arguments: list[str]) -> int:
    """Compare or write the sections named; 1 where something differs and is not written."""
    write = "--write" in arguments
    named = [a for a in arguments if a != "--write"]
    if unknown := set(named) - set(SECTIONS):
        print(f"There is no section {', '.join(sorted(unknown))}: the sections are {', '.join(SECTIONS)}.")
        return 2
    differ = False
    for section in named or SECTIONS:
        path = EXPECTED / f"{section}.json"
        before, after = path.read_text() if path.exists() else "", made(section)
        sys.stdout.writelines(unified_diff(before.splitlines(True), after.splitlines(True), path.name, "today", n=0))
        differ |= before != after
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(after)
    return int(differ and not write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
