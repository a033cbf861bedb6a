"""A dataset on disk: a Zarr v3 group of memory-mapped or compressed arrays, its versions and its small files.

A `Store` is an open version: its methods read rows, texts, frames and videos. A `Manifest` is what a version says of
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.store.manifest import Manifest as Manifest
    from rlds_cli.store.opening import Store as Store

__all__ = [
    "Manifest",
    "Store",
]

lazy(
    __name__,
    {
        "manifest": "Manifest",
        "opening": "Store",
    },
)
