"""Actions that lie at their bounds most of the time, so that they hardly tell how much was wanted."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.checks.findings import Finding, Severity
from rlds_cli.checks.subject import Skipped, Subject
from rlds_cli.report.saturation import saturation

NAME = "saturated"

# Shares of steps: a third is usual for squashed policies, such as those of D4RL's MuJoCo tasks.
_NOTE, _WARNING = 0.5, 0.9


def find(s: Subject) -> Iterator[Finding]:
    """Continuous actions with an element at a bound, from a sample of the steps."""
    actions = s.fields("action", kinds="f")
    if not actions:
        raise Skipped("no continuous actions")
    if s.ds.encoding != "memmap":
        raise Skipped("rows are compressed")
    if not s.thorough:
        return
    for f in actions:
        found = saturation(s.ds, f)
        if found is None or found.share < _NOTE:
            continue
        severity: Severity = "warning" if found.share >= _WARNING else "note"
        bounds = "a bound of the action space" if found.of == "space" else "its least or greatest value"
        text = f"in {100 * found.share:.0f} % of {found.steps:,} steps an element of {f.name} is at {bounds}"
        yield Finding(NAME, "saturated", severity, text, round(found.share * found.steps), f.name)
