"""Which images and videos beside tables are cameras: all tables are asked, and every file is accounted for.

What a table states goes before what is guessed. A column of texts that names images is a camera, whatever the order of
their names, and a folder whose images are named so is not dealt out. Names are relative to the table's directory, or
to a folder below it. Where statements differ, both are shown and none is chosen: two columns that name the same images
in different rows, names of which some have no file, names and a folder that have nothing in common, numbers of images
in another order than their names.

Without names, a table that is alone in its directory owns the folders of images and the videos there, and each of
several tables those that are called after it (`cameras`).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rlds_cli.archives.formats import camera_files
from rlds_cli.archives.formats.camera_files import AGE, FILES, FOLDER, SINCE, VIDEO, is_video_key
from rlds_cli.archives.formats.tables import Table, open_flat
from rlds_cli.archives.names import EPISODE_PREFIX, Meaning, free_name, has_essentials, meaning, present
from rlds_cli.archives.plain import cameras
from rlds_cli.archives.plain.camera_names import TEXT, NamedImages, check_apart, named_images, taken, texts_in, texts_of
from rlds_cli.archives.plain.ownership import Ownership
from rlds_cli.archives.plain.survey import groups_of
from rlds_cli.base.files import child
from rlds_cli.base.text import plural
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, Note

OF_BAD = "its table is left out"
_NUMBER = re.compile(r"(\d+)(?!.*\d)")  # the last one of a name


@dataclass(frozen=True, slots=True, kw_only=True)
class CamerasFound:
    """Cameras beside tables.

    ``fields`` are all columns by field, those of the user among them, and ``notes`` say what was assumed. ``left_out``
    says of each image and video that no row has why that is so. ``bad`` are tables to leave out with ``skip_bad``.
    ``files`` are the images and videos of each camera, by table and field.
    """

    fields: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    left_out: Mapping[Path, str] = field(default_factory=dict)
    bad: Mapping[Path, ArchiveError] = field(default_factory=dict)
    files: Mapping[Path, Mapping[str, Sequence[Path]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnedFiles:
    """The files of a camera that a table owns: the images of a folder, or a video.

    ``count`` is that of its images or frames, ``rows`` that of the rows of the table, and ``unread`` says why its files
    cannot be read.
    """

    key: str
    files: Sequence[Path]
    count: int
    rows: int
    unread: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is an image for each row, and perhaps one of the final observation."""
        return not self.unread and self.count in (self.rows, self.rows + 1)

    @property
    def is_near(self) -> bool:
        """Whether there are too few or too many images for the rows, but not just a few pictures."""
        return not self.unread and self.count > 1 and self.rows <= 2 * self.count

    @property
    def problem(self) -> str:
        """Why it is not a camera."""
        what = "frame" if is_video_key(self.key) else "image"
        return self.unread or f"{plural(self.count, what)} for {plural(self.rows, 'row')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableCameras:
    """What lies beside one table. ``times`` is its column of time stamps, ``stamps`` the first and the last."""

    path: Path
    what: Meaning
    named: Sequence[NamedImages]
    owned: Sequence[_OwnedFiles]
    times: str | None
    stamps: tuple[float, float]


def find(
    tables: Sequence[Path], media: Sequence[Path], chosen: Mapping[str, str], *, skip_bad: bool, lenient: bool = False
) -> CamerasFound:
    """Find the cameras of tables.

    Parameters
    ----------
    tables, media : sequence of Path
        The tables that are read together, and the images and videos that the user named with them.
    chosen : mapping of str to str
        The fields that the user mapped. Where one is a folder, a video or ``files:KEY``, no others are looked for.
    skip_bad : bool
        A table whose camera does not fit is left out later: a camera is one that fits half of the tables.
    lenient : bool
        Tables may lack columns that the user mapped.

    Raises
    ------
    UnknownLayout
        Statements about images differ, or images and videos do not fit the rows of a table.
    CorruptArchive
        Some of the images that a table names are missing, or a video is damaged.
    """
    asked = _asked(tables, media, chosen, lenient=lenient)
    known = _recognised.pop() if _recognised else None
    if known is not None and known.asked == asked and known.is_sound:
        around = known
    else:
        around = _look(tables, media, chosen, skip_bad=skip_bad, lenient=lenient)
    if not around.seen:
        left_out = dict.fromkeys(media, "groups have no files beside them")
        return CamerasFound(fields=chosen, left_out=left_out, bad=around.bad)
    notes: list[Note] = []
    fields, reasons = _in_common(around.seen, chosen, notes, skip_bad=skip_bad)
    files = {table.path: _files_of(table, fields) for table in around.seen}
    used = camera_files.Uses()
    for by_field in files.values():
        for name, paths in by_field.items():
            used.add(name, paths)
    left_out = _left_out(around.seen, media, used, {**_of_bad(around.beside, around.bad, media), **reasons})
    videos = [p for p in left_out if camera_files.is_video(p)]
    if videos and not skip_bad and not any(map(is_video_key, fields.values())):
        raise _no_owner(videos[0], tables, left_out[videos[0]])
    return CamerasFound(fields=fields, notes=tuple(notes), left_out=left_out, bad=around.bad, files=files)


