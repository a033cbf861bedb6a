"""d3rlpy's HDF5: flat files of version 1 (``flat``), and what version 2 dumps (``buffers``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, Part, Plan
from rlds_cli.archives.d3rlpy import buffers, flat
from rlds_cli.archives.d3rlpy.looking import cells as cells
from rlds_cli.archives.hdf5 import attributes, differences, is_hdf5, open_file, plain, reading
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Array, Chunk, Field, Note

VERSION = 1

PART_ROWS = 1 << 17
PART_BYTES = 256 << 20


def recognise(paths: Sequence[Path]) -> str | None:
    """One of d3rlpy's layouts in one line, or None."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
        if buffers.is_buffer(f):
            return f"d3rlpy layout (version 2): {files}{buffers.count(f):,} episodes"
        if flat.is_flat(f):
            return f"d3rlpy layout (version 1): {files}{flat.layout(f, paths[0].name).rows:,} rows"
    return None


def plan(archive: Archive) -> Plan:
    """Fields and parts. Reads the flags of flat files, and no bulk data.

    Raises
    ------
    UnknownLayout
        A version that is not known; a rule for ends, or a mapping, that does not apply; files that do not hold the
        same fields.
    CorruptArchive
        Columns of different lengths.
    """
    if archive.episodes_by is not None or archive.fields:
        raise UnknownLayout(
            "d3rlpy's files say themselves where episodes end and what is what.",
            hint="--format d4rl reads flat ones otherwise",
        )
    schemas: list[tuple[Field, ...]] = []
    parts: list[Part] = []
    notes: list[Note] = []
    versions = set()
    for index, path in enumerate(archive.files):
        with open_file(path) as f:
            version = 2 if buffers.is_buffer(f) else 1
            versions.add(version)
            schemas.append(buffers.fields(f, path.name) if version == 2 else flat.layout(f, path.name).fields)
            lengths = _lengths(f, path, version)
        parts += _parts(index, lengths, schemas[-1])
        if empty := sum(n < 1 for n in lengths):
            notes.append(Note("empty-episodes", "episodes without steps were left out", empty, archive.name_of(index)))
        if schemas[-1] != schemas[0]:
            raise UnknownLayout(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schemas[-1], schemas[0])),
                hint="import them one by one, under names of their own",
            )
    facts = {"d3rlpy": sorted(versions)}
    return Plan("d3rlpy", archive, schemas[0], tuple(parts), episodes_by="flags", facts=facts, notes=tuple(notes))


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The episodes of one part, several to a chunk.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file, or an episode that does not fit the others.
    """
    source, first, stop = (int(part.args[k]) for k in ("file", "first", "stop"))
    path = plan.archive.files[source]
    budget = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, sum(f.row_bytes for f in plan.schema))))
    with open_file(path, check=False) as f:
        if buffers.is_buffer(f):
            todo = [i for i, n in enumerate(buffers.lengths(f, path.name)) if first <= i < stop and n]
            yield from buffers.read(f, path, plan.schema, source, todo, budget)
        else:
            yield from flat.read(f, path, plan.schema, source, (first, stop), budget)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Version, whether actions are discrete, attributes; below the file's name where there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_file(path, check=False) as f, reading(path, "its metadata"):
            for name, value in _constants(f, path.name):
                yield prefix + name, value


def _constants(f: h5py.File, name: str) -> Iterator[tuple[str, Array | str]]:
    yield from attributes(f)
    if buffers.is_buffer(f):
        yield from buffers.constants(f, name).items()
        return
    for key in flat.layout(f, name).constants:
        if (value := plain(f[key])) is not None:
            yield key, value


def _lengths(f: h5py.File, path: Path, version: int) -> list[int]:
    if version == 2:
        return buffers.lengths(f, path.name)
    with reading(path, "its flags"):
        return [int(n) for n in flat.episodes(f, path, flat.layout(f, path.name).rows).length]


def _parts(source: int, lengths: Sequence[int], schema: Sequence[Field]) -> Iterator[Part]:
    """Episodes in their order, shared out to parts of about one size."""
    limit = max(1, min(PART_ROWS, PART_BYTES // max(1, sum(f.row_bytes for f in schema))))
    first, rows, count = 0, 0, 0
    for i, n in enumerate(lengths):
        rows, count = rows + (n + 1 if n else 0), count + bool(n)
        if (rows >= limit or i == len(lengths) - 1) and rows:
            yield Part(rows, {"file": source, "first": first, "stop": i + 1, "episodes": count})
            first, rows, count = i + 1, 0, 0
