"""A plain copy of a dataset's directory at an address: no index, so its own digests tell what is right.

The manifest has a digest of itself, and names that of the list of digests; the list names that of every file without
plain rows; the digests of fields cover the rows, see `plain_units`. Sizes follow from the manifest and the
``zarr.json`` of arrays, so nothing is listed. Copies of datasets that grow are in `plain_growing`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlds_cli import text
from rlds_cli.errors import DamagedDataset, DownloadFailed, NewerFormat, RldsError, WrongFingerprint
from rlds_cli.files import disk
from rlds_cli.files import json as documents
from rlds_cli.files import safe as safe_files
from rlds_cli.files.hashing import short
from rlds_cli.remote import plain_growing
from rlds_cli.remote.cache import BlockFiles, Stats
from rlds_cli.remote.content import Connection
from rlds_cli.remote.decoding import Encoded
from rlds_cli.remote.index import File, Index, Object, is_path
from rlds_cli.remote.objects import LONGEST, Chunk, Objects
from rlds_cli.remote.plain_growing import EpisodeUnits
from rlds_cli.remote.plain_units import FilmUnits, FrameUnits, RowUnits, ShardUnits, TextUnits, WholeFiles, gone
from rlds_cli.remote.presence import Room
from rlds_cli.remote.reading import ATTEMPTS
from rlds_cli.remote.units import Covered, UnitFiles, stream
from rlds_cli.store import arrays, generations, manifest, sealing, statistics
from rlds_cli.store import rows as stored_rows
from rlds_cli.store.generations import Generation
from rlds_cli.store.manifest import Manifest, StoredField
from rlds_cli.store.rows import stored_row
from rlds_cli.ted import VIDEO

_AT_ONCE = 16  # requests for small files
_UNKNOWN = -1  # size of a file that its zarr.json tells
_END = "p"  # of the names of plain copies in the home
_NONE = "0" * 64


@dataclass(frozen=True, slots=True)
class Plain:
    """A plain copy as it was seen: its small files by path, and the sha256 of the others but those of plain rows."""

    index: Index
    small: Mapping[str, bytes]
    sha256: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the directory in the home: of the small files, whose digests prove all others."""
        rest = hashlib.sha256(b"".join(hashlib.sha256(self.small[path]).digest() for path in sorted(self.small)))
        return f"{self.index.fingerprint.partition(':')[2][:24]}-{rest.hexdigest()[:31]}{_END}"

    @property
    def size(self) -> int:
        """Bytes of its files, as far as its manifest and its logs tell them."""
        return sum(max(0, f.size) for f in self.index.files)


def is_plain(root: Path) -> bool:
    """Return whether a directory of remote datasets is that of a plain copy."""
    return root.name.endswith(_END)


def read_plain(objects: Objects, stats: Stats) -> Plain | None:
    """Return the plain copy at an address; None if there is none.

    Raises
    ------
    DamagedDataset
        Its manifest, its list of digests or its logs are missing, or are not those of one dataset.
    WrongFingerprint
        The address pins other content.
    NewerFormat, DownloadFailed
    """
    found = objects.read(sealing.MANIFEST, longest=manifest.LONGEST)
    if found is None or b'"rlds"' not in found.data:
        return None
    stats.add(requests=1, fetched=len(found.data))
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        safe_files.write_bytes(directory / sealing.MANIFEST, found.data)
        if _grows(found.data):
            head = plain_growing.read_head(objects, found.data, stats, directory)
            return _growing(head, found.data)
        return _ordinary(objects, found.data, stats, directory)


