"""Readers behind a boundary: the files of strangers have more faults than a reader foresees.

A reader raises errors of ``rlds_cli.errors`` for the faults that it knows. `Guarded` turns every other exception
(KeyError, TypeError, errors of libraries) into CorruptArchive, which keeps the exception as its cause, and refuses more
rows and bytes than files of that size can hold. It adds what all readers have in common: what is said of episodes
(`tasks`), and what lies beside them (`episode_info`). `reader` returns a reader by its name, `recognise` the one that
knows some files.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_cli.archives import episode_info, plugins, tasks
from rlds_cli.archives.account import BAD_FILES, Account
from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.archives.libraries import LIBRARIES, READERS
from rlds_cli.archives.readers import (
    Archive,
    ArchivedStep,
    ArchivedValue,
    Part,
    Plan,
    Reader,
    Replan,
    Signal,
)
from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import bundles
from rlds_cli.base.files.disk import is_full
from rlds_cli.base.media.media_files import is_image
from rlds_cli.errors import (
    ArchiveError,
    CorruptArchive,
    NoPermission,
    NoSpace,
    ReaderError,
    RldsError,
    UnknownLayout,
    UnsafeArchive,
)
from rlds_cli.ted import Chunk, Column, Note

if TYPE_CHECKING:
    from rlds_cli.base.subset import Subset

MAX_ROW = 256 << 20  # bytes of one row of all arrays: rows are read and written whole
FREE_ROWS = 64 << 20
# Deflate packs zeros 1,032 to 1, and any file may become this large.
MAX_RATIO, FREE_BYTES = 1100, 256 << 20
_SHOWN_FILES = 5  # of the files that were left out, in a note


@contextmanager
def untrusted(what: Callable[[], str], code: str = "") -> Iterator[None]:
    """Turn unexpected exceptions while an archive is read into errors of rlds.

    Parameters
    ----------
    what : callable
        Returns the subject of the message: the files, and the reader.
    code : str
        The file or directory of the reader's code, if it is not part of rlds; see `plugins.load`.

    Raises
    ------
    CorruptArchive
        Instead of any exception other than an `RldsError`; its cause is the exception.
    ReaderError
        Instead of an exception from ``code``; the message names the line.
    UnsafeArchive
        Instead of MemoryError and RecursionError.
    NoPermission, NoSpace
        Instead of the system's errors for these.
    """
    try:
        yield
    except (RldsError, Signal):
        raise
    except (MemoryError, RecursionError) as e:
        lacking = "memory" if isinstance(e, MemoryError) else "recursion"
        raise UnsafeArchive(f"{what()}: reading it takes too much {lacking}.") from e
    except PermissionError as e:
        raise NoPermission(f"{e.filename or what()} may not be read.") from e
    except OSError as e:
        if is_full(e):
            raise NoSpace(
                f"{what()}: {e}.", hint="free some space, or set TMPDIR to a directory with more space"
            ) from e
        raise CorruptArchive(_said(what(), e)) from e
    except Exception as e:
        if code and (at := plugins.place_of(e, code)):
            raise ReaderError(f"{what()}: the reader failed: {type(e).__name__}: {_line(e)} ({at}).") from e
        if isinstance(e, ImportError):
            raise
        raise CorruptArchive(_said(what(), e)) from e


def _said(what: str, e: Exception) -> str:
    """Make the message: the subject, and the exception in one line of bounded length."""
    return f"{what}: it is damaged, or does not follow its layout ({type(e).__name__}: {_line(e)})."


def _line(e: Exception) -> str:
    return " ".join(str(e).split())[:300]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A reader's module behind the boundary, as a `Reader`; ``code`` is that of `untrusted`."""

    name: str
    module: Any
    code: str = ""

    @property
    def VERSION(self) -> int:
        """The version of the reader."""
        return int(self.module.VERSION)

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """See `Reader`."""
        with untrusted(lambda: self._what(paths), self.code):
            found: str | None = self.module.recognise(paths)
            return found

    def plan(self, archive: Archive) -> Plan:
        """See `Reader`; refuses a plan of more rows than files of that size can hold."""
        with untrusted(lambda: self._what(archive.files), self.code):
            plan: Plan = self.module.plan(archive)
            _check(plan, lambda: self._what(archive.files))
            made = self._planned(replace(plan, reader=self.name, version=self.VERSION, stored=_stored(plan)))
            return episode_info.told(made)

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """See `Reader`."""
        with untrusted(lambda: self._what(plan.archive.files), self.code):
            try:
                chunks = self.module.read(self._as_read(plan), part)
                chunks = _within(chunks, plan, lambda: self._what(plan.archive.files))
                if episode_info.FACT in plan.facts:
                    chunks = episode_info.completed(chunks, plan)
                if plan.task is not None:
                    chunks = tasks.said(chunks, plan.task, plan.archive.name_of, steps=plan.several_tasks)
                yield from chunks
            except tasks.SeveralTasks:
                told = _retold(plan.account, tasks.COLUMN, tasks.BOTH)
                schema = tasks.with_steps(plan.schema)
                raise Replan(replace(plan, schema=schema, account=told, several_tasks=True)) from None
            except Replan as better:
                found = replace(better.plan, version=plan.version, stored=_stored(better.plan))
                raise Replan(episode_info.told(self._planned(found))) from None

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """See `Reader`; names and texts are made writable as UTF-8."""
        with untrusted(lambda: self._what(plan.archive.files), self.code):
            for name, value in self.module.metadata(self._as_read(plan)):
                yield _writable(name), _writable(value) if isinstance(value, str) else value
            yield from episode_info.metadata(plan)

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """See `Reader`."""
        with untrusted(lambda: f"an archive, read as {self.name}", self.code):
            chosen: tuple[Sequence[str], Subset] = self.module.choose(names, portion, read)
            return chosen

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """See `Reader`."""
        with untrusted(lambda: self._what([place.file]), self.code):
            yield from self.module.look_up(place)

    def _planned(self, plan: Plan) -> Plan:
        """Return a plan in which what is said of episodes is not a field of its own."""
        names = getattr(self.module, "TASKS", ())
        found = tasks.divided(plan.schema, plan.archive.files[0].name, names=names, mapped=plan.archive.fields)
        if found.task is None:
            return replace(plan, several_tasks=False)
        several = plan.several_tasks
        schema = tasks.with_steps(found.others) if several else found.others
        told = _retold(plan.account, found.task.name, tasks.BOTH if several else (tasks.COLUMN,))
        return replace(plan, schema=schema, task=found.task, account=told)

    @staticmethod
    def _as_read(plan: Plan) -> Plan:
        """Return a plan as the reader made it."""
        return replace(plan, schema=tasks.as_read(plan.schema, plan.task), task=None)

    def _what(self, paths: Sequence[Path]) -> str:
        more = f" and {text.plural(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        return f"{paths[0] if paths else 'nothing'}{more}, read as {self.name}"


