"""``meta/`` of a LeRobot dataset, and its tables: the files and rows of each episode.

Parquet and JSON lines are read with errors that name the file.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import exported
from rlds_cli.archives.exported import EXPORTED, ExportedFile
from rlds_cli.archives.formats import image_columns, parquet
from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.archives.lerobot import subtasks
from rlds_cli.archives.lerobot.names import COUNTED as COUNTED
from rlds_cli.archives.lerobot.names import LANGUAGE as LANGUAGE
from rlds_cli.archives.lerobot.names import TASK as TASK
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.errors import CorruptArchive, InvalidEpisode, UnknownLayout, UnsafeArchive
from rlds_cli.ted import EncodedFrames, Field

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_SLOT = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_RANGE = re.compile(r"(\d+):(\d+)")
_STORAGE = "lerobot"  # what info.json calls Parquet and MP4 files, or leaves out
_V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_V3_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_SEED_DIGITS = 20  # of 64 bits


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
class ListedEpisode:
    """An episode as ``meta/`` lists it; ``videos`` are (file, start in seconds) by feature.

    ``about`` are its ``seed``, its ``options`` and the user's own columns, ``own``, of exported datasets. ``tasks`` is
    the number of its tasks, and ``first`` the row of the whole dataset that is said to be its first one.
    """

    number: int
    length: int
    data: str
    videos: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    tasks: int = 1
    first: int | None = None


_FIRST = "dataset_from_index"
_BESIDE_INFO = ("episodes.jsonl", "tasks.jsonl", "tasks.parquet", "episodes_stats.jsonl")


def candidates(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are called ``meta/info.json``."""
    return [p for p in paths if os.fspath(p).endswith("/meta/info.json")]  # of thousands of images, too


def told_beside(paths: Sequence[Path]) -> Path | None:
    """Return the root of a LeRobot dataset among files, by the lists that lie beside ``meta/info.json``."""
    inside = [p for p in paths if "/meta/" in os.fspath(p)]
    told = (p for p in inside if p.parent.name == "meta" and p.name in _BESIDE_INFO)
    roots = (*(p.parents[1] for p in told), *(p.parents[3] for p in inside if p.parts[-4:-2] == ("meta", "episodes")))
    return next((root for root in roots if (root / "data").is_dir()), None)


def locate(paths: Sequence[Path]) -> Path | None:
    """Find the ``meta/info.json`` of a LeRobot dataset among files; None if there is none.

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
        It is not a JSON object, or lacks something.
    UnknownLayout
        It is of a version, or a storage format, that is not read.
    """
    content = json_of(path)
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
        if len(features) > MAX_COLUMNS:
            raise UnsafeArchive(f"{path} has {len(features):,} features; at most {MAX_COLUMNS:,} are read.")
        fps = content["fps"]
        if not isinstance(fps, int | float) or isinstance(fps, bool) or not fps > 0:
            raise ValueError(f"fps is {fps!r}")
        return Info(
            root=path.parents[1],
            version=version,
            major=major,
            fps=float(fps),
            features=features,
            episodes=content.get("total_episodes"),
            data_path=content.get("data_path") or (_V2_DATA if major == 2 else _V3_DATA),
            video_path=content.get("video_path") or (_V2_VIDEO if major == 2 else _V3_VIDEO),
            chunks_size=int(content.get("chunks_size") or 1000),
            splits={str(k): str(v) for k, v in (content.get("splits") or {}).items()},
            robot=content.get("robot_type"),
        )
    except KeyError as e:
        raise CorruptArchive(f"{path} does not say {e}, as LeRobot's does.", hint="fetch it again") from e
    except (TypeError, ValueError, OverflowError, AttributeError) as e:
        raise CorruptArchive(f"{path} is not a LeRobot file ({type(e).__name__}: {e}).") from e


