"""The content that is exported: the rows and episodes of a dataset or a selection, less what a format cannot say.

`Content` numbers rows and episodes from 0 and end to end, whatever was selected and wherever the rows lie. Losses
change it as importing the exported files again would, so its fingerprint is that of the copy: an export with losses is
proved like one without.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Literal, TypeVar

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.formats import mp4_cut
from rlds_cli.formats.mp4_cut import Excerpt
from rlds_cli.store import arrays, statistics
from rlds_cli.store.frames import check_frames
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import components
from rlds_cli.store.videos import Videos
from rlds_cli.ted import CUT, TRUNCATED, VIDEO, Array, BoolArray, EpisodeTable, Field, IntArray, Scalar

T = TypeVar("T")

PIECE = 16 << 20  # bytes of rows that are read at once
MAPPED = 64 << 20  # bytes of rows that stay mapped

Kind = Literal[
    "field", "name", "type", "encoding", "final", "unknown-final", "cut", "seeds", "options", "splits", "columns",
    "metadata", "videos", "missing",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loss:
    """Something of a dataset that a format cannot say, and what becomes of it.

    Parameters
    ----------
    kind : str
        ============= ================================================================================
        field         the field is left out
        name          the field gets the name ``becomes``
        type          its values are converted to the dtype ``becomes``
        encoding      its images are stored decoded
        final         final observations are left out, of all episodes
        unknown-final the last observation is repeated where the final one is not recorded
        cut           episodes that were cut are said to be truncated
        seeds         seeds are left out
        options       reset options are left out
        splits        named splits are left out
        columns       episode columns of the user's own are left out
        metadata      data that are not per row are left out
        missing       steps without a text get an empty one
        videos        each episode gets a video of its own, cut out of the published one
        ============= ================================================================================
    text : str
        The loss in a sentence, with numbers.
    field : str
        The field that it is about; empty for a loss of episodes.
    becomes : str
        The new name or dtype.
    """

    kind: Kind
    text: str
    field: str = ""
    becomes: str = ""


class Content:
    """Rows and episodes to be exported. It can be pickled, and is then opened again by the process that gets it.

    Parameters
    ----------
    ds : Dataset
        A dataset or a selection of its episodes.
    losses : iterable of Loss
        Losses that are applied.

    Attributes
    ----------
    fields : mapping of str to Field
        By name, sorted.
    table : EpisodeTable
        The episodes; ``table.start`` counts the rows of `rows`.
    num_rows : int
    """

    def __init__(self, ds: Dataset, losses: Iterable[Loss] = ()) -> None:
        self.dataset = ds
        self.losses = tuple(losses)
        self._dense = ds.end_to_end()
        self._store: Store = self._dense.store
        self._kinds = {loss.kind for loss in self.losses}
        self.table = self._table()
        self.num_rows = int((self.table.length + 1).sum())
        self._stored_as: dict[str, str] = {}
        self._filled = {loss.field for loss in self.losses if loss.kind == "missing"}
        self._cut = {loss.field for loss in self.losses if loss.kind == "videos"}
        self._found_excerpts: dict[str, IntArray] = {}
        self.fields = dict(sorted(self._fields()))
        self._first, self._place = self._runs()
        self._maps = _Maps()

    def __reduce__(self) -> tuple[object, ...]:
        return Content, (self.dataset, self.losses)

    @property
    def id(self) -> str:
        """Id of the dataset."""
        return self.dataset.id

    def after(self, losses: Iterable[Loss]) -> Content:
        """Return the content with more losses applied."""
        return Content(self.dataset, (*self.losses, *losses))

    # -- episodes

    def _table(self) -> EpisodeTable:
        whole, index = self._store.table(), self._dense.episodes.index
        if len(index) != len(whole) or (index != np.arange(len(whole))).any():
            whole = _chosen(whole, index)
        changes: dict[str, object] = {}
        if "cut" in self._kinds:
            changes["end"] = np.where(whole.end == CUT, TRUNCATED, whole.end)
        if "final" in self._kinds:
            changes["observed"] = np.zeros(len(whole), bool)
        if "unknown-final" in self._kinds:
            changes["observed"] = np.ones(len(whole), bool)
        changes |= {"seed": ()} if "seeds" in self._kinds else {}
        changes |= {"options": ()} if "options" in self._kinds else {}
        changes |= {"splits": {}} if "splits" in self._kinds else {}
        changes |= {"extra": {}} if "columns" in self._kinds else {}
        return replace(whole, **changes)  # type: ignore[arg-type]

    def _runs(self) -> tuple[IntArray, IntArray]:
        """Return where runs of rows begin, as they are counted here and where they are stored."""
        places = np.asarray(self._store.episodes["start"])[self._dense.episodes.index]
        starts = self.table.start
        if not len(starts):
            return starts, starts
        shift = places - starts
        begins = np.concatenate([[True], shift[1:] != shift[:-1]])
        return starts[begins], places[begins]

    @cached_property
    def own_columns(self) -> Mapping[str, list[Scalar]]:
        """Episode columns of the user's own, also those that a format does not say."""
        return Content(self.dataset).table.extra if "columns" in self._kinds else self.table.extra

    def metadata_text(self, name: str) -> str:
        """Return a text of the dataset that is not per row; empty if there is none of this name."""
        ds = self.dataset
        if name not in ds.manifest.metadata:
            return ""
        found = arrays.read_strings(ds.path.joinpath("metadata", *components(name)))
        return found[0] if found else ""

    # -- rows

    def _fields(self) -> Iterator[tuple[str, Field]]:
        left_out = {loss.field for loss in self.losses if loss.kind == "field"}
        names = {loss.field: loss.becomes for loss in self.losses if loss.kind == "name"}
        types = {loss.field: loss.becomes for loss in self.losses if loss.kind == "type"}
        decoded = {loss.field for loss in self.losses if loss.kind == "encoding"}
        for f in self._store.fields.values():
            if f.name in left_out:
                continue
            name = names.get(f.name, f.name)
            self._stored_as[name] = f.name
            kind, codec = ("array", None) if f.name in decoded else (f.kind, f.codec)
            yield name, replace(f, name=name, dtype=types.get(f.name, f.dtype), kind=kind, codec=codec)

    def places(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the stored rows of rows ``start`` to ``stop``, as runs (first, end)."""
        run = int(np.searchsorted(self._first, start, "right")) - 1
        while start < stop:
            ends = int(self._first[run + 1]) if run + 1 < len(self._first) else stop
            first, count = int(self._place[run] + start - self._first[run]), min(stop, ends) - start
            yield first, first + count
            start, run = start + count, run + 1

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``start`` to ``stop`` of a field [n, ...]: values, strings or None, decoded images.

        They are a view of the mapped file where they lie there as they are wanted.
        """
        f, stored = self.fields[name], self._store.fields[self._stored_as[name]]
        pieces = [self._read(stored, a, b) for a, b in self.places(start, stop)] or [self._read(stored, 0, 0)]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        values = values if values.dtype == f.dtype or f.kind == "text" else values.astype(f.dtype)
        values = self._with_empty_texts(f, values, start) if name in self._filled else values
        return self._without_finals(f, values, start) if "final" in self._kinds else values

    def _read(self, stored: Field, start: int, stop: int) -> Array:
        if stored.kind == "frames":
            return self._store.gather(stored.name, np.arange(start, stop))
        values = self._maps.seen(self._store.between(stored.name, start, stop))
        return self._store.texts(stored.name, values) if stored.kind == "text" else values

    def _with_empty_texts(self, f: Field, values: Array, start: int) -> Array:
        empty = np.array([value is None for value in values.tolist()], bool)
        if f.placement != "both":
            empty[self.last_rows(start, start + len(values)) - start] = False
        return np.where(empty, "", values)

    def _without_finals(self, f: Field, values: Array, start: int) -> Array:
        """Repeat the row before in last rows of a field that holds final observations."""
        last = self.last_rows(start, start + len(values))
        if f.placement != "both" or not len(last):
            return values
        values = values.copy()
        inside = last[last > start] - start
        values[inside] = values[inside - 1]
        if last[0] == start:
            values[0] = self.rows(f.name, start - 1, start)[0]
        return values

    def last_rows(self, start: int, stop: int) -> IntArray:
        """Return the last rows of episodes, those of final observations, between two rows."""
        last: IntArray = self._last[np.searchsorted(self._last, start) : np.searchsorted(self._last, stop)]
        return last

    @cached_property
    def _last(self) -> IntArray:
        last: IntArray = self.table.start + self.table.length
        return last

    def frames(self, name: str, start: int, stop: int) -> list[bytes]:
        """Return the encoded images of rows; empty for rows without one."""
        stored = self._stored_as[name]
        found = [self._store.frame(stored, r) for a, b in self.places(start, stop) for r in range(a, b)]
        if "final" in self._kinds and self.fields[name].placement == "both":
            for last in self.last_rows(start, stop).tolist():
                found[last - start] = (
                    found[last - start - 1] if last > start else self.frames(name, start - 1, start)[0]
                )
        return found

    def encoded(self, name: str, start: int, stop: int) -> tuple[Array, IntArray]:
        """Return the encoded images of rows end to end, uint8 [bytes], and where each begins, [rows + 1].

        They are views of the mapped file where the rows follow each other. With the loss of final observations, last
        rows must not be among them.
        """
        stored, data, sizes = self._stored_as[name], list[Array](), [np.zeros(1, np.int64)]
        for a, b in self.places(start, stop):
            offsets = np.asarray(self._store.frame_offsets(stored)[a : b + 1], np.int64)
            whole = self._store.frame_bytes(stored)
            check_frames(offsets[:-1], offsets[1:], len(whole), stored)
            data.append(self._maps.seen(whole[offsets[0] : offsets[-1]]))
            sizes.append(np.diff(offsets))
        ends: IntArray = np.cumsum(np.concatenate(sizes))
        return data[0] if len(data) == 1 else np.concatenate([np.zeros(0, np.uint8), *data]), ends

    def frame_sizes(self, name: str, start: int, stop: int) -> IntArray:
        """Return the bytes of the stored images of rows; 0 for rows without one."""
        stored = self._stored_as[name]
        pieces = [self._store.frame_sizes(stored, np.arange(a, b)) for a, b in self.places(start, stop)]
        sizes: IntArray = np.concatenate([np.zeros(0, np.int64), *pieces])
        return sizes

    def codes(self, name: str, start: int, stop: int) -> IntArray:
        """Return the codes of a text field's rows, which are places in `strings`; -1 for a row without text."""
        stored = self._stored_as[name]
        pieces = [self._store.between(stored, a, b) for a, b in self.places(start, stop)]
        codes: IntArray = np.concatenate([np.zeros(0, np.int32), *pieces]).astype(np.int64)
        return codes

    def strings(self, name: str) -> Array:
        """Return the texts of a text field by their codes; an object array whose last element is None (code -1)."""
        return self._store.strings(self._stored_as[name])

    def pieces(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of about `PIECE` bytes of a field."""
        step = max(1, PIECE // max(1, self.row_bytes(name)))
        stop = self.num_rows if stop is None else stop
        for a in range(start, stop, step):
            yield a, min(a + step, stop)

    def video_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows (video, frame) of a field in videos, int32 [n, 2], numbered as in the dataset; -1 for none."""
        values = self._stored_video_rows(name, start, stop)
        if name in self._cut:
            episode = np.searchsorted(self.table.start, np.arange(start, stop), "right") - 1
            shown = values[:, 0] >= 0
            values[shown, 1] -= self._excerpts(name)[episode[shown], 1]
            values[shown, 0] = episode[shown]
        return self._without_finals_of_videos(name, values, start) if "final" in self._kinds else values

    def _stored_video_rows(self, name: str, start: int, stop: int) -> Array:
        stored = self._stored_as[name]
        pieces = [self._store.between(stored, a, b) for a, b in self.places(start, stop)]
        values: Array = np.concatenate([np.zeros((0, 2), np.int32), *pieces])
        return values

    def _excerpts(self, name: str) -> IntArray:
        """Return the video that each episode uses, its first frame and its last, int64 [episodes, 3]."""
        if name not in self._found_excerpts:
            found = np.full((len(self.table), 3), -1, np.int64)
            for k, (start, length) in enumerate(
                zip(self.table.start.tolist(), self.table.length.tolist(), strict=True)
            ):
                rows = self._stored_video_rows(name, start, start + length + 1)
                if len(rows := rows[rows[:, 0] >= 0]):
                    found[k] = rows[0, 0], rows[:, 1].min(), rows[:, 1].max()
            self._found_excerpts[name] = found
        return self._found_excerpts[name]

    def video(self, name: str, number: int) -> Excerpt:
        """Return the file with a number of `video_rows`: as it was published, or the one that is cut for an episode."""
        if name not in self._cut:
            extent = self.videos(name).extent(number)
            return Excerpt(extent.file, b"", ((extent.start, extent.size),))
        video, first, last = self._excerpts(name)[number].tolist()
        extent = self.videos(name).extent(video)
        return mp4_cut.cut(extent.file, extent.start, extent.size, first, last)

    def _without_finals_of_videos(self, name: str, values: Array, start: int) -> Array:
        if self.fields[name].placement != "both":
            return values
        for last in self.last_rows(start, start + len(values)).tolist():
            before = values[last - start - 1] if last > start else self.video_rows(name, last - 1, last)[0]
            values[last - start] = before
        return values

    def videos(self, name: str) -> Videos:
        """Return the videos of a field."""
        return self._store.videos(self._stored_as[name])

    def row_bytes(self, name: str) -> int:
        """Return the bytes of a row of a field as it is written, on average."""
        stored, f = self._store.fields[self._stored_as[name]], self.fields[name]
        if f.kind == "array":
            return f.row_bytes
        if stored.codec == VIDEO and self._store.manifest.counts.rows:
            return 8 + int(self._store.videos(stored.name).offsets[-1]) // self._store.manifest.counts.rows
        if stored.kind == "frames" and stored.codec != VIDEO and self._store.manifest.counts.rows:
            return -(-len(self._store.frame_bytes(stored.name)) // self._store.manifest.counts.rows)
        return 8

    # -- fingerprint

    def digests(self, threads: int = 2) -> dict[str, str]:
        """Compute the digest of each field, as importing the exported files would."""
        with ThreadPoolExecutor(threads) as pool:
            return dict(zip(self.fields, pool.map(self._digest, self.fields), strict=True))

    def fingerprint(self, threads: int = 2) -> str:
        """Return the fingerprint of the content: the dataset's own where nothing was left out or selected."""
        ds = self.dataset
        plain = not ds.is_selection and ds.generation is None
        if plain and not self._kinds - {"columns", "metadata"}:
            return ds.fingerprint
        return statistics.fingerprint(self.digests(threads), statistics.table_digests(self.table))

    def _digest(self, name: str) -> str:
        f = self.fields[name]
        hashes = [
            self._block(f, a, min(a + statistics.BLOCK_ROWS, self.num_rows)) for a in statistics.blocks(self.num_rows)
        ]
        if f.codec == VIDEO:
            hashes = [*self._video_blocks(f)]
        return statistics.field_digest(f.name, f.dtype, f.shape, f.placement, f.kind, statistics.as_array(hashes))

    def _block(self, f: Field, start: int, stop: int) -> bytes:
        """Hash one block as `store.statistics` does, reading a piece at a time."""
        if f.kind == "text":
            return statistics.text_block(self.rows(f.name, start, stop).tolist())
        if f.codec == VIDEO:
            return b""
        h = hashlib.sha256()
        step = max(1, PIECE // max(1, self.row_bytes(f.name)))
        if f.kind == "frames":
            pieces = (self.frames(f.name, a, min(a + step, stop)) for a in range(start, stop, step))
            lengths = [len(frame) for piece in pieces for frame in piece]
            h.update(np.array(lengths, "<i8").tobytes())
        for a in range(start, stop, step):
            b = min(a + step, stop)
            if f.kind == "frames":
                h.update(b"".join(self.frames(f.name, a, b)))
            else:
                h.update(arrays.raw(self.rows(f.name, a, b)))
        return h.digest()

    def _video_blocks(self, f: Field) -> Iterator[bytes]:
        """Yield the hashes of rows (video, frame), numbered in the order of first reference, and of the videos."""
        rows = self.video_rows(f.name, 0, self.num_rows)
        order = first_references(rows[:, 0])
        number = np.full(max(order, default=-1) + 2, -1, np.int32)
        number[order] = np.arange(len(order))
        yield from statistics.array_blocks(np.stack([number[rows[:, 0]], rows[:, 1]], 1).astype(np.int32))
        for k in order:
            h = hashlib.sha256()
            for piece in self.video(f.name, k).pieces():
                h.update(piece)
            yield h.digest()


class _Maps:
    """Maps of files that were read from. Pages count as memory of the process until it gives them back."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        self._bytes = 0
        self._lock = Lock()

    def seen(self, values: Array) -> Array:
        """Note that values will be read. Pages of earlier ones are given back now and then; reading maps them again."""
        base: object = values
        while isinstance(base, np.ndarray):
            base = base.base
        base = base.obj if isinstance(base, memoryview) else base
        if isinstance(base, mmap.mmap):
            with self._lock:
                self._bytes += values.nbytes
                if self._bytes > MAPPED:
                    for mapped in self._maps.values():
                        mapped.madvise(mmap.MADV_DONTNEED)
                    self._maps, self._bytes = {}, values.nbytes
                self._maps[id(base)] = base
        return values


def first_references(numbers: Array) -> list[int]:
    """Return the different numbers that are not negative, in the order in which they first appear."""
    values, first = np.unique(numbers, return_index=True)
    return [int(values[i]) for i in np.argsort(first) if values[i] >= 0]


def _chosen(table: EpisodeTable, index: IntArray) -> EpisodeTable:
    def some(values: Sequence[T]) -> list[T]:
        return [values[i] for i in index.tolist()]

    splits: dict[str, BoolArray] = {name: v[index] for name, v in table.splits.items()}
    return replace(
        table,
        length=table.length[index],
        end=table.end[index],
        observed=table.observed[index],
        source=table.source[index],
        row=table.row[index],
        group=some(table.group),
        seed=some(table.seed),
        options=some(table.options),
        splits=splits,
        extra={name: some(v) for name, v in table.extra.items()},
    )
