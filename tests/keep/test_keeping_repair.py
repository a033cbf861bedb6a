"""What is bad is made good again, and nothing else is touched or fetched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import write_d4rl
from image_archives import ReplayLog
from server import Page, Server

import rlds_cli
from rlds_cli import preprocess, registry
from rlds_cli.base import ids
from rlds_cli.errors import DownloadFailed, WrongFingerprint, WrongHash
from rlds_cli.homes import Home
from rlds_cli.keep.repair import repair, repair_all
from rlds_cli.keep.verification import verify
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup

REF = next(e.id for e in lookup.entries("d4rl") if not e.sha256 and e.status == "open" and len(e.files) == 1)
NAME = registry.get(REF).files[0].path


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def page(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A dataset whose source is the loopback server, downloaded."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HTTP_PROXY", "HF_ENDPOINT"):  # the servers of the registry: 404
        monkeypatch.setenv(name, server.url)
    write_d4rl(tmp_path / "a.hdf5", [30, 12, 400])
    found = server.add(f"/{NAME}", (tmp_path / "a.hdf5").read_bytes())
    rlds_cli.download(REF, source=server.url, storage="zarr")
    return found


def spoil(file: Path, at: int = 200) -> None:
    """One byte is another one, and the time of the file is as before."""
    status = file.stat()
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def archive_of(home: Path) -> Path:
    return Home(home).archive(ids.parse(REF)) / NAME


def array_of(home: Path) -> Path:
    arrays = Home(home).dataset(ids.parse(REF)) / "observation" / "c"
    return next(p for p in sorted(arrays.rglob("*")) if p.is_file())


def stamps(directory: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}


@pytest.mark.thorough
def test_nothing_is_done_where_nothing_is_bad(page: Page, home: Path) -> None:
    before, asked = stamps(home), len(page.requests)
    done = repair(REF)
    assert done.found is done.now and done.now.ok
    assert (done.fetched, done.converted, len(page.requests)) == ((), False, asked)
    assert stamps(home) == before


def test_an_archive_is_fetched_again_and_the_dataset_left_alone(page: Page, home: Path) -> None:
    good, asked = archive_of(home).read_bytes(), len(page.requests)
    before = stamps(Home(home).dataset(ids.parse(REF)))
    spoil(archive_of(home))
    done = repair(REF)
    assert "archive" in str(done.found.problems[0]) and done.now.ok
    assert (done.fetched, done.converted) == ((NAME,), False)
    assert archive_of(home).read_bytes() == good
    assert len(page.requests) == asked + 1
    assert stamps(Home(home).dataset(ids.parse(REF))) == before


@pytest.mark.thorough
def test_arrays_are_converted_again_without_the_network(page: Page, home: Path) -> None:
    fingerprint, asked = rlds_cli.open_dataset(REF).fingerprint, len(page.requests)
    spoil(array_of(home))
    assert not verify(REF).ok
    done = repair(REF)
    assert done.now.ok and done.now.fingerprint == fingerprint
    assert (done.fetched, done.converted, len(page.requests)) == ((), True, asked)
    assert rlds_cli.open_dataset(REF).manifest.encoding == "zarr"


@pytest.mark.thorough
def test_both_are_bad(page: Page, home: Path) -> None:
    asked = len(page.requests)
    spoil(array_of(home))
    spoil(archive_of(home))
    done = repair(REF)
    assert done.now.ok and (done.fetched, done.converted) == ((NAME,), True)
    assert len(page.requests) == asked + 1


@pytest.mark.thorough
def test_an_archive_that_was_not_kept_is_fetched_and_not_kept(page: Page, home: Path) -> None:
    shutil.rmtree(archive_of(home).parent)
    spoil(array_of(home))
    done = repair(REF)
    assert done.now.ok and (done.fetched, done.converted) == ((NAME,), True)
    assert not archive_of(home).exists()


@pytest.mark.thorough
def test_a_source_that_has_something_else_now_leaves_all_as_it_is(page: Page, home: Path) -> None:
    page.content = page.content[:-1] + b"?"
    for file in (array_of(home), archive_of(home)):
        spoil(file)
    before = stamps(Home(home).dataset(ids.parse(REF)))
    with pytest.raises(WrongHash, match=NAME):
        repair(REF)
    page.statuses = [(404, {})] * 9
    with pytest.raises(DownloadFailed):
        repair(REF)
    assert stamps(Home(home).dataset(ids.parse(REF))) == before


def test_a_manifest_that_cannot_be_read(page: Page, home: Path) -> None:
    fingerprint = rlds_cli.open_dataset(REF).fingerprint
    manifest = Home(home).dataset(ids.parse(REF)) / "zarr.json"
    manifest.chmod(0o644)
    manifest.write_text("{}")
    done = repair(REF)
    assert done.converted and done.now.ok and done.now.fingerprint == fingerprint


def test_a_sample_comes_from_the_package(home: Path) -> None:
    ref = "sample/pendulum-d4rl"
    rlds_cli.download(ref, frames="encoded")
    archive = Home(home).archive(ids.parse(ref)) / "pendulum-d4rl.hdf5"
    content = archive.read_bytes()
    archive.unlink()
    archive.write_bytes(content[:-1])
    (done,) = repair_all([ref])
    assert done.now.ok and done.fetched == ("pendulum-d4rl.hdf5",) and archive.read_bytes() == content


def test_what_cannot_be_made_again(home: Path, tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [5, 6])
    imported = import_files(tmp_path / "a.hdf5", "local/a")
    spoil(imported.path / "next" / "reward" / "c" / "0", 1)
    done = repair("local/a")
    assert done.now.ok and done.converted
    assert rlds_cli.open_dataset("local/a").manifest.options == imported.manifest.options
    spoil(imported.path / "next" / "reward" / "c" / "0", 1)
    spoil(tmp_path / "a.hdf5")
    done = repair("local/a")
    assert not done.now.ok and "has changed: rlds import" in done.why
    source = rlds_cli.create("local/y", [{"observation": np.arange(4.0), "action": np.arange(3)}])
    made = preprocess.run(source, "cast", "v", args={"fields": "observation", "dtype": "float32"}, jobs=0)
    spoil(made.path / "observation" / "c" / "0", 1)
    assert "made of local/y" in repair("local/y@v").why
    rlds_cli.create("local/z", [{"observation": np.arange(4.0), "action": np.arange(3)}], home=tmp_path / "other")
    spoil(tmp_path / "other/datasets/local/z/action/c/0", 1)
    assert "not in your own home" in repair(tmp_path / "other/datasets/local/z").why


def test_what_would_be_another_does_not_take_its_place(page: Page, home: Path) -> None:
    document = Home(home).dataset(ids.parse(REF)) / "zarr.json"
    values = json.loads(document.read_text())
    values["attributes"]["rlds"]["fingerprint"] = "rlds1:" + "0" * 64
    document.chmod(0o644)
    document.write_text(json.dumps(values))
    with pytest.raises(WrongFingerprint, match="would have the fingerprint rlds1:") as caught:
        repair(REF)
    assert caught.value.hint.startswith(f"rlds download {REF} --force")
    assert json.loads(document.read_text()) == values


def test_one_that_fails_does_not_keep_the_others(page: Page, home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl")
    arrays = [Home(home).dataset(ids.parse(r)) / "zarr.json" for r in (REF, "sample/pendulum-d4rl")]
    for array in arrays:
        array.chmod(0o644)
        array.write_text("{}")
    shutil.rmtree(Home(home).archive(ids.parse(REF)))
    page.statuses = [(404, {})] * 100
    first, second = repair_all(all_=True)
    assert not first.now.ok and "404" in first.why
    assert second.now.ok and second.converted


def test_a_closed_source_needs_not_be_asked(home: Path, tmp_path: Path) -> None:
    closed = "atari_dqn/Breakout/1"
    ReplayLog(tmp_path / "Breakout/1/replay_logs", 20).episodes([15, 8, 12, 30])
    ds = rlds_cli.download(closed, source=str(tmp_path))
    spoil(ds.path / "action/c/0", 1)
    assert verify(closed).hint == f"rlds verify {closed} --fix"
    assert repair(closed).now.fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_a_part_is_made_again(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl", episodes="0:2")
    spoil(ds.path / "action/c/0/0", 1)
    assert verify(ds.id).hint == f"rlds verify {ds.id} --fix"
    assert repair(ds.id).now.fingerprint == ds.fingerprint
