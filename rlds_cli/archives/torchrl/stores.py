"""Find the TensorDicts among files, parse them, and find the order in which the rows of each were written.

::

    DIR/buffer_metadata.json                 a dump of a replay buffer; everything else of it is left out
    DIR/storage/...                          its TensorDict, or storage/0, storage/1, ... of an ensemble
    DIR/storage/storage_metadata.json        "len": how many rows of it were written
    DIR/writer/metadata.json                 "cursor": where the next row would be written
    DIR/meta.json                            a TensorDict alone, or a lazy stack of DIR/0, DIR/1, ...

A buffer that is full holds its oldest row at the cursor; one that is not full holds zeros behind its last row.

A memory-mapped TensorDict is a directory of ``meta.json`` files, and raw files beside them::

    meta.json            {"observation": {"shape": [100, 4], "dtype": "torch.float32", ...}, "next": {"type": ...},
                          "shape": [100], "_type": "<class 'tensordict._td.TensorDict'>"}
    observation.memmap   the raw values of one entry, in C order, without a header
    next/meta.json       a nested TensorDict
    task/meta.json       texts, and other values that JSON holds: {"_type": "...NonTensorStack'>", "data": [...]}

Pickles beside them (``other.pickle``, ``pickle.pkl``) are never opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.readers import Archive
from rlds_cli.archives.torchrl.names import BFLOAT16, BUFFER, KNOWN, META, STORAGE, WRITER, encoded
from rlds_cli.archives.torchrl.signs import HDF5, PICKLES, is_checkpoint
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.text import natural
from rlds_cli.errors import ArchiveError, CorruptArchive, NoPermission, UnknownLayout, UnsafeArchive

FLAT_MARKS = ("is_full", "_storage_shape")
MAX_DEPTH, MAX_ENTRIES = 32, 4096
LONGEST = 64 << 20  # bytes of one meta.json: it may hold a column of texts


@dataclass(slots=True)
class TensorStore:
    """One TensorDict: its files, and the record of its replay buffer.

    ``file`` is the JSON or HDF5 file that describes it, ``source`` the number of that file in the archive, ``buffer``
    the number of its ``buffer_metadata.json``, or -1. ``written`` and ``cursor`` are None if they are not recorded;
    ``is_buffer`` says that a buffer wrote it.
    """

    file: Path
    source: int
    tree: TensorTree
    buffer: int = -1
    is_buffer: bool = False
    written: int | None = None
    cursor: int | None = None
    has_writer: bool = False
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def is_compact(self) -> bool:
        """True if TED2Flat or TED2Nested wrote it, which store observations once."""
        return bool(self.marks)

    @property
    def name(self) -> str:
        """The name of the TensorDict in messages."""
        return self.file.name if self.file.suffix in HDF5 else self.file.parent.name


def places(files: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """Find the file that describes each TensorDict, and the directory of its buffer or None."""
    buffers = {p.parent for p in files if p.name == BUFFER}
    known = set(files)
    found: dict[Path, Path | None] = {}
    for path in files:
        buffer = next((b for b in path.parents if b in buffers), None)
        if buffer is not None and (buffer / "storage") not in path.parents:
            continue
        if path.name in (META, STORAGE) and not _is_inner(path, known):
            found.setdefault(_described(path, known), buffer)
        elif path.suffix in HDF5 and is_checkpoint(path):
            found[path] = buffer
    return sorted(found.items(), key=lambda x: natural(x[0].as_posix()))


def _is_inner(path: Path, known: set[Path]) -> bool:
    """Tell whether a directory above describes the same TensorDict."""
    return any(p / META in known for p in path.parent.parents)


def _described(path: Path, known: set[Path]) -> Path:
    """Return the file that describes a TensorDict: ``meta.json``, or that of a pytree."""
    return path.with_name(META) if path.with_name(META) in known else path


def find(archive: Archive, bad: list[str] | None = None) -> list[TensorStore]:
    """Find the TensorDicts of an archive, in natural order of their places.

    With ``archive.skip_bad``, TensorDicts that cannot be read are left out, and ``bad`` receives the error of each.

    Raises
    ------
    UnknownLayout, CorruptArchive, UnsafeArchive
        There is no TensorDict; or one is of a kind that is not read, is damaged, or links to files outside the archive.
    """
    found: list[TensorStore] = []
    errors: list[ArchiveError] = []
    for file, buffer in places(archive.files):
        try:
            found += _stores(archive, file, buffer)
        except ArchiveError as e:
            errors.append(e)
    if errors and not (archive.skip_bad and found):
        more = f" ({len(errors) - 1} more cannot be read: --skip-bad leaves them out)" if len(errors) > 1 else ""
        raise type(errors[0])(errors[0].message + more, hint=errors[0].hint)
    if bad is not None:
        bad += [e.message for e in errors]
    if not found:
        raise UnknownLayout(
            f"{archive.files[0].name}: meta.json of a memory-mapped TensorDict is missing. Old versions wrote meta.pt, "
            "a pickle, which is not opened.",
            hint="import the directory that TensorDict.memmap(DIR) or ReplayBuffer.dumps(DIR) wrote",
        )
    return found


def again(archive: Archive, source: int, buffer: int) -> TensorStore:
    """Open the TensorDict that ``find`` found with these numbers again."""
    directory = archive.files[buffer].parent if buffer >= 0 else None
    return next(_stores(archive, archive.files[source], directory))


def _stores(archive: Archive, file: Path, buffer: Path | None) -> Iterator[TensorStore]:
    number = _number(archive, buffer / BUFFER) if buffer is not None else -1
    if file.suffix in HDF5:
        store = TensorStore(file, _number(archive, file), TensorTree(file.parent, ()), number, is_buffer=True)
        _add_writer(store, buffer, archive.root)
        yield store
        return
    for described, parsed in trees(file, archive.root):
        store = TensorStore(described, _number(archive, described), parsed, number)
        _add_storage(store, described.parent, archive.root)
        _add_writer(store, buffer, archive.root)
        yield store


def _number(archive: Archive, file: Path) -> int:
    if file not in archive.files:
        raise UnknownLayout(
            f"{file} is not among the files to import.", hint=f"rlds import {archive.root} --name local/x"
        )
    return archive.files.index(file)


def trees(file: Path, root: Path) -> Iterator[tuple[Path, TensorTree]]:
    """Parse the TensorDict that a file describes, or those of a lazy stack, each with its own file."""
    directory = file.parent
    if file.name == STORAGE:
        raise UnknownLayout(
            f"{directory} holds no TensorDict, but a tree or a list of tensors.",
            hint="load it in TorchRL, make a TensorDict of batch size [steps] of it, and memmap that",
        )
    kind = kind_of(load(directory, root))
    if kind == "LazyStackedTensorDict":
        children = sorted((p for p in directory.iterdir() if p.name.isdecimal()), key=lambda p: natural(p.name))
        for child in children:
            yield from trees(child / META, root)
    else:
        inner = directory / "_tensordict"
        yield file, parse(inner if (inner / META).exists() else directory, root)


def _add_storage(store: TensorStore, directory: Path, root: Path) -> None:
    """Add the record beside the TensorDict of how many rows were written."""
    constants = store.tree.constants
    if all(mark in constants for mark in FLAT_MARKS):
        store.marks = {mark: constants.pop(mark) for mark in FLAT_MARKS}
        store.marks["shift"] = constants.pop("shift", None)  # not there where the buffer is full and begins at row 0
    path = directory / STORAGE
    if path.exists():
        store.is_buffer = True
        store.written = _count(documents.load_object(within(path, root)).get("len"), path, "len")


def _add_writer(store: TensorStore, buffer: Path | None, root: Path) -> None:
    if buffer is None:
        return
    inner = store.file.parent.relative_to(buffer / "storage").parts
    path = (buffer / "writer").joinpath(*inner[:1], WRITER)
    if path.exists():
        store.is_buffer = store.has_writer = True
        store.cursor = _count(documents.load_object(within(path, root)).get("cursor"), path, "cursor")


def _count(value: Any, path: Path, key: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptArchive(f"{path}: {key} is {str(value)[:40]}; a number of rows is expected.")
    return value


def unread(files: Sequence[Path]) -> list[str]:
    """Find the files that are pickles, which are left out."""
    return [p.name for p in files if p.suffix in PICKLES]


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """One entry: ``dtype`` is the name of NumPy's dtype, or ``bfloat16``; ``shape`` is the shape of all values.

    In a nested tensor, whose rows differ in length, ``rows`` [n, d] are the shapes of the rows, and ``shape`` is the
    shape of their concatenation.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    rows: Array | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one value in the file."""
        return 2 if self.dtype == BFLOAT16 else np.dtype(self.dtype).itemsize

    def open(self) -> Array:
        """Map the values read-only; bfloat16 values as uint16."""
        stored = np.dtype(np.uint16 if self.dtype == BFLOAT16 else self.dtype)
        if not math.prod(self.shape):
            return np.zeros(self.shape, stored)
        return np.memmap(self.path, stored, "r", shape=self.shape).view(np.ndarray)


@dataclass(slots=True)
class TensorTree:
    """A TensorDict on disk, nested names joined by ``/``.

    ``batch`` is its batch size. ``texts`` are columns with one text per row, ``constants`` other values in JSON, and
    ``left_out`` entries that are not read, with the reasons.
    """

    directory: Path
    batch: tuple[int, ...]
    leaves: dict[str, TensorLeaf] = field(default_factory=dict)
    texts: dict[str, list[str | None]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def kind_of(meta: Mapping[str, Any]) -> str:
    """Return the name of the class that a ``meta.json`` was written by, without its module."""
    return str(meta.get("_type", "")).removesuffix("'>").rpartition(".")[2]


def load(directory: Path, root: Path) -> dict[str, Any]:
    """Return the ``meta.json`` of a directory below ``root``.

    Raises
    ------
    CorruptArchive, UnsafeArchive
        It is missing or no object; it lies outside ``root``.
    """
    return documents.load_object(within(directory / META, root), longest=LONGEST)


def parse(directory: Path, root: Path) -> TensorTree:
    """Parse the TensorDict in ``directory``; reads JSON, shapes and texts, and no values.

    Raises
    ------
    CorruptArchive
        JSON is damaged, or a file is missing or has another size than its shape needs.
    UnsafeArchive
        A link leads out of ``root``, a shape is impossible, or TensorDicts are nested too deep.
    """
    meta = load(directory, root)
    tree = TensorTree(directory, _shape(meta.get("shape", []), directory / META))
    _walk(tree, directory, meta, (), root)
    return tree


def within(path: Path, root: Path) -> Path:
    """Return ``path`` if it is below ``root`` when links are followed.

    Raises
    ------
    UnsafeArchive
        A link leads out of it.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnsafeArchive(f"{path} is a link to a place outside {root}.", hint="copy its target, and import the copy")
    return path


