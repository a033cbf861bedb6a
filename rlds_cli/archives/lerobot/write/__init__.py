"""LeRobot's dataset format: v3.0, many episodes to a file, and v2.1, one.

::

    meta/info.json  rlds.json                  see ``features``
         stats.json  tasks.parquet             v3
         subtasks.parquet                      v3: the texts of what is done in ranges of steps
         episodes/chunk-000/file-000.parquet   v3: an episode in a row, with its places and statistics
         tasks.jsonl  episodes.jsonl  episodes_stats.jsonl      v2.1
    data/chunk-000/file-000.parquet            v3: whole episodes in a row group; v2.1: episode_000000.parquet
    videos/KEY/chunk-000/file-000.mp4          v3: the files as published; v2.1: chunk-000/KEY/episode_000000.mp4

LeRobot has a row for each step: observations after the last one are not said. Seeds, reset options and the user's own
columns are columns of episodes.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np

from rlds_cli.archives.exported import EXPORTED
from rlds_cli.archives.exports.content import Content, Loss
from rlds_cli.archives.exports.format import Format, Unit, absent_images, check_columns, odd_texts, sync
from rlds_cli.archives.lerobot.names import SUBTASK, SUBTASK_LISTS, SUBTASKS
from rlds_cli.archives.lerobot.write import features, statistics
from rlds_cli.archives.lerobot.write.features import DONE, FACTS, TIME, ExportColumn, FeatureColumns, StepGroup
from rlds_cli.archives.lerobot.write.statistics import EpisodeStatistics, Statistics
from rlds_cli.archives.lerobot.write.videos import TOLERANCE, Camera
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import trees
from rlds_cli.base.packages import pyarrow
from rlds_cli.base.repeated import Repeated
from rlds_cli.ted import CUT, FLAGS, TASK, VIDEO, Subtasks

FILES = 1000  # in a chunk, as lerobot has it
TOGETHER = 4 << 20  # bytes of short episodes that share a row group
NUMBERS, IMAGES = 16 << 20, 96 << 20  # bytes of an episode from which it takes more than one row group
_IMAGES = 64  # of a unit, or one of each episode, that statistics are taken from
_DECODED = 16  # episodes of which a frame is decoded for statistics
_DATA_MB, _VIDEO_MB = 100, 200  # sizes of files that lerobot appends to
_TIMED = 16  # episodes whose times are looked at for their rate
_STEPS_A_SECOND = 1.0  # where nothing is known of time
_LINES = {TIME, "frame_index", "episode_index", "index"}  # evenly spaced numbers
_COUNTS = {*_LINES, "task_index"} - {TIME}
_STANDARD = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Misfits:
    """How times suit lerobot: cameras whose frames they do not find, and find ``far``; steps that are ``uneven``."""

    lost: int
    far: int
    furthest: float
    uneven: int


class _LeRobot(Format):
    """The part that both versions share."""

    reader = "lerobot"
    can = frozenset({"unknown-final", "cut", "seeds", "options", "columns"})
    threads = True
    instructed = "steps"
    version: str
    steady = False  # steps must be 1 / fps apart

    def __init__(self, content: Content, target: Path, form: str | None = None, task: str | None = None) -> None:
        super().__init__(content, target, form, task)
        assert self.instructions is not None
        self.layout = FeatureColumns(content, self.instructions, numbers_subtasks=self.version == "v3.0")
        steps = content.table.length
        self._first = np.cumsum(steps) - steps  # step with which an episode begins

    # -- losses

    def losses(self) -> list[Loss]:
        """Return what LeRobot cannot represent."""
        found = [loss for loss in super().losses() if loss.kind not in ("splits", "metadata")]
        odd = [name for name, of_split in _ranges(self.content).items() if of_split is None]
        found += [Loss("splits", f"the named split {name}, which is not a range of episodes", name) for name in odd]
        names = [n for n in self.content.dataset.manifest.metadata if n != FACTS]
        if names:
            text = f"data that are not per row: {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
            found.append(Loss("metadata", text))
        return found

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield fields that the files cannot hold."""
        if self._own_time_fails:
            text = f"that {TIME} is the recorded time, which {self._own_time_fails}: {TIME} will be "
            yield Loss("time", f"{text}frame_index / {self.fps:g}, and {TIME}_ the recorded one", TIME)
        odd = {loss.field: loss for loss in odd_texts(self.content)}
        for name, f in self.content.fields.items():
            if name in odd:
                yield odd[name]
            elif why := features.problem(f):
                yield Loss("field", f"{name}: {why}", name)
            elif f.codec == VIDEO:
                yield from self._losses_of_videos(self._camera(name, counted=bool(self._own_time_fails)))
            elif f.kind == "frames" and f.codec in ("png", "jpeg") and (count := absent_images(self.content, name)):
                yield Loss("field", f"{name}: {count:,} steps have no image", name)

    def check(self) -> None:
        """Refuse texts of episodes that no file of LeRobot holds."""
        check_columns(self.content, self.name)

    def _camera(self, name: str, *, counted: bool) -> Camera:
        """Return a field in videos whose times are those of the rows, or ``counted``."""
        return Camera(self.content, name, self._counted_times if counted else self._times, self.fps)

    @cached_property
    def _own_time_fails(self) -> str:
        """Why the times of the dataset's own make room for counted ones, which lerobot reads better; "" if they stay.

        lerobot finds the frames of videos by the times of rows, and refuses those that are too far away. Its reader of
        version 2.1 also refuses steps that are not 1 / fps apart.
        """
        if self.layout.columns[TIME].field is None:
            return ""
        own, counted = (self._misfits(counted=c) for c in (False, True))
        if own.lost > counted.lost:
            return "does not find the frames of the videos"
        if own.lost == counted.lost and own.far > counted.far:
            return f"is up to {1000 * own.furthest:.2g} ms from the frames of the videos; lerobot accepts 0.1 ms"
        if self.steady and own.lost == counted.lost and own.far == counted.far and own.uneven > counted.uneven:
            return f"has steps that are not 1 / {self.fps:g} s apart, which lerobot refuses in version {self.version}"
        return ""

    def _misfits(self, *, counted: bool) -> _Misfits:
        names = [n for n, f in self.content.fields.items() if f.codec == VIDEO]
        cameras = [self._camera(name, counted=counted) for name in names]
        lost = [not self._finds(camera) for camera in cameras]
        far = [camera.furthest() for camera, out in zip(cameras, lost, strict=True) if not out]
        times = self._counted_times if counted else self._times
        steps = (np.abs(np.diff(times(k)) - 1 / self.fps) for k in range(len(self.content.table) if self.steady else 0))
        return _Misfits(
            lost=sum(lost),
            far=sum(seconds > TOLERANCE for seconds in far),
            furthest=max((seconds for seconds in far if seconds < math.inf), default=0.0),
            uneven=sum(int((of > TOLERANCE).sum()) for of in steps),
        )

    def _finds(self, camera: Camera) -> bool:
        """Return whether times find the frames of a camera in files as this version has them."""
        return camera.is_mp4() and camera.is_readable()

    def _losses_of_videos(self, camera: Camera) -> Iterator[Loss]:
        """Yield a loss if the videos are not MP4, or no times find the frames."""
        if self._finds(camera):
            return
        why = "its frames do not follow the time of the rows" if camera.is_mp4() else "its videos are not MP4 files"
        deep = self.content.fields[camera.name].dtype != "uint8"
        how, becomes = ("stored decoded", "") if deep else ("PNG images", "png")
        yield Loss("encoding", f"{camera.name}: {why}: will be {how}", camera.name, becomes)

    def notes(self) -> Sequence[str]:
        """Return which text the tasks are, if they are another one than the dataset's own, and odd times that stay."""
        named, said = self.layout.instructions.name, f"their task is the name {self.layout.tasks[0]}"
        found = [*super().notes()] if named else [f"no text says what the episodes are about: {said}"]
        if self._known_fps is None:
            found.append(
                "no rate is known, so that fps is 1 and times count steps: rlds label ID --set fps=20 states it"
            )
        # The videos of version 2.1 may have been cut: they are no more those of the dataset.
        seconds = 0.0 if self.steady else max((camera.furthest() for camera in self.cameras.values()), default=0.0)
        if TOLERANCE < seconds < math.inf:
            found.append(
                f"frames are shown up to {1000 * seconds:.2g} ms from the times of their rows: "
                f"LeRobotDataset(..., tolerance_s={math.ceil(seconds * 1000) / 1000:g}) reads them"
            )
        return found

    # -- work

    def units(self) -> Sequence[Unit]:
        """Divide the episodes into ranges of about 64 MiB, and of 1,000 at most; in v3 each is a file."""
        return self._units

    @cached_property
    def _units(self) -> Sequence[Unit]:
        bounds = [(a, min(a + FILES, u.stop)) for u in super().units() for a in range(u.first, u.stop, FILES)]
        return [Unit(f"{a}-{b}", a, b) for a, b in bounds]

    def prepare(self, directory: Path) -> None:
        """Make the directories."""
        (directory / "meta").mkdir()

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the rows of some episodes, and what ``meta/`` says of them; return statistics of all."""
        number = self._number(unit)
        found = EpisodeStatistics()
        for camera in self.cameras.values():
            self._write_videos(camera, unit, directory)
        images = max(1, _IMAGES // (unit.stop - unit.first))
        with self._files(number, directory) as files, ThreadPoolExecutor(1) as behind:
            written: Future[None] = behind.submit(lambda: None)
            for steps in self._pieces(unit):
                rows = self._rows_of(steps, found, images)
                written.result()
                written = behind.submit(files.add, steps, rows)
            written.result()
            closed = behind.submit(files.close)  # the disk writes while this thread describes the episodes
            self._add_statistics_of_videos(unit, found)
            self._describe(range(unit.first, unit.stop), number, found, directory)
            closed.result()
        return statistics.plain(found.joined())

    def _number(self, unit: Unit) -> int:
        return next(k for k, u in enumerate(self.units()) if u.name == unit.name)

    def _pieces(self, unit: Unit) -> Iterator[StepGroup]:
        """Divide the steps of a unit: short episodes come together, those with images alone, long ones in pieces."""
        columns, lengths = self.layout.in_parquet, self.content.table.length
        numbers = sum(self.content.row_bytes(c.field.name) for c in columns if c.field and c.kind == "array")
        images = sum(self.content.row_bytes(c.field.name) for c in columns if c.field and c.kind == "image")
        together = 0 if images else TOGETHER // max(1, numbers)
        most = max(1, min(NUMBERS // max(1, numbers), IMAGES // max(1, images)))
        first = unit.first
        while first < unit.stop:
            episode, count = first + 1, int(lengths[first])
            while episode < unit.stop and count + lengths[episode] <= together:
                count, episode = count + int(lengths[episode]), episode + 1
            if count <= most:
                yield StepGroup.of(self.content, range(first, episode))
            else:
                yield from (
                    StepGroup.of(self.content, range(first, episode), a, a + most) for a in range(0, count, most)
                )
            first = episode

    def _rows_of(self, steps: StepGroup, into: EpisodeStatistics, images: int) -> Any:
        """Return the rows of steps as a table of Arrow, and add their statistics to ``into``."""
        made = []
        for c in self.layout.in_parquet:
            column, values = self._column(c, steps)
            made.append(column)
            found = self._statistics(c, values, steps, images)
            if found is not None:
                into.add(c.key, steps.episodes, found)
        return pyarrow().Table.from_arrays(made, schema=self.layout.schema)

    def _statistics(self, c: ExportColumn, values: Array | None, steps: StepGroup, images: int) -> Statistics | None:
        if c.kind == "image" and c.field is not None:
            some = np.linspace(steps.start, steps.stop - 1, min(images, len(steps))).astype(np.int64).tolist()
            return statistics.of_images(self.content.frames(c.field.name, r, r + 1)[0] for r in dict.fromkeys(some))
        if values is None:
            return None
        of = statistics.of_lines if c.field is None and c.key in _LINES else statistics.of_rows
        return of(values, steps.lengths, by_last_axis=self.version == "v3.0")

    def _column(self, c: ExportColumn, steps: StepGroup) -> tuple[Any, Array | None]:
        """Return steps as a column of Arrow, and as an array if they are numbers."""
        pa = pyarrow()
        if c.field is not None and c.kind == "text":
            return pa.array(self._values(c.field.name, steps).tolist(), pa.string()), None
        if c.field is not None and c.kind == "image":
            return features.images_of(*self.content.encoded(c.field.name, steps.start, steps.stop)), None
        values = self._numbers(c, steps)
        return features.array_of(values, c.shape), values

    def _values(self, name: str, steps: StepGroup) -> Array:
        return steps.among(self.content.rows(name, steps.start, steps.stop, last_rows=False))

    def _numbers(self, c: ExportColumn, steps: StepGroup) -> Array:
        if c.kind == "task":
            return self.layout.task_numbers(steps)
        if c.field is not None:
            values = self._values(c.field.name, steps)
            return self._as_recorded(values, steps) if c.field.name == FLAGS[1] else values
        if c.key == TIME:
            return np.asarray(steps.numbers / self.fps, np.float32)
        if c.key == DONE:
            return np.asarray(steps.numbers == steps.each(self.content.table.length) - 1)
        if c.key == SUBTASK:
            return self.layout.subtask_numbers(steps)
        if c.key == "index":
            return steps.numbers + steps.each(self._first)
        return steps.each(np.arange(len(self.content.table))) if c.key == "episode_index" else steps.numbers

    def _as_recorded(self, truncated: Array, steps: StepGroup) -> Array:
        """Return flags without those that say that the recording was cut: no flag says so here."""
        table = self.content.table
        cut = (steps.numbers == steps.each(table.length) - 1) & steps.each(np.asarray(table.end) == CUT)
        return np.asarray(truncated & ~cut)

    # -- time and videos

    @cached_property
    def fps(self) -> float:
        """Steps in a second; 1 if nobody knows it: then times count steps."""
        return self._known_fps or _STEPS_A_SECOND

    @cached_property
    def _known_fps(self) -> float | None:
        """Steps in a second, as the dataset says, else as its first video or its times show them."""
        said = self.content.dataset.manifest.env.get("fps") or self.layout.former.get("fps")
        if isinstance(said, int | float) and said > 0:
            return float(said)
        for c in self.layout.cameras:
            if c.field is not None and len(self.content.videos(c.field.name)):
                seconds = self.content.videos(c.field.name).video(0).track.seconds
                if len(seconds) > 1 and seconds[-1] > seconds[0]:
                    return round((len(seconds) - 1) / float(seconds[-1] - seconds[0]), 3)
        if self.layout.columns[TIME].field is not None:
            few = range(min(_TIMED, len(self.content.table)))
            steps = np.concatenate([np.zeros(0), *(np.diff(self._times(k)) for k in few)])
            if len(steps) and 0 < (step := float(np.median(steps))) < math.inf:
                return round(1 / step, 2)
        return None

    @cached_property
    def cameras(self) -> dict[str, Camera]:
        """Fields in videos, by key."""
        fields = {c.key: c.field for c in self.layout.cameras}
        return {key: Camera(self.content, f.name, self._times, self.fps) for key, f in fields.items() if f}

    def _times(self, episode: int) -> Array:
        """Return the seconds of the rows of an episode, as they are read."""
        steps = StepGroup.of(self.content, range(episode, episode + 1))
        return self._numbers(self.layout.columns[TIME], steps).astype(np.float64)

    def _counted_times(self, episode: int) -> Array:
        """Return the seconds of the rows of an episode by their number."""
        counted = np.arange(int(self.content.table.length[episode])) / self.fps
        return counted.astype(np.float32).astype(np.float64)

    def _add_statistics_of_videos(self, unit: Unit, into: EpisodeStatistics) -> None:
        """Add the statistics of the first frame of some episodes, if the package that decodes it is installed."""
        if not self.cameras or not find_spec("av"):
            return
        every = max(1, len(self.content.table) // _DECODED)
        for episode in range(-(-unit.first // every) * every, unit.stop, every):
            row = int(self.content.starts[episode])
            for key, camera in self.cameras.items():
                pixels = self.content.rows(camera.name, row, row + 1)[0]
                if pixels.dtype == np.uint8:
                    found = statistics.of_pixels(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
                    into.add(key, range(episode, episode + 1), found)

    def _key_of(self, camera: Camera) -> str:
        return next(key for key, c in self.cameras.items() if c is camera)

    @abstractmethod
    def _write_videos(self, camera: Camera, unit: Unit, directory: Path) -> None:
        """Write the video files that the episodes of a unit begin with."""

    # -- descriptions

    def _listed(self, episodes: range) -> dict[str, list[Any]]:
        """Return what ``meta/`` says of episodes in both versions, by column."""
        table, tasks = self.content.table, self.layout.tasks
        columns: dict[str, list[Any]] = {
            "episode_index": list(episodes),
            "tasks": [[tasks[n] for n in self.layout.tasks_in(k)] for k in episodes],
            "length": table.length[episodes.start : episodes.stop].tolist(),
        }
        own: dict[str, Any] = {key: table.extra[name] for name, key in self._own_keys.items()}
        own |= {} if isinstance(table.seed, Repeated) else {"seed": table.seed}
        own |= {} if isinstance(table.options, Repeated) else {"options": table.options}
        if self.layout.subtasks:
            lists = [_lists(self.layout.subtasks[k]) for k in episodes]
            columns |= {name: [of[name] for of in lists] for name in SUBTASK_LISTS}
        return columns | {name: [values[k] for k in episodes] for name, values in own.items()}

    @cached_property
    def _own_keys(self) -> dict[str, str]:
        """Return the keys of the user's own episode columns by their names, but for what LeRobot has otherwise."""
        odd = {*_STANDARD, *SUBTASK_LISTS, "seed", "options"}
        said = {TASK} if self.layout.instructions.is_task else set()
        said |= {Subtasks.COLUMN} if self.layout.subtasks else set()
        names = [n for n in self.content.table.extra if n not in said]
        return {n: f"own.{n.replace('/', '.')}" if n in odd or "/" in n else n for n in names}

    def _info(self, **more: Any) -> dict[str, Any]:
        """Return ``info.json``; what LeRobot knew of the dataset before stays."""
        former, table, fps = self.layout.former, self.content.table, self.fps
        robot = former.get("robot_type") or self.content.dataset.manifest.env.get("robot")
        return {
            "codebase_version": self.version,
            "robot_type": robot,
            "total_episodes": len(table),
            "total_frames": int(table.length.sum()),
            "total_tasks": len(self.layout.tasks),
            "chunks_size": FILES,
            "fps": int(fps) if fps == int(fps) else fps,
            "splits": {name: f"{r[0]}:{r[1]}" for name, r in _ranges(self.content).items() if r},
            **more,
            "features": self.layout.features(),
        }

    def _write_descriptions(self, directory: Path, info: Mapping[str, Any]) -> None:
        table, said = self.content.table, self.layout.said()
        episodes: dict[str, Any] = {} if isinstance(table.seed, Repeated) else {"seed": "seed"}
        episodes |= {} if isinstance(table.options, Repeated) else {"options": "options"}
        episodes |= {"columns": self._own_keys} if self._own_keys else {}
        _write_json(directory / "meta" / "info.json", info)
        _write_json(directory / "meta" / EXPORTED, said | ({"episodes": episodes} if episodes else {}))

    @abstractmethod
    def _files(self, number: int, directory: Path) -> _Files:
        """Return the data files of the unit with a number."""

    @abstractmethod
    def _describe(self, episodes: range, number: int, found: EpisodeStatistics, directory: Path) -> None:
        """Write what ``meta/`` says of the episodes of a unit."""


