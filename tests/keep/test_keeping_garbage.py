from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.dataset import Dataset
from rlds_cli.homes import usage
from rlds_cli.keep.gc import Collection, collect, find_garbage
from rlds_cli.keep.removing import remove
from rlds_cli.loader.storage import blocks

SAMPLE = "sample/pendulum-d4rl"


def make(ref: str = "local/x") -> Dataset:
    return rlds_cli.create(ref, [{"observation": np.zeros((101, 4)), "action": np.zeros((100, 1))}])


def write(file: Path, size: int = 5000) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    return file


def on_disk(*paths: Path) -> int:
    files = [f for p in paths for f in (p, *p.rglob("*")) if f.is_file()]
    return sum({f.lstat().st_ino: f.lstat().st_blocks * 512 for f in files}.values())


def removed(c: Collection) -> list[tuple[str, str]]:
    return [(g.kind, g.path.relative_to(c.home).as_posix()) for g in c.removed]


def kept(c: Collection) -> list[tuple[str, str]]:
    return [(g.path.relative_to(c.home).as_posix(), g.why) for g in c.kept]


def test_nothing_yet(home: Path) -> None:
    assert find_garbage(archives=True) == Collection(home, (), (), 0)
    assert collect(find_garbage()).removed == ()
    assert not home.exists()


@pytest.mark.thorough
def test_packed_rows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    kinds = {"observation": np.dtype(np.float64)}
    ds = make()
    columns, place = blocks.pack(ds, kinds, 0)
    (path,) = (home / "packed").iterdir()
    size = on_disk(path)
    assert usage().packed == size
    planned = find_garbage()
    assert removed(planned) == [("packed", f"packed/{path.name}")]
    assert planned.bytes == planned.removed[0].bytes == size > 0
    assert path.exists()
    done = collect(planned)
    assert done == planned
    assert not (home / "packed").exists()
    assert usage().packed == 0
    # who has them mapped goes on
    np.testing.assert_array_equal(columns["observation"].values, ds.column("observation"))
    assert place == blocks.pack(ds, kinds, 0)[1] == f"packed rows of 32 B, {path}"


@pytest.mark.thorough
def test_work_that_was_broken_off(home: Path) -> None:
    ds = make()
    write(home / "partial/local+x@v.0123456789abcdef/rows/c/0")
    write(home / "partial/minari+a+b-v0.create-aa/rows")
    write(home / "datasets/local/.y.removed/observation/c/0")
    write(home / "datasets/local/.z.old/observation/c/0")
    write(home / "archives/minari/a+b-v0/data/main.hdf5.part")
    write(home / "archives/minari/a+b-v0/data/main.hdf5.part.json")
    write(home / "archives/minari/a+b-v0/data/main.hdf5.part.spans")
    write(home / "archives/minari/a+b-v0/data/other.hdf5")
    write(home / "archives/d4rl/.old-v0.removed/old.hdf5")
    write(home / "packed/.abc-def.rows.1234.part")
    whole = home / "archives/minari/a+b-v0/data/other.hdf5"
    before = usage()
    planned = find_garbage()
    assert sorted(removed(planned)) == [
        ("partial", "archives/d4rl/.old-v0.removed"),
        ("partial", "archives/minari/a+b-v0/data/main.hdf5.part"),
        ("partial", "archives/minari/a+b-v0/data/main.hdf5.part.spans"),
        ("partial", "datasets/local/.y.removed"),
        ("partial", "datasets/local/.z.old"),
        ("partial", "packed/.abc-def.rows.1234.part"),
        ("partial", "partial/local+x@v.0123456789abcdef"),
        ("partial", "partial/minari+a+b-v0.create-aa"),
    ]
    assert {g.path.name: g.id for g in planned.removed}["minari+a+b-v0.create-aa"] == "minari/a/b-v0"
    done = collect(planned)
    assert done.removed == planned.removed
    after = usage()
    assert (after.partial, after.packed) == (0, 0)
    assert before.total - after.total >= done.bytes == sum(g.bytes for g in done.removed)
    assert whole.exists()
    assert sorted(p.name for p in whole.parent.iterdir()) == ["other.hdf5"]
    assert ds.path.exists()
    assert rlds_cli.open_dataset("local/x").fingerprint == ds.fingerprint


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("file", "lock"),
    [
        ("partial/local+x@v.0123456789abcdef/rows", "locks/local+x@v.lock"),
        ("packed/.abc-def.rows.1234.part", "locks/packed-abc.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "locks/d4rl+a-v0.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "locks/d4rl+a-v0@raw.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "archives/d4rl/a-v0/a.hdf5.part.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part.spans", "archives/d4rl/a-v0/a.hdf5.part.lock"),
        ("datasets/local/.y.removed/rows", "locks/local+y.lock"),
    ],
)
def test_what_another_process_works_on_stays(home: Path, file: str, lock: str) -> None:
    write(home / file)
    write(home / lock, 0)
    free = find_garbage()
    assert len(free.removed) == 1
    with FileLock(home / lock):
        busy = find_garbage()
        assert busy.removed == ()
        assert [why for _, why in kept(busy)] == ["locked by another process"]
        late = collect(free)  # which came after the plan
        assert (late.removed, late.bytes) == ((), 0)
        assert [why for _, why in kept(late)] == ["locked by another process"]
        assert (home / file).exists()
    assert collect(free) == free
    assert not (home / file).exists()


