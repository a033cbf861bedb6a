"""An address keeps the versions that were pushed there. Each opens by number, tag and fingerprint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import growing_model
import numpy as np
import pytest
from conftest import run_rlds
from loader_data import create, episode
from object_store import ObjectStore

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, DownloadFailed, InvalidArgument, NameTaken, UploadFailed, WrongFingerprint
from rlds_cli.keep import pinning
from rlds_cli.places.sources.directory import DirectoryPlace
from rlds_cli.places.sources.place import Document
from rlds_cli.share import collecting
from rlds_cli.share.pushing import Pushed

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(params=["directory", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of one dataset."""
    if request.param == "directory":
        yield str(tmp_path / "store/arm")
        return
    pytest.importorskip("obstore")
    with ObjectStore() as running:
        running.buckets["lab"] = {}
        for name, value in running.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield "s3://lab/arm"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store/arm"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The home of somebody else."""
    return tmp_path / "other"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_histories_at_addresses(seed: int, tmp_path: Path) -> None:
    """Pushes, downloads and readers that are killed, at a directory, a bucket and a web server that fail at times."""
    pytest.importorskip("obstore")
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "contract" / "address_history.py", str(seed), tmp_path, "--steps", "8"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-1000:] + run.stderr


def push(ref: str, to: object, **options: Any) -> Pushed:
    return rlds_cli.push(ref, str(to), **{"pages": False, **options})


def bring(ref: object, other: Path, name: str) -> Dataset:
    return rlds_cli.download(str(ref), name=f"local/{name}", home=other)


def arm(episodes: int = 4) -> Dataset:
    return create([episode(k, 5 + k) for k in range(episodes)], ref="local/arm")


def three_versions(address: object) -> list[Dataset]:
    """Push a dataset, a label and a drop of it."""
    made = [arm()]
    push("local/arm", address)
    made.append(made[0].label(quality=["good", "good", "bad", "good"]))
    push("local/arm", address)
    made.append(made[1].select(where="quality == 'bad'").drop())
    push("local/arm", address)
    return [rlds_cli.open_dataset(f"local/arm#v{k}") for k in (1, 2, 3)]


def same(got: Dataset, wanted: Dataset) -> None:
    """The content is the same, and rows are those of the episodes."""
    assert got.fingerprint == wanted.fingerprint
    assert got.num_episodes == wanted.num_episodes
    for k in range(wanted.num_episodes):
        np.testing.assert_array_equal(got.episode(k)["observation"], wanted.episode(k)["observation"])


@pytest.mark.thorough
def test_every_version_opens_and_downloads(address: str, other: Path) -> None:
    versions = three_versions(address)
    for k, wanted in enumerate(versions, 1):
        for ref in (f"{address}#v{k}", f"{address}#{wanted.fingerprint}", f"{address}#{wanted.fingerprint[:18]}"):
            got = rlds_cli.open_dataset(ref, home=other)
            assert got.store.address and got.version == k
            same(got, wanted)
        got = bring(f"{address}#v{k}", other, f"v{k}")
        assert got.version == k
        same(got, wanted)
    same(rlds_cli.open_dataset(address, home=other), versions[2])


@pytest.mark.sampled(1)
def test_a_version_that_is_not_there(address: str, other: Path) -> None:
    three_versions(address)
    for act in (lambda ref: rlds_cli.open_dataset(ref, home=other), lambda ref: bring(ref, other, "x")):
        with pytest.raises(DatasetNotFound, match="version 7") as e:
            act(f"{address}#v7")
        assert "rlds log" in str(e.value.hint)
        with pytest.raises(DatasetNotFound, match="no tag icra"):
            act(f"{address}#icra")
        with pytest.raises(WrongFingerprint):
            act(f"{address}#rlds1:0000-0000-0000")


@pytest.mark.thorough
def test_a_change_sends_no_rows(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (2001, 64), np.uint8)
    ds = rlds_cli.create("local/arm", [{"observation": rows, "action": np.zeros(2000)} for _ in range(8)])
    first = push("local/arm", tmp_path / "arm")
    ds.label(quality="good")
    assert push("local/arm", tmp_path / "arm").sent < 0.02 * first.sent
    ds.select(episodes=range(7)).save("some")
    assert push("local/arm@some", tmp_path / "some").sent < 0.02 * first.sent
    rlds_cli.open_dataset("local/arm").select(episodes=range(1, 8)).drop()
    assert push("local/arm", tmp_path / "arm").sent < 0.02 * first.sent
    rlds_cli.open_dataset("local/arm#v2").restore()  # of whose rows version 3 at the address has an eighth
    assert push("local/arm", tmp_path / "arm").sent < 0.02 * first.sent


