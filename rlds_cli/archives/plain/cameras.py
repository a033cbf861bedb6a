"""Cameras in files beside a table: images that a column names, folders of images, and videos.

A table that is alone in its directory owns all folders of images and all videos there. Of several tables in one
directory, each owns those that are called after it::

    ep_0/log.csv                        ep_0.npz
    ep_0/frames/0.jpg, 1.jpg, ...       ep_0/top/0.jpg, ...     ep_0_wrist.mp4      side/ep_0.mp4
    frames                              top                     wrist               side

Images and frames belong to the rows by their count. A video with another number of frames belongs to a table of one
episode by its column of time stamps: a row has the last frame that was shown by its time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import ArchivedStep
from rlds_cli.archives.names import EPISODE_PREFIX, free_name, has_essentials, is_observation, meaning
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.formats import camera_files
from rlds_cli.formats.camera_files import FILES, FOLDER, STEM, VIDEO, is_video_key
from rlds_cli.formats.tables import TABLES, Table
from rlds_cli.ted import FLAGS, Array, IntArray, VideoFrames

TIMES = ("timestamp", "timestamps", "time", "times", "seconds")  # names of columns of time stamps, in seconds
GENERAL = ("images", "frames", "videos", "cameras", "rgb")  # folders of cameras, whose names say no more
SINGLE = "camera"  # the name of a camera whose files are called after the table alone
DEPTH, MOST = 2, 1 << 12  # of folders that are looked at, and entries of a folder
LATE = 1e-6  # seconds: rounding of time stamps


def beside(table: Table, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of cameras that the files beside a table hold, by field, but for fields of the user's."""
    if any(key.startswith(camera_files.KINDS) for key in chosen.values()) or not _has_media(table.path):
        return {}
    keys = {**_named(table), **_owned(table.path)}
    if not keys:
        return {}
    own = {k: v for k, v in chosen.items() if not k.startswith(EPISODE_PREFIX)}
    what = meaning(table.columns, own, table.path.name)
    fields = {key: name for name, key in what.fields.items()}
    rows = max((c.shape[0] for c in table.columns.values() if c.shape), default=0)
    found: dict[str, str] = {}
    for key, camera in keys.items():
        if not _fits(table, key, rows):
            continue
        text = key.removeprefix(FILES)
        above = "" if "observation" in what.fields and has_essentials(what) else "observation/"
        name = fields.get(text) or (camera if key.startswith(FILES) else f"{above}{camera}")
        found[name if name in fields.values() else free_name(name, {*what.fields, *found, *FLAGS})] = key
    return found


def _has_media(table: Path) -> bool:
    """Tell whether the directory of a table has folders, images or videos."""
    return any(entry.is_dir() or camera_files.is_media(Path(entry.name)) for entry in _entries(table.parent))


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            some = [entry for entry, _ in zip(entries, range(MOST), strict=False)]
    except OSError:
        return
    yield from (e for e in sorted(some, key=lambda e: e.name) if not e.name.startswith("."))


def _named(table: Table) -> dict[str, str]:
    """Return the columns of texts that name images, and what their cameras are called."""
    found = {}
    for name, c in table.own.items():
        if len(c.shape) != 1 or not c.shape[0] or h5py.check_string_dtype(c.dtype) is None:
            continue
        with table.rows([name]) as rows:
            first = str(rows.read(0, 1)[name][0])
        if camera_files.is_image(first) and camera_files.beside(table.path, first).is_file():
            found[FILES + name] = name
    return found


def _owned(table: Path) -> dict[str, str]:
    """Return the folders of images and the videos that a table owns, and what their cameras are called."""
    tables = [e.name for e in _entries(table.parent) if e.is_file() and Path(e.name).suffix.lower() in TABLES]
    alone = len(tables) == 1
    found: dict[str, str] = {}
    for path, is_folder in _media(table.parent, DEPTH):
        name = path.relative_to(table.parent).as_posix()
        camera = _camera(name if is_folder else name.removesuffix(path.suffix), table.stem, alone=alone)
        if camera is not None:
            pattern = "/".join(part.replace(table.stem, STEM, 1) if not alone else part for part in name.split("/"))
            found[(FOLDER if is_folder else VIDEO) + pattern] = camera
    return found


def _media(directory: Path, depth: int) -> Iterator[tuple[Path, bool]]:
    """Yield videos, and folders with images; True for folders."""
    for entry in _entries(directory):
        path = Path(entry.path)
        if entry.is_dir():
            if camera_files.in_folder(path):
                yield path, True
            if depth:
                yield from _media(path, depth - 1)
        elif path.suffix.lower() in camera_files.VIDEOS:
            yield path, False


