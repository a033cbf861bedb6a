"""The rows of LeRobot's data files as rows of the store, block by block.

An episode of T rows owns T+1 of the store; the last repeats what is observed. ``meta/`` says how many rows each episode
has, and the rows say whose they are: both must agree.

``next.done`` marks the end of an episode and does not tell success from time running out. A step is terminated where
``next.done`` and ``next.success`` hold, or where the archive has ``next.terminated``; an episode that ends otherwise
is cut, or truncated where ``next.truncated`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.lerobot import depth, description, language, subtasks
from rlds_cli.archives.lerobot.depth import Depth
from rlds_cli.archives.lerobot.description import TASK
from rlds_cli.archives.lerobot.subtasks import Counted
from rlds_cli.archives.readers import CHUNK_BYTES, Plan
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.media import mp4
from rlds_cli.base.media.mp4 import Track
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    VIDEO,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    Note,
    Part,
    Scalar,
    Subtasks,
    Text,
    VideoFrames,
)

_BLOCK_ROWS = 1 << 14
_IMAGE_BYTES = 1 << 17  # about what an encoded image takes, at most
_DONE, _SUCCESS = "next.done", "next.success"
_TIME, _EPISODE = "timestamp", "episode_index"

Episode = Mapping[str, Any]  # number, length, file, videos, splits; or left_out, with the first three


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows [start, stop) of a block: rows from ``at`` on of an episode, and from ``row`` on of its file."""

    episode: Episode
    start: int
    stop: int
    at: int
    row: int

    @property
    def ends(self) -> bool:
        return self.at + self.stop - self.start == int(self.episode["length"])


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of a part; the module's docstring says which rows are refused."""
    reader = _BlockReader(plan)
    for block, segments in _blocks(reader, part.args["episodes"]):
        yield reader.chunk(block, segments)


def _blocks(reader: _BlockReader, episodes: Sequence[Episode]) -> Iterator[tuple[Any, list[_Segment]]]:
    """Read the rows of one file, or of several with the same columns that follow each other, with their episodes."""
    held: list[Any] = []
    segments: list[_Segment] = []
    rows = 0
    for batch, of_batch in _batches(reader, episodes):
        if held and not batch.schema.equals(held[-1].schema):
            yield description.joined(held), segments
            held, segments, rows = [], [], 0
        held.append(batch)
        segments += [_Segment(s.episode, s.start + rows, s.stop + rows, s.at, s.row) for s in of_batch]
        rows += batch.num_rows
        if rows >= reader.block_rows:
            yield description.joined(held), segments
            held, segments, rows = [], [], 0
    if held:
        yield description.joined(held), segments


def _batches(reader: _BlockReader, episodes: Sequence[Episode]) -> Iterator[tuple[Any, list[_Segment]]]:
    files: dict[int, list[Episode]] = {}
    for e in episodes:
        files.setdefault(int(e["file"]), []).append(e)
    for file, of_file in files.items():
        path = reader.plan.archive.files[file]
        ends = np.cumsum([e["length"] for e in of_file])
        at = 0
        for batch in description.batches(path, reader.columns, reader.block_rows):
            if at + batch.num_rows > ends[-1]:
                raise CorruptArchive(f"{path} has more rows than the {ends[-1]:,} of the episodes that are in it.")
            yield from _kept(batch, _segments(of_file, ends, at, at + batch.num_rows))
            at += batch.num_rows
        if at != ends[-1]:
            raise CorruptArchive(f"{path} has {at:,} rows; its episodes have {ends[-1]:,}.", hint="fetch it again")


def _kept(batch: Any, segments: list[_Segment]) -> Iterator[tuple[Any, list[_Segment]]]:
    """Yield a batch without the rows of episodes that are left out."""
    if not any(s.episode.get("left_out") for s in segments):
        yield batch, segments
        return
    for s in segments:
        if not s.episode.get("left_out"):
            yield batch.slice(s.start, s.stop - s.start), [replace(s, start=0, stop=s.stop - s.start)]


def _segments(episodes: Sequence[Episode], ends: IntArray, start: int, stop: int) -> list[_Segment]:
    found = []
    at = start
    while at < stop:
        k = int(np.searchsorted(ends, at, "right"))
        first = int(ends[k]) - int(episodes[k]["length"])
        last = min(stop, int(ends[k]))
        found.append(_Segment(episodes[k], at - start, last - start, at - first, first))
        at = last
    return found


