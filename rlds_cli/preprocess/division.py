"""How many rows a chunk has: as few as keep all workers at work and lose little when the work is stopped.

A first look at the function says what a step costs. Chunks are only what is handed out and noted as finished: the
result does not depend on them. Later runs of the same work take over what the first one decided, for its chunks.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from rlds_cli.preprocess.task import PART_ROWS

FILE = "chunks.json"
_COUNT = 64  # chunks, where neither of the bounds below holds
_LEAST, _MOST = 0.2, 2.0  # seconds of a chunk: what it costs beside its function, and what may be lost, is small


def rows_of_chunk(seconds: float, steps: int) -> int:
    """How many rows, when a step takes so many ``seconds``, and there are so many."""
    aim = min(max(seconds * steps / _COUNT, _LEAST), _MOST)
    return max(1, min(PART_ROWS, int(aim / max(seconds, 1e-9))))


def decided(work: Path, seconds: float, steps: int) -> int:
    """`rows_of_chunk`, or what an earlier run of the work below ``work`` wrote down; now it is written down."""
    file = work / FILE
    if (rows := _read(file)) is not None:
        return rows
    rows = rows_of_chunk(seconds, steps)
    new = work / f".{FILE}.{secrets.token_hex(4)}"
    new.write_text(json.dumps({"rows": rows}))
    try:
        os.link(new, file)  # of several shards, the first decides
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
