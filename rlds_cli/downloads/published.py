"""Compare the files that a dataset was made of with those that the registry has published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_cli import ids, registry
from rlds_cli.errors import RldsError
from rlds_cli.store import manifest
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.sealing import Problem


def unpublished(m: Manifest, sources: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Return evidence that a dataset with an id of the registry was not made of the files in the registry."""
    if m.provenance and ids.parse(m.id).variant:
        return []
    entry = registry.listed(m.id)
    if entry is not None and entry.verifiable and not sources:
        return [Problem("sources", f"name no file; the registry has {_listed(f.path for f in entry.files)}")]
    return [Problem("sources", text) for text in contradictions(m.id, sources)]


def contradicted(path: Path) -> bool:
    """Return whether the dataset in ``path`` names other files than the registry."""
    try:
        m = manifest.read(path)
        return not m.provenance and any(contradictions(m.id, Store(path, check=False).sources))
    except (RldsError, OSError, ValueError, KeyError):
        return False  # an unreadable dataset names no files


def contradictions(id: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how ``files`` differ from those of the registry; nothing if the registry has no files for ``id``.

    Parameters
    ----------
    id : str
        Id of the dataset that was made of the files.
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
