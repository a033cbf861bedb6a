"""HDF5 files opened as untrusted input: nothing outside the file, no impossible sizes, no endless trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.errors import CorruptArchive, NoPermission, UnsafeArchive

MAX_DEPTH = 32
# Deflate packs at most about 1,032 to 1; a dataset that claims more than its stored bytes could hold was never written.
MAX_RATIO = 1100
UNWRITTEN_BYTES = 64 << 20

MAGIC = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: Path) -> bool:
    """Whether a file starts as HDF5 does (a user block of 512, 1024, ... bytes may come first)."""
    try:
        with path.open("rb") as f:
            for offset in (0, 512, 1024, 2048):
                f.seek(offset)
                if f.read(8) == MAGIC:
                    return True
    except OSError:
        return False
    return False


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open for reading, and refuse what a trustworthy archive does not hold.

    Raises
    ------
    CorruptArchive
        Not HDF5 (an HTML page is named as such), or truncated.
    UnsafeArchive
        External links, virtual or external datasets, shapes that the file cannot hold.
    """
    try:
        f = h5py.File(path, "r", locking=False)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except OSError as e:
        raise CorruptArchive(f"{path.name} cannot be opened as HDF5: {_why(path, e)}", hint=_hint(path)) from e
    with f:
        try:
            _check(f, path)
        except (OSError, RuntimeError, KeyError) as e:
            raise CorruptArchive(f"{path.name} is damaged: {e}", hint=_hint(path)) from e
        yield f


@contextmanager
def reading(path: Path, key: str) -> Iterator[None]:
    """Turn h5py's errors while reading ``key`` into CorruptArchive."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        raise CorruptArchive(f"{path.name}: {key} cannot be read: {e}", hint=_hint(path)) from e


def _why(path: Path, error: OSError) -> str:
    size = path.stat().st_size if path.exists() else None
    if size is None:
        return "there is no such file"
    head = path.open("rb").read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is an HTML page (a server's error or log-in page saved under the archive's name)"
    if size == 0:
        return "it is empty"
    if is_hdf5(path):
        return f"it is truncated or damaged ({size:,} bytes; {error})"
    return f"it is not an HDF5 file ({size:,} bytes)"


def _hint(path: Path) -> str:
    return f"delete {path} and fetch it again"


def _check(f: h5py.File, path: Path) -> None:
    for name, item in walk(f):
        if isinstance(item, h5py.Dataset):
            _check_dataset(name, item, path)


def walk(group: h5py.Group) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """All groups and datasets below ``group``, by path, each object once; refuses links out of the file."""
    seen = {h5py.h5o.get_info(group.id).addr}
    stack: list[tuple[str, h5py.Group, int]] = [("", group, 0)]
    while stack:
        prefix, parent, depth = stack.pop()
        for key in parent:
            name = f"{prefix}/{key}" if prefix else key
            link = parent.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise UnsafeArchive(f"{group.file.filename}: {name} is a link to another file ({link.filename}).")
            item = parent.get(key)
            if item is None:
                raise UnsafeArchive(f"{group.file.filename}: {name} is a link that leads nowhere.")
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                continue
            seen.add(address)
            yield name, item
            if isinstance(item, h5py.Group):
                if depth >= MAX_DEPTH:
                    raise UnsafeArchive(
                        f"{group.file.filename}: groups are nested more than {MAX_DEPTH} deep at {name}."
                    )
                stack.append((name, item, depth + 1))


def _check_dataset(name: str, d: h5py.Dataset, path: Path) -> None:
    if d.is_virtual and any(s.file_name != "." for s in d.virtual_sources()):
        raise UnsafeArchive(f"{path.name}: {name} is a virtual dataset that reads other files.")
    if d.external:
        raise UnsafeArchive(f"{path.name}: {name} keeps its data in another file ({d.external[0][0]}).")
    claimed = int(np.prod(d.shape or (), dtype=np.float64)) * d.dtype.itemsize
    stored = d.id.get_storage_size()
    if claimed > UNWRITTEN_BYTES and claimed > MAX_RATIO * stored and not d.is_virtual:
        raise UnsafeArchive(
            f"{path.name}: {name} claims {list(d.shape)} {d.dtype} ({claimed:,} bytes) and stores {stored:,} bytes."
        )
