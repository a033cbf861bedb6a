"""Checks of an archive that is not imported: it is converted beside the datasets, checked, and removed again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from rlds_cli import settings
from rlds_cli.checks.findings import CheckReport
from rlds_cli.checks.running import check
from rlds_cli.files import safe as safe_files
from rlds_cli.home import Home
from rlds_cli.home.locks import writing
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
    place = Home(settings.read(cache_dir).home)
    partial = place.root / "partial"
    with writing(place):
        safe_files.directory(partial, place.root)
        work = tempfile.TemporaryDirectory(prefix="check-", dir=partial)
    with work as directory:
        ds = import_archive(path, "local/archive", cache_dir=directory, progress=progress)
        return replace(check(ds, progress=progress), id=str(path), path=Path(path))
