"""Cameras in files beside a table: images that a column names, folders of images, and videos.

Images and videos count if the user named them together with the tables, as by their directory. A table that is alone
in its directory owns all folders of images and all videos there. Each of several tables in one directory owns those
that are called after it::

    ep_0/log.csv                        ep_0.npz
    ep_0/frames/0.jpg, 1.jpg, ...       ep_0/top/0.jpg, ...     ep_0_wrist.mp4      side/ep_0.mp4
    frames                              top                     wrist               side

Images and frames belong to the rows by their count. A video with another number of frames belongs to a table of one
episode by its column of time stamps: a row has the last frame that was shown by its time, and ``info/age/CAMERA`` is
the seconds since. `camera_search` finds the cameras, and what they belong to rows by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from rlds_cli.archives.formats import camera_files
from rlds_cli.archives.formats.camera_files import AGE, SINCE, STEM, VIDEO, age_of, is_video_key
from rlds_cli.archives.formats.tables import Table
from rlds_cli.archives.names import is_observation
from rlds_cli.archives.readers import ArchivedStep
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import VideoFrames

TIMES = ("timestamp", "timestamps", "time", "times", "seconds")  # names of columns of time stamps, in seconds
GENERAL = ("images", "frames", "videos", "cameras", "rgb")  # folders of cameras, whose names say no more
SINGLE = "camera"  # the name of a camera whose files are called after the table alone


def of(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that are cameras in files beside a table, with their columns."""
    return {name: key for name, key in fields.items() if key.startswith(camera_files.KINDS)}


def computed(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields that are worked out from the times of frames: ages."""
    return tuple(name for name, key in fields.items() if key.startswith(AGE))


def name_of(key: str) -> str:
    """Return what a camera is called by its folder or video, in whose name `STEM` stands for the table."""
    name = key.partition(":")[2]
    own = name.removesuffix(PurePosixPath(name).suffix if is_video_key(key) else "").split("/")
    known = [n for part in own if (n := part[len(STEM) + 1 :] if part.startswith(STEM) else part)]
    special = [part for part in known if part.lower() not in GENERAL]
    return "/".join(special or known[:1]) or SINGLE


def times_of(table: Table) -> str | None:
    """Return the column of time stamps of a table, in seconds; None if it has none."""
    for name, c in table.columns.items():
        if name.lower() in TIMES and c.dtype.kind == "f" and c.shape[1:] in ((), (1,)):
            return name
    return None


def fit(table: Table, fields: Mapping[str, str], rows: int, where: str, *, final: bool) -> dict[str, str]:
    """Let cameras have as many rows as other observations, or as there are steps; return the rule for each video.

    The rule is the column of time stamps of its ages, else ``count``. With ``final``, there may be an image of the
    final observation.

    Raises
    ------
    UnknownLayout
        A camera has too few or too many images, and no time stamps say which belong to the rows.
    """
    cameras = of(fields)
    others = [table[k].shape[0] for n, k in fields.items() if is_observation(n) and n not in cameras and table[k].shape]
    wanted, rules = max(others, default=rows), {}
    for name, key in cameras.items():
        is_video, count = is_video_key(key), table[key].shape[0]
        times = times_for(fields, key)
        if times is not None:
            table.derive([times])
            rules[name], count = times, min(table[times].shape[0], wanted) if others else table[times].shape[0]
        elif count in (wanted, wanted + final):
            if is_video:
                rules[name] = "count"
            count = min(count, wanted) if others else count
        else:
            what, file = "frames" if is_video else "images", camera_files.named(table.path.name, key)
            by_time = f"a column of time stamps in seconds ({', '.join(TIMES)}) says which frame belongs to a row"
            raise UnknownLayout(
                f"{where}: {file} has {count:,} {what} for {wanted:,} rows; one for each row is expected"
                f"{', or one more' if final else ''}.",
                hint=by_time if is_video else "a column of their names says which image belongs to a row",
            )
        table.columns[key] = replace(table[key], shape=(count,))
    return rules


def times_for(fields: Mapping[str, str], key: str) -> str | None:
    """Return the column of time stamps by which the frames of a video belong to rows; None if they do by count."""
    ages = map(age_of, (age for age in fields.values() if age.startswith(AGE)))
    return next((times for times, video in ages if VIDEO + video == key), None)


def frames(table: Table, key: str, rule: str, count: int) -> IntArray:
    """Return the numbers of the frames of the first ``count`` rows of a table, by a rule of `fit`.

    Raises
    ------
    UnknownLayout
        The time stamps are not those of the video.
    """
    if rule == "count":
        return np.arange(count)
    track = camera_files.track(camera_files.beside(table.path, key.partition(":")[2]))
    table.derive([rule])
    with table.rows([rule]) as rows:
        times = rows.read(0, count)[rule].reshape(-1)
    return shown_at(camera_files.shown(track), times, f"{table.path.name}: {rule.removeprefix(SINCE)}")


def end_of(shown: Array) -> float:
    """Return when the last frame of a video ends, in seconds since the first one was shown."""
    step = float(np.median(np.diff(shown))) if len(shown) > 1 else 0.0
    return float(shown[-1]) + step + camera_files.LATE


def shown_at(shown: Array, times: Array, where: str) -> IntArray:
    """Return the number of the last frame that was shown by each time, in seconds since the first frame was shown.

    ``shown`` [frames] is when each frame is shown, see `camera_files.shown`.

    Raises
    ------
    UnknownLayout
        Times go back, or are not numbers, or lie before the video, or behind its end by more than a frame.
    """
    seconds = times.astype(np.float64)
    wrong = ~(np.diff(seconds, prepend=seconds[:1]) >= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UnknownLayout(f"{where} is {times[row]} at row {row:,}, which is not after the row before.")
    if len(seconds) and (seconds[0] < -camera_files.LATE or seconds[-1] > end_of(shown)):
        raise UnknownLayout(
            f"{where} has rows from {seconds[0]:.3f} to {seconds[-1]:.3f} s, and the video frames from 0 to "
            f"{shown[-1]:.3f} s.",
            hint="the video is of another recording, or was cut short",
        )
    return camera_files.last_shown(shown, seconds)


def of_videos(tables: Sequence[str], key: str, of: IntArray, numbers: IntArray) -> VideoFrames:
    """Return frames of the videos that ``key`` means beside tables, by the number of the table and of the frame."""
    videos = [camera_files.named(table, key) for table in tables]
    return VideoFrames(tuple(videos), np.stack([of, numbers], 1).astype(np.int32))


def mapped(place: ArchivedStep) -> dict[str, str]:
    """Return the columns that the user mapped, and those of the cameras that were found beside the table."""
    found = {name: camera["files"] for name, camera in place.facts.get("cameras", {}).items()}
    ages = {name: key for name, key in place.facts.get("fields", {}).items() if key.startswith(AGE)}
    return {**place.fields, **found, **ages}


def facts(fields: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, Any]:
    """Return what the manifest records of the cameras: their files, and what images belong to the rows by."""
    by = {name: rule.removeprefix(SINCE) for name, rule in rules.items()}
    found = {name: {"files": key, "rows_by": by.get(name, "count")} for name, key in of(fields).items()}
    return {"cameras": found} if found else {}
