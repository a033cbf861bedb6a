from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_d4rl
from made_once import sample_dataset

import rlds_cli
from rlds_cli import create, preprocess
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.errors import DatasetNotFound, InvalidId, NoPermission
from rlds_cli.homes import usage
from rlds_cli.keep.removing import plan_removal, remove
from rlds_cli.make.importing import import_files
from rlds_cli.store import sharing


def make(ref: str, rows: int = 1000) -> Path:
    return create(ref, [{"observation": np.zeros((rows + 1, 4)), "action": np.zeros((rows, 1))}]).path


def on_disk(*paths: Path) -> int:
    """Blocks of all files, each inode once."""
    found: dict[int, int] = {}
    for path in paths:
        for top, _, names in os.walk(path):
            for name in names:
                stat = os.lstat(Path(top, name))
                found[stat.st_ino] = stat.st_blocks * 512
    return sum(found.values())


def link(source: Path, target: Path, fields: tuple[str, ...]) -> None:
    """Make fields of ``target`` those of ``source``, as preprocess does where a function leaves them alone."""
    for name in fields:
        sharing.share_tree(source / name, target / name)


def test_nothing_yet(home: Path) -> None:
    u = usage()
    assert (u.home, u.datasets, u.total, u.partial, u.packed) == (home, (), 0, 0, 0)
    assert u.free > 0
    assert not home.exists()


def test_every_file_counts_once(home: Path) -> None:
    a, b = make("local/a"), make("local/a@v")
    link(a, b, ("observation", "action"))
    other = make("local/b")
    u = usage()
    rows = {d.id: d for d in u.datasets}
    assert list(rows) == ["local/a", "local/a@v", "local/b"]
    shared = on_disk(a / "observation", a / "action")
    assert shared >= 40_000
    assert (rows["local/a"].cache, rows["local/a"].shared) == (on_disk(a), shared)
    assert (rows["local/a@v"].cache, rows["local/a@v"].shared) == (on_disk(b), shared)
    assert [d.shared_with for d in u.datasets] == [("local/a@v",), ("local/a",), ()]
    assert usage(["local/a@v"]).datasets == (rows["local/a@v"],)
    assert u.caches == on_disk(a, b, other) == u.total
    assert all(d.archive == 0 and d.here for d in u.datasets)


@pytest.mark.thorough
def test_archives_with_and_without_their_datasets(home: Path) -> None:
    sample_dataset("pendulum-d4rl")
    archive = home / "archives/sample/pendulum-d4rl"
    gone = home / "archives/minari/a+b-v0"
    gone.mkdir(parents=True)
    (gone / "data.hdf5").write_bytes(b"x" * 10_000)
    (gone / "more.hdf5.part").write_bytes(b"x" * 20_000)
    (home / "partial/local+x.1").mkdir(parents=True)
    (home / "partial/local+x.1/rows").write_bytes(b"x" * 5000)
    (home / "packed").mkdir()
    (home / "packed/a.rows").write_bytes(b"x" * 9000)
    (home / "datasets/sample/.gone.removed").mkdir()
    (home / "datasets/sample/.gone.removed/file").write_bytes(b"x" * 4000)
    u = usage()
    rows = {d.id: d for d in u.datasets}
    assert rows["sample/pendulum-d4rl"].archive == on_disk(archive)
    stray = rows["minari/a/b-v0"]
    assert (stray.here, stray.cache, stray.last_opened) == (False, 0, None)
    assert stray.archive == (gone / "data.hdf5").stat().st_blocks * 512
    assert u.packed == on_disk(home / "packed")
    assert u.partial == on_disk(home / "partial", home / "datasets/sample/.gone.removed") + (
        (gone / "more.hdf5.part").stat().st_blocks * 512
    )
    assert u.total == on_disk(home / "archives", home / "datasets", home / "packed", home / "partial")


def test_size_of_a_file_or_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 5000)
    assert size_on_disk(tmp_path / "f") == on_disk(tmp_path)
    assert size_on_disk(tmp_path / "none") == 0


def test_links_are_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    (home / "archives/local/x").mkdir(parents=True)
    (home / "archives/local/x/big").symlink_to(tmp_path / "big")
    assert usage().total < 5000


