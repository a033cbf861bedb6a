"""Read the rows of one TensorDict as lanes: sequences of steps in the order of time, one per environment or trajectory.

A position is the index of a step in its lane. It differs from the row in a ring buffer, which starts at its cursor, in
a batch with a dimension of environments, and in the compact forms, which store observations once::

    rows            0  1  2  3  4          TED, wrapped, cursor 2:   positions 0 1 2 3 4 are rows 2 3 4 0 1
    action          a0 a1 a2 a3 a4         Flat, an end at 2:        position p is row p of what belongs to a step,
    observation     o0 o1 o2 n2 o3 o4 n4                             row p + ends before p of what is observed
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.archives.formats.hdf5 import datasets, open_file, reading, whole
from rlds_cli.archives.names import free_name, row_field
from rlds_cli.archives.readers import CHUNK_BYTES
from rlds_cli.archives.torchrl.names import BFLOAT16
from rlds_cli.archives.torchrl.signs import H5_MARKS, HDF5
from rlds_cli.archives.torchrl.stores import TensorLeaf, TensorStore
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import is_below
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

DONE = "done"
NEXT = "next/"
NO_ENDS = np.zeros(0, np.int64)
MOST_LANES = 1 << 20
NUMBERS = ("collector/traj_ids", "traj_ids", "episode", "episode_id", "episode_index", "trajectory_id", "traj_id")
MASKS = ("collector/mask", "mask")


@dataclass(frozen=True, slots=True)
class Lane:
    """Steps in the order of time: rows ``spans`` of column ``number``, or of the HDF5 group ``group``.

    In the compact forms, ``ends`` are the positions whose next observations are stored in rows of their own, and
    ``base`` is the row of the first observation.
    """

    number: int
    spans: tuple[tuple[int, int], ...]
    ends: IntArray
    base: int = 0
    group: str = ""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(b - a for a, b in self.spans)

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Read the rows of positions ``start`` to ``stop``."""
        at = 0
        for a, b in self.spans:
            first, last = max(start, at), min(stop, at + b - a)
            if first < last:
                yield a + first - at, a + last - at
            at += b - a

    def observed(self, start: int, stop: int) -> tuple[int, int] | IntArray:
        """Find the rows of the observations at positions ``start`` to ``stop`` in the compact forms."""
        before = np.searchsorted(self.ends, [start, max(stop - 1, start)], "left")
        if before[0] == before[1]:
            return self.base + start + int(before[0]), self.base + stop + int(before[0])
        positions = np.arange(start, stop)
        rows: IntArray = self.base + positions + np.searchsorted(self.ends, positions, "left")
        return rows


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the TensorDict: ``dtype`` of the values that are returned, ``shape`` of a row."""

    dtype: str
    shape: tuple[int, ...]
    observed: bool = False  # in the compact forms: has one more row at every end

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 8 if self.dtype == "str" else math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Lanes:
    """An open TensorDict. ``keys`` are its entries with one value per row, ``axis`` is that of time in its batch."""

    def __init__(self, store: TensorStore) -> None:
        self.store = store
        self.keys: dict[str, Key] = {}
        self.lanes: list[Lane] = []
        self.axis = 0
        self.left_out: list[str] = list(store.tree.left_out)
        self.stored: dict[str, str] = {}  # key -> name in the store
        self.groups: Any = {}  # an open HDF5 file
        self._arrays: dict[str, Any] = {}

    def rename(self, fields: Mapping[str, str]) -> None:
        """Rename keys, and their next values, to the fields that a user maps to them.

        Raises
        ------
        UnknownLayout
            There is no such key.
        """
        for name, key in fields.items():
            chosen = [k for k in self.keys if is_below(k, key)]
            if not chosen:
                raise UnknownLayout(f'{self.store.name} has no "{key}".', hint=f"it has {', '.join(self.keys)}")
            for old in chosen:
                new = name + old[len(key) :]
                if not name.startswith(NEXT) and NEXT + old in self.keys:
                    self._move(NEXT + old, NEXT + new)
                self._move(old, new)

    def _move(self, old: str, new: str) -> None:
        if new == old:
            return
        if new in self.keys:
            self._move(new, free_name(new, [*self.keys]))
        self.keys[new], self.stored[new] = self.keys.pop(old), self.stored.pop(old)

    def take(self, name: str, lane: Lane, start: int, stop: int) -> Array:
        """Read values at positions ``start`` to ``stop``."""
        if self.keys[name].observed:
            return self._observed(name, lane, lane.observed(start, stop))
        parts = [self._rows(name, lane, a, b) for a, b in lane.rows(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate([self._rows(name, lane, 0, 0), *parts])

    def after(self, name: str, lane: Lane, start: int, stop: int) -> Array:
        """Read next values of the steps at positions ``start`` to ``stop``."""
        if not self.keys[name].observed:
            return self.take(NEXT + name, lane, start, stop)
        rows = lane.observed(start, stop)
        return self._observed(name, lane, (rows[0] + 1, rows[1] + 1) if isinstance(rows, tuple) else rows + 1)

    def _observed(self, name: str, lane: Lane, rows: tuple[int, int] | IntArray) -> Array:
        if isinstance(rows, tuple):
            return self._rows(name, lane, *rows)
        low = int(rows[0])
        return self._rows(name, lane, low, int(rows[-1]) + 1)[rows - low]

    def _rows(self, name: str, lane: Lane, start: int, stop: int) -> Array:
        key = self.stored[name]
        if lane.group:
            with reading(self.store.file, f"{lane.group}/{key}"):
                return np.asarray(self.groups[lane.group][key][start:stop])
        array = self._arrays[key]
        if isinstance(array, list):
            return np.array(array[start:stop], object)
        values: Array = array[start:stop, lane.number]
        if self.store.tree.leaves[key].dtype == BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def add(self, name: str, leaf: TensorLeaf, array: Array, inner: tuple[int, ...], *, observed: bool = False) -> None:
        """Add an entry with its array [rows, lanes, ...]."""
        dtype = "float32" if leaf.dtype == BFLOAT16 else leaf.dtype
        self.keys[name] = Key(dtype, inner, observed)
        self.stored[name] = name
        self._arrays[name] = array

    def add_texts(self, name: str, texts: list[str | None]) -> None:
        """Add a column of texts."""
        self.keys[name] = Key("str", ())
        self.stored[name] = name
        self._arrays[name] = texts


class LaneWindow:
    """A range of positions of one lane whose columns are read once; other positions are read from the lanes."""

    def __init__(self, lanes: Lanes, lane: Lane, start: int, stop: int) -> None:
        self.store, self.keys, self.axis = lanes.store, lanes.keys, lanes.axis
        self._lanes, self._lane, self._start, self._stop = lanes, lane, start, stop
        self._read: dict[str, Array] = {}

    def take(self, name: str, lane: Lane, start: int, stop: int) -> Array:
        """As `Lanes.take`."""
        if self.keys[name].observed or lane is not self._lane or start < self._start or stop > self._stop:
            return self._lanes.take(name, lane, start, stop)
        if name not in self._read:
            self._read[name] = self._lanes.take(name, lane, self._start, self._stop)
        return self._read[name][start - self._start : stop - self._start]

    def after(self, name: str, lane: Lane, start: int, stop: int) -> Array:
        """As `Lanes.after`."""
        if self.keys[name].observed:
            return self._lanes.after(name, lane, start, stop)
        return self.take(NEXT + name, lane, start, stop)


@contextmanager
def opened(store: TensorStore) -> Iterator[Lanes]:
    """Open the lanes of a TensorDict.

    Raises
    ------
    UnknownLayout
        It has no rows that can be steps.
    CorruptArchive
        Its parts do not fit each other.
    """
    lanes = Lanes(store)
    if not store.tree.leaves and store.file.suffix in HDF5:
        with open_file(store.file) as f:
            _read_groups(lanes, f)
            yield lanes
        return
    nested = any(leaf.rows is not None for leaf in store.tree.leaves.values())
    (_read_nested if nested else _read_flat if store.is_compact else _read_batch)(lanes)
    yield lanes


def _read_batch(lanes: Lanes) -> None:
    """Read a TensorDict with one or more batch dimensions, in TED or as plain columns."""
    tree, store = lanes.store.tree, lanes.store
    batch = tree.batch
    if not batch:
        raise UnknownLayout(
            f"{store.name}: the TensorDict has no batch dimension, so it holds no sequence of steps.",
            hint="memmap a TensorDict of batch size [steps] or [environments, steps]",
        )
    for name, leaf in tree.leaves.items():
        if leaf.shape[: len(batch)] != batch:
            lanes.left_out.append(f"{name} ({list(leaf.shape)}, not one value a row)")
            continue
        flat = (batch[0], math.prod(batch[1:])) if len(batch) > 1 else (batch[0], 1)
        inner = leaf.shape[len(batch) :]
        lanes.add(name, leaf, leaf.open().reshape(*flat, *inner), inner)
    for name, texts in tree.texts.items():
        lanes.add_texts(name, texts)
    if not any(k.row_bytes for k in lanes.keys.values()):
        raise UnknownLayout(f"{store.name}: no entry has one value a row.")
    if len(batch) > 1:
        _turn(lanes, batch)
        return
    lanes.lanes = [Lane(0, _ring(store, batch[0], 1), NO_ENDS)]


def _ring(store: TensorStore, rows: int, width: int) -> tuple[tuple[int, int], ...]:
    """Read the rows of a buffer in the order of time; ``width`` is how many items a row of it holds."""
    written = rows if store.written is None else store.written
    if written > rows * width:
        raise CorruptArchive(f"{store.name}: it states {written:,} written rows, and holds {rows:,}.")
    if written == rows * width or (written == rows and store.cursor is not None and store.cursor * width != written):
        cursor = (store.cursor or 0) % max(rows, 1)
        return ((cursor, rows), (0, cursor)) if cursor else ((0, rows),)
    several = store.cursor * width == written if store.cursor is not None else written > rows
    return ((0, written // width if several else written),)


def _turn(lanes: Lanes, batch: tuple[int, ...]) -> None:
    """Put the axis of time of [E, T] or [T, E] first: numbers of trajectories stay in one environment along it."""
    store = lanes.store
    width = math.prod(batch[1:])
    first = _ring(store, batch[0], width)
    fits = [axis for axis in (0, 1) if _is_time(lanes, batch, axis, first)]
    if len(fits) != 1:
        raise UnknownLayout(
            f"{store.name} has batch size {list(batch)}, and no collector/traj_ids say which of its axes is time.",
            hint=load_it(store),
        )
    (lanes.axis,) = fits
    _check_lanes(store, width if lanes.axis == 0 else math.prod(batch[:-1]))
    if lanes.axis == 0:
        lanes.lanes = [Lane(i, first, NO_ENDS) for i in range(width)]
        return
    for name in list(lanes.keys):
        array, inner = lanes._arrays[name], lanes.keys[name].shape
        lanes._arrays[name] = np.moveaxis(array.reshape(-1, batch[-1], *inner), 1, 0)
    per_item = width // batch[-1]
    items = [i for a, b in first for i in range(a * per_item, b * per_item)]
    lanes.lanes = [Lane(i, ((0, batch[-1]),), NO_ENDS) for i in items]


def _is_time(lanes: Lanes, batch: tuple[int, ...], axis: int, spans: tuple[tuple[int, int], ...]) -> bool:
    """Tell whether each number of a trajectory is in a single lane, if the first or the last axis is time."""
    key = next((n for n in NUMBERS if n in lanes.keys and math.prod(lanes.keys[n].shape) == 1), None)
    if key is None or lanes.keys[key].dtype in ("bool", "str"):
        return False
    masks = [lanes._arrays[n] for n in MASKS if n in lanes.keys and math.prod(lanes.keys[n].shape) == 1]
    lane = np.arange(math.prod(batch)).reshape(batch)
    lane = lane % math.prod(batch[1:]) if axis == 0 else lane // batch[-1]
    used = [slice(a, b) for a, b in spans]
    numbers, lane = (np.concatenate([x.reshape(batch)[s] for s in used]) for x in (lanes._arrays[key], lane))
    if masks:
        there = np.concatenate([masks[0].reshape(batch)[s] for s in used])
        numbers, lane = numbers[there != 0], lane[there != 0]
    pairs = np.unique(np.stack([numbers.reshape(-1), lane.reshape(-1)]), axis=1)
    return bool(len(np.unique(pairs[0])) == pairs.shape[1])


def load_it(store: TensorStore) -> str:
    """Return the hint for a directory whose steps only its writer can put in order."""
    return (
        f"load it in TorchRL, and pass its episodes: td = TensorDict.load_memmap({store.file.parent.as_posix()!r}); "
        'rlds_cli.create("local/NAME", [{"observation": o, "action": a, "next/reward": r, "next/terminated": t}]); '
        "each o has a row more than its a"
    )


def _check_lanes(store: TensorStore, count: int) -> None:
    if count > MOST_LANES:
        raise UnsafeArchive(f"{store.name} claims {count:,} environments; at most {MOST_LANES:,} are read.")


def _marks(store: TensorStore) -> tuple[tuple[int, ...], bool, int]:
    """Read ``_storage_shape``, ``is_full`` and ``shift`` of a compact form."""
    shape, full, shift = (store.marks.get(k) for k in ("_storage_shape", "is_full", "shift"))
    shape = [shape] if isinstance(shape, int) and not isinstance(shape, bool) else shape
    ints = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    if not isinstance(shape, list) or not ints or not shape or not isinstance(full, bool):
        raise CorruptArchive(f"{store.name}: _storage_shape {shape} and is_full {full} do not describe a buffer.")
    written = shape[0] if full else shift
    if not isinstance(written, int) or isinstance(written, bool) or not 0 <= written <= shape[0]:
        raise CorruptArchive(f"{store.name}: shift is {str(shift)[:40]}; the buffer has {shape[0]:,} rows.")
    return tuple(shape), full, written


def _read_flat(lanes: Lanes) -> None:
    """Read the form of TED2Flat: environments one after the other, each in the order of time."""
    store, leaves = lanes.store, lanes.store.tree.leaves
    shape, full, written = _marks(store)
    total, steps = math.prod(shape), shape[0]
    if DONE not in leaves or leaves[DONE].shape not in ((total,), (total, 1)):
        found = list(leaves[DONE].shape) if DONE in leaves else "not there"
        raise CorruptArchive(f"{store.name}: done is {found}; [{total}, 1] is expected of a flat buffer.")
    _check_lanes(store, total // max(steps, 1))
    done = leaves[DONE].open().reshape(-1)
    base = 0
    for e in range(total // max(steps, 1)):
        forced = [steps - 1] if full else [written - 1] if written else []
        ends = np.union1d(np.flatnonzero(done[e * steps : (e + 1) * steps]), forced).astype(np.int64)
        lanes.lanes.append(Lane(0, ((e * steps, e * steps + written),), ends, base))
        base += steps + len(ends)
    for name, leaf in leaves.items():
        rows = leaf.shape[0] if leaf.shape else -1
        if rows not in (total, base):
            lanes.left_out.append(f"{name} ({list(leaf.shape)}, neither {total:,} nor {base:,} rows)")
            continue
        lanes.add(name, leaf, leaf.open()[:, None], leaf.shape[1:], observed=rows == base != total)


def _read_nested(lanes: Lanes) -> None:
    """Read the form of TED2Nested, or a TensorDict of nested tensors: a trajectory in each row."""
    store, leaves = lanes.store, lanes.store.tree.leaves
    lengths = _lengths(store)
    starts = np.cumsum(lengths) - lengths
    longer: IntArray | None = None
    for name, leaf in leaves.items():
        rows = leaf.rows[:, 0] if leaf.rows is not None else None
        if rows is None or len(rows) != len(lengths) or not np.isin(rows - lengths, (0, 1)).all():
            lanes.left_out.append(f"{name} ({list(leaf.shape)}, of other lengths than the trajectories)")
            continue
        observed = bool((rows != lengths).any())
        if observed and longer is not None and (longer != rows).any():
            raise CorruptArchive(f"{store.name}: {name} has other numbers of rows than other observations.")
        longer = rows if observed else longer
        lanes.add(name, leaf, leaf.open()[:, None], leaf.shape[1:], observed=observed)
    seen = lengths if longer is None else longer
    bases = np.cumsum(seen) - seen
    for i, (a, n) in enumerate(zip(starts.tolist(), _written(store, lengths), strict=True)):
        ends = np.array([n - 1], np.int64) if n == lengths[i] < seen[i] else NO_ENDS
        if n:
            lanes.lanes.append(Lane(0, ((a, a + n),), ends, int(bases[i])))


def _lengths(store: TensorStore) -> IntArray:
    """Count the steps of every trajectory, by flags, rewards or actions, or else the shortest column."""
    tables = {n: leaf.rows[:, 0] for n, leaf in store.tree.leaves.items() if leaf.rows is not None}
    counted = [tables[n] for n in (DONE, "next/done", "action", "next/reward", "reward") if n in tables]
    table: IntArray = counted[0] if counted else min(tables.values(), key=lambda t: int(t.sum()))
    return table


def _written(store: TensorStore, lengths: IntArray) -> list[int]:
    """Count the written steps of each trajectory; buffers that are not full end with rows of zeros."""
    if not store.marks:
        return [int(n) for n in lengths]
    shape, _, written = _marks(store)
    if int(lengths.sum()) != math.prod(shape):
        raise CorruptArchive(
            f"{store.name}: trajectories of {int(lengths.sum()):,} steps in a buffer of {math.prod(shape):,}."
        )
    offsets = (np.cumsum(lengths) - lengths) % max(shape[0], 1)
    return [max(0, min(int(n), written - int(o))) for n, o in zip(lengths, offsets, strict=True)]


def _read_groups(lanes: Lanes, f: Any) -> None:
    """Read the form of H5StorageCheckpointer: a group per trajectory."""
    store = lanes.store
    names = sorted((k for k in f if k.startswith("traj_")), key=lambda k: (len(k), k))
    store.marks = {
        "_storage_shape": [int(n) for n in np.ravel(whole(f[H5_MARKS[0]]))],
        "is_full": bool(whole(f["is_full"])),
    }
    store.marks["shift"] = int(whole(f["shift"])) if "shift" in f else None
    lanes.groups = f
    lengths = np.array([_steps(store, name, f) for name in names], np.int64)
    first: set[str] | None = None
    for name, length, n in zip(names, lengths.tolist(), _written(store, lengths), strict=True):
        if not n:
            continue
        found = datasets(f[name])
        first = first or {*found}
        if {*found} != first:
            raise CorruptArchive(f"{store.file.name}: {name} does not hold the entries of other trajectories.")
        for key, d in found.items():
            made = row_field(key, d)
            lanes.stored[key] = key
            known = lanes.keys.setdefault(key, Key(made.dtype, made.shape, bool(d.shape[0] == length + 1)))
            if (made.dtype, made.shape) != (known.dtype, known.shape) or d.shape[0] != length + known.observed:
                raise CorruptArchive(f"{store.file.name}: {name}/{key} is {d.dtype} {list(d.shape)}, unlike others.")
        observed = any(k.observed for k in lanes.keys.values())
        lanes.lanes.append(Lane(0, ((0, n),), np.array([n - 1], np.int64) if observed else NO_ENDS, group=name))


def _steps(store: TensorStore, name: str, f: Any) -> int:
    done = f.get(f"{name}/{DONE}")
    if done is None or not getattr(done, "shape", ()):
        raise CorruptArchive(f"{store.file.name}: {name}/done is not there.")
    return int(done.shape[0])


def block_steps(lanes: Lanes | LaneWindow, names: list[str]) -> int:
    """Return how many steps of some columns are read at a time."""
    width = sum(lanes.keys[n].row_bytes for n in names)
    return max(1, min(1 << 16, CHUNK_BYTES // max(width, 1)))
