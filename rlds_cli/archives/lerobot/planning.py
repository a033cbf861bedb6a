"""A LeRobot archive -> how it will be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli import mp4
from rlds_cli.archives import Archive, Part, Plan, image_header, parquet
from rlds_cli.archives.lerobot import depth, description, features, placing, tables
from rlds_cli.archives.lerobot.description import Info, Listed
from rlds_cli.archives.lerobot.features import Feature
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.mp4 import Track
from rlds_cli.ted import FLAGS, VIDEO, Field, Note

PART_ROWS = 1 << 16
_CHECKED_ROWS = 1 << 8  # read at a time to look for damage: rows may hold images
_DONE, _SUCCESS = "next.done", "next.success"


def plan(archive: Archive, info: Info) -> Plan:
    """Fields, parts, episodes and what is odd about them."""
    cameras = [key for key, f in info.features.items() if f["dtype"] == "video"]
    listed = description.episodes(info, archive.files, cameras)
    cameras, without = _there(info, archive, listed, cameras)
    bad = _damaged(info, archive, listed, cameras) if archive.skip_bad else {}
    listed, notes = _without(info, listed, bad)
    listed, moved = placing.settle(info, [f for f in archive.files if f not in bad], listed)
    kept, missing = _complete(info, archive, listed, cameras)
    notes += missing
    notes += [*moved, *placing.shared_frames(info, kept, cameras)]
    if not kept:
        raise CorruptArchive(f"{info.root}: there is no episode with steps whose files are all here.")
    columns = tables.schema(info.root / kept[0].data)
    if cameras and "timestamp" not in columns.names:
        raise UnknownLayout(f"{info.root}: rows without a timestamp have no frames in videos.")
    chosen = {k: f for k, f in info.features.items() if f["dtype"] != "video" or k in cameras}
    found, strange = features.read(chosen, columns, archive.fields)
    found, depths, shallow = _framed(found, info, kept[0])
    left_out = {
        ("no-videos", "cameras whose videos are not here were left out"): without,
        ("strange-columns", "columns that no feature describes were left out"): strange,
        ("odd-splits", "splits that are no range of episodes were left out"): description.odd_splits(info),
        ("nested", "columns that are neither numbers nor texts are kept as JSON"): [f.key for f in found if f.nested],
        ("shallow-depth", "depth maps in videos of 8 bits are kept as they are: no distance is known"): shallow,
    }
    notes += [Note(code, text, len(names), names[0]) for (code, text), names in left_out.items() if names]
    fields = {f.field.name: f.field for f in found} | {name: Field(name, "bool", (), "next") for name in FLAGS}
    return Plan(
        reader="lerobot",
        archive=archive,
        schema=tuple(fields[name] for name in sorted(fields)),
        parts=tuple(_parts(archive, info, kept)),
        episodes_by="file",
        facts=_facts(info, archive, found) | ({"depth": depths} if depths else {}),
        env={"fps": info.fps} | ({"robot": info.robot} if info.robot else {}),
        notes=tuple(notes),
    )


def _facts(info: Info, archive: Archive, found: Sequence[Feature]) -> dict[str, Any]:
    keys = {f.key for f in found}
    mapped = any(name in archive.fields for name in FLAGS) or any(f"next.{n[5:]}" in keys for n in FLAGS)
    by_success = not mapped and {_DONE, _SUCCESS} <= info.features.keys()
    return {
        "layout": info.version,
        "root": info.root.relative_to(archive.root).as_posix(),
        "columns": {f.field.name: f.key for f in found},
        "terminated": "flags" if mapped else f"{_DONE} and {_SUCCESS}" if by_success else None,
        **({"nested": nested} if (nested := [f.field.name for f in found if f.nested]) else {}),
    }


def _there(
    info: Info, archive: Archive, listed: Sequence[Listed], cameras: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Cameras that have a video here, and those that have none, as when videos were not fetched."""
    files = set(archive.files)
    here = [key for key in cameras if any(info.root / e.videos[key][0] in files for e in listed)]
    return here, [key for key in cameras if key not in here]


