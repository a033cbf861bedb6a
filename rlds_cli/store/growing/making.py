"""Make a growing dataset, without episodes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import __version__
from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.store import commits, digests, layouts, statistics
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs, retention, segments
from rlds_cli.store.growing.retention import Keep
from rlds_cli.store.manifest import Counts, Manifest, StoredField
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.table import arrays_of
from rlds_cli.ted import VIDEO, Field


def make_growing(
    directory: Path,
    id: str,
    schema: Sequence[Field],
    *,
    keep: Keep | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a growing dataset, without episodes, into an empty directory. ``about`` are members of the manifest."""
    paths = assign_paths(f.name for f in schema)
    fields = tuple(_stored(f, paths[f.name]) for f in sorted(schema, key=lambda f: f.name))
    width = sum(c.width for f in fields for c in arrays_of(f) if c.by_row)
    limit = keep.steps if isinstance(keep, retention.Fifo) else None
    most = None if limit is None else max(layouts.PAGE_ROWS, limit // 8)
    growing: dict[str, Any] = {"segment_rows": segments.rows_of_segment(width, most)}
    if frames := [math.prod(f.shape) for f in schema if f.kind == "frames"]:
        if any(f.codec == VIDEO for f in schema):  # a video has frames of many steps
            limit = None
        growing["segment_bytes"] = segments.bytes_of_segment(max(frames), None if limit is None else limit // 8)
    if keep:
        growing["keep"] = retention.to_json(keep)
    head = Manifest(
        format=Manifest.GROWING_FORMAT,
        id=id,
        encoding="memmap",
        fields=fields,
        counts=Counts(**commits.counts_of(Commit())),
        fingerprint="",
        created=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        rlds_version=__version__,
        stats={f.name: _no_stats(f) for f in schema if f.kind == "array" and "complex" not in f.dtype},
        growing=growing,
        **dict(about or {}),
    )
    for c in segments.columns_of(head):
        of_array = directory / c.directory
        safe_files.make(of_array.parent)
        of_array.mkdir(safe_files.DIRECTORY)
        safe_files.write_bytes(of_array / "zarr.json", json.dumps(c.document).encode())
    layouts.write_groups(directory)
    for name in (*logs.ALL, logs.READERS, logs.WRITERS, logs.COMMIT):
        safe_files.write_bytes(directory / name, b"")
    safe_files.write_bytes(directory / logs.FREED, bytes(16))
    safe_files.write_bytes(directory / commits.FILE, Commit(time=time.time()).packed())
    head.write(directory)
    Manifest.read(directory)  # refuse now what would be refused on opening
    for path in [directory, *(p for p in directory.rglob("*") if p.is_dir())]:
        disk.sync_directory(path)


def _stored(f: Field, path: str) -> StoredField:
    digest = digests.of_field(f, digests.as_array([]))
    return StoredField(f.name, path, f.dtype, f.shape, f.placement, f.kind, f.codec, digest)


def _no_stats(f: Field) -> dict[str, Any]:
    return asdict(statistics.Accumulator(f.shape).result(np.zeros((0, *f.shape), f.dtype)))
