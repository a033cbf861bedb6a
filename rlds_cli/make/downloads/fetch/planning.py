"""Plan how each file of an archive is obtained, from the disk alone, without the network."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rlds_cli.base import visible
from rlds_cli.base.files import disk, names
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import Settings
from rlds_cli.places import FileDownload, FileRecord, RemoteFile, as_url

Action = Literal["reuse", "verify", "adopt", "link", "fetch"]

_LISTING = ".listing.json"


@dataclass(frozen=True, slots=True)
class FetchStep:
    """The way to obtain one file.

    Parameters
    ----------
    action : str
        ``reuse``: there and recorded. ``verify``: there, but changed since or not recorded; its hash decides.
        ``adopt``: another tool has a copy; its hash decides. ``link``: the source is on this machine. ``fetch``: HTTP.
    target : Path
        Path of the file.
    origin : Path, optional
        Path of the copy, with ``adopt`` and ``link``.
    offset : int
        Bytes left by an earlier run, with ``fetch``.
    """

    file: RemoteFile
    action: Action
    target: Path
    origin: Path | None = None
    offset: int = 0

    @property
    def to_fetch(self) -> int | None:
        """Bytes to download; None if the size is not known."""
        if self.action != "fetch":
            return 0
        return None if self.file.size is None else max(0, self.file.size - self.offset)

    @property
    def to_write(self) -> int:
        """Additional bytes on disk, as far as known."""
        if self.origin is None:
            return self.to_fetch or 0
        shares = self.origin.stat().st_dev == disk.existing(self.target).stat().st_dev
        return 0 if shares else self.origin.stat().st_size


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The steps that put all files of an archive into ``destination``."""

    destination: Path
    steps: tuple[FetchStep, ...]
    listed: tuple[RemoteFile, ...] | None = None  # all files of the source, if the plan is for some of them

    @property
    def finished(self) -> bool:
        """True if all files exist and are recorded."""
        return all(s.action == "reuse" for s in self.steps)

    @property
    def holds(self) -> bool:
        """True unless a file to reuse is gone. All other steps are planned again before they run."""
        return all(s.target.is_file() for s in self.steps if s.action == "reuse")

    @property
    def to_fetch(self) -> int:
        """Bytes to download, as far as sizes are known."""
        return sum(s.to_fetch or 0 for s in self.steps)

    @property
    def unknown_sizes(self) -> int:
        """Number of files to fetch whose size only their server knows."""
        return sum(s.to_fetch is None for s in self.steps)

    @property
    def to_write(self) -> int:
        """Additional bytes on disk, as far as sizes are known."""
        return sum(s.to_write for s in self.steps)


def plan(
    files: Iterable[RemoteFile],
    destination: Path,
    where: Settings,
    *,
    rehash: bool = False,
    listed: Iterable[RemoteFile] | None = None,
) -> FetchPlan:
    """Decide for each file: reuse, verify, adopt, link or fetch.

    Parameters
    ----------
    files : iterable of RemoteFile
        Files as a source lists them.
    destination : Path
        The directory of the archive; it need not exist.
    rehash : bool
        Also verify existing files that are recorded.
    listed : iterable of RemoteFile, optional
        All files of the archive, if ``files`` are only some of them.

    Raises
    ------
    UnsafeArchive
        For a name that would leave ``destination`` or overwrite another file's.
    """
    files = tuple(files)
    names.all_safe(f.path for f in files)
    steps = tuple(next(ways(f, destination, where, rehash=rehash)) for f in files)
    return FetchPlan(destination, steps, None if listed is None else tuple(listed))


def ways(file: RemoteFile, destination: Path, where: Settings, *, rehash: bool = False) -> Iterator[FetchStep]:
    """Yield all ways to obtain a file, best first. If one fails, the next is tried; the last is always ``fetch``."""
    target = destination / file.path
    yield from _present(file, target, rehash)
    for url in file.urls:
        if (origin := as_url(url).local_path) is not None and origin.is_file():
            yield FetchStep(file, "link", target, origin)
    if file.hashed:
        yield from (
            FetchStep(file, "adopt", target, copy) for copy in _copies(file, where) if _may_be(copy, file, target)
        )
    yield FetchStep(file, "fetch", target, offset=FileDownload.kept(target))


