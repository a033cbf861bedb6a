"""Maintain datasets: check them, repair them, free space, and write down how they are made.

`verify` compares a dataset with its fingerprint, `verify_all` several; `repair_all` makes damaged ones again. `lock`
writes how datasets are made, `sync` makes them, and `unallowed` says what it needs permission for. `compact` and
`clear` let earlier versions and episodes go, `remove` datasets (`plan_removal` says which cannot be made again),
`collect` what `find_garbage` lists. `reencode` changes the encoding of a dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.keep.compacting import clear, compact
    from rlds_cli.keep.gc import collect, find_garbage
    from rlds_cli.keep.pinning import lock, sync, unallowed
    from rlds_cli.keep.reencoding import reencode
    from rlds_cli.keep.removing import plan_removal, remove
    from rlds_cli.keep.repair import repair_all
    from rlds_cli.keep.verification import verify, verify_all

__all__ = [
    "clear",
    "collect",
    "compact",
    "find_garbage",
    "lock",
    "plan_removal",
    "reencode",
    "remove",
    "repair_all",
    "sync",
    "unallowed",
    "verify",
    "verify_all",
]

lazy(
    __name__,
    {
        "compacting": "clear compact",
        "gc": "collect find_garbage",
        "pinning": "lock sync unallowed",
        "reencoding": "reencode",
        "removing": "plan_removal remove",
        "repair": "repair_all",
        "verification": "verify verify_all",
    },
)
