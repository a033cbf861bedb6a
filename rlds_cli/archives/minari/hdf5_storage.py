"""``main_data.hdf5``: a group ``episode_<i>`` per episode, a dataset per column.

Datasets are opened as low-level ids. An archive of 100,000 episodes has most of a million of them, and an object of
h5py costs 100 µs, an id 30.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.formats import hdf5_limits, inventory
from rlds_cli.archives.formats.hdf5 import (
    MAX_DEPTH,
    UNWRITTEN_BYTES,
    attribute,
    attribute_values,
    check_dataset,
    open_file,
    reading,
)
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.minari import description
from rlds_cli.archives.minari.description import MinariColumn, NamedEpisode, ScannedEpisodes
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, UnsafeArchive
from rlds_cli.ted import EncodedFrames, Kind, Space, Text

_GROUP = re.compile(r"episode_(0|[1-9][0-9]{0,17})")
_COUNTS_STEPS = ("rewards", "terminations", "truncations", "actions")
_WIDEST = 8
_PLAIN_FILTERS = {hdf5_limits.DEFLATE, hdf5_limits.SHUFFLE, hdf5_limits.FLETCHER}


def episodes(f: h5py.File, path: Path) -> list[int]:
    """Return the numbers of the episodes of an open file, in order."""
    found = []
    f.id.links.iterate(lambda name, info: found.append((name.decode("utf-8", "replace"), info.type)), info=True)
    numbers = []
    for name, kind in found:
        match = _GROUP.fullmatch(name)
        if match and kind != h5py.h5l.TYPE_HARD:
            raise UnsafeArchive(f"{path.name}: {name} is a link.")
        if match:
            numbers.append(int(match[1]))
    return sorted(numbers)


def looks_right(path: Path) -> bool:
    """Tell whether an HDF5 file holds Minari episodes."""
    with open_file(path, check=False) as f, reading(path, "its episodes"):
        numbers = episodes(f, path)
        return bool(numbers) and {"observations", "actions"} <= set(_group(f, path, numbers[0]))


def root_attributes(path: Path) -> dict[str, Any]:
    """Read the attributes of the file as JSON values: Minari before 0.5 wrote them instead of ``metadata.json``."""
    with open_file(path, check=False) as f, reading(path, "its attributes"):
        return {name: description.plain(value) for name, value in attribute_values(f)}


def scan(path: Path, known: Mapping[str, Any]) -> Iterator[ScannedEpisodes]:
    """Find each episode's number, steps and columns; ``known`` are the spaces by "observations" and "actions"."""
    seen = _Leaves(known)
    with open_file(path, check=False) as f, reading(path, "an episode"):
        for number in episodes(f, path):
            group = _group(f, path, number)
            found = members(group, path)
            datasets = {name: item for name, item in found.items() if isinstance(item, h5py.h5d.DatasetID)}
            steps = _steps(datasets)
            yield ScannedEpisodes(
                number,
                NamedEpisode(f"{path.name}: episode_{number}", steps),
                tuple(seen.leaf(name, d, steps) for name, d in datasets.items()),
                tuple(n for name, item in (("", group.id), *found.items()) for n in _attribute_names(name, item)),
                tuple(name for name, item in found.items() if name not in datasets and not item.get_num_objs()),
            )


def beside(path: Path) -> list[Item]:
    """List what a file holds beside its episodes: attributes, and other groups and datasets."""
    with open_file(path, check=False) as f, reading(path, "its groups"):
        attributes = [Item(inventory.ATTRIBUTE, name) for name in _attribute_names("", f.id)]
        others = [(name, inventory.GROUP if isinstance(f[name], h5py.Group) else inventory.DATASET) for name in f]
        return attributes + [Item(kind, name) for name, kind in others if not _GROUP.fullmatch(name)]


def _attribute_names(name: str, item: Any) -> list[str]:
    if not h5py.h5a.get_num_attrs(item):
        return []
    found: list[str] = []
    h5py.h5a.iterate(item, lambda key: found.append(f"{name}@{key.decode('utf-8', 'replace')}"))
    return found


def first_frame(path: Path, number: int, column: tuple[str, ...]) -> bytes:
    """Read the first encoded image of a column."""
    with open_file(path, check=False) as f:
        rows = Hdf5StorageRows(f, path, number, {"": column})
        rows.select(0, 1)
        return rows.frames("", 1).data.tobytes()


def _group(f: h5py.File, path: Path, number: int) -> h5py.Group:
    try:
        group = f[f"episode_{number}"]
    except KeyError as e:
        raise CorruptArchive(f"{path.name}: episode_{number} cannot be opened: {e}") from e
    if not isinstance(group, h5py.Group):
        raise CorruptArchive(f"{path.name}: episode_{number} is a dataset; a group expected.")
    return group


