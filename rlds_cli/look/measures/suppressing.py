"""Findings that a user has looked at and suppressed, with the reason, in ``suppressed.json`` beside the measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.homes import Home, writing
from rlds_cli.look.checks.check_report import CheckReport, episodes_of
from rlds_cli.look.checks.findings import Finding
from rlds_cli.look.measures import results
from rlds_cli.store import Store

_FILE = "suppressed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Findings of one code that a user does not want to see again.

    Attributes
    ----------
    code : str
    episodes : tuple of str
        Ids of the episodes that were concerned, as hexadecimal digits; others are found anew. Empty for a finding that
        concerns the dataset as a whole.
    reason : str
    time : str
        ISO-8601, UTC.
    """

    code: str
    episodes: tuple[str, ...]
    reason: str
    time: str

    def covers(self, f: Finding, ids: Sequence[str]) -> bool:
        """Return whether a finding is suppressed; ``ids`` are those of all episodes."""
        return f.code == self.code and {ids[k] for k in f.episodes} <= set(self.episodes)


def suppress(store: Store, report: CheckReport, code: str, reason: str, directory: Path) -> Suppression:
    """Suppress the findings of one code of a report from now on.

    Raises
    ------
    InvalidArgument
        There is no such code, nothing was found by it, or no reason is given.
    """
    if not reason.strip():
        raise InvalidArgument(f"Findings are suppressed with a reason; that of {code} is empty.", hint='--reason "..."')
    found = [f for f in report.findings if f.code == code]
    if not found:
        episodes_of(report, code)  # which refuses an unknown code
        raise InvalidArgument(f"{report.id}: nothing was found by the name {code}, so nothing is suppressed.")
    ids = store.episodes["id"]
    made = Suppression(
        code=code,
        episodes=tuple(ids[k].tobytes().hex() for k in sorted({k for f in found for k in f.episodes})),
        reason=reason.strip(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    place = Home(directory.parent.parent)
    with writing(place):
        safe_files.directory(directory, place.root)
        kept = [*_read(directory), made]
        safe_files.replace_text(directory / _FILE, json.dumps([asdict(s) for s in kept], indent=1))
    return made


def read(store: Store, home: StrPath | None = None) -> list[Suppression]:
    """Return what was suppressed for a dataset."""
    return [s for directory in results.directories(store, home) for s in _read(directory)]


def _read(directory: Path) -> list[Suppression]:
    try:
        with safe_files.reading(directory / _FILE) as file:
            return [Suppression(**{**s, "episodes": tuple(s["episodes"])}) for s in json.loads(file.read())]
    except (OSError, ValueError, KeyError, TypeError, RldsError):
        return []
