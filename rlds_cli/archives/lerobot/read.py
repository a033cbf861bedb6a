"""LeRobot: Parquet for numbers, PNG images in it or MP4 videos beside it; v3 many episodes to a file, v2 one.

``description`` reads ``meta/`` and assigns columns to fields, ``depth`` decodes depth images, and ``rows`` reads the
rows. An episode of T rows is T steps whose final observation is not recorded.

``meta/`` is wrong in datasets that two known scripts have made, so the places of episodes are checked against the
files. The script that converts v2.1 to v3.0 named the wrong data file for an episode that no longer fitted one
(huggingface/lerobot#2401); this is corrected, since rows name their episode. The script that merges datasets gave
episodes the video files and times of others (huggingface/lerobot#2550); this is noted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rlds_cli.archives.account import notes_of_files
from rlds_cli.archives.formats import parquet
from rlds_cli.archives.lerobot import accounting, depth, description, features, language, rows, subtasks
from rlds_cli.archives.lerobot.description import LANGUAGE, TASK, Info, ListedEpisode
from rlds_cli.archives.lerobot.features import DataColumns, LerobotFeature
from rlds_cli.archives.lerobot.language import Language
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import trees
from rlds_cli.base.media import image_header, mp4
from rlds_cli.base.media.mp4 import Track
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.base.text import plural
from rlds_cli.errors import CorruptArchive, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.ted import FLAGS, VIDEO, Chunk, Field, Note, Subtasks

VERSION = 2
_DATA = ("data", "videos")  # below these lie the files of episodes, everything else describes
PART_ROWS = 1 << 16
_CHECKED_ROWS = 1 << 8  # read at a time to look for damage: rows may hold images
_DONE, _SUCCESS = "next.done", "next.success"


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the files in one line; None if they are of another family."""
    found = description.candidates(paths)
    if not found:
        return "LeRobot dataset without meta/info.json" if description.told_beside(paths) else None
    try:
        info = description.read(found[0])
    except (UnknownLayout, UnsafeArchive):
        return "LeRobot dataset of a layout that is not read"  # `plan` says which, and what to do
    except RldsError:
        return "LeRobot dataset with a damaged meta/info.json" if description.told_beside(paths) else None
    if len(found) > 1:
        return f"{len(found)} LeRobot datasets"  # `plan` asks for one of them
    cameras = [f for f in info.features.values() if f.get("dtype") in ("image", "video")]
    kinds = " and ".join(sorted({f"{f['dtype']}s" for f in cameras}))
    seen = f", {plural(len(cameras), 'camera')} in {kinds}" if cameras else ""
    episodes = plural(info.episodes, "episode") if info.episodes is not None else "episodes"
    return f"LeRobot {info.version} dataset ({episodes}, {info.fps:g} fps{seen})"


