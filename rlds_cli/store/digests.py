"""The fingerprint of a dataset: a hash of its content, built from one digest for each episode of each field.

::

    episode of a field     sha256 of its rows that count                    digests/FIELD [episodes, 32]
    row of a large field   sha256 of the row                                rows/FIELD    [rows, 32]
    field                  sha256 of a head line and its episodes' digests
    column of the table    sha256 of a head line and its values
    fingerprint            sha256 of the digests of fields, by name, and of columns, by name

T rows of an episode of T steps count, and T+1 of a field placed ``both`` if the final observation is recorded. Rows of
4 KiB and more, and encoded images, have digests of their own, so that part of an episode has a digest without a read:
there the episode's digest is the sha256 of its rows' digests. A frame in a video is hashed as the sha256 of the video's
file and the number of the frame.

So a selection takes digests, a merge concatenates them, and none of them reads a row. Encoding, chunks, places of rows,
workers and times do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays, sha256
from rlds_cli.base.ids import FINGERPRINT
from rlds_cli.base.repeated import Repeated
from rlds_cli.store import own_columns
from rlds_cli.store.columns import has_row_digests
from rlds_cli.store.manifest import StoredField
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.ted import VIDEO, Column, EncodedFrames, EpisodeTable, Field, VideoFrames

CONTENT = ("length", "end", "num_observed", "seed", "has_seed")  # columns of numbers that count, with splits
Digests = npt.NDArray[np.uint8]  # [n, 32]


# -- rows and episodes of a field


def is_of_rows(path: str) -> bool:
    """Return whether a file of a dataset, by its path, belongs to digests of rows."""
    return path.startswith(f"{ROW_DIGESTS}/")


def counted(f: Field | StoredField, length: IntArray, num_observed: IntArray) -> IntArray:
    """Return how many rows of each episode count [episodes]: those of its steps, or of its observations."""
    return num_observed if f.placement == "both" else length


def as_array(digests: Iterable[bytes]) -> Digests:
    """Return digests as the array that is stored [n, 32]."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def of_rows(values: Array) -> Digests:
    """Return the sha256 of each row of an array [rows, ...]."""
    rows = np.arange(len(values))
    return of_episodes(values, rows, np.ones_like(rows))


def of_frames(data: Array, spans: IntArray) -> Digests:
    """Return the sha256 of each encoded image: image i is ``data[spans[i, 0] : spans[i, 1]]``."""
    new = (spans[1:] != spans[:-1]).any(1)
    distinct = spans[np.append(True, new)[: len(spans)]]
    hashed = sha256.of_pieces(arrays.raw(data), distinct[:, 0], distinct[:, 1] - distinct[:, 0])
    return np.asarray(hashed[np.cumsum(np.append(0, new)[: len(spans)])])


def of_episodes(values: Array, start: IntArray, count: IntArray) -> Digests:
    """Return the sha256 of ``count[e]`` rows from row ``start[e]`` on, for each e: of their raw little-endian bytes."""
    width = arrays.row_bytes(values.shape, values.dtype)
    return sha256.of_pieces(arrays.raw(arrays.little_endian(values)), start * width, count * width)


def of_texts(values: Sequence[str | None]) -> bytes:
    """Return the digest of the texts of one episode: of their lengths in bytes (-1 for none), and of their bytes."""
    encoded = [b"" if v is None else v.encode("utf-8", "surrogateescape") for v in values]
    lengths = np.fromiter(map(len, encoded), "<i8", len(encoded))
    if None in values:
        lengths[[v is None for v in values]] = -1
    return hashlib.sha256(lengths.tobytes() + b"".join(encoded)).digest()


def of_text_episodes(codes: Array, texts: Sequence[str | None], start: IntArray, count: IntArray) -> Digests:
    """Return the digests of the episodes of a text field; the last of ``texts`` stands for code -1."""
    spans = zip(start.tolist(), (start + count).tolist(), strict=True)
    return as_array(of_texts([texts[c] for c in codes[a:b].tolist()]) for a, b in spans)


def video_rows(index: Array, files: Digests) -> Array:
    """Return the rows that are hashed for frames in videos [rows, 36]: sha256 of the file, number of the frame.

    Parameters
    ----------
    index : int32 array [rows, 2]
        Number of the video, and of the frame in it; -1 for none.
    files : array [videos, 32]
        The sha256 of each video.
    """
    known = np.concatenate([files, np.zeros((1, 32), np.uint8)])  # the last stands for no video
    frames = np.ascontiguousarray(index[:, 1:], "<i4").view(np.uint8)
    return np.concatenate([known[index[:, 0]], frames], axis=1)


# -- fields, columns of the episode table, the fingerprint


