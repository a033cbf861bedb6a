"""A plain copy of a dataset's directory at an address: no index, so its own digests tell what is right.

The manifest names the sha256 of the list of digests, the list that of every small file, and the digests of fields the
sha256 of every 65,536 rows. Rows are therefore fetched and checked by 65,536. Fields of which so many rows take more
than 64 MiB, and datasets with encoded frames or videos, cannot be checked in parts: `rlds push` makes what can.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.errors import DamagedDataset, NewerFormat, RldsError, WrongFingerprint, WrongHash
from rlds_cli.files import disk
from rlds_cli.files import json as documents
from rlds_cli.files import safe as safe_files
from rlds_cli.files.hashing import short
from rlds_cli.remote.cache import Stats, Take
from rlds_cli.remote.content import Connection, Content
from rlds_cli.remote.index import File, Index, Object, is_path
from rlds_cli.remote.objects import Objects
from rlds_cli.remote.reading import ATTEMPTS
from rlds_cli.store import arrays, manifest, sealing, statistics
from rlds_cli.store import rows as stored_rows
from rlds_cli.store.manifest import Manifest, StoredField
from rlds_cli.store.rows import stored_row
from rlds_cli.ted import VIDEO, Array

_MOST = 64 << 20  # bytes of rows that are checked together
_KEPT = 64 << 20  # bytes of checked rows that stay in memory
_UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class Plain:
    """The manifest and the list of digests of a plain copy, as they were seen."""

    index: Index
    manifest: bytes
    listing: bytes
    sha256: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the directory in the home."""
        return f"{self.index.fingerprint.partition(':')[2][:24]}-{self.index.manifest[:15]}p"


def read_plain(objects: Objects, stats: Stats, directory: Path) -> Plain | None:
    """Return the plain copy at an address; None if there is none. ``directory`` takes the manifest for a moment.

    Raises
    ------
    DamagedDataset
        It grows, is compressed, or has no list of digests that its manifest names.
    WrongFingerprint
        The address pins other content.
    DownloadFailed
    """
    found = objects.read(sealing.MANIFEST, longest=manifest.LONGEST)
    if found is None or b'"rlds"' not in found.data:
        return None
    stats.add(requests=1, fetched=len(found.data))
    where = objects.address
    safe_files.write_bytes(directory / sealing.MANIFEST, found.data)
    try:
        m = manifest.read(directory)
    except NewerFormat:
        raise
    except RldsError as e:
        if b'"growing"' in found.data:
            raise _not_supported(f"{where} is a plain copy of a dataset that grows") from e
        raise DamagedDataset(f"{where}/{sealing.MANIFEST} is not the manifest of a dataset: {e.message}") from e
    if m.encoding != "memmap":
        raise _not_supported(f"{where} is a plain copy of a compressed dataset")
    if any(f.kind == "frames" for f in m.fields):
        raise _not_supported(f"{where} is a plain copy of a dataset with encoded frames or videos")
    if not where.matches(m.fingerprint):
        raise WrongFingerprint(f"{where} has {short(m.fingerprint)}, and {where.pin} was asked for.")
    listed = objects.read(sealing.LISTING)
    if listed is None or not m.files or hashlib.sha256(listed.data).hexdigest() != m.files:
        raise DamagedDataset(f"{where}/{sealing.LISTING} is missing, or is not what the manifest says.")
    stats.add(requests=1, fetched=len(listed.data))
    try:
        digests = documents.loads(listed.data, longest=documents.OWN)["attributes"]["files"]
        sha256 = {str(path): str(digest) for path, digest in digests.items() if is_path(str(path))}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DamagedDataset(f"{where}/{sealing.LISTING} cannot be read.") from e
    digest = hashlib.sha256(found.data).hexdigest()
    files = [File(path, _UNKNOWN, ()) for path in (sealing.MANIFEST, sealing.LISTING, *sha256)]
    files += [File(path, size, ()) for path, size in _row_files(m).items()]
    index = Index(m.id, m.fingerprint, None, digest, (), Object("0" * 64, 0), tuple(files), m.rlds_version)
    return Plain(index, found.data, listed.data, sha256)


def _row_files(m: Manifest) -> dict[str, int]:
    """Return the files of plain rows whose sizes the manifest tells, and those sizes."""
    found = {}
    for f in m.fields:
        dtype, shape = stored_row(f)
        size = arrays.file_size((m.counts.rows, *shape), dtype)
        if size:
            found[stored_rows.files(Path(), f, f.path)["rows"].as_posix()] = size
    return found


def _not_supported(what: str) -> DamagedDataset:
    return DamagedDataset(
        f"{what}, which cannot be read where it is.",
        hint="rlds push ID ADDRESS sends it in a form that can; or copy it to this disk",
    )


