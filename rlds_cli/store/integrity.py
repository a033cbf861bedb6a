"""Hash a dataset's directory again and compare it with its manifest; check that its parts agree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.files import trees
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.store import arrays, files, manifest, sealing, statistics
from rlds_cli.store.check import Checked, Problem, check_field, check_statistics, check_table, logical_size, rows_there
from rlds_cli.store.finish import table_digests
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store

_THREADS = 8
_MISSING_ROWS = 1 << 24  # more rows than fit: a truncated file is reported, a larger claim refused
_UNCOVERED = (
    "written by a version that kept no digests of files: metadata, sources and what the fingerprint leaves out of the "
    "episode table are not compared; made again with --force it has them"
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a dataset; ``ok`` if there are no ``problems``.

    ``fingerprint`` is that of the content on disk, None if a part cannot be read. ``arrays`` is the number of fields,
    ``bytes`` their size. ``remarks`` are about the archive or the source dataset. ``packed`` are damaged files that
    loaders packed from the dataset.
    """

    id: str
    path: Path
    ok: bool
    fingerprint: str | None
    arrays: int
    bytes: int
    problems: tuple[Problem, ...]
    remarks: tuple[str, ...]
    hint: str | None = None
    packed: tuple[Path, ...] = ()


def verify_directory(path: Path, *, jobs: int | None = None, progress: Progress | bool | None = None) -> Verification:
    """Check a directory by itself, without its archive or source dataset."""
    try:
        m = manifest.read(path)
        files.check_tree(path)
        _check_rows(path, m)
    except RldsError as e:
        return Verification(path.name, path, False, None, 0, 0, (Problem("manifest", e.message),), ())
    threads = jobs or min(_THREADS, os.cpu_count() or 1)
    checked = _check_fields(path, m, threads, shown(progress))
    problems = [p for c in checked for p in c.problems]
    columns, wrong = _check_episodes(path, {c.name for c in checked if not c.problems}, threads)
    problems += wrong
    seal = sealing.check(path, m, threads)
    problems += [*_check_others(path, m), *seal.problems]
    known = {c.name: c.digest for c in checked if c.digest is not None}
    fingerprint = None
    if columns is not None and len(known) == len(m.fields):
        fingerprint = statistics.fingerprint(known, columns)
        if fingerprint != m.fingerprint and not problems:
            problems.append(Problem("episodes", f"the fingerprint is {fingerprint}; the manifest says {m.fingerprint}"))
    size = sum(c.bytes for c in checked)
    remarks = () if seal.covers else (_UNCOVERED,)
    return Verification(m.id, path, not problems, fingerprint, len(checked), size, tuple(problems), remarks)


def _check_rows(path: Path, m: Manifest) -> None:
    """Refuse a number of rows far beyond the size of the files."""
    room = max((rows_there(path, f) for f in m.fields), default=0)
    if m.counts.rows > room + _MISSING_ROWS:
        raise DamagedDataset(f"{m.counts.rows:,} rows are in the manifest; the files hold {room:,}.")


def _check_fields(path: Path, m: Manifest, threads: int, progress: Progress) -> list[Checked]:
    rows = m.counts.rows
    sizes = {f.name: logical_size(path, f, rows) for f in m.fields}
    tell = _HashProgress(m.id, sum(sizes.values()), progress)
    with ThreadPoolExecutor(threads) as pool:
        # Largest first, so that the threads end at about the same time.
        order = sorted(m.fields, key=lambda f: -sizes[f.name])
        checked = list(pool.map(lambda f: check_field(path, f, rows, tell), order))
    return sorted(checked, key=lambda c: c.name)


class _HashProgress:
    """Reports the bytes that all threads have hashed."""

    def __init__(self, id: str, total: int, progress: Progress) -> None:
        self._id, self._total, self._progress = id, total, progress
        self._done = 0
        self._lock = Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done = min(self._total, self._done + size)
            self._progress(Event(self._id, "verify", "", self._done, self._total))


def _check_episodes(path: Path, sound: set[str], threads: int) -> tuple[dict[str, str] | None, list[Problem]]:
    """Check the episode table, and the statistics of ``sound`` fields; returns its digests and the problems."""
    try:
        store = Store(path, check=False)
        table = store.table()
        problems = check_table(store, table)
        if not problems:
            with ThreadPoolExecutor(threads) as pool:
                found = pool.map(lambda name: check_statistics(store, table, name), sorted(sound))
                problems = [p for some in found for p in some]
        return table_digests(table), problems
    except (RldsError, OSError, ValueError, KeyError, IndexError, TypeError) as e:
        return None, [Problem("episodes", e.message if isinstance(e, RldsError) else f"{type(e).__name__}: {e}")]


def _check_others(path: Path, m: Manifest) -> Iterator[Problem]:
    """Yield problems of all other parts: metadata, sources, string tables, the documents of groups."""
    fields = {path / f.path for f in m.fields}
    for document in sorted(f for f in trees.files(path) if f.name == "zarr.json"):
        array = document.parent
        if array == path or not fields.isdisjoint((array, *array.parents)):
            continue
        try:
            arrays.read(array) if arrays.is_array(array) else arrays.check_group(array)
        except RldsError as e:
            yield Problem(array.relative_to(path).as_posix(), e.message)
    for name in ("metadata", "sources"):
        if (m.metadata if name == "metadata" else m.archive) and not (path / name).exists():
            yield Problem(name, "is missing")
