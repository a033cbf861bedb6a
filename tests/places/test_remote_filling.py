"""Filling: what is missing of a remote dataset arrives behind the training, and never in its way."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_store import FILES, Store, blocks, check, content, opened
from conftest import wait_for
from object_store import Fault, ObjectStore
from test_remote_store import large
from test_remote_training import bucket, same

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.loader import Loader, Mixture, Prioritized, Sequential, Shuffled, Uniform, Weighted
from rlds_cli.loader.samplers import Sampler
from rlds_cli.places.remote import filling, flights
from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.fetching import Take
from rlds_cli.places.remote.grounds import lock_bytes
from rlds_cli.places.remote.presence import FETCHING, GROUP, MANY, Descriptor
from rlds_cli.share.pushing import push

__all__ = ["bucket"]  # a fixture
ALL = [(number, 0, f.blocks) for number, f in enumerate(FILES) if f.blocks]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_ELSEWHERE", 0.01)
    monkeypatch.setattr(filling, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(filling, "_LOOK", 0.01)


def are_here(files: BlockFiles) -> bool:
    return files.missing == 0


def ended(files: BlockFiles) -> bool:
    assert files._filler is not None
    return files._filler._thread is None


# -- of files


@pytest.mark.thorough
def test_all_that_is_wanted_arrives_once_in_long_requests(tmp_path: Path) -> None:
    store = Store()
    files = opened(tmp_path / "remote", store)
    files.hold([(0, blocks(4))]).release()
    wish = files.fill(ALL[:1])
    assert wait_for(lambda: bool(files.state(0).all()) and ended(files))
    assert wish.state == "" and not files.state(1).any()
    assert store.asked[0] == (0, 4 * GROUP, GROUP)
    assert sorted(store.asked[1:]) == [
        (0, 0, 4 * GROUP),
        (0, 5 * GROUP, 3 * GROUP),
        (0, 8 * GROUP, FILES[0].size - 8 * GROUP),
    ]
    assert files.mapped(0).tobytes() == content(0, 0, FILES[0].size)
    assert files.stats.filled == FILES[0].size - GROUP and files.map.live_pins().sum() == 0
    again = files.fill(ALL)
    assert wait_for(lambda: are_here(files) and ended(files)) and again.state == "" and len(store.asked) == 5


@pytest.mark.thorough
def test_the_beginnings_of_all_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_RUN", MANY)
    store = Store()
    files = opened(tmp_path / "remote", store, at_once=1)
    wish = files.fill(ALL)
    assert wait_for(lambda: are_here(files)), wish.state
    places = [start / FILES[file].size for file, start, _ in store.asked]
    assert {file for file, _, _ in store.asked[:2]} == {0, 1} and np.diff(places).min() > -0.1


@pytest.mark.thorough
def test_it_takes_a_part_of_the_connections_and_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_RUN", MANY)
    store, go, lock = Store(), threading.Event(), threading.Lock()
    now: list[int] = []

    def before(file: int, start: int) -> None:
        with lock:
            now.append(start)
        assert go.wait(60)

    store.before = before
    files = opened(tmp_path / "remote", store, at_once=8)
    wish = files.fill(ALL[:1])
    assert wait_for(lambda: len(now) == 2)
    time.sleep(0.05)
    assert len(now) == 2, "a quarter of eight"
    hold = files.announce([(0, blocks(8, 9))])  # the other connections are free
    assert wait_for(lambda: len(now) == 4) and sorted(now[2:]) == [8 * GROUP, 9 * GROUP]
    go.set()
    hold.wait()
    assert wait_for(lambda: bool(files.state(0).all())), wish.state
    assert len(store.asked) == 11


def test_what_is_asked_for_overtakes(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()
    store.before = lambda file, start: go.wait(60) and None
    files = opened(tmp_path / "remote", store, at_once=1)
    first = files.announce([(0, blocks(0))])  # has the only connection
    assert wait_for(lambda: len(store.asked) == 1)
    last = files.bring(int(files.map.first[1]), 3 * MANY)
    ahead = [files.announce([(0, blocks(k))]) for k in (1, 2)]
    held: list[int] = []
    thread = threading.Thread(target=lambda: held.append(len(files.hold([(1, blocks(1, file=1))]).blocks)))
    thread.start()
    assert wait_for(lambda: last.flights[0].urgency == flights.NOW)
    go.set()
    thread.join(60)
    for hold in (first, *ahead, last):
        hold.wait()
    assert held == [MANY] and [file for file, _, _ in store.asked] == [0, 1, 0, 0], "one flight, and it went second"
    assert files.stats.filled == 0


def test_a_batch_does_not_wait_for_the_rest_of_a_long_request(tmp_path: Path) -> None:
    go = threading.Event()

    def source(file: int, start: int, length: int, take: Take) -> None:
        for at in range(start, start + length, GROUP):
            assert at < 2 * GROUP or go.wait(60)
            take(content(file, at, min(GROUP, start + length - at)))

    files = opened(tmp_path / "remote", source)  # type: ignore[arg-type]
    run = files.bring(0, 8 * MANY)
    with files.hold([(0, blocks(1))]):
        assert not run.is_here
    go.set()
    run.wait()


@pytest.mark.usefixtures("quick")
def test_one_at_a_time_fills_a_dataset(tmp_path: Path) -> None:
    stores, go = [Store(), Store()], threading.Event()
    stores[0].before = lambda file, start: go.wait(60) and None
    one, other = (opened(tmp_path / "remote", store) for store in stores)
    mine = one.fill(ALL)
    assert wait_for(lambda: bool(stores[0].asked))
    theirs = other.fill(ALL)
    assert wait_for(lambda: "another loader" in theirs.state) and not stores[1].asked
    del mine  # it is the other one's turn, for what is not on its way
    assert wait_for(lambda: ended(one) and theirs.state == filling.UNDER_WAY)
    go.set()
    assert wait_for(lambda: are_here(other) and ended(other)) and theirs.state == ""


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_it_ends_with_the_wish(tmp_path: Path) -> None:
    store, go = Store(), threading.Event()
    store.before = lambda file, start: go.wait(60) and None
    files = opened(tmp_path / "remote", store, at_once=1)
    wish = files.fill([(0, 0, 8 * MANY), (1, 0, 3 * MANY)])
    assert wait_for(lambda: bool(store.asked))
    del wish
    assert wait_for(lambda: ended(files))
    go.set()
    assert wait_for(lambda: files.map.live_pins().sum() == 0)
    assert len(store.asked) == 1 and not files.state(1).any()


def test_nothing_leaves_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path / "remote", Store(), limit=8 * GROUP)
    files.hold([(0, blocks(0, 1, 2))]).release()
    wish = files.fill(ALL)
    assert wait_for(lambda: ended(files))
    assert "10.1 MiB" in wish.state and "cache= has room for 5.0 MiB" in wish.state
    assert files.here == 3 * MANY and files.stats.evicted == 0
    wish = files.fill(ALL[1:])
    assert wait_for(lambda: bool(files.state(1).all()) and ended(files)), wish.state
    monkeypatch.setattr("rlds_cli.base.files.disk.free", lambda path: 12 * GROUP)
    other = opened(tmp_path / "elsewhere", Store())
    wish = other.fill(ALL)
    assert wait_for(lambda: ended(other)) and "the disk has 12.0 MiB free" in wish.state and not other.here
    memory = opened(None, Store())
    wish = memory.fill(ALL)
    assert wait_for(lambda: ended(memory)) and "cache=0" in wish.state and not memory.here


@pytest.mark.usefixtures("quick")
def test_failures_are_not_those_of_batches(tmp_path: Path) -> None:
    store, broken = Store(), threading.Event()
    broken.set()

    def before(file: int, start: int) -> None:
        if broken.is_set() and file == 1:
            raise rlds_cli.errors.DownloadFailed("the store is away.")

    store.before = before
    files = opened(tmp_path / "remote", store, at_once=4)
    wish = files.fill(ALL)
    assert wait_for(lambda: ended(files))
    assert "has ended" in wish.state and "the store is away" in wish.state and not files.state(1).any()
    broken.clear()
    with files.hold([(1, blocks(2, file=1))]):
        wish = files.fill(ALL)
        assert wait_for(lambda: are_here(files)), wish.state
    assert check(1, 0, memoryview(files.mapped(1).tobytes()))


# -- of loaders


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, str]]:
    """A dataset of some 20 blocks, and where it was pushed to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        here, store = large(50_000, width=300), tmp_path_factory.mktemp("store")
        push(here.id, store)
        yield here, str(store)


