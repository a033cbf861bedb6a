"""The files of replay logs: their checkpoints, columns and headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from rlds_cli.archives.formats.compressed import MAX_RATIO, Unpacked, open_unpacked
from rlds_cli.archives.formats.npz import ZipMember, parse_header
from rlds_cli.archives.readers import Archive
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import Note

NAME = re.compile(r"(?P<prefix>\$store\$_)?(?P<store>\w+)_ckpt\.(?P<number>\d+)\.gz")
NEEDED = ("observation", "action", "reward", "terminal")
MAX_SCALARS = 1 << 10  # values of add_count and invalid_range


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One dump of the buffer: number ``number`` of the log in directory ``where``.

    ``files`` maps columns to indices of the archive's files, ``kinds`` to dtypes and row shapes. ``add_count`` is the
    number of rows added until then, None if it is not recorded; ``invalid`` are the rows around the position.
    """

    where: str
    number: int
    capacity: int
    files: Mapping[str, int]
    kinds: Mapping[str, tuple[str, tuple[int, ...]]]
    paths: Mapping[str, Path]
    add_count: int | None
    invalid: tuple[int, ...]

    @property
    def label(self) -> str:
        """The name of the checkpoint in messages."""
        return f"{self.where}checkpoint {self.number}"

    def column(self, store: str) -> Array:
        """Read a whole column of small rows."""
        with open_column(self.paths[store]) as (f, member):
            values = rows(f, member, member.shape[0])
            f.finish()
            return values


def find(archive: Archive) -> tuple[list[Checkpoint], list[Note]]:
    """Find the checkpoints of all logs, by directory and number; the notes name missing ones.

    Raises
    ------
    UnknownLayout
        There is none.
    CorruptArchive
        A checkpoint lacks a column; with ``skip_bad`` it is left out.
    """
    named: list[tuple[str, int, str, int]] = []
    others = 0
    for i, path in enumerate(archive.files):
        m = NAME.fullmatch(path.name)
        where = archive.name_of(i).rpartition("/")[0]
        if m:
            named.append((f"{where}/" if where else "", int(m["number"]), m["store"], i))
        others += m is None
    found, bad = [], {}
    ordered = sorted(named, key=lambda n: (natural(n[0]), n[1]))
    for (where, number), group in groupby(ordered, key=lambda n: n[:2]):
        files = {store: i for _, _, store, i in group}
        try:
            found.append(_checkpoint(archive, where, number, files))
        except CorruptArchive as e:
            bad[f"{where}checkpoint {number}"] = e
    if not found and not bad:
        raise UnknownLayout(
            f"{archive.root.name} holds no replay logs of Dopamine ($store$_observation_ckpt.0.gz, ...)."
        )
    return found, _notes(archive, found, bad, others)


def _notes(archive: Archive, found: Sequence[Checkpoint], bad: Mapping[str, CorruptArchive], others: int) -> list[Note]:
    notes = []
    if bad:
        named = "; ".join(f"{label}: {e.message}" for label, e in bad.items())
        if not archive.skip_bad or not found:
            hint = "--skip-bad leaves them out" if found else "fetch them again"
            raise CorruptArchive(f"{len(bad)} checkpoints cannot be read. {named}", hint=hint)
        notes.append(Note("bad-files", f"checkpoints were left out. {named}", len(bad), next(iter(bad))))
    for where, group in groupby(found, key=lambda c: c.where):
        numbers = [c.number for c in group]
        if missing := sorted({*range(max(numbers) + 1)} - {*numbers}):
            said = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
            text = f"checkpoints are not there: {said}; episodes that ran into them are cut"
            notes.append(Note("missing-checkpoints", text, len(missing), where or "checkpoint"))
    if uncounted := [c for c in found if c.add_count is None and not c.invalid]:
        text = "checkpoints do not say how far they were written; all rows but the last are taken to be data"
        notes.append(Note("no-add-count", text, len(uncounted), uncounted[0].label))
    if others:
        notes.append(Note("other-files", "files that do not belong to a log were not read", others))
    return notes


