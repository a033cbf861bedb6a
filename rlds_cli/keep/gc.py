"""Collect garbage in a home: packed rows, cached frames, interrupted work, rows of old versions, and archives.

Archives are garbage if they can be downloaded again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlds_cli.base import ids, settings
from rlds_cli.base.files import publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.files.names import SPANS
from rlds_cli.base.files.sizes import freed_by
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Progress, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.errors import InvalidId, NameTaken, NoPermission, RldsError
from rlds_cli.homes import Home, is_dataset, writing
from rlds_cli.store import GrowingDataset

Kind = Literal["packed", "frames", "measures", "partial", "archive", "versions", "remote"]
_PART = ".part"
_BUSY = "locked by another process"
_HELD = "a process reads an older version, or a tag names it"
_LINK, _FOREIGN, _UNKNOWN = "a link", "owned by another user", "not made by rlds"
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?:\d+\.)?[0-9a-f]{8,16}", re.DOTALL)
_PACKED = re.compile(r"[0-9a-f]+-[0-9a-f]+\.\w+|\.[0-9a-f]+-[0-9a-f]+\.\w+\.[0-9a-f]+\.part")
_WORK = re.compile(
    r"staging|pull|copy|version|mirror|blocks|view|encoding-(?:memmap|zarr)|(?:create|writer|append)-[0-9a-f]+|[0-9a-f]+(?:-again|-shards)?"
)
_CHECK = re.compile(r"check-\w+")
_GOING = re.compile(r"\.(?P<name>.+?)(?:\.[0-9a-f]{16})?\.(?:removed|old)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file or directory that can be removed, or that stays for the reason ``why``.

    ``bytes`` are those that become free: files with other hard links do not count. ``id`` is the dataset; None for
    packed rows and cached frames, which are named by content.
    """

    kind: Kind
    path: Path
    bytes: int
    id: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """The garbage of a home, to be removed or already removed, and the rest; ``bytes`` are those of ``removed``."""

    home: Path
    removed: tuple[Garbage, ...]
    kept: tuple[Garbage, ...]
    bytes: int


def find_garbage(*, archives: bool = False, remote: bool = False, home: StrPath | None = None) -> Collection:
    """List the garbage in the user's own home; nothing is changed.

    Packed rows are built again when a loader needs them, and frames are decoded again. Frames that a process uses stay.
    Measures of datasets that are in no home any more are removed.
    Rows of episodes that left a growing dataset are freed where no reader holds a version with them. Interrupted work
    is removed, with its finished parts, unless a process holds its lock. An archive is removed if it can be downloaded
    again and its dataset, if it exists, was made of exactly these files. Links, files of other users and files that
    rlds has not made stay.

    Parameters
    ----------
    archives : bool
        Also remove archives.
    remote : bool
        Also remove the cached blocks of datasets at an address that no process reads, and measures of these.

    Raises
    ------
    NoPermission
        The home is not writable, so that locks cannot be taken.
    """
    own = Home(settings.read(home).home)
    found = [*_links(own), *_packed(own), *_frames(own), *_partial(own), *_parts(own), *_aside(own)]
    found += [*_versions(own), *_measures(own, settings.read(home), elsewhere=remote)]
    if archives:
        found += _archives(own)
    if remote:
        found += _remote(own)
    with writing(own):
        return _collection(own, [replace(g, why=g.why or _busy(own, g)) for g in found])


def collect(planned: Collection, *, progress: Progress | bool | None = None) -> Collection:
    """Remove the planned garbage, one by one.

    A dataset is verified completely before its archive is removed. Garbage that another process has locked since the
    plan stays, and so does the archive of a dataset that has changed.

    Raises
    ------
    NoPermission
        Something may not be removed; earlier items are gone.
    """
    home = Home(planned.home)
    with writing(home):
        done = [replace(g, why=_remove(home, g, shown(progress))) for g in planned.removed]
    gone = tuple(g for g in done if not g.why)
    kept = (*planned.kept, *(g for g in done if g.why))
    return Collection(planned.home, gone, kept, sum(g.bytes for g in gone))


def _collection(home: Home, found: Sequence[Garbage]) -> Collection:
    sized, kept = _sized([g for g in found if not g.why]), _sized([g for g in found if g.why])
    return Collection(home.root, sized, kept, sum(g.bytes for g in sized))


def _sized(found: Sequence[Garbage]) -> tuple[Garbage, ...]:
    """Return garbage with the bytes that become free; those of versions are known."""
    freed = iter(freed_by([g.path for g in found if g.kind != "versions"]))
    return tuple(g if g.kind == "versions" else replace(g, bytes=next(freed)) for g in found)


# -- candidates


def _links(home: Home) -> Iterator[Garbage]:
    """Yield links in place of the home's own directories; they are not followed."""
    tops = (home.root / name for name in home.DIRECTORIES)
    families = (f for top in ("archives", "datasets") for f in _children(home.root / top))
    yield from (Garbage("partial", path, 0, why=_LINK) for path in (*tops, *families) if path.is_symlink())


