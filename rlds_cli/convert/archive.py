"""Convert an archive into a dataset: planned, parallel, resumable, in bounded memory.

``--frames raw`` decodes encoded frames on the way, and ``--frames HxW`` resizes them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import text
from rlds_cli.archives import Archive, Part, Plan, Replan, reader
from rlds_cli.checks.run import record
from rlds_cli.errors import ArchiveError, Frames, InvalidEpisode, NoSpace, RldsError, UnsafeArchive
from rlds_cli.files import disk, trees
from rlds_cli.files import safe as safe_files
from rlds_cli.formats import mp4
from rlds_cli.formats.image_header import MAX_PIXELS
from rlds_cli.home import Home
from rlds_cli.ids import FRAME_SIZE, DatasetId
from rlds_cli.progress import Progress, Stage
from rlds_cli.store import arrays, versions
from rlds_cli.store.build import Built, write_rows
from rlds_cli.store.finish import Description, finish
from rlds_cli.store.frames import decode_any_size, decode_frame, decode_frames
from rlds_cli.store.manifest import FORMAT, Manifest
from rlds_cli.store.videos import Extent, Video, decode_video
from rlds_cli.subset import EVERYTHING, Subset
from rlds_cli.ted import (
    VIDEO,
    Array,
    BoolArray,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    IntArray,
    VideoFrames,
    merge_notes,
)

Identity = tuple[int, int, int, int]  # of a file: device, inode, size, time of its last change in nanoseconds
_LEAST_SIDE, _MOST_CHANNELS = 16, 16  # smallest side of a raw frame; largest number of channels
# Frames that are decoded, hashed and written together. Pieces of 16 MiB left the processor's caches in between, and
# writing them took three times as long.
_DECODED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """A planned archive as a job of ``store.build``."""

    id: str
    plan: Plan
    key: str
    frames: str = "encoded"
    portion: Subset = EVERYTHING
    stage: Stage = "convert"

    @property
    def schema(self) -> tuple[Field, ...]:
        """The planned fields, with frames as they are stored."""
        return tuple(decoded_field(f, self.frames) for f in self.plan.schema)

    @property
    def parts(self) -> Sequence[Part]:
        """The planned parts; one for the whole archive if the request selects episodes by number."""
        if self.portion.episodes is not None:
            return (Part(None, {}),)
        return [replace(p, rows=None) for p in self.plan.parts] if self.portion.cuts else self.plan.parts

    def read(self, part: Part) -> Iterator[Chunk]:
        """Read the rows of one part with the family's reader."""
        parts = (part,) if self.portion.episodes is None else self.plan.parts
        try:
            chunks: Iterator[Chunk] = chain.from_iterable(reader(self.plan.reader).read(self.plan, p) for p in parts)
            chunks = trimmed(chunks, self.portion)
            if self.frames != "encoded":
                chunks = decode_chunks(chunks, self.plan.schema, self.frames, self.plan.archive.root)
            yield from chunks
        except InvalidEpisode as e:
            raise ArchiveError(f"{self.id}: {e.message}", hint=e.hint) from e

    def name(self, number: int) -> str:
        """Return the name of a part for messages."""
        return f"part {number + 1:,} of {len(self.parts):,}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """An archive to convert, and the options of the conversion."""

    id: DatasetId
    reader: str
    archive: Archive
    encoding: str = "memmap"
    frames: str = "encoded"  # or raw, or HxW: decoded at conversion
    sources: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts of the registry, for the manifest
    env: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # facts and env by the user, for the manifest
    portion: Subset = EVERYTHING  # the part of the archive's rows to convert
    check: Callable[[Path], None] | None = None  # raises if the finished dataset must not be published
    seen: tuple[Identity, ...] = ()  # identities of the archive's files when their hashes were computed


def convert(c: Conversion, home: Home, *, jobs: int = 0, progress: Progress) -> Manifest:
    """Convert an archive and publish the dataset. The caller holds the lock of its id.

    After an interruption the same call resumes, and gives the same arrays and the same fingerprint.

    Raises
    ------
    ArchiveError
        The archive cannot be read, or one of its files changes during the conversion; nothing is published.
    NoSpace, NoPermission
        The disk is full or not writable; finished parts are kept.
    """
    c = replace(c, seen=c.seen or identities(c.archive.files))
    try:
        plan = reader(c.reader).plan(c.archive)
    except ArchiveError:
        _check_unchanged(c)  # a changed file explains the error better
        raise
    while True:
        work = home.partial(c.id, _key(c, plan)[:16])
        try:
            return _convert(c, plan, home, work, jobs, progress)
        except Replan as better:
            trees.discard(work)
            plan = better.plan
        except ArchiveError:
            _check_unchanged(c, work)
            raise


def identities(files: Iterable[Path]) -> tuple[Identity, ...]:
    """Return device, inode, size and modification time of files, which differ after a write."""
    return tuple(_identity(f) for f in files)


def _identity(file: Path) -> Identity:
    try:
        stat = file.stat()
    except OSError:
        return (0, 0, 0, 0)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _check_unchanged(c: Conversion, work: Path | None = None) -> None:
    """Refuse an archive whose files changed while they were read, and discard the work."""
    now = identities(c.archive.files)
    changed = [f for f, before, after in zip(c.archive.files, c.seen, now, strict=True) if before != after]
    if changed:
        if work is not None:
            trees.discard(work)
        more = f" and {text.plural(len(changed) - 1, 'other file')}" if len(changed) > 1 else ""
        raise ArchiveError(
            f"{c.id}: {changed[0]}{more} changed while the archive was read. Nothing is published.",
            hint="run the same command again once the file is complete",
        )


def _convert(c: Conversion, plan: Plan, home: Home, work: Path, jobs: int, progress: Progress) -> Manifest:
    from rlds_cli.archives import unwritten

    _check_frames(c, plan)
    threads = max(2, jobs)
    _check_room(c, plan, home, threads)
    key = _key(c, plan)
    safe_files.work_directory(work, home.root)
    built = write_rows(ArchiveJob(str(c.id), plan, key, c.frames, c.portion), work, jobs=jobs, progress=progress)
    if not len(built.episodes):
        trees.discard(work)
        raise _nothing(c, built)
    notes = merge_notes((*c.archive.left_out, *plan.notes, *built.notes, *unwritten.notes(plan.archive)))
    built = replace(built, notes=notes)
    _finish(c, plan, built, threads=threads)
    directory = built.directory
    del built  # frees its episode table: the checks read their own
    manifest = record(directory)
    _check_unchanged(c, work)
    try:
        if c.check is not None:
            c.check(directory)
    except RldsError:
        trees.discard(work)
        raise
    versions.replace(directory, home.dataset(c.id))
    trees.discard(work)
    return manifest


def _nothing(c: Conversion, built: Built) -> ArchiveError:
    if not c.portion.cuts:
        return ArchiveError(f"{c.id}: the archive holds no episode with steps. Nothing is published.")
    splits = ", ".join(built.episodes.splits)
    there = (
        f"rlds download {c.id.base} takes all of it"
        if c.portion.split is None
        else f"its splits are {splits}"
        if splits
        else "it has no splits"
    )
    return ArchiveError(f"{c.id.base} has no episodes for {c.portion}. Nothing is published.", hint=there)


def _check_frames(c: Conversion, plan: Plan) -> None:
    for f in plan.schema:
        if f.kind == "frames" and math.prod(f.shape[:2]) > MAX_PIXELS:
            size = "x".join(map(str, f.shape[:2]))
            raise UnsafeArchive(f"{c.id.base}: {f.name} has frames of {size}, which are too large to decode.")


def _check_room(c: Conversion, plan: Plan, home: Home, threads: int) -> None:
    """Raise NoSpace or Frames before the first row if the dataset cannot fit and the number of rows is known."""
    known = [p.rows for p in plan.parts]
    schema = [decoded_field(f, c.frames) for f in plan.schema]
    frames = [f for f in schema if f.kind == "array" and f not in plan.schema]
    if c.frames == "raw" and any(map(is_raw_frame, plan.schema)) and not frames:
        raise Frames(f"The frames of {c.id.base} are published raw, and stay raw.", hint="--frames encoded, or HxW")
    if c.frames != "encoded" and not frames:
        raise Frames(f"{c.id.base} has no frames to decode or resize.", hint=f"rlds download {c.id.base}")
    if None in known or c.portion.cuts:
        return
    rows = sum(r for r in known if r is not None)
    columns = sorted((rows * f.row_bytes for f in schema if f.kind != "frames"), reverse=True)
    needed = sum(columns)
    if c.encoding == "zarr":  # fields are compressed beside their rows, ``threads`` at a time
        needed += sum(columns[:threads])
    if any(f.codec == VIDEO for f in schema):
        needed += sum(f.stat().st_size for f in plan.archive.files if f.suffix == ".mp4")
    free = disk.free(home.root)
    if needed > free and frames:
        raise Frames(
            f"Decoded frames of {c.id.base} need {text.size_of(needed)}, {text.size_of(free)} are free.",
            hint="--frames encoded (as published), or a smaller size",
        )
    if needed > free:
        raise NoSpace(
            f"{c.id} needs {text.size_of(needed)}, {text.size_of(free)} are free below {home.root}.",
            hint="another disk: --cache-dir DIR, or RLDS_HOME",
        )


def _finish(c: Conversion, plan: Plan, built: Built, *, threads: int) -> None:
    module = reader(plan.reader)
    about = Description(
        id=str(c.id),
        encoding=c.encoding,
        reader=plan.reader,
        reader_version=module.VERSION,
        episodes_by=plan.episodes_by,
        facts={**c.facts, **plan.facts, **c.stated.get("facts", {})},
        spaces=plan.spaces,
        env={**c.env, **plan.env, **c.stated.get("env", {})},
        options=c.options,
        sources=c.sources,
    )
    finish(built, about, metadata=module.metadata(plan), locate=partial(_video, plan), threads=threads)


def _video(plan: Plan, field: str, name: str) -> Extent:
    """Return the extent of a video of the archive, by its file name."""
    return Extent.whole(plan.archive.root / name)


def _key(c: Conversion, plan: Plan) -> str:
    """Return a key of the work: archive, reader, plan and options, but neither workers nor paths."""
    described = {
        "format": FORMAT,
        "id": str(c.id),
        "reader": [plan.reader, reader(plan.reader).VERSION],
        "sources": [*map(dict, c.sources), *map(_named, () if c.sources else plan.archive.files)],
        "schema": [asdict(f) for f in plan.schema],
        "parts": [{"rows": p.rows, "args": dict(p.args)} for p in plan.parts],
        "episodes_by": plan.episodes_by,
        "fields": dict(plan.archive.fields),
        "frames": c.frames,
        **({"portion": c.portion.facts} if c.portion.cuts else {}),
        **({"skip_bad": True} if plan.archive.skip_bad else {}),
        **({"last_step": plan.archive.last_step} if plan.archive.last_step else {}),
        **({"rewards": plan.archive.rewards} if plan.archive.rewards else {}),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> str:
    """Return a string for a value that JSON cannot hold."""
    return hashlib.sha256(arrays.raw(value)).hexdigest() if isinstance(value, np.ndarray) else str(value)


def _named(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return file.name, stat.st_size, stat.st_mtime_ns


def trimmed(chunks: Iterator[Chunk], portion: Subset) -> Iterator[Chunk]:
    """Keep only the episodes of the portion: those of its split, and of these the ones in its range.

    Reading stops at the end of the range. The split of an episode is known at its end, so a split keeps the rows of one
    episode in memory.
    """
    if portion.split is not None:
        chunks = of_split(chunks, portion.split)
    if portion.episodes is not None:
        chunks = of_range(chunks, *portion.episodes)
    return chunks


def of_range(chunks: Iterator[Chunk], start: int, stop: int | None) -> Iterator[Chunk]:
    """Keep episodes ``start`` up to ``stop``, counted from 0."""
    done = 0
    for chunk in chunks:
        episode: IntArray = done + np.cumsum(chunk.last) - chunk.last
        ended = np.arange(done, done + len(chunk.episodes))
        last = np.inf if stop is None else stop
        yield _cut(chunk, (episode >= start) & (episode < last), (ended >= start) & (ended < last))
        done += len(chunk.episodes)
        if done >= last:
            return


def of_split(chunks: Iterator[Chunk], split: str) -> Iterator[Chunk]:
    """Keep the episodes of a split. Every chunk keeps the names of all splits, even without episodes."""
    begun: list[Chunk] = []  # rows of the episode that is not complete
    for chunk in chunks:
        episode: IntArray = np.cumsum(chunk.last) - chunk.last
        wanted = chunk.episodes.splits.get(split, np.zeros(len(chunk.episodes), bool))
        none = np.zeros(len(wanted), bool)
        if len(wanted):
            yield from begun if wanted[0] else ()
            begun = []
        yield _cut(chunk, np.append(wanted, False)[episode], wanted)
        begun.append(replace(_cut(chunk, episode == len(wanted), none), notes=()))


def _cut(chunk: Chunk, rows: BoolArray, episodes: BoolArray) -> Chunk:
    """Select rows and episodes of a chunk."""
    if rows.all() and episodes.all():
        return chunk
    columns = {name: _taken(column, rows) for name, column in chunk.columns.items()}
    return Chunk(columns, chunk.last[rows], chunk.episodes.take(np.flatnonzero(episodes)), chunk.notes)


def _taken(column: Column, rows: BoolArray) -> Column:
    if isinstance(column, list):
        return list(compress(column, rows))
    if isinstance(column, VideoFrames):
        return VideoFrames(column.files, column.index[rows])
    if isinstance(column, EncodedFrames):
        kept: Array = np.repeat(rows, column.lengths)
        return EncodedFrames(column.data[kept], column.lengths[rows], column.shape, column.codec)
    taken: Array = column[rows]
    return taken


# -- conversion of frames


def decoded_field(f: Field, frames: str) -> Field:
    """Return the field as it is stored with ``frames``."""
    size = FRAME_SIZE.fullmatch(frames)
    if f.kind != "frames" and not (size and is_raw_frame(f)):
        return f
    if frames == "encoded":
        return f
    return replace(f, kind="array", codec=None, shape=_resized(f, (int(size[1]), int(size[2]))) if size else f.shape)


def is_raw_frame(f: Field) -> bool:
    """Return whether rows are frames published as arrays: uint8 [H, W], [H, W, C] or [C, H, W]."""
    if f.kind != "array" or f.dtype != "uint8" or len(f.shape) not in (2, 3):
        return False
    sides = f.shape[1:] if _channels_first(f) else f.shape[:2]
    return min(sides) >= _LEAST_SIDE and (len(f.shape) == 2 or min(f.shape) <= _MOST_CHANNELS)


def _channels_first(f: Field) -> bool:
    return f.kind == "array" and len(f.shape) == 3 and f.shape[2] > _MOST_CHANNELS


def _resized(f: Field, size: tuple[int, int]) -> tuple[int, ...]:
    return (f.shape[0], *size) if _channels_first(f) else (*size, *f.shape[2:])


def decode_chunks(chunks: Iterator[Chunk], schema: Sequence[Field], frames: str, root: Path) -> Iterator[Chunk]:
    """Decode and resize the frames of chunks, in pieces of about 4 MiB. Videos are below ``root``."""
    encoded = [f for f in schema if decoded_field(f, frames) != f]
    width = max(1, sum(decoded_field(f, frames).row_bytes for f in encoded))
    step = max(1, _DECODED_BYTES // width)
    for chunk in chunks:
        ends = np.cumsum(chunk.last)
        offsets = {f.name: _offsets(chunk.columns[f.name]) for f in encoded}
        for a in range(0, len(chunk), step):
            b = min(a + step, len(chunk))
            columns: dict[str, Column] = {
                n: c[a:b]
                for n, c in chunk.columns.items()
                if n not in offsets and not isinstance(c, EncodedFrames | VideoFrames)
            }
            for f in encoded:
                column = chunk.columns[f.name]
                if isinstance(column, VideoFrames):
                    columns[f.name] = _decode_videos(f, column, slice(a, b), frames, root)
                else:
                    columns[f.name] = _decode_rows(f, column, offsets[f.name], a, b, frames)
            episodes = np.arange(int(ends[a - 1]) if a else 0, int(ends[b - 1]))
            yield Chunk(
                columns, chunk.last[a:b], _some_episodes(chunk.episodes, episodes), chunk.notes if a == 0 else ()
            )


def _some_episodes(table: EpisodeTable, index: Array) -> EpisodeTable:
    return table.take(index) if len(index) else EpisodeTable.empty()


def _offsets(column: Column) -> Array:
    if not isinstance(column, EncodedFrames):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.cumsum(column.lengths)])


def _decode_rows(f: Field, column: Column, offsets: Array, a: int, b: int, frames: str) -> Array:
    target = decoded_field(f, frames)
    if isinstance(column, np.ndarray):
        return _resize_rows(f, column[a:b], target.shape)
    assert isinstance(column, EncodedFrames)
    if f.shape[0] and target.shape == f.shape:
        return decode_frames(column.data, (offsets[a:b], offsets[a + 1 : b + 1]), np.arange(a, b), f)
    out = np.zeros((b - a, *target.shape), np.uint8)
    for row in range(a, b):
        if column.lengths[row]:
            data = column.data[offsets[row] : offsets[row + 1]].tobytes()
            one_size = f.shape[0] or target.shape == f.shape
            out[row - a] = _resize((decode_frame if one_size else decode_any_size)(data, f, row), target.shape[:2])
    return out


def _decode_videos(f: Field, column: VideoFrames, rows: slice, frames: str, root: Path) -> Array:
    target = decoded_field(f, frames)
    images = decode_video(column.index[rows], lambda n: _source_video(root / column.files[n]), f, str(root / f.name))
    if target.shape == f.shape:
        return images
    return np.stack([_resize(image, target.shape[:2]) for image in images])


@lru_cache(maxsize=16)
def _source_video(file: Path) -> Video:
    return Video(str(file), np.memmap(file, np.uint8, "r"), mp4.read(file))


def _resize_rows(f: Field, rows: Array, shape: tuple[int, ...]) -> Array:
    first = _channels_first(f)
    out = np.empty((len(rows), *shape), np.uint8)
    for row, image in enumerate(rows):
        planes = image if first else image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)
        small = np.stack(
            [_resize(np.ascontiguousarray(p)[..., None], shape[first : first + 2])[..., 0] for p in planes]
        )
        out[row] = small if first else small[0] if image.ndim == 2 else np.moveaxis(small, 0, 2)
    return out


def _resize(image: Array, size: tuple[int, ...]) -> Array:
    """Resize with Pillow's area average; depth frames with the nearest value.

    The mean of two depths, or of their codes, is the depth of neither.
    """
    from PIL import Image

    flat = image[..., 0] if image.shape[-1] == 1 else image
    way = Image.Resampling.BOX if image.dtype == np.uint8 else Image.Resampling.NEAREST
    resized = Image.fromarray(flat).resize((size[1], size[0]), way)
    return np.asarray(resized).reshape(*size, *image.shape[2:])