def episodes(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> list[ListedEpisode]:
    """Return all episodes in order, with their files as ``meta/`` names them, relative to the dataset.

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


def before(info: Info) -> ExportedFile:
    """Return what an export says of the columns, if the dataset is one of rlds that was exported."""
    return exported.read(info.root / "meta" / EXPORTED)


def _about(said: ExportedFile, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return seed, options and own columns of an episode, from its row in ``meta/``."""
    seed, options = (None if key is None else row.get(key) for key in (said.seed, said.options))
    if isinstance(seed, str) and seed.isdecimal() and len(seed) <= _SEED_DIGITS:
        seed = int(seed)
    if seed is not None and not (type(seed) is int and 0 <= seed < 1 << 64):
        raise ValueError(f"the seed {seed!r}")
    if options is not None and not isinstance(options, str):
        raise ValueError(f"the options {options!r}")
    own = {name: row.get(key) for name, key in said.own.items()}
    odd = next((v for v in own.values() if not (v is None or isinstance(v, bool | int | float | str))), None)
    if odd is not None:
        raise ValueError(f"{odd!r} in a column of episodes")
    about = {"seed": seed, "options": options, "own": own}
    return {key: value for key, value in about.items() if value is not None and value != {}}


def _v2(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> Iterator[ListedEpisode]:
    said = before(info)
    for line in json_lines(_only(info, files, "meta/episodes.jsonl")):
        try:
            number, length, about = int(line["episode_index"]), int(line["length"]), _about(said, line)
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise CorruptArchive(f"meta/episodes.jsonl: {e!r} in a line.") from e
        slots = {"episode_chunk": number // info.chunks_size, "episode_index": number}
        videos = {key: (fill(info.video_path, slots | {"video_key": key}), 0.0) for key in cameras}
        yield ListedEpisode(number, length, fill(info.data_path, slots), videos, about, _num_tasks(line))


def _v3(info: Info, files: Sequence[Path], cameras: Sequence[str]) -> Iterator[ListedEpisode]:
    lists = [f for f in files if f.suffix == ".parquet" and f.is_relative_to(info.root / "meta" / "episodes")]
    if not lists:
        raise CorruptArchive(f"{info.root} has no meta/episodes/.", hint="fetch it again")
    per_camera = ("chunk_index", "file_index", "from_timestamp")
    wanted = ["episode_index", "length", "data/chunk_index", "data/file_index", "tasks", _FIRST]
    wanted += [f"videos/{key}/{name}" for key in cameras for name in per_camera]
    said = before(info)
    wanted += [key for key in (said.seed, said.options, *said.own.values()) if key]
    for path in lists:
        told = subtasks.lists_of(schema(path).names)
        for row in read_table(path, [*wanted, *(key for keys in told.values() for key in keys)]).to_pylist():
            try:
                slots = {"chunk_index": int(row["data/chunk_index"]), "file_index": int(row["data/file_index"])}
                videos = {key: _v3_video(info, row, key) for key in cameras}
                number, length = int(row["episode_index"]), int(row["length"])
                about, data = _about(said, row), fill(info.data_path, slots)
                if told:
                    about = {**about, "own": {**about.get("own", {}), **subtasks.told(row, length)}}
                first = row.get(_FIRST)
                yield ListedEpisode(number, length, data, videos, about, _num_tasks(row), first)
            except InvalidEpisode as e:
                raise CorruptArchive(f"{path}: {e.message}") from e
            except (KeyError, TypeError, ValueError, OverflowError) as e:
                raise CorruptArchive(f"{path}: {e!r} in a row.") from e


def _num_tasks(row: Mapping[str, Any]) -> int:
    listed = row.get("tasks")
    return len(listed) if isinstance(listed, list) else 1


def _v3_video(info: Info, row: Mapping[str, Any], key: str) -> tuple[str, float]:
    chunk, file = int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"])
    slots: dict[str, int | str] = {"video_key": key, "chunk_index": chunk, "file_index": file}
    return fill(info.video_path, slots), float(row[f"videos/{key}/from_timestamp"])


def tasks(info: Info, files: Sequence[Path]) -> dict[int, str | None]:
    """Return the tasks by number, None for one without a text; in v3 their texts are the index of a data frame.

    Raises
    ------
    CorruptArchive
        The list is missing or damaged.
    """
    path = _only(info, files, "meta/tasks.jsonl" if info.major == 2 else "meta/tasks.parquet")
    return numbered(path, "task")


def numbered(path: Path, what: str) -> dict[int, str | None]:
    """Return the texts of a list by number, ``WHAT_index``; raises CorruptArchive as `tasks`."""
    index = f"{what}_index"
    if path.suffix == ".jsonl":
        listed = [(line.get(index), line.get(what)) for line in json_lines(path)]
    else:
        table = read_table(path)
        texts = next((n for n in ("__index_level_0__", what, *table.column_names) if n in table.column_names), "")
        if index not in table.column_names or texts == index:
            names = ", ".join(table.column_names)
            raise CorruptArchive(f"{path} has the columns {names}; {index} and texts expected.")
        listed = list(zip(table[index].to_pylist(), table[texts].to_pylist(), strict=True))
    found: dict[int, str | None] = {}
    for number, text in listed:
        if type(number) is not int or not (text is None or isinstance(text, str | int | float)):
            raise CorruptArchive(
                f"{path}: the {what} number {number!r} with the text {text!r}.", hint="correct the list"
            )
        found[number] = None if text is None else str(text)
    return found


def splits(info: Info, number: int) -> tuple[str, ...]:
    """Return the named splits that an episode is in."""
    ranges = ((name, _RANGE.fullmatch(text)) for name, text in info.splits.items())
    return tuple(name for name, r in ranges if r and int(r[1]) <= number < int(r[2]))


def odd_splits(info: Info) -> list[str]:
    """Find the splits that are not a range of episodes."""
    return [name for name, text in info.splits.items() if not _RANGE.fullmatch(text)]


def fill(template: str, slots: Mapping[str, int | str]) -> str:
    """Fill in the slots of a path of ``info.json``; only names and widths count."""

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


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Give access to pyarrow, and turn its errors into ours."""
    pa = parquet.pyarrow()
    try:
        yield pa
    except (pa.ArrowException, OSError, KeyError, UnicodeError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def schema(path: Path) -> Any:
    """Read the columns of a Parquet file."""
    with reading(path) as pa:
        return pa.parquet.read_schema(path)


def rows(path: Path) -> int:
    """Return the number of rows of a Parquet file."""
    with reading(path) as pa:
        return int(pa.parquet.read_metadata(path).num_rows)


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Read a Parquet file, or those of some columns that it has."""
    with reading(path) as pa, parquet.opened(path) as file:
        there = file.schema_arrow.names
        chosen = there if columns is None else [c for c in columns if c in there]
        schema = pa.schema([file.schema_arrow.field(c) for c in chosen])
        return pa.Table.from_batches(parquet.batches(file, path, chosen, parquet.BATCH_ROWS), schema)


def batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[Any]:
    """Read the rows of a Parquet file, so many at a time."""
    # Maps of files count as memory in use. They are needed only where a row group is the whole file.
    with reading(path) as pa:
        mapped = pa.parquet.read_metadata(path).num_row_groups == 1
    with reading(path), parquet.opened(path, memory_map=mapped, pre_buffer=False) as file:
        yield from parquet.batches(file, path, columns, rows)


def joined(batches: Sequence[Any]) -> Any:
    """Join batches of the same columns to a table."""
    return parquet.pyarrow().Table.from_batches([b.replace_schema_metadata(None) for b in batches])


def json_of(path: Path) -> Any:
    """Read the content of a JSON file."""
    try:
        return documents.load(path)
    except (OSError, ValueError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a file that has one per line."""
    try:
        with path.open(encoding="utf-8") as f:
            while line := f.readline(documents.LONGEST + 1):
                if line.strip():
                    value = documents.loads(line)
                    if not isinstance(value, dict):
                        raise ValueError(f"a line is a {type(value).__name__}")
                    yield value
    except (OSError, ValueError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def values(column: Any, out: Array, where: str) -> None:
    """Fill ``out`` [n, ...] with a column of numbers, flags, or lists of them."""
    array = column.combine_chunks()
    while hasattr(array.type, "value_type"):
        if array.null_count:
            raise UnknownLayout(f"{where} has rows without a value, which an array of numbers cannot hold.")
        array = array.flatten()
    if array.null_count and out.dtype.kind != "f":
        raise UnknownLayout(f"{where} lacks {array.null_count:,} values, which {out.dtype} does not hold.")
    found = array.to_numpy(zero_copy_only=False)
    if found.size != out.size:
        raise CorruptArchive(f"{where} has {found.size:,} values in {len(out):,} rows of shape {list(out.shape[1:])}.")
    out[...] = found.reshape(out.shape)


def json_texts(column: Any) -> list[str | None]:
    """Convert a column of structs, lists or anything else to the text of each row's JSON.

    Keys stay in the order of the file. NaN and infinities become null, bytes base64, and dates texts.
    """
    return [None if v is None else json_text(v) for v in column.to_pylist()]


def json_text(value: Any) -> str:
    """Convert a value of a column to JSON; see `json_texts`."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def images(column: Any, where: str) -> EncodedFrames:
    """Read a column of images, ``struct<bytes, path>``, as they are encoded."""
    pa = parquet.pyarrow("compute")
    array = column.combine_chunks()
    if hasattr(array, "field"):
        array = pa.compute.struct_field(array, "bytes")
    if array.null_count:
        raise UnknownLayout(
            f"{where}: {array.null_count:,} rows hold no image; those of LeRobot hold its bytes, not its path alone.",
            hint="with lerobot, write the dataset with the images in it",
        )
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    view = content.data
    for row, (a, b) in enumerate(pairwise(ends.tolist())):
        if wrong := image_columns.damage(view[a:b]):
            raise CorruptArchive(f"{where}, row {row} of a block: {wrong}.", hint="fetch it again")
    return EncodedFrames(content[ends[0] : ends[-1]], np.diff(ends))


def frames(column: Any, where: str, f: Field) -> EncodedFrames:
    """Read a column of images that stay encoded, those of a field.

    Raises
    ------
    CorruptArchive
        One is neither PNG nor JPEG.
    UnknownLayout
        One has another size than the field, or other bits.
    UnsafeArchive
        One is too large to be decoded.
    """
    found = images(column, where)
    stops = np.cumsum(found.lengths)
    for row, (a, b) in enumerate(zip((stops - found.lengths).tolist(), stops.tolist(), strict=True)):
        header = image_header.read(found.data.data, a, b)
        if header is None:
            raise CorruptArchive(f"{where}, row {row} of a block: {b - a:,} bytes that are neither PNG nor JPEG.")
        if header.height * header.width > MAX_PIXELS:
            raise UnsafeArchive(f"{where}, row {row} of a block: an image of {header.height}x{header.width}.")
        if (header.shape, header.dtype) != (f.shape, f.dtype):
            raise UnknownLayout(
                f"{where}, row {row} of a block: an image of {list(header.shape)}, {header.bits} bits; the first is "
                f"{f.dtype} {list(f.shape)}.",
                hint="a camera has images of one kind",
            )
    return found
