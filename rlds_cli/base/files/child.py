"""A process that reads files of strangers, with a limit on its memory.

A file that makes a library crash, or asks for more memory than there is, ends that process and not the caller's. What
it sends back is plain data (`answers`), so that a process in which a stranger's code runs cannot make the caller run
some, too. The limit counts the memory that the process itself takes (``RLIMIT_DATA``); macOS has no such limit.

::

    with child.reading():                          # one process for all that is asked here
        plan = child.ask(planning.plan, files, names=files, types=TYPES)
        for value in child.each(planning.values, plan, names=files, types=TYPES): ...

A process that reads for another one calls the function itself.

The process is a copy of this one where that can be made, see `copies`.

Libraries print remarks about files, which help nobody: they are logged, at level DEBUG. What a reader of the user's own
prints is logged at level WARNING, which a terminal shows. Where a call fails, it is a note of the error, and so are the
last words of a process that a file has ended.
"""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import pickle
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rlds_cli import errors
from rlds_cli.base import settings, text, visible
from rlds_cli.base.files import answers, copies
from rlds_cli.base.progress import Event, Progress, silent
from rlds_cli.errors import ArchiveError, CorruptArchive, RldsError, UnsafeArchive

_HEAD = struct.Struct("<II")  # bytes of JSON, number of buffers
_SIZE = struct.Struct("<Q")
_SHOWN = 1 << 14  # bytes of what it printed that are passed on
_LONGEST = 1 << 16  # bytes of the name of a file
_PATIENCE = 2.0  # seconds for a process to end by itself
_WORD = 10.0  # seconds without an answer after which a note names the file; the next one comes after as many again
_NO_MEMORY = re.compile(
    r"(?i)memory allocation|(un|not )able to allocate|can't allocate|insufficient memory|out of memory|bad_alloc|malloc"
    r"|Error -4 while"  # of zlib
)
_log = logging.getLogger(__name__)
_server: _Server | None = None  # in a process that reads for another one
_local = threading.local()  # ``child``: the process of this thread's `reading`


# -- the side that asks


@contextmanager
def reading(*modules: str, both: Sequence[str] = (), id: str = "rlds", progress: Progress = silent) -> Iterator[None]:
    """Keep one process for all calls inside. It starts at once, and imports ``modules`` meanwhile.

    Inside another ``reading`` it is the process of that one, which ``id`` and ``progress`` are of meanwhile.

    Parameters
    ----------
    *modules : str
        Modules with the functions that are asked for.
    both : sequence of str
        Modules that both processes need: this one imports them first if it can be copied.
    id : str
    progress : Progress
        Receives a note of ``id`` while a file takes long to be read.
    """
    outer: _Child | None = getattr(_local, "child", None)
    if _server is not None:
        yield
        return
    if outer is not None and outer.is_ours:
        with outer.telling(id, progress):
            yield
        return
    _local.child = _Child(modules, id, progress, both=both)
    try:
        yield
    finally:
        _local.child.end()
        _local.child = outer


def ask(
    function: Callable[..., Any] | str,
    *arguments: Any,
    names: Sequence[Path],
    types: Sequence[type] = (),
    progress: Progress = silent,
) -> Any:
    """Return ``function(*arguments)``, which another process calls.

    Parameters
    ----------
    function : callable or str
        A function of a module, which takes picklable arguments; or its full name, so that only the other process
        imports the module.
    names : sequence of Path
        The files that are read, for messages.
    types : sequence of type
        The dataclasses that its result may consist of.
    progress : Progress
        Receives the events that `tell` is called with meanwhile.

    Raises
    ------
    CorruptArchive
        The process crashed.
    UnsafeArchive
        The process needed more memory than its limit.
    RldsError
        As ``function`` raises it.
    """
    if _server is not None:
        with _server.telling(progress):
            return _function(function)(*arguments)
    with reading(_module(function)):
        (found,) = _running(function).call(function, arguments, names, types, progress)
        return found


def each(function: Callable[..., Any] | str, *arguments: Any, names: Sequence[Path], types: Sequence[type] = ()) -> Any:
    """Yield the values of the iterator ``function(*arguments)``, as `ask` returns one."""
    if _server is not None:
        yield from _function(function)(*arguments)
        return
    with reading(_module(function)):
        yield from _running(function).call(function, arguments, names, types, silent)


def _module(function: Callable[..., Any] | str) -> str:
    return function.rpartition(".")[0] if isinstance(function, str) else function.__module__


def _function(function: Callable[..., Any] | str) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    found: Callable[..., Any] = getattr(import_module(_module(function)), function.rpartition(".")[2])
    return found


