"""Live loaders of datasets at an address: they take up what another machine pushes."""

# ruff: noqa: F811  (fixtures of another module)

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import growing_model
import numpy as np
import pytest
from object_store import Fault, ObjectStore
from test_remote_store import (
    bucket,  # noqa: F401  (a fixture)
    hasty,  # noqa: F401  (a fixture)
    other,  # noqa: F401  (a fixture)
    same,
)

import rlds_cli
from rlds_cli.errors import DamagedDataset, InvalidArgument
from rlds_cli.loader import Live, Loader, Mixture, Shuffled
from rlds_cli.loader.read import DatasetSource
from rlds_cli.make.convert.writer import Writer
from rlds_cli.share import collecting

PATIENCE = 20.0  # seconds


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.remote.store.EVERY", 0.05)


@pytest.fixture
def writer() -> Iterator[Writer]:
    with rlds_cli.writer("local/online", fields=growing_model.FIELDS) as w:
        add(w, 3)
        yield w


def add(w: Writer, episodes: int) -> None:
    rng = np.random.default_rng(time.monotonic_ns())
    w.add_episodes([growing_model.draw(rng, 30).item() for _ in range(episodes)])
    w.commit()


def push(address: object) -> int:
    return rlds_cli.push("local/online", str(address), pages=False).version


def until(loader: Loader, batches: Iterator[object], version: int) -> int:
    """Draw batches until one is of a version; return how many."""
    end, count = time.monotonic() + PATIENCE, 0
    while loader.version != version:
        assert time.monotonic() < end, f"still at version {loader.version}"
        next(batches)
        count += 1
    return count


