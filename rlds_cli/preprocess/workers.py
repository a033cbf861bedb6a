"""Choose the workers of a task: this process, several processes of this machine, or the nodes of a Ray cluster.

A cluster runs the chunks of a task as Ray tasks::

    this process  ── chunk 17 of the job ──►  a node reads the source, writes <work>/segments/17.9f3c51ab/
                  ◄── its hashes, lengths ──                                     (both on shared storage)

Rows do not travel through Ray. This process keeps the journal, joins the segments and publishes, so an interrupted job
can continue here or on a cluster. A node checks that it sees the same files before it works.
https://docs.ray.io/en/latest/ray-core/tasks.html
"""

from __future__ import annotations

import ast
import hashlib
import math
import os
import pickle
import secrets
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlds_cli import __version__
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.settings import cores
from rlds_cli.base.workers import Executor, Lost, Processes, Workers
from rlds_cli.errors import MissingPackage, PreprocessError, RldsError
from rlds_cli.homes import Home
from rlds_cli.preprocess import functions
from rlds_cli.preprocess.functions import Function
from rlds_cli.preprocess.task import Task

_WORTH_A_WORKER = 2.0  # seconds of work that pay for starting a process
PATIENCE = 30.0  # seconds to wait for the cluster's first answer
_REACH = 5.0  # seconds to wait for a connection to its address
_LOSSES = 10  # attempts at a chunk if its node is lost
_AHEAD = 2  # tasks submitted per processor, so that none idles
_START_ONE = "ray start --head starts a cluster on this machine; --address HOST:PORT or RAY_ADDRESS names another"
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
_SHARED = "the home, the sources and the function's files must be on storage that all nodes see, under the same paths"
_TRY = f"import sys, ray; ray.init(address=sys.argv[1], **{_QUIET}); ray.shutdown()"


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """The workers of a task: a ``cluster``, or else ``jobs`` processes of this machine; None for as many as pay off.

    ``in_place`` allows several processes to write to one file.
    """

    task: Task
    jobs: int | None
    progress: Progress
    cluster: Executor | None = None
    in_place: bool = True

    def executor(self, seconds: float, chunks: int) -> Executor | None:
        """Return an executor for the chunks, which take ``seconds`` in one process; None to work in this process."""
        if self.cluster is not None:
            return self.cluster
        count = min(process_count(self.jobs, seconds), chunks)
        if count < 2:
            return None
        why = why_not_portable(self.task)
        if why:
            self.progress(Event(str(self.task.id), "note", note=f"working in this process: {why}"))
            return None
        return Processes(count, self.in_place)

    @property
    def threads(self) -> int:
        """Number of threads that hash in this process."""
        return max(2, self.jobs if self.jobs is not None and self.cluster is None else cores())


def why_not_portable(t: Task) -> str:
    """Say why no other process can run the function; empty if one can."""
    if not t.function.portable:
        return f"{t.function.name} is in no module and cannot be pickled (pip install cloudpickle)"
    script = functions.script()
    if script is None and hasattr(sys.modules.get("__main__"), "__file__"):
        return "a program from standard input cannot be run again by workers"
    if script and not _has_guard(script):
        return f'workers would run {script.name} again: put its main part under `if __name__ == "__main__":`'
    return ""


def _has_guard(script: Path) -> bool:
    """Return whether a script asks for its name at the top, as a guard does; True for what is not a Python text."""
    try:
        tests = [node.test for node in ast.parse(script.read_bytes()).body if isinstance(node, ast.If)]
    except (SyntaxError, ValueError, RecursionError):
        return True
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test))


def process_count(jobs: int | None, seconds: float) -> int:
    """Return the number of processes: ``jobs``, or else as many as pay off for work of ``seconds``."""
    if jobs is not None:
        return jobs
    return min(cores(), math.floor(seconds / _WORTH_A_WORKER))


# -- the nodes of a Ray cluster


@contextmanager
def connect(
    home: Home, mark: Path, address: str | None, *, jobs: int | None, tell: Callable[[str], None]
) -> Iterator[RayCluster]:
    """Connect to a cluster, and disconnect afterwards; an existing connection of this process is used and kept.

    Parameters
    ----------
    home : Home
        The home of the result, which all nodes must see.
    mark : Path
        A file of this job in the home, by which nodes recognise it.
    address : str, optional
        ``HOST:PORT`` of the head; by default RAY_ADDRESS, or else a cluster that runs on this machine.
    jobs : int, optional
        Chunks at a time; by default the number of processors of the cluster.

    Raises
    ------
    MissingPackage
        Ray is not installed.
    PreprocessError
        There is no cluster at the address, or it does not answer.
    """
    if find_spec("ray") is None:
        raise MissingPackage("ray is not installed.", hint="pip install 'rlds-cli[ray]', here and on every node")
    if jobs == 0:
        raise PreprocessError("jobs=0 works in this process, but executor=ray on a cluster.", hint="omit one of them")
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield RayCluster(ray, home, mark, jobs, tell)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _reach(address)
    # Ray tries for two minutes and then exits its process, so the first attempt runs in another process.
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _TRY, address], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise _unreachable(address, f"it did not answer like one for {PATIENCE:.0f} s") from e
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        raise _unreachable(address, last.partition(". ")[0].rstrip("."))
    try:
        ray.init(address=address, **_QUIET)
    except (Exception, SystemExit) as e:
        raise _unreachable(address, f"{type(e).__name__}: {e}".rstrip(".")) from e