def _steps(found: Mapping[str, h5py.h5d.DatasetID]) -> int:
    for key in _COUNTS_STEPS:
        for name, d in found.items():
            if name.split("/")[0] == key and d.shape:
                return int(d.shape[0])
    rows = [int(d.shape[0]) for name, d in found.items() if name.split("/")[0] == "observations" and d.shape]
    return max(rows[0] - 1, 0) if rows else 0


class _Leaves:
    """Leaves of datasets. Most are laid out as in the episode before, which costs a tenth of looking closely."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._seen: dict[str, tuple[h5py.h5t.TypeID, tuple[int, ...], int, MinariColumn]] = {}

    def leaf(self, name: str, d: h5py.h5d.DatasetID, steps: int) -> MinariColumn:
        """Describe the dataset ``name`` of an episode of ``steps`` steps."""
        shape, kind = d.shape or (), d.get_type()
        row, extra = shape[1:], shape[0] - steps if shape else 0
        seen = self._seen.get(name)
        if seen is None or seen[1:3] != (row, extra) or not seen[0].equal(kind):
            seen = self._seen[name] = (kind, row, extra, self._look(name, d, extra))
        return seen[3]

    def _look(self, name: str, d: h5py.h5d.DatasetID, extra: int) -> MinariColumn:
        path = tuple(name.split("/"))
        kind, dtype, problem = _values(d)
        if not d.shape:
            return MinariColumn(path, kind, dtype, (), 0, problem="one value for the whole episode")
        shape = tuple(int(n) for n in d.shape[1:])
        image = Space(self._known.get(path[0])).at(path[1:]).image_shape
        if kind == "array" and dtype == "uint8" and len(shape) == 1 and (image or self._is_jpeg(path, d)):
            kind = "frames"
        elif kind != "array" and shape:
            problem = problem or f"{list(shape)} values of varying length in a row"
        return MinariColumn(path, kind, dtype, (image or ()) if kind == "frames" else shape, extra, problem)

    def _is_jpeg(self, path: tuple[str, ...], d: h5py.h5d.DatasetID) -> bool:
        """Tell whether rows of bytes are images that no space describes (JPEGs of one length make a matrix)."""
        unknown = path[0] in self._known and self._known[path[0]] is None
        return unknown and d.shape[0] > 0 and h5py.Dataset(d)[0, :3].tobytes() == b"\xff\xd8\xff"


def _values(d: h5py.h5d.DatasetID) -> tuple[Kind, str, str]:
    """Return the kind and dtype of the values, or the reason why they cannot be a field."""
    try:
        dtype = d.dtype
    except (TypeError, ValueError) as e:
        return "array", "", f"values of a type that NumPy lacks ({e})"
    if h5py.check_string_dtype(dtype) is not None:
        return "text", "str", ""
    if h5py.check_vlen_dtype(dtype) == np.uint8:
        return "frames", "uint8", ""
    if dtype.kind in "biuf" and dtype.itemsize <= _WIDEST:
        return "array", dtype.newbyteorder("=").name, ""
    return "array", dtype.name, f"values of type {dtype}"


class Hdf5StorageRows:
    """The rows of one episode of a file that was scanned before; see `minari.EpisodeRows`."""

    def __init__(self, f: h5py.File, path: Path, number: int, paths: Mapping[str, tuple[str, ...]]) -> None:
        self._path, self._number = path, number
        self._group = _group(f, path, number)
        self._columns: dict[str, h5py.h5d.DatasetID] = {}
        for name, keys in paths.items():
            with self._reading(name):
                self._columns[name] = h5py.h5d.open(self._group.id, "/".join(keys).encode())
        self._start = 0

    def select(self, start: int, stop: int) -> None:
        """Go to rows [start, stop)."""
        self._start = start

    def array(self, name: str, out: Array) -> None:
        """Fill ``out`` with the first ``len(out)`` rows selected; HDF5 converts to its dtype."""
        d = self._column(name, len(out))
        if not out.size:
            return
        if out.dtype == bool and d.get_type().get_class() != h5py.h5t.ENUM:
            out[...] = self._slice(name, len(out)) != 0  # HDF5 would keep 2 as a bool whose byte is 2
            return
        memory = rows = h5py.h5s.ALL
        if len(out) < d.shape[0]:
            memory, rows = h5py.h5s.create_simple(out.shape), d.get_space()
            rows.select_hyperslab((self._start, *(0 for _ in out.shape[1:])), out.shape)
        with self._reading(name):
            d.read(memory, rows, out)
        if out.dtype == bool:
            np.not_equal(out.view(np.uint8), 0, out=out)

    def frames(self, name: str, count: int) -> EncodedFrames:
        """Read encoded images of the first ``count`` rows selected."""
        values = self._slice(name, count)
        if values.dtype != object:
            return EncodedFrames(values.reshape(-1), np.full(count, values.shape[1], np.int64))
        data = np.concatenate([*values, np.zeros(0, np.uint8)], dtype=np.uint8)
        return EncodedFrames(data, np.array([len(v) for v in values], np.int64))

    def text(self, name: str, count: int) -> Text:
        """Read strings of the first ``count`` rows selected."""
        return [v.decode("utf-8", "backslashreplace") for v in self._slice(name, count).tolist()]

    def describe(self) -> description.Described:
        """Read seed and options, from the attributes of the group."""
        names: list[str] = []
        with self._reading("its attributes"):
            h5py.h5a.iterate(self._group.id, lambda name: names.append(name.decode("utf-8", "replace")))
            seed = attribute(self._group, "seed") if "seed" in names else None
            options = {n: attribute(self._group, n) for n in names if n.split("/")[0] == "options"}
        return description.described(seed, _nested(options).get("options"))

    def _column(self, name: str, count: int) -> h5py.h5d.DatasetID:
        d = self._columns[name]
        if not d.shape or self._start + count > d.shape[0]:
            raise CorruptArchive(
                f"{self._path.name}: episode_{self._number} has {d.shape[0]:,} rows of {name}; "
                f"{self._start + count:,} expected."
            )
        return d

    def _slice(self, name: str, count: int) -> Array:
        d = self._column(name, count)
        with self._reading(name):
            values: Array = h5py.Dataset(d)[self._start : self._start + count]
        return values

    def _reading(self, name: str) -> Any:
        return reading(self._path, f"episode_{self._number}: {name}")


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest names with slashes: ``{"options/a/b": 1}`` -> ``{"options": {"a": {"b": 1}}}``."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        inner = result
        for parent in parents:
            below = inner.setdefault(parent, {})
            inner = below if isinstance(below, dict) else inner.setdefault(f"{parent}/", {})
        inner[last] = value
    return result


def members(group: h5py.Group, path: Path) -> dict[str, Any]:
    """Find datasets and groups, as their ids, by their path from ``group``. Of soft links, those to datasets count.

    Raises
    ------
    UnsafeArchive
        What ``hdf5.open_file`` refuses.
    """
    found = {}
    file_number = h5py.h5o.get_info(group.id).fileno
    for raw, kind in _links(group, path):
        name = _checked_name(raw, kind, path)
        try:
            item = h5py.h5o.open(group.id, raw)
        except KeyError as e:
            raise UnsafeArchive(f"{path.name}: {name} is a broken link.") from e
        if kind == h5py.h5l.TYPE_SOFT and h5py.h5o.get_info(item).fileno != file_number:
            raise UnsafeArchive(f"{path.name}: {name} is a link to another file.")
        if isinstance(item, h5py.h5d.DatasetID):
            if not _harmless(item):
                check_dataset(name, item, path)
            found[name] = item
        elif isinstance(item, h5py.h5g.GroupID) and kind == h5py.h5l.TYPE_HARD:
            found[name] = item
    return found


def _links(group: h5py.Group, path: Path) -> list[tuple[bytes, int]]:
    """Find the path and type of every link below ``group``; HDF5 enters each group once."""
    found: list[tuple[bytes, int]] = []

    def visit(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
        found.append((name, info.type))
        return name if name.count(b"/") >= MAX_DEPTH else None  # anything but None ends the visit

    if group.id.links.visit(visit, info=True) is not None:
        raise UnsafeArchive(f"{path.name}: groups are nested more than {MAX_DEPTH} deep in {group.name}.")
    return found


def _checked_name(raw: bytes, kind: int, path: Path) -> str:
    name = raw.decode("utf-8", "replace")
    if not name.isprintable() or {"", ".", ".."} & set(name.split("/")) or name.encode() != raw:
        raise UnsafeArchive(f"{path.name}: {name!r} is not a valid field name.")
    if kind == h5py.h5l.TYPE_EXTERNAL:
        raise UnsafeArchive(f"{path.name}: {name} is a link to another file.")
    return name


def _harmless(d: h5py.h5d.DatasetID) -> bool:
    """Tell whether a dataset is too small and plain to need the full check."""
    layout = d.get_create_plist()
    kind = layout.get_layout()
    chunk = layout.get_chunk() if kind == h5py.h5d.CHUNKED else ()
    return (
        max(math.prod(d.shape or ()), math.prod(chunk)) * d.get_type().get_size() <= UNWRITTEN_BYTES
        and kind != h5py.h5d.VIRTUAL
        and (kind == h5py.h5d.CHUNKED or not layout.get_external_count())
        and not hdf5_limits.is_variable(d.get_type())
        and all(layout.get_filter(i)[0] in _PLAIN_FILTERS for i in range(layout.get_nfilters()))
    )
