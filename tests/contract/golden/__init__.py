"""Golden files: what today's code makes, kept so that a change of behaviour is noticed.

Each module here has a function ``collect(directory)`` that makes one section anew, in a home of its own below
``directory``, through public names alone. ``expected/<section>.json`` holds what it gave when it was last made:
``python tests/contract/golden/make.py`` writes it, and ``tests/contract/test_golden.py`` compares.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
DATA = HERE.parents[1] / "data"
SECTIONS = ("conversions", "samples", "on_disk", "preprocessing", "surface")

# Settings that a person may have, and that no section must depend on.
_FOREIGN = (
    "RLDS_PATH",
    "RLDS_OFFLINE",
    "RLDS_MIRROR",
    "RLDS_GCS_ENDPOINT",
    "STORAGE_EMULATOR_HOST",
    "AWS_ENDPOINT_URL",
    "XDG_CACHE_HOME",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HF_HOME",
    "COLUMNS",
)


@contextmanager
def sandbox(directory: Path) -> Iterator[Path]:
    """A fresh home below ``directory``, which is the current one, without the user's settings or waiting for a disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(directory / "home"))
        patch.setenv("HOME", str(directory / "user"))
        for name in _FOREIGN:
            patch.delenv(name, raising=False)
        patch.setattr(os, "fsync", lambda fd: None)
        patch.chdir(directory)
        yield directory / "home"


def digest(*values: Any) -> str:
    """The start of the sha256 of arrays (dtype, shape and bytes) and of anything that JSON holds."""
    h = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype != object:
            h.update(f"{value.dtype.str}{value.shape}".encode())
            h.update(np.ascontiguousarray(value).tobytes())
        else:
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            h.update(json.dumps(plain, sort_keys=True).encode())
    return h.hexdigest()[:16]


def text(section: dict[str, Any]) -> str:
    """A section as its file holds it: a line for each case that is short, so that differences can be read."""
    lines = (f"{json.dumps(name)}: {_readable(case)}" for name, case in sorted(section.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _readable(case: Any) -> str:
    line = json.dumps(case)
    return line if len(line) < 400 else json.dumps(case, indent=1)


def expected(section: str) -> dict[str, Any]:
    """A section as it was last made."""
    content = json.loads((EXPECTED / f"{section}.json").read_text())
    assert isinstance(content, dict)
    return content
