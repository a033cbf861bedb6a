"""Join datasets to one that shares their files of rows: each becomes a segment of the arrays of the result.

::

    rows of the result    0 ... 8 000 | no meaning | 65 536 ... 70 000
    file                  of the first dataset       of the second one

A field whose dtype differs in the datasets is written anew, in a dtype that holds the values of all. So is what is
small: the episode table, digests of episodes, tables of texts and videos with the rows that refer to them, and the
first byte of each encoded frame. A dataset without ``task_at`` gets the rows of one with it: the text of each episode.

A growing dataset has its rows in several files, of which those are shared that hold rows of its episodes. Its writer
continues in new files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays, disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import digests, layouts, sealing, sharing
from rlds_cli.store.columns import VIDEOS, Column, has_row_digests, stored_row
from rlds_cli.store.finishing import Description, FinishedContent, Linked, complete, stored
from rlds_cli.store.manifest import Manifest, StoredField
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import ROW_DIGESTS, assign_paths
from rlds_cli.store.rows import NO_TEXT
from rlds_cli.store.table import Run, arrays_of
from rlds_cli.store.videos import Tables
from rlds_cli.ted import COMPUTED, TASK, EpisodeTable, Field

_BLOCK = 1 << 20  # rows that are written at once
_COPIED = 4 << 20  # bytes that are copied at once
_GAP = 1 << 8  # rows of no episode that are written, too


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """Episodes of a dataset of plain rows that go into another one.

    Attributes
    ----------
    store : Store
    index : int array [episodes]
        Their numbers in the store.
    table : EpisodeTable
        What the result says of them.
    refer : bool
        Refer to files that cannot be linked; else copy them.
    copies : bool
        Copy files of a growing dataset that cannot be linked, which are not referred to: its writer frees them.
    """

    store: Store
    index: IntArray
    table: EpisodeTable
    refer: bool = True
    copies: bool = False

    def link(self, fields: Mapping[str, Field], directory: Path) -> Linked:
        """Share fields with another dataset, all of whose episodes are these.

        Parameters
        ----------
        fields : mapping
            The fields of the result, by their names in this dataset.
        directory : Path
            Of the result, which is written.

        Raises
        ------
        NoPermission, DamagedDataset
            As `join`.
        """
        store, sources = self.store, list(_sources([self]).values())
        new = {name: assign_paths([name])[name] for name in {f.name for f in fields.values()} - fields.keys()}
        paths = {f.name: new.get(f.name) or store.table.path_of(f.name) for f in fields.values()}
        result = _Result(directory, sources, paths)
        finished = tuple(result.finish(f, old, [self]) for old, f in fields.items())
        e, unchanged = store.episodes, {old for old, f in fields.items() if old == f.name}
        kept = [name for name, c in COMPUTED.items() if name in e and unchanged.issuperset(c.fields)]
        computed = {name: e[name][self.index] for name in kept}
        start = _moved(e["start"][self.index], sources[0].placed)
        return Linked(fields=finished, start=start, rows=result.rows, known=result.known, computed=computed)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where rows of arrays go: rows [first, stop) of a dataset to rows ``at`` and following of the result."""

    first: int
    stop: int
    at: int

    @property
    def end(self) -> int:
        return self.at + self.stop - self.first


@dataclass(frozen=True, slots=True)
class _Source:
    """A dataset whose rows are shared."""

    store: Store
    placed: tuple[_Placed, ...]
    listed: Mapping[str, str]
    refer: bool
    copies: bool

    def blocks(self, gap: int = _GAP) -> Iterator[tuple[int, int, int]]:
        """Yield rows [first, stop) of episodes, a few at a time, and the row of the result to which they go.

        Up to ``gap`` rows of no episode are among them between two episodes.
        """
        start, count = self.store.episodes["start"], self.store.episodes["length"] + 1
        order = np.argsort(start, kind="stable")
        start, behind = start[order], np.maximum.accumulate((start + count)[order])
        apart = np.flatnonzero(start[1:] > behind[:-1] + gap) + 1
        at = _moved(start, self.placed)
        for a, b in pairwise([0, *apart.tolist(), len(start)] if len(start) else []):
            for row in range(int(start[a]), int(behind[b - 1]), _BLOCK):
                yield row, min(row + _BLOCK, int(behind[b - 1])), int(at[a]) + row - int(start[a])


