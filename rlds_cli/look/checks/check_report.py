"""The report of all checks, and the episodes of its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base.text import did_you_mean, plural, screen
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.look.checks.findings import CODES, Finding


@dataclass(frozen=True, slots=True)
class FoundEpisodes:
    """Episodes of all findings of one code; ``where`` is the expression that selects them."""

    id: str
    code: str
    num_episodes: int
    episodes: tuple[int, ...]
    where: str


@dataclass(frozen=True, slots=True)
class SuppressedFinding:
    """A finding that a user has suppressed, and the reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSummary:
    """A measure over the episodes that have a value: least, median and greatest; None where no episode has one."""

    name: str
    unit: str
    episodes: int
    least: float | None
    median: float | None
    greatest: float | None


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport:
    """Result of ``rlds check``: findings (errors first), checks that found nothing, and reasons for skipped checks.

    ``measures`` are those that were asked for. With ``since``, the number of an earlier version, ``findings`` are those
    that are new, and ``known`` are the others. ``suppressed`` findings do not count.
    """

    id: str
    version: int
    path: Path
    fingerprint: str
    errors: int
    warnings: int
    notes: int
    findings: tuple[Finding, ...]
    ok: tuple[str, ...]
    skipped: Mapping[str, str]
    measures: tuple[MeasureSummary, ...] = ()
    suppressed: tuple[SuppressedFinding, ...] = ()
    since: int | None = None
    known: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        counts = f"{plural(self.errors, 'error')}, {plural(self.warnings, 'warning')}, {plural(self.notes, 'note')}"
        lines = [f"{f.severity} {f.code}: {f.text}" for f in self.findings]
        return screen(f"CheckReport of {self.id}#v{self.version}: {counts}", lines)

    def episodes_of(self, code: str) -> FoundEpisodes:
        """Return the episodes of all findings of ``code``; see `episodes_of`."""
        return episodes_of(self, code)


def episodes_of(report: CheckReport, code: str) -> FoundEpisodes:
    """Return the episodes of all findings of ``code``; none if nothing of this code was found.

    Raises
    ------
    InvalidArgument
        There is no such code.
    RldsError
        A finding does not name its episodes.
    """
    found = [f for f in report.findings if f.code == code]
    if not found and code not in CODES:
        codes = dict.fromkeys((*(f.code for f in report.findings), *CODES))
        near = did_you_mean(code, codes)
        there = ", ".join(dict.fromkeys(f.code for f in report.findings)) or "nothing"
        raise InvalidArgument(f'No finding is called "{code}".{near}  Found in {report.id}: {there}')
    for f in found:
        if f.num_episodes > len(f.episodes):
            what = f"{report.id}: {code} concerns {plural(f.num_episodes, 'episode')}, of which not all are recorded."
            raise RldsError(what, hint=f"rlds check {report.id} --episodes {code}, without --quick, reads the rows")
        if not f.num_episodes:
            unread = " No rows were read." if "rows" in report.skipped else ""
            raise RldsError(f"{report.id}: {code} names no episodes: {f.text}.{unread}", hint=f"rlds check {report.id}")
    from rlds_cli.dataset import expression_of

    numbers = tuple(sorted({k for f in found for k in f.episodes}))
    return FoundEpisodes(report.id, code, len(numbers), numbers, expression_of(numbers))
