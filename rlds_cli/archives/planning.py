"""Recognise the files of a user, plan to read them, and look values up: what is asked of a process that reads.

The functions are called with `files.child.ask`, and their results consist of ``ANSWERS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.archives import (
    ARRIVE,
    Archive,
    ArchivedStep,
    ArchivedValue,
    EpisodeSummary,
    Plan,
    reader,
    recognise,
    recognise_most,
    without_bad_files,
)
from rlds_cli.errors import ArchiveError, InvalidArgument, UnknownLayout
from rlds_cli.files import child
from rlds_cli.formats.tables import is_empty, no_rows
from rlds_cli.ted import Field, Note, Part


@dataclass(frozen=True, slots=True)
class Recognised:
    """A plan to read files: the reader's name, how it recognised them, and the archive without files left out."""

    reader: str
    how: str
    archive: Archive
    plan: Plan

    @property
    def rows(self) -> int | None:
        """The number of rows, if it is known ahead."""
        known = [p.rows for p in self.plan.parts]
        return None if None in known else sum(r for r in known if r is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the files, and of the reader."""
        told = (*self.archive.left_out, *self.plan.notes)
        return tuple(n.text if n.where in n.text else f"{n.text} ({n.where})" for n in told)


_last: list[tuple[Any, Plan]] = []  # what the last plan was made of, and the plan
ANSWERS = (Recognised, Plan, Archive, EpisodeSummary, Field, Note, Part, ArchivedValue)


def plan(archive: Archive, format: str | None) -> Recognised:
    """Find the reader of files, and plan to read them; raises as `reader_for` and `Reader.plan`.

    Parameters
    ----------
    archive : Archive
    format : str or None
        The name of the reader; None recognises the files.
    """
    name, how = reader_for(archive.files, format, bool(archive.fields), archive.skip_bad, archive.rewards)
    archive = without_bad_files(name, archive) if archive.skip_bad else archive
    return Recognised(name, how, archive, plan_known(name, archive))


def plan_known(name: str, archive: Archive) -> Plan:
    """Plan to read an archive of the family ``name``; a process keeps its last plan, which imports ask for again."""
    key = (name, archive, [*map(_state, archive.files)])
    if not (child.is_apart() and _last and _last[0][0] == key):
        _last[:] = [(key, reader(name).plan(archive))]
    return _last[0][1]


def _state(file: Path) -> tuple[int, int, int]:
    try:
        stat = file.stat()
    except OSError:
        return (0, 0, 0)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def look_up(name: str, place: ArchivedStep, files: Sequence[Path]) -> list[ArchivedValue]:
    """Look up the values of one step; without ``name`` by the reader that recognises ``files``."""
    return [*reader(name or (recognise(files) or ("",))[0]).look_up(place)]


def reader_for(
    files: Sequence[Path], format: str | None, mapped: bool, skip_bad: bool, rewards: str | None = None
) -> tuple[str, str]:
    """Return the reader of files, and in words how they were recognised.

    Parameters
    ----------
    format : str, optional
        The reader that was asked for.
    mapped : bool
        Whether keys are assigned to fields: the plain reader then takes files that none recognises.
    skip_bad : bool
        Whether some files may be unreadable.
    rewards : {"action", "arrive"}, optional
        ``arrive`` is for tables, whose reader reads other files of columns, too.

    Raises
    ------
    UnknownLayout, ArchiveError
        No reader recognises the files, or all but one.
    InvalidArgument
        ``rewards`` is ``arrive``, and the files say themselves what their rewards belong to.
    """
    if rewards == ARRIVE:
        name, what = reader_for(files, format, mapped, skip_bad)
        if name in ("plain", "d4rl", "vd4rl"):
            return "plain", what
        own = "; --reader plain reads the columns as a table of your own" if reader("plain").recognise(files) else ""
        raise InvalidArgument(
            f"--rewards arrive is for tables and files of episodes; {files[0].name} is read as {name}, "
            "which says what its rewards belong to.",
            hint=f"leave out --rewards{own}",
        )
    if format is not None:
        reader(format)
        return format, f"read as {format}, as requested"
    found = _recognised(files, skip_bad)
    if found:
        return found
    empty = next((f for f in files if is_empty(f)), None)
    if empty is not None and not skip_bad:
        raise no_rows(empty.name)
    if mapped:
        return "plain", "columns of rows, by --map"
    _blame_one(files)
    raise UnknownLayout(
        f"{files[0].name} has no layout that a reader recognises.", hint=f"rlds inspect {files[0]} shows what is in it"
    )


def _blame_one(files: Sequence[Path]) -> None:
    """Raise ArchiveError for the first file that no reader recognises, if one recognises most of the others.

    If all are recognised alone, they have different layouts: UnknownLayout.
    """
    most = recognise_most(files) if len(files) > 1 else None
    odd = next((f for f in files if most and not _is_known(f)), None)
    if most and odd is not None:
        raise ArchiveError(
            f"{odd.name} cannot be read like the other files ({most[0]}): it is damaged, or has another layout.",
            hint=f"--skip-bad leaves it out; rlds inspect {odd} shows what is in it",
        )
    if most:
        raise UnknownLayout(
            f"{files[0].name} and {files[-1].name} have different layouts.",
            hint="import files of one layout: name them, or one of their directories",
        )


def _is_known(file: Path) -> bool:
    try:
        return recognise([file]) is not None
    except ArchiveError:
        return False


def _recognised(files: Sequence[Path], skip_bad: bool) -> tuple[str, str] | None:
    """Return the reader that recognises the files; with ``skip_bad``, the one that recognises most of them."""
    try:
        found = recognise(files)
    except ArchiveError:
        if not skip_bad:
            raise
        found = None
    return found or (recognise_most(files) if skip_bad and len(files) > 1 else None)
