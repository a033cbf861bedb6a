"""What is inside a file that no reader knows: arrays by path, with shapes and dtypes, from headers alone."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from rlds_cli.archives import hdf5
from rlds_cli.archives.arrow_rows import ArrowFile
from rlds_cli.archives.parquet import is_parquet, open_parquet
from rlds_cli.archives.tables import is_text
from rlds_cli.archives.text_tables import CSV, open_text
from rlds_cli.errors import CorruptArchive, MissingPackage, NoPermission, UnsafeArchive
from rlds_cli.ordering import natural

_PICKLE_HINT = "read it yourself, where you trust it, and hand the episodes to rlds_cli.create(ID, episodes)"
_HTML = (b"<!doctype", b"<html", b"<?xml")
_MAGIC: Mapping[bytes, str] = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "a gzip-compressed file",
    b"\xfd7zXZ\x00": "an xz-compressed file",
    b"\x28\xb5\x2f\xfd": "a zstd-compressed file",
    b"BZh": "a bzip2-compressed file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"CDF": "a NetCDF file",
    b"MATLAB 5.0": "a MATLAB file",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One array of a file; ``shape`` is None where it holds nothing."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Tree:
    """``kind`` is ``hdf5``, ``npz``, ``npy``, ``parquet``, ``csv``, ``jsonl`` or ``other``; ``what`` is for people."""

    kind: str
    what: str
    nodes: tuple[Node, ...] = ()
    groups: int = 0


def tree(file: Path) -> Tree:
    """What is in a file.

    Raises
    ------
    CorruptArchive
        It is empty, truncated, or an HTML page.
    UnsafeArchive
        It holds pickled Python objects, or reaches outside itself.
    NoPermission
        It may not be read.
    """
    head = _head(file)
    if hdf5.is_hdf5(file):
        return _hdf5(file)
    if head.startswith(b"\x93NUMPY"):
        with file.open("rb") as stream:
            return Tree("npy", "a NumPy array", (_header(stream, "array", file),))
    if head.startswith(b"PK\x03\x04"):
        return _zip(file)
    if is_parquet(file):
        return _arrow(file, open_parquet, "parquet", "a Parquet file")
    if is_text(file):
        csv = file.suffix.lower() in CSV
        return _arrow(file, open_text, "csv" if csv else "jsonl", "a CSV file" if csv else "a file of JSON lines")
    return Tree("other", _by_magic(file, head))


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            head = stream.read(512)
    except PermissionError as e:
        raise NoPermission(f"{file} may not be read.") from e
    if not head:
        raise CorruptArchive(f"{file.name} is empty.", hint=f"fetch or write {file} again")
    if head.lstrip().lower().startswith(_HTML):
        raise CorruptArchive(
            f"{file.name} is an HTML page (a server's error or log-in page saved under the archive's name).",
            hint=f"fetch {file} again; what is there cannot be used",
        )
    return head


def _hdf5(file: Path) -> Tree:
    with hdf5.open_file(file) as f:
        items = sorted(hdf5.walk(f), key=lambda item: natural(item[0]))
        nodes = tuple(Node(name, d.shape, _dtype(d)) for name, d in items if isinstance(d, h5py.Dataset))
        return Tree("hdf5", "an HDF5 file", nodes, sum(isinstance(g, h5py.Group) for _, g in items))


def _dtype(d: h5py.Dataset) -> str:
    if h5py.check_string_dtype(d.dtype) is not None:
        return "text"
    ragged = h5py.check_vlen_dtype(d.dtype)
    return f"ragged {ragged}" if ragged is not None else "compound" if d.dtype.names else str(d.dtype)


def _zip(file: Path) -> Tree:
    try:
        with zipfile.ZipFile(file) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
            if not members:
                return Tree("other", f"a zip archive of {len(archive.infolist()):,} files: unpack it first")
            nodes = []
            for m in members:
                with archive.open(m) as stream:
                    nodes.append(_header(stream, m.filename.removesuffix(".npy"), file))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as e:
        raise CorruptArchive(f"{file.name} is truncated or damaged: {e}", hint=f"fetch or write {file} again") from e
    return Tree("npz", "an npz file (NumPy arrays)", tuple(sorted(nodes, key=lambda n: natural(n.name))))


def _arrow(file: Path, open_file: Callable[..., AbstractContextManager[ArrowFile]], kind: str, what: str) -> Tree:
    try:
        with open_file(file, fill=True) as f:
            nodes = tuple(Node(n, shape, "text" if d.kind == "O" else str(d)) for n, (shape, d) in f.columns.items())
            nodes += tuple(Node(n, (f.num_rows,), kind) for n, kind in f.left_out.items())
    except MissingPackage:  # it is what it is all the same
        return Tree("other", what)
    return Tree(kind, what, nodes)


def _header(stream: IO[bytes], name: str, file: Path) -> Node:
    """Shape and dtype from the header of a ``.npy``."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, EOFError) as e:
        raise CorruptArchive(f"{file.name}: {name} is not a NumPy array: {e}") from e
    if dtype.hasobject:
        raise UnsafeArchive(
            f"{file.name}: {name} holds pickled Python objects, which are never read.", hint=_PICKLE_HINT
        )
    return Node(name, shape, str(dtype))


def _by_magic(file: Path, head: bytes) -> str:
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise UnsafeArchive(f"{file.name} is a Python pickle, which is never read.", hint=_PICKLE_HINT)
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    try:
        head.decode()
    except UnicodeDecodeError:
        return "a file of no known format"
    return "a JSON file" if head.lstrip()[:1] in (b"{", b"[") else "a text file"
