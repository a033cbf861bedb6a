"""What test_archives_child asks of another process: without NumPy, it starts in half of the time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rlds_cli.base.files import child
from rlds_cli.base.progress import Event
from rlds_cli.errors import CorruptArchive


def process() -> int:
    return os.getpid()


def knows(module: str) -> bool:
    return module in sys.modules


def open_files() -> list[str]:
    """The files that it has open, but for standard output and what has no name."""
    found = [os.path.realpath(f"/proc/self/fd/{n}") for n in range(64)]
    return [f for f in found if Path(f).is_file()]


def end_by(number: int, path: Path) -> None:
    child.note(path)
    os.kill(os.getpid(), number)


def leave() -> None:
    os._exit(3)


def take(size: int, path: Path) -> int:
    child.note(path)
    return len(bytearray(size))


def count(n: int) -> Iterator[int]:
    yield from range(n)


def damaged() -> None:
    try:
        raise ValueError("at byte 7")
    except ValueError as e:
        raise CorruptArchive("a.h5 is damaged.", hint="fetch it again") from e


def surroundings() -> tuple[str, str]:
    return os.environ["RLDS_HOME"], str(Path.cwd())


def report() -> int:
    child.tell(Event("local/x", "convert", done=1))
    return 7


def say() -> None:
    print("one\ntwo\x1b[1m", flush=True)


def say_aloud() -> None:
    child.show()
    say()


def say_and_fail(word: str) -> None:
    child.show()
    print(word, flush=True)
    damaged()


def say_and_leave() -> None:
    say()
    leave()


def wait(path: Path) -> None:
    path.write_text(str(os.getpid()))
    child.tell(Event("local/x", "convert"))
    signal.pause()


class Trojan:
    """What runs a command when it is unpickled, and what is not plain data."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


def trojan() -> Trojan:
    return Trojan()


def wait_for(path: Path, file: Path) -> None:
    """Read a file for as long as another one is not there."""
    child.note(file)
    while not path.exists():
        time.sleep(0.01)
