"""Change the encoding of a dataset in place, with the same rows and the same fingerprint."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.base.files import arrays, disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.homes import Home, exclusive
from rlds_cli.store import (
    History,
    Manifest,
    NewRows,
    Problem,
    Store,
    check_field,
    open_store,
    seal,
    share_tree,
)
from rlds_cli.store.manifest import StoredField

Encoding = Literal["memmap", "zarr"]


@dataclass(frozen=True, slots=True)
class Reencoded:
    """A dataset in the requested encoding. ``changed`` is False if it had that encoding already.

    ``bytes_before`` and ``bytes_after`` are sizes on disk. ``path`` is in the user's own home if the dataset was found
    in one that is not writable.
    """

    id: str
    path: Path
    fingerprint: str
    encoding: str
    changed: bool
    bytes_before: int
    bytes_after: int


def reencode(
    ref: StrPath,
    *,
    to: Encoding,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Reencoded:
    """Encode a dataset again and replace the old one in one step; its content stays the same.

    Parameters
    ----------
    ref : str or path
        An id on this disk, or the directory of a dataset.
    to : {"memmap", "zarr"}
        Memory-mapped files for training, or compressed ones for storage.
    jobs : int, optional
        Threads; two by default.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is not here.
    DamagedDataset
        Its content does not match its fingerprint; it stays as it is.
    NoSpace, NoPermission
        The disk is full or not writable; the dataset stays as it is.
    """
    tell = shown(progress)
    path = homes.dataset(ref, home=home, why="the storage of the newest version is changed")
    m = Manifest.read(path)
    if m.growing and to == "zarr":
        raise RldsError(
            f"{m.id} grows: its rows are memory-mapped.",
            hint=f"rlds merge {m.id} --name local/NAME --storage zarr copies it",
        )
    if m.encoding == to:
        return _unchanged(path, m)
    id, own = ids.parse(m.id), _place(path, home)
    with exclusive(own, id, tell):
        path = homes.dataset(ref, home=home)
        m = Manifest.read(path)
        if m.encoding == to:  # another process was faster
            return _unchanged(path, m)
        before = size_on_disk(path)
        target = _reencode(open_store(path), own, id, to, jobs or 2, tell)
    return Reencoded(m.id, target, m.fingerprint, to, True, before, size_on_disk(target))


def _unchanged(path: Path, m: Manifest) -> Reencoded:
    size = size_on_disk(path)
    return Reencoded(m.id, path, m.fingerprint, m.encoding, False, size, size)


def _place(path: Path, home: StrPath | None) -> Home:
    """Return the home of the dataset if it is writable, else the user's own."""
    own = settings.read(home).home
    root = path.parents[2] if len(path.parents) > 2 and path.parents[1].name == "datasets" else own
    return Home(root if os.access(root, os.W_OK) and os.access(path.parent, os.W_OK) else own)


def _reencode(store: Store, own: Home, id: DatasetId, to: Encoding, threads: int, tell: Progress) -> Path:
    store.manifest.check_listing(store.path)  # new digests would hide damage
    place, target = own.partial(id, f"encoding-{to}"), own.dataset(id)
    work = place / "dataset"
    safe_files.work_directory(place, own.root)
    trees.discard(work)
    try:
        if to == "memmap":
            columns = (c for c in store.table.columns() if c.part != "films")
            disk.check_space(sum(arrays.file_size(c.whole, c.dtype) for c in columns), own.root)
        _share_the_rest(store, work)
        with ThreadPoolExecutor(threads) as pool:
            finished = pool.map(lambda f: _field(store, work, f, to), store.manifest.fields)
            count, steps = len(store.fields), store.manifest.counts.steps
            for done, _ in enumerate(finished, 1):
                tell(Event(str(id), "convert", "", steps * done // count, steps, "steps"))
        # Fields are no longer shared with another dataset.
        known = _known(store)
        seal(work, replace(store.manifest, encoding=to, shared={}), known=known, threads=threads)
        History(target).replace(work)
    finally:
        trees.discard(place)
    return target


def _share_the_rest(store: Store, work: Path) -> None:
    """Link the files that have only one encoding: episode table, digests, texts, metadata, groups."""
    fields = (store.table.path_of(name) for name in store.fields)
    share_tree(store.path, work, apart={*fields, Manifest.FILE, Manifest.LISTING})


def _known(store: Store) -> dict[str, str]:
    """Return the original digests of the shared files, so that damage stays visible."""
    fields = tuple(f"{f.path}/" for f in store.manifest.fields)
    return {name: digest for name, digest in Manifest.listed(store.path).items() if not name.startswith(fields)}


def _field(store: Store, work: Path, f: StoredField, to: Encoding) -> None:
    """Encode one field below ``work``, and verify its hash."""
    m = store.manifest
    try:
        NewRows(store, f.name, work).write_encoded(compressed=to == "zarr")
        problems = check_field(work, m, f, store.episodes).problems
    except (ValueError, RuntimeError) as e:  # from zarr, for damaged chunks
        problems = (Problem(f.name, str(e)),)
    if problems:
        raise DamagedDataset(f"{m.id}: {problems[0]}. The dataset stays as it is.", hint=f"rlds verify {m.id}")
