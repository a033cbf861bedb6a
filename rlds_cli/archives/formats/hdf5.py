"""Open HDF5 files as untrusted input: without links out of the file, impossible sizes or endless trees."""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np

from rlds_cli.archives.formats import hdf5_limits
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import child, disk
from rlds_cli.errors import (
    ArchiveError,
    CorruptArchive,
    MissingPackage,
    NoPermission,
    RldsError,
    UnknownLayout,
    UnsafeArchive,
)

MAX_DEPTH = 32
MAX_OBJECTS = 1 << 20
MAX_ALIASES, ALIASES_EACH = 1 << 10, 4  # further names of objects, in all and for each object
# Deflate packs at most about 1,032 to 1; a dataset that claims more than its stored bytes could hold was never written.
MAX_RATIO = 1100
UNWRITTEN_BYTES = 64 << 20
MAX_ROW = 256 << 20  # bytes: rows are read whole

_COUNTED = {h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FILTER_NBIT}  # which store nothing for a chunk of one value
MAGIC = b"\x89HDF\r\n\x1a\n"

_SINGLE = {h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING, h5py.h5t.ENUM}  # classes of types of attributes
_TEXT = h5py.string_dtype()
MOST_KNOWN, MOST_NAMES, MOST_TYPES = 1 << 16, 1 << 20, 1 << 12  # files, names in all of them, and types
_Id: TypeAlias = h5py.h5g.GroupID | h5py.h5d.DatasetID  # of an object in a file


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape and the dtype of a dataset; that of one without values, of no shape, is ().

    ``is_plain`` says that it has rows of numbers, which no filter has packed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_plain: bool


@dataclass(frozen=True, slots=True)
class _Type:
    """The type of values: their dtype and bytes in NumPy, and whether parts of them are of variable length."""

    dtype: np.dtype[Any]
    size: int
    is_variable: bool


@dataclass(slots=True)
class Contents:
    """What a file holds, by path: datasets, groups without members, and attributes as ``PATH@NAME``.

    ``described`` are the groups and datasets below the root that have attributes; ``is_written`` says that all chunks
    were written.
    """

    datasets: dict[str, Layout] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    is_written: bool = True

    def __len__(self) -> int:
        return len(self.datasets) + len(self.empty) + len(self.attributes)


_checked: dict[tuple[Path, disk.State], Contents] = {}  # files that are safe to read, as they were
_names = 0  # in all of these
_types: dict[bytes, _Type] = {}  # by their encodings: files have few types, and h5py takes long to describe one


def is_hdf5(path: Path) -> bool:
    """Return whether a file starts as HDF5 does (a user block of 512, 1024, ... bytes may come first)."""
    try:
        return _is_hdf5(path, disk.state(path))
    except OSError:
        return False


@lru_cache(MOST_KNOWN)
def _is_hdf5(path: Path, state: disk.State) -> bool:
    with path.open("rb") as f:
        for offset in (0, 512, 1024, 2048):
            f.seek(offset)
            if f.read(8) == MAGIC:
                return True
    return False


@contextmanager
def open_file(path: Path, *, check: bool = True) -> Iterator[h5py.File]:
    """Open a file for reading, and refuse content that no trustworthy archive has.

    ``check=False`` is for a file whose whole tree has been checked before: workers open it once for every part.

    Raises
    ------
    CorruptArchive
        Not HDF5 (an HTML page is named as such), or truncated.
    UnsafeArchive
        Links out of the file or in circles, virtual or external datasets, names that climb out of a directory,
        shapes that the file cannot hold.
    NoPermission
        The file may not be read.
    """
    child.note(path)
    try:
        f = _open(path)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except OSError as e:
        raise CorruptArchive(f"{path.name} cannot be opened as HDF5: {_why(path, e)}.", hint=_hint(path, e)) from e
    with f:
        if check:
            _check(f, path)
        try:
            yield f
        except (OSError, RuntimeError, KeyError) as e:
            if not _is_damage(e):
                raise
            raise CorruptArchive(f"{path.name} is damaged: {_said(e)}", hint=_hint(path)) from e