def _grows(document: bytes) -> bool:
    try:
        return bool(documents.loads(document, longest=manifest.LONGEST)["attributes"]["rlds"].get("growing"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _growing(head: plain_growing.Head, document: bytes) -> Plain:
    g, m = head.generation, head.manifest
    files = [File(path, len(data), ()) for path, data in head.small.items()]
    files += [File(path, size, ()) for path, size in head.segments.items()]
    digest = hashlib.sha256(document).hexdigest()
    index = Index(m.id, head.fingerprint, g.number, digest, (), Object(_NONE, 0), tuple(files), m.rlds_version)
    return Plain(index, head.small, {})


def _ordinary(objects: Objects, document: bytes, stats: Stats, directory: Path) -> Plain:
    where = objects.address
    try:
        m = manifest.read(directory)
    except NewerFormat:
        raise
    except RldsError as e:
        what = e.message.replace(f"{directory}/", "").rstrip(".")
        raise DamagedDataset(f"{where}/{sealing.MANIFEST} is not the manifest of a dataset: {what}.") from e
    if not m.files:
        raise DamagedDataset(
            f"{where} is a plain copy of a dataset that was written without digests of its files, which cannot be "
            "checked where it is.",
            hint="rlds push ID ADDRESS sends it in a form that can; or copy it to this disk",
        )
    if not sealing.own_digest(directory):
        raise DamagedDataset(f"{where}/{sealing.MANIFEST} is not as it was written.", hint="copy it again")
    if not where.matches(m.fingerprint):
        raise WrongFingerprint(f"{where} has {short(m.fingerprint)}, and {where.pin} was asked for.")
    listed = objects.read(sealing.LISTING, longest=documents.OWN)
    if listed is None or hashlib.sha256(listed.data).hexdigest() != m.files:
        raise DamagedDataset(f"{where}/{sealing.LISTING} is missing, or is not what the manifest says.")
    stats.add(requests=1, fetched=len(listed.data))
    try:
        digests = documents.loads(listed.data, longest=documents.OWN)["attributes"]["files"]
        sha256 = {str(path): str(digest) for path, digest in digests.items()}
        strange = next((path for path in sha256 if not is_path(path)), None)
        if strange is not None:
            raise ValueError(f"{strange[:80]!r} is no path")
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DamagedDataset(f"{where}/{sealing.LISTING} cannot be read.") from e
    small = {sealing.MANIFEST: document, sealing.LISTING: listed.data}
    files = [File(path, len(data), ()) for path, data in small.items()]
    files += [File(path, size, ()) for path, size in {**dict.fromkeys(sha256, _UNKNOWN), **_row_files(m)}.items()]
    digest = hashlib.sha256(document).hexdigest()
    index = Index(m.id, m.fingerprint, None, digest, (), Object(_NONE, 0), tuple(files), m.rlds_version)
    return Plain(index, small, sha256)


def _row_files(m: Manifest) -> dict[str, int]:
    """Return the files of plain rows, and their sizes as far as the manifest tells them."""
    found: dict[str, int] = {}
    for f in m.fields:
        if f.codec == VIDEO:
            found[arrays.data_file(Path("video", f.path, "bytes"), 1).as_posix()] = _UNKNOWN
        if m.encoding != "memmap":
            continue
        files = {part: file.as_posix() for part, file in stored_rows.files(Path(), f, f.path).items()}
        if "bytes" in files:
            found[files["bytes"]] = _UNKNOWN
            found[files["offsets"]] = arrays.file_size((m.counts.rows + 1,), "int64")
        else:
            dtype, shape = stored_row(f)
            size = arrays.file_size((m.counts.rows, *shape), dtype)
            found |= {files["rows"]: size} if size else {}
    return found


class PlainContent(WholeFiles):
    """The files of a plain copy, checked by the dataset's own digests."""

    def __init__(self, connection: Connection, plain: Plain, root: Path, stats: Stats) -> None:
        super().__init__(connection, plain.index, root, stats)
        self._plain = plain
        self._opened: list[UnitFiles] = []

    def _after_fork(self) -> None:
        super()._after_fork()
        for files in self._opened:
            files.after_fork()

    def file(self, path: str) -> File:
        """Return a file with its size; raises DamagedDataset."""
        found = super().file(path)
        if found.size == _UNKNOWN:
            size = self._size(path)
            if size is None:
                raise DownloadFailed(f"{self.address}/{path} could not be read: there is no such file.")
            found = File(path, size, ())
            self._files[path] = found
        return found

    def _size(self, path: str) -> int | None:
        """Return the size of a file: as its array's document tells, else as the store does."""
        directory, _, chunk = path.rpartition("/c/")
        document = f"{directory}/{sealing.MANIFEST}"
        if chunk and document in self._files:
            self.need(document)
            layout = arrays.layout(self.path / directory)
            if not layout.compressed:
                return arrays.file_size(layout.shape, layout.dtype)
        return self.connection().size(path)

    def size(self, prefix: str) -> int:
        """Return the bytes of files whose sizes are known."""
        return sum(max(0, f.size) for f in self.below(prefix))

    def _is_here(self, file: File) -> bool:
        return (self.path / file.path).is_file()

    @property
    def note(self) -> str:
        """What is fetched and checked together, in words."""
        self.need(*self._plain.small)
        m = manifest.read(self.path)
        if self.index.generation is not None:
            what = "several episodes"
        elif m.encoding != "memmap":
            what = "a shard of a field"
        else:
            what = f"{statistics.BLOCK_ROWS:,} rows of a field"
            sizes = {f.name: self._largest(f, m) for f in m.fields}
            name = max(sizes, key=lambda n: sizes[n], default="")
            what += f", up to {text.size_of(sizes[name])} of {name}," if name and sizes[name] else ""
        videos = " or a video" if any(f.codec == VIDEO for f in m.fields) else ""
        return f"a plain copy: {what}{videos} at a time when a part is read first; rlds push makes small blocks"

    def _largest(self, f: StoredField, m: Manifest) -> int:
        """Return the bytes of rows of a field that are checked together; 0 for encoded frames."""
        dtype, shape = stored_row(f)
        rows = min(m.counts.rows, statistics.BLOCK_ROWS)
        return 0 if f.kind == "frames" else rows * arrays.row_bytes((0, *shape), dtype)

    # -- whole files

    def _bring(self, files: list[File]) -> None:
        described = [f for f in files if f.path.endswith("zarr.json")]  # they tell the sizes of the others
        disk.check_space(sum(max(0, f.size) for f in files), self.path, kept="Nothing of these files was written.")
        for some in (described, [f for f in files if f not in described]):
            if len(some) > 1:
                with ThreadPoolExecutor(min(_AT_ONCE, len(some)), "rlds-files") as pool:
                    list(pool.map(self._bring_one, some))
            elif some:
                self._bring_one(some[0])

    def _bring_one(self, file: File) -> None:
        path = self.path / file.path
        try:
            safe_files.directory(path.parent, self.path.parent)
            with safe_files.replacing(path) as out:
                if file.path in self._plain.small:
                    out.write(self._plain.small[file.path])
                else:
                    self._checked(file.path, lambda: out.truncate(0) or out.seek(0), out.write)
        except OSError as e:
            raise disk.disk_error(e, path, kept="What is here stays.") from e

    def whole(self, path: str, longest: int) -> bytes:
        """See `WholeFiles.whole`."""
        data = bytearray()
        if (size := self._size(path) or 0) > longest:
            raise DamagedDataset(f"{self.address}/{path} has {size:,} bytes; {longest:,} at most are expected.")
        self._checked(path, data.clear, data.extend)
        return bytes(data)

    def _checked(self, path: str, begin: Callable[[], object], take: Callable[[Chunk], object]) -> None:
        """Give a file to ``take``, after ``begin`` in each attempt; raises unless it has its digest."""
        wanted = self._plain.sha256.get(path)
        if wanted is None:
            raise DamagedDataset(f"{self.address}/{path} has no digest of its own, and cannot be checked.")
        for _ in range(ATTEMPTS):
            digest = hashlib.sha256()

            def arrive(chunk: Chunk, digest: Any = digest) -> None:
                digest.update(chunk)
                take(chunk)

            begin()
            size = None if path.endswith(sealing.MANIFEST) else self._size(path)
            if size is None:
                found = self.connection().read(path, longest=LONGEST)
                if found is None:
                    raise DownloadFailed(f"{self.address}/{path} could not be read: there is no such file.")
                self.stats.add(requests=1, fetched=len(found.data))
                arrive(found.data)
            else:
                stream(self, path, 0, size, arrive)
            if digest.hexdigest() == wanted:
                return
        raise gone(self, path)

    # -- rows

    def open(self, room: Room, name: str, units: Mapping[str, Covered], timeout: float) -> BlockFiles:
        """Return files of rows by blocks; a file's size is that of what its units cover, and of its tail."""
        sizes = {path: self.file(path).size if path in self._files else c.size for path, c in units.items()}
        files = UnitFiles(room.ground(name), units)
        self._opened.append(files)
        return files.open(room, name, sizes, str(self.address), timeout, self.stats)

    def rows(self, paths: Sequence[str]) -> dict[str, Covered]:
        """Return how the rows in files at the address are checked."""
        self.need(*self._plain.small)  # all that opening it again without the network takes
        if self.index.generation is not None:
            m = manifest.read(self.path)
            units = EpisodeUnits(self, m, self._generation())
            return {path: Covered(units, self.file(path).size, bytes) for path in paths}
        m = manifest.read(self.path)
        known = {path: c for f in m.fields for path, c in self._of_field(f, m).items()}
        return {path: known[path] for path in paths}

    def _generation(self) -> Generation:
        assert self.index.generation is not None
        return generations.at(self.path, self.index.generation)

    def _of_field(self, f: StoredField, m: Manifest) -> dict[str, Covered]:
        rows, found = m.counts.rows, dict[str, Covered]()
        if f.codec == VIDEO:
            films = FilmUnits(self, f, rows)
            found[films.path] = Covered(films, films.size, partial(arrays.tail, (films.size,), "uint8"))
        if m.encoding != "memmap":
            return found
        if f.kind == "frames" and f.codec != VIDEO:
            frames = FrameUnits(self, f, rows)
            found[frames.offsets] = Covered(frames, 8 * frames.count, partial(arrays.tail, (frames.count,), "int64"))
            found[frames.bytes] = Covered(frames, frames.size, partial(arrays.tail, (frames.size,), "uint8"))
            return found
        units = (TextUnits if f.kind == "text" else RowUnits)(self, f, rows)
        found[units.path] = Covered(units, units.size, partial(arrays.tail, units.shape, units.dtype))
        return found

    def decoded(self, encoded: Mapping[str, Encoded]) -> dict[str, Covered]:
        """Return how the rows of compressed arrays are checked, by the paths that these get."""
        return {path: Covered(ShardUnits(self, path, e), e.size, bytes) for path, e in encoded.items()}
