"""Join datasets to one that shares their files of rows: each becomes a segment of the arrays of the result.

::

    rows of the result    0 ... 8 000 | no meaning | 65 536 ... 70 000
    file                  of the first dataset       of the second one

What is small is written anew: the episode table, digests of episodes, tables of texts and videos with the rows that
refer to them, and the first byte of each encoded frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlds_cli.errors import DamagedDataset
from rlds_cli.files import safe as safe_files
from rlds_cli.store import arrays, digests, publishing, sealing, videos
from rlds_cli.store.finish import Content, Description, complete, stored
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import NO_TEXT, stored_row
from rlds_cli.store.videos import Tables
from rlds_cli.ted import VIDEO, Array, EpisodeTable, Field, IntArray

_BLOCK = 1 << 20  # rows that are written at once
_COMPUTED = ("total_reward", "num_done", "num_terminated")


@dataclass(frozen=True, slots=True)
class Member:
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
    """

    store: Store
    index: IntArray
    table: EpisodeTable
    refer: bool = True


@dataclass(frozen=True, slots=True)
class _Source:
    """A dataset whose rows are those of the result from ``base`` on."""

    store: Store
    base: int
    listed: Mapping[str, str]
    refer: bool

    @property
    def rows(self) -> int:
        return self.store.manifest.counts.rows

    @property
    def stop(self) -> int:
        return self.base + self.rows


def join(members: Sequence[Member], fields: Sequence[Field], directory: Path, about: Description) -> Manifest:
    """Write the dataset of the episodes of several into an empty directory, but do not publish it.

    Raises
    ------
    DamagedDataset
        A dataset is damaged.
    """
    members = [m for m in members if len(m.index)] or list(members[:1])
    sources = _sources(members)
    of = [sources[m.store.version_id] for m in members]
    result = _Result(directory, list(sources.values()), assign_paths([f.name for f in fields]))
    finished = []
    for f in fields:
        result.write(f)
        of_episodes = np.concatenate([m.store.digests(f.name)[m.index] for m in members])
        arrays.write(directory / "digests" / result.paths[f.name], of_episodes)
        finished.append(stored(f, result.paths[f.name], digests.of_field(f, of_episodes)))
    columns = [m.store.episodes for m in members]
    computed = {
        name: np.concatenate([e[name][m.index] for e, m in zip(columns, members, strict=True)])
        for name in _COMPUTED
        if all(name in e for e in columns) and _needs(name) <= {f.name for f in fields}
    }
    start = np.concatenate([e["start"][m.index] + s.base for e, m, s in zip(columns, members, of, strict=True)])
    table = EpisodeTable.concat([m.table for m in members])
    content = Content(tuple(finished), table, start, result.rows, computed, known=result.known)
    return complete(directory, about, content)


def _needs(column: str) -> set[str]:
    """Return the fields that a computed column of the episode table follows from."""
    return {"next/reward"} if column == "total_reward" else {"next/terminated", "next/truncated"}


def _sources(members: Sequence[Member]) -> dict[str, _Source]:
    """Return the datasets of the members by their version ids, each once, with the rows that they take."""
    found: dict[str, _Source] = {}
    base = 0
    for m in members:
        if m.store.version_id not in found:
            sealing.check_listing(m.store.path, m.store.manifest)  # new digests would hide damage
            source = _Source(m.store, base, sealing.listed(m.store.path), m.refer)
            found[m.store.version_id] = source
            base = _behind(source.stop)
    return found