@contextmanager
def reading(path: Path, key: str) -> Iterator[None]:
    """Turn h5py's errors while reading ``key`` into CorruptArchive; texts that are not UTF-8 are UnknownLayout."""
    try:
        yield
    except UnicodeError as e:
        raise UnknownLayout(
            f"{path.name}: {key} holds texts that are not UTF-8: {e}.",
            hint="rlds_cli.create(ID, episodes) takes anything that you can read yourself",
        ) from e
    except (OSError, RuntimeError, KeyError) as e:
        raise CorruptArchive(f"{path.name}: {key} cannot be read: {_said(e)}", hint=_hint(path)) from e


def _said(e: Exception) -> str:
    """Return HDF5's message, with an explanation of cryptic ones."""
    means = "a chunk does not decompress, or its checksum (Fletcher32) does not agree; "
    return f"{means if 'filter returned failure' in str(e) else ''}{e}"


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY, fapl=_without_locks()))
    except OSError as e:
        # HDF5 wants one setting per file and process, and a notebook may hold the file open with the other one.
        if "locking flag" in str(e):
            return h5py.File(path, "r")
        raise


@cache
def _without_locks() -> h5py.h5p.PropFAID:
    """Return how ``h5py.File(path, "r", locking=False)`` opens a file: making this takes as long as opening one."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    access.set_file_locking(False, ignore_when_disabled=False)
    return access


def _is_damage(e: Exception) -> bool:
    """Return whether an error comes from HDF5, and not from the system or the caller."""
    if isinstance(e, RldsError | NotImplementedError | RecursionError) or (
        isinstance(e, OSError) and e.errno is not None
    ):
        return False
    return not isinstance(e, KeyError) or "Unable to" in str(e)


def _why(path: Path, error: OSError) -> str:
    if not path.exists():
        return "there is no such file"
    if path.is_dir():
        return "it is a directory"
    with path.open("rb") as f:
        head = f.read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is an HTML page (a server's error or log-in page saved under the archive's name)"
    size = path.stat().st_size
    if size == 0:
        return "it is empty"
    if "h5clear" in str(error):
        return f"it was not closed: its writer died, or still writes it ({size:,} bytes; {error})"
    if is_hdf5(path):
        return f"it is truncated or damaged ({size:,} bytes; {error})"
    return f"it is not an HDF5 file ({size:,} bytes)"


def _hint(path: Path, error: OSError | None = None) -> str:
    if "h5clear" in str(error):
        return f"if nothing writes it any more: h5clear -s {path} marks it as closed, and what was flushed can be read"
    if not is_hdf5(path) and path.is_file():  # which may be a sound file of another format
        return f"rlds inspect {path} shows what it is; if it was HDF5 before, fetch or write it again"
    return f"fetch or write {path} again; its content cannot be used"


def _check(f: h5py.File, path: Path) -> Contents:
    """Refuse a file that is not safe to read; a file that was checked and has not changed is not checked again."""
    global _names
    known = path, disk.state(path)
    if known in _checked:
        return _checked[known]
    found = Contents(attributes=_paths("", f.id))
    try:
        for name, item in _objects(f.id):
            name = sys.intern(name)
            if attributes := _paths(name, item):
                found.attributes += attributes
                found.described.append(name)
            if isinstance(item, h5py.h5d.DatasetID):
                found.datasets[name], made = _checked_dataset(name, item, path)
                found.is_written = found.is_written and _missing(item, made) is None
            elif not item.get_num_objs():
                found.empty.append(name)
    except ArchiveError:
        raise
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, zlib.error) as e:
        raise CorruptArchive(f"{path.name} is damaged: {e}", hint=_hint(path)) from e
    if len(_checked) >= MOST_KNOWN or _names + len(found) > MOST_NAMES:
        _checked.clear()
        _names = 0
    _checked[known] = found
    _names += len(found)
    return found


def _paths(name: str, item: _Id) -> list[str]:
    return [sys.intern(f"{name}@{_text(key)}") for key in _attribute_names(item)]


def known_contents(path: Path) -> Contents | None:
    """Return what a file holds that was checked and has not changed; None for another one."""
    return _checked.get((path, disk.state(path)))


def contents(path: Path, f: h5py.File | None = None) -> Contents:
    """List what a file holds, by its headers; ``f`` is the file if it is open.

    Raises
    ------
    CorruptArchive, UnsafeArchive, NoPermission
        As `open_file`.
    """
    if (found := known_contents(path)) is not None:
        return found
    if f is not None:
        return _check(f, path)
    with open_file(path, check=False) as opened:
        return _check(opened, path)


def walk(group: h5py.Group) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Yield all groups and datasets below ``group`` with their paths.

    Raises
    ------
    UnsafeArchive
        A link out of the file, to nowhere or to a group that it lies in, a name such as ``..``, or too many of them:
        of objects, or of names for objects that have a name already.
    """
    for name, item in _objects(group.id):
        yield name, h5py.Group(item) if isinstance(item, h5py.h5g.GroupID) else h5py.Dataset(item, readonly=True)


