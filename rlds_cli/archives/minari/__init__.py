"""Minari: ``data/main_data.hdf5``, or ``data/<episode>/part-0.{arrow,parquet}``, beside ``data/metadata.json``.

Single values of a Minari episode, for `rlds verify --trace`.

A Minari archive -> how it will be read.

What an encoded image says in its header.

Which files a Minari archive consists of: one HDF5 file, or a directory per episode, and ``metadata.json``.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan
from rlds_cli.archives.minari import arrow_storage, description, hdf5_storage, rows
from rlds_cli.archives.minari.description import Columns, Episode, Scanned, Signature
from rlds_cli.errors import CorruptArchive, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.formats import image_header
from rlds_cli.formats.hdf5 import is_hdf5, open_file
from rlds_cli.formats.parquet import pyarrow
from rlds_cli.store.frames import MAX_PIXELS
from rlds_cli.subset import EVERYTHING, Portion
from rlds_cli.ted import Array, Chunk, Field, Note, spaces
from rlds_cli.text import natural

VERSION = 1


def recognise(paths: Sequence[Path]) -> str | None:
    """What the files are, in one line, or None."""
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
    """Fields, parts and spaces of an archive.

    Looks at the layout of every episode, and at no values but the first image of each image column.

    Raises
    ------
    CorruptArchive
        A file is damaged, episodes are missing, or columns lack rows.
    UnknownLayout
        There is no Minari dataset, or more than one, or one that holds what cannot be stored.
    MissingPackage
        It is in arrow or parquet, and pyarrow is not installed.
    """
    located = locate(archive.files)
    if located is None:
        raise UnknownLayout(
            "There is no Minari dataset here: neither main_data.hdf5 nor <episode>/part-0.arrow or .parquet."
        )
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: a Minari archive holds whole episodes.',
            hint="leave it out",
        )
    return make_plan(archive, located)


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in chunks of about ``CHUNK_BYTES``."""
    numbers, sources = part.args["numbers"], part.args["files"]
    paths = {name: tuple(path) for name, path in plan.facts["columns"].items()}
    in_hdf5 = plan.facts["format"] == "hdf5"
    origins = [rows.Origin(s[0], f"episode_{n}" if in_hdf5 else str(n)) for n, s in zip(numbers, sources, strict=True)]
    with ExitStack() as stack:
        main = plan.archive.files[sources[0][0]]
        opened = stack.enter_context(open_file(main, check=False)) if in_hdf5 else None

        def episode(k: int) -> rows.EpisodeRows:
            if opened is not None:
                return hdf5_storage.Rows(opened, main, numbers[k], paths)
            described = part.args["described"][k]
            metadata = None if described is None else plan.archive.files[described]
            data = [plan.archive.files[i] for i in sources[k]]
            return arrow_storage.Rows(data, paths, metadata, batch_rows=part.args["chunk_rows"])

        chunks = rows.pieces(part.args["lengths"], part.args["chunk_rows"])
        yield from rows.read(plan.schema, set(paths), chunks, episode, origins)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """``metadata.json``, or what stands for it, as text."""
    located = locate(plan.archive.files)
    if located is not None and located.metadata is not None:
        yield "minari/metadata.json", located.metadata.read_text()
    elif located is not None and (content := describe(plan.archive.files, located)):
        yield "minari/metadata.json", json.dumps(content)


_JPEG = b"\xff\xd8\xff"


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """What stands in the row of a step; what belongs to observations also of the row after."""
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
    """One row as h5py gives it: JPEGs as bytes, other bytes as text."""
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


_PART_BYTES = 8 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class _Survey:
    """Steps of each episode that has any, numbers of those that have none, and the ways in which they are laid out."""

    lengths: Mapping[int, int]
    empty: Sequence[int]
    signatures: Mapping[Signature, Episode]


def make_plan(archive: Archive, located: Located) -> Plan:
    """Fields, parts and spaces of the archive whose files are ``located``; see ``minari.plan``."""
    metadata = describe(archive.files, located)
    located, bad = _undamaged(archive, located) if archive.skip_bad else (located, ())
    known = {which: description.space(metadata, which) for which in ("observation", "action")}
    survey = _survey(_scan(archive, located, {f"{which}s": space for which, space in known.items()}))
    _require_all(survey, {} if archive.partial or bad else metadata)
    merged = description.merge(survey.signatures, {key: name for name, key in archive.fields.items()})
    headers = _headers(archive, located, merged, next(iter(survey.lengths)))
    columns = _with_images(merged, headers)
    schema = columns.schema
    inferred = {which: spaces.infer(schema, which) for which, space in known.items() if space is None}
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
    )


