"""Conversion as a whole: values, resume after kills, workers, memory, frames."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import minari
import numpy as np
import pytest
from conftest import DATA, write_d4rl
from lerobot_archives import Content, write_v3
from PIL import Image

from rlds_cli import Dataset, open_dataset
from rlds_cli.base import ids
from rlds_cli.base.progress import Event, silent
from rlds_cli.errors import ArchiveError, CorruptArchive, FrameError, NameTaken, NoSpace
from rlds_cli.homes import Home, exclusive
from rlds_cli.make.importing import import_files
from rlds_cli.ted import END_NAMES

LENGTHS = [40, 1, 25, 300, 7, 7, 64]


def check_d4rl(ds, columns: dict[str, np.ndarray], lengths: list[int]) -> None:
    """Every value of ``ds`` is the archive's."""
    assert ds.episodes["length"].tolist() == lengths
    at = 0
    for k, t in enumerate(lengths):
        rows = slice(at, at + t)
        start = ds.episodes["start"][k]
        observation = ds.column("observation")[start : start + t + 1]
        np.testing.assert_array_equal(observation[:-1], columns["observations"][rows])
        np.testing.assert_array_equal(observation[-1], columns["next_observations"][at + t - 1])
        episode = ds.episode(k)
        np.testing.assert_array_equal(episode["action"], columns["actions"][rows])
        np.testing.assert_array_equal(episode["next", "reward"][:, 0], columns["rewards"][rows])
        np.testing.assert_array_equal(episode["next", "terminated"][:, 0], columns["terminals"][rows])
        np.testing.assert_array_equal(episode["next", "truncated"][:, 0], columns["timeouts"][rows])
        np.testing.assert_array_equal(episode["info", "qpos"], columns["infos/qpos"][rows])
        assert ds.episodes["end"][k] == END_NAMES[k % 2]
        assert ds.episodes["total_reward"][k] == pytest.approx(columns["rewards"][rows].sum(dtype=np.float64))
        at += t


@pytest.mark.thorough
def test_every_value_is_the_archives(tmp_path: Path) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    ds = import_files(tmp_path / "a.hdf5", "local/a")
    check_d4rl(ds, columns, LENGTHS)
    assert ds.num_transitions == ds.num_steps == sum(LENGTHS)


@pytest.mark.thorough
def test_statistics_are_numpys(tmp_path: Path) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    stats = import_files(tmp_path / "a.hdf5", "local/a").stats["observation"]
    x = columns["observations"].astype(np.float64)
    np.testing.assert_allclose(stats.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, x.std(0), rtol=1e-12)
    np.testing.assert_array_equal(stats.min, x.min(0))
    np.testing.assert_array_equal(stats.max, x.max(0))
    np.testing.assert_allclose([stats.q01, stats.q99], np.quantile(x, [0.01, 0.99], axis=0))
    assert stats.count == len(x)


@pytest.mark.thorough
def test_encodings_hold_the_same(tmp_path: Path) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    a = import_files(tmp_path / "a.hdf5", "local/a")
    b = import_files(tmp_path / "a.hdf5", "local/b", storage="zarr")
    assert a.fingerprint == b.fingerprint
    assert (a.encoding, b.encoding) == ("memmap", "zarr")
    check_d4rl(b, columns, LENGTHS)


