"""The files of a growing dataset as they are sent: those of one version, of which it is a reader like any other.

A writer may be at work. Of logs a snapshot has the bytes that belong to the version, of segments the rows of episodes
that are kept or dropped. What changes in place is made anew: the numbers of freed departures, and the ``zarr.json`` of
fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import trees
from rlds_cli.store import commits
from rlds_cli.store import files as store_files
from rlds_cli.store.columns import Column
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.snapshots import LocalFile, runs


def of_version(
    path: Path, g: Commit, head: Manifest, columns: Sequence[Column], spans_of: Callable[[Column], IntArray]
) -> Iterator[LocalFile]:
    """Yield the files of a version, each with the parts that belong to it.

    Parameters
    ----------
    path : Path
        Of the dataset.
    g, head, columns
        The version, what does not change, and what the version has of each array.
    spans_of : callable
        Returns the entries of an array that belong to the episodes of the version [episodes, 2].
    """
    fields = {path / c.directory for c in columns}
    for file in sorted(trees.files(path)):
        if file.name == "zarr.json" and file.parent not in fields:
            yield _made(file.relative_to(path).as_posix(), store_files.read_regular(file, Manifest.LONGEST))
    width = max(c.width for c in columns if c.by_row)
    for c in columns:
        yield _made((c.directory / "zarr.json").as_posix(), json.dumps(c.document).encode())
        yield from _segments(c, path, runs(spans_of(c), width if c.by_row else 1))
    ends = {**logs.sizes(g, head.fields), commits.FILE: (g.number + 1) * commits.BYTES}
    for log, stop in ends.items():
        yield LocalFile(log, stop, ((0, stop),) if stop else (), path / log, growing=True)
    for name, data in logs.made(g).items():
        yield _made(name, data)


def _made(path: str, data: bytes) -> LocalFile:
    return LocalFile(path, len(data), ((0, len(data)),) if data else (), data=data)


def _segments(c: Column, path: Path, needed: list[tuple[int, int]]) -> Iterator[LocalFile]:
    width, segment_rows = c.width, c.segment_rows
    parts: dict[int, list[tuple[int, int]]] = {}
    for first, stop in needed if width else ():
        for number in range(first // segment_rows, (stop - 1) // segment_rows + 1):
            base = number * segment_rows
            within = max(first, base) - base, min(stop, base + segment_rows) - base
            parts.setdefault(number, []).append((within[0] * width, within[1] * width))
    for number, extents in parts.items():
        file, growing = c.file(number), (number + 1) * segment_rows > c.stop
        yield LocalFile(file.as_posix(), c.size, tuple(extents), path / file, growing=growing)
