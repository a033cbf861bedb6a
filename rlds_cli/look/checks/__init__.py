"""Checks of a dataset's content: NaN, merged episodes, duplicates, flags, bounds, counts.

>>> from rlds_cli.look import checks
>>> checks.check("d4rl/antmaze-umaze-diverse-v2").warnings  # doctest: +SKIP
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy
from rlds_cli.look.checks.findings import Finding as Finding
from rlds_cli.look.checks.findings import FindingPlace as Place

if TYPE_CHECKING:
    from rlds_cli.look.checks.check_report import CheckReport as CheckReport
    from rlds_cli.look.checks.check_report import FoundEpisodes as FoundEpisodes
    from rlds_cli.look.checks.check_report import episodes_of as episodes_of
    from rlds_cli.look.checks.run import check as check
    from rlds_cli.look.checks.run import quick as quick

__all__ = ["CheckReport", "Finding", "FoundEpisodes", "Place", "check", "episodes_of", "quick"]

lazy(__name__, {"check_report": "CheckReport FoundEpisodes episodes_of", "run": "check quick"})