class _BlockReader:
    """Lays out the blocks of a plan, and keeps the state that they share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._keys: Mapping[str, str] = plan.facts["columns"]
        self._nested = frozenset(plan.facts.get("nested", ()))
        self._spoken: Mapping[str, Sequence[str]] = plan.facts.get("language", {})
        self._deep = {n for n in plan.facts.get("depth", ()) if self._field(n).kind == "array"}  # decoded here
        self._tasks = _tasks(plan) if TASK in self._keys.values() else {}
        self._counted = _counted(plan)
        self._subtask = str(plan.facts.get("spoken_subtask", ""))  # a field of language that becomes intervals
        self._said: dict[int, list[str | None]] = {}  # its texts, of episodes whose rows are not all read
        self._by_success = plan.facts["terminated"] == f"{_DONE} and {_SUCCESS}"
        images = [f for f in plan.schema if f.kind == "frames" and f.codec != VIDEO]
        width = sum(f.row_bytes for f in plan.schema if f.kind != "frames") + _IMAGE_BYTES * len(images)
        self.block_rows = max(1, min(_BLOCK_ROWS, CHUNK_BYTES // max(1, width)))
        stored = [key for name, key in self._keys.items() if self._field(name).codec != VIDEO]
        self._has = set(description.schema(plan.archive.files[plan.parts[0].args["episodes"][0]["file"]]).names)
        stored += [of[0] for of in self._spoken.values()]
        stored += plan.facts.get("subtasks", ())
        wanted = [*stored, _EPISODE, _TIME, *((_DONE, _SUCCESS) if self._by_success else ())]
        self.columns = [c for c in dict.fromkeys(wanted) if c in self._has]

    def _field(self, name: str) -> Field:
        return next(f for f in self.plan.schema if f.name == name)

    def chunk(self, block: Any, segments: Sequence[_Segment]) -> Chunk:
        """Lay out a block, with the last row of each episode repeated."""
        self._check(block, segments)
        ended = [s for s in segments if s.ends]
        stops = np.array([s.stop for s in ended], np.int64)
        place = np.arange(block.num_rows) + np.searchsorted(stops, np.arange(block.num_rows), "right")
        rows = _BlockRows(place, stops + np.arange(len(stops)), block.num_rows + len(stops))
        notes: list[Note] = []
        texts = self._annotations(block, segments)
        subtask = texts.pop(self._subtask, None)
        spoken: dict[str, Column] = {name: rows.texts(of, repeat=False) for name, of in texts.items()}
        columns = {
            f.name: self._column(f, block, segments, rows, notes) for f in self.plan.schema if f.name not in spoken
        }
        columns |= spoken
        end = self._ends(columns, block, segments, rows, notes)
        return Chunk(columns, rows.last, _table(ended, end, self._subtasks(block, segments, subtask)), tuple(notes))

    def _subtasks(self, block: Any, segments: Sequence[_Segment], texts: Text | None) -> dict[str, list[Scalar]]:
        """Return the episode column of the sub-tasks that rows number or say, of the episodes that end in a block."""
        found: list[Scalar] = []
        if texts is not None:
            for s in segments:
                self._said.setdefault(s.episode["number"], []).extend(texts[s.start : s.stop])
                if s.ends:
                    intervals = Subtasks.of_steps(self._said.pop(s.episode["number"]))
                    found.append(str(intervals) if len(intervals) else None)
        if self._counted is None:
            return {Subtasks.COLUMN: found} if texts is not None else {}
        numbers = block[subtasks.INDEX].to_pylist()
        for s in segments:
            self._counted.add(s.episode["number"], numbers[s.start : s.stop], self._where(s))
            if s.ends:
                found.append(self._counted.of_episode(s.episode["number"]))
        return {Subtasks.COLUMN: found}

    def _check(self, block: Any, segments: Sequence[_Segment]) -> None:
        """Refuse rows that are not those of the episodes that ``meta/`` lists, in their order."""
        if _EPISODE not in self._has:
            return
        number = np.zeros(block.num_rows, np.int64)
        description.values(block[_EPISODE], number, f"{self._where(segments[0])}: {_EPISODE}")
        for s in segments:
            if (number[s.start : s.stop] != s.episode["number"]).any():
                wrong = int(number[s.start : s.stop][number[s.start : s.stop] != s.episode["number"]][0])
                raise CorruptArchive(
                    f"{self._where(s)}: rows of episode {wrong} where meta/ lists episode {s.episode['number']}."
                )

    def _where(self, s: _Segment) -> str:
        return self.plan.archive.name_of(int(s.episode["file"]))

    def _column(
        self, f: Field, block: Any, segments: Sequence[_Segment], rows: _BlockRows, notes: list[Note]
    ) -> Column:
        key = self._keys.get(f.name)
        where = f"{self._where(segments[0])}: {key}"
        if f.codec == VIDEO and key is not None:
            return self._videos(f, key, block, segments, rows, notes)
        if f.kind == "frames":
            return _repeated(description.frames(block[key], where, f), rows, f)
        if f.kind == "text":
            texts = (
                description.json_texts(block[key])
                if f.name in self._nested
                else self._text(block[key], str(key), where)
            )
            return rows.texts(texts, repeat=f.placement == "both")
        out = np.zeros((rows.total, *f.shape), f.dtype)
        if key is None:
            return out
        if f.name in self._deep:
            out[rows.place] = depth.decode(description.images(block[key], where), Depth(f.dtype, f.shape), where)  # type: ignore[arg-type]
        else:
            values = np.empty((block.num_rows, *f.shape), f.dtype)
            description.values(block[key], values, where)
            out[rows.place] = values
        if f.placement == "both":
            out[rows.final] = out[rows.final - 1]
        return out

    def _annotations(self, block: Any, segments: Sequence[_Segment]) -> dict[str, Text]:
        """Return the texts of the language columns, by field."""
        if not self._spoken:
            return {}
        times = np.zeros(block.num_rows, np.float64)
        description.values(block[_TIME], times, f"{self._where(segments[0])}: {_TIME}")
        return language.texts(self._spoken, block, times.tolist(), self._where(segments[0]))

    def _text(self, column: Any, key: str, where: str) -> Text:
        values: list[Any] = column.to_pylist()
        if key != TASK:
            return values
        unknown = next((v for v in values if v is not None and v not in self._tasks), None)
        if unknown is not None:
            raise CorruptArchive(f"{where}: there is no task {unknown} in meta/.", hint="fetch meta/ again")
        return [None if v is None else self._tasks[v] for v in values]

    def _videos(
        self, f: Field, key: str, block: Any, segments: Sequence[_Segment], rows: _BlockRows, notes: list[Note]
    ) -> VideoFrames:
        """Find the frame of each row: the frame that is shown at its time."""
        time = np.zeros(block.num_rows, np.float64)
        description.values(block[_TIME], time, f"{self._where(segments[0])}: {_TIME}")
        numbers: dict[str, int] = {}
        index = np.full((rows.total, 2), -1, np.int32)
        for s in segments:
            name, begin = s.episode["videos"][key]
            track, seconds = _opened(self.plan.archive.root / name)
            if (track.height, track.width) != f.shape[:2]:
                raise UnknownLayout(
                    f"{name} is a video of {track.height}x{track.width}; the first is of {f.shape[0]}x{f.shape[1]}."
                )
            wanted = begin + time[s.start : s.stop]
            if len(seconds) == s.episode["length"] and begin == 0 and not self._near(seconds[s.at :], wanted):
                # A recorder's own clock; the video is this episode's alone.
                frames = np.arange(s.at, s.at + len(wanted))
                notes.append(Note("frames-by-count", "steps whose frame was found by counting", len(wanted), name))
            else:
                frames = self._frames(seconds, wanted, f"{name}, episode {s.episode['number']}")
            at = rows.place[s.start : s.stop]
            index[at, 0], index[at, 1] = numbers.setdefault(name, len(numbers)), frames
            uneven = int((np.diff(frames) != 1).sum())
            if uneven:
                notes.append(Note("uneven-frames", "steps whose frame does not follow the one before", uneven, name))
        if f.placement == "both":
            index[rows.final] = index[rows.final - 1]
        return VideoFrames(tuple(numbers), index)

    def _near(self, seconds: Array, wanted: Array) -> bool:
        """Tell whether the times of rows are close to those of consecutive frames."""
        return bool((np.abs(seconds[: len(wanted)] - wanted) <= 0.5 / float(self.plan.env["fps"])).all())

    def _frames(self, seconds: Array, wanted: Array, where: str) -> IntArray:
        """Find the numbers of the frames that are shown at some times, or nearest to them."""
        if not len(seconds):
            raise CorruptArchive(f"{where}: the video has no frames.")
        after = np.clip(np.searchsorted(seconds, wanted), 1, max(1, len(seconds) - 1))
        before = after - 1
        after = np.minimum(after, len(seconds) - 1)
        nearest = np.where(wanted - seconds[before] <= seconds[after] - wanted, before, after)
        off = np.abs(seconds[nearest] - wanted)
        if off.max(initial=0) > 0.5 / float(self.plan.env["fps"]):
            worst = int(np.argmax(off))
            raise CorruptArchive(
                f"{where}: no frame is shown at {wanted[worst]:.3f} s; the video has {len(seconds):,} from "
                f"{seconds[0]:.3f} to {seconds[-1]:.3f} s.",
                hint="fetch the video again; the published one may be incomplete",
            )
        return nearest

    def _ends(
        self, columns: dict[str, Column], block: Any, segments: Sequence[_Segment], rows: _BlockRows, notes: list[Note]
    ) -> Array:
        """Complete the flags, and return how each episode ends."""
        terminated, truncated = (np.asarray(columns[name]) for name in FLAGS)
        if self._by_success:
            flags = [np.zeros(block.num_rows, bool), np.zeros(block.num_rows, bool)]
            for key, values in zip((_DONE, _SUCCESS), flags, strict=True):
                description.values(block[key], values.reshape(-1), key)
            terminated[rows.place] = flags[0] & flags[1]
        steps = rows.final - 1
        inside = truncated.copy()
        inside[steps] = False
        if inside.any():
            text = "steps are truncated and their episode continues; the flag was dropped"
            notes.append(Note("truncated-inside", text, int(inside.sum()), self._where(segments[0])))
            truncated &= ~inside
        cut = ~(terminated[steps] | truncated[steps])
        truncated[steps] |= cut
        return np.where(terminated[steps], TERMINATED, np.where(cut, CUT, TRUNCATED)).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class _BlockRows:
    """Places of a block's rows in the chunk: ``place`` [rows], and ``final`` [episodes that end], of ``total`` rows."""

    place: IntArray
    final: IntArray
    total: int

    @property
    def last(self) -> BoolArray:
        last = np.zeros(self.total, bool)
        last[self.final] = True
        return last

    def texts(self, values: Text, *, repeat: bool) -> Text:
        out: Text = [None] * self.total
        for at, value in zip(self.place.tolist(), values, strict=True):
            out[at] = value
        for at in self.final.tolist() if repeat else ():
            out[at] = out[at - 1]
        return out


