"""Frames are decoded in processes of their own: at most two at once, and none for whom nobody waits."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_frames import encoded, film, number_of
from PIL import Image
from viewer import Viewer, viewing

import rlds_cli
from rlds_cli import Frames, Video
from rlds_cli.dataset import Dataset
from rlds_cli.errors import FrameError
from rlds_cli.view.decoding import Decoding, finished
from rlds_cli.view.decoding import ask as apart

CAMERA = "observation/cam"
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found, and limited, on Linux")


def made(camera: Any, rows: int) -> Dataset:
    episode = {"observation": {"cam": camera}, "action": np.zeros((rows - 1, 1), np.float32)}
    return rlds_cli.create("local/shown", [episode], progress=False)


def ask(viewer: Viewer, step: int) -> Any:
    return viewer.ask("media/frame", d="~0", episode=0, step=step, field=CAMERA)


def children() -> list[int]:
    """The processes that this one has started and that decode."""
    while True:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread or a process has ended: look again
            tasks = Path("/proc/self/task").iterdir()
            started = [int(child) for task in tasks for child in (task / "children").read_text().split()]
            code = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in started}
            return [child for child, said in code.items() if b"base.files.child import serve" in said]


@LINUX
def test_a_process_that_ends_is_an_error_of_one_picture(tmp_path: Path) -> None:
    with viewing(made(Video(film(tmp_path / "cam.mp4", range(20), g="5")), 20)) as viewer:
        assert not children()
        assert number_of(ask(viewer, 3).body) == 3
        assert len(children()) == 1
        for child in children():
            os.kill(child, signal.SIGSEGV)
        answer = ask(viewer, 4)
        assert answer.status == 422 and "SIGSEGV" in answer.record["error"]
        assert [number_of(ask(viewer, step).body) for step in (4, 5, 17)] == [4, 5, 17]
    assert not children()


@LINUX
@pytest.mark.slow
def test_a_picture_that_takes_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(2):
        Image.fromarray(np.zeros((6000, 6000), np.uint8)).save(tmp_path / f"{k}.png", compress_level=1)
    ds = made(Frames(tmp_path / f"{k}.png" for k in range(2)), 2)
    with viewing(ds, decode=True) as viewer:
        monkeypatch.setenv("RLDS_READ_MEMORY", "32MiB")
        answer = ask(viewer, 0)
        assert answer.status == 422 and "32.0 MiB" in answer.record["error"], answer.record
        monkeypatch.delenv("RLDS_READ_MEMORY")
        assert ask(viewer, 0).status == 200


def test_a_frame_that_does_not_decode_says_why(tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / f"{k}.jpg").write_bytes(encoded(k, "jpeg"))
    ds = made(Frames(tmp_path / f"{k}.jpg" for k in range(2)), 2)
    data = next(p for p in ds.path.rglob("*") if p.is_file() and encoded(0, "jpeg") in p.read_bytes())
    data.chmod(0o644)
    whole = data.read_bytes()
    data.write_bytes(whole.replace(encoded(0, "jpeg")[150:], bytes(len(encoded(0, "jpeg")) - 150)))
    with viewing(rlds_cli.open_dataset("local/shown"), decode=True) as viewer:
        answer = ask(viewer, 0)
        assert answer.status == 422 and CAMERA in answer.record["error"]
        assert number_of(ask(viewer, 1).body) == 1


# -- threads


async def waits() -> bool:
    return False


async def gone() -> bool:
    return True


@pytest.fixture
def decoding() -> Any:
    found = Decoding()
    yield found
    found.close()


def test_what_nobody_waits_for_is_given_up(decoding: Decoding) -> None:
    free, called = threading.Event(), list[int]()
    busy = [decoding.submit(None, free.wait) for _ in range(2)]
    waiting: Future[Any] = decoding.submit(None, lambda: called.append(1))
    assert not asyncio.run(finished(waiting, gone))
    free.set()
    assert all(asyncio.run(finished(done, waits)) and done.result() for done in busy)
    last = decoding.submit(None, lambda: called.append(2))
    assert asyncio.run(finished(last, waits)) and called == [2]


def test_two_are_decoded_at_once_and_one_video_in_turn(decoding: Decoding) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def work(key: str) -> tuple[str, str]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.005)
        with lock:
            running[0] -= 1
        return key, threading.current_thread().name

    done = [decoding.submit(key, lambda key=key: work(key)) for key in "abcd" * 5]
    found = {d.result(10) for d in done}
    assert most[0] <= 2
    assert len(found) == 4 and len({thread for _, thread in found}) == 2


def test_what_takes_too_long_is_given_up(decoding: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.base.files.child._WORD", 0.05)
    monkeypatch.setattr("rlds_cli.view.decoding._LONGEST", 0.1)
    for _ in range(2):  # the process after it is another one
        with pytest.raises(FrameError, match="given up"):
            decoding.submit("a", lambda: apart(time.sleep, 60)).result(20)


def test_what_waits_is_given_up_at_the_end(decoding: Decoding) -> None:
    free = threading.Event()
    busy = [decoding.submit(None, lambda: free.wait(0.5)) for _ in range(2)]
    waiting = decoding.submit(None, lambda: 1)
    decoding.close()
    assert waiting.cancelled() and decoding.submit(None, lambda: 1).cancelled() and all(d.done() for d in busy)