def fields_with_cameras(tables: Sequence[Path], media: Sequence[Path]) -> Mapping[str, str]:
    """Return the columns of the cameras of tables by field, as `find` does with ``skip_bad``."""
    around = _look(tables, media, {}, skip_bad=True, lenient=False)
    _recognised[:] = [around] if child.is_apart() else []
    return _in_common(around.seen, {}, [], skip_bad=True)[0] if around.seen else {}


def _in_common(
    seen: Sequence[_TableCameras], chosen: Mapping[str, str], notes: list[Note], *, skip_bad: bool
) -> tuple[dict[str, str], dict[Path, str]]:
    """Return all columns by field, and why the files of other folders and videos are left out."""
    named = _columns_of_names(seen, notes, skip_bad=skip_bad)
    owned, reasons = _folders_and_videos(seen, named, skip_bad=skip_bad)
    fields = _fields(seen[0].what, chosen, named, owned)
    return fields | _ages(seen, fields, notes), reasons


# -- what lies beside one table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What lies beside tables, of which ``bad`` cannot be read; ``asked`` is what was looked at, and how."""

    asked: tuple[Any, ...]
    seen: Sequence[_TableCameras]
    bad: Mapping[Path, ArchiveError]
    beside: Ownership

    @property
    def is_sound(self) -> bool:
        """Whether no table and no file of a camera is damaged, and so nothing depends on ``skip_bad``."""
        return not self.bad and not any(camera.unread for table in self.seen for camera in table.owned)


_recognised: list[_Around] = []  # what was looked at to recognise files, which the plan that follows takes


def _look(
    tables: Sequence[Path], media: Sequence[Path], chosen: Mapping[str, str], *, skip_bad: bool, lenient: bool
) -> _Around:
    seen: list[_TableCameras] = []
    bad: dict[Path, ArchiveError] = {}
    beside = Ownership(tables, media)
    for path in tables:
        try:
            with open_flat(path, fill=True) as table:
                if groups_of(table, chosen) is None:
                    mapped = present(table.columns, chosen) if lenient else chosen
                    seen.append(_of_table(table, beside, mapped, skip_bad=skip_bad))
        except ArchiveError as e:
            if not skip_bad:
                raise
            bad[path] = e
    asked = _asked(tables, media, chosen, lenient=lenient)
    return _Around(asked=asked, seen=seen, bad=bad, beside=beside)


def _asked(
    tables: Sequence[Path], media: Sequence[Path], chosen: Mapping[str, str], *, lenient: bool
) -> tuple[Any, ...]:
    return tuple(tables), tuple(media), dict(chosen), lenient


def _of_table(table: Table, beside: Ownership, chosen: Mapping[str, str], *, skip_bad: bool) -> _TableCameras:
    mapped = {k: v for k, v in chosen.items() if not k.startswith(EPISODE_PREFIX)}
    what = meaning(table.columns, mapped, table.path.name)
    rows = max((c.shape[0] for c in table.columns.values() if c.shape), default=0)
    explicit = cameras.of(mapped).values()
    texts = {} if explicit else dict(texts_of(table, mapped, any_column=beside.any))
    named = list(named_images(table.path, beside, texts))
    check_apart(table.path, named)
    keys = explicit or [(VIDEO if camera_files.is_video(p) else FOLDER) + name for name, p in beside.owned(table.path)]
    owned = [_owned(table, key, rows, skip_bad=skip_bad) for key in keys if not key.startswith(FILES)]
    by_column = taken(named)
    for camera in owned:
        if camera.fits and not (explicit or is_video_key(camera.key) or _has_any(by_column, camera)):
            _check_order(table, camera, {*what.fields.values()})
    _check_videos(table.path, owned, texts)
    times = cameras.times_of(table) if any(is_video_key(camera.key) for camera in owned) else None
    return _TableCameras(
        path=table.path,
        what=what,
        named=named,
        owned=owned,
        times=times,
        stamps=(0.0, 0.0) if times is None else _first_and_last(table, times),
    )


