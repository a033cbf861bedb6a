"""Prove an export: read its files as an import does, and hash the episodes without writing them.

The digests are those of `store.digests`, so the fingerprint is that of the dataset that an import would make. Several
processes or threads read the parts of large files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.archives.boundary import reader
from rlds_cli.archives.exports.content import Content
from rlds_cli.archives.exports.format import Format
from rlds_cli.archives.readers import Plan, Replan
from rlds_cli.base.array_types import BoolArray
from rlds_cli.base.files.hashing import short
from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.workers import Processes, Threads, run_items
from rlds_cli.errors import ExportError
from rlds_cli.make import plan_import
from rlds_cli.store import ContentDigests, EpisodeHash, FieldHash
from rlds_cli.store.digests import Digests
from rlds_cli.ted import Column, EpisodeTable, Field, Scalar, VideoFrames

_ID = "local/export"
_ALONE = 256 << 20  # bytes that one process reads: starting others takes longer
_THREADS = 4
_FEW = 8  # parts that threads read, as they wrote them: a process that starts imports what this one has


@dataclass(frozen=True, slots=True)
class Read:
    """The content of exported files: digests of the fields by name, and the episodes."""

    fields: Mapping[str, str]
    table: EpisodeTable

    @property
    def digests(self) -> ContentDigests:
        """The digests of the dataset that an import would make."""
        return ContentDigests.of(self.fields, self.table)


def prove(made: Format, directory: Path, expected: str, jobs: int, tell: Progress) -> None:
    """Read the files below ``directory``, and compare them with the content.

    Raises
    ------
    ExportError
        They hold something else.
    """
    found = read(made, directory, jobs, tell)
    differ = _differences(made.content, found, expected)
    if differ:
        raise ExportError(
            f"{made.content.id} as {made.name}: importing the files again gives {short(found.digests.fingerprint)}"
            f" instead of {short(expected)}. These differ: {', '.join(differ[:8])}{', ...' * (len(differ) > 8)}.",
            hint=f"rlds verify {made.content.id} checks the dataset; nothing was written to {made.target}",
        )


def _differences(content: Content, found: Read, expected: str) -> list[str]:
    """Name the fields and columns that differ; empty if the content is the same."""
    odd = [
        f"episode column {n}"
        for n, values in content.table.extra.items()
        if not _alike(values, found.table.extra.get(n, ()))
    ]
    again = found.digests
    if again.fingerprint == expected:
        return odd
    given = content.digests()
    odd += [n for n in sorted({*given.fields, *again.fields}) if given.fields.get(n) != again.fields.get(n)]
    columns = sorted({*given.columns, *again.columns})
    odd += [f"episodes: {n}" for n in columns if given.columns.get(n) != again.columns.get(n)]
    return odd or ["rows that are damaged on this disk"]


def _alike(values: Sequence[Scalar], again: Sequence[Scalar]) -> bool:
    """Compare the values of a column; a NaN is one again."""
    pairs = zip(values, again, strict=False)
    return len(values) == len(again) and all(a == b or (a != a and b != b) for a, b in pairs)


def read(made: Format, directory: Path, jobs: int, tell: Progress) -> Read:
    """Read the files as an import does."""
    options = made.import_options()
    plan = plan_import(made.files(directory), _ID, reader=made.reader, **options).plan
    while True:
        try:
            return _read(plan, made, jobs, tell)
        except Replan as better:
            plan = better.plan


@dataclass(slots=True)
class _Parts:
    """The result of reading some parts: digests of episodes by field, and the episode table."""

    hashes: dict[str, Digests]
    table: EpisodeTable
    rows: int


def _read(plan: Plan, made: Format, jobs: int, tell: Progress) -> Read:
    """Read all parts, side by side where there are several large ones."""
    content = made.content
    size = sum(content.row_bytes(name) for name in content.fields) * content.num_rows
    workers = min(jobs, len(plan.parts)) if size > _ALONE else 1
    found: dict[int, _Parts] = {}

    def report(rows: int) -> None:
        done = rows + sum(p.rows for p in found.values())
        tell(Event(content.id, "check", "imported again", done, content.num_rows, "rows"))

    if workers > 1:
        items: dict[int, tuple[int]] = {i: (i,) for i in range(len(plan.parts))}
        few = made.threads and len(plan.parts) <= _FEW
        executor = Threads(min(workers, _THREADS)) if few else Processes(workers)
        for i, part in run_items(
            _read_part, plan, items, executor, id=content.id, name=lambda i: f"exported part {i + 1:,}", progress=tell
        ):
            found[i] = part
            report(0)
    else:
        for i in range(len(plan.parts)):
            found[i] = _read_part(plan, i, report)
    ordered = [found[i] for i in range(len(plan.parts))]
    of_fields = {
        f.name: np.concatenate([np.zeros((0, 32), np.uint8), *(p.hashes[f.name] for p in ordered)]) for f in plan.schema
    }
    fields = {f.name: FieldHash(f).of_field(of_fields[f.name]) for f in plan.schema}
    return Read(fields, EpisodeTable.concat([p.table for p in ordered]))


def _read_part(plan: Plan, number: int, report: Callable[[int], None] = lambda rows: None) -> _Parts:
    """Read a part as an import does, and hash its episodes instead of writing them."""
    hashers = {f.name: _Hasher(f, plan) for f in plan.schema}
    tables, rows = [], 0
    with ThreadPoolExecutor(_THREADS) as pool:
        pending: list[Future[None]] = []
        for chunk in reader(plan.reader).read(plan, plan.parts[number]):
            for future in pending:
                future.result()
            pending = [pool.submit(h.add, chunk.columns[n], chunk.last, chunk.episodes) for n, h in hashers.items()]
            tables.append(chunk.episodes)
            rows += len(chunk)
            report(rows)
        for future in pending:
            future.result()
    return _Parts({name: h.episodes for name, h in hashers.items()}, EpisodeTable.concat(tables), rows)


class _Hasher:
    """Hashes the episodes of a field, whose rows come in chunks."""

    def __init__(self, f: Field, plan: Plan) -> None:
        self.field, self._plan = f, plan
        self._each = EpisodeHash(f)
        self._files: dict[str, bytes] = {}  # sha256 of videos

    @property
    def episodes(self) -> Digests:
        """Digests of the episodes that have ended."""
        return self._each.episodes

    def add(self, column: Column, last: BoolArray, ended: EpisodeTable) -> None:
        """Add the rows of a chunk. ``last`` marks last rows; ``ended`` describes the episodes that they end."""
        f, videos = self.field, None
        if isinstance(column, np.ndarray) and (column.dtype != np.dtype(f.dtype) or column.shape[1:] != f.shape):
            raise ExportError(f"{f.name} is read as {column.dtype} {list(column.shape[1:])}, not as {f.dtype}.")
        if isinstance(column, VideoFrames):
            videos = np.frombuffer(b"".join(map(self._file, column.files)), np.uint8).reshape(-1, 32)
        ends = np.flatnonzero(last)
        stops = ends + ended.observed if f.placement == "both" else ends
        if len(ends):  # of the first episode some rows may have come before
            self._each.add(column, 0, int(stops[0]), videos=videos)
            self._each.end()
            start = ends[:-1] + 1
            self._each.add_episodes(column, start, stops[1:] - start, videos=videos)
        self._each.add(column, int(ends[-1]) + 1 if len(ends) else 0, len(last), videos=videos)

    def _file(self, name: str) -> bytes:
        if name not in self._files:
            with (self._plan.archive.root / name).open("rb") as file:
                self._files[name] = hashlib.file_digest(file, "sha256").digest()
        return self._files[name]
