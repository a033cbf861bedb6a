"""Exports that are killed, stopped or run out of disk go on; nothing incomplete or wrong ever has the name."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import run_rlds
from filelock import FileLock

import rlds_cli
from rlds_cli.archives.exports import format as formats
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.archives.exports.format import Format, units_of
from rlds_cli.base.files import disk
from rlds_cli.errors import ExportError, LossyExport, NameTaken, NoSpace
from rlds_cli.make import importing

HDF5 = ("minari", "d4rl", "robomimic")


def given(count: int = 20, *, first: int = 0) -> list[dict[str, Any]]:
    """Episodes of 5 to 8 steps; the observation at t of episode k is 100 k + t."""
    made = []
    for k in range(first, first + count):
        steps = 5 + k % 4
        made.append(
            {
                "observation": {"x": (100 * k + np.arange(steps + 1, dtype=np.float32))[:, None]},
                "action": np.arange(steps) + k,
                "next": {"reward": np.ones(steps) * k, "terminated": True},
            }
        )
    return made


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of a few episodes."""
    monkeypatch.setattr(formats, "UNIT_BYTES", 512)
    monkeypatch.setattr(
        Format, "units", lambda self: units_of(self.content, sum(map(self.content.row_bytes, self.content.fields)), 512)
    )


def content(directory: Path) -> dict[str, Any]:
    """All datasets of the one HDF5 file below a directory."""
    found: dict[str, Any] = {}
    (file,) = directory.rglob("*.hdf5")
    with h5py.File(file) as f:
        f.visititems(lambda name, d: found.update({name: d[()].tolist()}) if isinstance(d, h5py.Dataset) else None)
    return found


def hidden(directory: Path) -> list[str]:
    """Names of what exports left behind."""
    return sorted(p.name for p in directory.glob(".*"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", HDF5)
def test_a_killed_export_goes_on(home: Path, tmp_path: Path, to: str) -> None:
    ds = rlds_cli.create("local/some", given())
    rlds_cli.export(ds, to, tmp_path / "whole" / "some", lossy=True, jobs=1)
    whole, resumed = content(tmp_path / "whole"), 0
    for kill_at in (1, 12, 40):  # calls of fsync: a unit has one, and so has each line of the journal
        target = tmp_path / str(kill_at) / "some"
        child = os.fork()
        if child == 0:
            calls = 0

            def killed(descriptor: int, kill_at: int = kill_at) -> None:
                nonlocal calls
                calls += 1
                if calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            os.fsync = killed
            rlds_cli.export(ds, to, target, lossy=True, jobs=1)
            os._exit(0)
        was_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert not was_killed or not target.exists() or content(target) == whole
        journal = target.with_name(".some.rlds-export") / "journal"
        before = journal.read_text() if journal.exists() else ""
        done = [] if not was_killed else [rlds_cli.export(ds, to, target, lossy=True, jobs=1)]
        assert content(target) == whole and all(d.proved for d in done)
        assert hidden(target.parent) == []
        resumed += before.count("\n") > 2
    assert resumed  # kills came after some units


def test_units_that_are_finished_are_not_written_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = rlds_cli.create("local/some", given())
    written: list[str] = []

    def stop(event: Any) -> None:
        if event.stage == "export" and event.done > 60:
            raise KeyboardInterrupt

    from rlds_cli.archives.minari.write import Minari

    plain = Minari.write
    monkeypatch.setattr(Minari, "write", lambda self, unit, d: (written.append(unit.name), plain(self, unit, d))[1])
    with pytest.raises(KeyboardInterrupt):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1, progress=stop)
    first = len(written)
    assert not (tmp_path / "some").exists() and hidden(tmp_path) == [".some.rlds-export"]
    done = rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    assert done.fingerprint == ds.fingerprint and first and len(written) == len(set(written))
    assert hidden(tmp_path) == []


def test_a_kill_between_the_last_two_steps_is_noticed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlds_cli.archives.exports import exporting

    ds = rlds_cli.create("local/some", given())
    plain = exporting._publish

    def publish_and_die(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "_publish", publish_and_die)
    with pytest.raises(KeyboardInterrupt):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    monkeypatch.setattr(exporting, "_publish", plain)
    assert (tmp_path / "some").exists() and hidden(tmp_path)
    done = rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    assert done.proved and done.fingerprint == ds.fingerprint and hidden(tmp_path) == []
    with pytest.raises(NameTaken):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)


def test_a_full_disk_keeps_what_is_finished(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.create("local/some", given())
    plain, left = os.pwrite, 40

    def pwrite(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NoSpace, match="The disk is full"):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    assert not (tmp_path / "some").exists()
    journal = (tmp_path / ".some.rlds-export" / "journal").read_text()
    assert journal.count("\n") > 2
    monkeypatch.setattr(os, "pwrite", plain)
    assert rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1).fingerprint == ds.fingerprint


