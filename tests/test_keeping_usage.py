from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_d4rl

import rlds_cli
from rlds_cli import create, preprocess
from rlds_cli.errors import DatasetNotFound, InvalidId, NoPermission
from rlds_cli.home.usage import usage
from rlds_cli.importing import import_files
from rlds_cli.maintenance.remove import plan, remove
from rlds_cli.store import publishing


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
        publishing.share_tree(source / name, target / name)


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


def lost(*refs: str) -> list[str]:
    return [one.lost for one in plan(refs)]


def half(episode: Any) -> Any:
    episode["action"] /= 2
    return episode


def test_what_nothing_can_make_again(tmp_path: Path) -> None:
    make("local/a", 10)
    assert lost("local/a") == ["it was created from values in Python"]
    rlds_cli.download("sample/pendulum-d4rl")
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
    preprocess.run(rlds_cli.download("sample/pendulum-d4rl"), half, "half", jobs=0)
    remove(["sample/pendulum-d4rl"])
    assert lost("sample/pendulum-d4rl@half") == [""]


def test_all_or_nothing() -> None:
    a = make("local/a")
    for bad in ("local/none", "local/../a", "/", "none*"):
        with pytest.raises((DatasetNotFound, InvalidId)):
            remove(["local/a", bad])
        assert a.exists()


def test_datasets_of_a_shared_home_are_not_ours_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds: Any = create("local/s", [{"observation": np.zeros(3), "action": np.zeros(2)}], cache_dir=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    with pytest.raises(NoPermission, match="not in your home") as caught:
        remove(["local/s"])
    assert "--home" in str(caught.value.hint)
    assert ds.path.exists()
    remove(["local/s"], cache_dir=tmp_path / "shared")
    assert not ds.path.exists()
