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
from rlds_cli.base.files import trees
from rlds_cli.store import arrays, digests, episode_table, metadata, publishing, sealing, videos
from rlds_cli.store.digests import Digests
from rlds_cli.store.episode_table import StoredColumn
from rlds_cli.store.manifest import Counts, Manifest, StoredField, read
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import component
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, Array, IntArray

EPISODES, DIGESTS, SOURCES, MISSING = "episodes", "digests", "sources", "missing"
_ROWS = ("", f"{digests.ROWS}/")  # directories with a part of each field: its rows, and what they refer to
_TABLES = ("text/", f"{videos.DIRECTORY}/")
_SHARED = (metadata.DIRECTORY, SOURCES)
_SMALL = {EPISODES, DIGESTS, SOURCES}
Column = Array | list[str]


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from the dataset whose rows are shared.

    Attributes
    ----------
    index : int array [episodes], optional
        Numbers of the source's episodes, in the order of the result. All of them without it. A number may occur again
        where ``columns`` say which steps each of them has.
    columns : mapping
        Columns of the episode table by their path below ``episodes``, for the episodes of the result: arrays, or texts
        as lists.
    own : mapping
        The user's columns that are new or change, by name; None removes one.
    digests : mapping
        Digests of the episodes of a field [episodes, 32], where they are not those of the source's episodes.
    rows : mapping
        Functions that write all rows of a field below the directory of the result, where they are not the source's, and
        its tables if these change, too.
    total : int, optional
        The number of rows, where it is not the source's.
    copies : bool
        Copy files of rows that cannot get a second name, and those that the source refers to.
    moves : bool
        The source is removed afterwards: its files of rows move.
    facts : mapping
        Members of the manifest that change.
    """

    index: IntArray | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    own: Mapping[str, StoredColumn | None] = field(default_factory=dict)
    digests: Mapping[str, Digests] = field(default_factory=dict)
    rows: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    total: int | None = None
    copies: bool = False
    moves: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


def write(
    source: Store,
    directory: Path,
    change: Change,
    *,
    id: str,
    version: int,
    provenance: Sequence[Mapping[str, Any]],
) -> None:
    """Write the dataset that a change makes of another one into an empty directory, but do not publish it.

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
    sealing.check_listing(source.path, source.manifest)  # new digests would hide damage
    known: dict[str, str] = {}
    listed = sealing.listed(source.path)
    for f in source.manifest.fields:
        if f.name in change.rows:
            change.rows[f.name](directory)
        for root in _TABLES if f.name in change.rows else (*_ROWS, *_TABLES):
            if f.name not in change.rows or not (directory / root / f.path).exists():
                known |= _share(source, directory, root + f.path, listed, change)
    for name in _SHARED:
        known |= _share(source, directory, name, listed, change)
    own = _own_columns(source, change)
    known |= _write_table(source, directory, change, own, listed)
    known |= _write_digests(source, directory, change, listed)
    arrays.write_groups(directory)
    sealing.seal(directory, _described(source, directory, change, own, id, version, provenance), known=known)
    read(directory)  # refuse now what would be refused on opening


def _share(source: Store, target: Path, name: str, listed: Mapping[str, str], change: Change) -> dict[str, str]:
    """Share the arrays below a directory, if there is one; return the recorded digests of their files.

    Rows that cannot get a second name are copied or referred to; what is small is copied.
    """

    def share() -> None:
        if not (source.path / name).is_dir():
            return
        identity = source.identity
        if change.moves and name.split("/")[0] not in _SMALL:
            publishing.move_tree(source.path / name, target / name)
        elif change.copies or identity is None or name.split("/")[0] in _SMALL:
            publishing.share_tree(source.path / name, target / name, within=target)
        else:
            publishing.link_or_refer(identity, name, target / name)

    source.guarded(share)
    return sealing.below(listed, name, name)


# -- the episode table


