"""The parts of a dataset whose rows are packed in one file each: ranges of rows that lie in one file of every field.

::

    rows          0 ... 8 000 | no meaning | 65 536 ... 70 000
    part          0           |            | 1
    made of       files of the first member | files of the second one

A dataset of its own files is one part. A merge has the parts of its members, which are known by the files that both
share: whoever packs first, the other maps the same file. Versions and selections share all parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlds_cli.loader.storage.packed import version_of

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.store.local import RowFile


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Rows ``first`` to ``stop``; what they are made of is a part of the key of what is packed of them."""

    first: int
    stop: int
    source: str
    made_of: dict[str, Any]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.first


def parts_of(dataset: Dataset, fields: Iterable[str]) -> list[PackedPart]:
    """Return the parts of a dataset, in order. Rows between them belong to no episode.

    Each begins where a segment does, at a multiple of 65,536 rows.

    Parameters
    ----------
    dataset : Dataset
    fields : iterable of str
        Array fields whose rows are not empty.
    """
    files = {name: _ids(dataset, name) for name in sorted(fields)}
    if not all(files.values()):
        version = version_of(dataset)
        return [PackedPart(0, dataset.num_rows, version, {"version": version})] if dataset.num_rows else []
    bounds = sorted({row for of in files.values() for f in of for row in (f.first, f.first + f.rows)})
    found = []
    for first, stop in pairwise(bounds):
        inside = {name: _file_at(of, first) for name, of in files.items()}
        rows = {name: [f.id, first - f.first] for name, f in inside.items() if f is not None}
        if len(rows) == len(files):
            source = str(rows[min(rows)][0])
            found.append(PackedPart(first, stop, source, {"rows": rows, "count": stop - first}))
    return found


def sources_of(dataset: Dataset) -> set[str]:
    """Return all that parts of a dataset, or what is made of all of it, can be made of."""
    return {version_of(dataset), *(f.id for name in dataset.schema for f in _ids(dataset, name))}


def _ids(dataset: Dataset, name: str) -> tuple[RowFile, ...]:
    """Return the files of the plain rows of an array field that never change, in order; none for other fields."""
    store = dataset.store
    return store.files.ids(store.table.column(name)) if store.fields[name].kind == "array" else ()


def _file_at(files: tuple[RowFile, ...], row: int) -> RowFile | None:
    """Return the file that holds a row; None for a row between two."""
    k = bisect_right(files, row, key=lambda f: f.first) - 1
    return files[k] if k >= 0 and row < files[k].first + files[k].rows else None