def _reach(address: str) -> None:
    """Raise PreprocessError if nothing listens at the address."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        if address == "auto":
            return
        raise PreprocessError(f'"{address}" is not the address of a Ray cluster.', hint=_START_ONE)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH).close()
    except (OSError, OverflowError) as e:
        raise _unreachable(address, f"nothing answers there ({e})") from e


def _unreachable(address: str, why: str) -> PreprocessError:
    of = " (RAY_ADDRESS)" if address == os.environ.get("RAY_ADDRESS") else ""
    which = "No Ray cluster was found" if address == "auto" else f"The Ray cluster at {address}{of} cannot be reached"
    return PreprocessError(f"{which}: {why}. Nothing was done.", hint=_START_ONE)


def portable(function: Function) -> Function:
    """Make a function loadable on another machine: pickled by value unless it is in a module or a file.

    Raises
    ------
    PreprocessError
        It cannot be pickled.
    """
    if function.call is None or (function.module not in (None, "__main__") and function.pickled is None):
        return function
    if function.file is not None:
        return function
    from ray import cloudpickle  # part of Ray, so every node has it

    try:
        return replace(function, module=None, pickled=cloudpickle.dumps(function.call))
    except Exception as e:  # whatever an object's own __reduce__ raises
        raise PreprocessError(
            f"{function.name} cannot be sent to a node: {type(e).__name__}: {e}.",
            hint="put it in a module: --fn my_prep.py:function",
        ) from e


@dataclass(slots=True)
class RayCluster:
    """The nodes of a cluster, as an `Executor`; the shared argument is a `Task`, or a job with one."""

    ray: Any
    home: Home
    mark: Path
    jobs: int | None
    tell: Callable[[str], None]
    in_place: bool = field(default=False, init=False)

    @contextmanager
    def start(self, call: Callable[..., Any], shared: Any) -> Iterator[Workers]:
        """See `Executor`."""
        if self.ray.cluster_resources().get("CPU", 0) < 1:
            self.tell("the cluster has no free processors: waiting")
        with self._environment() as environment:
            tasks = _RayTasks(self.ray, self.jobs, call, shared, environment)
            try:
                yield tasks
            finally:
                tasks.cancel()

    @contextmanager
    def _environment(self) -> Iterator[JobEnvironment]:
        """Write the mark, and yield the environment that nodes compare with their own."""
        word, search = secrets.token_hex(8), tuple(str(Path(p).absolute()) for p in sys.path)
        safe_files.directory(self.mark.parent, self.home.root)
        safe_files.replace_text(self.mark, word)
        try:
            yield JobEnvironment(self.home.root, self.mark, word, str(Path.cwd()), search)
        finally:
            self.mark.unlink(missing_ok=True)


class _RayTasks:
    """Items as Ray tasks, ``jobs`` at a time, as `Workers`."""

    def __init__(
        self, ray: Any, jobs: int | None, call: Callable[..., Any], shared: Any, environment: JobEnvironment
    ) -> None:
        self._ray, self._jobs, self._environment = ray, jobs, environment
        self._call, self._shared = pickle.dumps(call), ray.put(pickle.dumps(shared))
        # Ray does not report its own retries.
        options = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self._task = ray.remote(**options)(run_item)
        self._running: set[Any] = set()

    def capacity(self) -> int:
        """Return the number of items to submit at a time; the cluster may grow meanwhile."""
        if self._jobs is not None:
            return max(1, self._jobs)
        return max(_AHEAD, _AHEAD * int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, arguments: tuple[Any, ...]) -> Any:
        ref = self._task.remote(self._call, self._shared, pickle.dumps(arguments), self._environment)
        self._running.add(ref)
        return ref

    def wait(self, handles: Collection[Any]) -> Any:
        return self._ray.wait(list(handles), num_returns=1)[0][0]

    def result(self, handle: Any) -> Any:
        self._running.discard(handle)
        errors = self._ray.exceptions
        try:
            answer: RayResult = self._ray.get(handle)
        except errors.OutOfMemoryError as e:
            raise Lost("was killed: its node ran out of memory") from e
        except errors.WorkerCrashedError as e:
            raise Lost("died") from e
        except (errors.NodeDiedError, errors.ObjectLostError) as e:
            raise Lost("was lost with its node", _LOSSES) from e
        except errors.RayError as e:
            raise _refused(e) from e
        if answer.failure is None:
            return answer.value
        raise pickle.loads(answer.failure) from RemoteTraceback(f"\n{answer.trace}")

    def cancel(self) -> None:
        for ref in self._running:
            with suppress(Exception):
                self._ray.cancel(ref, force=True)


def _refused(e: Exception) -> RldsError:
    text = str(e).strip()
    if "No module named 'rlds_cli'" in text:
        return PreprocessError(
            "rlds-cli is not installed on a node of the cluster.", hint="pip install rlds-cli on every node"
        )
    return PreprocessError(f"Ray could not run the job: {type(e).__name__}: {text.splitlines()[-1] if text else ''}")


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The environment of the process that started the job; a node must find the same.

    Parameters
    ----------
    home : Path
    mark : Path
        A file in the home that holds ``word``.
    directory : str
        The working directory, for relative paths in functions.
    search : tuple of str
        Directories to search for modules.
    """

    home: Path
    mark: Path
    word: str
    directory: str
    search: tuple[str, ...]
    version: str = __version__