def plan(archive: Archive) -> Plan:
    """Find fields, parts and episodes. Reads ``meta/``, the schema of a data file, and a frame's head per camera.

    Raises
    ------
    UnknownLayout
        There is no LeRobot dataset, several, one of a version that is not read, or features that cannot be stored.
    CorruptArchive
        A file is missing or damaged. With ``skip_bad`` the episodes of such files are left out.
    MissingPackage
        pyarrow is not installed.
    """
    found = description.locate(archive.files)
    if found is None and (root := description.told_beside(archive.files)) is not None:
        raise CorruptArchive(
            f"{root} is a LeRobot dataset without meta/info.json, which says what its files hold.",
            hint="fetch meta/info.json, too; a pattern of the files of data/ alone reads them as tables",
        )
    if found is None:
        raise UnknownLayout("This is not a LeRobot dataset: it has no meta/info.json.")
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: LeRobot lists its episodes.', hint="leave it out"
        )
    return _plan(archive, description.read(found))


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in bounded memory.

    Raises
    ------
    CorruptArchive
        Rows, images or videos are not those that ``meta/`` announces.
    """
    return rows.read(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return ``meta/info.json`` as text: names of elements, the robot, the encoding of videos."""
    found = description.locate(plan.archive.files)
    if found is not None:
        yield "lerobot/info.json", found.read_text(encoding="utf-8")


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step, and the observations of the row after it within the episode.

    The frames of videos are looked up with ``av``, if it is installed.
    """
    row = place.first + place.step
    info, episodes, tasks = _listed_episodes(place.root / place.facts["root"])
    for name, key in place.facts["columns"].items():
        for at in (row, row + 1) if name.split("/")[0] == "observation" and not place.is_last else (row,):
            field = name if at == row else f"next/{name}"
            if info.features.get(key, {}).get("dtype") == "video":
                yield from _frame(place, field, key, at, info, episodes)
            else:
                value = _table(place.file)[key][at].as_py()
                yield ArchivedValue(field, f"{key}[{at}]", _value(place, name, value, key, tasks))
    if spoken := place.facts.get("language"):
        block = _table(place.file).slice(row, 1)
        times = [math.nan if time is None else time for time in block["timestamp"].to_pylist()]
        for name, texts in language.texts(spoken, block, times, place.name).items():
            yield ArchivedValue(name, f"{spoken[name][0]}[{row}]", texts[0])


def _value(place: ArchivedStep, name: str, value: Any, key: str, tasks: dict[int, str | None]) -> Any:
    """Convert a value to the form of the store: images of depth decoded, others encoded."""
    if name in place.facts.get("nested", ()):
        return None if value is None else description.json_text(value)
    if isinstance(value, dict):
        found = depth.image(value["bytes"])  # a TIFF; others are stored as they are
        return value["bytes"] if found is None else depth.decode_one(value["bytes"], found, key)
    if key == TASK:
        return tasks[value]
    return value if isinstance(value, str | bytes) or value is None else np.asarray(value)


def _frame(
    place: ArchivedStep, field: str, key: str, row: int, info: Info, episodes: dict[str, ListedEpisode]
) -> Iterator[ArchivedValue]:
    """Look up the packet of the frame that is shown at the time of a row."""
    try:
        import av
    except ImportError:
        return
    name, begin = episodes[place.group].videos[key]
    time = begin + _table(place.file)["timestamp"][row].as_py()
    with av.open(str(info.root / name)) as container:
        stream = container.streams.video[0]
        unit = float(stream.time_base or 0)
        container.seek(int(time / unit), stream=stream)
        packets = (p for p in container.demux(stream) if p.size and p.pts is not None)
        best = None
        for packet in packets:
            if best is None or abs(packet.pts * unit - time) < abs(best.pts * unit - time):
                best = packet
            if packet.dts is not None and packet.dts * unit > time + 1 / info.fps:
                break
        if best is not None:
            yield ArchivedValue(field, f"{name} at {time:.3f} s", bytes(best))


@lru_cache(maxsize=4)
def _table(file: Path) -> Any:
    return description.read_table(file)


@lru_cache(maxsize=4)
def _listed_episodes(root: Path) -> tuple[Info, dict[str, ListedEpisode], dict[int, str | None]]:
    info = description.read(root / "meta" / "info.json")
    files = list(trees.files(root))
    cameras = [key for key, f in info.features.items() if f["dtype"] == "video"]
    listed = description.episodes(info, files, cameras)
    return info, {f"episode_{e.number}": e for e in listed}, description.tasks(info, files)


def choose(names: Sequence[str], portion: Subset, read: Callable[[str], bytes]) -> tuple[Sequence[str], Subset]:
    """Choose the descriptions, and the tables and videos of the wanted episodes.

    Raises
    ------
    ArchiveError
        There is no such split, or there are not so many episodes.
    """
    info = next((n for n in names if n.split("/")[-2:] == ["meta", "info.json"]), None)
    if info is None:
        return names, portion
    root = info.removesuffix("meta/info.json")
    with TemporaryDirectory(prefix="rlds-") as place:
        known, listed = _read_meta(root, names, read, Path(place))
    everything = {n.removeprefix(root) for n in names}
    listed = [e for e in listed if everything.issuperset(_files(e))]
    if portion.split is not None and portion.split not in known.splits:
        raise portion.no_split(known.splits)
    of_split = [e for e in listed if portion.split in (None, *description.splits(known, e.number))]
    wanted = [of_split[k] for k in portion.numbers(len(of_split))]
    files = {root + f for e in wanted for f in _files(e)}
    chosen = [n for n in names if not n.removeprefix(root).startswith(tuple(f"{d}/" for d in _DATA)) or n in files]
    return chosen, _rest(wanted, [e for e in listed if files.issuperset(root + f for f in _files(e))])


def _read_meta(
    root: str, names: Sequence[str], read: Callable[[str], bytes], place: Path
) -> tuple[Info, list[ListedEpisode]]:
    """Download the files of ``meta/`` to ``place``, and read them."""
    meta = [n for n in names if n.startswith(f"{root}meta/")]
    needed = [n for n in meta if n.endswith(("/info.json", "/episodes.jsonl")) or n.startswith(f"{root}meta/episodes/")]
    files = [place / n for n in needed]
    for name, file in zip(needed, files, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(read(name))
    info = description.read(place / root / "meta" / "info.json")
    videos = [n for n in names if n.startswith(f"{root}videos/")]
    cameras = [k for k, f in info.features.items() if f["dtype"] == "video" and any(f"/{k}/" in v for v in videos)]
    return info, description.episodes(info, files, cameras)


def _files(e: ListedEpisode) -> list[str]:
    return [e.data, *(video for video, _ in e.videos.values())]


def _rest(wanted: Sequence[ListedEpisode], there: Sequence[ListedEpisode]) -> Subset:
    """Return the portion to cut out of the chosen files, since files of version 3 hold several episodes."""
    numbers = [e.number for e in there if e.length > 0]
    kept = [e.number for e in wanted if e.length > 0]
    if kept == numbers or not kept:
        return EVERYTHING
    start = numbers.index(kept[0])
    return replace(EVERYTHING, episodes=(start, start + len(kept)))


def _plan(archive: Archive, info: Info) -> Plan:
    """Make the plan of the dataset that ``info`` describes."""
    cameras = [key for key, f in info.features.items() if f["dtype"] == "video"]
    before = description.before(info)
    stated = description.episodes(info, archive.files, cameras)
    cameras, without = _there(info, archive, stated, cameras)
    bad = _damaged(info, archive, stated, cameras) if archive.skip_bad else {}
    listed, moved = settle(info, [f for f in archive.files if f not in bad], stated)
    unnamed = accounting.unnamed(archive, info, (*stated, *listed))
    kept, notes = _without(info, listed, bad)
    kept, missing = _complete(info, archive, kept, cameras)
    notes += missing
    _check_frames_apart(info, kept, cameras)
    notes += (*moved, *notes_of_files(info.root, dict.fromkeys(unnamed, accounting.UNNAMED)))
    if not kept:
        raise CorruptArchive(f"{info.root}: no episode with steps has all of its files.")
    columns = _columns(info, kept)
    if (odd := next(iter(columns.odd), None)) is not None and not archive.skip_bad:
        raise UnknownLayout(f"{odd}: {columns.odd[odd]}.", hint="leave its episodes out with --skip-bad")
    if odd is not None:
        kept, more = _without(info, kept, {info.root / name: f"{name}: {why}." for name, why in columns.odd.items()})
        notes += more
    if cameras and "timestamp" not in columns.schema.names:
        raise UnknownLayout(f"{info.root}: rows without a timestamp have no frames in videos.")
    chosen = {
        k: f for k, f in info.features.items() if (f["dtype"] != "video" or k in cameras) and k not in before.added
    }
    if TASK in chosen and TASK in columns.schema.names:
        description.tasks(info, archive.files)  # which raises if the rows' tasks have no texts
    told = _counted_subtasks(info, archive, columns, {*archive.fields.values(), *before.added})
    chosen = {k: f for k, f in chosen.items() if k not in told}
    named = {n: key for n, key in before.names(archive.fields).items() if key in chosen or n in archive.fields}
    read = features.read_features(chosen, columns.schema, named)
    strange = [key for key in read.strange if key not in before.added]
    of_rows, spoken = _spoken(read.found, info, kept, columns, {*named.values()})
    listed_subtasks = told or any(Subtasks.COLUMN in e.about.get("own", {}) for e in kept)
    if listed_subtasks or Subtasks.FIELD in {f.field.name for f in of_rows}:
        spoken = replace(spoken, subtask="")
    found, depths, shallow = _framed(of_rows, info, kept[0])
    found = [replace(f, field=before.columns[f.key].of(f.field)) if f.key in before.columns else f for f in found]
    left_out = {
        ("no-videos", "cameras whose videos are not here were left out"): without,
        ("strange-columns", "columns that no feature describes were left out"): strange,
        ("absent-columns", "features for which no data file has a column were left out"): read.absent,
        ("odd-splits", "splits that are not a range of episodes were left out"): description.odd_splits(info),
        ("nested", "columns that are neither numbers nor texts are kept as JSON"): [f.key for f in found if f.nested],
        ("shallow-depth", "depth maps in videos of 8 bits are kept as they are: no distance is known"): shallow,
    }
    notes += [Note(code, text, len(names), names[0]) for (code, text), names in left_out.items() if names]
    notes += spoken.notes
    facts = _facts(info, archive, found) | ({"depth": depths} if depths else {})
    facts |= {"language": spoken.facts} if spoken.facts else {}
    facts |= {"subtasks": [*told]} if told else {}
    facts |= {"spoken_subtask": spoken.subtask} if spoken.subtask else {}
    found += spoken.features
    fields = {f.field.name: f.field for f in found} | {name: Field(name, "bool", (), "next") for name in FLAGS}
    return Plan(
        reader="lerobot",
        archive=archive,
        schema=tuple(fields[name] for name in sorted(fields)),
        parts=tuple(_parts(archive, info, kept, listed)),
        episodes_by="file",
        facts=facts,
        env={"fps": info.fps} | ({"robot": info.robot} if info.robot else {}),
        notes=tuple(notes),
        account=accounting.account_of(
            archive,
            info,
            kept,
            found,
            unnamed=unnamed,
            without=without,
            absent=read.absent,
            told=told,
            spoken=[spoken.kinds[spoken.subtask].column] if spoken.subtask else [],
        ),
        several_tasks=any(f.key == TASK for f in found) and _has_several_tasks(info, kept),
    )


def _columns(info: Info, kept: Sequence[ListedEpisode]) -> DataColumns:
    """Compare the columns of the data files."""
    schemas = {name: description.schema(info.root / name) for name in dict.fromkeys(e.data for e in kept)}
    return features.columns_of(schemas, (*info.features, *LANGUAGE))


def _spoken(
    found: Sequence[LerobotFeature],
    info: Info,
    kept: Sequence[ListedEpisode],
    columns: DataColumns,
    renamed: Collection[str],
) -> tuple[list[LerobotFeature], Language]:
    """Divide features into others and those of language columns, which reads these; renamed ones stay as they are."""
    spoken = [f.key for f in found if f.nested and f.key in LANGUAGE and f.key not in renamed]
    if not spoken or "timestamp" not in columns.schema.names:
        return list(found), Language()
    others = [f for f in found if f.key not in spoken]
    files = [info.root / name for name in dict.fromkeys(e.data for e in kept)]
    return others, language.survey(files, spoken, {f.field.name for f in others})


def _counted_subtasks(info: Info, archive: Archive, columns: DataColumns, known: Collection[str]) -> tuple[str, ...]:
    """Return the column that numbers the sub-task of each row, if a list has their texts.

    ``known`` are those of which a field is made, and those that an export has added to what ``meta/`` says.
    """
    there = subtasks.INDEX in columns.schema.names and info.root / subtasks.LIST in archive.files
    return (subtasks.INDEX,) if there and subtasks.INDEX in info.features and subtasks.INDEX not in known else ()


def _has_several_tasks(info: Info, kept: Sequence[ListedEpisode]) -> bool:
    """Return whether an episode has several tasks, by the rows of those of which ``meta/`` says so."""
    for e in kept:
        if e.tasks > 1:
            table = description.read_table(info.root / e.data, ["episode_index", TASK])
            numbers = table[TASK].to_numpy()
            if "episode_index" in table.column_names:
                numbers = numbers[table["episode_index"].to_numpy() == e.number]
            if len(np.unique(numbers)) > 1:
                return True
    return False


def _facts(info: Info, archive: Archive, found: Sequence[LerobotFeature]) -> dict[str, Any]:
    keys = {f.key for f in found}
    mapped = any(name in archive.fields for name in FLAGS) or any(f"next.{n[5:]}" in keys for n in FLAGS)
    by_success = not mapped and {_DONE, _SUCCESS} <= keys
    return {
        "layout": info.version,
        "root": info.root.relative_to(archive.root).as_posix(),
        "columns": {f.field.name: f.key for f in found},
        "terminated": "flags" if mapped else f"{_DONE} and {_SUCCESS}" if by_success else None,
        **({"nested": nested} if (nested := [f.field.name for f in found if f.nested]) else {}),
    }


def _there(
    info: Info, archive: Archive, listed: Sequence[ListedEpisode], cameras: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Divide the cameras into those with videos here and those without, whose videos were not downloaded."""
    files = set(archive.files)
    here = [key for key in cameras if any(info.root / e.videos[key][0] in files for e in listed)]
    return here, [key for key in cameras if key not in here]


