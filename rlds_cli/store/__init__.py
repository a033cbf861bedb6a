"""A dataset on disk: a Zarr v3 group of memory-mapped or compressed arrays, its versions and its small files.

A `Store` is an open version: its methods read rows, texts, frames and videos. A `Manifest` is what a version says of
itself.

A dataset is made of a job by `Work`, which writes its parts, and by `finish`; or of others, whose files of rows it
shares, by `join`.
`open_store` opens a version: a `Store`, whose methods read rows, texts, frames and videos. A `Manifest` is what a
version says of itself. A `StoredDataset` answers what is asked of a dataset without a version that is open; a
`GrowingDataset` is one to which writers commit: it is compacted, cleared, and freed of what left.
A `FieldHash` says how the episodes of a field are hashed; an `EpisodeHash` does it as their rows come, and
`ContentDigests` make a fingerprint of the results. `NewRows` are written where a change makes other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.store.build import Built as Built
    from rlds_cli.store.digests import ContentDigests as ContentDigests
    from rlds_cli.store.digests import EpisodeHash as EpisodeHash
    from rlds_cli.store.digests import FieldHash as FieldHash
    from rlds_cli.store.finishing import Description as Description
    from rlds_cli.store.finishing import finish as finish
    from rlds_cli.store.growing.dataset import GrowingDataset as GrowingDataset
    from rlds_cli.store.growing.opening import StoredDataset as StoredDataset
    from rlds_cli.store.growing.opening import open_store as open_store
    from rlds_cli.store.joining import JoinedMember as JoinedMember
    from rlds_cli.store.joining import join as join
    from rlds_cli.store.manifest import Manifest as Manifest
    from rlds_cli.store.new_rows import NewRows as NewRows
    from rlds_cli.store.opening import Store as Store
    from rlds_cli.store.work import Shard as Shard
    from rlds_cli.store.work import Work as Work

__all__ = [
    "Built",
    "Description",
    "GrowingDataset",
    "JoinedMember",
    "Manifest",
    "Shard",
    "ContentDigests",
    "EpisodeHash",
    "FieldHash",
    "NewRows",
    "Store",
    "StoredDataset",
    "Work",
    "finish",
    "join",
    "open_store",
]

lazy(
    __name__,
    {
        "build": "Built",
        "finishing": "Description finish",
        "growing.dataset": "GrowingDataset",
        "growing.opening": "StoredDataset open_store",
        "joining": "JoinedMember join",
        "digests": "ContentDigests EpisodeHash FieldHash",
        "manifest": "Manifest",
        "new_rows": "NewRows",
        "opening": "Store",
        "work": "Shard Work",
    },
)