def test_files_that_others_share_are_not_freed(home: Path) -> None:
    ds = make()
    column = ds.path / "observation/c/0/0"
    work = home / "partial/local+x@v.aa/observation"
    work.parent.mkdir(parents=True)
    os.link(column, work)
    own = write(work.with_name("action"))
    assert find_garbage().bytes == on_disk(own)


@pytest.mark.thorough
def test_archives_only_when_asked_for(home: Path) -> None:
    ds = rlds_cli.download(SAMPLE)
    archive = home / "archives/sample/pendulum-d4rl"
    assert find_garbage().removed == ()
    planned = find_garbage(archives=True)
    assert removed(planned) == [("archive", "archives/sample/pendulum-d4rl")]
    assert planned.removed[0].id == SAMPLE
    assert planned.bytes == sum(f.stat().st_blocks * 512 for f in archive.iterdir() if f.stat().st_nlink == 1) > 0
    assert collect(planned) == planned
    assert not archive.exists()
    assert rlds_cli.open_dataset(SAMPLE).fingerprint == ds.fingerprint
    assert rlds_cli.download(SAMPLE, force=True).fingerprint == ds.fingerprint


def test_archives_that_are_still_needed(home: Path) -> None:
    ds = rlds_cli.download(SAMPLE)
    file = next(f for f in (home / "archives/sample/pendulum-d4rl").iterdir() if f.suffix == ".hdf5")
    name = "archives/sample/pendulum-d4rl"

    stranger = write(file.with_name("notes.txt"))
    assert kept(find_garbage(archives=True)) == [(name, "its dataset was made of another notes.txt")]
    stranger.unlink()

    planned = find_garbage(archives=True)
    column = ds.path / "action/c/0/0"
    column.chmod(0o644)
    with column.open("r+b") as f:
        f.write(b"\xff\xff\xff")
    done = collect(planned)
    assert done.removed == ()
    assert [g.why for g in done.kept] == ["its dataset is damaged: action: episode 0 differs"]
    column.write_bytes(b"short")
    (still,) = find_garbage(archives=True).kept
    assert still.why.startswith("its dataset is damaged: ")
    assert file.exists()
    remove([SAMPLE])
    assert removed(collect(find_garbage(archives=True))) == [("archive", name)]  # nobody's any more
    assert not file.exists()


@pytest.mark.thorough
def test_archives_that_nobody_gives_again(home: Path) -> None:
    make("local/x")
    write(home / "archives/local/x/log.hdf5")
    assert kept(find_garbage(archives=True)) == [("archives/local/x", "it cannot be downloaded again")]


def test_an_archive_in_use_stays(home: Path) -> None:
    rlds_cli.download(SAMPLE)
    with FileLock(home / "locks/sample+pendulum-d4rl@raw.lock"):
        assert [g.why for g in find_garbage(archives=True).kept] == ["locked by another process"]


def test_what_is_gone_meanwhile(home: Path) -> None:
    file = write(home / "packed/abc-def.rows")
    planned = find_garbage()
    file.unlink()
    assert [g.why for g in collect(planned).kept] == ["already removed"]


def test_shared_homes_are_left_alone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "shared/packed/abc-def.rows")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    assert find_garbage().removed == ()
    assert len(find_garbage(home=tmp_path / "shared").removed) == 1


@pytest.mark.thorough
def test_the_commands_show_what_they_would_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rlds_cli.download(SAMPLE)
    for arguments in (["gc", "--archives"], ["rm", SAMPLE]):
        with pytest.raises(SystemExit) as ended:
            app([*arguments, "--dry-run", "--json"])
        assert ended.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        removed_ = shown["removed"] if arguments[0] == "gc" else shown
        assert removed_[0]["id"] == SAMPLE
    assert rlds_cli.open_dataset(SAMPLE).sources
    assert (home / "archives/sample/pendulum-d4rl").is_dir()