def _damaged(info: Info, archive: Archive, listed: Sequence[ListedEpisode], cameras: Sequence[str]) -> dict[Path, str]:
    """Find the damaged files, with the error of each; data are read to their ends, of videos only the tables."""
    files, bad = set(archive.files), dict[Path, str]()
    shown: dict[str, list[ListedEpisode]] = {}
    for e in listed:
        for name in (e.data, *(e.videos[key][0] for key in cameras)):
            shown.setdefault(name, []).append(e)
    for name, path in ((name, info.root / name) for name in shown):
        if path not in files:
            continue  # which is missing, and said so
        try:
            if path.suffix == ".parquet":
                for _ in description.batches(path, description.schema(path).names, _CHECKED_ROWS):
                    pass
            elif (why := _ends_early(mp4.read(path), name, shown[name], info.fps)) is not None:
                bad[path] = f"{name}: {why}"
        except (CorruptArchive, UnknownLayout) as e:
            bad[path] = e.message
    return bad


def _ends_early(track: Track, name: str, shown: Sequence[ListedEpisode], fps: float) -> str | None:
    """Return how a video has fewer frames, and ends earlier, than the rows of the episodes that are in it."""
    rows = sum(e.length for e in shown)
    begins = {e.number: begin for e in shown for video, begin in e.videos.values() if video == name}
    last = max(begins[e.number] + (e.length - 1) / fps for e in shown)
    if len(track.seconds) >= rows or (len(track.seconds) and last <= track.seconds[-1] + 0.5 / fps):
        return None
    return f"the video has {len(track.seconds):,} frames for {rows:,} rows."


