"""Minari: ``data/main_data.hdf5``, or ``data/<episode>/part-0.{arrow,parquet}``, beside ``data/metadata.json``.

``description`` finds the files and describes them, ``hdf5_storage`` and ``arrow_storage`` read episodes; this module
plans the archive, and lays the episodes out in rows.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rlds_cli.archives.account import (
    EMPTY,
    EPISODES,
    METADATA,
    NOT_A_FIELD,
    OF_DATASETS,
    UNREAD,
    Account,
    Ledger,
    left_out,
    used_as,
)
from rlds_cli.archives.formats import image_columns, inventory
from rlds_cli.archives.formats.hdf5 import open_file
from rlds_cli.archives.formats.parquet import pyarrow
from rlds_cli.archives.minari import arrow_storage, description, hdf5_storage
from rlds_cli.archives.minari.description import (
    EPISODE,
    Columns,
    Described,
    MinariFiles,
    NamedEpisode,
    ScannedEpisodes,
    Signature,
    locate,
)
from rlds_cli.archives.readers import CHUNK_BYTES, CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Chunk,
    Column,
    EncodedFrames,
    EpisodePiece,
    EpisodeTable,
    Field,
    Note,
    Space,
    Text,
    pieces,
)

VERSION = 1
_JPEG = b"\xff\xd8\xff"
_PART_BYTES = 8 * CHUNK_BYTES


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the files in one line; None if they are of another family."""
    try:
        located = locate(paths)
        if located is None:
            return None
        metadata = describe(paths, located)
        if not (description.is_minari(metadata) if metadata else looks_right(paths, located)):
            return None
    except RldsError:
        return None
    name = metadata.get("dataset_id", "without metadata.json")
    counts = [f"{metadata[k]:,} {k[6:]}" for k in ("total_episodes", "total_steps") if isinstance(metadata.get(k), int)]
    return f"Minari dataset {name} ({', '.join([located.format, *counts])})"


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and spaces of an archive.

    Reads the layout of every episode, and no values except the first image of each image column.

    Raises
    ------
    CorruptArchive
        A file is damaged, episodes are missing, or columns lack rows.
    UnknownLayout
        There is no Minari dataset, or more than one, or it holds values that cannot be stored.
    MissingPackage
        The data are in arrow or parquet, and pyarrow is not installed.
    """
    located = locate(archive.files)
    if located is None:
        raise UnknownLayout(
            "This is not a Minari dataset: it has neither main_data.hdf5 nor <episode>/part-0.arrow or .parquet."
        )
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: a Minari archive holds whole episodes.',
            hint="leave it out",
        )
    return _plan(archive, located)


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of about ``CHUNK_BYTES``."""
    numbers, sources = part.args["numbers"], part.args["files"]
    paths = {name: tuple(path) for name, path in plan.facts["columns"].items()}
    in_hdf5 = plan.facts["format"] == "hdf5"
    episodes = [
        EpisodeEntry(k, length, s[0], f"episode_{n}" if in_hdf5 else str(n))
        for k, (n, length, s) in enumerate(zip(numbers, part.args["lengths"], sources, strict=True))
    ]
    with ExitStack() as stack:
        main = plan.archive.files[sources[0][0]]
        opened = stack.enter_context(open_file(main, check=False)) if in_hdf5 else None

        def open_episode(k: int) -> EpisodeRows:
            if opened is not None:
                return hdf5_storage.Hdf5StorageRows(opened, main, numbers[k], paths)
            described = part.args["described"][k]
            metadata = None if described is None else plan.archive.files[described]
            data = [plan.archive.files[i] for i in sources[k]]
            return arrow_storage.ArrowStorageRows(data, paths, metadata, batch_rows=part.args["chunk_rows"])

        yield from _chunks(plan.schema, set(paths), pieces(episodes, part.args["chunk_rows"]), open_episode)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return ``metadata.json`` as text, or the attributes that older files have instead."""
    located = locate(plan.archive.files)
    if located is not None and located.metadata is not None:
        yield "minari/metadata.json", located.metadata.read_text()
    elif located is not None and (content := describe(plan.archive.files, located)):
        yield "minari/metadata.json", json.dumps(content)


def choose(names: Sequence[str], portion: Subset, read: object) -> tuple[Sequence[str], Subset]:
    """Choose the directories of the wanted episodes; a single HDF5 file holds all of them."""
    number = {n: int(parts[-2]) for n in names if len(parts := n.split("/")) > 1 and EPISODE.fullmatch(parts[-2])}
    if portion.split is not None or not number:
        return names, portion
    episodes = sorted(set(number.values()))
    wanted = {episodes[k] for k in portion.numbers(len(episodes))}
    return [n for n in names if n not in number or number[n] in wanted], EVERYTHING


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step, and the observations of the row after it."""
    paths = {name: tuple(path) for name, path in place.facts["columns"].items()}
    value = _hdf5 if place.facts["format"] == "hdf5" else _arrow
    for name, path in paths.items():
        found = value(place, path)
        yield ArchivedValue(name, f"{place.group}/{'/'.join(path)}[{place.step}]", found[0])
        if name.split("/")[0] == "observation":
            yield ArchivedValue(f"next/{name}", f"{place.group}/{'/'.join(path)}[{place.step + 1}]", found[1])


