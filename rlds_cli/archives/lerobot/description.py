"""``meta/``: what a dataset holds, and where each of its episodes lies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds_cli.archives.lerobot import tables
from rlds_cli.errors import CorruptArchive, UnknownLayout

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_SLOT = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_RANGE = re.compile(r"(\d+):(\d+)")
_STORAGE = "lerobot"  # what info.json calls Parquet and MP4 files, or leaves out
_V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_V3_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True, slots=True)
class Info:
    """``meta/info.json``. ``root`` is the directory of the dataset, ``major`` 2 or 3."""

    root: Path
    version: str
    major: int
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    episodes: int | None
    data_path: str
    video_path: str
    chunks_size: int
    splits: Mapping[str, str]
    robot: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """An episode as ``meta/`` lists it; ``videos`` are (file, seconds at which it begins there) by feature."""

    number: int
    length: int
    data: str
    videos: Mapping[str, tuple[str, float]] = field(default_factory=dict)


def candidates(paths: Sequence[Path]) -> list[Path]:
    """The files that are called ``meta/info.json``."""
    return [p for p in paths if p.parts[-2:] == ("meta", "info.json")]


def locate(paths: Sequence[Path]) -> Path | None:
    """The ``meta/info.json`` of a LeRobot dataset among files, or None.

    Raises
    ------
    UnknownLayout
        There are several.
    """
    found = candidates(paths)
    if len(found) > 1:
        raise UnknownLayout(
            f"There are {len(found)} LeRobot datasets, the first in {found[0].parents[1]}.", hint="name one of them"
        )
    return found[0] if found else None


def read(path: Path) -> Info:
    """Read ``meta/info.json``.

    Raises
    ------
    CorruptArchive
        It is no JSON object, or lacks something.
    UnknownLayout
        It is of a version, or a storage format, that is not read.
    """
    content = tables.json_of(path)
    try:
        version, features = str(content["codebase_version"]), content["features"]
        match = _VERSION.fullmatch(version)
        major = int(match[1]) if match else 0
        if major not in (2, 3):
            raise UnknownLayout(
                f"{path}: LeRobot's layout {version} is not read; v2.0, v2.1 and v3.0 are.",
                hint="lerobot has scripts that convert a dataset from one version to the next",
            )
        if (storage := content.get("storage_format")) not in (None, _STORAGE):
            raise UnknownLayout(
                f'{path}: the storage_format "{storage}" is not read; "{_STORAGE}", which is Parquet and MP4, is.',
                hint=f'with lerobot, write the dataset as "{_STORAGE}"',
            )
        if not all(isinstance(f, dict) and "dtype" in f for f in features.values()):
            raise ValueError("features without a dtype")
        return Info(
            root=path.parents[1],
            version=version,
            major=major,
            fps=float(content["fps"]),
            features=features,
            episodes=content.get("total_episodes"),
            data_path=content.get("data_path") or (_V2_DATA if major == 2 else _V3_DATA),
            video_path=content.get("video_path") or (_V2_VIDEO if major == 2 else _V3_VIDEO),
            chunks_size=int(content.get("chunks_size") or 1000),
            splits={str(k): str(v) for k, v in (content.get("splits") or {}).items()},
            robot=content.get("robot_type"),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise CorruptArchive(f"{path} is not what LeRobot writes ({type(e).__name__}: {e}).") from e


def episodes(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> list[Listed]:
    """All episodes in order, with their files as ``meta/`` names them, relative to the dataset.

    Raises
    ------
    CorruptArchive
        A list is missing, damaged, or does not count up.
    """
    found = sorted(_v2(info, files, cameras) if info.major == 2 else _v3(info, files, cameras), key=lambda e: e.number)
    numbers = [e.number for e in found]
    if len(set(numbers)) != len(numbers):
        raise CorruptArchive(f"{info.root / 'meta'} lists an episode twice.")
    if info.episodes is not None and len(found) < info.episodes:
        raise CorruptArchive(
            f"{info.root / 'meta'} lists {len(found):,} episodes; info.json says {info.episodes:,}.",
            hint="a file of meta/ may be missing: fetch it again",
        )
    return found


def _v2(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> Iterator[Listed]:
    for line in tables.json_lines(_only(info, files, "meta/episodes.jsonl")):
        try:
            number, length = int(line["episode_index"]), int(line["length"])
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise CorruptArchive(f"meta/episodes.jsonl: {e!r} in a line.") from e
        slots = {"episode_chunk": number // info.chunks_size, "episode_index": number}
        videos = {key: (fill(info.video_path, slots | {"video_key": key}), 0.0) for key in cameras}
        yield Listed(number, length, fill(info.data_path, slots), videos)


def _v3(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> Iterator[Listed]:
    lists = [f for f in files if f.suffix == ".parquet" and f.is_relative_to(info.root / "meta" / "episodes")]
    if not lists:
        raise CorruptArchive(f"{info.root} has no meta/episodes/.", hint="fetch it again")
    per_camera = ("chunk_index", "file_index", "from_timestamp")
    wanted = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    wanted += [f"videos/{key}/{name}" for key in cameras for name in per_camera]
    for path in lists:
        for row in tables.table(path, wanted).to_pylist():
            try:
                slots = {"chunk_index": int(row["data/chunk_index"]), "file_index": int(row["data/file_index"])}
                videos = {key: _v3_video(info, row, key) for key in cameras}
                yield Listed(int(row["episode_index"]), int(row["length"]), fill(info.data_path, slots), videos)
            except (KeyError, TypeError, ValueError, OverflowError) as e:
                raise CorruptArchive(f"{path}: {e!r} in a row.") from e


def _v3_video(info: Info, row: Mapping[str, Any], key: str) -> tuple[str, float]:
    chunk, file = int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"])
    slots: dict[str, int | str] = {"video_key": key, "chunk_index": chunk, "file_index": file}
    return fill(info.video_path, slots), float(row[f"videos/{key}/from_timestamp"])


def tasks(info: Info, files: Sequence[Path]) -> dict[int, str]:
    """The tasks by number; in v3 their texts are the index of a data frame."""
    if info.major == 2:
        path = info.root / "meta" / "tasks.jsonl"
        lines = tables.json_lines(path) if path in files else iter(())
        return {int(line["task_index"]): str(line["task"]) for line in lines if {"task_index", "task"} <= set(line)}
    path = info.root / "meta" / "tasks.parquet"
    if path not in files:
        return {}
    table = tables.table(path)
    texts = next((n for n in ("__index_level_0__", "task", *table.column_names) if n in table.column_names), "")
    if "task_index" not in table.column_names or texts == "task_index":
        raise CorruptArchive(f"{path} has the columns {', '.join(table.column_names)}; task_index and texts expected.")
    return dict(zip(table["task_index"].to_pylist(), map(str, table[texts].to_pylist()), strict=True))


def splits(info: Info, number: int) -> tuple[str, ...]:
    """The named splits that an episode is in."""
    ranges = ((name, _RANGE.fullmatch(text)) for name, text in info.splits.items())
    return tuple(name for name, r in ranges if r and int(r[1]) <= number < int(r[2]))


def odd_splits(info: Info) -> list[str]:
    """Splits that are no range of episodes."""
    return [name for name, text in info.splits.items() if not _RANGE.fullmatch(text)]


def fill(template: str, slots: Mapping[str, int | str]) -> str:
    """A path of ``info.json`` with its slots filled in; nothing but names and widths counts."""

    def slot(match: re.Match[str]) -> str:
        if match[1] not in slots:
            raise UnknownLayout(f'info.json: the path "{template}" asks for {match[1]}.')
        return str(slots[match[1]]).rjust(int(match[2] or 0), "0")

    return _SLOT.sub(slot, template)


def _only(info: Info, files: Sequence[Path], name: str) -> Path:
    path = info.root / name
    if path not in files:
        raise CorruptArchive(f"{path} is missing.", hint="fetch it again")
    return path
