"""A Minari archive -> how it will be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlds_cli import spaces
from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, Part, Plan
from rlds_cli.archives.minari import arrow, description, hdf5, images, leaves
from rlds_cli.archives.minari.files import Located
from rlds_cli.archives.minari.images import Header
from rlds_cli.archives.minari.leaves import Columns, Episode, Scanned, Signature
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import Field, Note

_PART_BYTES = 8 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class _Survey:
    """Steps of each episode that has any, numbers of those that have none, and the ways in which they are laid out."""

    lengths: Mapping[int, int]
    empty: Sequence[int]
    signatures: Mapping[Signature, Episode]


def plan(archive: Archive, located: Located) -> Plan:
    """Fields, parts and spaces of the archive whose files are ``located``; see ``minari.plan``."""
    metadata = describe(archive.files, located)
    located, bad = _undamaged(archive, located) if archive.skip_bad else (located, ())
    known = {which: description.space(metadata, which) for which in ("observation", "action")}
    survey = _survey(_scan(archive, located, {f"{which}s": space for which, space in known.items()}))
    _require_all(survey, {} if archive.partial or bad else metadata)
    merged = leaves.merge(survey.signatures, {key: name for name, key in archive.fields.items()})
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
    attributes = hdf5.root_attributes(files[located.main]) if located.format == "hdf5" else {}
    return attributes if description.is_minari(attributes) else {}


def _undamaged(archive: Archive, located: Located) -> tuple[Located, Sequence[Note]]:
    """Without the episodes of which a file is damaged; each is read to its end."""
    bad: dict[int, str] = {}
    for number, indices in located.parts.items():
        try:
            for index in indices:
                arrow.read_through(archive.files[index])
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
        return hdf5.looks_right(files[located.main])
    return arrow.looks_right(files[next(iter(located.parts.values()))[0]])


def _scan(archive: Archive, located: Located, known: Mapping[str, Any]) -> Iterator[Scanned]:
    if located.format == "hdf5":
        return hdf5.scan(archive.files[located.main], known)
    return arrow.scan(archive.files, located.parts, known)


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
            found[f.name] = images.header(_first_frame(archive, located, number, path))
            if found[f.name] is None and path[0] in leaves.CORE:
                raise UnknownLayout(f"episode {number}: the first {'/'.join(path)} is neither a JPEG nor a PNG image.")
    return found


def _first_frame(archive: Archive, located: Located, number: int, path: leaves.Path) -> bytes:
    if located.format == "hdf5":
        return hdf5.first_frame(archive.files[located.main], number, path)
    return arrow.first_frame([archive.files[i] for i in located.parts[number]], path)


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
