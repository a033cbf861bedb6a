"""Remote datasets that become whole, their place in the home, and results that are made of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import pytest
from conftest import run_rlds
from loader_data import create, episode
from test_remote_store import assert_same, grown, large, other, same, store  # noqa: F401  (fixtures)

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.homes import usage
from rlds_cli.keep import gc
from rlds_cli.keep.verification import verify
from rlds_cli.places.remote.presence import GROUP
from rlds_cli.share.pushing import push

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["large", "compressed", "grown"])
def test_a_remote_dataset_becomes_an_ordinary_one(kind: str, store: Path, other: Path) -> None:  # noqa: F811
    wanted = {"large": large, "compressed": lambda: large(storage="zarr"), "grown": grown}[kind]()
    push(wanted.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    name = next(n for n, f in wanted.schema.items() if f.kind == "array")
    got.column(name, gaps=True)[:100]
    inodes = {f.stat().st_ino for f in (other / "remote").rglob("rows/*")}
    made = rlds_cli.download(str(store), blocks=True, name="local/mine", home=other)
    assert made.path == other / "datasets/local/mine" and not made.store.address
    assert verify("local/mine", home=other).ok
    assert_same(made, wanted)
    assert_same(got, wanted)  # goes on reading
    if kind == "large":
        assert {f.stat().st_ino for f in made.path.rglob("c/*/*") if f.stat().st_size > GROUP} <= inodes
    assert rlds_cli.open_dataset(store, home=other).path == made.path
    assert not any((other / "partial").iterdir())


@pytest.mark.thorough
def test_only_what_is_missing_is_fetched(store: Path, other: Path) -> None:  # noqa: F811
    ds = large(200_000)
    push(ds.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    got.column("observation")[:150_000]
    before = got.store.files.stats.fetched
    for directory in (store / "objects").iterdir():
        assert directory.stat().st_size > GROUP
    del got
    made = rlds_cli.download(str(store), blocks=True, name="local/mine", home=other)
    assert before > 9 * GROUP and same(made.column("observation")[:], ds.column("observation")[:])
    assert not [p for p in (other / "remote").iterdir() if p.is_dir()]  # nobody read it


@pytest.mark.slow
def test_a_download_by_blocks_that_was_killed_goes_on(store: Path, other: Path) -> None:  # noqa: F811
    ds = large(100_000)
    push(ds.id, store)
    script = f"""
    import os, signal
    from rlds_cli.places.remote import presence
    import rlds_cli, rlds_cli.places.remote.cache as cache
    write, count = os.pwrite, []
    def killed(descriptor, data, at):
        count.append(1)
        if len(count) == 5:
            write(descriptor, bytes(data)[:1000], at)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, at)
    os.pwrite = killed
    rlds_cli.download({str(store)!r}, blocks=True, name="local/mine", home={str(other)!r})
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    made = rlds_cli.download(str(store), blocks=True, name="local/mine", home=other)
    assert same(made.column("observation")[:], ds.column("observation")[:])
    assert verify("local/mine", home=other).ok


def test_the_command(store: Path, other: Path) -> None:  # noqa: F811
    ds = large(3_000)
    push(ds.id, store)
    done = run_rlds("download", str(store), "--blocks", "--name", "local/mine", "--home", str(other))
    assert done.returncode == 0, done.stderr
    assert rlds_cli.open_dataset("local/mine", home=other).fingerprint == ds.fingerprint


def test_du_and_gc_know_the_blocks(store: Path, other: Path) -> None:  # noqa: F811
    ds = large(60_000)
    push(ds.id, store)
    got = rlds_cli.open_dataset(store, home=other)
    got.column("observation")[:]
    found = usage(home=other)
    assert 60_000 * 64 < found.remote < 60_000 * 64 + 4 * GROUP and found.total == found.remote
    assert not gc.find_garbage(home=other).removed
    planned = gc.find_garbage(remote=True, home=other)
    assert [g.kind for g in planned.removed] == ["remote"] and planned.bytes > 60_000 * 64
    assert gc.collect(planned).removed == ()  # it is being read
    assert same(got.column("observation")[:], ds.column("observation")[:])
    del got
    assert len(gc.collect(planned).removed) == 1
    assert usage(home=other).remote == 0
    out = run_rlds("du", "--home", str(other)).stdout.decode()
    assert "at an address" not in out


# -- results that are made of remote datasets


def test_preprocessing_reads_blocks(store: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    ds = large(20_000)
    push(ds.id, store)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("RLDS_HOME", str(other))
        got = rlds_cli.open_dataset(store, cache="2MiB")
        mine = preprocess.run(got, "normalise", "norm", jobs=2)
    wanted = preprocess.run(ds, "normalise", "norm", jobs=1)
    assert mine.fingerprint == wanted.fingerprint
    assert mine.id == "local/large@norm" and mine.path.is_relative_to(other / "datasets")
    taken = sum(f.stat().st_blocks * 512 for f in (other / "remote").rglob("rows/*"))
    assert taken <= 2 * GROUP + (64 << 10)


@pytest.mark.thorough
def test_texts_and_frames_are_preprocessed_from_an_address(
    store: Path,  # noqa: F811
    other: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from frames_data import film

    for number, ds in enumerate((create([episode(k, 6 + k) for k in range(4)]), film([4, 5]))):
        push(ds.id, store / str(number))
        wanted = preprocess.run(ds, "scale_reward", "scaled", args={"scale": 2.0}, jobs=1)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("RLDS_HOME", str(other))
            got = rlds_cli.open_dataset(store / str(number))
            mine = preprocess.run(got, "scale_reward", "scaled", args={"scale": 2.0}, jobs=1)
        assert mine.fingerprint == wanted.fingerprint


def test_a_dataset_is_created_and_merged_from_an_address(
    store: Path,  # noqa: F811
    other: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = large(2_000)
    push(ds.id, store)
    monkeypatch.setenv("RLDS_HOME", str(other))
    got = rlds_cli.open_dataset(store)
    made = rlds_cli.create("local/copy", (got.episode(k) for k in range(got.num_episodes)))
    assert same(made.column("observation")[:], ds.column("observation")[:])
    merged = rlds_cli.merge([got.select(episodes=[0]), made.select(episodes=slice(1, None))], "local/both")
    assert merged.num_episodes == ds.num_episodes
    for k in range(ds.num_episodes):
        assert same(merged.episode(k)["observation"], ds.episode(k)["observation"])


@pytest.mark.thorough
def test_a_result_is_exported_from_an_address(store: Path, other: Path, tmp_path: Path) -> None:  # noqa: F811
    ds = large(2_000)
    push(ds.id, store)
    rlds_cli.export(rlds_cli.open_dataset(store, home=other), "d4rl", tmp_path / "a", lossy=True)
    rlds_cli.export(ds, "d4rl", tmp_path / "b", lossy=True)
    with h5py.File(tmp_path / "a/a.hdf5") as one, h5py.File(tmp_path / "b/b.hdf5") as two:
        assert set(one) == set(two) and "observations" in one
        assert all(same(one[n][:], two[n][:]) for n in one if isinstance(one[n], h5py.Dataset))