@pytest.mark.thorough
def test_zarr_python_and_tensorstore_read_the_same(tmp_path: Path) -> None:
    import tensorstore
    import zarr

    write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    ds = import_files(tmp_path / "a.hdf5", "local/a")
    group = zarr.open_group(str(ds.path), mode="r")
    for f in ds.manifest.fields:
        ours = ds.column(f.name)
        np.testing.assert_array_equal(group[f.path][...], ours)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{ds.path / f.path}/"}}
        np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), ours)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1.6 million rows: several parts."""
    path = tmp_path_factory.mktemp("large") / "a.hdf5"
    write_d4rl(path, [1000] * 1600, observation=1, next_observations=False)
    return path


@pytest.fixture(scope="module")
def undisturbed(large: Path) -> Dataset:
    """What a process of its own makes of it."""
    return import_files(large, "local/b", home=large.parent / "home")


@pytest.mark.slow
def test_workers_change_nothing(large: Path, undisturbed: Dataset) -> None:
    _check_same(import_files(large, "local/two", jobs=2), undisturbed)


@pytest.mark.slow
def test_workers_change_nothing_of_next_observations(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [1000] * 1100, observation=1)
    alone = import_files(tmp_path / "a.hdf5", "local/alone")
    _check_same(import_files(tmp_path / "a.hdf5", "local/two", jobs=2), alone)


def _check_same(two: Dataset, alone: Dataset) -> None:
    assert alone.fingerprint == two.fingerprint
    assert alone.manifest.stats == two.manifest.stats
    np.testing.assert_array_equal(alone.episodes["total_reward"], two.episodes["total_reward"])


KILLED = textwrap.dedent("""
    import os, signal, sys
    from rlds_cli.make.importing import import_files
    seen = 0
    def progress(event):
        global seen
        if event.stage == "convert":
            seen += 1
            if seen == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
    print(import_files(sys.argv[1], "local/a", progress=progress).fingerprint)
""")


@pytest.mark.thorough
def test_a_killed_conversion_is_resumed(large: Path, undisturbed: Dataset, home: Path) -> None:
    resumed = False
    for kill_at in (1, 24, 10_000):
        run = subprocess.run([sys.executable, "-c", KILLED, str(large), str(kill_at)], capture_output=True, text=True)
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        assert not (home / "datasets/local/a").exists()
        resumed = resumed or any(len(j.read_text().splitlines()) > 1 for j in home.glob("partial/*/journal.jsonl"))
    assert run.stdout.strip() == undisturbed.fingerprint
    assert resumed
    assert not list((home / "partial").iterdir())


@pytest.mark.thorough
def test_a_journal_is_not_believed_where_rows_changed(large: Path, undisturbed: Dataset, home: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(large), "24"]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    file = next(home.glob("partial/*/dataset/action/c/0/0"))
    with file.open("r+b") as f:
        f.seek(1000)
        f.write(b"\xff" * 8)
    assert import_files(large, "local/a").fingerprint == undisturbed.fingerprint


@pytest.mark.slow
def test_memory_stays_bounded(tmp_path: Path) -> None:
    n = 3_000_000
    with h5py.File(tmp_path / "big.hdf5", "w") as f:  # 420 MB of rows, one episode
        for name, shape, dtype in (("observations", (n, 30), "f4"), ("actions", (n, 4), "f4"), ("rewards", (n,), "f4")):
            f.create_dataset(name, shape, dtype, chunks=(10_000, *shape[1:]), compression="gzip", compression_opts=1)
            for a in range(0, n, 1_000_000):
                f[name][a : a + 1_000_000] = np.full((1_000_000, *shape[1:]), a + 1, dtype)
        f["terminals"] = np.zeros(n, bool)
    script = textwrap.dedent("""
        import sys, threading, time
        from rlds_cli.make.importing import import_files, plan_import
        import rlds_cli.make.downloads, rlds_cli.archives.d4rl.read
        def anonymous():
            return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) // 1024
        before, most, done = anonymous(), [0], threading.Event()
        def watch():
            while not done.wait(0.005):
                most[0] = max(most[0], anonymous())
        thread = threading.Thread(target=watch); thread.start()
        try:
            import_files(sys.argv[1], "local/big")
        finally:
            done.set(); thread.join()
        print(most[0] - before)
    """)
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "big.hdf5")], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 300
    assert open_dataset("local/big").column("observation")[-1, 0] == 2_000_001


def test_a_damaged_archive_leaves_nothing(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    content = (tmp_path / "a.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptArchive, match="truncated or damaged"):
        import_files(tmp_path / "cut.hdf5", "local/a", reader="d4rl")
    (tmp_path / "page.hdf5").write_text("<!DOCTYPE html><html>403</html>")
    with pytest.raises(ArchiveError, match="HTML"):
        import_files(tmp_path / "page.hdf5", "local/a", reader="d4rl")
    assert not (home / "datasets").exists()


@pytest.mark.thorough
def test_a_full_disk_is_said_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    import errno

    real, left = os.pwrite, [3]

    def full(fd: int, data: bytes, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpace, match="full"):
        import_files(tmp_path / "a.hdf5", "local/a")
    monkeypatch.setattr(os, "pwrite", real)
    check_d4rl(import_files(tmp_path / "a.hdf5", "local/a"), columns, LENGTHS)


def test_a_disk_that_is_full_when_columns_are_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    import zarr

    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)

    def full(self: object, where: object, values: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__setitem__", full)
        with pytest.raises(NoSpace, match="full"):
            import_files(tmp_path / "a.hdf5", "local/a", storage="zarr")
    ds = import_files(tmp_path / "a.hdf5", "local/a", storage="zarr")
    np.testing.assert_array_equal(np.sort(ds.column("action"), 0)[-1], np.sort(columns["actions"], 0)[-1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("storage", "fits"), [("zarr", False), ("memmap", True)])
def test_zarr_asks_for_the_room_of_rows_and_their_compressed_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, fits: bool
) -> None:
    """Two columns at a time lie beside what they are compressed to."""
    root = write_v3(tmp_path / "a", Content())  # whose number of rows is known ahead
    ds = import_files(root, "local/size")
    columns = sorted(ds.num_rows * f.row_bytes for f in ds.schema.values())
    room = [sum(columns) + (0 if fits else sum(columns[-2:]) - 1)]
    monkeypatch.setattr("rlds_cli.base.files.disk.free", lambda path: room[0])
    if not fits:
        with pytest.raises(NoSpace, match="local/a needs"):
            import_files(root, "local/a", storage=storage)
        room[0] += 1
    import_files(root, "local/a", storage=storage)


class Writer:
    """Somebody who writes to a file while it is imported: when the first rows are there."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how = path, how

    def __call__(self, event: Event) -> None:
        if event.stage != "convert" or not self.how:
            return
        if self.how == "time":
            os.utime(self.path, ns=(1, 1))
        elif self.how == "size":
            with self.path.open("ab") as f:
                f.write(b"more")
        else:
            copy = self.path.with_name("copy")
            shutil.copy2(self.path, copy)
            copy.replace(self.path)
        self.how = ""