def _camera(name: str, stem: str, *, alone: bool) -> str | None:
    """Return what a camera is called by its folder or video; None if another table owns it."""
    parts = name.split("/")
    if not alone:
        owned = [
            k for k, part in enumerate(parts) if part == stem or part.startswith((f"{stem}_", f"{stem}-", f"{stem}."))
        ]
        if not owned:
            return None
        parts[owned[0]] = parts[owned[0]][len(stem) + 1 :]
    known = [part for part in parts if part]
    special = [part for part in known if part.lower() not in GENERAL]
    return "/".join(special or known[:1]) or SINGLE


def _fits(table: Table, key: str, rows: int) -> bool:
    """Tell whether a camera has an image for each row, or can be matched by time stamps."""
    try:
        table.derive([key])
    except ArchiveError:
        if is_video_key(key):  # which is not left out silently
            raise
        return False
    return table[key].shape[0] in (rows, rows + 1) or (is_video_key(key) and times_of(table) is not None)


def times_of(table: Table) -> str | None:
    """Return the column of time stamps of a table, in seconds; None if it has none."""
    for name, c in table.columns.items():
        if name.lower() in TIMES and c.dtype.kind == "f" and c.shape[1:] in ((), (1,)):
            return name
    return None


def fit(table: Table, fields: Mapping[str, str], rows: int, where: str, *, final: bool) -> dict[str, str]:
    """Let cameras have as many rows as other observations, or as there are steps; return the rule for each video.

    The rule is ``count`` or the column of time stamps. With ``final``, there may be an image of the final observation.

    Raises
    ------
    UnknownLayout
        A camera has too few or too many images, and no time stamps say which belong to the rows.
    """
    cameras = {name: key for name, key in fields.items() if key.startswith(camera_files.KINDS)}
    others = [table[k].shape[0] for n, k in fields.items() if is_observation(n) and n not in cameras and table[k].shape]
    wanted, rules = max(others, default=0), {}
    expected = [wanted or rows, *([(wanted or rows) + 1] if final else [])]
    for name, key in cameras.items():
        is_video, count, times = is_video_key(key), table[key].shape[0], times_of(table)
        if is_video:
            rules[name] = "count"
        if count not in expected:
            if not is_video or times is None:
                counts = " or ".join(f"{n:,}" for n in expected)
                raise UnknownLayout(
                    f"{where}: {key} has {count:,} {'frames' if is_video else 'images'}; {counts} expected, one for "
                    "each row.",
                    hint=f"a column of time stamps in seconds ({', '.join(TIMES)}) says which frame belongs to a row"
                    if is_video
                    else "rlds_cli.create takes lists of images",
                )
            rules[name], count = times, table[times].shape[0]
        table.columns[key] = replace(table[key], shape=(min(count, wanted) if wanted else count,))
    return rules


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
    with table.rows([rule]) as rows:
        times = rows.read(0, count)[rule].reshape(-1)
    return shown_at(track.seconds, times, f"{table.path.name}: {rule}")


def shown_at(seconds: Array, times: Array, where: str) -> IntArray:
    """Return the number of the last frame that was shown by each time; times count from the first.

    Raises
    ------
    UnknownLayout
        Times go back, or are no numbers, or lie behind the end of the video by more than a frame.
    """
    since = times.astype(np.float64) - float(times[0])
    wrong = ~(np.diff(since, prepend=0.0) >= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UnknownLayout(f"{where} is {times[row]} at row {row:,}, which is not after the row before.")
    shown = seconds - seconds[0]
    step = float(np.median(np.diff(shown))) if len(shown) > 1 else 0.0
    if since[-1] > shown[-1] + step + LATE:
        raise UnknownLayout(
            f"{where} ends at {since[-1]:.3f} s, and the video at {shown[-1]:.3f} s.",
            hint="the video is of another recording, or was cut short",
        )
    return np.asarray(np.searchsorted(shown, since + LATE, "right") - 1)


def of_videos(tables: Sequence[str], key: str, of: IntArray, numbers: IntArray) -> VideoFrames:
    """Return frames of the videos that ``key`` means beside tables, by the number of the table and of the frame."""
    videos = [camera_files.named(table, key) for table in tables]
    return VideoFrames(tuple(videos), np.stack([of, numbers], 1).astype(np.int32))


def mapped(place: ArchivedStep) -> dict[str, str]:
    """Return the columns that the user mapped, and those of the cameras that were found beside the table."""
    return {**{n: c["files"] for n, c in place.facts.get("cameras", {}).items()}, **place.fields}


def facts(fields: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, Any]:
    """Return what the manifest records of the cameras: their files, and what images belong to the rows by."""
    cameras = {name: key for name, key in fields.items() if key.startswith(camera_files.KINDS)}
    return (
        {"cameras": {n: {"files": k, "rows_by": rules.get(n, "count")} for n, k in cameras.items()}} if cameras else {}
    )
