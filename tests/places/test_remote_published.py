"""LeRobot datasets of the hub, read where they are: rows are downloaded, videos are read by ranges."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lerobot_archives
import numpy as np
import pytest
from conftest import run_rlds
from hub_server import Hub, Repository
from lerobot_archives import Content
from object_store import Fault

import rlds_cli
from rlds_cli.base.files import child
from rlds_cli.base.files.locks import file_lock
from rlds_cli.dataset import Dataset
from rlds_cli.errors import ArchiveError, DatasetNotFound, DownloadFailed, Offline, UnsafeArchive, WrongFingerprint
from rlds_cli.loader import Loader, Sequential, Shuffled, Slice

PLACE = "hf://datasets/lab/arm"
CAMERAS = Content(lengths=(20, 16, 26, 9), video=("top", "wrist"), per_video=2, options={"g": "2", "bf": "0"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as running:
        for name in ("HF_ENDPOINT", "HF_TOKEN", "NO_PROXY"):
            monkeypatch.setenv(name, running.environ(tmp_path)[name])
        yield running


def publish(hub: Hub, directory: Path, repository: str = "lab/arm", states: int | None = None) -> str:
    """Put the files of a directory into a repository, in one commit; return the commit.

    ``states`` is the size that the hub states of each video.
    """
    files: dict[str, bytes | tuple[str, int]] = {".gitattributes": b"*.mp4 filter=lfs\n"}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        data, name = path.read_bytes(), path.relative_to(directory).as_posix()
        if path.suffix in (".mp4", ".parquet"):
            digest = hashlib.sha256(data).hexdigest()
            hub.objects[repository, digest] = data
            files[name] = digest, len(data) if states is None or path.suffix != ".mp4" else states
        else:
            files[name] = data
    return hub.repositories.setdefault(repository, Repository()).commit(files, "add")


def bytes_of_videos(hub: Hub) -> int:
    """Bytes of videos that were asked for, and forget the requests."""
    total = 0
    for r in hub.stored:
        wanted = r.headers.get("Range", "")
        if r.method == "GET" and wanted:
            a, b = wanted.removeprefix("bytes=").split("-")
            total += int(b) - int(a) + 1
    hub.stored.clear()
    return total


def same_batches(a: Dataset, b: Dataset, **options: Any) -> bool:
    """Whether batches of two datasets are equal in every field: a quarter of an epoch."""
    ours, theirs = (islice(Loader(ds, 16, seed=3, backend="numpy", **options), 2) for ds in (a, b))
    return all(np.array_equal(x[name], y[name]) for x, y in zip(ours, theirs, strict=True) for name in x.names())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are published."""
    return lerobot_archives.write_v3(tmp_path_factory.mktemp("arm") / "files", CAMERAS)