def _without(
    info: Info, listed: Sequence[ListedEpisode], bad: Mapping[Path, str]
) -> tuple[list[ListedEpisode], list[Note]]:
    """Leave out the episodes of damaged files."""
    kept = [e for e in listed if not any(info.root / n in bad for n in (e.data, *(v for v, _ in e.videos.values())))]
    if not bad:
        return kept, []
    text = f"episodes of damaged files were left out. {next(iter(bad.values()))}"
    first = next(iter(bad)).relative_to(info.root).as_posix()
    return kept, [Note("bad-files", text, len(listed) - len(kept), first)]


def _complete(
    info: Info, archive: Archive, listed: Sequence[ListedEpisode], cameras: Sequence[str]
) -> tuple[list[ListedEpisode], list[Note]]:
    """Return the episodes whose files are all here; without ``skip_bad`` a missing file is an error."""
    files = set(archive.files)
    kept, missing, empty = list[ListedEpisode](), list[str](), list[str]()
    for e in listed:
        needed = [e.data, *(e.videos[key][0] for key in cameras)]
        lost = [name for name in needed if info.root / name not in files]
        if e.length < 1:
            empty.append(str(e.number))
        elif lost:
            missing.append(f"episode {e.number}: {lost[0]}")
        else:
            kept.append(e)
    if archive.partial:
        missing = []
    if missing and not archive.skip_bad:
        raise CorruptArchive(
            f"{info.root}: files of {len(missing):,} episodes are missing, first {missing[0]}.",
            hint="fetch them again, or leave these episodes out with --skip-bad",
        )
    notes = []
    if missing:
        notes.append(Note("missing-files", "episodes whose files are missing were left out", len(missing), missing[0]))
    if empty:
        notes.append(Note("empty-episodes", "episodes without steps were left out", len(empty), empty[0]))
    return kept, notes