@pytest.mark.thorough
def test_tags_go_along(address: str, other: Path) -> None:
    ds = arm()
    ds.tag("first")
    assert push("local/arm", address).tags == ("first",)
    ds = ds.label(quality="good")
    ds.tag("icra")
    ds.tag("paper")
    done = push("local/arm", address)
    assert (set(done.tags), done.missing) == ({"icra", "paper"}, {})
    for tag, number in (("first", 1), ("icra", 2), ("paper", 2)):
        assert rlds_cli.open_dataset(f"{address}#{tag}", home=other).version == number
        assert bring(f"{address}#{tag}", other, tag).version == number


@pytest.mark.thorough
def test_a_tag_that_moves_here_moves_there(address: str, other: Path) -> None:
    ds = arm()
    ds.tag("icra")
    push("local/arm", address)
    ds.label(quality="good").tag("icra", force=True)
    push("local/arm", address)
    assert rlds_cli.open_dataset(f"{address}#icra", home=other).version == 2


def test_a_tag_of_a_version_that_was_not_pushed_is_named(store: Path, other: Path) -> None:
    ds = arm()
    ds.tag("first")
    ds.label(quality="good")
    said = run_rlds("push", "local/arm", store, "--no-pages").stdout.decode()
    assert "tag first names v1, which is not there: rlds push local/arm#v1" in said
    push("local/arm#v1", store)
    assert rlds_cli.open_dataset(f"file://{store}#first", home=other).version == 1
    assert rlds_cli.open_dataset(f"file://{store}", home=other).version == 2, "an earlier version is not the newest"


def test_a_listing_shows_versions_and_tags(store: Path) -> None:
    ds = rlds_cli.create("local/arm", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}])
    ds.tag("first")
    push("local/arm", store)
    ds.label(quality="good")
    push("local/arm", store)
    (line,) = run_rlds("list", store).stdout.decode().splitlines()[1:]
    assert line.split()[:2] == ["local/arm", "2"] and "first=v1" in line


@pytest.mark.thorough
def test_what_is_pushed_twice_is_there_once(address: str, other: Path) -> None:
    three_versions(address)
    assert push("local/arm", address).sent == 0
    assert push("local/arm#v2", address).sent == 0
    assert [v["number"] for v in log(address)] == [1, 2, 3]


def log(address: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_rlds("log", address, "--json").stdout)
    return found


@pytest.mark.thorough
def test_the_log_of_an_address(address: str) -> None:
    three_versions(address)
    rlds_cli.open_dataset("local/arm#v2").tag("icra")
    push("local/arm", address)
    here, there = log("local/arm"), log(address)
    assert there == here, "each version with what made it"
    lines = run_rlds("log", address).stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["v3", "v2", "v1"]
    assert "[icra]" in lines[1] and "label" in lines[1]


