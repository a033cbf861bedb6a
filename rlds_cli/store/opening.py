"""Open a published dataset: one ``zarr.json`` is read, arrays are mapped on first use; no lock, no write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from rlds_cli.errors import DamagedDataset, DatasetNotFound, FrameError, InvalidArgument
from rlds_cli.store import (
    arrays,
    compression,
    digests,
    episode_table,
    files,
    lookups,
    manifest,
    metadata,
    references,
    sealing,
    snapshots,
    statistics,
    versions,
)
from rlds_cli.store.columns import BYTES, FILMS, OFFSETS, Column
from rlds_cli.store.digests import Digests
from rlds_cli.store.episode_table import StoredColumn
from rlds_cli.store.following import Followed, version_removed
from rlds_cli.store.frames import check_frames, decode_frames
from rlds_cli.store.local import Files, identify
from rlds_cli.store.manifest import Manifest, Stats, StoredField
from rlds_cli.store.metadata import Metadata
from rlds_cli.store.paths import component
from rlds_cli.store.rows import stored_row
from rlds_cli.store.snapshots import LocalFile
from rlds_cli.store.statistics import LazyStats
from rlds_cli.store.videos import DIRECTORY, VideoBytes, Videos
from rlds_cli.ted import VIDEO, Array, EncodedFrames, EpisodeTable, Field, IntArray, Kind, Placement

T = TypeVar("T")
NAMES = 1 << 32  # of parts of an episode, see `Store.names_of`


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [first, stop) of an array, as a store numbers them, in files that lie side by side.

    Attributes
    ----------
    lead : int
        Rows of the first file before ``first``.
    segments : tuple of Segment
        The files. Their rows are counted from the first row of the first file.
    """

    first: int
    stop: int
    lead: int = 0
    segments: tuple[arrays.Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with plain rows of a field, from row ``first`` on.

    ``id`` identifies it by whichever name. It is taken from the file, and not from the manifest, which could claim
    anything.
    """

    first: int
    rows: int
    id: str


class Store(Followed):
    """The files of one dataset. ``check=False`` opens a dataset that may be damaged, for inspection.

    The manifest, and that nothing leads out of the directory, are checked in any case; else the sizes of files, and
    when it is read the episode table, too. Where a file shrinks later, while it is mapped, the system ends the process
    that reads what is gone (SIGBUS).

    Attributes
    ----------
    files : Files
        Where the rows and small files are.
    segment_rows : int
        Rows of the segments that a writer adds to, one behind the other; 0 if no writer adds rows to these files.
    pinned_version : int or None
        The number of this version where a record has to name it, since no fingerprint of it is stored.
    dropped : int
        Episodes that are hidden, and in the files all the same.
    keeps : mapping or None
        The rule by which episodes leave, as the manifest says it; None if none does.
    why_fixed : str
        Why loaders take up no later versions while they read this one; empty if they can.
    version_id : str
        The sha256 of the manifest's file: one content in one layout. It is the key of what is derived from rows and
        where they are, such as packed rows, and of what refers to an open dataset. The fingerprint is not: one content
        may have several layouts.
    refers_to : tuple of references.Source
        Versions of other datasets that rows of this one are stored in.
    """

    segment_rows = 0
    pinned_version: int | None = None
    dropped = 0
    keeps: Mapping[str, Any] | None = None
    why_fixed = "it does not grow"
    refers_to: tuple[references.ReferencedVersion, ...] = ()

    _hold: object = None  # what keeps rows from being freed

    def __init__(self, path: Path | Files, *, check: bool = True) -> None:
        self.files = path if isinstance(path, Files) else Files(path, moves=True)
        path, self._checks = self.files.path, check
        self.files.beside("zarr.json")
        self.files.beside("episodes")
        # before the manifest is read: one that replaces it meanwhile is noticed at the next use
        self._identity = identify(path) if (path / "zarr.json").exists() else (0, 0)
        self.manifest: Manifest
        self.version_id: str
        self.manifest, self.version_id = manifest.read_with_version_id(path)
        self.refers_to = references.sources(path)
        self.fields = {f.name: field_of(f) for f in self.manifest.fields}
        self._stored: dict[str, StoredField] = {f.name: f for f in self.manifest.fields}
        self._columns: dict[str, Array] = {}
        self._described: dict[str, Column] = {}
        self._strings: dict[str, Array] = {}
        self._videos: dict[str, Videos] = {}
        self._own_columns: dict[str, StoredColumn] = {}
        self._episode_strings: dict[str, list[str]] = {}
        if any(statistics.has(f) and f.name not in self.manifest.stats for f in self.fields.values()):
            self.manifest = replace(self.manifest, stats=LazyStats(self.fields, self.stats_of))
        if self.files.claimed not in ("", self.manifest.fingerprint):
            raise DamagedDataset(
                f"{self.files.address}: its index and its manifest name different content.",
                hint="rlds verify ID where it was pushed from",
            )
        self._check_sizes()

    @property
    def address(self) -> str:
        """Where the rows are fetched from, without credentials; empty if they are in files of this disk."""
        return self.files.address

    def __reduce__(self) -> tuple[object, ...]:
        return self.files.reopened(self.version_id) or self._reduced()

    def _reduced(self) -> tuple[object, ...]:
        return _reopened, (self.path, self.version_id, self.manifest.version)

    @property
    def numbers(self) -> IntArray:
        """Numbers of all episodes [episodes]: k of ``ds.episode(k)``, in every table, column and digest."""
        return np.arange(len(self.episodes["start"]))

    @property
    def unproved(self) -> str:
        """The name of what was seen where fingerprint and digests are a claim, see `Files.unproved`."""
        self._followed()
        return self.files.unproved

    def names_of(self, index: IntArray) -> IntArray:
        """Return what names the episodes ``index`` [n] in every version of the dataset: no numbers of episodes.

        They ascend in the order in which the episodes were recorded. Each episode has `NAMES` names for its parts, of
        which this is the first.
        """
        return (index + 1) * NAMES

    @property
    def version(self) -> int:
        """Number of this version."""
        return self.manifest.version

    @property
    def newest_version(self) -> int:
        """Number of the newest version that can be taken up: this one, unless the dataset grows."""
        return self.version

    def at(self, version: int) -> Store:
        """Return another version that can be taken up: of a growing dataset.

        Raises
        ------
        DatasetNotFound
            There is none of this number.
        """
        if version != self.version:
            raise DatasetNotFound(f"{self.manifest.id} does not grow: version {version:,} cannot be taken up.")
        return self

    def newest(self) -> Store:
        """Return the newest version that can be taken up, which may be this one."""
        return self

    def beside(self, *parts: str) -> Path:
        """Return the path of a file or directory beside the rows, such as ``metadata/NAME``; it need not exist."""
        self._followed()
        return self.files.beside(*parts)

    def size_of(self, *parts: str) -> int | None:
        """Return the bytes of all files below a directory of the dataset if they are at an address; else None."""
        return self.files.size_of(*parts)

    def path_of(self, name: str) -> str:
        """Return the path of a field below the dataset, with ``/`` between its parts."""
        return self._stored[name].path

    def directory(self, name: str) -> Path:
        """Return the directory of a field."""
        self._followed()
        return self.files.documents(Path(self._stored[name].path))

    def _check_sizes(self) -> None:
        for source in self.refers_to:
            files.check_tree(source.place(self.manifest.id, self.path))
        compressed = self.manifest.encoding == "zarr"
        self.files.open(self.columns, compressed=compressed, check=self._checks)

    def columns(self) -> Iterator[Column]:
        """Yield the arrays of rows, frames and videos."""
        for f in self.fields.values():
            for key in _keys(f):
                yield self.column(key)

    def column(self, key: str) -> Column:
        """Return what this version has of an array: of a field, or of its frames, see `columns.OFFSETS`."""
        if key not in self._described:
            self._described[key] = self._describe(key)
        return self._described[key]

    def _describe(self, key: str) -> Column:
        name, _, part = key.partition("\0")
        f, rows, path = self.fields[name], self.manifest.counts.rows, Path(self._stored[name].path)
        if key.endswith(OFFSETS):
            return Column(key, path / part, np.dtype("int64"), (2,), 0, rows)
        if part:
            directory = path / part if f.codec != VIDEO else DIRECTORY / path / "bytes"
            shape, dtype = arrays.open_document(self.files.documents(directory))
            if len(shape) != 1 or dtype != np.uint8:
                raise DamagedDataset(f"{self.path / directory} is not an array of bytes.", hint="rlds verify ID")
            return Column(key, directory, dtype, (), 0, shape[0])
        dtype, shape = stored_row(f)
        return Column(key, path, dtype, shape, 0, rows)

    def rows(self, name: str) -> Array:
        """Return all rows of an array field, the codes of a text field, or the index of frames in videos.

        Rows are mapped, or decoded once and kept.
        """
        return self._open(name)

    def mapped(self, key: str) -> Array:
        """Return a column as it is mapped: of blocks that are not held, its values are anything."""
        return self.files.mapped(self.column(key), self._hold)

    def place(self, key: str) -> Any:
        """Return where the bytes of a column lie in `Files.blocks`; None for one without bytes, or on this disk."""
        return self.files.place(self.column(key))

    @property
    def blocks(self) -> Any:
        """The files of rows by blocks; None of a dataset on this disk."""
        return self.files.blocks

    @property
    def is_packable(self) -> bool:
        """True if loaders may read its rows from packed ones."""
        return self.manifest.encoding == "memmap"

    def file_of(self, name: str) -> Path | None:
        """Return the one file that has all plain rows of a field; None if they are in several, or compressed."""
        found = arrays.layout(self.directory(name))
        return None if found.compressed or arrays.is_segmented(self.directory(name)) else found.segments[0].file

    def row_files(self, name: str) -> tuple[RowFile, ...]:
        """Return the files of a field's plain rows that never change, in order; none for other fields."""
        if self.address or self.manifest.encoding != "memmap" or self.fields[name].kind != "array":
            return ()
        try:
            segments = [s for s in arrays.layout(self.directory(name)).segments if s.size]
            found = [(s, s.file.stat()) for s in segments]
        except (FileNotFoundError, DamagedDataset):
            return ()
        return tuple(RowFile(s.start, s.rows, f"{x.st_ino} {x.st_size} {x.st_mtime_ns}") for s, x in found)

    def check_recorded(self) -> None:
        """Refuse a dataset whose recorded digests are not those that were written: new ones would hide damage.

        Raises
        ------
        DamagedDataset
        """
        sealing.check_listing(self.path, self.manifest)

    def row_runs(self) -> tuple[Run, ...]:
        """Return the rows that have files: all of them, unless the dataset grows."""
        return (Run(0, self.manifest.counts.rows),)

    def runs(self, path: str) -> tuple[Run, ...]:
        """Return the files of plain rows of the array at ``path`` below the dataset.

        Raises
        ------
        DamagedDataset
            It is compressed, or its document cannot be read.
        """
        found = arrays.layout(self.path / path)
        if found.compressed:
            raise DamagedDataset(f"{self.path / path} is compressed.", hint="rlds verify ID")
        return (Run(0, found.shape[0], 0, found.segments),)

    def places(self) -> list[Path]:
        """Return the directories of the arrays of rows, digests of rows, frames and videos."""
        large = (n for n, f in self.fields.items() if digests.has_row_digests(f))
        beside = [self.path / digests.ROWS / self.path_of(n) for n in large]
        return [*(self.path / c.directory for c in self.columns()), *beside]

    @property
    def is_segmented(self) -> bool:
        """True if an array of rows, frames or videos is in segments, as those of a merge are."""
        return any(arrays.is_segmented(directory) for directory in self.places())

    @cached_property
    def has_gaps(self) -> bool:
        """True if there are rows that belong to no episode."""
        order = np.argsort(self.episodes["start"], kind="stable")
        start, behind = self.episodes["start"][order], (self.episodes["start"] + self.episodes["length"] + 1)[order]
        covered = np.concatenate([np.zeros(1, np.int64), behind])
        return bool((start > covered[:-1]).any()) or int(covered[-1]) != self.manifest.counts.rows

    @property
    def slices(self) -> bool:
        """Return whether reading a part of `rows` reads no more than that part; else `between` does."""
        return bool(self.address) or self.manifest.encoding == "memmap"

    def between(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``start`` to ``stop`` as `rows` does; of a compressed column, only these are decoded."""
        if self.slices:
            return self.rows(name)[start:stop]
        return compression.read_range(self.directory(name), start, stop)

    def _open(self, key: str) -> Array:
        if key not in self._columns:
            self._columns[key] = self.guarded(lambda: self.files.array(self.column(key), self._hold))
        return self._columns[key]

    def strings(self, name: str) -> Array:
        """Return the string table of a text field: an object array whose last element is None (code -1)."""
        if name not in self._strings:
            texts = self.guarded(lambda: arrays.read_strings(self.beside("text", self.path_of(name))))
            self._strings[name] = np.array([*texts, None], object)
        return self._strings[name]

    def num_texts(self, name: str) -> int:
        """Return how many strings the table of a text field has, without reading them."""
        return arrays.open_document(self.beside("text", *self.path_of(name).split("/"), "offsets"))[0][0] - 1

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

    def frame_offsets(self, name: str) -> IntArray:
        """Return the first byte of each row's encoded frame, and the byte behind it [rows, 2]."""
        return self._open(name + OFFSETS)

    def offsets_between(self, name: str, first: int, stop: int) -> IntArray:
        """Return `frame_offsets` of rows [first, stop). Those of a row of no episode mean nothing."""
        return self.frame_offsets(name)[first:stop]

    def frame_bytes(self, name: str) -> Array:
        """Return the encoded frames, end to end."""
        return self._open(name + BYTES)

    def videos(self, name: str) -> Videos:
        """Return the videos of a field."""
        if name not in self._videos:
            self._videos[name] = self.guarded(lambda: self._open_videos(name))
        return self._videos[name]

    def _open_videos(self, name: str) -> Videos:
        c = self.column(name + FILMS)
        for part in ("spans", "packets", "first", "tracks", "sha256"):
            self.beside(str(c.directory.parent), part)
        return Videos(self.path / c.directory.parent, VideoBytes(self.files, c, self._open(c.key)))

    def video_digests(self, name: str) -> Digests:
        """Return the sha256 of each video of a field [videos, 32]."""
        return self.guarded(lambda: arrays.read(self.beside(DIRECTORY, *self.path_of(name).split("/"), "sha256")))

    def row_digests(self, name: str) -> Digests:
        """Return the sha256 of each row of a field that has them [rows, 32]; see `store.digests`."""
        return self.guarded(lambda: arrays.read(self.beside(digests.ROWS, *self.path_of(name).split("/"))))

    def frame_spans(self, name: str, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first byte of the encoded frames at ``rows`` [n], and the byte behind each, in `frame_bytes`."""
        spans = np.asarray(self.frame_offsets(name)[rows])
        return spans[:, 0], spans[:, 1]

    def encoded(self, name: str, rows: IntArray) -> EncodedFrames:
        """Return a copy of the encoded frames at ascending ``rows`` [n], of a field of images.

        Raises
        ------
        DamagedDataset
            The offsets are not those of frames.
        """
        f, data, (starts, ends) = self.fields[name], self.frame_bytes(name), self.frame_spans(name, rows)
        check_frames(starts, ends, len(data), name)
        frames = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        return EncodedFrames(np.concatenate([np.zeros(0, np.uint8), *frames]), ends - starts, f.shape, f.codec)

    def frame(self, name: str, row: int) -> bytes:
        """Return the encoded frame of a row; empty for a row without a frame."""
        if self.fields[name].codec == VIDEO:
            number, frame = self.rows(name)[row].tolist()
            return self.videos(name).packet(number, frame) if number >= 0 else b""
        (starts, ends), data = self.frame_spans(name, np.array([row])), self.frame_bytes(name)
        check_frames(starts, ends, len(data), name)
        return bytes(data[starts[0] : ends[0]])

    def frame_sizes(self, name: str, rows: IntArray) -> IntArray:
        """Return the encoded sizes in bytes of the frames at ``rows`` [n]; 0 for rows without a frame."""
        if self.fields[name].codec == VIDEO:
            return self.videos(name).sizes(self.rows(name)[rows])
        starts, ends = self.frame_spans(name, rows)
        return np.asarray(ends - starts)

    def gather(self, name: str, rows: IntArray) -> Array:
        """Read the values of a field at ``rows`` [n] -> [n, ...]: frames decoded, text as strings or None."""
        f = self.fields[name]
        if f.codec == VIDEO:
            index = self.rows(name)[rows]
            self.check_absent(f, rows[index[:, 0] < 0])
            return self.videos(name).gather(f, index)
        if f.kind == "frames":
            return self._gather_frames(f, rows)
        values = self.rows(name)[rows]
        return self.texts(name, values) if f.kind == "text" else values

    def _gather_frames(self, f: Field, rows: IntArray) -> Array:
        data, spans = self.frame_bytes(f.name), self.frame_spans(f.name, rows)
        if self.blocks is None:
            return decode_frames(data, spans, rows, f, self.check_absent)
        with self.files.hold(data, *spans):
            return decode_frames(data, spans, rows, f, self.check_absent)

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

    @cached_property
    def metadata(self) -> Metadata:
        """The data that are not per row, by name."""
        return self.guarded(lambda: metadata.read(self.beside(metadata.DIRECTORY).parent))

    @cached_property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """Files of the archive: ``file size sha256``, and ``url revision`` of downloaded ones."""

        def read() -> tuple[dict[str, Any], ...]:
            path = self.beside("sources")
            return episode_table.read_sources(path) if path.exists() else ()

        return self.guarded(read)

    @cached_property
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table, without texts and without the user's own, see `own_column`."""
        columns = self.guarded(lambda: episode_table.read_columns(self.path / "episodes", self.manifest))
        if self._checks:
            episode_table.check_places(columns, self.manifest)
        return columns

    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table (``group``, ``options``); empty strings if it is not stored."""
        if column not in self._episode_strings:
            self._episode_strings[column] = self.guarded(lambda: self._read_episode_strings(column))
        return self._episode_strings[column]

    def _read_episode_strings(self, column: str) -> list[str]:
        path, count = self.path / "episodes" / component(column), self.manifest.counts.episodes
        return episode_table.read_texts(path, count) if count and path.exists() else [""] * count

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        return tuple(self.manifest.episode_columns)

    def own_column(self, name: str) -> StoredColumn:
        """Return an episode column of the user's own; it is read once."""
        if name not in self._own_columns:
            self._own_columns[name] = self._read_own_column(name)
        return self._own_columns[name]

    def _read_own_column(self, name: str) -> StoredColumn:
        dtype, count = self.manifest.episode_columns[name]["dtype"], self.manifest.counts.episodes
        if name in self._small_columns:
            where = f"The episode column {name} of {self.manifest.id}"
            return episode_table.column_of(self._small_columns[name], dtype, count, where)
        masks = ("episodes", "missing", component(name))
        missing = self.guarded(lambda: episode_table.read_missing(self.path.joinpath(*masks), self.episodes))
        if dtype != episode_table.TEXT:
            if name not in self.episodes or self.episodes[name].dtype != dtype:
                raise DamagedDataset(f"The episode column {name} of {self.manifest.id} is not there as {dtype}.")
            return StoredColumn(dtype, self.episodes[name], missing)
        texts = self.episode_strings(name)
        return StoredColumn(dtype, [None if m else t for t, m in zip(texts, missing.tolist(), strict=True)], missing)

    @cached_property
    def _small_columns(self) -> dict[str, Any]:
        return self.guarded(lambda: episode_table.read_small(self.path / "episodes"))

    def table(self, index: IntArray | None = None) -> EpisodeTable:
        """Return the table of the episodes ``index`` [n], or of all; a copy."""
        return self._table.take(self.numbers if index is None else index)

    @cached_property
    def _table(self) -> EpisodeTable:
        e, nobody = self.episodes, np.zeros(len(self.episodes["start"]), bool)
        seeds = zip(e.get("seed", nobody).tolist(), e.get("has_seed", nobody).tolist(), strict=True)
        prefix = "split/"
        return EpisodeTable(
            e["length"],
            e["end"],
            e["num_observed"] > e["length"],
            e["source"],
            e["row"],
            group=self.episode_strings("group"),
            seed=[seed if has else None for seed, has in seeds],
            options=[o or None for o in self.episode_strings("options")],
            splits={k.removeprefix(prefix): np.asarray(v) for k, v in e.items() if k.startswith(prefix)},
            extra={name: self.own_column(name).scalars() for name in self.own_columns},
            id=np.asarray(e["id"]),
        )

    def shared(self) -> Store:
        """Return this version as the parts of a job share it in a process: what one has read is read once."""
        return self if self.address else _shared(self.path, self.version_id)

    def name_of(self, k: int) -> str:
        """Return what names episode ``k`` in every version of the dataset; empty if its number does."""
        return ""

    def stats_of(self, name: str, index: IntArray | None = None) -> Stats:
        """Compute the statistics of a field over the steps of all episodes, or of the episodes ``index``."""
        e, index = self.episodes, self.numbers if index is None else index
        return statistics.of_episodes(self.rows(name), e["start"][index], e["length"][index])

    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]; see `store.digests`."""
        found = self.guarded(lambda: lookups.read(self.beside("digests", *self.path_of(name).split("/"))))
        if found.shape != (len(self.episodes["start"]), 32) or found.dtype != np.uint8:
            raise DamagedDataset(f"The digests of {name} are not those of {self.manifest.id}.", hint="rlds verify ID")
        return found

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint of the dataset, or of the episodes ``index`` of it, in this order. No row is read.

        ``ignored`` are columns of the user's own that do not count.
        """
        if index is None and not ignored:
            return self.manifest.fingerprint
        of_fields = {f.name: self._digest_of(f, index) for f in self.manifest.fields}
        return digests.fingerprint(of_fields, self.column_digests(self.numbers if index is None else index, ignored))

    def _digest_of(self, f: StoredField, index: IntArray | None) -> str:
        return self.field_digest(f.name) if index is None else digests.of_field(f, self.digests(f.name)[index])

    def column_digests(self, index: IntArray, ignored: Collection[str] = ()) -> dict[str, str]:
        """Return the digests of the columns of episodes that count as content, by name; see `digests.of_columns`."""
        options = self.episode_strings("options")
        counted = [n for n in self.episodes if n in digests.CONTENT or n.startswith("split/")]
        columns: dict[str, Array | Sequence[str | None]] = {n: self.episodes[n][index] for n in counted}
        columns["options"] = [options[k] for k in index.tolist()] if any(options) else []
        return digests.of_columns(
            columns, {n: self.own_column(n).take(index) for n in self.own_columns if n not in ignored}
        )

    def field_digest(self, name: str) -> str:
        """Return the digest of a field over all episodes."""
        return self._stored[name].digest

    # -- what may be done with it

    def check_changeable(self) -> None:
        """Refuse a dataset of which no other versions or datasets are made without a copy of its rows.

        Raises
        ------
        InvalidArgument
        """
        if self.address:
            raise InvalidArgument(
                f"{self.manifest.id} is at an address, where it is not changed.",
                hint="rlds download ADDRESS --as local/NAME fetches it; that copy can be changed",
            )

    @contextmanager
    def changing(self, index: IntArray) -> Iterator[tuple[Store, IntArray | None]]:
        """Yield what a change of episodes ``index`` [n] is made on, and their numbers there.

        Who publishes a directory notices that it is not the newest version. A log of changes yields the newest version
        for as long as nobody else commits, and no numbers if one of the episodes left or was changed meanwhile.
        """
        yield self, index

    def commit_change(
        self,
        index: IntArray,
        step: Mapping[str, Any],
        columns: Mapping[str, StoredColumn | None] = {},
        *,
        dropped: bool = False,
    ) -> bool:
        """Commit a change of the episodes ``index`` to the log of the dataset; False if its versions are directories.

        Parameters
        ----------
        index : int array [n]
        step : mapping
            Of the provenance, with the facts that are set.
        columns : mapping
            Columns that are set, of all episodes; None takes all values away.
        dropped : bool
            Hide the episodes.
        """
        return False

    def commit_restored(self, step: Mapping[str, Any]) -> bool:
        """Commit the content of this version to the log of the dataset; False if its versions are directories."""
        return False

    def snapshot(self) -> Iterator[LocalFile]:
        """Yield the files of this version.

        Raises
        ------
        DamagedDataset
            Something leads out of the directory.
        """
        return snapshots.of_directory(self.path, self._rows_to_send())

    def rows_along(self) -> int:
        """Return how many rows of no episode `snapshot` has: those between the rows of episodes."""
        if not self.has_gaps:
            return 0
        if self.manifest.encoding != "memmap":
            return self.manifest.counts.rows - snapshots.covered(self._spans())
        plain = (n for n, f in self.fields.items() if f.kind != "frames" or f.codec == VIDEO)
        return max((snapshots.rows_between(self.directory(n), self._spans()) for n in plain), default=0)

    def _spans(self) -> IntArray:
        """Return the rows of episodes [episodes, 2], by their first rows."""
        order = np.argsort(self.episodes["start"], kind="stable")
        first = self.episodes["start"][order]
        return np.stack([first, first + self.episodes["length"][order] + 1], 1)

    def _rows_to_send(self) -> dict[Path, IntArray | None]:
        """Return the arrays of `places` with the rows that episodes lie in [episodes, 2]; None for all rows."""
        found: dict[Path, IntArray | None] = dict.fromkeys(self.places())
        if not self.has_gaps or self.manifest.encoding != "memmap":
            return found
        spans = self._spans()
        for name, f in self.fields.items():
            if f.kind == "frames" and f.codec != VIDEO:  # offsets are small, and read one behind the other
                begin, end = self.frame_spans(name, spans[:, 0])[0], self.frame_spans(name, spans[:, 1] - 1)[1]
                found[self.directory(name) / "bytes"] = np.stack([begin, end], 1)
            else:
                found[self.directory(name)] = spans
            if digests.has_row_digests(f):
                found[self.path / digests.ROWS / self.path_of(name)] = spans
        return found


@lru_cache(maxsize=1)
def _shared(path: Path, version_id: str) -> Store:
    store = Store(path)
    store.expect(version_id, "opened")
    return store


def _reopened(path: Path, version_id: str, number: int) -> Store:
    """Unpickle; refuse a dataset that has replaced the pickled one meanwhile. A newer version of it does not.

    Raises
    ------
    DatasetNotFound
        The version was removed, or the dataset was replaced.
    """
    newest = versions.newest_of(path)
    if not (newest / "zarr.json").exists():
        raise DatasetNotFound(f"{path} was removed since it was pickled.", hint="download or import it")
    store = Store(newest)
    if store.version_id != version_id and number < store.manifest.version:
        if number not in versions.earlier(newest):
            raise version_removed(store.manifest.id, number, newest, "pickled")
        store = Store(versions.at(newest, number))
    store.expect(version_id, "pickled")
    return store


def _keys(f: Field) -> tuple[str, ...]:
    """Return the keys of the columns of a field."""
    if f.codec == VIDEO:
        return f.name, f.name + FILMS
    return (f.name + OFFSETS, f.name + BYTES) if f.kind == "frames" else (f.name,)


def field_of(f: StoredField) -> Field:
    """Return the field that a manifest describes."""
    return Field(f.name, f.dtype, f.shape, cast(Placement, f.placement), cast(Kind, f.kind), f.codec)
