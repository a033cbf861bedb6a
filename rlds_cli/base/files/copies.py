"""How a process starts that serves this one: as a copy of it where Linux can make one, or as a new Python.

A copy has already imported what both need, and no file or lock of this process. A process with threads cannot be
copied, since their locks would stay as they are.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.context import ForkProcess

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # for algebra, which no reader does: the others' memory would count
Serve = Callable[[int, int, Sequence[str]], None]  # of the file numbers of a socket and a file, and of modules
_CODE = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}({fd}, {noted}, {modules!r})"


class Process(Protocol):
    """A process that was started."""

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end, and return its exit code, or minus the signal that ended it.

        Raises
        ------
        TimeoutError
        """

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


class _NewPython:
    """A process in which Python starts anew."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.terminate, self.kill = process.terminate, process.kill

    def wait(self, seconds: float | None = None) -> int:
        import subprocess

        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None


class _Copy:
    """A copy of this process."""

    def __init__(self, process: ForkProcess) -> None:
        self._process = process
        self.terminate, self.kill = process.terminate, process.kill

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutError
        return self._process.exitcode


def anew(serve: Serve, connection: int, noted: int, said: int, modules: Sequence[str]) -> Process:
    """Start Python anew, which serves."""
    import subprocess

    named = {"path": sys.path, "module": serve.__module__, "name": serve.__name__}
    code = _CODE.format(**named, fd=connection, noted=noted, modules=modules)
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
    how["env"] = {**os.environ, **ONE_THREAD}
    return _NewPython(subprocess.Popen([sys.executable, "-c", code], pass_fds=(connection, noted), **how))


def is_possible(both: Sequence[str]) -> bool:
    """Return whether this process has no thread but this one, after it has imported ``both``."""
    if not sys.platform.startswith("linux") or not _is_alone():
        return False
    for name in both:
        import_module(name)
    return _is_alone()  # libraries have threads of their own


def _is_alone() -> bool:
    try:
        return len([*Path("/proc/self/task").iterdir()]) == 1
    except OSError:
        return False


def copied(serve: Serve, connection: int, noted: int, said: int, modules: Sequence[str]) -> Process:
    """Copy this process; the copy serves, and never returns."""
    from multiprocessing import get_context

    process = get_context("fork").Process(
        target=_serve_as_copy, args=(serve, connection, noted, said, modules), name="rlds-reader", daemon=True
    )
    process.start()
    return _Copy(process)


def _serve_as_copy(serve: Serve, fd: int, noted: int, said: int, modules: Sequence[str]) -> None:
    """Serve with no other files open than the given ones: locks and sockets of the other process are its own."""
    from multiprocessing import current_process

    current_process().daemon = False  # it may start workers,
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType(program.__name__)  # which do not run the program again
    gc.freeze()  # nothing that it has left is closed here, under a number that means another file
    os.dup2(said, 1)
    os.dup2(said, 2)
    opened = {int(file.name) for file in Path("/proc/self/fd").iterdir()}
    for number in opened - {0, 1, 2, fd, noted}:
        with suppress(OSError):  # the directory itself was among them
            os.close(number)
    os.environ.update(ONE_THREAD)
    serve(fd, noted, modules)
