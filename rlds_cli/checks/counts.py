"""Numbers of steps and episodes against those that the registry, or the archive itself, says."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Skipped, Subject

NAME = "counts"


def find(s: Subject) -> Iterator[Finding]:
    """Something is missing, or the source has changed."""
    said = {"steps": s.entry.num_steps, "episodes": s.entry.num_episodes} if s.entry else {}
    if not s.is_original:
        raise Skipped("this is not the whole archive")
    if not any(said.values()):
        raise Skipped("the registry does not say how many steps and episodes there are")
    for what, expected in said.items():
        found = getattr(s.ds.manifest.counts, what)
        if expected and found != expected:
            text = f"{found:,} {what} are here; the registry says {expected:,}"
            yield Finding(
                NAME, "counts-differ", "warning", text, abs(found - expected), None, (), s.known("counts-differ")
            )