def _repeated(images: EncodedFrames, rows: _BlockRows, f: Field) -> EncodedFrames:
    """Repeat the images of last steps."""
    lengths = np.zeros(rows.total, np.int64)
    lengths[rows.place] = images.lengths
    if f.placement != "both" or not len(rows.final):
        return EncodedFrames(images.data, lengths)
    lengths[rows.final] = lengths[rows.final - 1]
    stops = np.cumsum(images.lengths)
    steps = np.flatnonzero(np.isin(rows.place, rows.final - 1))
    pieces, at = list[Array](), 0
    for stop, size in zip(stops[steps].tolist(), images.lengths[steps].tolist(), strict=True):
        pieces += [images.data[at:stop], images.data[stop - size : stop]]
        at = stop
    return EncodedFrames(np.concatenate([*pieces, images.data[at:]]), lengths)


def _table(ended: Sequence[_Segment], end: Array, told: dict[str, list[Scalar]]) -> EpisodeTable:
    names = dict.fromkeys(name for s in ended for name in s.episode["splits"])
    about = [s.episode.get("about", {}) for s in ended]
    own = dict.fromkeys(name for a in about for name in a.get("own", {}))
    return EpisodeTable(
        np.array([s.episode["length"] for s in ended], np.int64),
        end,
        np.zeros(len(ended), bool),
        np.array([s.episode["file"] for s in ended], np.int32),
        np.array([s.row for s in ended], np.int64),
        group=[f"episode_{s.episode['number']}" for s in ended],
        seed=[a.get("seed") for a in about],
        options=[a.get("options") for a in about],
        extra={n: [a.get("own", {}).get(n) for a in about] for n in own} | told,
        splits={n: np.array([n in s.episode["splits"] for s in ended], bool) for n in names},
    )


def _tasks(plan: Plan) -> dict[int, str | None]:
    found = description.locate(plan.archive.files)
    assert found is not None
    return description.tasks(description.read(found), plan.archive.files)


def _counted(plan: Plan) -> Counted | None:
    """Return what reads sub-tasks by their numbers in rows; None if the rows number none."""
    found = description.locate(plan.archive.files)
    if not plan.facts.get("subtasks") or found is None:
        return None
    return Counted(description.numbered(description.read(found).root / subtasks.LIST, Subtasks.FIELD))


@lru_cache(maxsize=16)
def _opened(file: Path) -> tuple[Track, Array]:
    track = mp4.read(file)
    return track, track.seconds
