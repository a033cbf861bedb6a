"""Exports: what is written is read by other libraries, and imported again with the same fingerprint."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli.archives import FORMATS, plan_export
from rlds_cli.archives.exports import exporting
from rlds_cli.cli import main, out
from rlds_cli.errors import ExportError, LossyExport, NameTaken


def episodes(*, final: bool = True) -> list[dict]:
    """Three episodes of 2, 3 and 1 steps: truncated, terminated, truncated."""
    made, at = [], 0
    for length, terminated in ((2, False), (3, True), (1, False)):
        last = np.arange(length) == length - 1
        made.append(
            {
                "observation": np.arange(at, at + length + final, dtype=np.float32)[:, None] * [1, 10],
                "action": np.arange(at, at + length)[:, None] / 8,
                "info": {"height": np.arange(length) * 2.5},
                "next": {
                    "reward": np.full(length, at, np.float32),
                    "terminated": last & terminated,
                    "truncated": last & (not terminated),
                },
            }
        )
        at += 100
    return made


def test_d4rl_holds_every_step_in_its_row(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    done = rlds_cli.export(ds, "d4rl", tmp_path / "three")
    assert done.proved and done.fingerprint == ds.fingerprint and not done.losses
    with h5py.File(tmp_path / "three" / "three.hdf5") as f:
        assert f["observations"][:, 0].tolist() == [0, 1, 100, 101, 102, 200]
        assert f["next_observations"][:, 1].tolist() == [10, 20, 1010, 1020, 1030, 2010]
        assert f["actions"][:, 0].tolist() == [0, 0.125, 12.5, 12.625, 12.75, 25]
        assert f["rewards"][:].tolist() == [0, 0, 100, 100, 100, 200]
        assert f["terminals"][:].tolist() == [False, False, False, False, True, False]
        assert f["timeouts"][:].tolist() == [False, True, False, False, False, True]
        assert f["infos/height"][:].tolist() == [0, 2.5, 0, 2.5, 5, 0]
        assert f["observations"].dtype == np.float64 and f["rewards"].dtype == np.float32


def test_a_selection_is_exported_with_its_own_fingerprint(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    some = ds.select(episodes=[2, 1])
    done = rlds_cli.export(some, "d4rl", tmp_path / "some")
    again = rlds_cli.create("local/some", [episodes()[2], episodes()[1]])
    assert done.fingerprint == again.fingerprint
    with h5py.File(tmp_path / "some" / "some.hdf5") as f:
        assert f["observations"][:, 0].tolist() == [200, 100, 101, 102]


def test_losses_are_listed_and_refused_before_anything_is_written(home: Path, tmp_path: Path) -> None:
    mixed = [episodes()[0], episodes(final=False)[1]]
    mixed[0]["text"] = ["a\0z", "b"]  # which HDF5 would cut
    mixed[1]["text"] = ["c", "d", "e"]
    ds = rlds_cli.create("local/mixed", mixed)
    assert [loss.kind for loss in plan_export(ds, "d4rl", tmp_path / "out").losses] == ["field", "final"]
    with pytest.raises(LossyExport, match="final observations of 1 of 2 episodes") as e:
        rlds_cli.export(ds, "d4rl", tmp_path / "out")
    assert [loss.kind for loss in e.value.losses] == ["field", "final"]
    assert list(tmp_path.glob("*out*")) == []
    done = rlds_cli.export(ds, "d4rl", tmp_path / "out", lossy=True)
    with h5py.File(tmp_path / "out" / "out.hdf5") as f:
        assert set(f) == {"observations", "actions", "rewards", "terminals", "timeouts", "infos"}
    assert done.proved and len(done.losses) == 2


def test_a_directory_that_is_there_is_not_replaced_unasked(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    with pytest.raises(NameTaken, match="not empty"):
        rlds_cli.export(ds, "d4rl", tmp_path / "there")
    assert (tmp_path / "there" / "mine.txt").read_text() == "mine"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("to", [to for to in FORMATS if to != "rerun" or find_spec("rerun")])
def test_force_replaces_an_export_of_any_format(to: str, home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    target, how = tmp_path / "three", {"lossy": True, "verify": False, "jobs": 1}
    rlds_cli.export(ds.select(episodes=[0]), to, target, **how)
    with pytest.raises(NameTaken, match="earlier export"):
        rlds_cli.export(ds, to, target, **how)
    rlds_cli.export(ds, to, target, force=True, **how)
    (target / "notes.md").write_text("mine")
    with pytest.raises(NameTaken, match=r"did not write: notes\.md"):
        rlds_cli.export(ds, to, target, force=True, **how)
    assert (target / "notes.md").read_text() == "mine"


@pytest.mark.parametrize("name", [".", "..", "~", "work"])
def test_force_removes_no_other_directory(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = rlds_cli.create("local/three", episodes())
    work = tmp_path / "above" / "work"
    work.mkdir(parents=True)
    (work / "thesis.tex").write_text("mine")
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.chdir(work.parent if name == "work" else work)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NameTaken, match="rlds export did not write it"):
        rlds_cli.export(ds, "d4rl", name, force=True)
    assert sorted(tmp_path.rglob("*")) == before and (work / "thesis.tex").read_text() == "mine"


def test_force_does_not_take_a_file_for_the_mark(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    for k, text in enumerate(("", "[]", '{"rlds export": 1}', "\0")):
        (tmp_path / str(k)).mkdir()
        (tmp_path / str(k) / exporting.MARK).write_text(text)
        with pytest.raises(NameTaken, match="did not write it"):
            rlds_cli.export(ds, "d4rl", tmp_path / str(k), force=True)
    (tmp_path / "empty").mkdir()
    assert rlds_cli.export(ds, "d4rl", tmp_path / "empty", force=True).proved


def test_homes_are_not_exported_to(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    with pytest.raises(NameTaken, match="lies in the home"):
        rlds_cli.export(ds, "d4rl", home / "datasets" / "local" / "other")
    assert [p.name for p in (home / "datasets" / "local").iterdir()] == ["three"]


def test_infinities_of_both_signs_are_data(home: Path) -> None:
    e = episodes()[0]
    e["next"]["reward"] = np.array([np.inf, -np.inf])
    ds = rlds_cli.create("local/infinite", [e])
    assert np.isnan(ds.episodes["total_reward"][0])


def test_a_condition_on_the_command_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = rlds_cli.create("local/three", episodes())
    for where, code, err in (
        ("'term' in end", 0, ""),
        ("", 1, "InvalidExpression"),
        ("'failed' in end", 1, "Values: terminated, truncated, cut"),
        ("3 in length", 1, "length is a number"),
    ):
        words = ["rlds", "export", ds.id, str(tmp_path / "out"), "--to", "d4rl", "--dry-run", "--where", where]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            try:
                main()
                done = 0
            except SystemExit as e:
                done = e.code or 0
        said = capsys.readouterr()
        assert done == code and (said.err == "" if code == 0 else err in said.err)
    with out.escaped_warnings():  # one line for a warning of ours, as of a selection of all episodes
        assert warnings.formatwarning(UserWarning("all"), UserWarning, out.__file__, 1) == "warning: all\n"


@pytest.mark.parametrize("to", ["lerobot", "tfds", pytest.param("lerobot2.1", marks=pytest.mark.thorough)])
def test_texts_that_are_no_unicode_are_refused_or_left_out(home: Path, tmp_path: Path, to: str) -> None:
    """A lone surrogate stands for a byte that was not UTF-8, as HDF5 holds some."""
    steps: dict[str, Any] = {"observation": np.arange(6.0).reshape(3, 2), "action": np.ones((2, 1))}
    ds = rlds_cli.create("local/field", [steps | {"note": ["a\udc80", "b"]}], progress=False)
    lost = {(loss.kind, loss.field) for loss in plan_export(ds, to, tmp_path / "a").losses}
    assert ("field", "note") in lost
    assert rlds_cli.export(ds, to, tmp_path / "a", lossy=True, progress=False).proved
    given = [steps | {"episode": {"task": "go"}}, steps | {"episode": {"task": "a\udc80"}}]
    ds = rlds_cli.create("local/task", given, progress=False)
    with pytest.raises(
        ExportError, match=r"the text task of episode 1 holds bytes that are not UTF-8, 'a\\udc80'"
    ) as e:
        rlds_cli.export(ds, to, tmp_path / "b", lossy=True, progress=False)
    assert "rlds label local/task task=TEXT --episodes 1" in str(e.value.hint)
    ds = rlds_cli.create("local/steps", [steps | {"task": ["a\udc80", "b"]}], progress=False)
    with pytest.raises(ExportError, match=r"the text task (of episode 0 )?holds bytes"):
        rlds_cli.export(ds, to, tmp_path / "c", lossy=True, progress=False)


def test_libraries_are_the_folders_that_have_something_of_one() -> None:
    assert dir(rlds_cli.interop) == ["d3rlpy", "d4rl", "minari", "record", "torchrl"]  # and no folder of compiled code
    of_libraries = {"minari", "d4rl", "lerobot", "lerobot2.1", "tfds", "robomimic", "tensordict"}
    assert of_libraries | {"zarr-replay-buffer", "mcap", "rerun"} == set(FORMATS)
