"""Copying a published dataset from another home or directory, and trusting it only after its content hashes right."""

from __future__ import annotations

from pathlib import Path

from rlds_cli import safe_files, settings, trees
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.progress import Event, Progress
from rlds_cli.store import manifest, publishing, sharing


def is_dataset(source: str, id: DatasetId) -> bool:
    """Whether ``source`` is a directory with the dataset ``id``, or a home that holds it."""
    return _find(source, id) is not None


def _find(source: str, id: DatasetId) -> Path | None:
    root = settings.expanded(source.removeprefix("file://"))
    for path in (root, Home(root).dataset(id)):
        try:
            if manifest.read(path).id.lower() == str(id).lower():
                return path
        except RldsError:
            continue
    return None


def adopt(source: str, id: DatasetId, home: Home, progress: Progress) -> None:
    """Copy the dataset into ``home``. The caller holds the lock of its id.

    Raises
    ------
    DamagedDataset
        Its content is not what its fingerprint says, or it is not of the files that the registry knows; nothing is
        published.
    """
    from rlds_cli.keeping import origins, verification
    from rlds_cli.store.opening import Store

    found = _find(source, id)
    assert found is not None
    work = home.partial(id, "staging")
    safe_files.work_directory(work, home.root)
    copy = work / "dataset"
    try:
        sharing.share_tree(found, copy, within=work)
        report = verification.verify_directory(copy)
        problems = report.problems or origins.unpublished(manifest.read(copy), Store(copy).sources)
        if problems:
            raise DamagedDataset(f"{found}: {problems[0]}. Nothing was copied.", hint=f"rlds verify {id}")
        publishing.publish(copy, home.dataset(id))
    finally:
        trees.discard(work)
    progress(Event(str(id), "ready", note=f"copied from {found}"))
