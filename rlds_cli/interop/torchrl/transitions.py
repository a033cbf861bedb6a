"""The transitions of a dataset as TensorDicts, read by number from the dataset's own files.

::

    number        0    1    2  | 3        two episodes: one of 3 steps, and one of 2 whose final observation is not
    row           0    1    2  | 4        recorded. Rows 3 and 6 hold final observations; the step in row 5 is no
    next/done               x  | x        transition, so its episode ends before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlds_cli.dataset import Dataset
from rlds_cli.dataset.batch import ROOT_FLAGS
from rlds_cli.interop.torchrl.errors import BadArgument
from rlds_cli.interop.torchrl.families import placed
from rlds_cli.loader.build import pool
from rlds_cli.loader.fields import columns
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.fields.fields import DONE, Fields, Names
from rlds_cli.loader.index import Located, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import Plan, StepReader, address
from rlds_cli.loader.order import Order
from rlds_cli.loader.read import CompiledColumns
from rlds_cli.loader.storage import memory
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.windows.windows import Anchors, Transition
from rlds_cli.ted import FLAGS, REWARD, Array, Field, IntArray

EPISODE, ROOT_REWARD, SEED = "episode", "reward", "seed"
CPU = torch.device("cpu")
_KEPT = (*ROOT_FLAGS, *FLAGS, DONE, EPISODE)  # columns that samplers ask for at every draw
_ORDER, _NO_CHANCE = Order(0), np.empty(0)  # numbers are given, not drawn


class Transitions:
    """The transitions of a dataset, numbered from 0 on as ``ds[...]`` numbers them.

    Parameters
    ----------
    dataset : Dataset
        A selection, or one that grows, too; the latter stays at its version.
    fields : sequence of str or tuple, optional
        Names of fields; all fields of the dataset, the flags at the root and ``episode`` without it.
    anchors : {"transitions", "steps"}
        ``steps``: number all steps, and leave out the fields that need a next observation.
    root_reward : bool
        Add ``reward`` at the root: that of the step before, zero at the first step of an episode.
    next_info : bool
        Add those of the next step to infos that are floats: NaN at the last step of an episode, where none are known.
    seed : bool, optional
        Add ``seed``, the number of the archive's file. By default RoboSet's datasets have it, if all fields are wanted.

    Attributes
    ----------
    names : tuple of str
        Keys of the fields, joined by ``/``: their names, or those of TorchRL's class of the family, see `families`.
    fields : mapping of str to str
        Name of the field behind a key; computed ones are left out.

    Raises
    ------
    BadArgument
        There is no such field, or no archive whose files could be numbered.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        fields: Names | None = None,
        anchors: Anchors = "transitions",
        root_reward: bool = False,
        next_info: bool = False,
        seed: bool | None = None,
    ) -> None:
        window = Transition(anchors=anchors)
        self.dataset, self._made_with = dataset, (fields, anchors, root_reward, next_info, seed)
        self._windows = pool(dataset, window)
        offered = Fields(self._windows, window, ())
        chosen = _chosen(offered, fields)
        memory.check_decoded(dataset, offered.stored(chosen), None)
        self._columns = {name: _column(offered, self._windows, name) for name in chosen}
        if root_reward:
            self._columns.setdefault(ROOT_REWARD, offered.column(offered.expand(f"previous/{ROOT_REWARD}")[0], None))
        if next_info:
            infos = [n for n in chosen if n.startswith("info/") and f"next/{n}" not in chosen]
            self._columns |= {f"next/{n}": _following(offered, n) for n in infos if _is_float(dataset, n)}
        if _has_seed(dataset) and fields is None if seed is None else seed:
            self._columns.setdefault(SEED, _seed(self._windows))
        made = placed(self._windows, self._columns, whole=fields is None)
        self._columns, self.fields = dict(made.columns), made.fields
        self.tree = Tree(tuple(self._columns))
        self.names = self.tree.names
        self._compiled: dict[tuple[str, ...], CompiledColumns] = {}
        self._whole: dict[str, torch.Tensor] = {}
        self._rows_of: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._spare: dict[tuple[int, int], tuple[list[StepReader], list[_Memory]]] = {}
        self._all = self._compile(self.names)

    def __len__(self) -> int:
        return self._windows.prefix.total

    @property
    def size(self) -> torch.Size:
        """Batch size of all of it: [N]."""
        return torch.Size((len(self),))

    @property
    def counts(self) -> IntArray:
        """Number of transitions of each episode that has some, int64 [episodes]."""
        return self._windows.prefix.counts

    @property
    def first(self) -> IntArray:
        """Number of the first transition of each of these episodes, int64 [episodes]."""
        return self._windows.prefix.starts

    def row_of(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one value of a field; text has the dtype of objects."""
        column = self._columns[name]
        if column.finish is None:
            return column.outputs[0].shape, column.outputs[0].dtype
        if name not in self._rows_of:
            (values,) = self._values(np.zeros(0, np.int64), self._compile((name,)))
            self._rows_of[name] = values.shape[1:], values.dtype
        return self._rows_of[name]

    def read(self, numbers: IntArray, names: tuple[str, ...] | None = None) -> list[Any]:
        """Return the values of transitions ``numbers`` [n] for each name: a tensor [n, ...], or text in a stack [n].

        Raises
        ------
        IndexError
            There is no transition of such a number.
        """
        numbers = np.ascontiguousarray(numbers, np.int64)
        compiled = self._all if names is None else self._compile(names)
        if compiled.of_steps is not None and len(numbers):
            return self._read_steps(compiled.of_steps, numbers)
        return [as_leaf(x) for x in self._values(numbers, compiled)]

    def _values(self, numbers: IntArray, compiled: CompiledColumns) -> list[Array]:
        drawn = SampledWindows(_ORDER, range(len(numbers)), *self._windows.prefix.find(numbers), lambda: _NO_CHANCE)
        values, _ = compiled.read(Located(self._windows.table, drawn, 0), 0, len(numbers))
        return list(values.values())

    def _read_steps(self, plan: Plan, numbers: IntArray) -> list[torch.Tensor]:
        """Read what the kernel writes as it is, into memory that nothing else uses."""
        key = id(plan), len(numbers)
        spare = self._spare.get(key)
        if spare is None:
            if len(self._spare) >= _SIZES:
                self._spare.clear()
            spare = self._spare[key] = [], []
        readers, memories = spare  # other threads may take of them at the same time
        try:
            reader = readers.pop()
        except IndexError:
            reader = StepReader(plan, self._windows.prefix.table, len(numbers))
        try:
            tensors, places, _kept = memories.pop()
        except IndexError:
            (tensors, places, _kept), *rest = _memories(plan, len(numbers))
            memories += rest
        reader.write(numbers, places)
        readers.append(reader)
        return tensors

    def tensordict(self, numbers: IntArray, more: Mapping[str, Any] | None = None) -> TensorDict:
        """Return transitions ``numbers`` [n] as a TensorDict with batch size [n]; ``more`` [n, ...] is added to it."""
        return self.tree.tensordict(self.read(numbers), torch.Size((len(numbers),)), more)

    def column(self, name: str) -> Any:
        """Return a field of all transitions [N, ...], in new memory; flags and ``episode`` are kept for the next time.

        Text is a ``NonTensorStack``.
        """
        if name in self._whole:
            return self._whole[name]
        (values,) = self.read(np.arange(len(self)), (name,))
        if name in _KEPT:
            self._whole[name] = values
        return values

    def _compile(self, names: tuple[str, ...]) -> CompiledColumns:
        if names not in self._compiled:
            self._compiled[names] = CompiledColumns(self._windows, {n: self._columns[n] for n in names}, (), None)
        return self._compiled[names]

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.dataset, *self._made_with)


# Tensors, the address of the array of their addresses, and this array.
_Memory = tuple[list[torch.Tensor], int, Array]
_SIZES = 8  # of batches, of which memory is kept ready
_AHEAD, _AHEAD_BYTES = 32, 1 << 20


def _memories(plan: Plan, n: int) -> list[_Memory]:
    """Make the memory of small batches for several of them at a time: this takes a third of the time of one by one.

    Batches that are kept keep that of the others, 1 MiB at most. Autograd does not take them for views of one tensor.
    """
    size = n * sum(dtype.itemsize * prod(shape) for dtype, shape in plan.made)
    count = max(1, min(_AHEAD, _AHEAD_BYTES // max(size, 1)))
    arrays = [np.empty((count * n, *shape), dtype) for dtype, shape in plan.made]
    places = np.array([address(x) for x in arrays]) + np.arange(count)[:, None] * [x.nbytes // count for x in arrays]
    parts = zip(*(torch.unsafe_split(torch.from_numpy(x), n) for x in arrays), strict=True)
    at, step = address(places), places.strides[0]
    return [(list(tensors), at + i * step, places) for i, tensors in enumerate(parts)]


def _again(dataset: Dataset, fields: Names | None, anchors: Anchors, *added: bool | None) -> Transitions:
    root_reward, next_info, seed = added
    return Transitions(
        dataset, fields=fields, anchors=anchors, root_reward=bool(root_reward), next_info=bool(next_info), seed=seed
    )


def _chosen(offered: Fields, fields: Names | None) -> list[str]:
    if fields is not None:
        return offered.choose(fields)
    return offered.choose(["all", *ROOT_FLAGS, EPISODE])


def _column(offered: Fields, windows: WindowIndex, name: str) -> BatchColumn:
    """Return the column of a name: ``next/done`` also ends the episodes whose last step is not a transition."""
    table = windows.table
    short = table.transitions < table.steps
    if name != DONE or offered.window.whole or not short.any():
        return _as_torchrl(offered.column(name, None), windows.dataset.schema.get(offered.behind.get(name, "")))
    terminated, truncated = (np.array(windows.dataset.store.rows(flag)) for flag in FLAGS)
    truncated[(table.start + table.transitions - 1)[short]] = True
    return columns.done(ColumnRows(terminated), ColumnRows(truncated), None, late=False, mask=0)


def _as_torchrl(column: BatchColumn, f: Field | None) -> BatchColumn:
    """Return a column in TorchRL's shape, in which of all scalars only the reward and flags have an axis of one."""
    if f is None or not f.is_column or f.name in (REWARD, *FLAGS):
        return column
    return replace(column, outputs=tuple(replace(o, shape=()) for o in column.outputs), axis=False)


def _is_float(dataset: Dataset, name: str) -> bool:
    f = dataset.schema[name]
    return f.kind == "array" and np.dtype(f.dtype).kind == "f"


def _has_seed(dataset: Dataset) -> bool:
    return dataset.manifest.reader == "roboset" and "source" in dataset.episodes


def _seed(windows: WindowIndex) -> BatchColumn:
    """Return the column of the file of each episode, numbered in the order of names, as TorchRL's RoboSet does."""
    dataset = windows.dataset
    if "source" not in dataset.episodes or not dataset.sources:
        raise BadArgument(f"seed=True: {dataset.id} has no archive, whose files it would number.")
    names = [str(source["file"]) for source in dataset.sources]
    number = np.argsort(np.argsort(np.array(names), stable=True))
    return columns.of_episode(number[dataset.episodes["source"].take(windows.table.number)])


def _following(offered: Fields, name: str) -> BatchColumn:
    """Return the column of a field at the next step of the episode, NaN where there is none."""
    beside = columns.neighbour(offered.rows(name), None, 1, axis=False, zeroed=False, like=name)

    def mark(memo: columns.Memo, values: Array, inside: Array) -> Array:
        values[~inside] = np.nan
        return values

    output = replace(beside.outputs[0], mask=beside.mask, blank=True)
    return BatchColumn((output, beside.inside()), beside.row_bytes, mark, rows=beside.rows)


# -- nesting


class Tree:
    """Names, nested by the ``/`` in them.

    Attributes
    ----------
    names : tuple of str
        Ordered so that the leaves of one level lie side by side, those of the root first.
    leaves : tuple of str
        Keys of the leaves of the root.
    below : mapping of str to Tree
        The others.
    """

    def __init__(self, names: Sequence[str], path: str = "") -> None:
        own = [n for n in names if "/" not in n]
        heads = dict.fromkeys(n.partition("/")[0] for n in names if "/" in n)
        self.leaves = tuple(own)
        self.below = {
            head: Tree([n.partition("/")[2] for n in names if n.startswith(f"{head}/")], f"{path}{head}/")
            for head in heads
        }
        inner = (f"{head}/{n}" for head, tree in self.below.items() for n in tree.names)
        self.names: tuple[str, ...] = (*own, *inner)

    def tensordict(self, values: Sequence[Any], size: torch.Size, more: Mapping[str, Any] | None = None) -> TensorDict:
        """Build a TensorDict of values [*size, ...] in the order of `names`; ``more`` goes to its root."""
        source = dict(zip(self.leaves, values, strict=False))
        at = len(self.leaves)
        for head, tree in self.below.items():
            source[head] = tree.tensordict(values[at : at + len(tree.names)], size)
            at += len(tree.names)
        if more:
            source |= more
        # Without checks of shapes and devices, which take longer than reading: a tenth of the time of TensorDict(...).
        return TensorDict._new_unsafe(source=source, batch_size=size, device=CPU, nested=False)


def as_leaf(values: Array) -> Any:
    """Return an array as a tensor, and text as a ``NonTensorStack``; one dict of all as ``NonTensorData``."""
    if values.dtype != object:
        return torch.from_numpy(values)
    first = values.flat[0] if values.size else None
    if isinstance(first, dict) and all(x is first for x in values.flat):
        return NonTensorData(first, batch_size=values.shape)
    return NonTensorStack.from_list(values.tolist())


def as_list(leaf: Any) -> list[Any]:
    """Return the values [n] of what `as_leaf` made of objects."""
    return [leaf.data] * len(leaf) if isinstance(leaf, NonTensorData) else list(leaf.tolist())


def as_numbers(index: Any, length: int) -> IntArray:
    """Return the numbers that an index of an axis of ``length`` means, int64, in the shape of what it gives.

    That is the shape of the index: () for a single number. An ensemble of buffers asks for [n, 1].

    Raises
    ------
    IndexError
        A number is negative beyond the first one, or it is not an index of one axis.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    if isinstance(index, torch.Tensor):
        index = index.detach().cpu().numpy()
    elif not isinstance(index, int | np.integer | np.ndarray | Sequence):
        raise IndexError(f"transitions are indexed by integers, not by {type(index).__name__}")
    given: Array = np.asarray(index)
    if given.dtype in (bool, np.uint8):  # torch takes bytes for a mask, too
        if given.shape != (length,):
            raise IndexError(f"a mask of shape {list(given.shape)} for {length:,} transitions")
        return np.flatnonzero(given)
    if given.size == 0:
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise IndexError(f"transitions are indexed by integers, not by {given.dtype}{list(given.shape)}")
    numbers = given.astype(np.int64, copy=False)
    if numbers.size and numbers.min() < 0:
        numbers = np.where(numbers < 0, numbers + length, numbers)
        if numbers.min() < 0:
            raise IndexError(f"number {int(given.min())} of {length:,}")
    return numbers


def in_shape(rows: TensorDict, numbers: IntArray) -> TensorDict:
    """Return rows with batch size [n, ...], read by ``numbers``, with the shape of ``numbers`` in the place of [n]."""
    if numbers.ndim == 1:
        return rows
    return rows.reshape(*numbers.shape, *rows.batch_size[1:]) if numbers.ndim else rows[0]
