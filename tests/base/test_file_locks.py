"""Locks between processes, on files that others may have put there, and where the file system has no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlds_cli.base import ids
from rlds_cli.base.files.locks import LockHeld, file_lock, flock
from rlds_cli.base.progress import Event
from rlds_cli.errors import NoPermission, RldsError
from rlds_cli.homes import Home, exclusive

HOLDER = """
import sys, time
from pathlib import Path
from rlds_cli.base.files.locks import file_lock
with file_lock(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(600)
"""
COUNTER = """
import sys
from pathlib import Path
from rlds_cli.base.files.locks import file_lock
path, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(100):
    with file_lock(path):
        number = int(count.read_text())
        count.write_text(str(number + 1))
        path.unlink()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def test_one_process_at_a_time_and_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    for _ in range(2):
        with holder(path), pytest.raises(LockHeld):
            file_lock(path).acquire(timeout=0.1)
    with file_lock(path), pytest.raises(LockHeld):
        file_lock(path).acquire(timeout=0)


def test_a_lock_whose_file_the_holder_removes_is_never_held_twice(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    words = [sys.executable, "-c", COUNTER, str(tmp_path / "x.lock"), str(count)]
    processes = [subprocess.Popen(words) for _ in range(2)]
    assert [p.wait(timeout=100) for p in processes] == [0, 0]
    assert count.read_text() == "200"


def test_whoever_may_write_there_may_lock_and_nothing_is_written(tmp_path: Path) -> None:
    for mode, of_lock in ((0o777, 0o666), (0o775, 0o664)):  # a lock is as open as its directory
        path = tmp_path / oct(mode) / "x.lock"
        path.parent.mkdir()
        path.parent.chmod(mode)
        with file_lock(path):
            assert stat.S_IMODE(path.stat().st_mode) == of_lock
    path.chmod(0o644)
    path.write_text("of somebody")
    with file_lock(path):
        pass
    assert path.read_text() == "of somebody"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_lock_that_may_not_be_written_is_refused(home: Path) -> None:
    path = Home(home).lock(ids.parse("local/x"))
    path.parent.mkdir(parents=True)
    path.touch(0o400)
    with pytest.raises(NoPermission, match="may not be written"), exclusive(Home(home), ids.parse("local/x"), print):
        pass


def test_links_and_fifos_are_no_locks(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "victim").chmod(0o600)
    (tmp_path / "a.lock").symlink_to(tmp_path / "victim")
    (tmp_path / "b.lock").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "c.lock")
    for name in "abc":
        with pytest.raises(NoPermission, match=rf"{name}\.lock is "):
            file_lock(tmp_path / f"{name}.lock")
    os.link(tmp_path / "victim", tmp_path / "d.lock")
    with file_lock(tmp_path / "d.lock"):
        pass  # only locked
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert stat.S_IMODE((tmp_path / "victim").stat().st_mode) == 0o600
    assert not (tmp_path / "new").exists()


def refusing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A file system whose ``flock`` fails."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_one_at_a_time_where_the_system_has_no_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, errno.ENOSYS)
    path = tmp_path / "x.lock"
    for _ in range(2):
        with file_lock(path), pytest.raises(LockHeld):
            file_lock(path).acquire(timeout=0)
    assert not path.exists()
    with subprocess.Popen(["true"]) as gone:
        pass
    with file_lock(path):
        text = path.read_text()
    path.write_text(text.replace(str(os.getpid()), str(gone.pid), 1))
    with file_lock(path).acquire(timeout=60):  # its holder was killed
        pass
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        file_lock(path, soft=False).acquire(timeout=0)


def test_work_on_a_dataset_waits_with_a_message(home: Path) -> None:
    place, id, events = Home(home), ids.parse("local/x"), list[Event]()
    path = place.lock(id)
    path.parent.mkdir(parents=True)
    with holder(path) as other:

        def kill(event: Event) -> None:
            events.append(event)
            other.kill()

        with exclusive(place, id, kill), pytest.raises(LockHeld):
            file_lock(path).acquire(timeout=0)
    assert [e.note for e in events] == [f"locked by another process: waiting for {path}"]


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EROFS, NoPermission, "is read-only"),
        (errno.EIO, RldsError, "fails: Input/output error"),
        (errno.ENOLCK, RldsError, "fails: No locks available"),
    ],
)
def test_what_the_file_system_refuses_is_an_error_of_rlds(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[RldsError], text: str
) -> None:
    refusing(monkeypatch, number)
    with pytest.raises(kind, match=text), exclusive(Home(home), ids.parse("local/x"), lambda event: None):
        pass


def test_a_wait_says_what_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rlds_cli.base.files.locks._PATIENCE", 0.05)
    path = tmp_path / "commit"
    descriptors = [os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2)]
    flock(descriptors[0], path)
    assert not caplog.messages
    threading.Timer(0.5, os.close, [descriptors[0]]).start()
    flock(descriptors[1], path)
    os.close(descriptors[1])
    assert [str(path) in m for m in caplog.messages] == [True]


@pytest.mark.thorough
def test_a_push_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import rlds_cli

    monkeypatch.setattr("rlds_cli.base.files.locks._PATIENCE", 0.05)
    rlds_cli.create("local/x", [{"observation": [[0.0], [1.0]], "action": [[0.0]]}])
    rlds_cli.push("local/x", tmp_path / "store")
    lock, caplog_before = tmp_path / "store/.rlds.lock", len(caplog.messages)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    flock(descriptor, lock)
    threading.Timer(1.0, os.close, [descriptor]).start()
    rlds_cli.open_dataset("local/x").label(good=True)
    rlds_cli.push("local/x", tmp_path / "store")
    assert any(str(lock) in m for m in caplog.messages[caplog_before:])
