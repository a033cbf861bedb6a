"""What checks find, as records: for the terminal, ``--json``, the manifest's notes and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

MOST_PLACES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """An episode, and a step in it: 0 to T-1, T for the final observation, None for the episode as a whole."""

    episode: int
    step: int | None = None

    def __str__(self) -> str:
        return f"episode {self.episode:,}" + (f" step {self.step:,}" if self.step is not None else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a user should know.

    Attributes
    ----------
    check : str
        The check that found it, as ``CHECKS`` names it.
    code : str
        What it found: a word that stays the same, for scripts.
    severity : {"error", "warning", "note"}
        ``error``: the data contradict themselves; ``warning``: training on them as they are may go wrong; ``note``:
        good to know.
    text : str
        A sentence without a full stop, with its numbers.
    count : int
        How many episodes, steps or values it is about.
    field : str or None
    places : tuple of Place
        The first of them, at most eight; none where it is about the whole, or where nobody has looked.
    known : tuple of str
        References to where the source's users report the same: ``D4RL#199``.
    """

    check: str
    code: str
    severity: Severity
    text: str
    count: int = 1
    field: str | None = None
    places: tuple[Place, ...] = ()
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``rlds check`` shows: findings, errors first; checks that found nothing; why others could not look."""

    id: str
    path: Path
    fingerprint: str
    errors: int
    warnings: int
    notes: int
    findings: tuple[Finding, ...]
    ok: tuple[str, ...]
    skipped: Mapping[str, str]


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors before warnings before notes; those of one severity in the order in which they came."""
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def number(findings: Iterable[Finding], severity: Severity) -> int:
    """How many findings are of one severity."""
    return sum(f.severity == severity for f in findings)


# -- as notes of a manifest: a note of a check has a severity, one of a reader has none


def as_note(f: Finding) -> dict[str, Any]:
    """A finding as the manifest holds it."""
    where = str(f.places[0]) if f.places else ""
    places = [[p.episode, p.step] for p in f.places]
    note = {"code": f.code, "text": f.text, "count": f.count, "where": where, "severity": f.severity}
    return note | {"check": f.check, "field": f.field, "places": places, "known": list(f.known)}


def of_note(note: Mapping[str, Any]) -> Finding:
    """The finding that a note of a manifest is; what a reader noted is of the check ``reader``."""
    places = tuple(Place(episode, step) for episode, step in note.get("places") or ())
    text, where = str(note["text"]), str(note.get("where") or "")
    if "severity" not in note and where:
        text += f", e.g. {where}" if int(note.get("count", 1)) > 1 else f": {where}"
    return Finding(
        check=note.get("check", "reader"),
        code=str(note["code"]),
        severity=note.get("severity", "note"),
        text=text,
        count=int(note.get("count", 1)),
        field=note.get("field"),
        places=places,
        known=tuple(note.get("known") or ()),
    )
