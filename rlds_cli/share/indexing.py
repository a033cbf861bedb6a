"""Make the directory of a dataset an address: write the index beside its files. No rows are copied.

::

    DIR/observation/c/0/0  ...                          files of rows stay: objects are parts of them
    DIR/objects/<sha256>                                copies of small files, which the next version may replace
    DIR/rlds.json  indexes/  groups/  blocks/           as a push writes them

So whatever serves the directory serves the dataset: a web server, a shared disk, a bucket that is mounted or that the
directory is copied to. A later version of the dataset is another version at the address, and the earlier ones stay as
long as their rows are where they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base import settings
from rlds_cli.base.progress import Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import version_of
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.places import Address, Index, PushedDataset, open_objects
from rlds_cli.places.remote.index import Object
from rlds_cli.places.remote.versions import PushedVersion
from rlds_cli.places.sources.objects import Objects
from rlds_cli.share import pushing, snapshot
from rlds_cli.share.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Indexed:
    """A directory that is an address.

    Attributes
    ----------
    id, address, fingerprint : str
    version : int
    index : str
        The sha256 of its index.
    files : int
        Files of rows, which stay where they are.
    written : int
        Bytes of copies of small files.
    tags : tuple of str
        Tags of this version.
    removed : tuple of PushedVersion
        Versions that are no longer at the address: their rows were replaced.
    """

    id: str
    address: str
    fingerprint: str
    version: int
    index: str
    files: int
    written: int
    tags: tuple[str, ...]
    removed: tuple[PushedVersion, ...]


def index(
    directory: StrPath,
    *,
    force: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Indexed:
    """Write the index of a dataset beside its files, so that its directory is an address.

    All rows are read and hashed; of a growing dataset that was indexed before, those that are new.

    Parameters
    ----------
    directory : str or path
        Of a dataset, at its newest version; ``DIR#v3`` names another version of a growing dataset.
    force : bool
        Replace the index of a dataset with another id.
    home : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    InvalidArgument
        Rows of the dataset are in another directory.
    DatasetNotFound
        There is no dataset.
    NameTaken
        The directory has the index of a dataset with another id.
    UploadFailed
        The directory cannot be written.
    DamagedDataset
        The dataset is damaged, or its index.

    Examples
    --------
    >>> import rlds_cli, shutil, tempfile
    >>> ds = rlds_cli.download("sample/pendulum-d4rl", home=tempfile.mkdtemp())
    >>> copy = shutil.copytree(ds.path, tempfile.mkdtemp() + "/pendulum")
    >>> rlds_cli.index(copy).fingerprint == ds.fingerprint
    True
    """
    ref, where = version_of(directory, home=home), settings.read(home)
    taken, address = snapshot.take(ref), Address.parse(Path(ref.place))
    rows = _files_of_rows(taken, Path(ref.place))
    done = pushing.send(taken, address, where, force=force, in_place=rows, progress=shown(progress))
    with open_objects(address, where) as objects:
        removed = _remove_replaced(objects, PushedDataset(objects).index(done.index))
    return Indexed(
        id=done.id,
        address=done.address,
        fingerprint=done.fingerprint,
        version=done.version,
        index=done.index,
        files=len(rows),
        written=done.sent,
        tags=done.tags,
        removed=removed,
    )


def _files_of_rows(taken: Snapshot, directory: Path) -> Collection[str]:
    """Return the files of rows of a snapshot; raises InvalidArgument if one is in another directory."""
    table = taken.store.table
    arrays = {c.directory.as_posix() for c in (*table.columns(), *table.digest_columns())}
    found = set()
    for f in taken.files:
        above = {f.path[:k] for k in range(len(f.path)) if f.path[k] == "/"}
        if f.file is None or arrays.isdisjoint(above) or f.path.endswith("/zarr.json"):
            continue
        if f.file != directory / f.path:
            raise InvalidArgument(
                f"{f.file} holds rows of {directory}, and is outside of it: readers of the address would not find it.",
                hint=f"rlds compact {directory} copies them; or rlds push {directory} ADDRESS",
            )
        found.add(f.path)
    return found


def _remove_replaced(objects: Objects, newest: Index) -> tuple[PushedVersion, ...]:
    """Remove the versions from an address whose rows are no longer where they were; return them."""
    pushed = PushedDataset(objects)
    there, document = pushed.versions()
    known = dict.fromkeys(newest.objects, True)

    def has_rows(version: PushedVersion) -> bool:
        try:
            needed = pushed.index(version.index).objects
        except RldsError:
            return False
        for o in needed:
            if o.path and o not in known:
                known[o] = _is_unchanged(objects, o)
        return all(known.get(o, True) for o in needed)

    stay = there.of_indexes({v.index for v in there.versions if has_rows(v)})
    if stay != there:
        pushing.replace_versions(objects, stay.to_bytes(), document)
    return tuple(v for v in there.versions if v not in stay.versions)


def _is_unchanged(objects: Objects, o: Object) -> bool:
    """Return whether a part of a file has the content that it had."""
    digest = hashlib.sha256()
    try:
        objects.stream(o.path, o.at, o.at + o.size, digest.update)
    except RldsError:
        return False
    return digest.hexdigest() == o.sha256
