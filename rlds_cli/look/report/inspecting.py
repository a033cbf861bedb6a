"""One function for everything that can be looked at: datasets, episodes and files."""

from __future__ import annotations

import os

from rlds_cli import homes
from rlds_cli.base import refs
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset, remote_address
from rlds_cli.look.report.episode import EpisodeReport, describe_episode
from rlds_cli.look.report.files import FileReport, describe_file
from rlds_cli.look.report.summary import Summary, summarise


def inspect(
    ref: StrPath | Dataset, *, episode: int | None = None, reader: str | None = None, home: StrPath | None = None
) -> Summary | EpisodeReport | FileReport:
    """Describe a dataset, one of its episodes, or files of any kind; ``rlds inspect`` prints what this returns.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, a directory, an address, an open dataset; or a file, a directory or a pattern of files.
    episode : int, optional
        The number of an episode; negative numbers count from the end.
    reader : str, optional
        How files are read, as in `import_files`.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        ``ref`` is neither a dataset nor a file.
    UnknownLayout, CorruptArchive
        The files cannot be read.

    Examples
    --------
    >>> import rlds_cli
    >>> rlds_cli.inspect("sample/pendulum-d4rl").counts.episodes  # doctest: +SKIP
    26
    """
    ds = ref if isinstance(ref, Dataset) else _dataset(ref, home)
    if ds is None:
        return describe_file(str(ref), reader=reader)
    return summarise(ds) if episode is None else describe_episode(ds, episode)


def _dataset(ref: StrPath, home: StrPath | None) -> Dataset | None:
    """Open ``ref``; None if it names files."""
    if refs.is_address(ref) and remote_address(refs.parse(ref)) is not None:
        return open_dataset(ref, home=home)
    target, is_dataset = homes.version_or_file(os.fspath(ref), home=home)
    return open_dataset(str(target), home=home) if is_dataset else None