def _walk(tree: TensorTree, directory: Path, meta: Mapping[str, Any], above: tuple[str, ...], root: Path) -> None:
    if len(above) > MAX_DEPTH:
        raise UnsafeArchive(f"{directory}: TensorDicts are nested deeper than {MAX_DEPTH} levels.")
    if (directory / "other.pickle").exists():
        tree.left_out.append(f"{'/'.join((*above, 'other.pickle'))} (a pickle, which is not opened)")
    for key, about in meta.items():
        if not isinstance(about, dict):
            continue
        if "type" in about:
            _child(tree, _place(directory, key, ""), (*above, key), root)
        elif "dtype" in about and "shape" in about:
            _leaf(tree, (*above, key), about, _place(directory, key, ".memmap"), root)


def _place(directory: Path, key: str, suffix: str) -> Path:
    """Find the path of an entry; older versions of tensordict did not encode names."""
    path = directory / (encoded(key) + suffix)
    plain = not any(c in key for c in "/\\\0") and key not in ("", ".", "..")
    return directory / (key + suffix) if plain and not path.exists() else path


def _child(tree: TensorTree, directory: Path, parts: tuple[str, ...], root: Path) -> None:
    name = "/".join(parts)
    if (directory / META).exists() and within(directory / META, root).stat().st_size > LONGEST:
        tree.left_out.append(f"{name} (JSON of more than {LONGEST >> 20} MiB)")
        return
    meta = load(directory, root)
    kind = kind_of(meta)
    if kind in ("NonTensorData", "NonTensorStack"):
        _non_tensor(tree, directory, meta, name)
    elif kind == "LazyStackedTensorDict":
        tree.left_out.append(f"{name} (a lazy stack inside a TensorDict)")
    elif (directory / "_tensordict" / META).exists():
        _walk(tree, directory / "_tensordict", load(directory / "_tensordict", root), parts, root)
    else:
        _walk(tree, directory, meta, parts, root)


