"""Making good what a verification found: files of the archive fetched again, a dataset converted again from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli import ids, importing, registry, settings
from rlds_cli.downloads import archive, download
from rlds_cli.downloads.fetch import fetching, planning
from rlds_cli.downloads.request import Order
from rlds_cli.errors import ArchiveError, RldsError, TransferError, WrongFingerprint
from rlds_cli.files.hashing import sha256_of
from rlds_cli.home import Home, locate
from rlds_cli.home.locks import exclusive
from rlds_cli.ids import DatasetId
from rlds_cli.maintenance import originals, origins
from rlds_cli.maintenance.verification import Verification, verify, verify_directory
from rlds_cli.progress import Progress, shown
from rlds_cli.registry.records import File
from rlds_cli.settings import StrPath
from rlds_cli.store import manifest
from rlds_cli.store.opening import Store
from rlds_cli.subset import Portion


@dataclass(frozen=True, slots=True)
class Repair:
    """What was found, what was done about it, and what a second verification found.

    ``fetched`` are the files of the archive that came again; ``converted`` says whether the dataset was made again;
    ``deleted`` are damaged files that loaders had packed. ``why`` says why nothing could be done.
    """

    found: Verification
    now: Verification
    fetched: tuple[str, ...] = ()
    converted: bool = False
    why: str = ""
    deleted: tuple[Path, ...] = ()


def repair(
    ref: StrPath, *, jobs: int | None = None, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
) -> Repair:
    """Verify a dataset and mend what is bad; what is good is not fetched, and not written.

    A file of the archive with another hash than the dataset was made of is fetched again, by that hash. A dataset that
    is damaged itself is converted again, of files that are verified first; it replaces the damaged one in one step,
    where it has the fingerprint that the damaged one had. An import is made again of the user's own files. What loaders
    have packed and is damaged is deleted: the next loader packs it again.

    Parameters
    ----------
    ref : str or path
        As for `verify`.
    jobs : int, optional
        Worker processes of the conversion.

    Raises
    ------
    DownloadFailed, WrongHash, Offline
        A file could not be had again as it was. The dataset is as it was before.
    WrongFingerprint
        What would be made now has other content. The dataset is as it was before.
    """
    found = verify(ref, cache_dir=cache_dir, progress=progress)
    if found.ok:
        return Repair(found, found)
    if found.packed:
        return _unpack(found, ref, jobs=jobs, cache_dir=cache_dir, progress=progress)
    place = Home(settings.read(cache_dir).home)
    id = _id_of(found.path, place)
    why = _hopeless(id, found.path)
    if id is None or why:
        return Repair(found, found, why=why)
    tell = shown(progress)
    expected = _expected(found)
    fetched: tuple[str, ...] = ()
    if id.family == "local":
        _import(id, found.path, jobs, cache_dir, tell)
        damaged = True
    else:
        damaged = not verify_directory(found.path, progress=tell).ok
        order = _order(id, found.path, place, cache_dir)
        fetched = _convert(order, id, jobs, tell, expected) if damaged else _fetch(order, id, place, tell)
    now = verify(locate.dataset(str(id), cache_dir=cache_dir), expect=expected, cache_dir=cache_dir)
    return Repair(found, now, fetched, damaged)


def _unpack(
    found: Verification, ref: StrPath, *, jobs: int | None, cache_dir: StrPath | None, progress: Progress | bool | None
) -> Repair:
    """Delete packed files that are damaged, and mend what else is."""
    for file in found.packed:
        try:
            file.unlink(missing_ok=True)
        except OSError as e:
            return Repair(found, found, why=f"{file} cannot be deleted: {e.strerror}")
    rest = repair(ref, jobs=jobs, cache_dir=cache_dir, progress=progress)
    return replace(rest, found=found, deleted=found.packed)


def repair_all(
    refs: Sequence[str] = (),
    *,
    everything: bool = False,
    jobs: int | None = None,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Repair, ...]:
    """Repair several datasets; as `verification.verify_all`. Of several, one that fails does not keep the others."""
    paths = locate.datasets(refs, everything=everything, cache_dir=cache_dir)
    done = []
    for path in paths:
        try:
            done.append(repair(path, jobs=jobs, cache_dir=cache_dir, progress=progress))
        except (TransferError, ArchiveError, WrongFingerprint) as exc:
            if len(paths) == 1:
                raise
            found = verify(path, cache_dir=cache_dir, progress=progress)
            done.append(Repair(found, found, why=exc.message))
    return tuple(done)


def _id_of(path: Path, place: Home) -> DatasetId | None:
    """The dataset whose place this is in the user's own home."""
    found = path.relative_to(place.root).parts if path.is_relative_to(place.root) else ()
    return ids.from_component(found[1], found[2]) if len(found) == 3 and found[0] == "datasets" else None


def _hopeless(id: DatasetId | None, path: Path) -> str:
    """Why a dataset cannot be made again; empty where it can."""
    if id is None:
        return "it is not in your own home"
    try:
        m = manifest.read(path)
    except RldsError:
        return "its manifest cannot be read, and says how it was made" if id.variant else _unknown(id)
    if origins.contradicted(path):
        return f"it is not made of the files of the registry: rlds download {id} --force replaces it"
    if m.provenance:
        return f"it was made of {m.provenance[-1].get('from')}: rlds preprocess makes it again, with --force"
    return _lost(path) if id.family == "local" else _unknown(id)


