"""A plain copy of a dataset that grows: which generation is whole in it, and the episodes that are checked together.

A copy may have been made while the dataset grew. Each record of a generation has a checksum, and a hash of the logs, so
the logs of a generation are those of its commit, or are refused. Rows are compared with the digests of their episodes.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rlds_cli.errors import DamagedDataset, DownloadFailed, NewerFormat, RldsError, WrongFingerprint
from rlds_cli.files import safe as safe_files
from rlds_cli.files.hashing import short
from rlds_cli.growing import logs, records, segments
from rlds_cli.growing.store import GrowingStore
from rlds_cli.growing.verification import wrong_columns
from rlds_cli.remote.cache import Stats, Take
from rlds_cli.remote.content import Content
from rlds_cli.remote.objects import Chunk, Objects
from rlds_cli.remote.plain_units import gone
from rlds_cli.remote.units import Sink, Span, Units, stream
from rlds_cli.store import arrays, digests, generations, manifest, sealing
from rlds_cli.store.generations import Generation
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import field_of
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, Field, IntArray

_UNIT = 8 << 20  # bytes of the rows of episodes that are checked together
_BACK = 16  # generations that are tried
_LARGEST_GAP = 1 << 16  # bytes of rows of no episode that are fetched with others


@dataclass(frozen=True, slots=True)
class Head:
    """One generation of a plain copy: its small files, as a dataset has them, and the sizes of its segments."""

    manifest: Manifest
    generation: Generation
    fingerprint: str
    small: dict[str, bytes]
    segments: dict[str, int]


def read_head(objects: Objects, document: bytes, stats: Stats, directory: Path) -> Head:
    """Return the newest generation whose logs are all there, of those that the address allows.

    Raises
    ------
    WrongFingerprint
        The address pins other content.
    DamagedDataset
        The logs of no generation are whole.
    DownloadFailed
    """
    where = objects.address
    if sealing.own_digest(directory) is False:
        raise DamagedDataset(f"{where}/{sealing.MANIFEST} is not as it was written.", hint="copy it again")
    found = objects.read(generations.FILE)
    if found is None:
        raise DamagedDataset(f"{where}/{generations.FILE} is missing.", hint=logs.HINT)
    stats.add(requests=1, fetched=len(found.data))
    cut = range(0, len(found.data) - generations.BYTES + 1, generations.BYTES)
    known = [(k, generations.unpacked(found.data[at : at + generations.BYTES])) for k, at in enumerate(cut)]
    whole = [g for k, g in known if g is not None and g.number == k]
    why, other = f"{generations.FILE} has no whole record", ""
    for g in list(reversed(whole))[:_BACK]:
        try:
            head = _head(objects, document, g, found.data, stats, directory)
        except (_NotWhole, DownloadFailed) as e:
            why = str(e).rstrip(".") if why.startswith(generations.FILE) else why  # that of the newest one
            continue
        if where.matches(head.fingerprint):
            return head
        other = other or head.fingerprint
    if other:
        raise WrongFingerprint(f"{where} has {short(other)}, and {where.pin} was asked for.")
    raise DamagedDataset(
        f"{where} is a copy of a dataset that grows, and no generation that {generations.FILE} names is whole: {why}. "
        "It was copied while it was written, or is damaged.",
        hint="copy it again while nobody writes; rlds push sends one generation at any time",
    )


class _NotWhole(Exception):
    """A generation's logs do not agree with its record."""


