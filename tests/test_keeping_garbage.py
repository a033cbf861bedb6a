from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.maintenance.gc import Collection, collect, plan
from rlds_cli.maintenance.remove import remove

SAMPLE = "sample/pendulum-d4rl"


def write(file: Path, size: int = 5000) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    return file


def removed(c: Collection) -> list[tuple[str, str]]:
    return [(g.kind, g.path.relative_to(c.home).as_posix()) for g in c.removed]


def kept(c: Collection) -> list[tuple[str, str]]:
    return [(g.path.relative_to(c.home).as_posix(), g.why) for g in c.kept]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("file", "lock"),
    [
        ("partial/local+x@v.0123456789abcdef/rows", "locks/local+x@v.lock"),
        ("packed/.abc-def.rows.1234.part", "locks/packed-abc.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "locks/d4rl+a-v0.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "locks/d4rl+a-v0@raw.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part", "archives/d4rl/a-v0/a.hdf5.part.lock"),
        ("archives/d4rl/a-v0/a.hdf5.part.4096", "archives/d4rl/a-v0/a.hdf5.part.lock"),
        ("datasets/local/.y.removed/rows", "locks/local+y.lock"),
    ],
)
def test_what_another_process_works_on_stays(home: Path, file: str, lock: str) -> None:
    write(home / file)
    write(home / lock, 0)
    free = plan()
    assert len(free.removed) == 1
    with FileLock(home / lock):
        busy = plan()
        assert busy.removed == ()
        assert [why for _, why in kept(busy)] == ["locked by another process"]
        late = collect(free)  # which came after the plan
        assert (late.removed, late.bytes) == ((), 0)
        assert [why for _, why in kept(late)] == ["locked by another process"]
        assert (home / file).exists()
    assert collect(free) == free
    assert not (home / file).exists()


def test_archives_that_are_still_needed(home: Path) -> None:
    ds = rlds_cli.download(SAMPLE)
    file = next(f for f in (home / "archives/sample/pendulum-d4rl").iterdir() if f.suffix == ".hdf5")
    name = "archives/sample/pendulum-d4rl"

    stranger = write(file.with_name("notes.txt"))
    assert kept(plan(archives=True)) == [(name, "its dataset was made of another notes.txt")]
    stranger.unlink()

    planned = plan(archives=True)
    column = ds.path / "action/c/0/0"
    column.chmod(0o644)
    with column.open("r+b") as f:
        f.write(b"\xff\xff\xff")
    done = collect(planned)
    assert done.removed == ()
    assert [g.why for g in done.kept] == ["its dataset is damaged: action: episode 0 differs"]
    column.write_bytes(b"short")
    (still,) = plan(archives=True).kept
    assert still.why.startswith("its dataset is damaged: ")
    assert file.exists()
    remove([SAMPLE])
    assert removed(collect(plan(archives=True))) == [("archive", name)]  # nobody's any more
    assert not file.exists()


def test_what_is_gone_meanwhile(home: Path) -> None:
    file = write(home / "packed/abc-def.rows")
    planned = plan()
    file.unlink()
    assert [g.why for g in collect(planned).kept] == ["already removed"]


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
