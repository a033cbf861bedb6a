"""Make a dataset of another one's rows: other episodes, columns or facts, over the same files.

A version of a dataset, a selection, a trim and a label are all made so. Files of rows get a second name, or are
referred to where they are on another disk or of another user. Only what differs is written: columns of the episode
table, digests, and fields whose rows change. Rows of no episode stay in the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import __version__
from rlds_cli.base.array_types import IntArray
from rlds_cli.store import derived, digests, layouts, lookups, metadata, own_columns, sealing, sharing
from rlds_cli.store.columns import VIDEOS
from rlds_cli.store.derived import Column, Patched, Tables, WrittenTable
from rlds_cli.store.digests import Digests
from rlds_cli.store.lookups import EpisodeRecords
from rlds_cli.store.manifest import Counts, Manifest
from rlds_cli.store.new_rows import NewRows
from rlds_cli.store.opening import Store
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.store.paths import ROW_DIGESTS, component
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

EPISODES, DIGESTS, SOURCES, MISSING = "episodes", "digests", "sources", "missing"
_ROWS = ("", f"{ROW_DIGESTS}/")  # directories with a part of each field: its rows, and what they refer to
_TABLES = ("text/", f"{VIDEOS}/")
_SHARED = (metadata.DIRECTORY, SOURCES)


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from the dataset whose rows are shared.

    Attributes
    ----------
    index : int array [episodes], optional
        Numbers of the source's episodes, in the order of the result. All of them without it. A number may occur again
        where ``columns`` say which steps each of them has.
    columns : mapping
        Columns of the episode table that are not the source's, by their path below ``episodes``: arrays, or texts as
        lists.
    own : mapping
        The user's columns that are new or change, by name; None removes one.
    digests : mapping
        Digests of the episodes of fields [episodes, 32], where they are not those of the source's episodes.
    rows : mapping
        Functions that write all rows of a field, where they are not the source's, and what lies beside them if that
        changes, too.
    total : int, optional
        The number of rows, where it is not the source's.
    copies : bool
        Copy files of rows that cannot get a second name, and those that the source refers to. All values of the table
        are written.
    moves : bool
        The source is removed afterwards: its files of rows move.
    looks_up : bool
        The files of the source's episode table may be shared: they are not there for this result alone.
    records : EpisodeRecords, optional
        Logs that hold what the source's episode table says: it is looked up there.
    facts : mapping
        Members of the manifest that change.
    """

    index: IntArray | None = None
    columns: Mapping[str, Column | Patched] = field(default_factory=dict)
    own: Mapping[str, StoredColumn | None] = field(default_factory=dict)
    digests: Mapping[str, Digests | Patched] = field(default_factory=dict)
    rows: Mapping[str, Callable[[NewRows], None]] = field(default_factory=dict)
    total: int | None = None
    copies: bool = False
    moves: bool = False
    looks_up: bool = True
    records: EpisodeRecords | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(
        self,
        source: Store,
        directory: Path,
        *,
        id: str,
        version: int,
        provenance: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the dataset that it makes of another one into an empty directory, but do not publish it.

        Parameters
        ----------
        id, version
            Of the result.
        provenance : sequence of mappings
            The steps that made the result, the last one included.

        Raises
        ------
        DamagedDataset
            The source is damaged.
        DatasetNotFound
            Rows that it refers to are not there.
        """
        source.manifest.check_listing(source.path)  # new digests would hide damage
        known: dict[str, str] = {}
        listed = Manifest.listed(source.path)
        for f in source.manifest.fields:
            if f.name in self.rows:
                self.rows[f.name](NewRows(source, f.name, directory))
            for root in _TABLES if f.name in self.rows else (*_ROWS, *_TABLES):
                if f.name not in self.rows or not (directory / root / f.path).exists():
                    known |= _share(source, directory, root + f.path, listed, self)
        for name in _SHARED:
            known |= _share(source, directory, name, listed, self)
        start, looks_up = self.columns.get("start"), self.looks_up and not self.copies
        parts = start.at if isinstance(start, Patched) else np.zeros(0, np.int64)
        tables = Tables(
            source, directory, self.index, parts=parts, looks_up=looks_up, records=self.records, listed=listed
        )
        table = source.path / EPISODES
        apart = {table / MISSING, *(table / component(name) for name in source.own_columns)}
        names = sorted({*derived.column_names(table, apart), *self.columns})
        own = _write_tables(source, directory, self, tables, names)
        layouts.write_groups(directory)
        written = WrittenTable(directory / EPISODES, names)
        about: dict[str, Any] = {"id": id, "version": version, "provenance": tuple(provenance)}
        m = _described(source, directory, self, columns=written, own=own, about=about)
        sealing.seal(directory, m, known=known | tables.known)
        Manifest.read(directory)  # refuse now what would be refused on opening


def _share(source: Store, target: Path, name: str, listed: Mapping[str, str], change: Change) -> dict[str, str]:
    """Share the arrays below a directory, if there is one; return the recorded digests of their files.

    Rows that cannot get a second name are copied or referred to; what is small is copied.
    """

    def share() -> None:
        if not (source.path / name).is_dir():
            return
        identity = source.files.identity
        if change.moves and name != SOURCES:
            sharing.move_tree(source.path / name, target / name)
        elif change.copies or identity is None or name == SOURCES:
            sharing.share_tree(source.path / name, target / name, within=target)
        else:
            sharing.link_or_refer(source.path, identity, name, target / name)

    source.files.guarded(share)
    return sealing.below(listed, name, name)


# -- the episode table


def _write_tables(
    source: Store, directory: Path, change: Change, tables: Tables, names: Iterable[str]
) -> dict[str, StoredColumn]:
    """Write the episode table, with TED's columns ``names``, and digests of episodes; return the user's columns."""
    for f in source.manifest.fields:
        tables.write(f"{DIGESTS}/{f.path}", change.digests.get(f.name))
    for name in names:
        tables.write(f"{EPISODES}/{name}", change.columns.get(name))
    if not change.own and change.index is None:
        tables.share_file(f"{EPISODES}/zarr.json")
    own = {name: source.own_column(name) for name in source.own_columns if name not in change.own}
    if change.index is not None:
        own = {name: column.take(change.index) for name, column in own.items()}
    apart = {name for name in own if tables.keeps_files and _stays_apart(source, name, own[name])}
    for name in sorted(apart):
        tables.write(f"{EPISODES}/{component(name)}")
        if own[name].missing.any():
            tables.write(f"{EPISODES}/{MISSING}/{component(name)}")
    own |= {name: column for name, column in change.own.items() if column is not None}
    if change.own or change.index is not None:
        own_columns.write_own(directory / EPISODES, own, apart)
    return own


def _stays_apart(source: Store, name: str, column: StoredColumn) -> bool:
    """Return whether a column of the user's own has arrays, which hold its values as they are stored in the result."""
    return own_columns.is_apart(source.path / EPISODES, name) and column.dtype == source.own_column(name).dtype


# -- the manifest


def _described(
    source: Store,
    directory: Path,
    change: Change,
    *,
    columns: WrittenTable,
    own: Mapping[str, StoredColumn],
    about: Mapping[str, Any],
) -> Manifest:
    m = source.manifest
    of = {f.name: f.digest for f in m.fields}
    for f in m.fields:
        if change.index is not None or f.name in change.digests:
            of[f.name] = digests.of_field_pieces(f, lookups.pieces(directory / DIGESTS / f.path))
    fields = tuple(replace(f, digest=of[f.name]) for f in m.fields)
    of_columns = digests.of_columns(columns, own)
    return replace(
        m,
        fields=fields,
        counts=_counts(m.counts, change.total, columns),
        fingerprint=digests.ContentDigests(of, of_columns).fingerprint,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlds_version=__version__,
        stats={} if change.index is not None else m.stats,
        notes=m.reader_notes if change.index is not None else m.notes,
        shared={f.name: "link" for f in fields if f.name not in change.rows},
        episode_columns=digests.described(own),
        **about,
        **change.facts,
    )


def _counts(before: Counts, total: int | None, columns: Mapping[str, Any]) -> Counts:
    length, end = columns["length"], columns["end"]
    terminated, ended = columns.get("num_terminated"), int((end == TERMINATED).sum())
    return Counts(
        rows=before.rows if total is None else total,
        episodes=len(length),
        steps=int(length.sum()),
        transitions=int(columns["num_transitions"].sum()),
        terminated=ended,
        truncated=int((end == TRUNCATED).sum()),
        cut=int((end == CUT).sum()),
        final_observations=int((columns["num_observed"] - length).sum()),
        terminated_inside=0 if terminated is None else int(terminated.sum()) - ended,
    )
