"""Complete a dataset whose rows are written: arrays, digests, statistics, episode table, manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli import __version__
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.repeated import Repeated
from rlds_cli.base.threads import each
from rlds_cli.store import (
    compression,
    digests,
    layouts,
    lookups,
    own_columns,
    rows,
    sealing,
    sharing,
    statistics,
)
from rlds_cli.store import metadata as data_not_per_row
from rlds_cli.store.build import Built
from rlds_cli.store.columns import VIDEOS, has_row_digests
from rlds_cli.store.digests import FieldHash
from rlds_cli.store.manifest import Counts, Manifest, Stats, StoredField, summarise_sources
from rlds_cli.store.paths import ROW_DIGESTS, assign_paths, component
from rlds_cli.store.sharing import Shared
from rlds_cli.ted import COMPUTED, CUT, TERMINATED, TRUNCATED, VIDEO, Computed, EpisodeTable, Field, Note

if TYPE_CHECKING:
    from rlds_cli.store.videos import Locate

_MOVED_BYTES = 16 << 20  # that are copied at once
_FEW_BYTES = 4 << 20  # of rows: they are read before threads have started

# -- fields


@dataclass(frozen=True, slots=True)
class Description:
    """The part of a manifest that does not follow from the rows."""

    id: str
    encoding: str = "memmap"
    reader: str = ""
    reader_version: int = 0
    reader_source: str = ""
    episodes_by: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    spaces: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    provenance: tuple[Mapping[str, Any], ...] = ()
    account: tuple[Mapping[str, Any], ...] = ()  # the fate of the archive
    sources: tuple[Mapping[str, Any], ...] = ()  # one per archive file: file, size, sha256, url, revision


@dataclass(frozen=True, slots=True)
class _Finished:
    field: StoredField
    stats: Stats | None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Linked:
    """Fields that share the files of a dataset with the same episodes, see `joining.JoinedMember.link`.

    Attributes
    ----------
    start : int array [episodes]
        The first row of each episode, among ``rows``. There are rows of no episode.
    known : mapping
        Digests of files that the other dataset recorded.
    computed : mapping
        Columns of the episode table that follow from these fields.
    """

    fields: tuple[StoredField, ...]
    start: IntArray
    rows: int
    known: Mapping[str, str]
    computed: Mapping[str, Array]

    def rows_of(self, directory: Path, table: EpisodeTable, names: Collection[str]) -> dict[str, Array]:
        """Return those of some fields that are linked, as rows that lie end to end."""
        rows = np.repeat(self.start - table.start, table.length + 1)
        places = rows + np.arange(len(rows))
        return {f.name: layouts.read(directory / f.path)[places] for f in self.fields if f.name in names}


def finish(
    built: Built,
    about: Description,
    *,
    metadata: Iterable[tuple[str, Array | str]] = (),
    shared: Mapping[str, Shared] = {},
    linked: Linked | None = None,
    locate: Locate | None = None,
    threads: int = 2,
) -> Manifest:
    """Complete the dataset in ``built.directory`` and return its manifest, which is written last.

    ``shared`` maps the names of fields to another dataset's fields with the same rows. Their files are linked, or
    copied if they cannot be linked. ``linked`` are fields whose rows lie elsewhere: the rows of all other fields, which
    are not compressed then, go to the same places. ``locate`` finds the videos that rows refer to.
    """
    table = built.episodes
    finished = _finish_fields(built, about.encoding, shared, locate, threads)
    fields = tuple(x.field for x in finished)
    written = replace(
        FinishedContent(fields, table, table.start, built.end.rows),
        computed=dict(_computed(built.directory, {f.name: f.path for f in fields}, table, linked)),
        stats={x.field.name: asdict(x.stats) for x in finished if x.stats},
        notes=tuple(asdict(n) for n in Note.merged(built.notes)),
        shared={x.field.name: x.how for x in finished if x.how},
        known=_known(shared, finished) if shared else {},
    )
    content = _beside(built, written, linked) if linked else written
    return complete(built.directory, about, content, metadata=metadata, threads=threads)


def _beside(built: Built, c: FinishedContent, linked: Linked) -> FinishedContent:
    """Move the rows of all fields to where those of the linked ones are."""
    first = c.start
    for f in c.fields:
        frames = f.kind == "frames" and f.codec != VIDEO
        _spread(built.directory / f.path / ("offsets" if frames else ""), first, linked)
        if has_row_digests(f):
            _spread(built.directory / ROW_DIGESTS / f.path, first, linked)
    return replace(
        c,
        fields=tuple(sorted((*c.fields, *linked.fields), key=lambda f: f.name)),
        start=linked.start,
        rows=linked.rows,
        shared={**c.shared, **dict.fromkeys((f.name for f in linked.fields), "link")},
        known={**c.known, **linked.known},
    )


def _spread(directory: Path, first: IntArray, to: Linked) -> None:
    """Move rows of an array that lie end to end: an episode's from row ``first`` on to its place, with gaps between.

    Where the last row of an episode is a step of another one, the step is written: last, since it is the first row that
    is written of that one.
    """
    old = layouts.read(directory)
    shape, dtype = (to.rows, *old.shape[1:]), old.dtype
    file, width = arrays.data_file(directory, old.ndim), arrays.row_bytes(shape, dtype)
    begins = np.flatnonzero(np.diff(to.start - first, prepend=-1))  # of runs of episodes that stay end to end
    runs = list(zip(begins.tolist(), [*begins[1:].tolist(), None], strict=True))
    if width:
        safe_files.make(file.parent)
        with (moved := file.with_name("moved")).open("wb") as f:
            f.truncate(shape[0] * width)
            for k, then in sorted(runs, key=lambda run: int(to.start[run[0]])):
                row, at, step = int(first[k]), int(to.start[k]), max(1, _MOVED_BYTES // width)
                stop = len(old) if then is None else int(first[then])
                for a in range(row, stop, step):
                    arrays.write_at(f.fileno(), (at + a - row) * width, old[a : min(a + step, stop)])
        moved.replace(file)
    arrays.finish(directory, shape, dtype)


@dataclass(frozen=True, slots=True)
class FinishedContent:
    """What is in a dataset whose arrays and digests of fields are written.

    Attributes
    ----------
    start : int array [episodes]
        First row of each episode of ``table``, among ``rows``.
    computed : mapping
        Columns of the episode table that follow from rows: returns, and numbers of ended steps.
    stats, notes, shared
        Those of the manifest.
    known : mapping
        Digests of files that another dataset recorded.
    """

    fields: tuple[StoredField, ...]
    table: EpisodeTable
    start: IntArray
    rows: int
    computed: Mapping[str, Array] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)


def complete(
    directory: Path,
    about: Description,
    c: FinishedContent,
    *,
    metadata: Iterable[tuple[str, Array | str]] = (),
    threads: int = 2,
) -> Manifest:
    """Write the rest of a dataset: episode table, sources, metadata, groups, list of digests, manifest."""
    c.table.check_subtasks()
    table, of_user = c.table, own_columns.all_typed(c.table.extra)
    _write_episodes(directory / "episodes", c)
    of_episodes = {f.name: layouts.read(directory / "digests" / f.path) for f in c.fields}
    arrays.write(directory / "episodes" / "id", digests.ids(table, of_episodes))
    own_columns.write_own(directory / "episodes", of_user)
    if about.sources:
        arrays.write_strings(
            directory / "sources", [*map(json.JSONEncoder(sort_keys=True).encode, map(dict, about.sources))]
        )
    manifest = Manifest(
        format=Manifest.FORMAT,
        id=about.id,
        encoding=about.encoding,
        fields=c.fields,
        counts=_counts(table, c.rows, c.computed.get("num_terminated")),
        fingerprint=digests.ContentDigests({f.name: f.digest for f in c.fields}, digests.of_table(table)).fingerprint,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlds_version=__version__,
        reader=about.reader,
        reader_version=about.reader_version,
        reader_source=about.reader_source,
        episodes_by=about.episodes_by,
        facts=dict(about.facts),
        spaces=dict(about.spaces),
        env=dict(about.env),
        stats=c.stats,
        archive=summarise_sources(about.sources),
        options=dict(about.options),
        provenance=about.provenance,
        metadata=tuple(data_not_per_row.write(directory, metadata)),
        notes=c.notes,
        account=about.account,
        shared=c.shared,
        episode_columns=digests.described(of_user),
    )
    layouts.write_groups(directory)
    sealed = sealing.seal(directory, manifest, known=c.known, threads=threads)
    Manifest.read(directory)  # do not publish a manifest that would be refused on opening
    return sealed


def _finish_fields(
    built: Built, encoding: str, shared: Mapping[str, Shared], locate: Locate | None, threads: int
) -> list[_Finished]:
    """Complete the arrays of all fields, sorted by name.

    Threads read the blocks of each field, while the system already writes the rows to the disk; there are none where
    little was written.
    """
    files = [file for f in built.schema for file in rows.files(built.directory, f, built.paths[f.name]).values()]
    size = sum(file.stat().st_size for file in files if file.exists())  # an array without bytes has no file
    if size < _FEW_BYTES and all(f.codec != VIDEO for f in built.schema):
        found = [_finish_field(built, f, encoding, locate, None) for f in built.schema]
        each(lambda s: found.append(_share(built.directory, s)), shared.values(), threads)
        return sorted(found, key=lambda x: x.field.name)
    with (
        ThreadPoolExecutor(1) as disk,
        ThreadPoolExecutor(max(1, threads)) as pool,
        ThreadPoolExecutor(max(1, threads)) as blocks,
    ):
        synced = disk.submit(_sync, files if encoding == "memmap" else ())
        tasks = [pool.submit(_finish_field, built, f, encoding, locate, blocks) for f in built.schema]
        tasks += [pool.submit(_share, built.directory, s) for s in shared.values()]
        finished = sorted((task.result() for task in tasks), key=lambda x: x.field.name)
        synced.result()
    return finished


def _sync(files: Iterable[Path]) -> None:
    """Start writing rows to the disk, so that publishing has less to wait for."""
    for file in files:
        with suppress(FileNotFoundError), file.open("rb") as f:
            os.fsync(f.fileno())


def _finish_field(built: Built, f: Field, encoding: str, locate: Locate | None, blocks: Executor | None) -> _Finished:
    path, total = built.paths[f.name], built.end.rows
    directory = built.directory / path
    count = digests.counted(f, built.episodes.length, built.episodes.num_observed)
    start, of_rows, stats = built.episodes.start, None, None
    if f.codec == VIDEO:
        assert locate is not None
        places = layouts.finish(directory, (total, 2), "int32")
        extents = [locate(f.name, key) for key in built.end.strings.get(f.name, [])]
        from rlds_cli.store import videos  # few datasets have some

        files = videos.write(built.directory / VIDEOS / path, extents)
        of_episodes = FieldHash(f, videos=files).episodes(places, start, count)
    elif f.kind == "frames":
        of_rows = _finish_frames(directory, total, built.end.frame_bytes.get(f.name, 0))
        of_episodes = digests.of_episodes(of_rows, start, count)
    elif f.kind == "text":
        strings = built.end.strings.get(f.name, [])
        codes = layouts.finish(directory, (total,), "int32")
        arrays.write_strings(built.directory / "text" / path, strings)
        of_episodes = FieldHash(f, texts=[*strings, None]).episodes(codes, start, count)
    else:
        values = layouts.finish(directory, (total, *f.shape), f.dtype)
        scanned = statistics.scan(values, f, built.episodes, blocks)
        of_episodes, of_rows, stats = scanned.episodes, scanned.rows, scanned.stats
    if encoding == "zarr":
        compression.compress(directory, f)
    arrays.write(built.directory / "digests" / path, of_episodes)
    if of_rows is not None:
        arrays.write(built.directory / ROW_DIGESTS / path, of_rows)
    return _Finished(stored(f, path, digests.of_field(f, of_episodes)), stats)


def stored(f: Field, path: str, digest: str) -> StoredField:
    """Describe a field for the manifest."""
    return StoredField(f.name, path, f.dtype, f.shape, f.placement, f.kind, f.codec, digest)


def _finish_frames(directory: Path, total: int, size: int) -> digests.Digests:
    """Complete the arrays of encoded images, and return the digests of rows."""
    if total == 0:
        arrays.write(directory / "offsets", np.zeros((0, 2), np.int64))
    arrays.finish(directory / "bytes", (size,), "uint8")
    arrays.finish(directory / "offsets", (total, 2), "int64")
    arrays.write_group(directory)
    return digests.of_frames(layouts.read(directory / "bytes"), layouts.read(directory / "offsets"))


def _share(directory: Path, s: Shared) -> _Finished:
    f = s.field if s.name == s.field.name else _renamed(s)
    below = [Path(), Path("digests")]  # what a field has, by directories of the dataset
    below += [Path(ROW_DIGESTS)] if has_row_digests(f) else []
    below += [Path("text")] if f.kind == "text" else []
    below += [Path(VIDEOS)] if f.codec == VIDEO else []
    how, *_ = [
        sharing.share_tree(s.dataset / d / s.field.path, directory / d / f.path, within=directory) for d in below
    ]
    return _Finished(f, s.stats, how)


def _known(shared: Mapping[str, Shared], finished: Iterable[_Finished]) -> dict[str, str]:
    """Return the digests that another dataset recorded for its shared files, so that damage since then still shows."""
    lists = {s.dataset: Manifest.listed(s.dataset) for s in shared.values()}
    known: dict[str, str] = {}
    for f in (x.field for x in finished if x.field.name in shared):
        s = shared[f.name]
        for root in ("", "digests/", f"{ROW_DIGESTS}/", "text/", f"{VIDEOS}/"):
            known |= sealing.below(lists[s.dataset], root + s.field.path, root + f.path)
    return known


def _renamed(s: Shared) -> StoredField:
    """Return the field under its new name, with the digest that follows from the name."""
    f = s.field
    digest = digests.of_field(f, lookups.read(s.dataset / "digests" / f.path), s.name)
    return replace(f, name=s.name, path=assign_paths([s.name])[s.name], digest=digest)


# -- the episode table


def _write_episodes(directory: Path, c: FinishedContent) -> None:
    """Write the columns of the episode table but ids and the user's own."""
    table = c.table
    written: list[tuple[str, Array | list[str | None]]] = [*digests.content_columns(table), *c.computed.items()]
    written += [("start", c.start), ("num_transitions", table.num_transitions)]
    written += [("source", table.source), ("row", table.row)]
    for name, values in written:
        path = directory.joinpath(*(component(c) for c in name.split("/", 1)))  # names of splits may hold a slash
        if isinstance(values, np.ndarray):
            arrays.write(path, values)
        else:
            arrays.write_strings(path, [v or "" for v in values])
    if not isinstance(table.group, Repeated):
        arrays.write_strings(directory / "group", list(table.group))
    if table.splits:
        arrays.write_group(directory / "split")


