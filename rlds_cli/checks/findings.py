"""Records of findings, for the terminal, ``--json``, the notes of a manifest and the report."""

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
    """A fact that a user of the dataset should know.

    Attributes
    ----------
    check : str
        The check that found it, as ``CHECKS`` names it.
    code : str
        A name of the problem that stays the same, for scripts.
    severity : {"error", "warning", "note"}
        ``error``: the data contradict themselves; ``warning``: training on them as they are may go wrong; ``note``:
        for information.
    text : str
        A sentence without a full stop, with its numbers.
    count : int
        Number of episodes, steps or values concerned.
    field : str or None
    places : tuple of Place
        The first of them, at most eight; empty when the whole dataset is concerned, or when rows were not read.
    known : tuple of str
        References to reports of the same problem by users of the source: ``D4RL#199``.
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
    """Result of ``rlds check``: findings (errors first), checks that found nothing, and reasons for skipped checks."""

    id: str
    path: Path
    fingerprint: str
    errors: int
    warnings: int
    notes: int
    findings: tuple[Finding, ...]
    ok: tuple[str, ...]
    skipped: Mapping[str, str]


def finding(
    code: str,
    severity: Severity,
    text: str,
    count: int = 1,
    field: str | None = None,
    places: tuple[Place, ...] = (),
    known: tuple[str, ...] = (),
) -> Finding:
    """Make a finding of the check that is running; its name comes from the table ``CHECKS``."""
    return Finding("", code, severity, text, count, field, places, known)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: errors, warnings, notes; findings of one severity keep their order."""
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def number(findings: Iterable[Finding], severity: Severity) -> int:
    """Count the findings of one severity."""
    return sum(f.severity == severity for f in findings)


# -- findings as notes of a manifest: a note of a check has a severity, a note of a reader has none


def as_note(f: Finding) -> dict[str, Any]:
    """Convert a finding to the form in which a manifest holds it."""
    where = str(f.places[0]) if f.places else ""
    places = [[p.episode, p.step] for p in f.places]
    note = {"code": f.code, "text": f.text, "count": f.count, "where": where, "severity": f.severity}
    return note | {"check": f.check, "field": f.field, "places": places, "known": list(f.known)}


def of_note(note: Mapping[str, Any]) -> Finding:
    """Convert a note of a manifest to a finding; a note of a reader becomes a finding of the check ``reader``."""
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
