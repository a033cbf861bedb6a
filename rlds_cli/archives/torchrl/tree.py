"""Parse the directory of a memory-mapped TensorDict: its ``meta.json`` files, and the raw files beside them.

::

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import documents
from rlds_cli.errors import CorruptArchive, NoPermission, UnknownLayout, UnsafeArchive
from rlds_cli.ted import Array

META = "meta.json"
MAX_DEPTH, MAX_ENTRIES = 32, 4096
LONGEST = 64 << 20  # bytes of one meta.json: it may hold a column of texts
BFLOAT16 = "bfloat16"
KNOWN = {f"torch.{n}": n for n in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")}
KNOWN |= {f"torch.{n}": n for n in ("uint16", "uint32", "uint64", "complex64", "complex128", BFLOAT16)}
_UNSAFE = frozenset('/<>:"|?*\\ %') | {chr(i) for i in (*range(32), 127)}


@dataclass(frozen=True, slots=True)
class Leaf:
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
        """The values, mapped read-only; bfloat16 as the uint16 that hold them."""
        stored = np.dtype(np.uint16 if self.dtype == BFLOAT16 else self.dtype)
        if not math.prod(self.shape):
            return np.zeros(self.shape, stored)
        return np.memmap(self.path, stored, "r", shape=self.shape).view(np.ndarray)


@dataclass(slots=True)
class Tree:
    """A TensorDict on disk, nested names joined by ``/``.

    ``batch`` is its batch size. ``texts`` are columns with one text per row, ``constants`` other values in JSON, and
    ``left_out`` entries that are not read, with the reasons. ``padded`` says that observations end with a row of zeros.
    """

    directory: Path
    batch: tuple[int, ...]
    leaves: dict[str, Leaf] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    padded: bool = False


def is_tensordict(path: Path) -> bool:
    """Whether a ``meta.json`` is one of tensordict's."""
    if path.name != META:
        return False
    try:
        content = documents.load(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and isinstance(content.get("_type"), str) and "<class '" in content["_type"]


def kind_of(meta: Mapping[str, Any]) -> str:
    """The name of the class that a ``meta.json`` was written by, without its module."""
    return str(meta.get("_type", "")).removesuffix("'>").rpartition(".")[2]


def load(directory: Path, root: Path) -> dict[str, Any]:
    """The ``meta.json`` of a directory below ``root``.

    Raises
    ------
    CorruptArchive, UnsafeArchive
        It is missing or no object; it lies outside ``root``.
    """
    return documents.load_object(within(directory / META, root), longest=LONGEST)


def parse(directory: Path, root: Path) -> Tree:
    """Parse the TensorDict in ``directory``; reads JSON, shapes and texts, and no values.

    Raises
    ------
    CorruptArchive
        JSON is damaged, or a file is missing or has another size than its shape needs.
    UnsafeArchive
        A link leads out of ``root``, a shape is impossible, or TensorDicts are nested too deep.
    """
    meta = load(directory, root)
    tree = Tree(directory, _shape(meta.get("shape", []), directory / META))
    _walk(tree, directory, meta, (), root)
    return tree


def from_shapes(directory: Path, shapes: Mapping[str, Any], root: Path) -> Tree:
    """The tree of a pytree storage of TorchRL, which lists its tensors: ``{"a.0": {"dtype": ..., "shape": ...}}``."""
    tree = Tree(directory, ())
    for name, about in shapes.items():
        parts = [p.replace("_<dot>_", ".") for p in name.split(".")]
        file = directory.joinpath(*parts[:-1], parts[-1] + ".memmap")
        if ".." in parts or not isinstance(about, dict):
            raise UnsafeArchive(f"{directory.name}: {name!r} is no name of a tensor.")
        _leaf(tree, tuple(parts), about, file, root)
    rows = {leaf.shape[0] for leaf in tree.leaves.values() if leaf.shape}
    tree.batch = (rows.pop(),) if len(rows) == 1 else ()
    return tree


def within(path: Path, root: Path) -> Path:
    """Return ``path`` if it is below ``root`` when links are followed.

    Raises
    ------
    UnsafeArchive
        A link leads out of it.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnsafeArchive(
            f"{path} is a link that leads out of {root}.", hint="copy what it leads to, and import that"
        )
    return path


def encoded(key: str) -> str:
    """The name of the file or directory of an entry, as tensordict encodes it."""
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return "".join(f"%{ord(c):02X}" if c in _UNSAFE else c for c in key)


def _walk(tree: Tree, directory: Path, meta: Mapping[str, Any], above: tuple[str, ...], root: Path) -> None:
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
    """Where an entry lies; older versions of tensordict did not encode names."""
    path = directory / (encoded(key) + suffix)
    plain = not any(c in key for c in "/\\\0") and key not in ("", ".", "..")
    return directory / (key + suffix) if plain and not path.exists() else path


def _child(tree: Tree, directory: Path, parts: tuple[str, ...], root: Path) -> None:
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


def _non_tensor(tree: Tree, directory: Path, meta: Mapping[str, Any], name: str) -> None:
    data = meta.get("data")
    pickled = [p for p in ("other.pickle", "pickle.pkl") if (directory / p).exists()]
    if pickled or data is None:
        tree.left_out.append(f"{name} (a pickle, which is not opened)" if pickled else f"{name} (empty)")
    elif kind_of(meta) == "NonTensorData":
        tree.constants[name] = data
    elif isinstance(data, list) and len(tree.batch) == 1 and len(data) == tree.batch[0]:
        tree.texts[name] = [x if isinstance(x, str) else json.dumps(x) for x in data]
    else:
        tree.constants[name] = data


def _leaf(tree: Tree, parts: tuple[str, ...], about: Mapping[str, Any], path: Path, root: Path) -> None:
    name = "/".join(parts)
    dtype = about.get("dtype")
    if not isinstance(dtype, str) or dtype not in KNOWN:
        tree.left_out.append(f"{name} ({str(dtype)[:40]}, which no field can hold)")
        return
    if len(tree.leaves) >= MAX_ENTRIES:
        raise UnsafeArchive(f"{tree.directory} describes more than {MAX_ENTRIES:,} entries.")
    if name in tree.leaves:
        raise CorruptArchive(f"{tree.directory}: two entries make the name {name}.")
    shape = _shape(about.get("shape"), path)
    leaf = Leaf(name, path, KNOWN[dtype], shape)
    if about.get("is_nested"):
        leaf = _nested(leaf, root)
    _check_size(leaf, root)
    tree.leaves[name] = leaf


def _nested(leaf: Leaf, root: Path) -> Leaf:
    """The entry of a nested tensor, from the table of the shapes of its rows."""
    table = Leaf(leaf.name, leaf.path.with_name(leaf.path.stem + ".shape.memmap"), "int64", leaf.shape)
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
    return Leaf(leaf.name, leaf.path, leaf.dtype, (int(rows[:, 0].sum()), *inner), rows)


def _check_size(leaf: Leaf, root: Path) -> None:
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
        raise CorruptArchive(f"{path}: {str(value)[:60]} is no shape.")
    if any(n < 0 for n in value) or math.prod(max(n, 1) for n in value) > 2**62:
        raise UnsafeArchive(f"{path}: the shape {value} is impossible.")
    return tuple(value)