def describe(files: Sequence[Path], located: Located) -> dict[str, Any]:
    """What the archive says about itself; empty where it says nothing."""
    if located.metadata is not None:
        return description.read(located.metadata)
    attributes = hdf5_storage.root_attributes(files[located.main]) if located.format == "hdf5" else {}
    return attributes if description.is_minari(attributes) else {}


def _undamaged(archive: Archive, located: Located) -> tuple[Located, Sequence[Note]]:
    """Without the episodes of which a file is damaged; each is read to its end."""
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


def looks_right(files: Sequence[Path], located: Located) -> bool:
    """Whether files that no metadata describe hold Minari's columns."""
    if located.format == "hdf5":
        return hdf5_storage.looks_right(files[located.main])
    return arrow_storage.looks_right(files[next(iter(located.parts.values()))[0]])


def _scan(archive: Archive, located: Located, known: Mapping[str, Any]) -> Iterator[Scanned]:
    if located.format == "hdf5":
        return hdf5_storage.scan(archive.files[located.main], known)
    return arrow_storage.scan(archive.files, located.parts, known)


def _survey(scanned: Iterator[Scanned]) -> _Survey:
    lengths: dict[int, int] = {}
    empty: list[int] = []
    signatures: dict[Signature, Episode] = {}
    for s in scanned:
        if s.episode.steps:
            lengths[s.number] = s.episode.steps
            signatures.setdefault(s.leaves, s.episode)
        else:
            empty.append(s.number)
    return _Survey(lengths, empty, signatures)


def _require_all(survey: _Survey, metadata: Mapping[str, Any]) -> None:
    found, stated = {*survey.lengths, *survey.empty}, metadata.get("total_episodes")
    if isinstance(stated, int) and len(found) < stated:
        missing = next(n for n in range(stated) if n not in found)
        raise CorruptArchive(
            f"metadata.json says {stated:,} episodes, and {len(found):,} are here (episode {missing} is missing).",
            hint="fetch the archive again",
        )
    if not survey.lengths:
        raise UnknownLayout(
            f"The archive holds no episode_<k> with steps ({len(survey.empty):,} without).",
            hint="if it is no Minari archive: rlds inspect FILE says what it is",
        )


def _headers(archive: Archive, located: Located, columns: Columns, number: int) -> dict[str, Header | None]:
    """The header of the first image of each image column; None where the bytes are no image."""
    found = {}
    for f in columns.schema:
        if f.kind == "frames":
            path = columns.paths[f.name]
            found[f.name] = header(_first_frame(archive, located, number, path))
            if found[f.name] is None and path[0] in description.CORE:
                raise UnknownLayout(f"episode {number}: the first {'/'.join(path)} is neither a JPEG nor a PNG image.")
    return found


def _first_frame(archive: Archive, located: Located, number: int, path: description.LeafPath) -> bytes:
    if located.format == "hdf5":
        return hdf5_storage.first_frame(archive.files[located.main], number, path)
    return arrow_storage.first_frame([archive.files[i] for i in located.parts[number]], path)


def _with_images(columns: Columns, headers: Mapping[str, Header | None]) -> Columns:
    """Codec and shape of each image column as its images have them; bytes that are no image are left out."""
    schema, notes = [], list(columns.notes)
    for f in columns.schema:
        header, key = headers.get(f.name), "/".join(columns.paths.get(f.name, ()))
        if f.kind != "frames":
            schema.append(f)
        elif header is None:
            notes.append(Note("unreadable-column", f"{key} was left out: bytes that are no image."))
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
    archive: Archive, schema: Sequence[Field], lengths: Mapping[int, int], headers: Mapping[str, Header | None]
) -> int:
    """About what a row takes in memory; images and text by their share of the files, images not less than the first."""
    size = sum(f.row_bytes for f in schema if f.kind == "array")
    if any(f.kind != "array" for f in schema):
        share = sum(p.stat().st_size for p in archive.files) // (sum(lengths.values()) + len(lengths))
        size += max(share, sum(h.size for h in headers.values() if h is not None))
    return max(size, 1)


def _parts(located: Located, lengths: Mapping[int, int], row_bytes: int) -> Iterator[Part]:
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


