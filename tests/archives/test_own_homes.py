"""Imports of directories in which rlds itself has files: datasets, homes, and places that datasets were pushed to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.errors import ArchiveError
from rlds_cli.look.report import describe_file
from rlds_cli.make.importing import import_files, plan_import


def recording(path: Path, rows: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    terminated = np.arange(rows) == rows - 1
    np.savez(
        path, observation=np.arange(rows, dtype=np.float32), action=np.zeros(rows, np.float32), terminals=terminated
    )
    return path


def refused(path: Path) -> ArchiveError:
    with pytest.raises(ArchiveError) as e:
        plan_import(path, "local/x")
    return e.value


def left_out(account: object) -> dict[str, tuple[str, int]]:
    return {e.name: (e.left_out, e.count) for e in account if e.left_out and e.kind == "file"}  # type: ignore[attr-defined]


def test_a_home_below_the_directory_is_left_out_and_said(home: Path, tmp_path: Path) -> None:
    recording(tmp_path / "ep_0.npz")
    assert home.parent == tmp_path
    first = import_files(tmp_path, "local/first", progress=False)
    assert first.num_steps == 3
    recording(tmp_path / "ep_1.npz", 4)
    planned = plan_import(tmp_path, "local/second")
    assert [f.name for f in planned.files] == ["ep_0.npz", "ep_1.npz"]
    files = sum(1 for p in (home / "datasets").rglob("*") if p.is_file())
    assert left_out(planned.account)["home/datasets/*"] == ("the home of rlds", files)
    assert [n for n in planned.notes if n.startswith("the home of rlds was left out: home/datasets/")]
    made = import_files(tmp_path, "local/second", progress=False)
    assert made.num_steps == 7
    assert {"kind": "file", "name": "home/datasets/*", "count": files, "left_out": "the home of rlds"} in [
        dict(e) for e in made.manifest.account
    ]
    assert str(tmp_path) not in str(made.manifest.notes)
    assert import_files(tmp_path, "local/second", progress=False).fingerprint == made.fingerprint
    described = run_rlds("inspect", str(tmp_path))
    assert described.returncode == 0 and b" in 2 files: " in described.stdout


def test_another_home_and_a_copied_dataset_are_known_by_their_datasets(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    import_files(recording(tmp_path / "x.npz"), "local/x", home=data / "cache", progress=False)
    shutil.copytree(data / "cache/datasets/local/x", data / "copies/x")
    recording(data / "run/ep_0.npz")
    recording(data / "cache/mine.npz", 5)  # of the user, beside what rlds keeps there
    planned = plan_import(data, "local/mine")
    assert [f.relative_to(data).as_posix() for f in planned.files] == ["cache/mine.npz", "run/ep_0.npz"]
    said = left_out(planned.account)
    assert said["cache/datasets/*"][0] == "the home of rlds"
    assert said["copies/x/*"] == ("a dataset of rlds", sum(p.is_file() for p in (data / "copies/x").rglob("*")))
    assert plan_import(data / "**/*.npz", "local/mine").files == planned.files


def test_what_an_interrupted_import_left_in_a_home_without_datasets(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    recording(data / "ep_0.npz")
    recording(data / "cache/partial/local+x.0123456789abcdef/part/ep_1.npz")
    made = import_files(data, "local/x", home=data / "cache", progress=False)
    assert made.num_steps == 3


def test_a_directory_of_a_home_is_refused(home: Path, tmp_path: Path) -> None:
    for name in ("local/b", "local/a"):
        import_files(recording(tmp_path / "x.npz"), name, progress=False)
    for place in (home / "datasets", home / "datasets/local", home / "locks"):
        e = refused(place)
        assert e.message.endswith(f" belongs to the home {home}, with local/a, local/b.")
        assert e.hint and all(f"rlds {command}" in e.hint for command in ("append", "merge", "push", "export"))
    e = refused(home)
    assert e.message == f"{home} holds nothing but what rlds has made, with local/a, local/b." and e.hint
    with pytest.raises(ArchiveError, match="belongs to the home"):
        describe_file(home / "datasets")


def test_a_dataset_is_refused(home: Path, tmp_path: Path) -> None:
    ds = import_files(recording(tmp_path / "x.npz"), "local/x", progress=False)
    copied = Path(shutil.copytree(ds.path, tmp_path / "copy"))
    for place, inside in ((ds.path, ds.path / "episodes"), (copied, copied / "zarr.json")):
        for path in (place, inside, place / "*"):
            assert refused(path).message == f"{place} is the dataset local/x already, and needs no import."
    (tmp_path / "copies").mkdir()
    copied.rename(tmp_path / "copies/one")
    e = refused(tmp_path / "copies")
    assert e.message == f"{tmp_path / 'copies'} holds nothing but what rlds has made." and "rlds merge" in str(e.hint)


def test_where_a_dataset_was_pushed_to(home: Path, tmp_path: Path) -> None:
    ds = import_files(recording(tmp_path / "x.npz"), "local/x", progress=False)
    place = tmp_path / "shared/there"
    rlds_cli.push(ds.id, place, pages=False)
    for path in (place, place / "objects"):
        e = refused(path)
        assert e.message == f"A dataset was pushed to {place}, and needs no import."
        assert f"rlds download {place} --name local/NAME" in str(e.hint)
    recording(tmp_path / "shared/ep_0.npz")
    planned = plan_import(tmp_path / "shared", "local/y")
    assert [f.name for f in planned.files] == ["ep_0.npz"]
    said = left_out(planned.account)
    assert said["there/rlds.json"] == ("a dataset was pushed there", 1) and "there/objects/*" in said


def test_a_downloaded_archive_in_a_home_is_read(home: Path) -> None:
    recording(home / "archives/d4rl/x/ep_0.npz")
    assert len(plan_import(home / "archives/d4rl/x", "local/x").files) == 1
    assert len(plan_import(home / "archives/*/*/*.npz", "local/x").files) == 1


def test_an_append_leaves_a_home_out(home: Path, tmp_path: Path) -> None:
    recording(tmp_path / "ep_0.npz")
    rlds_cli.append("local/grown", tmp_path, progress=False)
    recording(tmp_path / "ep_1.npz", 5)
    again = rlds_cli.append("local/grown", tmp_path, progress=False)
    assert rlds_cli.open_dataset("local/grown").num_steps == 8
    assert [n for n in again.notes if "the home of rlds was left out" in str(n)]
