"""Write episodes of a growing dataset once more, end to end.

They get segments of their own, so that all others are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import films, logs, segments
from rlds_cli.store.growing.areas import Spans, spans_of
from rlds_cli.store.growing.films import FilmWriter
from rlds_cli.store.growing.records import Records
from rlds_cli.store.growing.row_files import RowFiles
from rlds_cli.store.growing.segments import SegmentWriter
from rlds_cli.store.local import LocalFiles

_BYTES = 16 << 20  # of a field that are copied at once
_Change = Callable[[Array, int], Array]  # rows of an episode of a number as they are written


@dataclass(frozen=True, slots=True)
class Moved:
    """Episodes as they were written: their ``records``, lines ``about`` them, ``videos``, and rows [first, stop)."""

    records: Records
    about: bytes
    videos: Records
    first: int
    stop: int


def move(
    dataset: Path, files: RowFiles, g: Commit, old: Records, ends: Sequence[int], known_films: Mapping[int, int]
) -> Moved:
    """Write the rows of episodes end to end, behind all others; nothing is committed.

    Parameters
    ----------
    g : Commit
        The newest version.
    old : records [episodes]
    ends : sequence of int
        Rows, and bytes of frames, that there are.
    known_films : mapping
        How many videos each field of encoded frames has.
    """
    e, bases = old.copy(), -(-np.array(ends) // files.segment_rows) * files.segment_rows
    before = spans_of(old)
    sizes = before[:, :, 1] - before[:, :, 0]
    after = bases + np.cumsum(sizes, 0) - sizes  # first row in each area [episodes, areas]
    e["start"], e["open"] = after[:, 0], False
    e["frames"] = np.stack([after, after + sizes], 2)[:, 1:]
    e["about"] = g.about + np.cumsum(old["about_bytes"]) - old["about_bytes"]
    changes: dict[str, _Change] = {}
    videos = [np.zeros(0, logs.VIDEO_RECORD)]
    for k, (name, writer) in enumerate(files.of_bytes.items()):
        if writer.column.part == "films":
            known = logs.read_videos(dataset, 0, g.videos, len(files.of_bytes))
            to = FilmWriter(k, writer, known_films[k], int(bases[1 + k]), {})
            rows, row = _mapped(files.of_rows[name], before[:, 0])
            of = [rows[a - row : b - row] for a, b in before[:, 0].tolist()]
            e["frames"][:, k], numbers = films.move(to, known[known["field"] == k], of)
            videos.append(to.records())
            changes[name] = partial(_renumbered, numbers)
        else:
            _copy_rows(writer, before[:, 1 + k], int(bases[1 + k]))
            changes[name] = partial(_shifted, (after - before[:, :, 0])[:, 1 + k])
    first = int(bases[0])
    for name, writer in files.of_rows.items():
        _copy_rows(writer, before[:, 0], first, changes.get(name))
    for writer in files.of_digests.values():
        _copy_rows(writer, before[:, 0], first)
    return Moved(e, _abouts(dataset, old), np.concatenate(videos), first, first + int(sizes[:, 0].sum()))


def _abouts(dataset: Path, e: Records) -> bytes:
    """Return what the log of texts has of episodes, end to end."""
    edges = np.stack([e["about"], e["about"] + e["about_bytes"]], 1)
    first, stop = (int(edges[0, 0]), int(edges[-1, 1])) if len(e) else (0, 0)
    lines = logs.read_part(dataset / logs.ABOUT, first, stop)
    return b"".join(lines[a - first : b - first] for a, b in edges.tolist())


def _copy_rows(writer: SegmentWriter, spans: Spans, to: int, change: _Change | None = None) -> None:
    """Copy the rows of episodes [episodes, 2] end to end, from row ``to`` on; nothing is freed meanwhile."""
    rows, first = _mapped(writer, spans)
    step = max(1, _BYTES // max(1, writer.column.width))
    for k, (a, b) in enumerate(spans.tolist()):
        for at in range(a, b, step):
            part = rows[at - first : min(at + step, b) - first]
            writer.write(to, part if change is None else change(part, k))
            to += len(part)


def _mapped(of: SegmentWriter, spans: Spans) -> tuple[Array, int]:
    """Return the rows of an array from the first of some episodes [episodes, 2] on, and the number of that row."""
    first, stop = (int(spans[0, 0]), int(spans[-1, 1])) if len(spans) else (0, 0)
    needed = np.flatnonzero(segments.episodes_in(spans[:, 0], spans[:, 1], of.column.segment_rows)).tolist()
    column = replace(of.column, first=first, stop=stop, needed=tuple(needed))
    return LocalFiles(of.dataset, moves=False).array(column), first


def _shifted(shifts: IntArray, rows: Array, k: int) -> Array:
    moved: Array = rows + shifts[k]
    return moved


def _renumbered(numbers: IntArray, rows: Array, _k: int) -> Array:
    return films.renumbered(rows, numbers)