def read_table(directory: Path, own: Iterable[str]) -> dict[str, Column]:
    """Read TED's columns below ``episodes`` of a dataset, by path: arrays, and texts as lists; none of the user's."""
    top, found, left = directory / EPISODES, dict[str, Column](), [directory / EPISODES]
    apart = {top / MISSING, *(top / component(name) for name in own)}
    while left:
        for path in sorted(p for p in left.pop().iterdir() if p.is_dir() and p not in apart):
            name = path.relative_to(top).as_posix()
            if arrays.is_array(path):
                found[name] = arrays.read(path)
            elif (path / "offsets").is_dir():
                found[name] = arrays.read_strings(path)
            else:
                left.append(path)
    return found


def taken(column: Column, index: IntArray) -> Column:
    """Return the values of some episodes."""
    return [column[k] for k in index.tolist()] if isinstance(column, list) else np.asarray(column[index])


def _own_columns(source: Store, change: Change) -> dict[str, StoredColumn]:
    """Return the user's columns of the result."""
    same = {name: source.own_column(name) for name in source.own_columns if name not in change.own}
    if change.index is not None:
        same = {name: column.take(change.index) for name, column in same.items()}
    return same | {name: column for name, column in change.own.items() if column is not None}


def _write_table(
    source: Store, directory: Path, change: Change, own: Mapping[str, StoredColumn], listed: Mapping[str, str]
) -> dict[str, str]:
    """Write the episode table, and return the recorded digests of the files that it shares."""
    top, columns, known, apart = directory / EPISODES, dict(change.columns), dict[str, str](), set[str]()
    if change.index is None:
        known = _share(source, directory, EPISODES, listed, change)
        apart = {name for name in own if name not in change.own and episode_table.is_apart(top, name)}
        for name in change.own:
            episode_table.remove_own(top, name)
    else:
        there = read_table(source.path, source.own_columns)
        columns = {name: taken(column, change.index) for name, column in there.items()} | columns
    for name, values in columns.items():
        trees.discard(top / name)  # a link cannot be written
        _write_column(top / name, values)
    if change.own or change.index is not None:
        episode_table.write_own(top, own, apart)
    new = (*columns, *(p for name in change.own for p in (component(name), f"{MISSING}/{component(name)}")))
    new = ("zarr.json", f"{MISSING}/zarr.json", *(f"{name}/" for name in new))
    written = tuple(f"{EPISODES}/{name}" for name in new)
    return {name: digest for name, digest in known.items() if not name.startswith(written)}


def _write_column(path: Path, column: Column) -> None:
    arrays.write_strings(path, column) if isinstance(column, list) else arrays.write(path, column)


def _write_digests(source: Store, directory: Path, change: Change, listed: Mapping[str, str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for f in source.manifest.fields:
        place = f"{DIGESTS}/{f.path}"
        if f.name in change.digests:
            arrays.write(directory / place, change.digests[f.name])
        elif change.index is not None:
            arrays.write(directory / place, source.digests(f.name)[change.index])
        else:
            known |= _share(source, directory, place, listed, change)
    return known


# -- the manifest


def _described(
    source: Store,
    directory: Path,
    change: Change,
    own: Mapping[str, StoredColumn],
    id: str,
    version: int,
    provenance: Sequence[Mapping[str, Any]],
) -> Manifest:
    m = source.manifest
    fields = tuple(replace(f, digest=_digest(f, directory, change)) for f in m.fields)
    columns = read_table(directory, own)
    of_columns = digests.of_columns(columns, own)
    return replace(
        m,
        id=id,
        version=version,
        fields=fields,
        counts=_counts(m.counts, change.total, columns),
        fingerprint=digests.fingerprint({f.name: f.digest for f in fields}, of_columns),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlds_version=__version__,
        stats={} if change.index is not None else m.stats,
        notes=m.reader_notes if change.index is not None else m.notes,
        shared={f.name: "link" for f in fields if f.name not in change.rows},
        provenance=tuple(provenance),
        episode_columns=digests.described(own),
        **change.facts,
    )


def _digest(f: StoredField, directory: Path, change: Change) -> str:
    if change.index is None and f.name not in change.digests:
        return f.digest
    return digests.of_field(f, arrays.read(directory / DIGESTS / f.path))


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