def _packed(home: Home) -> Iterator[Garbage]:
    for file in _children(home.root / "packed"):
        known = _PACKED.fullmatch(file.name) is not None
        kind: Kind = "packed" if known and file.suffix != _PART else "partial"
        yield Garbage(kind, file, 0, why=_foreign(file, stat.S_ISREG, known=known))


def _frames(home: Home) -> Iterator[Garbage]:
    for path in _children(home.frames):
        known = re.fullmatch(r"[0-9a-f]{16}", path.name) is not None or trees.is_aside(path)
        yield Garbage("frames", path, 0, why=_foreign(path, stat.S_ISDIR, known=known))


def _measures(home: Home, where: Settings, *, elsewhere: bool) -> Iterator[Garbage]:
    """Yield measures of datasets that are gone; with ``elsewhere`` also of those at addresses."""
    for path in _children(home.measures):
        name, at, _ = path.name.partition("~")
        id = _id(*name.partition("+")[::2])
        gone = elsewhere if at else id is None or not _has_any(ids.parse(id), where)
        if gone:
            yield Garbage("measures", path, 0, id, _foreign(path, stat.S_ISDIR, known=id is not None))


def _has_any(id: DatasetId, where: Settings) -> bool:
    """Return whether a home has a dataset, or one that was made of it."""
    return any(
        found.name.partition("@")[0] == id.component
        for root in where.homes
        for found in (Home(root).dataset(id), *Home(root).dataset(id).parent.glob(f"{id.component}@*"))
        if is_dataset(found)
    )


def _partial(home: Home) -> Iterator[Garbage]:
    for path in _children(home.root / "partial"):
        hidden = _TEMPORARY.fullmatch(path.name)
        name, _, tag = (hidden["name"] if hidden else path.name).rpartition(".")
        id = _id(*name.partition("+")[::2])
        if tag == "order" and id is not None:
            why = _foreign(path, stat.S_ISREG)
        else:
            known = not hidden and (_CHECK.fullmatch(tag) if not name else id is not None and _WORK.fullmatch(tag))
            why = _foreign(path, stat.S_ISDIR, known=bool(known))
        yield Garbage("partial", path, 0, id, why)


def _parts(home: Home) -> Iterator[Garbage]:
    """Yield interrupted downloads."""
    for id, directory in home.archives():
        if why := _led_away(home, directory):
            if directory.is_symlink():
                yield Garbage("partial", directory, 0, str(id), why)
            continue
        found = (Path(entry.path) for entry in trees.below(directory))
        for part in sorted(p for p in found if p.suffix == _PART or p.name.endswith(SPANS)):
            yield Garbage("partial", part, 0, str(id), _foreign(part, stat.S_ISREG))


def _aside(home: Home) -> Iterator[Garbage]:
    for top in ("datasets", "archives"):
        for family in _children(home.root / top):
            for path in _children(family):
                if going := _GOING.fullmatch(path.name):
                    id = _id(family.name, going["name"])
                    yield Garbage("partial", path, 0, id, _foreign(path, stat.S_ISDIR, known=id is not None))
    for family in _children(home.versions):  # what a removal or a change that was killed has left
        for path in _children(family):
            id = _id(family.name, path.name)
            gone = id is None or not home.dataset(ids.parse(id)).exists()
            for left in [path] if gone else [p for p in _children(path) if p.name.startswith(".")]:
                yield Garbage("partial", left, 0, id, _foreign(left, stat.S_ISDIR))


def _versions(home: Home) -> Iterator[Garbage]:
    """Yield rows of episodes that left growing datasets."""
    for id, directory in home.datasets():
        if _led_away(home, directory):
            continue
        why = _foreign(directory, stat.S_ISDIR)
        growing = None if why else GrowingDataset.find(directory)
        try:
            free, held = growing.unfreed() if growing else (0, 0)
        except RldsError:
            continue  # rlds verify names the damage
        if free or held:
            yield Garbage("versions", directory, free or held, str(id), "" if free else _HELD)


def _archives(home: Home) -> Iterator[Garbage]:
    from rlds_cli.keep import origins

    for id, directory in home.archives():
        if not _led_away(home, directory) and origins.archive_files(directory):
            why = _foreign(directory, stat.S_ISDIR) or origins.archive_needed(home, id)
            yield Garbage("archive", directory, 0, str(id), why)


def _remote(home: Home) -> Iterator[Garbage]:
    from rlds_cli.places import RemoteDirectory

    for d in RemoteDirectory.all(home.remote):
        yield Garbage("remote", d.path, 0, why=_foreign(d.path, stat.S_ISDIR, known=d.is_ours))


def _children(directory: Path) -> list[Path]:
    """Return the entries of a directory of a home; none if it is a link."""
    return sorted(directory.iterdir()) if directory.is_dir() and not directory.is_symlink() else []


def _foreign(path: Path, is_kind: Callable[[int], bool], *, known: bool = True) -> str:
    """Say why a file or directory is not removed; empty if rlds has made it."""
    if path.is_symlink():
        return _LINK
    with suppress(FileNotFoundError):
        if not known or not is_kind(path.lstat().st_mode):
            return _UNKNOWN
    return "" if safe_files.is_own(path) else _FOREIGN