def _hdf5(place: ArchivedStep, path: Sequence[str]) -> list[Any]:
    with open_file(place.file, check=False) as f:
        d = f[place.group]["/".join(path)]
        return [_plain(d[i]) for i in range(place.step, min(place.step + 2, len(d)))]


def _plain(value: Any) -> Any:
    """Convert a row of h5py: JPEGs to bytes, other bytes to text."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value[:3].tobytes() == _JPEG:
        return value.tobytes()
    return value.decode() if isinstance(value, bytes) else value


def _arrow(place: ArchivedStep, path: Sequence[str]) -> list[Any]:
    rows = [row for file in _files(place.file) for row in _column(file, path[0])]
    values = rows[place.step : place.step + 2]
    for key in path[1:]:
        values = [v[key] for v in values]
    return [np.asarray(v) if not isinstance(v, str | bytes) else v for v in values]


def _files(first: Path) -> list[Path]:
    return sorted(first.parent.glob(f"*{first.suffix}"), key=lambda p: natural(p.name))


def _column(file: Path, name: str) -> list[Any]:
    pa = pyarrow()
    if file.suffix == ".parquet":
        return list(pa.parquet.read_table(file, columns=[name], page_checksum_verification=True)[name].to_pylist())
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as table:
        return list(table.read_all()[name].to_pylist())


@dataclass(frozen=True, slots=True)
class _Survey:
    """The steps of episodes, the numbers of empty ones, the first episode of each layout, and how many are alike."""

    lengths: Mapping[int, int]
    empty: Sequence[int]
    signatures: Mapping[Signature, NamedEpisode]
    alike: Mapping[tuple[Signature, tuple[str, ...], tuple[str, ...]], int]  # by columns, attributes, empty groups


def _plan(archive: Archive, located: MinariFiles) -> Plan:
    """Make the plan of the archive whose files are ``located``; see `plan`."""
    metadata = describe(archive.files, located)
    located, bad = _undamaged(archive, located) if archive.skip_bad else (located, ())
    known = {which: description.space(metadata, which) for which in ("observation", "action")}
    survey = _survey(_scan(archive, located, {f"{which}s": space for which, space in known.items()}))
    _require_all(survey, {} if archive.partial or bad else metadata)
    merged = description.merge(survey.signatures, {key: name for name, key in archive.fields.items()})
    headers = _headers(archive, located, merged, next(iter(survey.lengths)))
    columns = _with_images(merged, headers)
    schema = columns.schema
    inferred = {which: Space.inferred(schema, which).form for which, space in known.items() if space is None}
    return Plan(
        reader="minari",
        archive=archive,
        schema=schema,
        parts=tuple(_parts(located, survey.lengths, _row_bytes(archive, schema, survey.lengths, headers))),
        episodes_by="file",
        facts={
            "format": located.format,
            **description.facts(metadata),
            "columns": {name: list(path) for name, path in columns.paths.items()},
        },
        spaces={which: space or inferred[which] for which, space in known.items()},
        env=description.env(metadata),
        notes=(*bad, *_notes(located, metadata, survey, list(inferred)), *columns.notes),
        account=_account(archive, located, survey, columns),
    )


def _account(archive: Archive, located: MinariFiles, survey: _Survey, columns: Columns) -> Account:
    """State the fate of files, and of the columns and attributes of episodes, which are counted as they are alike."""
    told, in_hdf5 = Ledger(), located.format == "hdf5"
    data = [located.main] if in_hdf5 else [i for of in located.parts.values() for i in of]
    fates = dict.fromkeys((archive.files[i] for i in data), used_as(EPISODES))
    fates |= dict.fromkeys((archive.files[i] for i in located.described.values()), used_as("seed", "options"))
    fates |= {located.metadata: used_as(METADATA)} if located.metadata else {}
    told.all_files(archive.files, archive.root, fates)
    fields = {"/".join(path): used_as(name) for name, path in columns.paths.items()}
    fields |= {"@seed": used_as("seed")}
    kind, above = (inventory.DATASET, "episode_*/") if in_hdf5 else (inventory.COLUMN, "")
    for (leaves, attributes, empty), count in survey.alike.items():
        for leaf in leaves:
            name = "/".join(leaf.path)
            told.add(kind, above + name, fields.get(name) or left_out(NOT_A_FIELD), count)
        for name in attributes:
            fate = used_as("options") if name.startswith("@options") else fields.get(name) or left_out(OF_DATASETS)
            told.add(inventory.ATTRIBUTE, f"episode_*{name}" if name.startswith("@") else above + name, fate, count)
        for name in empty:
            told.add(inventory.GROUP, above + name, left_out(EMPTY), count)
    for item in hdf5_storage.beside(archive.files[located.main]) if in_hdf5 else ():
        old = item.kind == inventory.ATTRIBUTE and located.metadata is None
        told.add(item.kind, item.name, used_as(METADATA) if old else left_out(UNREAD))
    return told.account()


def describe(files: Sequence[Path], located: MinariFiles) -> dict[str, Any]:
    """Read the metadata of the archive; empty if there is none."""
    if located.metadata is not None:
        return description.read(located.metadata)
    attributes = hdf5_storage.root_attributes(files[located.main]) if located.format == "hdf5" else {}
    return attributes if description.is_minari(attributes) else {}


def _undamaged(archive: Archive, located: MinariFiles) -> tuple[MinariFiles, Sequence[Note]]:
    """Leave out the episodes of damaged files; each file is read to its end."""
    bad: dict[int, str] = {}
    for number, indices in located.parts.items():
        try:
            for index in indices:
                arrow_storage.read_through(archive.files[index])
        except CorruptArchive as e:
            bad[number] = e.message
    if not bad or len(bad) == len(located.parts):
        return located, ()
    text = f"episodes of damaged files were left out. {next(iter(bad.values()))}"
    note = Note("bad-files", text, len(bad), str(next(iter(bad))))
    return replace(located, parts={n: p for n, p in located.parts.items() if n not in bad}), (note,)


def looks_right(files: Sequence[Path], located: MinariFiles) -> bool:
    """Tell whether files without metadata hold Minari's columns."""
    if located.format == "hdf5":
        return hdf5_storage.looks_right(files[located.main])
    return arrow_storage.looks_right(files[next(iter(located.parts.values()))[0]])