def _head(
    objects: Objects, document: bytes, g: Generation, log: bytes, stats: Stats, directory: Path
) -> Head:  # fmt: skip
    """Read the logs of a generation into a directory, check them, and return them."""
    freed = _read(objects, logs.FREED, 16, stats)
    if int.from_bytes(freed[:8], "little") > g.departed:
        raise _NotWhole(f"{logs.FREED} says that rows of generation {g.number:,} are gone")
    small = {
        sealing.MANIFEST: document,
        generations.FILE: log[: (g.number + 1) * generations.BYTES],
        logs.FREED: 2 * g.departed.to_bytes(8, "little"),
        **dict.fromkeys((logs.READERS, logs.WRITERS, logs.COMMIT), b""),
    }
    for name, data in small.items():
        safe_files.write_bytes(directory / name, data)
    try:
        m = manifest.read(directory)
        for name, size in logs.sizes(g, len(m.fields)).items():
            small[name] = _read(objects, name, size, stats)
            safe_files.write_bytes(directory / name, small[name])
        fields = [field_of(f) for f in m.fields]
        kept = _checked(directory, g, len(fields))
        fingerprint = GrowingStore(directory, check=False).fingerprint()
    except NewerFormat:
        raise
    except DownloadFailed:
        raise
    except RldsError as e:
        raise _NotWhole(e.message.replace(f"{directory}/", "")) from e
    rows = int(m.growing["segment_rows"])
    sizes = {}
    for stored, f in zip(m.fields, fields, strict=True):
        dtype, shape = segments.stored_row(f)
        width = arrays.row_bytes((0, *shape), dtype)
        small[f"{stored.path}/zarr.json"] = json.dumps(segments.document(f, g.rows, rows)).encode()
        above = Path(stored.path).parents
        for group in list(above)[:-1]:
            small[f"{group.as_posix()}/zarr.json"] = _group(directory)
        for number in segments.touched(kept["start"], kept["length"], rows) if width else ():
            sizes[segments.file_of(Path(stored.path), number, 1 + len(shape)).as_posix()] = rows * width
    return Head(m, g, fingerprint, small, sizes)


def _group(directory: Path) -> bytes:
    arrays.write_group(directory / "group")
    return (directory / "group" / "zarr.json").read_bytes()


def _read(objects: Objects, name: str, size: int, stats: Stats) -> bytes:
    data = objects.read_range(name, 0, size)
    stats.add(requests=1 if size else 0, fetched=size)
    return data


def _checked(directory: Path, g: Generation, fields: int) -> Array:
    """Return the records of the kept episodes; refuse logs that are not those of the generation."""
    number = logs.broken(directory, generations.all_until(directory, g.number), fields)
    if number is not None:
        raise DamagedDataset(f"one of {', '.join(logs.ALL)} is not what generation {number:,} wrote")
    found = logs.read_episodes(directory, g.first_episode, g.episodes)
    logs.check_episodes(found, (g.first_row, 0), g.rows, 1 << 31, directory)
    kept = logs.read_episodes(directory, 0, g.episodes)[_kept(directory, g)]
    left = generations.counts_of(records.counted(g, kept[:0], kept))
    if any(count for name, count in left.items() if name != "rows"):
        raise DamagedDataset(f"{logs.EPISODES} does not add up to the counts of generation {g.number:,}")
    return kept


def _kept(directory: Path, g: Generation) -> BoolArray:
    """Return which episodes are kept."""
    stays = np.ones(g.episodes, bool)
    stays[logs.read_departed(directory, g.departed, episodes=g.episodes)] = False
    stays[: g.first_episode] = False
    return stays