def _non_tensor(tree: TensorTree, directory: Path, meta: Mapping[str, Any], name: str) -> None:
    data = meta.get("data")
    pickled = [p for p in ("other.pickle", "pickle.pkl") if (directory / p).exists()]
    if pickled or data is None:
        tree.left_out.append(f"{name} (a pickle, which is not opened)" if pickled else f"{name} (empty)")
    elif kind_of(meta) == "NonTensorData":
        tree.constants[name] = data
    elif isinstance(data, list) and len(tree.batch) == 1 and len(data) == tree.batch[0]:
        tree.texts[name] = [x if isinstance(x, str) or x is None else json.dumps(x) for x in data]
    else:
        tree.constants[name] = data


def _leaf(tree: TensorTree, parts: tuple[str, ...], about: Mapping[str, Any], path: Path, root: Path) -> None:
    name = "/".join(parts)
    dtype = about.get("dtype")
    if not isinstance(dtype, str) or dtype not in KNOWN:
        tree.left_out.append(f"{name} ({str(dtype)[:40]}, which a field cannot hold)")
        return
    if len(tree.leaves) >= MAX_ENTRIES:
        raise UnsafeArchive(f"{tree.directory} describes more than {MAX_ENTRIES:,} entries.")
    if name in tree.leaves:
        raise CorruptArchive(f"{tree.directory}: two entries have the name {name}.")
    shape = _shape(about.get("shape"), path)
    leaf = TensorLeaf(name, path, KNOWN[dtype], shape)
    if about.get("is_nested"):
        leaf = _nested(leaf, root)
    _check_size(leaf, root)
    tree.leaves[name] = leaf