def _scan(archive: Archive, located: MinariFiles, known: Mapping[str, Any]) -> Iterator[ScannedEpisodes]:
    if located.format == "hdf5":
        return hdf5_storage.scan(archive.files[located.main], known)
    return arrow_storage.scan(archive.files, located.parts, known)


def _survey(scanned: Iterator[ScannedEpisodes]) -> _Survey:
    lengths: dict[int, int] = {}
    empty: list[int] = []
    signatures: dict[Signature, NamedEpisode] = {}
    alike: Counter[tuple[Signature, tuple[str, ...], tuple[str, ...]]] = Counter()
    for s in scanned:
        alike[s.leaves, s.attributes, s.empty] += 1
        if s.episode.steps:
            lengths[s.number] = s.episode.steps
            signatures.setdefault(s.leaves, s.episode)
        else:
            empty.append(s.number)
    return _Survey(lengths, empty, signatures, alike)


def _require_all(survey: _Survey, metadata: Mapping[str, Any]) -> None:
    found, stated = {*survey.lengths, *survey.empty}, metadata.get("total_episodes")
    if isinstance(stated, int) and len(found) < stated:
        missing = next(n for n in range(stated) if n not in found)
        raise CorruptArchive(
            f"metadata.json says {stated:,} episodes, the archive has {len(found):,} (episode {missing} is missing).",
            hint="fetch the archive again",
        )
    if not survey.lengths:
        raise UnknownLayout(
            f"The archive holds no episode_<k> with steps ({len(survey.empty):,} without).",
            hint="if it is not a Minari archive: rlds inspect FILE says what it is",
        )


