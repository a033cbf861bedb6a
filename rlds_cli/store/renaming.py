"""A version whose fields have other names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.store import digests
from rlds_cli.store.columns import Column, Part
from rlds_cli.store.digests import Digests
from rlds_cli.store.encoded import EncodedBytes
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.metadata import Metadata
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.store.table import Reopened, Run, Table

if TYPE_CHECKING:
    from rlds_cli.store.videos import Videos


class RenamedTable(Table):
    """The same version with renamed fields.

    Parameters
    ----------
    of : Table
    names : mapping of str to str
        From the name of every field to its new one.
    """

    def __init__(self, of: Table, names: Mapping[str, str]) -> None:
        self._of, self._names = of, dict(names)
        self._theirs = {ours: theirs for theirs, ours in names.items()}
        stored = [replace(of.stored(theirs), name=ours) for theirs, ours in names.items()]
        super().__init__(of.files, stored)
        self.version, self.lease, self.segment_rows = of.version, of.lease, of.segment_rows
        self.pinned_version, self.dropped, self.keeps = of.pinned_version, of.dropped, of.keeps
        digest = hashlib.sha256(json.dumps(self._names, sort_keys=True).encode()).hexdigest()[:16]
        self.version_id = f"{of.version_id}+renamed-{digest}"  # packed rows are found by name and version

    @property
    def manifest(self) -> Manifest:
        """The manifest with the new names."""
        m = self._of.manifest
        stats = {self._names[name]: s for name, s in m.stats.items()}
        return replace(m, fields=tuple(self.stored(self._names[f.name]) for f in m.fields), stats=stats)

    @property
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table."""
        return self._of.episodes

    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table."""
        return self._of.episode_strings(column)

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        return self._of.own_columns

    def _read_own_column(self, name: str) -> StoredColumn:
        return self._of.own_column(name)

    @property
    def sources(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the archive."""
        return self._of.sources

    @property
    def metadata(self) -> Metadata:
        """The data that are not per row."""
        return self._of.metadata

    def names_of(self, index: IntArray) -> IntArray:
        """Return what names the episodes ``index`` [n] in every version of the dataset."""
        return self._of.names_of(index)

    def name_of(self, k: int) -> str:
        """Return what names episode ``k`` in every version of the dataset."""
        return self._of.name_of(k)

    def keeps_in_words(self) -> str | None:
        """Return which episodes stay by the rule of `keeps`; None if none leaves."""
        return self._of.keeps_in_words()

    def covered(self, start: int, stop: int) -> BoolArray | None:
        """Return which of rows [start, stop) are of episodes."""
        return self._of.covered(start, stop)

    def _describe(self, name: str, part: Part) -> Column:
        return replace(self._of.column(self._theirs[name], part), field=name)

    def row_runs(self) -> tuple[Run, ...]:
        """Return the rows that have files."""
        return self._of.row_runs()

    def runs(self, name: str, part: Part = "rows") -> tuple[Run, ...]:
        """Return the files of plain rows of an array."""
        return self._of.runs(self._theirs[name], part)

    def strings(self, name: str) -> Array:
        """Return the string table of a text field."""
        return self._of.strings(self._theirs[name])

    def num_texts(self, name: str) -> int:
        """Return how many strings the table of a text field has."""
        return self._of.num_texts(self._theirs[name])

    def films(self, name: str, of: EncodedBytes) -> Videos:
        """Return the videos of a field."""
        return self._of.films(self._theirs[name], of)

    def video_digests(self, name: str) -> Digests:
        """Return the sha256 of each video of a field [videos, 32]."""
        return self._of.video_digests(self._theirs[name])

    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]."""
        return self._of.digests(self._theirs[name])

    def field_digest(self, name: str) -> str:
        """Return the digest of a field over all episodes."""
        return self._of.field_digest(self._theirs[name])

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint under the new names."""
        index = self.numbers if index is None else index
        of_fields = {name: digests.of_field(self.stored(name), self.digests(name)[index]) for name in self.fields}
        return digests.ContentDigests(of_fields, self.column_digests(index, ignored)).fingerprint

    def check_recorded(self) -> None:
        """Refuse a dataset whose recorded digests are not those that were written."""
        self._of.check_recorded()

    def newest_number(self) -> int:
        """Return the number of the newest version that can be taken up."""
        return self._of.newest_number()

    def newest(self) -> Table:
        """Return the newest version that can be taken up, with the same names."""
        return self.like(self._of.newest())

    def at(self, version: int) -> Table:
        """Return another version that can be taken up, with the same names."""
        return self.like(self._of.at(version))

    def version_id_of(self, version: int) -> str:
        """Return the version id of another version."""
        return self._of.version_id_of(version)

    def like(self, other: Table) -> Table:
        """Return another version of the dataset with the same names."""
        return self if other is self._of else RenamedTable(other, self._names)

    def __reduce__(self) -> tuple[object, ...]:
        return RenamedTable, (self._of, self._names)

    def _reduced(self) -> Reopened:
        return RenamedTable, (self._of, self._names)
