"""Datasets for other libraries: in their formats on disk, by `export`, and as their own objects, by `rlds_cli.interop`.

`plan_export` says what a format cannot represent, before anything is written; ``FORMATS`` lists the formats. A `Record`
is an environment that writes what happens in it to a dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.bridges.exports.exporting import FORMATS as FORMATS
    from rlds_cli.bridges.exports.exporting import export as export
    from rlds_cli.bridges.exports.exporting import plan_export as plan_export
    from rlds_cli.interop.record import Record as Record

__all__ = ["FORMATS", "Record", "export", "plan_export"]

lazy(__name__, {".interop.record": "Record", "exports.exporting": "FORMATS export plan_export"})