def _headers(archive: Archive, located: MinariFiles, columns: Columns, number: int) -> dict[str, FrameHeader | None]:
    """Read the header of the first image of each image column; None if the bytes are not an image."""
    found = {}
    for f in columns.schema:
        if f.kind == "frames":
            path = columns.paths[f.name]
            found[f.name] = header(_first_frame(archive, located, number, path))
            if found[f.name] is None and path[0] in description.CORE:
                raise UnknownLayout(f"episode {number}: the first {'/'.join(path)} is neither a JPEG nor a PNG image.")
    return found


def _first_frame(archive: Archive, located: MinariFiles, number: int, path: description.LeafPath) -> bytes:
    if located.format == "hdf5":
        return hdf5_storage.first_frame(archive.files[located.main], number, path)
    return arrow_storage.first_frame([archive.files[i] for i in located.parts[number]], path)


def _with_images(columns: Columns, headers: Mapping[str, FrameHeader | None]) -> Columns:
    """Give each image column the codec and shape of its first image; leave out columns whose bytes are not an image."""
    schema, notes = [], list(columns.notes)
    for f in columns.schema:
        header, key = headers.get(f.name), "/".join(columns.paths.get(f.name, ()))
        if f.kind != "frames":
            schema.append(f)
        elif header is None:
            notes.append(Note("unreadable-column", f"{key} was left out: bytes that are not an image."))
        elif f.shape[:2] == header.shape[:2]:
            schema.append(replace(f, codec=header.codec))
        else:
            schema.append(replace(f, codec=header.codec, shape=header.shape))
            if f.shape:
                text = f"{key} holds images of {list(header.shape)}; the space says {list(f.shape)}"
                notes.append(Note("space-differs", text))
    kept = {f.name for f in schema}
    return Columns(tuple(schema), {k: v for k, v in columns.paths.items() if k in kept}, tuple(notes))


def _row_bytes(
    archive: Archive, schema: Sequence[Field], lengths: Mapping[int, int], headers: Mapping[str, FrameHeader | None]
) -> int:
    """Estimate the bytes of a row in memory; images and text by their share of the files, at least the first image."""
    size = sum(f.row_bytes for f in schema if f.kind == "array")
    if any(f.kind != "array" for f in schema):
        share = sum(p.stat().st_size for p in archive.files) // (sum(lengths.values()) + len(lengths))
        size += max(share, sum(h.size for h in headers.values() if h is not None))
    return max(size, 1)


def _parts(located: MinariFiles, lengths: Mapping[int, int], row_bytes: int) -> Iterator[Part]:
    budget = min(CHUNK_ROWS, _PART_BYTES // row_bytes)
    numbers, bounds, rows = list(lengths), [0], 0
    for i, number in enumerate(numbers):
        if rows and rows + lengths[number] + 1 > budget:
            bounds.append(i)
            rows = 0
        rows += lengths[number] + 1
    for a, b in pairwise([*bounds, len(numbers)]):
        chosen = numbers[a:b]
        yield Part(
            sum(lengths[n] + 1 for n in chosen),
            {
                "numbers": chosen,
                "lengths": [lengths[n] for n in chosen],
                "files": [located.parts.get(n, [located.main]) for n in chosen],
                "described": [located.described.get(n) for n in chosen],
                "chunk_rows": max(2, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes)),
            },
        )


