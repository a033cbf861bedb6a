"""The versions of a dataset: when each was made, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlds_cli.growing.store import is_growing
from rlds_cli.store import commits, manifest, versions
from rlds_cli.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a dataset.

    Attributes
    ----------
    number : int
        Of the version: ``ID#vNUMBER`` opens it.
    created : str
        ISO-8601 time, UTC.
    change : str
        What made it: ``label quality="bad"``, or the reader for the first one.
    episodes, steps : int
    fingerprint : str
        Empty for a dataset that grows, whose fingerprints are computed when they are asked for.
    """

    number: int
    created: str
    change: str
    episodes: int
    steps: int
    fingerprint: str


def versions_of(path: Path) -> Sequence[Version]:
    """Return the versions of the dataset in ``path`` that are here, oldest first."""
    if is_growing(path):
        return _of_commits(path)
    newest = manifest.read(path)
    before = [manifest.read(versions.at(path, n)) for n in versions.earlier(path)]
    return [_of_manifest(m) for m in (*before, newest)]


def _of_manifest(m: Manifest) -> Version:
    return Version(m.version, m.created, change_of(m), m.counts.episodes, m.counts.steps, m.fingerprint)


def change_of(m: Manifest) -> str:
    """Say what made a dataset: the last step of its provenance, or its reader."""
    if not m.provenance:
        return m.reader
    return described(m.provenance[-1])


def described(step: Mapping[str, Any]) -> str:
    """Return a step of a provenance as text: the function and its arguments."""
    args = ", ".join(f"{name}={value!r}" for name, value in step["args"].items())
    return f"{step['function']} {args}".rstrip()


def _of_commits(path: Path) -> Sequence[Version]:
    found = commits.all_until(path, commits.last(path).number)
    return [Version(c.number, _time(c.time), "commit" if c.number else "created", c.kept, c.steps, "") for c in found]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
