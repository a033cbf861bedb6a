"""Make a remote dataset whole: the cached blocks stay, and its files of rows become those of a dataset.

The files of rows get a second name below the work directory of the download, and when the dataset is published, their
first one goes. Processes that read the remote dataset continue reading it. Segments of growing datasets are copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DamagedDataset
from rlds_cli.places.remote import waiting
from rlds_cli.places.remote.access import Access
from rlds_cli.places.remote.cache import BlockFiles, BlockHold
from rlds_cli.places.remote.files import PushedFiles
from rlds_cli.places.remote.leases import RemoteDirectory
from rlds_cli.places.remote.presence import BLOCK, GROUP, MANY
from rlds_cli.places.remote.store import open_remote
from rlds_cli.places.sources.addresses import Address

_AT_A_TIME = 64 * MANY  # blocks
_AHEAD = 2  # times as many that arrive meanwhile


def bring(address: Address, where: Settings, fingerprint: str, dataset: Path, id: str, tell: Progress) -> Path:
    """Have all blocks of a dataset here, and its files below ``dataset``, which is made anew; return its directory.

    Raises
    ------
    DownloadFailed, WrongHash, NoSpace
        The same call continues with the cached blocks.
    DamagedDataset
        The address has other content than the fingerprint by now.
    """
    access = open_access(address, where)
    index = access.pinned.index
    if index.fingerprint != fingerprint:
        raise DamagedDataset(f"{address} changed while it was read.", hint="the same command again")
    blocks = access.row_blocks
    telling = waiting.beside(tell, blocks.map, blocks.map)
    disk.check_space(blocks.missing * BLOCK, dataset, kept="Cached blocks stay.")
    holds = list(_arriving(blocks, id, telling))  # nothing leaves until the files have their new names
    rows = {f.path: number for number, f in enumerate(blocks.files)}
    access.content.need(*(f.path for f in index.stored if f.path not in rows))
    trees.discard(dataset)
    # A writer changes files that have one name only.
    take_over = _copy if index.grows or not disk.takes_links(dataset) else os.link
    with access.room.locked():
        if not index.grows:
            blocks.map.leave()
            for number in rows.values():
                _seal(blocks.path_of(number))
        for file in index.stored:
            path = dataset / file.path
            safe_files.make(path.parent)
            if file.path in rows:
                take_over(blocks.path_of(rows[file.path]), path)
            else:
                safe_files.write_bytes(path, (access.path / file.path).read_bytes())
    for hold in holds:
        hold.release()
    assert access.root is not None
    return access.root


def _seal(file: Path) -> None:
    """Sync a file and make it read-only, as those of datasets are; one that may be written gets no second name."""
    descriptor = safe_files.open_shared(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & ~0o222)
    finally:
        os.close(descriptor)


def _copy(source: Path, target: Path) -> None:
    """Copy a file of rows with its holes."""
    with safe_files.reading(source) as file, target.open("xb") as out:
        out.truncate(os.fstat(file.fileno()).st_size)
        while data := file.read(GROUP):
            if any(data):
                out.write(data)
            else:
                out.seek(len(data), os.SEEK_CUR)


def open_access(address: Address, where: Settings) -> Access:
    """Open a remote dataset in the home, without a limit of its own."""
    store = open_remote(address.given, where)
    assert isinstance(store.files, PushedFiles)
    return store.files.access


def _arriving(blocks: BlockFiles, id: str, tell: Progress) -> Iterator[BlockHold]:
    """Yield holds on all blocks, each of which is cached."""
    total = sum(f.size for f in blocks.files)
    parts = [
        (number, np.arange(first, min(first + _AT_A_TIME, f.blocks)))
        for number, f in enumerate(blocks.files)
        for first in range(0, f.blocks, _AT_A_TIME)
    ]
    ahead = [blocks.announce([part]) for part in parts[: _AHEAD + 1]]
    done = 0
    for k, (number, part) in enumerate(parts):
        ahead[k].wait()
        if len(ahead) < len(parts):
            ahead.append(blocks.announce([parts[len(ahead)]]))
        done += min(blocks.files[number].size, (int(part[-1]) + 1) * BLOCK) - int(part[0]) * BLOCK
        tell(Event(id, "fetch", "", done, total))
        yield ahead[k]


def forget(root: Path) -> bool:
    """Remove the directory of a remote dataset, unless a process uses it; return whether it is gone."""
    if not RemoteDirectory(root).remove():
        return False
    with suppress(OSError):
        decoded = root.with_name(f"{root.name}-rows")
        if decoded.is_dir():
            RemoteDirectory(decoded).remove()
    return True
