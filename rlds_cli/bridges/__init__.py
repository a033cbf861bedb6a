"""Datasets for other libraries: in their formats on disk, by `export`, and as their own objects, by `rlds_cli.interop`.

`plan_export` says what a format cannot represent, before anything is written; ``FORMATS`` lists the formats. A `Record`
is an environment that writes what happens in it to a dataset.

Each library of `libraries` has a folder: `write` for its formats, which `exports` drives, and `dropin` for its own
functions and objects, which are `dropins`, and `rlds_cli.interop` to users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.bridges.exports.exporting import FORMATS as FORMATS
    from rlds_cli.bridges.exports.exporting import export as export
    from rlds_cli.bridges.exports.exporting import plan_export as plan_export
    from rlds_cli.bridges.record import Record as Record

__all__ = ["FORMATS", "Record", "export", "plan_export"]

lazy(__name__, {"exports.exporting": "FORMATS export plan_export", "record": "Record"})