class LeRobot3(_LeRobot):
    """Version 3.0, which lerobot 0.4 reads."""

    name = "lerobot"
    version = "v3.0"

    def _write_videos(self, camera: Camera, unit: Unit, directory: Path) -> None:
        for video, episode in camera.introduces.items():
            if unit.first <= episode < unit.stop:
                camera.write(video, directory / "videos" / self._key_of(camera) / _place(camera.number[video], "mp4"))

    def _files(self, number: int, directory: Path) -> _Files:
        return _OneFile(self.layout.schema, directory / "data" / _place(number))

    def _describe(self, episodes: range, number: int, found: EpisodeStatistics, directory: Path) -> None:
        """Write the list of the unit's episodes, a file of its own."""
        pa = pyarrow()
        path = directory / "meta" / "episodes" / _place(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        which, count = slice(episodes.start, episodes.stop), len(episodes)
        first, length = self._first[which], self.content.table.length[which]
        place = {"chunk_index": [number // FILES] * count, "file_index": [number % FILES] * count}
        places: dict[str, Any] = {f"data/{name}": values for name, values in place.items()}
        places |= {"dataset_from_index": first.tolist(), "dataset_to_index": (first + length).tolist()}
        places |= {f"meta/episodes/{name}": values for name, values in place.items()}
        for key, camera in self.cameras.items():
            shown = [camera.begin(k) or (0, 0.0) for k in episodes]
            file, begin = np.array([camera.number[video] for video, _ in shown]), np.array([b for _, b in shown])
            places |= {f"videos/{key}/chunk_index": file // FILES, f"videos/{key}/file_index": file % FILES}
            places |= {f"videos/{key}/from_timestamp": begin, f"videos/{key}/to_timestamp": begin + length / self.fps}
        columns = {n: _listed_column(n, values) for n, values in (self._listed(episodes) | places).items()}
        table = pa.table(columns | found.columns(episodes))
        texts = [f"{n}.list.element" if pa.types.is_list(c.type) else n for n, c in columns.items()]
        pa.parquet.write_table(table, path, use_dictionary=texts)  # statistics hardly repeat
        sync(path)

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write tasks, statistics and descriptions."""
        found: dict[str, list[Statistics]] = {}
        for of_unit in results.values():
            for key, s in statistics.of_json(of_unit).items():
                found.setdefault(key, []).append(s)
        total = statistics.plain({key: statistics.joined(parts) for key, parts in found.items()})
        _write_json(directory / "meta" / "stats.json", total)
        _write_texts(directory / "meta" / "tasks.parquet", "task_index", self.layout.tasks)
        if self.layout.subtasks:
            _write_texts(directory / SUBTASKS, SUBTASK, self.layout.subtask_texts)
        self._write_descriptions(
            directory,
            self._info(
                data_files_size_in_mb=_DATA_MB,
                video_files_size_in_mb=_VIDEO_MB,
                data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
                video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
                if self.layout.cameras
                else None,
            ),
        )


class LeRobot21(_LeRobot):
    """Version 2.1, which lerobot 0.1 to 0.3, GR00T and openpi read."""

    name = "lerobot2.1"
    version = "v2.1"
    steady = True

    def _losses_of_videos(self, camera: Camera) -> Iterator[Loss]:
        """Yield a loss if episodes share videos, or begin inside them."""
        if camera.is_mp4() and not camera.is_apart() and camera.can_be_cut():
            text = f"{camera.name}: videos of several episodes: one will be cut out for each episode"
            yield Loss("videos", text, camera.name)
        else:
            yield from super()._losses_of_videos(camera)

    def _finds(self, camera: Camera) -> bool:
        """Return whether times find the frames of a camera, in a file for each episode."""
        return camera.is_mp4() and (camera.is_apart() or camera.can_be_cut())

    def _write_videos(self, camera: Camera, unit: Unit, directory: Path) -> None:
        for episode in range(unit.first, unit.stop):
            place = Path(f"chunk-{episode // FILES:03d}", self._key_of(camera), f"episode_{episode:06d}.mp4")
            camera.write(int(camera.rows(episode)[0, 0]), directory / "videos" / place)

    def _files(self, number: int, directory: Path) -> _Files:
        return _FilePerEpisode(self.layout.schema, directory / "data")

    def _describe(self, episodes: range, number: int, found: EpisodeStatistics, directory: Path) -> None:
        """Write the unit's lines of both lists; `finish` joins them."""
        pieces = directory / "meta" / "pieces"
        pieces.mkdir(exist_ok=True)
        lists: dict[str, list[Any]] = {"episodes": [], "stats": []}
        large = any((seed or 0) >> 63 for seed in self.content.table.seed)  # lerobot's tools take numbers for int64
        of_episodes = found.of_episodes(episodes)
        columns = self._listed(episodes)
        if large and "seed" in columns:
            columns["seed"] = [None if seed is None else str(seed) for seed in columns["seed"]]
        for k, row, of in zip(episodes, zip(*columns.values(), strict=True), of_episodes, strict=True):
            lists["episodes"].append(dict(zip(columns, row, strict=True)))
            lists["stats"].append({"episode_index": k, "stats": of})
        for name, lines in lists.items():
            path = pieces / f"{number}.{name}"
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
            sync(path)

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write tasks and descriptions, and join the lists of episodes."""
        meta = directory / "meta"
        pieces, joined = meta / "pieces", meta / "pieces-joined"
        if pieces.exists():
            for name, target in (("episodes", "episodes.jsonl"), ("stats", "episodes_stats.jsonl")):
                with (meta / target).open("wb") as whole:
                    for number in range(len(results)):
                        whole.write((pieces / f"{number}.{name}").read_bytes())
                sync(meta / target)
            pieces.rename(joined)  # after a kill, they are all there or not needed
        trees.discard(joined)
        lines = [{"task_index": k, "task": text} for k, text in enumerate(self.layout.tasks)]
        path = meta / "tasks.jsonl"
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        sync(path)
        episodes, cameras = len(self.content.table), len(self.layout.cameras)
        self._write_descriptions(
            directory,
            self._info(
                total_videos=episodes * cameras,
                total_chunks=-(-episodes // FILES),
                data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
                video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
                if cameras
                else None,
            ),
        )


class _Files(ABC):
    """Data files of a unit: `add` is called with its rows, in order."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._writer: Any = None
        self._path = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def add(self, steps: StepGroup, rows: Any) -> None:
        """Add the rows of some steps."""

    def _write(self, rows: Any) -> None:
        """Write rows as a row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def _open(self, path: Path) -> None:
        self.close()
        pa = pyarrow()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="none", **_encoding(self._schema))

    def close(self) -> None:
        """Complete the file that is open, and write it through to the disk."""
        if self._writer is not None:
            self._writer.close()
            sync(self._path)
            self._writer = None


class _OneFile(_Files):
    def __init__(self, schema: Any, path: Path) -> None:
        super().__init__(schema)
        self._open(path)

    def add(self, steps: StepGroup, rows: Any) -> None:
        """Add rows to the file."""
        self._write(rows)


class _FilePerEpisode(_Files):
    def __init__(self, schema: Any, directory: Path) -> None:
        super().__init__(schema)
        self._directory = directory

    def add(self, steps: StepGroup, rows: Any) -> None:
        """Add rows to the files of their episodes."""
        begin = 0
        for episode, length in zip(steps.episodes, steps.lengths.tolist(), strict=True):
            if steps.numbers[begin] == 0:
                self._open(self._directory / f"chunk-{episode // FILES:03d}" / f"episode_{episode:06d}.parquet")
            self._write(rows.slice(begin, length))
            begin += length


def _encoding(schema: Any) -> dict[str, Any]:
    """Return options of the writer: dictionaries only for texts, and bounds of what readers look for episodes by.

    Counts are written as differences, in a few bits: four of them would be a quarter of the bytes of short vectors.
    """
    texts = [f.name for f in schema if str(f.type) == "string"]
    lines = [f.name for f in schema if f.name in _LINES]
    counts = [f.name for f in schema if f.name in _COUNTS]
    differences = {"column_encoding": dict.fromkeys(counts, "DELTA_BINARY_PACKED")}
    sizes = {"write_batch_size": 1 << 16, "data_page_size": 1 << 18}  # a page stays in a core's cache
    return {"use_dictionary": texts or False, "write_statistics": lines} | sizes | differences


def _place(number: int, suffix: str = "parquet") -> Path:
    return Path(f"chunk-{number // FILES:03d}") / f"file-{number % FILES:03d}.{suffix}"


def _listed_column(name: str, values: Sequence[Any] | Array) -> Any:
    pa = pyarrow()
    if name == "seed":
        return pa.array(values, pa.uint64())
    return pa.array(values, pa.string()) if name == "options" else pa.array(values)


def _ranges(content: Content) -> dict[str, tuple[int, int] | None]:
    """Return the named splits as ranges of episodes; None for a split that is not a range."""
    found: dict[str, tuple[int, int] | None] = {}
    for name, mask in content.table.splits.items():
        inside = np.flatnonzero(mask)
        whole = len(inside) and int(inside[-1] - inside[0]) == len(inside) - 1
        found[name] = (int(inside[0]), int(inside[-1]) + 1) if whole else None
    return found


def _lists(told: Subtasks | None) -> dict[str, Any]:
    """Return the sub-tasks of an episode as LeRobot lists them: texts, first frames, and last ones."""
    lists = [None] * 3 if told is None else [[*told.texts], told.first.tolist(), (told.stop - 1).tolist()]
    return dict(zip(SUBTASK_LISTS, lists, strict=True))


def _pandas(index: str) -> str:
    """Return the metadata by which pandas finds texts as the index of a table of their numbers."""
    known = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    number = {"name": index, "field_name": index, "pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    text = known | {"field_name": "__index_level_0__", "metadata": None}
    said = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [known | {"metadata": {"encoding": "UTF-8"}}],
        "columns": [number, text],
        "creator": {"library": "pyarrow", "version": "18.0.0"},
        "pandas_version": "2.2.3",
    }
    return json.dumps(said)


def _write_texts(path: Path, index: str, texts: Sequence[str]) -> None:
    """Write texts by number."""
    pa = pyarrow()
    table = pa.table({index: pa.array(range(len(texts)), pa.int64()), "__index_level_0__": texts})
    pa.parquet.write_table(table.replace_schema_metadata({"pandas": _pandas(index)}), path)
    sync(path)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    sync(path)
