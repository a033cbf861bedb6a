"""Open a dataset at an address: manifest and episode table are fetched, rows by blocks when they are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds_cli.errors import DamagedDataset, InvalidArgument, RldsError
from rlds_cli.files import disk
from rlds_cli.files import safe as safe_files
from rlds_cli.files.mapping import Addresses
from rlds_cli.growing import logs
from rlds_cli.growing.segments import SegmentedArray, SegmentMap
from rlds_cli.growing.store import GrowingStore
from rlds_cli.home import Home
from rlds_cli.remote import content, decoding, finding, presence
from rlds_cli.remote.blocks import BLOCK
from rlds_cli.remote.cache import TIMEOUT, BlockFiles, Source, Take, TransferStats
from rlds_cli.remote.columns import FilePlace, RemoteColumn
from rlds_cli.remote.content import Connection, Pinned, RemoteContent
from rlds_cli.remote.decoding import Encoded
from rlds_cli.remote.following import Follower
from rlds_cli.remote.presence import BlockFile, Room
from rlds_cli.remote.proving import Proof
from rlds_cli.settings import Settings, StrPath
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.store import arrays, commits, digests, manifest, opening
from rlds_cli.store.arrays import Segment
from rlds_cli.store.digests import Digests
from rlds_cli.store.opening import Store
from rlds_cli.store.rows import stored_row
from rlds_cli.store.videos import DIRECTORY, Extent, Videos
from rlds_cli.ted import VIDEO, Array, Field, IntArray

MEMORY = 64 << 20  # bytes of blocks that are not held and stay all the same, without a cache
_HINT = "rlds verify ID where it was pushed from"
OFFSETS, BYTES, FILMS = "\0offsets", "\0bytes", "\0video"
CacheSize = int | str | None


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """How a dataset at an address is read, see `open_remote`."""

    cache: CacheSize = None
    timeout: float | None = None
    fill: bool = True


def open_remote(
    ref: StrPath | Address,
    where: Settings,
    *,
    cache: CacheSize = None,
    timeout: float | None = None,
    fill: bool = True,
) -> Store:
    """Open the dataset at an address.

    Parameters
    ----------
    ref : str, path or Address
        See `addresses.parse`. A fingerprint alone is proved; see `proving`.
    cache : int or str, optional
        Bytes (``"200GiB"``) that blocks in the home may take; without it, as many as the disk has. 0 keeps them in
        memory, and little more of them than is in use.
    timeout : float, optional
        Seconds to wait for a block.
    fill : bool
        Loaders that draw from anywhere have the rest of their fields fetched in the background.

    Raises
    ------
    DatasetNotFound
        The address holds no dataset, or another version.
    WrongFingerprint
        It has other content than the address pins.
    WrongHash
        So it turns out when rows are read.
    DamagedDataset, NewerFormat, DownloadFailed, WrongHash, Offline, MissingPackage, NoSpace
    """
    presence.check_system()
    address = ref if isinstance(ref, Address) else addresses.parse(ref)
    parse_size(cache)
    if timeout is not None and not timeout > 0:
        raise InvalidArgument(f"timeout={timeout!r} is not a number of seconds.")
    stats = TransferStats()
    connection = Connection(address, where, timeout)
    pinned = finding.find(address, where, connection, stats)
    access = Access(connection, pinned, where, AccessOptions(cache, timeout, fill), stats)
    found = RemoteGrowingStore(access) if pinned.index.grows else RemoteStore(access)
    if access.is_proved:
        access.prove(found)
    connection.wait_longer()
    return found


def parse_size(cache: CacheSize) -> int | None:
    """Return the bytes of a size such as ``"200GiB"``, ``"1.5 GB"`` or a number of bytes; None for None.

    Raises
    ------
    InvalidArgument
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    units |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "k": 1 << 10, "m": 1 << 20}
    units |= {"g": 1 << 30, "t": 1 << 40}
    if cache is None or (isinstance(cache, int) and not isinstance(cache, bool) and cache >= 0):
        return cache
    if isinstance(cache, str):
        text = cache.strip().replace("_", "").replace(",", "").lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        try:
            size = float(number) * units[text[len(number) :].strip()]
            if math.isfinite(size) and size >= 0:
                return int(size)
        except (ValueError, KeyError):
            pass
    raise InvalidArgument(f"cache={cache!r} is not a size.", hint='"200GiB", a number of bytes, or 0 for no cache')


