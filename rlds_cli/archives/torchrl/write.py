"""TensorDict's memory-mapped directories, and the compact forms of TorchRL's storage checkpointers.

::

    <directory>/meta.json  <key>.memmap  next/...   memmap: TED, [steps], as TensorDict.load_memmap reads it
                                                    flat: as FlatStorageCheckpointer; observations once
                           <key>.shape.memmap       nested: as NestedStorageCheckpointer; the same bytes
    <directory>/storage/...  writer/...             buffer: as ReplayBuffer.dumps; storage/ as memmap
    <directory>/checkpoint.h5                       h5: as H5StorageCheckpointer, a group for each trajectory
    <directory>/rlds_episodes.json                  fields, and ends, final observations, seeds, ... of the episodes
    <directory>/rlds_metadata/0.npy                 arrays that are not per row

In the compact forms an observed field has a row more behind every step that is done, which holds the next observation.
Rows of the dataset have this order already where only last steps are done::

    rows of the dataset   o0 o1 o2 final0 | o4 final1
    flat                  o0 o1 o2 next2  | o4 next4
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.exports.content import PIECE, Loss
from rlds_cli.archives.exports.format import EPISODES, Format, Unit, sync
from rlds_cli.archives.exports.hdf5 import VERSIONS, HDF5Layout, places_of
from rlds_cli.archives.torchrl.names import BUFFER as BUFFER_FILE
from rlds_cli.archives.torchrl.names import DESCRIPTION, KNOWN, META, METADATA, STORAGE, VERSION, WRITER, encoded
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.repeated import Repeated
from rlds_cli.base.text import is_below
from rlds_cli.ted import FLAGS, REWARD, Field

MEMMAP, BUFFER, FLAT, NESTED, H5 = "memmap", "buffer", "flat", "nested", "h5"
CHECKPOINT = "checkpoint.h5"
INSIDE = "storage"  # the TensorDict of a dump
BATCH_SIZE = 256  # of a buffer that loads a dump, which takes over the one in it
MOST_TEXT, MOST_TEXTS = 32 << 20, 1 << 21  # bytes of texts, and texts: TensorDict keeps a field's in one document
EPISODE, OBSERVED, DONE = "episode", "next/observed", "next/done"
ROOT_FLAGS = ("done", "terminated", "truncated")
# Keys that the format has for itself.
TAKEN = frozenset(
    (*ROOT_FLAGS, "reward", EPISODE, OBSERVED, DONE, "is_full", "shift", "_storage_shape", "_len", "index")
)
_CLASSES = {
    "TensorDict": "tensordict._td.TensorDict",
    "NonTensorData": "tensordict.tensorclass.NonTensorData",
    "NonTensorStack": "tensordict.tensorclass.NonTensorStack",
}
Make = Callable[[int, int], Array]  # from rows of the content, start and stop, to the values of these rows


@dataclass(frozen=True, slots=True)
class Leaf:
    """One entry: its ``key``, a row's dtype and shape, and the values of rows of the content, made by ``make``.

    ``doubled``: one row more behind every step that is done, in the compact forms. Without ``make`` all is zero.
    """

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Make | None
    doubled: bool = False

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return prod(self.shape) * self.dtype.itemsize


class TensorDict(Format):
    """A memory-mapped TensorDict, or one of the compact forms."""

    name = "tensordict"
    reader = "torchrl"
    can = EPISODES
    forms = (MEMMAP, BUFFER, FLAT, NESTED, H5)

    # -- what is lost

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of images, of texts in the compact forms, and of names that TorchRL uses itself."""
        long = self.is_compact or self._texts_are_long()
        for name, f in self.content.fields.items():
            if name in TAKEN:
                yield Loss("field", f"{name}, a name that TorchRL uses itself", name)
            elif f.kind == "text" and long:
                why = "too long for one JSON document" if not self.is_compact else f"{self.form} has no place for them"
                yield Loss("field", f"the texts {name}: {why}", name)
            elif f.kind == "frames" and 0 in f.shape:
                yield Loss("field", f"{name}: images of different sizes", name)
            elif f.kind == "frames":
                yield Loss("encoding", f"{name} stored as {f.codec}: will be decoded", name)
            elif f.kind == "array" and f"torch.{f.dtype}" not in KNOWN:
                yield Loss("field", f"{name}: values of {f.dtype}", name)
            elif self._is_own_next(name) and self.content.table.observed.any():
                yield Loss("field", f"{name}, beside which TED has no place for final observations", name)

    def _is_own_next(self, name: str) -> bool:
        """Return whether a field holds next values of its own, beside a field with final observations."""
        at = self.content.fields.get(name.removeprefix("next/"))
        return name.startswith("next/") and at is not None and at.placement == "both"

    def _texts_are_long(self) -> bool:
        """Return whether the texts take more than a JSON document that is read again may have."""
        size = values = 0
        for name, f in self.content.fields.items():
            times = (f.kind == "text") * (1 + (f.placement == "both"))
            for a in range(0, self.content.num_rows * bool(times), 1 << 16):
                texts = json.dumps(self.content.rows(name, a, min(a + (1 << 16), self.content.num_rows)).tolist())
                size += times * len(texts)
                values += times * texts.count(",")
                if size > MOST_TEXT or values > MOST_TEXTS:
                    return True
        return False

    # -- what is written

    @property
    def is_compact(self) -> bool:
        """Whether observations are written once."""
        return self.form not in (MEMMAP, BUFFER)

    def _entries(self, directory: Path) -> Path:
        """Return the directory of the TensorDict."""
        return directory / INSIDE if self.form == BUFFER else directory

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.content.table.length.sum())

    @cached_property
    def ends(self) -> IntArray:
        """Numbers of the steps that are done: the last ones of episodes, and those that terminate inside."""
        found, before = [], 0
        for a, b in self._pieces(0, self.content.num_rows, 2):
            done = self._of_steps(self._done, a, b)
            found.append(np.flatnonzero(done) + before)
            before += len(done)
        return np.concatenate(found)

    @cached_property
    def first_steps(self) -> IntArray:
        """Number of the first step of each episode, and of all steps: int64 [episodes + 1]."""
        return np.concatenate([[0], np.cumsum(self.content.table.length)])

    def leaves(self) -> Iterator[Leaf]:
        """Yield the entries of the form, without texts."""
        compact, flag = self.is_compact, np.dtype(bool)
        for name, f in self.content.fields.items():
            if f.kind == "text":
                continue
            own = name in (REWARD, *FLAGS)
            key = name.removeprefix("next/") if own and compact else name
            shape = (1,) if own and f.shape == () else f.shape
            doubled = compact and f.placement == "both" and f"next/{name}" not in self.content.fields
            yield Leaf(key, np.dtype(f.dtype), shape, partial(self.content.rows, name), doubled)
            if not compact and f.placement == "both" and f"next/{name}" not in self.content.fields:
                yield Leaf(f"next/{name}", np.dtype(f.dtype), shape, partial(self._next, name))
        yield Leaf("done" if compact else DONE, flag, (1,), self._done)
        if not compact:
            yield from (Leaf(name, flag, (1,), None) for name in ROOT_FLAGS)
        yield Leaf(EPISODE, np.dtype(np.int64), (), self._episode)
        if not self.content.table.observed.all():
            yield Leaf(OBSERVED, flag, (1,), self._observed)

    def _next(self, name: str, start: int, stop: int) -> Array:
        """Return the rows after; the last row of all has none, and is not a step."""
        rows = self.content.num_rows
        values = self.content.rows(name, min(start + 1, rows - 1), min(stop + 1, rows))
        return values if len(values) == stop - start else np.concatenate([values, values[-1:]])

    def _done(self, start: int, stop: int) -> BoolArray:
        terminated, truncated = (self.content.rows(flag, start, stop).reshape(-1) for flag in FLAGS)
        return np.asarray(terminated | truncated)

    def _episode(self, start: int, stop: int) -> IntArray:
        return self.content.episodes_at(np.arange(start, stop))

    def _observed(self, start: int, stop: int) -> BoolArray:
        table, known = self.content.table, np.ones(stop - start, bool)
        last = (self.content.starts + table.length - 1)[~table.observed]
        known[last[(last >= start) & (last < stop)] - start] = False
        return known

    def _of_steps(self, make: Make, start: int, stop: int) -> Array:
        """Return the values of rows that are steps."""
        values = make(start, stop)
        cuts = [-1, *(self.content.last_rows(start, stop) - start).tolist(), stop - start]
        runs = [values[a + 1 : b] for a, b in pairwise(cuts) if b > a + 1]
        return runs[0] if len(runs) == 1 else np.concatenate([values[:0], *runs])

    def _doubled(self, make: Make, start: int, stop: int) -> Array:
        """Return rows, twice where the row before is a step that is done inside its episode.

        The first of the two is that step's next observation. That of a last step is in the episode's last row.
        """
        before = self._done(max(start - 1, 0), stop - 1)
        twice = before if start else np.concatenate([[False], before])
        twice[self.content.last_rows(start, stop) - start] = False
        values = make(start, stop)
        return np.repeat(values, 1 + twice, axis=0) if twice.any() else values

    def _pieces(self, start: int, stop: int, width: int) -> Iterator[tuple[int, int]]:
        size = max(2, PIECE // max(1, width))
        return ((a, min(a + size, stop)) for a in range(start, stop, size))

    def size(self) -> int:
        """Return the bytes of all entries."""
        return sum(leaf.width * self._rows_of(leaf) for leaf in self.leaves())

    def _rows_of(self, leaf: Leaf) -> int:
        return self.steps + (len(self.ends) if leaf.doubled else 0)

    # -- writing

    def prepare(self, directory: Path) -> None:
        """Make the files at their full size."""
        if self.form == H5:
            self._lay_out(directory)
            return
        for leaf in self.leaves():
            file = place(self._entries(directory), leaf.key)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as f:
                f.truncate(leaf.width * self._rows_of(leaf))

    def _lay_out(self, directory: Path) -> None:
        """Make the HDF5 file, with a group for each trajectory."""
        leaves, lengths = list(self.leaves()), np.diff(self.ends, prepend=-1).tolist()
        places = np.zeros((len(lengths), len(leaves)), np.int64)
        with h5py.File(directory / CHECKPOINT, "w", libver=VERSIONS) as f:
            f["_len"], f["_storage_shape"], f["is_full"] = self.steps, np.array([self.steps]), True
            make = HDF5Layout()
            for k, length in enumerate(lengths):
                groups = {"": make.group(f.id, group_name(k, len(lengths)))}
                for i, leaf in enumerate(leaves):
                    shape = (length + leaf.doubled, *leaf.shape)
                    places[k, i] = make.dataset(groups, leaf.key, leaf.dtype, shape)
        np.save(places_of(directory), places)

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the steps of some episodes at their places; return their texts."""
        table = self.content.table
        start = int(self.content.starts[unit.first])
        stop = int(self.content.starts[unit.stop - 1] + table.length[unit.stop - 1]) + 1
        first = int(self.first_steps[unit.first])
        extra = int(np.searchsorted(self.ends, first))
        places = np.load(places_of(directory), mmap_mode="r", allow_pickle=False) if self.form == H5 else None
        for i, leaf in enumerate(self.leaves()):
            if leaf.make is None:
                continue
            # The rows with which the parts of an entry begin, and their places in the file: a part is a trajectory.
            begins = places_of_parts = np.zeros(1, np.int64)
            path = place(self._entries(directory), leaf.key)
            if places is not None:
                path, places_of_parts = directory / CHECKPOINT, places[:, i]
                begins = np.append(0, self.ends[:-1] + 1) + leaf.doubled * np.arange(len(self.ends))
            at = first + (extra if leaf.doubled else 0)
            made = self._doubled if leaf.doubled else self._of_steps
            with path.open("r+b", buffering=0) as file:
                for a, b in self._pieces(start, stop, max(leaf.width, 1)):
                    values = np.ascontiguousarray(made(leaf.make, a, b), leaf.dtype)
                    low, high = np.searchsorted(begins, (at, at + len(values) - 1), "right").tolist()
                    cuts = [at, *begins[low:high].tolist(), at + len(values)]
                    for k, (x, y) in enumerate(pairwise(cuts), low - 1):
                        offset = int(places_of_parts[k]) + (x - int(begins[k])) * leaf.width
                        arrays.write_at(file.fileno(), offset, values[x - at : y - at])
                    at += len(values)
                os.fsync(file.fileno())
        return {name: texts for f in self.content.fields.values() for name, texts in self._texts(f, start, stop)}

    def _texts(self, f: Field, start: int, stop: int) -> Iterator[tuple[str, list[str | None]]]:
        if f.kind == "text":
            yield f.name, self._of_steps(partial(self.content.rows, f.name), start, stop).tolist()
            if f.placement == "both" and f"next/{f.name}" not in self.content.fields:
                yield f"next/{f.name}", self._of_steps(partial(self._next, f.name), start, stop).tolist()

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write the descriptions, and the texts."""
        texts: dict[str, list[str | None]] = {}
        for result in results.values():
            for name, part in result.items():
                texts.setdefault(name, []).extend(part)
        if self.form != H5:
            self._describe(self._entries(directory), texts)
        if self.form in (BUFFER, FLAT, NESTED):
            file = self._entries(directory) / STORAGE
            _dump(file, {"metadata": {}, "is_pytree": False, "len": self.steps})
        if self.form == BUFFER:
            _dump(directory / BUFFER_FILE, {"batch_size": BATCH_SIZE, "consume_after_n_samples": None})
            _dump(directory / "writer" / WRITER, {"cursor": 0, "write_count": self.steps})
        _dump(directory / DESCRIPTION, self._description(directory))

    def _describe(self, directory: Path, texts: Mapping[str, list[str | None]]) -> None:
        """Write ``meta.json`` of the TensorDict and of all nested ones."""
        size = {FLAT: [], NESTED: [len(self.ends)]}.get(self.form, [self.steps])
        tree: dict[str, Any] = {}
        for leaf in self.leaves():
            shape = [self._rows_of(leaf), *leaf.shape]
            if self.form == NESTED:
                shape = self._shapes(place(directory, leaf.key), leaf)
            kind = {
                "device": "cpu",
                "shape": shape,
                "dtype": f"torch.{leaf.dtype.name}",
                "is_nested": self.form == NESTED,
            }
            _put(tree, leaf.key, kind)
        for name, values in texts.items():
            _put(tree, name, {"type": "NonTensorStack"})
            about = {"_type": _class("NonTensorStack"), "stack_dim": 0, "device": None, "data": values}
            _dump(place(directory, name, "") / META, about)
        if self.is_compact:
            for key, value in (("is_full", True), ("_storage_shape", [self.steps])):
                _put(tree, key, {"type": "NonTensorData"})
                about = {"_type": _class("NonTensorData"), "data": value, "_is_non_tensor": True, "_metadata": None}
                _dump(place(directory, key, "") / META, about)
        _describe(directory, tree, size)

    def _shapes(self, file: Path, leaf: Leaf) -> list[int]:
        """Write the shapes of the trajectories' rows beside a nested tensor, and return the shape of this table."""
        table = np.empty((len(self.ends), 1 + len(leaf.shape)), np.int64)
        table[:, 0] = np.diff(self.ends, prepend=-1) + leaf.doubled
        table[:, 1:] = leaf.shape
        file = file.with_name(f"{file.name.removesuffix('.memmap')}.shape.memmap")
        file.write_bytes(table.tobytes())
        sync(file)
        return list(table.shape)

    def _description(self, directory: Path) -> dict[str, Any]:
        """Return the description of fields and episodes, and write what it refers to."""
        table, m = self.content.table, self.content.dataset.manifest
        episodes: dict[str, Any] = {"length": table.length.tolist(), "end": _digits(table.end)}
        episodes["observed"] = _digits(table.observed)
        episodes |= {} if isinstance(table.seed, Repeated) else {"seed": list(table.seed)}
        episodes |= {} if isinstance(table.options, Repeated) else {"options": list(table.options)}
        episodes["splits"] = {name: _digits(values) for name, values in table.splits.items()}
        episodes["columns"] = dict(table.extra)
        fields = [
            {"name": f.name, "dtype": f.dtype, "shape": list(f.shape), "placement": f.placement, "kind": f.kind}
            for f in self.content.fields.values()
        ]
        kept = {root for root in m.spaces if any(is_below(name, root) for name in self.content.fields)}
        spaces = {root: space for root, space in m.spaces.items() if root in kept}
        about = {"fields": fields, "spaces": spaces, "env": dict(m.env), "metadata": self._metadata(directory)}
        return {"version": VERSION, "form": self.form, **about, "episodes": episodes}

    def _metadata(self, directory: Path) -> dict[str, Any]:
        """Write the data that are not per row, and return texts by name, and files of arrays."""
        texts: dict[str, str] = {}
        files: dict[str, str] = {}
        for name, value in self.content.metadata():
            if isinstance(value, str):
                texts[name] = value
                continue
            files[name] = f"{len(files)}.npy"
            file = directory / METADATA / files[name]
            file.parent.mkdir(exist_ok=True)
            np.save(file, value, allow_pickle=False)
            sync(file)
        return {"texts": texts, "arrays": files}


def _digits(values: Array) -> str:
    """Return small numbers as text, a digit each."""
    return (values.astype(np.uint8) + ord("0")).tobytes().decode()


def group_name(number: int, count: int) -> str:
    """Return the name of a trajectory's group, as H5Split makes it."""
    return f"traj_{str(number).zfill(len(str(count - 1)) if count > 1 else 0)}"


def place(directory: Path, key: str, suffix: str = ".memmap") -> Path:
    """Return the path of an entry."""
    *path, leaf = key.split("/")
    return directory.joinpath(*map(encoded, path), encoded(leaf) + suffix)


def _put(tree: dict[str, Any], key: str, about: dict[str, Any]) -> None:
    *path, leaf = key.split("/")
    for part in path:
        tree = tree.setdefault(part, _Below())
    tree[leaf] = about


class _Below(dict[str, Any]):
    """The entries of a nested TensorDict."""


def _describe(directory: Path, tree: Mapping[str, Any], size: list[int]) -> None:
    meta: dict[str, Any] = {}
    for key, about in tree.items():
        meta[key] = {"type": "TensorDict"} if isinstance(about, _Below) else about
        if isinstance(about, _Below):
            _describe(directory / encoded(key), about, size)
    _dump(directory / META, meta | {"shape": size, "device": "cpu", "_type": _class("TensorDict")})


def _class(name: str) -> str:
    return f"<class '{_CLASSES[name]}'>"


def _dump(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    sync(file)