class EpisodeUnits(Units):
    """The rows of several episodes in the segments of all fields.

    Parameters
    ----------
    of : Content
        Its small files are here.
    m : Manifest
    g : Generation
    """

    def __init__(self, of: Content, m: Manifest, g: Generation) -> None:
        self._of = of
        self._segment_rows = int(m.growing["segment_rows"])
        paths = {f.name: f.path for f in m.fields}
        self._fields = {f.name: (f, paths[f.name]) for f in sorted(map(field_of, m.fields), key=lambda f: f.name)}
        kept = _kept(of.path, g)
        self._records = logs.read_episodes(of.path, 0, g.episodes)[kept]
        self._digests = logs.read_digests(of.path, 0, g.episodes, len(m.fields))[kept]
        self._texts: dict[str, list[str | None]] = {}
        for name, text in logs.read_strings(of.path, 0, g.strings):
            self._texts.setdefault(name, []).append(text)
        self._first = self._cut()
        self._starts: list[int] = self._records["start"][self._first[:-1]].tolist()

    def _cut(self) -> list[int]:
        """Return the first episode of each unit, and the number of episodes."""
        start, stop = self._records["start"], self._records["start"] + self._records["length"] + 1
        width = max(1, sum(self._width(f) for f, _ in self._fields.values()))
        rows, far = max(1, _UNIT // width), max(1, _LARGEST_GAP // width)
        gaps = np.flatnonzero(start[1:] - stop[:-1] > far) + 1
        first, k = [], 0
        while k < len(start):
            first.append(k)
            end = max(k + 1, int(np.searchsorted(stop, start[k] + rows, "right")))
            gap = int(np.searchsorted(gaps, k, "right"))
            k = min(end, int(gaps[gap])) if gap < len(gaps) else end
        return [*first, len(start)]

    @staticmethod
    def _width(f: Field) -> int:
        dtype, shape = segments.stored_row(f)
        return arrays.row_bytes((0, *shape), dtype)

    def _rows(self, number: int) -> tuple[int, int]:
        """Return the rows [first, stop) of a unit."""
        first, last = self._records[self._first[number]], self._records[self._first[number + 1] - 1]
        return int(first["start"]), int(last["start"] + last["length"] + 1)

    def find(self, path: str, at: int) -> tuple[int | None, int]:
        """See `Units.find`."""
        f, base = self._file(path)
        width = self._width(f)
        row = base + at // width
        number = bisect_right(self._starts, row) - 1
        end = self._segment_rows * width
        if number >= 0:
            _, stop = self._rows(number)
            if row < stop:
                return number, min(end, (stop - base) * width)
        after = self._starts[number + 1] if number + 1 < len(self._starts) else None
        return None, end if after is None else min(end, (after - base) * width)

    def _file(self, path: str) -> tuple[Field, int]:
        """Return the field of a segment, and its first row."""
        head, _, rest = path.rpartition("/c/")
        f = next(f for f, own in self._fields.values() if own == head)
        return f, int(rest.partition("/")[0]) * self._segment_rows

    def spans(self, number: int) -> tuple[Span, ...]:
        """See `Units.spans`."""
        return tuple(span for f, path in self._fields.values() for span in self._spans(f, path, *self._rows(number)))

    def _spans(self, f: Field, path: str, first: int, stop: int) -> Iterator[Span]:
        width, many = self._width(f), self._segment_rows
        for k in range(first // many, -(-stop // many)) if width else ():
            a, b = max(first, k * many) - k * many, min(stop, (k + 1) * many) - k * many
            file = segments.file_of(Path(path), k, 1 + len(segments.stored_row(f)[1]))
            yield Span(file.as_posix(), a * width, b * width)

    def read(self, number: int, path: str, start: int, stop: int, take: Take) -> None:
        """See `Units.read`. Rows of no episode are zeros."""
        data = bytearray()
        stream(self._of, path, start, stop, data.extend)
        f, base = self._file(path)
        width, of = self._width(f), self._records[self._first[number] : self._first[number + 1]]
        ends = of["start"][:-1] + of["length"][:-1] + 1
        for a, b in zip(ends.tolist(), of["start"][1:].tolist(), strict=True):
            first, last = max(start, (a - base) * width) - start, min(stop, (b - base) * width) - start
            if first < last:
                data[first:last] = bytes(last - first)
        take(bytes(data))

    def wrong(self, number: int) -> RldsError:
        """See `Units.wrong`."""
        return gone(self._of, *dict.fromkeys(s.path for s in self.spans(number)), logs.EPISODES)

    def bring(self, number: int, sink: Sink) -> bool:
        """See `Units.bring`."""
        episodes = self._records[self._first[number] : self._first[number + 1]]
        first, stop = self._rows(number)
        hashes: list[list[bytes]] = [[] for _ in episodes]
        small: list[dict[str, Array]] = [{} for _ in episodes]
        span = -1
        for name, (f, path) in self._fields.items():
            dtype, shape = segments.stored_row(f)
            keeps = f.kind == "text" or (name in (REWARD, *FLAGS) and not shape)
            rows = _Rows(f, episodes, first, self._width(f), keeps=keeps)
            for s in self._spans(f, path, first, stop):
                span += 1
                stream(self._of, s.path, s.start, s.stop, partial(rows.take, partial(sink, span)))
            count = digests.counted(f, episodes["length"], episodes["num_observed"]).tolist()
            for k, (digest, data) in enumerate(rows.found()):
                values = np.frombuffer(data, dtype.newbyteorder("<"))
                if f.kind == "text":
                    texts = self._as_texts(name, values)
                    if texts is None:
                        return False
                    digest = digests.of_texts(texts[: count[k]])
                elif keeps:
                    small[k][name] = values
                hashes[k].append(digest)
        recorded = self._digests[self._first[number] : self._first[number + 1]]
        return all(map(self._is_right, episodes, recorded, hashes, small))

    def _as_texts(self, name: str, codes: IntArray) -> list[str | None] | None:
        """Return the texts of codes, None for -1; None if a code is beyond them."""
        texts = self._texts.get(name, [])
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(texts):
            return None
        return [None if c < 0 else texts[c] for c in codes.tolist()]

    @staticmethod
    def _is_right(e: Array, recorded: Array, hashes: Sequence[bytes], small: dict[str, Array]) -> bool:
        columns = {name: e[name].reshape(1) for name in ("total_reward", "num_terminated", "num_done")}
        return b"".join(hashes) == recorded.tobytes() and wrong_columns(columns, 0, small, int(e["length"])) is None


class _Rows:
    """Cuts the rows of one field into those of episodes, as they come; what lies between is given as zeros."""

    def __init__(self, f: Field, episodes: Array, first: int, width: int, *, keeps: bool) -> None:
        starts = (episodes["start"] - first) * width
        count = digests.counted(f, episodes["length"], episodes["num_observed"])
        self._starts, self._stops = starts.tolist(), (starts + (episodes["length"] + 1) * width).tolist()
        self._hashed = (starts + count * width).tolist()  # the end of what counts
        self._hashes = [hashlib.sha256() for _ in self._starts]
        self._kept = [bytearray() for _ in self._starts] if keeps else []
        self._at = self._k = 0
        self._width = width if digests.has_row_digests(f) else 0  # of rows with digests of their own
        self._row = bytearray()

    def take(self, sink: Callable[[Chunk], object], data: Chunk) -> None:
        """Take the next bytes, and give them to ``sink``."""
        left = memoryview(data).cast("B")
        while left:
            if self._at < self._starts[self._k]:
                part = left[: self._starts[self._k] - self._at]
                sink(bytes(len(part)))
            else:
                part = left[: self._stops[self._k] - self._at]
                self._hash(part[: max(0, self._hashed[self._k] - self._at)])
                if self._kept:
                    self._kept[self._k] += part
                sink(part)
            self._at, left = self._at + len(part), left[len(part) :]
            if self._at == self._stops[self._k]:
                self._k += 1

    def _hash(self, data: memoryview) -> None:
        h = self._hashes[self._k]
        if not self._width:
            h.update(data)
            return
        while data:
            part = data[: self._width - len(self._row)]
            self._row += part
            data = data[len(part) :]
            if len(self._row) == self._width:
                h.update(hashlib.sha256(self._row).digest())
                self._row.clear()

    def found(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the digest of the rows of each episode, and all its rows if they are kept."""
        for k, h in enumerate(self._hashes):
            yield h.digest(), bytes(self._kept[k]) if self._kept else b""
