"""Minari: ``data/main_data.hdf5``, or ``data/<episode>/part-0.{arrow,parquet}``, beside ``data/metadata.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rlds_cli.archives import Archive, Part, Plan
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.minari import arrow, description, files, hdf5, planning, rows
from rlds_cli.archives.minari.files import choose as choose
from rlds_cli.archives.minari.looking import cells as cells
from rlds_cli.errors import RldsError, UnknownLayout
from rlds_cli.ted import Array, Chunk

VERSION = 1


def recognise(paths: Sequence[Path]) -> str | None:
    """What the files are, in one line, or None."""
    try:
        located = files.locate(paths)
        if located is None:
            return None
        metadata = planning.describe(paths, located)
        if not (description.is_minari(metadata) if metadata else planning.looks_right(paths, located)):
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
    located = files.locate(archive.files)
    if located is None:
        raise UnknownLayout(
            "There is no Minari dataset here: neither main_data.hdf5 nor <episode>/part-0.arrow or .parquet."
        )
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: a Minari archive holds whole episodes.',
            hint="leave it out",
        )
    return planning.plan(archive, located)


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
                return hdf5.Rows(opened, main, numbers[k], paths)
            described = part.args["described"][k]
            metadata = None if described is None else plan.archive.files[described]
            data = [plan.archive.files[i] for i in sources[k]]
            return arrow.Rows(data, paths, metadata, batch_rows=part.args["chunk_rows"])

        chunks = rows.pieces(part.args["lengths"], part.args["chunk_rows"])
        yield from rows.read(plan.schema, set(paths), chunks, episode, origins)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """``metadata.json``, or what stands for it, as text."""
    located = files.locate(plan.archive.files)
    if located is not None and located.metadata is not None:
        yield "minari/metadata.json", located.metadata.read_text()
    elif located is not None and (content := planning.describe(plan.archive.files, located)):
        yield "minari/metadata.json", json.dumps(content)