def _damaged(info: Info, archive: Archive, listed: Sequence[Listed], cameras: Sequence[str]) -> dict[Path, str]:
    """What is wrong with the files that are damaged: data are read to their ends, of videos the tables."""
    files, bad = set(archive.files), dict[Path, str]()
    for name in dict.fromkeys(n for e in listed for n in (e.data, *(e.videos[key][0] for key in cameras))):
        path = info.root / name
        if path not in files:
            continue  # which is missing, and said so
        try:
            if path.suffix == ".parquet":
                for _ in tables.batches(path, tables.schema(path).names, _CHECKED_ROWS):
                    pass
            else:
                mp4.read(path)
        except (CorruptArchive, UnknownLayout) as e:
            bad[path] = e.message
    return bad


def _without(info: Info, listed: Sequence[Listed], bad: Mapping[Path, str]) -> tuple[list[Listed], list[Note]]:
    """Episodes of which no file is damaged."""
    kept = [e for e in listed if not any(info.root / n in bad for n in (e.data, *(v for v, _ in e.videos.values())))]
    if not bad:
        return kept, []
    text = f"episodes of damaged files were left out. {next(iter(bad.values()))}"
    first = next(iter(bad)).relative_to(info.root).as_posix()
    return kept, [Note("bad-files", text, len(listed) - len(kept), first)]


def _complete(
    info: Info, archive: Archive, listed: Sequence[Listed], cameras: Sequence[str]
) -> tuple[list[Listed], list[Note]]:
    """Episodes whose files are all here, which they must be unless bad ones are to be left out."""
    files = set(archive.files)
    kept, missing, empty = list[Listed](), list[str](), list[str]()
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
    found: Sequence[Feature], info: Info, first: Listed
) -> tuple[list[Feature], dict[str, dict[str, Any]], list[str]]:
    """Frames with the shape that the first of them has, what depth is by field, and cameras whose depth is lost."""
    framed, depths, shallow = list[Feature](), dict[str, dict[str, Any]](), list[str]()
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
            if f.field.kind == "array":
                depths[f.field.name] = depth.of_images(described, f.field.dtype)
        framed.append(f)
    return framed, depths, shallow


def _of_video(f: Feature, given: Mapping[str, Any], track: Track) -> Field:
    if depth.is_depth_map(given) and depth.video_bits(given, track) > 8:
        return replace(f.field, shape=(track.height, track.width, 1), dtype="uint16")
    info = given.get("info")
    grey = isinstance(info, Mapping) and info.get("video.channels") == 1
    channels = 1 if grey or 1 in (given.get("shape") or ()) else 3
    return replace(f.field, shape=(track.height, track.width, channels))


def _of_images(f: Feature, path: Path) -> Field:
    """An image field by its first image; ``info.json`` may give its axes in another order."""
    batch = next(tables.batches(path, [f.key], 1))
    frames = tables.images(parquet.pyarrow().Table.from_batches([batch])[f.key], f"{path}: {f.key}")
    data = frames.data.tobytes()
    if (deep := depth.image(data)) is not None:
        return replace(f.field, kind="array", dtype=deep.dtype, shape=deep.shape)
    header = image_header.read(data)
    if header is None or header.bits > 8:
        what = "no PNG or JPEG" if header is None else f"{header.channels} channels of {header.bits} bits"
        raise UnknownLayout(f"{path}: {f.key} holds images that cannot be stored: {what}.")
    return replace(f.field, shape=header.shape, codec=header.codec)


def _parts(archive: Archive, info: Info, kept: Sequence[Listed]) -> Iterator[Part]:
    """Whole data files, several where they are small; what is read of each is all its episodes."""
    index = {path: i for i, path in enumerate(archive.files)}
    todo: list[Any] = []
    rows = 0
    files: dict[str, list[Listed]] = {}
    for e in kept:
        files.setdefault(e.data, []).append(e)
    for data, episodes in files.items():
        of_file = [_described(e, info, archive.root, index[info.root / data]) for e in episodes]
        todo += of_file
        rows += sum(e["length"] + 1 for e in of_file)
        if rows >= PART_ROWS:
            yield Part(rows, {"episodes": todo})
            todo, rows = [], 0
    if todo:
        yield Part(rows, {"episodes": todo})


def _described(e: Listed, info: Info, root: Path, data: int) -> dict[str, Any]:
    videos = {k: [(info.root / name).relative_to(root).as_posix(), at] for k, (name, at) in e.videos.items()}
    splits = description.splits(info, e.number)
    return {"number": e.number, "length": e.length, "file": data, "videos": videos, "splits": list(splits)}