class Access:
    """Base of a store of either kind: the content, and its blocks, in the home or in memory.

    Attributes
    ----------
    root : Path or None
        Its directory in the home.
    name : str
        Of that directory. What was proved has one of its own.
    row_blocks : BlockFiles
        The files of rows as they lie at the address.
    is_proved : bool
        The address pins a fingerprint alone, which proves what is read.
    """

    def __init__(
        self,
        connection: Connection,
        pinned: Pinned,
        where: Settings,
        options: AccessOptions,
        stats: TransferStats,
    ) -> None:
        self.where, self.pinned, self.options, self.stats = where, pinned, options, stats
        self.connection, limit = connection, parse_size(options.cache)
        self.root: Path | None = None
        self.is_proved = connection.address.pin is not None and connection.address.index is None
        self.name = f"{pinned.name}{finding.PROVED}" if self.is_proved else pinned.name
        self._proofs: list[Proof] = []
        if limit == 0:
            self.room = Room(None, MEMORY)
            root = content.temporary_root()
            content.remove_with(self, root)
            safe_files.directory(root / content.DATASET, root)
            safe_files.replace_text(root / content.DATASET / content.MARK, f"{connection.address}\n")
        else:
            own = Home(where.home).remote
            self.root = root = own / self.name
            try:
                self.room = Room(own, limit)
                self.room.ground(self.name)
                with self.room.locked():
                    finding.save(root, pinned, connection.address)
            except OSError as e:
                error = disk.disk_error(e, root)
                error.hint = f"{error.hint}; cache=0 writes nothing" if error.hint else "cache=0 writes nothing"
                raise error from e
        self.content = RemoteContent(connection, pinned, root, stats, shared=finding.homes(where))
        self.path = self.content.path
        self.row_blocks: BlockFiles

    @property
    def address(self) -> Address:
        """The address."""
        return self.connection.address

    def prove(self, store: Remote) -> None:
        """Have all rows of a store of this proved that are read from now on; raises WrongFingerprint."""
        pinned = self.pinned.index.fingerprint
        args = store.bytes_key, lambda file: store.blocks.files[file].size, store.proved_fingerprint(), pinned
        self._proofs.append(Proof(store, store.place, *args))

    def _proving(self, source: Source) -> Source:
        """Return a source that proves what another one gives; it does not refer to this object, which refers to it."""
        proofs = self._proofs

        def proved(file: int, start: int, length: int, take: Take) -> None:
            if proofs:
                proofs[0].read(file, start, length, take, source)
            else:
                source(file, start, length, take)

        return proved

    def blocks(self, paths: Sequence[str], *, decoded: bool = False) -> BlockFiles:
        """Return the files of rows by blocks; what is ``decoded`` is proved then."""
        of = self.content
        files = [BlockFile(path, of.file(path).size) for path in paths]

        def source(file: int, start: int, length: int, take: Take) -> None:
            of.read(files[file].path, start, length, take)

        self.row_blocks = BlockFiles(
            self.room,
            self.name,
            files,
            source if decoded else self._proving(source),
            check=None if self.is_proved else lambda file, start, data: of.is_right(files[file].path, start, data),
            timeout=self._seconds,
            where=str(self.address),
            stats=self.stats,
            counts=False,
        )
        self.row_blocks.fills = self.options.fill
        return self.row_blocks

    def decoded(self, encoded: Mapping[str, Encoded], paths: Sequence[str], films: Sequence[str]) -> BlockFiles:
        """Return the rows of compressed arrays by blocks; ``paths`` are of files of rows, ``films`` those of videos."""
        of, name = self.content, f"{self.name}-rows"
        raw = self.blocks(paths, decoded=True)
        raw.stats = TransferStats()  # what waits for it counts
        sizes = {path: of.file(path).size for path in films}
        made = decoding.open_decoded(
            self.room, name, encoded, sizes, raw, wrap=self._proving, timeout=raw.timeout, stats=self.stats
        )
        made.fills = self.options.fill
        return made

    @property
    def _seconds(self) -> float:
        """Seconds that a read waits while no block arrives."""
        return TIMEOUT if self.options.timeout is None else self.options.timeout

    def reopened(self, version_id: str) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        """Return how to open the same version in another process."""
        index = self.pinned.index
        same = replace(self.address.unpinned, pin=index.fingerprint, index=None if self.is_proved else index.sha256)
        return _reopened, (same, self.where.home, self.options, version_id)


