"""Repair damaged datasets: fetch damaged files of the archive again, and convert it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, settings
from rlds_cli.base.files.hashing import sha256_of
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.base.subset import Subset
from rlds_cli.errors import ArchiveError, DamagedDataset, RldsError, TransferError, WrongFingerprint
from rlds_cli.homes import Home, exclusive
from rlds_cli.keep import origins
from rlds_cli.keep.verification import verify
from rlds_cli.make import MERGED, DownloadRequest, deliver, fetch_again, import_files, remembered
from rlds_cli.registry import File
from rlds_cli.store import History, Manifest, StoredDataset, open_store
from rlds_cli.store.integrity import Verification


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair, with a verification before and after.

    ``fetched`` are files of the archive that were fetched again; ``converted`` is True if the dataset was made again;
    ``deleted`` are damaged files that loaders had packed. ``why`` says why a repair is not possible.
    """

    found: Verification
    now: Verification
    fetched: tuple[str, ...] = ()
    converted: bool = False
    why: str = ""
    deleted: tuple[Path, ...] = ()


def repair(
    ref: StrPath, *, jobs: int | None = None, home: StrPath | None = None, progress: Progress | bool | None = None
) -> Repair:
    """Verify a dataset and repair it; sound files are neither fetched nor written.

    A file of the archive with a wrong hash is fetched again. A damaged dataset is converted again from verified files,
    and replaced in one step if the new one has the same fingerprint. An import is made again from the user's own files.
    Damaged files that loaders have packed are deleted: the next loader packs them again.

    Parameters
    ----------
    ref : str or path
        As in `verify`.
    jobs : int, optional
        Worker processes of the conversion.

    Raises
    ------
    DownloadFailed, WrongHash, Offline
        A file could not be downloaded again. The dataset is unchanged.
    WrongFingerprint
        The new dataset would have other content. The dataset is unchanged.
    """
    found = verify(ref, home=home, progress=progress)
    if found.ok:
        return Repair(found, found)
    if found.packed:
        return _unpack(found, ref, jobs=jobs, home=home, progress=progress)
    place = Home(settings.read(home).home)
    id = _id_of(found.path, place)
    why = _hopeless(id, found.path)
    if id is None or why:
        return Repair(found, found, why=why)
    tell = shown(progress)
    expected, kept = _expected(found), _tags(found.path)
    fetched: tuple[str, ...] = ()
    if id.family == "local" and origins.described(found.path) is None:
        _import(id, found.path, jobs, home, tell)
        damaged = True
    else:
        damaged = not StoredDataset(found.path).verify(progress=tell).ok
        request = _request(id, found.path, place, home)
        fetched = _convert(request, id, jobs, tell, expected) if damaged else _fetch(request, id, place, tell)
    made = homes.dataset(str(id), home=home)
    now = verify(made, expect=expected, home=home)
    if now.ok:
        for name, number in kept.items():
            History(made).tag(name, number)
    return Repair(found, now, fetched, damaged)


def _tags(path: Path) -> Mapping[str, int]:
    """Return the tags of a damaged dataset, as far as they can be read."""
    with suppress(DamagedDataset):
        return History(path).tags
    return {}


def _unpack(
    found: Verification, ref: StrPath, *, jobs: int | None, home: StrPath | None, progress: Progress | bool | None
) -> Repair:
    """Delete damaged packed files, then repair the rest."""
    for file in found.packed:
        try:
            file.unlink(missing_ok=True)
        except OSError as e:
            return Repair(found, found, why=f"{file} cannot be deleted: {e.strerror}")
    rest = repair(ref, jobs=jobs, home=home, progress=progress)
    return replace(rest, found=found, deleted=found.packed)


def repair_all(
    refs: Sequence[str] = (),
    *,
    all_: bool = False,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Repair, ...]:
    """Repair several datasets, chosen as in `verification.verify_all`. A failure does not stop the others."""
    paths = homes.datasets(refs, all_=all_, home=home, why="the newest version is repaired")
    done = []
    for path in paths:
        try:
            done.append(repair(path, jobs=jobs, home=home, progress=progress))
        except (TransferError, ArchiveError, WrongFingerprint) as exc:
            if len(paths) == 1:
                raise
            found = verify(path, home=home, progress=progress)
            done.append(Repair(found, found, why=exc.message))
    return tuple(done)


def _id_of(path: Path, place: Home) -> DatasetId | None:
    """Return the id of a directory in the user's own home."""
    found = path.relative_to(place.root).parts if path.is_relative_to(place.root) else ()
    return ids.from_component(found[1], found[2]) if len(found) == 3 and found[0] == "datasets" else None


def _hopeless(id: DatasetId | None, path: Path) -> str:
    """Say why a dataset cannot be repaired; empty if it can."""
    if id is None:
        return "it is not in your own home"
    try:
        m = Manifest.read(path)
    except RldsError:
        return "its manifest, which says how it was made, cannot be read" if id.variant else _unknown(id)
    if not m.reader and not m.provenance:
        return "it grows: its episodes are nowhere else; those that are not damaged stay readable"
    if m.reader == MERGED:
        return "it was merged: rlds merge makes it again, with --force"
    if origins.contradicted(path):
        return f"it was not made of the files in the registry: rlds download {id} --force replaces it"
    if m.provenance:
        return f"it was made of {m.provenance[-1]['from']}: rlds preprocess makes it again, with --force"
    if m.reader_source.startswith("sha256:"):  # that of a file
        again = f"rlds import FILES --name {id} --reader {m.reader} --force makes it again"
        return f"it was read by {m.reader}, a file of code: {again}"
    if origins.described(path) is not None:
        return ""
    return _lost(path) if id.family == "local" else _unknown(id)


