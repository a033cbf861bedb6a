"""Batches: nested fields with rows first, as datasets and loaders return them.

::

    batch["observation"]                 [B, 17]
    batch["next", "reward"]              [B, 1]       the same as batch["next"]["reward"] and batch["next/reward"]
    batch["mask"]                        [B, L]       with slices: [B, L, ...] everywhere

A batch is a pytree of JAX and of torch. Neither is imported for that: batches are registered once a library is in use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeGuard, TypeVar, overload

import numpy as np

import rlds_cli
from rlds_cli.base import counterparts, notebooks, text
from rlds_cli.base.array_types import Array, ArrayT
from rlds_cli.base.text import is_below, split_name
from rlds_cli.errors import InvalidArgument, MissingPackage, NoReward, UnknownField
from rlds_cli.ted import REWARD

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from rlds_cli.dataset.provenance import EpisodeOrigin, EpisodeOrigins

Key = str | tuple[str, ...]
ROOT_FLAGS = ("done", "terminated", "truncated")
_ABSENT = object()
Names = tuple[Any, ...]
Kind = type[dict[Any, Any]]
Other = TypeVar("Other")
Group = Literal["next", "previous", "info"]  # names that have fields below them


class Batch(dict[Any, Any], Generic[ArrayT]):
    """Fields by name, nested as their names are: NumPy arrays, torch tensors or JAX arrays, object arrays for text.

    A dict in every respect; a tuple or a name with ``/`` reaches into nested fields. A pytree of JAX and of torch.

    Examples
    --------
    >>> batch = Batch.nest({"observation": np.zeros((4, 3)), "next/reward": np.ones((4, 1))})
    >>> batch["next", "reward"] is batch["next"]["reward"]
    True
    >>> batch
    Batch(observation: float64[4, 3], next: Batch(reward: float64[4, 1]))
    """

    __slots__ = ("_facts",)

    @property
    def origin(self) -> EpisodeOrigin | None:
        """Stored episode of a batch from ``ds.episode(k)``; None for other batches."""
        found: EpisodeOrigin | None = self._known().get("origin")
        return found

    @property
    def origins(self) -> EpisodeOrigins | None:
        """Stored episodes of the rows, for batches of a loader with ``window=Episode()``; None for other batches."""
        found: EpisodeOrigins | None = self._known().get("origins")
        return found

    @property
    def left_out(self) -> int:
        """Number of steps that ``ds[a:b]`` left out because their next observation is not known."""
        return int(self._known().get("left_out", 0))

    @property
    def absent(self) -> tuple[str, ...]:
        """Members of a live mixture that had no window yet, so that the others took their shares."""
        found: tuple[str, ...] = self._known().get("absent", ())
        return found

    @property
    def flat(self) -> frozenset[str]:
        """Names of the scalars that are [B] and not [B, 1], of a loader with ``scalars="B"``."""
        found: frozenset[str] = self._known().get("flat", frozenset())
        return found

    def told(
        self,
        *,
        origin: EpisodeOrigin | None = None,
        origins: EpisodeOrigins | None = None,
        left_out: int = 0,
        absent: tuple[str, ...] = (),
        flat: frozenset[str] = frozenset(),
    ) -> Batch[ArrayT]:
        """Set the origin of the batch, and return the batch itself; ``flat`` are scalars that are [B], not [B, 1]."""
        facts: dict[str, Any] = {}
        if flat:
            facts["flat"] = flat
        if absent:
            facts["absent"] = absent
        if origin is not None:
            facts["origin"] = origin
        if origins is not None:
            facts["origins"] = origins
        if left_out:
            facts["left_out"] = left_out
        if facts:
            self._facts = {**self._known(), **facts}
        return self

    def _known(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = _FACTS.__get__(self)
        except AttributeError:  # of most batches; `self._facts` would work out a message first
            return _NOTHING
        return found

    def _like(self, other: Batch) -> Batch[ArrayT]:
        """Return the batch itself, with the origin of ``other``, which has the same rows."""
        facts = other._known()
        if facts:
            self._facts = {**self._known(), **facts}
        return self

    @classmethod
    def nest(cls, fields: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Batch:
        """Build a batch from full field names.

        Parameters
        ----------
        fields : mapping or pairs
            ``{"observation": ..., "next/reward": ...}``.
        """
        batch = cls()
        for name, value in fields.items() if isinstance(fields, Mapping) else fields:
            batch[name] = value
        return batch

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Group) -> Batch[ArrayT]: ...
        @overload
        def __getitem__(self, key: Literal["mask", "episode", "task", "subtask"]) -> Any: ...
        @overload
        def __getitem__(self, key: Key) -> ArrayT: ...
        def __getitem__(self, key: Key) -> Any: ...

    def __missing__(self, key: Key) -> Any:
        if not _is_name(key):
            raise UnknownField(
                f"a batch is indexed by the names of fields, not by {key!r}.",
                hint='batch["observation"][0], or batch.map(lambda x: x[0]) for sample 0 of every field',
            )
        value = self.get(key, _ABSENT)
        if value is _ABSENT:
            name = "/".join(split_name(key))
            raise UnknownField(
                f"no field {name!r} in this batch. Fields: {', '.join(self.names())}.", hint=self._instead(name)
            )
        return value

    def _instead(self, name: str) -> str | None:
        """Return the code to write instead of ``batch[name]``, for a name that is not a field."""
        names = self.names()
        whole = next((n for n in names if is_below(name, n)), None)
        if whole is not None:
            return f'batch["{whole}"], which has nothing below it'
        if is_below(name, "mask"):
            return "masks come with windows of several steps: window=Slice(20)"
        near = self._meant(name) or text.closest(name, names)
        return near and f"batch[{', '.join(repr(part) for part in split_name(near))}]".replace("'", '"')

    def _meant(self, name: str) -> str | None:
        """Return the field that other libraries call ``name``, or whose last part it is."""
        names, usual = self.names(), counterparts.FIELDS.get(name)
        return usual if usual in names else next((n for n in names if n.endswith(f"/{name}")), None)

    def __setitem__(self, key: Key, value: Any) -> None:
        if isinstance(key, str) and "/" not in key:  # what functions of single steps do most
            dict.__setitem__(self, key, value)
            return
        *path, leaf = split_name(key)
        node: dict[str, Any] = self
        for part in path:
            child = dict.get(node, part)
            if not isinstance(child, dict):
                child = Batch()
                dict.__setitem__(node, part, child)
            node = child
        dict.__setitem__(node, leaf, value)

    def __delitem__(self, key: Key) -> None:
        *path, leaf = split_name(key)
        node: Any = self[tuple(path)] if path else self
        dict.__delitem__(node, leaf)

    def __contains__(self, key: object) -> bool:
        return _is_name(key) and self.get(key, _ABSENT) is not _ABSENT

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of ``key`` (a name, a name with ``/`` or a tuple), else ``default``."""
        node: Any = self
        for part in split_name(key) if _is_name(key) else (key,):
            node = dict.get(node, part, _ABSENT) if isinstance(node, dict) else _ABSENT
        return default if node is _ABSENT else node

    def leaves(self) -> Iterator[tuple[str, ArrayT]]:
        """Yield full names and values, depth first."""
        for name, value in self.items():
            if isinstance(value, Batch):
                yield from ((f"{name}/{below}", leaf) for below, leaf in value.leaves())
            else:
                yield name, value

    def names(self) -> list[str]:
        """Return the full names: ``["observation", "next/reward", ...]``."""
        return [name for name, _ in self.leaves()]

    def map(self, function: Callable[[ArrayT], Other]) -> Batch[Other]:
        """Return a batch of the same names with ``function`` applied to every value."""
        made: Batch[Other] = Batch(
            (k, v.map(function) if isinstance(v, Batch) else function(v)) for k, v in self.items()
        )
        return made.told(origin=self.origin, flat=self.flat)  # but no `origins`: the function may have changed the rows

    def __copy__(self) -> Batch[ArrayT]:
        # Ten times as fast as the default of copy.copy: DataLoader copies every batch that it converts.
        made: Batch[ArrayT] = Batch(self)
        facts = self._known()
        if facts:
            made._facts = {**facts}
        return made

    def copy(self) -> Batch[ArrayT]:
        """Return another batch that holds the same arrays."""
        return self.map(lambda x: x)._like(self)

    def clone(self) -> Batch[ArrayT]:
        """Copy every array. Clone a loader's batch before keeping or saving it."""
        return self.map(_clone)._like(self)

    def numpy(self) -> Batch[Array]:
        """Return the batch as NumPy arrays, ``bfloat16`` as ``float32``.

        Tensors of the CPU share their memory; arrays of JAX are copied.
        """
        return self.map(_to_numpy)._like(self)

    def to(self, device: Any, *, non_blocking: bool = True) -> Batch[torch.Tensor]:
        """Return the batch as torch tensors on ``device``; text stays as it is.

        Parameters
        ----------
        device : torch.device or str
        non_blocking : bool
            Return before copies from pinned memory are finished.

        Raises
        ------
        InvalidArgument
            The batch holds arrays of JAX: ``jax.device_put(batch, device)`` moves them.
        """
        import torch

        register(Batch, "torch")

        def move(x: Any) -> Any:
            if _is_jax(x):
                raise InvalidArgument(
                    "batch.to() gives torch tensors.", hint="jax.device_put(batch, device), or batch.numpy() first"
                )
            numbers = isinstance(x, np.ndarray | np.generic) and x.dtype != object
            tensor = torch.as_tensor(x) if numbers else x
            return tensor.to(device, non_blocking=non_blocking) if isinstance(tensor, torch.Tensor) else x

        return self.map(move)._like(self)

    def sarsd(self) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT, ArrayT]:
        """Return observation, action, reward [B, 1], next observation and terminated [B, 1], the last as a float.

        Both are [B] with ``Loader(scalars="B")``. Several named rewards come as a batch, and vectors of rewards as
        [B, n], with terminated [B, 1].

        ``terminated`` has the dtype of the rewards: ``target = r + gamma * (1 - terminated) * q``. A truncated step is
        not terminated, so its target bootstraps from the next observation.

        Raises
        ------
        NoReward
            The dataset has no rewards, or ``fields=`` left them out.
        UnknownField
            The batch lacks one of the other fields.
        """
        if ("next", "reward") not in self:
            raise NoReward(
                f"no field 'next/reward' in this batch. Fields: {', '.join(self.names())}.",
                hint="a dataset without rewards is for behaviour cloning or goals: use the fields by name",
            )
        reward: Any = self["next"]["reward"]
        terminated: Any = self["next", "terminated"]
        if not isinstance(reward, Batch) and "next/terminated" in self.flat and REWARD not in self.flat:
            terminated = terminated[..., None]  # for each element of a vector of rewards
        return (
            self["observation"],
            self["action"],
            reward,
            self["next", "observation"],
            _as_float(terminated, next(x for _, x in reward.leaves()) if isinstance(reward, Batch) else reward),
        )

    def tensordict(self) -> TensorDict:
        """Return the batch as a TensorDict with batch size [B] or [B, L], ready for TorchRL's losses.

        [B, L] for slices and whole episodes; [B] for offsets, whose fields have as many rows as offsets; [] for
        ``ds[i]``. NumPy arrays become tensors that share their memory, and text becomes a ``NonTensorStack``. Scalars
        that ``Loader(scalars="B")`` gives as [B] are [B, 1] here. The TensorDict also has ``done``, ``terminated`` and
        ``truncated`` at the root, all False, and with `Prioritized` ``priority_weight`` [B] or [B, L], the importance
        weights in the form that losses multiply by. ``loader.update_priorities(td, td_error)`` takes the TensorDict.

        Raises
        ------
        MissingPackage
            tensordict is not installed.
        InvalidArgument
            The batch holds arrays of JAX.
        """
        try:
            from tensordict import NonTensorData, NonTensorStack, TensorDict
        except ImportError as e:
            raise MissingPackage("tensordict is not installed.", hint="pip install 'rlds-cli[tensordict]'") from e
        import torch

        if self.flat:
            whole: Iterator[tuple[str, Any]] = self.leaves()
            return Batch.nest((n, x[..., None] if n in self.flat else x) for n, x in whole).tensordict()
        device = next((x.device for _, x in self.leaves() if isinstance(x, torch.Tensor)), torch.device("cpu"))
        tensors = self if all(_is_tensor(x) or _is_text(x) for _, x in self.leaves()) else self.to(device)
        size = self._batch_size()
        texts: dict[str, Any] = {name: x for name, x in tensors.leaves() if not isinstance(x, torch.Tensor)}
        td = TensorDict(_plain(tensors), batch_size=size, device=device)
        for name, x in texts.items():
            several = isinstance(x, np.ndarray)  # one step has a text, not an array of texts
            td.set(split_name(name), NonTensorStack.from_list(x.tolist()) if several else NonTensorData(x))
        for flag in ROOT_FLAGS:
            if flag not in td.keys():  # noqa: SIM118  (a TensorDict iterates over its rows)
                td.set(flag, torch.zeros((*size, 1), dtype=torch.bool, device=device))
        if all(name in self for name in ("probability", "weight", "window")):  # of `Prioritized`
            td.set("priority_weight", td.get("weight").squeeze(-1))
        return td

    def _batch_size(self) -> tuple[int, ...]:
        mask = self.get("mask")
        if isinstance(mask, Batch) and "step" in mask:  # of a mixture's slices
            return tuple(mask["step"].shape)
        if isinstance(mask, Batch):  # of `Offsets`: fields have as many rows as they have offsets
            return tuple(next(x for _, x in mask.leaves()).shape[:1])
        if mask is not None:
            return tuple(mask.shape)
        flags = self.get(("next", "terminated"))
        if flags is not None:
            return tuple(flags.shape[:-1])
        whole: Iterator[tuple[str, Any]] = self.leaves()
        return next((tuple(x.shape[:1]) for _, x in whole), ())

    if not TYPE_CHECKING:  # type checkers find wrong names by themselves

        def __getattr__(self, name: str) -> NoReturn:
            meant = name if name in self else self._meant(name)
            field = {name: f'batch["{meant}"]'} if meant else {}
            counterparts.missing(self, name, {**counterparts.BATCH, **field})

    def _ipython_key_completions_(self) -> list[str]:
        """Names that IPython completes behind ``batch["``."""
        return self.names()

    def __repr__(self) -> str:
        left_out = f"; {text.plural(self.left_out, 'step')} left out" if self.left_out else ""
        return f"Batch({', '.join(f'{k}: {_describe(v)}' for k, v in self.items())}{left_out})"

    def _repr_html_(self) -> str:
        """Return the fields as a table, for notebooks."""
        return notebooks.table("Batch", ["field", "values"], [(name, _describe(x)) for name, x in self.leaves()])

    def plot(self, field: str | None = None) -> Chart:
        """Draw a field of an episode from ``ds.episode(k)`` over its steps; by default the reward.

        Raises
        ------
        InvalidArgument
            The batch is not an episode.
        UnknownField, RldsError
            There is no such field, or it has no numbers.
        """
        if self.origin is None:
            raise InvalidArgument("plot() draws an episode, and this batch is not one.", hint="ds.episode(k).plot()")
        name = field or (REWARD if REWARD in self.names() else self.names()[0])
        whole = rlds_cli.Dataset(self.origin.store)
        return Chart(rlds_cli.report.plot(whole, name, episode=self.origin.number))


