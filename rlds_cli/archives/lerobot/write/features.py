"""The columns of a LeRobot dataset: their keys, their types in Parquet, and how ``info.json`` describes them.

LeRobot demands columns that a dataset may lack: they are added, and ``rlds.json`` says so. What its reader in
`archives` would name, place or shape otherwise is said there, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlds_cli.archives.exports.content import Content
from rlds_cli.archives.exports.instructions import Instructions
from rlds_cli.archives.lerobot.features import lerobot_fields
from rlds_cli.archives.lerobot.names import CODE_BITS, COUNTED, DEPTH_FORMULA, LANGUAGE, SUBTASK, TASK
from rlds_cli.archives.lerobot.write import statistics
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import json as documents
from rlds_cli.base.packages import pyarrow
from rlds_cli.store import Facts
from rlds_cli.ted import VIDEO, Field, Subtasks

TIME, DONE = "timestamp", "next.done"
MOST_SIDES = 5  # of an array in `datasets`
_DONE = "next/info/done"  # what it is called here
FACTS = "lerobot/info.json"  # metadata of a dataset that was imported from LeRobot
_RESERVED = {*COUNTED, *LANGUAGE, TASK, TIME, DONE, "task", "subtask"}


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A column of the Parquet files, or a camera in videos. ``field`` is None for a column that is added."""

    key: str
    field: Field | None
    dtype: str  # as ``info.json`` has it
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """``array``, ``text``, ``image``, ``video``, or ``task``: texts by their numbers."""
        if self.key == TASK:
            return "task"
        return {"string": "text", "image": "image", "video": "video"}.get(self.dtype, "array")


def problem(f: Field) -> str | None:
    """Return why a field has no place in LeRobot's files; None if it has one."""
    if f.kind == "array" and np.dtype(f.dtype).kind not in "biuf":
        return f"its type {f.dtype} is not known"
    if f.kind == "array" and not math.prod(f.shape):
        return "its rows hold no values"
    if f.kind == "array" and len(f.shape) > MOST_SIDES:
        return f"arrays of {len(f.shape)} axes; {MOST_SIDES} are possible"
    return None


