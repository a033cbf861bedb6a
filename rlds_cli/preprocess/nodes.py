"""What a node of a cluster does for a job: look whether it sees the same files, do one item, hand back what it says."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli import __version__
from rlds_cli.errors import PreprocessError, RldsError
from rlds_cli.preprocess.functions import Function

_SHARED = "the home, the sources and the function's files must be on storage that all nodes see, under the same paths"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the process that asks for the work is; a node must find the same.

    Parameters
    ----------
    home : Path
    mark : Path
        A file in the home that holds ``word``.
    directory : str
        The working directory, which relative paths in functions are of.
    search : tuple of str
        Where modules are searched.
    """

    home: Path
    mark: Path
    word: str
    directory: str
    search: tuple[str, ...]
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Answer:
    """What an item gave, or the exception that it raised, pickled, and where in words."""

    value: Any = None
    failure: bytes | None = None
    trace: str = ""


class Elsewhere(Exception):
    """The traceback of a failure on a node, as text: the cause of that failure here."""


def node() -> str:
    """How messages call this machine."""
    return f"node {socket.gethostname()}"


def work(call: bytes, first: bytes, others: bytes, place: Place) -> Answer:
    """Do one item: ``call(first, *others)``, all pickled, for they can be read only where the files are.

    Parameters
    ----------
    first : bytes
        A `Task`, or a job that has one.
    """
    try:
        check(place)
        with at(place):
            given = _given(first)
            check_function(getattr(given, "task", given).function)
            return Answer(pickle.loads(call)(given, *pickle.loads(others)))
    except Exception as e:
        return Answer(failure=_pickled(e), trace=traceback.format_exc())


def _given(first: bytes) -> Any:
    """The task or job; to read it opens the source."""
    try:
        return pickle.loads(first)
    except (RldsError, OSError) as e:
        message = e.message if isinstance(e, RldsError) else str(e)
        raise PreprocessError(f"{node()} cannot open the source: {message}", hint=_SHARED) from e


def _pickled(e: Exception) -> bytes:
    try:
        pickled = pickle.dumps(e)
        pickle.loads(pickled)
    except Exception:  # whatever an exception's own __reduce__ raises
        return pickle.dumps(RldsError(f"{type(e).__name__}: {e}"))
    return pickled


def check(place: Place) -> None:
    """Raise PreprocessError unless this node sees the same home, and has the same version of this program."""
    if place.version != __version__:
        raise PreprocessError(
            f"{node()} has rlds {__version__}; the job was started with {place.version}.",
            hint=f"pip install rlds-cli=={place.version} on every node",
        )
    try:
        seen = place.mark.read_text()
    except OSError:
        seen = ""
    if seen != place.word:
        what = "has another directory there" if place.home.exists() else "has no such directory"
        raise PreprocessError(
            f"{node()} does not see the home {place.home}: it {what}. Nothing was published.", hint=_SHARED
        )


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Work in the same directory, where there is one, and find the same modules."""
    sys.path[:0] = [p for p in place.search if p not in sys.path]
    with suppress(OSError):
        os.chdir(place.directory)
    yield


def check_function(function: Function) -> Callable[..., Any]:
    """The function, as it is found here.

    Raises
    ------
    PreprocessError
        It is not found, or its file is another one.
    """
    if function.file and not Path(function.file).is_file():
        raise PreprocessError(f"{node()} does not see {function.file}. Nothing was published.", hint=_SHARED)
    try:
        call = function.load()
    except ModuleNotFoundError as e:
        raise PreprocessError(
            f"{node()} finds no module {e.name}, which {function.reference} is in or needs. Nothing was published.",
            hint=f"install it on every node; {_SHARED}",
        ) from e
    file = Path(getattr(sys.modules.get(function.module or ""), "__file__", None) or os.devnull)
    if function.files and file.is_file():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest not in (sha for _, sha in function.files):
            raise PreprocessError(f"{node()} has another {file} than the one the job was started with.", hint=_SHARED)
    return call
