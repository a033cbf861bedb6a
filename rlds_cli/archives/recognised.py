"""What a process that plans to read files answers with: `Recognised`, and the types that it consists of.

The side that asks imports this module, and not those that open files.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlds_cli.archives.account import Account, Entry, Fate
from rlds_cli.archives.readers import Archive, ArchivedValue, EpisodeSummary, InfoFile, Plan
from rlds_cli.ted import Field, Note, Part


@dataclass(frozen=True, slots=True)
class Recognised:
    """A plan to read files: the reader's name, how it recognised them, and the archive without files left out."""

    reader: str
    how: str
    archive: Archive
    plan: Plan
    account: tuple[Entry, ...]

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


ANSWERS: tuple[type, ...] = (
    Recognised,
    Plan,
    Archive,
    InfoFile,
    EpisodeSummary,
    Field,
    Note,
    Part,
    ArchivedValue,
    Account,
    Entry,
    Fate,
)


def answers(*more: type) -> tuple[type, ...]:
    """Return the types that results consist of, with those of a caller's own functions."""
    return (*ANSWERS, *more)
