"""Verify a growing dataset: its versions, logs and segments, and the kept episodes against their digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.store import commits, digests, files, layouts
from rlds_cli.store.growing import edits, logs, segments
from rlds_cli.store.growing.records import digests_of
from rlds_cli.store.growing.table import LoggedTable
from rlds_cli.store.integrity import Verification
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.store.sealing import Problem
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, VIDEO, EpisodeTable, VideoFrames

_MOST_PROBLEMS = 64  # episodes that are named
_TOLD = 256  # episodes between two reports of progress
_ROUNDING = 1e-9


def verify_directory(
    path: Path, *, version: int | None = None, progress: Progress | bool | None = None
) -> Verification:
    """Check a growing dataset, at its newest version or another existing one.

    Every record of a version has a checksum, and a hash of the logs. The logs have a digest for each episode of each
    field. Damage of rows is named by field and episode, counted in the version.
    """
    try:
        table = LoggedTable.open(path, version, check=False)
    except (RldsError, OSError, ValueError, KeyError) as e:
        return Verification(path.name, path, False, None, 0, 0, (Problem("manifest", _why(e)),), ())
    problems = [*_manifest(path), *_versions(path), *_logs(table), *_arrays(table)]
    if not problems and (broken := table.broken()) is not None:
        problems.append(Problem("logs", f"are not what version {broken:,} wrote"))
    fingerprint, size = None, 0
    if not problems:
        try:
            fingerprint, size, found = _episodes(table, shown(progress))
            problems += found
        except (RldsError, OSError, ValueError, KeyError, IndexError) as e:
            problems.append(Problem("episodes", _why(e)))
    what = (table.head.id, path, not problems, fingerprint, len(table.fields), size, tuple(problems), ())
    return Verification(*what, version=table.version)


def _why(e: Exception) -> str:
    return e.message if isinstance(e, RldsError) else f"{type(e).__name__}: {e}"


def _manifest(path: Path) -> Iterator[Problem]:
    """Compare the manifest with its own digest."""
    if not Manifest.has_own_digest(path):
        yield Problem("manifest", "its digest is not that of zarr.json")


def _versions(path: Path) -> Iterator[Problem]:
    """Check every record of a version, and that none has less than the one before."""
    newest = commits.last(path).number
    with files.open_regular(path / commits.FILE) as log:
        data = os.pread(log.fileno(), (newest + 1) * commits.BYTES, 0)
    before = None
    for number in range(newest + 1):
        g = commits.unpacked(data[number * commits.BYTES : (number + 1) * commits.BYTES])
        if g is None or g.number != number:
            yield Problem(commits.FILE, f"the record of version {number:,} is damaged")
            continue
        if before is not None and any(
            getattr(g, name) < getattr(before, name)
            for name in (
                "rows",
                "episodes",
                "departed",
                "about",
                "sources",
                "strings",
                "videos",
                "edits",
                "first_row",
                "first_episode",
                "moved",
            )
        ):
            yield Problem(commits.FILE, f"version {number:,} has less than the one before")
        before = g


def _logs(table: LoggedTable) -> Iterator[Problem]:
    """Check that every log exists, is as long as the version says, and readable."""
    g, path = table.commit, table.files.path
    for name, stop in ((logs.SOURCES, g.sources), (logs.STRINGS, g.strings), (logs.ABOUT, g.about)):
        try:
            for line in logs.read_part(path / name, 0, stop).split(b"\n"):
                if line:
                    documents.loads(line)
        except (DamagedDataset, ValueError) as e:
            yield Problem(name, _why(e))
    try:
        edits.EditLog(path, table.head).read(g)
    except RldsError as e:
        yield Problem(logs.EDITS, _why(e))
    try:
        left = logs.read_departed(path, g.departed)
        if len(left) and not 0 <= left.min() <= left.max() < g.episodes:
            yield Problem(logs.DEPARTED, "names an episode that is not there")
        elif len(distinct(left)) != len(left):
            yield Problem(logs.DEPARTED, "names an episode twice")
        records = logs.read_episodes(path, g.first_episode, g.episodes, len(table.encoded))
        logs.check_episodes(records, (g.first_row, 0), g.rows, len(table.sources), path)
        logs.read_videos(path, 0, g.videos, len(table.encoded))
    except RldsError as e:
        yield Problem("episodes", _why(e))


def _arrays(table: LoggedTable) -> Iterator[Problem]:
    """Check the segments of each field, and the document that describes them to other readers."""
    for c in segments.columns_of(table.head):
        with suppress(RldsError):  # `_logs` has said why
            c = table.column(c.field, c.part)
        try:
            shape, dtype = layouts.open_document(table.files.path / c.directory)
            if shape[1:] != c.shape or dtype != c.dtype:
                said = f"zarr.json says {dtype} {list(shape[1:])} of a row, not {c.dtype} {list(c.shape)}"
                yield Problem(c.field, said)
            for s in table.files.segments(c):
                layouts.check_size(s.file, s.size)
        except (RldsError, OSError, ValueError, KeyError) as e:
            yield Problem(c.field, _why(e))


def _episodes(version: LoggedTable, tell: Progress) -> tuple[str, int, list[Problem]]:
    """Compare the episodes with their digests; return the fingerprint of what is stored, and its bytes."""
    store = Store(version)
    table, columns, fields = store.episode_table(), store.episodes, sorted(store.fields.values(), key=lambda f: f.name)
    recorded = {f.name: store.digests(f.name) for f in fields}
    found = {f.name: np.zeros((len(table), logs.DIGEST), np.uint8) for f in fields}
    problems, size, hashes = list[Problem](), 0, dict[tuple[str, int], bytes]()
    before, total = np.cumsum(table.length) - table.length, int(table.length.sum())
    for k in range(len(table)):
        a, length, observed = int(columns["start"][k]), table.length[k : k + 1], table.num_observed[k : k + 1]
        numbers = np.arange(a, a + int(length[0]) + 1)
        rows: dict[str, Any] = {}
        for f in fields:
            files = None
            try:
                if f.codec == VIDEO:
                    rows[f.name], files = _of_videos(store, f.name, numbers, hashes)
                else:
                    encoded = f.kind == "frames"
                    rows[f.name] = store.frames(f.name).encoded(numbers) if encoded else store.gather(f.name, numbers)
            except DamagedDataset as e:  # offsets of frames, or numbers of videos, that cannot be
                problems.append(Problem(f.name, e.message, (k, k + 1)))
                continue
            size += rows[f.name].nbytes
            values = rows[f.name].tolist() if f.kind == "text" else rows[f.name]
            of_episode, of_rows = digests_of(f, values, np.zeros(1, np.int64), length, observed, files)
            found[f.name][k] = of_episode[0]
            if not np.array_equal(found[f.name][k], recorded[f.name][k]):
                problems.append(Problem(f.name, "is not as it was written", (k, k + 1)))
            elif of_rows is not None and not np.array_equal(of_rows, store.table.row_digests(f.name)[numbers]):
                problems.append(Problem(f"{ROW_DIGESTS}/{f.name}", "are not the digests of its rows", (k, k + 1)))
        if not problems and (wrong := _wrong_columns(columns, k, rows, int(length[0]))):
            problems.append(Problem(f"episodes/{wrong}", "is not that of the rows", (k, k + 1)))
        if len(problems) >= _MOST_PROBLEMS:
            break
        if k % _TOLD == 0:
            tell(Event(store.manifest.id, "verify", "", int(before[k]), total, "steps"))
    of_fields = {f.name: digests.of_field(f, found[f.name]) for f in fields}
    fingerprint = digests.ContentDigests(of_fields, digests.of_table(table)).fingerprint
    if not problems:
        problems += _counts(version, table, columns)
    return fingerprint, size, problems


def _of_videos(
    store: Store, name: str, numbers: IntArray, known: dict[tuple[str, int], bytes]
) -> tuple[VideoFrames, digests.Digests]:
    """Return rows of a field in videos, with the sha256 of the videos; ``known`` are those that were read before."""
    index = store.rows(name)[numbers]
    used, place = np.unique(index[:, 0], return_inverse=True)
    for number in used[used >= 0].tolist():
        if (name, number) not in known:
            known[name, number] = hashlib.sha256(arrays.raw(store.videos(name).published(number))).digest()
    files = digests.as_array([known.get((name, number), bytes(32)) for number in used.tolist()])
    local = np.where(index[:, 0] >= 0, place.reshape(-1), -1)
    return VideoFrames((), np.stack([local, index[:, 1]], 1).astype(np.int32)), files


def _wrong_columns(columns: Mapping[str, Array], k: int, rows: dict[str, Any], length: int) -> str | None:
    """Return the name of a column that the rows of an episode contradict."""
    if REWARD in rows and rows[REWARD].ndim == 1 and rows[REWARD].dtype.kind in "biuf":
        total, told = float(np.sum(rows[REWARD], dtype=np.float64)), float(columns["total_reward"][k])
        scale = float(np.sum(np.abs(rows[REWARD]), dtype=np.float64))
        if not (abs(total - told) <= _ROUNDING * (1 + scale) or (total != total and told != told) or total == told):
            return "total_reward"
    if all(name in rows for name in FLAGS):
        terminated, truncated = (np.asarray(rows[name], bool) for name in FLAGS)
        if int(terminated.sum()) != columns["num_terminated"][k]:
            return "num_terminated"
        if int((terminated | truncated).sum()) != columns["num_done"][k]:
            return "num_done"
    return None


def _counts(version: LoggedTable, table: EpisodeTable, columns: Mapping[str, Array]) -> Iterator[Problem]:
    """Compare the counts of the version with the table of the episodes that are kept."""
    g = version.commit
    ended = {"terminated": TERMINATED, "truncated": TRUNCATED, "cut": CUT}
    found = {
        "kept": len(table),
        "steps": int(table.length.sum()),
        "transitions": int(table.num_transitions.sum()),
        "final_observations": int(table.observed.sum()),
        **{name: int((table.end == code).sum()) for name, code in ended.items()},
    }
    if all(name in version.fields for name in FLAGS):
        found["terminated_inside"] = int(columns["num_terminated"].sum()) - found["terminated"]
    for name, count in found.items():
        if getattr(g, name) != count:
            yield Problem(commits.FILE, f"version {g.number:,} counts {getattr(g, name):,} {name}, not {count:,}")
    if not np.array_equal(columns["num_transitions"], table.num_transitions):
        yield Problem(logs.EPISODES, "num_transitions does not fit length and end")
