"""Cameras in files beside a table: images that a column names, folders of images, and videos.

Images and videos count if the user named them together with the tables, as by their directory. A table that is alone
in its directory owns all folders of images and all videos there. Each of several tables in one directory owns those
that are called after it::

    ep_0/log.csv                        ep_0.npz
    ep_0/frames/0.jpg, 1.jpg, ...       ep_0/top/0.jpg, ...     ep_0_wrist.mp4      side/ep_0.mp4
    frames                              top                     wrist               side

Images and frames belong to the rows by their count. A video with another number of frames belongs to a table of one
episode by its column of time stamps: a row has the last frame that was shown by its time, and ``info/age/CAMERA`` is
the seconds since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import ArchivedStep
from rlds_cli.archives.names import EPISODE_PREFIX, free_name, has_essentials, is_observation, meaning
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.formats import camera_files
from rlds_cli.formats.camera_files import AGE, FILES, FOLDER, STEM, VIDEO, is_video_key
from rlds_cli.formats.tables import Table
from rlds_cli.ted import FLAGS, Array, IntArray, VideoFrames

TIMES = ("timestamp", "timestamps", "time", "times", "seconds")  # names of columns of time stamps, in seconds
GENERAL = ("images", "frames", "videos", "cameras", "rgb")  # folders of cameras, whose names say no more
SINGLE = "camera"  # the name of a camera whose files are called after the table alone


def beside(table: Table, tables: Sequence[Path], media: Sequence[Path], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of cameras that files beside a table hold, by field.

    Parameters
    ----------
    table : Table
    tables, media : sequence of Path
        The tables that are read together, and the images and videos that the user named with them: no others count.
    chosen : mapping of str to str
        The fields that the user mapped. If one is a camera, all are.
    """
    if not media or of(chosen):
        return {}
    own = {k: v for k, v in chosen.items() if not k.startswith(EPISODE_PREFIX)}
    what = meaning(table.columns, own, table.path.name)
    fields = {key: name for name, key in what.fields.items()}
    above = "" if "observation" in what.fields and has_essentials(what) else "observation/"
    rows = max((c.shape[0] for c in table.columns.values() if c.shape), default=0)
    found: dict[str, str] = {}
    for key, camera in {**_named(table), **_owned(table.path, tables, media)}.items():
        if not _fits(table, key, rows):
            continue
        if (known := fields.get(key.removeprefix(FILES))) is not None:
            found[known] = key
        else:
            name = camera if key.startswith(FILES) else f"{above}{camera}"
            found[free_name(name, {*what.fields, *found, *FLAGS})] = key
        if is_video_key(key) and table[key].shape[0] not in (rows, rows + 1):
            age = free_name(f"info/age/{camera}", {*what.fields, *found})
            found[age] = f"{AGE}{times_of(table)}:{key.removeprefix(VIDEO)}"
    return found


