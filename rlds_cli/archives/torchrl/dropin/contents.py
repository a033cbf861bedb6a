"""A TensorDict of all transitions of a dataset, which reads a field when it is asked for.

TorchRL's samplers take ``storage[:]["episode"]`` at every draw, and users ``replay_buffer[:]``. TensorDicts hold their
leaves in a dict; here it is one that holds the names, and reads the values. Nothing is kept but what is set.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, is_non_tensor, is_tensor_collection

from rlds_cli.archives.torchrl.dropin.errors import ReadOnly
from rlds_cli.archives.torchrl.dropin.trajectories import Trajectories
from rlds_cli.archives.torchrl.dropin.transitions import CPU, Transitions, Tree, as_numbers, in_shape
from rlds_cli.base.array_types import IntArray
from rlds_cli.dataset import Dataset


@dataclass(frozen=True)
class SelectedContents:
    """Transitions ``numbers`` [n] of ``transitions``, or trajectories."""

    transitions: Transitions | Trajectories
    numbers: IntArray

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self.transitions.dataset

    @property
    def tree(self) -> Tree:
        """Names of the fields."""
        return self.transitions.tree

    @property
    def size(self) -> torch.Size:
        """Batch size of all of it."""
        return torch.Size((len(self), *self.transitions.size[1:]))

    def row_of(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one value of a field."""
        return self.transitions.row_of(name)

    def read(self, numbers: IntArray, names: tuple[str, ...] | None = None) -> list[Any]:
        """Return the values of some of them for each name."""
        return self.transitions.read(self.numbers[numbers], names)

    def column(self, name: str) -> Any:
        """Return a field of all of them."""
        return self.transitions.read(self.numbers, (name,))[0]


Source = Transitions | Trajectories | SelectedContents


def read_only(dataset: Dataset) -> ReadOnly:
    """Return the error of writing to a dataset."""
    return ReadOnly(
        f"{dataset.id} is read-only: nothing was written.",
        hint="OfflineToOnlineReplayBuffer(dataset, online_capacity=...) adds new experience to a buffer of its own;"
        ' rlds_cli.writer("local/NAME") writes a growing dataset',
    )


class _Field:
    """Place of a field that is read when it is asked for."""

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, name


