"""Prepare a LeRobot dataset of the hub to be read where it is: rows are downloaded, of videos the tables alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rlds_cli import ids, settings
from rlds_cli.archives import Archive
from rlds_cli.downloads import listing
from rlds_cli.downloads.archive import source_of
from rlds_cli.downloads.fetch import fetching, planning
from rlds_cli.downloads.remote_file import RemoteFile
from rlds_cli.downloads.schemes import Unanswered
from rlds_cli.errors import ArchiveError, DatasetNotFound, DownloadFailed, InvalidArgument, TransferError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.files.locks import file_lock
from rlds_cli.formats import mp4
from rlds_cli.home import Home
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.remote import published
from rlds_cli.remote.published import Published
from rlds_cli.settings import Settings, StrPath
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.sources.objects import Objects
from rlds_cli.sources.opening import open_objects
from rlds_cli.text import natural

_AT_ONCE = 32  # videos
_HEAD, _PIECE = 1 << 10, 1 << 16  # bytes that are asked for at the beginning of a video, and further on
_INFO = "meta/info.json"


def prepare(
    address: str | Address, *, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
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
    where, asked = settings.read(cache_dir), addresses.parse(address) if isinstance(address, str) else address
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
    root = published.place_of(at, where)
    safe_files.directory(root, root.parent.parent)
    with file_lock(root / published.LOCK):
        found = published.load(root, at)
        if found is None:
            published.save(root, at, None)
            found = _made(at, root, files, where, shown(progress))
    return found


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


def _made(address: Address, root: Path, files: Sequence[RemoteFile], where: Settings, tell: Progress) -> Published:
    """Download rows and tables, and make the dataset."""
    from rlds_cli.convert.archive import Conversion, convert

    id = ids.parse(f"{ids.lerobot_id(str(address))}{'/' if address.path else ''}{address.path}")
    archive = root / "archive"
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
    place = Home(root)
    convert(c, place, progress=tell)
    published.save(root, address, place.dataset(id))
    trees.discard(archive)
    found = published.load(root, address)
    assert found is not None
    return found


def _video_source(f: RemoteFile) -> dict[str, object]:
    return {"file": f.path, "size": f.size, "sha256": f.sha256, "url": f.urls[0], "revision": f.revision}


def _fetch_tables(objects: Objects, videos: Sequence[RemoteFile], archive: Path, id: str, tell: Progress) -> None:
    """Write a sparse file for each video, which holds its tables alone."""
    done = 0
    with ThreadPoolExecutor(_AT_ONCE, "tables") as pool:
        running = [pool.submit(_fetch_table, objects, f, archive / f.path, archive) for f in videos]
        try:
            for task in running:
                task.result()
                done += 1
                tell(Event(id, "fetch", "tables of videos", done, len(videos), "videos"))
        except BaseException:
            objects.client.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_table(objects: Objects, f: RemoteFile, target: Path, root: Path) -> None:
    safe_files.directory(target.parent, root.parent)
    size, known = int(f.size or 0), dict[int, bytes]()

    def read(at: int, length: int) -> bytes:
        first = next((a for a, data in known.items() if a <= at and at + length <= a + len(data)), None)
        if first is None:
            first = at
            wanted = max(length, _PIECE if at else _HEAD)
            known[at] = objects.read_range(f.path, at, min(wanted, size - at))
        return known[first][at - first : at - first + length]

    try:
        mp4.tables(read, size, Path(f.path))
    except (ValueError, IndexError, ArchiveError) as e:
        raise ArchiveError(f"{objects.address}/{f.path}: the tables of the video cannot be read: {e}") from e
    with safe_files.replacing(target) as out:
        for at, data in known.items():
            out.seek(at)
            out.write(data)
        out.truncate(size)
        os.fsync(out.fileno())
