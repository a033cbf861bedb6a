"""Readers as the rest of the program calls them: what an archive makes a reader raise or claim becomes an ArchiveError.

Readers refuse what they know to be wrong in words of their own. Files of strangers are wrong in more ways than a reader
names: `Guarded` turns what is left (KeyError, TypeError, OverflowError, errors of libraries) into CorruptArchive, which
keeps the exception as its cause.

Readers: the archive's files -> chunks of TED rows. One module per family; adding one adds its name below.

A reader is a module with::

    VERSION: int                                                   goes into the manifest; raise it when values change
    recognise(paths) -> str | None                                 what the files are, by content, in one line; or None
    plan(archive) -> Plan                                          fields, parts, episode rule; reads no bulk data
    read(plan, part) -> Iterator[Chunk]                            the rows of one part, in order, in bounded memory
    metadata(plan) -> Iterator[tuple[str, Array | str]]            what is not per row: policy weights, model XML

and, where names or descriptions tell which files hold which episodes or splits::

    choose(names, portion, read) -> tuple[Sequence[str], Portion]  the files of a portion, and what of them it is

``plan`` and ``read`` raise errors of ``rlds_cli.errors`` that name the file and the key; whatever else they raise
becomes CorruptArchive at the boundary (``boundary.Guarded``). ``read`` may raise
``Replan`` when the data turn out to be other than planned; the conversion starts again with the new plan.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from rlds_cli import text
from rlds_cli.errors import CorruptArchive, NoPermission, NoSpace, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.subset import Portion
from rlds_cli.ted import CHUNK_BYTES as CHUNK_BYTES
from rlds_cli.ted import CHUNK_ROWS as CHUNK_ROWS
from rlds_cli.ted import Array, Chunk, Field, IntArray, Note
from rlds_cli.ted import Part as Part

MAX_ROW = 256 << 20  # bytes of one row of all arrays: rows are read and written whole
FREE_ROWS = 64 << 20
MAX_ROWS_PER_BYTE = 1100  # deflate packs a byte per row at most this densely


class Signal(Exception):
    """A reader's message to its caller, which is no error and passes the boundary."""


@contextmanager
def untrusted(what: Callable[[], str]) -> Iterator[None]:
    """Turn unexpected exceptions while an archive is read into errors of rlds.

    Parameters
    ----------
    what : callable
        Returns the subject of the message: the files, and the reader.

    Raises
    ------
    CorruptArchive
        In the place of any exception that is no `RldsError`; its cause is the exception.
    UnsafeArchive
        In the place of MemoryError and RecursionError.
    NoPermission, NoSpace
        In the place of the system's errors that say so.
    """
    try:
        yield
    except (RldsError, Signal, ImportError):
        raise
    except (MemoryError, RecursionError) as e:
        lacking = "memory" if isinstance(e, MemoryError) else "levels of nesting"
        raise UnsafeArchive(f"{what()}: it needs more {lacking} than there may be.") from e
    except PermissionError as e:
        raise NoPermission(f"{e.filename or what()} may not be read.") from e
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{what()}: {e}.", hint="free some room, or set TMPDIR to a directory with more") from e
        raise CorruptArchive(_said(what(), e)) from e
    except Exception as e:
        raise CorruptArchive(_said(what(), e)) from e


def _said(what: str, e: Exception) -> str:
    """The subject, and the exception in one line of bounded length."""
    text = " ".join(str(e).split())
    return f"{what}: it is damaged, or not what its layout demands ({type(e).__name__}: {text[:300]})."