class _Leaves(dict[str, Any]):
    """The leaves of a TensorDict: values of its own, and fields to be read."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return value.source.column(value.name) if isinstance(value, _Field) else value

    def __iter__(self) -> Iterator[str]:  # its own, so that dict(leaves) and d.update(leaves) read the fields
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def pop(self, key: str, *default: Any) -> Any:
        value = self.get(key, *default) if default else self[key]
        super().pop(key, None)
        return value

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def waiting(self) -> dict[str, Any]:
        """Return what is held: fields that are not read, TensorDicts and values."""
        return {key: dict.__getitem__(self, key) for key in self}


class Contents(TensorDict):  # type: ignore[misc]  # untyped
    """All transitions, or trajectories: a TensorDict with batch size [N] or [E, L] whose fields are read on demand.

    Indexing reads rows of all fields, as tensors of their own: nothing is written to the dataset.
    """

    @classmethod
    def of(cls, source: Source, tree: Tree | None = None, path: str = "") -> Contents:
        """Make the TensorDict of a source, or of what is nested below ``path``."""
        tree = source.tree if tree is None else tree
        held: dict[str, Any] = {key: _Field(source, path + key) for key in tree.leaves}
        return cls._holding(
            held | {key: cls.of(source, t, f"{path}{key}/") for key, t in tree.below.items()}, source.size
        )

    @classmethod
    def _holding(cls, held: Mapping[str, Any], size: torch.Size) -> Contents:
        made: Contents = cls._new_unsafe(source={}, batch_size=size, device=CPU)
        made._tensordict = _Leaves(held)
        return made

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the keys, see ``TensorDict.keys``; no field is read."""
        found = dict.fromkeys(self._names(include_nested, leaves_only, is_leaf is not None and is_leaf(NonTensorStack)))
        if sort:
            found = dict.fromkeys(sorted(found, key=lambda k: ".".join(k) if isinstance(k, tuple) else k))
        return found.keys()

    def _names(self, include_nested: bool, leaves_only: bool, text: bool) -> Iterator[Any]:
        for key, held in self._held().items():
            inner = is_tensor_collection(held) and not is_non_tensor(held)
            if not leaves_only or not (inner or (_is_text(held) and not text)):
                yield key
            if inner and include_nested:
                below: Iterable[Any] = held.keys(True, leaves_only)
                yield from ((key, *(k if isinstance(k, tuple) else (k,))) for k in below)

    def _held(self) -> dict[str, Any]:
        leaves = self._tensordict
        return leaves.waiting() if isinstance(leaves, _Leaves) else leaves

    def _index_tensordict(self, index: Any, new_batch_size: Any = None, names: Any = None) -> TensorDict:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        if first is None or first is Ellipsis or isinstance(first, bool | tuple):
            return self.to_tensordict()[index]
        if np.ndim(first) > 1 and (mask := torch.as_tensor(first)).dtype in (torch.bool, torch.uint8):
            first, *more = mask.nonzero(as_tuple=True)
            rest = [*more, *rest]
        numbers = as_numbers(first, len(self))
        if not rest:
            return in_shape(self._rows(numbers.reshape(-1)), numbers)
        if isinstance(first, slice):
            return self._rows(numbers)[(slice(None), *rest)]
        read, places = np.unique(numbers, return_inverse=True)  # indices of further axes go with those of the first
        place = torch.from_numpy(places.reshape(numbers.shape)) if numbers.ndim else 0
        return self._rows(read)[(place, *rest)]

    def _set_str(self, key: str, value: Any, *, inplace: bool, **how: Any) -> Contents:
        if inplace:
            self._check_own(key)
        made: Contents = super()._set_str(key, value, inplace=inplace, **how)
        return made

    def _set_at_str(self, key: str, value: Any, idx: Any, **how: Any) -> Contents:
        self._check_own(key)
        made: Contents = super()._set_at_str(key, value, idx, **how)
        return made

    def _check_own(self, key: str) -> None:
        """Refuse to write into a field of the dataset, which would change a copy."""
        held = self._held().get(key)
        if isinstance(held, _Field):
            raise read_only(held.source.dataset)

    def _rows(self, numbers: Any) -> TensorDict:
        held = self._held()
        fields = {key: x for key, x in held.items() if isinstance(x, _Field)}
        size = torch.Size((len(numbers), *self.batch_size[1:]))
        made: dict[str, Any] = {}
        if fields:
            source = next(iter(fields.values())).source
            made = dict(zip(fields, source.read(numbers, tuple(x.name for x in fields.values())), strict=True))
        index = torch.from_numpy(numbers)
        for key, x in held.items():
            if not isinstance(x, _Field):
                made[key] = x._rows(numbers) if isinstance(x, Contents) else x[index]
        return TensorDict._new_unsafe(
            source={key: made[key] for key in held}, batch_size=size, device=CPU, nested=False
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_described(self._held()))}, batch_size={list(self.batch_size)})"

    def __reduce__(self) -> tuple[object, ...]:
        return Contents._holding, (self._held(), self.batch_size)


def _is_text(held: Any) -> bool:
    if isinstance(held, _Field):
        return held.source.row_of(held.name)[1].kind == "O"
    return bool(is_non_tensor(held))


def _described(held: dict[str, Any]) -> Iterator[str]:
    for key, x in held.items():
        if isinstance(x, _Field):
            shape, dtype = x.source.row_of(x.name)
            yield f"{key}: {'text' if dtype.kind == 'O' else dtype}{[*x.source.size, *shape]}"
        elif isinstance(x, torch.Tensor):
            yield f"{key}: {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        else:
            yield f"{key}: {x!r}"