def of(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that are cameras in files beside a table, with their columns."""
    return {name: key for name, key in fields.items() if key.startswith(camera_files.KINDS)}


def _named(table: Table) -> dict[str, str]:
    """Return the columns of texts that name images, and what their cameras are called."""
    texts = [n for n, c in table.own.items() if len(c.shape) == 1 and c.shape[0] and h5py.check_string_dtype(c.dtype)]
    if not texts:
        return {}
    with table.rows(texts) as rows:
        first = {name: str(values[0]) for name, values in rows.read(0, 1).items()}
    images = [name for name in texts if camera_files.is_image(first[name])]
    return {FILES + name: name for name in images if camera_files.beside(table.path, first[name]).is_file()}


def _owned(table: Path, tables: Sequence[Path], media: Sequence[Path]) -> dict[str, str]:
    """Return the folders of images and the videos that a table owns, and what their cameras are called."""
    alone = sum(other.parent == table.parent for other in tables) == 1
    found: dict[str, str] = {}
    for path in dict.fromkeys(p if camera_files.is_video(p) else p.parent for p in media):
        if table.parent not in path.parents:
            continue
        is_folder = not camera_files.is_video(path)
        parts = path.relative_to(table.parent).parts
        pattern = parts if alone else _after(parts, table.stem)
        if pattern is not None:
            suffix = "" if is_folder else path.suffix
            found[(FOLDER if is_folder else VIDEO) + "/".join(pattern)] = _camera(pattern, suffix)
    return found


def _after(parts: Sequence[str], stem: str) -> Sequence[str] | None:
    """Put `STEM` for the name of a table in a path that is called after it; None for other paths."""
    for k, part in enumerate(parts):
        rest = part[len(stem) :]
        if part.startswith(stem) and rest[:1] in ("", "_", "-", "."):
            return [*parts[:k], STEM + rest, *parts[k + 1 :]]
    return None


def _camera(parts: Sequence[str], suffix: str) -> str:
    """Return what a camera is called by the path of its folder or video, in which `STEM` stands for the table."""
    own = "/".join(parts).removesuffix(suffix).split("/")
    known = [name for part in own if (name := part[len(STEM) + 1 :] if part.startswith(STEM) else part)]
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
    cameras = of(fields)
    others = [table[k].shape[0] for n, k in fields.items() if is_observation(n) and n not in cameras and table[k].shape]
    wanted, times, rules = max(others, default=rows), times_of(table), {}
    for name, key in cameras.items():
        is_video, count = is_video_key(key), table[key].shape[0]
        if count in (wanted, wanted + final):
            if is_video:
                rules[name] = "count"
            count = min(count, wanted) if others else count
        elif is_video and times is not None:
            rules[name], count = times, min(table[times].shape[0], wanted) if others else table[times].shape[0]
        else:
            what, counts = "frames" if is_video else "images", f"{wanted:,}{f' or {wanted + 1:,}' if final else ''}"
            by_time = f"a column of time stamps in seconds ({', '.join(TIMES)}) says which frame belongs to a row"
            raise UnknownLayout(
                f"{where}: {key} has {count:,} {what}; {counts} expected, one for each row.",
                hint=by_time if is_video else "rlds_cli.create takes lists of images",
            )
        table.columns[key] = replace(table[key], shape=(count,))
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
    return shown_at(camera_files.shown(track), times, f"{table.path.name}: {rule}")


def shown_at(shown: Array, times: Array, where: str) -> IntArray:
    """Return the number of the last frame that was shown by each time; times count from the first.

    ``shown`` [frames] is when each frame is shown, see `camera_files.shown`.

    Raises
    ------
    UnknownLayout
        Times go back, or are not numbers, or lie behind the end of the video by more than a frame.
    """
    since = times.astype(np.float64) - float(times[0])
    wrong = ~(np.diff(since, prepend=0.0) >= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UnknownLayout(f"{where} is {times[row]} at row {row:,}, which is not after the row before.")
    step = float(np.median(np.diff(shown))) if len(shown) > 1 else 0.0
    if since[-1] > shown[-1] + step + camera_files.LATE:
        raise UnknownLayout(
            f"{where} ends at {since[-1]:.3f} s, and the video at {shown[-1]:.3f} s.",
            hint="the video is of another recording, or was cut short",
        )
    return camera_files.last_shown(shown, since)


def of_videos(tables: Sequence[str], key: str, of: IntArray, numbers: IntArray) -> VideoFrames:
    """Return frames of the videos that ``key`` means beside tables, by the number of the table and of the frame."""
    videos = [camera_files.named(table, key) for table in tables]
    return VideoFrames(tuple(videos), np.stack([of, numbers], 1).astype(np.int32))


def mapped(place: ArchivedStep) -> dict[str, str]:
    """Return the columns that the user mapped, and those of the cameras that were found beside the table."""
    return {**{n: c["files"] for n, c in place.facts.get("cameras", {}).items()}, **place.fields}


def facts(fields: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, Any]:
    """Return what the manifest records of the cameras: their files, and what images belong to the rows by."""
    found = {name: {"files": key, "rows_by": rules.get(name, "count")} for name, key in of(fields).items()}
    return {"cameras": found} if found else {}
