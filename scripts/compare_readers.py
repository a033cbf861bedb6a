"""Read random archives by the readers of two checkouts, and compare the rows, episodes, values looked up and refusals.

Usage: python scripts/compare_readers.py OTHER [--family NAME ...] [--archives 200] [--seed 0] [--messages] [--rows]

OTHER is the root of another checkout, such as a worktree of the commit before. Archives are those of
``random_archives.py``; those with odd numbers are read in chunks of few rows and parts of few episodes. ``--messages``
also compares the texts of refusals and notes, ``--rows`` makes no datasets and compares no fingerprints, and
``--keep DIR`` leaves the archives there.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from random_archives import LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
SHOWN, LINE = 3, 300  # of the differences of an archive, and characters of each
FEW_ROWS = {"CHUNK_ROWS": 8, "PART_ROWS": 24, "SCAN_ROWS": 16, "CHECK_ROWS": 16}
# -- what a checkout makes of them


def describe(archives: Path, out: Path, *, few: bool, rows_only: bool) -> None:
    """Write what the readers of this checkout make of all archives."""
    with out.open("w") as f:
        for directory in sorted(p for family in archives.iterdir() for p in family.iterdir()):
            if (int(directory.name) % 2 == 1) == few:
                f.write(
                    json.dumps(
                        {
                            "archive": str(directory.relative_to(archives)),
                            **_described(directory, few=few, rows_only=rows_only),
                        }
                    )
                    + "\n"
                )


def _described(directory: Path, *, few: bool, rows_only: bool) -> dict[str, Any]:
    from rlds_cli import archives
    from rlds_cli.errors import RldsError
    from rlds_cli.make import importing

    options = json.loads((directory / "options.json").read_text())
    files = sorted((directory / "files").iterdir())
    name = options["format"]
    for module in [m for n, m in sys.modules.items() if n.startswith("rlds_cli.archives") and few]:
        for constant, value in FEW_ROWS.items():
            if hasattr(module, constant):
                setattr(module, constant, value)
    made: dict[str, Any] = {}
    try:
        found = archives.recognise(files)
        made["recognised"] = found
    except RldsError as e:
        made["recognised"] = [type(e).__name__, str(e)]
    about = {k: options[k] for k in ("episodes_by", "fields", "skip_bad", "rewards", "hz", "nearest") if k in options}
    try:
        archive = archives.Archive(directory / "files", tuple(files), **about)
        if archive.skip_bad:
            archive = archives.without_bad_files(name, archive)
        made |= _read(archives.reader(name), archive)
    except RldsError as e:
        return made | {"refused": type(e).__name__, "message": f"{e} {e.hint}"}
    if rows_only:
        return made
    import_files = getattr(importing, "import_files", None) or importing.import_archive  # in older checkouts
    own = "reader" if "reader" in inspect.signature(import_files).parameters else "format"
    options[own] = options.pop("format")
    with tempfile.TemporaryDirectory() as home:
        try:
            ds = import_files(files, "local/x", home=home, progress=False, jobs=1, **options)
            made["fingerprint"] = ds.fingerprint
        except RldsError as e:
            made["fingerprint"] = f"{type(e).__name__} {e}"
    return made


def _read(reader: Any, archive: Any) -> dict[str, Any]:
    from rlds_cli.archives import Replan
    from rlds_cli.ted import EpisodeTable, Note

    plan = reader.plan(archive)
    while True:
        try:
            parts = [[*reader.read(plan, part)] for part in plan.parts]
            break
        except Replan as e:
            plan = e.plan
    read = [c for part in parts for c in part]
    tables = EpisodeTable.concat([c.episodes for c in read]) if read else None
    for part, told in zip(parts, plan.parts, strict=True):
        if told.rows is not None and told.rows != sum(map(len, part)):
            raise AssertionError(f"a part of {sum(map(len, part))} rows was planned with {told.rows}")
    notes = Note.merged((*archive.left_out, *plan.notes, *(n for c in read for n in c.notes)))
    summary = plan.episode_summary.numbers() if plan.episode_summary else None
    return {
        "schema": [str(f) for f in plan.schema],
        "rule": plan.episodes_by,
        "facts": json.loads(json.dumps(plan.facts, default=str)),
        "env": json.loads(json.dumps(plan.env, default=str)),
        "summary": json.loads(json.dumps(summary, default=str)),
        "codes": sorted([n.code, n.count] for n in notes),
        "notes": sorted([n.text, n.where] for n in notes),
        "columns": {f.name: _digest([c.columns[f.name] for c in read]) for f in plan.schema},
        "last": _digest([c.last for c in read]),
        "episodes": _table_of(tables) if tables is not None else None,
        "metadata": {n: _digest([v]) if not isinstance(v, str) else v for n, v in reader.metadata(plan)},
        "looked_up": sorted(_looked_up(reader, plan, tables)) if tables is not None else None,
    }


def _table_of(table: Any) -> dict[str, Any]:
    plain_ones = {n: np.asarray(getattr(table, n)).tolist() for n in ("length", "end", "observed", "source", "row")}
    others = {n: [str(v) for v in getattr(table, n) or ()] for n in ("group", "seed", "options")}
    splits = {n: v.tolist() for n, v in table.splits.items()}
    return plain_ones | others | {"splits": splits, "extra": {n: [str(v) for v in x] for n, x in table.extra.items()}}


def _looked_up(reader: Any, plan: Any, table: Any) -> Iterator[tuple[str, ...]]:
    from rlds_cli.archives import ArchivedStep

    facts = json.loads(json.dumps(plan.facts, default=str))  # as the manifest has them
    for k in range(min(len(table), 6)):
        length = int(table.length[k])
        for step in sorted({0, length // 2, length - 1}):
            file = plan.archive.files[int(table.source[k])]
            group = (table.group or [""] * len(table))[k]
            first = int(table.row[k])
            place = ArchivedStep(file, plan.archive.root, group, first, step, length, facts, plan.archive.fields)
            for v in reader.look_up(place):
                yield str(k), str(step), v.field, str(np.squeeze(v.value).tolist())


def _digest(columns: list[Any]) -> str:
    """Hash the values of a column, however they are divided into chunks."""
    sha = hashlib.sha256()
    dtypes = set()
    for column in columns:
        if isinstance(column, np.ndarray):
            dtypes.add((column.dtype.str, column.shape[1:]))
            sha.update(np.ascontiguousarray(column).tobytes())
        else:
            sha.update(repr(list(column)).encode())
    return f"{sorted(map(str, dtypes))} {sha.hexdigest()[:16]}"


# -- comparison


def compare(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], *, messages: bool) -> int:
    """Print each archive of which two checkouts make something else; return how many there are."""
    wrong = 0
    texts = set() if messages else {"message", "notes", "recognised", "env"}
    for a, b in zip(mine, theirs, strict=True):
        odd = [k for k in sorted({*a, *b} - texts) if a.get(k) != b.get(k)]
        if odd:
            wrong += 1
            print(f"{a['archive']}: {', '.join(odd)}")
            for key in odd[:SHOWN]:
                print(f"    this   {str(a.get(key))[:LINE]}\n    other  {str(b.get(key))[:LINE]}")
    return wrong


def main() -> None:
    """Make archives, have both checkouts describe them, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--family", action="append", choices=[*LIBRARIES])
    parser.add_argument("--archives", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--messages", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--describe", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--few", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.describe:
        describe(*args.describe, few=args.few, rows_only=args.rows)
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        chosen = args.family or [*LIBRARIES]
        for number, (family, make) in enumerate(LIBRARIES.items()):
            for i in range(args.archives) if family in chosen else ():
                directory = root / "archives" / family / f"{i:04}"
                (directory / "files").mkdir(parents=True, exist_ok=True)
                if not (directory / "options.json").exists():
                    options = make(np.random.default_rng([args.seed, number, i]), directory / "files")
                    (directory / "options.json").write_text(json.dumps(options))
        said = [_by(checkout, root, rows_only=args.rows) for checkout in (ROOT, args.other.resolve())]
    wrong = compare(*said, messages=args.messages)
    for family in chosen:
        kinds = [a.get("refused", "read") for a in said[0] if a["archive"].startswith(f"{family}/")]
        print(f"{family:<10} {', '.join(f'{kinds.count(k)} {k}' for k in sorted(set(kinds)))}")
    print(f"{wrong} of {len(said[0])} archives differ")
    sys.exit(bool(wrong))


def _by(checkout: Path, root: Path, *, rows_only: bool) -> list[dict[str, Any]]:
    """Have a checkout describe all archives, in two processes."""
    outs = [root / f"{few}.jsonl" for few in (False, True)]
    running = []
    for out, few in zip(outs, (False, True), strict=True):
        command = [
            sys.executable,
            __file__,
            ".",
            "--describe",
            str(root / "archives"),
            str(out),
            *(["--few"] if few else []),
            *(["--rows"] if rows_only else []),
        ]
        running.append(
            subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"})
        )
    codes = [p.wait() for p in running]
    if any(codes):
        sys.exit(f"{checkout}: the archives could not be described")
    found = [json.loads(line) for out in outs for line in out.read_text().splitlines()]
    return sorted(found, key=lambda a: a["archive"])


if __name__ == "__main__":
    main()