@dataclass(frozen=True, slots=True)
class Guarded:
    """The module of a reader behind the boundary; a `Reader`."""

    name: str
    module: Any

    @property
    def VERSION(self) -> int:
        """The version of the reader."""
        return int(self.module.VERSION)

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """See `Reader`."""
        with untrusted(lambda: self._what(paths)):
            found: str | None = self.module.recognise(paths)
            return found

    def plan(self, archive: Archive) -> Plan:
        """See `Reader`; refuses a plan whose rows no archive of that size holds."""
        with untrusted(lambda: self._what(archive.files)):
            plan: Plan = self.module.plan(archive)
            _check(plan, lambda: self._what(archive.files))
            return plan

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """See `Reader`."""
        with untrusted(lambda: self._what(plan.archive.files)):
            yield from self.module.read(plan, part)

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """See `Reader`; names and texts can be written as UTF-8."""
        with untrusted(lambda: self._what(plan.archive.files)):
            for name, value in self.module.metadata(plan):
                yield _writable(name), _writable(value) if isinstance(value, str) else value

    @property
    def choose(self) -> Callable[..., Any] | None:
        """The reader's own ``choose``, or None."""
        found: Callable[..., Any] | None = getattr(self.module, "choose", None)
        return found and self._call(found)

    @property
    def cells(self) -> Callable[..., Iterator[Any]] | None:
        """The reader's own ``cells``, or None."""
        found: Callable[..., Iterator[Any]] | None = getattr(self.module, "cells", None)
        return found and self._iterate(found)

    def _call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            with untrusted(lambda: f"What is read as {self.name}"):
                return function(*args)

        return guarded

    def _iterate(self, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def guarded(*args: Any) -> Iterator[Any]:
            with untrusted(lambda: f"What is read as {self.name}"):
                yield from function(*args)

        return guarded

    def _what(self, paths: Sequence[Path]) -> str:
        more = f" and {text.plural(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        return f"{paths[0] if paths else 'nothing'}{more}, read as {self.name}"


def _check(plan: Plan, what: Callable[[], str]) -> None:
    """Refuse rows that are too many for the size of the files, or too large to be read whole; and texts of no code."""
    rows = sum(part.rows or 0 for part in plan.parts)
    stored = sum(path.stat().st_size for path in plan.archive.files)
    if rows > FREE_ROWS + MAX_ROWS_PER_BYTE * stored:
        raise UnsafeArchive(f"{what()}: it claims {rows:,} rows, and has {stored:,} bytes.")
    size = sum(_row_bytes(f.shape, f.dtype) for f in plan.schema if f.kind == "array")
    if size > MAX_ROW:
        raise UnsafeArchive(f"{what()}: it claims rows of {size:,} bytes; at most {MAX_ROW:,} are read.")
    try:
        said: Mapping[str, Any] = {"facts": plan.facts, "spaces": plan.spaces, "env": plan.env}
        json.dumps(said, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as e:
        raise CorruptArchive(f"{what()}: its description holds text that is no Unicode: {e}.") from e


def _row_bytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _writable(text: str) -> str:
    """The text, with a question mark for each half of a surrogate pair."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


READERS = (
    "torchrl",
    "minari",
    "d3rlpy",
    "d4rl",
    "roboset",
    "openx",
    "rlu_atari",
    "vd4rl",
    "atari_dqn",
    "gen_dgrl",
    "ogbench",
    "robomimic",
    "lerobot",
    "openml",
    "plain",
)


@dataclass(frozen=True, slots=True)
class Archive:
    """The files of one archive and what the registry or the user says about them.

    ``files`` are absolute, in the order that they are read; ``root`` is the directory that the manifest names them
    relative to. ``episodes_by`` overrides the family's rule (``flags``, ``timeouts``, ``jumps``, ``field``, ``file``;
    ``field:KEY`` names the key). ``fields`` maps TED names to keys of the archive, for ``--map``. With ``skip_bad`` a
    reader leaves out files that it cannot read, and says so in a note each; without, they are an error. ``last_step``
    (``action``, ``observation``) says what the last step of an RLDS episode holds. ``partial`` says that files were
    left out on purpose: what is described and not here is no error. ``left_out`` are notes on files that were left out
    before a reader saw them.
    """

    root: Path
    files: tuple[Path, ...]
    episodes_by: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    last_step: str | None = None
    partial: bool = False
    left_out: tuple[Note, ...] = ()

    def name_of(self, index: int) -> str:
        """File number ``index`` as the manifest names it."""
        return self.files[index].relative_to(self.root).as_posix()


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """The episodes of an archive as far as a plan knows them, for `--dry-run`.

    ``lengths`` [episodes] are the steps of each; ``ends`` counts them by how they end.
    """

    lengths: IntArray
    ends: Mapping[str, int]

    def numbers(self) -> dict[str, Any]:
        """Numbers for people and JSON: how many episodes, the shortest, median and longest, and the ends."""
        steps = np.sort(self.lengths)
        some = len(steps) > 0
        span = {
            "shortest": int(steps[0]) if some else 0,
            "median": int(steps[len(steps) // 2]) if some else 0,
            "longest": int(steps[-1]) if some else 0,
        }
        return {"episodes": len(steps), "steps": int(steps.sum()), **span, "ends": dict(self.ends)}


@dataclass(frozen=True, slots=True)
class Plan:
    """How an archive will be read. Picklable: it goes to worker processes."""

    reader: str
    archive: Archive
    schema: tuple[Field, ...]
    parts: tuple[Part, ...]
    episodes_by: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON; recorded in the manifest (row convention, ...)
    spaces: Mapping[str, Any] = field(default_factory=dict)  # "observation", "action": spaces in Minari's JSON form
    env: Mapping[str, Any] = field(default_factory=dict)  # "id", "spec" (JSON of a Gymnasium EnvSpec), ...
    notes: tuple[Note, ...] = ()
    episode_summary: EpisodeSummary | None = None


class Replan(Signal):
    """The archive is not what the plan took it for; start again with ``plan``."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan


class Reader(Protocol):
    """What the module of a family provides; see the module's docstring."""

    VERSION: int

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """What the files are, in one line, or None."""

    def plan(self, archive: Archive) -> Plan:
        """Fields, parts and episode rule of an archive."""

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """The rows of one part."""

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """What is not per row, by name."""


def reader(name: str) -> Reader:
    """The reader called ``name``, behind the boundary; raises UnknownLayout when there is none."""
    if name not in READERS:
        raise UnknownLayout(f'There is no reader "{name}".', hint=f"one of {', '.join(READERS)}")
    return cast(Reader, Guarded(name, import_module(f"rlds_cli.archives.{name}")))


def choose(
    name: str, names: Sequence[str], portion: Portion, read: Callable[[str], bytes]
) -> tuple[Sequence[str], Portion]:
    """Which of an archive's files the reader called ``name`` needs for a portion; what is to be cut out of their rows.

    All of them unless the reader knows better. ``names`` are relative to the archive's root, as people count;
    ``read`` gives the bytes of one of them, which should be a small description: nothing is here yet.

    Raises
    ------
    ArchiveError
        There is no such split or episode.
    """
    known = getattr(reader(name), "choose", None) if portion.cuts else None
    chosen: tuple[Sequence[str], Portion] = known(names, portion, read) if known else (names, portion)
    return chosen


def recognise(paths: Sequence[Path]) -> tuple[str, str] | None:
    """(reader, one line on what it is) of the first reader that knows the files by their content, or None."""
    for name in READERS:
        found = reader(name).recognise(paths)
        if found:
            return name, found
    return None


def __getattr__(name: str) -> Any:
    if name not in ("hdf5", "parquet"):  # readers of other packages open their files with these
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"rlds_cli.formats.{name}")