@pytest.fixture(params=["directory", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "store/online")
    request.getfixturevalue("bucket")
    return "s3://lab/online"


@pytest.mark.slow
def test_a_push_is_taken_up(address: str, writer: Writer, other: Path) -> None:
    """And the log of versions gives the same batches again, there and here."""
    versions = [push(address)]
    loader = Loader(rlds_cli.open_dataset(address, home=other), 16, live=True, seed=3)
    batches = iter(loader)
    given = [next(batches) for _ in range(3)]
    for _ in range(2):
        add(writer, 2)
        versions.append(push(address))
        end = time.monotonic() + PATIENCE
        while loader.version != versions[-1]:
            assert time.monotonic() < end
            given.append(next(batches))
    given.append(next(batches))
    state = loader.state_dict()
    assert [v for _, v in state["versions"]] == versions
    for ds in (rlds_cli.open_dataset("local/online"), rlds_cli.open_dataset(address, home=other)):
        again = iter(Loader(ds, 16, live=state, seed=3))
        for batch in given:
            got = next(again)
            assert same(got["observation", "state"], batch["observation", "state"]), ds.store.address
            assert same(got["action"], batch["action"])


@pytest.mark.thorough
def test_training_does_not_wait_for_the_address(writer: Writer, bucket: ObjectStore, other: Path) -> None:
    """It goes on with the version that it has while the address does not answer, and takes up later ones again."""
    push("s3://lab/online")
    loader = Loader(rlds_cli.open_dataset("s3://lab/online", home=other), 16, live=True, seed=3)
    batches = iter(loader)
    for _ in range(50):
        next(batches)
    bucket.faults.append(Fault("503", path="/lab/online/rlds.json", times=50))
    start = time.monotonic()
    for _ in range(50):
        next(batches)
    assert time.monotonic() - start < 10
    bucket.faults.clear()
    add(writer, 2)
    until(loader, batches, push("s3://lab/online"))


def test_each_version_is_filled(tmp_path: Path, other: Path) -> None:
    """Blocks that no batch asks for arrive in the background, those of the first version and of the next one."""
    rng, loader = np.random.default_rng(0), None
    with rlds_cli.writer("local/online") as w:
        for _ in range(2):
            rows = rng.integers(0, 256, (5, 20_001, 64), np.uint8)
            w.add_episodes([{"observation": x, "action": np.zeros(20_000)} for x in rows])
            w.commit()
            version = push(tmp_path / "store")
            if loader is None:
                ds = rlds_cli.open_dataset(tmp_path / "store", home=other)
                loader = Loader(ds, 1, live=True, prefetch=0)
                batches = iter(loader)
            until(loader, batches, version)
            for _ in range(2):  # it begins after a batch
                next(batches)
            end, source = time.monotonic() + PATIENCE, loader.source
            assert isinstance(source, DatasetSource) and source.compiled.remote is not None
            while len(set(source.compiled.remote.extent)) > 1:
                assert time.monotonic() < end, source.compiled.remote.extent
                time.sleep(0.05)


@pytest.mark.slow
def test_few_requests(writer: Writer, bucket: ObjectStore, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.remote.store.EVERY", 0.5)
    push("s3://lab/online")
    loader = Loader(rlds_cli.open_dataset("s3://lab/online", home=other), 16, live=True, seed=3)
    batches = iter(loader)
    until_here = time.monotonic() + 2
    with bucket.counting() as requests:
        while time.monotonic() < until_here:
            next(batches)
    asked = [r for r in requests if r.path.endswith("rlds.json")]
    assert 1 <= len(asked) <= 5
    assert len(requests) - len(asked) <= 12, "the index is not read again, nor are rows"


def test_another_dataset_at_the_address(writer: Writer, tmp_path: Path, other: Path) -> None:
    address = tmp_path / "store"
    push(address)
    loader = Loader(rlds_cli.open_dataset(address, home=other), 16, live=True, seed=3)
    batches = iter(loader)
    next(batches)
    with rlds_cli.writer("local/second", fields=growing_model.FIELDS) as w:
        add(w, 5)
        add(w, 5)
    rlds_cli.push("local/second", address, pages=False, force=True)
    with pytest.raises(DamagedDataset, match="another dataset"):
        until(loader, batches, -1)


@pytest.mark.thorough
def test_a_mixture_of_an_address_and_a_dataset(writer: Writer, tmp_path: Path, other: Path) -> None:
    address = tmp_path / "store"
    push(address)
    with rlds_cli.writer("local/still", fields=growing_model.FIELDS) as w:
        add(w, 5)
    members = {
        "online": rlds_cli.open_dataset(address, home=other),
        "offline": rlds_cli.open_dataset("local/still"),
    }
    loader = Loader(Mixture(members, {"online": 1, "offline": 1}), 16, live=True, seed=3)
    batches = iter(loader)
    next(batches)
    add(writer, 3)
    version, end = push(address), time.monotonic() + PATIENCE
    while loader.state_dict()["versions"][-1][1] != version:
        assert time.monotonic() < end
        next(batches)


@pytest.mark.thorough
def test_a_loader_waits_for_the_first_steps(writer: Writer, tmp_path: Path, other: Path) -> None:
    address = tmp_path / "store"
    push(address)
    remote = rlds_cli.open_dataset(address, home=other)
    add(writer, 5)
    push(address)
    loader = Loader(remote, 16, live=Live(wait=PATIENCE, min_steps=remote.num_steps + 1))
    assert next(iter(loader)) is not None and loader.version == 2


@pytest.mark.thorough
def test_versions_may_be_removed_behind_the_training(writer: Writer, tmp_path: Path, other: Path) -> None:
    address = tmp_path / "store"
    push(address)
    loader = Loader(rlds_cli.open_dataset(address, home=other), 16, live=True, seed=3)
    batches = iter(loader)
    next(batches)
    for _ in range(3):
        add(writer, 1)
        version = push(address)
        until(loader, batches, version)
        collecting.collect(address)
    assert pickle.loads(pickle.dumps(loader.dataset)).version == version


def test_a_fingerprint_is_not_left_behind(writer: Writer, tmp_path: Path, other: Path) -> None:
    push(tmp_path / "store")
    pinned = f"{tmp_path / 'store'}#{rlds_cli.open_dataset('local/online').fingerprint}"
    with pytest.raises(InvalidArgument, match="pins a fingerprint"):
        Loader(rlds_cli.open_dataset(pinned, home=other), 4, live=True)


@pytest.mark.thorough
def test_what_is_no_growing_dataset_is_refused(tmp_path: Path, other: Path) -> None:
    from loader_data import create, episode

    rlds_cli.push(create([episode(k, 5) for k in range(3)], ref="local/arm").path, tmp_path / "arm", pages=False)
    remote = rlds_cli.open_dataset(tmp_path / "arm", home=other)
    with pytest.raises(InvalidArgument, match="does not grow"):
        Loader(remote, 4, live=True)
    with pytest.raises(InvalidArgument, match="Shuffled"):
        with rlds_cli.writer("local/online", fields=growing_model.FIELDS) as w:
            add(w, 3)
        push(tmp_path / "online")
        Loader(rlds_cli.open_dataset(tmp_path / "online", home=other), 4, sampler=Shuffled(), live=True)
