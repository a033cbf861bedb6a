"""References: the rows of a dataset that lie in another one, on another disk or of another user.

Where files of rows cannot get a second name, the directory of an array holds one small file instead of them::

    observation/reference.json    {"dataset": "/data/home/datasets/local/day1", "id": "local/day1", "version": 3,
                                   "version_id": "5f0e...", "array": "observation"}

It names a version of a dataset, and an array in it. The version is looked for where it was, and among the earlier
versions of that dataset, and at the same places of the home that the reference lies in, which may have moved; another
version, also of the same number, is refused.

Neither the manifest nor the list of digests knows of references: they describe the files of a dataset as if all of them
were its own, so that its version id does not depend on where its rows lie. Who reads an array asks `place`, and who
reads all files asks `files`. A reference never leads to another one. Needs neither NumPy nor zarr.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.store import files as store_files
from rlds_cli.store import paths
from rlds_cli.store.manifest import Manifest

FILE = paths.REFERENCE
_DOCUMENT = "zarr.json"
_DATASETS = "datasets"
_IN_HOME = (_DATASETS, paths.VERSIONS, "partial")  # directories of a home
_LONGEST = 64 << 10  # bytes of a reference
_HINT = "rlds verify ID"


@dataclass(frozen=True, slots=True)
class ReferencedVersion:
    """A version of a dataset whose rows others refer to.

    Attributes
    ----------
    dataset : str
        The directory of the newest version when the reference was written, absolute.
    id : str
    version : int
    version_id : str
        The sha256 of its manifest's file.
    """

    dataset: str
    id: str
    version: int
    version_id: str

    def __str__(self) -> str:
        return f"{self.id}#v{self.version} in {self.dataset}"

    def datasets(self, near: Path) -> list[Path]:
        """Return where the dataset may be: where it was, and in the home that ``near`` lies in, which may have moved.

        ``near`` is a directory of what refers to it.
        """
        there = Path(self.dataset)
        tops = [p.parent for p in near.absolute().parents if p.name in _IN_HOME]
        return list(dict.fromkeys([there, *(top / _DATASETS / there.parent.name / there.name for top in tops)]))

    def place(self, of: object, near: Path) -> Path:
        """Return the directory in which the version is now.

        Parameters
        ----------
        of : object
            What refers to it, for the message.
        near : Path
            As of `datasets`.

        Raises
        ------
        DatasetNotFound
            It is not there, may not be read, or another one has replaced it.
        """
        there = Path(self.dataset)
        for dataset in self.datasets(near):
            earlier = [paths.earlier_versions(dataset) / str(self.version)] if len(dataset.parents) > 2 else []
            for place in (dataset, *earlier):
                if _version_id(place) == self.version_id:
                    return place
        gone = "is not there or may not be read" if _version_id(there) is None else "was removed or replaced"
        raise DatasetNotFound(
            f"{of} refers to the rows of version {self.version:,} of {self.id} in {self.dataset}, which {gone}.",
            hint=f"mount or restore {self.dataset}; while a source exists, rlds compact ID copies its rows",
        )


@dataclass(frozen=True, slots=True)
class _Reference:
    source: ReferencedVersion
    array: str  # its path below the dataset


# -- reading


def is_reference(directory: Path) -> bool:
    """Return whether a directory has a reference in the place of an array."""
    return os.path.exists(f"{directory}/{FILE}")  # noqa: PTH110  (asked for every array that is opened)


def place(directory: Path) -> Path:
    """Return the directory in which an array lies: ``directory``, or the one that it refers to.

    Raises
    ------
    DatasetNotFound
        As `ReferencedVersion.place`.
    DamagedDataset
        The reference cannot be read, or leads to no array.
    """
    found = _read(directory) if is_reference(directory) else None
    if found is None:
        return directory
    array = found.source.place(directory, directory) / found.array
    if is_reference(array):
        raise DamagedDataset(f"{directory / FILE} leads to another reference: {array}.", hint=_HINT)
    return array


def files(directory: Path) -> dict[str, Path]:
    """Return all regular files below a directory by name, with those of arrays that it refers to, in no order.

    Raises
    ------
    DatasetNotFound, DamagedDataset
        As `place`; or something that is referred to is not a regular file.
    """
    found: dict[str, Path] = {}
    for name, file in _regular(directory):
        above, _, last = name.rpartition("/")
        if last != FILE:
            found[name] = file
            continue
        array = place(file.parent)
        store_files.check_tree(array)
        found |= {f"{above}/{below}" if above else below: f for below, f in _regular(array)}
    return found


def _regular(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the regular files below a directory, with their names there."""
    above = len(os.path.join(directory, ""))  # noqa: PTH118  (a Path has no slash at its end)
    return ((e.path[above:], Path(e.path)) for e in trees.below(directory) if e.is_file(follow_symlinks=False))


