"""The transitions of a dataset as TensorDicts, read by number from the dataset's own files.

::

    number        0    1    2  | 3        two episodes: one of 3 steps, and one of 2 whose final observation is not
    row           0    1    2  | 4        recorded. Rows 3 and 6 hold final observations; the step in row 5 is no
    next/done               x  | x        transition, so its episode ends before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlds_cli.archives.torchrl.dropin.errors import BadArgument
from rlds_cli.archives.torchrl.dropin.families import placed
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import ROOT_FLAGS, Dataset
from rlds_cli.loader import reader
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.fields.fields import Names
from rlds_cli.loader.kernel import StepReader
from rlds_cli.loader.numbered import BatchPlaces, NumberedRows, TransitionReader
from rlds_cli.loader.windows.windows import Anchors
from rlds_cli.ted import FLAGS, REWARD

EPISODE, ROOT_REWARD, SEED, DONE = "episode", "reward", "seed", "next/done"
CPU = torch.device("cpu")
_KEPT = (*ROOT_FLAGS, *FLAGS, DONE, EPISODE)  # columns that samplers ask for at every draw
_SIZES = 8  # of batches, of which memory is kept ready


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
        Keys of the fields, joined by ``/``: their names, or those of TorchRL's class of the family, see `libraries`.
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
        self.dataset, self._made_with = dataset, (fields, anchors, root_reward, next_info, seed)
        self._reader = offered = reader(dataset, anchors)
        chosen = offered.choose(["all", *ROOT_FLAGS, EPISODE] if fields is None else fields)
        self._columns = {name: _column(offered, name) for name in chosen}
        if root_reward:
            self._columns.setdefault(ROOT_REWARD, offered.previous(ROOT_REWARD))
        if next_info:
            infos = [n for n in chosen if n.startswith("info/") and f"next/{n}" not in chosen]
            self._columns |= {f"next/{n}": offered.following(n) for n in infos if _is_float(dataset, n)}
        if _has_seed(dataset) and fields is None if seed is None else seed:
            self._columns.setdefault(SEED, _seed(offered))
        made = placed(offered, self._columns, whole=fields is None)
        self._columns, self.fields = dict(made.columns), made.fields
        self.tree = Tree(tuple(self._columns))
        self.names = self.tree.names
        self._compiled: dict[tuple[str, ...], NumberedRows] = {}
        self._whole: dict[str, torch.Tensor] = {}
        self._rows_of: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._spare: dict[tuple[int, int], tuple[list[StepReader], list[BatchPlaces]]] = {}
        self._all = self._compile(self.names)

    def __len__(self) -> int:
        return len(self._reader)

    @property
    def size(self) -> torch.Size:
        """Batch size of all of it: [N]."""
        return torch.Size((len(self),))

    @property
    def counts(self) -> IntArray:
        """Number of transitions of each episode that has some, int64 [episodes]."""
        return self._reader.counts

    @property
    def first(self) -> IntArray:
        """Number of the first transition of each of these episodes, int64 [episodes]."""
        return self._reader.first

    def row_of(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one value of a field; text has the dtype of objects."""
        column = self._columns[name]
        if column.finish is None:
            return column.outputs[0].shape, column.outputs[0].dtype
        if name not in self._rows_of:
            (values,) = self._compile((name,)).read(np.zeros(0, np.int64))
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
        rows = self._all if names is None else self._compile(names)
        return (
            self._read_plain(rows, numbers) if rows.is_plain and len(numbers) else [*map(as_leaf, rows.read(numbers))]
        )

    def _read_plain(self, rows: NumberedRows, numbers: IntArray) -> list[torch.Tensor]:
        """Read what the kernel writes as it is, into memory that nothing else uses."""
        key = id(rows), len(numbers)
        spare = self._spare.get(key)
        if spare is None:
            if len(self._spare) >= _SIZES:
                self._spare.clear()
            spare = self._spare[key] = [], []
        writers, memories = spare  # other threads may take of them at the same time
        try:
            writer = writers.pop()
        except IndexError:
            writer = rows.writer(len(numbers))
        try:
            tensors, places, _kept = memories.pop()
        except IndexError:
            (tensors, places, _kept), *rest = rows.places(len(numbers), _tensors)
            memories += rest
        writer.write(numbers, places)
        writers.append(writer)
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

    def _compile(self, names: tuple[str, ...]) -> NumberedRows:
        if names not in self._compiled:
            self._compiled[names] = self._reader.compile({n: self._columns[n] for n in names})
        return self._compiled[names]

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.dataset, *self._made_with)


def _tensors(array: Array, n: int) -> Sequence[torch.Tensor]:
    """Divide an array; autograd does not take the parts for views of one tensor."""
    return torch.unsafe_split(torch.from_numpy(array), n)


def _again(dataset: Dataset, fields: Names | None, anchors: Anchors, *added: bool | None) -> Transitions:
    root_reward, next_info, seed = added
    return Transitions(
        dataset, fields=fields, anchors=anchors, root_reward=bool(root_reward), next_info=bool(next_info), seed=seed
    )


def _column(offered: TransitionReader, name: str) -> BatchColumn:
    """Return a column in TorchRL's shape, in which of all scalars only the reward and flags have an axis of one."""
    if name == DONE:
        return offered.done()
    column, f = offered.column(name), offered.dataset.schema.get(offered.behind(name))
    return column if f is None or not f.is_column or f.name in (REWARD, *FLAGS) else column.without_axis()


def _is_float(dataset: Dataset, name: str) -> bool:
    f = dataset.schema[name]
    return f.kind == "array" and np.dtype(f.dtype).kind == "f"


def _has_seed(dataset: Dataset) -> bool:
    return dataset.manifest.reader == "roboset" and "source" in dataset.episodes


def _seed(offered: TransitionReader) -> BatchColumn:
    """Return the column of the file of each episode, numbered in the order of names, as TorchRL's RoboSet does."""
    dataset = offered.dataset
    if "source" not in dataset.episodes or not dataset.sources:
        raise BadArgument(f"seed=True: {dataset.id} has no archive, whose files it would number.")
    names = [str(source["file"]) for source in dataset.sources]
    number = np.argsort(np.argsort(np.array(names), stable=True))
    return offered.of_episode(number[dataset.episodes["source"].take(offered.episode)])


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
