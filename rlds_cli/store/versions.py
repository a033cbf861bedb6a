"""The versions of a dataset, of either kind, and which of them a reference means. Needs no NumPy.

A growing dataset has one version for each record of its log of commits. The manifest of an ordinary dataset names its
newest version; ``versions/N/zarr.json`` is the manifest of version N. Version 1 has none as long as there is no other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlds_cli.errors import DatasetNotFound
from rlds_cli.files.hashing import short
from rlds_cli.refs import Ref
from rlds_cli.store import commits, tags

DIRECTORY = "versions"


def newest(path: Path) -> int:
    """Return the number of the newest version."""
    return commits.last(path).number if (path / commits.FILE).exists() else _kept(path)[-1]


def manifest_of(path: Path, number: int) -> Path:
    """Return the directory with the manifest of a version of an ordinary dataset."""
    kept = path / DIRECTORY / str(number)
    return kept if kept.is_dir() else path


def resolve(path: Path, ref: Ref, fingerprint: Callable[[Path, int], str]) -> int:
    """Return the number of the version that a reference means; the newest one if it names none.

    Parameters
    ----------
    path : Path
        The directory of the dataset.
    ref : Ref
        Its place is not used.
    fingerprint : callable
        Returns the fingerprint of a version; raises DatasetNotFound for one that was freed.

    Raises
    ------
    DatasetNotFound
        There is no such version or tag.
    """
    if ref.selector is None:
        return newest(path)
    if ref.tag is not None:
        return _there(path, tags.number(path, ref.tag))
    if ref.version is not None:
        return _there(path, ref.version)
    for number in _numbers(path):
        with suppress(DatasetNotFound):
            if fingerprint(path, number).startswith(ref.fingerprint or ""):
                return number
    raise DatasetNotFound(
        f"No version of {path} has the fingerprint {short(ref.fingerprint or '')}.",
        hint="rlds inspect shows the fingerprint of the newest one",
    )


def _there(path: Path, number: int) -> int:
    """Return the number of a version that exists; whether it was freed is seen when it is opened."""
    found = _numbers(path)
    if number in found:
        return number
    there = f"version {found[0]:,}" if len(found) == 1 else f"the newest is {found[0]:,}"
    raise DatasetNotFound(f"{path} has no version {number:,}; {there}.", hint=f"#v{found[0]}")


def _numbers(path: Path) -> range | list[int]:
    """Return the numbers of all versions, the newest first."""
    if (path / commits.FILE).exists():
        return range(commits.last(path).number, -1, -1)
    return _kept(path)[::-1]


def _kept(path: Path) -> list[int]:
    """Return the numbers of the versions of an ordinary dataset, in order."""
    found = (path / DIRECTORY).glob("*/zarr.json")
    return sorted(int(file.parent.name) for file in found if file.parent.name.isdecimal()) or [1]
