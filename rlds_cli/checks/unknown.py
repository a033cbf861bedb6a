"""Last steps whose next observation nobody recorded: a value-based learner cannot use them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place
from rlds_cli.checks.subject import Subject, plural

NAME = "next-unknown"


def find(s: Subject) -> Iterator[Finding]:
    """How many steps are no transitions."""
    short = np.flatnonzero(np.asarray(s.ds.episodes["num_transitions"]) < s.length)
    if len(short):
        c = s.ds.manifest.counts
        text = f"{plural(len(short), 'last step', 'has', 'have')} no recorded next observation:"
        text += f" {c.transitions:,} transitions of {c.steps:,} steps"
        places = tuple(Place(int(e), int(s.length[e]) - 1) for e in short[:MOST_PLACES])
        yield Finding(NAME, "next-unknown", "note", text, len(short), None, places, s.known("next-unknown"))
