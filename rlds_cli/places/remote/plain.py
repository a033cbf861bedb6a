"""A plain copy of a dataset's files at an address, without an index: download them.

The manifest and the list of digests name all files of an ordinary dataset, so the store need not list them. The logs of
a growing dataset name its segments; a copy that was made while it grew has the newest version whose logs are whole.
A listed file is compared with its sha256 when it has arrived. Where a dataset looks values up, the lookup and its parts
are fetched in the place of files that the list names. Rows are verified with the whole dataset, see `pulling`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from rlds_cli.base.files import disk, publishing, trees
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.hashing import sha256_of, short
from rlds_cli.base.progress import Event, Progress
from rlds_cli.errors import DamagedDataset, NewerFormat, RldsError, WrongFingerprint, WrongHash
from rlds_cli.places.remote.index import Index
from rlds_cli.places.remote.reading import check_version
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Chunk
from rlds_cli.places.sources.transfer import Stream
from rlds_cli.store import (
    CommitLog,
    GrowingDataset,
    Lookup,
    Manifest,
    Problem,
    row_files,
)

_AT_ONCE = 8  # files
HINT = "rlds verify the original, and copy it again"


@dataclass(frozen=True, slots=True)
class Plain:
    """The dataset of a plain copy.

    Attributes
    ----------
    manifest : Manifest
    document : bytes
        The file of the manifest.
    log : CommitLog or None
        The versions of a growing dataset; the newest one is downloaded.
    """

    manifest: Manifest
    document: bytes
    log: CommitLog | None

    @property
    def id(self) -> str:
        """Id of the dataset where it was copied."""
        return self.manifest.id

    @property
    def fingerprint(self) -> str:
        """Fingerprint, which the download proves."""
        return self.manifest.fingerprint

    @property
    def grows(self) -> bool:
        """Whether it is a growing dataset."""
        return self.log is not None

    @property
    def version(self) -> int:
        """Number of the version."""
        return self.manifest.version if self.log is None else self.log.newest.number

    @property
    def content(self) -> bytes:
        """What the address says of the dataset: the manifest, and the log of versions."""
        return self.document + (b"" if self.log is None else self.log.content)


def read_plain(objects: Objects) -> Plain | None:
    """Return the plain copy at an address; None if there is none.

    Raises
    ------
    DamagedDataset
        Its manifest is damaged, or its logs are shorter than its newest version.
    DatasetNotFound
        The address names another version.
    WrongFingerprint
        The address pins other content.
    NewerFormat, DownloadFailed
    """
    found = objects.read(Manifest.FILE, longest=Manifest.LONGEST)
    if found is None or b'"rlds"' not in found.data:
        return None
    where, log = objects.address, _log(objects)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        safe_files.write_bytes(directory / Manifest.FILE, found.data)
        safe_files.write_bytes(directory / GrowingDataset.LOG, b"" if log is None else log.content)
        try:
            m = Manifest.read(directory)
        except NewerFormat:
            raise
        except RldsError as e:
            what = e.message.replace(f"{directory}/", "").rstrip(".")
            raise DamagedDataset(f"{where}/{Manifest.FILE} is not the manifest of a dataset: {what}.") from e
        if not Manifest.has_own_digest(directory):
            raise DamagedDataset(f"{where}/{Manifest.FILE} is not as it was written.", hint=HINT)
    check_version(where, m.version if log is None else log.newest.number)
    if m.growing and log is not None:
        for name, size in log.logs(m.fields).items():
            if (objects.size(name) or 0) < size:
                raise _torn(objects, name)
    elif not where.matches(m.fingerprint):
        raise WrongFingerprint(f"{where} has {short(m.fingerprint)}, and {where.pin} was asked for.")
    return Plain(m, found.data, log if m.growing else None)


def _log(objects: Objects) -> CommitLog | None:
    """Read the log of versions; None without one.

    Raises
    ------
    DamagedDataset
        No record of the log is whole.
    DownloadFailed
    """
    found = objects.read(GrowingDataset.LOG)
    if found is None:
        return None
    log = CommitLog.parse(found.data)
    if log is None:
        raise _torn(objects, GrowingDataset.LOG)
    return log


def _torn(objects: Objects, name: str) -> DamagedDataset:
    return DamagedDataset(
        f"{objects.address}/{name} is missing or too short: it was copied while the dataset grew, or is damaged.",
        hint="copy it again while nobody writes; rlds push sends one version at any time",
    )


def measure(objects: Objects, plain: Plain) -> tuple[int, int]:
    """Return the number of files of a plain copy and their bytes; raises as `fetch`."""
    with tempfile.TemporaryDirectory() as place:
        sizes = _describe(objects, plain, Path(place))
        small = [file.stat().st_size for file in trees.files(Path(place))]
    return len(small) + len(sizes), sum(small) + sum(sizes.values())


def fetch(objects: Objects, plain: Plain, work: Path, id: str, tell: Progress) -> Path:
    """Return the directory below ``work`` with all files of a plain copy; those that have arrived stay.

    Raises
    ------
    DamagedDataset, WrongHash
        A file is missing, or is not what the list of digests says.
    DownloadFailed, NoSpace
    """
    dataset, key = work / "dataset", hashlib.sha256(plain.content).hexdigest().encode()
    if not (work / "key").is_file() or (work / "key").read_bytes() != key:
        trees.discard(dataset)
        safe_files.write_bytes(work / "key", key)
    dataset.mkdir(safe_files.DIRECTORY, exist_ok=True)
    publishing.unseal(dataset)  # a download that was killed while it was published
    sizes = _describe(objects, plain, dataset)
    listed = Manifest.listed(dataset)
    lock, done, total = threading.Lock(), 0, sum(sizes.values())
    here = sum(file.stat().st_size for file in trees.files(dataset))
    disk.check_space(total - here, dataset, kept="What has arrived is kept.")

    def arrived(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            tell(Event(id, "fetch", "", done, total))

    def bring(path: str) -> None:
        file = dataset / path
        _bring(objects, path, sizes[path], file, arrived, sparse=plain.grows)
        if path in listed and sha256_of(file) != listed[path]:
            file.unlink()
            raise WrongHash(f"{objects.address}/{path} is not what the list of digests says.", hint=HINT)

    with ThreadPoolExecutor(_AT_ONCE, "copy") as pool:
        running = [pool.submit(bring, path) for path in sizes]
        try:
            for task in running:
                task.result()
        except BaseException:
            objects.client.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return dataset


def _bring(
    objects: Objects, path: str, size: int, file: Path, arrived: Callable[[int], None], *, sparse: bool = False
) -> None:
    """Fetch the part of a file that has not arrived; ``sparse`` leaves holes where all bytes are zero."""
    safe_files.make(file.parent)
    with os.fdopen(safe_files.open_own(file, os.O_RDWR | os.O_CREAT), "r+b") as out:
        at = min(out.seek(0, os.SEEK_END), size)
        out.seek(at)
        arrived(at)

        def take(chunk: Chunk) -> None:
            if sparse and bytes(chunk) == bytes(len(chunk)):
                out.seek(len(chunk), os.SEEK_CUR)
            else:
                out.write(chunk)
            arrived(len(chunk))

        objects.bring(path, Stream(at, size, take, size=size))
        out.truncate(size)


def forget(dataset: Path, plain: Plain, problems: Sequence[Problem]) -> None:
    """Remove the files that a verification blames, so that `fetch` fetches them again; all files if it blames none."""
    files = [dataset / p.where for p in problems if Index.is_path(p.where) and (dataset / p.where).is_file()]
    fields = {directory for p in problems for directory in p.directories(plain.manifest)}
    for file in files:
        file.unlink(missing_ok=True)
    for directory in fields:
        trees.discard(dataset / directory)
    if not files and not fields:
        trees.discard(dataset)


# -- which files there are


def _describe(objects: Objects, plain: Plain, dataset: Path) -> dict[str, int]:
    """Fetch the files that name all others; return the paths and sizes of the others.

    Raises
    ------
    DamagedDataset
        A file is missing or too short, or what should name the others is damaged.
    DownloadFailed
    """
    safe_files.write_bytes(dataset / Manifest.FILE, plain.document)
    known = _ordinary(objects, plain, dataset) if plain.log is None else _growing(objects, plain, plain.log, dataset)
    found = _sizes(objects, known)
    looked_up = [] if plain.grows else _lookups(objects, dataset, [path for path in known if found[path] is None])
    if looked_up:
        not_there = tuple(f"{lookup.array}/" for lookup in looked_up)
        known = {path: size for path, size in known.items() if not path.startswith(not_there)}
        known |= {path: size for lookup in looked_up for path, size in _parts(objects, dataset, lookup).items()}
        found |= _sizes(objects, known.keys() - found.keys())
    sizes = {}
    for path, size in known.items():
        there = found[path]
        if there is None:
            raise DamagedDataset(f"{objects.address}/{path} is missing, or its size is not known.", hint=HINT)
        if size is not None and there != size:
            raise DamagedDataset(f"{objects.address}/{path} has {there:,} bytes; {size:,} expected.", hint=HINT)
        sizes[path] = there
    return sizes


def _sizes(objects: Objects, names: Collection[str]) -> dict[str, int | None]:
    with ThreadPoolExecutor(_AT_ONCE, "sizes") as pool:
        return dict(zip(names, pool.map(objects.size, names), strict=True))


def _lookups(objects: Objects, dataset: Path, missing: Collection[str]) -> list[Lookup]:
    """Fetch the lookups in the place of arrays whose files are ``missing``; raises as `_describe`."""
    found = []
    for array in sorted(path.removesuffix("/zarr.json") for path in missing if path.endswith("/zarr.json")):
        if (document := objects.read(f"{array}/{Lookup.FILE}", longest=documents.LONGEST)) is not None:
            safe_files.make(dataset / array)
            safe_files.write_bytes(dataset / array / Lookup.FILE, document.data)
            lookup = Lookup.of(dataset / array)
            assert lookup is not None
            found.append(lookup)
    return found


def _parts(objects: Objects, dataset: Path, lookup: Lookup) -> dict[str, int | None]:
    """Fetch the documents of the arrays of a lookup; return their files with sizes; raises as `_describe`."""
    for path in lookup.documents:
        document = objects.read(path, longest=documents.LONGEST)
        if document is None:
            raise DamagedDataset(f"{objects.address}/{path} is missing.", hint=HINT)
        safe_files.make((dataset / path).parent)
        safe_files.write_bytes(dataset / path, document.data)
    return lookup.files(dataset)


def _ordinary(objects: Objects, plain: Plain, dataset: Path) -> dict[str, int | None]:
    """Return the files of an ordinary dataset, with sizes where its manifest tells them."""
    found = objects.read(Manifest.LISTING, longest=documents.OWN)
    if found is None or hashlib.sha256(found.data).hexdigest() != plain.manifest.files:
        what = "is missing" if found is None else "is not what the manifest says"
        raise DamagedDataset(f"{objects.address}/{Manifest.LISTING} {what}.", hint=HINT)
    (dataset / Manifest.LISTING).parent.mkdir(safe_files.DIRECTORY, exist_ok=True)
    safe_files.write_bytes(dataset / Manifest.LISTING, found.data)
    listed = Manifest.listed(dataset)
    strange = next((path for path in listed if not Index.is_path(path)), None)
    if strange is not None:
        raise DamagedDataset(f"{objects.address}/{Manifest.LISTING} names {strange[:80]!r}, which is not a path.")
    return {**dict.fromkeys(listed), **_row_files(plain.manifest, listed)}


def _row_files(m: Manifest, listed: Collection[str]) -> dict[str, int | None]:
    """Return the files of rows, which the list of digests does not name, with sizes where they are known."""
    whole = row_files(m)
    found: dict[str, int | None] = {}
    for path, size in whole.items():
        directory, _, chunk = path.rpartition("/c/")
        parts = (f"{directory}/{k}" for k in count())
        segments = list(takewhile(lambda part: f"{part}/zarr.json" in listed, parts))
        for part in segments:
            found[f"{part}/c/{chunk}"] = None
        if not segments:
            found[path] = size
    return found


def _growing(objects: Objects, plain: Plain, log: CommitLog, dataset: Path) -> Mapping[str, int]:
    """Fetch the logs of a growing dataset, write its other small files, and return the segments with their sizes."""
    sizes = log.logs(plain.manifest.fields)
    disk.check_space(sum(sizes.values()), dataset)
    for name, size in sizes.items():
        (dataset / name).unlink(missing_ok=True)
        _bring(objects, name, size, dataset / name, lambda _: None)
    try:
        return log.complete(dataset)
    except RldsError as e:
        raise DamagedDataset(f"{objects.address}: {e.message.replace(f'{dataset}/', '')}", hint=HINT) from e