@dataclass(frozen=True, slots=True)
class RayResult:
    """The value of an item, or its pickled exception and the traceback as text."""

    value: Any = None
    failure: bytes | None = None
    trace: str = ""


class RemoteTraceback(Exception):
    """The traceback of a failure on a node as text, set as the cause of the exception."""


def node_name() -> str:
    """Return the name of this machine in messages."""
    return f"node {socket.gethostname()}"


def run_item(call: bytes, shared: bytes, arguments: bytes, environment: JobEnvironment) -> RayResult:
    """Run one item, ``call(shared, *arguments)``; all are pickled, since unpickling needs the files."""
    try:
        check(environment)
        with working_as(environment):
            job = _open(shared)
            check_function(getattr(job, "task", job).function)
            return RayResult(pickle.loads(call)(job, *pickle.loads(arguments)))
    except Exception as e:
        return RayResult(failure=_pickled(e), trace=traceback.format_exc())


@lru_cache(maxsize=1)
def _open(shared: bytes) -> Any:
    """Unpickle the task or job, which opens the source; a process does so once."""
    try:
        return pickle.loads(shared)
    except (RldsError, OSError) as e:
        message = e.message if isinstance(e, RldsError) else str(e)
        raise PreprocessError(f"{node_name()} cannot open the source: {message}", hint=_SHARED) from e


def _pickled(e: Exception) -> bytes:
    try:
        pickled = pickle.dumps(e)
        pickle.loads(pickled)
    except Exception:  # whatever an exception's own __reduce__ raises
        return pickle.dumps(RldsError(f"{type(e).__name__}: {e}"))
    return pickled


def check(environment: JobEnvironment) -> None:
    """Raise PreprocessError unless this node sees the same home and has the same version of rlds."""
    if environment.version != __version__:
        raise PreprocessError(
            f"{node_name()} has rlds {__version__}; the job was started with {environment.version}.",
            hint=f"pip install rlds-cli=={environment.version} on every node",
        )
    try:
        seen = environment.mark.read_text()
    except OSError:
        seen = ""
    if seen != environment.word:
        what = "has another directory there" if environment.home.exists() else "has no such directory"
        raise PreprocessError(
            f"{node_name()} does not see the home {environment.home}: it {what}. Nothing was published.", hint=_SHARED
        )


@contextmanager
def working_as(environment: JobEnvironment) -> Iterator[None]:
    """Change to the same working directory, if it exists, and find the same modules."""
    sys.path[:0] = [p for p in environment.search if p not in sys.path]
    with suppress(OSError):
        os.chdir(environment.directory)
    yield


def check_function(function: Function) -> Callable[..., Any]:
    """Load the function on this node, and compare its source.

    Raises
    ------
    PreprocessError
        It is not found, or its file differs.
    """
    if function.file and not Path(function.file).is_file():
        raise PreprocessError(f"{node_name()} does not see {function.file}. Nothing was published.", hint=_SHARED)
    try:
        call = function.load()
    except ModuleNotFoundError as e:
        raise PreprocessError(
            f"{node_name()} has no module {e.name}, which {function.reference} needs. Nothing was published.",
            hint=f"install it on every node; {_SHARED}",
        ) from e
    file = Path(getattr(sys.modules.get(function.module or ""), "__file__", None) or os.devnull)
    if function.files and file.is_file():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest not in (sha for _, sha in function.files):
            raise PreprocessError(
                f"{node_name()} has another version of {file} than the job was started with.", hint=_SHARED
            )
    return call
