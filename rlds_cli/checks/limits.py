"""Episodes longer than their environment allows, and time limits that are stored as terminations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Subject, first_places, plural
from rlds_cli.ted import TERMINATED

NAME = "limits"

_FEW = 3


def find(s: Subject) -> Iterator[Finding]:
    """Lengths against the environment's limit, where one is known; else against each other."""
    limit, longest = s.max_episode_steps, int(s.length.max(initial=0))
    if limit and longest > limit:
        over = np.flatnonzero(s.length > limit)
        text = f"{plural(len(over), 'episode', 'is', 'are')} longer than the environment's limit of {limit:,} steps"
        text += f", the longest {longest:,}"
        yield Finding(NAME, "too-long", "warning", text, len(over), None, first_places(over), s.known("too-long"))
    full = s.length == (limit or longest)
    if full.sum() < _FEW or longest < 2 or not (s.end[full] == TERMINATED).all():
        return
    if limit:
        at = np.flatnonzero(full)
        text = f"all {len(at):,} episodes of {limit:,} steps, the environment's limit, are terminated, not truncated"
        known = s.known("limit-terminated")
        yield Finding(NAME, "limit-terminated", "warning", text, len(at), None, first_places(at), known)
    elif full.all():
        text = f"all {len(full):,} episodes have {longest:,} steps and are terminated: this may be a time limit"
        yield Finding(NAME, "limit-terminated", "note", text, len(full))