_FACTS: Any = Batch.__dict__["_facts"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Chart(str):
    """An SVG document that notebooks draw: ``Path("reward.svg").write_text(chart)`` keeps it."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def _is_name(key: object) -> TypeGuard[Key]:
    return isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(part, str) for part in key))


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_text(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == object


def _is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def _clone(x: Any) -> Any:
    return x.clone() if _is_tensor(x) else x.copy() if isinstance(x, np.ndarray) else x


def _to_numpy(x: Any) -> Any:
    if _is_jax(x):
        return np.array(x, np.float32 if x.dtype.name == "bfloat16" else x.dtype)
    if not _is_tensor(x):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def _as_float(x: Any, like: Any) -> Any:
    if _is_tensor(x):
        return x.to(like.dtype) if like.is_floating_point() else x.float()
    floats = like.dtype.kind == "f" or like.dtype.name == "bfloat16"
    return x.astype(like.dtype if floats else np.float32)


def _plain(batch: Batch) -> dict[str, Any]:
    """Return nested dicts with the tensors alone."""
    nested = {k: _plain(v) if isinstance(v, Batch) else v for k, v in batch.items()}
    return {k: v for k, v in nested.items() if isinstance(v, dict) or _is_tensor(v)}


def _describe(x: Any) -> str:
    if isinstance(x, Batch) or not hasattr(x, "shape"):
        return repr(x)
    dtype = "text" if x.dtype == object else str(x.dtype).removeprefix("torch.")
    return f"{dtype}{list(x.shape)}"


def register(kind: Kind, *frameworks: Literal["jax", "torch"]) -> None:
    """Register ``kind`` as a pytree with frameworks, or with those that are imported; the second call is free."""
    for name in frameworks or sys.modules.keys() & {"jax", "torch"}:
        (_register_jax if name == "jax" else _register_torch)(kind)


@cache
def _register_jax(kind: Kind) -> None:
    """Make ``kind`` a pytree of JAX: an argument of compiled functions, with ``jax.tree`` functions for it."""
    from jax.tree_util import DictKey, register_pytree_with_keys

    def with_keys(tree: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], Names]:
        return [(DictKey(name), x) for name, x in tree.items()], tuple(tree)

    def flatten(tree: dict[Any, Any]) -> tuple[Iterable[Any], Names]:
        return tree.values(), tuple(tree)

    def unflatten(names: Names, values: Iterable[Any]) -> dict[Any, Any]:
        return kind(zip(names, values, strict=True))

    register_pytree_with_keys(kind, with_keys, unflatten, flatten)


@cache
def _register_torch(kind: Kind) -> None:
    """Make ``kind`` a pytree of torch: for ``torch.func``, ``torch.vmap`` and ``torch.utils._pytree``."""
    from torch.utils import _pytree

    def with_keys(tree: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], Names]:
        return [(_pytree.MappingKey(name), x) for name, x in tree.items()], tuple(tree)

    def flatten(tree: dict[Any, Any]) -> tuple[list[Any], Names]:
        return list(tree.values()), tuple(tree)

    def unflatten(values: Iterable[Any], names: Names) -> dict[Any, Any]:
        return kind(zip(names, values, strict=True))

    name = f"{kind.__module__}.{kind.__qualname__}"
    _pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=with_keys)
