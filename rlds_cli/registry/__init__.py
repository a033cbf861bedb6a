"""What datasets exist: the entries of ``registry/``, and of registries of a user's own. Imports nothing heavy.

`get` finds the entry of an id, an alias or a name without its family; `known` and `listed` do so without an error,
`listed` only for datasets with a line of their own. `match` takes a glob, `search` words, and `libraries` lists all.
`did_you_mean` and `suggest` name ids near to one that is wrong. An `Entry` has the `File`s of an archive.

`described` makes the entry of a line that a manifest, a lock file or a request holds, of which `problems` says what is
wrong; `is_new` tells ids that only a registry of a user's own can list, and `is_reader` names of readers.
`own_registries` are those of the user, and `OwnRegistries` changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.registry.check import is_reader, problems
    from rlds_cli.registry.facts import Defect, Entry, File
    from rlds_cli.registry.lookup import (
        described,
        did_you_mean,
        families,
        get,
        is_new,
        known,
        listed,
        match,
        own_registries,
        search,
        suggest,
    )
    from rlds_cli.registry.own import OwnRegistries

__all__ = [
    "Defect",
    "Entry",
    "File",
    "OwnRegistries",
    "described",
    "did_you_mean",
    "families",
    "get",
    "is_new",
    "is_reader",
    "known",
    "listed",
    "match",
    "own_registries",
    "problems",
    "search",
    "suggest",
]

lazy(
    __name__,
    {
        "check": "is_reader problems",
        "facts": "Defect Entry File",
        "lookup": "described did_you_mean families get is_new known listed match own_registries search suggest",
        "own": "OwnRegistries",
    },
)
