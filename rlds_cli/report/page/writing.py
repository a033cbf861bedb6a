"""A page written to a file: whole or not at all, and never over something that is no report."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlds_cli import safe_files
from rlds_cli.dataset import Dataset
from rlds_cli.errors import NameTaken, NoPermission, NoSpace, RldsError
from rlds_cli.progress import Progress
from rlds_cli.report.page.content import Content, gather
from rlds_cli.report.page.document import GENERATOR, render
from rlds_cli.settings import StrPath

_HEAD = 1024  # bytes in which a report says that it is one


@dataclass(frozen=True, slots=True)
class PageReport:
    """What was written. ``path`` is None for a stream.

    ``episodes_listed`` stand in the table and ``episodes_viewed`` in the viewer, of ``episodes``.
    """

    id: str
    path: Path | None
    bytes: int
    episodes: int
    episodes_listed: int
    episodes_viewed: int
    errors: int
    warnings: int
    notes: int


def write_page(
    ref: str | os.PathLike[str] | Dataset,
    to: StrPath | BinaryIO,
    *,
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> PageReport:
    """Write a dataset as one HTML file that needs nothing else: no network, no server.

    Every row is read once, for the checks, in bounded memory; histograms are of at most 65,536 steps, the viewer has at
    most 32 episodes, the table 10,000. The page says where it shows a sample.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open one (always as a whole).
    to : path or binary stream
        A report that is at the path is replaced.
    force : bool
        Replace a file that is not a report, too.

    Raises
    ------
    NameTaken
        ``to`` is a file of another kind.
    NoPermission, NoSpace
        It cannot be written; what was there is left as it was.
    RldsError
        ``to`` is a directory, or in none.
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.
    """
    path = Path(to).expanduser() if isinstance(to, str | os.PathLike) else None
    if path is not None:
        check_target(path, force=force)
    content = gather(ref, cache_dir=cache_dir, progress=progress)
    page = render(content).encode("utf-8", "replace")
    if isinstance(to, str | os.PathLike):
        _write(Path(to).expanduser(), page)
    else:
        to.write(page)
    return _report(content, path, len(page))


def check_target(path: Path, *, force: bool = False) -> None:
    """Say what is in the way, before anything is read.

    Raises
    ------
    NameTaken, NoPermission, RldsError
    """
    if path.is_dir():
        raise RldsError(f"{path} is a directory.", hint=f"--html {path / 'report.html'}")
    if not path.parent.is_dir():
        raise RldsError(f"There is no directory {path.parent}.", hint=f"mkdir -p {path.parent}")
    if path.is_file() and path.stat().st_size and not force and not is_report(path):
        raise NameTaken(f"{path} is there and is not a report of rlds.", hint="--force replaces it")


def is_report(path: Path) -> bool:
    """Whether a file is a report that this module wrote.

    Raises
    ------
    NoPermission
        It may not be read.
    """
    try:
        with path.open("rb") as file:
            return f'<meta name="generator" content="{GENERATOR}'.encode() in file.read(_HEAD)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e


def _write(path: Path, page: bytes) -> None:
    try:
        target = safe_files.followed(path)  # a link stays one
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(page)  # a pipe or a device
            return
        with safe_files.replacing(target) as file:
            file.write(page)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be written: {e.strerror}.") from e
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"The disk of {path} is full. Nothing was written.") from e
        raise RldsError(f"{path} cannot be written: {e.strerror}.") from e


def _report(c: Content, path: Path | None, size: int) -> PageReport:
    return PageReport(
        id=c.summary.id,
        path=path,
        bytes=size,
        episodes=c.summary.counts.episodes,
        episodes_listed=len(c.listing.number),
        episodes_viewed=len(c.viewing.episodes),
        errors=c.check.errors,
        warnings=c.check.warnings,
        notes=c.check.notes,
    )
