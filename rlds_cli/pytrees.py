"""A kind of nested dict as a pytree of JAX and of torch: a tree of its values, in their order.

Neither is imported for this. They are told when a loader or a batch has to do with them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

Names = tuple[Any, ...]
Kind = type[dict[Any, Any]]


def register(kind: Kind) -> None:
    """Tell JAX and torch about ``kind``, whichever are imported; costs nothing the second time."""
    if "jax" in sys.modules:
        register_jax(kind)
    if "torch" in sys.modules:
        register_torch(kind)


@cache
def register_jax(kind: Kind) -> None:
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
def register_torch(kind: Kind) -> None:
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