def _retold(account: Account | None, name: str, becomes: Sequence[str]) -> Account | None:
    """Return an account in which what is used as ``name`` is used as something else."""
    if account is None:
        return None
    uses = ((e, [of for use in e.used_as for of in (becomes if use == name else (use,))]) for e in account.things)
    return replace(account, things=tuple(replace(e, used_as=tuple(of)) for e, of in uses))


def _stored(plan: Plan) -> int:
    return sum(map(bundles.size_of, plan.archive.files))


def _within(chunks: Iterator[Chunk], plan: Plan, what: Callable[[], str]) -> Iterator[Chunk]:
    """Yield chunks until they have more bytes than files of that size can hold."""
    given, most = 0, FREE_BYTES + MAX_RATIO * plan.stored
    for chunk in chunks:
        given += sum(map(_nbytes, chunk.columns.values()))
        if given > most:
            raise UnsafeArchive(f"{what()}: it has {plan.stored:,} bytes, and becomes more than {most:,}.")
        yield chunk


def _nbytes(column: Column) -> int:
    return sum(map(len, filter(None, column))) if isinstance(column, list) else column.nbytes


def _check(plan: Plan, what: Callable[[], str]) -> None:
    """Refuse too many rows for the size of the files, rows too large to be read whole, and text that is not Unicode."""
    rows, stored = sum(part.rows or 0 for part in plan.parts), _stored(plan)
    if rows > FREE_ROWS + MAX_RATIO * stored:
        raise UnsafeArchive(f"{what()}: it claims {rows:,} rows, and has {stored:,} bytes.")
    if len(plan.schema) > MAX_COLUMNS:
        raise UnsafeArchive(f"{what()}: it has {len(plan.schema):,} fields; at most {MAX_COLUMNS:,} are read.")
    size = sum(_row_bytes(f.shape, f.dtype) for f in plan.schema if f.kind == "array")
    if size > MAX_ROW:
        raise UnsafeArchive(f"{what()}: it claims rows of {size:,} bytes; at most {MAX_ROW:,} are read.")
    if rows * size > FREE_BYTES + MAX_RATIO * stored:
        raise UnsafeArchive(f"{what()}: it claims {rows * size:,} bytes, and has {stored:,}.")
    try:
        said: Mapping[str, Any] = {"facts": plan.facts, "spaces": plan.spaces, "env": plan.env}
        json.dumps(said, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as e:
        raise CorruptArchive(f"{what()}: its description holds text that is not Unicode: {e}.") from e


def _row_bytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _writable(text: str) -> str:
    """Replace each half of a surrogate pair by a question mark."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def reader(name: str) -> Reader:
    """Return the reader called ``name``, behind the boundary.

    Raises
    ------
    ReaderError
        There is none, or one that is not part of rlds cannot be imported.
    """
    if name not in READERS:
        check_name(name)
        return cast(Reader, Guarded(name, *plugins.load(name)))
    module = import_module(f"rlds_cli.archives.{LIBRARIES[name].reader}")
    return cast(Reader, Guarded(name, getattr(module, "READER", module)))


def _recogniser(name: str) -> Reader:
    """Return the reader called ``name``, or as much of it as recognises its files."""
    signs = LIBRARIES[name].signs if name in READERS else ""
    return cast(Reader, Guarded(name, import_module(f"rlds_cli.archives.{signs}"))) if signs else reader(name)


def check_name(name: str, package: str = "") -> None:
    """Refuse the name of a reader that is not there; ``package`` is the one that it was of, with its version.

    Raises
    ------
    ReaderError
        It is not a reader of rlds, of an installed package or of a file.
    """
    if name in READERS or plugins.ReaderName(name).is_file or name in plugins.installed():
        return
    if package:
        raise ReaderError(
            f'The reader "{name}" is of the package {package}, which is not installed.',
            hint="install it if you trust it, or name a reader: --reader NAME, or --reader FILE.py:NAME",
        )
    raise ReaderError(
        f'There is no reader "{name}".{text.did_you_mean(name, reader_names(), 0.5)}',
        hint=f"one of {', '.join(reader_names())}; others belong to packages to install, or are FILE.py:NAME",
    )


def reader_names() -> Iterator[str]:
    """Yield the names of all readers, in the order in which they recognise files; the one of any tables is last."""
    *own, last = READERS
    yield from own
    yield from (name for name in plugins.installed() if name not in READERS)
    yield last


def choose(
    name: str, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
) -> tuple[Sequence[str], Subset]:
    """Choose the files that the reader called ``name`` needs for a portion; see `Reader.choose`."""
    if not portion.cuts or plugins.ReaderName(name).is_file:
        return names, portion
    return reader(name).choose(names, portion, read)


def recognise(paths: Sequence[Path], *, tables: bool = True) -> tuple[str, str] | None:
    """Find the first reader that knows the files by their content: its name, and its description of them.

    Without ``tables`` the reader of any tables is not asked.
    """
    few = _few(paths)
    bundled = any(map(os.path.isdir, few))
    for name in reader_names():
        if (bundled and name in READERS and not LIBRARIES[name].bundles) or (name == READERS[-1] and not tables):
            continue
        of_family, recogniser = name in READERS[:-1], _recogniser(name)
        found = recogniser.recognise(few) if of_family else None
        if found or not of_family:  # what it says counts files
            found = recogniser.recognise(paths)
        if found:
            return name, found
    return None


def _few(paths: Sequence[Path]) -> Sequence[Path]:
    """Leave out all but the first image of each folder and of a suffix: our readers of families read none of them."""
    seen, few = set[tuple[str, str]](), list[Path]()
    for path in paths:
        if is_image(path):
            above, _, name = os.fspath(path).rpartition("/")
            if (key := (above, name[name.rfind(".") :])) in seen:
                continue
            seen.add(key)
        few.append(path)
    return paths if len(few) == len(paths) else few


def without_bad_files(name: str, archive: Archive) -> Archive:
    """Leave out files that ``name`` cannot read from the first row to the last, or unlike most others: ``--skip-bad``.

    Only readers that stop at damage, and those that are not part of rlds, need this. The others leave damaged files out
    as they plan.

    Raises
    ------
    ArchiveError
        No file can be read.
    """
    if (name in READERS and LIBRARIES[name].skips) or len(archive.files) < 2:
        return archive
    found = {path: _read_through(name, replace(archive, files=(path,))) for path in archive.files}
    alike = Counter(f for f in found.values() if not isinstance(f, RldsError)).most_common(1)
    usual = next((f for f, count in alike if count > len(found) // 2), None)
    bad = {
        path: f if isinstance(f, RldsError) else UnknownLayout(f"{path.name} holds other fields than most files.")
        for path, f in found.items()
        if isinstance(f, RldsError) or (usual is not None and f != usual)
    }
    if not bad:
        return archive
    good = tuple(path for path in archive.files if path not in bad)
    if not good:
        raise next(iter(bad.values()))
    more = f"; and {len(bad) - _SHOWN_FILES:,} more" if len(bad) > _SHOWN_FILES else ""
    text = f"files were left out. {'; '.join(e.message for e in [*bad.values()][:_SHOWN_FILES])}{more}"
    first = next(iter(bad)).relative_to(archive.root).as_posix()
    return replace(archive, files=good, left_out=(*archive.left_out, Note(BAD_FILES, text, len(bad), first)))


def _read_through(name: str, alone: Archive) -> RldsError | frozenset[tuple[Any, ...]]:
    """Read an archive of one file to its end; return the names and shapes of its fields, or the error."""
    module = reader(name)
    try:
        plan = module.plan(alone)
        with suppress(Replan):  # a file that only needs another plan is sound
            for part in plan.parts:
                for _ in module.read(plan, part):
                    pass
    except (CorruptArchive, ReaderError, UnknownLayout) as e:
        return e
    return frozenset((f.name, f.shape) for f in plan.schema)


def recognise_most(files: Sequence[Path]) -> tuple[str, str] | None:
    """Return the reader that recognises most of the files, and its description of the first; None if none does."""
    found: Counter[str] = Counter()
    said: dict[str, str] = {}
    for path in files:
        try:
            known = recognise([path])
        except ArchiveError:
            continue
        if known:
            found[known[0]] += 1
            said.setdefault(*known)
    if not found:
        return None
    name = found.most_common(1)[0][0]
    return name, f"{said[name]}, and {len(files) - 1:,} other files"
