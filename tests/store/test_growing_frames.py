"""Encoded frames in growing datasets: the bytes are stored as they were given."""

from __future__ import annotations

import pickle
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames_data import SHAPE, decoded, film, jpeg

import rlds_cli
from rlds_cli import Fifo, Reservoir, Top, preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.keep import verification
from rlds_cli.keep.compacting import compact
from rlds_cli.loader import Loader
from rlds_cli.store import Keep
from rlds_cli.store.growing import logs, segments
from rlds_cli.store.growing.verification import verify_directory
from rlds_cli.ted import Field

LENGTHS = [3, 5, 2, 7, 4, 6]


def episode(k: int, steps: int = 4) -> dict[str, Any]:
    return {
        "observation": [jpeg(k, t) for t in range(steps + 1)],
        "action": np.full(steps, k),
        "next": {"reward": np.full(steps, float(k)), "terminated": True},
    }


def record(w: Any, k: int, steps: int = 4) -> None:
    """Record the steps of an episode with frames one by one."""
    for t in range(steps):
        w.add(jpeg(k, t), k, float(k), t == steps - 1, next_observation=jpeg(k, t + 1))


def stored(ds: Dataset, k: int) -> list[bytes]:
    """Return the bytes of the frames of an episode."""
    start, rows = (int(ds.episodes[name][k]) for name in ("start", "num_observed"))
    return [ds.store.frames("observation").packet(row) for row in range(start, start + rows)]


def check(ds: Dataset, numbers: list[int], steps: int | None = 4) -> None:
    """Compare bytes, decoded frames and digests of the episodes of a dataset."""
    assert (
        [int(a) for a in ds.column("action", gaps=True)[ds.episodes["start"]]] == numbers
        if numbers
        else not ds.num_episodes
    )
    for i, k in enumerate(numbers):
        length = int(ds.episodes["length"][i])
        assert steps is None or length == steps
        assert stored(ds, i) == [jpeg(k, t) for t in range(length + 1)]
        assert np.array_equal(ds.episode(i)["observation"], [decoded(k, t) for t in range(length)])
    assert verify_directory(ds.path, version=ds.version).ok


def size_of_jpegs(numbers: range, steps: int = 4) -> int:
    return sum(len(jpeg(k, t)) for k in numbers for t in range(steps + 1))