@pytest.mark.thorough
def test_behind_the_training(pushed: tuple[Dataset, str], tmp_path: Path) -> None:
    here, store = pushed
    there = rlds_cli.open_dataset(store, home=tmp_path)
    arguments: dict[str, Any] = {"backend": "numpy", "fields": ["observation"], "steps": 3}
    near, loader = Loader(here, 1, **arguments), Loader(there, 1, **arguments)
    (reads,) = loader.source.remote
    assert "after the first batch, the rest arrives in the background" in loader.describe()
    blocks, count = there.store.files.blocks, reads.extent[1]
    for _ in range(2):
        for one, other in zip(near, loader, strict=True):
            same(one, other)
        assert wait_for(lambda: reads.extent == (count, count) and ended(blocks)), reads.filling.state
    assert not loader.source.remote, "all columns are held"
    came = {f.path for number, f in enumerate(blocks.files) if blocks.state(number).any()}
    assert came == {"observation/c/0/0"}, "columns that are not read did not come"
    stats = loader.stats()
    assert 0 < stats.filled <= max(f.size for f in blocks.files) and "of it in the background" in str(stats)
    assert f"remote    all {count} blocks of these fields are cached" in loader.describe()


SCATTERED: list[tuple[Callable[[Any], Sampler], bool]] = [
    (lambda here: Uniform(), True),
    (lambda here: Uniform(by="episode"), True),
    (lambda here: Uniform(warm_up="first_part"), True),
    (lambda here: Shuffled(), True),
    (lambda here: Weighted(np.ones(len(here.episodes))), True),
    (lambda here: Prioritized(), True),
    (lambda here: Sequential(), False),
    (lambda here: Shuffled(block=1000), False),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("made", "fills"), SCATTERED)