def _behind(stop: int) -> int:
    """Return where the next segment begins: always behind a row that means nothing, in which frames may end."""
    return -(-(stop + 1) // arrays.SEGMENT_ROWS) * arrays.SEGMENT_ROWS


class _Result:
    """Writes the arrays of fields. ``known`` are the digests of linked files by their new names."""

    def __init__(self, directory: Path, sources: Sequence[_Source], paths: Mapping[str, str]) -> None:
        self._directory, self._sources, self.paths = directory, sources, paths
        self.rows = sources[-1].stop
        self.known: dict[str, str] = {}

    def write(self, f: Field) -> None:
        """Link the files of a field, and write its tables."""
        path, bases = self.paths[f.name], [s.base for s in self._sources]
        of = [s.store.path_of(f.name) for s in self._sources]
        dtype, shape = stored_row(f)
        if f.codec == VIDEO:
            self._write_videos(f.name, path, of)
        elif f.kind == "frames":
            starts = self._link(f"{path}/bytes", [f"{p}/bytes" for p in of], None, np.dtype(np.uint8), ())
            self._write_offsets(f.name, path, starts)
        elif f.kind == "text":
            self._write_texts(f.name, path)
        else:
            self._link(path, of, bases, dtype, shape)
        if digests.has_row_digests(f):
            below = [f"{digests.ROWS}/{p}" for p in of]
            self._link(f"{digests.ROWS}/{path}", below, bases, np.dtype(np.uint8), (32,))

    def _link(
        self,
        to: str,
        of: Sequence[str],
        bases: Sequence[int] | None,
        dtype: np.dtype[np.generic],
        shape: tuple[int, ...],
    ) -> list[int]:
        """Make one array of those below ``of``, which begin at ``bases``, or one behind the other; return where."""
        target, starts, after, segments = (
            self._directory / to,
            list[int](),
            0,
            list[tuple[_Source, str, int, int]](),  # of which array, from which row on, how many
        )
        for k, (source, path) in enumerate(zip(self._sources, of, strict=True)):
            found = arrays.layout(source.store.path / path)
            starts.append(after if bases is None else bases[k])
            rows = found.shape[0] if bases is None else source.rows
            if found.compressed or (found.shape, found.dtype) != ((rows, *shape), dtype):
                said = f"{found.dtype} {list(found.shape)}"
                raise DamagedDataset(f"{path} of {source.store.manifest.id} is {said}.", hint="rlds verify ID")
            names = [f"{path}/{j}" if found.segmented else path for j in range(len(found.segments))]
            segments += [(source, n, starts[-1] + s.start, s.rows) for n, s in zip(names, found.segments, strict=True)]
            after = _behind(starts[-1] + rows)
        whole = len(segments) == 1 and not segments[0][2]
        for k, (source, name, *_) in enumerate(segments):
            self._share(source, name, to if whole else f"{to}/{k}")
        if not whole:
            total = segments[-1][2] + segments[-1][3]
            arrays.write_segmented(target, (total, *shape), dtype, [at for _, _, at, _ in segments])
        return starts

    def _share(self, source: _Source, name: str, to: str) -> None:
        """Share an array of plain rows of a dataset."""
        target = self._directory / to

        def share() -> None:
            if source.refer:
                publishing.link_or_refer(source.store.identity, name, target)
            else:
                publishing.share_tree(source.store.path / name, target, within=self._directory)

        source.store.guarded(share)
        self.known |= sealing.below(source.listed, name, to)

    def _write_offsets(self, name: str, path: str, starts: Sequence[int]) -> None:
        """Write the first bytes of frames, the bytes of each dataset beginning at ``starts``."""

        def pieces() -> Iterator[tuple[int, Array]]:
            for s, first in zip(self._sources, starts, strict=True):
                offsets = s.store.frame_offsets(name)
                arrays.check_offsets(s.store.directory(name) / "offsets", offsets, s.store.frame_bytes(name))
                for a in range(0, len(offsets), _BLOCK):
                    yield s.base + a, offsets[a : a + _BLOCK] + first

        self._write(f"{path}/offsets", np.dtype(np.int64), (self.rows + 1,), pieces())
        arrays.write_group(self._directory / path)

    def _write_texts(self, name: str, path: str) -> None:
        """Write the codes of texts, and the table of all texts."""
        known: dict[str, int] = {}

        def pieces() -> Iterator[tuple[int, Array]]:
            for s in self._sources:
                texts = s.store.strings(name)[:-1].tolist()
                new = np.array([*(known.setdefault(t, len(known)) for t in texts), NO_TEXT], np.int32)
                yield from _renumbered(s, name, new, len(texts))

        self._write(path, np.dtype(np.int32), (self.rows,), pieces())
        arrays.write_strings(self._directory / "text" / path, list(known))

    def _write_videos(self, name: str, path: str, of: Sequence[str]) -> None:
        """Write the numbers of videos and frames, and the tables of all videos."""
        films = f"{videos.DIRECTORY}/{path}"
        below = [f"{videos.DIRECTORY}/{p}/bytes" for p in of]
        starts = self._link(f"{films}/bytes", below, None, np.dtype(np.uint8), ())
        tables = [s.store.videos(name).tables() for s in self._sources]
        Tables(
            np.concatenate([t.spans + first for t, first in zip(tables, starts, strict=True)]),
            [p for t in tables for p in t.packets],
            [x for t in tables for x in t.tracks],
            np.concatenate([t.files for t in tables]),
        ).write(self._directory / films)

        def pieces() -> Iterator[tuple[int, Array]]:
            before = 0
            for s, t in zip(self._sources, tables, strict=True):
                new = np.append(np.arange(before, before + len(t.tracks)), -1).astype(np.int32)
                yield from _renumbered(s, name, new, len(t.tracks))
                before += len(t.tracks)

        self._write(path, np.dtype(np.int32), (self.rows, 2), pieces())

    def _write(
        self, path: str, dtype: npt.DTypeLike, shape: tuple[int, ...], pieces: Iterator[tuple[int, Array]]
    ) -> None:
        """Write an array of ``pieces``: (first row, rows). Between two, the last row is repeated."""
        directory, row = self._directory / path, 0
        file, width = arrays.data_file(directory, len(shape)), arrays.row_bytes(shape, dtype)
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(safe_files.open_own(file, os.O_WRONLY | os.O_CREAT), "wb") as f:
            last: Array = np.zeros((1, *shape[1:]), dtype)
            for first, values in pieces:
                if first > row:
                    arrays.write_at(f.fileno(), row * width, np.repeat(last, first - row, 0))
                arrays.write_at(f.fileno(), first * width, arrays.little_endian(values))
                row, last = first + len(values), values[-1:] if len(values) else last
        arrays.finish(directory, shape, dtype)


def _renumbered(source: _Source, name: str, new: Array, count: int) -> Iterator[tuple[int, Array]]:
    """Yield the rows of a field that are, or begin with, a number below ``count`` or -1, with ``new`` numbers."""
    rows = source.store.rows(name)
    for a in range(0, len(rows), _BLOCK):
        values = np.array(rows[a : a + _BLOCK])
        numbers = values.reshape(len(values), -1)[:, 0]
        if len(numbers) and not -1 <= numbers.min() <= numbers.max() < count:
            raise DamagedDataset(
                f"{name} of {source.store.manifest.id} has a number beyond {count:,}.", hint="rlds verify ID"
            )
        numbers[:] = new[numbers]
        yield source.base + a, values
