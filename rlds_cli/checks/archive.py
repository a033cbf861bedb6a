"""Checks of an archive that is not imported: it is converted beside the datasets, checked, and removed again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from rlds_cli import settings
from rlds_cli.checks.findings import CheckReport
from rlds_cli.checks.running import check
from rlds_cli.errors import NoPermission
from rlds_cli.importing import import_archive
from rlds_cli.progress import Progress
from rlds_cli.settings import StrPath


def check_archive(
    path: StrPath, *, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
) -> CheckReport:
    """Check a file, a directory or a glob of files of a layout that a reader knows.

    Raises
    ------
    UnknownLayout
        No reader knows it.
    ArchiveError
        It cannot be read.
    NoSpace, NoPermission
        The home has no room for a copy of it, or may not be written.
    """
    partial = settings.read(cache_dir).home / "partial"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(prefix="check-", dir=partial)
    except PermissionError as e:
        raise NoPermission(f"{partial} may not be written.", hint="--cache-dir DIR, with room for a copy") from e
    with work as directory:
        ds = import_archive(path, "local/archive", cache_dir=directory, progress=progress)
        return replace(check(ds, progress=progress), id=str(path), path=Path(path))