class FieldHash:
    """How the episodes of a field are hashed.

    Parameters
    ----------
    f : Field or StoredField
    texts : sequence of str or None
        Of a field of texts, by their codes; the last stands for code -1.
    videos : array [videos, 32], optional
        Of a field in videos, the sha256 of each.
    """

    def __init__(
        self, f: Field | StoredField, *, texts: Sequence[str | None] = (), videos: Digests | None = None
    ) -> None:
        self.field, self.texts = f, texts
        self.videos = as_array([]) if videos is None else videos
        self.has_rows = has_row_digests(f)  # rows have digests of their own

    def counted(self, length: IntArray, num_observed: IntArray) -> IntArray:
        """Return how many rows of each episode count [episodes]."""
        return counted(self.field, length, num_observed)

    def episodes(self, rows: Array, start: IntArray, count: IntArray) -> Digests:
        """Return the digests of the episodes with ``count[e]`` of the ``rows`` from row ``start[e]`` on, for each e.

        Rows are as they are stored, or the digests of these where `has_rows`.
        """
        if self.field.kind == "text":
            return of_text_episodes(rows, self.texts, start, count)
        return of_episodes(video_rows(rows, self.videos) if self.field.codec == VIDEO else rows, start, count)

    def fits(self, rows: Array) -> bool:
        """Return whether rows as they are stored stand for texts, or videos, that there are."""
        numbers, most = (rows, len(self.texts) - 1) if self.field.kind == "text" else (rows[:, 0], len(self.videos))
        return not len(numbers) or bool(-1 <= numbers.min() <= numbers.max() < most)

    def of_field(self, episodes: Digests) -> str:
        """Return the digest of the field, from those of its episodes."""
        return of_field(self.field, episodes)


class EpisodeHash:
    """Hashes the episodes of a field one after the other, whose rows may come in pieces."""

    def __init__(self, f: Field | StoredField) -> None:
        self._field, self._ended = f, list[bytes]()
        self._hash, self._texts = hashlib.sha256(), list[str | None]()

    @property
    def episodes(self) -> Digests:
        """The digests of the episodes that have ended."""
        return as_array(self._ended)

    def add(self, column: Column, start: int = 0, stop: int | None = None, *, videos: Digests | None = None) -> None:
        """Add rows [start, stop) of a column to the episode; ``videos`` are the sha256 of files of `VideoFrames`."""
        rows = slice(start, stop)
        if isinstance(column, VideoFrames):
            assert videos is not None
            self._hash.update(arrays.raw(video_rows(column.index[rows], videos)))
        elif isinstance(column, EncodedFrames):
            self._hash.update(arrays.raw(of_frames(column.data, column.spans[rows])))
        elif isinstance(column, list):
            self._texts += column[rows]
        else:
            values = arrays.little_endian(column[rows])
            self._hash.update(arrays.raw(of_rows(values) if has_row_digests(self._field) else values))

    def add_episodes(self, column: Column, start: IntArray, count: IntArray, *, videos: Digests | None = None) -> None:
        """Add whole episodes while none has begun: ``count[e]`` rows of a column from row ``start[e]`` on, for each."""
        if isinstance(column, np.ndarray):  # all in one call
            rows = of_rows(column) if has_row_digests(self._field) else column
            self._ended.append(of_episodes(rows, start, count).tobytes())
            return
        for first, n in zip(start.tolist(), count.tolist(), strict=True):
            self.add(column, first, first + n, videos=videos)
            self.end()

    def end(self) -> None:
        """End the episode."""
        self._ended.append(of_texts(self._texts) if self._field.kind == "text" else self._hash.digest())
        self._hash, self._texts = hashlib.sha256(), []


def of_field(f: Field | StoredField, episodes: Digests, name: str | None = None) -> str:
    """Return the digest of a field, under another ``name`` if one is given, from those of its episodes."""
    return of_field_pieces(f, [episodes], name)


def of_field_pieces(f: Field | StoredField, episodes: Iterable[Digests], name: str | None = None) -> str:
    """Return `of_field` of the digests of episodes that come in pieces."""
    head = [name or f.name, f.dtype, list(f.shape), f.placement, f.kind, f.codec]
    return _of_head(head, map(arrays.raw, episodes))


def of_column(name: str, values: Array | Sequence[str | None], missing: BoolArray | None = None) -> str:
    """Return the digest of a column of the episode table: its values, and the mask of missing ones if any is.

    A missing text is None, and has length -1; a missing number is stored as 0 or NaN.
    """
    if not isinstance(values, np.ndarray):
        return _of_head([name, "str", [], "episode", "text", None], [of_texts(values)])
    content = [arrays.raw(arrays.little_endian(values))]
    if missing is not None and missing.any():
        content.append(arrays.raw(missing))
    return _of_head([name, values.dtype.name, list(values.shape[1:]), "episode", "array", None], content)


def described(own: Mapping[str, StoredColumn]) -> dict[str, dict[str, str]]:
    """Return the dtype and the digest of each of the user's columns, for a manifest."""
    return {n: {"dtype": c.dtype, "digest": of_column(n, c.values, c.missing)} for n, c in own.items()}


