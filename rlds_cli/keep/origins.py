"""Compare a dataset with its origins (archive, registry, source dataset), and decide which archives are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, settings
from rlds_cli.base.files import bundles, trees
from rlds_cli.base.files.names import is_unfinished
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import RldsError
from rlds_cli.homes import Home, is_dataset
from rlds_cli.make import MERGED
from rlds_cli.places import FileRecord, Origins, as_url
from rlds_cli.registry import Entry
from rlds_cli.store import History, Manifest, Problem, StoredDataset, open_store

Found = tuple[list[str], list[Problem]]


def compare(path: Path, fingerprint: str | None, *, home: StrPath | None = None) -> Found:
    """Compare the dataset in ``path`` with its origins; returns remarks and problems."""
    try:
        m = Manifest.read(path)
        sources = open_store(path, check=False).sources
    except (RldsError, OSError, ValueError, KeyError):
        return [], []  # the check of the dataset itself reports it
    if m.provenance and ids.parse(m.id).variant:
        return _derived(m, home), []
    remarks, problems = _archive(path, m, sources) if sources else ([], [])
    entry = registry.listed(m.id)
    unpublished = entry.unpublished(sources) if entry else ()
    return remarks, [*(Problem("sources", what) for what in unpublished), *problems]


def altered(path: Path, archive: Path) -> set[str]:
    """Return the files of an archive that differ from those that the dataset in ``path`` was made of."""
    made_of = [s for s in open_store(path, check=False).sources if s.get("sha256")]
    there = [(s, archive / str(s.get("file"))) for s in made_of]
    return {str(s.get("file")) for s, file in there if bundles.is_file(file) and _changed(s, file) is not None}


def downloadable(id: str) -> bool:
    """Return whether the dataset can be downloaded again."""
    try:
        entry = registry.known(id) if ids.parse(id).variant is None else None
    except RldsError:
        return False
    return entry is not None and entry.status != "closed"


def described(path: Path) -> Entry | None:
    """Return the entry in the manifest of the dataset in ``path``; None if the package's registry has its family."""
    try:
        m = Manifest.read(path)
        line = None if m.provenance else m.options.get("entry")
    except (RldsError, OSError, ValueError):
        return None
    return registry.described(m.id, line) if isinstance(line, Mapping) else None


def contradicted(path: Path) -> bool:
    """Return whether the dataset in ``path`` names other files than the registry."""
    try:
        m = Manifest.read(path)
        entry = None if m.provenance else registry.listed(m.id)
        return entry is not None and any(entry.contradictions(open_store(path, check=False).sources))
    except (RldsError, OSError, ValueError, KeyError):
        return False  # an unreadable dataset names no files


def mendable(id: str, path: Path) -> bool:
    """Return whether ``rlds verify --fix`` may repair it: from its source, its archive, or the user's own files."""
    try:
        found = ids.parse(id)
        if Manifest.read(path).reader in (MERGED, ""):  # made of no files of its own
            return False
        if contradicted(path) or (found.variant and Manifest.read(path).provenance):
            return False
        if described(path) is not None:
            return True
        if found.family == "local":
            return bool(own_files(path))
        return registry.get(str(found.base)).status != "closed" or Home(path.parents[2]).archive(found).is_dir()
    except (RldsError, OSError, ValueError, KeyError, IndexError):
        return False


def fetch_again(path: Path) -> str | None:
    """Return the hint for a damaged dataset that is at an address, too; None for others."""
    try:
        m = Manifest.read(path)
        origin = Origins(path).of_version()
    except (RldsError, OSError, ValueError):
        return None
    if origin is None or ids.parse(m.id).family != ids.LOCAL:
        return None
    return f"rlds download {origin.address} --name {m.id} --force fetches what differs"


def own_files(path: Path) -> list[tuple[Path, str]]:
    """Return the paths that an import was made of, with their sha256; empty if they are not recorded."""
    made_of = open_store(path, check=False).sources
    if not all(str(s.get("url", "")).startswith("file:") and s.get("sha256") for s in made_of):
        return []
    given = ((as_url(str(s["url"])).local_path, str(s["sha256"])) for s in made_of)
    return [(path, sha256) for path, sha256 in given if path is not None]


def _derived(m: Manifest, home: StrPath | None) -> list[str]:
    step = next((s for s in reversed(m.provenance) if s["from"] != m.id), None)  # others made versions of it
    if step is None:
        return []
    source, wanted = step["from"], step.get("of", step["source"])
    try:
        there = homes.path_of(ids.parse(str(source)), settings.read(home))
        if there is None:
            return [f"its source {source} is not here"]
        history = History(there)
        if step.get("version") in history.earlier:
            there = history.at(step["version"])
        now = StoredDataset(there).fingerprint()
    except RldsError:
        return [f"its source {source} cannot be read"]
    return ["source unchanged"] if now == wanted else [f"its source {source} has changed ({now[:18]}...)"]


def _archive(path: Path, m: Manifest, sources: Sequence[Mapping[str, Any]]) -> Found:
    root = path.parents[2] if len(path.parents) > 2 else path
    directory = Home(root).archive(ids.parse(m.id))
    kept = [(s, directory / str(s.get("file"))) for s in sources]
    kept = [(s, file) for s, file in kept if s.get("sha256") and bundles.is_file(file)]
    problems = [p for s, file in kept if (p := _changed(s, file)) is not None]
    known = _published(m, sources)
    remarks = [known] if known else []
    if kept and not problems:
        remarks.append("archive unchanged" if known else f"no published hash: same as on {m.created[:10]}")
    elif not kept and not known:
        remarks.append("archive not kept")
    return remarks, problems


def _changed(source: Mapping[str, Any], file: Path) -> Problem | None:
    try:
        now = bundles.sha256_of(file)
    except OSError as e:
        return Problem(f"archive {file.name}", f"cannot be read: {e.strerror}")
    if now == source["sha256"]:
        return None
    return Problem(f"archive {file.name}", f"has sha256 {now}; this dataset was made of {source['sha256']}")


def _published(m: Manifest, sources: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a remark if the registry has the hashes of the archive, else None."""
    entry = registry.known(m.id)
    known = {f.path: f.sha256 for f in entry.files if f.sha256} if entry else {}
    pairs = [(s.get("sha256"), known[str(s.get("file"))]) for s in sources if str(s.get("file")) in known]
    if not pairs:
        return None
    return "archive sha256 known to the registry" if all(a == b for a, b in pairs) else None


def archive_files(archive: Path) -> list[Path]:
    """Return the files of an archive, without records and unfinished downloads."""
    found = [f for f in sorted(trees.files(archive)) if not f.name.startswith(".")]
    records = {FileRecord.beside(f) for f in found}
    return [f for f in found if f not in records and not is_unfinished(f.name)]


def archive_needed(place: Home, id: DatasetId) -> str:
    """Say why the archive of ``id`` has to stay; empty if it can be downloaded again.

    If its dataset exists, it must have been made of exactly these files.
    """
    dataset, archive = place.dataset(id), place.archive(id)
    if not downloadable(str(id)) and described(dataset) is None:
        return "it cannot be downloaded again"
    if not is_dataset(dataset):
        return _holds_more(archive)
    try:
        made_of = {str(s.get("file")): s.get("sha256") for s in open_store(dataset).sources}
    except (RldsError, OSError, ValueError, KeyError) as e:
        return f"its dataset is damaged: {getattr(e, 'message', e)}"
    for file in archive_files(archive):
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