def _lost(path: Path) -> str:
    """What is missing of the user's own files that an import was made of; empty where all are as they were."""
    try:
        files = origins.own_files(path)
    except (RldsError, OSError, ValueError, KeyError):
        files = []
    if not files:
        return "nobody knows which files it was made of: rlds import makes it again, with --force"
    changed = [str(file) for file, sha256 in files if not _is(file, sha256)]
    again = "rlds import makes it again, with --force"
    return f"{changed[0]} is not there any more, or another file now: {again}" if changed else ""


def _import(id: DatasetId, path: Path, jobs: int | None, cache_dir: StrPath | None, tell: Progress) -> None:
    """The same import again, of the same files."""
    m = manifest.read(path)
    asked = {k: v for k, v in m.options.items() if k in ("fields", "episodes_by", "skip_bad", "last_step", "frames")}
    importing.import_archive(
        [file for file, _ in origins.own_files(path)],
        str(id),
        format=m.reader,
        store="zarr" if m.encoding == "zarr" else "memmap",
        force=True,
        jobs=jobs,
        cache_dir=cache_dir,
        progress=tell,
        **asked,
    )


def _unknown(id: DatasetId) -> str:
    try:
        registry.get(str(id.base))
    except RldsError:
        return "the registry does not know it: rlds import makes it again, with --force"
    return ""


def _order(id: DatasetId, path: Path, place: Home, cache_dir: StrPath | None) -> Order:
    """The order that makes the dataset as it was, of the very files."""
    try:
        m = manifest.read(path)
        encoding, options = m.encoding, m.options
    except RldsError:
        encoding, options = "memmap", {}
    portion = options.get("portion")
    return Order(
        str(id.base),
        store="zarr" if encoding == "zarr" else "memmap",
        frames=str(options.get("frames", "encoded")),
        keep_archive=bool(originals.files(place.archive(id))),
        skip_bad=bool(options.get("skip_bad")),
        portion=Portion.from_facts(portion) if portion else Portion(),
        files=_files(id, path, place),
        force=True,
        cache_dir=cache_dir,
    )


def _files(id: DatasetId, path: Path, place: Home) -> tuple[File, ...]:
    """The files of the archive, with the hashes of those that the dataset was made of; none where nobody knows them."""
    made_of = {str(s.get("file")): s for s in _sources(path)}
    entry = registry.get(str(id.base))
    known: dict[str, tuple[tuple[str, ...], int | None, str | None]] = {
        f.path: (f.urls, f.size, f.sha256) for f in entry.files
    }
    if not known:
        known = {f.path: (f.urls, f.size, f.sha256) for f in planning.remembered(place.archive(id)) or ()}
    return tuple(_file(name, *about, made_of.get(name, {})) for name, about in known.items())


def _file(name: str, urls: tuple[str, ...], size: int | None, sha256: str | None, made_of: Mapping[str, Any]) -> File:
    """A file as it was; first from where it came before, but only where its hash tells that it is the same."""
    came, was = made_of.get("url"), made_of.get("sha256") or sha256
    places = dict.fromkeys((*((str(came),) if came and was else ()), *urls))
    return File(name, tuple(places), made_of.get("size", size), was)


def _sources(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        return Store(path, check=False).sources
    except (RldsError, OSError, ValueError, KeyError):
        return ()


def _fetch(order: Order, id: DatasetId, place: Home, progress: Progress) -> tuple[str, ...]:
    """Bring again the files of the archive that are not what the dataset was made of."""
    bad = origins.altered(place.dataset(id), place.archive(id))
    entry = registry.get(order.ref)
    with exclusive(place, id, progress):
        plan = archive.plan_transfer(order, id, entry, order.where).plan
        steps = tuple(s for s in plan.steps if s.file.path in bad)
        listed = plan.listed or tuple(s.file for s in plan.steps)
        came = fetching.fetch(replace(plan, steps=steps, listed=listed), order.where, id=str(id), progress=progress)
    return tuple(f.file.path for f in came if f.action != "verify")


def _convert(
    order: Order, id: DatasetId, jobs: int | None, progress: Progress, expected: str | None
) -> tuple[str, ...]:
    """Bring what of the archive is missing or altered, and make the dataset again."""

    def check(made: Path) -> None:
        now = manifest.read(made).fingerprint
        if expected not in (None, now):
            raise WrongFingerprint(
                f"{id} would be {now} now; it was {expected}. It stays as it is, and damaged.",
                hint=f"rlds download {id} --force has it as this version makes it",
            )

    archive = Home(order.where.home).archive(id)
    bad = {f.path for f in order.files if not _is(archive / f.path, f.sha256)}
    download.deliver(order, jobs=jobs or 0, progress=progress, check=check)
    return tuple(sorted(bad))


def _is(file: Path, sha256: str | None) -> bool:
    return file.is_file() and sha256 in (None, sha256_of(file))


def _expected(found: Verification) -> str | None:
    """The fingerprint that it had, where its manifest still says so."""
    try:
        return manifest.read(found.path).fingerprint
    except RldsError:
        return None