class FeatureColumns:
    """The columns that hold a content; ``numbers_subtasks`` says whether rows have the numbers of theirs."""

    def __init__(self, content: Content, instructions: Instructions, *, numbers_subtasks: bool) -> None:
        self.content, self.instructions = content, instructions
        self._numbers_subtasks = numbers_subtasks
        self.columns = {c.key: c for c in self._columns()}
        self.columns |= {c.key: c for c in self._added() if c.key not in self.columns}

    # -- columns

    def _columns(self) -> Iterator[ExportColumn]:
        taken: set[str] = set()
        for name, f in self.content.fields.items():
            if self.instructions.is_task and name == self._task_field:
                continue  # LeRobot has it as numbers
            key = self._key(name, f, taken)
            taken.add(key)
            if f.kind == "text":
                yield ExportColumn(key, f, "string", (1,))
            elif f.kind == "frames":
                yield ExportColumn(key, f, "video" if f.codec == VIDEO else "image", f.shape)
            else:
                yield ExportColumn(key, f, f.dtype, f.shape or (1,))

    def _key(self, name: str, f: Field, taken: set[str]) -> str:
        """Return the key of a field: its name with dots, unless LeRobot means something else by that."""
        scalar = f.kind == "array" and f.shape == ()
        if name == _DONE and scalar and f.dtype == "bool":
            return DONE
        timed = scalar and np.dtype(f.dtype).kind in "iuf" and f.placement == "root"
        if name == TIME and timed and "time" not in self.content.kinds:
            return TIME
        key = name.replace("/", ".")
        while key in _RESERVED or key in taken or (key == SUBTASK and self.subtasks):
            key += "_"
        return key

    def _added(self) -> Iterator[ExportColumn]:
        yield ExportColumn(TIME, None, "float32", (1,))
        yield ExportColumn("frame_index", None, "int64", (1,))
        yield ExportColumn("episode_index", None, "int64", (1,))
        yield ExportColumn("index", None, "int64", (1,))
        yield ExportColumn(TASK, None, "int64", (1,))
        yield ExportColumn(DONE, None, "bool", (1,))
        if self.subtasks:
            yield ExportColumn(SUBTASK, None, "int64", (1,))

    @cached_property
    def cameras(self) -> list[ExportColumn]:
        """Fields in videos."""
        return [c for c in self.columns.values() if c.kind == "video"]

    @cached_property
    def in_parquet(self) -> list[ExportColumn]:
        """Columns of the Parquet files."""
        return [c for c in self.columns.values() if c.kind != "video"]

    @cached_property
    def schema(self) -> Any:
        """Return the columns of the Parquet files, a pyarrow.Schema."""
        pa = pyarrow()
        return pa.schema([pa.field(c.key, _arrow_type(c), c.kind in ("text", "image")) for c in self.in_parquet])

    # -- tasks

    @cached_property
    def tasks(self) -> list[str]:
        """Texts by task number, in the order of their first use; one that names the dataset if nothing says more."""
        if self._task_field is not None:
            texts = self.content.strings(self._task_field)
            return ["" if code < 0 else texts[code] for code in self._used]
        about = self.content.dataset
        named = [str(about.manifest.env.get("id") or about.id)]
        return list(dict.fromkeys(self.instructions.of_episodes)) if self.instructions.name else named

    @property
    def _task_field(self) -> str | None:
        return self.instructions.field

    @cached_property
    def _used(self) -> list[int]:
        """The codes of the texts of steps, in order; -1 for none."""
        used, name = np.zeros(0, np.int64), self._task_field
        assert name is not None
        for a, b in self.content.pieces(name):
            steps = np.ones(b - a, bool)
            steps[self.content.last_rows(a, b) - a] = False
            used = np.union1d(used, self.content.codes(name, a, b)[steps])
        found: list[int] = used.tolist()
        return found

    @cached_property
    def _number_of_code(self) -> IntArray:
        numbers = np.zeros(max(self._used, default=0) + 2, np.int64)  # the last one is that of -1
        numbers[self._used] = np.arange(len(self._used))
        return numbers

    def task_numbers(self, steps: StepGroup) -> IntArray:
        """Return the number of the task of each step."""
        if self._task_field is not None:
            return self._number_of_code[steps.among(self.content.codes(self._task_field, steps.start, steps.stop))]
        return steps.each(self._task_of_episode)

    def tasks_in(self, episode: int) -> list[int]:
        """Return the numbers of the tasks of an episode, in order."""
        if self._task_field is None:
            return [int(self._task_of_episode[episode])]
        steps = StepGroup.of(self.content, range(episode, episode + 1))
        found: list[int] = np.unique(self.task_numbers(steps)).tolist()
        return found

    @cached_property
    def _task_of_episode(self) -> IntArray:
        return self.instructions.codes() if self.instructions.name else np.zeros(len(self.content.table), np.int64)

    # -- sub-tasks

    @cached_property
    def subtasks(self) -> list[Subtasks | None]:
        """The sub-tasks of each episode; nothing if there are none, or an episode has an empty list of them."""
        told = self.content.table.extra.get(Subtasks.COLUMN, ()) if self._numbers_subtasks else ()
        found = [None if text is None else Subtasks.of(text, f"episode {k}") for k, text in enumerate(told)]
        return found if any(found) and all(s is None or len(s) for s in found) else []

    @cached_property
    def subtask_texts(self) -> list[str]:
        """Texts by the number of a sub-task, in the order of their first use; the last one is that of none."""
        return [*dict.fromkeys(text for s in self.subtasks if s is not None for text in s.texts), ""]

    def subtask_numbers(self, steps: StepGroup) -> IntArray:
        """Return the number of the sub-task of each step."""
        number = {text: k for k, text in enumerate(self.subtask_texts)}
        found = np.full(len(steps), number[""], np.int64)
        ends = np.cumsum(steps.lengths).tolist()
        for episode, begin, end in zip(steps.episodes, [0, *ends], ends, strict=False):
            if (told := self.subtasks[episode]) is not None:
                found[begin:end] = [number[text or ""] for text in told.at(steps.numbers[begin:end])]
        return found

    # -- descriptions

    @cached_property
    def former(self) -> Mapping[str, Any]:
        """``info.json`` of the LeRobot dataset that the content was imported from; empty if it was not."""
        text = self.content.metadata_text(FACTS)
        content = documents.loads(text) if text else {}
        return content if isinstance(content, dict) else {}

    def features(self) -> dict[str, Any]:
        """Describe the columns as ``info.json`` does."""
        known = self.former.get("features") or {}
        found: dict[str, Any] = {}
        for c in self.columns.values():
            was: Any = known.get(c.key)
            was = was if isinstance(was, dict) else {}
            names = ["height", "width", "channels"] if c.kind in ("image", "video") else None
            if c.kind not in ("image", "video") and list(c.shape) == was.get("shape"):
                names = was.get("names")
            found[c.key] = {"dtype": c.dtype, "shape": list(c.shape), "names": names}
            if c.kind == "video":
                found[c.key]["info"] = self._about_video(c, was.get("info"))
            elif c.kind == "image" and (about := self._about_depth(c)):
                found[c.key]["info"] = about
        return found

    def _about_video(self, c: ExportColumn, was: Any) -> dict[str, Any]:
        """Describe a video as lerobot does; what was known before stays."""
        assert c.field is not None
        videos = self.content.videos(c.field.name)
        track = videos.video(0).track if len(videos) else None
        deep = c.field.dtype == "uint16"
        about: dict[str, Any] = {"video.height": c.shape[0], "video.width": c.shape[1], "video.channels": c.shape[2]}
        about |= {"video.codec": track.codec} if track else {}
        bits = Facts(self.content.dataset.manifest).depth.get(c.field.name, {}).get("bits", CODE_BITS)
        about |= {"video.is_depth_map": deep, "has_audio": False}
        about |= {"video.pix_fmt": f"gray{bits}le"} if deep else {}
        return about | self._about_depth(c) | (was if isinstance(was, dict) else {})

    def _about_depth(self, c: ExportColumn) -> dict[str, Any]:
        """Return the mark and the unit of depth, or the formula of its codes; nothing for other cameras."""
        assert c.field is not None
        if c.field.dtype != "uint16":
            return {}
        said = Facts(self.content.dataset.manifest).depth.get(c.field.name, {})
        unit = {"depth_unit": said["unit"]} if "unit" in said else {}
        formula = {f"video.{name}": said[name] for name in DEPTH_FORMULA if name in said}
        return {"is_depth_map": True, **unit, **formula}

    def said(self) -> dict[str, Any]:
        """Return what ``rlds.json`` says of the columns."""
        features = self.features()
        added = [c.key for c in self.columns.values() if c.field is None and c.key not in COUNTED]
        chosen = {key: f for key, f in features.items() if key not in added}
        if self.instructions.is_task:
            added.remove(TASK)
        columns: dict[str, Any] = {}
        for key, read in lerobot_fields(chosen, self.schema).items():
            f = self.columns[key].field
            assert f is not None
            odd: dict[str, Any] = {"field": f.name} if f.name != read.name else {}
            odd |= {"placement": f.placement} if odd or f.placement != read.placement else {}
            odd |= {"shape": list(f.shape)} if f.kind == "frames" or f.shape != read.shape else {}
            if odd:
                columns[key] = odd
        return {"columns": columns, "added": added}


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps that are written together: all of some episodes that follow each other, or some of one episode.

    Attributes
    ----------
    episodes : range
    start, stop : int
        Their rows; those of final observations are among them.
    lengths : int array [episodes]
        Number of steps of each.
    numbers : int array [n]
        Number of each step in its episode.
    """

    episodes: range
    start: int
    stop: int
    lengths: IntArray
    numbers: IntArray
    _begins: IntArray

    @classmethod
    def of(cls, content: Content, episodes: range, first: int = 0, stop: int | None = None) -> StepGroup:
        """Return the steps of episodes; of one alone those from ``first`` to ``stop``, if there are so many."""
        which = slice(episodes.start, episodes.stop)
        starts = content.starts[which] + first
        lengths = content.table.length[which] - first
        lengths = lengths if stop is None else np.minimum(lengths, stop - first)
        begin = np.cumsum(lengths) - lengths
        numbers = np.arange(first, first + lengths.sum()) - np.repeat(begin, lengths)
        start, end = int(starts[0]), int(starts[-1] + lengths[-1])
        return cls(episodes, start, end, lengths, numbers, starts - start)

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.numbers)

    def among(self, rows: Array) -> Array:
        """Return the steps among ``rows``, which go from ``start`` to ``stop``."""
        if len(rows) == len(self):
            return rows
        each = zip(self._begins.tolist(), self.lengths.tolist(), strict=True)
        return np.concatenate([rows[a : a + n] for a, n in each])

    def each(self, of_episodes: Array) -> Array:
        """Return a value of each episode of the dataset for its steps here [n]."""
        return np.repeat(of_episodes[self.episodes.start : self.episodes.stop], self.lengths)


def array_of(values: Array, shape: tuple[int, ...]) -> Any:
    """Return rows [n, ...] as a column of scalars, or of lists; numbers are not copied."""
    if len(shape) > 1:
        return statistics.lists_of(values)
    flat = statistics.numbers_of(values)
    if shape == (1,):
        return flat
    return pyarrow().FixedSizeListArray.from_arrays(flat, type=_fixed_list(flat.type, shape[0]))


def _fixed_list(kind: Any, side: int) -> Any:
    pa = pyarrow()
    return pa.list_(pa.field("item", kind, nullable=False), side)


def images_of(data: Array, ends: IntArray) -> Any:
    """Return encoded images as a column of structs {bytes, path}, without a copy."""
    pa = pyarrow()
    count = len(ends) - 1
    offsets = pa.py_buffer(ends.astype(np.int32))
    encoded = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(np.ascontiguousarray(data))])
    return pa.StructArray.from_arrays([encoded, pa.nulls(count, pa.string())], names=["bytes", "path"])


def _arrow_type(c: ExportColumn) -> Any:
    pa = pyarrow()
    if c.kind == "text":
        return pa.string()
    if c.kind == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.from_numpy_dtype(np.dtype(c.dtype))
    if c.shape == (1,):
        return kind
    if len(c.shape) == 1:
        return _fixed_list(kind, c.shape[0])
    for _ in c.shape:
        kind = statistics.list_type(kind)
    return kind
