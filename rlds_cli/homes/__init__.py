"""The directories of a home, and the datasets in them.

A `Home` says where datasets, archives and work in progress lie. `find` searches the registry and the disk, and `here`
lists the disk. A dataset of this disk is named in one of these ways, which differ in how much a user may write:
`path_of` takes an id, `meant` an id or an alias, and `locate` also a path; `dataset`, `version` and `version_or_file`
hint at what may be meant, `datasets` and `versions` take globs. `is_dataset` and `holds_dataset` tell directories of
datasets from others, and `id_of` reads the id in one. `entry_of` is what the registry says of a dataset, and
`is_published` whether others have it under its id.

`exclusive` lets one process at a time work on a dataset; `writing` turns errors of the file system into those with a
hint. `usage` measures what takes the space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.homes.homes import Home, is_dataset, path_of
    from rlds_cli.homes.locating import (
        dataset,
        datasets,
        entry_of,
        find,
        here,
        holds_dataset,
        id_of,
        is_published,
        locate,
        meant,
        version,
        version_or_file,
        versions,
    )
    from rlds_cli.homes.locks import exclusive, writing
    from rlds_cli.homes.measuring import usage

__all__ = [
    "Home",
    "dataset",
    "datasets",
    "entry_of",
    "exclusive",
    "find",
    "here",
    "holds_dataset",
    "id_of",
    "is_dataset",
    "is_published",
    "locate",
    "meant",
    "path_of",
    "usage",
    "version",
    "version_or_file",
    "versions",
    "writing",
]

lazy(
    __name__,
    {
        "homes": "Home is_dataset path_of",
        "locating": (
            "dataset datasets entry_of find here holds_dataset id_of is_published "
            "locate meant version version_or_file versions"
        ),
        "locks": "exclusive writing",
        "measuring": "usage",
    },
)
