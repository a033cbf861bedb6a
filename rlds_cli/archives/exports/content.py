"""The content that is exported: the rows and episodes of a dataset or a selection, less what a format cannot represent.

`Content` numbers rows and episodes from 0 and end to end, as `Rows` does, whatever was selected. Losses change it as
importing the exported files again would, so its fingerprint is that of the copy: an export with losses is proved like
one without.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar, cast

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.media import mp4_cut
from rlds_cli.base.media.image_header import Codec
from rlds_cli.base.media.mp4_cut import Excerpt
from rlds_cli.dataset import Dataset, Rows, StepTasks
from rlds_cli.store import ContentDigests, EpisodeHash, FieldHash, encode_frames
from rlds_cli.store.digests import Digests
from rlds_cli.store.videos import Videos
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TASK,
    TASK_AT,
    TRUNCATED,
    VIDEO,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    Placement,
    Scalar,
    VideoFrames,
)

T = TypeVar("T")
PIECE = 4 << 20  # bytes of rows that are read at once

Kind = Literal[
    "field", "name", "placement", "shape", "type", "encoding", "missing", "added", "flags",
    "final", "unknown-final", "cut", "seeds", "options", "splits", "columns", "metadata",
    "videos", "task", "time",
]  # fmt: skip

# What ``becomes`` of `next/truncated` in a loss of flags.
AT_ENDS = "at-ends"  # it is kept at last steps only
EVERY_END = "every-end"  # it is set at every last step, and nowhere else
UNTERMINATED = "unterminated"  # it is set at last steps that do not terminate; truncated episodes are said to be cut


@dataclass(frozen=True, slots=True)
class Loss:
    """Something of a dataset that a format cannot represent, and the consequence.

    Parameters
    ----------
    kind : str
        ============= ================================================================================
        field         the field is left out
        name          the field gets the name ``becomes``
        placement     the field is placed ``becomes``; last rows repeat the row before (``both``), or are empty
        shape         its rows get the shape ``becomes``, as in ``2,3``
        type          its values are converted to the dtype ``becomes``
        encoding      its images are stored decoded; or as images of the codec ``becomes``, decoded and encoded anew
        missing       texts that are missing become empty; ``field`` may be the column ``task``
        added         the field, which the format needs, is added: zeros of the dtype ``becomes``
        flags         ``next/truncated`` becomes `AT_ENDS`, `EVERY_END` or `UNTERMINATED`
        final         final observations are left out, of all episodes
        unknown-final the last observation is repeated where the final one is not recorded
        cut           episodes that were cut are said to be truncated
        seeds         seeds are left out
        options       reset options are left out
        splits        named splits are left out; only ``field``, if it is given
        columns       episode columns of the user's own are left out; ``becomes`` is one that becomes ``task``
        task          ``task`` becomes the first text of ``task_at``
        time          the field keeps its values, and is not what the library takes for the time of steps
        metadata      data that are not per row are left out
        videos        each episode gets a video of its own, cut out of the published one
        ============= ================================================================================
    text : str
        The loss in a sentence, with numbers.
    field : str
        The field that it is about; empty for a loss of episodes.
    becomes : str
        The new name, placement, shape, dtype, ...
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
    kinds : set of str
        Kinds of the losses.
    of_steps : StepTasks or None
        What the field ``task_at`` says of the episodes; it is left out where none has several tasks.
    """

    def __init__(self, ds: Dataset, losses: Iterable[Loss] = ()) -> None:
        self.dataset = ds
        self.losses = tuple(losses)
        self.source = Rows(ds)
        self._store = ds.store
        self.kinds = {loss.kind for loss in self.losses}
        self._flags = next((loss.becomes for loss in self.losses if loss.kind == "flags"), "")
        self.of_steps = StepTasks.of(self.source) if TASK_AT in self._store.fields else None
        self._stored_as: dict[str, str] = {}
        self._last_row: dict[str, str] = {}  # fields whose last rows change, and how
        self._filled: set[str] = set()
        self._cut = {loss.field for loss in self.losses if loss.kind == "videos"}
        self._found_excerpts: dict[str, IntArray] = {}
        self.fields = dict(sorted(self._fields()))
        self.table = self._table()
        self.num_rows = int((self.table.length + 1).sum())

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
        whole = self._store.episode_table(self.source.index)
        changes: dict[str, object] = {}
        if "cut" in self.kinds:
            changes["end"] = np.where(whole.end == CUT, TRUNCATED, whole.end)
        if self._flags == UNTERMINATED:
            changes["end"] = np.where(whole.end == TRUNCATED, CUT, whole.end)
        if "final" in self.kinds:
            changes["observed"] = np.zeros(len(whole), bool)
        if "unknown-final" in self.kinds:
            changes["observed"] = np.ones(len(whole), bool)
        changes |= {"seed": ()} if "seeds" in self.kinds else {}
        changes |= {"options": ()} if "options" in self.kinds else {}
        gone = {loss.field for loss in self.losses if loss.kind == "splits"}
        changes |= (
            {"splits": {n: v for n, v in whole.splits.items() if n not in gone}} if gone and "" not in gone else {}
        )
        changes |= {"splits": {}} if "" in gone else {}
        changes["extra"] = own = self._columns(whole.extra)
        self._is_whole = own == whole.extra and self.fields.keys() == self._store.fields.keys()
        return replace(whole, **changes)  # type: ignore[arg-type]

    def _columns(self, own: Mapping[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        """Return the user's own columns after the losses; ``task`` is what follows from ``task_at``."""
        found = dict(own) | ({TASK: [*self.of_steps.first]} if self.of_steps else {})
        if "columns" in self.kinds:
            used = next(loss.becomes for loss in self.losses if loss.kind == "columns")
            kept = TASK if TASK_AT in self.fields else used
            texts = found.get(kept) or (self.source.values(kept, self.source.start).tolist() if kept else None)
            if used and texts:  # a task of which nothing can be read is none
                texts = [text if isinstance(text, str) and text.strip() else None for text in texts]
            found = {TASK: texts} if texts and any(texts) else {}
        if TASK in found and any(loss.kind == "missing" and loss.field in (TASK, TASK_AT) for loss in self.losses):
            found[TASK] = ["" if text is None else text for text in found[TASK]]
        return found

    @cached_property
    def own_columns(self) -> Mapping[str, list[Scalar]]:
        """Episode columns of the user's own, also those that a format does not say."""
        return Content(self.dataset).table.extra if "columns" in self.kinds else self.table.extra

    # -- rows

    def _fields(self) -> Iterator[tuple[str, Field]]:
        def becomes(kind: Kind) -> dict[str, str]:
            return {loss.field: loss.becomes for loss in self.losses if loss.kind == kind}

        names, types, shapes, placements = becomes("name"), becomes("type"), becomes("shape"), becomes("placement")
        left_out, decoded, filled = becomes("field"), becomes("encoding"), becomes("missing")
        for f in self._store.fields.values():
            if f.name in left_out or (f.name == TASK_AT and self.of_steps and not self.of_steps.several.any()):
                continue
            name = names.get(f.name, f.name)
            self._stored_as[name] = f.name
            if f.name in placements or ("final" in self.kinds and f.placement == "both"):
                self._last_row[name] = "zeros" if placements.get(f.name) == "root" else "repeated"
            if f.name in filled:
                self._filled.add(name)
            shape = tuple(int(n) for n in shapes[f.name].split(",") if n) if f.name in shapes else f.shape
            kind, codec = (f.kind, f.codec) if f.name not in decoded else ("array", None)
            if codec_of := decoded.get(f.name):
                kind, codec = "frames", codec_of
            placement = cast(Placement, placements.get(f.name, f.placement))
            yield name, Field(name, types.get(f.name, f.dtype), shape, placement, kind, codec)
        for name, dtype in becomes("added").items():
            yield name, Field(name, dtype, (), "next" if name.startswith("next/") else "root")

    def rows(self, name: str, start: int, stop: int, *, last_rows: bool = True) -> Array:
        """Return rows ``start`` to ``stop`` of a field [n, ...]: values, strings or None, decoded images.

        They are a view of the mapped file where they lie there as they are wanted. Without ``last_rows`` those may hold
        anything, which saves a copy of fields whose last rows change.
        """
        f = self.fields[name]
        if name not in self._stored_as:
            return np.zeros((stop - start, *f.shape), f.dtype)
        values = self._read(self._stored_as[name], start, stop)
        if f.kind != "text":
            values = values if values.dtype == f.dtype else values.astype(f.dtype)
            values = values.reshape(len(values), *f.shape)
        values = self._with_last_rows(f, values, start) if last_rows and name in self._last_row else values
        values = self._with_texts(f, values, start) if name in self._filled else values
        return self._truncated(values, start) if name == FLAGS[1] and self._flags else values

    def _read(self, stored: str, start: int, stop: int) -> Array:
        if self._store.fields[stored].kind == "array":
            return self.source.between(stored, start, stop)
        return self.source.values(stored, np.arange(start, stop))

    def _with_last_rows(self, f: Field, values: Array, start: int) -> Array:
        """Repeat the row before in last rows, or empty them."""
        last = self.last_rows(start, start + len(values))
        if not len(last):
            return values
        values = values.copy()
        if self._last_row[f.name] == "zeros":
            values[last - start] = None if f.kind == "text" else 0
            return values
        inside = last[last > start] - start
        values[inside] = values[inside - 1]
        if last[0] == start:
            values[0] = self.rows(f.name, start - 1, start)[0]
        return values

    def _with_texts(self, f: Field, values: Array, start: int) -> Array:
        """Replace missing texts by empty ones, except in last rows that hold none."""
        missing = np.array([v is None for v in values.tolist()], bool)
        if f.placement != "both":
            missing[self.last_rows(start, start + len(values)) - start] = False
        return np.where(missing, np.array("", object), values) if missing.any() else values

    def _truncated(self, values: Array, start: int) -> Array:
        """Return `next/truncated` as the loss of flags says."""
        stop = start + len(values)
        steps = self.last_rows(start + 1, stop + 1) - 1 - start  # the last steps
        found = np.zeros(len(values), bool)
        if self._flags == AT_ENDS:
            found[steps] = values[steps]
        elif self._flags == EVERY_END:
            found[steps] = True
        else:
            found[steps] = ~self.rows(FLAGS[0], start, stop)[steps]
        return found

    def last_rows(self, start: int, stop: int) -> IntArray:
        """Return the last rows of episodes, those of final observations, between two rows."""
        return self.source.last_rows(start, stop)

    @property
    def starts(self) -> IntArray:
        """First rows of the episodes."""
        return self.source.start

    def episodes_at(self, rows: IntArray) -> IntArray:
        """Return the number of the episode of each row [n]."""
        return self.source.episodes_at(rows)

    def frames(self, name: str, start: int, stop: int) -> list[bytes]:
        """Return the encoded images of rows; empty for rows without one."""
        if (anew := self._encoded_anew(name, start, stop)) is not None:
            ends = np.cumsum(anew.lengths)
            found = [anew.data[b - n : b].tobytes() for n, b in zip(anew.lengths.tolist(), ends.tolist(), strict=True)]
        else:
            found = self.source.frames(self._stored_as[name], np.arange(start, stop))
        for last in self.last_rows(start, stop).tolist() if name in self._last_row else ():
            before = found[last - start - 1] if last > start else self.frames(name, last - 1, last)[0]
            found[last - start] = b"" if self._last_row[name] == "zeros" else before
        return found

    def encoded(self, name: str, start: int, stop: int) -> tuple[Array, IntArray]:
        """Return the encoded images of rows end to end, uint8 [bytes], and where each begins, [rows + 1].

        They are views of the mapped file where the rows follow each other. Last rows that change must not be there.
        """
        anew = self._encoded_anew(name, start, stop)
        found = self.source.encoded(self._stored_as[name], np.arange(start, stop)) if anew is None else anew
        return found.data, np.concatenate([np.zeros(1, np.int64), np.cumsum(found.lengths)])

    def _encoded_anew(self, name: str, start: int, stop: int) -> EncodedFrames | None:
        """Return the images of rows in the codec that a loss gives them; None for images that stay as they are."""
        stored, f = self._store.fields[self._stored_as[name]], self.fields[name]
        if f.codec == stored.codec or f.codec is None or f.kind != "frames":
            return None
        return encode_frames(self.source.values(stored.name, np.arange(start, stop)), cast(Codec, f.codec), name=name)

    def codes(self, name: str, start: int, stop: int) -> IntArray:
        """Return the codes of a text field's rows, which are places in `strings`; -1 for a row without text."""
        return self.source.between(self._stored_as[name], start, stop).astype(np.int64)

    def pieces(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of about `PIECE` bytes of a field."""
        step = max(1, PIECE // max(1, self.row_bytes(name)))
        stop = self.num_rows if stop is None else stop
        for a in range(start, stop, step):
            yield a, min(a + step, stop)

    def video_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows (video, frame) of a field in videos, int32 [n, 2], numbered as in the dataset; -1 for none."""
        values = np.array(self.source.between(self._stored_as[name], start, stop))
        if name in self._cut:
            episode = self.episodes_at(np.arange(start, stop))
            shown = values[:, 0] >= 0
            values[shown, 1] -= self._excerpts(name)[episode[shown], 1].astype(np.int32)
            values[shown, 0] = episode[shown]
        for last in self.last_rows(start, start + len(values)).tolist() if name in self._last_row else ():
            before = values[last - start - 1] if last > start else self.video_rows(name, last - 1, last)[0]
            values[last - start] = -1 if self._last_row[name] == "zeros" else before
        return values

    def _excerpts(self, name: str) -> IntArray:
        """Return the video that each episode uses, its first frame and its last, int64 [episodes, 3]."""
        if name not in self._found_excerpts:
            found = np.full((len(self.table), 3), -1, np.int64)
            for k, length in enumerate(self.table.length.tolist()):
                first = int(self.starts[k])
                rows = self.source.between(self._stored_as[name], first, first + length + 1)
                if len(rows := rows[rows[:, 0] >= 0]):
                    found[k] = rows[0, 0], rows[:, 1].min(), rows[:, 1].max()
            self._found_excerpts[name] = found
        return self._found_excerpts[name]

    def video(self, name: str, number: int) -> Excerpt:
        """Return the file with a number of `video_rows`: as it was published, or the one that is cut for an episode."""
        if name not in self._cut:
            extent = self.videos(name).extent(number)
            return Excerpt(extent, b"", ((0, extent.size),))
        video, first, last = self._excerpts(name)[number].tolist()
        return mp4_cut.cut(self.videos(name).extent(video), first, last)

    def videos(self, name: str) -> Videos:
        """Return the videos of a field."""
        return self._store.videos(self._stored_as[name])

    def row_bytes(self, name: str) -> int:
        """Return the bytes of a row of a field as it is stored, on average."""
        if name not in self._stored_as or self._is_decoded(name):
            return self.fields[name].row_bytes
        stored = self._store.fields[self._stored_as[name]]
        if stored.kind == "array":
            return stored.row_bytes
        if stored.codec != self.fields[name].codec:
            return math.prod(stored.shape)  # encoded anew, at most
        rows = self._store.manifest.counts.rows
        if stored.codec == VIDEO and rows:
            return 8 + int(np.diff(self.videos(name).spans).sum()) // rows
        if stored.kind == "frames" and stored.codec != VIDEO and rows:
            return -(-len(self._store.frames(stored.name).data) // rows)
        return 8

    def _is_decoded(self, name: str) -> bool:
        return self._store.fields[self._stored_as[name]].kind == "frames" and self.fields[name].kind == "array"

    @cached_property
    def flags_inside(self) -> tuple[int, int]:
        """Number of steps inside episodes that are terminated, and truncated."""
        found = [0, 0]
        for start in range(0, self.num_rows, PIECE):
            stop = min(start + PIECE, self.num_rows)
            last = self.last_rows(start + 1, stop + 1) - 1 - start
            for i, name in enumerate(FLAGS):
                values = self.rows(name, start, stop)
                found[i] += int(np.count_nonzero(values)) - int(np.count_nonzero(values[last]))
        return found[0], found[1]

    def flag_at_ends(self, name: str) -> BoolArray:
        """Return a flag at the last step of each episode."""
        steps = self.source.final - 1
        values = [self.rows(name, s, s + 1) for s in steps.tolist()] if len(steps) < 1 << 12 else []
        if values or not len(steps):
            return np.concatenate([np.zeros(0, bool), *values])
        found = np.zeros(len(steps), bool)
        for start in range(0, self.num_rows, PIECE):
            stop = min(start + PIECE, self.num_rows)
            a, b = np.searchsorted(steps, [start, stop])
            found[a:b] = self.rows(name, start, stop)[steps[a:b] - start]
        return found

    def missing_texts(self, name: str) -> int:
        """Count the texts that are missing where a row has one."""
        missing = 0
        for a in range(0, self.num_rows, PIECE // 4):
            b = min(a + PIECE // 4, self.num_rows)
            without = self.codes(name, a, b) < 0
            if self.fields[name].placement != "both":
                without[self.last_rows(a, b) - a] = False
            missing += int(np.count_nonzero(without))
        return missing

    def frame_sizes(self, name: str, start: int, stop: int) -> IntArray:
        """Return the bytes of the encoded images of rows; 0 for rows without one."""
        sizes = self.source.sizes(self._stored_as[name], np.arange(start, stop))
        for last in self.last_rows(start, stop).tolist() if name in self._last_row else ():
            before = sizes[last - start - 1] if last > start else self.frame_sizes(name, last - 1, last)[0]
            sizes[last - start] = 0 if self._last_row[name] == "zeros" else before
        return sizes

    def missing_frames(self, name: str) -> int:
        """Count the rows of a field of encoded images that have none."""
        blocks = ((a, min(a + PIECE, self.num_rows)) for a in range(0, self.num_rows, PIECE))
        return sum(int(np.count_nonzero(self.frame_sizes(name, a, b) == 0)) for a, b in blocks)

    def strings(self, name: str) -> list[str]:
        """Return the different texts of a field; those of the whole dataset, for a selection."""
        return [s for s in self._store.strings(self._stored_as[name]).tolist() if s is not None]

    def metadata(self) -> Iterator[tuple[str, Array | str]]:
        """Yield the data of the dataset that are not per row, by name; none after their loss."""
        if "metadata" in self.kinds:
            return
        for name in self.dataset.manifest.metadata:
            yield name, self._store.table.metadata[name]

    def metadata_text(self, name: str) -> str:
        """Return a text of the dataset that is not per row; empty if there is none of this name."""
        if name not in self.dataset.manifest.metadata:
            return ""
        return self._store.table.metadata.text(name)

    # -- fingerprint

    def digests(self, threads: int = 2) -> ContentDigests:
        """Compute the digests of the content, as importing the exported files would."""
        ends = np.linspace(0, len(self.table), threads + 1).astype(np.int64).tolist()
        pieces = [range(a, b) for a, b in pairwise(ends)]
        stored = set(filter(self._as_stored, self.fields))
        with ThreadPoolExecutor(threads) as pool:
            hashed = {
                # Each piece of a field in videos would hash the files again.
                n: [pool.submit(self._hashed, f, of) for of in ([range(ends[-1])] if f.codec == VIDEO else pieces)]
                for n, f in self.fields.items()
                if n not in stored
            }
            each = {n: np.concatenate([piece.result() for piece in of]) for n, of in hashed.items()}
        each |= {n: self._store.digests(self._stored_as[n])[self.source.index] for n in stored}
        return ContentDigests.of({n: FieldHash(f).of_field(each[n]) for n, f in self.fields.items()}, self.table)

    def fingerprint(self, threads: int = 2) -> str:
        """Return the fingerprint of the content: the dataset's own where nothing was left out."""
        if self._is_whole and not self.kinds - {"metadata"}:
            return self.dataset.fingerprint
        return self.digests(threads).fingerprint

    def _as_stored(self, name: str) -> bool:
        """Return whether the rows of a field that count are those that are stored, whatever its name is."""
        changed = self._last_row.keys() | self._filled | self._cut | ({FLAGS[1]} if self._flags else set())
        if name not in self._stored_as or name in changed:
            return False
        f, stored = self.fields[name], self._store.fields[self._stored_as[name]]
        alike = (f.dtype, f.shape, f.kind, f.codec) == (stored.dtype, stored.shape, stored.kind, stored.codec)
        finals = np.array_equal(self.table.observed, self.source.observed)
        return alike and (f.placement == "both") == (stored.placement == "both") and (finals or f.placement != "both")

    def _hashed(self, f: Field, episodes: range) -> Digests:
        """Return the digests of a field in some episodes."""
        videos = self._video_digests(f) if f.codec == VIDEO else None
        which = slice(episodes.start, episodes.stop)
        count = FieldHash(f).counted(self.table.length, self.table.num_observed)[which]
        start = self.source.start[which]
        stop = start + count
        step, each, e = max(1, PIECE // max(1, self.row_bytes(f.name))), EpisodeHash(f), 0
        while e < len(count):
            first, end = int(start[e]), int(np.searchsorted(stop, start[e] + step, "right"))
            if end > e:  # short episodes come together
                rows = self._hashed_rows(f, first, int(stop[end - 1]))
                each.add_episodes(rows, start[e:end] - first, count[e:end], videos=videos)
                e = end
                continue
            for a in range(first, int(stop[e]), step):
                each.add(self._hashed_rows(f, a, min(a + step, int(stop[e]))), videos=videos)
            each.end()
            e += 1
        return each.episodes

    def _hashed_rows(self, f: Field, start: int, stop: int) -> Column:
        """Return rows as they are hashed: frames are encoded, and last rows are read where they count."""
        if f.codec == VIDEO:
            return VideoFrames((), self.video_rows(f.name, start, stop))
        if f.kind == "frames":
            frames = self.frames(f.name, start, stop)
            lengths = np.array([len(frame) for frame in frames], np.int64)
            return EncodedFrames(np.frombuffer(b"".join(frames), np.uint8), lengths)
        last_rows = f.placement == "both" and bool(self.table.observed.any())
        rows = self.rows(f.name, start, stop, last_rows=last_rows)
        return rows.tolist() if f.kind == "text" else rows

    def _video_digests(self, f: Field) -> Digests:
        """Return the sha256 of each video that rows refer to, by its number [videos, 32]; zeros for the others."""
        numbers = first_references(self.video_rows(f.name, 0, self.num_rows)[:, 0])
        found = np.zeros((max(numbers, default=-1) + 1, 32), np.uint8)
        for k in numbers:
            h = hashlib.sha256()
            for piece in self.video(f.name, k).pieces():
                h.update(piece)
            found[k] = np.frombuffer(h.digest(), np.uint8)
        return found


def first_references(numbers: Array) -> list[int]:
    """Return the different numbers that are not negative, in the order in which they first appear."""
    values, first = np.unique(numbers, return_index=True)
    return [int(values[i]) for i in np.argsort(first) if values[i] >= 0]
