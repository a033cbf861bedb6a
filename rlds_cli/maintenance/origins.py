"""Where a dataset came from, compared with what is there of it now: the archive, the registry, the source dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_cli import home, ids, registry, settings
from rlds_cli.downloads.sources import local
from rlds_cli.errors import RldsError
from rlds_cli.files.hashing import sha256_of
from rlds_cli.home import Home
from rlds_cli.settings import StrPath
from rlds_cli.store import manifest
from rlds_cli.store.check import Problem
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store

Found = tuple[list[str], list[Problem]]


def compare(path: Path, fingerprint: str | None, *, cache_dir: StrPath | None = None) -> Found:
    """What is known of the origins of the dataset in ``path``: remarks, and what is wrong with them."""
    try:
        m = manifest.read(path)
        sources = Store(path, check=False).sources
    except (RldsError, OSError, ValueError, KeyError):
        return [], []  # the check of the dataset itself says so
    if m.provenance and ids.parse(m.id).variant:
        return _derived(m, cache_dir), []
    remarks, problems = _archive(path, m, sources) if sources else ([], [])
    return remarks, [*unpublished(m, sources), *problems]


def unpublished(m: Manifest, sources: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """What tells that a dataset with an id of the registry is not made of the files that the registry knows."""
    if m.provenance and ids.parse(m.id).variant:
        return []
    entry = registry.listed(m.id)
    if entry is not None and entry.verifiable and not sources:
        return [Problem("sources", f"name no file; the registry has {_listed(f.path for f in entry.files)}")]
    return [Problem("sources", text) for text in contradictions(m.id, sources)]


def contradicted(path: Path) -> bool:
    """Whether the dataset in ``path`` says that it is made of other files than the registry knows."""
    try:
        m = manifest.read(path)
        return not m.provenance and any(contradictions(m.id, Store(path, check=False).sources))
    except (RldsError, OSError, ValueError, KeyError):
        return False  # where that cannot be read it says nothing


def contradictions(id: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """In which ``files``, with their sizes and hashes, are not those of the registry; nothing where it knows none.

    Parameters
    ----------
    id : str
        Of the dataset that was made of them.
    files : sequence of mappings
        ``file``, ``size`` and ``sha256`` of each, as manifests and lock files have them.
    """
    entry = registry.listed(id)
    if entry is None or not entry.files:
        return
    known = {f.path: f for f in entry.files}
    for file in files:
        name = str(file.get("file"))
        published = known.get(name)
        if published is None:
            yield f"{name} is no file of {entry.id}: the registry has {_listed(known)}"
            continue
        for what, now, then in (
            ("sha256", file.get("sha256"), published.sha256),
            ("size", file.get("size"), published.size),
        ):
            if then is not None and now != then:
                yield f"{name} has {what} {now or 'none'}; the registry has {then}"
                break


def _listed(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def altered(path: Path, archive: Path) -> set[str]:
    """The files of an archive that are there, and are not what the dataset in ``path`` was made of."""
    made_of = [s for s in Store(path, check=False).sources if s.get("sha256")]
    there = [(s, archive / str(s.get("file"))) for s in made_of]
    return {str(s.get("file")) for s, file in there if file.is_file() and _changed(s, file) is not None}


def downloadable(id: str) -> bool:
    """Whether the registry can bring the dataset again."""
    try:
        return ids.parse(id).variant is None and registry.get(id).status != "closed"
    except RldsError:
        return False


def mendable(id: str, path: Path) -> bool:
    """Whether ``rlds verify --fix`` may make it again: from its source, its archive, or the user's own files."""
    try:
        found = ids.parse(id)
        if contradicted(path) or (found.variant and manifest.read(path).provenance):
            return False
        if found.family == "local":
            return bool(own_files(path))
        return registry.get(str(found.base)).status != "closed" or Home(path.parents[2]).archive(found).is_dir()
    except (RldsError, OSError, ValueError, KeyError, IndexError):
        return False


def own_files(path: Path) -> list[tuple[Path, str]]:
    """The files that an import was made of, where they were then, and their sha256; empty where that is not known."""
    made_of = Store(path, check=False).sources
    if not all(str(s.get("url", "")).startswith("file:") and s.get("sha256") for s in made_of):
        return []
    return [(local.path_of(str(s["url"])), str(s["sha256"])) for s in made_of]


def _derived(m: Manifest, cache_dir: StrPath | None) -> list[str]:
    step = m.provenance[-1]
    source, wanted = step.get("from"), str(step.get("source", "")).partition("+")[0]
    if not source or not wanted:
        return []
    try:
        there = home.find(ids.parse(str(source)), settings.read(cache_dir))
        if there is None:
            return [f"its source {source} is not here"]
        now = manifest.read(there).fingerprint
    except RldsError:
        return [f"its source {source} cannot be read"]
    return ["source unchanged"] if now == wanted else [f"its source {source} is another now ({now[:18]}...)"]


def _archive(path: Path, m: Manifest, sources: Sequence[Mapping[str, Any]]) -> Found:
    root = path.parents[2] if len(path.parents) > 2 else path
    directory = Home(root).archive(ids.parse(m.id))
    kept = [(s, directory / str(s.get("file"))) for s in sources]
    kept = [(s, file) for s, file in kept if s.get("sha256") and file.is_file()]
    problems = [p for s, file in kept if (p := _changed(s, file)) is not None]
    published = _published(m, sources)
    remarks = [published] if published else []
    if kept and not problems:
        remarks.append("archive unchanged" if published else f"no published hash: same as on {m.created[:10]}")
    elif not kept and not published:
        remarks.append("archive not kept")
    return remarks, problems


def _changed(source: Mapping[str, Any], file: Path) -> Problem | None:
    try:
        now = sha256_of(file)
    except OSError as e:
        return Problem(f"archive {file.name}", f"cannot be read: {e.strerror}")
    if now == source["sha256"]:
        return None
    return Problem(f"archive {file.name}", f"has sha256 {now}; this dataset was made of {source['sha256']}")


def _published(m: Manifest, sources: Sequence[Mapping[str, Any]]) -> str | None:
    """What the registry says to the hashes of the archive; None where it has none."""
    try:
        known = {f.path: f.sha256 for f in registry.get(m.id).files if f.sha256}
    except RldsError:
        return None
    pairs = [(s.get("sha256"), known[str(s.get("file"))]) for s in sources if str(s.get("file")) in known]
    if not pairs:
        return None
    return "archive sha256 known to the registry" if all(a == b for a, b in pairs) else None
