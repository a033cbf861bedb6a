"""The units of a plain copy: what each of the dataset's own digests covers.

=====================  ==============================================================================
rows, plain            sha256 of the bytes of 65,536 rows, in ``digests/``
text                   the same of the strings that the codes stand for
encoded frames         the same of the lengths and bytes of 65,536 frames: parts of two files
videos                 sha256 of each video, in ``digests/`` behind those of the rows
rows, compressed       sha256 of each shard, in the list of files: it is decoded as a whole
rows that grow         the digest of each episode, over the rows of all fields: episodes are checked
                       several at a time, parts of the segments of all fields
=====================  ==============================================================================
"""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rlds_cli.errors import DamagedDataset, RldsError, WrongHash
from rlds_cli.remote.cache import Take
from rlds_cli.remote.content import Content
from rlds_cli.remote.decoding import ChunkDecoder, Encoded
from rlds_cli.remote.objects import Chunk
from rlds_cli.remote.units import Sink, Span, Units, stream
from rlds_cli.store import arrays, statistics
from rlds_cli.store import rows as stored_rows
from rlds_cli.store.manifest import StoredField
from rlds_cli.store.rows import stored_row
from rlds_cli.store.videos import DIRECTORY
from rlds_cli.ted import Array, IntArray

_AT_ONCE = 16  # requests for the places of encoded frames
_SHARDS = threading.Semaphore(2)  # that are in memory at a time
_HINT = "rlds verify ID where it was copied from, and copy it again; or open it again, if it was replaced"


def gone(of: Content, *paths: str) -> WrongHash:
    """Return the error for files of which something is not what the dataset's digests say."""
    some = ", ".join(f"{of.address}/{path}" for path in paths[:4]) + (", ..." if len(paths) > 4 else "")
    one = "" if len(paths) == 1 else "one of "
    return WrongHash(
        f"{one}{some} is not what the manifest says: it changed since it was opened, or is damaged.", hint=_HINT
    )


class _FileUnits(Units):
    """Units that lie as they are in files at the address."""

    def __init__(self, of: Content) -> None:
        self._of = of
        self._lock = threading.Lock()

    def read(self, number: int, path: str, start: int, stop: int, take: Take) -> None:
        """See `Units.read`."""
        stream(self._of, path, start, stop, take)

    def wrong(self, number: int) -> RldsError:
        """See `Units.wrong`."""
        return gone(self._of, *dict.fromkeys(s.path for s in self.spans(number)))


class _FieldUnits(_FileUnits):
    """Units of one field, whose digests are in ``digests/``."""

    def __init__(self, of: Content, f: StoredField) -> None:
        super().__init__(of)
        self._field = f
        self._known: Array | None = None

    def _digest(self, number: int) -> bytes:
        """Return a digest; of no rows, that of nothing."""
        with self._lock:
            if self._known is None:
                self._of.need(f"digests/{self._field.path}/")
                self._known = arrays.read(self._of.path / "digests" / self._field.path)
            if not len(self._known):
                return hashlib.sha256(b"").digest()
            if number >= len(self._known):
                raise DamagedDataset(f"{self._of.address}/digests/{self._field.path} has too few digests.", hint=_HINT)
            return bytes(self._known[number])


class RowUnits(_FieldUnits):
    """The units of rows of fixed width."""

    def __init__(self, of: Content, f: StoredField, rows: int) -> None:
        super().__init__(of, f)
        dtype, shape = stored_row(f)
        self.shape, self.dtype = (rows, *shape), dtype
        width = arrays.row_bytes(self.shape, dtype)
        self.size, self.unit = rows * width, statistics.BLOCK_ROWS * width
        self.path = stored_rows.files(Path(), f, f.path)["rows"].as_posix()

    def find(self, path: str, at: int) -> tuple[int, int]:
        """See `Units.find`."""
        number = at // self.unit
        return number, min(self.size, (number + 1) * self.unit)

    def spans(self, number: int) -> tuple[Span, ...]:
        """See `Units.spans`."""
        return (Span(self.path, number * self.unit, min(self.size, (number + 1) * self.unit)),)

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        (span,) = self.spans(number)
        digest = hashlib.sha256()

        def take(data: Chunk) -> None:
            digest.update(data)
            sink(0, data)

        stream(self._of, span.path, span.start, span.stop, take)
        return digest.digest() == self._digest(number)