def test_too_little_space_is_seen_before_anything_is_written(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = rlds_cli.create("local/some", given())
    monkeypatch.setattr(disk, "free", lambda path: 100)
    with pytest.raises(NoSpace, match="Nothing was written"):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    assert hidden(tmp_path) == []


def test_one_export_at_a_time_writes_to_a_directory(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/some", given())
    place = tmp_path / ".some.rlds-export"
    place.mkdir()
    with FileLock(place / "lock"), pytest.raises(NameTaken, match="Another export writes"):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)


def test_files_that_hold_something_else_are_not_published(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlds_cli.archives.minari.write import Minari

    ds = rlds_cli.create("local/some", given())
    plain: Callable[..., Any] = Minari.write

    def write(self: Minari, unit: Any, directory: Path) -> Any:
        result = plain(self, unit, directory)
        with h5py.File(self.file(directory), "a") as f:
            f["episode_3/actions"][2] += 1
        return result

    monkeypatch.setattr(Minari, "write", write)
    with pytest.raises(ExportError, match="These differ: action"):
        rlds_cli.export(ds, "minari", tmp_path / "some", jobs=1)
    assert not (tmp_path / "some").exists() and hidden(tmp_path) == []


def test_a_damaged_dataset_is_not_exported_as_if_it_were_whole(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/some", given())
    file = ds.path / "action" / "c" / "0"
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(b"\x07")
    with pytest.raises(ExportError, match="rlds verify local/some"):
        rlds_cli.export("local/some", "minari", tmp_path / "some", jobs=1)
    assert not (tmp_path / "some").exists()


def test_no_episodes_are_no_export(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/some", given())
    for to in HDF5:
        with pytest.raises(ExportError, match="no episodes"):
            rlds_cli.export(ds.select(episodes=[]), to, tmp_path / "none", lossy=True, jobs=1)


# -- other kinds of datasets


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", HDF5)
def test_a_growing_dataset_is_exported_at_one_version(home: Path, tmp_path: Path, to: str) -> None:
    with rlds_cli.writer("local/grows", keep=rlds_cli.Fifo(episodes=12)) as w:
        w.add_episodes(given(8))
        w.commit()
        w.add_episodes(given(9, first=8))  # five of the first leave
        w.commit()
    kept = rlds_cli.create("local/kept", given(12, first=5))
    ds = rlds_cli.open_dataset("local/grows")
    done = rlds_cli.export(ds, to, tmp_path / "now", lossy=True, jobs=2 if to == "minari" else 1)
    assert done.fingerprint == rlds_cli.export(kept, to, tmp_path / "kept", lossy=True, jobs=1).fingerprint
    with rlds_cli.writer("local/grows") as w:
        w.add_episodes(given(3, first=50))
    again = rlds_cli.export(ds, to, tmp_path / "again", lossy=True, jobs=1)  # still what was opened
    assert again.fingerprint == done.fingerprint and again.episodes == 12


def test_the_command_exports_a_version(home: Path, tmp_path: Path) -> None:
    with rlds_cli.writer("local/grows") as w:
        w.add_episodes(given(3))
        w.commit()
        w.add_episodes(given(2, first=3))
    at = tmp_path / "first"
    done = run_rlds("export", "local/grows#v1", at, "--to", "minari", "-j", 1)
    assert done.returncode == 0, done.stderr
    assert rlds_cli.open_dataset("local/grows").num_episodes == 5
    assert len([n for n in content(at) if n.endswith("rewards")]) == 3


def test_compressed_datasets_and_selections_of_them(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/small", given(), storage="zarr")
    assert rlds_cli.export(ds, "minari", tmp_path / "all", jobs=1).fingerprint == ds.fingerprint
    some = ds.select(episodes=[7, 3, 4])
    made = importing.import_files(tmp_path / "all", "local/again")
    done = rlds_cli.export(some, "robomimic", tmp_path / "some", jobs=1)
    chosen = [given()[k] for k in (7, 3, 4)]
    assert (
        done.fingerprint == rlds_cli.create("local/chosen", chosen).fingerprint and made.fingerprint == ds.fingerprint
    )
    assert content(tmp_path / "some")["data/demo_0/obs/x"] == chosen[0]["observation"]["x"][:-1].tolist()


def test_the_command_lists_losses(home: Path, tmp_path: Path) -> None:
    odd = given(2)
    for e in odd:
        e["cost"] = np.zeros(len(e["action"]))
    ds = rlds_cli.create("local/odd", odd)
    assert [loss.kind for loss in plan_export(ds, "minari", tmp_path / "odd").losses] == ["name", "placement"]
    with pytest.raises(LossyExport):
        rlds_cli.export(ds, "minari", tmp_path / "odd", jobs=1)
    done = run_rlds("export", "local/odd", tmp_path / "odd", "--to", "minari", "--dry-run")
    assert done.returncode == 0 and b"lost: the name of cost: will be info/cost" in done.stdout
    assert not (tmp_path / "odd").exists()