def join(members: Sequence[JoinedMember], fields: Sequence[Field], directory: Path, about: Description) -> Manifest:
    """Write the dataset of the episodes of several into an empty directory, but do not publish it.

    Raises
    ------
    NoPermission
        A file of a growing dataset cannot get a second name, and ``copies`` is not set.
    DamagedDataset
        A dataset is damaged.
    """
    members = [m for m in members if len(m.index)] or list(members[:1])
    sources = _sources(members)
    of = [sources[m.store.version_id] for m in members]
    result = _Result(directory, list(sources.values()), assign_paths([f.name for f in fields]))
    finished = tuple(result.finish(f, f.name, members) for f in fields)
    columns = [m.store.episodes for m in members]
    computed = {
        name: np.concatenate([e[name][m.index] for e, m in zip(columns, members, strict=True)])
        for name, c in COMPUTED.items()
        if all(name in e for e in columns) and {f.name for f in fields}.issuperset(c.fields)
    }
    start = np.concatenate(
        [_moved(e["start"][m.index], s.placed) for e, m, s in zip(columns, members, of, strict=True)]
    )
    table = EpisodeTable.concat([m.table for m in members])
    content = FinishedContent(finished, table, start, result.rows, computed, known=result.known)
    return complete(directory, about, content)


def _sources(members: Sequence[JoinedMember]) -> dict[str, _Source]:
    """Return the datasets of the members by their version ids, each once, with the rows that they take."""
    found: dict[str, _Source] = {}
    base = 0
    for m in members:
        if m.store.version_id not in found:
            m.store.table.check_recorded()  # new digests would hide damage
            placed = _place(m.store.table.row_runs(), base)
            found[m.store.version_id] = _Source(m.store, placed, Manifest.listed(m.store.path), m.refer, m.copies)
            base = _behind(placed[-1].end)
    return found


def _place(runs: Sequence[Run], base: int) -> tuple[_Placed, ...]:
    """Put runs of rows behind each other, the first file at row ``base``."""
    found: list[_Placed] = []
    for run in runs:
        found.append(_Placed(run.first, run.stop, base + run.lead))
        base = _behind(found[-1].end)
    return tuple(found)


def _moved(rows: IntArray, placed: Sequence[_Placed]) -> IntArray:
    """Return where rows of a dataset go, or ends of ranges of them [n]. Those that go nowhere go behind the others."""
    first, stop, at = (np.array([getattr(p, name) for p in placed], np.int64) for name in ("first", "stop", "at"))
    k = np.maximum(np.searchsorted(first, rows, "right") - 1, 0)
    return np.asarray(at[k] + np.clip(rows - first[k], 0, stop[k] - first[k]))