def _framed(
    found: Sequence[LerobotFeature], info: Info, first: ListedEpisode
) -> tuple[list[LerobotFeature], dict[str, dict[str, Any]], list[str]]:
    """Give fields of frames the shape of their first frame; return the depth by field, and cameras that lost it."""
    framed, depths, shallow = list[LerobotFeature](), dict[str, dict[str, Any]](), list[str]()
    for f in found:
        described = info.features.get(f.key, {})
        if f.field.codec == VIDEO:
            track = mp4.read(info.root / first.videos[f.key][0])
            f = replace(f, field=_of_video(f, described, track))
            if depth.is_depth_map(described):
                if (bits := depth.video_bits(described, track)) > 8:
                    depths[f.field.name] = depth.of_video(f.key, described, bits)
                else:
                    shallow.append(f.key)
        elif f.field.kind == "frames":
            f = replace(f, field=_of_images(f, info.root / first.data))
            if f.field.dtype != "uint8":
                depths[f.field.name] = depth.of_images(described, f.field.dtype)
        framed.append(f)
    return framed, depths, shallow


def _of_video(f: LerobotFeature, given: Mapping[str, Any], track: Track) -> Field:
    if depth.is_depth_map(given) and depth.video_bits(given, track) > 8:
        return replace(f.field, shape=(track.height, track.width, 1), dtype="uint16")
    info = given.get("info")
    grey = isinstance(info, Mapping) and info.get("video.channels") == 1
    channels = 1 if grey or 1 in (given.get("shape") or ()) else 3
    return replace(f.field, shape=(track.height, track.width, channels))


