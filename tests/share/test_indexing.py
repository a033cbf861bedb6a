"""``rlds index DIR`` makes the directory of a dataset an address: an index beside its files, and no copy of rows."""

# ruff: noqa: F811  (fixtures of another module)

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import growing_model
import numpy as np
import pytest
from conftest import run_rlds
from forged_address import index_of
from loader_data import create, episode
from object_store import ObjectStore
from test_remote_store import (
    MAKERS,
    assert_same,
    bucket,  # noqa: F401  (a fixture)
    hasty,  # noqa: F401  (a fixture)
    other,  # noqa: F401  (a fixture)
)

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument, NameTaken, WrongFingerprint, WrongHash
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader
from rlds_cli.places.sources.directory import DirectoryPlace
from rlds_cli.share import collecting
from rlds_cli.share.indexing import index


def copy(ds: Dataset, to: Path) -> Path:
    """Copy the files of a dataset over a directory, as ``cp -r`` does, and its tags."""
    shutil.copytree(ds.path, to, dirs_exist_ok=True)
    for path in [to, *to.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return to


def labelled() -> Dataset:
    """The second version of a dataset, of which the first one has a tag."""
    ds = create([episode(k, 5 + k) for k in range(4)], ref="local/arm")
    ds.tag("first")
    return ds.label(quality=["good", "good", "bad", "good"])


def written(place: Path) -> set[str]:
    return {f.relative_to(place).as_posix() for f in place.rglob("*") if f.is_file() and not f.name.startswith(".")}


def log(address: object) -> list[int]:
    return [v["number"] for v in json.loads(run_rlds("log", address, "--json").stdout)]


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_directory_becomes_an_address(kind: str, tmp_path: Path, other: Path) -> None:
    wanted = MAKERS[kind](tmp_path)
    place = copy(wanted, tmp_path / "copy")
    before = {name: (place / name).read_bytes() for name in written(place)}
    done = index(place)
    assert (done.id, done.fingerprint, done.version) == (wanted.id, wanted.fingerprint, wanted.version)
    assert {name: (place / name).read_bytes() for name in before} == before, "no file of the dataset changes"
    got = rlds_cli.open_dataset(f"file://{place}", home=other)
    assert got.store.address == str(place)
    assert_same(got, wanted, between=kind != "grown")
    made = rlds_cli.download(f"file://{place}#{wanted.fingerprint}", name="local/mine", home=other)
    assert_same(made, wanted, between=kind != "grown")
    assert verify("local/mine", home=other).ok
    assert verify(str(place)).ok


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", list(MAKERS))
def test_no_rows_are_copied(kind: str, tmp_path: Path) -> None:
    ds = MAKERS[kind](tmp_path)
    place = copy(ds, tmp_path / "copy")
    done = index(place)
    stored = {o.path for o in index_of(place).objects}
    table = ds.store.table
    heads = tuple(f"{c.directory}/c/" for c in (*table.columns(), *table.digest_columns()))
    rows = {f for f in written(place) if f.startswith(heads)}
    assert {f for f in rows if (place / f).stat().st_size} >= stored - {""}
    assert done.files == len({f.path for f in index_of(place).files} & rows) > 0
    assert done.written == sum(f.stat().st_size for f in (place / "objects").iterdir())
    pieces = {f.path: {index_of(place).objects[p.object].path for p in f.pieces} for f in index_of(place).files}
    assert not [f for f in rows & pieces.keys() if "" in pieces[f]], "the rows of each file are those of a file"


def test_training_reads_the_files_where_they_are(tmp_path: Path, bucket: ObjectStore, other: Path) -> None:
    """The directory is copied to a bucket after it was indexed."""
    ds = create([episode(k, 50 + k) for k in range(20)], ref="local/arm")
    place = copy(ds, tmp_path / "copy")
    index(place)
    bucket.buckets["lab"] = {f"arm/{name}": (place / name).read_bytes() for name in written(place)}
    remote = rlds_cli.open_dataset("s3://lab/arm", home=other)
    with bucket.counting() as requests:
        got = [next(iter(Loader(d, batch_size=64, seed=3, backend="numpy"))) for d in (remote, ds)]
    np.testing.assert_array_equal(got[0]["observation"], got[1]["observation"])
    assert any("/arm/observation/c/0" in r.path for r in requests)


@pytest.mark.thorough
def test_the_directory_itself_is_opened_as_before(tmp_path: Path, other: Path) -> None:
    place = copy(labelled(), tmp_path / "copy")
    index(place)
    assert not rlds_cli.open_dataset(place, home=other).store.address
    assert rlds_cli.open_dataset(f"{place}#v2", home=other).store.address
    assert not (other / "remote").exists() or rlds_cli.open_dataset(place).path == place


# -- versions


@pytest.mark.thorough
def test_a_change_adds_a_version(tmp_path: Path, other: Path) -> None:
    newest = labelled()
    first = rlds_cli.open_dataset("local/arm#v1")
    place = copy(first, tmp_path / "copy")
    shutil.copy(newest.path / "tags.json", place)
    assert index(place).tags == ("first",)
    copy(newest, place)
    done = index(place)
    assert (done.version, done.removed) == (2, ())
    assert log(place) == [1, 2]
    for version, wanted in (("v1", first), ("first", first), ("v2", newest), (first.fingerprint, first)):
        got = rlds_cli.open_dataset(f"file://{place}#{version}", home=other)
        assert got.fingerprint == wanted.fingerprint
        np.testing.assert_array_equal(got.episode(3)["observation"], wanted.episode(3)["observation"])
    made = rlds_cli.download(f"file://{place}#first", name="local/mine", home=other)
    assert made.fingerprint == first.fingerprint


@pytest.mark.thorough
def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    place = copy(labelled(), tmp_path / "copy")
    index(place)
    before = written(place)
    assert index(place).written == 0
    assert written(place) == before


def test_versions_whose_rows_were_replaced_are_removed(tmp_path: Path, other: Path) -> None:
    old = create([episode(k, 5 + k) for k in range(4)], ref="local/arm")
    place, kept, fingerprint = copy(old, tmp_path / "copy"), copy(old, tmp_path / "kept"), old.fingerprint
    index(place)
    new = create([episode(k + 7, 5 + k) for k in range(4)], ref="local/arm")
    copy(new, place)
    assert [v.fingerprint for v in index(place).removed] == [fingerprint]
    assert_same(rlds_cli.open_dataset(f"file://{place}", home=other), new)
    with pytest.raises(WrongFingerprint):
        rlds_cli.open_dataset(f"file://{place}#{fingerprint}", home=other)
    shutil.copytree(kept, place, dirs_exist_ok=True)
    assert b"v1  removed: its rows were replaced" in run_rlds("index", place).stdout


@pytest.mark.thorough
def test_a_growing_dataset_is_indexed_again_without_reading_old_rows(tmp_path: Path, other: Path) -> None:
    rng = np.random.default_rng(0)
    place, versions = tmp_path / "copy", []
    for _ in range(3):
        with rlds_cli.writer("local/grow") as w:
            w.add_episodes([growing_model.draw(rng, 40).item()])
        copy(rlds_cli.open_dataset("local/grow"), place)
        before = set(index_of(place).objects) if versions else set()
        versions.append(index(place).version)
        now = index_of(place).objects
        assert {o for o in before if o.path} <= set(now), "objects of earlier rows stay"
    assert log(place) == versions
    for number in versions:
        wanted = rlds_cli.open_dataset(f"local/grow#v{number}")
        got = rlds_cli.open_dataset(f"file://{place}#v{number}", home=other)
        assert got.num_episodes == wanted.num_episodes
        np.testing.assert_array_equal(got.episode(0)["action"], wanted.episode(0)["action"])
    assert rlds_cli.download(f"file://{place}#v{versions[0]}", name="local/x", home=other).num_episodes == 1


def test_rows_that_leave_are_not_used(other: Path) -> None:
    rng = np.random.default_rng(0)
    with rlds_cli.writer("local/grow", fields=growing_model.FIELDS, keep=rlds_cli.Reservoir(episodes=4)) as w:
        for round in range(3):
            for _ in range(3):
                w.add_episodes([growing_model.draw(rng, 2000).item()])
                w.commit()
            done = index(w.dataset().path)
            wanted = rlds_cli.open_dataset(f"local/grow#v{done.version}")
            got = rlds_cli.download(f"file://{done.address}", name=f"local/{round}", home=other)
            assert got.fingerprint == wanted.fingerprint
            del wanted  # frees the version


def test_a_dataset_of_a_home_keeps_its_index(other: Path) -> None:
    first = create([episode(k, 5 + k) for k in range(4)], ref="local/arm")
    done = index(first.path)
    newest = rlds_cli.open_dataset("local/arm").label(quality="good")
    assert index(newest.path).removed == ()
    for number, wanted in enumerate((rlds_cli.open_dataset("local/arm#v1"), newest), 1):
        assert_same(rlds_cli.open_dataset(f"file://{done.address}#v{number}", home=other), wanted)
    assert verify("local/arm").ok


def test_removal_takes_no_rows(tmp_path: Path, other: Path) -> None:
    """Fields may have the names of an address's directories."""
    data = {"observation": np.ones((6, 2)), "action": np.ones((5, 1)), "objects": np.ones((5, 3)), "blocks": np.ones(5)}
    ds = rlds_cli.create("local/arm", [data, data])
    place = copy(ds, tmp_path / "copy")
    index(place)
    copy(ds.label(quality="good"), place)
    index(place)
    assert [v.number for v in collecting.collect(place).removed] == [1]
    assert verify(str(place)).ok
    assert_same(rlds_cli.open_dataset(f"file://{place}", home=other), rlds_cli.open_dataset("local/arm"))
    rlds_cli.push(place, tmp_path / "pushed", pages=False)
    files = {f.path for f in index_of(tmp_path / "pushed").files}
    assert files == written(rlds_cli.open_dataset("local/arm").path), "the files of the index are not of the dataset"


# -- refusals


def test_rows_of_another_directory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = create([episode(k, 5 + k) for k in range(4)], ref="local/arm")
    monkeypatch.setattr("rlds_cli.base.files.disk.link", lambda *_: False)  # another disk
    some = ds.select(episodes=[0, 2]).save("some")
    with pytest.raises(InvalidArgument, match="would not find") as caught:
        index(some.path)
    assert "rlds compact" in str(caught.value.hint)
    assert not (some.path / "rlds.json").exists()


@pytest.mark.thorough
def test_the_index_of_another_dataset_is_not_replaced(tmp_path: Path) -> None:
    place = copy(labelled(), tmp_path / "copy")
    index(place)
    copy(create([episode(1, 9)], ref="local/leg"), place)
    with pytest.raises(NameTaken):
        index(place)
    assert index(place, force=True).id == "local/leg"


def test_a_directory_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        index(tmp_path)


def test_files_that_change_after_they_were_indexed_are_not_used(tmp_path: Path, other: Path) -> None:
    ds = labelled()
    place = copy(ds, tmp_path / "copy")
    index(place)
    file = place / "observation/c/0/0"
    file.write_bytes(bytes(b ^ 1 for b in file.read_bytes()))
    remote = rlds_cli.open_dataset(f"file://{place}", home=other)
    with pytest.raises(WrongHash, match="observation/c/0/0") as caught:
        remote.episode(0)
    assert "rlds index DIR" in str(caught.value.hint)
    with pytest.raises(WrongHash, match="observation/c/0/0"):
        rlds_cli.download(f"file://{place}", name="local/mine", home=other)


def test_an_interrupted_index_leaves_the_earlier_one(
    tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = labelled()
    place = copy(rlds_cli.open_dataset("local/arm#v1"), tmp_path / "copy")
    index(place)
    copy(newest, place)
    real = DirectoryPlace.write

    def killed(self: DirectoryPlace, name: str, body: object, **how: object) -> int:
        if name.startswith("indexes/"):
            raise KeyboardInterrupt
        return real(self, name, body, **how)  # type: ignore[arg-type]

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(DirectoryPlace, "write", killed)
        index(place)
    assert rlds_cli.open_dataset(f"file://{place}", home=other).version == 1
    assert index(place).version == 2
    assert rlds_cli.open_dataset(f"file://{place}", home=other).version == 2


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_mounted_bucket_has_no_modes_and_no_locks(
    tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copy(labelled(), tmp_path / "copy")

    def refused(error: int) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise OSError(error, os.strerror(error))

        return call

    with monkeypatch.context() as m:
        m.setattr(os, "fchmod", refused(errno.EPERM))
        m.setattr(fcntl, "flock", refused(errno.ENOSYS))
        index(place)
    assert rlds_cli.open_dataset(f"file://{place}", home=other).version == 2


# -- commands


@pytest.mark.thorough
def test_commands(tmp_path: Path, other: Path) -> None:
    place = copy(labelled(), tmp_path / "copies/arm")
    said = run_rlds("index", place).stdout.decode()
    assert f"local/arm#v2  is at {place}" in said and "files of rows in place" in said
    found = json.loads(run_rlds("index", place, "--json").stdout)
    assert (found["version"], found["written"], found["removed"]) == (2, 0, [])
    (listed,) = json.loads(run_rlds("list", tmp_path / "copies", "--json").stdout)
    assert (listed["id"], listed["version"]) == ("local/arm", 2)
    assert run_rlds("verify", place).returncode == 0
    assert run_rlds("inspect", f"file://{place}", "--home", other).returncode == 0