def _notes(
    located: MinariFiles, metadata: Mapping[str, Any], survey: _Survey, inferred: Sequence[str]
) -> Iterator[Note]:
    if not metadata:
        yield Note("no-metadata", "metadata.json is missing: environment and origin are unknown")
    if inferred:
        yield Note(
            "inferred-space", f"the archive records no {' and no '.join(inferred)} space; inferred from the data"
        )
    if survey.empty:
        where = f"episode {survey.empty[0]}"
        yield Note("empty-episodes", "episodes of zero steps were left out", len(survey.empty), where)
    yield from description.notes(metadata, len(survey.lengths) + len(survey.empty), sum(survey.lengths.values()))


class FrameHeader(NamedTuple):
    """Codec ("jpeg", "png"), the shape that it decodes to, ``(H, W)`` or ``(H, W, C)``, and its size in bytes."""

    codec: str
    shape: tuple[int, ...]
    size: int


def header(data: bytes) -> FrameHeader | None:
    """Read the header of an encoded image; None if it cannot be read.

    Raises
    ------
    UnsafeArchive
        It claims more pixels than are decoded.
    """
    from PIL import Image, UnidentifiedImageError  # slow to import, and this module recognises all files

    known = image_header.read(data)
    if known is not None and known.height * known.width > MAX_PIXELS:
        raise UnsafeArchive(f"An image of {known.height}x{known.width} is not decoded.")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            channels = len(image.getbands())
            shape = (image.height, image.width) if channels == 1 else (image.height, image.width, channels)
            return FrameHeader((image.format or "").lower(), shape, len(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


class EpisodeRows(Protocol):
    """One episode, read from its first row to its last.

    ``select`` names the next rows of the store, and ``array``, ``frames`` and ``text`` read the first ``count`` of
    them. At the end of an episode, ``count`` is one less for a field of steps.
    """

    def select(self, start: int, stop: int) -> None:
        """Go to rows [start, stop); ``start`` is where the last selection stopped."""

    def array(self, name: str, out: Array) -> None:
        """Fill ``out`` with the first ``len(out)`` rows selected."""

    def frames(self, name: str, count: int) -> EncodedFrames:
        """Read encoded images of the first ``count`` rows selected."""

    def text(self, name: str, count: int) -> Text:
        """Read strings of the first ``count`` rows selected."""

    def describe(self) -> Described:
        """Return the seed, the options as JSON, and notes about them."""


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """An episode of a part: its number there, its steps, the index of its file and the name of its group."""

    number: int
    length: int
    source: int
    group: str


def _chunks(
    schema: Sequence[Field],
    available: set[str],
    chunks: Iterator[list[EpisodePiece[EpisodeEntry]]],
    open_episode: Callable[[int], EpisodeRows],
) -> Iterator[Chunk]:
    """Read the pieces of each chunk. Fields outside ``available`` are flags that the archive lacks."""
    opened: tuple[int, EpisodeRows] | None = None
    for chunk in chunks:
        builder = _Builder(schema, available, sum(map(len, chunk)))
        for p in chunk:
            if opened is None or opened[0] != p.episode.number:
                opened = (p.episode.number, open_episode(p.episode.number))
            builder.add(p, opened[1])
        yield builder.finish(chunk)


class _Builder:
    """Collects the rows of one chunk."""

    def __init__(self, schema: Sequence[Field], available: set[str], rows: int) -> None:
        self._schema = [f for f in schema if f.name in available]
        self._arrays = {f.name: np.zeros((rows, *f.shape), f.dtype) for f in schema if f.kind == "array"}
        self._frames: dict[str, list[EncodedFrames]] = {f.name: [] for f in schema if f.kind == "frames"}
        self._text: dict[str, Text] = {f.name: [] for f in schema if f.kind == "text"}
        self._last = np.zeros(rows, bool)
        self._described: list[Described] = []
        self._at = 0

    def add(self, p: EpisodePiece[EpisodeEntry], episode: EpisodeRows) -> None:
        """Read a piece into the next rows."""
        episode.select(p.start, p.stop)
        rows, steps = p.stop - p.start, min(p.stop, p.episode.length) - p.start
        for f in self._schema:
            count = rows if f.placement == "both" else steps
            if f.kind == "array":
                episode.array(f.name, self._arrays[f.name][self._at : self._at + count])
            elif f.kind == "frames":
                frames = episode.frames(f.name, count)
                _check_images(frames, f.name, p.start)
                self._frames[f.name] += [frames, _no_frames(rows - count)]
            else:
                self._text[f.name] += [*episode.text(f.name, count), *([None] * (rows - count))]
        self._at += rows
        if p.ends:
            self._last[self._at - 1] = True
            self._described.append(episode.describe())

    def finish(self, chunk: Sequence[EpisodePiece[EpisodeEntry]]) -> Chunk:
        """Finish the chunk, with the ends of its episodes flagged."""
        ended = [p.episode for p in chunk if p.ends]
        terminated, truncated = (self._arrays[name] for name in FLAGS)
        steps = np.flatnonzero(self._last) - 1
        notes = _flag_notes(terminated, truncated, steps, chunk)
        end = _ends(terminated, truncated, steps)
        table = EpisodeTable(
            np.array([e.length for e in ended], np.int64),
            end,
            np.ones(len(ended), bool),
            np.array([e.source for e in ended], np.int32),
            np.zeros(len(ended), np.int64),
            group=[e.group for e in ended],
            seed=[seed for seed, _, _ in self._described],
            options=[options for _, options, _ in self._described],
        )
        columns: dict[str, Column] = {**self._arrays, **self._text}
        columns |= {name: _join(frames) for name, frames in self._frames.items()}
        return Chunk(columns, self._last, table, (*notes, *(n for _, _, more in self._described for n in more)))


def _check_images(frames: EncodedFrames, name: str, start: int) -> None:
    """Refuse images without bytes, or that disagree with their own checksums; ``start`` is the row of the first."""
    view, at = frames.data.data, 0
    for row, size in enumerate(frames.lengths.tolist(), start):
        if not size:
            raise CorruptArchive(f"{name}, row {row:,} of an episode: an image of 0 bytes.", hint="fetch it again")
        if wrong := image_columns.damage(view[at : at + size]):
            raise CorruptArchive(f"{name}, row {row:,} of an episode: {wrong}.", hint="fetch it again")
        at += size


def _no_frames(rows: int) -> EncodedFrames:
    return EncodedFrames(np.zeros(0, np.uint8), np.zeros(rows, np.int64))


def _join(frames: Sequence[EncodedFrames]) -> EncodedFrames:
    return EncodedFrames(np.concatenate([f.data for f in frames]), np.concatenate([f.lengths for f in frames]))


def _ends(terminated: BoolArray, truncated: BoolArray, steps: IntArray) -> npt.NDArray[np.uint8]:
    """Return the ends of the episodes whose last steps are ``steps``; mark a last step without a flag as truncated."""
    cut = ~(terminated[steps] | truncated[steps])
    truncated[steps] |= cut
    return np.where(terminated[steps], TERMINATED, np.where(cut, CUT, TRUNCATED)).astype(np.uint8)


def _flag_notes(
    terminated: BoolArray, truncated: BoolArray, steps: IntArray, chunk: Sequence[EpisodePiece[EpisodeEntry]]
) -> list[Note]:
    """Note flags inside episodes, and last steps without one, with the first such episode."""
    last = np.zeros(len(terminated), bool)
    last[steps] = True
    seen = {
        ("terminated-inside", "steps are terminated inside an episode"): terminated & ~last,
        ("truncated-inside", "steps are truncated and their episode continues"): truncated & ~last,
        ("open-end", "episodes end with no flag; their last step is marked truncated"): last
        & ~(terminated | truncated),
    }
    stops = np.cumsum([len(p) for p in chunk])
    groups = [p.episode.group for p in chunk]
    return [
        Note(code, text, int(rows.sum()), groups[int(np.searchsorted(stops, np.argmax(rows), "right"))])
        for (code, text), rows in seen.items()
        if rows.any()
    ]