def _of_images(f: LerobotFeature, path: Path) -> Field:
    """Describe an image field by its first image; ``info.json`` may give its axes in another order."""
    batch = next(description.batches(path, [f.key], 1))
    frames = description.images(parquet.pyarrow().Table.from_batches([batch])[f.key], f"{path}: {f.key}")
    data = frames.data.tobytes()
    header = image_header.read(data)
    if header is None and (deep := depth.image(data)) is not None:
        return replace(f.field, kind="array", dtype=deep.dtype, shape=deep.shape)
    if header is None or header.dtype is None:
        what = "no PNG or JPEG" if header is None else f"{header.channels} channels of {header.bits} bits"
        raise UnknownLayout(f"{path}: {f.key} holds images that cannot be stored: {what}.")
    return replace(f.field, dtype=header.dtype, shape=header.shape, codec=header.codec)


def _parts(
    archive: Archive, info: Info, kept: Sequence[ListedEpisode], listed: Sequence[ListedEpisode]
) -> Iterator[Part]:
    """Make the parts: whole data files, several to a part if they are small.

    Of the ``listed`` episodes of these files, those that are not kept are in the parts, too: their rows are passed by.
    """
    index = {path: i for i, path in enumerate(archive.files)}
    todo: list[Any] = []
    rows = 0
    numbers = {e.number for e in kept}
    files: dict[str, list[ListedEpisode]] = {e.data: [] for e in kept}
    for e in listed:
        if e.data in files and e.length > 0:
            files[e.data].append(e)
    for data, episodes in files.items():
        at = index[info.root / data]
        for e in episodes:
            if e.number in numbers:
                todo.append(_episode_args(e, info, archive.root, at))
                rows += e.length + 1
            else:
                todo.append({"number": e.number, "length": e.length, "file": at, "left_out": True})
        if rows >= PART_ROWS:
            yield Part(rows, {"episodes": todo})
            todo, rows = [], 0
    if todo:
        yield Part(rows, {"episodes": todo})


