"""What the users of the source have found out about it, as far as no other finding shows it."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Subject
from rlds_cli.registry.records import short

NAME = "defects"


def find(s: Subject) -> Iterator[Finding]:
    """The registry's known defects by their codes; to be asked after all other checks."""
    for d in s.entry.defects if s.entry else ():
        if d.code not in s.explained:
            yield Finding(NAME, d.code, "note", d.text, known=tuple(map(short, d.refs)))
