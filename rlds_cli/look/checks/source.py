"""Checks against what is known of the source: its counts and its defects."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.base import ids
from rlds_cli.base.citing import short
from rlds_cli.look.checks.findings import Finding, finding
from rlds_cli.look.checks.subject import Skipped, Subject


def counts(s: Subject) -> Iterator[Finding]:
    """Compare the numbers of steps and episodes with those in the registry."""
    registered = {"steps": s.entry.num_steps, "episodes": s.entry.num_episodes} if s.entry else {}
    if s.ds.manifest.provenance or ids.parse(s.ds.id).variant is not None:
        raise Skipped("this is not the whole archive")
    if not any(registered.values()):
        raise Skipped("the registry does not say how many steps and episodes there are")
    for what, expected in registered.items():
        found = getattr(s.ds.manifest.counts, what)
        if expected and found != expected:
            text = f"{found:,} {what} in the dataset; the registry says {expected:,}"
            known = s.known("counts-differ")
            yield finding("counts-differ", "warning", text, abs(found - expected), known=known)


def defects(s: Subject) -> Iterator[Finding]:
    """Name the known defects of the source that no other finding shows: it must be the last check."""
    for d in s.entry.defects if s.entry else ():
        if d.code not in s.explained:
            yield finding(d.code, "note", d.text, known=tuple(map(short, d.refs)))