@pytest.fixture(scope="module")
def imported(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the dataset that is made of these files."""
    home = tmp_path_factory.mktemp("imported")
    with child.here():
        rlds_cli.import_files(files, "local/arm", home=home)
    return home


@pytest.fixture
def whole(hub: Hub, files: Path, imported: Path, home: Path) -> Dataset:
    """The same dataset, imported from its files, which are published."""
    publish(hub, files)
    shutil.copytree(imported, home, symlinks=True)
    return rlds_cli.open_dataset("local/arm")


def test_it_trains_from_the_hub_without_its_videos(hub: Hub, whole: Dataset, files: Path) -> None:
    ds = rlds_cli.open_dataset(PLACE)
    videos = sum(len(data) for (_, digest), data in hub.objects.items() if data[4:8] == b"ftyp")
    assert bytes_of_videos(hub) < videos
    assert ds.fingerprint == whole.fingerprint, "the content is that of the whole files"
    assert ds.id == "lerobot/lab/arm" and ds.schema == whole.schema
    for options in ({"sampler": Shuffled()}, {"sampler": Sequential(), "window": Slice(4)}):
        assert same_batches(ds, whole, **options)
    top = "observation/images/top"
    assert np.array_equal(ds.episode(2)[top], whole.episode(2)[top])
    assert np.array_equal(ds.column("action"), whole.column("action"))
    file = "videos/observation.images.top/chunk-000/file-000.mp4"
    published = lerobot_archives.decoded(files / file)
    assert np.array_equal(ds.episode(1)[top][:16], published[20:36]), "of the file, by PyAV"


def test_what_arrived_is_not_asked_for_again(hub: Hub, whole: Dataset) -> None:
    first = rlds_cli.open_dataset(PLACE)
    list(Loader(first, 32, sampler=Sequential()))
    bytes_of_videos(hub)
    again = rlds_cli.open_dataset(PLACE)
    assert same_batches(again, whole, sampler=Shuffled())
    assert bytes_of_videos(hub) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("write", [lerobot_archives.write_v3, lerobot_archives.write_v2])
def test_single_frames_fetch_their_groups_of_pictures(
    hub: Hub, tmp_path: Path, write: Callable[[Path, Content], Path]
) -> None:
    rng = np.random.default_rng(0)
    noise = Content(lengths=(30, 20), video=("top",), per_video=2, options={"g": "2", "bf": "0", "qp": "4"})
    noise.frames = lambda camera: rng.integers(0, 255, (50, 48, 64, 3), np.uint8)  # type: ignore[method-assign]
    publish(hub, write(tmp_path / "files", noise))
    ds = rlds_cli.open_dataset(PLACE)
    of, bytes_before = ds.store.videos("observation/images/top"), bytes_of_videos(hub)
    assert bytes_before > 0
    rows = rng.permutation(ds.num_rows - 2)[:10]
    index = ds.store.rows("observation/images/top")[rows]
    starts, stops = of.ranges(index)
    ds.store.gather("observation/images/top", rows)
    assert bytes_of_videos(hub) <= (stops - starts + 2 * 4096).sum()


def test_the_hub_is_asked_for_each_video_once(hub: Hub, whole: Dataset) -> None:
    ds, top = rlds_cli.open_dataset(PLACE), "observation/images/top"
    ds.gather(top, np.array([0, 45]))  # of both videos of the camera
    hub.requests.clear()
    for row in (10, 15, 50, 60):
        assert np.array_equal(ds.gather(top, np.array([row])), whole.gather(top, np.array([row])))
    assert not hub.requests, "the storage gave all of these"
    hub.faults.append(Fault("403", "GET", "signature="))  # the address holds no more
    assert np.array_equal(ds.gather(top, np.array([33])), whole.gather(top, np.array([33])))
    assert len([r for r in hub.requests if r.path.endswith(".mp4")]) == 1


def test_later_commits_are_other_datasets(hub: Hub, whole: Dataset, tmp_path: Path) -> None:
    first = rlds_cli.open_dataset(PLACE)
    old = hub.repositories["lab/arm"].head
    longer = Content(lengths=(9, 8), video=("top", "wrist"), options={"g": "2", "bf": "0"})
    publish(hub, lerobot_archives.write_v3(tmp_path / "later", longer))
    assert rlds_cli.open_dataset(PLACE).num_episodes == 2
    assert rlds_cli.open_dataset(f"{PLACE}@{old}").fingerprint == first.fingerprint == whole.fingerprint
    assert same_batches(first, whole, sampler=Shuffled()), "it keeps to the commit that it was opened at"


def test_without_a_network_what_is_here_opens(hub: Hub, whole: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    list(Loader(PLACE, 32, sampler=Sequential()))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    assert same_batches(rlds_cli.open_dataset(PLACE), whole, sampler=Shuffled())
    with pytest.raises(Offline, match="network"):
        rlds_cli.open_dataset("hf://datasets/lab/other")


def test_a_fingerprint_pins_it(hub: Hub, whole: Dataset) -> None:
    assert rlds_cli.open_dataset(f"{PLACE}#{whole.fingerprint}").num_rows == whole.num_rows
    with pytest.raises(WrongFingerprint):
        rlds_cli.open_dataset(f"{PLACE}#rlds1:{'0' * 64}")
    with pytest.raises(DatasetNotFound, match="no versions"):
        rlds_cli.open_dataset(f"{PLACE}#v2")


@pytest.mark.slow
def test_other_processes_read_it(hub: Hub, whole: Dataset) -> None:
    ds = rlds_cli.open_dataset(PLACE)
    again = pickle.loads(pickle.dumps(ds))
    assert same_batches(again, whole, sampler=Shuffled())
    result, local = (
        rlds_cli.preprocess.run(x, "resize", "small", args={"size": "24x32"}, jobs=jobs)
        for x, jobs in ((again, 2), (whole, 0))
    )
    assert np.array_equal(result.episode(1)["observation/images/top"], local.episode(1)["observation/images/top"])


@pytest.mark.slow
def test_a_bounded_cache_and_none(hub: Hub, whole: Dataset) -> None:
    for cache in ("64KiB", 0):
        assert same_batches(rlds_cli.open_dataset(PLACE, cache=cache), whole, sampler=Shuffled())


def test_an_interrupted_preparation_goes_on(hub: Hub, whole: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlds_cli.make.downloads import published

    def broken(*_: object) -> None:
        raise DownloadFailed("cut")

    with monkeypatch.context() as cut:
        cut.setattr(published, "_fetch_tables", broken)
        with pytest.raises(DownloadFailed, match="cut"):
            rlds_cli.open_dataset(PLACE)
    assert rlds_cli.open_dataset(PLACE).fingerprint == whole.fingerprint


def test_what_has_no_videos_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    publish(hub, lerobot_archives.write_v3(tmp_path / "files", Content()), "lab/plain")
    with pytest.raises(DatasetNotFound, match="without videos") as e:
        rlds_cli.open_dataset("hf://datasets/lab/plain")
    assert e.value.hint == "rlds download lerobot/lab/plain"
    with pytest.raises(DatasetNotFound, match="lab/nothing"):
        rlds_cli.open_dataset("hf://datasets/lab/nothing")


def test_it_is_shown_and_collected(hub: Hub, whole: Dataset, home: Path) -> None:
    shown = run_rlds("inspect", PLACE)
    assert shown.returncode == 0 and b"lerobot/lab/arm" in shown.stdout
    (root,) = (home / "remote").glob("published-*")
    with file_lock(root / "lock"):
        run_rlds("gc", "--remote", "--yes")
        assert root.exists(), "a process prepares it"
    assert run_rlds("gc", "--remote", "--yes").returncode == 0
    assert not list((home / "remote").glob("published-*"))


# -- a hub that lies about its videos


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def lying(hub: Hub, tmp_path: Path, video: bytes, *, states: int | None = None, name: str = "lab/arm") -> None:
    """Publish a sound dataset, in which each video is ``video``."""
    top = Path(tempfile.mkdtemp(dir=tmp_path))
    files = lerobot_archives.write_v3(top / "files", Content(lengths=(4,), video=("top",), options={"g": "2"}))
    for path in files.rglob("*.mp4"):
        path.write_bytes(video)
    publish(hub, files, name, states)


@pytest.mark.parametrize(("content", "most"), [(b"", 256), (bytes(70_000), 30)], ids=["empty", "of 70,000 bytes"])
def test_an_endless_chain_of_boxes_is_left(
    content: bytes, most: int, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content:  # else they are in one piece
        monkeypatch.setattr("rlds_cli.base.media.mp4._MOST_BOXES", most)
    lying(hub, tmp_path, box(b"ftyp", b"isom") + box(b"free", content) * 2 * most)
    bytes_of_videos(hub)
    with pytest.raises(ArchiveError, match=f"{PLACE}.*mp4 has no tables among its first {most} boxes"):
        rlds_cli.open_dataset(PLACE)
    assert bytes_of_videos(hub) <= most * (1 << 16), "a piece for each box that is looked at"


@pytest.mark.parametrize("states", [1 << 50, (1 << 63) - 1])
def test_a_size_that_no_video_has_is_refused(states: int, hub: Hub, tmp_path: Path, home: Path) -> None:
    lying(hub, tmp_path, box(b"ftyp", b"isom") + box(b"moov"), states=states)
    with pytest.raises(UnsafeArchive, match=f"mp4 states {states:,} bytes"):
        rlds_cli.open_dataset(PLACE)
    assert not list(home.rglob("*.mp4"))


def test_a_box_that_ends_behind_its_video_is_no_endless_question(hub: Hub, tmp_path: Path) -> None:
    for video in (struct.pack(">I4s", 1, b"ftyp"), b"", struct.pack(">I4s", 8, b"ftyp") + b"\0\0\0\1mdat\0\0"):
        lying(hub, tmp_path, video)
        with pytest.raises(ArchiveError, match=r"cut short|interrupted"):
            rlds_cli.open_dataset(PLACE)


OPEN = """
import re, sys
from pathlib import Path
import rlds_cli
from rlds_cli.errors import ArchiveError
peak = lambda: int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
for place in sys.argv[1:]:
    try:
        rlds_cli.open_dataset(place)
    except ArchiveError as e:
        print(peak(), e.message)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="where a process reads its own peak")
def test_tables_go_to_the_disk_and_not_to_memory(hub: Hub, tmp_path: Path) -> None:
    """The second dataset takes no more memory than the first one, whose tables are small."""
    moov = 24 << 20
    for name, size in (("lab/small", 8), ("lab/large", moov)):
        lying(hub, tmp_path, box(b"ftyp", b"isom") + box(b"moov", bytes(size)), name=name)
    places = [f"hf://datasets/lab/{name}" for name in ("small", "large")]
    done = subprocess.run([sys.executable, "-c", OPEN, *places], capture_output=True, text=True, check=True)
    small, large = done.stdout.splitlines()
    assert "the tables of the video are damaged" in small and "the tables of the video are damaged" in large
    assert int(large.split()[0]) - int(small.split()[0]) < moov // 2


def test_the_tables_of_all_videos_have_a_bound(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.make.downloads.published._MOST_BYTES", 1 << 20)
    lying(hub, tmp_path, box(b"ftyp", b"isom") + box(b"moov", bytes(1 << 20)))
    with pytest.raises(UnsafeArchive, match=r"take more than 1\.0 MiB"):
        rlds_cli.open_dataset(PLACE)
    assert bytes_of_videos(hub) < 1 << 17, "the head alone"
