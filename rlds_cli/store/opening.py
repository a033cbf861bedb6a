"""An open version of a dataset: arrays are mapped on first use; no lock, no write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import DamagedDataset, FrameError
from rlds_cli.store.columns import Part, has_statistics
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.table import Table
from rlds_cli.ted import VIDEO, Field

if TYPE_CHECKING:
    from rlds_cli.store.digests import Digests
    from rlds_cli.store.encoded import EncodedBytes, Frames
    from rlds_cli.store.own_columns import StoredColumn
    from rlds_cli.store.videos import Videos
    from rlds_cli.ted import EpisodeTable


@final
class Store:
    """An open version of a dataset: what its table says, and the rows that its files hold.

    Nothing extends it: other tables say other things, and other files are elsewhere.

    Attributes
    ----------
    table : Table
        What the version says: which episodes, versions, digests and labels. It reads no row.
    files : Files
        Where the bytes are. They know no episode.
    fields : mapping of str to Field
    version : int
        Number of this version.
    version_id : str
        See `Table`.
    address : str
        Where the rows are fetched from, without credentials; empty if they are in files of this disk.
    """

    def __init__(self, table: Table) -> None:
        self.table, self.files = table, table.files
        self.fields: Mapping[str, Field] = table.fields
        self.version, self.version_id, self.address = table.version, table.version_id, table.files.address
        self._arrays = _Arrays(table)
        self._frames: dict[str, Frames] = {}
        self._videos: dict[str, Videos] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Store, (self.table,)

    # -- what the table says

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest; statistics that it lacks are computed when they are asked for."""
        m = self.table.manifest
        if all(f.name in m.stats for f in self.fields.values() if has_statistics(f)):
            return m
        return replace(m, stats=self.stats(None))

    def stats(self, index: IntArray | None) -> Mapping[str, Mapping[str, Any]]:
        """Return statistics over the steps of the episodes ``index``, or of all, computed when they are asked for."""
        from rlds_cli.store.statistics import LazyStats  # most manifests have them

        table = self.table  # and not this object, which refers to the manifest
        return LazyStats.over(self.fields, self._arrays.open, lambda: table.episodes, index)

    @cached_property
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table, without texts and without the user's own, see `own_column`."""
        return self.table.episodes

    def episode_table(self, index: IntArray | None = None) -> EpisodeTable:
        """Return the table of the episodes ``index`` [n], or of all; a copy."""
        return self.table.episode_table(index)

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        return self.table.own_columns

    def own_column(self, name: str) -> StoredColumn:
        """Return an episode column of the user's own; it is read once."""
        return self.table.own_column(name)

    @property
    def sources(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the archive: ``file size sha256``, and ``url revision`` of downloaded ones."""
        return self.table.sources

    def strings(self, name: str) -> Array:
        """Return the string table of a text field: an object array whose last element is None (code -1)."""
        return self.table.strings(name)

    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]; see `store.digests`."""
        return self.table.digests(name)

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint of the dataset, or of the episodes ``index`` of it, in this order. No row is read.

        ``ignored`` are columns of the user's own that do not count.
        """
        return self.table.fingerprint(index, ignored=ignored)

    # -- other versions

    @property
    def path(self) -> Path:
        """The directory with the small files of this version, where it is now."""
        return self.files.path

    @property
    def why_fixed(self) -> str:
        """Why loaders take up no later versions while they read this one; empty if they can."""
        return self.files.why_fixed if self.table.segment_rows else "it does not grow"

    @property
    def newest_version(self) -> int:
        """Number of the newest version that can be taken up."""
        there = self.files.elsewhere
        return self.table.newest_number() if there is None else there.newest_number(self.version)

    def newest(self) -> Store:
        """Return the newest version that can be taken up, which may be this one."""
        there = self.files.elsewhere
        if there is not None:
            return self._shown(there.newest())
        return self._of(self.table.newest())

    def at(self, version: int) -> Store:
        """Return another version that can be taken up, of a growing dataset; raises DatasetNotFound."""
        there = self.files.elsewhere
        if there is not None and version != self.version:
            return self._shown(there.at(version))
        return self._of(self.table.at(version))

    def _shown(self, other: Store | None) -> Store:
        """Return another version as this one is shown; None stands for this one."""
        if other is None:
            return self
        table = self.table.like(other.table)
        return other if table is other.table else Store(table)

    def renamed(self, names: Mapping[str, str]) -> Store:
        """Return the same version with renamed fields; ``names`` are from the name of every field to its new one."""
        from rlds_cli.store.renaming import RenamedTable

        return Store(RenamedTable(self.table, names))

    def _of(self, table: Table) -> Store:
        return self if table is self.table else Store(table)

    # -- rows

    def rows(self, name: str) -> Array:
        """Return the array of a field with an entry for each row: mapped, decoded once, or fetched where it is read.

        Entries are values, codes of texts, frames in videos (video, frame), or the first byte of an image and the one
        behind it; see `columns.Column`.
        """
        return self._arrays.open(name)

    @property
    def slices(self) -> bool:
        """Whether reading a part of `rows` reads no more than that part."""
        return bool(self.address) or self.manifest.encoding == "memmap"

    def texts(self, name: str, codes: Array) -> Array:
        """Return the strings for codes of a text field, None for -1.

        Raises
        ------
        DamagedDataset
            A code is not in the string table.
        """
        texts = self.strings(name)
        if codes.size and not -1 <= codes.min() <= codes.max() < len(texts) - 1:
            raise DamagedDataset(f"{name} has codes beyond its {len(texts) - 1:,} texts.", hint="rlds verify ID")
        found: Array = texts[codes]
        return found

    def media(self, name: str) -> Frames | Videos:
        """Return the images or the videos of a field, which decode the entries of its rows."""
        return self.videos(name) if self.fields[name].codec == VIDEO else self.frames(name)

    def frames(self, name: str) -> Frames:
        """Return the images of a field, each of which is encoded on its own."""
        if name not in self._frames:
            from rlds_cli.store.encoded import Frames

            self._frames[name] = Frames(self.fields[name], self._arrays.open(name), self._encoded(name, "frames"))
        return self._frames[name]

    def videos(self, name: str) -> Videos:
        """Return the videos of a field."""
        if name not in self._videos:
            self._videos[name] = self.files.guarded(lambda: self._open_videos(name))
        return self._videos[name]

    def _open_videos(self, name: str) -> Videos:
        return self.table.films(name, self._encoded(name, "films"))

    def _encoded(self, name: str, part: Part) -> EncodedBytes:
        from rlds_cli.store.encoded import EncodedBytes  # few datasets have some

        return EncodedBytes(self.files, self.table.column(name, part), self._arrays.open(name, part))

    def gather(self, name: str, rows: IntArray) -> Array:
        """Read the values of a field at ``rows`` [n] -> [n, ...]: frames decoded, text as strings or None."""
        f, entries = self.fields[name], self.rows(name)[rows]
        if f.kind == "frames":
            return self.media(name).decoded(f, entries, rows, self.check_absent)
        return self.texts(name, entries) if f.kind == "text" else entries

    def check_absent(self, f: Field, rows: IntArray) -> None:
        """Refuse ``rows`` without a frame, but for last rows of a field that is not placed ``both``: these are fillers.

        Raises
        ------
        FrameError
            One is observed; the message names its episode and its step.
        """
        if not len(rows):
            return
        start, length = self.episodes["start"], self.episodes["length"]
        ascending = np.argsort(start, kind="stable")  # a row that is last of one episode and first of another is a step
        episode = ascending[np.searchsorted(start[ascending], rows, "right") - 1]
        step = rows - start[episode]
        wrong = np.flatnonzero((step < length[episode]) | (f.placement == "both"))
        if len(wrong):
            raise FrameError(
                f"{self.manifest.id}, episode {episode[wrong[0]]:,}: {f.name} has no frame at step {step[wrong[0]]:,}.",
                hint="rlds check ID names such steps; select other episodes, or leave the field out of fields=",
            )


class _Arrays:
    """The arrays of a version, each of which is opened once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._opened: dict[tuple[str, Part], Array] = {}

    def open(self, name: str, part: Part = "rows") -> Array:
        if (name, part) not in self._opened:
            files, of = self._table.files, self._table
            self._opened[name, part] = files.guarded(lambda: files.array(of.column(name, part), of.lease))
        return self._opened[name, part]
