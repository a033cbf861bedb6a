"""Files that two places share: hard link, else reflink, else copy."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.store.manifest import Stats, StoredField

_FICLONE = 0x40049409  # ioctl of Linux: share the extents of another file


@dataclass(frozen=True, slots=True)
class Shared:
    """A field whose rows are those of another dataset."""

    dataset: Path
    field: StoredField
    stats: Stats | None


def share_file(source: Path, target: Path) -> str:
    """Make ``target`` hold what ``source`` holds; returns ``link``, ``reflink`` or ``copy``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
        return "link"
    except FileExistsError:
        raise
    except OSError:
        pass  # another file system, or one without links
    if _reflink(source, target):
        return "reflink"
    shutil.copyfile(source, target)
    return "copy"


def _reflink(source: Path, target: Path) -> bool:
    try:
        with source.open("rb") as a, target.open("wb") as b:
            fcntl.ioctl(b.fileno(), _FICLONE, a.fileno())
        return True
    except OSError:
        target.unlink(missing_ok=True)
        return False


def share_tree(source: Path, target: Path) -> str:
    """Share all files below ``source``; returns how (the worst of its files)."""
    order = ("link", "reflink", "copy")
    how = 0
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(source.rglob("*")):
        if file.is_file():
            how = max(how, order.index(share_file(file, target / file.relative_to(source))))
    return order[how]
