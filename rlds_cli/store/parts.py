"""Finished parts of a dataset that is being written: their records in journals, and their rows on disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.repeated import Repeated
from rlds_cli.errors import RldsError
from rlds_cli.store import rows
from rlds_cli.store.columns import stored_row
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition, WrittenRows
from rlds_cli.ted import EpisodeTable, Field, Note

PLACE = "dataset"
FILMS = "films"  # beside it: videos that are in no other file
JOURNAL = "journal.jsonl"
Finished = dict[int, tuple[str, WrittenRows]]  # part -> its directory below the work, and what it wrote


def record(part: int, where: str, written: WrittenRows) -> dict[str, Any]:
    """Return the record of a finished part; ``where`` is its directory below the job's."""
    e, start = written.episodes, written.start
    return {
        "part": part,
        "where": where,
        "start": asdict(start) | {"strings": {k: len(v) for k, v in start.strings.items()}},
        "rows": written.rows,
        "frame_bytes": written.frame_bytes,
        "new_strings": written.new_strings,
        "hashes": written.hashes,
        "notes": [*map(asdict, written.notes)],
        "episodes": {
            **{name: getattr(e, name).tolist() for name in ("length", "end", "observed", "source", "row")},
            **{n: [*v] if not isinstance(v := getattr(e, n), Repeated) else [] for n in ("group", "seed", "options")},
            "splits": {k: v.tolist() for k, v in e.splits.items()},
            "extra": e.extra,
            "id": None if e.id is None else e.id.tobytes().hex(),
            "origin": None if e.origin is None else e.origin.tolist(),
        },
    }


def on_disk(work: Path, schema: Sequence[Field], records: Iterable[Any], numbers: Collection[int]) -> Finished:
    """Return the recorded parts among ``numbers`` whose rows below ``work`` still have their hashes."""
    paths = assign_paths(f.name for f in schema)
    whole: Finished = {}
    for record in records:
        number, where = record["part"], record["where"]
        if number in whole or number not in numbers:
            continue
        written = _from_json(record)
        if rows.rehash(work / where, schema, paths, written):
            whole[number] = (where, written)
    return whole


def _from_json(d: Mapping[str, Any]) -> WrittenRows:
    e = dict(d["episodes"])
    e["splits"] = {k: np.array(v, bool) for k, v in e["splits"].items()}
    e["id"] = e["id"] and np.frombuffer(bytes.fromhex(e["id"]), np.uint8).reshape(-1, 16)
    e["origin"] = None if e.get("origin") is None else np.array(e["origin"], np.int64)
    # Hashing needs the position alone: the strings before this part come from the parts before it.
    start = RowPosition(d["start"]["rows"], d["start"]["frame_bytes"], {})
    return WrittenRows(
        start=start,
        rows=d["rows"],
        frame_bytes=d["frame_bytes"],
        new_strings=d["new_strings"],
        hashes=d["hashes"],
        episodes=EpisodeTable(**e),
        notes=tuple(Note(**n) for n in d["notes"]),
    )


# -- rows


def splice(
    segment: Path, place: Path, f: Field, path: str, w: WrittenRows, before: RowPosition, after: RowPosition
) -> None:
    """Copy the rows of a segment to their place, with text codes and frame offsets of the whole dataset."""
    source, target = rows.files(segment, f, path), rows.files(place, f, path)
    for file in target.values():
        safe_files.make(file.parent)
        file.touch()
    if "offsets" in source:
        base = before.frame_bytes.get(f.name, 0)
        copy_range(source["bytes"], target["bytes"], base, w.frame_bytes[f.name])
        offsets = np.fromfile(source["offsets"], "<i8", 2 * w.rows) + base
        _write(target["offsets"], before.rows * 16, offsets)
    elif f.name in w.new_strings:
        width = int(np.prod(stored_row(f)[1], dtype=np.int64))
        codes = np.fromfile(source["rows"], "<i4", w.rows * width).reshape(w.rows, width)
        index = {s: i for i, s in enumerate(after.strings[f.name])}
        mapped = np.array([*(index[s] for s in w.new_strings[f.name]), rows.NO_TEXT], "<i4")
        codes[:, 0] = mapped[codes[:, 0]]
        _write(target["rows"], before.rows * width * 4, codes)
    else:
        width = arrays.row_bytes((0, *f.shape), f.dtype)
        copy_range(source["rows"], target["rows"], before.rows * width, w.rows * width)


def _write(file: Path, offset: int, values: Array) -> None:
    with safe_files.updating(file) as out:
        arrays.write_at(out.fileno(), offset, values)


def copy_range(source: Path, target: Path, offset: int, size: int, *, start: int = 0) -> None:
    """Copy ``size`` bytes of ``source``, from ``start`` on, into ``target`` at ``offset``, in the kernel if it can."""
    with source.open("rb") as a, safe_files.updating(target) as b:
        at = 0
        while at < size:
            n = _copy_some(a.fileno(), b.fileno(), size - at, start + at, offset + at)
            if n == 0:
                raise RldsError(f"{source} ended after {at:,} of {size:,} bytes.")
            at += n


def _copy_some(source: int, target: int, size: int, at: int, to: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, size, at, to)
        except OSError:
            pass  # another file system, or one that cannot
    data = os.pread(source, min(size, 1 << 20), at)
    return os.pwrite(target, data, to)