def _objects(group: h5py.h5g.GroupID) -> Iterator[tuple[str, _Id]]:
    """Yield what `walk` does as h5py's identifiers: an object of h5py for each takes as long as all the rest."""
    count = aliases = 0
    seen: set[int] = set()
    stack: list[tuple[str, h5py.h5g.GroupID, tuple[int, ...]]] = [("", group, (_address(group),))]
    while stack:
        prefix, parent, above = stack.pop()
        for key, kind, address in _links(parent):
            name = f"{prefix}/{key}" if prefix else key
            count += 1
            item = _child(parent, key, name, kind)
            aliases += address is None or address in seen
            if address is not None:
                seen.add(address)
            if count > MAX_OBJECTS:
                raise _refused(f"{_file(group)} holds more than {MAX_OBJECTS:,} objects.")
            if aliases > MAX_ALIASES + ALIASES_EACH * len(seen):
                raise _refused(f"{_file(group)} has {aliases:,} further names for {len(seen):,} objects, and more.")
            if isinstance(item, h5py.h5g.GroupID):
                stack.append((name, item, (*above, _descend(item, above, name))))
            if isinstance(item, _Id):
                yield name, item


def datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return all datasets below ``group`` by path, in the order of their paths."""
    return {name: d for name, d in sorted(walk(group)) if isinstance(d, h5py.Dataset)}


class _Link(NamedTuple):
    """A link of a group; ``name`` is bytes if it is not UTF-8. Soft links have no address."""

    name: Any
    kind: int
    address: int | None


def _links(group: h5py.h5g.GroupID) -> list[_Link]:
    """List the links of a group, in the order that h5py has them in."""
    found: list[_Link] = []

    def collect(raw: bytes, link: h5py.h5l.LinkInfo) -> None:
        try:
            name: Any = raw.decode()
        except UnicodeDecodeError:
            name = raw
        found.append(_Link(name, link.type, int(link.u) if link.type == h5py.h5l.TYPE_HARD else None))

    if isinstance(group, h5py.h5f.FileID):  # whose own properties say nothing of its root
        group = h5py.h5g.open(group, b"/")
    ordered = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    group.links.iterate(collect, idx_type=h5py.h5.INDEX_CRT_ORDER if ordered else h5py.h5.INDEX_NAME, info=True)
    return found


def _child(parent: h5py.h5g.GroupID, key: str | bytes, name: str, kind: int) -> object:
    """Return the object that a link of a group leads to."""
    if isinstance(key, bytes) or key in ("", ".", "..") or not key.isprintable():
        raise _refused(f"{_file(parent)}: {name!r} is not a valid field name.")
    if kind == h5py.h5l.TYPE_HARD:
        return h5py.h5o.open(parent, key.encode())
    group = h5py.Group(parent)
    if kind == h5py.h5l.TYPE_EXTERNAL:
        link = group.get(key, getlink=True)
        raise _refused(f"{_file(parent)}: {name} is a link to another file ({link.filename}).")
    if kind == h5py.h5l.TYPE_SOFT and group.get(key) is None:
        raise _refused(f"{_file(parent)}: {name} is a broken link.")
    return group[key].id


def _refused(what: str) -> UnsafeArchive:
    return UnsafeArchive(
        what, hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create"
    )


def _descend(group: h5py.h5g.GroupID, above: tuple[int, ...], name: str) -> int:
    address = _address(group)
    if address in above:
        raise _refused(f"{_file(group)}: {name} is a link to a group that it lies in.")
    if len(above) > MAX_DEPTH:
        raise _refused(f"{_file(group)}: groups are nested more than {MAX_DEPTH} deep at {name}.")
    return address


def _address(group: h5py.h5g.GroupID) -> int:
    return int(h5py.h5o.get_info(group).addr)


def _file(item: _Id) -> str:
    return _path_of(item).name


def missing_chunks(d: h5py.h5d.DatasetID) -> tuple[int, int] | None:
    """Return how many chunks of a dataset were never written, and how many it has; None if all of them were.

    Contiguous data count as one chunk.
    """
    return _missing(d, d.get_create_plist())


def _missing(d: h5py.h5d.DatasetID, plist: h5py.h5p.PropDCID) -> tuple[int, int] | None:
    shape = d.shape
    if shape is None or 0 in shape:
        return None
    layout = plist.get_layout()
    if layout == h5py.h5d.CHUNKED:
        total = math.prod(-(-n // c) for n, c in zip(shape, plist.get_chunk(), strict=True))
        there = d.get_num_chunks()
    elif layout == h5py.h5d.CONTIGUOUS:
        total, there = 1, int(d.get_storage_size() > 0)
    else:
        return None
    return (total - there, total) if there < total else None


def check_dataset(name: str, d: h5py.h5d.DatasetID, path: Path) -> Layout:
    """Return the layout of a dataset; refuse one that reads other files or claims more than its file can hold.

    Raises
    ------
    UnsafeArchive
        The dataset does so.
    CorruptArchive
        Its values are of no type that NumPy knows.
    MissingPackage
        It is compressed in a way that this HDF5 cannot undo.
    """
    return _checked_dataset(name, d, path)[0]


def _checked_dataset(name: str, d: h5py.h5d.DatasetID, path: Path) -> tuple[Layout, h5py.h5p.PropDCID]:
    """Return what `check_dataset` does, and how the dataset was made."""
    try:
        kind = _type_of(d)
    except (TypeError, ValueError) as e:
        raise CorruptArchive(
            f"{path.name}: {name} is of a type that NumPy cannot hold: {e}.",
            hint="rlds_cli.create(ID, episodes) takes anything that you can read yourself",
        ) from e
    plist = d.get_create_plist()
    virtual = plist.get_layout() == h5py.h5d.VIRTUAL
    if virtual:  # before its shape is asked for, which opens the sources
        _check_virtual(name, h5py.Dataset(d), path)
    if plist.get_external_count():
        external = h5py.Dataset(d).external[0][0]
        raise _refused(f"{path.name}: {name} keeps its data in another file ({external}).")
    filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    shape = d.shape or ()
    _check_size(name, d, path, shape, kind, virtual=virtual, counted=bool(filters & _COUNTED))
    if kind.is_variable:
        hdf5_limits.check_heap(d, path)
    for code in filters:
        if not h5py.h5z.filter_avail(code):
            raise MissingPackage(
                f"{path.name}: {name} is compressed with HDF5 filter {code}, which is not installed.",
                hint=f"h5repack -f GZIP=4 {path.name} repacked.h5, or set HDF5_PLUGIN_PATH to where the filter lies",
            )
    is_number = kind.dtype.kind in "biufc" and not kind.dtype.metadata  # which has the names of an enumeration
    is_plain = bool(shape) and not filters and not virtual and is_number
    return Layout(shape, kind.dtype, is_plain), plist


def _type_of(d: h5py.h5d.DatasetID) -> _Type:
    """Return the type of the values of a dataset, one object for all that are equal: there may be a million of them."""
    kind = d.get_type()
    encoded = kind.encode()
    if (found := _types.get(encoded)) is None:
        if len(_types) >= MOST_TYPES:
            _types.clear()
        found = _types[encoded] = _Type(kind.dtype, kind.get_size(), hdf5_limits.is_variable(kind))
    return found


def _check_virtual(name: str, d: h5py.Dataset, path: Path) -> None:
    """Refuse sources in other files, and virtual ones, which may be the dataset itself."""
    for source in d.virtual_sources():
        if source.file_name != ".":
            raise _refused(f"{path.name}: {name} is a virtual dataset that reads other files.")
        found = d.file.get(source.dset_name) if "%" not in source.dset_name else None
        plain_one = isinstance(found, h5py.Dataset) and not found.is_virtual and found.file == d.file
        if not plain_one:
            raise _refused(f"{path.name}: {name} is a virtual dataset, and its source {source.dset_name} is missing.")


def _check_size(
    name: str, d: h5py.h5d.DatasetID, path: Path, shape: tuple[int, ...], kind: _Type, *, virtual: bool, counted: bool
) -> None:
    size = kind.size
    claimed = math.prod(max(n, 1) for n in shape) * size
    if claimed <= UNWRITTEN_BYTES:
        return
    chunk = math.prod(h5py.Dataset(d).chunks or (0,)) * size
    row = math.prod(shape[1:]) * size
    if row > MAX_ROW:
        raise _refused(f"{path.name}: {name} claims {list(shape)} {kind.dtype}, of which a row has {row:,} bytes.")
    stored = 0 if 0 in shape else path.stat().st_size if virtual else d.get_storage_size()
    if claimed > MAX_RATIO * (stored if not counted or 0 in shape else d.get_num_chunks() * chunk):
        raise _refused(
            f"{path.name}: {name} claims {list(shape)} {kind.dtype} ({claimed:,} bytes) and stores {stored:,} bytes."
        )


def plain(d: h5py.Dataset) -> Array | str | None:
    """Return the whole value of a dataset that is not per row; texts as str, lists of texts one per line."""
    if d.shape is None:
        return None
    if h5py.check_string_dtype(d.dtype) is not None:
        value = d.asstr(errors="replace")[()]
        return value if isinstance(value, str) else "\n".join(map(str, np.ravel(value)))
    if d.dtype.kind == "O" or d.dtype.names:
        return str(d[()])
    return np.asarray(d[()])


def whole(d: h5py.Dataset) -> Any:
    """Read a whole dataset."""
    return d[()]


def attribute_names(item: h5py.Group | h5py.Dataset) -> list[str]:
    """Return the names of the attributes of a group or dataset."""
    return [_text(name) for name in _attribute_names(item.id)]


def _attribute_names(item: _Id) -> list[bytes]:
    names: list[bytes] = []
    if h5py.h5a.get_num_attrs(item):
        h5py.h5a.iterate(item, lambda name, *_: names.append(name))
    return names


def attribute_values(item: h5py.Group | h5py.Dataset) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the attributes of a group or dataset, by name."""
    names, checked = _attribute_names(item.id), False
    path = _path_of(item.id) if names else Path()
    for name in names:
        found = h5py.h5a.open(item.id, name)
        kind = found.get_type()
        if not checked and hdf5_limits.is_variable(kind):
            hdf5_limits.check_heap(item.id, path)
            checked = True
        yield _text(name), _attribute(item, name, found, kind, path)