@pytest.mark.parametrize("how", ["time", "size", "inode"])
def test_an_archive_that_changes_meanwhile_is_refused(tmp_path: Path, home: Path, how: str) -> None:
    path = tmp_path / "a.hdf5"
    columns = write_d4rl(path, LENGTHS)
    with pytest.raises(ArchiveError, match=r"local/a: .*a\.hdf5 changed while the archive was read") as e:
        import_files(path, "local/a", progress=Writer(path, how))
    assert "run the same command again" in (e.value.hint or "")
    assert not (home / "datasets/local/a").exists()
    assert not [*(home / "partial").rglob("zarr.json")]
    check_d4rl(import_files(path, "local/a"), columns, LENGTHS)


def test_damage_that_a_writer_left_meanwhile_is_said_to_be_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    write_d4rl(path, LENGTHS)

    def truncate(event: Event) -> None:
        if event.stage == "verify" and path.stat().st_size > 5000:
            os.truncate(path, 5000)

    with pytest.raises(ArchiveError, match="changed while the archive was read"):
        import_files(path, "local/a", progress=truncate)


@pytest.mark.thorough
def test_the_same_import_returns_at_once_and_another_is_refused(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    write_d4rl(tmp_path / "b.hdf5", LENGTHS, seed=1)
    first = import_files(tmp_path / "a.hdf5", "local/a")
    again = import_files(tmp_path / "a.hdf5", "local/a")
    assert again.manifest.created == first.manifest.created
    with pytest.raises(NameTaken):
        import_files(tmp_path / "b.hdf5", "local/a")
    other = import_files(tmp_path / "b.hdf5", "local/a", force=True)
    assert other.fingerprint != first.fingerprint


def test_of_two_imports_at_once_the_second_is_told(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    write_d4rl(tmp_path / "b.hdf5", LENGTHS, seed=1)
    waiting: list[Event] = []
    with ThreadPoolExecutor(1) as thread, exclusive(Home(home), ids.parse("local/a"), silent):
        second = thread.submit(import_files, tmp_path / "b.hdf5", "local/a", progress=waiting.append)
        while not any("waiting" in e.note for e in waiting):
            time.sleep(0.01)
        published = import_files(tmp_path / "a.hdf5", "local/other").path
        shutil.copytree(published, Home(home).dataset(ids.parse("local/a")))
    with pytest.raises(NameTaken):
        second.result()


@pytest.mark.thorough
@pytest.mark.sampled(6)
@pytest.mark.parametrize("encoding", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("name", ["taxi/random", "hopper/random", "breakout/random", "pointmaze/umaze"])
def test_minari_samples(name: str, encoding: str) -> None:
    path = DATA / "minari" / f"{name}_{encoding}-v0"
    ds = import_files(path, "local/m")
    real = minari.MinariDataset(path / "data")
    assert ds.num_episodes == real.total_episodes
    for k, episode in enumerate(real.iterate_episodes()):
        start, t = ds.episodes["start"][k], len(episode.rewards)
        rows = np.arange(start, start + t + 1)
        for key, values in leaves(episode.observations, "observation"):
            np.testing.assert_array_equal(ds.gather(key, rows), values, err_msg=key)
        for key, values in leaves(episode.actions, "action"):
            np.testing.assert_array_equal(ds.gather(key, rows[:-1]), values, err_msg=key)
        got = ds.episode(k)
        np.testing.assert_array_equal(got["next", "reward"][:, 0], episode.rewards)
        np.testing.assert_array_equal(got["next", "terminated"][:, 0], episode.terminations)
        truncated = np.array(episode.truncations)
        truncated[-1] |= not episode.terminations[-1]
        np.testing.assert_array_equal(got["next", "truncated"][:, 0], truncated)


def leaves(values: object, name: str) -> list[tuple[str, np.ndarray]]:
    if isinstance(values, dict):
        return [leaf for k, v in values.items() for leaf in leaves(v, f"{name}/{k}")]
    if isinstance(values, tuple):
        return [leaf for k, v in enumerate(values) for leaf in leaves(v, f"{name}/{k}")]
    return [(name, np.asarray(values))]


@pytest.mark.thorough
def test_d4rl_samples() -> None:
    for path in sorted((DATA / "d4rl").glob("*.hdf5")):
        ds = import_files(path, f"local/{path.stem}")
        with h5py.File(path) as f:
            columns = {k: f[k][:] for k in ("observations", "actions", "rewards", "terminals")}
            timeouts = f["timeouts"][:] if "timeouts" in f else np.zeros(len(columns["rewards"]), bool)
        steps = np.delete(np.arange(ds.num_rows), ds.episodes["start"] + ds.episodes["length"])
        np.testing.assert_array_equal(ds.column("observation")[steps], columns["observations"])
        np.testing.assert_array_equal(ds.column("action")[steps], columns["actions"])
        np.testing.assert_array_equal(ds.column("next/reward")[steps], columns["rewards"].ravel())
        np.testing.assert_array_equal(ds.column("next/terminated")[steps], columns["terminals"].ravel().astype(bool))
        truncated = timeouts.ravel().astype(bool)
        truncated[-1] |= not columns["terminals"].ravel()[-1]
        np.testing.assert_array_equal(ds.column("next/truncated")[steps], truncated)


@pytest.mark.thorough
def test_frames_decoded_at_conversion(tmp_path: Path) -> None:
    import json

    from rlds_cli.base.ids import frames_variant

    rng = np.random.default_rng(0)
    jpegs = []
    for _ in range(4):
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8)).save(tmp_path / "f.jpg")
        jpegs.append(np.frombuffer((tmp_path / "f.jpg").read_bytes(), np.uint8))
    data = tmp_path / "pixels-v0" / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as f:
        g = f.create_group("episode_0")
        g.attrs["total_steps"] = 3
        g.create_dataset("observations", data=np.array([*jpegs, None], object)[:-1], dtype=h5py.vlen_dtype(np.uint8))
        g["actions"], g["rewards"] = np.zeros((3, 1), np.float32), np.zeros(3)
        g["terminations"], g["truncations"] = np.zeros(3, bool), np.array([0, 0, 1], bool)
    box = {"type": "Box", "dtype": "uint8", "shape": [40, 48, 3], "low": 0, "high": 255}
    space = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-1.0], "high": [1.0]}
    facts = {"total_episodes": 1, "total_steps": 3, "data_format": "hdf5", "minari_version": "0.5.3"}
    spaces = {"observation_space": json.dumps(box), "action_space": json.dumps(space)}
    (data / "metadata.json").write_text(json.dumps(facts | spaces | {"dataset_id": "pixels-v0"}))
    kept = import_files(tmp_path / "pixels-v0", "local/kept")
    assert kept.schema["observation"].kind == "frames"
    decoded = np.stack([np.asarray(Image.open(__import__("io").BytesIO(j.tobytes()))) for j in jpegs])
    np.testing.assert_array_equal(kept.gather("observation", np.arange(4)), decoded)
    np.testing.assert_array_equal(kept.store.frames("observation").data, np.concatenate(jpegs))
    raw = import_files(tmp_path / "pixels-v0", "local/raw", frames="raw")
    np.testing.assert_array_equal(raw.column("observation"), decoded)
    small = import_files(tmp_path / "pixels-v0", "local/small", frames="20x24")
    np.testing.assert_allclose(small.column("observation"), decoded.reshape(4, 20, 2, 24, 2, 3).mean((2, 4)), atol=1)
    with pytest.raises(FrameError, match="84"):
        frames_variant("84")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 2])
