"""A dataset on disk: a Zarr v3 group of memory-mapped or compressed arrays, its versions and its small files.

`open_store` opens a version: a `Store`, whose methods read rows, texts, frames and videos. A `Manifest` is what a
version says of itself. A `StoredDataset` answers what is asked of a dataset without a version that is open; a
`GrowingDataset` is one to which writers commit: it is compacted, cleared, and freed of what left.
A `History` is the versions of a dataset and their tags; it publishes the next one.

A dataset is made of a job by `Work`, which writes its parts, and by `finish`; of others, whose files of rows it shares,
by `join`; or of another one by a `Change`, with `NewRows` where it has other rows. A `StoredColumn` has a label, a
number or a text for each episode; `Facts` are what a user may set of a whole dataset.

A `FieldHash` says how the episodes of a field are hashed; an `EpisodeHash` does it as their rows come, and
`ContentDigests` make a fingerprint of the results. Images are checked, encoded and decoded here, and videos decoded.

Files of a dataset are read by `read_regular`, as they may come from a stranger, and shared with other datasets by
`share_tree`; those that are `Sent` to an address are `LocalFile`. A `Lookup` stands in the place of an array whose rows
are some of another one's.

`make_growing` makes a `GrowingDataset`, to which each `Appender` commits episodes, and which has a rule that says which
ones it will `Keep`. Its `CommitLog` says how much of each file a copy needs.

A version is open by `opening`: a `table` of what it holds, and `local` files; `columns`, `layouts` and `lookups` say
how an array lies on disk, `encoded`, `frames` and `videos` what is in one of pictures. A dataset is written by
`work`, `build`, `rows` and `parts`, completed by `finishing`, `statistics`, `digests` and `sealing`, described by
`manifest`, `validation`, `episode_table` and `own_columns`. Another version comes of `views`, `new_rows`, `joining`
or `derived`, with files shared by `sharing` and `references`, and becomes the newest by `history`. `growing` has all
of that for logs and segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.store.build import Built as Built
    from rlds_cli.store.decoding import Video as Video
    from rlds_cli.store.decoding import decode_video as decode_video
    from rlds_cli.store.derived import Patched as Patched
    from rlds_cli.store.digests import ContentDigests as ContentDigests
    from rlds_cli.store.digests import EpisodeHash as EpisodeHash
    from rlds_cli.store.digests import FieldHash as FieldHash
    from rlds_cli.store.digests import is_of_rows as is_of_rows
    from rlds_cli.store.episode_table import read_sources as read_sources
    from rlds_cli.store.facts import Facts as Facts
    from rlds_cli.store.files import note_address as note_address
    from rlds_cli.store.files import read_regular as read_regular
    from rlds_cli.store.finishing import Description as Description
    from rlds_cli.store.finishing import finish as finish
    from rlds_cli.store.frames import check_frames as check_frames
    from rlds_cli.store.frames import decode_frame as decode_frame
    from rlds_cli.store.frames import decode_frames as decode_frames
    from rlds_cli.store.frames import encode_frames as encode_frames
    from rlds_cli.store.growing.appender import Appender as Appender
    from rlds_cli.store.growing.commit_log import CommitLog as CommitLog
    from rlds_cli.store.growing.dataset import GrowingDataset as GrowingDataset
    from rlds_cli.store.growing.making import make_growing as make_growing
    from rlds_cli.store.growing.opening import StoredDataset as StoredDataset
    from rlds_cli.store.growing.opening import open_store as open_store
    from rlds_cli.store.growing.retention import Keep as Keep
    from rlds_cli.store.history import History as History
    from rlds_cli.store.images import CheckedFrames as CheckedFrames
    from rlds_cli.store.images import decoded_frames as decoded_frames
    from rlds_cli.store.integrity import check_field as check_field
    from rlds_cli.store.joining import JoinedMember as JoinedMember
    from rlds_cli.store.joining import join as join
    from rlds_cli.store.local import Files as Files
    from rlds_cli.store.lookups import Lookup as Lookup
    from rlds_cli.store.manifest import Manifest as Manifest
    from rlds_cli.store.manifest import Stats as Stats
    from rlds_cli.store.new_rows import NewRows as NewRows
    from rlds_cli.store.opening import Store as Store
    from rlds_cli.store.own_columns import ColumnKinds as ColumnKinds
    from rlds_cli.store.own_columns import StoredColumn as StoredColumn
    from rlds_cli.store.own_columns import split_columns as split_columns
    from rlds_cli.store.paths import FAILURES as FAILURES
    from rlds_cli.store.paths import assign_paths as assign_paths
    from rlds_cli.store.paths import is_indexed as is_indexed
    from rlds_cli.store.sealing import Problem as Problem
    from rlds_cli.store.sealing import row_files as row_files
    from rlds_cli.store.sealing import seal as seal
    from rlds_cli.store.sending import Sent as Sent
    from rlds_cli.store.sharing import share_tree as share_tree
    from rlds_cli.store.snapshots import LocalFile as LocalFile
    from rlds_cli.store.views import Change as Change
    from rlds_cli.store.work import Shard as Shard
    from rlds_cli.store.work import Work as Work

__all__ = [
    "Appender",
    "Built",
    "Change",
    "CheckedFrames",
    "ColumnKinds",
    "CommitLog",
    "ContentDigests",
    "Description",
    "EpisodeHash",
    "FAILURES",
    "Facts",
    "FieldHash",
    "Files",
    "GrowingDataset",
    "History",
    "JoinedMember",
    "Keep",
    "LocalFile",
    "Lookup",
    "Manifest",
    "NewRows",
    "Patched",
    "Problem",
    "Sent",
    "Shard",
    "Stats",
    "Store",
    "StoredColumn",
    "StoredDataset",
    "Video",
    "Work",
    "assign_paths",
    "check_field",
    "check_frames",
    "decode_frame",
    "decode_frames",
    "decode_video",
    "decoded_frames",
    "encode_frames",
    "finish",
    "is_indexed",
    "is_of_rows",
    "join",
    "make_growing",
    "note_address",
    "open_store",
    "read_regular",
    "read_sources",
    "row_files",
    "seal",
    "share_tree",
    "split_columns",
]

lazy(
    __name__,
    {
        "build": "Built",
        "decoding": "Video decode_video",
        "derived": "Patched",
        "digests": "ContentDigests EpisodeHash FieldHash is_of_rows",
        "episode_table": "read_sources",
        "facts": "Facts",
        "files": "note_address read_regular",
        "finishing": "Description finish",
        "frames": "check_frames decode_frame decode_frames encode_frames",
        "growing.appender": "Appender",
        "growing.commit_log": "CommitLog",
        "growing.dataset": "GrowingDataset",
        "growing.making": "make_growing",
        "growing.opening": "StoredDataset open_store",
        "growing.retention": "Keep",
        "history": "History",
        "images": "CheckedFrames decoded_frames",
        "integrity": "check_field",
        "joining": "JoinedMember join",
        "local": "Files",
        "lookups": "Lookup",
        "manifest": "Manifest Stats",
        "new_rows": "NewRows",
        "opening": "Store",
        "own_columns": "ColumnKinds StoredColumn split_columns",
        "paths": "FAILURES assign_paths is_indexed",
        "sealing": "Problem row_files seal",
        "sending": "Sent",
        "sharing": "share_tree",
        "snapshots": "LocalFile",
        "views": "Change",
        "work": "Shard Work",
    },
)
