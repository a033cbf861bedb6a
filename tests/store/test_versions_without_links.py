"""A home on a disk without hard links: versions, selections and appends refer to files, and nothing is copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from made_once import made_once
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import main
from rlds_cli.cli.commands import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import NameTaken, NoPermission
from rlds_cli.keep import removing
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader
from rlds_cli.look.report.doctor import diagnose
from rlds_cli.make.importing import import_files
from rlds_cli.store import History, references

assert main
ID = "local/x"
WIDE = 4


@pytest.fixture(autouse=True)
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT: the system refuses every link."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


def episode(k: int) -> dict[str, Any]:
    return {"observation": np.full((4, WIDE), k, np.float32), "action": np.arange(3.0), "episode": {"k": k}}


def made() -> Dataset:
    return made_once(ID, lambda: rlds_cli.create(ID, [episode(k) for k in range(6)]), __name__)


def numbers(ds: Dataset) -> list[float]:
    """Of each episode the number that its observations hold, read from the rows."""
    return [float(ds.episode(k)["observation"][:].mean()) for k in range(ds.num_episodes)]


def label(ds: Dataset) -> Dataset:
    return ds.label(quality="good")


def drop(ds: Dataset) -> Dataset:
    return ds.select(episodes=[1]).drop()


def restore(ds: Dataset) -> Dataset:
    ds.label(quality="bad")
    return rlds_cli.open_dataset(f"{ID}#v1").restore()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "left"), [(restore, [*range(6)]), (label, [0, 1, 2, 3, 4, 5]), (drop, [0, 2, 3, 4, 5])]
)
def test_a_change_refers_to_the_version_before(
    change: Callable[[Dataset], Dataset], left: list[int], home: Path
) -> None:
    ds = made()
    changed = change(ds)
    assert numbers(changed) == left and numbers(rlds_cli.open_dataset(f"{ID}#v1")) == [*range(6)]
    rows = [p for p in home.rglob("observation/c/0/0") if "digests" not in p.parts]
    assert rows == [History(changed.path).beside / "1/observation/c/0/0"]
    assert {s.version for s in references.sources(changed.path)} == {1}
    assert all(verify(f"{ID}#v{n}").ok for n in range(1, changed.manifest.version + 1))
    assert next(iter(Loader(ID, 4, seed=0, backend="numpy")))["observation"].shape[-1] == WIDE


def test_many_changes_refer_to_the_files_themselves() -> None:
    """No reference leads to another one, and each version stays what it was."""
    ds, dropped = made(), 0
    for n in range(4):
        ds = rlds_cli.open_dataset(ID).label(turn=n) if n % 2 else rlds_cli.open_dataset(ID).select(episodes=[0]).drop()
        dropped += 1 - n % 2
        assert numbers(ds) == [*range(dropped, 6)]
    picked = ds.select(episodes=[2, 0]).save("some")
    assert numbers(picked) == [4, 2] and {s.version for s in references.sources(picked.path)} == {1}
    later = ds.label(turn=9)
    assert numbers(picked) == numbers(rlds_cli.open_dataset(f"{ID}@some")) == [4, 2]
    assert numbers(rlds_cli.open_dataset(f"{ID}#v2")) == [1, 2, 3, 4, 5]
    assert verify(later.id).ok and verify(picked.id).ok


def test_compact_keeps_what_others_refer_to() -> None:
    ds = made().label(quality="good")
    picked = ds.select(episodes=[1, 3]).save("some")
    ds.label(quality="bad")
    done = compact(ID)
    assert done.changed and History(done.path).earlier == [1]
    assert references.sources(done.path) == ()
    assert numbers(rlds_cli.open_dataset(ID)) == [*range(6)] and numbers(picked) == [1, 3]
    compact(picked.id)
    compact(ID)
    assert History(done.path).earlier == []
    assert numbers(rlds_cli.open_dataset(picked.id)) == [1, 3] and verify(picked.id).ok


def test_a_tag_keeps_the_version_whose_rows_its_own_refers_to() -> None:
    tagged = made().label(quality="good")
    tagged.tag("paper")
    tagged.label(quality="bad")
    path = compact(ID).path
    assert History(path).earlier == [1, 2]
    assert numbers(rlds_cli.open_dataset(f"{ID}#paper")) == [*range(6)]


def files(directory: Path, *which: int) -> Path:
    directory.mkdir()
    for k in which:
        with h5py.File(directory / f"{k}.hdf5", "w") as f:
            f["observations"], f["actions"] = np.full((3, 2), k, np.float32), np.zeros((3, 1), np.float32)
            f["terminals"] = np.array([False, False, True])
    return directory


def test_files_are_appended(tmp_path: Path) -> None:
    import_files(files(tmp_path / "a", 0, 1), ID, progress=False)
    rlds_cli.append(ID, files(tmp_path / "b", 2), progress=False)
    assert numbers(rlds_cli.open_dataset(ID)) == [0, 1, 2] and numbers(rlds_cli.open_dataset(f"{ID}#v1")) == [0, 1]
    assert not list((tmp_path / "home").glob("partial/*")) and verify(ID).ok


def test_a_selection_of_a_growing_dataset_is_a_copy_if_that_is_asked_for() -> None:
    with rlds_cli.writer("local/grown", like=made()) as writer:
        writer.add_episodes([episode(k) for k in range(6)])
    ds = rlds_cli.open_dataset("local/grown")
    with pytest.raises(NoPermission) as e:
        ds.select(episodes=[4, 1]).save("some")
    assert "no hard links" in e.value.message and "--copy" in str(e.value.hint) and " B" in str(e.value.hint)
    picked = ds.select(episodes=[4, 1]).save("some", copy=True)
    with rlds_cli.writer("local/grown") as writer:
        writer.add_episodes([episode(9)])
    assert numbers(picked) == [4, 1] and verify(picked.id).ok and references.sources(picked.path) == ()
    done = CliRunner().invoke(app, ["select", "local/grown", "--episodes", "0", "--name", "first", "--copy"])
    assert done.exit_code == 0 and numbers(rlds_cli.open_dataset("local/grown@first")) == [0]


def test_a_merge_refers_to_its_members_and_copies_those_that_grow() -> None:
    made()
    with rlds_cli.writer("local/grown", like=rlds_cli.open_dataset(ID)) as writer:
        writer.add_episodes([episode(7)])
    merged = rlds_cli.merge([ID, "local/grown"], "local/all", progress=False)
    assert numbers(merged) == [0, 1, 2, 3, 4, 5, 7] and verify(merged.id).ok
    assert {s.id for s in references.sources(merged.path)} == {ID}


def test_a_dataset_with_the_rows_of_another_is_not_replaced() -> None:
    picked = made().select(episodes=[4, 1]).save("some")
    with pytest.raises(NameTaken, match="local/x@some"):
        rlds_cli.create(ID, [episode(9)], force=True)
    assert numbers(rlds_cli.open_dataset(ID)) == [*range(6)]
    compact(picked.id)
    assert numbers(rlds_cli.create(ID, [episode(9)], force=True)) == [9]
    assert numbers(rlds_cli.open_dataset(picked.id)) == [4, 1]


def test_a_home_may_move(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk does that is mounted elsewhere: no reference leads to the place of before."""
    made().label(quality="good").select(episodes=[4, 1]).save("some")
    moved = home.with_name("moved")
    home.rename(moved)
    monkeypatch.setenv("RLDS_HOME", str(moved))
    for id, wanted in ((ID, [*range(6)]), (f"{ID}@some", [4, 1])):
        assert numbers(rlds_cli.open_dataset(id)) == wanted and verify(id).ok
    rlds_cli.open_dataset(ID).label(quality="bad")
    assert History(compact(ID).path).earlier == [1]
    assert numbers(rlds_cli.open_dataset(f"{ID}@some")) == [4, 1]
    assert removing.plan_removal([ID])[0].referring == (moved / "datasets/local/x@some",)


@pytest.mark.parametrize("published", [False, True])
def test_a_process_that_ends_in_between_leaves_the_dataset(published: bool) -> None:
    """The newest version has moved, and the next one is not, or just, in its place."""
    ds = made().label(quality="good")
    earlier = History(ds.path).beside
    (earlier / ".moving").write_bytes(b"")
    if not published:
        ds.path.rename(earlier / "2")
    again = rlds_cli.open_dataset(ID)
    assert again.manifest.version == 2 and numbers(again) == [*range(6)]
    assert History(again.path).earlier == [1]
    assert again.label(quality="bad").manifest.version == 3
    assert not (earlier / ".moving").exists()


def test_the_doctor_says_what_the_home_can_do() -> None:
    made()
    assert not diagnose().links
    done = CliRunner().invoke(app, ["doctor"])
    assert "no hard links" in done.stdout