def _episode_args(e: ListedEpisode, info: Info, root: Path, data: int) -> dict[str, Any]:
    videos = {k: [(info.root / name).relative_to(root).as_posix(), at] for k, (name, at) in e.videos.items()}
    splits = description.splits(info, e.number)
    args = {"number": e.number, "length": e.length, "file": data, "videos": videos, "splits": list(splits)}
    return args | ({"about": dict(e.about)} if e.about else {})


def settle(
    info: Info, files: Sequence[Path], listed: Sequence[ListedEpisode]
) -> tuple[list[ListedEpisode], list[Note]]:
    """Correct the data files of the episodes. Rows are counted first, and read only if the counts are wrong."""
    data = [f for f in files if f.suffix == ".parquet" and f.is_relative_to(info.root / "data")]
    notes = _stale_rows(listed)
    if info.major == 2 or not data:
        return list(listed), notes
    rows: Counter[str] = Counter()
    for e in listed:
        rows[e.data] += e.length
    names = {f.relative_to(info.root).as_posix(): f for f in data}
    if all(rows[name] in (0, description.rows(path)) for name, path in names.items()):
        return list(listed), notes
    found = {number: name for name, path in names.items() for number in _episodes(path)}
    settled = [replace(e, data=found.get(e.number, e.data)) for e in listed]
    moved = [e for e, before in zip(settled, listed, strict=True) if e.data != before.data]
    text = "episodes that lie in another data file than meta/ says"
    notes += [Note("stale-files", text, len(moved), f"episode {moved[0].number}")] if moved else []
    return settled, notes


def _stale_rows(listed: Sequence[ListedEpisode]) -> list[Note]:
    """Note episodes whose first row is said to be another than the one behind the episode before."""
    begins = accumulate((e.length for e in listed), initial=0)
    odd = [e.number for e, first in zip(listed, begins, strict=False) if e.first not in (None, first)]
    text = "episodes whose first row meta/ gives wrongly (dataset_from_index); found by their episode_index"
    return [Note("stale-rows", text, len(odd), f"episode {odd[0]}")] if odd else []


def _episodes(path: Path) -> list[int]:
    numbers: list[int] = np.unique(description.read_table(path, ["episode_index"])["episode_index"].to_numpy()).tolist()
    return numbers


def _check_frames_apart(info: Info, listed: Sequence[ListedEpisode], cameras: Sequence[str]) -> None:
    """Refuse episodes that begin in a video before the previous one ends: a merge has named another dataset's video.

    Raises
    ------
    CorruptArchive
        There are some. Which of the episodes have the right frames cannot be known.
    """
    shared: dict[int, str] = {}
    for key in cameras:
        spans = sorted((*e.videos[key], e.length / info.fps, e.number) for e in listed)
        for (file, start, length, before), (other, begin, _, number) in pairwise(spans):
            if file == other and begin < start + length - 0.5 / info.fps:
                shared |= {before: file, number: file}
    if shared:
        first, file = min(shared.items())
        raise CorruptArchive(
            f"{info.root}: meta/ gives {len(shared):,} episodes frames of one another, first episode {first}: {file}. "
            "Which of them are right cannot be known.",
            hint="merges of older versions of lerobot do so: merge the datasets again",
        )
