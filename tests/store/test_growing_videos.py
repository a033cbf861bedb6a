"""Videos in growing datasets: MP4 files are stored as they were published, and nothing is decoded."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_archives import Content, H, W, write_v3

import rlds_cli
from rlds_cli import Fifo, Reservoir, Top, preprocess
from rlds_cli.archives.exports.exporting import export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidEpisode, RldsError
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader
from rlds_cli.make.importing import import_files
from rlds_cli.store import Keep, commits, videos
from rlds_cli.store.growing import logs, segments
from rlds_cli.store.growing.verification import verify_directory

TOP = "observation/images/top"
LENGTHS = (6, 5, 9, 2, 7, 4, 3, 8)


class Noise(Content):
    """Frames that take about 9 kB each: a video is larger than a segment of `small`."""

    def frames(self, camera: str) -> np.ndarray:
        return np.random.default_rng(3).integers(0, 255, (self.rows, H, W, 3), np.uint8)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight episodes, three to a video."""
    content = Noise(lengths=LENGTHS, video=("top",), per_file=3, per_video=3, options={"g": "4", "bf": "0", "crf": "5"})
    return write_v3(tmp_path_factory.mktemp("videos") / "a", content)


@pytest.fixture
def film(archive: Path) -> Dataset:
    return import_files(archive, "local/film")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 4,096 rows and 64 KiB of videos."""
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    monkeypatch.setattr(segments, "bytes_of_segment", lambda width, most=None: 1 << 16)


def films(archive: Path) -> list[bytes]:
    return [f.read_bytes() for f in sorted(archive.rglob("*.mp4"))]


def used(ds: Dataset) -> list[int]:
    """Return the numbers of the videos to which episodes refer."""
    e = ds.episodes
    rows = [np.arange(s, s + n) for s, n in zip(e["start"], e["length"], strict=True)]
    return sorted(set(ds.store.rows(TOP)[np.concatenate(rows), 0].tolist()))


def stored(ds: Dataset) -> list[bytes]:
    """Return the videos to which episodes refer."""
    return [ds.store.videos(TOP).published(n).tobytes() for n in used(ds)]


def disk(ds: Dataset) -> int:
    """Return the bytes that the videos of a dataset take on the disk."""
    return sum(512 * f.stat().st_blocks for f in (ds.path / "video").rglob("c/*"))


def check(ds: Dataset, of: Dataset, numbers: list[int]) -> None:
    """Compare a dataset with the episodes of another one: frames, digests, and the fingerprint."""
    assert ds.episodes["length"].tolist() == of.episodes["length"][numbers].tolist()
    for i, k in enumerate(numbers):
        ours, theirs = ds.episode(i), of.episode(k)
        np.testing.assert_array_equal(ours[TOP], theirs[TOP])
        np.testing.assert_array_equal(ours["observation/state"], theirs["observation/state"])
    index = ds.episodes.index
    np.testing.assert_array_equal(ds.store.digests(TOP)[index], of.store.digests(TOP)[of.episodes.index[numbers]])
    assert verify_directory(ds.path, version=ds.version).problems == ()


# -- what is written


@pytest.mark.thorough
def test_an_append_copies_the_files_and_decodes_nothing(
    archive: Path, film: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "av", None)
        rlds_cli.append("local/run", archive)
    ds = rlds_cli.open_dataset("local/run")
    assert ds.schema == film.schema and ds.schema[TOP].codec == "mp4"
    assert stored(ds) == films(archive)
    assert disk(ds) <= sum(map(len, films(archive))) + 4 * 4096
    assert ds.fingerprint == film.fingerprint
    check(ds, film, list(range(8)))


@pytest.mark.thorough
def test_later_appends_add_their_files(tmp_path: Path) -> None:
    for k, lengths in enumerate(((4, 6, 3), (5, 2, 7))):
        write_v3(
            tmp_path / f"day{k}", Content(lengths=lengths, video=("top", "wrist"), image=("side",), per_video=k + 1)
        )
        rlds_cli.append("local/run", tmp_path / f"day{k}", home=tmp_path)
    ds = rlds_cli.open_dataset("local/run", home=tmp_path)
    days = [import_files(tmp_path / f"day{k}", f"local/day{k}", home=tmp_path) for k in range(2)]
    merged = rlds_cli.merge(days, "local/both", home=tmp_path)
    for name in (TOP, "observation/images/wrist", "observation/images/side"):
        for k in range(6):
            np.testing.assert_array_equal(ds.episode(k)[name], days[k // 3].episode(k % 3)[name])
            np.testing.assert_array_equal(ds.store.digests(name)[k], merged.store.digests(name)[k])
    assert stored(ds) == [*films_of(tmp_path / "day0", "top"), *films_of(tmp_path / "day1", "top")]
    assert verify_directory(ds.path).ok


def films_of(archive: Path, camera: str) -> list[bytes]:
    return [f.read_bytes() for f in sorted(archive.rglob("*.mp4")) if camera in str(f.relative_to(archive))]


@pytest.mark.thorough
@pytest.mark.parametrize("like", [True, False])
def test_episodes_of_another_dataset_keep_their_videos(archive: Path, film: Dataset, like: bool) -> None:
    """Each is stored once, though every episode is committed by itself."""
    with rlds_cli.writer("local/run", like=film if like else None) as w:
        for k in range(8):
            w.add_episodes([film.episode(k)])
            w.commit()
    ds = w.dataset()
    assert stored(ds) == films(archive) and len(ds.store.videos(TOP)) == 3
    assert ds.fingerprint == film.fingerprint
    check(ds, film, list(range(8)))
    again = rlds_cli.create("local/again", (ds.episode(k) for k in range(8)))
    assert again.fingerprint == film.fingerprint and stored(again) == films(archive)
    with rlds_cli.writer("local/third") as w:  # from one that grows to another one
        w.add_episodes(ds.episode(k) for k in range(8))
    assert w.dataset().fingerprint == film.fingerprint


@pytest.mark.thorough
def test_frames_as_arrays_if_wanted(film: Dataset, archive: Path) -> None:
    with rlds_cli.writer("local/run", like=film, frames="raw") as w:
        w.add_episodes([film.episode(0)])
        w.commit()
        ds = w.dataset()
    assert ds.schema[TOP].kind == "array"
    np.testing.assert_array_equal(ds.episode(0)[TOP], film.episode(0)[TOP])
    rlds_cli.append("local/run", archive)
    ds = rlds_cli.open_dataset("local/run")
    np.testing.assert_array_equal(ds.episode(4)[TOP], film.episode(3)[TOP])
    with (
        rlds_cli.writer("local/videos", like=film) as w,
        pytest.raises(InvalidEpisode, match="images/top is numbers here only"),
    ):
        w.add_episodes([{**film.episode(0), TOP: np.zeros_like(film.episode(0)[TOP])}])


@pytest.mark.thorough
def test_a_video_of_a_damaged_source_is_refused_and_changes_nothing(film: Dataset) -> None:
    data = film.path / "video" / TOP / "bytes" / "c" / "0"
    data.chmod(0o600)
    with rlds_cli.writer("local/run", like=film) as w:
        w.add_episodes([film.episode(0)])
        w.commit()
        before, episode = w.dataset(), film.episode(3)
        with data.open("r+b") as file:
            start = int(film.store.videos(TOP).spans[1, 0])
            file.seek(start + 4)
            file.write(b"no mp4")
        w.add_episodes([episode])
        with pytest.raises(RldsError, match="not an MP4 file"):
            w.commit()
        with pytest.raises(RldsError):
            w.close()
    ds = rlds_cli.open_dataset("local/run")
    assert ds.version == before.version and verify_directory(ds.path).ok


# -- what leaves


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "keep", [None, Fifo(steps=20), Fifo(episodes=3), Reservoir(episodes=3, seed=3), Top(episodes=3)], ids=str
)
@pytest.mark.parametrize("seed", range(2))
def test_episodes_in_any_order_of_commits(film: Dataset, keep: Keep | None, seed: int, small: None) -> None:
    """Versions that are held keep their videos, and those that no episode refers to are freed."""
    rng, episodes = np.random.default_rng(seed), [film.episode(k) for k in range(8)]
    numbers, held = list[int](), list[tuple[Dataset, list[int]]]()
    with rlds_cli.writer("local/run", like=film, keep=keep, durable=False) as w:
        for turn in range(8):
            chosen = rng.integers(0, 8, rng.integers(1, 4)).tolist()
            numbers = numbers + chosen
            w.add_episodes(episodes[k] for k in chosen)
            w.commit()
            ds = w.dataset()
            numbers = numbers if keep is None else of(ds, film)
            if turn % 3 == 0:
                held.append((ds, numbers))
                held = held[-2:]
            if turn == 5:
                w.clear()
                numbers = []
    for ds, then in [*held, (w.dataset(), of(w.dataset(), film))]:
        check(ds, film, then)
    held.clear()
    del ds
    compact("local/run")
    rlds_cli.writer("local/run", durable=False).close()  # frees what was held
    ds = rlds_cli.open_dataset("local/run")
    check(ds, film, of(ds, film))
    assert disk(ds) <= sum(map(len, stored(ds))) + 4096 * (4 + 2 * len(stored(ds))) + (1 << 16)


def of(ds: Dataset, film: Dataset) -> list[int]:
    """Return the numbers of episodes by what they hold."""
    firsts = film.column("observation/state", gaps=True)[film.episodes["start"], 0].tolist()
    return [firsts.index(v) for v in ds.column("observation/state", gaps=True)[ds.episodes["start"], 0].tolist()]


@pytest.mark.thorough
def test_videos_that_only_left_episodes_need_are_freed(archive: Path, film: Dataset, small: None) -> None:
    with rlds_cli.writer("local/run", like=film, keep=Fifo(episodes=2), durable=False) as w:
        w.add_episodes(film.episode(k) for k in range(8))
    ds, last = w.dataset(), films(archive)[-1]
    check(ds, film, [6, 7])
    assert stored(ds) == [last]
    assert disk(ds) <= len(last) + (2 << 16)


def test_compacting_keeps_contents_and_bytes(archive: Path, film: Dataset, small: None) -> None:
    with rlds_cli.writer("local/run", like=film, keep=Top(episodes=4), durable=False) as w:
        for k in (7, 1, 4, 0, 2, 6, 3, 5):
            w.add_episodes([film.episode(k)])
            w.commit()
    before = w.dataset()
    numbers = of(before, film)
    done = compact("local/run")
    assert done.changed and done.fingerprint == before.fingerprint
    check(before, film, numbers)
    check(before.refresh(), film, numbers)
    with rlds_cli.writer("local/run", durable=False) as w:  # it continues behind the videos that were moved
        w.add_episodes([film.episode(5)])
    after = before.refresh()
    del before
    check(after, film, of(after, film))
    rlds_cli.writer("local/run").close()  # frees what was held
    assert disk(after) <= sum(map(len, stored(after))) + 4096 * (2 + len(stored(after))) + (1 << 16)


WRITER = """
import os, signal, sys
import rlds_cli
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.verification import verify

