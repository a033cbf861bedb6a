"""What is said of files that are no datasets, and that what is suggested works."""

from __future__ import annotations

import io
import os
import pickle
import shlex
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import write_d4rl

import rlds_cli
from rlds_cli.cli import main
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.look import choose_files
from rlds_cli.look.report import describe_file
from rlds_cli.look.report.files import Node

SAMPLES = Path(rlds_cli.__file__).parent / "samples"


def hdf5(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as f:
        for name, values in columns.items():
            f[name.replace("__", "/")] = values
    return path


@pytest.fixture
def press(tmp_path: Path) -> Path:
    """A user's own log, in no layout that anybody knows."""
    n, rng = 50, np.random.default_rng(0)
    return hdf5(
        tmp_path / "run 42.h5",
        state__q=rng.normal(size=(n, 7)),
        state__dq=rng.normal(size=(n, 7)),
        cmd=rng.normal(size=(n, 7)),
        r=np.ones(n, np.float32),
        success=np.arange(n) % 25 == 24,
        stamp=np.arange(n),
        operator="me",
        calibration=np.eye(4),
    )


def test_a_directory_of_far_too_many_files_is_none_to_look_at(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / f"{k}.h5").touch()
    assert len(choose_files([tmp_path], most=4).files) == 4
    with pytest.raises(ArchiveError, match="more than 3 files"):
        choose_files([tmp_path], most=3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    for command in (
        ["du", "--home", str(tmp_path / "locked" / "home")],
        ["inspect", str(tmp_path / "locked" / "x")],
    ):
        done = subprocess.run([sys.executable, "-m", "rlds_cli", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith("NoPermission"), done.stderr


def test_d4rl(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [5, 6, 7])
    r = describe_file(tmp_path / "a.hdf5")
    assert (r.reader, r.episodes_by, r.episodes, r.files) == ("d4rl", "flags", 3, 1)
    assert {f.name for f in r.fields} == {
        *("observation", "action", "next/reward", "next/terminated", "next/truncated", "info/qpos")
    }
    assert r.bytes == (tmp_path / "a.hdf5").stat().st_size
    assert r.suggestion == f"rlds import {tmp_path}/a.hdf5 --name local/a"
    assert r.tree == ()


def test_the_samples_of_the_package() -> None:
    assert describe_file(SAMPLES / "cartpole-minari").reader == "minari"
    assert describe_file(SAMPLES / "cartpole-minari").episodes == 12
    trials = describe_file(SAMPLES / "mountaincar-robohive.h5")
    assert (trials.reader, trials.episodes, trials.rows) == ("roboset", 12, 1491)
    assert describe_file(str(SAMPLES / "*d4rl*")).reader == "d4rl"


def test_nothing_is_written(press: Path, home: Path) -> None:
    before = press.stat().st_mtime_ns
    describe_file(press)
    assert press.stat().st_mtime_ns == before
    assert not home.exists()


def test_an_unknown_hdf5(press: Path) -> None:
    r = describe_file(press)
    assert (r.reader, r.what, r.groups) == (None, "an HDF5 file", 1)
    assert 'd4rl: no "observations" and "actions"' in str(r.why)
    assert Node("state/q", (50, 7), "float64") in r.tree
    assert Node("operator", (), "text") in r.tree
    assert r.guessed == {
        "observation": "state/q",
        "action": "cmd",
        "next/reward": "r",
        "next/terminated": "success",
    }


def test_the_suggested_command_works(press: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = describe_file(press).suggestion
    assert command is not None
    program, *arguments = shlex.split(command)
    assert program == "rlds"
    assert arguments[-1] == "--dry-run"
    for args in (arguments, arguments[:-1]):
        monkeypatch.setattr("sys.argv", ["rlds", *args])
        try:
            main()
        except SystemExit as e:
            assert not e.code
    ds = rlds_cli.open_dataset("local/run-42")
    assert (ds.num_episodes, ds.num_steps) == (2, 50)
    with h5py.File(press) as f:
        assert np.array_equal(ds.episode(1)["observation"], f["state/q"][25:])
        assert np.array_equal(ds.episode(1)["action"], f["cmd"][25:])


def test_the_suggested_command_for_groups_of_two_arms_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of arms by joints might be a batch of steps; the command says that it is a step."""
    with h5py.File(tmp_path / "arms.h5", "w") as f:
        for k in range(2):
            f[f"ep{k}/q"], f[f"ep{k}/cmd"] = np.ones((5 + k, 2, 7)), np.ones((5 + k, 2, 7))
    command = str(describe_file(tmp_path / "arms.h5").suggestion)
    monkeypatch.setattr("sys.argv", shlex.split(command.removesuffix(" --dry-run")))
    with suppress(SystemExit):
        main()
    assert rlds_cli.open_dataset("local/arms").episodes["length"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"q": 3, "act": 2}, "--map observation=q --map action=act --episodes-by jumps"),
        ({"q": 3, "act": 2, "done": 0}, "--map observation=q --map action=act --map terminated=done"),
        ({"q": 3, "act": 2, "timeout": 0}, "--map observation=q --map action=act --map truncated=timeout"),
        ({"x": 3, "u": 2, "episode": 0}, "--map observation=x --map action=u --episodes-by field:episode"),
        ({"S": 3, "A": 2, "R": 0}, "--map observation=S --map action=A --map next/reward=R --episodes-by jumps"),
        ({"obs": 3, "next_obs": 3, "cmd": 2, "dones": 0}, "--map next/observation=next_obs"),
        (
            {"run_1__q": 3, "run_1__cmd": 2, "run_2__q": 3, "run_2__cmd": 2},
            "--map observation='*/q' --map action='*/cmd'",
        ),
        ({"robot__state": 3, "robot__ctrl": 2}, "--map observation=robot/state --map action=robot/ctrl"),
        ({"my q__q": 3, "act": 2}, "--map observation='my q/q'"),
    ],
)
def test_guesses(tmp_path: Path, columns: dict[str, int], expected: str) -> None:
    made = {
        name: np.zeros((20, width) if width else 20, np.int64 if name == "episode" else float)
        for name, width in columns.items()
    }
    assert expected in str(describe_file(hdf5(tmp_path / "a.h5", **made)).suggestion)


def test_nothing_to_suggest(tmp_path: Path) -> None:
    for columns in (
        {"a": np.zeros((5, 2))},
        {"obs": np.zeros((5, 2)), "act": np.zeros((6, 2))},
        {},
        {"obs": 1.0, "act": 2.0},
    ):
        r = describe_file(hdf5(tmp_path / "a.h5", **columns))
        assert r.suggestion is None
        assert len(r.tree) == len(columns)


def test_a_group_per_episode_is_seen(tmp_path: Path) -> None:
    columns = {f"run_{k}__{name}": np.zeros((5 + k, 2)) for k in range(11) for name in ("q", "cmd")}
    r = describe_file(hdf5(tmp_path / "a.h5", **columns))
    assert (r.reader, r.episodes) == (None, 11)
    assert [n.name for n in r.tree][::8] == ["run_0/cmd", "run_4/cmd", "run_8/cmd"]  # in natural order
    named = {k.replace("q", "obs").replace("cmd", "act"): v for k, v in columns.items()}
    r = describe_file(hdf5(tmp_path / "b.h5", **named))
    assert (r.reader, r.episodes, r.rows) == ("plain", 11, sum(6 + k for k in range(11)))


def test_npz_and_npy(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", q=np.zeros((5, 3), np.float32), cmd=np.zeros((5, 1)))
    r = describe_file(tmp_path / "a.npz")
    assert set(r.tree) == {Node("q", (5, 3), "float32"), Node("cmd", (5, 1), "float64")}
    assert "--name local/a --map observation=q --map action=cmd --episodes-by jumps --dry-run" in str(r.suggestion)
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.uint8))
    assert describe_file(tmp_path / "a.npy").tree == (Node("array", (2, 3), "uint8"),)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("/tmp/rlds-evil-was-here", "w")


@pytest.mark.parametrize("kind", ["npy", "npz", "pkl"])
def test_pickles_are_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    Path("/tmp/rlds-evil-was-here").unlink(missing_ok=True)
    file = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(file, np.array([Evil()], object), allow_pickle=True)
    elif kind == "npz":
        np.savez(file, good=np.zeros(3), bad=np.array([Evil()], object))
    else:
        file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UnsafeArchive, match="never read") as caught:
        describe_file(file)
    assert "rlds_cli.create" in str(caught.value.hint)
    assert not Path("/tmp/rlds-evil-was-here").exists()


@pytest.mark.parametrize("name", ["a.hdf5", "a.h5", "a.npz", "a.bin"])
@pytest.mark.parametrize("text", ["<!DOCTYPE html><html>403", "\n  <html lang=en>", "<?xml version='1.0'?><Error/>"])
def test_pages_are_named_as_such(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptArchive, match="is an HTML page"):
        describe_file(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PAR1....", "a Parquet file without its end"),
        (b"ARROW1..", "an Arrow file without its end"),
        (b"\xff\xff\xff\xff\x10\0", "an Arrow stream without its end"),
        (b"\x1f\x8b\x08", "a gzip-compressed file"),
        (b'{"a": 1}', "a JSON file"),
        (b"a,b\n1,2\n", "a text file"),
        (b"\x00\xff\xfe\x01", "a file of no known format"),
        (b"\0" * 257 + b"ustar" + b"\0" * 250, "a tar archive: unpack it first"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a").write_bytes(content)
    r = describe_file(tmp_path / "a")
    assert (r.what, r.suggestion) == (what, None)


def test_a_zip_of_other_things(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("readme", "x")
    assert describe_file(tmp_path / "a.zip").what == "a zip archive of 1 files: unpack it first"


def test_damage(tmp_path: Path, press: Path) -> None:
    (tmp_path / "empty.h5").touch()
    with pytest.raises(CorruptArchive, match="is empty"):
        describe_file(tmp_path / "empty.h5")
    (tmp_path / "cut.h5").write_bytes(press.read_bytes()[:3000])
    with pytest.raises(CorruptArchive, match="truncated or damaged"):
        describe_file(tmp_path / "cut.h5")
    buffer = io.BytesIO()
    np.savez(buffer, obs=np.zeros(1000))
    (tmp_path / "cut.npz").write_bytes(buffer.getvalue()[:500])
    with pytest.raises(CorruptArchive, match="truncated or damaged"):
        describe_file(tmp_path / "cut.npz")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00nonsense")
    with pytest.raises(CorruptArchive, match="not a NumPy array"):
        describe_file(tmp_path / "bad.npy")


def test_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(UnsafeArchive, match="another file"):
        describe_file(tmp_path / "a.h5")


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "*.none", tmp_path):
        with pytest.raises(ArchiveError, match="no such file"):
            describe_file(path)


def test_a_directory_of_unknown_files(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    hdf5(tmp_path / "d/run10.h5", q=np.zeros((5, 2)), act=np.zeros((5, 1)))
    hdf5(tmp_path / "d/run2.h5", q=np.zeros((5, 2)), act=np.zeros((5, 1)))
    r = describe_file(tmp_path / "d")
    assert (r.files, r.what) == (2, "2 files, the first (run2.h5) an HDF5 file")
    assert f"rlds import {tmp_path}/d --name local/d --map observation=q" in str(r.suggestion)