def _of_head(head: Sequence[Any], content: Iterable[bytes | memoryview]) -> str:
    line = json.dumps(list(head), separators=(",", ":"), ensure_ascii=True)
    h = hashlib.sha256(line.encode() + b"\n")
    for data in content:
        h.update(data)
    return h.hexdigest()


def of_table(table: EpisodeTable) -> dict[str, str]:
    """Return the digests of the columns of an episode table that count as content, with the user's own.

    A split without episodes, and a column without a value, do not count: a selection may have such.
    """
    valued = {name: values for name, values in table.extra.items() if any(v is not None for v in values)}
    return of_columns(dict(content_columns(table)), own_columns.all_typed(valued))


def of_columns(columns: Mapping[str, Array | Sequence[str | None]], own: Mapping[str, StoredColumn]) -> dict[str, str]:
    """Return the digests of the columns that count as content, as `of_table` does, of columns as they are stored.

    Parameters
    ----------
    columns : mapping
        The columns by name, with others that do not count; a missing text is None or empty.
    own : mapping
        The user's columns.
    """
    seeds = "has_seed" in columns and np.asarray(columns["has_seed"]).any()
    found = {name: of_column(name, columns[name]) for name in ("length", "end", "num_observed")}
    found |= {name: of_column(name, columns[name]) for name in ("seed", "has_seed") if seeds}
    options = columns.get("options", ())
    if any(options):
        found["options"] = of_column("options", [o or None for o in options])
    splits = {name: np.asarray(columns[name]) for name in columns if name.startswith("split/")}
    found |= {name: of_column(name, mask) for name, mask in splits.items() if mask.any()}
    valued = {name: c for name, c in own.items() if not c.missing.all()}
    return found | {name: of_column(name, c.values, c.missing) for name, c in valued.items()}


def content_columns(table: EpisodeTable) -> Iterator[tuple[str, Array | list[str | None]]]:
    """Yield TED's columns that count as content; ``seed`` and ``options`` only if an episode has one."""
    yield "length", table.length
    yield "end", table.end
    yield "num_observed", table.num_observed
    if not isinstance(table.seed, Repeated):
        yield "seed", np.array([s or 0 for s in table.seed], np.uint64)
        yield "has_seed", np.array([s is not None for s in table.seed], bool)
    if not isinstance(table.options, Repeated):
        yield "options", list(table.options)
    for name, values in table.splits.items():
        yield f"split/{name}", values


@dataclass(frozen=True, slots=True)
class ContentDigests:
    """What a fingerprint is made of: the digests of the fields, and of the columns of the episode table, by name."""

    fields: Mapping[str, str]
    columns: Mapping[str, str]

    @classmethod
    def of(cls, fields: Mapping[str, str], table: EpisodeTable) -> ContentDigests:
        """Return the digests of a dataset with these fields and episodes."""
        return cls(fields, of_table(table))

    @property
    def fingerprint(self) -> str:
        """``rlds1:`` and 64 hexadecimal digits."""
        h = hashlib.sha256()
        for digests in (self.fields, self.columns):
            for name in sorted(digests):
                h.update(bytes.fromhex(digests[name]))
        return FINGERPRINT + h.hexdigest()


# -- ids of episodes


def ids(table: EpisodeTable, episodes: Mapping[str, Digests]) -> Digests:
    """Return an id of 16 bytes for each episode [episodes, 16]. An episode that has one keeps it.

    Others get theirs from their content: two numbers of 64 bits, each the sum over the fields, by name, of the field's
    number, from 1 on, times the number that the episode's digest begins with. An id that occurs before is followed by
    the hash of itself and of the number of its occurrences.

    Parameters
    ----------
    episodes : mapping
        Digests of the episodes [episodes, 32] by field.
    """
    if table.id is not None:
        found = np.ascontiguousarray(table.id)
    else:
        numbers = np.zeros((len(table), 2), "<u8")
        for k, name in enumerate(sorted(episodes), 1):
            numbers += np.ascontiguousarray(episodes[name][:, :16]).view("<u8") * np.uint64(k)
        found = numbers.view(np.uint8)
    numbers = found.view("<u8")
    ascending = np.sort(numbers[:, 0])
    if (ascending[1:] != ascending[:-1]).all():
        return found
    order = np.lexsort((np.arange(len(found)), numbers[:, 1], numbers[:, 0]))
    repeated = np.concatenate([[False], (numbers[order][1:] == numbers[order][:-1]).all(1)])
    first = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(order))))
    places = np.flatnonzero(repeated)
    again, nth = order[places], (places - first[places]).astype("<u8")
    named, found = np.concatenate([found[again], nth[:, None].view(np.uint8)], axis=1), found.copy()
    found[again] = of_rows(named)[:, :16]
    return found