def _nested(leaf: TensorLeaf, root: Path) -> TensorLeaf:
    """Describe a nested tensor, from the table of the shapes of its rows."""
    table = TensorLeaf(leaf.name, leaf.path.with_name(leaf.path.stem + ".shape.memmap"), "int64", leaf.shape)
    if len(table.shape) != 2 or table.shape[1] < 1:
        raise CorruptArchive(
            f"{leaf.path.name}: its table of shapes is {list(table.shape)}; [rows, dimensions] expected."
        )
    _check_size(table, root)
    rows = np.array(table.open())
    if (rows < 0).any() or (len(rows) and (rows[:, 1:] != rows[0, 1:]).any()):
        raise UnknownLayout(f"{leaf.path.name}: the rows of a nested tensor differ in more than their lengths.")
    if len(rows) and float(rows.astype(float).sum()) > 2**62:
        raise UnsafeArchive(f"{table.path} claims rows of impossible lengths.")
    inner = tuple(int(n) for n in rows[0, 1:]) if len(rows) else ()
    return TensorLeaf(leaf.name, leaf.path, leaf.dtype, (int(rows[:, 0].sum()), *inner), rows)


def _check_size(leaf: TensorLeaf, root: Path) -> None:
    needed = math.prod(leaf.shape) * leaf.itemsize
    within(leaf.path, root)
    try:
        size = leaf.path.stat().st_size if leaf.path.is_file() else None
    except PermissionError as e:
        raise NoPermission(f"{leaf.path} may not be read.") from e
    if size is None and needed:
        raise CorruptArchive(f"{leaf.path} is not there, though {META} names {leaf.name}.", hint="write it again")
    if needed and size != needed:
        raise CorruptArchive(
            f"{leaf.path} has {size:,} bytes; {list(leaf.shape)} {leaf.dtype} takes {needed:,}.",
            hint="it is incomplete or was overwritten; write it again",
        )


def _shape(value: Any, path: Path) -> tuple[int, ...]:
    ints = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not ints or len(value) > MAX_DEPTH:
        raise CorruptArchive(f"{path}: {str(value)[:60]} is not a shape.")
    if any(n < 0 for n in value) or math.prod(max(n, 1) for n in value) > 2**62:
        raise UnsafeArchive(f"{path}: the shape {value} is impossible.")
    return tuple(value)
