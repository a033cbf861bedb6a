"""What others have put where rlds writes: links, second names, FIFOs, files of another user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import NoPermission

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
STRANGER = 54321  # a user that nobody is


def append(path: Path) -> None:
    os.close(safe_files.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))


def write(path: Path) -> None:
    safe_files.write_bytes(path, b"new")


def update(path: Path) -> None:
    safe_files.updating(path).close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_bytes(b"precious")
    file.chmod(0o600)
    return file


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody may reach and write to; those above ``tmp_path`` are closed."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@contextmanager
def stranger() -> Iterator[None]:
    """Act as another user."""
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("change", [append, write, update])
@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (lambda victim, path: path.symlink_to(victim), "is a symbolic link"),
        (lambda victim, path: path.symlink_to(victim.with_name("nowhere")), "is a symbolic link"),
        (lambda victim, path: os.link(victim, path), "is a file with 2 names"),
        (lambda victim, path: os.mkfifo(path), "is not a regular file"),
        (lambda victim, path: path.mkdir(), "is not a regular file"),
    ],
)
def test_only_files_with_one_name_are_written(
    tmp_path: Path, victim: Path, plant: Callable[[Path, Path], object], why: str, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.part"
    plant(victim, path)
    with pytest.raises(NoPermission, match=rf"x\.part {why}.* left as it is"):
        change(path)
    assert (victim.read_bytes(), mode_of(victim)) == (b"precious", 0o600)
    assert not victim.with_name("nowhere").exists()


@ROOT
@pytest.mark.parametrize("change", [append, write, update])
def test_files_of_other_users_are_not_written(public: Path, change: Callable[[Path], None]) -> None:
    path = public / "x.part"
    path.write_bytes(b"theirs")
    for mode, error in ((0o644, PermissionError), (0o666, NoPermission)):
        path.chmod(mode)
        with stranger(), pytest.raises(error):
            change(path)
    assert path.read_bytes() == b"theirs"


def test_a_fifo_does_not_make_a_reader_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(NoPermission, match="is not a regular file"):
        safe_files.reading(tmp_path / "x.json")


def test_what_is_written_anew_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "x.json").symlink_to(victim)
    safe_files.replace_text(tmp_path / "x.json", "new")
    assert (tmp_path / "x.json").read_text() == "new"
    assert not (tmp_path / "x.json").is_symlink()
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize(("before", "after"), [(0o600, 0o600), (0o640, 0o640), (0o400, 0o600), (0o666, 0o644)])
def test_a_new_file_gives_no_permission_that_the_old_one_did_not_give(tmp_path: Path, before: int, after: int) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")
    file.chmod(before)
    mask = os.umask(0o022)
    try:
        safe_files.replace_text(file, "new")
    finally:
        os.umask(mask)
    assert mode_of(file) == after


def test_a_file_that_was_not_finished_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(ValueError, match="stopped"), safe_files.replacing(tmp_path / "x") as file:
        file.write(b"half")
        raise ValueError("stopped")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_temporary_name_fits_where_the_name_itself_fits(tmp_path: Path) -> None:
    name = "\N{SNOWMAN}" * 85  # 255 bytes
    safe_files.replace_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_directories_below_the_root_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "elsewhere")  # the user's own choice
    assert safe_files.directory(tmp_path / "home/a/b", tmp_path / "home").is_dir()
    (tmp_path / "home/a/c").symlink_to(tmp_path)
    for path in ("home/a/c", "home/a/c/d"):
        with pytest.raises(NoPermission, match=r"a/c is a symbolic link"):
            safe_files.directory(tmp_path / path, tmp_path / "home")
        with pytest.raises(NoPermission, match=r"a/c is a symbolic link"):
            safe_files.check_directories(tmp_path / path, tmp_path / "home")
    with pytest.raises(NoPermission, match="leaves"):
        safe_files.directory(tmp_path / "home/a/../../x", tmp_path / "home")
    safe_files.check_directories(tmp_path / "home/nothing/here", tmp_path / "home")
    assert not (tmp_path / "d").exists() and not (tmp_path / "x").exists()


def test_a_work_directory_is_closed_to_others(tmp_path: Path) -> None:
    work = tmp_path / "partial/x.staging"
    assert mode_of(safe_files.work_directory(work, tmp_path)) == 0o700
    work.chmod(0o777)
    (work / "rows").write_bytes(b"rows")
    assert mode_of(safe_files.work_directory(work, tmp_path)) == 0o700
    assert (work / "rows").read_bytes() == b"rows"


def test_a_work_directory_that_is_a_link_is_not_taken_up(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o755)
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial/x.staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoPermission, match="symbolic link"):
        safe_files.work_directory(tmp_path / "partial/x.staging", tmp_path)
    assert mode_of(tmp_path / "elsewhere") == 0o755


@ROOT
def test_a_work_directory_of_another_user_is_not_taken_up(public: Path) -> None:
    (public / "partial/x.staging").mkdir(0o777, parents=True)
    with stranger(), pytest.raises(NoPermission, match=r"x\.staging belongs to another user"):
        safe_files.work_directory(public / "partial/x.staging", public)
