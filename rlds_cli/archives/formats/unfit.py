"""Files that no reader takes: empty ones, pages of a server, pickles, zips, and parts of what is a directory."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds_cli.base.files.bundles import is_bundle, is_store
from rlds_cli.errors import CorruptArchive, NoPermission, UnknownLayout, UnsafeArchive

NPY = b"\x93NUMPY"
_READ_IT_YOURSELF = "if you trust it, read it yourself and pass the episodes to rlds_cli.create(ID, episodes)"
_CREATE = "rlds_cli.create takes the episodes that you read yourself"
_ZIP = b"PK\x03\x04"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PAGE = (b"<!doctype", b"<html", b"<?xml")


def check(file: Path) -> bytes:
    """Return the first 512 bytes of a file.

    Raises
    ------
    CorruptArchive
        It is empty, or an HTML page.
    UnsafeArchive
        It is a pickle, or an array of pickled objects.
    NoPermission
        It may not be read.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(512)
            if head.startswith(NPY):
                stream.seek(0)
                npy_header(stream, "array", file)
    except PermissionError as e:
        raise NoPermission(f"{file} may not be read.") from e
    if not head:
        raise CorruptArchive(f"{file.name} is empty.", hint=f"fetch or write {file} again")
    if head.lstrip().lower().startswith(_PAGE):
        raise CorruptArchive(
            f"{file.name} is an HTML page (a server's error or log-in page saved under the archive's name).",
            hint=f"fetch {file} again; this file cannot be used",
        )
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise UnsafeArchive(f"{file.name} is a Python pickle, which is never read.", hint=_READ_IT_YOURSELF)
    return head


def not_read(file: Path) -> UnknownLayout | None:
    """Return the error for a file that no reader takes: a part of a directory that is one file, a zip; else None."""
    whole = [path for path in file.parents if is_bundle(path)]
    with file.open("rb") as stream:
        head = stream.read(4)
    if whole:
        what = "the Zarr store" if is_store(whole[-1]) else "the dataset"
        return UnknownLayout(
            f"{file.name} is a part of {what} {whole[-1]}.", hint=f"rlds import {whole[-1]} reads all of it"
        )
    if file.suffix == ".catalog" and file.with_name("manifest.json").is_file():
        return UnknownLayout(
            f"{file.name} is a part of a donkeycar tub, whose manifest says which records were deleted.",
            hint="donkeycar's Tub gives the others: rlds_cli.create(ID, episodes) takes them",
        )
    if head == _ZSTD:
        bag = file.name.removesuffix(".zstd")
        what = "a bag of ROS 2 that rosbag2 compressed as a whole" if bag.endswith((".db3", ".mcap")) else "compressed"
        return UnknownLayout(
            f"{file.name} is {what} by zstd, which is not read.", hint=f"zstd -d {file}, and import {bag}"
        )
    if head.startswith(_ZIP):
        return UnknownLayout(f"{file.name} is a zip archive, which is not read.", hint="unpack it, and import that")
    return None


def npy_header(stream: IO[bytes], name: str, file: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read shape and dtype from the header of a ``.npy``.

    Raises
    ------
    CorruptArchive
        It is not such a header.
    UnsafeArchive
        The array holds pickled objects.
    """
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, EOFError) as e:
        raise CorruptArchive(f"{file.name}: {name} is not a NumPy array: {e}") from e
    if dtype.hasobject:
        raise UnsafeArchive(
            f"{file.name}: {name} holds pickled Python objects, which are never read.", hint=_READ_IT_YOURSELF
        )
    return shape, dtype
