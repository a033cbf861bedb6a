"""The page of ``rlds check``: findings (worst first), checks that found nothing, and skipped checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from rlds_cli.base import refs, text, visible
from rlds_cli.look.checks.findings import Finding, Severity
from rlds_cli.look.pages import Grid, line, plain

if TYPE_CHECKING:
    from rlds_cli.look.checks.check_report import CheckReport, MeasureSummary

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_WIDE = 100  # columns from which findings stand in a table


class CheckPage:
    """The page of a check report; ``ref`` names the dataset as it was typed."""

    def __init__(self, report: CheckReport, ref: str = "") -> None:
        self.report, self.ref = report, ref

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        r = self.report
        if r.findings:
            yield findings(console, options, r.findings)
        if r.ok:
            yield line(console, f"ok       {', '.join(r.ok)}")
        for s in r.suppressed:
            yield line(console, f"suppressed  {s.finding.code}: {s.reason}", "dim")
        if r.known:
            codes = ", ".join(dict.fromkeys(f.code for f in r.known))
            yield line(console, f"in v{r.since}, too  {codes}", "dim")
        if r.measures:
            yield measures(r.measures)
        for reason in dict.fromkeys(r.skipped.values()):
            names = ", ".join(n for n, why in r.skipped.items() if why == reason)
            yield line(console, f"skipped  {names}: {reason}", "dim")
        new = "" if r.since is None else f" that v{r.since} does not have"
        counted = tally(r.errors, r.warnings, r.notes)
        yield line(console, f"{refs.named(r.id, r.version, self.ref)}: {counted}{new}", "bold")


def findings(console: Console, options: ConsoleOptions, found: tuple[Finding, ...]) -> RenderableType:
    """Findings as a table with wrapped text; in narrow terminals a paragraph each; in pipes a line each."""
    if not console.is_terminal:
        width = max(len(f.code) for f in found)
        return Text(
            visible.lines(f"{f.severity:8} {f.code:{width}}  {sentence(f)}" for f in found),
            no_wrap=True,
            overflow="ignore",
        )
    if options.max_width < _WIDE:
        parts = [
            part
            for f in found
            for part in ((f"{f.severity} {f.code}: ", STYLES[f.severity]), f"{visible.line(sentence(f))}\n")
        ]
        return Text.assemble(*parts, end="")
    from rich.table import Table  # slow to import, and not for a pipe

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for f in found:
        table.add_row(plain(f.severity, STYLES[f.severity]), plain(f.code), plain(sentence(f)))
    return table


def measures(found: tuple[MeasureSummary, ...]) -> Grid:
    """Return measures over the episodes that have a value, as a table."""
    columns = ("MEASURE", "UNIT", "LEAST", "MEDIAN", "GREATEST", "EPISODES")
    table = Grid((c, "left" if k < 2 else "right") for k, c in enumerate(columns))
    for m in found:
        numbers = ("-" if x is None else f"{x:.3g}" for x in (m.least, m.median, m.greatest))
        table.add_row(plain(m.name), plain(m.unit), *map(plain, (*numbers, f"{m.episodes:,}")))
    return table


def sentence(f: Finding) -> str:
    """The text of a finding, its first place, its episodes, and references to known reports."""
    parts = [f.text]
    if f.places:
        parts.append(f"{'e.g. ' if f.count > 1 else 'at '}{f.places[0]}")
    if f.places and f.num_episodes > 1:
        parts.append(f.in_episodes)
    if f.known:
        parts.append(f"known: {', '.join(f.known)}")
    return "   ".join(parts)


def tally(errors: int, warnings: int, notes: int) -> str:
    """Format ``0 errors, 2 warnings, 1 note``."""
    counted = ((errors, "error"), (warnings, "warning"), (notes, "note"))
    return ", ".join(text.plural(n, word) for n, word in counted)
