"""Convert an archive into a dataset: planned, parallel, resumable, in bounded memory.

``--frames raw`` decodes encoded frames on the way, ``--frames HxW`` resizes them, ``--frames jpeg`` encodes raw ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.archives import Archive, Entry, Plan, ReaderName, account_of, plan_again, recorded_account
from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays, bundles, child, disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import FRAME_CODECS, DatasetId
from rlds_cli.base.media import media_files
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.progress import Progress
from rlds_cli.base.subset import EVERYTHING, Subset
from rlds_cli.errors import ArchiveError, FrameError, NoSpace, RldsError, UnsafeArchive
from rlds_cli.homes import Home
from rlds_cli.look import record_findings
from rlds_cli.make.convert import reading
from rlds_cli.make.convert.decoding import decoded_field, is_raw_frame
from rlds_cli.store import Built, Description, History, Manifest, finish
from rlds_cli.ted import VIDEO, Note

if TYPE_CHECKING:
    from rlds_cli.base.media.mp4 import Extent

Identity = tuple[int, int, int, int]  # of a file: device, inode, size, time of its last change in nanoseconds


@dataclass(frozen=True, slots=True)
class Conversion:
    """An archive to convert, and the options of the conversion."""

    id: DatasetId
    reader: str
    archive: Archive
    beside: tuple[Path, ...] = ()  # images and videos that the rows of its files have
    encoding: str = "memmap"
    frames: str = "encoded"  # or raw, or HxW: decoded at conversion
    sources: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts of the registry, for the manifest
    env: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # facts and env by the user, for the manifest
    portion: Subset = EVERYTHING  # the part of the archive's rows to convert
    account: tuple[Entry, ...] | None = None  # the fate of the archive, if it was planned before
    plan: Plan | None = None  # that plan, if the process that reads has made it
    check: Callable[[Path], None] | None = None  # raises if the finished dataset must not be published
    # Of the archive's files and those beside them, when their hashes were computed.
    seen: Mapping[Path, Identity] = field(default_factory=dict)
    reader_source: str = ""  # the code of the reader, see `ReaderName.source`; `convert` fills it in
    # sha256 by name of the videos that stay where they are published: the archive has their tables alone
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def convert(c: Conversion, home: Home, *, jobs: int = 0, progress: Progress) -> Manifest:
    """Convert an archive and publish the dataset. The caller holds the lock of its id.

    After an interruption the same call resumes, and gives the same arrays and the same fingerprint.

    Raises
    ------
    ArchiveError
        The archive cannot be read, or one of its files changes during the conversion; nothing is published.
    NoSpace, NoPermission
        The disk is full or not writable; finished parts are kept.
    """
    c = replace(c, seen=c.seen or identities(c.archive.files, c.beside), reader_source=ReaderName(c.reader).source())
    with child.reading(reading.__name__, id=str(c.id), progress=progress):
        try:
            plan = plan_again(c.reader, c.archive, c.plan)
        except ArchiveError:
            _check_unchanged(c)  # a changed file explains the error better
            raise
        if c.account is None:
            c = replace(c, account=account_of(plan, c.archive))
        while True:
            check_plan(plan, c.archive.files, c.reader)
            key = _key(c, plan)
            work = home.partial(c.id, key[:16])
            try:
                made = _convert(c, plan, home, work=work, key=key, jobs=jobs, progress=progress)
            except ArchiveError:
                _check_unchanged(c, work)
                raise
            if isinstance(made, Manifest):
                return made
            trees.discard(work)
            plan = made
            if plan.account is not None:
                c = replace(c, account=plan.account.correcting(c.account or ()))


def check_plan(plan: Plan, given: Sequence[Path], reader: str | None) -> None:
    """Refuse a plan of other files, or of another file of code, than given: a process that read a stranger's made it.

    ``reader`` is the name that was asked for, None if the files were to be recognised.
    """
    others = set(plan.archive.files).difference(given)
    if others:
        raise UnsafeArchive(f"{given[0]}: the plan to read it names another file, {min(others)}.")
    if plan.reader != reader and ReaderName(plan.reader).is_file:
        raise UnsafeArchive(f"{given[0]}: the plan to read it names another reader, {plan.reader}.")


def identities(files: Sequence[Path], beside: Sequence[Path] = ()) -> dict[Path, Identity]:
    """Return device, inode, size and modification time of files and of those beside them, which differ after a write.

    Folders of images follow, which differ if they have more images.
    """
    found: dict[Path, Identity] = {}
    folders = map(Path, dict.fromkeys(os.path.dirname(f) for f in beside if media_files.is_image(f)))  # noqa: PTH120
    for file in (*files, *beside, *folders):
        try:
            status = os.stat(file)  # noqa: PTH116  (thousands of images)
            found[file] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if not stat.S_ISDIR(status.st_mode):
                continue
            if bundles.is_bundle(file):
                found[file] = (status.st_dev, *bundles.state_of(file))
            else:
                found[file] = (status.st_dev, status.st_ino, sum(map(media_files.is_image, os.listdir(file))), 0)  # noqa: PTH208
        except OSError:
            found[file] = (0, 0, 0, 0)
    return found


def _check_unchanged(c: Conversion, work: Path | None = None) -> None:
    """Refuse an archive whose files changed while they were read, or a reader that did, and discard the work."""
    if ReaderName(c.reader).is_file and ReaderName(c.reader).source() != c.reader_source:
        raise ArchiveError(f"{c.reader} changed while it read {c.id}. Nothing is published.", hint="import again")
    now = identities(c.archive.files, c.beside)
    changed = [file for file, identity in now.items() if c.seen.get(file) != identity]
    if changed:
        if work is not None:
            trees.discard(work)
        more = f" and {text.plural(len(changed) - 1, 'other file')}" if len(changed) > 1 else ""
        raise ArchiveError(
            f"{c.id}: {changed[0]}{more} changed while the archive was read. Nothing is published.",
            hint="run the same command again once the file is complete",
        )


def _convert(
    c: Conversion, plan: Plan, home: Home, *, work: Path, key: str, jobs: int, progress: Progress
) -> Manifest | Plan:
    """Convert by a plan; return a better plan if the archive differs from it."""
    threads = max(2, jobs)
    _check_room(c, plan, home, threads)
    safe_files.work_directory(work, home.root)
    job = reading.ArchiveJob(str(c.id), plan, key, c.frames, c.portion)
    asked: dict[str, Any] = {"names": plan.archive.files, "types": reading.ANSWERS}
    built: Built | Plan = child.ask(reading.write, job, work, jobs, progress=progress, **asked)
    if isinstance(built, Plan):
        return built
    if not len(built.episodes):
        trees.discard(work)
        raise _nothing(c, built)
    never_written = child.ask(reading.never_written, plan, **asked)
    notes = Note.merged(dict.fromkeys((*c.archive.left_out, *plan.notes, *built.notes, *never_written)))
    if plan.account is not None and plan.account.each:
        c = replace(c, account=plan.account.completed(c.account or (), len(built.episodes), built.notes))
    built = replace(built.below(work, job.schema), notes=notes)  # its places are not taken from strangers' files
    _finish(c, plan, built, child.each(reading.metadata, plan, **asked), threads=threads)
    directory = built.directory
    del built  # frees its episode table: the checks read their own
    manifest = record_findings(directory)
    _check_unchanged(c, work)
    try:
        if c.check is not None:
            c.check(directory)
    except RldsError:
        trees.discard(work)
        raise
    History(home.dataset(c.id)).replace(directory)
    trees.discard(work)
    return manifest


def _nothing(c: Conversion, built: Built) -> ArchiveError:
    if not c.portion.cuts:
        return ArchiveError(f"{c.id}: the archive holds no episode with steps. Nothing is published.")
    splits = ", ".join(built.episodes.splits)
    there = (
        f"rlds download {c.id.base} takes all of it"
        if c.portion.split is None
        else f"its splits are {splits}"
        if splits
        else "it has no splits"
    )
    return ArchiveError(f"{c.id.base} has no episodes for {c.portion}. Nothing is published.", hint=there)


def _check_room(c: Conversion, plan: Plan, home: Home, threads: int) -> None:
    """Raise UnsafeArchive for frames too large to decode, and FrameError or NoSpace before the first row.

    NoSpace takes that the number of rows is known.
    """
    for f in plan.schema:
        if f.kind == "frames" and math.prod(f.shape[:2]) > MAX_PIXELS:
            size = "x".join(map(str, f.shape[:2]))
            raise UnsafeArchive(f"{c.id.base}: {f.name} has frames of {size}, which are too large to decode.")
    known = [p.rows for p in plan.parts]
    schema = [decoded_field(f, c.frames) for f in plan.schema]
    frames = [f for f in schema if f.kind == "array" and f not in plan.schema]
    if c.frames == "raw" and any(map(is_raw_frame, plan.schema)) and not frames:
        raise FrameError(f"The frames of {c.id.base} are published raw, and stay raw.", hint="--frames encoded, or HxW")
    if c.frames in FRAME_CODECS and schema == [*plan.schema]:
        raise FrameError(
            f"{c.id.base} has no raw images that {c.frames} could hold; encoded ones stay as they are.",
            hint="--frames encoded",
        )
    if c.frames not in ("encoded", *FRAME_CODECS) and not frames:
        raise FrameError(f"{c.id.base} has no frames to decode or resize.", hint=f"rlds download {c.id.base}")
    if None in known or c.portion.cuts:
        return
    rows = sum(r for r in known if r is not None)
    columns = sorted((rows * f.row_bytes for f in schema if f.kind != "frames"), reverse=True)
    needed = sum(columns)
    if c.encoding == "zarr":  # fields are compressed beside their rows, ``threads`` at a time
        needed += sum(columns[:threads])
    if any(f.codec == VIDEO for f in schema):
        films = (f for f in plan.archive.files if f.suffix == ".mp4" and _name(plan, f) not in c.elsewhere)
        needed += sum(f.stat().st_size for f in (*films, *filter(media_files.is_video, c.beside)))
    free = disk.free(home.root)
    if needed > free and frames:
        raise FrameError(
            f"Decoded frames of {c.id.base} need {text.size_of(needed)}, {text.size_of(free)} are free.",
            hint="--frames encoded (as published), or a smaller size",
        )
    if needed > free:
        raise NoSpace(
            f"{c.id} needs {text.size_of(needed)}, {text.size_of(free)} are free below {home.root}.",
            hint="another disk: --home DIR, or RLDS_HOME",
        )


def _finish(
    c: Conversion, plan: Plan, built: Built, metadata: Iterable[tuple[str, Array | str]], *, threads: int
) -> None:
    about = Description(
        id=str(c.id),
        encoding=c.encoding,
        reader=ReaderName(plan.reader).recorded,
        reader_version=plan.version,
        reader_source=c.reader_source,
        episodes_by=plan.episodes_by,
        facts={**c.facts, **plan.facts, **c.stated.get("facts", {})},
        spaces=plan.spaces,
        env={**c.env, **plan.env, **c.stated.get("env", {})},
        options=c.options,
        account=recorded_account(c.account or ()),
        sources=c.sources,
    )
    finish(built, about, metadata=metadata, locate=partial(_video, c, plan), threads=threads)


def _video(c: Conversion, plan: Plan, field: str, name: str) -> Extent:
    """Return the extent of a video of the archive, by its file name."""
    from rlds_cli.base.media.mp4 import Extent

    return Extent.whole(plan.archive.root / name, c.elsewhere.get(name, ""))


def _name(plan: Plan, file: Path) -> str:
    """Return the path of a file of the archive below its root."""
    return file.relative_to(plan.archive.root).as_posix()


def _key(c: Conversion, plan: Plan) -> str:
    """Return a key of the work: archive, reader, plan and options, but neither workers nor paths."""
    described = {
        "format": Manifest.FORMAT,
        "id": str(c.id),
        "reader": [ReaderName(plan.reader).recorded, plan.version, *filter(None, [c.reader_source])],
        "sources": [*map(dict, c.sources), *map(_named, () if c.sources else (*plan.archive.files, *c.beside))],
        "schema": [asdict(f) for f in plan.schema],
        "parts": [{"rows": p.rows, "args": dict(p.args)} for p in plan.parts],
        "episodes_by": plan.episodes_by,
        "fields": dict(plan.archive.fields),
        "frames": c.frames,
        **({"portion": c.portion.facts} if c.portion.cuts else {}),
        **({"skip_bad": True} if plan.archive.skip_bad else {}),
        **({"last_step": plan.archive.last_step} if plan.archive.last_step else {}),
        **({"rewards": plan.archive.rewards} if plan.archive.rewards else {}),
        **({"missing": plan.archive.missing} if plan.archive.missing else {}),
        **({"topics": [*plan.archive.topics]} if plan.archive.topics else {}),
        **({"hz": plan.archive.hz} if plan.archive.hz else {}),
        **({"nearest": True} if plan.archive.nearest else {}),
        **({"episode_info": info} if (info := plan.facts.get("episode_info")) else {}),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> str:
    """Return a string for a value that JSON cannot hold."""
    return hashlib.sha256(arrays.raw(value)).hexdigest() if isinstance(value, np.ndarray) else str(value)


def _named(file: Path) -> tuple[str, int, int]:
    _, size, written = bundles.state_of(file)
    return file.name, size, written
