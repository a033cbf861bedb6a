"""Validate ``registry/``: every id, alias, URL, hash, size, defect and key order; prints the counts per family.

Usage: python scripts/check_registry.py [DIRECTORY]        default: registry beside the package
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rlds_cli
from rlds_cli.archives import READERS
from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.registry import check
from rlds_cli.registry.facts import ENTRY_KEYS

FAMILY_KEYS = (
    *("title", "format", "episodes_by", "expansion", "open", "revisions", "only"),
    *("licence", "paper", "homepage", "host", "citation", "defects"),
)
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|arXiv:\d{4}\.\d{5}|https://[\w.-]+/\S+")
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Line = dict[str, Any]


def problems(directory: Path) -> Iterator[str]:
    """Everything that is wrong, one line each, with the file and the id."""
    families: dict[str, Line] = json.loads((directory / "families.json").read_text(encoding="utf-8"))
    files = {p.stem: p for p in directory.glob("*.jsonl")}
    for name in sorted(families.keys() ^ files.keys()):
        yield f"{name}: needs both an object in families.json and {name}.jsonl"
    entries = {name: [*_lines(files[name])] for name in sorted(families.keys() & files.keys())}
    known = {line.get("id") for lines in entries.values() for _, _, line in lines}
    for name, lines in entries.items():
        yield from (f"families.json: {name}: {p}" for p in _family(name, families[name], lines))
        for number, text, line in lines:
            found = [*_shape(text, line), *_entry(name, line, families[name], known)]
            yield from (f"{name}.jsonl:{number}: {line.get('id')}: {p}" for p in found)
    yield from _clashes(entries)


def _lines(path: Path) -> Iterator[tuple[int, str, Line]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        yield number, text, json.loads(text)


def _shape(text: str, line: Line) -> Iterator[str]:
    """One canonical line: known keys in their order, nothing empty."""
    if list(line) != [k for k in ENTRY_KEYS if k in line]:
        yield f"keys are {list(line)}, not in the order of registry.ENTRY_KEYS"
    if text != json.dumps(line, ensure_ascii=False):
        yield "not written as json.dumps(entry, ensure_ascii=False)"
    yield from (f"{k} is empty; leave it out" for k, v in line.items() if v in (None, "", [], {}))


def _entry(family: str, line: Line, facts: Line, known: set[str | None]) -> Iterator[str]:
    yield from check.family_of(str(line.get("id")), family)
    yield from check.entry(line, known, READERS)
    yield from _package_files(line)
    missing = [c for c in line.get("defects", ()) if c not in facts.get("defects", {})]
    yield from (f"defect {c!r} is not explained in families.json" for c in missing)


def _package_files(line: Line) -> Iterator[str]:
    """Files in the package exist; those of an archive are written in one form."""
    files = line.get("files", [])
    for url in (u for holder in (line, *files) for u in holder.get("urls", ()) if u.startswith("package:")):
        if not (_package() / url.removeprefix("package:")).is_file():
            yield f"{url} is not in the package"
    for f in files:
        if list(f) != [k for k in check.FILE_KEYS if k in f] or not check.positive(f.get("size", 1)):
            yield f"file {f.get('path')!r}: path, urls, size and sha256, in this order"


def _family(name: str, facts: Line, lines: list[tuple[int, str, Line]]) -> Iterator[str]:
    if list(facts) != [k for k in FAMILY_KEYS if k in facts]:
        yield f"keys are {list(facts)}, not in the order of FAMILY_KEYS"
    yield from (f"{k} is missing" for k in ("title", "format", "expansion", "licence", "host") if not facts.get(k))
    yield from check.rules(facts, READERS)
    order = [_natural(line["id"]) for _, _, line in lines]
    if order != sorted(order):
        yield f"{name}.jsonl is not sorted by id"
    used = {c for _, _, line in lines for c in line.get("defects", ())}
    for code, defect in facts.get("defects", {}).items():
        if not CODE.fullmatch(code) or not defect.get("text") or not defect.get("refs"):
            yield f"defect {code!r} needs a code in lower case, a text and references"
        yield from (f"defect {code!r}: {r!r} is not a reference" for r in defect["refs"] if not REFERENCE.fullmatch(r))
        if code not in used:
            yield f"defect {code!r} is of no entry"


def _clashes(entries: dict[str, list[tuple[int, str, Line]]]) -> Iterator[str]:
    """Names that would find two entries, without regard to case."""
    owners: dict[str, str] = {}
    for family, lines in entries.items():
        for _, _, line in lines:
            names = [line["id"], *(n for a in line.get("aliases", ()) for n in (a, f"{family}/{a}"))]
            for name in {n.lower() for n in names}:
                if owners.setdefault(name, line["id"]) != line["id"]:
                    yield f"{family}.jsonl: {name} is both {owners[name]} and {line['id']}"
    ids_seen = [line["id"] for lines in entries.values() for _, _, line in lines]
    yield from sorted({f"{i} stands twice" for i in ids_seen if ids_seen.count(i) > 1})


def _natural(id: str) -> list[tuple[int, str]]:
    """Sorts numbers inside ids as numbers."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", id.lower())]


def _package() -> Path:
    return Path(rlds_cli.__file__).parent


def main() -> int:
    """Print problems, or the counts; 1 when there are problems."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else registry_directory()
    found = list(problems(directory))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        counts = {p.stem: len(p.read_text(encoding="utf-8").splitlines()) for p in sorted(directory.glob("*.jsonl"))}
        print(", ".join(f"{name} {count}" for name, count in counts.items()), "entries: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
