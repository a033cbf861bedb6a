"""The cameras of a LeRobot dataset: which file shows an episode, and from when on.

LeRobot finds a frame by the time of its row. A video is copied as it was published if that finds the frames that the
dataset has. Version 2.1 has a file for each episode, which starts at 0: other videos are cut, without decoding them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from rlds_cli.archives.exports.content import Content, first_references
from rlds_cli.base.array_types import Array
from rlds_cli.base.media import video_files

Times = Callable[[int], Array]  # seconds of the rows of an episode, as they are read: float64 [T]
_EXACT = 1e-9
TOLERANCE = 1e-4  # seconds from the time of a row to its frame, and to the step of 1 / fps, that lerobot accepts


class Camera:
    """A field in videos.

    Parameters
    ----------
    content : Content
    name : str
        The field.
    times : callable
        Seconds of the rows of an episode.
    fps : float
    """

    def __init__(self, content: Content, name: str, times: Times, fps: float) -> None:
        self.content, self.name, self.times, self.fps = content, name, times, fps

    def rows(self, episode: int) -> Array:
        """Return (video, frame) of the steps of an episode, [T, 2]."""
        start, length = int(self.content.starts[episode]), int(self.content.table.length[episode])
        return self.content.video_rows(self.name, start, start + length)

    @cached_property
    def order(self) -> list[int]:
        """Videos in the order in which episodes use them: file K holds video ``order[K]``."""
        found = [first_references(self.rows(k)[:, 0]) for k in range(len(self.content.table))]
        return list(dict.fromkeys(number for of in found for number in of))

    @cached_property
    def number(self) -> dict[int, int]:
        """The file of each video."""
        return {video: k for k, video in enumerate(self.order)}

    @cached_property
    def introduces(self) -> dict[int, int]:
        """The first episode that shows each video."""
        found: dict[int, int] = {}
        for k in range(len(self.content.table)):
            for video in first_references(self.rows(k)[:, 0]):
                found.setdefault(video, k)
        return found

    def begin(self, episode: int) -> tuple[int, float] | None:
        """Return the video of an episode and when the episode begins in it; None if no time says that."""
        rows = self.rows(episode)
        video = int(rows[0, 0])
        if video < 0 or (rows[:, 0] != video).any():
            return None
        seconds = self._seconds(video)
        if (rows[:, 1] >= len(seconds)).any():
            return None
        times = self.times(episode)
        begin = float(seconds[rows[0, 1]] - times[0])
        begin = 0.0 if abs(begin) < _EXACT else begin
        shown = next((b for b in dict.fromkeys((begin, 0.0)) if self._finds(seconds, b, times, rows[:, 1])), None)
        return None if shown is None else (video, shown)

    def furthest(self) -> float:
        """Return the seconds from the time of a row to the frame that lerobot looks for, at most; inf if none is found.

        lerobot refuses frames further than `TOLERANCE` away.
        """
        found = 0.0
        for k in range(len(self.content.table)):
            place = self.begin(k)
            if place is None:
                return math.inf
            video, begin = place
            shown = self._seconds(video)[self.rows(k)[:, 1]]
            found = max(found, float(np.abs(shown - begin - self.times(k)).max(initial=0)))
        return found

    def is_apart(self) -> bool:
        """Return whether every episode has a video of its own that begins with it."""
        places = [self.begin(k) for k in range(len(self.content.table))]
        videos = [p[0] for p in places if p is not None and p[1] == 0]
        return len(videos) == len(places) == len(set(videos))

    def can_be_cut(self) -> bool:
        """Return whether a time would find every frame if every episode had a video of its own."""
        for k in range(len(self.content.table)):
            rows, times = self.rows(k), self.times(k)
            video = int(rows[0, 0])
            if video < 0 or (rows[:, 0] != video).any():
                return False
            seconds, first, last = self._seconds(video), int(rows[:, 1].min()), int(rows[:, 1].max())
            if last >= len(seconds):
                return False
            apart = seconds[first : last + 1] - seconds[first]
            if not self._finds(apart, 0.0, times, rows[:, 1] - first, counting=False):
                return False
        return True

    def is_mp4(self) -> bool:
        """Return whether all videos are MP4 files."""
        videos = self.content.videos(self.name)
        return all(video_files.is_mp4(videos.extent(number)) for number in range(len(videos)))

    def is_readable(self) -> bool:
        """Return whether a time finds every frame in the published videos."""
        return all(self.begin(k) is not None for k in range(len(self.content.table)))

    def write(self, video: int, path: Path) -> None:
        """Write the file of a video."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.content.video(self.name, video).write(path)

    def _seconds(self, video: int) -> Array:
        if video not in self._known:
            self._known.clear()
            self._known[video] = self.content.videos(self.name).video(video).track.seconds
        return self._known[video]

    @cached_property
    def _known(self) -> dict[int, Array]:
        return {}

    def _finds(self, seconds: Array, begin: float, times: Array, frames: Array, *, counting: bool = True) -> bool:
        """Return whether the frames nearest to some times are these, within half a frame; or all frames, counted.

        Frames are counted by rlds alone, and only in a video as it was published: a recorder may have two clocks.
        """
        wanted = begin + times
        if np.abs(seconds[frames] - wanted).max() <= 0.5 / self.fps:
            after = np.clip(np.searchsorted(seconds, wanted), 1, max(1, len(seconds) - 1))
            before = after - 1
            after = np.minimum(after, len(seconds) - 1)
            nearest = np.where(wanted - seconds[before] <= seconds[after] - wanted, before, after)
            return bool((nearest == frames).all())
        if not counting or begin != 0 or len(seconds) != len(frames) or (frames != np.arange(len(frames))).any():
            return False
        return not (np.abs(seconds - wanted) <= 0.5 / self.fps).all()