def _notes(located: Located, metadata: Mapping[str, Any], survey: _Survey, inferred: Sequence[str]) -> Iterator[Note]:
    if not metadata:
        yield Note("no-metadata", "there is no metadata.json: environment and origin are not known")
    if inferred:
        yield Note(
            "inferred-space", f"the archive records no {' and no '.join(inferred)} space; inferred from the data"
        )
    if survey.empty:
        where = f"episode {survey.empty[0]}"
        yield Note("empty-episodes", "episodes of zero steps were left out", len(survey.empty), where)
    yield from description.notes(metadata, len(survey.lengths) + len(survey.empty), sum(survey.lengths.values()))


class Header(NamedTuple):
    """Codec ("jpeg", "png"), the shape that it decodes to, ``(H, W)`` or ``(H, W, C)``, and its size in bytes."""

    codec: str
    shape: tuple[int, ...]
    size: int


def header(data: bytes) -> Header | None:
    """The header of an encoded image, or None where it is not one that can be read.

    Raises
    ------
    UnsafeArchive
        It claims more pixels than are decoded.
    """
    known = image_header.read(data)
    if known is not None and known.height * known.width > MAX_PIXELS:
        raise UnsafeArchive(f"An image of {known.height}x{known.width} is not decoded.")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            channels = len(image.getbands())
            shape = (image.height, image.width) if channels == 1 else (image.height, image.width, channels)
            return Header((image.format or "").lower(), shape, len(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


Format = Literal["hdf5", "arrow", "parquet"]
SUFFIXES: dict[str, Format] = {".arrow": "arrow", ".parquet": "parquet"}
METADATA = "metadata.json"
_EPISODE = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Located:
    """The files, by their index among those of the archive.

    ``metadata`` is a path, since it may lie beside files that were named one by one; None where there is none.
    ``parts`` are the data files of each episode in order, empty for HDF5; ``described`` the episodes' own metadata.
    """

    format: Format
    metadata: Path | None
    main: int
    parts: dict[int, list[int]]
    described: dict[int, int]


def locate(files: Sequence[Path]) -> Located | None:
    """Find the parts of an archive by the names that Minari gives them; None where there are none.

    Raises
    ------
    UnknownLayout
        There is more than one dataset.
    """
    parts = [i for i, p in enumerate(files) if p.suffix in SUFFIXES and _EPISODE.fullmatch(p.parent.name)]
    if parts:
        return _episodes(files, parts)
    main = [i for i, p in enumerate(files) if p.name == "main_data.hdf5"]
    main = main or [i for i, p in enumerate(files) if p.suffix in (".hdf5", ".h5") or is_hdf5(p)]
    if not main:
        return None
    _single([files[i] for i in main])
    others = [p for i, p in enumerate(files) if i != main[0] and (p.suffix in (".hdf5", ".h5") or is_hdf5(p))]
    if others:
        raise UnknownLayout(
            f"{others[0]} lies beside a Minari dataset and is not of it.", hint="import them one by one"
        )
    return Located("hdf5", _metadata(files, files[main[0]].parent), main[0], {}, {})


def choose(names: Sequence[str], portion: Portion, read: object) -> tuple[Sequence[str], Portion]:
    """The directories of the episodes wanted; one HDF5 file holds them all."""
    number = {n: int(parts[-2]) for n in names if len(parts := n.split("/")) > 1 and _EPISODE.fullmatch(parts[-2])}
    if portion.split is not None or not number:
        return names, portion
    episodes = sorted(set(number.values()))
    wanted = {episodes[k] for k in portion.numbers(len(episodes))}
    return [n for n in names if n not in number or number[n] in wanted], EVERYTHING


def _episodes(files: Sequence[Path], indices: Sequence[int]) -> Located:
    roots = {files[i].parent.parent: None for i in indices}
    _single(list(roots))
    formats = {SUFFIXES[files[i].suffix] for i in indices}
    if len(formats) > 1:
        raise UnknownLayout(f"{next(iter(roots))} holds episodes in arrow and in parquet.")
    parts: dict[int, list[int]] = {}
    for i in sorted(indices, key=lambda i: natural(files[i].name)):
        parts.setdefault(int(files[i].parent.name), []).append(i)
    names = {str(number) for number in parts}
    described = {int(p.parent.name): i for i, p in enumerate(files) if p.name == METADATA and p.parent.name in names}
    return Located(formats.pop(), _metadata(files, next(iter(roots))), -1, dict(sorted(parts.items())), described)


def _metadata(files: Sequence[Path], directory: Path) -> Path | None:
    path = directory / METADATA
    return path if path in files or path.exists() else None


def _single(datasets: Sequence[Path]) -> None:
    if len(datasets) > 1:
        raise UnknownLayout(
            f"There are {len(datasets)} Minari datasets: " + ", ".join(str(d) for d in datasets[:3]) + " ...",
            hint="import them one by one",
        )
