"""Files that are not datasets: what they are, what a reader would make of them, or their tree and what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from rlds_cli import importing
from rlds_cli.archives import Part, recognise
from rlds_cli.errors import UnknownLayout
from rlds_cli.report.guesses import episode_groups, guess_fields, misses, name_for, suggested_command
from rlds_cli.report.trees import Node, tree
from rlds_cli.settings import StrPath
from rlds_cli.ted import Field

_MOST_FILES = 50_000


@dataclass(frozen=True, slots=True)
class FileReport:
    """What is at a path. ``reader`` is the one that knows it, and the next five are what it would make of it.

    Without a reader, ``why`` says what the readers miss, ``tree`` what is inside, and ``suggestion`` is a command that
    may read it (or Python, where no command can).
    """

    path: Path
    files: int
    bytes: int
    what: str
    reader: str | None = None
    fields: tuple[Field, ...] = ()
    episodes_by: str | None = None
    episodes: int | None = None
    rows: int | None = None
    facts: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    why: str | None = None
    tree: tuple[Node, ...] = ()
    groups: int = 0
    guessed: Mapping[str, str] | None = None
    suggestion: str | None = None


def describe_file(path: StrPath) -> FileReport:
    """Describe a file, a directory or a glob of files without writing anything, or reading more than it takes.

    Raises
    ------
    ArchiveError
        There is nothing; it is damaged, or a page of HTML under an archive's name (CorruptArchive); it would execute
        something or reach outside itself (UnsafeArchive).
    """
    given = Path(path)
    files = importing.expand([path], most=_MOST_FILES)
    size = sum(_size(f) for f in files)
    try:
        plan = importing.plan_import([path], "local/x")
    except UnknownLayout as e:
        return _unknown(given, files, size, e)
    return FileReport(
        path=given,
        files=len(files),
        bytes=size,
        what=plan.recognised,
        reader=plan.reader,
        fields=plan.fields,
        episodes_by=plan.episodes_by,
        episodes=len(plan.plan.episode_summary.lengths) if plan.plan.episode_summary else _episodes(plan.plan.parts),
        rows=plan.rows,
        facts=plan.facts,
        notes=plan.notes,
        suggestion=f"rlds import {quote(str(given))} --as local/{name_for(given)}",
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it has vanished since
        return 0


def _episodes(parts: Sequence[Part]) -> int | None:
    """Episodes in all parts, where the reader has counted them: a number, or a list with one length each."""
    counts = [part.args.get("episodes", part.args.get("lengths")) for part in parts]
    if any(c is None for c in counts):
        return None
    return sum(c if isinstance(c, int) else len(c) for c in counts if c is not None)


def _unknown(given: Path, files: Sequence[Path], size: int, error: UnknownLayout) -> FileReport:
    found = tree(files[0])
    what = found.what if len(files) == 1 else f"{len(files):,} files, the first ({files[0].name}) {found.what}"
    level = episode_groups(found.nodes)
    fields = guess_fields(found.nodes)
    return FileReport(
        path=given,
        files=len(files),
        bytes=size,
        what=what,
        episodes=len(level[1]) if level else None,
        why=misses(found) if recognise(files) is None else error.message,
        tree=found.nodes,
        groups=found.groups,
        guessed=fields,
        suggestion=suggested_command(given, found, fields),
    )
