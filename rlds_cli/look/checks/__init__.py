"""Checks of a dataset's content: NaN, merged episodes, duplicates, flags, bounds, counts.

>>> from rlds_cli.look import checks
>>> checks.check("d4rl/antmaze-umaze-diverse-v2").warnings  # doctest: +SKIP
2
"""

from rlds_cli.look.checks.findings import CheckReport as CheckReport
from rlds_cli.look.checks.findings import Finding as Finding
from rlds_cli.look.checks.findings import FindingPlace as Place
from rlds_cli.look.checks.findings import FoundEpisodes as FoundEpisodes
from rlds_cli.look.checks.findings import episodes_of as episodes_of
from rlds_cli.look.checks.run import check as check
from rlds_cli.look.checks.run import quick as quick

__all__ = ["CheckReport", "Finding", "FoundEpisodes", "Place", "check", "episodes_of", "quick"]