def blocks(path: Path) -> int:
    """Return the bytes of the rows below a directory on the disk."""
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if "c" in file.parts and file.is_file())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 4,096 rows and 64 KiB of frames."""
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    monkeypatch.setattr(segments, "bytes_of_segment", lambda width, most=None: 1 << 16)


# -- what is written


@pytest.mark.thorough
def test_steps_and_episodes_keep_their_bytes() -> None:
    with rlds_cli.writer("local/run") as w:
        record(w, 0)
        w.commit()
        first = w.dataset()
        w.add_episodes([episode(1), episode(2)])
        record(w, 3)
    ds = w.dataset()
    assert (ds.schema["observation"].kind, ds.schema["observation"].codec) == ("frames", "jpeg")
    check(ds, [0, 1, 2, 3])
    check(first, [0])
    check(first.refresh(), [0, 1, 2, 3])
    assert ds.fingerprint == rlds_cli.create("local/plain", [episode(k) for k in range(4)]).fingerprint


@pytest.mark.thorough
def test_an_open_episode_is_shown_as_cut_and_goes_on() -> None:
    w = rlds_cli.writer("local/run")
    for t in range(6):
        w.add(jpeg(0, t), 0, 0.0, t == 5, next_observation=jpeg(0, t + 1))
        w.commit()
        assert stored(w.dataset(), 0) == [jpeg(0, s) for s in range(t + 2)]
    w.close()
    check(w.dataset(), [0], 6)


@pytest.mark.thorough
def test_episodes_of_an_ordinary_dataset_are_copied_as_they_are() -> None:
    ds = film(LENGTHS)
    with rlds_cli.writer("local/run", like=ds) as w:
        w.add_episodes(ds.episode(k) for k in range(ds.num_episodes))
    grown = w.dataset()
    assert grown.fingerprint == ds.fingerprint
    assert [stored(grown, k) for k in range(len(LENGTHS))] == [stored(ds, k) for k in range(len(LENGTHS))]
    with rlds_cli.writer("local/again") as w:  # without like: the first episode defines the fields
        w.add_episodes(grown.episode(k) for k in range(ds.num_episodes))
    assert w.dataset().fingerprint == ds.fingerprint
    assert (
        rlds_cli.create("local/copy", (grown.episode(k) for k in range(ds.num_episodes))).fingerprint == ds.fingerprint
    )


@pytest.mark.thorough
def test_the_disk_holds_about_the_bytes_of_the_images() -> None:
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes(episode(k) for k in range(40))
    whole, least = blocks(w.dataset().path), size_of_jpegs(range(40))
    assert least < blocks(w.dataset().path / "observation" / "bytes") <= least + 2 * 4096
    assert whole <= least + 9 * 4096


@pytest.mark.thorough
def test_frames_of_several_environments() -> None:
    with rlds_cli.writer("local/run", envs=2) as w:
        for t in range(4):
            frames = {name: [jpeg(k, t + later) for k in range(2)] for name, later in (("now", 0), ("then", 1))}
            w.add(frames["now"], np.arange(2), np.zeros(2), np.full(2, t == 3), next_observation=frames["then"])
    check(w.dataset(), [0, 1])


def test_a_field_of_arrays_takes_images_decoded() -> None:
    fields = [
        Field("observation", "uint8", SHAPE, "both"),
        Field("action", "int64"),
        Field("next/reward", "float64", (), "next"),
        Field("next/terminated", "bool", (), "next"),
        Field("next/truncated", "bool", (), "next"),
    ]
    with rlds_cli.writer("local/run", fields=fields) as w:
        record(w, 0)
        w.add_episodes([episode(1)])
    ds = w.dataset()
    assert ds.schema["observation"].kind == "array"
    assert np.array_equal(ds.episode(1)["observation"], [decoded(1, t) for t in range(4)])


def test_what_is_no_image_of_the_field_is_refused_and_changes_nothing() -> None:
    with rlds_cli.writer("local/run") as w:
        record(w, 0)
        w.add(jpeg(1, 0), 1, 1.0, next_observation=jpeg(1, 1))
        with pytest.raises(InvalidEpisode, match="neither PNG nor JPEG"):
            w.add(b"no image", 1, 1.0)
        with pytest.raises(InvalidEpisode, match="jpeg image are needed"):
            w.add(decoded(1, 1), 1, 1.0)
        with pytest.raises(InvalidEpisode, match="not what next_observation said"):
            w.add(jpeg(1, 2), 1, 1.0)
        with pytest.raises(InvalidEpisode, match="observation is numbers here only"):
            w.add_episodes([episode(2) | {"observation": np.zeros((5, *SHAPE), np.uint8)}])
        for t in range(1, 4):
            w.add(jpeg(1, t), 1, 1.0, t == 3, next_observation=jpeg(1, t + 1))
    check(w.dataset(), [0, 1])


# -- what leaves


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "keep", [Fifo(steps=60), Fifo(episodes=15), Reservoir(episodes=15, seed=3), Top(episodes=15)], ids=str
)
def test_the_bytes_of_episodes_that_leave_are_freed(keep: Keep, small: None) -> None:
    """A page is lost at each end of an episode at most."""
    rng = np.random.default_rng(0)
    with rlds_cli.writer("local/run", keep=keep, durable=False) as w:
        most = 0
        for k in range(600):
            one = episode(k % 40)
            one["next"]["reward"] = np.full(4, rng.random())
            w.add_episodes([one])
            if k % 10 == 9:
                w.commit()
                most = max(most, blocks(w.dataset().path / "observation" / "bytes"))
    ds = w.dataset()
    assert ds.num_episodes == 15
    assert most <= 25 * (5 * 1200 + 2 * 4096) + (1 << 16)
    assert verify_directory(ds.path).ok
    for i in range(15):
        assert stored(ds, i) == [
            jpeg(int(ds.column("action", gaps=True)[ds.episodes["start"][i]]), t) for t in range(5)
        ]


@pytest.mark.thorough
def test_segments_of_frames_that_nobody_needs_are_removed(small: None) -> None:
    with rlds_cli.writer("local/run", keep=Fifo(episodes=5), durable=False) as w:
        for k in range(100):
            w.add_episodes([episode(k)])
            w.commit()
    path = w.dataset().path / "observation" / "bytes" / "c"
    written = size_of_jpegs(range(100))
    assert written > 4 << 16 and 1 <= len(list(path.iterdir())) <= 2
    check(w.dataset(), [95, 96, 97, 98, 99])


@pytest.mark.thorough
def test_a_version_that_is_held_keeps_its_frames(small: None) -> None:
    with rlds_cli.writer("local/run", keep=Fifo(episodes=3), durable=False) as w:
        w.add_episodes([episode(0), episode(1), episode(2)])
        w.commit()
        held = w.dataset()
        for k in range(3, 90):
            w.add_episodes([episode(k)])
            w.commit()
        check(held, [0, 1, 2])
        check(held.refresh(), [87, 88, 89])
        w.clear()
        w.add_episodes([episode(5)])
    check(held, [0, 1, 2])
    check(w.dataset(), [5])


def test_compacting_keeps_contents_and_bytes(small: None) -> None:
    with rlds_cli.writer("local/run", keep=Top(episodes=8), durable=False) as w:
        for k in range(60):
            w.add_episodes([episode((7 * k) % 60)])
    before = w.dataset()
    numbers = [int(a) for a in before.column("action", gaps=True)[before.episodes["start"]]]
    done = compact("local/run")
    assert done.changed and done.fingerprint == before.fingerprint
    check(before, numbers)
    check(before.refresh(), numbers)
    with rlds_cli.writer("local/run") as w:  # it continues behind the frames that were moved
        w.add_episodes([episode(59)])
    del before
    rlds_cli.writer("local/run").close()  # frees what was held
    after = w.dataset()
    assert verify_directory(after.path).ok
    assert blocks(after.path / "observation" / "bytes") <= size_of_jpegs(range(52, 61)) + 6 * 4096


@pytest.mark.thorough
def test_a_dataset_without_episodes_goes_on_behind_what_left(small: None) -> None:
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes([episode(0), episode(1)])
        w.commit()
        held = w.dataset()
        w.clear()
        compact_free = w.dataset()
        assert compact_free.num_episodes == 0
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes([episode(2)])
    check(held, [0, 1])
    check(w.dataset(), [2])


# -- what reads it


@pytest.mark.thorough
def test_batches_merges_and_other_processes(tmp_path: Path) -> None:
    plain = film(LENGTHS)
    with rlds_cli.writer("local/run", like=plain) as w:
        w.add_episodes(plain.episode(k) for k in range(3))
        w.commit()
        grown = w.dataset()
        live = Loader(grown, 8, live=True, seed=0, fields=["observation", "action"])
        batches = iter(live)
        next(batches)
        w.add_episodes(plain.episode(k) for k in range(3, 6))
        w.commit()
        seen: set[int] = set()
        until = time.monotonic() + 60
        while seen != set(range(6)) and time.monotonic() < until:  # a live loader looks for episodes now and then
            seen.update(int(k) for k in next(batches)["action"][:, 0])
        assert seen == set(range(6))
    grown = grown.refresh()
    for a, b in zip(Loader(grown, 8, seed=1, steps=3), Loader(plain, 8, seed=1, steps=3), strict=True):
        assert np.array_equal(a["observation"], b["observation"])
    again = pickle.loads(pickle.dumps(grown))
    assert again.fingerprint == plain.fingerprint and stored(again, 5) == stored(plain, 5)
    merged = rlds_cli.merge([grown], "local/merged")
    assert merged.schema["observation"].codec == "jpeg"
    assert [stored(merged, k) for k in range(6)] == [stored(plain, k) for k in range(6)]


def test_damage_of_frames_is_found() -> None:
    with rlds_cli.writer("local/run") as w:
        w.add_episodes([episode(0), episode(1), episode(2)])
    path = w.dataset().path
    with (path / "observation" / "bytes" / "c" / "0").open("r+b") as file:
        file.seek(size_of_jpegs(range(1)) + 700)
        file.write(b"damage")
    found = verify_directory(path)
    assert [(p.where, p.episodes) for p in found.problems] == [("observation", (1, 2))]
    with (path / "observation" / "offsets" / "c" / "0" / "0").open("r+b") as file:
        file.seek(16 * 11)
        file.write((1 << 50).to_bytes(8, "little"))
    found = verify_directory(path)
    assert {(p.where, p.episodes) for p in found.problems} == {("observation", (1, 2)), ("observation", (2, 3))}


@pytest.mark.thorough
def test_numpy_alone_reads_images() -> None:
    found = spec_from_file_location(
        "read_with_numpy", Path(__file__).parents[2] / "docs" / "reference" / "read_with_numpy.py"
    )
    assert found is not None and found.loader is not None
    script = module_from_spec(found)
    found.loader.exec_module(script)
    with rlds_cli.writer("local/run", keep=Fifo(episodes=2)) as w:
        w.add_episodes(episode(k) for k in range(4))
    ds = w.dataset()
    plain = script.Dataset(ds.path)
    assert plain.episode(1)["observation"] == [jpeg(3, t) for t in range(5)]
    assert plain.fingerprint() == ds.fingerprint


def test_a_push_and_a_download_keep_the_images(tmp_path: Path, small: None) -> None:
    with rlds_cli.writer("local/run", keep=Fifo(episodes=20), durable=False) as w:
        w.add_episodes(episode(k) for k in range(60))
    ds, place = w.dataset(), str(tmp_path / "store" / "run")
    rlds_cli.push("local/run", place, pages=False)
    far = rlds_cli.open_dataset(place, home=tmp_path / "third")
    assert [stored(far, k) for k in range(20)] == [[jpeg(k, t) for t in range(5)] for k in range(40, 60)]
    assert all(np.array_equal(far.episode(k)["observation"], ds.episode(k)["observation"]) for k in range(20))
    args: Any = {"batch_size": 16, "fields": ["observation"], "backend": "numpy", "dtype": None, "seed": 1}
    one, other = (next(iter(Loader(d, **args)))["observation"] for d in (far, ds))
    assert np.array_equal(one, other)
    copy = rlds_cli.download(place, home=tmp_path / "other")
    check(copy, list(range(40, 60)))
    assert copy.fingerprint == ds.fingerprint


def brighter(episode: Any) -> Any:
    return {**episode, "mean": episode["observation"].mean((1, 2, 3)).astype(np.float32)}


@pytest.mark.thorough
def test_results_of_a_growing_dataset_keep_its_images() -> None:
    with rlds_cli.writer("local/run") as w:
        w.add_episodes(episode(k) for k in range(3))
    ds = w.dataset()
    done = preprocess.run(ds, brighter, "bright", jobs=1)
    assert [stored(done, k) for k in range(3)] == [[jpeg(k, t) for t in range(5)] for k in range(3)]
    assert np.isclose(done.column("mean")[int(done.episodes["start"][1])], decoded(1, 0).mean())


def test_damaged_places_of_images_are_refused(small: None) -> None:
    """Records of a stranger: bytes that go back, are negative, or lie far behind the file."""
    with rlds_cli.writer("local/run") as w:
        w.add_episodes(episode(k) for k in range(3))
    path = w.dataset().path
    whole = (path / logs.EPISODES).read_bytes()
    for values in ([-1, 5], [9, 5], [1 << 61, 1 << 62], [1 << 45, (1 << 45) + 9]):
        e = np.frombuffer(bytearray(whole), logs.episode(1))
        e["frames"][2, 0] = values
        (path / logs.EPISODES).write_bytes(e.tobytes())
        with pytest.raises(DamagedDataset):
            rlds_cli.open_dataset(path).gather("observation", np.array([0]))


def test_a_selection_shares_the_digests_of_images(small: None) -> None:
    """The writer goes on in files of its own, so that those which are shared stay as they are."""
    with rlds_cli.writer("local/run") as w:
        w.add_episodes(episode(k) for k in range(4))
        w.commit()
        some = w.dataset().select(episodes=[0, 2]).save("some")
        inodes = {f.stat().st_ino for f in w.dataset().path.rglob("c/**/*") if f.is_file()}
        w.add_episodes(episode(k) for k in range(4, 6))
    assert [stored(w.dataset(), k) for k in range(6)] == [[jpeg(k, t) for t in range(5)] for k in range(6)]
    shared = [f for f in (some.path / "rows" / "observation").rglob("c/**/*") if f.is_file()]
    assert shared and {f.stat().st_ino for f in shared} <= inodes
    assert verification.verify(some.path).ok

    with shared[0].open("r+b") as file:
        file.seek(32 * 10)  # of the first row of episode 2, which is number 1 of the selection
        file.write(b"damage")
    found = verification.verify(some.path)
    assert [(p.where, p.episodes) for p in found.problems] == [("rows/observation", (1, 2))]