@pytest.mark.thorough
def test_versions_of_a_growing_dataset(address: str, other: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(3):
        with rlds_cli.writer("local/grow") as w:
            w.add_episodes([growing_model.draw(rng, 5).item()])
        push("local/grow", address)
        sizes.append(rlds_cli.open_dataset("local/grow").version)
    for number in sizes:
        wanted = rlds_cli.open_dataset(f"local/grow#v{number}")
        got = rlds_cli.open_dataset(f"{address}#v{number}", home=other)
        assert (got.fingerprint, got.num_episodes) == (wanted.fingerprint, wanted.num_episodes)
    assert [v["number"] for v in log(address)] == sizes


# -- removal


def stored(store: Path) -> set[str]:
    return {f.relative_to(store).as_posix() for f in store.rglob("*/*") if f.is_file()}


@pytest.mark.thorough
def test_versions_are_removed(address: str, other: Path) -> None:
    versions = three_versions(address)
    versions[0].tag("first")
    push("local/arm", address)
    done = collecting.collect(address, dry_run=True)
    assert [v.number for v in done.kept] == [1, 3] and [v.number for v in done.removed] == [2]
    assert [v["number"] for v in log(address)] == [1, 2, 3], "a dry run removes nothing"
    assert collecting.collect(address).objects == done.objects > 0
    assert [v["number"] for v in log(address)] == [1, 3]
    same(bring(f"{address}#first", other, "first"), versions[0])
    same(bring(address, other, "newest"), versions[2])
    with pytest.raises(DatasetNotFound, match="version 2"):
        bring(f"{address}#v2", other, "second")
    done = collecting.collect(address, keep_tags=False)
    assert ([v.number for v in done.removed], done.tags) == ([1], ("first",))
    same(bring(address, other, "last"), versions[2])
    assert collecting.collect(address).objects == 0


@pytest.mark.sampled(1)
def test_the_last_versions_stay(address: str) -> None:
    three_versions(address)
    assert [v.number for v in collecting.collect(address, keep_last=2).kept] == [2, 3]
    with pytest.raises(InvalidArgument):
        collecting.collect(address, keep_last=0)
    with pytest.raises(InvalidArgument):
        collecting.collect(f"{address}#v2")


@pytest.mark.thorough
def test_nothing_is_left_of_what_is_removed(store: Path, tmp_path: Path) -> None:
    three_versions(store)
    collecting.collect(store)
    push("local/arm", tmp_path / "alone")
    names = [
        f"indexes/{json.loads((p / 'rlds.json').read_text())['versions'][-1][1]}" for p in (store, tmp_path / "alone")
    ]
    assert {n for n in stored(store) if n.startswith("indexes/")} == {names[0]}
    index = json.loads((store / names[0]).read_text())
    assert {n for n in stored(store) if n.startswith("objects/")} == {
        f"objects/{sha256}" for sha256, _ in index["objects"]
    }


def test_the_command_asks_before_it_removes(store: Path) -> None:
    three_versions(store)
    assert run_rlds("gc", store).returncode != 0, "nobody answers"
    assert len(log(store)) == 3
    assert "would be removed" in run_rlds("gc", store, "--dry-run").stdout.decode()
    assert len(log(store)) == 3
    assert run_rlds("gc", store, "--keep-last", 2, "--yes").returncode == 0
    assert len(log(store)) == 2
    assert run_rlds("gc", store, "--archives").returncode == 2


def test_a_loader_of_a_version_that_was_removed_says_so(store: Path, other: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (40_001, 64), np.uint8)
    rlds_cli.create("local/arm", [{"observation": rows, "action": np.zeros(40_000)}])
    push("local/arm", store)
    got = rlds_cli.open_dataset(f"file://{store}#v1", home=other)
    large = create([episode(k, 50) for k in range(4)], ref="local/other")
    push(large.id, store, force=True)
    collecting.collect(store)
    with pytest.raises(DownloadFailed, match="version 1"):
        got.column("observation")[:]


def test_nothing_was_pushed_there(store: Path) -> None:
    for act in (lambda: collecting.collect(store), lambda: collecting.collect(store, dry_run=True)):
        with pytest.raises(DatasetNotFound, match="no dataset was pushed"):
            act()
    with pytest.raises(UploadFailed, match="only be read"):
        collecting.collect("https://host.invalid/arm/")


# -- pins


@pytest.mark.thorough
def test_a_lock_finds_its_version_after_later_pushes(store: Path, other: Path, tmp_path: Path) -> None:
    """The lock has the sha256 of the index, which needs no list of versions."""
    versions = three_versions(store)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/arm"]))
    entry = json.loads(lock.read_text())["datasets"][0]
    assert entry["index"] == json.loads((store / "rlds.json").read_text())["versions"][-1][1]
    versions[2].label(quality="all")
    push("local/arm", store)
    create([episode(9, 3)], ref="local/other")
    push("local/other", store, force=True)
    assert pinning.sync(lock, home=other)[0].how == "downloaded"
    same(rlds_cli.open_dataset("local/arm", home=other), versions[2])


def test_locks_of_earlier_versions_beside_a_newer_one(store: Path, other: Path, tmp_path: Path) -> None:
    """The newest version is there; earlier ones are fetched or made from what the lock says, and put beside it."""
    versions = three_versions(store)
    labelled = versions[2].label(quality="all")
    last = labelled.label(quality="none")
    push("local/arm", store)
    locks = {}
    for name in ("v1", "v3", "v4", "v5"):
        locks[name] = tmp_path / f"{name}.lock"
        locks[name].write_text(pinning.lock([f"local/arm#{name}"]))
    for name, how, expected in (
        ("v5", "downloaded", last), ("v4", "made", labelled), ("v1", "downloaded", versions[0]),
        ("v3", "downloaded", versions[2]), ("v4", "here", labelled),
    ):  # fmt: skip
        (done,) = pinning.sync(locks[name], home=other)
        assert (done.how, done.version, done.newest) == (how, int(name[1:]), 5)
        same(rlds_cli.open_dataset(f"local/arm#{name}", home=other), expected)
    same(rlds_cli.open_dataset("local/arm", home=other), last)
    other_arm = [{"observation": np.zeros((4, 1)), "action": np.zeros((3, 1))}]
    rlds_cli.create("local/arm", other_arm, home=other / "apart").label(quality="x").label(quality="y")
    with pytest.raises(WrongFingerprint):  # another dataset of this name has no such version
        pinning.sync(locks["v1"], home=other / "apart")


def test_a_lock_of_a_version_that_was_removed(store: Path, other: Path, tmp_path: Path) -> None:
    three_versions(store)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/arm"]))
    rlds_cli.open_dataset("local/arm").label(quality="all")
    push("local/arm", store)
    collecting.collect(store)
    with pytest.raises(DatasetNotFound, match="removed there"):
        pinning.sync(lock, home=other)


@pytest.mark.thorough
def test_an_index_that_is_not_the_pinned_one(store: Path, other: Path, tmp_path: Path) -> None:
    three_versions(store)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/arm"]))
    sha256 = json.loads(lock.read_text())["datasets"][0]["index"]
    file = store / "indexes" / sha256
    others = [f for f in (store / "indexes").iterdir() if f != file]
    text = others[0].read_bytes()
    file.unlink()
    file.write_bytes(text)
    assert run_rlds("sync", lock, "--home", other).returncode == 1
    assert not (other / "datasets/local/arm").exists()


@pytest.mark.thorough
def test_a_selection_takes_no_rows_of_its_source_along(address: str, other: Path) -> None:
    rng = np.random.default_rng(0)
    given = [{"observation": rng.normal(size=(51, 2000)), "action": np.zeros((50, 1))} for _ in range(40)]
    ds = rlds_cli.create("local/wide", given)
    source = push(ds.id, f"{address}/source").sent
    few = ds.select(episodes=[3, 4, 30]).save("few")
    alone = push(few.id, f"{address}-few", force=True)
    assert alone.sent < 0.1 * source  # 3 of 40 episodes
    assert alone.others == 25 * 51  # actions are small: those of all episodes between 4 and 30 are sent
    here = bring(f"{address}-few", other, "x")
    same(here, few)
    assert run_rlds("verify", here.id, "--home", other).returncode == 0
    assert push(few.id, f"{address}/few").sent < 0.01 * source  # beside its source


@pytest.mark.thorough
def test_another_dataset_needs_force(store: Path) -> None:
    three_versions(store)
    create([episode(9, 3)], ref="local/other")
    with pytest.raises(NameTaken, match="local/arm"):
        push("local/other", store)
    push("local/other", store, force=True)
    assert [v["number"] for v in log(store)] == [1]


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["indexes/", "rlds.json"])
def test_a_wrong_text_is_asked_for_again(
    damage: str, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte that changes on the way changes nothing."""
    versions, wrong = three_versions(store), []
    read = DirectoryPlace.document

    def damaged(self: DirectoryPlace, name: str, longest: int) -> Document | None:
        found = read(self, name, longest)
        if found is not None and name.startswith(damage) and len(wrong) < 2:
            wrong.append(name)
            return Document(found.data.replace(b"local/arm", b"local/art"), found.tag)
        return found

    monkeypatch.setattr(DirectoryPlace, "document", damaged)
    same(bring(f"file://{store}", other, "x"), versions[2])
    assert len(wrong) == 2
