"""Are the bytes of a dataset what they were when it was written, and does it agree with itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from rlds_cli import settings, targets, trees
from rlds_cli.bars import shown
from rlds_cli.checks import outdated
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.keeping import origins
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import StrPath
from rlds_cli.store import arrays, digests, files, manifest, sealing
from rlds_cli.store.checking import Checked, Problem, check_field, logical_size, rows_there
from rlds_cli.store.consistency import check_statistics, check_table
from rlds_cli.store.finish import table_digests
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store

_THREADS = 8
_PREFIX = "rlds1:"
_MISSING_ROWS = 1 << 24  # of a file that was cut short: so many are looked for, and named
_UNCOVERED = (
    "written by a version that kept no digests of files: metadata, sources and what the fingerprint leaves out of the "
    "episode table are not compared; made again with --force it has them"
)
_SHORTEST = 8  # digits that a fingerprint may be cut to


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of one dataset found; it is ``ok`` where there are no ``problems``.

    ``fingerprint`` is that of what is on disk, None where some of it cannot be read. ``arrays`` counts fields,
    ``bytes`` what was hashed of them. ``remarks`` say what is known of the archive, or of the source dataset.
    ``packed`` are files that loaders made of the dataset and that are not as they should be.
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


def verify(
    ref: StrPath,
    *,
    expect: str | None = None,
    jobs: int | None = None,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Verification:
    """Hash everything again, compare it with what was stored, and check that the parts agree. Writes nothing.

    Parameters
    ----------
    ref : str or path
        An id that is here, or the directory of a dataset.
    expect : str, optional
        The fingerprint that it should have, as ``rlds inspect`` or the manifest shows it; its first digits are enough.
    jobs : int, optional
        Threads; up to 8 when not given.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is not here. Damage is no error: it is what ``problems`` say.
    RldsError
        ``expect`` is no fingerprint.
    """
    wanted = None if expect is None else _digits(expect)
    path = targets.dataset(ref, cache_dir=cache_dir)
    found = verify_directory(path, jobs=jobs, progress=progress)
    remarks, of_origin = origins.compare(path, found.fingerprint, cache_dir=cache_dir)
    of_packed = _check_packed(path, intact=found.ok, cache_dir=cache_dir)
    problems = [*found.problems, *of_origin, *_expected(found, wanted)]
    hint = f"rlds verify {found.id} --fix" if problems and origins.mendable(found.id, path) else None
    if of_packed and not problems:
        hint = f"rlds verify {found.id} --fix deletes what is packed; loaders pack it anew"
    return replace(
        found,
        ok=not problems and not of_packed,
        problems=(*problems, *of_packed.values()),
        remarks=(*found.remarks, *remarks, *_outdated(path)),
        hint=hint,
        packed=tuple(of_packed),
    )


def _check_packed(path: Path, *, intact: bool, cache_dir: StrPath | None) -> dict[Path, Problem]:
    """What is wrong with the files that loaders have made of a dataset, in all homes where they may be."""
    own = path.absolute().parents
    roots = [*(own[2:3] if len(own) > 2 else ()), *settings.read(cache_dir).homes, settings.read().home]
    there = [root for root in dict.fromkeys(roots) if (root / "packed").is_dir()]
    if not there:
        return {}
    from rlds_cli.loader import repacked  # all that a loader needs

    try:
        return repacked.check(Dataset(Store(path, check=False)), there, intact=intact)
    except (RldsError, OSError, ValueError, KeyError):
        return {}  # the check of the dataset itself says so


def _outdated(path: Path) -> list[str]:
    """What an older version of its reader did wrong to a dataset that is as it was written."""
    try:
        return outdated.sentences(Dataset(Store(path, check=False)))
    except (RldsError, OSError, ValueError, KeyError):
        return []  # the check of the dataset itself says so


def verify_directory(path: Path, *, jobs: int | None = None, progress: Progress | bool | None = None) -> Verification:
    """Check one directory for itself: not its archive, nor the dataset that it was made of."""
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
        fingerprint = digests.fingerprint(known, columns)
        if fingerprint != m.fingerprint and not problems:
            problems.append(Problem("episodes", f"the fingerprint is {fingerprint}; the manifest says {m.fingerprint}"))
    size = sum(c.bytes for c in checked)
    remarks = () if seal.covers else (_UNCOVERED,)
    return Verification(m.id, path, not problems, fingerprint, len(checked), size, tuple(problems), remarks)


def _check_rows(path: Path, m: Manifest) -> None:
    """Refuse to look for many more rows than any file has room for."""
    room = max((rows_there(path, f) for f in m.fields), default=0)
    if m.counts.rows > room + _MISSING_ROWS:
        raise DamagedDataset(f"{m.counts.rows:,} rows are said to be there; the files have room for {room:,}.")


def _check_fields(path: Path, m: Manifest, threads: int, progress: Progress) -> list[Checked]:
    rows = m.counts.rows
    sizes = {f.name: logical_size(path, f, rows) for f in m.fields}
    tell = _Teller(m.id, sum(sizes.values()), progress)
    with ThreadPoolExecutor(threads) as pool:
        # The largest first, so that no thread is left alone with one at the end.
        order = sorted(m.fields, key=lambda f: -sizes[f.name])
        checked = list(pool.map(lambda f: check_field(path, f, rows, tell), order))
    return sorted(checked, key=lambda c: c.name)


class _Teller:
    """Adds up what the threads have hashed."""

    def __init__(self, id: str, total: int, progress: Progress) -> None:
        self._id, self._total, self._progress = id, total, progress
        self._done = 0
        self._lock = Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done = min(self._total, self._done + size)
            self._progress(Event(self._id, "verify", "", self._done, self._total))


def _check_episodes(path: Path, sound: set[str], threads: int) -> tuple[dict[str, str] | None, list[Problem]]:
    """Digests of the episode table, where it can be read, what is wrong with it, and with what follows from it.

    That are the statistics of ``sound`` fields.
    """
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
    """Whether everything else can be read: metadata, sources, string tables, the documents of groups."""
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


def _digits(expect: str) -> str:
    digits = expect.strip().lower().removeprefix(_PREFIX).replace("-", "")
    if not _SHORTEST <= len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise RldsError(f'"{expect}" is not a fingerprint.', hint="as in rlds1:7c1f-09ab-55e2, or all 64 digits")
    return digits


def _expected(found: Verification, wanted: str | None) -> Iterable[Problem]:
    if wanted is None or (found.fingerprint or "").removeprefix(_PREFIX).startswith(wanted):
        return []
    return [Problem("fingerprint", f"is {found.fingerprint or 'unknown'}; {_PREFIX}{wanted} expected")]


def verify_all(
    refs: Sequence[str] = (),
    *,
    everything: bool = False,
    expect: str | None = None,
    jobs: int | None = None,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Verification, ...]:
    """Verify several datasets; globs stand for those that are here, ``everything`` for all of them."""
    paths = targets.datasets(refs, everything=everything, cache_dir=cache_dir)
    if expect is not None and len(paths) != 1:
        raise RldsError(f"One fingerprint cannot be that of {len(paths)} datasets.", hint="--expect takes one ID")
    how = {"expect": expect, "jobs": jobs, "cache_dir": cache_dir, "progress": progress}
    return tuple(verify(path, **how) for path in paths)  # type: ignore[arg-type]