def _led_away(home: Home, directory: Path) -> str:
    """Say why a directory must not be entered: it, or one above it, is a link. Empty if it may."""
    try:
        safe_files.check_directories(directory, home.root)
    except NoPermission:
        return _LINK
    except OSError:
        return _UNKNOWN
    return ""


def _id(family: str, component: str) -> str | None:
    try:
        return str(ids.from_component(family, component))
    except InvalidId:
        return None


# -- locks


def _busy(home: Home, g: Garbage) -> str:
    with ExitStack() as held:
        return _lock(home, held, [lock for lock in _locks(home, g) if os.path.lexists(lock)])


def _locks(home: Home, g: Garbage) -> list[Path]:
    """Return the locks held by the process that writes this item."""
    if g.kind == "remote":
        from rlds_cli.places import RemoteDirectory

        return [RemoteDirectory(g.path).lock]
    if g.kind in ("packed", "frames", "versions"):
        return []  # a process that has mapped a file keeps its content; the others have locks of their own
    locks = []
    if g.path.parent == home.root / "packed":
        from rlds_cli.loader import lock_of_packed  # slow to import

        locks.append(lock_of_packed(g.path.with_name(g.path.name.removeprefix("."))))
    elif g.kind == "measures":
        locks.append(g.path / "lock")
    elif g.path.parent == home.root / "partial":
        locks.append(home.root / "locks" / f"{g.path.name.rpartition('.')[0]}.lock")
        locks += sorted((g.path / "running").glob("*.lock"))  # locks of the shards of a preprocess job
    elif g.id is not None:
        own = home.lock(ids.parse(g.id))
        # Variants with decoded frames are made of the same archive.
        locks += [own, *own.parent.glob(f"{own.stem}@*{own.suffix}")]
    if g.path.is_relative_to(home.root / "archives") and g.kind == "partial":
        part = g.path.with_suffix("") if g.path.name.endswith(SPANS) else g.path
        locks.append(part.with_name(f"{part.name}.lock"))
    return locks


def _lock(home: Home, held: ExitStack, paths: Sequence[Path]) -> str:
    """Take all of these locks; or none, and return why."""
    try:
        for path in paths:
            safe_files.directory(path.parent, home.root)
            held.enter_context(file_lock(path).acquire(timeout=0))
    except LockHeld:
        held.close()
        return _BUSY
    except (NoPermission, OSError) as e:
        held.close()
        return f"its lock cannot be taken: {e.message.rstrip('.') if isinstance(e, NoPermission) else e}"
    return ""


# -- removal


def _remove(home: Home, g: Garbage, progress: Progress) -> str:
    """Remove an item; returns why it has to stay, else an empty string."""
    if not g.path.exists():
        return "already removed"
    if why := _led_away(home, g.path.parent) or _foreign(g.path, lambda mode: True):
        return why
    if g.kind == "versions":
        return _free_rows(g.path)
    if g.kind == "remote":
        from rlds_cli.places import RemoteDirectory

        return "" if RemoteDirectory(g.path).remove() else "a process reads it"
    if g.kind == "frames":
        from rlds_cli.loader import discard_frames

        return "" if discard_frames(g.path) else "a process uses them"
    with ExitStack() as held:
        if why := _lock(home, held, _locks(home, g)):
            return why
        if g.kind == "archive":
            return _remove_archive(home, g, progress)
        if g.path.is_dir():
            trees.remove(g.path)  # follows no links
        else:
            _remove_file(g.path)
    return ""


def _free_rows(dataset: Path) -> str:
    try:
        return "" if GrowingDataset(dataset).free() else _HELD
    except NameTaken:
        return "it is being written: the writer frees them"
    except RldsError as e:
        return e.message.rstrip(".")


def _remove_file(file: Path) -> None:
    """Remove a file, the records and locks beside a part, and its directory if that is then empty."""
    part = file.with_suffix("") if file.name.endswith(SPANS) else file
    beside = (".lock",) if part != file else (".json", ".lock") if file.suffix == _PART else ()
    for path in (file, *(part.with_name(part.name + end) for end in beside)):
        path.unlink(missing_ok=True)
    if not any(file.parent.iterdir()):
        file.parent.rmdir()


def _remove_archive(home: Home, g: Garbage, progress: Progress) -> str:
    from rlds_cli.keep import origins

    assert g.id is not None
    id = ids.parse(g.id)
    why = origins.archive_needed(home, id) or _damage(home, id, progress)
    if not why:
        publishing.remove(g.path)
    return why


def _damage(home: Home, id: DatasetId, progress: Progress) -> str:
    """Hash the dataset ``id`` again and name its first problem; empty if there is none."""
    if not is_dataset(home.dataset(id)):
        return ""
    from rlds_cli.store import StoredDataset  # imports NumPy, which `rlds du` does without

    problems = StoredDataset(home.dataset(id)).verify(progress=progress).problems
    return f"its dataset is damaged: {problems[0]}" if problems else ""
