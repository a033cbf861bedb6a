"""The files of a growing dataset as they are sent: those of one version, of which it is a reader like any other.

A writer may be at work. Of logs a snapshot has the bytes that belong to the version, of segments the rows of episodes
that are kept or dropped. What changes in place is made anew: the numbers of freed departures, and the ``zarr.json`` of
fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import trees
from rlds_cli.store import commits
from rlds_cli.store import files as store_files
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.segments import Layout, SegmentedArray
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.snapshots import LocalFile, runs


def of_version(
    path: Path, g: Commit, head: Manifest, layout: Layout, used: Callable[[SegmentedArray], tuple[IntArray, int]]
) -> Iterator[LocalFile]:
    """Yield the files of a version, each with the parts that belong to it.

    Parameters
    ----------
    path : Path
        Of the dataset.
    g, head, layout
        The version, what does not change, and the arrays.
    used : callable
        Returns the rows of an array [episodes, 2] that belong to the version, and how many the array has in all.
    """
    found = [array for f in head.fields for array in layout.of_field(f.name)]
    fields = {array.directory for array in found}
    for file in sorted(trees.files(path)):
        if file.name == "zarr.json" and file.parent not in fields:
            yield _made(file.relative_to(path).as_posix(), store_files.read_regular(file, Manifest.LONGEST))
    width = max(array.width for array in layout.by_row)
    for array in found:
        described, (spans, end) = array.directory / "zarr.json", used(array)
        yield _made(described.relative_to(path).as_posix(), json.dumps(array.document(end)).encode())
        needed = runs(spans, 1 if array in layout.bytes.values() else width)
        yield from _segments(array, path, needed, end)
    ends = {**logs.sizes(g, head.fields), commits.FILE: (g.number + 1) * commits.BYTES}
    for log, stop in ends.items():
        yield LocalFile(log, stop, ((0, stop),) if stop else (), path / log, growing=True)
    for name, data in logs.made(g).items():
        yield _made(name, data)


def _made(path: str, data: bytes) -> LocalFile:
    return LocalFile(path, len(data), ((0, len(data)),) if data else (), data=data)


def _segments(array: SegmentedArray, path: Path, needed: list[tuple[int, int]], rows: int) -> Iterator[LocalFile]:
    width, segment_rows = array.width, array.segment_rows
    parts: dict[int, list[tuple[int, int]]] = {}
    for first, stop in needed if width else ():
        for number in range(first // segment_rows, (stop - 1) // segment_rows + 1):
            base = number * segment_rows
            within = max(first, base) - base, min(stop, base + segment_rows) - base
            parts.setdefault(number, []).append((within[0] * width, within[1] * width))
    for number, extents in parts.items():
        file = array.file(number)
        name = file.relative_to(path).as_posix()
        yield LocalFile(name, array.size, tuple(extents), file, growing=(number + 1) * segment_rows > rows)