def _computed(
    dataset: Path, paths: Mapping[str, str], table: EpisodeTable, linked: Linked | None
) -> Iterator[tuple[str, Array]]:
    """Yield the columns that follow from the rows, see `ted.COMPUTED`."""
    if linked is not None:
        yield from linked.computed.items()
    for name, c in COMPUTED.items():
        if not any(of in paths for of in c.fields):
            continue  # all of its fields are linked, or there are none
        found = {of: compression.open_column(dataset / paths[of]) for of in c.fields if of in paths}
        found |= {} if linked is None else linked.rows_of(dataset, table, [of for of in c.fields if of not in found])
        columns = [found[of] for of in c.fields if of in found]
        if len(columns) == len(c.fields) and all(v.ndim == 1 and v.dtype.kind in "fiub" for v in columns):
            yield name, _of_episodes(c, columns, table.start)


def _of_episodes(c: Computed, columns: Sequence[Array], start: Array) -> Array:
    """Compute a column of the episode table block by block; last rows are not read."""
    rows = len(columns[0])
    found, final = np.full(len(start), c.nothing, c.dtype), np.append(start[1:], rows) - 1
    for a in range(0, rows, statistics.BLOCK_ROWS):
        of_steps = c.of_steps(*(v[a : a + statistics.BLOCK_ROWS] for v in columns))
        block = np.array(of_steps, c.dtype)
        first = int(np.searchsorted(start, a, "right")) - 1
        end = int(np.searchsorted(start, a + len(block)))
        last = final[first:end]
        block[last[last < a + len(block)] - a] = c.nothing
        with np.errstate(over="ignore", invalid="ignore"):  # infinities of both signs are data
            new = c.reduce.reduceat(block, np.maximum(start[first:end] - a, 0))
            found[first:end] = c.reduce(found[first:end], new)
    return found


def _counts(table: EpisodeTable, total: int, terminated: Array | None) -> Counts:
    ended = int((table.end == TERMINATED).sum())
    return Counts(
        rows=total,
        episodes=len(table),
        steps=int(table.length.sum()),
        transitions=int(table.num_transitions.sum()),
        terminated=ended,
        truncated=int((table.end == TRUNCATED).sum()),
        cut=int((table.end == CUT).sum()),
        final_observations=int(table.observed.sum()),
        terminated_inside=0 if terminated is None else int(terminated.sum()) - ended,
    )
