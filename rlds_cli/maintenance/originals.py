"""Decide whether an archive is still needed once its dataset is here."""

from __future__ import annotations

import os
from pathlib import Path

from rlds_cli.downloads.fetch.parts import FileRecord, record_path
from rlds_cli.errors import RldsError
from rlds_cli.files import trees
from rlds_cli.files.names import is_unfinished
from rlds_cli.home import Home, is_dataset
from rlds_cli.ids import DatasetId
from rlds_cli.maintenance import origins
from rlds_cli.progress import Progress
from rlds_cli.store.integrity import verify_directory
from rlds_cli.store.opening import Store


def files(archive: Path) -> list[Path]:
    """Return the files of an archive, without records and unfinished downloads."""
    found = [f for f in sorted(trees.files(archive)) if not f.name.startswith(".")]
    records = {record_path(f) for f in found}
    return [f for f in found if f not in records and not is_unfinished(f.name)]


def needed(home: Home, id: DatasetId) -> str:
    """Say why the archive of ``id`` has to stay; empty if it can be downloaded again.

    If its dataset is here, it must have been made of exactly these files.
    """
    dataset, archive = home.dataset(id), home.archive(id)
    if not origins.downloadable(str(id)):
        return "it cannot be downloaded again"
    if not is_dataset(dataset):
        return _holds_more(archive)
    try:
        made_of = {str(s.get("file")): s.get("sha256") for s in Store(dataset).sources}
    except (RldsError, OSError, ValueError, KeyError) as e:
        return f"its dataset is damaged: {getattr(e, 'message', e)}"
    for file in files(archive):
        name, record = file.relative_to(archive).as_posix(), FileRecord.read(file)
        if record is None or record.sha256 != made_of.get(name):
            return f"its dataset was made of another {name}"
    return _holds_more(archive)


def _holds_more(archive: Path) -> str:
    """Name a file in the directory of an archive that rlds has not downloaded; empty if there is none."""
    try:
        unknown = (Path(entry.path) for entry in trees.below(archive, strict=True) if not _is_known(entry))
        if (stranger := next(unknown, None)) is not None:
            return f"rlds has not downloaded its {stranger.relative_to(archive).as_posix()}"
    except OSError as e:
        return f"it cannot be listed: {e.strerror}"
    return ""


def _is_known(entry: os.DirEntry[str]) -> bool:
    """Return whether rlds has downloaded or made a file of an archive; True for directories."""
    if entry.is_symlink():
        return False
    if entry.is_dir() or entry.name.startswith(".") or is_unfinished(entry.name):
        return True
    file = Path(entry.path)
    return FileRecord.read(file) is not None or FileRecord.read(file.with_suffix("")) is not None


def damage(home: Home, id: DatasetId, progress: Progress) -> str:
    """Hash the dataset ``id`` again and name its first problem; empty if there is none."""
    if not is_dataset(home.dataset(id)):
        return ""
    problems = verify_directory(home.dataset(id), progress=progress).problems
    return f"its dataset is damaged: {problems[0]}" if problems else ""