def test_next_observations_of_their_own_are_kept(tmp_path: Path, jobs: int) -> None:
    rng = np.random.default_rng(0)
    lengths = [200] * 6000
    columns = write_d4rl(tmp_path / "a.hdf5", lengths, observation=1)
    columns["next_observations"] = rng.standard_normal(columns["observations"].shape).astype(np.float32)
    with h5py.File(tmp_path / "a.hdf5", "a") as f:
        f["next_observations"][...] = columns["next_observations"]
    ds = import_files(tmp_path / "a.hdf5", "local/a", jobs=jobs)
    assert len(ds) == sum(lengths)
    np.testing.assert_array_equal(ds[:]["observation"], columns["observations"])
    np.testing.assert_array_equal(ds[:]["next", "observation"], columns["next_observations"])
    np.testing.assert_array_equal(ds.episode(3)["next", "observation"], columns["next_observations"][600:800])
    np.testing.assert_array_equal(ds.to_numpy()["next/observation"], columns["next_observations"])


@pytest.mark.thorough
def test_roboset_samples() -> None:
    paths = sorted((DATA / "roboset").glob("*.h5"))
    for path in paths:
        ds = import_files(path, f"local/{path.stem}")
        with h5py.File(path) as f:
            assert ds.num_episodes == len(f)
            for k in range(ds.num_episodes):
                trial, episode = f[f"Trial{k}"], ds.episode(k)
                np.testing.assert_array_equal(episode["observation"], trial["observations"])
                np.testing.assert_array_equal(episode["action"], trial["actions"])
                np.testing.assert_array_equal(episode["next", "reward"][:, 0], trial["rewards"])
                np.testing.assert_array_equal(episode["next", "terminated"][:, 0], trial["done"])
                np.testing.assert_array_equal(episode["info", "obs_dict", "door"], trial["env_infos/obs_dict/door"])
                np.testing.assert_array_equal(episode["info", "solved"], trial["env_infos/solved"])
                assert episode["observation"].dtype == trial["observations"].dtype