def _running(function: Callable[..., Any] | str) -> _Child:
    """Return the process of this thread, or another one if it has ended."""
    child: _Child = _local.child
    if child.has_ended:
        child = _local.child = _Child((_module(function),), child.id, child.progress)
    return child


@dataclass(frozen=True, slots=True)
class _Call:
    """What a process is asked to do; it is pickled, since the asking side is trusted."""

    function: Callable[..., Any] | str
    arguments: tuple[Any, ...]
    environment: dict[str, str]
    directory: str
    memory: int


class _Child:
    """A process, from the side that asks."""

    def __init__(self, modules: Sequence[str], id: str, progress: Progress, *, both: Sequence[str] = ()) -> None:
        import tempfile

        self.id, self.progress = id, progress

        ours, its = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (what readers and libraries print)
        self._is_shown, self._told = False, 0
        self._noted = tempfile.TemporaryFile()  # noqa: SIM115  (the file that it reads)
        with its:
            start = copies.copied if copies.is_possible(both) else copies.anew
            self._process = start(serve, its.fileno(), self._noted.fileno(), self._said.fileno(), modules)
        self._socket = ours
        self._owner = os.getpid()
        self.has_ended = False

    @contextmanager
    def telling(self, id: str, progress: Progress) -> Iterator[None]:
        """Send notes to ``progress`` meanwhile, unless it is silent."""
        before = self.id, self.progress
        if progress is not silent:
            self.id, self.progress = id, progress
        try:
            yield
        finally:
            self.id, self.progress = before

    @property
    def is_ours(self) -> bool:
        """True if this process started it, and not the one that this process is a fork of."""
        return self._owner == os.getpid()

    def call(
        self,
        function: Callable[..., Any] | str,
        arguments: tuple[Any, ...],
        names: Sequence[Path],
        types: Sequence[type],
        progress: Progress,
    ) -> Iterator[Any]:
        """Yield the values of a call, or its only one."""
        memory = settings.read_memory()
        known = {t.__name__: t for t in (*types, Event)}
        paths = {os.fspath(path): path for path in names}
        call = _Call(function, arguments, dict(os.environ), _directory(), memory)
        answered = False
        try:
            data = pickle.dumps(call, protocol=5)
            self._socket.sendall(_SIZE.pack(len(data)) + data)
            while not answered:
                self._wait(names)
                kind, value = self._receive(known, paths)
                answered = kind in ("end", "error")
                if kind == "value":
                    yield value
                elif kind == "event" and isinstance(value, Event):
                    progress(value)
                elif kind == "shown":
                    self._is_shown = True
                elif kind == "error":
                    raise self._quoted(_restored(value))
        except (EOFError, ConnectionError):
            raise self._died(self._being_read(names), memory) from None
        finally:
            if not answered:  # nobody waits for the rest
                self.kill()

    def _wait(self, names: Sequence[Path]) -> None:
        """Wait for an answer; say now and then which file is being read."""
        import select

        poll, waited, word = select.poll(), 0.0, _WORD
        poll.register(self._socket, select.POLLIN)
        while not poll.poll(1000 * word):
            waited, word = waited + word, waited + word
            self.progress(
                Event(self.id, "note", self._being_read(names), note=f"it has been read for {waited:.0f} s so far")
            )

    def _being_read(self, names: Sequence[Path]) -> str:
        more = f" and {text.plural(len(names) - 1, 'other file')}" if len(names) > 1 else ""
        return self._file() or f"{names[0] if names else 'the archive'}{more}"

    def end(self) -> None:
        """Let the process end."""
        if self.has_ended or not self.is_ours:
            return
        self.has_ended = True
        self._socket.close()
        try:
            self._process.wait(_PATIENCE)
        except TimeoutError:
            self._process.kill()
            self._process.wait()
        said = self._last_words()
        if said and self._is_shown:
            _log.warning("%s", said)
        elif said:
            _log.debug("libraries printed while files were read:\n%s", said)
        self._said.close()
        self._noted.close()

    def _file(self) -> str:
        """Return the file that the process read last, as far as is known."""
        size = _SIZE.unpack(os.pread(self._noted.fileno(), _SIZE.size, 0).ljust(_SIZE.size, b"\0"))[0]
        return os.fsdecode(os.pread(self._noted.fileno(), min(size, _LONGEST), _SIZE.size))

    def _last_words(self) -> visible.Lines:
        """Return the end of what the process printed and nobody was told of; from then on it is told."""
        size = os.fstat(self._said.fileno()).st_size
        begin, self._told = max(self._told, size - _SHOWN), size
        said = os.pread(self._said.fileno(), size - begin, begin).decode(errors="replace")
        return visible.lines(map(visible.message, said.strip().splitlines()))

    def _quoted(self, error: BaseException) -> BaseException:
        """Return an error of a call, with a note of what the process printed if that is to be shown."""
        if self._is_shown and (said := self._last_words()):
            error.add_note(said)
        return error

    def kill(self) -> None:
        """End the process in the middle of its work."""
        if self.is_ours:
            self._process.terminate()
            self.end()

    def _receive(self, types: dict[str, type], paths: dict[str, Path]) -> tuple[str, Any]:
        size, count = _HEAD.unpack(self._exactly(_HEAD.size))
        said = self._exactly(size)
        buffers = [self._exactly(_SIZE.unpack(self._exactly(_SIZE.size))[0]) for _ in range(count)]
        try:
            kind, value = answers.load(bytes(said), buffers, types, paths)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as e:
            raise CorruptArchive(
                f"{self._file() or 'The archive'}: what was read of it is not plain data ({e})."
            ) from e
        return str(kind), value

    def _exactly(self, size: int) -> bytearray:
        """Receive ``size`` bytes. Memory grows with what arrives, not with what is announced."""
        data = bytearray()
        while len(data) < size:
            some = self._socket.recv(min(size - len(data), 1 << 20), socket.MSG_WAITALL)
            if not some:
                raise EOFError
            data += some
        return data

    def _died(self, what: str, memory: int) -> ArchiveError:
        """Say what the end of the process means, which read ``what``, and what it printed last."""
        code, said, file = self._process.wait(), self._last_words(), self._file()
        if code == -signal.SIGABRT and _NO_MEMORY.search(said):
            said = visible.Lines()
            error: ArchiveError = _too_much(what, memory)
        else:
            error = _ended(what, code, memory)
        error.ended_at = file
        if said:
            error.add_note(said)
        return error