def attribute(item: h5py.Group | h5py.Dataset, key: str | bytes) -> Any:
    """Read one attribute; raises KeyError if there is none. Names that are not UTF-8 are bytes."""
    path, name = _path_of(item.id), key if isinstance(key, bytes) else key.encode()
    found = h5py.h5a.open(item.id, name)
    kind = found.get_type()
    if hdf5_limits.is_variable(kind):
        hdf5_limits.check_heap(item.id, path)
    return _attribute(item, name, found, kind, path)


def _path_of(item: _Id) -> Path:
    return Path(os.fsdecode(h5py.h5f.get_name(item)))


def _attribute(
    item: h5py.Group | h5py.Dataset, name: bytes, found: h5py.h5a.AttrID, kind: h5py.h5t.TypeID, path: Path
) -> Any:
    """Read one attribute as ``item.attrs[name]`` does; of one value in a fifth of the time, since files have many."""
    with reading(path, f"the attribute {_text(name)}"):
        if kind.get_class() not in _SINGLE or found.get_space().get_simple_extent_type() != h5py.h5s.SCALAR:
            return item.attrs[name]
        variable = hdf5_limits.is_variable(kind)
        value = np.empty((), _TEXT if variable else found.dtype)
        found.read(value)
        return value.item().decode("utf-8", "surrogateescape") if variable else value[()]


def attributes(item: h5py.Group | h5py.Dataset) -> Iterator[tuple[str, Array | str]]:
    """Yield the attributes of a group or dataset as ``attributes/<name>``; texts as ``plain`` returns them."""
    for key, value in attribute_values(item):
        if isinstance(value, h5py.Empty):
            continue
        known = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc"
        texts = isinstance(value, np.ndarray) and value.dtype.kind in "OSU"
        lines = [_text(v) for v in np.ravel(value)] if texts else [_text(value)]
        yield f"attributes/{key}", np.asarray(value) if known else "\n".join(lines)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def keys_found(found: Mapping[str, h5py.Dataset]) -> str:
    """List the first names and shapes in a file, for a message."""
    shown = [f"{name} {list(d.shape or ())}" for name, d in list(found.items())[:12]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more > 0 else "") if shown else "no datasets"