def _has_any(paths: Collection[Path], camera: _OwnedFiles) -> bool:
    return bool(paths) and any(file in paths for file in camera.files)


def _first_and_last(table: Table, times: str) -> tuple[float, float]:
    count = table[times].shape[0]
    with table.rows([times]) as rows:
        seen = rows.read(0, count)[times].reshape(-1)
    return (float(seen[0]), float(seen[-1])) if count else (0.0, 0.0)


def _owned(table: Table, key: str, rows: int, *, skip_bad: bool) -> _OwnedFiles:
    """Count the images of a folder, or the frames of a video."""
    path = camera_files.beside(table.path, key.partition(":")[2])
    files = [path] if is_video_key(key) else camera_files.in_folder(path)
    count, unread = len(files), "" if files else "no images"
    try:
        if is_video_key(key):
            count = len(camera_files.track(path).frames)
        elif files:
            camera_files.of_image(files[0])
    except ArchiveError as e:
        if is_video_key(key) and not skip_bad:  # which is not left out
            raise
        unread = e.message
    return _OwnedFiles(key=key, files=files, count=count, rows=rows, unread=unread)


def _check_order(table: Table, camera: _OwnedFiles, known: Collection[str]) -> None:
    """Refuse a folder whose images have the numbers of a column, in another order."""
    columns = [name for name, c in table.own.items() if c.dtype.kind in "iu" and name not in known]
    numbers = [int(m[1]) for path in camera.files if (m := _NUMBER.search(path.stem))] if columns else []
    for name in columns:
        if table[name].shape not in ((len(numbers),), (len(numbers), 1)):
            continue
        with table.rows([name]) as rows:
            values = rows.read(0, len(numbers))[name].reshape(-1).tolist()
        if values != numbers and len({*values}) == len(values) and sorted(values) == sorted(numbers):
            row = next(k for k, (a, b) in enumerate(zip(values, numbers, strict=True)) if a != b)
            folder = camera_files.named(table.path.name, camera.key)
            raise UnknownLayout(
                f"{table.path.name}: row {row:,} has {name} {values[row]}, and by the order of names the image "
                f"{camera.files[row].name} of {folder}.",
                hint=f"--map 'observation/{cameras.name_of(camera.key)}={camera.key}' takes the order of names; for "
                f"that of {name}, name the images in a column of texts",
            )