def test_which_samplers_fill(
    made: Callable[[Any], Sampler], fills: bool, pushed: tuple[Dataset, str], tmp_path: Path
) -> None:
    there = rlds_cli.open_dataset(pushed[1], home=tmp_path)
    sampler = made(there)
    loader = Loader(there, 1, sampler=sampler, backend="numpy", fields=["observation"], prefetch=0, steps=2)
    batches = iter(loader)
    next(batches)
    assert loader.source.compiled.remote.filling is None
    assert ("close together" in loader.describe()) == (not fills)
    next(batches)
    assert (loader.source.compiled.remote.filling is not None) == fills, sampler


def test_it_is_turned_off(pushed: tuple[Dataset, str], tmp_path: Path) -> None:
    there = rlds_cli.open_dataset(pushed[1], home=tmp_path, fill=False)
    loader = Loader(there, 1, backend="numpy", steps=3)
    for _ in loader:
        pass
    assert loader.stats().filled == 0 and "fill=False" in loader.describe()
    assert there.store.files.blocks._filler is None


def test_members_of_a_mixture(pushed: tuple[Dataset, str], tmp_path: Path) -> None:
    here, store = pushed
    there = rlds_cli.open_dataset(store, home=tmp_path)
    loader = Loader(Mixture({"near": here, "far": there}), 4, backend="numpy", steps=3)
    for _ in loader:
        pass
    assert wait_for(lambda: "  remote    all " in loader.describe()), loader.describe()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_it_ends_with_the_loaders(pushed: tuple[Dataset, str], tmp_path: Path) -> None:
    there = rlds_cli.open_dataset(pushed[1], home=tmp_path)
    blocks = there.store.files.blocks
    only = Descriptor(blocks.map.ground.open(FETCHING))
    assert lock_bytes(only.number, blocks.map.blocks, 1)  # so that it does not end by itself
    loaders = [Loader(there, 1, backend="numpy", fields=["observation"], steps=2, seed=k) for k in range(2)]
    for loader in loaders:
        for _ in loader:
            pass
    del loader
    assert wait_for(lambda: "another loader" in loaders[1].describe())
    del loaders[0]
    gc.collect()
    time.sleep(0.05)
    assert not ended(blocks), "one is left"
    del loaders[0]
    gc.collect()
    assert wait_for(lambda: ended(blocks)) and not all(blocks.state(blocks.number("observation/c/0/0")))


def test_workers_fill(pushed: tuple[Dataset, str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    here, store = pushed
    loader = Loader(rlds_cli.open_dataset(store, home=tmp_path), 2, steps=400, fields=["observation"])
    reads, near = loader.source.remote[0], Loader(here, 2, steps=400, fields=["observation"])
    workers = torch.utils.data.DataLoader(
        loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for i, (one, other) in enumerate(zip(near, workers, strict=False)):
        same(one.numpy(), other.numpy())
        if i == 10:
            assert wait_for(lambda: reads.extent[0] == reads.extent[1])
            break


def test_what_is_all_here_and_stays_is_packed_as_a_local_dataset_is(
    pushed: tuple[Dataset, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, store = pushed
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "own"))
    for limit, packs in ((None, True), ("1GiB", False), (0, False)):
        home = tmp_path / str(limit)
        there = rlds_cli.open_dataset(store, home=home, cache=limit)
        before = Loader(there, 16, backend="numpy", steps=3)
        assert "packed rows" not in before.describe()
        blocks = there.store.files.blocks
        hold = blocks.hold([(n, np.arange(f.blocks)) for n, f in enumerate(blocks.files) if f.blocks])
        loader = Loader(there, 16, backend="numpy", steps=40)
        assert ("packed rows" in loader.describe()) == packs == bool(list(home.glob("packed/*")))
        for one, other in zip(Loader(here, 16, backend="numpy", steps=40), loader, strict=True):
            same(one, other)
        assert not (tmp_path / "own" / "packed").exists()
        hold.release()


_TRAINING = """
import sys, time
import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.loader import Loader
loader = Loader(rlds_cli.open_dataset(sys.argv[1], home=sys.argv[2]), 1, backend="numpy", steps=3)
for batch in loader:
    pass
time.sleep(0.1)
print(loader.describe())
"""


@pytest.mark.thorough
def test_the_interpreter_ends_while_it_fills(
    pushed: tuple[Dataset, str], tmp_path: Path, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = pushed
    monkeypatch.setenv("RLDS_HOME", str(here.path.parents[2]))
    push(here.id, "s3://lab/a")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", _TRAINING, "s3://lab/a", str(tmp_path / "far")]
    bucket.latency = 0.05
    bucket.faults.append(Fault("503", path="objects", times=10**6, skip=12))  # it never becomes whole
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in the background" in done.stdout
