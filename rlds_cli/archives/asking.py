"""What a process that reads files of strangers is asked: to recognise them, to plan, to look values up, to describe."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.archives.account import Entry
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Plan, skipped_file
from rlds_cli.archives.recognised import ANSWERS, Recognised
from rlds_cli.base.files import child
from rlds_cli.base.progress import Progress, silent
from rlds_cli.errors import ArchiveError

if TYPE_CHECKING:
    from rlds_cli.archives.file_report import FileReport

_log = logging.getLogger(__name__)

# Imported by the other process alone, since they open files.
_BOUNDARY, _PLANNING, _DESCRIBING = (f"rlds_cli.archives.{name}" for name in ("boundary", "planning", "describing"))


def planner(*, id: str = "rlds", progress: Progress = silent) -> AbstractContextManager[None]:
    """Keep one process for all plans inside, see `child.reading`."""
    return child.reading(_PLANNING, id=id, progress=progress)


def is_recognised(files: Sequence[Path]) -> bool:
    """Return whether a reader recognises files, also where it cannot plan to read them."""
    return child.ask(f"{_BOUNDARY}.recognise", files, names=files) is not None


def plan_files(archive: Archive, format: str | None) -> Recognised:
    """Find the reader of files and plan to read them, as `planning.plan`.

    With ``skip_bad``, a file that ends the process is left out like other bad ones; the plan's archive has a note.
    """
    while True:
        try:
            found: Recognised = child.ask(f"{_PLANNING}.plan", archive, format, names=archive.files, types=ANSWERS)
        except ArchiveError as e:
            rest = tuple(f for f in archive.files if str(f) != e.ended_at)
            if not archive.skip_bad or not rest or len(rest) == len(archive.files):
                raise
            for said in getattr(e, "__notes__", ()):
                _log.warning("%s", said)
            note = skipped_file(archive.name_of(archive.files.index(Path(e.ended_at))), e)
            archive = replace(archive, files=rest, left_out=(*archive.left_out, note))
        else:
            return replace(found, plan=_with_left_out(found.plan, found.archive))


def _with_left_out(plan: Plan, given: Archive) -> Plan:
    """Add the notes of a plan to its archive, which has fewer files: a second plan would not repeat all of them."""
    if plan.archive.files == given.files:
        return plan
    return replace(plan, archive=replace(plan.archive, left_out=(*plan.archive.left_out, *plan.notes)))


def plan_again(reader: str, archive: Archive, known: Plan | None = None) -> Plan:
    """Plan to read an archive by a known reader; ``known`` is a plan of it, which is returned if it still holds."""
    if known is not None and child.ask(f"{_PLANNING}.is_last", reader, archive, names=archive.files):
        return replace(known, archive=archive)
    plan: Plan = child.ask(f"{_PLANNING}.plan_known", reader, archive, names=archive.files, types=ANSWERS)
    return plan


def account_of(plan: Plan, given: Archive) -> tuple[Entry, ...]:
    """Return the fate of all files that a user gave, and of all that they hold, see `planning.account_of`."""
    entries: tuple[Entry, ...] = child.ask(f"{_PLANNING}.account_of", plan, given, names=given.files, types=ANSWERS)
    return entries


def look_up(name: str, place: ArchivedStep, files: Sequence[Path]) -> list[ArchivedValue]:
    """Look up the values of one step; without ``name`` by the reader that recognises ``files``."""
    values: list[ArchivedValue] = child.ask(
        f"{_PLANNING}.look_up", name, place, files, names=(place.file,), types=ANSWERS
    )
    return values


def describe(path: Path, files: tuple[Path, ...], reader: str | None) -> FileReport:
    """Describe the files of a path, or what ``reader`` would make of them; no more is read than needed.

    Raises
    ------
    ArchiveError
        They are damaged, or need a program or more memory than an archive may.
    """
    from rlds_cli.archives.file_report import FileReport, Node

    report: FileReport = child.ask(
        f"{_DESCRIBING}.describe", path, files, reader, names=files, types=(FileReport, Node, *ANSWERS)
    )
    return report