def _ended(what: str, code: int, memory: int) -> ArchiveError:
    if code == -signal.SIGKILL:
        return ArchiveError(
            f"{what}: the process that reads it was killed (signal 9; the system does this when memory runs out).",
            hint=f"RLDS_READ_MEMORY={text.size_of(memory / 2).replace(' ', '')} refuses it earlier",
        )
    if code < 0:
        return CorruptArchive(
            f"{what}: reading it ended a process by signal {-code} ({_signal(-code)}): it is damaged, or made to "
            "do this.",
            hint=f"fetch or write it again; if it is sound, {_more_memory(memory)} in case that memory ran out",
        )
    return ArchiveError(f"{what}: the process that reads it left with exit code {code}.")


def _directory() -> str:
    """Return the current directory, empty if it was removed."""
    with suppress(OSError):
        return str(Path.cwd())
    return ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _more_memory(memory: int) -> str:
    return f"RLDS_READ_MEMORY={text.size_of(2 * memory).replace(' ', '').replace('.0', '')} gives it more"


def _too_much(file: str, memory: int) -> UnsafeArchive:
    return UnsafeArchive(
        f"{file}: reading it takes more than {text.size_of(memory)} of memory, the limit for an archive.",
        hint=f"it is not read; if you trust it, {_more_memory(memory)}",
    )


def _restored(said: Any) -> BaseException:
    """Return the error that a process described."""
    kind, message, hint, causes = said
    found = getattr(errors, str(kind), None)
    if isinstance(found, type) and issubclass(found, RldsError):
        error = found(str(message), hint=hint and str(hint))
        error.led_by = tuple((str(k), str(t), str(at)) for k, t, at in causes)
        return error.recall()
    if kind == "OSError":
        return OSError(*message)
    return errors.Elsewhere(str(kind), str(message), str(hint))


# -- the side that reads


@contextmanager
def here() -> Iterator[None]:
    """Call functions in this process, for files that are known: it neither limits memory nor survives a crash."""
    global _server
    before, _server = _server, _Server()
    try:
        yield
    finally:
        _server = before


def is_apart() -> bool:
    """Return whether this process reads for another one."""
    return _server is not None and not _server.is_here


def note(path: Path) -> None:
    """Say which file is read next, for the message if reading it ends the process."""
    if _server is not None:
        _server.note(str(path))


def show() -> None:
    """Have the side that asked show what this process prints: code of the user's own runs in it."""
    if _server is not None and _server.owner == os.getpid():
        _server.send("shown", True)


