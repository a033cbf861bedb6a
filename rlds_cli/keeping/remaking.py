"""Find out whether a dataset can be made again after it is removed."""

from __future__ import annotations

from pathlib import Path

from rlds_cli import home, ids, registry, settings
from rlds_cli.errors import RldsError
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.keeping import origins
from rlds_cli.settings import StrPath
from rlds_cli.store import manifest
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store


def obstacle(path: Path, *, gone: frozenset[Path] = frozenset(), cache_dir: StrPath | None = None) -> str:
    """Say why the dataset in ``path`` cannot be made again; empty where it can.

    Parameters
    ----------
    gone : set of path
        Datasets that are removed at the same time.
    """
    try:
        m = manifest.read(path)
        if m.provenance:
            return _of_derived(m, gone, cache_dir)
        if not Store(path, check=False).sources:
            return "it was created from values in Python"
        return _of_archive(ids.parse(m.id), path)
    except (RldsError, OSError, ValueError, KeyError):
        return "it cannot be read, and does not say what it was made of"


def _of_derived(m: Manifest, gone: frozenset[Path], cache_dir: StrPath | None) -> str:
    pipeline = m.provenance[-1].get("pipeline")
    steps = m.provenance[-(len(pipeline["functions"]) if pipeline else 1) :]
    for reference in (str(s.get("reference", "")) for s in steps):
        if not _is_kept(reference):
            return f'no source of its function "{reference}" is kept'
    source = str(steps[0].get("from", ""))
    there = home.find(ids.parse(source), settings.read(cache_dir))
    if there is not None and there not in gone:
        return ""
    if there is not None:
        why = obstacle(there, gone=gone, cache_dir=cache_dir)
        return f"{source}, which it was made of, is removed too: {why}" if why else ""
    return "" if origins.downloadable(source) else f"{source}, which it was made of, is not here"


def _is_kept(reference: str) -> bool:
    """Whether a function is in a module or a file; not one of a notebook, or a lambda."""
    if ":" in reference:
        return True
    from rlds_cli.preprocess import builtin  # slow to start

    return reference.replace("-", "_") in builtin.MODULES


def _of_archive(id: DatasetId, path: Path) -> str:
    if id.family == registry.LOCAL:
        files = origins.own_files(path)
        lost = [file for file, _ in files if not file.is_file()]
        return f"{lost[0]}, which it was imported from, is gone" if lost else ""
    if origins.downloadable(str(id.base)) or Home(path.parents[2]).archive(id).is_dir():
        return ""
    return "nothing offers its archive any more, and it is not kept"