def _check_videos(table: Path, owned: Sequence[_OwnedFiles], texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse names of videos, none of which the table owns, beside one that it owns."""
    videos = [camera.files[0].name for camera in owned if is_video_key(camera.key)]
    for column, values in texts.items():
        names = {PurePosixPath(camera_files.plain(table, v)).name for v in values if v.strip()}
        if videos and names and all(camera_files.is_video(Path(n)) for n in names) and names.isdisjoint(videos):
            raise UnknownLayout(
                f"{table.name}: {column} names {min(names)}, and the video of the table is {videos[0]}, by its name.",
                hint="--map observation/NAME=video:FILE says which; or rename the videos",
            )


# -- what tables have in common


def _columns_of_names(seen: Sequence[_TableCameras], notes: list[Note], *, skip_bad: bool) -> dict[str, NamedImages]:
    """Return the cameras that columns name, by key."""
    by_column: dict[str, list[tuple[_TableCameras, NamedImages]]] = defaultdict(list)
    for table in seen:
        for images in table.named:
            by_column[images.column].append((table, images))
    found: dict[str, NamedImages] = {}
    for column, all_of in by_column.items():
        there = [(t, i) for t, i in all_of if i.state in ("all", "some")]
        if not there:
            if unread := next((i.unread for _, i in all_of if i.unread), ""):
                text = f"{column} names images that are not read, and is kept as text"
                notes.append(Note(f"image-names-{column}", text, 1, unread))
            else:
                _check_unnamed(column, all_of, notes)
            continue
        keys = {i.key: t for t, i in there}
        if len(keys) > 1:
            (one, a), (other, b) = [*keys.items()][:2]
            raise UnknownLayout(
                f"{column} names images relative to different folders: {one} in {a.path.name}, {other} in "
                f"{b.path.name}.",
                hint="import them one by one, each with its own name",
            )
        if not skip_bad:
            for table, images in all_of:
                if images.missing:
                    raise _missing(table, images)
        first = there[0][1]
        found[first.key] = first
        if above := next((i.above for _, i in there if i.above), ""):
            text = f"{column} names images below {above}, which are read beside the table"
            notes.append(Note(f"image-names-{column}", text))
    return found


def _check_unnamed(column: str, all_of: Sequence[tuple[_TableCameras, NamedImages]], notes: list[Note]) -> None:
    """Note names of images that are not there; refuse them beside a folder that has an image for each row."""
    table, images = all_of[0]
    row, name = images.missing[0]
    for other, _ in all_of:
        for camera in other.owned:
            if camera.key.startswith(FOLDER) and camera.fits:
                folder = camera_files.named(other.path.name, camera.key)
                raise UnknownLayout(
                    f"{table.path.name}: {column} names images that are not there (row {row:,}: "
                    f"{name.strip()[:100]!r}), and {folder} has {plural(camera.count, 'image')} of other names (the "
                    f"first is {camera.files[0].name}).",
                    hint=f"rename the images, or the names; --map {TEXT}{column}={column} keeps the names as text, "
                    "and takes the images in the order of their names",
                )
    text = f"{column} names images that are not there, and is kept as text"
    notes.append(Note(f"image-names-{column}", text, 1, f"{name.strip()[:100]} in row {row:,} of {table.path.name}"))


def _missing(table: _TableCameras, images: NamedImages) -> CorruptArchive:
    row, name = images.missing[0]
    count = len({v for _, v in images.missing})
    said = plural(count, "image") + (" that is" if count == 1 else " that are")
    return CorruptArchive(
        f"{table.path.name}: {images.column} names {said} not there: {name.strip()[:100]!r} in row {row:,}"
        f"{', and others' if count > 1 else ''}.",
        hint="put the images there, or leave out their rows; a pattern that matches the tables alone, such as "
        f"'*{table.path.suffix}', keeps the names as text",
    )


def _folders_and_videos(
    seen: Sequence[_TableCameras], named: Mapping[str, NamedImages], *, skip_bad: bool
) -> tuple[list[str], dict[Path, str]]:
    """Return the keys of cameras in folders and videos, and why the files of others are left out."""
    by_key: dict[str, list[tuple[_TableCameras, _OwnedFiles]]] = defaultdict(list)
    for table in seen:
        by_column = taken([images for images in table.named if images.key in named])
        for camera in table.owned:
            if not _has_any(by_column, camera):
                by_key[camera.key].append((table, camera))
    found: list[str] = []
    reasons: dict[Path, str] = {}
    for key, all_of in by_key.items():
        fitting = sum(camera.fits or (is_video_key(key) and table.times is not None) for table, camera in all_of)
        if 2 * fitting >= len(all_of) if skip_bad else fitting or is_video_key(key):
            found.append(key)
            continue
        table, camera = all_of[0]
        if camera.is_near and not skip_bad:
            raise UnknownLayout(
                f"{table.path.name}: {camera_files.named(table.path.name, key)} has {camera.problem}; one for each row "
                "is expected.",
                hint="a column of their names says which belong to the rows; a pattern that matches the tables alone, "
                f"such as '*{table.path.suffix}', leaves the images out",
            )
        reasons |= {path: other.problem for _, other in all_of for path in other.files}
    return found, reasons


def _fields(
    what: Meaning, chosen: Mapping[str, str], named: Mapping[str, NamedImages], owned: Iterable[str]
) -> dict[str, str]:
    """Return all columns by field: those that the user mapped, and those of cameras."""
    fields = dict(chosen)
    known = {key: name for name, key in what.fields.items()}
    above = "" if "observation" in what.fields and has_essentials(what) else "observation/"
    for key, images in named.items():
        name = known.get(images.column) or next((n for n, k in chosen.items() if k == images.column), None)
        fields[name or free_name(images.column, {*what.fields, *fields, *FLAGS})] = key
    for key in owned:
        if key not in fields.values():
            fields[free_name(f"{above}{cameras.name_of(key)}", {*what.fields, *fields, *FLAGS})] = key
    return fields


# -- videos by time stamps


def _ages(seen: Sequence[_TableCameras], fields: Mapping[str, str], notes: list[Note]) -> dict[str, str]:
    """Return the columns of ages of the videos whose frames belong to rows by time stamps.

    Those of a camera belong to rows by count if they do so in all tables. Stamps count from the start of the videos if
    all of them lie inside, else from the first row.
    """
    found: dict[str, str] = {}
    timed = {camera_files.age_of(key)[1] for key in fields.values() if key.startswith(AGE)}
    for key in fields.values():
        video = key.removeprefix(VIDEO)
        tables = [(t, c) for t in seen for c in t.owned if c.key == key]
        times = next((t.times for t, c in tables if not c.fits and t.times is not None), None)
        if not is_video_key(key) or video in timed or times is None:
            continue
        outside = next((t for t, c in tables if t.times and not _is_inside(t, c.files[0])), None)
        late = next((t for t, _ in tables if t.stamps[0] > camera_files.LATE), None)
        camera = cameras.name_of(key)
        age = free_name(f"info/age/{camera}", {*seen[0].what.fields, *fields, *found})
        found[age] = f"{AGE}{SINCE if outside else ''}{times}:{video}"
        if outside is not None and outside.stamps[0] != 0:
            text = (
                f"{times} does not count from the start of {camera}'s video; the first row is taken to have its first "
                "frame"
            )
            notes.append(Note(f"video-clock-{camera}", text, 1, _span(outside)))
        elif outside is None and late is not None:
            text = f"{times} is taken to count from the start of {camera}'s video"
            notes.append(Note(f"video-clock-{camera}", text, 1, _span(late)))
    return found


def _is_inside(table: _TableCameras, video: Path) -> bool:
    try:
        shown = camera_files.shown(camera_files.track(video))
    except ArchiveError:
        return True  # it is left out
    first, last = table.stamps
    return first >= -camera_files.LATE and last <= cameras.end_of(shown)


def _span(table: _TableCameras) -> str:
    return f"{table.path.name} has {table.times} from {table.stamps[0]:.6g} to {table.stamps[1]:.6g} s"


# -- files that no row has


def _files_of(table: _TableCameras, fields: Mapping[str, str]) -> dict[str, Sequence[Path]]:
    """Return the images and videos of each camera of a table, by field."""
    found: dict[str, Sequence[Path]] = {}
    for name, key in cameras.of(fields).items():
        named = [images for images in table.named if images.key == key]
        paths: Iterable[Path] = (path for images in named for path in images.rows if path is not None)
        owned = [camera.files for camera in table.owned if camera.key == key]
        if not key.startswith(FILES) and len(owned) == 1:
            found[name] = owned[0]
            continue
        if not key.startswith(FILES):
            paths = (path for files in owned for path in files)
        elif not named:
            paths = _explicit(table.path, key)
        found[name] = tuple(dict.fromkeys(paths))
    return found


def _of_bad(beside: Ownership, bad: Iterable[Path], media: Sequence[Path]) -> dict[Path, str]:
    owned = {path for table in bad for _, path in beside.owned(table)}
    if not owned:
        return {}
    return {path: OF_BAD for path in media if path in owned or path.parent in owned}


def _left_out(
    seen: Sequence[_TableCameras], media: Sequence[Path], used: camera_files.Uses, reasons: Mapping[Path, str]
) -> dict[Path, str]:
    """Return the images and videos that no row has, and why."""
    unread: dict[Path, str] = {}
    for table in seen:
        for images in table.named:
            there = {path for path in images.rows if path is not None}
            unread |= dict.fromkeys(there, images.unread) if images.unread else {}
    loose = [path for path in media if not used.of(path)]
    folders = used.folders if loose else set()
    found = {}
    for path in loose:
        real = path.parent.resolve() / path.name
        why = "no row names it" if os.fspath(real.parent) in folders and not camera_files.is_video(path) else ""
        found[path] = reasons.get(path) or unread.get(real) or why or "it belongs to no table"
    return found


def _explicit(table: Path, key: str) -> Iterator[Path]:
    folder, column = camera_files.named_by(key)
    with open_flat(table, check=False, fill=True) as opened:
        if column in opened:
            for name in {text for block in texts_in(opened, column) for text in block if text.strip()}:
                yield camera_files.find(table, folder, name)


def _no_owner(video: Path, tables: Sequence[Path], why: str) -> UnknownLayout:
    stem = tables[0].stem
    return UnknownLayout(
        f"{video.name} is a video that no row has: {why}.",
        hint=f"a table alone in its directory owns the videos below it; of several, {tables[0].name} owns "
        f"{stem}_NAME.mp4, {stem}/NAME.mp4 and NAME/{stem}.mp4; a pattern of the tables alone leaves videos out",
    )
