"""Remove versions from an address, and the objects that only they need."""

from __future__ import annotations

from dataclasses import dataclass

from rlds_cli.base import settings
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import InvalidArgument
from rlds_cli.places import Address, PushedDataset, Versions, open_objects
from rlds_cli.places.remote.versions import PushedVersion
from rlds_cli.places.sources.objects import Objects
from rlds_cli.share import pushing
from rlds_cli.store import is_indexed

_PREFIXES = ("objects/", "blocks/", "groups/", "indexes/")


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed from an address, or would be (``dry_run``).

    Attributes
    ----------
    address, id : str
    kept, removed : tuple of Version
        Oldest first.
    tags : tuple of str
        Tags that were removed with their versions.
    objects, bytes : int
        Files that were removed, and their sizes.
    dry_run : bool
    """

    address: str
    id: str
    kept: tuple[PushedVersion, ...]
    removed: tuple[PushedVersion, ...]
    tags: tuple[str, ...]
    objects: int
    bytes: int
    dry_run: bool = False


def collect(
    address: StrPath,
    *,
    keep_last: int = 1,
    keep_tags: bool = True,
    dry_run: bool = False,
    home: StrPath | None = None,
) -> Collected:
    """Remove versions from an address, and the objects that no other version there needs.

    Locks and pins of a version that is removed no longer find it, and loaders that read it end with an error. A push to
    the same address at the same time may have to be repeated.

    Parameters
    ----------
    address : str or path
        See `Address.parse`; without a version.
    keep_last : int
        Number of versions that stay, counted from the newest: 1 or more.
    keep_tags : bool
        Versions with tags stay, too.
    dry_run : bool
        Remove nothing.
    home : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    DatasetNotFound
        No dataset was pushed there.
    InvalidArgument
        The address names a version, or no version would stay.
    UploadFailed, DownloadFailed, DamagedDataset, NewerFormat
        Objects are removed last, so every version that is listed is whole.
    """
    place = Address.parse(address)
    pushing.check_writable(place)
    if keep_last < 1:
        raise InvalidArgument(f"keep_last={keep_last} would leave no version.", hint="1 or more")
    with open_objects(place, settings.read(home)) as objects:
        there, document = PushedDataset(objects).versions()
        stay = there.kept(last=keep_last, tagged=keep_tags)
        left = {v.index for v in stay.versions}
        stored = {name: size for prefix in _PREFIXES for name, size in objects.names(prefix).items()}
        listed = {name: size for name, size in stored.items() if is_indexed(name)}
        needed = _needed(objects, stay)
        unneeded = {name: size for name, size in listed.items() if name not in needed}
        if not dry_run:
            if stay != there:
                pushing.replace_versions(objects, stay.to_bytes(), document)
            objects.delete_all(unneeded)
            objects.tidy()
    return Collected(
        address=str(place),
        id=there.id,
        kept=stay.versions,
        removed=tuple(v for v in there.versions if v.index not in left),
        tags=tuple(sorted(there.tags.keys() - stay.tags.keys())),
        objects=len(unneeded),
        bytes=sum(unneeded.values()),
        dry_run=dry_run,
    )


def _needed(objects: Objects, stay: Versions) -> set[str]:
    """Return the names of all files of the versions that stay."""
    needed = set[str]()
    for version in stay.versions:
        index = PushedDataset(objects).index(version.index)
        needed |= {name for o in index.objects for name in o.stored} | {index.groups_name, index.name}
    return needed