def _reopened(ref: Address, home: Path, how: AccessOptions, version_id: str) -> Store:
    from rlds_cli import settings

    store = open_remote(ref, settings.read(home), cache=how.cache, timeout=how.timeout, fill=how.fill)
    store.expect(version_id, "pickled")
    return store


class RemoteAccess(Protocol):
    """How the blocks of a remote store are fetched: `Access`, or that of `remote.published`."""

    @property
    def address(self) -> Address:
        """The address."""
        ...

    name: str
    stats: TransferStats
    row_blocks: BlockFiles

    def reopened(self, version_id: str) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        """Return how to open the same content in another process."""
        ...


class Remote(Store):
    """The part that remote stores of all kinds share.

    Attributes
    ----------
    blocks : BlockFiles
        The files of rows.
    """

    blocks: BlockFiles
    access: RemoteAccess
    identity = None

    @property
    def address(self) -> str:  # type: ignore[override]
        """The address, without credentials."""
        return str(self.access.address)

    @property
    def unproved(self) -> str:
        """The name of the directory of what was seen, which holds the hash of its index."""
        return self.access.name

    @property
    def stats(self) -> TransferStats:
        """Figures of this process: what it fetched, and how long it waited."""
        return self.access.stats

    def __reduce__(self) -> tuple[object, ...]:
        return self.access.reopened(self.version_id)

    def _follow(self) -> Path:
        """Return the path: nothing there is replaced, since another content has another directory."""
        return self._path

    def rows(self, name: str) -> Array:
        """Return all rows of a field as a `RemoteColumn`: what is read of it is fetched."""
        found: Array = self._column(name)
        return found

    def between(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``start`` to ``stop``, fetched and copied."""
        found: Array = self._column(name)[start:stop]
        return found

    @property
    def slices(self) -> bool:
        """True: a part that is read fetches its own blocks."""
        return True

    def frame_offsets(self, name: str) -> IntArray:
        """Return the first byte of each row's encoded frame, and the byte behind it [rows, 2]."""
        found: IntArray = self._column(name + OFFSETS)
        return found

    def frame_bytes(self, name: str) -> Array:
        """Return the encoded frames, end to end."""
        found: Array = self._column(name + BYTES)
        return found

    def _column(self, key: str) -> Any:
        if key not in self._columns:
            raw = self.mapped(key)
            place = self.place(key)
            self._columns[key] = raw if place is None else RemoteColumn(raw, self.blocks, place)  # type: ignore[assignment]
        return self._columns[key]

    def mapped(self, key: str) -> Array:
        """Return an array as it is mapped: of blocks that are not held, its values are anything.

        ``key`` is the name of a field, or ``NAME\\0offsets``, ``NAME\\0bytes`` and ``NAME\\0video``.
        """
        raise NotImplementedError

    def place(self, key: str) -> FilePlace | None:
        """Return where the bytes of an array lie in `blocks`; None for an array without bytes."""
        raise NotImplementedError

    def proved_fingerprint(self) -> str:
        """Return the fingerprint that the digests of episodes and the episode table have."""
        raise NotImplementedError

    @staticmethod
    def bytes_key(f: Field) -> str:
        """Return the key of the bytes of a field's images or videos."""
        return f.name + (FILMS if f.codec == VIDEO else BYTES)

    def row_files(self, name: str) -> tuple[opening.RowFile, ...]:
        """Return no files: they are at the address."""
        return ()

    def shared(self) -> Store:
        """Return this object: it has fetched what was read."""
        return self

    def check_changeable(self) -> None:
        """Raise InvalidArgument: datasets at an address are not changed."""
        raise InvalidArgument(
            f"{self.manifest.id} is at an address, where it is not changed.",
            hint="rlds download ADDRESS --as local/NAME fetches it; that copy can be changed",
        )

    def _gather_frames(self, f: Field, rows: IntArray) -> Array:
        """Decode frames, whose bytes are fetched together."""
        distinct = np.unique(rows)
        offsets: IntArray = self.frame_offsets(f.name)
        data: Any = self.frame_bytes(f.name)
        if not isinstance(data, RemoteColumn):
            return super()._gather_frames(f, rows)
        starts, stops = np.asarray(offsets[distinct]).T
        if len(starts) and not 0 <= starts.min() <= stops.max() <= len(data):
            return super()._gather_frames(f, rows)  # which says what is wrong
        with data.hold(starts, stops):
            return super()._gather_frames(f, rows)


class _Pushed(Remote):
    """The part that stores of pushed datasets share."""

    access: Access

    def beside(self, *parts: str) -> Path:
        """Return the path of a file or directory beside the rows, fetched if needed."""
        name = "/".join(parts)
        self.access.content.need(name, f"{name}/")
        return self.path.joinpath(*parts)

    def size_of(self, *parts: str) -> int:
        """Return the bytes of all files below a directory of the dataset, at the address; of all without parts."""
        prefix = "".join(f"{part}/" for part in parts)
        return self.access.content.size(prefix)


class RemoteStore(_Pushed):
    """The files of a dataset at an address."""

    def __init__(self, access: Access) -> None:
        self.access = access
        access.content.need("zarr.json", "episodes/")
        super().__init__(access.path)
        index = access.pinned.index
        if self.manifest.fingerprint != index.fingerprint:
            raise DamagedDataset(f"{access.address}: its index and its manifest name different content.", hint=_HINT)
        self._decoded = self.manifest.encoding == "zarr"
        self._segmented: dict[str, Array] = {}  # what is mapped
        frames = [f for f in self.manifest.fields if f.kind == "frames" and f.codec != VIDEO]
        access.content.need(*(f"{f.path}/bytes/zarr.json" for f in frames))
        paths = self._row_files()
        if self._decoded:
            encoded = self._encoded()
            shards = [path for e in encoded.values() for path in self._shards(e)]
            self.blocks = access.decoded(encoded, [*paths, *shards], paths)
        else:
            self.blocks = access.blocks(paths)

    def proved_fingerprint(self) -> str:
        """Return the fingerprint that the digests of episodes and the episode table have."""
        return self.fingerprint(self.numbers)

    def _shards(self, e: Encoded) -> list[str]:
        """Return the files of a compressed array; raises DamagedDataset for one that is larger than its rows can be."""
        wanted = []
        for f in self.access.content.below(f"{e.directory.as_posix()}/c/"):
            number = f.path.removeprefix(f"{e.directory.as_posix()}/c/").partition("/")[0]
            if not number.isdecimal() or int(number) >= e.layout.shards or f.path != e.shard(int(number)):
                continue  # no reader asks for it
            if f.size > e.longest:
                raise DamagedDataset(
                    f"{self.address}: {f.path} has {f.size:,} bytes; {e.longest:,} at most are expected.", hint=_HINT
                )
            wanted.append(f.path)
        return wanted

    def _encoded(self) -> dict[str, Encoded]:
        encoded = {}
        for f in self.fields.values():
            for key, directory in self._keys(f):
                if key.endswith(FILMS):
                    continue
                self.access.content.need(f"{directory.as_posix()}/zarr.json")
                found = arrays.layout(self.path / directory)
                if (found.shape, found.dtype) != self._shape(key) or not found.compressed:
                    raise DamagedDataset(
                        f"{self.address}: {directory}/zarr.json does not fit the manifest.", hint=_HINT
                    )
                encoded[key] = Encoded(directory, found)
        return encoded

    def _keys(self, f: Field) -> list[tuple[str, Path]]:
        """Return the arrays of a field that lie in files of rows: their keys, and directories below the dataset."""
        path = Path(self._stored[f.name].path)
        if f.kind == "frames" and f.codec != VIDEO:
            return [(f.name + OFFSETS, path / "offsets"), (f.name + BYTES, path / "bytes")]
        film = [(f.name + FILMS, Path(DIRECTORY) / path / "bytes")] if f.codec == VIDEO else []
        return [(f.name, path), *film]

    def _directory_of(self, key: str) -> Path:
        """Return the directory of an array below the dataset."""
        return dict(self._keys(self.fields[key.partition("\0")[0]]))[key]

    def _shape(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        f, rows = self.fields[key.partition("\0")[0]], self.manifest.counts.rows
        if key.endswith(OFFSETS):
            return (rows, 2), np.dtype("int64")
        if key.endswith((BYTES, FILMS)):
            directory = self._directory_of(key)
            self.access.content.need(f"{directory.as_posix()}/zarr.json")
            shape, dtype = arrays.open_document(self.path / directory)
            if len(shape) != 1 or dtype != np.uint8:
                raise DamagedDataset(f"{self.path / directory} is not an array of bytes.", hint="rlds verify ID")
            return shape, dtype
        dtype, shape = stored_row(f)
        return (rows, *shape), dtype

    def _segments(self, key: str) -> tuple[Segment, ...]:
        """Return the files of the plain rows of an array, without those that have no bytes."""
        shape, dtype = self._shape(key)
        directory, of = self._directory_of(key), self.access.content
        found: tuple[Segment, ...] = (Segment(0, self.path / directory, shape, dtype),)
        described = [f.path for f in of.below(f"{directory.as_posix()}/") if f.path.endswith("/zarr.json")]
        if len(described) > 1:
            of.need(*described)
            layout = arrays.layout(self.path / directory)
            if (layout.shape, layout.dtype) != (shape, dtype) or layout.compressed:
                raise DamagedDataset(f"{self.address}: {directory}/zarr.json does not fit the manifest.", hint=_HINT)
            found = layout.segments
        return tuple(s for s in found if s.size)

    def _path_of(self, s: Segment) -> str:
        """Return the path of a file of rows below the dataset."""
        return s.file.relative_to(self.path).as_posix()

    def _check_sizes(self) -> None:
        """Nothing: rows are not here. `_row_files` compares the index."""

    def _row_files(self) -> list[str]:
        """Return the files of plain rows that are needed, in order; refuse one of another size than documents say."""
        needed = []
        for f in self.fields.values():
            for key, _ in self._keys(f):
                if self._decoded and not key.endswith(FILMS):
                    continue
                for s in self._segments(key):
                    needed.append(self._path_of(s))
                    found = self.access.content.file(needed[-1]).size
                    if found != s.size:
                        raise DamagedDataset(
                            f"{self.address}: {needed[-1]} has {found:,} bytes; {s.size:,} expected.", hint=_HINT
                        )
        return needed

    # -- rows

    def mapped(self, key: str) -> Array:
        """Return an array as it is mapped; see `Remote.mapped`."""
        shape, dtype = self._shape(key)
        place = self.place(key)
        if place is None:
            empty: Array = np.zeros(shape, dtype)
            empty.flags.writeable = False
            return empty
        if place.first is not None:
            return self._side_by_side(key, shape, dtype)
        raw = self.blocks.mapped(int(place.files[0]))[: math.prod(shape) * dtype.itemsize]
        found: Array = raw.view(dtype.newbyteorder("<")).reshape(shape)
        return found

    def place(self, key: str) -> FilePlace | None:
        """Return where the bytes of an array lie in `blocks`; None for an array without bytes."""
        shape, dtype = self._shape(key)
        if not math.prod(shape) * dtype.itemsize:
            return None
        if self._decoded and not key.endswith(FILMS):
            return FilePlace(np.array([self.blocks.number(key)]))
        segments, width = self._segments(key), arrays.row_bytes(shape, dtype)
        files = np.array([self.blocks.number(self._path_of(s)) for s in segments])
        if len(segments) == 1 and not segments[0].start:
            return FilePlace(files)
        first = np.array([s.start * width // BLOCK for s in segments])
        return FilePlace(files, first=first, count=np.array([-(-s.rows * width // BLOCK) for s in segments]))

    def _side_by_side(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Map the segments of an array."""
        if key not in self._segmented:
            width = arrays.row_bytes(shape, dtype)
            addresses = Addresses(shape[0] * width)
            for s in self._segments(key):
                descriptor = self.blocks.map.open_rows(self.blocks.number(self._path_of(s)))
                try:
                    addresses.map(s.start * width, s.rows * width, descriptor)
                finally:
                    os.close(descriptor)
            whole = np.frombuffer(addresses.view(), dtype.newbyteorder("<"), math.prod(shape)).reshape(shape)
            whole.flags.writeable = False
            self._segmented[key] = whole
        return self._segmented[key]

    def directory(self, name: str) -> Path:
        """Return the directory of a field, which has no rows here."""
        path = self._stored[name].path
        below = self.access.content.below(f"{path}/")
        self.access.content.need(*(f.path for f in below if f.path.endswith("/zarr.json")))
        return self.path / path

    def strings(self, name: str) -> Array:
        """Return the string table of a text field."""
        self.beside("text", self._stored[name].path)
        return super().strings(name)

    def videos(self, name: str) -> Videos:
        """Return the videos of a field, whose bytes are fetched when frames are decoded."""
        if name not in self._videos:
            path = self._stored[name].path
            films = {self._path_of(s) for s in self._segments(name + FILMS)}
            of = self.access.content
            of.need(*(f.path for f in of.below(f"{DIRECTORY}/{path}/") if f.path not in films))
            self._videos[name] = RemoteVideos(self.path / DIRECTORY / path, self._column(name + FILMS), self)
        return self._videos[name]

    @cached_property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """Files of the archive."""
        self.beside("sources")
        return Store.sources.func(self)  # type: ignore[attr-defined,no-any-return]


class RemoteVideos(Videos):
    """The videos of one field of a remote dataset."""

    def __init__(self, directory: Path, data: Any, of: Remote) -> None:
        self._data, self._of = data, of
        self._extents: list[Any] = []
        super().__init__(directory)

    def _open_bytes(self) -> Array:
        found: Array = self._data
        return found

    def published(self, number: int) -> Array:
        """Return the bytes of a video file; what is read of them is fetched."""
        self._check_number(number)
        a, b = self.spans[number].tolist()
        data = self._data
        found: Array = data.window(a, b) if isinstance(data, RemoteColumn) else data[a:b]  # type: ignore[assignment]
        return found

    def gather(self, f: Field, index: Array) -> Array:
        """Decode frames, whose bytes, from the key frames before them on, are fetched together."""
        if not isinstance(self._data, RemoteColumn):
            return super().gather(f, index)
        with self._data.hold(*self.ranges(index)):
            return super().gather(f, index)

    def ranges(self, index: Array) -> tuple[IntArray, IntArray]:
        """Return the ranges of bytes of all videos, end to end, that decoding the frames of an index [n, 2] takes."""
        starts, stops = [], []
        for number, frame in np.unique(index[index[:, 0] >= 0], axis=0).tolist():
            track = self.video(number).track
            if 0 <= frame < len(track.frames):
                packet = int(track.frames[frame])
                first = track.begin(packet)
                base = int(self.spans[number, 0])
                starts.append(base + int(track.start[first : packet + 1].min()))
                stops.append(base + int((track.start + track.size)[first : packet + 1].max()))
        return np.array(starts, np.int64), np.array(stops, np.int64)

    def extent(self, number: int) -> Extent:
        """Return the file and the range of bytes of a video, cached as long as this object exists."""
        a, b = self.spans[number].tolist()
        of, blocks = super().extent(number), self._of.blocks
        if b > a and isinstance(self._data, RemoteColumn):
            self._extents.append(self._data.hold(np.array([a]), np.array([b])))
        here = ((blocks.number(file.relative_to(self._of.path)), start, size) for file, start, size in of.parts)
        return Extent(tuple((blocks.path_of(number), start, size) for number, start, size in here))


class RemoteGrowingStore(_Pushed, GrowingStore):
    """The files of a version of a growing dataset at an address."""

    is_packable = False

    def __init__(self, access: Access, follower: Follower[RemoteGrowingStore] | None = None) -> None:
        self.access = access
        of, index = access.content, access.pinned.index
        of.need("zarr.json", commits.FILE)
        m = manifest.read(of.path)
        if logs.encoded(m.fields):
            raise RldsError(
                f"{m.id} at {access.address} grows and holds encoded frames, which are not read from an address.",
                hint=f"rlds download {access.address} copies it to this machine",
            )
        heads = (*(f"{f.path}/c/" for f in m.fields), f"{digests.ROWS}/")
        small = (f.path for f in index.files if not f.path.startswith(heads) or f.path.endswith("/zarr.json"))
        of.need(*(path for path in small if path != logs.DIGESTS))
        GrowingStore.__init__(self, access.path)
        if self.commit.number != index.version:
            raise DamagedDataset(
                f"{access.address}: its index and its log of versions name different versions.",
                hint="rlds push ID sends it again",
            )
        self.blocks = access.blocks(self._row_files())
        self._follower = follower or Follower(_Look(access, self.version, self.version_id))

    def _digests(self) -> Digests:
        self.access.content.need(logs.DIGESTS)
        return super()._digests()

    def row_digests(self, name: str) -> Digests:
        """Return the sha256 of each row of a field that has them [rows, 32]."""
        self.beside(digests.ROWS, self.path_of(name))
        return super().row_digests(name)

    def digest_of(self, k: int) -> bytes:
        """Return a hash of episode ``k``, see `GrowingStore.digest_of`."""
        self.access.content.need(logs.DIGESTS)
        return super().digest_of(k)

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint; that of the whole dataset is the index's, and a download compares it."""
        whole = index is None and not ignored
        return self.access.pinned.index.fingerprint if whole else super().fingerprint(index, ignored=ignored)

    def proved_fingerprint(self) -> str:
        """Return the fingerprint that the digests of episodes and the episode table have."""
        return super().fingerprint(self.numbers)

    def _check_sizes(self) -> None:
        """Nothing: rows are not here. `_row_files` compares the index."""

    def _row_files(self) -> list[str]:
        """Return the segments that are needed; refuse a dataset whose index lacks some, or has some of another size."""
        needed = []
        for array in self.layout.rows.values():
            for number in self.needed(array) if array.size else ():
                path = self._segment(array, number)
                needed.append(path)
                if self.access.content.file(path).size != array.size:
                    raise DamagedDataset(
                        f"{self.address}: {path} has another size than {array.size:,} bytes.", hint=logs.HINT
                    )
        return needed

    def _segment(self, array: SegmentedArray, number: int) -> str:
        return array.file(number).relative_to(self.path).as_posix()

    @property
    def why_fixed(self) -> str:  # type: ignore[override]
        """Why loaders take up no later versions while they read this one; empty if they can."""
        return "its address pins a fingerprint" if self.access.is_proved else ""

    @property
    def newest_version(self) -> int:
        """Number of the newest version that can be taken up; a later one is looked for in the background."""
        return self._follower.newest(self.version)

    def newest(self) -> GrowingStore:
        """Return what is at the address now, which may be this version."""
        return _Look(self.access, self.version, self.version_id)(self._follower) or self

    def at(self, version: int) -> GrowingStore:
        """Return another version at the address.

        Raises
        ------
        DatasetNotFound
            It is not there.
        DownloadFailed, Offline
        """
        opened = self._follower.opened
        if version == self.version:
            return self
        if opened is not None and opened.version == version:
            return opened
        look = _Look(self.access, self.version, self.version_id)
        return look.open(replace(self.access.address.unpinned, version=version), self._follower) or self

    def mapped(self, key: str) -> Array:
        """Return an array as it is mapped; see `Remote.mapped`."""
        g, array = self.commit, self.layout.rows[key]
        if array.directory not in self._maps:
            self._maps[array.directory] = _RemoteSegments(self, array, g.first_row, g.rows)
        return self._maps[array.directory].rows(g.first_row, g.rows, self.needed(array), self._hold)

    def place(self, key: str) -> FilePlace | None:
        """Return where the bytes of an array lie in `blocks`; None for an array without bytes."""
        g, array = self.commit, self.layout.rows[key]
        if not array.width or g.rows == g.first_row:
            return None
        first = g.first_row // array.segment_rows
        count = -(-g.rows // array.segment_rows) - first
        files = np.full(count, -1, np.int64)
        for number in self.needed(array):
            files[number - first] = self.blocks.number(self._segment(array, number))
        return FilePlace(files, array.size, (g.first_row - first * array.segment_rows) * array.width)


class _Look:
    """Opens other versions of a dataset at an address, of which one is known. It does not hold that one."""

    def __init__(self, access: Access, version: int, version_id: str) -> None:
        self._address, self._where, self._options = access.address.unpinned, access.where, access.options
        self._stats, self._index = access.stats, access.pinned.index.sha256
        self._version, self._version_id = version, version_id

    def __call__(self, follower: Follower[RemoteGrowingStore]) -> RemoteGrowingStore | None:
        """Return the newest version; see `open`."""
        return self.open(self._address, follower)

    def open(self, address: Address, follower: Follower[RemoteGrowingStore]) -> RemoteGrowingStore | None:
        """Return the version that an address names; None if it is the one that was opened last.

        Raises
        ------
        DamagedDataset
            Another dataset is at the address by now.
        DatasetNotFound, DownloadFailed, Offline
        """
        connection = Connection(address, self._where, self._options.timeout)
        pinned = finding.find(address, self._where, connection, self._stats)
        if pinned.index.sha256 == self._index:
            return None
        access = Access(connection, pinned, self._where, self._options, self._stats)
        found = RemoteGrowingStore(access, follower) if pinned.index.grows else None
        if found is None or not self._has_grown_to(found, address):
            raise DamagedDataset(f"{address.unpinned} holds another dataset by now.", hint="open it again")
        connection.wait_longer()
        self._index = pinned.index.sha256
        return found

    def _has_grown_to(self, found: RemoteGrowingStore, address: Address) -> bool:
        """Return whether a version is a later one of the known dataset; an earlier one may be asked for by number."""
        if found.version < self._version:
            return address.version is not None
        return commits.at(found.path, self._version).version_id == self._version_id


class _RemoteSegments(SegmentMap):
    """The mapped segments of a field of a remote dataset."""

    def __init__(self, of: RemoteGrowingStore, array: SegmentedArray, first: int, rows: int) -> None:
        self._blocks = of.blocks
        self._path: Callable[[int], str] = lambda number: of._segment(array, number)
        super().__init__(array, first, rows)

    @contextmanager
    def _opened(self, number: int, size: int) -> Iterator[int]:
        descriptor = self._blocks.map.open_rows(self._blocks.number(self._path(number)))
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def fetched(store: Store) -> tuple[str, TransferStats]:
    """Return the address of a remote store, and what was fetched of it."""
    assert isinstance(store, Remote)
    return store.address, store.stats


def address_of(store: Store) -> Address | None:
    """Return the address of a remote store; None for one on this disk."""
    return store.access.address if isinstance(store, Remote) else None