class TextUnits(RowUnits):
    """The units of the codes of texts; their digests are of the texts."""

    def __init__(self, of: Content, f: StoredField, rows: int) -> None:
        super().__init__(of, f, rows)
        self._texts: list[str | None] = []

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        (span,) = self.spans(number)
        data = bytearray()
        stream(self._of, span.path, span.start, span.stop, data.extend)
        with self._lock:
            if not self._texts:
                self._of.need(f"text/{self._field.path}/")
                self._texts = [*arrays.read_strings(self._of.path / "text" / self._field.path), None]
        codes = np.frombuffer(data, "<i4")
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(self._texts) - 1:
            return False
        sink(0, bytes(data))
        return statistics.text_block([self._texts[c] for c in codes.tolist()]) == self._digest(number)


class FrameUnits(_FieldUnits):
    """The units of encoded frames: 65,536 of their offsets, and the bytes that these lead to."""

    def __init__(self, of: Content, f: StoredField, rows: int) -> None:
        super().__init__(of, f)
        files = stored_rows.files(Path(), f, f.path)
        self.offsets, self.bytes = files["offsets"].as_posix(), files["bytes"].as_posix()
        self.count, self._rows = rows + 1, rows
        self._places: list[int] = []

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        self._of.need(f"{self._field.path}/bytes/zarr.json")
        return int(arrays.open_document(self._of.path / self._field.path / "bytes")[0][0])

    def _edges(self) -> list[int]:
        """Return the first byte of each unit, and the end of the last, as the file says; a check of a unit tells."""
        with self._lock:
            if not self._places:
                inner = range(statistics.BLOCK_ROWS, self._rows, statistics.BLOCK_ROWS)
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    found = [0, *pool.map(self._offset, inner), self.size]
                if found != sorted(found):
                    raise gone(self._of, self.offsets)
                self._places = found
            return self._places

    def _offset(self, row: int) -> int:
        data = bytearray()
        stream(self._of, self.offsets, 8 * row, 8 * row + 8, data.extend)
        return int.from_bytes(data, "little", signed=True)

    def _of_rows(self, number: int) -> tuple[int, int, bool]:
        """Return the first row of a unit, the row behind it, and whether the unit is the last one."""
        stop = min(self._rows, (number + 1) * statistics.BLOCK_ROWS)
        return number * statistics.BLOCK_ROWS, stop, stop == self._rows

    def find(self, path: str, at: int) -> tuple[int, int]:
        """See `Units.find`."""
        if path == self.offsets:
            number = max(0, min(at // 8, self._rows - 1)) // statistics.BLOCK_ROWS
        else:
            number = bisect_right(self._edges(), at) - 1
        return number, next(s.stop for s in self.spans(number) if s.path == path)

    def spans(self, number: int) -> tuple[Span, ...]:
        """See `Units.spans`."""
        a, b, last = self._of_rows(number)
        edges = self._edges()
        return Span(self.offsets, 8 * a, 8 * (b + last)), Span(self.bytes, edges[number], edges[number + 1])

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        a, b, last = self._of_rows(number)
        _, span = self.spans(number)
        data = bytearray()
        stream(self._of, self.offsets, 8 * a, 8 * (b + 1), data.extend)
        offsets: IntArray = np.frombuffer(data, "<i8")
        lengths = np.diff(offsets)
        if (offsets[0], offsets[-1]) != (span.start, span.stop) or (lengths < 0).any():
            return False
        sink(0, memoryview(data)[: 8 * (b + last - a)])
        digest = hashlib.sha256(np.ascontiguousarray(lengths, "<i8").tobytes())

        def take(part: Chunk) -> None:
            digest.update(part)
            sink(1, part)

        stream(self._of, self.bytes, span.start, span.stop, take)
        return digest.digest() == self._digest(number)


class FilmUnits(_FieldUnits):
    """The videos of a field, each of them a unit."""

    def __init__(self, of: Content, f: StoredField, rows: int) -> None:
        super().__init__(of, f)
        self._before = len(statistics.blocks(rows))  # digests of rows
        self._directory = f"{DIRECTORY}/{f.path}"
        self.path = arrays.data_file(Path(self._directory, "bytes"), 1).as_posix()
        self._places: list[int] = []

    @property
    def size(self) -> int:
        """Bytes of all videos."""
        return self._edges()[-1]

    def _edges(self) -> list[int]:
        with self._lock:
            if not self._places:
                self._of.need(f"{self._directory}/offsets/", f"{self._directory}/bytes/zarr.json")
                offsets = arrays.read(self._of.path / self._directory / "offsets")
                (size, *_), _ = arrays.open_document(self._of.path / self._directory / "bytes")
                if not len(offsets) or offsets[0] or offsets[-1] != size or (np.diff(offsets) < 0).any():
                    raise DamagedDataset(f"{self._of.address}/{self._directory}: videos end elsewhere.", hint=_HINT)
                self._places = offsets.tolist()
            return self._places

    def find(self, path: str, at: int) -> tuple[int, int]:
        """See `Units.find`."""
        edges = self._edges()
        number = bisect_right(edges, at) - 1
        return number, edges[number + 1]

    def spans(self, number: int) -> tuple[Span, ...]:
        """See `Units.spans`."""
        return (Span(self.path, *self._edges()[number : number + 2]),)

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        (span,) = self.spans(number)
        digest = hashlib.sha256()

        def take(data: Chunk) -> None:
            digest.update(data)
            sink(0, data)

        stream(self._of, span.path, span.start, span.stop, take)
        return digest.digest() == self._digest(self._before + number)


class WholeFiles(Content):
    """Content of which whole files can be fetched, each checked by its own digest."""

    @abstractmethod
    def whole(self, path: str, longest: int) -> bytes:
        """Return a file of at most so many bytes, checked; raises RldsError."""


class ShardUnits(Units):
    """The rows of a compressed array; its shards are units. ``path`` is what the rows are called."""

    def __init__(self, of: WholeFiles, path: str, encoded: Encoded) -> None:
        self._of, self._path, self._encoded = of, path, encoded
        self.size = encoded.size
        self._unit = encoded.layout.shard * encoded.width
        self._decoder = ChunkDecoder(encoded, _Ranges(of))

    def find(self, path: str, at: int) -> tuple[int, int]:
        """See `Units.find`."""
        number = at // self._unit
        return number, min(self.size, (number + 1) * self._unit)

    def spans(self, number: int) -> tuple[Span, ...]:
        """See `Units.spans`."""
        return (Span(self._path, number * self._unit, min(self.size, (number + 1) * self._unit)),)

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        (span,) = self.spans(number)
        with _SHARDS:
            shard = _InMemory(str(self._of.address), self._of.whole(self._encoded.shard(number), self._encoded.longest))
            decoder = ChunkDecoder(self._encoded, shard)
            decoder.read(span.start, span.stop - span.start, lambda data: sink(0, data))
        self._decoder.tables |= decoder.tables
        return True

    def read(self, number: int, path: str, start: int, stop: int, take: Take) -> None:
        """See `Units.read`."""
        self._decoder.read(start, stop - start, take)

    def wrong(self, number: int) -> RldsError:
        """See `Units.wrong`."""
        return gone(self._of, self._encoded.shard(number))


class _InMemory:
    """A file in memory, for a decoder."""

    def __init__(self, where: str, data: bytes) -> None:
        self.where, self._data = where, data

    def size_of(self, path: str) -> int | None:
        return len(self._data)

    def bytes_of(self, path: str, start: int, length: int) -> bytes:
        return self._data[start : start + length]


class _Ranges:
    """Files at an address, for a decoder: what it reads is checked when it is decoded."""

    def __init__(self, of: Content) -> None:
        self._of, self.where = of, str(of.address)
        self._sizes: dict[str, int | None] = {}

    def size_of(self, path: str) -> int | None:
        if path not in self._sizes:
            self._sizes[path] = self._of.connection().size(path)
        return self._sizes[path]

    def bytes_of(self, path: str, start: int, length: int) -> bytes:
        data = bytearray()
        stream(self._of, path, start, start + length, data.extend)
        return bytes(data)
