"""The versions of a dataset: its directory is the newest, and earlier ones lie beside it.

A version is a whole dataset of its own, whose files of rows are shared with the others by hard links::

    <home>/datasets/<family>/<name>/           the newest version
    <home>/versions/<family>/<name>/<number>/  each earlier one

So whatever opens, checks or copies a dataset does the same with a version. On a disk without hard links the newest one
refers to the earlier one that has the files. A change is published as any dataset is: the
new directory takes the place of the newest one in one step, after that one has got a place among the earlier ones.

A growing dataset keeps all versions in its own directory: one for each record of its log of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.base.files import disk, publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.hashing import short
from rlds_cli.base.refs import Ref
from rlds_cli.base.text import plural
from rlds_cli.errors import DamagedDataset, DatasetNotFound, NameTaken, RldsError
from rlds_cli.store import commits, manifest, paths, references, sharing, tags


def newest_of(path: Path) -> Path:
    """Return the directory of the newest version, given that of any version."""
    path = path.absolute()
    if len(path.parents) > 3 and path.parents[2].name == paths.VERSIONS and path.name.isdecimal():
        found = path.parents[3] / "datasets" / path.parents[1].name / path.parent.name
        return found if found.is_dir() else path
    return path


def earlier(path: Path) -> list[int]:
    """Return the numbers of the earlier versions on this disk, in order. Higher ones belong to a dataset before it."""
    try:
        numbers = sorted(int(p.name) for p in paths.earlier_versions(path).iterdir() if p.name.isdecimal())
        return [n for n in numbers if n < manifest.read(path).version]
    except (OSError, IndexError, DamagedDataset):
        return []


def newest(path: Path) -> int:
    """Return the number of the newest version."""
    return commits.last(path).number if (path / commits.FILE).exists() else manifest.read(path).version


@dataclass(frozen=True, slots=True)
class Made:
    """A version as records say that it was made.

    ``step`` is that of its provenance that made it; without one ``by`` says what did: a reader, a writer's commit.
    The fingerprint is empty where it is computed when it is asked for.
    """

    number: int
    created: str
    step: Mapping[str, Any] | None
    by: str
    episodes: int
    steps: int
    fingerprint: str


def made(path: Path) -> list[Made]:
    """Return how each version that is here was made, the oldest first, of a dataset whose versions are directories."""
    return [
        Made(
            m.version,
            m.created,
            m.provenance[-1] if m.provenance else None,
            m.reader,
            m.counts.episodes,
            m.counts.steps,
            m.fingerprint,
        )
        for m in (manifest.read(p) for p in reversed(directories(path)))
    ]


def directories(path: Path) -> list[Path]:
    """Return the directories of the versions of a dataset on this disk, the newest first."""
    return [path, *(paths.earlier_versions(path) / str(n) for n in reversed(earlier(path)))]


def at(path: Path, number: int) -> Path:
    """Return the directory of a version of the dataset in ``path``, which does not grow.

    Raises
    ------
    DatasetNotFound
        It is not here; the message names those that are.
    """
    if number == manifest.read(path).version:
        return path
    if number in earlier(path):
        return paths.earlier_versions(path) / str(number)
    raise _missing(path, number)


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
    if ref.tag is not None or ref.version is not None:
        number = tags.number(path, ref.tag) if ref.tag is not None else ref.version
        if number is not None and number in _numbers(path):
            return number
        raise _missing(path, number or 0)
    for number in _numbers(path):
        with suppress(DatasetNotFound):
            if fingerprint(path, number).startswith(ref.fingerprint or ""):
                return number
    raise DatasetNotFound(
        f"No version of {path} has the fingerprint {short(ref.fingerprint or '')}.",
        hint="rlds inspect shows the fingerprint of the newest one",
    )


def _missing(path: Path, number: int) -> DatasetNotFound:
    found = _numbers(path)
    there = f"version {found[0]:,} is the only one" if len(found) == 1 else f"the newest is {found[0]:,}"
    return DatasetNotFound(f"{path} has no version {number:,}; {there}.", hint=f"#v{found[0]}")


def _numbers(path: Path) -> range | list[int]:
    """Return the numbers of all versions, the newest first."""
    if (path / commits.FILE).exists():
        return range(commits.last(path).number, -1, -1)
    return [manifest.read(path).version, *reversed(earlier(path))]


def publish(built: Path, path: Path) -> None:
    """Make the dataset in ``built`` the newest version of the one in ``path``, which becomes an earlier one.

    The caller holds the lock of the dataset. A crash at any moment leaves the one or the other as the newest. Where
    files cannot get second names, the directory of the newest version moves to the earlier ones, and references of
    others follow it. A crash before the new one is in its place leaves a mark, and `restore` moves it back.
    """
    moving = paths.earlier_versions(path) / paths.MOVING
    _carry(path, built)
    if not disk.takes_links(path.parent):
        publishing.seal(built)  # so that the place is empty for two renames alone
        safe_files.make(moving.parent)
        safe_files.write_bytes(moving, b"")
    keep(path, path)
    publishing.publish(built, path)
    moving.unlink(missing_ok=True)


def restore(path: Path) -> None:
    """Move the newest version back to ``path`` if the process that was to publish the next one has ended before.

    The caller holds the lock of the dataset.
    """
    top = paths.earlier_versions(path)
    numbers = [int(p.name) for p in top.iterdir() if p.name.isdecimal()]
    if not path.exists() and numbers:
        (top / str(max(numbers))).rename(path)
    (top / paths.MOVING).unlink(missing_ok=True)


def keep(version: Path, path: Path) -> Path:
    """Give a version of the dataset in ``path`` a place among the earlier ones, by its number; return the place.

    Its files get second names there; where they cannot, its directory moves there. The caller holds the lock of the
    dataset.
    """
    m, version_id = manifest.read_with_version_id(version)
    place = paths.earlier_versions(path) / str(m.version)
    if not _holds(place, version_id):
        aside = place.with_name(f".{place.name}.new")
        trees.discard(aside)
        if disk.takes_links(place):
            sharing.link_tree(version, aside, apart=(tags.FILE,))
        else:
            aside = version
        if place.is_dir():  # of a dataset that this one has replaced
            publishing.remove(place)
        safe_files.make(place.parent)
        aside.rename(place)
        (place / tags.FILE).unlink(missing_ok=True)
    return place


def replace(built: Path, path: Path, *, growing: bool = False) -> None:
    """Put the dataset in ``built`` in the place of the one in ``path``, if there is one, and of its earlier versions.

    A dataset that is made again with the same content keeps tags and earlier versions. So does the copy of a growing
    dataset, of which a later version is fetched.

    Raises
    ------
    NameTaken
        The dataset has tags, or has the rows of another one in a home without hard links; nothing was replaced.
    """
    _check_not_referred(path)
    if growing or _is_again(built, path):
        _carry(path, built)
        publishing.publish(built, path, growing=growing)
        return
    check_replaceable(path)
    publishing.publish(built, path)
    remove(path)


def supersede(built: Path, path: Path) -> None:
    """Put the dataset in ``built`` in the place of the one in ``path``: as a later version of it if its number is one.

    Raises
    ------
    NameTaken
        As `replace`.
    """
    there = (path / "zarr.json").exists() and not (path / commits.FILE).exists()
    if there and manifest.read(path).version < manifest.read(built).version:
        publish(built, path)
    else:
        replace(built, path)


def _carry(path: Path, newer: Path) -> None:
    """Give the directory of a newer version the tags of a dataset, and what `rlds index` wrote beside its files."""
    tags.carry(path, newer)
    for file in trees.files(path):
        name = file.relative_to(path).as_posix()
        if paths.INDEXED.fullmatch(name):
            (newer / name).parent.mkdir(safe_files.DIRECTORY, exist_ok=True)
            disk.share(file, newer / name, sealed=True)


def check_replaceable(path: Path) -> None:
    """Refuse to replace a dataset that has tags: somebody relies on these versions.

    Raises
    ------
    NameTaken
    """
    named = tags.described(path)
    if named:
        id = manifest.read(path).id
        count = plural(len(_numbers(path)), "version")
        raise NameTaken(
            f"{id} has tags: {named}. Replacing it would remove them, and {count}. Nothing was replaced.",
            hint=f"another name; or rlds rm {id}, which removes it with its tags, and the same command again",
        )


def _check_not_referred(path: Path) -> None:
    """Refuse to replace a dataset that has the rows of others in the home, where these cannot have names of their own.

    Raises
    ------
    NameTaken
    """
    if not (path / "zarr.json").exists() or disk.takes_links(path.parent):
        return
    others = (p for p in path.parents[1].glob("*/*") if p != path and (p / "zarr.json").exists())
    for other in others:
        for place in directories(other):
            if any(path in s.datasets(place / "zarr.json") for s in references.sources(place)):
                id = manifest.read(other).id
                raise NameTaken(
                    f"{path} has the rows of {id}, since its disk has no hard links. Nothing was replaced.",
                    hint=f"rlds compact {id} writes rows of its own for it",
                )


def _is_again(built: Path, path: Path) -> bool:
    """Return whether ``built`` has the content and the number of the dataset in ``path``, or repairs its manifest."""
    if not (path / "zarr.json").exists():
        return False
    new = manifest.read(built)
    try:
        old = manifest.read(path)
    except RldsError:
        return True
    return (new.fingerprint, new.version) == (old.fingerprint, old.version)


def _holds(place: Path, version_id: str) -> bool:
    """Return whether a version is stored in ``place``."""
    try:
        return manifest.read_with_version_id(place)[1] == version_id
    except (RldsError, OSError):
        return False


def remove(path: Path) -> None:
    """Remove the earlier versions of the dataset that is, or was, in ``path``."""
    if paths.earlier_versions(path).is_dir():
        publishing.remove(paths.earlier_versions(path))
