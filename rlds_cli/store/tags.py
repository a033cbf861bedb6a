"""Tags of a dataset: names of versions, in ``tags.json`` of its directory. Needs no NumPy.

Tags are about a dataset, and not part of it: no digest covers them, and a merge leaves them behind. A push adds them to
the list of versions at the address.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlds_cli.base import refs, visible
from rlds_cli.base.files import disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import flock
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidId, NameTaken, NoPermission
from rlds_cli.store import files

FILE = "tags.json"
_LONGEST = 1 << 20  # bytes of the file


def read(dataset: Path) -> dict[str, int]:
    """Return the number of the version of every tag, sorted by name.

    Raises
    ------
    DamagedDataset
        The file holds something else.
    """
    path = dataset / FILE
    try:
        found = documents.loads(files.content(path, _LONGEST), longest=_LONGEST)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise DamagedDataset(f"{path} cannot be read: {e}.", hint=f"without {path} the dataset has no tags") from e
    if not isinstance(found, dict) or not all(
        refs.is_tag(name) and type(number) is int and number >= 0 for name, number in found.items()
    ):
        raise DamagedDataset(f"{path} does not hold tags.", hint=f"without {path} the dataset has no tags")
    return dict(sorted(found.items()))


def described(dataset: Path) -> str:
    """Return the tags with their versions as text, ``icra (v2), paper (v3)``; empty without tags."""
    return ", ".join(f"{name} (v{number})" for name, number in read(dataset).items())


def carry(dataset: Path, newer: Path) -> None:
    """Give the directory of a newer version the tags of a dataset, if it has some."""
    if (dataset / FILE).exists() and not (newer / FILE).exists():
        safe_files.write_bytes(newer / FILE, (dataset / FILE).read_bytes())


def number(dataset: Path, tag: str) -> int:
    """Return the number of the version that has a tag.

    Raises
    ------
    DatasetNotFound
        No version has it.
    """
    found = read(dataset)
    if tag not in found:
        known = f"its tags are {', '.join(found)}" if found else f"rlds tag {dataset} {tag} tags the newest version"
        raise DatasetNotFound(f"{dataset} has no tag {visible.shown(tag)}.", hint=known)
    return found[tag]


def add(dataset: Path, tag: str, version: int, *, force: bool = False) -> None:
    """Give a tag to a version; with ``force``, also one that another version has.

    Raises
    ------
    InvalidId
        The text is not a tag.
    NameTaken
        Another version has the tag.
    NoPermission
        The directory may not be written.
    """
    if not refs.is_tag(tag):
        raise InvalidId(
            f'"{visible.shown(tag)}" cannot be a tag.',
            hint="a letter, then letters, digits, `.`, `_` and `-`; v and a number names a version itself",
        )
    with _changing(dataset) as tags:
        known = tags.get(tag, version)
        if known != version and not force:
            raise NameTaken(f"{dataset}: version {known:,} has the tag {tag}.", hint=f"--force moves it to {version:,}")
        tags[tag] = version


def remove(dataset: Path, tag: str) -> int:
    """Remove a tag; return the number of the version that had it.

    Raises
    ------
    DatasetNotFound
        No version has it.
    NoPermission
        The directory may not be written.
    """
    with _changing(dataset) as tags:
        found = number(dataset, tag)
        del tags[tag]
    return found


@contextmanager
def _changing(dataset: Path) -> Iterator[dict[str, int]]:
    """Let the caller change the tags, one process at a time, and replace the file."""
    descriptor = os.open(dataset, os.O_RDONLY)
    try:
        with suppress(OSError):  # not on every file system
            flock(descriptor, dataset)
        tags = read(dataset)
        yield tags
        safe_files.replace_text(dataset / FILE, documents.dumps(dict(sorted(tags.items())), FILE))
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise disk.disk_error(e, dataset / FILE, kept="The tags are as they were.") from e
        raise NoPermission(f"{dataset} may not be written, and its tags are kept there.") from e
    finally:
        os.close(descriptor)
