"""Choose the number of rows of a chunk: small enough to keep all workers busy and to lose little when work stops.

A first call of the function measures the cost of a step. Chunks are the unit of work that a worker receives and that
is recorded as finished; the result does not depend on them. Later runs of the same work keep the size of the first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlds_cli import safe_files
from rlds_cli.preprocess.task import PART_ROWS

FILE = "chunks.json"
_COUNT = 64  # chunks, where neither of the bounds below holds
_LEAST, _MOST = 0.2, 2.0  # seconds of a chunk: what it costs beside its function, and what may be lost, is small


def rows_of_chunk(seconds: float, steps: int) -> int:
    """The rows of a chunk, where a step takes ``seconds`` and there are ``steps`` steps."""
    aim = min(max(seconds * steps / _COUNT, _LEAST), _MOST)
    return max(1, min(PART_ROWS, int(aim / max(seconds, 1e-9))))


def decided(work: Path, seconds: float, steps: int) -> int:
    """Return the rows of a chunk that an earlier run recorded in ``work``; else choose and record them."""
    file = work / FILE
    if (rows := _read(file)) is not None:
        return rows
    rows = rows_of_chunk(seconds, steps)
    new = work / safe_files.temporary_name(FILE)
    safe_files.write_bytes(new, json.dumps({"rows": rows}).encode())
    try:
        os.link(new, file, follow_symlinks=False)  # the first of several shards decides
    except FileExistsError:
        new.unlink()
        return _read(file) or rows
    except OSError:  # a file system without links
        new.replace(file)
        return _read(file) or rows
    new.unlink()
    return rows


def _read(file: Path) -> int | None:
    try:
        rows = json.loads(file.read_text())["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, int) and rows > 0 else None