left = [int(sys.argv[1])]

def counted(call):
    def one(*given):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given)
    return one

film = rlds_cli.open_dataset("local/film")
episodes = [film.episode(k) for k in range(3, 8)]
os.pwrite, os.fdatasync = counted(os.pwrite), counted(os.fdatasync)
with rlds_cli.writer("local/run") as w:
    w.add_episodes(episodes)
compact("local/run")
"""


@pytest.mark.slow
def test_a_kill_at_any_write_leaves_whole_commits(film: Dataset, tmp_path: Path) -> None:
    with rlds_cli.writer("local/run", like=film, keep=Top(episodes=5)) as w:
        w.add_episodes(film.episode(k) for k in range(3))
    path, first = w.dataset().path, w.dataset().version
    shutil.copytree(path, tmp_path / "copy")
    versions, killed = list[int](), 0
    for calls in range(0, 300, 9):
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "copy", path)
        said = subprocess.run(
            [sys.executable, "-c", WRITER, str(calls)], capture_output=True, text=True, timeout=120,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        ds = rlds_cli.open_dataset("local/run")
        check(ds, film, of(ds, film))
        versions.append(ds.version)
        del ds
        with rlds_cli.writer("local/run") as w:  # the next writer is not hindered
            w.add_episodes([film.episode(1)])
        check(w.dataset(), film, of(w.dataset(), film))
        if said.returncode == 0:
            break
        assert said.returncode == -signal.SIGKILL, said.stderr
        killed += 1
    assert killed > 5 and versions[0] == first and versions[-1] >= first + 2


# -- what reads it


def test_batches_merges_exports_and_other_processes(tmp_path: Path, film: Dataset, archive: Path, small: None) -> None:
    with rlds_cli.writer("local/run", like=film) as w:
        w.add_episodes(film.episode(k) for k in range(4))
        w.commit()
        grown = w.dataset()
        live = iter(Loader(grown, 8, live=True, seed=0, fields=[TOP, "action"]))
        next(live)
        w.add_episodes(film.episode(k) for k in range(4, 8))
        w.commit()
        for batch, _ in zip(live, range(3), strict=False):
            assert batch[TOP].shape == (8, H, W, 3)
    grown = grown.refresh()
    for a, b in zip(Loader(grown, 8, seed=1, steps=3), Loader(film, 8, seed=1, steps=3), strict=True):
        assert np.array_equal(a[TOP], b[TOP])
    again = pickle.loads(pickle.dumps(grown))
    assert again.fingerprint == film.fingerprint and stored(again) == films(archive)
    merged = rlds_cli.merge([grown], "local/merged")
    assert merged.schema[TOP].codec == "mp4" and stored(merged) == films(archive)
    np.testing.assert_array_equal(merged.episode(7)[TOP], film.episode(7)[TOP])
    export(grown, "lerobot", tmp_path / "out")
    assert import_files(tmp_path / "out", "local/back").store.digests(TOP).shape == (8, 32)
    done = preprocess.run(grown, doubled, "doubled", jobs=1)
    assert stored(done) == films(archive)
    np.testing.assert_array_equal(done.column("double"), 2 * film.column("action")[: film.num_rows])


def doubled(episode: Any) -> Any:
    return {**episode, "double": 2 * episode["action"]}


@pytest.mark.thorough
def test_a_push_and_a_download_keep_the_videos(tmp_path: Path, film: Dataset, small: None) -> None:
    with rlds_cli.writer("local/run", like=film, keep=Fifo(episodes=4), durable=False) as w:
        w.add_episodes(film.episode(k) for k in range(8))
    ds, place = w.dataset(), str(tmp_path / "store" / "run")
    rlds_cli.push("local/run", place, pages=False)
    far = rlds_cli.open_dataset(place, home=tmp_path / "third")
    for i, k in enumerate([4, 5, 6, 7]):
        np.testing.assert_array_equal(far.episode(i)[TOP], film.episode(k)[TOP])
    shutil.copytree(ds.path, tmp_path / "plain")
    for k, source in enumerate((place, str(tmp_path / "plain"))):
        copy = rlds_cli.download(source, home=tmp_path / f"other{k}")
        assert copy.fingerprint == ds.fingerprint and stored(copy) == stored(ds)
        check(copy, film, [4, 5, 6, 7])


@pytest.mark.thorough
def test_numpy_alone_reads_videos(film: Dataset, archive: Path, small: None) -> None:
    found = spec_from_file_location(
        "read_with_numpy", Path(__file__).parents[2] / "docs" / "reference" / "read_with_numpy.py"
    )
    assert found is not None and found.loader is not None
    script = module_from_spec(found)
    found.loader.exec_module(script)
    with rlds_cli.writer("local/run", like=film, keep=Fifo(episodes=2)) as w:
        w.add_episodes(film.episode(k) for k in range(8))
    plain = script.Dataset(w.dataset().path)
    field = next(f for f in plain.fields if f["name"] == TOP)
    assert plain.video(field, int(plain.episode(1)[TOP][0, 0])) == films(archive)[2]
    assert plain.fingerprint() == w.dataset().fingerprint


# -- damage


@pytest.mark.thorough
def test_damage_of_videos_is_found(archive: Path, film: Dataset) -> None:
    rlds_cli.append("local/run", archive)
    path = rlds_cli.open_dataset("local/run").path
    with (path / "video" / TOP / "bytes" / "c" / "0").open("r+b") as file:
        file.seek(len(films(archive)[0]) + 700)
        file.write(b"damage")
    found = verify_directory(path)
    assert [(p.where, p.episodes) for p in found.problems] == [(TOP, (k, k + 1)) for k in (3, 4, 5)]


def test_records_of_strangers_are_refused(archive: Path, film: Dataset) -> None:
    rlds_cli.append("local/run", archive)
    path = rlds_cli.open_dataset("local/run").path
    whole = (path / logs.VIDEOS).read_bytes()
    for name, value in (("field", 1), ("field", -1), ("span", [9, 5]), ("span", [-1, 5]), ("span", [1 << 61, 1 << 62])):
        e = np.frombuffer(bytearray(whole), logs.VIDEO_RECORD)
        e[name][1] = value
        (path / logs.VIDEOS).write_bytes(e.tobytes())
        with pytest.raises(DamagedDataset, match="record 1 is not possible"):
            rlds_cli.open_dataset(path).gather(TOP, np.array([0]))
        assert not verify_directory(path).ok
    for span in ([1 << 40, (1 << 40) + 9], [0, 7], [5, 5]):
        e = np.frombuffer(bytearray(whole), logs.VIDEO_RECORD)
        e["span"][1] = span
        (path / logs.VIDEOS).write_bytes(e.tobytes())
        with pytest.raises(DamagedDataset, match="video 1"):
            rlds_cli.open_dataset(path).gather(TOP, rlds_cli.open_dataset(path).episodes["start"][3:4])
        assert not verify_directory(path).ok
    (path / logs.VIDEOS).write_bytes(whole)
    newest = commits.last(path)
    rows = np.fromfile(path / TOP / "c" / "0" / "0", "<i4", 2 * newest.rows).reshape(-1, 2)
    for number in (3, -2, 1 << 30):
        rows[0, 0] = number
        with (path / TOP / "c" / "0" / "0").open("r+b") as file:
            file.write(rows.tobytes())
        assert [(p.where, p.episodes) for p in verify_directory(path).problems] == [(TOP, (0, 1))]


# -- datasets that share the files


@pytest.mark.thorough
def test_selections_merges_and_results_share_videos(film: Dataset, archive: Path, small: None) -> None:
    with rlds_cli.writer("local/run", like=film, keep=Fifo(episodes=6), durable=False) as w:
        for k in range(film.num_episodes):
            w.add_episodes([film.episode(k)])
            w.commit()
    ds = w.dataset()
    before = film.select(episodes=[3, 5, 7])
    some = ds.select(episodes=[1, 3, 5]).save("some")
    assert some.fingerprint == before.fingerprint
    assert stored(some) == films(archive)[1:]
    with rlds_cli.writer("local/run", durable=False) as w:
        w.clear()
        w.add_episodes([film.episode(0)])
    merged = rlds_cli.merge(["local/run", "local/run@some"], "local/merged")
    whole = film.select(episodes=[0, 3, 5, 7])
    for k in range(4):
        assert np.array_equal(merged.episode(k)[TOP], whole.episode(k)[TOP])
    twice = preprocess.run(some, double, "twice", jobs=0)
    for k, e in enumerate((3, 5, 7)):
        assert np.array_equal(twice.episode(k)[TOP], film.episode(e)[TOP])
        assert np.array_equal(twice.episode(k)["action"], 2 * film.episode(e)["action"])
    for made in (some, merged, twice):
        assert not verify(made.path).problems
    inodes = {f.stat().st_ino for f in some.path.rglob("*") if f.is_file()}
    of_films = [f for f in (twice.path / "video").rglob("bytes/*/c/*") if f.is_file()]
    assert of_films and all(f.stat().st_ino in inodes for f in of_films)
    compact("local/run@some")
    assert rlds_cli.open_dataset("local/run@some").fingerprint == before.fingerprint


def double(episode: Any) -> Any:
    episode["action"] = 2 * episode["action"]
    return episode


@pytest.mark.slow
def test_a_frame_at_an_address_fetches_no_more_than_two_groups_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a video of ten; its table is sent beside it, and is no part of a copy of the dataset."""
    options = {"g": "100", "bf": "0", "crf": "5", "sc_threshold": "0"}
    content = Noise(lengths=(1000,), video=("top",), per_file=1, per_video=1, options=options)
    source = import_files(write_v3(tmp_path / "long", content), "local/long")
    with rlds_cli.writer("local/seen", like=source, durable=False) as w:
        w.add_episodes([source.episode(0)])
    rlds_cli.push("local/seen", str(tmp_path / "pushed"), pages=False)
    frame = np.array([599])  # the last one of its group, far from what opening fetches
    wanted, track = source.gather(TOP, frame), source.store.videos(TOP).video(0).track
    assert track.key.sum() == 10
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "other"))  # nothing is copied from the home above
    far = rlds_cli.open_dataset(str(tmp_path / "pushed"))
    np.asarray(far.store.rows(TOP)[:])
    before = far.store.files.stats.fetched
    assert np.array_equal(far.gather(TOP, frame), wanted)
    groups = np.add.reduceat(track.size, np.flatnonzero(track.key))
    assert 0 < far.store.files.stats.fetched - before <= 2 * groups[5]
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "third"))
    copied = rlds_cli.download(str(tmp_path / "pushed"), name="local/copied")
    assert verify(copied.path).ok and not list(copied.path.rglob("tables/*"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("table", [b"", b"{}\n", b"[]\n" + bytes(31), b"\xff\n" + bytes(32)])
def test_a_table_that_is_none_is_refused(
    film: Dataset, tmp_path: Path, table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rlds_cli.writer("local/seen", like=film, durable=False) as w:
        w.add_episodes([film.episode(0)])
    monkeypatch.setattr(videos.Videos, "table", lambda self, number: table)
    rlds_cli.push("local/seen", str(tmp_path / "pushed"), pages=False)
    far = rlds_cli.open_dataset(str(tmp_path / "pushed"), home=tmp_path / "other")
    with pytest.raises(DamagedDataset, match="video 0 cannot be read"):
        far.episode(0)
    pinned = f"{tmp_path / 'pushed'}#{rlds_cli.open_dataset('local/seen').fingerprint}"
    proved = rlds_cli.open_dataset(pinned, home=tmp_path / "third")  # tables of what is proved are not read
    assert proved.store.address and np.array_equal(proved.episode(0)[TOP], film.episode(0)[TOP])