def _checkpoint(archive: Archive, where: str, number: int, files: Mapping[str, int]) -> Checkpoint:
    paths = {store: archive.files[i] for store, i in files.items()}
    missing = [store for store in NEEDED if store not in paths]
    if missing:
        raise CorruptArchive(f"it has no {' and no '.join(missing)}")
    counts = {s: _small(paths[s]) for s in ("add_count", "invalid_range") if s in paths}
    members = {s: _header(p) for s, p in paths.items() if s not in counts and "$store$" in p.name}
    lengths = {s: m.shape[0] if m.shape else None for s, m in members.items()}
    capacity = lengths["observation"]
    if capacity is None or capacity < 2 or set(lengths.values()) != {capacity}:
        raise CorruptArchive(f"its columns have different numbers of rows: {lengths}")
    if archive.skip_bad:
        _read_through(paths[s] for s in members)
    kinds = {s: (m.dtype.newbyteorder("=").name, m.shape[1:]) for s, m in sorted(members.items())}
    wrong = [s for s in ("reward", "terminal") if kinds[s][1]]
    if wrong or any(np.dtype(dtype).kind not in "biuf" for dtype, _ in kinds.values()):
        raise CorruptArchive(f"its columns are not those of a log: {kinds}")
    add_count = int(counts["add_count"][0]) if len(counts.get("add_count", ())) else None
    invalid = tuple(map(int, counts.get("invalid_range", ())))
    return Checkpoint(where, number, capacity, files, kinds, paths, add_count, invalid)


def _small(path: Path) -> Array:
    """Read a few integers; none if they have another form, as from loggers that pickle them."""
    try:
        with open_column(path) as (f, member):
            if member.size <= MAX_SCALARS and member.dtype.kind in "iu":
                return _values(f, member, member.size)
    except CorruptArchive:
        pass
    return np.zeros(0, np.int64)


def _header(path: Path) -> ZipMember:
    with open_column(path) as (_, member):
        claimed, stored = member.nbytes, path.stat().st_size
        if claimed > MAX_RATIO * stored + (64 << 20):
            raise CorruptArchive(f"{path.name} says it has {claimed:,} bytes, and is {stored:,} bytes packed")
        return member


def _read_through(paths: Iterable[Path]) -> None:
    """Unpack files to their ends, so that damage is found before anything is planned."""
    for path in paths:
        with open_column(path) as (f, _):
            f.finish()


@contextmanager
def open_column(path: Path) -> Iterator[tuple[Unpacked, ZipMember]]:
    """Open a packed ``.npy``, and read its header.

    Raises
    ------
    CorruptArchive
        It is damaged.
    UnsafeArchive
        It holds Python objects.
    """
    with open_unpacked(path, ratio=1100) as f:
        member = parse_header(path.name, f, path.parent.name)  # type: ignore[arg-type]  # it has read()
        if member.fortran:
            raise CorruptArchive(f"{path.name} is stored in Fortran order, unlike any log")
        yield f, member


def rows(f: Unpacked, member: ZipMember, count: int) -> Array:
    """Read the next ``count`` rows."""
    flat = _values(f, member, count * member.size // max(member.shape[0], 1))
    return flat.reshape(count, *member.shape[1:])


def _values(f: Unpacked, member: ZipMember, size: int) -> Array:
    out = np.empty(size, member.dtype)
    view = memoryview(out.view(np.uint8)) if size else memoryview(bytearray())  # type: ignore[arg-type]
    if f.readinto(view) < len(view):
        raise CorruptArchive(
            f"{f.path.name} ends before its {member.shape[0] if member.shape else 1:,} rows do",
            hint=f"delete {f.path} and fetch it again",
        )
    return out.astype(member.dtype.newbyteorder("="), copy=False)
