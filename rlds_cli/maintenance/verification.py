"""Are the bytes of a dataset what they were when it was written, and does it agree with itself.

From steps of a dataset back to the archive, to see whether the same stands there.

The archive is looked up value by value (``look_up`` of its reader), not by the code that converted it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from rlds_cli import archives, ids, settings
from rlds_cli.archives import ArchivedStep, ArchivedValue
from rlds_cli.checks.source import reader_faults
from rlds_cli.dataset import Dataset, provenance
from rlds_cli.dataset.provenance import Source
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.files import trees
from rlds_cli.files.hashing import sha256_of
from rlds_cli.home import Home, locate
from rlds_cli.maintenance import origins
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.settings import StrPath
from rlds_cli.store import arrays, files, manifest, sealing, statistics
from rlds_cli.store.check import Checked, Problem, check_field, check_statistics, check_table, logical_size, rows_there
from rlds_cli.store.finish import table_digests
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.ted import CUT, FLAGS, IntArray

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
    path = locate.dataset(ref, cache_dir=cache_dir)
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
    from rlds_cli.loader.storage import check  # all that a loader needs

    try:
        return check.check(Dataset(Store(path, check=False)), there, intact=intact)
    except (RldsError, OSError, ValueError, KeyError):
        return {}  # the check of the dataset itself says so


def _outdated(path: Path) -> list[str]:
    """What an older version of its reader did wrong to a dataset that is as it was written."""
    try:
        return reader_faults(Dataset(Store(path, check=False)))
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
        fingerprint = statistics.fingerprint(known, columns)
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
    paths = locate.datasets(refs, everything=everything, cache_dir=cache_dir)
    if expect is not None and len(paths) != 1:
        raise RldsError(f"One fingerprint cannot be that of {len(paths)} datasets.", hint="--expect takes one ID")
    how = {"expect": expect, "jobs": jobs, "cache_dir": cache_dir, "progress": progress}
    return tuple(verify(path, **how) for path in paths)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not what stands in the archive; ``field`` also names next values, as ``next/observation``."""

    episode: int
    step: int
    field: str
    key: str
    stored: str
    archived: str

    def __str__(self) -> str:
        return (
            f"episode {self.episode:,} step {self.step:,}: {self.field} is {self.stored}, {self.key} is {self.archived}"
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps compared with the archive.

    ``values`` counts what was compared, of ``fields``; the ``others`` do not stand in the archive as they are: flags
    that follow from where an episode ends, or fields that functions made. ``example`` shows one step's places.
    """

    id: str
    steps: int
    values: int
    fields: tuple[str, ...]
    others: tuple[str, ...]
    example: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def trace(
    ref: StrPath | Dataset,
    steps: int = 100,
    *,
    seed: int = 0,
    archive: StrPath | None = None,
    cache_dir: StrPath | None = None,
) -> Trace:
    """Compare steps of a dataset with its archive: half of them first and last ones, half drawn from all.

    Parameters
    ----------
    ref : str, path or Dataset
    steps : int
        How many; all where there are no more.
    seed : int
        Of the draw.
    archive : path, optional
        The directory of the archive, or its only file; by default where it was downloaded to or imported from.

    Raises
    ------
    RldsError
        The archive is not there, is another one, or its reader cannot look values up; the dataset has none, or its
        steps were moved.
    """
    ds = ref if isinstance(ref, Dataset) else Dataset(Store(locate.dataset(ref, cache_dir=cache_dir)))
    if not provenance.keeps_rows(ds.manifest):
        source = ds.manifest.provenance[0]["from"]
        raise RldsError(
            f"{ds.id} was made by functions that dropped or moved steps: they cannot be followed.",
            hint=f"rlds verify {source} --trace {steps}",
        )
    changed = {name for step in ds.manifest.provenance for name in step.get("changed", ())}
    places = _places(ds, steps, seed)
    files = _files(ds, {p.file for p in places}, archive)
    look = _lookup(ds, [*files.values()])
    compared: set[str] = set()
    example: tuple[str, ...] = ()
    values, differences = 0, []
    for place in places:
        found = ((c, _base(ds, c.field)) for c in look(_spot(ds, files, place)))
        cells = [(c, name) for c, name in found if name and name not in changed and not _is_ours(ds, c, name, place)]
        example = example or tuple(f"{c.field} = {c.key}" for c, _ in cells)
        compared |= {name for _, name in cells}
        values += len(cells)
        differences += [d for c, name in cells if (d := _compare(ds, c, name, place)) is not None]
    others = tuple(sorted(set(ds.schema) - compared))
    return Trace(ds.id, len(places), values, tuple(sorted(compared)), others, example, tuple(differences))


def _lookup(ds: Dataset, files: Sequence[Path]) -> Callable[[ArchivedStep], Iterator[ArchivedValue]]:
    """The function of the reader that looks values up."""
    name = ds.manifest.reader
    if name == "preprocess":
        name = (archives.recognise(files) or ("",))[0]
    return archives.reader(name).look_up


def _files(ds: Dataset, wanted: Collection[str], archive: StrPath | None) -> dict[str, Path]:
    """Files of the archive by their names in the manifest, after a look at their hashes."""
    root = None if archive is None else settings.expanded(archive)
    found = {}
    for source in (s for s in ds.sources if s["file"] in wanted):
        name = str(source["file"])
        candidates = _kept(ds, source) if root is None else _below(root, name)
        file = next((p for p in candidates if p.is_file()), None)
        if file is None:
            raise RldsError(
                f"{name} of the archive of {ds.id} is not {'here' if root is None else f'in {root}'}.",
                hint=f"rlds verify {ds.id} --trace 100 --archive DIR, where DIR holds it",
            )
        if source.get("sha256") and sha256_of(file) != source["sha256"]:
            raise RldsError(
                f"{file} is not the file that {ds.id} was made of: its sha256 is not {source['sha256']}.",
                hint=f"rlds verify {ds.id} --fix",
            )
        found[name] = file
    return found


def _below(root: Path, name: str) -> Iterator[Path]:
    yield from (root / name, root / Path(name).name)
    if root.is_file():
        yield root


def _kept(ds: Dataset, source: Mapping[str, Any]) -> Iterator[Path]:
    home = ds.path.parents[2] if len(ds.path.parents) > 2 else ds.path
    yield Home(home).archive(ids.parse(ds.id)) / str(source["file"])
    url = str(source.get("url") or "")
    if url.startswith("file://"):
        yield Path(unquote(urlsplit(url).path))


def _places(ds: Dataset, steps: int, seed: int) -> list[Source]:
    groups = ds.store.episode_strings("group")
    return [provenance.place(ds.store, e, t, group=groups[e]) for e, t in _drawn(ds, steps, seed)]


def _drawn(ds: Dataset, steps: int, seed: int) -> Iterator[tuple[int, int]]:
    """(episode, step), in their order, each once."""
    length: IntArray = ds.store.episodes["length"]
    ends = np.cumsum(length)
    total = int(length.sum())
    if total <= steps:
        chosen = np.arange(total)
    else:
        rng = np.random.default_rng(seed)
        some = rng.choice(len(length), min(len(length), max(1, steps // 4)), replace=False)
        edges = np.concatenate([ends[some] - length[some], ends[some] - 1])[:steps]
        others = rng.choice(total, steps, replace=False)
        chosen = np.sort(np.unique(np.concatenate([edges, others[: steps - len(edges)]])))
    episodes = np.searchsorted(ends, chosen, "right")
    firsts = ends - length
    yield from ((int(e), int(i - firsts[e])) for e, i in zip(episodes, chosen, strict=True))


def _spot(ds: Dataset, files: Mapping[str, Path], place: Source) -> ArchivedStep:
    columns, file = ds.store.episodes, files[place.file]
    root = Path(str(file).removesuffix(place.file)) if str(file).endswith(place.file) else file.parent
    return ArchivedStep(
        file=file,
        root=root,
        group=place.group,
        first=int(columns["row"][place.episode]),
        step=place.step,
        length=int(columns["length"][place.episode]),
        facts=ds.manifest.facts,
        fields=ds.manifest.options.get("fields") or {},
    )


def _base(ds: Dataset, field: str) -> str | None:
    """The field of the store that holds a cell's value: ``next/x`` is ``x``, one row later, where that is kept once."""
    if field in ds.schema:
        return field
    base = field.removeprefix("next/")
    return base if base in ds.schema and ds.schema[base].placement == "both" else None


def _is_ours(ds: Dataset, cell: ArchivedValue, name: str, place: Source) -> bool:
    """Whether a value does not stand in the archive: an encoded frame that was decoded, the flag of an end without."""
    columns = ds.store.episodes
    is_last = place.step == columns["length"][place.episode] - 1
    if name == FLAGS[1] and is_last and columns["end"][place.episode] == CUT:
        return True
    return isinstance(cell.value, bytes) and ds.schema[name].kind == "array"


def _compare(ds: Dataset, cell: ArchivedValue, name: str, place: Source) -> Difference | None:
    row = int(ds.store.episodes["start"][place.episode]) + place.step + (name != cell.field)
    stored = _stored(ds, name, row, encoded=isinstance(cell.value, bytes))
    archived = cell.value
    if isinstance(archived, bytes) and ds.schema[name].kind == "text":  # as HDF5 has it
        archived = archived.decode("utf-8", "replace")
    if _same(stored, archived):
        return None
    return Difference(place.episode, place.step, cell.field, cell.key, _shown(stored), _shown(archived))


def _stored(ds: Dataset, name: str, row: int, *, encoded: bool) -> Any:
    if ds.schema[name].kind == "frames" and encoded:
        return ds.store.frame(name, row)
    return ds.gather(name, np.array([row]))[0]


def _same(stored: Any, archived: Any) -> bool:
    if isinstance(archived, str | bytes) or archived is None or stored is None:
        return bool(stored == archived)
    a, b = np.asarray(stored), np.asarray(archived)
    return a.size == b.size and bool(np.array_equal(a.reshape(-1), b.reshape(-1), equal_nan=a.dtype.kind == "f"))


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return value if isinstance(value, str) else np.array2string(np.asarray(value), threshold=6, edgeitems=2)