class PlainContent(Content):
    """The files of a plain copy, checked by the dataset's own digests."""

    def __init__(self, connection: Connection, plain: Plain, root: Path, stats: Stats) -> None:
        super().__init__(connection, plain.index, root, stats)
        self._plain = plain
        self._manifest: Manifest | None = None
        self._units: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._busy: dict[tuple[str, int], threading.Lock] = {}
        self._digests: dict[str, Array] = {}
        self._texts: dict[str, list[str | None]] = {}
        self._rows: dict[str, StoredField] = {}

    def _after_fork(self) -> None:
        super()._after_fork()
        self._busy = {}

    def size(self, prefix: str) -> int:
        """Return the bytes of files that the manifest tells."""
        return sum(f.size for f in self.below(prefix))

    def _is_here(self, file: File) -> bool:
        return (self.path / file.path).is_file()

    def _bring(self, files: list[File]) -> None:
        for f in files:
            path = self.path / f.path
            data = {sealing.MANIFEST: self._plain.manifest, sealing.LISTING: self._plain.listing}.get(f.path)
            if data is None:
                if f.path not in self._plain.sha256:
                    raise _not_supported(f"{self.address}/{f.path} has no digest of its own")
                data = self._whole(f.path)
            try:
                safe_files.directory(path.parent, self.path.parent)
                with safe_files.replacing(path) as out:
                    out.write(data)
            except OSError as e:
                raise disk.disk_error(e, path, kept="What is here stays.") from e

    def _whole(self, name: str) -> bytes:
        objects = self.connection()
        for _ in range(ATTEMPTS):
            found = objects.read(name)
            if found is None:
                raise self._gone(name)
            self.stats.add(requests=1, fetched=len(found.data))
            if hashlib.sha256(found.data).hexdigest() == self._plain.sha256[name]:
                return found.data
        raise self._gone(name)

    def _gone(self, name: str) -> WrongHash:
        return WrongHash(
            f"{self.address}/{name} is not what the manifest says: it changed since it was opened, or is damaged.",
            hint="open it again; rlds verify where it was copied from",
        )

    # -- rows

    def read(self, path: str, start: int, length: int, take: Take) -> None:
        """Give bytes of a file of rows to ``take``, after the rows that they belong to were checked."""
        f, m = self._field(path), self._read_manifest()
        dtype, shape = stored_row(f)
        whole = (m.counts.rows, *shape)
        width = arrays.row_bytes(whole, dtype)
        stored, unit = m.counts.rows * width, statistics.BLOCK_ROWS * width
        if unit > _MOST and stored > _MOST:
            raise _not_supported(f"{f.name} of {self.address}, of which {statistics.BLOCK_ROWS:,} rows are large")
        at, end = start, start + length
        while at < min(end, stored):
            number = at // unit
            rows = self._unit(path, f, number, min(unit, stored - number * unit), unit)
            part = memoryview(rows)[at - number * unit : end - number * unit]
            take(part)
            at += len(part)
        if at < end:
            tail = arrays.tail(whole, dtype)
            take(tail[at - stored : end - stored])

    def _read_manifest(self) -> Manifest:
        if self._manifest is None:
            self.need(sealing.MANIFEST)
            m = self._manifest = manifest.read(self.path)
            self._rows = {stored_rows.files(Path(), f, f.path)["rows"].as_posix(): f for f in m.fields}
        return self._manifest

    def _field(self, path: str) -> StoredField:
        self._read_manifest()
        f = self._rows.get(path)
        if f is None:
            raise _not_supported(f"{self.address}/{path} is no array of rows: it")
        return f

    def _unit(self, path: str, f: StoredField, number: int, size: int, unit: int) -> bytes:
        """Return the rows of a digest, checked; they are fetched once."""
        key = path, number
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            with self._lock:
                known = self._units.get(key)
            if known is not None:
                return known
            wanted = self._digests_of(f)[number].tobytes()
            objects = self.connection()
            for _ in range(ATTEMPTS):
                data = objects.read_range(path, number * unit, size)
                self.stats.add(requests=1, fetched=size)
                if self._digest(f, data) == wanted:
                    break
            else:
                raise self._gone(path)
            with self._lock:
                self._units[key] = data
                while sum(map(len, self._units.values())) > max(_KEPT, len(data)):
                    self._units.popitem(last=False)
            return data

    def _digest(self, f: StoredField, data: bytes) -> bytes | None:
        """Return the digest of rows; None for codes of texts that are not there."""
        if f.kind != "text":
            return hashlib.sha256(data).digest()
        with self._lock:
            texts = self._texts.get(f.name)
        if texts is None:
            self.need(f"text/{f.path}/")
            texts = [*arrays.read_strings(self.path / "text" / f.path), None]
            with self._lock:
                self._texts[f.name] = texts
        codes = np.frombuffer(data, "<i4")
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(texts) - 1:
            return None
        return statistics.text_block([texts[c] for c in codes.tolist()])

    def _digests_of(self, f: StoredField) -> Array:
        with self._lock:
            known = self._digests.get(f.name)
        if known is None:
            self.need(f"digests/{f.path}/")
            known = arrays.read(self.path / "digests" / f.path)
            with self._lock:
                self._digests[f.name] = known
        return known

    def is_right(self, path: str, start: int, data: memoryview) -> bool:
        """Return False: a block alone has no digest."""
        return False