def sources(dataset: Path) -> tuple[ReferencedVersion, ...]:
    """Return the versions that a dataset refers to, each once; whether they are there is not checked.

    Raises
    ------
    DamagedDataset
        A reference cannot be read, or the dataset holds something else than directories and regular files.
    """
    below = sorted(store_files.check_tree(dataset, named=FILE))
    found = (_read(path.parent) for path in below)
    return tuple(dict.fromkeys(r.source for r in found if r is not None))


def _read(directory: Path) -> _Reference | None:
    """Return the reference in a directory, if there is one."""
    path = directory / FILE
    try:
        text = store_files.read_regular(path, _LONGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise DamagedDataset(f"{path} cannot be read: {e}", hint=_HINT) from e
    try:
        return _parsed(documents.loads(text))
    except (KeyError, TypeError, ValueError) as e:
        raise DamagedDataset(f"{path} is not a reference to an array ({type(e).__name__}: {e}).", hint=_HINT) from e


def _parsed(values: Mapping[str, object]) -> _Reference:
    dataset, id, version_id, array = (str(values[n]) for n in ("dataset", "id", "version_id", "array"))
    version = values["version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"version {str(version)[:40]!r}")
    if not Path(dataset).is_absolute() or "\0" in dataset or not paths.is_array_path(array):
        raise ValueError(f"{array[:80]!r} in {dataset[:80]!r}")
    return _Reference(ReferencedVersion(dataset, id, version, version_id), array)


def _version_id(directory: Path) -> str | None:
    """Return the version id of the dataset in a directory; None if there is none that may be read."""
    try:
        status = (directory / _DOCUMENT).stat()
        return _hashed(directory / _DOCUMENT, status.st_ino, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError, DamagedDataset):
        return None


@lru_cache(maxsize=256)
def _hashed(file: Path, *_: int) -> str:
    """Return the sha256 of a file, which is hashed again when its inode, time or size changes."""
    return hashlib.sha256(store_files.read_regular(file, Manifest.LONGEST)).hexdigest()


# -- writing


def refer(source: ReferencedVersion, name: str, directory: Path) -> None:
    """Have ``directory``, which does not exist, refer to all arrays below the directory ``name`` of a version.

    Documents of groups, and existing references, are copied, so that each reference leads to rows.

    Raises
    ------
    DatasetNotFound, DamagedDataset
        The version is not there, or holds what no dataset holds.
    """
    top = source.place(directory, directory)
    store_files.check_tree(top / name)
    for below in _arrays(top / name):
        target = directory / below.relative_to(top / name)
        safe_files.make(target.parent)
        target.mkdir(safe_files.DIRECTORY)
        if is_reference(below) or _is_group(below):
            document = FILE if is_reference(below) else _DOCUMENT
            safe_files.write_bytes(target / document, (below / document).read_bytes())
        else:
            values = {**asdict(source), "array": below.relative_to(top).as_posix()}
            safe_files.write_bytes(target / FILE, json.dumps(values).encode())


def _arrays(directory: Path) -> Iterator[Path]:
    """Yield the directories of arrays, references and groups, a group before what is in it."""
    yield directory
    if not is_reference(directory) and _is_group(directory):
        for below in sorted(p for p in directory.iterdir() if p.is_dir()):
            yield from _arrays(below)


def _is_group(directory: Path) -> bool:
    """Return whether a directory holds the document of a group; arrays in segments are groups, too."""
    path = directory / _DOCUMENT
    try:
        return bool(documents.loads(store_files.read_regular(path, documents.LONGEST))["node_type"] == "group")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DamagedDataset(f"{path} cannot be read: {e}", hint=_HINT) from e