def tell(event: Event) -> None:
    """Report progress to the side that asked."""
    if _server is not None:
        _server.tell(event)


class _Server:
    """The connection to the side that asks. Without a socket, that side is this process.

    ``noted`` is a file that keeps the name of the one that is read: writing it wakes nobody.
    """

    def __init__(self, connection: socket.socket | None = None, noted: int = -1) -> None:
        self._socket, self._noted = connection, noted
        self._lock = threading.Lock()
        self._progress: Progress = silent
        self.owner = os.getpid()
        self.file = "The archive"  # that was opened last

    @property
    def is_here(self) -> bool:
        """True if the side that asks is this process."""
        return self._socket is None

    def note(self, file: str) -> None:
        self.file = file
        if self._socket is not None:
            name = os.fsencode(file)
            os.pwrite(self._noted, _SIZE.pack(len(name)) + name, 0)

    def send(self, kind: str, value: object) -> None:
        if self._socket is None:
            return
        said, buffers = answers.dump((kind, value))
        with self._lock:
            self._socket.sendall(_HEAD.pack(len(said), len(buffers)) + said)
            for data in buffers:
                self._socket.sendall(_SIZE.pack(data.nbytes))
                self._socket.sendall(data)

    def tell(self, event: Event) -> None:
        if self._socket is None:
            self._progress(event)
        else:
            self.send("event", event)

    @contextmanager
    def telling(self, progress: Progress) -> Iterator[None]:
        before, self._progress = self._progress, progress
        try:
            yield
        finally:
            self._progress = before

    def next_call(self) -> _Call | None:
        assert self._socket is not None
        head = self._socket.recv(_SIZE.size, socket.MSG_WAITALL)
        if len(head) < _SIZE.size:
            return None
        size, data = _SIZE.unpack(head)[0], bytearray()
        while len(data) < size:
            some = self._socket.recv(min(size - len(data), 1 << 20), socket.MSG_WAITALL)
            if not some:
                return None
            data += some
        found: _Call = pickle.loads(data)
        return found


def serve(fd: int, noted: int, modules: Sequence[str]) -> None:
    """Do what the process at the other end of a socket asks, until it closes it."""
    global _server
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking side ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that files without a name are given back
    atexit.register(gc.freeze)  # else Python looks for cycles in all that it throws away
    connection = socket.socket(fileno=fd)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    _server = _Server(connection, noted)
    for name in modules:
        import_module(name)
    while (call := _server.next_call()) is not None:
        os.environ.clear()
        os.environ.update({**call.environment, **copies.ONE_THREAD})
        with suppress(OSError):
            os.chdir(call.directory)
        _limit(call.memory)
        _answer(_server, call)


def _answer(server: _Server, call: _Call) -> None:
    try:
        found = _function(call.function)(*call.arguments)
        if isinstance(found, Iterator):
            for value in found:
                server.send("value", value)
        else:
            server.send("value", found)
        del found
        server.send("end", None)
    except BrokenPipeError:
        raise
    except Exception as e:
        server.send("error", _described(e, server.file, call.memory))


def _described(e: Exception, file: str, memory: int) -> tuple[Any, ...]:
    """Return an error as plain data; one that lacks memory names the limit."""
    chain = [e, *errors.causes(e)]
    if any(map(_lacks_memory, chain)):
        limited = _too_much(file, memory)
        return "UnsafeArchive", limited.message, limited.hint, list(map(errors.described, chain))
    if isinstance(e, RldsError):
        return type(e).__name__, e.message, e.hint, [*e.led_by] or list(map(errors.described, chain[1:]))
    if isinstance(e, OSError):
        return "OSError", [e.errno, e.strerror, e.filename], None, []
    kind, said, at = errors.described(e)
    return kind, said, at, []


def _lacks_memory(e: BaseException) -> bool:
    if isinstance(e, errors.Elsewhere):
        return e.kind.endswith("MemoryError")
    if isinstance(e, MemoryError) or (isinstance(e, OSError) and e.errno == errno.ENOMEM):
        return True
    return not isinstance(e, RldsError) and _NO_MEMORY.search(str(e)) is not None


def _limit(memory: int) -> None:
    """Bound the memory of this process, and let the system end it before others when memory runs out."""
    if not memory or not sys.platform.startswith("linux"):
        return
    import resource

    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = (int(line.split()[1]) << 10) + memory
            resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with(connection: socket.socket) -> None:
    """Exit when the asking side is gone, whatever this side does."""
    import select

    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", 0))  # and POLLHUP, which is always reported
    poll.poll()
    with suppress(Exception):
        os._exit(1)