def _lost(path: Path) -> str:
    """Name a changed or missing file that an import was made of; empty if all are unchanged."""
    try:
        files = origins.own_files(path)
    except (RldsError, OSError, ValueError, KeyError):
        files = []
    if not files:
        return "its files are not recorded: rlds import makes it again, with --force"
    changed = [str(file) for file, sha256 in files if not _is(file, sha256)]
    again = "rlds import makes it again, with --force"
    return f"{changed[0]} is missing, or has changed: {again}" if changed else ""


def _import(id: DatasetId, path: Path, jobs: int | None, home: StrPath | None, tell: Progress) -> None:
    """Repeat an import with the same files and options."""
    m = Manifest.read(path)
    known = {"fields", "episodes_by", "skip_bad", "last_step", "rewards", "missing", "topics", "hz", "nearest"}
    known |= {"episode_info", "frames"}
    asked = {k: v for k, v in m.options.items() if k in known}
    import_files(
        [file for file, _ in origins.own_files(path)],
        str(id),
        reader=m.reader,
        storage="zarr" if m.encoding == "zarr" else "memmap",
        force=True,
        jobs=jobs,
        home=home,
        progress=tell,
        **asked,
    )


def _unknown(id: DatasetId) -> str:
    try:
        registry.get(str(id.base))
    except RldsError:
        return "it is not in the registry: rlds import makes it again, with --force"
    return ""


def _request(id: DatasetId, path: Path, place: Home, home: StrPath | None) -> DownloadRequest:
    """Return the request for the same dataset, from exactly the same files."""
    try:
        m = Manifest.read(path)
        encoding, options = m.encoding, m.options
    except RldsError:
        encoding, options = "memmap", {}
    portion, entry = options.get("portion"), origins.described(path)
    return DownloadRequest(
        str(id.base),
        storage="zarr" if encoding == "zarr" else "memmap",
        frames=str(options.get("frames", "encoded")),
        keep_archive=bool(origins.archive_files(place.archive(id))),
        skip_bad=bool(options.get("skip_bad")),
        portion=Subset.from_facts(portion) if portion else Subset(),
        files=_files(id, path, place),
        force=True,
        home=home,
        line=None if entry is None else entry.line,
    )


def _files(id: DatasetId, path: Path, place: Home) -> tuple[File, ...]:
    """Return the files of the archive with the hashes that the dataset was made of; none if they are not known."""
    made_of = {str(s.get("file")): s for s in _sources(path)}
    entry = origins.described(path) or registry.get(str(id.base))
    known: dict[str, tuple[tuple[str, ...], int | None, str | None]] = {
        f.path: (f.urls, f.size, f.sha256) for f in entry.files
    }
    if not known:
        known = {f.path: (f.urls, f.size, f.sha256) for f in remembered(place.archive(id)) or ()}
    return tuple(_file(name, *about, made_of.get(name, {})) for name, about in known.items())


def _file(name: str, urls: tuple[str, ...], size: int | None, sha256: str | None, made_of: Mapping[str, Any]) -> File:
    """Return a file with its recorded hash. Its earlier address comes first if a hash can confirm the content."""
    came, was = made_of.get("url"), made_of.get("sha256") or sha256
    places = dict.fromkeys((*((str(came),) if came and was else ()), *urls))
    return File(name, tuple(places), made_of.get("size", size), was)


def _sources(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        return open_store(path, check=False).sources
    except (RldsError, OSError, ValueError, KeyError):
        return ()


def _fetch(request: DownloadRequest, id: DatasetId, place: Home, progress: Progress) -> tuple[str, ...]:
    """Fetch again the files of the archive that have changed."""
    bad = origins.altered(place.dataset(id), place.archive(id))
    entry = origins.described(place.dataset(id)) or registry.get(request.ref)
    with exclusive(place, id, progress):
        return fetch_again(request, entry, bad, progress)


def _convert(
    request: DownloadRequest, id: DatasetId, jobs: int | None, progress: Progress, expected: str | None
) -> tuple[str, ...]:
    """Fetch missing or changed files of the archive, and convert it again."""

    def check(made: Path) -> None:
        now = Manifest.read(made).fingerprint
        if expected not in (None, now):
            raise WrongFingerprint(
                f"{id} would have the fingerprint {now}; it was {expected}. The damaged dataset stays as it is.",
                hint=f"rlds download {id} --force accepts the new content",
            )

    archive = Home(request.where.home).archive(id)
    bad = {f.path for f in request.files if not _is(archive / f.path, f.sha256)}
    deliver(request, jobs=jobs or 0, progress=progress, check=check)
    return tuple(sorted(bad))


def _is(file: Path, sha256: str | None) -> bool:
    return file.is_file() and sha256 in (None, sha256_of(file))


def _expected(found: Verification) -> str | None:
    """Return the fingerprint in the manifest, if that can be read."""
    try:
        return Manifest.read(found.path).fingerprint
    except RldsError:
        return None
