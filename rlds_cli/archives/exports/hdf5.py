"""Write HDF5 files in several processes: datasets are contiguous, so that rows are written at known offsets of a file.

HDF5 lets one process at a time change a file. So the whole file is laid out first: groups, attributes, and datasets at
their full size, with their places allocated. Then processes write rows there without HDF5. Texts and encoded images
have no fixed size, and are written while the file is laid out.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from rlds_cli.archives.exports.content import PIECE, Content, Loss
from rlds_cli.archives.exports.format import Format, Unit
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.text import is_below, plural
from rlds_cli.ted import REWARD, Field, Kind

_TEXT, _IMAGE = h5py.string_dtype(), h5py.vlen_dtype(np.uint8)
_DEEPEST = 24  # components of a name
VERSIONS = ("v108", "v110")  # of HDF5 that read the files; older groups take more space and time
Rows = Literal["steps", "next", "all"]
_NEXT = "next/observation"


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of an episode: its path below the episode's group, and the rows of a field that it holds.

    ``rows`` are the T steps, the T rows after them (``next``), or all T+1.
    """

    key: str
    field: str
    rows: Rows
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: Kind = "array"

    @classmethod
    def of(cls, f: Field, key: str, rows: Rows = "steps", dtype: str = "") -> Column:
        """Return the column of a field; numbers are stored in its dtype, or in ``dtype``."""
        return cls(key, f.name, rows, np.dtype("O" if f.kind != "array" else dtype or f.dtype), f.shape, f.kind)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Hdf5Format(Format):
    """A format with one HDF5 file, whose datasets hold the rows of an episode, or those of all of them."""

    def file(self, directory: Path) -> Path:
        """Return the file."""
        return directory / f"{self.target.name}.hdf5"

    def files(self, directory: Path) -> Sequence[Path]:
        """Return the file."""
        return [self.file(directory)]

    @abstractmethod
    def columns(self) -> list[Column]:
        """Return the datasets of an episode."""

    @abstractmethod
    def lay_out(self, f: h5py.File, make: HDF5Layout) -> IntArray:
        """Make groups, attributes and datasets; return where each episode begins in the file [episodes, columns]."""

    @abstractmethod
    def place(self, column: Column, episode: int) -> tuple[str, int]:
        """Return the dataset that holds a column of an episode, and the row with which the episode begins."""

    def values(self, column: Column, values: Array, start: int) -> Array:
        """Return values of steps, from row ``start`` on, as they are stored."""
        return values

    def prepare(self, directory: Path) -> None:
        """Lay the file out, and write what has no fixed size."""
        path = self.file(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w", libver=VERSIONS) as f:
            places = self.lay_out(f, HDF5Layout())
            for c in self.columns():
                if c.kind != "array":
                    for episode, row, values in self._parts(c, 0, len(self.content.table)):
                        name, first = self.place(c, episode)
                        write_ragged(f[name], first + row, values)
        np.save(places_of(directory), places)

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the rows of some episodes at their places in the file."""
        places = np.load(places_of(directory), mmap_mode="r", allow_pickle=False)[unit.first : unit.stop].T.tolist()
        with self.file(directory).open("r+b", buffering=0) as file:
            for c, begins in zip(self.columns(), places, strict=True):
                if c.kind != "array" or not c.row_bytes:
                    continue
                for episode, row, values in self._parts(c, unit.first, unit.stop):
                    at = begins[episode - unit.first] + row * c.row_bytes
                    arrays.write_at(file.fileno(), at, values.astype(c.dtype, copy=False))
            os.fsync(file.fileno())
        return None

    def _parts(self, column: Column, first: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """Yield (episode, row in it, values) of a column of some episodes, reading pieces of bounded size."""
        starts, lengths = self.content.starts, self.content.table.length
        begin, end = int(starts[first]), int(starts[stop - 1] + lengths[stop - 1]) + 1
        size = column.row_bytes if column.kind == "array" else max(256, self.content.row_bytes(column.field))
        at_once, shift = max(1, PIECE // max(1, size)), int(column.rows == "next")
        for a in range(begin, end, at_once):
            b = min(a + at_once, end)
            if column.kind == "frames":
                values = np.empty(b - a, object)
                values[:] = [np.frombuffer(data, np.uint8) for data in self.content.frames(column.field, a, b)]
            else:
                rows = self.content.rows(column.field, a + shift, min(b + shift, self.content.num_rows))
                values = self.values(column, rows, a)
            low, high = self.content.episodes_at(np.array([a, b - 1])).tolist()
            for k in range(low, high + 1):
                start = int(starts[k])
                lo, hi = max(a, start), min(b, start + int(lengths[k]) + (column.rows == "all"))
                if lo < hi:
                    yield k, lo - start, values[lo - a : hi - a]


class GroupedFormat(Hdf5Format):
    """A format with a group for each episode."""

    @abstractmethod
    def group(self, episode: int) -> str:
        """Return the path of the group of an episode."""

    def open(self, f: h5py.File) -> None:
        """Make the groups above those of the episodes."""
        return

    def describe(self, make: HDF5Layout, group: h5py.h5g.GroupID, episode: int) -> None:
        """Write the attributes of an episode."""
        return

    def close(self, f: h5py.File) -> None:
        """Write what the file holds beside its episodes."""
        return

    def place(self, column: Column, episode: int) -> tuple[str, int]:
        """Return the dataset in the group of the episode."""
        return f"{self.group(episode)}/{column.key}", 0

    def lay_out(self, f: h5py.File, make: HDF5Layout) -> IntArray:
        """Make a group for each episode."""
        columns, lengths = self.columns(), self.content.table.length.tolist()
        places = np.zeros((len(lengths), len(columns)), np.int64)
        self.open(f)
        for k, length in enumerate(lengths):
            group = make.group(f.id, self.group(k))
            self.describe(make, group, k)
            groups = {"": group}
            for i, c in enumerate(columns):
                places[k, i] = make.dataset(groups, c.key, c.dtype, (length + (c.rows == "all"), *c.shape), c.kind)
        self.close(f)
        return places


def write_ragged(d: h5py.Dataset, at: int, values: Array) -> None:
    """Write texts or encoded images [n] at a row: h5py itself would take images of equal size for a matrix."""
    found = np.empty(len(values), d.dtype)
    found[:] = values
    if len(found):
        place = d.id.get_space()
        place.select_hyperslab((at,), (len(found),))
        d.id.write(h5py.h5s.create_simple(found.shape), place, found)


def places_of(directory: Path) -> Path:
    """Return the file that keeps where the datasets are, beside the exported files: opening each would take longer."""
    return directory.with_name("places.npy")


class HDF5Layout:
    """Makes groups and datasets by HDF5's own functions: an object of h5py for each would take ten times as long."""

    def __init__(self) -> None:
        self._how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._how.set_layout(h5py.h5d.CONTIGUOUS)
        self._how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._types: dict[Any, h5py.h5t.TypeID] = {}
        self._one = h5py.h5s.create(h5py.h5s.SCALAR)

    def group(self, parent: Any, path: str) -> h5py.h5g.GroupID:
        """Make a group below existing ones."""
        return h5py.h5g.create(parent, path.encode())

    def below(self, groups: dict[str, h5py.h5g.GroupID], path: str) -> h5py.h5g.GroupID:
        """Return a group below the first of ``groups``, which has those that were made."""
        if path not in groups:
            above, _, name = path.rpartition("/")
            groups[path] = self.group(self.below(groups, above), name)
        return groups[path]

    def dataset(
        self,
        groups: dict[str, h5py.h5g.GroupID],
        path: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        kind: Kind = "array",
    ) -> int:
        """Make a dataset below the first of ``groups``, and return its place in the file.

        Texts and encoded images have no fixed size, and their place is not known yet: 0.
        """
        above, _, name = path.rpartition("/")
        parent, ragged = self.below(groups, above), {"text": _TEXT, "frames": _IMAGE}.get(kind)
        key = dtype if ragged is None else kind
        if key not in self._types:
            self._types[key] = h5py.h5t.py_create(dtype if ragged is None else ragged, logical=True)
        if ragged is None:
            space = h5py.h5s.create_simple(shape)
            return h5py.h5d.create(parent, name.encode(), self._types[key], space, self._how).get_offset() or 0
        h5py.h5d.create(parent, name.encode(), self._types[key], h5py.h5s.create_simple(shape[:1]))
        return 0

    def number(self, group: h5py.h5g.GroupID, name: str, value: int, dtype: str = "int64") -> None:
        """Write a number as an attribute."""
        if dtype not in self._types:
            self._types[dtype] = h5py.h5t.py_create(np.dtype(dtype))
        h5py.h5a.create(group, name.encode(), self._types[dtype], self._one).write(np.array(value, dtype))

    def text(self, group: h5py.h5g.GroupID, name: str, value: str) -> None:
        """Write a text as an attribute of fixed length: others lie in a heap, for which readers search files."""
        data = np.bytes_(value.encode())
        kind = h5py.h5t.py_create(data.dtype)
        h5py.h5a.create(group, name.encode(), kind, self._one).write(np.array(data))


# -- losses that all of these formats have


def fitting(name: str, taken: Collection[str]) -> str:
    """Return a name that HDF5 takes, as similar as it goes, and that is not taken."""
    parts = [_part(p) for p in name.split("/")]
    if len(parts) > _DEEPEST:
        parts = [*parts[: _DEEPEST - 1], "_".join(parts[_DEEPEST - 1 :])]
    found, number = list(parts), 1
    while clash := next((t for t in taken if is_below("/".join(found), t) or is_below(t, "/".join(found))), None):
        number += 1
        at = min(len(parts), clash.count("/") + 1) - 1  # the part that the other name ends with
        found = [*parts[:at], f"{parts[at]}_{number}", *parts[at + 1 :]]
    return "/".join(found)


def _part(part: str) -> str:
    plain = "".join(c if c.isprintable() else "_" for c in part)
    return plain.replace(".", "_") if plain in (".", "..") else plain


def losses_of_values(content: Content, f: Field, *, widest: int = 8, kinds: str = "biuf") -> Iterator[Loss]:
    """Yield the losses of a field whose values HDF5 or a reader cannot hold, whatever its name is."""
    dtype = np.dtype(f.dtype) if f.kind == "array" else None
    if dtype is not None and (dtype.kind not in kinds or dtype.itemsize > widest):
        yield Loss("field", f"{f.name}: values of {f.dtype}", f.name)
    elif f.kind == "frames" and 0 in f.shape:
        yield Loss("field", f"{f.name}: images of different sizes", f.name)
    elif f.kind == "text":
        odd = sum(not _is_plain(s) for s in content.strings(f.name))
        if odd:
            yield Loss("field", f"the texts {f.name}, of which {odd:,} hold NUL or bytes that are not UTF-8", f.name)
        elif missing := content.missing_texts(f.name):
            yield Loss("missing", f"{missing:,} missing texts of {f.name}: will be empty", f.name)


def _is_plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def losses_of_finals(content: Content) -> Iterator[Loss]:
    """Yield the loss of a format that holds the final observations of all episodes, or of none."""
    count, known = len(content.table), int(content.table.observed.sum())
    if 0 < known < count:
        yield Loss("final", f"final observations of {known:,} of {plural(count, 'episode')}")


@dataclass(frozen=True, slots=True)
class OwnNext:
    """Next observations that are fields of their own.

    ``whole`` says that every observation has one, of its shape, ``alike`` that they have the same dtypes. ``finals``
    says that they end with the final observations, and ``differ`` in how many of the other ``pairs`` of steps one is
    not the observation of the row after.
    """

    whole: bool
    alike: bool
    finals: bool = False
    differ: int = 0
    pairs: int = 0

    @classmethod
    def of(cls, content: Content) -> OwnNext | None:
        """Compare the next observations of a dataset; None if there are none."""
        fields = content.fields
        own = {n.removeprefix("next/"): f for n, f in fields.items() if is_below(n, "next/observation")}
        if not own:
            return None
        observed = {n: f for n, f in fields.items() if is_below(n, "observation")}
        whole = {n: f.shape for n, f in own.items()} == {n: f.shape for n, f in observed.items()}
        whole = whole and all(f.kind == "array" for f in (*own.values(), *observed.values()))
        alike = whole and all(f.dtype == own[n].dtype for n, f in observed.items())
        return cls(whole, alike, *_compared(content, list(own))) if whole else cls(False, False)


def _compared(content: Content, names: Sequence[str]) -> tuple[bool, int, int]:
    finals, differ, pairs = True, 0, 0
    size = sum(content.row_bytes(n) for n in names)
    step = max(1, PIECE // max(1, 2 * size))
    for a in range(0, content.num_rows - 1, step):
        b = min(a + step, content.num_rows - 1)
        odd = np.zeros(b - a, bool)
        for name in names:
            now, after = (
                content.rows(name, a + 1, b + 1),
                content.rows(f"next/{name}", a, b).astype(content.fields[name].dtype),
            )
            unequal = (now != after) & ~((now != now) & (after != after))
            odd |= unequal.reshape(b - a, -1).any(axis=1)
        last, ends = content.last_rows(a, b) - a, content.last_rows(a + 1, b + 1) - 1 - a
        finals &= not odd[ends].any()
        odd[last] = odd[ends] = False
        differ, pairs = differ + int(odd.sum()), pairs + (b - a) - len(last) - len(ends)
    return finals, differ, pairs


@dataclass(frozen=True, slots=True)
class Names:
    """The paths that a layout has for fields.

    ``exact`` has fields, ``roots`` fields with all that are below them. Other fields have their own names, except
    ``reserved`` ones and those of known paths.
    """

    exact: Mapping[str, str]
    roots: Mapping[str, str]
    reserved: frozenset[str] = frozenset()

    def is_known(self, name: str) -> bool:
        """Return whether the layout has a place of its own for a field."""
        return name in self.exact or any(is_below(name, root) for root in self.roots)

    def path(self, name: str) -> str:
        """Return the path of a field."""
        if name in self.exact:
            return self.exact[name]
        root = next((root for root in self.roots if is_below(name, root)), None)
        return name if root is None else self.roots[root] + name.removeprefix(root)

    def losses(
        self, content: Content, own_next: bool, wanted: Callable[[str], str] = lambda name: name
    ) -> Iterator[Loss]:
        """Yield the losses of fields: values, names, placements, shapes of rewards, images.

        Parameters
        ----------
        own_next : bool
            Next observations that are fields of their own are read as such again; otherwise they get another name.
        wanted : callable
            The name that a field gets unless it is taken.
        """
        taken, others = set[str](), {*self.exact.values(), *self.roots.values(), *self.reserved}
        fields = sorted(
            content.fields.values(), key=lambda f: (wanted(f.name) != f.name, not self.is_known(f.name), f.name)
        )
        for f in fields:
            found = list(losses_of_values(content, f, widest=16, kinds="biufc"))
            yield from found
            if any(loss.kind == "field" for loss in found):
                continue
            name = wanted(f.name)
            if is_below(name, _NEXT) and not own_next:
                name = f"next/own_{name.removeprefix('next/')}"
            path = fitting(self.path(name), taken if self.is_known(name) else taken | others)
            taken.add(path)
            if path != self.path(name):
                root = next((root for root, above in self.roots.items() if is_below(path, above)), None)
                name = path if root is None else root + path.removeprefix(self.roots[root])
            yield from renamed(f.name, name)
            yield from placed(f, "both" if is_below(name, "observation") else "root")
            if name == REWARD and f.shape == (1,):
                yield Loss("shape", "rewards of one element: will be numbers", f.name)
            if f.kind == "frames":
                yield decoded(f)


def placed(f: Field, placement: Literal["both", "root"]) -> Iterator[Loss]:
    """Yield the loss of a field with another placement than the one it has to have."""
    if f.placement != placement and f.placement != "next":
        if placement == "both":
            text = f"{f.name} has no value at the final observation: the one before will be repeated"
        else:
            text = f"the values of {f.name} at final observations"
        yield Loss("placement", text, f.name, placement)


def renamed(name: str, becomes: str) -> Iterator[Loss]:
    """Yield the loss of a name."""
    if name != becomes:
        yield Loss("name", f"the name of {name}: will be {becomes}", name, becomes)


def decoded(f: Field) -> Loss:
    """Return the loss of encoded images."""
    return Loss("encoding", f"{f.name} stored as {f.codec}: will be decoded", f.name)
