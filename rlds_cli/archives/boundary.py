"""Readers as the rest of the program calls them: what an archive makes a reader raise or claim becomes an ArchiveError.

Readers refuse what they know to be wrong in words of their own. Files of strangers are wrong in more ways than a reader
names: `Guarded` turns what is left (KeyError, TypeError, OverflowError, errors of libraries) into CorruptArchive, which
keeps the exception as its cause.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli import sizes
from rlds_cli.errors import CorruptArchive, NoPermission, NoSpace, RldsError, UnsafeArchive
from rlds_cli.ted import Array, Chunk, Part

if TYPE_CHECKING:
    from rlds_cli.archives import Archive, Plan

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
        more = f" and {sizes.plural(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
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
