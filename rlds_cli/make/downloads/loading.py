"""Opening a dataset, whether or not it is downloaded."""

from __future__ import annotations

import os
import sys
from typing import Any

from rlds_cli import registry
from rlds_cli.base import refs
from rlds_cli.base.progress import Bars, Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import DatasetNotFound


def load(
    ref: StrPath,
    *,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Dataset:
    """Open a dataset, or download it first if it is not on this disk and the registry knows the id.

    Parameters
    ----------
    ref : str or path
        An id, a directory or an address, with or without ``#VERSION``; see `open_dataset`. A dataset at an address is
        read there, block by block; `download` copies all of it.
    home : path, optional
        A home instead of ``RLDS_HOME``.
    progress : bool or function of events, optional
        How a download is shown. By default a line says that it starts, and bars follow on a terminal and in a notebook.
    **options
        Other arguments of `download`, such as ``jobs`` and ``offline``. They have no effect on a dataset that is on
        this disk.

    Raises
    ------
    DatasetNotFound
        The dataset is in none of the homes, and the registry does not know the id; or it has no such version.
    DownloadFailed, WrongHash, Offline, ArchiveError, NoSpace, NoPermission
        The download failed; see `download`.

    Examples
    --------
    >>> import tempfile, rlds_cli
    >>> ds = rlds_cli.load("sample/pendulum-d4rl", home=tempfile.mkdtemp())
    >>> len(ds)
    5100
    """
    try:
        return open_dataset(ref, home=home)
    except DatasetNotFound:
        if not _may_be_downloaded(ref):
            raise
    from rlds_cli.make.downloads.download import download

    say = Bars(sys.stderr) if progress is None else shown(progress)
    say(Event(os.fspath(ref), "note", note="not on this disk; downloading it"))
    return download(os.fspath(ref), home=home, progress=progress, **options)


def _may_be_downloaded(ref: StrPath) -> bool:
    """Return whether ``ref`` is an id of the registry without a version: versions are made on a disk."""
    return isinstance(ref, str) and refs.parse(ref).selector is None and registry.known(ref) is not None
