"""Prepare a LeRobot dataset of the hub to be read where it is: rows are downloaded, of videos the tables alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rlds_cli.archives import Archive
from rlds_cli.base import ids, settings, text
from rlds_cli.base.files import child, disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.media import mp4
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.text import natural
from rlds_cli.errors import (
    ArchiveError,
    DatasetNotFound,
    DownloadFailed,
    InvalidArgument,
    TransferError,
    UnsafeArchive,
)
from rlds_cli.homes import Home
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.archive import source_of
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import Address, Published, RemoteFile, Unanswered, open_objects
from rlds_cli.places.sources.objects import Objects
from rlds_cli.places.sources.place import Chunk

_AT_ONCE = 32  # requests
_TOGETHER = 128  # videos whose tables are looked for together
_LARGEST = 1 << 40  # bytes of a video
_MOST_BYTES = 4 << 30  # of the tables of all videos: those of a hundred million frames
_HEAD, _PIECE = 1 << 10, 1 << 16  # bytes that are asked for at the beginning of a video, and further on
_INFO = "meta/info.json"


def prepare(
    address: str | Address, *, home: StrPath | None = None, progress: Progress | bool | None = None
) -> Published:
    """Have a LeRobot dataset of the hub ready to be read where it is; `open_dataset` calls it.

    Its ``meta/`` and ``data/`` are downloaded and converted. Only the tables of each video are fetched, which
    say where its frames lie. What was prepared for a commit stays, and is used again.

    Parameters
    ----------
    address : str or Address
        ``hf://datasets/OWNER/NAME[/PATH][@REVISION]``.

    Raises
    ------
    DatasetNotFound
        There is no LeRobot dataset with videos.
    ArchiveError
        It cannot be read.
    DownloadFailed, WrongHash, Offline, NoSpace
    """
    where, asked = settings.read(home), Address.parse(address) if isinstance(address, str) else address
    if asked.scheme != "hf":
        raise InvalidArgument(f"{asked} is not of the hub.", hint="hf://datasets/OWNER/NAME[/PATH][@REVISION]")
    try:
        files = listing.list_files([str(asked.unpinned)], where)
    except Unanswered:
        raise
    except DownloadFailed as e:
        raise DatasetNotFound(f"The hub has nothing at {asked}.") from e
    _check(asked, files)
    at = replace(asked, revision=files[0].revision)
    return Published.prepared(
        at, where, lambda place, archive: _made(at, place, archive, files, where, shown(progress))
    )


def _check(address: Address, files: Sequence[RemoteFile]) -> None:
    """Refuse files that are not those of a LeRobot dataset with videos whose hashes are known."""
    videos = [f for f in files if f.path.endswith(".mp4")]
    if not any(f.path == _INFO for f in files):
        raise DatasetNotFound(f"{address} holds neither a dataset that was pushed nor a LeRobot dataset.")
    if not videos:
        raise DatasetNotFound(
            f"{address} is a LeRobot dataset without videos: there is nothing that could stay there.",
            hint=f"rlds download {ids.lerobot_id(str(address))}",
        )
    unknown = next((f for f in videos if f.size is None or f.sha256 is None or f.revision is None), None)
    if unknown is not None:
        raise TransferError(
            f"{address}: size and sha256 of {unknown.path} are not told.",
            hint=f"rlds download {ids.lerobot_id(str(address))}",
        )


def _made(
    address: Address, place: Home, archive: Path, files: Sequence[RemoteFile], where: Settings, tell: Progress
) -> Path:
    """Download rows and tables, and make the dataset; return its directory."""
    from rlds_cli.make.convert.archive import Conversion, convert

    id = ids.parse(f"{ids.lerobot_id(str(address))}{'/' if address.path else ''}{address.path}")
    rows = [f for f in files if f.path.startswith(("meta/", "data/"))]
    videos = [f for f in files if f.path.startswith("videos/") and f.path.endswith(".mp4")]
    fetched = fetching.fetch(planning.plan(rows, archive, where), where, id=str(id), progress=tell)
    with open_objects(address, where, progress=tell) as objects:
        _fetch_tables(objects, videos, archive, str(id), tell)
    films = [_video_source(f) for f in videos]
    c = Conversion(
        id=id,
        reader="lerobot",
        archive=Archive(
            archive, tuple(archive / f.path for f in sorted([*rows, *videos], key=lambda f: natural(f.path)))
        ),
        sources=tuple(sorted([*map(source_of, fetched), *films], key=lambda s: natural(str(s["file"])))),
        options={"frames": "encoded"},
        elsewhere={f.path: str(f.sha256) for f in videos},
    )
    convert(c, place, progress=tell)
    return place.dataset(id)


def _video_source(f: RemoteFile) -> dict[str, object]:
    return {"file": f.path, "size": f.size, "sha256": f.sha256, "url": f.urls[0], "revision": f.revision}


def _fetch_tables(objects: Objects, videos: Sequence[RemoteFile], archive: Path, id: str, tell: Progress) -> None:
    """Write a sparse file for each video, which holds its tables alone. Another process says where these lie."""
    _check_sizes(objects.address, videos)
    with child.reading(mp4.__name__, id=id, progress=tell), ThreadPoolExecutor(_AT_ONCE, "tables") as pool:
        budget = _MOST_BYTES
        try:
            for first in range(0, len(videos), _TOGETHER):
                some = [_Video(objects, f, archive / f.path, archive) for f in videos[first : first + _TOGETHER]]
                budget -= _complete(objects.address, some, pool, budget)
                tell(Event(id, "fetch", "tables of videos", min(first + _TOGETHER, len(videos)), len(videos), "videos"))
        except BaseException:
            objects.client.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _check_sizes(address: Address, videos: Sequence[RemoteFile]) -> None:
    """Refuse videos whose stated sizes no file has: they are those of the sparse files."""
    for f in videos:
        if (f.size or 0) > _LARGEST:
            raise UnsafeArchive(f"{address}/{f.path} states {f.size:,} bytes; a video has at most {_LARGEST:,}.")


def _complete(address: Address, videos: Sequence[_Video], pool: ThreadPoolExecutor, budget: int) -> int:
    """Fetch the tables of some videos, a range of each at a time; return the bytes that came."""
    fetched, waiting = 0, [(video, video.range(0, _HEAD)) for video in videos]
    while waiting:
        fetched += sum(size for _, (_, size) in waiting)
        if fetched > budget:
            raise UnsafeArchive(
                f"The tables of the videos of {address} take more than {text.size_of(_MOST_BYTES)}. They are not read.",
                hint=f"rlds download {ids.lerobot_id(str(address))}",
            )
        disk.check_space(fetched, waiting[0][0].target.parent)
        for task in [pool.submit(video.fetch, *wanted) for video, wanted in waiting]:
            task.result()
        partial = [mp4.Partial(video.target, video.size, tuple(video.held)) for video, _ in waiting]
        try:
            missing = child.ask(mp4.missing, partial, names=[p.file for p in partial])
        except ArchiveError as e:
            archive = videos[0].archive
            e.message = f"{e.message.replace(f'{archive}/', f'{address}/')} The tables of a video cannot be read."
            raise
        waiting = [
            (video, video.range(first, max(size, _PIECE)))
            for (video, _), wanted in zip(waiting, missing, strict=True)
            if wanted is not None
            for first, size in [wanted]
        ]
    return fetched


class _Video:
    """The sparse file of a video, whose bytes ``held`` have arrived."""

    def __init__(self, objects: Objects, f: RemoteFile, target: Path, archive: Path) -> None:
        self._objects, self._name, self.size = objects, f.path, int(f.size or 0)
        self.target, self.archive, self.held = target, archive, list[tuple[int, int]]()
        safe_files.directory(target.parent, archive.parent)
        safe_files.write_bytes(target, b"")
        try:
            os.truncate(target, self.size)
        except OSError as e:
            raise disk.disk_error(e, target) from e

    def range(self, first: int, size: int) -> tuple[int, int]:
        """Return the first byte and the number of those that the video has of a range."""
        return first, min(size, self.size - first)

    def fetch(self, first: int, size: int) -> None:
        """Write a range of the video as it arrives."""

        def write(chunk: Chunk) -> None:
            try:
                out.write(chunk)
            except OSError as e:
                raise disk.disk_error(e, self.target) from e

        with safe_files.updating(self.target) as out:
            out.seek(first)
            self._objects.stream(self._name, first, first + size, write, size=self.size)
        self.held.append((first, first + size))