def _behind(stop: int) -> int:
    """Return where the next segment begins: always behind a row that means nothing, in which frames may end."""
    return -(-(stop + 1) // layouts.SEGMENT_ROWS) * layouts.SEGMENT_ROWS


class _Result:
    """Writes the arrays of fields. ``known`` are the digests of linked files by their new names."""

    def __init__(self, directory: Path, sources: Sequence[_Source], paths: Mapping[str, str]) -> None:
        self._directory, self._sources, self.paths = directory, sources, paths
        self.rows = sources[-1].placed[-1].end
        self.known: dict[str, str] = {}

    def finish(self, f: Field, name: str, members: Sequence[JoinedMember]) -> StoredField:
        """Write a field, which is called ``name`` in the datasets, and its digests of the members' episodes."""
        if any(s.store.rows(name).dtype != stored_row(f)[0] for s in self._sources if f.kind == "array"):
            return self._converted(f, name, members)
        self._write_field(f, name)
        of_episodes = np.concatenate([_digests(m, name) for m in members])
        arrays.write(self._directory / "digests" / self.paths[f.name], of_episodes)
        return stored(f, self.paths[f.name], digests.of_field(f, of_episodes))

    def _converted(self, f: Field, name: str, members: Sequence[JoinedMember]) -> StoredField:
        """Write all rows of a field in its dtype, which is another one in some of the datasets, and new digests."""
        path, (dtype, shape) = self.paths[f.name], stored_row(f)

        def pieces() -> Iterator[tuple[int, Array]]:
            for s in self._sources:
                for first, stop, to in s.blocks():
                    yield to, s.store.rows(name)[first:stop].astype(dtype)

        self._write(path, dtype, (self.rows, *shape), pieces())
        rows = layouts.read(self._directory / path)
        if has_row_digests(f):
            blocks = (
                (to, digests.of_rows(rows[to : to + stop - first]))
                for s in self._sources
                for first, stop, to in s.blocks()
            )
            self._write(f"{ROW_DIGESTS}/{path}", np.dtype(np.uint8), (self.rows, 32), blocks)
            rows = layouts.read(self._directory / ROW_DIGESTS / path)
        placed = {s.store.version_id: s.placed for s in self._sources}
        of_episodes = np.concatenate(
            [
                digests.of_episodes(
                    rows,
                    _moved(m.store.episodes["start"][m.index], placed[m.store.version_id]),
                    digests.counted(f, *(m.store.episodes[n][m.index] for n in ("length", "num_observed"))),
                )
                for m in members
            ]
        )
        arrays.write(self._directory / "digests" / path, of_episodes)
        return stored(f, path, digests.of_field(f, of_episodes))

    def _write_field(self, f: Field, name: str) -> None:
        """Link the files of a field, and write its tables."""
        path = self.paths[f.name]
        if f.kind == "text":
            self._write_texts(name, path)
            return
        of_frames = f.kind == "frames"  # whose rows are numbers of bytes or of videos: other ones then
        columns = (c for c in arrays_of(stored(f, path, "")) if c.part != "rows" or not of_frames)
        linked = {c.part: self._link(c, name) for c in columns}
        if "films" in linked:
            self._write_videos(name, path, linked["films"])
        elif "frames" in linked:
            self._write_offsets(name, path, linked["frames"])

    def _link(self, to: Column, name: str) -> list[tuple[_Placed, ...]]:
        """Make one array of those that the datasets have, and return where the entries of each go.

        Unless it has an entry for each row, they lie one behind the other.
        """
        found, after = list[tuple[_Placed, ...]](), 0
        segments = list[tuple[_Source, str, arrays.Segment, int]]()  # of which array, and from which row on
        for source in self._sources:
            path = source.store.table.column(name, to.part).directory.as_posix()
            runs, segmented = source.store.table.runs(name, to.part), layouts.is_segmented(source.store.path / path)
            placed = source.placed if to.by_row else _place(runs, after)
            parts = [s for run in runs for s in run.segments]
            fits = all((s.shape[1:], s.dtype) == (to.shape, to.dtype) for s in parts)
            if not fits or [(p.first, p.stop) for p in placed] != [(run.first, run.stop) for run in runs]:
                raise DamagedDataset(f"{path} of {source.store.manifest.id} has other rows.", hint="rlds verify ID")
            for run, p in zip(runs, placed, strict=True):
                for k, s in enumerate(run.segments):
                    segments.append((source, f"{path}/{k}" if segmented else path, s, p.at - run.lead + s.start))
            found.append(placed)
            after = _behind(placed[-1].end)
        target, total = to.directory.as_posix(), found[-1][-1].end
        whole = len(segments) == 1 and not segments[0][2].chunk and not segments[0][3]
        for k, (source, path, segment, _) in enumerate(segments):
            self._share(source, path, segment, target if whole else f"{target}/{k}")
        if not whole:
            starts = [at for *_, at in segments]
            layouts.write_segmented(self._directory / target, (total, *to.shape), to.dtype, starts)
        return found

    def _share(self, source: _Source, name: str, segment: arrays.Segment, to: str) -> None:
        """Share an array of plain rows of a dataset, or a segment of one of a growing dataset."""
        target = self._directory / to

        def share() -> None:
            if source.store.table.segment_rows:
                trees.discard(target)
                safe_files.make(target.parent)
                target.mkdir(safe_files.DIRECTORY)
                document = arrays.chunk_document(segment.shape, segment.dtype, segment.chunk)
                safe_files.write_bytes(target / "zarr.json", json.dumps(document).encode())
                if segment.size:
                    file = replace(segment, directory=target, number=0).file
                    if source.copies and not disk.takes_links(target):
                        _copy_rows(segment, file)
                    else:
                        sharing.link_file(segment.file, file)
            elif source.refer and (identity := source.store.files.identity):
                sharing.link_or_refer(source.store.path, identity, name, target)
            else:
                sharing.share_tree(source.store.path / name, target, within=self._directory)

        source.store.files.guarded(share)
        self.known |= sealing.below(source.listed, name, to)

    def _write_offsets(self, name: str, path: str, of_bytes: Sequence[Sequence[_Placed]]) -> None:
        """Write the first bytes of frames, those of each dataset going where ``of_bytes`` says."""

        def pieces() -> Iterator[tuple[int, Array]]:
            for s, placed in zip(self._sources, of_bytes, strict=True):
                frames = s.store.frames(name)
                for first, stop, to in s.blocks():
                    offsets, there = frames.spans_between(first, stop), s.store.table.covered(first, stop)
                    offsets = offsets if there is None else np.where(there[:, None], offsets, 0)
                    yield to, _moved(offsets.reshape(-1), placed).reshape(-1, 2)

        self._write(f"{path}/offsets", np.dtype(np.int64), (self.rows, 2), pieces())
        arrays.write_group(self._directory / path)

    def _write_texts(self, name: str, path: str) -> None:
        """Write the codes of texts, and the table of all texts."""
        known: dict[str, int] = {}

        def pieces() -> Iterator[tuple[int, Array]]:
            for s in self._sources:
                codes, texts = _texts(s.store, name)
                new = np.array([*(known.setdefault(t, len(known)) for t in texts), NO_TEXT], np.int32)
                yield from _renumbered(s, codes, new, len(texts))

        self._write(path, np.dtype(np.int32), (self.rows,), pieces())
        arrays.write_strings(self._directory / "text" / path, list(known) or [""])  # rows of no episode have code 0

    def _write_videos(self, name: str, path: str, of_bytes: Sequence[Sequence[_Placed]]) -> None:
        """Write the numbers of videos and frames, and the tables of all videos."""
        used = [_videos_used(s, name) for s in self._sources]
        tables = [s.store.videos(name).tables(n) for s, n in zip(self._sources, used, strict=True)]
        Tables(
            np.concatenate([_moved(t.spans, placed) for t, placed in zip(tables, of_bytes, strict=True)]),
            [p for t in tables for p in t.packets],
            [x for t in tables for x in t.tracks],
            np.concatenate([t.files for t in tables]),
        ).write(self._directory / VIDEOS / path)

        def pieces() -> Iterator[tuple[int, Array]]:
            before = 0
            for s, numbers in zip(self._sources, used, strict=True):
                count = len(s.store.videos(name))
                new = np.full(count + 1, -1, np.int32)
                new[numbers] = np.arange(before, before + len(numbers))
                yield from _renumbered(s, s.store.rows(name), new, count)
                before += len(numbers)

        self._write(path, np.dtype(np.int32), (self.rows, 2), pieces())

    def _write(
        self, path: str, dtype: npt.DTypeLike, shape: tuple[int, ...], pieces: Iterator[tuple[int, Array]]
    ) -> None:
        """Write an array of ``pieces``: (first row, rows). The file has holes between them."""
        directory = self._directory / path
        file, width = arrays.data_file(directory, len(shape)), arrays.row_bytes(shape, dtype)
        safe_files.make(file.parent)
        with os.fdopen(safe_files.open_own(file, os.O_WRONLY | os.O_CREAT), "wb") as f:
            for first, values in pieces:
                arrays.write_at(f.fileno(), first * width, arrays.little_endian(values))
        arrays.finish(directory, shape, dtype)


def _copy_rows(segment: arrays.Segment, target: Path) -> None:
    """Copy the rows of a segment to a file of the same size, which has a hole where there are none."""
    left = segment.rows * arrays.row_bytes(segment.shape, segment.dtype)
    safe_files.make(target.parent)
    with safe_files.reading(segment.file) as source, target.open("xb") as file:
        while data := source.read(min(left, _COPIED)):
            file.write(data)
            left -= len(data)
        file.truncate(segment.size)


def _videos_used(s: _Source, name: str) -> IntArray:
    """Return the numbers of the videos that rows refer to, in order; of a dataset without writers, of all."""
    count = len(s.store.videos(name))
    if not s.store.table.segment_rows:
        return np.arange(count)
    found, rows = np.zeros(count + 1, bool), s.store.rows(name)
    for first, stop, _ in s.blocks(gap=0):
        found[np.clip(rows[first:stop, 0], -1, count)] = True
    return np.flatnonzero(found[:-1])


class _Texts(NamedTuple):
    """The codes of the rows of a field [rows], and the texts that they stand for."""

    codes: Array
    texts: list[str]


def _texts(store: Store, name: str) -> _Texts:
    """Return the rows of a field of texts; of ``task_at``, which a dataset may lack, the text of each episode."""
    if name in store.fields:
        return _Texts(store.rows(name), store.strings(name)[:-1].tolist())
    codes, number = np.full(store.manifest.counts.rows, NO_TEXT, np.int32), dict[str, int]()
    known = TASK in store.own_columns and store.own_column(TASK).dtype == "str"
    e = store.episodes
    for k in store.table.numbers.tolist() if known else ():
        text, start = store.own_column(TASK).scalar(k), int(e["start"][k])
        if isinstance(text, str):
            codes[start : start + int(e["length"][k])] = number.setdefault(text, len(number))
    return _Texts(codes, list(number))


def _digests(m: JoinedMember, name: str) -> digests.Digests:
    """Return the digests of the episodes of a field [episodes, 32], which the dataset may lack as `_texts` has it."""
    if name in m.store.fields:
        return m.store.digests(name)[m.index]
    codes, texts = _texts(m.store, name)
    start, length = (m.store.episodes[c][m.index] for c in ("start", "length"))
    return digests.of_text_episodes(codes, [*texts, None], start, length)


def _renumbered(source: _Source, rows: Array, new: Array, count: int) -> Iterator[tuple[int, Array]]:
    """Yield the rows of a field that are, or begin with, a number below ``count`` or -1, with ``new`` numbers.

    What is not such a number becomes -1: verification finds it, where it is of an episode.
    """
    for first, stop, to in source.blocks():
        values = np.array(rows[first:stop])
        numbers = values.reshape(len(values), -1)[:, 0]
        numbers[(numbers < 0) | (numbers >= count)] = -1  # rows of no episode may hold anything
        numbers[:] = new[numbers]
        yield to, values