@pytest.mark.thorough
def test_another_home(tmp_path: Path) -> None:
    make("local/a")
    assert usage(home=tmp_path / "other").datasets == ()


@pytest.mark.thorough
def test_removing(home: Path) -> None:
    a, b = make("local/a"), make("local/b")
    (planned,) = plan_removal(["local/a"])
    assert (planned.id, planned.path, planned.bytes, planned.archive) == ("local/a", a, on_disk(a), 0)
    assert a.exists()
    assert remove(["local/a"]) == (planned,)
    assert not a.exists()
    assert b.exists()
    assert [p.name for p in (home / "datasets/local").iterdir()] == ["b"]
    with pytest.raises(DatasetNotFound):
        remove(["local/a"])


def test_what_others_share_is_not_freed() -> None:
    a, b = make("local/a"), make("local/a@v")
    link(a, b, ("observation",))
    shared = on_disk(a / "observation")
    assert [p.bytes for p in plan_removal(["local/a"])] == [on_disk(a) - shared]
    assert sum(p.bytes for p in plan_removal(["local/*"])) == on_disk(a, b)
    before = rlds_cli.open_dataset("local/a@v").fingerprint
    remove(["local/a"])
    left = rlds_cli.open_dataset("local/a@v")
    assert left.fingerprint == before
    assert left.column("observation").shape == (1001, 4)


@pytest.mark.thorough
def test_the_archive_stays(home: Path) -> None:
    sample_dataset("pendulum-d4rl")
    archive = home / "archives/sample/pendulum-d4rl"
    (done,) = remove(["sample/pendulum-d4rl"])
    assert done.archive == on_disk(archive) > 0


def lost(*refs: str) -> list[str]:
    return [one.lost for one in plan_removal(refs)]


def half(episode: Any) -> Any:
    episode["action"] /= 2
    return episode


def test_what_nothing_can_make_again(tmp_path: Path) -> None:
    make("local/a", 10)
    assert lost("local/a") == ["it was created from values in Python"]
    sample_dataset("pendulum-d4rl")
    assert lost("sample/pendulum-d4rl") == [""]
    write_d4rl(tmp_path / "own.hdf5", [5, 7])
    import_files(tmp_path / "own.hdf5", "local/own")
    assert lost("local/own") == [""]
    (tmp_path / "own.hdf5").unlink()
    assert lost("local/own") == [f"{tmp_path / 'own.hdf5'}, which it was imported from, is gone"]


def test_derived_datasets_that_nothing_can_make_again() -> None:
    ds = rlds_cli.open_dataset(make("local/a", 10))
    preprocess.run(ds, half, "half", jobs=0)
    preprocess.run(ds, lambda e: e, "as_it_is", jobs=0)
    assert lost("local/a@half") == [""]
    assert lost("local/a@as_it_is") == ['the source of its function "<lambda>" is not kept']
    created = "it was created from values in Python"
    assert lost("local/a", "local/a@half") == [created, f"local/a, which it was made of, is removed too: {created}"]
    remove(["local/a"])
    assert lost("local/a@half") == ["local/a, which it was made of, is not here"]
    preprocess.run(sample_dataset("pendulum-d4rl"), half, "half", jobs=0)
    remove(["sample/pendulum-d4rl"])
    assert lost("sample/pendulum-d4rl@half") == [""]


def test_all_or_nothing() -> None:
    a = make("local/a")
    for bad in ("local/none", "local/../a", "/", "none*"):
        with pytest.raises((DatasetNotFound, InvalidId)):
            remove(["local/a", bad])
        assert a.exists()


@pytest.mark.thorough
def test_globs_and_repetitions() -> None:
    make("local/a1")
    make("local/a2")
    keep = make("local/b")
    assert [d.id for d in remove(["local/a1", "local/a*"])] == ["local/a1", "local/a2"]
    assert keep.exists()


def test_datasets_of_a_shared_home_are_not_ours_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds: Any = create("local/s", [{"observation": np.zeros(3), "action": np.zeros(2)}], home=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    with pytest.raises(NoPermission, match="not in your home") as caught:
        remove(["local/s"])
    assert "--home" in str(caught.value.hint)
    assert ds.path.exists()
    remove(["local/s"], home=tmp_path / "shared")
    assert not ds.path.exists()
