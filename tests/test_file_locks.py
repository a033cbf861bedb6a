"""Locks on files that others may have put there, and where the file system has no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from rlds_cli import ids
from rlds_cli.errors import NoPermission, RldsError
from rlds_cli.files.locks import FileLock, LockHeld
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive
from rlds_cli.progress import Event


@pytest.fixture(params=[None, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """What flock answers: nothing special, or an error of a file system without locks."""
    if request.param is not None:

        def refuse(*_: object) -> None:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


def test_one_at_a_time(tmp_path: Path, kind: int | None) -> None:
    first, second = (FileLock(tmp_path / "x.lock") for _ in range(2))
    with first, pytest.raises(LockHeld):
        second.acquire(timeout=0)
    with second, pytest.raises(LockHeld):
        first.acquire(timeout=0.1)
    with first:
        assert first.mark.exists() == (kind is not None)
    assert not first.mark.exists()


def test_a_lock_that_its_holder_removes_is_not_held_twice(tmp_path: Path, kind: int | None) -> None:
    first, second, third = (FileLock(tmp_path / "x.lock") for _ in range(3))
    first.acquire()
    (tmp_path / "x.lock").unlink()
    first.release()
    with second, pytest.raises(LockHeld):
        third.acquire(timeout=0)


def test_whoever_may_write_there_may_lock_and_nothing_is_written(tmp_path: Path) -> None:
    with FileLock(tmp_path / "x.lock"):
        assert stat.S_IMODE((tmp_path / "x.lock").stat().st_mode) == 0o666
    (tmp_path / "x.lock").chmod(0o644)
    (tmp_path / "x.lock").write_text("of somebody")
    if os.geteuid() == 0:
        os.chown(tmp_path / "x.lock", 54321, 54321)
    with FileLock(tmp_path / "x.lock"):
        pass
    assert (tmp_path / "x.lock").read_text() == "of somebody"
    assert stat.S_IMODE((tmp_path / "x.lock").stat().st_mode) == 0o644


def test_links_and_fifos_are_no_locks(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "victim").chmod(0o600)
    (tmp_path / "a.lock").symlink_to(tmp_path / "victim")
    (tmp_path / "b.lock").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "c.lock")
    for name in "abc":
        with pytest.raises(NoPermission, match=rf"{name}\.lock is "):
            FileLock(tmp_path / f"{name}.lock").acquire(timeout=0)
    os.link(tmp_path / "victim", tmp_path / "d.lock")
    with FileLock(tmp_path / "d.lock"):
        pass  # only locked
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert stat.S_IMODE((tmp_path / "victim").stat().st_mode) == 0o600
    assert not (tmp_path / "new").exists()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as child:
        pass
    return child.pid


def test_the_mark_of_a_process_that_is_gone_counts_no_more(tmp_path: Path, no_locks: None) -> None:
    lock = FileLock(tmp_path / "x.lock")
    lock.mark.write_text(f"{socket.gethostname()} {gone()}\n")
    with lock.acquire(timeout=60):
        assert lock.mark.read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.lock"]


@pytest.mark.parametrize("said", ["elsewhere.example 1\n", "", "x", "\0" * 400, f"{socket.gethostname()} {10**30}"])
def test_a_mark_that_cannot_be_judged_counts(tmp_path: Path, no_locks: None, said: str) -> None:
    lock = FileLock(tmp_path / "x.lock")
    lock.mark.write_text(said)
    with pytest.raises(LockHeld):
        lock.acquire(timeout=0)
    assert lock.mark.read_text() == said


def test_a_link_in_the_place_of_the_mark_is_refused(tmp_path: Path, no_locks: None) -> None:
    lock = FileLock(tmp_path / "x.lock")
    lock.mark.symlink_to(tmp_path / "victim")
    with pytest.raises(NoPermission, match="is a symbolic link"):
        lock.acquire(timeout=0)
    assert not (tmp_path / "victim").exists()


def test_without_marks_the_error_is_the_callers(tmp_path: Path, no_locks: None) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        FileLock(tmp_path / "x.lock", marks=False).acquire(timeout=0)


def test_a_dataset_is_worked_on_by_one_where_there_are_no_locks(home: Path, no_locks: None) -> None:
    place, id, said = Home(home), ids.parse("local/x"), list[Event]()
    mark = FileLock(place.lock(id)).mark
    mark.parent.mkdir(parents=True)
    mark.write_text("elsewhere.example 1\n")

    def remove(event: Event) -> None:
        said.append(event)
        mark.unlink()

    with exclusive(place, id, remove):
        assert mark.read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    assert said[0].note == f"locked by another process: waiting (if there is none, remove {mark})"


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EROFS, NoPermission, "is read-only"),
        (errno.EIO, RldsError, "fails: Input/output error"),
    ],
)
def test_what_the_file_system_refuses_is_an_error_of_rlds(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[RldsError], text: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(kind, match=text), exclusive(Home(home), ids.parse("local/x"), lambda event: None):
        pass