def _present(file: RemoteFile, target: Path, rehash: bool) -> Iterator[FetchStep]:
    try:
        status = target.stat()
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode):
        return
    record = FileRecord.read(target)
    if file.placed and not file.hashed and (rehash or not _came_from(file, record)):
        return
    untouched = record is not None and (record.size, record.mtime_ns) == (status.st_size, status.st_mtime_ns)
    if record and untouched and not rehash and not file.misfit(record):
        yield FetchStep(file, "reuse", target)
    elif (record or file.hashed) and file.size in (None, status.st_size):
        yield FetchStep(file, "verify", target)


def _came_from(file: RemoteFile, record: FileRecord | None) -> bool:
    return record is not None and record.url in {visible.shown(url) for url in file.urls}


def _copies(file: RemoteFile, where: Settings) -> Iterator[Path]:
    """Yield paths where other tools keep the file: below a root by a tail of its key, in the hub's cache by hash."""
    for root in where.elsewhere:
        if root.is_dir():
            yield from (root / tail for tail in dict.fromkeys([*names.tails(file.key), *names.tails(file.path)]))
    repository = "--".join(["datasets", *file.key.split("/")[:2]])
    blobs = where.hub_cache / repository / "blobs"
    yield from (blobs / oid for oid in (file.sha256, file.git_sha1) if oid)


def _may_be(copy: Path, file: RemoteFile, target: Path) -> bool:
    try:
        return copy.is_file() and file.size in (None, copy.stat().st_size) and copy.resolve() != target.resolve()
    except OSError:
        return False


def listing_of(plan: FetchPlan) -> str:
    """Return the listing as it is saved; raises RldsError if it is too long to be read back."""
    files, listed = plan.listed or [s.file for s in plan.steps], []
    for file in files:
        values = asdict(file) | {"urls": tuple(map(visible.shown, file.urls))}
        del values["placed"]  # which the entry decides, each time
        listed.append(values)
    return documents.dumps({"files": listed}, f"the list of {len(files):,} files", lines=False)


def remember(plan: FetchPlan, listing: str) -> None:
    """Save the listing, so that the source need not be asked again."""
    safe_files.replace_text(plan.destination / _LISTING, listing, mode=0o600)  # its addresses are the owner's


def forget(plan: FetchPlan) -> None:
    """Remove the files of a plan with their records and parts. Other files in the directory stay.

    Raises
    ------
    NoPermission
        One of the directories is a link; nothing is removed.
    """
    listed = plan.listed or [s.file for s in plan.steps]
    top = plan.destination
    for directory in {(top / f.path).parent for f in listed}:
        safe_files.check_directories(directory, top.parent)
    for path in [top / _LISTING, *(top / f.path for f in listed)]:
        FileDownload.discard(path)
    for directory in sorted({d for f in listed for d in (top / f.path).parents if d.is_relative_to(top)}, reverse=True):
        with suppress(OSError):  # it holds something else
            directory.rmdir()


def recorded(destination: Path) -> tuple[RemoteFile, ...] | None:
    """Return the files of an archive that was downloaded completely, or None. Needs no network.

    ``plan(files, ...).finished`` tells whether they are unchanged.
    """
    files = remembered(destination)
    return files if files and present(files, destination) else None


def remembered(destination: Path) -> tuple[RemoteFile, ...] | None:
    """Return the saved listing of an archive, or None. Needs no network."""
    values = documents.load_own(destination / _LISTING)
    listed = values.get("files") if values else None
    if not isinstance(listed, list) or not all(map(_is_listed, listed)):
        return None
    return tuple(_remembered(v) for v in listed) or None


def present(files: Iterable[RemoteFile], destination: Path) -> bool:
    """Return whether all of the files exist."""
    return all(os.access(destination / f.path, os.R_OK) for f in files)


def _is_listed(values: object) -> bool:
    """Return whether a value of a saved listing describes a file, with the right type in each member."""
    if not isinstance(values, dict) or not isinstance(values.get("path"), str):
        return False
    urls, size = values.get("urls"), values.get("size")
    texts = ("sha256", "git_sha1", "revision", "md5", "crc32c")
    return (
        isinstance(urls, list)
        and len(urls) > 0
        and all(isinstance(url, str) for url in urls)
        and (size is None or documents.is_count(size))
        and all(isinstance(values.get(name), str | None) for name in texts)
        and isinstance(values.get("key", ""), str)
    )


def _remembered(values: dict[str, Any]) -> RemoteFile:
    known = {f.name: values[f.name] for f in fields(RemoteFile) if f.name in values}
    return RemoteFile(**known | {"path": names.safe(values["path"]), "urls": tuple(values["urls"])})
